//! CHAP between both ends, with somebody in the middle who reorders, drops, repeats and changes what
//! they say to each other.

use std::sync::Arc;
use std::time::Duration;

use lunet_block::Random;
use lunet_iscsi::chap::{Account, Algorithm, Algorithms, Secret};
use lunet_iscsi::initiator::{self, Chap, ChapError, Error, Event, Mutual};
use lunet_iscsi::target::{self, AuthenticationError, CloseReason, Credentials};
use lunet_iscsi::text::{Writer, pairs};
use proptest::prelude::*;
use proptest::sample::select;

use crate::disk::TestSite;
use crate::settings::base_initiator;
use crate::wire::Outgoing;
use crate::world::{Initiator, InitiatorEvent};

const HEADER: usize = 48;

fn account(name: &str, secret: &str) -> Account {
    Account { name: name.into(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

/// What each end believes.
#[derive(Clone, Debug)]
struct Case {
    initiator: Chap,
    target: Credentials,
}

/// Both ends know the same secrets.
fn agreed(mutual: bool) -> Case {
    let target = account("storage", "the secret of the target");
    let alice = account("alice", "the secret of alice");
    let asks = Mutual { account: target.clone(), id: 0x42, challenge: (0..32).collect() };
    Case {
        initiator: Chap {
            account: alice.clone(),
            algorithms: Algorithms::ALL,
            mutual: mutual.then_some(asks),
        },
        target: Credentials {
            algorithms: Algorithms::ALL,
            accounts: vec![account("bob", "the secret of bob"), alice],
            mutual: Some(target),
        },
    }
}

/// What the one in the middle does to a text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meddling {
    Shuffle,
    Drop,
    Repeat,
    /// Changes a byte of a value.
    Change,
    /// Puts another value of the conversation, or a strange one, in the place of another.
    Replace,
    /// Adds a pair that was said before.
    Replay,
}

const STRANGE: &[&str] =
    &["", "0", "0x", "0b", "5", "8,5", "None", "CHAP", "CHAP,None", "0x00", "256", "Reject"];

struct Middle {
    rng: Random,
    meddling: Vec<Meddling>,
    heard: Vec<(String, String)>,
}

impl Middle {
    /// Takes one PDU apart, meddles with its text, and puts it together again.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = u32::from_be_bytes([0, rest[5], rest[6], rest[7]]) as usize;
            let (mut header, data) = (rest[..HEADER].to_vec(), &rest[HEADER..HEADER + len]);
            rest = &rest[HEADER + len.next_multiple_of(4)..];
            let read = pairs(data).map(|pair| pair.map(|(k, v)| (k.to_owned(), v.to_owned())));
            let mut text: Vec<(String, String)> = read.collect::<Result<_, _>>().expect("text");
            for meddling in self.meddling.clone() {
                self.meddle(meddling, &mut text);
            }
            self.heard.extend(text.iter().cloned());
            let mut writer = Writer::new();
            text.iter().for_each(|(key, value)| writer.pair(key, value));
            let mut data = writer.into_bytes();
            header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
            data.resize(data.len().next_multiple_of(4), 0);
            out.extend(header);
            out.extend(data);
        }
        out
    }

    fn meddle(&mut self, meddling: Meddling, text: &mut Vec<(String, String)>) {
        if text.is_empty() || (meddling != Meddling::Shuffle && self.rng.chance(60)) {
            return;
        }
        let which = self.rng.below(text.len() as u64) as usize;
        match meddling {
            Meddling::Shuffle => {
                for i in (1..text.len()).rev() {
                    text.swap(i, self.rng.below(i as u64 + 1) as usize);
                }
            }
            Meddling::Drop => drop(text.remove(which)),
            Meddling::Repeat => text.push(text[which].clone()),
            Meddling::Change => {
                let mut value = std::mem::take(&mut text[which].1).into_bytes();
                if !value.is_empty() {
                    let at = self.rng.below(value.len() as u64) as usize;
                    value[at] = b"0123456789abcdefxX,+/=-"[self.rng.below(23) as usize];
                }
                text[which].1 = String::from_utf8_lossy(&value).into_owned();
            }
            Meddling::Replace if self.rng.chance(50) || self.heard.is_empty() => {
                let strange = self.rng.below(STRANGE.len() as u64) as usize;
                text[which].1 = STRANGE[strange].to_owned();
            }
            Meddling::Replace => {
                let heard = self.rng.below(self.heard.len() as u64) as usize;
                text[which].1 = self.heard[heard].1.clone();
            }
            Meddling::Replay if !self.heard.is_empty() => {
                let heard = self.rng.below(self.heard.len() as u64) as usize;
                text.push(self.heard[heard].clone());
            }
            Meddling::Replay => {}
        }
    }
}

