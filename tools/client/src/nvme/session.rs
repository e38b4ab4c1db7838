//! NVMe as a front of the load loop: each job has an I/O queue.

use std::net::TcpStream;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lunet_nvme::command::{Io, Range as Blocks};
use lunet_nvme::host::{self, Event as Raw, Finished, SubmitError};
use lunet_nvme::rdma::Remote;
use lunet_nvme::transmit::{RxTarget, Transmit};
use lunet_ring::Buf;

use super::keeper::Keeper;
use super::login::Wanted;
use super::queue::Queue;
use super::wire::{Carrier, remote};
use super::{Admin, Failure, Login, Namespace, Target, admin, unit};
use crate::front::{
    Action, Command, Connection, Cx, Data, Ending, Error, Event, Front, Geometry,
    MessageConnection, Messages, Outgoing, Source, StreamConnection, Streams,
};
use crate::rdma::{Line, Memory, Posts};

/// Entries of a queue, if the controller takes as many; the depth is the limit.
const ENTRIES: u16 = 1024;

/// The same over RDMA: what Linux asks for, which every controller takes.
const RDMA_ENTRIES: u16 = 128;

/// Bytes of a command without its data: the header of a capsule and the entry.
const CAPSULE: usize = 72;

/// A host: the namespace to make load on, and how to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Where the namespace is.
    pub target: Target,
    /// How to connect.
    pub login: Login,
}

impl From<Target> for Host {
    /// Connects with the default options.
    fn from(target: Target) -> Self {
        Self { target, login: Login::default() }
    }
}

/// A namespace, with the controllers that the jobs reach it by.
pub struct Volume {
    namespace: Namespace,
    controllers: Mutex<Controllers>,
}

/// The controllers of a run.
struct Controllers {
    /// Those whose queues are all made, and the one that gives the next.
    kept: Vec<Keeper>,
    /// I/O queues of the last one.
    made: u16,
}

impl Front for Host {
    type Volume = Volume;
    type Connection = Session;
    type Transport = Streams<Session>;

    fn inspect(&self) -> Result<(Volume, Geometry), Error> {
        let nqn = unit::subsystem(&self.target, &self.login)?;
        let nsid = self.target.namespace();
        let look = move |admin: &mut Admin| unit::look(admin, nsid);
        let (kept, namespace) = Keeper::open(&self.target, &self.login, &nqn, look)?;
        let geometry = Geometry {
            blocks: namespace.blocks,
            block_size: namespace.block_size,
            max_transfer: Some(namespace.max_transfer),
            read_only: namespace.read_only,
        };
        let controllers = Controllers { kept: vec![kept], made: 0 };
        Ok((Volume { namespace, controllers: Mutex::new(controllers) }, geometry))
    }

    fn connect(
        &self,
        volume: &Volume,
        _: &mut Streams<Session>,
    ) -> Result<(TcpStream, Session), Error> {
        let wanted = volume.next_queue(self, ENTRIES)?;
        let nqn = &volume.namespace.subsystem;
        let queue = Queue::open(&self.target, &self.login, nqn, wanted, Instant::now())?;
        match queue.into_parts()? {
            (Carrier::Tcp(stream), protocol) => Ok((stream, volume.session(self, protocol))),
            (Carrier::Rdma(_), _) => {
                Err(Error::Plan("nvme-rdma:// is for the front over RDMA".into()))
            }
        }
    }
}

impl Volume {
    /// The next I/O queue, of the controller that has one.
    fn next_queue(&self, host: &Host, entries: u16) -> Result<Wanted, super::Error> {
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        let full = controllers.kept.last().map_or(0, |kept| kept.info().queues);
        if controllers.made >= full {
            let (target, login) = (&host.target, &host.login);
            let (kept, ()) = Keeper::open(target, login, &self.namespace.subsystem, |_| Ok(()))?;
            controllers.kept.push(kept);
            controllers.made = 0;
        }
        controllers.made += 1;
        let qid = controllers.made;
        let kept = controllers.kept.last().ok_or(super::Error::NoQueues)?;
        admin::wanted(kept.info(), qid, entries)
    }

