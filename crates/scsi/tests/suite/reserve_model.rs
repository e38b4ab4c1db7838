//! What four nexuses may do with the reservations of a unit: a small model written from the tables of SPC-5.

use std::collections::BTreeSet;

use crate::cluster::*;
use crate::common::cdb;
use lunet_scsi::Code;

const PREEMPTED: u8 = 3;
const RELEASED: u8 = 4;
const UNREGISTERED: u8 = 5;
pub const NODES: usize = 4;

/// Who may read and write under each type: the holder, the registered, the others (SPC-5 table 66
/// and the table of types).
type Rights = [(bool, bool); 3];
#[rustfmt::skip]
const ACCESS: [(u8, Rights); 6] = [
    (1, [(true, true), (true, false), (true, false)]),
    (3, [(true, true), (false, false), (false, false)]),
    (5, [(true, true), (true, true), (true, false)]),
    (6, [(true, true), (true, true), (false, false)]),
    (7, [(true, true), (true, true), (true, false)]),
    (8, [(true, true), (true, true), (false, false)]),
];

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Register {
        who: usize,
        ignore: bool,
        key: u64,
        new: u64,
        aptpl: bool,
    },
    Reserve {
        who: usize,
        key: u64,
        kind: u8,
    },
    Release {
        who: usize,
        key: u64,
        kind: u8,
    },
    Clear {
        who: usize,
        key: u64,
    },
    Preempt {
        who: usize,
        key: u64,
        victim: u64,
        kind: u8,
        abort: bool,
    },
    Move {
        who: usize,
        key: u64,
        new: u64,
        to: usize,
        unregister: bool,
    },
    LegacyReserve(usize),
    LegacyRelease(usize),
    Reset,
    LogInAgain(usize),
    /// The target loses power, and with it all sessions.
    PowerLoss,
}

/// What a command is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Good,
    Conflict,
    InvalidCdb,
    InvalidList,
    InvalidRelease,
}
use Answer::*;

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub keys: [Option<u64>; NODES],
    /// Type, and who reserved; for the all registrants types everybody registered holds it.
    pub persistent: Option<(u8, usize)>,
    pub legacy: Option<usize>,
    /// Persist through power loss is activated.
    pub aptpl: bool,
    generation: u32,
    told: [BTreeSet<u8>; NODES],
    aborted: BTreeSet<usize>,
}

impl Model {
    pub fn holds(&self, who: usize) -> bool {
        match self.persistent {
            Some((7 | 8, _)) => self.keys[who].is_some(),
            Some((_, holder)) => holder == who,
            None => false,
        }
    }

    pub fn rights(&self, who: usize) -> (bool, bool) {
        if let Some(holder) = self.legacy {
            return (holder == who, holder == who);
        }
        let Some((kind, _)) = self.persistent else { return (true, true) };
        let column = if self.holds(who) { 0 } else { 2 - usize::from(self.keys[who].is_some()) };
        ACCESS.iter().find(|(k, _)| *k == kind).expect("a type").1[column]
    }

    fn tell(&mut self, but: usize, code: u8) {
        for who in (0..NODES).filter(|who| *who != but) {
            if self.keys[who].is_some() {
                self.told[who].insert(code);
            }
        }
    }

    fn remove(&mut self, who: usize) {
        let held = self.holds(who);
        self.keys[who] = None;
        match self.persistent {
            Some((5 | 6, _)) if held => {
                self.persistent = None;
                self.tell(who, RELEASED);
            }
            Some((1 | 3, _)) if held => self.persistent = None,
            Some((7 | 8, _)) if self.keys.iter().all(Option::is_none) => self.persistent = None,
            _ => {}
        }
    }

