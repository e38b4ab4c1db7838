//! A node of a cluster: it registers, reserves, preempts and moves, and reads and writes all the while.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{Command, Data, Event, Finished, Outcome, Tag};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use lunet_os::simulated::below;
use lunet_os::thread;

use crate::commands::{self, Copying, Ended, Sent};
use crate::model::Value;
use crate::rdma::Rdma;
use crate::reservations::{Answer, Enrol, Id, KINDS, Kind, Nexus, Op, Out, Reservations};
use crate::site::{Known, Site, now};
use crate::wire::{self, HostEvent, Initiator, Wire};

/// What is known of a cluster's volume besides its blocks.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Its reservations.
    pub reservations: Reservations,
    ids: Id,
    /// The key of each node, as far as anybody knows: what they try depends on it, not what is right.
    keys: BTreeMap<Nexus, u64>,
    kind: Option<Kind>,
    /// Writes that are under way, by who sent them.
    writes: BTreeMap<Id, (Nexus, usize, Value)>,
    /// Writes that a PREEMPT AND ABORT has ended: as long as nobody changes anything.
    barred: Vec<Id>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number among the nodes.
    pub nexus: Nexus,
    /// Operations before it is done.
    pub operations: u64,
    /// Commands under way at a time.
    pub depth: usize,
    /// The volume of the cluster.
    pub volume: usize,
    /// How often in a thousand it breaks its connection, or leaves it.
    pub breaks: u64,
    /// How often in a thousand it aborts a command, or resets the LUN.
    pub aborts: u64,
    /// No command is under way for longer.
    pub patience: Duration,
    /// What there is of RDMA.
    pub rdma: Option<Rdma>,
    /// What everybody knows.
    pub site: Site,
}

/// A command under way.
struct Under {
    id: Id,
    /// What it does to blocks.
    sent: Option<Sent>,
    /// What it has to do with reservations.
    op: Option<Op>,
    since: Duration,
    tag: Tag,
}

/// A command to send.
struct Asked {
    cdb: Vec<u8>,
    data: Data<Vec<u8>, Arc<[u8]>>,
    sent: Option<Sent>,
    op: Option<Op>,
}

/// Commands of connections that have ended: they may take effect until the node is back.
type Lost = Vec<(Id, Option<(usize, Value)>)>;

struct Session<'a> {
    node: &'a Node,
    name: String,
    wire: Wire,
    initiator: Initiator,
    under_way: BTreeMap<u64, Under>,
    /// Task management functions that are not answered.
    managed: Vec<(Tag, Duration)>,
    copying: Copying,
    /// The relative target port identifier of its target port.
    port: Option<u16>,
    over: bool,
}

impl Cluster {
    /// The server was killed, and starts again.
    pub fn restarted(&mut self) {
        self.reservations.restarted();
        self.writes.clear();
        self.barred.clear();
    }
}

impl Known {
    /// A command of a node is sent: its name.
    pub(crate) fn cluster_sends(
        &mut self,
        who: Nexus,
        op: Option<&Op>,
        writes: Option<(usize, Value)>,
    ) -> Id {
        self.cluster.ids += 1;
        let id = self.cluster.ids;
        if matches!(op, Some(Op::Out(_))) {
            // Whoever was shut out may be let in by this, with what is still under way.
            for id in std::mem::take(&mut self.cluster.barred) {
                if let Some((_, volume, value)) = self.cluster.writes.get(&id) {
                    self.models[*volume].reopened(*value);
                }
            }
        }
        if let Some(op) = op {
            self.cluster.reservations.send(id, who, op.clone());
        }
        if let Some((volume, value)) = writes {
            self.cluster.writes.insert(id, (who, volume, value));
        }
        id
    }

    /// A command of a node was never sent, or was refused before it had any effect.
    pub(crate) fn cluster_refused(&mut self, id: Id) {
        self.cluster.reservations.refused(id);
        self.cluster.writes.remove(&id);
    }

