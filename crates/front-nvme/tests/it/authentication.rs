//! DH-HMAC-CHAP over real sockets.

use lunet_front_nvme::{Concatenation, Host as Listed, Hosts};
use lunet_nvme::auth::chap::{Credentials, HostNext, Initiator, Names};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::auth::{Hash, Purpose, Secret};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Fabrics, Property, Security};
use lunet_nvme::host::Error;
use lunet_nvme::status::Status;

use crate::host::{ENABLE, Host, Queue, READY, Settings, nqn};
use crate::support::{SUBSYSTEM, Server, config, layout, memory, serve};

pub fn secret(byte: u8) -> Secret {
    Secret::new(Purpose::DhChap, Some(Hash::Sha256), &[byte; 32]).expect("a secret")
}

/// Serves a subsystem for the first host, which has this secret, and the second, which has none.
fn serve_secret(controller: Option<Secret>) -> (Server, std::net::SocketAddr) {
    let mut layout = layout(vec![memory(1, 8)]);
    let host = |number, secret, controller_secret| Listed {
        nqn: nqn(number),
        secret,
        controller_secret,
        tls: None,
        concatenation: Concatenation::Allowed,
    };
    let hosts = vec![host(1, Some(secret(1)), controller), host(2, None, None)];
    layout.subsystems[0].hosts = Hosts::Listed(hosts);
    serve(config(layout))
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
