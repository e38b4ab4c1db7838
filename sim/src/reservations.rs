//! What answers to commands on reservations, and to reads and writes under them, may be (SPC-5 5.14, NVMe base specification
//! section 8.1.22). Registrants of both protocols share one state.
//!
//! Every command takes effect at one moment between the time at which it was sent and its answer; one that is never answered
//! may take effect or not. So there are several states that a volume's reservations may be in. Each answer rules out
//! those that cannot have led to it, and if none is left, it was wrong.

use std::collections::{BTreeMap, BTreeSet};

/// Who registers and reserves: an I_T nexus, or an NVMe host.
pub type Nexus = u8;

/// The first of those that are NVMe hosts.
pub const FIRST_HOST: Nexus = 8;

/// True for an NVMe host.
pub const fn is_host(who: Nexus) -> bool {
    who >= FIRST_HOST
}

/// Names a command.
pub type Id = u64;

/// TYPE of a reservation (SPC-5 table 62).
pub type Kind = u8;

/// All kinds; in this order they are the types 1 to 6 of NVMe.
pub const KINDS: [Kind; 6] = [1, 3, 5, 6, 7, 8];

/// Every registrant is a holder.
const fn is_of_all(kind: Kind) -> bool {
    matches!(kind, 7 | 8)
}

/// Reads are for everybody.
const fn reads_are_free(kind: Kind) -> bool {
    matches!(kind, 1 | 5 | 7)
}

/// What registrants may do does not depend on who holds it.
const fn is_of_registrants(kind: Kind) -> bool {
    kind >= 5
}

/// What a Reservation Register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enrol {
    /// Registers a key: one that is not registered, or has this key.
    Register,
    /// Unregisters.
    Unregister,
    /// Replaces the key.
    Replace,
}

/// A service action of PERSISTENT RESERVE OUT, or a reservation command of NVMe. `key` is the key that its sender says it
/// has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// REGISTER, or REGISTER AND IGNORE EXISTING KEY.
    Register {
        /// The key before.
        key: u64,
        /// The key from then on.
        new: u64,
        /// Whatever the key before is.
        ignore: bool,
        /// APTPL.
        keep: bool,
    },
    /// Reservation Register.
    Enrol {
        /// What it does.
        action: Enrol,
        /// The key before.
        key: u64,
        /// The key from then on.
        new: u64,
        /// Whatever the key before is.
        ignore: bool,
        /// CPTPL: `None`: as it was.
        keep: Option<bool>,
    },
    /// RESERVE.
    Reserve {
        /// Its key.
        key: u64,
        /// TYPE.
        kind: Kind,
    },
    /// RELEASE.
    Release {
        /// Its key.
        key: u64,
        /// TYPE.
        kind: Kind,
    },
    /// CLEAR.
    Clear {
        /// Its key.
        key: u64,
    },
    /// PREEMPT, or PREEMPT AND ABORT.
    Preempt {
        /// Its key.
        key: u64,
        /// Whom.
        victim: u64,
        /// TYPE.
        kind: Kind,
        /// Their commands end.
        abort: bool,
    },
    /// REGISTER AND MOVE.
    Move {
        /// Its key.
        key: u64,
        /// The key of the new holder.
        new: u64,
        /// The new holder.
        to: Nexus,
        /// UNREG.
        leave: bool,
        /// APTPL.
        keep: bool,
    },
}

/// A command, as far as reservations are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// PERSISTENT RESERVE OUT.
    Out(Out),
    /// READ KEYS.
    Keys,
    /// READ RESERVATION.
    Reservation,
    /// Reservation Report.
    Report,
    /// A command that reads blocks.
    Read,
    /// A command that writes blocks.
    Write,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// GOOD, and nothing more is said.
    Good,
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION with ILLEGAL REQUEST, or Invalid Field in Command.
    Refused,
    /// PRGENERATION and all keys, in order.
    Keys(u32, Vec<u64>),
    /// PRGENERATION, and the holder's key and the type.
    Held(u32, Option<(u64, Kind)>),
    /// What a Reservation Report says.
    Report(Report),
}

