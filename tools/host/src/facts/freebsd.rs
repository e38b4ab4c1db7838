//! FreeBSD and TrueNAS CORE, from what `packaging/freebsd/lunet-capture.sh` has written there.
//!
//! lunet itself does not run on FreeBSD: facts of such a machine come from a capture only. The file
//! [`CAPTURE`] in it says that it is one.

mod ctl;
mod disk;
mod log;
mod network;
mod pools;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse::version_num;
use super::truenas::Tunable;
use super::zfs::Zfs;
use super::{Facts, Platform, Value};
use crate::source::Source;

pub use ctl::{AuthGroup, CtlConf, CtlLun, CtlPort, CtlSession, CtlTarget, PortalGroup};
pub use disk::{FreeBsdDisk, Label, NvmeController, PartitionStart, PathState, PciFunction};
pub use log::LogHit;
pub use network::{Interface, Lagg, LaggPort, Mbufs, TcpCounters};

/// What the capture script says of itself: `system FreeBSD`, `root no`, `lacked ...`.
const CAPTURE: &str = "/lunet-capture";

/// A machine with FreeBSD or TrueNAS CORE.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeBsd {
    /// Release of the kernel: `14.1-RELEASE-p3`.
    pub release: Option<String>,
    /// Release of TrueNAS CORE: `13.0-U6.1`; `null` on plain FreeBSD.
    pub truenas: Option<String>,
    /// What the capture could not get, in its own words.
    pub lacked: Vec<String>,
    /// Kernel settings and counters that checks speak of, by their names: `kern.ipc.maxsockbuf`.
    pub sysctls: BTreeMap<String, Value>,
    /// Frequency of the first processor, in MHz.
    pub cpu_mhz: Option<i64>,
    /// The highest that it has, in MHz.
    pub cpu_max_mhz: Option<i64>,
    /// Lines `name=value` of /boot/loader.conf and loader.conf.local; the last one of a name counts.
    pub loader: BTreeMap<String, String>,
    /// The same of /etc/sysctl.conf.
    pub sysctl_conf: BTreeMap<String, String>,
    /// The same of /etc/rc.conf.
    pub rc_conf: BTreeMap<String, String>,
    /// Tunables of TrueNAS CORE, of the kinds `LOADER`, `RC` and `SYSCTL`.
    pub tunables: Vec<Tunable>,
    /// Settings that sysctl.conf or a tunable has, and the kernel has otherwise.
    pub not_in_force: Vec<NotInForce>,
    /// Network interfaces, without `lo0`.
    pub interfaces: Vec<Interface>,
    /// Buffers of the network.
    pub mbufs: Mbufs,
    /// Counters of TCP since start.
    pub tcp: TcpCounters,
    /// PCI functions with a link of PCI Express.
    pub pci: Vec<PciFunction>,
    /// Whole drives, as GEOM shows them.
    pub disks: Vec<FreeBsdDisk>,
    /// Labels and the partitions that they stand for.
    pub labels: Vec<Label>,
    /// Partitions of drives.
    pub partitions: Vec<PartitionStart>,
    /// Paths of multipath devices (gmultipath).
    pub paths: Vec<PathState>,
    /// Controllers of NVMe drives.
    pub nvme: Vec<NvmeController>,
    /// Pools, volumes and file systems; `null` without ZFS.
    pub zfs: Option<Zfs>,
    /// Counters of the ARC: `size`, `c_max`, `l2_hdr_size`...
    pub arcstats: BTreeMap<String, i64>,
    /// The ashift of the vdevs with data, by the pool: the smallest.
    pub ashifts: BTreeMap<String, i64>,
    /// Swap space in bytes; `null` if it cannot be seen.
    pub swap_bytes: Option<i64>,
    /// How much of it is in use.
    pub swap_used_bytes: Option<i64>,
    /// What /etc/ctl.conf says; `null` if there is none.
    pub ctl_conf: Option<CtlConf>,
    /// Addresses at which the targets are offered, without those that stand for all.
    pub portals: Vec<String>,
    /// Logical units of CTL.
    pub luns: Vec<CtlLun>,
    /// Ports of CTL.
    pub ports: Vec<CtlPort>,
    /// iSCSI sessions of initiators.
    pub sessions: Vec<CtlSession>,
    /// Whether a log could be read.
    pub log_readable: bool,
    /// Lines of the log that mean something here.
    pub log: Vec<LogHit>,
}

/// A setting that is configured, and not in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotInForce {
    /// Name of the sysctl.
    pub name: String,
    /// What is configured.
    pub wanted: String,
    /// What the kernel has.
    pub now: String,
    /// Where it is configured: `/etc/sysctl.conf`, `System > Tunables`.
    pub source: String,
}

