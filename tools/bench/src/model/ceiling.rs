//! What layers can carry, and which one binds.

use serde::{Deserialize, Serialize};

/// What a ceiling belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CeilingKind {
    /// Bandwidth of the memory.
    Memory,
    /// A processor's own work: CRC32C.
    Cpu,
    /// The way between client and server.
    Network,
    /// What stores the data.
    Drive,
    /// The protocol with a volume that stores nothing.
    Protocol,
    /// A limit that somebody set.
    Limit,
}

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// 2^20 bytes for each second.
    #[serde(rename = "MiB/s")]
    MibPerS,
    /// Operations for each second.
    #[serde(rename = "IOPS")]
    Iops,
}

impl Unit {
    /// As people write it.
    pub fn text(self) -> &'static str {
        match self {
            Self::MibPerS => "MiB/s",
            Self::Iops => "IOPS",
        }
    }
}

/// What a layer can carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Which layer the ceiling is of.
    pub kind: CeilingKind,
    /// For people: `network`, `drive /dev/nvme0n1`.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
    /// How it was got, in a sentence.
    pub how: String,
    /// The target that it holds for; all, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The workload that it holds for; all, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The operations in flight with which it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<u64>,
    /// The time of one operation alone on this layer, in microseconds: a round trip, a read of the drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
    /// The part of the time in which a thread of the load generator had a processor or was ready for one: if it had nothing else
    /// to wait for, the layer itself may carry more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator_busy: Option<f64>,
}

impl Ceiling {
    /// Whether it says something about this target with this workload.
    pub fn concerns(&self, target: &str, workload: &str) -> bool {
        let fits = |own: &Option<String>, name: &str| own.as_deref().is_none_or(|own| own == name);
        fits(&self.target, target) && fits(&self.workload, workload)
    }

    /// In another unit, for operations of so many bytes.
    pub fn in_unit(&self, unit: Unit, block_bytes: u64) -> f64 {
        let mib = block_bytes as f64 / f64::from(1 << 20);
        match (self.unit, unit) {
            (Unit::MibPerS, Unit::Iops) => self.value / mib,
            (Unit::Iops, Unit::MibPerS) => self.value * mib,
            _ => self.value,
        }
    }
}

/// What can bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// A limit that somebody set.
    Limit,
    /// Hardware that slows itself down: heat, power.
    Throttling,
    /// A quota of processor time.
    Quota,
    /// The load generator's processor.
    ClientCpu,
    /// The server's processor.
    ServerCpu,
    /// All processors of the machine together.
    MachineCpu,
    /// Digests.
    Digest,
    /// The drive's rate.
    Drive,
    /// The drive's time for one operation.
    DriveLatency,
    /// The network's rate.
    Network,
    /// The network's round trip.
    NetworkLatency,
    /// Bandwidth of the memory.
    Memory,
    /// The protocol and its implementation, without any storage.
    Protocol,
    /// Too few operations in flight.
    QueueDepth,
    /// One session, where several go faster.
    SingleSession,
}

/// A layer's load in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The layer that limits the workload.
    pub bound: Bound,
    /// For people.
    pub name: String,
    /// The part of its ceiling that is used, 0 to 1 or a little more.
    pub share: f64,
    /// How that comes about, in a sentence with figures.
    pub how: String,
}

/// The bottleneck of a target with a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name of the target that it holds for.
    pub target: String,
    /// Name of the workload that it holds for.
    pub workload: String,
    /// The bottleneck; absent if it cannot be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// `bound by X at n % of its ceiling; next Y at m %`.
    pub sentence: String,
    /// What to do about it.
    pub advice: String,
    /// All layers of which something is known, the one that binds first, then by their share.
    pub layers: Vec<Load>,
}
