//! Both ends over the simulated fabric.

use std::rc::Rc;
use std::time::Duration;

use lunet_block::Random;
use lunet_iscsi::initiator::{
    self, Command, Data, Event, Options, Outcome, RdmaOffer, SubmitError, Unsolicited,
};
use lunet_iscsi::iser::{Remote, SMALL_SEGMENT};
use lunet_iscsi::pdu::{LogoutReason, LogoutResponse, TaskAttribute, TmfFunction, TmfResponse};
use lunet_iscsi::target::{self, CloseReason, RdmaFault};
use proptest::prelude::*;
use proptest::sample::select;

use crate::disk::{Disk, READ, WRITE, cdb};
use crate::driver::{Action, Allowed, Driver, action};
use crate::settings::{self, base_initiator};
use crate::wire::random_bytes;
use crate::world::{InitiatorEvent, World};

fn offer() -> impl Strategy<Value = RdmaOffer> {
    (select(vec![512, 1000, 8192, 65536]), select(vec![0, 2, 8])).prop_map(
        |(target_recv_data_segment_length, max_unexpected)| RdmaOffer {
            target_recv_data_segment_length,
            max_unexpected,
        },
    )
}

/// Any settings of an initiator, over RDMA.
fn from() -> impl Strategy<Value = Options> {
    (settings::initiator(), offer())
        .prop_map(|(options, offer)| Options { rdma: Some(offer), ..options })
}

fn over_rdma() -> Options {
    Options { rdma: Some(RdmaOffer::default()), ..base_initiator() }
}

fn connected() -> World {
    World::connected(over_rdma(), target::Options::default(), 7)
}

/// What happens until all is quiet. Memory is taken back as soon as its command has ended.
fn events(world: &mut World) -> Vec<InitiatorEvent> {
    let mut all = Vec::new();
    loop {
        let moved = world.step();
        for mut event in std::mem::take(&mut world.events) {
            if let Event::Finished(finished) = &mut event {
                world.take_back(finished);
            }
            all.push(event);
        }
        if !moved {
            return all;
        }
    }
}

fn command<'a>(cdb: &'a [u8], data: Data<Vec<u8>, Rc<[u8]>>) -> Command<'a, Vec<u8>, Rc<[u8]>> {
    Command { token: 0, lun: 0, cdb, attribute: TaskAttribute::Simple, immediate: false, data }
}

/// Runs the actions in a world and looks at what is left behind.
fn run(world: &mut World, actions: Vec<Action>, allowed: Allowed) -> Driver {
    let mut driver = Driver::new(world, actions, allowed);
    driver.run(world);
    if let Some(fabric) = &world.fabric {
        assert_eq!(fabric.regions(), 0, "memory is left registered");
        assert!(fabric.within_credits(), "more Sends than receives");
    }
    driver
}

fn actions(aborts: bool) -> impl Strategy<Value = Vec<Action>> {
    proptest::collection::vec(action(aborts), 1..24)
}

