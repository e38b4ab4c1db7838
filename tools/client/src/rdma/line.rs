//! One RDMA connection.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lunet_ring::{Buf, Payload};
use lunet_verbs::{Completion, EndpointId, HEAD_MAX, Operation, Pieces};

use super::port::Made;
use super::{Error, Memory, Plain, Posts, Shared};

/// How a connection is asked for.
pub(crate) struct Wants<'a> {
    /// Receives to keep posted.
    pub receives: u32,
    /// Length of each.
    pub receive_len: usize,
    /// What the target is sent along.
    pub private: &'a [u8],
    /// How long it may take.
    pub patience: Duration,
}

/// A message of the target. Its buffer goes back with [`Line::repost`].
pub(crate) struct Message {
    pub buf: Buf,
    pub len: usize,
    /// The key that it took back.
    pub invalidated: Option<u32>,
}

/// What has come.
pub(crate) enum Arrived {
    Message(Message),
    /// The connection is over.
    Closed,
    /// Nothing, for so long as was to be waited.
    Nothing,
}

/// A connection that stands. It ends when this is dropped.
pub struct Line {
    port: Shared,
    endpoint: EndpointId,
    token: u64,
    peer: SocketAddr,
    is_local: bool,
    patience: Duration,
    /// `None` once the connection under load has it.
    memory: Option<Memory>,
    /// Sends, and how many of the last did not report their end.
    sends: u32,
    silent: u32,
    is_over: bool,
}

impl Line {
    /// Connects to the first address of a host that answers.
    pub(crate) fn connect(
        port: &Shared,
        host: &str,
        number: u16,
        wants: &Wants<'_>,
    ) -> Result<Self, Error> {
        let made = port.borrow_mut().connect(host, number, wants)?;
        let Made { endpoint, token, peer, local, memory, sends } = made;
        let ip = peer.ip().to_canonical();
        let is_local = ip.is_loopback() || local.is_some_and(|local| local.to_canonical() == ip);
        let (port, memory) = (Rc::clone(port), Some(memory));
        let (silent, is_over, patience) = (0, false, wants.patience);
        Ok(Self { port, endpoint, token, peer, is_local, patience, memory, sends, silent, is_over })
    }

    /// Names it among those of its port.
    pub(crate) const fn token(&self) -> u64 {
        self.token
    }

