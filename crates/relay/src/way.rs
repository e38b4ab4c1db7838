//! The ways of hosts, for all shards of an owner.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use lunet_gateway::{Turn, Way};
use lunet_os::sync::Mutex;

/// By which gateway each host of a group comes.
#[derive(Default)]
pub struct Ways(Mutex<HashMap<String, Weak<Way>>>);

impl Ways {
    /// What any host has sent before is not executed any more, but for what was let in already.
    pub fn renew(&self) {
        let ways = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ways.values().filter_map(Weak::upgrade).for_each(|way| way.renew());
    }

    /// That of a host, by the name of its protocol.
    pub fn of(&self, host: &str) -> Arc<Way> {
        let mut ways = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ways.retain(|_, way| way.strong_count() > 0);
        let known = ways.entry(host.to_ascii_lowercase()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let way = Arc::default();
            *known = Arc::downgrade(&way);
            way
        })
    }
}

/// A change that goes by its host's way, until the storage has nothing of it any more.
pub struct Going {
    way: Arc<Way>,
    turn: Turn,
}

impl Going {
    /// One that was [let through](lunet_gateway::Passage::Go).
    pub fn new(way: Arc<Way>, turn: Turn) -> Self {
        Self { way, turn }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.way.ended(self.turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_way_for_as_long_as_somebody_knows_it() {
        let ways = Ways::default();
        let (one, same) = (ways.of("iqn.x:a"), ways.of("IQN.x:A"));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &ways.of("iqn.x:b")));
        let known = ways.0.lock().expect("nobody has failed").len();
        assert_eq!(known, 2);
        drop((one, same));
        ways.of("iqn.x:c");
        assert_eq!(ways.0.lock().expect("nobody has failed").len(), 1, "others are forgotten");
    }
}
