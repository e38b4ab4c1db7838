//! A machine in memory with an initiator, an NVMe host and a disk, which fails or is killed at any point.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use lunet_host::apply::{Fault, Kept, Machine};
use lunet_host::source::{Command, Output, Source, Tree};

use crate::system::{Call, Ran, System};

/// What is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Blank,
    Unknown,
    Ext4,
    Lvm,
    /// The second half of a table of partitions, which blkid does not take for one.
    Table,
}

pub struct Fake {
    pub tree: RefCell<Tree>,
    pub disk: Cell<Disk>,
    /// Programs that were run, as they can be typed.
    pub ran: RefCell<Vec<String>>,
    /// How many things were changed.
    pub changes: Cell<usize>,
    /// The change that fails.
    pub fail_at: Cell<Option<usize>>,
    /// The change at which the program is killed.
    pub die_at: Cell<Option<usize>>,
    /// The change from which on no file can be written, for lack of room.
    pub full_at: Cell<Option<usize>>,
    /// No file below this can be written or removed.
    pub read_only: RefCell<Option<String>>,
    /// A device that something holds which only the kernel knows.
    pub held: RefCell<Option<String>>,
    /// The device that a mount takes for the one that was meant.
    pub copy: RefCell<Option<String>>,
    /// The copy has a file system that is seen before it is mounted.
    pub copy_is_seen: Cell<bool>,
    /// The UUID of the disk's file system.
    pub uuid: RefCell<String>,
    /// What the disks of the sessions are known by, if it is not the same for all.
    pub naa: RefCell<Vec<String>>,
    /// Sectors and block size of the disks of sessions, as the kernel shows them.
    pub sizes: Cell<(u64, u32)>,
    /// A file that comes with the program that begins like this or has this word: program, path, text.
    pub comes: RefCell<Option<(String, String, String)>>,
    /// What the server says of the disk when it is asked once more: its name, if that is another one, and who has reserved it.
    pub renamed: RefCell<Option<String>>,
    pub claims: RefCell<Vec<String>>,
    /// A file or directory that is another user's.
    pub foreign: RefCell<Option<String>>,
    /// A read of the disk does not come back.
    pub silent: Cell<bool>,
    dead: Cell<bool>,
    next: Cell<usize>,
}

/// The UUID of the file system that is made.
pub const UUID: &str = "0b7cf1de-8a0f-4f44-9c47-3a6f0b1a2c3d";

const BASE: &str = "/sys/class/iscsi_session";

impl Fake {
    pub fn new() -> Self {
        let mut tree = Tree::new();
        for (path, text) in [
            ("/etc/os-release", "ID=debian\n"),
            ("/etc/fstab", "UUID=1 / ext4 defaults 0 1\n"),
            ("/etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.1993-08.org.debian:01:abc\n"),
            (
                "/etc/nvme/hostnqn",
                "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349\n",
            ),
            ("/etc/nvme/hostid", "0f01fb42-9f7f-4856-b0b3-51e60b8de349\n"),
            ("/proc/sys/kernel/osrelease", "6.12.5-amd64\n"),
            ("/proc/mounts", "/dev/vda1 / ext4 rw 0 0\n"),
            ("/proc/net/unix", "0: @/org/kernel/linux/storage/multipathd\n"),
            (
                "/lib/modules/6.12.5-amd64/modules.dep",
                "k/iscsi_tcp.ko:\nk/nvme-tcp.ko:\nk/nvme-rdma.ko:\nk/ib_iser.ko:\n",
            ),
        ] {
            tree.file(path, text);
        }
        for program in ["iscsiadm", "nvme", "multipath", "blkid"] {
            tree.file(&format!("/usr/sbin/{program}"), "");
        }
        tree.file("/run/systemd/system/x", "");
        Self {
            tree: RefCell::new(tree),
            disk: Cell::new(Disk::Blank),
            ran: RefCell::default(),
            changes: Cell::new(0),
            fail_at: Cell::new(None),
            die_at: Cell::new(None),
            full_at: Cell::new(None),
            read_only: RefCell::default(),
            held: RefCell::default(),
            copy: RefCell::default(),
            copy_is_seen: Cell::new(false),
            uuid: RefCell::new(UUID.to_owned()),
            naa: RefCell::default(),
            sizes: Cell::new((1 << 17, 512)),
            comes: RefCell::default(),
            renamed: RefCell::default(),
            claims: RefCell::default(),
            foreign: RefCell::default(),
            silent: Cell::new(false),
            dead: Cell::new(false),
            next: Cell::new(1),
        }
    }

