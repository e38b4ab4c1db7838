//! `lunet version`

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::print;

#[derive(Args)]
pub struct Version {
    /// Print the version, the commit, and what was built in as JSON
    #[arg(long)]
    json: bool,
}

/// What this program is.
pub fn about() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        // Whoever builds a package knows it.
        "commit": option_env!("LUNET_COMMIT"),
        "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        "api": lunet_api::VERSION,
        "transports": ["iscsi-tcp", "iser", "nvme-tcp", "nvme-rdma"],
        "drivers": ["io_uring", "epoll"],
    })
}

pub fn run(options: &Version) -> Result<ExitCode> {
    let about = about();
    let text = match options.json {
        true => format!("{about:#}\n"),
        false => format!("lunet {}\n", env!("CARGO_PKG_VERSION")),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
