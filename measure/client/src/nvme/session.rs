//! NVMe as a front of the load loop: each job has an I/O queue.

use std::net::TcpStream;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lunet_nvme::command::{Io, Range as Blocks};
use lunet_nvme::host::{self, Event as Raw, Finished, SubmitError};
use lunet_nvme::transmit::{RxTarget, Transmit};
use lunet_ring::Buf;

use super::keeper::Keeper;
use super::queue::Queue;
use super::{Admin, Failure, Login, Namespace, Target, admin, unit};
use crate::front::{
    Action, Command, Connection, Cx, Data, Ending, Error, Event, Front, Geometry, Outgoing, Source,
};

/// Queues that a controller is asked for; if jobs need more than it gives, there is another one.
const QUEUES: u16 = 64;

/// Entries of a queue, if the controller takes as many; the depth is the limit.
const ENTRIES: u16 = 1024;

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

    fn inspect(&self) -> Result<(Volume, Geometry), Error> {
        let nqn = unit::subsystem(&self.target, &self.login)?;
        let mut admin = Admin::open(&self.target, &self.login, &nqn, QUEUES)?;
        let namespace = unit::look(&mut admin, self.target.namespace())?;
        let geometry = Geometry {
            blocks: namespace.blocks,
            block_size: namespace.block_size,
            max_transfer: Some(namespace.max_transfer),
            read_only: namespace.read_only,
        };
        let controllers = Controllers { kept: vec![admin.keep()?], made: 0 };
        Ok((Volume { namespace, controllers: Mutex::new(controllers) }, geometry))
    }

    fn connect(&self, volume: &Volume) -> Result<(TcpStream, Session), Error> {
        let (target, login) = (&self.target, &self.login);
        let Namespace { subsystem: nqn, nsid, block_size, .. } = &volume.namespace;
        let wanted = {
            let mut controllers = volume.controllers.lock().unwrap_or_else(PoisonError::into_inner);
            let full = controllers.kept.last().map_or(0, |kept| kept.info().queues);
            if controllers.made >= full {
                let admin = Admin::open(target, login, nqn, QUEUES)?;
                controllers.kept.push(admin.keep()?);
                controllers.made = 0;
            }
            controllers.made += 1;
            let qid = controllers.made;
            let Some(kept) = controllers.kept.last() else { return Err(super::Error::NoQueues)? };
            admin::wanted(kept.info(), qid, ENTRIES)?
        };
        let queue = Queue::open(target, login, nqn, wanted, Instant::now())?;
        let (stream, protocol) = queue.into_parts()?;
        let session = Session {
            protocol,
            nsid: *nsid,
            block_size: *block_size,
            has_data_digest: target.data_digest,
        };
        Ok((stream, session))
    }
}

/// An I/O queue.
pub struct Session {
    protocol: host::Connection<Buf, Source>,
    nsid: u32,
    block_size: u32,
    has_data_digest: bool,
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

impl Connection for Session {
    type SubmitError = SubmitError;
    type Failure = Failure;
    type Raw = Raw<Buf, Source>;

    const COMMAND_LEN: usize = CAPSULE;

    fn window(&self) -> u32 {
        match self.protocol.is_ready() {
            true => (self.protocol.entries() - self.protocol.outstanding()) as u32,
            false => 0,
        }
    }

    fn submit(&mut self, command: Command, out: &mut Outgoing) -> Result<(), SubmitError> {
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
        let RxTarget { buf, range } = self.protocol.take_rx_target()?;
        Some((buf, range))
    }

    fn filled(&mut self, buf: Buf, range: Range<usize>, n: usize, cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_payload(RxTarget { buf, range }, n, &mut context(cx));
    }

    fn received(&mut self, bytes: &[u8], cx: &mut Cx<'_, Self::Raw>) {
        self.protocol.rx_bytes(bytes, &mut context(cx));
    }

    fn closed(&mut self, events: &mut Vec<Self::Raw>) {
        self.protocol.transport_closed(events);
    }

    fn has_data_digest(&self) -> bool {
        self.has_data_digest
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
