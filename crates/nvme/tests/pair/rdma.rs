//! A queue over RDMA: random commands over a fabric that does things in any order, and capsules that are not valid.

use std::collections::BTreeMap;
use std::time::Duration;

use lunet_block::Random;
use lunet_nvme::command::{Completion, Cqe, Io, PSDT_SGL, Range, Sgl, Sqe};
use lunet_nvme::controller::{
    Body, CloseReason, Connection, Cx, Event, Options, RdmaOptions, Received,
};
use lunet_nvme::fabrics::{Authentication, Connect, Connected};
use lunet_nvme::pdu::{U16, U32};
use lunet_nvme::rdma::Remote;
use lunet_nvme::status::Status;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::{BLOCK, BLOCKS, Disk, TestSite};
use crate::fabric::{Arrival, Fabric, Fault, Posts};
use crate::world::Settings;

/// Most data of a capsule.
const CAPSULE: u32 = 4096;

const NOW: Duration = Duration::from_secs(1000);

/// What a command has to lead to.
enum Expected {
    Data(Range),
    Status(Status),
    /// Any status.
    Ended,
}

/// Memory of a command.
#[derive(Clone, Copy)]
struct Memory {
    key: u32,
    /// Where its data begins in the region, and how much there is.
    at: usize,
    len: usize,
    /// The host asks for its key to be taken back.
    invalidate: bool,
}

struct UnderWay {
    expected: Expected,
    memory: Option<Memory>,
}

/// Both ends of a queue, and the fabric between them.
struct Queue {
    random: Random,
    controller: Connection<Vec<u8>>,
    disk: Disk,
    site: TestSite,
    posts: Posts,
    fabric: Fabric,
    events: Vec<Event<Vec<u8>>>,
    closed: Option<CloseReason>,
    /// The device can take keys back.
    invalidates: bool,
    entries: usize,
    under_way: BTreeMap<u16, UnderWay>,
    next: u16,
    model: Vec<u8>,
    fresh: u64,
    finished: u32,
    /// Commands of an admin queue, with their data.
    fetched: Vec<Vec<u8>>,
}

fn options() -> Options {
    Options { capsule_data: CAPSULE, ..Options::default() }
}

