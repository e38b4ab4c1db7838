//! MODE SELECT: the software write protection, the format of sense data, the write cache.

use crate::common::*;
use lunet_scsi::{
    Action, Code, Key, Modes, ParameterKind, Parameters, Reply, Sense, SenseFormat, Unit,
    parameters,
};

const DEFAULT: Modes = Modes::DEFAULT;
const PROTECT: Modes = Modes { write_protect: true, ..DEFAULT };
const HEAD: [u8; 4] = [0; 4];

// TAS is 1.
const CONTROL: [u8; 12] = [0x0A, 0x0A, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
const PROTECTED: [u8; 12] = [0x0A, 0x0A, 0, 0x10, 0x08, 0x40, 0, 0, 0, 0, 0, 0];

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
    assert_eq!(six(&unit, &[&[0; 4][..], &PROTECTED].concat()), Action::Modes(PROTECT));
    assert!(!unit.read_only(), "nothing happens before it is carried out");
    assert!(unit.state.set_modes(PROTECT));
    let write = cdb(10, &[(0, &[0x2A]), (8, &[1])]);
    assert_eq!(sense(&run(&unit, &write).action), (Key::DataProtect, Code::WRITE_PROTECTED));
    let current = data(run(&unit, &[0x1A, 8, 0x0A, 0, 255, 0]));
    assert_eq!((current[2], &current[4..]), (0x90, &PROTECTED[..]));
    let default = data(run(&unit, &[0x1A, 8, 0x8A, 0, 255, 0]));
    assert_eq!(default[4..], CONTROL);
    assert_eq!(ten(&unit, &[&[0; 8][..], &CONTROL].concat()), Action::Modes(DEFAULT));
    assert!(unit.state.set_modes(DEFAULT));
    assert!(!unit.state.set_modes(DEFAULT));
    assert!(matches!(run(&unit, &write).action, Action::Write { .. }));
}

#[test]
fn what_cannot_be_changed_must_be_as_it_is() {
    let unit = unit();
    let head = [0; 4];
    refused(&six(&unit, &[&head[..], &[0x08, 0x12, 0x05], &[0; 17]].concat()), 6);
    refused(&six(&unit, &[&head[..], &[0x0A, 0x0A, 2], &PROTECTED[3..]].concat()), 6);
    refused(&six(&unit, &[&head[..], &[0x8A, 0x0A], &PROTECTED[2..]].concat()), 4);
    let uncached = [&head[..], &[0x08, 0x12, 0x04], &[0; 17]].concat();
    refused(&six(&unit_thick(), &uncached), 6);
    refused(&six(&unit, &[&head[..], &[0x07, 0x0A], &[0; 10]].concat()), 4);
    refused(&six(&unit, &[&head[..], &[0x4A, 0x01, 0, 8], &[0; 8]].concat()), 4);
    refused(&six(&unit, &[&head[..], &[0x0A, 0x09, 0, 0x10], &[0; 7]].concat()), 5);
    refused(&six(&unit_read_only(), &[&head[..], &CONTROL].concat()), 8);
    // A page as it is, a block descriptor as it is; both of another size.
    let caching = [&[0x08, 0x12, 0x04][..], &[0; 17]].concat();
    let descriptor = [0, 0x20, 0, 1, 0, 0, 2, 0];
    let same = [&[0, 0, 0, 8][..], &descriptor, &caching].concat();
    assert_eq!(six(&unit, &same), Action::Modes(DEFAULT));
    assert_eq!(six(&unit, &same[..12]), Action::Complete(Reply::GOOD));
    let mut other = same.clone();
    other[10] = 4;
    refused(&six(&unit, &other), 4);
    let long =
        [&[0, 0, 0, 0, 1, 0, 0, 16][..], &[0, 0, 0, 0, 0, 0x20, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0]];
    assert_eq!(ten(&unit, &long.concat()), Action::Complete(Reply::GOOD));
}

#[test]
fn d_sense_chooses_the_format_of_sense_data() {
    let unit = unit();
    let page = [&[0x0A, 0x0A, 0x04, 0x10, 0, 0x40][..], &[0; 6]].concat();
    let modes = Modes { descriptor_sense: true, ..DEFAULT };
    assert_eq!(six(&unit, &[&HEAD[..], &page].concat()), Action::Modes(modes));
    assert_eq!(unit.sense_format(), SenseFormat::Fixed);
    unit.state.set_modes(modes);
    assert_eq!(unit.sense_format(), SenseFormat::Descriptor);
    assert_eq!(data(run(&unit, &[0x1A, 8, 0x0A, 0, 255, 0]))[4..], page);
    assert_eq!(data(run(&unit, &[0x1A, 8, 0x8A, 0, 255, 0]))[4..], CONTROL);
}

#[test]
fn tas_says_whether_aborted_commands_are_answered() {
    let unit = unit();
    assert!(unit.state.tells_aborts(), "the default");
    let mut page = CONTROL;
    page[5] = 0;
    let silent = Modes { task_aborted: false, ..DEFAULT };
    assert_eq!(six(&unit, &[&HEAD[..], &page].concat()), Action::Modes(silent));
    assert!(unit.state.set_modes(silent) && !unit.state.tells_aborts());
    assert_eq!(data(run(&unit, &[0x1A, 8, 0x0A, 0, 255, 0]))[4..], page);
    unit.state.reset();
    assert!(unit.state.tells_aborts());
}

