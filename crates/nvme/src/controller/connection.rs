//! The connection: its state, Connect, its clocks.

use super::event::{CloseReason, Cx, Event, Site, Tag};
use super::rdma::Mover;
use super::rx::{Pending, Sink};
use super::stall::Stall;
use super::task::{Tasks, Transfers};
use crate::command::Completion;
use crate::fabrics::{Authentication, Connected, Transport};
use crate::pdu::{ADMIN_CAPSULE_DATA, FatalError, Framing, Rules, Sender, TermReq, Type, U16, U32};
use crate::stream::Receiver;
use crate::transmit::{Transmit, put_bytes};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
use slab::Slab;

/// What a controller offers on a connection, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most data of a command capsule on I/O queues, in bytes: what IOCCSZ says without the entry.
    pub capsule_data: u32,
    /// MAXH2CDATA: at least 4096, and a multiple of 4.
    pub max_h2c_data: u32,
    /// Most R2Ts of a command that are outstanding; the host's MAXR2T may be less. At least 1.
    pub max_r2t: u32,
    /// How long a host has to connect.
    pub connect_timeout: Duration,
    /// In which time data that was asked for or announced has to come, or 64 KiB of it; zero: for ever.
    pub data_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            capsule_data: 8192,
            max_h2c_data: 256 * 1024,
            max_r2t: 4,
            connect_timeout: Duration::from_secs(10),
            data_timeout: Duration::from_secs(30),
        }
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// R2Ts sent.
    pub r2ts: u64,
    /// RDMA Reads posted.
    pub rdma_reads: u64,
    /// RDMA Writes posted.
    pub rdma_writes: u64,
    /// Bytes of data received.
    pub bytes_in: u64,
    /// Bytes of data sent.
    pub bytes_out: u64,
    /// Data digests that were wrong.
    pub data_digest_errors: u64,
    /// Commands that were answered without the layer above.
    pub refused: u64,
}

/// The life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// An ICReq is to come.
    Initialize,
    /// A Connect is to come.
    Connect,
    /// The layer above is asked whether the host may connect.
    Admission(Tag),
    /// The host has to authenticate.
    Authenticate,
    /// Commands are taken.
    Ready,
    /// Over.
    Closed,
}

/// One connection, which is one queue, seen from the controller.
#[derive(Debug)]
pub struct Connection<B> {
    pub(super) options: Options,
    pub(super) phase: Phase,
    /// What is received.
    pub(super) inbound: Framing,
    /// What is sent.
    pub(super) outbound: Framing,
    /// R2Ts of a command that may be outstanding.
    pub(super) max_r2t: u32,
    pub(super) counters: Counters,
    pub(super) rx: Receiver,
    pub(super) sink: Sink<B>,
    pub(super) pending: Pending,
    /// The data of a Connect or a termination request.
    pub(super) small: Vec<u8>,
    pub(super) tasks: Tasks<B>,
    pub(super) transfers: Transfers<B>,
    /// The first command of a fused operation, which waits for the second.
    pub(super) first: Option<(Tag, crate::command::Sqe)>,
    /// Commands whose capsule's data has a buffer.
    pub(super) capsules: u32,
    /// A capsule has waited for memory in vain, and those that come are not to.
    pub(super) refuses: bool,
    /// R2Ts or RDMA Reads outstanding, of all commands.
    pub(super) r2ts: u32,
    /// How many there were.
    pub(super) started: u64,
    /// What it has over RDMA.
    pub(super) mover: Option<Box<Mover<B>>>,
    /// It is an admin queue.
    pub(super) is_admin: bool,
    /// The Connect that is being admitted.
    pub(super) asked: (u16, bool),
    /// Entries of the queue.
    entries: u32,
    sqhd: u32,
    no_sq_flow: bool,
    pub(super) stall: Stall,
    connect_by: Duration,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A connection on which nothing was received yet.
    #[must_use]
    pub fn new(options: Options, now: Duration) -> Self {
        Self {
            phase: Phase::Initialize,
            inbound: Framing::default(),
            outbound: Framing::default(),
            max_r2t: 1,
            counters: Counters::default(),
            rx: Receiver::new(),
            sink: Sink::Discard,
            pending: Pending::Nothing,
            small: Vec::new(),
            tasks: Tasks::new(),
            transfers: Transfers(Slab::new()),
            first: None,
            capsules: 0,
            refuses: false,
            r2ts: 0,
            started: 0,
            mover: None,
            is_admin: false,
            asked: (0, false),
            entries: 1,
            sqhd: 0,
            no_sq_flow: false,
            stall: Stall::default(),
            connect_by: now.saturating_add(options.connect_timeout),
            options,
        }
    }

