//! The volumes of this shard, and how they come and go.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use lunet_block::{Channel, Completion, IoDone, Request, Submit};
use lunet_ring::{Account, Payload, Ring};
use lunet_volume::Health;

use super::Engine;
use super::line::Watch;
use super::task::{Bare, Job, Task};
use crate::stats::{Kind, VolumeCount};
use crate::world::{ScsiVolume, World};

/// A volume on this shard.
pub struct Volume {
    /// The volume itself.
    pub core: Arc<ScsiVolume>,
    /// The number of the channel that leads to it.
    pub channel: usize,
    /// What was done with it.
    pub count: VolumeCount,
    /// Written since the last flush that this shard asked for.
    pub written: bool,
    /// Tasks that work on it.
    pub tasks: usize,
    /// Those of them that nobody waits for.
    pub orphans: usize,
    /// The buffers at its storage.
    pub account: Account,
    /// There may be locks on it.
    pub guarded: bool,
    /// There was one: its data is no more read by reference, so that no answer on its way to an initiator
    /// shows half of what a command with a lock has written.
    pub exclusive: bool,
    /// Requests at the storage that locks wait for.
    pub watches: Vec<Watch>,
}

/// The volumes by their slots in the world. A volume that was removed stays until its last task has ended.
#[derive(Default)]
pub struct Volumes(Vec<Option<Volume>>);

impl Index<usize> for Volumes {
    type Output = Volume;

    fn index(&self, slot: usize) -> &Volume {
        self.0[slot].as_ref().expect("sessions and tasks name slots in use")
    }
}

impl IndexMut<usize> for Volumes {
    fn index_mut(&mut self, slot: usize) -> &mut Volume {
        self.0[slot].as_mut().expect("sessions and tasks name slots in use")
    }
}

impl Volumes {
    /// All of them with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Volume)> {
        self.0.iter().enumerate().filter_map(|(slot, volume)| Some((slot, volume.as_ref()?)))
    }

    /// What is in a slot, to change it.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Volume> {
        self.0.get_mut(slot).and_then(Option::as_mut)
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.0.len()
    }

    /// What is in a slot.
    pub fn get(&self, slot: usize) -> Option<&Volume> {
        self.0.get(slot).and_then(Option::as_ref)
    }
}

/// A channel to a volume.
pub struct Way {
    /// The channel.
    channel: Box<dyn Channel<Payload, Ring>>,
    /// The health of the storage that it leads to: each request and each answer passes it.
    health: Arc<Health>,
    /// The slot of its volume.
    pub volume: usize,
    /// Requests that the channel had no room for.
    pub waiting: VecDeque<Request<Payload>>,
    /// Requests that the channel has queued.
    pub queued: usize,
    /// When it answered last, or got the first of those.
    pub since: Duration,
    /// Another channel has taken its place: it ends with its last request.
    pub leaving: bool,
}

impl Way {
    /// As [`Channel::submit`].
    pub fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        if let Some(error) = self.health.refuses(request.op) {
            return Submit::Done(request.complete(Err(error)));
        }
        match self.channel.submit(request, ring) {
            Submit::Done(done) => Submit::Done(self.judged(done)),
            submitted => submitted,
        }
    }

    /// As [`Channel::advance`].
    pub fn advance(
        &mut self,
        done: IoDone<Payload>,
        ring: &mut Ring,
    ) -> Option<Completion<Payload>> {
        self.channel.advance(done, ring).map(|done| self.judged(done))
    }

    /// As [`Channel::cancel`].
    pub fn cancel(&mut self, tag: u64, ring: &mut Ring) {
        self.channel.cancel(tag, ring);
    }

    /// As [`Channel::lent`].
    pub fn lent(&self) -> usize {
        self.channel.lent()
    }

    /// As [`Channel::lends`].
    pub fn lends(&self, answer: &Payload) -> bool {
        self.channel.lends(answer)
    }

    fn judged(&self, mut done: Completion<Payload>) -> Completion<Payload> {
        done.result = self.health.judge(done.op, done.result);
        done
    }
}

impl Engine {
    /// Opens channels to all that is new in the next world, so that [`adopt`](Self::adopt) cannot fail.
    ///
    /// # Errors
    /// A plain sentence. Nothing has changed then.
    pub fn prepare(&mut self, next: &World) -> Result<(), String> {
        for (slot, volume) in next.volumes() {
            if self.volumes.get(slot).is_some_and(|old| Arc::ptr_eq(&old.core, volume)) {
                continue;
            }
            let number = self.ways.iter().position(Option::is_none).unwrap_or(self.ways.len());
            let opened = match u16::try_from(number) {
                Ok(number) => volume.backend.open_channel(number, &mut self.ring),
                Err(_) => Err(libc_emfile()),
            };
            let channel = opened.map_err(|errno| {
                let error = std::io::Error::from_raw_os_error(errno);
                format!("volume {} cannot be opened on an event loop: {error}", volume.name)
            });
            let channel = match channel {
                Ok(channel) => channel,
                Err(error) => {
                    self.cancel_prepared();
                    return Err(error);
                }
            };
            let waiting = VecDeque::new();
            let health = volume.health.clone();
            let way = Way {
                channel,
                health,
                volume: slot,
                waiting,
                queued: 0,
                since: self.now,
                leaving: false,
            };
            if number == self.ways.len() {
                self.ways.push(Some(way));
            } else {
                self.ways[number] = Some(way);
            }
            self.prepared.push((slot, number));
        }
        Ok(())
    }

