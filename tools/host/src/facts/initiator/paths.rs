//! The paths of multipath devices, as `multipath -ll` draws them.

use serde::{Deserialize, Serialize};

/// Paths that are used together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathGroup {
    /// How a path is chosen: `service-time 0`.
    pub selector: Option<String>,
    /// Priority of the group: the highest is used.
    pub priority: Option<i64>,
    /// `active`, `enabled`, `disabled`.
    pub status: Option<String>,
    /// Its paths.
    pub paths: Vec<MapPath>,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MapPath {
    /// `sdb`; `-` if its disk is gone.
    pub name: String,
    /// What the device mapper says: `active`, `failed`.
    pub dm_state: String,
    /// What the path checker says: `ready`, `faulty`, `shaky`, `ghost`, `i/o`.
    pub checker: String,
    /// State of the device: `running`, `offline`.
    pub state: String,
}

/// The groups in the lines about one map:
/// `|-+- policy='service-time 0' prio=50 status=active`, `| `- 9:0:0:0 sda 8:0 active ready running`.
pub(super) fn groups(about: &str) -> Vec<PathGroup> {
    let mut all: Vec<PathGroup> = Vec::new();
    for line in about.lines() {
        let part = |key: &str| {
            let rest = line.split_once(key)?.1;
            Some(rest.split([' ', '\'']).next()?.to_owned())
        };
        if line.contains("policy='") {
            let selector =
                line.split_once("policy='").and_then(|(_, rest)| rest.split('\'').next());
            all.push(PathGroup {
                selector: selector.map(str::to_owned),
                priority: part("prio=").and_then(|prio| prio.parse().ok()),
                status: part("status="),
                paths: Vec::new(),
            });
            continue;
        }
        let words: Vec<&str> =
            line.split_whitespace().filter(|w| !matches!(*w, "|" | "|-" | "`-" | "|-+-")).collect();
        let [place, name, number, dm_state, checker, state, ..] = words[..] else { continue };
        if let (true, true, Some(group)) =
            (place.contains(':'), number.contains(':'), all.last_mut())
        {
            group.paths.push(MapPath {
                name: name.to_owned(),
                dm_state: dm_state.to_owned(),
                checker: checker.to_owned(),
                state: state.to_owned(),
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_groups_and_paths() {
        let told = "vmstore (3600) dm-0 VENDOR,disk\nsize=6.0T features='0' hwhandler='1 alua' wp=rw\n|-+- policy='service-time 0' prio=50 status=active\n| `- 9:0:0:0 sda 8:0 failed faulty offline\n`-+- policy='service-time 0' prio=10 status=enabled\n  `- 10:0:0:0 sdb 8:16 active ready running\n";
        let all = groups(told);
        assert_eq!(all.len(), 2);
        assert_eq!((all[1].priority, all[1].status.as_deref()), (Some(10), Some("enabled")));
        assert_eq!(
            (all[0].paths[0].name.as_str(), all[0].paths[0].dm_state.as_str()),
            ("sda", "failed")
        );
        assert_eq!(all[1].paths[0].checker, "ready");
    }
}
