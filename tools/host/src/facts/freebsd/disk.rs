//! Drives and what they hang on: geom, camcontrol, nvmecontrol, smartctl, pciconf, gmultipath, gpart.

use serde::{Deserialize, Serialize};

use super::super::drive::{Smart, smart};
use super::super::parse::colon_lines;
use crate::source::Source;

/// A whole drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FreeBsdDisk {
    /// `ada0`, `da3`, `nda0`, `nvd0`.
    pub name: String,
    /// Maker and model, as the drive says.
    pub model: Option<String>,
    /// Size in bytes.
    pub size_bytes: Option<i64>,
    /// Block that it is addressed by, in bytes.
    pub sector_bytes: Option<i64>,
    /// Block that it stores, in bytes (Stripesize); 0 if it does not say.
    pub physical_bytes: Option<i64>,
    /// Whether it has disks that turn; `null` if it does not say.
    pub rotational: Option<bool>,
    /// Commands that CAM lets it have at once.
    pub tags: Option<i64>,
    /// Whether it is attached by USB.
    pub usb: bool,
    /// What it says of its own health, by smartctl.
    pub smart: Option<Smart>,
    /// The pool that it belongs to.
    pub pool: Option<String>,
}

/// A controller of NVMe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmeController {
    /// `nvme0`.
    pub name: String,
    /// Its model.
    pub model: Option<String>,
    /// Block of its first namespace, in bytes.
    pub block_bytes: Option<i64>,
    /// Blocks that the namespace can be formatted with, without metadata, in bytes.
    pub formats: Vec<i64>,
    /// Bits of the critical warning; 0 = none.
    pub critical_warning: Option<i64>,
    /// Temperature in degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// Spare blocks that are left, in percent.
    pub spare_percent: Option<i64>,
    /// Below this the drive warns.
    pub spare_threshold_percent: Option<i64>,
    /// How much of its life is used up, in percent; may be more than 100.
    pub used_percent: Option<i64>,
    /// Errors of the medium that it could not correct.
    pub media_errors: Option<i64>,
    /// Minutes that it was hotter than its warning temperature.
    pub hot_minutes: Option<i64>,
}

/// A PCI function with a link of PCI Express.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciFunction {
    /// `nvme0`, `ix0`, `mps0`; `none3` without a driver.
    pub name: String,
    /// Base class: `network`, `storage` or `other`.
    pub kind: String,
    /// What it is, by the list of PCI devices.
    pub device: Option<String>,
    /// Lanes in use.
    pub lanes: Option<i64>,
    /// Lanes that it has.
    pub max_lanes: Option<i64>,
    /// Speed of a lane now, in MT/s: 8.0 is 8000.
    pub lane_mts: Option<i64>,
    /// Speed that a lane can have.
    pub max_lane_mts: Option<i64>,
    /// What the link carries in one direction, in bytes per second.
    pub bytes_per_second: Option<i64>,
    /// The NUMA domain that it is in.
    pub domain: Option<i64>,
    /// What the function's own link could carry.
    pub max_bytes_per_second: Option<i64>,
}

/// A label and what it stands for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Label {
    /// `gptid/5f2c...`, `gpt/zfs0`.
    pub name: String,
    /// The partition: `ada0p2`.
    pub partition: String,
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionStart {
    /// `ada0p2`.
    pub name: String,
    /// Its kind: `freebsd-zfs`.
    pub kind: String,
    /// Where it begins, in sectors.
    pub start_sector: i64,
}

/// A path of a multipath device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathState {
    /// `multipath/disk1`.
    pub device: String,
    /// Of the device: `OPTIMAL`, `DEGRADED`, `BROKEN`.
    pub state: String,
    /// The drive of the path: `da3`.
    pub path: String,
    /// Of the path: `ACTIVE`, `PASSIVE`, `READ`, `FAIL`.
    pub path_state: String,
}

/// Reads `geom disk list`, and asks each drive.
pub(super) fn disks(source: &dyn Source) -> Vec<FreeBsdDisk> {
    let text = source.output("geom", &["disk", "list"]).unwrap_or_default();
    let mut all: Vec<FreeBsdDisk> = text.split("Geom name: ").skip(1).map(of_geom).collect();
    // Optical drives, card readers and drives without a medium.
    all.retain(|disk| {
        disk.size_bytes.is_some_and(|bytes| bytes > 0) && !disk.name.starts_with("cd")
    });
    for disk in &mut all {
        if disk.name.starts_with("ada") || disk.name.starts_with("da") {
            (disk.tags, disk.usb) = tags(source, &disk.name);
            disk.smart = smart::read(source, &disk.name);
        }
    }
    all
}

