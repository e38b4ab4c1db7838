//! Changes of what is served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::words::words;
use crate::{Backend, Transport};

/// A change of what is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// Read the configuration again, and serve what it says now.
    Apply {
        /// Although sessions use what would be gone.
        #[serde(default)]
        force: bool,
        /// Sessions stay that could not log in any more.
        #[serde(default)]
        keep_sessions: bool,
    },
    /// Ask sessions to log out, and end those that do not.
    EndSessions {
        /// The session with this TSIH.
        session: Option<u16>,
        /// All sessions of this initiator.
        initiator: Option<String>,
    },
    /// Make a volume.
    CreateVolume(NewVolume),
    /// Give a volume more room.
    ResizeVolume {
        /// Name of the volume.
        name: String,
        /// The new size in bytes; if left out, that which its device has by now.
        size: Option<u64>,
    },
    /// Limit what is done with a volume in a time.
    LimitVolume {
        /// Name of the volume.
        name: String,
        /// What becomes different.
        limits: VolumeLimits,
    },
    /// Open the storage of a volume anew, and end what a failed write-back began.
    ReopenVolume {
        /// Name of the volume.
        name: String,
    },
    /// Make the file of a volume anew, empty, after it was lost.
    RecreateVolume {
        /// Name of the volume.
        name: String,
    },
    /// Take what is in the place of a volume's storage as the volume.
    AdoptVolume {
        /// Name of the volume.
        name: String,
    },
    /// Remove a volume, its LUNs and its data.
    DeleteVolume {
        /// Name of the volume.
        name: String,
        /// Leave its data where it is.
        keep_data: bool,
        /// Although sessions use it.
        force: bool,
    },
    /// Keep the present content of a volume.
    CreateSnapshot {
        /// Name of the volume.
        volume: String,
        /// Name of the snapshot, unique within its volume.
        snapshot: String,
    },
    /// Remove a snapshot.
    DeleteSnapshot {
        /// Name of the volume.
        volume: String,
        /// Name of the snapshot, unique within its volume.
        snapshot: String,
    },
    /// Make a volume with the content of another one.
    CloneVolume {
        /// Name of the volume to copy from.
        volume: String,
        /// Its content at that time; the present one if left out.
        snapshot: Option<String>,
        /// Name of the new volume.
        name: String,
        /// As in [`NewVolume`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        naa: Option<String>,
    },
    /// Give a volume the content of a snapshot.
    Rollback {
        /// Name of the volume.
        volume: String,
        /// Name of the snapshot, unique within its volume.
        snapshot: String,
        /// Although sessions use it.
        force: bool,
    },
    /// Make a target.
    CreateTarget {
        /// Its iSCSI name.
        name: String,
        /// TargetAlias (RFC 7143): a name for people.
        alias: Option<String>,
        /// It is served over NVMe, too.
        #[serde(default)]
        nvme: bool,
    },
    /// Remove a target.
    DeleteTarget {
        /// Its iSCSI name.
        name: String,
        /// Although sessions use it.
        force: bool,
    },
    /// Let initiators in to a target.
    AllowInitiators {
        /// iSCSI name of the target.
        target: String,
        /// Names, addresses and networks, as in the configuration; or NQNs of NVMe hosts.
        initiators: Vec<String>,
        /// Although sessions of others end by it.
        #[serde(default)]
        force: bool,
        /// Sessions stay that could not log in any more.
        #[serde(default)]
        keep_sessions: bool,
    },
    /// Let initiators in no more.
    DenyInitiators {
        /// iSCSI name of the target.
        target: String,
        /// Entries of its list.
        initiators: Vec<String>,
        /// Although others are let in by it.
        #[serde(default)]
        force: bool,
        /// Sessions stay that could not log in any more.
        #[serde(default)]
        keep_sessions: bool,
    },
    /// Open a target that names nobody to everybody.
    OpenTarget {
        /// iSCSI name of the target.
        target: String,
    },
    /// Add a user of a target, or give one another secret.
    AddUser {
        /// iSCSI name of the target.
        target: String,
        /// Name, secret and initiators of the user.
        user: NewUser,
        /// Although sessions end by it.
        #[serde(default)]
        force: bool,
        /// Sessions stay that could not log in any more.
        #[serde(default)]
        keep_sessions: bool,
    },
    /// Remove a user of a target.
    RemoveUser {
        /// iSCSI name of the target.
        target: String,
        /// CHAP name of the user.
        name: String,
        /// Although nobody is asked for CHAP then.
        #[serde(default)]
        force: bool,
        /// Sessions stay that could not log in any more.
        #[serde(default)]
        keep_sessions: bool,
    },
    /// Listen at an address.
    AddPortal {
        /// IP address and TCP port to listen on.
        address: SocketAddr,
        /// The portal group tag; 1 if left out.
        tag: Option<u16>,
        /// Over what; all that can be had there if there is none.
        #[serde(default)]
        transport: Vec<Transport>,
    },
    /// Listen at an address no more.
    RemovePortal {
        /// The address, as it is configured.
        address: SocketAddr,
        /// Although sessions run through it.
        #[serde(default)]
        force: bool,
        /// They stay.
        #[serde(default)]
        keep_sessions: bool,
    },
    /// Make a volume a LUN of a target.
    Map {
        /// iSCSI name of the target.
        target: String,
        /// Logical unit number, unique within the target.
        lun: u16,
        /// Name of the volume.
        volume: String,
        /// Although the target closes by it, and sessions end.
        #[serde(default)]
        force: bool,
    },
    /// Remove a LUN of a target.
    Unmap {
        /// iSCSI name of the target.
        target: String,
        /// Logical unit number, unique within the target.
        lun: u16,
        /// Although sessions use it.
        #[serde(default)]
        force: bool,
    },
}

