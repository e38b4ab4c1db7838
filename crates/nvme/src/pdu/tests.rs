use super::*;
use crate::digest::{DIGEST_LEN, crc32c};
use alloc::vec::Vec;
use core::mem::{offset_of, size_of};
use proptest::prelude::*;

const TYPES: [Type; 9] = [
    Type::IcReq,
    Type::IcResp,
    Type::H2cTermReq,
    Type::C2hTermReq,
    Type::CapsuleCmd,
    Type::CapsuleResp,
    Type::H2cData,
    Type::C2hData,
    Type::R2t,
];

fn rules(sender: Sender, framing: Framing) -> Rules {
    Rules { sender, framing, max_capsule: 8192, max_data: 65_536 }
}

#[test]
fn fields_are_where_the_specification_has_them() {
    assert_eq!(size_of::<Common>(), COMMON_LEN);
    assert_eq!(offset_of!(Common, plen), 4);
    assert_eq!(size_of::<IcReq>(), Type::IcReq.header_len());
    assert_eq!(
        (offset_of!(IcReq, pfv), offset_of!(IcReq, hpda), offset_of!(IcReq, dgst)),
        (8, 10, 11)
    );
    assert_eq!(offset_of!(IcReq, maxr2t), 12);
    assert_eq!(size_of::<IcResp>(), Type::IcResp.header_len());
    assert_eq!((offset_of!(IcResp, cpda), offset_of!(IcResp, dgst)), (10, 11));
    assert_eq!(offset_of!(IcResp, maxh2cdata), 12);
    assert_eq!(size_of::<TermReq>(), Type::H2cTermReq.header_len());
    assert_eq!((offset_of!(TermReq, fes), offset_of!(TermReq, fei)), (8, 10));
    assert_eq!(size_of::<CapsuleCmd>(), Type::CapsuleCmd.header_len());
    assert_eq!(size_of::<CapsuleResp>(), Type::CapsuleResp.header_len());
    assert_eq!(size_of::<Data>(), Type::H2cData.header_len());
    assert_eq!((offset_of!(Data, cccid), offset_of!(Data, ttag)), (8, 10));
    assert_eq!((offset_of!(Data, datao), offset_of!(Data, datal)), (12, 16));
    assert_eq!(size_of::<R2t>(), Type::R2t.header_len());
    assert_eq!((offset_of!(R2t, r2to), offset_of!(R2t, r2tl)), (12, 16));
}

/// The start of a connection as Linux 6.12 sends it.
#[test]
fn connection_request_of_linux_is_understood() {
    let mut bytes = [0; 128];
    bytes[..16].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]);
    let request = IcReq::view(&bytes).expect("enough bytes");
    let layout = request.common.layout(&rules(Sender::Host, Framing::default()));
    assert_eq!(layout.map(|layout| (layout.kind, layout.head)), Ok((Type::IcReq, 128)));
    assert_eq!(request.dgst, DGST_HEADER | DGST_DATA);
    assert_eq!((request.pfv.get(), request.hpda, request.maxr2t.get()), (0, 0, 0));
}

#[test]
fn response_without_data_may_say_where_it_would_be() {
    let common = Common { kind: 5, flags: 0, hlen: 24, pdo: 24, plen: U32::new(24) };
    assert!(common.layout(&rules(Sender::Controller, Framing::default())).is_ok());
}

/// Each field that may be wrong: what is changed in a good header, and what that is.
#[test]
fn errors_name_the_lowest_wrong_field() {
    let good = Common { kind: 6, flags: 0, hlen: 24, pdo: 24, plen: U32::new(24 + 512) };
    let plain = rules(Sender::Host, Framing::default());
    assert!(good.layout(&plain).is_ok());
    let check = |common: Common, error: PduError, fatal: (FatalError, u32)| {
        assert_eq!(common.layout(&plain), Err(error));
        assert_eq!(error.fatal(), fatal);
    };
    let field = |offset| (FatalError::HeaderField, offset);
    check(Common { kind: 8, ..good }, PduError::Type(8), field(0));
    // A type of the other end.
    check(Common { kind: 7, ..good }, PduError::Type(7), field(0));
    check(Common { flags: HDGSTF, ..good }, PduError::Flags(1), field(1));
    check(Common { flags: DDGSTF, ..good }, PduError::Flags(2), field(1));
    check(Common { flags: SUCCESS, ..good }, PduError::Flags(8), field(1));
    check(Common { flags: 0x80, ..good }, PduError::Flags(0x80), field(1));
    check(Common { hlen: 25, ..good }, PduError::HeaderLen(25), field(2));
    check(Common { pdo: 20, ..good }, PduError::DataOffset(20), field(3));
    check(Common { pdo: 26, ..good }, PduError::DataOffset(26), field(3));
    check(Common { plen: U32::new(23), ..good }, PduError::Len(23), field(4));
    let long = PduError::TooLong(65_537);
    check(Common { plen: U32::new(24 + 65_537), ..good }, long, (FatalError::LimitExceeded, 0));
    let most = Common { plen: U32::MAX_VALUE, ..good };
    assert!(matches!(most.layout(&plain), Err(PduError::TooLong(_))));
    let digest = PduError::HeaderDigest([1, 2, 3, 4]);
    assert_eq!(digest.fatal(), (FatalError::HeaderDigest, 0x0403_0201));
}

