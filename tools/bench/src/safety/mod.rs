//! Nothing is overwritten that somebody may need.
//!
//! Before anything is written, the place is looked at: what is mounted, swapped to, held by another device or locked by another
//! program is refused whatever the caller says; what holds data is refused unless the caller has named exactly this place to be
//! destroyed. A refusal is one sentence that says what was found.

mod blocks;
mod path;
mod signature;

pub use blocks::{Blocks, lun};
pub use path::{Guard, path};

use std::io;

/// What the caller lets go, by the names that it uses for the targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destroy(Vec<String>);

impl Destroy {
    /// These names, and nothing else.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// Whether this place was named.
    fn names(&self, place: &str) -> bool {
        self.0.iter().any(|name| name == place)
    }
}

/// Why a place is not written to.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It holds something, and was not named.
    #[error("{place} holds {what}: name it with --destroy {place} if that may be lost")]
    Data {
        /// The place, as the caller calls it.
        place: String,
        /// What was found.
        what: String,
    },
    /// It is in use.
    #[error("{place} is in use: {what}")]
    Used {
        /// The path or URL.
        place: String,
        /// By what, and what to do.
        what: String,
    },
    /// It can never be written to.
    #[error("{place} {what}")]
    Unfit {
        /// The path or URL.
        place: String,
        /// Why.
        what: String,
    },
    /// It cannot be looked at.
    #[error("{place} cannot be looked at: {error}")]
    Io {
        /// The path or URL.
        place: String,
        /// What the system says.
        error: io::Error,
    },
}

#[cfg(test)]
mod tests;
