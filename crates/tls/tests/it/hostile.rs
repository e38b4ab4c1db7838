//! Clients that do what they must not.

use lunet_tls::suite::Hash;
use lunet_tls::{Alert, Error};

use crate::support::{IDENTITY, Peer, psk};

/// An extension.
fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
}

fn long(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u16).to_be_bytes()[..], body].concat()
}

const VERSIONS: (u16, &[u8]) = (43, &[2, 3, 4]);
const GROUPS: (u16, &[u8]) = (10, &[0, 2, 0, 0x1d]);
const MODES: (u16, &[u8]) = (45, &[1, 1]);

/// A public value of X25519.
fn share() -> (u16, Vec<u8>) {
    let entry = [&[0, 0x1d][..], &long(&[9; 32])].concat();
    (51, long(&entry))
}

/// An identity with a binder that is wrong.
fn offered() -> (u16, Vec<u8>) {
    let identities = [long(IDENTITY), vec![0; 4]].concat();
    let binders = [&[32][..], &[0; 32]].concat();
    (41, [long(&identities), long(&binders)].concat())
}

/// What a client should send, but for the binder.
fn all() -> Vec<(u16, Vec<u8>)> {
    let owned = |(kind, body): (u16, &[u8])| (kind, body.to_vec());
    vec![owned(VERSIONS), owned(GROUPS), share(), owned(MODES), offered()]
}

/// A ClientHello with these extensions, in a record.
fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let list: Vec<u8> = extensions.iter().flat_map(|(kind, body)| extension(*kind, body)).collect();
    with_body(&[&[3, 3][..], &[5; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &long(&list)].concat())
}

fn with_body(body: &[u8]) -> Vec<u8> {
    let message = [&[1, 0][..], &long(body)].concat();
    [&[22, 3, 1][..], &long(&message)].concat()
}

/// What a server makes of it.
fn answer(bytes: &[u8]) -> (Option<Error>, Vec<u8>) {
    let mut peer = Peer::new(vec![psk(Hash::Sha256, 7)], 1);
    let error = peer.receive(bytes).err();
    (error, peer.server.take_out())
}

fn refused(bytes: &[u8], error: Error, alert: Alert) {
    assert_eq!(answer(bytes), (Some(error), vec![21, 3, 3, 0, 2, 2, alert.0]));
}

#[test]
fn hellos_without_what_is_needed_are_refused() {
    let without = |kind| {
        let mut extensions = all();
        extensions.retain(|(other, _)| *other != kind);
        hello(&extensions)
    };
    refused(&hello(&all()), Error::Proof, Alert::DECRYPT_ERROR);
    refused(&without(43), Error::Version, Alert::PROTOCOL_VERSION);
    refused(&without(41), Error::NoPsk, Alert::HANDSHAKE_FAILURE);
    refused(&without(45), Error::Missing("psk_key_exchange_modes"), Alert::MISSING_EXTENSION);
    refused(&without(10), Error::Missing("supported_groups"), Alert::MISSING_EXTENSION);
    refused(&without(51), Error::Missing("key_share"), Alert::MISSING_EXTENSION);
    let old = with_body(&[&[3, 1][..], &[5; 32], &[0], &[0, 2, 0, 0x2f], &[1, 0]].concat());
    refused(&old, Error::Version, Alert::PROTOCOL_VERSION);
}

#[test]
fn extensions_with_other_values_are_refused() {
    let with = |kind, body: &[u8]| {
        let mut extensions = all();
        extensions.iter_mut().filter(|(other, _)| *other == kind).for_each(|(_, old)| {
            *old = body.to_vec();
        });
        hello(&extensions)
    };
    let illegal = Alert::ILLEGAL_PARAMETER;
    refused(&with(43, &[2, 3, 3]), Error::Version, Alert::PROTOCOL_VERSION);
    refused(&with(45, &[1, 0]), Error::NoExchange, Alert::HANDSHAKE_FAILURE);
    refused(&with(43, &[3, 3, 4]), Error::Malformed("ClientHello"), Alert::DECODE_ERROR);
    refused(&with(43, &[2, 3, 4, 0]), Error::Malformed("ClientHello"), Alert::DECODE_ERROR);
    refused(&with(41, &[]), Error::Malformed("ClientHello"), Alert::DECODE_ERROR);
    // A public value of a group that is not supported, two of one group, and one that is none.
    refused(&with(10, &[0, 2, 0, 0x17]), Error::Illegal("key_share"), illegal);
    let entry = [&[0, 0x1d][..], &long(&[9; 32])].concat();
    let twice = long(&[&entry[..], &entry].concat());
    refused(&with(51, &twice), Error::Illegal("key_share"), illegal);
    // More identities than binders.
    let identities = [long(b"somebody"), vec![0; 4], long(IDENTITY), vec![0; 4]].concat();
    let binders = [&[32][..], &[0; 32]].concat();
    let fewer = [long(&identities), long(&binders)].concat();
    refused(&with(41, &fewer), Error::Illegal("pre_shared_key"), illegal);
}

