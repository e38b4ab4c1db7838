//! Carries a plan out.

use std::time::{Duration, Instant};

use lunet_host::apply::Fault;
use lunet_host::source::Source;

use crate::detach;
use crate::disk::{self, Content};
use crate::host;
use crate::journal::{self, Attachment, State};
use crate::plan::{FileSystem, Plan, Refusal, Stranger, mount_rule};
use crate::server::{Disk, Offer, Secrets};
use crate::step::{self, Context, Step, WWIDS};
use crate::system::{Call, LOCK, System};

/// How long a disk is waited for, once its paths are there.
const PATIENCE: Duration = Duration::from_secs(30);

/// The last thing that is done, in words.
const MOUNT: &str = "mount it";

/// Besides what each file system has by itself: the server may have written to the disk whatever it likes, and neither programs that
/// run as root nor devices are taken from it.
pub(crate) const MOUNT_OPTIONS: &str = "_netdev,nofail,nosuid,nodev";

/// What can be done about two file systems with one UUID.
const NEW_UUID: &str =
    "give one a new one, unmounted: `tune2fs -U random` (ext4), `xfs_admin -U generate` (XFS)";

/// What is done when it is made sure of the disk, in words.
const WHICH: &str = "see which disk it is";

/// A disk that was attached.
#[derive(Clone, Debug)]
pub struct Attached {
    /// What was done.
    pub attachment: Attachment,
    /// Its file.
    pub device: String,
}

/// Why a disk was not attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Something is in the way; this has changed nothing.
    #[error("{0}")]
    Before(Fault),
    /// A step failed.
    #[error("{what}: {why}{}", after(name, left))]
    Failed {
        /// By what it would be known.
        name: String,
        /// What failed.
        what: String,
        /// Why.
        why: Fault,
        /// What stays, or why not all could be taken back.
        left: Result<Vec<String>, Fault>,
    },
}

fn after(name: &str, left: &Result<Vec<String>, Fault>) -> String {
    match left {
        Ok(kept) if kept.is_empty() => "\neverything was taken back".to_owned(),
        Ok(kept) => format!("\neverything else was taken back:\nKept: {}", kept.join("\nKept: ")),
        Err(left) => format!(
            "\nnot everything could be taken back: {left}\n`lunet detach {name}` tries it again"
        ),
    }
}

/// Asks the server for an offered disk: what it is, and which other hosts have reserved it, in words.
pub type Ask<'a> = &'a dyn Fn(&Offer) -> Result<(Disk, Vec<String>), Fault>;

/// Looks whether a file system can be mounted at a directory.
///
/// # Errors
/// Something is mounted there, or there are files that it would hide.
pub fn check_directory(source: &dyn Source, directory: &str) -> Result<(), Fault> {
    if let Some(device) = disk::mounted_at(source, directory) {
        return Err(Fault(format!(
            "{device} is mounted at {directory} already: give another directory"
        )));
    }
    if let Some((what, _)) =
        disk::fstab(source).into_iter().find(|(_, at)| at.trim_end_matches('/') == directory)
    {
        return Err(Fault(format!(
            "/etc/fstab mounts {what} at {directory}: give another directory, or take the line away"
        )));
    }
    match source.names(directory).first() {
        Some(name) => Err(Fault(format!(
            "{directory} is not empty ({name}), and its files would be hidden: give another directory"
        ))),
        None => Ok(()),
    }
}

/// Waits for programs that a run has left behind which was killed, as a login that is still tried: what they are about to do could be
/// neither seen nor taken back. Tells once what it waits for.
///
/// # Errors
/// One does not end.
pub fn settled(
    system: &dyn System,
    patience: Duration,
    tell: &mut dyn FnMut(&str),
) -> Result<(), Fault> {
    let since = Instant::now();
    let source = system.machine().source();
    let mut is_told = false;
    loop {
        let Some((process, name)) = left_over(source).into_iter().next() else { return Ok(()) };
        if !is_told {
            tell(&format!(
                "an earlier run was killed, and its {name} (process {process}) is still at work: it is waited for"
            ));
            is_told = true;
        }
        if !system.wait(since, patience) {
            return Err(Fault(format!(
                "{name} (process {process}) of an earlier run that was killed is still at work: wait for its end, or end it by \
                 `kill {process}`, and try again"
            )));
        }
    }
}

