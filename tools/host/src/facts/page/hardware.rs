//! Processors, memory, NICs and drives.

use super::{Page, bits, bytes, counted, numbers, of, on, rate};
use crate::facts::{Drive, Facts, Nic, Pcie, Rdma};

pub(super) fn processors(page: &mut Page, facts: &Facts) {
    let cpu = &facts.cpu;
    page.heading("Processors and memory");
    let sockets = cpu.sockets.filter(|&sockets| sockets > 1).map(|n| format!("{n} x "));
    let model = cpu.model.as_ref();
    page.entry([
        model.map(|model| format!("{}{model}", sockets.unwrap_or_default())),
        cpu.cores.map(|cores| counted(cores, "core")),
        cpu.threads.map(|threads| counted(threads, "thread")),
        cpu.max_mhz
            .map(|mhz| format!("up to {mhz} MHz"))
            .or(cpu.now_mhz.map(|mhz| format!("at {mhz} MHz"))),
    ]);
    let idle = cpu
        .cstates
        .iter()
        .filter(|state| state.disabled != Some(true))
        .max_by_key(|state| state.latency_us);
    page.more([
        cpu.governor.as_ref().map(|governor| format!("governor {governor}")),
        cpu.frequency_driver.clone(),
        cpu.energy_preference.as_ref().map(|word| format!("energy preference {word}")),
        idle.and_then(|state| {
            Some(format!("idle down to {} ({} us to wake up)", state.name, state.latency_us?))
        }),
    ]);
}

pub(super) fn memory(page: &mut Page, facts: &Facts) {
    let memory = &facts.memory;
    let kind = memory
        .dimms
        .first()
        .and_then(|dimm| Some(format!("{} at {} MT/s", dimm.kind.as_ref()?, dimm.speed_mts?)));
    page.entry([
        memory.total_bytes.map(|total| format!("{} memory", bytes(total))),
        memory.available_bytes.map(|free| format!("{} available", bytes(free))),
        memory.dimm_slots.map(|slots| format!("{} of {slots} slots used", memory.dimms.len())),
        kind,
        memory.bandwidth_max_bytes_per_second.map(|most| format!("at most {}", rate(most))),
        memory.ecc.map(|ecc| if ecc { "ECC" } else { "no ECC" }.to_owned()),
        memory.swap_total_bytes.map(|swap| {
            if swap == 0 { "no swap".to_owned() } else { format!("{} swap", bytes(swap)) }
        }),
    ]);
    if facts.numa.len() > 1 {
        for node in &facts.numa {
            page.entry([
                Some(format!("NUMA node {}", node.id)),
                node.cpu_list.as_ref().map(|list| format!("CPUs {list}")),
                node.memory_bytes.map(bytes),
            ]);
        }
    }
}

pub(super) fn interfaces(page: &mut Page, nics: &[Nic]) {
    if nics.is_empty() {
        return;
    }
    page.heading("Network interfaces");
    for nic in nics {
        page.entry([
            Some(nic.name.clone()),
            nic.kind.clone(),
            nic.operstate.clone(),
            nic.speed_mbit.map(bits),
            nic.mtu.map(|mtu| format!("MTU {mtu}")),
            Some(nic.addresses.join(" ")),
            (nic.storage == Some(true)).then(|| "carries storage".to_owned()),
            nic.master.as_ref().map(|master| format!("part of {master}")),
            nic.parent.as_ref().map(|parent| format!("on {parent}")),
            nic.bond_mode.as_ref().map(|mode| format!("{mode} of {}", nic.slaves.join(" "))),
        ]);
        page.more([
            nic.driver.as_ref().map(|driver| format!("driver {driver}")),
            nic.firmware.as_ref().map(|firmware| format!("firmware {firmware}")),
            nic.pcie.as_ref().and_then(pcie),
            nic.numa_node.map(|node| format!("NUMA node {node}")),
            nic.rdma.as_ref().map(|rdma| format!("RDMA device {rdma}")),
        ]);
        page.more([
            of(nic.queues, nic.queues_max).map(|queues| format!("queues {queues}")),
            of(nic.rx_ring, nic.rx_ring_max).map(|ring| format!("receive ring {ring}")),
            of(nic.tx_ring, nic.tx_ring_max).map(|ring| format!("transmit ring {ring}")),
            nic.irqs.as_ref().and_then(|irqs| {
                Some(format!(
                    "{} on {}",
                    counted(irqs.count, "interrupt"),
                    counted(irqs.cpus?, "CPU")
                ))
            }),
        ]);
        flow(page, nic);
    }
}

