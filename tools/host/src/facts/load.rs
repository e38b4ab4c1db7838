//! What the kernel has counted since start: processor time, memory, TCP, and how packets were received.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse::{colon_lines, leading};
use crate::source::Source;

/// Counters since start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// How the processors' time was spent, in percent of all: `user`, `nice`, `system`, `idle`, `iowait`, `irq`, `softirq`, `steal`.
    pub cpu_percent: BTreeMap<String, i64>,
    /// The same in ticks of the kernel's clock (1/100 s), summed over all processors.
    pub cpu_ticks: BTreeMap<String, i64>,
    /// The processor that spends most of its time on received packets and other soft interrupts.
    pub softirq_cpu: Option<i64>,
    /// The share of its time, in percent.
    pub softirq_cpu_percent: Option<i64>,
    /// Share of all received packets (NET_RX) of the processor with most of them, in percent.
    pub receive_cpu_percent: Option<i64>,
    /// That processor.
    pub receive_cpu: Option<i64>,
    /// Average number of tasks that run or wait for a drive: over 15 minutes, times 100.
    pub average_15_percent: Option<i64>,
    /// Tasks that wait for a drive now.
    pub blocked_tasks: Option<i64>,
    /// How received packets came in.
    pub softnet: Softnet,
    /// /proc/net/netstat and /proc/net/snmp: `TcpExt.TCPSACKReorder`, `Tcp.RetransSegs`, `Udp.RcvbufErrors`...
    pub net: BTreeMap<String, i64>,
    /// Pages of memory that TCP uses (/proc/net/sockstat).
    pub tcp_memory_pages: Option<i64>,
    /// Entries of the connection tracker, and at most.
    pub conntrack: Option<i64>,
    /// See `conntrack`.
    pub conntrack_max: Option<i64>,
    /// What the connection tracker has counted (/proc/net/stat/nf_conntrack): `drop`, `early_drop`, `insert_failed`, `invalid`.
    pub conntrack_counters: BTreeMap<String, i64>,
    /// /proc/vmstat: `oom_kill`, `allocstall_normal`, `compact_stall`, `pswpout`, `zone_reclaim_failed`...
    pub vm: BTreeMap<String, i64>,
    /// Parts of /proc/meminfo in bytes: `Dirty`, `Writeback`, `Slab`, `SUnreclaim`, `CommitLimit`, `Committed_AS`, `HardwareCorrupted`, `HugePages_Total`...
    pub memory: BTreeMap<String, i64>,
    /// Share of the last 5 minutes in which some task waited, in percent: `cpu`, `io`, `memory` (Documentation/accounting/psi.rst).
    pub pressure_percent: BTreeMap<String, i64>,
    /// How long some task has waited since start, in microseconds: `cpu`, `io`, `memory`.
    pub pressure_us: BTreeMap<String, i64>,
    /// Seconds since start.
    pub uptime_seconds: Option<i64>,
    /// Why the kernel calls itself tainted; 0 = it does not.
    pub tainted: Option<i64>,
    /// Open files, and at most.
    pub files_open: Option<i64>,
    /// See `files_open`.
    pub files_max: Option<i64>,
}

/// /proc/net/softnet_stat, summed over all processors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Softnet {
    /// Packets.
    pub processed: Option<i64>,
    /// Packets that found the backlog full.
    pub dropped: Option<i64>,
    /// Rounds that ended with packets left.
    pub squeezed: Option<i64>,
}

