//! How a server is hosted: portals, bounds, shards.

use std::net::SocketAddr;
use std::time::Duration;

use lunet_ring::DriverChoice;

use crate::rdma::SendWithInvalidate;

/// An address that clients connect to.
#[derive(Clone, Debug)]
pub struct Portal {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// By what its protocol groups portals. One with another tag is another portal.
    pub tag: u16,
    /// Over what.
    pub transports: Transports,
}

/// Over what clients reach a portal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transports {
    /// TCP, and RDMA where a device for it carries the address.
    #[default]
    Any,
    /// TCP alone.
    Tcp,
    /// RDMA alone: the server does not start without.
    Rdma,
    /// Both; a warning says when RDMA cannot be had.
    Both,
}

impl Transports {
    /// True if TCP is among them.
    pub const fn tcp(self) -> bool {
        !matches!(self, Self::Rdma)
    }

    /// True if RDMA is among them, if only where it can be had.
    pub(crate) const fn rdma(self) -> bool {
        !matches!(self, Self::Tcp)
    }
}

/// Where the threads of shards run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Processors {
    /// Wherever the system has them.
    #[default]
    Any,
    /// All of them on any of these, so that their memory is near them.
    Among(Vec<usize>),
    /// Each on one of these, in turn, and a new connection goes to the shard on whose processor its packets arrive, as long as
    /// that has not many more connections than others. At least one.
    Each(Vec<usize>),
}

impl Processors {
    /// Those that a shard may run on, by its number on the server; all if none is named.
    pub fn of(&self, shard: usize) -> &[usize] {
        match self {
            Self::Any => &[],
            Self::Among(all) => all,
            Self::Each(all) => match all.len() {
                0 => &[],
                count => std::slice::from_ref(&all[shard % count]),
            },
        }
    }

    /// True if it says of each shard on which processor it is.
    pub(crate) const fn are_apart(&self) -> bool {
        matches!(self, Self::Each(_))
    }
}

/// The bounds that keep one client's demands, or its device's faults, from harming the others, and the processors.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions that [serve](crate::front::FrontConn::serves), on the whole server; a login beyond is refused.
    pub max_sessions: usize,
    /// Connections on the whole server that have not finished their login. With one more, the oldest of the
    /// address with the most of them ends.
    pub max_logins: usize,
    /// Memory for data in flight on each shard, in bytes.
    pub buffer_bytes: usize,
    /// Where the threads of shards run.
    pub processors: Processors,
    /// How long a change of what is served waits for the shards: once for all to be ready, which decides
    /// whether it comes, and once for all to have taken it over.
    pub change_wait: Duration,
    /// Whether messages over RDMA take keys back.
    pub send_with_invalidate: SendWithInvalidate,
    /// Whether large messages over TCP are sent without a copy, where the kernel reports that it does so.
    pub zero_copy_send: bool,
    /// The rings for commands past the block layer that each shard has from its beginning: it makes none later.
    pub passthrough: lunet_ring::PassthroughRings,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sessions: 1024,
            max_logins: 256,
            buffer_bytes: 64 << 20,
            processors: Processors::default(),
            change_wait: Duration::from_secs(20),
            send_with_invalidate: SendWithInvalidate::Auto,
            zero_copy_send: true,
            passthrough: lunet_ring::PassthroughRings::default(),
        }
    }
}

/// How a server is hosted, whatever it serves.
pub struct Hosting {
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// Bounds.
    pub limits: Limits,
    /// How long a client may take nothing of what is sent to it; zero: for ever.
    pub data_timeout: Duration,
    /// How many shards; `None` is one for each processor that the process may run on.
    pub shards: Option<usize>,
    /// The event loop's driver.
    pub driver: DriverChoice,
    /// How long a shard looks for new work before it sleeps.
    pub busy_poll: lunet_ring::BusyPoll,
}
