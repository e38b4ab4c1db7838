//! Login, discovery, logout, task management, and the end of patience.

use std::rc::Rc;
use std::time::Duration;

use lunet_iscsi::initiator::{
    Command, Data, Error, Event, LoginInfo, Options, Outcome, RdmaOffer, Tag, Unsolicited,
};
use lunet_iscsi::pdu::{
    AsyncEvent, LoginStatus, LogoutReason, LogoutResponse, TaskAttribute, TmfFunction, TmfResponse,
};
use lunet_iscsi::target::{self, CloseReason, SessionType};

use crate::disk::{NOTHING, READ, WRITE, cdb};
use crate::settings::{INITIATOR, TARGET, base_initiator};
use crate::world::{InitiatorEvent, World};

fn world() -> World {
    World::connected(base_initiator(), target::Options::default(), 7)
}

/// A world over the stream, and one over RDMA.
fn worlds() -> [World; 2] {
    let rdma = Options { rdma: Some(RdmaOffer::default()), ..base_initiator() };
    [world(), World::connected(rdma, target::Options::default(), 7)]
}

fn submit(world: &mut World, lun: u64, op: u8, data: Data<Vec<u8>, Rc<[u8]>>) -> Tag {
    let len = match &data {
        Data::None => 0,
        Data::Read(buf) => buf.len(),
        Data::Discard(len) => *len as usize,
        Data::Write(bytes) => bytes.len(),
    };
    let command = Command {
        token: 0,
        lun,
        cdb: &cdb(op, 0, len as u32),
        attribute: TaskAttribute::Simple,
        immediate: false,
        data,
    };
    world.submit(command).expect("accepted")
}

fn manage(world: &mut World, function: TmfFunction, lun: u64, task: Option<Tag>) -> Tag {
    world.initiator.manage(function, lun, task, &mut world.sent).expect("accepted")
}

fn events(world: &mut World) -> Vec<InitiatorEvent> {
    world.settle();
    std::mem::take(&mut world.events)
}

/// Tags of the commands that were aborted, in order, and the answer to the function.
fn managed(world: &mut World) -> (Vec<Tag>, Option<Result<TmfResponse, u8>>) {
    let mut aborted = Vec::new();
    let mut answer = None;
    for event in events(world) {
        match event {
            Event::Finished(finished) if finished.outcome == Outcome::Aborted => {
                aborted.push(finished.tag);
            }
            Event::Managed { response, .. } => answer = response,
            other => panic!("unexpected {other:?}"),
        }
    }
    aborted.sort();
    (aborted, answer)
}

#[test]
fn a_login_tells_both_ends_who_the_other_is() {
    let isid = [0x80, 1, 2, 3, 0, 4];
    let alias = Some("someone".to_string());
    let options = Options { isid, initiator_alias: alias.clone(), cid: 6, ..base_initiator() };
    let mut world = World::new(options, target::Options::default(), 3);
    let events = events(&mut world);
    let [Event::LoggedIn(info)] = &events[..] else { panic!("unexpected {events:?}") };
    let LoginInfo { tsih, portal_group_tag, target_alias, .. } = &**info;
    assert_eq!((*tsih, *portal_group_tag), (0x5151, Some(3)));
    assert_eq!(target_alias.as_deref(), Some("a pair"));
    let identity = world.disk.identity.expect("an identity");
    assert_eq!(identity.initiator_name, INITIATOR);
    assert_eq!(identity.target_name.as_deref(), Some(TARGET));
    assert_eq!((identity.initiator_alias, identity.isid, identity.cid), (alias, isid, 6));
    assert_eq!((identity.session_type, identity.tsih), (SessionType::Normal, 0));
}

#[test]
fn a_login_that_takes_an_older_session_over_names_it() {
    let isid = [0x80, 9, 9, 9, 0, 1];
    let world = World::connected(
        Options { isid, tsih: 0, ..base_initiator() },
        target::Options::default(),
        3,
    );
    // The same names and ISID with TSIH 0: the registry above sees who is to be replaced.
    let first = world.disk.identity.expect("an identity");
    let world =
        World::connected(Options { isid, ..base_initiator() }, target::Options::default(), 4);
    assert_eq!(world.disk.identity.as_ref(), Some(&first));
    // A TSIH asks for a further connection of a session, which the registry refuses.
    let mut world = World::new(
        Options { isid, tsih: 0x5151, ..base_initiator() },
        target::Options::default(),
        5,
    );
    world.disk.refuse = Some(LoginStatus::TooManyConnections);
    let status = LoginStatus::TooManyConnections.code();
    let refused = Event::Failed(Error::LoginRefused { status, address: None });
    assert_eq!(events(&mut world), [refused]);
    assert_eq!(world.disk.identity.map(|identity| identity.tsih), Some(0x5151));
    assert!(world.target.is_closed());
}

