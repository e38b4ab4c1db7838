//! A gateway that does not own the group: it looks whether the owner is there, and takes over if it is not.

use alloc::boxed::Box;
use core::time::Duration;

use crate::machine::{Gateway, Purpose, Role};
use crate::takeover::{
    Begun, Candidate, Entry, Fenced, Fresh, Listed, Listing, Locked, Named, Naming, Seen, Unlocked,
    stranger,
};
use crate::{
    Ack, Action, Attention, ClientName, Config, Epoch, Failure, Gate, GatewayId, Lost, Message,
    Notice, Order, Owner, Record, Refusal, Reply, Response, Result, TEN_YEARS, Taker,
};

/// Between two pings.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How long answers to a ping may take.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// A ping that took longer says something of this gateway, or of its way to the cluster, and nothing of the owner.
const PING_LATE: Duration = Duration::from_millis(2500);
/// How long the owner has to be silent.
const SILENCE: Duration = Duration::from_secs(5);
/// And how many pings in a row it has left unanswered.
const SILENT_PINGS: u32 = 5;
/// How long a group has no owner before another than the heir takes it.
const VACANCY: Duration = Duration::from_secs(2);
/// How much later the next gateway in rank begins.
const RANK: Duration = Duration::from_millis(700);
/// How long a takeover may take. What hangs then hangs because the cluster does.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(30);
/// After how long a takeover is tried again that only an administrator can help: little work for the monitors for the hour
/// that a blocklist entry which is too short lasts.
const AGAIN: Duration = Duration::from_secs(30);
/// Between two looks while somebody else is at it.
const OTHER_EVERY: Duration = Duration::from_millis(500);
/// Looks that find the record unchanged, until another taker counts as dead, or a lock as somebody's who is no gateway.
const OTHER_LOOKS: u32 = 6;

/// What a standby knows of the owner.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When the next ping is due.
    pub next: Duration,
    /// No takeover begins by itself before.
    pub not_before: Duration,
    /// Pings in a row that the owner has not answered.
    unanswered: u32,
    /// When the first of them was sent.
    since: Duration,
    /// Since when the group has had no owner.
    vacant: Option<Duration>,
    /// An administrator was told that two servers are one gateway.
    told: bool,
}

/// A takeover under way.
#[derive(Debug)]
pub(crate) struct Takeover {
    /// Begun for the owner of this epoch; any if an administrator wants it.
    epoch: Option<Epoch>,
    pub limit: Duration,
    pub step: Step,
    /// At which revision somebody else was seen to be at it, and how often.
    others: (u64, u32),
    goal: Goal,
    /// One that was begun already has come to nothing.
    again: bool,
}

/// What a takeover is for, whatever becomes of the client that does it.
#[derive(Clone, Copy, Debug, Default)]
struct Goal {
    /// The owner was told to the blocklist, so it is this gateway that has to end it.
    fenced: bool,
    /// An administrator wants it.
    ordered: bool,
    /// From which gateway.
    from: Option<GatewayId>,
}

impl Goal {
    /// Whether it goes on in another epoch than that in which it was begun: the owner that was shut out has left just before, or
    /// the one that an administrator wants to be followed has come to another epoch.
    fn holds(self, record: &Record) -> bool {
        match &record.owner {
            None => self.fenced,
            Some(owner) => self.ordered && self.from == Some(owner.gateway),
        }
    }
}

/// A takeover that came to nothing, which a new client goes on with at once: nobody else may know that the owner is shut out. Or
/// an order that came when there was no client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    /// In which it was begun.
    epoch: Epoch,
    goal: Goal,
    /// When it came to nothing.
    at: Duration,
    /// False for an order that came while there was no client to carry it out.
    tried: bool,
}

#[derive(Debug)]
pub(crate) enum Step {
    Looking,
    /// Somebody else is at it: another look is due then.
    Pausing(Duration),
    Listing(Listing),
    WaitingForMap(Listed),
    Breaking(Fenced),
    Naming(Naming),
    Acquiring(Named),
    Refreshing(Locked),
    ReadingAgain(Fresh),
    Swapping(Candidate),
}

