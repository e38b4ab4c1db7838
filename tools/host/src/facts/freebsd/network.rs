//! Interfaces, their counters, buffers and TCP: ifconfig, netstat.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::source::Source;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// `ix0`, `lagg0`, `vlan10`.
    pub name: String,
    /// Whether it is switched on (`UP`).
    pub up: bool,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: Option<i64>,
    /// What the card does by itself now: `TSO4`, `LRO`, `RXCSUM`...
    pub options: Vec<String>,
    /// What it could do.
    pub capabilities: Vec<String>,
    /// Addresses with their prefix: `10.0.0.2/24`. Link-local ones are left out.
    pub addresses: Vec<String>,
    /// Speed now, in Mbit/s; of a lagg, of all ports that carry data.
    pub speed_mbit: Option<i64>,
    /// The fastest medium that it supports, in Mbit/s.
    pub max_mbit: Option<i64>,
    /// Whether both ends may send at once.
    pub full_duplex: Option<bool>,
    /// `active`, `no carrier`.
    pub status: Option<String>,
    /// Of an aggregate.
    pub lagg: Option<Lagg>,
    /// The aggregate that it is a port of.
    pub lagg_of: Option<String>,
    /// The interface that a VLAN is on.
    pub vlan_parent: Option<String>,
    /// Tag of the VLAN.
    pub vlan: Option<i64>,
    /// Members of a bridge.
    pub members: Vec<String>,
    /// Whether it is a bridge, or a member of one: such an interface must not merge received packets.
    pub bridged: bool,
    /// Whether it has an address, or carries one that has.
    pub used: bool,
    /// Whether an address of it, or on it, is a portal of the iSCSI target.
    pub storage: bool,
    /// Packets received.
    pub received: Option<i64>,
    /// Packets that were received damaged.
    pub receive_errors: Option<i64>,
    /// Packets that were received and thrown away for lack of room.
    pub receive_drops: Option<i64>,
    /// Packets sent.
    pub sent: Option<i64>,
    /// Packets that could not be sent.
    pub send_errors: Option<i64>,
    /// Packets with a wrong checksum of Ethernet, from the driver's own counters (`mac_stats`).
    pub crc_errors: Option<i64>,
}

/// What only aggregates have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lagg {
    /// `lacp`, `failover`, `loadbalance`...
    pub protocol: String,
    /// What chooses the port: `l2,l3,l4`.
    pub hash: Option<String>,
    /// How often ports came and went.
    pub flapping: Option<i64>,
    /// Its ports.
    pub ports: Vec<LaggPort>,
}

/// A port of an aggregate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaggPort {
    /// Name of the interface.
    pub name: String,
    /// `MASTER`, `ACTIVE`, `COLLECTING`, `DISTRIBUTING`.
    pub flags: Vec<String>,
}

/// Buffers of the network since start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mbufs {
    /// Clusters of 2 KiB that are in use or cached.
    pub clusters: Option<i64>,
    /// The most there may be (kern.ipc.nmbclusters).
    pub clusters_max: Option<i64>,
    /// Requests for buffers of any kind that were denied.
    pub denied: Option<i64>,
    /// Requests for buffers of 4, 9 and 16 KiB that were denied.
    pub jumbo_denied: Option<i64>,
}

/// Counters of TCP since start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpCounters {
    /// Packets with data that were sent.
    pub sent: Option<i64>,
    /// Packets with data that were sent again.
    pub retransmitted: Option<i64>,
    /// Connections that found the queue of a server full.
    pub listen_overflows: Option<i64>,
}

/// Reads all interfaces.
pub(super) fn interfaces(source: &dyn Source, all: &BTreeMap<&str, &str>) -> Vec<Interface> {
    let text = source.output("ifconfig", &["-vm"]).unwrap_or_default();
    let counters = source.output("netstat", &["-ibdnW"]).unwrap_or_default();
    let mut found = of_ifconfig(&text);
    for interface in &mut found {
        count(&counters, interface);
        interface.crc_errors = crc_errors(all, &interface.name);
    }
    connect(&mut found);
    found
}

/// Blocks that begin with `name: flags=8863<UP,...> metric 0 mtu 9000`; their lines begin with a tab.
fn of_ifconfig(text: &str) -> Vec<Interface> {
    let mut all: Vec<Interface> = Vec::new();
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            let Some((name, rest)) = line.split_once(": ") else { continue };
            let up = angled(rest).iter().any(|flag| flag == "UP");
            let mtu = rest.split_once(" mtu ").and_then(|(_, mtu)| leading(mtu));
            all.push(Interface { name: name.to_owned(), up, mtu, ..Interface::default() });
        } else if let Some(interface) = all.last_mut() {
            detail(interface, line.trim());
        }
    }
    all.retain(|interface| interface.name != "lo0");
    all
}

