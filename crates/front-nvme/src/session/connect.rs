//! From a Connect to a queue, or not.

use std::time::Duration;

use lunet_nvme::command::Completion;
use lunet_nvme::controller::{Controller, Kind, Setup, Subsystem as Described};
use lunet_nvme::fabrics::{Authentication, Connect, Connected, Transport};
use lunet_nvme::name::DISCOVERY_NQN;
use lunet_nvme::rdma::ConnectRequest;
use lunet_nvme::status::Status;
use lunet_server::conn::{ConnId, Phase};
use lunet_server::places::{Applicant, ConnRef};
use lunet_server::rationed::Topic;
use lunet_server::refusals::Refusal as Refused;
use lunet_volume::Face;

use super::{Conn, Core, Shard, authenticate};
use crate::config::{Concatenation, Host, MAX_NAMESPACES, Tls};
use crate::connection::{Admin, Channel, Pdus, Queue, Seen};
use crate::registry::{Admission, Wish};
use crate::world::{Exports, Subsystem, World};

/// Most seconds that a change of a path takes (ANATT).
const TRANSITION: u8 = 10;

/// Queues of hosts that may begin between the one that is asked for and its I/O queues: a host has one for each processor.
const QUEUES_TO_COME: usize = 16;

/// Why a Connect is refused: what the host is told, and what the log says.
pub(super) struct Refusal(pub(super) Completion, pub(super) &'static str);

/// A host makes a queue.
pub(super) fn connect<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, connect: Box<Connect>) {
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    if conn.phase != Phase::Open {
        // It has gone while it waited: nobody would end its queue.
        return;
    }
    let entries = u32::from(connect.sqsize) + 1;
    let rdma = conn.front.asked.is_some();
    let result = if entries > u32::from(shard.core.front.options.queue_entries) {
        Err(Refusal(Connect::WRONG_SIZE, "the queue is larger than the controller allows"))
    } else if let Some(refusal) = unlike(conn.front.asked, &connect) {
        Err(refusal)
    } else if rdma && shard.front.world.rules.tls(conn.portal) == Tls::Required {
        let why = "the portal is for TLS, and the host has come over RDMA";
        Err(Refusal(Status::AUTHENTICATION_REQUIRED.into(), why))
    } else if !is_proved(&conn.front.tls, &connect) {
        let why =
            "by TLS the host has proved to be another one, or to be there for another subsystem";
        Err(Refusal(Status::CONNECT_HOST.into(), why))
    } else if let Some(through) = &connect.through {
        super::through::queue(shard, slot, (&connect, through))
    } else if connect.qid == 0 {
        admin_queue(shard, slot, &connect)
    } else {
        io_queue(shard, slot, &connect)
    };
    match result {
        Ok(true) => shard.touch(slot),
        Ok(false) => shard.conns[slot].front.waiting = Some(connect),
        Err(refusal) => refuse(shard, slot, &connect, &refusal),
    }
}

/// Why a Connect over RDMA is not what the host has said of the queue when its queue pair was made.
fn unlike(asked: Option<ConnectRequest>, connect: &Connect) -> Option<Refusal> {
    let asked = asked?;
    if asked.qid != connect.qid {
        let why = "the queue is another one than that for which the host has made its queue pair";
        return Some(Refusal(Connect::WRONG_QUEUE, why));
    }
    (connect.sqsize > asked.sqsize).then_some({
        let why = "the queue is larger than the host has said when it made its queue pair";
        Refusal(Connect::WRONG_SIZE, why)
    })
}

/// False if the host has proved by TLS to be another one, or to be there for another subsystem.
fn is_proved(channel: &Channel, connect: &Connect) -> bool {
    match channel {
        Channel::Tls(secured) => {
            let identity = &secured.identity;
            identity.hostnqn == connect.hostnqn && identity.subnqn == connect.subnqn
        }
        _ => true,
    }
}

/// A Connect that had to wait is tried again.
pub(super) fn connect_again<Fc: Face>(shard: &mut Shard<Fc>, serial: u64) {
    let Some(slot) = shard.find(serial) else { return };
    if let Some(waiting) = shard.conns[slot].front.waiting.take() {
        connect(shard, slot, waiting);
    }
}

/// The subsystem in the world by its name, if this connection leads to it.
pub(super) fn reached<'s, Fc: Face>(
    shard: &'s Shard<Fc>,
    conn: &Conn,
    connect: &Connect,
) -> Result<(usize, &'s Subsystem), Refusal> {
    let found = shard.front.world.find(&connect.subnqn);
    let found = found.filter(|(_, subsystem)| subsystem.is_reached_through(conn.portal));
    let Some((number, subsystem)) = found else {
        let why = "the subsystem is not there, or not behind this portal";
        return Err(Refusal(Connect::UNKNOWN_SUBSYSTEM, why));
    };
    Ok((number, subsystem))
}

