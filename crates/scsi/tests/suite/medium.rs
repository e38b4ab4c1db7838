//! Removable units and power conditions.

use std::sync::Arc;

use crate::cluster::{State, leading};
use crate::common::*;
use lunet_scsi::reserve::{InitiatorPort, LiveNexus, NexusId, Out, Register, Request, TargetPort};
use lunet_scsi::{Action, Attention, Code, Key, Nexus, Power, PowerChange};

const TEST_UNIT_READY: [u8; 6] = [0; 6];

#[test]
fn only_a_removable_unit_says_so_and_can_be_ejected() {
    let (fixed, removable) = (unit(), unit_removable());
    let inquiry = [0x12, 0, 0, 0, 96, 0];
    assert_eq!(data(run(&fixed, &inquiry))[1], 0x00);
    assert_eq!(data(run(&removable, &inquiry))[1], 0x80);
    illegal(&run(&fixed, &[0x1B, 0, 0, 0, 0x02, 0]), Code::INVALID_FIELD_IN_CDB);
    illegal(&run(&fixed, &[0x1E, 0, 0, 0, 0, 0]), Code::INVALID_OPCODE);
    let power = |b4| run(&removable, &[0x1B, 0, 0, 0, b4, 0]).action;
    let action = |change, flush| Action::Power(Power { change, flush, immediate: false });
    // NO_FLUSH is no reason to lose what others wrote.
    assert_eq!(power(0x02), action(PowerChange::Eject, true));
    assert_eq!(power(0x06), action(PowerChange::Eject, true));
    assert_eq!(power(0x03), action(PowerChange::Load, false));
    // It stops as any other unit, and any power condition will do.
    assert_eq!(power(0x00), action(PowerChange::Stopped, true));
    assert_eq!(power(0x04), action(PowerChange::Stopped, false));
    assert_eq!(power(0x01), action(PowerChange::Active, false));
    for condition in 0x4..=0xF {
        assert_eq!(power(condition << 4 | 0x02), action(PowerChange::Active, false));
    }
    assert_eq!(run(&removable, &[0x1E, 0, 0, 0, 1, 0]).action, Action::PreventRemoval(true));
    assert_eq!(run(&removable, &[0x1E, 0, 0, 0, 0, 0]).action, Action::PreventRemoval(false));
    illegal(&run(&removable, &[0x1E, 0, 0, 0, 2, 0]), Code::INVALID_FIELD_IN_CDB);
}

#[test]
fn without_a_medium_only_what_needs_none_is_done() {
    let unit = unit_removable();
    unit.state.change_power(PowerChange::Eject);
    let no_medium = (Key::NotReady, Code::MEDIUM_NOT_PRESENT);
    for (opcode, action, len) in listed(&unit) {
        let low = action.unwrap_or(0) as u8;
        let task = run(&unit, &cdb(len, &[(0, &[opcode, low])]));
        // COPY OPERATION ABORT stops what may be on its way.
        let needs = !matches!((opcode, action), (0x84, _) | (0x83, Some(0x1C)))
            && !matches!(
                opcode,
                0x03 | 0x12 | 0x15..=0x17 | 0x1A | 0x1C | 0x1E | 0x4C | 0x4D | 0x55..=0x5F | 0xA0 | 0xA3 | 0xA4 // no medium
            );
        let refused = matches!(&task.action, Action::Complete(r)
            if r.sense.map(|s| (s.key, s.code)) == Some(no_medium));
        assert_eq!(refused, needs, "{opcode:02X}h");
    }
    let sense = data(run(&unit, &[3, 0, 0, 0, 252, 0]));
    assert_eq!((sense[2], sense[12], sense[13]), (2, 0x3A, 0x00));
    // It cannot be started, but loaded, and ejected again.
    for b4 in [0x00, 0x01, 0x10, 0x20, 0x30] {
        let task = run(&unit, &[0x1B, 0, 0, 0, b4, 0]);
        assert_eq!(crate::common::sense(&task.action), no_medium);
    }
    for (b4, change) in [(0x02, PowerChange::Eject), (0x03, PowerChange::Load)] {
        let expected = Action::Power(Power { change, flush: false, immediate: false });
        assert_eq!(run(&unit, &[0x1B, 0, 0, 0, b4, 0]).action, expected);
    }
    // MODE SENSE has no block descriptor: there are no blocks.
    let mode = data(run(&unit, &[0x1A, 0, 0x0A, 0, 255, 0]));
    assert_eq!((mode[3], mode.len()), (0, 4 + 12));
    assert!(unit.state.change_power(PowerChange::Load));
    good(&run(&unit, &TEST_UNIT_READY));
}

