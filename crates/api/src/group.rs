//! Failover groups, as a gateway knows them.

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What a gateway is in its group.
    pub enum GroupState {
        /// Without a connection to the cluster.
        Fenced = "fenced",
        /// Another one owns the group, or nobody.
        Standby = "standby",
        /// On its way to own the group.
        TakingOver = "taking-over",
        /// It serves the group.
        Owner = "owner",
        /// It gives the group away.
        Moving = "moving",
    }
}

words! {
    /// What a gateway does with commands of hosts for its group, over one protocol.
    pub enum GroupAccess {
        /// It executes them: it owns the group.
        Executes = "executes",
        /// It passes them on to the owner.
        PassesOn = "passes-on",
        /// It would pass them on, and does not reach the owner.
        OwnerNotReached = "owner-not-reached",
        /// It refuses them: the owner has no address for this.
        Refuses = "refuses",
        /// Nobody owns the group, or who does is not known here.
        Waits = "waits",
    }
}

words! {
    /// What a gateway has answered when it was asked whether it is there.
    pub enum GatewayState {
        /// It owns the group.
        Owner = "owner",
        /// It does not own the group, and is connected to the cluster.
        Standby = "standby",
        /// It has not answered: it does not run, stands still, or does not reach the cluster.
        Silent = "silent",
    }
}

/// A volume of a failover group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GroupVolume {
    /// Its name in the configuration.
    pub name: String,
    /// Its image: `rbd://POOL[/NAMESPACE]/IMAGE`.
    pub image: String,
    /// Its LUN at the group's target.
    pub lun: u16,
}

/// What a gateway does for its group over one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GroupProtocol {
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// What it does with commands of hosts.
    pub access: GroupAccess,
    /// Where it passes them on to, an address and a port; `None`: nowhere.
    pub owner: Option<String>,
    /// Connections to the owner by which commands of hosts are passed on.
    pub connections: u64,
    /// Commands that were passed on since the start.
    pub commands: u64,
}

/// A gateway of a failover group, as it has answered when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GroupGateway {
    /// Its number.
    pub gateway: u16,
    /// What it is.
    pub state: GatewayState,
    /// The epoch that it knows of; 0 if it has not answered.
    pub epoch: u64,
    /// The revision of the shared configuration that it serves by; `None` if the group shares none, or it has not said so.
    pub config: Option<u64>,
    /// Why it does not serve by the latest revision.
    pub trouble: Option<String>,
}

/// A failover group, as this gateway knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Group {
    /// Its name in the configuration.
    pub name: String,
    /// Where its record is: `rbd://POOL[/NAMESPACE]/NAME`.
    pub record: String,
    /// The number of this gateway.
    pub gateway: u16,
    /// What this gateway is.
    pub state: GroupState,
    /// The number of the gateway that owns it; `None` if nobody does, or that is not known here.
    pub owner: Option<u16>,
    /// The gateway that a planned move gives it to.
    pub heir: Option<u16>,
    /// How often it has changed hands; 0 if that is not known here.
    pub epoch: u64,
    /// The revision of the configuration in the cluster that this gateway serves by; `None` if the group is configured in
    /// files, or it is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<u64>,
    /// What is wrong, in one sentence: the first of `notices`.
    pub trouble: Option<String>,
    /// All that is wrong, or that an administrator has to do, a sentence each.
    pub notices: Vec<String>,
    /// The gateways share a configuration in the cluster.
    pub shared: bool,
    /// The name of its target; `None` if that is not known here yet.
    pub target: Option<String>,
    /// The numbers of the gateways that the record was made for; empty if it was not read yet. Not all of them need be there.
    pub gateways: Vec<u16>,
    /// Its volumes, by the configuration that this gateway serves by.
    pub volumes: Vec<GroupVolume>,
    /// What this gateway does, over each protocol.
    pub protocols: Vec<GroupProtocol>,
    /// How often this gateway has become the owner since its start, by a move or otherwise.
    pub takeovers: u64,
    /// How often it was deposed, or has lost the cluster, so that its connections were reset.
    pub deposed: u64,
}

/// What the gateways of a failover group share of their configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct GroupConfig {
    /// Counts its changes, from 1.
    pub revision: u64,
    /// Its text without secrets, behind a line that says the revision.
    pub text: String,
}
