//! The server's process: `lunet serve` without its signals and its socket, or the fronts for iSCSI and NVMe alone.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use lunet_api::{Answer, Request};
use lunet_backends::{FileSpec, Storage, VolumeSpec, open};
use lunet_daemon::control::{Asker, Source};
use lunet_daemon::plan::{self, Options};
use lunet_daemon::running::Opened;
use lunet_front_iscsi::{Config, Layout, LogicalUnit, Server, TargetEntry, VolumeEntry};
use lunet_front_nvme::{Hosts, SubsystemEntry};
use lunet_iscsi::target::Options as IscsiOptions;
use lunet_os::sync::mpsc::{Receiver, SyncSender};
use lunet_os::thread;
use lunet_ring::{BusyPoll, DriverChoice};
use lunet_scsi::{Identity, Unit};
use lunet_server::{Limits, Member, Portal, Transports};
use lunet_volume::{Health, Volume, VolumeId};
use serde::{Deserialize, Serialize};

use crate::balance::Balance;
use crate::intruder;
use crate::model::SECTOR;
use crate::nvme;
use crate::scenario::{Plan, SECTORS};
use crate::site::TARGET;

/// What somebody asks of the server, and where the answer goes.
pub type Asking = (Request, SyncSender<Result<Answer, lunet_api::Error>>);

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// For iSCSI.
    pub iscsi: SocketAddr,
    /// For NVMe.
    pub nvme: Option<SocketAddr>,
}

/// What a process is told, and where it tells.
#[derive(Debug)]
pub struct Ends {
    /// It serves at these addresses, or cannot.
    pub says: SyncSender<Result<Addresses>>,
    /// It is to stop.
    pub stopped: Receiver<()>,
    /// It has stopped: an error if something could not be flushed.
    pub ends: SyncSender<Result<()>>,
    /// What is asked of it, by each who asks.
    pub asked: Vec<Receiver<Asking>>,
}

/// How a volume of the hosts is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// In a file without its space.
    Thin,
    /// In a file with all its space.
    Full,
    /// In a file; every write is stable before its answer.
    Through,
    /// In memory.
    Memory,
}

/// The file of a volume of the hosts.
pub fn image(folder: &Path, volume: usize) -> PathBuf {
    folder.join(format!("v{volume}.img"))
}

/// Writes the configuration of a world.
///
/// # Errors
/// The system's.
pub fn configure(plan: &Plan, folder: &Path) -> Result<()> {
    let buffers = plan.rdma.map_or(0, |rdma| rdma.buffers).max(8 << 20);
    let transport = if plan.rdma.is_some() { "\"tcp\", \"iser\"" } else { "\"tcp\"" };
    let mut text = format!(
        "[server]\nshards = {}\nbuffer-memory = {buffers}\nshutdown-grace = \"2s\"\n\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\ntransport = [{transport}]\n",
        plan.shards
    );
    if plan.nvme {
        text.push_str("\n[[portal]]\naddress = \"127.0.0.1:0\"\ntransport = [\"nvme-tcp\"]\n");
    }
    if let Some(rdma) = plan.rdma {
        write!(text, "\n[iscsi]\nqueue-depth = {}\n", rdma.window.max(2))?;
    }
    for (number, kept) in plan.all_volumes().iter().enumerate() {
        let keys = match kept {
            Kept::Thin => "backend = \"file\"",
            Kept::Full => "backend = \"file\"\nprovisioning = \"full\"",
            Kept::Through => "backend = \"file\"\nwrite-cache = \"off\"",
            Kept::Memory => "backend = \"memory\"",
        };
        let size = SECTORS * SECTOR as u64;
        write!(text, "\n[volumes.v{number}]\n{keys}\nsize = {size}\n")?;
    }
    let luns: Vec<String> =
        (0..plan.all_volumes().len()).map(|number| format!("{number} = \"v{number}\"")).collect();
    let luns = luns.join(", ");
    let protocols = if plan.nvme { "protocols = [\"iscsi\", \"nvme\"]\n" } else { "" };
    let open = "open = true\n";
    write!(text, "\n[[target]]\nname = \"{TARGET}\"\n{open}{protocols}luns = {{ {luns} }}\n")?;
    if plan.strangers > 0 {
        let size = SECTORS * SECTOR as u64;
        write!(text, "\n[volumes.strange]\nbackend = \"memory\"\nsize = {size}\n")?;
        let target = intruder::TARGET;
        write!(
            text,
            "\n[[target]]\nname = \"{target}\"\nopen = true\n{protocols}luns = {{ 0 = \"strange\" }}\n"
        )?;
    }
    fs::write(folder.join(plan::OWN_FILE), text)?;
    Ok(())
}

