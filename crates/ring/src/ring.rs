//! The event loop's face: one type for both drivers.

use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::epoll::Epoll;
use crate::timers::Timers;
use crate::uring::Uring;
use crate::{
    Arena, Buf, Config, Counters, Delivery, Driver, DriverChoice, Event, FileId, Namespace,
    PassthroughRings, Payload, PollSource, RxBufs, SocketId, Token, Treatment, TxChain, Waker,
    WatchId,
};

/// What to do on a file. Offsets and lengths are in bytes.
#[derive(Clone, Debug)]
pub(crate) enum DiskOp {
    Read { offset: u64, len: usize },
    Write { offset: u64, range: Range<usize> },
    SyncData,
    Allocate { mode: i32, offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
}

/// An operation that was refused on the spot: its buffer, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) buf: Option<Buf>,
    pub(crate) errno: i32,
}

impl DiskOp {
    /// Bytes of a read or a write; 0 for others.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Read { len, .. } => *len,
            Self::Write { range, .. } => range.len(),
            Self::SyncData | Self::Allocate { .. } | Self::Discard { .. } => 0,
        }
    }

    /// True if the operation stays within its buffer, and its end within what a file offset can
    /// express.
    pub(crate) fn is_valid(&self, buf: Option<&Buf>) -> bool {
        let room = buf.map_or(0, |b| b.len());
        let (offset, len) = match self {
            Self::Read { offset, len } if *len <= room => (*offset, *len as u64),
            Self::Write { offset, range } if range.start <= range.end && range.end <= room => {
                (*offset, range.len() as u64)
            }
            Self::Allocate { offset, len, .. } | Self::Discard { offset, len } => (*offset, *len),
            Self::SyncData => (0, 0),
            Self::Read { .. } | Self::Write { .. } => return false,
        };
        offset.checked_add(len).is_some_and(|end| end <= i64::MAX as u64)
    }
}

/// What becomes of volumes with NVMe commands where there is no ring for these.
pub(crate) const NO_PASSTHROUGH: &str =
    "volumes with passthrough go through the block layer like others";

/// The same for those that were to be polled.
pub(crate) const NO_POLLING: &str =
    "drives of volumes with passthrough interrupt instead of being polled";

enum Inner {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
    #[cfg(feature = "simulated")]
    Simulated(Box<crate::simulated::Simulated>),
}

/// Calls the same method of whichever driver is in use.
macro_rules! driver {
    ($self:ident, $driver:ident => $call:expr) => {
        match &mut $self.inner {
            Inner::Uring($driver) => $call,
            Inner::Epoll($driver) => $call,
            #[cfg(feature = "simulated")]
            Inner::Simulated($driver) => $call,
        }
    };
}

/// One thread's event loop: sockets, files, and the memory for their data.
///
/// Operations are queued without a system call, and submitted together by [`wait`](Self::wait).
/// Each owns its buffers and ends in exactly one [`Event`], which hands them back. Dropping the
/// event loop cancels what is in flight and waits for the kernel to let go of the memory.
pub struct Ring {
    inner: Inner,
    arena: Arena,
    waker: Waker,
    notes: Vec<String>,
    /// Ends of operations that were refused on the spot.
    ready: Vec<Event>,
    timers: Timers,
}

impl Ring {
    /// Makes an event loop for the calling thread.
    ///
    /// # Errors
    /// No memory for the arena, no file descriptors, no threads; or [`DriverChoice::IoUring`] on
    /// a system that denies io_uring.
    pub fn new(config: &Config) -> io::Result<Self> {
        let arena = Arena::with_kept(config.arena_bytes, config.kept_bytes)?;
        let waker = Waker::new()?;
        let mut notes = Vec::new();
        let epoll = || Epoll::new(config, waker.clone()).map(|e| Inner::Epoll(Box::new(e)));
        #[cfg(feature = "simulated")]
        if let Some(key) = waker.key() {
            let driver = crate::simulated::Simulated::new(waker.clone(), key);
            let inner = Inner::Simulated(Box::new(driver));
            return Ok(Self {
                inner,
                arena,
                waker,
                notes,
                ready: Vec::new(),
                timers: Timers::default(),
            });
        }
        let inner = match config.driver {
            DriverChoice::Epoll => epoll()?,
            choice => match Uring::new(config, &arena, waker.clone(), &mut notes) {
                Ok(uring) => Inner::Uring(Box::new(uring)),
                Err(error) if choice == DriverChoice::Auto => {
                    notes.push(format!(
                        "io_uring cannot be used here ({error}); sockets go through epoll and \
                         disk operations through {} threads",
                        config.disk_threads.max(1)
                    ));
                    epoll()?
                }
                Err(error) => return Err(error),
            },
        };
        if config.passthrough != PassthroughRings::default() && matches!(inner, Inner::Epoll(_)) {
            notes.push(format!("{NO_PASSTHROUGH}: it needs io_uring"));
        }
        Ok(Self { inner, arena, waker, notes, ready: Vec::new(), timers: Timers::default() })
    }

