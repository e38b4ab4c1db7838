//! NVMe commands past the block layer. There is no drive here: /dev/null answers each such command at once and moves no data, so
//! that it shows which operations were commands, and a plain file knows none, so that all of them are done again.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Loop, add, is_given_back, pattern, with};
use lunet_ring::{Config, DriverChoice, FileId, Namespace, Passthrough, PassthroughRings, Token};

const SIZE: u64 = 1 << 20;

fn storage() -> Arc<File> {
    let file = tempfile::tempfile().expect("a temporary file");
    file.write_all_at(&[7; SIZE as usize], 0).expect("room");
    Arc::new(file)
}

fn null() -> Arc<File> {
    Arc::new(File::options().read(true).write(true).open("/dev/null").expect("it is there"))
}

/// A file whose commands go to a device. `None` where the kernel has no rings for commands.
fn added(l: &mut Loop, file: &Arc<File>, device: &Arc<File>, how: Passthrough) -> Option<FileId> {
    let id = add(&mut l.ring, Arc::clone(file));
    let namespace = Namespace::new(Arc::clone(device), 1, 512, 64 << 10, how);
    let passes = l.ring.pass_through(id, &namespace);
    if !passes {
        assert!(!l.ring.notes().is_empty(), "the reason is said");
        eprintln!("not tested: {:?}", l.ring.notes());
    }
    passes.then_some(id)
}

/// Runs a test on io_uring for each way in which ends are learnt, with and without busy polling.
fn each_way(test: fn(Config, Passthrough)) {
    for how in [Passthrough::Interrupt, Passthrough::Polled] {
        for micros in [0, 100] {
            with(DriverChoice::IoUring, micros, |config| test(config, how));
        }
    }
}

/// True if the device takes commands, as /dev/null does since Linux 6.1.
fn null_takes_commands(l: &mut Loop, id: FileId) -> bool {
    let before = l.ring.counters().commands_failed;
    let buf = l.blank(512);
    l.ring.read(id, 0, buf, 512, Token(0));
    assert_eq!(l.disk().2, Ok(512));
    let takes = l.ring.counters().commands_failed == before;
    if !takes {
        eprintln!("the device takes no commands here");
    }
    takes
}

#[test]
fn reads_and_writes_that_fit_are_commands_and_nothing_else_is() {
    each_way(|config, how| {
        let mut l = Loop::new(&config);
        let (file, device) = (storage(), null());
        let Some(id) = added(&mut l, &file, &device, how) else { return };
        if !null_takes_commands(&mut l, id) {
            return;
        }
        let commands = |l: &Loop| l.ring.counters().commands;
        let begun = commands(&l);
        // A command: no data comes from the device, and it says that all was moved.
        let buf = l.blank(4096);
        l.ring.read(id, 512, buf, 4096, Token(1));
        let (token, buf, result) = l.disk();
        assert_eq!((token, result, commands(&l)), (Token(1), Ok(4096), begun + 1));
        assert!(buf.expect("it comes back").iter().all(|byte| *byte == 0));
        let buf = l.buf(&[9; 4096]);
        l.ring.write(id, 0, buf, 512..1536, Token(2));
        assert_eq!((l.disk().2, commands(&l)), (Ok(1024), begun + 2));
        let mut found = [0; 4096];
        file.read_exact_at(&mut found, 0).expect("it is there");
        assert_eq!(found, [7; 4096], "the file is as it was");
        // Not in whole blocks, and more than a command takes.
        for (offset, len) in [(100, 512), (512, 100), (0, 128 << 10)] {
            let buf = l.blank(len);
            l.ring.read(id, offset, buf, len, Token(3));
            let (_, buf, result) = l.disk();
            assert_eq!(result, Ok(len));
            assert!(buf.expect("it comes back")[..len].iter().all(|byte| *byte == 7));
        }
        l.ring.sync_data(id, Token(4));
        l.ring.zero_range(id, 0, 4096, Token(5));
        for _ in 0..2 {
            l.disk().2.expect("done by the file");
        }
        assert_eq!((commands(&l), l.ring.counters().commands_failed), (begun + 2, 0));
        file.read_exact_at(&mut found, 0).expect("it is there");
        assert_eq!(found, [0; 4096]);
        assert!(l.all_free());
    });
}

