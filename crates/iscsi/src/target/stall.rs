//! Data that was asked for, or announced, and does not come.
//!
//! What is waited for is looked at a few times in the time that it may take, so the way of the data costs
//! nothing. Of each kind the oldest is watched: the others may wait behind it.

use super::connection::Connection;
use core::time::Duration;

/// What an initiator may owe.
const KINDS: usize = 4;

/// How often is looked in the time that data may take.
const LOOKS: u32 = 4;

/// Data comes on if so much of it comes in the time that it may take, or all that is owed. A byte now and then would
/// keep a session, and the memory that it was given, for as long as somebody likes. In bytes.
const LEAST_PROGRESS: u64 = 64 << 10;

/// How far data has come whose task has failed: what follows is thrown away, and must end in time. Otherwise Data-Out
/// PDUs with any offset and number would keep a session, and the memory that it was given, for as long as they come.
const NO_PROGRESS: u64 = u64::MAX;

/// Something that is waited for: which, and how far it had come when it had come on, which was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    id: u64,
    progress: u64,
    since: Duration,
}

impl Watch {
    /// True if it has, if it has come so far now. What fails from now on has its time anew.
    const fn has_come_on(self, progress: u64) -> bool {
        (progress == NO_PROGRESS) != (self.progress == NO_PROGRESS)
            || progress.saturating_sub(self.progress) >= LEAST_PROGRESS
    }
}

/// What is waited for.
#[derive(Debug, Default)]
pub(super) struct Stall {
    looked: Duration,
    watches: [Option<Watch>; KINDS],
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// When to look, if anything may be waited for.
    pub(super) fn data_look_at(&self) -> Option<Duration> {
        let waits = self.tasks.len() > 0 || !self.held.is_empty() || self.rx.in_pdu();
        let timeout = self.options.data_timeout;
        // Data over RDMA is fetched, and the device has its own time limits.
        (waits && !timeout.is_zero() && self.mover.is_none())
            .then(|| self.stall.looked.saturating_add(timeout / LOOKS))
    }

    /// Looks. True if something has not come on for as long as it may take.
    pub(super) fn data_is_overdue(&mut self, now: Duration) -> bool {
        let awaited = self.awaited();
        self.stall.looked = now;
        let mut overdue = false;
        for (watch, awaited) in self.stall.watches.iter_mut().zip(awaited) {
            *watch = awaited.map(|(id, progress)| match *watch {
                Some(old) if old.id == id && !old.has_come_on(progress) => old,
                _ => Watch { id, progress, since: now },
            });
            overdue |= watch
                .is_some_and(|watch| now >= watch.since.saturating_add(self.options.data_timeout));
        }
        overdue
    }

    /// What is waited for, and how far it has come: the command in front of those that wait for their turn,
    /// unsolicited data, the data of an R2T, the rest of a PDU.
    fn awaited(&self) -> [Option<(u64, u64)>; KINDS] {
        let (task, transfer, arrived) = self.rx.arriving();
        let gap = (!self.held.is_empty()).then(|| (u64::from(self.window.expected()), 0));
        let burst = self.tasks.oldest_burst().map(|(tag, filled)| {
            let more = if task == Some(tag) { arrived } else { 0 };
            (u64::from(tag.generation()), u64::from(filled) + more)
        });
        let solicited = self.transfers.oldest().map(|(index, oldest)| {
            let more = if transfer == Some(index) { arrived } else { 0 };
            let fails = self.tasks.get(oldest.task).is_none_or(|task| task.failure.is_some());
            (oldest.order, if fails { NO_PROGRESS } else { u64::from(oldest.received) + more })
        });
        let pdu = self.rx.in_pdu().then(|| (self.counters.pdus_in, self.rx.received()));
        [gap, burst, solicited, pdu]
    }
}
