//! What was seen of a target, for a terminal.

use std::fmt::Write;

use super::{Latency, LunProbe, Probe};
use crate::expr::iec;
use crate::wrap;

/// Keys, window, round trips and LUNs.
pub fn page(probe: &Probe) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} ({})", probe.url, probe.address);
    for target in &probe.targets {
        wrap(&mut out, "  offers ", &format!("{} at {}", target.name, target.addresses.join(" ")));
    }
    let Some(target) = &probe.target else {
        out.push_str("  offers no target to this initiator\n");
        return out;
    };
    let _ = writeln!(out, "\n{target}");
    let _ = writeln!(out, "  authentication  {}", if probe.chap { "CHAP" } else { "none" });
    if let Some(session) = &probe.session {
        let _ = writeln!(out, "  commands        {} at once", session.window);
    }
    let pairs: Vec<String> =
        probe.keys.iter().map(|answered| format!("{}={}", answered.key, answered.value)).collect();
    wrap(&mut out, "  keys            ", &pairs.join(" "));
    let all =
        [("ping", &probe.ping), ("test unit ready", &probe.ready), ("read 4 KiB", &probe.read)];
    latencies(&mut out, &all);
    for lun in &probe.luns {
        out.push('\n');
        unit(&mut out, lun);
    }
    out.push('\n');
    out
}

/// Round trips.
pub(super) fn latencies(out: &mut String, all: &[(&str, &Option<Latency>)]) {
    for (what, latency) in all {
        let Some(latency) = latency else { continue };
        let _ = writeln!(
            out,
            "  {what:<15} median {:.0} us, {:.0} to {:.0}, nine of ten below {:.0} ({} measured)",
            latency.median_us, latency.min_us, latency.max_us, latency.p90_us, latency.samples
        );
    }
}

fn unit(out: &mut String, lun: &LunProbe) {
    let _ = writeln!(out, "LUN {}  {} {} {}", lun.lun, lun.vendor, lun.product, lun.revision);
    let size = |bytes: Option<i64>| match bytes {
        Some(bytes) if bytes > 0 => iec(bytes as f64),
        _ => "not said".to_owned(),
    };
    let yes = |what: Option<bool>| match what {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not said",
    };
    if lun.device_type != Some(0) {
        let _ = writeln!(out, "  no disk (device type {})", lun.device_type.unwrap_or(31));
        return;
    }
    let _ = writeln!(
        out,
        "  size {}, blocks of {}, physical ones of {}",
        size(lun.size_bytes),
        size(lun.block_bytes),
        size(lun.physical_block_bytes)
    );
    let _ = writeln!(
        out,
        "  largest transfer {}, best {}; thin: {}; UNMAP: {}, up to {} at once, in units of {}",
        size(lun.max_transfer_bytes),
        size(lun.optimal_transfer_bytes),
        yes(lun.thin),
        yes(lun.unmap),
        size(lun.max_unmap_bytes),
        size(lun.unmap_granularity_bytes)
    );
    let turns = match lun.rotation_rate {
        Some(1) => "no".to_owned(),
        Some(rate) if rate > 1 => format!("{rate} a minute"),
        _ => "not said".to_owned(),
    };
    let _ = writeln!(
        out,
        "  write cache: {}, flush: {}, read-only: {}, rotates: {turns}",
        yes(lun.write_cache),
        yes(lun.flush),
        yes(lun.read_only)
    );
}
