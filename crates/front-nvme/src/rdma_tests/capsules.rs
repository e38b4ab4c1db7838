//! Capsules with data, and capsules that are not what they should be.

use lunet_nvme::controller::Site as _;
use lunet_ring::{Account, Arena, Buf};

use super::*;
use crate::connection::Site;

const SHORT: Status = Status::INTERRUPTED.retry_after(1);

/// CMD flags: the first and the second command of a fused pair.
const FIRST: u8 = 1;
const SECOND: u8 = 2;

/// A block of namespace 1.
fn block(write: bool, sgl: Sgl, fuse: u8) -> Sqe {
    let range = Range { lba: 8, blocks: 1 };
    let io = if write { Io::Write { range, fua: false } } else { Io::Compare { range } };
    let sqe = io.encode(1);
    Sqe { sgl, flags: sqe.flags | fuse, ..sqe }
}

impl Bench {
    /// With a controller that has queues at endpoints 2 to 1 + `count`.
    fn with_queues(layout: Layout<Shown>, shared: bool, count: u16) -> Self {
        let (device, wire) = fake::device(64);
        wire.with(|state| state.shared = shared.then(Vec::new));
        let mut bench = Self::over((device, wire), layout);
        bench.add_queues(count);
        bench
    }

    fn add_queues(&mut self, count: u16) {
        let cntlid = self.admin(1);
        for qid in 1..=count {
            let endpoint = u32::from(qid) + 1;
            self.accept(endpoint, asked(qid, 31));
            let cqe = self.connect(endpoint, &of_queue(qid, 31, cntlid));
            assert!(cqe.completion().status.is_success());
        }
    }

    fn bodies(&self) -> Vec<usize> {
        self.wire.with(|state| state.bodies())
    }

    /// A queue answers as it should.
    fn assert_serves(&mut self, endpoint: u32) {
        self.send(endpoint, io(true, 1, Sgl::in_capsule(512)), &[0x5a; 512]);
        assert_eq!(self.status(endpoint), (Status::SUCCESS, None), "endpoint {endpoint}");
    }

    /// All connections end, and all memory is back.
    fn finish(mut self, others: &[u32]) {
        self.end(1);
        others.iter().for_each(|endpoint| self.until_closed(*endpoint));
        self.assert_all_is_given_back();
    }
}

#[test]
fn the_data_of_a_capsule_is_kept_in_the_buffer_that_it_came_in() {
    for shared in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut bench = Bench::with_queues(layout(Some(&folder)), shared, 1);
        let before = bench.bodies();
        bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &pattern(4096));
        assert_eq!(bench.status(2), (Status::SUCCESS, None));
        let after = bench.bodies();
        assert_eq!(after.len(), before.len(), "as many as before are posted");
        let new = after.iter().filter(|body| !before.contains(body)).count();
        assert_eq!(new, 1, "another buffer is in the place of the one that was kept");
        // Little data is copied, and its buffer is posted again.
        bench.send(2, io(true, 1, Sgl::in_capsule(512)), &[7; 512]);
        assert_eq!(bench.status(2), (Status::SUCCESS, None));
        assert_eq!(bench.bodies(), after);
        bench.send(2, io(false, 8, Sgl::keyed(memory(8), 4096, false)), &[]);
        let seen = bench.written(2, memory(8), 4096);
        assert!(seen[..512] == [7; 512] && seen[512..] == pattern(4096)[512..]);
        assert_eq!(bench.status(2), (Status::SUCCESS, None));
        bench.finish(&[2]);
    }
}

#[test]
fn what_is_kept_is_charged_to_its_connection_within_its_allowance() {
    let arena = Arena::new(1 << 20).expect("a small mapping");
    let account = Account::default();
    let mut site = Site { arena: &arena, account: &account, allowance: 8192, reserve: None };
    let mut bufs: Vec<Buf> = (0..3).map(|_| arena.alloc(4096).expect("room")).collect();
    let kept: Vec<bool> = bufs.iter_mut().map(|buf| site.keep(buf)).collect();
    assert_eq!((&kept[..], account.held()), (&[true, true, false][..], 8192));
    drop(bufs);
    assert_eq!(account.held(), 0);
}

