//! One session that makes load.

use std::rc::Rc;
use std::time::Duration;

use lunet_iscsi::initiator::{Connection, Cx, Event, LoginInfo, RxTarget, Tag};
use lunet_iscsi::pdu::{AsyncEvent, BHS_LEN, LogoutReason};
use lunet_ring::{Buf, Ring, RxBufs, SocketId, Token, TxChain};

use super::data::{Buffers, Outgoing, Pattern, Source};
use super::pacer::Pacer;
use super::slots::Slots;
use crate::layout::Picker;
use crate::outcome::{ErrorCount, Work};
use crate::verify::Ledger;
use crate::workload::OnError;

/// What all jobs of a run have in common.
pub(super) struct Load {
    /// The 8 bytes of the LUN field.
    pub lun: u64,
    pub block_size: u32,
    pub depth: u32,
    /// The largest block in bytes.
    pub largest: u32,
    /// Reads are received into memory.
    pub keeps_data: bool,
    pub fua: bool,
    pub flush_every: Option<u32>,
    pub on_error: OnError,
    pub read_back: bool,
    pub command_timeout: Duration,
    /// Bytes that each job moves behind the ramp.
    pub size: Option<u64>,
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It makes load.
    Load,
    /// It waits for the last answers.
    Draining,
    /// It reads back what it has written.
    ReadBack,
    /// It logs out, until this time at the latest.
    Leaving(Duration),
    /// The socket is closed.
    Over,
}

/// The data of reads from this size on has receives of its own, and is thrown away in the kernel if
/// nobody wants it. Below it, a receive for each costs more than the copy.
const DISCARD_FROM: u32 = 32 << 10;

/// Room for headers and small data in one receive. More would not stay in the processor's cache.
const SCRATCH: usize = 256 << 10;

/// The same for large reads: what is received here is copied once more than it need be.
const HEADERS: usize = 4 << 10;

/// With so many bytes under way, a session need not be woken for each piece.
const PLENTY: u64 = 2 << 20;

/// Time for the answer to a logout.
const LEAVE: Duration = Duration::from_secs(2);

type Ev = Event<Buf, Source>;

/// One session that makes load.
pub(super) struct Job {
    pub number: u32,
    pub(super) load: Rc<Load>,
    socket: SocketId,
    pub(super) proto: Connection<Buf, Source>,
    events: Vec<Ev>,
    pub(super) out: Outgoing,
    /// An empty chain for the next turn; `None` while a chain is on its way.
    spare: Option<TxChain>,
    /// Bytes of the chain that is being sent.
    sending: usize,
    /// The scratch buffer, while no receive has it.
    scratch: Option<Box<[u8]>>,
    receiving: bool,
    /// The read whose buffer the receive under way fills.
    loan: Option<Tag>,
    /// What the receive under way has room for, in bytes.
    asked: usize,
    /// The last receive has left nothing behind.
    drained: bool,
    /// The receive under way throws away what comes.
    discarding: bool,
    pub(super) slots: Slots,
    pub(super) picker: Picker,
    pub(super) pattern: Pattern,
    pub(super) buffers: Buffers,
    pub(super) ledger: Option<Ledger>,
    pub(super) pacer: Option<Pacer>,
    pub phase: Phase,
    /// Bytes asked for behind the ramp.
    pub issued: u64,
    pub(super) writes: u32,
    /// In this second.
    pub second: Work,
    /// Behind the ramp, without this second.
    pub total: Work,
    pub errors: Vec<ErrorCount>,
    pub failed: Option<String>,
    pub info: LoginInfo,
    has_read_back: bool,
    closed: bool,
    /// Queued for the end of this turn.
    pub dirty: bool,
}

/// What a job is made of.
pub(super) struct Parts {
    pub number: u32,
    pub load: Rc<Load>,
    pub socket: SocketId,
    pub proto: Connection<Buf, Source>,
    pub info: LoginInfo,
    pub picker: Picker,
    pub pattern: Pattern,
    pub ledger: Option<Ledger>,
    pub pacer: Option<Pacer>,
}

