//! SANITIZE, and what a unit says while it is, or should be, sanitized.

use crate::common::*;
use lunet_scsi::sanitize::{Method, Overwrite, Sanitize};
use lunet_scsi::{
    Action, Code, Key, ParameterKind, Parameters, Sanitation, Task, Transfer, Unit, parameters,
};

const OVERWRITE: u8 = 0x01;
const BLOCK_ERASE: u8 = 0x02;
const EXIT: u8 = 0x1F;
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

fn cmd(action: u8, len: u16) -> Vec<u8> {
    cdb(10, &[(0, &[0x48, action]), (7, &len.to_be_bytes())])
}

/// OVERWRITE with this parameter list.
fn overwrite(unit: &Unit, flags: u8, list: &[u8]) -> Task {
    let len = list.len() as u16;
    let mut task = run_expecting(unit, &cmd(OVERWRITE | flags, len), 0, len.into());
    if let Action::Parameters(asked) = task.action {
        let (immediate, restricted) = (flags & IMMED != 0, flags & AUSE == 0);
        let kind = ParameterKind::Overwrite { immediate, restricted };
        assert_eq!(asked, Parameters { kind, len: len.into() });
        assert_eq!(task.transfer, Transfer { data_in: 0, data_out: len.into() });
        task.action = parameters(unit, asked, list);
    }
    task
}

fn list(first: u8, len: u16, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    [&[first, 0, high, low], pattern].concat()
}

#[test]
fn overwrite_decodes_its_pattern() {
    for (first, len) in [(0x01, 512), (0x81, 1), (0x9F, 4)] {
        let pattern: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let task = overwrite(&unit(), IMMED, &list(first, len, &pattern));
        let method = Method::Overwrite(Overwrite {
            pattern,
            passes: first & 0x1F,
            invert: first & 0x80 != 0,
        });
        let expected = Sanitize { method, immediate: true, restricted: true };
        assert_eq!(task.action, Action::Sanitize(expected));
    }
    // What follows the pattern is ignored.
    let task = overwrite(&unit(), AUSE, &list(1, 2, &[7, 8, 9]));
    let Action::Sanitize(sanitize) = task.action else { panic!("{task:?}") };
    let Method::Overwrite(overwrite) = sanitize.method else { panic!() };
    assert_eq!((overwrite.pattern, sanitize.restricted), (vec![7, 8], false));
}

