//! Mode parameters, switched by one session and felt by another on another shard.

use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{Data, Outcome};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};

use lunet_block::Op;
use lunet_front_iscsi::{Config, Layout};
use lunet_ring::DriverChoice;
use lunet_scsi::Unit;

use crate::support::client::{Client, rw16};
use crate::support::record::Recording;
use crate::support::stall::{Gate, Stalling};
use crate::support::{config, memory, on_each_driver, start, until};

/// MODE SELECT (6) with the Control mode page.
fn protect(client: &mut Client, swp: u8) -> u8 {
    let list = [&[0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, swp, 0x40][..], &[0; 6]].concat();
    client.finish(0, &[0x15, 0x10, 0, 0, 16, 0], Data::Write(list)).status
}

fn sense(client: &mut Client, lba: u8) -> Option<(u8, u8, u8)> {
    let cdb = [0x2A, 0, 0, 0, 0, lba, 0, 0, 1, 0];
    let answer = client.finish(0, &cdb, Data::Write(vec![lba; 512]));
    (answer.status != 0).then(|| (answer.sense[2], answer.sense[12], answer.sense[13]))
}

#[test]
fn a_read_with_fua_finds_stable_what_was_written() {
    on_each_driver(|driver| {
        let gate = Arc::new(Gate::default());
        let volume = Arc::new(Stalling::volatile(memory(16), gate.clone()));
        let (server, address) = start(config(vec![volume], driver));
        let [mut client, mut other] = [1, 2].map(|number| Client::login(address, number));
        assert_eq!(client.write(0, 0, vec![5; 512]), 0);
        gate.close();
        let mut cdb = rw16(0x88, 0, 1);
        cdb[1] = 0x08;
        let tag = client.start(0, &cdb, Data::Read(vec![0; 512]));
        until("a flush is at the storage", || gate.held() == 1);
        assert_eq!(other.read(0, 0, 1), (0, vec![5; 512]));
        gate.open();
        let ended = client.outcome(tag);
        assert!(matches!(ended.outcome, Outcome::Completed(answer) if answer.status == 0));
        assert!(matches!(ended.data, Data::Read(bytes) if bytes == [5; 512]));
        drop((client, other));
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn others_are_told_and_a_reset_ends_it() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut a = Client::login(address, 1);
        let mut b = Client::login(address, 2);
        assert_eq!(protect(&mut a, 0x08), 0);
        assert_eq!(protect(&mut a, 0x08), 0, "again, which changes nothing");
        assert_eq!(sense(&mut a, 1), Some((7, 0x27, 0)));
        assert_eq!(sense(&mut b, 1), Some((6, 0x2A, 0x01)), "mode parameters changed");
        assert_eq!(sense(&mut b, 1), Some((7, 0x27, 0)));
        assert_eq!(protect(&mut b, 0), 0);
        assert_eq!(sense(&mut a, 1), Some((6, 0x2A, 0x01)));
        assert_eq!(sense(&mut a, 1), None);
        assert_eq!(protect(&mut a, 0x08), 0);
        assert_eq!(a.manage(TmfFunction::LogicalUnitReset, 0, None), TmfResponse::Complete);
        assert_eq!(sense(&mut a, 2), Some((6, 0x29, 0x03)));
        assert_eq!(sense(&mut a, 2), None);
        drop((a, b));
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn commands_with_parameters_are_counted_as_what_they_are() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut client = Client::login(address, 1);
        assert_eq!(protect(&mut client, 0), 0);
        // PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY. SET TARGET PORT GROUPS: no state for any group.
        let register = [&[0; 8][..], &[0, 0, 0, 0, 0, 0, 0, 7], &[0; 8]].concat();
        let cdb = [0x5F, 0x06, 0, 0, 0, 0, 0, 0, 24, 0];
        assert_eq!(client.finish(0, &cdb, Data::Write(register)).status, 0);
        let set = [0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
        client.finish(0, &set, Data::Write(vec![0; 4]));
        let volume = &server.handle().stats().volumes[0];
        assert_eq!((volume.unmaps, volume.read.ops, volume.write.ops), (0, 0, 0));
        assert!(volume.others >= 3, "{}", volume.others);
        let unmap = [&[0, 22, 0, 16][..], &[0; 4], &[0; 8], &[0, 0, 0, 1], &[0; 4]].concat();
        let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        assert_eq!(client.finish(0, &cdb, Data::Write(unmap)).status, 0);
        assert_eq!(server.handle().stats().volumes[0].unmaps, 1);
        drop(client);
        server.stop(std::time::Duration::ZERO);
    });
}

/// MODE SELECT (6) with a page.
fn select(client: &mut Client, page: &[u8]) -> u8 {
    let list = [&[0; 4][..], page].concat();
    client.finish(0, &[0x15, 0x10, 0, 0, list.len() as u8, 0], Data::Write(list)).status
}

#[test]
fn sense_data_has_the_format_that_was_chosen() {
    on_each_driver(|driver| {
        let (server, address) = start(config(vec![memory(16)], driver));
        let mut a = Client::login(address, 1);
        let mut b = Client::login(address, 2);
        assert_eq!(select(&mut a, &[0x0A, 0x0A, 4, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]), 0);
        let beyond = [0x28, 0, 0xFF, 0, 0, 0, 0, 0, 1, 0];
        let sense = a.finish(0, &beyond, Data::Read(vec![0; 512])).sense;
        assert_eq!((&sense[..4], sense.len()), (&[0x72, 5, 0x21, 0][..], 20));
        let sense = b.finish(0, &[0; 6], Data::None).sense;
        assert_eq!(sense[..4], [0x72, 6, 0x2A, 0x01], "unit attentions too");
        // The failure of a command that has begun, and a parameter list.
        let compare = [0x2F, 2, 0, 0, 0, 0, 0, 0, 1, 0];
        let sense = b.finish(0, &compare, Data::Write(vec![1; 512])).sense;
        assert_eq!(sense[..4], [0x72, 0xE, 0x1D, 0]);
        let list = vec![0, 0, 0, 0, 0x0A, 0x0A, 1];
        let sense = b.finish(0, &[0x15, 0x10, 0, 0, 7, 0], Data::Write(list)).sense;
        assert_eq!(sense[..4], [0x72, 5, 0x1A, 0]);
        assert_eq!(b.manage(TmfFunction::LogicalUnitReset, 0, None), TmfResponse::Complete);
        assert_eq!(b.finish(0, &[0; 6], Data::None).sense[0], 0x70);
        drop((a, b));
        server.stop(std::time::Duration::ZERO);
    });
}

#[test]
fn without_write_cache_all_is_stable_when_it_is_answered() {
    on_each_driver(|driver| {
        let (volume, record) = Recording::over(memory(16));
        let (server, address) = start(config(vec![volume], driver));
        let taken = || std::mem::take(&mut *record.lock().expect("nobody panics"));
        let mut client = Client::login(address, 1);
        let block = || Data::Write(vec![7; 512]);
        assert_eq!(client.write(0, 0, vec![1; 512]), 0);
        assert_eq!(taken(), [Op::Write { fua: false }]);
        let mut caching = [0; 20];
        caching[..2].copy_from_slice(&[0x08, 0x12]);
        assert_eq!(select(&mut client, &caching), 0);
        assert_eq!(taken(), [Op::Flush], "what was written before");
        assert_eq!(client.write(0, 0, vec![1; 1024]), 0);
        assert_eq!(taken(), [Op::Write { fua: true }]);
        assert_eq!(client.finish(0, &[0x41, 0, 0, 0, 0, 0, 0, 0, 2, 0], block()).status, 0);
        assert_eq!(taken(), [Op::Write { fua: false }, Op::Flush]);
        let mut unmap = vec![0; 24];
        (unmap[1], unmap[3], unmap[19]) = (22, 16, 8);
        let answer = client.finish(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Write(unmap));
        assert_eq!((answer.status, taken()), (0, vec![Op::Unmap, Op::Flush]));
        // What does not write does not flush, and neither does what failed.
        assert_eq!(client.read(0, 0, 1).0, 0);
        assert_eq!(client.finish(0, &[0x2A, 0, 0xFF, 0, 0, 0, 0, 0, 1, 0], block()).status, 2);
        assert_eq!(taken(), []);
        caching[2] = 0x04;
        assert_eq!(select(&mut client, &caching), 0);
        assert_eq!(client.write(0, 0, vec![1; 512]), 0);
        assert_eq!(taken(), [Op::Write { fua: false }]);
        drop(client);
        server.stop(std::time::Duration::ZERO);
    });
}

/// WCE of the Caching mode page, as it is now.
fn wce(client: &mut Client) -> bool {
    let tag = client.start(0, &[0x1A, 8, 0x08, 0, 24, 0], Data::Read(vec![0; 24]));
    let Data::Read(page) = client.outcome(tag).data else { panic!("no data") };
    assert_eq!((page[4] & 0x3F, page[5]), (0x08, 0x12), "{page:02x?}");
    page[6] & 0x04 != 0
}

/// Whoever has switched the write cache off sends no flushes any more, and does not notice a restart.
#[test]
fn a_write_cache_that_an_initiator_has_switched_off_stays_off_after_a_restart() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let served = |driver: DriverChoice| {
            let (volume, record) = Recording::over(memory(16));
            let mut config = config(vec![volume], driver);
            let entry = &mut config.layout.volumes[0];
            entry.reservations = Some(dir.path().join("v0.reservations"));
            entry.unit.saves = true;
            (start(config), record)
        };
        let mut caching = [0; 20];
        caching[..2].copy_from_slice(&[0x08, 0x12]);
        // SP = 0: lunet keeps it all the same.
        for (flags, on) in [(0x10, false), (0x11, true), (0x11, false), (0x10, true)] {
            let ((server, address), _) = served(driver);
            let mut client = Client::login(address, 1);
            caching[2] = u8::from(on) << 2;
            let list = [&[0; 4][..], &caching].concat();
            let cdb = [0x15, flags, 0, 0, list.len() as u8, 0];
            assert_eq!(client.finish(0, &cdb, Data::Write(list)).status, 0);
            assert_eq!(wce(&mut client), on);
            drop(client);
            server.stop(std::time::Duration::ZERO);
            let ((server, address), record) = served(driver);
            let mut client = Client::login(address, 1);
            assert_eq!(wce(&mut client), on, "after a restart");
            assert_eq!(client.write(0, 0, vec![1; 512]), 0);
            let ops = std::mem::take(&mut *record.lock().expect("nobody panics"));
            assert_eq!(ops, [Op::Write { fua: !on }]);
            drop(client);
            server.stop(std::time::Duration::ZERO);
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
    });
}