impl Job {
    pub fn new(parts: Parts) -> Self {
        let Parts { number, load, socket, proto, info, picker, pattern, ledger, pacer } = parts;
        Self {
            number,
            socket,
            proto,
            events: Vec::with_capacity(load.depth as usize),
            out: Outgoing::default(),
            spare: Some(TxChain::new()),
            sending: 0,
            scratch: Some(vec![0; SCRATCH].into()),
            receiving: false,
            loan: None,
            asked: 0,
            drained: false,
            discarding: false,
            slots: Slots::new(load.depth),
            picker,
            pattern,
            buffers: Buffers::new(load.largest as usize),
            ledger,
            pacer,
            phase: Phase::Load,
            issued: 0,
            writes: 0,
            second: Work::default(),
            total: Work::default(),
            errors: Vec::new(),
            failed: None,
            info,
            has_read_back: false,
            closed: false,
            dirty: true,
            load,
        }
    }

    /// Ends the load, or the reading back.
    pub fn stop(&mut self) {
        match self.phase {
            Phase::Load => self.phase = Phase::Draining,
            Phase::ReadBack => {
                self.phase = Phase::Draining;
                if let Some(ledger) = &mut self.ledger {
                    ledger.outcome.incomplete = true;
                }
            }
            _ => {}
        }
    }