/// What of /proc/net/netstat and snmp is of use.
const NET: &[&str] = &[
    "IpExt.InCsumErrors",
    "Ip.InDiscards",
    "Ip.FragFails",
    "Ip.ReasmFails",
    "Ip.InHdrErrors",
    "Ip.OutNoRoutes",
    "Tcp.RetransSegs",
    "Tcp.OutSegs",
    "Tcp.InErrs",
    "Tcp.InCsumErrors",
    "Tcp.AttemptFails",
    "Tcp.EstabResets",
    "TcpExt.ListenOverflows",
    "TcpExt.ListenDrops",
    "TcpExt.TCPBacklogDrop",
    "TcpExt.PruneCalled",
    "TcpExt.RcvPruned",
    "TcpExt.OfoPruned",
    "TcpExt.TCPRcvCollapsed",
    "TcpExt.TCPRcvQDrop",
    "TcpExt.TCPZeroWindowDrop",
    "TcpExt.TCPSACKReorder",
    "TcpExt.TCPTSReorder",
    "TcpExt.TCPLostRetransmit",
    "TcpExt.TCPTimeouts",
    "TcpExt.TCPSpuriousRTOs",
    "TcpExt.TCPMemoryPressures",
    "TcpExt.TCPAbortOnMemory",
    "TcpExt.TCPAbortOnTimeout",
    "TcpExt.TCPToZeroWindowAdv",
    "TcpExt.TCPWantZeroWindowAdv",
    "TcpExt.TCPMTUPFail",
    "TcpExt.TCPSynRetrans",
    "TcpExt.TCPOFOQueue",
    "TcpExt.TCPDSACKRecv",
    "TcpExt.TCPReqQFullDrop",
    "TcpExt.TCPReqQFullDoCookies",
    "TcpExt.SyncookiesSent",
    "TcpExt.TCPChallengeACK",
    "TcpExt.PAWSEstab",
    "TcpExt.TCPMD5Failure",
    "TcpExt.IPReversePathFilter",
    "Udp.RcvbufErrors",
];
/// What of /proc/vmstat is of use.
const VM: &[&str] = &[
    "allocstall_dma32",
    "allocstall_movable",
    "allocstall_normal",
    "compact_fail",
    "compact_stall",
    "nr_dirty",
    "nr_writeback",
    "oom_kill",
    "pgscan_direct",
    "pgsteal_direct",
    "pswpin",
    "pswpout",
    "thp_fault_fallback",
    "balloon_deflate",
    "balloon_inflate",
    "zone_reclaim_failed",
    "zone_reclaim_success",
    "numa_miss",
    "numa_hit",
    "numa_foreign",
    "drop_pagecache",
    "workingset_refault_file",
    "kswapd_high_wmark_hit_quickly",
    "pgmajfault",
];
/// What of /proc/meminfo is of use; sizes are in KiB there.
const MEMORY: &[&str] = &[
    "MemFree",
    "Dirty",
    "Writeback",
    "Slab",
    "SUnreclaim",
    "Percpu",
    "CommitLimit",
    "Committed_AS",
    "HardwareCorrupted",
    "AnonHugePages",
    "Shmem",
    "Unevictable",
    "HugePages_Total",
    "HugePages_Free",
    "Hugepagesize",
    "VmallocUsed",
];

/// Reads all of it.
pub(super) fn read(source: &dyn Source) -> Load {
    let text = |path: &str| source.read(path).unwrap_or_default();
    let mut load = Load {
        softnet: softnet(&text("/proc/net/softnet_stat")),
        vm: pairs(&text("/proc/vmstat"), VM),
        memory: memory(&text("/proc/meminfo")),
        uptime_seconds: source
            .text("/proc/uptime")
            .and_then(|text| text.split('.').next()?.parse().ok()),
        tainted: source.int("/proc/sys/kernel/tainted"),
        conntrack: source.int("/proc/sys/net/netfilter/nf_conntrack_count"),
        conntrack_max: source.int("/proc/sys/net/netfilter/nf_conntrack_max"),
        conntrack_counters: conntrack(&text("/proc/net/stat/nf_conntrack")),
        ..Load::default()
    };
    for file in ["/proc/net/netstat", "/proc/net/snmp"] {
        two_lines(&text(file), &mut load.net);
    }
    load.tcp_memory_pages = text("/proc/net/sockstat")
        .lines()
        .find_map(|line| leading(line.strip_prefix("TCP:")?.split_once(" mem ")?.1));
    stat(&text("/proc/stat"), &mut load);
    (load.receive_cpu, load.receive_cpu_percent) = receive(&text("/proc/softirqs"));
    load.average_15_percent = text("/proc/loadavg").split_whitespace().nth(2).and_then(|text| {
        let (whole, part) = text.split_once('.')?;
        Some(whole.parse::<i64>().ok()? * 100 + part.get(..2)?.parse::<i64>().ok()?)
    });
    for kind in ["cpu", "io", "memory"] {
        // some avg10=0.00 avg60=0.12 avg300=0.05 total=812345
        let text = text(&format!("/proc/pressure/{kind}"));
        let some = text.lines().find(|line| line.starts_with("some"));
        let share = some
            .and_then(|line| line.split_once("avg300=")?.1.split('.').next()?.parse::<i64>().ok());
        if let Some(share) = share {
            load.pressure_percent.insert(kind.to_owned(), share);
        }
        if let Some(total) = some.and_then(|line| leading(line.split_once("total=")?.1)) {
            load.pressure_us.insert(kind.to_owned(), total);
        }
    }
    let files = text("/proc/sys/fs/file-nr");
    let mut files = files.split_whitespace().map(|number| number.parse().ok());
    (load.files_open, load.files_max) = (files.next().flatten(), files.nth(1).flatten());
    load
}

/// `name value` lines.
fn pairs(text: &str, names: &[&str]) -> BTreeMap<String, i64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.contains(name))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

/// `Dirty:   1024 kB` in bytes; counts of huge pages have no unit.
fn memory(text: &str) -> BTreeMap<String, i64> {
    colon_lines(text)
        .filter(|(name, _)| MEMORY.contains(name))
        .filter_map(|(name, value)| {
            let number: i64 = leading(value)?;
            let unit = if value.ends_with("kB") { 1024 } else { 1 };
            Some((name.to_owned(), number * unit))
        })
        .collect()
}