/// The answer, what is in force, and what a restart brings agree.
#[test]
fn a_write_cache_that_cannot_be_kept_off_stays_on() {
    on_each_driver(|driver| {
        let dir = tempfile::tempdir().expect("a folder");
        let (volume, record) = Recording::over(memory(16));
        let mut config = config(vec![volume], driver);
        let entry = &mut config.layout.volumes[0];
        entry.reservations = Some(dir.path().join("v0.reservations"));
        entry.unit.saves = true;
        let (server, address) = start(config);
        let mut client = Client::login(address, 1);
        let mut other = Client::login(address, 2);
        let mut caching = [0; 20];
        caching[..2].copy_from_slice(&[0x08, 0x12]);
        // In the way of the new file.
        let obstacle = dir.path().join(".v0.modes.new");
        std::fs::create_dir(&obstacle).expect("something in the way");
        assert_eq!(select(&mut client, &caching), 2);
        assert!(wce(&mut client), "it failed, so it is not off");
        assert_eq!(client.write(0, 0, vec![1; 512]), 0);
        let taken = || std::mem::take(&mut *record.lock().expect("nobody panics"));
        assert_eq!(taken(), [Op::Write { fua: false }]);
        assert_eq!(sense(&mut other, 1), None, "nothing has changed for others");
        std::fs::remove_dir(&obstacle).expect("it is gone");
        assert!(!dir.path().join("v0.modes").exists());
        assert_eq!(select(&mut client, &caching), 0);
        assert!(!wce(&mut client));
        drop((client, other));
        server.stop(std::time::Duration::ZERO);
    });
}

