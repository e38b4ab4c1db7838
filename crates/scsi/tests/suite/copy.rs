//! EXTENDED COPY: parameter lists, segments, and what is reported of them.

use std::time::Duration;

use crate::common::*;
use crate::lists::{cscd, lid1, lid4, segment};
use lunet_block::ByteRange;
use lunet_scsi::copy::{
    About, Extended, MAX_COPIES, Operations, Origin, Outcome, Query, Refused, Request, Side, Step,
    UnitName, action,
};
use lunet_scsi::{
    Action, Code, Key, ParameterKind, Parameters, PowerChange, Reply, Sense, SenseFormat, Unit,
    parameters, status,
};

const NAA: [u8; 8] = [0x30, 1, 2, 3, 0xDE, 0xAD, 0xBE, 0xEF];

/// A segment descriptor of type 0Ah.
fn offset_segment(bytes: u32, from: (u64, u16), to: (u64, u16)) -> Vec<u8> {
    let mut d = vec![0x0A, 0, 0, 0x1C, 0, 0, 0, 0];
    d.extend(bytes.to_be_bytes());
    d.extend(from.0.to_be_bytes());
    d.extend(to.0.to_be_bytes());
    d.extend(from.1.to_be_bytes());
    d.extend(to.1.to_be_bytes());
    d
}

fn parse(long: bool, list: &[u8]) -> Action {
    let kind = ParameterKind::ExtendedCopy { long };
    parameters(&unit(), Parameters { kind, len: list.len() as u32 }, list)
}

