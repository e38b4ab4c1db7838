//! SCST, by its tree below /sys/kernel/scst_tgt.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value as Json;

use super::{Lun, Portal, Target, TargetSession, View, backing, device_size};
use crate::facts::parse::sorted;
use crate::facts::{Listener, Value};
use crate::source::Source;

const SYS: &str = "/sys/kernel/scst_tgt";
/// More than SCST takes.
const QUEUE_DEPTH_MAX: i64 = 2048;

/// A target's attributes that rules and checks speak of.
const PARAMS: &[&str] = &[
    "DataDigest",
    "FirstBurstLength",
    "HeaderDigest",
    "ImmediateData",
    "InitialR2T",
    "MaxBurstLength",
    "MaxOutstandingR2T",
    "MaxRecvDataSegmentLength",
    "MaxSessions",
    "MaxXmitDataSegmentLength",
    "NopInInterval",
    "NopInTimeout",
    "RspTimeout",
    "cpu_mask",
    "per_portal_acl",
];
/// What a session tells of what was agreed on.
const AGREED: &[&str] = &[
    "DataDigest",
    "FirstBurstLength",
    "HeaderDigest",
    "ImmediateData",
    "InitialR2T",
    "MaxBurstLength",
    "MaxOutstandingR2T",
    "MaxRecvDataSegmentLength",
    "MaxXmitDataSegmentLength",
];

/// Reads all iSCSI targets.
pub(super) fn read(source: &dyn Source, listeners: &[Listener]) -> Vec<Target> {
    let directory = format!("{SYS}/targets/iscsi");
    let names = sorted(source.names(&directory));
    let names: Vec<String> =
        names.into_iter().filter(|name| is_target(source, &directory, name)).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let version = first_line(source, &format!("{SYS}/version"));
    let portals = portals(source, listeners);
    let middleware = source
        .output("midclt", &["call", "iscsi.global.sessions"])
        .and_then(|text| serde_json::from_str(&text).ok());
    names
        .iter()
        .map(|name| Target {
            version: version.clone(),
            portals: portals.clone(),
            ..target(source, &format!("{directory}/{name}"), name, middleware.as_ref())
        })
        .collect()
}

fn is_target(source: &dyn Source, directory: &str, name: &str) -> bool {
    source.text(&format!("{directory}/{name}/tid")).is_some()
}

/// An attribute that somebody has set has `[key]` in a second line.
fn first_line(source: &dyn Source, path: &str) -> Option<String> {
    source.text(path)?.lines().next().map(|line| line.trim().to_owned())
}

fn first_int(source: &dyn Source, path: &str) -> Option<i64> {
    first_line(source, path)?.parse().ok()
}

fn params(source: &dyn Source, at: &str, names: &[&str]) -> BTreeMap<String, Value> {
    names
        .iter()
        .filter_map(|name| {
            let text = first_line(source, &format!("{at}/{name}"))?;
            Some(((*name).to_owned(), Value::parse(&text)))
        })
        .collect()
}

/// iscsi-scstd listens for all targets; with isert-scst also for RDMA, on the same port.
fn portals(source: &dyn Source, listeners: &[Listener]) -> Vec<Portal> {
    let mut portals: Vec<Portal> = listeners
        .iter()
        .filter(|listener| listener.protocol == "iscsi")
        .map(|listener| Portal {
            address: listener.address.clone(),
            port: Some(listener.port),
            transport: Some("tcp".to_owned()),
            public: None,
        })
        .collect();
    let modules = source.names("/sys/module");
    if modules.iter().any(|name| name == "isert_scst") {
        let iser =
            portals.iter().map(|tcp| Portal { transport: Some("iser".to_owned()), ..tcp.clone() });
        portals.extend(iser.collect::<Vec<_>>());
    }
    portals
}

fn target(source: &dyn Source, at: &str, name: &str, middleware: Option<&Json>) -> Target {
    let inside = source.names(at);
    let user = |start: &str| inside.iter().any(|file| file.starts_with(start));
    let auth = match (user("IncomingUser"), user("OutgoingUser")) {
        (false, _) => "none",
        (true, false) => "chap",
        (true, true) => "mutual-chap",
    };
    let acl = initiators(source, at);
    let queue_depth = first_int(source, &format!("{at}/QueuedCommands"));
    let mut luns = luns(source, &format!("{at}/luns"));
    for group in source.names(&format!("{at}/ini_groups")) {
        luns.extend(self::luns(source, &format!("{at}/ini_groups/{group}/luns")));
    }
    luns.sort_by_key(|lun| lun.lun);
    luns.dedup();
    let open = !source.names(&format!("{at}/luns")).iter().all(|name| name == "mgmt");
    let demo_mode = open || acl.iter().any(|name| name == "*" || name.starts_with("*#"));
    Target {
        kind: "scst".to_owned(),
        name: name.to_owned(),
        enabled: first_int(source, &format!("{at}/enabled")).map(|enabled| enabled == 1),
        sessions: sorted(source.names(&format!("{at}/sessions")))
            .iter()
            .filter_map(|session| {
                self::session(source, &format!("{at}/sessions/{session}"), queue_depth, middleware)
            })
            .collect(),
        demo_mode: Some(demo_mode),
        demo_mode_writable: Some(demo_mode && luns.iter().any(|lun| lun.read_only != Some(true))),
        luns,
        queue_depth,
        queue_depth_max: Some(QUEUE_DEPTH_MAX),
        auth: Some(auth.to_owned()),
        views: views(source, at),
        acl,
        params: params(source, at, PARAMS),
        ..Target::default()
    }
}

