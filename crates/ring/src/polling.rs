//! When an event loop looks for work without sleeping.

use std::time::{Duration, Instant};

/// How an event loop looks for events before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyPoll {
    /// While most of what comes is found by a look sooner than the thread could sleep and be woken. Looks in vain take
    /// at most one part in [`SHARE`] of the time.
    Auto,
    /// For so long after there was work; 0 is not at all.
    For(Duration),
}

impl BusyPoll {
    /// The loop sleeps whenever nothing is there.
    pub const OFF: Self = Self::For(Duration::ZERO);
}

/// How long a look lasts at most by [`BusyPoll::Auto`]. A client that waits for each answer sends its next command
/// within that: 15 to 40 us on loopback and on a fast network.
const LOOK: Duration = Duration::from_micros(50);

/// What a sleep and a wake-up add to the time until something comes.
const WAKE: Duration = Duration::from_micros(25);

/// What looks in vain may take of the time, as a divisor.
const SHARE: u32 = 20;

/// How much of that can be saved: then looks begin anew at once after a pause.
const SAVED: Duration = Duration::from_millis(1);

/// How much of the average the last wait is, as a shift.
const WEIGHT: u32 = 3;

/// An average of [`Polling::soon`] if all waits ended soon.
const ALL: u32 = 1 << 16;

/// From this share of waits on looks are worth it.
const MOSTLY: u32 = ALL / 4 * 3;

/// Events of a wait, on average, from which on a look does not pay: so many are there in each batch that a wake-up is
/// little for each of them, and a look makes the batches smaller.
const CROWD: u32 = 24;

/// What an event loop has learned of when to look.
#[derive(Debug)]
pub(crate) struct Polling {
    how: BusyPoll,
    /// The last wait brought events.
    worked: bool,
    /// The share of waits that ended within [`LOOK`], of [`ALL`]: an average that forgets.
    soon: u32,
    /// Events of a wait, times [`ALL`]: an average that forgets.
    batch: u32,
    /// What looks in vain may take now.
    credit: Duration,
    /// Since when it has not grown.
    counted: Instant,
    /// When the wait began that goes on, if that is to be learned.
    begun: Option<Instant>,
    /// It has looked in vain.
    vain: bool,
    /// When the look that goes on was last without an event.
    nothing: Option<Instant>,
    /// How long looks were without an event, in all.
    looked: Duration,
}

impl Polling {
    pub(crate) fn new(how: BusyPoll) -> Self {
        let counted = Instant::now();
        let (credit, begun) = (SAVED, None);
        Self {
            how,
            worked: false,
            soon: 0,
            batch: 0,
            credit,
            counted,
            begun,
            vain: false,
            nothing: None,
            looked: Duration::ZERO,
        }
    }

    /// How long looks were without an event, in all: time of the processor in which there was nothing to do.
    pub(crate) const fn looked(&self) -> Duration {
        self.looked
    }

    /// A look has found nothing so far. What was done before the first time is work, such as what was submitted then.
    pub(crate) fn nothing_yet(&mut self, now: Instant) {
        let since = self.nothing.replace(now);
        self.looked += since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    }

    /// A wait begins that may sleep. Until when to look first, if at all.
    pub(crate) fn begin(&mut self) -> Option<Instant> {
        self.nothing = None;
        match self.how {
            BusyPoll::For(Duration::ZERO) => None,
            BusyPoll::For(time) => self.worked.then(|| Instant::now() + time),
            BusyPoll::Auto => self.begin_at(Instant::now()),
        }
    }

    fn begin_at(&mut self, now: Instant) -> Option<Instant> {
        (self.begun, self.vain) = (Some(now), false);
        let earned = now.saturating_duration_since(self.counted) / SHARE;
        self.counted = now;
        self.credit = (self.credit + earned).min(SAVED);
        let pays = self.soon >= MOSTLY && self.batch < CROWD * ALL;
        (pays && self.credit >= LOOK).then(|| now + LOOK)
    }

    /// A look has ended without an event.
    pub(crate) fn in_vain(&mut self) {
        if self.begun.is_some() {
            self.in_vain_at(Instant::now());
        }
    }

    fn in_vain_at(&mut self, now: Instant) {
        let Some(begun) = self.begun else { return };
        self.vain = true;
        self.credit = self.credit.saturating_sub(now.saturating_duration_since(begun));
    }

