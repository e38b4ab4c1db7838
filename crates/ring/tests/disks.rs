//! Files, on both drivers.

mod common;

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use common::{Loop, add, is_given_back, pattern, with};
use lunet_ring::{Config, DriverChoice, Event, Token};

fn file(len: u64) -> Arc<File> {
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(len).expect("a sparse file");
    Arc::new(file)
}

fn what_was_written_is_read_back(config: Config) {
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, file(1 << 20));
    let data = pattern(10_000, 3);
    let buf = l.buf(&data);
    l.ring.write(id, 4096, buf, 1000..9000, Token(1));
    let (token, buf, result) = l.disk();
    assert_eq!((token, result), (Token(1), Ok(8000)));
    l.ring.sync_data(id, Token(2));
    let (token, none, result) = l.disk();
    assert_eq!((token, none.is_none(), result), (Token(2), true, Ok(0)));
    let mut buf = buf.expect("the buffer comes back");
    buf.fill(0);
    l.ring.read(id, 4096, buf, 9000, Token(3));
    let (_, buf, result) = l.disk();
    let buf = buf.expect("the buffer comes back");
    assert_eq!(result, Ok(9000));
    assert_eq!(buf[..8000], data[1000..9000]);
    assert_eq!(buf[8000..9000], [0; 1000], "behind what was written");
    drop(buf);
    assert!(l.all_free());
}

fn a_read_at_the_end_is_short(config: Config) {
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, file(5000));
    let buf = l.blank(4096);
    l.ring.read(id, 4096, buf, 4096, Token(1));
    assert_eq!(l.disk().2, Ok(904));
    let buf = l.blank(4096);
    l.ring.read(id, 8192, buf, 4096, Token(1));
    assert_eq!(l.disk().2, Ok(0));
}

fn holes_and_zeroes_read_as_zeroes_and_keep_the_size(config: Config) {
    const LEN: usize = 1 << 20;
    let file = file(LEN as u64);
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, Arc::clone(&file));
    let buf = l.buf(&vec![0xAA; LEN]);
    l.ring.write(id, 0, buf, 0..LEN, Token(0));
    let (_, buf, result) = l.disk();
    assert_eq!(result, Ok(LEN));
    l.ring.sync_data(id, Token(0));
    assert_eq!(l.disk().2, Ok(0));
    let full = file.metadata().expect("metadata").blocks();
    l.ring.punch_hole(id, 4096, 256 << 10, Token(0));
    assert_eq!(l.disk().2, Ok(0));
    let left = file.metadata().expect("metadata").blocks();
    assert_eq!(full - left, (256 << 10) / 512, "the space came back");
    l.ring.zero_range(id, 512 << 10, 8192, Token(0));
    match l.disk().2 {
        Ok(0) => {}
        Err(libc::EOPNOTSUPP) => return, // tmpfs and others
        other => panic!("zeroing: {other:?}"),
    }
    l.ring.read(id, 0, buf.expect("the buffer comes back"), LEN, Token(0));
    let (_, buf, result) = l.disk();
    assert_eq!(result, Ok(LEN));
    for (at, byte) in buf.expect("the buffer comes back").iter().enumerate() {
        let zero = (4096..4096 + (256 << 10)).contains(&at)
            || (512 << 10..(512 << 10) + 8192).contains(&at);
        assert_eq!(*byte, if zero { 0 } else { 0xAA }, "at {at}");
    }
    assert_eq!(file.metadata().expect("metadata").len(), LEN as u64);
}

fn errors_of_the_system_are_reported(config: Config) {
    let mut l = Loop::new(&config);
    let path = tempfile::NamedTempFile::new().expect("a temporary file");
    let read_only = add(&mut l.ring, Arc::new(File::open(path.path()).expect("readable")));
    let buf = l.blank(4096);
    l.ring.write(read_only, 0, buf, 0..4096, Token(1));
    let (token, buf, result) = l.disk();
    assert_eq!((token, result), (Token(1), Err(libc::EBADF)));
    let full = OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let full = add(&mut l.ring, Arc::new(full));
    l.ring.write(full, 0, buf.expect("the buffer comes back"), 0..512, Token(2));
    assert_eq!(l.disk().2, Err(libc::ENOSPC));
    l.ring.punch_hole(full, 0, 4096, Token(3));
    assert!(l.disk().2.is_err(), "a character device has no holes");
    l.ring.punch_hole(read_only, 0, 4096, Token(4));
    assert_eq!(l.disk().2, Err(libc::EBADF));
    assert!(l.all_free());
}

fn transfers_outside_of_the_buffer_are_refused(config: Config) {
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, file(4096));
    let buf = l.blank(100);
    l.ring.read(id, 0, buf, 101, Token(1));
    assert_eq!(l.disk().2, Err(libc::EINVAL));
    let buf = l.blank(100);
    l.ring.write(id, 0, buf, 50..101, Token(2));
    assert_eq!(l.disk().2, Err(libc::EINVAL));
    let buf = l.blank(100);
    l.ring.read(id, u64::MAX - 10, buf, 100, Token(3));
    assert_eq!(l.disk().2, Err(libc::EINVAL));
    l.ring.punch_hole(id, i64::MAX as u64, 1, Token(4));
    assert_eq!(l.disk().2, Err(libc::EINVAL));
}

