//! Tries lunet's RDMA on a real device: this program connects to itself. For the lab, where
//! `suites/verbs.sh` runs it over soft RoCE.
//!
//! `verbs ADDRESS TRIAL [NUMBER]`; the trials are listed in `TRIALS`.

mod machine;
mod outside;
mod spread;
mod trials;

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use trials::TRIALS;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let names = || TRIALS.map(|(name, _)| name).join(", ");
    let [address, trial, rest @ ..] = args.as_slice() else {
        bail!("usage: verbs ADDRESS TRIAL [NUMBER]; the trials are {}", names());
    };
    let address: IpAddr = address.parse().with_context(|| format!("{address} is no address"))?;
    let number = match rest.first() {
        Some(text) => text.parse().with_context(|| format!("{text} is no number"))?,
        None => 1000,
    };
    match TRIALS.iter().find(|(name, _)| name == trial) {
        Some((_, trial)) => trial(address, number),
        None => bail!("there is no trial {trial}; there are {}", names()),
    }
}
