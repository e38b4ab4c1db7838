//! The parts of a machine that the data of volumes passes, for a server that watches them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lunet_api::{Part, PartKind, PartsOf, Place};

use super::assumed::Level;
use super::{drives, network};
use crate::facts::{Drive, Facts, Nic, of_data_path};
use crate::source::Source;

/// A file on a loop device may lie on a file system on another one: so deep at most.
const DEEPEST: usize = 8;

/// The links and slots that storage goes over, the pools and drives that these volumes are kept on, and what each carries
/// at most. Nothing is counted yet.
///
/// Paths have to be without symbolic links. A volume whose storage is not on a drive of this machine, or is not known, is on
/// none of the parts.
pub fn parts(source: &dyn Source, of: &PartsOf) -> Vec<Part> {
    let mut facts = of_data_path(source, &of.portals);
    if of.portals.iter().all(IpAddr::is_loopback) {
        // What comes from this machine passes no link.
        facts.nics.clear();
    }
    parts_of(source, &facts, &of.places)
}

fn parts_of(source: &dyn Source, facts: &Facts, places: &[Place]) -> Vec<Part> {
    let mut parts = links(facts);
    let mounts = Mount::all(source);
    let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut kept: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for place in places {
        let mut below = Below { source, facts, mounts: &mounts, pools: vec![], drives: vec![] };
        below.file(&place.path, 0);
        for pool in below.pools {
            pools.entry(pool).or_default().push(place.volume.clone());
        }
        for drive in below.drives {
            kept.entry(drive).or_default().push(place.volume.clone());
        }
    }
    for drive in &facts.drives {
        let pool = drive.zfs_pool.as_ref().filter(|pool| pools.contains_key(*pool));
        match (pool, kept.remove(&drive.name)) {
            (None, None) => {}
            (pool, volumes) => parts.push(part(drive, pool, volumes.unwrap_or_default())),
        }
    }
    parts.extend(pools.into_iter().map(|(name, volumes)| {
        let inside = |drive: &&Drive| drive.zfs_pool.as_ref() == Some(&name);
        let counted = facts.drives.iter().filter(inside).map(|drive| drive.name.clone()).collect();
        Part { kind: PartKind::Pool, name, counted, volumes, ..Part::default() }
    }));
    parts
}

fn part(drive: &Drive, pool: Option<&String>, volumes: Vec<String>) -> Part {
    let member = drives::member(drive);
    Part {
        kind: PartKind::Drive,
        name: drive.name.clone(),
        counted: vec![drive.name.clone()],
        pool: pool.cloned(),
        volumes,
        // What a virtual machine's drive says of itself means nothing.
        rotational: drive.rotational == Some(true) && drive.transport.as_deref() != Some("virtio"),
        reads_at_most: member.as_ref().map(|member| member.read as u64),
        writes_at_most: member.as_ref().map(|member| member.write as u64),
        why: member.map_or_else(String::new, |member| member.why),
        ..Part::default()
    }
}

/// The links of the interfaces that storage goes over; and their slots, where these carry less.
fn links(facts: &Facts) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut slots: Vec<(&str, Vec<&Nic>)> = Vec::new();
    for nic in network::busy(facts) {
        let wire =
            nic.speed_mbit.and_then(|mbit| u64::try_from(mbit).ok()).map(|mbit| mbit * 125_000);
        let speed = nic.speed_mbit.map(|mbit| format!("{} Gbit/s", mbit as f64 / 1000.0));
        parts.push(Part {
            kind: PartKind::Link,
            name: nic.name.clone(),
            counted: counted(facts, nic),
            reads_at_most: wire,
            writes_at_most: wire,
            why: speed.unwrap_or_default(),
            ..Part::default()
        });
        let Some(pcie) = &nic.pcie else { continue };
        let slot = pcie.address.split('.').next().unwrap_or(&pcie.address);
        match slots.iter_mut().find(|(known, _)| *known == slot) {
            Some((_, ports)) => ports.push(nic),
            None => slots.push((slot, vec![nic])),
        }
    }
    parts.extend(slots.into_iter().filter_map(|(address, ports)| slot(facts, address, &ports)));
    parts
}

/// A slot that carries less than the links of its ports do.
fn slot(facts: &Facts, address: &str, ports: &[&Nic]) -> Option<Part> {
    let carries = network::pcie_payload(ports.first()?.pcie.as_ref()?, Level::Usual)?.rate;
    let links: f64 =
        ports.iter().filter_map(|nic| nic.speed_mbit).map(|mbit| mbit as f64 * 125_000.0).sum();
    let lanes = ports.first().and_then(|nic| nic.pcie.as_ref());
    let lanes = lanes.and_then(|pcie| Some((pcie.generation?, pcie.width?)));
    (carries < links).then(|| Part {
        kind: PartKind::Slot,
        name: address.to_owned(),
        counted: ports.iter().flat_map(|nic| counted(facts, nic)).collect(),
        reads_at_most: Some(carries as u64),
        writes_at_most: Some(carries as u64),
        why: lanes.map_or_else(
            || "PCIe".to_owned(),
            |(generation, width)| format!("PCIe {generation}.0 x{width}"),
        ),
        ..Part::default()
    })
}

