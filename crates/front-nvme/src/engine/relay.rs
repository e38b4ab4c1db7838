//! Commands of hosts at a standby, which the owner of the group executes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lunet_gateway::{Admission, Passage};
use lunet_nvme::command::{Completion, Io, Sqe};
use lunet_nvme::controller::{Command, Tag};
use lunet_nvme::status::Status;
use lunet_relay::{Charge, Going};
use lunet_ring::{Buf, Payload};
use lunet_server::conn::ConnId;
use lunet_volume::{CHUNK, Face, Kind, OperationId, VolumeId, take};

use super::Engine;
use super::gate::{Arrived, Verdict};
use super::start::capsule;
use super::task::{BUSY, Job, Owner};
use crate::connection::{Conn, Conns, Data, Pdus, complete, find};
use crate::group::{
    Answered, Group, Relay, RelayFor, RelayNews, RelayRequest, Relayed, RelayedPart, Relays,
};

/// State of [`Job::Relayed`].
pub struct Relaying {
    /// The relay that it goes by.
    relay: u64,
    /// What it is answered by.
    ticket: u64,
    /// The command, or both of a pair, as long as data is missing.
    collects: Option<(Vec<Half>, Charge)>,
    tags: Vec<Tag>,
}

impl Relaying {
    /// True if the owner may have executed it.
    pub const fn is_sent(&self) -> bool {
        self.collects.is_none()
    }
}

/// A command whose data is collected.
struct Half {
    tag: Tag,
    sqe: Sqe,
    reads: u32,
    writes: usize,
    data: Vec<u8>,
}

/// True for a command that changes nothing for those behind it, so that it does no harm if it is late.
fn changes_nothing(arrived: &Arrived) -> bool {
    let io = Io::decode(&arrived.command.sqe);
    arrived.first.is_none()
        && matches!(
            io,
            Ok(Io::Read { .. }
                | Io::Verify { .. }
                | Io::Compare { .. }
                | Io::Flush
                | Io::DatasetManagement { deallocate: false, .. })
        )
}

/// What becomes of a command that the group's gate lets in: whether it comes by the present way of its host.
pub(super) fn by_its_way(conn: &mut Conn, group: &Group, arrived: &Arrived) -> Verdict {
    let Some(gated) = conn.front.gated.as_mut().filter(|_| !changes_nothing(arrived)) else {
        return Verdict::Begin(None);
    };
    match gated.way.admits(gated.by, arrived.good.turn) {
        Passage::Go(turn) => return Verdict::Begin(Some(Going::new(gated.way.clone(), turn))),
        Passage::Wait => {}
        Passage::Ask => arrived.turned_back(gated, &group.gate),
    }
    // To a gateway whose relay this is, it says that nothing was executed, and that the relay is to be opened anew.
    Verdict::TurnBack(Status::ANA_TRANSITION)
}

impl<Fc: Face> Engine<Fc> {
    /// What becomes of a command whose group another gateway owns, which can be reached.
    pub(super) fn by_relay(&self, conn: &mut Conn, arrived: &Arrived) -> Verdict {
        let host = conn.peer.ip();
        let (Some(gated), Some(queue)) = (&mut conn.front.gated, &conn.front.queue) else {
            return Verdict::TurnBack(Status::ANA_INACCESSIBLE);
        };
        let Some(group) = self.groups.get(gated.group) else { return Verdict::Begin(None) };
        let Some(relays) = &group.relays else { return Verdict::TurnBack(group.refusal()) };
        let admitted = group.gate.admits(arrived.good.stamp) == Admission::Forward;
        match gated.relay {
            Relay::Open(relay) if admitted && arrived.good.relay == Some(relay) => {
                return Verdict::Relay(relay);
            }
            // What was sent before the relay was open may be older than what its host has sent by another way.
            Relay::Open(_) | Relay::Asked(_) => {
                arrived.turned_back(gated, &group.gate);
                return Verdict::TurnBack(Status::ANA_TRANSITION);
            }
            Relay::Opening(_) => {}
            Relay::None => {
                let number = self.core.next_serial();
                let (nqn, id) = (queue.member.host.nqn.clone(), queue.member.host.id);
                gated.relay = Relay::Opening(number);
                let whose = RelayFor { nqn, id, host };
                (relays.takes)(RelayRequest::Open(number, whose, group.news.clone()));
            }
        }
        // Until there is news of it, which is soon.
        Verdict::Wait(None)
    }

