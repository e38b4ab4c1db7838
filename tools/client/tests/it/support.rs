//! A server in this process.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lunet_backends::{Storage, Volume, VolumeSpec, open};
use lunet_client::iscsi::{Initiator, Target};
use lunet_client::{Outcome, Plan, Workload, run};
use lunet_front_iscsi::{Config, Layout, Server, TargetEntry, VolumeEntry};
use lunet_iscsi::target::Options;
use lunet_ring::{BusyPoll, DriverChoice};
use lunet_scsi::{Identity, Unit};
use lunet_server::{Limits, Portal, Transports};
use lunet_volume::Health;

#[path = "support/nvme.rs"]
pub mod nvme;

pub const NAME: &str = "iqn.2026-11.local.lunet:load";

/// A volume in memory of this many MiB.
pub fn memory(mib: u64) -> Volume {
    open(&VolumeSpec::new(Storage::Memory { size: mib << 20 })).expect("a memory volume opens")
}

/// A target with one disk for each volume, from LUN 0 on.
pub fn target(name: &str, volumes: std::ops::Range<usize>) -> TargetEntry {
    let luns = volumes.enumerate().map(|(lun, volume)| (lun as u16, volume)).collect();
    TargetEntry { name: name.into(), luns, ..TargetEntry::default() }
}

/// A configuration that serves these volumes as LUN 0, 1, ... of one target on a free port.
pub fn config(volumes: Vec<Volume>) -> Config {
    let targets = vec![target(NAME, 0..volumes.len())];
    let entries = volumes.into_iter().enumerate().map(|(n, volume)| {
        let unit = Unit::new(Identity::from_seed(&format!("load {n}")), volume.caps().clone());
        let name = format!("v{n}");
        let health = Health::new(&name);
        VolumeEntry { name, volume, unit, health, path: None, reservations: None }
    });
    let volumes = entries.collect();
    Config {
        portals: vec![Portal {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            tag: 1,
            transports: Transports::Tcp,
        }],
        layout: Layout { volumes, targets, ..Layout::default() },
        port_numbers: None,
        iscsi: Options::default(),
        limits: Limits { buffer_bytes: 8 << 20, ..Limits::default() },
        max_discovery: 32,
        shards: Some(2),
        driver: DriverChoice::Auto,
        busy_poll: BusyPoll::OFF,
    }
}

/// A running server, stopped when it is dropped.
pub struct Served {
    server: Option<Server>,
    address: SocketAddr,
}

impl Served {
    pub fn start(config: Config) -> Self {
        let server = Server::start(config).expect("the server starts");
        let address = server.portals()[0];
        Self { server: Some(server), address }
    }

    pub fn volumes(volumes: Vec<Volume>) -> Self {
        Self::start(config(volumes))
    }

    /// An address at this server: what stands in front of the host, and behind the port.
    pub fn at(&self, account: &str, rest: &str) -> Target {
        let text = format!("iscsi://{account}{}{rest}", self.address);
        Target::parse(&text).expect("an address")
    }

    /// A disk of the first target.
    pub fn lun(&self, lun: u16) -> Target {
        self.at("", &format!("/{NAME}/{lun}"))
    }

    /// A load on LUN 0.
    pub fn plan(&self, workload: Workload) -> Plan<Initiator> {
        Plan::new(Initiator::from(self.lun(0)), workload)
    }

    /// Runs a load on LUN 0.
    pub fn run(&self, workload: Workload) -> Outcome {
        let plan = self.plan(workload);
        run(&plan, &AtomicBool::new(false), |_| {}).expect("the load runs")
    }

    /// Stops at once, sessions or not.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop(Duration::ZERO);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}
