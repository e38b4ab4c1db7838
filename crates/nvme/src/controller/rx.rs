//! Receiving: what each PDU of the host leads to.

use super::command::alloc;
use super::connection::{Connection, Phase};
use super::event::{CloseReason, Cx, Site, Tag};
use crate::command::Sqe;
use crate::pdu::{
    CapsuleCmd, DGST_DATA, DGST_HEADER, FatalError, Framing, IcReq, IcResp, MAX_ALIGNMENT, TermReq,
    Type, U32,
};
use crate::status::Status;
use crate::stream::Progress;
use crate::transmit::{RxTarget, Transmit, put};
use zerocopy::FromBytes;

/// Where the data of a PDU goes.
#[derive(Debug)]
pub(super) enum Sink<B> {
    /// Nowhere.
    Discard,
    /// Into the small buffer.
    Small,
    /// Into a buffer, from this byte on; it is away while it is lent.
    Buffer(Option<B>, usize),
    /// Into a buffer of so many bytes, for which there is no memory now: nothing is taken until there is.
    Wanted(Tag, usize),
}

/// What is to be done when a PDU is complete.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    /// Nothing.
    Nothing,
    /// A Connect.
    Connect(Tag, Sqe),
    /// A command.
    Command(Tag, Sqe),
    /// Data of the transfer with this index.
    Data(usize),
    /// A termination request.
    Terminate,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// The place of the next bytes of the stream, when they are data: the caller receives into it
    /// and gives it back with [`Self::rx_payload`]. None: all bytes go to [`Self::rx_bytes`].
    pub fn take_rx_target(&mut self) -> Option<RxTarget<B>> {
        let left = self.rx.data_left();
        let Sink::Buffer(buf, at) = &mut self.sink else { return None };
        if left == 0 || self.phase == Phase::Closed {
            return None;
        }
        let range = *at..*at + left;
        buf.take().map(|buf| RxTarget { buf, range })
    }

    /// Gives a target back, with its first `n` bytes filled (0 is fine).
    pub fn rx_payload<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        target: RxTarget<B>,
        n: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        if self.phase == Phase::Closed {
            return;
        }
        let n = n.min(self.rx.data_left()).min(target.range.len());
        let start = target.range.start;
        let progress = self.rx.took(&target.buf.as_ref()[start..start + n]);
        self.counters.bytes_in += n as u64;
        if let Sink::Buffer(buf, at) = &mut self.sink {
            *buf = Some(target.buf);
            *at += n;
        }
        if let Progress::Pdu(right) = progress {
            self.pdu_complete(right, cx);
        }
    }

    /// The next bytes of the stream. Returns how many were consumed: all, unless the data of a
    /// command [waits for memory](Self::is_starved). The rest is to be handed over again then.
    pub fn rx_bytes<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.phase != Phase::Closed && !self.is_starved() {
            let rest = &bytes[at..];
            at += match self.rx.data_left() {
                0 => self.rx_control(rest, cx),
                left => self.rx_data(&rest[..left.min(rest.len())], cx),
            };
        }
        if self.phase == Phase::Closed { bytes.len() } else { at }
    }

    /// True if data of a command is to come next, and there was no memory for it: nothing is taken
    /// from the host before [`Self::feed`] or [`Self::refuse_starved`]. A host that was told to try
    /// again would do so a few times, and then take the command for failed.
    #[must_use]
    pub const fn is_starved(&self) -> bool {
        matches!(self.sink, Sink::Wanted(..))
    }

    /// Tries once more to get memory for the data that waits for it. True if nothing waits.
    pub fn feed<S: Site<Buf = B>>(&mut self, site: &mut S) -> bool {
        if let Sink::Wanted(tag, len) = self.sink {
            let Some(buf) = alloc(self.capsules, site, len) else { return false };
            self.sink = Sink::Buffer(Some(buf), 0);
            self.has_buffer(tag);
        }
        true
    }

    /// True if data that the host was asked for may be behind the data that waits for memory.
    #[must_use]
    pub const fn owes_data(&self) -> bool {
        self.r2ts > 0
    }

    /// Gives up waiting for memory: the host is to try again later, and its data is dropped. So are
    /// those that come behind it, as long as there is no memory for them and data is owed.
    pub fn refuse_starved(&mut self) {
        if let Sink::Wanted(tag, _) = self.sink {
            (self.sink, self.refuses) = (Sink::Discard, true);
            if let Some(task) = self.tasks.get_mut(tag) {
                task.refused = Some(Status::INTERRUPTED.retry_after(2));
            }
        }
    }

    fn rx_control<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) -> usize {
        let rules = self.rules();
        match self.rx.feed(bytes, &rules) {
            Ok((used, Progress::More)) => used,
            Ok((used, Progress::Header)) => {
                self.header_complete(cx);
                used
            }
            Ok((used, Progress::Pdu(right))) => {
                self.pdu_complete(right, cx);
                used
            }
            Err(error) => {
                self.terminate(CloseReason::Pdu(error), error.fatal(), cx);
                bytes.len()
            }
        }
    }

    fn rx_data<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) -> usize {
        self.fill(bytes);
        if let Progress::Pdu(right) = self.rx.took(bytes) {
            self.pdu_complete(right, cx);
        }
        bytes.len()
    }

    /// Puts data where it goes.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        self.counters.bytes_in += bytes.len() as u64;
        match &mut self.sink {
            Sink::Discard | Sink::Wanted(..) => {}
            Sink::Small => self.small.extend_from_slice(bytes),
            Sink::Buffer(buf, at) => {
                if let Some(buf) = buf {
                    buf.as_mut()[*at..*at + bytes.len()].copy_from_slice(bytes);
                }
                *at += bytes.len();
            }
        }
    }

    /// Takes the buffer that was filled out of the sink.
    pub(super) fn take_filled(&mut self) -> Option<B> {
        match core::mem::replace(&mut self.sink, Sink::Discard) {
            Sink::Buffer(buf, _) => buf,
            Sink::Discard | Sink::Small | Sink::Wanted(..) => None,
        }
    }

    /// A header is there: decides where the data goes.
    fn header_complete<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        self.counters.pdus_in += 1;
        let Some(layout) = self.rx.layout() else { return };
        (self.sink, self.pending) = (Sink::Discard, Pending::Nothing);
        match (layout.kind, self.phase) {
            (Type::H2cTermReq, _) => {
                (self.sink, self.pending) = (Sink::Discard, Pending::Terminate);
            }
            (Type::IcReq, Phase::Initialize) => self.initialize(cx),
            (_, Phase::Initialize) => {
                self.terminate(CloseReason::NotInitialized, (FatalError::Sequence, 0), cx);
            }
            (Type::CapsuleCmd, _) => {
                let capsule: CapsuleCmd = self.rx.header();
                let sqe = Sqe::read_from_bytes(&capsule.sqe).unwrap_or_default();
                self.begin_capsule(&sqe, layout.data, cx);
            }
            (Type::H2cData, Phase::Authenticate | Phase::Ready) => self.begin_data(layout.data, cx),
            _ => self.terminate(CloseReason::Sequence, (FatalError::Sequence, 0), cx),
        }
        if layout.data == 0 && self.phase != Phase::Closed {
            self.pdu_complete(true, cx);
        }
    }

    /// The host initializes the connection (NVMe/TCP section 3.6.2.2).
    fn initialize<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        let request: IcReq = self.rx.header();
        if request.pfv.get() != 0 {
            let reason = CloseReason::Version(request.pfv.get());
            return self.terminate(reason, (FatalError::Unsupported, 8), cx);
        }
        if request.hpda > MAX_ALIGNMENT {
            let reason = CloseReason::Alignment(request.hpda);
            return self.terminate(reason, (FatalError::HeaderField, 10), cx);
        }
        // Linux insists on what it asked for, and on data that it need not align.
        let dgst = request.dgst & (DGST_HEADER | DGST_DATA);
        let response =
            IcResp { dgst, maxh2cdata: U32::new(self.options.max_h2c_data), ..IcResp::default() };
        put(Framing::default(), Type::IcResp, 0, response, cx.tx);
        self.counters.pdus_out += 1;
        self.inbound = Framing {
            header_digest: dgst & DGST_HEADER != 0,
            data_digest: dgst & DGST_DATA != 0,
            alignment: 0,
        };
        self.outbound = Framing { alignment: request.hpda, ..self.inbound };
        let host = request.maxr2t.get().saturating_add(1);
        self.max_r2t = host.min(self.options.max_r2t).max(1);
        self.phase = Phase::Connect;
    }

    /// A PDU is complete.
    pub(super) fn pdu_complete<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        right: bool,
        cx: &mut Cx<'_, S, T>,
    ) {
        self.counters.data_digest_errors += u64::from(!right);
        match core::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => {}
            Pending::Connect(tag, sqe) => self.connect_complete(tag, &sqe, right, cx),
            Pending::Command(tag, sqe) => {
                let filled = self.take_filled();
                if let Some(task) = self.tasks.get_mut(tag) {
                    task.data = filled.map(|buf| (buf, task.arrives.clone()));
                }
                self.command_complete(tag, &sqe, right, cx);
            }
            Pending::Data(index) => self.data_complete(index, right, cx),
            Pending::Terminate => {
                let request: TermReq = self.rx.header();
                let (fes, fei) = (request.fes.get(), request.fei.get());
                self.close(CloseReason::Terminated { fes, fei }, cx.events);
            }
        }
        self.sink = Sink::Discard;
    }

    /// Ends the connection because of a field of the current PDU at this offset.
    pub(super) fn wrong_field<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        reason: CloseReason,
        offset: u32,
        cx: &mut Cx<'_, S, T>,
    ) {
        self.terminate(reason, (FatalError::HeaderField, offset), cx);
    }
}
