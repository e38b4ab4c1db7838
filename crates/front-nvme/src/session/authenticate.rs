//! DH-HMAC-CHAP: a host proves itself on each queue before the queue takes other commands.
//!
//! Exchanges of Diffie-Hellman are computed by another thread, one at a time on the whole server. Until it has
//! authenticated a connection has its place among the logins, and may lose it to another.
//!
//! A host may prove itself anew on a queue that it uses, as Linux does when it is given another secret: success changes
//! nothing, and failure ends the controller.

use std::time::Duration;

use lunet_nvme::auth::chap::{Computed, Names, Next, Responder, Terms};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::auth::{Failure, Hash};
use lunet_nvme::command::FABRICS;
use lunet_nvme::controller::{Command, Tag};
use lunet_nvme::fabrics::{Fabrics, FabricsType, Security};
use lunet_nvme::name::DISCOVERY_NQN;
use lunet_nvme::status::Status;
use lunet_ring::Buf;
use lunet_server::conn::ConnId;
use lunet_server::rationed::Topic;
use lunet_server::refusals::Refusal;
use lunet_volume::Face;
use zeroize::Zeroizing;

use super::connect::established;
use super::{Conn, Shard, through};
use crate::config::{Concatenation, Host};
use crate::connection::{Authentication, complete, send_page};
use crate::generated::Made;
use crate::message::Message;

/// Hashes that will do, the best first.
const HASHES: [Hash; 3] = [Hash::Sha512, Hash::Sha384, Hash::Sha256];

/// Groups that will do, the best first. The smallest is as strong as what is proved by it; larger ones cost both ends
/// seconds of processor time. Without any, the secret is only as good as it is long.
const GROUPS: [Group; 6] = [
    Group::Ffdhe2048,
    Group::Ffdhe3072,
    Group::Ffdhe4096,
    Group::Ffdhe6144,
    Group::Ffdhe8192,
    Group::Null,
];

/// Longest message, in bytes, with what a host has room for behind it.
const MESSAGE: usize = 8192;

/// True if this host has to authenticate on a connection: not where a key that its authentication has made proves it.
pub(super) fn is_asked(host: Option<&Host>, conn: &Conn) -> bool {
    host.is_some_and(|host| host.secret.is_some()) && conn.front.tls.generated().is_none()
}

/// What a host is asked for; `None` if its name is enough.
pub(super) fn begin(
    host: Option<&Host>,
    subsystem: &str,
    concatenation: Concatenation,
    (sequence, by): (u64, Duration),
) -> Option<Box<Authentication>> {
    let host = host?;
    let terms = Terms {
        names: Names { host: host.nqn.clone(), subsystem: subsystem.to_owned() },
        host: host.secret.clone()?,
        controller: host.controller_secret.clone(),
        hashes: HASHES.to_vec(),
        groups: GROUPS.to_vec(),
        concatenation,
    };
    Some(Box::new(Authentication { responder: Responder::new(terms, sequence as u32), by }))
}

/// True for the commands of an authentication.
pub(super) fn is_message(command: &Command<Buf>) -> bool {
    let kinds = [FabricsType::AuthenticationSend, FabricsType::AuthenticationReceive];
    let sqe = &command.sqe;
    sqe.opcode == FABRICS && kinds.iter().any(|kind| kind.code() == sqe.fctype())
}

/// A command of a host that has not authenticated yet: the connection lets only those of the authentication through.
pub(super) fn command<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, command: Command<Buf>) {
    match Fabrics::decode(&command.sqe) {
        Ok(Fabrics::AuthenticationSend(_)) => sent(shard, slot, &command),
        Ok(Fabrics::AuthenticationReceive(security)) => receive(shard, slot, &command, security),
        Ok(_) => complete(&mut shard.conns[slot], command.tag, Status::AUTHENTICATION_REQUIRED),
        Err(status) => complete(&mut shard.conns[slot], command.tag, status),
    }
    look(shard, slot);
}

/// A message of a host that can use its queue: it proves itself anew. What else it does goes on meanwhile.
pub(super) fn again<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, command: Command<Buf>) {
    if shard.conns[slot].front.again.is_none() {
        match begin_again(shard, slot, bytes_of(&command)) {
            Ok(auth) => shard.conns[slot].front.again = Some(auth),
            Err(status) => return complete(&mut shard.conns[slot], command.tag, status),
        }
    }
    self::command(shard, slot, command);
}

