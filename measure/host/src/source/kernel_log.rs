//! Which lines of the kernel's log are worth keeping.

/// What lines with all of these words mean. The first that fits is taken.
const KINDS: &[(&str, &[&str])] = &[
    ("iser_registered", &["registered iscsi transport", "iser"]),
    ("iser_registered", &["registered iser", "transport"]),
    ("iser_registered", &["registering iser", "transport"]),
    ("iser_registered", &["isert", "listening"]),
    ("iser_failed", &["isert", "failed"]),
    ("iser_failed", &["iser:", "failed"]),
    ("iser_connected", &["iser", "connection established"]),
    ("rdma_refused", &["rdma_cm", "reject"]),
    ("rdma_refused", &["rdma_listen", "failed"]),
    ("rdma_refused", &["rdma_bind_addr", "failed"]),
    ("rdma_refused", &["nvmet_rdma", "binding cm id to", "failed"]),
    ("rdma_refused", &["nvme", "connect rejected: status"]),
    ("rdma_exhausted", &["failed to initialize mr pool"]),
    ("rdma_exhausted", &["nvmet_rdma", "failed to create_qp"]),
    ("pcie_limited", &["available pcie bandwidth", "limited by"]),
    ("pcie_limited", &["pcie slot", "width", "reduced"]),
    ("pcie_error", &["aer:", "error"]),
    ("pcie_error", &["pcie bus error"]),
    ("nvme_lost", &["nvme", "controller is down"]),
    ("nvme_lost", &["nvme", "removing after probe failure"]),
    ("nvme_lost", &["nvme", "device not ready"]),
    ("nvme_timeout", &["nvme", "i/o", "timeout"]),
    ("nvme_timeout", &["nvme", "timeout, completion polled"]),
    ("nvme_aborted", &["nvme", "abort status"]),
    ("io_error", &["i/o error, dev"]),
    ("io_error", &["critical medium error"]),
    ("nic_tx_timeout", &["netdev watchdog"]),
    ("nic_tx_timeout", &["tx timeout detected"]),
    ("nic_reset", &["mlx5", "health", "fatal"]),
    ("nic_reset", &["adapter", "reset", "hw"]),
    ("cable_fault", &["cable error"]),
    ("cable_fault", &["cable unplugged"]),
    ("nic_link_down", &["link down"]),
    ("nic_link_down", &["link is down"]),
    ("too_hot", &["temperature above threshold"]),
    ("too_hot", &["high temperature"]),
    ("syn_flood", &["possible syn flooding"]),
    ("out_of_memory", &["out of memory: kill"]),
    ("hung_task", &["blocked for more than", "seconds"]),
    ("zfs_suspended", &["pool", "has encountered an uncorrectable i/o failure"]),
    ("zfs_error", &["warning: pool", "i/o"]),
    ("target_timeout", &["iscsi-scst", "***error***", "timeout"]),
    ("target_timeout", &["timeout", "sending data/waiting for reply"]),
    ("target_abort", &["abort_task"]),
    ("target_abort", &["task mgmt fn", "abort"]),
    ("iscsi_connection_lost", &["connection", "detected conn error"]),
    ("iscsi_connection_lost", &["session recovery timed out"]),
    ("iscsi_connection_lost", &["ping timeout of"]),
    ("machine_check", &["machine check"]),
    ("machine_check", &["mce: [hardware error]"]),
    ("machine_check", &["edac", " ce "]),
];

/// The line without `[    1.234567] ` in front.
pub(crate) fn without_time(line: &str) -> &str {
    let rest = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match rest {
        Some((time, text)) if time.trim().bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
            text.trim_start()
        }
        _ => line,
    }
}

/// Whether a line of the log is worth keeping.
pub(super) fn means_something(line: &str) -> bool {
    kind(without_time(line)).is_some()
}

/// What a line without its time means.
pub(crate) fn kind(text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase();
    let fits = |words: &&[&str]| words.iter().all(|word| lower.contains(word));
    KINDS.iter().find(|(_, words)| fits(words)).map(|(kind, _)| *kind)
}
