//! Operations on a volume in memory, for a client that speaks no protocol at all.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_block::{ByteRange, Error, Op};
use lunet_ring::{Account, Buf, Config, Payload, Ring};
use lunet_volume::{
    Budget, Client, Command, Compare, Drain, Exclusive, Executor, Face, Failure, Health, Intake,
    Kind, Merge, Offload, OperationId, Overwrite, Plain, Progress, Rates, Read, ShardConfig,
    Shards, Sink, SlowWork, Source, Stage, Step, Ticket, Timed, Volume, VolumeId, Waiter, Work,
    Write,
};

const SIZE: u64 = 8 << 20;
const BLOCK: usize = 512;
const ID: VolumeId = VolumeId::new(0);
const OTHER: VolumeId = VolumeId::new(1);

/// How long another thread may take.
const LONG: Duration = Duration::from_secs(20);

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

#[derive(Default)]
struct NoCommand;

impl Command for NoCommand {
    type Face = Nothing;

    fn clear(&mut self) {}
}

/// The only shard, and where it is told of work that is done. Without threads, too much work waits always.
struct OneShard {
    threads: Option<Offload>,
    returned: SyncSender<Ticket>,
}

impl Shards for OneShard {
    fn count(&self) -> usize {
        1
    }

    fn ask(&self, shard: usize, _: Drain) -> bool {
        panic!("there is no shard {shard}")
    }

    fn wake(&self, _: &[Waiter]) {}

    fn send_away(&self, (_, ticket): (usize, Ticket), volume: VolumeId, work: SlowWork) -> bool {
        let Some(threads) = &self.threads else { return false };
        let returned = self.returned.clone();
        let work = move || {
            work();
            // The test may be over.
            let _ = returned.send(ticket);
        };
        threads.give(Some(volume), Box::new(work))
    }
}

/// A client that has some data, and takes what it gets.
#[derive(Default)]
struct Bytes {
    data: Vec<u8>,
    received: Vec<u8>,
    asked: VecDeque<(u64, usize, Buf)>,
    account: Account,
    timed: usize,
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

    fn timed(&mut self, _: Timed) {
        self.timed += 1;
    }
}

type Volumes = Vec<Arc<Volume<Nothing>>>;

/// An executor, and what other threads tell it.
struct Shard {
    executor: Executor<NoCommand>,
    volumes: Volumes,
    returned: Receiver<Ticket>,
}

impl Shard {
    /// A shard with two volumes.
    fn new(threads: Option<Offload>) -> Self {
        let volume = |name: &str| {
            let backend = open(&VolumeSpec::new(Storage::Memory { size: SIZE }));
            let backend = (backend.expect("a volume"), Health::new(name));
            Arc::new(Volume::new(name.into(), backend, None, Nothing))
        };
        Self::of(vec![volume("v"), volume("w")], threads)
    }

    /// A shard with these two.
    fn of(volumes: Volumes, threads: Option<Offload>) -> Self {
        let config = Config { arena_bytes: 8 << 20, ..Config::default() };
        let ring = Ring::new(&config).expect("an event loop");
        let (told, returned) = sync_channel(16);
        let shards = Arc::new(OneShard { threads, returned: told });
        let began = Instant::now();
        let config = ShardConfig { shard: 0, shards, max_sessions: 1, began };
        let executor = Executor::new(ring, config);
        let mut shard = Self { executor, volumes, returned };
        let named = [ID, OTHER].into_iter().zip(&shard.volumes);
        shard.executor.prepare(named).expect("channels");
        shard.serve(2);
        shard
    }

    /// Serves this many of the volumes from now on.
    fn serve(&mut self, many: usize) {
        let volumes = &self.volumes[..many];
        self.executor.adopt(|slot| volumes.get(slot.slot()));
    }

    /// Lets an operation on a volume work until it is over.
    fn run(&mut self, volume: VolumeId, work: Work, client: &mut Bytes) -> Option<Failure> {
        let id = self.executor.begin(volume, Kind::Other);
        self.executor.operations[id].work = work;
        self.finish(id, client).0
    }

    /// Copies from volume to volume, or zeroes. Returns as well how many bytes were said to be copied.
    fn copy(
        &mut self,
        volumes: (Option<VolumeId>, VolumeId),
        ranges: (ByteRange, ByteRange),
    ) -> (Option<Failure>, u64) {
        let id = self.executor.begin(ID, Kind::Other);
        self.executor.copy(id, volumes, ranges);
        self.finish(id, &mut Bytes::default())
    }

