//! A simulated Ceph cluster: monitors with maps and a blocklist, OSDs with blocks, image headers and the group's record,
//! and RADOS clients whose operations take time, and stay on their way when their gateway stops.

use std::collections::BTreeMap;
use std::time::Duration;

use lunet_gateway::{Ack, ClientName, Epoch, Failure, Lost, OpId, Record, Reply};

use crate::blocks::Value;
use crate::world::{Event, World, new_record};
use crate::{BLOCKS, MS, OSDS, Place, SEC, Time, VOLUMES};

/// The OSD of the record.
const RECORD: usize = 0;
/// After how long without a sign of life a watch ends.
const WATCH_LIMIT: Time = 30 * SEC;

/// How long the monitors keep an entry of the blocklist after its end.
const ENTRY_KEPT: Time = 5 * SEC;
/// How long who runs gateways of a record before is shut out.
const TEN_YEARS: Time = 315_360_000 * SEC;
/// Entries of tools and administrators that last no longer are the default's.
const SHORT: Time = 86_400 * SEC;

/// A client, by the order in which they were made.
pub type ClientIx = usize;

/// A client that is no gateway's.
pub const FOREIGN: ClientIx = 0;

/// The cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The latest map.
    pub map: u64,
    blocklist: Vec<Entry>,
    /// How much later it is for the cluster than for the world.
    pub leap: Time,
    /// There is none until then.
    pub no_quorum_until: Time,
    osds: [Osd; OSDS],
    blocks: [Value; VOLUMES * BLOCKS],
    /// The record's bytes; empty: there is none.
    pub record: Vec<u8>,
    locks: [Option<ClientIx>; VOLUMES],
    watchers: Vec<ClientIx>,
    notifies: BTreeMap<u64, Notify>,
    next_notify: u64,
    /// All clients that there ever were.
    pub clients: Vec<Client>,
}

#[derive(Debug)]
struct Entry {
    client: ClientIx,
    /// The map that has it first.
    map: u64,
    until: Time,
}

#[derive(Debug, Default)]
struct Osd {
    map: u64,
    stuck_until: Time,
    /// The latest epoch of which I/O has had an effect here.
    epoch: u64,
}

#[derive(Debug)]
struct Notify {
    client: ClientIx,
    token: Token,
    waiting: Vec<ClientIx>,
    acks: Vec<Ack>,
}

/// A RADOS client.
#[derive(Debug)]
pub struct Client {
    /// Its gateway.
    pub gateway: usize,
    /// The operation that made it.
    pub made_by: OpId,
    /// The map that it knows.
    pub map: u64,
    /// It was ended, or has died with its gateway.
    pub ended: bool,
    /// Images whose lock it believes to have.
    pub locked: [bool; VOLUMES],
    /// Its watch was taken away, and it has not heard of that.
    pub watch_lost: bool,
    /// Nothing arrives on the way to that OSD before.
    pub pipes: [Time; OSDS],
    /// Nothing comes back before.
    pub back: Time,
    sent: Time,
}

impl Client {
    fn new(gateway: usize, made_by: OpId) -> Self {
        Self {
            gateway,
            made_by,
            map: 0,
            ended: false,
            locked: [false; VOLUMES],
            watch_lost: false,
            pipes: [0; OSDS],
            back: 0,
            sent: 0,
        }
    }
}

/// Who waits for the answer of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A step of an operation of the state machine.
    Machine(OpId),
    /// A command.
    Command(u64),
    /// Nobody.
    None,
}

/// An operation on an OSD.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Of the record.
    ReadRecord,
    /// Compare-and-set of the record.
    Swap((Epoch, u64), Vec<u8>),
    /// Who holds the lock of an image.
    GetLock(usize),
    /// Take it.
    Lock(usize),
    /// Break it, if that client has it.
    Break(usize, ClientIx),
    /// Give it back.
    Unlock(usize),
    /// Read a header, or flush.
    Touch(usize),
    /// Watch the record.
    Watch,
    /// Notify its watchers.
    Notify(Vec<u8>, Time),
    /// Answer a notify.
    Acknowledge(u64, Vec<u8>),
    /// Read a block, for the owner of an epoch.
    Read(Place, Epoch),
    /// Write a block, for the owner of an epoch.
    Write(Place, Value, Epoch),
}

impl Kind {
    fn osd(&self) -> usize {
        match self {
            Self::GetLock(image)
            | Self::Lock(image)
            | Self::Break(image, _)
            | Self::Unlock(image)
            | Self::Touch(image) => (image + 1) % OSDS,
            Self::Read(place, _) | Self::Write(place, ..) => place.osd(),
            _ => RECORD,
        }
    }

