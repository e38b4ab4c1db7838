//! Sockets, on both drivers.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Loop, is_open, link_of, pattern, plain, scratch, split};
use lunet_ring::{Config, Event, Payload, Region, RegionRef, Token, TxChain, has_tls};

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (b, _) = listener.accept().expect("loopback");
    (a, b)
}

fn unix_pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a socket pair")
}

fn a_receive_fills_the_payload_range_first_and_then_the_scratch_bytes(config: Config) {
    let (mut peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let data = pattern(100, 1);
    peer.write_all(&data).expect("loopback");
    let buf = l.blank(64);
    l.ring.recv(id, split(buf, 10..40, 50), Token(7));
    let (token, mut bufs, result) = l.received();
    assert_eq!((token, result), (Token(7), Ok(80)));
    let (buf, range) = bufs.payload.take().expect("the payload comes back");
    assert_eq!(range, 10..40);
    assert_eq!(buf[10..40], data[..30]);
    assert!(buf[..10].iter().chain(&buf[40..]).all(|b| *b == 0), "outside of the range");
    assert_eq!(bufs.scratch[..50], data[30..80]);

    l.ring.recv(id, bufs, Token(8));
    let (_, bufs, result) = l.received();
    assert_eq!(result, Ok(20));
    assert_eq!(bufs.scratch[..20], data[80..]);

    peer.write_all(&data).expect("loopback");
    l.ring.recv(id, split(buf, 0..64, 0), Token(9));
    let (_, bufs, result) = l.received();
    assert_eq!(result, Ok(64));
    assert_eq!(bufs.payload.expect("the payload comes back").0[..], data[..64]);
    l.ring.recv(id, scratch(200), Token(10));
    assert_eq!(l.received().2, Ok(36));
}

fn what_is_thrown_away_is_counted_and_what_follows_is_kept(config: Config) {
    const LEN: usize = 3 << 20;
    let (mut peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    l.ring.discard_recv(id, LEN, Token(1));
    assert!(l.poll().is_none(), "nothing was sent yet");
    let writer = thread::spawn(move || {
        peer.write_all(&vec![1; LEN]).expect("loopback");
        peer.write_all(b"kept").expect("loopback");
        peer
    });
    let mut left = LEN;
    while left > 0 {
        let (token, bufs, result) = l.received();
        let n = result.expect("received");
        assert_eq!((token, bufs.room()), (Token(1), 0));
        assert!((1..=left).contains(&n), "{n} of {left}");
        left -= n;
        if left > 0 {
            l.ring.discard_recv(id, left, Token(1));
        }
    }
    l.ring.recv(id, scratch(100), Token(2));
    let (_, bufs, result) = l.received();
    assert_eq!((result, &bufs.scratch[..4]), (Ok(4), &b"kept"[..]));
    drop(writer.join().expect("the writer ends"));
    l.ring.discard_recv(id, 1, Token(3));
    assert_eq!(l.received().2, Ok(0), "the end of the stream");
    l.ring.discard_recv(id, 0, Token(4));
    assert_eq!(l.received().2, Err(libc::EINVAL));
    l.ring.discard_recv(id, 1, Token(5));
    l.ring.recv(id, scratch(1), Token(6));
    let ends = [l.received(), l.received()].map(|(token, _, result)| (token.0, result));
    assert!(ends.contains(&(6, Err(libc::EBUSY))), "{ends:?}");
}

fn a_receive_waits_for_data_that_comes_later(config: Config) {
    let (mut peer, ours) = tcp_pair();
    ours.set_nonblocking(true).expect("a socket");
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    for round in 0..20u8 {
        l.ring.recv(id, scratch(16), Token(0));
        assert!(l.poll().is_none(), "nothing was sent yet");
        peer.write_all(&[round; 5]).expect("loopback");
        let (_, bufs, result) = l.received();
        assert_eq!((result, &bufs.scratch[..5]), (Ok(5), &[round; 5][..]));
    }
}

fn a_long_chain_reaches_a_slow_reader_whole(config: Config) {
    const PIECES: usize = 5000;
    let (mut peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let region = RegionRef::new(Arc::new(Region::new(1 << 20).expect("memory")));
    let data = pattern(1 << 20, 2);
    region.region().write(0, &data);
    let mut chain = TxChain::new();
    let mapped = chain.payload(Payload::from(region.map(0..1 << 20)));
    let buffer = chain.payload(Payload::from(l.buf(&data[..100_000])));
    let vector = chain.payload(Payload::from(data[..50_000].to_vec()));
    let mut expected = Vec::new();
    for i in 0..PIECES {
        let header = (i as u64).to_be_bytes();
        chain.bytes(&header);
        expected.extend_from_slice(&header);
        let (id, len) = [(mapped, 1 << 20), (buffer, 100_000), (vector, 50_000)][i % 3];
        let start = i * 7919 % (len - 3000);
        let range = start..start + 1 + i % 3000;
        chain.slice(id, range.clone());
        expected.extend_from_slice(&data[range]);
    }
    assert_eq!(chain.len(), expected.len());
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let mut piece = [0; 3001];
        loop {
            match peer.read(&mut piece).expect("loopback") {
                0 => return all,
                n => all.extend_from_slice(&piece[..n]),
            }
        }
    });
    l.ring.send(id, chain, Token(1));
    let (token, mut chain, result) = l.sent();
    assert_eq!((token, result), (Token(1), Ok(())));
    assert!(l.ring.counters().partial_sends > 0, "the chain is longer than one message");
    chain.clear();
    assert!(l.all_free());
    l.ring.close_socket(id);
    assert!(l.poll().is_none());
    assert!(reader.join().expect("the reader") == expected, "the bytes differ");
}

fn what_the_peer_has_taken_in_is_known(config: Config) {
    let (mut peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let before = l.ring.delivery(id).expect("a TCP socket").bytes;
    l.ring.send(id, plain(&pattern(5000, 3)), Token(1));
    assert_eq!(l.sent().2, Ok(()));
    peer.read_exact(&mut [0; 5000]).expect("loopback");
    // The acknowledgement may come a little later.
    let deadline = Instant::now() + Duration::from_secs(20);
    while l.ring.delivery(id).expect("a TCP socket").bytes != before + 5000 {
        assert!(Instant::now() < deadline, "{:?}", l.ring.delivery(id));
    }
    assert!(l.ring.delivery(id).expect("a TCP socket").ago < Duration::from_secs(20));
    l.ring.close_socket(id);
    let other = l.add(unix_pair().0);
    assert_eq!((l.ring.delivery(id), l.ring.delivery(other)), (None, None));
}

/// What TLS_TX and TLS_RX take for AES-128-GCM of TLS 1.3: version, cipher, nonce, key, salt and number of the record.
fn tls_key(byte: u8) -> Vec<u8> {
    let head = [0x0304_u16.to_ne_bytes(), 51_u16.to_ne_bytes()].concat();
    [&head[..], &[byte; 8 + 16 + 4], &[0; 8]].concat()
}

/// Where the kernel has no TLS, it says so and nothing else changes.
fn the_kernel_protects_what_both_ends_send(config: Config) {
    let (a, b) = tcp_pair();
    let (mut near, mut far) = (Loop::new(&config), Loop::new(&config));
    let (near_id, far_id) = (near.add(a), far.add(b));
    let keys = (tls_key(1), tls_key(2));
    let done = near.ring.secure(near_id, &keys.0, &keys.1);
    assert_eq!(done.is_ok(), has_tls().is_ok());
    if done.is_err() {
        eprintln!("the kernel has no TLS: not tested");
        return;
    }
    far.ring.secure(far_id, &keys.1, &keys.0).expect("the kernel has TLS");
    // More than a record, in pieces.
    let data = pattern(100_000, 5);
    let mut chain = plain(&data[..70_000]);
    let payload = chain.payload(Payload::Bytes(data[70_000..].to_vec()));
    chain.slice(payload, 0..30_000);
    near.ring.send(near_id, chain, Token(1));
    let mut taken = Vec::new();
    while taken.len() < data.len() {
        near.iterate(Some(Duration::ZERO));
        far.ring.recv(far_id, scratch(20_000), Token(2));
        let bufs = loop {
            near.iterate(Some(Duration::ZERO));
            if let Some(event) = far.poll() {
                break event;
            }
        };
        let Event::Received { bufs, result, .. } = bufs else { panic!("{bufs:?}") };
        taken.extend_from_slice(&bufs.scratch[..result.expect("data")]);
    }
    assert!(taken == data);
    assert_eq!(near.sent().2, Ok(()));
}

fn the_end_of_the_stream_follows_the_last_bytes(config: Config) {
    for (mut peer, ours) in (0..20).map(|_| tcp_pair()) {
        let mut l = Loop::new(&config);
        let id = l.add(ours);
        l.ring.recv(id, scratch(100), Token(0));
        assert!(l.poll().is_none());
        peer.write_all(b"last words").expect("loopback");
        peer.shutdown(Shutdown::Write).expect("loopback");
        assert_eq!(l.received().2, Ok(10));
        l.ring.recv(id, scratch(100), Token(0));
        assert_eq!(l.received().2, Ok(0));
        // The other direction still works.
        l.ring.send(id, plain(b"answer"), Token(1));
        assert_eq!(l.sent().2, Ok(()));
        let mut answer = [0; 6];
        peer.read_exact(&mut answer).expect("loopback");
        assert_eq!(&answer, b"answer");
    }
}

fn sending_to_a_peer_that_is_gone_is_an_error(config: Config) {
    let (peer, ours) = unix_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    drop(peer);
    l.ring.send(id, plain(b"anyone?"), Token(3));
    let (token, chain, result) = l.sent();
    assert_eq!((token, chain.len(), result), (Token(3), 7, Err(libc::EPIPE)));
    l.ring.recv(id, scratch(10), Token(4));
    assert_eq!(l.received().2, Ok(0));
}

fn closing_ends_operations_in_flight_and_frees_the_descriptor(config: Config) {
    let (peer, ours) = unix_pair();
    let link = link_of(&ours);
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let buf = l.blank(4096);
    l.ring.recv(id, split(buf, 0..4096, 10), Token(1));
    let mut chain = TxChain::new();
    let payload = chain.payload(l.blank(1 << 20).into());
    (0..16).for_each(|_| chain.slice(payload, 0..1 << 20));
    l.ring.send(id, chain, Token(2));
    assert!(l.poll().is_none(), "nothing to receive, and no room for all that is to be sent");
    assert!(is_open(&link));
    l.ring.close_socket(id);
    l.ring.close_socket(id);
    let mut seen = Vec::new();
    for _ in 0..2 {
        match l.next() {
            Event::Received { token, result, .. } => {
                assert_eq!(result, Err(libc::ECANCELED));
                seen.push(token.0);
            }
            Event::Sent { token, result, .. } => {
                assert_eq!(result, Err(libc::ECANCELED));
                seen.push(token.0);
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2]);
    assert!(!is_open(&link), "the descriptor is closed after the last operation");
    assert!(l.all_free());
    drop(peer);
}

fn a_socket_that_is_aborted_resets_its_connection_and_sends_no_more(config: Config) {
    const LEN: usize = 16 << 20;
    let (mut peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let mut chain = TxChain::new();
    let payload = chain.payload(l.blank(1 << 20).into());
    (0..16).for_each(|_| chain.slice(payload, 0..1 << 20));
    l.ring.send(id, chain, Token(1));
    assert!(l.poll().is_none(), "no room for all that is to be sent");
    // Bytes that stay unread.
    peer.write_all(&pattern(100, 1)).expect("loopback");
    l.ring.abort_socket(id);
    l.ring.abort_socket(id);
    assert_eq!(l.sent().2, Err(libc::ECANCELED));
    let mut taken = 0;
    let end = loop {
        match peer.read(&mut vec![0; 1 << 16]) {
            Ok(0) => panic!("the end was told in good order, after {taken} bytes"),
            Ok(n) => taken += n,
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(end, std::io::ErrorKind::ConnectionReset);
    assert!(taken < LEN, "all was sent");
    // What went out without a copy comes back a little later.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !l.all_free() {
        assert!(Instant::now() < deadline, "{:?}", l.ring.arena());
        l.iterate(Some(Duration::from_millis(10)));
    }
}

fn closing_before_the_first_wait_loses_no_operation(config: Config) {
    let (_peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    l.ring.recv(id, scratch(10), Token(1));
    l.ring.close_socket(id);
    l.ring.recv(id, scratch(10), Token(2));
    let mut ends = [l.received(), l.received()];
    ends.sort_by_key(|(token, ..)| token.0);
    assert_eq!((ends[0].0, ends[0].2), (Token(1), Err(libc::ECANCELED)));
    assert!(ends[1].2.is_err());
    assert!(l.poll().is_none());
}

fn the_number_of_a_closed_socket_is_never_valid_again(config: Config) {
    let (_peer, ours) = tcp_pair();
    let (mut peer, second) = tcp_pair();
    let mut l = Loop::new(&config);
    let old = l.add(ours);
    l.ring.close_socket(old);
    let new = l.add(second);
    assert_ne!(old, new);
    l.ring.close_socket(old);
    l.ring.recv(old, scratch(10), Token(1));
    assert_eq!(l.received().2, Err(libc::EBADF));
    l.ring.send(old, plain(b"x"), Token(2));
    assert_eq!(l.sent().2, Err(libc::EBADF));
    l.ring.recv(new, scratch(10), Token(3));
    peer.write_all(b"hello").expect("loopback");
    assert_eq!(l.received().2, Ok(5));
}

fn what_cannot_be_done_is_refused_and_the_buffers_come_back(config: Config) {
    let (_peer, ours) = tcp_pair();
    let mut l = Loop::new(&config);
    let id = l.add(ours);
    let mut too_long = scratch(10);
    too_long.scratch_limit = 11;
    let beyond = split(l.blank(10), 5..11, 0);
    for bufs in [scratch(0), too_long, beyond] {
        l.ring.recv(id, bufs, Token(1));
        assert_eq!(l.received().2, Err(libc::EINVAL));
    }
    l.ring.recv(id, scratch(10), Token(2));
    l.ring.recv(id, scratch(10), Token(3));
    let (token, _, result) = l.received();
    assert_eq!((token, result), (Token(3), Err(libc::EBUSY)));
    l.ring.send(id, TxChain::new(), Token(4));
    assert_eq!(l.sent().2, Ok(()), "an empty chain is sent at once");
    assert!(l.all_free());
}

fn many_sockets_on_a_short_queue_lose_nothing(config: Config) {
    const SOCKETS: usize = 100;
    let mut l = Loop::new(&Config { entries: 8, ..config });
    let pairs: Vec<_> = (0..SOCKETS)
        .map(|_| {
            let (a, b) = unix_pair();
            (l.add(a), l.add(b))
        })
        .collect();
    for round in 0..10u64 {
        for (i, (a, b)) in pairs.iter().enumerate() {
            let seed = round * 1000 + i as u64;
            l.ring.recv(*b, scratch(1000), Token(i as u64));
            l.ring.send(*a, plain(&pattern(1 + i * 9, seed)), Token(u64::MAX));
        }
        let (mut received, mut sent) = (0, 0);
        while received < SOCKETS || sent < SOCKETS {
            match l.next() {
                Event::Received { token: Token(i), bufs, result } => {
                    let expected = pattern(1 + i as usize * 9, round * 1000 + i);
                    assert_eq!(result, Ok(expected.len()));
                    assert_eq!(bufs.scratch[..expected.len()], expected);
                    received += 1;
                }
                Event::Sent { result, .. } => {
                    assert_eq!(result, Ok(()));
                    sent += 1;
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
}

for_each_driver!(
    a_receive_fills_the_payload_range_first_and_then_the_scratch_bytes,
    what_is_thrown_away_is_counted_and_what_follows_is_kept,
    a_receive_waits_for_data_that_comes_later,
    a_long_chain_reaches_a_slow_reader_whole,
    what_the_peer_has_taken_in_is_known,
    the_kernel_protects_what_both_ends_send,
    the_end_of_the_stream_follows_the_last_bytes,
    sending_to_a_peer_that_is_gone_is_an_error,
    closing_ends_operations_in_flight_and_frees_the_descriptor,
    a_socket_that_is_aborted_resets_its_connection_and_sends_no_more,
    closing_before_the_first_wait_loses_no_operation,
    the_number_of_a_closed_socket_is_never_valid_again,
    what_cannot_be_done_is_refused_and_the_buffers_come_back,
    many_sockets_on_a_short_queue_lose_nothing,
);
