//! A gateway as a process: the state machine, and what the server does around it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lunet_gateway::{
    Action, Admission, Answer, Change, ClientName, Condition, Config, Contents, Epoch, Failure,
    Gate, Gateway, GatewayId, Input, Link, Lost, Notice, NotifyId, OpId, Portals, Record, Refusal,
    Reply, Request, Reserved, Stamp, Turn, Volume, Way,
};
use lunet_reservations::{Kind as Reservation, Register, Registrant, Reservations};

use crate::cluster::{Ask, ClientIx, Cluster, Given, Kind, Token};
use crate::host::{Question, Told, Wanted};
use crate::jobs::Running;
use crate::relay::{Going, Relay, portal_of};
use crate::reserve::{Act, State};
use crate::world::{Event, World};
use crate::{MS, SEC, Time, VOLUMES};

/// The protocol of the hosts' names.
pub const FAMILY: &str = "sim";

/// A gateway.
#[derive(Debug)]
pub struct Node {
    /// Rises when it is killed: events of the process that has gone find it changed.
    pub incarnation: u32,
    /// The process runs.
    pub alive: bool,
    /// It stands still until then.
    pub frozen_until: Time,
    /// Its clock is behind the world's by this.
    pub lag: Time,
    /// It does not reach the cluster until then.
    pub cut_until: Time,
    /// Since when the cluster has heard nothing of it.
    pub unreachable_since: Option<Time>,
    /// When its latest client ended.
    pub client_ended: Time,
    machine: Gateway,
    tick: Time,
    client: Option<ClientIx>,
    /// The images that its client has open.
    images: Vec<usize>,
    chains: BTreeMap<OpId, Chain>,
    /// Those of hosts, and those of other gateways for hosts.
    pub connections: BTreeMap<u64, Connection>,
    /// Commands that are not answered.
    pub commands: BTreeMap<u64, Command>,
    /// Sessions with the owner, by the connection of the host.
    pub relays: BTreeMap<u64, Relay>,
    /// Where commands are passed on to, in that epoch.
    pub reach: Option<(Epoch, usize)>,
    ways: BTreeMap<u8, Rc<Way>>,
    /// Commands that wait for a change of reservations.
    held: Vec<u64>,
    changing: bool,
    draining: Option<OpId>,
    reservations: Reservations,
    prepared: Option<Reservations>,
    requests: BTreeMap<u64, (u64, u8)>,
    contents: Contents,
    /// What administrators want of it as the owner.
    pub jobs: Vec<Running>,
}

/// Parts of one operation of the state machine, one after the other.
#[derive(Debug)]
struct Chain {
    what: Whole,
    part: usize,
    record: Vec<u8>,
    locks: Vec<ClientName>,
}

#[derive(Clone, Debug)]
enum Whole {
    Connect(ClientIx),
    Look,
    Break(ClientIx),
    Lock,
    Unlock,
    Touch,
    One,
}

/// A connection of a host.
#[derive(Debug)]
pub struct Connection {
    /// The host.
    pub host: u8,
    /// The gateway that passes its commands on.
    pub from: Option<usize>,
    link: Link,
    /// What it is fresh for.
    fresh: Turn,
    /// The session with the owner that was open when it was asked last.
    asked: u64,
    login_waits: bool,
}

impl Connection {
    /// It is of another epoch than this gate lets in.
    pub fn is_of_another_epoch(&self, gate: &Gate) -> bool {
        let serves = matches!(gate.admits(self.link.stamp()), Admission::Execute | Admission::Busy);
        self.link != gate.connected() || !serves
    }
}

/// A command of a host.
#[derive(Clone, Debug)]
pub struct Command {
    /// Its connection.
    pub connection: u64,
    /// The host.
    pub host: u8,
    /// The gateway that passes it on.
    pub from: Option<usize>,
    /// What it wants.
    pub wanted: Wanted,
    /// Of one that was passed on: its number there. Of a host's own: the session that was open when its connection was asked
    /// last.
    pub asked: u64,
    /// What its connection was fresh for.
    pub fresh: Turn,
    /// It goes by its host's way.
    pub going: Option<Rc<Going>>,
    stamp: Stamp,
    /// I/O of it is under way.
    submitted: bool,
    /// It has the block for itself.
    exclusive: bool,
}

