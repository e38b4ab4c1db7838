//! The kernel's NVMe target, by its tree below /sys/kernel/config/nvmet.

use std::collections::BTreeMap;

use super::{Lun, NvmetPort, Portal, Target, TargetSession, backing, device_size};
use crate::facts::Value;
use crate::facts::parse::sorted;
use crate::source::Source;

const SYS: &str = "/sys/kernel/config/nvmet";
const DEBUG: &str = "/sys/kernel/debug/nvmet";

/// Reads all subsystems.
pub(super) fn read(source: &dyn Source) -> Vec<Target> {
    sorted(source.names(&format!("{SYS}/subsystems")))
        .iter()
        .map(|name| subsystem(source, name))
        .collect()
}

/// Reads all ports.
pub(super) fn ports(source: &dyn Source) -> Vec<NvmetPort> {
    let port = |id: String| {
        let at = format!("{SYS}/ports/{id}");
        let text = |file: &str| source.text(&format!("{at}/{file}"));
        NvmetPort {
            transport: text("addr_trtype"),
            address: text("addr_traddr"),
            port: text("addr_trsvcid"),
            subsystems: sorted(source.names(&format!("{at}/subsystems"))),
            queue_size: source.int(&format!("{at}/param_max_queue_size")),
            id,
        }
    };
    sorted(source.names(&format!("{SYS}/ports"))).into_iter().map(port).collect()
}

fn subsystem(source: &dyn Source, name: &str) -> Target {
    let at = format!("{SYS}/subsystems/{name}");
    let ports: Vec<String> = sorted(source.names(&format!("{SYS}/ports")))
        .into_iter()
        .filter(|port| {
            source.names(&format!("{SYS}/ports/{port}/subsystems")).iter().any(|have| have == name)
        })
        .collect();
    let depth = |port: &String| source.int(&format!("{SYS}/ports/{port}/param_max_queue_size"));
    let open = source.flag(&format!("{at}/attr_allow_any_host"));
    let acl = sorted(source.names(&format!("{at}/allowed_hosts")));
    let key = |host: &String| source.text(&format!("{SYS}/hosts/{host}/dhchap_key")).is_some();
    let keyed = open == Some(false) && !acl.is_empty() && acl.iter().all(key);
    Target {
        kind: "nvmet".to_owned(),
        name: name.to_owned(),
        enabled: Some(!ports.is_empty()),
        portals: ports.iter().map(|port| portal(source, port)).collect(),
        sessions: sessions(source, name),
        luns: sorted(source.names(&format!("{at}/namespaces")))
            .iter()
            .filter_map(|number| namespace(source, &at, number.parse().ok()?))
            .collect(),
        queue_depth: ports.iter().filter_map(depth).min(),
        params: params(source, &at, &ports),
        auth: Some(if keyed { "dhchap" } else { "none" }.to_owned()),
        demo_mode: open,
        demo_mode_writable: open,
        acl,
        ..Target::default()
    }
}

/// What hosts are offered: the greatest queue identifier, and the data of a write that goes with its command (the least
/// of the ports; -1 is the kernel's default).
fn params(source: &dyn Source, at: &str, ports: &[String]) -> BTreeMap<String, Value> {
    let inline = |port: &String| source.int(&format!("{SYS}/ports/{port}/param_inline_data_size"));
    let all = [
        ("qid_max", source.int(&format!("{at}/attr_qid_max"))),
        ("inline_data_size", ports.iter().filter_map(inline).min()),
    ];
    let known =
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Value::Int(value?))));
    known.collect()
}

fn portal(source: &dyn Source, port: &str) -> Portal {
    let text = |file: &str| source.text(&format!("{SYS}/ports/{port}/{file}"));
    Portal {
        address: text("addr_traddr").unwrap_or_default(),
        port: text("addr_trsvcid").and_then(|port| port.parse().ok()),
        transport: text("addr_trtype"),
        public: None,
    }
}

