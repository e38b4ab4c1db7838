//! The record and the messages as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use lunet_gateway::{
    Access, AccessState, ClientName, Contents, Epoch, GatewayId, MAX_VOLUMES, Malformed, Message,
    Owner, Port, Portals, Record, Refusal, Registered, Reserved, Response, Sanitize, Tag, Taker,
    Volume,
};
use lunet_reservations::{Kind, Register, Registrant, Reservations};
use proptest::collection::vec;
use proptest::prelude::*;

fn reserved() -> impl Strategy<Value = Reserved> {
    let registrations = vec((0_u8..6, 1..u64::MAX), 0..5);
    (registrations, any::<u32>(), 0_usize..7, 0_u16..5).prop_map(
        |(all, generation, kind, holder)| {
            let mut registrations: Vec<Registered> = Vec::new();
            for (name, key) in all {
                if registrations.iter().all(|other| other.name != [name]) {
                    registrations.push(Registered {
                        family: "nexus".into(),
                        name: vec![name],
                        key,
                    });
                }
            }
            let kind =
                kind.checked_sub(1).map(|at| Kind::ALL[at]).filter(|_| !registrations.is_empty());
            let alone = kind.filter(|kind| !kind.all_registrants());
            let holder = alone.map(|_| holder % registrations.len() as u16);
            Reserved { generation, registrations, kind, holder }
        },
    )
}

fn volume() -> impl Strategy<Value = (Reserved, Vec<u8>, u8, [u8; 16], String)> {
    (reserved(), vec(any::<u8>(), 0..40), 0_u8..4, any::<[u8; 16]>(), "[a-z0-9]{0,20}")
}

fn portal() -> impl Strategy<Value = Option<SocketAddr>> {
    let some = |address: IpAddr| (1_u16..).prop_map(move |port| SocketAddr::new(address, port));
    let address = prop_oneof![
        (1_u32..).prop_map(|bits| IpAddr::from(Ipv4Addr::from(bits))),
        (1_u128..).prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits))),
    ];
    prop::option::of(address.prop_flat_map(some))
}

