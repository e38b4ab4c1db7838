//! Sends without a copy. Loopback delivers to a receiver on the same machine, for whom the kernel copies when it hands over
//! a packet: until then, and so for as long as the receiver's buffer is full, it refers to the pages of the chain.

mod common;

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Loop, is_given_back, is_open, link_of, pattern, plain, with};
use lunet_ring::{
    Config, Driver, DriverChoice, Payload, Region, RegionRef, SocketId, Token, TxChain,
};
use socket2::{Domain, Socket, Type};

/// Bytes of a payload: more than the receiver's buffer, and less than the sender's.
const LEN: usize = 256 << 10;

const PATIENCE: Duration = Duration::from_secs(20);

/// Two ends of a connection, of which the first has a small buffer to receive, and the second a large one to send.
fn pair() -> (TcpStream, TcpStream) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(1).expect("it listens");
    let peer = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    peer.set_recv_buffer_size(16 << 10).expect("a size");
    peer.connect(&listener.local_addr().expect("bound")).expect("loopback");
    let (ours, _) = listener.accept().expect("loopback");
    ours.set_send_buffer_size(1 << 20).expect("a size");
    (peer.into(), ours.into())
}

/// A header and its data, in a buffer of the arena.
fn answer(l: &Loop, data: &[u8]) -> TxChain {
    let mut chain = plain(&[7; 48]);
    let id = chain.payload(Payload::from(l.buf(data)));
    chain.slice(id, 0..data.len());
    chain
}

/// Reads an answer. Compared here, because the difference of two long lists says nothing.
fn takes(peer: &mut TcpStream, data: &[u8]) {
    let mut all = vec![0; 48 + data.len()];
    peer.read_exact(&mut all).expect("it comes");
    assert!(all[..48] == [7; 48] && all[48..] == *data, "other bytes came");
}

/// Waits until the kernel has let go of what it was sent.
fn until(l: &mut Loop, mut it: impl FnMut(&mut Loop) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !it(l) {
        assert!(Instant::now() < deadline, "that does not happen");
        l.iterate(Some(Duration::from_millis(10)));
    }
}

/// Sends an answer that the peer does not read: the socket has taken it, and the kernel refers to it. `None` where it does
/// not.
fn held(l: &mut Loop, ours: TcpStream, data: &[u8]) -> Option<SocketId> {
    let id = l.add(ours);
    l.ring.send(id, answer(l, data), Token(1));
    let (token, chain, result) = l.sent();
    assert_eq!((token, result), (Token(1), Ok(())));
    if l.ring.held(id) == 0 {
        assert!(!chain.is_empty(), "it is not held");
        eprintln!("not tested: this kernel has no sends without a copy that report");
        return None;
    }
    assert_eq!((chain.len(), l.ring.held(id)), (0, 48 + data.len()));
    Some(id)
}

/// Fills all memory that is free with other bytes.
fn fill(l: &Loop) {
    let arena = l.ring.arena();
    let all: Vec<_> = std::iter::from_fn(|| arena.alloc(LEN)).collect();
    assert!(!all.is_empty(), "there is memory");
    for mut buf in all {
        buf.fill(0xEE);
    }
}

fn test(test: fn(Config)) {
    with(DriverChoice::IoUring, 0, test);
}

fn what_is_copied_goes_over_to_ordinary_sends(config: Config) {
    const ROUNDS: u64 = 10;
    let (mut peer, ours) = pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let reader = thread::spawn(move || {
        for round in 0..ROUNDS {
            takes(&mut peer, &pattern(LEN, round));
        }
    });
    let mut tried = false;
    for round in 0..ROUNDS {
        l.ring.send(id, answer(&l, &pattern(LEN, round)), Token(round));
        let (token, mut chain, result) = l.sent();
        assert_eq!((token, result), (Token(round), Ok(())));
        chain.clear();
        tried |= l.ring.held(id) > 0;
        until(&mut l, |l| l.ring.held(id) == 0 && l.all_free());
    }
    reader.join().expect("the bytes are right");
    let counters = l.ring.counters();
    assert_eq!(counters.zero_copy_bytes, 0, "loopback copies");
    if counters.zero_copy_copied_bytes > 0 || tried {
        assert_eq!(counters.zero_copy_copied_bytes, 3 * (LEN as u64 + 48), "three tries");
    }
}