impl Node {
    /// A gateway that starts.
    pub fn new(number: usize, now: Time, relays: bool) -> Self {
        let portals = Portals { iscsi: relays.then(|| portal_of(number)), nvme: None };
        let config = Config { me: GatewayId(number as u16), rank: number as u32, portals };
        Self {
            incarnation: 0,
            alive: true,
            frozen_until: 0,
            lag: 0,
            cut_until: 0,
            unreachable_since: None,
            client_ended: 0,
            machine: Gateway::new(config, Duration::from_micros(now)),
            tick: 0,
            client: None,
            images: Vec::new(),
            chains: BTreeMap::new(),
            connections: BTreeMap::new(),
            commands: BTreeMap::new(),
            relays: BTreeMap::new(),
            reach: None,
            ways: BTreeMap::new(),
            held: Vec::new(),
            changing: false,
            draining: None,
            reservations: Reservations::new(true),
            prepared: None,
            requests: BTreeMap::new(),
            contents: Contents::default(),
            jobs: Vec::new(),
        }
    }

    /// By which gateway a host's changes come.
    pub fn way(&mut self, host: u8) -> Rc<Way> {
        self.ways.entry(host).or_default().clone()
    }

    /// It owns the group, as far as it knows.
    pub fn gate(&self) -> Gate {
        self.machine.gate()
    }

    /// Its client.
    pub const fn client(&self) -> Option<ClientIx> {
        self.client
    }

    /// It changes reservations.
    pub fn at_work(&self) -> bool {
        self.changing
    }

    /// Its state machine.
    pub fn machine(&self) -> &Gateway {
        &self.machine
    }
}

/// How an image is called.
pub fn name_of(image: usize) -> String {
    format!("rbd/image{image}")
}

/// The number of an image.
fn image_of(volume: &Volume) -> usize {
    volume.image.bytes().next_back().map_or(0, |digit| usize::from(digit - b'0'))
}

/// The volume that has reservations.
fn reserved_of(contents: &Contents) -> &Volume {
    let has = |volume: &&Volume| image_of(volume) == VOLUMES - 1;
    contents.volumes.iter().find(has).expect("it stays in the group")
}

fn registrant(host: u8) -> Registrant {
    Registrant::new(FAMILY, &[host])
}

fn key(host: u8) -> u64 {
    100 + u64::from(host)
}

/// What a volume's reservations come to for a model.
pub fn state_of(reserved: &Reserved) -> State {
    let host = |at: usize| reserved.registrations[at].name[0];
    let registered = (0..reserved.registrations.len()).fold(0, |all, at| all | 1 << host(at));
    State { registered, holder: reserved.holder.map(|at| host(usize::from(at))) }
}

fn perform(reservations: &mut Reservations, act: Act) -> bool {
    let kind = Reservation::WriteExclusive;
    let done = match act {
        Act::Register(host) => {
            let keep = Some(true);
            let asked = Register { existing: None, new_key: key(host), also: &[], keep };
            reservations.register(&registrant(host), asked)
        }
        Act::Reserve(host) => reservations.reserve(&registrant(host), key(host), kind),
        Act::Release(host) => reservations.release(&registrant(host), key(host), kind),
        Act::Preempt(host, other) => {
            let who = registrant(host);
            reservations.preempt(&who, (key(host), key(other)), Some(kind), false)
        }
        Act::Report | Act::Write(_) => return true,
    };
    done.is_ok()
}

impl World {
    /// The time of a gateway's clock.
    fn clock(&self, gateway: usize) -> Duration {
        Duration::from_micros(self.now - self.nodes[gateway].lag)
    }

    /// The record that a gateway knows is the one that there is, or was last.
    fn is_of_record(&self, gateway: usize) -> bool {
        let secret = self.nodes[gateway].machine.record().map(|record| record.secret[0]);
        secret.is_none_or(|secret| secret == 7 + self.generation)
    }

    /// A gateway's epoch among those of all records.
    fn ordinal(&self, gateway: usize) -> Epoch {
        let machine = &self.nodes[gateway].machine;
        let record = u64::from(machine.record().map_or(0, |record| record.secret[0]));
        Epoch((record << 32) + machine.gate().epoch().0)
    }

