//! Volume to client.

use lunet_block::{ByteRange, Completion, Error, Op};
use lunet_ring::Payload;

use super::{AT_ONCE, Client, Failure, Progress};
use crate::limit::Cost;
use crate::operation::{CHUNK, DEPTH, Requests};
use crate::storage::Storage;

/// The most data of one request that is answered by reference, in bytes: a whole command, as a rule.
const MAPPED_CHUNK: u64 = 16 << 20;

/// A read.
pub struct Read {
    /// Where on the volume.
    range: ByteRange,
    /// How much of the range has been requested.
    requested: u64,
    /// How much has been handed to the client.
    sent: u64,
    /// Bytes that the client gets; the volume's blocks may reach beyond. `None`: the data is not sent.
    wanted: Option<u64>,
    /// The number of the request whose data is sent next.
    send_seq: u32,
    /// Chunks that came back, by the number of their request modulo [`DEPTH`], with their lengths.
    ready: [Option<(Payload, u64)>; DEPTH],
    /// Read by reference.
    mapped: bool,
    /// What was written before is made stable first.
    stable: Stable,
}

/// How far a read has come with what it is to find stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stable {
    /// There is nothing to do.
    Done,
    /// A flush is to be asked for.
    Wanted,
    /// It is under way.
    Asked,
}

/// What keeps a read from asking for its next chunk.
enum Next {
    /// Nothing: ask for this much.
    Ask(ByteRange, bool),
    /// All is asked for, or enough is in flight.
    Wait,
    /// The client takes its data too slowly.
    Backlog,
}

impl Read {
    /// A read of which the client gets the first `wanted` bytes, or, with `None`, nothing. It is by reference if that is
    /// allowed.
    pub const fn new(range: ByteRange, wanted: Option<u64>, mapped: bool) -> Self {
        let ready = [const { None }; DEPTH];
        let stable = Stable::Done;
        Self { range, requested: 0, sent: 0, wanted, send_seq: 0, ready, mapped, stable }
    }

    /// The same; if so `wanted`, after all that was written to the volume has been made stable (Force Unit Access).
    #[must_use]
    pub fn stable(mut self, wanted: bool) -> Self {
        if wanted {
            self.stable = Stable::Wanted;
        }
        self
    }

    pub(super) fn drop_buffers(&mut self) {
        self.ready = [const { None }; DEPTH];
    }

    /// Sends what is ready and asks for more.
    pub(crate) fn pump<F>(
        &mut self,
        requests: &mut Requests,
        storage: &mut Storage<F>,
        client: &mut impl Client,
    ) -> Progress {
        if self.stable == Stable::Wanted && !requests.is_failed() {
            storage.submit(requests, Op::Flush, ByteRange::new(0, 0), None);
            (self.stable, self.send_seq) = (Stable::Asked, requests.next_seq());
        }
        if self.stable != Stable::Done {
            return Progress::finished_if(requests.in_flight() == 0 && requests.is_failed());
        }
        loop {
            if self.send_ready(requests, client) {
                return Progress::Answered;
            }
            match self.next_chunk(requests, storage, client) {
                Next::Ask(mut range, mapped) => {
                    let left = self.range.len - self.requested;
                    let cost = Cost::of(left.min(AT_ONCE).max(range.len));
                    if !storage.lets(requests, requests.volume, cost) {
                        return Progress::Waits;
                    }
                    let mut buf = None;
                    if !mapped {
                        let (slot, len) = (requests.volume, range.len as usize);
                        let Some(taken) = storage.take_some(client.budget(), slot, len) else {
                            return storage.starve(requests);
                        };
                        range.len = taken.len() as u64;
                        buf = Some(Payload::Buf(taken));
                    }
                    self.requested += range.len;
                    let op = if mapped { Op::ReadMapped } else { Op::Read };
                    storage.submit(requests, op, range, buf);
                    requests.spend(range.len);
                }
                Next::Backlog => return Progress::Waits,
                Next::Wait => break,
            }
        }
        let over = requests.is_failed() || self.sent == self.range.len;
        Progress::finished_if(requests.in_flight() == 0 && over)
    }

    /// A chunk has come from the volume.
    pub(crate) fn done(&mut self, seq: u32, done: Completion<Payload>) -> Result<(), Failure> {
        let Completion { op, range, .. } = done;
        done.result.map_err(|error| Failure::Storage { error, op, range })?;
        if op == Op::Flush {
            self.stable = Stable::Done;
            return Ok(());
        }
        let unread = Failure::Storage { error: Error::Unsupported, op, range };
        let payload = done.buf.ok_or(unread)?;
        match self.wanted {
            None => self.sent += range.len,
            Some(_) => self.ready[seq as usize % DEPTH] = Some((payload, range.len)),
        }
        Ok(())
    }

    fn next_chunk<F>(
        &self,
        requests: &Requests,
        storage: &Storage<F>,
        client: &mut impl Client,
    ) -> Next {
        let ahead = requests.next_seq() - self.send_seq;
        let enough = self.requested == self.range.len || requests.is_full();
        if enough || requests.is_failed() || self.wanted.is_some() && ahead as usize >= DEPTH {
            return Next::Wait;
        }
        if client.is_behind(requests.id()) {
            return Next::Backlog;
        }
        // What has waited for its turn since before the volume's first lock is not read by reference any more.
        let mapped = self.mapped && !storage.volumes[requests.volume].exclusive;
        let chunk = if mapped { MAPPED_CHUNK } else { CHUNK as u64 };
        let len = chunk.min(self.range.len - self.requested);
        Next::Ask(ByteRange::new(self.range.offset + self.requested, len), mapped)
    }

    /// Hands chunks to the client in order. True if the last went with the answer.
    fn send_ready(&mut self, requests: &Requests, client: &mut impl Client) -> bool {
        let Some(wanted) = self.wanted else { return false };
        while let Some((payload, len)) = self.ready[self.send_seq as usize % DEPTH].take() {
            if requests.is_failed() {
                continue;
            }
            self.send_seq += 1;
            let wire = len.min(wanted - self.sent.min(wanted)) as usize;
            self.sent += len;
            let last = self.sent == self.range.len;
            client.send(payload, wire, last);
            if last {
                return true;
            }
        }
        false
    }
}
