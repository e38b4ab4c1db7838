//! The host's end of a connection, which is a queue.
//!
//! A [`Connection`] is fed with what arrives ([`Connection::rx_bytes`]) and with the time, writes
//! what is to be sent into a [`Transmit`] and reports [`Event`]s. It makes the queue by its
//! Connect, proves who the host is ([`Connection::authenticate`]), and sends commands; any damage ends the connection, and every command that is then
//! unanswered comes back without a completion. It insists on what a Linux host insists on.
//!
//! Buffers stay the caller's: `R` is what a read fills, straight from the socket (see
//! [`Connection::take_rx_target`]), and `W` is what a write sends, as often as it is asked for.
//!
//! A [`Session`] is a connection that is an admin queue: it enables the controller, asks what it
//! is, keeps it alive, and listens to its events. I/O queues are connections of their own, with the
//! controller's identifier in their Connect.
//!
//! Over RDMA ([`Connection::over_rdma`]) a receive is one [`Connection::rx_send`], and
//! [`Connection::submit_rdma`] takes the memory that the controller may read or write: the caller
//! registers it, and the data moves without this crate.

mod event;
mod prove;
mod rdma;
mod rx;
mod session;

pub use event::{Command, Cx, Data, Error, Event, Finished, Options, Refused, SubmitError, Tag};

pub use rdma::OWN_LEN;
pub use session::{ControllerInfo, Session, SessionCx, SessionError, SessionEvent};

use crate::command::{Completion, Sgl, Sqe};
use crate::pdu::{
    ADMIN_CAPSULE_DATA, CapsuleCmd, DGST_DATA, DGST_HEADER, Framing, IcReq, LAST_PDU, TermReq,
    Type, U16, U32,
};
use crate::rdma::Remote;
use crate::stream::Receiver;
use crate::transmit::{Payload, Transmit, put, put_bytes, put_payload};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use prove::Proof;
use rdma::put_capsule;
use rx::Incoming;
use slab::Slab;
use zerocopy::IntoBytes;

/// Most commands of a queue: the slot has 12 bits of the command identifier.
const MAX_SLOTS: usize = 1 << 12;

/// Where the connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not started.
    New,
    /// ICResp is to come.
    Initialize(Duration),
    /// The answer to the Connect is to come.
    Connect(Duration),
    /// The host proves itself.
    Authenticate(Duration),
    /// Commands may be sent.
    Ready,
    /// Over.
    Over,
}

/// A command under way.
#[derive(Debug)]
struct Task<R, W> {
    tag: Tag,
    token: u64,
    /// `None` for a moment while the caller receives into the buffer.
    data: Data<R, W>,
    /// Length of the data, in bytes.
    len: u32,
    reads: bool,
    /// Bytes received, or sent and asked for, from the first on.
    moved: u32,
}

/// The host's end of one connection.
#[derive(Debug)]
pub struct Connection<R, W> {
    options: Options,
    phase: Phase,
    inbound: Framing,
    outbound: Framing,
    /// MAXH2CDATA.
    max_h2c_data: u32,
    rx: Receiver,
    incoming: Incoming,
    tasks: Slab<Task<R, W>>,
    uses: u16,
    /// The submission queue's head, as the controller last said.
    sqhd: u16,
    /// What the host proves itself with, until it has.
    proof: Option<Box<Proof>>,
    /// Over RDMA: the memory for the data of the connection's own commands, [`OWN_LEN`] bytes.
    own: Option<Remote>,
}

