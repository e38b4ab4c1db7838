//! The client's data against the volume's.
//!
//! One piece at a time: it arrives, is written if the operation writes, is read back, is compared.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::{Buf, Payload};

use super::intake::{Intake, Piece, solicit};
use super::{Client, Failure, Progress};
use crate::limit::Cost;
use crate::operation::{CHUNK, Requests};
use crate::storage::Storage;

/// A comparison.
pub struct Compare {
    /// Offset on the volume.
    base: u64,
    /// The data on its way in, unless there is a pattern.
    pub(crate) intake: Intake,
    /// Bytes compared.
    compared: u64,
    /// Write each piece before it is read back.
    write_first: bool,
    /// Compare what was read; else it is enough that it could be read.
    compares: bool,
    /// What to compare with.
    pub(super) data: Data,
    /// Bytes to compare altogether.
    total: u64,
    /// A piece that is to be written first, while a limit is reached.
    held: Option<Piece>,
}

/// What [`Compare`] compares with.
pub enum Data {
    /// Nothing has come yet, or it is being written.
    None,
    /// A piece of the client's bytes, being compared.
    Piece(Piece),
    /// One block that every block must equal.
    Pattern(Buf),
}

impl Compare {
    /// A range against the client's data, which is written first if `write_first`. What was written is read back
    /// and, if `compares`, compared.
    pub fn new(range: ByteRange, intake: Intake, write_first: bool, compares: bool) -> Self {
        let (base, total) = (range.offset, range.len);
        Self {
            base,
            intake,
            compared: 0,
            write_first,
            compares,
            data: Data::None,
            total,
            held: None,
        }
    }

    /// Every block of a range against one.
    pub fn with_pattern(range: ByteRange, block: Buf) -> Self {
        Self { data: Data::Pattern(block), ..Self::new(range, Intake::nothing(), false, true) }
    }

    /// Gives back the memory that no request has.
    pub(super) fn drop_buffers(&mut self) {
        (self.data, self.held) = (Data::None, None);
    }

    /// Asks for the next piece, or reads back what has come.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        client: &mut impl Client,
    ) -> Progress {
        if let Some(piece) = self.held.take() {
            self.piece(requests, storage, piece);
        }
        if !requests.is_idle() || self.held.is_some() && !requests.is_failed() {
            return Progress::Waits;
        }
        if requests.is_failed() || self.compared == self.total {
            return Progress::Finished;
        }
        let left = match &self.data {
            Data::None => {
                let limits = (1, CHUNK / 16, Some(requests.volume), false);
                solicit(&mut self.intake, requests, storage, client, limits);
                return Progress::Waits;
            }
            Data::Piece(piece) => piece.offset + piece.len as u64 - self.compared,
            Data::Pattern(_) => self.total - self.compared,
        };
        // A comparison holds the client's data while it asks for a buffer to read back into. If many did so when
        // memory is short, all would wait for each other: so there is one spare buffer.
        let len = left.min(CHUNK as u64) as usize;
        if !storage.lets(requests, requests.volume, Cost::of(len as u64)) {
            return Progress::Waits;
        }
        let taken = storage.take_buffer(client.budget(), requests.volume, len);
        let Some(buf) = taken.or_else(|| storage.take_spare(requests, len)) else {
            return storage.starve(requests);
        };
        let range = ByteRange::new(self.base + self.compared, buf.len() as u64);
        storage.submit(requests, Op::Read, range, Some(Payload::Buf(buf)));
        requests.spend_all();
        Progress::Waits
    }

    /// A piece of the client's data has come.
    pub(crate) fn piece<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        piece: Piece,
    ) {
        if !self.write_first {
            self.data = Data::Piece(piece);
            return;
        }
        if requests.is_failed() {
            return;
        }
        if !storage.lets(requests, requests.volume, Cost::of(piece.len as u64)) {
            self.held = Some(piece);
            return;
        }
        requests.spend_all();
        let range = ByteRange::new(self.base + piece.offset, piece.len as u64);
        // Stable first: what is read back should be what the medium took.
        storage.submit(requests, Op::Write { fua: true }, range, Some(Payload::Buf(piece.buf)));
    }

    /// A piece was written, or a part of it read back.
    pub(crate) fn done<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        done: Completion<Payload>,
    ) -> Result<(), Failure> {
        let Completion { op, range, result, buf, .. } = done;
        let failed = |error| Failure::Storage { error, op, range };
        let Some(Payload::Buf(buf)) = buf else {
            // Reads and writes of a comparison carry buffers.
            return Err(failed(result.err().unwrap_or(Error::Unsupported)));
        };
        let (offset, len) = (range.offset - self.base, range.len as usize);
        let found = match (result, op) {
            (Ok(()), Op::Write { .. }) => {
                self.data = Data::Piece(Piece { offset, len, buf });
                return Ok(());
            }
            (Ok(()), _) => match self.difference(offset, &buf[..len]) {
                Some(offset) => Err(Failure::Differs { offset }),
                None => Ok(()),
            },
            (Err(error), _) => Err(failed(error)),
        };
        storage.give_back(requests, buf);
        found
    }

    /// Compares what was read at an offset of the command; the offset of the first difference.
    fn difference(&mut self, at: u64, read: &[u8]) -> Option<u64> {
        let difference = match &self.data {
            Data::Piece(piece) => {
                let from = (at - piece.offset) as usize;
                first_difference(read, &piece.buf[from..from + read.len()])
            }
            Data::Pattern(block) => differs_from_pattern(read, block),
            Data::None => None,
        };
        self.compared = at + read.len() as u64;
        if let Data::Piece(piece) = &self.data {
            if self.compared == piece.offset + piece.len as u64 {
                self.data = Data::None;
            }
        }
        difference.filter(|_| self.compares).map(|first| at + first as u64)
    }
}

fn first_difference(read: &[u8], wanted: &[u8]) -> Option<usize> {
    if read == wanted {
        return None;
    }
    read.iter().zip(wanted).position(|(a, b)| a != b)
}

fn differs_from_pattern(read: &[u8], block: &[u8]) -> Option<usize> {
    read.chunks(block.len())
        .enumerate()
        .find_map(|(n, piece)| Some(n * block.len() + first_difference(piece, block)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_differs_is_found_in_any_block() {
        let block = [7u8; 512];
        let mut read = [7u8; 2048];
        assert_eq!(differs_from_pattern(&read, &block), None);
        read[1025] = 8;
        assert_eq!(differs_from_pattern(&read, &block), Some(1025));
        assert_eq!(first_difference(&read, &[7; 2048]), Some(1025));
    }
}