/// Processes of root whose standard input is the lock's file, and their names. In a namespace of mounts of its own, anybody's can be
/// called like that.
fn left_over(source: &dyn Source) -> Vec<(u32, String)> {
    let processes = source.names("/proc").into_iter().filter_map(|name| name.parse().ok());
    let is_roots = |process: &u32| {
        let status = source.read(&format!("/proc/{process}/status")).unwrap_or_default();
        let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        user.and_then(|user| user.split_whitespace().next()) == Some("0")
    };
    let is_one = |process: &u32| {
        let input = source.link(&format!("/proc/{process}/fd/0"));
        input.as_deref() == Some(LOCK) && is_roots(process)
    };
    let named = |process: u32| {
        let name = source.text(&format!("/proc/{process}/comm"));
        (process, name.unwrap_or_else(|| "a program".to_owned()))
    };
    processes.filter(is_one).map(named).collect()
}

/// Attaches a disk: all of it, or nothing. The server is asked once more before a file system is made.
///
/// # Errors
/// See [`AttachError`].
pub fn attach(
    system: &dyn System,
    plan: &Plan,
    secrets: &Secrets,
    there: &[Attachment],
    state: &str,
    ask: Ask<'_>,
) -> Result<Attached, AttachError> {
    let source = system.machine().source();
    journal::check(system, state).map_err(AttachError::Before)?;
    if let Some(directory) = &plan.mount {
        check_directory(source, directory).map_err(AttachError::Before)?;
    }
    let others: Vec<Step> = there.iter().flat_map(|have| have.steps.clone()).collect();
    let offer = &plan.offer;
    // The plan was shown since, and somebody has thought about it.
    check_alone(source, offer, &others).map_err(AttachError::Before)?;
    let mut attachment = Attachment::new(
        &plan.name,
        &plan.url,
        offer.transport,
        &offer.name,
        offer.unit,
        plan.profile,
    );
    attachment.mount.clone_from(&plan.mount);
    let cx = Context { system, secrets, others: &others, own: &plan.steps, force: false };
    // Before the login: multipathd may list what it sees, and make a map of it by itself.
    let maps = Maps::before(source, &offer.disk.names);
    let mut work = Work { cx, state, attachment, maps, ask };
    match work.all(plan) {
        Ok(device) => Ok(Attached { attachment: work.attachment, device }),
        Err((what, why)) => {
            let Work { cx, mut attachment, .. } = work;
            let name = attachment.name.clone();
            let made = attachment.steps.iter().find_map(Step::made_for_good);
            let left = detach::take_back(&cx, &mut attachment, state)
                .map(|kept| made.into_iter().chain(kept).collect());
            Err(AttachError::Failed { name, what, why, left })
        }
    }
}

/// Fails if a disk of this machine passes for the one that is attached, and does not come by these steps.
fn check_alone(source: &dyn Source, offer: &Offer, steps: &[Step]) -> Result<(), Fault> {
    let (sessions, controllers) = (host::sessions(source), host::controllers(source));
    let ways = step::ways(steps, &offer.name, &sessions, &controllers);
    let disks = disk::known(source);
    match disk::stranger(&disks, &offer.disk.names, &ways, offer.unit) {
        Some(disk) => Err(Fault(Stranger::from(disk).to_string())),
        None => Ok(()),
    }
}

/// What failed, and why.
type Failed = (String, Fault);

struct Work<'a> {
    cx: Context<'a>,
    state: &'a str,
    attachment: Attachment,
    maps: Maps,
    ask: Ask<'a>,
}

/// What dm-multipath had before.
struct Maps {
    /// It had a list of WWIDs.
    listed: bool,
    /// WWIDs of the disk that were in it.
    named: Vec<String>,
    /// WWIDs that there were maps of.
    there: Vec<String>,
}

impl Maps {
    fn before(source: &dyn Source, names: &[String]) -> Self {
        let wwids = names.iter().filter_map(|name| disk::wwid_of(name));
        Self {
            listed: source.read(WWIDS).is_some(),
            named: wwids.filter(|wwid| step::is_named(source, wwid)).collect(),
            there: disk::maps(source),
        }
    }
}

