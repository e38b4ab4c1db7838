//! Who may hold how much of a shard's buffer memory: connections by their accounts, volumes by theirs.
//!
//! A buffer is charged to its connection until it goes to the storage. There it is charged to what its
//! connection has at that volume, which counts for the volume always, and for the connection as long as the
//! volume answers: so a volume that hangs fills neither the session that uses it nor, however often that comes
//! back, the arena.

use std::time::Duration;

use lunet_ring::{Account, Arena, Buf, MAX_RESERVE, Reserve};

use crate::executor::Executor;
use crate::open::VolumeId;
use crate::operation::{CHUNK, Command, OperationId, Requests};
use crate::storage::Storage;
use crate::work::Progress;

/// A volume that has not answered for so long hangs.
const HANGS: Duration = Duration::from_secs(1);

/// Operations that nobody waits for that may be at the storage of a volume, for each shard: those that were aborted
/// or whose session is gone, and those that were answered before they were done.
const ORPHANS: usize = 256;

/// Operations that wait for memory and get another try in one loop iteration.
const TRIES: usize = 64;

/// What a buffer occupies is a multiple of it.
const PAGE: usize = 4096;

/// The shortest read that a longer one is cut into when memory is short, in bytes.
const LEAST: usize = CHUNK / 16;

/// The size of the executor's spare buffer, in bytes.
pub(crate) const SPARE: usize = 64 << 10;

/// With this much waiting to be sent, a connection starts no further reads and receives nothing:
/// a client that does not read its answers slows only itself. In bytes.
pub const BACKLOG_HIGH: usize = 4 << 20;

/// Takes a buffer out of the memory that is for all, of which `allowance` bytes may be taken, or else out of what is
/// set aside for a session.
pub fn take(
    (arena, allowance): (&Arena, usize),
    reserve: Option<&Reserve>,
    account: &Account,
    len: usize,
) -> Option<Buf> {
    let shared = (Arena::cost(len) <= allowance).then(|| arena.alloc_for(len, account)).flatten();
    shared.or_else(|| reserve?.alloc_for(len, account))
}

/// How much memory a session has for itself: all have a small part, and early ones a chunk.
struct Kept {
    total: usize,
    reserved: usize,
    free: usize,
    sessions: usize,
    most: usize,
}

impl Kept {
    /// Bytes for one more, a power of two or nothing. Half of the memory is for this: half of that evenly for as
    /// many sessions as there may be, and of the rest each takes a sixteenth of what is left, a chunk at the most.
    /// An eighth of the memory stays with all.
    fn one_more(&self) -> usize {
        let even = whole(self.total / 4 / self.most.max(1));
        let later = even * self.most.saturating_sub(self.sessions);
        let rest = (self.total / 2).saturating_sub(self.reserved + later);
        let wanted = whole(rest / 16).max(even).min(MAX_RESERVE);
        let left = self
            .free
            .saturating_sub(self.total / 8)
            .min(self.total / 2 - self.reserved.min(self.total / 2));
        wanted.min(whole(left))
    }
}

/// The power of two that is no larger, or nothing if that is less than a page.
fn whole(bytes: usize) -> usize {
    bytes.checked_ilog2().map_or(0, |log| 1 << log) & !(PAGE - 1)
}

/// What a connection may hold altogether. While half of the memory is free everybody may take plenty; of the
/// other half each may take an even share, and no more than half of what is left, so that something is left for
/// the next.
fn share(free: usize, total: usize, connections: usize) -> usize {
    let share = (total / 2 / connections.max(1)).max(CHUNK / 16);
    if free > total / 2 { share.max(BACKLOG_HIGH) } else { share.min(free / 2) }
}

/// What a volume may have at its storage: half of the memory while half of it is free, else an even share of a
/// quarter, and a chunk always.
fn share_of_volume(free: usize, total: usize, volumes: usize) -> usize {
    let share = (total / 4 / volumes.max(1)).max(CHUNK);
    if free > total / 2 { share.max(total / 2) } else { share }
}

/// What pays for a connection's buffers.
#[derive(Clone, Copy)]
pub struct Budget<'a> {
    /// What they are charged to.
    pub account: &'a Account,
    /// What is set aside for its session.
    pub reserve: Option<&'a Reserve>,
}

