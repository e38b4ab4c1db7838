//! `lunet stats`

use std::time::Duration;

use lunet_api::{
    Bucket, Operations, Portal, ShardLoad, SilentShard, StageShare, StageTime, Stats, VolumeStats,
    VolumeTime,
};

use super::layout::{Columns, harmless};
use super::verdict::stages;
use super::volumes::faults;
use lunet_config::units;

/// The width of the longest bar, in characters.
const BAR: u64 = 40;

/// Describes what the server has done.
pub fn stats(stats: &Stats) -> String {
    let shards = match stats.shards {
        1 => "1 shard".to_owned(),
        n => format!("{n} shards"),
    };
    let time = units::duration(Duration::from_secs(stats.uptime_seconds));
    let sessions = match stats.sessions {
        1 => "1 session".to_owned(),
        n => format!("{n} sessions"),
    };
    let mut out = format!("up for {time}, {shards} on {}, {sessions}\n", stats.driver);
    out.extend(buffers(&stats.loads));
    out.extend(zero_copy(&stats.loads));
    out.extend(passthrough(&stats.loads));
    if let Some(missing) = SilentShard::sentence(&stats.silent_shards) {
        out.push_str(&format!("incomplete: {missing}\n"));
    }
    if stats.helper_ended {
        out.push_str("the helper process has ended: no REST interface, no page, no new devices until lunet is restarted\n");
    }
    out.push_str("counts since the start; latency inside the server, without the network\n");
    for one in &stats.volumes {
        out.push('\n');
        volume(&mut out, one);
    }
    if !stats.portals.is_empty() {
        out.push_str("\nportals\n");
    }
    for one in &stats.portals {
        portal(&mut out, one);
    }
    out.push_str("\nprotocol\n");
    let mut columns = Columns::default();
    for (name, value) in stats.protocol.counts() {
        columns.row([name.to_owned(), units::count(value)]);
    }
    columns.write(&mut out);
    if let Some(nvme) = &stats.nvme {
        out.push_str("\nNVMe\n");
        let mut columns = Columns::default();
        for (name, value) in nvme.counts() {
            columns.row([name.to_owned(), units::count(value)]);
        }
        columns.write(&mut out);
    }
    out
}

/// How much buffer memory there is, and how much there may be. Nothing of a server that does not tell.
fn buffers(loads: &[ShardLoad]) -> Option<String> {
    let sum = |of: fn(&ShardLoad) -> u64| loads.iter().map(of).sum::<u64>();
    let resident = sum(|load| load.buffer_resident_bytes);
    let told = format!(
        "buffer memory {} of at most {}, {} in use\n",
        units::size(resident),
        units::size(sum(|load| load.buffer_bytes)),
        units::size(sum(|load| load.buffer_used_bytes))
    );
    (resident > 0).then_some(told)
}

/// How much went to clients without a copy. Nothing where none was tried.
fn zero_copy(loads: &[ShardLoad]) -> Option<String> {
    let sum = |of: fn(&ShardLoad) -> u64| loads.iter().map(of).sum::<u64>();
    let sent = sum(|load| load.zero_copy_bytes);
    let copied = sum(|load| load.zero_copy_copied_bytes);
    let told = format!(
        "sent without a copy {}; copied by the kernel after all {}\n",
        units::size(sent),
        units::size(copied)
    );
    (sent + copied > 0).then_some(told)
}

/// How much went past the block layer. Nothing where nothing was to.
fn passthrough(loads: &[ShardLoad]) -> Option<String> {
    let sum = |of: fn(&ShardLoad) -> u64| loads.iter().map(of).sum::<u64>();
    let commands = sum(|load| load.passthrough_commands);
    let told = format!(
        "NVMe commands past the block layer {commands}; failed, and done again by it {}\n",
        sum(|load| load.passthrough_failed)
    );
    (commands > 0).then_some(told)
}

/// Where the server listens: a line for each portal, and why some have no iSER.
pub fn portals(portals: &[Portal]) -> String {
    let mut columns = Columns::default();
    let over_nvme = portals.iter().any(is_for_nvme);
    let heading = ["portal", "group", "TCP", "iSER", "NVMe"];
    columns.row(heading.into_iter().take(if over_nvme { 5 } else { 4 }));
    for portal in portals {
        let iser = match portal.iser {
            true => devices(portal),
            false => "no".to_owned(),
        };
        let tcp = if portal.tcp { "yes" } else { "no" };
        let (address, tag) = (portal.address.clone(), portal.tag.to_string());
        let nvme = over_nvme.then(|| over_what(portal).unwrap_or_else(|| "no".to_owned()));
        columns.row([address, tag, tcp.to_owned(), iser].into_iter().chain(nvme));
    }
    let mut out = String::new();
    columns.write(&mut out);
    for portal in portals {
        if let Some(why) = &portal.why {
            let what = rdma_of(portal);
            out.push_str(&format!("  {} has no {what}: {}\n", portal.address, harmless(why)));
        }
    }
    out
}

