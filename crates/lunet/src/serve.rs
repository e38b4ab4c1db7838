//! `lunet serve`: opens what the plan says, starts the server, waits for its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lunet_api::{Answer, Change, Request};
use lunet_backends::{Access, FileSpec, OpenError, Storage, VolumeSpec};
use lunet_front_iscsi::{Handle, Layout, MAX_DISCOVERY, Server, TargetEntry, VolumeEntry};
use lunet_iscsi::target::{DigestPolicy, Options as IscsiOptions};
use lunet_ring::DriverChoice;
use lunet_scsi::Unit;
use lunet_scsi::alua::PortGroup;
use lunet_server::{Limits, StartError};
use lunet_volume::Health;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tracing::level_filters::LevelFilter;
use zeroize::Zeroizing;

use crate::audit::{self, Origin};
use crate::config::{
    Backend, Cache, Config, Digest, Driver, LogLevel, Portal, Provisioning, Reach, Volume,
};
use crate::control::{Asker, ControlServer, Source};
use crate::live::{self, Manager, Open, Served};
use crate::opening::{self, How, Unserved};
use crate::plan::{self, Options, Plan, plan};
use crate::signals::{Signals, Wish};
use crate::trouble::{self, At};
use crate::{exposure, failures, holder, identity, log, owned, ready, record, secrets};
use lunet_files as files;

/// How often it is looked whether the event loops are alive.
const CHECK: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Something is wrong with the options or the configuration, something cannot be opened or
/// listened on, an event loop fails, or data could not be flushed at the end.
pub fn serve(options: &Options) -> Result<()> {
    let plan = plan(options)?;
    start_log(plan.config.server.log_level)?;
    for note in &plan.config.notes {
        tracing::warn!("{}:{note}", plan.file.display());
    }
    if let Some(note) = plan::unread(options, &plan.file, Path::new(plan::OWN_FILE)) {
        log::tell(&format!("note: {note}"));
    }
    // Before any thread starts, so that an early signal ends the server in good order too.
    let mut signals = Signals::catch().context("cannot catch signals")?;
    let (_taken, mut made) = take_data(&plan.data)?;
    for problem in live::recover(&plan.data, &plan.file, &plan.config)? {
        tracing::warn!("{problem}");
    }
    let machine = identity::machine(&plan.data)?;
    // The embedded default is for people who have no file, and would not know of the option.
    let how = if options.create || plan.text.is_none() { How::Make } else { How::Take };
    let served = open_volumes(plan, machine, how, &mut made)?;
    let mut control = ControlServer::bind(&served.plan.socket)?;
    let config = served.plan.config.clone();
    // The error's own words hold its cause.
    let start = assemble(&config, &served.plan.data, served.layout());
    let server =
        lunet_front_iscsi::start(start).map_err(|error| not_started(&error, &served.plan))?;
    let manager = Arc::new(Manager::new(options, server.handle(), served));
    let asked = Asked { handle: server.handle(), manager: manager.clone() };
    control.serve(asked).context("cannot start the control socket's thread")?;
    for note in server.notes() {
        log::tell(&format!("note: {note}"));
    }
    for unserved in manager.now().unserved.values() {
        log::tell(&format!("note: not served: {}", unserved.failure));
    }
    for warning in exposure::warnings(&config, &server.portals()) {
        tracing::warn!("{warning}");
    }
    let lost = manager.now();
    log::say(&ready::text(&config, &server.portals(), |name| lost.unserved.contains_key(name)));
    drop(lost);
    made.keep();
    let failed = wait(&mut signals, &server, &manager)?;
    signals.at_once().context("cannot catch a second signal")?;
    drop(control);
    let (begun, grace) = (Instant::now(), config.server.shutdown_grace);
    manager.close(grace);
    drop(manager);
    let report = server.stop(grace.saturating_sub(begun.elapsed()));
    if failed {
        bail!("an event loop has failed: the log above says why; start lunet again");
    }
    if !report.flushed {
        bail!(
            "not everything could be flushed, so the last writes may be lost: see to the storage that the log above \
             names, and check the file systems on its volumes"
        );
    }
    tracing::info!("all volumes are flushed and closed");
    Ok(())
}

