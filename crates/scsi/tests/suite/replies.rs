//! The bytes of the answers that come from memory.

use crate::common::*;
use lunet_scsi::{Code, CommandIn, Designator, Identity, Target, Unit, execute};

#[test]
fn standard_inquiry() {
    let mut expected = b"\x00\x00\x06\x12\x5B\x38\x10\x02LUNET   VIRTUAL DISK    0001".to_vec();
    expected.resize(58, 0);
    expected.extend_from_slice(&[0x00, 0xA0, 0x09, 0x60, 0x04, 0x60, 0x04, 0xC0]);
    assert_eq!(data(run(&unit(), &[0x12, 0, 0, 1, 0, 0])), padded(&expected, 96));
    assert_eq!(data(run(&unit(), &[0x12, 0, 0, 0, 5, 0])), &expected[..5]);
    // MULTIP goes by the ports of the target.
    let single = Target { several_ports: false, ..target() };
    let cdb = [0x12, 0, 0, 0, 96, 0];
    let command = CommandIn { cdb: &cdb, expects_read: 96, expects_write: 0 };
    assert_eq!(data(execute(&single, Some(&unit()), None, &command))[6], 0x00);
    assert_eq!(data(run(&unit(), &[0x12, 0, 0, 0, 0, 0])), b"");
}

#[test]
fn inquiry_refuses_a_page_without_evpd_and_unknown_pages() {
    illegal(&run(&unit(), &[0x12, 0, 0x80, 0, 255, 0]), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&unit(), &[0x12, 1, 0x81, 0, 255, 0]), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&unit(), &[0x12, 2, 0, 0, 255, 0]), Code::INVALID_FIELD_IN_CDB);
}

fn vpd(unit: &lunet_scsi::Unit, page: u8) -> Vec<u8> {
    data(run(unit, &[0x12, 1, page, 0xFF, 0xFF, 0]))
}