/// The devices of a portal, and which of them are not used with all that they say they can.
fn devices(portal: &Portal) -> String {
    let with_note = |device: &String| match portal.without_invalidate.contains(device) {
        true => format!("{device} without Send with Invalidate"),
        false => device.clone(),
    };
    let all: Vec<String> = portal.devices.iter().map(with_note).collect();
    harmless(&all.join(", "))
}

/// True for a portal of NVMe.
fn is_for_nvme(portal: &Portal) -> bool {
    portal.nvme_tcp || portal.nvme_rdma || portal.nvme_rdma_wanted
}

/// Over what a portal serves NVMe.
fn over_what(portal: &Portal) -> Option<String> {
    let rdma = || format!("RDMA (device {})", devices(portal));
    match (portal.nvme_tcp, portal.nvme_rdma) {
        (true, true) => Some(format!("TCP and {}", rdma())),
        (true, false) => Some("TCP".to_owned()),
        (false, true) => Some(rdma()),
        (false, false) => None,
    }
}

/// What a portal would have on an RDMA device.
fn rdma_of(portal: &Portal) -> &'static str {
    if is_for_nvme(portal) { "NVMe over RDMA" } else { "iSER" }
}

fn portal(out: &mut String, portal: &Portal) {
    let iser = format!("iSER (device {})", devices(portal));
    let ways = match (portal.tcp, portal.iser) {
        (true, true) => format!("TCP and {iser}"),
        (false, true) => iser,
        (true, false) => "TCP".to_owned(),
        (false, false) => match over_what(portal) {
            Some(ways) => format!("NVMe over {ways}"),
            None => "nothing".to_owned(),
        },
    };
    out.push_str(&format!("  {} serves {ways}\n", portal.address));
    if let Some(why) = &portal.why {
        out.push_str(&format!("    no {}: {}\n", rdma_of(portal), harmless(why)));
    }
}

fn volume(out: &mut String, volume: &VolumeStats) {
    out.push_str(&format!(
        "volume {}, {}\n",
        harmless(&volume.name),
        units::size(volume.size_bytes)
    ));
    faults(out, &volume.name, &volume.faults);
    let mut columns = Columns::default();
    let kinds = [("read", &volume.read), ("write", &volume.write)];
    let mut head: Vec<String> = ["", "operations", "data", "mean"].map(String::from).to_vec();
    let widest = kinds.iter().max_by_key(|(_, kind)| kind.percentiles.len());
    for point in widest.iter().flat_map(|(_, kind)| &kind.percentiles) {
        head.push(match point.percentile {
            p if p >= 100.0 => "slowest".to_owned(),
            p => format!("{p} %"),
        });
    }
    columns.row(head);
    for (name, kind) in kinds {
        columns.row(operations(name, kind));
    }
    for (name, count) in
        [("flush", volume.flushes), ("unmap", volume.unmaps), ("other", volume.others)]
    {
        columns.row([name.to_owned(), units::count(count)]);
    }
    columns.row(["failed".to_owned(), units::count(volume.errors)]);
    // Without the network: it is in no other row.
    columns.row(["copied".to_owned(), String::new(), units::size(volume.copied_bytes)]);
    columns.write(out);
    if let Some(waited) = waited(&volume.time) {
        out.push_str(&format!("  operations waited for: {waited}\n"));
    }
    for (name, kind) in kinds.iter().filter(|(_, kind)| !kind.histogram.is_empty()) {
        out.push_str(&format!("  latency of {name}s\n"));
        bars(out, &kind.histogram);
    }
}

/// What the operations that were timed have waited for; `None` if that is not known.
fn waited(time: &VolumeTime) -> Option<String> {
    let waited = |one: &StageTime| time.waited_ns(one) as f64;
    let all: f64 = time.stages.iter().map(waited).sum();
    let share = |one: &StageTime| StageShare { stage: one.stage.clone(), share: waited(one) / all };
    let mut shares: Vec<StageShare> = time.stages.iter().map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    if all > 0.0 { stages(&shares) } else { None }
}

