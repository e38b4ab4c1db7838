use super::*;
use proptest::prelude::*;

fn offer(options: &Options, key: Key, value: &str) -> (Option<Cow<'static, str>>, Negotiated) {
    let mut negotiated = Negotiated::default();
    let result = answer(&mut negotiated, options, false, key, value);
    (result, negotiated)
}

fn result(key: Key, value: &str) -> Option<Cow<'static, str>> {
    offer(&Options::default(), key, value).0
}

#[test]
fn an_initiator_that_offers_nothing_gets_the_defaults_of_rfc_7143() {
    let n = Negotiated::default();
    assert!(n.initial_r2t && n.immediate_data && !n.header_digest && !n.data_digest);
    assert_eq!((n.max_burst_length, n.first_burst_length), (262_144, 65_536));
    assert_eq!((n.initiator_max_recv, n.max_outstanding_r2t), (8192, 1));
    assert_eq!((n.time2wait, n.time2retain, n.protocol_level), (2, 20, 1));
}

#[test]
fn booleans_follow_or_and_and() {
    let both =
        |initial_r2t, immediate_data| Options { initial_r2t, immediate_data, ..Options::default() };
    let table = [
        (Key::InitialR2T, false, "No", "No"),
        (Key::InitialR2T, false, "Yes", "Yes"),
        (Key::InitialR2T, true, "No", "Yes"),
        (Key::InitialR2T, true, "Yes", "Yes"),
        (Key::ImmediateData, false, "No", "No"),
        (Key::ImmediateData, false, "Yes", "No"),
        (Key::ImmediateData, true, "No", "No"),
        (Key::ImmediateData, true, "Yes", "Yes"),
    ];
    for (key, ours, theirs, expected) in table {
        let (answer, n) = offer(&both(ours, ours), key, theirs);
        assert_eq!(answer.as_deref(), Some(expected), "{key} {ours} {theirs}");
        let kept = if key == Key::InitialR2T { n.initial_r2t } else { n.immediate_data };
        assert_eq!(yes_no(kept), expected);
    }
    assert_eq!(result(Key::DataPDUInOrder, "No").as_deref(), Some("Yes"));
    assert_eq!(result(Key::DataSequenceInOrder, "No").as_deref(), Some("Yes"));
    assert_eq!(result(Key::InitialR2T, "maybe").as_deref(), Some(REJECT));
}

#[test]
fn numbers_follow_minimum_and_maximum_within_their_range() {
    let table = [
        (Key::MaxBurstLength, "1048576", "1048576"),
        (Key::MaxBurstLength, "16777215", "16776192"),
        (Key::MaxBurstLength, "511", REJECT),
        (Key::FirstBurstLength, "0x10000", "65536"),
        (Key::FirstBurstLength, "16777215", "262144"),
        (Key::MaxOutstandingR2T, "1", "1"),
        (Key::MaxOutstandingR2T, "16", "8"),
        (Key::MaxOutstandingR2T, "0", REJECT),
        (Key::DefaultTime2Wait, "0", "2"),
        (Key::DefaultTime2Wait, "60", "60"),
        (Key::DefaultTime2Retain, "20", "0"),
        (Key::ErrorRecoveryLevel, "2", "0"),
        (Key::ErrorRecoveryLevel, "3", REJECT),
        (Key::MaxConnections, "8", "1"),
        (Key::ISCSIProtocolLevel, "2", "1"),
        (Key::ISCSIProtocolLevel, "0", "0"),
    ];
    for (key, theirs, expected) in table {
        assert_eq!(result(key, theirs).as_deref(), Some(expected), "{key}={theirs}");
    }
}

#[test]
fn the_initiators_order_of_digests_counts_within_the_policy() {
    let with =
        |policy| Options { header_digest: policy, data_digest: policy, ..Options::default() };
    let table = [
        (DigestPolicy::Allow, "CRC32C,None", "CRC32C"),
        (DigestPolicy::Allow, "None,CRC32C", "None"),
        (DigestPolicy::Allow, "X-other,CRC32C", "CRC32C"),
        (DigestPolicy::Allow, "X-other", REJECT),
        (DigestPolicy::Require, "None,CRC32C", "CRC32C"),
        (DigestPolicy::Require, "None", REJECT),
        (DigestPolicy::Forbid, "CRC32C,None", "None"),
        (DigestPolicy::Forbid, "CRC32C", REJECT),
    ];
    for (policy, theirs, expected) in table {
        let (answer, n) = offer(&with(policy), Key::HeaderDigest, theirs);
        assert_eq!(answer.as_deref(), Some(expected), "{policy:?} {theirs}");
        assert_eq!(n.header_digest, expected == "CRC32C");
        assert!(!n.data_digest);
        assert_eq!(offer(&with(policy), Key::DataDigest, theirs).1.data_digest, n.header_digest);
    }
}

#[test]
fn a_declaration_has_no_answer_unless_it_is_out_of_range() {
    let (answer, n) = offer(&Options::default(), Key::MaxRecvDataSegmentLength, "262144");
    assert_eq!((answer, n.initiator_max_recv), (None, 262_144));
    let (answer, n) = offer(&Options::default(), Key::MaxRecvDataSegmentLength, "100");
    assert_eq!((answer.as_deref(), n.initiator_max_recv), (Some(REJECT), 8192));
}

#[test]
fn withdrawn_keys_and_task_reporting_are_answered() {
    assert_eq!(result(Key::IFMarker, "Yes").as_deref(), Some("No"));
    assert_eq!(result(Key::OFMarkInt, "1~2").as_deref(), Some(REJECT));
    assert_eq!(result(Key::TaskReporting, "FastAbort,RFC3720").as_deref(), Some("RFC3720"));
    assert_eq!(result(Key::TaskReporting, "FastAbort").as_deref(), Some(REJECT));
}

#[test]
fn keys_of_normal_sessions_are_irrelevant_to_discovery() {
    let mut n = Negotiated::default();
    let options = Options::default();
    let mut ask = |key, value| answer(&mut n, &options, true, key, value);
    assert_eq!(ask(Key::MaxBurstLength, "512").as_deref(), Some(IRRELEVANT));
    assert_eq!(ask(Key::HeaderDigest, "None").as_deref(), Some("None"));
    assert_eq!(n.max_burst_length, 262_144);
}

proptest! {
    #[test]
    fn any_value_is_answered_and_never_widens_an_agreement(
        index in 0..Key::ALL.len(),
        value in prop_oneof![".{0,20}", "[0-9]{1,10}", "(Yes|No|None|CRC32C)(,(None|CRC32C))?"],
        discovery: bool,
    ) {
        let options = Options::default();
        let mut n = Negotiated::default();
        let _ = answer(&mut n, &options, discovery, Key::ALL[index], &value);
        prop_assert!(n.max_burst_length <= options.max_burst_length.max(262_144));
        prop_assert!((512..1 << 24).contains(&n.initiator_max_recv));
        prop_assert!(n.max_outstanding_r2t >= 1 && n.max_outstanding_r2t <= options.max_outstanding_r2t);
    }
}
