//! Taking the byte stream apart (RFC 7143 section 11.2).

use super::connection::{Connection, Phase};
use super::login::MAX_LOGIN_SEGMENT;
use super::{CloseReason, Cx, RxTarget, Site, Tag, Transmit};
use crate::digest::{Crc32c, DIGEST_LEN, crc32c};
use crate::pdu::{self, BHS_LEN, BasicHeader, Bhs, Opcode, RejectReason};
use alloc::vec::Vec;

/// Heap that is kept for the data of text and NOP PDUs between PDUs, in bytes.
const KEEP_SMALL: usize = 4096;

/// What is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Basic header segment, additional header segments, header digest.
    Header,
    /// The data segment.
    Data,
    /// Padding and data digest.
    Trailer,
}

/// Where a data segment goes.
#[derive(Debug)]
pub(super) enum Sink<B> {
    /// Nowhere.
    Discard,
    /// Into the small buffer.
    Small,
    /// Into a task's buffer, from this byte on; the buffer is away while it is lent.
    Payload(Option<B>, usize),
}

/// What is to be done when a PDU is complete.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    /// Nothing.
    Nothing,
    /// A SCSI Command that made a task.
    Command(Tag),
    /// Unsolicited data.
    Unsolicited(Tag),
    /// Data of the transfer with this index.
    Solicited(Tag, usize),
    /// A PDU that is rejected.
    Reject(RejectReason),
    /// Everything else.
    Other,
}

/// The receiver.
#[derive(Debug)]
pub(super) struct Rx<B> {
    part: Part,
    head: Vec<u8>,
    small: Vec<u8>,
    pub(super) sink: Sink<B>,
    pub(super) pending: Pending,
    /// Bytes of the data segment, and of them still to come.
    len: usize,
    left: usize,
    crc: Option<Crc32c>,
    trailer: [u8; 3 + DIGEST_LEN],
    trailer_at: usize,
}

impl<B> Rx<B> {
    pub(super) fn new() -> Self {
        Self {
            part: Part::Header,
            head: Vec::with_capacity(BHS_LEN + DIGEST_LEN),
            small: Vec::new(),
            sink: Sink::Discard,
            pending: Pending::Nothing,
            len: 0,
            left: 0,
            crc: None,
            trailer: [0; 3 + DIGEST_LEN],
            trailer_at: 0,
        }
    }

    /// The basic header segment of the current PDU; complete from `Part::Data` on.
    pub(super) fn bhs(&self) -> Bhs {
        let mut bhs = [0; BHS_LEN];
        bhs.copy_from_slice(&self.head[..BHS_LEN]);
        bhs
    }

    /// The additional header segments of the current PDU.
    pub(super) fn ahs(&self) -> &[u8] {
        let len = usize::from(self.head[4]) * 4;
        &self.head[BHS_LEN..BHS_LEN + len]
    }

    /// Length of the current PDU's header with all that belongs to it.
    fn head_len(&self, digest: bool) -> usize {
        match self.head.get(4) {
            Some(words) if self.head.len() >= BHS_LEN => {
                BHS_LEN + usize::from(*words) * 4 + if digest { DIGEST_LEN } else { 0 }
            }
            _ => BHS_LEN,
        }
    }

    /// True in the middle of a PDU.
    pub(super) fn in_pdu(&self) -> bool {
        self.part != Part::Header || !self.head.is_empty()
    }

    /// Bytes of the current PDU that have come.
    pub(super) fn received(&self) -> u64 {
        let data = if self.part == Part::Header { 0 } else { self.len - self.left };
        let trailer = if self.part == Part::Trailer { self.trailer_at } else { 0 };
        (self.head.len() + data + trailer) as u64
    }

    /// The command or the transfer whose data is arriving, and how much of its data segment has come.
    pub(super) fn arriving(&self) -> (Option<Tag>, Option<usize>, u64) {
        let arrived = if self.part == Part::Header { 0 } else { (self.len - self.left) as u64 };
        match self.pending {
            Pending::Unsolicited(tag) | Pending::Command(tag) => (Some(tag), None, arrived),
            Pending::Solicited(_, index) => (None, Some(index), arrived),
            _ => (None, None, 0),
        }
    }

