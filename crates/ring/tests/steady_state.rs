//! The hot path allocates nothing once it is warm. Alone in its program, because it counts every
//! allocation of every thread.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{add, plain, split, with};
use lunet_ring::{
    Config, DriverChoice, Event, FileId, Payload, Region, RegionRef, Ring, RxBufs, SocketId, Token,
    TxChain,
};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Work {
    ring: Ring,
    from: SocketId,
    to: SocketId,
    file: FileId,
    region: RegionRef,
    chain: Option<TxChain>,
    bufs: Option<RxBufs>,
    events: Vec<Event>,
}

impl Work {
    /// Sends bytes, a buffer and a part of a region, receives them in two parts, writes the
    /// payload to a file and reads it back.
    fn round(&mut self) {
        let mut chain = self.chain.take().expect("the chain came back");
        chain.clear();
        chain.bytes(&[1; 48]);
        let buf = self.ring.arena().alloc(4096).expect("room");
        let id = chain.payload(Payload::Buf(buf));
        chain.slice(id, 0..4096);
        let id = chain.payload(Payload::Mapped(self.region.map(4096..8192)));
        chain.slice(id, 0..4096);
        self.ring.send(self.from, chain, Token(1));
        let mut bufs = self.bufs.take().expect("the buffers came back");
        let buf = self.ring.arena().alloc(8192).expect("room");
        bufs.payload = Some((buf, 0..8192));
        self.ring.recv(self.to, bufs, Token(2));
        let mut left = 4;
        while left > 0 {
            self.ring.wait(None, &mut self.events).expect("the kernel waits");
            let mut events = std::mem::take(&mut self.events);
            left -= events.drain(..).map(|event| self.handle(event)).sum::<u32>();
            self.events = events;
        }
    }

    /// What is counted: the send, the receive, the write and the read.
    fn handle(&mut self, event: Event) -> u32 {
        match event {
            Event::Sent { chain, result, .. } => {
                assert_eq!(result, Ok(()));
                self.chain = Some(chain);
            }
            Event::Received { mut bufs, result, .. } => {
                assert_eq!(result, Ok(48 + 8192));
                let (buf, range) = bufs.payload.take().expect("the payload");
                self.ring.write(self.file, 0, buf, range, Token(3));
                self.bufs = Some(bufs);
            }
            Event::Disk { token: Token(3), buf, result } => {
                assert_eq!(result, Ok(8192));
                self.ring.read(self.file, 0, buf.expect("the buffer"), 8192, Token(4));
            }
            Event::Disk { result, .. } => assert_eq!(result, Ok(8192)),
            other => panic!("unexpected: {other:?}"),
        }
        1
    }
}

fn nothing_is_allocated(config: Config) {
    let mut ring = Ring::new(&config).expect("an event loop");
    let (a, b) = UnixStream::pair().expect("a socket pair");
    let (from, to) = (ring.add_socket(a.into()), ring.add_socket(b.into()));
    let file = add(&mut ring, Arc::new(tempfile::tempfile().expect("a temporary file")));
    let region = RegionRef::new(Arc::new(Region::new(1 << 20).expect("memory")));
    let bufs = split(ring.arena().alloc(1).expect("room"), 0..0, 100);
    let (chain, bufs) = (Some(plain(b"")), Some(bufs));
    let mut work = Work { ring, from, to, file, region, chain, bufs, events: Vec::new() };
    for _ in 0..50 {
        work.round();
    }
    // The test program's own threads allocate now and then; the event loop would in every batch.
    let mut batch = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..200 {
            work.round();
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    let fewest = (0..5).map(|_| batch()).min();
    assert_eq!(fewest, Some(0), "{:?}", config.driver);
}

#[test]
fn the_hot_path_allocates_nothing() {
    with(DriverChoice::IoUring, 0, nothing_is_allocated);
    // With one disk thread the warm-up reaches all threads: a thread's start allocates.
    with(DriverChoice::Epoll, 0, |c| nothing_is_allocated(Config { disk_threads: 1, ..c }));
}
