//! Commands of hosts at a standby, which the owner of the group executes.

use std::sync::atomic::Ordering;

use lunet_gateway::{Admission, Passage};
use lunet_iscsi::target::{Command, Tag};
use lunet_ring::Buf;
use lunet_scsi::{Code, Key, Lun, Sense, SenseCodes, SenseFormat, Transfer, status};
use lunet_volume::{CHUNK, Kind, OperationId, VolumeId, take};

use super::gate::{Nature, TurnedBack};
use super::task::{Job, Owner};
use super::{Engine, respond, respond_sense, start};
use crate::connection::{Conn, Conns, Pdus, Session, find_lun};
use crate::group::{
    Answered, Charge, Full, Going, MAX_DATA, Relay, RelayFor, RelayRequest, Relayed, Relays, ask,
};
use crate::reservations;
use lunet_server::conn::ConnId;

/// State of [`Job::Relayed`].
pub struct Relaying {
    /// The relay that it goes by.
    pub relay: u64,
    /// What it is answered by.
    pub ticket: u64,
    /// The command, as long as data of it is missing.
    collects: Option<Box<Relayed>>,
    expects: (u32, u32),
    tells: Tells,
}

/// What the answer to a command tells of whether the unit is ready at the owner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    /// START STOP UNIT: GOOD makes it ready, or not.
    Starts(bool),
    /// TEST UNIT READY: GOOD says that it is.
    Ready,
    /// GOOD says nothing.
    Nothing,
}

impl Tells {
    fn of(cdb: &[u8]) -> Self {
        match *cdb {
            [0x00, ..] => Self::Ready,
            // Without a power condition (SBC-4, 5.31).
            [0x1B, _, _, _, what, ..] if what >> 4 == 0 => Self::Starts(what & 1 != 0),
            _ => Self::Nothing,
        }
    }

    /// Whether the unit is ready, as far as that is known now.
    fn is_ready(self, answered: &Answered) -> Option<bool> {
        match (self, answered.status) {
            (Self::Starts(starts), status::GOOD) => Some(starts),
            (Self::Ready, status::GOOD) => Some(true),
            (_, status::CHECK_CONDITION) => SenseCodes::decode(&answered.sense)
                .is_some_and(SenseCodes::is_not_ready)
                .then_some(false),
            _ => None,
        }
    }
}

impl Engine {
    /// A command of a host whose group another gateway owns: it is passed on, or turned back. False for one that is answered
    /// here.
    pub(super) fn passes_on(
        &mut self,
        conn: &mut Conn,
        slot: ConnId,
        (nature, command): (Nature, &mut Command<Buf>),
    ) -> bool {
        let lun = Lun::decode(command.lun.to_be_bytes());
        let Some(session) = &mut conn.front.session else { return false };
        let seen = lun.and_then(|lun| find_lun(&mut session.luns, lun.0));
        // The device server knows what to say where there is no unit.
        let Some((lun, volume)) = seen.map(|seen| (seen.lun, seen.volume)) else { return false };
        let Some((relays, _)) = self.relays_of(conn) else { return false };
        let is_marked = self.is_marked(conn, volume);
        if nature == Nature::TellsSense && !is_marked {
            return false;
        }
        let relay = self.relay_for(conn, &relays, command.answers);
        let down = relay.is_none() && relays.down.load(Ordering::Relaxed);
        // Whoever looks at paths must not be told of BUSY because a relay is being opened.
        if nature == Nature::Asks && !is_marked && !down {
            return false;
        }
        let admission = match relay {
            Some(relay) => {
                // What this gateway knows has changed, such as its LUNs, the owner does not tell.
                if nature != Nature::TellsSense && self.tells_attention(conn, command) {
                    return true;
                }
                self.begin_relayed(conn, (slot, relay), (lun, volume), (&relays, command));
                return true;
            }
            None if down => Admission::Standby,
            None => Admission::Busy,
        };
        if let Some(turned) = TurnedBack::by(admission) {
            self.turn_back(conn, lun, command.tag, turned);
        }
        true
    }

    /// True if the record has the mark of SANITIZE or FORMAT UNIT for a volume, or the owner has said that it is not ready: how it
    /// stands, the owner alone knows.
    fn is_marked(&self, conn: &Conn, volume: VolumeId) -> bool {
        let gated = conn.front.session.as_ref().and_then(|session| session.gated.as_ref());
        let group = gated.and_then(|gated| self.groups.get(gated.group));
        group.is_some_and(|group| {
            group.marked.contains(&volume) || group.not_ready.contains(&volume)
        })
    }

