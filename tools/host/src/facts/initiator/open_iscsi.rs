//! open-iscsi, by its classes in sysfs.

use std::collections::BTreeMap;

use super::{IscsiDisk, IscsiSession, MultipathMap, OpenIscsi};
use crate::facts::Value;
use crate::facts::parse::{natural, sorted};
use crate::source::Source;

/// Reads about open-iscsi, if it is installed or has sessions.
pub(super) fn read(source: &dyn Source, maps: &[MultipathMap]) -> Option<OpenIscsi> {
    let config = source.read("/etc/iscsi/iscsid.conf");
    let names = sorted(source.names("/sys/class/iscsi_session"));
    if config.is_none() && names.is_empty() {
        return None;
    }
    let name = source.read("/etc/iscsi/initiatorname.iscsi").unwrap_or_default();
    let version = source.output("iscsiadm", &["--version"]);
    Some(OpenIscsi {
        // iscsiadm version 2.1.8
        version: version.and_then(|text| text.split_whitespace().last().map(str::to_owned)),
        initiator_name: name
            .lines()
            .find_map(|line| line.trim().strip_prefix("InitiatorName="))
            .map(str::to_owned),
        settings: settings(&config.unwrap_or_default()),
        sessions: names.iter().filter_map(|name| session(source, name, maps)).collect(),
    })
}

/// `node.session.queue_depth = 32`. Names and secrets of CHAP are left out.
fn settings(config: &str) -> BTreeMap<String, Value> {
    config
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), Value::parse(value)))
        .filter(|(name, _)| !name.contains("password") && !name.contains("username"))
        .collect()
}

fn session(source: &dyn Source, name: &str, maps: &[MultipathMap]) -> Option<IscsiSession> {
    let sid: i64 = name.strip_prefix("session")?.parse().ok()?;
    let at = format!("/sys/class/iscsi_session/{name}");
    let text = |file: &str| source.text(&format!("{at}/{file}"));
    let int = |file: &str| source.int(&format!("{at}/{file}"));
    // ../../devices/platform/host3/session1/iscsi_session/session1
    let place = source.link(&at).unwrap_or_default();
    let host = place.split('/').find(|part| part.starts_with("host")).unwrap_or_default();
    let of_host = |file: &str| source.text(&format!("/sys/class/iscsi_host/{host}/{file}"));
    let connection = format!("/sys/class/iscsi_connection/connection{sid}:0");
    let of_connection = |file: &str| source.text(&format!("{connection}/{file}"));
    let number = |file: &str| of_connection(file).and_then(|text| text.parse().ok());
    let driver = source.text(&format!("/sys/class/scsi_host/{host}/proc_name"));
    let transport = match driver.as_deref() {
        Some("iscsi_tcp") => Some("tcp".to_owned()),
        Some("iscsi_iser" | "iser" | "ib_iser") => Some("iser".to_owned()),
        other => other.map(str::to_owned),
    };
    let known = |text: &String| !matches!(text.as_str(), "<NULL>" | "default" | "");
    Some(IscsiSession {
        sid,
        target: text("targetname")?,
        address: of_connection("persistent_address").or_else(|| of_connection("address")),
        port: number("persistent_port").or_else(|| number("port")),
        transport,
        local_address: of_connection("local_ipaddr").or_else(|| of_host("ipaddress")).filter(known),
        netdev: of_host("netdev").filter(known),
        state: text("state"),
        cmds_max: source.int(&format!("/sys/class/scsi_host/{host}/can_queue")),
        replacement_timeout_seconds: int("recovery_tmo"),
        abort_timeout_seconds: int("abort_tmo"),
        noop_interval_seconds: number("recv_tmo"),
        noop_timeout_seconds: number("ping_tmo"),
        chap: text("username").map(|name| known(&name) && name != "(null)"),
        params: params(source, &at, &connection),
        startup: startup(source, &text("targetname")?),
        disks: disks(source, &place, sid, maps),
    })
}

/// `node.startup = automatic` of the target's first record: /etc/iscsi/nodes/IQN/ADDRESS,PORT,1, a file or a
/// directory with a file for each interface.
fn startup(source: &dyn Source, target: &str) -> Option<String> {
    let root = ["/etc/iscsi/nodes", "/var/lib/iscsi/nodes"]
        .into_iter()
        .map(|root| format!("{root}/{target}"))
        .find(|root| source.list(root).is_some())?;
    let portal = format!("{root}/{}", source.names(&root).first()?);
    let text = source.read(&portal).or_else(|| {
        let first = source.names(&portal).into_iter().next()?;
        source.read(&format!("{portal}/{first}"))
    })?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "node.startup").then(|| value.trim().to_owned())
    })
}

