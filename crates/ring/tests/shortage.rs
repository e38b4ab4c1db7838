//! What happens when the process runs out of descriptors. Alone in its program, because the
//! limit is the whole process's.

mod common;

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Loop, with};
use lunet_ring::{Config, DriverChoice, Event, Token};

/// Sets the limit on descriptors; returns the one before.
fn limit(soft: libc::rlim_t) -> libc::rlim_t {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills one `rlimit`.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now) }, 0);
    let new = libc::rlimit { rlim_cur: soft, rlim_max: now.rlim_max };
    // SAFETY: the kernel reads one `rlimit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const new) }, 0);
    now.rlim_cur
}

fn accepting_rests_and_goes_on(config: Config) {
    let mut l = Loop::new(&config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("bound");
    let stream = TcpStream::connect(to).expect("loopback");
    // Before the listener is added: io_uring notes the limit when it takes the operation.
    let before = limit(0);
    l.ring.add_listener(listener, Token(5));
    let start = Instant::now();
    let waits = l.ring.counters().waits;
    let mut failures = 0;
    while start.elapsed() < Duration::from_millis(350) {
        let mut events = Vec::new();
        let left = Duration::from_millis(350).saturating_sub(start.elapsed());
        l.ring.wait(Some(left), &mut events).expect("the kernel waits");
        for event in events {
            match event {
                Event::AcceptFailed { token: Token(5), errno: libc::EMFILE } => failures += 1,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    let waits = l.ring.counters().waits - waits;
    limit(before);
    assert!((2..=4).contains(&failures), "one failure in 100 ms, not {failures}");
    assert!(waits < 20, "{waits} system calls");
    match l.next() {
        Event::Accepted { token: Token(5), peer, .. } => {
            assert_eq!(peer, stream.local_addr().expect("connected"));
        }
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn a_listener_does_not_spin_without_descriptors() {
    with(DriverChoice::IoUring, 0, accepting_rests_and_goes_on);
    with(DriverChoice::Epoll, 0, accepting_rests_and_goes_on);
}
