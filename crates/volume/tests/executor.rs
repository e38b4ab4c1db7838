//! Operations on a volume in memory, for a client that speaks no protocol at all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_block::{ByteRange, Error, Op};
use lunet_ring::{Account, Buf, Config, Payload, Ring};
use lunet_volume::{
    Budget, Client, Command, Compare, Drain, Exclusive, Executor, Face, Failure, Health, Intake,
    Kind, Merge, Operation, OperationId, Plain, Progress, Read, ShardConfig, Shards, Sink, Source,
    Volume, VolumeId, Waiter, Work, Write,
};

const SIZE: u64 = 8 << 20;
const BLOCK: usize = 512;
const ID: VolumeId = VolumeId::new(0);

/// What it keeps with the volume: nothing.
struct Nothing;

impl Face for Nothing {
    fn is_closed(&self) -> bool {
        false
    }

    fn writes_through(&self) -> bool {
        false
    }
}

struct NoCommand;

impl Command for NoCommand {
    type Face = Nothing;

    fn internal() -> Self {
        Self
    }
}

struct OneShard;

impl Shards for OneShard {
    fn count(&self) -> usize {
        1
    }

    fn ask(&self, shard: usize, _: Drain) -> bool {
        panic!("there is no shard {shard}")
    }

    fn wake(&self, _: &[Waiter]) {}
}

/// A client that has some data, and takes what it gets.
#[derive(Default)]
struct Bytes {
    data: Vec<u8>,
    received: Vec<u8>,
    asked: VecDeque<(u64, usize, Buf)>,
    account: Account,
}

impl Sink for Bytes {
    fn is_behind(&mut self, _: OperationId) -> bool {
        false
    }

    fn send(&mut self, payload: Payload, len: usize, _: bool) {
        payload.for_each_chunk(0..len, |bytes| self.received.extend_from_slice(bytes));
    }
}

impl Source for Bytes {
    fn ask(&mut self, offset: u64, len: usize, buf: Buf) {
        self.asked.push_back((offset, len, buf));
    }
}

impl Client for Bytes {
    fn budget(&self) -> Budget<'_> {
        Budget { account: &self.account, reserve: None }
    }
}

fn executor() -> Executor<NoCommand> {
    let config = Config { arena_bytes: 8 << 20, ..Config::default() };
    let ring = Ring::new(&config).expect("an event loop");
    let backend = open(&VolumeSpec::new(Storage::Memory { size: SIZE })).expect("a volume");
    let volume = Volume::new("v".into(), (backend, Health::new("v")), None, Nothing);
    let volume = Arc::new(volume);
    let shards = Arc::new(OneShard);
    let mut executor = Executor::new(ring, ShardConfig { shard: 0, shards, max_sessions: 1 });
    executor.prepare([(ID, &volume)].into_iter()).expect("a channel");
    executor.adopt(|slot| (slot == ID).then_some(&volume));
    executor
}

/// Lets an operation work until it is over.
fn run(executor: &mut Executor<NoCommand>, work: Work, client: &mut Bytes) -> Option<Failure> {
    let mut operation = Operation::new(ID, Kind::Other, Duration::ZERO, NoCommand);
    operation.work = work;
    let id = executor.insert(operation);
    while executor.pump(id, client) == Progress::Waits {
        while let Some(mut batch) = executor.next_batch() {
            for done in batch.drain(..) {
                let (of, seq, done) = executor.take_answer(done).expect("no mark is made");
                assert_eq!(of, id);
                executor.answered(id, seq, done);
            }
            executor.end_batch(batch);
        }
        // The last that was asked for comes first.
        if let Some((offset, len, mut buf)) = client.asked.pop_back() {
            buf[..len].copy_from_slice(&client.data[offset as usize..][..len]);
            executor.data_arrived(id, offset, len, buf);
        }
    }
    let failure = executor.operations[id].requests.failure();
    executor.remove(id);
    assert!(executor.operations.is_empty());
    failure
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / BLOCK + at % 251) as u8).collect()
}