/// The process of `lunet serve`.
pub fn whole(folder: &Path, create: bool, ends: Ends) {
    let options = Options { data: Some(folder.to_owned()), create, ..Options::default() };
    // Whoever has the second value has the data directory.
    let started = plan::plan(&options)
        .and_then(|plan| Opened::new(&options, plan))
        .and_then(|(opened, made)| Ok((opened.start()?, made)));
    let (running, mut made) = match started {
        Ok(started) => started,
        Err(error) => return drop(ends.says.send(Err(error))),
    };
    made.keep();
    for asked in ends.asked {
        let source = running.asked();
        let work = move || {
            for (request, tell) in asked.iter() {
                let _ = tell.send(source.answer(Asker { uid: 0, pid: 0 }, request));
            }
        };
        if let Err(error) = thread::spawn("control", work) {
            return drop(ends.says.send(Err(error.into())));
        }
    }
    let nvme = running.nvme_portals().first().copied();
    let first = running.portals().first().copied().context("it has no portal");
    let _ = ends.says.send(first.map(|iscsi| Addresses { iscsi, nvme }));
    let _ = ends.stopped.recv();
    let _ = ends.ends.send(running.stop());
}

/// The process of the fronts alone.
pub fn front(plan: &Plan, folder: &Path, create: bool, ends: Ends) {
    let (server, nvme) = match start(plan, folder, create) {
        Ok(servers) => servers,
        Err(error) => return drop(ends.says.send(Err(error))),
    };
    let balance = Balance::of(&server.handle());
    let nvme_balance = nvme.as_ref().map(|nvme| Balance::of(&nvme.handle()));
    let addresses = Addresses {
        iscsi: server.portals()[0],
        nvme: nvme.as_ref().and_then(|nvme| nvme.portals().first().copied()),
    };
    let _ = ends.says.send(Ok(addresses));
    let _ = ends.stopped.recv();
    // What is slow on purpose may take its time.
    let mut balanced = Ok(());
    if plan.faults.slow + plan.faults.hang + plan.stalls == 0 {
        balanced = balance.check(&server.handle());
        if let (Some(nvme), Some(balance)) = (&nvme, &nvme_balance) {
            balanced = balanced.and_then(|()| balance.check(&nvme.handle()));
        }
    }
    let grace = Duration::from_secs(2);
    server.begin_stop(grace);
    // The volumes are of the other one, which is the last to look at them.
    if let Some(nvme) = nvme {
        nvme.stop(grace);
    }
    server.stop(grace);
    let _ = ends.ends.send(balanced);
}

type NvmeServer = lunet_front_nvme::Server<LogicalUnit>;

