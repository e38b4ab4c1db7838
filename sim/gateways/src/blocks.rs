//! Whether the hosts' reads and writes of a block can have happened one after the other.
//!
//! Each attempt of each write has a value of its own. What is known of a value is a cluster of operations: the attempt
//! that wrote it, and all reads of it. From the earliest end of one of them to the latest begin of another the block
//! had that value, so no other value may have come and gone meanwhile (Gibbons and Korach, 1997). A COMPARE AND WRITE
//! joins the cluster of what it compared with that of what it wrote.

use std::collections::HashMap;

use crate::Time;

/// A value of a block; 0 is what it had at first.
pub type Value = u32;

const NEVER: Time = Time::MAX;

#[derive(Clone, Copy, Debug)]
struct Cluster {
    /// When its write began.
    begun: Time,
    /// When its write ended at the latest.
    ended: Time,
    first_end: Time,
    last_begin: Time,
    seen: bool,
    /// The attempt was refused.
    refused: bool,
    /// The value that it has replaced for certain.
    replaces: Option<Value>,
}

/// The history of one block.
#[derive(Clone, Debug, Default)]
pub struct Block {
    clusters: HashMap<Value, Cluster>,
}

impl Block {
    /// An attempt to write a value begins; a COMPARE AND WRITE replaces a certain one.
    pub fn begins(&mut self, value: Value, now: Time, replaces: Option<Value>) {
        let (ended, refused, seen) = (NEVER, false, false);
        let cluster =
            Cluster { begun: now, ended, first_end: NEVER, last_begin: 0, seen, refused, replaces };
        self.clusters.insert(value, cluster);
    }

    /// It was done.
    pub fn done(&mut self, value: Value, now: Time) {
        if let Some(cluster) = self.clusters.get_mut(&value) {
            cluster.seen = true;
        }
        self.over(value, now);
    }

    /// It can take effect no later than this.
    pub fn over(&mut self, value: Value, now: Time) {
        if let Some(cluster) = self.clusters.get_mut(&value) {
            cluster.ended = cluster.ended.min(now);
        }
    }

    /// It was not done, and will not be.
    pub fn refused(&mut self, value: Value) {
        if let Some(cluster) = self.clusters.get_mut(&value) {
            cluster.refused = true;
        }
    }

    /// A read gave this value.
    pub fn read(&mut self, value: Value, begun: Time, now: Time) {
        let initial = Cluster {
            begun: 0,
            ended: 0,
            first_end: NEVER,
            last_begin: 0,
            seen: true,
            refused: false,
            replaces: None,
        };
        let known = value == 0 || self.clusters.contains_key(&value);
        let cluster = self.clusters.entry(value).or_insert(initial);
        cluster.seen = true;
        // What was never written is found by the check.
        cluster.refused |= !known;
        cluster.first_end = cluster.first_end.min(now);
        cluster.last_begin = cluster.last_begin.max(begun);
    }

    /// What is wrong with it, if anything is.
    pub fn check(&self) -> Option<String> {
        let mut replaced = HashMap::new();
        for (value, cluster) in self.clusters.iter().filter(|(_, cluster)| cluster.seen) {
            if cluster.refused {
                return Some(format!("value {value} was read, and its write was refused"));
            }
            if cluster.first_end < cluster.begun {
                return Some(format!("value {value} was read before it was written"));
            }
            let twice = cluster.replaces.and_then(|before| replaced.insert(before, value));
            if let (Some(other), Some(before)) = (twice, cluster.replaces) {
                return Some(format!("value {before} was replaced by {value} and by {other}"));
            }
        }
        let zones = self.zones();
        let forward = zones.iter().filter(|(from, to, ..)| from < to);
        for (from, to, value) in forward {
            for (other_from, other_to, other) in zones.iter().filter(|zone| zone.2 != *value) {
                let (low, high) = (other_from.min(other_to), other_from.max(other_to));
                let clash = match other_from < other_to {
                    true => low < to && from < high,
                    false => from < low && high < to,
                };
                if clash {
                    let zone = format!("from {from} to {to}");
                    return Some(format!("it had value {value} {zone}, and {other} in between"));
                }
            }
        }
        None
    }

    /// The zones of values that were seen: earliest end, latest begin, value. Values that a COMPARE AND WRITE joins have
    /// one together, under the first of them.
    fn zones(&self) -> Vec<(Time, Time, Value)> {
        let mut zones: HashMap<Value, (Time, Time)> = HashMap::new();
        for (value, cluster) in self.clusters.iter().filter(|(_, cluster)| cluster.seen) {
            let mut first = *value;
            for _ in 0..self.clusters.len() {
                let before = self.clusters.get(&first).and_then(|cluster| cluster.replaces);
                first = before.unwrap_or(first);
            }
            let zone = zones.entry(first).or_insert((NEVER, 0));
            zone.0 = zone.0.min(cluster.first_end).min(cluster.ended);
            zone.1 = zone.1.max(cluster.last_begin).max(cluster.begun);
        }
        // The initial value was there before everything.
        if let Some(zone) = zones.get_mut(&0) {
            zone.0 = 0;
        }
        let mut all: Vec<_> =
            zones.into_iter().map(|(value, (from, to))| (from, to, value)).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(values: &[(Value, Time, Time)]) -> Block {
        let mut block = Block::default();
        for (value, begun, ended) in values {
            block.begins(*value, *begun, None);
            block.done(*value, *ended);
        }
        block
    }

    #[test]
    fn an_older_value_behind_a_newer_one_is_wrong() {
        let mut block = written(&[(1, 10, 20), (2, 30, 40)]);
        block.read(2, 41, 42);
        assert_eq!(block.check(), None);
        block.read(1, 50, 60);
        assert!(block.check().is_some());
    }

    #[test]
    fn concurrent_writes_may_have_any_order_but_one() {
        let mut block = written(&[(1, 10, 40), (2, 20, 30)]);
        block.read(1, 50, 51);
        assert_eq!(block.check(), None);
        block.read(2, 60, 61);
        assert!(block.check().is_some());
    }

    #[test]
    fn a_write_without_an_answer_may_come_late_or_never() {
        let mut block = written(&[(2, 30, 40)]);
        block.begins(1, 10, None);
        block.read(2, 41, 42);
        block.read(1, 50, 51);
        assert_eq!(block.check(), None);
        block.over(1, 35);
        assert!(block.check().is_some());
    }

    #[test]
    fn nothing_comes_between_the_halves_of_a_compare_and_write() {
        let mut block = written(&[(1, 10, 20), (3, 50, 60)]);
        block.begins(2, 30, Some(1));
        block.done(2, 90);
        assert!(block.check().is_none());
        block.read(1, 70, 75);
        assert!(block.check().is_some());
    }

    #[test]
    fn a_value_is_replaced_once_and_a_refused_one_never_seen() {
        let mut block = written(&[(1, 10, 20)]);
        for value in [2, 3] {
            block.begins(value, 30, Some(1));
            block.done(value, 60);
        }
        assert!(block.check().is_some());
        let mut block = Block::default();
        block.begins(1, 10, None);
        block.refused(1);
        assert_eq!(block.check(), None);
        block.read(1, 20, 30);
        assert!(block.check().is_some());
    }
}
