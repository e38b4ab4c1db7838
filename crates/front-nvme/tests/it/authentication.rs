//! DH-HMAC-CHAP over real sockets.

use std::sync::Arc;

use lunet_front_nvme::{Concatenation, Host as Listed, Hosts, Layout};
use lunet_nvme::auth::chap::{Credentials, HostNext, Initiator, Names};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::auth::{Hash, Purpose, Secret};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Fabrics, Property, Security};
use lunet_nvme::host::Error;
use lunet_nvme::status::Status;
use lunet_volume::Volume;

use crate::host::{ENABLE, Host, Queue, READY, Settings, nqn};
use crate::support::{SUBSYSTEM, Server, Shown, config, layout, memory, serve};

pub fn secret(byte: u8) -> Secret {
    Secret::new(Purpose::DhChap, Some(Hash::Sha256), &[byte; 32]).expect("a secret")
}

/// Serves a subsystem for the first host, which has this secret, and the second, which has none.
fn serve_secret(controller: Option<Secret>) -> (Server, std::net::SocketAddr) {
    serve(config(secret_layout(memory(1, 8), 1, controller)))
}

/// The same with this volume, where the first host has the secret of this byte.
fn secret_layout(
    volume: Arc<Volume<Shown>>,
    byte: u8,
    controller: Option<Secret>,
) -> Layout<Shown> {
    let mut layout = layout(vec![volume]);
    let host = |number, secret, controller_secret| Listed {
        nqn: nqn(number),
        secret,
        controller_secret,
        tls: None,
        concatenation: Concatenation::Allowed,
    };
    let hosts = vec![host(1, Some(secret(byte)), controller), host(2, None, None)];
    layout.subsystems[0].hosts = Hosts::Listed(hosts);
    layout
}

/// Authenticates on a queue. True if both ends agree.
fn authenticate(queue: &mut Queue, own: u8, controller: Option<Secret>, group: Group) -> bool {
    let names = Names { host: nqn(1), subsystem: SUBSYSTEM.into() };
    let (hashes, groups) = (vec![Hash::Sha384], vec![group]);
    let host = secret(own);
    let credentials = Credentials { names, host, controller, hashes, groups, concatenation: false };
    prove(queue, credentials).is_some()
}

/// Authenticates on a queue. The host's end, if both ends agree.
pub fn prove(queue: &mut Queue, credentials: Credentials) -> Option<Initiator> {
    let mut random = |bytes: &mut [u8]| {
        bytes.iter_mut().zip(1u8..).for_each(|(byte, n)| *byte = n.wrapping_mul(37));
        true
    };
    let mut host = Initiator::new(credentials, 7, 3, &mut random).expect("random numbers");
    let send = |queue: &mut Queue, message: &[u8]| {
        let security = Security::dh_chap(message.len() as u32);
        queue.send_data(Fabrics::AuthenticationSend(security).encode(), message).status
    };
    let mut next = HostNext::Send(host.negotiate());
    loop {
        next = match next {
            HostNext::Compute(job) => host.computed(job.compute()),
            HostNext::Send(message) => {
                assert!(send(queue, &message).is_success());
                let security = Security::dh_chap(4096);
                let receive = Fabrics::AuthenticationReceive(security).encode();
                host.received(&queue.fetch(receive, 4096).expect("a message"))
            }
            HostNext::Done(message) => {
                message.iter().for_each(|message| assert!(send(queue, message).is_success()));
                return Some(host);
            }
            HostNext::Failed(_, message) => {
                message.iter().for_each(|message| queue.try_send(message));
                return None;
            }
        }
    }
}

fn connect(address: std::net::SocketAddr, ids: (u16, u16)) -> Queue {
    Queue::connect(address, &Settings::default(), ids).expect("a queue")
}