#[test]
fn overwrite_refuses_lists_of_the_wrong_length_and_content() {
    for len in [0, 1, 2, 3, 4, 512 + 5, u16::MAX] {
        illegal(&run(&unit(), &cmd(OVERWRITE, len)), Code::INVALID_FIELD_IN_CDB);
    }
    let short = run_expecting(&unit(), &cmd(OVERWRITE, 8), 0, 7);
    illegal(&short, Code::PARAMETER_LIST_LENGTH_ERROR);
    let block = [0; 512];
    for (first, len) in [(0x00, 512), (0x01, 0), (0x01, 516), (0x21, 512), (0x41, 512)] {
        let task = overwrite(&unit(), 0, &list(first, len, &block));
        illegal(&task, Code::INVALID_FIELD_IN_CDB);
    }
    illegal(&overwrite(&unit(), 0, &list(1, 9, &[0; 8])), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn block_erase_is_there_where_space_can_be_given_back() {
    let expected = Sanitize { method: Method::BlockErase, immediate: false, restricted: true };
    let task = run(&unit(), &cmd(BLOCK_ERASE, 0));
    assert_eq!(task, Task::still(Action::Sanitize(expected)));
    illegal(&run(&unit(), &cmd(BLOCK_ERASE, 8)), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&unit_thick(), &cmd(BLOCK_ERASE, 0)), Code::INVALID_FIELD_IN_CDB);
    let actions = |unit: &Unit| -> Vec<u16> {
        listed(unit)
            .iter()
            .filter(|(code, ..)| *code == 0x48)
            .filter_map(|(_, sa, _)| *sa)
            .collect()
    };
    assert_eq!(actions(&unit()), [0x01, 0x02, 0x1F]);
    assert_eq!(actions(&unit_thick()), [0x01, 0x1F]);
}

#[test]
fn reserved_bits_and_service_actions_are_refused() {
    for action in (0..0x1F).filter(|action| !matches!(action, 1 | 2)) {
        illegal(&run(&unit(), &cmd(action, 0)), Code::INVALID_FIELD_IN_CDB);
    }
    for (action, len) in [(OVERWRITE, 8), (BLOCK_ERASE, 0), (EXIT, 0)] {
        let mut zoned = cmd(action, len);
        zoned[1] |= 0x40;
        illegal(&run(&unit(), &zoned), Code::INVALID_FIELD_IN_CDB);
        for at in 2..7 {
            let mut cdb = cmd(action, len);
            cdb[at] = 1;
            illegal(&run(&unit(), &cdb), Code::INVALID_FIELD_IN_CDB);
        }
    }
    illegal(&run(&unit(), &cmd(EXIT, 8)), Code::INVALID_FIELD_IN_CDB);
}

/// Operation code, service action, and the sense data of the answer.
type Answer = (u8, u16, Option<(Key, Code)>);

/// What every command of the unit is answered with; `None` where it is carried out.
fn answers(unit: &Unit) -> Vec<Answer> {
    let told = |task: Task| match task.action {
        Action::Complete(reply) => reply.sense.map(|sense| (sense.key, sense.code)),
        _ => None,
    };
    let commands = listed(&crate::common::unit());
    let answer = commands.into_iter().map(|(code, action, len)| {
        let action = action.unwrap_or(0);
        (code, action, told(run(unit, &cdb(len, &[(0, &[code, action as u8])]))))
    });
    answer.collect()
}

#[test]
fn nothing_else_happens_while_a_unit_is_sanitized() {
    let unit = unit();
    assert!(unit.state.begin_sanitize());
    unit.state.set_sanitize_progress(0x4321);
    for (code, _, answer) in answers(&unit) {
        let works = matches!(code, 0x03 | 0x12 | 0xA0);
        let expected = Some((Key::NotReady, Code::SANITIZE_IN_PROGRESS));
        assert_eq!(answer == expected, !works, "{code:02X}h: {answer:?}");
    }
    let sense = data(run(&unit, &[3, 0, 0, 0, 252, 0]));
    assert_eq!((sense[2], sense[12], sense[13]), (2, 0x04, 0x1B));
    assert_eq!(sense[15..18], [0x80, 0x43, 0x21]);
    let sense = data(run(&unit, &[3, 1, 0, 0, 252, 0]));
    assert_eq!(sense[8..], [2, 6, 0, 0, 0x80, 0x43, 0x21, 0]);
    unit.state.end_sanitize(Sanitation::None);
    good(&run(&unit, &[0; 6]));
}

#[test]
fn a_failed_operation_is_repeated_or_given_up() {
    for restricted in [false, true] {
        let unit = unit();
        unit.state.end_sanitize(Sanitation::Failed { restricted });
        for (code, _, answer) in answers(&unit) {
            let works = matches!(code, 0x03 | 0x12 | 0xA0 | 0x48);
            let expected = Some((Key::MediumError, Code::SANITIZE_COMMAND_FAILED));
            assert_eq!(answer == expected, !works, "{code:02X}h: {answer:?}");
        }
        let sense = data(run(&unit, &[3, 0, 0, 0, 252, 0]));
        assert_eq!((sense[2], sense[12], sense[13]), (3, 0x31, 0x03));
        let again = run(&unit, &cmd(BLOCK_ERASE, 0));
        assert!(matches!(again.action, Action::Sanitize(_)));
        let (exit, unrestricted) =
            (run(&unit, &cmd(EXIT, 0)), run(&unit, &cmd(BLOCK_ERASE | AUSE, 0)));
        if restricted {
            illegal(&exit, Code::INVALID_FIELD_IN_CDB);
            illegal(&unrestricted, Code::INVALID_FIELD_IN_CDB);
        } else {
            let method = Method::ExitFailureMode;
            let expected = Sanitize { method, immediate: false, restricted: false };
            assert_eq!(exit.action, Action::Sanitize(expected));
            assert!(matches!(unrestricted.action, Action::Sanitize(_)));
        }
    }
    good(&run(&unit(), &cmd(EXIT, 0)));
}