/// Facts of a captured FreeBSD machine; `None` if it is another one.
pub(super) fn facts(source: &dyn Source) -> Option<Facts> {
    let about = source.read(CAPTURE)?;
    let said = |key: &str| about.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    said("system").filter(|system| *system == "FreeBSD")?;
    let told = source.output("sysctl", &["-a"]).unwrap_or_default();
    let all = sysctls(&told);
    let truenas = truenas_version(source);
    let mut bsd = FreeBsd {
        release: all.get("kern.osrelease").map(|release| (*release).to_owned()),
        lacked: lines(&about, "lacked "),
        sysctls: kept(&all),
        loader: [config(source, "/boot/loader.conf"), config(source, "/boot/loader.conf.local")]
            .into_iter()
            .flatten()
            .collect(),
        sysctl_conf: config(source, "/etc/sysctl.conf"),
        rc_conf: config(source, "/etc/rc.conf"),
        tunables: if truenas.is_some() { tunables(source) } else { Vec::new() },
        interfaces: network::interfaces(source, &all),
        mbufs: network::mbufs(source),
        tcp: network::tcp(source),
        pci: disk::pci(source),
        disks: disk::disks(source),
        labels: disk::labels(source),
        partitions: disk::partitions(source),
        paths: disk::paths(source),
        nvme: disk::nvme(source),
        arcstats: numbers(&all, "kstat.zfs.misc.arcstats."),
        ctl_conf: ctl::conf(source),
        luns: ctl::luns(source),
        ports: ctl::ports(source),
        sessions: ctl::sessions(source),
        truenas,
        ..FreeBsd::default()
    };
    bsd.zfs = pools::read(source, all.get("vfs.zfs.version.module").copied(), &bsd.labels);
    bsd.ashifts = pools::ashifts(source);
    (bsd.swap_bytes, bsd.swap_used_bytes) = swap(source);
    (bsd.log_readable, bsd.log) = log::read(source);
    bsd.cpu_mhz = all.get("dev.cpu.0.freq").and_then(|mhz| mhz.parse().ok());
    // `2101/85000 2100/85000 ...`: MHz and mW, the highest first.
    bsd.cpu_max_mhz =
        all.get("dev.cpu.0.freq_levels").and_then(|levels| levels.split('/').next()?.parse().ok());
    bsd.not_in_force = not_in_force(&bsd);
    connect(&mut bsd);
    let mut facts = Facts { platform: platform(source, &bsd, &all), ..Facts::default() };
    facts.platform.root = said("root").map(|root| root == "yes");
    let number = |name: &str| all.get(name).and_then(|bytes| bytes.parse().ok());
    facts.memory.total_bytes = number("hw.physmem");
    facts.memory.page_bytes = number("hw.pagesize");
    facts.freebsd = Some(bsd);
    Some(facts)
}

/// Compares what is configured with what the kernel has, as far as that is known.
fn not_in_force(bsd: &FreeBsd) -> Vec<NotInForce> {
    let tunables = bsd.tunables.iter().filter(|tunable| {
        tunable.enabled == Some(true) && tunable.kind.as_deref() == Some("SYSCTL")
    });
    let tunables = tunables.filter_map(|tunable| {
        let value = tunable.value.as_ref()?.to_string();
        Some((tunable.name.clone()?, value, "System > Tunables"))
    });
    let file = bsd.sysctl_conf.iter();
    let file = file.map(|(name, value)| (name.clone(), value.clone(), "/etc/sysctl.conf"));
    let differs = |(name, wanted, source): (String, String, &str)| {
        let now = bsd.sysctls.get(&name)?;
        // `4m` of a file is a number to sysctl(8).
        let alike = now.as_int().is_none() || wanted.parse::<i64>().is_ok();
        let now = Some(now.to_string()).filter(|_| alike)?;
        let source = source.to_owned();
        (now != wanted).then_some(NotInForce { name, wanted, now, source })
    };
    tunables.chain(file).filter_map(differs).collect()
}

/// Fills in what one layer says of another.
fn connect(bsd: &mut FreeBsd) {
    pools::mark(bsd);
    let targets = bsd.ctl_conf.iter().flat_map(|conf| &conf.targets);
    let mut portals: Vec<String> = targets.flat_map(|target| target.addresses.clone()).collect();
    portals.sort();
    portals.dedup();
    network::mark(&mut bsd.interfaces, &portals);
    portals.retain(|address| !network::stands_for_all(address));
    bsd.portals = portals;
    for function in &mut bsd.pci {
        let (driver, unit) = network::unit(&function.name);
        let domain = bsd.sysctls.get(&format!("dev.{driver}.{unit}.%domain"));
        function.domain = domain.and_then(Value::as_int);
    }
}