/// A line about an interface.
fn detail(interface: &mut Interface, line: &str) {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        _ if word.starts_with("options=") => interface.options = angled(word),
        _ if word.starts_with("capabilities=") => interface.capabilities = angled(word),
        "inet" | "inet6" => interface.addresses.extend(address(rest)),
        "status:" => interface.status = Some(rest.to_owned()),
        // One of `supported media`, or the medium in use.
        "media" => interface.max_mbit = interface.max_mbit.max(speed(rest)),
        "media:" => {
            interface.speed_mbit = speed(rest);
            let duplex = [("full-duplex", true), ("half-duplex", false)];
            interface.full_duplex =
                duplex.iter().find(|(word, _)| rest.contains(word)).map(|(_, full)| *full);
        }
        "vlan:" => {
            interface.vlan = leading(rest);
            interface.vlan_parent = rest
                .split_once("parent interface: ")
                .and_then(|(_, parent)| parent.split_whitespace().next())
                .filter(|parent| *parent != "<none>")
                .map(str::to_owned);
        }
        "laggproto" => {
            let mut words = rest.split_whitespace();
            let protocol = words.next().unwrap_or_default().to_owned();
            let hash = words.skip_while(|word| *word != "lagghash").nth(1).map(str::to_owned);
            interface.lagg = Some(Lagg { protocol, hash, ..Lagg::default() });
        }
        "laggport:" => {
            let name = rest.split_whitespace().next().unwrap_or_default().to_owned();
            if let Some(lagg) = &mut interface.lagg {
                lagg.ports.push(LaggPort { name, flags: angled(rest) });
            }
        }
        "flapping:" => {
            if let Some(lagg) = &mut interface.lagg {
                lagg.flapping = leading(rest);
            }
        }
        "member:" => interface.members.extend(rest.split_whitespace().next().map(str::to_owned)),
        _ => {}
    }
}

/// The words of the first list in angle brackets.
fn angled(text: &str) -> Vec<String> {
    let inner = text.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    let words = inner.map_or("", |(inner, _)| inner).split(',').filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn leading(text: &str) -> Option<i64> {
    super::super::parse::leading(text)
}

/// `10.0.0.2 netmask 0xffffff00 broadcast ...` or `2001:db8::2 prefixlen 64`.
fn address(rest: &str) -> Option<String> {
    let words: Vec<&str> = rest.split_whitespace().collect();
    let after =
        |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1));
    let address = words.first().filter(|address| !address.starts_with("fe80:"))?;
    let length = match (after("netmask"), after("prefixlen")) {
        (Some(mask), _) => u32::from_str_radix(mask.strip_prefix("0x")?, 16).ok()?.count_ones(),
        (None, Some(length)) => length.parse().ok()?,
        // `inet 10.0.0.2/24`, with -f inet:cidr.
        (None, None) => return address.contains('/').then(|| (*address).to_owned()),
    };
    Some(format!("{address}/{length}"))
}

/// Of `Ethernet autoselect (10Gbase-Twinax <full-duplex>)` or `10Gbase-LR mediaopt ...`: in Mbit/s.
fn speed(media: &str) -> Option<i64> {
    let words = media.split([' ', '(', ')', '<', '>', ',']);
    words.rev().find_map(|word| {
        let lower = word.to_ascii_lowercase();
        let (number, _) = lower.split_once("base")?;
        let (number, factor) = match number.strip_suffix('g') {
            Some(number) => (number, 1000),
            None => (number, 1),
        };
        Some(number.parse::<i64>().ok()? * factor)
    })
}

/// `netstat -ibdnW`: the line of the link itself. An interface without an address of its own has one column less.
fn count(text: &str, interface: &mut Interface) {
    let Some(header) = text.lines().next() else { return };
    let columns: Vec<&str> = header.split_whitespace().collect();
    let Some(first) = columns.iter().position(|column| *column == "Ipkts") else { return };
    let columns = &columns[first..];
    let row = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| {
        row.first().map(|name| name.trim_end_matches('*')) == Some(interface.name.as_str())
            && row.iter().any(|word| word.starts_with("<Link"))
    });
    let Some(row) = row.filter(|row| row.len() > columns.len()) else { return };
    let values = &row[row.len() - columns.len()..];
    let get = |name: &str| {
        let at = columns.iter().position(|column| *column == name)?;
        values[at].parse::<i64>().ok()
    };
    interface.received = get("Ipkts");
    interface.receive_errors = get("Ierrs");
    interface.receive_drops = get("Idrop");
    interface.sent = get("Opkts");
    interface.send_errors = get("Oerrs");
}

