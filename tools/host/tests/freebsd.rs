//! The script that captures FreeBSD and TrueNAS CORE, against programs that answer as those of the captured machines: it
//! must ask for all that facts are read from, and let no secret through. And what a capture says that lacks much.

#[expect(dead_code, reason = "its machines are those of other tests")]
mod captured;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use lunet_host::doctor::{Checks, State, WatchError, examine, page as report_page, watch};
use lunet_host::facts::{Facts, System, facts};
use lunet_host::source::{self, Source, Tree};
use tempfile::TempDir;

use self::captured::{here, machines, tree};

/// Stands where the captured trees have a mask.
const PLANTED: &str = "hunter2hunter2";

/// Reading them takes longer than all else here.
static CHECKS: LazyLock<Checks> = LazyLock::new(|| Checks::embedded().unwrap());

fn of_freebsd() -> Vec<String> {
    let all = machines().into_iter();
    all.filter(|name| facts(&tree(name)).system() == System::FreeBsd).collect()
}

/// A machine made of files and of programs that answer, with secrets where its tree has masks.
fn machine(tree: &Tree) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |inner: &str| folder.path().join(inner.trim_start_matches('/'));
    let put = |inner: &str, text: &str| {
        fs::create_dir_all(path(inner).parent().unwrap()).unwrap();
        fs::write(path(inner), text.replace(source::MASK, PLANTED)).unwrap();
    };
    put("root/dev/cam/ctl", "");
    let disks = facts(tree).freebsd.map(|bsd| bsd.disks).unwrap_or_default();
    let disks: Vec<String> = disks.into_iter().map(|disk| disk.name).collect();
    let mut answers = vec![
        ("sysctl -n kern.disks".to_owned(), disks.join(" ")),
        ("uname -s".to_owned(), "FreeBSD\n".to_owned()),
        ("id -u".to_owned(), "0\n".to_owned()),
    ];
    for entry in tree.entries().filter(|entry| entry != "/lunet-capture") {
        let Some(line) = entry.strip_prefix("$ ") else {
            put(&format!("root{entry}"), &tree.read(&entry).unwrap());
            continue;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let output = tree.run(&source::Command::new(words[0], &words[1..])).unwrap();
        answers.push((line.to_owned(), output.stdout));
        if line.starts_with("zdb -U") {
            put("root/data/zfs/zpool.cache", "");
        }
    }
    // Each program knows its answers by its arguments.
    let mut programs: BTreeMap<String, String> = BTreeMap::new();
    for (number, (line, text)) in answers.iter().enumerate() {
        put(&format!("answers/{number}"), text);
        let (program, arguments) = line.split_once(' ').unwrap();
        let file = path(&format!("answers/{number}"));
        let answer = format!("'{arguments}') exec cat {} ;;\n", file.display());
        *programs.entry(program.to_owned()).or_default() += &answer;
    }
    for (program, answers) in programs {
        let inner = format!("bin/{program}");
        put(
            &inner,
            &format!("#!/bin/sh\ncase \"$*\" in\n{answers}esac\necho 'no answer' >&2\nexit 1\n"),
        );
        fs::set_permissions(path(&inner), fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// Runs the script on it.
fn capture(folder: &Path) -> String {
    let out = folder.join("capture.txt");
    let path = std::env::var("PATH").unwrap();
    let done = Command::new("sh")
        .arg(here("../../packaging/freebsd/lunet-capture.sh"))
        .arg(&out)
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .env("LUNET_CAPTURE_ROOT", folder.join("root"))
        .env("TMPDIR", folder)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    fs::read_to_string(out).unwrap()
}

/// What only the capture itself decides.
fn without_what_lacked(mut facts: Facts) -> Facts {
    if let Some(bsd) = &mut facts.freebsd {
        bsd.lacked.clear();
    }
    facts
}

#[test]
fn the_script_asks_for_all_that_facts_are_read_from_and_lets_no_secret_through() {
    let all = of_freebsd();
    assert!(all.len() >= 2, "{all:?}");
    for name in all {
        let original = tree(&name);
        let folder = machine(&original);
        let text = capture(folder.path());
        let told: Vec<&str> = text.lines().filter(|line| line.contains(PLANTED)).collect();
        assert!(told.is_empty(), "{name}: {told:#?}");
        let captured = facts(&Tree::parse(&text).unwrap());
        let (captured, wanted) =
            (without_what_lacked(captured), without_what_lacked(facts(&original)));
        let json = |facts: &Facts| serde_json::to_string_pretty(facts).unwrap();
        for (line, (captured, wanted)) in
            json(&captured).lines().zip(json(&wanted).lines()).enumerate()
        {
            assert_eq!(captured, wanted, "{name}, line {line} of the facts");
        }
        assert_eq!(captured, wanted, "{name}");
        // Nothing is left behind.
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 4, "bin, answers, root and the capture");
    }
}

/// Secrets of ctl.conf in the ways that its grammar allows.
#[test]
fn no_secret_of_the_target_gets_into_a_capture() {
    let mut original = tree("freebsd-14");
    let conf = "# chap old ***\nauth-group a { chap \"my user\" \"***\" }\nauth-group b {\n\
                \tchap-mutual u *** \"v\" \"***\" # ***\n\tchap\n\t\tuser\n\t\t\"***\"\n}\n\
                lun x {\n\tserial ***\n\tdevice-id \"***\"\n\toption \"naa\" \"***\"\n\tpath /dev/zvol/fast/pve1\n}\n";
    original.file("/etc/ctl.conf", conf);
    let folder = machine(&original);
    let text = capture(folder.path());
    assert!(!text.contains(PLANTED), "{text}");
    for kept in ["chap \"my user\" \"***\" }", "chap-mutual u \"***\"", "path /dev/zvol/fast/pve1"]
    {
        assert!(text.contains(kept), "{kept}");
    }
}

#[test]
fn a_capture_without_rights_says_what_it_lacks_and_nothing_is_taken_for_healthy() {
    let mut original = tree("truenas-core-13");
    for line in ["zpool list", "zpool status", "ctladm", "smartctl", "camcontrol", "zfs"] {
        let gone: Vec<String> = original
            .entries()
            .filter_map(|entry| entry.strip_prefix("$ ").map(str::to_owned))
            .filter(|entry| entry.starts_with(line))
            .collect();
        gone.iter().for_each(|line| original.remove_command(line));
    }
    let folder = machine(&original);
    let text = capture(folder.path());
    let facts = facts(&Tree::parse(&text).unwrap());
    let bsd = facts.freebsd.as_ref().unwrap();
    assert!(
        bsd.lacked.iter().any(|lacked| lacked.contains("zpool") || lacked.contains("smartctl"))
    );
    let report = examine(&facts, &CHECKS);
    let healthy = |id: &str| {
        report.looked.iter().any(|looked| looked.check == id && looked.state == State::Healthy)
    };
    for id in ["bsd-pool-health", "bsd-drive-failing", "bsd-ctl-port-offline", "bsd-tags"] {
        assert!(!healthy(id), "{id}");
    }
    assert!(healthy("bsd-portal-no-carrier"));
    assert_eq!(report.count(State::Broken), 0);
}

#[test]
fn no_check_of_linux_is_run_on_freebsd_and_none_of_freebsd_on_linux() {
    for name in of_freebsd().iter().map(String::as_str).chain(["debian-lunet"]) {
        let facts = facts(&tree(name));
        let report = examine(&facts, &CHECKS);
        let freebsd = facts.system() == System::FreeBsd;
        assert!(
            report.looked.iter().all(|looked| looked.check.starts_with("bsd-") == freebsd),
            "{name}"
        );
        assert_eq!(report.checks, CHECKS.of(facts.system()).count());
        let page = report_page(&report, false);
        assert_eq!(page.lines().next().unwrap().contains("Linux"), !freebsd, "{page}");
    }
}

#[test]
fn two_looks_at_freebsd_are_refused_in_a_sentence() {
    let facts = facts(&tree("freebsd-14"));
    let none = Checks::default();
    let refused = watch(&facts, &facts, 60, &none, &none).unwrap_err();
    assert_eq!(refused, WatchError::System);
}
