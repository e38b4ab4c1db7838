use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Bench, Judgement, Proof, ProveError, Report, prove, write};
use crate::apply::fake::Fake;
use crate::apply::{Journal, Machine, Options, STATE, rollback, verify};
use crate::plan::{Item, Plan};
use crate::rules::{Effect, Profile, Setting};

const TREE: &str = "\
/sys/block/sda/queue/read_ahead_kb: 0
/sys/block/sda/queue/nomerges: 0
/sys/block/sda/queue/add_random: 0
/sys/block/sda/queue/iostats: 1
/sys/block/sda/queue/scheduler: [none] bfq
";

fn plan() -> Plan {
    let item = |attribute: &str, now: &str, wanted: &str| {
        let setting = Setting::Sysfs { path: format!("/sys/block/sda/queue/{attribute}") };
        Item::change(&format!("t.{attribute}"), setting, Some(now.to_owned()), wanted)
    };
    let mut later = item("nothing", "0", "1");
    later.effect = Effect::Reboot;
    let items = vec![
        item("read_ahead_kb", "0", "4096"),
        item("add_random", "0", "1"),
        item("iostats", "1", "0"),
        item("scheduler", "none", "bfq"),
        later,
    ];
    Plan { profile: Profile::Throughput, items }
}

/// A load that is faster with read-ahead and a little without statistics, slower with a scheduler,
/// and does not care for random numbers (but see what the machine makes of read-ahead then); with noise that is the same each time.
struct Load<'a> {
    machine: &'a Fake,
    runs: Cell<u32>,
    stop_at: Option<(u32, &'a AtomicBool)>,
    fail_at: Option<u32>,
}

impl<'a> Load<'a> {
    fn new(machine: &'a Fake) -> Self {
        Self { machine, runs: Cell::new(0), stop_at: None, fail_at: None }
    }
}

impl Bench for Load<'_> {
    fn run(&mut self) -> Result<f64, ProveError> {
        let number = self.runs.get();
        self.runs.set(number + 1);
        if let Some((_, stop)) = self.stop_at.filter(|(at, _)| *at == number) {
            stop.store(true, Ordering::Relaxed);
            return Err(ProveError::Stopped);
        }
        if self.fail_at == Some(number) {
            return Err(ProveError::Bench("the disk is full".to_owned()));
        }
        let set = |attribute: &str, value: &str| {
            let path = format!("/sys/block/sda/queue/{attribute}");
            self.machine.source().text(&path).is_some_and(|text| text.contains(value))
        };
        let factor = |on: bool, factor: f64| if on { factor } else { 1.0 };
        let noise = f64::from((number.wrapping_mul(2_654_435_761) >> 16) % 1000) / 1000.0;
        Ok(1e8
            * factor(set("read_ahead_kb", "4096"), 3.0)
            * factor(set("iostats", "0"), 1.2)
            * factor(set("scheduler", "[bfq]"), 0.6)
            * (1.0 + 0.1 * (noise - 0.5)))
    }
}

#[expect(clippy::declare_interior_mutable_const, reason = "each use is a new one")]
const STOP: AtomicBool = AtomicBool::new(false);

fn proof(stop: &AtomicBool) -> Proof<'_> {
    let options = Options { state: STATE, persist: false, truenas: false };
    Proof { rounds: 10, seed: 7, options, stop }
}

fn judged(report: &Report) -> Vec<(&str, Judgement, bool)> {
    report.steps.iter().map(|worth| (worth.name.as_str(), worth.judgement, worth.kept)).collect()
}

