//! Portals come and go while sessions run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::Volume;
use lunet_front_iscsi::{Layout, TargetEntry, VolumeEntry};
use lunet_iscsi::initiator::{Data, Error, Options};
use lunet_iscsi::pdu::LoginStatus;
use lunet_ring::DriverChoice;
use lunet_scsi::alua::{AccessState, PortGroup};
use lunet_scsi::{Identity, Unit};
use lunet_server::{ApplyError, Committed, Portal, Transports};
use lunet_volume::Health;

use crate::support::block::At;
use crate::support::client::Client;
use crate::support::{TARGET, config, memory, on_each_driver, start, trapped, until};

/// One volume at one target, through these portals.
fn layout(volume: &Volume, portals: &[(SocketAddr, u16)]) -> Layout {
    let entry = VolumeEntry {
        name: "v0".into(),
        volume: Arc::clone(volume),
        unit: Unit::new(Identity::from_seed("test 0"), volume.caps().clone()),
        health: Health::new("v0"),
        path: None,
        reservations: None,
    };
    let target = TargetEntry { name: TARGET.into(), luns: vec![(0, 0)], ..TargetEntry::default() };
    let portal = |(address, tag): &(SocketAddr, u16)| Portal {
        address: *address,
        tag: *tag,
        transports: Transports::Tcp,
    };
    Layout {
        portals: Some(portals.iter().map(portal).collect()),
        volumes: vec![entry],
        targets: vec![target],
        ..Layout::default()
    }
}

/// As the portal of the start is configured, and others like it.
fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An address that is free, and that no other test asks for: it is on a loopback address of this test's own.
fn own(last: u8) -> SocketAddr {
    let address = SocketAddr::from(([127, 7, 1, last], 0));
    let listener = TcpListener::bind(address).expect("a free port");
    listener.local_addr().expect("its address")
}

/// TEST UNIT READY: sense key and additional sense code; zeroes if it is ready.
fn state(client: &mut Client) -> (u8, u8, u8) {
    let answer = client.finish(0, &[0; 6], Data::None);
    match answer.sense {
        sense if sense.len() >= 14 => (sense[2] & 0xF, sense[12], sense[13]),
        _ => (0, 0, 0),
    }
}

const READY: (u8, u8, u8) = (0, 0, 0);
const INQUIRY_CHANGED: (u8, u8, u8) = (6, 0x3F, 0x03);

fn finder() -> Options {
    Options { target_name: None, ..Client::options() }
}

