//! The sessions of the whole server: who may join, and who is replaced.
//!
//! Touched at login and at the end of a session only, so a lock is enough.

use std::collections::HashMap;
use std::sync::PoisonError;

use lunet_os::sync::Mutex;
use lunet_ring::Shrink;
use lunet_server::places::{Applicant, ConnRef, Quota};

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

/// What a login asks for beside its nexus (RFC 7143 section 6.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// TSIH: 0 asks for a new session, which takes the place of one of the same nexus. Any other names
    /// the session that the connection belongs to.
    pub tsih: u16,
    /// Connection identifier.
    pub cid: u16,
    /// The login has been told [`Admission::Replaces`], and that session has ended.
    pub replaced: bool,
}

/// The answer to a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Welcome, with this target session identifying handle.
    Granted(u16),
    /// The nexus has a session already, which must end first: session reinstatement with TSIH 0, or
    /// connection reinstatement with the session's own TSIH and CID (RFC 7143 sections 6.3.5, 6.3.4).
    Replaces(ConnRef),
    /// The session has its one connection, under another CID: there is no MC/S.
    TooManyConnections,
    /// The nexus has no session with this TSIH.
    NoSession,
    /// No room for another session.
    Full,
}

/// Sessions that an address may have without authentication, however few places are left.
const ALWAYS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tsih: u16,
    cid: u16,
    conn_ref: ConnRef,
    applicant: Applicant,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<Nexus, Entry>,
    /// Places of those at targets; the others are discovery sessions.
    places: Quota,
    handles: std::collections::HashSet<u16>,
    next: u16,
    shrink: Shrink,
}

/// All sessions of a server.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
}

impl Registry {
    /// A registry for at most `max` sessions at targets, beside `discovery` sessions that somebody else
    /// counts (together at most 65,535, the number of handles).
    pub fn new(max: usize, discovery: usize) -> Self {
        // As many again: one that has lost its place to another ends a moment after that has begun.
        let most = usize::from(u16::MAX).saturating_sub(2 * discovery);
        let inner = Inner { places: Quota::new(max.min(most)), ..Inner::default() };
        Self { inner: Mutex::new(inner) }
    }

    /// Asks for a place for a session.
    pub fn admit(
        &self,
        nexus: &Nexus,
        conn_ref: ConnRef,
        applicant: Applicant,
        request: Request,
    ) -> Admission {
        let Request { tsih, cid, replaced } = request;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.sessions.get(nexus) {
            Some(old) if tsih == 0 || (tsih, cid) == (old.tsih, old.cid) => {
                return Admission::Replaces(old.conn_ref);
            }
            Some(old) if tsih == old.tsih => return Admission::TooManyConnections,
            Some(_) => return Admission::NoSession,
            None if tsih != 0 && (!replaced || inner.handles.contains(&tsih)) => {
                return Admission::NoSession;
            }
            None => {}
        }
        if nexus.target.is_some() && !inner.places.take(applicant, ALWAYS) {
            return Admission::Full;
        }
        // A connection that was reinstated belongs to the session that it was of.
        let tsih = if tsih == 0 { inner.free_handle() } else { tsih };
        inner.handles.insert(tsih);
        inner.sessions.insert(nexus.clone(), Entry { tsih, cid, conn_ref, applicant });
        Admission::Granted(tsih)
    }

    /// A session has ended. Nothing happens if the nexus belongs to another connection by now.
    pub fn remove(&self, nexus: &Nexus, conn_ref: ConnRef) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let found = inner.sessions.get(nexus).filter(|entry| entry.conn_ref == conn_ref).copied();
        let Some(Entry { tsih, applicant, .. }) = found else { return };
        inner.sessions.remove(nexus);
        inner.handles.remove(&tsih);
        let (places, left) = (inner.sessions.capacity(), inner.sessions.len());
        if inner.shrink.is_due(places, left) {
            inner.sessions.shrink_to(2 * left);
            inner.handles.shrink_to(2 * left);
        }
        if nexus.target.is_some() {
            inner.places.give_back(applicant);
        }
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
    use lunet_server::network::Network;

    fn nexus(isid: u8) -> Nexus {
        Nexus {
            initiator: "iqn.x:a".into(),
            isid: [isid; 6],
            target: Some(0),
            portal_group: 1,
            discovery: 0,
        }
    }

    fn from(host: u32) -> Applicant {
        Applicant { client: Network::host(std::net::IpAddr::V4(host.into())), proven: false }
    }

    const HERE: ConnRef = ConnRef { shard: 0, connection: 1 };
    const THERE: ConnRef = ConnRef { shard: 1, connection: 2 };

    const NEW: Request = Request { tsih: 0, cid: 0, replaced: false };