    /// The wait ends, and brings so many events.
    pub(crate) fn ended(&mut self, events: usize) {
        self.worked = events > 0;
        if self.begun.is_some() {
            self.ended_at(Instant::now(), events);
        }
    }

    fn ended_at(&mut self, now: Instant, events: usize) {
        let Some(begun) = self.begun.take().filter(|_| events > 0) else { return };
        let soon = !self.vain && now.saturating_duration_since(begun) <= LOOK + WAKE;
        self.soon = average(self.soon, if soon { ALL } else { 0 });
        self.batch = average(self.batch, events.min(1 << 12) as u32 * ALL);
    }
}

fn average(of: u32, next: u32) -> u32 {
    of - (of >> WEIGHT) + (next >> WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event loop whose work is nothing but waits.
    struct Loop {
        polling: Polling,
        now: Instant,
        /// Time that was spent looking: found something, and in vain.
        looked: [Duration; 2],
    }

    impl Loop {
        fn new() -> Self {
            let polling = Polling::new(BusyPoll::Auto);
            Self { now: polling.counted, polling, looked: [Duration::ZERO; 2] }
        }

        /// Something comes after so many microseconds. True if a look finds it.
        fn wait(&mut self, micros: u64, events: usize) -> bool {
            let comes = self.now + Duration::from_micros(micros);
            let end = self.polling.begin_at(self.now);
            let found = end.is_some_and(|end| comes <= end);
            match end {
                Some(end) if !found => {
                    self.looked[1] += end - self.now;
                    self.polling.in_vain_at(end);
                }
                _ if found => self.looked[0] += comes - self.now,
                _ => {}
            }
            self.now = if found { comes } else { comes + WAKE };
            self.polling.ended_at(self.now, events);
            found
        }
    }

    #[test]
    fn a_client_that_answers_soon_is_looked_for() {
        let mut at = Loop::new();
        assert!((0..20).map(|_| at.wait(30, 1)).skip(15).all(|found| found));
        assert_eq!(at.looked[1], Duration::ZERO);
        // It pauses: the loop sleeps after that one look, and learns anew.
        at.wait(100_000, 1);
        assert_eq!(at.looked[1], LOOK);
    }

    #[test]
    fn where_little_is_to_be_done_nothing_is_looked_for() {
        for pause in [100, 1_000, 100_000] {
            let mut at = Loop::new();
            assert!((0..1000).all(|_| !at.wait(pause, 1)));
            assert_eq!(at.looked, [Duration::ZERO; 2], "{pause} us");
        }
    }

    #[test]
    fn large_batches_are_let_grow() {
        let mut at = Loop::new();
        assert!((0..100).all(|_| !at.wait(10, 64)));
        assert_eq!(at.looked, [Duration::ZERO; 2]);
    }

    #[test]
    fn looks_in_vain_take_their_share_at_most() {
        // The worst: as often soon as makes looks likely, and then not.
        for soon in 1..40 {
            let mut at = Loop::new();
            let begun = at.now;
            for _ in 0..2_000 {
                (0..soon).for_each(|_| _ = at.wait(1, 1));
                at.wait(LOOK.as_micros() as u64 + 1, 1);
            }
            let most = (at.now - begun) / SHARE + SAVED;
            assert!(at.looked[1] <= most, "{soon}: {:?} of {:?}", at.looked[1], at.now - begun);
        }
    }

    #[test]
    fn a_time_that_was_asked_for_is_looked_for_after_work() {
        let mut polling = Polling::new(BusyPoll::For(Duration::from_secs(1)));
        assert!(polling.begin().is_none());
        polling.ended(1);
        assert!(polling.begin().is_some_and(|end| end > Instant::now()));
        polling.ended(0);
        assert!(polling.begin().is_none());
        // Work comes before the first look that finds nothing.
        let now = Instant::now();
        polling.nothing_yet(now);
        polling.nothing_yet(now + LOOK);
        polling.ended(1);
        polling.begin();
        polling.nothing_yet(now + 2 * LOOK);
        assert_eq!(polling.looked(), LOOK);
        let mut off = Polling::new(BusyPoll::OFF);
        off.ended(1);
        assert!(off.begin().is_none());
    }
}
