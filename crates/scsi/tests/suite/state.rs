//! What a command's answer depends on besides its command block: unit attentions and power.

use crate::common::*;
use lunet_scsi::{
    Action, Attention, Code, CommandIn, Key, Nexus, Power, PowerChange, Unit, execute,
};

const TEST_UNIT_READY: [u8; 6] = [0; 6];

fn at(unit: &Unit, nexus: &mut Nexus, cdb: &[u8]) -> lunet_scsi::Task {
    let command = CommandIn { cdb, expects_read: u32::MAX, expects_write: u32::MAX };
    execute(&target(), Some(unit), Some(nexus), &command)
}

#[test]
fn attentions_are_reported_once_each_the_most_important_first() {
    let (unit, mut nexus) = (unit(), Nexus::new());
    nexus.establish(Attention::CapacityChanged);
    nexus.establish(Attention::NexusLoss);
    nexus.establish(Attention::NexusLoss);
    for code in [Code::NEXUS_LOSS, Code::CAPACITY_CHANGED] {
        let task = at(&unit, &mut nexus, &TEST_UNIT_READY);
        assert_eq!(sense(&task.action), (Key::UnitAttention, code));
    }
    good(&at(&unit, &mut nexus, &TEST_UNIT_READY));
}

#[test]
fn a_reset_covers_what_came_before() {
    let (unit, mut nexus) = (unit(), Nexus::new());
    nexus.establish(Attention::NexusLoss);
    nexus.establish(Attention::BusDeviceReset);
    let task = at(&unit, &mut nexus, &TEST_UNIT_READY);
    assert_eq!(sense(&task.action), (Key::UnitAttention, Code::BUS_DEVICE_RESET));
    assert!(!nexus.attention_pending());
}

#[test]
fn an_attention_comes_before_an_unknown_operation_code() {
    let (unit, mut nexus) = (unit(), Nexus::new());
    nexus.establish(Attention::PowerOn);
    let task = at(&unit, &mut nexus, &[0xFF; 16]);
    assert_eq!(sense(&task.action), (Key::UnitAttention, Code::POWER_ON));
    illegal(&at(&unit, &mut nexus, &[0xFF; 16]), Code::INVALID_OPCODE);
}

#[test]
fn inquiry_and_report_luns_pass_attentions_by() {
    let (unit, mut nexus) = (unit(), Nexus::new());
    nexus.establish(Attention::PowerOn);
    nexus.establish(Attention::ReportedLunsChanged);
    data(at(&unit, &mut nexus, &[0x12, 0, 0, 0, 255, 0]));
    data(at(&unit, &mut nexus, &cdb(12, &[(0, &[0xA0]), (9, &[255])])));
    assert_eq!(nexus.take(), Some(Attention::PowerOn));
    assert_eq!(nexus.take(), None, "REPORT LUNS clears REPORTED LUNS DATA HAS CHANGED");
}

#[test]
fn request_sense_reports_and_clears_in_either_format() {
    let (unit, mut nexus) = (unit(), Nexus::new());
    nexus.establish(Attention::PowerOn);
    let fixed = data(at(&unit, &mut nexus, &[3, 0, 0, 0, 252, 0]));
    assert_eq!(fixed, [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0]);
    nexus.establish(Attention::NexusLoss);
    let descriptor = data(at(&unit, &mut nexus, &[3, 1, 0, 0, 252, 0]));
    assert_eq!(descriptor, [0x72, 6, 0x29, 7, 0, 0, 0, 0]);
    let none = data(at(&unit, &mut nexus, &[3, 1, 0, 0, 4, 0]));
    assert_eq!(none, [0x72, 0, 0, 0]);
}

#[test]
fn start_stop_unit() {
    let unit = unit();
    let power = |b1, b3, b4| run(&unit, &[0x1B, b1, 0, b3, b4, 0]).action;
    let action = |change, flush, immediate| Action::Power(Power { change, flush, immediate });
    assert_eq!(power(0, 0, 0x00), action(PowerChange::Stopped, true, false));
    assert_eq!(power(1, 0, 0x04), action(PowerChange::Stopped, false, true));
    assert_eq!(power(0, 0, 0x01), action(PowerChange::Active, false, false));
    assert_eq!(power(0, 0, 0x10), action(PowerChange::Active, false, false));
    // START and LOEJ say nothing where there is a power condition.
    assert_eq!(power(1, 0, 0x23), action(PowerChange::Idle, false, true));
    assert_eq!(power(0, 0, 0x30), action(PowerChange::Standby, true, false));
    assert_eq!(power(0, 0, 0x34), action(PowerChange::Standby, false, false));
    good(&run(&unit, &[0x1B, 0, 0, 0, 0x70, 0]));
    // Eject, load, timers, a modifier.
    for (b3, b4) in [(0, 0x02), (0, 0x03), (0, 0xA0), (0, 0xB0), (1, 0x10), (1, 0x20), (1, 0x70)] {
        let task = run(&unit, &[0x1B, 0, 0, b3, b4, 0]);
        illegal(&task, Code::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn a_stopped_unit_is_not_ready_until_it_is_started() {
    let unit = unit();
    unit.state.change_power(PowerChange::Stopped);
    let not_ready = (Key::NotReady, Code::INITIALIZING_COMMAND_REQUIRED);
    for (opcode, action, len) in listed(&unit) {
        let low = action.unwrap_or(0) as u8;
        let task = run(&unit, &cdb(len, &[(0, &[opcode, low])]));
        let medium = !matches!(
            (opcode, low),
            (0x03 | 0x12 | 0x15..=0x17 | 0x1A..=0x1C | 0x25 | 0x4C | 0x4D | 0x55..=0x5F, _)
                | (0x83, 0x1C)
                | (0x84, _)
                | (0x9E, 0x10)
                | (0xA0 | 0xA3 | 0xA4, _)
        );
        let refused = matches!(&task.action, Action::Complete(r)
            if r.sense.map(|s| (s.key, s.code)) == Some(not_ready));
        assert_eq!(refused, medium, "{opcode:02X}h");
    }
    let sense = data(run(&unit, &[3, 0, 0, 0, 252, 0]));
    assert_eq!((sense[2], sense[12], sense[13]), (2, 0x04, 0x02));
    unit.state.change_power(PowerChange::Active);
    good(&run(&unit, &TEST_UNIT_READY));
}

#[test]
fn a_command_block_must_be_whole_and_without_naca() {
    for (opcode, action, len) in listed(&unit()) {
        let low = action.unwrap_or(0) as u8;
        let mut cdb = cdb(len, &[(0, &[opcode])]);
        cdb[1] |= low;
        illegal(&run(&unit(), &cdb[..len - 1]), Code::INVALID_FIELD_IN_CDB);
        cdb[len - 1] = 0x04;
        illegal(&run(&unit(), &cdb), Code::INVALID_FIELD_IN_CDB);
    }
    illegal(&run(&unit(), &[]), Code::INVALID_FIELD_IN_CDB);
}
