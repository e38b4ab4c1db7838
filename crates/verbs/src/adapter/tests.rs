//! An adapter over a device that is none ([`crate::fake`]).

mod notices;
mod shared;

use lunet_ring::{Arena, Buf, Payload};

use super::work::INLINE;
use super::*;
use crate::fake::{self, Posted, says};
use crate::ffi::{SEND_INLINE, SEND_SIGNALED, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND_WITH_INV};
use crate::{Library, Operation, Status};

const REMOTE: Remote = Remote { address: 4096, key: 99 };

struct Bench {
    adapter: Adapter,
    arena: Arena,
    library: Arc<Library>,
}

impl Bench {
    fn new(shared_receives: Option<u32>) -> Self {
        let (library, device) = fake::device();
        let arena = Arena::new(1 << 20).expect("a small mapping");
        let config = AdapterConfig { completions: 32, shared_receives, interrupt: 4 };
        let adapter = Adapter::open(&device, &arena, &config).expect("the device has enough");
        Self { adapter, arena, library }
    }

    fn endpoint(&mut self, sends: u32) -> EndpointId {
        let config = EndpointConfig { sends, receives: 4 };
        self.adapter.open_endpoint(fake::id(&self.library), config).expect("room for it")
    }

    fn buf(&self, len: usize) -> Buf {
        self.arena.alloc(len).expect("room")
    }

    fn write(&mut self, id: EndpointId, token: u64, signaled: bool) -> Result<(), Why> {
        let data = whole(self.buf(8192));
        self.adapter.queue_write(id, data, REMOTE, (token, signaled)).map_err(|e| e.why)
    }

    fn polled(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        assert!(!self.adapter.poll(&mut completions).expect("the device is well"), "no more");
        completions
    }

    fn held(&self) -> usize {
        self.arena.total_bytes() - self.arena.free_bytes()
    }
}

fn whole(buf: Buf) -> Pieces {
    let len = buf.len();
    [(Payload::from(buf), 0..len)].into_iter().collect()
}

/// The last list that was handed over.
fn last_list() -> Vec<Posted> {
    fake::with(|s| s.sends.last().cloned().expect("a list"))
}

fn scattered(bench: &Bench) -> Scatter {
    Scatter { head: bench.buf(1000), split: 76, body: Some(bench.buf(8192)) }
}

#[test]
fn a_message_is_received_into_a_head_and_a_body() {
    for shared in [None, Some(4)] {
        let mut bench = Bench::new(shared);
        let id = bench.endpoint(4);
        let idle = bench.held();
        let memory = scattered(&bench);
        let body = memory.body.as_ref().map(|body| body.start().as_ptr() as u64).expect("a body");
        let head = memory.head.start().as_ptr() as u64;
        match shared {
            None => bench.adapter.queue_receive(id, memory, 3).expect("room"),
            Some(_) => bench.adapter.queue_shared_receive(memory).expect("room"),
        }
        bench.adapter.flush();
        let (pieces, number) = fake::with(|s| (s.scattered.pop(), s.receives[0][0]));
        assert_eq!(pieces.expect("one"), [(head, 76), (body, 8192), (head + 76, 924)]);
        fake::with(|s| s.completions.push_back(IbvWc { qp_num: 1, ..says(number, 0) }));
        let mut done = bench.polled();
        let done = done.pop().expect("it ends");
        assert_eq!((done.status, done.bytes), (Status::Success, 5));
        let (buf, back) = (done.buf.expect("its head"), done.body.expect("its body"));
        assert_eq!((buf.len(), back.start().as_ptr() as u64), (1000, body));
        drop((buf, back));
        assert_eq!(bench.held(), idle);
        bench.adapter.close(id);
        drop(bench);
        fake::with(|s| *s = fake::State::default());
    }
}

#[test]
fn empty_pieces_of_a_receive_are_left_out() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    let memory = Scatter { head: bench.buf(64), split: 64, body: Some(bench.buf(4096)) };
    bench.adapter.queue_receive(id, memory, 3).expect("room");
    bench.adapter.flush();
    let lengths: Vec<u32> = fake::with(|s| s.scattered[0].iter().map(|piece| piece.1).collect());
    assert_eq!(lengths, [64, 4096]);
}

