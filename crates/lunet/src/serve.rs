//! `lunet serve`: opens what the plan says, starts the server, waits for its end.

use std::fs::DirBuilder;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use lunet_backends::{Access, FileSpec, Storage, VolumeSpec};
use lunet_iscsi::target::{DigestPolicy, Options as IscsiOptions};
use lunet_ring::DriverChoice;
use lunet_scsi::Unit;
use lunet_target::{Handle, Layout, Limits, Server, TargetEntry, VolumeEntry};
use serde_json::Value;
use tracing::level_filters::LevelFilter;

use crate::config::{Backend, Cache, Config, Digest, Driver, LogLevel, Provisioning, Volume};
use crate::control::{ControlServer, Request, Source};
use crate::plan::{Options, Plan, plan};
use crate::signals::Stop;
use crate::{identity, ready};

/// How often it is looked whether the event loops are alive.
const CHECK: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Something is wrong with the options or the configuration, something cannot be opened or
/// listened on, an event loop fails, or data could not be flushed at the end.
pub fn serve(options: &Options) -> Result<()> {
    let plan = plan(options)?;
    log(plan.config.server.log_level);
    // Before any thread starts, so that an early signal ends the server in good order too.
    let mut stop = Stop::catch().context("cannot catch signals")?;
    let volumes = open_volumes(&plan)?;
    let mut control = ControlServer::bind(&plan.socket)?;
    let grace = plan.config.server.shutdown_grace;
    // The error's own words hold its cause.
    let server =
        Server::start(assemble(&plan.config, &plan.data, volumes)).map_err(|e| anyhow!("{e}"))?;
    control.serve(Asked(server.handle())).context("cannot start the control socket's thread")?;
    for note in server.notes() {
        eprintln!("lunet: note: {note}");
    }
    say(&ready::text(&plan.config, &server.portals()));
    let failed = wait(&mut stop, &server)?;
    stop.at_once().context("cannot catch a second signal")?;
    drop(control);
    let report = server.stop(grace);
    if failed {
        bail!("an event loop has failed, see the log above");
    }
    if !report.flushed {
        bail!("not everything could be flushed: the last writes may be lost");
    }
    tracing::info!("all volumes are flushed and closed");
    Ok(())
}

/// Waits for a signal, or for the failure of an event loop (true then).
fn wait(stop: &mut Stop, server: &Server) -> Result<bool> {
    loop {
        if stop.wait(Some(CHECK)).context("cannot wait for signals")? {
            tracing::info!("a signal to stop: finishing what runs");
            return Ok(false);
        }
        if server.failed() {
            return Ok(true);
        }
    }
}

/// Answers the control socket.
struct Asked(Handle);

impl Source for Asked {
    fn answer(&self, request: Request) -> serde_json::Result<Value> {
        match request {
            Request::Sessions => serde_json::to_value(self.0.sessions()),
            Request::Stats => serde_json::to_value(self.0.stats()),
        }
    }
}

fn log(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // A second subscriber in the same process is no reason not to serve.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .try_init();
}

/// Prints the text. A closed standard output is no reason not to serve.
fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Opens all volumes, and makes the data directory if it is not there.
fn open_volumes(plan: &Plan) -> Result<Vec<VolumeEntry>> {
    let data = &plan.data;
    // What is kept there is nobody else's business.
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)
        .with_context(|| format!("cannot make the data directory {}", data.display()))?;
    let machine = identity::machine(data)?;
    let open = |volume: &Volume| {
        let opened = lunet_backends::open(&spec(volume, data))
            .map_err(|error| anyhow!("volume {}: {error}", volume.name))?;
        let unit = Unit::new(identity::of_volume(&machine, volume), opened.caps().clone());
        let unit = Unit { removable: volume.removable, alua: plan.config.server.alua, ..unit };
        Ok(VolumeEntry {
            name: volume.name.clone(),
            volume: opened,
            unit,
            reservations: Some(data.join(format!("{}.reservations", volume.name))),
        })
    };
    plan.config.volumes.iter().map(open).collect()
}

fn spec(volume: &Volume, data: &Path) -> VolumeSpec {
    let storage = match &volume.backend {
        Backend::File { size, cache, provisioning, .. } => Storage::File(FileSpec {
            path: volume.path(data).unwrap_or_default(),
            size: *size,
            create: size.is_some(),
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
    }
}

/// What is served, in the target's terms. The volumes are in the configuration's order.
fn layout(config: &Config, volumes: Vec<VolumeEntry>) -> Layout {
    let target = |target: &crate::config::Target| TargetEntry {
        name: target.name.clone(),
        alias: target.alias.clone(),
        luns: target.luns.clone(),
        portals: target.portals.clone(),
        access: lunet_target::Access::default(),
    };
    Layout {
        volumes,
        targets: config.targets.iter().map(target).collect(),
        discovery: lunet_target::Access::default(),
    }
}

/// The configuration in the target's terms.
fn assemble(config: &Config, data: &Path, volumes: Vec<VolumeEntry>) -> lunet_target::Config {
    let server = &config.server;
    lunet_target::Config {
        portals: config
            .portals
            .iter()
            .map(|portal| lunet_target::Portal {
                address: portal.address,
                tag: portal.tag,
                state: portal.group_state,
                preferred: portal.preferred,
            })
            .collect(),
        layout: layout(config, volumes),
        port_numbers: Some(data.join("ports")),
        iscsi: iscsi(config),
        limits: Limits {
            max_sessions: server.max_sessions,
            buffer_bytes: usize::try_from(server.buffer_memory).unwrap_or(usize::MAX),
            ..Limits::default()
        },
        shards: server.shards,
        driver: match server.driver {
            Driver::Auto => DriverChoice::Auto,
            Driver::IoUring => DriverChoice::IoUring,
            Driver::Epoll => DriverChoice::Epoll,
        },
        coalesce: server.coalesce,
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
        let assembled = assemble(&config, Path::new("/data"), Vec::new());
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
            create: true,
            provisioning: lunet_backends::Provisioning::Full,
            access: Access::Direct,
        };
        assert_eq!(spec(0), a);
        assert_eq!(spec(1), FileSpec::new("/b".into()));
    }
}