/// Does what signals ask for. Waits for the one that ends the server, or for the failure of an
/// event loop (true then).
fn wait(signals: &mut Signals, server: &Server, manager: &Arc<Manager>) -> Result<bool> {
    loop {
        match signals.wait(Some(CHECK)).context("cannot wait for signals")? {
            Some(Wish::Stop) => {
                tracing::info!("a signal to stop: finishing what runs");
                return Ok(false);
            }
            Some(Wish::Reload) => reload(manager.clone())?,
            None => {}
        }
        if server.failed() {
            return Ok(true);
        }
    }
}

/// Reads the configuration again, beside the watch for signals.
fn reload(manager: Arc<Manager>) -> Result<()> {
    let change = Change::Apply { force: false, keep_sessions: false };
    let apply = move || {
        let result = manager.change(&change);
        audit::log(Origin::Signal, &change, &result);
        let Ok(done) = result else { return };
        // Sessions were told already.
        let sessions = live::concerned(&done.sessions);
        for note in done.notes.iter().filter(|note| !sessions.contains(note)) {
            tracing::warn!("{note}");
        }
    };
    let thread = thread::Builder::new().name("reload".into()).spawn(apply);
    thread.map(drop).context("cannot start a thread to read the configuration")
}

/// Why the server has not started, with the next step.
fn not_started(error: &StartError, plan: &Plan) -> anyhow::Error {
    let portals =
        |text: &&Zeroizing<String>| text.lines().any(|line| line.trim().starts_with("[[portal]]"));
    let file = plan.text.as_ref().filter(portals).map(|_| plan.file.as_path());
    match error {
        StartError::InUse { address } => anyhow!("{}", holder::in_use(*address, file)),
        StartError::Listen { address, source } => {
            let place = match file {
                Some(file) => format!("name another address in [[portal]] in {}", file.display()),
                None => "take another address with `lunet serve --listen`".to_owned(),
            };
            anyhow!("{}", trouble::listening(*address, source, &place))
        }
        error => anyhow!("{error}"),
    }
}

/// Answers the control socket.
struct Asked {
    handle: Handle,
    manager: Arc<Manager>,
}

impl Source for Asked {
    fn answer(&self, who: Asker, request: Request) -> Result<Answer, lunet_api::Error> {
        let answer = match request {
            Request::Sessions => Ok(Answer::Sessions(live::sessions(self.handle.sessions()))),
            Request::Stats => Ok(Answer::Stats(Box::new(live::stats(self.handle.stats())))),
            Request::Volumes => Ok(Answer::Volumes(self.manager.volumes())),
            Request::Snapshots { volume } => {
                self.manager.snapshots(volume.as_deref()).map(Answer::Snapshots)
            }
            Request::Targets => Ok(Answer::Targets(self.manager.targets())),
            Request::Portals => Ok(Answer::Portals(live::portals(self.handle.portal_report()))),
            Request::Config => Ok(Answer::Config(Box::new(self.manager.configuration()))),
            Request::Change { change, .. } => {
                let done = self.manager.change(&change);
                audit::log(Origin::Socket(who), &change, &done);
                done.map(Answer::Done)
            }
            Request::Preview { change, .. } => self.manager.preview(&change).map(Answer::Preview),
        };
        answer.map_err(|error| trouble::coded(&error))
    }
}