/// The subsystem in the world by its name, if a host that comes by this connection may have it.
fn find<Fc: Face>(shard: &Shard<Fc>, slot: ConnId, connect: &Connect) -> Result<usize, Refusal> {
    let conn = &shard.conns[slot];
    let (number, subsystem) = reached(shard, conn, connect)?;
    let refused = Status::CONNECT_HOST.into();
    if shard.front.groups.of(&subsystem.nqn).is_some_and(|group| group.access.is_none()) {
        let why = "the failover group of the subsystem has not read its record yet";
        return Err(Refusal(Status::CONNECT_BUSY.into(), why));
    }
    if subsystem.is_closed_to(conn.origin()) {
        let why =
            "nothing says who may use the subsystem, so it is for hosts on this machine alone";
        return Err(Refusal(refused, why));
    }
    if !subsystem.admits(&connect.hostnqn, conn.origin()) {
        return Err(Refusal(refused, "the subsystem is not for this host"));
    }
    let host = subsystem.host(&connect.hostnqn);
    let tls = host.and_then(|host| host.tls.as_ref());
    let plain = !matches!(conn.front.tls, Channel::Tls(_));
    if plain && tls.is_some_and(|key| key.required) {
        let why = "the host has to connect by TLS, for which it has a key";
        return Err(Refusal(Status::AUTHENTICATION_REQUIRED.into(), why));
    }
    if plain && host.is_some_and(|host| has_to_come_back(shard, conn, host, connect.qid)) {
        let why = "the host has to come by TLS with a key that its authentication makes (`--concat` of nvme-cli), at a \
                   portal that has TLS";
        return Err(Refusal(Status::AUTHENTICATION_REQUIRED.into(), why));
    }
    let now = shard.front.exec.storage.now;
    let proves = authenticate::is_asked(host, conn);
    if proves && !shard.core.throttle.allows(conn.peer.ip(), &number, now) {
        let why = "too many failed authentications from this address: it has to wait";
        return Err(Refusal(Status::CONNECT_BUSY.into(), why));
    }
    Ok(number)
}

/// True if a host that comes without TLS would not do so for a key of TLS, which it needs.
fn has_to_come_back<Fc: Face>(shard: &Shard<Fc>, conn: &Conn, host: &Host, qid: u16) -> bool {
    let required = host.secret.is_some() && host.concatenation == Concatenation::Required;
    let has_tls =
        !conn.front.proto.is_rdma() && shard.front.world.rules.tls(conn.portal) != Tls::Off;
    required && (qid != 0 || !has_tls)
}

/// What carries a connection.
pub(super) const fn transport(conn: &Conn) -> Transport {
    if conn.front.asked.is_some() { Transport::Rdma } else { Transport::Tcp }
}

/// Who asks for a place.
pub(super) fn applicant<Fc: Face>(shard: &Shard<Fc>, slot: ConnId) -> Applicant {
    let client = shard.core.throttle.client(shard.conns[slot].peer.ip());
    Applicant { client, proven: false }
}

