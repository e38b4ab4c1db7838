//! The state machine of one gateway for one group.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::contact::Contact;
use crate::jobs::{Asker, Jobs};
use crate::moving::{Moving, Watchers};
use crate::requests::Change;
use crate::standby::{Step, Takeover, Unfinished, Watch};
use crate::{
    Access, Action, Attention, ClientName, Contents, Epoch, Failure, Gate, GatewayId, Input, Lost,
    Message, Notice, NotifyId, OpId, Order, Portals, Record, Refusal, Registered, Reply, Response,
    Result, Tag,
};

/// After how long a client is tried again that could not be made.
const CLIENT_AGAIN: Duration = Duration::from_secs(1);
/// How long announcements may take; nobody waits for them.
pub(crate) const ANNOUNCE_LIMIT: Duration = Duration::from_secs(1);

/// What a gateway is told of itself.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its number: no other gateway of the group has it.
    pub me: GatewayId,
    /// Its place among the gateways of the group, from 0 on: who is first takes over first.
    pub rank: u32,
    /// Where other gateways reach it when it is the owner.
    pub portals: Portals,
}

/// What a gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Without a RADOS client: it has just started, or was fenced.
    Fenced,
    /// It does not own the group.
    Standby,
    /// On its way to own it.
    TakingOver,
    /// It owns the group.
    Owner,
    /// It gives the group away.
    Moving,
    /// Its record was deleted: it does nothing any more.
    Orphaned,
}

#[derive(Debug)]
pub(crate) enum Role {
    Fenced,
    Orphaned,
    Standby(Watch),
    TakingOver(Takeover),
    Owner(Option<Change>),
    Moving(Moving),
}

impl Role {
    pub const fn owns(&self) -> bool {
        matches!(self, Self::Owner(_) | Self::Moving(_))
    }
}

/// What an operation under way is for.
#[derive(Debug)]
pub(crate) enum Purpose {
    Client,
    Read,
    /// Of an owner, to see whether the cluster answers.
    Contact,
    /// Sent at that time.
    Ping(Duration),
    Announce,
    /// To see whether all watchers answer.
    AnnounceOwner,
    /// Of an owner, to see who would take over.
    Standbys,
    /// Of a standby: the owner is asked to give the group to that gateway.
    MoveAsked(GatewayId, Epoch),
    /// The owner is of a later epoch than that in which it was asked to give the group away: the record is read, then it is asked again.
    MoveLate(GatewayId),
    /// Of an owner that is to take over: it looks whether it is the owner still.
    OwnerAsked,
    /// To see whether that gateway answers, which the group is to go to.
    Heir(GatewayId),
    Takeover,
    Move,
    Change,
    Report(u64),
    /// An administrator's job here, by its number, that the owner is asked for.
    Job(u64),
}

#[derive(Debug)]
enum Client {
    /// To be made at that time.
    None(Duration),
    Making,
    /// None is made any more.
    GivenUp,
    /// With the images that it has open.
    Ready(OpId, ClientName, Vec<(String, u64)>),
}

/// One gateway and one group.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) config: Config,
    pub(crate) now: Duration,
    pub(crate) role: Role,
    pub(crate) gate: Gate,
    /// The latest that is known of the record.
    pub(crate) record: Option<Box<Record>>,
    /// Of which record it is, for as long as it runs.
    pub(crate) tag: Option<Tag>,
    pub(crate) pending: BTreeMap<OpId, Purpose>,
    /// The epoch in which the latest takeover was begun.
    pub(crate) tried: Epoch,
    /// A takeover was begun, and nothing has been heard of an owner since.
    pub(crate) hindered: bool,
    /// A takeover that came to nothing, and is to be gone on with.
    pub(crate) unfinished: Option<Unfinished>,
    /// What an owner hears of the cluster.
    pub(crate) contact: Contact,
    /// What it knows of those who watch its images.
    pub(crate) watchers: Watchers,
    pub(crate) jobs: Jobs,
    client: Client,
    /// The record names other images than those that the client has open.
    other_images: bool,
    operations: u64,
    actions: VecDeque<Action>,
}

