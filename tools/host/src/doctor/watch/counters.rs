//! The counters among the facts, and what becomes of them between two looks.

use std::collections::BTreeMap;

use crate::facts::{Drive, Facts, Load, Nic, Zfs};

type Counters = BTreeMap<String, i64>;

/// What a counter becomes that is `now` and was `before`; `None`: nobody knows.
type Change = fn(now: i64, before: Option<i64>) -> Option<i64>;

/// The facts of the second look, with the counters as they have moved since the first one. One that began anew, or that
/// the first look does not have, is not known.
pub(super) fn moved(before: &Facts, after: &Facts) -> Facts {
    let change: Change =
        |now, before| now.checked_sub(before?).filter(|difference| *difference >= 0);
    let mut facts = after.clone();
    traffic(&mut facts, before, change);
    damage(&mut facts, before, change);
    facts
}

/// The facts of the second look, with 0 for counters of traffic that have not moved. Those of damage stay: a drive that has
/// lost data is not healthy because nobody has read it for a minute.
pub(super) fn standing_as_zero(before: &Facts, after: &Facts) -> Facts {
    let change: Change = |now, before| Some(if before == Some(now) { 0 } else { now });
    let mut facts = after.clone();
    traffic(&mut facts, before, change);
    facts
}

/// The counters that are named.
fn some(now: &mut Counters, before: Option<&Counters>, named: fn(&str) -> bool, change: Change) {
    now.retain(|name, count| {
        if !named(name) {
            return true;
        }
        // Facts leave out what is 0, but not all of it.
        let was = before.and_then(|was| match was.get(name) {
            None if was.is_empty() => None,
            was => Some(was.copied().unwrap_or(0)),
        });
        match change(*count, was) {
            Some(changed) => *count = changed,
            None => return false,
        }
        true
    });
}

fn all(now: &mut Counters, before: Option<&Counters>, change: Change) {
    some(now, before, |_| true, change);
}

fn one(now: &mut Option<i64>, before: Option<i64>, change: Change) {
    *now = now.and_then(|now| change(now, before));
}

/// What goes on: packets, errors on the way, waits.
fn traffic(now: &mut Facts, before: &Facts, change: Change) {
    for nic in &mut now.nics {
        interface(nic, before.nics.iter().find(|was| was.name == nic.name), change);
    }
    for port in &mut now.rdma {
        let same = |was: &&crate::facts::Rdma| (&was.device, was.port) == (&port.device, port.port);
        all(&mut port.counters, before.rdma.iter().find(same).map(|was| &was.counters), change);
    }
    for drive in &mut now.drives {
        let was = before.drives.iter().find(|was| was.name == drive.name);
        requests(drive, was, change);
    }
    for phy in &mut now.sas_phys {
        let was = before.sas_phys.iter().find(|was| was.name == phy.name);
        all(&mut phy.errors, was.map(|was| &was.errors), change);
    }
    for map in &mut now.initiators.multipath.maps {
        let maps = &before.initiators.multipath.maps;
        let was = maps.iter().find(|was| was.device == map.device && was.name == map.name);
        one(&mut map.path_failures, was.and_then(|was| was.path_failures), change);
    }
    kernel(&mut now.load, &before.load, change);
    let (sensors, were) = (&mut now.sensors, &before.sensors);
    one(&mut sensors.core_throttles, were.core_throttles, change);
    one(&mut sensors.package_throttles, were.package_throttles, change);
    for service in &mut now.services {
        let was = before.services.iter().find(|was| was.name == service.name);
        all(&mut service.cpu, was.map(|was| &was.cpu), change);
        let events = was.map(|was| &was.memory_events);
        some(&mut service.memory_events, events, |name| !killed(name), change);
    }
    if let Some(zfs) = &mut now.zfs {
        caches(zfs, before.zfs.as_ref(), change);
    }
    connections(now, before, change);
}

fn interface(nic: &mut Nic, was: Option<&Nic>, change: Change) {
    all(&mut nic.counters, was.map(|was| &was.counters), change);
    if let Some(pcie) = &mut nic.pcie {
        let was = was.and_then(|was| was.pcie.as_ref()).map(|was| &was.errors);
        links_errors(&mut pcie.errors, was, change);
    }
    if let Some(fec) = &mut nic.fec {
        let was = was.and_then(|was| was.fec.as_ref());
        one(&mut fec.corrected, was.and_then(|was| was.corrected), change);
        one(&mut fec.uncorrectable, was.and_then(|was| was.uncorrectable), change);
    }
    for member in nic.bond.iter_mut().flat_map(|bond| &mut bond.members) {
        let members = was.and_then(|was| was.bond.as_ref()).map(|bond| &bond.members);
        let was = members.and_then(|all| all.iter().find(|was| was.name == member.name));
        one(&mut member.failures, was.and_then(|was| was.failures), change);
    }
    for (index, qdisc) in nic.qdiscs.iter_mut().enumerate() {
        let was = was.and_then(|was| was.qdiscs.get(index)).filter(|was| was.kind == qdisc.kind);
        one(&mut qdisc.sent, was.and_then(|was| was.sent), change);
        one(&mut qdisc.dropped, was.and_then(|was| was.dropped), change);
    }
}