#[test]
fn without_memory_the_data_of_a_capsule_is_copied_and_all_receives_stay() {
    let mut bench = Bench::with_queues(layout(None), true, 1);
    let arena = bench.shard.front.exec.storage.ring.arena().clone();
    let mut taken = Vec::new();
    while let Some(buf) = arena.alloc(64 << 10).or_else(|| arena.alloc(4096)) {
        taken.push(buf);
    }
    let before = bench.bodies();
    for _ in 0..40 {
        bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &pattern(4096));
        assert_eq!(bench.status(2), (Status::SUCCESS, None), "it has its reserve");
        assert_eq!(bench.bodies(), before);
    }
    drop(taken);
    bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &pattern(4096));
    assert_eq!(bench.status(2), (Status::SUCCESS, None));
    assert_ne!(bench.bodies(), before, "it is kept again");
    bench.finish(&[2]);
}

#[test]
fn a_device_that_takes_one_piece_in_a_receive_is_served() {
    let (device, wire) = fake::device(64);
    wire.with(|state| state.one_piece = true);
    let mut bench = Bench::over((device, wire), layout(None));
    bench.add_queues(1);
    assert!(bench.bodies().is_empty());
    bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &pattern(4096));
    assert_eq!(bench.status(2), (Status::SUCCESS, None));
    bench.send(2, io(false, 8, Sgl::keyed(memory(8), 4096, true)), &[]);
    assert!(bench.written(2, memory(8), 4096) == pattern(4096));
    assert_eq!(bench.status(2), (Status::SUCCESS, Some(memory(8).key)));
    bench.finish(&[2]);
}

#[test]
fn descriptors_that_are_wrong_fail_their_command_alone() {
    let mut bench = Bench::with_queues(layout(None), true, 2);
    let (length, offset, kind) = (
        Status::DATA_LENGTH.no_retry(),
        Status::SGL_OFFSET.no_retry(),
        Status::SGL_TYPE.no_retry(),
    );
    let at = |mut sgl: Sgl, address: u64| {
        sgl.address.set(address);
        sgl
    };
    let of_kind = |kind: u8| Sgl { kind, ..Sgl::keyed(memory(4), 4096, false) };
    let cases: Vec<(Sqe, usize, Status)> = vec![
        // More than there is in the capsule.
        (io(true, 8, Sgl::in_capsule(4096)), 100, offset),
        (io(true, 8, Sgl::in_capsule(4096)), 0, offset),
        (io(true, 8, Sgl::in_capsule(4096)), 4095, offset),
        (io(true, 16, Sgl::in_capsule(8192)), 4096, offset),
        (io(true, 8, Sgl::in_capsule(u32::MAX)), 4096, offset),
        (io(true, 8, at(Sgl::in_capsule(4096), 1)), 4096, offset),
        (io(true, 8, at(Sgl::in_capsule(4096), u64::MAX)), 4096, offset),
        (io(true, 8, at(Sgl::in_capsule(u32::MAX), u64::from(u32::MAX))), 4096, offset),
        // A length that is not that of the blocks.
        (io(true, 8, Sgl::in_capsule(512)), 4096, length),
        (io(true, 8, Sgl::in_capsule(0)), 4096, length),
        (io(true, 8, Sgl::keyed(memory(4), 0, true)), 0, length),
        (io(false, 8, Sgl::keyed(memory(4), 0, true)), 0, length),
        (io(true, 8, Sgl::keyed(memory(4), 0x00ff_ffff, false)), 0, length),
        (io(false, 8, Sgl::keyed(memory(4), 0x00ff_ffff, false)), 0, length),
        (io(true, 8, Sgl::keyed(memory(4), 4095, false)), 0, length),
        // A read into the capsule.
        (io(false, 8, Sgl::in_capsule(4096)), 4096, length),
        // Memory that ends beyond the last address.
        (
            io(true, 8, Sgl::keyed(Remote { address: u64::MAX, key: 4 }, 4096, false)),
            0,
            Status::INVALID_FIELD.no_retry(),
        ),
        // Descriptors that are not of this transport, or of none.
        (io(true, 8, Sgl::transport(4096)), 0, kind),
        (io(true, 8, of_kind(0x00)), 0, kind),
        (io(true, 8, of_kind(0x10)), 0, kind),
        (io(true, 8, of_kind(0x20)), 0, kind),
        (io(true, 8, of_kind(0x42)), 0, kind),
        (io(true, 8, of_kind(0xff)), 0, kind),
    ];
    let receives = bench.bodies().len();
    for (n, (sqe, data, expected)) in cases.into_iter().enumerate() {
        bench.send(2, sqe, &vec![9; data]);
        let (status, back) = bench.status(2);
        assert_eq!((status, back), (expected, back), "case {n}");
        // Only a key that its descriptor gives away is ever taken back.
        let asked = sqe.sgl.kind == 0x4f;
        assert!(back.is_none() || asked && back == Some(memory(4).key), "case {n}: {back:?}");
        assert_eq!(bench.bodies().len(), receives);
    }
    bench.assert_serves(2);
    bench.assert_serves(3);
    bench.finish(&[2, 3]);
}