    /// Answers [`Event::Connect`]: the host has the queue.
    pub fn accept<T: Transmit>(&mut self, connected: Connected, tx: &mut T) {
        let Phase::Admission(tag) = self.phase else { return };
        let (sqsize, no_sq_flow) = self.asked;
        self.entries = u32::from(sqsize) + 1;
        self.no_sq_flow = no_sq_flow;
        self.phase = match connected.authentication {
            Authentication::None => Phase::Ready,
            Authentication::Required | Authentication::Concatenate => Phase::Authenticate,
        };
        self.complete(tag, Completion::with(connected.encode()), tx);
    }

    /// Answers [`Event::Connect`]: no. The connection is over; the caller flushes and closes.
    pub fn refuse<T: Transmit>(&mut self, why: Completion, tx: &mut T) {
        let Phase::Admission(tag) = self.phase else { return };
        self.complete(tag, why, tx);
        self.phase = Phase::Closed;
    }

    /// The host has authenticated: other commands are taken from now on.
    pub fn authenticated(&mut self) {
        if self.phase == Phase::Authenticate {
            self.phase = Phase::Ready;
        }
    }

    /// Gives the connection up.
    pub fn end(&mut self, events: &mut Vec<Event<B>>) {
        self.close(CloseReason::Ended, events);
    }

    /// When [`Self::handle_timeout`] is to be called, on the clock of [`Cx::now`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        match self.phase {
            Phase::Initialize | Phase::Connect | Phase::Admission(_) => Some(self.connect_by),
            Phase::Authenticate | Phase::Ready => self.data_look_at(),
            Phase::Closed => None,
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Duration, events: &mut Vec<Event<B>>) {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return;
        }
        if !matches!(self.phase, Phase::Authenticate | Phase::Ready) {
            return self.close(CloseReason::ConnectTimeout, events);
        }
        if self.data_is_overdue(now) {
            self.close(CloseReason::DataTimeout, events);
        }
    }

    /// The host's system has taken in more of what was sent, the last time at `at`: an R2T that was
    /// still on its way could not be answered before.
    pub fn delivered(&mut self, at: Duration) {
        self.stall.delivered(at, self.options.data_timeout);
    }

    /// What was agreed on about PDUs that are sent.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        self.outbound
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Commands that are not answered yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// Entries of the queue: commands that the host may have outstanding.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// The command with this identifier, if the layer above has it: for Abort. It looks at all of
    /// them.
    #[must_use]
    pub fn find(&self, cid: u16) -> Option<Tag> {
        self.tasks.find(cid)
    }

    /// True if the host has authenticated, where it has to, and commands are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// True when the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// What carries the connection.
    pub(super) const fn transport(&self) -> Transport {
        if self.mover.is_some() { Transport::Rdma } else { Transport::Tcp }
    }

    /// True if one more command is too many.
    pub(super) fn is_full(&self) -> bool {
        self.tasks.len() >= self.entries as usize
    }

    /// True if a response without a result may be left out.
    pub(super) const fn may_leave_out(&self) -> bool {
        self.no_sq_flow && self.mover.is_none()
    }

    /// The submission queue head pointer of the next completion.
    pub(super) fn next_sqhd(&mut self) -> u16 {
        if self.no_sq_flow {
            return u16::MAX;
        }
        self.sqhd = (self.sqhd + 1) % self.entries;
        self.sqhd as u16
    }

    /// The queue is of a controller that has offered capsules with no more data than this, in bytes.
    pub fn limit_capsules(&mut self, bytes: u32) {
        self.options.capsule_data = self.options.capsule_data.min(bytes);
    }

    /// What is taken at this time.
    pub(super) fn rules(&self) -> Rules {
        Rules {
            sender: Sender::Host,
            framing: self.inbound,
            max_capsule: self.options.capsule_data.max(ADMIN_CAPSULE_DATA),
            max_data: self.options.max_h2c_data,
        }
    }

    /// Ends the connection.
    pub(super) fn close(&mut self, reason: CloseReason, events: &mut Vec<Event<B>>) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Closed;
            events.push(Event::Close(reason));
        }
    }

    /// Ends the connection, and says why in a termination request with the header of the PDU that
    /// is to blame. Over RDMA there is none.
    pub(super) fn terminate<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        reason: CloseReason,
        (fes, fei): (FatalError, u32),
        cx: &mut Cx<'_, S, T>,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        if self.mover.is_some() {
            return self.close(reason, cx.events);
        }
        let request =
            TermReq { fes: U16::new(fes.code()), fei: U32::new(fei), ..TermReq::default() };
        put_bytes(self.outbound, Type::C2hTermReq, request, self.rx.blamed(), cx.tx);
        self.counters.pdus_out += 1;
        self.close(reason, cx.events);
    }
}
