//! Drives.

use serde::{Deserialize, Serialize};

use super::{Pcie, Zfs};
use crate::source::Source;

/// A whole block device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drive {
    /// `nvme0n1`, `sda`.
    pub name: String,
    /// Model, as it names itself.
    pub model: Option<String>,
    /// Maker, where it is named apart from the model.
    pub vendor: Option<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// `nvme`, `scsi`, `virtio`, `mmc`, `xen`, `rbd`, `nbd` or `other`.
    pub kind: Option<String>,
    /// What is between it and this machine: `pcie`, `tcp`, `rdma`, `fc`, `sata`, `sas`, `usb`,
    /// `iscsi`, `virtio`...
    pub transport: Option<String>,
    /// Whether it is used over a network: an iSCSI or NVMe-oF session of this machine.
    pub remote: bool,
    /// Whether it turns.
    pub rotational: Option<bool>,
    /// Size in bytes.
    pub size_bytes: Option<i64>,
    /// PCIe link.
    pub pcie: Option<Pcie>,
    /// NUMA node that it is next to.
    pub numa_node: Option<i64>,
    /// Logical block in bytes: what it can be addressed by.
    pub lba_bytes: Option<i64>,
    /// Physical block in bytes, as it says.
    pub physical_block_bytes: Option<i64>,
    /// Formats that an NVMe namespace could have (only root may see them).
    pub lba_formats: Vec<LbaFormat>,
    /// Whether a format of 4096 bytes without metadata is among them.
    pub lba_4k_available: Option<bool>,
    /// I/O scheduler in use.
    pub scheduler: Option<String>,
    /// Those that could be used.
    pub schedulers: Vec<String>,
    /// Read-ahead in KiB.
    pub read_ahead_kib: Option<i64>,
    /// Requests for each of the kernel's queues.
    pub nr_requests: Option<i64>,
    /// The kernel's queues for it.
    pub queues: Option<i64>,
    /// Commands that a SCSI device is given at once.
    pub queue_depth: Option<i64>,
    /// Largest request in KiB now.
    pub max_sectors_kib: Option<i64>,
    /// Largest request in KiB that the hardware takes.
    pub max_hw_sectors_kib: Option<i64>,
    /// Smallest and best size of a request, in bytes, as it says; 0 = it does not say.
    pub io_min_bytes: Option<i64>,
    /// See `io_min_bytes`.
    pub io_opt_bytes: Option<i64>,
    /// Writeback throttling: the latency it aims at in microseconds; 0 = off.
    pub wbt_lat_us: Option<i64>,
    /// 0 = requests are merged, 1 = only simple ones, 2 = never.
    pub nomerges: Option<i64>,
    /// 2 = completions go to the very CPU that asked, 1 = to one of its group.
    pub rq_affinity: Option<i64>,
    /// Whether the kernel counts what it does: costs a little for each request.
    pub iostats: Option<bool>,
    /// Whether it feeds the kernel's random numbers.
    pub add_random: Option<bool>,
    /// `write back` (needs flushes) or `write through`.
    pub write_cache: Option<String>,
    /// Whether it discards blocks (TRIM).
    pub discard: Option<bool>,
    /// Time-out of a command in milliseconds.
    pub timeout_ms: Option<i64>,
    /// Power states of an NVMe drive, 0 = the fastest.
    pub power_states: Vec<PowerState>,
    /// Whether it goes to sleep by itself (APST) as the kernel allows it.
    pub apst_enabled: Option<bool>,
    /// The longest wake-up that the kernel allows it, in microseconds; 0 = no sleep.
    pub ps_max_latency_us: Option<i64>,
    /// `on` = always awake, `auto` = may be suspended when idle.
    pub runtime_pm: Option<String>,
    /// Power policy of a SATA link: `max_performance`, `med_power_with_dipm`.
    pub link_power_policy: Option<String>,
    /// Temperature in degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// Temperature from which it slows down.
    pub temperature_warning_celsius: Option<i64>,
    /// Minutes that it has spent above that temperature.
    pub warning_temperature_minutes: Option<i64>,
    /// Its own warnings, as NVMe counts them: 0 = none.
    pub critical_warning: Option<i64>,
    /// Rated life that is used up, in percent.
    pub percentage_used: Option<i64>,
    /// Spare blocks left, in percent.
    pub available_spare_percent: Option<i64>,
    /// Reads and writes that failed on its medium.
    pub media_errors: Option<i64>,
    /// Pool that it belongs to.
    pub zfs_pool: Option<String>,
    /// Vdev of the pool: `raidz1-0`.
    pub zfs_vdev: Option<String>,
    /// Its partitions.
    pub partitions: Vec<String>,
    /// What lies on it or its partitions: `md0`, `dm-3`.
    pub holders: Vec<String>,
}

/// A format of an NVMe namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LbaFormat {
    /// Number to format it with.
    pub index: i64,
    /// Data of a block in bytes.
    pub data_bytes: i64,
    /// Metadata of a block in bytes.
    pub metadata_bytes: i64,
    /// What the drive says of its speed: 0 = best, 3 = degraded.
    pub relative_performance: Option<i64>,
    /// Whether it has this format now.
    pub in_use: bool,
}

/// A power state of an NVMe drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerState {
    /// Its number.
    pub index: i64,
    /// Power at most, in milliwatts.
    pub max_power_mw: Option<i64>,
    /// Whether it works in this state.
    pub operational: bool,
    /// Time to fall asleep, in microseconds.
    pub entry_latency_us: Option<i64>,
    /// Time to wake up, in microseconds.
    pub exit_latency_us: Option<i64>,
}

/// Reads about the drives.
pub(super) fn read(_source: &dyn Source) -> Vec<Drive> {
    Vec::new()
}

/// Says of each drive which pool it belongs to.
pub(super) fn mark_members(_drives: &mut [Drive], _zfs: Option<&Zfs>) {}
