//! Sockets on epoll, edge-triggered: tried when an operation is queued or the kernel reports a
//! change, and not again until it does.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::{Epoll, Kind};
use crate::sys;
use crate::{Delivery, Event, RxBufs, SocketId, Token, TxChain};

/// A receive that is queued.
struct Recv {
    bufs: RxBufs,
    token: Token,
    /// Bytes to be thrown away; 0: the buffers are to be filled.
    discard: usize,
}

pub(super) struct Socket {
    fd: OwnedFd,
    recv: Option<Recv>,
    send: Option<(TxChain, Token)>,
    /// There may be something to receive.
    readable: bool,
    /// There may be room to send.
    writable: bool,
    /// The peer has closed: the end may follow the data without a further report.
    hung_up: bool,
    /// The socket could not be watched, and why.
    failed: Option<i32>,
    /// Its records are the kernel's: a receive may end short at the end of one.
    secure: bool,
}

impl Epoll {
    pub(crate) fn add_socket(&mut self, fd: OwnedFd) -> SocketId {
        let raw = fd.as_raw_fd();
        let secure = sys::is_secure(raw);
        let key = self.sockets.insert(Socket {
            fd,
            recv: None,
            send: None,
            readable: false,
            writable: true,
            hung_up: false,
            failed: None,
            secure,
        });
        let what = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        if let Err(error) = self.poll.add(raw, what, Kind::Socket.data(key.index)) {
            if let Some(socket) = self.sockets.at(key.index) {
                socket.failed = Some(error.raw_os_error().unwrap_or(libc::EIO));
            }
        }
        SocketId(key)
    }

    pub(crate) fn secure(&mut self, id: SocketId, send: &[u8], receive: &[u8]) -> io::Result<()> {
        let socket = self.sockets.get_mut(id.0).ok_or(io::ErrorKind::NotConnected)?;
        socket.secure = true;
        // What has come already may have been reported.
        socket.readable = true;
        sys::secure(socket.fd.as_raw_fd(), send, receive)
    }

    pub(crate) fn delivery(&mut self, id: SocketId) -> Option<Delivery> {
        self.sockets.get_mut(id.0).and_then(|socket| sys::delivery(socket.fd.as_raw_fd()))
    }

    pub(crate) fn close_socket(&mut self, id: SocketId) {
        self.end_socket(id, |fd| sys::shutdown(fd, Shutdown::Both));
    }

    pub(crate) fn abort_socket(&mut self, id: SocketId) {
        self.end_socket(id, sys::reset_on_close);
    }

    fn end_socket(&mut self, id: SocketId, how: impl FnOnce(RawFd)) {
        if self.sockets.get_mut(id.0).is_none() {
            return;
        }
        let Some(socket) = self.sockets.remove_at(id.0.index) else { return };
        if self.shrink_sockets.is_due(self.sockets.places(), self.sockets.len()) {
            self.sockets.shrink();
        }
        // Taken out by name: a duplicate of the descriptor would keep it in.
        self.poll.remove(socket.fd.as_raw_fd());
        how(socket.fd.as_raw_fd());
        let result = libc::ECANCELED;
        if let Some(Recv { bufs, token, .. }) = socket.recv {
            self.ended.push(Event::Received { token, bufs, result: Err(result) });
        }
        if let Some((chain, token)) = socket.send {
            self.ended.push(Event::Sent { token, chain, result: Err(result) });
        }
    }

    pub(crate) fn recv(
        &mut self,
        id: SocketId,
        bufs: RxBufs,
        token: Token,
    ) -> Result<(), (RxBufs, i32)> {
        self.queue_recv(id, Recv { bufs, token, discard: 0 })
    }

    pub(crate) fn discard_recv(
        &mut self,
        id: SocketId,
        len: usize,
        token: Token,
    ) -> Result<(), (RxBufs, i32)> {
        self.queue_recv(id, Recv { bufs: RxBufs::none(), token, discard: len })
    }

    fn queue_recv(&mut self, id: SocketId, recv: Recv) -> Result<(), (RxBufs, i32)> {
        match self.sockets.get_mut(id.0) {
            None => Err((recv.bufs, libc::EBADF)),
            Some(Socket { failed: Some(errno), .. }) => Err((recv.bufs, *errno)),
            Some(Socket { recv: Some(_), .. }) => Err((recv.bufs, libc::EBUSY)),
            Some(socket) => {
                socket.recv = Some(recv);
                if socket.readable {
                    self.attempts.push((Attempt::Recv, id.0.index));
                }
                Ok(())
            }
        }
    }