/// A Reservation Report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Report {
    /// GEN.
    pub generation: u32,
    /// The type.
    pub kind: Option<Kind>,
    /// PTPLS.
    pub kept: bool,
    /// Each registrant's key, whether it is a holder, and who it is if it is an NVMe host, in order.
    pub registrants: Vec<(u64, bool, Option<Nexus>)>,
}

/// What a volume's reservations are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    generation: u32,
    keys: BTreeMap<Nexus, u64>,
    /// The type, and the holder if there is one.
    held: Option<(Kind, Option<Nexus>)>,
    /// It survives a loss of power.
    kept: bool,
}

/// What a change was answered with, and whose commands it has ended.
type Done = (Answer, Vec<Nexus>);

impl State {
    fn may(&self, who: Nexus, write: bool) -> bool {
        let Some((kind, holder)) = self.held else { return true };
        holder == Some(who)
            || (is_of_registrants(kind) && self.keys.contains_key(&who))
            || (!write && reads_are_free(kind))
    }

    /// The answer to a question, or to a read or write.
    fn look(&self, who: Nexus, op: &Op) -> Answer {
        match op {
            Op::Keys => {
                let mut keys: Vec<u64> = self.keys.values().copied().collect();
                keys.sort_unstable();
                Answer::Keys(self.generation, keys)
            }
            Op::Reservation => {
                let key = |holder: Option<Nexus>| holder.map_or(0, |holder| self.keys[&holder]);
                Answer::Held(self.generation, self.held.map(|(kind, by)| (key(by), kind)))
            }
            Op::Report => Answer::Report(self.report()),
            Op::Read | Op::Write if self.may(who, *op == Op::Write) => Answer::Good,
            Op::Read | Op::Write | Op::Out(_) => Answer::Conflict,
        }
    }

    fn report(&self) -> Report {
        let holds = |who: Nexus| self.held.is_some_and(|(_, by)| by.is_none_or(|by| by == who));
        let one = |(who, key): (&Nexus, &u64)| (*key, holds(*who), is_host(*who).then_some(*who));
        let mut registrants: Vec<_> = self.keys.iter().map(one).collect();
        registrants.sort_unstable();
        let (generation, kept) = (self.generation, self.kept);
        Report { generation, kind: self.held.map(|(kind, _)| kind), kept, registrants }
    }

    /// Carries a change out.
    fn change(&mut self, who: Nexus, out: &Out) -> Done {
        let own = self.keys.get(&who).copied();
        let key = match *out {
            Out::Enrol { action, key, new, ignore, keep } => {
                let key = if ignore { own.unwrap_or(0) } else { key };
                return (self.enrol(who, action, (key, new), (ignore, keep)), Vec::new());
            }
            Out::Register { ignore: true, .. } => own.unwrap_or(0),
            Out::Register { key, .. }
            | Out::Reserve { key, .. }
            | Out::Release { key, .. }
            | Out::Clear { key }
            | Out::Preempt { key, .. }
            | Out::Move { key, .. } => key,
        };
        let registers = matches!(out, Out::Register { .. });
        if own != Some(key) && !(registers && own.is_none() && key == 0) {
            return (Answer::Conflict, Vec::new());
        }
        let plain = |answer| (answer, Vec::new());
        match *out {
            Out::Enrol { .. } => plain(Answer::Refused),
            Out::Register { new, keep, .. } => plain(self.register(who, new, keep)),
            Out::Reserve { kind, .. } => plain(self.reserve(who, kind)),
            Out::Release { kind, .. } => plain(self.release(who, kind)),
            Out::Clear { .. } => {
                self.keys.clear();
                self.held = None;
                self.generation += 1;
                plain(Answer::Good)
            }
            Out::Preempt { victim, kind, abort, .. } => self.preempt(who, victim, (kind, abort)),
            Out::Move { new, to, leave, keep, .. } => {
                plain(self.moved(who, (to, new), leave, keep))
            }
        }
    }

