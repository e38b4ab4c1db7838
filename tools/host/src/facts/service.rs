//! Limits that a service of this machine runs under: its control group (Documentation/admin-guide/cgroup-v2.rst)
//! and its process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse::cpu_list;
use crate::source::Source;

/// A storage service and its limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// `lunet.service`.
    pub name: String,
    /// Time that it gets of each period, in percent of one CPU; `null` = all.
    pub cpu_percent_max: Option<i64>,
    /// Periods in which it had to wait, and for how long, in milliseconds: `nr_periods`, `nr_throttled`, `throttled_ms`.
    pub cpu: BTreeMap<String, i64>,
    /// Weight against other services; 100 is the default.
    pub cpu_weight: Option<i64>,
    /// CPUs that it may use; `null` = all.
    pub cpus: Option<i64>,
    /// Most memory in bytes; `null` = all.
    pub memory_max_bytes: Option<i64>,
    /// Memory above which it is slowed down, in bytes; `null` = never.
    pub memory_high_bytes: Option<i64>,
    /// Memory in use, in bytes.
    pub memory_bytes: Option<i64>,
    /// How often limits were met: `high`, `max`, `oom`, `oom_kill`.
    pub memory_events: BTreeMap<String, i64>,
    /// Limits of reads and writes of devices, as the kernel shows them.
    pub io_max: Option<String>,
    /// Weight of its requests against those of others; 100 is the default.
    pub io_weight: Option<i64>,
    /// Most tasks; `null` = no limit.
    pub tasks_max: Option<i64>,
    /// Tasks now.
    pub tasks: Option<i64>,
}

const ROOT: &str = "/sys/fs/cgroup/system.slice";
/// Those that serve or use storage.
const NAMES: &[&str] = &[
    "lunet.service",
    "iscsid.service",
    "iscsi-scstd.service",
    "scst.service",
    "multipathd.service",
    "tgt.service",
    "nvmet.service",
    "target.service",
    "smbd.service",
    "nfs-server.service",
    "zfs-zed.service",
    "ctld.service",
];

/// Reads the services that there are.
pub(super) fn read(source: &dyn Source) -> Vec<Service> {
    NAMES
        .iter()
        .filter(|name| source.list(&format!("{ROOT}/{name}")).is_some())
        .map(|name| service(source, name))
        .collect()
}

fn service(source: &dyn Source, name: &str) -> Service {
    let at = format!("{ROOT}/{name}");
    let int = |file: &str| source.int(&format!("{at}/{file}"));
    let pairs = |file: &str| -> BTreeMap<String, i64> {
        let text = source.read(&format!("{at}/{file}")).unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        pairs
            .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
            .collect()
    };
    let mut cpu = pairs("cpu.stat");
    let throttled = cpu.get("throttled_usec").map(|micros| micros / 1000);
    cpu.retain(|name, _| matches!(name.as_str(), "nr_periods" | "nr_throttled"));
    cpu.extend(throttled.map(|milliseconds| ("throttled_ms".to_owned(), milliseconds)));
    let own = source
        .text(&format!("{at}/cpuset.cpus"))
        .and_then(|_| source.text(&format!("{at}/cpuset.cpus.effective")))
        .and_then(|text| cpu_list(&text));
    let mut events = pairs("memory.events");
    events.retain(|name, _| matches!(name.as_str(), "high" | "max" | "oom" | "oom_kill"));
    Service {
        name: name.to_owned(),
        // `max 100000`, `50000 100000`
        cpu_percent_max: source.text(&format!("{at}/cpu.max")).and_then(|text| {
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<i64>().ok()? * 100 / period.parse::<i64>().ok().filter(|&p| p > 0)?)
        }),
        cpu,
        cpu_weight: int("cpu.weight"),
        cpus: own.and_then(|cpus| i64::try_from(cpus.len()).ok()),
        memory_max_bytes: int("memory.max"),
        memory_high_bytes: int("memory.high"),
        memory_bytes: int("memory.current"),
        memory_events: events,
        io_max: source.text(&format!("{at}/io.max")),
        io_weight: source.text(&format!("{at}/io.weight")).and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("default "))?.trim().parse().ok()
        }),
        tasks_max: int("pids.max"),
        tasks: int("pids.current"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_the_limits_of_a_service() {
        let tree = Tree::parse(
            "/sys/fs/cgroup/system.slice/lunet.service/cpu.max: 50000 100000
/sys/fs/cgroup/system.slice/lunet.service/cpu.stat:
| nr_periods 1000
| nr_throttled 900
| throttled_usec 5000000
/sys/fs/cgroup/system.slice/lunet.service/memory.max: max
/sys/fs/cgroup/system.slice/lunet.service/memory.high: 1048576
/sys/fs/cgroup/system.slice/lunet.service/cpuset.cpus: 0-1
/sys/fs/cgroup/system.slice/lunet.service/cpuset.cpus.effective: 0-1
/sys/fs/cgroup/system.slice/lunet.service/memory.events:
| max 41233
| oom_kill 1
",
        )
        .unwrap();
        let service = &read(&tree)[0];
        assert_eq!((service.cpu_percent_max, service.cpus), (Some(50), Some(2)));
        assert_eq!((service.memory_max_bytes, service.memory_high_bytes), (None, Some(1 << 20)));
        assert_eq!((service.cpu["throttled_ms"], service.memory_events["oom_kill"]), (5000, 1));
    }
}
