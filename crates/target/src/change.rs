//! From one world to the next while the server runs.
//!
//! Every shard first opens what is new; only if all of them can, they adopt the new world. Until a shard has,
//! it works by the old one, whose volumes stay open as long as anybody uses them.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lunet_scsi::Attention;
use lunet_scsi::alua::Alua;

use crate::config::Layout;
use crate::core::Core;
use crate::mail::{Mail, Step, Undelivered};
use crate::world::World;

/// How long a shard may take for a step. None of them waits for storage.
const LIMIT: Duration = Duration::from_secs(20);

/// Why a change did not come. Each is one plain sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Another one has not ended.
    #[error("another change is under way: try again when it has ended")]
    Busy,
    /// The persistent reservations of a new volume were kept, and cannot be taken up.
    #[error("persistent reservations: {0}")]
    Reservations(String),
    /// A new target port gets no number.
    #[error("{0}")]
    Ports(String),
    /// A shard cannot open a volume.
    #[error("{0}")]
    Volume(String),
    /// A shard does not answer.
    #[error("an event loop does not answer: see the log")]
    Stuck,
}

/// Makes this layout the one that is served.
pub fn apply(core: &Core, layout: Layout) -> Result<(), ApplyError> {
    let _one = match core.changing.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(ApplyError::Busy),
    };
    let mut ports = core.ports.lock().unwrap_or_else(PoisonError::into_inner);
    ports.number(&layout.targets).map_err(ApplyError::Ports)?;
    let before = core.world();
    let next = before.next(layout, &ports).map_err(ApplyError::Reservations)?;
    drop(ports);
    let next = Arc::new(next);
    if let Err(error) = everywhere(core, &next, Step::Prepare) {
        // What one shard could open, another could not.
        let _ = everywhere(core, &next, Step::Cancel);
        return Err(error);
    }
    core.set_world(next.clone());
    let result = everywhere(core, &next, Step::Adopt);
    regroup(&next, &before);
    result
}

/// Target port groups have other states from now on.
fn regroup(next: &World, before: &World) {
    for (_, volume) in next.volumes() {
        let states = &volume.unit.state.access;
        volume.reservations.with(|state| {
            let told = next.groups.reconfigure(states, &before.groups);
            if told && volume.unit.alua != Alua::Off {
                state.attend_all(Attention::AccessStateChanged);
            }
        });
    }
}

/// Lets every shard take a step, and waits for all.
fn everywhere(core: &Core, world: &Arc<World>, step: Step) -> Result<(), ApplyError> {
    let until = Instant::now() + LIMIT;
    let mailboxes = core.mailboxes();
    let (reply, replies) = sync_channel(mailboxes.len().max(1));
    for mailbox in mailboxes {
        let mail = || Mail::World { world: world.clone(), step, reply: reply.clone() };
        loop {
            match mailbox.send(mail()) {
                Ok(()) => break,
                // The shard reads its mail in its next turn.
                Err(Undelivered::Full) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return Err(ApplyError::Stuck),
            }
        }
    }
    drop(reply);
    let mut result = Ok(());
    for _ in mailboxes {
        let left = until.saturating_duration_since(Instant::now());
        match replies.recv_timeout(left) {
            Ok(answer) => result = result.and(answer.map_err(ApplyError::Volume)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(ApplyError::Stuck);
            }
        }
    }
    result
}
