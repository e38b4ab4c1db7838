//! One world from its seed to its end.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lunet_os::simulated::{self, FileFaults, FileSystem, Loss, Process, Variant, World};
use lunet_os::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use lunet_os::thread;
use lunet_ring::simulated::{Disks, Faults, Net, close_files};
use lunet_verbs::simulated::Fabric;
use serde::{Deserialize, Serialize};

use crate::administrator::Administrator;
use crate::cluster::Node;
use crate::host::Host;
use crate::model::Model;
use crate::nvme;
use crate::nvme::visit::Life;
use crate::rdma::{self, Rdma};
use crate::records::Records;
use crate::reservations::FIRST_HOST;
use crate::server::{self, Addresses, Asking, Ends, Kept};
use crate::site::{Site, now};
use crate::stranger::Stranger;
use crate::watch;

/// Sectors of a volume: few, so that hosts meet.
pub(crate) const SECTORS: u64 = 512;

/// No world lasts longer.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// A world has a hundredth of this.
const MOST_TURNS: u64 = 2_000_000;

/// What a world is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// All of `lunet serve`; else the iSCSI front alone.
    pub whole: bool,
    /// Event loops of the server.
    pub shards: usize,
    /// The volumes of the hosts.
    pub volumes: Vec<Kept>,
    /// Administrators.
    pub administrators: u8,
    /// Hosts.
    pub hosts: u8,
    /// Nodes of a cluster, which has one more volume for itself, that are initiators.
    pub nodes: u8,
    /// Strangers, who break every rule.
    pub strangers: u8,
    /// Operations of each.
    pub operations: u64,
    /// How often the server is killed or loses its power.
    pub crashes: u64,
    /// How often it is started with another configuration after that.
    pub changes: u64,
    /// What goes wrong on the disk of the first volume.
    pub faults: Faults,
    /// How often a thread stalls.
    pub stalls: u64,
    /// In a thousand looks of a host: it breaks its connection.
    pub breaks: u64,
    /// The same: it aborts something.
    pub aborts: u64,
    /// What there is of RDMA.
    pub rdma: Option<Rdma>,
    /// How often in a thousand the server is refused what it may be refused, such as room in a queue.
    pub misfortunes: u64,
    /// How often a host neither sends nor takes anything for up to a minute.
    pub silences: u64,
    /// How often somebody sets the system's clock.
    pub clocks: u64,
    /// Memory for data in flight on each shard, in KiB.
    pub buffers: usize,
    /// What goes wrong with files and directories.
    pub metadata: FileFaults,
    /// How often the server is killed, or loses its power, in its first start.
    pub hasty: u64,
    /// Its targets are served over NVMe, too: by a second server, whose shards changes and locks have to reach.
    pub nvme: bool,
    /// NVMe hosts, on the volumes of the others.
    pub nvme_hosts: u8,
    /// Nodes of the cluster that are NVMe hosts.
    pub nvme_nodes: u8,
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
    /// What its world was made of.
    pub plan: Plan,
    /// What the server has met.
    pub met: BTreeMap<Variant, u64>,
}

/// Less than so much in one world of three; nothing in the others.
fn rare(most: u64) -> u64 {
    if simulated::below(3) == 0 { simulated::below(most) } else { 0 }
}

/// Whether something that is to happen so many times more happens now.
fn comes(left: &mut u64) -> bool {
    let comes = *left > 0 && simulated::below(3) == 0;
    *left -= u64::from(comes);
    comes
}

impl Plan {
    /// A plan by the seed of the world.
    fn draw() -> Self {
        let faults = match simulated::below(3) {
            0 => Faults {
                read: rare(20),
                write: rare(20),
                full: rare(20),
                flush: if simulated::below(2) == 0 { simulated::below(200) } else { 0 },
                short: rare(100),
                slow: rare(10),
                hang: rare(4),
            },
            _ => Faults::default(),
        };
        let whole = simulated::below(2) == 0;
        let kept = |_| match simulated::below(8) {
            _ if !whole => Kept::Thin,
            0..=3 => Kept::Thin,
            4 => Kept::Full,
            5 | 6 => Kept::Through,
            _ => Kept::Memory,
        };
        let nodes = [0, 0, 2, 3][simulated::below(4) as usize];
        Self {
            whole,
            shards: 1 + simulated::below(3) as usize,
            volumes: (0..1 + simulated::below(2)).map(kept).collect(),
            administrators: if whole { simulated::below(3) as u8 } else { 0 },
            nodes,
            strangers: rare(4) as u8,
            hosts: 1 + simulated::below(4) as u8,
            operations: 20 + simulated::below(150),
            crashes: simulated::below(4),
            changes: rare(4),
            faults,
            stalls: rare(4),
            breaks: rare(20),
            aborts: rare(200),
            rdma: Rdma::draw(),
            misfortunes: rare(200),
            silences: rare(4),
            clocks: rare(4),
            buffers: 4096 >> simulated::below(3),
            metadata: FileFaults::default(),
            hasty: rare(4),
            nvme: simulated::below(2) == 0,
            nvme_hosts: 1 + simulated::below(3) as u8,
            nvme_nodes: simulated::below(1 + u64::from(nodes)) as u8,
        }
        .with_file_faults()
    }
}