    /// Gives a gateway's state machine an input, and does what it wants. One that was frozen by what it has just done hears of it when it
    /// goes on: its clock stands until then.
    pub fn feed(&mut self, gateway: usize, input: Input) {
        if self.nodes[gateway].frozen_until > self.now {
            return self.to_node(gateway, self.now, Event::Fed(Box::new(input)));
        }
        let clock = self.clock(gateway);
        self.nodes[gateway].machine.handle(clock, input);
        self.drive(gateway);
    }

    /// Does what a gateway's state machine wants.
    pub fn drive(&mut self, gateway: usize) {
        let incarnation = self.nodes[gateway].incarnation;
        while let Some(action) = self.nodes[gateway].machine.action() {
            self.tell(|| format!("gateway {gateway}: {action:?}"));
            self.perform(gateway, action);
            self.step(gateway);
            if self.nodes[gateway].incarnation != incarnation {
                return;
            }
        }
        let node = &mut self.nodes[gateway];
        if let Some(due) = node.machine.timeout() {
            let at = Time::try_from(due.as_micros()).unwrap_or(Time::MAX / 2) + node.lag;
            if at != node.tick {
                node.tick = at;
                self.to_node(gateway, at.max(self.now), Event::Tick);
            }
        }
    }

    /// A timer of a gateway is over.
    pub fn tick(&mut self, gateway: usize) {
        self.nodes[gateway].tick = 0;
        self.feed(gateway, Input::Tick);
        self.wants_volumes(gateway);
    }

    /// The configuration says which volumes the group is to have: an owner hears of it again and again.
    pub fn wants_volumes(&mut self, gateway: usize) {
        if self.plan.volumes > 0 && self.nodes[gateway].gate().is_open() {
            let volumes = self.wanted();
            self.feed(gateway, Input::Volumes(volumes));
        }
    }

    fn perform(&mut self, gateway: usize, action: Action) {
        match action {
            Action::NewClient(op) => {
                let client = self.new_client(gateway, op);
                self.nodes[gateway].client = Some(client);
                self.chain(gateway, op, Whole::Connect(client));
            }
            Action::DropClient { release } => self.drop_client(gateway, release),
            Action::ReadRecord(op) => self.one(gateway, op, Kind::ReadRecord),
            Action::Look(op) => self.chain(gateway, op, Whole::Look),
            Action::Blocklist(op, address, limit) => {
                let client = Cluster::by_address(&address);
                self.one_ask(gateway, op, Ask::Blocklist(client, limit));
            }
            Action::WaitForMap(op) => self.one_ask(gateway, op, Ask::Map),
            Action::BreakLock(op, owner) => {
                let owner = Cluster::by_address(&owner.address);
                self.chain(gateway, op, Whole::Break(owner));
            }
            Action::Acquire(op) => self.chain(gateway, op, Whole::Lock),
            Action::Refresh(op) | Action::Flush(op) => self.chain(gateway, op, Whole::Touch),
            Action::Release(op) => self.chain(gateway, op, Whole::Unlock),
            Action::Swap { op, expect, record } => match record.encode() {
                Ok(bytes) => self.one(gateway, op, Kind::Swap(expect, bytes)),
                Err(why) => self.wrong(format!("{why}")),
            },
            Action::Notify(op, bytes, limit) => {
                self.one(gateway, op, Kind::Notify(bytes, limit.as_micros() as Time));
            }
            Action::Acknowledge(NotifyId(id), bytes) => {
                if let Some(client) = self.nodes[gateway].client {
                    self.submit(client, Token::None, Kind::Acknowledge(id, bytes));
                }
            }
            Action::Drain(op) => {
                self.no_job_is_under_way(gateway);
                self.nodes[gateway].draining = Some(op);
                self.look_drained(gateway);
            }
            other => self.perform_here(gateway, other),
        }
    }

