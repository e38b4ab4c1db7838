//! Files that come and go while the event loop runs, on both drivers.

mod common;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Loop, add, is_given_back, with};
use lunet_ring::{Config, DriverChoice, Event, Token};

fn a_removed_file_leaves_with_its_last_operation(config: Config) {
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(1 << 20).expect("a sparse file");
    let file = Arc::new(file);
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, Arc::clone(&file));
    for i in 0..20 {
        let buf = l.blank(4096);
        l.ring.read(id, i * 4096, buf, 4096, Token(i));
    }
    l.ring.remove_file(id);
    assert_eq!(Arc::strong_count(&file), 2, "there are operations in flight");
    for _ in 0..20 {
        assert_eq!(l.disk().2, Ok(4096), "what was queued is carried out");
    }
    assert!(is_given_back(&file));
    let other = add(&mut l.ring, Arc::clone(&file));
    for refused in [id, other] {
        l.ring.remove_file(other);
        l.ring.sync_data(refused, Token(99));
        assert_eq!(l.disk().2, Err(libc::EBADF), "the number is never valid again");
    }
    assert!(l.all_free());
}

fn lock(file: &File) -> bool {
    // SAFETY: touches no memory, and the descriptor is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// The kernel has let go too: the lock of an open file ends with its last user.
fn files_that_come_and_go_leave_nothing_behind(config: Config) {
    let named = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut l = Loop::new(&config);
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 0..5000 {
        let file = named.reopen().expect("the file again");
        while !lock(&file) {
            assert!(Instant::now() < deadline, "round {round}: still locked by the one before");
            l.iterate(Some(Duration::from_millis(1)));
        }
        let id = add(&mut l.ring, Arc::new(file));
        if round % 16 == 0 {
            l.ring.sync_data(id, Token(round));
            l.ring.remove_file(id);
            assert_eq!(l.disk().2, Ok(0));
        } else {
            l.ring.remove_file(id);
        }
    }
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("procfs").flatten();
        let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link == named.path()).count()
    };
    // The last one may still be on its way out.
    while open() > 1 && Instant::now() < deadline {
        l.iterate(Some(Duration::from_millis(1)));
    }
    assert_eq!(open(), 1, "our own");
}

/// A regular file is no device, but its answer comes the same way.
fn discards_end_once_beside_other_operations(config: Config) {
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(1 << 20).expect("a sparse file");
    let file = Arc::new(file);
    let mut l = Loop::new(&config);
    let id = add(&mut l.ring, Arc::clone(&file));
    for i in 0..1000 {
        l.ring.discard(id, i * 512, 512, Token(i));
        if i % 10 == 0 {
            l.ring.sync_data(id, Token(1000 + i));
        }
        if i % 7 == 0 {
            l.ring.cancel(Token(i));
        }
    }
    l.ring.remove_file(id);
    let mut ended: Vec<u64> = (0..1100)
        .map(|_| {
            let (Token(i), _, result) = l.disk();
            let cancelled = i < 1000 && i % 7 == 0 && result == Err(libc::ECANCELED);
            let expected = if i < 1000 { Err(libc::ENOTTY) } else { Ok(0) };
            assert!(cancelled || result == expected, "{i}: {result:?}");
            i
        })
        .collect();
    ended.sort_unstable();
    assert!(ended.into_iter().eq((0..1000).chain((1000..2000).step_by(10))));
    assert!(is_given_back(&file));
    let id = add(&mut l.ring, Arc::clone(&file));
    for i in 0..1000 {
        l.ring.discard(id, 0, 512, Token(i));
    }
    drop(l);
    assert!(is_given_back(&file), "given back although there was work left");
}

for_each_driver!(
    discards_end_once_beside_other_operations,
    a_removed_file_leaves_with_its_last_operation,
    files_that_come_and_go_leave_nothing_behind,
);

#[test]
fn io_uring_keeps_a_removed_file_while_the_kernel_waits_for_it() {
    with(DriverChoice::IoUring, 0, |config| {
        // A read of an empty stream stays in flight.
        let (reader, _writer) = UnixStream::pair().expect("a socket pair");
        let reader = Arc::new(File::from(OwnedFd::from(reader)));
        let mut l = Loop::new(&config);
        let id = add(&mut l.ring, Arc::clone(&reader));
        let buf = l.blank(4096);
        l.ring.read(id, 0, buf, 4096, Token(1));
        l.ring.remove_file(id);
        assert!(l.poll().is_none(), "it goes on");
        assert_eq!(Arc::strong_count(&reader), 2);
        l.ring.cancel(Token(1));
        assert!(matches!(l.next(), Event::Disk { result: Err(libc::ECANCELED), .. }));
        assert!(is_given_back(&reader));
    });
}
