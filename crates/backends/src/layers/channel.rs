//! A channel whose requests are held up, or do not get through.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunet_block::{Channel, Completion, Error, IoDone, IoToken, Request, Submit};
use lunet_ring::{Payload, Ring, Token};
use slab::Slab;

use super::Shared;
use super::rules::{Rules, Wait};
use crate::disk_token;

/// Marks the slots of layers; the channels below leave this bit alone.
const LAYER: u32 = 1 << 31;

/// The slot of the timer that looks after what hangs.
const LOOK: u32 = u32::MAX;

/// How often it looks.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// After this time a request is offered again to a channel that was full.
const OFFER_AGAIN: Duration = Duration::from_millis(1);

/// Requests held up on one channel at most.
const CAPACITY: usize = 1024;

struct Held {
    request: Request<Payload>,
    /// If it hangs in no layer (any more), it has a timer.
    wait: Wait,
    /// It was let through, and the channel below was full.
    passed: bool,
}

/// What is held up. If the channel is dropped at the end of the program, so is that.
struct Waiting {
    held: Slab<Held>,
    shared: Arc<Shared>,
}

impl Waiting {
    fn insert(&mut self, held: Held) -> u32 {
        self.shared.held.fetch_add(1, Ordering::SeqCst);
        self.held.insert(held) as u32
    }

    fn remove(&mut self, slot: u32) -> Option<Held> {
        let held = self.held.try_remove(slot as usize)?;
        self.shared.held.fetch_sub(1, Ordering::SeqCst);
        Some(held)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for held in self.held.drain() {
            self.shared.held.fetch_sub(1, Ordering::SeqCst);
            drop(held.request.complete(Err(Error::Cancelled)));
        }
    }
}

pub(super) struct LayeredChannel {
    inner: Box<dyn Channel<Payload, Ring>>,
    rules: Rules,
    number: u16,
    waiting: Waiting,
    /// Requests that hang. While there are some, the timer of [`LOOK`] runs, unless nobody can
    /// release them.
    hanging: usize,
    /// The last request that came, and how long it waits for a limit.
    limited: (u64, Duration),
}

impl LayeredChannel {
    pub fn new(inner: Box<dyn Channel<Payload, Ring>>, rules: Rules, number: u16) -> Self {
        let waiting = Waiting { held: Slab::new(), shared: Arc::clone(&rules.shared) };
        let limited = (0, Duration::ZERO);
        Self { inner, rules, number, waiting, hanging: 0, limited }
    }

    fn token(&self, slot: u32) -> Token {
        disk_token(IoToken { channel: self.number, slot: LAYER | slot })
    }

    fn hold(&mut self, held: Held, io: &mut Ring) {
        let Wait { hang, delay, .. } = held.wait;
        let slot = self.waiting.insert(held);
        if hang.is_none() {
            io.timer(delay.unwrap_or_default(), self.token(slot));
            return;
        }
        if self.hanging == 0 && self.rules.may_change() {
            io.timer(LOOK_AGAIN, self.token(LOOK));
        }
        self.hanging += 1;
    }

    /// Lets go on what hangs in no layer any more: each gets a timer, because each has an
    /// answer of its own.
    fn look(&mut self, io: &mut Ring) {
        let token = |slot| disk_token(IoToken { channel: self.number, slot: LAYER | slot as u32 });
        for (slot, held) in &mut self.waiting.held {
            if held.wait.hang.is_some_and(|layer| !self.rules.is_on(layer)) {
                held.wait.hang = None;
                self.hanging -= 1;
                io.timer(held.wait.delay.unwrap_or_default(), token(slot));
            }
        }
        if self.hanging > 0 && self.rules.may_change() {
            io.timer(LOOK_AGAIN, self.token(LOOK));
        }
    }
}

impl Channel<Payload, Ring> for LayeredChannel {
    fn submit(&mut self, request: Request<Payload>, io: &mut Ring) -> Submit<Payload> {
        if self.waiting.held.len() == CAPACITY {
            return Submit::Busy(request);
        }
        let wait = self.rules.wait(request.op, request.range);
        self.limited = (request.tag, wait.limited);
        if wait != Wait::default() {
            self.hold(Held { request, wait, passed: false }, io);
            return Submit::Queued;
        }
        match self.rules.fault(request.op, request.range) {
            Some(error) => Submit::Done(request.complete(Err(error))),
            None => self.inner.submit(request, io),
        }
    }

    fn advance(&mut self, done: IoDone<Payload>, io: &mut Ring) -> Option<Completion<Payload>> {
        if done.slot & LAYER == 0 {
            return self.inner.advance(done, io);
        }
        if done.slot == LOOK {
            self.look(io);
            return None;
        }
        let Held { request, passed, .. } = self.waiting.remove(done.slot & !LAYER)?;
        if done.result.is_err() {
            return Some(request.complete(Err(Error::Cancelled)));
        }
        if !passed {
            if let Some(error) = self.rules.fault(request.op, request.range) {
                return Some(request.complete(Err(error)));
            }
        }
        match self.inner.submit(request, io) {
            Submit::Done(done) => Some(done),
            Submit::Queued => None,
            Submit::Busy(request) => {
                let wait = Wait { delay: Some(OFFER_AGAIN), ..Wait::default() };
                self.hold(Held { request, wait, passed: true }, io);
                None
            }
        }
    }

    fn more(&mut self, io: &mut Ring) -> Option<Completion<Payload>> {
        self.inner.more(io)
    }

    fn cancel(&mut self, tag: u64, io: &mut Ring) {
        match self.waiting.held.iter().find(|(_, held)| held.request.tag == tag) {
            Some((slot, held)) if held.wait.hang.is_none() => io.cancel(self.token(slot as u32)),
            // The disk has it already, and does not answer.
            Some(_) => {}
            None => self.inner.cancel(tag, io),
        }
    }

    fn lent(&self) -> usize {
        self.inner.lent()
    }

    fn lends(&self, answer: &Payload) -> bool {
        self.inner.lends(answer)
    }

    fn limited(&self, tag: u64) -> Duration {
        let (last, time) = self.limited;
        if last == tag { time } else { Duration::ZERO }
    }

    fn close(self: Box<Self>, io: &mut Ring) {
        io.forget_timer(self.token(LOOK));
        self.inner.close(io);
    }
}