    fn trailer_len(&self) -> usize {
        if self.len == 0 {
            return 0;
        }
        pdu::padding(self.len) + if self.crc.is_some() { DIGEST_LEN } else { 0 }
    }

    /// True when the data digest, if there is one, is right.
    fn digest_is_right(&mut self) -> bool {
        let Some(mut crc) = self.crc.take() else { return true };
        let pad = pdu::padding(self.len);
        // The padding that was sent counts, whatever it is.
        crc.update(&self.trailer[..pad]);
        crc.finish() == self.trailer[pad..pad + DIGEST_LEN]
    }

    /// Takes the buffer that was filled out of the sink.
    pub(super) fn take_payload(&mut self) -> Option<B> {
        match core::mem::replace(&mut self.sink, Sink::Discard) {
            Sink::Payload(buf, _) => buf,
            Sink::Discard | Sink::Small => None,
        }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// The place of the next bytes of the stream, when they are write data: the caller receives
    /// into it and gives it back with `rx_payload`. None: all bytes go to `rx_bytes`.
    pub fn take_rx_target(&mut self) -> Option<RxTarget<B>> {
        if self.rx.part != Part::Data || self.rx.left == 0 {
            return None;
        }
        let Sink::Payload(buf, at) = &mut self.rx.sink else { return None };
        let range = *at..*at + self.rx.left;
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
        let n = n.min(self.rx.left).min(target.range.len());
        if n > 0 {
            self.heard(cx.now);
        }
        if let Some(crc) = &mut self.rx.crc {
            crc.update(&target.buf.as_ref()[target.range.start..target.range.start + n]);
        }
        // An abort in the meantime turned the sink into Discard: the buffer is dropped.
        if let Sink::Payload(buf, at) = &mut self.rx.sink {
            *buf = Some(target.buf);
            *at += n;
        }
        self.data_arrived(n, cx);
    }

    /// The next bytes of the stream; all of them are consumed.
    pub fn rx_bytes<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        mut bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) {
        if !bytes.is_empty() {
            self.heard(cx.now);
        }
        while !bytes.is_empty() && self.phase != Phase::Closed {
            let taken = match self.rx.part {
                Part::Header => self.rx_header(bytes, cx),
                Part::Data => self.rx_data(bytes, cx),
                Part::Trailer => self.rx_trailer(bytes, cx),
            };
            bytes = &bytes[taken..];
        }
    }