#[test]
fn a_removable_unit_that_was_stopped_is_not_ready_until_it_is_started_or_loaded() {
    let unit = unit_removable();
    let not_ready = (Key::NotReady, Code::INITIALIZING_COMMAND_REQUIRED);
    for b4 in [0x01, 0x03] {
        let Action::Power(power) = run(&unit, &[0x1B, 0, 0, 0, 0, 0]).action else { panic!("no") };
        unit.state.change_power(power.change);
        for cdb in [&TEST_UNIT_READY[..], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
            assert_eq!(crate::common::sense(&run(&unit, cdb).action), not_ready);
        }
        let Action::Power(power) = run(&unit, &[0x1B, 0, 0, 0, b4, 0]).action else { panic!("no") };
        assert!(!unit.state.change_power(power.change), "the medium was in all the time");
        good(&run(&unit, &TEST_UNIT_READY));
    }
}

#[test]
fn an_idle_unit_works_and_is_active_then() {
    let unit = unit();
    let reported = || data(run(&unit, &[3, 0, 0, 0, 252, 0]));
    for (change, ascq) in [(PowerChange::Idle, 0x03), (PowerChange::Standby, 0x04)] {
        unit.state.change_power(change);
        good(&run(&unit, &TEST_UNIT_READY));
        data(run(&unit, &[0x12, 0, 0, 0, 96, 0]));
        let sense = reported();
        assert_eq!((sense[2], sense[12], sense[13]), (0, 0x5E, ascq));
        let read = run(&unit, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert!(matches!(read.action, Action::Read { .. }));
        assert_eq!(reported()[12..14], [0, 0]);
    }
}

fn id(name: &str) -> Arc<LiveNexus> {
    LiveNexus::new(NexusId {
        initiator: InitiatorPort { name: name.into(), isid: [0; 6] },
        port: TargetPort { target: "iqn.t".into(), tag: 1 },
    })
}

#[test]
fn seats_that_are_free_are_taken_first() {
    let mut state = State::new(vec![leading(id("a").port.clone())], false);
    let seats = ["a", "b", "c", "d"].map(|name| state.attach(id(name)));
    state.detach(seats[2]);
    state.detach(seats[0]);
    let again = ["e", "f", "g"].map(|name| state.attach(id(name)));
    assert_eq!(again[..2], [seats[0], seats[2]]);
    assert!(!seats.contains(&again[2]));
    let names = |seat| state.seats.nexus(seat).map(|nexus| nexus.initiator.name.clone());
    assert_eq!(
        [seats[1], again[0], again[2]].map(names),
        ["b", "e", "g"].map(|it| Some(it.into()))
    );
}

#[test]
fn the_medium_stays_while_anyone_who_is_there_prevents_its_removal() {
    let mut state = State::new(vec![leading(id("a").port.clone())], false);
    let (a, b) = (state.attach(id("a")), state.attach(id("b")));
    assert!(!state.seats.removal_prevented());
    state.seats.prevent_removal(a, true);
    state.seats.prevent_removal(b, true);
    state.seats.prevent_removal(a, false);
    assert!(state.seats.removal_prevented(), "b");
    state.detach(b);
    assert!(!state.seats.removal_prevented(), "the nexus is lost");
    let b = state.attach(id("b"));
    assert!(!state.seats.removal_prevented(), "who comes back has forgotten");
    state.seats.prevent_removal(b, true);
    state.reset();
    assert!(!state.seats.removal_prevented(), "a reset");
}

#[test]
fn who_loses_the_registration_prevents_nothing_any_more() {
    for abort in [true, false] {
        let mut state = State::new(vec![leading(id("a").port.clone())], false);
        let (a, b) = (state.attach(id("a")), state.attach(id("b")));
        for (seat, new_key) in [(a, 1), (b, 2)] {
            let register = Register { new_key, ignore: true, ..register() };
            state.execute(seat, &Request::Out(Out::Register(register)));
        }
        state.seats.prevent_removal(b, true);
        let out = if abort {
            Out::Preempt { key: 1, victim: 2, scope_and_kind: 1, abort }
        } else {
            Out::Clear { key: 1 }
        };
        let outcome = state.execute(a, &Request::Out(out));
        assert_eq!(outcome.reply, lunet_scsi::Reply::GOOD);
        assert!(!state.seats.removal_prevented());
    }
}

fn register() -> Register {
    Register {
        key: 0,
        new_key: 0,
        ignore: false,
        initiators: None,
        all_ports: false,
        persist: false,
    }
}

#[test]
fn a_loaded_medium_is_told_to_all_before_other_changes() {
    let mut state = State::new(vec![leading(id("a").port.clone())], false);
    let seat = state.attach(id("a"));
    state.seats.attend_all(Attention::MediumChanged);
    let mut nexus = Nexus::new();
    nexus.establish(Attention::ModeParametersChanged);
    assert_ne!(state.changes(), nexus.seen());
    state.refresh(seat, &mut nexus);
    let reported = [nexus.take(), nexus.take(), nexus.take()];
    let expected = [Attention::MediumChanged, Attention::ModeParametersChanged];
    assert_eq!(reported, [Some(expected[0]), Some(expected[1]), None]);
    assert_eq!(Attention::MediumChanged.code(), Code { asc: 0x28, ascq: 0 });
}
