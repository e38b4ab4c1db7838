//! What can go wrong in a session, in sentences that say what to do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lunet_iscsi::initiator::{Error as ProtocolError, SubmitError};
use lunet_iscsi::keys::Key;

use super::sense::Failure;
use crate::place::ConnectError;

/// Why a target or a logical unit cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host's name has no address.
    #[error("the host {host} is not known ({source}): check the name, or give its address")]
    Resolve {
        /// As it was given.
        host: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Nothing answers there.
    #[error(
        "no connection to {address} ({source}): {step}",
        step = crate::route(source.kind()).unwrap_or("check that the target runs and listens there")
    )]
    Connect {
        /// Where it was tried.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the target broke ({0}): look into the target's log")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the target did not answer for {} s: look into the target's log", .0.as_secs())]
    Silent(Duration),
    /// There is no RDMA connection.
    #[error(transparent)]
    Rdma(#[from] crate::rdma::Error),
    /// What listens there closes the connection in place of an answer to the login.
    #[error(
        "what listens there does not answer as an iSCSI target does (it closed the connection): check the port (3260 is \
         usual), or look into the target's log"
    )]
    Stranger,
    /// What listens there is for NVMe over TCP.
    #[error(
        "an NVMe over TCP controller listens there, and no iSCSI target: name another port (3260 is usual), or give \
         nvme-tcp://HOST:PORT/NQN/NSID"
    )]
    Nvme,
    /// The target refused the login.
    #[error("the target refused the login: {0}")]
    Refused(String),
    /// The target refused the login with status 0203h: it is not there, or, as one who may not come has to believe, not for
    /// this initiator.
    #[error(
        "the target refused the login: there is no target of this name, or none for {initiator}; a discovery lists those \
         that there are, and on a lunet `lunet target allow {target} {initiator}` lets it in"
    )]
    NoTarget {
        /// The target's name.
        target: String,
        /// The name that this side logged in with.
        initiator: String,
    },
    /// The target takes no login for now, whoever asks.
    #[error("the target refused the login: {0}")]
    Busy(String),
    /// The target has to prove who it is, and a secret is missing.
    #[error(
        "a target that has to prove who it is (target_user) wants both secrets: USER%SECRET@ in \
         front of the host, and target_password="
    )]
    Proof,
    /// The two ends do not agree, or the login failed on this side.
    #[error("the session failed ({0}): look into the target's log")]
    Protocol(ProtocolError),
    /// A request could not be sent.
    #[error("a command could not be sent ({0}): look into the target's log")]
    Submit(#[from] SubmitError),
    /// A command of the preparation failed.
    #[error("{what} failed: {failure}")]
    Command {
        /// What it should do.
        what: &'static str,
        /// How it ended.
        failure: Failure,
    },
    /// An answer makes no sense.
    #[error("the target's answer to {0} makes no sense; this may be no iSCSI disk")]
    Answer(&'static str),
    /// The address names no target, and the portal offers none or many.
    #[error(
        "the address names no target, and this portal offers {}: write iscsi://HOST/TARGET/LUN",
        list(.0)
    )]
    ManyTargets(Vec<String>),
    /// The address names no LUN, and there is none or many.
    #[error("the address names no LUN, and this target has {}: add /LUN to it", numbers(.0))]
    ManyLuns(Vec<u16>),
    /// The target has no such logical unit, but these.
    #[error("the target has no LUN {0}; it has {list}", list = numbers(.1))]
    NoLun(u16, Vec<u16>),
    /// The logical unit is no disk.
    #[error("LUN {0} is not a disk, or there is no such LUN")]
    NoDisk(u16),
}

fn list(names: &[String]) -> String {
    match names {
        [] => "no target to this initiator".into(),
        names => names.join(", "),
    }
}

fn numbers(luns: &[u16]) -> String {
    match luns {
        [] => "none for this initiator".into(),
        luns => luns.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Resolve { host, source } => Self::Resolve { host, source },
            ConnectError::Connect { address, source } => Self::Connect { address, source },
            ConnectError::Io(error) => Self::Io(error),
        }
    }
}

impl From<ProtocolError> for Error {
    fn from(error: ProtocolError) -> Self {
        match error {
            // Who has logged in says the names.
            ProtocolError::LoginRefused { status: NO_TARGET, .. } => {
                Self::NoTarget { target: "TARGET".into(), initiator: "INITIATOR".into() }
            }
            // Status-Class 3: Target Error.
            ProtocolError::LoginRefused { status, .. } if status >> 8 == 3 => {
                Self::Busy(refusal(status))
            }
            ProtocolError::LoginRefused { status, .. } => Self::Refused(refusal(status)),
            ProtocolError::Authentication(method) => Self::Refused(format!(
                "it wants the authentication method '{method}'; for CHAP, write USER%SECRET@ in \
                 front of the host"
            )),
            ProtocolError::Answer(key @ (Key::HeaderDigest | Key::DataDigest)) => {
                Self::Refused(format!(
                    "it does not do {} as asked for; with prefer-crc32c in place of crc32c it may \
                     choose",
                    key.name()
                ))
            }
            other => Self::Protocol(other),
        }
    }
}

/// Status-Class and Status-Detail "target not found" (RFC 7143 section 11.13.5).
const NO_TARGET: u16 = 0x0203;

/// Status-Class and Status-Detail in words (RFC 7143 section 11.13.5).
fn refusal(status: u16) -> String {
    let known = match status {
        0x0101 | 0x0102 => "it has moved to another address, and that leads in a circle",
        0x0201 => "wrong CHAP name or secret, or none where one is wanted (USER%SECRET@HOST)",
        0x0202 => "this initiator's name is not on its list; allow it there, or use another name",
        0x0204 => "the target was removed",
        0x0206 => "it takes no more connections of this session",
        0x0207 => "a key that it wants is missing",
        0x0208 => "it does not take this session here",
        0x0301 => "it is out of order for the moment; try again later",
        0x0302 => "it has no room for another session; end others, or use fewer jobs",
        _ => return format!("status {status:#06x}"),
    };
    known.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = |status| Error::from(ProtocolError::LoginRefused { status, address: None });
        assert!(refused(0x0201).to_string().contains("USER%SECRET"));
        assert!(matches!(refused(0x0301), Error::Busy(_)));
        assert!(refused(0x0302).to_string().contains("no room for another session"));
        assert!(refused(0x0299).to_string().contains("0x0299"));
        let digest = Error::from(ProtocolError::Answer(Key::DataDigest)).to_string();
        assert!(digest.contains("DataDigest") && digest.contains("prefer-crc32c"), "{digest}");
        assert!(Error::ManyTargets(vec![]).to_string().contains("no target"));
        assert!(Error::ManyLuns(vec![3, 5]).to_string().contains("3, 5"));
    }
}
