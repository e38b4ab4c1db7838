//! `lunet serve`: opens what the plan says, starts the server, waits for its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use lunet_backends::rbd::Place;
use lunet_backends::{Access, FileSpec, OpenError, Storage, VolumeSpec};
use lunet_front_iscsi::{Layout, LogicalUnit, MAX_DISCOVERY, TargetEntry, VolumeEntry, World};
use lunet_front_nvme::{Concatenation, SubsystemEntry, TlsKey};
use lunet_iscsi::target::{DigestPolicy, Options as IscsiOptions};
use lunet_ring::{DriverChoice, Passthrough, PassthroughRings, has_tls};
use lunet_scsi::Unit;
use lunet_scsi::alua::PortGroup;
use lunet_server::Limits;
use lunet_volume::Health;
use lunet_volume::reserve::PASSING_FILE;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::level_filters::LevelFilter;

use crate::control::ControlServer;
use crate::kept::Kept;
use crate::live::{Open, Served};
use crate::manager::Manager;
use crate::opening::{self, How, Unserved};
use crate::plan::{self, Options, Plan, plan};
#[cfg(feature = "control")]
use crate::rest;
use crate::running::{Opened, Running};
use crate::sandbox::{self, Sandbox, User};
use crate::signals::{Signals, Wish};
use crate::trouble::At;
use crate::{belongs, failures, form, helper, identity, log, owned, record};
use lunet_config::secrets;
use lunet_config::{
    Backend, Cache, Config, Digest, Driver, Host, HostSecret, Hosts, LogLevel, Portal,
    Provisioning, Reach, Server, Subsystem, Volume,
};
use lunet_files as files;

/// Connections that have not logged in yet: each has about 20 KiB, and nobody has proved anything.
const FEWEST_LOGINS: usize = 256;
const MOST_LOGINS: usize = 4096;

/// Queues of NVMe controllers for each session that may be configured.
const QUEUES: usize = 9;

/// How often it is looked whether the event loops are alive.
const CHECK: Duration = Duration::from_secs(1);

/// How long the end of a server waits until images of Ceph are closed and their locks let go of.
const CLOSE_IMAGES: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Something is wrong with the options or the configuration, something cannot be opened or
/// listened on, an event loop fails, or data could not be flushed at the end.
pub fn serve(options: &Options) -> Result<()> {
    let ended = serve_until(options);
    helper::end();
    // A lock that is not let go of is in the way of the next server.
    if !lunet_backends::rbd::wait_until_closed(CLOSE_IMAGES) {
        tracing::warn!(
            "the cluster of Ceph does not answer: images are left locked, until lunet serves them again"
        );
    }
    ended
}

fn serve_until(options: &Options) -> Result<()> {
    begin(options.user.as_deref())?;
    let plan = plan(options)?;
    // It may have the kernel load its module: not any more after the next line.
    check_tls(&plan.config)?;
    let mut limits = Sandbox::new(&plan)?;
    start_log(plan.config.server.log_level)?;
    for note in &plan.config.notes {
        tracing::warn!("{}:{note}", plan.file.display());
    }
    if let Some(note) = plan::unread(options, &plan.file, Path::new(plan::OWN_FILE)) {
        log::tell(&format!("note: {note}"));
    }
    // Before any thread starts, so that an early signal ends the server in good order too.
    let mut signals = Signals::catch().context("cannot catch signals")?;
    let manager = Manager::from_environment();
    let mut kept = Kept::begin(&manager);
    // Nothing is made below a mount that is missing, not even the lock.
    let belongs = belongs::check(&plan)?;
    // Dropped after all that is in the data directory: a start that fails leaves nothing behind.
    let (opened, mut made) = Opened::inside(options, plan, |plan| limits.limit_files(plan))?;
    let mut control = ControlServer::bind(opened.socket(), kept.take_local(opened.socket()))?;
    #[cfg(feature = "control")]
    let page = rest::bind(opened.plan(), |path| kept.take_local(path))?;
    let running = opened.start()?;
    control.serve(running.asked()).context("cannot start the control socket's thread")?;
    // Initiators may have written to them: whatever comes, they stay.
    made.keep();
    belongs.remember(&running.asked().manager().now().machine);
    tracing::info!("{}", limits.told());
    #[cfg(feature = "control")]
    let page = start_page(page, &running)?;
    kept.update(|| addresses(&running));
    manager.ready();
    let watch = manager.watch(running.asked()).context("cannot start the watchdog's thread")?;
    for note in running.notes() {
        log::tell(&format!("note: {note}"));
    }
    for (volume, why) in running.unserved() {
        log::tell_of(&volume, &format!("note: {why}"));
    }
    for warning in running.warnings() {
        tracing::warn!("{warning}");
    }
    let ready = running.ready();
    // How to attach LUNs is for people, who see it on a terminal.
    let shown = if log::is_journal() { ready.split("\n\n").next() } else { None };
    log::say(shown.map(|first| format!("{first}\n")).as_ref().unwrap_or(&ready));
    #[cfg(feature = "control")]
    page.iter().flat_map(|page| &page.lines).for_each(|line| log::say(&format!("{line}\n")));
    #[cfg(debug_assertions)]
    sandbox::attempts::make();
    wait(&mut signals, &running, (&manager, &mut kept))?;
    drop(watch);
    manager.stopping();
    signals.at_once().context("cannot catch a second signal")?;
    // First, so that the audit log has what is changed by commands until the end.
    drop(control);
    #[cfg(feature = "control")]
    if let Some(page) = page {
        page.end();
    }
    running.stop()
}

