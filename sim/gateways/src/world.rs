//! A world: its events, in the order of their time, and what is wrong with it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use lunet_gateway::{
    Access, Contents, Epoch, Failure, Gate, GatewayId, Input, Job, NotifyId, OpId, Order, Port,
    Record, Request, Reserved, Sanitize, Tag, Volume,
};

use crate::blocks::{Block, Value};
use crate::cluster::{Ask, ClientIx, Cluster, Given, Op, Token};
use crate::faults::Fault;
use crate::host::{Host, Said, Told};
use crate::jobs::Known;
use crate::node::{Node, name_of};
use crate::plan::Plan;
use crate::relay::Carried;
use crate::reserve::States;
use crate::{BLOCKS, Chance, MS, SEC, Time, VOLUMES};

/// How long a planned move may keep commands waiting.
const MOVE_LIMIT: Time = 2 * SEC;
/// How long a group may be without an owner after one was killed, if nothing else goes wrong.
const TAKEOVER_LIMIT: Time = 10 * SEC;
/// How long after the last fault a world may go on.
const WORLD_LIMIT: Time = 400 * SEC;
/// Events of a world at the most.
const MOST_EVENTS: u64 = 3_000_000;

/// Something that happens at a time. Those of gateways wait while it stands still.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is the name of a function")]
pub enum Event {
    Osd(Op),
    Monitor(ClientIx, Token, Ask),
    OsdMap(usize, u64),
    NotifyEnds(u64),
    Fault(Fault),
    Start(usize),
    Reachable(usize),
    Unlist(ClientIx),
    HostTimer(usize, u64),
    Told(usize, usize, u64, Told),
    Said(usize, usize, u64, Said),
    Carried(usize, usize, u64, Carried),
    Node(usize, u32, Box<Event>),
    Send(Op),
    Given(ClientIx, Token, Result<Given, Failure>),
    Notified(ClientIx, u64, Vec<u8>),
    WatchFailed(ClientIx),
    ClientMap(ClientIx, u64),
    Tick,
    Run(u64),
    RelayLate(u64, Option<u64>),
    Applied(Request),
    Fed(Box<Input>),
    Drained(OpId),
    Ordered(Order),
    Configured,
    JobWanted(usize),
    JobEnds(Job),
    Back,
    Free(usize),
    MakeAnew,
    Sweep,
    Restart(usize),
}

#[derive(Debug)]
struct Due {
    at: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// What became of a world.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its plan.
    pub plan: Plan,
    /// What went wrong first.
    pub wrong: Option<String>,
    /// What happened, if it was asked for.
    pub story: Vec<String>,
    /// Operations of hosts.
    pub operations: u64,
    /// Events.
    pub events: u64,
    /// Changes of the owner.
    pub epochs: u64,
    /// Owners that have fenced themselves.
    pub fenced: u64,
    /// Moves that were given up as commands did not end in time.
    pub refused_moves: u64,
    /// Takeovers that were given up as a blocklist entry ended too soon.
    pub short_entries: u64,
    /// Whether its reservations came to be too many to tell.
    pub lost_count: bool,
    /// The longest time that a planned move has taken in a world without faults.
    pub longest_move: Time,
    /// The longest time from an owner's death to the next one, if nothing else went wrong.
    pub longest_takeover: Time,
}

/// A world.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct World {
    pub now: Time,
    pub chance: Chance,
    pub plan: Plan,
    pub cluster: Cluster,
    pub nodes: Vec<Node>,
    pub hosts: Vec<Host>,
    pub blocks: Vec<Block>,
    pub states: States,
    /// By the record and its epoch.
    pub access: HashMap<(Option<Tag>, Epoch), (Vec<Port>, Access)>,
    /// How often the record was deleted and made anew.
    pub generation: u8,
    /// What was in the one that was deleted.
    pub deleted: Option<Contents>,
    /// Clients with lower numbers are of gateways of a record before.
    pub of_before: ClientIx,
    /// I/O of an earlier epoch behind that of a later one is told, not only what follows from it.
    pub strict: bool,
    /// All faults that were begun are over then.
    pub healed: Time,
    pub held_until: Vec<Vec<Time>>,
    pub held_between: Vec<Vec<Time>>,
    pub stopped: u64,
    pub refused_moves: u64,
    pub short_entries: u64,
    pub wanted_takeovers: u32,
    pub owner_killed: Option<Time>,
    pub jobs: Vec<Known>,
    pub next_step: Option<u32>,
    /// How often the first volume was taken out of the group and is not back yet.
    pub taken_out: u32,
    pub steps_done: usize,
    pub operations: u64,
    pub blocked: Option<Time>,
    events: BinaryHeap<Due>,
    order: u64,
    values: Value,
    wires: BTreeMap<(u64, bool), Time>,
    report: Report,
    telling: bool,
}

