//! What can go wrong with a controller, in sentences that say what to do.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lunet_nvme::command::Completion;
use lunet_nvme::fabrics::Connect;
use lunet_nvme::host::{Error as ProtocolError, SessionError, SubmitError};
use lunet_nvme::rdma::Rejection;
use lunet_nvme::status::Status;

use super::failure::Failure;
use crate::place::ConnectError;

/// Why a subsystem or a namespace cannot be used.
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
        step = crate::route(source.kind())
            .unwrap_or("check that the target runs and listens for NVMe over TCP there")
    )]
    Connect {
        /// Where it was tried.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the controller broke ({0}): look into the target's log")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the controller did not answer for {} s: look into the target's log", .0.as_secs())]
    Silent(Duration),
    /// There is no RDMA connection.
    #[error(transparent)]
    Rdma(#[from] crate::rdma::Error),
    /// The controller has rejected the RDMA connection.
    #[error("the controller at {address} rejected the RDMA connection: {}", why_rejected(*.rejection))]
    Rejected {
        /// Where it was tried.
        address: SocketAddr,
        /// Why.
        rejection: Rejection,
    },
    /// What listens there is not NVMe over TCP, or wants TLS.
    #[error(
        "what listens there does not answer as NVMe over TCP does ({0}): check the port (4420 is \
         usual; 3260 is iSCSI's, for iscsi://HOST/TARGET/LUN), and whether it wants TLS \
         (--tls-key-file)"
    )]
    Stranger(ProtocolError),
    /// The kernel has no TLS.
    #[error(
        "TLS is the kernel's, and it has none ({0}): load its module with `modprobe tls`; see nvme.md of lunet"
    )]
    NoTls(io::Error),
    /// There is no connection by TLS.
    #[error(
        "no TLS between the host {host} and the subsystem {subsystem} ({why}): check that the subsystem has this key for this \
         host, and the target's log"
    )]
    Tls {
        /// HOSTNQN.
        host: String,
        /// SUBNQN.
        subsystem: String,
        /// Why.
        why: String,
    },
    /// There is no such subsystem.
    #[error(
        "there is no subsystem {0} behind this portal, or not yet: check its NQN; lunet doctor \
         nvme-tcp://HOST:PORT shows those that there are"
    )]
    NoSubsystem(String),
    /// The host is not on the subsystem's list.
    #[error(
        "the subsystem does not let the host {0} in: allow this NQN there, or connect as another \
         host (--host-nqn)"
    )]
    HostRefused(String),
    /// The host has to authenticate, and has no secret.
    #[error(
        "the subsystem wants the host {0} to authenticate: give its secret of DH-HMAC-CHAP by \
         LUNET_DHCHAP_SECRET or --secret-file FILE; or, for TLS, its key by --tls-key-file FILE"
    )]
    Authentication(String),
    /// The host's secret is not the right one.
    #[error(
        "the host {host} could not prove itself ({why}): check that the secret is the one that the \
         subsystem has for it and, with --target-secret-file, that the subsystem has one of its own"
    )]
    NotProven {
        /// HOSTNQN.
        host: String,
        /// The controller's reason.
        why: String,
    },
    /// The controller did not prove who it is.
    #[error(
        "the controller did not prove itself ({0}): check that the secret of --target-secret-file \
         is the subsystem's; if it is, this is not the subsystem it says it is"
    )]
    ControllerNotProven(String),
    /// The controller's secret is known, and the host's is not.
    #[error(
        "a controller that has to prove itself (--target-secret-file) wants the host's secret, \
         too: give --secret-file"
    )]
    Proof,
    /// The controller refused the Connect.
    #[error("the controller refused the connection: {0}")]
    Refused(String),
    /// The bring-up failed, or both ends do not agree.
    #[error("the connection to the controller failed ({0}): look into the target's log")]
    Protocol(ProtocolError),
    /// The controller cannot be set up.
    #[error("the controller cannot be set up ({0}): look into the target's log")]
    Setup(SessionError),
    /// A command could not be sent.
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
    #[error("the controller's answer to {0} makes no sense; look into the target's log")]
    Answer(&'static str),
    /// The address names no subsystem, and the portal offers none or many.
    #[error(
        "the address names no subsystem, and this portal offers {}: write \
         nvme-tcp://HOST/NQN/NSID",
        list(.0)
    )]
    ManySubsystems(Vec<String>),
    /// The subsystem is for discovery.
    #[error(
        "{0} is a discovery subsystem, which has no namespaces: name the subsystem; lunet doctor \
         nvme-tcp://HOST:PORT shows those that there are"
    )]
    Discovery(String),
    /// There is no such namespace.
    #[error(
        "there is no namespace {nsid}; the subsystem has {} for this host: write \
         nvme-tcp://HOST/NQN/NSID",
        numbers(.there)
    )]
    NoNamespace {
        /// The one that was named.
        nsid: u32,
        /// Those that there are.
        there: Vec<u32>,
    },
    /// The blocks of the namespace are of a kind that is not read here.
    #[error(
        "namespace {nsid} has {what}, which cannot be measured: format it with blocks of 512 or \
         4096 bytes without metadata"
    )]
    Format {
        /// The namespace.
        nsid: u32,
        /// What is special about it.
        what: String,
    },
    /// The controller gives no I/O queue.
    #[error("the controller gives no I/O queue: end other hosts, or allow it more queues")]
    NoQueues,
}

fn list(names: &[String]) -> String {
    match names {
        [] => "none to this host".into(),
        names => names.join(", "),
    }
}