    fn finish(&mut self, id: OperationId, client: &mut Bytes) -> (Option<Failure>, u64) {
        let mut copied = 0;
        while self.executor.pump(id, client) == Progress::Waits {
            let steps = self.take_answers();
            // The last that was asked for comes first.
            if let Some((offset, len, mut buf)) = client.asked.pop_back() {
                buf[..len].copy_from_slice(&client.data[offset as usize..][..len]);
                self.executor.data_arrived(id, offset, len, buf);
            } else if steps.is_empty() {
                copied += bytes_of(&self.wait_for_thread(id));
            }
            copied += steps.iter().map(bytes_of).sum::<u64>();
        }
        let failure = self.executor.operations[id].requests.failure();
        self.executor.remove(id);
        assert!(self.executor.operations.is_empty());
        (failure, copied)
    }

    /// Takes the answers of the storage in.
    fn take_answers(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(mut batch) = self.executor.next_batch() {
            for done in batch.drain(..) {
                let (id, seq, done) = self.executor.take_answer(done).expect("no mark is made");
                steps.push(self.executor.answered(id, seq, done));
            }
            self.executor.end_batch(batch);
        }
        steps
    }

    /// Waits for the thread that works for an operation.
    fn wait_for_thread(&mut self, id: OperationId) -> Step {
        let ticket = self.returned.recv_timeout(LONG).expect("the thread comes back");
        let (of, step) = self.executor.came_back(ticket).expect("it works for an operation");
        assert_eq!(of, id);
        step
    }

    /// Begins a read of a block of the first volume, and lets it work.
    fn start_read(&mut self) -> Option<OperationId> {
        let id = self.executor.begin(ID, Kind::Read);
        let range = ByteRange::new(0, BLOCK as u64);
        self.executor.operations[id].work = Work::Read(Read::new(range, Some(range.len), false));
        self.goes_on(id).then_some(id)
    }

    /// Lets an operation work. False if it has ended.
    fn goes_on(&mut self, id: OperationId) -> bool {
        let mut client = Bytes::default();
        while self.executor.pump(id, &mut client) == Progress::Waits {
            if self.take_answers().is_empty() {
                return true;
            }
        }
        self.executor.remove(id);
        false
    }

    /// Looks at a time of its clock whether operations that wait may go on, if that is due. Returns how many have ended.
    fn look_at(&mut self, now: Duration) -> usize {
        self.executor.storage.now = now;
        if self.executor.next_look().is_none_or(|due| due > now) {
            return 0;
        }
        self.executor.look();
        let queued = self.executor.queued();
        queued.into_iter().filter(|id| !self.goes_on(*id)).count()
    }

    fn write(&mut self, volume: VolumeId, offset: u64, data: &[u8]) {
        let mut client = Bytes { data: data.to_vec(), ..Bytes::default() };
        let (intake, _) = Intake::new(data.len() as u64, BLOCK, None);
        let work = Work::Write(Write::new(offset, intake, false));
        assert_eq!(self.run(volume, work, &mut client), None);
    }

    fn read(&mut self, volume: VolumeId, range: ByteRange, mapped: bool) -> Vec<u8> {
        let mut client = Bytes::default();
        let work = Work::Read(Read::new(range, Some(range.len), mapped));
        assert_eq!(self.run(volume, work, &mut client), None);
        client.received
    }
}

/// How many bytes a step says are copied.
fn bytes_of(step: &Step) -> u64 {
    match step {
        Step::Copied(bytes) => *bytes,
        Step::Done | Step::Collected(..) => 0,
    }
}

fn threads() -> Option<Offload> {
    Some(Offload::default())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / BLOCK + at % 251) as u8).collect()
}

#[test]
fn what_a_source_delivers_reaches_a_sink_in_order() {
    let mut shard = Shard::new(None);
    let data = pattern((1 << 20) + 3 * BLOCK);
    shard.write(ID, 4096, &data);
    let range = ByteRange::new(4096, data.len() as u64);
    assert!(shard.read(ID, range, false) == data, "through buffers");
    assert!(shard.read(ID, range, true) == data, "by reference");
    let zeroes = Plain::new(Op::WriteZeroes { may_unmap: true }, vec![ByteRange::new(4096, 512)]);
    assert_eq!(shard.run(ID, Work::Plain(zeroes), &mut Bytes::default()), None);
    assert_eq!(shard.read(ID, ByteRange::new(4096, 512), false), [0; BLOCK]);
}

