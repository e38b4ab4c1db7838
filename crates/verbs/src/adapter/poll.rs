//! Work in, completions out.

use std::ops::Range;

use lunet_ring::{Buf, Key, Payload};

use super::endpoint::{Held, Order, SendOp, Sges};
use super::work::{HEAD_MAX, NotQueued, Pieces, Remote, Why, WorkId};
use super::{Adapter, BATCH, EndpointId};
use crate::ffi::{IbvSge, IbvWc, WC_WITH_INV};
use crate::memory::Registration;
use crate::{Completion, Error, Operation, Status};

/// Batches in one [`Adapter::poll`].
const BATCHES: usize = 16;

impl Adapter {
    /// How many sends, writes and reads can be queued on an endpoint now.
    pub fn room(&self, id: EndpointId) -> usize {
        self.endpoints.get(id.0).map_or(0, |endpoint| endpoint.room())
    }

    /// Queues a message: a head of at most [`HEAD_MAX`] bytes, which is copied, and data behind it.
    /// With `invalidate` the peer's device ends the validity of that key of its own when it comes.
    /// Without `signaled` there is a completion on failure only; data is then freed with the next
    /// work that has one.
    ///
    /// # Errors
    /// [`NotQueued`], with the data.
    pub fn queue_send(
        &mut self,
        id: EndpointId,
        head: &[u8],
        data: Pieces,
        invalidate: Option<u32>,
        (token, signaled): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        let order = Order::Send { invalidate };
        let operation = match invalidate {
            None => Operation::Send,
            Some(_) => Operation::SendInvalidate,
        };
        self.queue_pieces(id, head, data, &order, (token, signaled, operation))
    }

    /// Queues data to be written to the peer's memory. `signaled` as for
    /// [`queue_send`](Self::queue_send). A message that is queued behind it comes after the data.
    ///
    /// # Errors
    /// [`NotQueued`], with the data.
    pub fn queue_write(
        &mut self,
        id: EndpointId,
        data: Pieces,
        to: Remote,
        (token, signaled): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        self.queue_pieces(id, &[], data, &Order::Write(to), (token, signaled, Operation::Write))
    }

    fn queue_pieces(
        &mut self,
        id: EndpointId,
        head: &[u8],
        data: Pieces,
        order: &Order,
        (token, signaled, operation): (u64, bool, Operation),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        let refuse = |why, back| Err(Box::new(NotQueued { why, back }));
        let Some(endpoint) = self.endpoints.get_mut(id.0).filter(|e| !e.broken) else {
            return refuse(Why::Ended, data);
        };
        if endpoint.room() == 0 {
            return refuse(Why::Full, data);
        }
        if head.len() > HEAD_MAX {
            return refuse(Why::TooLong, data);
        }
        let mut sges = Sges::new();
        for (payload, range) in &data {
            match piece(&self.memory, payload, range) {
                Ok(sge) if sge.length == 0 => {}
                Ok(sge) => sges.push(sge),
                Err(why) => return refuse(why, data),
            }
        }
        if let Some(sge) = endpoint.place_head(head) {
            sges.insert(0, sge);
        }
        let was_clean = !endpoint.is_dirty();
        let op = SendOp { token, operation, signaled, held: Held::Pieces(data) };
        endpoint.push(id.0, &sges, order, op);
        if was_clean {
            self.dirty.push(id.0);
        }
        Ok(())
    }

    /// Queues a read of the peer's memory into a range of a buffer.
    ///
    /// # Errors
    /// [`NotQueued`], with the buffer.
    pub fn queue_read(
        &mut self,
        id: EndpointId,
        into: Buf,
        range: Range<usize>,
        from: Remote,
        token: u64,
    ) -> Result<(), Box<NotQueued<Buf>>> {
        let refuse = |why, back| Err(Box::new(NotQueued { why, back }));
        let Some(endpoint) = self.endpoints.get_mut(id.0).filter(|e| !e.broken) else {
            return refuse(Why::Ended, into);
        };
        if endpoint.room() == 0 {
            return refuse(Why::Full, into);
        }
        let sge = match span(&self.memory, &into, &range) {
            Ok(sge) => sge,
            Err(why) => return refuse(why, into),
        };
        let was_clean = !endpoint.is_dirty();
        let held = Held::Into(into, sge.length);
        let op = SendOp { token, operation: Operation::Read, signaled: true, held };
        endpoint.push(id.0, &[sge], &Order::Read(from), op);
        if was_clean {
            self.dirty.push(id.0);
        }
        Ok(())
    }

    /// Hands everything that was queued to the device: a list for each queue, in one call for each.
    /// What the device refuses ends in [`Status::NotPosted`] with the next [`poll`](Self::poll).
    pub fn flush(&mut self) {
        self.flush_shared();
        while let Some(key) = self.dirty.pop() {
            // Receives first: what is sent may be answered at once.
            self.flush_receives(key);
            let Some(endpoint) = self.endpoints.get_mut(key) else { continue };
            let Some((errno, ops)) = endpoint.post_sends() else { continue };
            let status = Status::NotPosted(errno);
            self.refused.extend(ops.into_iter().map(|op| completion(key, op, status, None)));
        }
    }

    /// True if the device has refused work in a [`flush`](Self::flush), or if completions were taken to close an
    /// endpoint: the next [`poll`](Self::poll) returns them, and the descriptor may not become readable for them.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Takes all completions that the queue has, for a later [`poll`](Self::poll).
    pub(super) fn drain(&mut self) {
        let mut waiting = std::mem::take(&mut self.refused);
        // If the device has failed, the next poll returns the error.
        while let Ok(true) = self.take(&mut waiting) {}
        self.refused = waiting;
    }

