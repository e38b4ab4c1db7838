use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::net::{Limits, NetError, Plan, loopback, measure, serve};
use super::*;
use crate::fio::{Fio, Location};
use crate::model::{CeilingKind, Pattern, Sync, Unit, Workload};
use crate::profiles::Style;

const SHORT: Plan = Plan { streams: 3, time: Duration::from_millis(200) };

#[test]
fn memory_and_crc_are_measured() {
    let memory = memory(Duration::from_millis(50));
    assert_eq!((memory.kind, memory.unit), (CeilingKind::Memory, Unit::MibPerS));
    // Slower than any machine of this century, faster than none.
    assert!((100.0..1e8).contains(&memory.value), "{memory:?}");
    let crc = crc32c(Duration::from_millis(50));
    assert_eq!(crc.kind, CeilingKind::Cpu);
    assert!((10.0..1e7).contains(&crc.value), "{crc:?}");
    assert!(crc.how.contains("64 KiB for 50 ms"), "{}", crc.how);
}

#[test]
fn loopback_is_measured_both_ways() {
    let began = Instant::now();
    let told = loopback(SHORT).expect("it is there");
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(told.to_server_mib_per_s > 1.0 && told.from_server_mib_per_s > 1.0, "{told:?}");
    assert!((0.5..1e6).contains(&told.round_trip_us), "{told:?}");
    let ceiling = told.ceiling();
    assert_eq!(ceiling.latency_us, Some(told.round_trip_us));
    assert!(
        ceiling.value <= told.to_server_mib_per_s && ceiling.value <= told.from_server_mib_per_s
    );
    assert!(
        ceiling.name.contains("loopback") && ceiling.how.contains("3 streams for 0.2 s"),
        "{ceiling:?}"
    );
}

/// A server with these limits while something runs.
fn served<T>(limits: Limits, run: impl FnOnce(SocketAddr) -> T) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (address, stop) = (listener.local_addr().expect("it has one"), AtomicBool::new(false));
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, limits, &stop));
        let told = run(address);
        stop.store(true, Ordering::Relaxed);
        server.join().expect("it ends").expect("it served");
        told
    })
}

#[test]
fn the_server_is_bounded_and_survives_strangers() {
    let limits = Limits { connections: 2, ..Limits::default() };
    served(limits, |address| {
        let told = measure(address, SHORT);
        assert!(matches!(told, Err(NetError::Busy(_))), "three streams are too many: {told:?}");
        // Somebody who says nothing, and somebody who says something else.
        let silent = TcpStream::connect(address).expect("it listens");
        let mut stranger = TcpStream::connect(address).expect("it listens");
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n").expect("it can be sent");
        let mut answer = Vec::new();
        // Closed with something unread, the kernel may say so by a reset.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "a stranger gets no answer");
        drop(silent);
        let alone = Plan { streams: 1, ..SHORT };
        let began = Instant::now();
        while measure(address, alone).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "it serves the next one");
        }
    });
    let life = Limits { life: Duration::from_millis(50), ..Limits::default() };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    serve(&listener, life, &AtomicBool::new(false)).expect("it ends by itself");
}

/// A server that answers with these bytes.
fn answering(bytes: &'static [u8]) -> NetError {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            stream.read_exact(&mut [0; 32]).expect("a hello");
            stream.write_all(bytes).expect("it can be sent");
        });
        measure(address, SHORT).expect_err("that is no server")
    })
}

#[test]
fn others_are_told_apart_in_a_sentence() {
    let told = answering(b"SSH-2.0-OpenSSH_9.2p1\r\n").to_string();
    assert!(told.contains("is not lunet bench net"), "{told}");
    let told = answering(b"lunetnet\0\0\0\x07\0\0\0\0").to_string();
    assert!(told.contains("speaks version 7") && told.contains("the same lunet"), "{told}");
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("it has one");
    drop(free);
    let told = measure(address, SHORT).expect_err("nobody listens").to_string();
    assert!(told.contains("does not answer") && told.contains("net serve"), "{told}");
    for (streams, time) in [(0, 1), (65, 1), (1, 0), (1, 60)] {
        let plan = Plan { streams, time: Duration::from_secs(time) };
        assert!(matches!(measure(address, plan), Err(NetError::Plan(_))), "{plan:?}");
    }
}

#[test]
fn a_drive_is_measured_by_fio() {
    let folder =
        tempfile::Builder::new().prefix("bench").tempdir_in("/var/tmp").expect("a directory");
    let location = Location::new(folder.path()).expect("it is writable");
    let stop = AtomicBool::new(false);
    let fio = Fio::new(&location, Style::default(), Vec::new(), &stop).expect("fio is there");
    let load = Workload {
        name: "4k random reads".into(),
        block_bytes: 4096,
        read_percent: 100,
        pattern: Pattern::Random,
        depth: 4,
        jobs: 1,
        sync: Sync::Cached,
        seconds: 9.0,
        ramp_seconds: 0.0,
        size_bytes: Some(4 << 20),
        rate_mib_per_s: None,
    };
    fio.prepare(&load, &mut |_, _| {}).expect("there is space");
    let told = drive(&fio, "/srv/pool", &load, 0.3, &mut |_, _| {}).expect("it runs");
    assert!(told.value > 0.0 && told.latency_us.is_some_and(|us| us > 0.0), "{told:?}");
    assert!(matches!(told.outstanding, Some(4 | 128)), "{told:?}");
    assert_eq!((told.unit, told.workload.as_deref()), (Unit::Iops, Some("4k random reads")));
    assert!(told.how.contains("with 4 in flight") && told.how.contains("with 128"), "{}", told.how);
}