impl Gateway {
    /// Time has passed for a standby.
    pub(crate) fn standby_tick(&mut self) {
        let Role::Standby(watch) = &mut self.role else { return };
        if self.now < watch.next {
            return;
        }
        watch.next = self.now + PING_EVERY;
        let now = self.now;
        // One at a time: without the cluster they would become ever more.
        let waiting = |purpose: &Purpose| matches!(purpose, Purpose::Ping(_) | Purpose::Read);
        if self.pending.values().any(waiting) {
            return;
        }
        match self.record.as_deref() {
            Some(record) if record.owner.is_some() => {
                let message = Message::Ping(record.epoch);
                let op = self.operation(Purpose::Ping(now));
                self.notify(op, &message, PING_LIMIT);
            }
            _ => {
                let op = self.operation(Purpose::Read);
                self.act(Action::ReadRecord(op));
            }
        }
    }

    /// The answers to a ping are there, or their time is over.
    pub(crate) fn pinged(&mut self, sent: Duration, result: Result) {
        let (now, epoch, later) = (self.now, self.gate.epoch(), RANK * self.config.rank);
        let Role::Standby(watch) = &mut self.role else { return };
        watch.next = watch.next.min(now.max(sent + PING_EVERY));
        let Ok(Reply::Acks { acks, .. }) = result else { return watch.heard() };
        // It says of itself that it is the owner, and is this gateway.
        let mine = self.record.as_deref().and_then(|record| record.owner.as_ref());
        let same = mine.is_some_and(|owner| owner.gateway == self.config.me);
        let mut owners = acks.iter().flat_map(|Ack(bytes)| match Response::decode(bytes) {
            Ok(Response::Owner(owner)) => Some(owner),
            _ => None,
        });
        match owners.next() {
            Some(owner) if owner > epoch => self.read_record(),
            Some(owner) if owner == epoch => {
                watch.heard();
                if core::mem::take(&mut self.hindered) {
                    self.act(Action::Settled);
                }
                let Role::Standby(watch) = &mut self.role else { return };
                if same && !core::mem::replace(&mut watch.told, true) {
                    self.act(Action::Notice(Notice::SameNumber(self.config.me.0)));
                }
            }
            _ if now > sent + PING_LATE => watch.heard(),
            _ => {
                watch.unanswered += 1;
                if watch.unanswered == 1 {
                    watch.since = sent;
                }
                let silent = watch.unanswered >= SILENT_PINGS
                    && now >= watch.since + SILENCE + later
                    && now >= watch.not_before;
                if silent {
                    self.begin_takeover(Some(epoch), Goal::default());
                }
            }
        }
    }

    /// A group without an owner is taken by its heir, or by whoever comes first after a while.
    pub(crate) fn look_for_vacancy(&mut self) {
        let Role::Standby(watch) = &mut self.role else { return };
        let Some(record) = self.record.as_deref().filter(|record| record.owner.is_none()) else {
            watch.vacant = None;
            return;
        };
        let since = *watch.vacant.get_or_insert(self.now);
        let patience = match record.heir {
            Some(heir) if heir == self.config.me => Duration::ZERO,
            _ => VACANCY + RANK * self.config.rank,
        };
        if self.now >= since + patience && self.now >= watch.not_before {
            let epoch = record.epoch;
            self.begin_takeover(Some(epoch), Goal::default());
        }
    }

    /// An administrator wants this gateway to own the group.
    pub(crate) fn take_over(&mut self) {
        match self.role {
            Role::Standby(_) => {
                self.begin_takeover(None, Goal { ordered: true, ..Goal::default() });
            }
            Role::TakingOver(ref mut takeover) => takeover.is_ordered(),
            Role::Fenced if self.record.is_some() => self.keep_order(),
            // As far as it knows: it may have stood still, or be cut off.
            Role::Owner(_) => {
                let op = self.operation(Purpose::OwnerAsked);
                self.act(Action::ReadRecord(op));
            }
            Role::Orphaned => self.act(Action::Refuse(Order::TakeOver, Refusal::Orphaned)),
            Role::Fenced => self.act(Action::Refuse(Order::TakeOver, self.no_client())),
            Role::Moving(_) => self.act(Action::Refuse(Order::TakeOver, Refusal::NotReady)),
        }
    }

    /// An owner that is to take over has looked. If it has just learned that it is none, the order is kept.
    pub(crate) fn owner_asked(&mut self, result: Result) {
        let why = if result.is_ok() { Refusal::IsOwner } else { Refusal::NoClient };
        self.read(result);
        match self.role {
            Role::Owner(_) | Role::Moving(_) => self.act(Action::Refuse(Order::TakeOver, why)),
            _ => self.take_over(),
        }
    }

