//! Framing of what is sent.

use crate::digest::{Crc32c, DIGEST_LEN};
use crate::iser::Header;
use crate::pdu::{Bhs, DataOut, FINAL, RESERVED_TAG, U24, Wire, padding};
use alloc::vec::Vec;
use core::ops::Range;

/// Takes the bytes to send, in wire order: those of a stream, or those of Sends.
pub trait Transmit<W> {
    /// Takes a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);

    /// Takes a part of a write's data. The command keeps `data` until it ends; an implementation
    /// that does not copy holds on to it by itself (a `W` that is cheap to clone).
    fn data(&mut self, data: &W, range: Range<usize>);

    /// Over RDMA: what was taken since the last call is one Send. A stream is not told.
    fn end_send(&mut self) {
        debug_assert!(false, "a Send on a stream");
    }
}

impl<W: AsRef<[u8]>> Transmit<W> for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &W, range: Range<usize>) {
        self.extend_from_slice(&data.as_ref()[range]);
    }
}

/// The data segment of a PDU.
#[derive(Debug)]
pub(super) enum Body<'a, W> {
    /// Plain bytes.
    Bytes(&'a [u8]),
    /// A part of a write's data.
    Slice(&'a W, Range<usize>),
}

/// How PDUs are wrapped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Framing {
    pub header_digest: bool,
    pub data_digest: bool,
    /// Each PDU is a Send, behind an iSER header.
    pub rdma: bool,
}

impl Framing {
    /// Before the login.
    pub fn new(rdma: bool) -> Self {
        Self { rdma, ..Self::default() }
    }

    /// Bytes of a header digest.
    pub fn header_digest_len(self) -> usize {
        if self.header_digest { DIGEST_LEN } else { 0 }
    }

    /// Bytes of a data digest.
    pub fn data_digest_len(self) -> usize {
        if self.data_digest { DIGEST_LEN } else { 0 }
    }

    /// Sends a PDU that is only a header.
    pub fn header_only<W, T: Transmit<W>>(self, pdu: &impl Wire, tx: &mut T) {
        self.header(Header::default(), pdu.as_bhs(), &[], tx);
        if self.rdma {
            tx.end_send();
        }
    }

    /// Sends a whole PDU. The lengths in the header must fit.
    pub fn pdu<W: AsRef<[u8]>, T: Transmit<W>>(
        self,
        bhs: &Bhs,
        ahs: &[u8],
        body: Body<'_, W>,
        tx: &mut T,
    ) {
        self.opening(Header::default(), bhs, ahs, body, tx);
    }

    /// Sends a whole PDU that, over RDMA, opens memory to the target.
    pub fn opening<W: AsRef<[u8]>, T: Transmit<W>>(
        self,
        opened: Header,
        bhs: &Bhs,
        ahs: &[u8],
        body: Body<'_, W>,
        tx: &mut T,
    ) {
        self.header(opened, bhs, ahs, tx);
        let (len, digest) = match body {
            Body::Bytes(bytes) => {
                tx.bytes(bytes);
                (bytes.len(), self.data_digest(bytes))
            }
            Body::Slice(data, range) => {
                let len = range.len();
                let digest = self.data_digest(&data.as_ref()[range.clone()]);
                if len > 0 {
                    tx.data(data, range);
                }
                (len, digest)
            }
        };
        if self.rdma {
            return tx.end_send();
        }
        tx.bytes(&[0; 3][..padding(len)]);
        if let Some(digest) = digest {
            tx.bytes(&digest);
        }
    }

    fn header<W, T: Transmit<W>>(self, opened: Header, bhs: &Bhs, ahs: &[u8], tx: &mut T) {
        if self.rdma {
            tx.bytes(&opened.to_bytes());
        }
        tx.bytes(bhs);
        tx.bytes(ahs);
        if self.header_digest {
            let mut crc = Crc32c::new();
            crc.update(bhs);
            crc.update(ahs);
            tx.bytes(&crc.finish());
        }
    }

    /// The digest of a data segment; an empty one has none.
    fn data_digest(self, bytes: &[u8]) -> Option<[u8; DIGEST_LEN]> {
        if !self.data_digest || bytes.is_empty() {
            return None;
        }
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.pad(bytes.len());
        Some(crc.finish())
    }
}

/// What the Data-Out PDUs of one sequence have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub lun: u64,
    pub itt: u32,
    /// Target Transfer Tag of the R2T, or the reserved tag.
    pub ttt: u32,
    pub exp_stat_sn: u32,
    /// Longest data segment that the target takes, in bytes.
    pub segment: usize,
}

impl Burst {
    /// Sends `range` of a command's data as one sequence.
    pub fn send<W: AsRef<[u8]>, T: Transmit<W>>(
        self,
        framing: Framing,
        data: &W,
        range: Range<usize>,
        tx: &mut T,
    ) {
        let mut pdu = DataOut {
            // The logical unit number goes with a Target Transfer Tag only.
            lun: if self.ttt == RESERVED_TAG { 0 } else { self.lun }.into(),
            itt: self.itt.into(),
            ttt: self.ttt.into(),
            exp_stat_sn: self.exp_stat_sn.into(),
            ..Default::default()
        };
        let mut start = range.start;
        let mut data_sn = 0u32;
        while start < range.end {
            let end = range.end.min(start + self.segment);
            pdu.flags = if end == range.end { FINAL } else { 0 };
            pdu.data_len = U24::new((end - start) as u32);
            pdu.data_sn = data_sn.into();
            pdu.offset = (start as u32).into();
            framing.pdu(pdu.as_bhs(), &[], Body::Slice(data, start..end), tx);
            data_sn = data_sn.wrapping_add(1);
            start = end;
        }
    }
}
