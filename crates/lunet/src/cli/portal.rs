//! `lunet portal`

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lunet::config;
use lunet::control::Client;
use lunet::tables;
use lunet_api::{Change, Transport};

use super::{Ask, Rules, answer};

#[derive(Subcommand)]
pub enum PortalCommand {
    /// List the portals and their transports
    List(Ask),
    /// Add a portal, to the configuration file too
    Add {
        /// Address to listen on; the default port is 3260, for NVMe 4420
        #[arg(value_name = "ADDR[:PORT]")]
        address: String,
        /// Transports [default: both, where an RDMA device has the address]; iSER starts when lunet is
        /// restarted
        #[arg(long, value_name = "tcp|iser|nvme-tcp", value_delimiter = ',', value_parser = ["tcp", "iser", "nvme-tcp"])]
        transport: Vec<String>,
        /// Portal group tag [default: 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        tag: Option<u16>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Remove a portal, from the configuration file too
    Remove {
        /// Address of the portal, as configured
        #[arg(value_name = "ADDR[:PORT]", value_parser = config::parse_portal)]
        address: SocketAddr,
        #[command(flatten)]
        rules: Rules,
    },
}

pub fn run(command: PortalCommand) -> Result<ExitCode> {
    match command {
        PortalCommand::List(ask) => answer(&ask, Client::portals, |all| tables::portals(all)),
        PortalCommand::Add { address, transport, tag, ask } => {
            let transport: Vec<_> =
                transport.iter().map(|word| Transport::from(word.as_str())).collect();
            let address = match transport.contains(&Transport::NvmeTcp) {
                true => config::parse_nvme_portal(&address)?,
                false => config::parse_portal(&address)?,
            };
            ask.change(Change::AddPortal { address, tag, transport })
        }
        PortalCommand::Remove { address, rules } => rules
            .change(|force, keep_sessions| Change::RemovePortal { address, force, keep_sessions }),
    }
}
