//! A running server, watched: `lunet top` and `lunet stats --follow`.
//!
//! The server only counts. Rates are made here, of two answers of its control socket ([`Sample`], [`rates`]), and shown as lines
//! ([`lines`]) or, by the tools, as a screen, with the words of [`words`].

pub mod lines;
pub mod words;

use std::time::Instant;

pub use lunet_api::rates::{self, Sample};

use crate::control::{Client, Error};

/// Asks a server what it has counted by now.
///
/// # Errors
/// There is no server, it may not be asked, or it is of another version.
pub fn look(client: &Client) -> Result<Sample, Error> {
    let stats = client.stats()?;
    let at = Instant::now();
    Ok(Sample { at, stats, sessions: client.sessions()? })
}
