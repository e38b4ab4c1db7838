//! Secrets and keys: what hosts and controllers prove themselves with.
//!
//! * [`Secret`]: a configured secret, in its text form.
//! * [`chap`]: both ends of DH-HMAC-CHAP.
//! * [`dh`]: Diffie-Hellman groups.
//! * [`psk`]: pre-shared keys of TLS, and their identities.

pub mod chap;
pub mod dh;
mod message;
pub mod psk;
mod secret;

pub use message::Failure;
pub use secret::{Hash, Purpose, Secret, SecretError};