fn platform(source: &dyn Source, bsd: &FreeBsd, all: &BTreeMap<&str, &str>) -> Platform {
    let word = |name: &str| all.get(name).map(|value| (*value).to_owned());
    let smbios = |name: &str| {
        let told = source.output("kenv", &["-q", name]).map(|text| text.trim().to_owned());
        told.filter(|text| !text.is_empty())
    };
    let guest = word("kern.vm_guest");
    let (kind, name, version) = match &bsd.truenas {
        Some(version) => ("truenas-core", format!("TrueNAS CORE {version}"), Some(version.clone())),
        None => {
            let release = bsd.release.clone();
            ("freebsd", format!("FreeBSD {}", release.as_deref().unwrap_or("")), release)
        }
    };
    Platform {
        kind: Some(kind.to_owned()),
        name: Some(name),
        version_num: version.as_deref().and_then(version_num),
        version,
        kernel_num: bsd.release.as_deref().and_then(version_num),
        kernel: bsd.release.clone(),
        arch: word("hw.machine_arch"),
        virtual_machine: guest.as_deref().map(|guest| guest != "none"),
        hypervisor: guest.filter(|guest| guest != "none"),
        vendor: smbios("smbios.system.maker"),
        model: smbios("smbios.system.product"),
        uptime_seconds: uptime(source, all.get("kern.boottime").copied()),
        ..Platform::default()
    }
}

/// `{ sec = 1763000000, usec = 123456 } Thu Nov 13 03:33:20 2025`, and when the capture was made.
fn uptime(source: &dyn Source, boottime: Option<&str>) -> Option<i64> {
    let (_, rest) = boottime?.split_once("sec = ")?;
    let start: i64 = rest.split(',').next()?.trim().parse().ok()?;
    source.now().map(|now| now - start).filter(|seconds| *seconds >= 0)
}

/// `TrueNAS-13.0-U6.1 (0a9b8c7d6e)`; FreeBSD itself has no such file.
fn truenas_version(source: &dyn Source) -> Option<String> {
    let told = source.text("/etc/version")?;
    let version = told.strip_prefix("TrueNAS-").or_else(|| told.strip_prefix("FreeNAS-"))?;
    version.split_whitespace().next().map(str::to_owned)
}

/// Settings that the page Tunables of TrueNAS CORE keeps.
fn tunables(source: &dyn Source) -> Vec<Tunable> {
    let told = source.output("midclt", &["call", "tunable.query"]).unwrap_or_default();
    let Ok(serde_json::Value::Array(all)) = serde_json::from_str(&told) else { return Vec::new() };
    let text = |json: &serde_json::Value| json.as_str().map(str::to_owned);
    all.iter()
        .map(|told| Tunable {
            kind: text(&told["type"]),
            name: text(&told["var"]),
            value: told["value"].as_str().map(Value::parse),
            original: None,
            enabled: told["enabled"].as_bool(),
        })
        .collect()
}

/// The names and values of `sysctl -a`. Lines that go on a value of several lines have no name.
fn sysctls(text: &str) -> BTreeMap<&str, &str> {
    let name = |name: &&str| {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '%' | '-');
        name.contains('.') && name.chars().all(fine)
    };
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            Some((Some(key).filter(name)?, value.trim()))
        })
        .collect()
}

/// Beginnings of the names that checks and rules speak of.
const KEPT: &[&str] = &[
    "debug.witness.watch",
    "dev.hwpstate_",
    "hw.intr_storm_threshold",
    "hw.model",
    "hw.ncpu",
    "hw.pagesize",
    "hw.physmem",
    "kern.cam.ctl.",
    "kern.icl.",
    "kern.ident",
    "kern.ipc.",
    "kern.timecounter.choice",
    "kern.timecounter.hardware",
    "net.inet.ip.forwarding",
    "net.inet.tcp.",
    "vfs.zfs.",
    "vm.ndomains",
];

fn kept(all: &BTreeMap<&str, &str>) -> BTreeMap<String, Value> {
    let of_processor = |name: &str| name.starts_with("dev.cpu.0.");
    let domain = |name: &str| name.starts_with("dev.") && name.ends_with(".%domain");
    all.iter()
        .filter(|(name, _)| {
            KEPT.iter().any(|start| name.starts_with(start)) || of_processor(name) || domain(name)
        })
        // Statistics of each connection or vdev are not for a check.
        .filter(|(name, _)| !name.contains(".hostcache.list") && !name.ends_with(".log"))
        .map(|(name, value)| ((*name).to_owned(), Value::parse(value)))
        .collect()
}

/// The numbers below a name, by the rest of their names.
fn numbers(all: &BTreeMap<&str, &str>, start: &str) -> BTreeMap<String, i64> {
    let number = |(name, value): (&&str, &&str)| {
        Some((name.strip_prefix(start)?.to_owned(), value.parse().ok()?))
    };
    all.iter().filter_map(number).collect()
}