    /// Actions that concern the gateway's hosts.
    fn perform_here(&mut self, gateway: usize, action: Action) {
        match action {
            Action::Gate(gate) => self.gate_changes(gateway, gate),
            Action::Reach(epoch, to) => {
                let gateways = 0..self.nodes.len();
                let to = gateways.into_iter().find(|other| to.iscsi == Some(portal_of(*other)));
                self.nodes[gateway].reach = to.map(|to| (epoch, to));
            }
            Action::StopAnswering(_) => {
                // One of a record that is gone has a cause.
                self.stopped += u64::from(self.is_of_record(gateway));
                let node = &mut self.nodes[gateway];
                node.commands.clear();
                node.held.clear();
                node.requests.clear();
                node.draining = None;
            }
            Action::AbortConnections => {
                let all = std::mem::take(&mut self.nodes[gateway].connections);
                all.into_iter().for_each(|(id, it)| self.tell_aborted(gateway, id, &it));
            }
            Action::Load(record) => self.load(gateway, &record),
            Action::Modes(_) | Action::Attention(_) | Action::Preempted(_) => {}
            Action::Access(epoch, ports, access) => {
                let told = (ports, access);
                let machine = &self.nodes[gateway].machine;
                if machine.condition() == Condition::Orphaned {
                    return;
                }
                let known =
                    self.access.entry((machine.tag(), epoch)).or_insert_with(|| told.clone());
                if *known != told {
                    self.wrong(format!("gateway {gateway} has other access states at {epoch:?}"));
                }
            }
            Action::Execute(request, body) => self.execute(gateway, request, &body),
            Action::Apply(request) => {
                let node = &mut self.nodes[gateway];
                if let Some(prepared) = node.prepared.take() {
                    node.reservations = prepared;
                }
                self.change_ends(gateway);
                self.to_node(gateway, self.now, Event::Applied(request));
            }
            Action::Abandon(_) => {
                self.nodes[gateway].prepared = None;
                self.change_ends(gateway);
            }
            Action::Answer(id, answer) => self.answer_request(gateway, id, answer),
            Action::Job(job, body) => self.job_begins(gateway, job, &body),
            Action::JobTold(id, outcome) => self.job_told(id, &outcome),
            Action::Refuse(_, Refusal::NotDrained) => self.refused_moves += 1,
            Action::Notice(Notice::ShortEntry { .. }) => self.short_entries += 1,
            Action::Notice(Notice::InUse { .. } | Notice::NotDrained { .. })
            | Action::Settled
            | Action::Present(_) => {}
            Action::Notice(Notice::Orphaned(_)) => {
                if self.generation == 0 {
                    self.wrong(format!("gateway {gateway} has lost a record that is there"));
                }
            }
            Action::Notice(Notice::SameNumber(number)) => {
                self.wrong(format!("gateway {number} is believed to be two"));
            }
            Action::Refuse(..) => {}
            _ => unreachable!("the cluster's"),
        }
    }

    fn one(&mut self, gateway: usize, op: OpId, kind: Kind) {
        let Some(client) = self.nodes[gateway].client else { return };
        let (part, record, locks) = (0, Vec::new(), Vec::new());
        self.nodes[gateway].chains.insert(op, Chain { what: Whole::One, part, record, locks });
        self.submit(client, Token::Machine(op), kind);
    }

    fn one_ask(&mut self, gateway: usize, op: OpId, ask: Ask) {
        let Some(client) = self.nodes[gateway].client else { return };
        let (part, record, locks) = (0, Vec::new(), Vec::new());
        self.nodes[gateway].chains.insert(op, Chain { what: Whole::One, part, record, locks });
        self.ask(client, Token::Machine(op), ask);
    }

    fn chain(&mut self, gateway: usize, op: OpId, what: Whole) {
        let (part, record, locks) = (0, Vec::new(), Vec::new());
        self.nodes[gateway].chains.insert(op, Chain { what, part, record, locks });
        self.next_part(gateway, op);
    }

    /// Begins the next part of an operation.
    fn next_part(&mut self, gateway: usize, op: OpId) {
        let node = &self.nodes[gateway];
        let (Some(client), Some(chain)) = (node.client, node.chains.get(&op)) else { return };
        let (token, part) = (Token::Machine(op), chain.part);
        let image = |part: usize| node.images[part];
        let kind = match chain.what {
            Whole::Connect(_) if part == 0 => return self.ask(client, token, Ask::Connect),
            Whole::Connect(_) if part == 1 => Kind::ReadRecord,
            Whole::Connect(_) => Kind::Watch,
            Whole::Look if part == 0 => Kind::ReadRecord,
            Whole::Look => Kind::GetLock(image(part - 1)),
            Whole::Break(owner) => Kind::Break(image(part), owner),
            Whole::Lock => Kind::Lock(image(part)),
            Whole::Unlock => {
                let image = image(part);
                self.cluster.clients[client].locked[image] = false;
                Kind::Unlock(image)
            }
            Whole::Touch => Kind::Touch(image(part)),
            Whole::One => return,
        };
        self.submit(client, token, kind);
    }

