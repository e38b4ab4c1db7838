//! The captured machines: what is known of each is held in `facts.json` beside its tree,
//! and the page that people see in `page.txt`.
//! `LUNET_BLESS=1 cargo test -p lunet-host --test machines` writes these files anew.

use std::fs;
use std::path::PathBuf;

use lunet_host::facts::{Facts, facts, page};
use lunet_host::source::{Recorder, Tree};

const MACHINES: &[&str] = &[
    "recipe",
    "truenas-23.10",
    "truenas-24.10",
    "truenas-25.10",
    "proxmox",
    "debian-lio",
    "initiator-connectx3",
    "vm-virtio",
];

fn directory(machine: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/machines").join(machine)
}

fn tree(machine: &str) -> Tree {
    Tree::open(&directory(machine)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn facts_of_the_captured_machines() {
    for machine in MACHINES {
        let facts = facts(&tree(machine));
        let json = serde_json::to_string_pretty(&facts).unwrap() + "\n";
        hold(machine, "facts.json", &json);
        hold(machine, "page.txt", &page(&facts));
        let again: Facts = serde_json::from_str(&json).unwrap();
        assert_eq!(again, facts, "{machine}: facts survive their JSON");
    }
}

/// Compares with what is held in a file beside the tree.
fn hold(machine: &str, file: &str, found: &str) {
    let path = directory(machine).join(file);
    if std::env::var_os("LUNET_BLESS").is_some() {
        fs::write(&path, found).unwrap();
    }
    let held = fs::read_to_string(&path).unwrap_or_default();
    for (number, (held, found)) in (1..).zip(held.lines().zip(found.lines())) {
        assert_eq!(held, found, "{machine}/{file}, line {number}");
    }
    assert_eq!(held.len(), found.len(), "{machine}/{file} has another end");
}

#[test]
fn every_machine_there_is_tested() {
    let all = fs::read_dir(directory("")).unwrap();
    let mut names: Vec<String> =
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut known: Vec<&str> = MACHINES.to_vec();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn a_captured_tree_has_the_same_facts() {
    for machine in MACHINES {
        let original = tree(machine);
        let recorder = Recorder::new(&original);
        let seen = facts(&recorder);
        let text = recorder.into_tree().to_text();
        let again = Tree::parse(&text).unwrap();
        assert_eq!(facts(&again), seen, "{machine}");
        assert_eq!(again.to_text(), text, "{machine}");
    }
}

#[test]
fn nothing_in_a_tree_is_there_in_vain() {
    // A path with a mistake in it would be a fact that is silently missing.
    for machine in MACHINES {
        let original = tree(machine);
        let recorder = Recorder::new(&original);
        facts(&recorder);
        let asked = recorder.into_tree();
        let unasked: Vec<String> = original
            .entries()
            .filter(|name| !asked.has(name))
            // Every machine has a clock; facts do not ask for the time.
            .filter(|name| *name != "$ date +%s")
            .collect();
        assert!(unasked.is_empty(), "{machine}: {unasked:#?}");
    }
}
