//! One interface to an RDMA device of a shard: a real adapter, or in tests one in memory.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use lunet_ring::{Arena, Buf};
use lunet_verbs::{
    AdapterConfig, CmId, ConnParams, EndpointConfig, EndpointId, Error, NotQueued, Operation, Path,
    Pieces, Remote, Scatter, Status,
};

#[cfg(any(test, feature = "fake"))]
use super::fake;

/// An RDMA device that is open on one shard.
pub enum Adapter {
    /// A real one, and the list that its completions are polled into.
    Verbs(Box<lunet_verbs::Adapter>, Vec<lunet_verbs::Completion>),
    /// One in memory.
    #[cfg(any(test, feature = "fake"))]
    Fake(fake::Adapter),
}

/// Names the queue pair of a connection at its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// At a real device.
    Verbs(EndpointId),
    /// In memory.
    #[cfg(any(test, feature = "fake"))]
    Fake(u32),
}

/// The completion of an operation.
pub struct Completion {
    /// The connection's queue pair.
    pub(crate) endpoint: Endpoint,
    /// The token that it was queued with.
    pub(crate) token: u64,
    /// The kind of operation.
    pub(crate) operation: Operation,
    /// Success, or how it failed.
    pub(crate) status: Status,
    /// Bytes received or read.
    pub(crate) bytes: u32,
    /// The buffer of a read, or of a receive its head.
    pub(crate) buf: Option<Buf>,
    /// The body of a receive that has one.
    pub(crate) body: Option<Buf>,
}

impl From<lunet_verbs::Completion> for Completion {
    fn from(done: lunet_verbs::Completion) -> Self {
        let lunet_verbs::Completion {
            endpoint, token, operation, status, bytes, buf, body, ..
        } = done;
        Self { endpoint: Endpoint::Verbs(endpoint), token, operation, status, bytes, buf, body }
    }
}

/// A connection whose queue pair could not be created.
pub struct NotOpened {
    /// Why.
    pub(crate) why: Error,
    /// The connection, to be rejected.
    pub(crate) id: CmId,
}

/// Calls the same method of either kind of adapter.
macro_rules! dispatch {
    ($self:ident, $adapter:ident => $call:expr) => {
        match $self {
            Adapter::Verbs($adapter, _) => $call,
            #[cfg(any(test, feature = "fake"))]
            Adapter::Fake($adapter) => $call,
        }
    };
    ($self:ident, $of:expr, $adapter:ident, $endpoint:ident => $call:expr) => {
        match ($self, $of) {
            (Adapter::Verbs($adapter, _), Endpoint::Verbs($endpoint)) => $call,
            #[cfg(any(test, feature = "fake"))]
            (Adapter::Fake($adapter), Endpoint::Fake($endpoint)) => $call,
            #[cfg(any(test, feature = "fake"))]
            _ => unreachable!("an endpoint of another kind of adapter"),
        }
    };
}

impl Adapter {
    /// Opens a device for a shard, and registers the shard's arena with it. `shared`: depth of the shared receive
    /// queue, if the device supports one.
    ///
    /// # Errors
    /// The limit of locked memory (`RLIMIT_MEMLOCK`), or the device's resources are exhausted.
    pub(crate) fn open(
        device: &lunet_verbs::Device,
        arena: &Arena,
        shared: u32,
        shard: usize,
    ) -> Result<Self, Error> {
        let completions = device.limits().completions.min(super::COMPLETIONS);
        let interrupt = shard as u32;
        // The completion queue also has to hold the connections' own operations.
        let shared_receives = Some(shared.min(completions / 4));
        let config = AdapterConfig { completions, shared_receives, interrupt };
        Ok(Self::Verbs(Box::new(lunet_verbs::Adapter::open(device, arena, &config)?), Vec::new()))
    }

