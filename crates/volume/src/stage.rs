//! Where the time of operations goes.
//!
//! One operation in 64 of a volume is timed, and more while there are few: at each change of what it waits for, the time
//! since the last change is added to that. Only an operation that is timed looks at the clock for this.

use std::time::Duration;

use crate::open::VolumeId;
use crate::operation::Requests;
use crate::storage::Storage;

/// Of so many operations of a volume one is timed.
const ONE_OF: u32 = 64;

/// One that begins so long after the last one that was timed is timed, too.
const SELDOM: Duration = Duration::from_millis(20);

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The rest of its command, and the data that comes with it.
    Arrival,
    /// Data that its client was asked for.
    Data,
    /// Buffer memory.
    Memory,
    /// Its turn at a limit that somebody has set.
    Limit,
    /// A range of the volume that others have, or another command.
    Lock,
    /// The storage, or room there.
    Storage,
    /// The client, which does not take what is sent to it.
    Output,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Arrival,
        Self::Data,
        Self::Memory,
        Self::Limit,
        Self::Lock,
        Self::Storage,
        Self::Output,
    ];
}

/// What one shard knows of the time of a volume's operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageTimes {
    /// Operations that were timed, and have ended.
    timed: u64,
    /// How long they have waited, in nanoseconds, by [`Stage`].
    nanos: [u64; Stage::ALL.len()],
    /// How often data and answers were handed to the network, and how long that took in nanoseconds.
    sent: (u64, u64),
}

impl StageTimes {
    /// How long operations that were timed have waited for this.
    pub fn waited(&self, stage: Stage) -> Duration {
        Duration::from_nanos(self.nanos[stage as usize])
    }

    /// Operations that were timed, and have ended.
    pub fn timed(&self) -> u64 {
        self.timed
    }

    /// How often data and answers were handed to the network, and how long it took until that had all of it.
    pub fn sent(&self) -> (u64, Duration) {
        (self.sent.0, Duration::from_nanos(self.sent.1))
    }

    fn wait(&mut self, stage: Stage, time: Duration) {
        // Five hundred years.
        self.nanos[stage as usize] += time.as_nanos() as u64;
    }

    pub(crate) fn answered(&mut self) {
        self.timed += 1;
    }

    pub(crate) fn answer_sent(&mut self, time: Duration) {
        self.sent.0 += 1;
        self.answer_waits(time);
    }

    /// An answer has waited so long for its way out.
    pub(crate) fn answer_waits(&mut self, time: Duration) {
        self.sent.1 += time.as_nanos() as u64;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.timed += other.timed;
        for (sum, part) in self.nanos.iter_mut().zip(other.nanos) {
            *sum += part;
        }
        self.sent.0 += other.sent.0;
        self.sent.1 += other.sent.1;
    }
}

/// Which operations of a volume are timed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sampler {
    /// Operations that are passed over before the next one.
    left: u32,
    /// From then on the next one is timed in any case.
    due: Duration,
}

impl Sampler {
    /// True if the operation that begins now is to be timed.
    #[inline]
    pub fn takes(&mut self, now: Duration) -> bool {
        if self.left > 0 && now < self.due {
            self.left -= 1;
            return false;
        }
        (self.left, self.due) = (ONE_OF - 1, now + SELDOM);
        true
    }
}

/// The time of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// What it waits for.
    stage: Stage,
    /// Since when.
    since: Duration,
    /// How much of its time at the storage it waits for a limit.
    limited: Duration,
}

impl Timing {
    /// Of an operation that begins now.
    pub fn new(now: Duration) -> Self {
        Self { stage: Stage::Storage, since: now, limited: Duration::ZERO }
    }

    /// A request of it waits so long for a limit, from now on.
    pub fn limit(&mut self, time: Duration) {
        self.limited = self.limited.max(time);
    }

    /// It waits for something else from now on, or for the same.
    fn change(&mut self, times: &mut StageTimes, now: Duration, next: Stage) {
        let mut time = now.saturating_sub(self.since);
        if self.stage == Stage::Storage {
            let limited = self.limited.min(time);
            times.wait(Stage::Limit, limited);
            time -= limited;
            self.limited -= limited;
        }
        times.wait(self.stage, time);
        (self.stage, self.since) = (next, now);
    }
}

/// An operation that was timed has been answered.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Its volume.
    pub(crate) volume: VolumeId,
    /// When, since the server's start.
    pub(crate) at: Duration,
}

