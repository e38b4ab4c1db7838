//! Requests on reservations: the owner alone executes them, and the record has their effect before they are answered.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::machine::{Gateway, Purpose, Role};
use crate::{
    Action, Answer, Contents, Epoch, Failure, Message, NotifyId, Record, Reply, Request, Response,
    Result,
};

/// For how long a forwarded request may take.
const FORWARD_LIMIT: Duration = Duration::from_secs(2);

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
    /// PERSISTENT RESERVE OUT of an initiator here.
    pub(crate) fn reserve(&mut self, id: u64, body: Vec<u8>) {
        let owner = self.record.as_ref().and_then(|record| record.owner.as_ref());
        let elsewhere = owner.is_some_and(|owner| owner.gateway != self.config.me);
        match &self.role {
            Role::Owner(None) => self.execute(Request::Local(id), body),
            Role::Standby(_) if elsewhere => {
                let message = Message::Forward(self.gate.epoch(), body).encode();
                let op = self.operation(Purpose::Forward(id));
                self.act(Action::Notify(op, message, FORWARD_LIMIT));
            }
            _ => self.answer(id, Answer::Busy),
        }
    }

    /// The answers to a forwarded request are there.
    pub(crate) fn forwarded(&mut self, id: u64, result: Result) {
        let Ok(Reply::Acks { acks, all }) = result else { return self.answer(id, Answer::Unknown) };
        let mut responses = acks.iter().flat_map(|ack| Response::decode(&ack.0));
        let said = responses.find_map(|response| match response {
            Response::Done(body) => Some(Answer::Body(body)),
            Response::Busy => Some(Answer::Busy),
            _ => None,
        });
        // If everybody has answered, nobody has executed it: the owner was not there to hear of it.
        let silence = if all { Answer::Busy } else { Answer::Unknown };
        self.answer(id, said.unwrap_or(silence));
    }

    /// Another gateway has forwarded a request.
    pub(crate) fn forward_came(&mut self, notify: NotifyId, epoch: Epoch, body: Vec<u8>) {
        if matches!(self.role, Role::Owner(None)) && epoch == self.gate.epoch() {
            self.execute(Request::Remote(notify), body);
        } else {
            self.acknowledge(notify, &Response::Busy);
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
            return self.settle(request, None);
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
                self.settle(request, Some(answer));
                self.announce(self.gate.epoch());
            }
            other => self.role = other,
        }
    }

    /// Answers a request where it came from; `None`: nothing was done.
    fn settle(&mut self, request: Request, answer: Option<Vec<u8>>) {
        match (request, answer) {
            (Request::Local(id), None) => self.answer(id, Answer::Busy),
            (Request::Local(id), Some(body)) => self.answer(id, Answer::Body(body)),
            (Request::Remote(notify), None) => self.acknowledge(notify, &Response::Busy),
            (Request::Remote(notify), Some(body)) => {
                self.acknowledge(notify, &Response::Done(body));
            }
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
        for (_, purpose) in core::mem::take(&mut self.pending) {
            match purpose {
                Purpose::Report(id) => self.answer(id, Answer::Busy),
                Purpose::Forward(id) => self.answer(id, Answer::Unknown),
                _ => {}
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