    /// The descriptor that becomes readable when completions were asked for and have arrived.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Verbs(adapter, _) => adapter.as_fd(),
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(adapter) => adapter.as_fd(),
        }
    }

    /// The real adapter; `None` in tests.
    pub(crate) fn verbs(&mut self) -> Option<&mut lunet_verbs::Adapter> {
        match self {
            Self::Verbs(adapter, _) => Some(adapter),
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => None,
        }
    }

    /// True if a connection request arrived by this device.
    pub(crate) fn is_of(&self, id: &CmId) -> bool {
        match self {
            Self::Verbs(adapter, _) => id.is_on(adapter.device()),
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => false,
        }
    }

    /// True if responses may invalidate remote keys (Send with Invalidate).
    pub(crate) fn invalidates(&self) -> bool {
        match self {
            Self::Verbs(adapter, _) => adapter.device().limits().invalidates,
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => true,
        }
    }

    /// RDMA Reads that a connection may have in progress, as far as the device goes.
    pub(crate) fn reads(&self) -> u8 {
        match self {
            Self::Verbs(adapter, _) => adapter.device().limits().reads,
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(_) => fake::READS,
        }
    }

    /// Creates the queue pair of a connection.
    ///
    /// # Errors
    /// [`NotOpened`], with the connection.
    pub(crate) fn open_endpoint(
        &mut self,
        id: CmId,
        receives: u32,
    ) -> Result<Endpoint, Box<NotOpened>> {
        let Some(adapter) = self.verbs() else {
            return Err(Box::new(NotOpened { why: Error::Ended, id }));
        };
        let sends = super::SENDS.min(adapter.device().limits().queue_depth);
        match adapter.open_endpoint(id, EndpointConfig { sends, receives }) {
            Ok(id) => Ok(Endpoint::Verbs(id)),
            Err(not) => Err(Box::new(NotOpened { why: not.error, id: not.id })),
        }
    }

    /// Accepts the connection.
    ///
    /// # Errors
    /// The client has given up, or the device refuses.
    pub(crate) fn accept(
        &mut self,
        endpoint: Endpoint,
        params: ConnParams<'_>,
    ) -> Result<(), Error> {
        match (self, endpoint) {
            (Self::Verbs(adapter, _), Endpoint::Verbs(id)) => adapter.accept(id, params),
            #[cfg(any(test, feature = "fake"))]
            _ => Err(Error::Ended),
        }
    }

    /// Rejects a connection that was not accepted, tells its client this, and closes it.
    pub(crate) fn reject(&mut self, endpoint: Endpoint, private: &[u8]) {
        match (&mut *self, endpoint) {
            (Self::Verbs(adapter, _), Endpoint::Verbs(id)) => adapter.reject(id, private),
            #[cfg(any(test, feature = "fake"))]
            _ => {}
        }
        self.close(endpoint);
    }

    /// The path of an established connection: port, GID, MTU.
    pub(crate) fn path(&self, endpoint: Endpoint) -> Option<Path> {
        match (self, endpoint) {
            (Self::Verbs(adapter, _), Endpoint::Verbs(id)) => adapter.path(id).ok(),
            #[cfg(any(test, feature = "fake"))]
            _ => None,
        }
    }

    /// Queues a receive of one message.
    pub(crate) fn queue_receive(
        &mut self,
        endpoint: Endpoint,
        memory: Scatter,
        token: u64,
    ) -> Result<(), Box<NotQueued<Scatter>>> {
        dispatch!(self, endpoint, adapter, id => adapter.queue_receive(id, memory, token))
    }

    /// True if the device takes receives with a body.
    pub(crate) fn scatters(&self) -> bool {
        dispatch!(self, adapter => adapter.scatters())
    }

    /// Depth of the shared receive queue; `None` if each connection has its own receives.
    pub(crate) fn shared_depth(&self) -> Option<u32> {
        dispatch!(self, adapter => adapter.shared_depth())
    }

    /// Receives in the shared queue that can take a message, at least.
    pub(crate) fn shared_receives(&self) -> u32 {
        dispatch!(self, adapter => adapter.shared_receives())
    }

    /// Receives that the shared queue takes now.
    pub(crate) fn shared_room(&self) -> u32 {
        dispatch!(self, adapter => adapter.shared_room())
    }

    /// Receives of the shared queue that connections may have kept when they ended, at most.
    pub(crate) fn shared_lost(&self) -> u32 {
        dispatch!(self, adapter => adapter.shared_lost())
    }

    /// True if a connection takes its receives from the shared queue.
    pub(crate) fn shares_receives(&self, endpoint: Endpoint) -> bool {
        dispatch!(self, endpoint, adapter, id => adapter.shares_receives(id))
    }

    /// Queues a receive to the shared queue.
    pub(crate) fn queue_shared_receive(
        &mut self,
        memory: Scatter,
    ) -> Result<(), Box<NotQueued<Scatter>>> {
        dispatch!(self, adapter => adapter.queue_shared_receive(memory))
    }

    /// Sets the token of receives that a connection takes from the shared queue.
    pub(crate) fn set_receive_token(&mut self, endpoint: Endpoint, token: u64) {
        dispatch!(self, endpoint, adapter, id => adapter.set_receive_token(id, token));
    }

    /// Recreates the shared queue, which frees its buffers. No connection may use it.
    pub(crate) fn renew_shared(&mut self) {
        dispatch!(self, adapter => adapter.renew_shared());
    }

    /// Queues a Send. `signaled`: it has a completion even if it succeeds.
    pub(crate) fn queue_send(
        &mut self,
        endpoint: Endpoint,
        (head, data): (&[u8], Pieces),
        invalidate: Option<u32>,
        (token, signaled): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        dispatch!(self, endpoint, adapter, id => adapter.queue_send(id, head, data, invalidate, (token, signaled)))
    }

    /// Queues an RDMA Write. `signaled`: it has a completion even if it succeeds.
    pub(crate) fn queue_write(
        &mut self,
        endpoint: Endpoint,
        data: Pieces,
        to: Remote,
        (token, signaled): (u64, bool),
    ) -> Result<(), Box<NotQueued<Pieces>>> {
        dispatch!(self, endpoint, adapter, id => adapter.queue_write(id, data, to, (token, signaled)))
    }

    /// Queues an RDMA Read, which is always signaled.
    pub(crate) fn queue_read(
        &mut self,
        endpoint: Endpoint,
        (into, range): (Buf, Range<usize>),
        from: Remote,
        token: u64,
    ) -> Result<(), Box<NotQueued<Buf>>> {
        dispatch!(self, endpoint, adapter, id => adapter.queue_read(id, into, range, from, token))
    }

    /// How many more Sends, Writes and Reads fit into the send queue.
    pub(crate) fn room(&self, endpoint: Endpoint) -> usize {
        dispatch!(self, endpoint, adapter, id => adapter.room(id))
    }

    /// Destroys a queue pair: it has no completions later, and its memory is free.
    pub(crate) fn close(&mut self, endpoint: Endpoint) {
        dispatch!(self, endpoint, adapter, id => adapter.close(id));
    }

    /// Posts everything that was queued to the device. True if it has refused some of it, which the next poll
    /// reports.
    pub(crate) fn flush(&mut self) -> bool {
        match self {
            Self::Verbs(adapter, _) => {
                adapter.flush();
                adapter.has_refused()
            }
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(adapter) => adapter.flush(),
        }
    }

    /// Polls for completions. True if there may be more.
    ///
    /// # Errors
    /// The device has failed or was removed.
    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) -> Result<bool, Error> {
        match self {
            Self::Verbs(adapter, completions) => {
                let more = adapter.poll(completions)?;
                done.extend(completions.drain(..).map(Completion::from));
                Ok(more)
            }
            #[cfg(any(test, feature = "fake"))]
            Self::Fake(adapter) => adapter.poll(done),
        }
    }

    /// Requests a notification for the next receive completion, and with `sends` for send completions; those that
    /// have arrived already cause none. `notified`: the descriptor has been readable since the last call.
    ///
    /// # Errors
    /// The device has failed or was removed.
    pub(crate) fn arm(&mut self, notified: bool, sends: bool) -> Result<(), Error> {
        dispatch!(self, adapter => adapter.arm(notified, sends))
    }
}
