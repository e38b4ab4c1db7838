//! Both ends agree, however the bytes are cut.

use lunet_tls::exchange::Group;
use lunet_tls::record::{DATA, HEADER, Opener, Sealer};
use lunet_tls::suite::{Hash, Suite};
use lunet_tls::traffic::TrafficKey;
use lunet_tls::{Alert, Error, Session};
use proptest::prelude::*;

use crate::support::{IDENTITY, Outcome, config, handshake, psk};

/// Both sessions.
fn agreed(outcome: Outcome) -> (Session, Session) {
    match (outcome.client, outcome.server) {
        (Ok(client), Ok(server)) => (client, server),
        (client, server) => panic!("client {:?}, server {:?}", client.err(), server.err()),
    }
}

/// What one end seals the other one opens.
fn check_way(send: TrafficKey, receive: TrafficKey) {
    let mut record = Vec::new();
    Sealer::new(send).seal(DATA, b"data", &mut record);
    let header: [u8; HEADER] = record[..HEADER].try_into().expect("a header");
    let mut body = record.split_off(HEADER);
    assert_eq!(Opener::new(receive).open(&header, &mut body), Ok(DATA));
    assert_eq!(body, b"data");
}

fn check((client, server): (Session, Session), suite: Suite, candidate: usize) {
    assert_eq!((client.suite, server.suite, server.candidate), (suite, suite, candidate));
    assert_eq!(server.identity, IDENTITY);
    assert_ne!(client.send.key, client.receive.key);
    check_way(client.send, server.receive);
    check_way(server.send, client.receive);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_ends_agree_however_the_bytes_are_cut(
        seed: u64,
        sha384: bool,
        compatible: bool,
        swapped: bool,
        shares in 0_usize..=2,
    ) {
        let hash = if sha384 { Hash::Sha384 } else { Hash::Sha256 };
        let mut config = config(hash);
        config.compatible = compatible;
        config.shares = shares;
        if swapped {
            config.groups.reverse();
        }
        let outcome = handshake(config, vec![psk(hash, 7)], seed, |_, _, _| ());
        check(agreed(outcome), hash.suite(), 0);
    }
}

#[test]
fn a_group_that_is_asked_for_later_is_used() {
    for (groups, shares) in [
        (vec![Group::X25519], 0),
        (vec![Group::Secp256r1], 0),
        (vec![Group::Secp256r1, Group::X25519], 0),
    ] {
        let mut config = config(Hash::Sha256);
        (config.groups, config.shares) = (groups, shares);
        let outcome = handshake(config, vec![psk(Hash::Sha256, 7)], 1, |_, _, _| ());
        let hellos = outcome.sent.0.windows(6).filter(|bytes| bytes[0] == 22 && bytes[5] == 1);
        assert_eq!(hellos.count(), 2);
        check(agreed(outcome), Suite::Aes128GcmSha256, 0);
    }
}

#[test]
fn each_key_of_an_identity_is_tried() {
    for at in 0..3 {
        let mut keys = vec![psk(Hash::Sha256, 1), psk(Hash::Sha256, 2), psk(Hash::Sha256, 3)];
        keys[at] = psk(Hash::Sha256, 7);
        let outcome = handshake(config(Hash::Sha256), keys, 1, |_, _, _| ());
        check(agreed(outcome), Suite::Aes128GcmSha256, at);
    }
}

#[test]
fn refusals_are_told_by_alerts() {
    let refused = |config, keys, error: Error, alert| {
        let outcome = handshake(config, keys, 1, |_, _, _| ());
        assert_eq!(outcome.server.err(), Some(error));
        assert_eq!(outcome.client.err(), Some(Error::Refused(alert)));
    };
    let sha256 = || config(Hash::Sha256);
    refused(sha256(), vec![], Error::Unknown, Alert::UNKNOWN_PSK_IDENTITY);
    refused(sha256(), vec![psk(Hash::Sha256, 8)], Error::Proof, Alert::DECRYPT_ERROR);
    refused(sha256(), vec![psk(Hash::Sha384, 7)], Error::Suite, Alert::HANDSHAKE_FAILURE);
    let mut stranger = sha256();
    stranger.identity = b"somebody".to_vec();
    refused(stranger, vec![psk(Hash::Sha256, 7)], Error::Unknown, Alert::UNKNOWN_PSK_IDENTITY);
}

#[test]
fn sessions_of_the_same_key_have_different_keys() {
    let session = |seed| {
        let outcome =
            handshake(config(Hash::Sha256), vec![psk(Hash::Sha256, 7)], seed, |_, _, _| ());
        agreed(outcome).1
    };
    assert_ne!(session(1).send.key, session(2).send.key);
}