#[test]
fn vpd_pages_lists_what_can_be_read() {
    let pages = vpd(&unit(), 0x00);
    assert_eq!(pages, [0, 0, 0, 8, 0x00, 0x80, 0x83, 0x86, 0x8F, 0xB0, 0xB1, 0xB2]);
    for page in 0..=255 {
        let task = run(&unit(), &[0x12, 1, page, 0xFF, 0xFF, 0]);
        if pages[4..].contains(&page) {
            let data = data(task);
            assert_eq!((data[0], data[1]), (0, page));
            assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
        } else {
            illegal(&task, Code::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn vpd_serial_number() {
    assert_eq!(vpd(&unit(), 0x80), b"\x00\x80\x00\x100123456789abcdef");
}

#[test]
fn vpd_device_identification() {
    let mut expected = b"\x00\x83\x00\x00".to_vec();
    // Locally assigned NAA.
    expected.extend_from_slice(b"\x01\x03\x00\x08\x30\x01\x02\x03\xDE\xAD\xBE\xEF");
    // T10 vendor ID: the volume's own 8 digits first.
    expected.extend_from_slice(b"\x02\x01\x00\x21LUNET   deadbeef-0123456789abcdef");
    // EUI-64.
    expected.extend_from_slice(b"\x01\x02\x00\x08\x02\x01\x02\x03\x04\x05\x06\x07");
    // Relative target port, target port group.
    expected.extend_from_slice(b"\x51\x94\x00\x04\x00\x00\x00\x01");
    expected.extend_from_slice(b"\x51\x95\x00\x04\x00\x00\x00\x01");
    // Names of the target port and the target, ended by a zero, padded to 4 bytes.
    expected.extend_from_slice(b"\x53\x98\x00\x28iqn.2026-11.local.lunet:demo,t,0x0001\0\0\0");
    expected.extend_from_slice(b"\x53\xA8\x00\x20iqn.2026-11.local.lunet:demo\0\0\0\0");
    expected[3] = expected.len() as u8 - 4;
    assert_eq!(vpd(&unit(), 0x83), expected);
}

#[test]
fn long_designators_are_reported_whole() {
    let mut unit = unit();
    unit.identity.naa = Designator::naa(&[0x60; 16]).unwrap();
    unit.identity.eui = Designator::eui(&[0x77; 16]);
    let page = vpd(&unit, 0x83);
    assert_eq!(page[4..24], [&[1, 3, 0, 16][..], &[0x60; 16]].concat());
    // The volume's own 8 digits are made of the whole designator.
    assert_eq!(page[24..36], *b"\x02\x01\x00\x21LUNET   ");
    let own = page[36..44].to_vec();
    assert!(own.iter().all(u8::is_ascii_hexdigit), "{own:02X?}");
    assert_eq!(page[61..81], [&[1, 2, 0, 16][..], &[0x77; 16]].concat());
    unit.identity.naa = Designator::naa(&[&[0x60; 15][..], &[0x61]].concat()).unwrap();
    assert_ne!(vpd(&unit, 0x83)[36..44], own);
}

/// The designators of a page 83h that name the unit, as type and first digit.
fn unit_designators(page: &[u8]) -> Vec<(u8, u8)> {
    let (mut rest, mut found) = (&page[4..], Vec::new());
    while let [_, kind, _, len, designator @ ..] = rest {
        if kind & 0x30 == 0 {
            found.push((kind & 0x0F, designator[0] >> 4));
        }
        rest = &designator[usize::from(*len)..];
    }
    found
}

#[test]
fn linux_names_a_unit_by_its_naa_designator() {
    let unit = Unit { identity: Identity::from_seed("a"), ..unit() };
    // No EUI-64, and an NAA designator of the form that udev, the kernel and sg3_utils prefer to the
    // T10 one: they take that, and even an EUI-64, rather than a locally assigned NAA.
    assert_eq!(unit_designators(&vpd(&unit, 0x83)), [(0x3, 6), (0x1, b'L' >> 4)]);
    let local = Unit { identity: Identity::locally("a"), ..unit };
    let names: Vec<u8> =
        unit_designators(&vpd(&local, 0x83)).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(names, [0x3, 0x1, 0x2], "as it was given out before");
}

#[test]
fn vpd_extended_inquiry() {
    assert_eq!(vpd(&unit(), 0x86), padded(&[0, 0x86, 0, 60, 0, 0x05, 0x01], 64));
    assert_eq!(vpd(&unit_thick(), 0x86), padded(&[0, 0x86, 0, 60, 0, 0x05], 64));
}

#[test]
fn vpd_block_limits() {
    #[rustfmt::skip]
    let thin = [
        0, 0xB0, 0, 60, 0x01, 0xFF, 0, 8, // WSNZ, COMPARE AND WRITE of 255 blocks, granularity 4 KiB
        0, 0, 0x80, 0, 0, 0, 0x08, 0, // 16 MiB at most, 1 MiB at best
        0, 0, 0, 0, 0, 0x10, 0, 0, // no PRE-FETCH limit, 2^20 blocks to unmap
        0, 0, 1, 0, 0, 0, 0, 8, // in 256 descriptors, granularity 4 KiB
        0x80, 0, 0, 0, 0, 0, 0, 0, // UGAVALID; WRITE SAME up to a transfer
        0, 0, 0x80, 0,
    ];
    assert_eq!(vpd(&unit(), 0xB0), padded(&thin, 64));
    #[rustfmt::skip]
    let thick = [
        0, 0xB0, 0, 60, 0, 0xFF, 0, 8, 0, 0, 0x80, 0, 0, 0, 0x08, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0,
    ];
    assert_eq!(vpd(&unit_thick(), 0xB0), padded(&thick, 64));
    #[rustfmt::skip]
    let big = [
        0, 0xB0, 0, 60, 0x01, 0xFF, 0, 1, 0, 0, 0x10, 0, 0, 0, 1, 0,
        0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, // granularity: any block
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0,
    ];
    assert_eq!(vpd(&unit_4kn(), 0xB0), padded(&big, 64));
}

#[test]
fn vpd_characteristics_and_provisioning() {
    // VBULS, and WABEREQ where there is a BLOCK ERASE.
    assert_eq!(vpd(&unit(), 0xB1), padded(&[0, 0xB1, 0, 60, 0, 1, 0, 0x40, 1], 64));
    assert_eq!(vpd(&unit_thick(), 0xB1), padded(&[0, 0xB1, 0, 60, 0, 1, 0, 0, 1], 64));
    assert_eq!(vpd(&unit(), 0xB2), [0, 0xB2, 0, 4, 11, 0xE4, 0x02, 0]);
    assert_eq!(vpd(&unit_4kn(), 0xB2), [0, 0xB2, 0, 4, 8, 0xE4, 0x02, 0]);
    assert_eq!(vpd(&unit_anything(), 0xB2), [0, 0xB2, 0, 4, 11, 0xE0, 0x02, 0]);
    assert_eq!(vpd(&unit_thick(), 0xB2), [0, 0xB2, 0, 4, 0, 0, 0, 0]);
}

#[test]
fn read_capacity() {
    let rc10 = |unit: &lunet_scsi::Unit| data(run(unit, &cdb(10, &[(0, &[0x25])])));
    let rc16 =
        |unit: &lunet_scsi::Unit| data(run(unit, &cdb(16, &[(0, &[0x9E, 0x10]), (13, &[0xFF])])));
    assert_eq!(rc10(&unit()), [0, 0x20, 0, 0, 0, 0, 2, 0]);
    assert_eq!(rc10(&unit_4kn()), [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0x10, 0]);
    let start = [0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 2, 0, 0];
    assert_eq!(rc16(&unit()), padded(&[&start[..], &[0, 0xC0]].concat(), 32));
    assert_eq!(rc16(&unit_512e()), padded(&[&start[..], &[3, 0xC0]].concat(), 32));
    assert_eq!(rc16(&unit_thick()), padded(&start, 32));
    assert_eq!(rc16(&unit_anything()), padded(&[&start[..], &[0, 0x80]].concat(), 32));
    let big = [0, 0, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0x10, 0, 0, 0, 0xC0];
    assert_eq!(rc16(&unit_4kn()), padded(&big, 32));
    let short = run(&unit(), &cdb(16, &[(0, &[0x9E, 0x10]), (13, &[15])]));
    assert_eq!(data(short).len(), 15);
}

#[test]
fn mode_sense_all_pages() {
    let pages = |wce: u8, swp: u8, thin: bool| {
        let mut pages = padded(&[0x01, 0x0A, 0xC0], 12);
        pages.extend_from_slice(&padded(&[0x02, 0x0E], 16));
        pages.extend_from_slice(&padded(&[0x08, 0x12, wce], 20));
        pages.extend_from_slice(&padded(&[0x0A, 0x0A, 0, 0x10, swp, 0x40], 12));
        pages.extend_from_slice(&padded(&[0x1C, 0x0A], 12));
        if thin {
            pages.extend_from_slice(&padded(&[0x5C, 0x02, 0, 12], 16));
        }
        pages
    };
    for (subpage, thin, len) in [(0x00, false, 83), (0xFF, true, 99)] {
        let with_descriptor =
            [&[len, 0, 0x10, 8, 0, 0x20, 0, 1, 0, 0, 2, 0][..], &pages(0x04, 0, thin)].concat();
        assert_eq!(data(run(&unit(), &[0x1A, 0, 0x3F, subpage, 0xFF, 0])), with_descriptor);
    }
    let read_only = [&[75, 0, 0x90, 0][..], &pages(0x04, 0x08, false)].concat();
    assert_eq!(data(run(&unit_read_only(), &[0x1A, 8, 0x3F, 0, 0xFF, 0])), read_only);
    let no_cache = [&[75, 0, 0x10, 0][..], &pages(0, 0, false)].concat();
    assert_eq!(data(run(&unit_thick(), &[0x1A, 8, 0x3F, 0xFF, 0xFF, 0])), no_cache);
    assert_eq!(data(run(&unit(), &[0x1A, 8, 0x3F, 0, 4, 0])).len(), 4);
}

#[test]
fn mode_sense_finds_subpages() {
    let ask =
        |unit: &lunet_scsi::Unit, page, subpage| run(unit, &[0x1A, 8, page, subpage, 0xFF, 0]);
    let (exceptions, thin) = (padded(&[0x1C, 0x0A], 12), padded(&[0x5C, 0x02, 0, 12], 16));
    assert_eq!(data(ask(&unit(), 0x1C, 0))[4..], exceptions);
    assert_eq!(data(ask(&unit(), 0x1C, 2))[4..], thin);
    assert_eq!(data(ask(&unit(), 0x1C, 0xFF))[4..], [exceptions.clone(), thin].concat());
    assert_eq!(data(ask(&unit_thick(), 0x1C, 0xFF))[4..], exceptions);
    illegal(&ask(&unit_thick(), 0x1C, 2), Code::INVALID_FIELD_IN_CDB);
    illegal(&ask(&unit(), 0x1C, 1), Code::INVALID_FIELD_IN_CDB);
    illegal(&ask(&unit(), 0x3F, 2), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn mode_sense_10_has_long_addresses_and_one_page() {
    let ask = |flags: u8| cdb(10, &[(0, &[0x5A, flags, 0x08]), (8, &[0xFF])]);
    let page = padded(&[0x08, 0x12, 0x04], 20);
    let short = [0, 34, 0, 0x10, 0, 0, 0, 8, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0x10, 0];
    assert_eq!(data(run(&unit_4kn(), &ask(0))), [&short[..], &page].concat());
    #[rustfmt::skip]
    let long = [
        0, 42, 0, 0x10, 1, 0, 0, 16,
        0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0,
    ];
    assert_eq!(data(run(&unit_4kn(), &ask(0x10))), [&long[..], &page].concat());
    let none = [0, 26, 0, 0x10, 0, 0, 0, 0];
    assert_eq!(data(run(&unit_4kn(), &ask(0x18))), [&none[..], &page].concat());
}

#[test]
fn mode_sense_knows_changeable_default_and_no_saved_values() {
    let changeable = data(run(&unit(), &[0x1A, 8, 0x48, 0, 0xFF, 0]));
    assert_eq!(changeable[4..], padded(&[0x08, 0x12, 0x04], 20));
    let uncached = data(run(&unit_thick(), &[0x1A, 8, 0x48, 0, 0xFF, 0]));
    assert_eq!(uncached[4..], padded(&[0x08, 0x12], 20));
    let control = data(run(&unit(), &[0x1A, 8, 0x4A, 0, 0xFF, 0]));
    assert_eq!(control[4..], padded(&[0x0A, 0x0A, 0x04, 0, 0x08, 0x40], 12));
    let protected = data(run(&unit_read_only(), &[0x1A, 8, 0x4A, 0, 0xFF, 0]));
    assert_eq!(protected[4..], padded(&[0x0A, 0x0A, 0x04, 0, 0, 0x40], 12));
    let default = data(run(&unit(), &[0x1A, 8, 0x88, 0, 0xFF, 0]));
    assert_eq!(default[4..], padded(&[0x08, 0x12, 0x04], 20));
    illegal(&run(&unit(), &[0x1A, 8, 0xC8, 0, 0xFF, 0]), Code::SAVING_NOT_SUPPORTED);
    illegal(&run(&unit(), &[0x1A, 8, 0x05, 0, 0xFF, 0]), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&unit(), &[0x1A, 8, 0x08, 1, 0xFF, 0]), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn report_luns_by_select_report() {
    let ask = |select: u8, len: u8| cdb(12, &[(0, &[0xA0, 0, select]), (9, &[len])]);
    #[rustfmt::skip]
    let all = [
        0, 0, 0, 24, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0,
        0, 5, 0, 0, 0, 0, 0, 0,
        0x41, 0x2C, 0, 0, 0, 0, 0, 0,
    ];
    for select in [0x00, 0x02, 0x11] {
        assert_eq!(data(run(&unit(), &ask(select, 255))), all);
        assert_eq!(data(run_nowhere(&ask(select, 16))), all[..16]);
    }
    for select in [0x01, 0x10, 0x12] {
        assert_eq!(data(run(&unit(), &ask(select, 255))), [0; 8]);
    }
    illegal(&run(&unit(), &ask(0x03, 255)), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&unit(), &ask(0x00, 15)), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_lun_without_unit_answers_what_it_must() {
    let inquiry = data(run_nowhere(&[0x12, 0, 0, 0, 255, 0]));
    assert_eq!((inquiry[0], inquiry.len()), (0x7F, 96));
    assert_eq!(data(run_nowhere(&[0x12, 1, 0, 0, 255, 0])), [0x7F, 0, 0, 1, 0]);
    illegal(&run_nowhere(&[0x12, 1, 0x83, 0, 255, 0]), Code::INVALID_FIELD_IN_CDB);
    let sense = data(run_nowhere(&[3, 0, 0, 0, 255, 0]));
    assert_eq!((sense[2], sense[12], sense[13]), (5, 0x25, 0));
    for opcode in [0x00, 0x25, 0x28, 0x2A, 0xA3, 0xFF] {
        illegal(&run_nowhere(&cdb(16, &[(0, &[opcode])])), Code::LUN_NOT_SUPPORTED);
    }
}
