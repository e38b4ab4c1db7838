//! `lunet doctor --peer`: this machine, or a capture, and the other end of its storage.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use lunet_cli::control;
use lunet_host::doctor::peer::{
    Pair, Role, by_udp, examine_pair, not_tried, paths, probe, role, ssh,
};
use lunet_host::doctor::{self, Checks};
use lunet_host::facts::{Facts, facts};
use lunet_host::source::Tree;
use serde_json::json;

use super::{Doctor, answer, linux_only, more, read};
use lunet_cli::Remote;

/// Facts as JSON are not longer than a capture.
const LONGEST: u64 = 64 << 20;

/// Where the other end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A machine with SSH.
    Ssh(String),
    /// The REST interface of a lunet.
    Url(String),
    /// A capture, or facts as JSON.
    Capture(PathBuf),
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(host) = text.strip_prefix("ssh:") {
            // ssh://HOST is written by habit.
            return Ok(Self::Ssh(host.trim_start_matches('/').to_owned()));
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return Ok(Self::Url(text.to_owned()));
        }
        match text.split_once("://") {
            Some((scheme, _)) => Err(format!(
                "{scheme}:// is no peer: write ssh:HOST, https://HOST of a lunet's REST interface, or a capture"
            )),
            None => Ok(Self::Capture(PathBuf::from(text))),
        }
    }
}

/// The other end: its facts, how far its clock is ahead, and whether it can be reached.
struct Other {
    facts: Facts,
    ahead_seconds: Option<i64>,
    live: bool,
}

pub fn look(options: &Doctor, peer: &Peer, remote: &Remote) -> Result<ExitCode> {
    let server = match peer {
        Peer::Url(url) => Some(remote.at(url)?),
        _ => {
            remote.only_here("`lunet doctor --peer` with SSH or a capture")?;
            None
        }
    };
    let other = other(peer, server.as_ref())?;
    let near = read(options.root.as_deref())?;
    linux_only(&near, "two machines are compared")?;
    linux_only(&other.facts, "two machines are compared")?;
    let Some(role) = role(&near, &other.facts) else {
        bail!("neither of the two machines serves storage: there is no target to compare with");
    };
    let (target, initiator, sign) = match role {
        Role::Initiator => (other.facts, near, 1),
        Role::Target => (near, other.facts, -1),
    };
    let mut pair = Pair {
        target,
        initiator,
        clock_gap_seconds: other.ahead_seconds.filter(|_| options.root.is_none()).map(|s| s * sign),
        probed: Vec::new(),
    };
    if other.live && options.root.is_none() {
        pair.probed = probe(&paths(&pair, role == Role::Target), &by_udp);
    }
    let mut checks = Checks::of_pairs()?;
    more(&mut checks, options.checks.as_deref())?;
    let report = examine_pair(&pair, &checks);
    let text = match options.json {
        true => format!(
            "{:#}\n",
            json!({
                "role": role, "probed": pair.probed, "clock_gap_seconds": pair.clock_gap_seconds,
                "not_tried": not_tried(&pair), "report": report
            })
        ),
        false => {
            let mut page = doctor::page(&report, options.verbose);
            for sentence in not_tried(&pair) {
                page += &format!("{sentence}\n");
            }
            page
        }
    };
    answer(&report, &text)
}

fn other(peer: &Peer, server: Option<&control::remote::Remote>) -> Result<Other> {
    match (peer, server) {
        (Peer::Ssh(host), _) => {
            let captured = ssh(host)?;
            let facts = facts(&captured.tree);
            Ok(Other { facts, ahead_seconds: captured.ahead_seconds, live: true })
        }
        (Peer::Url(url), Some(server)) => {
            let facts = server.other("GET", &["facts"], None).with_context(|| url.clone())?;
            Ok(Other { facts, ahead_seconds: None, live: true })
        }
        (Peer::Url(url), None) => bail!("{url}: no connection was made"),
        (Peer::Capture(path), _) => {
            let name = path.display().to_string();
            let text = match path.is_file() {
                true => lunet_os::fs::read_text(path, LONGEST).with_context(|| name.clone())?,
                false => String::new(),
            };
            let facts = match text.trim_start().starts_with('{') {
                true => {
                    serde_json::from_str(&text).with_context(|| format!("{name} has no facts"))?
                }
                false => facts(&Tree::open(path)?),
            };
            Ok(Other { facts, ahead_seconds: None, live: false })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_told_apart() {
        assert_eq!("ssh:root@a".parse(), Ok(Peer::Ssh("root@a".to_owned())));
        assert_eq!("ssh://a".parse(), Ok(Peer::Ssh("a".to_owned())));
        assert_eq!("https://a:1".parse(), Ok(Peer::Url("https://a:1".to_owned())));
        assert_eq!("a/b.txt".parse(), Ok(Peer::Capture(PathBuf::from("a/b.txt"))));
        assert!("iscsi://a".parse::<Peer>().is_err_and(|why| why.contains("iscsi://")));
    }
}
