//! Reservations of two hosts, each with queues of its own.

use std::sync::Arc;

use lunet_nvme::command::{
    Acquire, AcquireAction, Io, PersistOnPowerLoss, Register, RegisterAction, ReleaseAction,
    ReservationType,
};
use lunet_nvme::feature::Event;
use lunet_nvme::log::{LogPage, ReservationLog, ReservationNotice};
use lunet_nvme::pdu::U64;
use lunet_nvme::reservation::Report;
use lunet_nvme::status::Status;
use lunet_reservations::{Kind, Registrant, Registration, Reservations};
use lunet_volume::reserve::{Shared, Store, StoredRegistration};
use zerocopy::{FromBytes, IntoBytes};

use crate::host::{Host, Settings, nqn};
use crate::support::{memory, serve_volumes};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.no_retry();
const TYPE: ReservationType = ReservationType::WriteExclusive;

fn register(host: &mut Host, action: RegisterAction, current: u64, new: u64) -> Status {
    let persist = PersistOnPowerLoss::Unchanged;
    let io = Io::ReservationRegister { action, ignore_key: false, persist };
    let keys = Register { current: U64::new(current), new: U64::new(new) };
    host.io().send_data(io.encode(1), keys.as_bytes()).status
}

fn acquire(host: &mut Host, action: AcquireAction, key: u64, other: u64) -> Status {
    let io = Io::ReservationAcquire { action, kind: TYPE };
    let keys = Acquire { current: U64::new(key), preempted: U64::new(other) };
    host.io().send_data(io.encode(1), keys.as_bytes()).status
}

fn release(host: &mut Host, action: ReleaseAction, key: u64) -> Status {
    let io = Io::ReservationRelease { action, kind: Some(TYPE) };
    host.io().send_data(io.encode(1), &key.to_le_bytes()).status
}

fn report(host: &mut Host) -> Report {
    let io = Io::ReservationReport { len: 4096, extended: true };
    let page = host.io().fetch(io.encode(1), 4096).expect("a report");
    Report::decode(&page).expect("a report")
}

fn hosts(address: std::net::SocketAddr) -> [Host; 2] {
    [1, 2].map(|host| Host::new(address, Settings { host, ..Settings::default() }, 2))
}

#[test]
fn a_reservation_keeps_another_host_out() {
    let volume = memory(1, 8);
    let (_server, address) = serve_volumes(vec![volume.clone()]);
    let [mut one, mut two] = hosts(address);
    assert_eq!(acquire(&mut one, AcquireAction::Acquire, 0xa, 0), CONFLICT, "not registered");
    assert!(register(&mut one, RegisterAction::Register, 0, 0xa).is_success());
    assert!(register(&mut one, RegisterAction::Register, 0, 0xa).is_success(), "the same key");
    assert_eq!(register(&mut one, RegisterAction::Register, 0, 0xb), CONFLICT, "another key");
    assert!(acquire(&mut one, AcquireAction::Acquire, 0xa, 0).is_success());
    // Every queue of either host knows it.
    for queue in &mut two.queues {
        assert_eq!(queue.write(1, 0, &[2; 512]), CONFLICT);
        assert!(queue.read(1, 0, 1).is_ok());
    }
    for queue in &mut one.queues {
        assert!(queue.write(1, 0, &[1; 512]).is_success());
    }
    assert!(register(&mut two, RegisterAction::Register, 0, 0xb).is_success());
    assert_eq!(two.io().write(1, 0, &[2; 512]), CONFLICT, "it is registered, not the holder");
    let found = report(&mut two);
    assert_eq!((found.generation, found.kind, found.registrants.len()), (3, Some(TYPE), 2));
    assert_eq!((found.registrants[0].host_id, found.registrants[0].holds), ([1; 16], true));
    assert!(release(&mut one, ReleaseAction::Release, 0xa).is_success());
    assert!(two.queues[1].write(1, 0, &[2; 512]).is_success());
    assert!(register(&mut one, RegisterAction::Unregister, 0xa, 0).is_success());
    assert_eq!(register(&mut one, RegisterAction::Unregister, 0xa, 0), CONFLICT);
    assert!(release(&mut two, ReleaseAction::Clear, 0xb).is_success());
    assert_eq!(report(&mut one).registrants, []);
}

