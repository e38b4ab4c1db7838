//! `lunet tune` and `lunet doctor` on captured machines: what they say, and their exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn machine(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../measure/host/tests/machines").join(name)
}

fn lunet(arguments: &[&str], root: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunet"));
    command.args(arguments).arg("--root").arg(root).output().expect("it runs")
}

/// What it printed, if it ended with this code and said nothing else.
fn told(arguments: &[&str], root: &Path, code: i32) -> String {
    let output = lunet(arguments, root);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("a text")
}

#[test]
fn a_plan_says_by_its_exit_code_whether_there_is_something_to_do() {
    let recipe = machine("recipe");
    let text = told(&["tune", "plan", "--profile", "throughput"], &recipe, 2);
    assert!(text.contains("net.core.rmem_max: 212992 -> 16777216"), "{text}");
    told(&["tune", "plan"], &machine("vm-virtio"), 0);
    let only = told(&["tune", "plan", "--only", "zfs", "--except", "zfs.arc-max"], &recipe, 0);
    assert!(!only.contains("net.core"), "{only}");
    let json = told(&["tune", "plan", "--only", "zfs.arc-max", "--json"], &recipe, 2);
    let plan: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let item = &plan["items"][0];
    assert_eq!((&item["verdict"], &item["now"]), (&"change".into(), &"0".into()), "{json}");
}

#[test]
fn a_rule_tells_its_story() {
    let text = told(&["tune", "explain", "zfs.arc-max"], &machine("recipe"), 0);
    for part in ["Why\n", "Risk\n", "Source\n", "OpenZFS before 2.3.0", "154618822656"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn a_captured_machine_can_be_captured_and_tells_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("machine.txt");
    let name = file.to_str().expect("a text");
    let wrote = told(&["tune", "capture", name], &machine("proxmox"), 0);
    assert!(wrote.starts_with("wrote "), "{wrote}");
    for arguments in [&["tune", "facts", "--json"][..], &["tune", "plan", "--all", "--json"]] {
        // There is nothing to do on it.
        assert_eq!(told(arguments, &file, 0), told(arguments, &machine("proxmox"), 0));
    }
    let again = lunet(&["tune", "capture", name], &machine("proxmox"));
    assert_eq!(again.status.code(), Some(1), "it overwrites nothing");
}

#[test]
fn the_doctor_says_by_its_exit_code_what_it_found() {
    assert!(told(&["doctor"], &machine("proxmox"), 0).contains("Nothing found."));
    let text = told(&["doctor"], &machine("recipe"), 1);
    assert!(text.contains("fix: "), "{text}");
    let json = told(&["doctor", "--json"], &machine("recipe"), 1);
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(report["findings"].as_array().is_some_and(|all| all.len() > 20), "{json}");
    let ceilings = told(&["doctor", "--ceilings"], &machine("recipe"), 0);
    assert!(ceilings.contains("One session is bound by: one session."), "{ceilings}");
}

#[test]
fn mistakes_get_one_sentence() {
    let recipe = machine("recipe");
    let stranger = machine("recipe/../../../Cargo.toml");
    for (arguments, root, code, words) in [
        (&["tune", "explain", "drive.schedule"][..], &recipe, 1, "did you mean `drive.scheduler`?"),
        (&["tune", "plan", "--only", "zfs.arcmax"], &recipe, 1, "did you mean `zfs.arc-max`?"),
        (&["tune", "facts"], &stranger, 1, "line 1: starts with none of"),
        (&["doctor"], &stranger, 2, "line 1: starts with none of"),
    ] {
        let output = lunet(arguments, root);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.starts_with("lunet: ") && said.contains(words), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
