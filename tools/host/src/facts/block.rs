//! What lies between drives and what uses them: md arrays, LVM, device mapper, DRBD, partitions, file systems and swap.

mod dm;
mod drbd;
mod lvm;
mod md;
mod mount;

use serde::{Deserialize, Serialize};

use super::Drive;
use crate::source::Source;

pub use dm::{DmDevice, DmTarget, ThinPool};
pub use drbd::Drbd;
pub use lvm::{LogicalVolume, PhysicalVolume, VolumeGroup};
pub use md::{Array, ArrayMember};
pub use mount::{Mount, Swap};

/// Layers of the block device stack above the drives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Block {
    /// md arrays.
    pub arrays: Vec<Array>,
    /// Devices of the device mapper: LVM, multipath, encryption.
    pub mapped: Vec<DmDevice>,
    /// Thin pools, as the device mapper counts them.
    pub thin_pools: Vec<ThinPool>,
    /// Logical volumes of LVM, internal ones among them.
    pub volumes: Vec<LogicalVolume>,
    /// Volume groups of LVM.
    pub groups: Vec<VolumeGroup>,
    /// Physical volumes of LVM.
    pub physical: Vec<PhysicalVolume>,
    /// Replicated devices.
    pub drbd: Vec<Drbd>,
    /// Partitions of drives.
    pub partitions: Vec<Partition>,
    /// What is mounted from a device.
    pub mounts: Vec<Mount>,
    /// What /etc/fstab mounts at boot.
    pub fstab: Vec<Mount>,
    /// Swap space.
    pub swaps: Vec<Swap>,
    /// Speed limits of all md arrays in KiB/s: at least and at most.
    pub md_speed_min_kib: Option<i64>,
    /// See `md_speed_min_kib`.
    pub md_speed_max_kib: Option<i64>,
}

/// A partition of a drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Partition {
    /// `sda1`.
    pub name: String,
    /// `sda`.
    pub drive: String,
    /// First sector, in units of 512 bytes.
    pub start_sector: Option<i64>,
    /// Size in bytes.
    pub size_bytes: Option<i64>,
}

/// Reads about all of them.
pub(super) fn read(source: &dyn Source, drives: &[Drive]) -> Block {
    let (mapped, thin_pools) = dm::read(source);
    let lvm = mapped.iter().any(|device| device.kind == "lvm");
    let limit = |name: &str| source.int(&format!("/proc/sys/dev/raid/speed_limit_{name}"));
    Block {
        arrays: md::read(source),
        thin_pools,
        volumes: if lvm { lvm::volumes(source) } else { Vec::new() },
        groups: if lvm { lvm::groups(source) } else { Vec::new() },
        physical: if lvm { lvm::physical(source) } else { Vec::new() },
        drbd: drbd::read(source),
        partitions: drives.iter().flat_map(|drive| partitions(source, drive)).collect(),
        mounts: mount::mounts(source),
        fstab: mount::fstab(source),
        swaps: mount::swaps(source),
        md_speed_min_kib: limit("min"),
        md_speed_max_kib: limit("max"),
        mapped,
    }
}

fn partitions(source: &dyn Source, drive: &Drive) -> Vec<Partition> {
    let of = |name: &String| {
        let at = format!("/sys/block/{}/{name}", drive.name);
        Partition {
            name: name.clone(),
            drive: drive.name.clone(),
            start_sector: source.int(&format!("{at}/start")),
            size_bytes: source.int(&format!("{at}/size")).map(|sectors| sectors * 512),
        }
    };
    drive.partitions.iter().map(of).collect()
}