/// Starts the front for iSCSI, and that for NVMe if the plan says so.
fn start(plan: &Plan, folder: &Path, create: bool) -> Result<(Server, Option<NvmeServer>)> {
    let config = config(plan, folder, create)?;
    if !plan.nvme {
        return Ok((lunet_front_iscsi::start(config)?, None));
    }
    let shards = Some(plan.shards);
    let [owner, other] = Member::of([shards, shards]);
    let server = lunet_front_iscsi::start_as(owner, config)?;
    let world = server.handle().world();
    let volumes: Vec<_> = world.volumes().map(|(slot, volume)| (slot, volume.clone())).collect();
    let hosts = plan.all_volumes().len();
    let entry = |nqn: &str, slots: &[(VolumeId, Arc<Volume<LogicalUnit>>)]| SubsystemEntry {
        nqn: nqn.to_owned(),
        serial: format!("sim {}", slots.len()),
        model: "sim".to_owned(),
        namespaces: (1..).zip(slots.iter().map(|(slot, _)| *slot)).collect(),
        hosts: Hosts::Any,
        portals: Vec::new(),
    };
    let mut subsystems = vec![entry(nvme::SUBSYSTEM, &volumes[..hosts])];
    if plan.strangers > 0 {
        subsystems.push(entry(nvme::STRANGE, &volumes[hosts..]));
    }
    let portal = Portal {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        tag: 1,
        transports: Transports::Tcp,
    };
    let limits = Limits { buffer_bytes: plan.buffers << 10, ..Limits::default() };
    let config = lunet_front_nvme::Config {
        portals: vec![portal],
        layout: lunet_front_nvme::Layout {
            volumes,
            subsystems,
            ..lunet_front_nvme::Layout::default()
        },
        options: lunet_front_nvme::Options::default(),
        limits,
        shards,
        driver: DriverChoice::Auto,
        busy_poll: BusyPoll::OFF,
    };
    match lunet_front_nvme::start(other, config) {
        Ok(nvme) => Ok((server, Some(nvme))),
        Err(error) => {
            server.stop(Duration::ZERO);
            Err(error.into())
        }
    }
}

/// The volume of those who break rules.
fn strange() -> Result<VolumeEntry> {
    let size = SECTORS * SECTOR as u64;
    let volume = open(&VolumeSpec::new(Storage::Memory { size }))?;
    let unit = Unit::new(Identity::from_seed("strange"), volume.caps().clone());
    let (name, health) = ("strange".to_owned(), Health::new("strange"));
    Ok(VolumeEntry { name, volume, unit, health, path: None, reservations: None })
}

fn config(plan: &Plan, folder: &Path, create: bool) -> Result<Config> {
    let mut volumes = Vec::new();
    for number in 0..plan.all_volumes().len() {
        let path = image(folder, number);
        let mut file = FileSpec::new(path.clone());
        (file.size, file.create) = (Some(SECTORS * SECTOR as u64), create);
        let volume = open(&VolumeSpec::new(Storage::File(file)))?;
        let unit = Unit::new(Identity::from_seed(&format!("sim {number}")), volume.caps().clone());
        let name = format!("v{number}");
        let health = Health::found(&name, folder.join(format!("v{number}.failed")));
        let reservations = Some(folder.join(format!("v{number}.reservations")));
        volumes.push(VolumeEntry { name, volume, unit, health, path: Some(path), reservations });
    }
    let luns = (0..volumes.len()).map(|number| (number as u16, number)).collect();
    let mut targets = vec![TargetEntry { name: TARGET.into(), luns, ..TargetEntry::default() }];
    if plan.strangers > 0 {
        let (name, luns) = (intruder::TARGET.into(), vec![(0, volumes.len())]);
        targets.push(TargetEntry { name, luns, ..TargetEntry::default() });
        volumes.push(strange()?);
    }
    let portal = Portal {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        tag: 1,
        transports: if plan.rdma.is_some() { Transports::Both } else { Transports::Tcp },
    };
    Ok(Config {
        portals: vec![portal],
        layout: Layout { volumes, targets, ..Layout::default() },
        port_numbers: Some(folder.join("ports")),
        iscsi: match plan.rdma {
            Some(rdma) => {
                IscsiOptions { queue_depth: rdma.window.max(2), ..IscsiOptions::default() }
            }
            None => IscsiOptions::default(),
        },
        max_discovery: 8,
        limits: Limits {
            // What queue pairs receive into comes out of it too.
            buffer_bytes: match plan.rdma {
                Some(rdma) => rdma.buffers.max(4 << 20),
                None => plan.buffers << 10,
            },
            ..Limits::default()
        },
        shards: Some(plan.shards),
        driver: DriverChoice::Auto,
        busy_poll: BusyPoll::OFF,
    })
}
