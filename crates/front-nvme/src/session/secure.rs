//! TLS: from the first byte of a connection to keys for the kernel, or to a refusal.
//!
//! The first byte tells a handshake from an ICReq. During a handshake no more is received than its records, because what
//! follows is the kernel's to open. The exchange of Diffie-Hellman is computed by another thread, one at a time on the
//! whole server. What a connection may take for all that is bounded as it is for every login: by its place among the
//! logins, by the time for a Connect, and by the 8 KiB of a message.

use std::io;

use lunet_nvme::auth::Hash;
use lunet_nvme::auth::psk::{Identity, Origin, TlsKey, candidates};
use lunet_nvme::controller::Connection;
use lunet_nvme::fabrics::Transport;
use lunet_nvme::name::DISCOVERY_NQN;
use lunet_server::conn::{ConnId, Wire};
use lunet_server::rationed::Topic;
use lunet_server::refusals::Refusal;
use lunet_tls::exchange::{Exchanged, Job};
use lunet_tls::{Next, Psk, Session, suite};
use lunet_volume::Face;
use thiserror::Error;

use super::{Conn, Shard};
use crate::config::Tls;
use crate::connection::{Channel, Handshake, NvmeConn, Secured};
use crate::engine::Engine;
use crate::generated::Made;
use crate::message::Message;
use crate::world::{Exports, World};

/// The first byte of a record with handshake messages.
const HANDSHAKE: u8 = 0x16;

/// Bytes of the first receive: the header of a record, or the beginning of an ICReq.
const FIRST: usize = 5;

/// So many keys of one host are tried for discovery: it may have another one for each subsystem.
const KEYS: usize = 4;

/// How much may be received next, so that nothing is that the kernel has to open.
pub(super) fn rx_limit(conn: &NvmeConn) -> Option<usize> {
    match &conn.tls {
        Channel::Plain | Channel::Tls(_) => None,
        Channel::Unknown => Some(FIRST),
        Channel::Handshake(handshake) => Some(handshake.server.wants()),
        Channel::Refused(_) => Some(0),
    }
}

/// True if what has come is PDUs, or parts of them; the rest is dealt with.
pub(super) fn are_pdus<Fc: Face>(engine: &mut Engine<Fc>, conn: &mut Conn, bytes: &[u8]) -> bool {
    match &conn.front.tls {
        Channel::Plain | Channel::Tls(_) => true,
        Channel::Unknown if bytes.first() != Some(&HANDSHAKE) => {
            let required = engine.world.rules.tls(conn.portal) == Tls::Required;
            let why = "the portal is for TLS, and the host has come without";
            conn.front.tls = if required { Channel::Refused(why.into()) } else { Channel::Plain };
            !required
        }
        Channel::Unknown => {
            conn.front.tls = Channel::Handshake(Box::default());
            received(engine, conn, bytes);
            false
        }
        Channel::Handshake(_) => {
            received(engine, conn, bytes);
            false
        }
        Channel::Refused(_) => false,
    }
}

fn random(bytes: &mut [u8]) -> bool {
    lunet_os::random::fill(bytes).is_ok()
}

/// Bytes of a handshake.
fn received<Fc: Face>(engine: &mut Engine<Fc>, conn: &mut Conn, bytes: &[u8]) {
    let Channel::Handshake(handshake) = &mut conn.front.tls else { return };
    let Handshake { server, unknown } = &mut **handshake;
    let portal = conn.portal;
    let mut keys = |identity: &[u8]| {
        let found = keys(engine, portal, identity);
        let text = String::from_utf8_lossy(identity).into_owned();
        *unknown = found.as_ref().err().map(|why| (text, *why));
        found.unwrap_or_default().into_iter().map(psk).collect()
    };
    let next = server.receive(bytes, &mut keys, &mut random);
    conn.out.chain.bytes(&server.take_out());
    match next {
        Ok((_, Next::Receive)) => {}
        Ok((_, Next::Compute(job))) => compute(engine, conn, job),
        Ok((_, Next::Done)) => done(engine, conn),
        Err(why) => fail(conn, why),
    }
}

/// A key in the terms of TLS.
fn psk(key: TlsKey) -> Psk {
    let hash = match key.hash {
        Hash::Sha256 => suite::Hash::Sha256,
        // No identity has SHA-512.
        Hash::Sha384 | Hash::Sha512 => suite::Hash::Sha384,
    };
    Psk { hash, key: key.key }
}

/// The keys that a host of this identity may have where it has come, or why there are none.
fn keys<Fc: Face>(
    engine: &Engine<Fc>,
    portal: usize,
    identity: &[u8],
) -> Result<Vec<TlsKey>, &'static str> {
    let world = &engine.world;
    let text = std::str::from_utf8(identity).ok();
    let parsed = text.and_then(|text| Some((text, Identity::parse(text)?)));
    let (text, identity) = parsed.ok_or("the identity is not one of NVMe over TCP")?;
    if world.rules.tls(portal) == Tls::Off {
        return Err("TLS is off at the portal");
    }
    if identity.origin == Origin::Generated {
        let now = engine.exec.storage.now;
        return engine.core.front.generated.keys(text, now, |made| is_same(world, portal, made));
    }
    let discovery = identity.subnqn == DISCOVERY_NQN;
    let reached = world.exports().map(|(_, subsystem)| subsystem);
    let reached = reached.filter(|subsystem| subsystem.is_reached_through(portal));
    let named = reached.filter(|subsystem| discovery || subsystem.nqn == identity.subnqn);
    let hosts = named.filter_map(|subsystem| subsystem.host(&identity.hostnqn)?.tls.as_ref());
    let mut secrets = Vec::new();
    for key in hosts {
        if !secrets.contains(&&key.secret) {
            secrets.push(&key.secret);
        }
    }
    if secrets.is_empty() {
        return Err("the host has no key of TLS for the subsystem at this portal");
    }
    let found = secrets.into_iter().take(KEYS).flat_map(|secret| candidates(secret, text));
    let found: Vec<TlsKey> = found.collect();
    match found.is_empty() {
        true => Err("the host's key of TLS, or its hash, is another one than lunet has"),
        false => Ok(found),
    }
}

