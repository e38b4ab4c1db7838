//! A server in this process, and a blocking initiator over lunet's own protocol crate.

pub mod block;
pub mod client;
pub mod copy;
pub mod gateway;
pub mod record;
pub mod room;
pub mod stall;

/// SCSI status codes (SAM-5 5.3.1), with numbers of their own: the server's are what is tested.
pub mod status {
    pub const GOOD: u8 = 0x00;
    pub const CHECK_CONDITION: u8 = 0x02;
    pub const BUSY: u8 = 0x08;
    pub const CONFLICT: u8 = 0x18;
    pub const TASK_ABORTED: u8 = 0x40;
}

use std::net::SocketAddr;
use std::sync::Arc;

use lunet_backends::{FileSpec, Storage, VolumeSpec, open};
use lunet_front_iscsi::{Config, Layout, Server, TargetEntry, VolumeEntry};
use lunet_iscsi::target::Options;
use lunet_ring::DriverChoice;
use lunet_scsi::{Identity, Unit};
use lunet_server::{Limits, Portal, Transports};
use lunet_volume::Health;

pub const TARGET: &str = "iqn.2026-11.local.lunet:test";

/// A volume in memory of this many MiB.
pub fn memory(mib: u64) -> lunet_backends::Volume {
    open(&VolumeSpec::new(Storage::Memory { size: mib << 20 })).expect("a memory volume opens")
}

/// A volume of 64 MiB in a file: its reads need buffers, unlike those of one in memory.
pub fn file_volume(dir: &tempfile::TempDir) -> lunet_backends::Volume {
    let mut file = FileSpec::new(dir.path().join("volume.img"));
    (file.size, file.create) = (Some(64 << 20), true);
    open(&VolumeSpec::new(Storage::File(file))).expect("a file volume opens")
}

/// A configuration that serves these volumes as LUN 0, 1, ... of one target on a free port.
pub fn config(volumes: Vec<lunet_backends::Volume>, driver: DriverChoice) -> Config {
    let luns = (0..volumes.len()).map(|n| (n as u16, n)).collect();
    let entries = volumes.into_iter().enumerate().map(|(n, volume)| {
        let unit = Unit::new(Identity::from_seed(&format!("test {n}")), volume.caps().clone());
        let name = format!("v{n}");
        let health = Health::new(&name);
        VolumeEntry { name, volume, unit, health, path: None, reservations: None }
    });
    Config {
        portals: vec![Portal {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            tag: 1,
            transports: Transports::Tcp,
        }],
        layout: Layout {
            groups: vec![],
            volumes: entries.collect(),
            targets: vec![TargetEntry { name: TARGET.into(), luns, ..TargetEntry::default() }],
            ..Layout::default()
        },
        port_numbers: None,
        iscsi: Options::default(),
        limits: Limits { buffer_bytes: 8 << 20, ..Limits::default() },
        max_discovery: 32,
        shards: Some(2),
        driver,
        busy_poll: lunet_ring::BusyPoll::OFF,
    }
}

/// Runs a test on each driver that this machine has.
pub fn on_each_driver(test: impl Fn(DriverChoice)) {
    test(DriverChoice::Auto);
    test(DriverChoice::Epoll);
}

/// Starts a server; its only portal.
pub fn start(config: Config) -> (Server, SocketAddr) {
    let server = Server::start(config).expect("the server starts");
    let address = server.portals()[0];
    (server, address)
}

/// Waits for something that must come.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// A volume that can be stopped, over one in memory.
pub fn stalling(mib: u64) -> (lunet_backends::Volume, Arc<stall::Gate>) {
    let gate = Arc::new(stall::Gate::default());
    (Arc::new(stall::Stalling::new(memory(mib), gate.clone())), gate)
}

/// A volume that can stall an event loop, over one in memory.
pub fn trapped(mib: u64) -> (lunet_backends::Volume, Arc<block::Trap>) {
    let trap = Arc::new(block::Trap::default());
    (Arc::new(block::Trapped { inner: memory(mib), trap: trap.clone() }), trap)
}
