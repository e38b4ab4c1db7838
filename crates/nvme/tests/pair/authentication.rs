//! A host proves itself on its queue, and the controller, if it is asked to.

use std::rc::Rc;

use lunet_nvme::auth::chap::{
    Concatenation, Credentials, Initiator, Names, Next, Responder, Terms,
};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::auth::{Failure, Hash, Purpose, Secret};
use lunet_nvme::command::Completion;
use lunet_nvme::controller::{Connection, Event};
use lunet_nvme::fabrics::Fabrics;
use lunet_nvme::host::{self, Error};
use lunet_nvme::status::Status;
use lunet_nvme::transmit::Transmit;

use crate::load::Load;
use crate::world::{Bytes, Settings, World};

const HASHES: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

/// The layer above a controller whose host has not proved itself yet.
pub fn guarded<T: Transmit<Payload = Bytes>>(
    event: Event<Vec<u8>>,
    guard: &mut Option<Responder>,
    controller: &mut Connection<Vec<u8>>,
    tx: &mut T,
) {
    let (Event::Command(command), Some(responder)) = (event, guard.as_mut()) else {
        panic!("no command")
    };
    match Fabrics::decode(&command.sqe) {
        Ok(Fabrics::AuthenticationSend(_)) => {
            let (buf, range) = command.data.expect("a message in the capsule");
            if let Next::Compute(job) = responder.sent(&buf[range], &mut random(2)) {
                responder.computed(job.compute());
            }
            controller.complete(command.tag, Completion::SUCCESS, tx);
        }
        Ok(Fabrics::AuthenticationReceive(security)) => {
            let room = security.len as usize;
            match responder.receive(room) {
                Some(mut message) => {
                    message.resize(room, 0);
                    let payload = Bytes(Rc::from(message));
                    let last = Some(Completion::SUCCESS);
                    controller.send_data(command.tag, payload, 0..room, last, tx);
                }
                None => controller.complete(command.tag, Status::SEQUENCE.into(), tx),
            }
        }
        _ => controller.complete(command.tag, Status::AUTHENTICATION_REQUIRED.into(), tx),
    }
    if responder.is_done() {
        controller.authenticated();
        *guard = None;
    }
}

/// Random bytes, in a row.
pub fn random(seed: u8) -> impl FnMut(&mut [u8]) -> bool {
    let mut next = seed;
    move |bytes| {
        for byte in bytes {
            next = next.wrapping_mul(5).wrapping_add(101);
            *byte = next;
        }
        true
    }
}

pub fn secret(byte: u8) -> Secret {
    Secret::new(Purpose::DhChap, Some(Hash::Sha256), &[byte; 32]).expect("a secret")
}

fn names() -> Names {
    let connect = Settings::default().host().connect;
    Names { host: connect.hostnqn, subsystem: connect.subnqn }
}

pub fn terms() -> Terms {
    Terms {
        names: names(),
        host: secret(1),
        controller: Some(secret(2)),
        hashes: HASHES.to_vec(),
        groups: Group::ALL.to_vec(),
        concatenation: Concatenation::Refused,
    }
}

pub fn credentials(hash: Hash, group: Group) -> Credentials {
    Credentials {
        names: names(),
        host: secret(1),
        controller: None,
        hashes: vec![hash],
        groups: vec![group],
        concatenation: false,
    }
}

/// Both ends, of which the controller asks for what is in `terms`, when all is quiet.
fn world(terms: Option<Terms>, credentials: Option<Credentials>, settings: Settings) -> World {
    let mut world = World::with(settings, 7, |world| {
        world.guard = terms.map(|terms| Responder::new(terms, 77));
        if let Some(credentials) = credentials {
            let initiator = Initiator::new(credentials, 9, 33, &mut random(1));
            world.host.authenticate(initiator.expect("random numbers"));
        }
    });
    world.settle();
    world
}

/// How it ended for the host.
fn end(world: &mut World) -> Result<(), Error> {
    match std::mem::take(&mut world.events).pop() {
        Some(host::Event::Connected(_)) => Ok(()),
        Some(host::Event::Failed(error)) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn hosts_prove_themselves_with_every_hash_and_group() {
    for hash in HASHES {
        for group in Group::ALL {
            let both = Credentials { controller: Some(secret(2)), ..credentials(hash, group) };
            let digests = hash == Hash::Sha384;
            let settings =
                Settings { header_digest: digests, data_digest: digests, ..Settings::default() };
            let mut world = world(Some(terms()), Some(both), settings);
            assert_eq!(end(&mut world), Ok(()), "{hash:?} {group:?}");
            assert!(world.guard.is_none() && world.controller.is_ready());
            let mut load = Load::new(&world);
            load.run(&mut world, 10);
        }
    }
}

#[test]
fn who_does_not_prove_what_was_asked_for_does_not_connect() {
    let own = || credentials(Hash::Sha256, Group::Null);
    let ask = |terms: Option<Terms>, credentials| {
        end(&mut world(terms, Some(credentials), Settings::default()))
    };
    assert_eq!(ask(Some(terms()), own()), Ok(()));
    let wrong = Credentials { host: secret(5), ..own() };
    assert_eq!(ask(Some(terms()), wrong), Err(Error::NotProven(Failure::Failed)));
    // The controller's own.
    let both = |byte| Credentials { controller: Some(secret(byte)), ..own() };
    assert_eq!(ask(Some(terms()), both(2)), Ok(()));
    assert_eq!(ask(Some(terms()), both(3)), Err(Error::ControllerNotProven(Failure::Failed)));
    let none = Terms { controller: None, ..terms() };
    assert_eq!(ask(Some(none), both(2)), Err(Error::NotProven(Failure::Failed)));
    // Nothing in common.
    let other = Terms { hashes: vec![Hash::Sha512], ..terms() };
    assert_eq!(ask(Some(other), own()), Err(Error::NotProven(Failure::Hash)));
    // No proof is asked for: good for a host, and not for one that wants a proof itself.
    assert_eq!(ask(None, own()), Ok(()));
    assert_eq!(ask(None, both(2)), Err(Error::NoProof));
}

#[test]
fn a_host_without_a_secret_is_told_that_one_is_wanted() {
    let mut world = world(Some(terms()), None, Settings::default());
    let Some(host::Event::Connected(connected)) = world.events.pop() else { panic!("no answer") };
    assert_eq!(connected.authentication, lunet_nvme::fabrics::Authentication::Required);
}

#[test]
fn a_controller_that_falls_silent_in_the_middle_is_given_up() {
    let mut world = World::with(Settings::default(), 3, |world| {
        world.guard = Some(Responder::new(terms(), 77));
        let own = credentials(Hash::Sha256, Group::Null);
        let initiator = Initiator::new(own, 9, 33, &mut random(1));
        world.host.authenticate(initiator.expect("random numbers"));
    });
    for _ in 0..3 {
        world.step();
    }
    let by = world.host.poll_timeout().expect("a limit");
    world.host.handle_timeout(by, &mut world.events);
    assert_eq!(end(&mut world), Err(Error::ConnectTimeout));
}
