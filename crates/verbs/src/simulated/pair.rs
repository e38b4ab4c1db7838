//! Queue pairs of the server: work is carried out in order, and ends in order.

use std::collections::VecDeque;
use std::time::Duration;

use lunet_os::simulated;

use super::host::Arrival;
use super::{State, latency, later};
use crate::ffi::{IbvSge, IbvWc, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND_WITH_INV};

/// Numbers of `ibv_wc_status`.
pub(super) const LOCAL_LENGTH: u32 = 1;
const LOCAL_OPERATION: u32 = 2;
const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
pub(super) const REMOTE_INVALID: u32 = 9;
pub(super) const REMOTE_ACCESS: u32 = 10;
const RETRY_EXCEEDED: u32 = 12;

/// A receiver that is not ready is tried again after this time.
const NOT_READY: Duration = Duration::from_micros(640);

/// Bytes of each piece of a receive's memory that are looked at.
const LOOKED_AT: usize = 512;

/// A posted receive.
pub(super) struct Receive {
    pub(super) number: u64,
    pub(super) pieces: Vec<IbvSge>,
    print: u64,
}

/// A posted Send, RDMA Write or RDMA Read.
pub(super) struct Work {
    pub(super) number: u64,
    pub(super) opcode: u32,
    pub(super) signaled: bool,
    /// Bytes that were copied when it was posted.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) pieces: Vec<IbvSge>,
    /// Remote address and key; of a Send the key that it invalidates.
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) print: u64,
    /// How it ended at the other end, and what was read there.
    pub(super) result: Option<(u32, Vec<u8>)>,
    /// The other end's answer is here.
    pub(super) ready: bool,
}

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Not connected.
    Made,
    Connected,
    /// Its connection has ended: all work is flushed.
    Failed,
}

pub(super) struct Pair {
    /// As completions name it.
    pub(super) name: u32,
    pub(super) context: u64,
    pub(super) send_queue: u64,
    pub(super) receive_queue: u64,
    pub(super) shared: Option<u64>,
    pub(super) depth: usize,
    pub(super) life: Life,
    /// The host's end.
    pub(super) end: Option<u64>,
    pub(super) receives: VecDeque<Receive>,
    /// A message is arriving in this one.
    pub(super) arriving: Option<Receive>,
    pub(super) sends: VecDeque<Work>,
    /// So many of them have been carried out.
    executed: usize,
    moving: bool,
    /// Places of the send queue that are taken until a completion is polled.
    pub(super) taken: usize,
    unsignaled: usize,
}

/// How long the other end takes to look up what an RDMA Read asks for.
fn reading() -> Duration {
    match simulated::below(6) {
        0 => Duration::from_micros(simulated::below(3000)),
        _ => latency(),
    }
}

/// How long a device tries until it takes the other end for dead.
fn giving_up() -> Duration {
    Duration::from_millis(500 + simulated::below(3000))
}

/// A number for what memory contains.
fn print(bytes: &[u8]) -> u64 {
    let mut all = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        all = (all ^ u64::from_ne_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    all
}

/// The bytes of pieces of memory, as the device reads them.
fn load(pieces: &[IbvSge], most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        let len = (piece.length as usize).min(most - all.len());
        let begin = all.len();
        all.resize(begin + len, 0u8);
        // SAFETY: the memory is registered, so it stays mapped; a device reads it whoever else does.
        unsafe {
            std::ptr::copy_nonoverlapping(piece.addr as *const u8, all[begin..].as_mut_ptr(), len);
        }
    }
    all
}

/// Writes to pieces of memory as a device does: each is filled before the next.
fn scatter(pieces: &[IbvSge], mut bytes: &[u8]) {
    for piece in pieces {
        let (now, rest) = bytes.split_at(bytes.len().min(piece.length as usize));
        store(piece, now);
        bytes = rest;
    }
}

/// Writes to memory as a device does.
fn store(piece: &IbvSge, bytes: &[u8]) {
    let len = bytes.len().min(piece.length as usize);
    // SAFETY: the memory is registered for writing, and belongs to the device while the work is posted.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.addr as *mut u8, len) };
}

