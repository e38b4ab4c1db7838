//! What hosts see of changes while they are connected.

use std::time::Duration;

use lunet_nvme::fabrics::ANY_CONTROLLER;
use lunet_nvme::feature::{EVENT_NAMESPACES, Event, Feature};
use lunet_nvme::identify::{Cns, Namespace, namespaces_of};
use lunet_nvme::log::LogPage;
use lunet_nvme::status::Status;
use zerocopy::FromBytes;

use crate::host::{Host, Queue, Settings};
use crate::support::{layout, memory, serve_volumes};

fn changed(host: &mut Host) -> Vec<u32> {
    let page = host.admin.log(LogPage::ChangedNamespaces, 4096).expect("a page");
    namespaces_of(&page).collect()
}

#[test]
fn namespaces_come_and_go_and_grow() {
    let (one, two) = (memory(1, 8), memory(2, 8));
    let (server, address) = serve_volumes(vec![one.clone()]);
    let mut host = Host::new(address, Settings::default(), 2);
    assert!(host.admin.set_feature(Feature::Events, EVENT_NAMESPACES).status.is_success());
    let notice = host.admin.listen();
    server.handle().apply(layout(vec![one.clone(), two])).expect("it is served");
    assert_eq!(host.admin.heard(notice), Some(Event::Namespaces));
    assert_eq!(changed(&mut host), [2]);
    assert!(host.queues[1].write(2, 0, &[2; 512]).is_success());
    let notice = host.admin.listen();
    server.handle().apply(layout(vec![one, memory(2, 16)])).expect("it is served");
    assert_eq!(host.admin.heard(notice), Some(Event::Namespaces));
    assert_eq!(changed(&mut host), [2]);
    let page = host.admin.identify(Cns::Namespace, 2).expect("a page");
    let page = Namespace::read_from_bytes(&page).expect("4096 bytes");
    assert_eq!(page.nsze.get(), 32_768);
    assert!(host.queues[0].write(2, 32_767, &[3; 512]).is_success());
    let notice = host.admin.listen();
    let mut next = layout(vec![memory(1, 8)]);
    next.subsystems[0].namespaces.clear();
    server.handle().apply(next).expect("it is served");
    assert_eq!(host.admin.heard(notice), Some(Event::Namespaces));
    assert_eq!(changed(&mut host), [1, 2]);
    assert_eq!(host.io().read(1, 0, 1).err(), Some(Status::INVALID_NAMESPACE.no_retry()));
}

#[test]
fn a_subsystem_that_is_removed_ends_its_controllers() {
    let volume = memory(1, 8);
    let (server, address) = serve_volumes(vec![volume.clone()]);
    let mut host = Host::new(address, Settings::default(), 3);
    let mut next = layout(vec![volume.clone()]);
    next.subsystems.clear();
    server.handle().apply(next).expect("it is served");
    host.admin.wait_for_end();
    host.queues.iter_mut().for_each(Queue::wait_for_end);
    assert!(Queue::connect(address, &Settings::default(), (0, ANY_CONTROLLER)).is_err());
    server.handle().apply(layout(vec![volume])).expect("it is served");
    assert!(Host::one(address).io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn an_administrator_ends_a_controller() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    let mut other = Host::new(address, Settings { host: 2, ..Settings::default() }, 1);
    server.handle().end_sessions(&[host.admin.cntlid]).expect("every shard is told");
    host.admin.wait_for_end();
    host.io().wait_for_end();
    assert!(other.io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn a_server_stops_without_waiting_for_idle_hosts() {
    let (server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::one(address);
    assert!(host.io().write(1, 0, &[1; 512]).is_success());
    let start = std::time::Instant::now();
    assert!(server.stop(Duration::from_secs(20)).flushed);
    assert!(start.elapsed() < Duration::from_secs(10));
    host.admin.wait_for_end();
}

#[test]
fn what_cannot_be_served_is_refused_and_nothing_changes() {
    let volume = memory(1, 8);
    let (server, address) = serve_volumes(vec![volume.clone()]);
    let refused = |change: fn(&mut lunet_front_nvme::SubsystemEntry)| {
        let mut next = layout(vec![volume.clone()]);
        change(&mut next.subsystems[0]);
        server.handle().apply(next).expect_err("it is refused").to_string()
    };
    assert!(refused(|it| it.nqn = "nqn.2026-11.org.lunet:a b".into()).contains("space"));
    assert!(refused(|it| it.nqn = lunet_nvme::name::DISCOVERY_NQN.into()).contains("taken"));
    assert!(refused(|it| it.namespaces[0].0 = 0).contains("namespace 0"));
    assert!(refused(|it| it.namespaces.push(it.namespaces[0])).contains("twice"));
    assert!(
        refused(|it| it.namespaces[0].1 = lunet_volume::VolumeId::new(7)).contains("no volume")
    );
    assert!(Host::one(address).io().write(1, 0, &[1; 512]).is_success());
    let mut config = crate::support::config(layout(vec![volume]));
    config.options.mdts = 0;
    let member = lunet_server::Member::alone(Some(1));
    let error = lunet_front_nvme::start(member, config).err().expect("it is refused");
    assert!(error.to_string().contains("out of its range"));
}
