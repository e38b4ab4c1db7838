//! The doctor on two looks at a machine: what has moved is found and named, what stands still or moves harmlessly is not.
//!
//! A pair is one of the captured machines with a `before`, and over that an `after` or a `calm` (`watch/pairs.toml`).
//! `LUNET_BLESS=1` writes the table in docs/doctor.md anew.

mod captured;
mod fixes;
mod halves;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::sync::LazyLock;

use lunet_host::doctor::{Checks, Report, State, WatchError, moving, watch};
use lunet_host::facts::{Facts, facts};
use lunet_host::source::Tree;
use serde::Deserialize;

use self::captured::{here, hold, machines, tree};
use self::halves::in_halves;

/// Two looks at a machine.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    /// What happens, in a few words.
    name: String,
    /// The machine.
    machine: String,
    /// The check that finds it.
    finds: String,
    /// What the finding says: how many, and of what.
    says: String,
    /// Seconds between the looks.
    #[serde(default = "minute")]
    seconds: i64,
    /// A tree that is laid over the machine at both looks.
    #[serde(default)]
    before: String,
    /// A tree that is laid over it at the second look: something happens.
    after: String,
    /// The same where nothing does that matters; without it, nothing moves.
    #[serde(default)]
    calm: String,
}

fn minute() -> i64 {
    60
}

#[derive(Deserialize)]
struct Pairs {
    pair: Vec<Pair>,
}

fn pairs() -> Vec<Pair> {
    let text = fs::read_to_string(here("tests/watch/pairs.toml")).unwrap();
    let read: Pairs = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    read.pair
}

/// The machine with some trees over it.
fn look(machine: &str, overlays: &[&str]) -> Facts {
    let mut tree = MACHINES[machine].clone();
    for overlay in overlays {
        tree.overlay(overlay).unwrap_or_else(|error| panic!("{machine}: {error}"));
    }
    facts(&tree)
}

/// What is said of a pair: where something happens, and where nothing does.
struct Said {
    happens: Report,
    calm: Report,
}

impl Pair {
    fn said(&self, checks: &Checks) -> Said {
        let before = look(&self.machine, &[&self.before]);
        let then = |second: &str| look(&self.machine, &[&self.before, second]);
        let calm = match self.calm.as_str() {
            "" => moving(&before, &before, self.seconds, checks),
            calm => moving(&before, &then(calm), self.seconds, checks),
        };
        Said { happens: moving(&before, &then(&self.after), self.seconds, checks), calm }
    }
}

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(pairs);
static CHECKS: LazyLock<Checks> = LazyLock::new(|| Checks::of_watching().unwrap());
static MACHINES: LazyLock<BTreeMap<String, Tree>> =
    LazyLock::new(|| machines().into_iter().map(|name| (name.clone(), tree(&name))).collect());

/// What is said of each pair: worked out once for all tests, by two threads.
static SAID: LazyLock<Vec<Said>> = LazyLock::new(|| in_halves(&PAIRS, |pair| pair.said(&CHECKS)));

fn found(report: &Report) -> BTreeSet<&str> {
    report.findings.iter().map(|finding| finding.check.as_str()).collect()
}

