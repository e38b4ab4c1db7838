//! Data on its way from the client, cut into pieces of whole blocks.
//!
//! What comes without being asked for may end anywhere. Its last part of a block is carried over into the
//! buffer of the next piece, so that backends see whole blocks only.

use lunet_ring::{Arena, Buf, Reserve};

use super::{AT_ONCE, Client, Progress};
use crate::limit::Cost;
use crate::memory::take;
use crate::open::VolumeId;
use crate::operation::{CHUNK, DEPTH, Requests};
use crate::storage::Storage;

/// The client's data of one operation.
pub struct Intake {
    /// Bytes wanted of the client: whole blocks.
    pub(crate) total: u64,
    /// The next byte to ask for.
    next: u64,
    /// Bytes that came but fill no block yet: they precede `next`.
    carry: Vec<u8>,
    /// The bytes that precede the piece which was asked for at this offset.
    carried: Option<(u64, Vec<u8>)>,
}

/// A piece of whole blocks.
pub struct Piece {
    /// Offset in the command's data.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) len: usize,
    /// The bytes, from its start on.
    pub(crate) buf: Buf,
}

impl Intake {
    /// No data at all.
    pub(crate) const fn nothing() -> Self {
        Self { total: 0, next: 0, carry: Vec::new(), carried: None }
    }

    /// Takes the data that has come with the command, if any, and expects `total` bytes altogether. Returns the piece
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
    pub(crate) fn all_requested(&self) -> bool {
        self.next == self.total
    }

    /// Asks the client for the next piece, in a buffer that occupies `limit` bytes at most: a
    /// power of two. Of the memory that is for all it may take `allowance`. False if memory is short: try again
    /// later.
    pub(crate) fn ask(
        &mut self,
        client: &mut impl Client,
        (arena, allowance): (&Arena, usize),
        limit: usize,
    ) -> bool {
        let carried = self.carry.len();
        let left = self.total - self.next;
        let len = left.min((CHUNK.min(limit) - carried) as u64) as usize;
        let (budget, kept) = (client.budget(), client.keeps());
        let fits = |reserve: &&Reserve| reserve.room_beside(kept) >= Arena::cost(carried + len);
        let reserve = budget.reserve.filter(fits);
        let taken = take((arena, allowance), reserve, budget.account, carried + len);
        let Some(buf) = taken else { return false };
        if carried > 0 {
            self.carried = Some((self.next, std::mem::take(&mut self.carry)));
        }
        client.ask(self.next, len, buf);
        self.next += len as u64;
        true
    }

    /// Asks for all of the data at once, where its protocol needs it in full.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        client: &mut impl Client,
    ) -> Progress {
        // It does not go to the storage.
        let limits = (1, self.total as usize, None, false);
        solicit(self, requests, storage, client, limits);
        Progress::finished_if(requests.is_idle() && requests.is_failed())
    }

    /// What was asked for has come: `len` bytes from `offset` on are in `buf`.
    pub(crate) fn arrived(&mut self, offset: u64, len: usize, mut buf: Buf) -> Piece {
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

/// Asks the client for pieces, at most `most` at a time, of `least` bytes at least, and as the memory of the volume and
/// the client allows. What is asked for is paid for where there is a limit, if it `pays`.
pub(crate) fn solicit<F>(
    intake: &mut Intake,
    requests: &mut Requests,
    storage: &mut Storage<F>,
    client: &mut impl Client,
    (most, least, volume, pays): (u32, usize, Option<VolumeId>, bool),
) {
    while !requests.is_failed()
        && !intake.all_requested()
        && requests.soliciting < most
        && requests.soliciting as usize + requests.in_flight() < DEPTH
    {
        if pays {
            let cost = Cost::of((intake.total - intake.next).min(AT_ONCE));
            if !storage.lets(requests, requests.volume, cost) {
                return;
            }
            // Nobody waits for what the client has not sent.
            storage.unreserve(requests);
        }
        let before = intake.next;
        let mut limit = storage.room_for(client, volume, least);
        let allowance = storage.allowance(client.budget().account);
        while let Some(size) = limit {
            if intake.ask(client, (storage.ring.arena(), allowance), size) {
                requests.soliciting += 1;
                requests.spend(intake.next - before);
                break;
            }
            // There may be enough, but in pieces.
            limit = (size / 2 >= Arena::cost(least)).then_some(size / 2);
        }
        if limit.is_none() {
            storage.starve(requests);
            return;
        }
    }
}