    /// The driver in use: io_uring, or epoll where that is not available.
    pub const fn driver(&self) -> Driver {
        match self.inner {
            Inner::Uring(_) => Driver::IoUring,
            Inner::Epoll(_) => Driver::Epoll,
            #[cfg(feature = "simulated")]
            Inner::Simulated(_) => Driver::Epoll,
        }
    }

    /// What the operator should know about the choices made at start, in plain sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The arena whose buffers carry payloads.
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Gives memory of the arena back to the system that was not needed since the last call: to be called every half a minute
    /// or so. What is needed later comes back by itself.
    pub fn shrink(&mut self) {
        match &mut self.inner {
            Inner::Uring(driver) => driver.shrink(),
            _ => self.arena.shrink(|_| true),
        }
    }

    /// A way to wake this event loop from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What the event loop has done so far.
    pub const fn counters(&self) -> Counters {
        match &self.inner {
            Inner::Uring(driver) => driver.counters(),
            Inner::Epoll(driver) => driver.counters(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(driver) => driver.counters(),
        }
    }

    /// Switches a measure of the io_uring driver (on by default, from Linux 6.1 on): a receive on a
    /// socket that the last receive has drained waits for data before its first attempt. For
    /// measurements; see [`Counters::polled_receives`].
    pub fn set_poll_first(&mut self, on: bool) {
        if let Inner::Uring(driver) = &mut self.inner {
            driver.set_poll_first(on);
        }
    }

    /// Starts accepting connections, until [`remove_listener`](Self::remove_listener) or
    /// [`stop_accepting`](Self::stop_accepting).
    pub fn add_listener(&mut self, listener: TcpListener, token: Token) {
        if let Err(error) = driver!(self, d => d.add_listener(listener, token)) {
            self.ready.push(Event::AcceptFailed { token, errno: errno_of(&error) });
        }
    }

    /// Closes the listener with this token. Connections of it that were not reported yet are closed.
    pub fn remove_listener(&mut self, token: Token) {
        driver!(self, d => d.stop_accepting(|listening| listening == token, true));
    }

    /// Closes all listeners. Connections that were not reported yet are closed.
    pub fn stop_accepting(&mut self) {
        driver!(self, d => d.stop_accepting(|_| true, true));
    }

    /// Accepts no more, and leaves the sockets to whoever has a copy of them: they listen on, and connections wait there.
    /// Those that were accepted and not reported yet are closed.
    pub fn leave_listeners(&mut self) {
        driver!(self, d => d.stop_accepting(|_| true, false));
    }

    /// Takes over a connected stream socket.
    pub fn add_socket(&mut self, socket: OwnedFd) -> SocketId {
        driver!(self, d => d.add_socket(socket))
    }

    /// Shuts a socket down in both directions and cancels its operations. They still end, with
    /// errors; then the descriptor is closed. What was sent [without a copy](Config::zero_copy_send) the peer has a little
    /// time to take in; then the connection is reset.
    pub fn close_socket(&mut self, id: SocketId) {
        driver!(self, d => d.close_socket(id));
    }

    /// Closes a socket of TCP so that its peer sees a reset: what it has not sent is thrown away, and what it has not
    /// received stays unread. The operations on it end as with [`close_socket`](Self::close_socket); the last of them
    /// comes when the descriptor is closed, and the reset is on its way.
    pub fn abort_socket(&mut self, id: SocketId) {
        driver!(self, d => d.abort_socket(id));
    }

    /// Has the kernel make and open the records of TLS on a socket from now on. The keys have the form of linux/tls.h,
    /// `struct tls12_crypto_info_*`. No receive is under way, and everything that is sent in clear text was sent.
    /// A receive ends with EIO when something other than data has come: the peer closes, or wants other keys.
    ///
    /// # Errors
    /// The kernel has no TLS, or not for these keys; the socket is to be closed then.
    pub fn secure(&mut self, id: SocketId, send: &[u8], receive: &[u8]) -> io::Result<()> {
        driver!(self, d => d.secure(id, send, receive))
    }

    /// How far the peer's system has taken in what was sent on a socket. One system call; `None` if
    /// the socket is gone or not one of TCP.
    pub fn delivery(&mut self, id: SocketId) -> Option<Delivery> {
        driver!(self, d => d.delivery(id))
    }

    /// True if such a payload is on its way on a socket: to be sent, or sent without a copy and not let go by the kernel,
    /// whether or not the socket was closed meanwhile.
    pub fn is_sending(&mut self, id: SocketId, mut such: impl FnMut(&Payload) -> bool) -> bool {
        let sends = driver!(self, d => d.sending(id)).is_some_and(|chain| chain.has(&mut such));
        sends || matches!(&self.inner, Inner::Uring(driver) if driver.holds(id, &mut such))
    }

    /// Bytes of chains whose sends have ended and that the kernel still refers to, because they went out
    /// [without a copy](Config::zero_copy_send): mostly until the peer's system has taken them in. They are charged to
    /// whoever they were charged to, until then. Not of a socket that was closed.
    pub fn held(&mut self, id: SocketId) -> usize {
        match &mut self.inner {
            Inner::Uring(driver) => driver.held(id),
            _ => 0,
        }
    }

    /// Resets sockets that were [closed](Self::close_socket), and wait until their peers take in such a payload.
    pub fn reset_closed(&mut self, mut such: impl FnMut(&Payload) -> bool) {
        if let Inner::Uring(driver) = &mut self.inner {
            driver.reset_closed(&mut such);
        }
    }

    /// Watches a descriptor that others read: one that tells of something outside of this event loop. Once
    /// it is readable there is one [`Event::Readable`], and none after it until
    /// [`watch_again`](Self::watch_again). A duplicate of the reader's descriptor serves.
    ///
    /// # Errors
    /// The kernel cannot watch it (epoll: a plain file), or has no memory.
    pub fn watch(&mut self, fd: OwnedFd, token: Token) -> io::Result<WatchId> {
        driver!(self, d => d.watch(fd, token))
    }

    /// Asks for the next [`Event::Readable`] of a watched descriptor: at once, if it is readable still.
    pub fn watch_again(&mut self, id: WatchId) {
        driver!(self, d => d.watch_again(id));
    }

    /// Lets go of a watched descriptor and closes it. An event of it may come in the batch at hand, and
    /// none later.
    pub fn unwatch(&mut self, id: WatchId) {
        driver!(self, d => d.unwatch(id));
    }

    /// Makes a file or a block device known, with what its file system is. It stays open until it is removed, or as long as
    /// the event loop lives.
    pub fn add_file(&mut self, file: Arc<File>, treatment: Treatment) -> FileId {
        driver!(self, d => d.add_file(file, treatment))
    }

    /// Has reads and writes of a block device go to its NVMe namespace as commands, past the block layer, as far as they fit
    /// into one; everything else on the file stays as it is. A command that fails is done again by the block device, and what
    /// that answers counts. False if the loop has no [ring](Config::passthrough) for that, or no place in its table: then nothing has changed.
    pub fn pass_through(&mut self, id: FileId, namespace: &Namespace) -> bool {
        match &mut self.inner {
            Inner::Uring(driver) => driver.pass_through(id, namespace),
            _ => false,
        }
    }

    /// Lets go of a file when its operations in flight have ended. They end as if nothing had
    /// been asked; new ones end with EBADF.
    pub fn remove_file(&mut self, id: FileId) {
        driver!(self, d => d.remove_file(id));
    }

    /// Receives at least one byte. At most one receive per socket is in flight.
    pub fn recv(&mut self, id: SocketId, bufs: RxBufs, token: Token) {
        let refused = if bufs.is_valid() {
            driver!(self, d => d.recv(id, bufs, token))
        } else {
            Err((bufs, libc::EINVAL))
        };
        if let Err((bufs, errno)) = refused {
            self.ready.push(Event::Received { token, bufs, result: Err(errno) });
        }
    }

    /// Receives at most `len` bytes and throws them away in the kernel, without a copy: for
    /// programs that measure how fast the other side is. Counts as a receive, and ends in an
    /// [`Event::Received`] with empty buffers; it may end short. TCP only.
    pub fn discard_recv(&mut self, id: SocketId, len: usize, token: Token) {
        let refused = match len {
            0 => Err((RxBufs::none(), libc::EINVAL)),
            _ => driver!(self, d => d.discard_recv(id, len, token)),
        };
        if let Err((bufs, errno)) = refused {
            self.ready.push(Event::Received { token, bufs, result: Err(errno) });
        }
    }

    /// Sends a whole chain. At most one send per socket is in flight. Large messages go out without a copy where that was
    /// [asked for](Config::zero_copy_send) and the kernel can; the end of the send is reported when the socket has taken
    /// all, and the chain stays with the event loop for as long as the kernel refers to it.
    pub fn send(&mut self, id: SocketId, mut chain: TxChain, token: Token) {
        if chain.is_empty() {
            self.ready.push(Event::Sent { token, chain, result: Ok(()) });
            return;
        }
        chain.prepare();
        if let Err((chain, errno)) = driver!(self, d => d.send(id, chain, token)) {
            self.ready.push(Event::Sent { token, chain, result: Err(errno) });
        }
    }

    /// Reads `len` bytes at `offset` into the start of the buffer. May end short: at the end of
    /// the file, or where the kernel had only a part at hand.
    pub fn read(&mut self, file: FileId, offset: u64, buf: Buf, len: usize, token: Token) {
        self.disk(file, DiskOp::Read { offset, len }, Some(buf), token);
    }

    /// Writes a range of the buffer at `offset`. May end short.
    pub fn write(
        &mut self,
        file: FileId,
        offset: u64,
        buf: Buf,
        range: Range<usize>,
        token: Token,
    ) {
        self.disk(file, DiskOp::Write { offset, range }, Some(buf), token);
    }

    /// Makes all completed writes of the file durable: `fdatasync`.
    pub fn sync_data(&mut self, file: FileId, token: Token) {
        self.disk(file, DiskOp::SyncData, None, token);
    }

    /// Gives the space of a range back; it reads as zeroes afterwards, and the file keeps its
    /// size. EOPNOTSUPP where the file system cannot.
    pub fn punch_hole(&mut self, file: FileId, offset: u64, len: u64, token: Token) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.disk(file, DiskOp::Allocate { mode, offset, len }, None, token);
    }

