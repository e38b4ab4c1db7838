//! Who may hold how much of a shard's buffer memory: connections by their accounts, volumes by theirs.
//!
//! A buffer is charged to its connection until it goes to the storage. There it is charged to what its
//! connection has at that volume, which counts for the volume always, and for the connection as long as the
//! volume answers: so a volume that hangs fills neither the session that uses it nor, however often that comes
//! back, the arena.

use std::collections::BTreeMap;
use std::time::Duration;

use lunet_ring::{Account, Arena, Buf, MAX_RESERVE, Reserve};

use crate::executor::Executor;
use crate::open::VolumeId;
use crate::operation::{CHUNK, Command, OperationId, Requests};
use crate::storage::Storage;
use crate::work::{Client, Progress};

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
const fn whole(bytes: usize) -> usize {
    if bytes < PAGE { 0 } else { 1 << bytes.ilog2() }
}

/// Bytes for one more out of what is kept for those who come when the memory that is for all is held by others: of
/// one half each takes a quarter of what is left, a chunk at the most, and of the other the least that is of use.
const fn one_of_kept(free: usize, total: usize) -> usize {
    let wanted = whole(free.saturating_sub(total / 2) / 4);
    match wanted {
        MAX_RESERVE.. => MAX_RESERVE,
        LEAST.. => wanted,
        _ if free >= LEAST => LEAST,
        _ => 0,
    }
}

/// The memory that is for all, and who may hold a part of it.
#[derive(Clone, Copy)]
struct Shared {
    free: usize,
    total: usize,
    hosts: usize,
}

impl Shared {
    /// Who holds it while there is plenty does nobody harm.
    fn is_plenty(self) -> bool {
        self.free > self.total / 2
    }

    /// What each of so many connections may hold while there is plenty.
    fn of_plenty(self, connections: usize) -> usize {
        (self.total / 2 / connections.max(1)).max(BACKLOG_HIGH)
    }

    /// What a host may hold otherwise, with all of its connections or with one of `connections`: an even share of half,
    /// and no more than a quarter of what is left, so that something is left for the next.
    fn of_little(self, connections: usize) -> usize {
        let share = self.total / 2 / self.hosts.max(1) / connections.max(1);
        share.max(LEAST).min(self.free / 4)
    }
}

/// The hosts that have connections on a shard, by their names, with what all connections of each hold.
#[derive(Default)]
pub(crate) struct Hosts(BTreeMap<Box<str>, Account>);

impl Hosts {
    /// Forgets those of whom nothing is left.
    fn prune(&mut self) {
        self.0.retain(|_, account| account.references() > 1);
    }
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
    /// How much memory there is, in bytes, if half of what is for all is free.
    pub fn plenty(&self) -> Option<usize> {
        let arena = self.ring.arena();
        let (free, total) = (arena.shared_free(), arena.shared_bytes());
        Shared { free, total, hosts: 0 }.is_plenty().then(|| arena.total_bytes())
    }

    /// How much a session that begins now will have [set aside](Self::renew) for itself, in bytes, even if `more` others begin
    /// before it.
    pub fn foreseen_reserve(&self, more: usize) -> usize {
        let arena = self.ring.arena();
        let taken = more * MAX_RESERVE;
        let of_all = Kept {
            total: arena.total_bytes(),
            reserved: arena.reserved_bytes() + taken,
            free: arena.shared_free().saturating_sub(taken),
            sessions: self.connections + more,
            most: self.config.max_sessions,
        };
        of_all.one_more()
    }

    /// How many more bytes a connection may hold of the memory that is for all: its share, and its host's. So a
    /// client that does not read its answers, or never sends the data it announced, cannot starve the others, by
    /// however many connections it comes.
    pub fn allowance(&self, account: &Account) -> usize {
        let arena = self.ring.arena();
        let (free, total) = (arena.shared_free(), arena.shared_bytes());
        let of_host = account.of_owner();
        let hosts = if of_host.is_some() { self.hosts.0.len() } else { self.connections };
        let shared = Shared { free, total, hosts };
        match of_host {
            _ if shared.is_plenty() => {
                shared.of_plenty(self.connections).saturating_sub(account.held())
            }
            None => shared.of_little(1).saturating_sub(account.held()),
            Some((held, references)) => {
                let own = shared.of_little(references - 1).saturating_sub(account.held());
                own.min(shared.of_little(1).saturating_sub(held))
            }
        }
    }

    /// A connection turns out to be a host's: what it holds counts for that host from now on.
    pub fn join_host(&mut self, account: &Account, name: &str) {
        self.hosts.prune();
        let host = match self.hosts.0.get(name) {
            Some(host) => host,
            None => self.hosts.0.entry(name.into()).or_default(),
        };
        account.attach(host);
    }

    /// A connection has gone: its host may have, too.
    pub fn leave_host(&mut self) {
        self.hosts.prune();
    }

