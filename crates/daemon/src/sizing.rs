//! How many shards serve if the configuration does not say it, and on which NUMA node their threads run.
//!
//! A shard for each processor would take the processors that the storage needs (ZFS computes checksums, compresses and checks
//! parity for every block) and 64 MiB of locked memory each, where a few shards fill every link. So the links decide: what
//! carries the portals, and how fast that is. Everything is read from /proc and /sys below a folder, so that made-up machines can
//! be asked, too.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use lunet_os::cpus::Cpus;
use lunet_server::Processors;

use crate::plan::Plan;

/// What one shard carries whatever the load is, in Mbit/s: reads of 4 KiB that come one by one cost 3 us each, which is 11 Gbit/s.
/// Half of it, because connections are not spread evenly and the storage's part of the work is on the same thread.
const SHARD_MBIT: u64 = 5_000;

/// What is taken for the speed of a link that does not tell it: those of virtual machines, and loopback.
const UNKNOWN_MBIT: u64 = 25_000;

/// Up to so many processors each has a shard: nothing else is to be gained.
const SMALL: usize = 4;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Processors that this process may run on; those of one core with several threads count each.
    pub processors: usize,
    /// Cores that these are of.
    pub cores: usize,
    /// Speed of all links together that carry portals, in Mbit/s. `None`: one of them does not tell.
    pub link_mbit: Option<u64>,
    /// A volume is on ZFS.
    pub zfs: bool,
}

impl Machine {
    /// The same where no more than so many processors may be used at a time.
    fn within(self, quota: usize) -> Self {
        Self {
            processors: self.processors.clamp(1, quota.max(1)),
            cores: self.cores.clamp(1, quota.max(1)),
            ..self
        }
    }

    /// How many shards.
    pub fn shards(&self) -> usize {
        let processors = self.processors.max(1);
        if processors <= SMALL {
            return processors;
        }
        // Two threads of one core do little more than one. Half of the cores for ZFS, which has as much to do per block as the network.
        let cores = self.cores.clamp(1, processors);
        let most = if self.zfs { cores / 2 } else { cores };
        let wanted = self.link_mbit.unwrap_or(UNKNOWN_MBIT).div_ceil(SHARD_MBIT);
        // One that is busy is not to hold everybody up.
        usize::try_from(wanted).unwrap_or(most).clamp(2, most.max(2))
    }

    /// Why it is that many, for people: a clause.
    pub fn reason(&self) -> String {
        let of = match self.link_mbit {
            _ if self.processors <= SMALL => {
                return format!("one for each of {} processors", self.processors);
            }
            Some(mbit) => format!("for links of {} Gbit/s", mbit as f64 / 1e3),
            None => "for links that do not tell their speed".to_owned(),
        };
        let zfs = if self.zfs { ", half of them left to ZFS" } else { "" };
        format!("{of}, on {} cores{zfs}", self.cores)
    }
}

/// How many shards serve, and on which processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Shards of each protocol.
    pub shards: usize,
    /// Where their threads run.
    pub processors: Processors,
    /// Why, for people: a sentence.
    pub told: String,
    /// What is configured and cannot be, if anything.
    pub lost: Option<String>,
}

impl Placement {
    /// For a plan, on this machine. The configuration decides if it says a number.
    pub fn of(plan: &Plan) -> Self {
        let system = System::default();
        let processors = allowed();
        let portals = plan.config.portals.iter().chain(&plan.config.nvme.portals);
        let portals: Vec<IpAddr> = portals.map(|portal| portal.address.ip()).collect();
        let server = &plan.config.server;
        if let Some(wanted) = &server.processors {
            return Self::each(wanted.numbers(), &processors, server.shards);
        }
        let said = server.shards;
        // Where it decides nothing, no storage is asked.
        let zfs = said.is_none() && processors.len() > SMALL && is_on_zfs(plan);
        let machine = system.machine(&portals, &processors, zfs).within(quota());
        let (shards, why) = match said {
            Some(said) => (said, "as configured".to_owned()),
            None => (machine.shards(), machine.reason()),
        };
        let near = system.node(&portals).filter(|(_, of_node)| {
            let (all, own) = (&processors, of_node);
            own.iter().filter(|cpu| all.contains(cpu)).count() >= shards
        });
        let (place, processors) = match near {
            Some((node, mut own)) => {
                own.retain(|cpu| processors.contains(cpu));
                let place = format!("; on NUMA node {node}, where the links of the portals are");
                (place, Processors::Among(own))
            }
            None => (String::new(), Processors::Any),
        };
        Self { shards, processors, told: format!("{shards} shards: {why}{place}"), lost: None }
    }