/// Any number of hosts may have the identifier 0.
#[test]
fn nobody_reserves_without_an_identifier() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut host = Host::new(address, Settings { host: 0, ..Settings::default() }, 1);
    let refused = Status::HOST_ID_FORMAT.no_retry();
    assert_eq!(register(&mut host, RegisterAction::Register, 0, 0xa), refused);
    assert_eq!(report(&mut host).registrants, []);
    assert!(host.io().write(1, 0, &[1; 512]).is_success());
}

#[test]
fn preempting_is_told_to_the_host_that_loses() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let [mut one, mut two] = hosts(address);
    assert!(register(&mut one, RegisterAction::Register, 0, 0xa).is_success());
    assert!(register(&mut two, RegisterAction::Register, 0, 0xb).is_success());
    assert!(acquire(&mut one, AcquireAction::Acquire, 0xa, 0).is_success());
    let notice = one.admin.listen();
    assert!(acquire(&mut two, AcquireAction::PreemptAndAbort, 0xb, 0xa).is_success());
    assert_eq!(one.admin.heard(notice), Some(Event::Reservation));
    let page = one.admin.log(LogPage::Reservation, 64).expect("a page");
    let log = ReservationLog::read_from_bytes(&page).expect("64 bytes");
    assert_eq!(
        (log.kind, log.nsid.get(), log.count.get()),
        (ReservationNotice::RegistrationPreempted.code(), 1, 1)
    );
    let page = one.admin.log(LogPage::Reservation, 64).expect("a page");
    assert_eq!(page, [0; 64], "there was one");
    assert_eq!(one.io().write(1, 0, &[1; 512]), CONFLICT);
    assert!(two.io().write(1, 0, &[2; 512]).is_success());
}

/// The state is that of the volume: another protocol sees it, and is seen.
#[test]
fn registrants_of_another_protocol_count() {
    let volume = memory(1, 8);
    let (_server, address) = serve_volumes(vec![volume.clone()]);
    let [mut one, _two] = hosts(address);
    let other = Registrant::new("other", b"somebody");
    let asked = lunet_reservations::Register { existing: None, new_key: 7, also: &[], keep: None };
    volume
        .reservations
        .change(|state| {
            state.register(&other, asked).expect("a registration");
            (state.reserve(&other, 7, Kind::ExclusiveAccess), Vec::new())
        })
        .0
        .expect("a reservation");
    assert_eq!(one.io().write(1, 0, &[1; 512]), CONFLICT);
    assert_eq!(one.io().read(1, 0, 1).err(), Some(CONFLICT));
    let found = report(&mut one);
    assert_eq!(found.kind, Some(ReservationType::ExclusiveAccess));
    assert_eq!((found.registrants[0].host_id, found.registrants[0].key), ([0; 16], 7));
    assert!(register(&mut one, RegisterAction::Register, 0, 0xa).is_success());
    assert!(acquire(&mut one, AcquireAction::Preempt, 0xa, 7).is_success());
    assert!(one.io().write(1, 0, &[1; 512]).is_success());
    let holder = volume.reservations.look(|state| state.holder().cloned());
    assert_eq!(holder.and_then(|holder| holder.host_id()), Some([1; 16]));
}