#[test]
fn what_fails_is_done_again_and_after_some_times_no_more_is_tried() {
    each_way(|config, how| {
        let mut l = Loop::new(&config);
        let (file, device) = (storage(), storage());
        let Some(id) = added(&mut l, &file, &device, how) else { return };
        let data = pattern(SIZE as usize, 3);
        let begun = Instant::now();
        for (number, piece) in data.chunks(4096).enumerate() {
            let buf = l.buf(piece);
            l.ring.write(id, number as u64 * 4096, buf, 0..4096, Token(number as u64));
            if number % 32 == 31 {
                (0..32).for_each(|_| assert_eq!(l.disk().2, Ok(4096)));
            }
        }
        let mut found = vec![0; data.len()];
        file.read_exact_at(&mut found, 0).expect("it is there");
        assert!(found == data);
        device.read_exact_at(&mut found, 0).expect("it is there");
        assert!(
            found.iter().all(|byte| *byte == 7),
            "a device that knows no commands is left alone"
        );
        // Of those that were queued together all were tried; after them none, but as many again after each pause.
        let counters = l.ring.counters();
        let pauses = begun.elapsed().as_secs() / 10;
        assert_eq!(counters.commands, counters.commands_failed);
        assert!((32..=32 * (1 + pauses)).contains(&counters.commands), "{counters:?}");
        assert!(l.all_free());
    });
}

#[test]
fn a_file_leaves_when_its_commands_have_ended() {
    each_way(|config, how| {
        for device in [null(), storage()] {
            let mut l = Loop::new(&config);
            let file = storage();
            let Some(id) = added(&mut l, &file, &device, how) else { return };
            let takes = null_takes_commands(&mut l, id);
            for i in 0..20 {
                let buf = l.blank(4096);
                l.ring.read(id, i * 4096, buf, 4096, Token(i));
                l.ring.cancel(Token(i));
            }
            l.ring.remove_file(id);
            for _ in 0..20 {
                let result = l.disk().2;
                match takes {
                    true => assert_eq!(result, Ok(4096), "the kernel cancels no command"),
                    false => assert_eq!(result, Err(libc::ECANCELED), "it is not done again"),
                }
            }
            assert!(is_given_back(&file));
            let again = added(&mut l, &file, &device, how).expect("there are rings");
            assert!(
                !l.ring.pass_through(id, &Namespace::new(null(), 1, 512, 512, how)),
                "it is gone"
            );
            l.ring.remove_file(again);
            assert!(is_given_back(&file) && l.all_free());
        }
    });
}

#[test]
fn the_end_of_a_loop_leaves_no_command_behind() {
    each_way(|config, how| {
        for device in [null(), storage()] {
            let mut l = Loop::new(&config);
            let file = storage();
            let Some(id) = added(&mut l, &file, &device, how) else { return };
            for i in 0..200 {
                let buf = l.blank(4096);
                l.ring.read(id, i * 4096, buf, 4096, Token(i));
            }
            let arena = l.ring.arena().clone();
            drop(l);
            assert_eq!(arena.free_bytes(), arena.total_bytes());
            assert!(is_given_back(&file));
        }
    });
}

/// With a queue of 64 entries.
#[test]
fn more_commands_than_fit_into_the_queue_wait() {
    each_way(|config, how| {
        let mut l = Loop::new(&config);
        let file = storage();
        let Some(id) = added(&mut l, &file, &null(), how) else { return };
        if !null_takes_commands(&mut l, id) {
            return;
        }
        for i in 0..1000 {
            let buf = l.blank(512);
            l.ring.read(id, i * 512, buf, 512, Token(i));
        }
        let mut seen: Vec<u64> = (0..1000).map(|_| l.disk().0.0).collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..1000));
        assert!(l.all_free());
    });
}

#[test]
fn a_loop_without_commands_under_way_sleeps() {
    each_way(|config, how| {
        let mut l = Loop::new(&config);
        let file = storage();
        let Some(id) = added(&mut l, &file, &null(), how) else { return };
        null_takes_commands(&mut l, id);
        let before = l.ring.counters().waits;
        l.iterate(Some(Duration::from_millis(50)));
        let calls = l.ring.counters().waits - before;
        assert!(calls <= 3, "{calls} system calls while there was nothing to do");
    });
}

#[test]
fn a_loop_without_rings_says_so_and_goes_through_the_block_layer() {
    for driver in [DriverChoice::IoUring, DriverChoice::Epoll] {
        with(driver, 0, |config| {
            let epoll = config.driver == DriverChoice::Epoll;
            let passthrough = match epoll {
                true => config.passthrough,
                false => PassthroughRings::default(),
            };
            let mut l = Loop::new(&Config { passthrough, ..config });
            let id = add(&mut l.ring, storage());
            let namespace = Namespace::new(null(), 1, 512, 4096, Passthrough::Interrupt);
            assert!(!l.ring.pass_through(id, &namespace));
            let noted = l.ring.notes().iter().any(|note| note.contains("passthrough"));
            assert_eq!(noted, epoll, "{:?}", l.ring.notes());
            let buf = l.blank(4096);
            l.ring.read(id, 0, buf, 4096, Token(1));
            let (_, buf, result) = l.disk();
            assert_eq!(result, Ok(4096));
            assert!(buf.expect("it comes back").iter().all(|byte| *byte == 7));
        });
    }
}
