//! The target daemon of tgt, as tgtadm shows it.

use super::{Lun, Portal, Target, TargetSession, backing};
use crate::facts::Listener;
use crate::source::Source;

/// Reads all iSCSI targets.
pub(super) fn read(source: &dyn Source, listeners: &[Listener]) -> Vec<Target> {
    let args = ["--mode", "target", "--op", "show"];
    let Some(text) = source.output("tgtadm", &args) else { return Vec::new() };
    let mut all: Vec<Target> = Vec::new();
    let mut section = "";
    for line in text.lines() {
        let inner = line.trim();
        if let Some(rest) = line.strip_prefix("Target ") {
            let name = rest.split_once(": ").map_or("", |(_, name)| name).trim();
            all.push(empty(name, listeners));
            section = "";
            continue;
        }
        let Some(target) = all.last_mut() else { continue };
        let indent = line.len() - line.trim_start().len();
        if indent == 4 {
            section = inner;
            continue;
        }
        match section {
            "System information:" => {
                if let Some(state) = inner.strip_prefix("State: ") {
                    target.enabled = Some(state == "ready");
                }
            }
            "I_T nexus information:" => nexus(inner, target),
            "LUN information:" => lun(source, inner, target),
            "Account information:" if !inner.is_empty() => {
                let kind = if inner.ends_with("(outgoing)") { "mutual-chap" } else { "chap" };
                if target.auth.as_deref() != Some("mutual-chap") {
                    target.auth = Some(kind.to_owned());
                }
            }
            "ACL information:" if !inner.is_empty() => target.acl.push(inner.to_owned()),
            _ => {}
        }
    }
    for target in &mut all {
        // The first LUN is a controller without storage; one that is off line may have lost its own.
        target.luns.retain(|lun| lun.path.is_some() || lun.enabled == Some(false));
        target.demo_mode = Some(target.acl.iter().any(|name| name == "ALL"));
        target.demo_mode_writable = target
            .demo_mode
            .map(|open| open && target.luns.iter().any(|l| l.read_only == Some(false)));
    }
    all
}

fn empty(name: &str, listeners: &[Listener]) -> Target {
    let own = |listener: &&Listener| listener.program.as_deref() == Some("tgtd");
    Target {
        kind: "tgt".to_owned(),
        name: name.to_owned(),
        auth: Some("none".to_owned()),
        portals: listeners
            .iter()
            .filter(own)
            .map(|listener| Portal {
                address: listener.address.clone(),
                port: Some(listener.port),
                transport: Some("tcp".to_owned()),
                public: None,
            })
            .collect(),
        ..Target::default()
    }
}

fn nexus(line: &str, target: &mut Target) {
    if let Some(rest) = line.strip_prefix("Initiator: ") {
        target.sessions.push(TargetSession {
            initiator: rest.split_whitespace().next().unwrap_or_default().to_owned(),
            connections: Some(0),
            ..TargetSession::default()
        });
    }
    let Some(session) = target.sessions.last_mut() else { return };
    if line.starts_with("Connection: ") {
        session.connections = session.connections.map(|count| count + 1);
    } else if let Some(address) = line.strip_prefix("IP Address: ") {
        session.address = Some(address.to_owned());
        session.transport = Some("tcp".to_owned());
    } else if line.starts_with("RDMA") {
        session.transport = Some("iser".to_owned());
    }
}

fn lun(source: &dyn Source, line: &str, target: &mut Target) {
    if let Some(number) = line.strip_prefix("LUN: ").and_then(|number| number.parse().ok()) {
        target.luns.push(Lun { lun: number, ..Lun::default() });
    }
    let Some(lun) = target.luns.last_mut() else { return };
    let Some((key, value)) = line.split_once(": ") else { return };
    match key {
        // Rounded to MB: of no use as a size.
        "Size" => {
            lun.block_bytes = value.rsplit_once(": ").and_then(|(_, bytes)| bytes.parse().ok());
        }
        "Online" => lun.enabled = Some(value == "Yes"),
        "Readonly" => lun.read_only = Some(value == "Yes"),
        "Thin-provisioning" => lun.unmap = Some(value == "Yes"),
        "Backing store path" if value != "None" => {
            let (kind, zvol) = backing(source, value);
            lun.backing = Some(kind.to_owned());
            lun.zvol = zvol;
            lun.path = Some(value.to_owned());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const TREE: &str = "\
$ tgtadm --mode target --op show
| Target 1: iqn.2026-11.org.example:tgt
|     System information:
|         Driver: iscsi
|         State: ready
|     I_T nexus information:
|         I_T nexus: 1
|             Initiator: iqn.1993-08.org.debian:01:abc alias: host
|             Connection: 0
|                 IP Address: 10.0.0.2
|     LUN information:
|         LUN: 0
|             Type: controller
|             Readonly: No
|             Backing store path: None
|         LUN: 1
|             Type: disk
|             Size: 67 MB, Block size: 512
|             Readonly: No
|             Thin-provisioning: Yes
|             Backing store type: rdwr
|             Backing store path: /srv/lun
|     Account information:
|         joe
|     ACL information:
|         ALL
";

    #[test]
    fn reads_a_target() {
        let targets = read(&Tree::parse(TREE).unwrap(), &[]);
        let target = &targets[0];
        assert_eq!((target.auth.as_deref(), target.demo_mode), (Some("chap"), Some(true)));
        assert_eq!((target.enabled, target.demo_mode_writable), (Some(true), Some(true)));
        assert_eq!(target.luns.len(), 1);
        assert_eq!((target.luns[0].lun, target.luns[0].block_bytes), (1, Some(512)));
        assert_eq!(target.luns[0].backing.as_deref(), Some("file"));
        assert_eq!(target.sessions[0].address.as_deref(), Some("10.0.0.2"));
        assert_eq!(target.sessions[0].connections, Some(1));
    }
}
