use super::*;
use crate::auth::Purpose;
use alloc::vec;
use proptest::prelude::*;

const HOST: &str = "nqn.2026-11.org.lunet:host";
const SUB: &str = "nqn.2026-11.org.lunet:a";

fn names() -> Names {
    Names { host: HOST.into(), subsystem: SUB.into() }
}

fn secret(byte: u8) -> Secret {
    Secret::new(Purpose::DhChap, Some(Hash::Sha256), &[byte; 32]).expect("a secret")
}

/// Random bytes, in a row.
fn random(seed: u8) -> impl FnMut(&mut [u8]) -> bool {
    let mut next = seed;
    move |bytes| {
        for byte in bytes {
            next = next.wrapping_mul(5).wrapping_add(101);
            *byte = next;
        }
        true
    }
}

fn terms() -> Terms {
    Terms {
        names: names(),
        host: secret(1),
        controller: None,
        hashes: vec![Hash::Sha512, Hash::Sha384, Hash::Sha256],
        groups: vec![Group::Ffdhe2048, Group::Null],
        concatenation: Concatenation::Refused,
    }
}

fn credentials() -> Credentials {
    Credentials {
        names: names(),
        host: secret(1),
        controller: None,
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null],
        concatenation: false,
    }
}

/// How an authentication ended, at both ends.
#[derive(Debug, PartialEq, Eq)]
struct End {
    host: Result<(), Failure>,
    controller: Result<(), Failure>,
    /// Both have made the same key.
    key: Option<usize>,
}

/// Lets both ends talk. `damage` is done to every message.
fn talk(terms: Terms, credentials: Credentials, mut damage: impl FnMut(&mut Vec<u8>)) -> End {
    let mut controller = Responder::new(terms, 77);
    let mut host = Initiator::new(credentials, 9, 33, &mut random(1)).expect("random numbers");
    let mut next = HostNext::Send(host.negotiate());
    let mut ended = None;
    for _ in 0..6 {
        let message = match next {
            HostNext::Compute(job) => {
                next = host.computed(job.compute());
                continue;
            }
            HostNext::Send(message) => message,
            HostNext::Done(message) => {
                ended = Some(Ok(()));
                message.unwrap_or_default()
            }
            HostNext::Failed(failure, message) => {
                ended = Some(Err(failure));
                message.unwrap_or_default()
            }
        };
        if !message.is_empty() {
            let mut message = message;
            damage(&mut message);
            if let Next::Compute(job) = controller.sent(&message, &mut random(2)) {
                controller.computed(job.compute());
            }
        }
        if ended.is_some() {
            break;
        }
        let mut answer = controller.receive(4096).expect("an answer");
        damage(&mut answer);
        next = host.received(&answer);
    }
    let key = match (host.generated(), controller.generated()) {
        (Some(one), Some(other)) if one == other => Some(one.1.len()),
        _ => None,
    };
    let controller = match controller.failure() {
        Some(failure) => Err(failure),
        None => {
            if controller.is_done() {
                Ok(())
            } else {
                Err(Failure::Message)
            }
        }
    };
    End { host: ended.expect("an end"), controller, key }
}

const GOOD: End = End { host: Ok(()), controller: Ok(()), key: None };

/// Computed by another implementation from the specification's formulas.
#[test]
fn responses_are_those_of_the_specification() {
    let key = secret(1).transformed(HOST);
    let challenge: Vec<u8> = (0..32).collect();
    let mut said = Said { transaction: 9, ..Said::default() };
    let function = (Hash::Sha256, &key[..]);
    let host = respond(function, &challenge, (77, &said), "HostHost", (HOST, SUB));
    assert_eq!(host[..8], [0x4b, 0xfe, 0x3f, 0x16, 0x5f, 0x05, 0xf5, 0xa5]);
    said.concatenation = NEW_KEY;
    let challenge = augmented(Hash::Sha256, Some(&[5; 256]), &challenge);
    let controller = respond(function, &challenge, (33, &said), "Controller", (SUB, HOST));
    assert_eq!(controller[..8], [0x0b, 0x0b, 0xb2, 0x76, 0x19, 0x6c, 0x88, 0xa5]);
}

#[test]
fn the_right_secret_is_enough_with_every_hash_and_group() {
    for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
        for group in [Group::Null, Group::Ffdhe2048] {
            let asked = Credentials { hashes: vec![hash], groups: vec![group], ..credentials() };
            assert_eq!(talk(terms(), asked.clone(), |_| ()), GOOD, "{hash:?} {group:?}");
            let both = Credentials { controller: Some(secret(2)), ..asked };
            let known = Terms { controller: Some(secret(2)), ..terms() };
            assert_eq!(talk(known, both, |_| ()), GOOD, "{hash:?} {group:?}, both ways");
        }
    }
}

#[test]
fn the_wrong_secret_is_not() {
    let failed = Err(Failure::Failed);
    let wrong = Credentials { host: secret(3), ..credentials() };
    let end = talk(terms(), wrong, |_| ());
    assert_eq!((end.host, end.controller), (failed, failed));
    // Nor is the right one of another host.
    let other = Names { host: "nqn.2026-11.org.lunet:other".into(), ..names() };
    let end = talk(terms(), Credentials { names: other, ..credentials() }, |_| ());
    assert_eq!((end.host, end.controller), (failed, failed));
    // A controller that does not know its own.
    let both = Credentials { controller: Some(secret(2)), ..credentials() };
    let known = Terms { controller: Some(secret(4)), ..terms() };
    let end = talk(known, both.clone(), |_| ());
    assert_eq!((end.host, end.controller), (failed, failed));
    // One that has none.
    let end = talk(terms(), both, |_| ());
    assert_eq!((end.host, end.controller), (failed, failed));
}

