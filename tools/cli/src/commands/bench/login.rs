//! How `lunet bench` logs in to LUNs and namespaces.

use std::path::PathBuf;

use crate::bench::given::{Access, Digests};
use crate::bench::remote::Logins;
use anyhow::Result;
use clap::{Args, ValueEnum};
use lunet_config::secrets::{self, Key};
use lunet_nvme::name::check_any_nqn;

/// What a login needs besides the address.
#[derive(Args)]
pub struct LoginOptions {
    /// File with the CHAP secret of the user in the address, or the host's DH-HMAC-CHAP secret (DHHC-1:...), readable by
    /// its owner only; can be given for both
    #[arg(long, value_name = "FILE")]
    secret_file: Vec<PathBuf>,
    /// File with the secret that the target proves (?target_user=NAME in the address), or the controller, readable by its
    /// owner only; can be given for both
    #[arg(long, value_name = "FILE")]
    target_secret_file: Vec<PathBuf>,
    /// File with the host's key of TLS for NVMe (NVMeTLSkey-1:...), readable by its owner only
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Initiator name to log in with
    #[arg(long, value_name = "IQN", value_parser = initiator_name)]
    initiator_name: Option<String>,
    /// Host name to connect with over NVMe
    #[arg(long, value_name = "NQN", value_parser = host_nqn)]
    host_nqn: Option<String>,
    /// CRC32C digests of all sessions and queues [default: from the addresses]
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

/// The NQN of a host.
pub fn host_nqn(text: &str) -> Result<String, String> {
    check_any_nqn(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

impl LoginOptions {
    /// The secrets and digests that addresses leave out.
    pub fn access(&self) -> Result<Access> {
        let tls_key = self.tls_key_file.as_deref().map(secrets::tls_key_of_file).transpose()?;
        let digests = self.digest.map(Digest::wanted);
        let mut access = Access { tls_key, digests, ..Access::default() };
        for file in &self.secret_file {
            match secrets::any_of_file(file)? {
                Key::Chap(secret) => access.secret = Some(secret),
                Key::DhChap(secret) => access.host_key = Some(secret),
            }
        }
        for file in &self.target_secret_file {
            match secrets::any_of_file(file)? {
                Key::Chap(secret) => access.target_secret = Some(secret),
                Key::DhChap(secret) => access.controller_key = Some(secret),
            }
        }
        Ok(access)
    }

    /// As whom to log in.
    pub fn login(&self) -> Logins {
        let mut logins = Logins::default();
        if let Some(name) = &self.initiator_name {
            logins.iscsi.initiator_name.clone_from(name);
        }
        if let Some(nqn) = &self.host_nqn {
            logins.nvme.host_nqn.clone_from(nqn);
        }
        logins
    }

    /// True if nothing is said of it.
    pub fn is_empty(&self) -> bool {
        let Self {
            secret_file,
            target_secret_file,
            tls_key_file,
            initiator_name,
            host_nqn,
            digest,
        } = self;
        secret_file.is_empty()
            && target_secret_file.is_empty()
            && tls_key_file.is_none()
            && initiator_name.is_none()
            && host_nqn.is_none()
            && digest.is_none()
    }

    /// The options that make the same sessions again, without secrets.
    pub fn words(&self) -> Option<String> {
        self.digest.map(|digest| format!("--digest={}", digest.name()))
    }
}
