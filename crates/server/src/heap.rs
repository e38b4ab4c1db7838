//! When memory of connections that have ended goes back to the system.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::front::Front;

/// So many connections have to end before it is worth it: the memory of 256 idle ones is 4 MiB.
const MANY: u64 = 256;

/// It is done when no connection has ended for so long.
const QUIET: Duration = Duration::from_secs(10);

/// Where connections end all the time, it is done so long after the first of them.
const BUSY: Duration = Duration::from_secs(60);

/// What is known of the connections that have ended.
#[derive(Debug)]
pub(crate) struct Heap {
    /// How many there were when memory was given back.
    given: u64,
    /// When the first one had ended since.
    first: Instant,
    /// How many there were at the last look, and since when.
    seen: (u64, Instant),
}

impl Heap {
    /// Of a server that has had none.
    pub(crate) fn new(now: Instant) -> Self {
        Self { given: 0, first: now, seen: (0, now) }
    }

    /// Looks at how many have ended, and has memory given back if it is time for that. By a thread that serves nobody: it may take
    /// half a second.
    pub(crate) fn look<F: Front>(&mut self, core: &Arc<Core<F>>) {
        let (ended, now) = (core.member.ended(), lunet_os::time::now());
        if !self.is_due(ended, now) {
            return;
        }
        let member = core.member.clone();
        let work = move || {
            member.clients().forget();
            lunet_ring::give_back_heap();
            let took = lunet_os::time::since(now);
            tracing::debug!(milliseconds = took.as_millis() as u64, "free memory was given back");
        };
        // If too much waits for the threads, it is due again at the next look.
        if core.offload.give(None, Box::new(work)) {
            self.given = ended;
        }
    }

    /// True if it is time to give memory back.
    fn is_due(&mut self, ended: u64, now: Instant) -> bool {
        if ended != self.seen.0 {
            if self.seen.0 == self.given {
                self.first = now;
            }
            self.seen = (ended, now);
        }
        let quiet = now.duration_since(self.seen.1) >= QUIET;
        let busy = now.duration_since(self.first) >= BUSY;
        ended - self.given >= MANY && (quiet || busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_many_have_ended_and_no_more_do() {
        let start = lunet_os::time::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut heap = Heap::new(start);
        assert!(!heap.is_due(MANY - 1, at(3600)) && !heap.is_due(MANY - 1, at(3611)), "too few");
        assert!(!heap.is_due(MANY, at(3612)), "one has just ended");
        assert!(!heap.is_due(MANY + 1, at(3620)) && !heap.is_due(MANY + 1, at(3629)));
        assert!(heap.is_due(MANY + 1, at(3630)));
        assert!(heap.is_due(MANY + 1, at(3631)), "until it is done");
        heap.given = MANY + 1;
        assert!(!heap.is_due(MANY + 1, at(9000)), "none has ended since");
        assert!(!heap.is_due(9 * MANY, at(9999)), "nor has it been long since the first has");
    }

    #[test]
    fn connections_that_come_and_go_all_the_time_do_not_put_it_off() {
        let start = lunet_os::time::now();
        let mut heap = Heap::new(start);
        let mut times = Vec::new();
        for second in 1..=300 {
            let (ended, now) = (second * 1000, start + Duration::from_secs(second));
            if heap.is_due(ended, now) {
                heap.given = ended;
                times.push(second);
            }
        }
        assert_eq!(times, [61, 122, 183, 244]);
    }
}
