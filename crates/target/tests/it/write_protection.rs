//! The software write protection, switched by one session and felt by another on another shard.

use lunet_iscsi::initiator::Data;
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};

use crate::support::client::Client;
use crate::support::{config, memory, on_each_driver, start};

/// MODE SELECT (6) with the Control mode page.
fn protect(client: &mut Client, swp: u8) -> u8 {
    let list = [&[0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, swp][..], &[0; 7]].concat();
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
