//! Who may hold how much of a shard's buffer memory: connections by their accounts, volumes by theirs.
//!
//! A buffer is charged to its connection until it goes to the storage. There it is charged to what its
//! connection has at that volume, which counts for the volume always, and for the connection as long as the
//! volume answers: so a LUN that hangs fills neither the session that uses it nor, however often that comes
//! back, the arena.

use std::time::Duration;

use lunet_ring::{Account, Arena, Buf, MAX_RESERVE, Reserve};
use lunet_scsi::status;
use slab::Slab;

use super::Engine;
use super::task::{CHUNK, Job, Task};
use crate::conn::{BACKLOG_HIGH, Conn, find_lun};

/// A volume that has not answered for so long hangs.
const HANGS: Duration = Duration::from_secs(1);

/// Commands without an initiator that may be at the storage of a volume, for each shard: those that were aborted
/// or whose session is gone, and those that were answered before they were done.
const ORPHANS: usize = 256;

/// Tasks that wait for memory and get another try in one turn of the loop.
const TRIES: usize = 64;

/// What a buffer occupies is a multiple of it.
const PAGE: usize = 4096;

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

impl Engine {
    /// How many more bytes the connection may hold of the memory that is for all: its share. So a client that
    /// does not read its answers, or never sends the data it announced, cannot starve the others.
    pub fn allowance(&self, conn: &Conn) -> usize {
        let arena = self.ring.arena();
        let total = arena.total_bytes() - arena.reserved_bytes();
        share(arena.free_bytes(), total, self.connections).saturating_sub(conn.account.held())
    }

    /// Sets memory aside for a session, or more if it has little.
    pub fn renew(&self, reserve: &mut Option<Reserve>) {
        let arena = self.ring.arena();
        let kept = Kept {
            total: arena.total_bytes(),
            reserved: arena.reserved_bytes(),
            free: arena.free_bytes(),
            sessions: self.connections,
            most: self.core.limits.max_sessions,
        };
        let wanted = kept.one_more();
        if wanted > reserve.as_ref().map_or(0, Reserve::bytes) {
            if let Some(more) = arena.reserve(wanted) {
                *reserve = Some(more);
            }
        }
    }

    /// True if the volume in this slot has as much memory at its storage as it may have: nothing more is to be
    /// asked for on its behalf.
    pub(super) fn is_full(&self, slot: usize) -> bool {
        let arena = self.ring.arena();
        let (free, total) = (arena.free_bytes(), arena.total_bytes() - arena.reserved_bytes());
        self.volumes[slot].account.held() >= share_of_volume(free, total, self.volumes.slots())
    }

    /// True if so many commands without an initiator are at the storage of the volume in this slot that it takes
    /// no others: it hangs.
    pub(super) fn is_crowded(&self, slot: usize) -> bool {
        self.volumes[slot].orphans >= ORPHANS
    }

    /// What a command gets that cannot begin because of the memory or the commands at its volume.
    pub(super) fn refusal(&self, slot: usize, has_data: bool) -> Option<u8> {
        if self.is_crowded(slot) {
            return Some(status::BUSY);
        }
        (has_data && self.is_full(slot)).then_some(status::TASK_SET_FULL)
    }

    /// The account of what a session has at the storage of one of its LUNs.
    pub(super) fn storage_account(&self, conn: &mut Conn, lun: u16) -> Option<Account> {
        let seen = find_lun(&mut conn.session.as_mut()?.luns, lun)?;
        let place = &self.volumes[seen.volume].account;
        let part = seen.at_storage.get_or_insert_with(|| Account::part(&conn.account, place));
        if part.held() == 0 {
            part.attach(&conn.account);
        }
        Some(part.clone())
    }

    /// A buffer goes to the storage for a task.
    pub(super) fn charge_storage(&self, slot: usize, task: u32, buf: &mut Buf) {
        let own = self.tasks[task as usize].at_storage.as_ref();
        buf.charge(own.unwrap_or(&self.volumes[slot].account));
    }

    /// A task has lost its initiator: what it has at the storage concerns the volume alone.
    pub(super) fn orphan(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        if let Some(part) = task.at_storage.take() {
            part.detach();
        }
        if !std::mem::replace(&mut task.orphan, true) {
            self.volumes[task.volume].orphans += 1;
        }
    }

    /// When to look which volumes hang.
    pub fn next_watch(&self) -> Option<Duration> {
        self.watch
    }

    /// Sees to it that what is at the storage of a volume that hangs counts for the volume alone.
    pub fn watch_storage(&mut self, conns: &Slab<Conn>) {
        let mut works = false;
        for way in self.ways.iter().flatten().filter(|way| way.queued > 0) {
            works = true;
            if self.now < way.since + HANGS {
                continue;
            }
            let sessions = conns.iter().filter_map(|(_, conn)| conn.session.as_ref());
            for lun in sessions.flat_map(|session| &session.luns) {
                if let Some(part) = lun.at_storage.as_ref().filter(|_| lun.volume == way.volume) {
                    part.detach();
                }
            }
        }
        self.watch = works.then_some(self.now + HANGS);
    }

    /// A request is at the storage: it is looked whether it stays there.
    pub(super) fn expect_answers(&mut self) {
        if self.watch.is_none() {
            self.watch = Some(self.now + HANGS);
        }
    }

    /// True if tasks wait for memory.
    pub fn is_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// True if some of them have not been tried since memory came back.
    pub fn feeds(&self) -> bool {
        self.hungry > 0
    }

    /// A task waits for memory. Always false, for callers that end with it.
    pub(super) fn starve(&mut self, index: u32) -> bool {
        // Once in the list is enough.
        if !std::mem::replace(&mut self.tasks[index as usize].starved, true) {
            self.starved.push_back(index);
        }
        false
    }

    /// Gives tasks that wait for memory another try, once whenever some has come back, and so many in one turn
    /// that those who are not short do not wait for it. Who is still short waits on.
    pub fn feed_starved(&mut self, conns: &mut Slab<Conn>) {
        let releases = self.ring.arena().releases();
        if self.starved.is_empty() || (self.hungry == 0 && releases == self.fed) {
            self.hungry = 0;
            return;
        }
        if self.fed != releases {
            self.fed = releases;
            self.hungry = self.starved.len();
        }
        for _ in 0..self.hungry.min(TRIES) {
            let Some(index) = self.starved.pop_front() else { break };
            self.hungry -= 1;
            if let Some(task) = self.tasks.get_mut(index as usize) {
                task.starved = false;
            }
            let Some(conn) = self.conn_of(conns, index) else { continue };
            if conn.reserve.is_none() {
                self.renew(&mut conn.reserve);
            }
            self.pump(conn, index);
        }
        self.hungry = self.hungry.min(self.starved.len());
        self.settle(conns);
    }

    /// Bytes that an R2T of a task may ask for at once, a power of two; nothing if that is less than `least`.
    pub(super) fn room_for(&self, conn: &Conn, task: &Task, least: usize) -> Option<usize> {
        // Parameter lists do not go to the storage.
        if self.is_full(task.volume) && !matches!(task.job, Job::Collect(_)) {
            return None;
        }
        // What a buffer occupies is a power of two.
        let limit = whole(self.allowance(conn)).max(conn.reserve.as_ref().map_or(0, Reserve::room));
        (limit >= Arena::cost(least)).then_some(limit)
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