fn start_log(level: LogLevel) -> Result<()> {
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
    for config in &plan.config.volumes {
        let name = config.name.clone();
        made.expect(config, &plan.data);
        match opening::open(config, &plan.data, how) {
            Ok(volume) => {
                drop(all.insert(name, Open::new(config.clone(), volume, &plan.data)));
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

/// Says what of a plan ends the start, as far as that can be told without opening anything. The data directory is
/// looked at if it is the one that will be used.
pub(crate) fn foresee(plan: &Plan, data: bool) -> Result<()> {
    if let (true, Ok(found)) = (data, plan.data.metadata()) {
        owned::data(&plan.data, &found)?;
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
    let identity = identity::of_volume(&served.machine, config);
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
            saves: true,
            alua: served.server.alua,
            ..unit
        },
        reservations: Some(reservations(&served.plan.data, &config.name)),
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
/// has not ended, its mode parameters, the mark of a failed write-back, and what its storage is known by.
pub(crate) fn kept(data: &Path, volume: &str) -> [PathBuf; 5] {
    let [sanitize, modes] = ["sanitize", "modes"].map(|kind| data.join(format!("{volume}.{kind}")));
    let mark = failures::mark(data, volume);
    [reservations(data, volume), sanitize, modes, mark, record::path(data, volume)]
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
fn take_data(data: &Path) -> Result<(File, Made)> {
    let mut made = Made::default();
    let new = !data.exists();
    // What is kept there is nobody else's business.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .at("make the data directory", data)?;
    let path = data.join("lunet.lock");
    if new {
        made.directory(data, &path);
    }
    let found = data.metadata().at("look at", data)?;
    owned::data(data, &found)?;
    loop {
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.at("lock the data directory with", &path)?;
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
            return Ok((file, made));
        }
    }
}

/// What a start has made that was not there. It goes if lunet does not come to serve.
#[derive(Default)]
pub(crate) struct Made {
    /// In the order in which they go.
    files: Vec<PathBuf>,
    directory: Option<PathBuf>,
}

impl Made {
    /// The data directory is new, and so is what every start leaves there.
    fn directory(&mut self, data: &Path, lock: &Path) {
        self.files.extend([data.join(identity::FILE), ports(data), lock.to_owned()]);
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
    pub(crate) fn keep(&mut self) {
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
        let _ = self.directory.as_ref().map(fs::remove_dir);
    }
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
        Backend::Block { path } => Storage::Block { path: path.clone() },
        Backend::Memory { size } => Storage::Memory { size: *size },
        Backend::Null { size } => Storage::Null { size: *size },
    };
    VolumeSpec {
        storage,
        block_size: volume.block_size,
        physical_block_size: volume.physical_block_size,
        read_only: volume.read_only,
        layers: volume.layers.clone(),
    }
}

/// What is served, in the target's terms. The volumes are in the configuration's order.
pub(crate) fn layout(config: &Config, volumes: Vec<VolumeEntry>) -> Layout {
    let target = |target: &crate::config::Target| TargetEntry {
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

/// The portals in the target's terms.
pub(crate) fn listen(config: &Config) -> Vec<lunet_server::Portal> {
    let portal = |portal: &Portal| lunet_server::Portal {
        address: portal.address,
        tag: portal.tag,
        transports: portal.transports,
    };
    config.portals.iter().map(portal).collect()
}

/// The target port groups of the portals.
pub(crate) fn groups(config: &Config) -> Vec<PortGroup> {
    let group = |portal: &Portal| PortGroup {
        tag: portal.tag,
        state: portal.group_state,
        preferred: portal.preferred,
    };
    config.portals.iter().map(group).collect()
}

/// The configuration in the target's terms.
pub(crate) fn assemble(config: &Config, data: &Path, layout: Layout) -> lunet_front_iscsi::Config {
    let server = &config.server;
    lunet_front_iscsi::Config {
        portals: listen(config),
        layout,
        port_numbers: Some(ports(data)),
        iscsi: iscsi(config),
        limits: Limits {
            max_sessions: server.max_sessions,
            buffer_bytes: usize::try_from(server.buffer_memory).unwrap_or(usize::MAX),
            ..Limits::default()
        },
        max_discovery: MAX_DISCOVERY,
        shards: server.shards,
        driver: match server.driver {
            Driver::Auto => DriverChoice::Auto,
            Driver::IoUring => DriverChoice::IoUring,
            Driver::Epoll => DriverChoice::Epoll,
        },
        busy_poll: server.busy_poll,
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
    use crate::config::check;

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
