//! What one thread has of one device: memory, completions, connections.

mod connect;
mod endpoint;
mod poll;
mod queue;
mod receive;
#[cfg(test)]
mod tests;
mod work;

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use lunet_ring::{Arena, Key, Region, Slots};

use crate::ffi::IbvWc;
use crate::memory::{Domain, Registration};
use crate::{Completion, Device, Error, Exposed, RemoteAccess};

pub use connect::{NotOpened, Path};
pub use receive::Scatter;
pub use work::{HEAD_MAX, NotQueued, Pieces, Remote, Why};

use endpoint::Endpoint;
use queue::{Channel, CompletionQueue, Queues};
use receive::{RECEIVE_SGES, Receive, SharedQueue};
use work::{ENDPOINT_GENERATIONS, RECEIVE_GENERATIONS};

/// Completions taken from the device at a time.
const BATCH: usize = 64;

/// The measures of an [`Adapter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterConfig {
    /// Completions of either kind that may wait to be polled: of sends, writes and reads at least the sum of
    /// all queues of all endpoints, and of receives likewise.
    pub completions: u32,
    /// Receives of the queue that endpoints share, and half as many more in place of lost ones; `None` for a
    /// queue of each one's own. Without effect if the device has no shared queues, or refuses one.
    pub shared_receives: Option<u32>,
    /// Which of the device's interrupts tells of completions, modulo how many it has: one for each
    /// thread, best.
    pub interrupt: u32,
}

/// The measures of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Sends, writes and reads in flight.
    pub sends: u32,
    /// Receives in flight, for an endpoint that has a queue of its own.
    pub receives: u32,
}

/// Names an endpoint of one adapter. A number that was closed is never valid again, for the next
/// 32768 endpoints at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointId(pub(crate) Key);

/// What one thread has of one device. Its descriptor ([`AsFd`]) is readable when there are
/// completions after [`arm`](Self::arm).
///
/// Work is queued without a system call, and handed over by [`flush`](Self::flush). Each ends in one
/// [`Completion`], but for sends and writes that asked for none and succeeded.
pub struct Adapter {
    // In the order in which they are let go.
    endpoints: Slots<Endpoint>,
    shared: Option<SharedQueue>,
    queues: Queues,
    receives: Slots<Receive>,
    /// Pieces of memory that a receive may have.
    receive_sges: u32,
    memory: Vec<Registration>,
    by_number: HashMap<u32, EndpointId>,
    /// Ends of work that the device refused to take.
    refused: Vec<Completion>,
    batch: Box<[IbvWc; BATCH]>,
    /// Endpoints for which something was queued since the last flush.
    dirty: Vec<Key>,
    arena: Arena,
    domain: Rc<Domain>,
}

impl Adapter {
    /// Opens a device for the calling thread, and registers the arena's memory with it.
    ///
    /// # Errors
    /// [`Error::LockedMemory`] if the process may not lock so much; [`Error::Limit`] if the device
    /// has less than what is asked for.
    pub fn open(device: &Device, arena: &Arena, config: &AdapterConfig) -> Result<Self, Error> {
        let limits = device.limits();
        let over = |what, wanted, limit| {
            let device = device.name().to_string();
            Err(Error::Limit { device, what, wanted, limit })
        };
        if config.completions > limits.completions {
            return over("completions", config.completions.into(), limits.completions.into());
        }
        let bytes = arena.total_bytes() as u64;
        if bytes > limits.registration {
            return over("bytes of memory in one registration", bytes, limits.registration);
        }
        let domain = Domain::new(device)?;
        let memory = vec![Registration::arena(&domain, arena)?];
        let mut receives = Slots::with_mask(RECEIVE_GENERATIONS);
        let shared = config.shared_receives.filter(|_| limits.shared_receives > 0);
        let most = if shared.is_some() { limits.shared_pieces } else { RECEIVE_SGES };
        let scatters = limits.pieces.min(most) >= RECEIVE_SGES;
        let receive_sges = if scatters { RECEIVE_SGES } else { 1 };
        let shared = shared.and_then(|depth| {
            // The spare ones have completions, too.
            let most = limits.shared_receives.min(config.completions / 2);
            let depth = depth.clamp(1, most.max(1));
            SharedQueue::new(&domain, depth, receive_sges).ok()
        });
        let channel = Channel::new(device)?;
        let of_shared = shared.as_ref().map_or(0, SharedQueue::places);
        // With a shared queue only few connections have one of their own.
        let of_own = config.completions / if shared.is_some() { 4 } else { 1 };
        let places = limits.completions.min(of_shared + of_own);
        let mut receive_queue = CompletionQueue::new(&channel, places, config.interrupt)?;
        if shared.is_some() {
            receive_queue.take(of_shared);
            receives.reserve(of_shared as usize);
        }
        let sends = CompletionQueue::new(&channel, config.completions, config.interrupt)?;
        let queues = Queues { receives: receive_queue, sends };
        Ok(Self {
            endpoints: Slots::with_mask(ENDPOINT_GENERATIONS),
            shared,
            queues,
            receives,
            receive_sges,
            memory,
            by_number: HashMap::new(),
            refused: Vec::new(),
            batch: Box::new([IbvWc::default(); BATCH]),
            dirty: Vec::new(),
            arena: arena.clone(),
            domain,
        })
    }

    /// The RDMA device that it belongs to.
    pub fn device(&self) -> &Device {
        self.domain.device()
    }

    /// True if the device takes receives with a [body](Scatter::body).
    pub const fn scatters(&self) -> bool {
        self.receive_sges == RECEIVE_SGES
    }

    /// How many endpoints there are.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// Registers a memory volume, so that its parts can be sent and written to a peer without a copy.
    /// All of its pages are taken and locked.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn register(&mut self, region: &Arc<Region>) -> Result<(), Error> {
        if !self.memory.iter().any(|registration| registration.is_of(region)) {
            self.memory.push(Registration::source(&self.domain, region)?);
        }
        Ok(())
    }

    /// Ends the registration of a memory volume. Work on it that is in flight fails.
    pub fn unregister(&mut self, region: &Arc<Region>) {
        self.memory.retain(|registration| !registration.is_of(region));
    }

    /// Lets peers of this adapter's connections reach a region, if they are told its key.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn expose(&self, region: &Arc<Region>, access: RemoteAccess) -> Result<Exposed, Error> {
        Exposed::new(&self.domain, region, access)
    }
}

impl AsFd for Adapter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queues.as_fd()
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, endpoints) = (self.device().name(), self.endpoints.len());
        f.debug_struct("Adapter").field("device", &device).field("endpoints", &endpoints).finish()
    }
}
