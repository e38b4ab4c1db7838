//! Disks as the kernel shows them: which belongs to what, by which names, what is on them, who uses them.

use lunet_host::apply::Fault;
use lunet_host::source::Source;

use crate::address::is_plain;
use crate::host;
use crate::system::{Call, System};

/// Names below /dev/disk/by-id, the best first.
const NAMES: [&str; 6] = ["dm-uuid-mpath-", "wwn-", "nvme-eui.", "nvme-uuid.", "scsi-3", "nvme-"];

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file system.
    FileSystem {
        /// `ext4`.
        kind: String,
        /// Its UUID.
        uuid: String,
    },
    /// Something else: a partition table, a part of a volume group, several signatures at once.
    Other(String),
    /// Nothing that has a signature, and zeros wherever it was looked.
    Blank,
    /// Nothing that has a signature, and another byte than zero at this place.
    Unknown(u64),
}

/// The disk of a LUN that a session of open-iscsi shows: `sdb`.
#[must_use]
pub fn of_session(source: &dyn Source, session: &str, lun: u32) -> Option<String> {
    all_of_session(source, session).into_iter().find(|(have, _)| *have == lun).map(|(_, name)| name)
}

/// All disks of a session, by their LUNs.
#[must_use]
pub fn all_of_session(source: &dyn Source, session: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let device = format!("/sys/class/iscsi_session/{session}/device");
    for target in source.names(&device).into_iter().filter(|name| name.starts_with("target")) {
        for unit in source.names(&format!("{device}/{target}")) {
            let lun = unit.rsplit_once(':').and_then(|(_, lun)| lun.parse().ok());
            let Some(lun) = lun.filter(|_| unit.split(':').count() == 4) else { continue };
            let blocks = source.names(&format!("{device}/{target}/{unit}/block"));
            found.extend(blocks.into_iter().map(|name| (lun, name)));
        }
    }
    found.sort();
    found
}

/// The disk of a namespace: `nvme1n1`.
#[must_use]
pub fn of_namespace(source: &dyn Source, nqn: &str, nsid: u32) -> Option<String> {
    all_of_subsystem(source, nqn).into_iter().find(|(have, _)| *have == nsid).map(|(_, name)| name)
}

/// All disks of a subsystem, by their namespaces.
#[must_use]
pub fn all_of_subsystem(source: &dyn Source, nqn: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for name in source.names("/sys/block") {
        // The paths below a disk of several are nvme1c2n1.
        let is_disk = name.strip_prefix("nvme").is_some_and(|rest| !rest.contains('c'));
        let of = |attribute: &str| source.text(&format!("/sys/block/{name}/{attribute}"));
        if is_disk && of("device/subsysnqn").as_deref() == Some(nqn) {
            let nsid = of("nsid").and_then(|text| text.parse().ok());
            found.extend(nsid.map(|nsid| (nsid, name)));
        }
    }
    found.sort();
    found
}

/// The name of a disk that no other one in the world has, as the kernel shows it: `naa.6...`, `eui.00...`, `uuid.1234...`.
#[must_use]
pub fn world_name(source: &dyn Source, disk: &str) -> Option<String> {
    // Of SCSI, and of NVMe.
    let text = ["device/wwid", "wwid"]
        .iter()
        .find_map(|file| source.text(&format!("/sys/block/{disk}/{file}")))?
        .to_ascii_lowercase();
    ["naa.", "eui.", "uuid."].iter().any(|kind| text.starts_with(kind)).then_some(text)
}

/// A disk of this machine, or what dm-multipath has made of some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// `sda`, `nvme1n1`, `dm-2`.
    pub name: String,
    /// Its names that no other one in the world has, all of them; of a map, the WWID of its paths.
    pub names: Vec<String>,
    /// By what it comes over a network, a session of open-iscsi or a subsystem's NQN, and its LUN or namespace there.
    pub unit: Option<(String, u32)>,
    /// The disks of a map; nothing of what is no map.
    pub paths: Option<Vec<String>>,
}

