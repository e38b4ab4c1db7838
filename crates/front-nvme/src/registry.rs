//! The controllers of the whole server: who may connect, which queues each has, and what happens when one ends.
//!
//! Touched when a queue begins or ends only, so a lock is enough. What queues of one controller share while they work is
//! in its [`Member`], in atomics.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lunet_nvme::command::Completion;
use lunet_nvme::controller::{Controller, Kind};
use lunet_nvme::fabrics::{Connect, MAX_CNTLID, Transport};
use lunet_nvme::status::Status;
use lunet_os::sync::{Mutex, MutexGuard};
use lunet_reservations::Registrant;
use lunet_server::places::{Applicant, ConnRef, Quota};
use lunet_volume::ClientLimits;

/// How old a sign of life may be before another one is written where all queues of the controller see it.
const STALE: Duration = Duration::from_millis(100);

/// Losses that wait for the shard of a controller; more are not told, as none is when the log is full.
pub const LOSSES: usize = 64;

/// Queues that an address may have without authentication, however few places are left.
const ALWAYS: usize = 16;

/// A host, as its Connect names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// Its NQN.
    pub nqn: String,
    /// HOSTID.
    pub id: [u8; 16],
}

impl HostName {
    /// The host that asks for a queue.
    pub fn of(connect: &Connect) -> Self {
        Self { nqn: connect.hostnqn.clone(), id: connect.host_id }
    }
}

/// A controller, as its queues share it.
#[derive(Debug)]
pub struct Member {
    /// Its identifier.
    pub cntlid: u16,
    /// What it is for.
    pub kind: Kind,
    /// The slot of its subsystem; `None` for discovery.
    pub subsystem: Option<usize>,
    /// It is the relay of another gateway, and none that hosts know.
    pub is_relay: bool,
    /// What carries its queues.
    pub transport: Transport,
    /// Data of a command capsule on its I/O queues, in bytes.
    pub capsule_data: u32,
    /// Whose it is.
    pub host: HostName,
    /// The same, as reservations know it.
    pub registrant: Registrant,
    /// What its host and it are limited to.
    pub limits: Arc<ClientLimits>,
    /// Its admin queue.
    pub admin: ConnRef,
    /// Who pays for the places of its queues.
    applicant: Applicant,
    /// When the host gave a sign of life, in milliseconds since the server's start.
    heard: AtomicU64,
    /// I/O queues can be made.
    ready: AtomicBool,
    /// They take no commands.
    shut_down: AtomicBool,
    /// The largest identifier of an I/O queue.
    queues: AtomicU16,
    /// The identity of the key of TLS by which its admin queue has come, if an authentication has made it.
    pub key: Option<Box<str>>,
    /// The host has made such a key on its admin queue, and has to come back by it.
    comes_back: AtomicBool,
    /// Losses that the admin queue's shard has been told of and has not heard.
    losses: AtomicUsize,
}

