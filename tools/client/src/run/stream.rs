//! A job with its socket: what is sent and received, and when.

use std::marker::PhantomData;
use std::net::TcpStream;
use std::time::Duration;

use lunet_ring::{Event, PollSource, Ring, RxBufs, SocketId, Token, TxChain, WatchId};

use super::job::{Job, Phase};
use super::transport::{Lane, Transport};
use crate::front::{Error, StreamConnection};
use crate::rdma::Needs;

/// The kinds of tokens, in their top byte.
const RECEIVE: u64 = 1 << 56;
const SEND: u64 = 2 << 56;
const KIND: u64 = 0xFF << 56;

/// Reads of at least so many bytes have receives of their own for their data, which is thrown away in
/// the kernel if nobody wants it. For smaller ones, a receive for each costs more than the copy.
const DISCARD_FROM: u32 = 32 << 10;

/// Room for headers and small data in one receive. More would not stay in the processor's cache.
const SCRATCH: usize = 256 << 10;

/// The same for large reads: what is received here is copied once more than it need be.
const HEADERS: usize = 4 << 10;

/// With so many bytes under way, a session need not be woken for each piece.
const PLENTY: u64 = 2 << 20;

/// A job on a TCP connection of the event loop.
pub struct Stream<C: StreamConnection> {
    job: Job<C>,
    socket: SocketId,
    /// An empty chain for the next send; `None` while a send is under way.
    spare: Option<TxChain>,
    /// Bytes of the chain that is being sent.
    sending: usize,
    /// The scratch buffer, while no receive has it.
    scratch: Option<Box<[u8]>>,
    receiving: bool,
    /// What the receive under way has room for, in bytes.
    asked: usize,
    /// The last receive has left nothing behind.
    drained: bool,
    /// The receive under way throws away what comes.
    discarding: bool,
    closed: bool,
    /// It may have something to send or to receive in this loop iteration.
    dirty: bool,
}

impl<C: StreamConnection> Stream<C> {
    fn new(job: Job<C>, socket: SocketId) -> Self {
        Self {
            job,
            socket,
            spare: Some(TxChain::new()),
            sending: 0,
            scratch: Some(vec![0; SCRATCH].into()),
            receiving: false,
            asked: 0,
            drained: false,
            discarding: false,
            closed: false,
            dirty: true,
        }
    }

    /// Bytes have come, or the other side is gone.
    fn received(&mut self, bufs: RxBufs, result: Result<usize, i32>, now: Duration) {
        self.dirty = true;
        self.receiving = false;
        let RxBufs { payload, scratch, .. } = bufs;
        let n = result.unwrap_or(0);
        self.drained = n < self.asked;
        let discarding = std::mem::take(&mut self.discarding);
        self.job.arrived(now, |connection, cx| {
            if discarding {
                connection.discarded(n, cx);
            } else {
                let mut used = 0;
                if let Some((buf, range)) = payload {
                    used = range.len().min(n);
                    connection.filled(buf, range, used, cx);
                }
                connection.received(&scratch[..n - used], cx);
            }
            if n == 0 {
                connection.closed(cx.events);
            }
        });
        if !discarding {
            self.scratch = Some(scratch);
        }
    }

    /// A chain was sent, or the other side is gone.
    fn sent(&mut self, mut chain: TxChain, ok: bool, now: Duration) {
        self.dirty = true;
        chain.clear();
        self.spare = Some(chain);
        self.sending = 0;
        if !ok {
            self.job.closed(now);
        }
    }

    fn receive(&mut self, ring: &mut Ring, token: Token) {
        let discardable = self.job.connection.discardable();
        if discardable >= DISCARD_FROM as usize / 2 {
            self.discarding = true;
            self.asked = discardable;
            return ring.discard_recv(self.socket, discardable, token);
        }
        let payload = self.job.connection.take_room();
        let scratch_limit = if self.takes_headers_only() { HEADERS } else { SCRATCH };
        let scratch = self.scratch.take().unwrap_or_default();
        let bufs = RxBufs { payload, scratch, scratch_limit };
        self.asked = bufs.room();
        ring.recv(self.socket, bufs, token);
    }