#[test]
fn a_host_proves_itself_on_every_queue() {
    for (group, controller) in [(Group::Null, None), (Group::Ffdhe2048, Some(secret(9)))] {
        let (server, address) = serve_secret(controller.clone());
        let mut admin = connect(address, (0, ANY_CONTROLLER));
        assert_eq!(admin.configure(ENABLE), Status::AUTHENTICATION_REQUIRED);
        assert!(authenticate(&mut admin, 1, controller.clone(), group));
        assert!(admin.configure(ENABLE).is_success());
        assert_eq!(admin.property(Property::Status), READY);
        let mut queue = connect(address, (1, admin.cntlid));
        assert_eq!(queue.write(1, 0, &[1; 512]), Status::AUTHENTICATION_REQUIRED);
        assert!(authenticate(&mut queue, 1, controller, group));
        assert!(queue.write(1, 0, &[1; 512]).is_success());
        let sessions = server.handle().sessions();
        assert!(sessions.len() == 1 && sessions[0].authenticated);
        // Another host needs no secret.
        let mut other = Host::new(address, Settings { host: 2, ..Settings::default() }, 1);
        assert!(other.io().write(1, 0, &[2; 512]).is_success());
    }
}

/// A controller and an I/O queue of the first host, which has proved itself on both, by both ends' secrets or its own.
fn proved(address: std::net::SocketAddr, controller: Option<Secret>) -> (Queue, Queue) {
    let mut admin = connect(address, (0, ANY_CONTROLLER));
    assert!(authenticate(&mut admin, 1, controller.clone(), Group::Null));
    assert!(admin.configure(ENABLE).is_success());
    let mut queue = connect(address, (1, admin.cntlid));
    assert!(authenticate(&mut queue, 1, controller, Group::Null));
    (admin, queue)
}

#[test]
fn a_host_that_proves_itself_anew_keeps_its_controller() {
    for (group, controller) in [(Group::Null, None), (Group::Ffdhe2048, Some(secret(9)))] {
        let (server, address) = serve_secret(controller.clone());
        let (mut admin, mut queue) = proved(address, controller.clone());
        for round in 1..4 {
            assert!(authenticate(&mut admin, 1, controller.clone(), group));
            assert!(queue.write(1, 0, &[round; 512]).is_success());
            assert!(authenticate(&mut queue, 1, controller.clone(), group));
            assert!(queue.write(1, 1, &[round; 512]).is_success());
        }
        // Halfway through, both queues are used as before.
        let names = Names { host: nqn(1), subsystem: SUBSYSTEM.into() };
        let (hashes, groups) = (vec![Hash::Sha256], vec![group]);
        let (host, concatenation) = (secret(1), false);
        let credentials = Credentials { names, host, controller, hashes, groups, concatenation };
        let mut random = |bytes: &mut [u8]| {
            bytes.fill(5);
            true
        };
        let host = Initiator::new(credentials, 8, 4, &mut random).expect("random numbers");
        for queue in [&mut admin, &mut queue] {
            let message = host.negotiate();
            let security = Security::dh_chap(message.len() as u32);
            let sent = Fabrics::AuthenticationSend(security).encode();
            assert!(queue.send_data(sent, &message).status.is_success());
        }
        assert_eq!(admin.property(Property::Status), READY);
        assert!(queue.write(1, 0, &[7; 512]).is_success());
        let sessions = server.handle().sessions();
        assert!(sessions.len() == 1 && sessions[0].authenticated);
        assert_eq!(server.handle().stats().protocol.refused_hosts, 0);
    }
}

/// As it is replaced without a disconnect: in the configuration, where sessions are kept, and then at the host.
#[test]
fn a_host_proves_itself_anew_by_another_secret() {
    let volume = memory(1, 8);
    let (server, address) = serve(config(secret_layout(volume.clone(), 1, None)));
    let (mut admin, mut queue) = proved(address, None);
    let next = Layout { keep_sessions: true, ..secret_layout(volume, 2, None) };
    server.handle().apply(next).expect("it is served");
    assert!(queue.write(1, 0, &[1; 512]).is_success());
    assert!(authenticate(&mut admin, 2, None, Group::Ffdhe2048));
    assert!(authenticate(&mut queue, 2, None, Group::Ffdhe2048));
    assert!(queue.write(1, 0, &[2; 512]).is_success());
    assert!(!authenticate(&mut queue, 1, None, Group::Null));
    admin.wait_for_end();
    queue.wait_for_end();
}

