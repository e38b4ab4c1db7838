//! Receiving: what each PDU of the controller leads to.

use super::{Connection, Cx, Data, Error, MAX_SLOTS, Phase};
use crate::command::{Completion, Cqe};
use crate::fabrics::Connected;
use crate::pdu::{
    self, CapsuleResp, DGST_DATA, DGST_HEADER, Framing, IcResp, LAST_PDU, R2t, Rules, SUCCESS,
    Sender, TermReq, Type,
};
use crate::stream::Progress;
use crate::transmit::{Payload, RxTarget, Transmit};
use zerocopy::FromBytes;

/// Least MAXH2CDATA (NVMe/TCP section 3.6.2.3).
const MIN_H2C_DATA: u32 = 4096;

/// What the PDU that is being received is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// One without data that matters.
    Nothing,
    /// Data of the command with this identifier, from this byte on.
    Data(u16, usize),
    /// A termination request.
    Terminate,
}

impl<R: AsMut<[u8]>, W: Payload + Clone> Connection<R, W> {
    /// The buffer that the next bytes of the stream belong into, if they are data of a read.
    /// Receive into it and give it back with [`Self::rx_payload`] before anything else.
    pub fn take_rx_target(&mut self) -> Option<RxTarget<R>> {
        let left = self.rx.data_left();
        let Incoming::Data(cid, at) = self.incoming else { return None };
        if left == 0 || self.is_over() {
            return None;
        }
        let task = self.task(cid)?;
        match core::mem::take(&mut task.data) {
            Data::Read(buf) => Some(RxTarget { buf, range: at..at + left }),
            other => {
                task.data = other;
                None
            }
        }
    }

    /// Gives a buffer back: `n` bytes of its range were filled.
    pub fn rx_payload<T: Transmit<Payload = W>>(
        &mut self,
        mut target: RxTarget<R>,
        n: usize,
        cx: &mut Cx<'_, R, T>,
    ) {
        let Incoming::Data(cid, at) = self.incoming else { return };
        let n = n.min(self.rx.data_left()).min(target.range.len());
        let start = target.range.start;
        let progress = self.rx.took(&target.buf.as_mut()[start..start + n]);
        self.incoming = Incoming::Data(cid, at + n);
        if let Some(task) = self.task(cid) {
            task.data = Data::Read(target.buf);
        }
        self.progressed(progress, cx);
    }

    /// How many of the next bytes of the stream may be thrown away unseen: data of
    /// [`Data::Discard`], unless there is a digest of it.
    #[must_use]
    pub fn discardable(&self) -> usize {
        let Incoming::Data(cid, _) = self.incoming else { return 0 };
        let slot = usize::from(cid) & (MAX_SLOTS - 1);
        match self.tasks.get(slot).map(|task| &task.data) {
            Some(Data::Discard(_)) if !self.inbound.data_digest && self.is_ready() => {
                self.rx.data_left()
            }
            _ => 0,
        }
    }

    /// `n` bytes came and were thrown away, at most as many as [`Self::discardable`] says.
    pub fn rx_discarded<T: Transmit<Payload = W>>(&mut self, n: usize, cx: &mut Cx<'_, R, T>) {
        let n = n.min(self.discardable());
        if n > 0 {
            let progress = self.rx.skipped(n);
            self.progressed(progress, cx);
        }
    }

    /// Takes received bytes, all of them. After a failure they are ignored.
    pub fn rx_bytes<T: Transmit<Payload = W>>(&mut self, mut bytes: &[u8], cx: &mut Cx<'_, R, T>) {
        while !bytes.is_empty() && !self.is_over() {
            let used = match self.rx.data_left() {
                0 => match self.rx.feed(bytes, &self.rules()) {
                    Ok((used, progress)) => {
                        self.progressed(progress, cx);
                        used
                    }
                    Err(error) => {
                        self.fail(error.into(), cx);
                        bytes.len()
                    }
                },
                left => {
                    let piece = &bytes[..left.min(bytes.len())];
                    self.fill(piece);
                    let progress = self.rx.took(piece);
                    self.progressed(progress, cx);
                    piece.len()
                }
            };
            bytes = &bytes[used..];
        }
    }

    /// What is taken at this time.
    fn rules(&self) -> Rules {
        Rules {
            sender: Sender::Controller,
            framing: self.inbound,
            max_capsule: 0,
            max_data: u32::MAX,
        }
    }

    /// Puts bytes of data where they belong.
    fn fill(&mut self, piece: &[u8]) {
        let Incoming::Data(cid, at) = self.incoming else { return };
        self.incoming = Incoming::Data(cid, at + piece.len());
        if let Some(proof) = &mut self.proof {
            proof.fill(cid, at, piece);
        } else if let Some(Data::Read(buf)) = self.task(cid).map(|task| &mut task.data) {
            buf.as_mut()[at..at + piece.len()].copy_from_slice(piece);
        }
    }

    fn progressed<T: Transmit<Payload = W>>(&mut self, progress: Progress, cx: &mut Cx<'_, R, T>) {
        let result = match progress {
            Progress::More => Ok(()),
            Progress::Header => self.begin(cx),
            Progress::Pdu(true) => self.complete(cx),
            Progress::Pdu(false) => Err(Error::DataDigest),
        };
        if let Err(error) = result {
            self.fail(error, cx);
        }
    }