    /// An order that comes while a client is made, such as one that opens what the group has got, is carried out by that.
    pub(crate) fn keep_order(&mut self) {
        let Some(record) = self.record.as_deref() else { return };
        let (epoch, at) = (self.gate.epoch(), self.now);
        let from = record.owner.as_ref().map(|it| it.gateway).or(record.heir);
        let goal = Goal { from, ..Goal::default() };
        let kept = self.unfinished.take();
        let mut kept = kept.unwrap_or(Unfinished { epoch, goal, at, tried: false });
        (kept.goal.ordered, kept.at) = (true, at);
        self.unfinished = Some(kept);
    }

    fn begin_takeover(&mut self, epoch: Option<Epoch>, goal: Goal) {
        self.hindered = true;
        self.tried = self.gate.epoch();
        let limit = self.now + TAKEOVER_LIMIT;
        let (step, others) = (Step::Looking, (0, 0));
        let unfinished = self.unfinished.take();
        let again = unfinished.is_some_and(|it| it.tried);
        let goal = unfinished
            .map_or(goal, |it| Goal { ordered: goal.ordered || it.goal.ordered, ..it.goal });
        self.role = Role::TakingOver(Takeover { epoch, limit, step, others, goal, again });
        let op = self.operation(Purpose::Takeover);
        self.act(Action::Look(op));
    }

    /// Goes on with a takeover that has come to nothing, once.
    pub(crate) fn resume_takeover(&mut self) {
        let (Role::Standby(watch), Some(unfinished)) = (&self.role, self.unfinished) else {
            return;
        };
        let Some(record) = self.record.as_deref() else { return };
        let (epoch, wanted) = (record.epoch, unfinished.goal);
        // Nobody wants an order of yesterday carried out when the cluster is there again; who is shut out is so still.
        let is_late = self.now >= unfinished.at + TAKEOVER_LIMIT;
        let goal = Goal { ordered: wanted.ordered && !is_late, ..wanted };
        if is_late && !goal.fenced {
            self.unfinished = None;
            if wanted.ordered {
                self.act(Action::Refuse(Order::TakeOver, Refusal::NotReady));
            }
        } else if epoch != unfinished.epoch && !goal.holds(record) {
            self.unfinished = None;
            self.overtaken(wanted);
        } else if self.now >= watch.not_before {
            self.unfinished = Some(Unfinished { goal, ..unfinished });
            self.begin_takeover(Some(epoch), goal);
        }
    }

    /// Time has passed for a takeover.
    pub(crate) fn takeover_tick(&mut self) {
        let Role::TakingOver(takeover) = &mut self.role else { return };
        if self.now >= takeover.limit {
            let Role::TakingOver(takeover) = core::mem::replace(&mut self.role, Role::Fenced)
            else {
                return;
            };
            return self.leave(&takeover);
        }
        if matches!(takeover.step, Step::Pausing(until) if self.now >= until) {
            takeover.step = Step::Looking;
            let op = self.operation(Purpose::Takeover);
            self.act(Action::Look(op));
        }
    }

    /// A step of the takeover has ended. Whatever goes wrong, the gateway stays a standby.
    pub(crate) fn took(&mut self, result: Result) {
        let Role::TakingOver(mut takeover) = core::mem::replace(&mut self.role, Role::Fenced)
        else {
            return;
        };
        let step = core::mem::replace(&mut takeover.step, Step::Looking);
        let reply = match (&step, result) {
            (_, Ok(reply)) => reply,
            // The owner has written the record once more before it was fenced: an answer, a change of its own, or it has left.
            (Step::Naming(_), Err(Failure::Lost)) if takeover.goal.fenced => {
                return self.look_again(takeover);
            }
            (_, Err(_)) => return self.leave(&takeover),
        };
        let next = match (step, reply) {
            (Step::Looking, Reply::Seen { record, locks }) => {
                return self.looked(takeover, &record, &locks);
            }
            (Step::Listing(listing), Reply::Listed(lasts)) => match listing.listed(lasts) {
                Entry::Last(listed) => self.wait_for_map(listed),
                Entry::More(listing) => self.blocklist(listing),
                Entry::Short(ClientName { address, .. }) => {
                    let notice = Notice::ShortEntry { address, lasts, again: AGAIN };
                    return self.cannot_take(takeover.goal, notice);
                }
            },
            (Step::WaitingForMap(listed), Reply::Done) => self.break_lock(listed.map_known()),
            (Step::Breaking(fenced), Reply::Done) => match fenced.broken() {
                Ok(unlocked) => match self.name(unlocked) {
                    Some(step) => step,
                    None => return self.leave(&takeover),
                },
                Err(fenced) => self.break_lock(fenced),
            },
            (Step::Naming(naming), Reply::Done) => self.acquire(naming.named()),
            (Step::Acquiring(named), Reply::Done) => {
                let op = self.operation(Purpose::Takeover);
                self.act(Action::Refresh(op));
                Step::Refreshing(named.acquired())
            }
            (Step::Refreshing(locked), Reply::Done) => {
                let op = self.operation(Purpose::Takeover);
                self.act(Action::ReadRecord(op));
                Step::ReadingAgain(locked.refreshed())
            }
            (Step::ReadingAgain(fresh), Reply::Record(bytes)) => match self.stand(fresh, &bytes) {
                Some(step) => step,
                None => return self.leave(&takeover),
            },
            (Step::Swapping(candidate), Reply::Done) => return self.become_owner(candidate),
            _ => return self.leave(&takeover),
        };
        takeover.step = next;
        self.role = Role::TakingOver(takeover);
    }