impl Plan {
    /// All volumes: those of the hosts, then that of the cluster.
    pub fn all_volumes(&self) -> Vec<Kept> {
        let cluster = (self.nodes + self.nvme_nodes > 0).then_some(Kept::Thin);
        self.volumes.iter().copied().chain(cluster).collect()
    }

    /// Draws what an administrator may have changed while the server was down: event loops, memory, write caches. The
    /// volumes stay where they are.
    fn change(&mut self) {
        self.shards = 1 + simulated::below(3) as usize;
        self.buffers = 4096 >> simulated::below(3);
        for kept in &mut self.volumes {
            if self.whole && matches!(kept, Kept::Thin | Kept::Through) {
                *kept = [Kept::Thin, Kept::Through][simulated::below(2) as usize];
            }
        }
    }

    /// How long a host waits for an answer: what is slow on purpose takes a part of a minute.
    fn patience(&self) -> Duration {
        match (self.faults.hang, self.faults.slow + self.stalls) {
            (0, 0) if self.metadata == FileFaults::default() => Duration::from_secs(5),
            (0, _) => Duration::from_secs(120),
            _ => Duration::from_secs(900),
        }
    }
}

/// Where a process says its addresses, and where it is asked.
type Started = (Receiver<Result<Addresses>>, Vec<SyncSender<Asking>>);

impl Plan {
    /// Draws what goes wrong with files. What administrators may find after a failed change is not known well enough,
    /// nor what a cluster may find after a failed command.
    fn with_file_faults(mut self) -> Self {
        if !self.nvme {
            (self.nvme_hosts, self.nvme_nodes) = (0, 0);
        }
        // More of them would be in too many states.
        self.nodes -= self.nvme_nodes;
        if self.administrators == 0 && simulated::below(3) == 0 {
            (self.nodes, self.nvme_nodes) = (0, 0);
            self.metadata = FileFaults {
                read: rare(40),
                full: rare(40),
                sync: rare(60),
                sync_directory: rare(60),
                slow: rare(10),
            };
        }
        self
    }
}

/// The server's machine.
struct Machine {
    /// As it is now: its configuration may change.
    plan: Plan,
    site: Site,
    folder: PathBuf,
    process: u32,
    /// It has served: its volumes are there.
    made: bool,
    records: Records,
    stop: Option<SyncSender<()>>,
    ended: Option<Receiver<Result<()>>>,
}

/// Lets the world of a seed run to its end, with a plan of its own or another one.
///
/// # Errors
/// Nothing of the server's: there is no room for the files of a world, or no thread.
pub fn run(seed: u64, plan: Option<Plan>) -> Result<Report> {
    watch::world_begins(seed);
    let world = World::new(seed);
    let place = ["/dev/shm", "/tmp"].into_iter().find(|place| Path::new(place).is_dir());
    let folder = tempfile::tempdir_in(place.context("no folder for temporary files")?)?;
    // Drawn in any case: what the seed gives after it is the same then.
    let (site, drawn) = (Site::default(), Plan::draw());
    let plan = plan.unwrap_or(drawn);
    site.tell("world", &format!("{plan:?}"));
    let models = (0..plan.all_volumes().len()).map(|number| Model::new(SECTORS, number as u64));
    site.known().models = models.collect();
    let (path, removed) = (folder.path().join("data"), folder.path().join("removed"));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    std::fs::create_dir(&removed)?;
    server::configure(&plan, &path)?;
    simulated::part::<FileSystem>().track(&path, &removed)?;
    let records = Records::new(&path, &site)?;
    let mut machine = Machine {
        plan: plan.clone(),
        site,
        folder: path,
        process: 0,
        made: false,
        records,
        stop: None,
        ended: None,
    };
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
    let met = world.met();
    // Nobody runs any more; what is open is closed, so that the next world has the numbers.
    simulated::part::<Disks>().end();
    drop(world);
    close_files(folder.path(), &[]);
    Ok(Report { wrong, operations, turns, lasted, story, plan, met })
}