#[track_caller]
fn parsed(long: bool, list: &[u8]) -> Extended {
    match parse(long, list) {
        Action::Copy(Request::Extended(copy)) => *copy,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(long: bool, list: &[u8]) -> Sense {
    match parse(long, list) {
        Action::Complete(Reply { sense: Some(sense), .. }) => {
            assert_eq!(sense.key, Key::IllegalRequest);
            sense
        }
        other => panic!("{other:?}"),
    }
}

/// Finds `a` by its name, and `b` as the unit that has the command.
fn step(copy: &Extended, index: usize, a: &Unit, b: &Unit) -> Result<Option<Step<char>>, Sense> {
    copy.step(index, |name: Option<&UnitName>| match name {
        None => Some(('b', b)),
        Some(name) if name.names(&a.identity) => Some(('a', a)),
        Some(_) => None,
    })
}

#[test]
fn both_forms_name_the_same_copy() {
    let segments = [segment(0, 0xFFFF, 8, 16, 1), segment(0xFFFF, 0, 0, 0, 0)];
    let short = parsed(false, &lid1(7, 0, &[cscd(&NAA)], &segments));
    let long = parsed(true, &lid4(0x01020304, (0b10, 1), &[cscd(&NAA)], &segments));
    assert_eq!((short.list, short.action, short.immediate), (Some(7), 0, false));
    assert_eq!((long.list, long.action, long.immediate), (Some(0x01020304), 1, true));
    for copy in [short, long] {
        assert_eq!(copy.segments(), 2);
        let (from, to) = (ByteRange::new(8192, 4096), ByteRange::new(512, 4096));
        let expected = Step { source: 'a', destination: 'b', from, to };
        assert_eq!(step(&copy, 0, &unit(), &unit()), Ok(Some(expected)));
        assert_eq!(step(&copy, 1, &unit(), &unit()), Ok(None));
    }
    assert_eq!(parsed(false, &lid1(0, 0b11, &[], &[])).list, None);
}

#[test]
fn an_empty_list_is_no_error() {
    for sa in [0x00, 0x01, 0x10, 0x11] {
        good(&run(&unit(), &cdb(16, &[(0, &[0x83, sa])])));
        // Longer than what is fetched, and shorter than what the command block says.
        let task = run(&unit(), &cdb(16, &[(0, &[0x83, sa]), (10, &[0, 1, 0, 0])]));
        illegal(&task, Code::PARAMETER_LIST_LENGTH_ERROR);
        let block = cdb(16, &[(0, &[0x83, sa]), (13, &[48])]);
        illegal(&run_expecting(&unit(), &block, 0, 47), Code::PARAMETER_LIST_LENGTH_ERROR);
    }
}

#[test]
fn lists_that_are_cut_off_or_too_long_are_refused() {
    let whole = lid1(1, 0, &[cscd(&NAA)], &[segment(0, 0, 1, 0, 1)]);
    for len in [1, 15, 16 + 31, whole.len() - 1] {
        assert_eq!(refused(false, &whole[..len]).code, Code::PARAMETER_LIST_LENGTH_ERROR);
    }
    // What follows the descriptors is nobody's.
    parsed(false, &[&whole[..], &[1, 2, 3]].concat());
    let many =
        |n: usize, m: usize| lid1(1, 0, &vec![cscd(&NAA); n], &vec![segment(0, 0, 1, 0, 1); m]);
    parsed(false, &many(16, 64));
    assert_eq!(refused(false, &many(17, 1)).code, Code::TOO_MANY_TARGET_DESCRIPTORS);
    assert_eq!(refused(false, &many(1, 65)).code, Code::TOO_MANY_SEGMENT_DESCRIPTORS);
    assert_eq!(refused(false, &many(17, 80)).code, Code::PARAMETER_LIST_LENGTH_ERROR);
    let mut inline = whole;
    inline[15] = 1;
    assert_eq!(refused(false, &inline).code, Code::INLINE_DATA_LENGTH_EXCEEDED);
}

#[test]
fn fields_that_mean_nothing_here_are_refused() {
    let one = [segment(0, 0, 1, 0, 1)];
    let field = |sense: Sense| (sense.code, sense.field.map(|field| field.byte));
    let invalid = |at| (Code::INVALID_FIELD_IN_PARAMETER_LIST, Some(at));
    assert_eq!(field(refused(false, &lid1(1, 0b01, &[cscd(&NAA)], &one))), invalid(1));
    assert_eq!(field(refused(false, &lid1(1, 0b11, &[cscd(&NAA)], &one))), invalid(0));
    assert_eq!(field(refused(true, &lid4(1, (0b11, 0), &[], &one))), invalid(20));
    // IMMED with nobody to ask, IMMED with G_SENSE.
    for (list, flags) in [(0, (0b11, 1)), (1, (0, 3))] {
        assert_eq!(refused(true, &lid4(list, flags, &[], &one)).code, Code::INVALID_FIELD_IN_CDB);
    }
    for (at, value) in [(0, 2), (3, 0x40), (16, 0xE4)] {
        let mut list = lid4(1, (0, 0), &[], &one);
        list[at] = value;
        let at = if at == 3 { 2 } else { at as u16 };
        assert_eq!(field(refused(true, &list)), invalid(at));
    }
    let broken = |at: usize, value: u8| {
        let mut list = lid1(1, 0, &[cscd(&NAA)], &one);
        list[at] = value;
        field(refused(false, &list))
    };
    for kind in [0xE0, 0xEA, 0xEB, 0xFF, 0x02] {
        assert_eq!(broken(16, kind), (Code::UNSUPPORTED_TARGET_DESCRIPTOR, Some(16)));
    }
    for kind in [0x00, 0x01, 0x03, 0x04, 0x0D, 0xBE, 0xE4] {
        assert_eq!(broken(48, kind), (Code::UNSUPPORTED_SEGMENT_DESCRIPTOR, Some(48)));
    }
    assert_eq!(broken(23, 21), invalid(23));
    assert_eq!(broken(51, 0x1C), invalid(50));
}

#[test]
fn who_cannot_be_reached_ends_the_copy_at_that_segment() {
    let (a, b) = (unit(), unit());
    let fails = |cscd: Vec<u8>, segment: Vec<u8>| {
        let copy = parsed(false, &lid1(1, 0, &[cscd], &[segment]));
        let sense = step(&copy, 0, &a, &b).unwrap_err();
        assert_eq!(sense.key, Key::CopyAborted);
        assert_eq!(sense.copy.map(|copy| copy.segment), Some(0));
        (sense.code, sense.field.unwrap().byte)
    };
    let to_here = segment(0, 0xFFFF, 1, 0, 0);
    let with = |at: usize, value: u8| {
        let mut cscd = cscd(&NAA);
        cscd[at] = value;
        cscd
    };
    assert_eq!(fails(cscd(&NAA), segment(0, 1, 1, 0, 0)), (Code::UNREACHABLE_COPY_TARGET, 54));
    assert_eq!(fails(with(1, 0x20), to_here.clone()), (Code::UNREACHABLE_COPY_TARGET, 16));
    assert_eq!(fails(with(1, 0x01), to_here.clone()), (Code::INCORRECT_COPY_TARGET_TYPE, 16));
    let nobody = (Code::COPY_TARGET_NOT_REACHABLE, 16);
    assert_eq!(fails(cscd(b"12345678"), to_here.clone()), nobody);
    // Another type of designator, one of the target port.
    assert_eq!(fails(with(5, 0x02), to_here.clone()), nobody);
    assert_eq!(fails(with(5, 0x13), to_here.clone()), nobody);
    let other_block = fails(with(30, 0x10), to_here);
    assert_eq!(other_block, (Code::INVALID_FIELD_IN_PARAMETER_LIST, 45));
    // The descriptor says nothing of blocks, or the right thing.
    for cscd in [cscd(&NAA), with(30, 0x02)] {
        let copy = parsed(false, &lid1(1, 0, &[cscd], &[segment(0, 0xFFFF, 1, 0, 0)]));
        assert!(step(&copy, 0, &a, &b).is_ok());
    }
}

#[test]
fn blocks_of_different_lengths_must_fit() {
    let (small, large) = (unit(), unit_4kn());
    let one = |segment: Vec<u8>| {
        let copy = parsed(false, &lid1(1, 0, &[cscd(&NAA)], &[segment]));
        step(&copy, 0, &small, &large).map(|step| step.map(|step| (step.from, step.to)))
    };
    let counts_destination = |mut segment: Vec<u8>| {
        segment[1] = 0x02;
        segment
    };
    let ranges = |from, to, len| Ok(Some((ByteRange::new(from, len), ByteRange::new(to, len))));
    assert_eq!(one(segment(0, 0xFFFF, 16, 8, 3)), ranges(4096, 12288, 8192));
    let by_destination = counts_destination(segment(0, 0xFFFF, 2, 8, 3));
    assert_eq!(one(by_destination), ranges(4096, 12288, 8192));
    let inexact = one(segment(0, 0xFFFF, 12, 8, 3)).unwrap_err();
    assert_eq!(inexact.code, Code::UNEXPECTED_INEXACT_SEGMENT);
    // In bytes: what falls on blocks of both is copied.
    let copy = |segment: Vec<u8>| {
        let copy = parsed(false, &lid1(1, 0, &[cscd(&NAA)], &[segment]));
        step(&copy, 0, &small, &large).map(|step| step.map(|step| (step.from, step.to)))
    };
    let segments = offset_segment(1024, (3, 512), (1, 1024));
    assert_eq!(copy(segments), ranges(2048, 1536, 1024));
    let code = |segment: Vec<u8>| copy(segment).unwrap_err().code;
    assert_eq!(code(offset_segment(1000, (3, 0), (1, 0))), Code::COPY_SEGMENT_GRANULARITY);
    assert_eq!(code(offset_segment(512, (3, 12), (1, 0))), Code::UNEXPECTED_INEXACT_SEGMENT);
}

#[test]
fn the_state_of_the_parties_counts() {
    let blocks = caps().blocks;
    let copy = parsed(false, &lid1(1, 0, &[cscd(&NAA)], &[segment(0, 0xFFFF, 2, 0, 4)]));
    let read_only = unit_read_only();
    assert!(step(&copy, 0, &read_only, &unit()).is_ok());
    let sense = step(&copy, 0, &unit(), &read_only).unwrap_err();
    assert_eq!((sense.key, sense.code), (Key::CopyAborted, Code::THIRD_PARTY_DEVICE_FAILURE));
    let forwarded = sense.copy.unwrap().forwarded.unwrap();
    assert_eq!((forwarded.source, forwarded.key), (false, Key::DataProtect));
    // As it travels: the destination's status and sense data follow, from byte 18 on.
    let fixed = sense.encode(SenseFormat::Fixed);
    assert_eq!((fixed.len(), fixed[2], fixed[7]), (37, 0x0A, 29));
    assert_eq!((&fixed[8..12], &fixed[12..14]), (&[0, 18, 0, 0][..], &[0x0D, 0x01][..]));
    assert_eq!(fixed[18..22], [status::CHECK_CONDITION, 0x70, 0, Key::DataProtect as u8]);
    let long = sense.encode(SenseFormat::Descriptor);
    assert_eq!((long.len(), long[7]), (8 + 8 + 12 + 12, 32));
    assert_eq!(long[28..36], [0x0C, 0x0A, 2, status::CHECK_CONDITION, 0x72, 7, 0x27, 0]);
    let stopped = unit();
    stopped.state.change_power(PowerChange::Stopped);
    let sense = step(&copy, 0, &stopped, &unit()).unwrap_err();
    let forwarded = sense.copy.unwrap().forwarded.unwrap();
    assert_eq!((forwarded.source, forwarded.key), (true, Key::NotReady));
    for (from, to) in [(blocks - 1, 0), (0, blocks - 1), (u64::MAX, 0), (0, u64::MAX)] {
        let segments = [segment(0, 0xFFFF, 0, 0, 0), segment(0, 0xFFFF, 2, from, to)];
        let copy = parsed(false, &lid1(1, 0, &[cscd(&NAA)], &segments));
        let sense = step(&copy, 1, &unit(), &unit()).unwrap_err();
        let at = if from == 0 { 96 } else { 88 };
        assert_eq!((sense.key, sense.code), (Key::CopyAborted, Code::NO_ADDITIONAL_SENSE));
        assert_eq!((sense.field.unwrap().byte, sense.copy.unwrap().segment), (at, 1));
    }
    let conflict = copy.failure(0, Side::Source, status::RESERVATION_CONFLICT, None);
    let forwarded = conflict.copy.unwrap().forwarded.unwrap();
    assert_eq!((forwarded.source, forwarded.status), (true, status::RESERVATION_CONFLICT));
}

#[test]
fn what_is_reported_is_what_holds() {
    let asked = data(run(&unit(), &cdb(16, &[(0, &[0x84, 0x03]), (13, &[255])])));
    assert_eq!(asked.len(), 47);
    assert_eq!(asked[3] as usize, asked.len() - 4);
    assert_eq!((&asked[8..12], &asked[43..]), (&[0, 16, 0, 64][..], &[3, 0x02, 0x0A, 0xE4][..]));
    let inquiry = data(run(&unit(), &cdb(6, &[(0, &[0x12, 1, 0x8F, 4])])));
    let mut rest = &inquiry[4..];
    let mut kinds = vec![];
    while !rest.is_empty() {
        let len = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        assert_eq!(len % 4, 0);
        let body = &rest[4..4 + len];
        let kind = u16::from_be_bytes([rest[0], rest[1]]);
        kinds.push(kind);
        match kind {
            0x0000 => assert_eq!(body[6..16], [0, 64, 0, 0, 2, 0x58, 0, 0, 0, 120]),
            0x0001 => assert_eq!(
                body[..15],
                [14, 0x83, 5, 0, 1, 0x10, 0x11, 0x1C, 0x84, 5, 0, 3, 4, 5, 7]
            ),
            0x0004 => assert_eq!(body[4..12], asked[8..16]),
            0x8001 => assert_eq!(body[8..12], asked[16..20]),
            _ => {}
        }
        rest = &rest[4 + len..];
    }
    assert_eq!(kinds, [0x0000, 0x0001, 0x0004, 0x0008, 0x000C, 0x0106, 0x0108, 0x8001]);
    let standard = data(run(&unit(), &cdb(6, &[(0, &[0x12, 0, 0, 0, 96])])));
    assert_eq!(standard[5] & 0x08, 0x08, "3PC");
}

const NOW: Duration = Duration::from_secs(1000);

fn origin(list: u32, action: u8) -> Origin {
    Origin { unit: 5, list: Some(list), action, background: false, block_size: 512 }
}

fn ask(operations: &mut Operations, about: About, list: u32, now: Duration) -> Reply {
    let query = Query { about, list, allocation: 1024 };
    operations.query(5, query, SenseFormat::Fixed, now)
}

#[track_caller]
fn unknown(reply: &Reply) {
    assert_eq!(reply.sense.map(|sense| sense.code), Some(Code::INVALID_FIELD_IN_CDB));
}

#[test]
fn the_status_of_a_copy_is_told_once() {
    let mut operations = Operations::default();
    unknown(&ask(&mut operations, About::Status1, 7, NOW));
    let id = operations.begin(origin(7, action::EXTENDED_COPY_LID1), NOW).unwrap();
    operations.advance(id, 1, 0, 0);
    operations.advance(id, 2, 5 << 30, 3);
    let status = ask(&mut operations, About::Status1, 7, NOW).data;
    // 5 GiB as KiB.
    assert_eq!(status, [0, 0, 0, 8, 0, 0, 2, 1, 0, 0x50, 0, 0]);
    unknown(&ask(&mut operations, About::Failure1, 7, NOW));
    operations.end(id, Outcome::Done, NOW);
    assert_eq!(ask(&mut operations, About::Failure1, 7, NOW).data, [0; 4]);
    let id = operations.begin(origin(7, action::EXTENDED_COPY_LID1), NOW).unwrap();
    operations.end(id, Outcome::Done, NOW);
    assert_eq!(ask(&mut operations, About::Status1, 7, NOW).data[4], 1);
    unknown(&ask(&mut operations, About::Status1, 7, NOW));
}

#[test]
fn a_failure_is_told_with_its_sense_data() {
    let mut operations = Operations::default();
    let id = operations.begin(origin(7, action::EXTENDED_COPY_LID1), NOW).unwrap();
    let sense = Sense::new(Key::CopyAborted, Code::UNREACHABLE_COPY_TARGET);
    operations.end(id, Outcome::Failed(sense), NOW);
    let status = ask(&mut operations, About::Status4, 7, NOW).data;
    assert_eq!((status.len(), status[3], status[5]), (32 + 20, 32 + 16, 0x02));
    assert_eq!(status[12..16], [status::CHECK_CONDITION, 20, 18, 0]);
    assert_eq!(status[32..50], sense.encode(SenseFormat::Fixed)[..]);
    assert_eq!(ask(&mut operations, About::Status1, 7, NOW).data[4], 2);
    let details = ask(&mut operations, About::Failure1, 7, NOW).data;
    assert_eq!((details.len(), details[3]), (60 + 18, 74));
    assert_eq!((details[56], details[59]), (status::CHECK_CONDITION, 18));
    assert_eq!(details[60..], sense.encode(SenseFormat::Fixed)[..]);
    unknown(&ask(&mut operations, About::Failure1, 7, NOW));
}

#[test]
fn a_list_identifier_names_one_operation() {
    let mut operations = Operations::default();
    let id = operations.begin(origin(7, action::EXTENDED_COPY_LID1), NOW).unwrap();
    let again = |operations: &mut Operations, action| match operations.begin(origin(7, action), NOW)
    {
        Err(Refused::InUse(sense)) => sense.code,
        other => panic!("{other:?}"),
    };
    let in_use = again(&mut operations, action::EXTENDED_COPY_LID1);
    assert_eq!(in_use, Code::OPERATION_IN_PROGRESS);
    let mixed = again(&mut operations, action::EXTENDED_COPY_LID4);
    assert_eq!(mixed, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    // Another unit's copy manager has names of its own.
    let elsewhere = Origin { unit: 6, ..origin(7, action::EXTENDED_COPY_LID1) };
    assert!(operations.begin(elsewhere, NOW).is_ok());
    assert_eq!(operations.abort(5, 7), Ok(Some(id)));
    operations.end(id, Outcome::Aborted, NOW);
    assert_eq!(operations.abort(5, 7), Ok(None));
    assert!(operations.abort(5, 8).is_err());
    let status = ask(&mut operations, About::Status4, 7, NOW).data;
    assert_eq!((status[5], status[12], status[14]), (0x60, status::TASK_ABORTED, 0));
    assert!(operations.begin(origin(7, action::EXTENDED_COPY_LID4), NOW).is_ok());
}

#[test]
fn outcomes_are_forgotten_in_the_end() {
    let mut operations = Operations::default();
    for list in 0..200 {
        let id = operations.begin(origin(list, action::WRITE_USING_TOKEN), NOW).unwrap();
        operations.end(id, Outcome::Done, NOW + Duration::from_millis(list.into()));
    }
    unknown(&ask(&mut operations, About::Token, 135, NOW));
    let known = |operations: &mut Operations, list, now| {
        ask(operations, About::Token, list, now).sense.is_none()
    };
    assert!(known(&mut operations, 199, NOW));
    assert!(known(&mut operations, 150, NOW + Duration::from_secs(100)));
    assert!(!known(&mut operations, 150, NOW + Duration::from_secs(121)));
    operations.reset(5);
    assert!(operations.idle());
    let named = |list| operations_begin(&mut Operations::default(), list);
    assert!(named(MAX_COPIES));
    assert!(!named(MAX_COPIES + 1));
}

/// True if so many can be at work at a time.
fn operations_begin(operations: &mut Operations, many: usize) -> bool {
    let nobody = Origin { list: None, ..origin(0, action::EXTENDED_COPY_LID1) };
    (0..many).all(|_| operations.begin(nobody, NOW) != Err(Refused::Full))
}
