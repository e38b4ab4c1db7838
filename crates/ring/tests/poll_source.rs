//! A poll source of the event loop: when it is polled, and what comes of it, on both drivers.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use common::Loop;
use lunet_ring::{BusyPoll, Config, Event, PollSource, Token, WatchId};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// Counts how often it was asked, and answers as a test has it.
#[derive(Default)]
struct Source {
    looks: u32,
    rests: u32,
    /// Which look finds something.
    found_by_look: Option<u32>,
    found_by_rest: bool,
    /// What is to be watched again, once.
    again: Option<WatchId>,
    /// Is told of each rest.
    resting: Option<Sender<()>>,
}

impl PollSource for Source {
    fn poll(&mut self) -> bool {
        self.looks += 1;
        self.found_by_look == Some(self.looks)
    }

    fn before_sleep(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool {
        self.rests += 1;
        self.again.take().into_iter().for_each(watch);
        if let Some(resting) = &self.resting {
            resting.send(()).expect("somebody listens");
        }
        self.found_by_rest
    }
}

/// One wait, and what came of it. False if it took as long as it may.
fn wait(l: &mut Loop, limit: Duration, source: &mut Source) -> (Vec<Event>, bool) {
    let (begun, mut events) = (Instant::now(), Vec::new());
    l.ring.wait_with(Some(limit), &mut events, source).expect("the kernel waits");
    (events, begun.elapsed() < limit)
}

fn what_is_found_before_a_sleep_ends_the_wait(config: Config) {
    let mut l = Loop::new(&config);
    let mut source = Source { found_by_rest: true, ..Source::default() };
    for wait_number in 1..=2 {
        let (events, at_once) = wait(&mut l, LONG, &mut source);
        assert!(events.is_empty() && at_once, "it slept: {events:?}");
        assert_eq!(source.rests, wait_number);
    }
}

fn what_a_rest_hands_over_is_watched_again(config: Config) {
    let mut l = Loop::new(&config);
    let (reader, mut writer) = UnixStream::pair().expect("a socket pair");
    let id = l.ring.watch(reader.into(), Token(7)).expect("a watch");
    writer.write_all(b"a").expect("a socket pair");
    assert!(matches!(l.next(), Event::Readable { token: Token(7) }));
    // It is readable still, and told of only because it is watched again.
    assert!(l.poll().is_none(), "it was told already");
    let mut source = Source { again: Some(id), ..Source::default() };
    let (events, at_once) = wait(&mut l, LONG, &mut source);
    assert!(matches!(events[..], [Event::Readable { token: Token(7) }]), "{events:?}");
    assert!(at_once);
}

fn with_nothing_found_the_loop_sleeps_until_an_event_comes(config: Config) {
    let mut l = Loop::new(&config);
    let (mut reader, mut writer) = UnixStream::pair().expect("a socket pair");
    let watched = reader.try_clone().expect("a descriptor");
    let id = l.ring.watch(watched.into(), Token(7)).expect("a watch");
    // Something comes only once the source was asked to rest.
    let (resting, rests) = mpsc::channel();
    let peer = std::thread::spawn(move || {
        rests.iter().for_each(|()| writer.write_all(b"x").expect("a socket pair"));
    });
    let mut source = Source { resting: Some(resting), ..Source::default() };
    for wait_number in 1..=3 {
        let (events, at_once) = wait(&mut l, LONG, &mut source);
        assert!(matches!(events[..], [Event::Readable { token: Token(7) }]), "{events:?}");
        assert!(at_once);
        assert_eq!(source.rests, wait_number, "once for each wait");
        reader.read_exact(&mut [0; 1]).expect("what was written");
        source.again = Some(id);
    }
    drop(source);
    peer.join().expect("it ends");
}

fn a_wait_for_nothing_takes_its_time_and_rests_once(config: Config) {
    let mut l = Loop::new(&config);
    // Something that wakes the kernel's wait, and is no event: nobody receives.
    let (socket, mut peer) = UnixStream::pair().expect("a socket pair");
    l.add(socket);
    peer.write_all(b"x").expect("a socket pair");
    let mut source = Source::default();
    let (events, early) = wait(&mut l, Duration::from_millis(30), &mut source);
    assert!(events.is_empty() && !early, "{events:?}");
    assert_eq!((source.looks, source.rests), (0, 1));
}

fn a_source_that_always_finds_something_keeps_no_event_back(config: Config) {
    let mut l = Loop::new(&config);
    let (reader, mut writer) = UnixStream::pair().expect("a socket pair");
    l.ring.watch(reader.into(), Token(7)).expect("a watch");
    let mut source = Source { found_by_rest: true, ..Source::default() };
    // The watch begins.
    wait(&mut l, LONG, &mut source);
    writer.write_all(b"a").expect("a socket pair");
    let begun = Instant::now();
    loop {
        let (events, _) = wait(&mut l, LONG, &mut source);
        if let [Event::Readable { token: Token(7) }] = events[..] {
            break;
        }
        assert!(events.is_empty() && begun.elapsed() < LONG, "{events:?}");
    }
}

fn busy_polling_looks_until_something_is_found(config: Config) {
    // As long as nothing can use up, so that only a find ends it.
    let busy = config.busy_poll != BusyPoll::OFF;
    let busy_poll = if busy { BusyPoll::For(LONG * 2) } else { BusyPoll::OFF };
    let mut l = Loop::new(&Config { busy_poll, ..config });
    // A loop polls busily after something has happened.
    let mut source = Source { found_by_rest: true, found_by_look: Some(3), ..Source::default() };
    wait(&mut l, LONG, &mut source);
    assert_eq!((source.looks, source.rests), (0, 1));
    let (events, at_once) = wait(&mut l, LONG, &mut source);
    assert!(events.is_empty() && at_once, "it found nothing: {events:?}");
    let expected = if busy { (3, 1) } else { (0, 2) };
    assert_eq!((source.looks, source.rests), expected);
    // What was found keeps it awake.
    source.found_by_look = Some(source.looks + 1);
    wait(&mut l, LONG, &mut source);
    assert_eq!((source.looks, source.rests), if busy { (4, 1) } else { (0, 3) });
}

for_each_driver!(
    what_is_found_before_a_sleep_ends_the_wait,
    what_a_rest_hands_over_is_watched_again,
    with_nothing_found_the_loop_sleeps_until_an_event_comes,
    a_wait_for_nothing_takes_its_time_and_rests_once,
    a_source_that_always_finds_something_keeps_no_event_back,
    busy_polling_looks_until_something_is_found,
);