fn what_the_peer_has_not_taken_stays_as_it_is(config: Config) {
    let (mut peer, ours) = pair();
    let mut l = Loop::new(&config);
    let data = pattern(LEN, 1);
    let Some(id) = held(&mut l, ours, &data) else { return };
    assert!(l.ring.is_sending(id, |payload| matches!(payload, Payload::Buf(_))));
    assert!(!l.all_free());
    fill(&l);
    // The next one is sent, and not held: whether the kernel copies is not known yet.
    l.ring.send(id, answer(&l, &data), Token(2));
    let reader = thread::spawn(move || {
        takes(&mut peer, &data);
        takes(&mut peer, &data);
        peer
    });
    let (token, mut chain, result) = l.sent();
    assert_eq!((token, result), (Token(2), Ok(())));
    assert!(!chain.is_empty());
    chain.clear();
    until(&mut l, |l| l.all_free());
    assert_eq!(l.ring.held(id), 0);
    assert!(!l.ring.is_sending(id, |_| true));
    drop(reader.join().expect("the bytes are right"));
}

fn a_chain_of_many_messages_is_held_until_the_last(config: Config) {
    const PARTS: usize = 6;
    let (mut peer, ours) = pair();
    let mut l = Loop::new(&config);
    let data = pattern(600 << 10, 3);
    let mut chain = TxChain::new();
    for _ in 0..PARTS {
        chain.bytes(&[7; 48]);
        let id = chain.payload(Payload::from(l.buf(&data)));
        chain.slice(id, 0..data.len());
    }
    let id = l.add(ours);
    l.ring.send(id, chain, Token(1));
    let reader = thread::spawn(move || {
        for _ in 0..PARTS {
            takes(&mut peer, &data);
            thread::sleep(Duration::from_millis(5));
        }
        peer
    });
    let (_, mut chain, result) = l.sent();
    assert_eq!(result, Ok(()));
    fill(&l);
    chain.clear();
    until(&mut l, |l| l.all_free());
    drop(reader.join().expect("the bytes are right"));
}

fn what_is_held_arrives_after_a_close(config: Config) {
    let (mut peer, ours) = pair();
    let link = link_of(&ours);
    let mut l = Loop::new(&config);
    let data = pattern(LEN, 1);
    let Some(id) = held(&mut l, ours, &data) else { return };
    l.ring.close_socket(id);
    assert!(l.poll().is_none() && !l.all_free());
    fill(&l);
    takes(&mut peer, &data);
    assert_eq!(peer.read(&mut [0]).expect("no reset"), 0);
    until(&mut l, |l| l.all_free());
    assert!(!is_open(&link));
}

fn a_peer_that_takes_nothing_is_reset_after_a_close(config: Config) {
    let (mut peer, ours) = pair();
    let mut l = Loop::new(&config);
    let Some(id) = held(&mut l, ours, &pattern(LEN, 1)) else { return };
    l.ring.close_socket(id);
    until(&mut l, |l| l.all_free());
    assert_eq!(reset(&mut peer), io::ErrorKind::ConnectionReset);
}

/// Reads until there is an error.
fn reset(peer: &mut TcpStream) -> io::ErrorKind {
    let mut piece = vec![0; LEN];
    loop {
        match peer.read(&mut piece) {
            Ok(0) => panic!("the connection was closed, not reset"),
            Ok(_) => {}
            Err(error) => return error.kind(),
        }
    }
}

fn an_abort_has_the_kernel_let_go(config: Config) {
    let (mut peer, ours) = pair();
    let link = link_of(&ours);
    let mut l = Loop::new(&config);
    let Some(id) = held(&mut l, ours, &pattern(LEN, 1)) else { return };
    l.ring.abort_socket(id);
    assert_eq!(l.ring.held(id), 0, "it has no name any more");
    assert!(!is_open(&link), "it is closed, so that the kernel lets go");
    until(&mut l, |l| l.all_free());
    assert_eq!(reset(&mut peer), io::ErrorKind::ConnectionReset);
}