/// Hands over a Send as a receive has it, whose memory is cut somewhere behind the submission queue entry.
fn scatter(random: &mut Random, message: &[u8], rx: impl FnOnce(Received<'_, Vec<u8>>)) {
    let least = message.len().min(64);
    let cut = match random.below(4) {
        0 => return rx(message.into()),
        1 => least + random.below((message.len() - least) as u64 + 1) as usize,
        _ => least,
    };
    let (head, rest) = message.split_at(cut);
    let mut buf = rest.to_vec();
    buf.resize(rest.len().max(CAPSULE as usize), 0xdd);
    let (before, len) = (buf.clone(), rest.len());
    let mut spare = random.chance(70).then(|| vec![0x55; before.len()]);
    let had = spare.is_some();
    rx(Received { head, body: Some(Body { buf: &mut buf, len, spare: &mut spare }) });
    if had && spare.is_none() {
        assert!(len * 2 >= before.len(), "little data is copied");
        assert_eq!(buf, vec![0x55; before.len()], "the spare one is in its place");
    } else {
        assert_eq!((buf, spare.is_some()), (before, had), "all is as it was");
    }
}

/// A queue before its Connect.
fn stranger(seed: u64, invalidate: bool) -> Queue {
    let mut random = Random::new(seed);
    let disk = Disk::new(Random::new(random.bits()));
    let entries = 2 + random.below(40) as usize;
    let length = Connection::<Vec<u8>>::receive_parts(&options()).iter().sum();
    let fabric = Fabric::new(Random::new(random.bits()), entries, length);
    Queue {
        controller: Connection::over_rdma(options(), RdmaOptions { invalidate }, NOW),
        model: disk.bytes.clone(),
        disk,
        site: TestSite::default(),
        posts: Posts::default(),
        fabric,
        events: Vec::new(),
        closed: None,
        invalidates: invalidate,
        entries,
        under_way: BTreeMap::new(),
        next: 0,
        fresh: BLOCKS as u64 / 2,
        finished: 0,
        fetched: Vec::new(),
        random,
    }
}

/// A queue that the host has.
fn connected(seed: u64, qid: u16, invalidate: bool) -> Queue {
    let mut queue = stranger(seed, invalidate);
    queue.connect(qid);
    queue.settle();
    assert!(queue.controller.is_ready() && queue.under_way.is_empty());
    queue
}

impl Queue {
    /// A Connect, whose data is in its capsule or not.
    fn connect(&mut self, qid: u16) {
        let sqsize = self.entries as u16 - 1;
        let cntlid = if qid == 0 { 0xffff } else { 1 };
        let connect = Connect { qid, sqsize, cntlid, ..Settings::default().host().connect };
        let (sqe, data) = connect.encode();
        let data = data.as_bytes().to_vec();
        if qid > 0 && self.random.chance(50) {
            self.send(sqe, Expected::Status(Status::SUCCESS), data);
        } else {
            self.submit(sqe, Expected::Status(Status::SUCCESS), Some(data), 0);
        }
    }

    /// Sends a capsule.
    fn send(&mut self, mut sqe: Sqe, expected: Expected, data: Vec<u8>) {
        sqe.cid = U16::new(self.next);
        self.under_way.insert(self.next, UnderWay { expected, memory: None });
        self.next += 1;
        self.fabric.at_host += 1;
        self.fabric.to_controller.push_back([sqe.as_bytes(), &data].concat());
    }

    /// Sends a command whose data is in memory: what it writes, or how much it reads.
    fn submit(&mut self, mut sqe: Sqe, expected: Expected, data: Option<Vec<u8>>, reads: usize) {
        let invalidate = self.random.chance(50);
        let writable = data.is_none();
        let bytes = data.unwrap_or_else(|| vec![0xee; reads]);
        // A region has more than the command names.
        let (at, behind) = (self.random.below(600) as usize, self.random.below(600) as usize);
        let region = [&vec![0xee; at][..], &bytes, &vec![0xee; behind]].concat();
        let memory = self.fabric.register(region, writable);
        let (key, len) = (memory.key, bytes.len());
        sqe.sgl = Sgl::keyed(memory.at(at as u32), len as u32, invalidate);
        let memory = Some(Memory { key, at, len, invalidate });
        self.send(sqe, expected, Vec::new());
        let under_way = self.under_way.get_mut(&(self.next - 1)).expect("it was sent");
        under_way.memory = memory;
    }

    fn bytes_of(&self, range: Range) -> Vec<u8> {
        let at = range.lba as usize * BLOCK;
        self.model[at..at + range.blocks as usize * BLOCK].to_vec()
    }

    /// Sends a random command: reads and compares in the first half, which nobody writes, writes in the other.
    fn command(&mut self) {
        let most = if self.random.chance(30) { 40 } else { 8 };
        let blocks = 1 + self.random.below(most) as u32;
        let lba = self.random.below(BLOCKS as u64 / 2 - u64::from(blocks));
        let range = Range { lba, blocks };
        let len = blocks as usize * BLOCK;
        let good = Expected::Status(Status::SUCCESS);
        let (io, data, expected) = match self.random.below(10) {
            0..=3 => {
                let io = Io::Read { range, fua: false }.encode(1);
                return self.submit(io, Expected::Data(range), None, len);
            }
            4..=6 if self.fresh + u64::from(blocks) <= BLOCKS as u64 => {
                let range = Range { lba: self.fresh, blocks };
                self.fresh += u64::from(blocks);
                let mut bytes = vec![0; len];
                self.random.fill(&mut bytes);
                let at = range.lba as usize * BLOCK;
                self.model[at..at + len].copy_from_slice(&bytes);
                (Io::Write { range, fua: true }, bytes, good)
            }
            7 => (Io::Compare { range }, self.bytes_of(range), good),
            8 => {
                let mut bytes = self.bytes_of(range);
                bytes[self.random.below(len as u64) as usize] ^= 1;
                let miscompare = Expected::Status(Status::COMPARE_FAILURE.no_retry());
                (Io::Compare { range }, bytes, miscompare)
            }
            _ => return self.send(Io::Flush.encode(1), good, Vec::new()),
        };
        self.write(io.encode(1), data, expected);
    }

    /// Sends a command with data for the controller: in its capsule, if it fits and chance has it.
    fn write(&mut self, mut sqe: Sqe, data: Vec<u8>, expected: Expected) {
        if data.len() <= CAPSULE as usize && self.random.chance(60) {
            // Some hosts leave a gap in the capsule.
            let gap = match CAPSULE as usize - data.len() {
                0 => 0,
                room => self.random.below(room as u64 + 1) as usize,
            };
            sqe.sgl = Sgl::in_capsule(data.len() as u32);
            sqe.sgl.address.set(gap as u64);
            return self.send(sqe, expected, [&vec![0xcc; gap][..], &data].concat());
        }
        self.submit(sqe, expected, Some(data), 0);
    }

    /// Lets something happen. False when all is quiet.
    fn step(&mut self) -> bool {
        self.fabric.controller_does(&mut self.posts.effects);
        while self.fabric.takes_reads() {
            let Some(read) = self.controller.take_rdma_read() else { break };
            self.fabric.read(read);
        }
        let first = self.random.chance(40) && self.closed.is_none();
        if first && self.disk.work(&mut self.controller, &mut self.posts) {
            return true;
        }
        let Some(arrival) = self.fabric.step() else {
            return self.closed.is_none() && self.disk.work(&mut self.controller, &mut self.posts);
        };
        let Self { controller, site, posts, events, random, .. } = self;
        let mut cx = Cx { now: NOW, site, tx: posts, events };
        match arrival {
            Arrival::AtController(message) => {
                scatter(random, &message, |it| controller.rx_send(it, &mut cx));
            }
            Arrival::Read(read) => controller.rdma_read_done(read.id, read.buf, &mut cx),
            Arrival::AtHost(bytes, invalidated) => self.completed(&bytes, invalidated),
            Arrival::Broken | Arrival::Nothing => {}
        }
        self.handle();
        true
    }

    fn settle(&mut self) {
        while self.step() {}
    }

    fn handle(&mut self) {
        for event in std::mem::take(&mut self.events) {
            assert!(self.closed.is_none(), "an event after the end");
            match event {
                Event::Close(reason) => self.closed = Some(reason),
                Event::Connect(connect) => {
                    assert_eq!(connect.subnqn, Settings::default().host().connect.subnqn);
                    let authentication = Authentication::None;
                    let connected = Connected { cntlid: 1, authentication };
                    self.controller.accept(connected, &mut self.posts);
                }
                // Of an admin queue: its data is there.
                Event::Command(command)
                    if command.sqe.opcode == 0x09 && command.sqe.nsid.get() == 0 =>
                {
                    let (buf, range) = command.data.expect("all of its data");
                    assert_eq!(range.len(), command.expects_write as usize);
                    self.fetched.push(buf[range].to_vec());
                    self.controller.complete(command.tag, Completion::SUCCESS, &mut self.posts);
                }
                other => self.disk.handle(other, &mut self.controller, &mut self.posts),
            }
        }
    }

    /// A completion has come.
    fn completed(&mut self, bytes: &[u8], invalidated: Option<u32>) {
        let cqe = Cqe::read_from_bytes(bytes).expect("a completion, and nothing else");
        self.finished += 1;
        if self.controller.is_ready() {
            assert_eq!(u32::from(cqe.sqhd.get()), self.finished % self.entries as u32);
        }
        let ended = self.under_way.remove(&cqe.cid.get()).expect("a command ends once");
        let status = cqe.completion().status;
        let wanted = ended.memory.filter(|memory| memory.invalidate && self.invalidates);
        assert!(
            invalidated.is_none() || invalidated == wanted.map(|memory| memory.key),
            "a key was taken back for which nobody has asked"
        );
        if status.is_success() {
            assert_eq!(invalidated, wanted.map(|memory| memory.key), "a key was not taken back");
        }
        let region = ended.memory.map(|memory| (memory, self.fabric.deregister(memory.key)));
        match ended.expected {
            Expected::Ended => {}
            Expected::Status(expected) => assert_eq!(status, expected),
            Expected::Data(range) => {
                let (memory, (bytes, _)) = region.expect("memory to read into");
                assert!(status.is_success(), "{status}");
                let data = memory.at..memory.at + memory.len;
                assert_eq!(bytes[data.clone()], self.bytes_of(range));
                assert!(bytes[..data.start].iter().all(|byte| *byte == 0xee));
                assert!(bytes[data.end..].iter().all(|byte| *byte == 0xee));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_command_ends_once_with_the_right_data(seed: u64, invalidates: bool) {
        let mut queue = connected(seed, 1, invalidates);
        for _ in 0..80 {
            while queue.under_way.len() == queue.entries || queue.random.chance(60) {
                if !queue.step() {
                    break;
                }
            }
            queue.command();
        }
        queue.settle();
        prop_assert_eq!((queue.closed, queue.fabric.broken), (None, None));
        prop_assert!(queue.under_way.is_empty(), "{} commands have not ended", queue.under_way.len());
        prop_assert_eq!((queue.controller.outstanding(), queue.fabric.regions()), (0, 0));
        prop_assert!(queue.disk.bytes == queue.model, "a write is lost or misplaced");
        prop_assert!(queue.fabric.reads > 0);
        prop_assert_eq!(queue.fabric.invalidated > 0, invalidates);
    }

    /// A write that fails early is answered once no RDMA Read is under way: the host closes the memory then.
    #[test]
    fn writes_may_fail_while_their_data_is_under_way(seed: u64) {
        let mut queue = connected(seed, 1, true);
        queue.disk.fails = 50;
        for _ in 0..60 {
            while queue.under_way.len() == queue.entries {
                queue.step();
            }
            let blocks = 1 + queue.random.below(40) as u32;
            let range = Range { lba: queue.random.below(400), blocks };
            let io = Io::Write { range, fua: false }.encode(1);
            queue.submit(io, Expected::Ended, Some(vec![7; blocks as usize * BLOCK]), 0);
            queue.step();
        }
        queue.settle();
        prop_assert_eq!((queue.closed, queue.fabric.broken), (None, None));
        prop_assert_eq!((queue.under_way.len(), queue.fabric.regions()), (0, 0));
    }

    /// Whatever the descriptor is: the command is answered, nothing of it leads outside of its memory, and the queue
    /// goes on.
    #[test]
    fn any_descriptor_is_taken_or_refused(
        seed: u64,
        kind in prop_oneof![Just(0x40u8), Just(0x4f), Just(0x01), Just(0x5a), Just(0), any::<u8>()],
        len in prop_oneof![0..5000u32, any::<u32>()],
        address in prop_oneof![0..5000u64, Just(u64::MAX), any::<u64>()],
        capsule in 0..4097usize,
        write: bool,
    ) {
        let mut queue = connected(seed, 1, true);
        let range = Range { lba: 0, blocks: 1 };
        let io = if write { Io::Write { range, fua: false } } else { Io::Read { range, fua: false } };
        let mut sqe = io.encode(1);
        sqe.sgl = Sgl { address: address.into(), len: U32::new(len), kind, ..Sgl::default() };
        queue.send(sqe, Expected::Ended, vec![7; capsule]);
        queue.settle();
        prop_assert_eq!(queue.closed, None);
        // What is not open breaks the connection, and that is the fabric's to find: no other fault is ours.
        if queue.fabric.broken.is_some() {
            prop_assert_eq!(queue.fabric.broken, Some(Fault::Access));
            let moves = kind == 0x40 && len & 0xff_ffff == BLOCK as u32;
            prop_assert!(moves || kind == 0x4f);
        } else {
            prop_assert!(queue.under_way.is_empty());
            queue.command();
            queue.settle();
            prop_assert_eq!((queue.under_way.len(), queue.fabric.broken), (0, None));
        }
    }
}

const KEY: u32 = 0x1234_5678;

/// Answers of a queue to a command with this descriptor.
fn status_of(sgl: Sgl, capsule: usize, write: bool) -> Status {
    let sqe = {
        let range = Range { lba: 0, blocks: 1 };
        let io =
            if write { Io::Write { range, fua: false } } else { Io::Read { range, fua: false } };
        Sqe { sgl, ..io.encode(1) }
    };
    let mut queue = connected(1, 1, true);
    queue.send(sqe, Expected::Ended, vec![7; capsule]);
    while queue.posts.effects.is_empty() && queue.closed.is_none() {
        assert!(queue.step(), "the command was not answered");
    }
    match queue.posts.effects.pop_front() {
        Some(crate::fabric::Effect::Send { bytes, invalidate }) => {
            assert!(invalidate.is_none_or(|key| key == KEY && sgl.kind == 0x4f), "{invalidate:x?}");
            Cqe::read_from_bytes(&bytes).expect("a completion").completion().status
        }
        other => panic!("no completion: {other:?}"),
    }
}

#[test]
fn descriptors_that_do_not_fit_are_refused() {
    let block = BLOCK as u32;
    let keyed = |address, len| Sgl::keyed(Remote { address, key: KEY }, len, true);
    let type_ = Status::SGL_TYPE.no_retry();
    // That of NVMe/TCP, one of which the address is an offset, and segments.
    assert_eq!(status_of(Sgl::transport(block), 0, true), type_);
    for kind in [0x41, 0x42, 0x20, 0x30] {
        assert_eq!(status_of(Sgl { kind, ..keyed(4096, block) }, 0, true), type_, "{kind:#x}");
    }
    // An address beyond the last one.
    let overflow = keyed(u64::MAX - 1, block);
    assert_eq!(status_of(overflow, 0, true), Status::INVALID_FIELD.no_retry());
    assert_eq!(status_of(overflow, 0, false), Status::INVALID_FIELD.no_retry());
    // Nothing, where there has to be something.
    assert_eq!(status_of(keyed(4096, 0), 0, true), Status::DATA_LENGTH.no_retry());
    assert_eq!(status_of(keyed(0, 0), 0, false), Status::DATA_LENGTH.no_retry());
    // More, or less, than the command is about.
    assert_eq!(status_of(keyed(4096, 2 * block), 0, true), Status::DATA_LENGTH.no_retry());
    // Data of a capsule that is not there, and for a read.
    assert_eq!(status_of(Sgl::in_capsule(block), 511, true), Status::SGL_OFFSET.no_retry());
    assert_eq!(status_of(Sgl::in_capsule(block), 512, false), Status::DATA_LENGTH.no_retry());
    assert_eq!(status_of(Sgl::in_capsule(block), 512, true), Status::SUCCESS);
}

#[test]
fn a_descriptor_of_another_kind_is_none() {
    let mut sqe = Io::Read { range: Range { lba: 0, blocks: 1 }, fua: false }.encode(1);
    sqe.flags &= !PSDT_SGL;
    sqe.sgl = Sgl::keyed(Remote { address: 4096, key: 7 }, BLOCK as u32, false);
    let mut queue = connected(3, 1, true);
    queue.send(sqe, Expected::Status(Status::INVALID_FIELD.no_retry()), Vec::new());
    queue.settle();
    assert!(queue.under_way.is_empty());
}

#[test]
fn the_data_of_admin_commands_is_there_with_them() {
    let mut queue = connected(7, 0, true);
    let set_features = Sqe::new(0x09, 0);
    let expected = || Expected::Status(Status::SUCCESS);
    queue.submit(set_features, expected(), Some(vec![5; 512]), 0);
    queue.submit(set_features, expected(), Some(vec![6; 8192]), 0);
    queue.settle();
    queue.fetched.sort();
    assert_eq!(queue.fetched, [vec![5; 512], vec![6; 8192]]);
    // More than any such command has.
    let long = Expected::Status(Status::DATA_LENGTH.no_retry());
    queue.submit(set_features, long, Some(vec![7; 8193]), 0);
    queue.site.short = true;
    let busy = Expected::Status(Status::INTERRUPTED.retry_after(1));
    queue.submit(set_features, busy, Some(vec![8; 16]), 0);
    queue.settle();
    assert_eq!((queue.under_way.len(), queue.fetched.len(), queue.fabric.regions()), (0, 2, 0));
}

#[test]
fn capsules_that_are_too_short_end_the_connection() {
    for len in [0, 1, 63] {
        let mut queue = connected(9, 1, true);
        queue.fabric.to_controller.push_back(vec![0; len]);
        queue.settle();
        assert_eq!(queue.closed, Some(CloseReason::ShortCapsule), "{len}");
        assert!(queue.posts.effects.is_empty(), "there is no termination request");
    }
}

#[test]
fn a_command_before_the_connect_ends_the_connection() {
    let mut queue = stranger(11, true);
    queue.send(Io::Flush.encode(1), Expected::Ended, Vec::new());
    queue.settle();
    assert_eq!(queue.closed, Some(CloseReason::NotConnected));
}

#[test]
fn a_command_before_the_data_of_the_connect_ends_the_connection() {
    let mut queue = stranger(12, true);
    queue.connect(0);
    queue.send(Io::Flush.encode(1), Expected::Ended, Vec::new());
    let (first, second) =
        (queue.fabric.to_controller.pop_front(), queue.fabric.to_controller.pop_front());
    for message in [first, second].into_iter().flatten() {
        let Queue { controller, site, posts, events, .. } = &mut queue;
        controller.rx_send(message[..].into(), &mut Cx { now: NOW, site, tx: posts, events });
    }
    queue.handle();
    assert_eq!(queue.closed, Some(CloseReason::QueueOverrun));
    assert!(queue.controller.take_rdma_read().is_none(), "it is over");
}

#[test]
fn the_data_of_a_connect_has_one_length() {
    for len in [1023, 1025] {
        let mut queue = stranger(13, true);
        let (sqe, _) = Settings::default().host().connect.encode();
        let refused = Expected::Status(Status::DATA_LENGTH.no_retry());
        queue.submit(sqe, refused, Some(vec![0; len]), 0);
        queue.settle();
        assert_eq!(queue.closed, Some(CloseReason::NotConnected));
        assert!(queue.under_way.is_empty());
    }
}

#[test]
fn more_commands_than_the_queue_has_end_the_connection() {
    let mut queue = connected(15, 1, true);
    for _ in 0..=queue.entries {
        let range = Range { lba: 0, blocks: 1 };
        queue.submit(
            Io::Write { range, fua: false }.encode(1),
            Expected::Ended,
            Some(vec![0; BLOCK]),
            0,
        );
    }
    // Nothing is read, so nothing is answered.
    while let Some(message) = queue.fabric.to_controller.pop_front() {
        let Queue { controller, site, posts, events, .. } = &mut queue;
        controller.rx_send(message[..].into(), &mut Cx { now: NOW, site, tx: posts, events });
    }
    queue.handle();
    assert_eq!(queue.closed, Some(CloseReason::QueueOverrun));
}

#[test]
fn one_key_for_two_commands_breaks_the_connection_of_its_host_alone() {
    let mut queue = connected(17, 1, true);
    let region = queue.fabric.register(vec![3; 2 * BLOCK], false);
    let memory = Memory { key: region.key, at: 0, len: BLOCK, invalidate: true };
    for lba in 0..2 {
        let mut sqe = Io::Write { range: Range { lba, blocks: 1 }, fua: false }.encode(1);
        sqe.sgl = Sgl::keyed(region.at(lba as u32 * BLOCK as u32), BLOCK as u32, true);
        queue.send(sqe, Expected::Ended, Vec::new());
        let under_way = queue.under_way.get_mut(&(queue.next - 1)).expect("it was sent");
        under_way.memory = Some(memory);
    }
    queue.settle();
    // The first completion closes the memory of both.
    assert_eq!((queue.fabric.broken, queue.fabric.invalidated), (Some(Fault::Access), 1));
    assert_eq!((queue.closed, queue.under_way.len()), (None, 1));
}
