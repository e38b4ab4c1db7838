//! Both ends, the wires between them, and the time.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::{initiator, target};

use crate::disk::{Disk, Place};
use crate::wire::{Outgoing, Rng, Wire};

pub type Initiator = initiator::Connection<Vec<u8>, Rc<[u8]>>;
pub type InitiatorEvent = initiator::Event<Vec<u8>, Rc<[u8]>>;

pub struct World {
    pub now: Duration,
    pub rng: Rng,
    pub initiator: Initiator,
    pub target: target::Connection<Vec<u8>>,
    pub disk: Disk,
    pub place: Place,
    pub to_target: Wire,
    pub to_initiator: Wire,
    pub events: Vec<InitiatorEvent>,
    /// What the initiator wants to send.
    pub sent: Vec<u8>,
    /// What the target wants to send.
    pub answers: Outgoing,
    target_events: Vec<target::Event<Vec<u8>>>,
}

impl World {
    pub fn new(initiator: initiator::Options, target: target::Options, seed: u64) -> Self {
        Self::guarded(initiator, target, None, seed)
    }

    /// A world whose target asks for these credentials.
    pub fn guarded(
        initiator: initiator::Options,
        target: target::Options,
        credentials: Option<Arc<target::Credentials>>,
        seed: u64,
    ) -> Self {
        let mut rng = Rng(seed);
        let now = Duration::from_secs(1000);
        let mut world = Self {
            now,
            initiator: Initiator::new(initiator),
            target: target::Connection::new(target, now),
            disk: Disk::new(Rng(rng.next())),
            place: Place { credentials, ..Place::new(Rng(rng.next())) },
            rng,
            to_target: Wire::default(),
            to_initiator: Wire::default(),
            events: Vec::new(),
            sent: Vec::new(),
            answers: Outgoing::default(),
            target_events: Vec::new(),
        };
        world.initiator.start(now, &mut world.sent);
        world.flush();
        world
    }

    /// A world whose ends have logged in.
    pub fn connected(initiator: initiator::Options, target: target::Options, seed: u64) -> Self {
        let mut world = Self::new(initiator, target, seed);
        world.settle();
        let events = std::mem::take(&mut world.events);
        assert!(matches!(events[..], [initiator::Event::LoggedIn(_)]), "{events:?}");
        assert!(world.target.is_full_feature());
        world
    }

    /// Puts what the ends want to send onto the wires. A failed end sends nothing any more, but
    /// what it wrote before goes out.
    pub fn flush(&mut self) {
        self.to_target.push(&std::mem::take(&mut self.sent));
        self.to_initiator.push(&self.answers.take());
    }

    /// Lets some bytes arrive, or what is due happen. False when all is quiet at this time.
    pub fn step(&mut self) -> bool {
        self.flush();
        self.disk.work(self.now, &mut self.target, &mut self.answers);
        let target_first = self.rng.chance(50);
        let moved = (target_first && self.receive_at_target())
            || self.receive_at_initiator()
            || self.receive_at_target();
        self.flush();
        moved
    }

    /// Goes on until all is quiet, without letting the time pass.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets the time pass until the next thing is due, at most until `limit`, and settles.
    pub fn advance(&mut self, limit: Duration) {
        let due = [
            self.disk.next_due(),
            self.initiator.poll_timeout(),
            self.target.poll_timeout(),
            Some(limit),
        ];
        let next = due.into_iter().flatten().min().unwrap_or(limit);
        self.now = self.now.max(next).min(limit);
        self.timeouts();
    }

    /// Lets both ends see the time.
    pub fn timeouts(&mut self) {
        let mut cx = initiator::Cx { now: self.now, tx: &mut self.sent, events: &mut self.events };
        self.initiator.handle_timeout(&mut cx);
        let mut cx = target::Cx {
            now: self.now,
            site: &mut self.place,
            tx: &mut self.answers,
            events: &mut self.target_events,
        };
        self.target.handle_timeout(&mut cx);
        self.after_target();
        self.flush();
    }

    /// Lets this much time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while self.now < end {
            self.advance(end);
            self.settle();
        }
    }

    fn receive_at_target(&mut self) -> bool {
        if self.to_target.is_empty() {
            return false;
        }
        let bytes = self.to_target.take(&mut self.rng);
        let mut rest = bytes.as_slice();
        let Self { now, rng, target, place, answers, target_events, .. } = self;
        let mut cx = target::Cx { now: *now, site: place, tx: answers, events: target_events };
        if !rng.chance(20) {
            if let Some(mut lent) = target.take_rx_target() {
                let n = lent.range.len().min(rest.len());
                let range = lent.range.start..lent.range.start + n;
                lent.buf[range].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                target.rx_payload(lent, n, &mut cx);
            }
        }
        target.rx_bytes(rest, &mut cx);
        self.after_target();
        true
    }

    fn after_target(&mut self) {
        for event in std::mem::take(&mut self.target_events) {
            self.disk.handle(event, self.now, &mut self.target, &mut self.answers);
        }
    }

    fn receive_at_initiator(&mut self) -> bool {
        if self.to_initiator.is_empty() {
            return false;
        }
        let bytes = self.to_initiator.take(&mut self.rng);
        let mut rest = bytes.as_slice();
        let Self { now, rng, initiator, sent, events, .. } = self;
        let mut cx = initiator::Cx { now: *now, tx: sent, events };
        if !rng.chance(20) {
            if let Some(mut lent) = initiator.take_rx_target() {
                let n = lent.range.len().min(rest.len());
                let range = lent.range.start..lent.range.start + n;
                lent.buf[range].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                initiator.rx_payload(lent, n, &mut cx);
            }
        }
        initiator.rx_bytes(rest, &mut cx);
        true
    }
}
