//! Two hosts of a cluster that share a unit, with two paths each, fight over it.
//!
//! Each does what cluster software does: it registers its key on every path, makes sure that the unit is reserved,
//! and throws the other out with PREEMPT AND ABORT when it takes it for dead. Which of the two does its next step,
//! when hosts die and come back, paths are lost and the target loses power, is random. Every answer and
//! everything that can be seen is compared with the model after each step.

use proptest::prelude::*;

use crate::cluster::{CONFLICT, Cluster, GOOD};
use crate::reserve_model::{Answer, Model, Step, carry_out, compare};

/// Types that leave every registered path of both hosts the right to write: those that clusters use.
const SHARED: [u8; 4] = [5, 6, 7, 8];

/// The paths of a host.
const fn paths(host: usize) -> [usize; 2] {
    [2 * host, 2 * host + 1]
}

/// The key of a host.
const fn key(host: usize) -> u64 {
    0xA0 + host as u64
}

/// How far a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It starts: so many paths are registered.
    Joining(usize),
    /// It uses the unit.
    Member,
    /// It was thrown out, and knows it.
    Fenced,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A host does what comes next, by one of its paths.
    Next {
        host: usize,
        path: usize,
    },
    /// A host takes the other for dead.
    Suspect {
        host: usize,
        path: usize,
    },
    /// A host restarts: its sessions are lost, its registrations are not.
    Restart(usize),
    /// A path is lost and comes back.
    PathLoss {
        host: usize,
        path: usize,
    },
    /// Somebody resets the unit.
    Reset,
    PowerLoss,
}

struct Fight {
    cluster: Cluster,
    model: Model,
    stages: [Stage; 2],
    kind: u8,
}

impl Fight {
    fn new(kind: u8) -> Self {
        let stages = [Stage::Joining(0); 2];
        Self { cluster: Cluster::two_hosts(), model: Model::default(), stages, kind }
    }

