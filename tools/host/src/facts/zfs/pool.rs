//! Pools, as zpool shows them.

use super::{Pool, Vdev, VdevDisk};
use crate::facts::parse::natural;
use crate::source::Source;

const COLUMNS: &str = "name,size,allocated,free,fragmentation,capacity,dedupratio,health";

/// Reads all imported pools.
pub(super) fn read(source: &dyn Source) -> Vec<Pool> {
    let list = source.output("zpool", &["list", "-Hp", "-o", COLUMNS]).unwrap_or_default();
    let mut pools: Vec<Pool> = list.lines().filter_map(line).collect();
    pools.sort_by_cached_key(|pool| natural(&pool.name));
    let values = ["get", "-Hp", "-o", "name,property,value", "ashift,autotrim"];
    let values = source.output("zpool", &values).unwrap_or_default();
    for row in values.lines() {
        let mut columns = row.split('\t');
        let name = columns.next().unwrap_or_default();
        let Some(pool) = pools.iter_mut().find(|pool| pool.name == name) else { continue };
        match (columns.next(), columns.next()) {
            (Some("ashift"), Some(value)) => pool.ashift = value.parse().ok(),
            (Some("autotrim"), Some(value)) => pool.autotrim = Some(value == "on"),
            _ => {}
        }
    }
    if pools.is_empty() {
        return pools;
    }
    // -P and -L: whole paths, of the devices themselves.
    let status = source.output("zpool", &["status", "-PLp"]).unwrap_or_default();
    for text in status.split("  pool: ").skip(1) {
        let name = text.lines().next().unwrap_or_default().trim();
        let Some(pool) = pools.iter_mut().find(|pool| pool.name == name) else { continue };
        layout(source, text, pool);
    }
    pools
}

/// A line of `zpool list -Hp`, in the order of the columns.
fn line(line: &str) -> Option<Pool> {
    let columns: Vec<&str> = line.split('\t').collect();
    let int = |index: usize| columns.get(index)?.trim_end_matches(['%', 'x']).parse::<i64>().ok();
    let ratio: Option<f64> = columns.get(6)?.trim_end_matches('x').parse().ok();
    Some(Pool {
        name: (*columns.first()?).to_owned(),
        size_bytes: int(1),
        allocated_bytes: int(2),
        free_bytes: int(3),
        fragmentation_percent: int(4),
        capacity_percent: int(5),
        // A ratio is small: no digit is lost.
        dedup_ratio_percent: ratio.map(|ratio| (ratio * 100.0).round() as i64),
        health: columns.get(7).map(|health| (*health).to_owned()),
        ..Pool::default()
    })
}

/// What `zpool status` says of one pool.
fn layout(source: &dyn Source, text: &str, pool: &mut Pool) {
    let section = |name: &str| {
        let start = text.find(&format!("{name}: "))? + name.len() + 2;
        let rest = &text[start..];
        // Lines that go on start with a tab.
        let end = rest.match_indices('\n').find(|(at, _)| !rest[at + 1..].starts_with('\t'));
        Some(rest[..end.map_or(rest.len(), |(at, _)| at)].to_owned())
    };
    let scan = section("scan");
    pool.scan = super::health::scan(scan.as_deref());
    pool.status_text = section("status").map(|text| text.replace("\n\t", " "));
    pool.scanning = Some(scan.as_ref().is_some_and(|scan| scan.contains("in progress")));
    pool.scan_text = scan;
    let errors = text.lines().find_map(|line| line.strip_prefix("errors: "));
    pool.data_errors = errors.map(|errors| !errors.starts_with("No known"));
    if let Some((_, config)) = text.split_once("config:") {
        pool.vdevs = vdevs(config, &pool.name);
    }
    let ashift = ["get", "-Hp", "-o", "name,value", "ashift", &pool.name, "all-vdevs"];
    let told = source.output("zpool", &ashift).unwrap_or_default();
    for vdev in &mut pool.vdevs {
        // A drive by itself is named without its partition here.
        let drive = vdev.disks.first().filter(|_| vdev.kind == "disk");
        let drive = drive.and_then(|disk| disk.drive.as_deref());
        vdev.ashift = told.lines().find_map(|line| {
            let (name, value) = line.split_once('\t')?;
            let name = name.rsplit('/').next().unwrap_or(name);
            (name == vdev.name || Some(name) == drive)
                .then(|| value.parse().ok().filter(|&ashift: &i64| ashift > 0))?
        });
    }
    let data = pool.vdevs.iter().filter(|vdev| vdev.role == "data").count();
    pool.data_vdevs = (data > 0).then(|| i64::try_from(data).unwrap_or(i64::MAX));
    pool.slog = Some(pool.vdevs.iter().any(|vdev| vdev.role == "log"));
    let disks = pool.vdevs.iter().flat_map(|vdev| &vdev.disks);
    let errors = disks.flat_map(|disk| [disk.read_errors, disk.write_errors, disk.checksum_errors]);
    pool.errors = Some(errors.flatten().sum());
}

