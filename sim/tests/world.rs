//! The world itself: its clock, its threads and its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lunet_os::simulated::{self, Process, World};
use lunet_os::sync::mpsc::{RecvTimeoutError, sync_channel};
use lunet_os::sync::{Condvar, Mutex};
use lunet_os::{thread, time};
use lunet_sim::scenario;

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_day_passes_at_once() {
    let begun = Instant::now();
    let world = World::new(1);
    let before = time::now();
    thread::sleep(DAY);
    assert_eq!((world.elapsed(), time::since(before)), (DAY, DAY));
    assert!(begun.elapsed() < DAY);
}

#[test]
fn threads_wait_for_locks_and_messages_of_each_other() {
    let world = World::new(2);
    let (says, hears) = sync_channel(1);
    let shared = Arc::new((Mutex::new(0), Condvar::new()));
    for number in 0..8 {
        let (says, shared) = (says.clone(), shared.clone());
        let work = move || {
            let mut turn = shared.0.lock().unwrap();
            while *turn != number {
                turn = shared.1.wait(turn).unwrap();
            }
            // Held while it waits for room in the queue.
            says.send(number).unwrap();
            *turn += 1;
            shared.1.notify_all();
        };
        world.spawn_in(Process(1), "one of them", work).unwrap();
    }
    drop(says);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(hears.iter().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let world = World::new(3);
    let (says, hears) = sync_channel::<()>(1);
    assert_eq!(hears.recv_timeout(DAY), Err(RecvTimeoutError::Timeout));
    assert_eq!(world.elapsed(), DAY);
    drop(says);
    assert_eq!(hears.recv_timeout(DAY), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_killed_process_does_nothing_more() {
    let world = World::new(4);
    let count = Arc::new(AtomicU32::new(0));
    let counts = count.clone();
    let work = move || {
        loop {
            counts.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_secs(1));
        }
    };
    world.spawn_in(Process(1), "counts", work).unwrap();
    thread::sleep(Duration::from_millis(4500));
    world.kill(Process(1));
    thread::sleep(DAY);
    assert_eq!(count.load(Ordering::Relaxed), 5);
}

#[test]
fn a_world_in_which_nobody_can_go_on_says_who_waits() {
    let world = World::new(5);
    let (says, hears) = sync_channel::<()>(1);
    let work = move || {
        let kept = says;
        let (_also, never) = sync_channel::<()>(1);
        drop((never.recv(), kept));
    };
    world.spawn_in(Process(1), "the other", work).unwrap();
    let waits = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hears.recv()));
    drop(waits);
    let failure = world.failure().expect("it is told");
    assert!(failure.contains("the other"), "{failure}");
}

#[test]
fn threads_that_turn_in_circles_end_their_world() {
    let world = World::new(6);
    let polls = || loop {
        simulated::maybe_yield();
    };
    world.spawn_in(Process(1), "a shard", polls).unwrap();
    let waits = std::panic::catch_unwind(|| thread::sleep(DAY));
    assert!(waits.is_err());
    let failure = world.failure().expect("it is told");
    assert!(failure.contains("time stands still: ") && failure.contains("a shard"), "{failure}");
}

#[test]
fn a_seed_is_a_world() {
    for seed in 1..20 {
        let (one, two) = (scenario::run(seed, None).unwrap(), scenario::run(seed, None).unwrap());
        assert_eq!(one.story, two.story, "seed {seed}");
        assert!(one.operations > 0);
    }
}
