//! What a protocol gives to the load loop: a way to open connections to a volume, and connections
//! that take commands.
//!
//! The loop owns the socket or the RDMA connection, and the buffers. A [`Connection`] is a state
//! machine without I/O: what arrives and commands in, what is sent and events out. On a stream it is a
//! [`StreamConnection`], over RDMA a [`MessageConnection`]. The loop is compiled once for each
//! protocol, so that a call costs no indirection, and nothing here may allocate for an operation.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use lunet_ring::{Buf, Payload, TxChain};

use crate::rdma::Posts;
use crate::{iscsi, nvme};

pub use crate::run::{Messages, Streams, Transport};

/// A protocol, with the volume to make load on and how to reach it.
pub trait Front: Sync {
    /// What [`inspect`](Self::inspect) found out, for the connections of the load.
    type Volume: Sync;
    /// A connection.
    type Connection: Connection;
    /// What moves what its connections send and receive, on one thread.
    type Transport: Transport<Connection = Self::Connection>;

    /// Asks the volume what it is.
    ///
    /// # Errors
    /// It cannot be reached, or is no volume that load can be made on.
    fn inspect(&self) -> Result<(Self::Volume, Geometry), Error>;

    /// Opens a connection that takes commands at once.
    ///
    /// # Errors
    /// The connection or the login failed.
    fn connect(
        &self,
        volume: &Self::Volume,
        transport: &mut Self::Transport,
    ) -> Result<(Opened<Self>, Self::Connection), Error>;
}

/// A connection as the transport of a front takes it.
pub type Opened<F> = <<F as Front>::Transport as Transport>::Opened;

/// The size and the limits of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Logical blocks.
    pub blocks: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// The most bytes of one command; `None`: without a limit, or not said.
    pub max_transfer: Option<u64>,
    /// It takes no writes.
    pub read_only: bool,
}

impl Geometry {
    /// Capacity in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_size as u64
    }
}

/// What a call may write to and report to.
#[derive(Debug)]
pub struct Cx<'a, E, O = Outgoing> {
    /// The time, counted from any fixed moment.
    pub now: Duration,
    /// Takes what is to be sent, in wire order.
    pub out: &'a mut O,
    /// Takes what happened.
    pub events: &'a mut Vec<E>,
}

/// The protocol's end of one connection, ready for commands.
pub trait Connection {
    /// Why a command cannot be sent.
    type SubmitError: fmt::Display;
    /// How a command failed. Two that failed alike are equal.
    type Failure: Copy + Eq + fmt::Display;
    /// What happened, as the protocol tells it; [`event`](Self::event) translates it.
    type Raw;

    /// Takes what is to be sent.
    type Out: Default;

    /// How many commands may be sent now; none when the connection is ending.
    fn window(&self) -> u32;

    /// Sends a command. Its end is an [`Event::Ended`].
    ///
    /// # Errors
    /// Why it cannot be sent; the command is dropped.
    fn submit(&mut self, command: Command, out: &mut Self::Out) -> Result<(), Self::SubmitError>;

    /// The transport was closed or failed: all commands under way end.
    fn closed(&mut self, events: &mut Vec<Self::Raw>);

    /// Begins an orderly end. False if there is nothing to wait for; else an [`Event::Left`] follows.
    fn leave(&mut self, now: Duration, out: &mut Self::Out) -> bool;

    /// What happened, in the load loop's words; `None` if it does not concern the load.
    fn event(raw: Self::Raw) -> Option<Event<Self::Failure>>;
}

/// A connection on a stream of bytes.
pub trait StreamConnection: Connection<Out = Outgoing> {
    /// Bytes of a command on the wire, without its data.
    const COMMAND_LEN: usize;

    /// How many of the next bytes may be thrown away unseen: data of [`Data::Discard`].
    fn discardable(&self) -> usize;

