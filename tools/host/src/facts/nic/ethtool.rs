//! What ethtool, dcb and mlnx_qos say.

use super::{Coalesce, Ecn, Nic, Pfc};
use crate::facts::parse::colon_lines;
use crate::source::Source;

/// The counters of drivers that speak of loss and pauses.
const COUNTERS: &[&str] = &[
    "rx_out_of_buffer",
    "rx_buff_alloc_err",
    "rx_discards_phy",
    "rx_prio0_discards",
    "rx_prio3_discards",
    "rx_prio0_pause",
    "rx_prio3_pause",
    "tx_prio0_pause",
    "tx_prio3_pause",
    "rx_pause_ctrl_phy",
    "tx_pause_ctrl_phy",
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "rx_no_dma_resources",
    "rx_no_buffer_count",
    "rx_flow_control_xon",
    "rx_flow_control_xoff",
    "tx_flow_control_xon",
    "tx_flow_control_xoff",
    "link_down_events_phy",
    "rx_ecn_mark",
];

/// What is in the names of other counters of errors, losses and pauses, whatever the driver.
const TROUBLE: &[&str] = &[
    "alloc",
    "allowance_exceeded",
    "collision",
    "corrected",
    "crc",
    "discard",
    "drop",
    "err",
    "exhaust",
    "fault",
    "fragment",
    "csum",
    "checksum_bad",
    "runt",
    "lost",
    "overrun",
    "nodesc",
    "abort",
    "stall",
    "symbol",
    "hang",
    "length",
    "fcs",
    "fifo",
    "global_pause",
    "illegal",
    "jabber",
    "link_down",
    "missed",
    "mtu",
    "no_buf",
    "no_desc",
    "no_dma",
    "overflow",
    "oversize",
    "pause",
    "resource",
    "timeout",
    "trunc",
    "undersize",
    "xoff",
];

/// Whether a counter of the whole port (not of one queue) speaks of errors.
fn speaks_of_trouble(key: &str) -> bool {
    let good = [
        "csum_complete",
        "csum_unnecessary",
        "csum_none",
        "csum_good",
        "checksum_complete",
        "checksum_none",
    ];
    let queue = good.iter().any(|word| key.contains(word))
        || key.starts_with("queue_")
        || key.starts_with('[')
        || ["rx", "tx", "ch", "rx_queue_", "tx_queue_", "rx-", "tx-", "rxq", "txq"].iter().any(
            |start| {
                key.strip_prefix(start)
                    .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            },
        );
    !queue && TROUBLE.iter().any(|word| key.contains(word))
}

/// Asks for everything that sysfs does not have.
pub(super) fn read(source: &dyn Source, nic: &mut Nic) {
    let name = nic.name.clone();
    let ask = |option: &str| source.output("ethtool", &[option, &name]);
    if let Some(text) = ask("-i") {
        info(&text, nic);
    }
    if let Some(text) = source.output("ethtool", &[&name]) {
        nic.max_speed_mbit = fastest(&text);
        nic.autonegotiation = switch(&text, "Auto-negotiation");
    }
    if let Some(text) = ask("-g") {
        let [max, now] = sections(&text);
        (nic.rx_ring, nic.rx_ring_max) = (number(now, "RX"), number(max, "RX"));
        (nic.tx_ring, nic.tx_ring_max) = (number(now, "TX"), number(max, "TX"));
    }
    if let Some(text) = ask("-l") {
        let queues = |text| {
            let count = |key| number(text, key).filter(|&count| count > 0);
            count("Combined").or_else(|| count("RX"))
        };
        let [max, now] = sections(&text);
        (nic.queues, nic.queues_max) = (queues(now), queues(max));
    }
    if let Some(text) = ask("-a") {
        nic.pause_rx = switch(&text, "RX");
        nic.pause_tx = switch(&text, "TX");
    }
    if let Some(text) = ask("-k") {
        nic.offloads = colon_lines(&text)
            .filter_map(|(name, value)| Some((name.to_owned(), on(value)?)))
            .collect();
    }
    nic.coalesce = ask("-c").map(|text| coalesce(&text));
    if nic.is_virtual {
        return;
    }
    if let Some(text) = ask("-S") {
        for (key, value) in colon_lines(&text) {
            let Ok(value) = value.parse::<i64>() else { continue };
            let key = key.strip_prefix("port.").unwrap_or(key);
            let key = key.strip_suffix(".nic").unwrap_or(key);
            if COUNTERS.contains(&key) || value > 0 && speaks_of_trouble(key) {
                nic.counters.entry(key.to_owned()).or_insert(value);
            }
        }
    }
    nic.pfc = pfc(source, &name);
    nic.ecn = ecn(source, &name);
}