/// Each connection and each file of a volume is a descriptor. The usual limit is for programs with a few of them, and may be raised
/// to what the system allows this process: those that it starts have theirs from the helper, which is not changed.
fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Best effort: what is missing then shows when connections are refused, and is told there.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Starts the helper, and has the user serve that was asked for. There is one thread, and nothing is open yet.
fn begin(user: Option<&str>) -> Result<()> {
    let user = user.map(User::find).transpose()?.filter(|user| !user.is_here());
    helper::start(user.as_ref().map(|user| (user.uid, user.gid)))?;
    take_descriptors();
    sandbox::close().context("cannot give up privileges")?;
    user.map_or(Ok(()), |user| user.become_it())
}

/// Serves the REST interface and the page, if they can be had.
#[cfg(feature = "control")]
fn start_page(found: rest::Found, running: &Running) -> Result<Option<rest::Served>> {
    if let Some(why) = found.note {
        log::tell(&format!("note: {why}"));
    }
    found.ready.map(|ready| ready.start(running)).transpose()
}

/// Does what signals ask for. Waits for the one that ends the server, or for the failure of an
/// event loop.
fn wait(
    signals: &mut Signals,
    running: &Running,
    (manager, kept): (&Manager, &mut Kept),
) -> Result<()> {
    loop {
        kept.update(|| addresses(running));
        match signals.wait(Some(CHECK)).context("cannot wait for signals")? {
            Some(Wish::Stop) => {
                tracing::info!("a signal to stop: finishing what runs");
                return Ok(());
            }
            Some(Wish::Reload) => {
                manager.reloading();
                let told = manager.clone();
                if let Err(error) = running.reload(move || told.ready()) {
                    tracing::error!("{error:#}: send the signal again");
                    manager.ready();
                }
            }
            None => {}
        }
        if running.failed() {
            return Ok(());
        }
        running.look_at_images();
    }
}

/// Where it is listened on now.
fn addresses(running: &Running) -> Vec<SocketAddr> {
    let portals = running.asked().portals().into_iter();
    portals.filter_map(|portal| portal.address.parse().ok()).collect()
}

pub(crate) fn start_log(level: LogLevel) -> Result<()> {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    log::start(level).context("cannot start the thread that writes the log")
}

/// Opens all volumes of a plan whose data directory is there. Those that cannot be opened for the sake of their
/// storage are left out.
pub(crate) fn open_volumes(
    plan: Plan,
    machine: identity::Machine,
    how: How,
    made: &mut Made,
) -> Result<Served> {
    let (mut all, mut unserved) = (BTreeMap::new(), BTreeMap::new());
    tidy(&plan);
    let mut marks = failures::Marks::of(&plan.data);
    for config in &plan.config.volumes {
        let name = config.name.clone();
        made.expect(config, &plan.data);
        match opening::open(config, &plan.data, how) {
            Ok(volume) => {
                drop(all.insert(name, Open::new(config.clone(), volume, &mut marks)));
            }
            Err(failure) if failure.ends_start() => return Err(failure.into()),
            Err(failure) => {
                drop(unserved.insert(name, Unserved::new(config, &plan.data, failure)));
            }
        }
    }
    Ok(Served {
        server: plan.config.server.clone(),
        plan,
        machine,
        open: all,
        unserved,
        keep_sessions: false,
    })
}