impl Change {
    /// The version of the API that this change came with, in this form. An older server refuses it.
    pub fn since(&self) -> u32 {
        match self {
            Self::LimitVolume { .. } => 3,
            Self::CreateVolume(new) if !new.limits.is_empty() => 3,
            _ => 1,
        }
    }
}

/// How much may be done with a volume in a time, and its share of its storage. Of a change: what becomes different, and 0 takes a limit away. Of a
/// volume: what is not there is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct VolumeLimits {
    /// Operations per second. One that is longer than 256 KiB counts as one for each 256 KiB that it begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// What was not used of so long a time, in milliseconds, may be used at once. Of a change, 0: as by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u64>,
    /// What it has of its storage, compared with others on the same: 100 is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// Volumes on the same storage without a target give way if its requests take longer there, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_target_us: Option<u64>,
}

impl VolumeLimits {
    /// True if nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A volume to make. What is left out has the default of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Name of the volume, unique on the server.
    pub name: String,
    /// Where its blocks are kept.
    pub backend: Backend,
    /// In bytes.
    pub size: Option<u64>,
    /// Path of the file or device.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub path: Option<PathBuf>,
    /// Name of the image of Ceph, `rbd://POOL[/NAMESPACE]/IMAGE`: one that is there, or one that is made with `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// User of the image's cluster, without `client.`; `admin` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph_user: Option<String>,
    /// File that says where that cluster is; `/etc/ceph/ceph.conf` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub ceph_conf: Option<PathBuf>,
    /// File with the user's key; by that configuration if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub ceph_keyring: Option<PathBuf>,
    /// All space is taken at once.
    pub full: bool,
    /// In bytes.
    pub block_size: Option<u32>,
    /// Writes are refused.
    pub read_only: bool,
    /// Every write is stable before its answer.
    #[serde(default)]
    pub write_through: bool,
    /// NAA designator in hexadecimal, which no other volume has; if left out, that of its name. Whoever has
    /// chosen one at random knows by it, whatever became of the answer, that the volume is the one that it has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naa: Option<String>,
    /// What is done with it in a time, from the beginning.
    #[serde(default, skip_serializing_if = "VolumeLimits::is_empty")]
    pub limits: VolumeLimits,
}

/// Somebody who may log in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// The name (CHAP_N).
    pub name: String,
    /// CHAP secret of the user.
    pub secret: NewSecret,
    /// The initiators that may use it; all if there are none.
    #[serde(default)]
    pub initiators: Vec<String>,
    /// The user is there, and gets another secret.
    #[serde(default)]
    pub replace: bool,
}

/// A secret, or where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NewSecret {
    /// In a file, which the configuration names from then on.
    File(PathBuf),
    /// This one, which lunet keeps in a file of its own.
    Text(SecretText),
}

/// A secret on its way. It is never printed, and is overwritten when it is done with.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    /// Takes a secret.
    pub const fn new(text: Zeroizing<String>) -> Self {
        Self(text)
    }

    /// The secret in clear text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// The answer to a change that was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Done {
    /// What was done, in one sentence.
    pub done: String,
    /// What the user should know besides, a sentence each.
    pub notes: Vec<String>,
    /// The sessions that are concerned.
    pub sessions: Vec<SessionChange>,
    /// It counts, and not every gateway of a failover group serves by it yet: the notes say which.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

/// The answer to what a change would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Preview {
    /// Path of the configuration file.
    pub file: String,
    /// What would be different.
    pub changes: Vec<Difference>,
    /// What the user should know besides, a sentence each.
    pub notes: Vec<String>,
    /// The sessions that would be concerned.
    pub sessions: Vec<SessionChange>,
    /// Why the change would be refused as it was asked for.
    pub refused: Option<String>,
}

/// Something that a change makes different.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Difference {
    /// The kind: `volume`, `target`, `LUN`, `user`, `portal`, `portal group`, `discovery`.
    pub what: String,
    /// Which one.
    pub name: String,
    /// What it is from then on, as in `is new`.
    pub change: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.name.is_empty() { "" } else { " " };
        write!(f, "{}{space}{} {}", self.what, self.name, self.change)
    }
}

words! {
    /// What happens to a session.
    pub enum SessionFate {
        /// It is asked to log out, and ended.
        Ends = "ends",
        /// It goes on, although it could not log in now.
        Stays = "stays",
        /// It loses a LUN.
        LosesLun = "loses-lun",
    }
}

/// A session that a change concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct SessionChange {
    /// Its TSIH.
    pub session: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's address.
    pub peer: String,
    /// The target; `None` for a discovery session.
    pub target: Option<String>,
    /// What happens to it.
    pub fate: SessionFate,
    /// The LUN that it loses.
    pub lun: Option<u16>,
    /// The volume behind that LUN.
    pub volume: Option<String>,
    /// Why, in a clause.
    pub why: String,
}

impl fmt::Display for SessionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, initiator, peer, why, .. } = self;
        let initiator = initiator.escape_debug();
        write!(f, "session {session} of {initiator} from {peer} ")?;
        match (&self.fate, self.lun, &self.volume) {
            (SessionFate::LosesLun, Some(lun), Some(volume)) => {
                write!(f, "loses LUN {lun} (volume {volume})")?;
            }
            (SessionFate::LosesLun, ..) => f.write_str("loses a LUN")?,
            (SessionFate::Ends, ..) => f.write_str("ends")?,
            (SessionFate::Stays, ..) => f.write_str("stays all the same")?,
            (SessionFate::Other(fate), ..) => f.write_str(fate)?,
        }
        if why.is_empty() { Ok(()) } else { write!(f, ": {why}") }
    }
}
