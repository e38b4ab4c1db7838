//! Logins over RDMA.

use super::*;

#[test]
fn a_login_of_open_iscsi() {
    let mut bench = over_rdma(RDMA);
    let keys = [LINUX, &["HeaderDigest=CRC32C,None", "X-unknown=1", "InitialR2T=No"]].concat();
    let answers = login(&mut bench, &keys);
    let value = |key: &str| answers.iter().find(|(name, _)| name == key).map(|(_, v)| v.as_str());
    assert_eq!(value("RDMAExtensions"), Some("Yes"));
    assert_eq!(value("InitiatorRecvDataSegmentLength"), Some("262144"));
    assert_eq!(value("TargetRecvDataSegmentLength"), Some("8192"));
    assert_eq!(value("HeaderDigest"), Some("None"));
    assert_eq!(value("X-unknown"), Some("NotUnderstood"));
    // open-iscsi fails on keys that it has not offered.
    assert_eq!(value("MaxRecvDataSegmentLength"), None);
    assert_eq!(value("MaxOutstandingUnexpectedPDUs"), None);
    let pairs = bench.connection.negotiated().pairs();
    assert!(pairs.contains(&("RDMAExtensions", "Yes".to_string())));
    assert!(bench.connection.is_rdma());
}

#[test]
fn a_login_of_libiscsi() {
    let mut bench = over_rdma(RDMA);
    let keys = ["HeaderDigest=None,CRC32C", "MaxRecvDataSegmentLength=262144", "ImmediateData=Yes"];
    let answers = login(&mut bench, &keys);
    let value = |key: &str| answers.iter().find(|(name, _)| name == key).map(|(_, v)| v.as_str());
    assert_eq!(value("MaxRecvDataSegmentLength"), Some("8192"));
    assert_eq!((value("RDMAExtensions"), value("HeaderDigest")), (None, Some("None")));
    let agreed = bench.connection.negotiated();
    // What it declares, it has no buffers for.
    assert_eq!((agreed.initiator_max_recv, agreed.target_max_recv), (8192, 8192));
    feed(&mut bench, reads(), &read(5, 1, 512), &[]);
    assert_eq!(bench.command().expects_read, 512);
}

#[test]
fn declarations_are_taken_and_answered_where_they_should() {
    let mut bench = over_rdma(RDMA);
    let keys = [
        "RDMAExtensions=Yes",
        "TargetRecvDataSegmentLength=100000",
        "MaxOutstandingUnexpectedPDUs=6",
        "MaxAHSLength=4294967295",
        "TaggedBufferForSolicitedDataOnly=No",
        "iSERHelloRequired=maybe",
    ];
    let answers = login(&mut bench, &keys);
    let answers: Vec<(&str, &str)> =
        answers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert!(answers.contains(&("TargetRecvDataSegmentLength", "8192")));
    assert!(answers.contains(&("MaxOutstandingUnexpectedPDUs", "32")));
    assert!(answers.contains(&("iSERHelloRequired", "Reject")));
    assert!(!answers.iter().any(|(key, _)| key.starts_with("MaxAHS") || key.starts_with("Tagged")));
    let terms = bench.connection.negotiated().rdma.unwrap();
    assert_eq!((terms.max_unexpected, terms.solicited_only), (6, false));
}

#[test]
fn a_stream_does_not_understand_the_keys_of_rdma() {
    let mut bench = Bench::new(Options::default());
    let answers = {
        let names = ["InitiatorName=iqn.2026-11.local.lunet:i", "SessionType=Discovery"];
        let got = bench.login(0x87, &[&names, LINUX].concat());
        assert!(got.is_empty());
        bench.with(|connection, tx| connection.admit(9, tx));
        bench.one().text()
    };
    for key in LINUX {
        let name = key.split('=').next().unwrap();
        assert!(answers.contains(&(name.to_string(), "NotUnderstood".to_string())), "{name}");
    }
    assert!(bench.connection.negotiated().rdma.is_none());
}

#[test]
fn who_wants_no_rdma_is_refused() {
    let mut bench = over_rdma(RDMA);
    let names =
        [alloc::format!("InitiatorName={INITIATOR}"), alloc::format!("TargetName={TARGET}")];
    let keys = [names[0].as_str(), names[1].as_str(), "RDMAExtensions=No"];
    feed(&mut bench, Header::default(), &Bench::login_request(0x87), &text_of(&keys));
    let (answer, _) = one(&mut bench);
    let status = answer.as_pdu::<pdu::LoginResponse>().status.get();
    assert_eq!(status, LoginStatus::InitiatorError.code());
    assert_eq!(bench.closed(), CloseReason::LoginRefused(status));
}
