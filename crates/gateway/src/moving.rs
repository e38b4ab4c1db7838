//! A planned move, seen from the owner that gives the group away: the steps as types, as in a takeover.

use alloc::boxed::Box;
use core::time::Duration;

use crate::machine::{Gateway, Purpose, Role};
use crate::{Action, Gate, GatewayId, Order, Record, Refusal, Result};

/// For how long commands are refused while those under way end, at the most. Half of the two seconds that a move may take.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// For how long the release of the locks and the change of the record may take. Nobody can tell what became of them
/// then, so the gateway fences itself.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(4);

/// A move under way.
#[derive(Debug)]
pub(crate) struct Moving {
    pub to: GatewayId,
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
    fn vacate(self, record: &Record, heir: GatewayId) -> Box<Record> {
        let mut record = record.clone();
        record.epoch = record.epoch.next();
        record.revision += 1;
        (record.owner, record.heir) = (None, Some(heir));
        Box::new(record)
    }
}

impl Gateway {
    /// The owner begins to give the group away.
    pub(crate) fn begin_move(&mut self, to: GatewayId) {
        let order = Order::MoveTo(to);
        let known = self.record.as_ref().is_some_and(|record| {
            let mut gateways = record.ports.iter().map(|port| port.gateway);
            gateways.any(|gateway| gateway == to)
        });
        match &self.role {
            _ if to == self.config.me => return self.act(Action::Refuse(order, Refusal::IsOwner)),
            _ if !known => return self.act(Action::Refuse(order, Refusal::Unknown)),
            Role::Owner(None) => {}
            _ => return self.act(Action::Refuse(order, Refusal::NotReady)),
        }
        self.set_gate(Gate::blocked(self.gate.epoch()));
        let op = self.operation(Purpose::Move);
        self.act(Action::Drain(op));
        let limit = self.now + DRAIN_LIMIT;
        self.role = Role::Moving(Moving { to, limit, step: Step::Draining });
    }

    /// A step of the move has ended.
    pub(crate) fn moved(&mut self, result: Result) {
        let Role::Moving(moving) = core::mem::replace(&mut self.role, Role::Owner(None)) else {
            return;
        };
        let Moving { to, limit, step } = moving;
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
                let record = Released(()).vacate(present, to);
                let expect = (present.epoch, present.revision);
                let op = self.operation(Purpose::Move);
                self.act(Action::Swap { op, expect, record: record.clone() });
                (Step::Swapping(record), limit)
            }
            (Step::Swapping(record), Ok(_)) => return self.left(record),
            // The volumes are the owner's still, and a failed flush is theirs to tell.
            (Step::Draining | Step::Flushing(_), Err(failure)) if !failure.deposes() => {
                return self.stay(to);
            }
            (_, Err(_)) => return self.fence(),
        };
        self.role = Role::Moving(Moving { to, limit, step });
    }

    /// The move's time is over.
    pub(crate) fn move_is_late(&mut self) {
        let Role::Moving(Moving { to, limit, step }) = &self.role else { return };
        if self.now < *limit {
            return;
        }
        match step {
            Step::Draining | Step::Flushing(_) => self.stay(*to),
            Step::Releasing(_) | Step::Swapping(_) => self.fence(),
        }
    }

    /// The owner goes on.
    fn stay(&mut self, to: GatewayId) {
        self.forget(|purpose| matches!(purpose, Purpose::Move));
        self.role = Role::Owner(None);
        self.set_gate(Gate::open(self.gate.epoch()));
        self.act(Action::Refuse(Order::MoveTo(to), Refusal::NotDrained));
    }

    /// The group has left.
    fn left(&mut self, record: Box<Record>) {
        self.become_standby();
        let epoch = record.epoch;
        self.adopt(record);
        self.announce(epoch);
    }
}
