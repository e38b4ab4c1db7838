//! What can go wrong with RDMA, in sentences that say what to do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why there is no RDMA connection, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host's name has no address.
    #[error("the host {host} is not known ({source}): check the name, or give its address")]
    Resolve {
        /// As it was given.
        host: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The library, the kernel's part, a device or its memory is missing.
    #[error(transparent)]
    Verbs(#[from] lunet_verbs::Error),
    /// No device leads there.
    #[error(
        "no RDMA device of this machine leads to {0}: see `rdma link` for those that there are (soft RoCE on an ordinary \
         card: `rdma link add rxe0 type rxe netdev INTERFACE`), or measure over TCP with iscsi:// or nvme-tcp://"
    )]
    NoDevice(SocketAddr),
    /// Nobody answers there.
    #[error(
        "no RDMA connection to {address} ({why}): check that the target runs, and that it listens for RDMA at this \
         address and port"
    )]
    Connect {
        /// Where it was tried.
        address: SocketAddr,
        /// Why.
        why: String,
    },
    /// The program at the other end has refused the connection.
    #[error(
        "what listens at {address} refused the RDMA connection: it has no room for another one, or is for another \
         protocol (3260 is iSER's usual port, 4420 NVMe's); look into the target's log"
    )]
    Rejected {
        /// Where it was tried.
        address: SocketAddr,
        /// The private data of the rejection.
        private: Vec<u8>,
    },
    /// No answer in time.
    #[error("the target did not answer for {} s over RDMA: look into its log", .0.as_secs())]
    Silent(Duration),
    /// The load needs more memory than a thread may have registered.
    #[error(
        "the data of commands takes {mib} MiB of registered memory in each thread, and {most} MiB are the most: use a \
         smaller depth, smaller blocks, or more threads"
    )]
    TooMuch {
        /// What it takes, in MiB.
        mib: u64,
        /// The most, in MiB.
        most: u64,
    },
    /// There is no memory for it.
    #[error(
        "memory of the RDMA connections cannot be had ({0}): use fewer jobs, or a smaller depth"
    )]
    Memory(io::Error),
    /// The system failed.
    #[error(
        "waiting for the RDMA connection failed ({0}); run it again, and report this if it lasts"
    )]
    System(io::Error),
    /// The answer to a question does not fit.
    #[error("a question of {0} bytes is longer than what is kept for the answers of a connection")]
    TooLong(usize),
}

impl From<lunet_verbs::Missing> for Error {
    fn from(missing: lunet_verbs::Missing) -> Self {
        Self::Verbs(missing.into())
    }
}
