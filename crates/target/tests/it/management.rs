//! Task management: what a function ends, and what it leaves alone.

use std::time::Duration;

use lunet_iscsi::initiator::{Data, Event, Outcome};
use lunet_iscsi::pdu::{LogoutReason, LogoutResponse, TmfFunction, TmfResponse};
use lunet_ring::DriverChoice;
use lunet_target::Config;

use crate::support::client::{Client, command, rw16};
use crate::support::status::{CHECK_CONDITION, GOOD};
use crate::support::{config, memory, on_each_driver, stalling, start, until};

const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// The functions that reach beyond one command.
const FUNCTIONS: [TmfFunction; 3] =
    [TmfFunction::AbortTaskSet, TmfFunction::ClearTaskSet, TmfFunction::LogicalUnitReset];

/// Runs a test for each function, on one shard and on several, on each driver.
fn each(test: impl Fn(TmfFunction, &dyn Fn(Vec<lunet_backends::Volume>) -> Config)) {
    let with = |function, shards, driver: DriverChoice| {
        test(function, &|volumes| Config { shards: Some(shards), ..config(volumes, driver) });
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
        let reset = function == TmfFunction::LogicalUnitReset;
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
