//! A write-back that failed: the storage tells it once, to one shard, and the volume remembers.

use std::sync::Arc;
use std::time::Duration;

use lunet_backends::Volume;
use lunet_backends::layers::{Effect, Layer, Ops, Which, wrap};
use lunet_front_iscsi::{Layout, Server, TargetEntry, VolumeEntry};
use lunet_iscsi::initiator::Data;
use lunet_scsi::{Identity, Unit};
use lunet_volume::{Cause, Fault, Health};

use crate::support::client::{Client, rw16};
use crate::support::status::{CHECK_CONDITION, GOOD};
use crate::support::{TARGET, config, file_volume, on_each_driver, start, until};

/// Sense key and additional sense codes.
type Sense = (u8, u8, u8);
const OK: Sense = (0, 0, 0);
const LOST: Sense = (4, 0x44, 0);
const EIO: i32 = 5;

/// A file whose first flush, whoever asks for it, is told that a write-back has failed. As with Linux, every
/// other flush is told that all is well.
fn fails_once(dir: &tempfile::TempDir) -> Volume {
    let once = Layer { which: Which::Nth(1), ..Layer::new(Effect::Fault(EIO), Ops::FLUSH) };
    wrap(file_volume(dir), &[once]).0
}

fn run(client: &mut Client, cdb: &[u8], data: Data<Vec<u8>, Vec<u8>>) -> Sense {
    let done = client.finish(0, cdb, data);
    match done.status {
        GOOD => OK,
        status => {
            assert_eq!(status, CHECK_CONDITION);
            (done.sense[2] & 15, done.sense[12], done.sense[13])
        }
    }
}

fn flush(client: &mut Client, immediate: bool) -> Sense {
    let mut cdb = rw16(0x91, 0, 0);
    cdb[1] = u8::from(immediate) << 1;
    run(client, &cdb, Data::None)
}

fn write(client: &mut Client, fua: bool) -> Sense {
    let mut cdb = rw16(0x8A, 8, 8);
    cdb[1] = u8::from(fua) << 3;
    run(client, &cdb, Data::Write(vec![7; 4096]))
}

/// MODE SELECT (6) with WCE = 0.
fn switch_cache_off(client: &mut Client) -> Sense {
    let mut list = vec![0; 24];
    list[4..6].copy_from_slice(&[0x08, 0x12]);
    run(client, &[0x15, 0x10, 0, 0, 24, 0], Data::Write(list))
}

fn faults(server: &Server) -> Vec<Fault> {
    let stats = server.handle().stats();
    stats.volumes.into_iter().flat_map(|volume| volume.faults).collect()
}

/// True if that is known of the volume, and nothing else is wrong.
fn write_back_failed(server: &Server) -> bool {
    matches!(&faults(server)[..], [Fault { cause: Cause::WriteBack { .. }, .. }])
}

fn layout(volume: &Volume, health: &Arc<Health>) -> Layout {
    let unit = Unit::new(Identity::from_seed("test 0"), volume.caps().clone());
    let entry = VolumeEntry {
        name: "v0".into(),
        volume: volume.clone(),
        unit,
        health: health.clone(),
        path: None,
        reservations: None,
    };
    let target = TargetEntry { name: TARGET.into(), luns: vec![(0, 0)], ..TargetEntry::default() };
    Layout { volumes: vec![entry], targets: vec![target], ..Layout::default() }
}