    /// The record is not what it was.
    fn look_again(&mut self, mut takeover: Takeover) {
        takeover.step = Step::Looking;
        self.role = Role::TakingOver(takeover);
        let op = self.operation(Purpose::Takeover);
        self.act(Action::Look(op));
    }

    /// The record and the locks were looked at.
    fn looked(&mut self, mut takeover: Takeover, bytes: &[u8], locks: &[ClientName]) {
        // A record that cannot be read is left alone.
        let Ok(record) = Record::decode(bytes) else { return self.leave(&takeover) };
        if self.is_another(&record) {
            return self.orphan(Lost::Anew);
        }
        self.tag = Some(record.tag());
        if takeover.epoch.is_some_and(|epoch| epoch != record.epoch)
            && !takeover.goal.holds(&record)
        {
            self.become_standby();
            self.overtaken(takeover.goal);
            return self.adopt(Box::new(record));
        }
        takeover.epoch = Some(record.epoch);
        // Or from that to which it goes just now.
        let owner = record.owner.as_ref().map(|it| it.gateway).or(record.heir);
        takeover.goal.from = owner.or(takeover.goal.from);
        // Locks that it cannot see are no free ones. The next client opens what the record names now.
        if !self.has_images_of(&record) {
            self.keep(&takeover);
            return self.give_up();
        }
        let stranger = stranger(&record, locks).cloned();
        // A client of this gateway that was given up does nothing more.
        let taken = record.taker.as_ref().is_some_and(|taker| taker.gateway != self.config.me);
        let (revision, looks) = &mut takeover.others;
        *looks = if *revision == record.revision { *looks + 1 } else { 1 };
        *revision = record.revision;
        if (stranger.is_some() || taken) && *looks < OTHER_LOOKS {
            takeover.step = Step::Pausing(self.now + OTHER_EVERY);
            self.role = Role::TakingOver(takeover);
            return;
        }
        if let Some(stranger) = stranger {
            let (address, again) = (stranger.address, AGAIN);
            return self.cannot_take(takeover.goal, Notice::InUse { address, again });
        }
        let step = match Seen::new(Box::new(record)).begin() {
            Begun::Listing(listing) => {
                takeover.goal.fenced = true;
                Some(self.blocklist(listing))
            }
            Begun::Unlocked(unlocked) => self.name(unlocked),
        };
        let Some(step) = step else { return self.leave(&takeover) };
        takeover.step = step;
        self.role = Role::TakingOver(takeover);
    }

    fn blocklist(&mut self, listing: Listing) -> Step {
        let op = self.operation(Purpose::Takeover);
        let address = listing.client().address.clone();
        self.act(Action::Blocklist(op, address, TEN_YEARS));
        Step::Listing(listing)
    }

    /// The group cannot be taken over now. Nothing was done that has to be undone.
    fn cannot_take(&mut self, goal: Goal, notice: Notice) {
        if goal.ordered {
            self.act(Action::Refuse(Order::TakeOver, Refusal::InTheWay));
        }
        self.become_standby();
        if let Role::Standby(watch) = &mut self.role {
            watch.not_before = self.now + AGAIN;
        }
        self.act(Action::Notice(notice));
    }

    fn wait_for_map(&mut self, listed: Listed) -> Step {
        let op = self.operation(Purpose::Takeover);
        self.act(Action::WaitForMap(op));
        Step::WaitingForMap(listed)
    }

    fn break_lock(&mut self, fenced: Fenced) -> Step {
        let op = self.operation(Purpose::Takeover);
        self.act(Action::BreakLock(op, fenced.client().clone()));
        Step::Breaking(fenced)
    }

