//! Bounds of what is passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is under way, of a session or of a group.
#[derive(Debug, Default)]
pub struct Load {
    commands: AtomicUsize,
    bytes: AtomicUsize,
}

/// Limits of a [`Load`]: commands and bytes.
pub type Limits = (usize, usize);

/// Limits of one session.
pub const OF_SESSION: Limits = (128, 64 << 20);
/// Limits of all sessions of a group.
const OF_GROUP: Limits = (4096, 512 << 20);

impl Load {
    fn add(&self, bytes: usize, (commands, most): Limits) -> bool {
        let count = self.commands.fetch_add(1, Ordering::Relaxed);
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = count < commands && total + bytes <= most;
        if !fits {
            self.take(bytes);
        }
        fits
    }

    fn take(&self, bytes: usize) {
        self.commands.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A command's part of what is under way.
#[derive(Debug)]
pub struct Charge {
    loads: [Arc<Load>; 2],
    bytes: usize,
}

/// Who has too much under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The session.
    Session,
    /// The group.
    Group,
}

impl Charge {
    /// One command with so much data, of a session and its group.
    ///
    /// # Errors
    /// One of them has too much under way.
    pub fn new(session: &Arc<Load>, group: &Arc<Load>, bytes: usize) -> Result<Self, Full> {
        if !session.add(bytes, OF_SESSION) {
            return Err(Full::Session);
        }
        if !group.add(bytes, OF_GROUP) {
            session.take(bytes);
            return Err(Full::Group);
        }
        Ok(Self { loads: [session.clone(), group.clone()], bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.loads.iter().for_each(|load| load.take(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_bounded_and_given_back() {
        let (session, group) = (Arc::default(), Arc::default());
        let all: Vec<_> = (0..OF_SESSION.0).map(|_| Charge::new(&session, &group, 1)).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(Charge::new(&session, &group, 1).err(), Some(Full::Session));
        drop(all);
        let half = OF_SESSION.1 / 2 + 1;
        let one = Charge::new(&session, &group, half).expect("there is room");
        assert_eq!(Charge::new(&session, &group, half).err(), Some(Full::Session));
        drop(one);
        assert!(Charge::new(&session, &group, half).is_ok());
        let many: Vec<_> = (0..OF_GROUP.1 / OF_SESSION.1)
            .map(|_| Charge::new(&Arc::default(), &group, OF_SESSION.1))
            .collect();
        assert!(many.iter().all(Result::is_ok));
        assert_eq!(Charge::new(&Arc::default(), &group, 1).err(), Some(Full::Group));
    }
}
