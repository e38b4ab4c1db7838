//! From one world to the next while the server runs.
//!
//! A change has two phases with a type each. [`Prepared`]: every shard has opened what is new and works
//! by the old world; whoever drops it undoes the change. [`Committed`]: the next world is the one that
//! is served, and there is no way back. A shard that stalls takes it over as soon as it goes on, before
//! it does anything else.
//!
//! What has been decided is not sent but written into the [`Proposal`] that each shard has from the first
//! phase on, so a full mailbox cannot lose it.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lunet_scsi::Attention;
use lunet_scsi::alua::Alua;

use crate::config::Layout;
use crate::core::Core;
use crate::hold::HeldVolume;
use crate::mail::{Mail, Undelivered};
use crate::world::{Effects, World};

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
    /// A shard does not get ready for a change.
    #[error("an event loop does not answer, so nothing was changed: see the log, and try again")]
    NotReady,
    /// A shard does not answer a question, or cannot be told something.
    #[error("an event loop does not answer: see the log")]
    Stuck,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next world is served.
    Adopt,
    /// It does not come.
    Cancel,
}

/// A change as the shards know it.
pub struct Proposal {
    /// What comes.
    pub world: Arc<World>,
    verdict: OnceLock<Verdict>,
    answers: Mutex<Answers>,
    news: Condvar,
    /// Lives until the last shard works by the next world.
    held: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Default)]
struct Answers {
    prepared: usize,
    adopted: usize,
    /// Why a shard cannot take the next world over.
    refusal: Option<String>,
}

impl Proposal {
    fn new(world: Arc<World>) -> Self {
        Self {
            world,
            verdict: OnceLock::new(),
            answers: Mutex::default(),
            news: Condvar::new(),
            held: Mutex::new(None),
        }
    }

    /// What was decided, if it was. Never changes again.
    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict.get().copied()
    }

    /// A shard has opened what is new, or cannot.
    pub fn answer_prepared(&self, result: Result<(), String>) {
        self.note(|answers| match result {
            Ok(()) => answers.prepared += 1,
            Err(error) => answers.refusal = Some(error),
        });
    }

    /// A shard works by the next world.
    pub fn answer_adopted(&self) {
        self.note(|answers| answers.adopted += 1);
    }

    fn note(&self, what: impl FnOnce(&mut Answers)) {
        what(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner));
        self.news.notify_all();
    }

    /// Waits until `enough` says so, or the time is over.
    fn wait(&self, until: Instant, enough: impl Fn(&Answers) -> bool) -> MutexGuard<'_, Answers> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if enough(&answers) || left.is_zero() {
                return answers;
            }
            let waited = self.news.wait_timeout(answers, left);
            answers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A change that every shard is ready for. Nobody has seen anything of it: dropping it undoes it.
#[must_use = "dropping it undoes the change"]
pub struct Prepared<'a> {
    core: &'a Core,
    before: Arc<World>,
    proposal: Arc<Proposal>,
    effects: Option<Effects>,
    /// Given back last: one change at a time.
    _one: MutexGuard<'a, ()>,
}

/// A change that has come to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Event loops that have not taken it over yet. They do so as soon as they go on.
    pub late: usize,
}

/// Makes every shard ready for a layout. Opens files, so it may block.
pub fn prepare(core: &Core, layout: Layout) -> Result<Prepared<'_>, ApplyError> {
    let one = match core.changing.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(ApplyError::Busy),
    };
    let mut ports = core.ports.lock().unwrap_or_else(PoisonError::into_inner);
    ports.number(&layout.targets).map_err(ApplyError::Ports)?;
    let before = core.world();
    let (next, effects) = before.next(layout, &ports).map_err(ApplyError::Reservations)?;
    drop(ports);
    open_files(core, &before, &next)?;
    let proposal = Arc::new(Proposal::new(Arc::new(next)));
    let prepared = Prepared { core, before, proposal, effects: Some(effects), _one: one };
    // On an error the drop cancels it everywhere.
    prepared.propose()?;
    Ok(prepared)
}

/// Opens on this thread what the shards would have to open otherwise.
fn open_files(core: &Core, before: &World, next: &World) -> Result<(), ApplyError> {
    for (slot, volume) in next.volumes() {
        if before.volume(slot).is_some_and(|old| Arc::ptr_eq(old, volume)) {
            continue;
        }
        volume.volume.ready_channels(core.mailboxes().len()).map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            ApplyError::Volume(format!("volume {} cannot be opened: {error}", volume.name))
        })?;
    }
    Ok(())
}

impl Prepared<'_> {
    /// Asks every shard, and waits for all.
    fn propose(&self) -> Result<(), ApplyError> {
        let until = Instant::now() + self.core.limits.change_wait;
        let mailboxes = self.core.mailboxes();
        for mailbox in mailboxes {
            loop {
                match mailbox.send(Mail::World(self.proposal.clone())) {
                    Ok(()) => break,
                    // The shard reads its mail in its next turn.
                    Err(Undelivered::Full) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => return Err(ApplyError::NotReady),
                }
            }
        }
        let all = mailboxes.len();
        let answers = self.proposal.wait(until, |now| now.refusal.is_some() || now.prepared == all);
        match &answers.refusal {
            Some(error) => Err(ApplyError::Volume(error.clone())),
            None if answers.prepared < all => Err(ApplyError::NotReady),
            None => Ok(()),
        }
    }

    fn decide(&self, verdict: Verdict) {
        let fresh = self.proposal.verdict.set(verdict).is_ok();
        debug_assert!(fresh, "a change is decided once");
        for mailbox in self.core.mailboxes() {
            mailbox.wake();
        }
    }

    /// Makes the next world the one that is served, and waits for the shards to take it over; those that
    /// stall do it later. A volume that is held stays so until the last of them has.
    pub fn commit(mut self, held: Option<HeldVolume>) -> Committed {
        let held = held.map(|held| Box::new(held) as Box<dyn Any + Send>);
        *self.proposal.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        if let Some(effects) = self.effects.take() {
            effects.publish();
        }
        self.core.set_world(self.proposal.world.clone());
        self.decide(Verdict::Adopt);
        let all = self.core.mailboxes().len();
        let until = Instant::now() + self.core.limits.change_wait;
        let adopted = self.proposal.wait(until, |now| now.adopted == all).adopted;
        regroup(&self.proposal.world, &self.before);
        let late = all.saturating_sub(adopted);
        if late > 0 {
            tracing::error!(late, "event loops do not answer: they take a change over later");
        }
        Committed { late }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if self.proposal.verdict().is_none() {
            self.decide(Verdict::Cancel);
        }
    }
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