    fn register(&mut self, who: Nexus, new: u64, keep: bool) -> Answer {
        if new != 0 {
            self.keys.insert(who, new);
        } else if self.keys.remove(&who).is_none() {
            // Nothing to be done, so nothing is.
            return Answer::Good;
        }
        self.generation += 1;
        self.kept = keep;
        self.release_if_nobodys();
        Answer::Good
    }

    /// Reservation Register (NVMe base specification, section 7.7).
    fn enrol(
        &mut self,
        who: Nexus,
        action: Enrol,
        (key, new): (u64, u64),
        (ignore, keep): (bool, Option<bool>),
    ) -> Answer {
        let own = self.keys.get(&who).copied();
        let keep = keep.unwrap_or(self.kept);
        match (action, own) {
            (Enrol::Register, Some(own)) if own != new => Answer::Conflict,
            (Enrol::Register, _) => self.register(who, new, keep),
            (Enrol::Replace, None) if ignore => self.register(who, new, keep),
            (Enrol::Replace | Enrol::Unregister, own) if own != Some(key) => Answer::Conflict,
            (Enrol::Replace, _) => self.register(who, new, keep),
            (Enrol::Unregister, _) => self.register(who, 0, keep),
        }
    }

    /// A reservation ends with the registration of its holder, or of the last one.
    fn release_if_nobodys(&mut self) {
        let stays = match self.held {
            Some((_, Some(holder))) => self.keys.contains_key(&holder),
            Some((_, None)) => !self.keys.is_empty(),
            None => true,
        };
        if !stays {
            self.held = None;
        }
    }

    fn reserve(&mut self, who: Nexus, kind: Kind) -> Answer {
        let wanted = Some((kind, (!is_of_all(kind)).then_some(who)));
        if self.held.is_some() && self.held != wanted {
            return Answer::Conflict;
        }
        self.held = wanted;
        Answer::Good
    }

    fn release(&mut self, who: Nexus, kind: Kind) -> Answer {
        match self.held {
            Some((held, holder)) if holder.is_none_or(|holder| holder == who) => {
                if held != kind {
                    return Answer::Refused;
                }
                self.held = None;
                Answer::Good
            }
            _ => Answer::Good,
        }
    }

    fn preempt(&mut self, who: Nexus, victim: u64, (kind, abort): (Kind, bool)) -> Done {
        let of_all = matches!(self.held, Some((_, None)));
        if victim == 0 && !of_all {
            return (Answer::Refused, Vec::new());
        }
        let takes = match self.held {
            Some((_, Some(holder))) => self.keys[&holder] == victim,
            Some((_, None)) => victim == 0,
            None => false,
        };
        let named = |(nexus, key): (&Nexus, &u64)| {
            let hit = if victim == 0 { *nexus != who } else { *key == victim };
            hit.then_some(*nexus)
        };
        let mut victims: Vec<Nexus> = self.keys.iter().filter_map(named).collect();
        if victims.is_empty() && !takes {
            return (Answer::Conflict, Vec::new());
        }
        self.keys.retain(|nexus, _| !victims.contains(nexus) || (takes && *nexus == who));
        if takes {
            self.held = Some((kind, (!is_of_all(kind)).then_some(who)));
        }
        self.release_if_nobodys();
        self.generation += 1;
        victims.retain(|nexus| abort && *nexus != who);
        (Answer::Good, victims)
    }

    fn moved(&mut self, who: Nexus, (to, new): (Nexus, u64), leave: bool, keep: bool) -> Answer {
        match self.held {
            Some((kind, Some(holder))) if holder == who => {
                if new == 0 || to == who {
                    return Answer::Refused;
                }
                self.keys.insert(to, new);
                self.held = Some((kind, Some(to)));
                if leave {
                    self.keys.remove(&who);
                }
                self.generation += 1;
                self.kept = keep;
                Answer::Good
            }
            None => Answer::Refused,
            Some(_) => Answer::Conflict,
        }
    }
}

