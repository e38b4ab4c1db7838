//! A device, as one shard has it: an adapter, or in tests one that needs none.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use lunet_ring::{Arena, Buf};
use lunet_verbs::{
    Adapter, AdapterConfig, CmId, Completion, ConnParams, EndpointConfig, EndpointId, Error,
    NotQueued, Operation, Path, Pieces, Remote, Status,
};

#[cfg(any(test, feature = "fake"))]
use super::fake;

/// A device of one shard.
pub enum Port {
    /// A real one, and the list that its completions are taken into.
    Verbs(Box<Adapter>, Vec<Completion>),
    /// One in memory.
    #[cfg(any(test, feature = "fake"))]
    Fake(fake::Adapter),
}

/// Names the queue pair of a connection at its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// At a real device.
    Verbs(EndpointId),
    /// In memory.
    #[cfg(any(test, feature = "fake"))]
    Fake(u32),
}

/// The end of a piece of work.
pub struct Done {
    /// Whose it was.
    pub endpoint: Endpoint,
    /// What it was queued with.
    pub token: u64,
    /// What it was.
    pub operation: Operation,
    /// How it ended.
    pub status: Status,
    /// Bytes received or read.
    pub bytes: u32,
    /// The buffer of a receive or a read.
    pub buf: Option<Buf>,
}

impl From<Completion> for Done {
    fn from(done: Completion) -> Self {
        let Completion { endpoint, token, operation, status, bytes, buf, .. } = done;
        Self { endpoint: Endpoint::Verbs(endpoint), token, operation, status, bytes, buf }
    }
}

/// A connection for which there was no room.
pub struct NotOpened {
    /// Why, in a sentence.
    pub why: Error,
    /// The connection, to be rejected.
    pub id: CmId,
}

/// Calls the same method of whichever port it is.
macro_rules! port {
    ($self:ident, $port:ident => $call:expr) => {
        match $self {
            Port::Verbs($port, _) => $call,
            #[cfg(any(test, feature = "fake"))]
            Port::Fake($port) => $call,
        }
    };
    ($self:ident, $of:expr, $port:ident, $endpoint:ident => $call:expr) => {
        match ($self, $of) {
            (Port::Verbs($port, _), Endpoint::Verbs($endpoint)) => $call,
            #[cfg(any(test, feature = "fake"))]
            (Port::Fake($port), Endpoint::Fake($endpoint)) => $call,
            #[cfg(any(test, feature = "fake"))]
            _ => unreachable!("an endpoint of another kind of port"),
        }
    };
}

impl Port {
    /// Opens a device for a shard, and registers the shard's memory with it. `shared`: receives of a queue
    /// for all connections, if the device has such queues.
    ///
    /// # Errors
    /// The limit of locked memory, or the device has no room.
    pub fn open(
        device: &lunet_verbs::Device,
        arena: &Arena,
        shared: u32,
        shard: usize,
    ) -> Result<Self, Error> {
        let completions = device.limits().completions.min(super::COMPLETIONS);
        let interrupt = shard as u32;
        // Each connection's own operations need places for their completions, too.
        let shared_receives = Some(shared.min(completions / 4));
        let config = AdapterConfig { completions, shared_receives, interrupt };
        Ok(Self::Verbs(Box::new(Adapter::open(device, arena, &config)?), Vec::new()))
    }