    /// A command of a node can take effect no more, and may have.
    pub(crate) fn cluster_over(&mut self, id: Id, writes: Option<(usize, Value)>) {
        self.cluster.reservations.over(id);
        self.cluster.writes.remove(&id);
        if let Some((volume, value)) = writes {
            self.end_copy(value);
            self.models[volume].over(value, now());
        }
    }

    /// A command of a node was answered: what that says of reservations.
    ///
    /// # Errors
    /// It cannot have been answered so.
    pub(crate) fn cluster_judges(
        &mut self,
        who: Nexus,
        id: Id,
        op: Option<&Op>,
        verdict: &Verdict,
    ) -> Result<(), String> {
        let reservations = &mut self.cluster.reservations;
        match verdict {
            Verdict::Answered(answer) => {
                let victims = reservations.answered(id, answer)?;
                self.cluster_ends(&victims);
                if let (Some(Op::Out(out)), Answer::Good) = (op, answer) {
                    self.cluster.note(who, out);
                }
            }
            Verdict::Refused => reservations.refused(id),
            Verdict::Unknown => reservations.over(id),
        }
        Ok(())
    }

    /// A command of a node was answered, and does nothing more.
    pub(crate) fn cluster_answered(&mut self, id: Id) {
        self.cluster.writes.remove(&id);
    }

    /// PREEMPT AND ABORT was answered: what these nodes have under way has no effect any more.
    fn cluster_ends(&mut self, victims: &[Nexus]) {
        let Cluster { reservations, writes, barred, .. } = &mut self.cluster;
        for (id, (who, volume, value)) in writes {
            if victims.contains(who) && reservations.surely_excludes(*who) {
                self.models[*volume].over(*value, now());
                barred.push(*id);
            }
        }
    }
}

impl Node {
    /// Its life.
    pub fn run(self) {
        let name = format!("node {}", self.nexus);
        let mut left = self.operations;
        let (mut lost, mut left_open) = (Lost::new(), Vec::new());
        while left > 0 && !self.site.known().over {
            thread::sleep(Duration::from_micros(100 + below(20_000)));
            let address = SocketAddr::from(([10, 0, 1, self.nexus + 1], 40_000));
            let mut options = wire::options(&initiator_name(self.nexus), isid(self.nexus));
            let from = (name.as_str(), address);
            let Some(wire) = Wire::dial(&self.site, from, self.rdma.as_ref(), &mut options) else {
                continue;
            };
            let session = Session {
                node: &self,
                name: name.clone(),
                wire,
                initiator: Initiator::new(options),
                under_way: BTreeMap::new(),
                managed: Vec::new(),
                copying: Copying::default(),
                port: None,
                over: false,
            };
            left_open.extend(session.run(&mut left, &mut lost));
            if left_open.len() > 2 {
                left_open.remove(0);
            }
        }
        self.site.tell(&name, "is done");
        self.site.known().busy -= 1;
    }
}

fn initiator_name(nexus: Nexus) -> String {
    format!("iqn.2026-11.host:node{nexus}")
}

const fn isid(nexus: Nexus) -> [u8; 6] {
    [0x80, 0, 0, 0, 1, nexus]
}

