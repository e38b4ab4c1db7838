//! What is done where the system denies io_uring, or a part of it.

mod common;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use common::{Loop, add, scratch, with};
use lunet_ring::{Config, Driver, DriverChoice, Ring, Token};

/// Makes `io_uring_setup` fail with EPERM in this thread, as container runtimes do.
fn deny_io_uring() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD, 0, 0, 0), // the number of the system call is the first word
        step(JUMP, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program; nothing else is touched.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0), 0);
    }
}

/// Runs a test in a thread of its own: what it denies itself stays denied.
fn apart(test: fn()) {
    if let Err(panic) = thread::spawn(test).join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn epoll_takes_over_and_says_so() {
    apart(epoll_takes_over);
}

fn epoll_takes_over() {
    deny_io_uring();
    let config = Config { arena_bytes: 1 << 20, disk_threads: 3, ..Config::default() };
    let mut l = Loop::new(&config);
    assert_eq!(l.ring.driver(), Driver::Epoll);
    let notes = l.ring.notes();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("io_uring") && notes[0].contains("3 threads"), "{}", notes[0]);
    let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
    let id = l.add(ours);
    peer.write_all(b"hello").expect("a socket pair");
    l.ring.recv(id, scratch(10), Token(1));
    assert_eq!(l.received().2, Ok(5));

    let strict = Config { driver: DriverChoice::IoUring, ..config };
    let error = Ring::new(&strict).err().expect("io_uring is denied");
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

/// Leaves this thread without privileges and with hardly any memory that it may lock.
fn deny_locked_memory() {
    let new = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: the kernel reads one `rlimit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const new) }, 0);
    // SAFETY: changes the user of this thread only, which libc's own function would not. It
    // fails where the test has no privileges to begin with.
    unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
}

#[test]
fn unregistered_buffers_work_and_are_noted() {
    apart(|| with(DriverChoice::IoUring, 0, unregistered_buffers_work));
}

fn unregistered_buffers_work(config: Config) {
    let file = Arc::new(tempfile::tempfile().expect("a temporary file"));
    deny_locked_memory();
    let mut l = Loop::new(&config);
    let notes = l.ring.notes().join(" ");
    assert!(notes.contains("8 MiB") && notes.contains("RLIMIT_MEMLOCK"), "{notes}");
    let id = add(&mut l.ring, file);
    let buf = l.buf(b"plain write");
    l.ring.write(id, 0, buf, 6..11, Token(1));
    let (_, buf, result) = l.disk();
    assert_eq!(result, Ok(5));
    l.ring.read(id, 0, buf.expect("the buffer comes back"), 11, Token(2));
    let (_, buf, result) = l.disk();
    assert_eq!((result, &buf.expect("the buffer comes back")[..5]), (Ok(5), &b"write"[..]));
}
