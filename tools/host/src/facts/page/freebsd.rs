//! A machine with FreeBSD or TrueNAS CORE, for people.

use super::{Page, bits, bytes, counted, on, rate, storage};
use crate::facts::{Facts, FreeBsd};

/// Everything but the system itself.
pub(super) fn all(page: &mut Page, facts: &Facts, bsd: &FreeBsd) {
    page.entry([facts.memory.total_bytes.map(|total| format!("{} memory", bytes(total)))]);
    page.entry([match (bsd.cpu_mhz, bsd.cpu_max_mhz) {
        (Some(now), Some(most)) => Some(format!("processors at {now} of {most} MHz")),
        _ => None,
    }]);
    for lacked in &bsd.lacked {
        page.entry([Some(format!("not captured: {lacked}"))]);
    }
    interfaces(page, bsd);
    drives(page, bsd);
    storage::zfs(page, bsd.zfs.as_ref());
    target(page, bsd);
    page.heading("The log");
    if !bsd.log_readable {
        page.entry([Some("cannot be read".to_owned())]);
    } else if bsd.log.is_empty() {
        page.entry([Some("nothing that matters here".to_owned())]);
    }
    for hit in &bsd.log {
        let times = if hit.count == 1 { String::new() } else { format!("{} x ", hit.count) };
        page.entry([Some(format!("{times}{}", hit.text))]);
    }
}

fn interfaces(page: &mut Page, bsd: &FreeBsd) {
    page.heading("Interfaces");
    for interface in &bsd.interfaces {
        page.entry([
            Some(interface.name.clone()),
            (!interface.up).then(|| "off".to_owned()),
            interface.status.clone(),
            interface.speed_mbit.map(bits),
            interface.mtu.map(|mtu| format!("MTU {mtu}")),
            interface.vlan.map(|vlan| format!("VLAN {vlan}")),
            interface.lagg_of.as_ref().map(|lagg| format!("port of {lagg}")),
        ]);
        page.more([Some(interface.addresses.join(", "))]);
        let offload = |name: &str| {
            let can = interface.capabilities.iter().any(|have| have == name);
            let has = interface.options.iter().any(|have| have == name);
            can.then(|| format!("{name} {}", on(has)))
        };
        page.more([offload("TSO4"), offload("LRO"), offload("TXCSUM")]);
        let errors = interface.receive_errors.filter(|errors| *errors > 0);
        page.more([errors.map(|errors| format!("{errors} packets with errors"))]);
    }
}

fn drives(page: &mut Page, bsd: &FreeBsd) {
    page.heading("Drives");
    for disk in &bsd.disks {
        page.entry([
            Some(disk.name.clone()),
            disk.model.clone(),
            disk.size_bytes.map(bytes),
            disk.rotational.map(|turns| if turns { "hard disk" } else { "flash" }.to_owned()),
            disk.tags.map(|tags| format!("{tags} commands")),
            disk.pool.as_ref().map(|pool| format!("in {pool}")),
        ]);
    }
    for nvme in &bsd.nvme {
        page.entry([
            Some(nvme.name.clone()),
            nvme.model.clone(),
            nvme.block_bytes.map(|block| format!("blocks of {block} bytes")),
            nvme.used_percent.map(|used| format!("{used} % of its life used")),
            nvme.temperature_celsius.map(|degrees| format!("{degrees} degrees Celsius")),
        ]);
    }
    for function in &bsd.pci {
        page.entry([
            Some(function.name.clone()),
            function.device.clone(),
            function
                .lanes
                .zip(function.max_lanes)
                .map(|(now, most)| format!("{now} of {most} lanes")),
            function.bytes_per_second.map(rate),
        ]);
    }
}

fn target(page: &mut Page, bsd: &FreeBsd) {
    page.heading("Targets");
    for target in bsd.ctl_conf.iter().flat_map(|conf| &conf.targets) {
        page.entry([
            Some(target.name.clone()),
            target.auth.as_ref().map(|auth| format!("login: {auth}")),
            Some(format!("at {}", target.addresses.join(", "))),
        ]);
        page.more([Some(target.paths.join(", "))]);
    }
    let sessions = i64::try_from(bsd.sessions.len()).unwrap_or(i64::MAX);
    page.entry([Some(counted(sessions, "session"))]);
    for session in &bsd.sessions {
        page.more([Some(format!("{} from {}", session.initiator, session.address))]);
    }
}
