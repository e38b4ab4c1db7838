//! Devices of the device mapper: their names in sysfs, and what `dmsetup status` and `dmsetup table` say of them.

use serde::{Deserialize, Serialize};

use crate::facts::parse::sorted;
use crate::source::Source;

/// A device of the device mapper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DmDevice {
    /// `dm-3`.
    pub device: String,
    /// `pve-data-tpool`.
    pub name: Option<String>,
    /// Whose it is, by the start of its UUID: `lvm`, `mpath`, `crypt`, `part`, `other`.
    pub kind: String,
    /// Whether its requests are held back.
    pub suspended: Option<bool>,
    /// Whether it may only be read.
    pub read_only: Option<bool>,
    /// What it is made of.
    pub slaves: Vec<String>,
    /// Its parts, in the order of their sectors.
    pub targets: Vec<DmTarget>,
    /// Read-ahead in KiB.
    pub read_ahead_kib: Option<i64>,
}

/// A part of such a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DmTarget {
    /// `linear`, `striped`, `thin-pool`, `snapshot`, `crypt`, `raid`, `cache`, `integrity`, `error`...
    pub kind: String,
    /// What `dmsetup status` says behind the kind.
    pub status: String,
    /// What `dmsetup table` says behind the kind; keys are masked.
    pub table: Option<String>,
}

/// A thin pool (Documentation/admin-guide/device-mapper/thin-provisioning.rst).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThinPool {
    /// Name of its device.
    pub name: String,
    /// Metadata in use, in percent.
    pub metadata_percent: Option<i64>,
    /// Data in use, in percent.
    pub data_percent: Option<i64>,
    /// `rw`, `ro`, `out_of_data_space`, `Fail`.
    pub mode: Option<String>,
    /// Whether its metadata must be repaired.
    pub needs_check: Option<bool>,
    /// Whether writes wait for space, or fail at once.
    pub queue_if_full: Option<bool>,
    /// Whether freed blocks are handed on to the drives.
    pub discard_passdown: Option<bool>,
}

/// Reads all devices, and the thin pools among them.
pub(super) fn read(source: &dyn Source) -> (Vec<DmDevice>, Vec<ThinPool>) {
    let mut names = sorted(source.names("/sys/block"));
    names.retain(|name| name.starts_with("dm-"));
    let mut devices: Vec<DmDevice> = names.iter().map(|name| device(source, name)).collect();
    // Multipath alone is asked for by its own program.
    if devices.iter().all(|device| device.kind == "mpath") {
        return (devices, Vec::new());
    }
    let table = source.output("dmsetup", &["table"]).unwrap_or_default();
    let status = source.output("dmsetup", &["status"]).unwrap_or_default();
    let mut pools = Vec::new();
    for line in status.lines() {
        let Some((name, kind, status)) = part(line) else { continue };
        if kind == "thin-pool" {
            pools.push(thin_pool(name, status));
        }
        let of = table.lines().filter_map(part).find(|(n, k, _)| *n == name && *k == kind);
        let target = DmTarget {
            kind: kind.to_owned(),
            status: status.to_owned(),
            table: of.map(|(_, _, rest)| rest.to_owned()),
        };
        match devices.iter_mut().find(|device| device.name.as_deref() == Some(name)) {
            Some(device) => device.targets.push(target),
            None => devices.push(DmDevice {
                name: Some(name.to_owned()),
                kind: "other".to_owned(),
                targets: vec![target],
                ..DmDevice::default()
            }),
        }
    }
    (devices, pools)
}

fn device(source: &dyn Source, name: &str) -> DmDevice {
    let at = format!("/sys/block/{name}");
    let uuid = source.text(&format!("{at}/dm/uuid")).unwrap_or_default();
    let kind = match uuid.split('-').next() {
        Some("LVM") => "lvm",
        Some("mpath") => "mpath",
        Some("CRYPT") => "crypt",
        Some(part) if part.starts_with("part") => "part",
        _ => "other",
    };
    DmDevice {
        device: name.to_owned(),
        name: source.text(&format!("{at}/dm/name")),
        kind: kind.to_owned(),
        suspended: source.flag(&format!("{at}/dm/suspended")),
        read_only: source.flag(&format!("{at}/ro")),
        slaves: sorted(source.names(&format!("{at}/slaves"))),
        targets: Vec::new(),
        read_ahead_kib: source.int(&format!("{at}/queue/read_ahead_kb")),
    }
}

/// `pve-data-tpool: 0 11811160064 thin-pool 412 ...`
fn part(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.split_once(": ")?;
    let rest = rest.trim_start().split_once(' ')?.1.split_once(' ')?.1;
    let (kind, status) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((name, kind, status))
}

/// `412 4091680/4145152 55148/90112 - rw discard_passdown queue_if_no_space - 1024`
fn thin_pool(name: &str, status: &str) -> ThinPool {
    let words: Vec<&str> = status.split_whitespace().collect();
    let share = |index: usize| {
        let (used, all) = words.get(index)?.split_once('/')?;
        let (used, all): (i64, i64) = (used.parse().ok()?, all.parse().ok()?);
        (all > 0).then(|| used * 100 / all)
    };
    let mode =
        words.iter().find(|word| matches!(**word, "rw" | "ro" | "out_of_data_space" | "Fail"));
    let has = |word: &str| words.contains(&word);
    let known = words.len() > 4;
    ThinPool {
        name: name.to_owned(),
        metadata_percent: share(1),
        data_percent: share(2),
        mode: mode.map(|mode| (*mode).to_owned()),
        needs_check: known.then(|| has("needs_check")),
        queue_if_full: known.then(|| has("queue_if_no_space")),
        discard_passdown: known.then(|| has("discard_passdown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_a_thin_pool_and_a_snapshot() {
        let tree = Tree::parse(
            "/sys/block/dm-3/dm/name: pve-data-tpool
/sys/block/dm-3/dm/uuid: LVM-abc-tpool
/sys/block/dm-3/dm/suspended: 0
/sys/block/dm-3/slaves/: dm-1 dm-2
$ dmsetup status
| pve-data-tpool: 0 11811160064 thin-pool 412 4091680/4145152 55148/90112 - ro discard_passdown queue_if_no_space needs_check 1024
| vg-snap: 0 2097152 snapshot Invalid
",
        )
        .unwrap();
        let (devices, pools) = read(&tree);
        assert_eq!((pools[0].metadata_percent, pools[0].data_percent), (Some(98), Some(61)));
        assert_eq!((pools[0].mode.as_deref(), pools[0].needs_check), (Some("ro"), Some(true)));
        assert_eq!((devices[0].kind.as_str(), devices[0].suspended), ("lvm", Some(false)));
        assert_eq!(devices[1].targets[0].status, "Invalid");
    }
}
