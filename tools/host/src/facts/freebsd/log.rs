//! Lines of the log of FreeBSD that mean something here.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// Lines of one kind about one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogHit {
    /// What they mean: `cam_timeout`, `nvme_reset`...
    pub kind: String,
    /// The device that they name: `ada2`, `nvme0`, `ix0`.
    pub device: Option<String>,
    /// The last of them, without its time.
    pub text: String,
    /// How many there are.
    pub count: i64,
}

/// What a line must have in it, and what it means. The first that fits counts.
const KINDS: &[(&[&str], &str)] = &[
    // cam_strerror and the tables of sys/cam
    (&["CAM status: Uncorrectable parity/CRC error"], "cam_crc"),
    (&["CAM status: Command timeout"], "cam_timeout"),
    (&["SCSI sense: MEDIUM ERROR"], "medium_error"),
    (&["ATA status: ", "UNC"], "medium_error"),
    (&["Periph destroyed"], "drive_gone"),
    // sys/dev/nvme
    (&["nvme", "Resetting controller due to a timeout"], "nvme_reset"),
    (&["nvme", "resetting controller"], "nvme_reset"),
    (&["nvme", "Missing interrupt"], "nvme_interrupt"),
    (&["nvme", "controller failure"], "nvme_failed"),
    // sys/dev/mps, sys/dev/mpr
    (&["IOC Fault"], "hba_fault"),
    (&["Reinitializing controller"], "hba_fault"),
    // sys/kern/kern_intr.c
    (&["nterrupt storm detected on"], "interrupt_storm"),
    // sys/cam/ctl/ctl_frontend_iscsi.c
    (&["no ping reply (NOP-Out) after"], "iscsi_ping"),
    (&["link state changed to DOWN"], "link_down"),
    // sys/vm/uma_core.c
    (&["kern.ipc.nmb", "limit reached"], "mbuf_limit"),
    // sys/vm/swap_pager.c and vm_pageout.c
    (&["swap_pager_getswapspace", "failed"], "swap_full"),
    (&["was killed: "], "killed"),
    (&["swap_pager: indefinite wait buffer"], "swap_slow"),
    // sys/kern/uipc_socket.c
    (&["Listen queue overflow"], "listen_overflow"),
    // sys/x86/x86/mca.c
    (&["MCA: Bank"], "machine_check"),
    // zfsd, devd's zfs.conf
    (&["ZFS: ", "pool I/O failure"], "pool_failure"),
    (&["has encountered an uncorrectable I/O failure and has been suspended"], "pool_failure"),
];

/// Reads the messages and the kernel's buffer. A line may be in both: of a kind, the larger number counts.
pub(super) fn read(source: &dyn Source) -> (bool, Vec<LogHit>) {
    let files = [source.read("/var/log/messages"), source.output("sysctl", &["-n", "kern.msgbuf"])];
    let readable = files.iter().any(Option::is_some);
    let mut all: Vec<LogHit> = Vec::new();
    for text in files.into_iter().flatten() {
        for hit in hits(&text) {
            match all.iter_mut().find(|have| have.kind == hit.kind && have.device == hit.device) {
                Some(have) if have.count < hit.count => *have = hit,
                Some(_) => {}
                None => all.push(hit),
            }
        }
    }
    (readable, all)
}

fn hits(text: &str) -> Vec<LogHit> {
    let mut all: Vec<LogHit> = Vec::new();
    for line in text.lines() {
        let fits = |(words, _): &&(&[&str], &str)| words.iter().all(|word| line.contains(word));
        let Some((_, kind)) = KINDS.iter().find(fits) else { continue };
        let line = message(line);
        let device = device(line);
        match all.iter_mut().find(|hit| hit.kind == *kind && hit.device == device) {
            Some(hit) => {
                hit.count += 1;
                line.clone_into(&mut hit.text);
            }
            None => all.push(LogHit {
                kind: (*kind).to_owned(),
                device,
                text: line.to_owned(),
                count: 1,
            }),
        }
    }
    all
}

/// The line without what syslogd puts before it: `Dec 10 19:18:35 truenas kernel: `, with or without the program, and
/// in the form of RFC 5424 `<2>1 2025-12-10T19:18:35.000000+01:00 truenas.local kernel - - - `.
fn message(line: &str) -> &str {
    if let Some((_, rest)) =
        line.split_once(" kernel - - - ").or_else(|| line.split_once(" kernel: "))
    {
        return rest;
    }
    // TrueNAS leaves the program out: `Dec  1 19:18:35 truenas ix0: ...`.
    let stamp = line.get(..15).filter(|stamp| stamp.matches(':').count() == 2);
    let month = stamp.is_some_and(|stamp| stamp.starts_with(|c: char| c.is_ascii_uppercase()));
    let rest = line.get(16..).filter(|_| month).and_then(|rest| rest.split_once(' '));
    rest.map_or(line, |(_, rest)| rest)
}

/// `ada2` of `(ada2:ahcich3:0:0:0): CAM ...`, else the word that the line begins with: `nvme0: ...`.
fn device(line: &str) -> Option<String> {
    let line =
        line.trim_start_matches(|c: char| c == '[' || c == ']' || c.is_ascii_digit() || c == ' ');
    let name = match line.strip_prefix('(') {
        Some(rest) => rest.split(':').next()?,
        None => line.split(':').next()?,
    };
    let fine = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
        && name.ends_with(|c: char| c.is_ascii_digit())
        && name.starts_with(|c: char| c.is_ascii_lowercase());
    fine.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn finds_the_lines_that_mean_something() {
        let tree = Tree::parse(
            "/var/log/messages:\n\
             | Dec 10 19:18:35 truenas ahcich3: Timeout on slot 31 port 0\n\
             | Dec 10 19:18:35 truenas (ada2:ahcich3:0:0:0): CAM status: Command timeout\n\
             | Dec 10 19:18:35 truenas (ada2:ahcich3:0:0:0): Retrying command, 3 more tries remain\n\
             | Dec 10 19:19:35 truenas 1 2025-12-10T19:19:35.000000+01:00 truenas.local kernel - - - (ada2:ahcich3:0:0:0): CAM status: Command timeout\n\
             | Dec  2 19:19:36 nas vnet0.1: link state changed to DOWN\n\
             | Dec  9 19:19:36 nas kernel: nvme0: Resetting controller due to a timeout.\n\
             | Dec 11 19:19:36 nas kernel: WARNING: 10.0.0.5 (iqn.1998-01.com.vmware:esx1): no ping reply (NOP-Out) after 5 seconds; dropping connection\n\
             $ sysctl -n kern.msgbuf\n\
             | (ada2:ahcich3:0:0:0): CAM status: Command timeout\n\
             | ix0: link state changed to DOWN\n\
             | interrupt storm detected on \"irq16:\"; throttling interrupt source\n",
        )
        .unwrap();
        let (readable, found) = read(&tree);
        assert!(readable);
        let seen: Vec<(&str, Option<&str>, i64)> =
            found.iter().map(|hit| (hit.kind.as_str(), hit.device.as_deref(), hit.count)).collect();
        assert_eq!(
            seen,
            [
                ("cam_timeout", Some("ada2"), 2),
                ("link_down", Some("vnet0.1"), 1),
                ("nvme_reset", Some("nvme0"), 1),
                ("iscsi_ping", None, 1),
                ("link_down", Some("ix0"), 1),
                ("interrupt_storm", None, 1),
            ]
        );
        assert_eq!(found[2].text, "nvme0: Resetting controller due to a timeout.");
        assert_eq!(read(&Tree::new()), (false, Vec::new()));
    }
}