const GOOD: Allowed = Allowed { no_memory: false, damage: false };

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_data_is_right(from in from(), to in settings::target(), actions in actions(false), seed: u64) {
        let mut world = World::connected(from, to, seed);
        let (i, t) = (world.initiator.negotiated().clone(), world.target.negotiated().clone());
        prop_assert!(i.rdma && t.rdma.is_some_and(|terms| terms.extensions == Some(true)));
        prop_assert!(!i.header_digest && !t.header_digest && !i.data_digest && !t.data_digest);
        prop_assert_eq!(i.max_recv_data_segment_length, t.initiator_max_recv);
        prop_assert_eq!(i.target_max_recv_data_segment_length, t.target_max_recv);
        prop_assert_eq!((i.initial_r2t, i.immediate_data), (t.initial_r2t, t.immediate_data));
        let driver = run(&mut world, actions, GOOD);
        prop_assert_eq!(driver.answers[2] + driver.answers[3], 0);
        prop_assert_eq!(world.target.outstanding(), 0);
        // What Linux takes holds for everybody.
        let longest = world.fabric.as_ref().map_or(0, |fabric| fabric.longest);
        prop_assert!(longest <= 8192);
    }

    #[test]
    fn aborted_commands_end_once(from in from(), to in settings::target(), actions in actions(true), seed: u64) {
        let mut world = World::connected(from, to, seed);
        run(&mut world, actions, GOOD);
        prop_assert_eq!(world.disk.closed, None);
    }

    #[test]
    fn memory_and_registrations_may_fail(
        from in from(), to in settings::target(), actions in actions(true), seed: u64,
        failing in 1u64..100, registrations in 1u64..90,
    ) {
        let mut world = World::connected(from, to, seed);
        world.site.failing = failing;
        if let Some(fabric) = &mut world.fabric {
            fabric.failing = registrations;
        }
        run(&mut world, actions, Allowed { no_memory: true, damage: false });
        prop_assert_eq!(world.disk.closed, None);
    }

    #[test]
    fn a_lost_connection_ends_every_command_once(
        from in from(), to in settings::target(), actions in actions(true), seed: u64,
        steps in 0u64..400,
    ) {
        let mut world = World::connected(from, to, seed);
        if let Some(fabric) = &mut world.fabric {
            fabric.breaks_in = Some(steps);
        }
        let count = actions.len();
        let driver = run(&mut world, actions, Allowed { no_memory: false, damage: true });
        if let Some(fault) = world.fabric.as_ref().and_then(|fabric| fabric.broken) {
            prop_assert_eq!(world.disk.closed, Some(CloseReason::Rdma(fault)));
            prop_assert!(world.target.take_rdma_read().is_none());
        } else {
            prop_assert_eq!(driver.answers.iter().sum::<usize>(), count);
        }
    }

    #[test]
    fn a_login_may_be_cut_anywhere(from in from(), steps in 0u64..40, seed: u64) {
        let mut world = World::new(from, target::Options::default(), seed);
        if let Some(fabric) = &mut world.fabric {
            fabric.breaks_in = Some(steps);
        }
        world.settle();
        let broken = world.fabric.as_ref().and_then(|fabric| fabric.broken).is_some();
        prop_assert_eq!(world.initiator.is_over(), broken);
        prop_assert_eq!(world.target.is_closed(), broken);
        prop_assert!(broken || world.initiator.is_ready());
    }
}

/// Writes and reads back so many bytes.
fn round_trip(options: Options, to: target::Options, len: usize, seed: u64) -> World {
    let mut world = World::connected(options, to, seed);
    world.disk = Disk::sized(Random::new(seed), 9 << 20);
    let bytes: Rc<[u8]> = random_bytes(&mut Random::new(seed), len).into();
    world.submit(command(&cdb(WRITE, 512, len as u32), Data::Write(bytes.clone()))).expect("sent");
    world.pass(Duration::from_secs(10));
    let [Event::Finished(end)] = &events(&mut world)[..] else { panic!("no end") };
    assert!(matches!(&end.outcome, Outcome::Completed(end) if end.is_good()), "{:?}", end.outcome);
    world.submit(command(&cdb(READ, 512, len as u32), Data::Read(vec![0; len]))).expect("sent");
    world.pass(Duration::from_secs(10));
    let [Event::Finished(end)] = &events(&mut world)[..] else { panic!("no end") };
    let Outcome::Completed(completion) = &end.outcome else { panic!("{:?}", end.outcome) };
    assert!(completion.is_good() && completion.received as usize == len);
    assert!(matches!(&end.data, Data::Read(buf) if buf[..] == bytes[..]), "wrong data");
    world
}

#[test]
fn transfers_of_512_bytes_to_8_mib_in_every_way() {
    let to = target::Options { initial_r2t: false, ..target::Options::default() };
    for unsolicited in [
        Unsolicited::Full,
        Unsolicited::ImmediateOnly,
        Unsolicited::SeparateOnly,
        Unsolicited::Nothing,
    ] {
        for len in [512, 4096, 8192, 8193, 65_536, 262_144, 1 << 20, 8 << 20] {
            if len > 1 << 20 && unsolicited == Unsolicited::SeparateOnly {
                continue;
            }
            let options = Options { unsolicited, ..over_rdma() };
            let world = round_trip(options, to.clone(), len, len as u64);
            let counters = world.target.counters();
            assert!(counters.rdma_writes > 0 && counters.r2ts == 0);
            // Data-Out goes out unannounced as far as the target's receives reach, or not at all.
            let first = match unsolicited {
                Unsolicited::Full if len < 262_144 => 65_536,
                Unsolicited::SeparateOnly if len < 262_144 => 65_536,
                Unsolicited::Full => 8192,
                Unsolicited::SeparateOnly => 0,
                Unsolicited::ImmediateOnly => 8192,
                Unsolicited::Nothing => 0,
            };
            assert_eq!(counters.rdma_reads > 0, len > first, "{unsolicited:?} {len}");
            assert_eq!(counters.bytes_out, len as u64);
            assert_eq!(counters.bytes_in, len as u64);
        }
    }
}

