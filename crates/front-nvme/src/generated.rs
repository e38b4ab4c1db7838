//! Keys of TLS that authentications have made (secure channel concatenation): which host may use which of them, for
//! what, and how long.
//!
//! A host authenticates on an admin queue in the clear, and comes back by TLS with the key that both ends have made. The
//! key is for one controller: the first admin queue that comes by it takes it, the I/O queues of that controller use it
//! too, and it ends with the controller. A host that has to come back authenticates again.
//!
//! Who makes keys has proved its secret, so they are charged to hosts of the configuration: each has [`UNUSED`] keys at
//! most that no controller has, and the others are as many as there are controllers. Touched when connections begin and
//! end only, so a lock is enough.

use std::sync::PoisonError;
use std::time::Duration;

use lunet_nvme::auth::Hash;
use lunet_nvme::auth::psk::{TlsKey, generated};
use lunet_os::sync::{Mutex, MutexGuard};
use zeroize::Zeroizing;

use crate::config::Host;

/// How long new connections may use a key.
const VALID: Duration = Duration::from_secs(3600);

/// Keys of a host for a subsystem that no controller has taken: with another one the oldest goes.
const UNUSED: usize = 8;

/// A key, and whose it is.
pub struct Made {
    /// The host, as it was configured when it proved itself: a key does not outlive a change of that.
    pub host: Host,
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The hash of the authentication.
    pub hash: Hash,
    /// The generated PSK.
    pub key: Zeroizing<Vec<u8>>,
}

impl Made {
    /// What TLS may have of it: the same identity for every derivation.
    fn keys(&self) -> Vec<TlsKey> {
        generated(self.hash, &self.key, &self.host.nqn, &self.subsystem)
    }
}

struct Entry {
    made: Made,
    identity: String,
    until: Duration,
    /// The connection of the admin queue that has taken it.
    taken: Option<u64>,
}

/// The keys of a server.
#[derive(Default)]
pub struct Generated {
    // The oldest first.
    entries: Mutex<Vec<Entry>>,
}

impl Generated {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key. False if TLS has no cipher suite for its hash.
    pub fn add(&self, made: Made, now: Duration) -> bool {
        let Some(identity) = made.keys().into_iter().next().map(|key| key.identity) else {
            return false;
        };
        let mut entries = self.lock();
        entries.retain(|entry| entry.taken.is_some() || entry.until > now);
        let unused = |entry: &Entry| {
            entry.taken.is_none()
                && entry.made.host.nqn == made.host.nqn
                && entry.made.subsystem == made.subsystem
        };
        if entries.iter().filter(|entry| unused(entry)).count() >= UNUSED {
            if let Some(oldest) = entries.iter().position(unused) {
                entries.remove(oldest);
            }
        }
        entries.push(Entry { made, identity, until: now + VALID, taken: None });
        true
    }

    /// The keys of an identity, of a host that is the same still.
    ///
    /// # Errors
    /// Why there are none: for the administrator's eyes.
    pub fn keys(
        &self,
        identity: &str,
        now: Duration,
        is_same: impl Fn(&Made) -> bool,
    ) -> Result<Vec<TlsKey>, &'static str> {
        let entries = self.lock();
        let found = entries.iter().find(|entry| entry.identity == identity);
        let entry = found.ok_or(
            "the key is one that an authentication made, and is not known: it ended with its controller, or lunet has \
             started again; the host has to authenticate for another one",
        )?;
        if entry.until <= now {
            return Err("the key is one that an authentication made more than an hour ago");
        }
        if !is_same(&entry.made) {
            return Err("the host's secrets are others than when it made the key");
        }
        Ok(entry.made.keys())
    }

    /// An admin queue that has come by a key takes it, with its connection's number. False if another one has it, or it
    /// has ended.
    pub fn take(&self, identity: &str, admin: u64) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.iter_mut().find(|entry| entry.identity == identity) else {
            return false;
        };
        *entry.taken.get_or_insert(admin) == admin
    }

    /// A connection that has come by a key has ended: if it was the admin queue that took it, so has the key.
    pub fn end(&self, identity: &str, connection: u64) {
        self.lock().retain(|entry| entry.identity != identity || entry.taken != Some(connection));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Concatenation;

    fn made(host: &str, subsystem: &str, key: u8) -> Made {
        Made {
            host: Host {
                nqn: host.into(),
                secret: None,
                controller_secret: None,
                tls: None,
                concatenation: Concatenation::Allowed,
            },
            subsystem: subsystem.into(),
            hash: Hash::Sha256,
            key: Zeroizing::new(vec![key; 32]),
        }
    }

    fn identity(key: u8) -> String {
        made("h", "s", key).keys()[0].identity.clone()
    }

    const NOW: Duration = Duration::from_secs(7);

    #[test]
    fn a_key_is_for_one_controller_and_ends_with_it() {
        let table = Generated::default();
        assert!(table.add(made("h", "s", 1), NOW));
        let keys = |identity: &str| table.keys(identity, NOW, |_| true).map(|keys| keys.len());
        assert_eq!(keys(&identity(1)), Ok(2));
        assert!(table.keys(&identity(1), NOW, |_| false).is_err());
        assert!(keys(&identity(2)).is_err());
        assert!(table.take(&identity(1), 10) && table.take(&identity(1), 10));
        assert!(!table.take(&identity(1), 11) && !table.take(&identity(2), 11));
        // Others that have come by it may go.
        table.end(&identity(1), 11);
        assert_eq!(keys(&identity(1)), Ok(2));
        table.end(&identity(1), 10);
        assert!(keys(&identity(1)).is_err() && !table.take(&identity(1), 12));
    }

    #[test]
    fn keys_are_valid_for_an_hour() {
        let table = Generated::default();
        assert!(table.add(made("h", "s", 1), NOW) && table.add(made("h", "s", 2), NOW));
        assert!(table.take(&identity(1), 10));
        let valid = |key, now| table.keys(&identity(key), now, |_| true).is_ok();
        let last = NOW + VALID - Duration::from_millis(1);
        assert!(valid(1, last) && valid(2, last));
        assert!(!valid(1, NOW + VALID) && !valid(2, NOW + VALID));
        // What no controller has is forgotten.
        assert!(table.add(made("h", "s", 3), NOW + VALID));
        assert_eq!(table.lock().len(), 2);
    }

    #[test]
    fn a_host_has_so_many_unused_keys_and_costs_others_none() {
        let table = Generated::default();
        assert!(table.add(made("h", "s", 0), NOW) && table.take(&identity(0), 5));
        assert!(table.add(made("other", "s", 1), NOW) && table.add(made("h", "other", 1), NOW));
        for key in 1..=UNUSED as u8 + 1 {
            assert!(table.add(made("h", "s", key), NOW));
        }
        assert_eq!(table.lock().len(), 3 + UNUSED);
        let known = |key| table.keys(&identity(key), NOW, |_| true).is_ok();
        assert!(known(0) && !known(1) && known(2));
        let mut longest = made("h", "s", 1);
        (longest.hash, longest.key) = (Hash::Sha512, Zeroizing::new(vec![1; 64]));
        assert!(!table.add(longest, NOW));
    }
}
