//! What a world has of RDMA.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use lunet_os::simulated::{self, Process, World};
use lunet_os::thread;
use lunet_verbs::simulated::{Fabric, Traits};
use serde::{Deserialize, Serialize};

use crate::site::Site;

const DEVICE: &str = "sim0";

/// The device of a world, and what becomes of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Rdma {
    /// Connections of the device may share their receives.
    pub shared_receives: bool,
    /// A message may take back a key of its receiver.
    pub invalidates: bool,
    /// It says so, and fails.
    pub invalidation_fails: bool,
    /// Bytes of a message that the device copies when it is posted.
    pub inline: u32,
    /// Pieces of memory in one receive of a shared queue.
    pub pieces: u32,
    /// Depth of the device's queues.
    pub depth: u32,
    /// Registrations that the device refuses, in a hundred.
    pub refuses_memory: u64,
    /// In a hundred connections: a host prefers iSER.
    pub preferred: u64,
    /// How often the device goes.
    pub removals: u64,
    /// How often a queue pair fails.
    pub failures: u64,
    /// In a thousand commands: a host gives a key that is wrong.
    pub bogus: u64,
    /// Hosts post fewer receives than they have commands.
    pub few_receives: bool,
    /// The server's buffer memory for each shard, in bytes.
    pub buffers: usize,
    /// Commands that the server takes at a time.
    pub window: u32,
}

impl Rdma {
    /// What a world has, by its seed.
    pub fn draw() -> Option<Self> {
        if simulated::below(3) != 0 {
            return None;
        }
        let rare = |most| if simulated::below(3) == 0 { 1 + simulated::below(most) } else { 0 };
        Some(Self {
            shared_receives: simulated::below(2) == 0,
            invalidates: simulated::below(3) != 0,
            invalidation_fails: simulated::below(6) == 0,
            inline: [0, 128, 256][simulated::below(3) as usize],
            pieces: [1, 3, 16][simulated::below(3) as usize],
            depth: [128, 1024, 16_384][simulated::below(3) as usize],
            refuses_memory: if simulated::below(8) == 0 { 30 } else { 0 },
            preferred: [50, 100][simulated::below(2) as usize],
            removals: rare(3),
            failures: rare(5),
            bogus: rare(10),
            few_receives: simulated::below(4) == 0,
            buffers: [6 << 20, 16 << 20, 32 << 20][simulated::below(3) as usize],
            window: [4, 16, 64][simulated::below(3) as usize],
        })
    }

    fn traits(&self) -> Traits {
        Traits {
            shared_receives: self.shared_receives,
            invalidates: self.invalidates,
            invalidation_fails: self.invalidation_fails,
            inline: self.inline,
            pieces: self.pieces,
            depth: self.depth.max(128),
            refuses_memory: self.refuses_memory,
        }
    }

    /// The device is there from now on, and something happens to it now and then.
    ///
    /// # Errors
    /// The system's: files or threads cannot be made.
    pub fn begin(self, world: &World, folder: &Path, site: &Site) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        simulated::part::<Fabric>().plug(folder, DEVICE, self.traits())?;
        let (folder, site) = (folder.to_path_buf(), site.clone());
        world.spawn_in(Process(0), "rdma", move || self.disturb(&folder, &site))?;
        Ok(())
    }

    fn disturb(mut self, folder: &Path, site: &Site) {
        let fabric = simulated::part::<Fabric>();
        while self.failures + self.removals > 0 && !site.known().over {
            thread::sleep(Duration::from_micros(simulated::below(300_000)));
            if simulated::below(self.failures + self.removals) < self.failures {
                self.failures -= 1;
                site.tell("world", "a queue pair fails");
                fabric.fail_one();
                continue;
            }
            self.removals -= 1;
            site.tell("world", "the RDMA device goes");
            fabric.unplug(DEVICE);
            thread::sleep(Duration::from_millis(simulated::below(
                [100, 10_000][simulated::below(2) as usize],
            )));
            site.tell("world", "the RDMA device is back");
            // Without its folder it stays away.
            let _ = fabric.plug(folder, DEVICE, self.traits());
        }
    }
}

/// Whether RDMA of the server is as it should be.
///
/// # Errors
/// What is wrong.
pub fn check() -> Result<()> {
    let wrong = simulated::part::<Fabric>().wrong();
    ensure!(wrong.is_none(), "RDMA: {}", wrong.unwrap_or_default());
    Ok(())
}

/// Whether a process that has ended has let go of everything.
///
/// # Errors
/// What it has left behind.
pub fn check_end(process: Process) -> Result<()> {
    let left = simulated::part::<Fabric>().left_behind(process);
    ensure!(left.is_empty(), "RDMA: the server has ended and left behind: {left:?}");
    check()
}
