//! The sessions of the whole server: who may join, and who is replaced.
//!
//! Touched at login and at the end of a session only, so a lock is enough.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// What makes two sessions the same I_T nexus (RFC 7143 section 4.4.3.1): the initiator's name
/// and ISID, and the target portal group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nexus {
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's session identifier.
    pub isid: [u8; 6],
    /// Index of the target; `None` is a discovery session.
    pub target: Option<usize>,
    /// The portal group that it came in by.
    pub portal_group: u16,
    /// Sets discovery sessions apart: each is its own. 0 for all others.
    pub discovery: u64,
}

/// Where a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The shard.
    pub shard: usize,
    /// The connection's number, unique in the server's life.
    pub connection: u64,
}

/// The answer to a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Welcome, with this target session identifying handle.
    Granted(u16),
    /// The nexus has a session already, which must end first (RFC 7143 section 6.3.5).
    Replaces(Place),
    /// No room for another session.
    Full,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<Nexus, (u16, Place)>,
    handles: std::collections::HashSet<u16>,
    next: u16,
}

/// All sessions of a server.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
    max: usize,
}

impl Registry {
    /// A registry for at most `max` sessions (at most 65,535, the number of handles).
    pub fn new(max: usize) -> Self {
        Self { inner: Mutex::default(), max: max.min(usize::from(u16::MAX)) }
    }

    /// Asks for a place for a session.
    pub fn admit(&self, nexus: &Nexus, place: Place) -> Admission {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, old)) = inner.sessions.get(nexus) {
            return Admission::Replaces(*old);
        }
        if inner.sessions.len() >= self.max {
            return Admission::Full;
        }
        let handle = inner.free_handle();
        inner.handles.insert(handle);
        inner.sessions.insert(nexus.clone(), (handle, place));
        Admission::Granted(handle)
    }

    /// A session has ended. Nothing happens if the nexus belongs to another connection by now.
    pub fn remove(&self, nexus: &Nexus, place: Place) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((handle, _)) = inner.sessions.get(nexus).filter(|(_, p)| *p == place).copied()
        else {
            return;
        };
        inner.sessions.remove(nexus);
        inner.handles.remove(&handle);
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).sessions.len()
    }
}

impl Inner {
    /// The next handle that no session has. There is one: `max` keeps the number below 65,535.
    fn free_handle(&mut self) -> u16 {
        loop {
            self.next = self.next.wrapping_add(1);
            if self.next != 0 && !self.handles.contains(&self.next) {
                return self.next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nexus(isid: u8) -> Nexus {
        Nexus {
            initiator: "iqn.x:a".into(),
            isid: [isid; 6],
            target: Some(0),
            portal_group: 1,
            discovery: 0,
        }
    }

    const HERE: Place = Place { shard: 0, connection: 1 };
    const THERE: Place = Place { shard: 1, connection: 2 };

    #[test]
    fn the_same_nexus_is_replaced_and_others_are_not() {
        let registry = Registry::new(8);
        assert_eq!(registry.admit(&nexus(1), HERE), Admission::Granted(1));
        assert_eq!(registry.admit(&nexus(2), THERE), Admission::Granted(2));
        assert_eq!(registry.admit(&nexus(1), THERE), Admission::Replaces(HERE));
        registry.remove(&nexus(1), THERE);
        assert_eq!(registry.len(), 2, "only its own connection ends a session");
        registry.remove(&nexus(1), HERE);
        assert_eq!(registry.admit(&nexus(1), THERE), Admission::Granted(3));
    }

    #[test]
    fn the_limit_holds_and_handles_are_never_shared() {
        let registry = Registry::new(2);
        assert!(matches!(registry.admit(&nexus(1), HERE), Admission::Granted(_)));
        assert!(matches!(registry.admit(&nexus(2), HERE), Admission::Granted(_)));
        assert_eq!(registry.admit(&nexus(3), HERE), Admission::Full);
    }
}