/// What was agreed on, by the names of the protocol.
fn params(source: &dyn Source, session: &str, connection: &str) -> BTreeMap<String, Value> {
    let names = [
        ("DataDigest", connection, "data_digest"),
        ("HeaderDigest", connection, "header_digest"),
        ("MaxRecvDataSegmentLength", connection, "max_recv_dlength"),
        ("MaxXmitDataSegmentLength", connection, "max_xmit_dlength"),
        ("FirstBurstLength", session, "first_burst_len"),
        ("ImmediateData", session, "immediate_data"),
        ("InitialR2T", session, "initial_r2t"),
        ("MaxBurstLength", session, "max_burst_len"),
        ("MaxOutstandingR2T", session, "max_outstanding_r2t"),
        ("ErrorRecoveryLevel", session, "erl"),
    ];
    names
        .iter()
        .filter_map(|(name, at, file)| {
            let text = source.text(&format!("{at}/{file}"))?;
            Some(((*name).to_owned(), Value::parse(&text)))
        })
        .collect()
}

/// The disks whose place in /sys/devices is below the session.
fn disks(source: &dyn Source, place: &str, sid: i64, maps: &[MultipathMap]) -> Vec<IscsiDisk> {
    let below = format!("/session{sid}/");
    let mut all: Vec<IscsiDisk> = source
        .names("/sys/block")
        .into_iter()
        .filter(|name| name.starts_with("sd") && !place.is_empty())
        .filter_map(|name| {
            let link = source.link(&format!("/sys/block/{name}"))?;
            // .../session1/target3:0:0/3:0:0:5/block/sdb
            let (_, rest) = link.split_once(&below)?;
            let address = rest.split('/').nth(1)?;
            let at = format!("/sys/block/{name}/device");
            let map = maps.iter().find(|map| map.paths.contains(&name));
            Some(IscsiDisk {
                lun: address.rsplit(':').next().and_then(|lun| lun.parse().ok()),
                state: source.text(&format!("{at}/state")),
                read_only: source.flag(&format!("/sys/block/{name}/ro")),
                queue_depth: source.int(&format!("{at}/queue_depth")),
                timeout_seconds: source.int(&format!("{at}/timeout")),
                map: map.map(|map| map.device.clone()),
                name,
            })
        })
        .collect();
    all.sort_by_cached_key(|disk| natural(&disk.name));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_a_session_with_its_disk() {
        let tree = Tree::parse(
            "/etc/iscsi/iscsid.conf:
| # comment
| node.session.queue_depth = 32
| node.session.auth.password = ***
/etc/iscsi/initiatorname.iscsi: InitiatorName=iqn.1993-08.org.debian:01:abc
$ iscsiadm --version
| iscsiadm version 2.1.8
/sys/class/iscsi_session/session1 -> ../../devices/platform/host3/session1/iscsi_session/session1
/sys/class/iscsi_session/session1/targetname: iqn.2026-11.org.example:a
/sys/class/iscsi_session/session1/state: LOGGED_IN
/sys/class/iscsi_session/session1/recovery_tmo: 120
/sys/class/iscsi_session/session1/username: <NULL>
/sys/class/iscsi_session/session1/max_burst_len: 262144
/sys/class/iscsi_connection/connection1:0/persistent_address: 10.0.0.1
/sys/class/iscsi_connection/connection1:0/persistent_port: 3260
/sys/class/iscsi_connection/connection1:0/recv_tmo: 5
/sys/class/iscsi_connection/connection1:0/header_digest: None
/sys/class/iscsi_host/host3/ipaddress: 10.0.0.2
/sys/class/iscsi_host/host3/netdev: <NULL>
/sys/class/scsi_host/host3/proc_name: iscsi_tcp
/sys/class/scsi_host/host3/can_queue: 128
/sys/block/sdb -> ../devices/platform/host3/session1/target3:0:0/3:0:0:5/block/sdb
/sys/block/sdb/device/state: running
/sys/block/sdb/device/queue_depth: 32
",
        )
        .unwrap();
        let map = MultipathMap {
            device: "dm-0".to_owned(),
            paths: vec!["sdb".to_owned()],
            ..MultipathMap::default()
        };
        let found = read(&tree, &[map]).unwrap();
        assert_eq!(found.version.as_deref(), Some("2.1.8"));
        assert_eq!(found.settings.len(), 1);
        assert_eq!(found.settings["node.session.queue_depth"], Value::Int(32));
        let session = &found.sessions[0];
        assert_eq!((session.transport.as_deref(), session.cmds_max), (Some("tcp"), Some(128)));
        assert_eq!(
            (session.local_address.as_deref(), session.netdev.as_deref()),
            (Some("10.0.0.2"), None)
        );
        assert_eq!((session.chap, session.replacement_timeout_seconds), (Some(false), Some(120)));
        assert_eq!(session.params["HeaderDigest"], Value::Text("None".to_owned()));
        let disk = &session.disks[0];
        assert_eq!((disk.name.as_str(), disk.lun, disk.queue_depth), ("sdb", Some(5), Some(32)));
        assert_eq!(disk.map.as_deref(), Some("dm-0"));
    }

    #[test]
    fn a_machine_without_it_has_none() {
        assert_eq!(read(&Tree::new(), &[]), None);
    }
}