    /// A shard on each of the processors that are wanted and may be used, or so many shards on them in turn.
    fn each(wanted: &[usize], usable: &[usize], shards: Option<usize>) -> Self {
        let (own, lost): (Vec<_>, Vec<_>) = wanted.iter().partition(|cpu| usable.contains(cpu));
        let lost = Cpus::of(lost).map(|lost| {
            format!("server.processors: lunet cannot use {lost} here, and has no shard there")
        });
        let Some(list) = Cpus::of(own.clone()) else {
            let shards = shards.unwrap_or(usable.len().max(1));
            let told = format!("{shards} shards, on no processors of their own");
            return Self { shards, processors: Processors::Any, told, lost };
        };
        let shards = shards.unwrap_or(own.len());
        let told = format!("{shards} shards, each on one of the processors {list} as configured");
        Self { shards, processors: Processors::Each(own), told, lost }
    }
}

/// The processors that this thread, and all that it starts, may run on.
fn allowed() -> Vec<usize> {
    Cpus::allowed().map(|all| all.numbers().to_vec()).unwrap_or_default()
}

/// How many processors the process may use at a time, by its control group as well.
fn quota() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// True if a volume's blocks are on ZFS: in a file, or as a zvol.
fn is_on_zfs(plan: &Plan) -> bool {
    const ZFS: i64 = 0x2FC1_2FC1;
    let of_zfs = |path: PathBuf| {
        // A file that is not there yet will be where its folder is.
        let real =
            fs::canonicalize(&path).unwrap_or_else(|_| lunet_files::parent(&path).to_owned());
        let is_zvol =
            real.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"zd"))
                && real.starts_with("/dev");
        is_zvol || rustix::fs::statfs(&real).is_ok_and(|found| found.f_type == ZFS)
    };
    plan.config.volumes.iter().filter_map(|volume| volume.path(&plan.data)).any(of_zfs)
}

/// The system whose /proc and /sys are read.
#[derive(Clone, Debug)]
pub struct System(PathBuf);

impl Default for System {
    fn default() -> Self {
        Self("/".into())
    }
}

impl System {
    /// The machine, as portals at these addresses and these processors see it.
    pub fn machine(&self, portals: &[IpAddr], processors: &[usize], zfs: bool) -> Machine {
        Machine {
            processors: processors.len(),
            cores: self.cores(processors),
            link_mbit: self.link_mbit(portals),
            zfs,
        }
    }