    /// Sends a command, and compares all that comes of it with the model.
    fn step(&mut self, step: Step) -> Answer {
        let expected = self.model.step(step);
        assert_eq!(carry_out(&mut self.cluster, step), expected, "{step:?}");
        compare(&mut self.cluster, &mut self.model, step);
        expected
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Next { host, path } => self.next(host, paths(host)[path]),
            Event::Suspect { host, path } => self.suspect(host, paths(host)[path]),
            Event::Restart(host) => {
                for path in paths(host) {
                    self.step(Step::LogInAgain(path));
                }
                self.stages[host] = Stage::Joining(0);
            }
            Event::PathLoss { host, path } => {
                self.step(Step::LogInAgain(paths(host)[path]));
            }
            Event::Reset => {
                self.step(Step::Reset);
            }
            Event::PowerLoss => {
                let before = self.model.clone();
                self.step(Step::PowerLoss);
                // All registrations of the fight ask to be kept.
                assert_eq!(
                    (self.model.keys, self.model.persistent),
                    (before.keys, before.persistent)
                );
            }
        }
        self.check();
    }

    fn next(&mut self, host: usize, path: usize) {
        match self.stages[host] {
            Stage::Joining(done) if done < 2 => {
                let who = paths(host)[done];
                let (key, new) = (0, key(host));
                let register = Step::Register { who, ignore: true, key, new, aptpl: true };
                assert_eq!(self.step(register), Answer::Good);
                self.stages[host] = Stage::Joining(done + 1);
            }
            Stage::Joining(_) => {
                // The other may have reserved it, or thrown this one out meanwhile.
                let reserve = Step::Reserve { who: path, key: key(host), kind: self.kind };
                let answer = self.step(reserve);
                let in_it = paths(host).iter().all(|path| self.model.keys[*path].is_some());
                assert!(answer == Answer::Good || self.model.persistent.is_some());
                self.stages[host] = if in_it { Stage::Member } else { Stage::Fenced };
            }
            Stage::Member => {
                if self.cluster.write(path) == CONFLICT {
                    assert_eq!(self.model.keys[path], None, "a member may write");
                    self.stages[host] = Stage::Fenced;
                }
            }
            // It restarts, to join again with nothing in its memory.
            Stage::Fenced => self.happen(Event::Restart(host)),
        }
    }

    fn suspect(&mut self, host: usize, path: usize) {
        if self.stages[host] != Stage::Member {
            return;
        }
        let other = 1 - host;
        let (who, victim, kind) = (path, key(other), self.kind);
        let named = paths(other).map(|path| self.model.keys[path] == Some(victim));
        let own = self.model.keys[path] == Some(key(host));
        let preempt = Step::Preempt { who, key: key(host), victim, kind, abort: true };
        let answer = self.model.clone().step(preempt);
        self.step(preempt);
        match answer {
            Answer::Good => {
                assert!(own, "only a member can win");
                for (path, named) in paths(other).into_iter().zip(named) {
                    // The commands of the loser were aborted (the comparison sees to it), and no more come.
                    if named {
                        assert_eq!(self.cluster.write(path), CONFLICT, "the loser writes");
                    }
                }
                for path in paths(host) {
                    if self.model.keys[path].is_some() {
                        assert_eq!(self.cluster.write(path), GOOD, "the winner cannot write");
                    }
                }
            }
            // The other was faster, or has gone before.
            Answer::Conflict => assert!(!own || named == [false; 2]),
            other => panic!("{other:?}"),
        }
    }

    /// What a cluster relies on.
    fn check(&mut self) {
        let registered = |host: usize| paths(host).map(|path| self.model.keys[path].is_some());
        let reserved = self.model.persistent.is_some();
        for host in 0..2 {
            for (path, registered) in paths(host).into_iter().zip(registered(host)) {
                let writes = self.model.rights(path).1;
                assert_eq!(writes, registered || !reserved, "who is not in the cluster writes");
            }
        }
        // Never do both lose: whoever threw the other out is still in.
        let some_left = (0..2).any(|host| registered(host).contains(&true));
        let joined = self.stages.contains(&Stage::Member);
        assert!(some_left || !joined, "nobody is left in the cluster");
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let place = || (0..2_usize, 0..2_usize);
    let event = prop_oneof![
        12 => place().prop_map(|(host, path)| Event::Next { host, path }),
        4 => place().prop_map(|(host, path)| Event::Suspect { host, path }),
        1 => (0..2_usize).prop_map(Event::Restart),
        1 => place().prop_map(|(host, path)| Event::PathLoss { host, path }),
        1 => Just(Event::Reset),
        1 => Just(Event::PowerLoss),
    ];
    prop::collection::vec(event, 10..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn of_two_hosts_one_survives_and_the_other_writes_no_more(
        kind in prop::sample::select(SHARED.to_vec()),
        events in events(),
    ) {
        let mut fight = Fight::new(kind);
        for event in events {
            fight.happen(event);
        }
        // Both can always come back.
        for host in 0..2 {
            fight.happen(Event::Restart(host));
            for _ in 0..3 {
                fight.happen(Event::Next { host, path: 0 });
            }
            prop_assert_eq!(fight.stages[host], Stage::Member);
            prop_assert_eq!(fight.cluster.write(paths(host)[1]), GOOD);
        }
    }
}

#[test]
fn a_duel_has_one_winner_whoever_is_first() {
    for kind in SHARED {
        for first in 0..2 {
            let mut fight = Fight::new(kind);
            for host in [0, 1, 0, 1, 0, 1] {
                fight.happen(Event::Next { host, path: 0 });
            }
            assert_eq!(fight.stages, [Stage::Member; 2]);
            fight.happen(Event::Suspect { host: first, path: 1 });
            fight.happen(Event::PowerLoss);
            fight.happen(Event::Suspect { host: 1 - first, path: 0 });
            let who = |host| paths(host).map(|path| fight.model.keys[path].is_some());
            assert_eq!((who(first), who(1 - first)), ([true; 2], [false; 2]));
            for path in paths(1 - first) {
                assert_eq!(fight.cluster.write(path), CONFLICT);
            }
        }
    }
}