fn volume(number: usize) -> Volume {
    Volume {
        image: name_of(number),
        id: format!("id{number}"),
        bytes: 1 << 30,
        naa: [number as u8; 16],
        serial: format!("serial{number}"),
        reserved: Reserved::default(),
        modes: vec![8, 10, 4],
        sanitize: Sanitize::None,
    }
}

/// A record of a new group, whose secret is made of the number.
pub fn new_record(gateways: usize, generation: u8, contents: Contents) -> Vec<u8> {
    let port = |number: usize| {
        let number = number as u16;
        // Those that come later have numbers of their own.
        Port { gateway: GatewayId(number), group: number + 100, relative: number + 100 }
    };
    let ports = (0..gateways).map(port).collect();
    Record::new("iqn.2026-11.local:group", [7 + generation; 32], ports, contents)
        .encode()
        .expect("it makes sense")
}

/// Runs the world of a seed.
pub fn run(seed: u64, plan: Option<Plan>, telling: bool, strict: bool) -> Report {
    let mut chance = Chance::new(seed);
    let drawn = Plan::draw(&mut chance);
    let plan = plan.unwrap_or(drawn).bounded();
    let gateways = usize::from(plan.gateways);
    let host = |_| Host::new(gateways, plan.operations);
    let volumes = (0..VOLUMES).map(volume).collect();
    let mut world = World {
        now: 0,
        chance,
        cluster: Cluster::new(new_record(gateways, 0, Contents { volumes })),
        nodes: (0..gateways).map(|number| Node::new(number, 0, plan.relays)).collect(),
        hosts: (0..plan.hosts).map(host).collect(),
        blocks: vec![Block::default(); VOLUMES * BLOCKS],
        states: States::default(),
        access: HashMap::new(),
        generation: 0,
        deleted: None,
        of_before: 0,
        strict,
        healed: 10 * SEC,
        held_between: vec![vec![0; gateways]; gateways],
        held_until: vec![vec![0; gateways]; usize::from(plan.hosts)],
        stopped: 0,
        refused_moves: 0,
        short_entries: 0,
        wanted_takeovers: 0,
        owner_killed: None,
        jobs: Vec::new(),
        next_step: None,
        taken_out: 0,
        steps_done: 0,
        operations: 0,
        blocked: None,
        events: BinaryHeap::new(),
        order: 0,
        values: 0,
        wires: BTreeMap::new(),
        report: Report { plan: plan.clone(), ..Report::default() },
        telling,
        plan,
    };
    world.plan_faults();
    world.hosts_begin();
    (0..gateways).for_each(|gateway| world.drive(gateway));
    world.go_on();
    world.finish()
}

impl World {
    /// Something happens at that time.
    pub fn at(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.events.push(Due { at: at.max(self.now), order: self.order, event });
    }

    /// Something happens to the process that a gateway is now.
    pub fn to_node(&mut self, gateway: usize, at: Time, event: Event) {
        let incarnation = self.nodes[gateway].incarnation;
        self.at(at, Event::Node(gateway, incarnation, Box::new(event)));
    }

    /// The volumes that the group is to have: all, or all but the first.
    pub fn wanted(&self) -> Vec<Volume> {
        let first = usize::from(self.taken_out > 0);
        (first..VOLUMES).map(volume).collect()
    }

