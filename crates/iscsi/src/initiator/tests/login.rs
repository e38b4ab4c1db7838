use super::*;
use crate::keys::Key;
use crate::pdu::{CONTINUE, LoginRequest, LoginStatus};

const OPERATIONAL: &[u8] = b"HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength=1024\0\
    InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=4096\0FirstBurstLength=2048\0\
    MaxOutstandingR2T=3\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0MaxConnections=1\0\
    ErrorRecoveryLevel=0\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0TargetPortalGroupTag=9\0";

#[test]
fn a_normal_login_goes_through_two_stages() {
    let mut bench = Bench::new(options());
    let sent = bench.sent();
    let first: &LoginRequest = sent[0].view();
    assert_eq!(first.opcode, 0x43);
    assert_eq!(first.flags, 0x81);
    assert_eq!((first.cmd_sn.get(), first.exp_stat_sn.get()), (1, 0));
    assert_eq!(sent[0].value("TargetName").as_deref(), Some(TARGET));
    assert_eq!(sent[0].value("SessionType").as_deref(), Some("Normal"));
    assert_eq!(sent[0].value("AuthMethod").as_deref(), Some("None"));

    bench.login(Stage::Security, Some(Stage::Operational), b"AuthMethod=None\0");
    let sent = bench.sent();
    let second: &LoginRequest = sent[0].view();
    assert_eq!(second.flags, 0x87);
    assert_eq!((second.cmd_sn.get(), second.exp_stat_sn.get()), (1, 501));
    assert_eq!(sent[0].value("InitialR2T").as_deref(), Some("No"));
    assert_eq!(sent[0].value("MaxBurstLength").as_deref(), Some("16777215"));

    bench.login(Stage::Operational, Some(Stage::FullFeature), OPERATIONAL);
    let Some(Event::LoggedIn(info)) = bench.events().pop() else { panic!("not logged in") };
    assert_eq!((info.tsih, info.portal_group_tag), (7, Some(9)));
    let agreed = info.negotiated;
    assert_eq!(agreed.target_max_recv_data_segment_length, 1024);
    assert_eq!((agreed.max_burst_length, agreed.first_burst_length), (4096, 2048));
    assert_eq!((agreed.initial_r2t, agreed.immediate_data), (false, true));
    assert_eq!(agreed.max_outstanding_r2t, 3);
    assert!(bench.connection.is_ready());
    assert_eq!(bench.connection.window(), 32);
}

#[test]
fn keys_without_an_answer_keep_their_default() {
    let bench = Bench::logged_in(options(), b"");
    let agreed = bench.connection.negotiated();
    assert_eq!(agreed.target_max_recv_data_segment_length, 8192);
    assert_eq!((agreed.max_burst_length, agreed.first_burst_length), (262_144, 65536));
    assert_eq!((agreed.initial_r2t, agreed.immediate_data), (true, true));
    assert_eq!(agreed.max_outstanding_r2t, 1);
    assert!(!agreed.header_digest && !agreed.data_digest);
}

#[test]
fn a_discovery_session_offers_no_keys_of_normal_sessions() {
    let mut bench = Bench::new(Options::new("iqn.2026-11.local.lunet:initiator", None));
    let first = bench.sent().remove(0);
    assert_eq!(first.value("SessionType").as_deref(), Some("Discovery"));
    assert_eq!(first.value("TargetName"), None);
    bench.login(Stage::Security, Some(Stage::Operational), b"AuthMethod=None\0");
    for (key, _) in bench.sent().remove(0).text() {
        assert!(!Key::from_name(&key).expect("a known key").normal_sessions_only(), "{key}");
    }
}

#[test]
fn answers_that_the_offer_does_not_allow_are_refused() {
    let set = |change: fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        options
    };
    let offer = set(|o| {
        o.header_digest = DigestOffer::PreferCrc32c;
        o.initial_r2t = true;
        o.immediate_data = false;
        o.max_burst_length = 8192;
        o.time2wait = 5;
    });
    let cases: [(&[u8], Key); 13] = [
        (b"HeaderDigest=CRC32C,None\0", Key::HeaderDigest),
        (b"InitialR2T=No\0", Key::InitialR2T),
        (b"ImmediateData=Yes\0", Key::ImmediateData),
        (b"ImmediateData=yes\0", Key::ImmediateData),
        (b"MaxBurstLength=8193\0", Key::MaxBurstLength),
        (b"MaxBurstLength=511\0", Key::MaxBurstLength),
        (b"MaxBurstLength=1024\0MaxBurstLength=1024\0", Key::MaxBurstLength),
        (b"MaxRecvDataSegmentLength=16777216\0", Key::MaxRecvDataSegmentLength),
        (b"DefaultTime2Wait=4\0", Key::DefaultTime2Wait),
        (b"ErrorRecoveryLevel=1\0", Key::ErrorRecoveryLevel),
        (b"MaxConnections=2\0", Key::MaxConnections),
        (b"DataPDUInOrder=No\0", Key::DataPDUInOrder),
        (b"InitiatorName=iqn.x\0", Key::InitiatorName),
    ];
    for (answer, key) in cases {
        let mut bench = Bench::new(offer.clone());
        bench.login(Stage::Security, Some(Stage::Operational), b"");
        bench.login(Stage::Operational, Some(Stage::FullFeature), answer);
        assert_eq!(bench.failure(), Error::Answer(key));
    }
    let require = set(|o| o.data_digest = DigestOffer::Crc32c);
    for answer in [&b"DataDigest=None\0"[..], b"DataDigest=Reject\0", b""] {
        let mut bench = Bench::new(require.clone());
        bench.login(Stage::Security, Some(Stage::Operational), b"");
        bench.login(Stage::Operational, Some(Stage::FullFeature), answer);
        assert_eq!(bench.failure(), Error::Answer(Key::DataDigest));
    }
}