impl Machine {
    /// What every NVMe host does; its number is one among the NVMe hosts and nodes.
    fn nvme_life(&self, name: &str, number: u8, volumes: Vec<usize>) -> Life {
        let plan = &self.plan;
        let mut id = [0x5a; 16];
        id[15] = number;
        Life {
            name: name.to_owned(),
            address: SocketAddr::from(([10, 0, 3, number + 1], 40_000)),
            nqn: format!("nqn.2026-11.host:{number}"),
            id,
            operations: plan.operations,
            depth: 1 + simulated::below(8) as usize,
            breaks: plan.breaks,
            aborts: plan.aborts,
            patience: plan.patience(),
            volumes,
            site: self.site.clone(),
        }
    }

    /// The NVMe hosts, and the nodes that are.
    fn nvme_hosts(&self, world: &World) -> Result<()> {
        let plan = &self.plan;
        let sound = (plan.stalls == 0).then_some(Duration::from_secs(10));
        // A failed flush of one volume is told by that of all, and by no shutdown.
        let sure = plan.faults == Faults::default() && plan.metadata == FileFaults::default();
        for number in 0..plan.nvme_hosts {
            let name = format!("nvme host {number}");
            let life = self.nvme_life(&name, number, (0..plan.volumes.len()).collect());
            let host = nvme::host::Host { life, sound, flushes_all: sure };
            let process = Process(5000 + u32::from(number));
            world.spawn_in(process, &name, move || host.run())?;
        }
        for number in 0..plan.nvme_nodes {
            let nexus = FIRST_HOST + number;
            let name = format!("node {nexus}");
            let volume = plan.volumes.len();
            let node = nvme::node::Node {
                life: self.nvme_life(&name, nexus, vec![volume]),
                nexus,
                volume,
            };
            let process = Process(6000 + u32::from(number));
            world.spawn_in(process, &name, move || node.run())?;
        }
        Ok(())
    }

    /// The nodes of a cluster, and strangers.
    fn others(&self, world: &World) -> Result<()> {
        let plan = &self.plan;
        for nexus in 0..plan.nodes {
            let node = Node {
                nexus,
                operations: plan.operations,
                depth: 1 + simulated::below(6) as usize,
                volume: plan.volumes.len(),
                breaks: plan.breaks,
                aborts: plan.aborts,
                patience: plan.patience(),
                rdma: plan.rdma,
                site: self.site.clone(),
            };
            let process = Process(2000 + u32::from(nexus));
            world.spawn_in(process, &format!("node {nexus}"), move || node.run())?;
        }
        for number in 0..plan.strangers {
            let stranger =
                Stranger { number, visits: plan.operations / 8, site: self.site.clone() };
            let process = Process(3000 + u32::from(number));
            world.spawn_in(process, &format!("stranger {number}"), move || stranger.run())?;
        }
        Ok(())
    }