    fn session(&self, host: &Host, protocol: host::Connection<Buf, Source>) -> Session {
        let Namespace { nsid, block_size, .. } = self.namespace;
        let has_data_digest = host.target.data_digest;
        Session {
            protocol,
            nsid,
            block_size,
            has_data_digest,
            is_tls: host.target.tls_key.is_some(),
        }
    }
}

/// A host over RDMA: a [`Host`] whose target is reached so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaHost(pub Host);

impl Front for RdmaHost {
    type Volume = Volume;
    type Connection = RdmaSession;
    type Transport = Messages<RdmaSession>;

    fn inspect(&self) -> Result<(Volume, Geometry), Error> {
        self.0.inspect()
    }

    fn connect(
        &self,
        volume: &Volume,
        transport: &mut Messages<RdmaSession>,
    ) -> Result<(Line, RdmaSession), Error> {
        let Host { target, login } = &self.0;
        let port = transport.port();
        let depth = u16::try_from(port.borrow().needs().depth).unwrap_or(u16::MAX);
        let wanted = volume.next_queue(&self.0, depth.min(RDMA_ENTRIES))?;
        let nqn = &volume.namespace.subsystem;
        let queue = Queue::open_at(Some(port), target, login, nqn, wanted, Instant::now())?;
        let (Carrier::Rdma(mut line), protocol) = queue.into_parts()? else {
            return Err(Error::Plan("nvme-tcp:// is for the front over TCP".into()));
        };
        let memory = line.take_memory().ok_or(super::Error::Answer("Connect"))?;
        Ok((*line, RdmaSession { session: volume.session(&self.0, protocol), memory }))
    }
}

/// An I/O queue over RDMA.
pub struct RdmaSession {
    session: Session,
    memory: Memory,
}

/// An I/O queue.
pub struct Session {
    protocol: host::Connection<Buf, Source>,
    nsid: u32,
    block_size: u32,
    has_data_digest: bool,
    /// What comes is records, which the kernel has to open: it cannot pass over what is in them.
    is_tls: bool,
}

impl Transmit for Outgoing {
    type Payload = Source;

    fn bytes(&mut self, bytes: &[u8]) {
        Self::bytes(self, bytes);
    }

    fn payload(&mut self, payload: Source, range: Range<usize>) {
        Self::data(self, &payload, range);
    }
}

type Context<'a> = host::Cx<'a, Buf, Outgoing>;

fn context<'a>(cx: &'a mut Cx<'_, Raw<Buf, Source>>) -> Context<'a> {
    host::Cx { now: cx.now, tx: cx.out, events: cx.events }
}

impl Session {
    /// Sends a command, whose data is in this memory over RDMA.
    fn send<T: Transmit<Payload = Source>>(
        &mut self,
        command: Command,
        memory: Option<Remote>,
        out: &mut T,
    ) -> Result<(), SubmitError> {
        let Command { token, action, lba, blocks, data } = command;
        let range = Blocks { lba, blocks };
        let io = match action {
            Action::Read => Io::Read { range, fua: false },
            Action::Write { fua } => Io::Write { range, fua },
            Action::Flush => Io::Flush,
        };
        let data = match data {
            Data::None => host::Data::None,
            Data::Write(source) => host::Data::Write(source, blocks * self.block_size),
            Data::Read(buf) => host::Data::Read(buf),
            Data::Discard(len) => host::Data::Discard(len),
        };
        let command = host::Command { token: token.into(), sqe: io.encode(self.nsid), data };
        let sent = self.protocol.submit_rdma(command, memory, out);
        sent.map(drop).map_err(|refused| refused.error)
    }
}

impl Connection for Session {
    type SubmitError = SubmitError;
    type Failure = Failure;
    type Raw = Raw<Buf, Source>;

    type Out = Outgoing;

    fn window(&self) -> u32 {
        match self.protocol.is_ready() {
            true => (self.protocol.entries() - self.protocol.outstanding()) as u32,
            false => 0,
        }
    }