    /// Gives up, for a reason in one sentence. The first reason counts.
    pub fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
        self.stop();
    }

    /// Bytes have come, or the other side is gone.
    pub fn received(&mut self, bufs: RxBufs, result: Result<usize, i32>, now: Duration) {
        self.receiving = false;
        let RxBufs { payload, scratch, .. } = bufs;
        let n = result.unwrap_or(0);
        self.drained = n < self.asked;
        let Self { proto, out, events, .. } = self;
        let mut cx = Cx { now, tx: out, events };
        if std::mem::take(&mut self.discarding) {
            proto.rx_discarded(n, &mut cx);
        } else {
            let mut used = 0;
            if let (Some((buf, range)), Some(tag)) = (payload, self.loan.take()) {
                used = range.len().min(n);
                proto.rx_payload(RxTarget { buf, range, tag }, used, &mut cx);
            }
            proto.rx_bytes(&scratch[..n - used], &mut cx);
            self.scratch = Some(scratch);
        }
        if n == 0 {
            self.proto.transport_closed(&mut self.events);
        }
        self.work_off(now);
    }

    /// A chain is out, or the other side is gone.
    pub fn sent(&mut self, mut chain: TxChain, ok: bool, now: Duration) {
        chain.clear();
        self.spare = Some(chain);
        self.sending = 0;
        if !ok {
            self.proto.transport_closed(&mut self.events);
            self.work_off(now);
        }
    }

    /// Does what the protocol has to tell.
    fn work_off(&mut self, now: Duration) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Finished(finished) => self.finished(finished, now),
                Event::LoggedOut { .. } => self.phase = Phase::Over,
                Event::Failed(error) => {
                    if !matches!(self.phase, Phase::Leaving(_) | Phase::Over) {
                        let reason = format!("the session failed: {error}");
                        // It says more than the first command that was lost by it.
                        self.failed = Some(reason);
                    }
                    self.phase = Phase::Over;
                }
                Event::Async(notice) if notice.event != Some(AsyncEvent::Scsi) => {
                    self.fail("the target asked the session to end; is it being stopped?".into());
                }
                Event::Rejected { reason, .. } => {
                    self.fail(format!("the target rejected a PDU, reason {reason:#04x}"));
                }
                _ => {}
            }
        }
        self.events = events;
    }

    /// Sends what there is to send and receives what may come.
    pub fn flush(&mut self, ring: &mut Ring, send: Token, receive: Token) {
        if self.phase == Phase::Over {
            return;
        }
        if !self.out.0.is_empty() && !self.may_hold_back() {
            if let Some(spare) = self.spare.take() {
                let chain = std::mem::replace(&mut self.out.0, spare);
                self.sending = chain.len();
                ring.send(self.socket, chain, send);
            }
        }
        if !self.receiving {
            self.receiving = true;
            self.receive(ring, receive);
        }
    }

    fn receive(&mut self, ring: &mut Ring, token: Token) {
        let discardable = self.proto.discardable();
        if discardable >= DISCARD_FROM as usize / 2 {
            self.discarding = true;
            self.asked = discardable;
            return ring.discard_recv(self.socket, discardable, token);
        }
        let payload = self.proto.take_rx_target().map(|target| {
            self.loan = Some(target.tag);
            (target.buf, target.range)
        });
        let scratch_limit = if self.takes_headers_only() { HEADERS } else { SCRATCH };
        let scratch = self.scratch.take().unwrap_or_default();
        let bufs = RxBufs { payload, scratch, scratch_limit };
        self.asked = bufs.room();
        ring.recv(self.socket, bufs, token);
    }

    /// Data has receives of its own, straight into its place or into nothing. Where it is thrown away
    /// but has a digest, it all goes through the scratch buffer.
    fn takes_headers_only(&self) -> bool {
        let passes_by = self.load.keeps_data || !self.proto.negotiated().data_digest;
        passes_by && self.load.largest >= DISCARD_FROM
    }

    /// True if so much data is under way that it takes longer than a moment to arrive, and what was
    /// there is taken in: better to let some of it gather than to be woken for every piece. The data of
    /// writes must not wait for that: the next message follows the last one at once.
    pub fn may_gather(&self) -> bool {
        self.drained && self.sending <= HEADERS && self.has_plenty()
    }

    /// True if the next commands had better leave together: answers are still coming in, and the
    /// target has enough to do.
    fn may_hold_back(&self) -> bool {
        let some = self.load.depth as usize / 4 * BHS_LEN;
        !self.drained && self.out.0.len() <= some && self.has_plenty()
    }

    fn has_plenty(&self) -> bool {
        let under_way = self.slots.len() as u64 * u64::from(self.load.largest);
        self.phase == Phase::Load && self.takes_headers_only() && under_way >= PLENTY
    }

    /// Goes on to the next phase where nothing is left to do in this one.
    pub fn advance(&mut self, now: Duration, ring: &mut Ring) {
        if self.phase == Phase::Draining && self.slots.is_empty() {
            let fresh = self.ledger.as_ref().is_some_and(|ledger| !ledger.outcome.incomplete);
            if fresh && self.load.read_back && self.failed.is_none() && !self.has_read_back {
                self.has_read_back = true;
                self.phase = Phase::ReadBack;
            } else {
                self.leave(now);
            }
        }
        if let Phase::Leaving(limit) = self.phase {
            if now >= limit {
                self.phase = Phase::Over;
            }
        }
        if self.phase == Phase::Over && !self.closed {
            self.closed = true;
            ring.close_socket(self.socket);
        }
    }

    fn leave(&mut self, now: Duration) {
        match self.proto.logout(LogoutReason::CloseSession, now, &mut self.out) {
            Ok(_) => self.phase = Phase::Leaving(now + LEAVE),
            Err(_) => self.phase = Phase::Over,
        }
        self.dirty = true;
    }

    /// True while it makes load, or waits for the last answers to it.
    pub fn is_loading(&self) -> bool {
        matches!(self.phase, Phase::Load | Phase::Draining) && !self.has_read_back
    }

    /// Looks for commands that are not answered.
    pub fn look_at_the_clock(&mut self, now: Duration) {
        let limit = self.load.command_timeout;
        if let Some(slot) = self.slots.oldest().filter(|slot| now > slot.sent + limit) {
            let what = slot.op.name();
            self.failed = Some(format!(
                "a {what} at LBA {} was not answered for {} s: look into the target's log",
                slot.lba,
                limit.as_secs()
            ));
            self.phase = Phase::Over;
        }
    }

    /// When it may go on by itself: the next operation of a limited rate, or a retry.
    pub fn due(&self) -> Option<Duration> {
        let pace = match (self.phase, &self.pacer) {
            (Phase::Load, Some(pacer)) => Some(pacer.next()),
            _ => None,
        };
        [pace, self.slots.next_retry()].into_iter().flatten().min()
    }

    /// Ends a second: its work, which counts for the job unless it belongs to the ramp.
    pub fn end_second(&mut self, ramp: bool, sum: &mut Work) {
        sum.add(&self.second);
        if !ramp {
            self.total.add(&self.second);
        }
        self.second.clear();
    }
}