#[test]
fn a_comparison_fails_at_the_first_byte_that_differs() {
    let mut shard = Shard::new(None);
    let mut data = pattern(600 * BLOCK);
    shard.write(ID, 0, &data);
    let mut compare = |data: &[u8]| {
        let mut client = Bytes { data: data.to_vec(), ..Bytes::default() };
        let range = ByteRange::new(0, data.len() as u64);
        let (intake, _) = Intake::new(range.len, BLOCK, None);
        let work = Work::Compare(Compare::new(range, intake, false, true));
        shard.run(ID, work, &mut client)
    };
    assert_eq!(compare(&data), None);
    data[300_000] ^= 1;
    assert_eq!(compare(&data), Some(Failure::Differs { offset: 300_000 }));
}

#[test]
fn compare_and_write_changes_nothing_unless_all_is_as_expected() {
    let mut shard = Shard::new(None);
    let (old, new) = (pattern(4 * BLOCK), vec![7; 4 * BLOCK]);
    let range = ByteRange::new(8192, old.len() as u64);
    shard.write(ID, range.offset, &old);
    let exchange = |shard: &mut Shard, expected: &[u8]| {
        let mut client = Bytes { data: [expected, &new].concat(), ..Bytes::default() };
        let what = (Merge::CompareAndWrite, range, false);
        let exclusive = Exclusive::new(&shard.executor.storage, (client.budget(), ID), what, None);
        let (exclusive, _) = exclusive.expect("there is memory");
        shard.run(ID, Work::Exclusive(Box::new(exclusive)), &mut client)
    };
    assert_eq!(exchange(&mut shard, &new), Some(Failure::Differs { offset: 0 }));
    assert_eq!(shard.read(ID, range, false), old);
    assert_eq!(exchange(&mut shard, &old), None);
    assert_eq!(shard.read(ID, range, false), new);
}

#[test]
fn storage_that_is_gone_fails_writes_and_tells_where() {
    let mut shard = Shard::new(None);
    shard.volumes[0].health.fail(lunet_volume::Cause::Missing);
    let mut client = Bytes { data: pattern(BLOCK), ..Bytes::default() };
    let (intake, _) = Intake::new(BLOCK as u64, BLOCK, None);
    let work = Work::Write(Write::new(512, intake, true));
    let range = ByteRange::new(512, BLOCK as u64);
    let failure = Failure::Storage { error: Error::Gone, op: Op::Write { fua: true }, range };
    assert_eq!(shard.run(ID, work, &mut client), Some(failure));
}

/// By the storage itself, and through buffers where no thread can be had.
#[test]
fn a_copy_moves_data_holes_and_zeroes() {
    for threads in [threads(), None] {
        let mut shard = Shard::new(threads);
        let data = pattern(1 << 20);
        let whole = ByteRange::new(0, 4 << 20);
        // Data, nothing, data; and all of it over what was there.
        shard.write(ID, 0, &data);
        shard.write(ID, 3 << 20, &data);
        shard.write(OTHER, 0, &vec![0xEE; 5 << 20]);
        let to = ByteRange::new(512, whole.len);
        assert_eq!(shard.copy((Some(ID), OTHER), (whole, to)), (None, whole.len));
        let source = shard.read(ID, whole, false);
        assert!(source[1 << 20..3 << 20].iter().all(|byte| *byte == 0));
        assert!(shard.read(OTHER, to, false) == source);
        let around = [ByteRange::new(0, 512), ByteRange::new(to.end(), 512)];
        assert!(around.iter().all(|range| shard.read(OTHER, *range, false) == [0xEE; BLOCK]));

        let zeroed = ByteRange::new(1 << 20, 3 << 20);
        assert_eq!(shard.copy((None, ID), (zeroed, zeroed)), (None, zeroed.len));
        assert!(shard.read(ID, zeroed, false).iter().all(|byte| *byte == 0));
        assert!(shard.read(ID, ByteRange::new(0, 1 << 20), false) == data);
        assert_eq!(shard.executor.storage.volumes[OTHER].count.copied_bytes(), whole.len);
    }
}

#[test]
fn a_copy_within_a_volume_reads_nothing_that_it_has_written() {
    for (from, to) in [(0, 300 << 10), (300 << 10, 0)] {
        let mut shard = Shard::new(threads());
        let data = pattern(1 << 20);
        let (from, to) = (ByteRange::new(from, 1 << 20), ByteRange::new(to, 1 << 20));
        shard.write(ID, from.offset, &data);
        assert_eq!(shard.copy((Some(ID), ID), (from, to)), (None, to.len));
        assert!(shard.read(ID, to, false) == data);
    }
}

#[test]
fn a_copy_that_fails_tells_which_request_and_how_much_is_left() {
    let mut shard = Shard::new(None);
    shard.volumes[1].health.fail(lunet_volume::Cause::Missing);
    let range = ByteRange::new(4096, 4096);
    let failure = Failure::Storage { error: Error::Gone, op: Op::Write { fua: false }, range };
    assert_eq!(shard.copy((Some(ID), OTHER), (range, range)), (Some(failure), 0));
}

