//! Drives.

mod link;
mod nvme;
pub(super) mod smart;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::memory::chosen;
use super::parse::sorted;
use super::{Pcie, Zfs, pcie};
use crate::source::Source;

pub use link::{DriveIo, Hba, SasPhy};
pub(super) use link::{adapters, phys};
pub use smart::Smart;

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
    /// Numbers of an NVMe drive's SMART log, by nvme-cli's names: `thm_temp1_trans_count`, `unsafe_shutdowns`,
    /// `num_err_log_entries`, `power_on_hours`...
    pub nvme_log: BTreeMap<String, i64>,
    /// Temperature from which an NVMe drive may stop, in degrees Celsius.
    pub temperature_critical_celsius: Option<i64>,
    /// What a SATA or SAS drive says of itself.
    pub smart: Option<Smart>,
    /// State of a SCSI device, or of an NVMe drive's controller: `running`, `offline`, `blocked`; `live`, `dead`.
    pub state: Option<String>,
    /// Commands that failed since start.
    pub errors: Option<i64>,
    /// Whether it may only be read.
    pub read_only: Option<bool>,
    /// `none`, `host-aware`, `host-managed`: shingled tracks.
    pub zoned: Option<String>,
    /// What it has done since start.
    pub io: Option<DriveIo>,
    /// Its SCSI host: `host7`.
    pub host: Option<String>,
    /// Its port of libata: `ata1`.
    pub ata_port: Option<String>,
    /// Speed of its SATA link now, in Mbit/s.
    pub link_mbit: Option<i64>,
    /// Speed that the kernel allows it now: less after errors.
    pub link_limit_mbit: Option<i64>,
    /// Speed that its port could have.
    pub link_max_mbit: Option<i64>,
    /// Pool that it belongs to.
    pub zfs_pool: Option<String>,
    /// Vdev of the pool: `raidz1-0`.
    pub zfs_vdev: Option<String>,
    /// Kernel names of its partitions: `sda1`.
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
    /// Number of the power state, from 0.
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

/// What is no drive of its own.
const NOT: &[&str] = &["loop", "ram", "zram", "zd", "dm-", "md", "sr", "fd", "drbd"];

/// Reads about the drives.
pub(super) fn read(source: &dyn Source) -> Vec<Drive> {
    sorted(source.names("/sys/block"))
        .into_iter()
        .filter(|name| !NOT.iter().any(|not| name.starts_with(not)))
        // The hidden paths of a drive with native multipath: nvme0c0n1.
        .filter(|name| !(name.starts_with("nvme") && name.contains('c')))
        .map(|name| drive(source, &name))
        .collect()
}

fn drive(source: &dyn Source, name: &str) -> Drive {
    let sys = format!("/sys/block/{name}");
    let link = source.link(&sys).unwrap_or_default();
    let text = |file: &str| source.text(&format!("{sys}/{file}"));
    let mut drive = Drive {
        name: name.to_owned(),
        kind: Some(kind(name).to_owned()),
        transport: transport(name, &link).map(str::to_owned),
        size_bytes: source.int(&format!("{sys}/size")).map(|sectors| sectors * 512),
        model: text("device/model"),
        vendor: text("device/vendor").filter(|vendor| !vendor.starts_with("0x")),
        firmware: text("device/rev").or_else(|| text("device/firmware_rev")),
        queue_depth: source.int(&format!("{sys}/device/queue_depth")),
        timeout_ms: source.int(&format!("{sys}/queue/io_timeout")),
        runtime_pm: text("device/power/control"),
        ..Drive::default()
    };
    queue(source, &format!("{sys}/queue"), &mut drive);
    let count = source.list(&format!("{sys}/mq")).map(|queues| queues.len());
    drive.queues = count.and_then(|count| i64::try_from(count).ok());
    members(source, name, &mut drive);
    let address = match kind(name) {
        "nvme" => nvme::read(source, &link, &mut drive),
        _ => pcie::on_path(&link).map(str::to_owned),
    };
    drive.remote = matches!(drive.transport.as_deref(), Some("iscsi" | "tcp" | "rdma" | "fc"));
    link::read(source, &link, &mut drive);
    if kind(name) == "scsi" && !drive.remote && drive.transport.as_deref() != Some("virtio") {
        drive.smart = smart::read(source, name);
    }
    if drive.transport.as_deref() == Some("sata") {
        drive.link_power_policy =
            link.split('/').find(|part| part.starts_with("host")).and_then(|host| {
                source.text(&format!("/sys/class/scsi_host/{host}/link_power_management_policy"))
            });
    }
    if let Some(address) = address.filter(|_| !drive.remote) {
        drive.numa_node = pcie::numa_node(source, &address);
        // A drive of a virtual machine has no link worth the name.
        if !matches!(drive.transport.as_deref(), Some("virtio") | None) {
            drive.pcie = pcie::read(source, &address);
        }
    }
    drive
}

