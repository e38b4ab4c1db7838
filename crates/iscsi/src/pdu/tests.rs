use super::*;
use alloc::vec::Vec;
use core::mem::{offset_of, size_of};
use proptest::prelude::*;

#[test]
fn fields_stand_where_rfc_7143_section_11_puts_them() {
    assert_eq!(offset_of!(ScsiCommand, expected_len), 20);
    assert_eq!(offset_of!(ScsiCommand, cdb), 32);
    assert_eq!(offset_of!(TmfRequest, ref_cmd_sn), 32);
    assert_eq!(offset_of!(LoginRequest, isid), 8);
    assert_eq!(offset_of!(LoginRequest, tsih), 14);
    assert_eq!(offset_of!(LoginRequest, cid), 20);
    assert_eq!(offset_of!(LoginRequest, cmd_sn), 24);
    assert_eq!(offset_of!(LoginResponse, status), 36);
    assert_eq!(offset_of!(DataOut, exp_stat_sn), 28);
    assert_eq!(offset_of!(DataOut, data_sn), 36);
    assert_eq!(offset_of!(DataOut, offset), 40);
    assert_eq!(offset_of!(DataIn, status), 3);
    assert_eq!(offset_of!(DataIn, data_sn), 36);
    assert_eq!(offset_of!(DataIn, residual), 44);
    assert_eq!(offset_of!(ScsiResponse, exp_data_sn), 36);
    assert_eq!(offset_of!(ScsiResponse, bidi_residual), 40);
    assert_eq!(offset_of!(ScsiResponse, residual), 44);
    assert_eq!(offset_of!(R2t, r2t_sn), 36);
    assert_eq!(offset_of!(R2t, desired_len), 44);
    assert_eq!(offset_of!(AsyncMessage, event), 36);
    assert_eq!(offset_of!(AsyncMessage, parameter3), 42);
    assert_eq!(offset_of!(LogoutResponsePdu, time2wait), 40);
    assert_eq!(offset_of!(SnackRequest, begin), 40);
    assert_eq!(offset_of!(Reject, data_sn), 36);
    assert_eq!(offset_of!(NopOut, cmd_sn), 24);
    assert_eq!(offset_of!(NopIn, max_cmd_sn), 32);
    assert_eq!(offset_of!(TextRequest, ttt), 20);
    assert_eq!(offset_of!(TextResponse, stat_sn), 24);
    assert_eq!(offset_of!(TmfResponsePdu, response), 2);
    assert_eq!(offset_of!(BasicHeader, data_len), 5);
    assert_eq!(size_of::<BasicHeader>(), BHS_LEN);
}

#[test]
fn a_command_encodes_to_the_bytes_of_the_specification() {
    let pdu = ScsiCommand {
        flags: FINAL | WRITE | TaskAttribute::Simple.code(),
        data_len: U24::new(0x01_0203),
        lun: U64::new(0x0001_0000_0000_0000),
        itt: U32::new(0x1122_3344),
        expected_len: U32::new(4096),
        cdb: [0x2a; 16],
        ..Default::default()
    };
    let bytes = pdu.as_bhs();
    assert_eq!(bytes[..8], [0x01, 0xa1, 0, 0, 0, 1, 2, 3]);
    assert_eq!(bytes[8..24], [0, 1, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x10, 0]);
    assert_eq!(bytes[32..], [0x2a; 16]);
    assert_eq!(ScsiCommand::from_bhs(bytes), &pdu);
}

#[test]
fn stages_are_read_from_the_flags() {
    assert_eq!(Stage::current(0b1000_0111), Some(Stage::Operational));
    assert_eq!(Stage::next(0b1000_0111), Some(Stage::FullFeature));
    assert_eq!(Stage::current(0b0000_1000), None);
}

#[test]
fn wrong_additional_header_segments_are_told_apart() {
    assert_eq!(Ahs::parse(&[0, 5]), Err(AhsError::Truncated));
    assert_eq!(Ahs::parse(&[0, 9, 1, 0, 1, 2, 3, 4]), Err(AhsError::Truncated));
    assert_eq!(Ahs::parse(&[0, 1, 1, 0]), Err(AhsError::Length));
    assert_eq!(Ahs::parse(&[0, 4, 2, 0, 1, 2, 3, 0]), Err(AhsError::Length));
    let mut twice = Vec::new();
    write_bidi_read_length(&mut twice, 1);
    write_bidi_read_length(&mut twice, 2);
    assert_eq!(Ahs::parse(&twice), Err(AhsError::Duplicate));
    assert_eq!(Ahs::parse(&[0, 1, 0x3f, 0]), Ok(Ahs::default()));
}

#[test]
fn an_extended_cdb_that_does_not_fit_is_refused() {
    let mut out = Vec::new();
    assert!(!write_extended_cdb(&mut out, &[0; 1020]));
    assert!(!write_extended_cdb(&mut out, &[]));
    assert!(out.is_empty());
    assert!(write_extended_cdb(&mut out, &[0; 1016]));
    assert_eq!(out.len(), MAX_AHS_LEN);
}

proptest! {
    #[test]
    fn additional_header_segments_round_trip(
        cdb in proptest::collection::vec(any::<u8>(), 1..240),
        bidi in any::<u32>(),
    ) {
        let mut out = Vec::new();
        prop_assert!(write_extended_cdb(&mut out, &cdb));
        write_bidi_read_length(&mut out, bidi);
        prop_assert_eq!(out.len() % 4, 0);
        let ahs = Ahs::parse(&out);
        prop_assert_eq!(ahs, Ok(Ahs { extended_cdb: Some(&cdb), bidi_read_len: Some(bidi) }));
    }

    #[test]
    fn any_bytes_parse_or_fail_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
        let _ = Ahs::parse(&bytes);
    }

    #[test]
    fn every_header_round_trips(bytes in any::<[[u8; 16]; 3]>()) {
        let bhs: Bhs = core::array::from_fn(|i| bytes[i / 16][i % 16]);
        prop_assert_eq!(DataOut::from_bhs(&bhs).as_bhs(), &bhs);
        prop_assert_eq!(DataIn::from_bhs(&bhs).as_bhs(), &bhs);
        prop_assert_eq!(LoginResponse::from_bhs(&bhs).as_bhs(), &bhs);
        prop_assert_eq!(BasicHeader::from_bhs(&bhs).ahs_len() % 4, 0);
    }

    #[test]
    fn twenty_four_bits_round_trip(value in 0..=U24::MAX) {
        prop_assert_eq!(U24::new(value).get(), value);
    }
}
