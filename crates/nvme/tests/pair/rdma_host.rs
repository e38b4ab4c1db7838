//! Both ends over RDMA: the host's commands over a fabric that does things in any order, and controllers that answer what
//! they may not.

use std::collections::BTreeMap;
use std::ops::Range as Bytes_;
use std::rc::Rc;
use std::time::Duration;

use lunet_block::Random;
use lunet_nvme::auth::Hash;
use lunet_nvme::auth::chap::{Credentials, Initiator, Responder};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::command::{Completion, Cqe, Io, Range};
use lunet_nvme::controller::{self, CloseReason, RdmaOptions};
use lunet_nvme::fabrics::{Authentication, Connect, Connected};
use lunet_nvme::host::{self, Command, Cx, Data, Error, Event, OWN_LEN, SubmitError};
use lunet_nvme::pdu::U16;
use lunet_nvme::rdma::Remote;
use lunet_nvme::status::Status;
use lunet_nvme::transmit::Transmit;
use proptest::prelude::*;
use zerocopy::IntoBytes;

use crate::authentication::{credentials, guarded, random, secret, terms};
use crate::disk::{BLOCK, BLOCKS, Disk, TestSite};
use crate::fabric::{Access, Arrival, Fabric, Posts};
use crate::world::{Bytes, Settings};

const NOW: Duration = Duration::from_secs(1000);

/// Most data of a capsule.
const CAPSULE: u32 = 4096;

/// What the host wants to send, and the memory of its own commands.
#[derive(Default)]
struct HostPosts {
    bytes: Vec<u8>,
    sends: Vec<Vec<u8>>,
    kept: Option<Vec<u8>>,
    own: Vec<u8>,
}

impl Transmit for HostPosts {
    type Payload = Bytes;

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: Bytes, range: Bytes_<usize>) {
        self.bytes.extend_from_slice(&payload.0[range]);
    }

    fn end_send(&mut self, invalidate: Option<u32>) {
        assert_eq!(invalidate, None, "hosts take no keys back");
        self.sends.push(std::mem::take(&mut self.bytes));
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.kept = Some(bytes.to_vec());
    }

    fn kept(&mut self, into: &mut [u8]) {
        into.copy_from_slice(&self.own[..into.len()]);
    }
}

/// What a command has to lead to.
struct Expected {
    status: Status,
    /// What is read.
    reads: Option<Range>,
    memory: Option<Remote>,
}

struct Pair {
    random: Random,
    host: host::Connection<Vec<u8>, Bytes>,
    posts: HostPosts,
    seen: Vec<Event<Vec<u8>, Bytes>>,
    own: Remote,
    controller: controller::Connection<Vec<u8>>,
    effects: Posts,
    events: Vec<controller::Event<Vec<u8>>>,
    closed: Option<CloseReason>,
    refusal: Option<Completion>,
    /// Whom the host has to prove itself to.
    guard: Option<Responder>,
    disk: Disk,
    site: TestSite,
    fabric: Fabric,
    under_way: BTreeMap<u64, Expected>,
    next: u64,
    model: Vec<u8>,
    /// The Connect.
    wanted: Connect,
    fresh: u64,
    failed: Option<Error>,
}