#[test]
fn agreed_digests_must_be_there() {
    let framing = Framing { header_digest: true, data_digest: true, alignment: 0 };
    let strict = rules(Sender::Host, framing);
    let common = Common { kind: 6, flags: 3, hlen: 24, pdo: 28, plen: U32::new(28 + 512 + 4) };
    let layout = common.layout(&strict).expect("a good header");
    assert_eq!((layout.head, layout.gap, layout.data, layout.data_digest), (28, 0, 512, true));
    for flags in 0..3 {
        let common = Common { flags, ..common };
        assert_eq!(common.layout(&strict), Err(PduError::Flags(flags)));
    }
    // A capsule without data has no data digest.
    let common = Common { kind: 4, flags: 1, hlen: 72, pdo: 0, plen: U32::new(76) };
    assert_eq!(common.layout(&strict).map(|layout| layout.data), Ok(0));
}

#[test]
fn success_is_for_the_last_data_only() {
    let plain = rules(Sender::Controller, Framing::default());
    let common = Common { kind: 7, flags: SUCCESS, hlen: 24, pdo: 24, plen: U32::new(536) };
    assert_eq!(common.layout(&plain), Err(PduError::Flags(SUCCESS)));
    let common = Common { flags: SUCCESS | LAST_PDU, ..common };
    assert!(common.layout(&plain).is_ok());
}

#[test]
fn termination_requests_have_no_digests_and_little_data() {
    let framing = Framing { header_digest: true, data_digest: true, alignment: 0 };
    let rules = rules(Sender::Host, framing);
    let common = |plen| Common { kind: 2, flags: 0, hlen: 24, pdo: 0, plen: U32::new(plen) };
    assert_eq!(common(24).layout(&rules).map(|layout| layout.data), Ok(0));
    assert_eq!(common(152).layout(&rules).map(|layout| layout.data), Ok(128));
    assert_eq!(common(153).layout(&rules), Err(PduError::Len(153)));
}

proptest! {
    /// What one end writes is where the other end looks for it.
    #[test]
    fn what_is_sealed_is_found(
        kind in prop::sample::select(&TYPES[..]),
        header_digest: bool,
        data_digest: bool,
        alignment in 0..=MAX_ALIGNMENT,
        data in 0u32..8192,
    ) {
        let framing = Framing { header_digest, data_digest, alignment };
        let data = match kind {
            Type::CapsuleCmd => data,
            Type::H2cData | Type::C2hData => data + 1,
            Type::H2cTermReq | Type::C2hTermReq => data % 129,
            _ => 0,
        };
        let mut header = TermReq::default();
        let layout = framing.seal(&mut header, kind, 0, data);
        let found = header.common.layout(&rules(kind.sender(), framing));
        prop_assert_eq!(found, Ok(layout));
        let bytes = std::vec![0x5a; kind.header_len()];
        let mut wire = Vec::new();
        layout.write(&bytes, |piece| wire.extend_from_slice(piece));
        prop_assert_eq!(wire.len(), layout.head + layout.gap);
        if data > 0 && kind.has_data() {
            prop_assert_eq!(wire.len() % ((usize::from(alignment) + 1) * 4), 0);
        }
        if layout.header_digest {
            prop_assert_eq!(&wire[layout.head - DIGEST_LEN..layout.head], &crc32c(&bytes));
        }
        let tail = if layout.data_digest { DIGEST_LEN } else { 0 };
        prop_assert_eq!(wire.len() + layout.data + tail, header.common.plen.get() as usize);
    }

    /// Any header has a layout within its own length, or an error.
    #[test]
    fn any_header_is_judged(bytes: [u8; 8], header_digest: bool, data_digest: bool, alignment in 0..=MAX_ALIGNMENT, host: bool) {
        let common = Common::read_from_bytes(&bytes).expect("eight bytes");
        let sender = if host { Sender::Host } else { Sender::Controller };
        let framing = Framing { header_digest, data_digest, alignment };
        if let Ok(layout) = common.layout(&rules(sender, framing)) {
            let tail = if layout.data_digest { DIGEST_LEN } else { 0 };
            let all = layout.head + layout.gap + layout.data + tail;
            prop_assert_eq!(all, common.plen.get() as usize);
            prop_assert!(layout.head <= 128 + DIGEST_LEN && layout.data <= 65_536);
        }
    }
}