/// `name=value` and `name="value"` of a configuration file, without comments.
fn config(source: &dyn Source, path: &str) -> BTreeMap<String, String> {
    let text = source.read(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let line = line.trim();
            let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
            let value = match value.strip_prefix('"') {
                Some(quoted) => quoted.split('"').next().unwrap_or_default(),
                None => value.split('#').next().unwrap_or_default().trim(),
            };
            Some((name.trim().to_owned(), value.to_owned()))
        })
        .collect()
}

/// `Device 1K-blocks Used Avail Capacity`, a line for each device; with several of them also `Total`.
fn swap(source: &dyn Source) -> (Option<i64>, Option<i64>) {
    let Some(text) = source.output("swapinfo", &["-k"]) else { return (None, None) };
    let mut sums = (0, 0);
    for line in text.lines().filter(|line| line.starts_with("/dev/")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kib = |index: usize| words.get(index).and_then(|word| word.parse::<i64>().ok());
        if let (Some(size), Some(used)) = (kib(1), kib(2)) {
            sums = (sums.0 + size * 1024, sums.1 + used * 1024);
        }
    }
    (Some(sums.0), Some(sums.1))
}

/// What follows a word at the beginning of lines.
fn lines(text: &str, start: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn a_capture_of_linux_is_none_of_freebsd() {
        assert_eq!(facts(&Tree::new()), None);
        let other = Tree::parse("/lunet-capture: system OpenBSD\n").unwrap();
        assert_eq!(facts(&other), None);
    }

    #[test]
    fn reads_settings_files_and_swap() {
        let tree = Tree::parse(
            "/lunet-capture:\n| system FreeBSD\n| root no\n| lacked smartctl: not installed\n\
             /etc/version: TrueNAS-13.0-U6.1 (0a9b8c7d6e)\n\
             $ date +%s\n| 1763003600\n\
             $ sysctl -a\n| kern.osrelease: 13.1-RELEASE-p9\n| hw.physmem: 34252529664\n\
             | kern.boottime: { sec = 1763000000, usec = 123456 } Thu Nov 13 03:33:20 2025\n\
             | kern.geom.confdot: digraph geom {\n| z0 [shape=box,label=\"LABEL: x\"];\n\
             | kern.ipc.maxsockbuf: 2097152\n| dev.ix.0.%domain: 1\n| dev.ix.0.queue0.irqs: 3\n\
             | kstat.zfs.misc.arcstats.c_max: 33178787840\n\
             /etc/sysctl.conf: kern.ipc.maxsockbuf=4194304\n\
             /boot/loader.conf:\n| vfs.zfs.arc_max=\"1073741824\"  # small\n| #hint.x=1\n\
             $ swapinfo -k\n| Device          1K-blocks     Used    Avail Capacity\n\
             | /dev/ada0p1.eli   2097152     1024  2096128     0%\n\
             | /dev/ada1p1.eli   2097152        0  2097152     0%\n\
             | Total             4194304     1024  4193280     0%\n\
             $ midclt call tunable.query\n\
             | [{\"type\":\"LOADER\",\"var\":\"vfs.zfs.arc_max\",\"value\":\"1073741824\",\"enabled\":true}]\n",
        )
        .unwrap();
        let facts = facts(&tree).unwrap();
        let bsd = facts.freebsd.as_ref().unwrap();
        assert_eq!(facts.system(), super::super::System::FreeBsd);
        assert_eq!(facts.platform.name.as_deref(), Some("TrueNAS CORE 13.0-U6.1"));
        assert_eq!((facts.platform.uptime_seconds, facts.platform.root), (Some(3600), Some(false)));
        assert_eq!(facts.platform.version_num, Some(13_000_000));
        assert_eq!(bsd.lacked, ["smartctl: not installed"]);
        let names: Vec<&str> = bsd.sysctls.keys().map(String::as_str).collect();
        assert_eq!(names, ["dev.ix.0.%domain", "hw.physmem", "kern.ipc.maxsockbuf"]);
        assert_eq!(bsd.loader["vfs.zfs.arc_max"], "1073741824");
        assert_eq!(bsd.loader.len(), 1);
        assert_eq!((bsd.swap_bytes, bsd.swap_used_bytes), (Some(4 << 30), Some(1 << 20)));
        assert_eq!(bsd.arcstats["c_max"], 33_178_787_840);
        assert_eq!(bsd.tunables[0].value, Some(Value::Int(1 << 30)));
        let name = "kern.ipc.maxsockbuf".to_owned();
        let (wanted, now) = ("4194304".to_owned(), "2097152".to_owned());
        let source = "/etc/sysctl.conf".to_owned();
        assert_eq!(bsd.not_in_force, [NotInForce { name, wanted, now, source }]);
    }
}
