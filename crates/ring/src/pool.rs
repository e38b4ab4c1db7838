//! Threads for disk operations that would hold up the event loop: all of them where io_uring is
//! denied, and those that io_uring does not know.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use lunet_os::role::Role;

use crate::waker::EventFd;

/// `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// What a thread does: one system call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Read {
        to: *mut u8,
        len: usize,
        offset: i64,
    },
    Write {
        from: *const u8,
        len: usize,
        offset: i64,
    },
    SyncData,
    Allocate {
        mode: i32,
        offset: i64,
        len: i64,
    },
    /// A start and a length in bytes.
    Discard([u64; 2]),
}

/// A call on a file, and the place in the driver's table that owns its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) index: u32,
    pub(crate) fd: RawFd,
    pub(crate) call: Call,
}

// SAFETY: the pointers of a job lead into a buffer that the driver owns, touches no more, and
// frees only after the job's result is back or the threads have ended. The descriptor stays open
// as long: the driver holds its file.
unsafe impl Send for Job {}

/// Bytes moved, or the error number.
pub(crate) type Outcome = Result<usize, i32>;

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    more: Condvar,
    done: Mutex<Vec<(u32, Outcome)>>,
    event: EventFd,
}

impl Shared {
    fn report(&self, index: u32, outcome: Outcome) {
        let mut done = lock(&self.done);
        let first = done.is_empty();
        done.push((index, outcome));
        drop(done);
        // The driver takes all results at once: the first of a batch is enough to wake it.
        if first {
            self.event.signal();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The most jobs that wait for a thread.
    bound: usize,
}

/// Nothing panics while it holds one of the locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(crate) fn new(threads: usize, bound: usize) -> io::Result<Self> {
        let waiting = Waiting { jobs: VecDeque::with_capacity(bound), stop: false };
        let shared = Arc::new(Shared {
            waiting: Mutex::new(waiting),
            more: Condvar::new(),
            done: Mutex::new(Vec::with_capacity(bound)),
            event: EventFd::new()?,
        });
        let mut pool = Self { shared, threads: Vec::new(), bound };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let name = format!("lunet-disk-{number}");
            let work = move || {
                lunet_os::cpus::roam();
                work(&shared);
            };
            pool.threads.push(thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(pool)
    }

    /// Readable when there are results.
    pub(crate) fn event(&self) -> &EventFd {
        &self.shared.event
    }

    /// Hands over jobs from the front, as many as there is room for.
    pub(crate) fn submit(&self, staged: &mut VecDeque<Job>) -> usize {
        if staged.is_empty() {
            return 0;
        }
        let mut waiting = lock(&self.shared.waiting);
        let count = staged.len().min(self.bound.saturating_sub(waiting.jobs.len()));
        waiting.jobs.extend(staged.drain(..count));
        drop(waiting);
        for _ in 0..count.min(self.threads.len()) {
            self.shared.more.notify_one();
        }
        count
    }

    /// Takes a job back if no thread has begun it.
    pub(crate) fn take_back(&self, index: u32) -> bool {
        let mut waiting = lock(&self.shared.waiting);
        let before = waiting.jobs.len();
        waiting.jobs.retain(|job| job.index != index);
        waiting.jobs.len() < before
    }

    /// Takes a job back if no thread has begun it, and reports it as cancelled.
    pub(crate) fn give_up(&self, index: u32) -> bool {
        let taken = self.take_back(index);
        if taken {
            self.shared.report(index, Err(libc::ECANCELED));
        }
        taken
    }

    /// Exchanges the results so far for an empty list. Both keep their memory.
    pub(crate) fn fetch(&self, into: &mut Vec<(u32, Outcome)>) {
        std::mem::swap(&mut *lock(&self.shared.done), into);
    }
}

impl Drop for Pool {
    /// Gives up what no thread has begun, and waits for the rest.
    fn drop(&mut self) {
        let mut waiting = lock(&self.shared.waiting);
        waiting.stop = true;
        waiting.jobs.clear();
        drop(waiting);
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            // The thread's code does not panic; if it did, its memory is no less free.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    lunet_os::role::enter(Role::Disk);
    loop {
        let mut waiting = lock(&shared.waiting);
        let job = loop {
            if waiting.stop {
                return;
            }
            match waiting.jobs.pop_front() {
                Some(job) => break job,
                None => {
                    waiting = shared.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(waiting);
        shared.report(job.index, carry_out(&job));
    }
}

fn carry_out(job: &Job) -> Outcome {
    loop {
        let fd = job.fd;
        let moved = match job.call {
            // SAFETY: the memory is valid for `len` bytes and nobody else touches it, see `Job`.
            Call::Read { to, len, offset } => unsafe { libc::pread(fd, to.cast(), len, offset) },
            // SAFETY: as above.
            Call::Write { from, len, offset } => unsafe {
                libc::pwrite(fd, from.cast(), len, offset)
            },
            // SAFETY: touches no memory.
            Call::SyncData => unsafe { libc::fdatasync(fd) as isize },
            // SAFETY: BLKDISCARD reads two numbers: the start and the length in bytes.
            Call::Discard(range) => unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) as isize },
            // SAFETY: touches no memory.
            Call::Allocate { mode, offset, len } => unsafe {
                libc::fallocate(fd, mode, offset, len) as isize
            },
        };
        if let Ok(n) = usize::try_from(moved) {
            return Ok(n);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(errno) => return Err(errno),
            None => return Err(libc::EIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_job_is_taken_back_only_before_a_thread_has_it() {
        let file = tempfile::tempfile().expect("a temporary file");
        let job = |index| Job { index, fd: file.as_raw_fd(), call: Call::SyncData };
        let pool = Pool::new(1, 2).expect("a thread");
        // The only thread cannot hand in its first result, so it never gets to the second job.
        let results = lock(&pool.shared.done);
        let mut staged = VecDeque::from([job(1)]);
        assert_eq!(pool.submit(&mut staged), 1);
        while !lock(&pool.shared.waiting).jobs.is_empty() {
            thread::yield_now();
        }
        staged.extend([job(2), job(3), job(4)]);
        assert_eq!(pool.submit(&mut staged), 2, "no more than the bound");
        assert_eq!(staged.len(), 1);
        assert!(!pool.take_back(1), "the thread has it");
        assert!(pool.take_back(2));
        assert!(!pool.take_back(2), "it is gone");
        drop(results);
        let mut seen = Vec::new();
        while seen.len() < 2 {
            pool.event().clear();
            let mut some = Vec::new();
            pool.fetch(&mut some);
            seen.append(&mut some);
        }
        assert_eq!(seen, [(1, Ok(0)), (3, Ok(0))]);
    }
}
