//! A planned move, seen from the owner that gives the group away: the steps as types, as in a takeover.
//!
//! A group gets other volumes, and more gateways, by a move of its owner to itself: nobody has a lock when the record changes, and
//! everybody opens what it names before the next epoch, and reports its ports by that.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::machine::{ANNOUNCE_LIMIT, Gateway, Purpose, Role};
use crate::{
    Action, Epoch, Gate, GatewayId, Message, Notice, Order, Record, Refusal, Reply, Response,
    Result, Volume,
};

/// For how long commands are refused while those under way end, at the most. Half of the two seconds that a move may take.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// For how long the release of the locks and the change of the record may take. Nobody can tell what became of them
/// then, so the gateway fences itself. Longer than [`HEARD`].
const HAND_OVER_LIMIT: Duration = Duration::from_secs(6);
/// librbd lets go of a lock when all watchers of the image have heard that this client has got it, and waits for each for 5 s.
/// A gateway that died stays a watcher for half a minute, until Ceph gives it up. Hosts need not wait with that: a move that is
/// ordered so soon behind a takeover begins later.
const HEARD: Duration = Duration::from_millis(5500);

/// When a group gets other volumes whose owner could not give its locks back, as commands do not end: hosts of its other images
/// are not to wait for those again and again.
const VOLUMES_AGAIN: Duration = Duration::from_secs(30);

/// What an owner knows of those who watch its images: they watch the record as well.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    /// From then on none of them holds the release of a lock up.
    heard: Duration,
    /// Where the group is to go then.
    to: Option<GatewayId>,
    /// Or what it is to have.
    wanted: Wanted,
    /// Other volumes could not be had, and are not before that.
    volumes_at: Duration,
}

impl Watchers {
    /// When the group may get what it is to have.
    fn wanted_at(&self) -> Duration {
        let volumes = self.wanted.volumes.as_ref().map(|_| self.volumes_at);
        self.heard.max(volumes.unwrap_or_default())
    }
}

/// What a group is to have that it has not.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// These volumes.
    volumes: Option<Vec<Volume>>,
    /// Gateways up to this number.
    gateways: Option<u16>,
}

impl Wanted {
    const fn is_something(&self) -> bool {
        self.volumes.is_some() || self.gateways.is_some()
    }

    /// Has a record have it.
    fn put_into(&self, record: &mut Record) {
        if let Some(volumes) = &self.volumes {
            record.contents = record.contents.with(volumes);
        }
        if let Some(count) = self.gateways {
            record.grow(count);
        }
    }
}

/// A move under way.
#[derive(Debug)]
pub(crate) struct Moving {
    pub to: GatewayId,
    /// What the group is to have from then on.
    wanted: Wanted,
    pub limit: Duration,
    pub step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// Commands under way end.
    Draining,
    /// The images are flushed.
    Flushing(Drained),
    /// The locks are released: there is no way back from here.
    Releasing(Flushed),
    /// The record is written.
    Swapping(Box<Record>),
}

/// No command is under way, and none begins.
#[derive(Debug)]
pub(crate) struct Drained(());

/// And all is stable.
#[derive(Debug)]
pub(crate) struct Flushed(());

/// And the locks are free.
struct Released(());

impl Released {
    /// The record without an owner.
    fn vacate(self, record: &Record, heir: GatewayId, wanted: &Wanted) -> Box<Record> {
        let mut record = record.clone();
        wanted.put_into(&mut record);
        record.epoch = record.epoch.next();
        record.revision += 1;
        (record.owner, record.heir) = (None, Some(heir));
        Box::new(record)
    }
}

/// The gateways that have answered without owning the group.
fn standbys(result: &Result) -> Vec<GatewayId> {
    let Ok(Reply::Acks { acks, .. }) = result else { return Vec::new() };
    let responses = acks.iter().flat_map(|ack| Response::decode(&ack.0));
    let standby = |response| match response {
        Response::NotOwner(_, gateway) => Some(gateway),
        _ => None,
    };
    responses.filter_map(standby).collect()
}