    fn rx_header<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) -> usize {
        let digest = self.digests.header;
        let need = self.rx.head_len(digest) - self.rx.head.len();
        let taken = need.min(bytes.len());
        self.rx.head.extend_from_slice(&bytes[..taken]);
        if taken == need && self.rx.head.len() == self.rx.head_len(digest) {
            self.header_complete(cx);
        }
        taken
    }

    fn rx_data<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) -> usize {
        let taken = bytes.len().min(self.rx.left);
        let bytes = &bytes[..taken];
        if let Some(crc) = &mut self.rx.crc {
            crc.update(bytes);
        }
        match &mut self.rx.sink {
            Sink::Discard => {}
            Sink::Small => self.rx.small.extend_from_slice(bytes),
            Sink::Payload(buf, at) => {
                if let Some(buf) = buf {
                    buf.as_mut()[*at..*at + taken].copy_from_slice(bytes);
                }
                *at += taken;
            }
        }
        self.data_arrived(taken, cx);
        taken
    }

    fn rx_trailer<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, S, T>,
    ) -> usize {
        let (at, need) = (self.rx.trailer_at, self.rx.trailer_len());
        let taken = bytes.len().min(need - at);
        self.rx.trailer[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.rx.trailer_at += taken;
        if self.rx.trailer_at == need {
            self.pdu_complete(cx);
        }
        taken
    }

    /// The next `n` bytes of the data segment have arrived where they go.
    pub(super) fn data_arrived<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        n: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        self.rx.left -= n;
        if self.rx.left > 0 || self.rx.part != Part::Data {
            return;
        }
        self.rx.part = Part::Trailer;
        self.rx.trailer_at = 0;
        if self.rx.trailer_len() == 0 {
            self.pdu_complete(cx);
        }
    }

    /// The whole header is there: checks what concerns framing, chooses where the data goes.
    fn header_complete<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        self.counters.pdus_in += 1;
        let bhs = self.rx.bhs();
        let header = BasicHeader::from_bhs(&bhs);
        let covered = BHS_LEN + header.ahs_len();
        if self.digests.header && crc32c(&self.rx.head[..covered]) != self.rx.head[covered..] {
            self.counters.header_digest_errors += 1;
            return self.close(CloseReason::HeaderDigest, cx.events);
        }
        if let Some(reason) = self.format_error(header) {
            self.counters.format_errors += 1;
            return self.close(reason, cx.events);
        }
        self.rx.len = header.data_len();
        self.rx.left = self.rx.len;
        self.rx.crc = (self.digests.data && self.rx.len > 0).then(Crc32c::new);
        self.rx.small.clear();
        let (sink, pending) = self.begin(&bhs, cx);
        if self.phase == Phase::Closed {
            return;
        }
        (self.rx.sink, self.rx.pending) = (sink, pending);
        self.rx.part = Part::Data;
        if self.rx.len == 0 {
            self.pdu_complete(cx);
        }
    }

    /// What makes the layout of a PDU impossible, so that the stream cannot be followed.
    fn format_error(&self, header: &BasicHeader) -> Option<CloseReason> {
        let login = matches!(self.phase, Phase::Login | Phase::Admission);
        if login && header.opcode() != Some(Opcode::LoginRequest) && self.login_is_new() {
            return Some(CloseReason::NotALogin);
        }
        let limit = if login { MAX_LOGIN_SEGMENT as u32 } else { self.negotiated.target_max_recv };
        let len = header.data_len.get();
        if len > limit {
            return Some(CloseReason::SegmentTooLong { len, limit });
        }
        let ahs_allowed = header.opcode() == Some(Opcode::ScsiCommand);
        (header.ahs_words > 0 && !ahs_allowed).then_some(CloseReason::UnexpectedAhs)
    }

    /// Chooses where the data of a PDU goes and what happens when it is complete.
    fn begin<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, S, T>,
    ) -> (Sink<B>, Pending) {
        if self.phase != Phase::FullFeature {
            return (Sink::Small, Pending::Other);
        }
        match BasicHeader::from_bhs(bhs).opcode() {
            Some(Opcode::ScsiCommand) => self.begin_command(bhs, cx),
            Some(Opcode::DataOut) => self.begin_data_out(bhs, cx),
            Some(Opcode::NopOut | Opcode::TextRequest) => (Sink::Small, Pending::Other),
            Some(Opcode::TmfRequest | Opcode::LogoutRequest | Opcode::SnackRequest) => {
                (Sink::Discard, Pending::Other)
            }
            Some(Opcode::LoginRequest) => {
                self.counters.protocol_errors += 1;
                self.close(CloseReason::LoginAgain, cx.events);
                (Sink::Discard, Pending::Nothing)
            }
            _ => {
                self.counters.protocol_errors += 1;
                (Sink::Discard, Pending::Reject(RejectReason::CommandNotSupported))
            }
        }
    }

    /// A PDU is complete.
    fn pdu_complete<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        let bhs = self.rx.bhs();
        let right = self.rx.digest_is_right();
        self.counters.data_digest_errors += u64::from(!right);
        match core::mem::replace(&mut self.rx.pending, Pending::Nothing) {
            Pending::Nothing => {}
            Pending::Reject(reason) => self.reject(reason, &bhs, cx.tx),
            Pending::Command(tag) => self.command_complete(tag, &bhs, right, cx),
            Pending::Unsolicited(tag) => self.unsolicited_complete(tag, &bhs, right, cx),
            Pending::Solicited(tag, index) => {
                self.solicited_complete(tag, index, &bhs, right, cx);
            }
            Pending::Other if right => {
                let mut data = core::mem::take(&mut self.rx.small);
                self.control(&bhs, &data, cx);
                data.clear();
                data.shrink_to(KEEP_SMALL);
                self.rx.small = data;
            }
            Pending::Other => self.reject(RejectReason::DataDigestError, &bhs, cx.tx),
        }
        self.rx.sink = Sink::Discard;
        self.rx.head.clear();
        self.rx.part = Part::Header;
    }
}
