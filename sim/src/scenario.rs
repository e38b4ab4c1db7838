//! One world from its seed to its end.

use std::fs::File;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunet_backends::{FileSpec, Storage, VolumeSpec, open};
use lunet_front_iscsi::{Config, Layout, TargetEntry, VolumeEntry};
use lunet_iscsi::target::Options;
use lunet_os::simulated::{self, Process, World};
use lunet_os::sync::mpsc::{Receiver, SyncSender, sync_channel};
use lunet_os::thread;
use lunet_ring::DriverChoice;
use lunet_ring::simulated::{Disks, Faults, Loss, Net, close_files};
use lunet_scsi::{Identity, Unit};
use lunet_server::{Limits, Portal, Transports};
use lunet_volume::Health;

use crate::host::{Host, TARGET};
use crate::model::{Model, SECTOR};
use crate::site::{Site, now};

/// Sectors of a volume: few, so that hosts meet.
const SECTORS: u64 = 512;

/// No world lasts longer.
const LONGEST: Duration = Duration::from_secs(1800);

/// A world has a hundredth of this.
const MOST_TURNS: u64 = 2_000_000;

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Event loops of the server.
    pub shards: usize,
    /// Volumes in files.
    pub volumes: usize,
    /// Hosts.
    pub hosts: u8,
    /// Operations of each.
    pub operations: u64,
    /// How often the server is killed or loses its power.
    pub crashes: u64,
    /// What goes wrong on the disk of the first volume.
    pub faults: Faults,
    /// How often a thread stalls.
    pub stalls: u64,
    /// In a thousand looks of a host: it breaks its connection.
    pub breaks: u64,
    /// The same: it aborts something.
    pub aborts: u64,
}

/// How a world came to its end.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was wrong, if something was.
    pub wrong: Option<String>,
    /// Operations that were answered.
    pub operations: u64,
    /// Turns of its threads.
    pub turns: u64,
    /// How long it lasted, in its own time.
    pub lasted: Duration,
    /// What happened.
    pub story: Vec<String>,
}

impl Plan {
    /// A plan by the seed of the world.
    fn draw() -> Self {
        let rare = |most| if simulated::below(3) == 0 { simulated::below(most) } else { 0 };
        let faults = match simulated::below(3) {
            0 => Faults {
                read: rare(20),
                write: rare(20),
                full: rare(20),
                flush: if simulated::below(2) == 0 { simulated::below(200) } else { 0 },
                short: rare(100),
                slow: rare(10),
            },
            _ => Faults::default(),
        };
        Self {
            shards: 1 + simulated::below(3) as usize,
            volumes: 1 + simulated::below(2) as usize,
            hosts: 1 + simulated::below(4) as u8,
            operations: 20 + simulated::below(150),
            crashes: simulated::below(4),
            faults,
            stalls: rare(4),
            breaks: rare(20),
            aborts: rare(200),
        }
    }
}

/// The server's machine.
struct Machine {
    plan: Plan,
    site: Site,
    folder: PathBuf,
    process: u32,
    stop: Option<SyncSender<()>>,
    ended: Option<Receiver<()>>,
    address: Option<SocketAddr>,
}

/// Lets the world of a seed run to its end.
///
/// # Errors
/// Nothing of the server's: there is no room for the files of a world, or no thread.
pub fn run(seed: u64) -> Result<Report> {
    let world = World::new(seed);
    let place = ["/dev/shm", "/tmp"].into_iter().find(|place| Path::new(place).is_dir());
    let folder = tempfile::tempdir_in(place.context("no folder for temporary files")?)?;
    let (site, plan) = (Site::default(), Plan::draw());
    site.tell("world", &format!("{plan:?}"));
    site.known().models = vec![Model::new(SECTORS); plan.volumes];
    let path = folder.path().to_path_buf();
    let mut machine =
        Machine { plan, site, folder: path, process: 0, stop: None, ended: None, address: None };
    let lived = catch_unwind(AssertUnwindSafe(|| machine.live(&world)));
    if let Ok(Err(error)) = lived {
        machine.site.wrong("world", &format!("{error:#}"));
    }
    if let Some(failure) = world.failure() {
        machine.site.wrong("world", &failure);
    }
    let known = machine.site.known();
    let (wrong, operations) = (known.wrong.clone(), known.operations);
    drop(known);
    let (turns, lasted, story) = (world.turns(), world.elapsed(), machine.site.story());
    // Nobody runs any more; what is open is closed, so that the next world has the numbers.
    simulated::part::<Disks>().end();
    drop(world);
    close_files(folder.path(), &[]);
    Ok(Report { wrong, operations, turns, lasted, story })
}

impl Machine {
    fn live(&mut self, world: &World) -> Result<()> {
        self.start(world, true)?;
        let plan = self.plan.clone();
        self.site.known().busy = usize::from(plan.hosts);
        for number in 0..plan.hosts {
            let host = Host {
                number,
                operations: plan.operations,
                depth: 1 + simulated::below(8) as usize,
                volumes: (0..plan.volumes).collect(),
                breaks: plan.breaks,
                aborts: plan.aborts,
                // What is slow on purpose takes a part of a minute.
                patience: match plan.faults.slow + plan.stalls {
                    0 => Duration::from_secs(5),
                    _ => Duration::from_secs(120),
                },
                site: self.site.clone(),
            };
            let process = Process(1000 + u32::from(number));
            world.spawn_in(process, &format!("host {number}"), move || host.run())?;
        }
        self.disturb()?;
        let mut crashes = plan.crashes;
        let mut stalls = plan.stalls;
        while self.site.known().busy > 0 && self.site.known().wrong.is_none() {
            ensure!(now() < LONGEST, "the hosts do not come to their end");
            ensure!(world.turns() < MOST_TURNS, "its threads turn in circles");
            thread::sleep(Duration::from_micros(1 + simulated::below(1_000_000)));
            if crashes > 0 && simulated::below(3) == 0 {
                crashes -= 1;
                self.crash(world)?;
            }
            if stalls > 0 && simulated::below(3) == 0 {
                stalls -= 1;
                let time = Duration::from_millis(simulated::below(25_000));
                let shard = simulated::below(plan.shards as u64);
                self.site.tell("world", &format!("shard {shard} stalls for {time:?}"));
                world.stall(Process(self.process), &format!("lunet-shard-{shard}"), time);
            }
        }
        self.site.known().over = true;
        if self.site.known().wrong.is_none() {
            self.end(world)?;
        }
        Ok(())
    }

