use super::*;
use crate::pdu::{NopIn, NopOut, Reject, RejectReason, ScsiResponse};

fn nop(cmd_sn: u32) -> NopOut {
    NopOut {
        flags: pdu::FINAL,
        itt: U32::new(0x900 + cmd_sn),
        ttt: U32::new(u32::MAX),
        cmd_sn: U32::new(cmd_sn),
        ..Default::default()
    }
}

fn itts(events: &[Event<Vec<u8>>], bench: &Bench) -> usize {
    assert_eq!(bench.connection.outstanding(), 3);
    events.iter().filter(|event| matches!(event, Event::Command(_))).count()
}

#[test]
fn commands_behind_a_gap_wait_for_it_to_close() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(write(3, 3, 512), &bytes(512));
    bench.feed(nop(4), b"ping");
    bench.feed(read(2, 2, 512), &[]);
    assert!(bench.events().is_empty() && bench.got().is_empty());
    bench.feed(read(1, 1, 512), &[]);
    let events = bench.events();
    assert_eq!(itts(&events, &bench), 3);
    let sizes: Vec<u32> = events
        .iter()
        .map(|event| match event {
            Event::Command(command) => command.expects_write,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [0, 0, 512]);
    let got = bench.one();
    assert_eq!(got.data, b"ping");
    assert_eq!(got.as_pdu::<NopIn>().exp_cmd_sn.get(), 5);
    assert_eq!(bench.connection.counters().held, 3);
}

#[test]
fn nothing_is_handed_up_after_the_end() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(2, 2, 512), &[]);
    let logout = pdu::LogoutRequest {
        flags: pdu::FINAL,
        itt: U32::new(1),
        cid: U16::new(3),
        cmd_sn: U32::new(1),
        ..Default::default()
    };
    bench.feed(logout, &[]);
    let events = bench.events();
    assert!(matches!(events[..], [Event::Close(CloseReason::LoggedOut)]), "{events:?}");
}

#[test]
fn commands_outside_the_window_are_ignored() {
    let options = Options { queue_depth: 4, ..Options::default() };
    let mut bench = Bench::ready(options, &[]);
    bench.feed(write(1, 5, 512), &bytes(512));
    bench.feed(read(1, 0, 512), &[]);
    bench.feed(nop(100), &[]);
    bench.feed(read(2, 3, 512), &[]);
    bench.feed(read(3, 3, 512), &[]);
    assert!(bench.events().is_empty() && bench.got().is_empty());
    assert_eq!(bench.connection.counters().outside_window, 4);
    bench.feed(read(4, 1, 512), &[]);
    assert_eq!(bench.events().len(), 1);
}

#[test]
fn the_window_closes_with_outstanding_commands_and_opens_with_answers() {
    let options = Options { queue_depth: 2, ..Options::default() };
    let mut bench = Bench::ready(options, &[]);
    bench.feed(read(1, 1, 512), &[]);
    let first = bench.command().tag;
    bench.feed(read(2, 2, 512), &[]);
    let second = bench.command().tag;
    bench.feed(read(3, 3, 512), &[]);
    assert!(bench.events().is_empty(), "the window is full");
    bench.good(first);
    let got = bench.one();
    let pdu = got.as_pdu::<ScsiResponse>();
    assert_eq!((pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get(), pdu.stat_sn.get()), (3, 3, 2));
    bench.feed(read(3, 3, 512), &[]);
    assert_eq!(bench.events().len(), 1);
    bench.connection.abort(second);
    bench.feed(NopOut { opcode: pdu::IMMEDIATE, ..nop(4) }, &[]);
    let got = bench.one();
    assert_eq!(got.as_pdu::<NopIn>().max_cmd_sn.get(), 4);
}

#[test]
fn immediate_commands_do_not_count_but_are_limited() {
    let mut bench = Bench::ready(Options::default(), &[]);
    for i in 0..options::MAX_IMMEDIATE {
        let mut command = read(i, 1, 512);
        command.opcode |= pdu::IMMEDIATE;
        bench.feed(command, &[]);
    }
    assert_eq!(bench.events().len(), options::MAX_IMMEDIATE as usize);
    let mut command = read(999, 1, 512);
    command.opcode |= pdu::IMMEDIATE;
    bench.feed(command, &[]);
    let got = bench.one();
    let pdu = got.as_pdu::<Reject>();
    assert_eq!(pdu.reason, RejectReason::ImmediateCommandReject.code());
    assert_eq!(pdu.exp_cmd_sn.get(), 1);
    assert_eq!(bench.connection.counters().reject_immediate, 1);
}

#[test]
fn commands_that_cannot_be_are_rejected_and_take_their_number() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(read(1, 1, 512), &[]);
    let first = bench.command().tag;
    bench.feed(read(1, 2, 512), &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, RejectReason::TaskInProgress.code());
    bench.feed(read(u32::MAX, 3, 512), &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, RejectReason::InvalidPduField.code());
    bench.feed(read(2, 4, 512), &bytes(512));
    assert_eq!(bench.one().as_pdu::<Reject>().reason, RejectReason::InvalidPduField.code());
    let stream = bench.encode(&read(2, 5, 512), &[0, 9, 1, 0], &[]);
    bench.raw(&stream);
    let got = bench.one();
    assert_eq!(got.as_pdu::<Reject>().reason, RejectReason::InvalidPduField.code());
    assert_eq!(got.as_pdu::<Reject>().exp_cmd_sn.get(), 6);
    assert_eq!(got.data, stream[..BHS_LEN]);
    bench.feed(read(2, 6, 512), &[]);
    assert_eq!(bench.events().len(), 1);
    bench.good(first);
    assert_eq!(bench.connection.counters().rejects(), 4);
}

#[test]
fn what_is_held_is_bounded() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(nop(2), &bytes(60_000));
    bench.feed(nop(3), &bytes(60_000));
    assert_eq!(bench.closed(), CloseReason::HeldTooMuch);
}
