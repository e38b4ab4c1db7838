//! `--server`: the lunet of another machine.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::control;
use crate::control::remote::{Fingerprint, Trust};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lunet_config::place::SERVER_VARIABLE;
use lunet_config::secrets;

/// The variables of the environment that stand for the options.
const TOKEN_FILE: &str = "LUNET_TOKEN_FILE";
const FINGERPRINT: &str = "LUNET_SERVER_FINGERPRINT";
const CA: &str = "LUNET_SERVER_CA";

/// Where the help has these options.
const HEADING: &str = "The lunet of another machine";

/// The lunet of another machine.
#[derive(Args, Clone, Debug, Default)]
pub struct Remote {
    /// Speak to the REST interface of a lunet, https://HOST[:PORT], instead of a control socket [default: $LUNET_SERVER]
    #[arg(long, value_name = "URL", global = true, help_heading = HEADING)]
    server: Option<String>,
    /// File with a token of that lunet, readable by its owner only [default: $LUNET_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true, help_heading = HEADING)]
    token_file: Option<PathBuf>,
    /// SHA-256 of its certificate, as `lunet serve` prints it [default: $LUNET_SERVER_FINGERPRINT; else the system's
    /// trusted certificates decide]
    #[arg(long, value_name = "SHA256", global = true, help_heading = HEADING)]
    server_fingerprint: Option<String>,
    /// File with certificates (PEM) to trust instead of the system's [default: $LUNET_SERVER_CA]
    #[arg(long, value_name = "FILE", global = true, help_heading = HEADING)]
    server_ca: Option<PathBuf>,
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn text_of(name: &str) -> Result<Option<String>> {
    let text = variable(name).map(OsString::into_string).transpose();
    text.map_err(|_| anyhow!("{name} is no text"))
}

impl Remote {
    /// The first of its options that is given.
    fn given(&self) -> Option<&'static str> {
        let options = [
            (self.server.is_some(), "--server"),
            (self.token_file.is_some(), "--token-file"),
            (self.server_fingerprint.is_some(), "--server-fingerprint"),
            (self.server_ca.is_some(), "--server-ca"),
        ];
        options.into_iter().find_map(|(given, name)| given.then_some(name))
    }

    /// Refuses the options where a command has nothing to ask another machine. The variables mean nothing to it.
    pub fn only_here(&self, what: &str) -> Result<()> {
        match self.given() {
            Some(option) => bail!("{what} works on this machine alone: leave {option} out"),
            None => Ok(()),
        }
    }

    /// The lunet that is named, by option or variable; none if none is. `other` is the option that names another one.
    pub fn named(&self, other: Option<&str>) -> Result<Option<control::remote::Remote>> {
        if let (Some(option), Some(other)) = (self.given(), other) {
            bail!("{option} and {other} name different ones: leave one of them out");
        }
        if other.is_some() {
            return Ok(None);
        }
        let server = match &self.server {
            Some(server) => Some(server.clone()),
            None => text_of(SERVER_VARIABLE)?,
        };
        let Some(server) = server else {
            if let Some(option) = self.given() {
                bail!("{option} is for the lunet of another machine: name it with --server");
            }
            return Ok(None);
        };
        self.connect(&server).map(Some)
    }

    /// The lunet at this address, which another option names; `--server` then means something else.
    pub fn at(&self, server: &str) -> Result<control::remote::Remote> {
        match self.server {
            Some(_) => bail!("--server and {server} name different ones: leave --server out"),
            None => self.connect(server),
        }
    }

    fn connect(&self, server: &str) -> Result<control::remote::Remote> {
        let file = self.token_file.clone().or_else(|| variable(TOKEN_FILE).map(PathBuf::from));
        let file = file.with_context(|| {
            format!("{server} wants a token: name the file that has it with --token-file")
        })?;
        let trust = self.trust()?;
        let token = secrets::token_of_file(&file)?;
        Ok(control::remote::Remote::new(server, token, &trust)?)
    }

    /// Whose certificate is believed. An option stands before the variables.
    fn trust(&self) -> Result<Trust> {
        let (pinned, ca) = match (&self.server_fingerprint, &self.server_ca) {
            (None, None) => (text_of(FINGERPRINT)?, variable(CA).map(PathBuf::from)),
            (pinned, ca) => (pinned.clone(), ca.clone()),
        };
        match (pinned, ca) {
            (Some(_), Some(_)) => bail!(
                "--server-fingerprint and --server-ca say different things of whom to trust: leave one of them out"
            ),
            (Some(text), None) => {
                let pinned = Fingerprint::parse(&text);
                Ok(Trust::Pinned(pinned.context(
                    "--server-fingerprint wants the SHA-256 of a certificate, 64 hexadecimal digits: `lunet serve` prints \
                     it in the line `certificate:`",
                )?))
            }
            (None, Some(file)) => Ok(Trust::File(file)),
            (None, None) => Ok(Trust::System),
        }
    }
}
