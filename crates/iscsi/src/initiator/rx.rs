//! The received stream: headers, data segments and digests.

use super::task::Task;
use super::{Connection, Cx, Data, Error, Tag, Transmit};
use crate::digest::{Crc32c, DIGEST_LEN};
use crate::pdu::{BHS_LEN, BasicHeader, Bhs, Opcode, padding};
use alloc::vec::Vec;
use core::ops::Range;

/// A read's buffer, on loan for one receive: the next bytes of the stream belong into `range`.
#[derive(Debug)]
pub struct RxTarget<R> {
    /// The buffer.
    pub buf: R,
    /// Where the next bytes go. Never empty.
    pub range: Range<usize>,
    /// The read.
    pub tag: Tag,
}

/// Where a data segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    /// Into the buffer of this command, at this offset.
    Task(Tag, usize),
    /// Into [`Receiver::collected`].
    Collect,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    Data(Sink),
    /// Padding and data digest.
    Trailer,
}

/// Takes the stream apart.
#[derive(Debug)]
pub(super) struct Receiver {
    part: Part,
    /// The header with what follows it, up to the data segment.
    head: Vec<u8>,
    bhs: Bhs,
    /// Bytes of the data segment, and how many of them came.
    len: usize,
    got: usize,
    crc: Crc32c,
    trailer: [u8; 3 + DIGEST_LEN],
    trailer_got: usize,
    /// The data segment of a PDU that is not a Data-In.
    pub collected: Vec<u8>,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            part: Part::Header,
            head: Vec::with_capacity(BHS_LEN + DIGEST_LEN),
            bhs: [0; BHS_LEN],
            len: 0,
            got: 0,
            crc: Crc32c::new(),
            trailer: [0; 3 + DIGEST_LEN],
            trailer_got: 0,
            collected: Vec::new(),
        }
    }
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// Takes received bytes, all of them. After a failure they are ignored.
    pub fn rx_bytes<T: Transmit<W>>(&mut self, mut bytes: &[u8], cx: &mut Cx<'_, R, W, T>) {
        self.heard = cx.now;
        while !bytes.is_empty() && !self.is_over() {
            match self.rx_some(bytes, cx) {
                Ok(used) => bytes = &bytes[used..],
                Err(error) => self.fail(error, cx.events),
            }
        }
    }

    /// The buffer that the next bytes of the stream belong into, if they are Data-In. Receive into
    /// it and give it back with [`rx_payload`](Self::rx_payload) before anything else.
    pub fn take_rx_target(&mut self) -> Option<RxTarget<R>> {
        let Part::Data(Sink::Task(tag, offset)) = self.rx.part else { return None };
        let range = offset + self.rx.got..offset + self.rx.len;
        let (_, task) = self.tasks.command(tag.number()).ok()?;
        match core::mem::take(&mut task.data) {
            Data::Read(buf) => Some(RxTarget { buf, range, tag }),
            other => {
                task.data = other;
                None
            }
        }
    }

    /// How many of the next bytes of the stream belong to a read whose data is thrown away. They need
    /// not be shown: it is enough to tell with [`rx_discarded`](Self::rx_discarded) how many
    /// came. 0 with data digests, which have to be computed.
    #[must_use]
    pub fn discardable(&self) -> usize {
        let Part::Data(Sink::Task(tag, _)) = self.rx.part else { return 0 };
        match self.tasks.get(tag) {
            Some(Task::Command(task))
                if matches!(task.data, Data::Discard(_)) && !self.framing.data_digest =>
            {
                self.rx.len - self.rx.got
            }
            _ => 0,
        }
    }

    /// `n` bytes came and were thrown away, at most as many as
    /// [`discardable`](Self::discardable) has said.
    pub fn rx_discarded<T: Transmit<W>>(&mut self, n: usize, cx: &mut Cx<'_, R, W, T>) {
        let n = n.min(self.discardable());
        if n == 0 {
            return;
        }
        self.heard = cx.now;
        self.rx.got += n;
        if let Err(error) = self.end_of_data(cx) {
            self.fail(error, cx.events);
        }
    }

    /// Gives a buffer back: `n` bytes of its range were filled.
    pub fn rx_payload<T: Transmit<W>>(
        &mut self,
        target: RxTarget<R>,
        n: usize,
        cx: &mut Cx<'_, R, W, T>,
    ) {
        let RxTarget { mut buf, range, tag } = target;
        let Ok((_, task)) = self.tasks.command(tag.number()) else { return };
        let filled = range.start..range.end.min(range.start + n);
        if n > 0 {
            self.heard = cx.now;
        }
        if self.framing.data_digest {
            self.rx.crc.update(&buf.as_mut()[filled.clone()]);
        }
        task.data = Data::Read(buf);
        self.rx.got += filled.len();
        if let Err(error) = self.end_of_data(cx) {
            self.fail(error, cx.events);
        }
    }

    /// Uses some of `bytes`, which are not empty. Returns how many.
    fn rx_some<T: Transmit<W>>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<usize, Error> {
        match self.rx.part {
            Part::Header => self.rx_header(bytes, cx),
            Part::Data(sink) => {
                let used = self.rx_data(bytes, sink)?;
                self.end_of_data(cx)?;
                Ok(used)
            }
            Part::Trailer => self.rx_trailer(bytes, cx),
        }
    }

    fn rx_header<T: Transmit<W>>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<usize, Error> {
        let digest = self.framing.header_digest_len();
        let rx = &mut self.rx;
        let whole = BHS_LEN + digest;
        let want = if rx.head.len() < BHS_LEN { BHS_LEN } else { whole };
        let used = bytes.len().min(want - rx.head.len());
        rx.head.extend_from_slice(&bytes[..used]);
        if rx.head.len() < BHS_LEN {
            return Ok(used);
        }
        rx.bhs.copy_from_slice(&rx.head[..BHS_LEN]);
        // Nothing that a target sends has additional header segments. Seen at once: their length,
        // if damaged, would have to be waited for before the digest can tell.
        if BasicHeader::from_bhs(&rx.bhs).ahs_words != 0 {
            return Err(Error::AdditionalHeader);
        }
        if rx.head.len() < whole {
            return Ok(used);
        }
        if digest > 0 {
            let (covered, found) = rx.head.split_at(whole - digest);
            if crate::digest::crc32c(covered) != *found {
                return Err(Error::HeaderDigest);
            }
        }
        rx.head.clear();
        self.begin_pdu(cx)?;
        Ok(used)
    }

    /// A header is complete: decides where its data goes.
    fn begin_pdu<T: Transmit<W>>(&mut self, cx: &mut Cx<'_, R, W, T>) -> Result<(), Error> {
        let bhs = self.rx.bhs;
        let header = BasicHeader::from_bhs(&bhs);
        let len = header.data_len();
        if len > self.receive_limit() {
            return Err(Error::DataSegmentLength(len));
        }
        let sink = match header.opcode() {
            Some(Opcode::DataIn) => {
                let (tag, offset) = self.begin_data_in(&bhs)?;
                Sink::Task(tag, offset)
            }
            _ => Sink::Collect,
        };
        self.rx.collected.clear();
        if len == 0 {
            return self.end_pdu(cx);
        }
        self.rx.part = Part::Data(sink);
        self.rx.len = len;
        self.rx.got = 0;
        self.rx.crc = Crc32c::new();
        Ok(())
    }

    /// Takes bytes of the data segment.
    fn rx_data(&mut self, bytes: &[u8], sink: Sink) -> Result<usize, Error> {
        let used = bytes.len().min(self.rx.len - self.rx.got);
        let piece = &bytes[..used];
        match sink {
            Sink::Collect => self.rx.collected.extend_from_slice(piece),
            Sink::Task(tag, offset) => {
                let (_, task) = self.tasks.command(tag.number())?;
                match &mut task.data {
                    Data::Read(buf) => {
                        let start = offset + self.rx.got;
                        buf.as_mut()[start..start + used].copy_from_slice(piece);
                    }
                    Data::Discard(_) => {}
                    Data::None | Data::Write(_) => return Err(Error::BufferNotReturned),
                }
            }
        }
        if self.framing.data_digest {
            self.rx.crc.update(piece);
        }
        self.rx.got += used;
        Ok(used)
    }

    /// Goes on when the data segment is complete.
    fn end_of_data<T: Transmit<W>>(&mut self, cx: &mut Cx<'_, R, W, T>) -> Result<(), Error> {
        if self.rx.got < self.rx.len {
            return Ok(());
        }
        self.rx.trailer_got = 0;
        if self.trailer_len() == 0 {
            return self.end_pdu(cx);
        }
        self.rx.part = Part::Trailer;
        Ok(())
    }

    fn trailer_len(&self) -> usize {
        padding(self.rx.len) + self.framing.data_digest_len()
    }

    fn rx_trailer<T: Transmit<W>>(
        &mut self,
        bytes: &[u8],
        cx: &mut Cx<'_, R, W, T>,
    ) -> Result<usize, Error> {
        let want = self.trailer_len();
        let rx = &mut self.rx;
        let used = bytes.len().min(want - rx.trailer_got);
        rx.trailer[rx.trailer_got..rx.trailer_got + used].copy_from_slice(&bytes[..used]);
        rx.trailer_got += used;
        if rx.trailer_got < want {
            return Ok(used);
        }
        if self.framing.data_digest {
            let (pad, found) = rx.trailer[..want].split_at(want - DIGEST_LEN);
            rx.crc.update(pad);
            if rx.crc.finish() != *found {
                return Err(Error::DataDigest);
            }
        }
        self.end_pdu(cx)?;
        Ok(used)
    }

    /// A PDU is complete and undamaged.
    fn end_pdu<T: Transmit<W>>(&mut self, cx: &mut Cx<'_, R, W, T>) -> Result<(), Error> {
        self.rx.part = Part::Header;
        let bhs = self.rx.bhs;
        self.handle_pdu(&bhs, cx)
    }
}
