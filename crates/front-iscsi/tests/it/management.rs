//! Task management: what a function ends, and what it leaves alone.

use std::time::Duration;

use lunet_front_iscsi::{Access, Config, Initiators, TargetEntry};
use lunet_iscsi::initiator::{Data, Event, Outcome};
use lunet_iscsi::pdu::{LogoutReason, LogoutResponse, TmfFunction, TmfResponse};
use lunet_ring::DriverChoice;

use crate::support::client::{Client, command, rw16};
use crate::support::status::{CHECK_CONDITION, GOOD};
use crate::support::{TARGET, config, memory, on_each_driver, stalling, start, until};

const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// The functions that reach beyond one command and leave the session alone.
const FUNCTIONS: [TmfFunction; 4] = [
    TmfFunction::AbortTaskSet,
    TmfFunction::ClearTaskSet,
    TmfFunction::LogicalUnitReset,
    TmfFunction::TargetWarmReset,
];

/// Runs a test for each function, on one shard and on several, on each driver.
fn each(test: impl Fn(TmfFunction, &dyn Fn(Vec<lunet_backends::Volume>) -> Config)) {
    let with = |function, shards, driver: DriverChoice| {
        test(function, &|volumes| {
            let mut config = Config { shards: Some(shards), ..config(volumes, driver) };
            config.layout.targets[0].allow_reset = true;
            config
        });
    };
    on_each_driver(|driver| {
        for function in FUNCTIONS {
            with(function, 1, driver);
            with(function, 5, driver);
        }
    });
}

