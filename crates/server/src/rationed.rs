//! Lines of the log that strangers can cause: each kind has its own ration, and what is left out is counted.
//!
//! Who connects, logs in and leaves without having proved who it is decides how often that happens. Without
//! a bound it would fill the log, and hide in it what others do. So every such line belongs to a [`Topic`],
//! and is written only if its ration has room for it.

use std::sync::PoisonError;
use std::time::Duration;

use lunet_os::sync::Mutex;

use crate::front::Names;

/// Lines of one kind that are logged in one go, and how long it takes until there is one more.
const LINES: u32 = 30;
const LINE: Duration = Duration::from_secs(2);

/// A level that each event raises by one and time lowers, kept as the time when it is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level(pub(crate) Duration);

impl Level {
    /// True if the level leaves room for one more.
    pub(crate) fn has_room(self, now: Duration, most: u32, forget: Duration) -> bool {
        self.0 <= now + forget * (most - 1)
    }

    /// Counts an event. More than `most` of them are forgotten as soon as that many.
    pub(crate) fn raise(&mut self, now: Duration, most: u32, forget: Duration) {
        self.0 = (self.0.max(now) + forget).min(now + forget * most);
    }
}

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Connections that could not be accepted, or were turned away.
    TurnedAway,
    /// Connections that end before their login has succeeded.
    Unfinished,
    /// Logins that are refused.
    Refused,
    /// Sessions that only ask what there is.
    Listing,
    /// Sessions of clients that had to prove nothing.
    Open,
    /// Sessions of clients that have proved who they are.
    Proven,
    /// Connections over RDMA.
    Rdma,
    /// Sessions on TCP that RDMA was offered to.
    OverTcp,
}

impl Topic {
    const ALL: [Self; 8] = [
        Self::TurnedAway,
        Self::Unfinished,
        Self::Refused,
        Self::Listing,
        Self::Open,
        Self::Proven,
        Self::Rdma,
        Self::OverTcp,
    ];

    const fn words(self, names: Names) -> &'static str {
        match self {
            Self::TurnedAway => "connections that were turned away",
            Self::Unfinished => "connections that ended before their login",
            Self::Refused => "refused logins",
            Self::Listing => names.listing,
            Self::Open => "sessions without authentication",
            Self::Proven => "authenticated sessions",
            Self::Rdma => "connections over RDMA",
            Self::OverTcp => "sessions that do not use RDMA",
        }
    }
}

/// The rations of a server.
#[derive(Debug, Default)]
pub struct Rations([Mutex<(Level, u64)>; Topic::ALL.len()]);

impl Rations {
    /// With the number of lines that were left out before, if one may be logged.
    pub fn grants(&self, topic: Topic, now: Duration) -> Option<u64> {
        let mut ration = self.0[topic as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let (level, left_out) = &mut *ration;
        if !level.has_room(now, LINES, LINE) {
            *left_out += 1;
            return None;
        }
        level.raise(now, LINES, LINE);
        Some(std::mem::take(left_out))
    }

    /// Says what was left out and has not been said with a later line. To be called every few seconds.
    pub(crate) fn report(&self, now: Duration, names: Names) {
        for topic in Topic::ALL {
            let mut ration = self.0[topic as usize].lock().unwrap_or_else(PoisonError::into_inner);
            let (level, left_out) = &mut *ration;
            // A line like the others: as long as the flood lasts, those that are written say it.
            if *left_out > 0 && level.has_room(now, LINES, LINE) {
                level.raise(now, LINES, LINE);
                let unlogged = std::mem::take(left_out);
                tracing::info!(unlogged, "lines about {} were left out", topic.words(names));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    #[test]
    fn each_kind_of_line_has_a_bound_of_its_own_and_says_what_it_left_out() {
        let rations = Rations::default();
        for topic in Topic::ALL {
            let logged = (0..1000).filter(|_| rations.grants(topic, START).is_some()).count();
            assert_eq!(logged, LINES as usize, "{topic:?}");
        }
        let left_out = Some(1000 - u64::from(LINES));
        assert_eq!(rations.grants(Topic::Refused, START + LINE), left_out);
        assert_eq!(rations.grants(Topic::Refused, START + LINE), None);
        rations.report(START + LINE, Names::PLAIN);
        assert_eq!(rations.grants(Topic::Open, START + LINE), None, "the report is a line, too");
        assert_eq!(rations.grants(Topic::Refused, START + LINE * 2), Some(1));
        rations.report(START + LINE * 3, Names::PLAIN);
        assert_eq!(rations.grants(Topic::Open, START + LINE * 4), Some(0), "it was said");
    }
}