#[test]
fn an_unknown_target_is_refused() {
    let options = Options::new(INITIATOR, Some("iqn.2026-11.local.lunet:other"));
    let mut world = World::new(options, target::Options::default(), 3);
    let status = LoginStatus::NotFound.code();
    let refused = Event::Failed(Error::LoginRefused { status, address: None });
    assert_eq!(events(&mut world), [refused]);
    assert_eq!(world.disk.closed, Some(CloseReason::LoginRefused(status)));
}

#[test]
fn long_key_data_passes_in_both_directions() {
    let extra_keys = (0..1000).map(|i| (format!("X-key-{i}"), "v".repeat(25))).collect();
    let options = Options { extra_keys, ..base_initiator() };
    let mut world = World::new(options, target::Options::default(), 3);
    let events = events(&mut world);
    let [Event::LoggedIn(info)] = &events[..] else { panic!("unexpected {events:?}") };
    let unknown = info.answers.iter().filter(|(_, value)| value == "NotUnderstood").count();
    assert_eq!(unknown, 1000);
}

#[test]
fn discovery_shows_all_targets_however_many() {
    for segment in [512, 65536] {
        let options =
            Options { max_recv_data_segment_length: segment, ..Options::new(INITIATOR, None) };
        let mut world = World::connected(options, target::Options::default(), 9);
        let name = |i: usize| format!("iqn.2026-11.local.lunet:volume-{i}");
        for i in 0..300 {
            world.site.portals.push((name(i), format!("192.0.2.1:{}", 3260 + i), 1));
            world.site.portals.push((name(i), "[2001:db8::1]:3260".to_string(), 2));
        }
        world.initiator.send_targets("All", &mut world.sent).expect("accepted");
        let events = events(&mut world);
        let [Event::Targets { targets, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(targets.len(), 300);
        assert_eq!(targets[77].name, name(77));
        assert_eq!(targets[77].addresses, ["192.0.2.1:3337,1", "[2001:db8::1]:3260,2"]);
    }
}

#[test]
fn a_normal_session_may_ask_for_its_own_target() {
    for mut world in worlds() {
        for name in [TARGET, "iqn.2026-11.local.lunet:other"] {
            world.site.portals.push((name.to_string(), "192.0.2.1:3260".to_string(), 1));
        }
        world.initiator.send_targets("", &mut world.sent).expect("accepted");
        let events = events(&mut world);
        let [Event::Targets { targets, .. }] = &events[..] else { panic!("{events:?}") };
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, [TARGET]);
    }
}

#[test]
fn a_logout_ends_both_ends() {
    for mut world in worlds() {
        world
            .initiator
            .logout(LogoutReason::CloseSession, world.now, &mut world.sent)
            .expect("sent");
        let response = Ok(LogoutResponse::Closed);
        let expected = Event::LoggedOut { response, time2wait: 2, time2retain: 0 };
        assert_eq!(events(&mut world), [expected]);
        assert_eq!(world.disk.closed, Some(CloseReason::LoggedOut));
        assert!(world.initiator.is_over() && world.target.is_closed());
    }
}

#[test]
fn the_target_may_ask_for_a_logout() {
    for mut world in worlds() {
        world.target.request_logout(world.now, Duration::from_secs(5), &mut world.answers);
        let asked = events(&mut world);
        let [Event::Async(notice)] = &asked[..] else { panic!("unexpected {asked:?}") };
        assert_eq!((notice.event, notice.parameters[2]), (Some(AsyncEvent::LogoutRequest), 5));
        world
            .initiator
            .logout(LogoutReason::CloseSession, world.now, &mut world.sent)
            .expect("sent");
        assert!(matches!(events(&mut world)[..], [Event::LoggedOut { .. }]));
        assert_eq!(world.disk.closed, Some(CloseReason::LoggedOut));
    }
}

#[test]
fn a_logout_that_does_not_come_is_not_waited_for() {
    for mut world in worlds() {
        world.target.request_logout(world.now, Duration::from_secs(5), &mut world.answers);
        world.pass(Duration::from_millis(4900));
        assert_eq!(world.disk.closed, None);
        world.pass(Duration::from_millis(200));
        assert_eq!(world.disk.closed, Some(CloseReason::LogoutTimeout));
    }
}

#[test]
fn a_silent_initiator_is_pinged_and_given_up() {
    let options = Options { ping_interval: None, ..base_initiator() };
    let mut world = World::connected(options, target::Options::default(), 7);
    let ping = target::Options::default().ping_interval + Duration::from_secs(1);
    world.pass(ping);
    assert_eq!(world.target.counters().pings_out, 1);
    assert_eq!(world.disk.closed, None);
    // From now on the initiator hears and says nothing.
    let end = world.now + Duration::from_secs(120);
    while world.now < end && world.disk.closed.is_none() {
        world.advance(end);
        world.flush();
    }
    assert_eq!(world.disk.closed, Some(CloseReason::PingTimeout));
}

#[test]
fn a_silent_target_is_given_up() {
    for mut world in worlds() {
        let tag = submit(&mut world, 0, NOTHING, Data::None);
        let end = world.now + Duration::from_secs(60);
        while world.now < end && !world.initiator.is_over() {
            world.now += Duration::from_secs(1);
            world.timeouts();
        }
        let events = std::mem::take(&mut world.events);
        let [Event::Finished(finished), Event::Failed(Error::PingTimeout)] = &events[..] else {
            panic!("unexpected {events:?}")
        };
        assert_eq!((finished.tag, &finished.outcome), (tag, &Outcome::Lost));
    }
}

#[test]
fn a_login_that_stops_half_way_is_given_up() {
    let mut world = World::new(base_initiator(), target::Options::default(), 3);
    let end = world.now + Duration::from_secs(60);
    while world.disk.closed.is_none() && world.now < end {
        world.advance(end);
    }
    assert_eq!(world.disk.closed, Some(CloseReason::LoginTimeout));
    assert_eq!(world.events, [Event::Failed(Error::LoginTimeout)]);
}

#[test]
fn pings_carry_data_there_and_back() {
    for mut world in worlds() {
        let tag = world.initiator.ping(b"are you there?", &mut world.sent).expect("sent");
        assert_eq!(events(&mut world), [Event::Pong { tag, intact: true }]);
        assert_eq!(world.target.counters().pings_in, 1);
    }
}

#[test]
fn an_abort_is_answered_while_the_disk_stalls() {
    for mut world in worlds() {
        world.disk.stalled = true;
        let read = submit(&mut world, 0, READ, Data::Read(vec![0; 4096]));
        let other = submit(&mut world, 0, NOTHING, Data::None);
        assert!(events(&mut world).is_empty());
        manage(&mut world, TmfFunction::AbortTask, 0, Some(read));
        assert_eq!(managed(&mut world), (vec![read], Some(Ok(TmfResponse::Complete))));
        world.disk.stalled = false;
        world.pass(Duration::from_secs(3));
        let events = events(&mut world);
        let [Event::Finished(finished)] = &events[..] else { panic!("unexpected {events:?}") };
        assert_eq!(finished.tag, other);
    }
}

#[test]
fn a_write_whose_data_is_awaited_can_be_aborted() {
    let unsolicited = Unsolicited::Nothing;
    for rdma in [None, Some(RdmaOffer::default())] {
        let options = Options { unsolicited, rdma, ..base_initiator() };
        let mut world = World::connected(options, target::Options::default(), 7);
        let before = world.disk.bytes.clone();
        let write = submit(&mut world, 0, WRITE, Data::Write(vec![1; 60_000].into()));
        // The R2T is on its way when the abort is sent; its Data-Out arrives behind the abort.
        world.flush();
        manage(&mut world, TmfFunction::AbortTask, 0, Some(write));
        let (aborted, answer) = managed(&mut world);
        assert_eq!((aborted, answer), (vec![write], Some(Ok(TmfResponse::Complete))));
        world.pass(Duration::from_secs(3));
        assert!(events(&mut world).is_empty());
        assert!(world.disk.bytes == before);
        assert_eq!(world.target.outstanding(), 0);
        assert!(!world.target.is_closed());
    }
}

#[test]
fn resets_end_the_commands_of_a_unit_or_of_all() {
    let cases = [
        (TmfFunction::LogicalUnitReset, true),
        (TmfFunction::AbortTaskSet, true),
        (TmfFunction::ClearTaskSet, true),
        (TmfFunction::TargetWarmReset, false),
    ];
    for (function, one_unit) in cases {
        for mut world in worlds() {
            world.disk.stalled = true;
            let first = submit(&mut world, 0, NOTHING, Data::None);
            let second = submit(&mut world, 1 << 48, NOTHING, Data::None);
            manage(&mut world, function, 0, None);
            let expected = if one_unit { vec![first] } else { vec![first, second] };
            assert_eq!(
                managed(&mut world),
                (expected, Some(Ok(TmfResponse::Complete))),
                "{function:?}"
            );
        }
    }
}

#[test]
fn an_abort_that_passes_the_answer_on_the_way_finds_nothing() {
    for mut world in worlds() {
        world.disk.slowness = 0;
        let tag = submit(&mut world, 0, NOTHING, Data::None);
        // The answer is on its way to the initiator when it sends the abort.
        while world.disk.jobs() > 0 || world.target.counters().commands == 0 {
            world.step();
        }
        assert!(world.events.is_empty(), "the answer is still on its way");
        manage(&mut world, TmfFunction::AbortTask, 0, Some(tag));
        let events = events(&mut world);
        assert!(matches!(&events[0], Event::Finished(finished)
        if matches!(&finished.outcome, Outcome::Completed(end) if end.is_good())));
        let response = Some(Ok(TmfResponse::TaskDoesNotExist));
        assert!(matches!(&events[1], Event::Managed { response: got, .. } if *got == response));
    }
}
