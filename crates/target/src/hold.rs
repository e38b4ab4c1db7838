//! A volume held by a thread: what is under way at its storage ends, and nothing new begins. For work that no
//! command may come between, such as a rollback.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use lunet_block::ByteRange;
use lunet_volume::{Stage, Waiter};

use crate::core::Core;
use crate::mail::Mail;
use crate::world::ScsiVolume;

/// How often is looked, should a letter be lost.
const LOOK: Duration = Duration::from_millis(10);

/// The whole volume, whatever its size becomes meanwhile.
const WHOLE: ByteRange = ByteRange::new(0, u64::MAX);

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
    core: Arc<Core>,
    volume: Arc<ScsiVolume>,
    place: u64,
}

impl HeldVolume {
    /// Waits for a volume for at most `limit`.
    pub(crate) fn new(core: &Arc<Core>, name: &str, limit: Duration) -> Result<Self, HoldError> {
        let until = Instant::now() + limit;
        let world = core.world();
        let found = world.volumes().find(|(_, volume)| volume.name == name);
        let (slot, volume) = found.ok_or(HoldError::Unknown)?;
        let (told, news) = sync_channel(1);
        let shards = core.mailboxes().len();
        let place = volume.locks.lock(WHOLE, Waiter::Thread(told), shards);
        let place = place.ok_or(HoldError::Crowded)?;
        // From here on, the drop gives the place up.
        let held = Self { core: core.clone(), volume: volume.clone(), place };
        held.reach(Stage::First, &news, until)?;
        let mut unasked: Vec<usize> = (0..shards).collect();
        while !unasked.is_empty() {
            let locks = &held.volume.locks;
            let letter =
                || Mail::Drain { volume: slot, locks: locks.clone(), id: place, range: WHOLE };
            unasked.retain(|shard| core.mailboxes()[*shard].send(letter()).is_err());
            if !unasked.is_empty() {
                if Instant::now() >= until {
                    return Err(HoldError::Timeout);
                }
                std::thread::sleep(LOOK);
            }
        }
        held.reach(Stage::Had, &news, until)?;
        Ok(held)
    }

    /// Waits until the place has come so far.
    fn reach(&self, stage: Stage, news: &Receiver<()>, until: Instant) -> Result<(), HoldError> {
        loop {
            match self.volume.locks.stage(self.place) {
                Some(now) if now == stage || now == Stage::Had => return Ok(()),
                _ if Instant::now() >= until => return Err(HoldError::Timeout),
                // Told, or time to look.
                _ => drop(news.recv_timeout(LOOK)),
            }
        }
    }
}

impl Drop for HeldVolume {
    fn drop(&mut self) {
        let woken = self.volume.locks.leave(self.place);
        self.core.wake(&woken);
    }
}