#[test]
fn capsules_that_are_too_short_end_their_queue_alone() {
    let mut bench = Bench::with_queues(layout(None), true, 4);
    for (endpoint, len) in [(2, 0), (3, 1), (4, 63)] {
        bench.wire.send(endpoint, &vec![0; len]);
        bench.until_closed(endpoint);
        bench.assert_serves(5);
    }
    bench.finish(&[5]);
}

#[test]
fn a_capsule_that_is_longer_than_the_receive_ends_its_queue_alone() {
    for shared in [false, true] {
        let mut bench = Bench::with_queues(layout(None), shared, 2);
        bench.wire.fail_receive(2, fake::Status::LocalLength);
        bench.until_closed(2);
        bench.assert_serves(3);
        bench.finish(&[3]);
    }
}

#[test]
fn keys_that_the_device_refuses_end_their_queue_alone() {
    let mut bench = Bench::with_queues(layout(None), true, 3);
    for (endpoint, write) in [(2, true), (3, false)] {
        bench.send(endpoint, io(write, 8, Sgl::keyed(memory(6), 4096, true)), &[]);
        let refused = bench.next(endpoint, &[], fake::Status::RemoteAccess);
        assert!(matches!(refused, Work::Read(..)) == write);
        bench.until_closed(endpoint);
        bench.assert_serves(4);
    }
    bench.finish(&[4]);
}

#[test]
fn a_flood_of_capsules_with_data_ends_its_queue_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bench = Bench::with_queues(layout(Some(&folder)), false, 2);
    let range = Range { lba: 64, blocks: 8 };
    let sqe = Io::Write { range, fua: false }.encode(1);
    let sqe = Sqe { sgl: Sgl::in_capsule(4096), ..sqe };
    // As many as there are receives, which is what the device takes, and all at once.
    for _ in 0..bench.wire.receives(2) {
        bench.send(2, sqe, &pattern(4096));
    }
    bench.iterate();
    while bench.wire.receives(2) > 0 {
        bench.send(2, sqe, &pattern(4096));
        bench.iterate();
    }
    bench.until_closed(2);
    bench.assert_serves(3);
    bench.finish(&[3]);
}

#[test]
fn fused_pairs_are_paired_wherever_their_data_is() {
    let mut bench = Bench::with_queues(layout(None), true, 1);
    let failed = [Status::COMPARE_FAILURE.no_retry(), Status::FAILED_FUSED];
    let success = [Status::SUCCESS; 2];
    let mut now = vec![0; 512];
    // Each of both in its capsule or in the host's memory; then what does not compare.
    for (n, in_capsule) in
        [(1, [true, true]), (2, [true, false]), (3, [false, true]), (4, [false; 2])]
    {
        let new = vec![n; 512];
        for (compared, expected) in [(vec![0xee; 512], failed), (now.clone(), success)] {
            let mut read = Vec::new();
            for (write, data) in [(false, &compared), (true, &new)] {
                let fuse = if write { SECOND } else { FIRST };
                if in_capsule[usize::from(write)] {
                    bench.send(2, block(write, Sgl::in_capsule(512), fuse), data);
                } else {
                    let key = memory(u32::from(write) + 1);
                    bench.send(2, block(write, Sgl::keyed(key, 512, false), fuse), &[]);
                    read.push((key.key, data.clone()));
                }
            }
            let mut seen = Vec::new();
            while seen.len() < 2 {
                bench.iterate();
                let first = bench.wire.with(|state| state.first_read(2));
                let data = first.map_or(&[][..], |key| {
                    &read.iter().find(|(own, _)| *own == key).expect("a key of the pair").1
                });
                if let Some(Work::Send(cqe, None)) = bench.wire.next(2, data, fake::Status::Success)
                {
                    let cqe = Cqe::read_from_bytes(&cqe).expect("a completion");
                    seen.push((cqe.cid.get(), cqe.completion().status));
                }
            }
            seen.sort_by_key(|(cid, _)| *cid);
            assert_eq!(seen.iter().map(|(_, status)| *status).collect::<Vec<_>>(), expected);
        }
        now = new;
    }
    // A half of a pair.
    bench.send(2, block(false, Sgl::in_capsule(512), FIRST), &now);
    bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &pattern(4096));
    assert_eq!(bench.status(2).0, Status::MISSING_FUSED);
    assert_eq!(bench.status(2).0, Status::SUCCESS);
    bench.send(2, block(true, Sgl::in_capsule(512), SECOND), &now);
    assert_eq!(bench.status(2).0, Status::MISSING_FUSED);
    bench.finish(&[2]);
}

