//! Both ends, the wires between them, and the time.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lunet_block::Random;
use lunet_iscsi::initiator::{Command, Data, Finished, SubmitError, Tag};
use lunet_iscsi::{initiator, target};

use crate::disk::{Disk, TestSite};
use crate::fabric::{Arrival, Fabric};
use crate::wire::{Outgoing, Sent, Wire};

pub type Initiator = initiator::Connection<Vec<u8>, Rc<[u8]>>;
pub type InitiatorEvent = initiator::Event<Vec<u8>, Rc<[u8]>>;

/// What an RDMA target takes and says in a test, unless it says otherwise.
pub const RDMA: target::RdmaOptions =
    target::RdmaOptions { recv_data_segment_length: 8192, invalidate: true };

pub struct World {
    pub now: Duration,
    pub rng: Random,
    pub initiator: Initiator,
    pub target: target::Connection<Vec<u8>>,
    pub disk: Disk,
    pub site: TestSite,
    pub to_target: Wire,
    pub to_initiator: Wire,
    /// Instead of the wires, over RDMA.
    pub fabric: Option<Fabric>,
    /// The steering tags of the commands under way, by the tags of the commands.
    opened: BTreeMap<Tag, u32>,
    pub events: Vec<InitiatorEvent>,
    /// What the initiator wants to send.
    pub sent: Sent,
    /// What the target wants to send.
    pub answers: Outgoing,
    pub target_events: Vec<target::Event<Vec<u8>>>,
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
        let mut rng = Random::new(seed);
        let now = Duration::from_secs(1000);
        let (mut fabric, mut end) = (None, target::Connection::new(target.clone(), now));
        if initiator.rdma.is_some() {
            end = target::Connection::over_rdma(target, RDMA, now);
            let receives = (end.receives(), initiator.receives());
            let lengths = (end.receive_parts().iter().sum(), initiator.receive_len());
            fabric = Some(Fabric::new(Random::new(rng.bits()), receives, lengths));
        }
        let mut world = Self {
            now,
            initiator: Initiator::new(initiator),
            target: end,
            fabric,
            opened: BTreeMap::new(),
            disk: Disk::new(Random::new(rng.bits())),
            site: TestSite { credentials, ..TestSite::new(Random::new(rng.bits())) },
            rng,
            to_target: Wire::default(),
            to_initiator: Wire::default(),
            events: Vec::new(),
            sent: Sent::default(),
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
        let Some(fabric) = &mut self.fabric else {
            self.to_target.push(&std::mem::take(&mut self.sent.bytes));
            self.to_initiator.push(&self.answers.take());
            return;
        };
        assert!(self.sent.bytes.is_empty() && self.answers.bytes.is_empty(), "half a Send");
        fabric.initiator_sends(self.sent.sends.drain(..));
        fabric.target_does(self.answers.effects.drain(..));
        while fabric.takes_reads() {
            let Some(read) = self.target.take_rdma_read() else { break };
            fabric.read(read);
        }
        self.answers.take();
    }

    /// Sends a command; over RDMA its memory is registered before.
    pub fn submit(&mut self, command: Command<'_, Vec<u8>, Rc<[u8]>>) -> Result<Tag, SubmitError> {
        let Some(fabric) = &mut self.fabric else {
            let sent = self.initiator.submit(command, &mut self.sent);
            return sent.map_err(|refused| refused.error);
        };
        let memory = match &command.data {
            Data::None => None,
            Data::Read(buf) => fabric.register(buf.clone(), true),
            Data::Discard(len) => fabric.register(vec![0; *len as usize], true),
            Data::Write(bytes) => fabric.register(bytes.to_vec(), false),
        };
        match (self.initiator.submit_rdma(command, memory, &mut self.sent), memory) {
            (Ok(tag), memory) => {
                self.opened.extend(memory.map(|memory| (tag, memory.stag)));
                Ok(tag)
            }
            (Err(refused), memory) => {
                memory.map(|memory| fabric.deregister(memory.stag));
                Err(refused.error)
            }
        }
    }

