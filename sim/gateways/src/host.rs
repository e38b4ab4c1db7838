//! Initiators: each has a path to every gateway, does one thing at a time, and does it again elsewhere when a path fails.

use lunet_gateway::{Ping, Turn};

use crate::blocks::Value;
use crate::reserve::{Act, Outcome, State};
use crate::world::{Event, World};
use crate::{BLOCKS, MS, Place, SEC, Time, VOLUMES};

/// What a host tells a gateway over a connection.
#[derive(Clone, Debug)]
pub enum Said {
    /// It logs in.
    Login,
    /// A command.
    Command(Wanted),
    /// The answer to a ping.
    Pong(Question),
    /// It has closed the connection.
    Closed,
}

/// What a host is asked, and what its answer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// That nothing of an earlier epoch is on its way.
    pub ping: Ping,
    /// Nor anything of before this turn.
    pub turn: Turn,
    /// Nor anything of before this session with the owner was open; 0: there is none.
    pub session: u64,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Read a block.
    Read(Place),
    /// Write a block.
    Write(Place, Value),
    /// Write a block if it has a certain value.
    CompareAndWrite(Place, Value, Value),
    /// PERSISTENT RESERVE OUT.
    Reserve(Act),
    /// PERSISTENT RESERVE IN.
    Report,
}

impl Wanted {
    /// Where it goes; reservations are of the last volume.
    pub fn place(self) -> Place {
        match self {
            Self::Read(place) | Self::Write(place, _) | Self::CompareAndWrite(place, ..) => place,
            Self::Reserve(_) | Self::Report => Place { volume: VOLUMES as u8 - 1, block: 0 },
        }
    }

    /// True if it may write blocks.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write(..) | Self::CompareAndWrite(..))
    }
}

/// What a gateway tells a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The login was accepted.
    LoggedIn,
    /// Answer this.
    Ping(Question),
    /// GOOD, with what was read.
    Good(Value),
    /// MISCOMPARE, with what is there.
    Miscompare(Value),
    /// BUSY.
    Busy,
    /// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
    Standby,
    /// RESERVATION CONFLICT.
    Conflict,
    /// What PERSISTENT RESERVE IN says.
    Status(State),
    /// The connection was aborted.
    Aborted,
}

/// A host.
#[derive(Debug, Default)]
pub struct Host {
    /// Its connection to each gateway, and whether it is logged in.
    paths: Vec<Option<(u64, bool)>>,
    /// The gateway that it tries first.
    preferred: usize,
    task: Option<Task>,
    /// Operations that it has left to do.
    pub left: u32,
    /// The number of the wait that counts.
    timer: u64,
    /// Requests on reservations of which nobody knows whether they were done.
    unknown: u32,
    last: [Value; VOLUMES * BLOCKS],
}

/// Unknown requests after which a host leaves reservations alone: each makes more states possible.
const MOST_UNKNOWN: u32 = 2;
/// BUSY in a row, until another path is tried.
const MOST_BUSY: u32 = 30;
/// How long anything may take when all faults are over: watches end after 30 s, then somebody takes over.
const PATIENCE: Time = 120 * SEC;

#[derive(Clone, Debug)]
struct Task {
    wanted: Wanted,
    begun: Time,
    /// When the present attempt was sent, over which connection.
    sent: Option<(Time, u64)>,
    /// The number of the attempt among all states.
    act: Option<u32>,
    /// Values of former attempts that may take effect yet.
    unsure: Vec<Value>,
    tries: u32,
}

impl Host {
    /// One that has so much to do.
    pub fn new(gateways: usize, operations: u32) -> Self {
        Self { paths: vec![None; gateways], left: operations, ..Self::default() }
    }

    /// It has nothing left to do.
    pub fn finished(&self) -> bool {
        self.left == 0 && self.task.is_none()
    }
}

impl World {
    /// A host's wait is over: it begins something, tries it again, or gives a path up.
    pub fn host_timer(&mut self, number: usize, timer: u64) {
        if self.hosts[number].timer != timer {
            return;
        }
        if self.hosts[number].task.is_none() {
            return self.begin_task(number);
        }
        let sent = self.hosts[number].task.as_ref().and_then(|task| task.sent);
        let path = self.hosts[number].preferred;
        let connection = self.hosts[number].paths[path];
        if sent.is_some() || connection.is_some_and(|(_, ready)| !ready) {
            // No answer in time.
            // Half of the hosts just forget the connection: the gateway never hears that it has ended.
            if let Some((id, _)) = self.hosts[number].paths[path].take()
                && self.chance.once_in(2)
            {
                self.say(number, path, id, Said::Closed);
            }
            self.attempt_unknown(number);
            self.another_path(number, 10 * MS);
        } else {
            self.attempt(number);
        }
    }

