//! `lunet group`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use lunet::control::{Client, Layout};
use lunet::{group, plan, tables};

use super::{Ask, answer, print};

#[derive(Subcommand)]
pub enum GroupCommand {
    /// List the failover groups: what this gateway is in each, and who owns it
    List(Ask),
    /// Write the record of a new group into its cluster, from the configuration of this gateway
    Create {
        /// Its name in the configuration
        #[arg(value_name = "NAME")]
        name: String,
        /// How many gateways the group may have: their numbers are 1 to N
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
        gateways: u16,
        /// Configuration file [default: that of this machine's service, /etc/lunet/lunet.toml]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Have a group go to another gateway in good order: initiators see a pause
    Move {
        /// Its name in the configuration of the gateway that is asked
        #[arg(value_name = "NAME")]
        name: String,
        /// The number of the gateway
        #[arg(value_name = "GATEWAY", value_parser = clap::value_parser!(u16).range(1..))]
        gateway: u16,
        #[command(flatten)]
        ask: Ask,
    },
    /// Have this gateway take a group, whatever its owner does: that one is shut out of the cluster
    TakeOver {
        /// Its name in the configuration
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
}

pub fn run(command: GroupCommand) -> Result<ExitCode> {
    match command {
        GroupCommand::List(ask) => answer(&ask, Client::groups, |all| tables::groups(all)),
        GroupCommand::Create { name, gateways, config } => {
            let file = config.unwrap_or_else(|| Layout::of_service(|_| None).config);
            let config = plan::read_config(&file)?;
            group::create(&config, &name, gateways)?;
            print(&format!("group {name} is there, for gateways 1 to {gateways}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        GroupCommand::Move { name, gateway, ask } => answer(
            &ask,
            |client| client.move_group(name, gateway),
            |done| format!("{}\n", done.done),
        ),
        GroupCommand::TakeOver { name, ask } => {
            answer(&ask, |client| client.take_over_group(name), |done| format!("{}\n", done.done))
        }
    }
}
