//! Answers of the control socket as text for people.

mod layout;
mod sessions;
mod stats;

pub use sessions::sessions;
pub use stats::stats;
