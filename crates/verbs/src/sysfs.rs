//! What the kernel tells of RDMA devices without any library: ports, links and GIDs.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use crate::Error;

/// What a GID is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// An InfiniBand port's GID, or one of RoCE v1: the kernel has one word for both. RoCE v1 frames
    /// are not routed, and rdma_cm does not use them unless it is told to.
    InfiniBandOrRoceV1,
    /// RoCE v2: over UDP, port 4791.
    RoceV2,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u16,
    /// The 128 bits.
    pub bytes: [u8; 16],
    /// What it is good for.
    pub kind: GidKind,
    /// The network interface that it was made for.
    pub interface: Option<String>,
}

impl Gid {
    /// The IP address that the GID stands for. For InfiniBand it is none of anybody's.
    pub fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.bytes).to_canonical()
    }
}

/// A port of a device, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// The device's name.
    pub device: String,
    /// The port's number, from 1 on.
    pub port: u8,
    /// Its logical state: ACTIVE, DOWN, INIT, ARMED.
    pub state: String,
    /// Its physical state: LinkUp, Disabled, Polling.
    pub physical: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// Its speed in the kernel's words: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// Its addresses, without the empty places of the table.
    pub gids: Vec<Gid>,
}

impl PortFacts {
    /// True if frames can pass.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// The folder in which the kernel lists its RDMA devices.
#[derive(Clone, Debug)]
pub struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        #[cfg(feature = "simulated")]
        if let Some(folder) = crate::simulated::sysfs() {
            return Self(folder);
        }
        Self("/sys/class/infiniband".into())
    }
}

impl Sysfs {
    /// A folder that looks like `/sys/class/infiniband`: that of a captured machine, or of a test.
    pub fn at(folder: &Path) -> Self {
        Self(folder.into())
    }

    /// The names of all devices, in order; none where the kernel has no RDMA.
    pub fn devices(&self) -> Vec<String> {
        names(&self.0)
    }

    /// The names of the devices that programs can open. One that goes away is not among them, although the
    /// kernel names it until the last program has let go of it.
    pub fn usable(&self) -> Vec<String> {
        let folder = self.0.with_file_name("infiniband_verbs");
        let device = |name: &String| read(&folder.join(name).join("ibdev"));
        let mut devices: Vec<String> = names(&folder).iter().filter_map(device).collect();
        devices.sort_unstable();
        devices
    }

    /// The driver of the device that an RDMA device is on: the network adapter's, mostly. `None` for one that is on
    /// no hardware.
    pub fn driver(&self, device: &str) -> Option<String> {
        let driver = fs::read_link(self.0.join(device).join("device/driver")).ok()?;
        Some(driver.file_name()?.to_string_lossy().into_owned())
    }

    /// All ports of all devices.
    pub fn ports(&self) -> Vec<PortFacts> {
        let mut ports = Vec::new();
        for device in self.devices() {
            let folder = self.0.join(&device).join("ports");
            let mut numbers: Vec<u8> =
                names(&folder).iter().filter_map(|n| n.parse().ok()).collect();
            numbers.sort_unstable();
            for port in numbers {
                ports.push(port_facts(&device, port, &folder.join(port.to_string())));
            }
        }
        ports
    }

    /// The port that carries an address, and the GID for it, as they are now.
    ///
    /// # Errors
    /// As [`port_of`].
    pub fn port_of(&self, address: IpAddr) -> Result<(PortFacts, Gid), Error> {
        port_of(&self.ports(), address)
    }
}

/// The port that carries an address, and the GID for it; a port with a link is preferred.
///
/// # Errors
/// [`Error::NoDevice`], [`Error::NoRoceV2`] or [`Error::LinkDown`].
pub fn port_of(ports: &[PortFacts], address: IpAddr) -> Result<(PortFacts, Gid), Error> {
    let mut worst = Error::NoDevice { address };
    for port in ports {
        let mut gids = port.gids.iter().filter(|gid| gid.address() == address).peekable();
        if gids.peek().is_none() {
            continue;
        }
        let usable = |gid: &&Gid| gid.kind == GidKind::RoceV2 || port.link_layer != "Ethernet";
        let device = port.device.clone();
        let Some(gid) = gids.find(usable) else {
            worst = Error::NoRoceV2 { device, port: port.port, address };
            continue;
        };
        if port.is_active() {
            return Ok((port.clone(), gid.clone()));
        }
        let state = format!("{} ({})", port.state, port.physical);
        worst = Error::LinkDown { device, port: port.port, state };
    }
    Err(worst)
}

fn port_facts(device: &str, port: u8, folder: &Path) -> PortFacts {
    let word = |name: &str| read(&folder.join(name)).unwrap_or_default();
    // "4: ACTIVE"
    let behind_number =
        |text: String| text.split_once(": ").map(|(_, s)| s.to_string()).unwrap_or(text);
    let mut indices: Vec<u16> =
        names(&folder.join("gids")).iter().filter_map(|n| n.parse().ok()).collect();
    indices.sort_unstable();
    PortFacts {
        device: device.to_string(),
        port,
        state: behind_number(word("state")),
        physical: behind_number(word("phys_state")),
        link_layer: word("link_layer"),
        rate: word("rate"),
        gids: indices.into_iter().filter_map(|index| gid(folder, index)).collect(),
    }
}