fn info(text: &str, nic: &mut Nic) {
    for (key, value) in colon_lines(text).filter(|(_, value)| !matches!(*value, "" | "N/A")) {
        match key {
            "driver" => nic.driver = Some(value.to_owned()),
            "firmware-version" => nic.firmware = Some(value.to_owned()),
            _ => {}
        }
    }
}

/// The fastest of the supported modes: `100000baseSR4/Full`.
fn fastest(text: &str) -> Option<i64> {
    let (_, modes) = text.split_once("Supported link modes:")?;
    let end = modes.find("Supported pause").unwrap_or(modes.len());
    modes[..end]
        .split_whitespace()
        .filter_map(|word| word.split_once("base")?.0.parse::<i64>().ok())
        .max()
}

/// What there could be, and what there is.
fn sections(text: &str) -> [&str; 2] {
    match text.split_once("Current hardware settings:") {
        Some((max, now)) => [max, now],
        None => ["", ""],
    }
}

fn number(text: &str, wanted: &str) -> Option<i64> {
    let (_, value) = colon_lines(text).find(|(key, _)| *key == wanted)?;
    value.parse().ok()
}

fn switch(text: &str, wanted: &str) -> Option<bool> {
    let (_, value) = colon_lines(text).find(|(key, _)| *key == wanted)?;
    on(value)
}

