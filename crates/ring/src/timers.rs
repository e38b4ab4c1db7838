//! Timers of an event loop, the same for both drivers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lunet_os::time::now;

use crate::{Event, Token};

/// What is to end, and when. The number tells timers of one moment apart.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Instant, u64), Token>,
    count: u64,
}

impl Timers {
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    pub(crate) fn add(&mut self, time: Duration, token: Token) {
        let now = now();
        // A time beyond all clocks: as good as never.
        let at = now.checked_add(time).unwrap_or(now + Duration::from_secs(1 << 32));
        self.count += 1;
        self.due.insert((at, self.count), token);
    }

    /// Removes the timers with this token, and tells how many.
    pub(crate) fn remove(&mut self, token: Token) -> usize {
        let before = self.due.len();
        if before > 0 {
            self.due.retain(|_, of| *of != token);
        }
        before - self.due.len()
    }

    /// A timeout that is over when the next timer is due.
    pub(crate) fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(((at, _), _)) = self.due.first_key_value() else { return timeout };
        let left = at.saturating_duration_since(now());
        Some(timeout.map_or(left, |timeout| timeout.min(left)))
    }

    /// Ends the timers that are due.
    pub(crate) fn fire(&mut self, events: &mut Vec<Event>) {
        let now = now();
        while let Some(first) = self.due.first_entry() {
            if first.key().0 > now {
                return;
            }
            events.push(Event::Disk { token: first.remove(), buf: None, result: Ok(0) });
        }
    }
}
