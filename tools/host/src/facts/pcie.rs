//! PCIe links.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse::leading;
use crate::source::Source;

/// The link of a PCIe device, now and at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pcie {
    /// `0000:41:00.0`.
    pub address: String,
    /// The device's own name for itself, as numbers: `15b3:1017`.
    pub id: Option<String>,
    /// Generation of the link now: 3 = 8 GT/s, 4 = 16 GT/s, 5 = 32 GT/s.
    #[serde(rename = "gen")]
    pub generation: Option<i64>,
    /// Lanes in use.
    pub width: Option<i64>,
    /// Generation that the device could have.
    pub gen_max: Option<i64>,
    /// Lanes that the device could use.
    pub width_max: Option<i64>,
    /// Generation that the port above it could have: a slot may be older than the card in it.
    pub port_gen_max: Option<i64>,
    /// Lanes that the port above it could use.
    pub port_width_max: Option<i64>,
    /// What the link carries in one direction now, in bytes per second, after line coding and
    /// before packet headers.
    pub bytes_per_second: Option<i64>,
    /// What it could carry by the device's own maximum.
    pub bytes_per_second_max: Option<i64>,
    /// Whether the link may save power (ASPM L1).
    pub aspm_l1: Option<bool>,
    /// Largest packet of data, in bytes (only root may see it).
    pub max_payload_bytes: Option<i64>,
    /// Largest read that the device asks for, in bytes (only root may see it).
    pub max_read_request_bytes: Option<i64>,
    /// Power state now: `D0` = awake.
    pub power_state: Option<String>,
    /// Errors that the device has reported (AER): `correctable`, `nonfatal`, `fatal`, and those of a kind as
    /// `CmpltTO`, `BadTLP`, `RxErr`, that are not 0.
    pub errors: BTreeMap<String, i64>,
    /// What the narrowest link above its own carries in one direction, in bytes per second, where there is one that
    /// carries no more: a switch with several devices shares its uplink.
    pub uplink_bytes_per_second: Option<i64>,
    /// The port whose link that is.
    pub uplink: Option<String>,
    /// How the IOMMU treats it: `identity`, `DMA` (strict), `DMA-FQ` (lazy).
    pub iommu: Option<String>,
    /// Whether it may be given to the firmware's or kernel's runtime power management: `on`, `auto`.
    pub runtime_pm: Option<String>,
    /// Largest packet of data that it could take, in bytes (only root may see it).
    pub max_payload_possible_bytes: Option<i64>,
    /// Whether its writes may overtake others (only root may see it).
    pub relaxed_ordering: Option<bool>,
}

const SYS: &str = "/sys/bus/pci/devices";

/// Whether the word is a PCI address: `0000:41:00.0`.
pub(super) fn is_address(word: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = word.split([':', '.']);
    word.len() >= 12
        && parts.clone().count() == 4
        && parts.all(hex)
        && word.as_bytes()[word.len() - 2] == b'.'
}

/// The last PCI device on a path of /sys/devices.
pub(super) fn on_path(path: &str) -> Option<&str> {
    path.split('/').rev().find(|part| is_address(part))
}

/// NUMA node of a PCI device; -1 is none.
pub(super) fn numa_node(source: &dyn Source, address: &str) -> Option<i64> {
    source.int(&format!("{SYS}/{address}/numa_node")).filter(|&node| node >= 0)
}

/// Reads about the link of a PCI device.
pub(super) fn read(source: &dyn Source, address: &str) -> Option<Pcie> {
    let device = format!("{SYS}/{address}");
    let generation = |path: &str| generation(&source.text(path)?);
    let width = |path: &str| source.int(path).filter(|width| (1..=32).contains(width));
    let vendor = source.text(&format!("{device}/vendor"))?;
    let hex = |text: &str| text.trim_start_matches("0x").to_owned();
    let mut link = Pcie {
        address: address.to_owned(),
        id: source
            .text(&format!("{device}/device"))
            .map(|model| format!("{}:{}", hex(&vendor), hex(&model))),
        generation: generation(&format!("{device}/current_link_speed")),
        width: width(&format!("{device}/current_link_width")),
        gen_max: generation(&format!("{device}/max_link_speed")),
        width_max: width(&format!("{device}/max_link_width")),
        aspm_l1: source.flag(&format!("{device}/link/l1_aspm")),
        power_state: source.text(&format!("{device}/power_state")),
        ..Pcie::default()
    };
    if let Some(port) = port_above(source, address) {
        link.port_gen_max = generation(&format!("{SYS}/{port}/max_link_speed"));
        link.port_width_max = width(&format!("{SYS}/{port}/max_link_width"));
    }
    link.bytes_per_second = bytes_per_second(link.generation, link.width);
    link.bytes_per_second_max = bytes_per_second(link.gen_max, link.width_max);
    if let Some(text) = source.output("lspci", &["-vv", "-s", address]) {
        link.max_payload_bytes = device_control(&text, "MaxPayload");
        link.max_read_request_bytes = device_control(&text, "MaxReadReq");
        let able = text.lines().find(|line| line.trim_start().starts_with("DevCap:"));
        link.max_payload_possible_bytes =
            able.and_then(|line| line.split_once("MaxPayload ")?.1.split(' ').next()?.parse().ok());
        link.relaxed_ordering = match (text.contains("RlxdOrd+"), text.contains("RlxdOrd-")) {
            (false, false) => None,
            (on, _) => Some(on),
        };
    }
    link.errors = errors(source, &device);
    uplink(source, address, &mut link);
    let group = source.text(&format!("{device}/iommu_group/type"));
    link.iommu = group.or_else(|| {
        let number = source.link_name(&format!("{device}/iommu_group"))?;
        source.text(&format!("/sys/kernel/iommu_groups/{number}/type"))
    });
    link.runtime_pm = source.text(&format!("{device}/power/control"));
    Some(link)
}