fn kind(name: &str) -> &'static str {
    let kinds = [
        ("nvme", "nvme"),
        ("sd", "scsi"),
        ("vd", "virtio"),
        ("xvd", "xen"),
        ("mmcblk", "mmc"),
        ("rbd", "rbd"),
        ("nbd", "nbd"),
    ];
    kinds.iter().find(|(start, _)| name.starts_with(start)).map_or("other", |(_, kind)| kind)
}

/// From the device's place: `../devices/pci0000:00/0000:00:17.0/ata1/host0/...`.
fn transport(name: &str, link: &str) -> Option<&'static str> {
    let part = |start: &str| link.split('/').any(|part| part.starts_with(start));
    match kind(name) {
        "virtio" => Some("virtio"),
        "scsi" if part("session") => Some("iscsi"),
        "scsi" if part("ata") => Some("sata"),
        "scsi" if part("usb") => Some("usb"),
        "scsi" if part("rport-") => Some("fc"),
        "scsi" if part("end_device-") || part("port-") => Some("sas"),
        "scsi" if part("virtio") => Some("virtio"),
        _ => None,
    }
}

/// How the kernel queues requests.
fn queue(source: &dyn Source, sys: &str, drive: &mut Drive) {
    let int = |file: &str| source.int(&format!("{sys}/{file}"));
    let flag = |file: &str| source.flag(&format!("{sys}/{file}"));
    drive.rotational = flag("rotational");
    drive.lba_bytes = int("logical_block_size");
    drive.physical_block_bytes = int("physical_block_size");
    if let Some(text) = source.text(&format!("{sys}/scheduler")) {
        drive.scheduler = chosen(&text).or_else(|| (text == "none").then(|| text.clone()));
        let names = text.split_whitespace().map(|word| word.trim_matches(['[', ']']).to_owned());
        drive.schedulers = names.collect();
    }
    drive.read_ahead_kib = int("read_ahead_kb");
    drive.nr_requests = int("nr_requests");
    drive.max_sectors_kib = int("max_sectors_kb");
    drive.max_hw_sectors_kib = int("max_hw_sectors_kb");
    drive.io_min_bytes = int("minimum_io_size");
    drive.io_opt_bytes = int("optimal_io_size");
    drive.wbt_lat_us = int("wbt_lat_usec");
    drive.nomerges = int("nomerges");
    drive.rq_affinity = int("rq_affinity");
    drive.iostats = flag("iostats");
    drive.add_random = flag("add_random");
    drive.write_cache = source.text(&format!("{sys}/write_cache"));
    drive.discard = int("discard_max_bytes").map(|bytes| bytes > 0);
}

/// Partitions, and what lies on it.
fn members(source: &dyn Source, name: &str, drive: &mut Drive) {
    let sys = format!("/sys/block/{name}");
    let inside = source.names(&sys);
    drive.partitions = sorted(inside.into_iter().filter(|part| part.starts_with(name)).collect());
    let mut holders = source.names(&format!("{sys}/holders"));
    for part in &drive.partitions {
        holders.extend(source.names(&format!("{sys}/{part}/holders")));
    }
    drive.holders = sorted(holders);
    drive.holders.dedup();
}

/// Says of each drive which pool it belongs to.
pub(super) fn mark_members(drives: &mut [Drive], zfs: Option<&Zfs>) {
    for pool in zfs.iter().flat_map(|zfs| &zfs.pools) {
        for vdev in &pool.vdevs {
            for disk in &vdev.disks {
                let Some(name) = &disk.drive else { continue };
                if let Some(drive) = drives.iter_mut().find(|drive| drive.name == *name) {
                    drive.zfs_pool = Some(pool.name.clone());
                    drive.zfs_vdev = Some(vdev.name.clone());
                }
            }
        }
    }
}