    fn submit(&mut self, command: Command, out: &mut Outgoing) -> Result<(), SubmitError> {
        self.send(command, None, out)
    }

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        self.protocol.transport_closed(events);
    }

    /// A queue ends with its connection.
    fn leave(&mut self, _: Duration, _: &mut Outgoing) -> bool {
        false
    }

    fn event(raw: Self::Raw) -> Option<Event<Failure>> {
        Some(match raw {
            Raw::Finished(finished) => ended(finished),
            Raw::Failed(error) => Event::Failed(format!("the queue failed: {error}")),
            Raw::Connected(_) => return None,
        })
    }
}

impl StreamConnection for Session {
    const COMMAND_LEN: usize = CAPSULE;

    fn discardable(&self) -> usize {
        if self.is_tls { 0 } else { self.protocol.discardable() }
    }

    fn discarded(&mut self, n: usize, cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_discarded(n, &mut context(cx));
    }

    fn take_room(&mut self) -> Option<(Buf, Range<usize>)> {
        let RxTarget { buf, range } = self.protocol.take_rx_target()?;
        Some((buf, range))
    }

    fn filled(&mut self, buf: Buf, range: Range<usize>, n: usize, cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_payload(RxTarget { buf, range }, n, &mut context(cx));
    }

    fn received(&mut self, bytes: &[u8], cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_bytes(bytes, &mut context(cx));
    }

    fn has_data_digest(&self) -> bool {
        // Records are to be opened as data with a digest is to be looked at.
        self.has_data_digest || self.is_tls
    }
}

impl Transmit for Posts {
    type Payload = Source;

    fn bytes(&mut self, bytes: &[u8]) {
        Self::bytes(self, bytes);
    }

    fn payload(&mut self, payload: Source, range: Range<usize>) {
        Self::data(self, &payload, range);
    }

    fn end_send(&mut self, _: Option<u32>) {
        Self::end_send(self);
    }
}

impl Connection for RdmaSession {
    type SubmitError = SubmitError;
    type Failure = Failure;
    type Raw = Raw<Buf, Source>;
    type Out = Posts;

    fn window(&self) -> u32 {
        if self.memory.has_room() { self.session.window() } else { 0 }
    }

    fn submit(&mut self, command: Command, out: &mut Posts) -> Result<(), SubmitError> {
        let carried = match &command.data {
            Data::Write(source) => self.session.protocol.fits_capsule(source.len as u32),
            _ => false,
        };
        let opened = match carried {
            true => None,
            false => self.memory.open(command.token, &command.data),
        };
        self.session.send(command, opened.map(remote), out)
    }

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        self.session.closed(events);
    }

    /// A queue ends with its connection.
    fn leave(&mut self, _: Duration, _: &mut Posts) -> bool {
        false
    }

    fn event(raw: Self::Raw) -> Option<Event<Failure>> {
        Session::event(raw)
    }
}

impl MessageConnection for RdmaSession {
    fn received(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
        cx: &mut Cx<'_, Self::Raw, Posts>,
    ) {
        let first = cx.events.len();
        let mut inner = host::Cx { now: cx.now, tx: &mut *cx.out, events: &mut *cx.events };
        self.session.protocol.rx_send(message, invalidated, &mut inner);
        for event in &mut cx.events[first..] {
            if let Raw::Finished(finished) = event {
                let token = finished.token as u32;
                match &mut finished.data {
                    host::Data::Read(buf) => self.memory.close(token, Some(buf)),
                    _ => self.memory.close(token, None),
                }
            }
        }
    }
}

fn ended(finished: Finished<Buf, Source>) -> Event<Failure> {
    let Finished { token, completion, received, data, .. } = finished;
    let expected = match &data {
        host::Data::Read(buf) => buf.len() as u32,
        host::Data::Discard(len) => *len,
        _ => 0,
    };
    let ending = match Failure::of(completion) {
        None if received != expected => Ending::Failed(Failure::Short),
        None => Ending::Done(received),
        Some(failure) if failure.is_transient() => Ending::Again,
        Some(failure) if failure.is_busy() => Ending::Busy,
        Some(failure) => Ending::Failed(failure),
    };
    let data = match data {
        host::Data::None => Data::None,
        host::Data::Write(source, _) => Data::Write(source),
        host::Data::Read(buf) => Data::Read(buf),
        host::Data::Discard(len) => Data::Discard(len),
    };
    Event::Ended { token: token as u32, data, ending }
}
