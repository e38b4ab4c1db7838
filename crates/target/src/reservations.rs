//! A volume's reservations, as all shards see them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lunet_scsi::Nexus;
use lunet_scsi::reserve::{InitiatorPort, NexusId, Reservations, Seat, TargetPort};

use crate::registry;

/// The reservations of one volume.
///
/// A command looks at the number of the latest change only. It is written when a reservation changes, so
/// every core keeps it in its own cache; whoever finds it changed takes the lock and looks what is new.
#[derive(Debug)]
pub struct Shared {
    changes: AtomicU64,
    state: Mutex<Reservations>,
}

impl Shared {
    /// Shares the reservations of one volume.
    pub fn new(state: Reservations) -> Self {
        Self { changes: AtomicU64::new(state.changes()), state: Mutex::new(state) }
    }

    /// Does something with the reservations, and lets every shard know if that changed them.
    pub fn with<T>(&self, what: impl FnOnce(&mut Reservations) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = what(&mut state);
        self.changes.store(state.changes(), Ordering::Release);
        result
    }

    /// Brings a nexus up to date before its next command. One load, if nothing has changed.
    pub fn refresh(&self, seat: Seat, nexus: &mut Nexus) {
        if self.changes.load(Ordering::Acquire) != nexus.seen() {
            self.with(|state| state.refresh(seat, nexus));
        }
    }
}

/// A session's nexus by the names of its ends.
pub fn nexus_id(nexus: &registry::Nexus, target: &str) -> Arc<NexusId> {
    Arc::new(NexusId {
        initiator: InitiatorPort { name: nexus.initiator.clone(), isid: nexus.isid },
        port: TargetPort { target: target.into(), tag: nexus.portal_group },
    })
}
