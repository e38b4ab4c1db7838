//! Nexuses share a volume with a host of another protocol, which has an identifier of 16 bytes and knows nothing of
//! SCSI.

use crate::cluster::*;
use lunet_reservations::{
    Access, Event, Kind, Loss, Refusal, Register, Registrant, Reservations, Result,
};
use lunet_scsi::reserve::NexusId;

/// What the other protocol keeps: its host, and what that was told.
struct Host {
    registrant: Registrant,
    told: Vec<Loss>,
}

impl Host {
    fn new() -> Self {
        Self { registrant: Registrant::new("host", &[0xAB; 16]), told: vec![] }
    }

    fn register(&self, state: &mut Reservations, key: u64) -> Result {
        let asked = Register { existing: None, new_key: key, also: &[], keep: None };
        state.register(&self.registrant, asked)
    }

    fn hear(&mut self, events: &[Event]) {
        let own = events.iter().filter(|event| event.registrant == self.registrant);
        self.told.extend(own.map(|event| event.loses));
    }

    fn may(&self, state: &Reservations) -> (bool, bool) {
        let Access { read, write, .. } = state.access(&self.registrant);
        (read, write)
    }
}

/// Sends a command of a nexus; both protocols tell their own what it did.
fn plain(c: &mut Cluster, host: &mut Host, action: u8, kind: u8, key: u64, second: u64) -> u8 {
    let status = c.plain(0, action, kind, key, second);
    host.hear(&c.events);
    status
}

#[test]
fn conflicts_are_seen_both_ways() {
    let types = [1, 3, 5, 6, 7, 8];
    for (kind, number) in Kind::ALL.into_iter().zip(types) {
        let (mut c, mut host) = (Cluster::new(), Host::new());
        // The nexus holds it.
        assert_eq!(c.register(0, 0, 1), GOOD);
        assert_eq!(plain(&mut c, &mut host, 1, number, 1, 0), GOOD);
        assert_eq!(host.may(&c.state.reservations), (kind.reads_are_free(), false), "{kind:?}");
        let refused = c.state.reservations.reserve(&host.registrant, 2, kind);
        assert_eq!(refused, Err(Refusal::Conflict), "it is not registered");
        assert_eq!(host.register(&mut c.state.reservations, 2), Ok(vec![]));
        let let_in = kind.shared() || kind.reads_are_free();
        assert_eq!(host.may(&c.state.reservations), (let_in, kind.shared()), "{kind:?}");
        assert_eq!(plain(&mut c, &mut host, 2, number, 1, 0), GOOD);
        assert_eq!(host.told, if kind.shared() { vec![Loss::Reservation] } else { vec![] });

        // The host holds it.
        let taken = c.state.reservations.reserve(&host.registrant, 2, kind);
        assert_eq!(taken, Ok(vec![]));
        let reads = if kind.reads_are_free() { GOOD } else { CONFLICT };
        assert_eq!((c.read(1), c.write(1)), (reads, CONFLICT), "not registered: {kind:?}");
        let expected = if kind.shared() { (GOOD, GOOD) } else { (reads, CONFLICT) };
        assert_eq!((c.read(0), c.write(0)), expected, "registered: {kind:?}");
        assert_eq!((c.keys(1), c.kind(1)), (vec![1, 2], number));
        let other = if kind.all_registrants() { 1 } else { number };
        assert_eq!(c.plain(0, 1, other, 1, 0), CONFLICT);
    }
}

#[test]
fn each_takes_the_volume_from_the_other() {
    let (mut c, mut host) = (Cluster::new(), Host::new());
    assert_eq!((c.register(0, 0, 1), c.register(1, 0, 3)), (GOOD, GOOD));
    assert_eq!(host.register(&mut c.state.reservations, 2), Ok(vec![]));
    let exclusive = Kind::ExclusiveAccess;
    assert_eq!(c.state.reservations.reserve(&host.registrant, 2, exclusive), Ok(vec![]));
    // PREEMPT AND ABORT: the host's commands are to be aborted, and it is told so.
    assert_eq!(plain(&mut c, &mut host, 5, 3, 1, 2), GOOD);
    assert_eq!(c.aborts, [host.registrant.clone()]);
    assert_eq!(host.told, [Loss::Registration, Loss::Commands]);
    assert_eq!((host.may(&c.state.reservations), c.write(0)), ((false, false), GOOD));
    // The other way round: the nexus is told by a unit attention.
    assert_eq!(host.register(&mut c.state.reservations, 2), Ok(vec![]));
    let taken = c.state.reservations.preempt(&host.registrant, (2, 1), Some(exclusive), true);
    let events = taken.expect("it is registered");
    c.state.seats.tell(&events);
    assert_eq!(c.told(0), [5], "registrations preempted");
    let aborted: Vec<_> = Event::aborted(&events).map(NexusId::of).collect();
    assert_eq!(aborted, [Some((*c.nodes[0].id).clone())]);
    assert_eq!((host.may(&c.state.reservations), c.write(0)), ((true, true), CONFLICT));
    // CLEAR takes everything from both.
    assert_eq!(c.plain(1, 3, 0, 3, 0), GOOD);
    host.hear(&c.events);
    assert_eq!(host.told.last(), Some(&Loss::Everything));
    assert_eq!((c.keys(0), c.write(0)), (vec![], GOOD));
}

#[test]
fn reserve_excludes_the_host_and_its_registration_excludes_reserve() {
    let (mut c, host) = (Cluster::new(), Host::new());
    assert_eq!(c.status(0, &[0x16, 0, 0, 0, 0, 0]), GOOD);
    assert_eq!(host.may(&c.state.reservations), (false, false));
    assert_eq!(host.register(&mut c.state.reservations, 2), Err(Refusal::Conflict));
    assert_eq!(c.status(0, &[0x17, 0, 0, 0, 0, 0]), GOOD);
    assert_eq!(host.register(&mut c.state.reservations, 2), Ok(vec![]));
    assert_eq!(c.status(0, &[0x16, 0, 0, 0, 0, 0]), CONFLICT);
}

#[test]
fn reports_have_the_hosts_key_and_describe_nexuses_only() {
    let (mut c, host) = (Cluster::new(), Host::new());
    assert_eq!(host.register(&mut c.state.reservations, 2), Ok(vec![]));
    assert_eq!(c.register(0, 0, 1), GOOD);
    let kind = Kind::WriteExclusiveRegistrantsOnly;
    assert_eq!(c.state.reservations.reserve(&host.registrant, 2, kind), Ok(vec![]));
    assert_eq!(c.keys(0), [2, 1]);
    let reservation = c.report(0, 1);
    assert_eq!((reservation[15], reservation[21]), (2, 5), "key and type");
    let full = c.report(0, 3);
    assert_eq!(full.len(), 8 + 24 + 32, "one descriptor");
    assert_eq!((full[15], full[20]), (1, 0), "that of the nexus, which is not the holder");
}
