//! Servers, and volumes with a small face.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_front_nvme::{Config, Hosts, Layout, Options, SubsystemEntry, start};
use lunet_ring::DriverChoice;
use lunet_server::{Limits, Member, Portal, Transports};
use lunet_volume::{Face, Health, Names, PathState, Volume, VolumeId};

pub const SUBSYSTEM: &str = "nqn.2026-11.org.lunet:test";

/// How these tests show a volume.
pub struct Shown {
    number: u8,
    pub absent: AtomicBool,
    /// Bytes on the storage; 0: nobody knows.
    pub used: AtomicU64,
    pub read_only: AtomicBool,
    pub closed: AtomicBool,
    /// 0: optimized, 1: not, 2: inaccessible.
    pub path: AtomicU8,
}

impl Face for Shown {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn writes_through(&self) -> bool {
        false
    }

    fn names(&self) -> Option<Names> {
        let mut long = [self.number; 16];
        long[0] = 1;
        Some(Names { uuid: [self.number; 16], long, short: None })
    }

    fn designator(&self) -> Option<[u8; 16]> {
        Some([self.number; 16])
    }

    fn used(&self) -> Option<u64> {
        let used = self.used.load(Ordering::Relaxed);
        (used > 0).then_some(used)
    }

    fn is_absent(&self) -> bool {
        self.absent.load(Ordering::Relaxed)
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    fn access(&self, _: usize) -> PathState {
        match self.path.load(Ordering::Relaxed) {
            0 => PathState::Optimized,
            1 => PathState::NonOptimized,
            _ => PathState::Inaccessible,
        }
    }
}

pub type Server = lunet_front_nvme::Server<Shown>;

/// A volume over this storage.
pub fn shown(number: u8, backend: lunet_backends::Volume) -> Arc<Volume<Shown>> {
    let name = format!("v{number}");
    let health = Health::new(&name);
    let face = Shown {
        number,
        absent: AtomicBool::new(false),
        used: AtomicU64::new(0),
        read_only: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        path: AtomicU8::new(0),
    };
    Arc::new(Volume::new(name, (backend, health), None, face))
}

/// A volume in memory of this many MiB.
pub fn memory(number: u8, mib: u64) -> Arc<Volume<Shown>> {
    let backend = open(&VolumeSpec::new(Storage::Memory { size: mib << 20 }));
    shown(number, backend.expect("a memory volume opens"))
}

/// What serves these volumes as namespaces 1, 2, ... of one subsystem for everybody.
pub fn layout(volumes: Vec<Arc<Volume<Shown>>>) -> Layout<Shown> {
    let slots = || (0..volumes.len()).map(VolumeId::new);
    let subsystem = SubsystemEntry {
        nqn: SUBSYSTEM.into(),
        serial: "SN1".into(),
        model: "lunet".into(),
        namespaces: (1..).zip(slots()).collect(),
        hosts: Hosts::Any,
        portals: Vec::new(),
    };
    let volumes = slots().zip(volumes.iter().cloned()).collect();
    let subsystems = vec![subsystem];
    Layout { volumes, subsystems, groups: vec![(1, 0)], ..Layout::default() }
}

/// A configuration with this layout: one portal on a free port, two shards.
pub fn config(layout: Layout<Shown>) -> Config<Shown> {
    Config {
        portals: vec![portal()],
        layout,
        options: Options::default(),
        limits: Limits { buffer_bytes: 16 << 20, ..Limits::default() },
        shards: Some(2),
        driver: DriverChoice::Auto,
        busy_poll: lunet_ring::BusyPoll::OFF,
    }
}

pub fn portal() -> Portal {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Portal { address, tag: 1, transports: Transports::Tcp }
}

/// Starts a server; its first portal.
pub fn serve(config: Config<Shown>) -> (Server, SocketAddr) {
    let server = start(Member::alone(Some(2)), config).expect("the server starts");
    let address = server.portals()[0];
    (server, address)
}

/// Serves these volumes.
pub fn serve_volumes(volumes: Vec<Arc<Volume<Shown>>>) -> (Server, SocketAddr) {
    serve(config(layout(volumes)))
}

/// Waits for something that must come.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
