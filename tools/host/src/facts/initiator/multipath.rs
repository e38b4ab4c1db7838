//! dm-multipath.

use super::paths;
use super::{Multipath, MultipathMap};
use crate::facts::parse::sorted;
use crate::source::{Command, Source};

/// Reads how it is set up.
pub(super) fn read(source: &dyn Source, maps: Vec<MultipathMap>) -> Multipath {
    let running = source
        .run(&Command::new("systemctl", &["is-active", "multipathd.service"]))
        .map(|output| output.stdout.trim() == "active");
    Multipath {
        running,
        configured: source
            .list("/etc")
            .map(|files| files.iter().any(|file| file == "multipath.conf")),
        nvme_native: source.flag("/sys/module/nvme_core/parameters/multipath"),
        maps,
    }
}

/// The devices whose UUID starts with `mpath-`.
pub(super) fn maps(source: &dyn Source) -> Vec<MultipathMap> {
    let mut devices = sorted(source.names("/sys/block"));
    devices.retain(|name| {
        name.starts_with("dm-")
            && source
                .text(&format!("/sys/block/{name}/dm/uuid"))
                .is_some_and(|uuid| uuid.starts_with("mpath-"))
    });
    if devices.is_empty() {
        return Vec::new();
    }
    let told = source.output("multipath", &["-ll"]).unwrap_or_default();
    let status = source.output("dmsetup", &["status", "--target", "multipath"]).unwrap_or_default();
    devices
        .into_iter()
        .map(|device| {
            let about = about(&told, &device);
            let name = source.text(&format!("/sys/block/{device}/dm/name"));
            MultipathMap {
                path_failures: name.as_deref().and_then(|name| failures(&status, name)),
                name,
                paths: sorted(source.names(&format!("/sys/block/{device}/slaves"))),
                queue_if_no_path: about.map(|text| text.contains("queue_if_no_path")),
                path_selector: about.and_then(|text| {
                    let (_, rest) = text.split_once("policy='")?;
                    Some(rest.split('\'').next()?.to_owned())
                }),
                groups: about.map(paths::groups).unwrap_or_default(),
                write_protect: about.and_then(|text| value(text, "wp=")),
                hardware_handler: about.and_then(|text| {
                    Some(text.split_once("hwhandler='")?.1.split('\'').next()?.to_owned())
                }),
                device,
            }
        })
        .collect()
}

fn value(text: &str, key: &str) -> Option<String> {
    Some(text.split_once(key)?.1.split_whitespace().next()?.to_owned())
}

/// How often paths have failed: behind the number of each path are its state (`A`ctive, `F`ailed) and that count.
/// `mpatha: 0 20971520 multipath 2 0 1 0 1 1 A 0 2 2 8:16 A 0 0 1 8:32 F 3 0 1`
fn failures(status: &str, name: &str) -> Option<i64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let of_path = |words: &[&str]| match words {
        [path, "A" | "F", count] if path.contains(':') => count.parse::<i64>().ok(),
        _ => None,
    };
    words.windows(3).filter_map(of_path).reduce(|a, b| a + b)
}

/// The lines about one device: `mpatha (3600...) dm-0 LIO-ORG,disk`, and those below that start
/// with white space, `|`, `` ` `` or `size=`.
fn about<'a>(told: &'a str, device: &str) -> Option<&'a str> {
    let mut start = None;
    let mut at = 0;
    for line in told.split_inclusive('\n') {
        let heading =
            line.starts_with(|c: char| c.is_ascii_alphanumeric()) && !line.starts_with("size=");
        if heading {
            if let Some(start) = start {
                return told.get(start..at);
            }
            if line.split_whitespace().any(|word| word == device) {
                start = Some(at);
            }
        }
        at += line.len();
    }
    told.get(start?..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_maps_and_what_multipath_says_of_each() {
        let tree = Tree::parse(
            "/sys/block/dm-0/dm/uuid: LVM-abc
/sys/block/dm-1/dm/uuid: mpath-3600
/sys/block/dm-1/dm/name: mpatha
/sys/block/dm-1/slaves/: sdb sdc
/sys/block/dm-2/dm/uuid: mpath-3601
/sys/block/dm-2/slaves/: sdd
/sys/module/nvme_core/parameters/multipath: Y
/etc/: multipath.conf passwd
$ multipath -ll
| mpatha (3600) dm-1 LIO-ORG,disk
| size=10G features='1 queue_if_no_path' hwhandler='1 alua' wp=rw
| |-+- policy='service-time 0' prio=50 status=active
| | `- 3:0:0:0 sdb 8:16 active ready running
| mpathb (3601) dm-2 LIO-ORG,disk
| size=10G features='0' hwhandler='0' wp=rw
| `-+- policy='round-robin 0' prio=50 status=active
$ dmsetup status --target multipath
| mpatha: 0 20971520 multipath 2 0 1 0 1 1 A 0 2 2 8:16 A 4 0 1 8:32 F 3 0 1
",
        )
        .unwrap();
        let maps = maps(&tree);
        assert_eq!(maps.len(), 2);
        assert_eq!(maps[0].paths, ["sdb", "sdc"]);
        assert_eq!(maps[0].queue_if_no_path, Some(true));
        assert_eq!(maps[0].path_selector.as_deref(), Some("service-time 0"));
        assert_eq!((maps[0].path_failures, maps[1].path_failures), (Some(7), None));
        assert_eq!(maps[1].queue_if_no_path, Some(false));
        assert_eq!(maps[1].path_selector.as_deref(), Some("round-robin 0"));
        let all = read(&tree, maps);
        assert_eq!((all.configured, all.nvme_native, all.running), (Some(true), Some(true), None));
    }
}
