//! A volume held by a thread: what is under way at its storage ends, and nothing new begins. For work that no
//! command may come between, such as a rollback.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_os::sync::mpsc::{Receiver, sync_channel};

use crate::locks::{Locks, Stage, Waiter};
use crate::open::VolumeId;
use crate::storage::{Drain, Shards};
use crate::volume::{Volume, WHOLE};

/// How often is looked, should a message be lost.
const LOOK: Duration = Duration::from_millis(10);

/// Why a volume cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// There is no volume by this name.
    #[error("there is no such volume")]
    Unknown,
    /// Too many commands wait for parts of it.
    #[error("too many commands wait for the volume: try again")]
    Crowded,
    /// The storage has not answered all that it was asked before.
    #[error("the volume's storage does not answer: nothing was changed")]
    Timeout,
}

/// While this lives, no command reads or writes the volume. They wait, and go on when it is dropped.
pub struct HeldVolume {
    shards: Arc<dyn Shards>,
    locks: Arc<Locks>,
    place: u64,
}

impl HeldVolume {
    /// Waits for the volume in a slot, for at most `limit`.
    ///
    /// # Errors
    /// [`HoldError`]; commands go on then.
    pub fn new<F>(
        shards: Arc<dyn Shards>,
        (slot, volume): (VolumeId, &Volume<F>),
        limit: Duration,
    ) -> Result<Self, HoldError> {
        let until = lunet_os::time::now() + limit;
        let (told, news) = sync_channel(1);
        let (count, locks) = (shards.count(), volume.locks.clone());
        let place = locks.lock(WHOLE, Waiter::Thread(told), count);
        let place = place.ok_or(HoldError::Crowded)?;
        // From here on, the drop gives the place up.
        let held = Self { shards, locks: locks.clone(), place };
        held.reach(Stage::First, &news, until)?;
        let drain = Drain { volume: slot, locks, id: place, range: WHOLE };
        let mut unasked: Vec<usize> = (0..count).collect();
        loop {
            unasked.retain(|shard| !held.shards.ask(*shard, drain.clone()));
            if unasked.is_empty() {
                break;
            }
            if lunet_os::time::now() >= until {
                return Err(HoldError::Timeout);
            }
            lunet_os::thread::sleep(LOOK);
        }
        held.reach(Stage::Granted, &news, until)?;
        Ok(held)
    }

    /// Waits until the place has come so far.
    fn reach(&self, stage: Stage, news: &Receiver<()>, until: Instant) -> Result<(), HoldError> {
        loop {
            match self.locks.stage(self.place) {
                Some(now) if now == stage || now == Stage::Granted => return Ok(()),
                _ if lunet_os::time::now() >= until => return Err(HoldError::Timeout),
                // Told, or time to look.
                _ => drop(news.recv_timeout(LOOK)),
            }
        }
    }
}

impl Drop for HeldVolume {
    fn drop(&mut self) {
        let woken = self.locks.leave(self.place);
        self.shards.wake(&woken);
    }
}
