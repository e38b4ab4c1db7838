//! What is between a NIC and its switch, and in front of its queues: bonds, optics, error correction, hashing, queueing.

use serde::{Deserialize, Serialize};

use super::Nic;
use crate::facts::parse::{colon_lines, leading};
use crate::source::Source;

/// How a bond stands (Documentation/networking/bonding.rst).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bond {
    /// Milliseconds between looks at the links; 0 = it never looks.
    pub miimon_ms: Option<i64>,
    /// Whether it asks for neighbours instead (arp_interval).
    pub arp_interval_ms: Option<i64>,
    /// `fast`, `slow`.
    pub lacp_rate: Option<String>,
    /// Of LACP: address of the other end; zeros = nobody answers.
    pub partner_mac: Option<String>,
    /// Of LACP: links in the group that is in use.
    pub ports: Option<i64>,
    /// The one interface that carries everything, in such a mode.
    pub active: Option<String>,
    /// The one that ought to.
    pub primary: Option<String>,
    /// Its members, as they stand.
    pub members: Vec<BondMember>,
}

/// A member of a bond.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BondMember {
    /// `ens2f0`.
    pub name: String,
    /// `up`, `down`, `going back`.
    pub status: Option<String>,
    /// Speed in Mbit/s.
    pub speed_mbit: Option<i64>,
    /// How often its link was lost.
    pub failures: Option<i64>,
    /// Group of links that it belongs to.
    pub aggregator: Option<i64>,
    /// Whether LACP comes to no end at the own side, or at the other one: `none`, `monitoring`, `churned`.
    pub churn: Option<String>,
    /// See `churn`: the other side.
    pub partner_churn: Option<String>,
}

/// How received packets are spread over queues.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rss {
    /// Queues that there are.
    pub rings: Option<i64>,
    /// Queues that the table names.
    pub used: i64,
}

/// What queues packets in front of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qdisc {
    /// `mq`, `fq`, `fq_codel`, `pfifo_fast`, `tbf`, `htb`, `netem`...
    pub kind: String,
    /// Whether it is the one at the root.
    pub root: bool,
    /// Its line, with its settings.
    pub text: String,
    /// Packets that it has sent.
    pub sent: Option<i64>,
    /// Packets that it has dropped.
    pub dropped: Option<i64>,
    /// Packets that wait in it now.
    pub backlog: Option<i64>,
}

/// A transceiver (SFF-8472, SFF-8636, CMIS).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Optics {
    /// Who made it, and its part number.
    pub model: Option<String>,
    /// `25G Ethernet: 25GBASE-SR`...
    pub kind: Option<String>,
    /// Light that comes in, in hundredths of dBm; of several lanes the least.
    pub rx_cdbm: Option<i64>,
    /// Light that goes out, likewise.
    pub tx_cdbm: Option<i64>,
    /// Where its own warning for too little light coming in begins.
    pub rx_low_cdbm: Option<i64>,
    /// Temperature in degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// Its warnings and alarms that are on.
    pub alarms: Vec<String>,
}

/// Forward error correction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fec {
    /// What is set: `Auto Off RS BaseR`.
    pub configured: Option<String>,
    /// What is in use: `RS`, `BaseR`, `Off`.
    pub active: Option<String>,
    /// Blocks that were put right.
    pub corrected: Option<i64>,
    /// Blocks that were lost.
    pub uncorrectable: Option<i64>,
}

/// Fills in what is known of the link.
pub(super) fn read(source: &dyn Source, nic: &mut Nic) {
    if nic.kind.as_deref() == Some("bond") {
        nic.bond = Some(bond(source, &nic.name));
    }
    if nic.is_virtual {
        return;
    }
    let name = nic.name.clone();
    nic.rss = source.output("ethtool", &["-x", &name]).and_then(|text| rss(&text));
    nic.optics = source.output("ethtool", &["-m", &name]).map(|text| optics(&text));
    nic.fec = source.output("ethtool", &["-I", "--show-fec", &name]).map(|text| fec(&text));
    let queues = source.output("tc", &["-s", "qdisc", "show", "dev", &name]).unwrap_or_default();
    nic.qdiscs = qdiscs(&queues);
}