fn namespace(source: &dyn Source, at: &str, number: i64) -> Option<Lun> {
    let at = format!("{at}/namespaces/{number}");
    let path = source.text(&format!("{at}/device_path"))?;
    let (kind, zvol) = backing(source, &path);
    let buffered = source.flag(&format!("{at}/buffered_io"));
    Some(Lun {
        lun: number,
        backing: Some(kind.to_owned()),
        zvol,
        size_bytes: device_size(source, &path),
        enabled: source.flag(&format!("{at}/enable")),
        buffered: (kind == "file").then_some(buffered).flatten(),
        write_cache: (kind == "file").then_some(buffered).flatten(),
        nguid: source
            .text(&format!("{at}/device_nguid"))
            .map(|text| text.chars().any(|digit| !matches!(digit, '0' | '-'))),
        path: Some(path),
        ..Lun::default()
    })
}

/// Kernels from 6.12 on show controllers, to root.
fn sessions(source: &dyn Source, name: &str) -> Vec<TargetSession> {
    sorted(source.names(&format!("{DEBUG}/{name}")))
        .iter()
        .filter(|file| file.starts_with("ctrl"))
        .filter_map(|controller| {
            let at = format!("{DEBUG}/{name}/{controller}");
            let address = source.text(&format!("{at}/host_traddr"));
            // The number of the port that the host has come in by.
            let port = source.text(&format!("{at}/port"));
            Some(TargetSession {
                transport: port
                    .and_then(|port| source.text(&format!("{SYS}/ports/{port}/addr_trtype"))),
                initiator: source.text(&format!("{at}/hostnqn"))?,
                address: address.map(|text| {
                    text.rsplit_once(':').map_or(text.as_str(), |(address, _)| address).to_owned()
                }),
                ..TargetSession::default()
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_a_subsystem_with_two_ports() {
        let tree = Tree::parse(
            "/sys/kernel/config/nvmet/subsystems/nqn.2026-11.org.example:a/attr_allow_any_host: 0
/sys/kernel/config/nvmet/subsystems/nqn.2026-11.org.example:a/allowed_hosts/: nqn.2014-08.org.nvmexpress:uuid:1
/sys/kernel/config/nvmet/subsystems/nqn.2026-11.org.example:a/namespaces/1/device_path: /dev/nvme0n1
/sys/block/nvme0n1/size: 4096
/sys/kernel/config/nvmet/hosts/nqn.2014-08.org.nvmexpress:uuid:1/dhchap_key: ***
/sys/kernel/config/nvmet/ports/1/addr_trtype: rdma
/sys/kernel/config/nvmet/ports/1/addr_traddr: 10.0.0.1
/sys/kernel/config/nvmet/ports/1/addr_trsvcid: 4420
/sys/kernel/config/nvmet/ports/1/param_max_queue_size: 128
/sys/kernel/config/nvmet/ports/1/param_inline_data_size: 16384
/sys/kernel/config/nvmet/subsystems/nqn.2026-11.org.example:a/attr_qid_max: 64
/sys/kernel/config/nvmet/subsystems/nqn.2026-11.org.example:a/namespaces/1/device_nguid: 00000000-0000-0000-0000-000000000000
/sys/kernel/config/nvmet/ports/1/subsystems/: nqn.2026-11.org.example:a
/sys/kernel/debug/nvmet/nqn.2026-11.org.example:a/ctrl1/hostnqn: nqn.2014-08.org.nvmexpress:uuid:1
/sys/kernel/debug/nvmet/nqn.2026-11.org.example:a/ctrl1/host_traddr: 10.0.0.9:51230
/sys/kernel/debug/nvmet/nqn.2026-11.org.example:a/ctrl1/port: 1
/sys/kernel/config/nvmet/ports/2/addr_trtype: tcp
/sys/kernel/config/nvmet/ports/2/subsystems/: other
",
        )
        .unwrap();
        let targets = read(&tree);
        let target = &targets[0];
        assert_eq!(target.portals.len(), 1);
        assert_eq!(target.portals[0].transport.as_deref(), Some("rdma"));
        assert_eq!((target.queue_depth, target.auth.as_deref()), (Some(128), Some("dhchap")));
        assert_eq!(target.demo_mode, Some(false));
        assert_eq!((target.luns[0].size_bytes, target.luns[0].nguid), (Some(2 << 20), Some(false)));
        assert_eq!(target.params["inline_data_size"], Value::Int(16_384));
        assert_eq!(target.params["qid_max"], Value::Int(64));
        let session = &target.sessions[0];
        assert_eq!(session.address.as_deref(), Some("10.0.0.9"));
        assert_eq!(session.transport.as_deref(), Some("rdma"));
    }
}