/// `dev.ix.0.mac_stats.crc_errs` of ix0, and what other drivers call it.
fn crc_errors(all: &BTreeMap<&str, &str>, name: &str) -> Option<i64> {
    let (driver, unit) = unit(name);
    // ix, igb and em have the first one, ixl has the last one.
    ["mac_stats.crc_errs", "mac_stats.crc_errors", "mac.crc_errors"].iter().find_map(|counter| {
        all.get(format!("dev.{driver}.{unit}.{counter}").as_str())?.parse().ok()
    })
}

/// The driver and the number of a device: `ix` and `0` of `ix0`.
pub(super) fn unit(name: &str) -> (&str, &str) {
    name.split_at(name.trim_end_matches(|c: char| c.is_ascii_digit()).len())
}

/// Whether an address stands for all of them.
pub(super) fn stands_for_all(address: &str) -> bool {
    matches!(address, "0.0.0.0" | "::" | "*")
}

/// Marks what is used, and what carries a portal: an interface, the ports of an aggregate, the parent of a VLAN.
pub(super) fn mark(all: &mut [Interface], portals: &[String]) {
    let everywhere = portals.iter().any(|address| stands_for_all(address));
    for interface in all.iter_mut() {
        let addresses = || interface.addresses.iter().map(|a| a.split('/').next().unwrap_or(a));
        interface.used = !interface.addresses.is_empty();
        interface.storage = interface.used
            && (everywhere || addresses().any(|address| portals.iter().any(|p| p == address)));
    }
    // A VLAN on an aggregate on a card: three layers.
    for _ in 0..2 {
        let above: Vec<(Vec<String>, bool, bool)> = all
            .iter()
            .map(|i| {
                let ports =
                    i.lagg.iter().flat_map(|lagg| &lagg.ports).map(|port| port.name.clone());
                (ports.chain(i.vlan_parent.clone()).collect(), i.used, i.storage)
            })
            .collect();
        for (names, used, storage) in above {
            for below in all.iter_mut().filter(|below| names.contains(&below.name)) {
                below.used |= used;
                below.storage |= storage;
            }
        }
    }
}

/// What one interface says of another.
fn connect(all: &mut [Interface]) {
    let laggs: Vec<(String, Lagg)> =
        all.iter().filter_map(|i| Some((i.name.clone(), i.lagg.clone()?))).collect();
    for (name, lagg) in &laggs {
        let mut sum = None;
        for port in &lagg.ports {
            let Some(member) = all.iter_mut().find(|member| member.name == port.name) else {
                continue;
            };
            member.lagg_of = Some(name.clone());
            if let (true, Some(speed)) =
                (port.flags.iter().any(|flag| flag == "ACTIVE"), member.speed_mbit)
            {
                *sum.get_or_insert(0) += speed;
            }
        }
        // `failover` uses one port at a time.
        if let Some(aggregate) = all.iter_mut().find(|aggregate| aggregate.name == *name) {
            aggregate.speed_mbit = sum;
        }
    }
    let bridged: Vec<String> = all.iter().flat_map(|bridge| bridge.members.clone()).collect();
    for interface in all.iter_mut() {
        interface.bridged = !interface.members.is_empty() || bridged.contains(&interface.name);
    }
    let speeds: BTreeMap<String, Option<i64>> =
        all.iter().map(|i| (i.name.clone(), i.speed_mbit)).collect();
    for vlan in all.iter_mut() {
        if let Some(parent) = &vlan.vlan_parent {
            vlan.speed_mbit = speeds.get(parent).copied().flatten();
        }
    }
}

/// `netstat -m`.
pub(super) fn mbufs(source: &dyn Source) -> Mbufs {
    let text = source.output("netstat", &["-m"]).unwrap_or_default();
    // `1024/2048/3072/1018748 mbuf clusters in use (current/cache/total/max)`
    let numbers = |end: &str| -> Option<Vec<i64>> {
        let line = text.lines().find(|line| line.contains(end))?;
        line.split_whitespace().next()?.split('/').map(|number| number.parse().ok()).collect()
    };
    let clusters = numbers(" mbuf clusters in use");
    let sum = |end: &str| numbers(end).map(|all| all.iter().sum());
    Mbufs {
        clusters: clusters.as_ref().and_then(|all| all.get(2).copied()),
        clusters_max: clusters.as_ref().and_then(|all| all.get(3).copied()),
        denied: sum(" requests for mbufs denied"),
        jumbo_denied: sum(" requests for jumbo clusters denied"),
    }
}

