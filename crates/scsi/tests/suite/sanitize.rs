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
        let expected = Sanitize { method, immediate: true, restricted: true, format: false };
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
    let expected =
        Sanitize { method: Method::BlockErase, immediate: false, restricted: true, format: false };
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
    assert!(unit.state.begin_sanitize(false));
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
            let expected = Sanitize { method, immediate: false, restricted: false, format: false };
            assert_eq!(exit.action, Action::Sanitize(expected));
            assert!(matches!(unrestricted.action, Action::Sanitize(_)));
        }
    }
    good(&run(&unit(), &cmd(EXIT, 0)));
}

fn format(unit: &Unit, flags: u8, header: &[u8]) -> Task {
    let mut task = run_expecting(unit, &[4, flags, 0, 0, 0, 0], 0, header.len() as u32);
    if let Action::Parameters(asked) = task.action {
        task.action = parameters(unit, asked, header);
    }
    task
}

#[test]
fn format_unit_takes_defaults_and_immed() {
    let formats = |task: Task, immediate| {
        let method = Method::BlockErase;
        let expected = Sanitize { method, immediate, restricted: true, format: true };
        assert_eq!(task.action, Action::Sanitize(expected));
    };
    // CMPLST and the format of an empty list of defects do not matter.
    for flags in [0x00, 0x08, 0x06, 0x20] {
        formats(format(&unit(), flags, &[]), false);
    }
    for (options, immediate) in [(0x00, false), (0x02, true), (0x80, false), (0xF2, true)] {
        formats(format(&unit_thick(), 0x18, &[0, options, 0, 0]), immediate);
        formats(format(&unit(), 0x38, &[0, options, 0, 0, 0, 0, 0, 0]), immediate);
    }
    assert!(listed(&unit()).contains(&(0x04, None, 6)));
}

#[test]
fn format_unit_refuses_what_it_cannot_do() {
    for (at, bits) in [(1, 0x40), (1, 0x80), (4, 1), (4, 2)] {
        let mut cmd = [4, 0, 0, 0, 0, 0];
        cmd[at] = bits;
        illegal(&run(&unit(), &cmd), Code::INVALID_FIELD_IN_CDB);
    }
    // Protection, options without FOV, an initialization pattern, a list of defects.
    for (at, bits) in [(0, 1), (1, 0x20), (1, 0x08), (1, 0x88), (2, 1), (3, 8)] {
        let mut header = [0; 4];
        header[at] = bits;
        let task = format(&unit(), 0x18, &header);
        illegal(&task, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    for at in [3, 4, 7] {
        let mut header = [0; 8];
        header[at] = 1;
        let task = format(&unit(), 0x38, &header);
        illegal(&task, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    illegal(&format(&unit(), 0x18, &[0; 3]), Code::PARAMETER_LIST_LENGTH_ERROR);
    let protected = run(&unit_read_only(), &[4, 0, 0, 0, 0, 0]);
    assert_eq!(sense(&protected.action), (Key::DataProtect, Code::WRITE_PROTECTED));
}

#[test]
fn a_unit_that_is_being_formatted_or_was_not_says_so() {
    let unit = unit();
    assert!(unit.state.begin_sanitize(true) && !unit.state.begin_sanitize(false));
    unit.state.set_sanitize_progress(0x4321);
    let stands = |unit: &Unit, others: (Key, Code), works: &[u8]| {
        for (code, _, answer) in answers(unit) {
            assert_eq!(answer == Some(others), !works.contains(&code), "{code:02X}h: {answer:?}");
        }
    };
    stands(&unit, (Key::NotReady, Code::FORMAT_IN_PROGRESS), &[0x03, 0x12, 0xA0]);
    let told = data(run(&unit, &[3, 0, 0, 0, 252, 0]));
    assert_eq!((told[2], told[12], told[13]), (2, 0x04, 0x04));
    assert_eq!(told[15..18], [0x80, 0x43, 0x21]);
    unit.state.end_sanitize(Sanitation::Unformatted);
    let corrupted = (Key::MediumError, Code::MEDIUM_FORMAT_CORRUPTED);
    stands(&unit, corrupted, &[0x03, 0x04, 0x12, 0x48, 0xA0]);
    good(&run(&unit, &cmd(EXIT, 0)));
    assert_eq!(unit.state.sanitation(), Sanitation::Unformatted, "it does not end that");
    unit.state.end_sanitize(Sanitation::Failed { restricted: true });
    let failed = (Key::MediumError, Code::SANITIZE_COMMAND_FAILED);
    stands(&unit, failed, &[0x03, 0x12, 0x48, 0xA0]);
}