/// The first volume of a configuration with its write cache on or off.
fn cached(config: Config, write_cache: bool) -> Config {
    let Layout { volumes, .. } = &config.layout;
    let unit =
        |unit: &Unit| Unit { write_cache, ..Unit::new(unit.identity.clone(), unit.caps.clone()) };
    let units: Vec<Unit> = volumes.iter().map(|volume| unit(&volume.unit)).collect();
    let mut config = config;
    for (volume, unit) in config.layout.volumes.iter_mut().zip(units) {
        volume.unit = unit;
    }
    config
}

#[test]
fn a_write_cache_goes_off_by_configuration_and_no_initiator_switches_it_on() {
    on_each_driver(|driver| {
        let (volume, record) = Recording::over(memory(16));
        let taken = || std::mem::take(&mut *record.lock().expect("nobody panics"));
        let configured = |on| cached(config(vec![volume.clone()], driver), on);
        let (server, address) = start(configured(true));
        let mut client = Client::login(address, 1);
        assert_eq!(client.write(0, 0, vec![1; 512]), 0);
        assert_eq!((wce(&mut client), taken()), (true, vec![Op::Write { fua: false }]));
        server.handle().apply(configured(false).layout).expect("it goes off");
        assert_eq!(taken(), [Op::Flush], "what was written before");
        assert_eq!(sense(&mut client, 1), Some((6, 0x2A, 0x01)), "mode parameters changed");
        assert_eq!((sense(&mut client, 1), wce(&mut client)), (None, false));
        let unmapped = |client: &mut Client| {
            let mut unmap = vec![0; 24];
            (unmap[1], unmap[3], unmap[19]) = (22, 16, 8);
            client.finish(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Write(unmap)).status
        };
        assert_eq!(unmapped(&mut client), 0);
        assert_eq!(taken(), [Op::Write { fua: true }, Op::Unmap, Op::Flush]);
        let mut caching = [0; 20];
        caching[..3].copy_from_slice(&[0x08, 0x12, 0x04]);
        assert_eq!(select(&mut client, &caching), 2, "WCE = 1");
        assert_eq!(server.handle().written_through(), ["v0"]);
        server.handle().apply(configured(true).layout).expect("it goes on");
        assert_eq!(sense(&mut client, 1), Some((6, 0x2A, 0x01)));
        assert_eq!((sense(&mut client, 1), wce(&mut client)), (None, true));
        assert_eq!(taken(), [Op::Flush, Op::Write { fua: false }]);
        drop(client);
        server.stop(std::time::Duration::ZERO);
    });
}
