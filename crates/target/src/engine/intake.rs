//! Data on its way from the initiator, cut into pieces of whole blocks.
//!
//! The unsolicited burst may end anywhere. Its last part of a block is carried over into the
//! buffer of the next ready-to-transfer, so that backends see whole blocks only.

use lunet_iscsi::target::Tag;
use lunet_ring::{Arena, Buf};
use lunet_volume::CHUNK;

use crate::conn::Conn;

/// Data-Out of one command.
pub struct Intake {
    /// Bytes wanted from the wire: whole blocks.
    pub total: u64,
    /// The next byte to ask for.
    next: u64,
    /// Bytes that came but fill no block yet: they precede `next`.
    carry: Vec<u8>,
    /// The bytes that precede the piece which was solicited at this offset.
    carried: Option<(u64, Vec<u8>)>,
}

/// A piece of whole blocks.
pub struct Piece {
    /// Offset in the command's data.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// The bytes, from its start on.
    pub buf: Buf,
}

impl Intake {
    /// No data at all.
    pub fn nothing() -> Self {
        Self { total: 0, next: 0, carry: Vec::new(), carried: None }
    }

    /// Takes the unsolicited data, if any, and expects `total` bytes altogether. Returns the piece
    /// of whole blocks that can be worked on at once.
    pub fn new(total: u64, block: usize, first: Option<(Buf, usize)>) -> (Self, Option<Piece>) {
        let mut intake = Self { total, ..Self::nothing() };
        let Some((buf, len)) = first else { return (intake, None) };
        let len = (len as u64).min(total) as usize;
        let whole = len - len % block;
        intake.next = len as u64;
        intake.carry.extend_from_slice(&buf[whole..len]);
        if whole == 0 {
            return (intake, None);
        }
        (intake, Some(Piece { offset: 0, len: whole, buf }))
    }

    /// True if everything was asked for.
    pub fn all_requested(&self) -> bool {
        self.next == self.total
    }

    /// Asks the initiator for the next piece, in a buffer that occupies `limit` bytes at most: a
    /// power of two. Of the memory that is for all it may take `allowance`. False if memory is short: try again
    /// later.
    pub fn solicit(
        &mut self,
        conn: &mut Conn,
        tag: Tag,
        (arena, allowance): (&Arena, usize),
        limit: usize,
    ) -> bool {
        let carried = self.carry.len();
        let left = self.total - self.next;
        let len = left.min((CHUNK.min(limit) - carried) as u64) as usize;
        let Some(buf) = conn.take(arena, allowance, carried + len) else {
            return false;
        };
        if carried > 0 {
            self.carried = Some((self.next, std::mem::take(&mut self.carry)));
        }
        conn.proto.solicit(tag, self.next as u32, len as u32, buf, &mut conn.out);
        self.next += len as u64;
        true
    }

    /// A ready-to-transfer was filled: `len` bytes from `offset` on are in `buf`.
    pub fn arrived(&mut self, offset: u32, len: u32, mut buf: Buf) -> Piece {
        let (offset, len) = (u64::from(offset), len as usize);
        match self.carried.take() {
            Some((at, carried)) if at == offset => {
                buf.copy_within(..len, carried.len());
                buf[..carried.len()].copy_from_slice(&carried);
                Piece { offset: offset - carried.len() as u64, len: len + carried.len(), buf }
            }
            other => {
                self.carried = other;
                Piece { offset, len, buf }
            }
        }
    }
}
