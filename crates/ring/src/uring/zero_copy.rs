//! Sends without a copy: the kernel sends from the pages of a chain, and tells by a notification when it has let go
//! of them. Until then the chain is held here.

use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::{cqueue, opcode, types};
use slab::Slab;

use super::Uring;
use super::queue::{Done, Kind};
use crate::slots::Key;
use crate::{Arena, Event, Payload, SocketId, TxChain, sys};

/// The kernel's `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2): the notification says whether there was a copy after all.
const REPORT_USAGE: u16 = 1 << 3;

/// The kernel's `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: i32 = 1 << 31;

/// Bytes of a message for each two of its ranges, a header and its data, from which on it is sent without a copy. To
/// look up pages and to be notified costs as much as to copy less than this (docs/performance.md).
const LEAST: usize = 32 << 10;

/// So many messages in a row that were copied after all, or refused: the socket makes ordinary sends from then on. What
/// carries a connection seldom changes, so that another try would cost the same again and find the same.
const IN_VAIN: u8 = 3;

/// The most chains of one socket that wait for notifications, and the most bytes in them; with more it makes ordinary
/// sends, which hold nothing. It is what a link of 100 Gbit/s carries in 160 us.
const MOST_CHAINS: usize = 32;
const MOST_BYTES: usize = 2 << 20;

/// Empty chains that are kept for the next sends.
const SPARE: usize = 64;

/// How long the peer of a closed socket may take in nothing of what is held for it, and how long it may take for all of
/// it. Then the connection is reset: the memory is others' as well.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_MOST: Duration = Duration::from_secs(10);

/// The same for all together at the end of the event loop.
const LINGER_AT_END: Duration = Duration::from_secs(1);

/// A chain of which the kernel has pages, or had: one message of it at least went out without a copy.
struct Held {
    /// Not there while the socket is still sending it.
    chain: Option<TxChain>,
    socket: Key,
    /// Notifications that are to come.
    notices: usize,
    /// Bytes that these are about.
    bytes: usize,
}

/// The chains that are held, of all sockets.
#[derive(Default)]
pub(super) struct Holds {
    chains: Slab<Held>,
    /// Empty chains, instead of those that are held.
    spare: Vec<TxChain>,
    /// The kernel has the operations, as far as is known.
    pub(super) possible: bool,
    /// A chain was let go since this was looked at last: others may wait for its memory.
    pub(super) released: bool,
    /// When it is looked at closed sockets next.
    pub(super) look_at: Option<Instant>,
}

/// What a socket holds, and what it knows of sends without a copy.
#[derive(Default)]
pub(super) struct Usage {
    /// They are not to be tried.
    pub(super) off: bool,
    /// Messages in a row that were copied, or refused.
    in_vain: u8,
    /// One went out without a copy.
    proven: bool,
    /// Chains that are held.
    pub(super) chains: usize,
    /// Bytes in them.
    pub(super) bytes: usize,
    /// Once it is closed: until when the peer has to take in more of it.
    linger: Option<Linger>,
}

struct Linger {
    until: Instant,
    at_most: Instant,
    /// What the peer had taken in when this was set.
    taken: Option<u64>,
}

impl Usage {
    fn report(&mut self, copied: bool) {
        if copied {
            self.in_vain += 1;
            self.off |= self.in_vain >= IN_VAIN;
        } else {
            (self.in_vain, self.proven) = (0, true);
        }
    }

    /// True if the next message is to be sent without a copy.
    pub(super) fn wants(&self, message: &[libc::iovec], arena: &Arena) -> bool {
        if self.off || self.chains >= MOST_CHAINS || self.bytes >= MOST_BYTES {
            return false;
        }
        // Until the kernel has said that it does not copy, one at a time.
        if !self.proven && self.chains > 0 {
            return false;
        }
        let bytes: usize = message.iter().map(|vector| vector.iov_len).sum();
        // While memory is short it is better free at once than without a copy.
        bytes >= LEAST * message.len().div_ceil(2)
            && arena.shared_free() >= arena.shared_bytes() / 2
    }
}

/// The operation's user data.
pub(super) const fn user_data(place: u32) -> u64 {
    Kind::ZeroCopy.user_data(place)
}

/// The operation that sends a message without a copy. The pointers are those of the ordinary one.
pub(super) fn entry(
    fd: types::Fd,
    message: &[libc::iovec],
    header: &libc::msghdr,
    flags: i32,
) -> Entry {
    if let [one] = message {
        let len = u32::try_from(one.iov_len).unwrap_or(i32::MAX as u32);
        let entry = opcode::SendZc::new(fd, one.iov_base.cast(), len);
        return entry.flags(flags).zc_flags(REPORT_USAGE).build();
    }
    opcode::SendMsgZc::new(fd, header).flags(flags as u32).ioprio(REPORT_USAGE).build()
}