impl Member {
    /// A queue has heard of the host at this time. `told` is when that was written the last time by this queue: it is
    /// not written with each command.
    pub fn heard(&self, now: Duration, told: &mut Duration) {
        if now >= *told + STALE {
            *told = now;
            self.heard.fetch_max(now.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// When any queue has heard of the host.
    pub fn last_heard(&self) -> Duration {
        Duration::from_millis(self.heard.load(Ordering::Relaxed))
    }

    /// The host has lost something. True if its admin queue can be told: it keeps no more than so many.
    pub fn may_tell_loss(&self) -> bool {
        let more = |told: usize| (told < LOSSES).then_some(told + 1);
        self.losses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// The admin queue was told of one.
    pub fn loss_told(&self) {
        self.losses.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if the controller is shut down, or is about to be: I/O queues take no commands until it was reset.
    pub fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// The host has made a key of TLS here: this controller gets no I/O queues.
    pub fn will_come_back(&self) {
        self.comes_back.store(true, Ordering::Release);
    }

    /// Whether an I/O queue that has come by this key that an authentication has made, or by none, may be the
    /// controller's.
    pub fn takes_queue_by(&self, key: Option<&str>) -> bool {
        self.key.as_deref() == key && !self.comes_back.load(Ordering::Acquire)
    }

    /// The state of the controller has changed: what counts for I/O queues.
    pub fn publish(&self, controller: &Controller) {
        self.queues.store(controller.queues(), Ordering::Relaxed);
        self.shut_down.store(controller.is_shut_down(), Ordering::Release);
        self.ready.store(controller.is_ready(), Ordering::Release);
    }
}

/// A controller with its queues.
#[derive(Debug)]
struct Entry {
    member: Arc<Member>,
    /// The admin queue has ended; the others are about to.
    leaving: bool,
    /// I/O queues.
    queues: BTreeMap<u16, ConnRef>,
}

#[derive(Debug)]
struct Inner {
    controllers: BTreeMap<u16, Entry>,
    /// The identifier that was given last.
    last: u16,
    /// I/O controllers.
    serving: usize,
    /// Queues of I/O controllers.
    places: Quota,
    /// Connects that wait until the former controllers of their host have ended.
    waiting: Vec<(HostName, ConnRef)>,
}

/// The answer to a Connect of an admin queue.
pub enum Admission {
    /// Welcome.
    Granted(Arc<Member>),
    /// A former controller of this host is about to end, and may still write: the connection is told when to ask again.
    Wait,
    /// No room.
    Full,
}

/// What is to be done because a queue has ended.
#[derive(Debug, Default)]
pub struct Left {
    /// Queues of the same controller, which end with its admin queue.
    pub end: Vec<ConnRef>,
    /// Connects that can ask again.
    pub retry: Vec<ConnRef>,
    /// The admin queue of a controller that has no I/O queues any more.
    pub emptied: Option<ConnRef>,
}

/// What a controller is asked for.
pub struct Wish<'a> {
    /// What it is for.
    pub kind: Kind,
    /// The slot of the subsystem.
    pub subsystem: Option<usize>,
    /// The Connect.
    pub connect: &'a Connect,
    /// The connection.
    pub admin: ConnRef,
    /// Where it comes from.
    pub applicant: Applicant,
    /// The identity of the key of TLS by which it comes, if an authentication has made it.
    pub key: Option<&'a str>,
    /// What carries the connection.
    pub transport: Transport,
    /// Data of a command capsule that is offered, in bytes.
    pub capsule_data: u32,
    /// The identifiers that it may get.
    pub identifiers: RangeInclusive<u16>,
    /// The limits that would be its own.
    pub limits: Arc<ClientLimits>,
}

/// All controllers of a server.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
    most: usize,
}

impl Registry {
    /// A registry for so many I/O controllers, with so many queues altogether.
    pub fn new(controllers: usize, queues: usize) -> Self {
        // Anywhere: a Linux host that has not come back since a restart still has its old one, and would refuse another
        // controller with that. Without random numbers it is the first one.
        let mut first = [0; 2];
        let _ = lunet_os::random::fill(&mut first);
        let inner = Inner {
            controllers: BTreeMap::new(),
            last: u16::from_le_bytes(first) % MAX_CNTLID,
            serving: 0,
            places: Quota::new(queues),
            waiting: Vec::new(),
        };
        // As many identifiers again for discovery controllers, which somebody else counts.
        let most = controllers.min(usize::from(MAX_CNTLID) / 2);
        Self { inner: Mutex::new(inner), most }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a controller.
    pub fn admit(&self, wish: &Wish<'_>, now: Duration) -> Admission {
        let mut inner = self.lock();
        let host = HostName::of(wish.connect);
        let serves = wish.kind == Kind::Io;
        if serves && inner.leaves(&host) {
            inner.waiting.push((host, wish.admin));
            return Admission::Wait;
        }
        if serves && (inner.serving >= self.most || !inner.places.take(wish.applicant, ALWAYS)) {
            return Admission::Full;
        }
        let Some(cntlid) = inner.free_identifier(&wish.identifiers) else { return Admission::Full };
        inner.serving += usize::from(serves);
        let member = Arc::new(Member {
            cntlid,
            kind: wish.kind,
            subsystem: wish.subsystem,
            is_relay: wish.connect.through.is_some(),
            transport: wish.transport,
            capsule_data: wish.capsule_data,
            registrant: Registrant::host(host.id, &host.nqn),
            host,
            limits: wish.limits.clone(),
            admin: wish.admin,
            applicant: wish.applicant,
            heard: AtomicU64::new(now.as_millis() as u64),
            ready: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            queues: AtomicU16::new(0),
            key: wish.key.map(Into::into),
            comes_back: AtomicBool::new(false),
            losses: AtomicUsize::new(0),
        });
        let entry = Entry { member: member.clone(), leaving: false, queues: BTreeMap::new() };
        inner.controllers.insert(cntlid, entry);
        Admission::Granted(member)
    }

    /// The controller with this identifier.
    pub fn controller(&self, cntlid: u16) -> Option<Arc<Member>> {
        self.lock().controllers.get(&cntlid).map(|entry| entry.member.clone())
    }

    /// Asks for an I/O queue of a controller of the subsystem in a slot. All queues of a controller are over the same
    /// transport.
    ///
    /// # Errors
    /// What the Connect is refused with.
    pub fn join(
        &self,
        connect: &Connect,
        subsystem: usize,
        (queue, transport): (ConnRef, Transport),
    ) -> Result<Arc<Member>, Completion> {
        let mut inner = self.lock();
        let Inner { controllers, places, .. } = &mut *inner;
        let entry = controllers.get_mut(&connect.cntlid).filter(|entry| !entry.leaving);
        let Some(Entry { member, queues, .. }) = entry else {
            return Err(Connect::WRONG_CONTROLLER);
        };
        if member.subsystem != Some(subsystem) || member.transport != transport {
            return Err(Connect::WRONG_CONTROLLER);
        }
        // HOSTID should be that of the admin queue. There are hosts that make up another one for each queue, which
        // other controllers let them; that of the admin queue counts.
        if member.host.nqn != connect.hostnqn {
            return Err(Connect::WRONG_HOST_NQN);
        }
        if !member.ready.load(Ordering::Acquire) {
            return Err(Status::SEQUENCE.no_retry().into());
        }
        let taken = queues.contains_key(&connect.qid);
        if taken || connect.qid > member.queues.load(Ordering::Relaxed) {
            return Err(Connect::WRONG_QUEUE);
        }
        if !places.take(member.applicant, ALWAYS) {
            return Err(Status::CONNECT_BUSY.into());
        }
        queues.insert(connect.qid, queue);
        Ok(member.clone())
    }

    /// A queue has ended, and has no commands any more.
    pub fn leave(&self, member: &Member, qid: u16) -> Left {
        let mut inner = self.lock();
        if member.kind == Kind::Io {
            inner.places.give_back(member.applicant);
        }
        let mut left = Left::default();
        let Some(entry) = inner.controllers.get_mut(&member.cntlid) else { return left };
        if qid == 0 {
            entry.leaving = true;
            left.end = entry.queues.values().copied().collect();
        } else {
            entry.queues.remove(&qid);
        }
        let (leaving, empty) = (entry.leaving, entry.queues.is_empty());
        if !leaving && empty {
            left.emptied = Some(member.admin);
        }
        if leaving && empty {
            inner.controllers.remove(&member.cntlid);
            inner.serving -= usize::from(member.kind == Kind::Io);
            if !inner.leaves(&member.host) {
                let of_host = |waits: &(HostName, ConnRef)| waits.0 == member.host;
                let (retry, others) =
                    std::mem::take(&mut inner.waiting).into_iter().partition(of_host);
                inner.waiting = others;
                left.retry = Vec::into_iter(retry).map(|(_, conn)| conn).collect();
            }
        }
        left
    }

    /// A connection that may have waited has ended.
    pub fn stop_waiting(&self, connection: u64) {
        self.lock().waiting.retain(|(_, waits)| waits.connection != connection);
    }

    /// The I/O queues of a controller, ascending.
    pub fn queues(&self, cntlid: u16) -> Vec<(u16, ConnRef)> {
        let inner = self.lock();
        let queues = inner.controllers.get(&cntlid).into_iter().flat_map(|entry| &entry.queues);
        queues.map(|(qid, queue)| (*qid, *queue)).collect()
    }

    /// The controllers of the subsystem in a slot, ascending.
    pub fn of_subsystem(&self, subsystem: usize) -> Vec<u16> {
        let inner = self.lock();
        let of = inner
            .controllers
            .values()
            .filter(|entry| !entry.member.is_relay && entry.member.subsystem == Some(subsystem));
        of.map(|entry| entry.member.cntlid).collect()
    }

    /// This host's I/O controllers.
    pub fn of_host(&self, host: &Registrant) -> Vec<Arc<Member>> {
        let inner = self.lock();
        let of = inner.controllers.values().filter(|entry| {
            let serves = !entry.leaving && entry.member.kind == Kind::Io;
            serves && !entry.member.is_relay && entry.member.registrant == *host
        });
        of.map(|entry| entry.member.clone()).collect()
    }

    /// How many controllers there are.
    pub fn len(&self) -> usize {
        self.lock().controllers.len()
    }
}

impl Inner {
    /// True if an I/O controller of this host is about to end.
    fn leaves(&self, host: &HostName) -> bool {
        let mut all = self.controllers.values();
        all.any(|entry| {
            entry.leaving && entry.member.kind == Kind::Io && entry.member.host == *host
        })
    }

    /// The next identifier that no controller has: one that has ended has it for as long as can be.
    fn free_identifier(&mut self, among: &RangeInclusive<u16>) -> Option<u16> {
        let count = among.end() - among.start() + 1;
        for _ in 0..count {
            self.last = self.last % MAX_CNTLID + 1;
            // All of them, if these are all that there are.
            let found = among.start() + (self.last - 1) % count;
            if !self.controllers.contains_key(&found) {
                return Some(found);
            }
        }
        // Where the count begins again, some were passed over.
        among.clone().find(|found| !self.controllers.contains_key(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_server::network::Network;
    use lunet_volume::Clients;
    use std::net::{IpAddr, Ipv4Addr};

    fn connect(host: u8, qid: u16, cntlid: u16) -> Connect {
        Connect {
            qid,
            sqsize: 31,
            no_sq_flow: false,
            kato: Duration::ZERO,
            host_id: [host; 16],
            cntlid,
            subnqn: "nqn.2026-11.org.lunet:s".into(),
            hostnqn: format!("nqn.2026-11.org.lunet:host{host}"),
            through: None,
        }
    }

    const TCP: Transport = Transport::Tcp;

    fn at(connection: u64) -> ConnRef {
        ConnRef { shard: 0, connection }
    }

    fn admit(registry: &Registry, host: u8, admin: u64) -> Admission {
        let client = Network::host(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let applicant = Applicant { client, proven: true };
        let connect = &connect(host, 0, 0xffff);
        let wish = Wish {
            kind: Kind::Io,
            subsystem: Some(3),
            connect,
            admin: at(admin),
            applicant,
            key: None,
            transport: TCP,
            capsule_data: 8192,
            identifiers: 1..=MAX_CNTLID,
            limits: Clients::default().enter(&connect.hostnqn),
        };
        registry.admit(&wish, Duration::ZERO)
    }

    fn granted(registry: &Registry, host: u8, admin: u64) -> Arc<Member> {
        match admit(registry, host, admin) {
            Admission::Granted(member) => member,
            _ => panic!("no controller"),
        }
    }

    fn make_ready(member: &Member, queues: u16) {
        member.queues.store(queues, Ordering::Relaxed);
        member.ready.store(true, Ordering::Release);
    }

    #[test]
    fn a_queue_belongs_to_a_controller_of_its_host_that_is_ready() {
        let registry = Registry::new(8, 64);
        let member = granted(&registry, 1, 10);
        let join = |host, qid, subsystem, conn| {
            registry.join(&connect(host, qid, member.cntlid), subsystem, (at(conn), TCP)).map(drop)
        };
        assert_eq!(join(1, 1, 3, 11), Err(Status::SEQUENCE.no_retry().into()));
        make_ready(&member, 2);
        assert_eq!(join(2, 1, 3, 11), Err(Connect::WRONG_HOST_NQN));
        assert_eq!(join(1, 1, 4, 11), Err(Connect::WRONG_CONTROLLER));
        assert_eq!(join(1, 3, 3, 11), Err(Connect::WRONG_QUEUE));
        assert_eq!((join(1, 1, 3, 11), join(1, 1, 3, 12)), (Ok(()), Err(Connect::WRONG_QUEUE)));
        let other = (at(13), Transport::Rdma);
        let mixed = registry.join(&connect(1, 2, member.cntlid), 3, other).map(drop);
        assert_eq!(mixed, Err(Connect::WRONG_CONTROLLER), "a controller has one transport");
        let left = registry.leave(&member, 1);
        assert_eq!((left.emptied, left.end), (Some(at(10)), vec![]));
    }

    #[test]
    fn a_host_waits_until_its_former_controller_has_ended() {
        let registry = Registry::new(8, 64);
        let member = granted(&registry, 1, 10);
        make_ready(&member, 2);
        registry.join(&connect(1, 1, member.cntlid), 3, (at(11), TCP)).expect("a queue");
        assert_eq!(registry.leave(&member, 0).end, [at(11)]);
        assert!(matches!(admit(&registry, 1, 12), Admission::Wait));
        assert!(matches!(admit(&registry, 2, 13), Admission::Granted(_)), "another host");
        let refused = registry.join(&connect(1, 2, member.cntlid), 3, (at(14), TCP)).map(drop);
        assert_eq!(refused, Err(Connect::WRONG_CONTROLLER));
        let listed = |cntlid| registry.of_subsystem(3).contains(&cntlid);
        assert!(listed(member.cntlid), "its host may look whether writes may still come");
        assert_eq!(registry.leave(&member, 1).retry, [at(12)]);
        assert!(!listed(member.cntlid));
        assert_ne!(granted(&registry, 1, 12).cntlid, member.cntlid);
    }

    #[test]
    fn controllers_and_queues_are_bounded() {
        let registry = Registry::new(2, 3);
        let (one, _two) = (granted(&registry, 1, 1), granted(&registry, 2, 2));
        assert!(matches!(admit(&registry, 3, 3), Admission::Full));
        make_ready(&one, 9);
        let join = |qid| registry.join(&connect(1, qid, one.cntlid), 3, (at(9), TCP)).map(drop);
        assert_eq!((join(1), join(2)), (Ok(()), Err(Status::CONNECT_BUSY.into())));
        registry.leave(&one, 1);
        assert_eq!(join(2), Ok(()));
    }
}
