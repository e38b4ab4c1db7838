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

/// A failover group, as this gateway knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What is wrong, in one sentence.
    pub trouble: Option<String>,
}

/// What the gateways of a failover group share of their configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupConfig {
    /// Counts its changes, from 1.
    pub revision: u64,
    /// Its text without secrets, behind a line that says the revision.
    pub text: String,
}
