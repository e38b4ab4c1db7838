//! What a shard is woken for, and when answers leave.

use super::*;

/// A connection's first commands are behind it.
fn ready(depth: usize) -> (Bench, ConnId) {
    let mut bench = Bench::new(depth, layout(None));
    let slot = bench.connect(1);
    bench.log_in(1);
    bench.settle(slot);
    (bench, slot)
}

impl Bench {
    fn queue_pair(&self, slot: ConnId) -> &QueuePair {
        match &self.shard.conns[slot].wire {
            Wire::Rdma(qp) => qp,
            Wire::Stream(_) => panic!("it is a connection over RDMA"),
        }
    }

    /// Lets the shard handle all completions, until it has nothing to do.
    fn settle(&mut self, slot: ConnId) {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        while self.shard.conns[slot].sending > 0 {
            assert!(lunet_os::time::now() < deadline, "an end is missed");
            self.iterate();
        }
        self.rests();
    }

    /// Lets the shard work until it has posted so much.
    fn until_posted(&mut self, count: usize) {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        while self.wire.with(|state| state.posted(1)) < count {
            assert!(lunet_os::time::now() < deadline, "nothing was posted");
            self.iterate();
        }
    }

    /// Lets the shard work until it sleeps. Whether it has asked to be woken for the end of what it has sent.
    fn rests(&mut self) -> bool {
        let deadline = lunet_os::time::now() + Duration::from_secs(20);
        self.wire.with(|state| state.asked.clear());
        loop {
            self.iterate();
            if let Some(sends) = self.wire.with(|state| state.asked.last().copied()) {
                return sends;
            }
            assert!(lunet_os::time::now() < deadline, "it never sleeps");
        }
    }

    fn free(&self) -> usize {
        self.shard.front.exec.storage.ring.arena().free_bytes()
    }

    /// How often the shard was notified.
    fn notified(&self) -> usize {
        self.wire.with(|state| state.notified)
    }
}

#[test]
fn send_completions_raise_no_interrupt() {
    let (mut bench, slot) = ready(64);
    bench.command(1, 1, (READ, &cdb(0x28, 8), 4096), opens(None, Some(4)), &[]);
    bench.until_posted(2);
    assert!(!bench.rests());
    let notified = bench.notified();
    assert!(matches!(bench.next(1, &[], Status::Success), Work::Write(..)));
    assert_eq!(bench.status(1, 1).0, 0);
    bench.settle(slot);
    assert_eq!(bench.notified(), notified);
    assert!(!bench.rests());
}

#[test]
fn the_end_of_an_answer_is_found_before_long() {
    let (mut bench, slot) = ready(64);
    let free = bench.free();
    bench.command(1, 1, (READ, &cdb(0x28, 8), 4096), opens(None, Some(4)), &[]);
    bench.until_posted(2);
    assert!(bench.shard.conns[slot].sending >= 4096 && bench.free() < free);
    let patience = bench.shard.patience().expect("it does not sleep for ever");
    assert!(patience <= Duration::from_millis(200), "it looks soon: {patience:?}");
    // While it sleeps the answer goes out.
    bench.shard.wait(Some(patience), &mut bench.events).expect("the kernel waits");
    let notified = bench.notified();
    assert!(matches!(bench.wire.next(1, &[], Status::Success), Some(Work::Write(..))));
    assert!(matches!(bench.wire.next(1, &[], Status::Success), Some(Work::Send(..))));
    assert_eq!((bench.notified(), bench.free() < free), (notified, true), "it is not notified");
    bench.shard.iterate(&mut bench.events);
    assert_eq!((bench.shard.conns[slot].sending, bench.free()), (0, free));
    assert_eq!(bench.queue_pair(slot).poll_at, None, "nothing is left to look for");
}

#[test]
fn a_look_that_finds_nothing_is_followed_by_another() {
    let (mut bench, slot) = ready(64);
    ping(&mut bench, 1);
    bench.until_posted(1);
    let first = bench.queue_pair(slot).poll_at.expect("an answer is on its way");
    let deadline = lunet_os::time::now() + Duration::from_secs(20);
    while bench.queue_pair(slot).poll_at == Some(first) {
        assert!(lunet_os::time::now() < deadline, "it does not look");
        let patience = bench.shard.patience().expect("it does not sleep for ever");
        assert!(patience <= Duration::from_millis(200), "it looks soon: {patience:?}");
        bench.shard.wait(Some(patience), &mut bench.events).expect("the kernel waits");
        bench.shard.iterate(&mut bench.events);
    }
    assert!(bench.queue_pair(slot).poll_at > Some(first));
}

#[test]
fn data_that_is_fetched_wakes_the_shard() {
    let (mut bench, _) = ready(64);
    let data = pattern(65_536);
    bench.command(1, 1, (WRITE, &cdb(0x2a, 128), 65_536), opens(Some(7), None), &[]);
    bench.until_posted(1);
    assert!(bench.rests());
    let notified = bench.notified();
    assert!(matches!(bench.next(1, &data, Status::Success), Work::Read(65_536, _)));
    assert_eq!(bench.notified(), notified + 1);
    assert_eq!(bench.status(1, 1).0, 0);
    assert!(!bench.rests(), "it waits for nothing any more");
}