    /// A number that nothing else has.
    pub fn number(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// A value that was never written.
    pub fn fresh_value(&mut self) -> Value {
        self.values += 1;
        self.values
    }

    /// Something is wrong: the first thing counts.
    pub fn wrong(&mut self, what: String) {
        self.tell(|| format!("WRONG: {what}"));
        self.report.wrong.get_or_insert(what);
    }

    /// A line of the story.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.telling {
            let (seconds, rest) = (self.now / SEC, self.now % SEC);
            self.report.story.push(format!("{seconds}.{rest:06} {}", line()));
        }
    }

    /// When something sent over a connection arrives: what is sent stays in order.
    fn wire(&mut self, host: usize, gateway: usize, id: u64, to_host: bool) -> Time {
        let at = (self.now + self.chance.between(50, 600)).max(self.held_until[host][gateway]);
        let free = self.wires.entry((id, to_host)).or_insert(0);
        *free = at.max(*free);
        *free
    }

    /// The same between two gateways.
    pub fn between(&mut self, (from, to): (usize, usize), session: u64) -> Time {
        let at = (self.now + self.chance.between(50, 600)).max(self.held_between[from][to]);
        let free = self.wires.entry((session, from < to)).or_insert(0);
        *free = at.max(*free);
        *free
    }

    /// A host sends something.
    pub fn say(&mut self, host: usize, gateway: usize, id: u64, said: Said) {
        let at = self.wire(host, gateway, id, false);
        self.at(at, Event::Said(host, gateway, id, said));
    }

    /// A gateway sends something.
    pub fn to_host(&mut self, host: u8, gateway: usize, id: u64, told: Told) {
        let host = usize::from(host);
        let at = self.wire(host, gateway, id, true);
        self.at(at, Event::Told(host, gateway, id, told));
    }

    fn go_on(&mut self) {
        while let Some(Due { at, order, event }) = self.events.pop() {
            let finished = self.hosts.iter().all(Host::finished) && at > self.healed;
            if finished || self.report.wrong.is_some() {
                return;
            }
            self.now = at;
            self.report.events += 1;
            if at > self.healed + WORLD_LIMIT || self.report.events > MOST_EVENTS {
                return self.wrong("the group does not become available again".into());
            }
            if let Event::Node(gateway, ..)
            | Event::Said(_, gateway, ..)
            | Event::Carried(_, gateway, ..) = event
                && self.nodes[gateway].frozen_until > at
            {
                let at = self.nodes[gateway].frozen_until;
                self.events.push(Due { at, order, event });
                continue;
            }
            self.happens(event);
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Osd(op) => self.osd(op),
            Event::Monitor(client, token, ask) => self.monitor(client, token, ask),
            Event::OsdMap(osd, map) => self.osd_learns(osd, map),
            Event::NotifyEnds(id) => self.notify_ends(id),
            Event::Fault(fault) => self.fault(fault),
            Event::Start(gateway) => self.start(gateway),
            Event::Reachable(gateway) => self.reachable(gateway),
            Event::Unlist(client) => self.unlist(client),
            Event::Free(image) => self.cluster.free_of_others(image),
            Event::MakeAnew => self.make_anew(),
            Event::Sweep => self.sweep(),
            Event::Restart(gateway) => self.restart(gateway),
            Event::Back => {
                self.taken_out -= 1;
                self.configured();
            }
            Event::HostTimer(host, timer) => self.host_timer(host, timer),
            Event::Told(host, gateway, id, told) => self.told(host, gateway, id, told),
            Event::Said(host, gateway, id, said) => self.said(host, gateway, id, said),
            Event::Carried(from, to, session, what) => self.carried((from, to), session, what),
            Event::Node(gateway, incarnation, event) => {
                if self.nodes[gateway].incarnation == incarnation && self.nodes[gateway].alive {
                    self.happens_to(gateway, *event);
                }
            }
            _ => unreachable!("a gateway's"),
        }
    }

    fn said(&mut self, host: usize, gateway: usize, id: u64, said: Said) {
        if !self.nodes[gateway].alive {
            if self.chance.once_in(2) {
                self.to_host(host as u8, gateway, id, Told::Aborted);
            }
            return;
        }
        match said {
            Said::Login => self.login(gateway, id, host as u8),
            Said::Command(wanted) => self.command(gateway, id, wanted, 0),
            Said::Pong(question) => self.pong(gateway, id, question),
            Said::Closed => self.closed(gateway, id),
        }
    }

    fn happens_to(&mut self, gateway: usize, event: Event) {
        let present = |world: &Self, client: ClientIx| !world.cluster.clients[client].ended;
        match event {
            Event::Send(op) => self.send(op),
            Event::Given(client, token, given) if present(self, client) => match token {
                Token::Machine(op) => self.part_done(gateway, op, given),
                Token::Command(id) => self.io_done(gateway, id, given),
                Token::None => {}
            },
            Event::Notified(client, id, bytes) if present(self, client) => {
                self.feed(gateway, Input::Notified(NotifyId(id), bytes));
            }
            Event::WatchFailed(client) if present(self, client) => {
                let made_by = self.cluster.clients[client].made_by;
                self.feed(gateway, Input::WatchFailed(made_by));
            }
            Event::ClientMap(client, map) => {
                let known = &mut self.cluster.clients[client].map;
                *known = (*known).max(map);
            }
            Event::Tick => self.tick(gateway),
            Event::Run(id) => self.run(gateway, id),
            Event::RelayLate(session, id) => self.relay_late(gateway, session, id),
            Event::Applied(request) => self.feed(gateway, Input::Applied(request)),
            Event::Fed(input) => self.feed(gateway, *input),
            Event::Drained(op) => {
                self.feed(gateway, Input::Done(op, Ok(lunet_gateway::Reply::Done)));
            }
            Event::Ordered(order) => self.feed(gateway, Input::Order(order)),
            Event::Configured => self.wants_volumes(gateway),
            Event::JobWanted(which) => self.job_wanted(gateway, which),
            Event::JobEnds(job) => self.job_ends(gateway, job),
            _ => {}
        }
    }

    /// A gate has changed: how long the group was without an open one.
    pub fn gates(&mut self, gateway: usize, gate: Gate) {
        self.tell(|| format!("gateway {gateway}: {gate:?}"));
        if !gate.is_open() {
            let blocked =
                self.nodes[gateway].machine().condition() == lunet_gateway::Condition::Moving;
            if blocked {
                self.blocked = Some(self.now);
            }
            return;
        }
        // An order to take over that comes in the middle of a move of the owner to itself has both begin again.
        let crossed = self.plan.volumes > 0 && self.plan.takeovers > 0;
        if let Some(since) = self.blocked.take()
            && self.plan.calm()
            && !crossed
        {
            let took = self.now - since;
            self.report.longest_move = self.report.longest_move.max(took);
            if took > MOVE_LIMIT {
                self.wrong(format!("a planned move took {} ms", took / MS));
            }
        }
        let plan = &self.plan;
        let others = [
            plan.freezes,
            plan.cuts,
            plan.outages,
            plan.stuck,
            plan.holds,
            plan.returns,
            plan.shunts,
            plan.foreign,
            plan.anew,
        ];
        let alone = plan.kills == 1 && plan.steps.is_empty() && others.iter().all(|n| *n == 0);
        if let Some(since) = self.owner_killed.take()
            && alone
            && self.plan.slow == 0
        {
            let took = self.now - since;
            self.report.longest_takeover = self.report.longest_takeover.max(took);
            if took > TAKEOVER_LIMIT {
                self.wrong(format!("a takeover took {} ms", took / MS));
            }
        }
    }

    fn finish(mut self) -> Report {
        if self.report.wrong.is_none() {
            if !self.hosts.iter().all(Host::finished) {
                self.wrong("hosts wait, and nothing happens any more".into());
            }
            if self.plan.calm() && self.stopped > u64::from(self.wanted_takeovers) {
                let stopped = self.stopped;
                self.wrong(format!("{stopped} owners were deposed, without a cause"));
            }
        }
        let places = (0..VOLUMES).flat_map(|volume| (0..BLOCKS).map(move |block| (volume, block)));
        for (volume, block) in places {
            let place = crate::Place { volume: volume as u8, block: block as u8 };
            let value = self.at_last(place);
            // A last look.
            self.blocks[place.index()].read(value, self.now + 1, self.now + 2);
            if let Some(why) = self.blocks[place.index()].check() {
                self.wrong(format!("block {block} of volume {volume}: {why}"));
            }
        }
        let record = Record::decode(&self.cluster.record).expect("the record is whole");
        let fenced = self.stopped;
        let (operations, lost_count) = (self.operations, self.states.lost);
        let (epochs, refused_moves) = (record.epoch.0, self.refused_moves);
        let short_entries = self.short_entries;
        Report {
            operations,
            epochs,
            fenced,
            refused_moves,
            short_entries,
            lost_count,
            ..self.report
        }
    }
}
