//! Taking the byte stream apart into PDUs, at either end.

use crate::digest::{Crc32c, DIGEST_LEN, crc32c};
use crate::pdu::{COMMON_LEN, Common, Header, Layout, PduError, Rules, TERM_DATA_MAX};
use zerocopy::FromBytes;

/// Longest header with its digest, in bytes.
const HEAD_MAX: usize = 128 + DIGEST_LEN;

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The common header, then the rest of the header and its digest.
    Head,
    /// What fills up to the data.
    Gap,
    /// Data.
    Data,
    /// The data digest.
    Digest,
}

/// What the bytes led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The PDU goes on.
    More,
    /// The header is complete. A PDU without data is complete, too.
    Header,
    /// All is there; the data digest, if there is one, is right or not.
    Pdu(bool),
}

/// Takes the stream apart.
#[derive(Debug)]
pub(crate) struct Receiver {
    part: Part,
    head: [u8; HEAD_MAX],
    have: usize,
    layout: Option<Layout>,
    /// Bytes of the gap or the data that came.
    got: usize,
    crc: Crc32c,
    digest: [u8; DIGEST_LEN],
}

impl Receiver {
    /// Nothing came yet.
    pub(crate) fn new() -> Self {
        Self {
            part: Part::Head,
            head: [0; HEAD_MAX],
            have: 0,
            layout: None,
            got: 0,
            crc: Crc32c::default(),
            digest: [0; DIGEST_LEN],
        }
    }

    /// True in the middle of a PDU.
    pub(crate) fn in_pdu(&self) -> bool {
        self.part != Part::Head || self.have > 0
    }

    /// Bytes of data that are to come next; 0 if the next bytes are something else.
    pub(crate) fn data_left(&self) -> usize {
        match (self.part, self.layout) {
            (Part::Data, Some(layout)) => layout.data - self.got,
            _ => 0,
        }
    }

    /// Bytes of data that have come of the PDU that is being received.
    pub(crate) fn data_got(&self) -> usize {
        if self.part == Part::Data { self.got } else { 0 }
    }

    /// The layout of the PDU whose header is complete.
    pub(crate) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// The header of the PDU, which is complete.
    pub(crate) fn header<H: Header + Copy + Default>(&self) -> H {
        H::view(&self.head).copied().unwrap_or_default()
    }

    /// What has come of the header, at most as much as a termination request carries.
    pub(crate) fn blamed(&self) -> &[u8] {
        let head = match (self.have, self.layout) {
            (0, Some(layout)) => layout.head,
            (have, _) => have,
        };
        &self.head[..head.min(TERM_DATA_MAX)]
    }

    /// Takes some of `bytes`, which are not data and not empty. Returns how many.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        rules: &Rules,
    ) -> Result<(usize, Progress), PduError> {
        match self.part {
            Part::Head => self.feed_head(bytes, rules),
            Part::Gap => {
                let gap = self.layout.map_or(0, |layout| layout.gap);
                let used = bytes.len().min(gap - self.got);
                self.got += used;
                if self.got == gap {
                    self.begin_data();
                }
                Ok((used, Progress::More))
            }
            // The owner takes the data.
            Part::Data => Ok((0, Progress::More)),
            Part::Digest => {
                let used = bytes.len().min(DIGEST_LEN - self.got);
                self.digest[self.got..self.got + used].copy_from_slice(&bytes[..used]);
                self.got += used;
                if self.got < DIGEST_LEN {
                    return Ok((used, Progress::More));
                }
                let right = self.crc.finish() == self.digest;
                self.part = Part::Head;
                Ok((used, Progress::Pdu(right)))
            }
        }
    }

    fn feed_head(&mut self, bytes: &[u8], rules: &Rules) -> Result<(usize, Progress), PduError> {
        if self.have == 0 {
            self.layout = None;
        }
        let want = self.layout.map_or(COMMON_LEN, |layout| layout.head);
        let used = bytes.len().min(want - self.have);
        self.head[self.have..self.have + used].copy_from_slice(&bytes[..used]);
        self.have += used;
        if self.have < want {
            return Ok((used, Progress::More));
        }
        let Some(layout) = self.layout else {
            let common =
                Common::read_from_prefix(&self.head).map_or_else(|_| Common::default(), |(c, _)| c);
            self.layout = Some(common.layout(rules)?);
            return Ok((used, Progress::More));
        };
        if layout.header_digest {
            let (covered, found) = self.head[..want].split_at(want - DIGEST_LEN);
            let found = found.try_into().unwrap_or_default();
            if crc32c(covered) != found {
                return Err(PduError::HeaderDigest(found));
            }
        }
        self.have = 0;
        self.got = 0;
        match (layout.data, layout.gap) {
            (0, _) => {}
            (_, 0) => self.begin_data(),
            _ => self.part = Part::Gap,
        }
        Ok((used, Progress::Header))
    }

    fn begin_data(&mut self) {
        self.part = Part::Data;
        self.got = 0;
        self.crc = Crc32c::default();
    }

    /// These bytes of data came, at most [`Self::data_left`].
    pub(crate) fn took(&mut self, bytes: &[u8]) -> Progress {
        let Some(layout) = self.layout else { return Progress::More };
        if layout.data_digest {
            self.crc.update(bytes);
        }
        self.skipped(bytes.len())
    }

    /// So many bytes of data came, at most [`Self::data_left`], of which there is no digest or
    /// which are part of it already.
    pub(crate) fn skipped(&mut self, n: usize) -> Progress {
        let Some(layout) = self.layout else { return Progress::More };
        self.got += n;
        if self.got < layout.data {
            return Progress::More;
        }
        if layout.data_digest {
            self.part = Part::Digest;
            self.got = 0;
            return Progress::More;
        }
        self.part = Part::Head;
        Progress::Pdu(true)
    }
}