/// `CmpltTO 14`, and the sum in the last line.
fn errors(source: &dyn Source, device: &str) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for kind in ["correctable", "nonfatal", "fatal"] {
        let Some(text) = source.read(&format!("{device}/aer_dev_{kind}")) else { continue };
        for line in text.lines() {
            let Some((name, count)) = line.split_once(' ') else { continue };
            let Ok(count) = count.trim().parse::<i64>() else { continue };
            if name.starts_with("TOTAL_ERR") {
                all.insert(kind.to_owned(), count);
            } else if count > 0 {
                *all.entry(name.to_owned()).or_insert(0) += count;
            }
        }
    }
    all
}

/// Looks at the links of all ports between the device's own and the root: each port but the first of a switch has
/// a link to the next one above.
fn uplink(source: &dyn Source, address: &str, link: &mut Pcie) {
    let Some(path) = source.link(&format!("{SYS}/{address}")) else { return };
    let above: Vec<&str> =
        path.split('/').rev().skip(1).take_while(|part| is_address(part)).collect();
    // The port that the device hangs on has the device's own link; the upstream ports of switches have theirs.
    for port in above.iter().skip(1) {
        let read = |file: &str| source.text(&format!("{SYS}/{port}/{file}"));
        let speed = read("current_link_speed").and_then(|text| generation(&text));
        let width = read("current_link_width").and_then(|text| text.parse().ok());
        let carries = bytes_per_second(speed, width);
        let (Some(carries), Some(own)) = (carries, link.bytes_per_second) else { continue };
        if carries < link.uplink_bytes_per_second.unwrap_or(own + 1) {
            link.uplink_bytes_per_second = Some(carries);
            link.uplink = Some((*port).to_owned());
        }
    }
}

/// The port that the device's link starts from.
fn port_above(source: &dyn Source, address: &str) -> Option<String> {
    let path = source.link(&format!("{SYS}/{address}"))?;
    let mut parts = path.split('/').rev();
    parts.next();
    parts.next().filter(|part| is_address(part)).map(str::to_owned)
}

/// `16.0 GT/s PCIe` is generation 4.
fn generation(speed: &str) -> Option<i64> {
    match speed.split_whitespace().next()? {
        "2.5" => Some(1),
        "5.0" | "5" => Some(2),
        "8.0" | "8" => Some(3),
        "16.0" | "16" => Some(4),
        "32.0" | "32" => Some(5),
        "64.0" | "64" => Some(6),
        _ => None,
    }
}

/// What a link carries in one direction after line coding: 8b/10b up to generation 2, 128b/130b up
/// to 5, 242 of 256 bytes of a flit from 6.
pub(crate) fn bytes_per_second(generation: Option<i64>, width: Option<i64>) -> Option<i64> {
    let lane = match generation? {
        1 => 250_000_000,
        2 => 500_000_000,
        3 => 984_615_384,
        4 => 1_969_230_769,
        5 => 3_938_461_538,
        6 => 7_562_500_000,
        _ => return None,
    };
    Some(lane * width?)
}

/// From the lines that say how the device is set, not what it could do:
/// `DevCtl: ... MaxPayload 256 bytes, MaxReadReq 512 bytes`.
fn device_control(text: &str, name: &str) -> Option<i64> {
    let (_, rest) = text.split_once("DevCtl:")?;
    let (_, rest) = rest.split_once(name)?;
    leading(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_a_link_that_the_slot_holds_back() {
        let tree = Tree::parse(
            "/sys/bus/pci/devices/0000:41:00.0 -> ../../../devices/pci0000:40/0000:40:01.1/0000:41:00.0
/sys/bus/pci/devices/0000:41:00.0/vendor: 0x15b3
/sys/bus/pci/devices/0000:41:00.0/device: 0x1017
/sys/bus/pci/devices/0000:41:00.0/current_link_speed: 8.0 GT/s PCIe
/sys/bus/pci/devices/0000:41:00.0/current_link_width: 8
/sys/bus/pci/devices/0000:41:00.0/max_link_speed: 16.0 GT/s PCIe
/sys/bus/pci/devices/0000:41:00.0/max_link_width: 16
/sys/bus/pci/devices/0000:40:01.1/max_link_speed: 8.0 GT/s PCIe
/sys/bus/pci/devices/0000:40:01.1/max_link_width: 8
$ lspci -vv -s 0000:41:00.0
| \t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0
| \t\tDevCtl:\tCorrErr- NonFatalErr- FatalErr- UnsupReq-
| \t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
",
        )
        .unwrap();
        let link = read(&tree, "0000:41:00.0").unwrap();
        assert_eq!(link.id.as_deref(), Some("15b3:1017"));
        assert_eq!((link.generation, link.width), (Some(3), Some(8)));
        assert_eq!((link.gen_max, link.width_max), (Some(4), Some(16)));
        assert_eq!((link.port_gen_max, link.port_width_max), (Some(3), Some(8)));
        assert_eq!(link.bytes_per_second, Some(7_876_923_072));
        assert_eq!(link.max_payload_bytes, Some(256));
        assert_eq!(link.max_read_request_bytes, Some(512));
    }

    #[test]
    fn tells_addresses_from_other_names() {
        assert!(is_address("0000:41:00.0"));
        for other in ["virtio2", "0000:41:00", "session1", "0:0:0:0", "nvme0"] {
            assert!(!is_address(other), "{other}");
        }
    }
}
