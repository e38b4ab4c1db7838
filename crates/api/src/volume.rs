//! Volumes and their snapshots.

use serde::{Deserialize, Serialize};

use crate::VolumeLimits;
use crate::words::words;

words! {
    /// Where the blocks of a volume are kept.
    pub enum Backend {
        /// In a file.
        File = "file",
        /// On a block device.
        Block = "block",
        /// In an image of Ceph.
        Rbd = "rbd",
        /// In memory, until the server ends.
        Memory = "memory",
        /// Nowhere: reads give zeroes.
        Null = "null",
    }
}

words! {
    /// How writes are answered.
    pub enum WriteCache {
        /// Before they are stable.
        On = "on",
        /// When they are stable, by the configuration.
        Off = "off",
        /// When they are stable, because an initiator has switched the cache off (WCE = 0).
        OffByInitiator = "off-by-initiator",
        /// There is no volatile cache.
        None = "none",
    }
}

words! {
    /// What is wrong with the storage of a volume.
    pub enum FaultState {
        /// It has failed to make stable what was acknowledged.
        WriteBackFailed = "write-back-failed",
        /// It could not be opened.
        NotServed = "not-served",
        /// The file or device is not at its path.
        StorageMissing = "storage-missing",
        /// Another file or device is at its path.
        StorageReplaced = "storage-replaced",
        /// It has become smaller than the volume.
        StorageCutShort = "storage-cut-short",
        /// A rollback was cut off, or has failed: what it holds is neither of both.
        RolledBackInPart = "rolled-back-in-part",
        /// Its file was never made.
        NotMade = "not-made",
        /// There is too little memory for it.
        NoMemory = "no-memory",
        /// It cannot be opened for another reason.
        CannotBeOpened = "cannot-be-opened",
    }
}

impl FaultState {
    /// True if the storage is not the one that the volume had: it takes an administrator to say what to do.
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::StorageMissing | Self::StorageReplaced | Self::StorageCutShort)
    }
}

words! {
    /// What keeps a volume from being read and written.
    pub enum ErasureState {
        /// SANITIZE is under way.
        Sanitizing = "sanitizing",
        /// FORMAT UNIT is under way.
        Formatting = "formatting",
        /// FORMAT UNIT was cut off.
        FormatUnfinished = "format-unfinished",
        /// SANITIZE was cut off or has failed.
        SanitizeFailed = "sanitize-failed",
    }
}

words! {
    /// The operations that a limit is for.
    pub enum Limited {
        /// Reads and writes together.
        All = "all",
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
    }
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Volume {
    /// Name of the volume in the configuration.
    pub name: String,
    /// Where its blocks are kept.
    pub backend: Backend,
    /// Capacity in bytes; 0 if it is not served and its size is not known.
    pub size_bytes: u64,
    /// Bytes that its file takes up; `None` if it has none.
    pub used_bytes: Option<u64>,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// How writes are answered.
    pub write_cache: WriteCache,
    /// What is wrong with its storage, empty while nothing is; `None` if a server of another version does not tell.
    pub faults: Option<Vec<Fault>>,
    /// That it is being sanitized or formatted, or should be: it serves nothing else then.
    pub erasure: Option<Erasure>,
    /// The rates that all its reads or writes are kept to.
    pub limits: Vec<Limit>,
    /// Of these what is the volume's own, as `lunet volume limit` sets it, and not its layers'.
    #[serde(skip_serializing_if = "VolumeLimits::is_empty")]
    pub own_limits: VolumeLimits,
    /// Path of its file or device; `None` for other backends.
    pub path: Option<String>,
    /// Where it is a LUN.
    pub luns: Vec<MappedAs>,
    /// How many sessions see it.
    pub sessions: u64,
    /// How many snapshots it has; 0 as long as its directory has not answered since lunet started.
    pub snapshots: u64,
    /// Its NAA designator (SPC-5 7.7.6.6) in hexadecimal, by which SCSI initiators know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naa: Option<String>,
    /// The UUID of its namespaces (NVM Express, Namespace Identification Descriptor), by which NVMe hosts know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// What is wrong with the storage of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Fault {
    /// In a word.
    pub state: FaultState,
    /// When lunet learned of it, in seconds since 1970, UTC.
    pub since: u64,
    /// The same as the end of a sentence about the volume.
    pub text: String,
}

/// What SANITIZE or FORMAT UNIT does to a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Erasure {
    /// How it stands.
    pub state: ErasureState,
    /// The part that is done, 0 to 1; `None` if nothing is under way.
    pub progress: Option<f64>,
}

/// A rate that a volume keeps: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Limit {
    /// Of what.
    pub on: Limited,
    /// Bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operations_per_s: Option<u64>,
}

/// Where a volume is a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MappedAs {
    /// The target's name.
    pub target: String,
    /// The number of the LUN.
    pub lun: u16,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Snapshot {
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot, unique within its volume.
    pub snapshot: String,
    /// The volume's capacity at that time, in bytes.
    pub size_bytes: Option<u64>,
    /// When it was made, in seconds since 1970, UTC.
    pub created: u64,
    /// What tells it from an earlier or later snapshot of the same name; of no form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}