#[test]
fn what_moves_is_found_and_what_does_not_is_seen_to_be_well() {
    let mut wrong = String::new();
    for (pair, said) in PAIRS.iter().zip(SAID.iter()) {
        let report = &said.happens;
        let says = report
            .findings
            .iter()
            .any(|finding| finding.check == pair.finds && finding.found.contains(&pair.says));
        if found(report) != BTreeSet::from([pair.finds.as_str()]) || !says {
            let looked = report.looked.iter().find(|looked| looked.check == pair.finds);
            let _ = writeln!(
                wrong,
                "{}: {} is to say {:?}: {:#?} {looked:?}",
                pair.name, pair.finds, pair.says, report.findings
            );
        }
        let looked = said.calm.looked.iter().find(|looked| looked.check == pair.finds);
        let seen = looked.is_some_and(|looked| looked.state == State::Healthy);
        if !said.calm.findings.is_empty() || !seen {
            let _ = writeln!(wrong, "{}, calm: {:#?} {looked:?}", pair.name, said.calm.findings);
        }
        if report.count(State::Broken) > 0 {
            let _ = writeln!(wrong, "{}: a check is broken: {:#?}", pair.name, report.looked);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// As of one look (`doctor.rs`): what was set between the looks is not to be set again.
#[test]
fn a_fix_that_was_followed_is_not_given_again() {
    let laid = |machine: &str, overlays: &[&str]| {
        let mut tree = MACHINES[machine].clone();
        for overlay in overlays {
            tree.overlay(overlay).unwrap_or_else(|error| panic!("{machine}: {error}"));
        }
        tree
    };
    let mut followed = 0;
    for (pair, said) in PAIRS.iter().zip(SAID.iter()) {
        let before = laid(&pair.machine, &[&pair.before]);
        let after = laid(&pair.machine, &[&pair.before, &pair.after]);
        for finding in &said.happens.findings {
            for given in fixes::given(&finding.fix, &after) {
                let mut then = after.clone();
                assert!(given.follow(&mut then), "{}: {given:?}", pair.name);
                let again = moving(&facts(&before), &facts(&then), pair.seconds, &CHECKS);
                let same = |fix: &str| fixes::given(fix, &then).contains(&given);
                let told = again.findings.iter().find(|again| same(&again.fix));
                assert!(told.is_none(), "{}: {given:?}: {told:?}", pair.name);
                followed += 1;
            }
        }
    }
    assert!(followed >= 5, "{followed}");
}

#[test]
fn every_check_of_two_looks_has_its_pair() {
    let checks = &*CHECKS;
    let found: BTreeSet<&str> = PAIRS.iter().map(|pair| pair.finds.as_str()).collect();
    let without: Vec<&str> =
        checks.iter().map(|check| check.id.as_str()).filter(|id| !found.contains(id)).collect();
    assert!(without.is_empty(), "{without:?}");
    assert!(checks.len() >= 25, "{}", checks.len());
    let known = Checks::embedded().unwrap();
    for check in checks.iter() {
        for other in &check.tells {
            assert!(known.iter().any(|known| known.id == *other), "{}: {other}", check.id);
        }
        assert!(check.source.is_some(), "{} has no source", check.id);
    }
}

#[test]
fn nothing_moves_on_a_machine_that_is_looked_at_twice() {
    for machine in machines() {
        let facts = look(&machine, &[]);
        let report = moving(&facts, &facts, 60, &CHECKS);
        assert!(report.findings.is_empty(), "{machine}: {:#?}", report.findings);
        assert_eq!(report.count(State::Broken), 0, "{machine}: {:#?}", report.looked);
    }
}

const RETRANSMITS: &str =
    "/proc/net/snmp:\n| Tcp: OutSegs RetransSegs\n| Tcp: 1000000000 50000000\n";

#[test]
fn a_counter_that_stands_still_is_old() {
    let checks = Checks::embedded().unwrap();
    let damaged = "/sys/class/net/enp65s0f0/statistics/rx_crc_errors: 4000\n";
    let facts = look("truenas-24.10", &[RETRANSMITS, damaged]);
    let watched = watch(&facts, &facts, 60, &checks, &CHECKS).unwrap();
    assert!(watched.report.findings.is_empty(), "{:#?}", watched.report.findings);
    assert_eq!(watched.report.exit_code(), 0);
    let old: BTreeSet<&str> = watched.old.iter().map(|old| old.check.as_str()).collect();
    assert_eq!(old, BTreeSet::from(["nic-damaged", "tcp-retransmits"]));
}

#[test]
fn a_counter_that_moves_is_told_once_with_its_rate() {
    let checks = Checks::embedded().unwrap();
    let more = "/proc/net/snmp:\n| Tcp: OutSegs RetransSegs\n| Tcp: 1001000000 50090000\n";
    let before = look("truenas-24.10", &[RETRANSMITS]);
    let after = look("truenas-24.10", &[RETRANSMITS, more]);
    let watched = watch(&before, &after, 60, &checks, &CHECKS).unwrap();
    assert_eq!(found(&watched.report), BTreeSet::from(["watch-tcp-retransmits"]));
    let said = &watched.report.findings[0].found;
    assert!(
        said.contains("90000 of 1000000 segments again in 60 seconds (1500 per second)"),
        "{said}"
    );
    assert!(watched.old.is_empty(), "{:#?}", watched.old);
}

/// A drive that has lost data is not healthy because nobody read it meanwhile.
#[test]
fn damage_stays_a_finding_although_it_stands_still() {
    let checks = Checks::embedded().unwrap();
    let smart = r#"$ smartctl -a -j /dev/sda
| {"smart_status": {"passed": true}, "ata_smart_attributes": {"table": [{"id": 197, "name": "x", "value": 100, "raw": {"value": 24}}]}}
"#;
    let facts = look("debian-lio", &[smart]);
    let watched = watch(&facts, &facts, 60, &checks, &CHECKS).unwrap();
    assert_eq!(found(&watched.report), BTreeSet::from(["smart-pending"]));
    assert!(watched.old.is_empty());
}

#[test]
fn looks_that_cannot_be_compared_are_refused() {
    let checks = Checks::embedded().unwrap();
    let facts = look("truenas-24.10", &[]);
    let other = look("debian-lio", &[]);
    let later = look("truenas-24.10", &["/proc/uptime: 100.0 200.0\n"]);
    let refused = |before: &Facts, after: &Facts, seconds| {
        watch(before, after, seconds, &checks, &CHECKS).expect_err("they cannot be compared")
    };
    assert!(matches!(refused(&facts, &facts, 0), WatchError::Order));
    assert!(matches!(refused(&facts, &other, 60), WatchError::Machines(_, _)));
    assert!(matches!(refused(&facts, &later, 60), WatchError::Restarted));
}

/// A counter that began anew, and one of a card that is new, say nothing.
#[test]
fn what_began_anew_is_not_known() {
    let many = "/sys/class/net/enp65s0f0/statistics/rx_crc_errors: 4000\n";
    let few = "/sys/class/net/enp65s0f0/statistics/rx_crc_errors: 3\n";
    let report =
        moving(&look("truenas-24.10", &[many]), &look("truenas-24.10", &[few]), 60, &CHECKS);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let without = look("truenas-24.10", &["- /sys/class/net/enp65s0f0\n"]);
    let report = moving(&without, &look("truenas-24.10", &[many]), 60, &CHECKS);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// The table in docs/doctor.md says what these tests have found.
#[test]
fn the_page_has_every_pair() {
    let mut table = String::from(
        "| check | severity | what happens | what the doctor says |\n|---|---|---|---|\n",
    );
    for check in CHECKS.iter() {
        let all = PAIRS.iter().zip(SAID.iter());
        for (pair, said) in all.filter(|(pair, _)| pair.finds == check.id) {
            let finding = said.happens.findings.iter().find(|f| f.check == pair.finds).unwrap();
            let severity = format!("{}", check.severity).to_lowercase();
            let _ = writeln!(
                table,
                "| `{}` | {severity} | {} | {} |",
                check.id,
                pair.name,
                finding.found.replace('|', "\\|")
            );
        }
    }
    let count = format!("{} checks of two looks, {} pairs.\n", CHECKS.len(), PAIRS.len());
    let marks = ("<!-- written by tools/host/tests/watch.rs -->\n", "<!-- end of watch -->\n");
    hold("../../docs/doctor.md", Some(marks), &format!("{count}\n{table}"));
}
