//! Descriptors of others that the event loop watches, on both drivers.

mod common;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Loop, is_open, link_of};
use lunet_ring::{Config, Event, Token};

/// The reader's end, and one that writes to it.
fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a socket pair")
}

fn duplicate(stream: &UnixStream) -> OwnedFd {
    stream.try_clone().expect("a descriptor").into()
}

fn readable(l: &mut Loop) -> Token {
    match l.next() {
        Event::Readable { token } => token,
        other => panic!("expected a readable descriptor: {other:?}"),
    }
}

fn what_becomes_readable_is_told_once_until_it_is_asked_for_again(config: Config) {
    let mut l = Loop::new(&config);
    let (mut reader, mut writer) = pair();
    let id = l.ring.watch(duplicate(&reader), Token(7)).expect("a watch");
    assert!(l.poll().is_none(), "nothing to read yet");
    writer.write_all(b"ab").expect("a socket pair");
    assert_eq!(readable(&mut l), Token(7));
    writer.write_all(b"c").expect("a socket pair");
    assert!(l.poll().is_none(), "it was told already");
    // What is left unread is told at once.
    reader.read_exact(&mut [0; 2]).expect("two bytes");
    l.ring.watch_again(id);
    assert_eq!(readable(&mut l), Token(7));
    reader.read_exact(&mut [0; 1]).expect("the third byte");
    l.ring.watch_again(id);
    assert!(l.poll().is_none(), "everything was read");
    // The end of the other side is something to read as well.
    drop(writer);
    assert_eq!(readable(&mut l), Token(7));
}

fn watched_descriptors_are_told_apart(config: Config) {
    let mut l = Loop::new(&config);
    let mut ends: Vec<_> = (0..8).map(|_| pair()).collect();
    for (at, (reader, _)) in ends.iter().enumerate() {
        l.ring.watch(duplicate(reader), Token(at as u64)).expect("a watch");
    }
    for at in [5usize, 0, 7] {
        ends[at].1.write_all(b"x").expect("a socket pair");
        assert_eq!(readable(&mut l), Token(at as u64));
    }
    assert!(l.poll().is_none());
}

fn what_is_let_go_is_closed_and_not_told_of(config: Config) {
    let mut l = Loop::new(&config);
    // One that waits, and one that has been told of.
    for told in [false, true] {
        let (reader, mut writer) = pair();
        let link = link_of(&reader);
        let id = l.ring.watch(reader.into(), Token(1)).expect("a watch");
        assert!(l.poll().is_none());
        if told {
            writer.write_all(b"x").expect("a socket pair");
            readable(&mut l);
        }
        l.ring.unwatch(id);
        l.ring.unwatch(id);
        l.ring.watch_again(id);
        // A cancellation ends within a few iterations and reports nothing.
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_open(&link) {
            assert!(Instant::now() < deadline, "the descriptor was not closed");
            assert!(l.poll().is_none());
        }
        assert!(l.poll().is_none());
    }
}

fn dropping_the_loop_closes_what_it_watches(config: Config) {
    let (waits, told) = (pair(), pair());
    let links = [link_of(&waits.0), link_of(&told.0)];
    let mut l = Loop::new(&config);
    l.ring.watch(waits.0.into(), Token(1)).expect("a watch");
    l.ring.watch(told.0.into(), Token(2)).expect("a watch");
    let mut writer = told.1;
    writer.write_all(b"x").expect("a socket pair");
    assert_eq!(readable(&mut l), Token(2));
    drop(l);
    assert!(links.iter().all(|link| !is_open(link)));
}

for_each_driver!(
    what_becomes_readable_is_told_once_until_it_is_asked_for_again,
    watched_descriptors_are_told_apart,
    what_is_let_go_is_closed_and_not_told_of,
    dropping_the_loop_closes_what_it_watches,
);
