//! Target port groups: reports, changes, and what each access state lets through.

use crate::cluster::{leading, relative};
use crate::common::*;
use lunet_scsi::alua::{
    AccessState, Alua, Change, Done, PortGroup, PortGroups, Request, SharedGroup, SharedGroups,
    SharedState,
};
use lunet_scsi::reserve::{Port, TargetPort};
use lunet_scsi::{Action, Attention, Code, CommandIn, Key, Nexus, Reply, Task, Unit, execute};

const STANDBY: (Key, Code) = (Key::NotReady, Code { asc: 0x04, ascq: 0x0B });
const UNAVAILABLE: (Key, Code) = (Key::NotReady, Code { asc: 0x04, ascq: 0x0C });

/// Two targets in group 1, one of them in group 2 as well.
fn ports() -> Vec<Port> {
    let name = |target: &str, tag| TargetPort { target: target.into(), tag };
    let mut ports = vec![leading(name("iqn.t", 1)), leading(name("iqn.t", 2))];
    ports.push(Port { name: name("iqn.other", 1), relative: 77 });
    ports
}

/// Through the port of a group.
fn through(unit: &Unit, group: usize, cdb: &[u8]) -> Task {
    let target = lunet_scsi::Target { group, ..target() };
    let command = CommandIn { cdb, expects_read: u32::MAX, expects_write: u32::MAX };
    execute(&target, Some(unit), Some(&mut Nexus::new()), &command)
}

fn carry_out(unit: &Unit, action: Action) -> Done {
    let Action::PortGroups(request) = action else { panic!("{action:?}") };
    groups().execute(&unit.state.access, &ports(), &request)
}

fn report(unit: &Unit, format: u8, allocation: u8) -> Vec<u8> {
    let cdb = cdb(12, &[(0, &[0xA3, 0x0A | format << 5]), (9, &[allocation])]);
    let done = carry_out(unit, run(unit, &cdb).action);
    assert!(!done.changed);
    done.reply.data
}

/// SET TARGET PORT GROUPS with these descriptors behind the 4 bytes of the header.
fn set(unit: &Unit, list: &[u8]) -> Result<bool, (Key, Code)> {
    let list = [&[0; 4], list].concat();
    let task = run(unit, &cdb(12, &[(0, &[0xA4, 0x0A]), (9, &[list.len() as u8])]));
    assert_eq!(task.transfer.data_out, list.len() as u64);
    let Action::Parameters(wanted) = task.action else { panic!("{task:?}") };
    let action = lunet_scsi::parameters(unit, wanted, &list);
    if matches!(action, Action::Complete(_)) {
        return Err(sense(&action));
    }
    let Done { reply, changed } = carry_out(unit, action);
    if reply == Reply::GOOD { Ok(changed) } else { Err(sense(&Action::Complete(reply))) }
}

#[test]
fn the_report_byte_by_byte() {
    let unit = unit();
    let mut expected = vec![0, 0, 0, 0x1C];
    // Group 1, preferred, active/optimized, with a port of each target.
    expected.extend_from_slice(&[0x80, 0x0F, 0, 1, 0, 0, 0, 2, 0, 0, 0x10, 0x01, 0, 0, 0, 77]);
    expected.extend_from_slice(&[0x00, 0x0F, 0, 2, 0, 0, 0, 1, 0, 0, 0x10, 0x02]);
    assert_eq!(report(&unit, 0, 255), expected);
    assert_eq!(report(&unit, 0, 4), expected[..4]);
    assert_eq!(report(&unit, 0, 0), []);
    // The extended header: format 1, no transition time. The length counts what follows it.
    let extended = [&[0, 0, 0, 0x20, 0x10, 0, 0, 0], &expected[4..]].concat();
    assert_eq!(report(&unit, 1, 255), extended);
    illegal(&run(&unit, &cdb(12, &[(0, &[0xA3, 0x4A])])), Code::INVALID_FIELD_IN_CDB);
    assert_eq!(relative(1), 0x1001, "not the tag");
}

