//! The server: starts the shards, speaks to them, stops them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_os::role::Role;
use lunet_os::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use lunet_os::thread::JoinHandle;
use lunet_ring::{Config as RingConfig, Ring};

use lunet_volume::{ClientRule, Face, HeldVolume, HoldError, PoolShare, Rates, Volume};

use crate::change::{self, ApplyError, Committed, Prepared};
use crate::core::Core;
use crate::fleet::Member;
use crate::front::{Front, FrontError};
use crate::hosting::{Portal, Processors};
use crate::inherited;
use crate::mail::{Mail, Mailbox, Owed};
use crate::monitor::Monitor;
use crate::rdma::{self, DeviceMonitor, DeviceSet, Listeners, PortalStatus, StartFailure};
use crate::served::World;
use crate::shard::{FLUSH_LIMIT, Shard};
use crate::stats::{self, Part, ShardStats, SilentShard, Stats};

/// How long a report waits for the shards before it is given without the slow ones.
const REPORT_LIMIT: Duration = Duration::from_secs(2);

/// How long a stop waits for the marks of failed write-backs to become stable.
const MARK_LIMIT: Duration = Duration::from_secs(10);

/// How long a stop waits for a thread that has nothing more to do than to end: storage that hangs may keep the
/// memory of its requests, and with it the thread.
const END_LIMIT: Duration = Duration::from_secs(1);

/// How much longer than it says an event loop may take to stop, before it counts as one that has stalled.
const STALL_LIMIT: Duration = Duration::from_secs(5);

/// Why a server did not start. Each is one plain sentence.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port is taken.
    #[error("cannot listen on {address}: another program uses this port")]
    InUse {
        /// The portal's address.
        address: SocketAddr,
    },
    /// The address cannot be listened on for another reason.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The portal's address.
        address: SocketAddr,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The protocol cannot serve what is to be served.
    #[error("{0}")]
    Front(FrontError),
    /// A portal that is for RDMA alone cannot be served.
    #[error(transparent)]
    Rdma(#[from] StartFailure),
    /// A shard could not be set up.
    #[error("cannot start the event loop: {0}")]
    Shard(io::Error),
}

impl StartError {
    /// The address cannot be listened on for this reason.
    fn not_listening(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address },
            _ => Self::Listen { address, source },
        }
    }
}

/// A running server.
pub struct Server<F: Front> {
    core: Arc<Core<F>>,
    threads: Vec<ShardThread>,
    helper: F::Helper,
    monitor: Monitor,
    device_monitor: Option<DeviceMonitor>,
    notes: Vec<String>,
    driver: &'static str,
}

/// A server that is ready to serve: clients that connect wait. Dropped, it ends, and nobody has seen anything of it.
#[must_use = "dropping it ends the server"]
pub struct Standby<F: Front> {
    /// Dropped first: the shards end by that.
    go: Vec<SyncSender<Begin>>,
    /// For the first shard.
    listeners: Option<Listeners>,
    server: Server<F>,
}

impl<F: Front> Standby<F> {
    /// Where the server listens, with the real port numbers, in the order of its configuration.
    pub fn portals(&self) -> Vec<SocketAddr> {
        self.server.portals()
    }