/// What the kernel counts for an interface: its own packets, and those of RDMA, which pass it by. Soft RoCE uses the
/// interface itself, and counts no bytes.
fn counted(facts: &Facts, nic: &Nic) -> Vec<String> {
    let of = |netdev: &Option<String>| netdev.as_ref() == Some(&nic.name);
    let ports = facts.rdma.iter().filter(|port| of(&port.netdev));
    let ports = ports.map(|port| format!("{}/ports/{}", port.device, port.port));
    std::iter::once(nic.name.clone()).chain(ports).collect()
}

/// A line of mountinfo (proc_pid_mountinfo(5)).
struct Mount {
    point: String,
    /// `8:1`; the major number 0 is no device's.
    device: String,
    kind: String,
    source: String,
}

impl Mount {
    fn all(source: &dyn Source) -> Vec<Self> {
        let text = source.read("/proc/self/mountinfo").unwrap_or_default();
        text.lines().filter_map(Self::read).collect()
    }

    fn read(line: &str) -> Option<Self> {
        let (mount, of) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(2);
        let (device, point) = (words.next()?, words.nth(1)?);
        let mut of = of.split(' ');
        Some(Self {
            point: unescaped(point),
            device: device.to_owned(),
            kind: of.next()?.to_owned(),
            source: unescaped(of.next()?),
        })
    }

    fn holds(&self, path: &str) -> bool {
        path.strip_prefix(self.point.trim_end_matches('/'))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// A word of mountinfo: white space and backslashes are written as three octal digits.
fn unescaped(word: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(word.to_owned(), |word, (escape, plain)| word.replace(escape, plain))
}

/// What is below a path.
struct Below<'a> {
    source: &'a dyn Source,
    facts: &'a Facts,
    mounts: &'a [Mount],
    pools: Vec<String>,
    drives: Vec<String>,
}

impl Below<'_> {
    /// What is below a file or device.
    fn file(&mut self, path: &str, depth: usize) {
        if depth > DEEPEST {
            return;
        }
        if let Some(device) = path.strip_prefix("/dev/") {
            return self.named(device, depth);
        }
        // Of two at the same point the later one hides the earlier one.
        let holds = self.mounts.iter().filter(|mount| mount.holds(path));
        let Some(mount) = holds.max_by_key(|mount| mount.point.len()) else { return };
        if mount.kind == "zfs" {
            let pool = mount.source.split('/').next().unwrap_or(&mount.source);
            return self.pool(pool.to_owned());
        }
        if !mount.device.starts_with("0:") {
            let name = self.source.link_name(&format!("/sys/dev/block/{}", mount.device));
            return name.into_iter().for_each(|name| self.device(&name, depth));
        }
        // A file system of several devices, such as btrfs, names one of them.
        if let Some(device) = mount.source.strip_prefix("/dev/") {
            self.named(device, depth);
        }
    }

    /// A device by its path in `/dev`.
    fn named(&mut self, path: &str, depth: usize) {
        if let Some(volume) = path.strip_prefix("zvol/") {
            let pool = volume.split('/').next().unwrap_or(volume);
            return self.pool(pool.to_owned());
        }
        let linked = self.source.link_name(&format!("/dev/{path}"));
        self.device(linked.as_deref().unwrap_or(path), depth);
    }

    /// A device by its kernel name.
    fn device(&mut self, name: &str, depth: usize) {
        if depth > DEEPEST {
            return;
        }
        let zvols = self.facts.zfs.iter().flat_map(|zfs| &zfs.zvols);
        let mut of_name = zvols.filter(|zvol| zvol.device.as_deref() == Some(name));
        if let Some(zvol) = of_name.next() {
            return self.pool(zvol.pool.clone());
        }
        let sys = format!("/sys/class/block/{name}");
        if let Some(file) = self.source.text(&format!("{sys}/loop/backing_file")) {
            return self.file(&file, depth + 1);
        }
        let slaves = self.source.names(&format!("{sys}/slaves"));
        if !slaves.is_empty() {
            return slaves.iter().for_each(|slave| self.device(slave, depth + 1));
        }
        let whole =
            |drive: &&Drive| drive.name == name || drive.partitions.iter().any(|part| part == name);
        let Some(drive) = self.facts.drives.iter().find(whole) else { return };
        if !self.drives.contains(&drive.name) {
            self.drives.push(drive.name.clone());
        }
    }