#[test]
fn a_portal_that_comes_serves_and_one_that_goes_ends_its_sessions() {
    on_each_driver(|driver| {
        let volume = memory(1);
        let (server, first) = start(config(vec![volume.clone()], driver));
        let (handle, second) = (server.handle(), own(1));
        let mut old = Client::login(first, 1);
        handle.apply(layout(&volume, &[(any(), 1), (second, 1)])).expect("it comes");
        assert_eq!(handle.portals(), [first, second]);
        // Connections are handed to both shards.
        let mut fresh: Vec<Client> = (2..6).map(|n| Client::login(second, n)).collect();
        assert!(fresh.iter_mut().all(|client| client.read(0, 0, 1).0 == 0));
        let mut finder = Client::try_login(second, finder()).expect("it may");
        assert_eq!(finder.targets(), [TARGET]);
        let slots = handle.slots_of(&layout(&volume, &[(second, 1)]).portals.expect("some"));
        let sessions = handle.all_sessions().expect("they answer");
        let through = sessions.iter().filter(|s| slots[0].contains(&s.portal_index)).count();
        assert_eq!((through, sessions.len()), (5, 6));

        handle.apply(layout(&volume, &[(any(), 1)])).expect("it goes");
        assert!(TcpStream::connect(second).is_err(), "nobody listens");
        assert_eq!((handle.portals(), state(&mut old)), (vec![first], READY));
        assert!(fresh.iter_mut().all(Client::is_closed_by_server));
        assert!(finder.is_closed_by_server());
        // At the same address again: what was there is gone.
        handle.apply(layout(&volume, &[(any(), 1), (second, 1)])).expect("it comes back");
        assert_eq!(Client::login(second, 2).read(0, 0, 1).0, 0);
        assert_eq!(state(&mut old), READY);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn the_portal_of_the_start_may_go_like_others() {
    on_each_driver(|driver| {
        let volume = memory(1);
        let (server, first) = start(config(vec![volume.clone()], driver));
        let (handle, second) = (server.handle(), own(2));
        let mut old = Client::login(first, 1);
        handle.apply(layout(&volume, &[(second, 1)])).expect("another one instead");
        assert!(old.is_closed_by_server());
        assert!(TcpStream::connect(first).is_err(), "nobody listens");
        assert_eq!(Client::login(second, 1).read(0, 0, 1).0, 0);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn an_address_in_use_changes_nothing() {
    let volume = memory(1);
    let (server, first) = start(config(vec![volume.clone()], DriverChoice::Auto));
    let mut client = Client::login(first, 1);
    let other = TcpListener::bind(any()).expect("a free port");
    let taken = other.local_addr().expect("its address");
    let free = own(3);
    let wanted = [(any(), 1), (free, 1), (taken, 2)];
    let result = server.handle().apply(layout(&volume, &wanted));
    let refused = result.err();
    assert!(matches!(refused, Some(ApplyError::InUse(address)) if address == taken), "{refused:?}");
    // Neither does one that nobody can have, or a change that does not come after all.
    let nowhere = SocketAddr::from(([192, 0, 2, 1], 3260));
    let refused = server.handle().apply(layout(&volume, &[(any(), 1), (free, 1), (nowhere, 1)]));
    assert!(matches!(refused, Err(ApplyError::Listen { address, .. }) if address == nowhere));
    let handle = server.handle();
    drop(handle.prepare(layout(&volume, &[(any(), 1), (free, 1)])).expect("it is ready"));
    drop(TcpListener::bind(free).expect("the address is free again"));
    assert_eq!((handle.portals(), state(&mut client)), (vec![first], READY));
    handle.apply(layout(&volume, &[(any(), 1), (free, 1)])).expect("it comes");
    assert_eq!(Client::login(free, 2).read(0, 0, 1).0, 0);
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn sessions_of_a_removed_portal_stay_on_request() {
    let volume = memory(1);
    let (server, _) = start(config(vec![volume.clone()], DriverChoice::Auto));
    let (handle, second) = (server.handle(), own(4));
    handle.apply(layout(&volume, &[(any(), 1), (second, 1)])).expect("it comes");
    let mut client = Client::login(second, 1);
    let kept = Layout { keep_sessions: true, ..layout(&volume, &[(any(), 1)]) };
    handle.apply(kept).expect("it goes");
    assert_eq!(state(&mut client), READY);
    // One that comes does not end it: neither another nor one at its address.
    handle.apply(layout(&volume, &[(any(), 1), (own(5), 1)])).expect("another comes");
    handle.apply(layout(&volume, &[(any(), 1), (second, 2)])).expect("another comes");
    assert_eq!([state(&mut client), state(&mut client)], [INQUIRY_CHANGED, READY]);
    let mut other = Client::login(second, 2);
    assert_eq!(other.read(0, 0, 1).0, 0);
    // It is a session of that one now: kept once is not kept for ever.
    handle.apply(layout(&volume, &[(any(), 1)])).expect("it goes again");
    assert!(client.is_closed_by_server() && other.is_closed_by_server());
    assert!(server.stop(Duration::ZERO).flushed);
}

/// A connection that had not logged in yet when its portal went.
#[test]
fn a_login_at_a_removed_portal_is_refused() {
    on_each_driver(|driver| {
        let volume = memory(1);
        let (server, _) = start(config(vec![volume.clone()], driver));
        let (handle, second) = (server.handle(), own(6));
        handle.apply(layout(&volume, &[(any(), 1), (second, 1)])).expect("it comes");
        let streams = [(); 2].map(|()| TcpStream::connect(second).expect("it listens"));
        until("both are accepted", || handle.stats().protocol.connections == 2);
        handle.apply(layout(&volume, &[(any(), 1)])).expect("it goes");
        let status = LoginStatus::NotFound.code();
        for (stream, options) in streams.into_iter().zip([Client::options(), finder()]) {
            let error = Client::login_over(stream, options).err();
            assert!(
                matches!(error, Some(Error::LoginRefused { status: s, .. }) if s == status),
                "{error:?}"
            );
        }
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

/// The addresses that an initiator is told of, with their tags.
fn addresses(portal: SocketAddr) -> Vec<String> {
    let mut finder = Client::try_login(portal, finder()).expect("it may");
    finder.discover().into_iter().flat_map(|target| target.addresses).collect()
}

/// A wildcard stands for the addresses of its own family: one of the other family is refused there.
#[test]
fn discovery_names_each_address_that_is_listened_on_once() {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let every = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let every_v6 = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let volume = memory(1);
    let (server, first) = start(config(vec![volume.clone()], DriverChoice::Auto));
    let handle = server.handle();
    handle.apply(layout(&volume, &[(any(), 1), (every, 1), (every_v6(0), 2)])).expect("they come");
    let [_, second, third] = handle.portals()[..] else { panic!("three portals") };
    // The same port number, for the other family.
    let twin = every_v6(second.port());
    let wanted = [(any(), 1), (every, 1), (every_v6(0), 2), (twin, 3)];
    handle.apply(layout(&volume, &wanted)).expect("it is a portal of its own");
    let at = |ip: IpAddr, port: u16, tag: u16| format!("{},{tag}", SocketAddr::from((ip, port)));
    let by_v4 = [at(v4, first.port(), 1), at(v4, second.port(), 1)];
    let by_v6 = [at(v4, first.port(), 1), at(v6, third.port(), 2), at(v6, second.port(), 3)];
    assert_eq!(addresses(first), by_v4);
    assert_eq!(addresses(SocketAddr::new(v4, second.port())), by_v4);
    assert_eq!(addresses(SocketAddr::new(v6, third.port())), by_v6);
    assert!(TcpStream::connect((v4, third.port())).is_err(), "IPV6_V6ONLY is set");
    assert!(server.stop(Duration::ZERO).flushed);
}

/// REPORT TARGET PORT GROUPS: each group's tag, and its state.
fn groups(client: &mut Client) -> Vec<(u8, u8)> {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[9]) = (0xA3, 0x0A, 255);
    let tag = client.start(0, &cdb, Data::Read(vec![0; 255]));
    let Data::Read(data) = client.outcome(tag).data else { panic!("no data") };
    let mut rest = &data[4..4 + usize::from(data[3])];
    let mut found = Vec::new();
    while let [state, _, _, tag, _, _, _, ports, ..] = *rest {
        found.push((tag, state & 0xF));
        rest = &rest[8 + 4 * usize::from(ports)..];
    }
    found.sort_unstable();
    found
}

/// The states of units go by the numbers of groups, which tags that come and go must not move.
#[test]
fn access_states_stay_with_their_tags() {
    let volume = memory(1);
    let mut config = config(vec![volume.clone()], DriverChoice::Auto);
    config.portals[0].tag = 5;
    let (server, first) = start(config);
    let (handle, mut client) = (server.handle(), Client::login(first, 1));
    // SET TARGET PORT GROUPS: active/non-optimized.
    let cdb = [0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    assert_eq!(client.finish(0, &cdb, Data::Write(vec![0, 0, 0, 0, 1, 0, 0, 5])).status, 0);
    assert_eq!(groups(&mut client), [(5, 1)]);
    let group = |tag, state| PortGroup { tag, state, preferred: false };
    let grouped = |portals: &[(SocketAddr, u16)]| Layout {
        groups: vec![group(2, AccessState::Standby), group(5, AccessState::Optimized)],
        ..layout(&volume, portals)
    };
    handle.apply(grouped(&[(any(), 2), (any(), 5)])).expect("a lower tag comes");
    // MULTIP of the INQUIRY data is another one; the state of its port is not.
    assert_eq!([state(&mut client), state(&mut client)], [INQUIRY_CHANGED, READY]);
    assert_eq!(groups(&mut client), [(2, 2), (5, 1)]);
    handle.apply(grouped(&[(any(), 5)])).expect("it goes");
    assert_eq!([state(&mut client), state(&mut client)], [INQUIRY_CHANGED, READY]);
    assert_eq!(groups(&mut client), [(5, 1)]);
    assert!(server.stop(Duration::ZERO).flushed);
}

/// Portals change with the world: an event loop that comes by late has never served by halves.
#[test]
fn portals_come_and_go_while_an_event_loop_stalls() {
    on_each_driver(|driver| {
        let ((old, trap), new) = (trapped(1), memory(1));
        let mut config = config(vec![old], driver);
        config.limits.change_wait = Duration::from_millis(300);
        let (server, first) = start(config);
        let (handle, second) = (server.handle(), own(7));
        let mut sessions: Vec<Client> = (0..2).map(|n| Client::login(first, n)).collect();
        trap.arm(At::Close);
        let committed = handle.apply(layout(&new, &[(second, 1)])).expect("it is committed");
        assert_eq!(committed, Committed { late: 1 });
        // They wait for the event loop, whichever it is.
        let streams: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect(second).expect("it listens")).collect();
        trap.open();
        for (n, stream) in streams.into_iter().enumerate() {
            let mut options = Client::options();
            options.isid[5] = n as u8 + 2;
            let mut client = Client::login_over(stream, options).expect("it may");
            assert_eq!((client.read(0, 0, 1).0, client.read(0, 0, 1).0), (2, 0), "{n}: power on");
        }
        assert!(sessions.iter_mut().all(Client::is_closed_by_server));
        assert!(TcpStream::connect(first).is_err(), "nobody listens");
        assert!(server.stop(Duration::ZERO).flushed);
    });
}
