//! `lunet portal`

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lunet::config;
use lunet::control::{Change, Request};
use lunet::tables;

use super::{Ask, Rules, answer};

#[derive(Subcommand)]
pub enum PortalCommand {
    /// Show where lunet listens, and over what
    List(Ask),
    /// Listen at an address, and write it into the configuration
    Add {
        /// Where to listen; the port is 3260 if left out
        #[arg(value_name = "ADDR[:PORT]", value_parser = config::parse_portal)]
        address: SocketAddr,
        /// Over what [default: both, where an RDMA device carries the address]; iSER starts with the next
        /// start of lunet
        #[arg(long, value_name = "tcp|iser", value_delimiter = ',', value_parser = ["tcp", "iser"])]
        transport: Vec<String>,
        /// The portal group tag [default: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        tag: Option<u16>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Listen at an address no more
    Remove {
        /// The portal, as it is configured
        #[arg(value_name = "ADDR[:PORT]", value_parser = config::parse_portal)]
        address: SocketAddr,
        #[command(flatten)]
        rules: Rules,
    },
}

pub fn run(command: PortalCommand) -> Result<ExitCode> {
    match command {
        PortalCommand::List(ask) => answer(&ask, &Request::Portals, tables::portals),
        PortalCommand::Add { address, transport, tag, ask } => {
            ask.change(Change::AddPortal { address, tag, transport })
        }
        PortalCommand::Remove { address, rules } => rules
            .change(|force, keep_sessions| Change::RemovePortal { address, force, keep_sessions }),
    }
}