impl Receive {
    pub(super) fn new(number: u64, pieces: Vec<IbvSge>) -> Self {
        let print = Self::look(&pieces);
        Self { number, pieces, print }
    }

    /// A number for what memory contains.
    fn look(pieces: &[IbvSge]) -> u64 {
        let of = |piece: &IbvSge| print(&load(&[*piece], LOOKED_AT));
        pieces.iter().fold(0, |all: u64, piece| all.rotate_left(7) ^ of(piece))
    }

    fn is_untouched(&self) -> bool {
        Self::look(&self.pieces) == self.print
    }
}

impl Work {
    /// Copies its bytes, or notes what its memory contains.
    pub(super) fn look(&mut self, inline: bool) {
        let bytes = load(&self.pieces, usize::MAX);
        self.print = print(&bytes);
        self.inline = inline.then_some(bytes);
    }

    fn is_untouched(&self) -> bool {
        self.inline.is_some() || print(&load(&self.pieces, usize::MAX)) == self.print
    }

    fn bytes(&self) -> Vec<u8> {
        self.inline.clone().unwrap_or_else(|| load(&self.pieces, usize::MAX))
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.length as usize).sum()
    }
}

impl Pair {
    pub(super) fn new(
        (name, context): (u32, u64),
        (send_queue, receive_queue, shared): (u64, u64, Option<u64>),
        depth: usize,
    ) -> Self {
        Self {
            name,
            context,
            send_queue,
            receive_queue,
            shared,
            depth,
            life: Life::Made,
            end: None,
            receives: VecDeque::new(),
            arriving: None,
            sends: VecDeque::new(),
            executed: 0,
            moving: false,
            taken: 0,
            unsignaled: 0,
        }
    }
}

impl State {
    /// Takes work. False if the queue is full.
    pub(super) fn post_send(&mut self, number: u64, work: Work) -> bool {
        let writes = work.opcode == WR_RDMA_READ;
        let registered = |piece: &IbvSge| {
            self.is_registered(piece.lkey, piece.addr, u64::from(piece.length), writes)
        };
        if work.inline.is_none() && !work.pieces.iter().all(registered) {
            self.wrong("work was posted with memory that is not registered".into());
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        if pair.taken >= pair.depth {
            self.wrong("a send queue has overflowed".into());
            return false;
        }
        pair.taken += 1;
        pair.sends.push_back(work);
        match pair.life {
            Life::Failed => later(latency(), move |s| s.flush_pair(number)),
            Life::Connected => self.pump(number),
            Life::Made => self.wrong("work was posted before its connection was accepted".into()),
        }
        true
    }

    /// The next work goes on its way.
    pub(super) fn pump(&mut self, number: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let broken =
            pair.sends.iter().take(pair.executed).any(|work| matches!(work.result, Some((1.., _))));
        if pair.life == Life::Connected
            && !pair.moving
            && !broken
            && pair.executed < pair.sends.len()
        {
            pair.moving = true;
            later(latency(), move |s| s.executes(number));
        }
    }

    /// The work arrives at the other end.
    fn executes(&mut self, number: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.moving = false;
        let Some(end) = pair.end.filter(|_| pair.life == Life::Connected) else { return };
        let Some(work) = pair.sends.get(pair.executed) else { return };
        let (wr, opcode, key, address) = (work.number, work.opcode, work.key, work.address);
        if opcode == WR_RDMA_READ {
            // What comes behind it need not wait until its data was looked up (IBA volume 1, 10.8.3.3).
            pair.executed += 1;
            later(reading(), move |s| s.reads(number, wr));
            return self.pump(number);
        }
        let bytes = work.bytes();
        let context = pair.context;
        let fails = self.traits(context).is_some_and(|traits| traits.invalidation_fails);
        let arrival = match opcode {
            WR_SEND_WITH_INV if fails => Arrival::Refused(LOCAL_OPERATION),
            WR_RDMA_WRITE => self.remote_write(end, key, address, &bytes),
            _ => self.message(end, bytes, (opcode == WR_SEND_WITH_INV).then_some(key)),
        };
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        match arrival {
            Arrival::NotReady => {
                pair.moving = true;
                later(NOT_READY, move |s| s.executes(number));
            }
            Arrival::Gone => {
                pair.moving = true;
                later(giving_up(), move |s| s.gives_up(number));
            }
            Arrival::Done(_) | Arrival::Refused(_) => {
                pair.executed += 1;
                self.answered(number, wr, arrival);
                self.pump(number);
            }
        }
    }

    /// The other end looks up what an RDMA Read asks for.
    fn reads(&mut self, number: u64, wr: u64) {
        let Some(pair) = self.pairs.get(&number) else { return };
        let Some(end) = pair.end.filter(|_| pair.life == Life::Connected) else { return };
        let Some(work) = pair.sends.iter().find(|work| work.number == wr) else { return };
        let (key, address, len) = (work.key, work.address, work.len());
        match self.remote_read(end, key, address, len) {
            Arrival::Gone => later(giving_up(), move |s| s.gives_up(number)),
            arrival => self.answered(number, wr, arrival),
        }
    }

    /// The other end has an answer, which is on its way.
    fn answered(&mut self, number: u64, wr: u64, arrival: Arrival) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(work) = pair.sends.iter_mut().find(|work| work.number == wr) else { return };
        work.result = match arrival {
            Arrival::Done(bytes) => Some((0, bytes)),
            Arrival::Refused(status) => Some((status, Vec::new())),
            Arrival::NotReady | Arrival::Gone => None,
        };
        later(latency(), move |s| s.completes(number, wr));
    }