/// False if it has to wait.
fn admin_queue<Fc: Face>(
    shard: &mut Shard<Fc>,
    slot: ConnId,
    connect: &Connect,
) -> Result<bool, Refusal> {
    let now = shard.front.exec.storage.now;
    let (kind, number) = match connect.subnqn == DISCOVERY_NQN {
        true => (Kind::Discovery, None),
        false => (Kind::Io, Some(find(shard, slot, connect)?)),
    };
    let admin = ConnRef { shard: shard.number, connection: shard.conns[slot].serial };
    let applicant = applicant(shard, slot);
    let key = shard.conns[slot].front.tls.generated();
    if key.is_some_and(|key| !shard.core.front.generated.take(key, admin.connection)) {
        let why = "another controller has the key of TLS by which the host comes: it has to authenticate for one of its own";
        return Err(Refusal(Status::AUTHENTICATION_REQUIRED.into(), why));
    }
    let transport = transport(&shard.conns[slot]);
    let storage = &shard.front.exec.storage;
    let (plenty, reserve) = (storage.plenty(), storage.foreseen_reserve(QUEUES_TO_COME));
    let capsule_data = shard.core.front.options.capsule_data(transport, plenty, reserve);
    let identifiers = shard.front.groups.identifiers(&connect.subnqn);
    let wish = Wish {
        kind,
        subsystem: number,
        connect,
        admin,
        applicant,
        key,
        transport,
        capsule_data,
        identifiers,
        limits: shard.core.member.clients().enter(&connect.hostnqn),
    };
    let member = match shard.core.front.registry.admit(&wish, now) {
        Admission::Granted(member) => member,
        Admission::Wait => return Ok(false),
        Admission::Full => {
            let why = "there are too many controllers or queues";
            return Err(Refusal(Status::CONNECT_BUSY.into(), why));
        }
    };
    let subsystem = number.and_then(|number| shard.front.world.export(number)).cloned();
    let setup = Setup {
        kind,
        cntlid: member.cntlid,
        host_id: connect.host_id,
        kato: connect.kato,
        max_queues: shard.core.front.options.queues,
        transport,
        subsystem: described(&shard.core, capsule_data, subsystem.as_deref()),
    };
    let controller = Controller::new(setup, now);
    member.publish(&controller);
    let topic = if kind == Kind::Io { Topic::Open } else { Topic::Listing };
    let ration = shard.core.rations.grants(topic, now);
    let conn = &mut shard.conns[slot];
    if let Some(unlogged) = ration {
        let (host, subsystem) = (&connect.hostnqn, &connect.subnqn);
        let (peer, cntlid) = (&conn.peer, member.cntlid);
        tracing::info!(?host, ?subsystem, %peer, cntlid, unlogged, "host connected");
    }
    let namespaces = seen(&shard.front.world, subsystem.as_deref());
    let logged = ration.is_some();
    let (qid, told, since, proven) = (0, now, now, false);
    let queue = Queue { qid, member, subsystem, namespaces, told, since, logged, proven };
    conn.front.queue = Some(queue);
    // Before the answer: the host sends nothing before it has that.
    conn.front.gated = shard.front.groups.connected(&connect.subnqn, &connect.hostnqn, None);
    let paths = super::identify::paths(&shard.front, conn);
    conn.front.admin = Some(Box::new(Admin::new(controller, paths)));
    shard.front.protocol.controllers += 1;
    begin(shard, slot);
    Ok(true)
}

fn io_queue<Fc: Face>(
    shard: &mut Shard<Fc>,
    slot: ConnId,
    connect: &Connect,
) -> Result<bool, Refusal> {
    let number = find(shard, slot, connect)?;
    let now = shard.front.exec.storage.now;
    let key = shard.conns[slot].front.tls.generated();
    let controller = shard.core.front.registry.controller(connect.cntlid);
    if controller.is_some_and(|controller| !controller.takes_queue_by(key)) {
        let why = "the queue has to come by TLS with the key that its admin queue came by";
        return Err(Refusal(Status::AUTHENTICATION_REQUIRED.into(), why));
    }
    let queue = ConnRef { shard: shard.number, connection: shard.conns[slot].serial };
    let queue = (queue, transport(&shard.conns[slot]));
    let member = shard.core.front.registry.join(connect, number, queue);
    let member = member.map_err(|why| Refusal(why, "the controller has no such queue to give"))?;
    let mut told = Duration::ZERO;
    member.heard(now, &mut told);
    let subsystem = shard.front.world.export(number).cloned();
    let namespaces = seen(&shard.front.world, subsystem.as_deref());
    let (qid, since, logged, proven) = (connect.qid, now, false, false);
    let queue = Queue { qid, member, subsystem, namespaces, told, since, logged, proven };
    let front = &mut shard.conns[slot].front;
    front.queue = Some(queue);
    front.gated = shard.front.groups.connected(&connect.subnqn, &connect.hostnqn, None);
    begin(shard, slot);
    Ok(true)
}