prop_compose! {
    fn record()(
        epoch in 1_u64..1 << 60,
        revision in 0_u64..1 << 60,
        owner in 0_u8..3,
        taken in any::<bool>(),
        (iscsi, nvme) in (portal(), portal()),
        secret in any::<[u8; 32]>(),
        id in 0_u16..4,
        target in "[a-z.:]{1,60}",
        volumes in vec(volume(), 0..4),
    ) -> Record {
        let client = ClientName { address: format!("192.0.2.{id}:0/7"), lock: "client.7".into() };
        let taker = Taker { gateway: GatewayId(id), client: client.clone() };
        let owned = Owner { gateway: GatewayId(id), client, portals: Portals { iscsi, nvme } };
        let ports = (0..4).map(|n| Port { gateway: GatewayId(n), group: n + 1, relative: n + 1 });
        let sanitize = [
            Sanitize::None,
            Sanitize::Sanitizing { restricted: true },
            Sanitize::Sanitizing { restricted: false },
            Sanitize::Formatting,
            Sanitize::RollingBack,
        ];
        let volumes: Vec<_> = volumes.into_iter().enumerate().map(|(at, volume)| {
            let (reserved, modes, mark, naa, serial) = volume;
            let image = format!("rbd/image{at}");
            let (id, sanitize) = (format!("{mark}a"), sanitize[usize::from(mark)]);
            Volume { image, id, bytes: epoch, naa, serial, reserved, modes, sanitize }
        }).collect();
        let contents = Contents { volumes };
        Record {
            epoch: Epoch(epoch),
            revision,
            owner: (owner == 1).then_some(owned),
            heir: (owner == 2).then_some(GatewayId(id)),
            taker: taken.then_some(taker),
            target,
            ports: ports.collect(),
            secret,
            contents,
        }
    }
}

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written(record in record()) {
        let bytes = record.encode().unwrap();
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
        for end in 0..bytes.len() {
            prop_assert!(Record::decode(&bytes[..end]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        prop_assert_eq!(Record::decode(&longer), Err(Malformed::Trailing));
    }

    #[test]
    fn a_damaged_record_is_refused_or_has_one_encoding(
        record in record(),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
    ) {
        let mut bytes = record.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(read) = Record::decode(&bytes) {
            prop_assert_eq!(read.encode().unwrap(), bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_have_one_encoding(bytes in vec(any::<u8>(), 0..60)) {
        prop_assert!(Record::decode(&bytes).is_err());
        if let Ok((of, message)) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(of), bytes.clone());
        }
        if let Ok(response) = Response::decode(&bytes) {
            prop_assert_eq!(response.encode(), bytes);
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written(
        kind in 0_u8..5,
        epoch in any::<u64>(),
        body in vec(any::<u8>(), 0..60),
    ) {
        let epoch = Epoch(epoch);
        let job = Message::Job(epoch, "client.4".into(), epoch.0, body.clone());
        let (message, response) = match kind {
            0 => (Message::Ping(epoch), Response::Owner(epoch)),
            1 => (Message::Changed(epoch), Response::NotOwner(epoch, GatewayId(3))),
            2 => (Message::Move(epoch, GatewayId(7)), Response::Owner(epoch)),
            3 => (job, Response::Job(body)),
            _ => (job, Response::Refused(Refusal::Crowded)),
        };
        let of = Tag(epoch.0.rotate_left(9));
        prop_assert_eq!(Message::decode(&message.encode(of)), Ok((of, message)));
        prop_assert_eq!(Response::decode(&response.encode()), Ok(response));
    }

    #[test]
    fn one_gateway_at_the_most_is_optimized(record in record()) {
        let Access(states) = Access::of(&record);
        let count = |state| states.iter().filter(|(_, other)| *other == state).count();
        prop_assert_eq!(count(AccessState::Optimized), usize::from(record.owner.is_some()));
        prop_assert_eq!(count(AccessState::Transitioning), usize::from(record.heir.is_some()));
        // The others pass commands on, all of them or none.
        let reached = record.owner.is_some_and(|owner| owner.portals.iscsi.is_some());
        let others = [count(AccessState::NonOptimized), count(AccessState::Standby)];
        prop_assert_eq!(others[usize::from(reached)], 0);
    }
}

fn plain() -> Record {
    Record::new("iqn.2026-11.local:g", [7; 32], Vec::new(), Contents::default())
}

#[test]
fn a_record_that_is_made_anew_is_another_one() {
    let made =
        |byte| Record::new("iqn.2026-11.local:g", [byte; 32], Vec::new(), Contents::default());
    let (one, two) = (made(1), made(2));
    assert_ne!(one.tag(), two.tag());
    // Compare-and-set by what was known of the one does not replace the other.
    assert_ne!((one.epoch, one.revision), (two.epoch, two.revision));
    let changed = Record { epoch: Epoch(9), revision: 3, ..one.clone() };
    assert_eq!(one.tag(), changed.tag());
}

#[test]
fn another_version_and_other_objects_are_left_alone() {
    let bytes = plain().encode().unwrap();
    let mut newer = bytes.clone();
    newer[4] = 3;
    assert_eq!(Record::decode(&newer), Err(Malformed::Version(3)));
    let mut other = bytes;
    other[0] = b'X';
    assert_eq!(Record::decode(&other), Err(Malformed::Magic));
    assert_eq!(Record::decode(&[]), Err(Malformed::Short));
}

#[test]
fn what_makes_no_sense_is_not_written() {
    let volume = |image: usize| Volume {
        id: "1a".into(),
        bytes: 512,
        image: image.to_string(),
        naa: [0; 16],
        serial: String::new(),
        reserved: Reserved::default(),
        modes: Vec::new(),
        sanitize: Sanitize::None,
    };
    let mut many = plain();
    many.contents.volumes = (0..=MAX_VOLUMES).map(volume).collect();
    let mut twice = plain();
    twice.contents.volumes = vec![volume(1), volume(1)];
    let mut both = plain();
    let client = ClientName { address: "a".into(), lock: "b".into() };
    both.owner =
        Some(Owner { gateway: GatewayId(0), client: client.clone(), portals: Portals::default() });
    both.heir = Some(GatewayId(1));
    let mut shared = plain();
    let port = |gateway, relative| Port { gateway: GatewayId(gateway), group: 1, relative };
    shared.ports = vec![port(0, 1), port(1, 2)];
    let mut held = plain();
    held.contents.volumes = vec![volume(1)];
    held.contents.volumes[0].reserved.kind = Some(Kind::WriteExclusive);
    let reached = |portal: SocketAddr| {
        let mut record = plain();
        let (gateway, client) = (GatewayId(0), client.clone());
        record.owner =
            Some(Owner { gateway, client, portals: Portals { iscsi: None, nvme: Some(portal) } });
        record
    };
    let any = reached((Ipv4Addr::UNSPECIFIED, 3260).into());
    let no_port = reached((Ipv4Addr::LOCALHOST, 0).into());
    let scoped = reached(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 3260, 0, 2).into());
    let mut far = plain();
    far.epoch = Epoch(u64::MAX);
    for (name, record) in [
        ("many", many),
        ("twice", twice),
        ("both", both),
        ("shared", shared),
        ("held", held),
        ("far", far),
        ("any", any),
        ("no port", no_port),
        ("scoped", scoped),
    ] {
        assert!(record.encode().is_err(), "{name}");
    }
}

#[test]
fn reservations_come_back_as_they_were() {
    let mut before = Reservations::new(true);
    for (name, key) in [(1, 11), (2, 22)] {
        let asked = Register { existing: None, new_key: key, also: &[], keep: Some(true) };
        before.register(&Registrant::new("nexus", &[name]), asked).unwrap();
    }
    let (one, two) = (Registrant::new("nexus", &[1]), Registrant::new("nexus", &[2]));
    before.reserve(&two, 22, Kind::WriteExclusive).unwrap();
    let saved = before.saved().unwrap();
    let reserved = Reserved::of(&saved, before.generation(), &["host", "nexus"]).unwrap();
    assert!(Reserved::of(&saved, 0, &["host"]).is_err());
    assert!(reserved.saved(&["host"]).is_err());
    let mut after = Reservations::new(true);
    after.restore(reserved.saved(&["host", "nexus"]).unwrap()).unwrap();
    assert_eq!(after.saved(), Some(saved));
    assert!(!after.access(&one).write && after.access(&two).write);
}