#[test]
fn the_report_of_groups_that_servers_share_byte_by_byte() {
    let group = |tag, state, ports: &[u16]| SharedGroup { tag, state, ports: ports.to_vec() };
    let groups = SharedGroups(vec![
        group(1, SharedState::Optimized, &[0x0102]),
        group(0x0203, SharedState::Transitioning, &[]),
        group(7, SharedState::Standby, &[3, 4]),
        group(8, SharedState::NonOptimized, &[]),
    ]);
    let mut expected = vec![0, 0, 0, 44];
    expected.extend_from_slice(&[0x00, 0x87, 0, 1, 0, 2, 0, 1, 0, 0, 1, 2]);
    expected.extend_from_slice(&[0x0F, 0x87, 2, 3, 0, 2, 0, 0]);
    expected.extend_from_slice(&[0x02, 0x87, 0, 7, 0, 2, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
    expected.extend_from_slice(&[0x01, 0x87, 0, 8, 0, 2, 0, 0]);
    assert_eq!(groups.report(false, 255), expected);
    assert_eq!(groups.report(false, 6), expected[..6]);
    let extended = [&[0, 0, 0, 48, 0x10, 0, 0, 0], &expected[4..]].concat();
    assert_eq!(groups.report(true, 255), extended);
    assert_eq!(SharedGroups::default().report(false, 255), [0; 4]);
}

#[test]
fn groups_that_do_not_lead_to_the_unit_are_left_out() {
    let unit = unit();
    let request = Request::Report { extended: false, allocation: 255 };
    let done = groups().execute(&unit.state.access, &ports()[1..2], &request);
    assert_eq!(done.reply.data[..8], [0, 0, 0, 12, 0x00, 0x0F, 0, 2]);
    let request = Request::Set(vec![Change { tag: 1, state: AccessState::Standby }]);
    let done = groups().execute(&unit.state.access, &ports()[1..2], &request);
    assert_eq!(
        sense(&Action::Complete(done.reply)),
        (Key::IllegalRequest, Code::INVALID_FIELD_IN_PARAMETER_LIST)
    );
}

#[test]
fn a_change_is_reported_with_its_cause() {
    let unit = unit();
    assert_eq!(set(&unit, &[1, 0, 0, 2]), Ok(true));
    assert_eq!(set(&unit, &[1, 0, 0, 2]), Ok(false), "it is in that state");
    let data = report(&unit, 0, 255);
    assert_eq!(data[4..10], [0x80, 0x0F, 0, 1, 0, 0], "group 1 has not changed");
    assert_eq!(data[20..26], [0x01, 0x0F, 0, 2, 0, 1], "by SET TARGET PORT GROUPS");
    assert_eq!(set(&unit, &[3, 0, 0, 1, 0, 0, 0, 2]), Ok(true), "two at once");
    let data = report(&unit, 0, 255);
    assert_eq!((data[4], data[20]), (0x83, 0x00));
}

#[test]
fn a_wrong_list_changes_nothing() {
    let unit = unit();
    let list = (Key::IllegalRequest, Code::INVALID_FIELD_IN_PARAMETER_LIST);
    let length = (Key::IllegalRequest, Code::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(set(&unit, &[2, 0, 0, 1, 1, 0, 0, 9]), Err(list), "no group 9");
    assert_eq!(set(&unit, &[2, 0, 0, 1, 4, 0, 0, 2]), Err(list), "a state that is not supported");
    assert_eq!(set(&unit, &[0x0E, 0, 0, 1]), Err(list), "offline");
    assert_eq!(set(&unit, &[0x0F, 0, 0, 1]), Err(list), "transitioning");
    assert_eq!(set(&unit, &[2, 0, 0, 1, 2]), Err(length));
    assert_eq!(set(&unit, &[0, 0, 0, 1].repeat(17)), Err(list), "more than there can be");
    assert_eq!(report(&unit, 0, 255)[4], 0x80);
    good(&run(&unit, &cdb(12, &[(0, &[0xA4, 0x0A])])));
    let short = run(&unit, &cdb(12, &[(0, &[0xA4, 0x0A]), (9, &[3])]));
    let Action::Parameters(wanted) = short.action else { panic!("{short:?}") };
    assert_eq!(sense(&lunet_scsi::parameters(&unit, wanted, &[0; 3])), length);
}

/// What SPC-5 lets through a port in standby, and READ CAPACITY.
const ABOUT: [&[u8]; 7] = [
    &[0x1D, 0x04, 0, 0, 0, 0],
    &[0x4D, 0, 0x40, 0, 0, 0, 0, 0, 255, 0],
    &[0x1A, 0, 0x3F, 0, 255, 0],
    &[0x5E, 0, 0, 0, 0, 0, 0, 0, 8, 0],
    &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0],
    &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0],
];

const ALWAYS: [&[u8]; 5] = [
    &[0x03, 0, 0, 0, 18, 0],
    &[0x12, 0, 0, 0, 96, 0],
    &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0],
    &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0],
    &[0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0],
];

