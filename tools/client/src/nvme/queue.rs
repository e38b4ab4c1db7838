//! An I/O queue that waits for each answer.

use std::time::{Duration, Instant};

use lunet_nvme::command::{Io, Range, Sqe};
use lunet_nvme::fabrics::Authentication;
use lunet_nvme::host::{Command, Connection, Cx, Data, Event};

use super::error::Parties;
use super::login::Wanted;
use super::wire::{Came, Carrier, Deadline, Plain, Wire};
use super::{Admin, Answer, Error, Failure, Login, Target};
use crate::front::Source;
use crate::rdma::{Message, Shared};

/// Commands of a queue for questions.
const ENTRIES: u16 = 4;

/// An I/O queue, connected. `R` is what its reads fill.
pub struct Queue<R = Vec<u8>> {
    wire: Wire,
    proto: Connection<R, Source>,
    events: Vec<Event<R, Source>>,
}

impl<R: AsMut<[u8]>> Queue<R> {
    /// Connects, and proves who the host is where that is asked for.
    pub(super) fn open(
        target: &Target,
        login: &Login,
        nqn: &str,
        wanted: Wanted,
        start: Instant,
    ) -> Result<Self, Error> {
        Self::open_at(None, target, login, nqn, wanted, start)
    }

    /// The same, over RDMA on this port.
    pub(super) fn open_at(
        port: Option<&Shared>,
        target: &Target,
        login: &Login,
        nqn: &str,
        wanted: Wanted,
        start: Instant,
    ) -> Result<Self, Error> {
        let parties = Parties { host: &login.host_nqn, subsystem: nqn, greeted: true };
        let options = login.options(target, nqn, wanted);
        let wire = Wire::connect(port, target, &parties, &options, start)?;
        let mut out = Plain::default();
        let mut proto = match wire.own(&mut out) {
            Some(own) => Connection::over_rdma(options, own),
            None => Connection::new(options),
        };
        if let Some(initiator) = login.initiator(target, nqn)? {
            proto.authenticate(initiator);
        }
        proto.start(wire.now(), &mut out);
        let mut queue = Self { wire, proto, events: Vec::new() };
        let mut deadline = queue.wire.deadline();
        loop {
            // The computation is no silence of the controller's.
            if queue.exchange(&mut out, deadline)? {
                deadline = queue.wire.deadline();
            }
            for event in std::mem::take(&mut queue.events) {
                match event {
                    Event::Connected(connected)
                        if connected.authentication != Authentication::None =>
                    {
                        return Err(Error::Authentication(login.host_nqn.clone()));
                    }
                    Event::Connected(_) => return Ok(queue),
                    Event::Failed(error) => {
                        // Why it is given up; whether that arrives does not matter.
                        let _ = queue.wire.send(&mut out);
                        return Err(parties.connection(error));
                    }
                    Event::Finished(_) => {}
                }
            }
        }
    }

    /// Sends what is to be sent, and waits for something to come. True if something was computed.
    fn exchange(&mut self, out: &mut Plain<Source>, deadline: Deadline) -> Result<bool, Error> {
        self.wire.send(out)?;
        let Some((now, came)) = self.wire.receive(deadline, None)? else { return Ok(false) };
        let mut cx = Cx { now, tx: out, events: &mut self.events };
        match came {
            Came::End => {
                self.proto.transport_closed(&mut self.events);
                return Ok(false);
            }
            Came::Bytes(bytes) => self.proto.rx_bytes(bytes, &mut cx),
            Came::Message(Message { buf, len, invalidated }) => {
                self.proto.rx_send(&buf[..len], invalidated, &mut cx);
                self.wire.repost(buf);
            }
        }
        let Some(job) = self.proto.take_job() else { return Ok(false) };
        self.proto.computed(job.compute(), &mut cx);
        // What the controller waits for.
        self.wire.send(out)?;
        Ok(true)
    }

    /// Sends a command, and waits for its end.
    fn execute(
        &mut self,
        sqe: Sqe,
        (data, len): (Data<R, Source>, usize),
    ) -> Result<Ended<R>, Error> {
        let mut out = Plain::default();
        let sent = Instant::now();
        let command = Command { token: 0, sqe, data };
        let memory = self.wire.room(len)?;
        let tag = self.proto.submit_rdma(command, memory, &mut out);
        let tag = tag.map_err(|refused| refused.error)?;
        let deadline = self.wire.deadline();
        loop {
            self.exchange(&mut out, deadline)?;
            for event in std::mem::take(&mut self.events) {
                match event {
                    Event::Finished(finished) if finished.tag == tag => {
                        let took = sent.elapsed();
                        let failure = Failure::of(finished.completion);
                        let received = finished.received as usize;
                        return Ok(Ended { failure, data: finished.data, received, took });
                    }
                    Event::Failed(error) => return Err(Error::Protocol(error)),
                    _ => {}
                }
            }
        }
    }

    /// What it is on, without time limits, and the protocol: for the event loop.
    pub(super) fn into_parts(self) -> Result<(Carrier, Connection<R, Source>), Error> {
        Ok((self.wire.into_carrier()?, self.proto))
    }

    /// Answers are waited for no longer than until then.
    pub fn end_by(&mut self, end: Instant) {
        self.wire.end = Some(end);
    }
}

/// The end of a command.
struct Ended<R> {
    failure: Option<Failure>,
    data: Data<R, Source>,
    received: usize,
    took: Duration,
}

impl Queue {
    /// The first I/O queue of a controller.
    ///
    /// # Errors
    /// The controller gives none, or the connection failed.
    pub fn of(admin: &Admin, target: &Target, login: &Login) -> Result<Self, Error> {
        let wanted = admin.wanted(1, ENTRIES)?;
        Self::open(target, login, admin.nqn(), wanted, Instant::now())
    }

    /// Sends a command that reads `len` bytes.
    ///
    /// # Errors
    /// The connection has ended; a status is an [`Answer`].
    pub fn ask(&mut self, io: &Io, nsid: u32, len: usize) -> Result<Answer, Error> {
        let data = if len > 0 { Data::Read(vec![0; len]) } else { Data::None };
        let ended = self.execute(io.encode(nsid), (data, len))?;
        let data = match ended.data {
            Data::Read(mut bytes) if ended.failure.is_none() => {
                self.wire.answer(&mut bytes);
                bytes
            }
            _ => Vec::new(),
        };
        let short = ended.failure.is_none() && ended.received != len;
        let failure = if short { Some(Failure::Short) } else { ended.failure };
        Ok(Answer { failure, data, result: 0, took: ended.took })
    }

    /// Reads blocks of `block` bytes.
    ///
    /// # Errors
    /// The connection has ended; a status is an [`Answer`].
    pub fn read(&mut self, nsid: u32, range: Range, block: u32) -> Result<Answer, Error> {
        let len = range.blocks as usize * block as usize;
        self.ask(&Io::Read { range, fua: false }, nsid, len)
    }
}
