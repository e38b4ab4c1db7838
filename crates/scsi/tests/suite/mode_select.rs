//! MODE SELECT: the software write protection.

use crate::common::*;
use lunet_scsi::{Action, Code, Key, ParameterKind, Parameters, Reply, Unit, parameters};

const CONTROL: [u8; 12] = [0x0A, 0x0A, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
const PROTECTED: [u8; 12] = [0x0A, 0x0A, 0, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 0];

fn six(unit: &Unit, list: &[u8]) -> Action {
    let kind = ParameterKind::ModeSelect6;
    let asked = Parameters { kind, len: list.len() as u32 };
    let cdb = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    assert_eq!(run(unit, &cdb).action, Action::Parameters(asked));
    parameters(unit, asked, list)
}

fn ten(unit: &Unit, list: &[u8]) -> Action {
    let kind = ParameterKind::ModeSelect10;
    let asked = Parameters { kind, len: list.len() as u32 };
    let cdb = cdb(10, &[(0, &[0x55, 0x10]), (8, &[list.len() as u8])]);
    assert_eq!(run(unit, &cdb).action, Action::Parameters(asked));
    parameters(unit, asked, list)
}

#[track_caller]
fn refused(action: &Action, at: u16) {
    let Action::Complete(Reply { sense: Some(sense), .. }) = action else { panic!("{action:?}") };
    assert_eq!(sense.code, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    assert_eq!(sense.field.map(|field| field.byte), Some(at));
}

#[test]
fn swp_is_switched_on_and_off() {
    let unit = unit();
    assert_eq!(six(&unit, &[&[0; 4][..], &PROTECTED].concat()), Action::WriteProtect(true));
    assert!(!unit.read_only(), "nothing happens before it is carried out");
    assert!(unit.state.set_write_protected(true));
    let write = cdb(10, &[(0, &[0x2A]), (8, &[1])]);
    assert_eq!(sense(&run(&unit, &write).action), (Key::DataProtect, Code::WRITE_PROTECTED));
    let current = data(run(&unit, &[0x1A, 8, 0x0A, 0, 255, 0]));
    assert_eq!((current[2], &current[4..]), (0x90, &PROTECTED[..]));
    let default = data(run(&unit, &[0x1A, 8, 0x8A, 0, 255, 0]));
    assert_eq!(default[4..], CONTROL);
    assert_eq!(ten(&unit, &[&[0; 8][..], &CONTROL].concat()), Action::WriteProtect(false));
    assert!(unit.state.set_write_protected(false));
    assert!(!unit.state.set_write_protected(false));
    assert!(matches!(run(&unit, &write).action, Action::Write { .. }));
}

#[test]
fn what_cannot_be_changed_must_be_as_it_is() {
    let unit = unit();
    let head = [0; 4];
    refused(&six(&unit, &[&head[..], &[0x08, 0x12], &[0; 18]].concat()), 6);
    refused(&six(&unit, &[&head[..], &[0x0A, 0x0A, 4], &PROTECTED[3..]].concat()), 6);
    refused(&six(&unit, &[&head[..], &[0x07, 0x0A], &[0; 10]].concat()), 4);
    refused(&six(&unit, &[&head[..], &[0x4A, 0x0A], &[0; 10]].concat()), 4);
    refused(&six(&unit, &[&head[..], &[0x0A, 0x09, 0, 0x10], &[0; 7]].concat()), 5);
    refused(&six(&unit_read_only(), &[&head[..], &CONTROL].concat()), 8);
    // A page as it is, a block descriptor as it is; both of another size.
    let caching = [&[0x08, 0x12, 0x04][..], &[0; 17]].concat();
    let descriptor = [0, 0x20, 0, 1, 0, 0, 2, 0];
    let same = [&[0, 0, 0, 8][..], &descriptor, &caching].concat();
    assert_eq!(six(&unit, &same), Action::Complete(Reply::GOOD));
    let mut other = same.clone();
    other[10] = 4;
    refused(&six(&unit, &other), 4);
    let long =
        [&[0, 0, 0, 0, 1, 0, 0, 16][..], &[0, 0, 0, 0, 0, 0x20, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0]];
    assert_eq!(ten(&unit, &long.concat()), Action::Complete(Reply::GOOD));
}

#[test]
fn lists_that_end_early_and_wrong_command_blocks_are_refused() {
    let unit = unit();
    let list = [&[0; 4][..], &PROTECTED].concat();
    for len in (1..4).chain(5..16) {
        let action = six(&unit, &list[..len]);
        assert_eq!(
            sense(&action),
            (Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR),
            "{len}"
        );
    }
    good(&run(&unit, &[0x15, 0x10, 0, 0, 0, 0]));
    for flags in [0x00, 0x11, 0x12] {
        illegal(&run(&unit, &[0x15, flags, 0, 0, 16, 0]), Code::INVALID_FIELD_IN_CDB);
        let ten = cdb(10, &[(0, &[0x55, flags]), (8, &[16])]);
        illegal(&run(&unit, &ten), Code::INVALID_FIELD_IN_CDB);
    }
    let short = run_expecting(&unit, &[0x15, 0x10, 0, 0, 16, 0], 0, 15);
    illegal(&short, Code::PARAMETER_LIST_LENGTH_ERROR);
}