#[test]
fn a_pair_whose_first_half_never_gets_its_second_leaves_nothing() {
    let mut bench = Bench::with_queues(layout(None), true, 1);
    let before = bench.bodies().len();
    bench.send(2, block(false, Sgl::in_capsule(4096), FIRST), &[1; 4096]);
    bench.iterate();
    assert_eq!(bench.bodies().len(), before);
    bench.finish(&[2]);
}

#[test]
fn memory_that_is_short_fails_a_command_that_may_come_again() {
    let mut bench = Bench::with_queues(layout(None), true, 1);
    let arena = bench.shard.front.exec.storage.ring.arena().clone();
    let slot = bench.shard.conns.iter().find(|(_, conn)| conn.peer.port() == 40_002);
    let slot = slot.expect("a connection").0;
    bench.shard.conns[slot].reserve = None;
    let mut taken = Vec::new();
    while let Some(buf) = arena.alloc(64 << 10).or_else(|| arena.alloc(4096)) {
        taken.push(buf);
    }
    bench.send(2, io(true, 8, Sgl::in_capsule(4096)), &pattern(4096));
    assert_eq!(bench.status(2), (SHORT, None));
    drop(taken);
    bench.assert_serves(2);
    bench.finish(&[2]);
}

#[test]
fn reads_in_progress_are_as_many_as_the_host_serves() {
    for reads in [1, 2, 128] {
        let mut bench = Bench::new(layout(None));
        let cntlid = bench.admin(1);
        bench.accept_serving(2, asked(1, 31), reads);
        bench.connect(2, &of_queue(1, 31, cntlid));
        for _ in 0..20 {
            bench.send(2, io(true, 8, Sgl::keyed(memory(5), 4096, false)), &[]);
        }
        bench.iterate();
        let most = usize::from(reads).min(20);
        bench.wire.with(|state| {
            assert_eq!(state.posted_reads(2), most, "{reads}");
            // With each batch of eight commands the Reads go out, in one list.
            assert_eq!(state.moved.iter().sum::<usize>(), most + 1, "that of the Connect before");
            assert!(state.moved.len() <= 1 + 20 / 8 + 1, "{:?}", state.moved);
        });
        let mut finished = 0;
        while finished < 20 {
            bench.iterate();
            assert!(bench.wire.with(|state| state.posted_reads(2)) <= usize::from(reads));
            match bench.wire.next(2, &pattern(4096), fake::Status::Success) {
                Some(Work::Send(..)) => finished += 1,
                Some(Work::Write(..)) => panic!("nothing was read"),
                Some(Work::Read(..)) | None => {}
            }
        }
        bench.finish(&[2]);
    }
}

#[test]
fn a_device_that_fails_to_take_keys_back_is_not_asked_again() {
    let mut bench = Bench::with_queues(layout(None), true, 3);
    let allowed = |bench: &Bench| bench.shard.core.rdma.may_invalidate("");
    // What the peer may have done says nothing of the device, nor does a message without a key.
    for (endpoint, invalidate, status) in
        [(2, true, fake::Status::RemoteInvalidRequest), (3, false, fake::Status::LocalOperation)]
    {
        bench.send(endpoint, io(false, 8, Sgl::keyed(memory(6), 4096, invalidate)), &[]);
        bench.written(endpoint, memory(6), 4096);
        bench.next(endpoint, &[], status);
        bench.until_closed(endpoint);
        assert!(allowed(&bench));
    }
    bench.send(4, io(false, 8, Sgl::keyed(memory(6), 4096, true)), &[]);
    bench.written(4, memory(6), 4096);
    let failed = bench.next(4, &[], fake::Status::LocalOperation);
    assert!(matches!(failed, Work::Send(_, Some(key)) if key == memory(6).key));
    bench.until_closed(4);
    assert!(!allowed(&bench), "later connections are without");
    bench.finish(&[]);
}