    /// Takes the completions that there are, at most about a thousand of each kind. True if there may be more.
    ///
    /// # Errors
    /// [`Error::Gone`]: the device has failed.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<bool, Error> {
        completions.append(&mut self.refused);
        self.take(completions)
    }

    fn take(&mut self, completions: &mut Vec<Completion>) -> Result<bool, Error> {
        for _ in 0..BATCHES {
            // Sends first: they free memory and room in the send queues.
            let sends = self.queues.sends.poll(&mut self.batch[..])?;
            self.work_off(sends, completions);
            let receives = self.queues.receives.poll(&mut self.batch[..])?;
            self.work_off(receives, completions);
            if sends.max(receives) < BATCH {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn work_off(&mut self, found: usize, completions: &mut Vec<Completion>) {
        for i in 0..found {
            let wc = self.batch[i];
            match WorkId::from_number(wc.wr_id) {
                WorkId::Receive(key) => self.received(key, &wc, completions),
                WorkId::Send(key, number) => self.sent(key, number, &wc, completions),
            }
        }
    }

    /// Makes the descriptor readable with the next receive completion, and if `sends` with the next completion of a
    /// send, write or read; it is not readable until then. Call it before waiting, and [`poll`](Self::poll) once
    /// more afterwards: completions that arrived just before are not announced. `notified`: the descriptor has
    /// become readable since the last call. A notification that is still pending is not requested again.
    ///
    /// # Errors
    /// The device has failed.
    pub fn arm(&mut self, notified: bool, sends: bool) -> Result<(), Error> {
        self.queues.arm(notified, sends)
    }

    fn received(&mut self, key: Key, wc: &IbvWc, completions: &mut Vec<Completion>) {
        // One of an endpoint that is gone: its buffer was freed with it.
        let Some(receive) = self.receives.remove(key) else { return };
        let (endpoint, token) = match receive.owner {
            Some(owner) => {
                if let Some(list) = self.endpoints.get_mut(owner).and_then(|e| e.receives.as_mut())
                {
                    list.held -= 1;
                }
                (EndpointId(owner), receive.token)
            }
            None => {
                let reached = receive.order + 1;
                if let Some(shared) = &mut self.shared {
                    shared.list.held -= 1;
                    shared.missing -= u32::from(receive.missing);
                    shared.reached = shared.reached.max(reached);
                }
                // A message for an endpoint that is gone.
                let Some(id) = self.by_number.get(&wc.qp_num) else { return };
                let Some(endpoint) = self.endpoints.get_mut(id.0) else { return };
                endpoint.reached = endpoint.reached.max(reached);
                (*id, endpoint.token)
            }
        };
        let status = Status::from_number(wc.status);
        let success = status.is_success();
        completions.push(Completion {
            endpoint,
            token,
            operation: Operation::Receive,
            status,
            bytes: if success { wc.byte_len } else { 0 },
            invalidated: (success && wc.wc_flags & WC_WITH_INV != 0).then_some(wc.invalidated_rkey),
            buf: Some(receive.memory.head),
            body: receive.memory.body,
        });
    }

    fn sent(&mut self, key: Key, number: u32, wc: &IbvWc, completions: &mut Vec<Completion>) {
        let Some(endpoint) = self.endpoints.get_mut(key) else { return };
        let status = Status::from_number(wc.status);
        let mut ended = endpoint.ended(number).peekable();
        while let Some(op) = ended.next() {
            // All but the last had no signal: that there is none for them says that they were done.
            let status = if ended.peek().is_some() { Status::Success } else { status };
            if op.signaled || !status.is_success() {
                completions.push(completion(key, op, status, None));
            }
        }
    }
}

fn completion(key: Key, op: SendOp, status: Status, invalidated: Option<u32>) -> Completion {
    let (buf, len) = match op.held {
        Held::Into(buf, len) => (Some(buf), len),
        Held::Pieces(_) => (None, 0),
    };
    Completion {
        endpoint: EndpointId(key),
        token: op.token,
        operation: op.operation,
        status,
        bytes: if status.is_success() { len } else { 0 },
        invalidated,
        buf,
        body: None,
    }
}

/// A range of a payload as the device has it.
fn piece(memory: &[Registration], payload: &Payload, range: &Range<usize>) -> Result<IbvSge, Why> {
    within(memory, (payload.start(), payload.len()), range)
}

/// A range of a buffer as the device has it.
pub(super) fn span(
    memory: &[Registration],
    buf: &Buf,
    range: &Range<usize>,
) -> Result<IbvSge, Why> {
    within(memory, (buf.start().as_ptr(), buf.len()), range)
}

fn within(
    memory: &[Registration],
    (start, len): (*const u8, usize),
    range: &Range<usize>,
) -> Result<IbvSge, Why> {
    if range.start > range.end || range.end > len {
        return Err(Why::NotRegistered);
    }
    let length = u32::try_from(range.len()).map_err(|_| Why::TooLong)?;
    let addr = start as u64 + range.start as u64;
    let lkey = memory
        .iter()
        .find_map(|registration| registration.key_for(addr, u64::from(length)))
        .ok_or(Why::NotRegistered)?;
    Ok(IbvSge { addr, length, lkey })
}