#[test]
fn extensions_that_do_not_belong_there_are_refused() {
    let illegal = Alert::ILLEGAL_PARAMETER;
    let with_first = |kind, body: &[u8]| {
        let mut extensions = all();
        extensions.insert(0, (kind, body.to_vec()));
        hello(&extensions)
    };
    refused(&with_first(42, &[]), Error::Illegal("ClientHello"), illegal);
    refused(&with_first(44, &long(&[1])), Error::Illegal("ClientHello"), illegal);
    refused(&with_first(43, VERSIONS.1), Error::Illegal("list of extensions"), illegal);
    refused(&with_first(0x1234, &[1, 2]), Error::Proof, Alert::DECRYPT_ERROR);
    let mut last = all();
    last.push((0x1234, vec![]));
    refused(&hello(&last), Error::Illegal("pre_shared_key"), illegal);
    // Compression, and an old version with everything of the new one.
    let list: Vec<u8> = all().iter().flat_map(|(kind, body)| extension(*kind, body)).collect();
    let suites = [0, 2, 0x13, 1];
    let compressed = [&[3, 3][..], &[5; 32], &[0], &suites, &[2, 1, 0], &long(&list)].concat();
    refused(&with_body(&compressed), Error::Illegal("ClientHello"), illegal);
    let older = [&[3, 2][..], &[5; 32], &[0], &suites, &[1, 0], &long(&list)].concat();
    refused(&with_body(&older), Error::Illegal("ClientHello"), illegal);
}

#[test]
fn records_that_do_not_belong_there_are_refused() {
    let unexpected = Alert::UNEXPECTED_MESSAGE;
    for record in [
        // Nothing, change_cipher_spec before anything, data, what does not exist.
        &[22, 3, 1, 0, 0][..],
        &[20, 3, 3, 0, 1, 1],
        &[23, 3, 3, 0, 5],
        &[24, 3, 3, 0, 1],
        // A message other than ClientHello.
        &[22, 3, 3, 0, 4, 0, 0, 0, 0],
    ] {
        refused(record, Error::Unexpected, unexpected);
    }
    refused(&[22, 3, 1, 0x40, 1], Error::TooLong, Alert::RECORD_OVERFLOW);
    // A message of 8193 bytes, of which four are here.
    refused(&[22, 3, 1, 0, 4, 1, 0, 0x1f, 0xfd], Error::TooLong, Alert::RECORD_OVERFLOW);
    refused(b"GET / HTTP/1.1\r\n", Error::Malformed("record"), Alert::DECODE_ERROR);
    // change_cipher_spec within a message, and a second message in the same record.
    let mut cut = hello(&all());
    let rest = cut.split_off(40);
    cut[3..5].copy_from_slice(&35_u16.to_be_bytes());
    cut.extend_from_slice(&[20, 3, 3, 0, 1, 1]);
    cut.extend_from_slice(&[&[22, 3, 1][..], &long(&rest)].concat());
    refused(&cut, Error::Unexpected, unexpected);
    let mut two = hello(&all());
    let len = u16::from_be_bytes([two[3], two[4]]) + 1;
    two[3..5].copy_from_slice(&len.to_be_bytes());
    two.push(1);
    refused(&two, Error::Unexpected, unexpected);
    // An alert ends it without another one.
    let alerted = answer(&[21, 3, 3, 0, 2, 2, 40]);
    assert_eq!(alerted, (Some(Error::Refused(Alert::HANDSHAKE_FAILURE)), Vec::new()));
}

#[test]
fn a_hello_may_be_cut_into_records() {
    let whole = hello(&all());
    let pieces: Vec<u8> =
        whole[5..].chunks(7).flat_map(|piece| [&[22, 3, 1][..], &long(piece)].concat()).collect();
    refused(&pieces, Error::Proof, Alert::DECRYPT_ERROR);
}

/// GnuTLS makes binders by SHA-256, whatever the key is for.
#[test]
fn a_binder_of_another_hash_than_the_keys_is_told_from_a_wrong_key() {
    let mut bytes = hello(&all());
    let suites = bytes.windows(4).position(|four| four == [0, 2, 0x13, 1]).expect("the suites");
    bytes[suites + 3] = 2;
    let mut peer = Peer::new(vec![psk(Hash::Sha384, 7)], 1);
    assert_eq!(peer.receive(&bytes).err(), Some(Error::BinderHash));
    assert_eq!(peer.server.take_out(), [21, 3, 3, 0, 2, 2, Alert::DECRYPT_ERROR.0]);
}