fn numbers(nsids: &[u32]) -> String {
    match nsids {
        [] => "none".into(),
        nsids => nsids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
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

/// Who connected to what, for sentences.
pub(super) struct Parties<'a> {
    /// HOSTNQN.
    pub host: &'a str,
    /// SUBNQN.
    pub subsystem: &'a str,
    /// The controller has answered something already.
    pub greeted: bool,
}

impl Parties<'_> {
    /// A failed connection.
    pub fn connection(&self, error: ProtocolError) -> Error {
        match error {
            ProtocolError::Refused(completion) => self.refused(completion),
            ProtocolError::NotProven(why) => {
                Error::NotProven { host: self.host.into(), why: why.to_string() }
            }
            ProtocolError::ControllerNotProven(why) => Error::ControllerNotProven(why.to_string()),
            ProtocolError::NoProof => {
                Error::ControllerNotProven("it asks for no authentication".into())
            }
            ProtocolError::AuthenticationCommand(status) => {
                Error::NotProven { host: self.host.into(), why: status.to_string() }
            }
            other if self.greeted => Error::Protocol(other),
            other => Error::Stranger(other),
        }
    }

    /// A failed handshake.
    pub fn tls(&self, why: impl ToString) -> Error {
        Error::Tls {
            host: self.host.into(),
            subsystem: self.subsystem.into(),
            why: why.to_string(),
        }
    }

    /// A failed admin queue.
    pub fn session(&self, error: SessionError) -> Error {
        match error {
            SessionError::Connection(error) => self.connection(error),
            SessionError::Authentication => Error::Authentication(self.host.into()),
            SessionError::Refused(status) if status.code() == Status::AUTHENTICATION_REQUIRED => {
                Error::Authentication(self.host.into())
            }
            other => Error::Setup(other),
        }
    }

    /// The Connect was refused (NVMe base specification, section 6.3).
    fn refused(&self, completion: Completion) -> Error {
        let Completion { result, status } = completion;
        if status.code() == Status::CONNECT_PARAMETER {
            return match result {
                r if r == Connect::UNKNOWN_SUBSYSTEM.result => {
                    Error::NoSubsystem(self.subsystem.into())
                }
                r if r == Connect::WRONG_HOST_NQN.result => Error::HostRefused(self.host.into()),
                _ => Error::Refused(format!("{status}, {}", place(result))),
            };
        }
        match status.code() {
            Status::CONNECT_HOST => Error::HostRefused(self.host.into()),
            Status::AUTHENTICATION_REQUIRED => Error::Authentication(self.host.into()),
            Status::CONNECT_BUSY => Error::Refused(format!(
                "{status}: it has no room for another controller, or this host failed to \
                 authenticate too often; end others, or try again later"
            )),
            _ => Error::Refused(format!("{status}; look into the target's log")),
        }
    }
}

/// Why an RDMA connection was rejected, and what to do (NVMe RDMA transport specification, section
/// 3.2).
fn why_rejected(rejection: Rejection) -> &'static str {
    match rejection {
        Rejection::Length | Rejection::Format => {
            "it does not understand the request; it speaks another version of NVMe over RDMA, so measure over TCP \
             (nvme-tcp://)"
        }
        Rejection::Queue => "it has no I/O queue of this number; use fewer jobs",
        Rejection::SubmissionQueueSize | Rejection::ReceiveQueueSize => {
            "its queues are smaller than what was asked for; use a smaller depth"
        }
        Rejection::Resources => {
            "it has no resources for another queue; end other hosts, or use fewer jobs"
        }
        Rejection::InboundReads | Rejection::OutboundReads => {
            "it wants another number of RDMA Reads than this machine's device serves; look into the target's log"
        }
        Rejection::Controller => {
            "the controller does not exist any more; look into the target's log, and run it again"
        }
    }
}

/// Which field of a Connect is not valid.
fn place(result: u64) -> String {
    let (offset, data) = (result & 0xFFFF, result >> 16 & 1 != 0);
    let known = match (data, offset) {
        (true, 0) => "the host identifier",
        (true, 16) => "the controller identifier",
        (false, 42) => "the queue identifier: it gives no more I/O queues; use fewer jobs",
        (false, 44) => "the size of the queue",
        (false, 48) => "the keep alive timeout",
        _ => {
            return format!("byte {offset} of the {}", if data { "data" } else { "command" });
        }
    };
    known.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let parties = Parties { host: "nqn.h", subsystem: "nqn.s", greeted: true };
        let refused =
            |completion| parties.connection(ProtocolError::Refused(completion)).to_string();
        assert!(refused(Connect::UNKNOWN_SUBSYSTEM).contains("no subsystem nqn.s"));
        let host = refused(Status::CONNECT_HOST.into());
        assert!(host.contains("nqn.h") && host.contains("--host-nqn"), "{host}");
        assert!(refused(Connect::WRONG_QUEUE).contains("fewer jobs"));
        assert!(refused(Status::CONNECT_BUSY.into()).contains("try again later"));
        assert!(refused(Status::from_bits(0x1EE).into()).contains("0x01ee"));
        let wanted = parties.session(SessionError::Authentication).to_string();
        assert!(wanted.contains("--secret-file"), "{wanted}");
        let stranger = Parties { greeted: false, ..parties };
        let closed = stranger.connection(ProtocolError::TransportClosed).to_string();
        assert!(closed.contains("3260 is iSCSI's") && closed.contains("TLS"), "{closed}");
        let address = ([192, 0, 2, 1], 4420).into();
        let rejected = |rejection| Error::Rejected { address, rejection }.to_string();
        assert!(rejected(Rejection::Resources).contains("fewer jobs"));
        assert!(rejected(Rejection::SubmissionQueueSize).contains("smaller depth"));
        let there = vec![1, 4];
        assert!(Error::NoNamespace { nsid: 2, there }.to_string().contains("1, 4"));
    }
}