    /// The descriptor that tells of completions.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Verbs(adapter, _) => adapter.as_fd(),
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(adapter) => adapter.as_fd(),
        }
    }

    /// The real device.
    pub fn adapter(&mut self) -> Option<&mut Adapter> {
        match self {
            Self::Verbs(adapter, _) => Some(adapter),
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => None,
        }
    }

    /// True if a connection is one of this device.
    pub fn is_of(&self, id: &CmId) -> bool {
        match self {
            Self::Verbs(adapter, _) => id.is_on(adapter.device()),
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => false,
        }
    }

    /// Responses may take back keys of the client (Send with Invalidate).
    pub fn invalidates(&self) -> bool {
        match self {
            Self::Verbs(adapter, _) => adapter.device().limits().invalidates,
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => true,
        }
    }

    /// Makes the queue pair of a connection.
    ///
    /// # Errors
    /// [`NotOpened`], with the connection.
    pub fn open_endpoint(&mut self, id: CmId, receives: u32) -> Result<Endpoint, Box<NotOpened>> {
        let Some(adapter) = self.adapter() else {
            return Err(Box::new(NotOpened { why: Error::Ended, id }));
        };
        let sends = super::SENDS.min(adapter.device().limits().queue_depth);
        match adapter.open_endpoint(id, EndpointConfig { sends, receives }) {
            Ok(id) => Ok(Endpoint::Verbs(id)),
            Err(not) => Err(Box::new(NotOpened { why: not.error, id: not.id })),
        }
    }

    /// Says yes to the client.
    ///
    /// # Errors
    /// The client has given up, or the device refuses.
    pub fn accept(&mut self, endpoint: Endpoint, params: ConnParams<'_>) -> Result<(), Error> {
        match (self, endpoint) {
            (Self::Verbs(adapter, _), Endpoint::Verbs(id)) => adapter.accept(id, params),
            #[cfg(any(test, feature = "fake"))]
            _ => Err(Error::Ended),
        }
    }

    /// Where a connection goes along.
    pub fn path(&self, endpoint: Endpoint) -> Option<Path> {
        match (self, endpoint) {
            (Self::Verbs(adapter, _), Endpoint::Verbs(id)) => adapter.path(id).ok(),
            #[cfg(any(test, feature = "fake"))]
            _ => None,
        }
    }

    /// Queues a receive of one message.
    pub fn queue_receive(
        &mut self,
        endpoint: Endpoint,
        buf: Buf,
        token: u64,
    ) -> Result<(), Box<NotQueued<Buf>>> {
        port!(self, endpoint, port, id => port.queue_receive(id, buf, token))
    }

    /// Receives of the queue of all connections that can take a message, at most; `None` if each has its own.
    pub fn shared_depth(&self) -> Option<u32> {
        port!(self, port => port.shared_depth())
    }

    /// Receives in the queue of all connections that can take a message, at least.
    pub fn shared_receives(&self) -> u32 {
        port!(self, port => port.shared_receives())
    }

    /// Receives that this queue takes now.
    pub fn shared_room(&self) -> u32 {
        port!(self, port => port.shared_room())
    }

    /// Receives of that queue that connections may have kept when they ended, at most.
    pub fn shared_lost(&self) -> u32 {
        port!(self, port => port.shared_lost())
    }

    /// True if a connection takes its receives from the queue of all.
    pub fn shares_receives(&self, endpoint: Endpoint) -> bool {
        port!(self, endpoint, port, id => port.shares_receives(id))
    }

    /// Queues a receive for whichever connection the next message comes to.
    pub fn queue_shared_receive(&mut self, buf: Buf) -> Result<(), Box<NotQueued<Buf>>> {
        port!(self, port => port.queue_shared_receive(buf))
    }

    /// The token of receives that a connection takes from the queue of all.
    pub fn set_receive_token(&mut self, endpoint: Endpoint, token: u64) {
        port!(self, endpoint, port, id => port.set_receive_token(id, token));
    }

    /// Gives back what the queue of all connections holds, if none takes from it.
    pub fn renew_shared(&mut self) {
        port!(self, port => port.renew_shared());
    }

    /// Queues a message. `report`: its end is told even if it was sent.
    pub fn queue_send(
        &mut self,
        endpoint: Endpoint,
        (head, data): (&[u8], Pieces),
        invalidate: Option<u32>,
        (token, report): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        port!(self, endpoint, port, id => port.queue_send(id, head, data, invalidate, (token, report)))
    }

    /// Queues data for the client's memory.
    pub fn queue_write(
        &mut self,
        endpoint: Endpoint,
        data: Pieces,
        to: Remote,
        (token, report): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        port!(self, endpoint, port, id => port.queue_write(id, data, to, (token, report)))
    }

    /// Queues a read of the client's memory.
    pub fn queue_read(
        &mut self,
        endpoint: Endpoint,
        (into, range): (Buf, Range<usize>),
        from: Remote,
        token: u64,
    ) -> Result<(), Box<NotQueued<Buf>>> {
        port!(self, endpoint, port, id => port.queue_read(id, into, range, from, token))
    }

    /// How many more sends, writes and reads fit.
    pub fn room(&self, endpoint: Endpoint) -> usize {
        port!(self, endpoint, port, id => port.room(id))
    }

    /// Ends a queue pair: nothing of it comes later, and its memory is free.
    pub fn close(&mut self, endpoint: Endpoint) {
        port!(self, endpoint, port, id => port.close(id));
    }

    /// Hands everything that was queued to the device. True if it has refused some of it, which the next
    /// poll tells.
    pub fn flush(&mut self) -> bool {
        match self {
            Self::Verbs(adapter, _) => {
                adapter.flush();
                adapter.has_refused()
            }
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(adapter) => adapter.flush(),
        }
    }

    /// Takes ends of work. True if there may be more.
    ///
    /// # Errors
    /// The device has failed.
    pub fn poll(&mut self, done: &mut Vec<Done>) -> Result<bool, Error> {
        match self {
            Self::Verbs(adapter, completions) => {
                let more = adapter.poll(completions)?;
                done.extend(completions.drain(..).map(Done::from));
                Ok(more)
            }
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(adapter) => adapter.poll(done),
        }
    }

    /// Asks to be told of the next receive, and with `ends` of all ends of work; those that are there already
    /// are not told of. `told`: the descriptor has been readable since the last call.
    ///
    /// # Errors
    /// The device has failed.
    pub fn arm(&mut self, told: bool, ends: bool) -> Result<(), Error> {
        port!(self, port => port.arm(told, ends))
    }
}