/// On whichever queue: the controller ends as a whole.
#[test]
fn a_host_that_fails_to_prove_itself_anew_loses_its_controller() {
    for on_admin in [true, false] {
        let (server, address) = serve_secret(None);
        let (mut admin, mut queue) = proved(address, None);
        let again = if on_admin { &mut admin } else { &mut queue };
        assert!(!authenticate(again, 2, None, Group::Ffdhe2048));
        admin.wait_for_end();
        queue.wait_for_end();
        assert_eq!(server.handle().stats().protocol.refused_hosts, 1);
        drop(proved(address, None));
    }
}

/// A host that finds that the controller does not know its own secret ends it, and guesses at nothing.
#[test]
fn a_host_that_does_not_believe_the_controller_any_more_leaves_it() {
    let (_server, address) = serve_secret(Some(secret(9)));
    for _ in 0..6 {
        let (mut admin, mut queue) = proved(address, Some(secret(9)));
        assert!(!authenticate(&mut admin, 1, Some(secret(8)), Group::Null));
        admin.wait_for_end();
        queue.wait_for_end();
    }
}

#[test]
fn guesses_at_a_secret_on_a_controller_in_use_are_bounded() {
    let (_server, address) = serve_secret(None);
    let (mut stays, _queue) = proved(address, None);
    for _ in 0..5 {
        let (mut admin, _queue) = proved(address, None);
        assert!(!authenticate(&mut admin, 2, None, Group::Null));
        admin.wait_for_end();
    }
    let negotiate = |queue: &mut Queue| {
        let names = Names { host: nqn(1), subsystem: SUBSYSTEM.into() };
        let (hashes, groups) = (vec![Hash::Sha256], vec![Group::Null]);
        let (host, controller, concatenation) = (secret(1), None, false);
        let credentials = Credentials { names, host, controller, hashes, groups, concatenation };
        let host = Initiator::new(credentials, 8, 4, &mut |_| true).expect("random numbers");
        let message = host.negotiate();
        let sent = Fabrics::AuthenticationSend(Security::dh_chap(message.len() as u32)).encode();
        queue.send_data(sent, &message).status
    };
    assert_eq!(negotiate(&mut stays).code(), Status::INTERRUPTED);
    assert_eq!(stays.property(Property::Status), READY, "it keeps what it has");
}