    /// Begins to serve.
    pub fn begin(self) -> Server<F> {
        let Self { go, mut listeners, server } = self;
        let rdma = listeners.is_some();
        server.core.world().volumes().for_each(|(_, volume)| volume.forget_passed());
        // Before a shard has done anything: from here on locks on ranges ask them.
        server.core.join();
        for start in go {
            // A shard that died meanwhile is found when the server stops.
            let _ = start.send(Begin { rdma, listeners: listeners.take() });
        }
        server.core.begin();
        server
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReport {
    /// Every acknowledged write is on stable storage.
    pub flushed: bool,
}

/// The thread of a shard.
struct ShardThread {
    handle: JoinHandle<()>,
    /// Whether all could be flushed, once the event loop has ended. Closed when the thread has.
    verdict: Receiver<bool>,
}

/// What a shard's thread reports when it stands.
struct Standing<F: Front> {
    mailbox: Mailbox<F>,
    notes: Vec<String>,
    driver: lunet_ring::Driver,
    /// Why it cannot use the server's RDMA devices.
    rdma: Result<(), lunet_verbs::Error>,
}

/// What a shard is told once all of them stand.
struct Begin {
    /// Connections over RDMA are served: not if one shard cannot.
    rdma: bool,
    /// For the first shard.
    listeners: Option<Listeners>,
}

impl<F: Front> Server<F> {
    /// Listens on every portal and starts the shards of a server that shares its volumes with no other. When it
    /// returns, logins are accepted.
    ///
    /// # Errors
    /// The first thing that failed; nothing is left running.
    pub fn start(config: F::Config) -> Result<Self, StartError> {
        let member = Member::alone(F::hosting(&config).shards);
        Self::start_as(member, config)
    }

    /// The same for one of several servers that share volumes. It has as many shards as its place says.
    ///
    /// # Errors
    /// The first thing that failed; nothing is left running.
    pub fn start_as(member: Member, config: F::Config) -> Result<Self, StartError> {
        Ok(Self::prepare_as(member, config)?.begin())
    }

    /// All of [`start_as`](Self::start_as) that can fail: the server listens, its shards have opened everything, and none
    /// of them has begun.
    ///
    /// # Errors
    /// The first thing that failed; nothing is left running.
    pub fn prepare_as(member: Member, config: F::Config) -> Result<Standby<F>, StartError> {
        let hosting = F::hosting(&config);
        let (portals, mut tcp) = listen_all(&hosting.portals)?;
        let (count, first) = (member.shards(), member.first_shard());
        let ring = RingConfig {
            arena_bytes: hosting.limits.buffer_bytes,
            kept_bytes: hosting.limits.buffer_bytes / 4,
            driver: hosting.driver,
            busy_poll: hosting.busy_poll,
            zero_copy_send: hosting.limits.zero_copy_send,
            passthrough: hosting.limits.passthrough,
            ..RingConfig::default()
        };
        let core = Core::new(config, portals, member).map_err(StartError::Front)?;
        let device_set = rdma::prepare(&core.first_portals, &core.rdma)?;
        let (mut threads, mut standing, mut go) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count {
            let (ready, stands) = sync_channel(1);
            let (start, begin) = sync_channel::<Begin>(1);
            // The first shard accepts; it hands connections to those that suit them.
            let own = (std::mem::take(&mut tcp), device_set.clone());
            let (core, ring) = (core.clone(), ring.clone());
            let (ends, verdict) = sync_channel(1);
            let work = move || shard_thread(number, core, &ring, own, &ready, (&begin, &ends));
            let handle = lunet_os::thread::spawn(&format!("lunet-shard-{}", first + number), work)
                .map_err(StartError::Shard)?;
            threads.push(ShardThread { handle, verdict });
            go.push(start);
            let stands = stands.recv().unwrap_or_else(|_| Err(io::Error::other("a shard died")));
            standing.push(stands.map_err(StartError::Shard)?);
        }
        let notes = standing[0].notes.clone();
        let driver = match standing[0].driver {
            lunet_ring::Driver::IoUring => "io_uring",
            lunet_ring::Driver::Epoll => "epoll",
        };
        let listeners = listen_rdma(device_set.as_deref(), &core, &standing)?;
        core.set_mailboxes(standing.into_iter().map(|shard| shard.mailbox).collect());
        let helper = F::start_helper(core.clone()).map_err(StartError::Shard)?;
        let monitor = Monitor::start(core.clone()).map_err(StartError::Shard)?;
        let device_monitor = DeviceMonitor::start(core.clone()).map_err(StartError::Shard)?;
        let server = Self { core, threads, helper, monitor, device_monitor, notes, driver };
        Ok(Standby { go, listeners, server })
    }

    /// Where the server listens, with the real port numbers: in the order of the configuration that it was
    /// started with, and then those that came later.
    pub fn portals(&self) -> Vec<SocketAddr> {
        self.handle().portals()
    }

    /// What the operator should know, in plain sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A way to ask the server from any thread.
    pub fn handle(&self) -> Handle<F> {
        Handle { core: self.core.clone(), driver: self.driver }
    }

    /// Has the server stop, as [`stop`](Self::stop) does, and waits for nothing. Servers that share volumes are all told
    /// before the first is waited for.
    pub fn begin_stop(&self, grace: Duration) {
        for mailbox in self.core.mailboxes() {
            mailbox.deliver(Owed::Stop { grace });
        }
    }

    /// Stops: accepts no more, asks sessions to log out, ends what is left after `grace`, flushes. Storage that
    /// hangs is waited for until `grace` is over, or until it has answered nothing for 3 s; a flush may take 30 s.
    pub fn stop(self, grace: Duration) -> StopReport {
        self.begin_stop(grace);
        let until = lunet_os::time::now() + grace + FLUSH_LIMIT + STALL_LIMIT;
        let mut flushed = true;
        for (shard, thread) in self.threads.iter().enumerate() {
            flushed &= thread.ends(shard, until);
        }
        let all_have_ended = flushed && self.core.member.has_ended();
        if all_have_ended {
            self.core.world().volumes().for_each(|(_, volume)| volume.check_ended());
        }
        let until = lunet_os::time::now() + END_LIMIT;
        self.threads.into_iter().for_each(|thread| thread.let_go(until));
        #[cfg(debug_assertions)]
        assert!(!flushed || self.core.logins.taken() == 0, "a login outlives its connection");
        // Whoever asked for the last flushes.
        let sound = |volume: &Volume<F::Face>| F::is_absent(volume) || volume.health.is_sound();
        let until = lunet_os::time::now() + MARK_LIMIT;
        for (_, volume) in self.core.world().volumes() {
            flushed &= sound(volume);
            // The next start has to know what the last flushes have told.
            if !volume.health.wait_for_mark(until.saturating_duration_since(lunet_os::time::now()))
            {
                tracing::error!(volume = %volume.name, "a restart may forget that its write-back failed");
            }
        }
        F::stop_helper(self.helper, MARK_LIMIT);
        if all_have_ended {
            self.core.world().volumes().for_each(|(_, volume)| volume.pass_on());
        }
        self.device_monitor.into_iter().for_each(DeviceMonitor::stop);
        self.monitor.stop();
        StopReport { flushed }
    }

    /// True if a shard has ended by itself: the event loop failed.
    pub fn failed(&self) -> bool {
        self.threads.iter().any(|thread| thread.handle.is_finished())
    }
}

impl ShardThread {
    /// Waits for the end of the event loop. True if all could be flushed.
    fn ends(&self, shard: usize, until: Instant) -> bool {
        let left = until.saturating_duration_since(lunet_os::time::now());
        let verdict = self.verdict.recv_timeout(left);
        if verdict == Err(RecvTimeoutError::Timeout) {
            tracing::error!(shard, "the event loop does not answer: it is not waited for any more");
        }
        verdict.unwrap_or(false)
    }

    /// Waits until the thread has dropped all that it had. It is not joined: the kernel lets a thread go when the
    /// last of its requests is done, and storage that hangs does none.
    fn let_go(self, until: Instant) {
        let left = until.saturating_duration_since(lunet_os::time::now());
        // The way of the verdict is the last that it drops.
        let _ = self.verdict.recv_timeout(left);
    }
}

/// Asks a running server. Cheap to clone.
pub struct Handle<F: Front> {
    core: Arc<Core<F>>,
    driver: &'static str,
}

impl<F: Front> Clone for Handle<F> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), driver: self.driver }
    }
}

