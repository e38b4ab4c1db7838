//! Data that was asked for, or announced, and does not come.
//!
//! What is waited for is looked at a few times in the time that it may take, so the way of the data costs
//! nothing. Of the transfers the oldest is watched: the others may wait behind it.

use super::connection::Connection;
use super::rx::Pending;
use core::time::Duration;

/// What a host may owe: the data of an R2T, and the rest of a PDU.
const KINDS: usize = 2;

/// How often is looked in the time that data may take.
const LOOKS: u32 = 4;

/// Data comes on if so much of it comes in the time that it may take, or all that is owed. A byte now and then would
/// keep a queue, and the memory that it was given, for as long as somebody likes. In bytes.
const LEAST_PROGRESS: u64 = 64 << 10;

/// An R2T may be behind data that the host takes in, for so many times as long as data may take. Longer it would be an
/// excuse for whoever goes on reading.
const BEHIND: u32 = 8;

/// Something that is waited for: which, since when, and how far it had come when it had come on, which was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    id: u64,
    begun: Duration,
    progress: u64,
    since: Duration,
}

/// What is waited for.
#[derive(Debug, Default)]
pub(super) struct Stall {
    looked: Duration,
    watches: [Option<Watch>; KINDS],
}

impl Stall {
    /// The host's system has taken in more of what was sent: an R2T that was still on its way could not be answered
    /// before.
    pub(super) fn delivered(&mut self, at: Duration, timeout: Duration) {
        if let Some(watch) = &mut self.watches[0] {
            if at < watch.begun.saturating_add(timeout.saturating_mul(BEHIND)) {
                watch.since = watch.since.max(at);
            }
        }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// When to look, if anything is waited for.
    pub(super) fn data_look_at(&self) -> Option<Duration> {
        let timeout = self.options.data_timeout;
        let waits = (self.r2ts > 0 || self.rx.in_pdu()) && !timeout.is_zero();
        waits.then(|| self.stall.looked.saturating_add(timeout / LOOKS))
    }

    /// Looks. True if something has not come on for as long as it may take.
    pub(super) fn data_is_overdue(&mut self, now: Duration) -> bool {
        let (awaited, timeout) = (self.awaited(), self.options.data_timeout);
        self.stall.looked = now;
        if self.is_starved() {
            // It is this end that does not take what comes.
            self.stall.delivered(now, timeout);
        }
        let mut overdue = false;
        for (watch, awaited) in self.stall.watches.iter_mut().zip(awaited) {
            *watch = awaited.map(|(id, progress)| match *watch {
                Some(old) if old.id != id => Watch { id, begun: now, progress, since: now },
                Some(old) if progress.saturating_sub(old.progress) < LEAST_PROGRESS => old,
                Some(old) => Watch { progress, since: now, ..old },
                None => Watch { id, begun: now, progress, since: now },
            });
            overdue |= watch.is_some_and(|watch| now >= watch.since.saturating_add(timeout));
        }
        overdue
    }

    /// What is waited for, and how far it has come.
    fn awaited(&self) -> [Option<(u64, u64)>; KINDS] {
        let got = self.rx.data_got() as u64;
        let oldest = self.transfers.oldest().map(|(index, oldest)| {
            let arrives = matches!(self.pending, Pending::Data(of) if of == index);
            (oldest.order, u64::from(oldest.received) + if arrives { got } else { 0 })
        });
        let comes = self.rx.in_pdu() && !self.is_starved();
        let pdu = comes.then_some((self.counters.pdus_in, got));
        [oldest, pdu]
    }
}