/// `on`, `off [fixed]`.
fn on(value: &str) -> Option<bool> {
    match value.split_whitespace().next()? {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// `Adaptive RX: on  TX: off`, then a number for each line.
fn coalesce(text: &str) -> Coalesce {
    let mut adaptive = (None, None);
    if let Some(line) = text.lines().find(|line| line.starts_with("Adaptive RX:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        adaptive = (words.get(2).and_then(|word| on(word)), words.get(4).and_then(|word| on(word)));
    }
    Coalesce {
        adaptive_rx: adaptive.0,
        adaptive_tx: adaptive.1,
        rx_usecs: number(text, "rx-usecs"),
        tx_usecs: number(text, "tx-usecs"),
    }
}

/// From iproute2's dcb, or Mellanox' own program.
fn pfc(source: &dyn Source, name: &str) -> Option<Pfc> {
    let mlnx = source.output("mlnx_qos", &["-i", name]);
    let trust = mlnx.as_deref().and_then(|text| {
        let (_, state) = colon_lines(text).find(|(key, _)| *key == "Priority trust state")?;
        Some(state.to_owned())
    });
    let dcb = source.output("dcb", &["pfc", "show", "dev", name]);
    let priorities = dcb
        .as_deref()
        .and_then(dcb_priorities)
        .or_else(|| mlnx.as_deref().and_then(mlnx_priorities))?;
    Some(Pfc { priorities, trust })
}

/// `prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off`
fn dcb_priorities(text: &str) -> Option<Vec<i64>> {
    let (_, rest) = text.split_once("prio-pfc")?;
    let words = rest.lines().next()?.split_whitespace();
    Some(words.filter_map(|word| word.strip_suffix(":on")?.parse().ok()).collect())
}

/// `enabled     0   0   0   1   0   0   0   0`, below `PFC configuration:`
fn mlnx_priorities(text: &str) -> Option<Vec<i64>> {
    let (_, rest) = text.split_once("PFC configuration:")?;
    let line = rest.lines().find_map(|line| line.trim().strip_prefix("enabled"))?;
    let on = line.split_whitespace().zip(0..).filter(|(word, _)| *word == "1");
    Some(on.map(|(_, priority)| priority).collect())
}

fn ecn(source: &dyn Source, name: &str) -> Option<Ecn> {
    let directory = format!("/sys/class/net/{name}/ecn");
    source.list(&directory)?;
    let on = |point: &str| {
        let enabled = |priority: &i64| {
            source.flag(&format!("{directory}/{point}/enable/{priority}")) == Some(true)
        };
        (0..8).filter(enabled).collect()
    };
    Some(Ecn { notify: on("roce_np"), react: on("roce_rp") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const CONNECTX5: &str = "\
$ ethtool -i enp65s0f0np0
| driver: mlx5_core
| version: 6.1.55-production+truenas
| firmware-version: 16.35.3006 (MT_0000000012)
| expansion-rom-version:
| bus-info: 0000:41:00.0
| supports-statistics: yes
$ ethtool enp65s0f0np0
| Settings for enp65s0f0np0:
| \tSupported ports: [ FIBRE ]
| \tSupported link modes:   1000baseKX/Full
| \t                        40000baseCR4/Full
| \t                        100000baseKR4/Full
| \t                        100000baseSR4/Full
| \tSupported pause frame use: Symmetric
| \tAdvertised link modes:  400000baseCR4/Full
| \tSpeed: 100000Mb/s
$ ethtool -g enp65s0f0np0
| Ring parameters for enp65s0f0np0:
| Pre-set maximums:
| RX:\t\t\t8192
| RX Mini:\t\tn/a
| RX Jumbo:\t\tn/a
| TX:\t\t\t8192
| Current hardware settings:
| RX:\t\t\t1024
| RX Mini:\t\tn/a
| RX Jumbo:\t\tn/a
| TX:\t\t\t512
| RX Buf Len:\t\tn/a
$ ethtool -l enp65s0f0np0
| Channel parameters for enp65s0f0np0:
| Pre-set maximums:
| RX:\t\tn/a
| TX:\t\tn/a
| Other:\t\tn/a
| Combined:\t63
| Current hardware settings:
| RX:\t\tn/a
| TX:\t\tn/a
| Other:\t\tn/a
| Combined:\t16
$ ethtool -a enp65s0f0np0
| Pause parameters for enp65s0f0np0:
| Autonegotiate:\toff
| RX:\t\ton
| TX:\t\toff
$ ethtool -k enp65s0f0np0
| Features for enp65s0f0np0:
| rx-checksumming: on
| tx-checksumming: on
| \ttx-checksum-ipv4: off [fixed]
| tcp-segmentation-offload: on
| large-receive-offload: off
$ ethtool -c enp65s0f0np0
| Coalesce parameters for enp65s0f0np0:
| Adaptive RX: on  TX: off
| stats-block-usecs:\tn/a
| rx-usecs:\t8
| rx-frames:\t128
| tx-usecs:\t16
$ ethtool -S enp65s0f0np0
| NIC statistics:
|      rx_packets: 123
|      rx_out_of_buffer: 4711
|      rx_prio3_pause: 12
$ dcb pfc show dev enp65s0f0np0
| pfc-cap 8 macsec-bypass off delay 0
| prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off
$ mlnx_qos -i enp65s0f0np0
| DCBX mode: OS controlled
| Priority trust state: dscp
| PFC configuration:
| \tpriority    0   1   2   3   4   5   6   7
| \tenabled     0   0   0   1   0   0   0   0
";

    #[test]
    fn reads_what_a_connectx5_says() {
        let tree = Tree::parse(CONNECTX5).unwrap();
        let mut nic = Nic { name: "enp65s0f0np0".to_owned(), ..Nic::default() };
        read(&tree, &mut nic);
        assert_eq!(nic.driver.as_deref(), Some("mlx5_core"));
        assert_eq!(nic.firmware.as_deref(), Some("16.35.3006 (MT_0000000012)"));
        assert_eq!(nic.max_speed_mbit, Some(100_000));
        assert_eq!((nic.rx_ring, nic.rx_ring_max), (Some(1024), Some(8192)));
        assert_eq!((nic.tx_ring, nic.tx_ring_max), (Some(512), Some(8192)));
        assert_eq!((nic.queues, nic.queues_max), (Some(16), Some(63)));
        assert_eq!((nic.pause_rx, nic.pause_tx), (Some(true), Some(false)));
        assert_eq!(nic.offloads.get("tcp-segmentation-offload"), Some(&true));
        assert_eq!(nic.offloads.get("tx-checksum-ipv4"), Some(&false));
        let coalesce = nic.coalesce.unwrap();
        assert_eq!((coalesce.adaptive_rx, coalesce.adaptive_tx), (Some(true), Some(false)));
        assert_eq!((coalesce.rx_usecs, coalesce.tx_usecs), (Some(8), Some(16)));
        assert_eq!(nic.counters.get("rx_out_of_buffer"), Some(&4711));
        let pfc = nic.pfc.unwrap();
        assert_eq!((pfc.priorities, pfc.trust.as_deref()), (vec![3], Some("dscp")));
    }

    #[test]
    fn reads_priorities_without_iproute2() {
        let tree = CONNECTX5.split_once("$ dcb").unwrap().1;
        let (_, mlnx) = tree.split_once("$ mlnx_qos").unwrap();
        let tree = Tree::parse(&format!("$ mlnx_qos{mlnx}")).unwrap();
        assert_eq!(pfc(&tree, "enp65s0f0np0").unwrap().priorities, vec![3]);
    }
}