    /// Has the record name this gateway, before it gets a lock.
    fn name(&mut self, unlocked: Unlocked) -> Option<Step> {
        let me = Taker { gateway: self.config.me, client: self.client()?.clone() };
        let naming = unlocked.naming(me);
        let (expect, record) = naming.swap();
        let op = self.operation(Purpose::Takeover);
        self.act(Action::Swap { op, expect, record });
        Some(Step::Naming(naming))
    }

    fn acquire(&mut self, named: Named) -> Step {
        let op = self.operation(Purpose::Takeover);
        self.act(Action::Acquire(op));
        Step::Acquiring(named)
    }

    /// Stands for the next owner, with the record as it is behind the fence.
    fn stand(&mut self, fresh: Fresh, bytes: &[u8]) -> Option<Step> {
        let record = Record::decode(bytes).ok().filter(|record| self.has_images_of(record))?;
        // Another one is found by the next client, too.
        if self.is_another(&record) {
            return None;
        }
        let (client, Config { me, portals, .. }) = (self.client()?.clone(), self.config);
        let me = Owner { gateway: me, client, portals };
        let candidate = fresh.candidate(Box::new(record), me).ok()?;
        let op = self.operation(Purpose::Takeover);
        let (expect, record) = (candidate.expect(), Box::new(candidate.record().clone()));
        self.act(Action::Swap { op, expect, record });
        Some(Step::Swapping(candidate))
    }

    /// The record says that this gateway is the owner.
    fn become_owner(&mut self, candidate: Candidate) {
        let record = candidate.swapped();
        let differs = match self.record.as_deref() {
            Some(known) => !known.contents.reserved_as(&record.contents),
            None => true,
        };
        let epoch = record.epoch;
        self.act(Action::Load(record.clone()));
        self.act(Action::Attention(Attention::AccessChanged));
        if differs {
            self.act(Action::Attention(Attention::ReservationsChanged));
        }
        self.role = Role::Owner(None);
        self.hindered = false;
        self.set_gate(Gate::open(epoch));
        self.act(Action::Access(epoch, record.ports.clone(), crate::Access::of(&record)));
        self.record = Some(record);
        self.announce_owner(epoch);
    }

    /// A takeover has come to nothing. If its owner is shut out, nobody serves until somebody ends it.
    fn leave(&mut self, takeover: &Takeover) {
        if takeover.goal.fenced || takeover.goal.ordered {
            self.keep(takeover);
        }
        self.give_up();
    }

    /// Another gateway has been quicker: whoever has ordered this one is told.
    fn overtaken(&mut self, goal: Goal) {
        if goal.ordered {
            self.act(Action::Refuse(Order::TakeOver, Refusal::Overtaken));
        }
    }

    /// The next client goes on with it, unless that has been tried.
    fn keep(&mut self, takeover: &Takeover) {
        let goal = takeover.goal;
        // An order that has not even had a look holds for the epoch that is known here.
        let epoch = takeover.epoch.unwrap_or_else(|| self.gate.epoch());
        let (at, tried) = (self.now, true);
        self.unfinished = (!takeover.again).then_some(Unfinished { epoch, goal, at, tried });
        if takeover.again && goal.ordered {
            self.act(Action::Refuse(Order::TakeOver, Refusal::NotReady));
        }
    }

    /// A takeover has come to nothing. What it has asked for may still come to pass, so its client goes.
    pub(crate) fn give_up(&mut self) {
        self.renew_client(true);
    }

    pub(crate) fn read_record(&mut self) {
        if self.client().is_some() {
            let op = self.operation(Purpose::Read);
            self.act(Action::ReadRecord(op));
        }
    }
}

impl Takeover {
    /// An administrator wants what is under way: of whoever owns the group by then, while nobody has been shut out for it.
    fn is_ordered(&mut self) {
        self.goal.ordered = true;
        if matches!(self.step, Step::Looking | Step::Pausing(_)) {
            self.epoch = None;
        }
    }
}

impl Watch {
    /// From now on, with some time before the next takeover.
    pub fn new(now: Duration, rank: u32) -> Self {
        let not_before = now + RANK * rank;
        Self { next: now, not_before, unanswered: 0, since: now, vacant: None, told: false }
    }

    /// The owner is there, or nothing can be said of it.
    fn heard(&mut self) {
        self.unanswered = 0;
    }

    /// When there is something to do without an input.
    pub fn timeout(&self) -> Duration {
        self.next
    }
}