fn bond(source: &dyn Source, name: &str) -> Bond {
    let at = format!("/sys/class/net/{name}/bonding");
    let text = |file: &str| source.text(&format!("{at}/{file}"));
    let first = |file: &str| text(file).and_then(|text| text.split(' ').next().map(str::to_owned));
    let status = source.read(&format!("/proc/net/bonding/{name}")).unwrap_or_default();
    let mut parts = status.split("Slave Interface: ");
    let heading = parts.next().unwrap_or_default();
    let of = |wanted: &str| {
        colon_lines(heading).find(|(key, _)| *key == wanted).map(|(_, value)| value.to_owned())
    };
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
    Bond {
        miimon_ms: number(text("miimon")).or_else(|| number(of("MII Polling Interval (ms)"))),
        arp_interval_ms: number(text("arp_interval")),
        lacp_rate: first("lacp_rate").or_else(|| of("LACP rate")),
        partner_mac: text("ad_partner_mac").or_else(|| of("Partner Mac Address")),
        ports: number(text("ad_num_ports")).or_else(|| number(of("Number of ports"))),
        active: text("active_slave").or_else(|| of("Currently Active Slave")),
        primary: first("primary").filter(|name| name != "None"),
        members: parts.map(member).collect(),
    }
}

/// `ens2f0`, then lines such as `MII Status: up`.
fn member(text: &str) -> BondMember {
    let of = |wanted: &str| {
        colon_lines(text).find(|(key, _)| *key == wanted).map(|(_, value)| value.to_owned())
    };
    let first = |text: Option<String>| leading(&text?);
    BondMember {
        name: text.lines().next().unwrap_or_default().trim().to_owned(),
        status: of("MII Status"),
        speed_mbit: first(of("Speed")),
        failures: first(of("Link Failure Count")),
        aggregator: first(of("Aggregator ID")),
        churn: of("Actor Churn State"),
        partner_churn: of("Partner Churn State"),
    }
}

/// `    8:      0     1     2     3`
fn rss(text: &str) -> Option<Rss> {
    let rings = text.lines().next()?.split("with ").nth(1)?.split(' ').next()?.parse().ok();
    let mut used: Vec<&str> = text
        .lines()
        .skip(1)
        .take_while(|line| !line.contains("RSS"))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(_, entries)| entries.split_whitespace())
        .collect();
    used.sort_unstable();
    used.dedup();
    (!used.is_empty()).then(|| Rss { rings, used: i64::try_from(used.len()).unwrap_or(i64::MAX) })
}

/// `0.0346 mW / -14.61 dBm` in hundredths.
fn cdbm(value: &str) -> Option<i64> {
    let number: f64 = value.split_once("mW / ")?.1.split(' ').next()?.parse().ok()?;
    // Between -40 and 10.
    number.is_finite().then(|| (number * 100.0).round() as i64)
}

fn optics(text: &str) -> Optics {
    let of =
        |wanted: &str| colon_lines(text).find(|(key, _)| *key == wanted).map(|(_, value)| value);
    let least = |starts: &[&str]| {
        let lanes = colon_lines(text).filter(|(key, _)| {
            starts.iter().any(|start| key.starts_with(start)) && !key.contains("threshold")
        });
        lanes.filter_map(|(_, value)| cdbm(value)).min()
    };
    let model = [of("Vendor name"), of("Vendor PN")].into_iter().flatten().collect::<Vec<_>>();
    let on = colon_lines(text).filter(|(key, value)| {
        *value == "On"
            && (key.ends_with("alarm")
                || key.ends_with("warning")
                || key.contains(" alarm (")
                || key.contains(" warning ("))
    });
    Optics {
        model: (!model.is_empty()).then(|| model.join(" ")),
        kind: of("Transceiver type").map(str::to_owned),
        rx_cdbm: least(&[
            "Receiver signal average optical power",
            "Rcvr signal avg optical power",
            "Receiver signal OMA",
        ]),
        tx_cdbm: least(&["Laser output power", "Transmit avg optical power"]),
        rx_low_cdbm: of("Laser rx power low warning threshold")
            .or_else(|| of("Laser rx power low alarm threshold"))
            .and_then(cdbm),
        temperature_celsius: of("Module temperature")
            .and_then(|value| value.split('.').next()?.parse().ok()),
        alarms: on.map(|(key, _)| key.to_owned()).collect(),
    }
}