/// All disks of this machine that have a name, and all maps of dm-multipath.
#[must_use]
pub fn known(source: &dyn Source) -> Vec<Known> {
    let units = units(source);
    let disk = |name: String| {
        let uuid = source.text(&format!("/sys/block/{name}/dm/uuid"));
        let wwid = uuid.and_then(|uuid| uuid.strip_prefix("mpath-").map(str::to_owned));
        let paths = wwid.as_ref().map(|_| paths_of(source, &name));
        let names = wwid.map_or_else(|| world_names(source, &name), |wwid| vec![wwid]);
        let unit = units.iter().find(|(have, _)| *have == name).map(|(_, unit)| unit.clone());
        Known { name, names, unit, paths }
    };
    let all = source.names("/sys/block").into_iter().map(disk);
    all.filter(|disk| !disk.names.is_empty()).collect()
}

/// The disks that come over a network: by what, and which there.
fn units(source: &dyn Source) -> Vec<(String, (String, u32))> {
    let mut found = Vec::new();
    for session in host::sessions(source) {
        let disks = all_of_session(source, &session.id).into_iter();
        found.extend(disks.map(|(lun, name)| (name, (session.id.clone(), lun))));
    }
    for name in source.names("/sys/block") {
        let of = |attribute: &str| source.text(&format!("/sys/block/{name}/{attribute}"));
        let nsid = of("nsid").and_then(|text| text.parse().ok());
        if let (Some(nqn), Some(nsid)) = (of("device/subsysnqn"), nsid) {
            found.push((name, (nqn, nsid)));
        }
    }
    found
}

/// The disks of a map.
#[must_use]
pub fn paths_of(source: &dyn Source, map: &str) -> Vec<String> {
    source.names(&format!("/sys/block/{map}/slaves"))
}

/// A disk that has one of these names, or a map of such disks, and does not come as this unit by one of these ways
/// (see [`Known::unit`]). Whoever goes by names, as dm-multipath, udev and /etc/fstab do, takes both for one.
#[must_use]
pub fn stranger<'a>(
    disks: &'a [Known],
    names: &[String],
    ways: &[String],
    unit: u32,
) -> Option<&'a Known> {
    let by = |(way, have): &(String, u32)| ways.contains(way) && *have == unit;
    let is_it = |disk: &Known| disk.unit.as_ref().is_some_and(by);
    let is_path = |name: &String| disks.iter().any(|disk| disk.name == *name && is_it(disk));
    let is_named = |disk: &&Known| {
        let same =
            |name: &String, have: &String| have == name || wwid_of(name).as_ref() == Some(have);
        disk.names.iter().any(|have| names.iter().any(|name| same(name, have)))
    };
    disks.iter().filter(is_named).find(|disk| match &disk.paths {
        None => !is_it(disk),
        // A map that has lost its paths may be of whatever disk.
        Some(paths) => paths.is_empty() || !paths.iter().all(is_path),
    })
}

/// A path of a map that does not come by one of these ways. A path that is gone is nobody's: the map holds its name for a while.
#[must_use]
pub fn foreign_path(source: &dyn Source, map: &str, ways: &[String]) -> Option<String> {
    let (units, there) = (units(source), source.names("/sys/block"));
    let is_ours =
        |path: &String| units.iter().any(|(name, (way, _))| name == path && ways.contains(way));
    paths_of(source, map).into_iter().find(|path| there.contains(path) && !is_ours(path))
}

/// All names of a disk that no other one in the world has: the kernel shows one of SCSI, and each of NVMe.
fn world_names(source: &dyn Source, disk: &str) -> Vec<String> {
    let of = |file: &str| source.text(&format!("/sys/block/{disk}/{file}"));
    let digits = |text: String| -> String {
        text.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect()
    };
    let mut names: Vec<String> = world_name(source, disk).into_iter().collect();
    names.extend(of("uuid").map(|text| format!("uuid.{}", text.to_ascii_lowercase())));
    names.extend(
        ["nguid", "eui"].into_iter().filter_map(of).map(|text| format!("eui.{}", digits(text))),
    );
    // What is all zeros names nothing.
    let is_name = |name: &String| {
        name.split_once('.').is_some_and(|(_, id)| id.contains(|c| !matches!(c, '0' | '-')))
    };
    names.retain(is_name);
    names.dedup();
    names
}