    /// The NUMA node that all links are on that carry portals, with its processors; `None` if they are on several, or nobody
    /// tells, or there is one node only.
    pub fn node(&self, portals: &[IpAddr]) -> Option<(usize, Vec<usize>)> {
        let mut nodes = self.links(portals)?.into_iter().map(|link| self.node_of(&link));
        let first = nodes.next()??;
        if !nodes.all(|node| node == Some(first))
            || !self.there(&format!("sys/devices/system/node/node{}", usize::from(first == 0)))
        {
            return None;
        }
        let list = self.text(&format!("sys/devices/system/node/node{first}/cpulist"))?;
        // A node of memory alone has an empty list.
        let processors = list.parse::<Cpus>().map(|all| all.numbers().to_vec());
        Some((first, processors.unwrap_or_default()))
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.0.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn there(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    fn cores(&self, processors: &[usize]) -> usize {
        let siblings = |number: &usize| {
            let path = format!("sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list");
            self.text(&path).unwrap_or_else(|| number.to_string())
        };
        processors.iter().map(siblings).collect::<BTreeSet<_>>().len()
    }

    fn link_mbit(&self, portals: &[IpAddr]) -> Option<u64> {
        let speed = |link: &String| {
            let text = self.text(&format!("sys/class/net/{link}/speed"))?;
            text.parse::<i64>()
                .ok()
                .and_then(|mbit| u64::try_from(mbit).ok())
                .filter(|mbit| *mbit > 0)
        };
        self.links(portals)?.iter().map(speed).sum()
    }

    /// The interfaces that carry portals, each once. `None` if one is not found, or is loopback.
    fn links(&self, portals: &[IpAddr]) -> Option<BTreeSet<String>> {
        let mut all = BTreeSet::new();
        for address in portals {
            match address {
                address if address.is_loopback() => return None,
                address if address.is_unspecified() => all.extend(self.cards()),
                IpAddr::V4(address) => all.extend([self.link_of_v4(*address)?]),
                IpAddr::V6(address) => all.extend([self.link_of_v6(*address)?]),
            }
        }
        (!all.is_empty()).then_some(all)
    }

    /// The interfaces that are devices, and up.
    fn cards(&self) -> Vec<String> {
        let Ok(folder) = fs::read_dir(self.0.join("sys/class/net")) else { return Vec::new() };
        let names = folder.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let card = |name: &String| {
            let up = self.text(&format!("sys/class/net/{name}/operstate"));
            self.there(&format!("sys/class/net/{name}/device")) && up.as_deref() == Some("up")
        };
        names.filter(card).collect()
    }

    /// By the table of routes: the narrowest network that is reached without a gateway.
    fn link_of_v4(&self, address: Ipv4Addr) -> Option<String> {
        let table = self.text("proc/net/route")?;
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok().map(u32::from_be);
            let (to, gateway, mask) = (number(1)?, number(2)?, number(7)?);
            let fits = gateway == 0 && address.to_bits() & mask == to;
            fits.then(|| (mask.count_ones(), words[0].to_owned()))
        };
        let found = table.lines().skip(1).filter_map(row).max_by_key(|(bits, _)| *bits);
        found.map(|(_, name)| name)
    }

    fn link_of_v6(&self, address: Ipv6Addr) -> Option<String> {
        let wanted = format!("{:032x}", address.to_bits());
        let table = self.text("proc/net/if_inet6")?;
        let line = table.lines().find(|line| line.starts_with(&wanted))?;
        line.split_whitespace().last().map(str::to_owned)
    }

    /// The node of an interface, or that which all below it have: of a bond, a bridge or a VLAN.
    fn node_of(&self, link: &str) -> Option<usize> {
        let own = format!("sys/class/net/{link}");
        if let Some(node) = self.text(&format!("{own}/device/numa_node")) {
            return node.parse().ok();
        }
        let below = fs::read_dir(self.0.join(&own)).ok()?.flatten();
        let names = below.filter_map(|entry| entry.file_name().into_string().ok());
        let lower: Vec<String> =
            names.filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned())).collect();
        let mut nodes = lower.iter().map(|name| self.node_of(name));
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn machine(processors: usize, cores: usize, gbit: u64, zfs: bool) -> Machine {
        let link_mbit = if gbit == 0 { None } else { Some(gbit * 1000) };
        Machine { processors, cores, link_mbit, zfs }
    }

    #[test]
    fn links_decide_and_processors_bound() {
        let cases = [
            // Small ones: a shard for each processor, as there is nothing to gain.
            (machine(1, 1, 100, true), 1),
            (machine(2, 2, 10, false), 2),
            (machine(4, 2, 1, true), 4),
            (machine(8, 4, 10, false), 2),
            (machine(8, 8, 25, false), 5),
            (machine(8, 4, 25, true), 2),
            (machine(8, 4, 100, false), 4),
            (machine(24, 12, 10, false), 2),
            (machine(24, 12, 10, true), 2),
            (machine(24, 12, 25, true), 5),
            (machine(24, 12, 100, false), 12),
            (machine(24, 12, 100, true), 6),
            (machine(24, 12, 0, false), 5),
            (machine(128, 64, 10, false), 2),
            (machine(128, 64, 25, true), 5),
            (machine(128, 64, 100, false), 20),
            (machine(128, 64, 400, true), 32),
            (machine(128, 64, 0, false), 5),
        ];
        for (machine, shards) in cases {
            assert_eq!(machine.shards(), shards, "{machine:?}");
        }
    }

    #[test]
    fn more_never_means_fewer_shards() {
        let speeds = [1, 10, 25, 50, 100, 200, 400];
        for zfs in [false, true] {
            for cores in 3..200 {
                let of = |gbit, cores| machine(2 * cores, cores, gbit, zfs).shards();
                for pair in speeds.windows(2) {
                    assert!(of(pair[0], cores) <= of(pair[1], cores));
                    assert!(of(pair[0], cores) <= of(pair[0], cores + 1));
                }
            }
        }
    }

