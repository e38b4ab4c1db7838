//! LIO, by its tree below /sys/kernel/config/target.

use std::collections::BTreeMap;

use super::{Lun, Portal, Target, TargetSession, View, backing, device_size, portal};
use crate::facts::Value;
use crate::facts::parse::sorted;
use crate::source::Source;

const SYS: &str = "/sys/kernel/config/target";
/// `TA_DEFAULT_CMDSN_DEPTH_MAX` of the kernel.
const QUEUE_DEPTH_MAX: i64 = 512;

/// Reads all iSCSI targets: one for each group of portals.
pub(super) fn read(source: &dyn Source) -> Vec<Target> {
    // Target Engine Core ConfigFS Infrastructure v5.0 on Linux/x86_64 on 6.1.0
    let version = source.text(&format!("{SYS}/version")).and_then(|text| {
        text.split_whitespace().find(|word| word.starts_with('v')).map(|v| v[1..].to_owned())
    });
    let mut all = Vec::new();
    for name in sorted(source.names(&format!("{SYS}/iscsi"))) {
        for group in source.names(&format!("{SYS}/iscsi/{name}")) {
            if group.starts_with("tpgt_") {
                let target = target(source, &format!("{SYS}/iscsi/{name}/{group}"), &name);
                all.push(Target { version: version.clone(), ..target });
            }
        }
    }
    all
}

fn target(source: &dyn Source, at: &str, name: &str) -> Target {
    let flag = |file: &str| source.flag(&format!("{at}/{file}"));
    let portals = portals(source, at);
    let acl: Vec<String> = sorted(source.names(&format!("{at}/acls")));
    let iser = portals.iter().any(|portal| portal.transport.as_deref() == Some("iser"));
    let queue_depth = source.int(&format!("{at}/attrib/default_cmdsn_depth"));
    let mut sessions: Vec<TargetSession> = acl
        .iter()
        .filter_map(|initiator| session(source, &format!("{at}/acls/{initiator}"), initiator, iser))
        .collect();
    // Those of initiators without an entry of their own, by name only.
    let dynamic = source.text(&format!("{at}/dynamic_sessions")).unwrap_or_default();
    let dynamic = dynamic.split(['\n', '\0']).filter(|name| !name.is_empty());
    sessions.extend(dynamic.map(|initiator| TargetSession {
        initiator: initiator.to_owned(),
        queue_depth,
        ..TargetSession::default()
    }));
    let demo_mode = flag("attrib/generate_node_acls");
    Target {
        kind: "lio".to_owned(),
        name: name.to_owned(),
        enabled: flag("enable"),
        portals,
        sessions,
        luns: luns(source, at),
        queue_depth,
        queue_depth_max: Some(QUEUE_DEPTH_MAX),
        auth: auth(source, at, &acl),
        demo_mode,
        demo_mode_writable: demo_mode
            .zip(flag("attrib/demo_mode_write_protect"))
            .map(|(open, protected)| open && !protected),
        views: acl.iter().map(|name| view(source, at, name)).collect(),
        acl,
        params: params(source, at),
        ..Target::default()
    }
}

/// `np/10.0.0.1:3260` with the files `tcp` and `iser`.
fn portals(source: &dyn Source, at: &str) -> Vec<Portal> {
    let mut all = Vec::new();
    for name in sorted(source.names(&format!("{at}/np"))) {
        let is = |transport: &str| source.flag(&format!("{at}/np/{name}/{transport}"));
        if is("iser") == Some(true) {
            all.push(portal(&name, "iser"));
        } else {
            all.push(portal(&name, "tcp"));
        }
    }
    all
}

fn auth(source: &dyn Source, at: &str, acl: &[String]) -> Option<String> {
    let required = source.flag(&format!("{at}/attrib/authentication"))?;
    let mutual = |directory: String| {
        source.flag(&format!("{directory}/auth/authenticate_target")) == Some(true)
    };
    let kind = match required {
        false => "none",
        true if mutual(at.to_owned()) => "mutual-chap",
        true if acl.iter().any(|initiator| mutual(format!("{at}/acls/{initiator}"))) => {
            "mutual-chap"
        }
        true => "chap",
    };
    Some(kind.to_owned())
}