impl Session<'_> {
    /// Its life; the connection, if it was left as it is.
    fn run(mut self, left: &mut u64, lost: &mut Lost) -> Option<Wire> {
        self.wire.start(&mut self.initiator);
        let (mut ending, mut leaves) = (false, false);
        loop {
            self.receive(left, lost);
            if self.over {
                break;
            }
            if self.initiator.is_ready() && !ending {
                self.work(left);
                if *left == 0 && self.under_way.is_empty() {
                    ending = self.wire.logout(&mut self.initiator).is_ok();
                }
            }
            if below(1000) < self.node.breaks {
                leaves = below(2) == 0;
                let what = if leaves { "leaves its connection" } else { "breaks its connection" };
                self.node.site.tell(&self.name, what);
                self.wire.flush();
                if leaves {
                    break;
                }
                self.wire.reset();
            }
            self.wire.flush();
            let late = |since: Duration| now() - since > self.node.patience;
            if let Some(under) = self.under_way.values().find(|under| late(under.since)) {
                let what = format!("{:?} {:?} of {:?}", under.op, under.sent, under.since);
                self.node.site.wrong(&self.name, &format!("{what} is not answered"));
            }
            if let Some((_, since)) = self.managed.iter().find(|(_, since)| late(*since)) {
                let what = format!("a function of {since:?} is not answered");
                self.node.site.wrong(&self.name, &what);
            }
            let mut known = self.node.site.known();
            if known.over || known.wrong.is_some() {
                known.over = true;
                break;
            }
            drop(known);
            self.wire.wait(Duration::from_micros(200 + below(100_000)));
            self.tick();
        }
        let under_way = self.under_way.into_values();
        lost.extend(under_way.map(|under| (under.id, under.sent.and_then(|sent| sent.writes()))));
        leaves.then_some(self.wire)
    }

    fn tick(&mut self) {
        let mut events = Vec::new();
        self.wire.tick(&mut self.initiator, &mut events);
        self.over |= events.iter().any(|event| matches!(event, Event::Failed(_)));
    }

    fn receive(&mut self, left: &mut u64, lost: &mut Lost) {
        let mut events = Vec::new();
        self.over |= self.wire.receive(&mut self.initiator, &mut events);
        for event in events {
            self.happened(event, left, lost);
        }
    }

    fn happened(&mut self, event: HostEvent, left: &mut u64, lost: &mut Lost) {
        let site = &self.node.site;
        match event {
            Event::LoggedIn(_) => {
                site.tell(&self.name, "is logged in");
                let mut known = site.known();
                lost.drain(..).for_each(|(id, writes)| known.cluster_over(id, writes));
            }
            Event::Finished(mut finished) => {
                self.wire.finished(&mut finished);
                *left = left.saturating_sub(1);
                self.finished(&finished);
            }
            Event::Managed { tag, .. } => self.managed.retain(|(of, _)| *of != tag),
            Event::LoggedOut { .. } => self.over = true,
            Event::Failed(error) => {
                site.tell(&self.name, &format!("its connection failed: {error}"));
                self.over = true;
            }
            // More immediate commands at a time than the target takes (RFC 7143 11.17.1).
            Event::Rejected { reason: 6, .. } => {}
            Event::Rejected { reason, .. } => {
                site.wrong(&self.name, &format!("a PDU was rejected: {reason:#x}"));
            }
            _ => {}
        }
    }

    fn finished(&mut self, finished: &Finished<Vec<u8>, Arc<[u8]>>) {
        if finished.outcome == Outcome::Lost {
            return;
        }
        let Some(under) = self.under_way.remove(&finished.token) else { return };
        let verdict = verdict(under.op.as_ref(), &finished.outcome, &finished.data);
        let what = match &verdict {
            Verdict::Answered(answer) => format!("{answer:?}"),
            other => format!("{other:?}: {:?}", finished.outcome),
        };
        let Under { id, sent, op, since, .. } = under;
        let told = format!("{op:?} {sent:?} of {since:?} has ended: {what}");
        self.node.site.tell(&self.name, &told);
        if let (Some(port), None, None) = (port_in(&finished.data), &sent, &op) {
            self.port = Some(port);
        }
        let mut known = self.node.site.known();
        known.operations += 1;
        let mut wrong = known.cluster_judges(self.node.nexus, id, op.as_ref(), &verdict).err();
        known.cluster_answered(id);
        match (sent, &verdict) {
            (Some(sent), Verdict::Answered(Answer::Conflict)) => sent.undone(&mut known),
            (Some(sent), _) => {
                let answer = Ended::of(&finished.outcome, &finished.data);
                let right = sent.answered(&mut known, &mut self.copying, answer, since);
                wrong = wrong.or(right.err());
            }
            (None, _) => {}
        }
        drop(known);
        if let Some(wrong) = wrong {
            self.node.site.wrong(&self.name, &wrong);
        }
    }

    /// Sends commands, and now and then something that ends them.
    fn work(&mut self, left: &mut u64) {
        if below(1000) < self.node.aborts {
            self.disturb();
        }
        let wanted = (*left as usize).min(self.node.depth);
        while self.under_way.len() < wanted && below(4) != 0 {
            let changes = |under: &Under| matches!(under.op, Some(Op::Out(_)));
            let asked = match below(8) {
                0 | 1 if !self.under_way.values().any(changes) => self.change(),
                2 => Some(question()),
                _ => self.transfer(),
            };
            if asked.is_none_or(|asked| !self.submit(asked)) {
                return;
            }
        }
    }

    fn disturb(&mut self) {
        let functions =
            [TmfFunction::LogicalUnitReset, TmfFunction::ClearTaskSet, TmfFunction::AbortTaskSet];
        let (function, of) = match self.under_way.values().next() {
            Some(under) if below(2) == 0 => (TmfFunction::AbortTask, Some(under.tag)),
            _ => (functions[below(3) as usize], None),
        };
        self.node.site.tell(&self.name, &format!("{function:?}"));
        let asked = (function, (self.node.volume as u64) << 48, of);
        let managed = self.wire.manage(&mut self.initiator, asked);
        self.managed.extend(managed.map(|tag| (tag, now())));
    }

    fn submit(&mut self, asked: Asked) -> bool {
        let Asked { cdb, data, sent, op } = asked;
        let writes = sent.as_ref().and_then(Sent::writes);
        let site = &self.node.site;
        let id = site.known().cluster_sends(self.node.nexus, op.as_ref(), writes);
        let command = Command {
            token: id,
            lun: (self.node.volume as u64) << 48,
            cdb: &cdb,
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        match self.wire.submit(&mut self.initiator, command) {
            Ok(tag) => {
                site.tell(&self.name, &format!("{op:?} {sent:?}"));
                self.under_way.insert(id, Under { id, sent, op, since: now(), tag });
                true
            }
            Err(_) => {
                let mut known = site.known();
                known.cluster_refused(id);
                if let Some(sent) = sent {
                    sent.undone(&mut known);
                }
                false
            }
        }
    }

    /// A command on blocks.
    fn transfer(&mut self) -> Option<Asked> {
        let mut known = self.node.site.known();
        let order = commands::draw(&mut known, &[self.node.volume], &mut self.copying)?;
        // What a reservation lets through (SPC-5 table 66, SBC-4 table 15).
        let op = match (order.cdb[0], order.cdb[1] & 0x1f) {
            (0x28 | 0x88 | 0x2f | 0x8f | 0x34 | 0x90, _) | (0x83, 0x10) | (0x9e, 0x12) => {
                Some(Op::Read)
            }
            (0x2a | 0x8a | 0x2e | 0x8e | 0x93 | 0x42 | 0x89 | 0x8b | 0x35 | 0x91 | 0x83, _) => {
                Some(Op::Write)
            }
            _ => None,
        };
        Some(Asked { cdb: order.cdb, data: order.data, sent: Some(order.sent), op })
    }

    /// PERSISTENT RESERVE OUT.
    fn change(&mut self) -> Option<Asked> {
        let Some(port) = self.port else { return Some(ports()) };
        let own = self.node.nexus;
        let Wants { right, key, victim, new, kind } = self.node.site.known().cluster.wants(own);
        let other = (own + 1 + below(2) as u8) % 3;
        let keep = below(2) == 0;
        let out = match below(16) {
            0..=2 => Out::Register { key, new, ignore: below(2) == 0, keep },
            _ if right == 0 && below(4) != 0 => Out::Register { key, new, ignore: false, keep },
            3 => Out::Register { key, new: 0, ignore: below(2) == 0, keep },
            4..=7 => Out::Reserve { key, kind },
            8 | 9 => Out::Release { key, kind },
            10 => Out::Clear { key },
            11 => Out::Move { key, new, to: other, leave: below(2) == 0, keep },
            // Who has its own commands ended is not told of it.
            _ => Out::Preempt { key, victim, kind, abort: victim != key && below(2) == 0 },
        };
        Some(encoded(out, port))
    }
}

