//! The initiator's data against the volume's: VERIFY with BYTCHK, WRITE AND VERIFY.
//!
//! One piece at a time: it arrives, is written if the command writes, is read back, is compared.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::{Buf, Payload};
use lunet_scsi::Sense;
use lunet_volume::{CHUNK, OperationId};

use super::Engine;
use super::intake::Piece;
use super::task::{Compare, Data, Job};
use crate::conn::Conn;

impl Engine {
    /// A piece of the initiator's data has come.
    pub(super) fn compare_piece(&mut self, index: OperationId, piece: Piece) {
        let task = &mut self.exec.operations[index];
        let Job::Compare(job) = &mut task.command.job else { return };
        if !job.write_first {
            job.data = Data::Piece(piece);
            return;
        }
        let range = ByteRange::new(job.base + piece.offset, piece.len as u64);
        let seq = task.take_seq();
        // Stable first: what is read back should be what the medium took.
        self.exec.submit(index, seq, Op::Write { fua: true }, range, Some(Payload::Buf(piece.buf)));
    }

    /// A piece was written, or a part of it read back.
    pub(super) fn compare_done(&mut self, index: OperationId, mut done: Completion<Payload>) {
        let Some(Payload::Buf(buf)) = done.buf.take() else {
            // Reads and writes of a comparison carry arena buffers.
            let error = done.result.err().unwrap_or(Error::Unsupported);
            return self.fail(index, error, done.op, done.range);
        };
        let task = &mut self.exec.operations[index];
        let Job::Compare(job) = &mut task.command.job else { return };
        let at = done.range.offset - job.base;
        let len = done.range.len as usize;
        match (done.result, done.op) {
            (Ok(()), Op::Write { .. }) => {
                job.data = Data::Piece(Piece { offset: at, len, buf });
                return;
            }
            (Ok(()), _) => {
                if let Some(offset) = job.difference(at, &buf[..len]) {
                    task.command.fail(Sense::miscompare(offset));
                }
            }
            (Err(error), op) => self.fail(index, error, op, done.range),
        }
        self.exec.give_back(index, buf);
    }

    /// Asks for the next piece, or reads back what has come. True if the command can be answered.
    pub(super) fn pump_compare(&mut self, conn: &mut Conn, index: OperationId) -> bool {
        let task = &self.exec.operations[index];
        let Job::Compare(job) = &task.command.job else { return false };
        if task.command.sense.is_some() || job.compared == job.total {
            return task.is_idle();
        }
        if !task.is_idle() {
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
            return self.exec.starve(index);
        };
        let range = ByteRange::new(offset, buf.len() as u64);
        let seq = self.exec.operations[index].take_seq();
        self.exec.submit(index, seq, Op::Read, range, Some(Payload::Buf(buf)));
        false
    }

    /// A buffer to read back into. A comparison holds the initiator's data while it asks for it,
    /// and if many did so when memory is short, all would wait for each other. So there is one
    /// spare buffer: whoever has it gets on, and gives it back.
    fn read_back_buffer(&mut self, conn: &Conn, index: OperationId, len: usize) -> Option<Buf> {
        let slot = self.exec.operations[index].volume;
        if let Some(buf) = self.exec.take_buffer(conn.budget(), slot, len) {
            return Some(buf);
        }
        self.exec.take_spare(index, len)
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