    /// All of it, without what a mkfs has made.
    pub fn state(&self) -> String {
        self.tree.borrow().to_text()
    }

    /// The program is started again.
    pub fn revive(&self) {
        self.dead.set(false);
        self.die_at.set(None);
        self.fail_at.set(None);
    }

    /// The server is away.
    pub fn paths_are_gone(&self) {
        self.set_paths("FAILED", "connecting");
    }

    /// It is back.
    pub fn paths_are_back(&self) {
        self.set_paths("LOGGED_IN", "live");
    }

    fn set_paths(&self, session: &str, controller: &str) {
        for (folder, state) in [(BASE, session), ("/sys/class/nvme", controller)] {
            for id in self.names(folder) {
                self.tree.borrow_mut().file(&format!("{folder}/{id}/state"), state);
            }
        }
    }

    fn gate(&self) -> Result<(), Fault> {
        let number = self.changes.get();
        self.changes.set(number + 1);
        if self.die_at.get() == Some(number) {
            self.dead.set(true);
        }
        match self.dead.get() {
            true => Err(Fault("killed".to_owned())),
            false if self.fail_at.get() == Some(number) => Err(Fault("it broke".to_owned())),
            false => Ok(()),
        }
    }

    fn iscsiadm(&self, args: &[&str]) -> Result<(), Fault> {
        let after = |name: &str| args.iter().position(|arg| *arg == name).map(|at| args[at + 1]);
        let (target, portal, iface) =
            (after("-T").unwrap(), after("-p").unwrap(), after("-I").unwrap());
        let (place, tag) = portal.split_once(',').unwrap();
        let (address, port) = place.rsplit_once(':').unwrap();
        let folder = format!("/etc/iscsi/nodes/{target}/{address},{port},{tag}");
        let record = format!("{folder}/{iface}");
        let mut tree = self.tree.borrow_mut();
        let have = tree.read(&record);
        match (after("-o"), have) {
            (Some("new"), _) => {
                tree.file(&record, "# BEGIN RECORD\nnode.startup = manual\nnode.session.queue_depth = 32\n# END RECORD\n");
            }
            (Some("delete"), Some(_)) => tree.remove(&record),
            (Some("update"), Some(mut text)) => {
                for pair in args.windows(4).filter(|four| four[0] == "-n") {
                    let kept: Vec<&str> = text
                        .lines()
                        .filter(|line| !line.starts_with(&format!("{} =", pair[1])))
                        .collect();
                    text = format!("{}\n{} = {}\n", kept.join("\n"), pair[1], pair[3]);
                }
                tree.file(&record, &text);
            }
            (Some(_), None) => return Err(Fault("no records found".to_owned())),
            _ if args.contains(&"--login") => {
                let number = self.next.replace(self.next.get() + 1);
                let session = format!("{BASE}/session{number}");
                let connection = format!("/sys/class/iscsi_connection/connection{number}:0");
                let unit = |lun: u32, name: char| {
                    (format!("{session}/device/target{number}:0:0/{number}:0:0:{lun}"), name, lun)
                };
                for (path, text) in [
                    (format!("{session}/targetname"), target),
                    (format!("{session}/tpgt"), tag),
                    (format!("{session}/ifacename"), iface),
                    (format!("{session}/state"), "LOGGED_IN"),
                    (format!("{connection}/persistent_address"), address),
                    (format!("{connection}/persistent_port"), port),
                ] {
                    tree.file(&path, text);
                }
                for (path, name, lun) in [unit(0, 'a'), unit(1, 'b')] {
                    tree.file(&format!("{path}/block/sd{name}{number}/x"), "");
                    let naa = self.naa.borrow().get(number - 1).cloned();
                    let naa = naa.unwrap_or_else(|| format!("naa.6024c4e{lun}"));
                    let (disk, (sectors, block)) =
                        (format!("/sys/block/sd{name}{number}"), self.sizes.get());
                    tree.file(&format!("{disk}/device/wwid"), &naa);
                    tree.file(&format!("{disk}/size"), &sectors.to_string());
                    let block_file = format!("{disk}/queue/logical_block_size");
                    tree.file(&block_file, &block.to_string());
                }
            }
            _ if args.contains(&"--logout") => {
                logged_out(&mut tree, address);
            }
            _ => {}
        }
        Ok(())
    }