    /// Makes a range read as zeroes; its space may stay reserved, and the file keeps its size.
    /// EOPNOTSUPP where the file system cannot.
    pub fn zero_range(&mut self, file: FileId, offset: u64, len: u64, token: Token) {
        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        self.disk(file, DiskOp::Allocate { mode, offset, len }, None, token);
    }

    /// Tells a block device that a range is not needed any more: BLKDISCARD. What it reads as
    /// afterwards is up to the device. The kernel may have no way but to wait for the device, so
    /// this goes to a thread on either driver. EOPNOTSUPP where the device cannot.
    pub fn discard(&mut self, file: FileId, offset: u64, len: u64, token: Token) {
        self.disk(file, DiskOp::Discard { offset, len }, None, token);
    }

    fn disk(&mut self, file: FileId, op: DiskOp, buf: Option<Buf>, token: Token) {
        let refused = if op.is_valid(buf.as_ref()) {
            driver!(self, d => d.disk(file, op, buf, token))
        } else {
            Err(Refused { buf, errno: libc::EINVAL })
        };
        if let Err(Refused { buf, errno }) = refused {
            self.ready.push(Event::Disk { token, buf, result: Err(errno) });
        }
    }

    /// Asks that the disk operations and timers with this token be given up. Each ends in its event
    /// either way: with ECANCELED if it took no effect, else as if nothing had been asked.
    pub fn cancel(&mut self, token: Token) {
        for _ in 0..self.timers.remove(token) {
            self.ready.push(Event::Disk { token, buf: None, result: Err(libc::ECANCELED) });
        }
        driver!(self, d => d.cancel(token));
    }