impl<R: AsMut<[u8]>, W: Payload + Clone> Connection<R, W> {
    /// A connection that has sent nothing yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            phase: Phase::New,
            inbound: Framing::default(),
            outbound: Framing::default(),
            max_h2c_data: 0,
            rx: Receiver::new(),
            incoming: Incoming::Nothing,
            tasks: Slab::new(),
            uses: 0,
            sqhd: 0,
            proof: None,
            own: None,
            options,
        }
    }

    /// Sends the ICReq, or over RDMA the Connect. Call it once, when the transport is connected.
    pub fn start<T: Transmit<Payload = W>>(&mut self, now: Duration, tx: &mut T) {
        if self.phase != Phase::New {
            return;
        }
        if self.own.is_some() {
            return self.connect(now, tx);
        }
        let header = if self.options.header_digest { DGST_HEADER } else { 0 };
        let data = if self.options.data_digest { DGST_DATA } else { 0 };
        let request = IcReq {
            hpda: self.options.alignment,
            dgst: header | data,
            maxr2t: U32::new(self.options.max_r2t.saturating_sub(1)),
            ..IcReq::default()
        };
        put(Framing::default(), Type::IcReq, 0, request, tx);
        self.phase = Phase::Initialize(now.saturating_add(self.options.connect_timeout));
    }

    /// True while commands may be sent.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// True if the controller has answered the ICReq, even if the connection is over now: it speaks
    /// NVMe over TCP.
    #[must_use]
    pub fn was_initialized(&self) -> bool {
        self.max_h2c_data > 0
    }

    /// MAXH2CDATA: most data of a PDU that the controller takes, in bytes; 0 as long as it has not
    /// said so.
    #[must_use]
    pub fn max_h2c_data(&self) -> u32 {
        self.max_h2c_data
    }

    /// True when the connection is over: close the transport.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Commands that are not answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// Entries of the queue: commands that can be outstanding.
    #[must_use]
    pub fn entries(&self) -> usize {
        (usize::from(self.options.connect.sqsize) + 1).min(MAX_SLOTS)
    }

    /// The submission queue's head, as the last completion said; 0xffff without flow control.
    #[must_use]
    pub fn sqhd(&self) -> u16 {
        self.sqhd
    }

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Initialize(by) | Phase::Connect(by) | Phase::Authenticate(by) => Some(by),
            Phase::New | Phase::Ready | Phase::Over => None,
        }
    }

    /// Fails what took too long.
    pub fn handle_timeout(&mut self, now: Duration, events: &mut Vec<Event<R, W>>) {
        if self.poll_timeout().is_some_and(|by| now >= by) {
            self.end(Error::ConnectTimeout, events);
        }
    }

    /// The transport was closed or failed. All unanswered commands come back.
    pub fn transport_closed(&mut self, events: &mut Vec<Event<R, W>>) {
        self.end(Error::TransportClosed, events);
    }

    /// Sends a command. It ends with one [`Event::Finished`].
    ///
    /// # Errors
    /// It was not sent; its data is given back.
    pub fn submit<T: Transmit<Payload = W>>(
        &mut self,
        command: Command<R, W>,
        tx: &mut T,
    ) -> Result<Tag, Refused<R, W>> {
        self.submit_rdma(command, None, tx)
    }

    /// Sends a command whose data is in `memory`, which the RDMA device lets the controller reach
    /// from its first byte to its last: read it, for a write, or write it. A write that goes in its
    /// capsule needs none. The memory may be used again when the command ended.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_rdma<T: Transmit<Payload = W>>(
        &mut self,
        mut command: Command<R, W>,
        memory: Option<Remote>,
        tx: &mut T,
    ) -> Result<Tag, Refused<R, W>> {
        let len = match &mut command.data {
            Data::None => Some(0),
            Data::Read(buf) => u32::try_from(buf.as_mut().len()).ok().filter(|len| *len > 0),
            Data::Discard(len) | Data::Write(_, len) => Some(*len).filter(|len| *len > 0),
        };
        let error = match len {
            _ if self.phase != Phase::Ready => SubmitError::NotReady,
            _ if self.tasks.len() >= self.entries() => SubmitError::QueueFull,
            None => SubmitError::DataLength,
            Some(len) if self.own.is_some() => match self.place(&command.data, len, memory) {
                Ok(sgl) => return Ok(self.send_capsule(command, len, sgl, tx)),
                Err(error) => error,
            },
            Some(len) => return Ok(self.send(command, len, tx)),
        };
        Err(Refused { error, data: command.data })
    }

    /// Most data that goes in a capsule.
    fn capsule_data(&self) -> u32 {
        match self.options.connect.qid {
            0 => ADMIN_CAPSULE_DATA,
            _ => self.options.capsule_data,
        }
    }

    fn send<T: Transmit<Payload = W>>(
        &mut self,
        command: Command<R, W>,
        len: u32,
        tx: &mut T,
    ) -> Tag {
        let Command { token, mut sqe, data } = command;
        let inline = match &data {
            Data::Write(payload, len) if *len <= self.capsule_data() => Some(payload.clone()),
            _ => None,
        };
        sqe.sgl = if inline.is_some() { Sgl::in_capsule(len) } else { Sgl::transport(len) };
        let moved = if inline.is_some() { len } else { 0 };
        let reads = matches!(data, Data::Read(_) | Data::Discard(_));
        let tag = self.insert(Task { tag: Tag(0), token, data, len, reads, moved });
        sqe.cid = U16::new(tag.0);
        let mut capsule = CapsuleCmd::default();
        capsule.sqe.copy_from_slice(sqe.as_bytes());
        match inline {
            Some(payload) => {
                let part = (payload, 0..len as usize);
                put_payload(self.outbound, Type::CapsuleCmd, 0, capsule, part, tx);
            }
            None => put(self.outbound, Type::CapsuleCmd, 0, capsule, tx),
        }
        tag
    }

    /// Adds a command: a slot and a count of its uses, so that an identifier comes back late only.
    fn insert(&mut self, mut task: Task<R, W>) -> Tag {
        self.uses = self.uses.wrapping_add(1);
        let entry = self.tasks.vacant_entry();
        task.tag = Tag(self.uses << 12 | entry.key() as u16);
        let tag = task.tag;
        entry.insert(task);
        tag
    }

    /// Sends the Connect.
    fn connect<T: Transmit<Payload = W>>(&mut self, now: Duration, tx: &mut T) {
        let (mut sqe, data) = self.options.connect.encode();
        let tag = self.insert(Task {
            tag: Tag(0),
            token: 0,
            data: Data::None,
            len: 0,
            reads: false,
            moved: 0,
        });
        sqe.cid = U16::new(tag.0);
        self.put_own(sqe, data.as_bytes(), tx);
        self.phase = Phase::Connect(now.saturating_add(self.options.connect_timeout));
    }

    /// Sends a command of the connection's own, with small data.
    fn put_own<T: Transmit<Payload = W>>(&mut self, mut sqe: Sqe, data: &[u8], tx: &mut T) {
        let len = data.len() as u32;
        if let Some(own) = self.own {
            tx.keep(data);
            sqe.sgl = Sgl::keyed(own, len, false);
            return put_capsule(&sqe, tx);
        }
        sqe.sgl = Sgl::in_capsule(len);
        let mut capsule = CapsuleCmd::default();
        capsule.sqe.copy_from_slice(sqe.as_bytes());
        put_bytes(self.outbound, Type::CapsuleCmd, capsule, data, tx);
    }

    /// Sends data that an R2T asks for, in as many PDUs as MAXH2CDATA needs.
    fn send_data<T: Transmit<Payload = W>>(
        &mut self,
        tag: Tag,
        ttag: U16,
        (mut at, end): (u32, u32),
        tx: &mut T,
    ) {
        let Some(Task { data: Data::Write(payload, _), .. }) = self.task(tag.0) else { return };
        let payload = payload.clone();
        while at < end {
            let len = (end - at).min(self.max_h2c_data);
            let header = crate::pdu::Data {
                cccid: U16::new(tag.0),
                ttag,
                datao: U32::new(at),
                datal: U32::new(len),
                ..crate::pdu::Data::default()
            };
            let flags = if at + len == end { LAST_PDU } else { 0 };
            let part = (payload.clone(), at as usize..(at + len) as usize);
            put_payload(self.outbound, Type::H2cData, flags, header, part, tx);
            at += len;
        }
    }

    /// The command with this identifier.
    fn task(&mut self, cid: u16) -> Option<&mut Task<R, W>> {
        let slot = usize::from(cid) & (MAX_SLOTS - 1);
        self.tasks.get_mut(slot).filter(|task| task.tag.0 == cid)
    }

    /// Ends a command.
    fn finish(
        &mut self,
        cid: u16,
        completion: Completion,
        events: &mut Vec<Event<R, W>>,
    ) -> Result<(), Error> {
        self.task(cid).ok_or(Error::UnknownCommand(cid))?;
        let slot = usize::from(cid) & (MAX_SLOTS - 1);
        if let Some(mut task) = self.tasks.try_remove(slot) {
            if self.own.is_some() && completion.status.is_success() {
                // The controller has written all of it before it said so.
                task.moved = task.len;
            }
            events.push(task.finish(Some(completion)));
        }
        Ok(())
    }

    /// Ends the connection, and tells the controller why.
    fn fail<T: Transmit<Payload = W>>(&mut self, error: Error, cx: &mut Cx<'_, R, T>) {
        let tells = self.phase != Phase::Over && self.own.is_none();
        if let Some((fes, fei)) = error.fatal().filter(|_| tells) {
            let request =
                TermReq { fes: U16::new(fes.code()), fei: U32::new(fei), ..TermReq::default() };
            put_bytes(self.outbound, Type::H2cTermReq, request, self.rx.blamed(), cx.tx);
        }
        self.end(error, cx.events);
    }

    /// Ends the connection: every command comes back.
    fn end(&mut self, error: Error, events: &mut Vec<Event<R, W>>) {
        if self.phase == Phase::Over {
            return;
        }
        // The Connect and the authentication are no commands of the caller's.
        if !matches!(self.phase, Phase::Ready) {
            self.tasks.clear();
        }
        self.phase = Phase::Over;
        events.extend(self.tasks.drain().map(|task| task.finish(None)));
        events.push(Event::Failed(error));
    }
}

impl<R, W> Task<R, W> {
    fn finish(self, completion: Option<Completion>) -> Event<R, W> {
        let received = if self.reads { self.moved } else { 0 };
        Event::Finished(Finished {
            tag: self.tag,
            token: self.token,
            completion,
            received,
            data: self.data,
        })
    }
}