/// Removes what was cut short has left: files that were to take the place of others.
fn tidy(plan: &Plan) {
    for path in [ports(&plan.data), plan.file.clone()] {
        files::clear(&path);
    }
    // Of any volume: one whose creation was cut short is in no configuration.
    let kinds = kept(&plan.data, "").map(|path| path.file_name().unwrap_or_default().to_owned());
    for entry in fs::read_dir(&plan.data).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let cut_short = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(".new"));
        let of_a_volume = |name: &str| {
            kinds.iter().any(|kind| kind.to_str().is_some_and(|kind| name.ends_with(kind)))
        };
        if let Some(name) = cut_short.filter(|name| of_a_volume(name)) {
            files::clear(&plan.data.join(name));
        }
    }
    let file = |volume: &Volume| match volume.backend {
        Backend::File { .. } => volume.path(&plan.data),
        _ => None,
    };
    let files: Vec<PathBuf> = plan.config.volumes.iter().filter_map(file).collect();
    let directories: BTreeSet<&Path> = files.iter().map(|file| files::parent(file)).collect();
    for directory in directories {
        if let Err(error) = lunet_backends::snapshot::tidy(directory) {
            tracing::warn!("cannot look for leftovers in {}: {error}", directory.display());
        }
    }
}

/// Refuses to promise TLS that the kernel does not have.
///
/// # Errors
/// What to do.
pub fn check_tls(config: &Config) -> Result<()> {
    if !config.nvme.needs_tls() {
        return Ok(());
    }
    let Err(error) = has_tls() else { return Ok(()) };
    Err(anyhow!(
        "the configuration has TLS, for which the kernel has no support now ({error}): load its module with `modprobe \
         tls`, and at each start by a line `tls` in /etc/modules-load.d/lunet.conf"
    ))
}

/// Says what of a plan ends the start, as far as that can be told without opening anything. The data directory is
/// looked at if it is the one that will be used, by a server of the user `data`.
pub(crate) fn foresee(plan: &Plan, data: Option<u32>) -> Result<()> {
    if let (Some(user), Ok(found)) = (data, plan.data.metadata()) {
        owned::data_of(&plan.data, &found, user)?;
    }
    for volume in &plan.config.volumes {
        // One that was there before ends no start: it is not served.
        let before = record::load(&plan.data, &volume.name);
        if before.is_ok_and(|record| record.is_none_or(|record| !record.is_of(volume))) {
            match lunet_backends::foresee(&spec(volume, &plan.data)) {
                // A start makes it.
                Err(OpenError::NoDirectory { directory, .. }) if directory == plan.data => {}
                other => other.map_err(|error| anyhow!("volume {}: {error}", volume.name))?,
            }
        }
    }
    Ok(())
}

/// Opens the file that will take the place of an open volume's.
pub(crate) fn open_successor(
    old: &Open,
    config: &Volume,
    data: &Path,
) -> Result<lunet_backends::Volume> {
    lunet_backends::open_in_place_of(&old.volume, &spec(config, data))
        .map_err(|error| anyhow!("volume {}: {error}", config.name))
}

/// An open volume in the target's terms.
pub(crate) fn entry(served: &Served, open: &Open) -> VolumeEntry {
    let config = &open.config;
    let grouped = config.group.is_some();
    let mut identity = identity::of_volume(&served.machine, config);
    if grouped {
        // The record of a group has none.
        identity.eui = None;
    }
    let unit = Unit::new(identity, open.volume.caps().clone());
    VolumeEntry {
        name: config.name.clone(),
        volume: open.volume.clone(),
        health: open.health.clone(),
        path: config.path(&served.plan.data),
        unit: Unit {
            removable: config.removable,
            threshold: config.threshold,
            write_cache: config.write_cache,
            // The record of a group keeps what outlives a gateway.
            saves: !grouped,
            alua: served.server.alua,
            ..unit
        },
        reservations: (!grouped).then(|| reservations(&served.plan.data, &config.name)),
    }
}

