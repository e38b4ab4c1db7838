use super::*;
use crate::pdu::{
    AsyncMessage, LogoutRequest, LogoutResponsePdu, NopIn, NopOut, Reject, SnackRequest,
};

fn nop(itt: u32, cmd_sn: u32) -> NopOut {
    NopOut {
        opcode: 0x40,
        flags: pdu::FINAL,
        itt: U32::new(itt),
        ttt: U32::new(u32::MAX),
        cmd_sn: U32::new(cmd_sn),
        ..Default::default()
    }
}

pub(super) fn logout(reason: u8, cid: u16) -> LogoutRequest {
    LogoutRequest {
        opcode: 0x46,
        flags: pdu::FINAL | reason,
        itt: U32::new(0x55),
        cid: U16::new(cid),
        cmd_sn: U32::new(1),
        ..Default::default()
    }
}

#[test]
fn a_ping_is_answered_with_its_data() {
    let mut bench = Bench::ready(Options::default(), &["MaxRecvDataSegmentLength=512"]);
    bench.feed(nop(5, 1), &bytes(700));
    let got = bench.one();
    let pdu = got.as_pdu::<NopIn>();
    assert_eq!((pdu.itt.get(), pdu.ttt.get(), pdu.stat_sn.get()), (5, u32::MAX, 2));
    assert_eq!(got.data, bytes(512));
    bench.feed(nop(u32::MAX, 1), &[]);
    assert!(bench.got().is_empty());
}

#[test]
fn silence_is_asked_about_and_then_ends_the_connection() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.now = bench.connection.poll_timeout().unwrap();
    assert_eq!(bench.now, Duration::from_secs(30));
    bench.timeout();
    let got = bench.one();
    let pdu = got.as_pdu::<NopIn>();
    assert_eq!((pdu.itt.get(), pdu.stat_sn.get()), (u32::MAX, 2));
    assert_ne!(pdu.ttt.get(), u32::MAX);
    let mut answer = nop(u32::MAX, 1);
    answer.ttt = pdu.ttt;
    bench.now += Duration::from_secs(1);
    bench.feed(answer, &[]);
    assert_eq!(bench.connection.poll_timeout(), Some(Duration::from_secs(61)));
    bench.now = Duration::from_secs(61);
    bench.timeout();
    assert_eq!(bench.one().as_pdu::<NopIn>().stat_sn.get(), 2);
    bench.now = bench.connection.poll_timeout().unwrap();
    bench.timeout();
    assert_eq!(bench.closed(), CloseReason::PingTimeout);
    assert_eq!(bench.connection.counters().pings_out, 2);
}

#[test]
fn a_question_is_answered_once_and_commands_tell_whether_they_came_before() {
    let mut bench = Bench::ready(Options::default(), &["FirstBurstLength=8192"]);
    let ask = |bench: &mut Bench| {
        let Bench { connection, now, wires, .. } = bench;
        let asked = connection.ask(*now, wires).unwrap();
        let mut answer = nop(u32::MAX, 1);
        answer.ttt = bench.one().as_pdu::<NopIn>().ttt;
        (asked, answer)
    };
    // Its data comes behind the answer.
    let mut early = write(1, 1, 8192);
    early.flags &= !pdu::FINAL;
    bench.feed(early, &bytes(4096));
    let (forgotten, late) = ask(&mut bench);
    let (asked, answer) = ask(&mut bench);
    assert_ne!(forgotten, asked);
    // An answer to what is not asked any more, or to nothing.
    bench.feed(late, &[]);
    bench.feed(nop(u32::MAX, 1), &[]);
    assert!(bench.events().is_empty());
    bench.feed(answer, &[]);
    let said = bench.events();
    assert!(matches!(said[..], [Event::Answered { asked: of, answers: 1 }] if of == asked));
    bench.feed(answer, &[]);
    assert!(bench.events().is_empty(), "once");
    bench.feed(data_out(1, u32::MAX, 0, 4096), &bytes(4096));
    assert_eq!(bench.command().answers, 0);
    bench.feed(read(2, 2, 512), &[]);
    assert_eq!(bench.command().answers, 1);
    assert_eq!(bench.connection.counters().pings_out, 2);
}

