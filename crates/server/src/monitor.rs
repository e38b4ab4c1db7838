//! Looks after the storage of volumes: whether it is where it was, and the room of thin ones.
//!
//! A thread that sleeps, of the server that owns the volumes; those of the others do the rest. It asks no storage itself, which may hang: one thread of [`lunet_volume::Offload`] at a
//! time does that for each volume, and a volume that has not answered is not asked again. It also says what
//! the log has left out, and has memory given back to the system when many connections have ended.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lunet_os::sync::Mutex;
use lunet_os::sync::mpsc::{RecvTimeoutError, Sender, channel};
use lunet_os::thread::JoinHandle;
use lunet_volume::{Volume, VolumeId};

use crate::core::Core;
use crate::front::Front;
use crate::heap::Heap;
use crate::interfaces;
use crate::silence::{self, Watch};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(3);

/// After how many looks it looks on which networks the machine is.
const NETWORKS: u32 = 10;

/// The thread.
pub struct Monitor {
    /// Dropped, it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Slots of volumes that have been asked and have not answered.
type Asked = Arc<Mutex<HashSet<VolumeId>>>;

impl Monitor {
    /// Starts the thread, which looks for the first time at once.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start<F: Front>(core: Arc<Core<F>>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let asked = Asked::default();
        let look = |core: &Core<F>, asked: &Asked| {
            if core.member.owns_volumes() {
                look_at_volumes(core, asked);
            }
        };
        let work = move || {
            look(&core, &asked);
            let mut rounds: u32 = 0;
            let mut watch = Watch::default();
            let mut heap = Heap::new(lunet_os::time::now());
            let mut next = lunet_os::time::now() + INTERVAL;
            let mut pause = silence::PULSE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = watch.look(&core);
                if core.member.owns_volumes() {
                    heap.look(&core);
                }
                if lunet_os::time::now() < next {
                    continue;
                }
                next = lunet_os::time::now() + INTERVAL;
                look(&core, &asked);
                rounds = rounds.wrapping_add(1);
                if rounds % NETWORKS == 0 {
                    core.throttle.set_networks(interfaces::networks());
                }
                core.rations.report(lunet_os::time::since(core.started), F::NAMES);
            }
        };
        let thread = lunet_os::thread::spawn("lunet-monitor", work)?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

fn look_at_volumes<F: Front>(core: &Core<F>, asked: &Asked) {
    let world = core.world();
    let watched = |volume: &Volume<F::Face>| {
        !F::is_absent(volume) && (F::watches_room(volume) || volume.path.is_some())
    };
    for (slot, volume) in world.volumes().filter(|(_, volume)| watched(volume)) {
        if !asked.lock().unwrap_or_else(PoisonError::into_inner).insert(slot) {
            continue;
        }
        let (volume, mine) = (volume.clone(), asked.clone());
        let ask = move || {
            volume.look_at_storage();
            if F::watches_room(&volume) {
                F::note_room(&volume);
            }
            mine.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        };
        if !core.offload.give(Some(slot), Box::new(ask)) {
            asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        }
    }
}
