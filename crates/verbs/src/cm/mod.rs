//! Connections: rdma_cm.

mod address;
mod channel;
mod event;
mod id;

#[cfg(feature = "simulated")]
pub(crate) use address::{from_c, to_c};
pub use channel::EventChannel;
pub use event::{CmEvent, CmEventKind};
pub use id::{CmId, ConnParams};

/// The most private data that any message carries, in bytes. A connect request over IP has room for
/// 56, an accept for 196, a reject for 148.
pub const PRIVATE_MAX: usize = 255;
