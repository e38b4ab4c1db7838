//! The initiator's side of a connection (RFC 7143), as a state machine without I/O.
//!
//! A [`Connection`] is fed with what arrives ([`Connection::rx_bytes`]) and with the time, writes
//! what is to be sent into a [`Transmit`] and reports [`Event`]s. It serves one session with one
//! connection at error recovery level 0: any damage ends the connection, and every command that is
//! then unanswered comes back as [`Outcome::Lost`]. Bidirectional commands are not supported.
//!
//! Buffers stay the caller's: `R` is what a read fills, `W` is what a write sends. Data-In can be
//! received straight into `R` (see [`Connection::take_rx_target`]), or be thrown away without being
//! looked at (see [`Connection::discardable`]).
//!
//! Over RDMA (see [`iser`](crate::iser) and [`Options::rdma`]) a receive is one
//! [`Connection::rx_send`], and [`Connection::submit_rdma`] takes the memory that the target may
//! read or write: the caller registers it, and the data moves without this crate.

mod chap;
mod command;
mod control;
mod error;
mod event;
mod login;
mod negotiate;
mod options;
mod rdma;
mod response;
mod rx;
mod sequence;
mod task;
mod text;
mod tx;

pub use chap::{Chap, ChapError, Mutual};
pub use error::{Error, Refused, SubmitError};
pub use event::{
    AsyncNotice, Command, Completion, Data, DiscoveredTarget, Event, Finished, LoginInfo, Outcome,
    Residual,
};
pub use options::{DigestOffer, Negotiated, Options, RdmaOffer, Unsolicited};
pub use rx::RxTarget;
pub use task::Tag;
pub use tx::Transmit;

use crate::pdu::{LogoutReason, RESERVED_TAG};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use login::Login;
use sequence::Sequence;
use task::{Table, Task};
use text::TextExchange;
use tx::Framing;

/// What a call may write to and report to.
#[derive(Debug)]
pub struct Cx<'a, R, W, T> {
    /// The time, counted from any fixed moment.
    pub now: Duration,
    /// Takes the bytes to send, in wire order.
    pub tx: &'a mut T,
    /// Takes what happened.
    pub events: &'a mut Vec<Event<R, W>>,
}

/// Where the connection is in its life.
#[derive(Debug)]
enum Phase {
    /// Not started, or in the login phase.
    Login(Box<Login>),
    /// In the full feature phase.
    FullFeature,
    /// A Logout Request is on its way.
    LoggingOut { since: Duration },
    /// Over: logged out or failed.
    Over,
}

