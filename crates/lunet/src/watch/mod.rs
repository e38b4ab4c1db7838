//! A running server, watched: `lunet top` and `lunet stats --follow`.
//!
//! The server only counts. Rates are made here, of two answers of its control socket ([`sample`], [`rates`]), and shown as lines
//! ([`lines`]) or as a screen ([`screen`]), with the words of [`words`].

mod fit;
pub mod lines;
pub mod rates;
pub mod sample;
pub mod screen;
pub mod terminal;
mod words;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::control::{Request, ask};
use sample::Sample;

/// Asks the server behind the socket at `path` what it has counted by now.
///
/// # Errors
/// There is no server, it may not be asked, or it is of another version.
pub fn look(path: &Path) -> Result<Sample> {
    let stats = ask(path, &Request::Stats)?;
    let at = Instant::now();
    let sessions = ask(path, &Request::Sessions)?;
    Sample::new(at, &stats, &sessions)
        .context("the running lunet is of another version: use that one")
}