/// True if the host that has made a key proves itself for the subsystem as it did then.
fn is_same<Fc: Face>(world: &World<Fc>, portal: usize, made: &Made) -> bool {
    let found = world.find(&made.subsystem).map(|(_, subsystem)| subsystem);
    let found = found.filter(|subsystem| subsystem.is_reached_through(portal));
    found.and_then(|subsystem| subsystem.host(&made.host.nqn)) == Some(&made.host)
}

/// Has an exchange of Diffie-Hellman computed by another thread.
fn compute<Fc: Face>(engine: &mut Engine<Fc>, conn: &mut Conn, job: Job) {
    let mailbox = engine.core.mailboxes()[engine.number].clone();
    let connection = conn.serial;
    let compute = move || {
        let exchanged = job.compute();
        mailbox.tell(Message::Exchanged { connection, exchanged });
    };
    if !engine.core.offload.give(None, Box::new(compute)) {
        conn.front.tls = Channel::Refused("there is too much to compute for others".into());
    }
}

/// An exchange is computed.
pub(super) fn exchanged<Fc: Face>(shard: &mut Shard<Fc>, serial: u64, exchanged: Exchanged) {
    let Some(slot) = shard.find(serial) else { return };
    let conn = &mut shard.conns[slot];
    let Channel::Handshake(handshake) = &mut conn.front.tls else { return };
    let next = handshake.server.computed(exchanged, &mut random);
    conn.out.chain.bytes(&handshake.server.take_out());
    if let Err(why) = next {
        fail(conn, why);
    }
    look(shard, slot);
    shard.touch(slot);
}

/// The host has proved itself: the kernel goes on.
fn done<Fc: Face>(engine: &mut Engine<Fc>, conn: &mut Conn) {
    let channel = std::mem::replace(&mut conn.front.tls, Channel::Plain);
    let session = match channel {
        Channel::Handshake(handshake) => handshake.server.finish(),
        _ => None,
    };
    conn.front.tls = match secure(engine, &conn.wire, session) {
        Ok(secured) => Channel::Tls(Box::new(secured)),
        Err(why) => Channel::Refused(why.to_string().into()),
    };
    // The time for the Connect begins now: hosts and their helpers take some for the handshake.
    let (offer, now) = (engine.core.front.offer(Transport::Tcp), engine.exec.storage.now);
    conn.front.proto = Connection::new(offer, now);
}

/// Why the kernel does not go on.
#[derive(Debug, Error)]
enum NotSecured {
    #[error("the handshake has left no keys")]
    NoKeys,
    #[error("the kernel does not take the keys of TLS: {0}")]
    Kernel(io::Error),
}

fn secure<Fc: Face>(
    engine: &mut Engine<Fc>,
    wire: &Wire,
    session: Option<Session>,
) -> Result<Secured, NotSecured> {
    let identity =
        |session: &Session| Identity::parse(std::str::from_utf8(&session.identity).ok()?);
    let session = session.and_then(|session| Some((identity(&session)?, session)));
    let (Some((identity, session)), Wire::Stream(socket)) = (session, wire) else {
        return Err(NotSecured::NoKeys);
    };
    let (send, receive) = (session.send.for_linux(), session.receive.for_linux());
    let done = engine.exec.storage.ring.secure(*socket, &send, &receive);
    done.map_err(NotSecured::Kernel)?;
    let text = || String::from_utf8_lossy(&session.identity).into();
    let generated = (identity.origin == Origin::Generated).then(text);
    Ok(Secured { identity, suite: session.suite.name(), generated })
}

fn fail(conn: &mut Conn, why: lunet_tls::Error) {
    let Channel::Handshake(handshake) = &mut conn.front.tls else { return };
    let told = match handshake.unknown.take() {
        Some((identity, reason)) if why == lunet_tls::Error::Unknown => {
            format!("{reason}: {identity:?}")
        }
        _ => why.to_string(),
    };
    conn.front.tls = Channel::Refused(told.into());
}

/// Ends a connection that is refused, once what is to be said to the host is sent.
pub(super) fn look<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    let Channel::Refused(why) = &mut conn.front.tls else { return };
    let why = std::mem::take(why);
    let (peer, now) = (conn.peer, shard.front.exec.storage.now);
    if why.is_empty() {
        return;
    }
    shard.front.protocol.refused += 1;
    if let Some(unlogged) = shard.core.rations.grants(Topic::Refused, now) {
        tracing::warn!(%peer, unlogged, "TLS: connection refused: {why}");
    }
    // Before a Connect a host has no name, but for that in the identity of a key, which `why` tells.
    shard.core.front.refusals.add(Refusal {
        time: lunet_os::time::unix(),
        client: String::new(),
        export: String::new(),
        peer: peer.ip(),
        why: format!("TLS: {why}"),
    });
    shard.drain(slot);
}
