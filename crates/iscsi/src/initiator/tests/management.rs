use super::*;
use crate::pdu::{
    AsyncEvent, AsyncMessage, LogoutReason, LogoutRequest, LogoutResponse, LogoutResponsePdu,
    NopIn, NopOut, Reject, RejectReason, ScsiResponse, TextRequest, TextResponse, TmfFunction,
    TmfRequest, TmfResponse, TmfResponsePdu,
};

fn outcomes(bench: &mut Bench) -> Vec<(Tag, Outcome)> {
    let finished = |event| match event {
        Event::Finished(finished) => Some((finished.tag, finished.outcome)),
        _ => None,
    };
    bench.events().into_iter().filter_map(finished).collect()
}

fn tmf_response(tag: Tag, response: TmfResponse) -> TmfResponsePdu {
    TmfResponsePdu { flags: FINAL, response: response.code(), itt: tag.itt(), ..Default::default() }
}

#[test]
fn an_aborted_task_comes_back_with_the_answer() {
    for answer in [TmfResponse::Complete, TmfResponse::TaskDoesNotExist] {
        let mut bench = Bench::logged_in(options(), b"");
        let tag = bench.submit(Data::Read(vec![0; 8]));
        bench.submit(Data::None);
        bench.sent();
        let abort = bench
            .connection
            .manage(TmfFunction::AbortTask, 0, Some(tag), &mut bench.sent)
            .expect("accepted");
        let sent = bench.sent().remove(0);
        let pdu: &TmfRequest = sent.view();
        assert_eq!((pdu.opcode, pdu.flags), (0x42, 0x81));
        assert_eq!((pdu.referenced_itt, pdu.ref_cmd_sn.get()), (tag.itt(), 1));
        bench.answer(&tmf_response(abort, answer), b"");
        let managed = Event::Managed { tag: abort, response: Some(Ok(answer)) };
        assert_eq!(bench.events.last(), Some(&managed));
        assert_eq!(outcomes(&mut bench), [(tag, Outcome::Aborted)]);
        assert_eq!(bench.connection.outstanding(), 1);
    }
}

#[test]
fn a_refused_abort_leaves_the_task() {
    let mut bench = Bench::logged_in(options(), b"");
    let tag = bench.submit(Data::None);
    let Bench { connection, sent, .. } = &mut bench;
    let abort = connection.manage(TmfFunction::AbortTask, 0, Some(tag), sent).expect("accepted");
    bench.answer(&tmf_response(abort, TmfResponse::NotSupported), b"");
    assert!(outcomes(&mut bench).is_empty());
    let pdu = ScsiResponse { flags: FINAL, itt: tag.itt(), ..Default::default() };
    bench.answer(&pdu, b"");
    assert_eq!(outcomes(&mut bench), [(tag, Outcome::Completed(Completion::default()))]);
    let Bench { connection, sent, .. } = &mut bench;
    let again = connection.manage(TmfFunction::AbortTask, 0, Some(tag), sent);
    assert_eq!(again, Err(SubmitError::NoSuchTask));
}

#[test]
fn a_reset_ends_the_earlier_commands_of_its_unit() {
    let cases = [
        (TmfFunction::LogicalUnitReset, vec![0]),
        (TmfFunction::AbortTaskSet, vec![0]),
        (TmfFunction::ClearTaskSet, vec![0]),
        (TmfFunction::TargetWarmReset, vec![0, 1]),
        (TmfFunction::ClearAca, vec![]),
    ];
    for (function, ended) in cases {
        let mut bench = Bench::logged_in(options(), b"");
        let tags = [bench.submit_to(1, Data::None), bench.submit_to(2, Data::None)];
        let Bench { connection, sent, .. } = &mut bench;
        let reset = connection.manage(function, 1, None, sent).expect("accepted");
        bench.submit_to(1, Data::None);
        bench.answer(&tmf_response(reset, TmfResponse::Complete), b"");
        let expected: Vec<_> = ended.iter().map(|i: &usize| (tags[*i], Outcome::Aborted)).collect();
        assert_eq!(outcomes(&mut bench), expected, "{function:?}");
        assert_eq!(bench.connection.outstanding(), 3 - expected.len());
    }
}