    /// A header is there.
    fn begin<T: Transmit<Payload = W>>(&mut self, cx: &mut Cx<'_, R, T>) -> Result<(), Error> {
        let Some(layout) = self.rx.layout() else { return Ok(()) };
        self.incoming = Incoming::Nothing;
        match (layout.kind, self.phase) {
            (Type::C2hTermReq, _) => {
                self.incoming = Incoming::Terminate;
                if layout.data == 0 { self.complete(cx) } else { Ok(()) }
            }
            (Type::IcResp, Phase::Initialize(_)) => self.initialized(cx),
            (Type::CapsuleResp, Phase::Connect(_) | Phase::Authenticate(_) | Phase::Ready) => {
                let response: CapsuleResp = self.rx.header();
                self.answered(Cqe::read_from_bytes(&response.cqe).unwrap_or_default(), cx)
            }
            (Type::R2t, Phase::Ready) => self.asked(cx),
            (Type::C2hData, Phase::Ready | Phase::Authenticate(_)) => self.begin_data(layout.data),
            _ => Err(Error::Sequence),
        }
    }

    /// The controller answers the ICReq.
    fn initialized<T: Transmit<Payload = W>>(
        &mut self,
        cx: &mut Cx<'_, R, T>,
    ) -> Result<(), Error> {
        let response: IcResp = self.rx.header();
        let header = if self.options.header_digest { DGST_HEADER } else { 0 };
        let data = if self.options.data_digest { DGST_DATA } else { 0 };
        let most = response.maxh2cdata.get();
        if response.pfv.get() != 0 {
            return Err(Error::Initialize(8));
        } else if response.cpda > pdu::MAX_ALIGNMENT {
            return Err(Error::Initialize(10));
        } else if response.dgst != header | data {
            return Err(Error::Initialize(11));
        } else if most < MIN_H2C_DATA || most % 4 != 0 {
            return Err(Error::Initialize(12));
        }
        self.max_h2c_data = most;
        self.inbound = Framing {
            header_digest: header != 0,
            data_digest: data != 0,
            alignment: self.options.alignment,
        };
        self.outbound = Framing { alignment: response.cpda, ..self.inbound };
        self.connect(cx.now, cx.tx);
        Ok(())
    }

    /// A command was answered.
    pub(super) fn answered<T: Transmit<Payload = W>>(
        &mut self,
        cqe: Cqe,
        cx: &mut Cx<'_, R, T>,
    ) -> Result<(), Error> {
        match self.phase {
            Phase::Connect(_) => self.connected(cqe, cx),
            Phase::Authenticate(_) => self.proof_answered(cqe.cid.get(), cqe.completion(), cx),
            Phase::Ready => {
                self.sqhd = cqe.sqhd.get();
                self.finish(cqe.cid.get(), cqe.completion(), cx.events)
            }
            _ => Err(Error::Sequence),
        }
    }

    /// The controller answers the Connect.
    fn connected<T: Transmit<Payload = W>>(
        &mut self,
        cqe: Cqe,
        cx: &mut Cx<'_, R, T>,
    ) -> Result<(), Error> {
        let cid = cqe.cid.get();
        self.task(cid).ok_or(Error::UnknownCommand(cid))?;
        self.tasks.clear();
        let completion = cqe.completion();
        if !completion.status.is_success() {
            return Err(Error::Refused(completion));
        }
        self.sqhd = cqe.sqhd.get();
        self.begin_proof(Connected::decode(completion.result), cx)
    }

    /// The controller asks for data.
    fn asked<T: Transmit<Payload = W>>(&mut self, cx: &mut Cx<'_, R, T>) -> Result<(), Error> {
        let r2t: R2t = self.rx.header();
        let cid = r2t.cccid.get();
        let task = self.task(cid).ok_or(Error::UnknownCommand(cid))?;
        let (offset, len) = (r2t.r2to.get(), r2t.r2tl.get());
        let end = offset.checked_add(len).filter(|end| *end <= task.len && len > 0);
        // What was sent once is not sent again.
        let Some(end) = end.filter(|_| !task.reads && offset >= task.moved) else {
            return Err(Error::DataRange);
        };
        task.moved = end;
        let tag = task.tag;
        self.send_data(tag, r2t.ttag, (offset, end), cx.tx);
        Ok(())
    }

    /// The header of a C2HData is there.
    fn begin_data(&mut self, len: usize) -> Result<(), Error> {
        let data: pdu::Data = self.rx.header();
        let cid = data.cccid.get();
        let task = self.task(cid).ok_or(Error::UnknownCommand(cid))?;
        if data.datal.get() as usize != len || len == 0 {
            return Err(Error::DataLength);
        }
        let in_order = task.reads && data.datao.get() == task.moved;
        let Some(end) = task.moved.checked_add(data.datal.get()).filter(|end| *end <= task.len)
        else {
            return Err(Error::DataRange);
        };
        if !in_order {
            return Err(Error::DataRange);
        }
        let at = task.moved as usize;
        task.moved = end;
        self.incoming = Incoming::Data(cid, at);
        Ok(())
    }

    /// A PDU with data is complete.
    fn complete<T: Transmit<Payload = W>>(&mut self, cx: &mut Cx<'_, R, T>) -> Result<(), Error> {
        match core::mem::replace(&mut self.incoming, Incoming::Nothing) {
            Incoming::Nothing => Ok(()),
            Incoming::Data(cid, _) => {
                let data: pdu::Data = self.rx.header();
                match data.common.flags & (LAST_PDU | SUCCESS) == LAST_PDU | SUCCESS {
                    true if self.proof.is_some() => {
                        self.proof_answered(cid, Completion::SUCCESS, cx)
                    }
                    true => self.finish(cid, Completion::SUCCESS, cx.events),
                    false => Ok(()),
                }
            }
            Incoming::Terminate => {
                let request: TermReq = self.rx.header();
                Err(Error::Terminated { fes: request.fes.get(), fei: request.fei.get() })
            }
        }
    }
}