#[test]
fn without_write_cache_every_write_is_stable() {
    let unit = unit();
    let page = padded(&[0x08, 0x12], 20);
    let modes = Modes { write_cache: false, ..DEFAULT };
    assert_eq!(six(&unit, &[&HEAD[..], &page].concat()), Action::Modes(modes));
    let fua = |cdb: &[u8]| match run(&unit, cdb).action {
        Action::Write { fua, .. } => fua,
        other => panic!("{other:?}"),
    };
    let writes = [cdb(6, &[(0, &[0x0A]), (4, &[1])]), cdb(10, &[(0, &[0x2A]), (8, &[1])])];
    assert!(writes.iter().all(|write| !fua(write)) && !unit.write_through());
    unit.state.set_modes(modes);
    assert!(writes.iter().all(|write| fua(write)) && unit.write_through());
    assert_eq!(data(run(&unit, &[0x1A, 8, 0x08, 0, 255, 0]))[4..], page);
    // There is still a cache that can be volatile: V_SUP.
    assert_eq!(data(run(&unit, &[0x12, 1, 0x86, 0, 255, 0]))[6], 1);
    unit.state.reset();
    assert!(unit.write_through(), "who has switched it off sends no flushes any more");
    let thick = unit_thick();
    thick.state.set_modes(modes);
    assert!(!thick.write_through(), "there is nothing that could be volatile");
}

#[test]
fn several_pages_take_effect_together_or_not_at_all() {
    let unit = unit();
    let caching = padded(&[0x08, 0x12], 20);
    let both = [&HEAD[..], &caching, &PROTECTED].concat();
    let modes = Modes { write_cache: false, ..PROTECT };
    assert_eq!(six(&unit, &both), Action::Modes(modes));
    let provisioning = data(run(&unit, &[0x1A, 8, 0x1C, 2, 255, 0]))[4..].to_vec();
    let all = [&HEAD[..], &caching, &provisioning, &PROTECTED].concat();
    assert_eq!(six(&unit, &all), Action::Modes(modes), "a page with a subpage code between");
    let mut wrong = all;
    wrong[4 + 20 + 4] = 1;
    refused(&six(&unit, &wrong), 28);
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

#[test]
fn a_write_cache_that_the_configuration_has_switched_off_stays_off() {
    let unit = Unit { write_cache: false, saves: true, ..unit() };
    assert!(unit.write_through());
    let off = padded(&[0x08, 0x12], 20);
    for control in [0, 1, 2] {
        let page = data(run(&unit, &[0x1A, 8, control << 6 | 0x08, 0, 255, 0]))[4..].to_vec();
        assert_eq!(page, off, "WCE is 0 and no bit can be changed: {control}");
    }
    let on = padded(&[0x08, 0x12, 0x04], 20);
    assert!(matches!(six(&unit, &[&HEAD[..], &off].concat()), Action::Modes(_)));
    refused(&six(&unit, &[&HEAD[..], &on].concat()), 6);
    unit.state.set_modes(DEFAULT);
    assert!(unit.write_through());
}

#[test]
fn what_says_that_it_can_be_saved_is_saved() {
    let select = |unit: &Unit, flags: u8| run(unit, &[0x15, flags, 0, 0, 0, 0]).action;
    let saved = |unit: &Unit| run(unit, &[0x1A, 8, 0xC8, 0, 255, 0]).action;
    let plain = unit();
    assert!(!plain.saves);
    let not_saved = Action::Complete(Reply::check(Sense::illegal(Code::SAVING_NOT_SUPPORTED)));
    assert_eq!(saved(&plain), not_saved);
    assert_ne!(select(&plain, 0x11), Action::Complete(Reply::GOOD), "SP");
    // Nothing to save where there is no cache that may be used.
    assert_eq!(saved(&Unit { saves: true, ..unit_thick() }), not_saved);
    assert_eq!(saved(&Unit { saves: true, write_cache: false, ..unit() }), not_saved);
    let keeps = Unit { saves: true, ..unit() };
    assert_eq!(select(&keeps, 0x11), Action::Complete(Reply::GOOD));
    assert_ne!(select(&keeps, 0x12), Action::Complete(Reply::GOOD), "RTD");
    for (write_cache, wce) in [(true, 4), (false, 0)] {
        keeps.state.set_modes(Modes { write_cache, write_protect: true, ..DEFAULT });
        for control in [0, 3] {
            let page = data(run(&keeps, &[0x1A, 8, control << 6 | 0x08, 0, 255, 0]))[4..].to_vec();
            assert_eq!(page[..3], [0x88, 0x12, wce], "PS, WCE: {control}");
        }
        let control = data(run(&keeps, &[0x1A, 8, 0xCA, 0, 255, 0]))[4..].to_vec();
        assert_eq!((control[0], control[4]), (0x0A, 0), "SWP is not saved");
    }
}