/// Immediate commands have the CmdSN of the function: those that were sent before it are ended, too.
#[test]
fn a_reset_ends_immediate_commands_that_came_before_it() {
    let mut bench = Bench::logged_in(options(), b"");
    let mut immediate = || {
        let command = Command {
            token: 78,
            lun: 1,
            cdb: &[0; 6],
            attribute: TaskAttribute::Simple,
            immediate: true,
            data: Data::None,
        };
        let Bench { connection, sent, .. } = &mut bench;
        connection.submit(command, sent).expect("accepted")
    };
    let (before, another) = (immediate(), immediate());
    let Bench { connection, sent, .. } = &mut bench;
    let reset = connection.manage(TmfFunction::LogicalUnitReset, 1, None, sent).expect("accepted");
    let after = bench.submit_to(1, Data::None);
    bench.answer(&tmf_response(reset, TmfResponse::Complete), b"");
    let expected = [(before, Outcome::Aborted), (another, Outcome::Aborted)];
    assert_eq!(outcomes(&mut bench), expected);
    assert!(bench.connection.outstanding() == 1 && after != another);
}

#[test]
fn a_ping_of_the_target_is_answered() {
    let mut bench = Bench::logged_in(options(), b"");
    let mut pdu = NopIn {
        flags: FINAL,
        lun: 3.into(),
        itt: RESERVED_TAG.into(),
        ttt: 0x99.into(),
        ..Default::default()
    };
    bench.tell(&pdu, b"");
    let sent = bench.sent();
    let answer: &NopOut = sent[0].view();
    assert_eq!((answer.opcode, answer.flags), (0x40, FINAL));
    assert_eq!((answer.itt.get(), answer.ttt.get()), (RESERVED_TAG, 0x99));
    assert_eq!((answer.lun.get(), answer.cmd_sn.get()), (3, 1));
    pdu.ttt = RESERVED_TAG.into();
    bench.tell(&pdu, b"");
    assert!(bench.sent().is_empty());
}

#[test]
fn a_silent_target_is_pinged_and_then_given_up() {
    let mut bench = Bench::logged_in(options(), b"");
    let lost = bench.submit(Data::None);
    bench.sent();
    bench.wait(Duration::from_secs(9));
    assert!(bench.sent().is_empty());
    bench.wait(Duration::from_secs(1));
    let ping = bench.sent().remove(0).view::<NopOut>().itt;
    let pong = NopIn { itt: ping, ttt: RESERVED_TAG.into(), ..Default::default() };
    bench.answer(&pong, b"");
    assert!(bench.events.is_empty());
    bench.wait(Duration::from_secs(10));
    assert_eq!(bench.sent().len(), 1);
    bench.wait(Duration::from_secs(10));
    let last = bench.events.pop();
    assert_eq!(last, Some(Event::Failed(Error::PingTimeout)));
    assert_eq!(outcomes(&mut bench), [(lost, Outcome::Lost)]);
    assert_eq!(bench.connection.poll_timeout(), None);
}

#[test]
fn ping_data_is_compared() {
    for (data, intact) in [(&b"hello"[..], true), (b"hellO", false), (b"hell", false)] {
        let mut bench = Bench::logged_in(options(), b"");
        let tag = bench.connection.ping(b"hello", &mut bench.sent).expect("accepted");
        assert_eq!(bench.sent()[0].data, b"hello");
        let pong = NopIn { itt: tag.itt(), ttt: RESERVED_TAG.into(), ..Default::default() };
        bench.answer(&pong, data);
        assert_eq!(bench.events(), [Event::Pong { tag, intact }]);
    }
}

