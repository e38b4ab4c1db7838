//! The initiator's data against the volume's: VERIFY with BYTCHK, WRITE AND VERIFY.
//!
//! One piece at a time: it arrives, is written if the command writes, is read back, is compared.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::{Buf, Payload};
use lunet_scsi::Sense;

use super::Engine;
use super::intake::Piece;
use super::task::{CHUNK, Compare, Data, Job};
use crate::conn::Conn;

/// The size of the engine's spare buffer.
pub(super) const SPARE: usize = 64 << 10;

impl Engine {
    /// A piece of the initiator's data has come.
    pub(super) fn compare_piece(&mut self, index: u32, piece: Piece) {
        let task = &mut self.tasks[index as usize];
        let Job::Compare(job) = &mut task.job else { return };
        if !job.write_first {
            job.data = Data::Piece(piece);
            return;
        }
        let range = ByteRange::new(job.base + piece.offset, piece.len as u64);
        let seq = task.take_seq();
        // Stable first: what is read back should be what the medium took.
        self.submit(index, seq, Op::Write { fua: true }, range, Some(Payload::Buf(piece.buf)));
    }

    /// A piece was written, or a part of it read back.
    pub(super) fn compare_done(&mut self, index: u32, mut done: Completion<Payload>) {
        let Some(Payload::Buf(buf)) = done.buf.take() else {
            // Reads and writes of a comparison carry arena buffers.
            let error = done.result.err().unwrap_or(Error::Unsupported);
            return self.fail(index, error, done.op, done.range);
        };
        let task = &mut self.tasks[index as usize];
        let Job::Compare(job) = &mut task.job else { return };
        let at = done.range.offset - job.base;
        let len = done.range.len as usize;
        match (done.result, done.op) {
            (Ok(()), Op::Write { .. }) => {
                job.data = Data::Piece(Piece { offset: at, len, buf });
                return;
            }
            (Ok(()), _) => {
                if let Some(offset) = job.difference(at, &buf[..len]) {
                    task.fail(Sense::miscompare(offset));
                }
            }
            (Err(error), op) => self.fail(index, error, op, done.range),
        }
        self.give_back(index, buf);
    }

    /// Asks for the next piece, or reads back what has come. True if the command can be answered.
    pub(super) fn pump_compare(&mut self, conn: &mut Conn, index: u32) -> bool {
        let task = &self.tasks[index as usize];
        let Job::Compare(job) = &task.job else { return false };
        if task.sense.is_some() || job.compared == job.total {
            return task.idle();
        }
        if !task.idle() {
            return false;
        }
        let left = match &job.data {
            Data::None => {
                self.solicit(conn, index, 1);
                return false;
            }
            Data::Piece(piece) => piece.offset + piece.len as u64 - job.compared,
            Data::Pattern(_) => job.total - job.compared,
        };
        let offset = job.base + job.compared;
        let Some(buf) = self.read_back_buffer(conn, index, left.min(CHUNK as u64) as usize) else {
            return self.starve(index);
        };
        let range = ByteRange::new(offset, buf.len() as u64);
        let seq = self.tasks[index as usize].take_seq();
        self.submit(index, seq, Op::Read, range, Some(Payload::Buf(buf)));
        false
    }

    /// A buffer to read back into. A comparison holds the initiator's data while it asks for it,
    /// and if many did so when memory is short, all would wait for each other. So there is one
    /// spare buffer: whoever has it gets on, and gives it back.
    fn read_back_buffer(&mut self, conn: &Conn, index: u32, len: usize) -> Option<Buf> {
        let slot = self.tasks[index as usize].volume;
        if let Some(buf) = self.take_buffer(conn, slot, len) {
            return Some(buf);
        }
        let mut buf = self.spare.take()?;
        buf.truncate(len);
        self.tasks[index as usize].spare = true;
        Some(buf)
    }

    /// Takes the spare buffer back from a task that has it; another buffer is just dropped.
    pub(super) fn give_back(&mut self, index: u32, buf: Buf) {
        if std::mem::take(&mut self.tasks[index as usize].spare) {
            // At its full length again: what it occupies never changed.
            drop(buf);
            self.spare = self.ring.arena().alloc(SPARE);
        }
    }
}

impl Compare {
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