/// `acls/IQN/lun_0/write_protect`
fn view(source: &dyn Source, at: &str, name: &str) -> View {
    let at = format!("{at}/acls/{name}");
    let numbers = sorted(source.names(&at)).into_iter();
    let luns: Vec<i64> =
        numbers.filter_map(|file| file.strip_prefix("lun_")?.parse().ok()).collect();
    let only = |lun: &&i64| source.flag(&format!("{at}/lun_{lun}/write_protect")) == Some(true);
    View {
        target: String::new(),
        name: name.to_owned(),
        read_only_luns: luns.iter().filter(only).copied().collect(),
        luns,
        initiators: vec![name.to_owned()],
        queue_depth: source.int(&format!("{at}/cmdsn_depth")),
        chap: source.text(&format!("{at}/auth/userid")).map(|name| name != "NULL"),
    }
}

/// Attributes of a storage object that checks speak of.
const ATTRIBUTES: &[&str] = &[
    "emulate_3pc",
    "emulate_caw",
    "emulate_fua_write",
    "emulate_pr",
    "emulate_tas",
    "emulate_tpws",
    "enforce_pr_isids",
    "force_pr_aptpl",
    "hw_max_sectors",
    "max_unmap_block_desc_count",
    "max_unmap_lba_count",
    "max_write_same_len",
    "optimal_sectors",
    "pi_prot_type",
    "unmap_granularity",
    "unmap_zeroes_data",
];

fn params(source: &dyn Source, at: &str) -> BTreeMap<String, Value> {
    let names = [
        "DataDigest",
        "DefaultTime2Retain",
        "ErrorRecoveryLevel",
        "FirstBurstLength",
        "HeaderDigest",
        "ImmediateData",
        "InitialR2T",
        "MaxBurstLength",
        "MaxConnections",
        "MaxOutstandingR2T",
        "MaxRecvDataSegmentLength",
        "MaxXmitDataSegmentLength",
    ];
    names
        .iter()
        .filter_map(|name| {
            let text = source.text(&format!("{at}/param/{name}"))?;
            Some(((*name).to_owned(), Value::parse(&text)))
        })
        .chain(
            ["login_timeout", "netif_timeout", "prod_mode_write_protect", "default_erl", "t10_pi"]
                .iter()
                .filter_map(|name| {
                    Some((
                        (*name).to_owned(),
                        Value::Int(source.int(&format!("{at}/attrib/{name}"))?),
                    ))
                }),
        )
        .collect()
}

/// `lun/lun_0/HASH -> ../../../../../../target/core/iblock_0/NAME`
fn luns(source: &dyn Source, at: &str) -> Vec<Lun> {
    let mut all = Vec::new();
    for name in sorted(source.names(&format!("{at}/lun"))) {
        let Some(number) = name.strip_prefix("lun_").and_then(|n| n.parse().ok()) else { continue };
        let directory = format!("{at}/lun/{name}");
        let link = source.names(&directory).into_iter().find_map(|file| {
            source.link(&format!("{directory}/{file}")).filter(|l| l.contains("/core/"))
        });
        let Some((_, storage)) = link.as_deref().and_then(|link| link.split_once("/core/")) else {
            continue;
        };
        all.push(lun(source, number, storage));
    }
    all
}

/// The storage object: `iblock_0/NAME`.
fn lun(source: &dyn Source, number: i64, storage: &str) -> Lun {
    let at = format!("{SYS}/core/{storage}");
    let flag = |file: &str| source.flag(&format!("{at}/attrib/{file}"));
    let int = |file: &str| source.int(&format!("{at}/attrib/{file}"));
    let info = source.text(&format!("{at}/info")).unwrap_or_default();
    let path = source.text(&format!("{at}/udev_path")).or_else(|| {
        // TCM FILEIO ID: 0        File: /srv/lun  Size: 1073741824  Mode: O_DSYNC Async: 0
        Some(info.split_once("File: ")?.1.split_whitespace().next()?.to_owned())
    });
    let (kind, zvol) = match storage.split('_').next() {
        Some("rd") => (Some("memory"), None),
        Some("user") => (None, None),
        _ => match path.as_deref().map(|path| backing(source, path)) {
            Some((kind, zvol)) => (Some(kind), zvol),
            None => (None, None),
        },
    };
    // Not the SectorSize of a block device.
    let told = info.split_once(" Size: ").and_then(|(_, rest)| rest.split_whitespace().next());
    Lun {
        lun: number,
        device: storage.rsplit('/').next().map(str::to_owned),
        backing: kind.map(str::to_owned),
        zvol,
        size_bytes: told
            .and_then(|size| size.parse().ok())
            .or_else(|| path.as_deref().and_then(|path| device_size(source, path))),
        path,
        block_bytes: int("block_size"),
        write_cache: flag("emulate_write_cache"),
        unmap: flag("emulate_tpu"),
        rotational: flag("is_nonrot").map(|still| !still),
        queue_depth: int("queue_depth"),
        enabled: source.flag(&format!("{at}/enable")),
        buffered: info.contains("Mode: ").then(|| info.contains("Mode: Buffered")),
        settings: ATTRIBUTES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), Value::Int(int(name)?))))
            .collect(),
        ..Lun::default()
    }
}

