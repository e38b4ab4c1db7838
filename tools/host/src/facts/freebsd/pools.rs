//! Pools, as the programs of OpenZFS show them on FreeBSD.

use std::collections::BTreeMap;

use super::super::version_num;
use super::super::zfs::{self, Zfs};
use super::FreeBsd;
use super::disk::{Label, whole};
use crate::source::Source;

/// Reads pools, volumes and file systems; `None` if the kernel has no ZFS.
///
/// `version` is `vfs.zfs.version.module`, which OpenZFS has: the ZFS of FreeBSD 12 does not.
pub(super) fn read(source: &dyn Source, version: Option<&str>, labels: &[Label]) -> Option<Zfs> {
    let mut found = zfs::of_programs(source);
    if version.is_none() && found.pools.is_empty() {
        return None;
    }
    // `v2023072100-zfs_2.1.9-1`, `2.2.4-FreeBSD_g256659204`; TrueNAS has a commit: `v2021092200-zfs_3c7a1de2d`.
    let release =
        |text: &&str| text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.');
    let version = version.map(|text| text.rsplit("zfs_").next().unwrap_or(text));
    found.version = version.filter(release).map(str::to_owned);
    found.version_num = found.version.as_deref().and_then(version_num);
    for disk in
        found.pools.iter_mut().flat_map(|pool| &mut pool.vdevs).flat_map(|vdev| &mut vdev.disks)
    {
        disk.drive = drive(&disk.name, labels);
    }
    Some(found)
}

/// The whole drive of `/dev/gptid/5f2c...` or `/dev/ada0p2`; `None` if a label leads nowhere.
fn drive(name: &str, labels: &[Label]) -> Option<String> {
    let name = name.strip_prefix("/dev/").unwrap_or(name);
    let name = name.strip_suffix(".eli").unwrap_or(name);
    let label = labels.iter().find(|label| label.name == name);
    let partition = label.map_or(name, |label| &label.partition);
    (!partition.contains('/')).then(|| whole(partition))
}

/// Marks the drives of pools.
pub(super) fn mark(bsd: &mut FreeBsd) {
    let Some(zfs) = &bsd.zfs else { return };
    for pool in &zfs.pools {
        for member in pool.vdevs.iter().flat_map(|vdev| &vdev.disks) {
            let disk = bsd.disks.iter_mut().find(|disk| Some(&disk.name) == member.drive.as_ref());
            if let Some(disk) = disk {
                disk.pool = Some(pool.name.clone());
            }
        }
    }
}

/// `zdb -C`: the smallest ashift of each pool's vdevs with data. TrueNAS keeps its pools in another file than FreeBSD.
pub(super) fn ashifts(source: &dyn Source) -> BTreeMap<String, i64> {
    let cache = ["-U", "/data/zfs/zpool.cache", "-C"];
    let told = source.output("zdb", &cache).or_else(|| source.output("zdb", &["-C"]));
    let mut all = BTreeMap::new();
    let (mut pool, mut ashift) = (None, None);
    for line in told.unwrap_or_default().lines() {
        if let Some(name) = line.strip_suffix(':').filter(|_| !line.starts_with(' ')) {
            pool = Some(name.to_owned());
        } else if let Some(value) = line.trim().strip_prefix("ashift: ") {
            ashift = value.parse::<i64>().ok();
        } else if let Some(log) = line.trim().strip_prefix("is_log: ") {
            // It follows the ashift of the same vdev.
            if let (Some(pool), Some(ashift), "0") = (&pool, ashift.take(), log) {
                let least = all.entry(pool.clone()).or_insert(ashift);
                *least = (*least).min(ashift);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn finds_the_drive_behind_a_label() {
        let label =
            |name: &str, partition: &str| Label { name: name.into(), partition: partition.into() };
        let labels = [label("gptid/5f2c", "ada0p2"), label("gpt/slog", "nda1p1")];
        for (name, found) in [
            ("/dev/gptid/5f2c", Some("ada0")),
            ("gptid/5f2c.eli", Some("ada0")),
            ("/dev/gpt/slog", Some("nda1")),
            ("/dev/da12", Some("da12")),
            ("/dev/nda0p4", Some("nda0")),
            ("/dev/gptid/gone", None),
        ] {
            assert_eq!(drive(name, &labels).as_deref(), found, "{name}");
        }
    }

    #[test]
    fn reads_the_ashift_of_vdevs_with_data() {
        let tree = Tree::parse(
            "$ zdb -C\n| tank:\n|     version: 5000\n|     name: 'tank'\n|     vdev_tree:\n|         type: 'root'\n\
             |         children[0]:\n|             type: 'mirror'\n|             ashift: 12\n|             asize: 1\n\
             |             is_log: 0\n|         children[1]:\n|             type: 'disk'\n|             ashift: 9\n\
             |             is_log: 1\n| old:\n|         children[0]:\n|             ashift: 9\n|             is_log: 0\n",
        )
        .unwrap();
        assert_eq!(ashifts(&tree), BTreeMap::from([("old".into(), 9), ("tank".into(), 12)]));
    }
}
