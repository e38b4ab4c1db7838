//! Each fault is planted once, and must be called by its name.

use std::sync::atomic::Ordering;

use lunet_client::verify::{Fault, Finding, Found, VerifyOutcome};
use lunet_client::{BlockSize, Order, Verify, Workload};

use crate::faulty::{Faulty, Plant};
use crate::support::{Served, memory};

/// The volume's size.
pub const SIZE_MIB: u64 = 8;

/// Writes all of the volume once, and more of it twice.
fn load() -> Workload {
    Workload {
        reads_percent: 0,
        order: Order::Sequential,
        depth: 8,
        runtime: None,
        size: Some((SIZE_MIB << 20) * 3 / 2),
        verify: Some(Verify::default()),
        ..Workload::new(16 << 10)
    }
}

fn planted(plant: Plant, from: u64, workload: Workload) -> VerifyOutcome {
    let (volume, counts) = Faulty::over(memory(SIZE_MIB), plant, from);
    let outcome = Served::volumes(vec![volume]).run(workload);
    assert_eq!(outcome.failures(), Vec::<&str>::new());
    assert!(counts.happened.load(Ordering::SeqCst) >= 1, "{plant:?} was not planted");
    let verify = outcome.verify.expect("it was checked");
    println!("{plant:?}: {}", verify.findings.iter().map(Finding::to_string).collect::<String>());
    verify
}

/// Faults by name, with the number of wrong blocks.
fn names(verify: &VerifyOutcome) -> Vec<(Fault, u64)> {
    let all = Fault::ALL.into_iter().zip(verify.faults);
    all.filter(|&(_, count)| count > 0).collect()
}

#[test]
fn a_good_volume_has_no_faults() {
    let served = Served::volumes(vec![memory(SIZE_MIB)]);
    for (jobs, depth) in [(1, 1), (1, 64), (3, 16)] {
        let workload = Workload {
            reads_percent: 50,
            order: Order::Random,
            jobs,
            depth,
            blocks: vec![
                BlockSize { bytes: 4 << 10, weight: 2 },
                BlockSize { bytes: 20 << 10, weight: 1 },
            ],
            flush_every: Some(10),
            fua: jobs == 3,
            seed: depth.into(),
            ..load()
        };
        let outcome = served.run(workload);
        let verify = outcome.verify.as_ref().expect("it was checked");
        assert_eq!((names(verify), outcome.failures()), (vec![], vec![]), "{verify:?}");
        assert!(verify.checked > 1000 && !verify.incomplete, "{}", verify.checked);
        assert!(outcome.work.flush.operations > 5);
    }
}

#[test]
fn a_lost_write_is_lost() {
    // In the second round: an older write is there.
    let verify = planted(Plant::LoseWrite, 520, load());
    assert_eq!(names(&verify), [(Fault::Lost, 32)]);
    let finding = verify.findings[0];
    assert_eq!((finding.lba, finding.blocks, finding.lasting), (8 * 32, 32, true));
    assert!(matches!(finding.found, Found::Generation(old) if old < finding.expected));
    // In the first one: nothing was there.
    let verify = planted(Plant::LoseWrite, 400, load());
    assert_eq!(
        (names(&verify), verify.findings[0].found),
        (vec![(Fault::Lost, 32)], Found::Zeroes)
    );
}

#[test]
fn a_torn_write_is_torn() {
    let verify = planted(Plant::TearWrite, 520, load());
    assert_eq!(names(&verify), [(Fault::Torn, 16)]);
    assert_eq!((verify.findings[0].lba, verify.findings[0].blocks), (8 * 32 + 16, 16));
}

#[test]
fn a_stale_read_is_stale() {
    let workload = Workload {
        reads_percent: 50,
        order: Order::Random,
        depth: 1,
        size: Some(4 << 20),
        ..load().within(0..64 << 10)
    };
    let verify = planted(Plant::StaleRead, 20, workload);
    assert_eq!(names(&verify), [(Fault::Stale, 32)]);
    assert!(!verify.findings[0].lasting);
}

#[test]
fn a_misplaced_write_is_misplaced_where_it_lies_and_lost_where_it_does_not() {
    let verify = planted(Plant::MisplaceWrite, 520, load());
    assert_eq!(names(&verify), [(Fault::Lost, 32), (Fault::Misplaced, 32)]);
    let misplaced = verify.findings.iter().find(|f| f.fault == Fault::Misplaced);
    let misplaced = misplaced.expect("it was found");
    assert_eq!(misplaced.lba, (SIZE_MIB << 20) / 512 - 32);
    assert!(matches!(misplaced.found, Found::OtherBlock { lba: 256, .. }), "{misplaced}");
}

#[test]
fn a_misplaced_read_is_misplaced() {
    let workload = Workload { size: Some(SIZE_MIB << 20), ..load() };
    let verify = planted(Plant::MisplaceRead, 10, workload);
    let faults = names(&verify);
    assert!(matches!(faults[..], [(Fault::Misplaced, _)]), "{faults:?}");
    assert!(!verify.findings[0].lasting);
}

#[test]
fn a_flipped_bit_is_flipped() {
    let verify = planted(Plant::FlipBit, 520, load());
    assert_eq!(names(&verify), [(Fault::Flipped, 1)]);
    let finding = verify.findings[0];
    let found = Found::Bits { count: 1, first_byte: 700 - 512 };
    assert_eq!((finding.lba, finding.found), (8 * 32 + 1, found));
}

#[test]
fn faults_are_found_while_the_load_runs() {
    for (plant, fault) in [
        (Plant::LoseWrite, Fault::Lost),
        (Plant::TearWrite, Fault::Torn),
        (Plant::FlipBit, Fault::Flipped),
    ] {
        // It may be written again before it is read, and then nothing is wrong; not every time.
        let found = (1..=4).flat_map(|seed| {
            let workload = Workload {
                reads_percent: 50,
                order: Order::Random,
                depth: 1,
                size: Some(8 << 20),
                verify: Some(Verify { read_back: false, ..Verify::default() }),
                seed,
                ..load().within(0..1 << 20)
            };
            names(&planted(plant, 100, workload))
        });
        let found: Vec<Fault> = found.map(|(fault, _)| fault).collect();
        assert!(!found.is_empty() && found.iter().all(|&name| name == fault), "{found:?}");
    }
}
