//! Sockets of a simulated world.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lunet_os::simulated;

use super::Simulated;
use super::net::{End, Net, Received};
use crate::{Delivery, Event, RxBufs, SocketId, Token, TxChain};

/// A listener, which holds its real address so that no other world has it too.
pub(super) struct Accepting {
    pub(super) token: Token,
    pub(super) address: SocketAddr,
    pub(super) _listener: TcpListener,
}

pub(super) struct Socket {
    /// Its number names the stream between the accept and here; it stays open so that no other gets it.
    _descriptor: OwnedFd,
    end: Option<End>,
    recv: Option<(RxBufs, Token)>,
    send: Option<(TxChain, Token)>,
    /// What is left of the chain.
    unsent: Vec<u8>,
    /// Bytes delivered when somebody last looked, and when that was more than before.
    heard: (u64, Duration),
}

impl Simulated {
    pub(super) fn accepted(&mut self, token: Token, end: End, events: &mut Vec<Event>) {
        let net = simulated::part::<Net>();
        if !self.listeners.iter().any(|accepting| accepting.token == token) {
            return net.close(end);
        }
        let (Ok((socket, other)), Some(peer)) = (UnixStream::pair(), net.peer(end)) else { return };
        if other.set_nonblocking(true).is_err() {
            return;
        }
        net.name(&socket, other, end);
        let socket = OwnedFd::from(socket);
        events.push(Event::Accepted { token, socket, peer });
    }

    pub(crate) fn add_socket(&mut self, fd: OwnedFd) -> SocketId {
        let end = simulated::part::<Net>().adopt(fd.as_raw_fd(), &self.teller);
        let heard = (0, simulated::elapsed().unwrap_or_default());
        let socket =
            Socket { _descriptor: fd, end, recv: None, send: None, unsent: Vec::new(), heard };
        SocketId(self.sockets.insert(socket))
    }

    pub(crate) fn close_socket(&mut self, id: SocketId) {
        self.end_socket(id, Net::close);
    }

    pub(crate) fn abort_socket(&mut self, id: SocketId) {
        self.end_socket(id, Net::reset);
    }

    fn end_socket(&mut self, id: SocketId, how: impl FnOnce(&Net, End)) {
        let Some(socket) = self.sockets.remove(id.0) else { return };
        if let Some(end) = socket.end {
            how(&simulated::part::<Net>(), end);
        }
        let result = Err(libc::ECANCELED);
        if let Some((bufs, token)) = socket.recv {
            self.ended.push(Event::Received { token, bufs, result });
        }
        if let Some((chain, token)) = socket.send {
            self.ended.push(Event::Sent { token, chain, result: Err(libc::ECANCELED) });
        }
    }

    /// What is sent stays clear text: the kernel's part is not simulated.
    pub(crate) fn secure(&mut self, id: SocketId, _: &[u8], _: &[u8]) -> io::Result<()> {
        self.sockets.get_mut(id.0).map(drop).ok_or(io::ErrorKind::NotConnected.into())
    }

    pub(crate) fn delivery(&mut self, id: SocketId) -> Option<Delivery> {
        let socket = self.sockets.get_mut(id.0)?;
        let bytes = simulated::part::<Net>().delivered(socket.end?)?;
        let now = simulated::elapsed()?;
        if bytes != socket.heard.0 {
            socket.heard = (bytes, now);
        }
        Some(Delivery { bytes, ago: now - socket.heard.1 })
    }

    pub(crate) fn recv(
        &mut self,
        id: SocketId,
        bufs: RxBufs,
        token: Token,
    ) -> Result<(), (RxBufs, i32)> {
        match self.sockets.get_mut(id.0) {
            None => Err((bufs, libc::EBADF)),
            Some(Socket { recv: Some(_), .. }) => Err((bufs, libc::EBUSY)),
            Some(socket) => {
                socket.recv = Some((bufs, token));
                Ok(())
            }
        }
    }

    pub(crate) fn discard_recv(
        &mut self,
        _: SocketId,
        _: usize,
        _: Token,
    ) -> Result<(), (RxBufs, i32)> {
        Err((RxBufs::none(), libc::EOPNOTSUPP))
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
            Some(Socket { send: Some(_), .. }) => Err((chain, libc::EBUSY)),
            Some(socket) => {
                socket.unsent = chain.gathered();
                socket.send = Some((chain, token));
                Ok(())
            }
        }
    }

    /// Tries every socket on which something is queued.
    pub(super) fn try_sockets(&mut self, events: &mut Vec<Event>) {
        for (_, socket) in self.sockets.iter_mut() {
            socket.attempt(events);
        }
        self.counters.operations += 1;
    }

    pub(super) fn stream_changed(&mut self, end: End, events: &mut Vec<Event>) {
        let found = self.sockets.iter_mut().find(|(_, socket)| socket.end == Some(end));
        if let Some((_, socket)) = found {
            socket.attempt(events);
        }
    }
}

impl Socket {
    fn attempt(&mut self, events: &mut Vec<Event>) {
        let net = simulated::part::<Net>();
        if let Some((chain, token)) = self.send.take() {
            match self.end.and_then(|end| net.send(end, &self.unsent)) {
                None => events.push(Event::Sent { token, chain, result: Err(libc::EPIPE) }),
                Some(n) => {
                    self.unsent.drain(..n);
                    if self.unsent.is_empty() {
                        events.push(Event::Sent { token, chain, result: Ok(()) });
                    } else {
                        self.send = Some((chain, token));
                    }
                }
            }
        }
        let Some((mut bufs, token)) = self.recv.take() else { return };
        let most = match simulated::below(8) {
            0 => 1 + simulated::below(bufs.room() as u64) as usize,
            _ => bufs.room(),
        };
        let received = self.end.map_or(Received::Reset, |end| net.receive(end, most));
        let result = match received {
            Received::Nothing => {
                self.recv = Some((bufs, token));
                return;
            }
            Received::Bytes(bytes) => {
                bufs.fill(&bytes);
                Ok(bytes.len())
            }
            Received::Ended => Ok(0),
            Received::Reset => Err(libc::ECONNRESET),
        };
        events.push(Event::Received { token, bufs, result });
    }
}