    /// The relay that a command goes by which had so many answers before it. Without one, one is opened.
    fn relay_for(&self, conn: &mut Conn, relays: &Relays, answers: u32) -> Option<u64> {
        self.open_relay(conn, relays);
        let gated = conn.front.session.as_ref()?.gated.as_ref()?;
        let group = self.groups.get(gated.group)?;
        let admitted = group.gate.admits(gated.stamp(answers)) == Admission::Forward;
        match gated.relay {
            // What was sent before the relay was open may be older than what its host has sent by another way.
            Relay::Open(relay, since) if admitted && answers >= since => Some(relay),
            _ => None,
        }
    }

    /// Has a relay opened for a connection, unless there is one.
    pub fn open_relay(&self, conn: &mut Conn, relays: &Relays) {
        let host = conn.peer.ip();
        let Some(session) = &mut conn.front.session else { return };
        let Some(gated) = &mut session.gated else { return };
        let Some(group) = self.groups.get(gated.group) else { return };
        if gated.relay == Relay::None {
            let number = self.core.next_serial();
            let (initiator, isid) = (session.nexus.initiator.clone(), session.nexus.isid);
            let news = group.news.clone();
            gated.relay = Relay::Opening(number);
            (relays.takes)(RelayRequest::Open(number, RelayFor { initiator, isid, host }, news));
        }
    }

    /// A command goes by a relay, when all of its data is there.
    fn begin_relayed(
        &mut self,
        conn: &mut Conn,
        (slot, relay): (ConnId, u64),
        (lun, volume): (u16, VolumeId),
        (relays, command): (&Relays, &mut Command<Buf>),
    ) {
        let gated = conn.front.session.as_ref().and_then(|session| session.gated.as_ref());
        let Some(load) = gated.map(|gated| gated.load.clone()) else { return };
        // A host may expect more than any command has: the owner says by how much there is less, and so does this gateway.
        let expects = (command.expects_read.min(MAX_DATA), command.expects_write);
        if expects.1 > 2 * MAX_DATA || expects.0 > 0 && expects.1 > 0 {
            let sense = Sense::illegal(Code::INVALID_FIELD_IN_CDB).encode(SenseFormat::Fixed);
            return respond_sense(conn, command.tag, &sense, Transfer::default());
        }
        let bytes = expects.0.max(expects.1) as usize;
        let charge = match Charge::new(&load, &relays.load, bytes) {
            Ok(charge) => charge,
            Err(full) => {
                let code = match full {
                    Full::Session => status::TASK_SET_FULL,
                    Full::Group => status::BUSY,
                };
                return respond(conn, command.tag, code, &[], Transfer::default());
            }
        };
        let mut data = Vec::with_capacity(expects.1 as usize);
        if let Some((buf, len)) = command.data.take() {
            data.extend_from_slice(&buf[..len]);
        }
        let ticket = self.core.next_serial();
        let tells = Tells::of(command.cdb());
        let relayed = Relayed {
            ticket,
            lun: command.lun,
            cdb: command.cdb().to_vec(),
            attribute: command.attribute,
            expects_read: expects.0,
            data,
            charge,
        };
        let id = self.exec.begin(volume, Kind::Other);
        let task = &mut self.exec.operations[id].command;
        (task.owner, task.lun) = (Some(Owner { slot, tag: command.tag }), lun);
        let collects = Some(Box::new(relayed));
        task.job = Job::Relayed(Relaying { relay, ticket, collects, expects, tells });
        conn.front.set_task(command.tag, Some(id));
        self.collect(conn, id);
    }

    /// Asks for more data of a command that is passed on, or passes it on when it has come.
    fn collect(&mut self, conn: &mut Conn, id: OperationId) {
        let Some(Owner { tag, .. }) = self.exec.operations[id].command.owner else { return };
        let relays = self.relays_of(conn);
        let Job::Relayed(relaying) = &mut self.exec.operations[id].command.job else { return };
        let (relay, expects) = (relaying.relay, relaying.expects.1 as usize);
        let have = relaying.collects.as_ref().map_or(0, |relayed| relayed.data.len());
        if have >= expects {
            if let (Some((relays, news)), Some(relayed)) = (relays, relaying.collects.take()) {
                (relays.takes)(RelayRequest::Command(relay, *relayed, news));
            }
            return;
        }
        let len = (expects - have).min(CHUNK);
        let storage = &self.exec.storage;
        let memory = (storage.ring.arena(), storage.allowance(&conn.account));
        match take(memory, conn.reserve.as_ref(), &conn.account, len) {
            Some(buf) => {
                let mut out = Pdus(&mut conn.out);
                conn.front.proto.solicit(tag, have as u32, len as u32, buf, &mut out);
            }
            // Nothing of it was executed.
            None => self.end_relayed(conn, id, status::TASK_SET_FULL, None),
        }
    }