/// How rules of udev know a disk, and what dm-multipath makes of it, whatever its file system says.
#[must_use]
pub fn of_udev(source: &dyn Source, disk: &str) -> Option<String> {
    let of = |file: &str| source.text(&format!("/sys/block/{disk}/{file}"));
    let (key, value) = match (of("dm/uuid"), of("device/wwid"), of("wwid")) {
        (Some(uuid), ..) => ("ENV{DM_UUID}", uuid),
        (_, Some(wwid), _) => ("ATTRS{wwid}", wwid),
        (_, _, Some(wwid)) => ("ATTR{wwid}", wwid),
        _ => return None,
    };
    is_plain(&value).then(|| format!("{key}==\"{value}\""))
}

/// WWID of a disk of SCSI, as multipath and udev have it.
#[must_use]
pub fn wwid(source: &dyn Source, disk: &str) -> Option<String> {
    wwid_of(&world_name(source, disk)?)
}

/// The WWID that multipath makes of a name.
#[must_use]
pub fn wwid_of(name: &str) -> Option<String> {
    let kinds = [("naa.", "3"), ("eui.", "2")];
    kinds.iter().find_map(|(kind, digit)| Some(format!("{digit}{}", name.strip_prefix(kind)?)))
}

/// The WWIDs of all disks that dm-multipath has made.
#[must_use]
pub fn maps(source: &dyn Source) -> Vec<String> {
    let uuid = |name: String| source.text(&format!("/sys/block/{name}/dm/uuid"));
    let maps = source.names("/sys/block").into_iter().filter_map(uuid);
    maps.filter_map(|uuid| uuid.strip_prefix("mpath-").map(str::to_owned)).collect()
}

/// The disk that dm-multipath has made of those with a WWID: `dm-2`.
#[must_use]
pub fn map_of(source: &dyn Source, wwid: &str) -> Option<String> {
    source.names("/sys/block").into_iter().find(|name| {
        let uuid = source.text(&format!("/sys/block/{name}/dm/uuid"));
        uuid.is_some_and(|uuid| uuid.strip_prefix("mpath-") == Some(wwid))
    })
}

/// The file of a disk.
#[must_use]
pub fn device(source: &dyn Source, name: &str) -> String {
    match source.text(&format!("/sys/block/{name}/dm/name")) {
        Some(map) => format!("/dev/mapper/{map}"),
        None => format!("/dev/{name}"),
    }
}

/// A name of a disk that stays the same.
#[must_use]
pub fn lasting_name(source: &dyn Source, name: &str) -> Option<String> {
    let folder = "/dev/disk/by-id";
    let mut names = source.names(folder);
    names.retain(|link| source.link_name(&format!("{folder}/{link}")).as_deref() == Some(name));
    let best = NAMES.iter().find_map(|start| names.iter().find(|link| link.starts_with(start)));
    best.map(|link| format!("{folder}/{link}"))
}

/// Where the kernel has the policy of a subsystem's paths.
#[must_use]
pub fn policy_file(source: &dyn Source, nqn: &str) -> Option<String> {
    let folder = "/sys/class/nvme-subsystem";
    let same =
        |name: &String| source.text(&format!("{folder}/{name}/subsysnqn")).as_deref() == Some(nqn);
    source.names(folder).into_iter().find(same).map(|name| format!("{folder}/{name}/iopolicy"))
}

/// What is mounted at a directory.
#[must_use]
pub fn mounted_at(source: &dyn Source, directory: &str) -> Option<String> {
    mounts(source).into_iter().rfind(|(_, at)| at == directory).map(|(device, _)| device)
}

fn mounts(source: &dyn Source) -> Vec<(String, String)> {
    let text = source.read("/proc/mounts").unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ').map(plain);
        Some((words.next()?, words.next()?))
    };
    text.lines().filter_map(line).collect()
}

/// The word of a line of /proc/mounts.
fn plain(word: &str) -> String {
    word.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// The same as a word of /etc/fstab.
#[must_use]
pub fn word(text: &str) -> String {
    text.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011")
}

/// Whether a text is the UUID of a file system, as blkid prints that of ext4, XFS, Btrfs, FAT or ISO 9660, and nothing that files of
/// the system's have a meaning for.
#[must_use]
pub fn is_uuid(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    (8..=36).contains(&text.len()) && text.split('-').all(digits)
}

/// Lines of /etc/fstab: what is mounted, and where.
#[must_use]
pub fn fstab(source: &dyn Source) -> Vec<(String, String)> {
    let text = source.read("/etc/fstab").unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(plain);
        let (what, at) = (words.next()?, words.next()?);
        (!what.starts_with('#')).then_some((what, at))
    };
    text.lines().filter_map(line).collect()
}

