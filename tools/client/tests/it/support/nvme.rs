//! The same over NVMe.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lunet_client::nvme::Target;
use lunet_client::{DriverChoice, Outcome, Plan, Workload, nvme, run};
use lunet_front_nvme::{Config, Hosts, Layout, Options, Server, SubsystemEntry, start};
use lunet_ring::BusyPoll;
use lunet_server::{Limits, Member, Portal, Transports};
use lunet_volume::{Face, Health, Names, PathState, Volume, VolumeId};

pub const NQN: &str = "nqn.2026-11.local.lunet:load";

/// How these tests show a volume.
pub struct Shown;

impl Face for Shown {
    fn is_closed(&self) -> bool {
        false
    }

    fn writes_through(&self) -> bool {
        false
    }

    fn names(&self) -> Option<Names> {
        Some(Names { uuid: [1; 16], long: [2; 16], short: None })
    }

    fn is_absent(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn access(&self, _: usize) -> PathState {
        PathState::Optimized
    }
}

/// A volume with this storage.
pub fn shown(storage: lunet_backends::Volume) -> Arc<Volume<Shown>> {
    Arc::new(Volume::new("v".to_owned(), (storage, Health::new("v")), None, Shown))
}

/// A volume in memory of this many MiB.
pub fn memory(mib: u64) -> Arc<Volume<Shown>> {
    shown(super::memory(mib))
}

/// A running server, stopped when it is dropped.
pub struct Namespaces {
    server: Server<Shown>,
    address: SocketAddr,
}

impl Namespaces {
    /// Serves volumes as namespaces 1, 2, ... of one subsystem for everybody.
    pub fn serve(volumes: Vec<Arc<Volume<Shown>>>) -> Self {
        Self::with(volumes, |_| ())
    }

    /// The same, changed before it starts.
    pub fn with(volumes: Vec<Arc<Volume<Shown>>>, change: impl FnOnce(&mut Config<Shown>)) -> Self {
        let slots = || (0..volumes.len()).map(VolumeId::new);
        let subsystem = SubsystemEntry {
            nqn: NQN.into(),
            serial: "SN1".into(),
            model: "lunet".into(),
            namespaces: (1..).zip(slots()).collect(),
            hosts: Hosts::Any,
            portals: Vec::new(),
        };
        let volumes = slots().zip(volumes.iter().cloned()).collect();
        let subsystems = vec![subsystem];
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config {
            portals: vec![Portal { address, tag: 1, transports: Transports::Tcp }],
            layout: Layout { volumes, subsystems, groups: vec![(1, 0)], ..Layout::default() },
            options: Options::default(),
            limits: Limits { buffer_bytes: 8 << 20, ..Limits::default() },
            shards: Some(2),
            driver: DriverChoice::Auto,
            busy_poll: BusyPoll::OFF,
        };
        change(&mut config);
        let server = start(Member::alone(Some(2)), config).expect("the server starts");
        let address = server.portals()[0];
        Self { server, address }
    }

    /// Namespace 1, with these options.
    pub fn at(&self, options: &str) -> Target {
        self.place(&format!("/{NQN}/1{options}"))
    }

    /// What stands behind the port.
    pub fn place(&self, rest: &str) -> Target {
        Target::parse(&format!("nvme-tcp://{}{rest}", self.address)).expect("an address")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Controllers that it has.
    pub fn controllers(&self) -> usize {
        self.server.handle().sessions().len()
    }

    /// Runs a load on namespace 1.
    pub fn run(&self, workload: Workload) -> Outcome {
        let plan = Plan::new(nvme::Host::from(self.at("")), workload);
        run(&plan, &AtomicBool::new(false), |_| {}).expect("the load runs")
    }
}