    /// A part of an operation has ended.
    pub fn part_done(&mut self, gateway: usize, op: OpId, given: Result<Given, Failure>) {
        let node = &mut self.nodes[gateway];
        let (Some(client), Some(chain)) = (node.client, node.chains.get_mut(&op)) else { return };
        let parts = match chain.what {
            Whole::One => 1,
            Whole::Connect(_) => 3,
            Whole::Look => 1 + node.images.len(),
            _ => node.images.len(),
        };
        let mut result = Ok(Reply::Done);
        match given {
            Err(failure) => result = Err(failure),
            Ok(Given::Map(map)) => {
                let known = &mut self.cluster.clients[client].map;
                *known = (*known).max(map);
            }
            Ok(Given::Lock(owner)) => chain.locks.extend(owner),
            Ok(Given::Reply(Reply::Record(bytes))) if matches!(chain.what, Whole::Look) => {
                chain.record = bytes;
            }
            Ok(Given::Reply(Reply::Record(bytes))) if matches!(chain.what, Whole::Connect(_)) => {
                let record = Record::decode(&bytes).expect("the record is whole");
                if node.machine.tag().is_some_and(|tag| tag != record.tag()) {
                    result = Err(Failure::NoRecord(Lost::Anew));
                }
                node.images = record.contents.volumes.iter().map(image_of).collect();
            }
            Ok(Given::Reply(reply)) => {
                if matches!(chain.what, Whole::Lock) {
                    self.cluster.clients[client].locked[node.images[chain.part]] = true;
                }
                result = Ok(reply);
            }
            Ok(Given::Value(_)) => {}
        }
        chain.part += 1;
        if result.is_ok() && chain.part < parts {
            self.next_part(gateway, op);
            return self.step(gateway);
        }
        let chain = node.chains.remove(&op).expect("it was there");
        let result = result.map(|reply| match chain.what {
            Whole::Look => Reply::Seen { record: chain.record, locks: chain.locks },
            Whole::Connect(client) => {
                let images = node.images.iter().map(|image| (name_of(*image), 1 << 30)).collect();
                Reply::Client { name: Cluster::name(client), images }
            }
            _ => reply,
        });
        self.feed(gateway, Input::Done(op, result));
    }

    fn drop_client(&mut self, gateway: usize, release: bool) {
        let node = &mut self.nodes[gateway];
        node.chains.clear();
        node.client_ended = self.now;
        let Some(client) = node.client.take() else { return };
        let state = &mut self.cluster.clients[client];
        state.ended = true;
        let map = state.map;
        for image in
            (0..VOLUMES).filter(|image| release && state.locked[*image]).collect::<Vec<_>>()
        {
            let kind = Kind::Unlock(image);
            self.put_on_the_wire(crate::cluster::Op { client, token: Token::None, map, kind });
        }
    }

    fn gate_changes(&mut self, gateway: usize, gate: Gate) {
        self.gates(gateway, gate);
        self.relays_end(gateway);
        if gate.is_open() {
            let all = self.nodes[gateway].connections.iter();
            let all = all.filter(|(_, connection)| connection.from.is_none());
            let all: Vec<_> = all.map(|(id, connection)| (*id, connection.host)).collect();
            for (id, host) in all {
                let turn = self.nodes[gateway].way(host).turn();
                let question = Question { ping: gate.ping(), turn, session: 0 };
                self.to_host(host, gateway, id, Told::Ping(question));
            }
        }
    }

    fn load(&mut self, gateway: usize, record: &Record) {
        let node = &mut self.nodes[gateway];
        node.contents = record.contents.clone();
        node.reservations = Reservations::new(true);
        let saved =
            reserved_of(&record.contents).reserved.saved(&[FAMILY]).expect("hosts of this world");
        if node.reservations.restore(saved).is_err() {
            self.wrong("the record's reservations cannot be loaded".into());
        }
    }