const BLOCKS: [&[u8]; 6] = [
    &[0; 6],
    &[0x08, 0, 0, 0, 1, 0],
    &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0],
    &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0],
    &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0x1B, 0, 0, 0, 1, 0],
];

#[test]
fn each_state_lets_through_what_it_should() {
    let unit = unit();
    let refused = |group, command| {
        let task = through(&unit, group, command);
        match &task.action {
            Action::Complete(Reply { sense: Some(_), .. }) => Some(sense(&task.action)),
            _ => None,
        }
    };
    for (state, about, blocks) in [
        (AccessState::Optimized, None, None),
        (AccessState::NonOptimized, None, None),
        (AccessState::Standby, None, Some(STANDBY)),
        (AccessState::Unavailable, Some(UNAVAILABLE), Some(UNAVAILABLE)),
    ] {
        set(&unit, &[state as u8, 0, 0, 2]).expect("a group that is there");
        for command in ALWAYS {
            assert_eq!(refused(1, command), None, "{state:?} {command:02X?}");
        }
        for command in ABOUT {
            assert_eq!(refused(1, command), about, "{state:?} {command:02X?}");
        }
        for command in BLOCKS {
            assert_eq!(refused(1, command), blocks, "{state:?} {command:02X?}");
            assert_eq!(refused(0, command), None, "the other group: {command:02X?}");
        }
        // REQUEST SENSE tells the state.
        let told = data(through(&unit, 1, &[0x03, 0, 0, 0, 18, 0]));
        let expected = blocks.map_or([0, 0, 0], |(_, code)| [2, code.asc, code.ascq]);
        assert_eq!([told[2], told[12], told[13]], expected, "{state:?}");
    }
}

#[test]
fn a_unit_attention_comes_before_the_state() {
    let unit = unit();
    set(&unit, &[2, 0, 0, 1]).expect("a group that is there");
    let mut nexus = Nexus::new();
    nexus.establish(Attention::AccessStateChanged);
    let command = CommandIn { cdb: &[0; 6], expects_read: 0, expects_write: 0 };
    let task = execute(&target(), Some(&unit), Some(&mut nexus), &command);
    assert_eq!(sense(&task.action), (Key::UnitAttention, Code { asc: 0x2A, ascq: 0x06 }));
    let task = execute(&target(), Some(&unit), Some(&mut nexus), &command);
    assert_eq!(sense(&task.action), STANDBY);
}

#[test]
fn states_start_as_configured_and_survive_another_unit_of_the_volume() {
    let group = |tag, state| PortGroup { tag, state, preferred: false };
    let configured = [
        group(9, AccessState::Unavailable),
        group(2, AccessState::NonOptimized),
        group(7, AccessState::Standby),
    ];
    let groups = PortGroups::new(configured.to_vec()).expect("not too many");
    assert_eq!([2, 7, 9, 1].map(|tag| groups.number(tag)), [Some(0), Some(1), Some(2), None]);
    let old = unit();
    old.state.access.configure(&groups);
    let larger = Unit::with_state(identity(), caps(), old.state.clone());
    let states = [0, 1, 2, 3].map(|number| larger.state.access.get(number));
    let expected = [
        AccessState::NonOptimized,
        AccessState::Standby,
        AccessState::Unavailable,
        AccessState::Optimized,
    ];
    assert_eq!(states, expected);
    let many = |count| (0..count).map(|tag| group(tag, AccessState::Standby)).collect();
    assert!(PortGroups::new(many(17)).is_none());
    let groups = PortGroups::new(many(16)).expect("as many as there may be");
    old.state.access.configure(&groups);
    assert_eq!(old.state.access.get(15), AccessState::Standby);
}