/// The initiators of all groups, with wildcards: `iqn.1998-01.com.vmware:*`, `*#10.0.0.1`.
fn initiators(source: &dyn Source, at: &str) -> Vec<String> {
    let mut all = Vec::new();
    for group in source.names(&format!("{at}/ini_groups")) {
        let names = source.names(&format!("{at}/ini_groups/{group}/initiators"));
        all.extend(names.into_iter().filter(|name| name != "mgmt"));
    }
    all.sort();
    all.dedup();
    all
}

/// The groups with their LUNs.
fn views(source: &dyn Source, at: &str) -> Vec<View> {
    let view = |group: String| {
        let at = format!("{at}/ini_groups/{group}");
        let names = sorted(source.names(&format!("{at}/luns")));
        let luns: Vec<i64> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let only = |lun: &&i64| first_int(source, &format!("{at}/luns/{lun}/read_only")) == Some(1);
        let mut initiators = source.names(&format!("{at}/initiators"));
        initiators.retain(|name| name != "mgmt");
        View {
            read_only_luns: luns.iter().filter(only).copied().collect(),
            luns,
            initiators,
            name: group,
            ..View::default()
        }
    };
    source.names(&format!("{at}/ini_groups")).into_iter().map(view).collect()
}

/// Attributes of a device that checks speak of.
const ATTRIBUTES: &[&str] = &[
    "active",
    "async",
    "cluster_mode",
    "expl_alua",
    "o_direct",
    "tst",
    "pr_file_name",
    "zero_copy",
    "numa_node_id",
];

fn luns(source: &dyn Source, directory: &str) -> Vec<Lun> {
    sorted(source.names(directory))
        .iter()
        .filter_map(|name| {
            let number = name.parse().ok()?;
            let device = source.link_name(&format!("{directory}/{name}/device"))?;
            Some(lun(source, number, &device))
        })
        .collect()
}

fn lun(source: &dyn Source, number: i64, device: &str) -> Lun {
    let at = format!("{SYS}/devices/{device}");
    let text = |file: &str| first_line(source, &format!("{at}/{file}"));
    let int = |file: &str| first_int(source, &format!("{at}/{file}"));
    let flag = |file: &str| int(file).map(|value| value == 1);
    let handler = source.link_name(&format!("{at}/handler"));
    let path = text("filename");
    let (kind, zvol) = match (handler.as_deref(), &path) {
        (Some("vdisk_nullio"), _) => (Some("null"), None),
        (_, Some(path)) => {
            let (kind, zvol) = backing(source, path);
            (Some(kind), zvol)
        }
        _ => (None, None),
    };
    let mut settings = params(source, &at, ATTRIBUTES);
    if let Some(handler) = &handler {
        settings.insert("handler".to_owned(), Value::Text(handler.clone()));
    }
    let write_through = flag("write_through");
    Lun {
        lun: number,
        device: Some(device.to_owned()),
        backing: kind.map(str::to_owned),
        zvol,
        size_bytes: int("size")
            .or_else(|| int("size_mb").map(|size| size << 20))
            .or_else(|| path.as_deref().and_then(|path| device_size(source, path))),
        path,
        block_bytes: int("blocksize"),
        read_only: flag("read_only"),
        write_cache: write_through.map(|through| !through),
        nv_cache: flag("nv_cache"),
        storage: None,
        storage_why: None,
        threads: int("threads_num"),
        threads_pool: text("threads_pool_type"),
        unmap: flag("thin_provisioned"),
        rotational: flag("rotational"),
        queue_depth: int("max_tgt_dev_commands"),
        nguid: None,
        enabled: flag("active"),
        buffered: match handler.as_deref() {
            Some("vdisk_fileio") => flag("o_direct").map(|direct| !direct),
            _ => None,
        },
        settings,
    }
}

fn session(
    source: &dyn Source,
    at: &str,
    queue_depth: Option<i64>,
    middleware: Option<&Json>,
) -> Option<TargetSession> {
    let initiator = first_line(source, &format!("{at}/initiator_name"))?;
    // Connections are named by the initiator's address, and counted from the second on.
    let connections: Vec<String> = source
        .names(at)
        .into_iter()
        .filter(|name| {
            name.split('_')
                .next()
                .is_some_and(|name| name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok())
        })
        .collect();
    let connection = connections.first().map(|name| format!("{at}/{name}"));
    let address = connection.as_ref().and_then(|at| first_line(source, &format!("{at}/ip")));
    let address = address.map(|address| address.trim_matches(['[', ']']).to_owned());
    let transport = connection
        .as_ref()
        .and_then(|at| first_line(source, &format!("{at}/transport")))
        .map(|text| if text.to_lowercase().contains("iser") { "iser" } else { "tcp" })
        .or_else(|| told(middleware?, &initiator, address.as_deref()));
    Some(TargetSession {
        transport: transport.map(str::to_owned),
        connections: i64::try_from(connections.len()).ok(),
        queue_depth,
        params: params(source, at, AGREED),
        active_commands: first_int(source, &format!("{at}/active_commands")),
        initiator,
        address,
        ..TargetSession::default()
    })
}

