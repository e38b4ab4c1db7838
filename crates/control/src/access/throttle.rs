//! Logins that fail make the next ones wait, by address and by name.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Failures that cost nothing.
const FREE: u32 = 5;

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);

/// How long a failure counts.
const MEMORY: Duration = Duration::from_secs(15 * 60);

/// The most that are remembered.
const MOST: usize = 1024;

struct Entry {
    failures: u32,
    last: Instant,
}

impl Entry {
    fn wait(&self) -> Duration {
        let over = self.failures.saturating_sub(FREE);
        match over {
            0 => Duration::ZERO,
            _ => Duration::from_secs(1 << over.min(6)).min(LONGEST),
        }
    }
}

/// Who has failed how often.
pub(super) struct Throttle<K> {
    entries: HashMap<K, Entry>,
}

impl<K> Default for Throttle<K> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Throttle<K> {
    /// How long the next try has to wait.
    pub(super) fn waits<Q>(&self, key: &Q, now: Instant) -> Option<Duration>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let entry = self.entries.get(key)?;
        let until = entry.last + entry.wait();
        (until > now).then(|| until - now)
    }

    /// A try has failed, or may.
    pub(super) fn failed(&mut self, key: K, now: Instant) {
        let entries = &mut self.entries;
        if entries.len() >= MOST && !entries.contains_key(&key) {
            entries.retain(|_, entry| now.saturating_duration_since(entry.last) < MEMORY);
            // Those that have failed least are forgotten first: filling the table frees nobody who is held.
            let least = entries.iter().min_by_key(|(_, entry)| (entry.failures, entry.last));
            if let Some(least) = least.map(|(key, _)| key.clone()).filter(|_| entries.len() >= MOST)
            {
                entries.remove(&least);
            }
        }
        let entry = entries.entry(key).or_insert(Entry { failures: 0, last: now });
        if now.saturating_duration_since(entry.last) >= MEMORY {
            entry.failures = 0;
        }
        entry.failures = entry.failures.saturating_add(1);
        entry.last = now;
    }

    /// A try has succeeded, and whoever made it is not held back for those that have failed.
    pub(super) fn succeeded<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_are_free_and_waits_double_up_to_a_minute() {
        let (mut throttle, start) = (Throttle::<String>::default(), Instant::now());
        for _ in 0..5 {
            throttle.failed("a".into(), start);
            assert_eq!(throttle.waits("a", start), None);
        }
        let mut waits = Vec::new();
        for _ in 0..7 {
            throttle.failed("a".into(), start);
            waits.push(throttle.waits("a", start).unwrap().as_secs());
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(throttle.waits("a", start + LONGEST), None);
        assert_eq!(throttle.waits("b", start), None);
        throttle.succeeded("a");
        assert_eq!(throttle.waits("a", start), None);
    }

    #[test]
    fn a_full_table_forgets_those_that_failed_least() {
        let (mut throttle, start) = (Throttle::<u32>::default(), Instant::now());
        for _ in 0..9 {
            throttle.failed(7, start);
        }
        for key in 1000..1000 + 2 * MOST as u32 {
            throttle.failed(key, start);
        }
        assert!(throttle.entries.len() <= MOST);
        assert!(throttle.waits(&7, start).is_some(), "it is held still");
    }
}