impl<F: Front> Handle<F> {
    /// What is served now.
    pub fn world(&self) -> Arc<World<F>> {
        self.core.world()
    }

    /// Limits what hosts and sessions of all servers of the process do, from now on.
    pub fn limit_clients(&self, rule: ClientRule) {
        self.core.member.clients().limit(rule);
    }

    /// Limits what is done with volumes, by their names, from now on.
    pub fn limit(&self, rates: impl Fn(&str) -> Option<Rates>) {
        for (_, volume) in self.core.world().volumes() {
            rates(&volume.name).into_iter().for_each(|rates| volume.limit.set(rates));
        }
    }

    /// Gives volumes, by their names, shares of pools from now on, or none.
    pub fn share(&self, shares: impl Fn(&str) -> Option<PoolShare>) {
        for (_, volume) in self.core.world().volumes() {
            volume.share.set(shares(&volume.name));
        }
    }

    /// Tells the front of each shard something that somebody waits for.
    pub fn tell(&self, message: impl Fn() -> F::Message) {
        self.core.mailboxes().iter().for_each(|mailbox| mailbox.tell(message()));
    }

    /// What the fronts of all shards share.
    pub fn shared(&self) -> &F::Shared {
        &self.core.front
    }

    /// Makes everything ready to serve this, and to end what is not in it. Volumes and exports are known by
    /// their names. A volume with the same storage and unit as before goes on undisturbed; another storage
    /// under the same name (resized, rolled back) takes its place. Nobody sees anything of it before
    /// [`Prepared::commit`]. Opens files, so it may block.
    ///
    /// # Errors
    /// [`ApplyError`]; all is as before then.
    pub fn prepare(&self, layout: F::Layout) -> Result<Prepared<'_, F>, ApplyError> {
        change::prepare(&self.core, layout)
    }

    /// Says whether [`prepare`](Self::prepare) would refuse these portals, with their groups. Listens at each
    /// address that is new, and stops at once. May block for a moment.
    ///
    /// # Errors
    /// The [`ApplyError`] of the change.
    pub fn foresee_portals(
        &self,
        portals: &[Portal],
        groups: &F::Groups,
    ) -> Result<(), ApplyError> {
        change::foresee(&self.core, portals, groups)
    }

    /// [Prepares](Self::prepare) and commits at once.
    ///
    /// # Errors
    /// [`ApplyError`]; all is as before then.
    pub fn apply(&self, layout: F::Layout) -> Result<Committed, ApplyError> {
        Ok(self.prepare(layout)?.commit(None))
    }

    /// Holds a volume: waits, at most for `limit`, until nothing is under way at its storage, and lets nothing
    /// new begin until the answer is dropped. Commands wait meanwhile, and can be aborted. To be called from a
    /// thread that is no shard.
    ///
    /// # Errors
    /// [`HoldError`]; commands go on then.
    pub fn hold(&self, volume: &str, limit: Duration) -> Result<HeldVolume, HoldError> {
        let world = self.core.world();
        let found = world.volumes().find(|(_, served)| served.name == volume);
        let (slot, served) = found.ok_or(HoldError::Unknown)?;
        HeldVolume::new(self.core.member.fleet.clone(), (slot, served), limit)
    }

    /// The number of the server's first shard among those of all servers of the process.
    pub fn first_shard(&self) -> usize {
        self.core.member.first_shard()
    }

    /// The open volumes with their names, as they are served now.
    pub fn volumes(&self) -> Vec<(String, lunet_backends::Volume)> {
        let world = self.core.world();
        world.volumes().map(|(_, v)| (v.name.clone(), v.backend.clone())).collect()
    }

    /// The volumes whose write cache is switched off, by the configuration or by a client.
    pub fn written_through(&self) -> Vec<String> {
        let world = self.core.world();
        let through = world.volumes().filter(|(_, volume)| volume.face.writes_through());
        through.map(|(_, volume)| volume.name.clone()).collect()
    }

    /// Where the server listens now, with the real port numbers. Slot by slot.
    pub fn portals(&self) -> Vec<SocketAddr> {
        self.core.world().portals.iter().map(|(_, portal)| portal.address).collect()
    }

    /// For each of the configured portals, the slots by which a session names it: that of
    /// now, and those of portals that were at its address before and left sessions.
    pub fn slots_of(&self, portals: &[Portal]) -> Vec<Vec<usize>> {
        self.core.world().portals.homes(portals)
    }

    /// The address that is configured for the portal that listens at `real`; they differ if its port is 0.
    pub fn configured_portal(&self, real: SocketAddr) -> Option<SocketAddr> {
        self.core.world().portals.configured(real)
    }

    /// How each portal is served now.
    pub fn portal_report(&self) -> Vec<PortalStatus> {
        self.core.rdma.report(&self.core.world().portals)
    }

    /// Every session, shard by shard, but for those of a shard that does not answer in time.
    pub fn sessions(&self) -> Vec<F::Session> {
        self.report_sessions().0
    }

    /// Every session, shard by shard, for decisions that hang on nobody being left out.
    ///
    /// # Errors
    /// A shard does not answer in time.
    pub fn all_sessions(&self) -> Result<Vec<F::Session>, ApplyError> {
        match self.report_sessions() {
            (all, true) => Ok(all),
            (_, false) => Err(ApplyError::Stuck),
        }
    }

    /// Asks the sessions with these handles to log out, and ends those that do not within 3 s.
    ///
    /// # Errors
    /// A shard cannot be told.
    pub fn end_sessions(&self, handles: &[u16]) -> Result<(), ApplyError> {
        let handles: Arc<[u16]> = handles.into();
        let told = |mailbox: &&Mailbox<F>| mailbox.send(Mail::EndSessions(handles.clone())).is_ok();
        // Every shard that can be told is told.
        let all = self.core.mailboxes().iter().filter(|mailbox| !told(mailbox)).count() == 0;
        if all { Ok(()) } else { Err(ApplyError::Stuck) }
    }

    /// The sessions, and whether all shards have answered.
    fn report_sessions(&self) -> (Vec<F::Session>, bool) {
        let answers: Vec<Vec<F::Session>> = self.ask(Mail::Sessions);
        let whole = answers.len() == self.core.mailboxes().len();
        let mut all: Vec<F::Session> = answers.into_iter().flatten().collect();
        F::complete_sessions(&self.core, &mut all);
        (all, whole)
    }

    /// The shards that have not answered for long, by their numbers among those of the process.
    pub fn silent(&self) -> Vec<SilentShard> {
        let first = self.first_shard();
        let all = self.core.silent().into_iter();
        all.map(|(shard, silence)| SilentShard { shard: first + shard, silence }).collect()
    }

    /// The counts of all shards, added up.
    pub fn stats(&self) -> Stats<F::Counts> {
        self.sum_up(&self.ask(Mail::Stats), &[])
    }

    /// The same of this server and of another one that shares its volumes: the counts of volumes in the first answer
    /// are those of both.
    pub fn stats_with<G: Front>(&self, other: &Handle<G>) -> (Stats<F::Counts>, Stats<G::Counts>) {
        let theirs: Vec<ShardStats<G::Counts>> = other.ask(Mail::Stats);
        let parts: Vec<Part> = theirs.iter().flat_map(|shard| shard.volumes.clone()).collect();
        (self.sum_up(&self.ask(Mail::Stats), &parts), other.sum_up(&theirs, &[]))
    }

    fn sum_up(&self, shards: &[ShardStats<F::Counts>], others: &[Part]) -> Stats<F::Counts> {
        let core = &self.core;
        let world = core.world();
        let served = world.volumes();
        let served = served.map(|(_, v)| (v.name.clone(), v.caps.bytes(), v.health.faults()));
        let names: Vec<stats::Named> = served.collect();
        let (protocol, volumes) = stats::merge(shards, others, &names);
        let mut loads: Vec<_> = shards.iter().map(|shard| shard.load).collect();
        // Shards answer in any order.
        loads.sort_unstable_by_key(|load| load.shard);
        Stats {
            uptime_seconds: lunet_os::time::since(core.started).as_secs(),
            driver: self.driver,
            shards: core.mailboxes().len(),
            sessions: F::session_count(core),
            portals: core.rdma.report(&world.portals),
            loads,
            silent: self.silent(),
            protocol,
            volumes,
        }
    }

    /// One answer of each shard that answers in time.
    fn ask<T>(&self, mail: impl Fn(SyncSender<T>) -> Mail<F>) -> Vec<T> {
        let deadline = lunet_os::time::now() + REPORT_LIMIT;
        let mailboxes = self.core.mailboxes();
        let (sender, answers): (_, Receiver<T>) = sync_channel(mailboxes.len());
        let asked = mailboxes.iter().filter(|m| m.send(mail(sender.clone())).is_ok()).count();
        drop(sender);
        let left = || deadline.saturating_duration_since(lunet_os::time::now());
        (0..asked).map_while(|_| answers.recv_timeout(left()).ok()).collect()
    }
}

