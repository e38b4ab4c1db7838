//! CHAP against a target made by hand.

use super::*;
use crate::chap::{Account, Algorithm, Secret, binary};
use alloc::format;

fn account(name: &str, secret: &str) -> Account {
    Account { name: name.into(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

fn chap(mutual: bool) -> Chap {
    let mutual = mutual.then(|| Mutual {
        account: account("storage", "the secret of the target"),
        id: 9,
        challenge: vec![0xa5; 32],
    });
    Chap {
        account: account("alice", "the secret of alice"),
        algorithms: [Algorithm::Md5, Algorithm::Sha256].into_iter().collect(),
        mutual,
    }
}

/// An initiator that has just been answered that CHAP it is.
fn agreed(mutual: bool) -> Bench {
    let mut bench = Bench::new(Options { chap: Some(chap(mutual)), ..options() });
    let first = bench.sent().remove(0);
    assert_eq!(first.value("AuthMethod").as_deref(), Some("CHAP"));
    assert_eq!(first.view::<crate::pdu::LoginRequest>().flags, 0x00, "there is more to say");
    bench.login(Stage::Security, None, b"AuthMethod=CHAP\0");
    let second = bench.sent().remove(0);
    assert_eq!(second.value("CHAP_A").as_deref(), Some("7,5"));
    bench
}

#[test]
fn the_response_is_that_of_the_challenge() {
    let mut bench = agreed(true);
    bench.login(Stage::Security, None, b"CHAP_A=7\0CHAP_I=1\0CHAP_C=0x0102030405060708\0");
    let third = bench.sent().remove(0);
    assert_eq!(third.view::<crate::pdu::LoginRequest>().flags, 0x81);
    let own = chap(true);
    let response = own.account.secret.respond(Algorithm::Sha256, 1, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(third.value("CHAP_R"), Some(binary(response.bytes())));
    assert_eq!(third.value("CHAP_N").as_deref(), Some("alice"));
    assert_eq!(third.value("CHAP_I").as_deref(), Some("9"));
    assert_eq!(third.value("CHAP_C"), Some(format!("0x{}", "a5".repeat(32))));
    let secret = account("storage", "the secret of the target").secret;
    let right = binary(secret.respond(Algorithm::Sha256, 9, &[0xa5; 32]).bytes());
    let text = format!("CHAP_N=storage\0CHAP_R={right}\0");
    bench.login(Stage::Security, Some(Stage::Operational), text.as_bytes());
    assert!(bench.events.is_empty() && !bench.connection.is_over());
    assert!(bench.sent().remove(0).value("HeaderDigest").is_some());
}

#[test]
fn a_challenge_that_is_none_gets_no_response() {
    let own = format!("CHAP_A=7\0CHAP_I=1\0CHAP_C={}\0", binary(&[0xa5; 32]));
    let cases: [(&str, ChapError); 8] = [
        ("CHAP_A=7,5\0CHAP_I=1\0CHAP_C=0x01\0", ChapError::Algorithm),
        ("CHAP_A=8\0CHAP_I=1\0CHAP_C=0x01\0", ChapError::Algorithm),
        ("CHAP_A=4\0CHAP_I=1\0CHAP_C=0x01\0", ChapError::Algorithm),
        ("CHAP_A=7\0CHAP_I=256\0CHAP_C=0x01\0", ChapError::Malformed),
        ("CHAP_A=7\0CHAP_I=1\0CHAP_C=0x\0", ChapError::Malformed),
        ("CHAP_A=7\0CHAP_C=0x01\0", ChapError::Malformed),
        ("CHAP_N=storage\0CHAP_R=0x01\0", ChapError::Malformed),
        (&own, ChapError::Reflected),
    ];
    for (text, error) in cases {
        let mut bench = agreed(true);
        bench.login(Stage::Security, None, text.as_bytes());
        assert_eq!(bench.failure(), Error::Chap(error), "{text:?}");
        assert!(bench.sent().is_empty(), "{text:?}");
    }
}

#[test]
fn a_target_that_cannot_prove_itself_is_left() {
    // A target that gives the initiator's own kind of response has no secret of its own.
    let same = account("alice", "the secret of alice").secret;
    let same = binary(same.respond(Algorithm::Md5, 9, &[0xa5; 32]).bytes());
    let cases = [
        ("CHAP_N=storage\0CHAP_R=0x00\0".to_string(), ChapError::Target),
        (format!("CHAP_N=storage\0CHAP_R={same}\0"), ChapError::SameSecret),
        ("CHAP_N=storage\0".to_string(), ChapError::Malformed),
        ("CHAP_R=0x00\0CHAP_N=storage\0CHAP_A=5\0".to_string(), ChapError::Malformed),
        (String::new(), ChapError::Target),
    ];
    for (text, error) in cases {
        let mut bench = agreed(true);
        bench.login(Stage::Security, None, b"CHAP_A=5\0CHAP_I=1\0CHAP_C=0x01020304\0");
        bench.sent();
        bench.login(Stage::Security, Some(Stage::Operational), text.as_bytes());
        let expected = match text.matches("CHAP_A").count() {
            // It has answered that key already.
            1 => Error::Answer(crate::keys::Key::ChapAlgorithm),
            _ => Error::Chap(error),
        };
        assert_eq!(bench.failure(), expected, "{text:?}");
    }
}

#[test]
fn a_target_that_wants_no_authentication_is_not_the_right_one() {
    let mut bench = Bench::new(Options { chap: Some(chap(false)), ..options() });
    bench.login(Stage::Security, Some(Stage::Operational), b"AuthMethod=None\0");
    assert_eq!(bench.failure(), Error::Authentication("None".to_string()));
    let mut bench = Bench::new(Options { chap: Some(chap(false)), ..options() });
    bench.login(Stage::Security, Some(Stage::Operational), b"");
    assert_eq!(bench.failure(), Error::LoginResponse("next stage"));
    // Nor one that skips the challenge.
    let mut bench = agreed(false);
    bench.login(Stage::Security, Some(Stage::Operational), b"");
    assert_eq!(bench.failure(), Error::LoginResponse("next stage"));
    // Without CHAP of its own the initiator has no use for its keys.
    let mut bench = Bench::new(options());
    bench.login(Stage::Security, None, b"CHAP_A=5\0");
    assert_eq!(bench.failure(), Error::Answer(crate::keys::Key::ChapAlgorithm));
}