    /// Takes the memory of a command back; over RDMA the data of a read is there.
    pub fn take_back(&mut self, finished: &mut Finished<Vec<u8>, Rc<[u8]>>) {
        let (Some(fabric), Some(stag)) = (&mut self.fabric, self.opened.remove(&finished.tag))
        else {
            return;
        };
        let bytes = fabric.deregister(stag).expect("registered");
        if let Data::Read(buf) = &mut finished.data {
            *buf = bytes;
        }
    }

    /// Lets some bytes arrive, or what is due happen. False when all is quiet at this time.
    pub fn step(&mut self) -> bool {
        self.flush();
        self.disk.work(self.now, &mut self.target, &mut self.answers);
        if self.fabric.is_some() {
            let moved = self.step_fabric();
            self.flush();
            return moved;
        }
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
            site: &mut self.site,
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

    /// Lets something happen on the fabric.
    fn step_fabric(&mut self) -> bool {
        let Some(arrival) = self.fabric.as_mut().and_then(Fabric::step) else { return false };
        let Self {
            now, initiator, target, site, answers, target_events, sent, events, rng, ..
        } = self;
        let mut to = initiator::Cx { now: *now, tx: sent, events };
        let mut cx = target::Cx { now: *now, site, tx: answers, events: target_events };
        match arrival {
            Arrival::AtTarget(send) => scatter(rng, &send, |it| target.rx_send(it, &mut cx)),
            Arrival::AtInitiator(send, invalidated) => {
                initiator.rx_send(&send, invalidated, &mut to);
            }
            Arrival::Read(read) => target.rdma_read_done(read.id, read.buf, &mut cx),
            Arrival::Broken(fault) => {
                target.rdma_failed(fault, cx.events);
                initiator.transport_closed(to.events);
            }
            Arrival::Nothing => {}
        }
        self.after_target();
        true
    }

    fn receive_at_target(&mut self) -> bool {
        if self.to_target.is_empty() {
            return false;
        }
        let bytes = self.to_target.take(&mut self.rng);
        let mut rest = bytes.as_slice();
        let Self { now, rng, target, site, answers, target_events, .. } = self;
        let mut cx = target::Cx { now: *now, site, tx: answers, events: target_events };
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
        loop {
            for event in std::mem::take(&mut self.target_events) {
                self.disk.handle(event, self.now, &mut self.target, &mut self.answers);
            }
            if !self.target.logs_out() {
                return;
            }
            let Self { now, target, answers, target_events, site, .. } = self;
            let mut cx = target::Cx { now: *now, site, tx: answers, events: target_events };
            target.log_out(&mut cx);
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

/// Hands over a Send as a receive has it, whose memory is cut somewhere behind the headers.
fn scatter(rng: &mut Random, send: &[u8], rx: impl FnOnce(target::Received<'_, Vec<u8>>)) {
    let least = send.len().min(76);
    let (head, rest) = match rng.below(4) {
        0 => return rx(send.into()),
        1 => send.split_at(least + rng.below((send.len() - least) as u64 + 1) as usize),
        _ => send.split_at(least),
    };
    let room = match rng.below(3) {
        0 => 1 + rng.below(9000) as usize,
        _ => 8192,
    };
    let (came, tail) = rest.split_at(rest.len().min(room));
    let (mut buf, len) = (came.to_vec(), came.len());
    buf.resize(room, 0xdd);
    let before = buf.clone();
    let mut spare = rng.chance(70).then(|| vec![0x55; room]);
    let had = spare.is_some();
    let body = target::Body { buf: &mut buf, len, spare: &mut spare };
    rx(target::Received { head, body: Some(body), tail });
    if had && spare.is_none() {
        assert!(tail.is_empty() && len * 2 >= room, "little data is copied");
        assert_eq!(buf, vec![0x55; room], "the spare one is in its place");
    } else {
        assert_eq!((buf, spare.is_some()), (before, had), "all is as it was");
    }
}
