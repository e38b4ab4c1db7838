//! Answers of the control socket as text for people.

mod groups;
pub(crate) mod layout;
mod preview;
mod sessions;
mod stats;
mod targets;
mod verdict;
mod volumes;

pub use groups::{gateways, groups};
pub use preview::preview;
pub use sessions::sessions;
pub use stats::{portals, stats};
pub use targets::{targets, users};
pub use verdict::verdict;
pub use volumes::{snapshots, volumes};
