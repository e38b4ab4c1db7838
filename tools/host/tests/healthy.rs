//! Healthy machines, each a tree in `tests/healthy`: they were built by one who had not read the checks, as unlike each
//! other as machines are, with the harmless noise that logs and counters have.
//!
//! Nothing above a note may be said of them, but for what is [`TRUE`]. What is said is held in `healthy/result.txt`, which
//! `LUNET_BLESS=1 cargo test -p lunet-host --test healthy` writes anew.

#[expect(dead_code, reason = "its machines are those of other tests")]
mod captured;

use std::fmt::Write;
use std::fs;

use lunet_host::doctor::{Checks, Severity, examine};
use lunet_host::facts::facts;
use lunet_host::source::{Command, Recorder, Tree};

use self::captured::{here, hold};

/// Findings that are right, on machines whose owners know and live with it: machine, check, and why it is left so.
const TRUE: &[(&str, &str, &str)] = &[
    ("howto-recipe", "target-queue-depth", "its author saw 4 GB/s in one virtual machine by this"),
    ("connectx3-homelab", "nic-pcie-below-wire", "the chipset is older than the card"),
    ("debian-scst-raid", "target-nv-cache", "nothing tells that the controller has a battery"),
    ("altra-64k", "target-short-segments", LIO),
    ("homelab-x710", "target-short-segments", LIO),
    ("rhel-lio-thin", "target-short-segments", LIO),
    ("ryzen-nas", "target-short-segments", LIO),
];
const LIO: &str = "LIO's default is too small for 10 Gbit/s";

/// What is in a tree although no fact asks for it, by a part of its name: such machines have it, and facts may come to
/// ask for it.
const NOT_ASKED: &[&str] = &[
    "$ date +%s",
    "$ chronyc tracking",
    "$ smartctl ",
    "$ timedatectl ",
    "$ vcgencmd ",
    "/proc/mdstat",
    "/proc/stat",
    "/proc/swaps",
    "/sys/block/dm-",
    "/sys/block/md",
    "/sys/devices/system/clocksource/",
    "/sys/devices/system/edac/",
    "/aer_dev_correctable",
    // Counters of Intel and Chelsio.
    "/hw_counters/",
    // Of a RAID controller.
    "/0000:02:00.0",
    "$ lspci -vv -s 0000:02:00.0",
    "/sys/bus/pci/devices/0000:00:01.0/max_link",
    // The drive is found by its name alone, a list of names by the first of them.
    "/sys/class/nvme-subsystem/nvme-subsys",
    "/sys/class/nvme/nvme",
    "/IncomingUser",
    "/cmdsn_depth",
    "/authenticate_target",
    // Another file of this name counts.
    "/usr/lib/sysctl.d/pve-firewall.conf",
];

fn machines() -> Vec<String> {
    let all = fs::read_dir(here("tests/healthy")).unwrap().map(|entry| entry.unwrap().path());
    let folders = all.filter(|path| path.is_dir());
    let mut names: Vec<String> =
        folders.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert!(names.len() >= 25, "{names:?}");
    names
}

fn tree(machine: &str) -> Tree {
    let path = here("tests/healthy").join(machine);
    Tree::open(&path).unwrap_or_else(|error| panic!("{machine}: {error}"))
}

#[test]
fn nothing_in_a_healthy_tree_is_there_in_vain() {
    for machine in machines() {
        let original = tree(&machine);
        let recorder = Recorder::new(&original);
        facts(&recorder);
        let asked = recorder.into_tree();
        let known = |name: &str| NOT_ASKED.iter().any(|part| name.contains(part));
        let vain: Vec<String> =
            original.entries().filter(|name| !asked.has(name) && !known(name)).collect();
        assert!(vain.is_empty(), "{machine}: {vain:#?}");
        for line in original.entries().filter_map(|name| name.strip_prefix("$ ").map(str::to_owned))
        {
            let words: Vec<&str> = line.split(' ').collect();
            let command = Command::new(words[0], &words[1..]);
            let freebsd = original.has("/lunet-capture");
            let fine = freebsd || command.only_looks() || known(&format!("$ {line}"));
            assert!(fine, "{machine}: {line}");
        }
    }
}

#[test]
fn a_healthy_machine_has_nothing_but_notes() {
    let checks = Checks::embedded().unwrap_or_else(|error| panic!("{error}"));
    let mut lines = String::new();
    for machine in machines() {
        let report = examine(&facts(&tree(&machine)), &checks);
        for finding in &report.findings {
            let known = TRUE.iter().any(|(on, check, _)| *on == machine && *check == finding.check);
            let word = match finding.severity {
                Severity::Note => "note",
                _ if known => "true",
                _ => "false",
            };
            let _ = writeln!(lines, "{word:<5} {machine}: {}: {}", finding.check, finding.found);
        }
    }
    hold("tests/healthy/result.txt", None, &lines);
    let wrong: Vec<&str> = lines.lines().filter(|line| line.starts_with("false")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let said = |(machine, check, _): &(&str, &str, &str)| {
        lines.contains(&format!("true  {machine}: {check}: "))
    };
    assert!(TRUE.iter().all(said), "one of TRUE is not said any more");
}