impl Pair {
    fn new(seed: u64, qid: u16) -> Self {
        let mut random = Random::new(seed);
        let disk = Disk::new(Random::new(random.bits()));
        let entries = 2 + random.below(40) as usize;
        let options =
            controller::Options { capsule_data: CAPSULE, ..Settings::default().controller };
        let length = controller::Connection::<Vec<u8>>::receive_parts(&options).iter().sum();
        let mut fabric = Fabric::new(Random::new(random.bits()), entries, length);
        fabric.at_host = entries;
        let own = fabric.open(vec![0; OWN_LEN as usize], Access::Both);
        let cntlid = if qid == 0 { 0xffff } else { 1 };
        let mut host = Settings::default().host();
        host.connect = Connect { qid, sqsize: entries as u16 - 1, cntlid, ..host.connect };
        host.capsule_data = CAPSULE;
        let wanted = host.connect.clone();
        let rdma = RdmaOptions { invalidate: random.chance(50) };
        Self {
            host: host::Connection::over_rdma(host, own),
            posts: HostPosts::default(),
            seen: Vec::new(),
            own,
            controller: controller::Connection::over_rdma(options, rdma, NOW),
            effects: Posts::default(),
            events: Vec::new(),
            closed: None,
            refusal: None,
            guard: None,
            model: disk.bytes.clone(),
            disk,
            site: TestSite::default(),
            fabric,
            under_way: BTreeMap::new(),
            next: 0,
            wanted,
            fresh: BLOCKS as u64 / 2,
            failed: None,
            random,
        }
    }

    fn connected(seed: u64, qid: u16) -> Self {
        let mut pair = Self::new(seed, qid);
        pair.host.start(NOW, &mut pair.posts);
        pair.settle();
        assert!(pair.host.is_ready() && pair.host.is_rdma() && pair.controller.is_ready());
        pair
    }

    fn submit(&mut self, io: Io, data: Data<Vec<u8>, Bytes>, expected: Expected) {
        let command = Command { token: self.next, sqe: io.encode(1), data };
        let sent = self.host.submit_rdma(command, expected.memory, &mut self.posts);
        sent.map_err(|refused| refused.error).expect("it is taken");
        self.under_way.insert(self.next, expected);
        self.next += 1;
    }

    /// Writes and compares in the second half, reads in the first, which nobody writes.
    fn command(&mut self) {
        let most = if self.random.chance(30) { 40 } else { 8 };
        let blocks = 1 + self.random.below(most) as u32;
        let len = blocks as usize * BLOCK;
        let lba = self.random.below(BLOCKS as u64 / 2 - u64::from(blocks));
        let range = Range { lba, blocks };
        let good = |memory| Expected { status: Status::SUCCESS, reads: None, memory };
        match self.random.below(10) {
            0..=4 => {
                let memory = Some(self.fabric.register(vec![0xee; len], true));
                let data = match self.random.chance(50) {
                    true => Data::Read(vec![0; len]),
                    false => Data::Discard(len as u32),
                };
                let expected = Expected { reads: Some(range), ..good(memory) };
                self.submit(Io::Read { range, fua: false }, data, expected);
            }
            5..=8 if self.fresh + u64::from(blocks) <= BLOCKS as u64 => {
                let range = Range { lba: self.fresh, blocks };
                self.fresh += u64::from(blocks);
                let mut bytes = vec![0; len];
                self.random.fill(&mut bytes);
                let at = range.lba as usize * BLOCK;
                self.model[at..at + len].copy_from_slice(&bytes);
                let inline = self.host.fits_capsule(len as u32);
                let memory = (!inline).then(|| self.fabric.register(bytes.clone(), false));
                let data = Data::Write(Bytes(Rc::from(bytes)), len as u32);
                self.submit(Io::Write { range, fua: true }, data, good(memory));
            }
            9 => {
                let range = Range { lba: BLOCKS as u64, blocks };
                let memory = Some(self.fabric.register(vec![0; len], true));
                let status = Status::LBA_RANGE.no_retry();
                let expected = Expected { status, ..good(memory) };
                self.submit(Io::Read { range, fua: false }, Data::Discard(len as u32), expected);
            }
            _ => self.submit(Io::Flush, Data::None, good(None)),
        }
    }

