//! Looks after the storage of volumes: whether it is where it was, and the room of thin ones, what LOG SENSE says of
//! it, and the thresholds.
//!
//! A thread that sleeps. It asks no storage itself, which may hang: one thread of [`crate::offload`] at a
//! time does that for each volume, and a volume that has not answered is not asked again. It also says what
//! the log has left out.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lunet_backends::Standing;
use lunet_block::ByteRange;
use lunet_scsi::Attention;

use crate::core::Core;
use crate::health::Cause;
use crate::interfaces;
use crate::world::CoreVolume;

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(3);

/// How often in a row something else must be found in the place of a file: during a rollback, it is for a moment.
const STRIKES: u32 = 2;

/// All of a volume, whatever its size.
const WHOLE: ByteRange = ByteRange::new(0, u64::MAX);

/// After how many looks it looks on which networks the machine is.
const NETWORKS: u32 = 10;

/// The thread.
pub struct Monitor {
    /// Dropped, it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// Slots of volumes that have been asked and have not answered.
type Asked = Arc<Mutex<HashSet<usize>>>;

impl Monitor {
    /// Starts the thread, which looks for the first time at once.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(core: Arc<Core>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let asked = Asked::default();
        let work = move || {
            look(&core, &asked);
            let mut rounds: u32 = 0;
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                look(&core, &asked);
                rounds = rounds.wrapping_add(1);
                if rounds % NETWORKS == 0 {
                    core.throttle.set_networks(interfaces::networks());
                }
                core.rations.report(core.started.elapsed());
            }
        };
        let thread = std::thread::Builder::new().name("lunet-monitor".into()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Ends the thread.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

fn look(core: &Core, asked: &Asked) {
    let world = core.world();
    let watched = |volume: &CoreVolume| {
        !volume.unit.absent && (volume.unit.is_thin() || volume.place.is_some())
    };
    for (slot, volume) in world.volumes().filter(|(_, volume)| watched(volume)) {
        if !asked.lock().unwrap_or_else(PoisonError::into_inner).insert(slot) {
            continue;
        }
        let (volume, mine) = (volume.clone(), asked.clone());
        let ask = move || {
            watch(&volume);
            if volume.unit.is_thin() {
                note(&volume);
            }
            mine.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        };
        if !core.offload.give(slot, Box::new(ask)) {
            asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&slot);
        }
    }
}

/// Looks whether the storage is where it was, and whole. What was written to a file that is removed is gone
/// with the last who has it open.
fn watch(volume: &CoreVolume) {
    let Some(place) = &volume.place else { return };
    // Where nobody knows, nothing is said: a server of files may be away for a moment.
    let Ok(found) = lunet_backends::standing(&volume.volume, place) else { return };
    let cause = match found {
        Standing::Sound => {
            volume.strikes.store(0, Ordering::Relaxed);
            return;
        }
        Standing::CutShort { bytes } => Cause::CutShort { bytes },
        Standing::Removed => Cause::Missing,
        // Somebody works on the volume as a whole.
        Standing::Elsewhere | Standing::Replaced if !volume.locks.is_free(WHOLE) => return,
        Standing::Elsewhere | Standing::Replaced
            if volume.strikes.fetch_add(1, Ordering::Relaxed) + 1 < STRIKES =>
        {
            return;
        }
        Standing::Elsewhere => Cause::Missing,
        Standing::Replaced => Cause::Replaced,
    };
    volume.health.fail(cause);
}

/// Asks the storage how much room there is.
fn note(volume: &CoreVolume) {
    // Where nobody knows, nothing is said.
    let Ok(space) = volume.volume.slow().space() else { return };
    if volume.unit.note_space(&space) {
        tracing::warn!(
            volume = %volume.name,
            available_mib = space.available >> 20,
            "the storage below a thin volume is filled up to its threshold"
        );
        volume.reservations.with(|state| state.attend_all(Attention::ThresholdReached));
    }
}
