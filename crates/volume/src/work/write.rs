//! Client to volume.

use lunet_block::{ByteRange, Completion, Op};
use lunet_ring::Payload;

use super::intake::{Intake, Piece, solicit};
use super::{AT_ONCE, Client, Failure, Progress};
use crate::limit::Cost;
use crate::operation::{CHUNK, Requests};
use crate::storage::Storage;

/// Pieces that a client is asked for at a time.
const SOLICITED: u32 = 4;

/// A write.
pub struct Write {
    /// Offset on the volume.
    base: u64,
    /// The data on its way in.
    pub(crate) intake: Intake,
    /// Bytes written.
    written: u64,
    /// Each request is stable when it completes.
    fua: bool,
    /// A piece that has come unasked, while the volume has as much memory at its storage as it may have, or a limit is
    /// reached.
    held: Option<Piece>,
}

impl Write {
    /// A write to the volume from an offset on.
    pub const fn new(base: u64, intake: Intake, fua: bool) -> Self {
        Self { base, intake, written: 0, fua, held: None }
    }

    /// Asks for more data while there is some to come.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        client: &mut impl Client,
    ) -> Progress {
        if let Some(piece) = self.held.take() {
            self.unasked(requests, storage, piece);
        }
        if self.held.is_none() {
            let limits = (SOLICITED, CHUNK / 16, Some(requests.volume), true);
            solicit(&mut self.intake, requests, storage, client, limits);
        }
        let over = requests.is_failed() || self.written == self.intake.total;
        Progress::finished_if(requests.is_idle() && over)
    }

    /// A piece of whole blocks has come with the command. It waits while the volume has enough at its storage, unless that
    /// hangs: then it would keep its client's memory from other volumes.
    pub(crate) fn unasked<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        piece: Piece,
    ) {
        if requests.is_failed() {
            return;
        }
        if !storage.is_full(requests.volume) {
            return self.first(requests, storage, piece);
        }
        if storage.hangs(requests.volume) {
            requests.fail(Failure::Crowded);
            return;
        }
        self.held = Some(piece);
        storage.starve(requests);
    }

    /// A piece of whole blocks has come with the command, and there is room for it at the storage. It waits while a limit
    /// is reached.
    pub(crate) fn first<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        piece: Piece,
    ) {
        let len = piece.len as u64;
        if !storage.lets(requests, requests.volume, Cost::of(self.intake.total.min(AT_ONCE))) {
            self.held = Some(piece);
            return;
        }
        requests.spend(len);
        self.piece(requests, storage, piece);
    }

    /// A piece of whole blocks has come.
    pub(crate) fn piece<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        piece: Piece,
    ) {
        let range = ByteRange::new(self.base + piece.offset, piece.len as u64);
        let op = Op::Write { fua: self.fua };
        storage.submit(requests, op, range, Some(Payload::Buf(piece.buf)));
    }

    /// A piece is on the volume.
    pub(crate) fn done(&mut self, done: &Completion<Payload>) -> Result<(), Failure> {
        let Completion { op, range, result, .. } = *done;
        result.map_err(|error| Failure::Storage { error, op, range })?;
        self.written += range.len;
        Ok(())
    }
}