    /// Lets something happen. False when all is quiet.
    fn step(&mut self) -> bool {
        if let Some(kept) = self.posts.kept.take() {
            self.fabric.memory(self.own.key)[..kept.len()].copy_from_slice(&kept);
        }
        self.fabric.to_controller.extend(self.posts.sends.drain(..));
        self.fabric.controller_does(&mut self.effects.effects);
        while self.fabric.takes_reads() {
            let Some(read) = self.controller.take_rdma_read() else { break };
            self.fabric.read(read);
        }
        let Self { disk, controller, effects, .. } = self;
        let first = self.random.chance(40) && self.closed.is_none();
        if first && disk.work(controller, effects) {
            return true;
        }
        let Some(arrival) = self.fabric.step() else {
            return self.closed.is_none() && disk.work(controller, effects);
        };
        let mut cx = controller::Cx {
            now: NOW,
            site: &mut self.site,
            tx: effects,
            events: &mut self.events,
        };
        match arrival {
            Arrival::AtController(message) => {
                controller.rx_send(message.as_slice().into(), &mut cx)
            }
            Arrival::Read(read) => controller.rdma_read_done(read.id, read.buf, &mut cx),
            Arrival::AtHost(bytes, invalidated) => self.at_host(&bytes, invalidated),
            Arrival::Broken | Arrival::Nothing => {}
        }
        self.handle();
        true
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    fn at_host(&mut self, bytes: &[u8], invalidated: Option<u32>) {
        self.fabric.at_host += 1;
        self.posts.own = self.fabric.memory(self.own.key).to_vec();
        let mut cx = Cx { now: NOW, tx: &mut self.posts, events: &mut self.seen };
        self.host.rx_send(bytes, invalidated, &mut cx);
        if let Some(job) = self.host.take_job() {
            self.host.computed(job.compute(), &mut cx);
        }
        for event in std::mem::take(&mut self.seen) {
            match event {
                Event::Connected(connected) => assert_eq!(connected.cntlid, 1),
                Event::Finished(finished) => self.finished(finished),
                Event::Failed(error) => self.failed = Some(error),
            }
        }
    }

    fn finished(&mut self, finished: host::Finished<Vec<u8>, Bytes>) {
        let expected = self.under_way.remove(&finished.token).expect("a command ends once");
        let Some(completion) = finished.completion else { return };
        assert_eq!(completion.status, expected.status);
        let memory = expected.memory.map(|memory| self.fabric.deregister(memory.key).0);
        let Some(range) = expected.reads else { return };
        let at = range.lba as usize * BLOCK;
        let data = &self.model[at..at + range.blocks as usize * BLOCK];
        let good = completion.status.is_success();
        assert_eq!(finished.received as usize, if good { data.len() } else { 0 });
        assert_eq!(memory.as_deref(), Some(data));
    }

    fn handle(&mut self) {
        for event in std::mem::take(&mut self.events) {
            match event {
                controller::Event::Close(reason) => self.closed = Some(reason),
                controller::Event::Connect(connect) => {
                    assert_eq!(*connect, self.wanted, "the data of the Connect");
                    if let Some(refusal) = self.refusal {
                        self.controller.refuse(refusal, &mut self.effects);
                        continue;
                    }
                    let authentication = match self.guard {
                        Some(_) => Authentication::Required,
                        None => Authentication::None,
                    };
                    self.controller
                        .accept(Connected { cntlid: 1, authentication }, &mut self.effects);
                }
                other if self.guard.is_some() => {
                    guarded(other, &mut self.guard, &mut self.controller, &mut self.effects);
                }
                other => self.disk.handle(other, &mut self.controller, &mut self.effects),
            }
        }
    }

    /// What a message of the controller leads to.
    fn failure_of(&mut self, message: &[u8], invalidated: Option<u32>) -> Option<Error> {
        self.at_host(message, invalidated);
        self.failed
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_command_ends_once_and_its_data_is_in_its_memory(seed: u64) {
        let mut pair = Pair::connected(seed, 1);
        for _ in 0..80 {
            while pair.under_way.len() == pair.host.entries() || pair.random.chance(60) {
                if !pair.step() {
                    break;
                }
            }
            pair.command();
        }
        pair.settle();
        prop_assert_eq!((pair.closed, pair.fabric.broken, pair.failed), (None, None, None));
        prop_assert_eq!((pair.under_way.len(), pair.host.outstanding()), (0, 0));
        prop_assert!(pair.disk.bytes == pair.model, "a write is lost or misplaced");
        // What is left is the memory of the host's own commands.
        prop_assert_eq!((pair.fabric.regions(), pair.fabric.invalidated), (1, 0));
    }

    #[test]
    fn any_message_is_an_answer_or_ends_the_connection(
        seed: u64,
        message in proptest::collection::vec(any::<u8>(), 0..40),
        key in proptest::option::of(any::<u32>()),
    ) {
        let mut pair = Pair::connected(seed, 1);
        pair.submit(Io::Flush, Data::None, Expected { status: Status::SUCCESS, reads: None, memory: None });
        pair.at_host(&message, key);
        prop_assert!(pair.failed.is_some() && pair.host.is_over() && pair.under_way.is_empty());
    }
}

#[test]
fn messages_that_are_no_completions_end_the_connection() {
    let cqe = Cqe { cid: U16::new(0x7777), ..Cqe::default() };
    assert_eq!(
        Pair::connected(1, 1).failure_of(cqe.as_bytes(), None),
        Some(Error::UnknownCommand(0x7777))
    );
    assert_eq!(Pair::connected(2, 1).failure_of(&[0; 15], None), Some(Error::Message(15)));
    assert_eq!(
        Pair::connected(3, 1).failure_of(cqe.as_bytes(), Some(9)),
        Some(Error::Invalidated(9))
    );
}

#[test]
fn a_connect_that_is_refused_says_why() {
    let mut pair = Pair::new(5, 1);
    pair.refusal = Some(Connect::UNKNOWN_SUBSYSTEM);
    pair.host.start(NOW, &mut pair.posts);
    pair.settle();
    let Some(Error::Refused(completion)) = pair.failed else { panic!("{:?}", pair.failed) };
    assert_eq!(completion.status.code(), Status::CONNECT_PARAMETER);
}

/// Messages go through the memory of the host's own commands, in both directions.
#[test]
fn hosts_and_controllers_prove_themselves() {
    for qid in [0, 1] {
        let mut pair = Pair::new(8, qid);
        pair.guard = Some(Responder::new(terms(), 77));
        let offer = credentials(Hash::Sha256, Group::Ffdhe2048);
        let offer = Credentials { controller: Some(secret(2)), ..offer };
        let initiator = Initiator::new(offer, 9, 33, &mut random(1)).expect("random numbers");
        pair.host.authenticate(initiator);
        pair.host.start(NOW, &mut pair.posts);
        pair.settle();
        assert_eq!((pair.failed, pair.fabric.broken), (None, None));
        assert!(pair.host.is_ready() && pair.guard.is_none());
    }
}

#[test]
fn data_needs_memory_unless_it_goes_in_the_capsule() {
    let mut pair = Pair::connected(6, 1);
    let range = Range { lba: 0, blocks: 1 };
    let read = |len| Command {
        token: 0,
        sqe: Io::Read { range, fua: false }.encode(1),
        data: Data::Discard(len),
    };
    let refused = pair.host.submit(read(512), &mut pair.posts).expect_err("no memory");
    assert_eq!(refused.error, SubmitError::NotRegistered);
    // A keyed descriptor counts 24 bits.
    let memory = Some(Remote { address: 0, key: 1 });
    let refused = pair.host.submit_rdma(read(1 << 24), memory, &mut pair.posts);
    assert_eq!(refused.expect_err("too long").error, SubmitError::NotRegistered);
    assert!(pair.host.fits_capsule(CAPSULE) && !pair.host.fits_capsule(CAPSULE + 1));
    assert!(!Pair::connected(7, 0).host.fits_capsule(512), "admin queues take none");
}
