//! `lunet sessions`

use std::process::ExitCode;

use crate::control::Client;
use crate::tables;
use anyhow::Result;
use clap::{Args, Subcommand};
use lunet_api::Change;

use super::{Ask, answer_of_all};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Sessions {
    #[command(subcommand)]
    command: Option<SessionsCommand>,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Subcommand)]
enum SessionsCommand {
    /// End a session, or all sessions of an initiator: its LUNs go at once, and it is asked to log out
    #[group(required = true, multiple = false, id = "which", args = ["session", "initiator"])]
    End {
        /// The session's TSIH, as `lunet sessions` shows it
        #[arg(value_name = "TSIH", value_parser = number)]
        session: Option<u16>,
        /// All sessions of this initiator
        #[arg(long, value_name = "NAME")]
        initiator: Option<String>,
        #[command(flatten)]
        ask: Ask,
    },
}

pub fn run(options: Sessions) -> Result<ExitCode> {
    match options.command {
        None => {
            answer_of_all(&options.ask, "sessions", Client::sessions, |all| tables::sessions(all))
        }
        Some(SessionsCommand::End { session, initiator, ask }) => {
            ask.change(Change::EndSessions { session, initiator })
        }
    }
}

fn number(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| "write the number of a session, as `lunet sessions` shows it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_of_a_session_is_told_plainly() {
        assert_eq!(number("7"), Ok(7));
        for wrong in ["abc", "", "-1", "65536"] {
            assert!(number(wrong).unwrap_err().contains("as `lunet sessions` shows it"), "{wrong}");
        }
    }
}