    /// So many bytes were thrown away.
    fn discarded(&mut self, n: usize, cx: &mut Cx<'_, Self::Raw>);

    /// The part of a read's buffer that the next bytes belong to. [`filled`](Self::filled) gives the
    /// buffer back.
    fn take_room(&mut self) -> Option<(Buf, Range<usize>)>;

    /// The first `n` bytes of the range that was taken last have arrived.
    fn filled(&mut self, buf: Buf, range: Range<usize>, n: usize, cx: &mut Cx<'_, Self::Raw>);

    /// Bytes have arrived that belong to no buffer.
    fn received(&mut self, bytes: &[u8], cx: &mut Cx<'_, Self::Raw>);

    /// True if the data of reads carries a digest, and has to be looked at to be thrown away.
    fn has_data_digest(&self) -> bool;
}

/// A connection of messages, whose data the target's device moves.
pub trait MessageConnection: Connection<Out = Posts> {
    /// A message has come, which took back the key `invalidated`, if any.
    fn received(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
        cx: &mut Cx<'_, Self::Raw, Posts>,
    );
}

/// A command.
#[derive(Debug)]
pub struct Command {
    /// Comes back with the end of the command.
    pub token: u32,
    /// What it does.
    pub action: Action,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks.
    pub blocks: u32,
    /// The data it moves.
    pub data: Data,
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write {
        /// The data is on stable storage when the command ends (force unit access).
        fua: bool,
    },
    /// Makes everything stable that was written before; without a range.
    Flush,
}

/// The data of a command.
#[derive(Debug)]
pub enum Data {
    /// None.
    None,
    /// A write sends this.
    Write(Source),
    /// A read fills this buffer.
    Read(Buf),
    /// So many bytes are read and thrown away.
    Discard(u32),
}

/// What happened on a connection. `F` is how a command fails.
#[derive(Debug)]
pub enum Event<F> {
    /// A command has ended.
    Ended {
        /// [`Command::token`].
        token: u32,
        /// [`Command::data`].
        data: Data,
        /// How.
        ending: Ending<F>,
    },
    /// The connection has ended in good order.
    Left,
    /// The connection has failed, for this reason. What was under way has ended already.
    Failed(String),
    /// The other side wants the load to end, or has complained: the reason.
    Stop(String),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<F> {
    /// Well; so many bytes were read.
    Done(u32),
    /// It was not carried out, because something was to be told first: it may be sent again.
    Again,
    /// The other side has no room or time for it: it may be sent again later.
    Busy,
    /// It failed.
    Failed(F),
}

/// The data of a write: a part of memory that nobody changes while it is sent.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) bytes: Rc<[u8]>,
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Nobody changes the bytes as long as one refers to them, even after the write has ended.
    pub(crate) constant: bool,
}

impl AsRef<[u8]> for Source {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

/// What a connection has to send, in wire order.
#[derive(Debug, Default)]
pub struct Outgoing(pub(crate) TxChain);

impl Outgoing {
    /// Appends bytes, which are copied: headers.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }

    /// Appends a part of a write's data, which is not copied.
    pub fn data(&mut self, data: &Source, range: Range<usize>) {
        let id = self.0.payload(Payload::Shared(Rc::clone(&data.bytes)));
        self.0.slice(id, data.start + range.start..data.start + range.end);
    }
}

/// Why a load cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The load cannot be run like this.
    #[error("{0}")]
    Plan(String),
    /// The event loop or a thread could not be made.
    #[error("the load cannot be started: {0}")]
    Start(std::io::Error),
    /// The load was interrupted before it began.
    #[error("interrupted before the load began")]
    Interrupted,
    /// There is no RDMA.
    #[error(transparent)]
    Rdma(#[from] crate::rdma::Error),
    /// The volume cannot be reached over iSCSI.
    #[error(transparent)]
    Iscsi(#[from] iscsi::Error),
    /// The volume cannot be reached over NVMe.
    #[error(transparent)]
    Nvme(#[from] nvme::Error),
}
