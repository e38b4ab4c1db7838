//! What the server serves at one moment: volumes in slots, and what clients log in to in slots.
//!
//! A world is never changed, it is replaced by the next one ([`crate::change`]). Every shard holds the world
//! that it works by, so nothing on the way of a command is locked or counted. What is in a slot stays
//! there from world to world; the slot of something that was removed is used again only after the last
//! shard, session and operation has let go of it.

use std::sync::{Arc, Weak};

use lunet_volume::{Volume, VolumeId};

use crate::front::Front;
use crate::portals::Portals;

/// One state of what is served.
pub struct World<F: Front> {
    volumes: Vec<Slot<Volume<F::Face>>>,
    exports: Vec<Slot<F::Export>>,
    /// The portals by which clients come.
    pub portals: Arc<Portals>,
    /// What else the protocol knows of what is served.
    pub rules: F::Rules,
}

impl<F: Front> Default for World<F> {
    fn default() -> Self {
        let (portals, rules) = (Arc::default(), F::Rules::default());
        Self { volumes: Vec::new(), exports: Vec::new(), portals, rules }
    }
}

/// A place for something that comes and goes.
enum Slot<T> {
    /// It is there.
    Taken(Arc<T>),
    /// It was removed; somebody may still be busy with it.
    Left(Weak<T>),
}

impl<T> Slot<T> {
    fn get(&self) -> Option<&Arc<T>> {
        match self {
            Self::Taken(it) => Some(it),
            Self::Left(_) => None,
        }
    }

    fn leave(&self) -> Self {
        match self {
            Self::Taken(it) => Self::Left(Arc::downgrade(it)),
            Self::Left(it) => Self::Left(it.clone()),
        }
    }

    fn is_free(&self) -> bool {
        matches!(self, Self::Left(it) if it.strong_count() == 0)
    }
}

impl<F: Front> World<F> {
    /// What is in a slot for volumes.
    pub fn volume(&self, slot: VolumeId) -> Option<&Arc<Volume<F::Face>>> {
        self.volumes.get(slot.slot()).and_then(Slot::get)
    }

    /// What is in a slot for what clients log in to.
    pub fn export(&self, slot: usize) -> Option<&Arc<F::Export>> {
        self.exports.get(slot).and_then(Slot::get)
    }

    /// The volumes with their slots.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeId, &Arc<Volume<F::Face>>)> {
        let slots = self.volumes.iter().enumerate();
        slots.filter_map(|(slot, it)| Some((VolumeId::new(slot), it.get()?)))
    }

    /// What clients log in to, with the slots.
    pub fn exports(&self) -> impl Iterator<Item = (usize, &Arc<F::Export>)> {
        self.exports.iter().enumerate().filter_map(|(slot, it)| Some((slot, it.get()?)))
    }

    /// A world after this one that serves nothing yet: all slots are left.
    pub fn successor(&self, portals: Arc<Portals>, rules: F::Rules) -> Self {
        let volumes = self.volumes.iter().map(Slot::leave).collect();
        let exports = self.exports.iter().map(Slot::leave).collect();
        Self { volumes, exports, portals, rules }
    }

    /// Puts a volume into the slot that it has had, be it in the world of another server, or into a free one.
    pub fn put_volume(&mut self, own: Option<VolumeId>, volume: Arc<Volume<F::Face>>) -> VolumeId {
        VolumeId::new(place(&mut self.volumes, own.map(VolumeId::slot), volume))
    }

    /// Puts what clients log in to into the slot that it has had, or into a free one.
    pub fn put_export(&mut self, own: Option<usize>, export: Arc<F::Export>) -> usize {
        place(&mut self.exports, own, export)
    }
}

/// Puts something into its slot, or into a free one.
fn place<T>(slots: &mut Vec<Slot<T>>, own: Option<usize>, it: Arc<T>) -> usize {
    let slot = own.or_else(|| slots.iter().position(Slot::is_free)).unwrap_or(slots.len());
    while slots.len() <= slot {
        slots.push(Slot::Left(Weak::new()));
    }
    slots[slot] = Slot::Taken(it);
    slot
}
