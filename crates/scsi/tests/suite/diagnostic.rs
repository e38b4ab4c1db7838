//! Diagnostics, defect lists, log pages of every unit.

use crate::common::*;
use lunet_block::BlockRange;
use lunet_scsi::{Action, Check, Code};

#[test]
fn a_self_test_reads_and_other_tests_are_refused() {
    let unit = unit();
    let send = |b1, len| run(&unit, &[0x1D, b1, 0, 0, len, 0]);
    let range = BlockRange::new(0, 1);
    assert_eq!(send(0x04, 0).action, Action::Verify { range, check: Check::Medium });
    // PF, DEVOFFL, UNITOFFL say nothing without a page or another test.
    good(&send(0x13, 0));
    for b1 in [0x20, 0x40, 0x80, 0xA0, 0xC4] {
        illegal(&send(b1, 0), Code::INVALID_FIELD_IN_CDB);
    }
    illegal(&send(0x10, 4), Code::INVALID_FIELD_IN_CDB);
    let receive = |b1, page, len| run(&unit, &[0x1C, b1, page, 0, len, 0]);
    assert_eq!(data(receive(1, 0, 255)), [0, 0, 0, 1, 0]);
    assert_eq!(data(receive(1, 0, 3)), [0, 0, 0]);
    assert_eq!(data(receive(0, 0, 255)), []);
    illegal(&receive(1, 1, 255), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn defect_lists_are_empty_in_the_format_asked_for() {
    let unit = unit();
    let ten = |b2, len| run(&unit, &[0x37, 0, b2, 0, 0, 0, 0, 0, len, 0]);
    assert_eq!(data(ten(0x1D, 255)), [0, 0x1D, 0, 0]);
    assert_eq!(data(ten(0x08, 2)), [0, 0x08]);
    assert_eq!(data(ten(0x00, 0)), []);
    illegal(&ten(0x06, 255), Code::INVALID_FIELD_IN_CDB);
    let twelve = |b1| run(&unit, &cdb(12, &[(0, &[0xB7, b1]), (9, &[255])]));
    assert_eq!(data(twelve(0x10)), [0, 0x10, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data(twelve(0x0B))[..2], [0, 0x0B]);
    illegal(&twelve(0x07), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn log_pages_are_listed_and_read() {
    let (thin, thick) = (unit(), unit_thick());
    let ask = |unit, page, subpage| run(unit, &log(page, subpage, 0));
    assert_eq!(data(ask(&thin, 0x00, 0)), [0, 0, 0, 3, 0x00, 0x0C, 0x2F]);
    assert_eq!(data(ask(&thick, 0x00, 0)), [0, 0, 0, 2, 0x00, 0x2F]);
    let all = [0x40, 0xFF, 0, 8, 0, 0, 0, 0xFF, 0x0C, 0, 0x2F, 0];
    assert_eq!(data(ask(&thin, 0x00, 0xFF)), all);
    let exceptions = [0x2F, 0, 0, 8, 0, 0, 3, 4, 0, 0, 0xFF, 0xFF];
    // PC makes no difference to lists.
    for pc in [0x00, 0x40, 0x80, 0xC0] {
        assert_eq!(data(ask(&thin, pc | 0x2F, 0)), exceptions);
    }
    illegal(&ask(&thick, 0x0C, 0), Code::INVALID_FIELD_IN_CDB);
    illegal(&ask(&thin, 0x0D, 0), Code::INVALID_FIELD_IN_CDB);
    illegal(&ask(&thin, 0x0C, 1), Code::INVALID_FIELD_IN_CDB);
    illegal(&ask(&thin, 0x2F, 0xFF), Code::INVALID_FIELD_IN_CDB);
    illegal(&ask(&thin, 0x00, 1), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&thin, &log(0x2F, 0, 1)), Code::INVALID_FIELD_IN_CDB);
    let mut saving = log(0x2F, 0, 0);
    saving[1] = 1;
    illegal(&run(&thin, &saving), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn log_select_resets_the_nothing_that_there_is() {
    let unit = unit();
    let select = |b1, len| run(&unit, &[0x4C, b1, 0xC0, 0, 0, 0, 0, 0, len, 0]);
    good(&select(2, 0));
    good(&select(0, 0));
    illegal(&select(1, 0), Code::INVALID_FIELD_IN_CDB);
    illegal(&select(0, 4), Code::INVALID_FIELD_IN_CDB);
}