    pub(crate) fn sending(&mut self, id: SocketId) -> Option<&TxChain> {
        self.sockets.get_mut(id.0)?.send.as_ref().map(|(chain, _)| chain)
    }

    pub(crate) fn send(
        &mut self,
        id: SocketId,
        chain: TxChain,
        token: Token,
    ) -> Result<(), (TxChain, i32)> {
        match self.sockets.get_mut(id.0) {
            None => Err((chain, libc::EBADF)),
            Some(Socket { failed: Some(errno), .. }) => Err((chain, *errno)),
            Some(Socket { send: Some(_), .. }) => Err((chain, libc::EBUSY)),
            Some(socket) => {
                socket.send = Some((chain, token));
                if socket.writable {
                    self.attempts.push((Attempt::Send, id.0.index));
                }
                Ok(())
            }
        }
    }

    /// Tries what was queued since the last wait.
    pub(super) fn try_queued(&mut self, events: &mut Vec<Event>) {
        let mut attempts = std::mem::take(&mut self.attempts);
        for (what, index) in attempts.drain(..) {
            match what {
                Attempt::Recv => self.try_recv(index, events),
                Attempt::Send => self.try_send(index, events),
            }
        }
        self.attempts = attempts;
    }

    /// The kernel reports a change.
    pub(super) fn socket_ready(&mut self, index: u32, what: i32, events: &mut Vec<Event>) {
        let Some(socket) = self.sockets.at(index) else { return };
        let broken = what & (libc::EPOLLHUP | libc::EPOLLERR) != 0;
        socket.hung_up |= broken || what & libc::EPOLLRDHUP != 0;
        socket.readable |= socket.hung_up || what & libc::EPOLLIN != 0;
        socket.writable |= broken || what & libc::EPOLLOUT != 0;
        self.try_send(index, events);
        self.try_recv(index, events);
    }

    fn try_recv(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(socket) = self.sockets.at(index) else { return };
        let Some(Recv { bufs, discard, .. }) = &mut socket.recv else { return };
        if !socket.readable {
            return;
        }
        self.counters.operations += 1;
        let room = if *discard > 0 { *discard } else { bufs.room() };
        let (mut vectors, count) = bufs.vectors();
        let mut message = sys::empty_message();
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = count as _;
        let fd = socket.fd.as_raw_fd();
        let result = sys::retry(|| {
            if *discard > 0 {
                let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
                // SAFETY: with MSG_TRUNC, TCP writes nowhere; others fail at the null pointer.
                return unsafe { libc::recv(fd, std::ptr::null_mut(), *discard, flags) };
            }
            // SAFETY: the vectors lead into buffers that this operation owns.
            unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) }
        });
        if result == Err(libc::EAGAIN) {
            socket.readable = false;
            return;
        }
        // A stream's receive that ends short has emptied it. What comes later is reported, except
        // for an end that was reported already.
        if !socket.hung_up && !socket.secure && result.is_ok_and(|n| n < room) {
            socket.readable = false;
        }
        if let Some(Recv { bufs, token, .. }) = socket.recv.take() {
            events.push(Event::Received { token, bufs, result });
        }
    }

    fn try_send(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(socket) = self.sockets.at(index) else { return };
        let Some((chain, _)) = &mut socket.send else { return };
        if !socket.writable {
            return;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let fd = socket.fd.as_raw_fd();
        let result = loop {
            let vectors = chain.next_message();
            let mut message = sys::empty_message();
            message.msg_iov = vectors.as_ptr().cast_mut();
            message.msg_iovlen = vectors.len() as _;
            self.counters.operations += 1;
            // SAFETY: the vectors lead to memory that the chain keeps alive; `sendmsg` only reads.
            match sys::retry(|| unsafe { libc::sendmsg(fd, &raw const message, flags) }) {
                Ok(0) => break Err(libc::EPIPE),
                Ok(n) => {
                    chain.advance(n);
                    if chain.unsent().is_empty() {
                        break Ok(());
                    }
                    self.counters.partial_sends += 1;
                }
                Err(libc::EAGAIN) => {
                    socket.writable = false;
                    return;
                }
                Err(errno) => break Err(errno),
            }
        };
        if let Some((chain, token)) = socket.send.take() {
            events.push(Event::Sent { token, chain, result });
        }
    }
}

/// What was queued and is to be tried by the next wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attempt {
    Recv,
    Send,
}