/// What a host that proves itself anew is asked for: what it would be asked for if it connected now, but for a key of
/// TLS, of which a controller has one.
///
/// # Errors
/// The status of the command: it is no beginning, there is nothing to prove, or the host has to wait.
fn begin_again<Fc: Face>(
    shard: &Shard<Fc>,
    slot: ConnId,
    message: &[u8],
) -> Result<Box<Authentication>, Status> {
    let now = shard.front.exec.storage.now;
    let (until, sequence) =
        (now + shard.core.front.options.connect_timeout, shard.core.next_serial());
    let conn = &shard.conns[slot];
    let none = Status::SEQUENCE.no_retry();
    let queue = conn.front.queue.as_ref().ok_or(none)?;
    let subsystem = queue.subsystem.as_ref().ok_or(none)?;
    let host = subsystem.host(&queue.member.host.nqn).filter(|host| is_asked(Some(host), conn));
    if !Responder::begins(message) {
        return Err(none);
    }
    let terms = (sequence, until);
    let auth = begin(host, &subsystem.nqn, Concatenation::Refused, terms).ok_or(none)?;
    let number = queue.member.subsystem.ok_or(none)?;
    // Who has failed too often has to wait, as for a Connect.
    match shard.core.throttle.allows(conn.peer.ip(), &number, now) {
        true => Ok(auth),
        false => Err(Status::INTERRUPTED.retry_after(1)),
    }
}

/// The data of an Authentication Send.
fn bytes_of(command: &Command<Buf>) -> &[u8] {
    command.data.as_ref().map_or(&[][..], |(buf, range)| &buf[range.clone()])
}

fn sent<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, command: &Command<Buf>) {
    let tag = command.tag;
    let auth = shard.conns[slot].front.exchange();
    let mut random = |bytes: &mut [u8]| lunet_os::random::fill(bytes).is_ok();
    let next = auth.map(|auth| auth.responder.sent(bytes_of(command), &mut random));
    let Some(Next::Compute(job)) = next else {
        return complete(&mut shard.conns[slot], tag, Status::SUCCESS);
    };
    let mailbox = shard.core.mailboxes()[shard.number].clone();
    let connection = shard.conns[slot].serial;
    let compute = move || {
        let computed = job.compute();
        mailbox.tell(Message::Computed { connection, tag, computed });
    };
    if !shard.core.offload.give(None, Box::new(compute)) {
        let conn = &mut shard.conns[slot];
        // The host may begin anew, and goes on meanwhile.
        conn.front.again = None;
        complete(conn, tag, Status::INTERRUPTED.retry_after(1));
    }
}

fn receive<Fc: Face>(
    shard: &mut Shard<Fc>,
    slot: ConnId,
    command: &Command<Buf>,
    security: Security,
) {
    let room = (security.len.min(command.expects_read) as usize).min(MESSAGE);
    let conn = &mut shard.conns[slot];
    let message = conn.front.exchange().and_then(|auth| auth.responder.receive(room));
    match message {
        Some(mut message) => {
            // The host has asked for all of it.
            message.resize(room, 0);
            send_page(conn, command.tag, message);
        }
        None => complete(conn, command.tag, Status::SEQUENCE.no_retry()),
    }
}

/// What another thread has computed is here.
pub(super) fn computed<Fc: Face>(shard: &mut Shard<Fc>, serial: u64, tag: Tag, what: Computed) {
    let Some(slot) = shard.find(serial) else { return };
    if let Some(auth) = shard.conns[slot].front.exchange() {
        auth.responder.computed(what);
        complete(&mut shard.conns[slot], tag, Status::SUCCESS);
    }
    look(shard, slot);
}

/// Looks whether the authentication is over, for good or bad.
fn look<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    shard.touch(slot);
    let conn = &mut shard.conns[slot];
    let Some(auth) = conn.front.exchange() else { return };
    if auth.responder.is_over() {
        return failed(shard, slot);
    }
    if !auth.responder.is_done() {
        return;
    }
    if !through::is_renewed(conn) {
        return shard.drain(slot);
    }
    let (first, again) = (conn.front.auth.take(), conn.front.again.take());
    if let Some(queue) = &mut conn.front.queue {
        queue.proven = true;
    }
    if let Some((hash, key)) = first.as_ref().and_then(|auth| auth.responder.generated()) {
        keep(shard, slot, hash, key);
    }
    if again.is_none() {
        shard.conns[slot].front.proto.authenticated();
        established(shard, slot);
    }
}

