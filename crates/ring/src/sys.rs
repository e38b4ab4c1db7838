//! Small system calls that both drivers use.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::{Delivery, Event, Token};

/// How long a listener rests after accepting failed for want of descriptors or memory: long
/// enough not to spin, short enough that nobody's connection attempt times out.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// True for errors of `accept` that repeat at once until something is freed.
pub(crate) const fn is_shortage(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
}

/// A message header that points to nothing.
pub(crate) const fn empty_message() -> libc::msghdr {
    // SAFETY: `msghdr` is plain data; all zeroes are null pointers and lengths of zero.
    unsafe { std::mem::zeroed() }
}

/// Shuts a socket down. One that is not connected refuses, which is as good.
pub(crate) fn shutdown(fd: RawFd, how: Shutdown) {
    let how = match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: touches no memory; the caller owns the descriptor.
    unsafe { libc::shutdown(fd, how) };
}

/// Has a socket of TCP reset its connection when it is closed: what was not sent is thrown away. Other sockets refuse.
pub(crate) fn reset_on_close(fd: RawFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = std::mem::size_of_val(&linger) as libc::socklen_t;
    // SAFETY: the kernel reads the structure, whose length is given, and keeps no reference.
    unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
    }
}

/// The start of the kernel's `struct tcp_info`, which only ever grows at its end.
#[repr(C)]
struct TcpInfo {
    state_and_options: [u8; 8],
    timers_and_sizes: [u32; 12],
    /// Milliseconds.
    last_ack_recv: u32,
    path: [u32; 11],
    rates: [u64; 2],
    bytes_acked: u64,
}

/// How the peer's system takes in what a TCP socket sends; `None` for others.
pub(crate) fn delivery(fd: RawFd) -> Option<Delivery> {
    // SAFETY: plain numbers, of which all zeroes are a value.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let size = size_of::<TcpInfo>() as libc::socklen_t;
    let mut len = size;
    // SAFETY: the kernel writes `len` bytes at most, which is the size of `info`; any bytes are a
    // value of it. The caller owns the descriptor.
    let result = unsafe {
        let info = (&raw mut info).cast();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut len)
    };
    (result == 0 && len == size).then(|| Delivery {
        bytes: info.bytes_acked,
        ago: Duration::from_millis(info.last_ack_recv.into()),
    })
}