fn operations(name: &str, kind: &Operations) -> Vec<String> {
    let mut row = vec![name.to_owned(), units::count(kind.ops), units::size(kind.bytes)];
    if kind.ops > 0 {
        // Anything that is not a time (JSON has no NaN, but the answer may be wrong) shows as 0.
        let mean = Duration::try_from_secs_f64(kind.mean_us / 1e6).unwrap_or_default();
        row.push(units::duration(mean));
        row.extend(kind.percentiles.iter().map(|p| micros(p.us)));
    }
    row
}

/// The histogram: upper bound, count, a bar as long as its part of the fullest bucket.
fn bars(out: &mut String, histogram: &[Bucket]) {
    let most = histogram.iter().map(|bucket| bucket.count).max().unwrap_or(0).max(1);
    let bounds: Vec<String> = histogram.iter().map(|bucket| micros(bucket.up_to_us)).collect();
    let counts: Vec<String> = histogram.iter().map(|bucket| units::count(bucket.count)).collect();
    let width = |cells: &[String]| cells.iter().map(String::len).max().unwrap_or(0);
    let (wide, far) = (width(&bounds), width(&counts));
    for ((bucket, bound), count) in histogram.iter().zip(&bounds).zip(&counts) {
        let length = (u128::from(bucket.count) * u128::from(BAR)).div_ceil(u128::from(most));
        let bar = "#".repeat(length as usize);
        let line = format!("    up to {bound:>wide$}  {count:>far$}  {bar}");
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

fn micros(us: u64) -> String {
    units::duration(Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn told(answer: &Value) -> String {
        stats(&Stats::deserialize(answer).expect("an answer"))
    }

    #[test]
    fn volumes_have_a_table_and_bars() {
        let idle =
            json!({"ops": 0, "bytes": 0, "mean_us": 0.0, "percentiles": [], "histogram": []});
        let answer = json!({
            "uptime_seconds": 61, "driver": "io_uring", "shards": 2, "sessions": 1,
            "protocol": {"logins": 3, "digest_errors": 0},
            "portals": [
                {"address": "10.0.0.1:3260", "tcp": true, "iser": true, "devices": ["a", "b"], "why": null},
                {"address": "10.0.0.2:3260", "tcp": true, "iser": false, "devices": [], "why": "no device"},
            ],
            "volumes": [{
                "name": "demo", "size_bytes": 8u64 << 30, "flushes": 12, "unmaps": 0, "others": 7,
                "errors": 1, "copied_bytes": 3u64 << 20, "write": idle,
                "read": {
                    "ops": 12345, "bytes": 12345 * 4096, "mean_us": 85.5,
                    "percentiles": [{"percentile": 50.0, "us": 80}, {"percentile": 99.9, "us": 1500},
                                    {"percentile": 100.0, "us": 2000000}],
                    "histogram": [{"up_to_us": 127, "count": 12000}, {"up_to_us": 2097151, "count": 345}],
                },
                "time": {"stages": [{"stage": "storage", "ns": 900}, {"stage": "network-out", "ns": 50}], "sent_ns": 50},
            }],
        });
        let text = told(&answer);
        assert_eq!(
            text,
            "up for 1 min 1 s, 2 shards on io_uring, 1 session\n\
             counts since the start; latency inside the server, without the network\n\
             \n\
             volume demo, 8 GiB\n          \
                       operations      data     mean   50 %  99.9 %  slowest\n  \
               read        12 345  48.2 MiB  85.5 us  80 us  1.5 ms      2 s\n  \
               write            0       0 B\n  \
               flush           12\n  \
               unmap            0\n  \
               other            7\n  \
               failed           1\n  \
               copied                 3 MiB\n  \
               operations waited for: storage 90 %, network-out 10 %\n  \
               latency of reads\n    \
                 up to 127 us  12 000  ########################################\n    \
                 up to  2.1 s     345  ##\n\
             \n\
             portals\n  \
               10.0.0.1:3260 serves TCP and iSER (device a, b)\n  \
               10.0.0.2:3260 serves TCP\n    \
                 no iSER: no device\n\
             \n\
             protocol\n  \
               aborted              0\n  \
               busy                 0\n  \
               connections          0\n  \
               digest errors        0\n  \
               dropped              0\n  \
               login auth failures  0\n  \
               login failures       0\n  \
               login forbidden      0\n  \
               login not found      0\n  \
               login throttled      0\n  \
               logins               3\n  \
               pdus                 0\n  \
               rejects              0\n  \
               task set full        0\n  \
               turned away          0\n"
        );
    }

    #[test]
    fn portals_of_nvme_say_over_what_they_serve() {
        let portal = |address: &str, tcp: bool, rdma: bool, why: Option<&str>| {
            json!({"address": address, "tag": 1, "nvme_tcp": tcp, "nvme_rdma": rdma, "nvme_rdma_wanted": true,
                   "devices": if rdma { vec!["rxe0"] } else { vec![] }, "why": why})
        };
        let answer = json!([
            portal("192.0.2.1:4420", true, true, None),
            portal("192.0.2.2:4420", false, true, None),
            portal("192.0.2.3:4420", true, false, Some("no device")),
        ]);
        let text = portals(&Vec::deserialize(&answer).unwrap());
        let why = "  192.0.2.3:4420 has no NVMe over RDMA: no device\n";
        for words in ["  TCP and RDMA (device rxe0)\n", "  RDMA (device rxe0)\n", "  TCP\n", why] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = told(&json!({"portals": answer}));
        for words in [
            "  192.0.2.1:4420 serves NVMe over TCP and RDMA (device rxe0)\n",
            "  192.0.2.2:4420 serves NVMe over RDMA (device rxe0)\n",
            "  192.0.2.3:4420 serves NVMe over TCP\n    no NVMe over RDMA: no device\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn how_much_went_out_without_a_copy_is_told_where_it_was_tried() {
        let load = |sent: u64, copied: u64| json!({"zero_copy_bytes": sent, "zero_copy_copied_bytes": copied});
        let text = told(&json!({"loads": [load(1 << 30, 0), load(1 << 30, 1 << 20)]}));
        let words = "sent without a copy 2 GiB; copied by the kernel after all 1 MiB\n";
        assert!(text.contains(words), "{text}");
        let text = told(&json!({"loads": [load(0, 0)]}));
        assert!(!text.contains("without a copy"), "{text}");
    }

    #[test]
    fn what_went_past_the_block_layer_is_told_where_something_did() {
        let load = |commands: u64, failed: u64| json!({"passthrough_commands": commands, "passthrough_failed": failed});
        let text = told(&json!({"loads": [load(10, 0), load(5, 2)]}));
        let words = "NVMe commands past the block layer 15; failed, and done again by it 2\n";
        assert!(text.contains(words), "{text}");
        let text = told(&json!({"loads": [load(0, 0)]}));
        assert!(!text.contains("block layer"), "{text}");
    }

    #[test]
    fn devices_that_fail_to_take_keys_back_are_told() {
        let portal = |nvme: bool| {
            json!({"address": "192.0.2.1:3260", "tag": 1, "iser": !nvme, "nvme_rdma": nvme,
                   "devices": ["bnxt0", "mlx5_0"], "without_invalidate": ["bnxt0"]})
        };
        for nvme in [false, true] {
            let text = told(&json!({"portals": [portal(nvme)]}));
            let words = "(device bnxt0 without Send with Invalidate, mlx5_0)";
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_portal_is_a_line() {
        let portal = |address: &str, tag: u16, devices: &[&str], why: Option<&str>| {
            json!({"address": address, "tag": tag, "tcp": true, "iser": !devices.is_empty(),
                   "devices": devices, "why": why})
        };
        let answer = json!([
            portal("192.0.2.10:3260", 1, &["mlx5_0"], None),
            portal("[2001:db8::1]:3260", 12, &[], Some("no device")),
        ]);
        assert_eq!(
            portals(&Vec::deserialize(&answer).unwrap()),
            "  portal              group  TCP    iSER\n  \
               192.0.2.10:3260         1  yes  mlx5_0\n  \
               [2001:db8::1]:3260     12  yes      no\n  \
               [2001:db8::1]:3260 has no iSER: no device\n"
        );
    }

    #[test]
    fn nonsense_is_shown_and_never_a_panic() {
        let operations = json!({
            "ops": u64::MAX, "bytes": u64::MAX, "mean_us": -1.0,
            "percentiles": [{"percentile": 1e300, "us": u64::MAX}],
            "histogram": [{"up_to_us": u64::MAX, "count": u64::MAX}],
        });
        let answer = json!({
            "uptime_seconds": u64::MAX, "driver": "", "shards": 1, "sessions": 0, "protocol": {},
            "volumes": [{
                "name": "", "size_bytes": u64::MAX, "flushes": 0, "unmaps": 0, "others": 0,
                "errors": 0, "copied_bytes": u64::MAX, "read": operations, "write": operations,
            }],
        });
        assert!(told(&answer).contains("slowest"));
    }
}