/// How it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Possible {
    state: State,
    /// Changes that are under way and have taken effect.
    done: BTreeMap<Id, Done>,
    /// What commands that change nothing may have been answered with so far.
    seen: BTreeMap<Id, BTreeSet<Answer>>,
}

impl Possible {
    /// True if this allows everything that the other one does.
    fn covers(&self, other: &Self) -> bool {
        self.state == other.state
            && self.done == other.done
            && self.seen.iter().all(|(id, answers)| other.seen[id].is_subset(answers))
    }
}

/// All that is known of the reservations of a volume.
#[derive(Clone, Debug)]
pub struct Reservations {
    all: Vec<Possible>,
    under_way: BTreeMap<Id, (Nexus, Op)>,
    /// Changes whose end was not answered, and what was the last to be sent before that end: the server may have stored one and not
    /// yet taken it back, and then be killed.
    aborted: Vec<(Id, Nexus, Out)>,
    last: Id,
}

impl Default for Reservations {
    fn default() -> Self {
        let none =
            Possible { state: State::default(), done: BTreeMap::new(), seen: BTreeMap::new() };
        Self { all: vec![none], under_way: BTreeMap::new(), aborted: Vec::new(), last: 0 }
    }
}

impl Reservations {
    /// A command is sent.
    pub fn send(&mut self, id: Id, who: Nexus, op: Op) {
        if !matches!(op, Op::Out(_)) {
            for one in &mut self.all {
                let answer = one.state.look(who, &op);
                one.seen.insert(id, [answer].into());
            }
        }
        self.under_way.insert(id, (who, op));
        self.last = id;
        self.close();
    }

    /// Adds what follows if changes that are under way take effect now, one after the other.
    fn close(&mut self) {
        let under_way = self.under_way.clone();
        let mut at = 0;
        while at < self.all.len() {
            let one = self.all[at].clone();
            at += 1;
            for (id, (who, op)) in &under_way {
                let Op::Out(out) = op else { continue };
                if one.done.contains_key(id) {
                    continue;
                }
                let mut next = one.clone();
                let done = next.state.change(*who, out);
                next.done.insert(*id, done);
                for (look, answers) in &mut next.seen {
                    let (who, op) = &under_way[look];
                    answers.insert(next.state.look(*who, op));
                }
                self.add(next);
            }
        }
    }

    fn add(&mut self, new: Possible) {
        if !self.all.iter().any(|one| one.covers(&new)) {
            self.all.push(new);
        }
    }

