//! What each layer can carry, measured on the spot.

mod compute;
mod drive;
pub mod net;

pub use compute::{copies, crc32c, memory};
pub use drive::drive;

#[cfg(test)]
mod tests;