impl<F> Storage<F> {
    /// How many more bytes a connection may hold of the memory that is for all: its share. So a client that
    /// does not read its answers, or never sends the data it announced, cannot starve the others.
    pub fn allowance(&self, account: &Account) -> usize {
        let arena = self.ring.arena();
        let total = arena.total_bytes() - arena.reserved_bytes();
        share(arena.free_bytes(), total, self.connections).saturating_sub(account.held())
    }

    /// Sets memory aside for a session, or more if it has little.
    pub fn renew(&self, reserve: &mut Option<Reserve>) {
        let arena = self.ring.arena();
        let kept = Kept {
            total: arena.total_bytes(),
            reserved: arena.reserved_bytes(),
            free: arena.free_bytes(),
            sessions: self.connections,
            most: self.config.max_sessions,
        };
        let wanted = kept.one_more();
        if wanted > reserve.as_ref().map_or(0, Reserve::bytes) {
            if let Some(more) = arena.reserve(wanted) {
                *reserve = Some(more);
            }
        }
    }

    /// A buffer within a connection's allowance, for work on the volume in this slot.
    pub(crate) fn take_buffer(
        &self,
        budget: Budget<'_>,
        slot: VolumeId,
        len: usize,
    ) -> Option<Buf> {
        if self.is_full(slot) {
            return None;
        }
        let allowance = self.allowance(budget.account);
        take((self.ring.arena(), allowance), budget.reserve, budget.account, len)
    }

    /// A buffer within the allowance, of this length or, if memory is short, a part of it: whole
    /// pages, 16 KiB at least.
    pub(crate) fn take_some(&self, budget: Budget<'_>, slot: VolumeId, len: usize) -> Option<Buf> {
        let mut wanted = len;
        loop {
            match self.take_buffer(budget, slot, wanted) {
                None if wanted > LEAST => wanted = (wanted / 2).max(LEAST).next_multiple_of(PAGE),
                other => return other,
            }
        }
    }

    /// A buffer for the one operation that must get on when memory is short. It is [given back](Self::give_back).
    pub(crate) fn take_spare(&mut self, requests: &mut Requests, len: usize) -> Option<Buf> {
        let mut buf = self.spare.take()?;
        buf.truncate(len);
        requests.spare = true;
        Some(buf)
    }

    /// Takes the spare buffer back from an operation that has it; another buffer is just dropped.
    pub(crate) fn give_back(&mut self, requests: &mut Requests, buf: Buf) {
        if std::mem::take(&mut requests.spare) {
            // At its full length again: what it occupies never changed.
            drop(buf);
            self.spare = self.ring.arena().alloc(SPARE);
        }
    }

    /// Bytes that may be asked of a client at once, a power of two; nothing if that is less than `least`. For data that
    /// does not go to the storage, there is no volume.
    pub(crate) fn room_for(
        &self,
        budget: Budget<'_>,
        volume: Option<VolumeId>,
        least: usize,
    ) -> Option<usize> {
        if volume.is_some_and(|slot| self.is_full(slot)) {
            return None;
        }
        // What a buffer occupies is a power of two.
        let shared = whole(self.allowance(budget.account));
        let limit = shared.max(budget.reserve.map_or(0, Reserve::room));
        (limit >= Arena::cost(least)).then_some(limit)
    }

    /// True if the volume in this slot has as much memory at its storage as it may have: nothing more is to be
    /// asked for on its behalf.
    pub fn is_full(&self, slot: VolumeId) -> bool {
        let arena = self.ring.arena();
        let (free, total) = (arena.free_bytes(), arena.total_bytes() - arena.reserved_bytes());
        self.volumes[slot].account.held() >= share_of_volume(free, total, self.volumes.slots())
    }

    /// True if so many operations that nobody waits for are at the storage of the volume in this slot that it takes
    /// no others: it hangs.
    pub fn is_crowded(&self, slot: VolumeId) -> bool {
        self.volumes[slot].orphans >= ORPHANS
    }

    /// A request is at the storage: it is looked whether it stays there.
    pub(crate) fn expect_answers(&mut self) {
        if self.watch.is_none() {
            self.watch = Some(self.now + HANGS);
        }
    }

    /// An operation waits for memory.
    pub(crate) fn starve(&mut self, requests: &mut Requests) -> Progress {
        // Once in the list is enough.
        if !std::mem::replace(&mut requests.starved, true) {
            self.starved.push_back(requests.id());
        }
        Progress::Waits
    }
}