    /// Ends in an [`Event::Disk`] without a buffer when `time` has passed: for channels that let
    /// requests wait. Not meant for many at a time.
    pub fn timer(&mut self, time: Duration, token: Token) {
        self.timers.add(time, token);
    }

    /// Removes the timers with this token; they never end.
    pub fn forget_timer(&mut self, token: Token) {
        self.timers.remove(token);
    }

    /// Submits everything queued, waits until there is an event or `timeout` has passed (`None`:
    /// for ever), and appends all events that there are. A signal ends the wait early. In the
    /// undisturbed case one system call does it all. There may be no event when memory has come back from the kernel.
    ///
    /// # Errors
    /// The kernel refused to wait, for a reason that will not pass.
    pub fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        self.wait_with(timeout, events, &mut ())
    }

    /// [`wait`](Self::wait), and for something else as well: it is looked at while the loop polls busily,
    /// and before it sleeps. If it has something, there may be no event.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_with(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        source: &mut dyn PollSource,
    ) -> io::Result<()> {
        let timeout = if self.ready.is_empty() { timeout } else { Some(Duration::ZERO) };
        events.append(&mut self.ready);
        if self.timers.is_empty() {
            return driver!(self, d => d.wait(timeout, events, source));
        }
        let timeout = self.timers.limit(timeout);
        driver!(self, d => d.wait(timeout, events, source))?;
        self.timers.fire(events);
        Ok(())
    }

    /// Submits everything queued and lets events gather for `time`, or until there are many. Then
    /// [`wait`](Self::wait) finds them. What arrives on one socket meanwhile comes in one receive. For a load
    /// generator that reads large pieces; a server that waits is slower (docs/performance.md, 'What was tried').
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn gather(&mut self, time: Duration) -> io::Result<()> {
        driver!(self, d => d.gather(time))
    }
}

/// The error number of an error that came from a system call.
fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
