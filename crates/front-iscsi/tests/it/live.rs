//! What is served changes while sessions run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lunet_backends::Volume;
use lunet_front_iscsi::{Config, Layout, TargetEntry, VolumeEntry};
use lunet_iscsi::initiator::{Data, Event};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_scsi::{Identity, Unit};
use lunet_server::{ApplyError, Committed};
use lunet_volume::{Health, HoldError};

use crate::support::block::At;
use crate::support::client::{Client, rw16};
use crate::support::{TARGET, config, file_volume, memory, on_each_driver, start, trapped, until};

/// Each volume by its name, as LUN number of one target.
fn layout(volumes: &[(&str, &Volume, u16)]) -> Layout {
    let entry = |(name, volume, _): &(&str, &Volume, u16)| VolumeEntry {
        name: (*name).into(),
        volume: Arc::clone(volume),
        unit: Unit::new(
            Identity::from_seed(&format!("test {}", &name[1..])),
            volume.caps().clone(),
        ),
        health: Health::new(name),
        path: None,
        reservations: None,
    };
    let luns = volumes.iter().enumerate().map(|(at, (_, _, lun))| (*lun, at)).collect();
    let target = TargetEntry { name: TARGET.into(), luns, ..TargetEntry::default() };
    Layout {
        groups: vec![],
        volumes: volumes.iter().map(entry).collect(),
        targets: vec![target],
        ..Layout::default()
    }
}

/// Sense key and additional sense code of TEST UNIT READY; zeroes if it is ready.
fn state(client: &mut Client, lun: u16) -> (u8, u8, u8) {
    let answer = client.finish(lun, &[0; 6], Data::None);
    match answer.sense {
        sense if sense.len() >= 14 => (sense[2] & 0xF, sense[12], sense[13]),
        _ => (0, 0, 0),
    }
}

const READY: (u8, u8, u8) = (0, 0, 0);
const POWER_ON: (u8, u8, u8) = (6, 0x29, 0x00);
const CAPACITY_CHANGED: (u8, u8, u8) = (6, 0x2A, 0x09);
const LUNS_CHANGED: (u8, u8, u8) = (6, 0x3F, 0x0E);
const NO_SUCH_LUN: (u8, u8, u8) = (5, 0x25, 0x00);

/// REPORT LUNS.
fn luns(client: &mut Client) -> Vec<u8> {
    let mut cdb = [0; 12];
    cdb[0] = 0xA0;
    cdb[9] = 255;
    let tag = client.start(0, &cdb, Data::Read(vec![0; 255]));
    let finished = client.outcome(tag);
    let Data::Read(data) = finished.data else { panic!("no data") };
    let len = u32::from_be_bytes([data[0], data[1], data[2], data[3]]) as usize;
    data[8..8 + len].chunks(8).map(|lun| lun[1]).collect()
}

#[test]
fn luns_come_and_go_under_a_session_that_reads_on() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (memory(1), file_volume(&dir));
        let (server, address) = start(config(vec![a.clone()], driver));
        let mut clients: Vec<Client> = (0..4).map(|n| Client::login(address, n)).collect();
        let handle = server.handle();
        handle.apply(layout(&[("v0", &a, 0), ("v1", &b, 7)])).expect("a LUN comes");
        for client in &mut clients {
            assert_eq!(state(client, 0), LUNS_CHANGED);
            assert_eq!(luns(client), [0, 7]);
            assert_eq!(state(client, 7), POWER_ON);
            assert_eq!(state(client, 7), READY, "REPORT LUNS has told the rest");
            assert_eq!(client.write(7, 3, vec![7; 512]), 0);
        }
        handle.apply(layout(&[("v0", &a, 0)])).expect("it goes");
        for client in &mut clients {
            assert_eq!(state(client, 7), NO_SUCH_LUN);
            assert_eq!(state(client, 0), LUNS_CHANGED);
            assert_eq!(luns(client), [0]);
        }
        handle.apply(layout(&[("v1", &b, 0)])).expect("another volume under the same number");
        for client in &mut clients {
            assert_eq!(state(client, 0), POWER_ON);
            assert_eq!(client.read(0, 3, 1).1, vec![7; 512]);
        }
        assert!(server.stop(std::time::Duration::ZERO).flushed);
    });
}

#[test]
fn a_volume_that_grows_tells_its_sessions_once_and_no_others() {
    on_each_driver(|driver| {
        let (small, large, other) = (memory(1), memory(2), memory(1));
        let (server, address) = start(config(vec![small.clone(), other.clone()], driver));
        let mut client = Client::login(address, 1);
        assert_eq!(state(&mut client, 1), POWER_ON);
        let handle = server.handle();
        handle.apply(layout(&[("v0", &large, 0), ("v1", &other, 1)])).expect("it grows");
        assert_eq!(state(&mut client, 1), READY);
        assert_eq!(state(&mut client, 0), CAPACITY_CHANGED);
        assert_eq!(state(&mut client, 0), READY);
        assert_eq!(client.write(0, (2 << 11) - 1, vec![1; 512]), 0, "the last block");
        assert!(server.stop(std::time::Duration::ZERO).flushed);
    });
}

