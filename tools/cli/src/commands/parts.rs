//! `lunet-tools parts`, which a server starts to learn what its data passes on this machine

use std::fs;
use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result};
use lunet_api::PartsOf;
use lunet_host::ceilings;
use lunet_host::source::Live;
use rustix::process::{Signal, set_parent_process_death_signal};

use lunet_cli::print;

/// Answers on standard output what is asked on standard input.
pub fn run() -> Result<ExitCode> {
    // Best effort: it ends by itself, too.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let of: PartsOf = serde_json::from_reader(io::stdin())
        .context("this command is for `lunet serve`, which starts it")?;
    let of = PartsOf { places: of.places.into_iter().map(real).collect(), ..of };
    print(&serde_json::to_string(&ceilings::parts(&Live, &of))?)?;
    Ok(ExitCode::SUCCESS)
}

/// With its path without symbolic links. A zvol's link says more than its device does.
fn real(mut place: lunet_api::Place) -> lunet_api::Place {
    if place.path.starts_with("/dev/zvol/") {
        return place;
    }
    if let Some(path) =
        fs::canonicalize(&place.path).ok().and_then(|path| path.into_os_string().into_string().ok())
    {
        place.path = path;
    }
    place
}