impl Gateway {
    /// A gateway that has just started. Time counts from any moment, and only rises.
    pub fn new(config: Config, now: Duration) -> Self {
        let mut gateway = Self {
            config,
            now,
            role: Role::Fenced,
            gate: Gate::closed(Epoch(0)),
            record: None,
            tag: None,
            pending: BTreeMap::new(),
            tried: Epoch(0),
            hindered: false,
            unfinished: None,
            contact: Contact::default(),
            watchers: Watchers::default(),
            jobs: Jobs::default(),
            client: Client::None(now),
            other_images: false,
            operations: 0,
            actions: VecDeque::new(),
        };
        gateway.make_client();
        gateway
    }

    /// What it is.
    pub const fn condition(&self) -> Condition {
        match self.role {
            Role::Fenced => Condition::Fenced,
            Role::Orphaned => Condition::Orphaned,
            Role::Standby(_) => Condition::Standby,
            Role::TakingOver(_) => Condition::TakingOver,
            Role::Owner(_) => Condition::Owner,
            Role::Moving(_) => Condition::Moving,
        }
    }

    /// Its gate.
    pub const fn gate(&self) -> Gate {
        self.gate
    }

    /// What it knows of the record.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_deref()
    }

    /// Of which record it is; `None` as long as it has read none. A client whose record is another one is none for it
    /// ([`Lost::Anew`]).
    pub const fn tag(&self) -> Option<Tag> {
        self.tag
    }

    /// The next thing to do.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When it wants [`Input::Tick`], if nothing else happens before.
    pub fn timeout(&self) -> Option<Duration> {
        match (&self.role, &self.client) {
            (_, Client::None(at)) => Some(*at),
            (Role::Standby(watch), _) => Some(watch.timeout()),
            (Role::TakingOver(takeover), _) => Some(match takeover.step {
                Step::Pausing(until) => until.min(takeover.limit),
                _ => takeover.limit,
            }),
            (Role::Moving(moving), _) => Some(moving.limit),
            (Role::Owner(_), _) => {
                let contact = self.next_contact();
                Some(self.next_move().map_or(contact, |due| due.min(contact)))
            }
            (Role::Fenced | Role::Orphaned, _) => None,
        }
    }

    /// Something has happened.
    pub fn handle(&mut self, now: Duration, input: Input) {
        self.now = self.now.max(now);
        match input {
            Input::Tick => {}
            Input::Done(op, result) => self.done(op, result),
            Input::Notified(notify, bytes) => self.notified(notify, &bytes),
            Input::WatchFailed(client) if self.is_client(client) => self.watch_failed(),
            Input::IoFailed(client, failure) if self.is_client(client) => self.io_failed(failure),
            Input::WatchFailed(_) | Input::IoFailed(..) => {}
            Input::Order(Order::TakeOver) => self.take_over(),
            Input::Order(Order::MoveTo(to)) => self.order_move(to),
            Input::Order(Order::Gateways(count)) => self.order_gateways(count),
            Input::Reserve(id, body) => self.reserve(id, body),
            Input::Report(id) => self.report(id),
            Input::Executed(request, contents, answer) => self.executed(request, *contents, answer),
            Input::Applied(request) => self.applied(request),
            Input::Volumes(volumes) => self.wants_volumes(volumes),
            Input::Job(id, body, limit) => self.order_job(id, body, limit),
            Input::JobDone(job, answer) => self.job_done(job, answer),
        }
        self.look_at_images();
        if matches!(self.client, Client::None(at) if self.now >= at) {
            self.make_client();
        }
        self.standby_tick();
        self.resume_takeover();
        self.look_for_vacancy();
        self.takeover_tick();
        self.move_is_late();
        self.move_is_due();
        self.owner_tick();
    }

    fn done(&mut self, op: OpId, result: Result) {
        let Some(purpose) = self.pending.remove(&op) else { return };
        match purpose {
            Purpose::Client => self.client_made(op, result),
            Purpose::Read => {
                self.read(result);
            }
            Purpose::Contact => self.in_contact(result),
            Purpose::Ping(sent) => self.pinged(sent, result),
            Purpose::Announce => {}
            Purpose::AnnounceOwner => self.owner_announced(&result),
            Purpose::Standbys => self.standbys_asked(&result),
            Purpose::MoveAsked(to, epoch) => self.move_asked(to, epoch, &result),
            Purpose::MoveLate(to) => self.move_late(to, result),
            Purpose::OwnerAsked => self.owner_asked(result),
            Purpose::Heir(to) => self.heir_asked(to, &result),
            Purpose::Takeover => self.took(result),
            Purpose::Move => self.moved(result),
            Purpose::Change => self.written(result),
            Purpose::Report(id) => self.reported(id, result),
            Purpose::Job(id) => self.job_asked(id, &result),
        }
    }

    fn notified(&mut self, notify: NotifyId, bytes: &[u8]) {
        // Of another version, or of a gateway of another record, whose epochs mean nothing here: an answer that says nothing keeps
        // its sender from waiting.
        let message = match Message::decode(bytes) {
            Ok((tag, message)) if self.tag == Some(tag) => message,
            other => {
                self.act(Action::Acknowledge(notify, Vec::new()));
                if other.is_ok() {
                    self.read_record();
                }
                return;
            }
        };
        let (Message::Ping(epoch)
        | Message::Changed(epoch)
        | Message::Move(epoch, _)
        | Message::Job(epoch, ..)) = message;
        if self.role.owns() && epoch > self.gate.epoch() {
            return self.fence();
        }
        if !self.role.owns() {
            self.acknowledge(notify, &Response::NotOwner(self.gate.epoch(), self.config.me));
            if matches!(message, Message::Changed(_)) || epoch > self.gate.epoch() {
                self.read_record();
            }
            return;
        }
        match message {
            Message::Move(wanted, to) => {
                let now = self.gate.epoch();
                let is_new = wanted == now && !self.goes_to(to);
                let refusal = if is_new { self.refuses_move(to) } else { None };
                let told = refusal.map_or(Response::Owner(now), Response::Refused);
                self.acknowledge(notify, &told);
                if is_new {
                    self.begin_move(to);
                }
            }
            Message::Job(wanted, client, number, body) => {
                self.job_wanted(notify, wanted, Asker { client, number }, body);
            }
            Message::Ping(_) | Message::Changed(_) => {
                self.acknowledge(notify, &Response::Owner(self.gate.epoch()));
            }
        }
    }

    pub(crate) fn order_move(&mut self, to: GatewayId) {
        let epoch = self.gate.epoch();
        match &self.role {
            // Somebody else has ordered it, and it is on its way.
            _ if self.goes_to(to) => {}
            Role::Owner(_) | Role::Moving(_) => self.begin_move(to),
            Role::Standby(_) => {
                let op = self.operation(Purpose::MoveAsked(to, epoch));
                self.notify(op, &Message::Move(epoch, to), ANNOUNCE_LIMIT);
            }
            Role::Orphaned => self.act(Action::Refuse(Order::MoveTo(to), Refusal::Orphaned)),
            Role::Fenced => self.act(Action::Refuse(Order::MoveTo(to), self.no_client())),
            Role::TakingOver(_) => {
                self.act(Action::Refuse(Order::MoveTo(to), Refusal::NotReady));
            }
        }
    }

    /// Why a gateway without a client does nothing that is ordered: it has just begun, or has got none.
    pub(crate) fn no_client(&self) -> Refusal {
        match self.client {
            Client::None(again) if self.now < again => Refusal::NoClient,
            _ if self.record.is_none() => Refusal::NoRecord,
            _ => Refusal::NoClient,
        }
    }

    /// A client has to go: it is blocklisted, or has lost its watch.
    fn watch_failed(&mut self) {
        if self.role.owns() { self.fence() } else { self.renew_client(true) }
    }

    /// The owner is one no more, or cannot be sure. Nothing that was received so far is executed or answered.
    pub(crate) fn fence(&mut self) {
        self.stop();
        self.renew_client(false);
    }

    /// Nothing is executed or answered any more.
    fn stop(&mut self) {
        self.gate = Gate::closed(self.gate.epoch());
        self.act(Action::StopAnswering(self.gate));
        if let Role::Owner(Some(change)) = &self.role {
            let request = change.request();
            self.act(Action::Abandon(request));
        }
        self.act(Action::AbortConnections);
        self.act(Action::Attention(Attention::NexusLoss));
    }

    /// The record that this gateway knows is not there any more. Whatever has its name now is of other gateways, with epochs of
    /// their own: this one takes nothing up of it, and does nothing for the group until it is started again.
    pub(crate) fn orphan(&mut self, lost: Lost) {
        if matches!(self.role, Role::Orphaned) {
            return;
        }
        let owned = self.role.owns();
        if owned {
            self.stop();
        }
        self.act(Action::DropClient { release: !owned });
        self.give_up_requests();
        self.give_up_wanted(Refusal::Orphaned);
        (self.role, self.client) = (Role::Orphaned, Client::GivenUp);
        let epoch = self.gate.epoch();
        self.act(Action::Reach(epoch, Portals::default()));
        self.set_gate(Gate::closed(epoch));
        // No path of this gateway is one to the group.
        if let Some(record) = self.record.as_deref() {
            let nobodys = Record { owner: None, heir: None, ..record.clone() };
            self.act(Action::Access(epoch, nobodys.ports.clone(), Access::of(&nobodys)));
            self.act(Action::Attention(Attention::AccessChanged));
        }
        self.act(Action::Notice(Notice::Orphaned(lost)));
    }

    /// Ends the client, and with it all operations, and makes another.
    pub(crate) fn renew_client(&mut self, release: bool) {
        self.act(Action::DropClient { release });
        let ordered = self.pending.values().any(|it| matches!(it, Purpose::OwnerAsked));
        self.give_up_requests();
        self.role = Role::Fenced;
        if ordered {
            self.keep_order();
        }
        self.make_client();
    }

    fn make_client(&mut self) {
        self.client = Client::Making;
        let op = self.operation(Purpose::Client);
        self.act(Action::NewClient(op));
    }

    fn client_made(&mut self, op: OpId, result: Result) {
        let (name, images) = match result {
            Ok(Reply::Client { name, images }) => (name, images),
            Err(Failure::NoRecord(lost)) if self.tag.is_some() => return self.orphan(lost),
            _ => {
                self.client = Client::None(self.now + CLIENT_AGAIN);
                return;
            }
        };
        self.client = Client::Ready(op, name, images);
        // It has opened what the record names now, which is not what is known here of it if that is older.
        self.other_images = false;
        self.become_standby();
        self.read_record();
    }

    pub(crate) fn become_standby(&mut self) {
        // What was tried for another epoch keeps nobody from this one: its heir least of all.
        let rank = if self.tried < self.gate.epoch() { 0 } else { self.config.rank };
        self.role = Role::Standby(Watch::new(self.now, rank));
        let gate = self.standby_gate();
        if self.gate != gate {
            self.set_gate(gate);
        }
    }

    /// The gate of a gateway that does not own the group, as far as it knows. An owner that was another gateway when the
    /// record was written executes what is passed on to it, or knows better.
    fn standby_gate(&self) -> Gate {
        let epoch = self.gate.epoch();
        let record = self.record.as_deref().filter(|record| record.epoch == epoch);
        // It is about to serve: hosts need not look for another path.
        if record.is_some_and(|record| record.heir == Some(self.config.me)) {
            return Gate::blocked(epoch);
        }
        let owner = record.and_then(|record| record.owner.as_ref());
        let reached = owner.filter(|owner| owner.gateway != self.config.me);
        Gate::through(epoch, &reached.map(|owner| owner.portals).unwrap_or_default())
    }

    /// The record of a read. `None` if there is none, or if it says that this gateway has been deposed.
    pub(crate) fn read(&mut self, result: Result) -> Option<Box<Record>> {
        let record = match result {
            Ok(Reply::Record(bytes)) => Box::new(Record::decode(&bytes).ok()?),
            Err(failure) if failure.deposes() => {
                self.watch_failed();
                return None;
            }
            Err(Failure::NoRecord(lost)) => {
                self.orphan(lost);
                return None;
            }
            _ => return None,
        };
        if self.is_another(&record) {
            self.orphan(Lost::Anew);
            return None;
        }
        if self.role.owns() {
            if record.epoch > self.gate.epoch() {
                self.fence();
                return None;
            }
        } else {
            self.adopt(record.clone());
        }
        Some(record)
    }

    /// A standby learns of a record, if it is newer than what it knows.
    pub(crate) fn adopt(&mut self, record: Box<Record>) {
        let known = self.record.as_deref();
        let version = |record: &Record| (record.epoch, record.revision);
        if known.is_some_and(|known| version(known) >= version(&record)) {
            return;
        }
        self.tag = Some(record.tag());
        let epoch = record.epoch;
        let (first, next) = (known.is_none(), known.is_none_or(|known| known.epoch < epoch));
        let lost = known.map_or_else(Vec::new, |known| lost(&known.contents, &record.contents));
        let kept = |contents: &Contents| -> Vec<_> {
            contents.volumes.iter().map(|it| (it.naa, it.modes.clone(), it.sanitize)).collect()
        };
        // An owner of before has not heard of its own.
        let modes = next || known.is_none_or(|it| kept(&it.contents) != kept(&record.contents));
        self.other_images = !self.has_images_of(&record);
        self.record = Some(record.clone());
        if next {
            // The same, if it is tried no more.
            if let Role::Standby(watch) = &mut self.role {
                *watch = Watch::new(self.now, 0);
            }
            self.gate = Gate::closed(epoch);
            let to = record.owner.as_ref().map(|owner| owner.portals);
            self.act(Action::Reach(epoch, to.unwrap_or_default()));
            self.set_gate(self.standby_gate());
            self.act(Action::Access(epoch, record.ports.clone(), Access::of(&record)));
            if !first {
                self.act(Action::Attention(Attention::AccessChanged));
            }
        }
        if modes {
            self.act(Action::Modes(record));
        }
        if !lost.is_empty() {
            self.act(Action::Preempted(lost));
        }
    }

    /// True for a record that was made in the place of this gateway's.
    pub(crate) fn is_another(&self, record: &Record) -> bool {
        self.tag.is_some_and(|tag| tag != record.tag())
    }

    /// Tells all gateways to read the record.
    pub(crate) fn announce(&mut self, epoch: Epoch) {
        let op = self.operation(Purpose::Announce);
        self.notify(op, &Message::Changed(epoch), ANNOUNCE_LIMIT);
    }

    /// Notifies the gateways of this one's record. Whoever has read none has nothing to say.
    pub(crate) fn notify(&mut self, op: OpId, message: &Message, limit: Duration) {
        let message = message.encode(self.tag.unwrap_or_default());
        self.act(Action::Notify(op, message, limit));
    }

    pub(crate) fn set_gate(&mut self, gate: Gate) {
        self.gate = gate;
        self.act(Action::Gate(gate));
    }

    /// The client, if there is one.
    pub(crate) const fn client(&self) -> Option<&ClientName> {
        match &self.client {
            Client::Ready(_, name, _) => Some(name),
            Client::None(_) | Client::Making | Client::GivenUp => None,
        }
    }

    /// Whether the client has the images open that this record names, as they are there, and no others.
    pub(crate) fn has_images_of(&self, record: &Record) -> bool {
        let Client::Ready(_, _, images) = &self.client else { return false };
        let named = record.contents.volumes.iter().map(|volume| (&volume.image, volume.bytes));
        named.eq(images.iter().map(|(image, bytes)| (image, *bytes)))
    }

    /// A standby makes another client when the group has got other images.
    fn look_at_images(&mut self) {
        if self.other_images && matches!(self.role, Role::Standby(_)) {
            self.renew_client(true);
        }
    }

    fn is_client(&self, op: OpId) -> bool {
        matches!(self.client, Client::Ready(ready, ..) if ready == op)
    }

    pub(crate) fn operation(&mut self, purpose: Purpose) -> OpId {
        self.operations += 1;
        let op = OpId(self.operations);
        self.pending.insert(op, purpose);
        op
    }

    pub(crate) fn forget(&mut self, what: impl Fn(&Purpose) -> bool) {
        self.pending.retain(|_, purpose| !what(purpose));
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }
}

/// The registrations of each volume, by its NAA designator, that are not there any more.
fn lost(before: &Contents, now: &Contents) -> Vec<([u8; 16], Registered)> {
    let mut lost = Vec::new();
    for volume in &before.volumes {
        let there = now.volumes.iter().find(|other| other.naa == volume.naa);
        // Of a volume that has left the group nobody has lost anything to anybody.
        let Some(there) = there else { continue };
        let is = |one: &Registered, other: &Registered| {
            (&one.family, &one.name) == (&other.family, &other.name)
        };
        let gone = volume.reserved.registrations.iter();
        let gone = gone.filter(|one| !there.reserved.registrations.iter().any(|it| is(one, it)));
        lost.extend(gone.map(|one| (volume.naa, one.clone())));
    }
    lost
}