#[test]
fn room_in_a_full_send_queue_wakes_the_shard() {
    let (mut bench, _) = ready(2);
    for number in 1..=4 {
        bench.command(1, number, (READ, &cdb(0x28, 1), 512), opens(None, Some(number)), &[]);
    }
    bench.until_posted(2);
    assert!(bench.rests());
    let notified = bench.notified();
    for number in 1..=4 {
        assert!(matches!(bench.next(1, &[], Status::Success), Work::Write(..)));
        assert_eq!(bench.status(1, number).0, 0);
    }
    assert!(bench.notified() > notified);
    assert!(!bench.rests(), "it waits for nothing any more");
}

#[test]
fn memory_that_a_task_waits_for_wakes_the_shard() {
    let (mut bench, slot) = ready(64);
    let arena = bench.shard.front.exec.storage.ring.arena().clone();
    bench.shard.conns[slot].reserve = None;
    // What the data of a write is fetched into.
    bench.command(1, 1, (WRITE, &cdb(0x2a, 128), 65_536), opens(Some(7), None), &[]);
    let held: Vec<_> = std::iter::from_fn(|| arena.alloc(4096)).collect();
    bench.iterate();
    assert!(bench.shard.front.exec.is_starved(), "there is no memory for it");
    assert!(!bench.queue_pair(slot).waits, "its connection waits for nothing");
    assert!(bench.rests());
    drop(held);
    assert!(matches!(bench.next(1, &pattern(65_536), Status::Success), Work::Read(65_536, _)));
    assert_eq!(bench.status(1, 1).0, 0);
    assert!(!bench.rests());
}

#[test]
fn the_rest_of_a_long_answer_wakes_the_shard() {
    let (mut bench, slot) = ready(64);
    // Together they are more than may be on its way at a time.
    let len = 6000 * 512;
    for number in 1..=2 {
        bench.command(1, number, (READ, &cdb(0x28, 6000), len), opens(None, Some(4)), &[]);
    }
    bench.until_posted(1);
    assert!(bench.rests());
    let conn = &bench.shard.conns[slot];
    assert!(conn.out.posts.is_empty() && !conn.blocked.is_empty(), "it waits for what is out");
    let (mut seen, mut answers) = (0, 0);
    while answers < 2 {
        match bench.next(1, &[], Status::Success) {
            Work::Write(bytes, _) => seen += bytes.len(),
            Work::Send(..) => answers += 1,
            Work::Read(..) => panic!("nothing is fetched"),
        }
    }
    assert_eq!(seen, 2 * len as usize);
    assert!(!bench.rests(), "it waits for nothing any more");
}

#[test]
fn the_end_of_the_last_answer_wakes_the_shard() {
    let (mut bench, _) = ready(64);
    let mut logout = LogoutRequest { flags: 0x80, ..LogoutRequest::default() };
    logout.cmd_sn = pdu::U32::new(1);
    bench.send(1, Header::default(), &logout, &[]);
    bench.until_posted(1);
    assert!(bench.rests());
    let notified = bench.notified();
    assert_eq!(bench.answer(1).0[0], 0x26);
    assert_eq!(bench.notified(), notified + 1);
    bench.until_closed(1);
    assert!(!bench.rests());
    bench.assert_all_is_given_back();
}

#[test]
fn answers_leave_in_eights() {
    let (mut bench, _) = ready(64);
    bench.wire.with(|state| state.flushed.clear());
    (0..20).for_each(|_| ping(&mut bench, 1));
    bench.iterate();
    assert_eq!(bench.wire.with(|state| state.flushed.clone()), [8, 8, 4]);
    (0..20).for_each(|_| assert_eq!(bench.answer(1).0[0], 0x20));
}

#[test]
fn what_comes_while_answers_leave_does_not_overtake_what_came_before() {
    let (mut bench, _) = ready(64);
    (0..22).for_each(|itt| numbered_ping(&mut bench, 1, itt));
    // The last two come to light in the middle of the batch.
    bench.wire.with(|state| state.meanwhile = state.completed.split_off(20));
    bench.iterate();
    let itts: Vec<u8> = (0..22).map(|_| bench.answer(1).0[19]).collect();
    assert_eq!(itts, (0..22).collect::<Vec<u8>>());
}

#[test]
fn a_connection_that_ends_waits_for_nothing_any_more() {
    let (mut bench, slot) = ready(64);
    bench.command(1, 1, (WRITE, &cdb(0x2a, 128), 65_536), opens(Some(7), None), &[]);
    bench.until_posted(1);
    assert!(bench.rests());
    bench.shard.disconnect(slot);
    assert!(!bench.rests());
    bench.assert_all_is_given_back();
}
use lunet_server::conn::ConnId;