#[test]
fn what_begins_no_authentication_is_refused_and_ends_nothing() {
    let (_server, address) = serve_secret(None);
    let (mut admin, mut queue) = proved(address, None);
    let other = Settings { host: 2, ..Settings::default() };
    let mut other = Host::new(address, other, 1);
    for queue in [&mut admin, &mut queue, &mut other.admin] {
        let sent = Fabrics::AuthenticationSend(Security::dh_chap(16)).encode();
        let refused = Status::SEQUENCE.no_retry();
        // A success of nobody's, and a message before it was asked for.
        assert_eq!(
            queue.send_data(sent, &[1, 4, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).status,
            refused
        );
        let receive = Fabrics::AuthenticationReceive(Security::dh_chap(4096)).encode();
        assert_eq!(queue.fetch(receive, 4096).expect_err("nothing to say"), refused);
    }
    assert!(
        queue.write(1, 0, &[7; 512]).is_success() && other.io().write(1, 0, &[8; 512]).is_success()
    );
}

#[test]
fn an_authentication_that_is_not_ended_ends_nothing_unless_it_has_failed() {
    let mut layout = layout(vec![memory(1, 8)]);
    let listed = Listed {
        nqn: nqn(1),
        secret: Some(secret(1)),
        controller_secret: None,
        tls: None,
        concatenation: Concatenation::Allowed,
    };
    layout.subsystems[0].hosts = Hosts::Listed(vec![listed]);
    let mut config = config(layout);
    config.options.connect_timeout = std::time::Duration::from_millis(500);
    let (_server, address) = serve(config);
    let (mut admin, mut queue) = proved(address, None);
    let names = Names { host: nqn(1), subsystem: SUBSYSTEM.into() };
    let credentials = |own| Credentials {
        names: names.clone(),
        host: secret(own),
        controller: None,
        hashes: vec![Hash::Sha256],
        groups: vec![Group::Null],
        concatenation: false,
    };
    let send = |queue: &mut Queue, message: &[u8]| {
        let security = Security::dh_chap(message.len() as u32);
        queue.send_data(Fabrics::AuthenticationSend(security).encode(), message).status
    };
    let host = Initiator::new(credentials(1), 8, 4, &mut |_| true).expect("random numbers");
    assert!(send(&mut queue, &host.negotiate()).is_success());
    // What it has begun is forgotten, and it may begin anew.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(queue.write(1, 0, &[7; 512]).is_success());
    assert!(authenticate(&mut queue, 1, None, Group::Null));
    // A wrong answer whose verdict nobody has asked for.
    let mut host = Initiator::new(credentials(2), 9, 5, &mut |_| true).expect("random numbers");
    assert!(send(&mut admin, &host.negotiate()).is_success());
    let receive = Fabrics::AuthenticationReceive(Security::dh_chap(4096)).encode();
    let challenge = admin.fetch(receive, 4096).expect("a challenge");
    let HostNext::Send(reply) = host.received(&challenge) else { panic!("it answers") };
    assert!(send(&mut admin, &reply).is_success());
    admin.wait_for_end();
    queue.wait_for_end();
}

#[test]
fn a_wrong_secret_ends_the_connection_and_too_many_have_to_wait() {
    let (server, address) = serve_secret(None);
    for _ in 0..5 {
        let mut queue = connect(address, (0, ANY_CONTROLLER));
        assert!(!authenticate(&mut queue, 2, None, Group::Null));
        queue.wait_for_end();
    }
    assert_eq!(server.handle().stats().protocol.refused_hosts, 5);
    match Queue::connect(address, &Settings::default(), (0, ANY_CONTROLLER)) {
        Err(Error::Refused(completion)) => assert_eq!(completion.status, Status::CONNECT_BUSY),
        _ => panic!("it is not refused"),
    }
    assert!(server.handle().sessions().iter().all(|session| !session.authenticated));
}

/// Who knows its secret guesses at nothing, however often it finds that the controller does not know its own.
#[test]
fn a_host_that_does_not_believe_the_controller_may_come_again() {
    for controller in [Some(secret(9)), None] {
        let (_server, address) = serve_secret(controller);
        for _ in 0..6 {
            let mut queue = connect(address, (0, ANY_CONTROLLER));
            assert!(!authenticate(&mut queue, 1, Some(secret(8)), Group::Null));
            queue.wait_for_end();
        }
        assert!(authenticate(&mut connect(address, (0, ANY_CONTROLLER)), 1, None, Group::Null));
    }
}

#[test]
fn a_host_that_does_not_authenticate_in_time_is_disconnected() {
    let mut layout = layout(vec![memory(1, 8)]);
    let host = Listed {
        nqn: nqn(1),
        secret: Some(secret(1)),
        controller_secret: None,
        tls: None,
        concatenation: Concatenation::Allowed,
    };
    layout.subsystems[0].hosts = Hosts::Listed(vec![host]);
    let mut config = config(layout);
    config.options.connect_timeout = std::time::Duration::from_millis(300);
    let (_server, address) = serve(config);
    connect(address, (0, ANY_CONTROLLER)).wait_for_end();
}