    /// Data has receives of its own: all others receive headers.
    fn takes_headers_only(&self) -> bool {
        self.job.reads_pass_by() && self.job.load.largest >= DISCARD_FROM
    }

    /// True if the next commands had better leave together: answers are still coming in, and the
    /// target has enough to do.
    fn may_hold_back(&self) -> bool {
        let some = self.job.load.depth as usize / 4 * C::COMMAND_LEN;
        !self.drained && self.job.out.0.len() <= some && self.has_plenty()
    }

    fn has_plenty(&self) -> bool {
        let under_way = self.job.slots.len() as u64 * u64::from(self.job.load.largest);
        self.job.phase == Phase::Load && self.takes_headers_only() && under_way >= PLENTY
    }
}

impl<C: StreamConnection> Lane for Stream<C> {
    type Connection = C;

    fn job(&self) -> &Job<C> {
        &self.job
    }

    fn job_mut(&mut self) -> &mut Job<C> {
        &mut self.job
    }

    fn into_job(self) -> Job<C> {
        self.job
    }

    fn dirty(&mut self) -> &mut bool {
        &mut self.dirty
    }

    /// Lets the job go on to its next phase, and closes the socket behind the last one.
    fn advance(&mut self, now: Duration, ring: &mut Ring) {
        let before = self.job.phase;
        self.job.advance(now);
        self.dirty |= before != self.job.phase;
        if self.job.phase == Phase::Over && !self.closed {
            self.closed = true;
            ring.close_socket(self.socket);
        }
    }

    /// Sends what there is to send and receives what may come.
    fn flush(&mut self, ring: &mut Ring, number: u64) {
        let (send, receive) = (Token(SEND | number), Token(RECEIVE | number));
        if self.job.phase == Phase::Over {
            return;
        }
        if !self.job.out.0.is_empty() && !self.may_hold_back() {
            if let Some(spare) = self.spare.take() {
                let chain = std::mem::replace(&mut self.job.out.0, spare);
                self.sending = chain.len();
                ring.send(self.socket, chain, send);
            }
        }
        if !self.receiving {
            self.receiving = true;
            self.receive(ring, receive);
        }
    }

    /// True if so much data is under way that it takes longer than a moment to arrive, and what was
    /// there is taken in: better to let some of it gather than to be woken for every piece. The data of
    /// writes must not wait for that: the next message follows the last one at once.
    fn may_gather(&self) -> bool {
        self.drained && self.sending <= HEADERS && self.has_plenty()
    }
}

/// The TCP connections of a thread, which the event loop serves.
pub struct Streams<C>(PhantomData<C>);

impl<C> PollSource for Streams<C> {
    fn poll(&mut self) -> bool {
        false
    }

    fn before_sleep(&mut self, _: &mut dyn FnMut(WatchId)) -> bool {
        false
    }
}

impl<C: StreamConnection> Transport for Streams<C> {
    type Connection = C;
    type Opened = TcpStream;
    type Lane = Stream<C>;

    fn new(_: &Needs) -> Result<Self, Error> {
        Ok(Self(PhantomData))
    }

    fn begin(&mut self, _: &mut Ring) -> std::io::Result<()> {
        Ok(())
    }

    fn lane(&mut self, job: Job<C>, stream: TcpStream, ring: &mut Ring) -> Stream<C> {
        Stream::new(job, ring.add_socket(stream.into()))
    }

    fn handle(&mut self, event: Event, lanes: &mut [Stream<C>], now: Duration) {
        match event {
            Event::Received { token, bufs, result } => {
                if let Some(stream) = lanes.get_mut((token.0 & !KIND) as usize) {
                    stream.received(bufs, result, now);
                }
            }
            Event::Sent { token, chain, result } => {
                if let Some(stream) = lanes.get_mut((token.0 & !KIND) as usize) {
                    stream.sent(chain, result.is_ok(), now);
                }
            }
            _ => {}
        }
    }

    fn deliver(&mut self, _: &mut [Stream<C>], _: Duration) {}

    fn flush(&mut self) {}
}