    /// How it fails if there is no record.
    fn without_record(&self) -> Option<Failure> {
        match self {
            Self::ReadRecord => Some(Failure::NoRecord(Lost::Gone)),
            Self::Swap(..) | Self::Watch | Self::Notify(..) => Some(Failure::from_errno(2)),
            _ => None,
        }
    }
}

/// An operation on its way.
#[derive(Clone, Debug)]
pub struct Op {
    /// Whose.
    pub client: ClientIx,
    /// Who waits for it.
    pub token: Token,
    /// The map that its client had when it was sent.
    pub map: u64,
    /// What.
    pub kind: Kind,
}

/// A request to the monitors.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Connect a client.
    Connect,
    /// Blocklist a client for so long.
    Blocklist(ClientIx, Duration),
    /// The latest map.
    Map,
}

/// What an operation gives.
#[derive(Clone, Debug)]
pub enum Given {
    /// As the state machine has it.
    Reply(Reply),
    /// Who holds a lock.
    Lock(Option<ClientName>),
    /// A block's value.
    Value(Value),
    /// A map that the client knows from now on.
    Map(u64),
}

impl Cluster {
    /// A new one, with this record.
    pub fn new(record: Vec<u8>) -> Self {
        Self {
            map: 1,
            blocklist: Vec::new(),
            leap: 0,
            no_quorum_until: 0,
            osds: Default::default(),
            blocks: [0; VOLUMES * BLOCKS],
            record,
            locks: [None; VOLUMES],
            watchers: Vec::new(),
            notifies: BTreeMap::new(),
            next_notify: 1,
            clients: vec![Client::new(0, OpId(0))],
        }
    }

    /// What a client is called.
    pub fn name(client: ClientIx) -> ClientName {
        let (address, lock) = (format!("192.0.2.1:0/{client}"), format!("client.{client}"));
        ClientName { address, lock }
    }

    /// Which client has this address.
    pub fn by_address(address: &str) -> ClientIx {
        let number = address.rsplit('/').next().and_then(|number| number.parse().ok());
        number.expect("an address of this cluster")
    }

    /// The client that the record names as the owner.
    pub fn owner(&self) -> Option<ClientIx> {
        let record = Record::decode(&self.record).ok()?;
        record.owner.map(|owner| Self::by_address(&owner.client.address))
    }

    /// An OSD stands still until then.
    pub fn stick(&mut self, osd: usize, until: Time) {
        self.osds[osd].stuck_until = until;
    }

    /// Somebody who is no gateway locks an image. False if it is locked.
    pub fn lock_for_others(&mut self, image: usize) -> bool {
        let free = self.locks[image].is_none();
        if free {
            self.locks[image] = Some(FOREIGN);
        }
        free
    }

    /// And lets go of it.
    pub fn free_of_others(&mut self, image: usize) {
        self.locks[image].take_if(|client| *client == FOREIGN);
    }

    /// Nothing that a client does from now on takes effect where others see it.
    pub fn is_shut_out(&self, client: ClientIx, now: Time) -> bool {
        self.clients[client].ended || self.blocklisted(client, self.map, now)
    }

    fn blocklisted(&self, client: ClientIx, map: u64, now: Time) -> bool {
        let listed = |entry: &Entry| {
            entry.client == client && entry.map <= map && entry.until > now + self.leap
        };
        self.blocklist.iter().any(listed)
    }
}

impl World {
    /// An administrator deletes the record: whoever watches it is told so.
    pub fn delete_record(&mut self) {
        let Ok(record) = Record::decode(&self.cluster.record) else { return };
        self.cluster.record.clear();
        self.generation += 1;
        self.deleted = Some(record.contents);
        self.blocked = None;
        for watcher in std::mem::take(&mut self.cluster.watchers) {
            let gateway = self.cluster.clients[watcher].gateway;
            let at = self.now + self.chance.between(100, 2 * MS);
            let at = at.max(self.nodes[gateway].cut_until);
            self.to_node(gateway, at, Event::WatchFailed(watcher));
        }
        let at = self.now + self.chance.between(MS, 3 * SEC);
        self.heals_at(at + SEC);
        self.at(at, Event::MakeAnew);
    }

