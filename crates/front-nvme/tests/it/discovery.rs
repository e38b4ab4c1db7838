//! Discovery controllers: what each host is told, and when it changes.

use lunet_front_nvme::{Concatenation, Host as Listed, Hosts, SubsystemEntry};
use lunet_nvme::fabrics::ANY_CONTROLLER;
use lunet_nvme::feature::{EVENT_DISCOVERY, Event, Feature};
use lunet_nvme::host::Error;
use lunet_nvme::identify::text_of;
use lunet_nvme::log::{LogPage, discovery_entries};
use lunet_nvme::name::DISCOVERY_NQN;
use lunet_nvme::status::Status;
use lunet_volume::VolumeId;

use crate::host::{ENABLE, Queue, Settings, nqn};
use crate::support::{SUBSYSTEM, config, layout, memory, portal, serve};

const OWN: &str = "nqn.2026-11.org.lunet:own";

fn discover(address: std::net::SocketAddr, host: u8) -> Queue {
    let subsystem = DISCOVERY_NQN.into();
    let settings = Settings { host, subsystem, ..Settings::default() };
    let mut queue = Queue::connect(address, &settings, (0, ANY_CONTROLLER)).expect("a controller");
    assert!(queue.configure(ENABLE).is_success());
    queue
}

/// Generation, and names with ports.
fn log(queue: &mut Queue) -> (u64, Vec<(String, u16)>) {
    let head = queue.log(LogPage::Discovery, 1024).expect("a log");
    let count = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes")) as usize;
    let page = queue.log(LogPage::Discovery, 1024 * (count + 1)).expect("a log");
    let (generation, entries) = discovery_entries(&page).expect("a discovery log");
    let entry = |entry: &lunet_nvme::log::DiscoveryEntry| {
        let port = text_of(&entry.trsvcid).and_then(|text| text.parse().ok()).expect("a port");
        assert_eq!(text_of(&entry.traddr), Some("127.0.0.1"));
        (text_of(&entry.subnqn).expect("a name").to_owned(), port)
    };
    (generation, entries.iter().map(entry).collect())
}

#[test]
fn a_host_is_told_what_it_may_have() {
    let mut layout = layout(vec![memory(1, 8)]);
    let own = Listed {
        nqn: nqn(2),
        secret: None,
        controller_secret: None,
        tls: None,
        concatenation: Concatenation::Allowed,
    };
    layout.subsystems.push(SubsystemEntry {
        nqn: OWN.into(),
        serial: "SN2".into(),
        namespaces: vec![(1, VolumeId::new(0))],
        hosts: Hosts::Listed(vec![own]),
        portals: vec![1],
        ..SubsystemEntry::default()
    });
    let mut config = config(layout);
    config.portals.push(portal());
    let (server, address) = serve(config);
    let ports: Vec<u16> = server.portals().iter().map(|portal| portal.port()).collect();
    let entry = |nqn: &str, at: usize| (nqn.to_owned(), ports[at]);
    let all = vec![entry(DISCOVERY_NQN, 0), entry(SUBSYSTEM, 0), entry(SUBSYSTEM, 1)];
    assert_eq!(log(&mut discover(address, 1)).1, all);
    let more = [all, vec![entry(OWN, 1)]].concat();
    assert_eq!(log(&mut discover(address, 2)).1, more);
    let subsystem = || OWN.into();
    let refused = |address, host| {
        let settings = Settings { host, subsystem: subsystem(), ..Settings::default() };
        match Queue::connect(address, &settings, (0, ANY_CONTROLLER)) {
            Err(Error::Refused(completion)) => Some(completion.status),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    };
    assert_eq!(refused(address, 2), Some(Status::CONNECT_PARAMETER), "not by this portal");
    let other = server.portals()[1];
    assert_eq!((refused(other, 1), refused(other, 2)), (Some(Status::CONNECT_HOST), None));
}

#[test]
fn a_change_of_the_log_is_told() {
    let volume = memory(1, 8);
    let (server, address) = serve(config(layout(vec![volume.clone()])));
    let mut queue = discover(address, 1);
    assert!(queue.set_feature(Feature::Events, EVENT_DISCOVERY).status.is_success());
    let notice = queue.listen();
    let (before, _) = log(&mut queue);
    let mut next = layout(vec![volume]);
    next.subsystems[0].nqn = OWN.into();
    next.referrals = vec!["127.0.0.1:8010".parse().expect("an address")];
    server.handle().apply(next).expect("it is served");
    assert_eq!(queue.heard(notice), Some(Event::Discovery));
    let (after, entries) = log(&mut queue);
    assert!(after > before && entries[1].0 == OWN);
    assert_eq!(entries.last(), Some(&(DISCOVERY_NQN.to_owned(), 8010)), "a referral");
}