fn shard_thread<F: Front>(
    number: usize,
    core: Arc<Core<F>>,
    config: &RingConfig,
    (listeners, device_set): (Vec<(usize, TcpListener)>, Option<Arc<DeviceSet>>),
    ready: &SyncSender<io::Result<Standing<F>>>,
    (begin, ends): (&Receiver<Begin>, &SyncSender<bool>),
) {
    // In front of the first memory that the thread takes.
    place_thread(&core.limits.processors, number);
    let ring = match Ring::new(config) {
        Ok(ring) => ring,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let (mailbox, mail) = Mailbox::new(ring.waker());
    let (notes, driver) = (ring.notes().to_vec(), ring.driver());
    let mut shard = match Shard::<F>::new(number, core, ring, mail) {
        Ok(shard) => shard,
        Err(error) => {
            let _ = ready.send(Err(io::Error::other(error)));
            return;
        }
    };
    for (portal, listener) in listeners {
        shard.listen(portal, listener);
    }
    let rdma = device_set.map_or(Ok(()), |device_set| shard.open_rdma(&device_set));
    let _ = ready.send(Ok(Standing { mailbox, notes, driver, rdma }));
    let Ok(Begin { rdma, listeners }) = begin.recv() else {
        // Another shard did not start.
        return;
    };
    if !rdma {
        shard.close_rdma();
    }
    if let Some(listeners) = listeners {
        shard.listen_rdma(listeners);
    }
    lunet_os::role::enter(Role::Shard);
    let result = shard.run();
    if let Err(error) = &result {
        tracing::error!(shard = number, %error, "the event loop failed");
    }
    if matches!(result, Ok(true)) {
        shard.front.exec.check_ended();
    }
    // Before the event loop is let go of, which may take a moment.
    let _ = ends.send(matches!(result, Ok(true)));
    if matches!(result, Ok(false)) {
        // The kernel has memory of it, for storage that hangs: it goes with the process.
        return std::mem::forget(shard);
    }
    let arena = shard.front.exec.storage.ring.arena().clone();
    drop(shard);
    if result.is_ok() {
        let (free, total, reserved) =
            (arena.free_bytes(), arena.total_bytes(), arena.reserved_bytes());
        debug_assert_eq!((free, reserved), (total, 0), "buffers outlive their owners");
    }
}

/// Has the thread of a shard run where it is to run, and what it starts nearby, or anywhere. Best effort: it serves wherever it is.
fn place_thread(processors: &Processors, shard: usize) {
    let own = processors.of(shard);
    let bound = match processors.are_apart() {
        true => lunet_os::cpus::bind_alone(own),
        false => lunet_os::cpus::bind(own),
    };
    if let Err(error) = bound {
        tracing::warn!(shard, %error, "the event loop runs on other processors than it was to");
    }
}

/// Portals with their real port numbers, and the listeners of those for TCP with their slots.
type Listening = (Vec<Portal>, Vec<(usize, TcpListener)>);

/// Listens on every portal that is for TCP.
fn listen_all(wanted: &[Portal]) -> Result<Listening, StartError> {
    let (mut portals, mut listeners) = (wanted.to_vec(), Vec::new());
    for (slot, portal) in portals.iter_mut().enumerate().filter(|(_, it)| it.transports.tcp()) {
        let (listener, address) = listen(portal.address)
            .map_err(|source| StartError::not_listening(portal.address, source))?;
        portal.address = address;
        listeners.push((slot, listener));
    }
    Ok((portals, listeners))
}

/// Says whether a server could listen on these portals, as far as they are for TCP. Stops at once. May block for a moment.
///
/// # Errors
/// What its start would fail with.
pub fn foresee_start(portals: &[Portal]) -> Result<(), StartError> {
    listen_all(portals).map(drop)
}

/// Listens for connections over RDMA, if every shard can serve them.
fn listen_rdma<F: Front>(
    device_set: Option<&DeviceSet>,
    core: &Core<F>,
    shards: &[Standing<F>],
) -> Result<Option<Listeners>, StartError> {
    let Some(device_set) = device_set else { return Ok(None) };
    if let Some(error) = shards.iter().find_map(|shard| shard.rdma.as_ref().err()) {
        device_set.give_up(&core.first_portals, error, &core.rdma)?;
        return Ok(None);
    }
    Ok(device_set.listen(&core.first_portals, &core.rdma)?)
}

/// Listens at an address; that, with the real port number. May block for a moment.
///
/// # Errors
/// It is in use, or cannot be listened on for another reason.
pub(crate) fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    if let Some(listener) = inherited::find(address) {
        return Ok((listener, address));
    }
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    // So that a restart does not wait for connections of the last run to time out.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // An IPv4 portal on the same port is a portal of its own.
        socket.set_only_v6(true)?;
    }
    let in_use = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let bind = || socket.bind(&address.into()).and_then(|()| socket.listen(1024));
    lunet_backends::retry::while_in_use(bind, in_use)?;
    let listener = TcpListener::from(socket);
    inherited::remember(&listener);
    let address = listener.local_addr()?;
    Ok((listener, address))
}
