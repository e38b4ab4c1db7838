//! Targets.

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// For whom a target is.
    pub enum Reach {
        /// Those that its rules name: initiators, users.
        Named = "named",
        /// Everybody who reaches a portal.
        Everybody = "everybody",
        /// This machine alone: it names nobody, and is not open.
        ThisMachine = "this-machine",
    }
}

words! {
    /// Where the secret of a user is.
    pub enum SecretPlace {
        /// In the configuration file.
        Configuration = "configuration",
        /// In a file of its own.
        File = "file",
        /// In a variable of the server's environment.
        Environment = "environment",
    }
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// TargetAlias (RFC 7143): a name for people.
    pub alias: Option<String>,
    /// For whom it is.
    #[serde(rename = "for")]
    pub reach: Reach,
    /// Its LUNs.
    pub luns: Vec<Lun>,
    /// How many sessions it has.
    pub sessions: u64,
    /// Who may log in, in words; `None` if a server of another version does not tell.
    pub initiators: Option<String>,
    /// Who may log in with CHAP.
    pub users: Vec<User>,
    /// The name that it proves itself by (mutual CHAP).
    pub mutual: Option<String>,
    /// The subsystem that it is over NVMe, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// The hosts that may connect over NVMe, in words; `None` if it is not served over NVMe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<String>,
}

/// A LUN of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Lun {
    /// Logical unit number.
    pub lun: u16,
    /// Name of the volume that it maps.
    pub volume: String,
    /// The volume's capacity in bytes; `None` if it is not served.
    pub size_bytes: Option<u64>,
}

/// Somebody who may log in with CHAP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct User {
    /// The name (CHAP_N).
    pub name: String,
    /// Where the secret is.
    pub secret: SecretPlace,
    /// Path of the file that holds the secret, if a file does.
    pub file: Option<String>,
    /// The initiators that may use it, in words.
    pub initiators: String,
}