#[test]
fn send_targets_collects_all_parts() {
    let mut bench = Bench::logged_in(Options::new("iqn.2026-11.local.lunet:i", None), b"");
    let tag = bench.connection.send_targets("All", &mut bench.sent).expect("accepted");
    let sent = bench.sent().remove(0);
    assert_eq!(sent.data, b"SendTargets=All\0");
    let again = bench.connection.send_targets("All", &mut bench.sent);
    assert_eq!(again, Err(SubmitError::TextBusy));
    let mut pdu = TextResponse { itt: tag.itt(), ttt: 0x31.into(), ..Default::default() };
    bench.answer(&pdu, b"TargetName=iqn.a:1\0TargetAddress=10.0.0.1:32");
    let sent = bench.sent().remove(0);
    let more: &TextRequest = sent.view();
    assert_eq!((more.ttt.get(), more.itt, sent.data.len()), (0x31, tag.itt(), 0));
    (pdu.flags, pdu.ttt) = (FINAL, RESERVED_TAG.into());
    bench.answer(&pdu, b"60,1\0TargetAddress=[2001:db8::1]:3260,1\0TargetName=iqn.a:2\0");
    let target = |name: &str, addresses: &[&str]| DiscoveredTarget {
        name: name.to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
    };
    let targets = vec![
        target("iqn.a:1", &["10.0.0.1:3260,1", "[2001:db8::1]:3260,1"]),
        target("iqn.a:2", &[]),
    ];
    assert_eq!(bench.events(), [Event::Targets { tag, targets }]);
    let command = Command {
        token: 0,
        lun: 0,
        cdb: &[0; 6],
        attribute: TaskAttribute::Simple,
        immediate: false,
        data: Data::None,
    };
    let refused = bench.connection.submit(command, &mut bench.sent);
    assert_eq!(refused.map_err(|refused| refused.error), Err(SubmitError::DiscoverySession));
}

#[test]
fn a_rejected_command_ends() {
    let mut bench = Bench::logged_in(options(), b"");
    let tag = bench.submit(Data::None);
    let rejected = bench.sent().remove(0).bhs;
    let pdu = Reject {
        flags: FINAL,
        reason: RejectReason::InvalidPduField.code(),
        itt: RESERVED_TAG.into(),
        ..Default::default()
    };
    bench.answer(&pdu, &rejected);
    assert_eq!(bench.events[0], Event::Rejected { reason: 9, header: Some(rejected) });
    assert_eq!(outcomes(&mut bench), [(tag, Outcome::Rejected(9))]);
}

#[test]
fn an_asynchronous_message_leads_to_a_logout() {
    let mut bench = Bench::logged_in(options(), b"");
    let lost = bench.submit(Data::None);
    bench.sent();
    let pdu = AsyncMessage {
        flags: FINAL,
        itt: RESERVED_TAG.into(),
        event: AsyncEvent::LogoutRequest.code(),
        parameter3: 5.into(),
        ..Default::default()
    };
    bench.answer(&pdu, b"");
    let events = bench.events();
    let [Event::Async(notice)] = &events[..] else { panic!("unexpected {events:?}") };
    assert_eq!((notice.event, notice.parameters), (Some(AsyncEvent::LogoutRequest), [0, 0, 5]));
    let Bench { connection, sent, now, .. } = &mut bench;
    connection.logout(LogoutReason::CloseSession, *now, sent).expect("accepted");
    let sent = bench.sent().remove(0);
    let request: &LogoutRequest = sent.view();
    assert_eq!((request.opcode, request.flags), (0x46, 0x80));
    assert!(!bench.connection.is_ready());
    let pdu = LogoutResponsePdu { flags: FINAL, itt: request.itt, ..Default::default() };
    bench.answer(&pdu, b"");
    let response = Ok(LogoutResponse::Closed);
    let logged_out = Event::LoggedOut { response, time2wait: 0, time2retain: 0 };
    assert_eq!(bench.events.pop(), Some(logged_out));
    assert_eq!(outcomes(&mut bench), [(lost, Outcome::Lost)]);
    assert!(bench.connection.is_over());
}

#[test]
fn a_wrong_status_number_ends_the_connection() {
    let mut bench = Bench::logged_in(options(), b"");
    let tag = bench.submit(Data::None);
    bench.stat_sn += 1;
    bench.answer(&ScsiResponse { flags: FINAL, itt: tag.itt(), ..Default::default() }, b"");
    assert_eq!(bench.failure(), Error::StatSn);
}