    fn wait(&mut self, number: usize, time: Time) {
        let timer = self.number();
        self.hosts[number].timer = timer;
        self.at(self.now + time, Event::HostTimer(number, timer));
    }

    fn begin_task(&mut self, number: usize) {
        if self.hosts[number].left == 0 {
            return;
        }
        self.hosts[number].left -= 1;
        let place = Place {
            volume: self.chance.below(VOLUMES as u64) as u8,
            block: self.chance.below(BLOCKS as u64) as u8,
        };
        let known = self.hosts[number].last[place.index()];
        let wanted = match self.chance.below(20) {
            0..8 => Wanted::Read(place),
            8..15 => Wanted::Write(place, 0),
            15..17 => Wanted::CompareAndWrite(place, known, 0),
            17 if self.hosts[number].unknown < MOST_UNKNOWN => Wanted::Report,
            18..20 if self.hosts[number].unknown < MOST_UNKNOWN => {
                let (me, other) = (number as u8, self.chance.below(self.hosts.len() as u64) as u8);
                Wanted::Reserve(match self.chance.below(6) {
                    0 | 1 => Act::Register(me),
                    2 => Act::Reserve(me),
                    3 | 4 => Act::Release(me),
                    _ if other != me => Act::Preempt(me, other),
                    _ => Act::Register(me),
                })
            }
            _ => Wanted::Read(place),
        };
        // Hosts ask any path for reservations.
        if matches!(wanted, Wanted::Reserve(_) | Wanted::Report) || self.chance.once_in(15) {
            let gateways = self.nodes.len() as u64;
            self.hosts[number].preferred = self.chance.below(gateways) as usize;
        }
        let (begun, unsure) = (self.now, Vec::new());
        let task = Task { wanted, begun, sent: None, act: None, unsure, tries: 0 };
        self.hosts[number].task = Some(task);
        self.attempt(number);
    }

    /// Tries over the preferred path.
    fn attempt(&mut self, number: usize) {
        let path = self.hosts[number].preferred;
        match self.hosts[number].paths[path] {
            None => {
                let id = self.number();
                self.hosts[number].paths[path] = Some((id, false));
                self.say(number, path, id, Said::Login);
                let patience = self.chance.between(500 * MS, 2 * SEC);
                self.wait(number, patience);
            }
            Some((_, false)) => self.wait(number, SEC),
            Some((id, true)) => self.send_attempt(number, path, id),
        }
    }

    fn send_attempt(&mut self, number: usize, path: usize, id: u64) {
        let (now, fresh) = (self.now, self.fresh_value());
        let Some(task) = &mut self.hosts[number].task else { return };
        task.sent = Some((now, id));
        let place = task.wanted.place();
        let act = match &mut task.wanted {
            Wanted::Write(_, value) => {
                *value = fresh;
                self.blocks[place.index()].begins(fresh, now, None);
                place.reserved().then_some(Act::Write(number as u8))
            }
            Wanted::CompareAndWrite(_, expected, value) => {
                *value = fresh;
                self.blocks[place.index()].begins(fresh, now, Some(*expected));
                place.reserved().then_some(Act::Write(number as u8))
            }
            Wanted::Reserve(act) => Some(*act),
            Wanted::Report => Some(Act::Report),
            Wanted::Read(_) => None,
        };
        task.act = act.map(|act| self.states.begins(act));
        let wanted = task.wanted;
        self.tell(|| format!("host {number} to gateway {path}: {wanted:?}"));
        self.say(number, path, id, Said::Command(wanted));
        let patience = self.chance.between(SEC, 8 * SEC);
        self.wait(number, patience);
    }

    /// Nobody knows what becomes of the present attempt.
    fn attempt_unknown(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let Some(task) = &mut host.task else { return };
        if task.sent.take().is_none() {
            return;
        }
        match (task.wanted, task.act.take()) {
            (Wanted::Write(_, value) | Wanted::CompareAndWrite(_, _, value), act) => {
                task.unsure.push(value);
                act.into_iter().for_each(|act| self.states.dropped(act));
            }
            (Wanted::Reserve(_), _) => {
                host.unknown += 1;
                host.task = None;
            }
            (Wanted::Report, act) => {
                act.into_iter().for_each(|act| self.states.dropped(act));
            }
            (Wanted::Read(_), _) => {}
        }
    }

    /// The present attempt was not executed, and will not be.
    fn attempt_refused(&mut self, number: usize) {
        let Some(task) = &mut self.hosts[number].task else { return };
        task.sent = None;
        let block = &mut self.blocks[task.wanted.place().index()];
        if let Wanted::Write(_, value) | Wanted::CompareAndWrite(_, _, value) = task.wanted {
            block.refused(value);
        }
        if let Some(act) = task.act.take() {
            self.states.dropped(act);
        }
    }