/// What stands in the place of a volume that is not served, in the target's terms.
pub(crate) fn stand_in(served: &Served, unserved: &Unserved) -> VolumeEntry {
    let open = Open {
        config: unserved.config.clone(),
        volume: unserved.stand_in(),
        health: Health::absent(&unserved.config.name),
    };
    let entry = entry(served, &open);
    VolumeEntry { unit: Unit { absent: true, ..entry.unit }, ..entry }
}

/// The files that are kept about a volume beside its data: its reservations, the mark of a sanitize operation that
/// has not ended, its mode parameters, what it passes on to the next start, the mark of a failed write-back, and what its
/// storage is known by.
pub(crate) fn kept(data: &Path, volume: &str) -> [PathBuf; 6] {
    let [sanitize, modes, passing] =
        ["sanitize", "modes", PASSING_FILE].map(|kind| data.join(format!("{volume}.{kind}")));
    let mark = failures::mark(data, volume);
    [reservations(data, volume), sanitize, modes, passing, mark, record::path(data, volume)]
}

/// The file that keeps the numbers of the targets' ports.
fn ports(data: &Path) -> PathBuf {
    data.join("ports")
}

/// The file that keeps the persistent reservations of a volume.
fn reservations(data: &Path, volume: &str) -> PathBuf {
    data.join(format!("{volume}.reservations"))
}

/// Makes the data directory if it is not there, and takes it for this server alone, as long as the
/// result lives.
pub(crate) fn take_data(data: &Path) -> Result<Made> {
    let mut made = Made::default();
    let new = !data.exists();
    // What is kept there is nobody else's business.
    files::make_directory(data, 0o700).at("make the data directory", data)?;
    let path = data.join("lunet.lock");
    if new {
        made.directory(data, &path);
    }
    let found = data.metadata().at("look at", data)?;
    owned::data(data, &found)?;
    loop {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = lunet_os::fs::open(&path, &options).at("lock the data directory with", &path)?;
        let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive);
        let locked = |error: &Errno| *error == Errno::WOULDBLOCK;
        match lunet_backends::retry::while_in_use(lock, locked) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                made.keep();
                bail!(
                    "{}: the data directory is in use by another lunet{}: stop that one (SIGTERM, or `systemctl \
                     stop` of its service), or give this one another directory with --data",
                    data.display(),
                    lunet_backends::holding(&file)
                        .map_or_else(String::new, |pid| format!(", process {pid}"))
                )
            }
            Err(error) => return Err(error).at("lock the data directory with", &path),
        }
        // A start that failed may have removed the file: a lock on what is gone is none.
        let same = |there: Metadata| {
            file.metadata().is_ok_and(|f| (f.dev(), f.ino()) == (there.dev(), there.ino()))
        };
        if path.metadata().is_ok_and(same) {
            made.taken = Some(file);
            return Ok(made);
        }
    }
}

/// The data directory, taken for one server, and what a start has made that was not there: it goes if lunet does not
/// come to serve.
#[derive(Default)]
pub struct Made {
    /// In the order in which they go.
    files: Vec<PathBuf>,
    directory: Option<PathBuf>,
    /// The lock, which is let go of last.
    taken: Option<File>,
}

impl Made {
    /// The data directory is new, and so is what every start leaves there.
    fn directory(&mut self, data: &Path, lock: &Path) {
        self.files.extend([
            data.join(identity::FILE),
            data.join(form::FILE),
            ports(data),
            lock.to_owned(),
        ]);
        self.directory = Some(data.to_owned());
    }

    /// A volume is about to be opened. If it has no file, one may be made.
    fn expect(&mut self, config: &Volume, data: &Path) {
        let (Some(path), Backend::File { .. }) = (config.path(data), &config.backend) else {
            return;
        };
        if path.symlink_metadata().is_err() {
            let record = record::path(data, &config.name);
            let sidecar = lunet_backends::sidecar::path(&path);
            // A record that was there says that this file was there once: it is not made then.
            if !record.exists() {
                self.files.splice(0..0, [record, sidecar, path]);
            }
        }
    }