    /// A machine of two nodes: eth0 on node 0 and eth1 on node 1, a bond of both, a VLAN on eth1.
    fn two_nodes() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        for (node, list) in [(0, "0-1,4-5\n"), (1, "2-3,6-7\n")] {
            put(&format!("sys/devices/system/node/node{node}/cpulist"), list);
            put(&format!("sys/class/net/eth{node}/speed"), "25000\n");
            put(&format!("sys/class/net/eth{node}/operstate"), "up\n");
            put(&format!("sys/class/net/eth{node}/device/numa_node"), &format!("{node}\n"));
            put(&format!("sys/class/net/bond0/lower_eth{node}/ifindex"), "2\n");
        }
        put("sys/class/net/bond0/speed", "50000\n");
        put("sys/class/net/storage/speed", "25000\n");
        put("sys/class/net/storage/lower_eth1/ifindex", "3\n");
        put("sys/class/net/lo/operstate", "unknown\n");
        put("sys/class/net/down/device/numa_node", "0\n");
        put("sys/class/net/down/operstate", "down\n");
        for cpu in 0..8 {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            put(&path, &format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        }
        put(
            "proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
             eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             storage\t006433C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             bond0\t007100CB\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
        );
        put(
            "proc/net/if_inet6",
            "20010db8000000000000000000000001 03 40 00 80     eth1\n\
             00000000000000000000000000000001 01 80 10 80       lo\n",
        );
        root
    }

    #[test]
    fn the_links_of_portals_are_found() {
        let root = two_nodes();
        let system = System(root.path().to_owned());
        let ask = |portals: &[&str]| {
            let portals: Vec<IpAddr> =
                portals.iter().map(|text| text.parse().expect("an address")).collect();
            let all: Vec<usize> = (0..8).collect();
            let machine = system.machine(&portals, &all, false);
            assert_eq!((machine.processors, machine.cores), (8, 4));
            (machine.link_mbit, system.node(&portals).map(|(node, _)| node))
        };
        assert_eq!(ask(&["192.0.2.10"]), (Some(25_000), Some(0)));
        assert_eq!(ask(&["198.51.100.7"]), (Some(25_000), Some(1)), "a VLAN");
        assert_eq!(ask(&["2001:db8::1"]), (Some(25_000), Some(1)));
        assert_eq!(ask(&["203.0.113.5"]), (Some(50_000), None), "a bond of both nodes");
        assert_eq!(ask(&["192.0.2.10", "198.51.100.7"]), (Some(50_000), None));
        assert_eq!(ask(&["192.0.2.10", "192.0.2.11"]), (Some(25_000), Some(0)), "one link");
        assert_eq!(ask(&["0.0.0.0"]), (Some(50_000), None), "both cards that are up");
        assert_eq!(ask(&["127.0.0.1"]), (None, None));
        assert_eq!(ask(&["10.9.9.9"]), (None, None), "behind a gateway");
        assert_eq!(ask(&[]), (None, None));
        let (_, processors) =
            system.node(&["192.0.2.10".parse().expect("an address")]).expect("one");
        assert_eq!(processors, [0, 1, 4, 5]);
    }

    #[test]
    fn shards_have_the_processors_that_are_wanted_and_there() {
        let place = |wanted: &[usize], shards| Placement::each(wanted, &[0, 1, 2, 3], shards);
        let two = place(&[1, 3], None);
        assert_eq!((two.shards, two.processors), (2, Processors::Each(vec![1, 3])));
        assert_eq!(two.told, "2 shards, each on one of the processors 1,3 as configured");
        assert_eq!(place(&[1, 3], Some(4)).shards, 4);
        let lost = place(&[2, 3, 9], None);
        assert_eq!(lost.processors, Processors::Each(vec![2, 3]));
        assert!(lost.lost.is_some_and(|lost| lost.contains("cannot use 9 here")));
        let none = place(&[8, 9], None);
        assert_eq!((none.shards, &none.processors), (4, &Processors::Any));
        assert!(none.told.contains("on no processors of their own"), "{}", none.told);
        assert!(none.lost.is_some_and(|lost| lost.contains("8-9")));
    }

    #[test]
    fn a_machine_with_one_node_places_nothing() {
        let root = two_nodes();
        fs::remove_dir_all(root.path().join("sys/devices/system/node/node1")).expect("it goes");
        let system = System(root.path().to_owned());
        assert_eq!(system.node(&["192.0.2.10".parse().expect("an address")]), None);
    }
}
