//! Who is logged in at a logical unit, as all shards see it, and what they do to the volume's reservations.
//!
//! The reservations are locked first, where both are.

use std::sync::{Arc, PoisonError, Weak};

use lunet_os::sync::{Mutex, MutexGuard};
use lunet_reservations::{Event, Registrant};
use lunet_scsi::Nexus;
use lunet_scsi::reserve::{InitiatorPort, LiveNexus, NexusId, Port, Seat, Seats, TargetPort};
use lunet_volume::VolumeId;
use lunet_volume::reserve::{Done, Listener, Shared};

use crate::message::{Message, Preempted, is_initiator};
use crate::registry;
use crate::session::Core;
use crate::world::ScsiVolume;

/// The seats of one logical unit.
#[derive(Default)]
pub struct SharedSeats(Mutex<Seats>);

impl SharedSeats {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other target ports lead to the unit from now on.
    pub fn set_ports(&self, ports: Vec<Port>) {
        self.lock().set_ports(ports);
    }
}

impl Listener for SharedSeats {
    fn tell(&self, events: &[Event]) {
        self.lock().tell(events);
    }
}

/// What makes the listeners that end commands, see [`Listener::abort`].
pub fn ears(core: Weak<Core>) -> impl Fn(VolumeId) -> Arc<dyn Listener> {
    move |volume| Arc::new(Ear { core: core.clone(), volume })
}

struct Ear {
    core: Weak<Core>,
    volume: VolumeId,
}

impl Listener for Ear {
    fn tell(&self, _: &[Event]) {
        // The seats hear of it, also before the start.
    }

    fn abort(&self, whose: &Arc<[Registrant]>, done: &Done) {
        let Some(core) = self.core.upgrade() else { return };
        if !whose.iter().any(is_initiator) {
            return;
        }
        for mailbox in core.mailboxes() {
            let (order, receipt) = (whose.clone(), done.clone());
            let preempted = Preempted { volume: self.volume, order, spared: None, receipt };
            mailbox.tell(Message::Abort(preempted));
        }
    }
}

/// Does something with the seats, and lets every shard know if that changed what nexuses have to look at.
pub fn with_seats<T>(volume: &ScsiVolume, what: impl FnOnce(&mut Seats) -> T) -> T {
    let mut seats = volume.face.seats.lock();
    let before = seats.changes();
    let result = what(&mut seats);
    if seats.changes() != before {
        volume.reservations.announce();
    }
    result
}

/// Brings a nexus up to date before its next command. One load, if nothing has changed.
pub fn refresh(volume: &ScsiVolume, seat: Seat, nexus: &mut Nexus) {
    let news = volume.reservations.news();
    if news != nexus.seen() {
        volume
            .reservations
            .look(|state| volume.face.seats.lock().refresh(seat, state, news, nexus));
    }
}

/// A nexus at a logical unit. It can be given up when the volume is not served any more, and another one has its slot.
pub struct Place {
    /// The seat at the unit.
    pub seat: Seat,
    seats: Arc<SharedSeats>,
    reservations: Arc<Shared>,
}

impl Place {
    /// Takes a seat at the unit of a volume.
    pub fn take(volume: &ScsiVolume, id: &Arc<LiveNexus>) -> Self {
        let seat = with_seats(volume, |seats| seats.attach(id.clone()));
        Self { seat, seats: volume.face.seats.clone(), reservations: volume.reservations.clone() }
    }

    /// True if it is at this volume, of whatever size.
    pub fn is_at(&self, volume: &ScsiVolume) -> bool {
        Arc::ptr_eq(&self.seats, &volume.face.seats)
    }

    /// The nexus is lost.
    pub fn leave(self) {
        self.reservations.change(|state| {
            if let Some(registrant) = self.seats.lock().detach(self.seat) {
                state.session_ended(&registrant);
            }
            ((), Vec::new())
        });
    }
}

/// A reset of the unit or the target: it ends RESERVE and PREVENT, persistent reservations stay.
pub fn reset(volume: &ScsiVolume) {
    volume.reservations.change(|state| {
        volume.face.seats.lock().reset();
        state.end_claim();
        ((), Vec::new())
    });
}

/// A session's nexus by the names of its ends.
pub fn nexus_id(nexus: &registry::Nexus, target: &str) -> Arc<LiveNexus> {
    LiveNexus::new(NexusId {
        initiator: InitiatorPort { name: nexus.initiator.clone(), isid: nexus.isid },
        port: TargetPort { target: target.into(), tag: nexus.portal_group },
    })
}
