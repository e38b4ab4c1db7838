//! Changes that are asked for again: the first answer is given again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::{HeaderMap, StatusCode};
use lunet_api::{Code, Error};
use sha2::{Digest, Sha256};

use crate::problem::Problem;
use crate::service::Identity;

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The most answers that are kept.
const MOST: usize = 1024;

/// The most of one account or token: nobody has those of others forgotten.
const MOST_OF_ONE: usize = 256;

type Hash = [u8; 32];

/// An answer, to be given again.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What an answer that has a secret in it carries: what is said instead when it is asked for again.
#[derive(Clone)]
pub(crate) struct Again(pub(crate) Problem);

struct Entry {
    owner: Identity,
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
    pub(crate) fn claim(
        &self,
        owner: Identity,
        key: &str,
        request: Hash,
    ) -> Result<Known<'_>, Problem> {
        let key = hash(&[key.as_bytes(), &[owner.0 as u8], owner.1.as_bytes()]);
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
        let own = all.values().filter(|entry| entry.owner == owner).count() >= MOST_OF_ONE;
        if own || all.len() >= MOST {
            let goes = |entry: &Entry| entry.given.is_some() && (!own || entry.owner == owner);
            let ended = all.iter().filter(|(_, entry)| goes(entry));
            let oldest = ended.min_by_key(|(_, entry)| entry.since).map(|(key, _)| *key);
            match oldest {
                Some(oldest) => drop(all.remove(&oldest)),
                None => return Err(Problem::busy()),
            }
        }
        all.insert(key, Entry { owner, request, since: now, given: None });
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
    use crate::service::Kind;

    fn given() -> Given {
        let (status, body) = (StatusCode::OK, Bytes::from_static(b"x"));
        Given { status, headers: HeaderMap::new(), body }
    }

    fn owner(kind: Kind, number: u32) -> Identity {
        (kind, number.to_string())
    }

    #[test]
    fn a_key_is_for_one_request_and_free_again_if_that_comes_to_nothing() {
        let once = Once::default();
        let ask = |request: &[u8]| once.claim(owner(Kind::Token, 1), "k", hash(&[request]));
        let Ok(Known::New(claim)) = ask(b"r") else { panic!("it is new") };
        assert!(ask(b"r").is_err_and(|problem| problem.passes()));
        drop(claim);
        let Ok(Known::New(claim)) = ask(b"r") else { panic!("it is free") };
        claim.keep(given());
        drop(claim);
        assert!(matches!(ask(b"r"), Ok(Known::Given(_))));
        let other = ask(b"s").err().expect("another request");
        assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
        for other in [owner(Kind::Session, 1), owner(Kind::Token, 2)] {
            let theirs = once.claim(other, "k", hash(&[b"r"]));
            assert!(matches!(theirs, Ok(Known::New(_))), "whoever else has it has another one");
        }
        assert_ne!(hash(&[b"a", b"bc"]), hash(&[b"ab", b"c"]));
    }

    #[test]
    fn the_table_is_bounded_and_so_is_the_part_of_each() {
        let once = Once::default();
        let ask = |of: u32, n: u32| {
            let claimed = once.claim(owner(Kind::Token, of), &n.to_string(), [0; 32]);
            let Ok(Known::New(claim)) = claimed else { panic!("it is new") };
            claim.keep(given());
        };
        ask(0, 0);
        (0..MOST as u32 + 9).for_each(|n| ask(1, n));
        assert_eq!(once.0.lock().unwrap().len(), MOST_OF_ONE + 1, "that of the other is there");
        for of in 2..9 {
            (0..MOST_OF_ONE as u32).for_each(|n| ask(of, n));
        }
        assert_eq!(once.0.lock().unwrap().len(), MOST);
    }
}
