//! Kernel settings below /proc/sys.

use std::collections::BTreeMap;

use super::Value;
use crate::source::Source;

/// The settings that rules and checks speak of.
const NAMES: &[&str] = &[
    "dev.raid.speed_limit_max",
    "dev.raid.speed_limit_min",
    "fs.aio-max-nr",
    "fs.aio-nr",
    "fs.file-max",
    "kernel.io_uring_disabled",
    "kernel.numa_balancing",
    "kernel.sched_autogroup_enabled",
    "kernel.timer_migration",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_filter",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_forward",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_no_pmtu_disc",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_abort_on_overflow",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_allowed_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_dsack",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_ecn_fallback",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_low_latency",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_retries2",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.ipv4.udp_mem",
    "net.ipv6.conf.all.disable_ipv6",
    "net.netfilter.nf_conntrack_max",
    "vm.dirty_background_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_bytes",
    "vm.dirty_expire_centisecs",
    "vm.dirty_ratio",
    "vm.dirty_writeback_centisecs",
    "vm.max_map_count",
    "vm.min_free_kbytes",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.page-cluster",
    "vm.swappiness",
    "vm.vfs_cache_pressure",
    "vm.watermark_scale_factor",
    "vm.zone_reclaim_mode",
];

/// Parameters of other modules than ZFS that rules and checks speak of.
const PARAMS: &[&str] = &[
    "nvme_core.default_ps_max_latency_us",
    "nvme_core.io_timeout",
    "nvme_core.max_retries",
    "nvme_core.multipath",
    "nvme_core.iopolicy",
    "nvme.io_queue_depth",
    "nvme.poll_queues",
    "nvme.write_queues",
    "pcie_aspm.policy",
    "intel_idle.max_cstate",
    "processor.max_cstate",
    "ib_iser.max_sectors",
    "ib_iser.always_register",
    "ib_isert.sg_tablesize",
    "iscsi_tcp.max_lun",
    "iscsi_tcp.recv_from_iscsi_q",
    "nvmet_rdma.use_srq",
    "nvmet_tcp.so_priority",
    "nvmet_tcp.idle_poll_period_usecs",
    "nvme_tcp.so_priority",
    "nvme_tcp.wq_unbound",
    "scst.scst_threads",
    "scst.scst_max_cmd_mem",
    "scst.scst_max_dev_cmd_mem",
];

/// Reads the parameters that there are.
pub(super) fn module_params(source: &dyn Source) -> BTreeMap<String, Value> {
    PARAMS
        .iter()
        .filter_map(|name| {
            let (module, param) = name.split_once('.')?;
            let text = source.text(&format!("/sys/module/{module}/parameters/{param}"))?;
            // ASPM's policies, with the chosen one in brackets.
            let text = super::memory::chosen(&text).unwrap_or(text);
            Some(((*name).to_owned(), Value::parse(&text)))
        })
        .collect()
}

/// Reads the settings that there are.
pub(super) fn read(source: &dyn Source) -> BTreeMap<String, Value> {
    NAMES
        .iter()
        .filter_map(|name| {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            Some(((*name).to_owned(), Value::parse(&source.text(&path)?)))
        })
        .collect()
}