#[test]
fn a_question_that_nobody_answers_ends_the_connection() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let Bench { connection, now, wires, .. } = &mut bench;
    assert!(connection.ask(*now, wires).is_some());
    bench.now = bench.connection.poll_timeout().unwrap();
    bench.timeout();
    assert_eq!(bench.closed(), CloseReason::PingTimeout);
    let Bench { connection, now, wires, .. } = &mut bench;
    assert_eq!(connection.ask(*now, wires), None, "it is over");
}

#[test]
fn a_ping_behind_other_data_has_its_time_from_when_that_was_taken_in() {
    let mut bench = Bench::ready(Options::default(), &[]);
    // Not asked yet: that something was taken in is no sign of life of the initiator itself.
    bench.connection.delivered(Duration::from_secs(29));
    bench.now = Duration::from_secs(30);
    bench.timeout();
    bench.one();
    for seconds in [59, 80, 70, 100] {
        bench.connection.delivered(Duration::from_secs(seconds));
        bench.now = bench.connection.poll_timeout().unwrap() - Duration::from_millis(1);
        bench.timeout();
    }
    assert_eq!(bench.connection.poll_timeout(), Some(Duration::from_secs(130)));
    bench.now = Duration::from_secs(130);
    bench.timeout();
    assert_eq!(bench.closed(), CloseReason::PingTimeout);
    assert_eq!(bench.connection.counters().pings_out, 1);
}

#[test]
fn pings_can_be_switched_off() {
    let options = Options { ping_interval: Duration::ZERO, ..Options::default() };
    let mut bench = Bench::ready(options, &[]);
    assert_eq!(bench.connection.poll_timeout(), None);
    bench.now = Duration::from_secs(1000);
    bench.timeout();
    assert!(bench.got().is_empty());
}

#[test]
fn logouts_of_the_session_and_the_connection() {
    for (reason, cid) in [(0, 99), (1, 3)] {
        let mut bench = Bench::ready(Options::default(), &[]);
        bench.feed(logout(reason, cid), &[]);
        let got = bench.one();
        let pdu = got.as_pdu::<LogoutResponsePdu>();
        assert_eq!((pdu.response, pdu.itt.get(), pdu.time2wait.get()), (0, 0x55, 2));
        assert_eq!(bench.closed(), CloseReason::LoggedOut);
        bench.feed(read(1, 1, 512), &[]);
        assert!(bench.events().is_empty());
    }
}

#[test]
fn logouts_that_do_not_close() {
    let mut bench = Bench::ready(Options::default(), &[]);
    for (reason, cid, response) in [(1, 4, 1), (2, 3, 2)] {
        bench.feed(logout(reason, cid), &[]);
        assert_eq!(bench.one().as_pdu::<LogoutResponsePdu>().response, response);
    }
    bench.feed(logout(3, 3), &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 9);
    assert!(bench.connection.is_full_feature());
}

#[test]
fn the_initiator_is_asked_to_log_out_and_made_to() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.with(|c, tx| c.request_logout(Duration::from_secs(5), Duration::from_secs(10), tx));
    let got = bench.one();
    let pdu = got.as_pdu::<AsyncMessage>();
    assert_eq!((pdu.event, pdu.parameter3.get(), pdu.itt.get()), (1, 10, u32::MAX));
    bench.with(|c, tx| c.request_logout(Duration::from_secs(6), Duration::from_secs(10), tx));
    assert!(bench.got().is_empty());
    bench.now = bench.connection.poll_timeout().unwrap();
    assert_eq!(bench.now, Duration::from_secs(15));
    bench.timeout();
    assert_eq!(bench.closed(), CloseReason::LogoutTimeout);
}