/// TrueNAS knows which of its sessions are iSER.
fn told(sessions: &Json, initiator: &str, address: Option<&str>) -> Option<&'static str> {
    let session = sessions.as_array()?.iter().find(|session| {
        session["initiator"] == initiator
            && address.is_none_or(|address| session["initiator_addr"] == address)
    })?;
    session["iser"].as_bool().map(|iser| if iser { "iser" } else { "tcp" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const TREE: &str = "\
/sys/kernel/scst_tgt/version:
| 3.8.0-pre1
| EXTRACHECKS
/sys/kernel/scst_tgt/targets/iscsi/enabled: 1
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/tid: 1
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/enabled: 1
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/QueuedCommands: 32
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/MaxBurstLength:
| 1048576
| [key]
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/IncomingUser: esx ***
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/luns/: mgmt
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/ini_groups/security_group/initiators/: *#10.0.0.1 mgmt
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/ini_groups/security_group/luns/0/device -> ../../../../../../../devices/vm1
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/sessions/iqn.1998-01.com.vmware:esx#10.0.0.1/initiator_name: iqn.1998-01.com.vmware:esx
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/sessions/iqn.1998-01.com.vmware:esx#10.0.0.1/MaxBurstLength: 262144
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/sessions/iqn.1998-01.com.vmware:esx#10.0.0.1/10.0.0.2/ip: 10.0.0.2
/sys/kernel/scst_tgt/targets/iscsi/iqn.2005-10.org.freenas.ctl:vm/sessions/iqn.1998-01.com.vmware:esx#10.0.0.1/10.0.0.2/cid: 0
/sys/kernel/scst_tgt/devices/vm1/handler -> ../../handlers/vdisk_blockio
/sys/kernel/scst_tgt/devices/vm1/filename:
| /dev/zvol/tank/vm1
| [key]
/sys/kernel/scst_tgt/devices/vm1/blocksize: 512
/sys/kernel/scst_tgt/devices/vm1/size_mb: 1048576
/sys/kernel/scst_tgt/devices/vm1/threads_num: 32
/sys/kernel/scst_tgt/devices/vm1/threads_pool_type: per_initiator
/sys/kernel/scst_tgt/devices/vm1/write_through: 0
/sys/kernel/scst_tgt/devices/vm1/rotational: 0
/sys/kernel/scst_tgt/devices/vm1/read_only: 0
/sys/module/: isert_scst zfs
$ midclt call iscsi.global.sessions
| [{\"initiator\": \"iqn.1998-01.com.vmware:esx\", \"initiator_addr\": \"10.0.0.2\", \"iser\": true}]
";

    #[test]
    fn reads_a_target_of_truenas() {
        let listener = Listener {
            protocol: "iscsi".to_owned(),
            address: "0.0.0.0".to_owned(),
            port: 3260,
            program: None,
        };
        let targets = read(&Tree::parse(TREE).unwrap(), &[listener]);
        assert_eq!(targets.len(), 1);
        let target = &targets[0];
        assert_eq!(target.version.as_deref(), Some("3.8.0-pre1"));
        assert_eq!((target.queue_depth, target.auth.as_deref()), (Some(32), Some("chap")));
        assert_eq!((target.demo_mode, target.demo_mode_writable), (Some(true), Some(true)));
        assert_eq!(target.params["MaxBurstLength"], Value::Int(1_048_576));
        let transports: Vec<_> =
            target.portals.iter().map(|p| p.transport.as_deref().unwrap()).collect();
        assert_eq!(transports, ["tcp", "iser"]);
        let session = &target.sessions[0];
        assert_eq!(session.address.as_deref(), Some("10.0.0.2"));
        assert_eq!((session.transport.as_deref(), session.connections), (Some("iser"), Some(1)));
        let lun = &target.luns[0];
        assert_eq!((lun.zvol.as_deref(), lun.backing.as_deref()), (Some("tank/vm1"), Some("zvol")));
        assert_eq!((lun.threads, lun.size_bytes), (Some(32), Some(1 << 40)));
        assert_eq!((lun.write_cache, lun.rotational), (Some(true), Some(false)));
    }

    #[test]
    fn named_initiators_are_no_demo_mode() {
        let named = TREE.replace(": *#10.0.0.1 mgmt", ": iqn.1998-01.com.vmware:esx mgmt");
        let targets = read(&Tree::parse(&named).unwrap(), &[]);
        assert_eq!(targets[0].demo_mode, Some(false));
        assert_eq!(targets[0].acl, ["iqn.1998-01.com.vmware:esx"]);
    }
}
