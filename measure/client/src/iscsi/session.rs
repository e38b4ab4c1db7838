//! iSCSI as a front of the load loop.

use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use lunet_iscsi::initiator::{self, Event as Raw, Outcome, RxTarget, Tag, Transmit};
use lunet_iscsi::pdu::{AsyncEvent, BHS_LEN, LogoutReason, TaskAttribute};
use lunet_ring::Buf;

use super::ask::address;
use super::cdb;
use super::link::Link;
use super::{Failure, LogicalUnit, Login, Target, inspect};
use crate::front::{
    Action, Command, Connection, Cx, Data, Ending, Error, Event, Front, Geometry, Outgoing, Source,
};

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

    fn inspect(&self) -> Result<(LogicalUnit, Geometry), Error> {
        let unit = inspect(&self.target, &self.login)?;
        let LogicalUnit { blocks, block_size, max_transfer, read_only, .. } = unit;
        Ok((unit, Geometry { blocks, block_size, max_transfer, read_only }))
    }

    fn connect(&self, unit: &LogicalUnit) -> Result<(TcpStream, Session), Error> {
        let (name, lun) = (Some(unit.target.as_str()), address(unit.lun));
        let mut link = Link::open(&self.target, &self.login, name, MAX_TASKS, Instant::now())?;
        if let Some(failure) = link.wait_ready(lun)? {
            return Err(super::Error::Command { what: "TEST UNIT READY", failure }.into());
        }
        let (stream, protocol) = link.into_parts()?;
        Ok((stream, Session { protocol, lun, loan: None }))
    }
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

impl Connection for Session {
    type SubmitError = initiator::SubmitError;
    type Failure = Failure;
    type Raw = Raw<Buf, Source>;

    const COMMAND_LEN: usize = BHS_LEN;

    fn window(&self) -> u32 {
        if self.protocol.is_ready() { self.protocol.window() } else { 0 }
    }

    fn submit(
        &mut self,
        command: Command,
        out: &mut Outgoing,
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
        let sent = self.protocol.submit(command, out);
        sent.map(drop).map_err(|refused| refused.error)
    }

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

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        self.protocol.transport_closed(events);
    }

    fn has_data_digest(&self) -> bool {
        self.protocol.negotiated().data_digest
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

fn ending(outcome: &Outcome) -> Ending<Failure> {
    match (Failure::of(outcome), outcome) {
        (None, Outcome::Completed(done)) => Ending::Done(done.received),
        (None, _) => Ending::Done(0),
        (Some(failure), _) if failure.is_attention() => Ending::Again,
        (Some(failure), _) if failure.is_busy() => Ending::Busy,
        (Some(failure), _) => Ending::Failed(failure),
    }
}