#[test]
fn a_device_without_lists_in_receives_takes_none() {
    fake::with(|s| s.no_scatter = true);
    let mut bench = Bench::new(Some(4));
    let id = bench.endpoint(4);
    assert!(!bench.adapter.scatters());
    let memory = scattered(&bench);
    let not = bench.adapter.queue_shared_receive(memory).expect_err("it has no room for them");
    assert_eq!((not.why, not.back.body.is_some()), (Why::TooLong, true));
    bench.adapter.queue_shared_receive(bench.arena.alloc(9000).expect("room")).expect("one piece");
    assert!(bench.adapter.shares_receives(id));
}

#[test]
fn work_is_handed_over_as_one_list() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(16);
    bench.write(id, 1, false).expect("room");
    let data = [(Payload::from(bench.buf(4096)), 100..1100)].into_iter().collect();
    bench.adapter.queue_send(id, &[7; 76], data, Some(5), (2, true)).expect("room");
    bench.adapter.queue_send(id, &[7; 76], Pieces::new(), None, (3, false)).expect("room");
    let into = bench.buf(4096);
    bench.adapter.queue_read(id, into, 512..4096, REMOTE, 4).expect("room");
    assert!(fake::with(|s| s.sends.is_empty()), "nothing before the flush");
    bench.adapter.flush();
    bench.adapter.flush();
    assert_eq!(fake::with(|s| s.sends.len()), 1, "one call");
    let list = last_list();
    let seen: Vec<_> =
        list.iter().map(|p| (p.opcode, p.flags, p.lengths.as_slice(), p.key)).collect();
    assert_eq!(
        seen,
        [
            (WR_RDMA_WRITE, 0, [8192].as_slice(), 99),
            (WR_SEND_WITH_INV, SEND_SIGNALED, &[76, 1000], 5),
            (2, SEND_INLINE, &[76], 0),
            (WR_RDMA_READ, SEND_SIGNALED, &[3584], 99),
        ]
    );
}

#[test]
fn work_ends_in_order_and_what_is_silent_ends_with_the_next() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(16);
    let idle = bench.held();
    bench.write(id, 1, false).expect("room");
    bench.write(id, 2, true).expect("room");
    let into = bench.buf(4096);
    bench.adapter.queue_read(id, into, 0..4096, REMOTE, 3).expect("room");
    bench.adapter.flush();
    let list = last_list();
    fake::with(|s| s.completions.push_back(says(list[1].number, 0)));
    let done = bench.polled();
    assert_eq!((done.len(), done[0].token, done[0].operation), (1, 2, Operation::Write));
    assert_eq!(bench.held(), idle + 4096, "both writes are free, the read is not");
    fake::with(|s| s.completions.push_back(says(list[2].number, 10)));
    let failed = bench.polled();
    assert_eq!((failed[0].token, failed[0].status, failed[0].bytes), (3, Status::RemoteAccess, 0));
    assert!(failed[0].buf.is_some(), "its buffer comes back");
    assert_eq!(bench.adapter.in_flight(id), (0, 0));
}

#[test]
fn work_that_asks_for_no_report_cannot_fill_the_queue_for_ever() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    let idle = bench.held();
    for round in 0..50 {
        while bench.write(id, round, false).is_ok() {}
        assert_eq!(bench.write(id, round, false), Err(Why::Full));
        bench.adapter.flush();
        // The device speaks of those only that have a signal.
        let signaled: Vec<u64> = last_list()
            .iter()
            .filter(|posted| posted.flags & SEND_SIGNALED != 0)
            .map(|posted| posted.number)
            .collect();
        assert!(!signaled.is_empty(), "round {round}");
        fake::with(|s| s.completions.extend(signaled.iter().map(|n| says(*n, 0))));
        assert!(bench.polled().is_empty(), "nobody asked");
        assert!(bench.adapter.room(id) > 0, "round {round}");
    }
    bench.adapter.close(id);
    assert_eq!(bench.held(), idle - 4096, "with the heads' buffer of one page");
}