    /// Lunet serves: from now on these are volumes.
    pub fn keep(&mut self) {
        // Nothing of this may be dropped: that removes it.
        self.files.clear();
        self.directory = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.files {
            if let Err(error) = files::remove(path) {
                tracing::warn!("cannot remove {}: {error}", path.display());
            }
        }
        // With anything else in it, it stays.
        let _ = self.directory.as_ref().map(|path| lunet_os::fs::remove_directory(path));
    }
}

/// Where the image of a volume is; `None` if it is of another kind.
pub(crate) fn image_of(volume: &Volume) -> Option<Place> {
    let Backend::Rbd { image, conf, user, keyring } = &volume.backend else { return None };
    let (user, keyring) = (user.as_deref(), keyring.as_deref());
    Some(Place::configured(image.clone(), conf.as_deref(), user, keyring))
}

pub(crate) fn spec(volume: &Volume, data: &Path) -> VolumeSpec {
    let storage = match &volume.backend {
        Backend::File { size, cache, provisioning, .. } => Storage::File(FileSpec {
            path: volume.path(data).unwrap_or_default(),
            size: *size,
            create: false,
            grow: size.is_some(),
            known: None,
            provisioning: match provisioning {
                Provisioning::Thin => lunet_backends::Provisioning::Thin,
                Provisioning::Full => lunet_backends::Provisioning::Full,
            },
            access: match cache {
                Cache::Buffered => Access::Buffered,
                Cache::Direct => Access::Direct,
            },
        }),
        Backend::Block { path, .. } => Storage::Block { path: path.clone() },
        Backend::Rbd { image, .. } => {
            Storage::Rbd(image_of(volume).unwrap_or_else(|| Place::new(image.clone())))
        }
        Backend::Memory { size } => Storage::Memory { size: *size },
        Backend::Null { size } => Storage::Null { size: *size },
    };
    VolumeSpec {
        storage,
        block_size: volume.block_size,
        physical_block_size: volume.physical_block_size,
        read_only: volume.read_only,
        passthrough: match volume.backend {
            Backend::Block { passthrough, .. } => passthrough,
            _ => None,
        },
        layers: volume.layers.clone(),
    }
}

/// What is served, in the target's terms. The volumes are in the configuration's order.
pub(crate) fn layout(config: &Config, volumes: Vec<VolumeEntry>) -> Layout {
    let target = |target: &lunet_config::Target| TargetEntry {
        name: target.name.clone(),
        alias: target.alias.clone(),
        luns: target.luns.clone(),
        portals: target.portals.clone(),
        access: lunet_front_iscsi::Access {
            open: target.reach() != Reach::ThisMachine,
            ..secrets::access(&target.access)
        },
        allow_reset: target.allow_reset,
    };
    Layout {
        portals: Some(listen(config)),
        volumes,
        targets: config.targets.iter().map(target).collect(),
        groups: groups(config),
        discovery: secrets::access(&config.discovery),
        keep_sessions: false,
    }
}

/// The portals for iSCSI in the target's terms.
pub(crate) fn listen(config: &Config) -> Vec<lunet_server::Portal> {
    in_servers_terms(&config.portals)
}

/// The portals for NVMe in the server's terms.
pub(crate) fn listen_nvme(config: &Config) -> Vec<lunet_server::Portal> {
    in_servers_terms(&config.nvme.portals)
}

fn in_servers_terms(portals: &[Portal]) -> Vec<lunet_server::Portal> {
    let portal = |portal: &Portal| lunet_server::Portal {
        address: portal.address,
        tag: portal.tag,
        transports: portal.transports,
    };
    portals.iter().map(portal).collect()
}

/// A host in the server's terms: none whose secret is not known, which was checked before.
fn host(host: &Host) -> Option<lunet_front_nvme::Host> {
    let known = |secret: &Option<HostSecret>| match secret {
        Some(secret) => secret.secret().map(Some),
        None => Ok(None),
    };
    Some(lunet_front_nvme::Host {
        nqn: host.nqn.clone(),
        secret: known(&host.secret).ok()?,
        controller_secret: known(&host.controller_secret).ok()?,
        tls: known(&host.tls_key)
            .ok()?
            .map(|secret| TlsKey { secret, required: host.tls_required }),
        concatenation: match host.has_to_concatenate() {
            true => Concatenation::Required,
            // Whoever needs a key that it has does not come without TLS.
            false => Concatenation::Allowed,
        },
    })
}