/// `acls/IQN/info`, if that initiator is logged in.
fn session(source: &dyn Source, at: &str, initiator: &str, iser: bool) -> Option<TargetSession> {
    let info = source.text(&format!("{at}/info"))?;
    if !info.contains("LOGGED_IN") {
        return None;
    }
    let connections = info.lines().filter(|line| line.trim_start().starts_with("CID: ")).count();
    //    Address 10.0.0.2 TCP  StatSN: 0x00000003
    let mut words = info
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("Address "))
        .map(str::split_whitespace)?;
    let address = words.next().map(|word| word.trim_matches(['[', ']']).to_owned());
    // Everything but TCP is told as SCTP.
    let transport = match words.next() {
        Some("TCP") => Some("tcp"),
        Some(_) if iser => Some("iser"),
        _ => None,
    };
    Some(TargetSession {
        initiator: initiator.to_owned(),
        address,
        transport: transport.map(str::to_owned),
        connections: i64::try_from(connections).ok(),
        queue_depth: source.int(&format!("{at}/cmdsn_depth")),
        ..TargetSession::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const TREE: &str = "\
/sys/kernel/config/target/version: Target Engine Core ConfigFS Infrastructure v5.0 on Linux/x86_64 on 6.1.0-18-amd64
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/enable: 1
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/attrib/authentication: 1
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/attrib/generate_node_acls: 0
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/attrib/demo_mode_write_protect: 1
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/attrib/default_cmdsn_depth: 64
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/param/MaxBurstLength: 262144
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/np/10.0.0.1:3260/iser: 1
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/np/10.0.0.1:3260/tcp: 0
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/lun/lun_0/3f1 -> ../../../../../../target/core/iblock_0/one
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/acls/iqn.1993-08.org.debian:b/cmdsn_depth: 128
/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:a/tpgt_1/acls/iqn.1993-08.org.debian:b/info:
| InitiatorName: iqn.1993-08.org.debian:b
| LIO Session ID: 1   ISID: 0x00 02 3d 00 00 01  TSIH: 1  SessionType: Normal
| Session State: TARG_SESS_STATE_LOGGED_IN
| ----------------------[iSCSI Connections]-------------------------
| CID: 0  Connection State: TARG_CONN_STATE_LOGGED_IN
|    Address 10.0.0.2 SCTP  StatSN: 0x00000007
/sys/kernel/config/target/core/iblock_0/one/udev_path: /dev/zvol/tank/one
/sys/kernel/config/target/core/iblock_0/one/attrib/block_size: 512
/sys/kernel/config/target/core/iblock_0/one/attrib/emulate_write_cache: 0
/sys/kernel/config/target/core/iblock_0/one/attrib/is_nonrot: 1
/dev/zvol/tank/one -> ../../zd0
/sys/block/zd0/size: 2097152
";

    #[test]
    fn reads_a_target_with_iser() {
        let targets = read(&Tree::parse(TREE).unwrap());
        let target = &targets[0];
        assert_eq!(target.version.as_deref(), Some("5.0"));
        assert_eq!((target.auth.as_deref(), target.demo_mode), (Some("chap"), Some(false)));
        assert_eq!(target.portals[0].transport.as_deref(), Some("iser"));
        assert_eq!(
            (target.portals[0].address.as_str(), target.portals[0].port),
            ("10.0.0.1", Some(3260))
        );
        let session = &target.sessions[0];
        assert_eq!((session.transport.as_deref(), session.queue_depth), (Some("iser"), Some(128)));
        assert_eq!((session.address.as_deref(), session.connections), (Some("10.0.0.2"), Some(1)));
        let lun = &target.luns[0];
        assert_eq!((lun.zvol.as_deref(), lun.size_bytes), (Some("tank/one"), Some(1 << 30)));
        assert_eq!((lun.write_cache, lun.rotational), (Some(false), Some(false)));
    }
}