    /// A command, or a pair, goes by a relay, when all of its data is there.
    pub(super) fn begin_relayed(
        &mut self,
        conn: &mut Conn,
        (slot, relay): (ConnId, u64),
        arrived: Arrived,
    ) {
        let begun = self.charge(conn, &arrived);
        let (volume, charge) = match begun {
            Ok(begun) => begun,
            Err(status) => return super::gate::answer(conn, &arrived, status),
        };
        let Arrived { first, command, .. } = arrived;
        let nsid = command.sqe.nsid.get();
        let halves: Vec<Half> = first.into_iter().chain([command]).map(Half::new).collect();
        let tags: Vec<Tag> = halves.iter().map(|half| half.tag).collect();
        let id = self.exec.begin(volume, Kind::Other);
        let ticket = self.core.next_serial();
        let task = &mut self.exec.operations[id].command;
        let owner = Owner { slot, tag: tags[0], second: tags.get(1).copied() };
        (task.owner, task.nsid) = (Some(owner), nsid);
        let asks: Vec<usize> = (0..halves.len()).collect();
        let collects = Some((halves, charge));
        task.job = Job::Relayed(Box::new(Relaying { relay, ticket, collects, tags }));
        for tag in std::iter::once(owner.tag).chain(owner.second) {
            conn.front.set_task(tag, Some(id));
        }
        for at in asks {
            self.collect(conn, id, at);
        }
    }

    /// The volume of a command that is passed on, and its part of what is under way.
    ///
    /// # Errors
    /// What it is answered with at once.
    fn charge(&self, conn: &mut Conn, arrived: &Arrived) -> Result<(VolumeId, Charge), Status> {
        let most = 4096_u32 << self.core.front.options.mdts;
        let mut bytes = 0;
        for command in arrived.first.iter().chain([&arrived.command]) {
            let len = command.expects_read.max(command.expects_write);
            if len > most {
                return Err(Status::INVALID_FIELD.no_retry());
            }
            bytes += len as usize;
        }
        let nsid = arrived.command.sqe.nsid.get();
        let queue = conn.front.queue.as_mut().ok_or(Status::SEQUENCE.no_retry())?;
        let seen = match find(&mut queue.namespaces, nsid) {
            Some(seen) => Some(seen.volume),
            // A flush of all of them.
            None => queue.namespaces.first().map(|seen| seen.volume),
        };
        let volume = seen.ok_or(Status::INVALID_NAMESPACE.no_retry())?;
        let gated = conn.front.gated.as_ref().ok_or(Status::INTERNAL)?;
        let group = self.groups.get(gated.group).ok_or(Status::INTERNAL)?;
        let relays = group.relays.as_ref().ok_or(Status::INTERNAL)?;
        let charge = Charge::new(&gated.load, &relays.load, bytes).map_err(|_| BUSY)?;
        Ok((volume, charge))
    }

    fn relays_of(&self, conn: &Conn) -> Option<(Arc<Relays>, RelayNews)> {
        let group = self.groups.get(conn.front.gated.as_ref()?.group)?;
        Some((group.relays.clone()?, group.news.clone()))
    }

    /// Asks for more data of one of the commands, or passes all on when everything has come.
    fn collect(&mut self, conn: &mut Conn, id: OperationId, at: usize) {
        let relays = self.relays_of(conn);
        let Some(task) = self.exec.operations.get_mut(id) else { return };
        let Job::Relayed(relaying) = &mut task.command.job else { return };
        let Some((halves, _)) = &relaying.collects else { return };
        let half = &halves[at];
        let (tag, have, rest) = (half.tag, half.data.len(), half.writes - half.data.len());
        if rest > 0 {
            let storage = &self.exec.storage;
            let memory = (storage.ring.arena(), storage.allowance(&conn.account));
            let len = rest.min(CHUNK);
            let Some(buf) = take(memory, conn.reserve.as_ref(), &conn.account, len) else {
                // Nothing of it was executed.
                return self.end_relayed(conn, id, (BUSY, at));
            };
            let mut out = Pdus(&mut conn.out);
            return conn.front.proto.solicit(tag, have as u32, len as u32, buf, &mut out);
        }
        if halves.iter().any(|half| half.data.len() < half.writes) {
            return;
        }
        let (relay, ticket) = (relaying.relay, relaying.ticket);
        if let (Some((relays, news)), Some((halves, charge))) = (relays, relaying.collects.take()) {
            let parts = halves.into_iter().map(Half::part).collect();
            (relays.takes)(RelayRequest::Command(relay, Relayed { ticket, parts, charge }, news));
        }
    }

