//! What was seen of a subsystem, for a terminal.

use std::fmt::Write;

use super::super::page::latencies;
use super::{ControllerProbe, NamespaceProbe, NvmeProbe};
use crate::expr::iec;
use crate::wrap;

/// Discovery, controller, round trips and namespaces.
pub fn page(probe: &NvmeProbe) -> String {
    let mut out = String::new();
    match probe.address.as_str() {
        "" => _ = writeln!(out, "{}", probe.url),
        address => _ = writeln!(out, "{} ({address})", probe.url),
    }
    for offer in &probe.offers {
        let what = match (offer.usable, offer.over_rdma, offer.tls) {
            (true, _, true) => ", with TLS only".to_owned(),
            (true, _, false) => String::new(),
            (false, true, _) => match &offer.rdma_device {
                Some(device) => format!(" over RDMA, which {device} of this machine could take"),
                None => " over RDMA".to_owned(),
            },
            (false, false, _) => " (no subsystem for I/O over this transport)".to_owned(),
        };
        wrap(&mut out, "  offers ", &format!("{} at {}{what}", offer.nqn, offer.address));
    }
    let Some(subsystem) = &probe.subsystem else {
        let _ = writeln!(out, "  offers no subsystem to the host {}", probe.host);
        return out;
    };
    let _ = writeln!(out, "\n{subsystem}");
    let proof = if probe.authenticated { "DH-HMAC-CHAP" } else { "none" };
    let tls = if probe.tls { ", TLS" } else { "" };
    let _ = writeln!(out, "  authentication  {proof}{tls}");
    if let Some(it) = &probe.controller {
        controller(&mut out, it);
    }
    latencies(&mut out, &[("ping", &probe.ping), ("read 4 KiB", &probe.read)]);
    for one in &probe.namespaces {
        out.push('\n');
        namespace(&mut out, one);
    }
    out.push('\n');
    out
}

fn size(bytes: Option<i64>) -> String {
    bytes.map_or_else(|| "not said".to_owned(), |bytes| iec(bytes as f64))
}

fn controller(out: &mut String, it: &ControllerProbe) {
    let _ = writeln!(
        out,
        "  controller      {} {}, serial number {}, NVMe {}",
        it.model, it.firmware, it.serial, it.version
    );
    let _ = writeln!(out, "  queues          {} of {} commands each", it.queues, it.queue_entries);
    // Over RDMA there are no such PDUs.
    let pdu = match it.max_h2c_bytes {
        0 => String::new(),
        bytes => format!(", {} for a PDU of data (MAXH2CDATA)", iec(bytes as f64)),
    };
    let limits = format!(
        "{} for a command (MDTS), {} with a write's command (IOCCSZ){pdu}",
        it.max_transfer_bytes.map_or_else(|| "not stated".to_owned(), |bytes| iec(bytes as f64)),
        iec(it.capsule_bytes as f64),
    );
    wrap(out, "  limits          ", &limits);
    let traffic = if it.keep_alive_by_traffic { ", any command counts" } else { "" };
    let _ = writeln!(out, "  keep alive      in steps of {} ms{traffic}", it.keep_alive_ms);
    let all = [
        (it.ana, "ANA"),
        (it.reservations, "reservations"),
        (it.compare, "compare"),
        (it.compare_and_write, "compare and write"),
        (it.deallocate, "deallocate"),
        (it.write_zeroes, "write zeroes"),
        (it.verify, "verify"),
        (it.copy, "copy"),
        (it.write_cache, "a volatile write cache"),
    ];
    let has: Vec<&str> = all.iter().filter(|(has, _)| *has).map(|(_, what)| *what).collect();
    wrap(out, "  has             ", &has.join(", "));
}

fn namespace(out: &mut String, it: &NamespaceProbe) {
    let path = it
        .path
        .as_deref()
        .map_or_else(String::new, |path| format!(", path {path} (ANA group {})", it.ana_group));
    let _ = writeln!(
        out,
        "namespace {}  size {}, blocks of {}{path}",
        it.nsid,
        size(it.size_bytes),
        size(it.block_bytes)
    );
    if let Some(status) = &it.status {
        wrap(out, "  reads   ", status);
    }
    let names = [("NGUID", &it.nguid), ("UUID", &it.uuid), ("EUI-64", &it.eui64)];
    let names = names.map(|(kind, name)| format!("{kind} {}", name.as_deref().unwrap_or("none")));
    wrap(out, "  ", &names.join(", "));
    let yes = |what: bool| if what { "yes" } else { "no" };
    let _ = writeln!(
        out,
        "  shared: {}, reservations: {}, thin: {}, write-protected: {}",
        yes(it.shared),
        yes(it.reservations),
        yes(it.thin),
        yes(it.write_protected)
    );
}
