//! Requests on reservations: the owner alone executes them, and the record has their effect before they are answered.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::machine::{Gateway, Purpose, Role};
use crate::{Action, Answer, Contents, Failure, NotifyId, Record, Request, Response, Result};

/// A request that the owner executes: one at a time.
#[derive(Debug)]
pub(crate) enum Change {
    /// On a copy.
    Executing(Request),
    /// The record is written.
    Writing(Request, Box<Record>, Vec<u8>),
    /// It takes effect, and commands that it aborts end.
    Applying(Request, Vec<u8>),
}

impl Change {
    pub const fn request(&self) -> Request {
        match self {
            Self::Executing(request) | Self::Writing(request, ..) | Self::Applying(request, ..) => {
                *request
            }
        }
    }
}

impl Gateway {
    /// A change of the record that an initiator wants, whose command the gate has let in.
    pub(crate) fn reserve(&mut self, id: u64, body: Vec<u8>) {
        match &self.role {
            Role::Owner(None) => self.execute(Request(id), body),
            _ => self.answer(id, Answer::Busy),
        }
    }

    fn execute(&mut self, request: Request, body: Vec<u8>) {
        self.role = Role::Owner(Some(Change::Executing(request)));
        self.act(Action::Execute(request, body));
    }

    /// A request was executed on a copy. The record is written even if nothing has changed: an owner that was deposed
    /// and does not know it must not tell of reservations.
    pub(crate) fn executed(&mut self, request: Request, contents: Contents, answer: Vec<u8>) {
        let Role::Owner(Some(Change::Executing(present))) = &self.role else { return };
        let Some(record) = self.record.as_deref() else { return };
        if *present != request {
            return;
        }
        let expect = (record.epoch, record.revision);
        let revision = record.revision + 1;
        let record = Record { revision, contents, ..record.clone() };
        if record.check().is_err() {
            self.role = Role::Owner(None);
            self.act(Action::Abandon(request));
            return self.answer(request.0, Answer::Busy);
        }
        let (op, record) = (self.operation(Purpose::Change), Box::new(record));
        self.act(Action::Swap { op, expect, record: record.clone() });
        self.role = Role::Owner(Some(Change::Writing(request, record, answer)));
    }

    /// The record was written, or not.
    pub(crate) fn written(&mut self, result: Result) {
        // Whether it was, nobody can tell of most failures; of the others it is certain that there is another owner.
        if result.is_err() {
            return self.fence();
        }
        match core::mem::replace(&mut self.role, Role::Owner(None)) {
            Role::Owner(Some(Change::Writing(request, record, answer))) => {
                self.record = Some(record);
                self.role = Role::Owner(Some(Change::Applying(request, answer)));
                self.act(Action::Apply(request));
            }
            other => self.role = other,
        }
    }

    /// A change has taken effect.
    pub(crate) fn applied(&mut self, request: Request) {
        match core::mem::replace(&mut self.role, Role::Owner(None)) {
            Role::Owner(Some(Change::Applying(present, answer))) if present == request => {
                self.answer(request.0, Answer::Body(answer));
                self.announce(self.gate.epoch());
            }
            other => self.role = other,
        }
    }

    /// PERSISTENT RESERVE IN of an initiator here: the record says it, not what was known of it before.
    pub(crate) fn report(&mut self, id: u64) {
        if self.client().is_some() {
            let op = self.operation(Purpose::Report(id));
            self.act(Action::ReadRecord(op));
        } else {
            self.answer(id, Answer::Busy);
        }
    }

    /// The record was read for a report.
    pub(crate) fn reported(&mut self, id: u64, result: Result) {
        if let Some(record) = self.read(result) {
            self.answer(id, Answer::Record(record));
        } else {
            self.answer(id, Answer::Busy);
        }
    }

    /// Answers requests whose operations are given up.
    pub(crate) fn give_up_requests(&mut self) {
        self.give_up_jobs();
        for (_, purpose) in core::mem::take(&mut self.pending) {
            if let Purpose::Report(id) = purpose {
                self.answer(id, Answer::Busy);
            }
        }
    }

    pub(crate) fn answer(&mut self, id: u64, answer: Answer) {
        self.act(Action::Answer(id, answer));
    }

    pub(crate) fn acknowledge(&mut self, notify: NotifyId, response: &Response) {
        self.act(Action::Acknowledge(notify, response.encode()));
    }

    /// What of a failed I/O follows for the group.
    pub(crate) fn io_failed(&mut self, failure: Failure) {
        if failure.deposes() && self.role.owns() {
            self.fence();
        }
    }
}