    fn nvme(&self, args: &[&str]) {
        let after = |name: &str| args.iter().position(|arg| *arg == name).map(|at| args[at + 1]);
        let mut tree = self.tree.borrow_mut();
        if args[0] == "connect" {
            let number = self.next.replace(self.next.get() + 1);
            let controller = format!("/sys/class/nvme/nvme{number}");
            let (address, port, nqn) =
                (after("-a").unwrap(), after("-s").unwrap(), after("-n").unwrap());
            tree.file(&format!("{controller}/subsysnqn"), nqn);
            tree.file(&format!("{controller}/transport"), after("-t").unwrap());
            tree.file(&format!("{controller}/state"), "live");
            tree.file(
                &format!("{controller}/address"),
                &format!("traddr={address},trsvcid={port}"),
            );
            tree.file("/sys/block/nvme9n1/device/subsysnqn", nqn);
            tree.file("/sys/block/nvme9n1/nsid", "1");
            tree.file("/sys/block/nvme9n1/wwid", "uuid.6024c4e0-0000-4000-8000-000000000001");
            tree.file("/sys/class/nvme-subsystem/nvme-subsys9/subsysnqn", nqn);
            tree.file("/sys/class/nvme-subsystem/nvme-subsys9/iopolicy", "numa");
        } else {
            tree.remove(&format!("/sys/class/nvme/{}", after("-d").unwrap()));
            if tree.names("/sys/class/nvme").is_empty() {
                tree.remove("/sys/block/nvme9n1");
                tree.remove("/sys/class/nvme-subsystem/nvme-subsys9");
            }
        }
    }

    fn multipath(&self, args: &[&str]) {
        let list = "/etc/multipath/wwids";
        let text = self.read(list).unwrap_or_else(|| "# WWIDs\n".to_owned());
        let mut disks = self.names("/sys/block");
        match args {
            ["-a", wwid] => {
                if !crate::step::is_named(self, wwid) {
                    self.tree.borrow_mut().file(list, &format!("{text}/{wwid}/\n"));
                }
                if crate::disk::map_of(self, wwid).is_none() {
                    self.map(wwid);
                }
            }
            ["-w", wwid] => {
                // It makes a comment of the line.
                let (line, comment) = (format!("\n/{wwid}/\n"), format!("\n#{wwid}/\n"));
                self.tree.borrow_mut().file(list, &text.replace(&line, &comment));
            }
            ["-f", name] => {
                let of = |disk: &String| self.text(&format!("/sys/block/{disk}/dm/name"));
                let map = disks.iter().find(|disk| of(disk).as_deref() == Some(name));
                let map = map.expect("a map").clone();
                self.tree.borrow_mut().remove(&format!("/sys/block/{map}"));
                disks.retain(|disk| *disk != map);
                for disk in disks {
                    self.tree.borrow_mut().remove(&format!("/sys/block/{disk}/holders/{map}"));
                }
            }
            _ => {}
        }
    }

    /// Makes a map of all disks with a WWID.
    pub fn map(&self, wwid: &str) {
        let mut disks = self.names("/sys/block");
        let number = 1 + disks.iter().filter(|name| name.starts_with("dm-")).count();
        let map = format!("/sys/block/dm-{number}");
        disks.retain(|disk| crate::disk::wwid(self, disk).as_deref() == Some(wwid));
        let mut tree = self.tree.borrow_mut();
        tree.file(&format!("{map}/dm/uuid"), &format!("mpath-{wwid}"));
        tree.file(&format!("{map}/dm/name"), wwid);
        for disk in disks {
            tree.symlink(&format!("/sys/block/{disk}/holders/dm-{number}"), &map);
            tree.symlink(&format!("{map}/slaves/{disk}"), &format!("/sys/block/{disk}"));
        }
    }