    #[test]
    fn the_same_nexus_is_replaced_and_others_are_not() {
        let registry = Registry::new(8, 0);
        assert_eq!(registry.admit(&nexus(1), HERE, from(1), NEW), Admission::Granted(1));
        assert_eq!(registry.admit(&nexus(2), THERE, from(1), NEW), Admission::Granted(2));
        assert_eq!(registry.admit(&nexus(1), THERE, from(1), NEW), Admission::Replaces(HERE));
        registry.remove(&nexus(1), THERE);
        assert_eq!(registry.len(), 2, "only its own connection ends a session");
        registry.remove(&nexus(1), HERE);
        assert_eq!(registry.admit(&nexus(1), THERE, from(1), NEW), Admission::Granted(3));
    }

    #[test]
    fn the_limit_holds_and_handles_are_never_shared() {
        let registry = Registry::new(2, 0);
        assert!(matches!(registry.admit(&nexus(1), HERE, from(1), NEW), Admission::Granted(_)));
        assert!(matches!(registry.admit(&nexus(2), HERE, from(1), NEW), Admission::Granted(_)));
        assert_eq!(registry.admit(&nexus(3), HERE, from(1), NEW), Admission::Full);
    }

    #[test]
    fn a_registry_of_thousands_is_small_again_when_they_have_gone() {
        let registry = Registry::new(10_000, 0);
        let proven = Applicant { proven: true, ..from(1) };
        let nexus = |n: u64| Nexus { initiator: format!("iqn.x:{n}"), ..nexus(1) };
        let conn_ref = |connection| ConnRef { shard: 0, connection };
        for n in 0..10_000 {
            let admission = registry.admit(&nexus(n), conn_ref(n), proven, NEW);
            assert!(matches!(admission, Admission::Granted(_)));
        }
        (0..9_990).for_each(|n| registry.remove(&nexus(n), conn_ref(n)));
        let inner = registry.inner.lock().expect("no thread has panicked");
        assert_eq!((inner.sessions.len(), inner.handles.len()), (10, 10));
        assert!(inner.sessions.capacity() < 1000 && inner.handles.capacity() < 1000);
    }

    #[test]
    fn who_proves_nothing_leaves_places_for_others() {
        let registry = Registry::new(1024, 32);
        let mut serial = 0;
        let mut take = |applicant: Applicant| {
            serial += 1;
            let nexus = Nexus { initiator: format!("iqn.x:{serial}"), ..nexus(1) };
            let conn_ref = ConnRef { shard: 0, connection: serial };
            matches!(registry.admit(&nexus, conn_ref, applicant, NEW), Admission::Granted(_))
        };
        let mut all =
            |applicant| std::iter::repeat_with(|| take(applicant)).take_while(|got| *got).count();
        // Half of what is left, then half of that.
        assert_eq!((all(from(1)), all(from(2)), all(from(3))), (448, 224, 112));
        assert_eq!((4..20).map(|host| all(from(host))).sum::<usize>(), 112);
        // An eighth is for those who have proved who they are.
        assert_eq!(all(Applicant { proven: true, ..from(1) }), 128);
        assert_eq!(registry.len(), 1024);
        // Discovery sessions are counted by somebody else.
        let discovery = Nexus { target: None, discovery: 7, ..nexus(1) };
        assert!(matches!(registry.admit(&discovery, HERE, from(1), NEW), Admission::Granted(_)));
        registry.remove(&discovery, HERE);
        assert_eq!(registry.len(), 1024);
    }

    /// The table of RFC 7143 section 6.3.1.
    #[test]
    fn a_handle_names_a_session_of_its_own_nexus() {
        let registry = Registry::new(8, 0);
        let admit =
            |nexus: &Nexus, conn_ref, request| registry.admit(nexus, conn_ref, from(1), request);
        let with = |tsih, cid| Request { tsih, cid, replaced: false };
        assert_eq!(admit(&nexus(1), HERE, with(1, 0)), Admission::NoSession);
        assert_eq!(admit(&nexus(1), HERE, with(0, 7)), Admission::Granted(1));
        assert_eq!(admit(&nexus(2), HERE, with(0, 7)), Admission::Granted(2));
        assert_eq!(admit(&nexus(1), THERE, with(1, 8)), Admission::TooManyConnections);
        assert_eq!(admit(&nexus(1), THERE, with(2, 7)), Admission::NoSession);
        assert_eq!(admit(&nexus(1), THERE, with(9, 7)), Admission::NoSession);
        assert_eq!(admit(&nexus(3), THERE, with(1, 7)), Admission::NoSession);
        assert_eq!(registry.len(), 2);
        // Reinstatement: the connection is another one, the session's handle stays.
        assert_eq!(admit(&nexus(1), THERE, with(1, 7)), Admission::Replaces(HERE));
        registry.remove(&nexus(1), HERE);
        let again = Request { replaced: true, ..with(1, 7) };
        assert_eq!(admit(&nexus(1), THERE, again), Admission::Granted(1));
        // Somebody else was quicker.
        assert_eq!(admit(&nexus(3), THERE, Request { tsih: 2, ..again }), Admission::NoSession);
    }
}