/// Sets an option of a socket.
fn set_option(fd: RawFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`; the caller owns the descriptor.
    match unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel make and open the records of TLS on a connected TCP socket, with the keys in the form of linux/tls.h.
pub(crate) fn secure(fd: RawFd, send: &[u8], receive: &[u8]) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")?;
    set_option(fd, libc::SOL_TLS, libc::TLS_TX, send)?;
    set_option(fd, libc::SOL_TLS, libc::TLS_RX, receive)
}

/// The same on a socket that no event loop has yet: see [`Ring::secure`](crate::Ring::secure).
///
/// # Errors
/// The kernel has no TLS, or not for these keys; the socket is to be closed then.
pub fn secure_stream(stream: &TcpStream, send: &[u8], receive: &[u8]) -> io::Result<()> {
    secure(stream.as_raw_fd(), send, receive)
}

/// True if the records of TLS on this socket are the kernel's: made so before an event loop had it.
pub(crate) fn is_secure(fd: RawFd) -> bool {
    let mut name = [0u8; 16];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `name`, and how many to `len`; the caller owns the descriptor.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_ULP,
            name.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    result == 0 && name.starts_with(b"tls")
}

/// Whether the kernel has TLS for sockets. With the right to administer the network, asking has it load the module.
///
/// # Errors
/// It has none.
pub fn has_tls() -> io::Result<()> {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match set_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_ULP, b"tls") {
        // It is there, and for connected sockets only.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// Makes a descriptor blocking. A failure shows on its first operation.
pub(crate) fn set_blocking(fd: RawFd) {
    let mut off: libc::c_int = 0;
    // SAFETY: FIONBIO reads one `int`; the caller owns the descriptor.
    unsafe { libc::ioctl(fd, libc::FIONBIO, &raw mut off) };
}

/// The event for a new connection. One whose peer is gone already has no address any more.
pub(crate) fn accepted(socket: OwnedFd, token: Token) -> Event {
    let stream = TcpStream::from(socket);
    match stream.peer_addr() {
        Ok(peer) => Event::Accepted { token, socket: stream.into(), peer },
        Err(error) => {
            Event::AcceptFailed { token, errno: error.raw_os_error().unwrap_or(libc::ENOTCONN) }
        }
    }
}

/// The error number of the system call that just failed.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Makes a system call that returns a length, again if a signal interrupts it.
pub(crate) fn retry(mut call: impl FnMut() -> isize) -> Result<usize, i32> {
    loop {
        match usize::try_from(call()) {
            Ok(n) => return Ok(n),
            Err(_) => match last_errno() {
                libc::EINTR => {}
                errno => return Err(errno),
            },
        }
    }
}

/// How io_uring gets at a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// Registered buffers may be used on it.
    pub(crate) fixed_buffers: bool,
    /// Its operations begin on a worker of the kernel: the submitting thread might sleep in them.
    pub(crate) by_worker: bool,
    /// A device is waited for, and not the page cache.
    pub(crate) direct: bool,
}

impl Treatment {
    /// Asks the file system of an open file, which may hang: not on the thread of an event loop.
    pub fn of(file: &File) -> Self {
        treatment(file.as_raw_fd())
    }

    /// For a file that is used with `O_DIRECT`: what is to be done is given to its device soon, while other work is left.
    #[must_use]
    pub const fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }
}

fn treatment(fd: RawFd) -> Treatment {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel writes one `statfs`; the caller owns the descriptor.
    if unsafe { libc::fstatfs(fd, found.as_mut_ptr()) } != 0 {
        // What cannot be asked is not trusted.
        return Treatment { fixed_buffers: false, by_worker: true, direct: false };
    }
    // SAFETY: the kernel has filled it.
    let found = unsafe { found.assume_init() };
    kind_treatment(found.f_type)
}

/// ZFS before 2.3.3 (openzfs issue 16133) skips a registered buffer's place in its page once for each block that it
/// copies: it writes other data than it was given, or never ends. Overlays hand buffers down as
/// they are, perhaps to ZFS. Both copy everything anyway, so there is little to gain.
///
/// A file on FUSE does not say that it honours IOCB_NOWAIT, so io_uring polls it in the submitting thread to find out
/// whether it would wait. That poll is a request to the daemon, until the daemon has once answered ENOSYS; from then on
/// it says yes, and a direct read or write itself is made in the submitting thread. Either sleeps as long as the daemon does.
const fn kind_treatment(kind: i64) -> Treatment {
    const ZFS: i64 = 0x2FC1_2FC1;
    const OVERLAY: i64 = 0x794C_7630;
    const FUSE: i64 = 0x6573_5546;
    let fixed_buffers = !matches!(kind, ZFS | OVERLAY);
    Treatment { fixed_buffers, by_worker: matches!(kind, FUSE), direct: false }
}

/// Lets the calling thread sleep for microseconds: by default the kernel adds up to 50.
pub(crate) fn sleep_exactly() {
    // SAFETY: changes a property of the calling thread and touches no memory. It does not fail.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_buffers_are_kept_from_zfs_and_fuse_is_left_to_workers() {
        let of = |kind| {
            let Treatment { fixed_buffers, by_worker, .. } = kind_treatment(kind);
            (fixed_buffers, by_worker)
        };
        // As `stat -f` names them: zfs, overlayfs; fuseblk; ext4, xfs, btrfs, tmpfs.
        for kind in [0x2fc1_2fc1, 0x794c_7630] {
            assert_eq!(of(kind), (false, false), "{kind:x}");
        }
        assert_eq!(of(0x6573_5546), (true, true));
        for kind in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994] {
            assert_eq!(of(kind), (true, false), "{kind:x}");
        }
        let memory = std::fs::File::open("/proc/self/maps").expect("procfs");
        let sound = Treatment { fixed_buffers: true, by_worker: false, direct: false };
        assert_eq!(treatment(memory.as_raw_fd()), sound);
        let unknown = Treatment { fixed_buffers: false, by_worker: true, direct: false };
        assert_eq!(treatment(-1), unknown, "what cannot be asked is not trusted");
    }
}
