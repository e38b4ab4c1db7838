//! What thin units say of their space, and when they speak up.

use crate::common::*;
use lunet_block::{BlockRange, Extent, Space};
use lunet_scsi::{Action, Attention, Code, Key, Nexus, SenseFormat, Threshold, Unit, lba_status};

const GIB: u64 = 1 << 30;

fn space(used: u64, available: u64) -> Space {
    Space { used, available, total: 100 * GIB }
}

fn at_80_percent() -> Unit {
    Unit { threshold: Threshold::new(80), ..unit() }
}

#[test]
fn the_log_page_counts_in_threshold_sets() {
    let unit = unit();
    let page = |pointer| data(run(&unit, &log(0x4C, 0, pointer)));
    assert_eq!(page(0), [0x0C, 0, 0, 0], "nothing is known yet");
    assert!(!unit.note_space(&space(3 * GIB, 41 * GIB)));
    // 41 GiB and 3 GiB in sets of 1 MiB; the first is not its own.
    let available = [0, 1, 3, 8, 0, 0, 0xA4, 0, 2, 0, 0, 0];
    let used = [0, 2, 3, 8, 0, 0, 0x0C, 0, 1, 0, 0, 0];
    assert_eq!(page(0), [&[0x0C, 0, 0, 24][..], &available, &used].concat());
    assert_eq!(page(1)[4..], [available, used].concat());
    assert_eq!(page(2)[4..], used);
    illegal(&run(&unit, &log(0x4C, 0, 3)), Code::INVALID_FIELD_IN_CDB);
    // More than 32 bits hold: 4 EiB of sets.
    unit.note_space(&Space { used: 0, available: u64::MAX, total: u64::MAX });
    assert_eq!(page(1)[8..12], [0xFF; 4]);
}

#[test]
fn the_mode_page_has_the_threshold_once_the_storage_is_known() {
    let unit = at_80_percent();
    let page = || data(run(&unit, &[0x1A, 8, 0x1C, 2, 255, 0]))[4..].to_vec();
    assert_eq!(page(), padded(&[0x5C, 2, 0, 12], 16));
    unit.note_space(&space(0, 50 * GIB));
    // A fifth of 100 GiB: 20480 sets available.
    let descriptor = [0x80, 1, 0, 0, 0, 0, 0x50, 0];
    assert_eq!(page(), [&padded(&[0x5C, 2, 0, 20], 16)[..], &descriptor].concat());
    let changeable = data(run(&unit, &[0x1A, 8, 0x5C, 2, 255, 0]))[4..].to_vec();
    assert_eq!(changeable, padded(&[0x5C, 2, 0, 20], 24));
}

#[test]
fn a_threshold_is_told_once_each_time_it_is_reached() {
    let unit = at_80_percent();
    assert!(!unit.note_space(&space(0, 21 * GIB)));
    assert!(!unit.note_space(&space(0, 20 * GIB)), "just not");
    assert!(unit.note_space(&space(0, 20 * GIB - 1)));
    assert!(!unit.note_space(&space(0, 10 * GIB)), "it was told");
    assert!(!unit.note_space(&space(0, 20 * GIB)));
    assert!(!unit.note_space(&space(0, 19 * GIB)), "it has hardly been less");
    assert!(!unit.note_space(&space(0, 21 * GIB)));
    assert!(unit.note_space(&space(0, 0)));
    let without = crate::common::unit();
    assert!(!without.note_space(&space(0, 0)));
    assert_eq!([0, 100].map(Threshold::new), [None, None]);
}

#[test]
fn the_unit_attention_names_the_threshold() {
    let mut nexus = Nexus::new();
    nexus.establish(Attention::ThresholdReached);
    let sense = nexus.take_sense().expect("it pends");
    assert_eq!((sense.key, sense.code), (Key::UnitAttention, Code { asc: 0x38, ascq: 0x07 }));
    // Its descriptor is the first of the mode page.
    let expected = [0xF0, 0, 6, 0, 0, 0, 16, 10, 0, 0, 0, 0, 0x38, 0x07, 0, 0, 0, 0];
    assert_eq!(*sense.encode(SenseFormat::Fixed), expected);
}

#[test]
fn where_unmapped_blocks_read_as_anything_write_same_writes() {
    let cdb = cdb(16, &[(0, &[0x93, 0x08]), (13, &[8])]);
    let unmaps = |unit: &Unit| match run_expecting(unit, &cdb, 0, 512).action {
        Action::WriteSame { unmap, .. } => unmap,
        other => panic!("{other:?}"),
    };
    assert!(unmaps(&unit()));
    assert!(!unmaps(&unit_anything()));
}

fn get_lba_status(lba: u64, allocation: u32) -> Vec<u8> {
    let (lba, allocation) = (lba.to_be_bytes(), allocation.to_be_bytes());
    cdb(16, &[(0, &[0x9E, 0x12]), (2, &lba), (10, &allocation)])
}

#[test]
fn get_lba_status_asks_from_an_address_to_the_end() {
    let (thin, thick) = (unit(), unit_thick());
    let blocks = thin.caps.blocks;
    for lba in [0, 7, blocks - 1] {
        let range = BlockRange::new(lba, blocks - lba);
        let asked = run(&thin, &get_lba_status(lba, 24)).action;
        assert_eq!(asked, Action::LbaStatus { range, allocation: 24 });
        // Where all has its space, nobody needs to be asked.
        let mut all = vec![0, 0, 0, 20, 0, 0, 0, 0];
        all.extend_from_slice(&lba.to_be_bytes());
        all.extend_from_slice(&(blocks as u32 - lba as u32).to_be_bytes());
        all.extend_from_slice(&[0; 4]);
        assert_eq!(data(run(&thick, &get_lba_status(lba, 24))), all);
        assert_eq!(data(run(&thick, &get_lba_status(lba, 20))), all[..20]);
    }
    for lba in [blocks, 1 << 63, u64::MAX] {
        illegal(&run(&thin, &get_lba_status(lba, 24)), Code::LBA_OUT_OF_RANGE);
    }
    let mut by_type = get_lba_status(0, 24);
    by_type[14] = 1;
    illegal(&run(&thin, &by_type), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_status_of_long_extents_takes_several_descriptors() {
    let unit = unit_4kn();
    let extent = |from: u64, blocks: u64, mapped| {
        let range = BlockRange::new(from, blocks).bytes(4096);
        Extent { range, mapped }
    };
    let extents = [extent(2, 6, true), extent(8, (1 << 32) + 5, false)];
    let [max, zero] = [u32::MAX.to_be_bytes(), [0; 4]];
    let mapped = [&zero[..], &[0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0, 0]].concat();
    let hole = [&zero[..], &[0, 0, 0, 8], &max, &[1, 0, 0, 0]].concat();
    let rest = [0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 6, 1, 0, 0, 0];
    let whole = [&[0, 0, 0, 52, 0, 0, 0, 0][..], &mapped, &hole, &rest].concat();
    assert_eq!(lba_status::answer(&unit, &extents, 9), whole);
    let two = [&[0, 0, 0, 36, 0, 0, 0, 0][..], &mapped, &hole].concat();
    assert_eq!(lba_status::answer(&unit, &extents, 2), two);
    let most = [0, 8, 24, 39, 40, 1 << 20].map(lba_status::descriptors);
    assert_eq!(most, [1, 1, 1, 1, 2, 256]);
}