#[test]
fn a_demand_for_authentication_is_told() {
    let mut bench = Bench::new(options());
    bench.login(Stage::Security, None, b"AuthMethod=CHAP\0");
    assert_eq!(bench.failure(), Error::Authentication("CHAP".to_string()));
}

#[test]
fn a_redirection_names_the_new_address() {
    let mut bench = Bench::new(options());
    let pdu = LoginResponse {
        isid: bench.connection.options.isid,
        status: LoginStatus::MovedTemporarily.code().into(),
        ..Default::default()
    };
    bench.answer(&pdu, b"TargetAddress=192.0.2.7:3260,2\0");
    let address = Some("192.0.2.7:3260,2".to_string());
    assert_eq!(bench.failure(), Error::LoginRefused { status: 0x0101, address });
}

#[test]
fn wrong_headers_are_refused() {
    let good = LoginResponse { flags: 0x81, isid: options().isid, ..Default::default() };
    let cases = [
        (LoginResponse { isid: [9; 6], ..good }, Error::LoginResponse("ISID")),
        (LoginResponse { version_active: 1, ..good }, Error::LoginResponse("version")),
        (LoginResponse { flags: 0x87, ..good }, Error::LoginResponse("current stage")),
        (LoginResponse { flags: 0x83, ..good }, Error::LoginResponse("next stage")),
        (LoginResponse { flags: 0xc1, ..good }, Error::LoginResponse("combination of flags")),
        (LoginResponse { itt: 5.into(), ..good }, Error::NoSuchTask(5)),
    ];
    for (pdu, error) in cases {
        let mut bench = Bench::new(options());
        bench.answer(&pdu, b"");
        assert_eq!(bench.failure(), error);
    }
    let mut bench = Bench::new(Options { skip_security: true, ..options() });
    bench.answer(&LoginResponse { flags: 0x87, ..good }, b"");
    assert_eq!(bench.failure(), Error::LoginResponse("TSIH"));
}

#[test]
fn long_key_data_goes_in_pieces() {
    let extra_keys = (0..600).map(|i| (alloc::format!("X-{i}"), "v".repeat(20))).collect();
    let mut bench = Bench::new(Options { skip_security: true, extra_keys, ..options() });
    let first = bench.sent().remove(0);
    assert_eq!(first.view::<LoginRequest>().flags, CONTINUE | 0x04);
    assert_eq!(first.data.len(), 8192);
    bench.login(Stage::Operational, None, b"");
    let second = bench.sent().remove(0);
    assert_eq!(second.view::<LoginRequest>().flags, CONTINUE | 0x04);
    bench.login(Stage::Operational, None, b"");
    let third = bench.sent().remove(0);
    assert_eq!(third.view::<LoginRequest>().flags, 0x87);
    let whole = [first.data, second.data, third.data].concat();
    assert_eq!(crate::text::pairs(&whole).filter(Result::is_ok).count(), 617);
}

#[test]
fn answers_in_pieces_and_offers_of_the_target_are_taken() {
    let mut bench = Bench::new(Options { skip_security: true, ..options() });
    bench.sent();
    let piece =
        LoginResponse { flags: CONTINUE | 0x04, isid: options().isid, ..Default::default() };
    bench.answer(&piece, b"MaxBurstLength=10");
    assert_eq!(bench.sent()[0].view::<LoginRequest>().flags, 0x04);
    bench.login(Stage::Operational, None, b"24\0X-color=blue\0IFMarker=No\0");
    let sent = bench.sent().remove(0);
    assert_eq!(sent.view::<LoginRequest>().flags, 0x87);
    assert_eq!(sent.value("X-color").as_deref(), Some("NotUnderstood"));
    assert_eq!(sent.value("IFMarker").as_deref(), Some("No"));
    bench.login(Stage::Operational, Some(Stage::FullFeature), b"");
    assert_eq!(bench.connection.negotiated().max_burst_length, 1024);
}

#[test]
fn a_login_that_makes_no_progress_ends() {
    let mut bench = Bench::new(options());
    while !bench.connection.is_over() {
        bench.login(Stage::Security, None, b"");
        assert!(bench.stat_sn < 600);
    }
    assert_eq!(bench.failure(), Error::LoginRounds);

    let mut bench = Bench::new(options());
    bench.wait(Duration::from_secs(14));
    assert!(bench.events.is_empty());
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.failure(), Error::LoginTimeout);
}