/// The tree of vdevs. A tab, then two spaces for each level: the pool and the classes `logs`,
/// `cache`, `spares`, `special`, `dedup` have none, vdevs have one, their drives two.
fn vdevs(config: &str, pool: &str) -> Vec<Vdev> {
    let mut all: Vec<Vdev> = Vec::new();
    let mut role = "data";
    for line in config.lines().filter_map(|line| line.strip_prefix('\t')) {
        let indent = line.len() - line.trim_start().len();
        let mut words = line.split_whitespace();
        let Some(name) = words.next().filter(|&name| name != "NAME") else { continue };
        let rest: Vec<&str> = words.collect();
        if indent == 0 {
            role = match name {
                "logs" => "log",
                "spares" => "spare",
                "cache" | "special" | "dedup" => name,
                _ if name == pool => "data",
                _ => return all,
            };
            continue;
        }
        let (kind, parity) = kind(name);
        if indent == 2 || all.is_empty() {
            all.push(Vdev {
                name: name.rsplit('/').next().unwrap_or(name).to_owned(),
                kind: kind.to_owned(),
                role: role.to_owned(),
                parity,
                state: rest.first().map(|state| (*state).to_owned()),
                ..Vdev::default()
            });
        }
        // `replacing-0` and `spare-1` stand between a vdev and its drives.
        if kind == "disk" {
            if let Some(vdev) = all.last_mut() {
                vdev.disks.push(disk(name, &rest));
            }
        }
    }
    for vdev in all.iter_mut().filter(|vdev| vdev.kind == "mirror") {
        vdev.parity = i64::try_from(vdev.disks.len()).unwrap_or(1) - 1;
    }
    all
}

/// The kind that a name says, and how many of its drives may fail.
fn kind(name: &str) -> (&str, i64) {
    let word = name.rsplit_once('-').map_or(name, |(word, _)| word);
    match word {
        "raidz1" | "raidz2" | "raidz3" => (word, i64::from(word.as_bytes()[5] - b'0')),
        "mirror" | "replacing" | "spare" => (word, 1),
        // draid2:4d:11c:1s-0
        _ if word.starts_with("draid") && word.contains(':') => {
            (&word[..6], i64::from(word.as_bytes()[5].wrapping_sub(b'0')))
        }
        _ => ("disk", 0),
    }
}

fn disk(name: &str, columns: &[&str]) -> VdevDisk {
    let int = |index: usize| columns.get(index)?.parse().ok();
    VdevDisk {
        name: name.to_owned(),
        drive: whole(name),
        state: columns.first().map(|state| (*state).to_owned()),
        read_errors: int(1),
        write_errors: int(2),
        checksum_errors: int(3),
        slow: None,
        note: columns.get(4..).filter(|rest| !rest.is_empty()).map(|rest| rest.join(" ")),
    }
}