fn of_geom(text: &str) -> FreeBsdDisk {
    let get = |key: &str| colon_lines(text).find(|(name, _)| *name == key).map(|(_, value)| value);
    let number = |key: &str| get(key)?.split_whitespace().next()?.parse::<i64>().ok();
    FreeBsdDisk {
        name: text.lines().next().unwrap_or_default().trim().to_owned(),
        model: get("descr").filter(|model| *model != "(null)").map(str::to_owned),
        size_bytes: number("Mediasize"),
        sector_bytes: number("Sectorsize"),
        physical_bytes: number("Stripesize"),
        // `rotationrate: 7200`, `0` for flash, `unknown`.
        rotational: number("rotationrate").map(|rate| rate > 0),
        ..FreeBsdDisk::default()
    }
}

/// `(pass0:ahcich0:0:0:0): dev_openings  31` and `dev_active    1`: both together are the limit. And whether the
/// drive hangs on USB (`umass-sim0`).
fn tags(source: &dyn Source, name: &str) -> (Option<i64>, bool) {
    let text = source.output("camcontrol", &["tags", name, "-v"]).unwrap_or_default();
    let get = |key: &str| {
        let line = text.lines().find_map(|line| line.split_once(key))?.1;
        line.trim().parse::<i64>().ok()
    };
    let limit = get("dev_openings").zip(get("dev_active")).map(|(open, active)| open + active);
    (limit, text.contains(":umass-sim"))
}

/// Reads `nvmecontrol devlist`, and asks each controller.
pub(super) fn nvme(source: &dyn Source) -> Vec<NvmeController> {
    let text = source.output("nvmecontrol", &["devlist"]).unwrap_or_default();
    let mut all: Vec<NvmeController> = Vec::new();
    for line in text.lines() {
        // ` nvme0: Samsung SSD 970 EVO`, and below it `    nvme0ns1 (476940MB)`.
        let (name, rest) = line.trim().split_once(['(', ':']).unwrap_or((line.trim(), ""));
        let name = name.trim();
        if line.trim().contains(':') && is_controller(name) {
            let model = Some(rest.trim().to_owned());
            all.push(NvmeController { name: name.to_owned(), model, ..NvmeController::default() });
        } else if let Some(nvme) = all.last_mut().filter(|nvme| nvme.formats.is_empty()) {
            if name.starts_with(&format!("{}ns", nvme.name)) {
                formats(source, name, nvme);
            }
        }
    }
    for nvme in &mut all {
        health(source, nvme);
    }
    all
}

fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|unit| unit.parse::<u32>().is_ok())
}

/// `Current LBA Format:          LBA Format #00` and `LBA Format #00: Data Size:   512  Metadata Size:     0 ...`.
fn formats(source: &dyn Source, namespace: &str, nvme: &mut NvmeController) {
    let text = source.output("nvmecontrol", &["identify", namespace]).unwrap_or_default();
    let current = text.lines().find_map(|line| line.strip_prefix("Current LBA Format:"));
    let current = current.map(str::trim);
    for line in text.lines().filter(|line| line.starts_with("LBA Format #")) {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let number = |key: &str| {
            let (_, value) = rest.split_once(key)?;
            super::super::parse::leading::<i64>(value)
        };
        let Some(bytes) = number("Data Size:") else { continue };
        if Some(name) == current {
            nvme.block_bytes = Some(bytes);
        }
        if number("Metadata Size:") == Some(0) && bytes >= 512 {
            nvme.formats.push(bytes);
        }
    }
}

/// Log page 2.
fn health(source: &dyn Source, nvme: &mut NvmeController) {
    let Some(text) = source.output("nvmecontrol", &["logpage", "-p", "2", &nvme.name]) else {
        return;
    };
    // Below the critical warning, its bits are indented and named like other lines.
    let rows = || text.lines().filter(|line| !line.starts_with(' '));
    let get = |key: &str| {
        rows()
            .find_map(|line| line.strip_prefix(key))
            .map(|value| value.trim().trim_end_matches('%'))
    };
    let number = |key: &str| super::super::parse::leading::<i64>(get(key)?);
    nvme.critical_warning = get("Critical Warning State:")
        .and_then(|value| i64::from_str_radix(value.strip_prefix("0x")?, 16).ok());
    // `315 K, 41.85 C, 107.33 F`
    nvme.temperature_celsius = number("Temperature:").map(|kelvin| kelvin - 273);
    nvme.spare_percent = number("Available spare:");
    nvme.spare_threshold_percent = number("Available spare threshold:");
    nvme.used_percent = number("Percentage used:");
    nvme.media_errors = number("Media errors:");
    nvme.hot_minutes = number("Warning Temp Composite Time:");
}