    /// The next world does not come after all.
    pub fn cancel_prepared(&mut self) {
        for (_, number) in std::mem::take(&mut self.prepared) {
            self.leave_way(number);
        }
    }

    /// Works by the next world from now on. Its new volumes are [prepared](Self::prepare). Sessions have
    /// no commands any more on what was removed.
    pub fn adopt(&mut self, next: Arc<World>) {
        for (slot, number) in std::mem::take(&mut self.prepared) {
            let Some(core) = next.volume(slot) else { continue };
            self.take_in(slot, number, core.clone());
        }
        let gone: Vec<usize> = self
            .volumes
            .iter()
            .filter(|(slot, _)| next.volume(*slot).is_none())
            .map(|(slot, _)| slot)
            .collect();
        for slot in gone {
            self.flush_volume(slot);
            self.retire(slot);
        }
        self.world = next;
    }

    /// A volume is new, or another one of the same name.
    fn take_in(&mut self, slot: usize, number: usize, core: Arc<ScsiVolume>) {
        // The old channel may be the only one that the kernel tells of a failed write-back.
        self.flush_volume(slot);
        if self.volumes.0.len() <= slot {
            self.volumes.0.resize_with(slot + 1, || None);
        }
        match &mut self.volumes.0[slot] {
            Some(volume) => {
                let old = std::mem::replace(&mut volume.channel, number);
                volume.core = core;
                self.leave_way(old);
            }
            place @ None => {
                let count = VolumeCount::default();
                *place = Some(Volume {
                    core,
                    channel: number,
                    count,
                    written: false,
                    tasks: 0,
                    orphans: 0,
                    account: Account::default(),
                    guarded: false,
                    exclusive: false,
                    watches: Vec::new(),
                });
            }
        }
    }

    /// A channel is not used any more: it ends with its last request.
    fn leave_way(&mut self, number: usize) {
        if let Some(way) = &mut self.ways[number] {
            way.leaving = true;
        }
        self.close_way(number);
    }

    /// Lets a channel go that leaves and has nothing more to do.
    pub(super) fn close_way(&mut self, number: usize) {
        let idle = |way: &Way| way.leaving && way.queued == 0 && way.waiting.is_empty();
        if let Some(way) = self.ways[number].take_if(|way| idle(way)) {
            way.channel.close(&mut self.ring);
        }
    }

    /// Lets a volume go that is no more in the world and has no tasks.
    fn retire(&mut self, slot: usize) {
        let Some(volume) = self.volumes.get(slot).filter(|volume| volume.tasks == 0) else {
            return;
        };
        let number = volume.channel;
        self.volumes.0[slot] = None;
        self.leave_way(number);
    }

    /// Takes a task in.
    pub(super) fn insert_task(&mut self, task: Task) -> u32 {
        self.volumes[task.volume].tasks += 1;
        self.tasks.insert(task) as u32
    }

    /// A task has ended.
    pub(super) fn remove_task(&mut self, index: u32) -> Task {
        let task = self.tasks.remove(index as usize);
        if let Some(claim) = &task.claim {
            self.release(index, task.volume, claim);
        }
        self.volumes[task.volume].orphans -= usize::from(task.orphan);
        self.leave_volume(task.volume);
        for slot in task.copy.iter().flat_map(|copy| copy.held()) {
            self.leave_volume(slot);
        }
        task
    }

    /// A task has nothing more to do with a volume.
    pub(super) fn leave_volume(&mut self, slot: usize) {
        let volume = &mut self.volumes[slot];
        volume.tasks -= 1;
        if volume.tasks == 0 && self.world.volume(slot).is_none() {
            self.retire(slot);
        }
    }

    /// Flushes every volume that this shard wrote to, without a connection that waits for it.
    pub fn flush_written(&mut self) {
        let slots: Vec<usize> = self.volumes.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.flush_volume(slot);
        }
    }

    fn flush_volume(&mut self, slot: usize) {
        let Some(volume) = self.volumes.get_mut(slot) else { return };
        if std::mem::take(&mut volume.written) && volume.core.caps.write_cache {
            let job = Job::Bare(Bare::flush());
            let index = self.insert_task(Task::new(slot, Kind::Flush, self.now, job));
            self.pump_bare(index);
        }
    }
}

/// EMFILE, for the 65,537th channel.
const fn libc_emfile() -> i32 {
    24
}