    /// Data of a command that is passed on has come. False if it is another command.
    pub(super) fn relayed_data(&mut self, conn: &mut Conn, id: OperationId, bytes: &[u8]) -> bool {
        let Job::Relayed(relaying) = &mut self.exec.operations[id].command.job else {
            return false;
        };
        if let Some(relayed) = &mut relaying.collects {
            relayed.data.extend_from_slice(bytes);
            self.collect(conn, id);
        }
        true
    }

    /// The data of a command that is to be passed on does not come. False if it is another command.
    pub(super) fn relayed_broke(&mut self, conn: &mut Conn, id: OperationId, code: Code) -> bool {
        if !matches!(self.exec.operations[id].command.job, Job::Relayed(_)) {
            return false;
        }
        let sense = Sense::new(Key::AbortedCommand, code);
        self.end_relayed(conn, id, status::CHECK_CONDITION, Some(sense));
        true
    }

    fn end_relayed(&mut self, conn: &mut Conn, id: OperationId, code: u8, sense: Option<Sense>) {
        let owner = self.exec.operations[id].command.owner;
        self.exec.remove(id);
        let Some(Owner { slot, tag }) = owner else { return };
        conn.front.set_task(tag, None);
        self.touched.push(slot);
        let sense = sense.map(|sense| sense.encode(SenseFormat::Fixed));
        respond(conn, tag, code, sense.as_deref().unwrap_or_default(), Transfer::default());
    }

    /// A session ends: so does its relay.
    pub fn close_relay(&self, session: &Session) {
        let Some(gated) = &session.gated else { return };
        let relays = self.groups.get(gated.group).and_then(|group| group.relays.as_ref());
        if let (Some(number), Some(relays)) = (gated.relay.number(), relays) {
            (relays.takes)(RelayRequest::Close(number));
        }
    }

    /// The owner has answered a command. Returns its connection.
    pub fn relay_answers(
        &mut self,
        conns: &mut Conns,
        ticket: u64,
        answered: Answered,
    ) -> Option<ConnId> {
        let waits = |job: &Job| matches!(job, Job::Relayed(it) if it.ticket == ticket);
        // It was aborted meanwhile.
        let id = self.exec.operations.find(|task| waits(&task.command.job))?;
        let command = &self.exec.operations[id].command;
        let (Some(Owner { slot, tag }), Job::Relayed(relaying)) = (command.owner, &command.job)
        else {
            return None;
        };
        let moves = |expects: u32| (i64::from(expects) + answered.residual).max(0) as u64;
        let (reads, writes) = relaying.expects;
        let transfer = Transfer {
            data_in: if reads > 0 { moves(reads) } else { 0 },
            data_out: if writes > 0 { moves(writes) } else { 0 },
        };
        let (ready, volume) =
            (relaying.tells.is_ready(&answered), self.exec.operations[id].requests.volume);
        let conn = conns.get_mut(slot)?;
        self.exec.remove(id);
        conn.front.set_task(tag, None);
        self.touched.push(slot);
        self.note_ready(conn, volume, ready);
        let Answered { status: code, sense, data, .. } = answered;
        if code == status::GOOD && !data.is_empty() {
            start::send_data(conn, tag, data, transfer);
        } else {
            respond(conn, tag, code, &sense, transfer);
        }
        Some(slot)
    }

    /// The owner has said whether a unit is ready: while it is not, it is asked.
    fn note_ready(&mut self, conn: &Conn, volume: VolumeId, ready: Option<bool>) {
        let gated = conn.front.session.as_ref().and_then(|session| session.gated.as_ref());
        let group = gated.and_then(|gated| self.groups.get_mut(gated.group));
        let (Some(group), Some(ready)) = (group, ready) else { return };
        group.not_ready.retain(|other| *other != volume);
        if !ready {
            group.not_ready.push(volume);
        }
    }