#[test]
fn a_session_of_a_removed_target_is_asked_to_leave() {
    let volume = memory(1);
    let (server, address) = start(config(vec![volume.clone()], lunet_ring::DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    let handle = server.handle();
    handle.apply(Layout::default()).expect("nothing is served");
    assert!(client.is_closed_by_server());
    assert_eq!(handle.stats().volumes.len(), 0);
    handle.apply(layout(&[("v0", &volume, 0)])).expect("it comes back");
    let mut client = Client::login(address, 1);
    assert_eq!(client.read(0, 0, 1).0, 0);
}

#[test]
fn a_volume_may_go_while_a_session_that_has_ended_is_owed_answers() {
    let volume = memory(8);
    let (server, address) = start(config(vec![volume.clone()], lunet_ring::DriverChoice::Auto));
    let handle = server.handle();
    let mut client = Client::login(address, 1);
    client.narrow(4096);
    client.start(0, &rw16(0x88, 0, 6144), Data::Read(vec![0; 3 << 20]));
    client.wait_for_bytes();
    // A segment that is too long: the connection is to end once it has taken what is queued, and it takes nothing.
    client
        .batch(|_, out| out.extend((0..48).map(|at| if (5..8).contains(&at) { 0xff } else { 0 })));
    until("it is to end", || handle.stats().protocol.dropped == 1);
    handle.apply(Layout::default()).expect("nothing is served");
    let other = memory(1);
    handle.apply(layout(&[("v1", &other, 0)])).expect("another volume has its slot");
    drop(client);
    until("it has ended", || handle.stats().sessions == 0);
    Client::login(address, 1).works(0);
    assert!(server.stop(Duration::ZERO).flushed);
}

/// Many changes under load: no command of the volume that stays ever fails, and slots are used again.
#[test]
fn a_hundred_changes_disturb_nobody_who_is_not_concerned() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a directory");
        let (stays, comes) = (file_volume(&dir), memory(1));
        let (server, address) = start(config(vec![stays.clone()], driver));
        let (done, worked) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = Client::login(address, 1);
                let mut rounds = 0u64;
                while !done.load(Ordering::Relaxed) {
                    let data = vec![rounds as u8; 4096];
                    let status = client.write(0, rounds % 64 * 8, data.clone());
                    if status == 2 {
                        // The set of LUNs has changed; nothing was written.
                        continue;
                    }
                    assert_eq!(status, 0);
                    match client.read(0, rounds % 64 * 8, 8) {
                        (0, read) => assert_eq!(read, data),
                        (status, _) => assert_eq!(status, 2),
                    }
                    rounds += 1;
                    worked.store(rounds, Ordering::Relaxed);
                }
            });
            let handle = server.handle();
            // On a busy machine all changes may be over before the client has begun.
            let works = || worked.load(Ordering::Relaxed) > 0;
            let mut round = 0u16;
            while round < 100 || (round < 10_000 && !works()) {
                let name = format!("v{round}");
                let more = (name.as_str(), &comes, round % 7 + 1);
                let next = if round % 2 == 1 {
                    layout(&[("v0", &stays, 0), more])
                } else {
                    layout(&[("v0", &stays, 0)])
                };
                handle.apply(next).expect("it changes");
                round += 1;
            }
            done.store(true, Ordering::Relaxed);
            assert!(works(), "the client is kept away");
        });
        assert!(server.stop(std::time::Duration::ZERO).flushed);
    });
}

/// A server that does not wait long for its event loops when what is served changes.
fn impatient(volume: &Volume, driver: lunet_ring::DriverChoice) -> Config {
    let mut config = config(vec![volume.clone()], driver);
    config.limits.change_wait = Duration::from_millis(300);
    config
}

/// The size of the volume `v0` as it is served, in MiB.
fn served(handle: &lunet_front_iscsi::Handle) -> u64 {
    handle.volumes()[0].1.caps().bytes() >> 20
}

