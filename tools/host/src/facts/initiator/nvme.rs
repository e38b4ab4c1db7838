//! NVMe subsystems that are used over a network.

use super::{NvmeHost, NvmePath};
use crate::facts::parse::sorted;
use crate::source::Source;

/// Reads the subsystems that are reached over a network.
pub(super) fn read(source: &dyn Source) -> Vec<NvmeHost> {
    let mut hosts: Vec<NvmeHost> = Vec::new();
    for name in sorted(source.names("/sys/class/nvme")) {
        let at = format!("/sys/class/nvme/{name}");
        let text = |file: &str| source.text(&format!("{at}/{file}"));
        let int = |file: &str| source.int(&format!("{at}/{file}"));
        let transport = text("transport");
        if matches!(transport.as_deref(), None | Some("pcie" | "apple-nvme")) {
            continue;
        }
        let Some(nqn) = text("subsysnqn") else { continue };
        // traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.2
        let address = text("address").unwrap_or_default();
        let part = |key: &str| {
            address.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
        };
        let path = NvmePath {
            transport,
            address: part("traddr").map(str::to_owned),
            port: part("trsvcid").and_then(|port| port.parse().ok()),
            state: text("state"),
            queue_count: int("queue_count"),
            queue_size: int("sqsize").map(|last| last + 1),
            keep_alive_seconds: int("kato"),
            fast_io_fail_seconds: int("fast_io_fail_tmo"),
            // `off` = never.
            ctrl_loss_seconds: match text("ctrl_loss_tmo").as_deref() {
                Some("off") => Some(-1),
                Some(text) => text.parse().ok(),
                None => None,
            },
            reconnect_delay_seconds: int("reconnect_delay"),
            discovery: nqn.ends_with(".discovery"),
            ana_states: ana_states(source, &at),
            tls: Some(text("tls_key").is_some_and(|key| !key.is_empty())),
            name: name.clone(),
        };
        match hosts.iter_mut().find(|host| host.nqn == nqn) {
            Some(host) => host.paths.push(path),
            None => hosts.push(host(source, nqn, path)),
        }
    }
    hosts
}

/// A path of a namespace is `nvme1c2n1` below its controller.
fn ana_states(source: &dyn Source, controller: &str) -> Vec<String> {
    let names = sorted(source.names(controller));
    let state = |name: &String| source.text(&format!("{controller}/{name}/ana_state"));
    names.iter().filter(|name| name.starts_with("nvme")).filter_map(state).collect()
}

fn host(source: &dyn Source, nqn: String, path: NvmePath) -> NvmeHost {
    let class = "/sys/class/nvme-subsystem";
    let subsystem = source
        .names(class)
        .into_iter()
        .find(|name| source.text(&format!("{class}/{name}/subsysnqn")).as_ref() == Some(&nqn));
    let inside = subsystem.as_ref().map(|name| source.names(&format!("{class}/{name}")));
    let namespace = |name: &String| {
        name.starts_with("nvme") && name.contains('n') && {
            let rest = name.trim_start_matches("nvme");
            rest.contains('n') && !rest.contains('c')
        }
    };
    NvmeHost {
        io_policy: subsystem
            .as_ref()
            .and_then(|name| source.text(&format!("{class}/{name}/iopolicy"))),
        namespaces: sorted(inside.unwrap_or_default().into_iter().filter(namespace).collect()),
        paths: vec![path],
        nqn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_two_paths_to_one_subsystem() {
        let mut text = String::from(
            "/sys/class/nvme/nvme0/transport: pcie
/sys/class/nvme-subsystem/nvme-subsys1/subsysnqn: nqn.a
/sys/class/nvme-subsystem/nvme-subsys1/iopolicy: round-robin
/sys/class/nvme-subsystem/nvme-subsys1/: nvme1 nvme2 nvme1n1 nvme1c1n1 iopolicy
",
        );
        for (name, address) in [("nvme1", "10.0.0.1"), ("nvme2", "10.0.1.1")] {
            text += &format!(
                "/sys/class/nvme/{name}/transport: rdma
/sys/class/nvme/{name}/subsysnqn: nqn.a
/sys/class/nvme/{name}/address: traddr={address},trsvcid=4420
/sys/class/nvme/{name}/sqsize: 127
/sys/class/nvme/{name}/ctrl_loss_tmo: off
/sys/class/nvme/{name}/nvme1c{name}n1/ana_state: optimized
"
            );
        }
        let hosts = read(&Tree::parse(&text).unwrap());
        assert_eq!(hosts.len(), 1);
        assert_eq!(hosts[0].io_policy.as_deref(), Some("round-robin"));
        assert_eq!(hosts[0].namespaces, ["nvme1n1"]);
        let path = &hosts[0].paths[1];
        assert_eq!((path.address.as_deref(), path.port), (Some("10.0.1.1"), Some(4420)));
        assert_eq!((path.queue_size, path.ctrl_loss_seconds), (Some(128), Some(-1)));
        assert_eq!(
            (path.ana_states.as_slice(), path.tls),
            (&["optimized".to_owned()][..], Some(false))
        );
    }
}