    /// Data of a command that is passed on has come. False if it is another command.
    pub(super) fn relayed_data(
        &mut self,
        conn: &mut Conn,
        (id, tag): (OperationId, Tag),
        bytes: &[u8],
    ) -> bool {
        let Job::Relayed(relaying) = &mut self.exec.operations[id].command.job else {
            return false;
        };
        let Some((halves, _)) = &mut relaying.collects else { return true };
        if let Some(at) = halves.iter().position(|half| half.tag == tag) {
            halves[at].data.extend_from_slice(bytes);
            self.collect(conn, id, at);
        }
        true
    }

    /// The data of a command that is to be passed on does not come. False if it is another command.
    pub(super) fn relayed_broke(&mut self, conn: &mut Conn, id: OperationId, tag: Tag) -> bool {
        let Job::Relayed(relaying) = &self.exec.operations[id].command.job else { return false };
        let at = relaying.tags.iter().position(|other| *other == tag).unwrap_or(0);
        self.end_relayed(conn, id, (Status::TRANSPORT, at));
        true
    }

    /// Ends a command that was not passed on; of a pair, that one is to blame.
    fn end_relayed(&mut self, conn: &mut Conn, id: OperationId, (status, blame): (Status, usize)) {
        let owner = self.exec.operations[id].command.owner;
        self.exec.remove(id);
        let Some(Owner { slot, tag, second }) = owner else { return };
        self.touched.push(slot);
        for (at, tag) in std::iter::once(tag).chain(second).enumerate() {
            conn.front.set_task(tag, None);
            complete(conn, tag, if at == blame { status } else { Status::FAILED_FUSED });
        }
    }

    /// A queue ends: so does its relay.
    pub fn close_relay(&self, conn: &mut Conn) {
        let Some(gated) = &mut conn.front.gated else { return };
        let number = std::mem::take(&mut gated.relay).number();
        let relays = self.groups.get(gated.group).and_then(|group| group.relays.as_ref());
        if let (Some(number), Some(relays)) = (number, relays) {
            (relays.takes)(RelayRequest::Close(number));
        }
    }

    /// The owner has answered a command.
    pub fn relay_answers(&mut self, conns: &mut Conns, ticket: u64, answered: Answered) {
        let waits = |job: &Job| matches!(job, Job::Relayed(it) if it.ticket == ticket);
        // It was aborted meanwhile.
        let Some(id) = self.exec.operations.find(|task| waits(&task.command.job)) else { return };
        let Some(Owner { slot, tag, second }) = self.exec.operations[id].command.owner else {
            return;
        };
        let Some(conn) = conns.get_mut(slot) else { return };
        self.exec.remove(id);
        self.touched.push(slot);
        let Answered { completions, data } = answered;
        for (at, tag) in std::iter::once(tag).chain(second).enumerate() {
            conn.front.set_task(tag, None);
            let completion = completions.get(at).copied().unwrap_or(Status::INTERNAL.into());
            if !completion.status.is_success() || data.is_empty() {
                complete(conn, tag, completion);
                continue;
            }
            let (len, data) = (data.len(), Data(Payload::Bytes(data.clone())));
            let done = Some(Completion::SUCCESS);
            conn.front.proto.send_data(tag, data, 0..len, done, &mut Pdus(&mut conn.out));
        }
    }

    /// The commands of a queue that the owner has, or is to have.
    pub fn relayed_of(&self, conn: &Conn, relay: Option<u64>) -> usize {
        let all = conn.front.tasks.iter().flatten();
        let goes = |id: &&OperationId| {
            let job = self.exec.operations.get(**id).map(|task| &task.command.job);
            matches!(job, Some(Job::Relayed(it)) if relay.is_none_or(|relay| relay == it.relay))
        };
        all.filter(goes).count()
    }

    /// What commands that waited for a relay end with which was not opened.
    pub fn unreached(&self, conn: &Conn) -> Status {
        let gated = conn.front.gated.as_ref();
        let relays = gated.and_then(|gated| self.groups.get(gated.group)?.relays.as_ref());
        match relays.is_some_and(|relays| relays.down.load(Ordering::Relaxed)) {
            true => Status::ANA_INACCESSIBLE,
            false => Status::ANA_TRANSITION,
        }
    }
}

impl Half {
    fn new(mut command: Command<Buf>) -> Self {
        let writes = command.expects_write as usize;
        let mut data = Vec::with_capacity(writes);
        if let Some((buf, len)) = capsule(&mut command) {
            data.extend_from_slice(&buf[..len]);
        }
        Self { tag: command.tag, sqe: command.sqe, reads: command.expects_read, writes, data }
    }

    fn part(self) -> RelayedPart {
        RelayedPart { sqe: self.sqe, reads: self.reads, data: self.data }
    }
}
