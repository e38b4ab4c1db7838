//! OpenZFS.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Value;
use crate::source::Source;

/// OpenZFS on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Zfs {
    /// Version of the module in use: `2.2.3-1`.
    pub version: Option<String>,
    /// The same as one number: 2.2.3 is 2002003.
    pub version_num: Option<i64>,
    /// Version of the programs, which may be another one.
    pub userland_version: Option<String>,
    /// Pools that are imported.
    pub pools: Vec<Pool>,
    /// Volumes.
    pub zvols: Vec<Zvol>,
    /// File systems.
    pub datasets: Vec<Dataset>,
    /// Parameters of the modules zfs and spl, as far as rules speak of them, by their names.
    pub params: BTreeMap<String, Value>,
    /// The cache in memory.
    pub arc: Option<Arc>,
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// `ONLINE`, `DEGRADED`, `FAULTED`, `SUSPENDED`.
    pub health: Option<String>,
    /// Size in bytes, with parity.
    pub size_bytes: Option<i64>,
    /// Space in use in bytes, with parity.
    pub allocated_bytes: Option<i64>,
    /// Space left in bytes, with parity.
    pub free_bytes: Option<i64>,
    /// Space in use in percent.
    pub capacity_percent: Option<i64>,
    /// How broken up the free space is, in percent.
    pub fragmentation_percent: Option<i64>,
    /// The pool's default for new vdevs as a power of two; 0 = each vdev's own choice.
    pub ashift: Option<i64>,
    /// Whether free blocks are trimmed all the time.
    pub autotrim: Option<bool>,
    /// Deduplication ratio, times 100; 100 = none.
    pub dedup_ratio_percent: Option<i64>,
    /// Its vdevs: those with data, and logs, caches, special ones, spares.
    pub vdevs: Vec<Vdev>,
    /// How many of them hold data.
    pub data_vdevs: Option<i64>,
    /// Whether it has a separate log device (SLOG).
    pub slog: Option<bool>,
    /// Whether a scrub or resilver is running.
    pub scanning: Option<bool>,
    /// Read, write and checksum errors of all its drives.
    pub errors: Option<i64>,
    /// Files and volumes with damage that could not be repaired.
    pub data_errors: Option<bool>,
}

/// A part of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vdev {
    /// `raidz1-0`; a single drive's own name.
    pub name: String,
    /// `disk`, `mirror`, `raidz1`, `raidz2`, `raidz3`, `draid1`...
    pub kind: String,
    /// `data`, `log`, `cache`, `special`, `dedup` or `spare`.
    pub role: String,
    /// Drives that may fail; of a mirror, one less than its drives.
    pub parity: i64,
    /// `ONLINE`, `DEGRADED`...
    pub state: Option<String>,
    /// Its sector size as a power of two: 12 = 4096 bytes.
    pub ashift: Option<i64>,
    /// Its drives.
    pub disks: Vec<VdevDisk>,
}

/// A drive of a vdev.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VdevDisk {
    /// As the pool names it: `/dev/disk/by-partuuid/...`, `nvme0n1p2`.
    pub name: String,
    /// The whole drive: `nvme0n1`; `null` if that cannot be seen.
    pub drive: Option<String>,
    /// `ONLINE`, `FAULTED`, `UNAVAIL`...
    pub state: Option<String>,
    /// Reads that failed.
    pub read_errors: Option<i64>,
    /// Writes that failed.
    pub write_errors: Option<i64>,
    /// Blocks that were read wrong.
    pub checksum_errors: Option<i64>,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Zvol {
    /// `tank/vm/disk1`.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its block device: `zd0`.
    pub device: Option<String>,
    /// Size in bytes.
    pub volsize_bytes: Option<i64>,
    /// Block in bytes.
    pub volblocksize_bytes: Option<i64>,
    /// Space it takes up in bytes.
    pub used_bytes: Option<i64>,
    /// Space kept for it in bytes; 0 = thin.
    pub refreservation_bytes: Option<i64>,
    /// `standard`, `always`, `disabled`.
    pub sync: Option<String>,
    /// Whether a thread of its own does each request; `null` where OpenZFS does not have it.
    pub volthreading: Option<bool>,
    /// `full`, `dev`, `none`...
    pub volmode: Option<String>,
    /// `lz4`, `off`...
    pub compression: Option<String>,
    /// How well it compresses, times 100.
    pub compress_ratio_percent: Option<i64>,
    /// `on`, `off`, `sha256`...
    pub checksum: Option<String>,
    /// `off`, `on`, `verify`...
    pub dedup: Option<String>,
    /// What is kept in memory: `all`, `metadata`, `none`.
    pub primarycache: Option<String>,
    /// What is kept on cache drives.
    pub secondarycache: Option<String>,
    /// `latency` or `throughput`.
    pub logbias: Option<String>,
    /// Whether reads are kept ahead: `all`, `metadata`, `none`; from 2.2.
    pub prefetch: Option<String>,
    /// `standard`, `always`, `disabled`: direct I/O, from 2.3.
    pub direct: Option<String>,
    /// Whether it is encrypted, and how.
    pub encryption: Option<String>,
    /// Read-ahead of its block device in KiB.
    pub read_ahead_kib: Option<i64>,
    /// Scheduler of its block device.
    pub scheduler: Option<String>,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dataset {
    /// `tank/files`.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Largest block in bytes.
    pub recordsize_bytes: Option<i64>,
    /// `standard`, `always`, `disabled`.
    pub sync: Option<String>,
    /// `lz4`, `off`...
    pub compression: Option<String>,
    /// Whether reading a file writes its access time.
    pub atime: Option<bool>,
    /// `sa`, `on` (a directory for each file's attributes: slow), `off`.
    pub xattr: Option<String>,
    /// What is kept in memory: `all`, `metadata`, `none`.
    pub primarycache: Option<String>,
    /// `latency` or `throughput`.
    pub logbias: Option<String>,
    /// `off`, `on`, `verify`...
    pub dedup: Option<String>,
    /// Space it takes up in bytes.
    pub used_bytes: Option<i64>,
}

/// The cache in memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arc {
    /// Its size now, in bytes.
    pub size_bytes: Option<i64>,
    /// The size that it aims at now, in bytes.
    pub target_bytes: Option<i64>,
    /// The largest that it may aim at, in bytes.
    pub max_bytes: Option<i64>,
    /// The smallest that it may aim at, in bytes.
    pub min_bytes: Option<i64>,
    /// Reads that it answered.
    pub hits: Option<i64>,
    /// Reads that it could not answer.
    pub misses: Option<i64>,
    /// Answered, in percent of both.
    pub hit_percent: Option<i64>,
    /// How often memory was short and it had to shrink.
    pub memory_throttle_count: Option<i64>,
    /// Size of what is on cache drives, in bytes.
    pub l2_size_bytes: Option<i64>,
    /// What the cache drives' index takes of the memory, in bytes.
    pub l2_header_bytes: Option<i64>,
}

/// Reads about OpenZFS.
pub(super) fn read(_source: &dyn Source) -> Option<Zfs> {
    None
}