    fn execute(&mut self, gateway: usize, request: Request, body: &[u8]) {
        let node = &mut self.nodes[gateway];
        node.changing = true;
        let mut reservations = node.reservations.clone();
        let act = act_of(body);
        let good = perform(&mut reservations, act);
        let mut contents =
            node.machine.record().map_or_else(Contents::default, |record| record.contents.clone());
        if let Some(saved) = reservations.saved() {
            let generation = reservations.generation();
            let reserved =
                Reserved::of(&saved, generation, &[FAMILY]).expect("hosts of this world");
            let naa = reserved_of(&contents).naa;
            contents.change(naa, Change::Reserved(reserved));
        }
        node.prepared = Some(reservations);
        let input = Input::Executed(request, Box::new(contents), vec![u8::from(good)]);
        let at = self.now + self.chance.below(500);
        self.to_node(gateway, at, Event::Fed(Box::new(input)));
    }

    fn change_ends(&mut self, gateway: usize) {
        let node = &mut self.nodes[gateway];
        node.changing = false;
        for id in std::mem::take(&mut node.held) {
            self.to_node(gateway, self.now, Event::Run(id));
        }
    }

    fn answer_request(&mut self, gateway: usize, id: u64, answer: Answer) {
        let Some((connection, _)) = self.nodes[gateway].requests.remove(&id) else { return };
        let told = match answer {
            Answer::Body(body) if body == [1] => Told::Good(0),
            Answer::Body(_) => Told::Conflict,
            Answer::Busy => Told::Busy,
            Answer::Record(record) => {
                Told::Status(state_of(&reserved_of(&record.contents).reserved))
            }
        };
        if self.nodes[gateway].commands.contains_key(&id) {
            return self.end(gateway, id, told);
        }
        self.tell_host(gateway, connection, (0, told));
    }

    /// A connection is aborted.
    pub fn abort(&mut self, gateway: usize, id: u64) {
        if let Some(connection) = self.nodes[gateway].connections.remove(&id) {
            self.tell_aborted(gateway, id, &connection);
        }
    }

    /// A host logs in: its other connections end, and what it has sent over them.
    pub fn login(&mut self, gateway: usize, id: u64, host: u8) {
        self.begin_session(gateway, id, host, None);
    }

    /// The same, for a host that comes through another gateway.
    pub fn begin_session(&mut self, gateway: usize, id: u64, host: u8, from: Option<usize>) {
        let node = &mut self.nodes[gateway];
        let (link, fresh) = (node.machine.gate().connected(), node.way(host).turn());
        let others =
            node.connections.iter().filter(|(_, other)| (other.host, other.from) == (host, from));
        let others: Vec<u64> = others.map(|(id, _)| *id).collect();
        others.into_iter().for_each(|id| self.abort(gateway, id));
        let node = &mut self.nodes[gateway];
        node.commands.retain(|_, it| (it.host, it.from) != (host, from) || it.submitted);
        if from.is_none() {
            node.requests.retain(|_, (_, other)| *other != host);
        }
        let (asked, login_waits) = (0, true);
        let connection = Connection { host, from, link, fresh, asked, login_waits };
        node.connections.insert(id, connection);
        self.answer_logins(gateway);
    }

    /// Logins are answered when nothing of their hosts' former connections is under way.
    fn answer_logins(&mut self, gateway: usize) {
        let node = &mut self.nodes[gateway];
        let gate = node.machine.gate();
        let mut ready = Vec::new();
        for (id, connection) in &mut node.connections {
            let mut commands = node.commands.values();
            let nexus = (connection.host, connection.from);
            let waits = commands.any(|c| (c.host, c.from) == nexus && c.connection != *id);
            if connection.login_waits && !waits {
                connection.login_waits = false;
                connection.link = gate.connected();
                let way = node.ways.entry(connection.host).or_default();
                connection.fresh = way.turn();
                ready.push(*id);
            }
        }
        for id in ready {
            self.tell_host(gateway, id, (0, Told::LoggedIn));
        }
    }

    /// A host has closed a connection.
    pub fn closed(&mut self, gateway: usize, id: u64) {
        self.nodes[gateway].connections.remove(&id);
        self.end_relay(gateway, id, true);
    }

