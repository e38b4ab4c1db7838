//! Whether answers about reservations can have come from one volume: all states that it may be in are kept.

use std::collections::BTreeSet;

/// What a host does that reservations decide about. Hosts are numbers below 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// REGISTER AND IGNORE EXISTING KEY.
    Register(u8),
    /// RESERVE, write exclusive.
    Reserve(u8),
    /// RELEASE.
    Release(u8),
    /// PREEMPT of another.
    Preempt(u8, u8),
    /// READ FULL STATUS.
    Report,
    /// A write.
    Write(u8),
}

/// What is registered and reserved: a bit for each host, and the holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// Who is registered.
    pub registered: u8,
    /// Who holds the volume.
    pub holder: Option<u8>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// GOOD.
    Good,
    /// RESERVATION CONFLICT.
    Conflict,
    /// What a report says.
    Status(State),
}

impl Act {
    /// Whose change it is. None takes effect behind a later one of its host: what is late is not executed.
    const fn changes_for(self) -> Option<u8> {
        match self {
            Self::Register(host)
            | Self::Reserve(host)
            | Self::Release(host)
            | Self::Preempt(host, _)
            | Self::Write(host) => Some(host),
            Self::Report => None,
        }
    }
}

impl State {
    /// What an act does.
    pub fn act(&mut self, act: Act) -> Outcome {
        let (State { registered, holder }, bit) = (*self, |host: u8| 1 << host);
        let known = |host: u8| registered & bit(host) != 0;
        let good = match act {
            Act::Report => return Outcome::Status(*self),
            Act::Register(host) => {
                self.registered |= bit(host);
                true
            }
            Act::Reserve(host) if known(host) && holder.is_none_or(|other| other == host) => {
                self.holder = Some(host);
                true
            }
            Act::Release(host) if known(host) => {
                self.holder = holder.filter(|other| *other != host);
                true
            }
            Act::Preempt(host, other) if known(host) && known(other) && host != other => {
                self.registered &= !bit(other);
                if holder == Some(other) {
                    self.holder = Some(host);
                }
                true
            }
            Act::Write(host) => holder.is_none_or(|other| other == host),
            Act::Reserve(_) | Act::Release(_) | Act::Preempt(..) => false,
        };
        if good { Outcome::Good } else { Outcome::Conflict }
    }
}

/// A state that the volume may be in, with what operations that have no answer yet have come to in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Possible {
    state: State,
    done: Vec<(u32, Outcome)>,
    /// The latest change of each host that it has come to.
    latest: [u32; 8],
}

/// States beyond which nobody looks any further.
const MOST: usize = 4000;

/// All that a volume may be.
#[derive(Clone, Debug)]
pub struct States {
    possible: BTreeSet<Possible>,
    open: Vec<(u32, Act)>,
    next: u32,
    /// There were too many to tell.
    pub lost: bool,
}

impl Default for States {
    fn default() -> Self {
        let possible = BTreeSet::from([Possible::default()]);
        Self { possible, open: Vec::new(), next: 0, lost: false }
    }
}

impl States {
    /// An operation begins.
    pub fn begins(&mut self, act: Act) -> u32 {
        self.next += 1;
        self.open.push((self.next, act));
        self.next
    }

    /// It was not done, and will not be; or nobody asks whether it was.
    pub fn dropped(&mut self, id: u32) {
        self.open.retain(|(open, _)| *open != id);
        let all = std::mem::take(&mut self.possible);
        let undone = |possible: &Possible| possible.done.iter().all(|(done, _)| *done != id);
        self.possible = all.into_iter().filter(undone).collect();
    }

    /// It ended like that: false if that is impossible.
    pub fn ends(&mut self, id: u32, outcome: Outcome) -> bool {
        let mut todo: Vec<_> = std::mem::take(&mut self.possible).into_iter().collect();
        let mut seen: BTreeSet<Possible> = todo.iter().cloned().collect();
        while let Some(possible) = todo.pop() {
            for (open, act) in &self.open {
                if possible.done.iter().any(|(done, _)| done == open) {
                    continue;
                }
                let host = act.changes_for().map(usize::from);
                if host.is_some_and(|host| possible.latest[host] > *open) {
                    continue;
                }
                let mut next = possible.clone();
                host.into_iter().for_each(|host| next.latest[host] = *open);
                next.done.push((*open, next.state.act(*act)));
                next.done.sort_unstable();
                if seen.insert(next.clone()) {
                    todo.push(next);
                }
            }
        }
        self.lost |= seen.len() > MOST;
        let ended = self.open.iter().find(|(open, _)| *open == id);
        let host = ended.and_then(|(_, act)| act.changes_for());
        // Earlier changes of its host have come about by now, or never do.
        let over = |(open, act): &(u32, Act)| {
            *open == id || *open < id && host.is_some() && act.changes_for() == host
        };
        let gone: Vec<u32> =
            self.open.iter().filter(|it| over(it)).map(|(open, _)| *open).collect();
        self.open.retain(|it| !over(it));
        let fits = |mut possible: Possible| {
            possible.done.iter().find(|done| **done == (id, outcome))?;
            possible.done.retain(|(done, _)| !gone.contains(done));
            Some(possible)
        };
        self.possible = seen.into_iter().filter_map(fits).collect();
        self.lost || !self.possible.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reserved_keeps_others_out() {
        let mut states = States::default();
        for act in [Act::Register(0), Act::Reserve(0)] {
            let id = states.begins(act);
            assert!(states.ends(id, Outcome::Good));
        }
        let id = states.begins(Act::Write(1));
        assert!(!states.ends(id, Outcome::Good));
    }

    #[test]
    fn a_change_does_not_take_effect_behind_a_later_one_of_its_host() {
        let mut states = States::default();
        states.begins(Act::Register(0));
        let id = states.begins(Act::Write(0));
        assert!(states.ends(id, Outcome::Good));
        let status = |registered| Outcome::Status(State { registered, holder: None });
        let mut after = states.clone();
        let id = states.begins(Act::Report);
        assert!(states.ends(id, status(0)), "it was lost");
        let id = states.begins(Act::Report);
        assert!(!states.ends(id, status(1)), "it is late");
        let id = after.begins(Act::Report);
        assert!(after.ends(id, status(1)), "it was executed before");
    }

    #[test]
    fn without_an_answer_both_may_be() {
        for seen in [None, Some(0)] {
            let mut states = States::default();
            let id = states.begins(Act::Register(0));
            assert!(states.ends(id, Outcome::Good));
            states.begins(Act::Reserve(0));
            let id = states.begins(Act::Report);
            let status = |holder| Outcome::Status(State { registered: 1, holder });
            assert!(states.ends(id, status(seen)));
            let id = states.begins(Act::Report);
            assert_eq!(states.ends(id, status(None)), seen.is_none());
        }
    }
}