#[test]
fn ends_without_anything_in_common_say_so() {
    let none = Terms { hashes: vec![Hash::Sha512], ..terms() };
    let end = talk(none, credentials(), |_| ());
    assert_eq!((end.host, end.controller), (Err(Failure::Hash), Err(Failure::Hash)));
    let none = Terms { groups: vec![Group::Ffdhe3072], ..terms() };
    let end = talk(none, credentials(), |_| ());
    assert_eq!((end.host, end.controller), (Err(Failure::Group), Err(Failure::Group)));
    let wanted = Terms { concatenation: Concatenation::Required, ..terms() };
    let end = talk(wanted, credentials(), |_| ());
    let failed = Err(Failure::Concatenation);
    assert_eq!((end.host, end.controller), (failed, failed));
    let end = talk(terms(), Credentials { concatenation: true, ..credentials() }, |_| ());
    assert_eq!((end.host, end.controller), (failed, failed));
    let allowed = Terms { concatenation: Concatenation::Allowed, ..terms() };
    assert_eq!(talk(allowed, credentials(), |_| ()), GOOD);
}

#[test]
fn concatenation_gives_both_ends_one_key() {
    let groups = vec![Group::Null, Group::Ffdhe2048];
    let asked = Credentials { concatenation: true, groups, ..credentials() };
    let groups = vec![Group::Null, Group::Ffdhe2048];
    let wanted = Terms { concatenation: Concatenation::Required, groups, ..terms() };
    let end = talk(wanted.clone(), asked.clone(), |_| ());
    assert_eq!(end, End { key: Some(32), ..GOOD });
    // SHA-256 is what every host's TLS has, and SHA-512 none's.
    let any =
        Credentials { hashes: vec![Hash::Sha512, Hash::Sha384, Hash::Sha256], ..asked.clone() };
    let allowed = Terms { concatenation: Concatenation::Allowed, ..wanted.clone() };
    assert_eq!(talk(allowed, any, |_| ()), End { key: Some(32), ..GOOD });
    let longer = Credentials { hashes: vec![Hash::Sha384], ..asked.clone() };
    assert_eq!(talk(wanted.clone(), longer, |_| ()), End { key: Some(48), ..GOOD });
    let none = Credentials { hashes: vec![Hash::Sha512], ..asked.clone() };
    assert_eq!(talk(wanted.clone(), none, |_| ()).controller, Err(Failure::Hash));
    let none = Credentials { groups: vec![Group::Null], ..asked.clone() };
    assert_eq!(talk(wanted.clone(), none, |_| ()).controller, Err(Failure::Group));
    // It is made of the host's challenge, too.
    let end = talk(wanted.clone(), asked.clone(), |message| {
        if message[1] == 2 {
            message[8] = 0;
        }
    });
    assert_eq!(end.controller, Err(Failure::Payload));
    let asked = Credentials { controller: Some(secret(2)), ..asked };
    let wanted = Terms { controller: Some(secret(2)), ..wanted };
    assert_eq!(talk(wanted, asked, |_| ()), End { key: Some(32), ..GOOD });
}

/// A host that sends the controller's challenge back gets no answer made of it.
#[test]
fn challenges_are_not_reflected() {
    let mut challenge = Vec::new();
    let both = Credentials { controller: Some(secret(2)), ..credentials() };
    let known = Terms { controller: Some(secret(2)), ..terms() };
    let end = talk(known, both, |message| match message[1] {
        1 => challenge = message[16..48].to_vec(),
        2 => message[48..80].copy_from_slice(&challenge),
        _ => {}
    });
    assert_eq!(end.controller, Err(Failure::Failed));
}

#[test]
fn messages_out_of_order_fail() {
    let mut controller = Responder::new(terms(), 1);
    assert_eq!(controller.receive(4096), None);
    let success = Message::Success2.encode(5);
    controller.sent(&success, &mut random(1));
    assert_eq!(controller.failure(), Some(Failure::Message));
    assert!(!controller.is_over());
    let failure = controller.receive(8).expect("a failure");
    assert_eq!(failure[..2], [0, 0xf1]);
    assert!(controller.is_over() && !controller.is_done());
    // No room, and nothing is lost.
    let mut controller = Responder::new(terms(), 1);
    let host = Initiator::new(credentials(), 9, 1, &mut random(1)).expect("random numbers");
    controller.sent(&host.negotiate(), &mut random(1));
    assert_eq!(controller.receive(16), None);
    assert!(controller.receive(48).is_some());
    // Without random numbers there is no challenge.
    let mut controller = Responder::new(terms(), 1);
    controller.sent(&host.negotiate(), &mut |_| false);
    assert_eq!(controller.failure(), Some(Failure::NotUsable));
    assert!(Initiator::new(credentials(), 9, 1, &mut |_| false).is_none());
}

proptest! {
    /// Whatever is damaged on the way: nobody is taken for who they are not, and nothing panics.
    #[test]
    fn damaged_messages_prove_nothing(at in 0usize..500, bit in 0u8..8, which in 0usize..4) {
        let both = Credentials { controller: Some(secret(2)), ..credentials() };
        let known = Terms { controller: Some(secret(2)), ..terms() };
        let mut number = 0;
        let mut changed = false;
        let end = talk(known, both, |message| {
            // What is reserved, or only says why, does not matter.
            if number == which && at >= 6 && at < message.len() && which > 0 {
                let reserved = [7, 9].contains(&at) || (which == 3 && at < 16);
                message[at] ^= 1 << bit;
                changed = !reserved;
            }
            number += 1;
        });
        if changed {
            prop_assert!(end.host.is_err() || end.controller.is_err());
        }
    }
}
