//! What binds now: where the time of operations goes, and what is at its limit.

use serde::{Deserialize, Serialize};

use crate::SilentShard;
use crate::words::words;

words! {
    /// What an operation waits for, or a volume without one.
    pub enum Stage {
        /// The rest of a command, and the data that comes with it.
        NetworkIn = "network-in",
        /// Data that the initiator was asked for (R2T, H2CData, RDMA Read).
        Data = "data",
        /// Buffer memory.
        BufferMemory = "buffer-memory",
        /// Its turn at a limit of the volume.
        Limit = "limit",
        /// A range of the volume that another command has, or another command.
        Queue = "queue",
        /// The storage, or room there.
        Storage = "storage",
        /// The network, to take what is sent.
        NetworkOut = "network-out",
        /// Nothing: no operation is at work.
        Initiator = "initiator",
    }
}

words! {
    /// What binds.
    pub enum BoundBy {
        /// Nothing: there was no operation.
        Idle = "idle",
        /// What asks: nothing is at work for most of the time. The initiator, or the way to it, has the most of it.
        Initiator = "initiator",
        /// The way of commands and data to the server.
        NetworkIn = "network-in",
        /// The way of data and answers to the initiators.
        NetworkOut = "network-out",
        /// The processor of a shard.
        ShardCpu = "shard-cpu",
        /// Buffer memory.
        BufferMemory = "buffer-memory",
        /// The storage below the volume.
        Storage = "storage",
        /// A limit that was set, or other commands that have the range.
        Queue = "queue",
    }
}

words! {
    /// What can be at its limit.
    pub enum LimitKind {
        /// The processor of a shard.
        ShardCpu = "shard-cpu",
        /// Buffer memory.
        BufferMemory = "buffer-memory",
        /// A drive.
        Drive = "drive",
        /// The drives of a pool.
        Pool = "pool",
        /// The link of a network interface.
        Link = "link",
        /// The PCIe slot of a network card.
        Slot = "slot",
        /// A rate that was set for a volume.
        Rate = "rate",
        /// The operations that initiators keep at work: more at a time would be carried out.
        QueueDepth = "queue-depth",
    }
}

/// A resource at its limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AtLimit {
    /// What it is.
    pub kind: LimitKind,
    /// Its name: `enp1s0`, `tank`, `shard 0`; empty where there is one only.
    pub name: String,
    /// How much of it is used: 1 is all of it. `None` if that is not known as a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
}

/// What binds a server and each of its volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Verdict {
    /// All volumes together.
    pub server: Binding,
    /// Each volume.
    pub volumes: Vec<VolumeBinding>,
    /// The shards that have not answered for two seconds: what they serve is not judged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent_shards: Vec<SilentShard>,
}

/// What binds a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct VolumeBinding {
    /// Name of the volume.
    pub name: String,
    /// What binds it.
    #[serde(flatten)]
    pub binding: Binding,
}

/// What binds, and how that is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Binding {
    /// In a word.
    pub bound_by: BoundBy,
    /// In a sentence.
    pub sentence: String,
    /// The resource that is at its limit; `None` if none of those that are known is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_limit: Option<AtLimit>,
    /// What was measured, a sentence each.
    pub evidence: Vec<String>,
    /// Where the time of the interval went, the most first. The shares add up to 1 if there was an operation.
    pub stages: Vec<StageShare>,
    /// Operations that were timed in the interval.
    pub sampled: u64,
}

/// The share of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct StageShare {
    /// Which one.
    pub stage: Stage,
    /// 0 to 1.
    pub share: f64,
}