#[test]
fn responses_take_steering_tags_back_where_both_ends_can() {
    let world = round_trip(over_rdma(), target::Options::default(), 1 << 20, 5);
    assert_eq!(world.fabric.expect("a fabric").invalidated, 2);
}

#[test]
fn discovery_goes_over_rdma_too() {
    let options = Options { target_name: None, ..over_rdma() };
    let mut world = World::connected(options, target::Options::default(), 3);
    for i in 0..400 {
        let name = format!("iqn.2026-11.local.lunet:target-{i:04}");
        world.site.portals.push((name, "192.0.2.1:3260".to_string(), 1));
    }
    world.initiator.send_targets("All", &mut world.sent).expect("sent");
    let [Event::Targets { targets, .. }] = &events(&mut world)[..] else { panic!("no answer") };
    assert_eq!(targets.len(), 400);
    let longest = world.fabric.as_ref().map_or(0, |fabric| fabric.longest);
    assert!((4096..=8192).contains(&longest), "{longest}");
}

#[test]
fn sends_of_a_normal_session_fit_the_buffers_of_linux() {
    let mut world = connected();
    if let Some(fabric) = &mut world.fabric {
        fabric.longest = 0;
    }
    for i in 0..20 {
        let portal = (settings::TARGET.to_string(), format!("192.0.2.{i}:3260"), 1);
        world.site.portals.push(portal);
    }
    world.initiator.send_targets("", &mut world.sent).expect("sent");
    let [Event::Targets { targets, .. }] = &events(&mut world)[..] else { panic!("no answer") };
    assert_eq!(targets[0].addresses.len(), 20);
    let ping = [7; SMALL_SEGMENT];
    let tag = world.initiator.ping(&ping, &mut world.sent).expect("sent");
    assert_eq!(events(&mut world), [Event::Pong { tag, intact: true }]);
    let longer = [7; SMALL_SEGMENT + 1];
    assert_eq!(world.initiator.ping(&longer, &mut world.sent), Err(SubmitError::TooLong));
    assert_eq!(world.fabric.expect("a fabric").longest, SMALL_SEGMENT);
}

