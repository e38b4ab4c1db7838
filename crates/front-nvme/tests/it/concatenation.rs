//! Secure channel concatenation over real sockets: an authentication makes a key of TLS, by which the host comes back. What
//! a controller does with records needs TLS in the kernel; the lab's suite `nvme-tls` has that.

use std::net::SocketAddr;

use lunet_front_nvme::{Concatenation, Host as Listed, Hosts, Layout, Tls};
use lunet_nvme::auth::chap::{Credentials, Names};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::auth::{Hash, psk};
use lunet_nvme::fabrics::ANY_CONTROLLER;
use lunet_nvme::host::Error;
use lunet_nvme::status::Status;
use lunet_tls::client::Config as Offer;
use lunet_tls::exchange::Group as Curve;
use lunet_tls::{Alert, suite};

use crate::authentication::{prove, secret};
use crate::host::{ENABLE, Queue, READY, Settings, nqn};
use crate::support::{SUBSYSTEM, Server, Shown, config, layout, memory, serve};
use crate::tls::{initialize, shake};

/// A subsystem for the first host, with this secret.
fn proved(concatenation: Concatenation, byte: u8, tls: Tls) -> Layout<Shown> {
    let mut layout = layout(vec![memory(1, 8)]);
    layout.tls = vec![(0, tls)];
    layout.subsystems[0].hosts = Hosts::Listed(vec![Listed {
        nqn: nqn(1),
        secret: Some(secret(byte)),
        controller_secret: None,
        tls: None,
        concatenation,
    }]);
    layout
}

fn serve_proved(concatenation: Concatenation, tls: Tls) -> (Server, SocketAddr) {
    serve(config(proved(concatenation, 1, tls)))
}

fn connect(address: SocketAddr, ids: (u16, u16)) -> Result<Queue, Error> {
    Queue::connect(address, &Settings::default(), ids)
}

fn refusal(result: Result<Queue, Error>) -> Option<Status> {
    match result {
        Err(Error::Refused(completion)) => Some(completion.status),
        _ => None,
    }
}

/// Authenticates, and makes a key: what a handshake offers for it, by each derivation.
fn make_key(admin: &mut Queue, concatenation: bool) -> Option<Vec<Offer>> {
    let credentials = Credentials {
        names: Names { host: nqn(1), subsystem: SUBSYSTEM.into() },
        host: secret(1),
        controller: None,
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null, Group::Ffdhe2048],
        concatenation,
    };
    let host = prove(admin, credentials)?;
    let (hash, key) = host.generated()?;
    let keys = psk::generated(hash, key, &nqn(1), SUBSYSTEM).into_iter();
    let offer = |key: psk::TlsKey| Offer {
        identity: key.identity.into_bytes(),
        psk: lunet_tls::Psk { hash: suite::Hash::Sha256, key: key.key },
        groups: Curve::ALL.to_vec(),
        shares: 1,
        compatible: true,
    };
    Some(keys.map(offer).collect())
}

#[test]
fn a_key_that_an_authentication_makes_opens_tls_and_no_plain_queue() {
    for concatenation in [Concatenation::Allowed, Concatenation::Required] {
        let (server, address) = serve_proved(concatenation, Tls::Allowed);
        let mut admin = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
        let mut offers = make_key(&mut admin, true).expect("a key");
        // Linux configures the controller before it comes back.
        assert!(admin.configure(ENABLE).is_success());
        assert_eq!(admin.property(lunet_nvme::fabrics::Property::Status), READY);
        let queue = connect(address, (1, admin.cntlid));
        assert_eq!(refusal(queue), Some(Status::AUTHENTICATION_REQUIRED));
        let mut other = offers.remove(0);
        let key = other.psk.key.clone();
        initialize(shake(address, offers.remove(0), usize::MAX).expect("a session"));
        // The same identity with a key that nobody has.
        let wrong = Offer {
            psk: lunet_tls::Psk { hash: suite::Hash::Sha256, key: vec![1; 32].into() },
            ..other
        };
        let error = shake(address, wrong, usize::MAX).err();
        assert_eq!(error, Some(lunet_tls::Error::Refused(Alert::DECRYPT_ERROR)));
        // Another secret makes other keys.
        let mut again = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
        other = make_key(&mut again, true).expect("a key").remove(0);
        assert_ne!(other.psk.key, key);
        server.handle().apply(proved(concatenation, 2, Tls::Allowed)).expect("it is served");
        let error = shake(address, other, usize::MAX).err();
        assert_eq!(error, Some(lunet_tls::Error::Refused(Alert::UNKNOWN_PSK_IDENTITY)));
    }
}

#[test]
fn a_host_that_has_to_make_a_key_gets_nothing_without() {
    let (server, address) = serve_proved(Concatenation::Required, Tls::Allowed);
    let mut admin = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
    assert!(make_key(&mut admin, false).is_none());
    admin.wait_for_end();
    assert_eq!(refusal(connect(address, (1, 1))), Some(Status::AUTHENTICATION_REQUIRED));
    // It has not guessed at anything, and need not wait.
    for _ in 0..6 {
        make_key(&mut connect(address, (0, ANY_CONTROLLER)).expect("a queue"), false);
    }
    assert!(make_key(&mut connect(address, (0, ANY_CONTROLLER)).expect("a queue"), true).is_some());
    drop(server);
    // There is no TLS to come back by.
    let (_server, address) = serve_proved(Concatenation::Required, Tls::Off);
    let admin = connect(address, (0, ANY_CONTROLLER));
    assert_eq!(refusal(admin), Some(Status::AUTHENTICATION_REQUIRED));
}

#[test]
fn keys_are_made_by_admin_queues_where_there_is_tls() {
    let (server, address) = serve_proved(Concatenation::Allowed, Tls::Allowed);
    let mut admin = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
    assert!(make_key(&mut admin, false).is_none());
    assert!(admin.configure(ENABLE).is_success(), "it has authenticated, and made no key");
    let mut queue = connect(address, (1, admin.cntlid)).expect("a queue");
    assert!(make_key(&mut queue, true).is_none());
    queue.wait_for_end();
    drop(server);
    let (_server, address) = serve_proved(Concatenation::Allowed, Tls::Off);
    let mut admin = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
    assert!(make_key(&mut admin, true).is_none());
    admin.wait_for_end();
}

/// A controller has one key. A host that wants another one on the same queue ends it, and the key stays what it is.
#[test]
fn an_authentication_on_a_queue_in_use_makes_and_replaces_no_key() {
    let (server, address) = serve_proved(Concatenation::Allowed, Tls::Allowed);
    let mut admin = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
    let mut offers = make_key(&mut admin, true).expect("a key");
    assert!(admin.configure(ENABLE).is_success());
    assert!(make_key(&mut admin, true).is_none());
    admin.wait_for_end();
    initialize(shake(address, offers.remove(0), usize::MAX).expect("the key is good"));
    // Without a key it is one like any other.
    let mut admin = connect(address, (0, ANY_CONTROLLER)).expect("a queue");
    assert!(make_key(&mut admin, false).is_none() && admin.configure(ENABLE).is_success());
    assert!(make_key(&mut admin, false).is_none() && admin.configure(ENABLE).is_success());
    assert_eq!(server.handle().stats().protocol.refused_hosts, 1);
}