/// An authentication on a queue in use has not ended in time. A host that has not failed goes on as the one that it has
/// proved to be.
pub(super) fn overdue<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let Some(again) = &shard.conns[slot].front.again else { return };
    match again.responder.failure() {
        // It was told by no message, which it has not asked for.
        Some(_) => failed(shard, slot),
        // The other thread has not computed: that is not for the host to answer for.
        None if again.responder.computes() => {
            let more = shard.core.front.options.connect_timeout;
            let by = shard.front.exec.storage.now + more;
            shard.conns[slot].front.again.as_mut().into_iter().for_each(|again| again.by = by);
        }
        None => shard.conns[slot].front.again = None,
    }
    shard.touch(slot);
}

/// The authentication has made a key of TLS, by which the host comes back.
fn keep<Fc: Face>(shard: &Shard<Fc>, slot: ConnId, hash: Hash, key: &[u8]) {
    let conn = &shard.conns[slot];
    let Some(queue) = &conn.front.queue else { return };
    queue.member.will_come_back();
    let Some(subsystem) = &queue.subsystem else { return };
    let Some(host) = subsystem.host(&queue.member.host.nqn) else { return };
    let (host, subsystem, key) =
        (host.clone(), subsystem.nqn.clone(), Zeroizing::new(key.to_vec()));
    let made = Made { host, subsystem, hash, key };
    // There is always a cipher suite: the responder takes no other hash.
    let added = shard.core.front.generated.add(made, shard.front.exec.storage.now);
    debug_assert!(added, "TLS has a cipher suite for the hash");
}

/// Why an authentication has failed, in a sentence.
fn refusal(proven: bool, why: Option<Failure>) -> &'static str {
    match proven {
        _ if why == Some(Failure::Concatenation) => {
            "the host makes no key of TLS by its authentication and has to, or makes one and cannot: see `tls` of the host and \
             of the portal, and `--concat` of nvme-cli"
        }
        true => {
            "the host has proved itself, and wants a proof of lunet's that it can check: `controller-secret` is missing here, \
             or is not the one that it has"
        }
        false => "the host could not prove itself: its secret and the one that lunet has differ",
    }
}

/// The host could not prove itself, or has not got the proof that it wanted.
fn failed<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let now = shard.front.exec.storage.now;
    let conn = &shard.conns[slot];
    let auth = conn.front.auth.as_ref().or(conn.front.again.as_ref());
    let (Some(queue), Some(auth)) = (&conn.front.queue, auth) else { return };
    let proven = auth.responder.is_proven();
    // Who knows the secret guesses at nothing, nor does who has not come to say what it knows.
    let guesses = !proven && auth.responder.failure() != Some(Failure::Concatenation);
    if let (Some(subsystem), true) = (queue.member.subsystem, guesses) {
        shard.core.throttle.failed(conn.peer.ip(), subsystem, now);
    }
    shard.front.protocol.refused += 1;
    shard.front.protocol.refused_hosts += 1;
    let (host, peer, why) = (&queue.member.host.nqn, &conn.peer, auth.responder.failure());
    let what = refusal(proven, why);
    if let Some(unlogged) = shard.core.rations.grants(Topic::Refused, now) {
        tracing::warn!(?host, %peer, ?why, unlogged, "{what}");
    }
    let subsystem = queue.subsystem.as_ref();
    shard.core.front.refusals.add(Refusal {
        time: lunet_os::time::unix(),
        client: host.clone(),
        export: subsystem.map_or(DISCOVERY_NQN, |subsystem| &subsystem.nqn).to_owned(),
        peer: peer.ip(),
        why: what.to_owned(),
    });
    // All of a controller in use ends with it; another admin queue is told.
    let in_use = conn.front.again.is_some() && queue.qid != 0;
    if let (true, admin) = (in_use, queue.member.admin) {
        let message = Message::EndQueue { connection: admin.connection, aborted: false };
        shard.core.mailboxes()[admin.shard].tell(message);
    }
    shard.conns[slot].front.again = None;
    shard.drain(slot);
}