/// RFC 7143 4.2.3.2: only tasks with a lower CmdSN are ended. What follows in the same segment is carried
/// out and answered, although other shards have not yet done their part of the function.
#[test]
fn commands_behind_a_function_are_carried_out() {
    each(|function, config| {
        let (volume, gate) = stalling(16);
        let (server, address) = start(config(vec![volume]));
        let mut client = Client::login(address, 1);
        gate.close();
        let (older, function_tag, ready, newer) = client.batch(|proto, out| {
            let mut submit = |lba, byte| {
                let write = rw16(0x8A, lba, 1);
                proto.submit(command(0, &write, Data::Write(vec![byte; 512])), out)
            };
            let older = submit(100, 1).expect("the window is open");
            let tag = proto.manage(function, 0, None, out).expect("it can be sent");
            let ready = proto.submit(command(0, &TEST_UNIT_READY, Data::None), out);
            let write = rw16(0x8A, 200, 1);
            let newer = proto.submit(command(0, &write, Data::Write(vec![2; 512])), out);
            (older, tag, ready.expect("room"), newer.expect("room"))
        });
        let answer = client.wait(|event| match event {
            Event::Managed { tag, response } if *tag == function_tag => *response,
            _ => None,
        });
        assert_eq!(answer, Ok(TmfResponse::Complete), "{function:?}");
        assert_eq!(client.outcome(older).outcome, Outcome::Aborted, "{function:?}");
        let Outcome::Completed(ready) = client.outcome(ready).outcome else { panic!() };
        let resets = [TmfFunction::LogicalUnitReset, TmfFunction::TargetWarmReset];
        let reset = resets.contains(&function);
        assert_eq!(ready.status, if reset { CHECK_CONDITION } else { GOOD }, "{function:?}");
        until("the newer write is at the storage", || gate.held() == 2);
        gate.open();
        let Outcome::Completed(newer) = client.outcome(newer).outcome else { panic!() };
        assert_eq!(newer.status, GOOD, "{function:?}");
        assert_eq!(client.read(0, 200, 1), (GOOD, vec![2; 512]));
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// All of it in one segment, a Logout at the end: everything is answered, in this order.
#[test]
fn a_logout_behind_a_function_waits_for_it() {
    each(|function, config| {
        let (server, address) = start(config(vec![memory(1)]));
        let mut client = Client::login(address, 1);
        let read = rw16(0x88, 0, 1);
        let (ready, read) = client.batch(|proto, out| {
            proto.manage(function, 0, None, out).expect("it can be sent");
            let ready = proto.submit(command(0, &TEST_UNIT_READY, Data::None), out);
            let read = proto.submit(command(0, &read, Data::Read(vec![0; 512])), out);
            let reason = LogoutReason::CloseSession;
            proto.logout(reason, Duration::ZERO, out).expect("it can be sent");
            (ready.expect("room"), read.expect("room"))
        });
        let logged_out = client.wait(|event| match event {
            Event::LoggedOut { response, .. } => Some(*response),
            _ => None,
        });
        assert_eq!(logged_out, Ok(LogoutResponse::Closed));
        let managed = client.wait(|event| match event {
            Event::Managed { response, .. } => Some(*response),
            _ => None,
        });
        assert_eq!(managed, Some(Ok(TmfResponse::Complete)), "{function:?}");
        for tag in [ready, read] {
            let outcome = client.outcome(tag).outcome;
            assert!(matches!(outcome, Outcome::Completed(_)), "{function:?}: {outcome:?}");
        }
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

const OTHER: &str = "iqn.2026-11.local.lunet:other";
const STRANGER: &str = "iqn.2026-11.local.lunet:stranger";

/// Two targets. The first has the volumes 0 and 1, of which strangers see none; the second has 1 and 2.
fn two_targets(driver: DriverChoice, allow_reset: bool) -> Config {
    let mut config = config(vec![memory(1), memory(1), memory(1)], driver);
    let mut known = Initiators::default();
    known.add_name("*:client");
    config.layout.targets = vec![
        TargetEntry {
            name: TARGET.into(),
            luns: vec![(0, 0), (1, 1)],
            access: Access { luns: vec![(0, known.clone()), (1, known)], ..Access::default() },
            allow_reset,
            ..TargetEntry::default()
        },
        TargetEntry { name: OTHER.into(), luns: vec![(0, 1), (1, 2)], ..TargetEntry::default() },
    ];
    config
}

/// Logs in and takes the unit attentions of both LUNs.
fn settled(address: std::net::SocketAddr, number: u8, target: &str, name: &str) -> Client {
    let mut options = Client::options();
    options.isid[5] = number;
    options.target_name = Some(target.into());
    options.initiator_name = name.into();
    let mut client = Client::try_login(address, options).expect("it may");
    for lun in 0..2 {
        client.finish(lun, &TEST_UNIT_READY, Data::None);
    }
    client
}

const CLIENT: &str = "iqn.2026-11.local.lunet:client";

/// What TEST UNIT READY says: 0, or the additional sense code.
fn told(client: &mut Client, lun: u16) -> u8 {
    let answer = client.finish(lun, &TEST_UNIT_READY, Data::None);
    if answer.status == GOOD { 0 } else { answer.sense[12] }
}

const RESET: u8 = 0x29;

#[test]
fn a_target_is_reset_only_where_it_is_allowed() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(driver, false));
        let mut client = settled(address, 1, TARGET, CLIENT);
        let mut beside = settled(address, 2, TARGET, CLIENT);
        for function in [TmfFunction::TargetWarmReset, TmfFunction::TargetColdReset] {
            // RFC 7143 11.6.1.
            assert_eq!(client.manage(function, 0, None), TmfResponse::AuthorizationFailed);
        }
        for lun in 0..2 {
            assert_eq!((told(&mut client, lun), told(&mut beside, lun)), (0, 0));
        }
        assert_eq!(server.handle().sessions().len(), 2);
        drop((client, beside));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// It ends the sessions of that target, and of those only who see what the caller sees.
#[test]
fn a_cold_reset_stays_within_its_target_and_what_the_caller_sees() {
    on_each_driver(|driver| {
        let (server, address) = start(two_targets(driver, true));
        let mut other = settled(address, 1, OTHER, CLIENT);
        let mut stranger = settled(address, 2, TARGET, STRANGER);
        let mut beside = settled(address, 3, TARGET, CLIENT);
        // Who sees nothing resets nothing but its own session.
        assert_eq!(stranger.manage(TmfFunction::TargetColdReset, 0, None), TmfResponse::Complete);
        assert!(stranger.is_closed_by_server());
        for client in [&mut other, &mut beside] {
            assert_eq!((told(client, 0), told(client, 1)), (0, 0));
        }
        let mut stranger = settled(address, 2, TARGET, STRANGER);
        let mut caller = settled(address, 4, TARGET, CLIENT);
        assert_eq!(caller.manage(TmfFunction::TargetColdReset, 0, None), TmfResponse::Complete);
        assert!(caller.is_closed_by_server() && beside.is_closed_by_server());
        // The other target shows one of the logical units that were reset, and its session goes on.
        assert_eq!((told(&mut other, 0), told(&mut other, 1)), (RESET, 0));
        assert_eq!(told(&mut other, 0), 0);
        assert_eq!(told(&mut stranger, 0), 0x25, "it is there and sees no logical unit");
        until("two sessions are left", || server.handle().sessions().len() == 2);
        drop((other, stranger));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