/// The whole drive of `/dev/nvme0n1p2` or `/dev/sda1`. Other names do not tell.
fn whole(path: &str) -> Option<String> {
    let name = path.strip_prefix("/dev/")?;
    if name.contains('/') {
        return None;
    }
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if name.starts_with("nvme") || name.starts_with("mmcblk") || name.starts_with("nbd") {
        let partition = digits.strip_suffix('p').filter(|drive| !drive.is_empty());
        return Some(partition.filter(|_| digits.len() < name.len()).unwrap_or(name).to_owned());
    }
    Some(digits.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    fn status() -> Tree {
        let mut tree = Tree::parse(
            "$ zpool get -Hp -o name,value ashift tank all-vdevs
| root-0\t0
| raidz1-0\t12
| nvme0n1\t12
| nvme9n1\t9
",
        )
        .unwrap();
        let stdout = |text: &str| crate::source::Output { code: 0, stdout: text.to_owned() };
        tree.command(
            &format!("zpool list -Hp -o {COLUMNS}"),
            stdout("tank\t31998951325696\t9000000000000\t22998951325696\t12\t28\t1.00\tDEGRADED\n"),
        );
        tree.command(
            "zpool get -Hp -o name,property,value ashift,autotrim",
            stdout("tank\tashift\t12\ntank\tautotrim\toff\n"),
        );
        tree.command("zpool status -PLp", stdout(STATUS));
        tree
    }

    const STATUS: &str = "  pool: tank
 state: DEGRADED
status: One or more devices could not be opened.
  scan: scrub repaired 0B in 00:21:05 with 0 errors on Sun Nov 15 00:45:06 2026
config:

\tNAME                STATE     READ WRITE CKSUM
\ttank                DEGRADED     0     0     0
\t  raidz1-0          ONLINE       0     0     0
\t    /dev/nvme0n1p2  ONLINE       0     0     0
\t    /dev/nvme1n1p2  ONLINE       0     0     3
\t  raidz1-1          DEGRADED     0     0     0
\t    /dev/nvme2n1    ONLINE       0     0     0
\t    1234567890      UNAVAIL      0     0     0  was /dev/nvme3n1p2
\tspecial
\t  mirror-2          ONLINE       0     0     0
\t    /dev/sda1       ONLINE       0     0     0
\t    /dev/sdb1       ONLINE       0     0     0
\tlogs\t
\t  /dev/nvme9n1p1    ONLINE       0     0     0
\tspares
\t  /dev/sdc1         AVAIL

errors: No known data errors
";

    #[test]
    fn reads_a_pool_with_everything() {
        let pools = read(&status());
        let pool = &pools[0];
        assert_eq!(pool.health.as_deref(), Some("DEGRADED"));
        assert_eq!((pool.capacity_percent, pool.fragmentation_percent), (Some(28), Some(12)));
        assert_eq!((pool.ashift, pool.autotrim), (Some(12), Some(false)));
        assert_eq!(pool.dedup_ratio_percent, Some(100));
        assert_eq!((pool.data_vdevs, pool.slog, pool.errors), (Some(2), Some(true), Some(3)));
        assert_eq!((pool.scanning, pool.data_errors), (Some(false), Some(false)));
        let seen: Vec<_> = pool
            .vdevs
            .iter()
            .map(|v| (v.name.as_str(), v.kind.as_str(), v.role.as_str(), v.parity, v.disks.len()))
            .collect();
        assert_eq!(
            seen,
            [
                ("raidz1-0", "raidz1", "data", 1, 2),
                ("raidz1-1", "raidz1", "data", 1, 2),
                ("mirror-2", "mirror", "special", 1, 2),
                ("nvme9n1p1", "disk", "log", 0, 1),
                ("sdc1", "disk", "spare", 0, 1),
            ]
        );
        assert_eq!((pool.vdevs[0].ashift, pool.vdevs[3].ashift), (Some(12), Some(9)));
        assert_eq!(pool.vdevs[0].disks[0].drive.as_deref(), Some("nvme0n1"));
        assert_eq!(pool.vdevs[1].disks[0].drive.as_deref(), Some("nvme2n1"));
        assert_eq!(pool.vdevs[1].disks[1].drive, None);
        assert_eq!(pool.vdevs[2].disks[0].drive.as_deref(), Some("sda"));
    }

    #[test]
    fn reads_other_kinds_of_vdevs() {
        assert_eq!(kind("draid2:4d:11c:1s-0"), ("draid2", 2));
        assert_eq!(kind("raidz3-4"), ("raidz3", 3));
        assert_eq!(kind("/dev/disk/by-id/nvme-x-part1"), ("disk", 0));
        assert_eq!(whole("/dev/mmcblk0p1").as_deref(), Some("mmcblk0"));
        assert_eq!(whole("/dev/vdb").as_deref(), Some("vdb"));
        assert_eq!(whole("/dev/disk/by-id/x"), None);
    }
}