    /// The address that answered.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.peer
    }

    /// True if what answered is on this machine.
    pub(crate) const fn is_local(&self) -> bool {
        self.is_local
    }

    /// The memory that the target may reach.
    pub(crate) const fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    /// The same, for whoever makes the load.
    pub(crate) const fn take_memory(&mut self) -> Option<Memory> {
        self.memory.take()
    }

    /// Hands Sends to the device, as many as it takes.
    pub(crate) fn post(&mut self, posts: &mut Posts) {
        while let Some((post, bytes)) = posts.first() {
            let data = post.data.as_ref().map(|(source, range)| &source.as_ref()[range.clone()]);
            if !self.queue(&bytes[post.head.clone()], data.unwrap_or_default()) {
                self.port.borrow_mut().starved = true;
                return;
            }
            posts.taken();
        }
    }

    /// Hands Sends to the device, and waits until it has taken all.
    pub(crate) fn send(&mut self, plain: &mut Plain, end: Instant) -> Result<(), Error> {
        for send in plain.sends() {
            while !self.queue(send, &[]) && !self.is_over {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Error::Silent(self.patience));
                }
                self.port.borrow_mut().wait(None, left)?;
                self.take_sends();
            }
        }
        plain.clear();
        self.port.borrow_mut().flush();
        Ok(())
    }

    /// Queues a Send. False if there is no room for it now.
    fn queue(&mut self, head: &[u8], data: &[u8]) -> bool {
        let mut port = self.port.borrow_mut();
        let (head, copied) = if head.len() <= HEAD_MAX { (head, &[][..]) } else { (&[][..], head) };
        let mut pieces = Pieces::new();
        let len = copied.len() + data.len();
        if len > 0 {
            let Some(mut buf) = port.arena().alloc(len) else { return false };
            buf[..copied.len()].copy_from_slice(copied);
            buf[copied.len()..].copy_from_slice(data);
            pieces.push((Payload::from(buf), 0..len));
        }
        // Those that say nothing are over when a later one is.
        let tells = self.silent >= self.sends / 4;
        let Some(adapter) = port.adapter() else { return false };
        let queued = adapter.queue_send(self.endpoint, head, pieces, None, (self.token, tells));
        match queued.map_err(|refused| refused.why) {
            Ok(()) => {
                self.silent = if tells { 0 } else { self.silent + 1 };
                true
            }
            Err(lunet_verbs::Why::Full) => false,
            // The completions say how it ended.
            Err(_) => {
                self.is_over = true;
                true
            }
        }
    }

    /// Takes completions of Sends from those of the port.
    fn take_sends(&mut self) {
        let (token, mut over) = (self.token, self.is_over);
        self.port.borrow_mut().done.retain(|done| {
            let own = done.token == token && done.operation != Operation::Receive;
            over |= own && !done.status.is_success();
            !own
        });
        self.is_over = over;
    }

    /// Waits for a message until then; `other` may end the wait, too.
    pub(crate) fn receive(
        &mut self,
        end: Instant,
        other: Option<BorrowedFd<'_>>,
    ) -> Result<Arrived, Error> {
        let mut waited = false;
        // Receives that were posted again.
        self.port.borrow_mut().flush();
        loop {
            self.take_sends();
            let first = self.take_first();
            match first {
                Some(done) => match message(done) {
                    Some(message) => return Ok(Arrived::Message(message)),
                    None => self.is_over = true,
                },
                None if self.is_over || self.is_down() => return Ok(Arrived::Closed),
                None => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() || (waited && other.is_some()) {
                        return Ok(Arrived::Nothing);
                    }
                    self.port.borrow_mut().wait(other, left)?;
                    waited = true;
                }
            }
        }
    }

    /// Waits for so long, or until `other` is readable: true if a message has come, or the end.
    pub(crate) fn wait(&self, other: BorrowedFd<'_>, time: Duration) -> Result<bool, Error> {
        let has_come = || {
            let port = self.port.borrow();
            port.done.iter().any(|done| {
                let received = done.operation == Operation::Receive;
                done.token == self.token && (received || !done.status.is_success())
            })
        };
        if has_come() || self.is_down() {
            return Ok(true);
        }
        self.port.borrow_mut().flush();
        self.port.borrow_mut().wait(Some(other), time)?;
        Ok(has_come() || self.is_down())
    }

    fn take_first(&self) -> Option<Completion> {
        let done = &mut self.port.borrow_mut().done;
        let at = done.iter().position(|done| done.token == self.token)?;
        Some(done.remove(at))
    }

    /// True if the connection, or its device, is gone.
    fn is_down(&self) -> bool {
        let port = self.port.borrow();
        port.failed.is_some() || port.over.iter().any(|over| over.token == self.token)
    }

    /// Posts a receive again.
    pub(crate) fn repost(&self, buf: Buf) {
        if let Some(adapter) = self.port.borrow_mut().adapter() {
            // If the connection is over, its completions say so.
            let _ = adapter.queue_receive(self.endpoint, buf, self.token);
        }
    }
}

/// The message of a completion; `None` if it failed.
pub(crate) fn message(done: Completion) -> Option<Message> {
    let Completion { status, bytes, invalidated, buf, .. } = done;
    let buf = buf.filter(|_| status.is_success())?;
    Some(Message { buf, len: bytes as usize, invalidated })
}

impl Drop for Line {
    fn drop(&mut self) {
        self.port.borrow_mut().close(self.endpoint);
    }
}