/// What a node may try next.
pub(crate) struct Wants {
    /// Its key, as far as is known; 0: none.
    pub right: u64,
    /// The key that it says it has.
    pub key: u64,
    /// The key of whom it preempts.
    pub victim: u64,
    /// The key that it registers.
    pub new: u64,
    /// The type of its reservation.
    pub kind: Kind,
}

impl Cluster {
    /// Draws what a node may try next.
    pub(crate) fn wants(&self, own: Nexus) -> Wants {
        let right = self.keys.get(&own).copied().unwrap_or(0);
        let key = if below(12) == 0 { 1 + below(3) } else { right };
        let others: Vec<u64> =
            self.keys.iter().filter(|(who, _)| **who != own).map(|(_, key)| *key).collect();
        let victim = match below(6) {
            0 => 0,
            1 => below(300),
            _ if others.is_empty() => 0,
            _ => others[below(others.len() as u64) as usize],
        };
        let fresh = u64::from(own + 1) * 100 + below(3);
        // Now and then nodes share a key.
        let new = if below(5) == 0 { 777 } else { fresh };
        let kind = match self.kind {
            Some(kind) if below(4) != 0 => kind,
            _ => KINDS[below(6) as usize],
        };
        Wants { right, key, victim, new, kind }
    }

    /// A change was answered GOOD: what others may try from now on.
    fn note(&mut self, who: Nexus, out: &Out) {
        match *out {
            Out::Register { new: 0, .. } | Out::Enrol { action: Enrol::Unregister, .. } => {
                self.keys.remove(&who);
            }
            Out::Register { new, .. } | Out::Enrol { new, .. } => {
                self.keys.insert(who, new);
            }
            Out::Reserve { kind, .. } => self.kind = Some(kind),
            Out::Release { .. } => self.kind = None,
            Out::Clear { .. } => self.keys.clear(),
            Out::Preempt { victim, kind, .. } => {
                self.keys.retain(|nexus, key| *nexus == who || *key != victim);
                self.kind = Some(kind);
            }
            Out::Move { new, to, leave, .. } => {
                self.keys.insert(to, new);
                if leave {
                    self.keys.remove(&who);
                }
            }
        }
    }
}