/// All kinds of errors are there from the start, also where facts leave out a 0.
fn links_errors(now: &mut Counters, was: Option<&Counters>, change: Change) {
    let nothing = Counters::from([("correctable".to_owned(), 0)]);
    let was = was.map(|was| if was.is_empty() { &nothing } else { was });
    all(now, was, change);
}

fn requests(drive: &mut Drive, was: Option<&Drive>, change: Change) {
    one(&mut drive.errors, was.and_then(|was| was.errors), change);
    let minutes = was.and_then(|was| was.warning_temperature_minutes);
    one(&mut drive.warning_temperature_minutes, minutes, change);
    if let Some(pcie) = &mut drive.pcie {
        let was = was.and_then(|was| was.pcie.as_ref()).map(|was| &was.errors);
        links_errors(&mut pcie.errors, was, change);
    }
    if let Some(smart) = &mut drive.smart {
        let was = was.and_then(|was| was.smart.as_ref()).map(|was| &was.counters);
        some(&mut smart.counters, was, on_the_cable, change);
    }
    some(&mut drive.nvme_log, was.map(|was| &was.nvme_log), of_heat, change);
    // Averages stay those since start; what checks need of a span are the sums.
    let was = was.and_then(|was| was.io.as_ref());
    if let Some(io) = &mut drive.io {
        io.reads = change(io.reads, was.map(|was| was.reads)).unwrap_or(0);
        io.writes = change(io.writes, was.map(|was| was.writes)).unwrap_or(0);
        one(&mut io.read_ms, was.and_then(|was| was.read_ms), change);
        one(&mut io.write_ms, was.and_then(|was| was.write_ms), change);
        one(&mut io.flushes, was.and_then(|was| was.flushes), change);
        one(&mut io.flush_ms, was.and_then(|was| was.flush_ms), change);
    }
}

/// SMART's counters of trouble between a drive and its adapter.
fn on_the_cable(name: &str) -> bool {
    matches!(name, "crc_errors" | "command_timeouts" | "non_medium_errors" | "load_cycles")
}

/// The numbers of an NVMe drive about its temperature that count.
fn of_heat(name: &str) -> bool {
    let counts = ["thm_temp1_trans_count", "thm_temp2_trans_count", "thm_temp1_total_time"];
    counts.contains(&name)
        || matches!(name, "thm_temp2_total_time" | "warning_temp_time" | "critical_comp_time")
}

fn kernel(load: &mut Load, was: &Load, change: Change) {
    all(&mut load.net, Some(&was.net), change);
    all(&mut load.conntrack_counters, Some(&was.conntrack_counters), change);
    all(&mut load.cpu_ticks, Some(&was.cpu_ticks), change);
    all(&mut load.pressure_us, Some(&was.pressure_us), change);
    let counts = |name: &str| !killed(name) && !matches!(name, "nr_dirty" | "nr_writeback");
    some(&mut load.vm, Some(&was.vm), counts, change);
    one(&mut load.softnet.processed, was.softnet.processed, change);
    one(&mut load.softnet.dropped, was.softnet.dropped, change);
    one(&mut load.softnet.squeezed, was.softnet.squeezed, change);
}

/// Programs that the kernel has killed are gone, however long ago that was.
fn killed(name: &str) -> bool {
    matches!(name, "oom" | "oom_kill")
}

fn caches(zfs: &mut Zfs, was: Option<&Zfs>, change: Change) {
    let counts = |name: &str| {
        let parts = ["hits", "misses", "error", "bad", "throttle", "_direct_", "lowmem"];
        parts.iter().any(|part| name.contains(part)) && !name.ends_with("_size")
    };
    some(&mut zfs.arcstats, was.map(|was| &was.arcstats), counts, change);
    all(&mut zfs.transactions, was.map(|was| &was.transactions), change);
    if let Some(arc) = &mut zfs.arc {
        let was = was.and_then(|was| was.arc.as_ref());
        one(&mut arc.hits, was.and_then(|was| was.hits), change);
        one(&mut arc.misses, was.and_then(|was| was.misses), change);
        let throttled = was.and_then(|was| was.memory_throttle_count);
        one(&mut arc.memory_throttle_count, throttled, change);
    }
}