    fn pool(&mut self, pool: String) {
        if !self.pools.contains(&pool) {
            self.pools.push(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    /// The parts of a captured machine that serves one volume on all of its addresses.
    fn machine(name: &str, path: &str) -> Vec<Part> {
        let tree = format!("{}/tests/machines/{name}", env!("CARGO_MANIFEST_DIR"));
        let tree = Tree::open(tree.as_ref()).expect("it is there");
        parts(&tree, &PartsOf { portals: vec![[0; 4].into()], places: vec![place("vm", path)] })
    }

    fn place(volume: &str, path: &str) -> Place {
        Place { volume: volume.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn a_zvol_is_in_a_pool_on_all_of_its_drives() {
        let parts = machine("recipe", "/dev/zvol/tank/vm");
        let pool = parts.iter().find(|part| part.kind == PartKind::Pool).expect("it has one");
        assert_eq!((pool.name.as_str(), pool.volumes.as_slice()), ("tank", &["vm".to_owned()][..]));
        let drives: Vec<&Part> = parts.iter().filter(|part| part.kind == PartKind::Drive).collect();
        assert_eq!(drives.len(), pool.counted.len());
        assert_eq!(drives.len(), 8, "{drives:?}");
        assert!(
            drives.iter().all(|drive| drive.reads_at_most.is_some_and(|rate| rate > 3_000_000_000))
        );
        // 100 Gbit/s in a slot of PCIe 3.0 x16, which carries a little less.
        let link = parts.iter().find(|part| part.kind == PartKind::Link).expect("it has a card");
        assert_eq!((link.name.as_str(), link.reads_at_most), ("enp23s0np0", Some(12_500_000_000)));
        let slot = parts.iter().find(|part| part.kind == PartKind::Slot).expect("it binds");
        assert!(slot.reads_at_most < link.reads_at_most, "{slot:?}");
        assert_eq!(slot.counted, link.counted);
    }

    #[test]
    fn what_only_this_machine_can_reach_passes_no_link() {
        let tree = format!("{}/tests/machines/recipe", env!("CARGO_MANIFEST_DIR"));
        let tree = Tree::open(tree.as_ref()).expect("it is there");
        let portals = vec![[127, 0, 0, 1].into(), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];
        assert!(parts(&tree, &PartsOf { portals, places: vec![] }).is_empty());
    }

    #[test]
    fn a_path_is_followed_to_its_drive() {
        let mut drive =
            Drive { name: "sda".into(), partitions: vec!["sda2".into()], ..Drive::default() };
        drive.transport = Some("sata".into());
        let facts = Facts { drives: vec![drive], ..Facts::default() };
        let tree = Tree::parse(
            "/proc/self/mountinfo:
| 1 0 254:0 / / rw - ext4 /dev/dm-0 rw
| 2 1 0:44 / /srv/a\\040b rw shared:1 - btrfs /dev/mapper/data rw
| 3 1 7:0 / /srv/loop rw - ext4 /dev/loop0 rw
| 4 1 0:45 / /tmp rw - tmpfs tmpfs rw
/sys/dev/block/254:0 -> ../../devices/virtual/block/dm-0
/sys/dev/block/7:0 -> ../../devices/virtual/block/loop0
/sys/class/block/dm-0/slaves/sda2 -> ../../../../sda/sda2
/sys/class/block/loop0/loop/backing_file: /srv/a b/image
/dev/mapper/data -> ../dm-0
",
        )
        .expect("it is a tree");
        let on = |path: &str| -> Vec<String> {
            let parts = parts_of(&tree, &facts, &[place("v", path)]);
            parts.into_iter().map(|part| part.name).collect()
        };
        for path in ["/var/lib/v", "/srv/a b/v", "/srv/loop/v", "/dev/sda2", "/dev/mapper/data"] {
            assert_eq!(on(path), ["sda"], "{path}");
        }
        for path in ["/tmp/v", "/dev/nbd0", "relative"] {
            assert!(on(path).is_empty(), "{path}");
        }
        let sata = &parts_of(&tree, &facts, &[place("v", "/v"), place("w", "/dev/sda")])[0];
        assert_eq!(sata.volumes, ["v", "w"]);
        assert_eq!(sata.reads_at_most, Some(550_000_000));
    }

    #[test]
    fn a_virtual_drive_has_no_ceiling() {
        let parts = machine("vm-virtio", "/dev/vda");
        let drive = parts.iter().find(|part| part.kind == PartKind::Drive).expect("it is there");
        assert_eq!((drive.reads_at_most, drive.rotational), (None, false), "{drive:?}");
    }
}
