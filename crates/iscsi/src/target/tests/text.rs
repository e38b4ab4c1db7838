use super::*;
use crate::pdu::{Reject, RejectReason, TextRequest, TextResponse};
use alloc::format;

fn text(flags: u8, ttt: u32, cmd_sn: u32) -> TextRequest {
    TextRequest {
        flags,
        itt: U32::new(0x66),
        ttt: U32::new(ttt),
        cmd_sn: U32::new(cmd_sn),
        ..Default::default()
    }
}

fn discovery(keys: &[&str]) -> Bench {
    let mut bench = Bench::new(Options::default());
    let mut all = vec!["SessionType=Discovery"];
    let name = format!("InitiatorName={INITIATOR}");
    all.push(&name);
    all.extend_from_slice(keys);
    bench.login(0x87, &all);
    bench.events();
    bench.with(|c, tx| c.admit(1, tx));
    bench.got();
    bench
}

fn ask(bench: &mut Bench, cmd_sn: u32, pair: &str) -> Vec<(String, String)> {
    bench.feed(text(0x80, u32::MAX, cmd_sn), &text_of(&[pair]));
    let got = bench.one();
    let pdu = got.as_pdu::<TextResponse>();
    assert_eq!((pdu.flags, pdu.ttt.get(), pdu.itt.get()), (0x80, u32::MAX, 0x66));
    got.text()
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_string(), value.to_string())
}

#[test]
fn a_discovery_session_learns_of_all_targets_or_one() {
    let mut bench = discovery(&[]);
    let one = vec![
        pair("TargetName", TARGET),
        pair("TargetAddress", "192.0.2.1:3260,1"),
        pair("TargetAddress", "[2001:db8::1]:3260,2"),
    ];
    let mut all = one.clone();
    all.push(pair("TargetName", "iqn.2026-11.local.lunet:other"));
    all.push(pair("TargetAddress", "192.0.2.1:3260,1"));
    assert_eq!(ask(&mut bench, 1, "SendTargets=All"), all);
    assert_eq!(ask(&mut bench, 2, &format!("SendTargets={TARGET}")), one);
    assert_eq!(ask(&mut bench, 3, "SendTargets=iqn.none"), []);
    assert_eq!(ask(&mut bench, 4, "SendTargets="), [pair("SendTargets", "Reject")]);
}

#[test]
fn a_normal_session_learns_of_its_own_target_only() {
    let mut bench = Bench::ready(Options::default(), &[]);
    assert_eq!(ask(&mut bench, 1, "SendTargets=")[0], pair("TargetName", TARGET));
    assert_eq!(ask(&mut bench, 2, &format!("SendTargets={TARGET}")).len(), 3);
    assert_eq!(ask(&mut bench, 3, "SendTargets=All"), [pair("SendTargets", "Reject")]);
}

#[test]
fn discovery_takes_no_commands() {
    let mut bench = discovery(&["TargetName=iqn.ignored"]);
    bench.feed(read(1, 1, 512), &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 4);
    let tmf = pdu::TmfRequest { opcode: 0x42, flags: 0x85, ..Default::default() };
    bench.feed(tmf, &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 4);
    assert!(!ask(&mut bench, 2, "SendTargets=All").is_empty());
    let logout = pdu::LogoutRequest { opcode: 0x46, flags: 0x81, ..Default::default() };
    bench.feed(logout, &[]);
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 4);
    bench.feed(pdu::LogoutRequest { flags: 0x80, ..logout }, &[]);
    assert_eq!(bench.closed(), CloseReason::LoggedOut);
}