/// What is served over NVMe, of the volumes that are served over iSCSI.
pub(crate) fn over_nvme(served: &Served, world: &World) -> lunet_front_nvme::Layout<LogicalUnit> {
    let config = &served.plan.config;
    let open: BTreeMap<&str, _> =
        world.volumes().map(|(slot, volume)| (volume.name.as_str(), (slot, volume))).collect();
    let slot = |at: usize| open.get(config.volumes[at].name.as_str()).copied();
    let lead = |(at, portal): (usize, &Portal)| (!portal.is_for_discovery()).then_some(at);
    let leading: Vec<usize> = config.nvme.portals.iter().enumerate().filter_map(lead).collect();
    let entry = |subsystem: &Subsystem| SubsystemEntry {
        nqn: subsystem.nqn.clone(),
        serial: match config.is_shared(subsystem) {
            true => identity::of_shared_subsystem(&subsystem.nqn),
            false => identity::of_subsystem(&served.machine, &subsystem.nqn),
        },
        model: "lunet".to_owned(),
        namespaces: subsystem
            .namespaces
            .iter()
            .filter_map(|(nsid, at)| Some((*nsid, slot(*at)?.0)))
            .collect(),
        hosts: match &subsystem.hosts {
            Hosts::ThisMachine => lunet_front_nvme::Hosts::Local,
            Hosts::Everybody => lunet_front_nvme::Hosts::Any,
            Hosts::Named(hosts) => {
                lunet_front_nvme::Hosts::Listed(hosts.iter().filter_map(host).collect())
            }
        },
        portals: match subsystem.portals.is_empty() {
            true => leading.clone(),
            false => subsystem.portals.clone(),
        },
    };
    let mut used: Vec<usize> =
        config.nvme.subsystems.iter().flat_map(|s| &s.namespaces).map(|(_, at)| *at).collect();
    used.sort_unstable();
    used.dedup();
    let volumes = used.into_iter().filter_map(slot).map(|(slot, volume)| (slot, volume.clone()));
    let mut tags: Vec<u16> = config.nvme.portals.iter().map(|portal| portal.tag).collect();
    tags.sort_unstable();
    tags.dedup();
    let group = |tag: u16| Some((tag, world.rules.groups.number(tag)?));
    lunet_front_nvme::Layout {
        portals: Some(listen_nvme(config)),
        volumes: volumes.collect(),
        subsystems: config.nvme.subsystems.iter().map(entry).collect(),
        tls: config.nvme.portals.iter().map(|portal| portal.tls).enumerate().collect(),
        groups: tags.into_iter().filter_map(group).collect(),
        referrals: config.nvme.referrals.clone(),
        keep_sessions: served.keep_sessions,
    }
}

/// The port groups of all portals.
pub(crate) fn groups(config: &Config) -> Vec<PortGroup> {
    let group = |portal: &Portal| PortGroup {
        tag: portal.tag,
        state: portal.group_state,
        preferred: portal.preferred,
    };
    config.portals.iter().chain(&config.nvme.portals).map(group).collect()
}

/// The configuration in the target's terms.
pub(crate) fn assemble(config: &Config, data: &Path, layout: Layout) -> lunet_front_iscsi::Config {
    let server = &config.server;
    lunet_front_iscsi::Config {
        portals: listen(config),
        layout,
        port_numbers: Some(ports(data)),
        iscsi: iscsi(config),
        limits: Limits { max_sessions: server.max_sessions, ..limits(config, server) },
        max_discovery: MAX_DISCOVERY,
        shards: server.shards,
        driver: driver(server),
        busy_poll: server.busy_poll,
    }
}

/// The same for what is served over NVMe, by the settings of the server that are in force.
pub(crate) fn assemble_nvme(
    server: &Server,
    config: &Config,
    layout: lunet_front_nvme::Layout<LogicalUnit>,
) -> lunet_front_nvme::Config<LogicalUnit> {
    let options = lunet_front_nvme::Options {
        max_controllers: server.max_sessions,
        connect_timeout: config.server.login_timeout,
        data_timeout: config.iscsi.data_timeout,
        ..lunet_front_nvme::Options::default()
    };
    lunet_front_nvme::Config {
        portals: listen_nvme(config),
        layout,
        // Of queues, of which a controller has several.
        limits: Limits {
            max_sessions: server.max_sessions.saturating_mul(QUEUES),
            ..limits(config, server)
        },
        options,
        shards: server.shards,
        driver: driver(server),
        busy_poll: server.busy_poll,
    }
}