    /// The answer to a ping arrives.
    pub fn pong(&mut self, gateway: usize, id: u64, question: Question) {
        if let Some(connection) = self.nodes[gateway].connections.get_mut(&id) {
            connection.link.renew(question.ping);
            connection.fresh = connection.fresh.max(question.turn);
            connection.asked = connection.asked.max(question.session);
        }
    }

    /// A command arrives; `asked`: its number at the gateway that has passed it on.
    pub fn command(&mut self, gateway: usize, id: u64, wanted: Wanted, asked: u64) {
        let number = self.number();
        let node = &mut self.nodes[gateway];
        let Some(connection) = node.connections.get(&id) else {
            return;
        };
        let host = connection.host;
        if wanted == Wanted::Report {
            node.requests.insert(number, (id, host));
            return self.feed(gateway, Input::Report(number));
        }
        let (stamp, fresh, from) = (connection.link.stamp(), connection.fresh, connection.from);
        let asked = if from.is_some() { asked } else { connection.asked };
        let (connection, going, submitted, exclusive) = (id, None, false, false);
        let command = Command {
            connection,
            host,
            from,
            wanted,
            asked,
            fresh,
            going,
            stamp,
            submitted,
            exclusive,
        };
        node.commands.insert(number, command);
        let slow = self.plan.slow > 0 && self.chance.once_in(self.plan.slow);
        let delay = self.chance.below(if slow { 9 * SEC } else { MS / 2 });
        self.to_node(gateway, self.now + delay, Event::Run(number));
    }

    /// A command is to be executed.
    pub fn run(&mut self, gateway: usize, id: u64) {
        let node = &mut self.nodes[gateway];
        let Some(command) = node.commands.get(&id).cloned() else { return };
        if !node.connections.contains_key(&command.connection) {
            node.commands.remove(&id);
            return self.answer_logins(gateway);
        }
        let gate = node.machine.gate();
        match gate.admits(command.stamp) {
            Admission::Execute => {}
            Admission::Forward => return self.relay(gateway, id),
            Admission::Busy => return self.end(gateway, id, Told::Busy),
            Admission::Standby => return self.end(gateway, id, Told::Standby),
        }
        let place = command.wanted.place();
        // The volume is not in the group now: the host asks until it is again.
        if !node.contents.volumes.iter().any(|it| image_of(it) == usize::from(place.volume)) {
            return self.end(gateway, id, Told::Busy);
        }
        if let Wanted::Reserve(act) = command.wanted {
            return self.reserve(gateway, id, act);
        }
        if node.changing && place.reserved() {
            node.held.push(id);
            return;
        }
        let access = node.reservations.access(&registrant(command.host));
        let writes = !matches!(command.wanted, Wanted::Read(_));
        if place.reserved() && (writes && !access.write || !access.read) {
            return self.end(gateway, id, Told::Conflict);
        }
        if writes && !self.goes_its_way(gateway, id) {
            return;
        }
        let node = &mut self.nodes[gateway];
        let busy = |other: &Command| {
            other.submitted && other.wanted.place() == place && other.wanted.writes()
        };
        let compares = matches!(command.wanted, Wanted::CompareAndWrite(..));
        let blocked =
            node.commands.values().any(|other| busy(other) && (other.exclusive || compares));
        if blocked && writes {
            return self.to_node(gateway, self.now + MS, Event::Run(id));
        }
        let epoch = self.ordinal(gateway);
        let kind = match command.wanted {
            Wanted::Write(place, value) => Kind::Write(place, value, epoch),
            _ => Kind::Read(place, epoch),
        };
        self.begin_io(gateway, id, kind, compares);
    }

    /// A change of reservations is executed, if it goes its host's way.
    fn reserve(&mut self, gateway: usize, id: u64, act: Act) {
        if !self.goes_its_way(gateway, id) {
            return;
        }
        let node = &mut self.nodes[gateway];
        let Some(command) = node.commands.get(&id) else { return };
        node.requests.insert(id, (command.connection, command.host));
        self.feed(gateway, Input::Reserve(id, body_of(act)));
    }