#[test]
fn volumes_stay_until_their_copy_is_over() {
    let mut shard = Shard::new(threads());
    let id = shard.executor.begin(ID, Kind::Other);
    let range = ByteRange::new(0, 4096);
    shard.executor.copy(id, (Some(ID), OTHER), (range, range));
    shard.serve(1);
    let is_there = |shard: &Shard| shard.executor.storage.volumes.get(OTHER).is_some();
    assert!(is_there(&shard), "it is copied to");
    assert_eq!(shard.executor.pump(id, &mut Bytes::default()), Progress::Waits);
    shard.wait_for_thread(id);
    shard.take_answers();
    assert_eq!(shard.executor.pump(id, &mut Bytes::default()), Progress::Finished);
    assert!(!is_there(&shard), "nothing is copied any more");
    shard.executor.remove(id);
}

#[test]
fn an_abandoned_copy_keeps_its_blocks_until_the_thread_is_back() {
    let mut shard = Shard::new(threads());
    let id = shard.executor.begin(ID, Kind::Other);
    let range = ByteRange::new(0, 4096);
    shard.executor.copy(id, (Some(ID), OTHER), (range, range));
    assert_eq!(shard.executor.pump(id, &mut Bytes::default()), Progress::Waits);
    shard.executor.abandon(id);
    let fenced = |shard: &Shard| shard.volumes[1].fence.blocks(range);
    assert!(fenced(&shard) && !shard.volumes[0].fence.blocks(range));
    assert_eq!(bytes_of(&shard.wait_for_thread(id)), 0, "it counts for nobody");
    assert!(fenced(&shard) && shard.executor.operations[id].requests.is_over());
    shard.executor.remove(id);
    assert!(!fenced(&shard));
}

#[test]
fn a_volume_is_overwritten_while_nobody_else_reaches_it() {
    let mut shard = Shard::new(None);
    shard.write(ID, 0, &pattern(1 << 20));
    let begin = |shard: &mut Shard| shard.executor.begin(ID, Kind::Other);
    let mut client = Bytes::default();
    let id = begin(&mut shard);
    assert!(shard.executor.hold(id));
    assert_eq!(shard.executor.pump_alone(id, None), Progress::Finished, "it has the volume");

    let reader = begin(&mut shard);
    let range = ByteRange::new(SIZE - 512, 512);
    shard.executor.operations[reader].work = Work::Read(Read::new(range, Some(range.len), false));
    assert_eq!(shard.executor.pump(reader, &mut client), Progress::Waits);
    assert!(shard.take_answers().is_empty(), "another operation waits for it");

    let passes = Overwrite::with(vec![vec![1; BLOCK], vec![2; BLOCK]]);
    shard.executor.operations[id].work = Work::Overwrite(Box::new(passes));
    let mut looks = 0;
    while shard.executor.pump_alone(id, None) == Progress::Waits {
        if shard.take_answers().is_empty() {
            shard.executor.look();
            assert_eq!(shard.executor.queued(), [id]);
            looks += 1;
        }
    }
    assert_eq!(looks, 1, "others get on after each 8 MiB");
    let Work::Overwrite(overwrite) = &shard.executor.operations[id].work else { panic!("it is") };
    assert_eq!(overwrite.progress(SIZE), u16::MAX);
    assert!(!shard.executor.operations[id].requests.is_failed());
    shard.executor.remove(id);

    shard.executor.look();
    assert_eq!(shard.take_answers().len(), 1, "now it is let through");
    assert_eq!(shard.executor.pump(reader, &mut client), Progress::Answered);
    shard.executor.remove(reader);
    assert_eq!(client.received, [2; BLOCK]);
    let all = ByteRange::new(0, SIZE);
    assert!(shard.read(ID, all, false).iter().all(|byte| *byte == 2));

    let zeroes = Overwrite::with_zeroes(&shard.volumes[0].caps);
    assert_eq!(shard.run(ID, Work::Overwrite(Box::new(zeroes)), &mut client), None);
    assert!(shard.read(ID, all, false).iter().all(|byte| *byte == 0));
}

#[test]
fn overwriting_ends_with_the_first_request_that_fails() {
    let mut shard = Shard::new(None);
    shard.volumes[0].health.fail(lunet_volume::Cause::Missing);
    let work = Work::Overwrite(Box::new(Overwrite::with(vec![vec![1; BLOCK]])));
    let failure = shard.run(ID, work, &mut Bytes::default());
    let Some(Failure::Storage { error: Error::Gone, range, .. }) = failure else {
        panic!("{failure:?}")
    };
    assert!(range.offset < 1 << 20, "{range:?}");
}

