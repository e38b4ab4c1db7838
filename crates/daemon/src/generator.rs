//! `lunet systemd-generator`: what systemd has to know of the configuration before it starts the service
//! (systemd.generator(7)).
//!
//! A drop-in of `lunet.service` orders it behind the mounts and devices of its volumes, and lets it write to them. It
//! *wants* them and does not require them: a volume whose storage is missing is not served, and the others are. That lunet
//! does not make a volume anew on the empty folder below a mount that is missing, its records see to.
//!
//! The configuration belongs to the service, and this runs as root: what a server that was taken over writes there must
//! not give it more at the next boot. So the file is read with care, folders of the system are never made writable, and
//! devices are let in by a list that is root's.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lunet_config::place::Layout;
use lunet_config::{self as config, Backend, Config};
use lunet_os::fs::{open_regular, read_text};
use lunet_os::systemd::escape;

use crate::fstab::{self, Entry};
use crate::links;

/// The drop-in, in the folder that systemd names.
const DROP_IN: &str = "lunet.service.d/50-configuration.conf";

/// Where the generator reads and writes.
#[derive(Debug)]
pub struct Places {
    /// Directory for units that stand behind those of the administrator; systemd gives two more.
    pub directories: Vec<PathBuf>,
    /// Configuration of the service, if it is not the service's own.
    pub config: Option<PathBuf>,
    /// List of the devices that the service may open.
    pub devices: PathBuf,
    /// Table of file systems.
    pub fstab: PathBuf,
}

/// The file systems that are mounted, in the form of fstab(5).
const MOUNTED: &str = "/proc/self/mounts";

/// Folders of the system. What the service may write there by its user, it may already, or it is nothing for volumes.
const SYSTEM: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/proc", "/root", "/run",
    "/sbin", "/sys", "/usr", "/var",
];

/// What of the folders of the system is the service's all the same.
const OWN: &str = "/var/lib/lunet";

/// Kinds of file systems that come over the network (systemd.mount(5)).
const REMOTE: &[&str] = &[
    "9p",
    "acfs",
    "afs",
    "ceph",
    "cifs",
    "coda",
    "davfs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.sshfs",
    "gfs",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "pvfs2",
    "smb3",
    "smbfs",
    "sshfs",
];

/// Services of initiators on this machine. They come after lunet, unless lunet's own storage may come by them.
const INITIATORS: &str = "open-iscsi.service iscsi.service nvmf-autoconnect.service";

/// What of the machine counts besides the configuration.
#[derive(Default)]
struct Machine {
    /// Devices that the service may open, and folders (ending in `/`) of such devices.
    devices: Vec<String>,
    /// Where file systems are mounted that come over the network.
    remote: Vec<PathBuf>,
    /// Where file systems are mounted that may not answer while systemd waits for this: nothing in them is looked at.
    silent: Vec<PathBuf>,
}

/// Writes the drop-in.
///
/// # Errors
/// The configuration or a table cannot be read or has mistakes, or the drop-in cannot be written.
pub fn run(options: &Places) -> Result<ExitCode> {
    let layout = Layout::of_service(|_| None);
    let file = options.config.as_ref().unwrap_or(&layout.config);
    let text = match read_text(file, config::MAX_BYTES) {
        // Without a configuration there is no service.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ExitCode::SUCCESS),
        read => read.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let Ok(config) = config::check(&text) else {
        bail!("{} has mistakes: `lunet config check` lists them", file.display());
    };
    let machine = Machine {
        devices: allowed(&options.devices)?,
        remote: remote(&read_text(&options.fstab, config::MAX_BYTES).unwrap_or_default()),
        silent: silent(&fs::read_to_string(MOUNTED).unwrap_or_default()),
    };
    let path = options.directories[0].join(DROP_IN);
    let folder = path.parent().unwrap_or(&path);
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, drop_in(&config, &layout.data, &machine)));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The devices in a list. Without one, there are none.
///
/// # Errors
/// It cannot be read, or others than root may write it.
fn allowed(list: &Path) -> Result<Vec<String>> {
    let name = list.display();
    let file = match open_regular(list) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.with_context(|| format!("cannot read {name}"))?,
    };
    let found = file.metadata().with_context(|| format!("cannot look at {name}"))?;
    if found.uid() != 0 || found.mode() & 0o022 != 0 {
        bail!("{name}: others than root may write it: `chown root {name}; chmod 644 {name}`");
    }
    let mut text = String::new();
    let read: io::Result<_> = file.take(config::MAX_BYTES).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {name}"))?;
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

