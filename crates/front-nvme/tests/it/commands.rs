//! Commands of the admin queue.

use std::sync::atomic::Ordering;

use lunet_nvme::command::Admin;
use lunet_nvme::feature::{EVENT_ANA, EVENT_NAMESPACES, Event, Feature};
use lunet_nvme::identify::{Cns, Identifiers, Namespace, namespaces_of};
use lunet_nvme::log::{AnaState, LogPage, ana_groups};
use lunet_nvme::status::Status;
use zerocopy::FromBytes;

use crate::host::Host;
use crate::support::{SUBSYSTEM, memory, serve_volumes};

#[test]
fn a_controller_says_what_it_is() {
    let (_server, address) = serve_volumes(vec![memory(1, 8), memory(2, 16)]);
    let mut host = Host::one(address);
    let cntlid = host.admin.cntlid;
    let page = host.admin.controller();
    assert_eq!(page.cntlid.get(), cntlid);
    assert_eq!(lunet_nvme::identify::text_of(&page.subnqn), Some(SUBSYSTEM));
    assert_eq!(lunet_nvme::identify::text_of(&page.sn), Some("SN1"));
    // The ANA log of a host that asks for as much as there may be is one command (Linux).
    let most = 16 + page.nanagrpid.get() * 32 + page.mnan.get() * 4;
    assert!(u64::from(most) <= 4096 << page.mdts);
    let list = host.admin.identify(Cns::ActiveList, 0).expect("a list");
    assert_eq!(namespaces_of(&list).collect::<Vec<_>>(), [1, 2]);
    let page = host.admin.identify(Cns::Namespace, 2).expect("a page");
    let page = Namespace::read_from_bytes(&page).expect("4096 bytes");
    assert_eq!((page.nsze.get(), page.block_size()), (32_768, Some(512)));
    assert!(page.nguid != [0; 16] && page.anagrpid.get() == 2);
    let ids = Identifiers::decode(&host.admin.identify(Cns::Descriptors, 2).expect("a list"));
    assert_eq!((ids.nguid, ids.uuid), (Some(page.nguid), Some([2; 16])));
    let none = host.admin.identify(Cns::Descriptors, 3).err();
    assert_eq!(none, Some(Status::INVALID_NAMESPACE.no_retry()));
    let controllers = host.admin.identify(Cns::Controllers, 0).expect("a list");
    let cntlid = cntlid.to_le_bytes();
    assert_eq!(controllers[..4], [1, 0, cntlid[0], cntlid[1]]);
    for log in [LogPage::Supported, LogPage::Health, LogPage::Firmware, LogPage::Effects] {
        assert!(host.admin.log(log, 512).is_ok(), "{log:?}");
    }
    let health = Admin::KeepAlive.encode(0);
    assert!(host.admin.plain(health).status.is_success());
}

#[test]
fn a_namespace_is_thin_where_its_use_is_known() {
    let volume = memory(1, 8);
    let (_server, address) = serve_volumes(vec![volume.clone()]);
    let mut host = Host::one(address);
    let mut page = || {
        let page = host.admin.identify(Cns::Namespace, 1).expect("a page");
        let page = Namespace::read_from_bytes(&page).expect("4096 bytes");
        (page.nsfeat & 1, page.nsze.get(), page.ncap.get(), page.nuse.get())
    };
    assert_eq!(page(), (0, 16_384, 16_384, 16_384));
    volume.face.used.store(513, Ordering::Relaxed);
    assert_eq!(page(), (1, 16_384, 16_384, 2));
    // With what belongs to the file itself it may take more than it is long.
    volume.face.used.store(9 << 20, Ordering::Relaxed);
    assert_eq!(page(), (1, 16_384, 16_384, 16_384));
}

#[test]
fn a_change_of_a_path_is_told() {
    let volume = memory(1, 8);
    let (_server, address) = serve_volumes(vec![volume.clone(), memory(2, 8)]);
    let mut host = Host::one(address);
    let both = EVENT_ANA | EVENT_NAMESPACES;
    assert!(host.admin.set_feature(Feature::Events, both).status.is_success());
    let notice = host.admin.listen();
    let len = 16 + 2 * 36;
    let groups = |host: &mut Host| {
        let page = host.admin.log(LogPage::Ana, len).expect("a page");
        let (changes, groups) = ana_groups(&page).expect("an ANA log");
        (changes, groups.into_iter().map(|it| (it.nsids, it.state)).collect::<Vec<_>>())
    };
    let (first, now) = groups(&mut host);
    assert_eq!(now, [(vec![1], AnaState::Optimized), (vec![2], AnaState::Optimized)]);
    volume.face.path.store(2, std::sync::atomic::Ordering::Relaxed);
    let refused = host.io().read(1, 0, 1).err();
    assert_eq!(refused, Some(Status::ANA_INACCESSIBLE), "hosts fail over");
    assert!(host.io().read(2, 0, 1).is_ok());
    assert_eq!(host.admin.heard(notice), Some(Event::Ana));
    let (second, now) = groups(&mut host);
    assert!(second > first && now[0] == (vec![1], AnaState::Inaccessible));
    // No command need come for that.
    for state in [1, 0, 2] {
        let notice = host.admin.listen();
        volume.face.path.store(state, std::sync::atomic::Ordering::Relaxed);
        volume.reservations.paths_changed();
        assert_eq!(host.admin.heard(notice), Some(Event::Ana));
        let (_, now) = groups(&mut host);
        let states = [AnaState::Optimized, AnaState::NonOptimized, AnaState::Inaccessible];
        assert_eq!(now[0], (vec![1], states[usize::from(state)]));
    }
}

#[test]
fn what_a_volume_cannot_do_now_is_told() {
    use std::sync::atomic::Ordering::Relaxed;
    let volume = memory(1, 8);
    let (_server, address) = serve_volumes(vec![volume.clone()]);
    let mut host = Host::one(address);
    let data = [1; 512];
    volume.face.read_only.store(true, Relaxed);
    assert_eq!(host.io().write(1, 0, &data), Status::WRITE_PROTECTED.no_retry());
    assert!(host.io().read(1, 0, 1).is_ok());
    assert!(host.io().io(lunet_nvme::command::Io::Flush, 1).is_success());
    volume.face.absent.store(true, Relaxed);
    assert_eq!(host.io().read(1, 0, 1).err(), Some(Status::NOT_READY));
    volume.face.absent.store(false, Relaxed);
    volume.face.closed.store(true, Relaxed);
    assert_eq!(host.io().read(1, 0, 1).err(), Some(Status::from_bits(0x1d)));
}