    fn image(&self, volume: usize) -> PathBuf {
        self.folder.join(format!("v{volume}.img"))
    }

    /// What is wrong with its disks from now on.
    fn disturb(&self) -> Result<()> {
        let file = File::open(self.image(0))?;
        Ok(simulated::part::<Disks>().disturb(&file, self.plan.faults)?)
    }

    /// Starts the server.
    fn start(&mut self, world: &World, create: bool) -> Result<()> {
        self.process += 1;
        let (stop, stopped) = sync_channel(1);
        let (says, hears) = sync_channel(1);
        let (plan, folder) = (self.plan.clone(), self.folder.clone());
        let (ends, ended) = sync_channel(1);
        let work = move || {
            serve(&plan, &folder, create, &says, &stopped);
            let _ = ends.send(());
        };
        world.spawn_in(Process(self.process), "main", work)?;
        let address = hears.recv_timeout(Duration::from_secs(120)).context("it does not start")?;
        let address = address?;
        self.site.tell("server", "serves");
        self.site.known().address = Some(address);
        (self.stop, self.ended, self.address) = (Some(stop), Some(ended), Some(address));
        Ok(())
    }

    /// The server is killed, with or without its machine, and started again.
    fn crash(&mut self, world: &World) -> Result<()> {
        let loss = match simulated::below(6) {
            0 => Some(Loss::All),
            1 => Some(Loss::Nothing),
            2 | 3 => Some(Loss::Some),
            _ => None,
        };
        self.site.tell("world", &format!("the server is killed; of the power's loss: {loss:?}"));
        world.kill(Process(self.process));
        self.site.known().address = None;
        if let Some(stop) = self.stop.take() {
            std::mem::forget(stop);
        }
        simulated::part::<Net>()
            .process_ended(&self.address.take().into_iter().collect::<Vec<_>>());
        let disks = simulated::part::<Disks>();
        close_files(&self.folder, &disks.descriptors());
        for model in &mut self.site.known().models {
            model.killed(now());
        }
        if let Some(loss) = loss {
            disks.power_loss(loss)?;
            for model in &mut self.site.known().models {
                model.power_lost(now());
            }
        }
        thread::sleep(Duration::from_millis(simulated::below(3000)));
        self.start(world, false)
    }

    /// The server stops as it is asked to.
    fn end(&mut self, world: &World) -> Result<()> {
        let Some(stop) = self.stop.take() else { return Ok(()) };
        let _ = stop.send(());
        let ended = self.ended.take().context("it was never started")?;
        if ended.recv_timeout(Duration::from_secs(120)).is_err() {
            anyhow::bail!("the server does not end: {}", world.story());
        }
        self.site.tell("server", "has ended");
        Ok(())
    }
}

/// The server's process.
fn serve(
    plan: &Plan,
    folder: &Path,
    create: bool,
    says: &SyncSender<Result<SocketAddr>>,
    stopped: &Receiver<()>,
) {
    let server = match config(plan, folder, create)
        .and_then(|config| Ok(lunet_front_iscsi::start(config)?))
    {
        Ok(server) => server,
        Err(error) => return drop(says.send(Err(error))),
    };
    let _ = says.send(Ok(server.portals()[0]));
    let _ = stopped.recv();
    server.stop(Duration::from_secs(2));
}

fn config(plan: &Plan, folder: &Path, create: bool) -> Result<Config> {
    let mut volumes = Vec::new();
    for number in 0..plan.volumes {
        let path = folder.join(format!("v{number}.img"));
        let mut file = FileSpec::new(path.clone());
        (file.size, file.create) = (Some(SECTORS * SECTOR as u64), create);
        let volume = open(&VolumeSpec::new(Storage::File(file)))?;
        let unit = Unit::new(Identity::from_seed(&format!("sim {number}")), volume.caps().clone());
        let name = format!("v{number}");
        let health = Health::found(&name, folder.join(format!("v{number}.failed")));
        let reservations = Some(folder.join(format!("v{number}.reservations")));
        volumes.push(VolumeEntry { name, volume, unit, health, path: Some(path), reservations });
    }
    let luns = (0..plan.volumes).map(|number| (number as u16, number)).collect();
    let portal = Portal {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        tag: 1,
        transports: Transports::Tcp,
    };
    Ok(Config {
        portals: vec![portal],
        layout: Layout {
            volumes,
            targets: vec![TargetEntry { name: TARGET.into(), luns, ..TargetEntry::default() }],
            ..Layout::default()
        },
        port_numbers: None,
        iscsi: Options::default(),
        max_discovery: 8,
        limits: Limits { buffer_bytes: 4 << 20, ..Limits::default() },
        shards: Some(plan.shards),
        driver: DriverChoice::Auto,
        busy_poll: Duration::ZERO,
    })
}
