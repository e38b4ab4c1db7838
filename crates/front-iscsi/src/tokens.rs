//! ROD tokens that POPULATE TOKEN has made (SPC-5 5.18.6), for the whole server.
//!
//! A token says what its data is, not where a copy of it lies (access upon reference): the data is what the
//! source holds when the token is used. Tokens do not survive the server, nor a change of the volume.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use lunet_os::sync::Mutex;
use lunet_scsi::copy::{Rod, RodToken};
use lunet_scsi::{Code, Sense};

use crate::world::ScsiVolume;

/// How many tokens there are at the most.
const MOST: usize = 4096;
/// How many one session may have made: its oldest goes when there would be more.
const EACH: usize = 1024;

/// All tokens.
#[derive(Default)]
pub struct Tokens(Mutex<Vec<Entry>>);

/// A token and what is known of it.
struct Entry {
    token: RodToken,
    /// Another size or content of the volume is another one of these.
    volume: Weak<ScsiVolume>,
    rod: Arc<Rod>,
    /// The connection that asked for it.
    maker: u64,
    inactivity: Duration,
    used: Duration,
}

impl Tokens {
    /// Takes in a token that the connection `maker` has asked for. It is void after `inactivity` without use.
    pub fn add(
        &self,
        token: RodToken,
        (volume, rod): (&Arc<ScsiVolume>, Rod),
        maker: u64,
        (inactivity, now): (Duration, Duration),
    ) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // They stand in the order of their making.
        let own = tokens.iter().filter(|entry| entry.maker == maker).count();
        let surplus = if own >= EACH {
            tokens.iter().position(|entry| entry.maker == maker)
        } else if tokens.len() >= MOST {
            let expired = tokens.iter().position(|entry| entry.expired(now));
            expired.or(Some(0))
        } else {
            None
        };
        if let Some(at) = surplus {
            tokens.remove(at);
        }
        let (volume, rod) = (Arc::downgrade(volume), Arc::new(rod));
        tokens.push(Entry { token, volume, rod, maker, inactivity, used: now });
    }

    /// What a token stands for. The time of its inactivity begins again.
    ///
    /// # Errors
    /// INVALID TOKEN OPERATION: it is unknown, has expired, or its volume has changed.
    pub fn find(
        &self,
        token: &RodToken,
        now: Duration,
    ) -> Result<(Arc<ScsiVolume>, Arc<Rod>), Sense> {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = tokens.iter_mut().find(|entry| entry.token == *token);
        let refused = |code| Sense::parameter(code, 16);
        let entry = entry.ok_or(refused(Code::TOKEN_UNKNOWN))?;
        if entry.expired(now) {
            return Err(refused(Code::TOKEN_EXPIRED));
        }
        entry.used = now;
        let volume = entry.volume.upgrade().ok_or(refused(Code::TOKEN_REVOKED))?;
        Ok((volume, entry.rod.clone()))
    }

    /// Makes a token void.
    pub fn delete(&self, token: &RodToken) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|entry| entry.token != *token);
    }
}

impl Entry {
    fn expired(&self, now: Duration) -> bool {
        now >= self.used.saturating_add(self.inactivity)
    }
}
