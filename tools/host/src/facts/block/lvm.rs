//! LVM, as `lvs -a`, `vgs` and `pvs` show it.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A logical volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogicalVolume {
    /// `pve/data`.
    pub name: String,
    /// The ten attributes of lvs(8): `twi-aotz--`.
    pub attributes: String,
    /// The pool or origin that it belongs to.
    pub pool: Option<String>,
    /// What is used of a thin pool, a thin volume or a snapshot, in percent.
    pub data_percent: Option<i64>,
    /// What is used of a pool's metadata, in percent.
    pub metadata_percent: Option<i64>,
    /// The ninth attribute: `p` a physical volume is missing, `r` needs a refresh, `m` copies differ, `F` failed,
    /// `D` out of space, `M` metadata only readable, `-` well.
    pub health: Option<String>,
    /// The fifth attribute: `a` active, `s` suspended, `I` invalid snapshot, `-` not active.
    pub state: Option<String>,
}

/// A volume group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeGroup {
    /// `pve`.
    pub name: String,
    /// The six attributes of vgs(8): `wz--n-`.
    pub attributes: String,
    /// Whether a physical volume is missing.
    pub partial: bool,
    /// Whether nothing is left.
    pub full: bool,
}

/// A physical volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhysicalVolume {
    /// `/dev/sda3`; `[unknown]` if it is missing.
    pub name: String,
    /// Its group.
    pub group: Option<String>,
    /// Whether it is missing.
    pub missing: bool,
}

/// Reads the logical volumes.
pub(super) fn volumes(source: &dyn Source) -> Vec<LogicalVolume> {
    let text = source.output("lvs", &["-a"]).unwrap_or_default();
    let mut lines = text.lines();
    let heading = lines.next().unwrap_or_default();
    // A column is as wide as its widest cell; numbers end where their heading ends, texts start where it starts.
    let column = |line: &str, name: &str, numeric: bool| -> Option<String> {
        let start = heading.find(name)?;
        let end = start + name.len();
        let cell = match numeric {
            // A line that ends before has nothing there.
            true => line.get(..end)?.rsplit(' ').next()?,
            false => line.get(start..)?.split(' ').next()?,
        };
        (!cell.is_empty()).then(|| cell.to_owned())
    };
    let percent = |text: Option<String>| text?.split('.').next()?.parse().ok();
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, group, attributes) = (words.next()?, words.next()?, words.next()?);
            let attribute = |index: usize| attributes.get(index..=index).map(str::to_owned);
            Some(LogicalVolume {
                name: format!("{group}/{}", name.trim_matches(['[', ']'])),
                pool: column(line, "Pool", false),
                data_percent: percent(column(line, "Data%", true)),
                metadata_percent: percent(column(line, "Meta%", true)),
                health: attribute(8),
                state: attribute(4),
                attributes: attributes.to_owned(),
            })
        })
        .collect()
}

/// Reads the volume groups: `VG #PV #LV #SN Attr VSize VFree`.
pub(super) fn groups(source: &dyn Source) -> Vec<VolumeGroup> {
    let text = source.output("vgs", &[]).unwrap_or_default();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let attributes = (*words.get(4)?).to_owned();
        Some(VolumeGroup {
            name: (*words.first()?).to_owned(),
            partial: attributes.as_bytes().get(3) == Some(&b'p'),
            full: words.last() == Some(&"0"),
            attributes,
        })
    };
    text.lines().skip(1).filter_map(line).collect()
}

/// Reads the physical volumes: `PV VG Fmt Attr PSize PFree`.
pub(super) fn physical(source: &dyn Source) -> Vec<PhysicalVolume> {
    let text = source.output("pvs", &[]).unwrap_or_default();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = (*words.first()?).to_owned();
        let attributes = words.iter().find(|word| word.len() == 3 && word.ends_with(['-', 'm']))?;
        Some(PhysicalVolume {
            missing: name.contains("unknown") || attributes.ends_with('m'),
            group: words.get(1).map(|group| (*group).to_owned()),
            name,
        })
    };
    text.lines().skip(1).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_pools_snapshots_and_missing_volumes() {
        let tree = Tree::parse(
            "$ lvs -a
|   LV            VG  Attr       LSize    Pool Origin Data%  Meta%  Move Log Cpy%Sync Convert
|   data          pve twi-aotz--   <5.50t             61.20  98.71
|   vm-101-disk-0 pve Vwi-aotz--    6.00t data         56.10
|   old           pve swi-I-s---   10.00g      root   100.00
$ vgs
|   VG  #PV #LV #SN Attr   VSize  VFree
|   pve   2   3   0 wz-pn- <5.50t 16.00g
$ pvs
|   PV         VG  Fmt  Attr PSize  PFree
|   /dev/sda3  pve lvm2 a--  <2.75t 16.00g
|   [unknown]  pve lvm2 a-m  <2.75t     0
",
        )
        .unwrap();
        let all = volumes(&tree);
        assert_eq!((all[0].data_percent, all[0].metadata_percent), (Some(61), Some(98)));
        assert_eq!((all[1].pool.as_deref(), all[1].metadata_percent), (Some("data"), None));
        assert_eq!((all[2].name.as_str(), all[2].state.as_deref()), ("pve/old", Some("I")));
        assert!(groups(&tree)[0].partial && !groups(&tree)[0].full);
        assert_eq!(physical(&tree).iter().map(|pv| pv.missing).collect::<Vec<_>>(), [false, true]);
    }
}