/// PERSISTENT RESERVE OUT as it is sent (SPC-5 6.15).
fn encoded(out: Out, port: u16) -> Asked {
    let (action, kind, key, second) = match out {
        // That is NVMe's.
        Out::Enrol { key, new, .. } => (0, 0, key, new),
        Out::Register { ignore: false, key, new, .. } => (0, 0, key, new),
        Out::Register { key, new, .. } => (6, 0, key, new),
        Out::Reserve { key, kind } => (1, kind, key, 0),
        Out::Release { key, kind } => (2, kind, key, 0),
        Out::Clear { key } => (3, 0, key, 0),
        Out::Preempt { key, victim, kind, abort } => (4 + u8::from(abort), kind, key, victim),
        Out::Move { key, new, .. } => (7, 0, key, new),
    };
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&second.to_be_bytes());
    match out {
        Out::Register { keep, .. } => list[20] = u8::from(keep),
        Out::Move { to, leave, keep, .. } => {
            list[17] = u8::from(keep) | u8::from(leave) << 1;
            list[18..20].copy_from_slice(&port.to_be_bytes());
            let id = transport_id(to);
            list[20..24].copy_from_slice(&(id.len() as u32).to_be_bytes());
            list.extend_from_slice(&id);
        }
        _ => {}
    }
    let mut cdb = vec![0; 10];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, kind, list.len() as u8);
    Asked { cdb, data: Data::Write(list.into()), sent: None, op: Some(Op::Out(out)) }
}