impl Machine {
    /// The generic devices of NVMe namespaces that the list has. Which of them belongs to a volume shows only when the drives
    /// are there.
    fn namespaces(&self) -> impl Iterator<Item = &Path> {
        self.devices.iter().map(Path::new).filter(|device| {
            let name = device.strip_prefix("/dev").ok().and_then(Path::to_str);
            name.is_some_and(|name| name.starts_with("ng") && !name.contains('/'))
        })
    }

    /// Whether a list lets the service open a device.
    fn allows(&self, device: &Path) -> bool {
        let plain = device.components().all(|part| part != Component::ParentDir);
        let text = device.to_str().unwrap_or_default();
        let lets_in = |line: &String| match line.ends_with('/') {
            true => text.len() > line.len() && text.starts_with(line.as_str()),
            false => text == line,
        };
        plain && self.devices.iter().any(lets_in)
    }

    /// Whether a path is on what initiators of this machine bring.
    fn is_remote(&self, path: &Path) -> bool {
        let text = path.to_str().unwrap_or_default();
        self.remote.iter().any(|mount| path.starts_with(mount))
            || text.contains("/by-path/ip-")
            || text.contains("-iscsi-")
            || text.contains("/by-path/fc-")
    }
}

/// Where file systems are mounted that come over the network, in the text of fstab(5).
fn remote(text: &str) -> Vec<PathBuf> {
    let over_network = |entry: &Entry| REMOTE.contains(&entry.kind) || entry.has("_netdev");
    fstab::entries(text).filter(over_network).map(|entry| entry.place).collect()
}

/// Where file systems are mounted that may not answer: those of the network and of programs, and automounts, which systemd
/// cannot answer before this has ended.
fn silent(text: &str) -> Vec<PathBuf> {
    let of_others = |entry: &Entry| {
        entry.kind == "autofs" || entry.kind.starts_with("fuse") || REMOTE.contains(&entry.kind)
    };
    fstab::entries(text).filter(of_others).map(|entry| entry.place).collect()
}

/// Where a path leads to. What is in a file system that may not answer counts as it is written.
fn resolved(path: &Path, silent: &[PathBuf]) -> Option<PathBuf> {
    links::followed(path, |place| silent.iter().any(|one| one == place))
}

/// The folder to which a path leads, if volumes may be in it.
fn writable_folder(path: &Path, silent: &[PathBuf]) -> Option<PathBuf> {
    let is_plain = |path: &Path| path.components().all(|part| part != Component::ParentDir);
    let is_systems = |path: &Path| {
        let below = SYSTEM.iter().any(|system| path.starts_with(system));
        path == Path::new("/") || below && !path.starts_with(OWN)
    };
    let folder = resolved(path, silent)?;
    (is_plain(path) && is_plain(&folder) && !is_systems(path) && !is_systems(&folder))
        .then_some(folder)
}

/// The drop-in for a configuration. `data` is the data directory unless the configuration names another one.
fn drop_in(config: &Config, data: &Path, machine: &Machine) -> String {
    let named = config.server.data.as_deref();
    let data = named.unwrap_or(data);
    let (mut units, mut writable, mut devices) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    units.extend(mounts(&data.join("lunet.lock")));
    writable.extend(named);
    let paths: Vec<_> =
        config.volumes.iter().filter_map(|one| Some((one, one.path(data)?))).collect();
    let mut used = paths.iter().map(|(_, path)| path.as_path()).chain([data]);
    let comes_first = !used.any(|path| machine.is_remote(path));
    for (volume, path) in &paths {
        // systemd wants whole paths, and what it would read otherwise than it is written is nothing to guess at.
        if word(path).is_none() {
            continue;
        }
        if let Backend::Block { passthrough, .. } = volume.backend {
            units.insert(format!("{}.device", escape(path)));
            devices.extend(machine.allows(path).then_some(path.as_path()));
            if machine.allows(path) && passthrough.is_some() {
                devices.extend(machine.namespaces());
            }
        } else {
            units.extend(mounts(path));
            writable.extend(path.parent().filter(|folder| !folder.starts_with(data)));
        }
    }
    let units = units.into_iter().collect::<Vec<_>>().join(" ");
    let mut out = format!(
        "# Made from the configuration of lunet by lunet-generator: changes are lost.\n[Unit]\nWants={units}\n\
         After={units}\n"
    );
    if comes_first {
        let _ = writeln!(out, "Before={INITIATORS}");
    }
    out.push_str("[Service]\n");
    let folders = writable.into_iter().filter(|folder| word(folder).is_some());
    let folders: BTreeSet<_> =
        folders.filter_map(|folder| writable_folder(folder, &machine.silent)).collect();
    for folder in folders.iter().filter_map(|folder| word(folder)) {
        let _ = writeln!(out, "ReadWritePaths=\"-{folder}\"");
    }
    for device in devices.into_iter().filter_map(word) {
        let _ = writeln!(out, "DeviceAllow=\"{device}\" rw");
    }
    out
}

