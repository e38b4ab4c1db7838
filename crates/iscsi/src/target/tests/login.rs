use super::*;
use crate::pdu::LoginResponse;
use alloc::format;

fn names(rest: &[&str]) -> Vec<u8> {
    let mut text = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0SessionType=Normal\0")
        .into_bytes();
    text.extend(text_of(rest));
    text
}

fn has(got: &Got, key: &str, value: &str) -> bool {
    got.text().contains(&(key.to_string(), value.to_string()))
}

/// Sends one Login Request to a fresh connection and gives the status of the refusal.
fn refused(request: LoginRequest, text: &[u8]) -> u16 {
    let mut bench = Bench::new(Options::default());
    bench.feed(request, text);
    let status = bench.one().as_pdu::<LoginResponse>().status.get();
    assert_eq!(bench.closed(), CloseReason::LoginRefused(status));
    status
}

#[test]
fn a_login_in_two_stages_ends_in_the_full_feature_phase() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x81), &names(&["AuthMethod=CHAP,None"]));
    let got = bench.one();
    let response = got.as_pdu::<LoginResponse>();
    assert_eq!((response.flags, response.status.get()), (0x81, 0));
    assert_eq!((response.stat_sn.get(), response.exp_cmd_sn.get()), (1, 1));
    assert_eq!(response.max_cmd_sn.get(), 128);
    assert!(has(&got, "AuthMethod", "None") && has(&got, "TargetPortalGroupTag", "7"));
    assert!(has(&got, "TargetAlias", "demo"));
    bench.feed(
        Bench::login_request(0x87),
        &text_of(&["HeaderDigest=CRC32C,None", "MaxBurstLength=1048576", "X-com.example=1"]),
    );
    assert!(bench.got().is_empty(), "the answer waits for the admission");
    let Some(Event::LoginFinished(identity)) = bench.events.pop() else { panic!() };
    assert_eq!(identity.initiator_name, INITIATOR);
    assert_eq!(identity.target_name.as_deref(), Some(TARGET));
    assert_eq!((identity.isid, identity.tsih, identity.cid), ([0x80, 1, 2, 3, 4, 5], 0, 3));
    bench.with(|c, tx| c.admit(0x1234, tx));
    let got = bench.one();
    let response = got.as_pdu::<LoginResponse>();
    assert_eq!((response.flags, response.tsih.get(), response.stat_sn.get()), (0x87, 0x1234, 2));
    assert!(has(&got, "HeaderDigest", "CRC32C") && has(&got, "X-com.example", "NotUnderstood"));
    assert!(has(&got, "MaxRecvDataSegmentLength", "262144"));
    assert!(bench.connection.is_full_feature());
    let n = bench.connection.negotiated();
    assert!(n.header_digest && !n.data_digest && n.initial_r2t);
    assert_eq!((n.max_burst_length, n.target_max_recv), (1_048_576, 262_144));
    assert!(n.pairs().contains(&("HeaderDigest", "CRC32C".to_string())));
}

#[test]
fn operational_keys_wait_for_their_stage() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x81), &names(&["ImmediateData=No"]));
    assert!(has(&bench.one(), "ImmediateData", "Reject"));
    assert!(bench.connection.negotiated().immediate_data);
    bench.feed(Bench::login_request(0x87), &text_of(&["ImmediateData=No", "AuthMethod=None"]));
    bench.with(|c, tx| c.admit(1, tx));
    let got = bench.one();
    assert!(has(&got, "ImmediateData", "No") && has(&got, "AuthMethod", "Reject"));
}

#[test]
fn a_login_may_skip_the_operational_stage() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x83), &names(&["AuthMethod=None"]));
    bench.with(|c, tx| c.admit(1, tx));
    let got = bench.one();
    assert_eq!(got.as_pdu::<LoginResponse>().flags, 0x83);
    assert_eq!(bench.connection.negotiated(), &crate::target::negotiation::Negotiated::default());
    // Nothing was declared, so the target takes no more than the default.
    bench.events();
    let mut command = *write(1, 1, 65_536).as_bhs();
    command[5..8].copy_from_slice(&[0, 0x20, 1]);
    bench.raw(&command);
    assert_eq!(bench.closed(), CloseReason::SegmentTooLong { len: 8193, limit: 8192 });
}