    /// Nobody answers any more.
    fn gives_up(&mut self, number: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.moving = false;
        let first = pair.sends.iter_mut().find(|work| work.result.is_none());
        if let (Life::Connected, Some(work)) = (pair.life, first) {
            work.result = Some((RETRY_EXCEEDED, Vec::new()));
            while self.pairs.get(&number).is_some_and(|pair| pair.life == Life::Connected) {
                self.retire(number);
            }
        }
    }

    /// The answer to some work is here. Work ends in order.
    fn completes(&mut self, number: u64, wr: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if let Some(work) = pair.sends.iter_mut().find(|work| work.number == wr) {
            work.ready = true;
        }
        let first = |pair: &Pair| {
            pair.life == Life::Connected && pair.sends.front().is_some_and(|work| work.ready)
        };
        while self.pairs.get(&number).is_some_and(first) {
            self.retire(number);
        }
    }

    /// What is about to come to a completion queue comes now.
    pub(super) fn hurry(&mut self, queue: u64) {
        let numbers: Vec<u64> = self.pairs.keys().copied().collect();
        for number in numbers {
            let Some(pair) = self.pairs.get(&number).filter(|pair| pair.life == Life::Connected)
            else {
                continue;
            };
            let done = pair.sends.front().is_some_and(|work| work.result.is_some());
            let end = pair.end.filter(|_| pair.arriving.is_some());
            if pair.send_queue == queue && done {
                self.retire(number);
            } else if let Some(end) = end.filter(|_| pair.receive_queue == queue) {
                self.arrived(end, number);
            }
        }
    }

