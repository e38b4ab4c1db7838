//! From one world to the next while the server runs.
//!
//! A change has two phases with a type each. [`Prepared`]: every shard has opened what is new and works
//! by the old world; whoever drops it undoes the change. [`Committed`]: the next world is the one that
//! is served, and there is no way back. A shard that stalls takes it over as soon as it goes on, before
//! it does anything else.
//!
//! Servers that share volumes change together: all are prepared, then all are told to take their next worlds over
//! ([`Prepared::adopt`]), and then all are waited for ([`Adopting::wait`]).
//!
//! What has been decided is not sent but written into the [`Proposal`] that each shard has from the first
//! phase on, so a full mailbox cannot lose it.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lunet_os::sync::{Condvar, Mutex, MutexGuard};
use lunet_volume::{HeldVolume, NoChannel};

use crate::core::Core;
use crate::front::{Front, FrontError, Names};
use crate::hosting::Portal;
use crate::mail::{Mail, Undelivered};
use crate::portals::{Full, MOST, Portals};
use crate::served::World;
use crate::server;

/// The shard that accepts connections, and hands them out.
pub(crate) const ACCEPTS: usize = 0;

/// Why a change did not come. Each is one plain sentence.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Another one has not ended.
    #[error("another change is under way: try again when it has ended")]
    Busy,
    /// The protocol cannot serve what is to be served.
    #[error("{0}")]
    Front(FrontError),
    /// There can be no more portals.
    #[error(
        "there were {taken} portals since the start, with those that were removed, and {fresh} more would \
         be more than {MOST}: restart lunet first"
    )]
    Portals {
        /// Portals since the start.
        taken: usize,
        /// Portals that would come.
        fresh: usize,
    },
    /// The address of a new portal is taken.
    #[error("cannot listen on {0}: another program uses this port")]
    InUse(SocketAddr),
    /// The address of a new portal cannot be listened on for another reason.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// The portal's address.
        address: SocketAddr,
        /// The operating system's reason, as a sentence.
        why: String,
        /// Its kind, if the operating system has refused it.
        kind: Option<std::io::ErrorKind>,
    },
    /// A volume cannot be opened.
    #[error("volume {volume} cannot be opened: {error}")]
    Volume {
        /// Name of the volume.
        volume: String,
        /// The operating system's reason.
        error: std::io::Error,
    },
    /// A shard cannot open a volume.
    #[error(transparent)]
    Channel(#[from] NoChannel),
    /// A shard does not get ready for a change.
    #[error("an event loop does not answer, so nothing was changed: see the log, and try again")]
    NotReady,
    /// A shard does not answer a question, or cannot be told something.
    #[error("an event loop does not answer: see the log")]
    Stuck,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The next world is served.
    Adopt,
    /// It does not come.
    Cancel,
}

/// A change as the shards know it.
pub struct Proposal<F: Front> {
    /// What comes.
    pub(crate) world: Arc<World<F>>,
    verdict: OnceLock<Verdict>,
    answers: Mutex<Answers>,
    news: Condvar,
    /// Of portals that are new, with their slots, for the shard that accepts. Closed if the change does not come.
    listeners: Mutex<Vec<(usize, TcpListener)>>,
    /// Lives until the last shard works by the next world.
    held: Mutex<Option<Arc<HeldVolume>>>,
}

#[derive(Default)]
struct Answers {
    prepared: usize,
    adopted: usize,
    /// Why a shard cannot take the next world over.
    refusal: Option<NoChannel>,
}

impl<F: Front> Proposal<F> {
    fn new(world: Arc<World<F>>, listeners: Vec<(usize, TcpListener)>) -> Self {
        Self {
            world,
            verdict: OnceLock::new(),
            answers: Mutex::default(),
            news: Condvar::new(),
            listeners: Mutex::new(listeners),
            held: Mutex::new(None),
        }
    }

