//! The limits of hosts and of sessions, which all servers of the process share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use lunet_os::sync::{Mutex, MutexGuard};

use crate::limit::{Limit, Rates};

/// What a session is limited to, and its host with all its sessions.
#[derive(Debug)]
pub struct ClientLimits {
    /// One of the two limits anything.
    set: AtomicBool,
    /// The host's name.
    name: String,
    host: Arc<Limit>,
    session: Limit,
}

impl ClientLimits {
    /// For an operation that begins; `None` if nothing is limited.
    #[inline]
    pub fn of_operation(self: &Arc<Self>) -> Option<Arc<Self>> {
        self.set.load(Ordering::Relaxed).then(|| self.clone())
    }

    /// That of the host, and that of the session.
    pub(crate) fn all(&self) -> [&Limit; 2] {
        [&self.host, &self.session]
    }

    fn set(&self, rates: ClientRates) {
        self.host.set(rates.host);
        self.session.set(rates.session);
        let set = self.host.is_set() || self.session.is_set();
        self.set.store(set, Ordering::Relaxed);
    }
}

/// What a host is limited to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientRates {
    /// With all its sessions, on all volumes.
    pub host: Rates,
    /// Each of its sessions.
    pub session: Rates,
}

/// Says by the name of a host what that is limited to.
pub type ClientRule = Box<dyn Fn(&str) -> ClientRates + Send + Sync>;

/// The hosts that have sessions, with their limits.
#[derive(Default)]
pub struct Clients(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Without one nobody is limited.
    rule: Option<ClientRule>,
    /// Those of sessions that have ended stand here until others come, or until they are forgotten.
    sessions: Vec<Weak<ClientLimits>>,
    hosts: BTreeMap<String, Weak<Limit>>,
    /// How many sessions there are when those that have ended are forgotten next.
    next: usize,
}

impl Known {
    fn rates(&self, name: &str) -> ClientRates {
        self.rule.as_ref().map_or_else(ClientRates::default, |rule| rule(name))
    }

    fn forget(&mut self) {
        self.sessions.retain(|session| session.strong_count() > 0);
        self.hosts.retain(|_, host| host.strong_count() > 0);
        self.next = 2 * self.sessions.len() + 16;
        self.sessions.shrink_to(self.next);
    }
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session of a host begins. Names are told apart without regard to case.
    pub fn enter(&self, name: &str) -> Arc<ClientLimits> {
        let name = name.to_ascii_lowercase();
        let mut known = self.lock();
        if known.sessions.len() >= known.next {
            known.forget();
        }
        let rates = known.rates(&name);
        let host = known.hosts.get(&name).and_then(Weak::upgrade).unwrap_or_default();
        known.hosts.insert(name.clone(), Arc::downgrade(&host));
        let (set, session) = (AtomicBool::new(false), Limit::default());
        let client = Arc::new(ClientLimits { set, name, host, session });
        client.set(rates);
        known.sessions.push(Arc::downgrade(&client));
        client
    }

    /// Forgets what is left of sessions that have ended, which is a little of each.
    pub fn forget(&self) {
        self.lock().forget();
    }

    /// What hosts are limited to from now on, those that have sessions included.
    pub fn limit(&self, rule: ClientRule) {
        let mut known = self.lock();
        known.rule = Some(rule);
        for session in known.sessions.iter().filter_map(Weak::upgrade) {
            session.set(known.rates(&session.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::*;
    use crate::limit::Cost;

    fn rates(iops: u64) -> Rates {
        Rates { iops: NonZeroU64::new(iops), ..Rates::default() }
    }

    #[test]
    fn sessions_of_a_host_share_its_limit_and_have_their_own() {
        let clients = Clients::default();
        let one = clients.enter("Host-A");
        assert!(one.of_operation().is_none(), "nothing is limited");
        clients.limit(Box::new(|name| match name {
            "host-a" => ClientRates { host: rates(1), session: rates(2) },
            _ => ClientRates::default(),
        }));
        assert!(one.of_operation().is_some(), "a session that was there before");
        let (other, stranger) = (clients.enter("host-a"), clients.enter("host-b"));
        assert!(stranger.of_operation().is_none());
        let now = Duration::from_secs(1);
        one.all().iter().for_each(|limit| limit.pay(Cost { operations: 100, bytes: 0 }, now));
        let waits = other.all().map(|limit| !limit.wait(now).is_zero());
        assert_eq!(waits, [true, false], "the host has to wait, the session has not");
        clients.limit(Box::new(|_| ClientRates::default()));
        assert!(other.of_operation().is_none() && other.all()[0].wait(now).is_zero());
    }

    #[test]
    fn sessions_that_have_ended_are_forgotten() {
        let clients = Clients::default();
        for n in 0..1000 {
            drop(clients.enter(&format!("host-{n}")));
        }
        {
            let known = clients.lock();
            assert!(known.sessions.len() <= 16 && known.hosts.len() <= 16);
        }
        // Those that end together are not counted before others come.
        let mut all: Vec<_> = (0..1000).map(|n| clients.enter(&format!("host-{n}"))).collect();
        let stays = all.swap_remove(7);
        drop(all);
        clients.forget();
        let known = clients.lock();
        assert_eq!((known.sessions.len(), known.hosts.len()), (1, 1));
        assert!(known.sessions.capacity() < 100 && known.hosts.contains_key(&stays.name));
    }
}