/// Reads `pciconf -lvbc`: a line `nvme0@pci0:1:0:0: class=0x010802 ...` begins each function.
pub(super) fn pci(source: &dyn Source) -> Vec<PciFunction> {
    let text = source.output("pciconf", &["-lvbc"]).unwrap_or_default();
    let mut all: Vec<PciFunction> = Vec::new();
    for line in text.lines() {
        if let Some((name, rest)) = line.split_once("@pci").filter(|_| !line.starts_with(' ')) {
            let class = rest.split_once("class=0x").map_or("", |(_, class)| class);
            let kind = match class.get(..2) {
                Some("01") => "storage",
                Some("02") => "network",
                _ => "other",
            };
            all.push(PciFunction {
                name: name.to_owned(),
                kind: kind.to_owned(),
                ..PciFunction::default()
            });
        } else if let Some(function) = all.last_mut() {
            capability(function, line.trim());
        }
    }
    all.retain(|function| function.max_lanes.is_some());
    all
}

/// `device     = 'NVMe SSD Controller'`, and below `cap 10[70] = PCI-Express 2 endpoint ...`:
/// `link x4(x4) speed 8.0(8.0) ASPM disabled(L1)`.
fn capability(function: &mut PciFunction, line: &str) {
    if let Some(device) = line.strip_prefix("device").and_then(|rest| rest.trim().strip_prefix('='))
    {
        function.device = Some(device.trim().trim_matches('\'').to_owned());
    }
    let Some((_, link)) = line.split_once("link x").filter(|_| function.max_lanes.is_none()) else {
        return;
    };
    let (lanes, rest) = both(link);
    function.lanes = lanes.and_then(|lanes| lanes.parse().ok());
    let most = rest.and_then(|most| most.strip_prefix('x')?.parse().ok());
    function.max_lanes = most.filter(|most: &i64| *most > 0);
    let (speed, most) = link.split_once("speed ").map_or((None, None), |(_, speed)| both(speed));
    let mts = |speed: Option<&str>| {
        // `5.0`, `16.0`: a whole number of hundreds.
        let speed: f64 = speed?.parse().ok()?;
        Some((speed * 1000.0).round() as i64).filter(|mts| *mts > 0)
    };
    (function.lane_mts, function.max_lane_mts) = (mts(speed), mts(most));
    function.bytes_per_second = carries(function.lanes, function.lane_mts);
    function.max_bytes_per_second = carries(function.max_lanes, function.max_lane_mts);
}

/// `4(x8) speed...`: what stands before the bracket, and in it.
fn both(text: &str) -> (Option<&str>, Option<&str>) {
    match text.split_once('(') {
        Some((before, rest)) => (Some(before), rest.split(')').next()),
        None => (None, None),
    }
}

/// Lanes of 2.5 and 5 GT/s carry 8 of 10 bits, faster ones 128 of 130.
fn carries(lanes: Option<i64>, mts: Option<i64>) -> Option<i64> {
    let (lanes, mts) = (lanes?, mts?);
    let bits = if mts <= 5000 { mts * 800_000 } else { mts * 1_000_000 / 130 * 128 };
    Some(lanes * bits / 8)
}

/// `glabel status`: `gptid/5f2c...  N/A  ada0p2`.
pub(super) fn labels(source: &dyn Source) -> Vec<Label> {
    let text = source.output("glabel", &["status"]).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, _, partition] = words[..] else { return None };
            let label = Label { name: name.to_owned(), partition: partition.to_owned() };
            name.contains('/').then_some(label)
        })
        .collect()
}

/// `gpart show -p`: `      4194432  7809842696  ada0p2  freebsd-zfs  (3.6T)`.
pub(super) fn partitions(source: &dyn Source) -> Vec<PartitionStart> {
    let text = source.output("gpart", &["show", "-p"]).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with("=>"))
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, _, name, kind, ..] = words[..] else { return None };
            let start_sector = start.parse().ok()?;
            // `40  88  - free -  (44K)`
            let partition =
                PartitionStart { name: name.to_owned(), kind: kind.to_owned(), start_sector };
            (name != "-").then_some(partition)
        })
        .collect()
}

