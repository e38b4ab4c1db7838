//! Healthy machines, each a tree in `tests/healthy`: they were built by one who had not read the checks, as unlike each
//! other as machines are, with the harmless noise that logs and counters have.

#[expect(dead_code, reason = "its machines are those of other tests")]
mod captured;

use std::fs;

use lunet_host::facts::facts;
use lunet_host::source::{Command, Recorder, Tree};

use self::captured::here;

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
            assert!(command.only_looks() || known(&format!("$ {line}")), "{machine}: {line}");
        }
    }
}