    fn retire(&mut self, number: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let Some(work) = pair.sends.pop_front() else { return };
        pair.executed = pair.executed.saturating_sub(1);
        pair.unsignaled += 1;
        let (queue, name) = (pair.send_queue, pair.name);
        let (mut status, data) = work.result.clone().unwrap_or((FLUSHED, Vec::new()));
        if !work.is_untouched() {
            self.wrong("memory of posted work has changed before its end".into());
        }
        if status == 0 && work.opcode == WR_RDMA_READ {
            let piece = work.pieces[0];
            if self.is_registered(piece.lkey, piece.addr, u64::from(piece.length), true) {
                store(&piece, &data);
            } else {
                status = LOCAL_PROTECTION;
                self.wrong("memory of an RDMA Read is not registered any more".into());
            }
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if work.signaled || status != 0 {
            let places = std::mem::take(&mut pair.unsignaled);
            let wc = IbvWc { wr_id: work.number, status, qp_num: name, ..IbvWc::default() };
            self.complete(queue, wc, places);
        }
        if status != 0 {
            self.pair_fails(number);
        }
    }

    /// A queue pair has failed, or its connection has ended: the rest is flushed.
    pub(super) fn pair_fails(&mut self, number: u64) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.life == Life::Failed {
            return;
        }
        pair.life = Life::Failed;
        if let Some(end) = pair.end {
            self.end_breaks(end, latency());
        }
        later(latency(), move |s| s.flush_pair(number));
    }

    pub(super) fn flush_pair(&mut self, number: u64) {
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let Some(work) = pair.sends.front_mut() else { break };
            work.result = Some((FLUSHED, Vec::new()));
            self.retire(number);
        }
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        let (queue, name) = (pair.receive_queue, pair.name);
        let mut flushed: Vec<Receive> = pair.receives.drain(..).collect();
        let arriving = pair.arriving.take();
        match (arriving, pair.shared) {
            // Not every device tells of it (see `adapter::receive`).
            (Some(receive), Some(shared)) if simulated::below(2) == 0 => {
                if let Some(shared) = self.shared.get_mut(&shared) {
                    shared.lost.push(receive);
                }
            }
            (arriving, _) => flushed.splice(0..0, arriving).for_each(drop),
        }
        for receive in flushed {
            self.check(&receive);
            let wc =
                IbvWc { wr_id: receive.number, status: FLUSHED, qp_num: name, ..IbvWc::default() };
            self.complete(queue, wc, 0);
        }
    }

    pub(super) fn check(&mut self, receive: &Receive) {
        if !receive.is_untouched() {
            self.wrong("memory of a posted receive has changed".into());
        }
    }

    /// Memory of a queue pair that goes, which nobody may have used.
    pub(super) fn check_all(&mut self, pair: &Pair) {
        if !pair.sends.iter().all(Work::is_untouched) {
            self.wrong(
                "memory of posted work has changed before its queue pair was destroyed".into(),
            );
        }
        pair.receives.iter().chain(&pair.arriving).for_each(|receive| self.check(receive));
    }

    /// Takes a receive for a message to this queue pair. False if there is none.
    pub(super) fn begin_receive(&mut self, number: u64) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        let found = match pair.shared {
            None => pair.receives.pop_front(),
            Some(shared) => self.shared.get_mut(&shared).and_then(|s| s.waiting.pop_front()),
        };
        let any = found.is_some();
        if let Some(pair) = self.pairs.get_mut(&number) {
            pair.arriving = found;
        }
        any
    }

    /// The message that is arriving has arrived. False if it is too long.
    pub(super) fn end_receive(&mut self, number: u64, bytes: &[u8]) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        let Some(receive) = pair.arriving.take() else { return false };
        let (queue, name) = (pair.receive_queue, pair.name);
        self.check(&receive);
        let room: usize = receive.pieces.iter().map(|piece| piece.length as usize).sum();
        let registered = |piece: &IbvSge| {
            self.is_registered(piece.lkey, piece.addr, u64::from(piece.length), true)
        };
        let status = if bytes.len() > room {
            LOCAL_LENGTH
        } else if !receive.pieces.iter().all(registered) {
            self.wrong("memory of a receive is not registered any more".into());
            LOCAL_PROTECTION
        } else {
            scatter(&receive.pieces, bytes);
            0
        };
        let byte_len = bytes.len() as u32;
        let wc =
            IbvWc { wr_id: receive.number, status, byte_len, qp_num: name, ..IbvWc::default() };
        self.complete(queue, wc, 0);
        if status != 0 {
            self.pair_fails(number);
        }
        status == 0
    }
}