/// Who has a file system's UUID besides the disks: a line of /etc/fstab, or another device with a file system. In words.
///
/// # Errors
/// It cannot be told.
pub fn same_uuid(
    system: &dyn System,
    uuid: &str,
    disks: &[String],
) -> Result<Option<String>, Fault> {
    let source = system.machine().source();
    let is_it = |what: &str| {
        let plain = what.replace(['"', '\''], "");
        let plain =
            plain.strip_prefix("UUID=").or_else(|| plain.strip_prefix("/dev/disk/by-uuid/"));
        plain.is_some_and(|have| have.eq_ignore_ascii_case(uuid))
    };
    if let Some((what, at)) = fstab(source).into_iter().find(|(what, _)| is_it(what)) {
        return Ok(Some(format!("/etc/fstab mounts {what} at {at}")));
    }
    let own = files(source, disks);
    let others = match source.list(UDEV) {
        Some(entries) => by_udev(source, &entries, uuid),
        // It reads every disk.
        None => {
            let call = Call::new("blkid -c /dev/null -o device -t").with([format!("UUID={uuid}")]);
            let ran = system.start(&call)?;
            match ran.code {
                0 | 2 => ran.out.lines().map(str::to_owned).collect(),
                code => {
                    let said = ran.err.trim();
                    return Err(Fault(format!("blkid failed with exit code {code}: {said}")));
                }
            }
        }
    };
    let other = others.into_iter().find(|file| !own.contains(file));
    Ok(other.map(|file| format!("the file system of {file} has the same")))
}

/// What udev knows of devices: a file for each, `b8:16` for a block device.
const UDEV: &str = "/run/udev/data";

/// The devices with a file system of this UUID, as udev has found them.
fn by_udev(source: &dyn Source, entries: &[String], uuid: &str) -> Vec<String> {
    let line = format!("E:ID_FS_UUID={uuid}");
    let has = |entry: &&String| {
        let text = source.read(&format!("{UDEV}/{entry}")).unwrap_or_default();
        text.lines().any(|have| have.eq_ignore_ascii_case(&line))
    };
    let found = entries.iter().filter(|entry| entry.starts_with('b')).filter(has);
    let name = |entry: &String| {
        let name = source.link_name(&format!("/sys/dev/block/{}", &entry[1..]))?;
        // Of a device that is gone, udev forgets a moment later.
        Some(device(source, &name))
    };
    found.filter_map(name).collect()
}

/// Finds out what is on a device, and reads only.
///
/// # Errors
/// It cannot be read.
pub fn content(system: &dyn System, device: &str) -> Result<Content, Fault> {
    let ran = system.start(&Call::new("blkid -p -o export").with([device]))?;
    let value = |name: &str| {
        ran.out
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
    };
    match (ran.code, value("USAGE").as_deref(), value("TYPE"), value("UUID")) {
        (0, Some("filesystem"), Some(kind), Some(uuid)) => Ok(Content::FileSystem { kind, uuid }),
        (0, _, Some(kind), _) => Ok(Content::Other(kind)),
        (0, ..) => Ok(Content::Other(match value("PTTYPE") {
            Some(kind) => format!("a partition table ({kind})"),
            None => "something that blkid knows".to_owned(),
        })),
        // Nothing was found.
        (2, ..) => unsigned(system, device),
        (8, ..) => Ok(Content::Other("more than one signature".to_owned())),
        (code, ..) => Err(Fault(format!(
            "blkid failed with exit code {code} on {device}: {}",
            ran.err.trim()
        ))),
    }
}

/// What is on a device on which blkid finds nothing. It looks for one thing, wipefs for all, as for half of a table of partitions.
fn unsigned(system: &dyn System, device: &str) -> Result<Content, Fault> {
    let found = system.run(&Call::new("wipefs --no-act --parsable").with([device]))?;
    let mut lines = found.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    if let Some(line) = lines.next() {
        // OFFSET,UUID,LABEL,TYPE
        let mut words = line.split(',');
        let (at, kind) = (words.next().unwrap_or_default(), words.next_back().unwrap_or_default());
        return Ok(Content::Other(format!("the signature of {kind} at {at}")));
    }
    Ok(system.written(device)?.map_or(Content::Blank, Content::Unknown))
}

