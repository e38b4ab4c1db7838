//! The server: sessions, protocols, shards, portals.

use std::collections::BTreeMap;

use lunet_api::{Part, PartKind, Portal, Session, ShardLoad, Stats, Transport};

use super::text::{Kind, Text};
use super::{MOST_INITIATORS, Snapshot};

const ISCSI: (&str, &str) = ("protocol", "iscsi");
const NVME: (&str, &str) = ("protocol", "nvme");

/// What runs, for how long, and what the doctor has found.
pub(crate) fn about(text: &mut Text, snapshot: &Snapshot<'_>) {
    let Snapshot { version, stats, findings, .. } = *snapshot;
    let labels = [("version", version), ("driver", stats.driver.as_str())];
    text.metric("lunet_build", Kind::Info, "Version, and driver of the event loop.")
        .count(&labels, 1);
    text.metric("lunet_uptime_seconds", Kind::Gauge, "Time since the start.")
        .count(&[], stats.uptime_seconds);
    if let Some(findings) = findings {
        let help = "Findings of the doctor's last run.";
        let mut metric = text.metric("lunet_doctor_findings", Kind::Gauge, help);
        for (severity, count) in findings {
            metric.count(&[("severity", severity)], *count);
        }
    }
}

/// Who is connected.
pub(crate) fn sessions(text: &mut Text, snapshot: &Snapshot<'_>) {
    let Snapshot { sessions, by_initiator, .. } = *snapshot;
    let mut metric = text.metric("lunet_sessions", Kind::Gauge, "Sessions and controllers.");
    for transport in Transport::KNOWN {
        let count = sessions.iter().filter(|one| one.transport == *transport).count();
        metric.count(&[("transport", transport.as_str())], count as u64);
    }
    if !by_initiator {
        return;
    }
    let all = initiators(sessions);
    let mut metric =
        text.metric("lunet_initiator_sessions", Kind::Gauge, "Sessions of an initiator.");
    for (initiator, (count, _)) in &all {
        metric.count(&[("initiator", initiator)], *count);
    }
    let help = "Commands of an initiator that are being carried out.";
    let mut metric = text.metric("lunet_initiator_operations_in_flight", Kind::Gauge, help);
    for (initiator, (_, work)) in &all {
        metric.count(&[("initiator", initiator)], *work);
    }
}

/// Sessions of each initiator, and its commands at work. The last ones, if there are many, have no name.
fn initiators(sessions: &[Session]) -> BTreeMap<&str, (u64, u64)> {
    let mut all: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for session in sessions {
        let known = all.contains_key(session.initiator.as_str());
        let name = if known || all.len() < MOST_INITIATORS { &session.initiator } else { "" };
        let (count, work) = all.entry(name).or_default();
        (*count, *work) = (*count + 1, *work + session.commands_in_flight);
    }
    all
}