    /// And makes it anew: reservations are as they were, so that what hosts know of them is true. Then some gateway is started
    /// again, others later, and others never.
    pub fn make_anew(&mut self) {
        let Some(contents) = self.deleted.take() else { return };
        self.of_before = self.cluster.clients.len();
        self.sweep();
        let gateways = self.nodes.len();
        self.cluster.record = new_record(gateways, self.generation, contents);
        self.blocked = None;
        let first = self.chance.below(gateways as u64) as usize;
        for gateway in 0..gateways {
            let again = gateway == first || self.chance.once_in(2);
            if !again || !self.nodes[gateway].alive {
                continue;
            }
            let at = match gateway == first {
                true => self.now,
                false => self.now + self.chance.below(20 * SEC),
            };
            self.heals_at(at + SEC);
            self.at(at, Event::Restart(gateway));
        }
    }

    /// Locks of gateways of a record before are broken, behind a fence that every OSD knows of.
    pub fn sweep(&mut self) {
        for image in 0..VOLUMES {
            let Some(client) = self.cluster.locks[image] else { continue };
            if client != FOREIGN && client < self.of_before {
                // One that somebody has shut out for a while is waited for, as that is no fence.
                if self.blocklist(client, TEN_YEARS) < SHORT {
                    continue;
                }
                let map = self.cluster.map;
                (0..OSDS).for_each(|osd| self.osd_learns(osd, map));
                self.cluster.locks[image] = None;
            }
        }
        self.at(self.now + SEC, Event::Sweep);
    }

    /// A client's operation is handed to its RADOS client, which sends it soon.
    pub fn submit(&mut self, client: ClientIx, token: Token, kind: Kind) {
        let map = 0;
        let delay = self.chance.below(300);
        let gateway = self.cluster.clients[client].gateway;
        let at = self.cluster.clients[client].sent.max(self.now + delay);
        self.cluster.clients[client].sent = at;
        self.to_node(gateway, at, Event::Send(Op { client, token, map, kind }));
    }

    /// It is sent, unless its client has ended before.
    pub fn send(&mut self, mut op: Op) {
        if self.cluster.clients[op.client].ended {
            return;
        }
        op.map = self.cluster.clients[op.client].map;
        self.put_on_the_wire(op);
    }

    /// From here on nothing but the OSD can stop it.
    pub fn put_on_the_wire(&mut self, op: Op) {
        let (osd, delay) = (op.kind.osd(), self.chance.between(100, 1500));
        let client = &mut self.cluster.clients[op.client];
        let cut = self.nodes[client.gateway].cut_until;
        let at = client.pipes[osd].max(self.now + delay).max(cut);
        client.pipes[osd] = at;
        self.at(at, Event::Osd(op));
    }

    fn give(&mut self, client: ClientIx, token: Token, given: Result<Given, Failure>) {
        let delay = self.chance.between(100, 1500);
        let state = &mut self.cluster.clients[client];
        let gateway = state.gateway;
        let at = state.back.max(self.now + delay).max(self.nodes[gateway].cut_until);
        state.back = at;
        self.to_node(gateway, at, Event::Given(client, token, given));
    }

    /// An operation is at its OSD.
    pub fn osd(&mut self, op: Op) {
        let number = op.kind.osd();
        let osd = &self.cluster.osds[number];
        if osd.stuck_until > self.now {
            let until = osd.stuck_until;
            return self.at(until, Event::Osd(op));
        }
        // It does nothing for a client that knows a newer map before it has that map too.
        if op.map > osd.map {
            self.osd_learns(number, op.map);
        }
        let map = self.cluster.osds[number].map;
        if self.cluster.blocklisted(op.client, map, self.now) {
            self.tell(|| format!("OSD {number} refuses {op:?}"));
            return self.give(op.client, op.token, Err(Failure::Blocklisted));
        }
        self.carry_out(op);
    }