/// A connection is a queue from now on, once the host has proved itself if it has to.
fn begin<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let until = shard.front.exec.storage.now + shard.core.front.options.connect_timeout;
    let sequence = shard.core.next_serial();
    let has_tls = shard.front.world.rules.tls(shard.conns[slot].portal) != Tls::Off;
    let conn = &mut shard.conns[slot];
    let Some(queue) = &conn.front.queue else { return };
    let (cntlid, capsule_data) = (queue.member.cntlid, queue.member.capsule_data);
    let host = queue.subsystem.as_ref().and_then(|it| it.host(&queue.member.host.nqn));
    // A key of TLS is made by an admin queue without TLS.
    let plain = !conn.front.proto.is_rdma() && !matches!(conn.front.tls, Channel::Tls(_));
    let makes_key = has_tls && queue.qid == 0 && plain;
    let concatenation = host.filter(|_| makes_key).map(|host| host.concatenation);
    let concatenation = concatenation.unwrap_or_default();
    let asked = host.filter(|host| authenticate::is_asked(Some(host), conn));
    let subsystem = queue.subsystem.as_ref().map_or("", |subsystem| &subsystem.nqn);
    let auth = authenticate::begin(asked, subsystem, concatenation, (sequence, until));
    let proves = auth.is_some();
    let by_key = conn.front.tls.generated().is_some();
    conn.front.auth = auth;
    if let Some(queue) = &mut conn.front.queue {
        // The key is the proof.
        queue.proven = by_key;
    }
    let authentication = match (proves, concatenation) {
        (false, _) => Authentication::None,
        (true, Concatenation::Required) => Authentication::Concatenate,
        (true, _) => Authentication::Required,
    };
    let connected = Connected { cntlid, authentication };
    conn.front.proto.limit_capsules(capsule_data);
    conn.front.proto.accept(connected, &mut Pdus(&mut conn.out));
    if !proves {
        established(shard, slot);
    }
}

/// A queue takes commands from now on.
pub(super) fn established<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let conn = &mut shard.conns[slot];
    let discovers = conn.front.kind() == Some(Kind::Discovery);
    let (client, serial) = (conn.peer.ip(), conn.serial);
    // Discovery needs no buffers.
    if !discovers {
        if let Some(queue) = &conn.front.queue {
            shard.front.exec.storage.join_host(&conn.account, &queue.member.host.nqn);
        }
        shard.front.exec.storage.renew(&conn.account, &mut conn.reserve);
    }
    shard.core.login_ends(client, serial);
    if discovers {
        let conn_ref = ConnRef { shard: shard.number, connection: serial };
        let victim = shard.core.front.discovery.enter(client, conn_ref);
        victim.into_iter().for_each(|victim| shard.evict(victim));
    }
}

/// The namespaces of a subsystem whose volumes are there, ascending.
pub(super) fn seen<Fc: Face>(world: &World<Fc>, subsystem: Option<&Subsystem>) -> Vec<Seen> {
    let namespaces = subsystem.map_or(&[][..], |subsystem| &subsystem.namespaces);
    let there = namespaces.iter().filter(|(_, slot)| world.volume(*slot).is_some());
    // With no room to spare: thousands of queues may be idle, with hundreds each.
    there.map(|(nsid, slot)| Seen::new(*nsid, *slot)).collect::<Box<[Seen]>>().into_vec()
}

/// How controllers describe a subsystem.
fn described<Fc: Face>(
    core: &Core<Fc>,
    capsule_data: u32,
    subsystem: Option<&Subsystem>,
) -> Described {
    let options = &core.front.options;
    let text = |what: fn(&Subsystem) -> &String, other: &str| {
        subsystem.map_or(other.to_owned(), |subsystem| what(subsystem).clone())
    };
    Described {
        nqn: text(|it| &it.nqn, DISCOVERY_NQN),
        serial: text(|it| &it.serial, "discovery"),
        model: text(|it| &it.model, "lunet"),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        mdts: options.mdts,
        capsule_data,
        max_entries: options.queue_entries,
        max_namespaces: MAX_NAMESPACES,
        groups: MAX_NAMESPACES,
        transition: TRANSITION,
        // What a power loss leaves whole is a block; Compare and Write takes more.
        atomic_blocks: 1,
    }
}

fn refuse<Fc: Face>(
    shard: &mut Shard<Fc>,
    slot: ConnId,
    connect: &Connect,
    Refusal(completion, why): &Refusal,
) {
    let now = shard.front.exec.storage.now;
    let conn = &mut shard.conns[slot];
    let host = completion.status.code() == Status::CONNECT_HOST;
    conn.front.proto.refuse(*completion, &mut Pdus(&mut conn.out));
    let peer = conn.peer;
    shard.front.protocol.refused += 1;
    shard.front.protocol.refused_hosts += u64::from(host);
    if let Some(unlogged) = shard.core.rations.grants(Topic::Refused, now) {
        // What a stranger sends is printed with escapes.
        let (host, subsystem) = (&connect.hostnqn, &connect.subnqn);
        let status = completion.status;
        tracing::warn!(?host, ?subsystem, %peer, %status, unlogged, "Connect refused: {why}");
    }
    shard.core.front.refusals.add(Refused {
        time: lunet_os::time::unix(),
        client: connect.hostnqn.clone(),
        export: connect.subnqn.clone(),
        peer: peer.ip(),
        why: (*why).to_owned(),
    });
    shard.drain(slot);
}
