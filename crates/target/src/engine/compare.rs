//! The initiator's data against the volume's: VERIFY with BYTCHK, WRITE AND VERIFY.
//!
//! One piece at a time: it arrives, is written if the command writes, is read back, is compared.

use lunet_block::{ByteRange, Completion, Op};
use lunet_ring::Payload;
use lunet_scsi::Sense;

use super::Engine;
use super::intake::Piece;
use super::task::{CHUNK, Data, Job};
use crate::conn::Conn;

impl Engine {
    /// A piece of the initiator's data has come.
    pub(super) fn compare_piece(&mut self, index: u32, piece: Piece) {
        let task = &mut self.tasks[index as usize];
        let Job::Compare(job) = &mut task.job else { return };
        if !job.write_first {
            job.data = Data::Piece(piece.buf, piece.len);
            return;
        }
        let range = ByteRange::new(job.base + piece.offset, piece.len as u64);
        let seq = task.take_seq();
        // Stable first: what is read back should be what the medium took.
        self.submit(index, seq, Op::Write { fua: true }, range, Some(Payload::Buf(piece.buf)));
    }

    /// A piece was written or read back.
    pub(super) fn compare_done(&mut self, index: u32, done: Completion<Payload>) {
        let task = &mut self.tasks[index as usize];
        let Job::Compare(job) = &mut task.job else { return };
        let len = done.range.len as usize;
        match (done.result, done.op, done.buf) {
            (Err(error), op, _) => self.fail(index, error, op, done.range),
            (Ok(()), Op::Write { .. }, Some(Payload::Buf(buf))) => job.data = Data::Piece(buf, len),
            (Ok(()), Op::Read, Some(Payload::Buf(read))) => {
                let difference = match &job.data {
                    Data::Piece(wanted, _) => first_difference(&read[..len], &wanted[..len]),
                    Data::Pattern(block) => differs_from_pattern(&read[..len], block),
                    Data::None => None,
                };
                let offset = difference.filter(|_| job.compares).map(|at| job.compared + at as u64);
                job.compared += done.range.len;
                if let Data::Piece(..) = job.data {
                    job.data = Data::None;
                }
                if let Some(offset) = offset {
                    task.fail(Sense::miscompare(offset));
                }
            }
            // Reads and writes of a comparison carry arena buffers.
            (Ok(()), op, _) => self.fail(index, lunet_block::Error::Unsupported, op, done.range),
        }
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
        let len = match &job.data {
            Data::None => {
                self.solicit(conn, index, 1);
                return false;
            }
            Data::Piece(_, len) => *len,
            Data::Pattern(_) => (CHUNK as u64 / 4).min(job.total - job.compared) as usize,
        };
        let range = ByteRange::new(job.base + job.compared, len as u64);
        let Some(buf) = self.take_buffer(conn, len) else {
            self.starved.push_back(index);
            return false;
        };
        let seq = self.tasks[index as usize].take_seq();
        self.submit(index, seq, Op::Read, range, Some(Payload::Buf(buf)));
        false
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