fn flow(page: &mut Page, nic: &Nic) {
    let list = |list: &[i64]| match list.is_empty() {
        true => "no priority".to_owned(),
        false => format!("priority {}", numbers(list)),
    };
    let lost: Vec<String> = nic
        .counters
        .iter()
        .filter(|(name, count)| **count > 0 && !name.ends_with("_packets"))
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    page.more([
        nic.pause_rx
            .zip(nic.pause_tx)
            .map(|(rx, tx)| format!("pause frames: receive {}, send {}", on(rx), on(tx))),
        nic.pfc.as_ref().map(|pfc| {
            let trust = pfc.trust.as_ref().map(|trust| format!(" by {trust}")).unwrap_or_default();
            format!("PFC on {}{trust}", list(&pfc.priorities))
        }),
        nic.ecn.as_ref().map(|ecn| format!("RoCE ECN on {}", list(&ecn.react))),
        (!lost.is_empty()).then(|| format!("counters: {}", lost.join(" "))),
    ]);
}

/// `PCIe 3.0 x8 (could be 4.0 x16), 7.9 GB/s`
fn pcie(link: &Pcie) -> Option<String> {
    let (generation, width) = (link.generation?, link.width?);
    let could = match (link.gen_max, link.width_max) {
        (Some(gen_max), Some(width_max)) if (gen_max, width_max) != (generation, width) => {
            format!(" (could be {gen_max}.0 x{width_max})")
        }
        _ => String::new(),
    };
    let carries = link.bytes_per_second.map(|most| format!(", {}", rate(most))).unwrap_or_default();
    Some(format!("PCIe {generation}.0 x{width}{could}{carries}"))
}

pub(super) fn rdma(page: &mut Page, ports: &[Rdma]) {
    if ports.is_empty() {
        return;
    }
    page.heading("RDMA devices");
    for port in ports {
        page.entry([
            Some(format!("{} port {}", port.device, port.port)),
            port.link_layer.clone(),
            port.state.clone(),
            port.rate_gbit.map(|rate| format!("{rate} Gbit/s")),
            of(port.mtu, port.mtu_max).map(|mtu| format!("MTU {mtu}")),
            port.netdev.as_ref().map(|netdev| format!("on {netdev}")),
            port.soft.filter(|soft| *soft).map(|_| "in software".to_owned()),
        ]);
        for gid in &port.gids {
            page.more([
                Some(format!("GID {}", gid.index)),
                gid.address.clone(),
                gid.kind.clone(),
                gid.netdev.clone(),
            ]);
        }
    }
}

pub(super) fn drives(page: &mut Page, drives: &[Drive]) {
    if drives.is_empty() {
        return;
    }
    page.heading("Drives");
    // Drives that say the same of themselves are told together.
    let mut groups: Vec<(Vec<String>, Page)> = Vec::new();
    for drive in drives {
        let mut about = Page::default();
        describe(&mut about, drive);
        match groups.iter_mut().find(|(_, known)| known.text == about.text) {
            Some((names, _)) => names.push(drive.name.clone()),
            None => groups.push((vec![drive.name.clone()], about)),
        }
    }
    for (names, about) in groups {
        page.entry([Some(names.join(" "))]);
        page.text.push_str(&about.text);
    }
}

fn describe(page: &mut Page, drive: &Drive) {
    page.more([
        drive.model.clone(),
        drive.firmware.as_ref().map(|firmware| format!("firmware {firmware}")),
        drive.size_bytes.map(bytes),
        drive.transport.clone(),
        drive.pcie.as_ref().and_then(pcie),
        drive.numa_node.map(|node| format!("NUMA node {node}")),
        drive.zfs_pool.as_ref().map(|pool| format!("in pool {pool}")),
        drive.zfs_vdev.clone(),
    ]);
    let formats: Vec<String> = drive
        .lba_formats
        .iter()
        .map(|format| {
            let now = if format.in_use { " (in use)" } else { "" };
            format!("{}{now}", format.data_bytes)
        })
        .collect();
    page.more([
        drive.lba_bytes.map(|bytes| format!("blocks of {bytes} B")),
        (!formats.is_empty()).then(|| format!("formats {}", formats.join(" "))),
        drive.scheduler.as_ref().map(|scheduler| format!("scheduler {scheduler}")),
        drive.read_ahead_kib.map(|kib| format!("read-ahead {kib} KiB")),
        drive.queues.map(|queues| counted(queues, "queue")),
        drive.nr_requests.map(|requests| format!("{requests} requests each")),
        drive.max_sectors_kib.map(|kib| format!("requests up to {kib} KiB")),
        drive.write_cache.clone(),
    ]);
    page.more([
        (!drive.power_states.is_empty())
            .then(|| counted(i64::try_from(drive.power_states.len()).unwrap_or(0), "power state")),
        drive.apst_enabled.map(|sleeps| {
            if sleeps { "goes to sleep by itself" } else { "does not go to sleep" }.to_owned()
        }),
        drive.link_power_policy.as_ref().map(|policy| format!("link power policy {policy}")),
        drive.critical_warning.filter(|&bits| bits != 0).map(|bits| format!("warning {bits}")),
    ]);
}
