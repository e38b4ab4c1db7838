//! A volume that is served.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lunet_backends::Standing;
use lunet_block::{ByteRange, Caps};

use crate::fence::Fence;
use crate::health::{Cause, Health};
use crate::limit::Limit;
use crate::locks::Locks;
use crate::reserve::{Shared, Store};
use crate::share::Share;

/// How often in a row something else must be found at the path of a file: during a rollback, it is for a moment.
const MISMATCHES: u32 = 2;

/// All of a volume, whatever its size is or becomes meanwhile.
pub(crate) const WHOLE: ByteRange = ByteRange::new(0, u64::MAX);

/// A volume, shared by all shards. Another size or another content of the same volume is another one of these,
/// with the same fence, the same locks and the same reservations. `F` is what protocols show of it.
pub struct Volume<F> {
    /// Name of the volume in the configuration.
    pub name: String,
    /// The open storage, shared by all shards.
    pub backend: lunet_backends::Volume,
    /// What that is and can do.
    pub caps: Caps,
    /// Whether it has failed.
    pub health: Arc<Health>,
    /// Abandoned writes.
    pub fence: Arc<Fence>,
    /// Ranges that commands have for themselves.
    pub(crate) locks: Arc<Locks>,
    /// How much may be done with it in a time.
    pub limit: Arc<Limit>,
    /// Its share of the storage that it has in common with others.
    pub share: Arc<Share>,
    /// Who may use it.
    pub reservations: Arc<Shared>,
    /// What keeps its state through power loss.
    pub store: Option<Store>,
    /// Where the storage should be found, if it is a file or a device.
    pub path: Option<PathBuf>,
    /// How often in a row something else was found there.
    mismatches: AtomicU32,
    /// What protocols show of it.
    pub face: F,
}

impl<F> Volume<F> {
    /// Checks, in a build with debug assertions, that nothing is left of operations when all of them have ended on all
    /// shards.
    pub fn check_ended(&self) {
        debug_assert!(self.fence.is_empty(), "a fence outlives its write");
        debug_assert!(self.locks.is_empty(), "a lock outlives its operation");
        debug_assert!(self.share.is_idle(), "a share outlives its request");
    }

    /// A volume that was not served before, which nobody has reserved, and whose state is not kept.
    pub fn new(
        name: String,
        (backend, health): (lunet_backends::Volume, Arc<Health>),
        path: Option<PathBuf>,
        face: F,
    ) -> Self {
        Self {
            name,
            caps: backend.caps().clone(),
            backend,
            health,
            fence: Arc::default(),
            locks: Arc::default(),
            limit: Arc::default(),
            share: Arc::default(),
            reservations: Arc::default(),
            store: None,
            path,
            mismatches: AtomicU32::new(0),
            face,
        }
    }

    /// What takes the place of another volume of the same name: requests for that may be at work still.
    #[must_use]
    pub fn in_place_of(self, old: &Self) -> Self {
        let (fence, locks) = (old.fence.clone(), old.locks.clone());
        let (limit, reservations) = (old.limit.clone(), old.reservations.clone());
        Self { fence, locks, limit, share: old.share.clone(), reservations, ..self }
    }

    /// Passes on to the next start what does not survive a power loss. The server has ended.
    pub fn pass_on(&self) {
        let Some(store) = &self.store else { return };
        if let Err(error) = self.reservations.look(|state| store.pass_on(state)) {
            tracing::warn!(volume = %self.name, "reservations do not outlive this restart: {error}");
        }
    }

    /// The server serves from here on: what was passed on to it is its own.
    pub fn forget_passed(&self) {
        self.store.iter().for_each(Store::forget_passed);
    }

    /// Looks whether the storage is where it was, and whole. What was written to a file that is removed is gone
    /// with the last who has it open. Blocks.
    pub fn look_at_storage(&self) {
        let Some(path) = &self.path else { return };
        if let Some(why) = lunet_backends::end_of_passthrough(&self.backend) {
            tracing::warn!(volume = %self.name, "{}: {why}", path.display());
        }
        // Where nobody knows, nothing is said: a file server may be away for a moment.
        let Ok(found) = lunet_backends::standing(&self.backend, path) else { return };
        let cause = match found {
            Standing::Sound => {
                self.mismatches.store(0, Ordering::Relaxed);
                return;
            }
            Standing::CutShort { bytes } => Cause::CutShort { bytes },
            Standing::Removed => Cause::Missing,
            // Somebody works on the volume as a whole.
            Standing::Elsewhere | Standing::Replaced if !self.locks.is_free(WHOLE) => return,
            Standing::Elsewhere | Standing::Replaced
                if self.mismatches.fetch_add(1, Ordering::Relaxed) + 1 < MISMATCHES =>
            {
                return;
            }
            Standing::Elsewhere => Cause::Missing,
            Standing::Replaced => Cause::Replaced,
        };
        self.health.fail(cause);
    }
}