fn who_waits_for_a_closed_socket_resets_it(config: Config) {
    let (peer, ours) = pair();
    let region = Arc::new(Region::new(1 << 20).expect("memory"));
    let handle = RegionRef::new(region.clone());
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let mut chain = TxChain::new();
    let payload = chain.payload(handle.map(0..LEN as u64).into());
    chain.slice(payload, 0..LEN);
    l.ring.send(id, chain, Token(1));
    drop(l.sent());
    if l.ring.held(id) == 0 {
        return eprintln!("not tested: this kernel has no sends without a copy that report");
    }
    assert_eq!(handle.lent(), 1);
    l.ring.close_socket(id);
    l.ring.reset_closed(|payload| matches!(payload, Payload::Buf(_)));
    assert!(l.poll().is_none());
    assert!(l.ring.is_sending(id, |payload| matches!(payload, Payload::Mapped(_))));
    let closed = Instant::now();
    l.ring.reset_closed(|payload| matches!(payload, Payload::Mapped(_)));
    until(&mut l, |_| handle.lent() == 0);
    assert!(closed.elapsed() < Duration::from_secs(2), "it was not the time limit that ended it");
    drop((handle, peer));
    assert!(is_given_back(&region));
}

fn the_end_of_the_loop_waits_for_the_kernel(config: Config) {
    let (mut peer, ours) = pair();
    let region = Arc::new(Region::new(1 << 20).expect("memory"));
    let handle = RegionRef::new(region.clone());
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let mut chain = TxChain::new();
    let payload = chain.payload(handle.map(0..LEN as u64).into());
    chain.slice(payload, 0..LEN);
    l.ring.send(id, chain, Token(1));
    drop(l.sent());
    let is_held = l.ring.held(id) > 0;
    drop(handle);
    drop(l);
    assert!(is_given_back(&region));
    if is_held {
        assert_eq!(reset(&mut peer), io::ErrorKind::ConnectionReset);
    }
}

fn sockets_that_cannot_make_ordinary_sends(config: Config) {
    let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let data = pattern(LEN, 1);
    for _ in 0..3 {
        l.ring.send(id, answer(&l, &data), Token(1));
        let (mut all, expected) = (vec![0; 48 + LEN], data.clone());
        let mut reads = peer.try_clone().expect("a copy");
        let reader = thread::spawn(move || {
            reads.read_exact(&mut all).expect("it comes");
            assert!(all[48..] == *expected, "other bytes came");
        });
        let (_, mut chain, result) = l.sent();
        assert_eq!((result, chain.len()), (Ok(()), 48 + LEN));
        chain.clear();
        reader.join().expect("the bytes are right");
    }
    until(&mut l, |l| l.all_free());
    assert_eq!(l.ring.counters().zero_copy_copied_bytes, 0);
    l.ring.close_socket(id);
    assert!(l.poll().is_none());
    assert_eq!(peer.read(&mut [0]).expect("closed"), 0);
}

fn none_is_made_unless_it_is_asked_for(config: Config) {
    let (peer, ours) = pair();
    for config in [
        Config { zero_copy_send: false, ..config.clone() },
        Config { driver: DriverChoice::Epoll, ..config },
    ] {
        let mut l = Loop::new(&config);
        let id = l.add(ours.try_clone().expect("a copy"));
        let mut small = answer(&l, &pattern(64 << 10, 1));
        small.bytes(b"end");
        l.ring.send(id, small, Token(1));
        assert!(!l.sent().1.is_empty());
        assert_eq!(l.ring.held(id), 0);
        assert_eq!(l.ring.counters().zero_copy_copied_bytes, 0);
        assert!(matches!(l.ring.driver(), Driver::IoUring | Driver::Epoll));
    }
    drop(peer);
}

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        mod io_uring {
            $(#[test]
            fn $name() {
                super::test(super::$name);
            })*
        }
    };
}

tests!(
    what_is_copied_goes_over_to_ordinary_sends,
    what_the_peer_has_not_taken_stays_as_it_is,
    a_chain_of_many_messages_is_held_until_the_last,
    what_is_held_arrives_after_a_close,
    a_peer_that_takes_nothing_is_reset_after_a_close,
    an_abort_has_the_kernel_let_go,
    who_waits_for_a_closed_socket_resets_it,
    the_end_of_the_loop_waits_for_the_kernel,
    sockets_that_cannot_make_ordinary_sends,
    none_is_made_unless_it_is_asked_for,
);