    /// The commands of a connection that the owner has, by one relay or any.
    pub fn passed_on(&self, conn: &Conn, relay: Option<u64>) -> usize {
        self.relayed_of(conn, relay).filter(|(_, collects)| !collects).count()
    }

    /// Ends the commands of a connection that were to go by a relay, by one or any, and did not, as their data has not come:
    /// with BUSY, as nothing of them was executed.
    pub fn turn_back_relayed(&mut self, conn: &mut Conn, relay: Option<u64>) {
        let all = self.relayed_of(conn, relay).filter(|(_, collects)| *collects);
        let all: Vec<OperationId> = all.map(|(id, _)| id).collect();
        for id in all {
            self.end_relayed(conn, id, status::BUSY, None);
        }
    }

    /// The commands of a connection that go by a relay, and whether their data is missing yet.
    fn relayed_of<'a>(
        &'a self,
        conn: &'a Conn,
        relay: Option<u64>,
    ) -> impl Iterator<Item = (OperationId, bool)> + 'a {
        conn.front.tasks.iter().flatten().filter_map(move |id| {
            match &self.exec.operations.get(*id)?.command.job {
                Job::Relayed(it) if relay.is_none_or(|relay| relay == it.relay) => {
                    Some((*id, it.collects.is_some()))
                }
                _ => None,
            }
        })
    }

    /// What a command that the owner has is answered by.
    pub fn ticket_of(&self, conn: &Conn, tag: Tag) -> Option<u64> {
        match &self.exec.operations.get(conn.front.task(tag)?)?.command.job {
            Job::Relayed(it) if it.collects.is_none() => Some(it.ticket),
            _ => None,
        }
    }

    /// Sees whether a change of a host comes by the host's present way. If not, it is answered, and this is true.
    pub(super) fn goes_another_way(
        &mut self,
        conn: &mut Conn,
        nature: Nature,
        command: &Command<Buf>,
    ) -> bool {
        let Some(session) = &conn.front.session else { return false };
        let Some(gated) = session.gated.as_ref().filter(|_| nature == Nature::Changes) else {
            return false;
        };
        let (way, through) = (&gated.on_way.way, gated.on_way.through);
        match way.admits(through, gated.fresh(command.answers)) {
            Passage::Go(turn) => {
                self.going = Some(Going::new(way.clone(), turn));
                return false;
            }
            Passage::Wait => {}
            Passage::Ask => self.ask_anew(conn),
        }
        if self.tells_attention(conn, command) {
            return true;
        }
        self.protocol.busy += 1;
        respond(conn, command.tag, status::BUSY, &[], Transfer::default());
        true
    }

    /// A unit attention comes before BUSY of a command that goes another way: a relay that is opened anew begins without
    /// any, and a reset may be why the way is another. True if there was one.
    fn tells_attention(&mut self, conn: &mut Conn, command: &Command<Buf>) -> bool {
        let Some(session) = &mut conn.front.session else { return false };
        let lun = Lun::decode(command.lun.to_be_bytes());
        let Some(seen) = lun.and_then(|lun| find_lun(&mut session.luns, lun.0)) else {
            return false;
        };
        let core = &self.exec.storage.volumes[seen.volume].core;
        reservations::refresh(core, seen.place.seat, &mut seen.nexus);
        let Some(sense) = seen.nexus.take_sense() else { return false };
        let sense = sense.encode(core.face.unit.sense_format());
        respond_sense(conn, command.tag, &sense, Transfer::default());
        true
    }

    /// A connection may bring what is older than what its host has sent another way.
    fn ask_anew(&self, conn: &mut Conn) {
        let now = self.exec.storage.now;
        let Some(session) = &conn.front.session else { return };
        let group = session.gated.as_ref().map(|gated| gated.group);
        if session.through.is_some() {
            // The gateway asks the host, when it has logged in anew.
            let mut out = Pdus(&mut conn.out);
            conn.front.proto.request_logout(now, super::gate::LEAVES_WITHIN, &mut out);
        } else if let Some(group) = group.and_then(|group| self.groups.get(group)) {
            ask(conn, now, &group.gate);
        }
    }

    /// The change that was let through is the command behind a tag, if it is at work.
    pub(super) fn goes(&mut self, conn: &Conn, tag: Tag) {
        let Some(going) = self.going.take() else { return };
        if let Some(task) = conn.front.task(tag).and_then(|id| self.exec.operations.get_mut(id)) {
            task.command.going = Some(going);
        }
    }
}