fn many_operations_on_a_short_queue_lose_nothing(config: Config) {
    const COUNT: u64 = 500;
    let mut l = Loop::new(&Config { entries: 8, ..config });
    let id = add(&mut l.ring, file(0));
    for i in 0..COUNT {
        let buf = l.buf(&pattern(4096, i));
        l.ring.write(id, i * 4096, buf, 0..4096, Token(i));
    }
    for _ in 0..COUNT {
        assert_eq!(l.disk().2, Ok(4096));
    }
    for i in 0..COUNT {
        let buf = l.blank(4096);
        l.ring.read(id, i * 4096, buf, 4096, Token(i));
    }
    let mut seen = vec![false; COUNT as usize];
    for _ in 0..COUNT {
        let (Token(i), buf, result) = l.disk();
        assert_eq!(result, Ok(4096));
        assert_eq!(buf.expect("the buffer comes back")[..], pattern(4096, i));
        assert!(!std::mem::replace(&mut seen[i as usize], true), "{i} ended twice");
    }
    assert!(l.all_free());
}

fn an_operation_that_is_cancelled_ends_once(config: Config) {
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, file(1 << 20));
    for i in 0..50 {
        let buf = l.blank(4096);
        l.ring.read(id, 0, buf, 4096, Token(i));
    }
    for i in (0..50).step_by(2) {
        l.ring.cancel(Token(i));
    }
    l.ring.cancel(Token(1000));
    let mut ended: Vec<u64> = (0..50)
        .map(|_| {
            let (Token(i), _, result) = l.disk();
            assert!(result == Ok(4096) || (i % 2 == 0 && result == Err(libc::ECANCELED)));
            i
        })
        .collect();
    ended.sort_unstable();
    assert!(ended.into_iter().eq(0..50));
    assert!(l.poll().is_none());
    assert!(l.all_free());
}

for_each_driver!(
    what_was_written_is_read_back,
    a_read_at_the_end_is_short,
    holes_and_zeroes_read_as_zeroes_and_keep_the_size,
    errors_of_the_system_are_reported,
    transfers_outside_of_the_buffer_are_refused,
    many_operations_on_a_short_queue_lose_nothing,
    an_operation_that_is_cancelled_ends_once,
);

/// Both ends of a stream: a read of an empty one stays in flight on io_uring.
fn stream() -> (Arc<File>, UnixStream) {
    let (reader, writer) = UnixStream::pair().expect("a socket pair");
    (Arc::new(File::from(OwnedFd::from(reader))), writer)
}

#[test]
fn io_uring_cancels_what_the_kernel_is_waiting_for() {
    with(DriverChoice::IoUring, 0, |config| {
        let (reader, _writer) = stream();
        let mut l = Loop::new(&config);
        let id = add(&mut l.ring, reader);
        let (first, second) = (l.blank(4096), l.blank(4096));
        l.ring.read(id, 0, first, 4096, Token(1));
        l.ring.read(id, 0, second, 4096, Token(2));
        assert!(l.poll().is_none());
        l.ring.cancel(Token(2));
        let (token, buf, result) = l.disk();
        assert_eq!((token, result), (Token(2), Err(libc::ECANCELED)));
        drop(buf);
        assert!(l.poll().is_none(), "the other one goes on");
    });
}

#[test]
fn epoll_cancels_what_no_thread_has_begun() {
    with(DriverChoice::Epoll, 0, |config| {
        let mut l = Loop::new(&config);
        let id = add(&mut l.ring, file(4096));
        let buf = l.blank(4096);
        l.ring.read(id, 0, buf, 4096, Token(1));
        l.ring.cancel(Token(1));
        assert_eq!(l.disk().2, Err(libc::ECANCELED));
        assert!(l.all_free());
    });
}

#[test]
fn io_uring_lets_go_of_all_memory_when_it_is_dropped() {
    with(DriverChoice::IoUring, 0, |config| {
        let (reader, _writer) = stream();
        let mut l = Loop::new(&config);
        let arena = l.ring.arena().clone();
        let id = add(&mut l.ring, Arc::clone(&reader));
        for i in 0..20 {
            let buf = l.blank(4096);
            l.ring.read(id, 0, buf, 4096, Token(i));
        }
        assert!(l.poll().is_none());
        assert_eq!(arena.free_bytes(), arena.total_bytes() - 20 * 4096);
        drop(l);
        assert_eq!(arena.free_bytes(), arena.total_bytes());
        assert!(is_given_back(&reader), "the file was given back");
    });
}

#[test]
fn epoll_lets_go_of_all_memory_when_it_is_dropped() {
    with(DriverChoice::Epoll, 0, |config| {
        let mut l = Loop::new(&config);
        let arena = l.ring.arena().clone();
        let file = file(100 << 20);
        let id = add(&mut l.ring, Arc::clone(&file));
        let mut ended = 0;
        for i in 0..200 {
            let buf = l.blank(32 << 10);
            l.ring.write(id, i * (32 << 10), buf, 0..32 << 10, Token(i));
            ended += usize::from(matches!(l.poll(), Some(Event::Disk { .. })));
        }
        assert!(ended < 200, "some are in flight");
        drop(l);
        assert_eq!(arena.free_bytes(), arena.total_bytes());
        assert!(is_given_back(&file), "the file was given back");
    });
}