impl Holds {
    /// None yet.
    pub(super) fn new(possible: bool) -> Self {
        Self { possible, ..Self::default() }
    }

    /// A place for a chain that a socket begins to send.
    pub(super) fn begin(&mut self, socket: Key) -> u32 {
        self.chains.insert(Held { chain: None, socket, notices: 0, bytes: 0 }) as u32
    }

    /// A socket has done with a chain. Gives what is handed back to its sender: the chain, or an empty one while the
    /// kernel has pages of it.
    pub(super) fn end(&mut self, place: u32, chain: TxChain, usage: &mut Usage) -> TxChain {
        let Some(held) = self.chains.get_mut(place as usize) else { return chain };
        if held.notices == 0 {
            self.chains.remove(place as usize);
            return chain;
        }
        usage.chains += 1;
        usage.bytes += chain.len();
        held.chain = Some(chain);
        self.spare.pop().unwrap_or_default()
    }

    /// True if one of the payloads that are held for a socket is such a one.
    pub(super) fn has(&self, socket: Key, such: &mut dyn FnMut(&Payload) -> bool) -> bool {
        let mut of_it = self.chains.iter().filter(|(_, held)| held.socket == socket);
        of_it.any(|(_, held)| held.chain.as_ref().is_some_and(|chain| chain.has(&mut *such)))
    }

    fn keep(&mut self, mut chain: TxChain) {
        chain.clear();
        if self.spare.len() < SPARE {
            self.spare.push(chain);
        }
        self.released = true;
    }
}

impl Uring {
    /// A completion of a message without a copy: of the operation, or the notification.
    pub(super) fn zero_copy_done(&mut self, place: u32, done: Done, events: &mut Vec<Event>) {
        if cqueue::notif(done.flags) {
            return self.notified(place, done.result & COPIED != 0);
        }
        let Some(held) = self.holds.chains.get_mut(place as usize) else { return };
        if cqueue::more(done.flags) {
            held.notices += 1;
            held.bytes += usize::try_from(done.result).unwrap_or(0);
        }
        let socket = held.socket.index;
        self.send_done(socket, done.result, events);
    }

    /// The kernel has let go of a message.
    fn notified(&mut self, place: u32, copied: bool) {
        let Some(held) = self.holds.chains.get_mut(place as usize) else { return };
        // Which message it is about is not said: each has its part.
        let bytes = held.bytes / held.notices.max(1);
        held.bytes -= bytes;
        held.notices = held.notices.saturating_sub(1);
        let socket = held.socket;
        let chain = if held.notices == 0 { held.chain.take() } else { None };
        let counters = &mut self.queue.counters;
        match copied {
            true => counters.zero_copy_copied_bytes += bytes as u64,
            false => counters.zero_copy_bytes += bytes as u64,
        }
        let mut of_socket = self.sockets.get_mut(socket);
        if let Some(of_socket) = of_socket.as_mut().filter(|_| bytes > 0) {
            of_socket.usage.report(copied);
        }
        let Some(chain) = chain else { return };
        self.holds.chains.remove(place as usize);
        if let Some(of_socket) = of_socket {
            of_socket.usage.chains -= 1;
            of_socket.usage.bytes -= chain.len();
        }
        self.holds.keep(chain);
        self.release_if_closed(socket.index);
    }

    /// What to do after the kernel has refused a message without a copy. True if it is to be sent by an ordinary one.
    pub(super) fn refused_zero_copy(&mut self, index: u32, errno: i32) -> bool {
        let Some(socket) = self.sockets.at(index) else { return false };
        match errno {
            // An older kernel, which knows the operation, but gives no reports.
            libc::EINVAL => self.holds.possible = false,
            libc::EOPNOTSUPP => socket.usage.off = true,
            // The limit on locked memory, or that on memory of a socket (net.core.optmem_max).
            libc::ENOMEM | libc::ENOBUFS => socket.usage.report(true),
            _ => return false,
        }
        true
    }

    /// Bytes of chains that a socket has taken, and that the kernel still refers to.
    pub(crate) fn held(&mut self, id: SocketId) -> usize {
        self.sockets.get_mut(id.0).map_or(0, |socket| socket.usage.bytes)
    }

