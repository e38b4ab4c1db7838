//! DRBD: /proc/drbd of version 8, `drbdadm status` of version 9.

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A replicated device, towards one peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drbd {
    /// `r0`, or its number with version 8.
    pub name: String,
    /// `Connected`, `StandAlone`, `Connecting`, `SyncSource`...
    pub connection: Option<String>,
    /// State of the own disk: `UpToDate`, `Inconsistent`, `Diskless`...
    pub disk: Option<String>,
    /// State of the peer's disk.
    pub peer_disk: Option<String>,
    /// Own role: `Primary`, `Secondary`.
    pub role: Option<String>,
}

/// Reads all resources.
pub(super) fn read(source: &dyn Source) -> Vec<Drbd> {
    let old = source.read("/proc/drbd").unwrap_or_default();
    let mut all: Vec<Drbd> = old.lines().filter_map(version8).collect();
    if all.is_empty() && (!old.is_empty() || source.list("/sys/module/drbd").is_some()) {
        let status = source.output("drbdadm", &["status"]).unwrap_or_default();
        all.extend(status.split("\n\n").filter_map(version9));
    }
    all
}

/// ` 0: cs:StandAlone ro:Primary/Unknown ds:UpToDate/DUnknown   r-----`
fn version8(line: &str) -> Option<Drbd> {
    let (number, rest) = line.trim().split_once(": ")?;
    let number: i64 = number.parse().ok()?;
    let part = |key: &str| rest.split_whitespace().find_map(|word| word.strip_prefix(key));
    let sides = |key: &str| part(key).and_then(|pair| pair.split_once('/'));
    Some(Drbd {
        name: format!("drbd{number}"),
        connection: part("cs:").map(str::to_owned),
        disk: sides("ds:").map(|(own, _)| own.to_owned()),
        peer_disk: sides("ds:").map(|(_, peer)| peer.to_owned()),
        role: sides("ro:").map(|(own, _)| own.to_owned()),
    })
}

/// A resource's lines: `r0 role:Primary`, `  disk:UpToDate`, `  peer connection:StandAlone`, `    peer-disk:UpToDate`.
fn version9(text: &str) -> Option<Drbd> {
    let mut words = text.split_whitespace();
    let name = words.next()?.to_owned();
    let part = |key: &str| {
        let value = text.split_whitespace().find_map(|word| word.strip_prefix(key))?;
        Some(value.trim_start_matches(':').to_owned())
    };
    let own = part("role:")?;
    // A peer that is well has a role and no state of its connection.
    let peers = text.matches("role:").count() > 1;
    Some(Drbd {
        name,
        connection: part("connection:")
            .or_else(|| part("replication:"))
            .or_else(|| peers.then(|| "Connected".to_owned())),
        disk: part("disk:"),
        peer_disk: part("peer-disk:"),
        role: Some(own),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_both_versions() {
        let old = Tree::parse(
            "/proc/drbd:\n| version: 8.4.11\n|  0: cs:StandAlone ro:Primary/Unknown ds:UpToDate/DUnknown   r-----\n",
        )
        .unwrap();
        assert_eq!(read(&old)[0].connection.as_deref(), Some("StandAlone"));
        let new = Tree::parse(
            "/proc/drbd: version: 9.1.4\n$ drbdadm status\n| r0 role:Primary\n|   disk:UpToDate\n|   b role:Secondary\n|     peer-disk:Inconsistent\n",
        )
        .unwrap();
        let found = &read(&new)[0];
        assert_eq!(
            (found.disk.as_deref(), found.peer_disk.as_deref()),
            (Some("UpToDate"), Some("Inconsistent"))
        );
        assert_eq!(found.connection.as_deref(), Some("Connected"));
    }
}