/// The initiator's end of one connection.
#[derive(Debug)]
pub struct Connection<R = Vec<u8>, W = Vec<u8>> {
    options: Options,
    phase: Phase,
    negotiated: Negotiated,
    framing: Framing,
    sequence: Sequence,
    tasks: Table<R, W>,
    text: Option<TextExchange>,
    rx: rx::Receiver,
    /// When the last bytes arrived.
    heard: Duration,
    /// The keep-alive ping that is not answered yet, and when it was sent.
    keep_alive: Option<(Tag, Duration)>,
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// A connection that has sent nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            phase: Phase::Login(Box::new(Login::new(&options))),
            negotiated: Negotiated::fallback(&options),
            framing: Framing::new(options.rdma.is_some()),
            sequence: Sequence::new(options.first_cmd_sn),
            tasks: Table::new(options.max_tasks),
            text: None,
            rx: rx::Receiver::default(),
            heard: Duration::ZERO,
            keep_alive: None,
            options,
        }
    }

    /// Sends the first Login Request. Call it once, when the transport is connected.
    pub fn start<T: Transmit<W>>(&mut self, now: Duration, tx: &mut T) {
        self.heard = now;
        if let Phase::Login(login) = &mut self.phase {
            login.start(now, &self.options, &self.sequence, tx);
        }
    }

    /// True in the full feature phase, until a logout begins: commands may be sent.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::FullFeature)
    }

    /// True when the connection logged out or failed: close the transport.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// What the login agreed on; before that, what holds if the target answers nothing.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// The options that the connection was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// How many non-immediate commands the target's window has room for.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.sequence.window()
    }

    /// Number of requests of any kind that wait for their answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// The transport was closed or failed. All unanswered commands come back as lost.
    pub fn transport_closed(&mut self, events: &mut Vec<Event<R, W>>) {
        self.fail(Error::TransportClosed, events);
    }

    /// The next moment at which [`handle_timeout`](Self::handle_timeout) has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Login(login) => login.started().map(|at| at + self.options.login_timeout),
            Phase::FullFeature => match (self.keep_alive, self.options.ping_interval) {
                (Some((_, sent)), _) => Some(sent + self.options.ping_timeout),
                (None, interval) => interval.map(|interval| self.heard + interval),
            },
            Phase::LoggingOut { since } => Some(*since + self.options.login_timeout),
            Phase::Over => None,
        }
    }

    /// Lets the time pass: sends the keep-alive ping, or fails what took too long.
    pub fn handle_timeout<T: Transmit<W>>(&mut self, cx: &mut Cx<'_, R, W, T>) {
        if self.poll_timeout().is_none_or(|deadline| cx.now < deadline) {
            return;
        }
        match (&self.phase, self.keep_alive) {
            (Phase::Login(_), _) => self.fail(Error::LoginTimeout, cx.events),
            (Phase::LoggingOut { .. }, _) => self.fail(Error::LogoutTimeout, cx.events),
            (Phase::FullFeature, Some(_)) => self.fail(Error::PingTimeout, cx.events),
            (Phase::FullFeature, None) => self.send_keep_alive(cx.now, cx.tx),
            (Phase::Over, _) => {}
        }
    }

    /// Ends the connection: every command comes back as lost.
    fn fail(&mut self, error: Error, events: &mut Vec<Event<R, W>>) {
        if self.is_over() {
            return;
        }
        self.end(events);
        events.push(Event::Failed(error));
    }

    /// Leaves the last phase and gives back what is unanswered.
    fn end(&mut self, events: &mut Vec<Event<R, W>>) {
        self.phase = Phase::Over;
        self.keep_alive = None;
        for (tag, task) in self.tasks.drain() {
            match task {
                Task::Command(task) => events.push(task.finish(tag, Outcome::Lost)),
                Task::Management { .. } => events.push(Event::Managed { tag, response: None }),
                Task::Ping { .. } | Task::Text | Task::Logout => {}
            }
        }
    }

    /// Asks the target to close the session (or only the connection, which is the same here).
    /// Unanswered commands come back as lost when the target has answered.
    pub fn logout<T: Transmit<W>>(
        &mut self,
        reason: LogoutReason,
        now: Duration,
        tx: &mut T,
    ) -> Result<Tag, SubmitError> {
        if !self.is_ready() {
            return Err(SubmitError::NotReady);
        }
        let tag = self.tasks.insert(Task::Logout);
        let pdu = crate::pdu::LogoutRequest {
            opcode: crate::pdu::Opcode::LogoutRequest.code() | crate::pdu::IMMEDIATE,
            flags: crate::pdu::FINAL | reason.code(),
            itt: tag.itt(),
            cid: self.options.cid.into(),
            cmd_sn: self.sequence.cmd_sn().into(),
            exp_stat_sn: self.sequence.exp_stat_sn().into(),
            ..Default::default()
        };
        self.framing.header_only(&pdu, tx);
        self.phase = Phase::LoggingOut { since: now };
        Ok(tag)
    }

    /// Requests are taken in the full feature phase only, and not without bound.
    fn check_ready(&self) -> Result<(), SubmitError> {
        match (self.is_ready(), self.tasks.is_full()) {
            (false, _) => Err(SubmitError::NotReady),
            (true, true) => Err(SubmitError::TooManyTasks),
            (true, false) => Ok(()),
        }
    }
}

/// True for the reserved tag, 'no task'.
fn reserved(tag: u32) -> bool {
    tag == RESERVED_TAG
}

#[cfg(test)]
mod tests;
