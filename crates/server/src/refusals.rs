//! Clients that were refused lately, for whoever asks why one does not get in.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::time::Duration;

use lunet_os::sync::Mutex;

/// Refusals that are remembered.
pub const REMEMBERED: usize = 64;

/// Why a client was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When, since 1970; of several alike, the last one.
    pub time: Duration,
    /// The client's name as it was sent; empty if it had none yet.
    pub client: String,
    /// What it wanted to use, in the same way.
    pub export: String,
    /// The client's address.
    pub peer: IpAddr,
    /// Why, in a sentence.
    pub why: String,
}

/// The last refusals, the newest last.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<VecDeque<Refusal>>);

impl Refusals {
    /// Remembers one. Of several alike, one is remembered.
    pub fn add(&self, one: Refusal) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = |old: &Refusal| Refusal { time: one.time, ..old.clone() } == one;
        if let Some(at) = all.iter().position(alike) {
            all.remove(at);
        } else if all.len() >= REMEMBERED {
            all.pop_front();
        }
        all.push_back(one);
    }

    /// All of them, the newest first.
    pub fn list(&self) -> Vec<Refusal> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_refusals_are_remembered_and_those_alike_once() {
        let refusals = Refusals::default();
        let one = |time, client: u32| Refusal {
            time: Duration::from_secs(time),
            client: client.to_string(),
            export: "t".into(),
            peer: IpAddr::from([127, 0, 0, 1]),
            why: String::new(),
        };
        (0..100).for_each(|n| refusals.add(one(n, n as u32)));
        (100..200).for_each(|time| refusals.add(one(time, 50)));
        let all = refusals.list();
        assert_eq!(all.len(), REMEMBERED);
        assert_eq!(all[0], one(199, 50));
        assert_eq!(all.iter().filter(|one| one.client == "50").count(), 1);
    }
}