/// `netstat -s -p tcp`.
pub(super) fn tcp(source: &dyn Source) -> TcpCounters {
    let text = source.output("netstat", &["-s", "-p", "tcp"]).unwrap_or_default();
    let find = |fits: &dyn Fn(&str) -> bool| {
        text.lines().map(str::trim).find(|line| fits(line)).and_then(leading)
    };
    // `98765 data packets (123456 bytes)`, then `12 data packets (3456 bytes) retransmitted`.
    TcpCounters {
        sent: find(&|line| line.contains(" data packet") && line.ends_with(')')),
        retransmitted: find(&|line| {
            line.contains(" data packet") && line.ends_with("retransmitted")
        }),
        listen_overflows: find(&|line| line.contains("listen queue overflow")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const TREE: &str = "\
$ ifconfig -vm
| ix0: flags=8943<UP,BROADCAST,RUNNING,PROMISC,SIMPLEX,MULTICAST> metric 0 mtu 9000
| \toptions=4e53fbb<RXCSUM,TXCSUM,VLAN_MTU,JUMBO_MTU,TSO4,LRO>
| \tcapabilities=4f53fbb<RXCSUM,TXCSUM,VLAN_MTU,JUMBO_MTU,TSO4,TSO6,LRO>
| \tether a0:36:9f:00:00:01
| \tmedia: Ethernet autoselect (10Gbase-Twinax <full-duplex,rxpause,txpause>)
| \tstatus: active
| \tsupported media:
| \t\tmedia autoselect
| \t\tmedia 10Gbase-Twinax
| ix1: flags=8943<UP,BROADCAST,RUNNING,PROMISC,SIMPLEX,MULTICAST> metric 0 mtu 9000
| \tmedia: Ethernet autoselect
| \tstatus: no carrier
| \tsupported media:
| \t\tmedia autoselect mediaopt full-duplex
| \t\tmedia 1000baseT
| \t\tmedia 10Gbase-T
| lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> metric 0 mtu 16384
| \tinet 127.0.0.1 netmask 0xff000000
| lagg0: flags=8843<UP,BROADCAST,RUNNING,SIMPLEX,MULTICAST> metric 0 mtu 9000
| \tinet 10.0.0.2 netmask 0xffffff00 broadcast 10.0.0.255
| \tinet6 fe80::1%lagg0 prefixlen 64 scopeid 0x4
| \tinet6 2001:db8::2 prefixlen 64
| \tlaggproto lacp lagghash l2,l3,l4
| \tlagg options:
| \t\tflags=10<LACP_STRICT>
| \t\tflowid_shift: 16
| \tlagg statistics:
| \t\tactive ports: 1
| \t\tflapping: 3
| \tlag id: [(8000,A0-36-9F-00-00-01,0141,0000,0000),
| \t\t (FFFF,00-1C-73-00-00-01,0001,0000,0000)]
| \tlaggport: ix0 flags=1c<ACTIVE,COLLECTING,DISTRIBUTING> state=3d<ACTIVITY,AGGREGATION,SYNC,COLLECTING,DISTRIBUTING>
| \t\t[(8000,A0-36-9F-00-00-01,0141,8000,0001),
| \tlaggport: ix1 flags=0<> state=5<ACTIVITY,AGGREGATION>
| \tmedia: Ethernet autoselect
| \tstatus: active
| bridge0: flags=8843<UP,BROADCAST,RUNNING,SIMPLEX,MULTICAST> metric 0 mtu 1500
| \tmember: epair0a flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>
| \t        ifmaxaddr 0 port 4 priority 128 path cost 2000
| \tmember: ix1 flags=143<LEARNING,DISCOVER,AUTOEDGE,AUTOPTP>
| vlan10: flags=8843<UP,BROADCAST,RUNNING,SIMPLEX,MULTICAST> metric 0 mtu 1500
| \tinet 10.1.0.2 netmask 0xffff0000 broadcast 10.1.255.255
| \tvlan: 10 vlanproto: 802.1q vlanpcp: 0 parent interface: lagg0
| \tstatus: active
$ netstat -ibdnW
| Name    Mtu Network       Address              Ipkts Ierrs Idrop     Ibytes    Opkts Oerrs     Obytes  Coll  Drop
| ix0    9000 <Link#1>      a0:36:9f:00:00:01 81234567    12     3 9876543210 71234567     1 8876543210     0     0
| ix1*   9000 <Link#2>      a0:36:9f:00:00:02        0     0     0          0        0     0          0     0     0
| lagg0     - 10.0.0.0/24   10.0.0.2               100     -     -        100      100     -        100     -     -
| lagg0  9000 <Link#4>                         81234567     0     0 9876543210 71234567     4 8876543210     0     0
$ netstat -m
| 4098/3687/7785 mbufs in use (current/cache/total)
| 2049/1803/3852/1018748 mbuf clusters in use (current/cache/total/max)
| 0/5/0 requests for mbufs denied (mbufs/clusters/mbuf+clusters)
| 0/0/0 requests for mbufs delayed (mbufs/clusters/mbuf+clusters)
| 1/2/3 requests for jumbo clusters denied (4k/9k/16k)
$ netstat -s -p tcp
| tcp:
| \t1000 packets sent
| \t\t900 data packets (123456 bytes)
| \t\t12 data packets (3456 bytes) retransmitted
| \t\t0 data packets unnecessarily retransmitted
| \t5 listen queue overflows
";

    #[test]
    fn reads_interfaces_and_what_they_are_made_of() {
        let tree = Tree::parse(TREE).unwrap();
        let all = BTreeMap::from([("dev.ix.0.mac_stats.crc_errs", "7")]);
        let found = interfaces(&tree, &all);
        let names: Vec<&str> = found.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["ix0", "ix1", "lagg0", "bridge0", "vlan10"]);
        let bridged: Vec<bool> = found.iter().map(|i| i.bridged).collect();
        assert_eq!(bridged, [false, true, false, true, false]);
        let ix0 = &found[0];
        assert_eq!(
            (ix0.speed_mbit, ix0.max_mbit, ix0.full_duplex),
            (Some(10_000), Some(10_000), Some(true))
        );
        assert_eq!(
            (ix0.mtu, ix0.crc_errors, ix0.lagg_of.as_deref()),
            (Some(9000), Some(7), Some("lagg0"))
        );
        assert_eq!(
            (ix0.receive_errors, ix0.receive_drops, ix0.sent),
            (Some(12), Some(3), Some(71_234_567))
        );
        assert!(
            ix0.capabilities.contains(&"TSO6".to_owned())
                && !ix0.options.contains(&"TSO6".to_owned())
        );
        let ix1 = &found[1];
        assert_eq!(
            (ix1.status.as_deref(), ix1.speed_mbit, ix1.max_mbit),
            (Some("no carrier"), None, Some(10_000))
        );
        assert_eq!((ix1.received, ix1.full_duplex), (Some(0), None));
        let lagg0 = &found[2];
        assert_eq!(lagg0.addresses, ["10.0.0.2/24", "2001:db8::2/64"]);
        assert_eq!((lagg0.speed_mbit, lagg0.send_errors), (Some(10_000), Some(4)));
        let lagg = lagg0.lagg.as_ref().unwrap();
        assert_eq!(
            (lagg.hash.as_deref(), lagg.flapping, lagg.ports.len()),
            (Some("l2,l3,l4"), Some(3), 2)
        );
        assert_eq!(lagg.ports[0].flags, ["ACTIVE", "COLLECTING", "DISTRIBUTING"]);
        assert!(lagg.ports[1].flags.is_empty());
        assert_eq!((found[4].vlan, found[4].speed_mbit), (Some(10), Some(10_000)));
        let mut found = found;
        mark(&mut found, &["10.1.0.2".to_owned()]);
        // Its VLAN's parent is the aggregate of both.
        assert_eq!(found.iter().filter(|interface| interface.used && interface.storage).count(), 4);
        mark(&mut found, &["10.0.0.2".to_owned()]);
        assert_eq!(found.iter().filter(|interface| interface.storage).count(), 3);
    }

    #[test]
    fn reads_buffers_and_tcp() {
        let tree = Tree::parse(TREE).unwrap();
        let found = mbufs(&tree);
        assert_eq!((found.clusters, found.clusters_max), (Some(3852), Some(1_018_748)));
        assert_eq!((found.denied, found.jumbo_denied), (Some(5), Some(6)));
        let found = tcp(&tree);
        assert_eq!(
            (found.sent, found.retransmitted, found.listen_overflows),
            (Some(900), Some(12), Some(5))
        );
    }

    #[test]
    fn knows_the_speed_of_media() {
        for (media, mbit) in [
            ("Ethernet autoselect (1000baseT <full-duplex>)", Some(1000)),
            ("Ethernet autoselect (100GBase-CR4 <full-duplex,rxpause,txpause>)", Some(100_000)),
            ("25GBase-SR mediaopt full-duplex", Some(25_000)),
            ("Ethernet autoselect (2500Base-T <full-duplex>)", Some(2500)),
            ("Ethernet autoselect", None),
        ] {
            assert_eq!(speed(media), mbit, "{media}");
        }
    }
}
