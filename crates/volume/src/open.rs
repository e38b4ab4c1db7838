//! The volumes of one shard, by their slots.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use lunet_ring::Account;

use crate::count::{Busy, VolumeCount};
use crate::operation::OperationId;
use crate::queue::Watch;
use crate::stage::Sampler;
use crate::throttle::Behind;
use crate::volume::Volume;

/// Names a volume by its slot. What is in a slot stays there as long as anybody works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(usize);

impl VolumeId {
    /// The id of the volume with this index in the world.
    pub const fn new(slot: usize) -> Self {
        Self(slot)
    }

    /// Index of the volume in the world.
    pub const fn slot(self) -> usize {
        self.0
    }
}

/// A volume on one shard.
pub struct OpenVolume<F> {
    /// What all shards share of the volume.
    pub core: Arc<Volume<F>>,
    /// What was done with it.
    pub count: VolumeCount,
    /// The buffers at its storage.
    pub(crate) account: Account,
    /// There was a lock on it: its data is no longer read by reference, so that no answer on its way to a client
    /// shows half of what a command with a lock has written.
    pub exclusive: bool,
    /// It is served no longer, and stays until its last operation has ended.
    pub removed: bool,
    /// Written since the last flush that this shard asked for.
    pub(crate) written: bool,
    /// The number of the channel that leads to it.
    pub(crate) channel: usize,
    /// Operations that work on it.
    pub(crate) operations: usize,
    /// How long there were some.
    busy: Busy,
    /// Which of them are timed.
    pub(crate) sampler: Sampler,
    /// Those of them that nobody waits for.
    pub(crate) orphans: usize,
    /// There may be locks on it: at first nobody knows, as one may have come before this shard was there to be asked.
    pub(crate) guarded: bool,
    /// Requests at the storage that locks wait for.
    pub(crate) watches: Vec<Watch>,
    /// Operations that wait for a limit, in their order.
    pub(crate) line: VecDeque<OperationId>,
    /// Who has to wait behind them.
    pub(crate) behind: Behind,
    /// They wait for the volume's share.
    pub(crate) wants_share: bool,
}

impl<F> OpenVolume<F> {
    fn new(core: Arc<Volume<F>>, channel: usize) -> Self {
        Self {
            core,
            count: VolumeCount::default(),
            account: Account::default(),
            exclusive: false,
            removed: false,
            written: false,
            busy: Busy::default(),
            sampler: Sampler::default(),
            channel,
            operations: 0,
            orphans: 0,
            guarded: true,
            watches: Vec::new(),
            line: VecDeque::new(),
            behind: Behind::default(),
            wants_share: false,
        }
    }

    /// An operation works on it from now on.
    #[inline]
    pub(crate) fn enter(&mut self, now: Duration) {
        if self.operations == 0 {
            self.busy.begin(now);
        }
        self.operations += 1;
    }

    /// An operation has nothing more to do with it.
    #[inline]
    pub(crate) fn leave(&mut self, now: Duration) {
        self.operations -= 1;
        if self.operations == 0 {
            self.busy.end(now);
        }
    }

    /// How long there were operations so far.
    pub(crate) fn busy(&self, now: Duration) -> Duration {
        self.busy.time(self.operations > 0, now)
    }
}

/// The volumes of a shard. What sessions and operations name is there: another slot is a mistake of lunet's.
pub struct OpenVolumes<F>(Vec<Option<OpenVolume<F>>>);

impl<F> Default for OpenVolumes<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F> Index<VolumeId> for OpenVolumes<F> {
    type Output = OpenVolume<F>;

    fn index(&self, slot: VolumeId) -> &OpenVolume<F> {
        self.0[slot.0].as_ref().expect("sessions and operations name slots in use")
    }
}

impl<F> IndexMut<VolumeId> for OpenVolumes<F> {
    fn index_mut(&mut self, slot: VolumeId) -> &mut OpenVolume<F> {
        self.0[slot.0].as_mut().expect("sessions and operations name slots in use")
    }
}

impl<F> OpenVolumes<F> {
    /// All of them with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, &OpenVolume<F>)> {
        let volumes = self.0.iter().enumerate();
        volumes.filter_map(|(slot, volume)| Some((VolumeId(slot), volume.as_ref()?)))
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> usize {
        self.0.len()
    }

    /// What is in a slot.
    pub fn get(&self, slot: VolumeId) -> Option<&OpenVolume<F>> {
        self.0.get(slot.0).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, slot: VolumeId) -> Option<&mut OpenVolume<F>> {
        self.0.get_mut(slot.0).and_then(Option::as_mut)
    }

    /// A volume is new, or takes the place of another, whose channel is given back.
    pub(crate) fn put(
        &mut self,
        slot: VolumeId,
        core: Arc<Volume<F>>,
        channel: usize,
    ) -> Option<usize> {
        if self.0.len() <= slot.0 {
            self.0.resize_with(slot.0 + 1, || None);
        }
        match &mut self.0[slot.0] {
            Some(volume) => {
                volume.core = core;
                volume.removed = false;
                Some(std::mem::replace(&mut volume.channel, channel))
            }
            free @ None => {
                *free = Some(OpenVolume::new(core, channel));
                None
            }
        }
    }

    pub(crate) fn take(&mut self, slot: VolumeId) -> Option<OpenVolume<F>> {
        self.0.get_mut(slot.0).and_then(Option::take)
    }
}