#[test]
fn a_host_has_its_identifier_for_itself() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    let mut one = Host::one(address);
    assert!(register(&mut one, RegisterAction::Register, 0, 0xa).is_success());
    assert!(acquire(&mut one, AcquireAction::Acquire, 0xa, 0).is_success());
    // Another host says that it has the same: it may connect, as do nodes that share one, and is not the holder.
    let settings = Settings { host: 2, host_id: Some(1), ..Settings::default() };
    let mut other = Host::new(address, settings, 1);
    assert_eq!(other.io().write(1, 0, &[2; 512]), CONFLICT);
    assert_eq!(release(&mut other, ReleaseAction::Release, 0xa), CONFLICT);
    assert_eq!(register(&mut other, RegisterAction::Register, 0, 0xa), CONFLICT);
    assert_eq!(register(&mut other, RegisterAction::Unregister, 0xa, 0), CONFLICT);
    assert!(one.io().write(1, 0, &[1; 512]).is_success());
    assert!(register(&mut one, RegisterAction::Unregister, 0xa, 0).is_success());
    assert!(register(&mut other, RegisterAction::Register, 0, 0xb).is_success());
}

#[test]
fn a_host_cannot_fill_the_registrations_by_identifiers_that_it_makes_up() {
    let (_server, address) = serve_volumes(vec![memory(1, 8)]);
    for id in 10..20 {
        let settings = Settings { host: 2, host_id: Some(id), ..Settings::default() };
        let registered = register(
            &mut Host::new(address, settings, 1),
            RegisterAction::Register,
            0,
            u64::from(id),
        );
        let right = if id < 14 { Status::SUCCESS } else { Status::INTERNAL.no_retry() };
        assert_eq!(registered, right, "{id}");
    }
    let mut one = Host::one(address);
    assert!(register(&mut one, RegisterAction::Register, 0, 0xa).is_success());
    assert_eq!(report(&mut one).registrants.len(), 5);
}

/// How a registration lies in the file of these tests.
#[derive(serde::Serialize, serde::Deserialize)]
struct Stored([u8; 16], String, u64);

impl StoredRegistration for Stored {
    fn of(registration: &Registration) -> Option<Self> {
        let registrant = &registration.registrant;
        Some(Self(registrant.host_id()?, registrant.host_name()?.into(), registration.key))
    }

    fn registration(self) -> Registration {
        Registration { registrant: Registrant::host(self.0, &self.1), key: self.2 }
    }
}

#[test]
fn what_is_to_persist_is_stored_before_it_is_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::new::<Stored>(dir.path().join("v1"), "v1".into());
    let mut volume = Arc::into_inner(memory(1, 8)).expect("nobody else has it");
    volume.reservations = Arc::new(Shared::new(Reservations::new(true), Vec::new()));
    volume.store = Some(store.clone());
    let (_server, address) = serve_volumes(vec![Arc::new(volume)]);
    let [mut one, mut two] = hosts(address);
    let (action, persist) = (RegisterAction::Register, PersistOnPowerLoss::On);
    let io = Io::ReservationRegister { action, ignore_key: false, persist };
    let keys = Register { current: U64::new(0), new: U64::new(0xa) };
    assert!(one.io().send_data(io.encode(1), keys.as_bytes()).status.is_success());
    let found = || Store::reservations(Some(&store)).expect("it can be read");
    assert_eq!(found().key_of(&Registrant::host([1; 16], &nqn(1))), Some(0xa));
    assert!(acquire(&mut one, AcquireAction::Acquire, 0xa, 0).is_success());
    assert_eq!(found().kind(), Some(Kind::WriteExclusive));
    assert!(report(&mut one).persist);
    // Refusals come back the same way.
    assert_eq!(acquire(&mut two, AcquireAction::Acquire, 0xb, 0), CONFLICT);
    assert!(register(&mut two, RegisterAction::Register, 0, 0xb).is_success());
    assert!(acquire(&mut two, AcquireAction::PreemptAndAbort, 0xb, 0xa).is_success());
    assert_eq!(found().holder().and_then(Registrant::host_id), Some([2; 16]));
    assert!(two.io().write(1, 0, &[2; 512]).is_success());
}