    fn another_path(&mut self, number: usize, delay: Time) {
        let host = &mut self.hosts[number];
        host.preferred = (host.preferred + 1) % host.paths.len();
        let delay = delay + self.chance.below(20 * MS);
        self.wait(number, delay);
    }

    /// A gateway says something.
    pub fn told(&mut self, number: usize, gateway: usize, id: u64, told: Told) {
        let host = &mut self.hosts[number];
        if host.paths[gateway].is_none_or(|(present, _)| present != id) {
            return;
        }
        let at_it = gateway == host.preferred && host.task.is_some();
        let sent = host.task.as_ref().and_then(|task| task.sent);
        let of_attempt = sent.is_some_and(|(_, over)| over == id);
        match told {
            Told::LoggedIn => {
                host.paths[gateway] = Some((id, true));
                if at_it && sent.is_none() {
                    self.attempt(number);
                }
            }
            Told::Ping(question) => self.say(number, gateway, id, Said::Pong(question)),
            Told::Aborted => {
                host.paths[gateway] = None;
                if of_attempt || at_it && sent.is_none() {
                    self.attempt_unknown(number);
                    self.another_path(number, 10 * MS);
                }
            }
            told if of_attempt => self.answered(number, told),
            _ => {}
        }
    }

    fn answered(&mut self, number: usize, told: Told) {
        let Some(task) = &self.hosts[number].task else { return };
        let (wanted, now, begun) = (task.wanted, self.now, task.sent.map_or(0, |sent| sent.0));
        let index = wanted.place().index();
        self.tell(|| format!("host {number}: {wanted:?} is answered {told:?}"));
        let Some(task) = &mut self.hosts[number].task else { return };
        match told {
            Told::Busy | Told::Standby => return self.try_again(number, told),
            Told::Conflict if !matches!(wanted, Wanted::Reserve(_)) => {
                self.attempt_refused(number);
                return self.task_ends(number);
            }
            Told::Miscompare(present) => {
                self.blocks[index].read(present, begun, now);
                let unsure = task.unsure.clone();
                self.hosts[number].last[index] = present;
                self.attempt_refused(number);
                unsure.into_iter().for_each(|value| self.blocks[index].over(value, now));
                return self.task_ends(number);
            }
            _ => {}
        }
        let (act, unsure) = (task.act.take(), std::mem::take(&mut task.unsure));
        match (wanted, told) {
            (Wanted::Read(_), Told::Good(value)) => {
                self.blocks[index].read(value, begun, now);
                self.hosts[number].last[index] = value;
            }
            (Wanted::Write(_, value) | Wanted::CompareAndWrite(_, _, value), Told::Good(_)) => {
                self.blocks[index].done(value, now);
                self.hosts[number].last[index] = value;
                unsure.into_iter().for_each(|value| self.blocks[index].over(value, now));
            }
            _ => {}
        }
        if !matches!(wanted, Wanted::Read(_) | Wanted::Report) && act.is_some() {
            // Nobody asks any more what has become of those before it.
            self.hosts[number].unknown = 0;
        }
        let outcome = match told {
            Told::Status(state) => Outcome::Status(state),
            Told::Conflict => Outcome::Conflict,
            _ => Outcome::Good,
        };
        if let Some(act) = act
            && !self.states.ends(act, outcome)
        {
            self.wrong(format!("host {number}: no state of the reservations can have answered {wanted:?} with {outcome:?}"));
        }
        self.task_ends(number);
    }

    /// It was not executed: the host tries again.
    fn try_again(&mut self, number: usize, told: Told) {
        self.attempt_refused(number);
        let Some(task) = &mut self.hosts[number].task else { return };
        task.tries += 1;
        let tries = task.tries;
        // Reservations are not worth waiting for.
        let given_up = matches!(task.wanted, Wanted::Reserve(_) | Wanted::Report) && tries > 20;
        if given_up {
            return self.task_ends(number);
        }
        if told == Told::Standby || tries % MOST_BUSY == 0 {
            let gateways = self.nodes.len() as u32;
            self.another_path(number, if tries % gateways == 0 { 200 * MS } else { 0 });
        } else {
            self.wait(number, 30 * MS);
        }
    }

    fn task_ends(&mut self, number: usize) {
        let Some(task) = self.hosts[number].task.take() else { return };
        self.operations += 1;
        let since = task.begun.max(self.healed);
        if self.now > since + PATIENCE {
            let took = (self.now - since) / MS;
            self.wrong(format!("host {number}: {:?} took {took} ms without a fault", task.wanted));
        }
        let think = match self.chance.below(40) {
            0 => self.chance.below(3 * SEC),
            1..8 => self.chance.below(200 * MS),
            _ => self.chance.below(5 * MS),
        };
        self.wait(number, think);
    }

    /// Hosts begin.
    pub fn hosts_begin(&mut self) {
        for number in 0..self.hosts.len() {
            let first = self.chance.below(SEC);
            self.wait(number, first);
        }
    }
}
