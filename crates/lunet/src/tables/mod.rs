//! Answers of the control socket as text for people.

pub(crate) mod layout;
mod preview;
mod sessions;
mod stats;
mod targets;
mod volumes;

pub use preview::preview;
pub use sessions::sessions;
pub use stats::{portals, stats};
pub use targets::{targets, users};
pub use volumes::{snapshots, volumes};