/// What the protocols have counted.
pub(crate) fn protocols(text: &mut Text, stats: &Stats) {
    let (iscsi, nvme) = (&stats.protocol, stats.nvme.as_ref());
    let mut both = |name: &str, help: &str, of_iscsi: u64, of_nvme: Option<u64>| {
        let mut metric = text.metric(name, Kind::Counter, help);
        metric.count(&[ISCSI], of_iscsi);
        if let Some(count) = of_nvme {
            metric.count(&[NVME], count);
        }
    };
    let connections = nvme.map(|nvme| nvme.connections);
    both("lunet_connections", "Connections accepted.", iscsi.connections, connections);
    let turned_away = nvme.map(|nvme| nvme.turned_away);
    let help = "Connections turned away because a limit was reached.";
    both("lunet_connections_turned_away", help, iscsi.turned_away, turned_away);
    let dropped = nvme.map(|nvme| nvme.dropped + nvme.keep_alive_expired);
    let help = "Connections closed because of a fault of the initiator or the network.";
    both("lunet_connections_dropped", help, iscsi.dropped, dropped);
    let help = "Logins that came to full feature phase, and controllers connected to.";
    both("lunet_logins", help, iscsi.logins, nvme.map(|nvme| nvme.controllers));
    let help = "PDUs received.";
    both("lunet_received_pdus", help, iscsi.pdus, nvme.map(|nvme| nvme.pdus));
    let digests = nvme.map(|nvme| nvme.digest_errors);
    both("lunet_digest_errors", "Digests that did not match.", iscsi.digest_errors, digests);
    let help = "Commands answered BUSY, or to be tried again.";
    both("lunet_busy", help, iscsi.busy, nvme.map(|nvme| nvme.busy));
    let help = "Commands aborted by their initiator or the end of their session.";
    both("lunet_aborted_operations", help, iscsi.aborted, nvme.map(|nvme| nvme.aborted));
    let help = "Commands answered TASK SET FULL for want of buffer memory.";
    both("lunet_task_set_full", help, iscsi.task_set_full, None);
    both("lunet_rejected_pdus", "Reject PDUs sent.", iscsi.rejects, None);
    login_failures(text, stats);
}

fn login_failures(text: &mut Text, stats: &Stats) {
    let iscsi = &stats.protocol;
    let reasons = [
        ("authentication", iscsi.login_auth_failures),
        ("forbidden", iscsi.login_forbidden),
        ("not-found", iscsi.login_not_found),
        ("throttled", iscsi.login_throttled),
    ];
    let known: u64 = reasons.iter().map(|(_, count)| count).sum();
    let mut metric = text.metric("lunet_login_failures", Kind::Counter, "Logins refused.");
    for (reason, count) in reasons {
        metric.count(&[ISCSI, ("reason", reason)], count);
    }
    metric.count(&[ISCSI, ("reason", "other")], iscsi.login_failures.saturating_sub(known));
    if let Some(nvme) = &stats.nvme {
        metric.count(&[NVME, ("reason", "forbidden")], nvme.refused_hosts);
        let others = nvme.refused.saturating_sub(nvme.refused_hosts);
        metric.count(&[NVME, ("reason", "other")], others);
    }
}

/// What the shards have to do.
pub(crate) fn shards(text: &mut Text, loads: &[ShardLoad]) {
    let numbers: Vec<String> = loads.iter().map(|load| load.shard.to_string()).collect();
    let mut each = |name: &str, kind: Kind, help: &str, value: &dyn Fn(&ShardLoad) -> f64| {
        let mut metric = text.metric(name, kind, help);
        for (load, number) in loads.iter().zip(&numbers) {
            metric.value(&[("shard", number)], value(load));
        }
    };
    let (counter, gauge) = (Kind::Counter, Kind::Gauge);
    each("lunet_shard_cpu_seconds", counter, "Processor time of a shard's thread.", &|load| {
        load.cpu_us as f64 / 1e6
    });
    let help = "Processor time of a shard's thread in which it polled for work and found none.";
    each("lunet_shard_polled_seconds", counter, help, &|load| load.polled_us as f64 / 1e6);
    let help = "Time in which a shard's thread was ready and another one had the processor.";
    each("lunet_shard_ready_seconds", counter, help, &|load| load.ready_us as f64 / 1e6);
    each("lunet_shard_waits", counter, "How often a shard has waited for events.", &|load| {
        load.waits as f64
    });
    let help = "Operations that a shard has given to the kernel.";
    each("lunet_shard_operations", counter, help, &|load| load.operations as f64);
    let help = "Messages that a shard has read of other shards and threads, without questions for reports.";
    each("lunet_shard_messages", counter, help, &|load| load.messages as f64);
    let help = "Bytes that the kernel has sent for a shard without a copy.";
    each("lunet_shard_zero_copy_bytes", counter, help, &|load| load.zero_copy_bytes as f64);
    let help =
        "Bytes that the kernel was to send for a shard without a copy, and has copied after all.";
    each("lunet_shard_zero_copy_copied_bytes", counter, help, &|load| {
        load.zero_copy_copied_bytes as f64
    });
    let help =
        "Reads and writes of a shard that went to NVMe drives as commands, past the block layer.";
    each("lunet_shard_passthrough_commands", counter, help, &|load| {
        load.passthrough_commands as f64
    });
    let help = "Such commands that have failed and were done again by the block layer.";
    each("lunet_shard_passthrough_failed", counter, help, &|load| load.passthrough_failed as f64);
    each("lunet_shard_connections", gauge, "Connections of a shard.", &|load| {
        load.connections as f64
    });
    let help = "Commands of a shard that are being carried out.";
    each("lunet_shard_operations_in_flight", gauge, help, &|load| load.commands_in_flight as f64);
    each("lunet_shard_buffer_used_bytes", gauge, "Buffer memory in use.", &|load| {
        load.buffer_used_bytes as f64
    });
    let help = "Buffer memory that the system has given, as far as it was needed lately.";
    each("lunet_shard_buffer_resident_bytes", gauge, help, &|load| {
        load.buffer_resident_bytes as f64
    });
    let help = "Buffer memory that there may be.";
    each("lunet_shard_buffer_bytes", gauge, help, &|load| load.buffer_bytes as f64);
}

