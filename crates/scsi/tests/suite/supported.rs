//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.

use crate::common::*;
use lunet_scsi::{Code, Unit};

fn ask(options: u8, opcode: u8, action: u16) -> Vec<u8> {
    let [high, low] = action.to_be_bytes();
    cdb(12, &[(0, &[0xA3, 0x0C, options, opcode, high, low]), (8, &[0xFF, 0xFF])])
}

const UNSUPPORTED: [u8; 4] = [0, 1, 0, 0];

#[test]
fn one_command_with_usage_and_timeouts() {
    let read10 = [0x28, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04];
    let plain = [&[0, 3, 0, 10][..], &read10].concat();
    assert_eq!(data(run(&unit(), &ask(1, 0x28, 0))), plain);
    assert_eq!(data(run(&unit(), &ask(3, 0x28, 0))), plain);
    let timeouts = [0, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30];
    let with_timeouts = [&[0, 0x83, 0, 10][..], &read10, &timeouts].concat();
    assert_eq!(data(run(&unit(), &ask(0x81, 0x28, 0))), with_timeouts);
}

#[test]
fn one_command_with_service_action() {
    let expected =
        [0, 3, 0, 16, 0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04];
    assert_eq!(data(run(&unit(), &ask(2, 0x9E, 0x10))), expected);
    assert_eq!(data(run(&unit(), &ask(3, 0x9E, 0x10))), expected);
    assert_eq!(data(run(&unit(), &ask(2, 0x9E, 0x13))), UNSUPPORTED);
    assert_eq!(data(run(&unit(), &ask(3, 0x9E, 0x13))), UNSUPPORTED);
}

#[test]
fn the_reporting_option_must_fit_the_command() {
    illegal(&run(&unit(), &ask(1, 0x9E, 0x10)), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&unit(), &ask(2, 0x28, 0)), Code::INVALID_FIELD_IN_CDB);
    assert_eq!(data(run(&unit(), &ask(3, 0x28, 1))), UNSUPPORTED);
    for option in 4..8 {
        illegal(&run(&unit(), &ask(option, 0x28, 0)), Code::INVALID_FIELD_IN_CDB);
    }
    for option in 1..4 {
        assert_eq!(data(run(&unit(), &ask(option, 0x5C, 0))), UNSUPPORTED);
    }
}

#[test]
fn unmap_is_listed_only_where_space_can_be_given_back() {
    let lists = |unit: &Unit| listed(unit).iter().any(|(code, _, _)| *code == 0x42);
    assert!(lists(&unit()));
    assert!(!lists(&unit_thick()));
    assert_eq!(data(run(&unit_thick(), &ask(1, 0x42, 0))), UNSUPPORTED);
    illegal(&run(&unit_thick(), &cdb(10, &[(0, &[0x42])])), Code::INVALID_OPCODE);
}

#[test]
fn all_commands_with_timeouts() {
    let all = data(run(&unit(), &ask(0x80, 0, 0)));
    let count = listed(&unit()).len();
    assert_eq!(all.len(), 4 + count * 20);
    for entry in all[4..].chunks_exact(20) {
        assert_eq!(entry[5] & 2, 2, "CTDP of {:02X}h", entry[0]);
        assert_eq!(entry[8..10], [0, 0x0A]);
        assert_ne!(entry[16..20], [0; 4]);
    }
}

#[test]
fn every_listed_command_can_be_asked_for_alone() {
    for (code, action, len) in listed(&unit()) {
        let option = if action.is_some() { 2 } else { 1 };
        let one = data(run(&unit(), &ask(option, code, action.unwrap_or(0))));
        assert_eq!((one[1], usize::from(one[3]), one.len()), (3, len, 4 + len), "{code:02X}h");
        assert_eq!(one[4], code);
        if let Some(action) = action {
            assert_eq!(u16::from(one[5] & 0x1F), action);
        }
    }
}

#[test]
fn task_management_functions() {
    let ask = |flags: u8, len: u8| cdb(12, &[(0, &[0xA3, 0x0D, flags]), (9, &[len])]);
    assert_eq!(data(run(&unit(), &ask(0, 255))), [0xDA, 0, 0, 0]);
    let mut extended = vec![0xDA, 0, 0, 12];
    extended.resize(16, 0);
    assert_eq!(data(run(&unit(), &ask(0x80, 255))), extended);
    illegal(&run(&unit(), &ask(0, 3)), Code::INVALID_FIELD_IN_CDB);
}
