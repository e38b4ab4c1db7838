//! Mode parameters, switched by one session and felt by another on another shard.

use lunet_iscsi::initiator::Data;
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};

use crate::support::client::Client;
use crate::support::record::Recording;
use crate::support::{config, memory, on_each_driver, start};
use lunet_block::Op;

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