/// One place of the table; `None` if it is empty. The kernel answers EINVAL for the type of one
/// that is.
fn gid(folder: &Path, index: u16) -> Option<Gid> {
    let bytes = parse_gid(&read(&folder.join(format!("gids/{index}")))?)?;
    if bytes == [0; 16] {
        return None;
    }
    let kind = match read(&folder.join(format!("gid_attrs/types/{index}")))?.as_str() {
        "RoCE v2" => GidKind::RoceV2,
        _ => GidKind::InfiniBandOrRoceV1,
    };
    let interface = read(&folder.join(format!("gid_attrs/ndevs/{index}")));
    Some(Gid { index, bytes, kind, interface })
}

/// `0000:0000:0000:0000:0000:ffff:c000:0201`
fn parse_gid(text: &str) -> Option<[u8; 16]> {
    text.parse::<Ipv6Addr>().ok().map(|address| address.octets())
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_string())
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port with GIDs: index, GID, type, interface.
    fn port(root: &Path, name: &str, state: &str, layer: &str, gids: &[(u16, &str, &str, &str)]) {
        let folder = root.join(name);
        let put = |file: String, text: &str| {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, format!("{text}\n")).expect("a file");
        };
        put("state".into(), state);
        put("phys_state".into(), "5: LinkUp");
        put("link_layer".into(), layer);
        put("rate".into(), "100 Gb/sec (4X EDR)");
        for (index, gid, kind, interface) in gids {
            put(format!("gids/{index}"), gid);
            put(format!("gid_attrs/types/{index}"), kind);
            put(format!("gid_attrs/ndevs/{index}"), interface);
        }
    }

    const V4: &str = "0000:0000:0000:0000:0000:ffff:c000:0201";
    const LOCAL: &str = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

    #[test]
    fn ports_and_their_gids_are_read() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let gids = [
            (10, V4, "RoCE v2", "eth1"),
            (9, V4, "IB/RoCE v1", "eth1"),
            (0, LOCAL, "RoCE v2", "eth1"),
            (11, EMPTY, "", ""),
        ];
        port(root.path(), "mlx5_0/ports/1", "4: ACTIVE", "Ethernet", &gids);
        let sysfs = Sysfs::at(root.path());
        assert_eq!(sysfs.devices(), ["mlx5_0"]);
        let ports = sysfs.ports();
        assert_eq!(ports.len(), 1);
        let found = &ports[0];
        assert!(found.is_active());
        assert_eq!(
            (found.physical.as_str(), found.rate.as_str()),
            ("LinkUp", "100 Gb/sec (4X EDR)")
        );
        assert_eq!(found.gids.iter().map(|g| g.index).collect::<Vec<_>>(), [0, 9, 10]);
        let (port, gid) = sysfs.port_of([192, 0, 2, 1].into()).expect("it is there");
        assert_eq!((port.device.as_str(), port.port, gid.index), ("mlx5_0", 1, 10));
        assert_eq!((gid.kind, gid.interface.as_deref()), (GidKind::RoceV2, Some("eth1")));
        let local: Ipv6Addr = LOCAL.parse().expect("an address");
        assert_eq!(sysfs.port_of(local.into()).expect("it is there").1.index, 0);
    }

    #[test]
    fn a_device_that_goes_away_cannot_be_opened() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let at = |path: &str| root.path().join(path);
        for folder in ["infiniband/a", "infiniband/b", "infiniband_verbs/uverbs3"] {
            fs::create_dir_all(at(folder)).expect("a folder");
        }
        fs::write(at("infiniband_verbs/abi_version"), "6\n").expect("a file");
        fs::write(at("infiniband_verbs/uverbs3/ibdev"), "b\n").expect("a file");
        let sysfs = Sysfs::at(&at("infiniband"));
        assert_eq!(sysfs.devices(), ["a", "b"]);
        assert_eq!(sysfs.usable(), ["b"]);
    }

    #[test]
    fn why_an_address_cannot_be_used_is_told_apart() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let sysfs = Sysfs::at(root.path());
        let address = IpAddr::from([192, 0, 2, 1]);
        let why = || sysfs.port_of(address).expect_err("not usable");
        assert!(matches!(why(), Error::NoDevice { .. }));
        let v1 = [(0, V4, "IB/RoCE v1", "eth1")];
        port(root.path(), "a/ports/1", "4: ACTIVE", "Ethernet", &v1);
        assert!(matches!(why(), Error::NoRoceV2 { port: 1, .. }), "{}", why());
        let v2 = [(0, V4, "RoCE v2", "eth1")];
        port(root.path(), "b/ports/2", "1: DOWN", "Ethernet", &v2);
        assert!(matches!(why(), Error::LinkDown { port: 2, .. }), "{}", why());
        port(root.path(), "c/ports/1", "4: ACTIVE", "Ethernet", &v2);
        assert_eq!(sysfs.port_of(address).expect("the third").0.device, "c");
    }

    #[test]
    fn an_infiniband_port_needs_no_roce() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let gids = [(0, LOCAL, "IB/RoCE v1", "ib0")];
        port(root.path(), "ib/ports/1", "4: ACTIVE", "InfiniBand", &gids);
        let address: Ipv6Addr = LOCAL.parse().expect("an address");
        assert!(Sysfs::at(root.path()).port_of(address.into()).is_ok());
    }

    #[test]
    fn broken_files_are_no_gids() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let gids = [(0, "nonsense", "RoCE v2", "x"), (1, V4, "", "x"), (2, LOCAL, "RoCE v2", "")];
        port(root.path(), "a/ports/1", "4: ACTIVE", "Ethernet", &gids);
        let ports = Sysfs::at(root.path()).ports();
        assert_eq!(ports[0].gids.len(), 1);
        assert_eq!(ports[0].gids[0].interface, None);
    }
}
