//! `lunet portal`

use std::net::SocketAddr;
use std::process::ExitCode;

use crate::control::Client;
use crate::tables;
use anyhow::Result;
use clap::Subcommand;
use lunet_api::{Change, Transport};
use lunet_config as config;

use super::{Ask, Rules, answer};

#[derive(Subcommand)]
pub enum PortalCommand {
    /// List the portals and their transports
    List(Ask),
    /// Add a portal, to the configuration file too
    Add {
        /// Address to listen on; the default port is 3260, for NVMe 4420
        #[arg(value_name = "ADDR[:PORT]", value_parser = either)]
        address: Either,
        /// Transports [default: tcp, and iser where an RDMA device has the address]; those over RDMA start
        /// when lunet is restarted
        #[arg(long, value_name = "tcp|iser|nvme-tcp|nvme-rdma", value_delimiter = ',', value_parser = ["tcp", "iser", "nvme-tcp", "nvme-rdma"])]
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

/// An address, with the port of either protocol where it names none.
#[derive(Clone, Copy)]
pub struct Either {
    iscsi: SocketAddr,
    nvme: SocketAddr,
}

fn either(text: &str) -> Result<Either, config::AddressError> {
    Ok(Either { iscsi: config::parse_portal(text)?, nvme: config::parse_nvme_portal(text)? })
}

pub fn run(command: PortalCommand) -> Result<ExitCode> {
    match command {
        PortalCommand::List(ask) => answer(&ask, Client::portals, |all| tables::portals(all)),
        PortalCommand::Add { address, transport, tag, ask } => {
            let transport: Vec<_> =
                transport.iter().map(|word| Transport::from(word.as_str())).collect();
            let nvme = [Transport::NvmeTcp, Transport::NvmeRdma];
            let address = match transport.iter().any(|one| nvme.contains(one)) {
                true => address.nvme,
                false => address.iscsi,
            };
            ask.change(Change::AddPortal { address, tag, transport })
        }
        PortalCommand::Remove { address, rules } => rules
            .change(|force, keep_sessions| Change::RemovePortal { address, force, keep_sessions }),
    }
}

#[cfg(test)]
mod tests {
    use super::either;

    #[test]
    fn each_protocol_has_a_port_of_its_own() {
        let ports = |text| either(text).map(|address| (address.iscsi.port(), address.nvme.port()));
        assert_eq!(ports("192.0.2.1").unwrap(), (3260, 4420));
        assert_eq!(ports("[::1]:7").unwrap(), (7, 7));
        assert!(ports("192.0.2.1:x").is_err());
    }
}