    /// Sets memory aside for a session, or more if it has little: out of what is for all, or, if little of that is left,
    /// out of what is kept for this.
    pub fn renew(&self, account: &Account, reserve: &mut Option<Reserve>) {
        let arena = self.ring.arena();
        let of_all = Kept {
            total: arena.total_bytes(),
            reserved: arena.reserved_bytes(),
            free: arena.shared_free(),
            sessions: self.connections,
            most: self.config.max_sessions,
        };
        let (wanted, kept) = (of_all.one_more(), self.one_of_kept(account));
        let has = reserve.as_ref().map_or(0, Reserve::bytes);
        let mut more = None;
        if wanted > has && wanted >= kept {
            more = arena.reserve(wanted);
        }
        if more.is_none() && kept > has {
            more = arena.reserve_kept(kept);
        }
        if more.is_some() {
            *reserve = more;
        }
    }

    /// Bytes for one more out of what is kept. A host with many connections has nothing of its second half for the
    /// later ones, so that no host can have all.
    fn one_of_kept(&self, account: &Account) -> usize {
        let arena = self.ring.arena();
        let (free, total) = (arena.kept_free(), arena.kept_bytes());
        let connections = account.of_owner().map_or(1, |(_, references)| references - 1);
        let many = (total / LEAST / 16).max(1);
        if free <= total / 2 && connections > many { 0 } else { one_of_kept(free, total) }
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
        client: &impl Client,
        volume: Option<VolumeId>,
        least: usize,
    ) -> Option<usize> {
        if volume.is_some_and(|slot| self.is_full(slot)) {
            return None;
        }
        // What a buffer occupies is a power of two.
        let budget = client.budget();
        let shared = whole(self.allowance(budget.account));
        let own = budget.reserve.map_or(0, |reserve| reserve.room_beside(client.keeps()));
        let limit = shared.max(own);
        (limit >= Arena::cost(least)).then_some(limit)
    }

    /// True if the volume in this slot has as much memory at its storage as it may have: nothing more is to be
    /// asked for on its behalf.
    pub fn is_full(&self, slot: VolumeId) -> bool {
        let arena = self.ring.arena();
        let (free, total) = (arena.shared_free(), arena.shared_bytes());
        self.volumes[slot].account.held() >= share_of_volume(free, total, self.volumes.slots())
    }

    /// True if the storage of the volume in this slot has not answered for so long that it hangs.
    pub(crate) fn hangs(&self, slot: VolumeId) -> bool {
        let channel = self.channels[self.volumes[slot].channel].as_ref();
        channel.is_some_and(|channel| channel.queued > 0 && self.now >= channel.since + HANGS)
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
        self.unreserve(requests);
        // Once in the list is enough.
        if !std::mem::replace(&mut requests.starved, true) {
            self.starved.push_back(requests.id());
        }
        if !std::mem::replace(&mut requests.waited, true) {
            let full = self.is_full(requests.volume);
            let waits = &mut self.volumes[requests.volume].count.waits;
            *(if full { &mut waits.1 } else { &mut waits.0 }) += 1;
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
        let slots: Vec<VolumeId> = hang.map(|channel| channel.volume).collect();
        if !slots.is_empty() {
            // What waits for room at their storage is not to wait for that.
            self.hungry = self.storage.starved.len();
        }
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
    fn what_is_kept_is_enough_for_many_who_come_late() {
        for (total, most) in [(16 * MIB, 512), (2 * MIB, 64)] {
            let (mut free, mut all) = (total, Vec::new());
            while one_of_kept(free, total) > 0 {
                all.push(one_of_kept(free, total));
                free -= all[all.len() - 1];
            }
            assert!(all.len() >= most && all.iter().all(|it| *it >= LEAST), "{}", all.len());
            assert!(all.is_sorted_by(|one, next| one >= next));
            assert!(all[0] >= 4 * LEAST && free == 0);
        }
        assert_eq!(one_of_kept(16 * MIB, 16 * MIB), MAX_RESERVE);
        assert_eq!(one_of_kept(0, 0), 0);
    }

    #[test]
    fn hosts_that_take_all_they_may_leave_something_for_the_next() {
        let total = 40 * MIB;
        for (hosts, connections, rest) in [(8, 4, 256), (8, 64, 256), (16, 1, 16), (1, 128, 1024)] {
            let mut free = total;
            for host in 0..hosts {
                let mut of_host = 0;
                for connection in 0..connections {
                    let mut held = 0;
                    loop {
                        let shared = Shared { free, total, hosts: host + 1 };
                        let count = host * connections + connection + 1;
                        let own = shared.of_little(connection + 1).saturating_sub(held);
                        let limit = match shared.is_plenty() {
                            true => shared.of_plenty(count) - held,
                            false => own.min(shared.of_little(1).saturating_sub(of_host)),
                        };
                        if limit < LEAST {
                            break;
                        }
                        held += LEAST;
                        of_host += LEAST;
                        free -= LEAST;
                    }
                }
            }
            let next = Shared { free, total, hosts: hosts + 1 }.of_little(1);
            assert!(next >= rest << 10, "{hosts} hosts leave {free}, of which the next has {next}");
        }
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