#[test]
fn what_the_device_refuses_comes_back_and_the_rest_stays() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(16);
    let idle = bench.held();
    bench.write(id, 1, true).expect("room");
    bench.write(id, 2, false).expect("room");
    let into = bench.buf(4096);
    bench.adapter.queue_read(id, into, 0..4096, REMOTE, 3).expect("room");
    fake::with(|s| s.takes = Some(1));
    assert!(!bench.adapter.has_refused());
    bench.adapter.flush();
    assert!(bench.adapter.has_refused());
    let refused = bench.polled();
    assert!(!bench.adapter.has_refused());
    let tokens: Vec<u64> = refused.iter().map(|c| c.token).collect();
    assert_eq!(tokens, [2, 3], "in order, and the unsignaled one too");
    assert!(refused.iter().all(|c| c.status == Status::NotPosted(libc::ENOMEM)));
    assert!(refused[1].buf.is_some(), "the read's buffer");
    assert_eq!(bench.write(id, 4, true), Err(Why::Ended), "nothing more on this endpoint");
    drop(refused);
    assert_eq!(bench.held(), idle + 8192, "the device has the first one");
    let number = last_list()[0].number;
    fake::with(|s| s.completions.push_back(says(number, 5)));
    let flushed = bench.polled();
    assert_eq!((flushed[0].token, flushed[0].status), (1, Status::Flushed));
    assert_eq!(bench.held(), idle);
}

#[test]
fn completions_of_endpoints_that_are_gone_hit_nobody() {
    let mut bench = Bench::new(None);
    let old = bench.endpoint(4);
    bench.write(old, 1, true).expect("room");
    let buf = bench.buf(4096);
    bench.adapter.queue_receive(old, buf, 2).expect("room");
    bench.adapter.flush();
    let number = last_list()[0].number;
    let receive = fake::with(|s| s.receives[0][0]);
    bench.adapter.close(old);
    let new = bench.endpoint(4);
    assert_eq!((new.0.index, new == old), (old.0.index, false), "at the same place");
    bench.write(new, 3, true).expect("room");
    let buf = bench.buf(4096);
    bench.adapter.queue_receive(new, buf, 4).expect("room");
    bench.adapter.flush();
    fake::with(|s| s.completions.extend([says(number, 0), says(receive, 0)]));
    assert!(bench.polled().is_empty());
    assert_eq!(bench.adapter.in_flight(new), (1, 1));
    assert_eq!(bench.write(old, 5, true), Err(Why::Ended));
}

#[test]
fn numbers_that_were_never_posted_free_nothing() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    bench.write(id, 1, true).expect("room");
    bench.adapter.flush();
    let number = last_list()[0].number;
    // Queued, and not handed over.
    bench.write(id, 2, true).expect("room");
    fake::with(|s| {
        s.completions.extend([1, 2, 3, u64::MAX - number].map(|d| says(number.wrapping_add(d), 0)))
    });
    assert!(bench.polled().is_empty());
    assert_eq!(bench.adapter.in_flight(id).0, 2);
}

#[test]
fn a_queue_pair_that_does_not_go_keeps_its_memory() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    bench.write(id, 1, true).expect("room");
    let buf = bench.buf(4096);
    bench.adapter.queue_receive(id, buf, 2).expect("room");
    bench.adapter.flush();
    let held = bench.held();
    fake::with(|s| s.holds_on = true);
    bench.adapter.close(id);
    let Bench { adapter, arena, .. } = bench;
    drop(adapter);
    assert_eq!(arena.total_bytes() - arena.free_bytes(), held, "the device may still write there");
}

#[test]
fn completions_never_outgrow_their_queue() {
    let mut bench = Bench::new(None);
    let first = bench.endpoint(16);
    let _second = bench.endpoint(16);
    let config = EndpointConfig { sends: 16, receives: 4 };
    let id = fake::id(&bench.library);
    let refused = bench.adapter.open_endpoint(id, config).expect_err("32 places are taken");
    assert!(matches!(refused.error, Error::Limit { wanted: 16, limit: 0, .. }), "{refused:?}");
    bench.adapter.close(first);
    // Its last completions may be in the queue still.
    let refused = bench.adapter.open_endpoint(refused.id, config).expect_err("not yet");
    bench.polled();
    bench.adapter.open_endpoint(refused.id, config).expect("the queue was empty");
}