impl Gateway {
    /// This gateway has just got the locks, and tells so.
    pub(crate) fn announce_owner(&mut self, epoch: Epoch) {
        self.watchers = Watchers { heard: self.now + HEARD, ..Watchers::default() };
        let op = self.operation(Purpose::AnnounceOwner);
        self.notify(op, &Message::Changed(epoch), ANNOUNCE_LIMIT);
    }

    /// The owner asks who would take over.
    pub(crate) fn ask_for_standbys(&mut self) {
        let asked = |purpose: &Purpose| matches!(purpose, Purpose::Standbys);
        if !self.pending.values().any(asked) {
            let op = self.operation(Purpose::Standbys);
            self.notify(op, &Message::Ping(self.gate.epoch()), ANNOUNCE_LIMIT);
        }
    }

    /// The answers to that are there.
    pub(crate) fn standbys_asked(&mut self, result: &Result) {
        if self.role.owns() && matches!(result, Ok(Reply::Acks { .. })) {
            let mut present = standbys(result);
            present.sort_unstable();
            self.act(Action::Present(present));
        }
    }

    /// The answers to that are there: if all watchers have answered, none is dead. No two have one number.
    pub(crate) fn owner_announced(&mut self, result: &Result) {
        if matches!(result, Ok(Reply::Acks { all: true, .. })) {
            self.watchers.heard = self.now;
        }
        let mut others = standbys(result);
        others.sort_unstable();
        let twice = others.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]);
        let mine = others.iter().find(|other| **other == self.config.me);
        if let Some(GatewayId(number)) = twice.or(mine.copied()) {
            self.act(Action::Notice(Notice::SameNumber(number)));
        }
    }

    /// The gateway that the group is to go to is there, or it is not, and the group stays where it is.
    pub(crate) fn heir_asked(&mut self, to: GatewayId, result: &Result) {
        let Role::Owner(change) = &self.role else { return };
        if !standbys(result).contains(&to) {
            return self.act(Action::Refuse(Order::MoveTo(to), Refusal::Absent));
        }
        match change {
            None if self.now >= self.watchers.heard && !self.has_jobs() => {
                self.drain(to, Wanted::default());
            }
            // Behind the change or the job that is under way, or when no dead watcher holds it up.
            _ => self.watchers.to = Some(to),
        }
    }

    /// A move that had to wait begins.
    pub(crate) fn move_is_due(&mut self) {
        if !matches!(self.role, Role::Owner(_)) {
            self.watchers.to = None;
            self.give_up_wanted(Refusal::NotOwner);
        }
        let waits = self.now < self.watchers.heard || self.has_jobs();
        if !matches!(self.role, Role::Owner(None)) || waits {
            return;
        }
        if let Some(to) = self.watchers.to.take() {
            return self.begin_move(to);
        }
        if self.watchers.wanted.is_something() && self.now >= self.watchers.wanted_at() {
            let wanted = core::mem::take(&mut self.watchers.wanted);
            self.drain(self.config.me, wanted);
        }
    }

    /// What the group was to have is given up. Nobody has ordered other volumes: whoever wants them says so again.
    pub(crate) fn give_up_wanted(&mut self, why: Refusal) {
        if let Some(count) = core::mem::take(&mut self.watchers.wanted).gateways {
            self.act(Action::Refuse(Order::Gateways(count), why));
        }
    }

    /// When that may be.
    pub(crate) fn next_move(&self) -> Option<Duration> {
        let due = match (&self.watchers.to, self.watchers.wanted.is_something()) {
            (Some(_), _) => self.watchers.heard,
            (None, true) => self.watchers.wanted_at(),
            (None, false) => return None,
        };
        (due > self.now).then_some(due)
    }

    /// The group is to have these volumes.
    pub(crate) fn wants_volumes(&mut self, volumes: Vec<Volume>) {
        let Role::Owner(_) = self.role else { return };
        let Some(record) = self.record.as_deref() else { return };
        let next = record.contents.with(&volumes);
        let changes = next != record.contents && next.check().is_ok();
        self.watchers.wanted.volumes = changes.then_some(volumes);
    }

    /// The group is to have more gateways.
    pub(crate) fn order_gateways(&mut self, count: u16) {
        let refuse = |refusal| Action::Refuse(Order::Gateways(count), refusal);
        let (Role::Owner(_), Some(record)) = (&self.role, self.record.as_deref()) else {
            // It may be moving for another such order.
            let refusal = if self.role.owns() { Refusal::NotReady } else { Refusal::NotOwner };
            return self.act(refuse(refusal));
        };
        let mut next = record.clone();
        next.grow(count);
        if next.ports == record.ports || next.check().is_err() {
            return self.act(refuse(Refusal::NoMore));
        }
        // Of several orders the largest has the others' gateways too.
        let wanted = &mut self.watchers.wanted.gateways;
        *wanted = (*wanted).max(Some(count));
    }

    /// Why the owner does not give the group to that gateway now.
    pub(crate) fn refuses_move(&self, to: GatewayId) -> Option<Refusal> {
        let known = self.record.as_ref().is_some_and(|record| {
            let mut gateways = record.ports.iter().map(|port| port.gateway);
            gateways.any(|gateway| gateway == to)
        });
        match &self.role {
            _ if to == self.config.me => Some(Refusal::IsOwner),
            _ if !known => Some(Refusal::Unknown),
            _ if self.has_jobs() => Some(Refusal::JobUnderWay),
            Role::Owner(None) => None,
            _ => Some(Refusal::NotReady),
        }
    }

    /// True if the group is on its way to that gateway already, as far as is known here.
    pub(crate) fn goes_to(&self, to: GatewayId) -> bool {
        let heir = match &self.role {
            Role::Moving(moving) => Some(moving.to),
            Role::Owner(_) => self.watchers.to,
            Role::TakingOver(_) => Some(self.config.me),
            Role::Standby(_) | Role::Fenced => {
                let record = self.record.as_deref().filter(|record| record.owner.is_none());
                record.and_then(|record| record.heir)
            }
            Role::Orphaned => None,
        };
        let asked = |purpose: &Purpose| matches!(purpose, Purpose::Heir(heir) if *heir == to);
        heir == Some(to) || self.pending.values().any(asked)
    }

    /// The owner begins to give the group away.
    pub(crate) fn begin_move(&mut self, to: GatewayId) {
        if let Some(refusal) = self.refuses_move(to) {
            return self.act(Action::Refuse(Order::MoveTo(to), refusal));
        }
        let op = self.operation(Purpose::Heir(to));
        self.notify(op, &Message::Ping(self.gate.epoch()), ANNOUNCE_LIMIT);
    }

    /// What the owner says to a move that was ordered here, in that epoch. One that says nothing may have heard of it.
    pub(crate) fn move_asked(&mut self, to: GatewayId, asked: Epoch, result: &Result) {
        let Ok(Reply::Acks { acks, all }) = result else { return };
        let responses = acks.iter().flat_map(|ack| Response::decode(&ack.0));
        let mut owner = false;
        for response in responses {
            match response {
                Response::Refused(refusal) => {
                    return self.act(Action::Refuse(Order::MoveTo(to), refusal));
                }
                Response::Owner(epoch) if epoch == asked => owner = true,
                // It has become the owner since, and has done nothing of what was asked.
                Response::Owner(epoch) if epoch > asked => {
                    let op = self.operation(Purpose::MoveLate(to));
                    return self.act(Action::ReadRecord(op));
                }
                Response::Owner(_) => {
                    return self.act(Action::Refuse(Order::MoveTo(to), Refusal::NotReady));
                }
                Response::NotOwner(..) | Response::Job(_) => {}
            }
        }
        // Everybody has answered, and none of them owns it: it may have left for that gateway meanwhile.
        if *all && !owner && !self.goes_to(to) {
            self.act(Action::Refuse(Order::MoveTo(to), Refusal::NoOwner));
        }
    }

    /// A move is asked for again, of whoever owns the group by now.
    pub(crate) fn move_late(&mut self, to: GatewayId, result: Result) {
        let known = result.is_ok();
        self.read(result);
        if known {
            self.order_move(to);
        } else {
            self.act(Action::Refuse(Order::MoveTo(to), Refusal::NotReady));
        }
    }

    /// Commands under way end, and no other begins.
    fn drain(&mut self, to: GatewayId, wanted: Wanted) {
        self.set_gate(Gate::blocked(self.gate.epoch()));
        let op = self.operation(Purpose::Move);
        self.act(Action::Drain(op));
        let limit = self.now + DRAIN_LIMIT;
        self.role = Role::Moving(Moving { to, wanted, limit, step: Step::Draining });
    }

    /// A step of the move has ended.
    pub(crate) fn moved(&mut self, result: Result) {
        let Role::Moving(moving) = core::mem::replace(&mut self.role, Role::Owner(None)) else {
            return;
        };
        let Moving { to, wanted, limit, step } = moving;
        let (step, limit) = match (step, result) {
            (Step::Draining, Ok(_)) => {
                let op = self.operation(Purpose::Move);
                self.act(Action::Flush(op));
                (Step::Flushing(Drained(())), limit)
            }
            (Step::Flushing(Drained(())), Ok(_)) => {
                let op = self.operation(Purpose::Move);
                self.act(Action::Release(op));
                (Step::Releasing(Flushed(())), self.now + HAND_OVER_LIMIT)
            }
            (Step::Releasing(Flushed(())), Ok(_)) => {
                let Some(present) = self.record.as_deref() else { return self.fence() };
                let record = Released(()).vacate(present, to, &wanted);
                let expect = (present.epoch, present.revision);
                let op = self.operation(Purpose::Move);
                self.act(Action::Swap { op, expect, record: record.clone() });
                (Step::Swapping(record), limit)
            }
            (Step::Swapping(record), Ok(_)) => return self.left(record),
            // The volumes are the owner's still, and a failed flush is theirs to tell.
            (Step::Draining | Step::Flushing(_), Err(failure)) if !failure.deposes() => {
                return self.stay(to, wanted);
            }
            (_, Err(_)) => return self.fence(),
        };
        self.role = Role::Moving(Moving { to, wanted, limit, step });
    }

    /// The move's time is over.
    pub(crate) fn move_is_late(&mut self) {
        let Role::Moving(Moving { to, wanted, limit, step }) = &mut self.role else { return };
        if self.now < *limit {
            return;
        }
        match step {
            Step::Draining | Step::Flushing(_) => {
                let (to, wanted) = (*to, core::mem::take(wanted));
                self.stay(to, wanted);
            }
            Step::Releasing(_) | Step::Swapping(_) => self.fence(),
        }
    }

    /// The owner goes on.
    fn stay(&mut self, to: GatewayId, wanted: Wanted) {
        self.forget(|purpose| matches!(purpose, Purpose::Move));
        self.role = Role::Owner(None);
        self.set_gate(Gate::open(self.gate.epoch()));
        if to != self.config.me {
            return self.act(Action::Refuse(Order::MoveTo(to), Refusal::NotDrained));
        }
        if let Some(count) = wanted.gateways {
            self.act(Action::Refuse(Order::Gateways(count), Refusal::NotDrained));
        }
        if wanted.volumes.is_none() {
            return;
        }
        // Nobody has ordered other volumes: whoever wants them says so again.
        self.watchers.volumes_at = self.now + VOLUMES_AGAIN;
        self.act(Action::Notice(Notice::NotDrained { again: VOLUMES_AGAIN }));
    }

    /// The group has left.
    fn left(&mut self, record: Box<Record>) {
        self.become_standby();
        let epoch = record.epoch;
        self.adopt(record);
        self.announce(epoch);
    }
}