impl<C: Command> Executor<C> {
    /// An operation has lost its client: what it has at the storage concerns the volume alone.
    pub fn orphan(&mut self, id: OperationId) {
        let requests = &mut self.operations[id].requests;
        if let Some(part) = requests.at_storage.take() {
            part.detach();
        }
        if !std::mem::replace(&mut requests.orphan, true) {
            self.storage.volumes[requests.volume].orphans += 1;
        }
    }

    /// When to look which volumes hang.
    pub fn next_watch(&self) -> Option<Duration> {
        self.storage.watch
    }

    /// The volumes that hang: what is at their storage is to count for them alone.
    pub fn watch_storage(&mut self) -> Vec<VolumeId> {
        let busy = || self.storage.channels.iter().flatten().filter(|channel| channel.queued > 0);
        let hang = busy().filter(|channel| self.storage.now >= channel.since + HANGS);
        let slots = hang.map(|channel| channel.volume).collect();
        self.storage.watch = busy().next().is_some().then_some(self.storage.now + HANGS);
        slots
    }

    /// True if operations wait for memory.
    pub fn is_starved(&self) -> bool {
        !self.storage.starved.is_empty()
    }

    /// True if some of them have not been tried since memory came back.
    pub fn feeds(&self) -> bool {
        self.hungry > 0
    }

    /// How many operations that wait for memory get another [try](Self::next_starved): each once whenever some has come
    /// back, and so many in one loop iteration that those who are not short do not wait for it.
    pub fn begin_feeding(&mut self) -> usize {
        let releases = self.storage.ring.arena().releases();
        if self.storage.starved.is_empty() {
            self.hungry = 0;
        } else if self.fed != releases {
            self.fed = releases;
            self.hungry = self.storage.starved.len();
        }
        self.hungry.min(TRIES)
    }

    /// The next operation that waits for memory. Whoever is still short waits on. It may have ended.
    pub fn next_starved(&mut self) -> Option<OperationId> {
        let id = self.storage.starved.pop_front()?;
        self.hungry = self.hungry.saturating_sub(1).min(self.storage.starved.len());
        if let Some(operation) = self.operations.get_mut(id) {
            operation.requests.starved = false;
        }
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// What so many sessions have, one after the other.
    fn kept(total: usize, most: usize, sessions: usize) -> Vec<usize> {
        let mut all = Vec::new();
        for n in 0..sessions {
            let reserved = all.iter().sum();
            let free = total - reserved;
            all.push(Kept { total, reserved, free, sessions: n + 1, most }.one_more());
        }
        all
    }

    #[test]
    fn every_session_has_memory_of_its_own_and_half_stays_with_all() {
        let all = kept(64 * MIB, 1024, 1024);
        assert_eq!((all[0], all[40], all[1023]), (CHUNK, CHUNK, 16 << 10));
        assert!(all.iter().all(|bytes| *bytes >= 16 << 10 && bytes.is_power_of_two()), "{all:?}");
        assert!(all.iter().sum::<usize>() <= 32 * MIB);
        // With the least memory that can be configured there is something for the first ones only.
        let few = kept(8 * MIB, 1024, 1024);
        assert_eq!((few[0], few[1023]), (CHUNK, 0));
        assert!(few.iter().take(32).all(|bytes| *bytes >= 16 << 10), "{few:?}");
        assert!(few.iter().sum::<usize>() <= 4 * MIB);
        // Where little is left, an eighth stays with all.
        let scarce = Kept { total: 64 * MIB, reserved: 0, free: 9 * MIB, sessions: 1, most: 1024 };
        assert_eq!(scarce.one_more(), CHUNK);
        assert_eq!(Kept { free: 8 * MIB, ..scarce }.one_more(), 0);
    }

    #[test]
    fn volumes_that_hang_leave_a_quarter() {
        for volumes in [1, 2, 8, 64] {
            let (total, mut free) = (64 * MIB, 64 * MIB);
            for _ in 0..volumes {
                let mut held = 0;
                while held < share_of_volume(free, total, volumes) {
                    held += CHUNK;
                    free -= CHUNK;
                }
            }
            assert!(free >= total / 4 - CHUNK, "{volumes} volumes leave {free}");
        }
    }
}
