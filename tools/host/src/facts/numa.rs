//! NUMA nodes.

use serde::{Deserialize, Serialize};

use super::parse::cpu_list;
use crate::source::Source;

/// A NUMA node that has processors or memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaNode {
    /// Number of the node in /sys/devices/system/node.
    pub id: i64,
    /// How many CPUs it has.
    pub cpus: Option<i64>,
    /// Which, as Linux writes it: `0-15,32-47`.
    pub cpu_list: Option<String>,
    /// Memory of the node in bytes.
    pub memory_bytes: Option<i64>,
    /// How far it is to each node; 10 = itself.
    pub distances: Vec<i64>,
}

const SYS: &str = "/sys/devices/system/node";

/// Reads about the nodes.
pub(super) fn read(source: &dyn Source) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = source
        .names(SYS)
        .iter()
        .filter_map(|name| name.strip_prefix("node")?.parse().ok())
        .map(|id| node(source, id))
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

fn node(source: &dyn Source, id: i64) -> NumaNode {
    let list = source.text(&format!("{SYS}/node{id}/cpulist"));
    let distances = source.text(&format!("{SYS}/node{id}/distance")).unwrap_or_default();
    NumaNode {
        id,
        cpus: list.as_deref().and_then(cpu_list).and_then(|cpus| cpus.len().try_into().ok()),
        cpu_list: list,
        memory_bytes: source.read(&format!("{SYS}/node{id}/meminfo")).and_then(|text| {
            // Node 0 MemTotal:       65734236 kB
            let line = text.lines().find(|line| line.contains(" MemTotal:"))?;
            let kib: i64 = line.split_whitespace().nth(3)?.parse().ok()?;
            Some(kib * 1024)
        }),
        distances: distances.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
    }
}