#[test]
fn an_answer_may_take_several_pdus() {
    let mut bench = discovery(&["MaxRecvDataSegmentLength=512"]);
    let keys: Vec<String> = (0..60).map(|i| format!("X-key-{i}=1")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    bench.feed(text(0x80, u32::MAX, 1), &text_of(&keys));
    let mut all = Vec::new();
    let mut cmd_sn = 2;
    let last = loop {
        let got = bench.one();
        let pdu = *got.as_pdu::<TextResponse>();
        all.extend(&got.data);
        if pdu.flags == pdu::FINAL {
            break pdu;
        }
        assert_eq!((pdu.flags, got.data.len()), (pdu::CONTINUE, 512));
        bench.feed(text(0x80, pdu.ttt.get(), cmd_sn), &[]);
        cmd_sn += 1;
    };
    assert_eq!(last.ttt.get(), u32::MAX);
    assert_eq!(Got { bhs: *last.as_bhs(), data: all }.text().len(), 60);
}

#[test]
fn a_request_may_take_several_pdus() {
    let mut bench = discovery(&[]);
    bench.feed(text(pdu::CONTINUE, u32::MAX, 1), b"SendTar");
    let got = bench.one();
    let pdu = got.as_pdu::<TextResponse>();
    assert_eq!((pdu.flags, got.data.len()), (0, 0));
    bench.feed(text(0x80, pdu.ttt.get(), 2), b"gets=All\0");
    let got = bench.one();
    assert_eq!(got.as_pdu::<TextResponse>().flags, 0x80);
    assert_eq!(got.text().len(), 5);
}

#[test]
fn text_that_breaks_the_rules_is_rejected() {
    let mut bench = discovery(&[]);
    let table: [(u8, u32, &[u8], u8); 4] = [
        (0x80, 5, b"SendTargets=All\0", 9),
        (0xc0, u32::MAX, b"SendTargets=All\0", 4),
        (0x80, u32::MAX, b"SendTargets\0", 4),
        (0x80, u32::MAX, b"SendTargets=All", 4),
    ];
    for (cmd_sn, (flags, ttt, data, reason)) in (1..).zip(table) {
        bench.feed(text(flags, ttt, cmd_sn), data);
        assert_eq!(bench.one().as_pdu::<Reject>().reason, reason);
    }
    let mut ttt = u32::MAX;
    for cmd_sn in 5..21 {
        bench.feed(text(pdu::CONTINUE, ttt, cmd_sn), &[b'x'; 4096]);
        ttt = bench.one().as_pdu::<TextResponse>().ttt.get();
    }
    bench.feed(text(pdu::CONTINUE, ttt, 21), b"x");
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 4);
}

#[test]
fn a_new_exchange_ends_the_one_before() {
    let mut bench = discovery(&[]);
    bench.feed(text(pdu::CONTINUE, u32::MAX, 1), b"SendTar");
    let old = bench.one().as_pdu::<TextResponse>().ttt.get();
    ask(&mut bench, 2, "SendTargets=All");
    bench.feed(text(0x80, old, 3), b"gets=All\0");
    assert_eq!(bench.one().as_pdu::<Reject>().reason, 9);
}

#[test]
fn only_what_may_be_renegotiated_is() {
    let mut bench = Bench::ready(Options::default(), &[]);
    assert_eq!(ask(&mut bench, 1, "MaxRecvDataSegmentLength=4096"), []);
    assert_eq!(bench.connection.negotiated().initiator_max_recv, 4096);
    assert_eq!(ask(&mut bench, 2, "MaxBurstLength=512"), [pair("MaxBurstLength", "Reject")]);
    assert_eq!(ask(&mut bench, 3, "HeaderDigest=CRC32C"), [pair("HeaderDigest", "Reject")]);
    assert_eq!(ask(&mut bench, 4, "X-odd=1"), [pair("X-odd", "NotUnderstood")]);
    assert!(!bench.connection.negotiated().header_digest);
}

#[test]
fn every_wrong_request_in_a_normal_session_has_its_answer() {
    let mut bench = Bench::ready(Options::default(), &[]);
    // Immediate, with the number of the next command, as libiscsi's suite (iSCSISendTargets.Invalid) sends them.
    // RFC 7143 appendix C keeps All out of normal sessions.
    let table = [
        ("SendTargetsPlease", "All", "NotUnderstood"),
        ("SendTargets", "Alle", "Reject"),
        ("SendTargets", "A", "Reject"),
        ("sENDtARGETS", "aLL", "NotUnderstood"),
        ("SendTargets", "All", "Reject"),
    ];
    for (itt, (key, value, answer)) in (0x70..).zip(table) {
        let mut request = text(0x80, u32::MAX, 1);
        request.opcode |= pdu::IMMEDIATE;
        request.itt = U32::new(itt);
        bench.feed(request, &text_of(&[&format!("{key}={value}")]));
        let got = bench.one();
        let response = got.as_pdu::<TextResponse>();
        assert_eq!((response.flags, response.itt.get(), response.ttt.get()), (0x80, itt, u32::MAX));
        assert_eq!(response.exp_cmd_sn.get(), 1, "an immediate request takes no number");
        assert_eq!(got.text(), [pair(key, answer)]);
    }
    assert!(!bench.connection.is_closed());
}

#[test]
fn targets_are_listed_once_in_a_request() {
    let mut bench = discovery(&[]);
    let twice = text_of(&["SendTargets=All", "SendTargets=All"]);
    bench.feed(text(0x80, u32::MAX, 1), &twice);
    let got = bench.one();
    assert_eq!(got.as_pdu::<Reject>().reason, RejectReason::ProtocolError.code());
}
