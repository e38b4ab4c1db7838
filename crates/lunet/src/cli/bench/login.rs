//! How `lunet bench` logs in to LUNs.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lunet::bench::given::{Access, Digests};
use lunet::secrets;
use lunet_client::iscsi::Login;

/// What a login needs besides the address.
#[derive(Args)]
pub struct LoginOptions {
    /// File with the CHAP secret of the user in the address, readable by its owner only
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// File with the secret of the target (?target_user=NAME in the address), readable by its owner only
    #[arg(long, value_name = "FILE")]
    target_secret_file: Option<PathBuf>,
    /// Initiator name to log in with
    #[arg(long, value_name = "IQN", value_parser = initiator_name)]
    initiator_name: Option<String>,
    /// CRC32C digests of all sessions [default: from the addresses]
    #[arg(long, value_enum)]
    digest: Option<Digest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Digest {
    None,
    Header,
    Data,
    Both,
}

impl Digest {
    fn wanted(self) -> Digests {
        let header = matches!(self, Self::Header | Self::Both);
        Digests { header, data: matches!(self, Self::Data | Self::Both) }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Header => "header",
            Self::Data => "data",
            Self::Both => "both",
        }
    }
}

fn initiator_name(text: &str) -> Result<String, String> {
    match ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind)) {
        true => Ok(text.to_owned()),
        false => Err("an initiator's name begins with iqn., eui. or naa.".to_owned()),
    }
}

impl LoginOptions {
    /// The secrets and digests that addresses leave out.
    pub fn access(&self) -> Result<Access> {
        let secret = |file: &Option<PathBuf>| file.as_deref().map(secrets::of_file).transpose();
        Ok(Access {
            secret: secret(&self.secret_file)?,
            target_secret: secret(&self.target_secret_file)?,
            digests: self.digest.map(Digest::wanted),
        })
    }

    /// As whom to log in.
    pub fn login(&self) -> Login {
        let mut login = Login::default();
        login.initiator_name = self.initiator_name.clone().unwrap_or(login.initiator_name);
        login
    }

    /// The options that make the same sessions again, without secrets.
    pub fn words(&self) -> Option<String> {
        self.digest.map(|digest| format!("--digest={}", digest.name()))
    }
}