/// Whoever hears of it first, and on whatever shard: the writer's flush fails, again and again.
#[test]
fn a_failed_write_back_fails_every_flush_of_every_session() {
    type Hears = fn(&mut Client) -> Sense;
    let hears: [(&str, Hears, Sense); 3] = [
        ("a flush", |other| flush(other, false), LOST),
        ("a flush with IMMED", |other| flush(other, true), OK),
        ("the flush that follows when the cache is switched off", switch_cache_off, LOST),
    ];
    on_each_driver(|driver| {
        for (name, hear, told) in hears {
            let dir = tempfile::tempdir().expect("a folder");
            let (server, address) = start(config(vec![fails_once(&dir)], driver));
            // Of two shards each has one.
            let mut writer = Client::login(address, 1);
            let mut other = Client::login(address, 2);
            assert_eq!(write(&mut writer, false), OK);
            assert_eq!(faults(&server), []);
            assert_eq!(hear(&mut other), told, "{name}");
            until("the volume knows", || write_back_failed(&server));
            if told == OK {
                until("it is told", || news(&mut other).0 != 0);
            }
            for _ in 0..3 {
                for client in [&mut writer, &mut other] {
                    if name.contains("switched") && flush(client, false) == (6, 0x2A, 1) {
                        continue;
                    }
                    assert_eq!(flush(client, false), LOST, "{name}");
                    assert_eq!(write(client, true), LOST, "{name}");
                    assert_eq!(client.read(0, 8, 8), (GOOD, vec![7; 4096]), "{name}");
                }
            }
            let buffered = if name.contains("switched") { LOST } else { OK };
            assert_eq!(write(&mut writer, false), buffered, "{name}");
            drop((writer, other));
            assert!(!server.stop(Duration::ZERO).flushed, "{name}");
        }
    });
}

/// Sense data of TEST UNIT READY: the response code too.
fn news(client: &mut Client) -> (u8, Sense) {
    let done = client.finish(0, &[0; 6], Data::None);
    match done.status {
        GOOD => (0, OK),
        _ => (done.sense[0] & 0x7F, (done.sense[2] & 15, done.sense[12], done.sense[13])),
    }
}

/// SPC-5 4.4.7: what was answered before it was done tells of its failure with a later command, once.
#[test]
fn a_flush_that_was_answered_early_tells_of_its_failure() {
    const DEFERRED: u8 = 0x71;
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (server, address) = start(config(vec![fails_once(&dir)], driver));
        let mut writer = Client::login(address, 1);
        let mut other = Client::login(address, 2);
        assert_eq!(write(&mut writer, false), OK);
        assert_eq!(flush(&mut writer, true), OK, "nobody knows yet");
        let mut told = (0, OK);
        until("it is told", || {
            told = news(&mut writer);
            told.0 != 0
        });
        assert_eq!(told, (DEFERRED, LOST));
        assert_eq!(news(&mut writer), (0, OK), "once");
        assert_eq!(news(&mut other), (0, OK), "who did not ask");
        // What is known is told at once.
        for client in [&mut writer, &mut other] {
            assert_eq!(flush(client, true), LOST);
            // START STOP UNIT: stop, with IMMED, and with the flush that goes before it.
            assert_eq!(run(client, &[0x1B, 1, 0, 0, 0, 0], Data::None), LOST);
            assert_eq!(news(client), (0, OK), "it has not stopped");
        }
        drop((writer, other));
        assert!(!server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_resize_keeps_the_failure_and_a_reopen_ends_it() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let volume = fails_once(&dir);
        let (server, address) = start(config(vec![volume.clone()], driver));
        let (handle, health) = (server.handle(), Health::new("v0"));
        handle.apply(layout(&volume, &health)).expect("it is served");
        let mut client = Client::login(address, 1);
        assert_eq!(write(&mut client, false), OK);
        assert_eq!(flush(&mut client, false), LOST);
        // Other channels to the same open file.
        let again = wrap(volume.clone(), &[]).0;
        handle.apply(layout(&again, &health)).expect("as a resize does");
        assert_eq!(flush(&mut client, false), LOST);
        assert!(write_back_failed(&server));
        handle.apply(layout(&again, &Health::new("v0"))).expect("it is opened anew");
        assert_eq!((flush(&mut client, false), write(&mut client, true)), (OK, OK));
        assert_eq!(faults(&server), []);
        drop(client);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// Only the old channel is told; it is asked before it is closed.
#[test]
fn a_channel_that_is_replaced_is_flushed_first() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (volume, plain) = (fails_once(&dir), file_volume(&tempfile::tempdir().expect("one")));
        let (server, address) = start(config(vec![volume.clone()], driver));
        let (handle, health) = (server.handle(), Health::new("v0"));
        handle.apply(layout(&volume, &health)).expect("it is served");
        let mut client = Client::login(address, 1);
        assert_eq!(write(&mut client, false), OK);
        handle.apply(layout(&plain, &health)).expect("other channels");
        until("the old one has told", || write_back_failed(&server));
        assert_eq!(flush(&mut client, false), LOST);
        drop(client);
        server.stop(Duration::ZERO);
    });
}
