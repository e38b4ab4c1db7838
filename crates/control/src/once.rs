//! Changes that are asked for again: the first answer is given again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use lunet_api::{Code, Error};
use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The most answers that are kept.
const MOST: usize = 1024;

type Hash = [u8; 32];

/// An answer, to be given again.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) media: &'static str,
}

struct Entry {
    request: Hash,
    since: Instant,
    /// `None` while the change is under way.
    given: Option<Given>,
}

/// The answers by their keys.
#[derive(Default)]
pub(crate) struct Once(Mutex<HashMap<Hash, Entry>>);

/// A key that is being used. If the change comes to no end, it is free again when this is dropped.
pub(crate) struct Claim<'o> {
    once: &'o Once,
    key: Hash,
}

/// What is known of a key.
pub(crate) enum Known<'o> {
    /// Nothing: the change is to be made.
    New(Claim<'o>),
    /// The answer.
    Given(Given),
}

/// A hash of some parts, which cannot be shifted into one another.
pub(crate) fn hash(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

impl Once {
    /// Looks at a key, and takes it if it is new.
    ///
    /// # Errors
    /// It was used for another request, or its first one is under way.
    pub(crate) fn claim(&self, key: Hash, request: Hash) -> Result<Known<'_>, Problem> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        all.retain(|_, entry| now.saturating_duration_since(entry.since) < KEPT);
        match all.get(&key) {
            Some(entry) if entry.request != request => {
                return Err(Error::new(
                    Code::Invalid,
                    "this Idempotency-Key was used for another request",
                )
                .fix("use a new key for each request")
                .into());
            }
            Some(Entry { given: Some(given), .. }) => return Ok(Known::Given(given.clone())),
            Some(_) => {
                let text = "the request with this Idempotency-Key is under way";
                return Err(Error::new(Code::ChangeUnderWay, text).fix("ask again").into());
            }
            None => {}
        }
        if all.len() >= MOST {
            let ended = all.iter().filter(|(_, entry)| entry.given.is_some());
            let oldest = ended.min_by_key(|(_, entry)| entry.since).map(|(key, _)| *key);
            match oldest {
                Some(oldest) => drop(all.remove(&oldest)),
                None => return Err(Problem::busy()),
            }
        }
        all.insert(key, Entry { request, since: now, given: None });
        Ok(Known::New(Claim { once: self, key }))
    }
}

impl Claim<'_> {
    /// The change has this answer.
    pub(crate) fn keep(&self, given: Given) {
        let mut all = self.once.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = all.get_mut(&self.key) {
            entry.given = Some(given);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut all = self.once.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&self.key).is_some_and(|entry| entry.given.is_none()) {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Given {
        Given { status: StatusCode::OK, body: Bytes::from_static(b"x"), media: "application/json" }
    }

    #[test]
    fn a_key_is_for_one_request_and_free_again_if_that_comes_to_nothing() {
        let once = Once::default();
        let (key, request) = (hash(&[b"k"]), hash(&[b"r"]));
        let Ok(Known::New(claim)) = once.claim(key, request) else { panic!("it is new") };
        assert!(once.claim(key, request).is_err_and(|problem| problem.passes()));
        drop(claim);
        let Ok(Known::New(claim)) = once.claim(key, request) else { panic!("it is free") };
        claim.keep(given());
        drop(claim);
        assert!(matches!(once.claim(key, request), Ok(Known::Given(_))));
        let other = once.claim(key, hash(&[b"s"])).err().expect("another request");
        assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_ne!(hash(&[b"a", b"bc"]), hash(&[b"ab", b"c"]));
    }

    #[test]
    fn the_table_is_bounded() {
        let once = Once::default();
        for n in 0..MOST as u32 + 9 {
            let Ok(Known::New(claim)) = once.claim(hash(&[&n.to_le_bytes()]), [0; 32]) else {
                panic!("it is new")
            };
            claim.keep(given());
        }
        assert_eq!(once.0.lock().unwrap().len(), MOST);
    }
}