    /// True if a closed socket with no operations is to stay until the kernel has let go of its chains.
    pub(super) fn lingers(&mut self, index: u32) -> bool {
        let ending = self.ending;
        let Some(socket) = self.sockets.at(index) else { return false };
        if socket.usage.chains == 0 || socket.resets {
            return false;
        }
        if socket.usage.linger.is_none() {
            let now = Instant::now();
            let (patience, most) =
                if ending { (LINGER_AT_END, LINGER_AT_END) } else { (LINGER, LINGER_MOST) };
            let taken = sys::delivery(socket.fd()).map(|delivery| delivery.bytes);
            let until = now + patience;
            socket.usage.linger = Some(Linger { until, at_most: now + most, taken });
            self.holds.look_at = Some(self.holds.look_at.map_or(until, |at| at.min(until)));
        }
        true
    }

    /// Resets closed sockets whose peers do not take in what is held for them.
    pub(super) fn look_at_lingering(&mut self) {
        let Some(due) = self.holds.look_at else { return };
        let now = Instant::now();
        if due > now {
            return;
        }
        let (mut next, mut gone): (Option<Instant>, Vec<u32>) = (None, Vec::new());
        for (index, socket) in self.sockets.iter_mut() {
            let fd = socket.fd();
            let Some(linger) = &mut socket.usage.linger else { continue };
            if linger.until <= now {
                let taken = sys::delivery(fd).map(|delivery| delivery.bytes);
                if taken <= linger.taken || linger.at_most <= now {
                    gone.push(index);
                    continue;
                }
                (linger.taken, linger.until) = (taken, linger.at_most.min(now + LINGER));
            }
            next = Some(next.map_or(linger.until, |next| next.min(linger.until)));
        }
        self.holds.look_at = next;
        for index in gone {
            self.reset_lingering(index);
        }
    }

    /// Resets the closed sockets with such a payload, which somebody waits for.
    pub(crate) fn reset_closed(&mut self, such: &mut dyn FnMut(&Payload) -> bool) {
        let lingering = self.sockets.keys(|socket| socket.usage.linger.is_some());
        for key in lingering {
            if self.holds.has(key, such) {
                self.reset_lingering(key.index);
            }
        }
    }

    /// What the kernel has of a socket is thrown away when the descriptor is closed: then it lets go of its chains.
    fn reset_lingering(&mut self, index: u32) {
        let Some(socket) = self.sockets.at(index) else { return };
        socket.resets = true;
        sys::reset_on_close(socket.fd());
        self.release_if_closed(index);
    }

    /// At the end of the event loop nobody waits long for peers.
    pub(super) fn hurry_lingering(&mut self) {
        let until = Instant::now() + LINGER_AT_END;
        for (_, socket) in self.sockets.iter_mut() {
            if let Some(linger) = &mut socket.usage.linger {
                (linger.until, linger.at_most) = (linger.until.min(until), until);
                self.holds.look_at = Some(self.holds.look_at.map_or(until, |at| at.min(until)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(lens: &[usize]) -> Vec<libc::iovec> {
        let vector = |len: &usize| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: *len };
        lens.iter().map(vector).collect()
    }

    #[test]
    fn large_data_behind_each_header_goes_out_without_a_copy() {
        let arena = Arena::new(8 << 20).expect("a small mapping");
        let wants = |lens: &[usize]| Usage::default().wants(&message(lens), &arena);
        assert!(
            wants(&[48, 128 << 10]) && wants(&[LEAST]) && wants(&[48, LEAST, 48, LEAST, 48, LEAST])
        );
        assert!(!wants(&[48, 4096]) && !wants(&[LEAST - 1]));
        assert!(!wants(&[48, 4096].repeat(64)), "much, in small pieces");
        let taken: Vec<_> = (0..5).map(|_| arena.alloc(1 << 20)).collect();
        assert!(!wants(&[48, 128 << 10]), "memory is short");
        drop(taken);
        assert!(wants(&[48, 128 << 10]));
    }

    #[test]
    fn reports_decide_for_each_socket() {
        let arena = Arena::new(8 << 20).expect("a small mapping");
        let large = message(&[48, 128 << 10]);
        let mut usage = Usage { chains: 1, bytes: 128 << 10, ..Usage::default() };
        assert!(!usage.wants(&large, &arena), "one at a time, until there is a report");
        usage.report(false);
        assert!(usage.wants(&large, &arena));
        usage.chains = MOST_CHAINS;
        assert!(!usage.wants(&large, &arena));
        (usage.chains, usage.bytes) = (2, MOST_BYTES);
        assert!(!usage.wants(&large, &arena));
        usage.bytes = 0;
        for copied in [true, true, false, true, true] {
            usage.report(copied);
            assert!(usage.wants(&large, &arena), "not three in a row");
        }
        usage.report(true);
        assert!(!usage.wants(&large, &arena));
        usage.report(false);
        assert!(!usage.wants(&large, &arena), "for good");
    }
}