fn connections(now: &mut Facts, before: &Facts, change: Change) {
    for connection in &mut now.tcp_connections {
        let ends = |tcp: &crate::facts::TcpConnection| {
            let own = (tcp.local_address.clone(), tcp.local_port);
            (own, tcp.remote_address.clone(), tcp.remote_port)
        };
        let was = before.tcp_connections.iter().find(|was| ends(was) == ends(connection));
        one(&mut connection.retransmits, was.and_then(|was| was.retransmits), change);
        one(&mut connection.bytes_sent, was.and_then(|was| was.bytes_sent), change);
        // `ss` leaves it out while it is 0.
        let again = was.map(|was| was.bytes_retransmitted.unwrap_or(0));
        one(&mut connection.bytes_retransmitted, again, change);
    }
}

/// What has been lost, and lines of logs that say so.
fn damage(now: &mut Facts, before: &Facts, change: Change) {
    for drive in &mut now.drives {
        let was = before.drives.iter().find(|was| was.name == drive.name);
        one(&mut drive.media_errors, was.and_then(|was| was.media_errors), change);
        let log = was.map(|was| &was.nvme_log);
        let entries = |name: &str| matches!(name, "num_err_log_entries" | "unsafe_shutdowns");
        some(&mut drive.nvme_log, log, entries, change);
        if let Some(smart) = &mut drive.smart {
            let was = was.and_then(|was| was.smart.as_ref()).map(|was| &was.counters);
            let lost = |name: &str| {
                !on_the_cable(name) && !matches!(name, "life_left_percent" | "helium_level")
            };
            some(&mut smart.counters, was, lost, change);
        }
    }
    for array in &mut now.block.arrays {
        let was = before.block.arrays.iter().find(|was| was.name == array.name);
        for member in &mut array.members {
            let was = was.and_then(|was| was.members.iter().find(|m| m.device == member.device));
            one(&mut member.errors, was.and_then(|was| was.errors), change);
        }
    }
    if let Some(zfs) = &mut now.zfs {
        pools(zfs, before.zfs.as_ref(), change);
    }
    for module in &mut now.sensors.edac {
        let was = before.sensors.edac.iter().find(|was| was.name == module.name);
        let change = |now, before| change(now, before).unwrap_or(0);
        module.corrected = change(module.corrected, was.map(|was| was.corrected));
        module.uncorrected = change(module.uncorrected, was.map(|was| was.uncorrected));
    }
    for service in &mut now.services {
        let was = before.services.iter().find(|was| was.name == service.name);
        some(&mut service.memory_events, was.map(|was| &was.memory_events), killed, change);
    }
    some(&mut now.load.vm, Some(&before.load.vm), killed, change);
    let log = before.dmesg.readable.then_some(&before.dmesg.hits);
    now.dmesg.hits.retain_mut(|hit| {
        let count = log.map(|hits| {
            let same = hits.iter().find(|was| (&was.kind, &was.device) == (&hit.kind, &hit.device));
            same.map_or(0, |was| was.count)
        });
        hit.count = change(hit.count, count).unwrap_or(0);
        hit.count > 0
    });
}

fn pools(zfs: &mut Zfs, was: Option<&Zfs>, change: Change) {
    let nothing = Counters::from([(String::new(), 0)]);
    // No event at all is known to be none.
    let events = was.map(|was| if was.events.is_empty() { &nothing } else { &was.events });
    all(&mut zfs.events, events, change);
    for pool in &mut zfs.pools {
        let was = was.and_then(|was| was.pools.iter().find(|was| was.name == pool.name));
        one(&mut pool.errors, was.and_then(|was| was.errors), change);
        for disk in pool.vdevs.iter_mut().flat_map(|vdev| &mut vdev.disks) {
            let disks = was.into_iter().flat_map(|was| &was.vdevs).flat_map(|vdev| &vdev.disks);
            let was = disks.into_iter().find(|was| was.name == disk.name);
            one(&mut disk.read_errors, was.and_then(|was| was.read_errors), change);
            one(&mut disk.write_errors, was.and_then(|was| was.write_errors), change);
            one(&mut disk.checksum_errors, was.and_then(|was| was.checksum_errors), change);
            one(&mut disk.slow, was.and_then(|was| was.slow), change);
        }
    }
}
