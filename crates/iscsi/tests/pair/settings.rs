//! Random options of both ends.

use std::time::Duration;

use lunet_iscsi::initiator::{DigestOffer, Options as InitiatorOptions, Unsolicited};
use lunet_iscsi::target::{DigestPolicy, Options as TargetOptions};
use proptest::prelude::*;
use proptest::sample::select;

pub const TARGET: &str = "iqn.2026-11.local.lunet:pair";
pub const INITIATOR: &str = "iqn.2026-11.local.lunet:initiator";

/// Lengths that make segments tiny, odd or larger than any command.
fn length() -> impl Strategy<Value = u32> {
    select(vec![512, 1000, 4096, 5001, 65536, (1 << 24) - 1])
}

fn offer() -> impl Strategy<Value = DigestOffer> {
    use DigestOffer::{Crc32c, None, PreferCrc32c, PreferNone};
    select(vec![None, Crc32c, PreferCrc32c, PreferNone])
}

fn policy() -> impl Strategy<Value = DigestPolicy> {
    use DigestPolicy::{Allow, Forbid, Require};
    select(vec![Allow, Require, Forbid])
}

/// The result of a digest negotiation; `None`: the login fails.
pub fn digest(offer: DigestOffer, policy: DigestPolicy) -> Option<bool> {
    match (offer, policy) {
        (DigestOffer::None, DigestPolicy::Require)
        | (DigestOffer::Crc32c, DigestPolicy::Forbid) => None,
        (DigestOffer::None, _) | (_, DigestPolicy::Forbid) => Some(false),
        (DigestOffer::Crc32c | DigestOffer::PreferCrc32c, _) | (_, DigestPolicy::Require) => {
            Some(true)
        }
        (DigestOffer::PreferNone, DigestPolicy::Allow) => Some(false),
    }
}

pub fn base_initiator() -> InitiatorOptions {
    InitiatorOptions::new(INITIATOR, Some(TARGET))
}

prop_compose! {
    pub fn initiator()(
        digests in (offer(), offer()),
        lengths in (length(), length(), length()),
        r2t in select(vec![1u16, 2, 7]),
        flags in any::<(bool, bool, bool)>(),
        unsolicited in select(vec![
            Unsolicited::Full, Unsolicited::Full, Unsolicited::ImmediateOnly,
            Unsolicited::SeparateOnly, Unsolicited::Nothing,
        ]),
        first_cmd_sn in select(vec![0, 1, u32::MAX - 3]),
        ping in select(vec![None, Some(Duration::from_millis(700))]),
    ) -> InitiatorOptions {
        InitiatorOptions {
            header_digest: digests.0,
            data_digest: digests.1,
            max_recv_data_segment_length: lengths.0,
            max_burst_length: lengths.1,
            first_burst_length: lengths.2,
            max_outstanding_r2t: r2t,
            immediate_data: flags.0,
            initial_r2t: flags.1,
            skip_security: flags.2,
            unsolicited,
            first_cmd_sn,
            ping_interval: ping,
            ..base_initiator()
        }
    }
}

prop_compose! {
    pub fn target()(
        digests in (policy(), policy()),
        lengths in (length(), length(), length()),
        r2t in select(vec![1u16, 2, 7]),
        flags in any::<(bool, bool)>(),
        queue_depth in select(vec![1u32, 3, 32]),
        ping in select(vec![Duration::ZERO, Duration::from_millis(900)]),
    ) -> TargetOptions {
        TargetOptions {
            header_digest: digests.0,
            data_digest: digests.1,
            max_recv_data_segment_length: lengths.0,
            max_burst_length: lengths.1,
            first_burst_length: lengths.2,
            max_outstanding_r2t: r2t,
            immediate_data: flags.0,
            initial_r2t: flags.1,
            queue_depth,
            ping_interval: ping,
            ..TargetOptions::default()
        }
    }
}