#[test]
fn a_logout_ends_both_ends_with_commands_under_way() {
    let mut world = connected();
    world.disk.stalled = true;
    let data = Data::Write(vec![1; 65_536].into());
    world.submit(command(&cdb(WRITE, 0, 65_536), data)).expect("sent");
    world.settle();
    let now = world.now;
    world.initiator.logout(LogoutReason::CloseSession, now, &mut world.sent).expect("sent");
    let events = events(&mut world);
    let [Event::Finished(lost), Event::LoggedOut { response, .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(lost.outcome, Outcome::Lost);
    assert_eq!(*response, Ok(LogoutResponse::Closed));
    assert_eq!(world.disk.closed, Some(CloseReason::LoggedOut));
}

#[test]
fn a_reset_waits_for_the_reads_of_what_it_ends() {
    let to = target::Options { initial_r2t: true, ..target::Options::default() };
    let from = Options { unsolicited: Unsolicited::Nothing, ..over_rdma() };
    for seed in 0..200 {
        let mut world = World::connected(from.clone(), to.clone(), seed);
        for _ in 0..4 {
            let data = Data::Write(vec![1; 65_536].into());
            world.submit(command(&cdb(WRITE, 0, 65_536), data)).expect("sent");
        }
        for _ in 0..seed % 40 {
            world.step();
        }
        let function = TmfFunction::LogicalUnitReset;
        world.initiator.manage(function, 0, None, &mut world.sent).expect("sent");
        let events = events(&mut world);
        // Memory is taken back with the answer: a late RDMA Read would break the connection.
        assert!(
            events.iter().any(|event| matches!(
                event,
                Event::Managed { response: Some(Ok(TmfResponse::Complete)), .. }
            )),
            "{events:?}"
        );
        assert_eq!((world.disk.closed, world.target.outstanding()), (None, 0));
    }
}

#[test]
fn a_wrong_steering_tag_ends_its_connection_alone() {
    let mut other = connected();
    for op in [READ, WRITE] {
        let from = Options { unsolicited: Unsolicited::Nothing, ..over_rdma() };
        let mut world = World::connected(from, target::Options::default(), 7);
        let data = match op {
            READ => Data::Read(vec![0; 65_536]),
            _ => Data::Write(vec![1; 65_536].into()),
        };
        let wrong = Some(Remote { stag: 0xdead, offset: 0 });
        let cdb = cdb(op, 0, 65_536);
        world.initiator.submit_rdma(command(&cdb, data), wrong, &mut world.sent).expect("sent");
        world.pass(Duration::from_secs(5));
        assert_eq!(world.disk.closed, Some(CloseReason::Rdma(RdmaFault::RemoteAccess)));
        let events = std::mem::take(&mut world.events);
        let [Event::Finished(lost), Event::Failed(error)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(lost.outcome, Outcome::Lost);
        assert_eq!(*error, initiator::Error::TransportClosed);
    }
    other.submit(command(&cdb(READ, 0, 512), Data::Read(vec![0; 512]))).expect("sent");
    other.pass(Duration::from_secs(5));
    let events = events(&mut other);
    assert!(matches!(&events[..], [Event::Finished(end)] if end.outcome != Outcome::Lost));
}

#[test]
fn more_than_the_posted_receives_ends_an_impatient_connection() {
    let mut world = connected();
    if let Some(fabric) = &mut world.fabric {
        fabric.patient = false;
        // Commands outside the window: nothing answers them, and nothing is left of them.
        let mut send = lunet_iscsi::iser::Header::default().to_bytes().to_vec();
        send.extend_from_slice(&[0x01, 0x80]);
        send.resize(76, 0xff);
        send[32..36].copy_from_slice(&[0; 4]);
        fabric.initiator_sends(std::iter::repeat_n(send, 20_000));
    }
    world.settle();
    assert_eq!(world.disk.closed, Some(CloseReason::Rdma(RdmaFault::NoReceive)));
    let counters = world.target.counters();
    assert_eq!((counters.outside_window, counters.commands), (counters.pdus_in - 2, 0));
}

#[test]
fn unsolicited_data_stays_within_the_posted_receives() {
    let rdma = Some(RdmaOffer { target_recv_data_segment_length: 512, ..RdmaOffer::default() });
    let from = Options { rdma, unsolicited: Unsolicited::SeparateOnly, ..base_initiator() };
    let mut world = World::connected(from, target::Options::default(), 7);
    for i in 0..16 {
        // 16 Data-Out each, as far as they go: 24 of 32 receives are for data.
        let data = Data::Write(vec![i; 8192].into());
        world.submit(command(&cdb(WRITE, u32::from(i) * 8192, 8192), data)).expect("sent");
    }
    world.pass(Duration::from_secs(10));
    assert_eq!(events(&mut world).len(), 16);
    // All that one write carried, and no more.
    let counters = world.target.counters();
    assert!(counters.rdma_reads >= 15 && counters.pdus_in < 40, "{counters:?}");
    assert!(world.fabric.expect("a fabric").within_credits(), "more Sends than receives");
    assert!(world.disk.bytes.chunks(8192).zip(0..16).all(|(part, i)| part == [i; 8192]));
}

#[test]
fn unannounced_pdus_stop_at_what_the_target_declared() {
    let mut world = connected();
    world.disk.stalled = true;
    let limit = world.initiator.negotiated().target_max_unexpected;
    assert_eq!(limit, target::options::MAX_IMMEDIATE);
    let mut sent = 0;
    let refused = loop {
        match world.initiator.ping(b"?", &mut world.sent) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((sent, refused), (limit - 3, SubmitError::NoCredit));
    assert_eq!(events(&mut world).len() as u32, sent);
    assert!(world.initiator.ping(b"!", &mut world.sent).is_ok());
}
