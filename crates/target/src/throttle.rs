//! Failed logins: who fails too often has to wait.
//!
//! A failure counts for the client's address and for what it tried to reach. So a client that guesses
//! slows itself down, there and only there: neither other addresses nor its own other targets notice.
//! Touched by logins only, so a lock is enough.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lunet_iscsi::target::{LoginIdentity, SessionType};

use crate::access::Network;
use crate::rationed::Level;

/// Failures that are free before the client has to wait.
const FREE: u32 = 5;
/// A failure is forgotten after this time.
const FORGET: Duration = Duration::from_secs(12);
/// Clients that are remembered. When more fail, those that have waited longest are forgotten.
const CLIENTS: usize = 4096;
/// What a client tried to reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Aim {
    /// A target that it may see.
    Target(String),
    /// A target that is not there, or that it may not see.
    Unknown,
    /// The list of targets.
    Discovery,
}

impl Aim {
    /// What a login is for, if that is there.
    pub fn of(identity: &LoginIdentity) -> Self {
        match &identity.target_name {
            Some(name) if identity.session_type == SessionType::Normal => {
                Self::Target(name.clone())
            }
            _ => Self::Discovery,
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    clients: HashMap<(Network, Aim), Level>,
}

/// The failed logins of a server.
#[derive(Debug, Default)]
pub struct Throttle {
    inner: Mutex<Inner>,
}

impl Throttle {
    /// True if the client may try now.
    pub fn allows(&self, client: IpAddr, aim: &Aim, now: Duration) -> bool {
        let key = (Network::of_client(client), aim.clone());
        let level = self.lock().clients.get(&key).copied().unwrap_or_default();
        level.has_room(now, FREE, FORGET)
    }

    /// The client tried, and failed.
    pub fn failed(&self, client: IpAddr, aim: Aim, now: Duration) {
        let mut inner = self.lock();
        let key = (Network::of_client(client), aim);
        if inner.clients.len() >= CLIENTS && !inner.clients.contains_key(&key) {
            inner.forget(now);
        }
        inner.clients.entry(key).or_default().raise(now, FREE, FORGET);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Makes room: for all who need not wait any more, else for half of them.
    fn forget(&mut self, now: Duration) {
        self.clients.retain(|_, level| level.0 > now);
        if self.clients.len() >= CLIENTS {
            let mut levels: Vec<Duration> = self.clients.values().map(|level| level.0).collect();
            let (_, middle, _) = levels.select_nth_unstable(CLIENTS / 2);
            let middle = *middle;
            self.clients.retain(|_, level| level.0 > middle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn target(name: &str) -> Aim {
        Aim::Target(name.into())
    }

    const START: Duration = Duration::from_secs(1000);

    #[test]
    fn who_fails_too_often_waits_and_nobody_else() {
        let throttle = Throttle::default();
        for _ in 0..FREE {
            assert!(throttle.allows(ip(1), &target("a"), START));
            throttle.failed(ip(1), target("a"), START);
        }
        assert!(!throttle.allows(ip(1), &target("a"), START));
        assert!(throttle.allows(ip(2), &target("a"), START), "a neighbour");
        assert!(throttle.allows(ip(1), &target("b"), START), "another target");
        assert!(throttle.allows(ip(1), &Aim::Discovery, START));
        let later = START + FORGET;
        assert!(!throttle.allows(ip(1), &target("a"), later - Duration::from_millis(1)));
        assert!(throttle.allows(ip(1), &target("a"), later));
        throttle.failed(ip(1), target("a"), later);
        assert!(!throttle.allows(ip(1), &target("a"), later), "one more, and it waits again");
        assert!(throttle.allows(ip(1), &target("a"), later + FORGET * FREE));
    }

    #[test]
    fn rare_failures_are_forgotten() {
        let throttle = Throttle::default();
        for n in 0..1000 {
            let now = START + FORGET * n;
            assert!(throttle.allows(ip(1), &Aim::Unknown, now));
            throttle.failed(ip(1), Aim::Unknown, now);
        }
    }

    #[test]
    fn the_table_has_a_bound_and_keeps_the_worst() {
        let throttle = Throttle::default();
        for _ in 0..50 {
            throttle.failed(ip(7), target("a"), START);
        }
        for n in 0..3 * CLIENTS as u32 {
            throttle.failed(ip(1000 + n), target("a"), START);
            assert!(throttle.lock().clients.len() <= CLIENTS);
        }
        assert!(!throttle.allows(ip(7), &target("a"), START));
        // Who has waited long enough goes first.
        throttle.failed(ip(8), target("a"), START + FORGET * 2);
        throttle.lock().forget(START + FORGET * 2);
        assert_eq!(throttle.lock().clients.len(), 2);
    }
}
