//! Sockets on io_uring.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use io_uring::opcode;

use super::Uring;
use super::queue::{Handle, Kind};
use super::zero_copy::{self, Usage};
use crate::sys;
use crate::{Delivery, Event, Payload, RxBufs, SocketId, Token, TxChain};

/// The kernel's `IORING_RECVSEND_POLL_FIRST` (Linux 5.19): wait for data before the first attempt.
const POLL_FIRST: u16 = 1;

const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

/// The kernel's TLS refuses MSG_WAITALL; what is left of a chain is sent by another operation then.
const SECURE_SEND_FLAGS: i32 = libc::MSG_NOSIGNAL;

/// A message header and its vectors, at an address that does not change.
struct RecvMessage {
    header: libc::msghdr,
    vectors: [libc::iovec; 2],
}

struct Recv {
    bufs: RxBufs,
    token: Token,
    /// Bytes to be thrown away; 0: the buffers are to be filled.
    discard: usize,
}

impl Recv {
    /// Bytes that it takes at the most.
    fn room(&self) -> usize {
        if self.discard > 0 { self.discard } else { self.bufs.room() }
    }
}

struct Send {
    chain: TxChain,
    token: Token,
    /// Its place among the chains that may be held, once a message of it went out without a copy.
    place: Option<u32>,
    /// The message under way goes out without a copy.
    zero_copy: bool,
}

impl Send {
    /// What names the operation under way.
    const fn user_data(&self, index: u32) -> u64 {
        match self.place {
            Some(place) if self.zero_copy => zero_copy::user_data(place),
            _ => Kind::Send.user_data(index),
        }
    }
}

pub(super) struct Socket {
    fd: OwnedFd,
    handle: Handle,
    recv: Option<Recv>,
    send: Option<Send>,
    recv_message: Box<RecvMessage>,
    send_message: Box<libc::msghdr>,
    /// The last receive did not fill its buffers, so there was nothing left to receive.
    drained: bool,
    closing: bool,
    /// It is reset when its descriptor is closed.
    pub(super) resets: bool,
    /// What it holds after sends without a copy.
    pub(super) usage: Usage,
    /// What sends are asked for.
    send_flags: i32,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, handle: Handle) -> Self {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            fd,
            handle,
            recv: None,
            send: None,
            recv_message: Box::new(RecvMessage {
                header: sys::empty_message(),
                vectors: [empty; 2],
            }),
            send_message: Box::new(sys::empty_message()),
            drained: false,
            closing: false,
            resets: false,
            usage: Usage::default(),
            send_flags: SEND_FLAGS,
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The kernel's TLS has no sends without a copy.
    fn note_secure(&mut self) {
        self.send_flags = SECURE_SEND_FLAGS;
        self.usage.off = true;
    }

    const fn is_idle(&self) -> bool {
        self.recv.is_none() && self.send.is_none()
    }
}

impl Uring {
    pub(crate) fn add_socket(&mut self, fd: OwnedFd) -> SocketId {
        // io_uring answers EAGAIN on a non-blocking descriptor instead of waiting.
        sys::set_blocking(fd.as_raw_fd());
        let handle = self.places.register(&self.queue.submitter(), fd.as_raw_fd());
        let secure = sys::is_secure(fd.as_raw_fd());
        let mut socket = Socket::new(fd, handle);
        if secure {
            socket.note_secure();
        }
        SocketId(self.sockets.insert(socket))
    }

    pub(crate) fn secure(&mut self, id: SocketId, send: &[u8], receive: &[u8]) -> io::Result<()> {
        let socket = self.sockets.get_mut(id.0).ok_or(io::ErrorKind::NotConnected)?;
        socket.note_secure();
        sys::secure(socket.fd.as_raw_fd(), send, receive)
    }

    pub(crate) fn delivery(&mut self, id: SocketId) -> Option<Delivery> {
        self.sockets.get_mut(id.0).and_then(|socket| sys::delivery(socket.fd.as_raw_fd()))
    }

    pub(crate) fn sending(&mut self, id: SocketId) -> Option<&TxChain> {
        self.sockets.get_mut(id.0)?.send.as_ref().map(|send| &send.chain)
    }

    /// True if the kernel still refers to such a payload of a chain that the socket has taken.
    pub(crate) fn holds(&self, id: SocketId, such: &mut dyn FnMut(&Payload) -> bool) -> bool {
        self.holds.has(id.0, such)
    }

