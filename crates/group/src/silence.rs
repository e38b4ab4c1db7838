//! How long gateways are waited for that may not be there any more.
//!
//! A question to all that watch an object is over when all have answered, or when its time is. A gateway that was killed watches
//! for as long as Ceph keeps that, half a minute: each question would take all of its time until then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long gateways have to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long they have while somebody has not answered before. Ceph counts whole seconds.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// So many questions in a row are not answered by all before nobody waits for that.
const ROUNDS: u32 = 2;
/// As long as Ceph keeps a watch: whoever has not answered by then is gone, or is there again.
const KEPT: Duration = Duration::from_secs(30);

/// What is known of gateways that do not answer.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Rounds>);

/// Questions in a row that were not answered by all.
#[derive(Debug, Default)]
struct Rounds {
    count: u32,
    last: Option<Instant>,
}

impl Silence {
    /// A question is over that was put to all. `all`: all have answered.
    pub fn heard(&self, all: bool, now: Instant) {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *rounds = match all {
            true => Rounds::default(),
            false => Rounds { count: rounds.count.saturating_add(1), last: Some(now) },
        };
    }

    /// How long the next one waits for all of them.
    pub fn limit(&self, now: Instant) -> Duration {
        let rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = |last: Instant| now.saturating_duration_since(last) < KEPT;
        match rounds.count >= ROUNDS && rounds.last.is_some_and(lately) {
            true => IMPATIENCE,
            false => PATIENCE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_answered_twice_is_not_waited_for() {
        let (silence, at) = (Silence::default(), Instant::now());
        let after = |seconds| at + Duration::from_secs(seconds);
        assert_eq!(silence.limit(at), PATIENCE);
        silence.heard(false, at);
        assert_eq!(silence.limit(after(1)), PATIENCE, "it may have been slow once");
        silence.heard(false, after(5));
        assert_eq!(silence.limit(after(6)), IMPATIENCE);
        assert_eq!(silence.limit(after(34)), IMPATIENCE);
        assert_eq!(silence.limit(after(35)), PATIENCE, "its watch is over by then");
        silence.heard(false, after(36));
        assert_eq!(silence.limit(after(37)), IMPATIENCE);
        silence.heard(true, after(38));
        assert_eq!(silence.limit(after(38)), PATIENCE, "all are there again");
    }
}
