//! A copy reaches what its initiator sees, by whichever target, and nothing else; and what goes while it works.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::Volume;
use lunet_front_iscsi::{Access, Guard, Initiators, Layout, TargetEntry, User, VolumeEntry};
use lunet_iscsi::chap::{Account, Algorithms, Secret};
use lunet_iscsi::initiator::{Completion, Outcome};
use lunet_ring::DriverChoice;
use lunet_scsi::{Identity, Unit};
use lunet_volume::Health;

use crate::support::client::Client;
use crate::support::copy::{
    begin, cscd_named, cscd_of, lid1, lid4, receive, segment, send, wake, written,
};
use crate::support::status::{BUSY, CHECK_CONDITION, GOOD};
use crate::support::{TARGET, config, memory, stalling, start, until};

const NOT_REACHABLE: (u8, u8, u8) = (0x0A, 0x0D, 0x02);
const B: &str = "iqn.2026-11.local.lunet:host-b";

fn sense(answer: &Completion) -> (u8, u8, u8) {
    assert_eq!(answer.status, CHECK_CONDITION);
    (answer.sense[2], answer.sense[12], answer.sense[13])
}

fn identity(n: usize) -> Identity {
    Identity::from_seed(&format!("test {n}"))
}

fn only(name: &str) -> Initiators {
    let mut initiators = Initiators::default();
    initiators.add_name(name);
    initiators
}

/// Volumes 0 and 1 as LUNs of the first target, the second of them for host B; each other volume alone at a target:
/// open to all, for host B, and for whoever knows a secret.
fn layout(volumes: &[Volume]) -> Layout {
    let entry = |(n, volume): (usize, &Volume)| VolumeEntry {
        name: format!("v{n}"),
        volume: Arc::clone(volume),
        unit: Unit::new(identity(n), volume.caps().clone()),
        health: Health::new("v"),
        path: None,
        reservations: None,
    };
    let target = |name: &str, luns: Vec<(u16, usize)>, access| TargetEntry {
        name: name.into(),
        luns: luns.into_iter().filter(|(_, volume)| *volume < volumes.len()).collect(),
        access,
        ..TargetEntry::default()
    };
    let masked = Access { luns: vec![(1, only(B))], ..Access::default() };
    let for_b = Access { initiators: only(B), ..Access::default() };
    let secret = Secret::new(b"the secret of alice".to_vec());
    let alice = User {
        account: Account { name: "alice".into(), secret },
        initiators: Initiators::default(),
    };
    let guard = Guard { algorithms: Algorithms::ALL, users: vec![alice], mutual: None };
    let guarded = Access { guard: Some(guard), ..Access::default() };
    Layout {
        volumes: volumes.iter().enumerate().map(entry).collect(),
        targets: vec![
            target(TARGET, vec![(0, 0), (1, 1)], masked),
            target("iqn.2026-11.local.lunet:open", vec![(0, 2)], Access::default()),
            target("iqn.2026-11.local.lunet:for-b", vec![(0, 3)], for_b),
            target("iqn.2026-11.local.lunet:guarded", vec![(0, 4)], guarded),
        ],
        ..Layout::default()
    }
}

fn login(address: SocketAddr, name: &str) -> Client {
    Client::login_with(address, 1, |options| {
        options.initiator_name = name.into();
        if name != B {
            options.isid[5] = 9;
        }
    })
}

fn copy(client: &mut Client, from: usize, to: usize) -> Completion {
    let cscds = [from, to].map(|n| cscd_named(&identity(n).naa));
    send(client, 0, 0, 0, lid1(1, 0, &cscds, &[segment(0, 1, 64, 0, 0)]))
}