impl Timed {
    /// One of the same volume that is answered at another time.
    #[must_use]
    pub fn again(self, at: Duration) -> Self {
        Self { at, ..self }
    }
}

impl Requests {
    /// What they wait for. What is at the storage counts before what is on its way.
    fn waits_for<F>(&self, storage: &Storage<F>) -> Stage {
        if self.in_flight.iter().any(|request| request.held.is_none()) || self.away.is_some() {
            Stage::Storage
        } else if self.stands_in_line() {
            Stage::Limit
        } else if !self.in_flight.is_empty() || self.claim.is_some() {
            Stage::Lock
        } else if self.soliciting > 0 {
            Stage::Data
        } else if self.starved && storage.is_full(self.volume) {
            // It waits for memory that its volume's storage has.
            Stage::Storage
        } else if self.starved {
            Stage::Memory
        } else {
            Stage::Output
        }
    }

    /// Looks what they wait for from now on, if their operation is timed.
    pub(crate) fn look<F>(&mut self, storage: &mut Storage<F>, now: Duration) {
        let next = self.waits_for(storage);
        if let Some(timing) = &mut self.timing {
            timing.change(&mut storage.volumes[self.volume].count.stages, now, next);
        }
    }

    /// For a report: adds what they have waited until now.
    pub(crate) fn add_time(&self, times: &mut StageTimes, now: Duration) {
        if let Some(mut timing) = self.timing {
            timing.change(times, now, timing.stage);
        }
    }
}

impl<F> Storage<F> {
    /// The time now, since the server's start: for operations that are timed.
    pub(crate) fn clock(&self) -> Duration {
        lunet_os::time::since(self.config.began)
    }

    /// The latest time that somebody has looked at the clock for anyway.
    #[inline]
    pub(crate) fn latest(&self) -> Duration {
        self.now.max(self.heard)
    }

    /// An operation that is timed begins, whose command has begun to arrive then.
    #[cold]
    pub(crate) fn begin_timing(&mut self, volume: VolumeId, arrived: Duration) -> Timing {
        let arrival = self.now.saturating_sub(arrived);
        self.volumes[volume].count.stages.wait(Stage::Arrival, arrival);
        Timing::new(self.clock())
    }

    /// A request was submitted for an operation that is timed: it may wait for a limit.
    #[cold]
    pub(crate) fn note_limit(&self, requests: &mut Requests, slot: VolumeId, tag: u64) {
        let number = self.volumes[slot].channel;
        let Some(Some(channel)) = self.channels.get(number) else { return };
        if let Some(timing) = &mut requests.timing {
            timing.limit(channel.limited(tag));
        }
    }

    /// What was sent at the time of an operation that was timed has been taken.
    pub fn answer_sent(&mut self, timed: Timed) {
        let time = self.now.saturating_sub(timed.at);
        if let Some(volume) = self.volumes.get_mut(timed.volume) {
            volume.count.stages.answer_sent(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_of_64_is_timed_and_each_of_few() {
        let (mut sampler, mut now, mut timed) = (Sampler::default(), Duration::ZERO, 0);
        for _ in 0..6400 {
            now += Duration::from_micros(1);
            timed += u32::from(sampler.takes(now));
        }
        assert_eq!(timed, 100);
        assert!((0..10).all(|_| {
            now += SELDOM;
            sampler.takes(now)
        }));
    }

    #[test]
    fn time_is_that_of_what_was_waited_for() {
        let mut times = StageTimes::default();
        let mut timing = Timing::new(MS);
        timing.change(&mut times, 3 * MS, Stage::Data);
        timing.change(&mut times, 10 * MS, Stage::Storage);
        timing.limit(4 * MS);
        timing.change(&mut times, 11 * MS, Stage::Storage);
        timing.change(&mut times, 20 * MS, Stage::Output);
        timing.change(&mut times, 21 * MS, Stage::Output);
        let waited = Stage::ALL.map(|stage| times.waited(stage).as_millis());
        assert_eq!(waited, [0, 7, 0, 4, 0, 8, 1]);
        let mut sum = times;
        sum.answered();
        sum.answer_sent(5 * MS);
        sum.add(&times);
        assert_eq!(sum.waited(Stage::Storage), 16 * MS);
        assert_eq!((sum.timed(), sum.sent()), (1, (1, 5 * MS)));
    }
}