    fn carry_out(&mut self, op: Op) {
        let Op { client, token, kind, .. } = op;
        if let (true, Some(failure)) = (self.cluster.record.is_empty(), kind.without_record()) {
            return self.give(client, token, Err(failure));
        }
        let done = Ok(Given::Reply(Reply::Done));
        let given = match kind {
            Kind::ReadRecord => Ok(Given::Reply(Reply::Record(self.cluster.record.clone()))),
            Kind::Swap(expect, bytes) => self.swap(client, expect, bytes),
            Kind::GetLock(image) => Ok(Given::Lock(self.cluster.locks[image].map(Cluster::name))),
            Kind::Lock(image) => match self.cluster.locks[image] {
                Some(other) if other != client => Err(Failure::ReadOnly),
                _ => {
                    self.cluster.locks[image] = Some(client);
                    done
                }
            },
            Kind::Break(image, owner) => {
                if self.cluster.locks[image] == Some(owner) {
                    if !self.cluster.blocklisted(owner, self.cluster.map, self.now) {
                        self.wrong(format!("the lock of client {owner} is broken unfenced"));
                    }
                    self.cluster.locks[image] = None;
                }
                done
            }
            Kind::Unlock(image) => {
                if self.cluster.locks[image] == Some(client) {
                    self.cluster.locks[image] = None;
                }
                done
            }
            Kind::Touch(_) => done,
            Kind::Watch => {
                self.cluster.watchers.push(client);
                done
            }
            Kind::Notify(bytes, limit) => return self.notify(client, token, &bytes, limit),
            Kind::Acknowledge(notify, bytes) => return self.acknowledged(client, notify, bytes),
            Kind::Read(place, epoch) => {
                self.effect(place, epoch);
                Ok(Given::Value(self.cluster.blocks[place.index()]))
            }
            Kind::Write(place, value, epoch) => {
                self.effect(place, epoch);
                self.tell(|| format!("client {client} writes {value} to {place:?}"));
                self.cluster.blocks[place.index()] = value;
                done
            }
        };
        self.give(client, token, given);
    }

    /// I/O of an owner takes effect: none of an earlier owner may come behind it.
    fn effect(&mut self, place: Place, epoch: Epoch) {
        let osd = &mut self.cluster.osds[place.osd()];
        let before = osd.epoch;
        osd.epoch = before.max(epoch.0);
        if epoch.0 < before && self.strict {
            let epoch = epoch.0;
            self.wrong(format!("I/O of epoch {epoch} takes effect behind that of epoch {before}"));
        }
    }

    fn swap(
        &mut self,
        client: ClientIx,
        expect: (Epoch, u64),
        bytes: Vec<u8>,
    ) -> Result<Given, Failure> {
        let present = Record::decode(&self.cluster.record).expect("the record is whole");
        if (present.epoch, present.revision) != expect {
            return Err(Failure::Lost);
        }
        match Record::decode(&bytes) {
            Ok(record) => {
                let Record { epoch, revision, owner, .. } = &record;
                let owner = owner.as_ref().map(|owner| owner.gateway.0);
                self.tell(|| format!("client {client} writes {epoch:?}.{revision}: {owner:?}"));
                if record.tag() != present.tag() {
                    self.wrong("a record takes the place of another one".into());
                }
                if record.epoch < present.epoch || record.revision <= present.revision {
                    self.wrong("the record goes backwards".into());
                }
            }
            Err(why) => self.wrong(format!("a record that cannot be read is written: {why}")),
        }
        self.cluster.record = bytes;
        Ok(Given::Reply(Reply::Done))
    }

    fn notify(&mut self, client: ClientIx, token: Token, bytes: &[u8], limit: Time) {
        self.end_watches();
        let id = self.cluster.next_notify;
        self.cluster.next_notify += 1;
        let waiting = self.cluster.watchers.clone();
        for watcher in &waiting {
            let delay = self.chance.between(100, 1000);
            let state = &mut self.cluster.clients[*watcher];
            let gateway = state.gateway;
            let at = state.back.max(self.now + delay).max(self.nodes[gateway].cut_until);
            state.back = at;
            self.to_node(gateway, at, Event::Notified(*watcher, id, bytes.to_vec()));
        }
        let none = waiting.is_empty();
        self.cluster.notifies.insert(id, Notify { client, token, waiting, acks: Vec::new() });
        if none {
            self.notify_ends(id);
        } else {
            self.at(self.now + limit, Event::NotifyEnds(id));
        }
    }

    fn acknowledged(&mut self, client: ClientIx, id: u64, bytes: Vec<u8>) {
        let Some(notify) = self.cluster.notifies.get_mut(&id) else { return };
        if let Some(at) = notify.waiting.iter().position(|waiting| *waiting == client) {
            notify.waiting.remove(at);
            notify.acks.push(Ack(bytes));
            if notify.waiting.is_empty() {
                self.notify_ends(id);
            }
        }
    }

    /// All have answered, or the time is over.
    pub fn notify_ends(&mut self, id: u64) {
        let Some(notify) = self.cluster.notifies.remove(&id) else { return };
        let (acks, all) = (notify.acks, notify.waiting.is_empty());
        self.give(notify.client, notify.token, Ok(Given::Reply(Reply::Acks { acks, all })));
    }

    /// Watches of gateways that give no sign of life end.
    fn end_watches(&mut self) {
        let (now, nodes) = (self.now, &self.nodes);
        let clients = &mut self.cluster.clients;
        self.cluster.watchers.retain(|watcher| {
            let client = &mut clients[*watcher];
            let node = &nodes[client.gateway];
            let mute = node.unreachable_since.is_some_and(|since| now > since + WATCH_LIMIT);
            let dead = client.ended && now > node.client_ended + WATCH_LIMIT;
            client.watch_lost |= mute || dead;
            !(mute || dead)
        });
    }

