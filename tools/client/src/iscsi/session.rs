//! iSCSI as a front of the load loop.

use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use lunet_iscsi::initiator::{self, Event as Raw, Outcome, RxTarget, Tag, Transmit};
use lunet_iscsi::iser::Remote;
use lunet_iscsi::pdu::{AsyncEvent, BHS_LEN, LogoutReason, TaskAttribute};
use lunet_ring::Buf;

use super::ask::address;
use super::cdb;
use super::link::{Link, Wire};
use super::{Failure, LogicalUnit, Login, Target, inspect};
use crate::front::{
    Action, Command, Connection, Cx, Data, Ending, Error, Event, Front, Geometry,
    MessageConnection, Messages, Outgoing, Source, StreamConnection, Streams,
};
use crate::rdma::{Line, Memory, Posts};

/// Most requests that a session may have unanswered; the depth is the limit.
const MAX_TASKS: u16 = 0xFFF0;

/// An iSCSI initiator: the logical unit to make load on, and how to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initiator {
    /// Where the logical unit is.
    pub target: Target,
    /// How to log in.
    pub login: Login,
}

impl From<Target> for Initiator {
    /// Logs in with the default options.
    fn from(target: Target) -> Self {
        Self { target, login: Login::default() }
    }
}

impl Front for Initiator {
    type Volume = LogicalUnit;
    type Connection = Session;
    type Transport = Streams<Session>;

    fn inspect(&self) -> Result<(LogicalUnit, Geometry), Error> {
        let unit = inspect(&self.target, &self.login)?;
        let LogicalUnit { blocks, block_size, max_transfer, read_only, .. } = unit;
        Ok((unit, Geometry { blocks, block_size, max_transfer, read_only }))
    }

    fn connect(
        &self,
        unit: &LogicalUnit,
        _: &mut Streams<Session>,
    ) -> Result<(TcpStream, Session), Error> {
        let (name, lun) = (Some(unit.target.as_str()), address(unit.lun));
        let mut link = Link::open(&self.target, &self.login, name, MAX_TASKS, Instant::now())?;
        if let Some(failure) = link.wait_ready(lun)? {
            return Err(super::Error::Command { what: "TEST UNIT READY", failure }.into());
        }
        match link.into_parts()? {
            (Wire::Tcp(stream), protocol) => Ok((stream, Session { protocol, lun, loan: None })),
            (Wire::Rdma(_), _) => Err(Error::Plan("iser:// is for the front over RDMA".into())),
        }
    }
}

/// An iSER initiator: an [`Initiator`] whose target is reached over RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IserInitiator(pub Initiator);

impl Front for IserInitiator {
    type Volume = LogicalUnit;
    type Connection = IserSession;
    type Transport = Messages<IserSession>;

    fn inspect(&self) -> Result<(LogicalUnit, Geometry), Error> {
        self.0.inspect()
    }

    fn connect(
        &self,
        unit: &LogicalUnit,
        transport: &mut Messages<IserSession>,
    ) -> Result<(Line, IserSession), Error> {
        let Initiator { target, login } = &self.0;
        let (name, lun) = (Some(unit.target.as_str()), address(unit.lun));
        let port = transport.port();
        let depth = port.borrow().needs().depth;
        // A logout, and commands that are sent again.
        let tasks = u16::try_from(depth + 4).map_or(MAX_TASKS, |tasks| tasks.min(MAX_TASKS));
        let mut link = Link::open_at(Some(port), target, login, name, tasks, Instant::now())?;
        if let Some(failure) = link.wait_ready(lun)? {
            return Err(super::Error::Command { what: "TEST UNIT READY", failure }.into());
        }
        let (Wire::Rdma(mut line), protocol) = link.into_parts()? else {
            return Err(Error::Plan("iscsi:// is for the front over TCP".into()));
        };
        let Some(memory) = line.take_memory() else { return Err(super::Error::Answer("login"))? };
        Ok((*line, IserSession { session: Session { protocol, lun, loan: None }, memory }))
    }
}

/// A session over RDMA.
pub struct IserSession {
    session: Session,
    memory: Memory,
}

/// A session with one connection.
pub struct Session {
    protocol: initiator::Connection<Buf, Source>,
    /// The 8 bytes of the LUN field.
    lun: u64,
    /// The read whose buffer was taken to be filled.
    loan: Option<Tag>,
}

impl Transmit<Source> for Outgoing {
    fn bytes(&mut self, bytes: &[u8]) {
        Self::bytes(self, bytes);
    }

    fn data(&mut self, data: &Source, range: Range<usize>) {
        Self::data(self, data, range);
    }
}

type Context<'a> = initiator::Cx<'a, Buf, Source, Outgoing>;

fn context<'a>(cx: &'a mut Cx<'_, Raw<Buf, Source>>) -> Context<'a> {
    initiator::Cx { now: cx.now, tx: cx.out, events: cx.events }
}

