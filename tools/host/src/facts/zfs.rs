//! OpenZFS.

mod dataset;
mod health;
mod pool;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Value, version_num};
use crate::source::Source;

pub use health::Scan;

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
    /// Limits and statistics of the adaptive replacement cache.
    pub arc: Option<Arc>,
    /// All numbers of arcstats, by their names: `l2_hits`, `arc_no_grow`, `arc_meta_used`...
    pub arcstats: BTreeMap<String, i64>,
    /// How transactions were held up: `dmu_tx_dirty_delay`, `dmu_tx_dirty_over_max`...
    pub transactions: BTreeMap<String, i64>,
    /// Reports of trouble that the kernel still holds, by their class: `checksum`, `io`, `delay`, `deadman`...
    pub events: BTreeMap<String, i64>,
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Name of the pool.
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
    /// The last scrub or resilver.
    pub scan: Scan,
    /// The same in the pool's own words.
    pub scan_text: Option<String>,
    /// What `zpool status` says of its status: features that are not in use, devices that were removed...
    pub status_text: Option<String>,
    /// Properties: `autoexpand`, `failmode`, `freeing`...
    pub properties: BTreeMap<String, String>,
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
    /// Drives of the vdev.
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
    /// Requests that took longer than zio_slow_io_ms (30 seconds).
    pub slow: Option<i64>,
    /// What else the pool says of it: `too many errors`, `was /dev/sdb1`, `(trimming)`.
    pub note: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Zvol {
    /// `tank/vm/disk1`.
    pub name: String,
    /// Name of its pool.
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
    /// Other properties: `available`, `copies`, `keystatus`, `usedbysnapshots`...
    pub properties: BTreeMap<String, Value>,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dataset {
    /// `tank/files`.
    pub name: String,
    /// Name of its pool.
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
    /// Other properties: `available`, `quota`, `special_small_blocks`...
    pub properties: BTreeMap<String, Value>,
}

/// The adaptive replacement cache.
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
    /// What it leaves free of the memory, in bytes.
    pub sys_free_bytes: Option<i64>,
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
pub(super) fn read(source: &dyn Source) -> Option<Zfs> {
    let version = source.text("/sys/module/zfs/version");
    let programs = source.output("zfs", &["version"]);
    if version.is_none() && programs.is_none() {
        return None;
    }
    let mut zfs = Zfs {
        version_num: version.as_deref().and_then(version_num),
        version,
        // zfs-2.2.3-1, then zfs-kmod-2.2.3-1
        userland_version: programs.as_deref().and_then(|text| {
            let word = text.split_whitespace().next()?;
            Some(word.strip_prefix("zfs-").unwrap_or(word).to_owned())
        }),
        ..Zfs::default()
    };
    for module in ["spl", "zfs"] {
        params(source, &format!("/sys/module/{module}/parameters"), &mut zfs.params);
    }
    zfs.arc = arc(source);
    if zfs.version.is_some() {
        zfs.pools = pool::read(source);
        zfs.zvols = dataset::volumes(source);
        zfs.datasets = dataset::filesystems(source);
        if !zfs.pools.is_empty() {
            health::pools(source, &mut zfs.pools);
            health::datasets(source, &mut zfs.zvols, &mut zfs.datasets);
            zfs.events = health::events(source);
        }
        zfs.arcstats = health::kstat(source, "arcstats");
        zfs.transactions = health::kstat(source, "dmu_tx");
    }
    Some(zfs)
}

/// What the programs say of pools, volumes and file systems, which is the same on every system with OpenZFS.
pub(super) fn of_programs(source: &dyn Source) -> Zfs {
    let mut zfs = Zfs {
        pools: pool::read(source),
        zvols: dataset::volumes(source),
        datasets: dataset::filesystems(source),
        ..Zfs::default()
    };
    if !zfs.pools.is_empty() {
        health::pools(source, &mut zfs.pools);
    }
    zfs
}

fn params(source: &dyn Source, directory: &str, into: &mut BTreeMap<String, Value>) {
    for name in source.names(directory) {
        if let Some(text) = source.text(&format!("{directory}/{name}")) {
            into.insert(name, Value::parse(&text));
        }
    }
}

/// `name type data` lines, after two lines of heading.
fn arc(source: &dyn Source) -> Option<Arc> {
    let text = source.read("/proc/spl/kstat/zfs/arcstats")?;
    let values: BTreeMap<&str, i64> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            Some((name, words.nth(1)?.parse().ok()?))
        })
        .collect();
    let get = |name: &str| values.get(name).copied();
    let (hits, misses) = (get("hits"), get("misses"));
    Some(Arc {
        size_bytes: get("size"),
        target_bytes: get("c"),
        max_bytes: get("c_max"),
        min_bytes: get("c_min"),
        sys_free_bytes: get("arc_sys_free"),
        hits,
        misses,
        hit_percent: hits
            .zip(misses)
            .filter(|(hits, misses)| hits + misses > 0)
            .map(|(hits, misses)| hits * 100 / (hits + misses)),
        memory_throttle_count: get("memory_throttle_count"),
        l2_size_bytes: get("l2_size"),
        l2_header_bytes: get("l2_hdr_size"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const TREE: &str = "\
/sys/module/zfs/version: 2.2.3-1
/sys/module/zfs/parameters/zfs_arc_max: 0
/sys/module/zfs/parameters/zfs_vdev_scheduler: unused
/sys/module/zfs/parameters/zfs_deadman_failmode: wait
/sys/module/spl/parameters/spl_taskq_thread_bind: 0
/proc/spl/kstat/zfs/arcstats:
| 13 1 0x01 147 39984 4215842526 1700000000000
| name                            type data
| hits                            4    900
| misses                          4    100
| size                            4    33000000000
| c                               4    33682210816
| c_min                           4    4210276352
| c_max                           4    67364421632
$ zfs version
| zfs-2.2.3-1
| zfs-kmod-2.2.3-1
$ zfs list -Hp -t volume -o name,volsize,volblocksize,used,refreservation,sync,volmode,compression,compressratio,checksum,dedup,primarycache,secondarycache,logbias,encryption
| tank/vm/one\t1099511627776\t65536\t1116691496960\tnone\tstandard\tdefault\tlz4\t1.23x\ton\toff\tall\tall\tlatency\toff
$ zfs get -Hp -t volume -o name,value volthreading
| tank/vm/one\toff
$ zfs list -Hp -t filesystem -o name,used,recordsize,sync,compression,atime,xattr,primarycache,logbias,dedup
| tank\t196608\t131072\tstandard\tlz4\toff\tsa\tall\tlatency\toff
/dev/zvol/tank/vm/one -> ../../../zd0
/sys/block/zd0/queue/scheduler: none
/sys/block/zd0/queue/read_ahead_kb: 128
";

    #[test]
    fn reads_parameters_volumes_and_cache() {
        let zfs = read(&Tree::parse(TREE).unwrap()).unwrap();
        assert_eq!(zfs.version_num, Some(2_002_003));
        assert_eq!(zfs.userland_version.as_deref(), Some("2.2.3-1"));
        assert_eq!(zfs.params["zfs_arc_max"], Value::Int(0));
        assert_eq!(zfs.params["zfs_deadman_failmode"], Value::Text("wait".to_owned()));
        let arc = zfs.arc.unwrap();
        assert_eq!((arc.max_bytes, arc.hit_percent), (Some(67_364_421_632), Some(90)));
        let zvol = &zfs.zvols[0];
        assert_eq!((zvol.device.as_deref(), zvol.volblocksize_bytes), (Some("zd0"), Some(65536)));
        assert_eq!((zvol.volthreading, zvol.compress_ratio_percent), (Some(false), Some(123)));
        assert_eq!((zvol.refreservation_bytes, zvol.prefetch.as_deref()), (Some(0), None));
        assert_eq!((zvol.scheduler.as_deref(), zvol.read_ahead_kib), (Some("none"), Some(128)));
        assert_eq!(zfs.datasets[0].atime, Some(false));
    }

    #[test]
    fn without_the_module_only_the_programs_are_known() {
        let tree = Tree::parse("$ zfs version\n| zfs-2.1.11-1\n").unwrap();
        let zfs = read(&tree).unwrap();
        assert_eq!((zfs.version, zfs.userland_version.as_deref()), (None, Some("2.1.11-1")));
        assert_eq!(read(&Tree::new()), None);
    }
}