impl Work<'_> {
    fn source(&self) -> &dyn Source {
        self.cx.system.machine().source()
    }

    fn write(&self) -> Result<(), Failed> {
        let written = self.attachment.write(self.cx.system.machine(), self.state);
        written.map_err(|fault| ("the journal".to_owned(), fault))
    }

    fn step(&mut self, mut step: Step) -> Result<(), Failed> {
        let what = step.what();
        step.prepare(&self.cx).map_err(|fault| (what.clone(), fault))?;
        self.attachment.steps.push(step.clone());
        if let Err(failed) = self.write() {
            // It is not begun.
            self.attachment.steps.pop();
            return Err(failed);
        }
        step.run(&self.cx).map_err(|fault| (what, fault))
    }

    /// All steps; gives the device.
    fn all(&mut self, plan: &Plan) -> Result<String, Failed> {
        for step in &plan.steps {
            self.step(step.clone())?;
        }
        let disk = self.disk(plan)?;
        let device = disk::device(self.source(), &disk);
        if let Some(directory) = &plan.mount {
            self.mount(plan, &disk, directory)?;
        }
        self.attachment.disk = disk::lasting_name(self.source(), &disk);
        self.attachment.state = State::Attached;
        self.write()?;
        Ok(device)
    }

    /// The name of the disk, once it is there.
    fn disk(&mut self, plan: &Plan) -> Result<String, Failed> {
        let failed = |why: &str| ("wait for the disk".to_owned(), Fault(why.to_owned()));
        let offer = &plan.offer;
        let settle = Call::new("udevadm settle --timeout=20");
        if offer.transport.is_nvme() {
            let found = self.waited(|source| disk::of_namespace(source, &offer.name, offer.unit));
            let _ = self.cx.system.run(&settle);
            let found = found.ok_or_else(|| {
                failed("the kernel shows no such namespace: look into its log (dmesg)")
            })?;
            self.proven(plan, std::slice::from_ref(&found))?;
            return Ok(found);
        }
        let paths: Vec<_> = plan
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Session { path } => Some(path.clone()),
                _ => None,
            })
            .collect();
        let all = |source: &dyn Source| {
            let sessions = host::sessions(source);
            let disk = |path: &crate::step::Path| {
                disk::of_session(source, &path.session(&sessions)?, offer.unit)
            };
            paths.iter().map(disk).collect::<Option<Vec<String>>>()
        };
        let disks = self
            .waited(all)
            .ok_or_else(|| failed("the kernel shows no such LUN: look into its log (dmesg)"))?;
        let _ = self.cx.system.run(&settle);
        self.proven(plan, &disks)?;
        let Some(first) = disks.into_iter().next() else { return Err(failed("there is no path")) };
        if !plan.map {
            return Ok(first);
        }
        let wwid = self.waited(|source| disk::wwid(source, &first));
        let wwid = wwid.ok_or_else(|| failed("it has no name by which multipath could know it"))?;
        let Maps { listed, named, there } = &self.maps;
        let (named, there) = (named.contains(&wwid), there.contains(&wwid));
        self.step(Step::Map { wwid: wwid.clone(), listed: *listed, named, there })?;
        let map = self.waited(|source| disk::map_of(source, &wwid));
        let _ = self.cx.system.run(&settle);
        let map = map.ok_or_else(|| {
            failed("multipathd makes no disk of the paths: see `journalctl -u multipathd`")
        })?;
        self.alone(plan)?;
        Ok(map)
    }

    /// What the kernel shows has to be the disk that was asked, by each path, before anything is made of it or written to it.
    fn proven(&self, plan: &Plan, disks: &[String]) -> Result<(), Failed> {
        let names = &plan.offer.disk.names;
        for disk in disks {
            self.sized(&plan.offer.disk, disk)?;
            let why = match disk::world_name(self.source(), disk) {
                Some(name) if names.contains(&name) => continue,
                None if disks.len() == 1 && plan.mount.is_none() => continue,
                Some(name) if names.is_empty() && disks.len() == 1 => {
                    format!("/dev/{disk} is {name}, and the server named no disk")
                }
                Some(name) => format!(
                    "/dev/{disk} is {name}, and the disk that the server has is {}: it is another disk",
                    names.join(" ")
                ),
                None => format!(
                    "the kernel knows no name of /dev/{disk} (/sys/block/{disk}/.../wwid), so nobody can tell whether it is {}",
                    names.join(" ")
                ),
            };
            return Err((WHICH.to_owned(), Fault(why)));
        }
        self.alone(plan)
    }

    /// Names can be copied, and some disks have none: its size has to be that of the plan, too.
    fn sized(&self, offered: &Disk, disk: &str) -> Result<(), Failed> {
        let of = |file: &str| {
            let number = self.source().int(&format!("/sys/block/{disk}/{file}"))?;
            u64::try_from(number).ok()
        };
        let bytes = of("size").and_then(|sectors| sectors.checked_mul(512));
        let blocks = of("queue/logical_block_size");
        let differs = bytes.is_some_and(|have| have != offered.bytes)
            || blocks.is_some_and(|have| have != u64::from(offered.block_bytes));
        if !differs {
            return Ok(());
        }
        let said = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
        Err((
            WHICH.to_owned(),
            Fault(format!(
                "/dev/{disk} has {} bytes in blocks of {}, and the disk that the server has is {}: it is another disk",
                said(bytes),
                said(blocks),
                offered.shown()
            )),
        ))
    }

    /// Nothing else may pass for it, nor be a path of what dm-multipath makes of it.
    fn alone(&self, plan: &Plan) -> Result<(), Failed> {
        let steps = [&plan.steps, self.cx.others].concat();
        check_alone(self.source(), &plan.offer, &steps).map_err(|fault| (WHICH.to_owned(), fault))
    }

    /// What comes by itself, if it does.
    fn waited<T>(&self, look: impl Fn(&dyn Source) -> Option<T>) -> Option<T> {
        let since = Instant::now();
        loop {
            match look(self.source()) {
                Some(found) => return Some(found),
                None if self.cx.system.wait(since, PATIENCE) => {}
                None => return None,
            }
        }
    }

    fn mount(&mut self, plan: &Plan, disk: &str, directory: &str) -> Result<(), Failed> {
        let device = disk::device(self.source(), disk);
        let (kind, uuid) = self.file_system(plan, disk, &device)?;
        self.only_one(disk, &kind, &uuid)?;
        self.lines(plan, disk, directory, &kind, &uuid)?;
        self.step(Step::Mount { directory: directory.to_owned() })?;
        // By its UUID: the copy of a disk has the same.
        match disk::mounted_at(self.source(), directory) {
            Some(mounted) if mounted == device => Ok(()),
            mounted => Err((
                MOUNT.to_owned(),
                Fault(format!(
                    "{directory} has {} now, and not {device}: another disk has a file system with the same UUID {uuid}, as a copy \
                     has; {NEW_UUID}",
                    mounted.as_deref().unwrap_or("nothing")
                )),
            )),
        }
    }

    /// What has its file system mounted: kind and UUID. An empty disk gets one, if that is wanted.
    fn file_system(
        &mut self,
        plan: &Plan,
        disk: &str,
        device: &str,
    ) -> Result<(String, String), Failed> {
        let failed = |why: String| (MOUNT.to_owned(), Fault(why));
        let look = || {
            disk::content(self.cx.system, device)
                .map_err(|fault| ("look what is on it".to_owned(), fault))
        };
        let content = match (look()?, plan.mkfs) {
            (Content::Blank, Some(kind)) => {
                self.still(plan, disk)?;
                self.make(device, kind)?;
                disk::content(self.cx.system, device)
                    .map_err(|fault| ("look at the file system".to_owned(), fault))?
            }
            (content, _) => content,
        };
        match content {
            Content::FileSystem { kind, .. } if plan.mkfs.is_some() && !self.has_made() => {
                Err(failed(format!(
                    "{device} has an {kind} file system, and is not formatted: leave --mkfs away to mount it"
                )))
            }
            Content::FileSystem { kind, uuid } => Ok((kind, uuid)),
            Content::Blank => Err(failed(format!(
                "{device} is empty: --mkfs ext4 or --mkfs xfs makes a file system on it"
            ))),
            Content::Unknown(at) => Err(failed(format!(
                "{device} has no file system that is known, but is not empty (byte {at} is not zero), and is not formatted: \
                     `blkdiscard {device}` empties it once it is attached without --mount, if nobody needs what is on it"
            ))),
            Content::Other(what) => Err(failed(format!(
                "{device} has {what}, and no file system of its own: it is neither mounted nor formatted"
            ))),
        }
    }

    /// Line and rule go by the UUID of the file system, which the disk says: they may mean no other one.
    fn only_one(&self, disk: &str, kind: &str, uuid: &str) -> Result<(), Failed> {
        let failed = |why: String| (MOUNT.to_owned(), Fault(why));
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !disk::is_uuid(uuid) || kind.is_empty() || !kind.chars().all(plain) {
            let (kind, uuid) = (kind.escape_default(), uuid.escape_default());
            return Err(failed(format!(
                "\"{uuid}\" is no UUID of a file system ({kind}) that can stand in /etc/fstab"
            )));
        }
        match disk::same_uuid(self.cx.system, uuid, &self.disks(disk)) {
            Ok(None) => Ok(()),
            Ok(Some(other)) => Err(failed(format!(
                "its file system has the UUID {uuid}, and {other}: either could be mounted for the other; {NEW_UUID}"
            ))),
            Err(fault) => {
                Err(("see whether the UUID is this file system's alone".to_owned(), fault))
            }
        }
    }

    /// The disk, and those that dm-multipath has made it of.
    fn disks(&self, disk: &str) -> Vec<String> {
        let paths = disk::paths_of(self.source(), disk);
        paths.into_iter().chain([disk.to_owned()]).collect()
    }

    /// What mounts it: directory, line and rule.
    fn lines(
        &mut self,
        plan: &Plan,
        disk: &str,
        directory: &str,
        kind: &str,
        uuid: &str,
    ) -> Result<(), Failed> {
        let read_only = if plan.offer.disk.read_only { "ro," } else { "" };
        let options = format!("{read_only}{MOUNT_OPTIONS}");
        let pass = if kind == "ext4" { 2 } else { 0 };
        let line = format!("UUID={uuid} {} {kind} {options} 0 {pass}", disk::word(directory));
        let systemd = self.source().list("/run/systemd/system").is_some();
        let reload = if systemd { vec![Call::new("systemctl daemon-reload")] } else { Vec::new() };
        let path = directory.to_owned();
        self.step(Step::Directory { path, made: false, above: Vec::new() })?;
        self.step(Step::Line { path: "/etc/fstab".to_owned(), line, reload, edit: None })?;
        if let Some(of_disk) = disk::of_udev(self.source(), disk).filter(|_| systemd) {
            let (path, text) = mount_rule(&plan.name, &of_disk, uuid, directory);
            let reload = vec![Call::new("udevadm control --reload")];
            self.step(Step::file(&path, text, reload))?;
        }
        Ok(())
    }

    /// The disk is still the one that was asked, and free: the plan was shown a while ago.
    fn still(&self, plan: &Plan, disk: &str) -> Result<(), Failed> {
        let what = "ask once more who has reserved it".to_owned();
        let (now, claims) = (self.ask)(&plan.offer).map_err(|fault| (what.clone(), fault))?;
        if !claims.is_empty() {
            return Err((what, Fault(Refusal::Reserved(claims).to_string())));
        }
        if !now.is(&plan.offer.disk) {
            let names = now.names.join(" ");
            return Err((
                WHICH.to_owned(),
                Fault(format!("the server has another disk there by now: {names}")),
            ));
        }
        let paths = disk::paths_of(self.source(), disk);
        let paths = if paths.is_empty() { vec![disk.to_owned()] } else { paths };
        self.proven(plan, &paths)
    }

    fn make(&mut self, device: &str, kind: FileSystem) -> Result<(), Failed> {
        self.step(Step::MakeFileSystem {
            device: device.to_owned(),
            kind: kind.name().to_owned(),
        })?;
        let _ = self.cx.system.run(&Call::new("udevadm settle --timeout=20"));
        Ok(())
    }

    fn has_made(&self) -> bool {
        self.attachment.steps.iter().any(|step| matches!(step, Step::MakeFileSystem { .. }))
    }
}