/// How a login ended.
#[derive(Debug)]
struct End {
    /// The target let the initiator in.
    let_in: bool,
    refused: Option<AuthenticationError>,
    closed: Option<CloseReason>,
    initiator: Option<InitiatorEvent>,
    heard: Vec<(String, String)>,
}

impl End {
    fn logged_in(&self) -> bool {
        matches!(self.initiator, Some(Event::LoggedIn(_)))
    }

    fn error(&self) -> Option<&Error> {
        match &self.initiator {
            Some(Event::Failed(error)) => Some(error),
            _ => None,
        }
    }

    fn heard(&self, key: &str) -> Vec<&str> {
        let all = self.heard.iter().filter(|(name, _)| name == key);
        all.map(|(_, value)| value.as_str()).collect()
    }
}

/// A login from its first to its last PDU.
fn login(case: &Case, meddling: Vec<Meddling>, seed: u64) -> End {
    let now = Duration::from_secs(1);
    let options = initiator::Options { chap: Some(case.initiator.clone()), ..base_initiator() };
    let mut initiator = Initiator::new(options);
    let mut target = target::Connection::<Vec<u8>>::new(target::Options::default(), now);
    let mut site = TestSite::new(Random::new(seed));
    site.credentials = Some(Arc::new(case.target.clone()));
    let mut middle = Middle { rng: Random::new(!seed), meddling, heard: Vec::new() };
    let (mut sent, mut events) = (Vec::new(), Vec::<InitiatorEvent>::new());
    let (mut answers, mut let_in, mut closed) = (Outgoing::default(), false, None);
    initiator.start(now, &mut sent);
    // Both ends are bounded in what they say, so this comes to an end.
    while !sent.is_empty() {
        let bytes = middle.pass(&std::mem::take(&mut sent));
        let mut raised = Vec::new();
        let site = &mut site;
        target
            .rx_bytes(&bytes, &mut target::Cx { now, site, tx: &mut answers, events: &mut raised });
        for event in raised {
            match event {
                target::Event::LoginFinished(_) => {
                    let_in = true;
                    target.admit(1, &mut answers);
                }
                target::Event::Close(reason) => closed = Some(reason),
                other => panic!("unexpected {other:?}"),
            }
        }
        let bytes = middle.pass(&answers.take());
        if !initiator.is_over() {
            let mut cx = initiator::Cx { now, tx: &mut sent, events: &mut events };
            initiator.rx_bytes(&bytes, &mut cx);
        }
    }
    let refused = target.authentication_error();
    let heard = middle.heard;
    End { let_in, refused, closed, initiator: events.pop(), heard }
}

fn meddling() -> impl Strategy<Value = Vec<Meddling>> {
    use Meddling::{Change, Drop, Repeat, Replace, Replay, Shuffle};
    proptest::collection::vec(select(vec![Shuffle, Drop, Repeat, Change, Replace, Replay]), 1..3)
}

