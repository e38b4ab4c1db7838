//! The captured machines: what is known of each is held in `facts.json` beside its tree,
//! and the page that people see in `page.txt`.
//! `LUNET_BLESS=1 cargo test -p lunet-host --test machines` writes these files anew.

mod captured;

use lunet_host::facts::{Facts, System, facts, page};
use lunet_host::source::{Command, Recorder, Tree};

use self::captured::{hold, machines, tree};

#[test]
fn facts_of_the_captured_machines() {
    for machine in machines() {
        let facts = facts(&tree(&machine));
        let json = serde_json::to_string_pretty(&facts).unwrap() + "\n";
        hold(&format!("tests/machines/{machine}/facts.json"), None, &json);
        hold(&format!("tests/machines/{machine}/page.txt"), None, &page(&facts));
        let again: Facts = serde_json::from_str(&json).unwrap();
        assert_eq!(again, facts, "{machine}: facts survive their JSON");
    }
}

#[test]
fn a_captured_tree_has_the_same_facts() {
    for machine in machines() {
        let original = tree(&machine);
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
    for machine in machines() {
        let original = tree(&machine);
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

#[test]
fn every_command_of_a_tree_is_one_that_the_live_machine_runs() {
    // Trees answer whatever is asked; a live machine runs no command that is not known to only look.
    for machine in machines() {
        let tree = tree(&machine);
        // FreeBSD is only known from the script's captures.
        if facts(&tree).system() != System::Linux {
            continue;
        }
        for line in tree.entries().filter_map(|name| name.strip_prefix("$ ").map(str::to_owned)) {
            let mut words = line.split(' ');
            let program = words.next().unwrap();
            let command = Command::new(program, &words.collect::<Vec<_>>());
            assert!(command.only_looks(), "{machine}: {line}");
        }
    }
}