    /// A command was answered.
    ///
    /// # Errors
    /// It cannot have been answered so.
    pub fn answered(&mut self, id: Id, answer: &Answer) -> Result<Vec<Nexus>, String> {
        let Some((who, op)) = self.under_way.get(&id).cloned() else { return Ok(Vec::new()) };
        let before = self.all.clone();
        self.all.retain(|one| match (one.done.get(&id), one.seen.get(&id)) {
            (Some((done, _)), _) => done == answer,
            (None, Some(seen)) => seen.contains(answer),
            (None, None) => false,
        });
        if self.all.is_empty() {
            let may = before.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" or ");
            return Err(format!("{op:?} of {who} is answered {answer:?}; it may be {may}"));
        }
        if matches!(op, Op::Out(_)) {
            // Whatever was aborted before this was sent is done with.
            self.aborted.retain(|(before, ..)| id <= *before);
        }
        let ended = |one: &Possible| one.done.get(&id).map_or(Vec::new(), |done| done.1.clone());
        let mut victims = ended(&self.all[0]);
        victims.retain(|victim| self.all.iter().all(|one| ended(one).contains(victim)));
        self.forget(id);
        Ok(victims)
    }

    /// A command was refused for another reason, before it had any effect.
    pub fn refused(&mut self, id: Id) {
        self.all.retain(|one| !one.done.contains_key(&id));
        self.forget(id);
    }

    /// A command can take effect no more, and may have.
    pub fn over(&mut self, id: Id) {
        if let Some((who, Op::Out(out))) = self.under_way.get(&id).cloned() {
            self.aborted.push((self.last, who, out));
        }
        self.forget(id);
    }

    fn forget(&mut self, id: Id) {
        self.under_way.remove(&id);
        for one in &mut self.all {
            one.done.remove(&id);
            one.seen.remove(&id);
        }
        let all = std::mem::take(&mut self.all);
        for one in all {
            if !self.all.iter().any(|other| other.covers(&one)) {
                self.all.retain(|other| !one.covers(other));
                self.all.push(one);
            }
        }
    }

    /// The server was killed, and has started again.
    pub fn restarted(&mut self) {
        self.under_way.clear();
        // One at most: the next is stored when the one before is done with.
        let before = self.all.clone();
        for (_, who, out) in std::mem::take(&mut self.aborted) {
            self.all.extend(before.iter().cloned().map(|mut one| {
                one.state.change(who, &out);
                one
            }));
        }
        for one in &mut self.all {
            one.done.clear();
            one.seen.clear();
            match one.state.kept {
                true => one.state.generation = 0,
                false => one.state = State::default(),
            }
        }
        let all = std::mem::take(&mut self.all);
        all.into_iter().for_each(|one| {
            if !self.all.contains(&one) {
                self.all.push(one);
            }
        });
    }

    /// True if nobody lets this nexus write now, however it is.
    pub fn surely_excludes(&self, who: Nexus) -> bool {
        self.all.iter().all(|one| !one.state.may(who, true))
    }

    /// In how many ways it may be.
    pub fn ways(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(new: u64, keep: bool) -> Op {
        Op::Out(Out::Register { key: 0, new, ignore: true, keep })
    }

    fn reserve(key: u64, kind: Kind) -> Op {
        Op::Out(Out::Reserve { key, kind })
    }

    /// Sends a command and has it answered at once.
    fn ask(
        all: &mut Reservations,
        who: Nexus,
        op: Op,
        answer: Answer,
    ) -> Result<Vec<Nexus>, String> {
        all.send(999, who, op);
        all.answered(999, &answer)
    }

    fn reserved(keep: bool) -> Reservations {
        let mut all = Reservations::default();
        for who in [1, 2] {
            ask(&mut all, who, register(u64::from(who), keep), Answer::Good).unwrap();
        }
        ask(&mut all, 1, reserve(1, 1), Answer::Good).unwrap();
        all
    }

    #[test]
    fn a_write_after_the_answer_to_a_reservation_conflicts() {
        let mut all = reserved(false);
        assert_eq!(ask(&mut all.clone(), 2, Op::Write, Answer::Conflict), Ok(vec![]));
        assert_eq!(ask(&mut all.clone(), 2, Op::Read, Answer::Good), Ok(vec![]));
        assert_eq!(ask(&mut all.clone(), 1, Op::Write, Answer::Good), Ok(vec![]));
        assert!(ask(&mut all, 2, Op::Write, Answer::Good).is_err());
    }

    #[test]
    fn a_change_under_way_may_have_taken_effect_or_not() {
        let mut all = reserved(false);
        all.send(1, 1, Op::Out(Out::Release { key: 1, kind: 1 }));
        for answer in [Answer::Good, Answer::Conflict] {
            assert!(ask(&mut all.clone(), 2, Op::Write, answer).is_ok());
        }
        // Once it is seen, it stays so.
        ask(&mut all, 2, Op::Write, Answer::Good).unwrap();
        assert!(ask(&mut all.clone(), 2, Op::Write, Answer::Conflict).is_err());
        assert_eq!(all.ways(), 1);
    }

    #[test]
    fn a_write_that_was_sent_before_a_reservation_may_be_answered_either_way() {
        let mut all = Reservations::default();
        ask(&mut all, 1, register(1, false), Answer::Good).unwrap();
        all.send(1, 2, Op::Write);
        ask(&mut all, 1, reserve(1, 3), Answer::Good).unwrap();
        assert!(all.clone().answered(1, &Answer::Good).is_ok());
        assert!(all.answered(1, &Answer::Conflict).is_ok());
    }

    #[test]
    fn what_is_kept_is_there_after_a_restart_and_nothing_else() {
        for keep in [false, true] {
            let mut all = reserved(keep);
            all.restarted();
            let held = |all: &Reservations, held| ask(&mut all.clone(), 2, Op::Reservation, held);
            assert_eq!(held(&all, Answer::Held(0, None)).is_ok(), !keep);
            assert_eq!(held(&all, Answer::Held(0, Some((1, 1)))).is_ok(), keep);
        }
    }

    #[test]
    fn preemption_takes_the_reservation_and_names_whose_commands_end() {
        let mut all = reserved(false);
        let preempt = Out::Preempt { key: 2, victim: 1, kind: 6, abort: true };
        assert_eq!(ask(&mut all, 2, Op::Out(preempt), Answer::Good), Ok(vec![1]));
        assert!(all.surely_excludes(1) && !all.surely_excludes(2));
        assert!(ask(&mut all.clone(), 1, Op::Keys, Answer::Keys(3, vec![2])).is_ok());
        assert!(ask(&mut all, 1, Op::Read, Answer::Good).is_err());
    }

    #[test]
    fn a_move_makes_somebody_else_the_holder() {
        let mut all = reserved(false);
        let to = Out::Move { key: 1, new: 9, to: 3, leave: true, keep: false };
        ask(&mut all, 1, Op::Out(to), Answer::Good).unwrap();
        assert!(ask(&mut all.clone(), 3, Op::Keys, Answer::Keys(3, vec![2, 9])).is_ok());
        assert!(ask(&mut all.clone(), 3, Op::Write, Answer::Good).is_ok());
        assert!(ask(&mut all, 1, Op::Write, Answer::Good).is_err());
    }

    #[test]
    fn hosts_and_initiators_share_one_state() {
        let host = FIRST_HOST;
        let enrol =
            |action, key, new| Op::Out(Out::Enrol { action, key, new, ignore: false, keep: None });
        let mut all = reserved(true);
        ask(&mut all, host, enrol(Enrol::Register, 0, 9), Answer::Good).unwrap();
        ask(&mut all, host, enrol(Enrol::Register, 0, 8), Answer::Conflict).unwrap();
        ask(&mut all, host, Op::Write, Answer::Conflict).unwrap();
        let registrants = vec![(1, true, None), (2, false, None), (9, false, Some(host))];
        let report = Report { generation: 3, kind: Some(1), kept: true, registrants };
        ask(&mut all, host, Op::Report, Answer::Report(report)).unwrap();
        let preempt = Out::Preempt { key: 9, victim: 1, kind: 1, abort: true };
        // It takes the reservation, and ends the commands of the initiator.
        assert_eq!(ask(&mut all, host, Op::Out(preempt), Answer::Good), Ok(vec![1]));
        ask(&mut all, host, Op::Write, Answer::Good).unwrap();
        ask(&mut all, host, enrol(Enrol::Unregister, 9, 0), Answer::Good).unwrap();
        assert!(ask(&mut all.clone(), 2, Op::Keys, Answer::Keys(5, vec![2])).is_ok());
        assert!(ask(&mut all, 2, Op::Write, Answer::Good).is_ok());
    }

    #[test]
    fn a_reservation_of_all_registrants_ends_with_the_last() {
        let mut all = Reservations::default();
        ask(&mut all, 1, register(1, false), Answer::Good).unwrap();
        ask(&mut all, 1, reserve(1, 8), Answer::Good).unwrap();
        assert!(all.surely_excludes(2));
        ask(&mut all, 2, register(2, false), Answer::Good).unwrap();
        ask(&mut all, 1, register(0, false), Answer::Good).unwrap();
        assert!(all.surely_excludes(1) && !all.surely_excludes(2));
        ask(&mut all, 2, register(0, false), Answer::Good).unwrap();
        assert!(!all.surely_excludes(1));
    }
}