/// How portals are served, and why not over RDMA.
pub(crate) fn parts(text: &mut Text, parts: &[Part]) {
    let counted =
        || parts.iter().filter(|part| !part.counted.is_empty() && part.kind != PartKind::Pool);
    let ways = |part: &Part| {
        [
            ("read", part.read_bytes, part.reads_at_most),
            ("write", part.written_bytes, part.writes_at_most),
        ]
    };
    let help = "Bytes that a link, slot or drive has carried: read is towards the initiators.";
    let mut metric = text.metric("lunet_part_bytes", Kind::Counter, help);
    for part in counted() {
        for (way, bytes, _) in ways(part) {
            metric.count(&of_part(part, way), bytes);
        }
    }
    let help = "What it carries at most in a second.";
    let mut metric = text.metric("lunet_part_most_bytes_per_second", Kind::Gauge, help);
    for part in counted() {
        for (way, _, most) in ways(part) {
            if let Some(most) = most {
                metric.count(&of_part(part, way), most);
            }
        }
    }
}

fn of_part<'a>(part: &'a Part, way: &'a str) -> [(&'static str, &'a str); 3] {
    [("kind", part.kind.as_str()), ("part", &part.name), ("direction", way)]
}

pub(crate) fn portals(text: &mut Text, portals: &[Portal]) {
    let help = "Whether a portal serves a transport that it has, or should have.";
    let mut metric = text.metric("lunet_portal_up", Kind::Gauge, help);
    for portal in portals {
        let ways = [
            ("tcp", portal.tcp, portal.tcp),
            ("iser", portal.iser, portal.iser || portal.iser_wanted),
            ("nvme-tcp", portal.nvme_tcp, portal.nvme_tcp),
            ("nvme-rdma", portal.nvme_rdma, portal.nvme_rdma || portal.nvme_rdma_wanted),
        ];
        for (transport, up, _) in ways.into_iter().filter(|(.., wanted)| *wanted) {
            let labels = [("address", portal.address.as_str()), ("transport", transport)];
            metric.count(&labels, u64::from(up));
        }
    }
    let help = "1 for a portal that is not served over RDMA, with the reason.";
    let mut metric = text.metric("lunet_portal_without_rdma", Kind::Gauge, help);
    for portal in portals {
        let wanted = portal.iser_wanted || portal.nvme_rdma_wanted;
        if let Some(reason) = &portal.reason {
            let labels = [
                ("address", portal.address.as_str()),
                ("reason", reason.as_str()),
                ("wanted", if wanted { "true" } else { "false" }),
            ];
            metric.count(&labels, 1);
        }
    }
}