    /// What was decided, if it was. Never changes again.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        self.verdict.get().copied()
    }

    /// The listeners of portals that are new, once, for the shard that accepts.
    pub(crate) fn take_listeners_for(&self, shard: usize) -> Vec<(usize, TcpListener)> {
        if shard != ACCEPTS {
            return Vec::new();
        }
        std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A shard has opened what is new, or cannot.
    pub(crate) fn answer_prepared(&self, result: Result<(), NoChannel>) {
        self.note(|answers| match result {
            Ok(()) => answers.prepared += 1,
            Err(error) => answers.refusal = Some(error),
        });
    }

    /// A shard works by the next world.
    pub(crate) fn answer_adopted(&self) {
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
            let left = until.saturating_duration_since(lunet_os::time::now());
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
pub struct Prepared<'a, F: Front> {
    core: &'a Core<F>,
    before: Arc<World<F>>,
    proposal: Arc<Proposal<F>>,
    effects: Option<F::Effects>,
    /// Given back last: one change at a time.
    _one: MutexGuard<'a, ()>,
}

/// A change that is the one that counts, which shards take over.
#[must_use = "shards may not have taken the change over"]
pub struct Adopting<'a, F: Front>(Prepared<'a, F>);

/// A change that has come to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Event loops that have not taken it over yet. They do so as soon as they go on.
    pub late: usize,
}

/// What a protocol makes of a layout.
pub struct Next<F: Front> {
    /// The world that replaces the present one.
    pub world: World<F>,
    /// What it changes of what both worlds share, once it is served.
    pub effects: F::Effects,
    /// Of portals that are new, with their slots.
    pub listeners: Listeners,
}

/// Listeners of portals that are new, with their slots: clients that connect now wait.
pub type Listeners = Vec<(usize, TcpListener)>;

/// Makes every shard ready for a layout. Opens files, so it may block.
pub fn prepare<F: Front>(core: &Core<F>, layout: F::Layout) -> Result<Prepared<'_, F>, ApplyError> {
    let one = match core.changing.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(ApplyError::Busy),
    };
    let before = core.world();
    let Next { world, effects, listeners } = F::next_world(core, &before, layout)?;
    open_files(core, &before, &world)?;
    let proposal = Arc::new(Proposal::new(Arc::new(world), listeners));
    let prepared = Prepared { core, before, proposal, effects: Some(effects), _one: one };
    // On an error the drop cancels it everywhere.
    prepared.propose()?;
    Ok(prepared)
}

/// The portals after these, the slots of those that are wanted, and the listeners of those that are new.
///
/// # Errors
/// There is no slot left for one that is new, or it cannot be listened on.
pub fn next_portals(
    before: &Portals,
    wanted: &[Portal],
    names: Names,
) -> Result<(Arc<Portals>, Vec<usize>, Listeners), ApplyError> {
    let mut next = before.next(wanted)?;
    let mut listeners = Vec::new();
    let fresh = next.fresh.iter().filter_map(|slot| Some((*slot, next.portals.get(*slot)?)));
    let fresh: Vec<(usize, Portal)> = fresh.map(|(slot, portal)| (slot, portal.clone())).collect();
    for (slot, portal) in fresh {
        let (listener, address) = listen(&portal, names)?;
        next.portals.set_address(slot, address);
        listeners.push((slot, listener));
    }
    Ok((Arc::new(next.portals), next.slots, listeners))
}

fn listen(portal: &Portal, names: Names) -> Result<(TcpListener, SocketAddr), ApplyError> {
    if !portal.transports.tcp() {
        let (address, why) = (portal.address, format!("{} alone begins with a start", names.rdma));
        return Err(ApplyError::Listen { address, why, kind: None });
    }
    server::listen(portal.address).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => ApplyError::InUse(portal.address),
        kind => {
            let (address, why) = (portal.address, error.to_string());
            ApplyError::Listen { address, why, kind: Some(kind) }
        }
    })
}