/// The rings for NVMe commands that volumes need. A volume that is to poll interrupts where the drive cannot be polled.
pub(crate) fn passthrough(config: &Config) -> PassthroughRings {
    let wanted = |such: &dyn Fn(Passthrough) -> bool| {
        config.volumes.iter().any(|volume| match volume.backend {
            Backend::Block { passthrough: Some(how), .. } => such(how),
            _ => false,
        })
    };
    let polled = wanted(&|how| how == Passthrough::Polled);
    PassthroughRings { interrupt: wanted(&|_| true), polled }
}

fn limits(config: &Config, server: &Server) -> Limits {
    let buffer_bytes = usize::try_from(server.buffer_memory).unwrap_or(usize::MAX);
    let (send_with_invalidate, zero_copy_send) =
        (server.send_with_invalidate, server.zero_copy_send);
    // Of those who come back all at once after an outage, as many as the memory for them is worth.
    let max_logins = (server.max_sessions / 4).clamp(FEWEST_LOGINS, MOST_LOGINS);
    Limits {
        buffer_bytes,
        send_with_invalidate,
        zero_copy_send,
        max_logins,
        passthrough: passthrough(config),
        ..Limits::default()
    }
}

fn driver(server: &Server) -> DriverChoice {
    match server.driver {
        Driver::Auto => DriverChoice::Auto,
        Driver::IoUring => DriverChoice::IoUring,
        Driver::Epoll => DriverChoice::Epoll,
    }
}

fn iscsi(config: &Config) -> IscsiOptions {
    let digest = |digest| match digest {
        Digest::Allow => DigestPolicy::Allow,
        Digest::Require => DigestPolicy::Require,
        Digest::Forbid => DigestPolicy::Forbid,
    };
    let ours = &config.iscsi;
    IscsiOptions {
        max_recv_data_segment_length: ours.max_recv_data_segment_length,
        max_burst_length: ours.max_burst_length,
        first_burst_length: ours.first_burst_length,
        max_outstanding_r2t: ours.max_outstanding_r2t,
        immediate_data: ours.immediate_data,
        initial_r2t: ours.initial_r2t,
        header_digest: digest(ours.header_digest),
        data_digest: digest(ours.data_digest),
        queue_depth: ours.queue_depth,
        login_timeout: config.server.login_timeout,
        ping_interval: ours.ping_interval,
        ping_timeout: ours.ping_timeout,
        data_timeout: ours.data_timeout,
        ..IscsiOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    /// What is documented as the default is what the target does by default.
    #[test]
    fn the_documented_defaults_are_those_of_the_target() {
        let config = check("[[target]]\nname = 'iqn.2026-11.l:x'\n").unwrap();
        assert_eq!(format!("{:?}", iscsi(&config)), format!("{:?}", IscsiOptions::default()));
        let assembled = assemble(&config, Path::new("/data"), Layout::default());
        assert_eq!(format!("{:?}", assembled.limits), format!("{:?}", Limits::default()));
    }

    #[test]
    fn only_a_volume_with_a_size_may_be_made() {
        let config = check(
            "[[target]]\nname = 'iqn.2026-11.l:x'\n[volumes.a]\nbackend = 'file'\nsize = '1MiB'\n\
             cache = 'direct'\nprovisioning = 'full'\n[volumes.b]\nbackend = 'file'\npath = '/b'\n",
        )
        .unwrap();
        let spec = |i: usize| match spec(&config.volumes[i], Path::new("/data")).storage {
            Storage::File(file) => file,
            other => panic!("{other:?}"),
        };
        let a = FileSpec {
            path: "/data/a.img".into(),
            size: Some(1 << 20),
            create: false,
            grow: true,
            known: None,
            provisioning: lunet_backends::Provisioning::Full,
            access: Access::Direct,
        };
        assert_eq!(spec(0), a);
        assert_eq!(spec(1), FileSpec::new("/b".into()));
    }
}