/// The number of a group is its place in the states of every unit: whatever tags come and go, it keeps it.
#[test]
fn groups_that_come_and_go_move_no_states() {
    let group = |tag, state| PortGroup { tag, state, preferred: false };
    let (good, poor, gone) =
        (AccessState::Optimized, AccessState::NonOptimized, AccessState::Unavailable);
    let first = PortGroups::new(vec![group(5, poor), group(9, gone)]).expect("two");
    let unit = unit();
    let states = &unit.state.access;
    states.configure(&first);
    let second = first.next(vec![group(9, gone), group(2, poor), group(5, poor)]).expect("three");
    assert_eq!([5, 9, 2].map(|tag| second.number(tag)), [Some(0), Some(1), Some(2)]);
    second.begin(states, &first);
    assert_eq!([0, 1, 2].map(|number| states.get(number)), [poor, gone, poor]);
    assert!(!second.reconfigure(states, &first), "nobody's state is another one");
    // One that has gone keeps its number, and is the same one when it comes back.
    let third = second.next(vec![group(9, gone), group(2, poor)]).expect("fewer");
    let back = third.next(vec![group(5, good), group(2, poor)]).expect("as many");
    assert_eq!([5, 9, 2].map(|tag| back.number(tag)), [Some(0), Some(1), Some(2)]);
    assert!(back.reconfigure(states, &third));
    assert_eq!([0, 1, 2].map(|number| states.get(number)), [good, gone, poor]);
    let others = |tags: std::ops::Range<u16>| tags.map(|tag| group(tag, good)).collect();
    assert!(back.next(others(10..23)).is_some() && back.next(others(10..24)).is_none());
}

#[test]
fn another_configuration_changes_what_it_says_anew() {
    let group = |tag, state, preferred| PortGroup { tag, state, preferred };
    let configured = |one, two, preferred| {
        let groups = vec![group(1, one, preferred), group(2, two, false)];
        PortGroups::new(groups).expect("not too many")
    };
    let (good, poor, gone) =
        (AccessState::Optimized, AccessState::NonOptimized, AccessState::Unavailable);
    let unit = unit();
    let states = &unit.state.access;
    let first = configured(good, poor, false);
    states.configure(&first);
    // An initiator has changed group 2.
    assert_eq!(set(&unit, &[0, 0, 0, 2]), Ok(true));
    let next = configured(gone, poor, false);
    assert!(next.reconfigure(states, &first));
    assert_eq!([states.get(0), states.get(1)], [gone, good], "group 2 is configured as before");
    let data = report(&unit, 0, 255);
    assert_eq!([data[9], data[25]], [2, 1], "implicitly; by SET TARGET PORT GROUPS");
    assert!(!next.reconfigure(states, &next));
    assert!(configured(gone, poor, true).reconfigure(states, &next), "PREF is another");
    assert!(!configured(gone, good, false).reconfigure(states, &next), "it is in that state");
    assert_eq!(report(&unit, 0, 255)[25], 1);
}

#[test]
fn who_may_change_states_can_be_configured() {
    let mut unit = unit();
    let listed = |unit: &Unit| {
        let all = listed(unit);
        [0xA3, 0xA4].map(|code| all.iter().any(|(c, sa, _)| (*c, *sa) == (code, Some(0x0A))))
    };
    for (alua, tpgs, commands) in [
        (Alua::Explicit, 0x30, [true, true]),
        (Alua::Implicit, 0x10, [true, false]),
        (Alua::Off, 0x00, [false, false]),
    ] {
        unit.alua = alua;
        assert_eq!(data(run(&unit, &[0x12, 0, 0, 0, 96, 0]))[5] & 0x30, tpgs);
        assert_eq!(listed(&unit), commands);
        let set = run(&unit, &cdb(12, &[(0, &[0xA4, 0x0A]), (9, &[8])]));
        assert_eq!(matches!(set.action, Action::Parameters(_)), commands[1]);
        if !commands[1] {
            illegal(&set, Code::INVALID_OPCODE);
        }
    }
}