/// Says whether [`prepare`] would refuse these portals, with their groups. Listens at each address that is new, and
/// stops at once. May block for a moment.
pub fn foresee<F: Front>(
    core: &Core<F>,
    wanted: &[Portal],
    groups: &F::Groups,
) -> Result<(), ApplyError> {
    let before = core.world();
    let next = before.portals.next(wanted)?;
    F::foresee(&before, &next.portals, groups)?;
    let mut fresh = next.fresh.iter().filter_map(|slot| next.portals.get(*slot));
    fresh.try_for_each(|portal| listen(portal, F::NAMES).map(drop))
}

impl From<Full> for ApplyError {
    fn from(Full { taken, fresh }: Full) -> Self {
        Self::Portals { taken, fresh }
    }
}

/// Opens on this thread what the shards would have to open otherwise.
fn open_files<F: Front>(
    core: &Core<F>,
    before: &World<F>,
    next: &World<F>,
) -> Result<(), ApplyError> {
    for (slot, volume) in next.volumes() {
        if before.volume(slot).is_some_and(|old| Arc::ptr_eq(old, volume)) {
            continue;
        }
        volume.backend.ready_channels(core.mailboxes().len()).map_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            ApplyError::Volume { volume: volume.name.clone(), error }
        })?;
    }
    Ok(())
}

impl<'a, F: Front> Prepared<'a, F> {
    /// Asks every shard, and waits for all.
    fn propose(&self) -> Result<(), ApplyError> {
        let until = lunet_os::time::now() + self.core.limits.change_wait;
        let mailboxes = self.core.mailboxes();
        for mailbox in mailboxes {
            loop {
                match mailbox.send(Mail::World(self.proposal.clone())) {
                    Ok(()) => break,
                    // The shard reads its mail in its next loop iteration.
                    Err(Undelivered::Full) if lunet_os::time::now() < until => {
                        lunet_os::thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => return Err(ApplyError::NotReady),
                }
            }
        }
        let all = mailboxes.len();
        let mut answers =
            self.proposal.wait(until, |now| now.refusal.is_some() || now.prepared == all);
        match answers.refusal.take() {
            Some(error) => Err(error.into()),
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

    /// The world that comes. Another server is given its volumes by this.
    pub fn world(&self) -> &World<F> {
        &self.proposal.world
    }

    /// Makes the next world the one that is served, and waits for the shards to take it over; those that
    /// stall do it later. A volume that is held stays so until the last of them has.
    pub fn commit(self, held: Option<HeldVolume>) -> Committed {
        self.adopt(held.map(Arc::new)).wait()
    }

    /// Makes the next world the one that is served. A volume that is held stays so until the last shard has taken it
    /// over, of all servers that are given it here.
    pub fn adopt(mut self, held: Option<Arc<HeldVolume>>) -> Adopting<'a, F> {
        *self.proposal.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
        if let Some(effects) = self.effects.take() {
            F::publish(effects);
        }
        F::begin_world(&self.proposal.world, &self.before);
        self.core.rdma.update_portals(&self.proposal.world.portals);
        self.core.set_world(self.proposal.world.clone());
        self.decide(Verdict::Adopt);
        Adopting(self)
    }
}

impl<F: Front> Adopting<'_, F> {
    /// Waits for the shards to take the next world over; those that stall do it later.
    pub fn wait(self) -> Committed {
        let Prepared { core, before, proposal, .. } = &self.0;
        let all = core.mailboxes().len();
        let until = lunet_os::time::now() + core.limits.change_wait;
        let adopted = proposal.wait(until, |now| now.adopted == all).adopted;
        F::world_begun(&proposal.world, before);
        let late = all.saturating_sub(adopted);
        if late > 0 {
            tracing::error!(late, "event loops do not answer: they take a change over later");
        }
        Committed { late }
    }
}

impl<F: Front> Drop for Prepared<'_, F> {
    fn drop(&mut self) {
        if self.proposal.verdict().is_none() {
            self.decide(Verdict::Cancel);
            // Shards may hold the proposal for a while; the addresses are free now.
            drop(self.proposal.take_listeners_for(ACCEPTS));
        }
    }
}