/// The TransportID of a node (SPC-5 7.6.4.6).
fn transport_id(nexus: Nexus) -> Vec<u8> {
    let digits: String = isid(nexus).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut id = vec![0x45, 0, 0, 0];
    id.extend_from_slice(format!("{},i,0x{digits}\0", initiator_name(nexus)).as_bytes());
    id.resize(id.len().next_multiple_of(4), 0);
    id[3] = id.len() as u8 - 4;
    id
}

/// READ KEYS or READ RESERVATION (SPC-5 6.14).
fn question() -> Asked {
    let action = below(2) as u8;
    let cdb = vec![0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0];
    let op = if action == 0 { Op::Keys } else { Op::Reservation };
    Asked { cdb, data: Data::Read(vec![0; 256]), sent: None, op: Some(op) }
}

/// INQUIRY for the number of the target port.
fn ports() -> Asked {
    let cdb = vec![0x12, 1, 0x83, 0, 255, 0];
    Asked { cdb, data: Data::Read(vec![0; 255]), sent: None, op: None }
}

/// RELATIVE TARGET PORT IDENTIFIER, in the device identification page (SPC-5 7.7.6.8).
fn port_in(data: &Data<Vec<u8>, Arc<[u8]>>) -> Option<u16> {
    let Data::Read(page) = data else { return None };
    let mut rest = page.get(4..)?;
    while let [_, kind, _, len, body @ ..] = rest {
        if kind & 0x3f == 0x14 {
            return Some(u16::from_be_bytes(body.get(2..4)?.try_into().ok()?));
        }
        rest = body.get(usize::from(*len)..)?;
    }
    None
}

/// What an answer says of reservations.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// This.
    Answered(Answer),
    /// It had no effect, for another reason.
    Refused,
    /// Nothing.
    Unknown,
}

fn verdict(op: Option<&Op>, outcome: &Outcome, data: &Data<Vec<u8>, Arc<[u8]>>) -> Verdict {
    let (Some(op), Outcome::Completed(done)) = (op, outcome) else { return Verdict::Unknown };
    let key = done.sense.get(2).map_or(0, |key| key & 0xf);
    let changes = matches!(op, Op::Out(_));
    match (done.status, key, data) {
        (0, _, Data::Read(bytes)) if *op == Op::Keys => Verdict::Answered(keys_in(bytes)),
        (0, _, Data::Read(bytes)) if *op == Op::Reservation => Verdict::Answered(holder_in(bytes)),
        (0, ..) => Verdict::Answered(Answer::Good),
        (0x18, ..) => Verdict::Answered(Answer::Conflict),
        (2, 5, _) if changes => Verdict::Answered(Answer::Refused),
        // MISCOMPARE: it was let through.
        (2, 0xe, _) => Verdict::Answered(Answer::Good),
        // A unit attention, BUSY, TASK SET FULL.
        (2, 6, _) | (8 | 0x28, ..) => Verdict::Refused,
        _ => Verdict::Unknown,
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn keys_in(bytes: &[u8]) -> Answer {
    let keys = bytes[8..].chunks_exact(8).take(number(&bytes[4..8]) as usize / 8);
    let mut keys: Vec<u64> = keys.map(number).collect();
    keys.sort_unstable();
    Answer::Keys(number(&bytes[..4]) as u32, keys)
}

fn holder_in(bytes: &[u8]) -> Answer {
    let held = (number(&bytes[4..8]) > 0).then(|| (number(&bytes[8..16]), bytes[21] & 0xf));
    Answer::Held(number(&bytes[..4]) as u32, held)
}