#[test]
fn a_full_arena_takes_no_connection() {
    let mut bench = Bench::new(None);
    let all = bench.buf(1 << 20);
    let config = EndpointConfig { sends: 4, receives: 4 };
    let id = fake::id(&bench.library);
    let refused = bench.adapter.open_endpoint(id, config).expect_err("no room");
    assert!(matches!(refused.error, Error::NoBuffers), "{refused:?}");
    drop(all);
    bench.adapter.open_endpoint(refused.id, config).expect("there is room");
}

#[test]
fn a_device_that_copies_nothing_into_its_queue_is_asked_again() {
    fake::with(|s| s.no_inline = true);
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    bench.adapter.queue_send(id, &[1; 48], Pieces::new(), None, (1, true)).expect("room");
    bench.adapter.flush();
    assert_eq!(last_list()[0].flags, SEND_SIGNALED);
}

#[test]
fn long_sends_and_wrong_memory_are_told_apart() {
    let mut bench = Bench::new(None);
    let id = bench.endpoint(4);
    let none = Pieces::new();
    let send = |bench: &mut Bench, head: &[u8], data| {
        bench.adapter.queue_send(id, head, data, None, (1, true)).map_err(|e| e.why)
    };
    assert_eq!(send(&mut bench, &[0; HEAD_MAX + 1], none), Err(Why::TooLong));
    let beyond = [(Payload::from(bench.buf(100)), 50..101)].into_iter().collect();
    assert_eq!(send(&mut bench, &[], beyond), Err(Why::NotRegistered));
    let plain = [(Payload::from(vec![1, 2, 3]), 0..3)].into_iter().collect();
    assert_eq!(send(&mut bench, &[], plain), Err(Why::NotRegistered));
    let region = Arc::new(Region::new(8192).expect("a small mapping"));
    let part = || lunet_ring::RegionRef::new(Arc::clone(&region)).map(0..8192);
    let mapped = || [(Payload::from(part()), 0..8192)].into_iter().collect();
    assert_eq!(send(&mut bench, &[], mapped()), Err(Why::NotRegistered));
    bench.adapter.register(&region).expect("memory");
    bench.adapter.register(&region).expect("once is enough");
    assert_eq!(fake::with(|s| s.alive[1]), 2);
    assert_eq!(send(&mut bench, &[0; INLINE as usize], mapped()), Ok(()));
    bench.adapter.unregister(&region);
    assert_eq!(send(&mut bench, &[], mapped()), Err(Why::NotRegistered));
}

#[test]
fn nothing_stays_of_an_adapter_whose_memory_cannot_be_registered() {
    let (library, device) = fake::device();
    let arena = Arena::new(1 << 20).expect("a small mapping");
    fake::with(|s| s.no_memory = true);
    let config = AdapterConfig { completions: 32, shared_receives: Some(8), interrupt: 0 };
    assert!(Adapter::open(&device, &arena, &config).is_err());
    drop((device, library));
    assert_eq!(fake::with(|s| s.alive), [0; 9]);
    assert_eq!(arena.free_bytes(), arena.total_bytes());
}

#[test]
fn nothing_stays_of_an_adapter() {
    let mut bench = Bench::new(Some(8));
    let id = bench.endpoint(4);
    bench.write(id, 1, true).expect("room");
    let buf = bench.buf(4096);
    bench.adapter.queue_shared_receive(buf).expect("room");
    bench.adapter.flush();
    bench.adapter.arm(false, true).expect("the device is well");
    assert_eq!(fake::with(|s| (s.armed.len(), s.alive)), (2, [1, 1, 1, 2, 1, 1, 1, 1, 1]));
    let Bench { adapter, arena, library } = bench;
    drop(adapter);
    assert_eq!(arena.free_bytes(), arena.total_bytes());
    assert_eq!(fake::with(|s| s.alive), [0; 9]);
    drop(library);
}
