//! What the REST interface knows of the server, and who asks.

use std::net::IpAddr;

use lunet_api::{Answer, Done, Error, Preview, Request};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::guard::Peer;

/// What somebody may do. Each role may do what those before it may, but for `metrics`, which reads metrics alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads `/metrics`, and nothing else.
    Metrics,
    /// Reads everything that is no secret.
    Viewer,
    /// Changes volumes, targets, access and sessions, but deletes no data.
    Operator,
    /// Everything.
    Administrator,
}

impl Role {
    /// The word in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Administrator => "administrator",
        }
    }

    /// True if this role may do what `needed` may.
    pub fn may(self, needed: Self) -> bool {
        self >= needed
    }
}

/// How somebody has shown who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// By a login, in a browser.
    Session,
    /// By a token.
    Token,
    /// By being allowed to use a Unix socket.
    Peer,
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The account's name, or the token's, or that of a user of this machine.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// How they have shown who they are.
    pub kind: Kind,
    /// Where they come from.
    pub(crate) peer: Peer,
    /// Tells a session or a token from others of its name.
    pub(crate) id: String,
    /// Tells an account, a token or a user from others of its name; all sessions of an account have the same.
    pub(crate) owner: String,
    /// The account that is behind it: its own, or the one by which a token was made. Empty for a user of this machine.
    pub(crate) account: String,
    /// What a change by a session has to repeat.
    pub(crate) csrf: Option<Zeroizing<String>>,
}

/// What tells who asks from everybody else, whatever names they have.
pub(crate) type Identity = (Kind, String);

impl Principal {
    /// Who it is, as the audit log has it.
    pub fn told(&self) -> String {
        let name = &self.name;
        match (self.kind, self.peer) {
            (Kind::Session, _) => format!("{name} (session)"),
            (Kind::Token, _) => format!("{name} (token)"),
            (Kind::Peer, Peer::User { uid, .. }) => format!("{name} (uid {uid})"),
            (Kind::Peer, Peer::Network(_)) => name.clone(),
        }
    }

    /// The address that they come from; `None` if they come over a Unix socket.
    pub fn address(&self) -> Option<IpAddr> {
        self.peer.address()
    }

    pub(crate) fn identity(&self) -> Identity {
        (self.kind, self.owner.clone())
    }
}

/// A login to a target, or a host's Connect, that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct RefusedLogin {
    /// When, in seconds since 1970, UTC.
    pub time: u64,
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// The initiator's name, or the host's NQN; empty if it was refused before it had one (TLS).
    pub initiator: String,
    /// The target that it asked for, or the subsystem's NQN; empty for discovery over iSCSI, and if there was none yet.
    pub target: String,
    /// The initiator's address.
    pub address: String,
    /// Why, in a sentence.
    pub why: String,
}

/// The server, as the REST interface knows it. Every method may block, and is called on a thread where it may.
pub trait Service: Send + Sync + 'static {
    /// Answers a request. Whoever implements this reports each change with
    /// [`Notifier::changed`](crate::Notifier::changed), wherever it came from.
    ///
    /// # Errors
    /// Why there is no answer.
    fn answer(&self, who: &Principal, request: Request) -> Result<Answer, Error>;

    /// What a configuration with this text would change. Nothing is written. For others than an administrator, no file,
    /// variable or secret is looked at that the present configuration does not name.
    ///
    /// # Errors
    /// What is wrong with it, or with the code `forbidden` that it names more.
    fn check(&self, who: &Principal, text: &str) -> Result<Preview, Error>;

    /// Replaces the configuration file, and does not apply it.
    ///
    /// # Errors
    /// What is wrong with the text, or why it cannot be written.
    fn write(&self, who: &Principal, text: Zeroizing<String>) -> Result<Done, Error>;

    /// Why the server is not ready to serve, a sentence each; empty if it is.
    fn ready(&self) -> Vec<String>;

    /// Logins that were refused lately, the newest first.
    fn refused(&self) -> Vec<RefusedLogin>;
}