    fn live(&mut self, world: &World) -> Result<()> {
        if let Some(rdma) = self.plan.rdma {
            rdma.begin(world, &self.devices(), &self.site)?;
        }
        self.start(world)?;
        let plan = self.plan.clone();
        let busy =
            plan.hosts + plan.nvme_hosts + plan.nodes + plan.nvme_nodes + plan.administrators;
        self.site.known().busy = usize::from(busy);
        self.administrate(world)?;
        for number in 0..plan.hosts {
            let host = Host {
                number,
                operations: plan.operations,
                depth: 1 + simulated::below(8) as usize,
                volumes: (0..plan.volumes.len()).collect(),
                breaks: plan.breaks,
                aborts: plan.aborts,
                patience: plan.patience(),
                sound: (plan.stalls == 0).then_some(Duration::from_secs(10)),
                rdma: plan.rdma,
                site: self.site.clone(),
            };
            let process = Process(1000 + u32::from(number));
            world.spawn_in(process, &format!("host {number}"), move || host.run())?;
        }
        self.nvme_hosts(world)?;
        self.others(world)?;
        self.disturb()?;
        let mut crashes = plan.crashes;
        let (mut stalls, mut clocks, mut silences) = (plan.stalls, plan.clocks, plan.silences);
        world.set_misfortunes(plan.misfortunes);
        while self.site.known().busy > 0 && self.site.known().wrong.is_none() {
            ensure!(now() < LONGEST, "the hosts do not come to their end");
            ensure!(world.turns() < MOST_TURNS, "its threads turn in circles");
            thread::sleep(Duration::from_micros(1 + simulated::below(1_000_000)));
            rdma::check()?;
            if comes(&mut crashes) {
                self.crash(world)?;
            }
            if comes(&mut clocks) {
                let ahead = Duration::from_secs(simulated::below(4_000_000_000));
                self.site.tell("world", &format!("the clock is set to 1970 + {ahead:?}"));
                world.set_clock(ahead);
            }
            if comes(&mut silences) {
                let time = Duration::from_millis(simulated::below(60_000));
                let host = simulated::below(u64::from(plan.hosts + plan.nvme_hosts));
                let (process, name) = match host.checked_sub(u64::from(plan.hosts)) {
                    None => (1000 + host as u32, format!("host {host}")),
                    Some(number) => (5000 + number as u32, format!("nvme host {number}")),
                };
                self.site.tell("world", &format!("{name} is silent for {time:?}"));
                world.stall(Process(process), &name, time);
            }
            if comes(&mut stalls) {
                let time = Duration::from_millis(simulated::below(25_000));
                let servers = 1 + u64::from(plan.nvme);
                let shard = simulated::below(self.plan.shards as u64 * servers);
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

    /// Where its RDMA devices are.
    fn devices(&self) -> PathBuf {
        self.folder.with_file_name("rdma")
    }

    /// Starts the administrators.
    fn administrate(&self, world: &World) -> Result<()> {
        for number in 0..self.plan.administrators {
            let administrator = Administrator {
                number,
                changes: 5 + simulated::below(20),
                patience: Duration::from_secs(240),
                data: self.folder.clone(),
                site: self.site.clone(),
            };
            let process = Process(4000 + u32::from(number));
            let run = move || administrator.run();
            world.spawn_in(process, &format!("administrator {number}"), run)?;
        }
        Ok(())
    }

    /// What is wrong with its disks from now on.
    fn disturb(&self) -> Result<()> {
        if self.plan.volumes[0] == Kept::Memory {
            return Ok(());
        }
        // One that could not be made is not served.
        let Ok(file) = File::open(server::image(&self.folder, 0)) else { return Ok(()) };
        Ok(simulated::part::<Disks>().disturb(&file, self.plan.faults)?)
    }

    /// Starts the server, and waits until it serves. If a call has failed on purpose meanwhile, it may say that it cannot:
    /// then it is started again while none fails.
    fn start(&mut self, world: &World) -> Result<()> {
        let files = simulated::part::<FileSystem>();
        files.disturb(self.plan.metadata);
        let mut hasty = if self.made { 0 } else { self.plan.hasty };
        loop {
            let failed = files.failed();
            let (hears, doors) = self.spawn(world)?;
            if hasty > 0 && simulated::below(2) == 0 {
                hasty -= 1;
                std::mem::forget((hears, doors));
                thread::sleep(Duration::from_micros(simulated::below(8000)));
                self.kill(world, loss())?;
                continue;
            }
            // Each of its calls may take seconds.
            let told = hears.recv_timeout(Duration::from_secs(1200));
            match told.context("it does not start")? {
                Ok(Addresses { iscsi, nvme }) => {
                    self.site.tell("server", "serves");
                    self.made = true;
                    files.disturb(self.plan.metadata);
                    let mut known = self.site.known();
                    for (model, kept) in known.models.iter_mut().zip(&self.plan.volumes) {
                        model.set_through(*kept == Kept::Through);
                    }
                    (known.address, known.nvme_address) = (Some(iscsi), nvme);
                    known.process = self.process;
                    known.doors = doors.into_iter().map(Arc::new).collect();
                    return Ok(());
                }
                Err(error) if files.failed() > failed => {
                    // Each run of a seed has another folder.
                    let folder = self.folder.display().to_string();
                    let error = format!("{error:#}").replace(&folder, "data");
                    self.site.tell("server", &format!("does not start: {error}"));
                    std::mem::forget(doors);
                    self.kill(world, None)?;
                    files.disturb(FileFaults::default());
                }
                Err(error) => return Err(error.context("it does not start")),
            }
        }
    }

    /// Starts the server's process: where it says its address, and where administrators ask it.
    fn spawn(&mut self, world: &World) -> Result<Started> {
        self.process += 1;
        let (stop, stopped) = sync_channel(1);
        let (says, hears) = sync_channel(1);
        let (plan, folder, create) = (self.plan.clone(), self.folder.clone(), !self.made);
        let (ends, ended) = sync_channel(1);
        let (doors, asked) = (0..plan.administrators).map(|_| sync_channel(1)).unzip();
        let ends = Ends { says, stopped, ends, asked };
        let records = self.records.clone();
        let work = move || match (records.begin(), plan.whole) {
            (Err(error), _) => drop(ends.says.send(Err(error))),
            (Ok(()), true) => server::whole(&folder, create, ends),
            (Ok(()), false) => server::front(&plan, &folder, create, ends),
        };
        world.spawn_in(Process(self.process), "main", work)?;
        (self.stop, self.ended) = (Some(stop), Some(ended));
        Ok((hears, doors))
    }

    /// The server is killed, with or without its machine, and started again; now and then it is killed then too.
    fn crash(&mut self, world: &World) -> Result<()> {
        self.kill(world, loss())?;
        while self.plan.whole && simulated::below(4) == 0 {
            std::mem::forget(self.spawn(world)?);
            thread::sleep(Duration::from_micros(1 + simulated::below(20_000)));
            self.kill(world, loss())?;
        }
        thread::sleep(Duration::from_millis(simulated::below(3000)));
        if self.plan.changes > 0 {
            self.plan.changes -= 1;
            self.reconfigure()?;
        }
        self.start(world)
    }

    /// Its configuration is another one from the next start on. What administrators do through the server stands in the same
    /// file.
    fn reconfigure(&mut self) -> Result<()> {
        if self.plan.administrators > 0 {
            return Ok(());
        }
        self.plan.change();
        let Plan { shards, buffers, volumes, .. } = &self.plan;
        let what = format!("{shards} event loops, {buffers} KiB of memory, {volumes:?}");
        self.site.tell("world", &format!("the configuration is another one: {what}"));
        server::configure(&self.plan, &self.folder)
    }

    /// The server's process ends at once, and its machine may lose its power.
    fn kill(&mut self, world: &World, loss: Option<Loss>) -> Result<()> {
        self.site.tell("world", &format!("the server is killed; of the power's loss: {loss:?}"));
        world.kill(Process(self.process));
        let doors = self.site.known().closed();
        std::mem::forget((self.stop.take(), doors));
        self.has_ended();
        if let Some(loss) = loss {
            simulated::part::<Disks>().power_loss(loss)?;
            self.records.power_lost();
            for model in &mut self.site.known().models {
                model.power_lost(now());
            }
        }
        Ok(())
    }

    /// The server's process is no more: what it had open is closed, and what it had in memory is gone.
    fn has_ended(&self) {
        simulated::part::<Net>().process_ended();
        close_files(&self.folder, &simulated::part::<Disks>().descriptors());
        simulated::part::<Fabric>().process_killed(Process(self.process));
        close_files(&self.devices(), &[]);
        let mut known = self.site.known();
        known.killed();
        // Of the volumes only the first one's disk fails.
        let first = File::open(server::image(&self.folder, 0));
        if first.is_ok_and(|file| simulated::part::<Disks>().has_lost(&file).unwrap_or(true)) {
            known.models[0].failed_untold();
        }
        for (model, kept) in known.models.iter_mut().zip(&self.plan.volumes) {
            if *kept == Kept::Memory {
                model.emptied();
            }
        }
    }

    /// The server stops as it is asked to.
    fn end(&mut self, world: &World) -> Result<()> {
        let Some(stop) = self.stop.take() else { return Ok(()) };
        let _ = stop.send(());
        drop(self.site.known().closed());
        let ended = self.ended.take().context("it was never started")?;
        let result = match ended.recv_timeout(Duration::from_secs(120)) {
            Err(RecvTimeoutError::Timeout) => {
                bail!("the server does not end: {}", world.story());
            }
            other => other.context("it has ended without a word")?,
        };
        // Storage that is slow is not waited for to the end.
        let Faults { flush, slow, hang, .. } = self.plan.faults;
        let calls = self.plan.metadata != FileFaults::default();
        let may_fail = calls || flush + slow + hang + self.plan.stalls > 0;
        match result {
            Err(error) if !may_fail => return Err(error),
            Err(error) => self.site.tell("server", &format!("has ended: {error:#}")),
            Ok(()) => self.site.tell("server", "has ended"),
        }
        // What waits for storage that hangs goes with the process.
        match slow + hang + self.plan.stalls {
            0 if self.plan.metadata.slow == 0 => rdma::check_end(Process(self.process)),
            _ => rdma::check(),
        }
    }
}

/// Whether a machine that crashes loses its power, and what of its changes.
fn loss() -> Option<Loss> {
    match simulated::below(6) {
        0 => Some(Loss::All),
        1 => Some(Loss::Nothing),
        2 | 3 => Some(Loss::Some),
        _ => None,
    }
}