#[test]
fn what_helps_is_kept_and_what_does_not_is_taken_back() {
    let machine = Fake::new(TREE);
    let before = machine.state();
    let (stop, mut seen) = (STOP, 0);
    let report =
        prove(&machine, &plan(), proof(&stop), &mut Load::new(&machine), &mut |progress| {
            assert_eq!(progress.done, seen);
            seen += 1;
        });
    let report = report.expect("it can");
    assert_eq!(
        judged(&report),
        [
            ("t.read_ahead_kb", Judgement::Helps, true),
            ("t.add_random", Judgement::Noise, false),
            ("t.iostats", Judgement::Helps, true),
            ("t.scheduler", Judgement::Harms, false),
        ]
    );
    assert_eq!(seen, 10 * 6 + 10 * 3 + 10 * 2, "six sets, what seems to help, and that together");
    let read =
        |attribute: &str| machine.source().text(&format!("/sys/block/sda/queue/{attribute}"));
    assert_eq!(read("read_ahead_kb").as_deref(), Some("4096"));
    assert_eq!(read("add_random").as_deref(), Some("0"));
    assert_eq!(read("iostats").as_deref(), Some("0"));
    assert_eq!(read("scheduler").as_deref(), Some("[none] bfq"));
    assert_eq!(report.left_out.len(), 1);
    let text = write(&report);
    assert!(text.contains("t.read_ahead_kb: 3.") && text.contains("; again 2.9 times"), "{text}");
    assert!(text.contains("Kept: t.read_ahead_kb, t.iostats."), "{text}");
    assert!(text.contains("Not tried: t.nothing: it works after a reboot."), "{text}");
    assert_eq!(verify(&machine, STATE).expect("it can look").drift, []);
    rollback(&machine, STATE).expect("it can");
    assert_eq!(machine.state(), before);
}

#[test]
fn stopped_or_failed_at_any_run_everything_is_as_it_was() {
    for at in 0..110 {
        for stops in [true, false] {
            let machine = Fake::new(TREE);
            let before = machine.state();
            let stop = STOP;
            let mut load = Load::new(&machine);
            match stops {
                true => load.stop_at = Some((at, &stop)),
                false => load.fail_at = Some(at),
            }
            let error = prove(&machine, &plan(), proof(&stop), &mut load, &mut |_| {});
            let error = error.expect_err("it was stopped");
            assert_eq!(matches!(error, ProveError::Stopped), stops, "{error}");
            assert_eq!(machine.state(), before, "at run {at}");
            assert_eq!(Journal::read(&machine, STATE), Ok(None));
        }
    }
}

#[test]
fn killed_at_any_change_it_can_be_rolled_back() {
    let whole = Fake::new(TREE);
    let stop = STOP;
    prove(&whole, &plan(), proof(&stop), &mut Load::new(&whole), &mut |_| {}).expect("it can");
    for at in 0..whole.changes.get() {
        let machine = Fake::new(TREE);
        let before = machine.state();
        machine.die_at.set(Some(at));
        prove(&machine, &plan(), proof(&stop), &mut Load::new(&machine), &mut |_| {})
            .expect_err("it was killed");
        machine.revive();
        assert_eq!(rollback(&machine, STATE).expect("it can").left, []);
        assert_eq!(machine.state(), before, "killed at {at}");
    }
}

#[test]
fn a_plan_without_changes_needs_no_runs() {
    let machine = Fake::new(TREE);
    let stop = STOP;
    let mut load = Load::new(&machine);
    let nothing = Plan { profile: Profile::Mixed, items: Vec::new() };
    let report = prove(&machine, &nothing, proof(&stop), &mut load, &mut |_| {}).expect("it can");
    assert_eq!((report.steps.len(), load.runs.get()), (0, 0));
    assert!(write(&report).starts_with("There is nothing to try"), "{}", write(&report));
}

/// Somebody sets a value while it is measured.
struct Meddled<'a>(Load<'a>, u32);

impl Bench for Meddled<'_> {
    fn run(&mut self) -> Result<f64, ProveError> {
        if self.0.runs.get() == self.1 {
            self.0
                .machine
                .overlay("/sys/block/sda/queue/nomerges: 2\n/sys/block/sda/queue/iostats: 7\n");
        }
        self.0.run()
    }
}

#[test]
fn what_somebody_changes_meanwhile_ends_the_proof_and_stays() {
    // In the middle, and while the last run is made.
    for at in [13, 109] {
        let machine = Fake::new(TREE);
        let stop = STOP;
        let mut load = Meddled(Load::new(&machine), at);
        let error = prove(&machine, &plan(), proof(&stop), &mut load, &mut |_| {});
        let error = error.expect_err("it was changed").to_string();
        assert!(
            error.contains("/sys/block/sda/queue/iostats is 7: somebody changed it"),
            "{at}: {error}"
        );
        machine.overlay("/sys/block/sda/queue/nomerges: 0\n");
        assert_eq!(machine.source().text("/sys/block/sda/queue/iostats").as_deref(), Some("7"));
        machine.overlay("/sys/block/sda/queue/iostats: 1\n");
        assert_eq!(machine.state(), Fake::new(TREE).state(), "{at}");
        assert_eq!(Journal::read(&machine, STATE), Ok(None));
    }
}