/// A path as it stands between quotation marks in a unit, if it can.
fn word(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let plain = |c: char| !c.is_control() && !matches!(c, '"' | '\\' | '\'');
    (path.is_absolute() && text.chars().all(plain)).then(|| text.replace('%', "%%"))
}

/// The units of the mount points on the way to a path. Those that there are not, systemd ignores.
fn mounts(path: &Path) -> impl Iterator<Item = String> {
    let folders = path.ancestors().skip(1).filter(|folder| *folder != Path::new("/"));
    folders.map(|folder| format!("{}.mount", escape(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_on(machine: &Machine, volumes: &str) -> String {
        let target = "[[target]]\nname = 'iqn.2026-11.l:x'\n";
        let config = config::check(&format!("{volumes}{target}")).expect("right");
        drop_in(&config, Path::new("/d"), machine)
    }

    fn made(volumes: &str) -> String {
        let devices = vec!["/dev/zvol/tank/".to_owned()];
        made_on(&Machine { devices, ..Machine::default() }, volumes)
    }

    #[test]
    fn the_service_may_use_what_the_configuration_names() {
        let text = made(
            "[volumes.a]\nbackend = 'file'\nsize = '1MiB'\n\
             [volumes.b]\nbackend = 'file'\npath = '/tank/vm s/b%.img'\n\
             [volumes.c]\nbackend = 'block'\npath = '/dev/zvol/tank/c'\n\
             [volumes.d]\nbackend = 'memory'\nsize = '1MiB'\n",
        );
        let units = "d.mount dev-zvol-tank-c.device tank-vm\\x20s.mount tank.mount";
        let wanted = format!(
            "[Unit]\nWants={units}\nAfter={units}\nBefore={INITIATORS}\n[Service]\n\
             ReadWritePaths=\"-/tank/vm s\"\nDeviceAllow=\"/dev/zvol/tank/c\" rw\n"
        );
        assert_eq!(text.split_once('\n').expect("a comment").1, wanted);
    }

    #[test]
    fn another_data_directory_may_be_written() {
        let text = made("[server]\ndata = '/tank/l'\n");
        assert!(
            text.contains("Wants=tank-l.mount tank.mount\n") && text.contains("\"-/tank/l\""),
            "{text}"
        );
    }

    #[test]
    fn no_path_becomes_a_line_of_its_own() {
        let text = made(
            "[volumes.a]\nbackend = 'block'\npath = \"/dev/x\\nExecStart=/bin/sh\"\n\
             [volumes.b]\nbackend = 'block'\npath = '/dev/\"y'\n\
             [volumes.c]\nbackend = 'block'\npath = 'relative'\n",
        );
        let before = format!("Before={INITIATORS}");
        let wanted = ["[Unit]", "Wants=d.mount", "After=d.mount", &before, "[Service]"];
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), wanted);
    }

    /// Whoever has taken the service over may write its configuration, and gets no more by it.
    #[test]
    fn the_configuration_alone_lets_nothing_of_the_system_in() {
        let volumes = "[volumes.a]\nbackend = 'block'\npath = '/dev/sda'\n\
             [volumes.b]\nbackend = 'block'\npath = '/dev/zvol/tank/../../sdb'\n\
             [volumes.c]\nbackend = 'file'\npath = '/etc/cron.d/c'\n\
             [volumes.d]\nbackend = 'file'\npath = '/tank/../root/d'\n\
             [volumes.e]\nbackend = 'file'\npath = '/e'\n\
             [volumes.f]\nbackend = 'block'\npath = '/dev/zvol/tank'\n";
        let text = made(volumes);
        let (_, service) = text.split_once("[Service]\n").expect("a section");
        assert_eq!(service, "");
        let machine = Machine { devices: vec!["/dev/sda".into()], ..Machine::default() };
        let text = made_on(&machine, volumes);
        assert!(text.ends_with("[Service]\nDeviceAllow=\"/dev/sda\" rw\n"), "{text}");
    }

    #[test]
    fn commands_of_a_namespace_are_let_in_by_the_list_as_well() {
        let devices = ["/dev/nvme0n1", "/dev/ng0n1", "/dev/sdb"].map(str::to_owned).to_vec();
        let machine = Machine { devices, ..Machine::default() };
        let volume = "[volumes.a]\nbackend = 'block'\npath = '/dev/nvme0n1'\n";
        let text = made_on(&machine, volume);
        assert!(text.ends_with("[Service]\nDeviceAllow=\"/dev/nvme0n1\" rw\n"), "{text}");
        let text = made_on(&machine, &format!("{volume}passthrough = 'polled'\n"));
        let wanted = "[Service]\nDeviceAllow=\"/dev/ng0n1\" rw\nDeviceAllow=\"/dev/nvme0n1\" rw\n";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn no_folder_of_the_system_becomes_writable_by_another_name() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let dir = dir.path().canonicalize().expect("it is there");
        let link = |to: &str, name: &str| {
            std::os::unix::fs::symlink(to, dir.join(name)).expect("a link");
            dir.join(name)
        };
        let (etc, round) = (link("/etc", "etc"), link("round", "round"));
        let (real, by_parent) = (link("real/a", "a"), link("../../../../../../../../etc", "up"));
        assert_eq!(resolved(&real.join("b"), &[]), Some(dir.join("real/a/b")));
        assert_eq!(resolved(&round, &[]), None);
        assert_eq!(resolved(&by_parent.join("x"), &[]), Some("/etc/x".into()));
        let written = etc.join("x");
        assert_eq!(resolved(&written, std::slice::from_ref(&etc)), Some(written));
        let system =
            ["/var", "/var/lib", "/var/lib/dpkg", "/var/spool/cron", "/var/lib/lunet-tune"];
        let system = system.into_iter().map(PathBuf::from).chain([etc, round, by_parent]);
        for folder in system {
            assert_eq!(writable_folder(&folder, &[]), None, "{}", folder.display());
        }
        for folder in ["/tank/vms", "/var/lib/lunet/more", "/varied"].map(Path::new) {
            assert_eq!(writable_folder(folder, &[]).as_deref(), Some(folder));
        }
        let mounted = "sysfs /sys sysfs rw 0 0\nsystemd-1 /mnt/a\\040b autofs rw 0 0\ns:/x /n nfs4 rw 0 0\n\
                       p /f fuse.p rw 0 0\n";
        assert_eq!(silent(mounted), ["/mnt/a b", "/n", "/f"].map(Path::new));
    }

    #[test]
    fn the_list_of_devices_is_roots() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::TempDir::new().expect("a folder");
        let list = dir.path().join("list");
        assert!(allowed(&list).expect("there is none").is_empty());
        fs::write(&list, "# mine\n\n /dev/sdb \n/dev/zvol/tank/\n").expect("it is written");
        fs::set_permissions(&list, PermissionsExt::from_mode(0o664)).expect("it is set");
        let error = allowed(&list).expect_err("its group may write it").to_string();
        assert!(error.contains("others than root"), "{error}");
        fs::set_permissions(&list, PermissionsExt::from_mode(0o644)).expect("it is set");
        if rustix::process::geteuid().is_root() {
            assert_eq!(allowed(&list).expect("root's"), ["/dev/sdb", "/dev/zvol/tank/"]);
        }
    }

    /// What mounts over the network waits for initiators: to be before them as well would be a cycle, of which systemd
    /// leaves something out.
    #[test]
    fn lunet_is_not_before_the_initiators_that_bring_its_storage() {
        let fstab = "# /dev/x /none nfs\nserver:/x /mnt/a\\040b nfs4 defaults 0 0\n/dev/sdb1 /mnt/i ext4 noatime,_netdev\n\
                     /dev/sda1 / ext4 defaults 0 1\nbroken\n";
        let remote = remote(fstab);
        assert_eq!(remote, [Path::new("/mnt/a b"), Path::new("/mnt/i")]);
        let machine = Machine { remote, ..Machine::default() };
        let before = |path: &str, kind: &str| {
            let volumes = format!("[volumes.a]\nbackend = '{kind}'\npath = '{path}'\n");
            made_on(&machine, &volumes).contains("Before=")
        };
        assert!(before("/srv/a.img", "file") && before("/mnt/ix/a.img", "file"));
        assert!(!before("/mnt/i/vms/a.img", "file") && !before("/mnt/a b/a.img", "file"));
        let device = "/dev/disk/by-path/ip-192.0.2.1:3260-iscsi-iqn.2026-11.l:x-lun-1";
        assert!(!before(device, "block") && before("/dev/sdb", "block"));
        assert!(!made_on(&machine, "[server]\ndata = '/mnt/i/lunet'\n").contains("Before="));
    }
}