    fn begin_io(&mut self, gateway: usize, id: u64, kind: Kind, exclusive: bool) {
        let node = &mut self.nodes[gateway];
        let Some(command) = node.commands.get_mut(&id) else { return };
        let volume = usize::from(command.wanted.place().volume);
        (command.submitted, command.exclusive) = (true, exclusive);
        let Some(client) = node.client else { return };
        if matches!(kind, Kind::Write(..)) && !self.cluster.clients[client].locked[volume] {
            let given = Err(Failure::ReadOnly);
            return self.to_node(
                gateway,
                self.now,
                Event::Given(client, Token::Command(id), given),
            );
        }
        self.submit(client, Token::Command(id), kind);
    }

    /// I/O of a command has ended.
    pub fn io_done(&mut self, gateway: usize, id: u64, given: Result<Given, Failure>) {
        let node = &mut self.nodes[gateway];
        let (Some(client), Some(command)) = (node.client, node.commands.get(&id).cloned()) else {
            return;
        };
        let made_by = self.cluster.clients[client].made_by;
        match (command.wanted, given) {
            (_, Err(failure)) => self.feed(gateway, Input::IoFailed(made_by, failure)),
            (Wanted::CompareAndWrite(place, expected, value), Ok(Given::Value(present))) => {
                if present == expected {
                    let epoch = self.ordinal(gateway);
                    self.begin_io(gateway, id, Kind::Write(place, value, epoch), true);
                } else {
                    self.end(gateway, id, Told::Miscompare(present));
                }
            }
            (_, Ok(Given::Value(value))) => self.end(gateway, id, Told::Good(value)),
            (_, Ok(_)) => self.end(gateway, id, Told::Good(0)),
        }
    }

    /// A command is answered.
    pub fn end(&mut self, gateway: usize, id: u64, told: Told) {
        let node = &mut self.nodes[gateway];
        let Some(command) = node.commands.remove(&id) else { return };
        self.tell_host(gateway, command.connection, (command.asked, told));
        self.look_drained(gateway);
        self.answer_logins(gateway);
    }

    fn look_drained(&mut self, gateway: usize) {
        let node = &mut self.nodes[gateway];
        if node.commands.values().all(|command| !command.submitted)
            && let Some(op) = node.draining.take()
        {
            self.to_node(gateway, self.now, Event::Drained(op));
        }
    }

    /// The process ends: what its client has not sent is lost.
    pub fn kill(&mut self, gateway: usize, silent: bool) {
        self.tell(|| format!("gateway {gateway} is killed"));
        self.drop_client(gateway, false);
        let incarnation = self.nodes[gateway].incarnation + 1;
        let connections = std::mem::take(&mut self.nodes[gateway].connections);
        for (id, connection) in connections.iter().filter(|_| !silent) {
            self.tell_aborted(gateway, *id, connection);
        }
        let before = &self.nodes[gateway];
        let (cut_until, client_ended) = (before.cut_until, self.now);
        let mut node = Node::new(gateway, self.now, self.plan.relays);
        (node.alive, node.incarnation) = (false, incarnation);
        (node.cut_until, node.client_ended) = (cut_until, client_ended);
        self.nodes[gateway] = node;
    }

    /// A new process begins.
    pub fn start(&mut self, gateway: usize) {
        if self.nodes[gateway].alive && self.nodes[gateway].incarnation > 0 {
            return;
        }
        let before = &self.nodes[gateway];
        let incarnation = before.incarnation;
        let (cut_until, client_ended) = (before.cut_until, before.client_ended);
        let mut node = Node::new(gateway, self.now, self.plan.relays);
        (node.incarnation, node.cut_until, node.client_ended) =
            (incarnation, cut_until, client_ended);
        self.nodes[gateway] = node;
        self.drive(gateway);
    }
}

fn body_of(act: Act) -> Vec<u8> {
    match act {
        Act::Register(host) => vec![0, host],
        Act::Reserve(host) => vec![1, host],
        Act::Release(host) => vec![2, host],
        Act::Preempt(host, other) => vec![3, host, other],
        Act::Report | Act::Write(_) => Vec::new(),
    }
}

fn act_of(body: &[u8]) -> Act {
    match *body {
        [0, host] => Act::Register(host),
        [1, host] => Act::Reserve(host),
        [2, host] => Act::Release(host),
        [3, host, other] => Act::Preempt(host, other),
        _ => Act::Report,
    }
}
