//! What a client asks, and what answers it.

use serde::{Deserialize, Serialize};

use crate::{
    Change, Done, Group, GroupConfig, GroupGateway, Portal, Preview, SecretText, Session, Snapshot,
    Stats, Target, Volume,
};

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    /// Who is connected: a list of [`Session`].
    Sessions,
    /// What has been done: [`Stats`].
    Stats,
    /// The volumes: a list of [`Volume`].
    Volumes,
    /// The snapshots of a volume, or of all: a list of [`Snapshot`].
    Snapshots {
        /// The volume; all if left out.
        volume: Option<String>,
    },
    /// The targets and their LUNs: a list of [`Target`].
    Targets,
    /// The portals, and how they are served: a list of [`Portal`].
    Portals,
    /// The configuration that is in force: [`Configuration`].
    Config,
    /// The failover groups that this server is a gateway of: a list of [`Group`].
    Groups,
    /// Which gateways of a failover group are there now: a list of [`GroupGateway`]. They are asked, which takes some seconds if
    /// one is silent.
    Gateways {
        /// Its name.
        group: String,
    },
    /// Have a failover group go to another gateway in good order: [`Done`].
    MoveGroup {
        /// Its name.
        group: String,
        /// The number of the gateway.
        gateway: u16,
    },
    /// Have this gateway take a failover group, whatever its owner does: [`Done`].
    TakeOverGroup {
        /// Its name.
        group: String,
    },
    /// Have a failover group have gateways up to this number: [`Done`]. Its owner does that.
    GrowGroup {
        /// Its name.
        group: String,
        /// The largest number of a gateway.
        gateways: u16,
    },
    /// What the gateways of a failover group share of their configuration: [`GroupConfig`].
    GroupConfig {
        /// Its name.
        group: String,
    },
    /// Replace it: [`Done`].
    SetGroupConfig {
        /// Its name.
        group: String,
        /// The text. If it begins with the line of a revision, only that one is replaced.
        text: SecretText,
        /// Only this revision is replaced, whatever the text begins with; any if left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
        /// Although sessions lose what they use.
        #[serde(default)]
        force: bool,
    },
    /// Change what is served: [`Done`].
    Change {
        /// The [version](Change::since) that the change came with.
        version: u32,
        /// What to change.
        change: Change,
    },
    /// Tell what a change would do: [`Preview`]. Changes that cannot be foretold are refused ([`Code::Unsupported`](crate::Code::Unsupported)).
    Preview {
        /// The [version](Change::since) that the change came with.
        version: u32,
        /// What to change.
        change: Change,
    },
}

impl Request {
    /// Asks for a change.
    pub fn change(change: Change) -> Self {
        Self::Change { version: change.since(), change }
    }

    /// Asks what a change would do.
    pub fn preview(change: Change) -> Self {
        Self::Preview { version: change.since(), change }
    }

    /// The version of the change in it, if there is one.
    pub const fn version_of_change(&self) -> Option<u32> {
        match self {
            Self::Change { version, .. } | Self::Preview { version, .. } => Some(*version),
            _ => None,
        }
    }
}

/// What a server answers, as it is written: which it is, the request has said.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// To [`Request::Sessions`].
    Sessions(Vec<Session>),
    /// To [`Request::Stats`].
    Stats(Box<Stats>),
    /// To [`Request::Volumes`].
    Volumes(Vec<Volume>),
    /// To [`Request::Snapshots`].
    Snapshots(Vec<Snapshot>),
    /// To [`Request::Targets`].
    Targets(Vec<Target>),
    /// To [`Request::Portals`].
    Portals(Vec<Portal>),
    /// To [`Request::Config`].
    Config(Box<Configuration>),
    /// To [`Request::Groups`].
    Groups(Vec<Group>),
    /// To [`Request::Gateways`].
    Gateways(Vec<GroupGateway>),
    /// To [`Request::GroupConfig`].
    GroupConfig(GroupConfig),
    /// To [`Request::Change`].
    Done(Done),
    /// To [`Request::Preview`].
    Preview(Preview),
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Configuration {
    /// Its file; for the embedded default, where one would be.
    pub file: String,
    /// There is no such file: the embedded default is served.
    pub embedded: bool,
    /// The file as it was read, but for secrets.
    pub text: String,
    /// The same as a table of the keys of docs/configuration.md, as far as they are written there. Its form is that of
    /// the file and not of this API.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub config: serde_json::Map<String, serde_json::Value>,
    /// The file as it is now, but for secrets, if lunet has written it and it is not applied yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// Stands for the content of the file, if that is not what is in force. It says nothing of what is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_version: Option<String>,
    /// The data directory in use.
    pub data: String,
    /// The control socket in use.
    pub socket: String,
}