#[test]
fn a_snack_and_an_unknown_opcode_are_rejected() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(SnackRequest { flags: 0x80, ..Default::default() }, &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 3);
    for opcode in [0x07, 0x1c, 0x21, 0x3f] {
        let mut unknown = nop(1, 1);
        unknown.opcode = opcode;
        bench.feed(unknown, b"data");
        let got = bench.one();
        assert_eq!(got.as_pdu::<Reject>().reason, 5);
        assert_eq!(got.data[0], opcode);
    }
    assert_eq!(bench.connection.counters().reject_not_supported, 4);
}

#[test]
fn impossible_layouts_end_the_connection() {
    let mut bench = Bench::ready(Options::default(), &[]);
    let mut header = *write(1, 1, 1 << 20).as_bhs();
    header[5..8].copy_from_slice(&[4, 0, 1]);
    bench.raw(&header);
    assert_eq!(bench.closed(), CloseReason::SegmentTooLong { len: 262_145, limit: 262_144 });
    let mut bench = Bench::ready(Options::default(), &[]);
    let stream = bench.encode(&nop(1, 1), &[0, 1, 1, 0], &[]);
    bench.raw(&stream);
    assert_eq!(bench.closed(), CloseReason::UnexpectedAhs);
    assert_eq!(bench.connection.counters().format_errors, 1);
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let mut bench = Bench::ready(Options::default(), &["HeaderDigest=CRC32C"]);
    let mut ahs = Vec::new();
    assert!(pdu::write_extended_cdb(&mut ahs, &[1; 4]));
    let right = bench.encode(&read(1, 1, 512), &ahs, &[]);
    bench.raw(&right);
    assert_eq!(bench.command().cdb().len(), 20);
    let mut wrong = bench.encode(&read(2, 2, 512), &ahs, &[]);
    wrong[50] ^= 1;
    bench.raw(&wrong);
    assert_eq!(bench.closed(), CloseReason::HeaderDigest);
    assert_eq!(bench.connection.counters().header_digest_errors, 1);
}

#[test]
fn a_wrong_data_digest_of_another_pdu_is_rejected_and_its_number_not_taken() {
    let mut bench = Bench::ready(Options::default(), &["DataDigest=CRC32C"]);
    let mut ping = nop(5, 1);
    ping.opcode = 0;
    let right = bench.encode(&ping, &[], b"ping");
    let mut wrong = right.clone();
    wrong[BHS_LEN] ^= 1;
    bench.raw(&wrong);
    let got = bench.one();
    assert_eq!((got.as_pdu::<Reject>().reason, got.as_pdu::<Reject>().exp_cmd_sn.get()), (2, 1));
    bench.raw(&right);
    let got = bench.one();
    assert_eq!((got.as_pdu::<NopIn>().exp_cmd_sn.get(), &got.data[..]), (2, &b"ping"[..]));
}

#[test]
fn a_data_digest_covers_the_padding_as_it_was_sent() {
    let mut bench = Bench::ready(Options::default(), &["DataDigest=CRC32C"]);
    let mut stream = bench.encode(&nop(5, 1), &[], b"ping!");
    let (data, end) = (BHS_LEN, BHS_LEN + 8);
    stream[end - 1] = 0xff;
    let crc = crc32c(&stream[data..end]);
    stream[end..].copy_from_slice(&crc);
    bench.raw(&stream);
    assert_eq!(bench.one().data, b"ping!");
}

#[test]
fn reasons_are_sentences() {
    for reason in [
        CloseReason::LoggedOut,
        CloseReason::SegmentTooLong { len: 1, limit: 2 },
        CloseReason::LoginRefused(0x0203),
    ] {
        assert!(reason.to_string().contains(' '));
    }
    assert!(CloseReason::LoginRefused(0x0203).to_string().ends_with("0x0203"));
}