fn write(executor: &mut Executor<NoCommand>, offset: u64, data: &[u8]) {
    let mut client = Bytes { data: data.to_vec(), ..Bytes::default() };
    let (intake, _) = Intake::new(data.len() as u64, BLOCK, None);
    let work = Work::Write(Write::new(offset, intake, false));
    assert_eq!(run(executor, work, &mut client), None);
}

fn read(executor: &mut Executor<NoCommand>, range: ByteRange, mapped: bool) -> Vec<u8> {
    let mut client = Bytes::default();
    let work = Work::Read(Read::new(range, Some(range.len), mapped));
    assert_eq!(run(executor, work, &mut client), None);
    client.received
}

#[test]
fn what_a_source_delivers_reaches_a_sink_in_order() {
    let mut executor = executor();
    let data = pattern((1 << 20) + 3 * BLOCK);
    write(&mut executor, 4096, &data);
    let range = ByteRange::new(4096, data.len() as u64);
    assert!(read(&mut executor, range, false) == data, "through buffers");
    assert!(read(&mut executor, range, true) == data, "by reference");
    let zeroes = Plain::new(Op::WriteZeroes { may_unmap: true }, vec![ByteRange::new(4096, 512)]);
    assert_eq!(run(&mut executor, Work::Plain(zeroes), &mut Bytes::default()), None);
    assert_eq!(read(&mut executor, ByteRange::new(4096, 512), false), [0; BLOCK]);
}

#[test]
fn a_comparison_fails_at_the_first_byte_that_differs() {
    let mut executor = executor();
    let mut data = pattern(600 * BLOCK);
    write(&mut executor, 0, &data);
    let compare = |executor: &mut Executor<NoCommand>, data: &[u8]| {
        let mut client = Bytes { data: data.to_vec(), ..Bytes::default() };
        let range = ByteRange::new(0, data.len() as u64);
        let (intake, _) = Intake::new(range.len, BLOCK, None);
        let work = Work::Compare(Compare::new(range, intake, false, true));
        run(executor, work, &mut client)
    };
    assert_eq!(compare(&mut executor, &data), None);
    data[300_000] ^= 1;
    assert_eq!(compare(&mut executor, &data), Some(Failure::Differs { offset: 300_000 }));
}

#[test]
fn compare_and_write_changes_nothing_unless_all_is_as_expected() {
    let mut executor = executor();
    let (old, new) = (pattern(4 * BLOCK), vec![7; 4 * BLOCK]);
    let range = ByteRange::new(8192, old.len() as u64);
    write(&mut executor, range.offset, &old);
    let exchange = |executor: &mut Executor<NoCommand>, expected: &[u8]| {
        let mut client = Bytes { data: [expected, &new].concat(), ..Bytes::default() };
        let what = (Merge::CompareAndWrite, range, false);
        let exclusive = Exclusive::new(&executor.storage, (client.budget(), ID), what, None);
        let (exclusive, _) = exclusive.expect("there is memory");
        run(executor, Work::Exclusive(Box::new(exclusive)), &mut client)
    };
    assert_eq!(exchange(&mut executor, &new), Some(Failure::Differs { offset: 0 }));
    assert_eq!(read(&mut executor, range, false), old);
    assert_eq!(exchange(&mut executor, &old), None);
    assert_eq!(read(&mut executor, range, false), new);
}

#[test]
fn storage_that_is_gone_fails_writes_and_tells_where() {
    let mut executor = executor();
    executor.storage.volumes[ID].core.health.fail(lunet_volume::Cause::Missing);
    let mut client = Bytes { data: pattern(BLOCK), ..Bytes::default() };
    let (intake, _) = Intake::new(BLOCK as u64, BLOCK, None);
    let work = Work::Write(Write::new(512, intake, true));
    let range = ByteRange::new(512, BLOCK as u64);
    let failure = Failure::Storage { error: Error::Gone, op: Op::Write { fua: true }, range };
    assert_eq!(run(&mut executor, work, &mut client), Some(failure));
}