#[test]
fn the_time_of_an_operation_is_that_of_what_it_has_waited_for() {
    let mut shard = Shard::new(None);
    let mut client = Bytes { data: vec![7; 8192], ..Bytes::default() };
    let pause = Duration::from_millis(5);
    // Of 65 that begin at once, the first and the last are timed.
    for _ in 0..65 {
        let (intake, _) = Intake::new(8192, BLOCK, None);
        let id = shard.executor.begin_command(ID, Kind::Write, Duration::ZERO);
        shard.executor.operations[id].work = Work::Write(Write::new(0, intake, false));
        assert_eq!(shard.executor.pump(id, &mut client), Progress::Waits);
        if client.timed == 0 {
            std::thread::sleep(pause);
        }
        assert_eq!(shard.finish(id, &mut client).0, None);
    }
    assert_eq!(client.timed, 2);
    let counts = shard.executor.counts(&[]);
    let times = counts[0].1.stages();
    assert_eq!((counts[0].0.as_str(), times.timed()), ("v", 2));
    assert!(times.waited(Stage::Data) >= pause, "{times:?}");
    for stage in [Stage::Arrival, Stage::Memory, Stage::Limit, Stage::Lock, Stage::Output] {
        assert_eq!(times.waited(stage), Duration::ZERO, "{stage:?}: {times:?}");
    }
}

/// A limit of the first volume: so many operations each second.
fn limited(iops: u64) -> Rates {
    Rates { iops: NonZeroU64::new(iops), burst: Duration::from_millis(10), ..Rates::default() }
}

#[test]
fn a_shard_that_looks_more_often_leaves_others_their_turns() {
    let mut busy = Shard::new(None);
    let mut idle = Shard::of(busy.volumes.clone(), None);
    for (n, iops) in [(1, 30), (2, 300), (3, 1000)] {
        let began = n * Duration::from_secs(10);
        busy.volumes[0].limit.set(limited(iops));
        let mut ended = [0, 0];
        let mut waiting = [0, 0];
        for tick in 0..20_000_u32 {
            let now = began + tick * Duration::from_micros(50);
            // One looks all the time, the other one each millisecond, and a little later than it would have to.
            for (at, shard) in [&mut busy, &mut idle].into_iter().enumerate() {
                if at == 1 && tick % 20 != 19 {
                    continue;
                }
                let done = shard.look_at(now);
                (ended[at], waiting[at]) = (ended[at] + done, waiting[at] - done);
                // Both have as much to do as they are let.
                while waiting[at] < 4 {
                    match shard.start_read() {
                        Some(_) => waiting[at] += 1,
                        None => ended[at] += 1,
                    }
                }
            }
        }
        let all = ended[0] + ended[1];
        assert!(
            all as u64 >= iops * 9 / 10 && all as u64 <= iops + iops / 50 + 12,
            "{ended:?} of {iops}"
        );
        assert!(ended[1] * 3 >= all, "{ended:?} of {iops}");
        // Whoever still waits goes, in any order.
        busy.volumes[0].limit.set(Rates::default());
        for shard in [&mut busy, &mut idle] {
            assert_eq!(shard.look_at(began + Duration::from_secs(2)), 4);
        }
    }
}

#[test]
fn a_turn_is_paid_back_and_ends_with_the_limit() {
    let mut shard = Shard::new(None);
    let volume = shard.volumes[0].clone();
    let second = Duration::from_secs(1);
    shard.executor.storage.now = second;
    volume.limit.set(limited(1));
    assert!(shard.start_read().is_none(), "the burst");
    let before = volume.limit.wait(second);
    // Each is the first in its turn, has paid, and gives up.
    for _ in 0..100 {
        let id = shard.start_read().expect("it waits");
        assert!(volume.limit.wait(second) > before, "it has paid");
        assert!(shard.executor.next_look().is_some());
        shard.executor.abandon(id);
        assert_eq!(volume.limit.wait(second), before, "it has got that back");
        assert_eq!(shard.executor.next_look(), None, "nobody waits for a look");
    }
    let waiting: Vec<_> = (0..3).filter_map(|_| shard.start_read()).collect();
    assert_eq!(waiting.len(), 3);
    // What was paid by the old limit is nothing to the new one.
    volume.limit.set(limited(1000));
    let ended = shard.look_at(second + Duration::from_millis(100));
    assert_eq!(ended, 3, "the burst is more than that");
    assert!(shard.executor.operations.is_empty());
}
