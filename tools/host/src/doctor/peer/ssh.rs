//! The other end over SSH: what `lunet tune capture -` says there.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use lunet_iscsi::printable::{is_printable, printable};
use lunet_os::process::{self, Failed};

use crate::source::{Live, ParseError, Source, Tree};

/// How long the capture may take: each of its commands has 15 seconds.
const PATIENCE: Duration = Duration::from_secs(300);
/// The longest capture, in bytes.
const LONGEST: u64 = 64 << 20;
/// The longest name of a machine, with the user's.
const LONGEST_NAME: usize = 255;
/// More of an error is not shown.
const LONGEST_ERROR: usize = 300;

/// Why the other end could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// The name could be taken for an option or for something else.
    #[error(
        "{0:?} is no name of a machine: write ssh:HOST or ssh:USER@HOST, and the port into ~/.ssh/config"
    )]
    Name(String),
    /// `ssh` is not there, or could not be started.
    #[error("cannot run ssh: {0}")]
    Start(io::Error),
    /// It took too long.
    #[error(
        "{0} has not answered within 5 minutes: see whether `ssh {0} lunet tune capture -` ends"
    )]
    Slow(String),
    /// It said too much.
    #[error("{0} sent more than 64 MiB: that is no capture")]
    Long(String),
    /// There is no lunet at the other end.
    #[error(
        "there is no lunet on {host} (exit code {code}): install it there, or capture that machine and name the file"
    )]
    NoLunet {
        /// The machine.
        host: String,
        /// What the shell there gave.
        code: i32,
    },
    /// SSH or lunet has failed.
    #[error("ssh {host}: {why}")]
    Failed {
        /// The machine.
        host: String,
        /// The last line on standard error.
        why: String,
    },
    /// What came is no capture.
    #[error("what {host} sent is no capture: {error}")]
    Form {
        /// The machine.
        host: String,
        /// Where it goes wrong.
        error: ParseError,
    },
}

/// The other end as it was captured.
#[derive(Debug)]
pub struct Captured {
    /// What it says of itself.
    pub tree: Tree,
    /// How far its clock is ahead of the own one, in seconds, less what the transfer took.
    pub ahead_seconds: Option<i64>,
}

/// Captures a machine over SSH: no question is asked, and what it says is only parsed.
///
/// # Errors
/// It cannot be reached, has no lunet, takes too long, or sends something else.
pub fn ssh(host: &str) -> Result<Captured, SshError> {
    if !is_name(host) {
        return Err(SshError::Name(host.to_owned()));
    }
    let mut command = Command::new("ssh");
    command
        .args(["-oBatchMode=yes", "-oConnectTimeout=10", "-oClearAllForwardings=yes", "-T", "--"])
        .arg(host)
        .arg("lunet tune capture -")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let host = host.to_owned();
    let done = match process::run(&mut command, PATIENCE, LONGEST) {
        Ok(done) => done,
        Err(Failed::Late(_) | Failed::Held(_)) => return Err(SshError::Slow(host)),
        Err(Failed::Start(error)) => return Err(SshError::Start(error)),
    };
    let here = Live.now();
    if done.cut {
        return Err(SshError::Long(host));
    }
    match done.status.code() {
        Some(0) => {}
        Some(code @ (126 | 127)) => return Err(SshError::NoLunet { host, code }),
        _ => return Err(SshError::Failed { host, why: why(&done.stderr) }),
    }
    let tree = match Tree::parse(&harmless(&String::from_utf8_lossy(&done.stdout))) {
        Ok(tree) => tree,
        Err(error) => return Err(SshError::Form { host, error }),
    };
    let ahead_seconds = tree.now().zip(here).and_then(|(there, here)| there.checked_sub(here));
    Ok(Captured { tree, ahead_seconds })
}

/// Names, addresses and users; never an option, and nothing that a shell would read.
fn is_name(host: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@:[]%".contains(c);
    !host.is_empty()
        && host.len() <= LONGEST_NAME
        && !host.starts_with('-')
        && host.chars().all(plain)
}

/// The text without characters that steer a terminal; lines and tabs stay.
fn harmless(text: &str) -> String {
    let keep = |c: &char| matches!(c, '\n' | '\t') || is_printable(*c);
    text.chars().filter(keep).collect()
}

/// The last line that says something.
fn why(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    let last = last.trim().trim_start_matches("ssh: ");
    let short: String = last.chars().take(LONGEST_ERROR).collect();
    printable(&short).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_options_and_no_commands() {
        for good in ["storage", "root@10.0.0.1", "u@[fd00::1%eth0]", "a-b.example"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "a\nb", &"x".repeat(256)] {
            assert!(!is_name(bad), "{bad:?}");
            assert!(matches!(ssh(bad), Err(SshError::Name(_))), "{bad:?}");
        }
    }

    #[test]
    fn what_steers_a_terminal_is_left_out() {
        assert_eq!(harmless("a\x1b[2J\tb\nc\u{202e}\r"), "a[2J\tb\nc");
        assert_eq!(why(b"\nHost key verification failed.\r\n\n"), "Host key verification failed.");
        assert_eq!(why(b""), "it failed");
    }
}