    pub fn step(&mut self, step: Step) -> Answer {
        let uses_list = !matches!(
            step,
            Step::LegacyReserve(_)
                | Step::LegacyRelease(_)
                | Step::Reset
                | Step::LogInAgain(_)
                | Step::PowerLoss
        );
        if uses_list && self.legacy.is_some() {
            return Conflict;
        }
        match step {
            Step::Register { who, ignore, key, new, aptpl } => {
                self.register(who, (ignore, aptpl), key, new)
            }
            Step::Reserve { who, key, kind } => match self.persistent {
                _ if self.keys[who] != Some(key) => Conflict,
                None => {
                    self.persistent = Some((kind, who));
                    Good
                }
                Some((held, _)) if self.holds(who) && held == kind => Good,
                Some(_) => Conflict,
            },
            Step::Release { who, key, kind } => self.release(who, key, kind),
            Step::Clear { who, key } => {
                if self.keys[who] != Some(key) {
                    return Conflict;
                }
                self.tell(who, PREEMPTED);
                self.keys = [None; NODES];
                self.persistent = None;
                self.generation += 1;
                Good
            }
            Step::Preempt { who, key, victim, kind, abort } => {
                let answer = self.preempt(who, key, victim, kind);
                if !abort {
                    self.aborted.clear();
                }
                answer
            }
            Step::Move { who, key, new, to, unregister } => {
                self.move_to(who, key, new, to, unregister)
            }
            Step::LegacyReserve(who) => self.legacy(who, true),
            Step::LegacyRelease(who) => self.legacy(who, false),
            Step::Reset => {
                self.legacy = None;
                Good
            }
            Step::LogInAgain(who) => {
                if self.legacy == Some(who) {
                    self.legacy = None;
                }
                Good
            }
            Step::PowerLoss => {
                let kept = if self.aptpl { self.clone() } else { Self::default() };
                *self = Self {
                    keys: kept.keys,
                    persistent: kept.persistent,
                    aptpl: kept.aptpl,
                    ..Self::default()
                };
                Good
            }
        }
    }

    fn register(
        &mut self,
        who: usize,
        (ignore, aptpl): (bool, bool),
        key: u64,
        new: u64,
    ) -> Answer {
        if !ignore && self.keys[who].unwrap_or(0) != key {
            return Conflict;
        }
        match (self.keys[who], new) {
            (None, 0) => return Good,
            (Some(_), 0) => self.remove(who),
            (_, new) => self.keys[who] = Some(new),
        }
        self.aptpl = aptpl;
        self.generation += 1;
        Good
    }

    fn release(&mut self, who: usize, key: u64, kind: u8) -> Answer {
        if self.keys[who] != Some(key) {
            return Conflict;
        }
        match self.persistent {
            Some((held, _)) if self.holds(who) => {
                if held != kind {
                    return InvalidRelease;
                }
                self.persistent = None;
                if held >= 5 {
                    self.tell(who, RELEASED);
                }
                Good
            }
            _ => Good,
        }
    }

    fn preempt(&mut self, who: usize, key: u64, victim: u64, kind: u8) -> Answer {
        if self.keys[who] != Some(key) {
            return Conflict;
        }
        let old = self.persistent;
        let takes = match old {
            Some((7 | 8, _)) => victim == 0,
            Some((_, holder)) => victim != 0 && self.keys[holder] == Some(victim),
            None => false,
        };
        if victim == 0 && !takes {
            return InvalidList;
        }
        let named: BTreeSet<usize> = (0..NODES)
            .filter(|n| {
                if victim == 0 {
                    self.keys[*n].is_some() && *n != who
                } else {
                    self.keys[*n] == Some(victim)
                }
            })
            .collect();
        if named.is_empty() && !takes {
            return Conflict;
        }
        for n in named.iter().copied().filter(|n| *n != who) {
            self.keys[n] = None;
            self.told[n].insert(UNREGISTERED);
        }
        if takes {
            self.persistent = Some((kind, who));
            if old.map(|(old, _)| old) != Some(kind) {
                self.tell(who, RELEASED);
            }
        } else if named.contains(&who) {
            self.keys[who] = None;
        }
        if self.keys.iter().all(Option::is_none) {
            self.persistent = None;
        }
        self.generation += 1;
        self.aborted = named;
        Good
    }

    fn move_to(&mut self, who: usize, key: u64, new: u64, to: usize, unregister: bool) -> Answer {
        if self.keys[who] != Some(key) {
            return Conflict;
        }
        let Some((kind, _)) = self.persistent else { return InvalidCdb };
        if kind >= 7 || !self.holds(who) {
            return Conflict;
        }
        if new == 0 || to == who {
            return InvalidList;
        }
        self.keys[to] = Some(new);
        self.persistent = Some((kind, to));
        self.aptpl = false;
        if unregister {
            self.keys[who] = None;
        }
        self.generation += 1;
        Good
    }

