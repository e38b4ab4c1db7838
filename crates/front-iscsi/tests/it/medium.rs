//! A removable unit: ejected and loaded by one session, felt by another on another shard.

use lunet_iscsi::initiator::Data;
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};

use crate::support::client::Client;
use crate::support::{config, memory, on_each_driver, start};

/// The sense key and code of a command without data; `None` if it is GOOD.
fn sense(client: &mut Client, cdb: [u8; 6]) -> Option<(u8, u8, u8)> {
    let answer = client.finish(0, &cdb, Data::None);
    (answer.status != 0).then(|| (answer.sense[2], answer.sense[12], answer.sense[13]))
}

const READY: [u8; 6] = [0; 6];
const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1E, 0, 0, 0, 0, 0];
const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 2, 0];
const EJECT_AT_ONCE: [u8; 6] = [0x1B, 1, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1B, 0, 0, 0, 3, 0];
const PREVENTED: Option<(u8, u8, u8)> = Some((5, 0x53, 0x02));
const NO_MEDIUM: Option<(u8, u8, u8)> = Some((2, 0x3A, 0x00));
const CHANGED: Option<(u8, u8, u8)> = Some((6, 0x28, 0x00));

#[test]
fn one_session_prevents_what_another_wants() {
    on_each_driver(|driver| {
        let mut config = config(vec![memory(16)], driver);
        config.layout.volumes[0].unit.removable = true;
        let (server, address) = start(config);
        let mut a = Client::login(address, 1);
        let mut b = Client::login(address, 2);
        assert_eq!(sense(&mut a, PREVENT), None);
        for cdb in [EJECT, EJECT_AT_ONCE] {
            assert_eq!(sense(&mut b, cdb), PREVENTED);
        }
        assert_eq!(sense(&mut b, READY), None);
        assert_eq!(sense(&mut b, LOAD), None, "nothing is removed by that");
        assert_eq!(sense(&mut a, ALLOW), None);
        assert_eq!(sense(&mut b, EJECT), None);
        assert_eq!(sense(&mut a, READY), NO_MEDIUM);
        // `eject -t` of Linux: a drive that was opened without medium is locked.
        assert_eq!(sense(&mut a, PREVENT), None);
        assert_eq!(sense(&mut b, LOAD), None);
        assert_eq!(sense(&mut a, READY), CHANGED);
        assert_eq!(sense(&mut b, EJECT), PREVENTED, "now there is something to keep");
        assert_eq!(sense(&mut a, ALLOW), None);
        assert_eq!(sense(&mut b, EJECT), None);
        assert_eq!(sense(&mut b, EJECT), None, "it is out already");
        assert_eq!(sense(&mut a, LOAD), None);
        assert_eq!(sense(&mut a, READY), None, "who loaded it knows");
        assert_eq!(sense(&mut b, READY), CHANGED);
        assert_eq!(sense(&mut b, READY), None);
        // A session that is gone prevents nothing, and neither does one after a reset.
        assert_eq!(sense(&mut a, PREVENT), None);
        drop(a);
        let mut a = Client::login(address, 1);
        assert_eq!(sense(&mut b, EJECT_AT_ONCE), None);
        assert_eq!(sense(&mut b, READY), NO_MEDIUM, "although the flush may still be at work");
        assert_eq!(sense(&mut b, LOAD), None);
        assert_eq!(sense(&mut b, READY), None);
        assert_eq!(sense(&mut a, READY), CHANGED);
        assert_eq!(sense(&mut a, PREVENT), None);
        assert_eq!(b.manage(TmfFunction::LogicalUnitReset, 0, None), TmfResponse::Complete);
        assert_eq!(sense(&mut b, READY), Some((6, 0x29, 0x03)));
        assert_eq!(sense(&mut b, EJECT), None);
        drop((a, b));
        server.stop(std::time::Duration::ZERO);
    });
}
