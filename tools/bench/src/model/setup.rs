//! Where, what and with what was measured.

use serde::{Deserialize, Serialize};

/// A machine that took part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// What it did: `client and server`, `client`, `server`.
    pub role: String,
    /// Hardware and software of the machine, by section.
    pub sections: Vec<Section>,
}

/// Facts that belong together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// `processor`, `memory`, `network`, `drives`, `software`.
    pub title: String,
    /// One for each line.
    pub facts: Vec<Fact>,
}

/// A fact, with its unit in the text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// What.
    pub key: String,
    /// How much.
    pub value: String,
}

/// A command line, as it was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// What it is for.
    pub what: String,
    /// The line, quoted for a shell.
    pub line: String,
}

/// What a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// A file that was there, or was made for this.
    File,
    /// A directory, in which files were made.
    Directory,
    /// A block device.
    BlockDevice,
    /// A LUN over iSCSI.
    Iscsi,
    /// A LUN over iSER.
    Iser,
    /// A namespace over NVMe over TCP.
    NvmeTcp,
    /// A namespace over NVMe over RDMA.
    NvmeRdma,
}

impl TargetKind {
    /// True over RDMA: the ceilings of TCP are none of its own.
    #[must_use]
    pub const fn is_rdma(self) -> bool {
        matches!(self, Self::Iser | Self::NvmeRdma)
    }

    /// True for a volume over the network.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::Iscsi | Self::Iser | Self::NvmeTcp | Self::NvmeRdma)
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// A short name, by which runs refer to it.
    pub name: String,
    /// What it is.
    pub kind: TargetKind,
    /// The path or URL, without a secret: see [`without_secret`].
    pub location: String,
    /// What generated the load: `fio`, `lunet`.
    pub tool: String,
    /// Whether a data digest (CRC32C over each PDU's data) was in use.
    #[serde(default)]
    pub data_digest: bool,
}

/// How addresses follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// One after the other.
    Sequential,
    /// All equally likely.
    Random,
}

/// When a write counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sync {
    /// When the device has taken it, into its cache perhaps.
    #[default]
    Cached,
    /// Each write is on stable storage before it counts.
    EachWrite,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// A short name, by which runs refer to it.
    pub name: String,
    /// Bytes of each operation.
    pub block_bytes: u64,
    /// How many of 100 operations read.
    pub read_percent: u8,
    /// How addresses follow each other.
    pub pattern: Pattern,
    /// Operations in flight at once, of each job.
    pub depth: u32,
    /// Jobs at once; over iSCSI each job has a session of its own, over NVMe an I/O queue.
    pub jobs: u32,
    /// When a write counts.
    #[serde(default)]
    pub sync: Sync,
    /// How long it is measured, in seconds.
    pub seconds: f64,
    /// How long it runs before that, in seconds.
    #[serde(default)]
    pub ramp_seconds: f64,
    /// Bytes of each job's file or part of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// A limit that the load generator keeps, in MiB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_mib_per_s: Option<f64>,
}

impl Workload {
    /// Operations in flight at once, of all jobs.
    pub fn outstanding(&self) -> u64 {
        u64::from(self.depth) * u64::from(self.jobs)
    }

    /// Whether it writes anything.
    pub fn writes(&self) -> bool {
        self.read_percent < 100
    }

    /// In words: `4k random, 70 % reads, depth 32, 4 jobs`.
    pub fn words(&self) -> String {
        let size = match self.block_bytes {
            bytes if bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
            bytes if bytes % 1024 == 0 => format!("{}k", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let pattern = match self.pattern {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        };
        let kind = match self.read_percent {
            100 => "reads".to_owned(),
            0 => "writes".to_owned(),
            reads => format!("I/O, {reads} % reads"),
        };
        let sync = match self.sync {
            Sync::EachWrite => ", each write stable",
            Sync::Cached => "",
        };
        let jobs = match self.jobs {
            1 => String::new(),
            jobs => format!(", {jobs} jobs"),
        };
        format!("{size} {pattern} {kind}{sync}, depth {}{jobs}", self.depth)
    }
}

/// A URL without what would let others log in: `iscsi://user%secret@host/…` loses `%secret`, and the option
/// `target_password` its value. Anything else stays as it is.
pub fn without_secret(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    // A secret may hold an `@` or a `/`; a host may not. Without a `%`, an `@` behind a `/` is part of a name.
    let account = rest.rsplit_once('@');
    let account = account.filter(|(account, _)| account.contains('%') || !account.contains('/'));
    let mut told = match account {
        Some((account, place)) => {
            let name = account.split(['%', ':']).next().unwrap_or_default();
            format!("{scheme}://{name}@{place}")
        }
        None => format!("{scheme}://{rest}"),
    };
    for (number, option) in options.split('&').filter(|option| !option.is_empty()).enumerate() {
        told.push(if number == 0 { '?' } else { '&' });
        told.push_str(if option.starts_with("target_password=") {
            "target_password="
        } else {
            option
        });
    }
    told
}