#[test]
fn the_first_burst_is_not_longer_than_a_burst() {
    let bench = Bench::ready(Options::default(), &["MaxBurstLength=4096"]);
    assert_eq!(bench.connection.negotiated().first_burst_length, 4096);
}

#[test]
fn what_comes_first_must_be_a_login_request() {
    let mut bench = Bench::new(Options::default());
    bench.raw(read(1, 1, 512).as_bhs());
    assert_eq!(bench.closed(), CloseReason::NotALogin);
    assert!(bench.got().is_empty());
}

#[test]
fn other_requests_are_not_valid_during_login() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x04), &names(&[]));
    bench.got();
    bench.raw(pdu::NopOut { opcode: 0x40, ..Default::default() }.as_bhs());
    assert_eq!(bench.one().as_pdu::<LoginResponse>().status.get(), 0x020b);
    assert_eq!(bench.closed(), CloseReason::LoginRefused(0x020b));
}

#[test]
fn each_mistake_has_its_status() {
    let ask = Bench::login_request(0x87);
    assert_eq!(refused(ask, &text_of(&["TargetName=iqn.2026-11.local.lunet:demo"])), 0x0207);
    assert_eq!(refused(ask, &text_of(&[&format!("InitiatorName={INITIATOR}")])), 0x0207);
    assert_eq!(refused(ask, &names(&["SessionType=Odd"])), 0x0209);
    assert_eq!(refused(ask, &names(&["InitiatorName=iqn.other"])), 0x0200);
    assert_eq!(refused(ask, &names(&["DataDigest=None", "DataDigest=None"])), 0x0200);
    assert_eq!(refused(ask, b"InitiatorName"), 0x0200);
    assert_eq!(refused(LoginRequest { version_min: 1, ..ask }, &names(&[])), 0x0205);
    assert_eq!(refused(LoginRequest { flags: 0x8c, ..ask }, &names(&[])), 0x0200);
    assert_eq!(refused(LoginRequest { flags: 0x84, ..ask }, &names(&[])), 0x0200);
    assert_eq!(refused(LoginRequest { flags: 0xc7, ..ask }, &names(&[])), 0x0200);
    assert_eq!(refused(LoginRequest { flags: 0x81, ..ask }, &names(&["AuthMethod=CHAP"])), 0x0201);
    let unknown = format!("InitiatorName={INITIATOR}\0TargetName=iqn.2026-11.local.lunet:none\0");
    assert_eq!(refused(ask, unknown.as_bytes()), 0x0203);
}

#[test]
fn a_target_that_moved_says_where_it_is() {
    let mut bench = Bench::new(Options::default());
    let text = format!("InitiatorName={INITIATOR}\0TargetName=iqn.2026-11.local.lunet:moved\0");
    bench.feed(Bench::login_request(0x87), text.as_bytes());
    let got = bench.one();
    assert_eq!(got.as_pdu::<LoginResponse>().status.get(), 0x0101);
    assert!(has(&got, "TargetAddress", "192.0.2.9:3260,1"));
}

#[test]
fn identifiers_may_not_change_during_a_login() {
    let change: [fn(&mut LoginRequest); 4] = [
        |pdu| pdu.isid[0] = 0,
        |pdu| pdu.tsih = U16::new(5),
        |pdu| pdu.cid = U16::new(5),
        |pdu| pdu.itt = U32::new(5),
    ];
    for change in change {
        let mut bench = Bench::new(Options::default());
        bench.feed(Bench::login_request(0x04), &names(&[]));
        bench.got();
        let mut request = Bench::login_request(0x87);
        change(&mut request);
        bench.feed(request, &[]);
        assert_eq!(bench.one().as_pdu::<LoginResponse>().status.get(), 0x0200);
    }
}