/// The disks, their partitions and what multipath makes of them: their names below /sys/block.
fn with_maps(source: &dyn Source, disks: &[String]) -> Vec<String> {
    let mut all: Vec<String> = disks.to_vec();
    for disk in disks {
        let within = source.names(&format!("/sys/block/{disk}"));
        all.extend(within.into_iter().filter(|name| name.starts_with(disk.as_str())));
        all.extend(maps_over(source, disk));
    }
    all.sort();
    all.dedup();
    all
}

/// The files of disks, of their partitions and of what multipath makes of them.
#[must_use]
pub fn files(source: &dyn Source, disks: &[String]) -> Vec<String> {
    files_of(source, &with_maps(source, disks))
}

fn files_of(source: &dyn Source, names: &[String]) -> Vec<String> {
    names.iter().flat_map(|name| [device(source, name), format!("/dev/{name}")]).collect()
}

/// Fails if anything holds one of the disks: what is taken away below it is lost.
///
/// # Errors
/// A sentence with the next step.
pub fn check_free(system: &dyn System, disks: &[String]) -> Result<(), Fault> {
    let source = system.machine().source();
    for disk in disks {
        let maps = maps_over(source, disk);
        // multipath holds its paths: who uses the map counts.
        let used = if maps.is_empty() { vec![disk.clone()] } else { maps };
        for name in used {
            let file = device(source, &name);
            if system.is_held(&file)? {
                return Err(Fault(format!(
                    "{file} is still in use, and stays: by a mount of another namespace (`grep {name} /proc/*/mountinfo`), \
                     LVM, md, a loop device or a target of the kernel (`lsblk /dev/{disk}`, `losetup`); end that, and detach again"
                )));
            }
        }
    }
    Ok(())
}

/// Who uses disks, in words, besides the file system at `own` and what is made of them by multipath.
#[must_use]
pub fn users(source: &dyn Source, disks: &[String], own: Option<&str>) -> Vec<String> {
    let all = with_maps(source, disks);
    let files = files_of(source, &all);
    let is_ours = |file: &str| files.iter().any(|have| have == file);
    let mut found = Vec::new();
    for (file, at) in mounts(source).into_iter().filter(|(_, at)| own != Some(at.as_str())) {
        if is_ours(&file) {
            found.push(format!("{file} is mounted at {at}"));
        }
    }
    let swaps = source.read("/proc/swaps").unwrap_or_default();
    let swaps = swaps.lines().filter_map(|line| line.split_whitespace().next());
    found.extend(swaps.filter(|file| is_ours(file)).map(|file| format!("{file} is swap space")));
    for name in &all {
        for folder in
            [format!("/sys/block/{name}/holders"), format!("/sys/class/block/{name}/holders")]
        {
            let holders = source.names(&folder);
            let others = holders.iter().filter(|holder| !all.contains(holder));
            found.extend(
                others.map(|holder| format!("{} is made of {name}", device(source, holder))),
            );
        }
    }
    found.extend(open_by(source, &files));
    found.sort();
    found.dedup();
    found
}

/// What multipath makes of a disk.
#[must_use]
pub fn maps_over(source: &dyn Source, disk: &str) -> Vec<String> {
    let mut holders = source.names(&format!("/sys/block/{disk}/holders"));
    holders.retain(|name| {
        let uuid = source.text(&format!("/sys/block/{name}/dm/uuid"));
        uuid.is_some_and(|uuid| uuid.starts_with("mpath-"))
    });
    holders
}

/// Processes that have one of these files open, such as QEMU's.
fn open_by(source: &dyn Source, files: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for process in
        source.names("/proc").into_iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
    {
        let folder = format!("/proc/{process}/fd");
        let descriptors = source.names(&folder);
        let of = |number: &String| source.link(&format!("{folder}/{number}"));
        let Some(file) = descriptors.iter().filter_map(of).find(|file| files.contains(file)) else {
            continue;
        };
        let name = source.text(&format!("/proc/{process}/comm")).unwrap_or_default();
        // They look after the paths, and let go of what goes.
        if !["multipathd", "udev-worker", "(udev-worker)", "systemd-udevd"].contains(&name.as_str())
        {
            found.push(format!("{name} (process {process}) has {file} open"));
        }
    }
    found
}