    /// The disk that is used: what multipath makes, or the first one.
    fn device(&self) -> String {
        let names = self.names("/sys/block");
        let map = names.iter().find(|name| name.starts_with("dm-"));
        let disk = names.iter().find(|name| !name.contains('c'));
        map.or(disk).map_or_else(String::new, |name| crate::disk::device(self, name))
    }

    fn act(&self, call: &Call) -> Result<(), Fault> {
        let args: Vec<&str> = call.args.iter().map(String::as_str).collect();
        let unit = |unit: &str| format!("/etc/systemd/system/multi-user.target.wants/{unit}");
        match (call.program.as_str(), args.as_slice()) {
            ("iscsiadm", args) => return self.iscsiadm(args),
            ("nvme", args) => self.nvme(args),
            ("multipath", args) => self.multipath(args),
            ("systemctl", ["enable", .., name]) => self.tree.borrow_mut().file(&unit(name), ""),
            ("systemctl", ["disable", .., name]) => self.tree.borrow_mut().remove(&unit(name)),
            ("mkfs.ext4", _) => self.disk.set(Disk::Ext4),
            ("mount", [at]) => {
                let at = crate::disk::word(at);
                let device = self.copy.borrow().clone().unwrap_or_else(|| self.device());
                let mounts = self.tree.borrow().read("/proc/mounts").unwrap()
                    + &format!("{device} {at} ext4 rw 0 0\n");
                self.tree.borrow_mut().file("/proc/mounts", &mounts);
            }
            ("umount", [at] | ["-l", at]) => {
                let at = crate::disk::word(at);
                let mounts = self.tree.borrow().read("/proc/mounts").unwrap();
                let is_there = |line: &&str| line.contains(&format!(" {at} "));
                let last = mounts.lines().rfind(is_there).unwrap_or_default();
                let rest = mounts.replace(&format!("{last}\n"), "");
                self.tree.borrow_mut().file("/proc/mounts", &rest);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Source for Fake {
    fn read(&self, path: &str) -> Option<String> {
        self.tree.borrow().read(path)
    }

    fn list(&self, directory: &str) -> Option<Vec<String>> {
        self.tree.borrow().list(directory)
    }

    fn link(&self, path: &str) -> Option<String> {
        self.tree.borrow().link(path)
    }

    fn run(&self, _: &Command) -> Option<Output> {
        None
    }
}

impl Machine for Fake {
    fn source(&self) -> &dyn Source {
        self
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Fault> {
        self.gate()?;
        self.tree.borrow_mut().file(path, value);
        Ok(())
    }

    fn get(&self, path: &str) -> Result<Option<Kept>, Fault> {
        Ok(self.read(path).map(|text| Kept { bytes: text.into_bytes(), mode: 0o644 }))
    }

    fn put(&self, path: &str, kept: Option<&Kept>) -> Result<(), Fault> {
        self.gate()?;
        let full = self.full_at.get().is_some_and(|from| self.changes.get() > from);
        let read_only = self.read_only.borrow();
        let read_only = read_only.as_ref().is_some_and(|top| path.starts_with(top.as_str()));
        if (full && kept.is_some()) || (read_only && (kept.is_some() || self.read(path).is_some()))
        {
            return Err(Fault("no space left on device, or a read-only file system".to_owned()));
        }
        let mut tree = self.tree.borrow_mut();
        match kept {
            Some(kept) => tree.file(path, &String::from_utf8(kept.bytes.clone()).unwrap()),
            None => tree.remove(path),
        }
        Ok(())
    }

    fn tidy(&self, _: &str) -> Result<(), Fault> {
        Ok(())
    }

    fn prune(&self, directory: &str) {
        let empty = self.list(directory).is_some_and(|names| names.is_empty());
        if empty && !self.dead.get() {
            self.tree.borrow_mut().remove(directory);
        }
    }

    fn act(&self, _: &str, _: &[&str]) -> Result<String, Fault> {
        unreachable!("programs have a time limit here")
    }
}

impl System for Fake {
    fn machine(&self) -> &dyn Machine {
        self
    }

    fn start(&self, call: &Call) -> Result<Ran, Fault> {
        let ok = |out: &str| Ok(Ran { out: out.to_owned(), ..Ran::default() });
        let no = |code| Ok(Ran { code, ..Ran::default() });
        if call.program == "blkid" && call.args.contains(&"-t".to_owned()) {
            let own = self.device();
            let copy = self.copy.borrow().clone().filter(|_| self.copy_is_seen.get());
            return ok(&[own, copy.unwrap_or_default()].join("\n"));
        }
        if call.program == "blkid" {
            return match self.disk.get() {
                Disk::Blank | Disk::Unknown | Disk::Table => no(2),
                Disk::Ext4 => {
                    ok(&format!("UUID={}\nTYPE=ext4\nUSAGE=filesystem\n", self.uuid.borrow()))
                }
                Disk::Lvm => ok("UUID=u-2\nTYPE=LVM2_member\nUSAGE=raid\n"),
            };
        }
        if call.program == "dd" {
            return match self.silent.get() {
                true => Err(Fault("it did not end".to_owned())),
                false => ok(""),
            };
        }
        if call.program == "wipefs" {
            let table = "# offset,uuid,label,type\n0x3fffe00,,,gpt\n";
            return ok(if self.disk.get() == Disk::Table { table } else { "" });
        }
        if let ("systemctl", Some(what), Some(unit)) =
            (call.program.as_str(), call.args.first(), call.args.last())
        {
            if what.starts_with("is-") {
                let link = format!("/etc/systemd/system/multi-user.target.wants/{unit}");
                return if self.read(&link).is_some() { ok("") } else { no(1) };
            }
        }
        self.gate()?;
        self.ran.borrow_mut().push(call.to_string());
        if let Some((_, path, text)) =
            self.comes.borrow().as_ref().filter(|(word, ..)| call.to_string().contains(word))
        {
            self.tree.borrow_mut().file(path, text);
        }
        match self.act(call) {
            Ok(()) => ok(""),
            Err(fault) => Ok(Ran { code: 1, err: fault.0, ..Ran::default() }),
        }
    }

    fn make_directory(&self, path: &str) -> Result<(), Fault> {
        self.gate()?;
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for folder in ends.map(|end| &path[..end]) {
            if self.list(folder).is_none() {
                self.tree.borrow_mut().overlay(&format!("{folder}/:\n")).expect("a directory");
            }
        }
        Ok(())
    }

    fn written(&self, _: &str) -> Result<Option<u64>, Fault> {
        Ok((self.disk.get() != Disk::Blank).then_some(4096))
    }

    fn is_held(&self, device: &str) -> Result<bool, Fault> {
        Ok(self.held.borrow().as_deref() == Some(device))
    }

    fn is_own(&self, path: &str) -> bool {
        self.foreign.borrow().as_deref() != Some(path)
    }

    fn wait(&self, _: Instant, _: Duration) -> bool {
        false
    }
}

/// Takes away the session of a portal, with what it brought.
fn logged_out(tree: &mut Tree, address: &str) {
    let ids = tree.names(BASE);
    let is_it = |id: &&String| {
        let connection = format!("connection{}:0", id.trim_start_matches("session"));
        let at = format!("/sys/class/iscsi_connection/{connection}/persistent_address");
        tree.read(&at).as_deref() == Some(address)
    };
    let id = ids.iter().find(is_it).expect("a session").clone();
    let number = id.trim_start_matches("session").to_owned();
    tree.remove(&format!("{BASE}/{id}"));
    tree.remove(&format!("/sys/class/iscsi_connection/connection{number}:0"));
    tree.remove(&format!("/sys/block/sda{number}"));
    tree.remove(&format!("/sys/block/sdb{number}"));
}