#[test]
fn a_stage_that_was_left_does_not_come_back() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x81), &names(&[]));
    bench.got();
    bench.feed(Bench::login_request(0x81), &[]);
    assert_eq!(bench.one().as_pdu::<LoginResponse>().status.get(), 0x0200);
}

#[test]
fn text_is_collected_over_several_requests_and_answered_over_several() {
    let mut bench = Bench::new(Options::default());
    let mut text = names(&[]);
    for i in 0..500 {
        text.extend(format!("X-key-{i}=1\0").into_bytes());
    }
    let (first, second) = text.split_at(5001);
    bench.feed(Bench::login_request(0x44), first);
    let got = bench.one();
    assert_eq!((got.as_pdu::<LoginResponse>().flags, got.data.len()), (0x04, 0));
    bench.feed(Bench::login_request(0x87), second);
    let got = bench.one();
    assert_eq!(got.as_pdu::<LoginResponse>().flags, 0x44);
    assert_eq!(got.data.len(), 8192);
    bench.feed(Bench::login_request(0x87), &[]);
    assert!(matches!(bench.events.pop(), Some(Event::LoginFinished(_))));
    bench.with(|c, tx| c.admit(1, tx));
    let rest = bench.one();
    let mut all = got.data.clone();
    all.extend(&rest.data);
    let whole = Got { bhs: rest.bhs, data: all };
    assert_eq!(whole.text().iter().filter(|(_, v)| v == "NotUnderstood").count(), 500);
}

#[test]
fn login_text_is_bounded() {
    let mut bench = Bench::new(Options::default());
    for _ in 0..8 {
        bench.feed(Bench::login_request(0x44), &[b'x'; 8192]);
    }
    assert_eq!(bench.got().len(), 8);
    bench.feed(Bench::login_request(0x44), b"x");
    assert_eq!(bench.one().as_pdu::<LoginResponse>().status.get(), 0x0200);
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x44), &[b'x'; 8193]);
    assert_eq!(bench.closed(), CloseReason::SegmentTooLong { len: 8193, limit: 8192 });
}

#[test]
fn a_required_digest_must_be_agreed_on() {
    let options = || Options { data_digest: DigestPolicy::Require, ..Options::default() };
    let mut bench = Bench::new(options());
    bench.feed(Bench::login_request(0x87), &names(&["DataDigest=None"]));
    assert_eq!(bench.one().as_pdu::<LoginResponse>().status.get(), 0x0200);
    let bench = Bench::ready(options(), &["DataDigest=None,CRC32C"]);
    assert!(bench.connection.negotiated().data_digest);
}

#[test]
fn a_refused_admission_is_told_and_ends_the_connection() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x87), &names(&[]));
    bench.with(|c, tx| c.refuse(LoginStatus::OutOfResources, tx));
    let got = bench.one();
    let response = got.as_pdu::<LoginResponse>();
    assert_eq!((response.flags & pdu::TRANSIT, response.status.get()), (0, 0x0302));
    assert!(bench.connection.is_closed() && bench.connection.poll_timeout().is_none());
}

#[test]
fn nothing_may_come_before_the_answer() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x87), &names(&[]));
    bench.raw(read(1, 1, 512).as_bhs());
    assert_eq!(bench.closed(), CloseReason::EarlyPdu);
}

#[test]
fn a_login_has_a_time_limit() {
    let mut bench = Bench::new(Options::default());
    bench.feed(Bench::login_request(0x04), &names(&[]));
    let limit = bench.connection.poll_timeout().unwrap();
    assert_eq!(limit, Options::default().login_timeout);
    bench.now = limit - Duration::from_millis(1);
    bench.timeout();
    assert!(!bench.connection.is_closed());
    bench.now = limit;
    bench.timeout();
    assert_eq!(bench.closed(), CloseReason::LoginTimeout);
}

#[test]
fn a_second_login_is_an_error() {
    let mut bench = Bench::ready(Options::default(), &[]);
    bench.feed(Bench::login_request(0x87), &[]);
    assert_eq!(bench.closed(), CloseReason::LoginAgain);
}