    pub(crate) fn close_socket(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id.0).filter(|socket| !socket.closing) else {
            return;
        };
        sys::shutdown(socket.fd.as_raw_fd(), Shutdown::Both);
        self.end_socket(id);
    }

    pub(crate) fn abort_socket(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id.0).filter(|socket| !socket.closing) else {
            return;
        };
        // Not shut down: that would let what was queued go out before the close.
        sys::reset_on_close(socket.fd.as_raw_fd());
        socket.resets = true;
        self.end_socket(id);
    }

    fn end_socket(&mut self, id: SocketId) {
        let Some(socket) = self.sockets.get_mut(id.0) else { return };
        socket.closing = true;
        // A shutdown ends most operations; cancelling ends those of unconnected sockets, and of those that are reset.
        if socket.recv.is_some() {
            self.queue.push_cancel(Kind::Recv.user_data(id.0.index));
        }
        if let Some(send) = &socket.send {
            self.queue.push_cancel(send.user_data(id.0.index));
        }
        self.release_if_closed(id.0.index);
    }

    /// Ends a closed socket whose last operation has ended. Chains that the kernel still refers to outlive it if it is
    /// reset, which has the kernel let go of them; else it waits for them.
    pub(super) fn release_if_closed(&mut self, index: u32) {
        let Some(socket) = self.sockets.at(index) else { return };
        let handle = socket.handle;
        if socket.closing && socket.is_idle() && !self.lingers(index) {
            self.places.unregister(&self.queue.submitter(), handle);
            self.sockets.remove_at(index);
            if self.shrink_sockets.is_due(self.sockets.places(), self.sockets.len()) {
                self.sockets.shrink();
            }
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
            None => return Err((recv.bufs, libc::EBADF)),
            Some(socket) if socket.closing => return Err((recv.bufs, libc::ECANCELED)),
            Some(socket) if socket.recv.is_some() => return Err((recv.bufs, libc::EBUSY)),
            Some(socket) => socket.recv = Some(recv),
        }
        self.start_recv(id.0.index);
        Ok(())
    }

    fn start_recv(&mut self, index: u32) {
        let Some(socket) = self.sockets.at(index) else { return };
        let Some(recv) = &mut socket.recv else { return };
        let (vectors, count) = recv.bufs.vectors();
        let poll_first = self.poll_first && socket.drained;
        let ioprio = if poll_first { POLL_FIRST } else { 0 };
        let fd = socket.handle.number();
        let entry = if recv.discard > 0 {
            // The address means nothing: with MSG_TRUNC, TCP writes nowhere (tcp(7)). Not with
            // MSG_WAITALL: the kernel counts what is left by what was written (Linux 6.18).
            let len = u32::try_from(recv.discard).unwrap_or(i32::MAX as u32);
            let entry = opcode::Recv::new(fd, std::ptr::null_mut(), len);
            entry.flags(libc::MSG_TRUNC).ioprio(ioprio).build()
        } else if count == 1 {
            let len = u32::try_from(vectors[0].iov_len).unwrap_or(i32::MAX as u32);
            opcode::Recv::new(fd, vectors[0].iov_base.cast(), len).ioprio(ioprio).build()
        } else {
            let message = &mut *socket.recv_message;
            message.vectors = vectors;
            message.header.msg_iov = message.vectors.as_mut_ptr();
            message.header.msg_iovlen = count as _;
            opcode::RecvMsg::new(fd, &raw mut message.header).ioprio(ioprio).build()
        };
        let entry = socket.handle.finish(entry, Kind::Recv.user_data(index));
        self.queue.counters.polled_receives += u64::from(poll_first);
        // SAFETY: the buffers lie in `socket.recv` and the header in a box of the socket. Both
        // stay there untouched until `recv_done`: a second receive is refused, and the socket
        // is not removed while it has one.
        unsafe { self.queue.push(entry) };
    }

    pub(super) fn recv_done(&mut self, index: u32, result: i32, events: &mut Vec<Event>) {
        let Some(socket) = self.sockets.at(index) else { return };
        let again = matches!(-result, libc::EAGAIN | libc::EINTR) && !socket.closing;
        if again {
            socket.drained = true;
            self.start_recv(index);
            return;
        }
        let closing = socket.closing;
        let Some(recv) = socket.recv.take() else { return };
        let room = recv.room();
        let Recv { bufs, token, .. } = recv;
        let result = match usize::try_from(result) {
            _ if closing => Err(libc::ECANCELED),
            Ok(n) => Ok(n),
            Err(_) => Err(-result),
        };
        socket.drained = result.is_ok_and(|n| n < room);
        events.push(Event::Received { token, bufs, result });
        self.release_if_closed(index);
    }

    pub(crate) fn send(
        &mut self,
        id: SocketId,
        chain: TxChain,
        token: Token,
    ) -> Result<(), (TxChain, i32)> {
        match self.sockets.get_mut(id.0) {
            None => return Err((chain, libc::EBADF)),
            Some(socket) if socket.closing => return Err((chain, libc::ECANCELED)),
            Some(socket) if socket.send.is_some() => return Err((chain, libc::EBUSY)),
            Some(socket) => {
                socket.send = Some(Send { chain, token, place: None, zero_copy: false });
            }
        }
        self.start_send(id.0.index, self.holds.possible);
        Ok(())
    }

    /// Sends the next message of a socket's chain, without a copy if that may be and pays.
    fn start_send(&mut self, index: u32, zero_copy: bool) {
        let Some(key) = self.sockets.key_at(index) else { return };
        let Some(socket) = self.sockets.at(index) else { return };
        let Some(send) = &mut socket.send else { return };
        let (fd, flags) = (socket.handle.number(), socket.send_flags);
        let vectors = send.chain.next_message();
        send.zero_copy = zero_copy && socket.usage.wants(vectors, &self.arena);
        let header = &mut *socket.send_message;
        header.msg_iov = vectors.as_ptr().cast_mut();
        header.msg_iovlen = vectors.len() as _;
        let entry = match vectors {
            _ if send.zero_copy => {
                send.place.get_or_insert_with(|| self.holds.begin(key));
                zero_copy::entry(fd, vectors, header, flags)
            }
            [one] => {
                let len = u32::try_from(one.iov_len).unwrap_or(i32::MAX as u32);
                opcode::Send::new(fd, one.iov_base.cast(), len).flags(flags).build()
            }
            _ => opcode::SendMsg::new(fd, header).flags(flags as u32).build(),
        };
        let entry = socket.handle.finish(entry, send.user_data(index));
        // SAFETY: the chain with its bytes, payloads and vectors stays untouched in
        // `socket.send`, and the header in its box, until `send_done`; see `start_recv`. After that the
        // chain of a message without a copy stays in `holds` until all notifications have come.
        unsafe { self.queue.push(entry) };
    }

    pub(super) fn send_done(&mut self, index: u32, result: i32, events: &mut Vec<Event>) {
        let Some(socket) = self.sockets.at(index) else { return };
        let Some(send) = &mut socket.send else { return };
        if result > 0 {
            send.chain.advance(result as usize);
        }
        let (finished, refusable) = (send.chain.unsent().is_empty(), send.zero_copy);
        let go_on = result > 0 || matches!(-result, libc::EAGAIN | libc::EINTR);
        if !finished && !socket.closing {
            if go_on {
                self.queue.counters.partial_sends += 1;
                return self.start_send(index, self.holds.possible);
            }
            if refusable && self.refused_zero_copy(index, -result) {
                return self.start_send(index, false);
            }
        }
        let Some(socket) = self.sockets.at(index) else { return };
        let result = match result {
            _ if finished => Ok(()),
            _ if socket.closing => Err(libc::ECANCELED),
            0 => Err(libc::EPIPE),
            error => Err(-error),
        };
        if let Some(Send { chain, token, place, .. }) = socket.send.take() {
            let chain = match place {
                Some(place) => self.holds.end(place, chain, &mut socket.usage),
                None => chain,
            };
            events.push(Event::Sent { token, chain, result });
        }
        self.release_if_closed(index);
    }

    /// Closes all sockets, for the end of the event loop.
    pub(super) fn close_all_sockets(&mut self) {
        let mut busy = Vec::new();
        for (index, socket) in self.sockets.iter_mut() {
            sys::shutdown(socket.fd.as_raw_fd(), Shutdown::Both);
            socket.closing = true;
            let send = socket.send.as_ref().map(|send| send.user_data(index));
            busy.push((index, socket.recv.is_some(), send));
        }
        for (index, recv, send) in busy {
            if recv {
                self.queue.push_cancel(Kind::Recv.user_data(index));
            }
            if let Some(user_data) = send {
                self.queue.push_cancel(user_data);
            }
            self.release_if_closed(index);
        }
    }
}