/// `gmultipath status`: the first path of a device stands in its own line.
pub(super) fn paths(source: &dyn Source) -> Vec<PathState> {
    let text = source.output("gmultipath", &["status"]).unwrap_or_default();
    let mut all: Vec<PathState> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (device, state, path, of_path) = match words[..] {
            [device, state, path, of_path] if device.starts_with("multipath/") => {
                (device.to_owned(), state.to_owned(), path, of_path)
            }
            [path, of_path] if of_path.starts_with('(') => match all.last() {
                Some(last) => (last.device.clone(), last.state.clone(), path, of_path),
                None => continue,
            },
            _ => continue,
        };
        let path_state = of_path.trim_matches(['(', ')']).to_owned();
        all.push(PathState { device, state, path: path.to_owned(), path_state });
    }
    all
}

/// The whole drive of a partition: `ada0` of `ada0p2`, `da1` of `da1s1a`.
pub(super) fn whole(partition: &str) -> String {
    let start = partition.find(|c: char| c.is_ascii_digit()).unwrap_or(partition.len());
    let digits = partition[start..].find(|c: char| !c.is_ascii_digit());
    partition[..digits.map_or(partition.len(), |digits| start + digits)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const TREE: &str = r#"$ geom disk list
| Geom name: ada0
| Providers:
| 1. Name: ada0
|    Mediasize: 4000787030016 (3.6T)
|    Sectorsize: 512
|    Stripesize: 4096
|    Stripeoffset: 0
|    Mode: r2w2e5
|    descr: WDC WD40EFRX-68N32N0
|    lunid: 50014ee2b0000000
|    ident: ***
|    rotationrate: 5400
|    fwsectors: 63
|    fwheads: 16
|
| Geom name: nda0
| Providers:
| 1. Name: nda0
|    Mediasize: 1000204886016 (932G)
|    Sectorsize: 512
|    Mode: r1w1e2
|    descr: Samsung SSD 970 EVO Plus 1TB
|    ident: ***
|    rotationrate: 0
|
| Geom name: cd0
| Providers:
| 1. Name: cd0
|    Mediasize: 0 (0B)
|    Sectorsize: 2048
|    descr: AMI Virtual CDROM0
$ camcontrol tags ada0 -v
| (pass0:ahcich0:0:0:0): dev_openings  31
| (pass0:ahcich0:0:0:0): dev_active    1
| (pass0:ahcich0:0:0:0): devq_openings 31
| (pass0:ahcich0:0:0:0): devq_queued   0
| (pass0:ahcich0:0:0:0): held          0
| (pass0:ahcich0:0:0:0): mintags       2
| (pass0:ahcich0:0:0:0): maxtags       255
$ smartctl -a -j /dev/ada0
| {"smart_status":{"passed":true},"interface_speed":{"max":{"string":"6.0 Gb/s"},"current":{"string":"3.0 Gb/s"}}}
$ nvmecontrol devlist
|  nvme0: Samsung SSD 970 EVO Plus 1TB
|     nvme0ns1 (953869MB)
|  nvme1: WDC CL SN720 SDAQNTW-512G-2000
|     nvme1ns1 (488386MB)
$ nvmecontrol identify nvme0ns1
| Size:                        1953525168 blocks
| Number of LBA Formats:       2
| Current LBA Format:          LBA Format #00
| LBA Format #00: Data Size:   512  Metadata Size:     0  Performance: Good
| LBA Format #01: Data Size:  4096  Metadata Size:     0  Performance: Best
| LBA Format #02: Data Size:  4096  Metadata Size:     8  Performance: Best
$ nvmecontrol logpage -p 2 nvme0
| SMART/Health Information Log
| ============================
| Critical Warning State:         0x04
|  Available spare:               0
|  Temperature:                   0
|  Device reliability:            1
|  Read only:                     0
|  Volatile memory backup:        0
| Temperature:                    315 K, 41.85 C, 107.33 F
| Available spare:                99
| Available spare threshold:      10
| Percentage used:                3
| Media errors:                   2
| Warning Temp Composite Time:    5
$ pciconf -lvbc
| nvme0@pci0:1:0:0:	class=0x010802 rev=0x00 hdr=0x00 vendor=0x144d device=0xa808 subvendor=0x144d subdevice=0xa801
|     vendor     = 'Samsung Electronics Co Ltd'
|     device     = 'NVMe SSD Controller SM981/PM981/PM983'
|     class      = mass storage
|     subclass   = NVM
|     bar   [10] = type Memory, range 64, base 0xf7200000, size 16384, enabled
|     cap 01[40] = powerspec 3  supports D0 D3  current D0
|     cap 10[70] = PCI-Express 2 endpoint max data 256(256) FLR NS
|                  max read 512
|                  link x2(x4) speed 8.0(8.0) ASPM disabled(L1)
| hostb0@pci0:0:0:0:	class=0x060000 rev=0x00 hdr=0x00 vendor=0x8086 device=0x0c08 subvendor=0x0000 subdevice=0x0000
|     class      = bridge
$ glabel status
|                                       Name  Status  Components
| gptid/5f2c1d3e-0000-11ec-8000-3cecef000000     N/A  ada0p2
$ gpart show -p
| =>        40  7814037088    ada0  GPT  (3.6T)
|           40          88          - free -  (44K)
|          128     4194304  ada0p1  freebsd-swap  (2.0G)
|      4194432  7809842696  ada0p2  freebsd-zfs  (3.6T)
|
$ gmultipath status
|            Name    Status  Components
| multipath/disk1  DEGRADED  da0 (ACTIVE)
|                            da12 (FAIL)
"#;

    #[test]
    fn reads_drives() {
        let tree = Tree::parse(TREE).unwrap();
        let found = disks(&tree);
        assert_eq!(found.len(), 2);
        let ada0 = &found[0];
        assert_eq!(
            (ada0.sector_bytes, ada0.physical_bytes, ada0.rotational),
            (Some(512), Some(4096), Some(true))
        );
        assert_eq!((ada0.tags, ada0.model.as_deref()), (Some(32), Some("WDC WD40EFRX-68N32N0")));
        let smart = ada0.smart.as_ref().unwrap();
        assert_eq!((smart.link_mbit, smart.link_max_mbit), (Some(3000), Some(6000)));
        assert_eq!(
            (found[1].rotational, found[1].tags, &found[1].smart),
            (Some(false), None, &None)
        );
    }

    #[test]
    fn reads_nvme() {
        let found = nvme(&Tree::parse(TREE).unwrap());
        let names: Vec<&str> = found.iter().map(|nvme| nvme.name.as_str()).collect();
        assert_eq!(names, ["nvme0", "nvme1"]);
        let nvme0 = &found[0];
        assert_eq!((nvme0.block_bytes, nvme0.formats.as_slice()), (Some(512), &[512, 4096][..]));
        assert_eq!((nvme0.critical_warning, nvme0.temperature_celsius), (Some(4), Some(42)));
        assert_eq!((nvme0.spare_percent, nvme0.spare_threshold_percent), (Some(99), Some(10)));
        assert_eq!(
            (nvme0.used_percent, nvme0.media_errors, nvme0.hot_minutes),
            (Some(3), Some(2), Some(5))
        );
        assert_eq!((found[1].block_bytes, found[1].used_percent), (None, None));
    }

    #[test]
    fn reads_links_labels_partitions_and_paths() {
        let tree = Tree::parse(TREE).unwrap();
        let found = pci(&tree);
        assert_eq!(found.len(), 1);
        let nvme0 = &found[0];
        assert_eq!(
            (nvme0.kind.as_str(), nvme0.lanes, nvme0.max_lanes),
            ("storage", Some(2), Some(4))
        );
        assert_eq!((nvme0.lane_mts, nvme0.max_lane_mts), (Some(8000), Some(8000)));
        assert_eq!(nvme0.bytes_per_second.map(|bytes| bytes / 1_000_000), Some(1969));
        assert_eq!(labels(&tree)[0].partition, "ada0p2");
        let found = partitions(&tree);
        let seen: Vec<(&str, i64)> =
            found.iter().map(|p| (p.name.as_str(), p.start_sector)).collect();
        assert_eq!(seen, [("ada0p1", 128), ("ada0p2", 4_194_432)]);
        let found = paths(&tree);
        let seen: Vec<(&str, &str)> =
            found.iter().map(|p| (p.path.as_str(), p.path_state.as_str())).collect();
        assert_eq!(seen, [("da0", "ACTIVE"), ("da12", "FAIL")]);
        assert_eq!(
            (found[1].device.as_str(), found[1].state.as_str()),
            ("multipath/disk1", "DEGRADED")
        );
        assert_eq!(
            (whole("ada0p2").as_str(), whole("da1s1a").as_str(), whole("nda0").as_str()),
            ("ada0", "da1", "nda0")
        );
    }
}