/// A line of names and a line of numbers, both with `TcpExt: ` in front.
fn two_lines(text: &str, into: &mut BTreeMap<String, i64>) {
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks(2) {
        let [names, numbers] = pair else { return };
        let mut words = names.split_whitespace();
        let Some(group) = words.next().map(|word| word.trim_end_matches(':')) else { continue };
        for (name, number) in words.zip(numbers.split_whitespace().skip(1)) {
            let name = format!("{group}.{name}");
            if let (true, Ok(number)) = (NET.contains(&name.as_str()), number.parse()) {
                into.insert(name, number);
            }
        }
    }
}

/// `cpu  user nice system idle iowait irq softirq steal guest guest_nice`, and the same of each processor.
fn stat(text: &str, load: &mut Load) {
    let names = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first == "procs_blocked" {
            load.blocked_tasks = words.next().and_then(|word| word.parse().ok());
        }
        let Some(number) = first.strip_prefix("cpu") else { continue };
        let times: Vec<i64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let all: i64 = times.iter().sum();
        if times.len() < 8 || all == 0 {
            continue;
        }
        let share = |index: usize| times[index] * 100 / all;
        if number.is_empty() {
            load.cpu_percent =
                names.iter().enumerate().map(|(i, name)| ((*name).to_owned(), share(i))).collect();
            load.cpu_ticks =
                names.iter().zip(&times).map(|(name, time)| ((*name).to_owned(), *time)).collect();
        } else if load.softirq_cpu_percent.is_none_or(|most| share(6) > most) {
            load.softirq_cpu_percent = Some(share(6));
            load.softirq_cpu = number.parse().ok();
        }
    }
}

/// The column of NET_RX with most.
fn receive(text: &str) -> (Option<i64>, Option<i64>) {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("NET_RX:"));
    let counts: Vec<i64> =
        line.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let all: i64 = counts.iter().sum();
    let most = (0..).zip(&counts).max_by_key(|(_, count)| **count);
    match most {
        Some((cpu, count)) if all > 0 => (Some(cpu), Some(count * 100 / all)),
        _ => (None, None),
    }
}

/// A line of names, and a line of hexadecimal numbers for each processor.
fn conntrack(text: &str) -> BTreeMap<String, i64> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let told = ["drop", "early_drop", "insert_failed", "invalid"];
    let mut all = BTreeMap::new();
    for line in lines {
        for (name, number) in names.iter().zip(line.split_whitespace()) {
            if let (true, Ok(number)) = (told.contains(name), i64::from_str_radix(number, 16)) {
                *all.entry((*name).to_owned()).or_insert(0) += number;
            }
        }
    }
    all
}

/// Hexadecimal columns: packets, drops, squeezes.
fn softnet(text: &str) -> Softnet {
    let column = |index: usize| {
        let numbers = text
            .lines()
            .filter_map(|line| i64::from_str_radix(line.split_whitespace().nth(index)?, 16).ok());
        numbers.reduce(|a, b| a + b)
    };
    Softnet { processed: column(0), dropped: column(1), squeezed: column(2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_counters() {
        let tree = Tree::parse(
            "/proc/stat:
| cpu  10 0 20 30 0 0 10 30 0 0
| cpu0 1 0 1 8 0 0 90 0 0 0
| cpu1 1 0 1 97 0 0 1 0 0 0
| procs_blocked 3
/proc/softirqs:
|                     CPU0       CPU1
|       NET_RX:        900        100
/proc/net/softnet_stat:
| 00000010 00000001 00000002 0 0
| 0000000f 00000000 00000003 0 0
/proc/net/netstat:
| TcpExt: SyncookiesSent TCPSACKReorder
| TcpExt: 0 8123456
/proc/net/sockstat:
| sockets: used 812
| TCP: inuse 41 orphan 0 tw 12 alloc 60 mem 16391
/proc/net/stat/nf_conntrack:
| entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error
| 00000812  00000000 00000000 00000000 00000003 00000000 00000000 00000000 00000000 00000000 0000000a 00000001 00000000
| 00000812  00000000 00000000 00000000 00000001 00000000 00000000 00000000 00000000 00000000 00000006 00000000 00000000
/proc/pressure/io:
| some avg10=41.00 avg60=40.12 avg300=38.05 total=812345
/proc/loadavg: 0.10 0.20 12.34 1/812 4711
",
        )
        .unwrap();
        let load = read(&tree);
        assert_eq!((load.cpu_percent["steal"], load.softirq_cpu), (30, Some(0)));
        assert_eq!((load.softirq_cpu_percent, load.receive_cpu_percent), (Some(90), Some(90)));
        assert_eq!((load.softnet.processed, load.softnet.squeezed), (Some(31), Some(5)));
        assert_eq!(
            (load.net["TcpExt.TCPSACKReorder"], load.tcp_memory_pages),
            (8_123_456, Some(16_391))
        );
        assert_eq!((load.pressure_percent["io"], load.average_15_percent), (38, Some(1234)));
        assert_eq!(load.blocked_tasks, Some(3));
        assert_eq!((load.cpu_ticks["steal"], load.pressure_us["io"]), (30, 812_345));
        assert_eq!((load.conntrack_counters["drop"], load.conntrack_counters["invalid"]), (16, 4));
    }
}