fn algorithms() -> impl Strategy<Value = Algorithms> {
    proptest::sample::subsequence(Algorithm::ALL.to_vec(), 1..=4)
        .prop_map(|list| list.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_algorithm_offered_that_will_do_is_used_or_the_login_fails(
        ours in algorithms(), theirs in algorithms(), mutual: bool, seed: u64,
    ) {
        let mut case = agreed(mutual);
        case.initiator.algorithms = ours;
        case.target.algorithms = theirs;
        // In whatever order the keys of a text come.
        let end = login(&case, vec![Meddling::Shuffle], seed);
        // This initiator offers the strongest first.
        let first = Algorithm::ALL.into_iter().find(|a| ours.has(*a) && theirs.has(*a));
        prop_assert_eq!(end.logged_in(), first.is_some());
        prop_assert_eq!(end.let_in, first.is_some());
        match first {
            Some(algorithm) => {
                let code = algorithm.code().to_string();
                prop_assert_eq!(end.heard("CHAP_A"), [ours.offer(), code]);
                prop_assert_eq!(end.heard("CHAP_N").len(), 1 + usize::from(mutual));
            }
            None => prop_assert_eq!(end.refused, Some(AuthenticationError::Algorithm)),
        }
    }

    #[test]
    fn nobody_gets_in_without_the_secret(
        meddling in meddling(), mutual: bool, name in select(vec!["alice", "bob", "storage", "x"]),
        seed: u64,
    ) {
        let mut case = agreed(mutual);
        case.initiator.account = account(name, "the secret of mallory");
        let end = login(&case, meddling, seed);
        prop_assert!(!end.let_in && !end.logged_in(), "{end:?}");
    }

    #[test]
    fn no_false_target_is_taken_for_the_right_one(meddling in meddling(), seed: u64) {
        let mut case = agreed(true);
        case.target.mutual = Some(account("storage", "the secret of mallory"));
        let end = login(&case, meddling, seed);
        prop_assert!(!end.logged_in(), "{end:?}");
    }

    #[test]
    fn meddling_never_makes_the_ends_disagree_about_who_they_are(
        meddling in meddling(), mutual: bool, seed: u64,
    ) {
        let end = login(&agreed(mutual), meddling, seed);
        prop_assert!(end.let_in || !end.logged_in(), "{end:?}");
    }
}

/// What is changed, why the target refuses, what the initiator says.
type Wrong = (fn(&mut Case), Option<AuthenticationError>, Error);

#[test]
fn wrong_credentials_of_either_end_are_told_by_the_other() {
    let cases: [Wrong; 6] = [
        (
            |case| case.initiator.account = account("alice", "another secret"),
            Some(AuthenticationError::Response),
            Error::LoginRefused { status: 0x0201, address: None },
        ),
        (
            |case| case.target.mutual = None,
            Some(AuthenticationError::NotMutual),
            Error::LoginRefused { status: 0x0201, address: None },
        ),
        (
            |case| case.target.mutual = Some(account("storage", "another secret")),
            None,
            Error::Chap(ChapError::Target),
        ),
        (
            |case| case.target.mutual = Some(account("other", "the secret of the target")),
            None,
            Error::Chap(ChapError::Target),
        ),
        (
            // A target that knows one secret only, and uses it for everything.
            |case| case.target.mutual = Some(account("storage", "the secret of alice")),
            Some(AuthenticationError::SameSecret),
            Error::LoginRefused { status: 0x0201, address: None },
        ),
        (
            |case| case.target.algorithms = [].into_iter().collect(),
            Some(AuthenticationError::Algorithm),
            Error::LoginRefused { status: 0x0201, address: None },
        ),
    ];
    for (number, (change, refused, error)) in cases.into_iter().enumerate() {
        let mut case = agreed(true);
        change(&mut case);
        let end = login(&case, Vec::new(), 5);
        assert_eq!((end.refused, end.error()), (refused, Some(&error)), "{number}");
        let expected = refused.map(|_| CloseReason::LoginRefused(0x0201));
        assert_eq!(end.closed, expected, "{number}");
    }
}

/// A world with CHAP on both ends, digests and data behind it.
#[test]
fn a_session_works_behind_its_authentication() {
    let case = agreed(true);
    let options = initiator::Options { chap: Some(case.initiator), ..base_initiator() };
    let mut world = crate::world::World::guarded(
        options,
        target::Options::default(),
        Some(Arc::new(case.target)),
        7,
    );
    world.settle();
    assert!(matches!(world.events[..], [Event::LoggedIn(_)]), "{:?}", world.events);
    world.events.clear();
    let tag = world.initiator.ping(b"who are you?", &mut world.sent).expect("sent");
    world.settle();
    assert_eq!(world.events, [Event::Pong { tag, intact: true }]);
}