impl Session {
    /// Sends a command, whose data is in this memory over RDMA.
    fn send<T: Transmit<Source>>(
        &mut self,
        command: Command,
        memory: Option<Remote>,
        out: &mut T,
    ) -> Result<(), initiator::SubmitError> {
        let Command { token, action, lba, blocks, data } = command;
        let cdb = match action {
            Action::Read => cdb::read(lba, blocks),
            Action::Write { fua } => cdb::write(lba, blocks, fua),
            Action::Flush => cdb::flush(0, 0),
        };
        let data = match data {
            Data::None => initiator::Data::None,
            Data::Write(source) => initiator::Data::Write(source),
            Data::Read(buf) => initiator::Data::Read(buf),
            Data::Discard(len) => initiator::Data::Discard(len),
        };
        let command = initiator::Command {
            token: token.into(),
            lun: self.lun,
            cdb: cdb.as_bytes(),
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        let sent = self.protocol.submit_rdma(command, memory, out);
        sent.map(drop).map_err(|refused| refused.error)
    }
}

impl Connection for Session {
    type SubmitError = initiator::SubmitError;
    type Failure = Failure;
    type Raw = Raw<Buf, Source>;

    type Out = Outgoing;

    fn window(&self) -> u32 {
        if self.protocol.is_ready() { self.protocol.window() } else { 0 }
    }

    fn submit(
        &mut self,
        command: Command,
        out: &mut Outgoing,
    ) -> Result<(), initiator::SubmitError> {
        self.send(command, None, out)
    }

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        self.protocol.transport_closed(events);
    }

    fn leave(&mut self, now: Duration, out: &mut Outgoing) -> bool {
        self.protocol.logout(LogoutReason::CloseSession, now, out).is_ok()
    }

    fn event(raw: Self::Raw) -> Option<Event<Failure>> {
        Some(match raw {
            Raw::Finished(finished) => Event::Ended {
                token: finished.token as u32,
                ending: ending(&finished.outcome),
                data: match finished.data {
                    initiator::Data::None => Data::None,
                    initiator::Data::Write(source) => Data::Write(source),
                    initiator::Data::Read(buf) => Data::Read(buf),
                    initiator::Data::Discard(len) => Data::Discard(len),
                },
            },
            Raw::LoggedOut { .. } => Event::Left,
            Raw::Failed(error) => Event::Failed(format!("the session failed: {error}")),
            Raw::Async(notice) if notice.event != Some(AsyncEvent::Scsi) => {
                Event::Stop("the target asked the session to end; is it being stopped?".into())
            }
            Raw::Rejected { reason, .. } => {
                Event::Stop(format!("the target rejected a PDU, reason {reason:#04x}"))
            }
            _ => return None,
        })
    }
}

impl StreamConnection for Session {
    const COMMAND_LEN: usize = BHS_LEN;

    fn discardable(&self) -> usize {
        self.protocol.discardable()
    }

    fn discarded(&mut self, n: usize, cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_discarded(n, &mut context(cx));
    }

    fn take_room(&mut self) -> Option<(Buf, Range<usize>)> {
        let RxTarget { buf, range, tag } = self.protocol.take_rx_target()?;
        self.loan = Some(tag);
        Some((buf, range))
    }

    fn filled(&mut self, buf: Buf, range: Range<usize>, n: usize, cx: &mut Cx<'_, Self::Raw>) {
        if let Some(tag) = self.loan.take() {
            self.protocol.rx_payload(RxTarget { buf, range, tag }, n, &mut context(cx));
        }
    }

    fn received(&mut self, bytes: &[u8], cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_bytes(bytes, &mut context(cx));
    }

    fn has_data_digest(&self) -> bool {
        self.protocol.negotiated().data_digest
    }
}

impl Transmit<Source> for Posts {
    fn bytes(&mut self, bytes: &[u8]) {
        Self::bytes(self, bytes);
    }

    fn data(&mut self, data: &Source, range: Range<usize>) {
        Self::data(self, data, range);
    }

    fn end_send(&mut self) {
        Self::end_send(self);
    }
}

impl Connection for IserSession {
    type SubmitError = initiator::SubmitError;
    type Failure = Failure;
    type Raw = Raw<Buf, Source>;
    type Out = Posts;

    fn window(&self) -> u32 {
        if self.memory.has_room() { self.session.window() } else { 0 }
    }

    fn submit(&mut self, command: Command, out: &mut Posts) -> Result<(), initiator::SubmitError> {
        let opened = self.memory.open(command.token, &command.data);
        let memory = opened.map(|place| Remote { stag: place.key, offset: place.address });
        self.session.send(command, memory, out)
    }

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        self.session.closed(events);
    }

    fn leave(&mut self, now: Duration, out: &mut Posts) -> bool {
        self.session.protocol.logout(LogoutReason::CloseSession, now, out).is_ok()
    }

    fn event(raw: Self::Raw) -> Option<Event<Failure>> {
        Session::event(raw)
    }
}

impl MessageConnection for IserSession {
    fn received(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
        cx: &mut Cx<'_, Self::Raw, Posts>,
    ) {
        let first = cx.events.len();
        let mut inner = initiator::Cx { now: cx.now, tx: &mut *cx.out, events: &mut *cx.events };
        self.session.protocol.rx_send(message, invalidated, &mut inner);
        for event in &mut cx.events[first..] {
            if let Raw::Finished(finished) = event {
                let token = finished.token as u32;
                match &mut finished.data {
                    initiator::Data::Read(buf) => self.memory.close(token, Some(buf)),
                    _ => self.memory.close(token, None),
                }
            }
        }
    }
}

fn ending(outcome: &Outcome) -> Ending<Failure> {
    match (Failure::of(outcome), outcome) {
        (None, Outcome::Completed(done)) => Ending::Done(done.received),
        (None, _) => Ending::Done(0),
        (Some(failure), _) if failure.is_attention() => Ending::Again,
        (Some(failure), _) if failure.is_busy() => Ending::Busy,
        (Some(failure), _) => Ending::Failed(failure),
    }
}