fn fec(text: &str) -> Fec {
    let of = |wanted: &str| {
        colon_lines(text)
            .find(|(key, _)| key.starts_with(wanted))
            .map(|(_, value)| value.to_owned())
    };
    let number = |text: Option<String>| leading(&text?);
    Fec {
        configured: of("Configured FEC").or_else(|| of("Supported/Configured FEC")),
        active: of("Active FEC"),
        corrected: number(of("corrected_blocks")),
        uncorrectable: number(of("uncorrectable_blocks")),
    }
}

/// `qdisc fq 8001: root refcnt 2 limit 10000p ...`, ` Sent 1 bytes 2 pkt (dropped 3, overlimits 0 requeues 0)`,
/// ` backlog 0b 4p requeues 0`.
fn qdiscs(text: &str) -> Vec<Qdisc> {
    let mut all: Vec<Qdisc> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("qdisc ") {
            all.push(Qdisc {
                kind: rest.split(' ').next().unwrap_or_default().to_owned(),
                root: rest.contains(" root"),
                text: rest.trim().to_owned(),
                ..Qdisc::default()
            });
            continue;
        }
        let Some(last) = all.last_mut() else { continue };
        let before = |word: &str| -> Option<i64> {
            line.split_once(word)?.0.trim_end().rsplit(' ').next()?.parse().ok()
        };
        let after = |word: &str| -> Option<i64> {
            let rest = line.split_once(word)?.1.trim_start();
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        if line.trim_start().starts_with("Sent ") {
            (last.sent, last.dropped) = (before(" pkt"), after("(dropped"));
        } else if line.trim_start().starts_with("backlog ") {
            last.backlog =
                line.split_whitespace().nth(2).and_then(|w| w.strip_suffix('p')?.parse().ok());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_a_bond_that_nobody_answers() {
        let tree = Tree::parse(
            "/proc/net/bonding/bond0:
| Bonding Mode: IEEE 802.3ad Dynamic link aggregation
| MII Polling Interval (ms): 100
|
| LACP rate: slow
| \tPartner Mac Address: 00:00:00:00:00:00
|
| Slave Interface: ens2f0
| MII Status: up
| Speed: 10000 Mbps
| Link Failure Count: 3
| Aggregator ID: 1
| Actor Churn State: churned
| Partner Churn State: churned
|
| Slave Interface: ens2f1
| MII Status: down
",
        )
        .unwrap();
        let bond = bond(&tree, "bond0");
        assert_eq!((bond.miimon_ms, bond.lacp_rate.as_deref()), (Some(100), Some("slow")));
        assert_eq!(bond.partner_mac.as_deref(), Some("00:00:00:00:00:00"));
        let member = &bond.members[0];
        assert_eq!(
            (member.speed_mbit, member.failures, member.aggregator),
            (Some(10_000), Some(3), Some(1))
        );
        assert_eq!(bond.members[1].status.as_deref(), Some("down"));
    }

    #[test]
    fn reads_tables_light_and_queues() {
        let table = "RX flow hash indirection table for eth0 with 16 RX ring(s):\n    0:      0     1     0     1\nRSS hash key:\n6d:5a\n";
        assert_eq!(rss(table), Some(Rss { rings: Some(16), used: 2 }));
        let light = "\tVendor name : FS\n\tVendor PN : X\n\tReceiver signal average optical power : 0.0346 mW / -14.61 dBm\n\tLaser rx power low alarm : On\n\tLaser rx power low warning threshold : 0.0933 mW / -10.30 dBm\n\tModule temperature : 41.20 degrees C\n";
        let light = optics(light);
        assert_eq!((light.rx_cdbm, light.rx_low_cdbm), (Some(-1461), Some(-1030)));
        assert_eq!((light.alarms.len(), light.temperature_celsius), (1, Some(41)));
        let queues = qdiscs(
            "qdisc fq 8001: root refcnt 2 limit 100p\n Sent 9 bytes 2 pkt (dropped 3, overlimits 0 requeues 0)\n backlog 0b 4p requeues 0\n",
        );
        assert_eq!(
            (queues[0].sent, queues[0].dropped, queues[0].backlog),
            (Some(2), Some(3), Some(4))
        );
        let fec = fec(
            "FEC parameters\nActive FEC encoding: BASER\nStatistics:\n  corrected_blocks: 81\n  uncorrectable_blocks: 8\n",
        );
        assert_eq!((fec.active.as_deref(), fec.uncorrectable), (Some("BASER"), Some(8)));
    }
}
