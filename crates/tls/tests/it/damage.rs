//! Damaged bytes never panic, and never end in a session of both ends.

use lunet_tls::suite::Hash;
use proptest::prelude::*;

use crate::support::{Peer, config, handshake, psk};

/// One bit of a handshake is another, anywhere. The first byte of a record's version and the bits of its minor version
/// mean little: the latter nothing at all.
#[test]
fn no_changed_bit_is_overlooked() {
    for (hash, shares) in [(Hash::Sha256, 1), (Hash::Sha384, 0)] {
        let mut config = config(hash);
        config.shares = shares;
        let keys = vec![psk(hash, 7)];
        let whole = handshake(config.clone(), keys.clone(), 1, |_, _, _| ()).sent;
        for (from_client, bytes) in [(true, &whole.0), (false, &whole.1)] {
            let ignored = minor_versions(bytes);
            for at in 0..bytes.len() {
                let bit = 1 << (at % 8);
                let outcome = handshake(config.clone(), keys.clone(), 1, |client, offset, sent| {
                    if client == from_client && (offset..offset + sent.len()).contains(&at) {
                        sent[at - offset] ^= bit;
                    }
                });
                let both = outcome.client.is_ok() && outcome.server.is_ok();
                assert_eq!(both, ignored.contains(&at), "from client {from_client}, byte {at}");
            }
        }
    }
}

/// Offsets of the minor versions in the headers of records that are not protected.
fn minor_versions(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        if bytes[at] != 23 {
            found.push(at + 2);
        }
        at += 5 + usize::from(u16::from_be_bytes([bytes[at + 3], bytes[at + 4]]));
    }
    found
}

/// What of a stream means something: types and contents of records, without change_cipher_spec.
fn meaning(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut records = Vec::new();
    while let [kind, _, _, high, low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (body, behind) = rest.split_at(len);
        if *kind != 20 {
            records.push((*kind, body));
        }
        bytes = behind;
    }
    records
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn bytes_that_are_cut_out_or_put_in_end_the_handshake(
        seed: u64,
        from_client: bool,
        at in 0_usize..600,
        cut in 0_usize..40,
        added in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let keys = vec![psk(Hash::Sha256, 7)];
        let mut changed = false;
        let outcome = handshake(config(Hash::Sha256), keys, seed, |client, offset, sent| {
            if client == from_client && (offset..offset + sent.len()).contains(&at) {
                let at = at - offset;
                let before = sent.clone();
                sent.splice(at..(at + cut).min(sent.len()), added.iter().copied());
                changed |= meaning(&before) != meaning(sent);
            }
        });
        if changed {
            prop_assert!(outcome.client.is_err() || outcome.server.is_err());
        }
    }

    #[test]
    fn any_bytes_end_in_an_alert_or_are_waited_for(
        hello: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut peer = Peer::new(vec![psk(Hash::Sha256, 7)], 1);
        let record = [&[22, 3, 1, 1, 44, 1, 0, 1, 40, 3, 3][..], &bytes].concat();
        let bytes = if hello { record } else { bytes };
        let mut rest = &bytes[..];
        while !rest.is_empty() && peer.server.wants() > 0 {
            let before = peer.server.wants();
            match peer.receive(rest) {
                Ok((taken, done)) => {
                    prop_assert!(taken > 0 && !done);
                    rest = &rest[taken..];
                }
                Err(why) => {
                    prop_assert_eq!(peer.server.take_out().is_empty(), why.alert().is_none());
                    prop_assert!(before > 0 && peer.server.wants() == 0);
                    break;
                }
            }
        }
    }
}
