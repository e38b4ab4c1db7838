//! Listeners, wakers, timeouts and the end of the event loop, on both drivers.

mod common;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Loop, descriptors, is_open, link_of, scratch, split};
use lunet_ring::{Config, Driver, DriverChoice, Event, Token, TxChain};

fn connections_are_reported_with_their_peers(config: Config) {
    let mut l = Loop::new(&config);
    let mut expected = HashSet::new();
    let mut streams = Vec::new();
    for (address, token) in [("127.0.0.1:0", Token(1)), ("[::1]:0", Token(2))] {
        let Ok(listener) = TcpListener::bind(address) else { continue }; // no IPv6 here
        let to = listener.local_addr().expect("bound");
        l.ring.add_listener(listener, token);
        for _ in 0..10 {
            let stream = TcpStream::connect(to).expect("loopback");
            expected.insert((token, stream.local_addr().expect("connected")));
            streams.push(stream);
        }
    }
    while !expected.is_empty() {
        match l.next() {
            Event::Accepted { token, socket, peer } => {
                assert!(expected.remove(&(token, peer)), "{token:?} {peer}");
                let id = l.add(socket);
                l.ring.close_socket(id);
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
}

fn after_stop_accepting_connections_are_refused(config: Config) {
    let mut l = Loop::new(&config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let link = link_of(&listener);
    let to = listener.local_addr().expect("bound");
    l.ring.add_listener(listener, Token(1));
    assert!(l.poll().is_none());
    l.ring.stop_accepting();
    assert!(TcpStream::connect(to).is_err());
    // The cancellation ends within a few iterations and reports nothing.
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_open(&link) {
        assert!(Instant::now() < deadline, "the listener was not closed");
        assert!(l.poll().is_none());
    }
    drop(TcpListener::bind(to).expect("the port is free again"));
}

fn who_has_a_copy_of_a_listener_that_is_left_gets_its_connections(config: Config) {
    let mut l = Loop::new(&config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let copy = listener.try_clone().expect("a copy");
    let link = link_of(&listener);
    l.ring.add_listener(listener, Token(1));
    assert!(l.poll().is_none());
    l.ring.leave_listeners();
    let deadline = Instant::now() + Duration::from_secs(20);
    while descriptors(&link) > 1 {
        assert!(Instant::now() < deadline, "the listener was not closed");
        assert!(l.poll().is_none());
    }
    let to = copy.local_addr().expect("bound");
    let client = TcpStream::connect(to).expect("it listens");
    copy.set_nonblocking(false).expect("set");
    let (_, from) = copy.accept().expect("the connection is there");
    assert_eq!(Some(from), client.local_addr().ok());
}

fn one_listener_of_two_is_removed(config: Config) {
    let mut l = Loop::new(&config);
    let listen = |l: &mut Loop, address: SocketAddr, token| {
        // As the address of a portal that comes back: it may still be bound by the listener that goes.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.set_reuse_address(true).expect("an option");
        socket.bind(&address.into()).expect("the address");
        socket.listen(16).expect("a listener");
        let listener = TcpListener::from(socket);
        let to = listener.local_addr().expect("bound");
        l.ring.add_listener(listener, token);
        to
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (goes, stays) = (listen(&mut l, any, Token(1)), listen(&mut l, any, Token(2)));
    assert!(l.poll().is_none());
    let accepted = |l: &mut Loop, to: SocketAddr, expected: Token| {
        let stream = TcpStream::connect(to).expect("it listens");
        let from = stream.local_addr().expect("connected");
        match l.next() {
            Event::Accepted { token, peer, .. } => assert_eq!((token, peer), (expected, from)),
            other => panic!("unexpected: {other:?}"),
        }
    };
    l.ring.remove_listener(Token(1));
    assert!(TcpStream::connect(goes).is_err(), "refused at once");
    accepted(&mut l, stays, Token(2));
    // Nothing listens by this token any more.
    l.ring.remove_listener(Token(1));
    assert_eq!(listen(&mut l, goes, Token(3)), goes);
    accepted(&mut l, goes, Token(3));
    accepted(&mut l, stays, Token(2));
}

fn no_call_of_wake_is_lost(config: Config) {
    const ROUNDS: u64 = 20_000;
    let mut l = Loop::new(&config);
    let (waker, count) = (l.ring.waker(), Arc::new(AtomicU64::new(0)));
    let counter = Arc::clone(&count);
    let other = thread::spawn(move || {
        for _ in 0..ROUNDS {
            counter.fetch_add(1, Ordering::Relaxed);
            waker.wake();
        }
    });
    let mut wakes = 0;
    while count.load(Ordering::Relaxed) < ROUNDS || wakes == 0 {
        assert!(matches!(l.next(), Event::Woken));
        wakes += 1;
    }
    other.join().expect("the waking thread");
    assert!(wakes <= ROUNDS + 1);
    let waker = l.ring.waker();
    while l.poll().is_some() {}
    for _ in 0..5 {
        waker.wake();
    }
    assert!(matches!(l.next(), Event::Woken));
    assert!(l.poll().is_none(), "five calls before the wait are one event");
    drop(l);
    waker.wake();
}

fn a_wait_ends_at_its_timeout(config: Config) {
    let mut l = Loop::new(&config);
    let start = Instant::now();
    let mut events = Vec::new();
    l.ring.wait(Some(Duration::from_millis(30)), &mut events).expect("the kernel waits");
    assert!(start.elapsed() >= Duration::from_millis(30) && events.is_empty());
    let waits = l.ring.counters().waits;
    l.ring.wait(Some(Duration::ZERO), &mut events).expect("the kernel waits");
    assert!(events.is_empty());
    assert_eq!(l.ring.counters().waits, waits + 1, "one system call");
}

fn what_gathers_is_found_by_the_next_wait(config: Config) {
    let time = Duration::from_millis(30);
    let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let start = Instant::now();
    l.ring.gather(time).expect("the kernel waits");
    assert!(start.elapsed() >= time, "with nothing to be had it takes its time");
    // Queued operations are started before the wait, and one receive takes all that came.
    l.ring.recv(id, common::scratch(100), Token(1));
    let mut chain = TxChain::new();
    chain.bytes(b"an answer");
    l.ring.send(id, chain, Token(2));
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let writer = thread::spawn(move || {
        let mut answer = [0; 9];
        peer.read_exact(&mut answer).expect("sent before the wait");
        peer.write_all(b"one").expect("a socket pair");
        peer.write_all(b"two").expect("a socket pair");
        count.store(6, Ordering::Release);
        peer
    });
    l.ring.gather(time).expect("the kernel waits");
    // Unless this machine kept the writer waiting for longer than that.
    let in_time = written.load(Ordering::Acquire);
    let _peer = writer.join().expect("the answer came");
    let mut received = None;
    while received.is_none() {
        if let Event::Received { result, .. } = l.next() {
            received = Some(result);
        }
    }
    let received = received.expect("a receive").expect("no error") as u64;
    assert!(received >= in_time.max(3), "{received} bytes in one receive, {in_time} in time");
}

fn dropping_the_loop_gives_everything_back(config: Config) {
    let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
    let (_full, theirs) = UnixStream::pair().expect("a socket pair");
    let links = [link_of(&ours), link_of(&theirs)];
    let mut l = Loop::new(&config);
    let arena = l.ring.arena().clone();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("bound");
    l.ring.add_listener(listener, Token(0));
    let (receiving, sending) = (l.add(ours), l.add(theirs));
    let buf = l.blank(1 << 20);
    l.ring.recv(receiving, split(buf, 0..1 << 20, 100), Token(1));
    let mut chain = TxChain::new();
    let payload = chain.payload(l.blank(1 << 20).into());
    (0..64).for_each(|_| chain.slice(payload, 0..1 << 20));
    l.ring.send(sending, chain, Token(2));
    assert!(l.poll().is_none());
    // Queued, but never submitted by a wait.
    let idle = l.ring.add_socket(UnixStream::pair().expect("a socket pair").0.into());
    let buf = l.blank(4096);
    l.ring.recv(idle, split(buf, 0..4096, 0), Token(3));
    assert!(arena.free_bytes() < arena.total_bytes() - (2 << 20));
    drop(l);
    assert_eq!(arena.free_bytes(), arena.total_bytes());
    assert!(!links.iter().any(|link| is_open(link)));
    assert!(peer.write_all(b"anyone?").is_err(), "the sockets are closed");
    assert!(TcpStream::connect(to).is_err(), "the listener is closed");
}

fn the_driver_is_the_one_that_was_asked_for(config: Config) {
    let l = Loop::new(&config);
    let expected = match config.driver {
        DriverChoice::Epoll => Driver::Epoll,
        DriverChoice::IoUring | DriverChoice::Auto => Driver::IoUring,
    };
    assert_eq!(l.ring.driver(), expected);
    assert_eq!(l.ring.arena().total_bytes(), config.arena_bytes);
}

fn timers_end_in_order_and_not_before_their_time(config: Config) {
    let mut l = Loop::new(&config);
    let start = Instant::now();
    for (millis, token) in [(30, 3), (10, 1), (20, 2), (60_000, 4), (60_000, 5), (0, 0)] {
        l.ring.timer(Duration::from_millis(millis), Token(token));
    }
    for token in 0..4 {
        let (ended, buf, result) = l.disk();
        assert_eq!((ended, buf.is_none(), result), (Token(token), true, Ok(0)));
        assert!(start.elapsed() >= Duration::from_millis(10 * token));
    }
    l.ring.cancel(Token(4));
    let (ended, _, result) = l.disk();
    assert_eq!((ended, result), (Token(4), Err(libc::ECANCELED)));
    l.ring.forget_timer(Token(5));
    assert!(l.poll().is_none());
    // A wait that ends earlier than the timer.
    l.ring.timer(Duration::from_secs(60), Token(6));
    l.iterate(Some(Duration::from_millis(5)));
    l.ring.waker().wake();
    assert!(matches!(l.next(), lunet_ring::Event::Woken));
}

for_each_driver!(
    timers_end_in_order_and_not_before_their_time,
    connections_are_reported_with_their_peers,
    after_stop_accepting_connections_are_refused,
    who_has_a_copy_of_a_listener_that_is_left_gets_its_connections,
    one_listener_of_two_is_removed,
    no_call_of_wake_is_lost,
    a_wait_ends_at_its_timeout,
    what_gathers_is_found_by_the_next_wait,
    dropping_the_loop_gives_everything_back,
    the_driver_is_the_one_that_was_asked_for,
);

#[test]
fn io_uring_skips_the_vain_attempt_on_a_drained_socket() {
    common::with(DriverChoice::IoUring, 0, |config| {
        let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
        let mut l = Loop::new(&config);
        let id = l.add(ours);
        let mut once = |l: &mut Loop, sent: usize| {
            peer.write_all(&vec![1; sent]).expect("a socket pair");
            l.ring.recv(id, scratch(100), Token(0));
            assert_eq!(l.received().2, Ok(sent.min(100)));
        };
        once(&mut l, 100);
        once(&mut l, 10);
        assert_eq!(l.ring.counters().polled_receives, 0, "the buffers were full before");
        once(&mut l, 10);
        let polled = l.ring.counters().polled_receives;
        l.ring.set_poll_first(false);
        once(&mut l, 10);
        assert_eq!(l.ring.counters().polled_receives, polled);
        assert!(polled == 1 || !l.ring.notes().is_empty(), "an older kernel is noted");
    });
}
