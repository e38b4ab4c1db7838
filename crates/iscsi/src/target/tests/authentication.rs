//! CHAP with an initiator made by hand: what must be let in, and what must not.

use super::*;
use crate::chap::{Account, Algorithm, Algorithms, Secret, binary, parse_binary, parse_id};
use crate::pdu::LoginResponse;
use alloc::format;
use proptest::prelude::*;

fn account(name: &str, secret: &str) -> Account {
    Account { name: name.into(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

fn alice() -> Account {
    account("alice", "the secret of alice")
}

fn storage() -> Account {
    account("storage", "the secret of the target")
}

/// A target that asks for CHAP.
fn guarded() -> Bench {
    let mut bench = Bench::new(Options::default());
    bench.site.credentials = Some(Arc::new(Credentials {
        algorithms: Algorithms::ALL,
        accounts: vec![account("bob", "the secret of bob"), alice()],
        mutual: Some(storage()),
    }));
    bench
}

/// The first keys of a login.
fn hello(rest: &[&str]) -> Vec<String> {
    let mut keys = vec![format!("InitiatorName={INITIATOR}"), format!("TargetName={TARGET}")];
    keys.extend(owned(rest));
    keys
}

fn owned(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_string()).collect()
}

/// What the target asked for.
#[derive(Clone, Debug)]
struct Asked {
    algorithm: Algorithm,
    id: u8,
    challenge: Vec<u8>,
}

impl Asked {
    /// CHAP_N and CHAP_R of this account.
    fn answer(&self, account: &Account) -> Vec<String> {
        let response = account.secret.respond(self.algorithm, self.id, &self.challenge);
        vec![format!("CHAP_N={}", account.name), format!("CHAP_R={}", binary(response.bytes()))]
    }
}

impl Bench {
    fn say(&mut self, flags: u8, keys: &[String]) -> Got {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.login(flags, &keys).remove(0)
    }

    /// Goes on until the challenge, with these algorithms.
    fn challenged(&mut self, algorithms: &str) -> Asked {
        let got = self.say(0x00, &hello(&["AuthMethod=CHAP,None"]));
        assert_eq!(value(&got, "AuthMethod").as_deref(), Some("CHAP"), "{got:?}");
        let got = self.say(0x00, &[format!("CHAP_A={algorithms}")]);
        asked(&got)
    }

    /// The status of the refusal that was the last answer, and what the administrator sees.
    fn refusal(&mut self, got: &Got) -> (u16, Option<AuthenticationError>) {
        let status = got.as_pdu::<LoginResponse>().status.get();
        assert!(got.data.is_empty(), "a refusal tells nothing: {got:?}");
        assert_eq!(self.closed(), CloseReason::LoginRefused(status));
        let who = self.connection.login_identity().map(|id| id.initiator_name.as_str());
        assert_eq!(who, Some(INITIATOR));
        (status, self.connection.authentication_error())
    }
}

fn asked(got: &Got) -> Asked {
    let response = got.as_pdu::<LoginResponse>();
    assert_eq!((response.flags, response.status.get()), (0, 0), "{got:?}");
    let code = value(got, "CHAP_A").unwrap();
    let algorithm = crate::chap::one(&code).unwrap();
    let id = parse_id(&value(got, "CHAP_I").unwrap()).unwrap();
    let challenge = parse_binary(&value(got, "CHAP_C").unwrap()).unwrap();
    assert_eq!(challenge.len(), algorithm.digest_len());
    Asked { algorithm, id, challenge }
}

fn value(got: &Got, key: &str) -> Option<String> {
    got.text().into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// Ends the security stage of a login that was let in.
fn finish(mut bench: Bench) {
    bench.login(0x87, &["HeaderDigest=None"]);
    let Some(Event::LoginFinished(identity)) = bench.events.pop() else { panic!("not let in") };
    let proved = bench.site.credentials.as_ref().map(|_| "alice");
    assert_eq!(identity.proof.as_ref().map(|proof| proof.user.as_str()), proved);
    if let (Some(proof), Some(known)) = (&identity.proof, &bench.site.credentials) {
        let account = known.accounts.iter().find(|account| account.name == "alice").unwrap();
        assert!(proof.is_of(account), "{proof:?}");
        let other = Secret::new(b"another secret of hers".to_vec());
        assert!(!proof.is_of(&Account { secret: other, ..account.clone() }), "another secret");
        assert!(!proof.is_of(&Account { name: "bob".into(), ..account.clone() }), "another name");
    }
    bench.with(|c, tx| c.admit(1, tx));
    assert!(bench.connection.is_full_feature() && bench.connection.login_identity().is_none());
}

#[test]
fn the_right_response_opens_the_next_stage_with_every_algorithm() {
    for (list, algorithm) in [
        ("5", Algorithm::Md5),
        ("5,6", Algorithm::Md5),
        ("9,6,5", Algorithm::Sha1),
        ("7,5,8", Algorithm::Sha256),
        ("8,7,6,5", Algorithm::Sha3),
    ] {
        let mut bench = guarded();
        let asked = bench.challenged(list);
        assert_eq!(asked.algorithm, algorithm);
        let got = bench.say(0x81, &asked.answer(&alice()));
        assert_eq!(got.as_pdu::<LoginResponse>().flags, 0x81);
        assert_eq!((value(&got, "CHAP_N"), value(&got, "CHAP_R")), (None, None));
        assert_eq!(value(&got, "TargetAlias").as_deref(), Some("demo"));
        finish(bench);
    }
}

#[test]
fn the_target_proves_itself_to_who_asks() {
    let mut bench = guarded();
    let asked = bench.challenged("7");
    let theirs = [7; 40];
    let mut keys = asked.answer(&alice());
    keys.extend(["CHAP_I=0x11".to_string(), format!("CHAP_C={}", binary(&theirs))]);
    let got = bench.say(0x81, &keys);
    let expected = storage().secret.respond(Algorithm::Sha256, 0x11, &theirs);
    assert_eq!(value(&got, "CHAP_N").as_deref(), Some("storage"));
    assert_eq!(value(&got, "CHAP_R"), Some(binary(expected.bytes())));
    finish(bench);
}

#[test]
fn an_initiator_may_ask_for_the_next_stage_too_early_and_in_one_go() {
    let mut bench = guarded();
    let got = bench.say(0x81, &hello(&["AuthMethod=None,CHAP", "CHAP_A=7"]));
    let asked = asked(&got);
    assert_eq!(value(&got, "TargetAlias"), None, "nothing is told to strangers");
    assert_eq!(value(&got, "TargetPortalGroupTag").as_deref(), Some("7"));
    let got = bench.say(0x00, &asked.answer(&alice()));
    assert_eq!(got.as_pdu::<LoginResponse>().flags, 0x00);
    assert_eq!(bench.say(0x81, &[]).as_pdu::<LoginResponse>().flags, 0x81);
    finish(bench);
}

#[test]
fn each_way_of_not_authenticating_has_the_same_answer() {
    use AuthenticationError::{Method, Skipped};
    let cases: [(u8, &[&str], AuthenticationError); 5] = [
        (0x87, &[], Skipped),
        (0x81, &[], Skipped),
        (0x83, &[], Skipped),
        (0x81, &["AuthMethod=None"], Method),
        (0x81, &["AuthMethod=KRB5,None"], Method),
    ];
    for (flags, keys, why) in cases {
        let mut bench = guarded();
        let got = bench.say(flags, &hello(keys));
        assert_eq!(bench.refusal(&got), (0x0201, Some(why)), "{keys:?}");
    }
    // Nor does a discovery session get in.
    let mut bench = guarded();
    let keys = [format!("InitiatorName={INITIATOR}"), "SessionType=Discovery".into()];
    let got = bench.say(0x87, &keys);
    assert_eq!(bench.refusal(&got), (0x0201, Some(Skipped)));
    // Half of it is not enough.
    for steps in [1, 2] {
        let mut bench = guarded();
        bench.say(0x00, &hello(&["AuthMethod=CHAP"]));
        if steps == 2 {
            bench.say(0x00, &["CHAP_A=5".into()]);
        }
        let got = bench.say(0x81, &[]);
        assert_eq!(bench.refusal(&got), (0x0201, Some(Skipped)), "{steps}");
    }
}

#[test]
fn an_algorithm_that_is_too_weak_is_refused() {
    for list in ["5", "5,6", "9", "MD5", "", "07,"] {
        let mut bench = guarded();
        let strong = [Algorithm::Sha256, Algorithm::Sha3].into_iter().collect();
        let credentials = bench.site.credentials.take().unwrap();
        bench.site.credentials =
            Some(Arc::new(Credentials { algorithms: strong, ..(*credentials).clone() }));
        bench.say(0x00, &hello(&["AuthMethod=CHAP"]));
        let got = bench.say(0x00, &[format!("CHAP_A={list}")]);
        if list == "07," {
            assert_eq!(asked(&got).algorithm, Algorithm::Sha256);
        } else {
            let why = Some(AuthenticationError::Algorithm);
            assert_eq!(bench.refusal(&got), (0x0201, why), "{list}");
        }
    }
}

type Responder = fn(&Asked) -> Vec<String>;

#[test]
fn wrong_names_secrets_and_responses_are_not_told_apart() {
    use AuthenticationError::{Malformed, NotMutual, Reflected, Response};
    let answers: [(Responder, AuthenticationError); 12] = [
        (|asked| asked.answer(&account("mallory", "the secret of alice")), Response),
        (|asked| asked.answer(&account("", "the secret of alice")), Response),
        (|asked| asked.answer(&account("Alice", "the secret of alice")), Response),
        (|asked| asked.answer(&account("alice", "the secret of bob")), Response),
        (|asked| asked.answer(&account("bob", "the secret of alice")), Response),
        (|asked| asked.answer(&account("alice", "")), Response),
        // The target's own account opens nothing.
        (|asked| asked.answer(&storage()), Response),
        // A response to another challenge, or under another identifier.
        (|asked| Asked { challenge: vec![1; 32], ..asked.clone() }.answer(&alice()), Response),
        (|asked| Asked { id: !asked.id, ..asked.clone() }.answer(&alice()), Response),
        // A response of another algorithm.
        (|asked| Asked { algorithm: Algorithm::Md5, ..asked.clone() }.answer(&alice()), Response),
        // Too little, and too much.
        (|_| vec!["CHAP_N=alice".into(), "CHAP_R=0x00".into()], Response),
        (|_| vec!["CHAP_N=alice".into(), format!("CHAP_R=0x{}", "00".repeat(1025))], Malformed),
    ];
    for (number, (answer, why)) in answers.into_iter().enumerate() {
        let mut bench = guarded();
        let asked = bench.challenged("8");
        let got = bench.say(0x81, &answer(&asked));
        assert_eq!(bench.refusal(&got), (0x0201, Some(why)), "{number}");
    }
    // The target's own challenge, sent back.
    let mut bench = guarded();
    let asked = bench.challenged("8");
    let back = |asked: &Asked| {
        let challenge = binary(&asked.challenge);
        [asked.answer(&alice()), vec!["CHAP_I=1".into(), format!("CHAP_C={challenge}")]].concat()
    };
    let got = bench.say(0x81, &back(&asked));
    assert_eq!(bench.refusal(&got), (0x0201, Some(Reflected)));
    // A target without a secret of its own cannot prove anything.
    let mut bench = guarded();
    let credentials = bench.site.credentials.take().unwrap();
    bench.site.credentials = Some(Arc::new(Credentials { mutual: None, ..(*credentials).clone() }));
    let asked = bench.challenged("8");
    let other = Asked { challenge: vec![1; 32], ..asked.clone() };
    let mut keys = asked.answer(&alice());
    keys.extend_from_slice(&back(&other)[2..]);
    let got = bench.say(0x81, &keys);
    assert_eq!(bench.refusal(&got), (0x0201, Some(NotMutual)));
}

#[test]
fn one_secret_does_not_serve_both_directions() {
    let mut bench = guarded();
    bench.site.credentials = Some(Arc::new(Credentials {
        algorithms: Algorithms::ALL,
        accounts: vec![alice()],
        mutual: Some(Account { name: "storage".into(), ..alice() }),
    }));
    let asked = bench.challenged("8");
    let got = bench.say(0x81, &asked.answer(&alice()));
    assert_eq!(bench.refusal(&got), (0x0201, Some(AuthenticationError::SameSecret)));
}

#[test]
fn keys_out_of_order_are_refused() {
    let malformed: [&[&str]; 7] = [
        &["CHAP_N=alice", "CHAP_R=0x00"],
        &["CHAP_A=5", "CHAP_N=alice", "CHAP_R=0x00"],
        &["CHAP_A=5", "CHAP_I=1", "CHAP_C=0x00"],
        &["CHAP_N=alice"],
        &["CHAP_R=0x00"],
        &["CHAP_I=1", "CHAP_C=0x00"],
        &["CHAP_C=0x00"],
    ];
    for keys in malformed {
        // As the first step, when the algorithms are due,
        let mut bench = guarded();
        bench.say(0x00, &hello(&["AuthMethod=CHAP"]));
        let keys = owned(keys);
        let got = bench.say(0x00, &keys);
        let why = Some(AuthenticationError::Malformed);
        assert_eq!(bench.refusal(&got), (0x0201, why), "{keys:?}");
        // and without a method.
        let mut bench = guarded();
        let got = bench.say(0x00, &[hello(&[]), keys.clone()].concat());
        assert_eq!(bench.refusal(&got), (0x0201, why), "{keys:?}");
    }
    let late: [&[&str]; 6] = [
        &["CHAP_N=alice"],
        &["CHAP_R=0x00"],
        &["CHAP_N=alice", "CHAP_R=0x00", "CHAP_I=1"],
        &["CHAP_N=alice", "CHAP_R=0x00", "CHAP_C=0x00"],
        &["CHAP_N=alice", "CHAP_R=0x00", "CHAP_I=256", "CHAP_C=0x00"],
        &["CHAP_N=alice", "CHAP_R=5", "CHAP_I=1", "CHAP_C=0x00"],
    ];
    for keys in late {
        let mut bench = guarded();
        bench.challenged("8");
        let keys = owned(keys);
        let got = bench.say(0x81, &keys);
        let why = Some(AuthenticationError::Malformed);
        assert_eq!(bench.refusal(&got), (0x0201, why), "{keys:?}");
    }
    // Twice the same key is no negotiation at all.
    let mut bench = guarded();
    bench.challenged("8");
    let got = bench.say(0x00, &["CHAP_A=5".into()]);
    assert_eq!(bench.refusal(&got), (0x0200, None));
}

#[test]
fn a_challenge_is_used_once_and_never_again() {
    let mut bench = guarded();
    let first = bench.challenged("8");
    let recorded = first.answer(&alice());
    assert_eq!(bench.say(0x81, &recorded).as_pdu::<LoginResponse>().flags, 0x81);
    // What opened one connection does not open the next.
    let mut second = guarded();
    second.site.random = bench.site.random.clone();
    let asked = second.challenged("8");
    assert_ne!(asked.challenge, first.challenge);
    let got = second.say(0x81, &recorded);
    assert_eq!(second.refusal(&got), (0x0201, Some(AuthenticationError::Response)));
}

#[test]
fn without_randomness_there_is_no_challenge_and_the_layer_above_may_refuse_before() {
    let mut bench = guarded();
    bench.site.random.set(32);
    bench.say(0x00, &hello(&["AuthMethod=CHAP"]));
    let got = bench.say(0x00, &["CHAP_A=8".into()]);
    assert_eq!(bench.refusal(&got), (0x0300, None));
    let busy = "InitiatorName=iqn.2026-11.local.lunet:busy";
    let got = guarded().say(0x81, &owned(&[busy, &format!("TargetName={TARGET}")]));
    assert_eq!(got.as_pdu::<LoginResponse>().status.get(), 0x0301);
}

#[test]
fn chap_means_nothing_where_nothing_is_to_be_proved() {
    let mut bench = Bench::new(Options::default());
    let got = bench.say(0x81, &hello(&["AuthMethod=CHAP,None"]));
    assert_eq!(value(&got, "AuthMethod").as_deref(), Some("None"));
    finish(bench);
    let mut bench = Bench::new(Options::default());
    let got = bench.say(0x81, &hello(&["AuthMethod=CHAP"]));
    assert_eq!(bench.refusal(&got), (0x0201, Some(AuthenticationError::Method)));
    let mut bench = Bench::new(Options::default());
    bench.say(0x00, &hello(&["AuthMethod=None"]));
    let got = bench.say(0x81, &["CHAP_A=5".into()]);
    assert_eq!(bench.refusal(&got), (0x0200, None));
    // Behind the security stage it is no key to negotiate.
    let mut bench = Bench::new(Options::default());
    bench.login(0x87, &hello(&["CHAP_A=5"]).iter().map(String::as_str).collect::<Vec<_>>());
    bench.with(|c, tx| c.admit(1, tx));
    assert_eq!(value(&bench.one(), "CHAP_A").as_deref(), Some("Reject"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever does not have the secret gets nowhere, whatever is sent in whatever order.
    #[test]
    fn no_sequence_of_requests_gets_in_without_the_secret(
        steps in proptest::collection::vec(
            (
                proptest::sample::select(vec![0x00u8, 0x00, 0x81, 0x83, 0x04, 0x87, 0x40]),
                proptest::collection::vec(proptest::sample::select(vec![
                    "AuthMethod=CHAP", "AuthMethod=None", "AuthMethod=CHAP,None", "CHAP_A=5",
                    "CHAP_A=8,5", "CHAP_N=alice", "CHAP_N=bob", "CHAP_R=0x00", "CHAP_R=",
                    "CHAP_R=0bAAECAwQFBgcICQoLDA0ODw==", "CHAP_I=1", "CHAP_C=0x0102",
                    "HeaderDigest=None", "X-y=1", "SessionType=Discovery", "SessionType=Normal",
                    "TargetName=iqn.2026-11.local.lunet:demo",
                    "InitiatorName=iqn.1993-08.org.debian:01:abc",
                ]), 0..5),
            ),
            1..8,
        ),
        names_first: bool,
    ) {
        let mut bench = guarded();
        if names_first {
            bench.say(0x00, &hello(&["AuthMethod=CHAP"]));
        }
        for (flags, keys) in steps {
            if bench.connection.is_closed() {
                break;
            }
            for got in bench.login(flags, &keys) {
                let response = got.as_pdu::<LoginResponse>();
                prop_assert!(response.flags & pdu::TRANSIT == 0);
            }
            prop_assert!(!bench.events.iter().any(|e| matches!(e, Event::LoginFinished(_))));
        }
    }
}