#[test]
fn a_change_is_not_undone_when_an_event_loop_stalls_after_its_commit() {
    on_each_driver(|driver| {
        let ((small, trap), large) = (trapped(1), memory(2));
        let (server, address) = start(impatient(&small, driver));
        let mut clients: Vec<Client> = (0..2).map(|n| Client::login(address, n)).collect();
        let handle = server.handle();
        trap.arm(At::Close);
        let committed = handle.apply(layout(&[("v0", &large, 0)])).expect("it is committed");
        assert_eq!((committed, served(&handle)), (Committed { late: 1 }, 2));
        // The next change does not overtake it.
        let refused = handle.apply(layout(&[("v0", &memory(4), 0)])).err();
        assert!(matches!(refused, Some(ApplyError::NotReady)), "{refused:?}");
        assert_eq!(served(&handle), 2);
        trap.open();
        for client in &mut clients {
            assert_eq!(state(client, 0), CAPACITY_CHANGED);
            assert_eq!(client.write(0, (2 << 11) - 1, vec![1; 512]), 0, "the last block");
        }
        let committed = handle.apply(layout(&[("v0", &memory(8), 0)])).expect("all are there");
        assert_eq!((committed, served(&handle)), (Committed { late: 0 }, 8));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_change_is_undone_when_an_event_loop_stalls_before_its_commit() {
    on_each_driver(|driver| {
        let (small, (large, trap)) = (memory(1), trapped(2));
        let (server, address) = start(impatient(&small, driver));
        let mut clients: Vec<Client> = (0..2).map(|n| Client::login(address, n)).collect();
        let handle = server.handle();
        trap.arm(At::Open);
        let refused = handle.apply(layout(&[("v0", &large, 0)])).err();
        assert!(matches!(refused, Some(ApplyError::NotReady)), "{refused:?}");
        assert_eq!(served(&handle), 1);
        trap.open();
        // Every loop has forgotten it, and so has the one that comes by late.
        handle.apply(layout(&[("v0", &small, 0), ("v1", &memory(1), 3)])).expect("another one");
        for client in &mut clients {
            assert_eq!(state(client, 0), LUNS_CHANGED);
            assert_eq!(client.write(0, (2 << 11) - 1, vec![1; 512]), 2, "behind the end");
        }
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// What clears is told to every event loop, however much else waits there.
#[test]
fn a_function_reaches_an_event_loop_whose_mailbox_is_full() {
    on_each_driver(|driver| {
        let ((old, trap), new) = (trapped(1), memory(1));
        let (server, address) = start(impatient(&old, driver));
        let mut clients: Vec<Client> = (0..2).map(|n| Client::login(address, n)).collect();
        let handle = server.handle();
        trap.arm(At::Close);
        let committed = handle.apply(layout(&[("v0", &new, 0)])).expect("it is committed");
        assert_eq!(committed, Committed { late: 1 });
        // Only the event loop that goes on answers.
        let isid = handle.sessions()[0].isid.clone();
        let client = &mut clients[usize::from(isid.ends_with("01"))];
        while handle.end_sessions(&[]).is_ok() {}
        client.batch(|proto, out| {
            proto.manage(TmfFunction::LogicalUnitReset, 0, None, out).expect("it can be sent");
        });
        // It has been read before this is answered.
        client.finish(0, &[0; 6], Data::None);
        trap.open();
        let managed = client.wait(|event| match event {
            Event::Managed { response, .. } => Some(*response),
            _ => None,
        });
        assert_eq!(managed, Some(Ok(TmfResponse::Complete)));
        drop(clients);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_prepared_change_that_is_dropped_shows_nobody_anything() {
    let (small, large) = (memory(1), memory(2));
    let (server, address) = start(config(vec![small], lunet_ring::DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    let handle = server.handle();
    drop(handle.prepare(layout(&[("v0", &large, 0), ("v1", &memory(1), 1)])).expect("ready"));
    assert_eq!((state(&mut client, 0), served(&handle)), (READY, 1));
    assert_eq!(state(&mut client, 1), NO_SUCH_LUN);
    assert!(server.stop(Duration::ZERO).flushed);
}

/// What was exchanged below a volume is not written to by a loop that still has the old one.
#[test]
fn a_volume_stays_held_until_the_last_event_loop_works_by_the_new_one() {
    on_each_driver(|driver| {
        let ((old, trap), new) = (trapped(1), memory(1));
        let (server, address) = start(impatient(&old, driver));
        let mut clients: Vec<Client> = (0..2).map(|n| Client::login(address, n)).collect();
        let handle = server.handle();
        let prepared = handle.prepare(layout(&[("v0", &new, 0)])).expect("ready");
        let held = handle.hold("v0", Duration::from_secs(20)).expect("it is held");
        trap.arm(At::Close);
        assert_eq!(prepared.commit(Some(held)), Committed { late: 1 });
        let again = handle.hold("v0", Duration::from_millis(50)).err();
        assert_eq!(again, Some(HoldError::Timeout), "one loop has the old volume");
        trap.open();
        until("it is let go", || handle.hold("v0", Duration::from_millis(50)).is_ok());
        for client in &mut clients {
            assert_eq!(client.write(0, 0, vec![7; 512]), 0);
            assert_eq!(client.read(0, 0, 1), (0, vec![7; 512]));
        }
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