#[test]
fn an_initiator_copies_what_it_sees_only() {
    let volumes: Vec<Volume> = (0..5).map(|_| memory(4)).collect();
    let mut config = config(vec![], DriverChoice::Auto);
    config.layout = layout(&volumes);
    let (server, address) = start(config);
    let mut a = login(address, "iqn.2026-11.local.lunet:host-a");
    let mut b = login(address, B);
    wake(&mut b, 1..2);
    let mut data = vec![7; 64 * 512];
    data[0] = 1;
    assert_eq!(a.write(0, 0, data.clone()), GOOD);
    for (from, to, a_may, b_may) in [
        (0, 2, true, true),
        (2, 0, true, true),
        (0, 1, false, true),
        (1, 0, false, true),
        (2, 3, false, true),
        (0, 4, false, false),
        (4, 0, false, false),
        (0, 5, false, false),
    ] {
        for (client, may) in [(&mut a, a_may), (&mut b, b_may)] {
            let answer = copy(client, from, to);
            if may {
                assert_eq!(answer.status, GOOD, "{from} to {to}: {:?}", answer.sense);
            } else {
                assert_eq!(sense(&answer), NOT_REACHABLE, "{from} to {to}");
            }
        }
    }
    assert_eq!(b.read(1, 0, 64), (GOOD, data));
    // A token of what A does not see is nothing that A can use.
    let mut populate = vec![0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16];
    populate.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0]);
    assert_eq!(send(&mut b, 1, 0x10, 5, populate.clone()).status, GOOD);
    let token = receive(&mut b, 1, 0x07, 5, 1024).expect("a token")[38..].to_vec();
    let mut write = vec![0; 536];
    (write[0], write[1], write[2], write[535]) = (0x02, 0x26, 0x02, 16);
    write[16..528].copy_from_slice(&token);
    write.extend(&populate[16..]);
    assert_eq!(sense(&send(&mut a, 0, 0x11, 5, write.clone())), (5, 0x23, 0x04));
    assert_eq!(send(&mut b, 0, 0x11, 5, write).status, GOOD);
    drop((a, b));
    server.stop(Duration::ZERO);
}

#[test]
fn a_destination_that_goes_ends_the_copy() {
    let (stalled, gate) = stalling(16);
    let volumes = vec![memory(16), memory(1), stalled];
    let mut config = config(vec![], DriverChoice::Auto);
    config.layout = layout(&volumes);
    let (server, address) = start(config);
    let mut client = login(address, "iqn.2026-11.local.lunet:host-a");
    // What was never written would be copied as a hole.
    assert_eq!(client.write(0, 0, vec![7; 8 << 20]), GOOD);
    let cscds = [0, 2].map(|n| cscd_named(&identity(n).naa));
    gate.close();
    let segments = [segment(0, 1, 8192, 0, 0), segment(0, 1, 8192, 0, 8192)];
    let tag = begin(&mut client, 0, 0, 0, lid1(1, 0, &cscds, &segments));
    until("a write is held", || gate.held() > 0);
    server.handle().apply(layout(&volumes[..2])).expect("the volume goes");
    gate.open();
    let Outcome::Completed(answer) = client.outcome(tag).outcome else { panic!("no answer") };
    let (key, code, _) = sense(&answer);
    assert_eq!((key, code), (0x0A, 0x0D));
    assert_eq!(sense(&copy(&mut client, 0, 2)), NOT_REACHABLE);
    server.handle().apply(layout(&volumes)).expect("it comes back");
    assert_eq!(copy(&mut client, 0, 2).status, GOOD);
    drop(client);
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn a_session_that_ends_takes_its_copies_with_it() {
    let (stalled, gate) = stalling(16);
    let (server, address) = start(config(vec![memory(16), stalled], DriverChoice::Auto));
    let mut client = Client::login(address, 1);
    written(&mut client);
    wake(&mut client, 1..2);
    let cscds = [cscd_of(&mut client, 0), cscd_of(&mut client, 1)];
    let segments = [segment(0, 1, 4096, 0, 0), segment(0, 1, 8, 0, 20_000)];
    gate.close();
    assert_eq!(send(&mut client, 0, 1, 0, lid4(9, (0, 1), &cscds, &segments)).status, GOOD);
    until("writes are held", || gate.held() > 0);
    let mut next = Client::login(address, 1);
    assert!(client.is_closed_by_server());
    wake(&mut next, 1..2);
    assert!(receive(&mut next, 0, 0x05, 9, 64).is_err(), "another session, another nexus");
    assert_eq!(next.write(1, 4000, vec![1; 512]), BUSY);
    gate.open();
    until("the fence is gone", || next.write(1, 4000, vec![2; 512]) == GOOD);
    assert_eq!(next.read(1, 20_000, 8).1, vec![0; 4096], "the next segment never began");
    drop(next);
    server.stop(Duration::ZERO);
}