    fn legacy(&mut self, who: usize, reserve: bool) -> Answer {
        let registered = self.keys.iter().any(Option::is_some);
        let let_in = match self.persistent {
            Some((kind, _)) => self.holds(who) || (kind >= 5 && self.keys[who].is_some()),
            None => false,
        };
        match self.legacy {
            _ if let_in => Good,
            _ if registered => Conflict,
            Some(holder) if holder != who && reserve => Conflict,
            Some(holder) if holder != who => Good,
            _ => {
                self.legacy = reserve.then_some(who);
                Good
            }
        }
    }
}

pub fn carry_out(c: &mut Cluster, step: Step) -> Answer {
    c.aborts.clear();
    let reply = match step {
        Step::Register { who, ignore, key, new, aptpl } => {
            let list = list(key, new, u8::from(aptpl));
            c.out(who, if ignore { 6 } else { 0 }, 0, &list)
        }
        Step::Reserve { who, key, kind } => c.out(who, 1, kind, &list(key, 0, 0)),
        Step::Release { who, key, kind } => c.out(who, 2, kind, &list(key, 0, 0)),
        Step::Clear { who, key } => c.out(who, 3, 0, &list(key, 0, 0)),
        Step::Preempt { who, key, victim, kind, abort } => {
            c.out(who, 4 + u8::from(abort), kind, &list(key, victim, 0))
        }
        Step::Move { who, key, new, to, unregister } => {
            let to = c.nodes[to].id.clone();
            let flags = if unregister { 2 } else { 0 };
            c.out(who, 7, 0, &move_list(key, new, flags, to.port.tag, &to.initiator))
        }
        Step::LegacyReserve(who) => c.send(who, &[0x16, 0, 0, 0, 0, 0], &[]),
        Step::LegacyRelease(who) => c.send(who, &cdb(10, &[(0, &[0x57])]), &[]),
        Step::Reset => {
            c.state.reset();
            return Good;
        }
        Step::LogInAgain(who) => {
            c.log_in_again(who);
            return Good;
        }
        Step::PowerLoss => {
            c.lose_power();
            return Good;
        }
    };
    match (reply.status, reply.sense.map(|sense| sense.code)) {
        (GOOD, None) => Good,
        (CONFLICT, None) => Conflict,
        (CHECK, Some(Code::INVALID_FIELD_IN_CDB)) => InvalidCdb,
        (CHECK, Some(Code::INVALID_FIELD_IN_PARAMETER_LIST)) => InvalidList,
        (CHECK, Some(Code::INVALID_RELEASE)) => InvalidRelease,
        other => panic!("{other:?}"),
    }
}

/// Everything that can be seen from outside.
pub fn compare(c: &mut Cluster, model: &mut Model, step: Step) {
    for who in 0..NODES {
        let told: BTreeSet<u8> = c.told(who).into_iter().collect();
        assert_eq!(told, std::mem::take(&mut model.told[who]), "{step:?}: {who} is told");
        let (read, write) = (c.read(who) == GOOD, c.write(who) == GOOD);
        assert_eq!((read, write), model.rights(who), "{step:?}: what {who} may do");
    }
    let aborted: BTreeSet<usize> =
        (0..NODES).filter(|n| c.aborts.contains(c.nodes[*n].id.registrant())).collect();
    assert_eq!(aborted, std::mem::take(&mut model.aborted), "{step:?}: aborted");
    if model.legacy.is_some() {
        return;
    }
    let mut keys = c.keys(0);
    keys.sort_unstable();
    let mut expected: Vec<u64> = model.keys.iter().copied().flatten().collect();
    expected.sort_unstable();
    assert_eq!(keys, expected, "{step:?}");
    assert_eq!(c.kind(0), model.persistent.map_or(0, |(kind, _)| kind), "{step:?}");
    let generation = u32::from_be_bytes(c.report(0, 0)[0..4].try_into().unwrap());
    assert_eq!(generation, model.generation, "{step:?}");
}