    /// A request is at the monitors.
    pub fn monitor(&mut self, client: ClientIx, token: Token, ask: Ask) {
        if self.cluster.no_quorum_until > self.now {
            let until = self.cluster.no_quorum_until;
            return self.at(until, Event::Monitor(client, token, ask));
        }
        let given = match ask {
            Ask::Connect | Ask::Map => Given::Map(self.cluster.map),
            Ask::Blocklist(other, limit) => {
                let limit = Time::try_from(limit.as_micros()).unwrap_or(Time::MAX / 2);
                let lasts = self.blocklist(other, limit);
                Given::Reply(Reply::Listed(Duration::from_micros(lasts)))
            }
        };
        self.give(client, token, Ok(given));
    }

    /// A client is put on the blocklist, and the list is read: how long its entry lasts. One that is on it keeps its end,
    /// whatever was asked for.
    pub fn blocklist(&mut self, client: ClientIx, limit: Time) -> Time {
        if client == FOREIGN {
            self.wrong("somebody is blocklisted who is no gateway".into());
        }
        let now = self.now + self.cluster.leap;
        self.cluster.blocklist.retain(|entry| entry.until + ENTRY_KEPT > now);
        self.cluster.map += 1;
        let map = self.cluster.map;
        let known = self.cluster.blocklist.iter().find(|entry| entry.client == client);
        let until = known.map_or(now + limit, |entry| entry.until);
        if known.is_none() {
            self.cluster.blocklist.push(Entry { client, map, until });
        }
        self.tell(|| format!("client {client} is blocklisted until {until} by map {map}"));
        self.spread_map(map);
        until.saturating_sub(now)
    }

    /// An administrator takes a client off the blocklist whose entry is not for long: nobody can have relied on it.
    pub fn unlist(&mut self, client: ClientIx) {
        let now = self.now + self.cluster.leap;
        let list = &mut self.cluster.blocklist;
        if list.iter().any(|entry| entry.client == client && entry.until < now + SHORT) {
            list.retain(|entry| entry.client != client);
            self.cluster.map += 1;
            let map = self.cluster.map;
            self.tell(|| format!("client {client} is taken off the blocklist by map {map}"));
            self.spread_map(map);
        }
    }

    /// Asks the monitors.
    pub fn ask(&mut self, client: ClientIx, token: Token, ask: Ask) {
        let gateway = self.cluster.clients[client].gateway;
        let at = (self.now + self.chance.between(500, 5 * MS)).max(self.nodes[gateway].cut_until);
        self.at(at, Event::Monitor(client, token, ask));
    }

    fn spread_map(&mut self, map: u64) {
        for osd in 0..OSDS {
            let at = self.now + self.chance.below(self.plan.spread * MS);
            self.at(at, Event::OsdMap(osd, map));
        }
        for client in 0..self.cluster.clients.len() {
            let gateway = self.cluster.clients[client].gateway;
            let at = self.now + self.chance.below(self.plan.spread * MS);
            let at = at.max(self.nodes[gateway].cut_until);
            if !self.cluster.clients[client].ended {
                self.to_node(gateway, at, Event::ClientMap(client, map));
            }
        }
    }

    /// An OSD gets a map: watches of those that it blocklists end.
    pub fn osd_learns(&mut self, osd: usize, map: u64) {
        let known = &mut self.cluster.osds[osd].map;
        *known = (*known).max(map);
        if osd != RECORD {
            return;
        }
        let (now, map) = (self.now, *known);
        let listed: Vec<ClientIx> = self.cluster.watchers.clone();
        for watcher in listed {
            if self.cluster.blocklisted(watcher, map, now) {
                self.cluster.watchers.retain(|other| *other != watcher);
                let gateway = self.cluster.clients[watcher].gateway;
                let at = (now + MS).max(self.nodes[gateway].cut_until);
                self.to_node(gateway, at, Event::WatchFailed(watcher));
            }
        }
    }

    /// What a block has at the end.
    pub fn at_last(&self, place: Place) -> Value {
        self.cluster.blocks[place.index()]
    }

    /// A new client; it is not connected yet.
    pub fn new_client(&mut self, gateway: usize, made_by: OpId) -> ClientIx {
        self.cluster.clients.push(Client::new(gateway, made_by));
        self.cluster.clients.len() - 1
    }
}
