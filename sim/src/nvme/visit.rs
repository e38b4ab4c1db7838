//! What every NVMe host does: it connects, has commands under way on several queues, disturbs them, and comes back.
//!
//! A command whose queue has ended may take effect until its host knows that the controller has let go of it: when a queue
//! with the same identifier is connected at the same controller, when a reset is complete, or when the controller is not
//! among those of the subsystem any more (Identify, CNS 13h). A controller whose host is gone has to go too.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use lunet_nvme::command::{Admin, Completion, GetLog, Identify};
use lunet_nvme::fabrics::{Fabrics, Property};
use lunet_nvme::feature::Feature;
use lunet_nvme::host::{Data, Error, SessionError, Tag};
use lunet_nvme::identify::{Cns, IDENTIFY_LEN, Identifiers, Namespace, namespaces_of};
use lunet_nvme::log::LogPage;
use lunet_nvme::status::Status;
use lunet_os::simulated::below;
use lunet_os::thread;
use zerocopy::FromBytes;

use super::commands::{Answer, Order, words};
use super::controller::{Controller, Done, News, Settings, is_fault};
use super::nsid;
use crate::model::SECTOR;
use crate::site::{Site, now};

/// CC: entries of 64 and 16 bytes.
const ENTRIES: u64 = 0x0046_0000;
/// CC: the same, and enabled.
pub(super) const ENABLED: u64 = ENTRIES | 1;

/// A host whose turn comes so late was stalled.
const SILENCE: Duration = Duration::from_secs(1);

/// Controllers that a host leaves as they are, at most.
const OPEN: usize = 3;

/// What a host sends, and what it makes of the answers.
pub trait Does {
    /// What it remembers of a command.
    type Command;

    /// Draws a command: `None` if there is none this time.
    fn draw(&mut self) -> Option<Order<Self::Command>>;

    /// A command in words.
    fn words(&self, command: &Self::Command) -> String;

    /// A command was not sent after all.
    fn undone(&mut self, command: Self::Command);

    /// A command that was sent at `begun` is answered.
    ///
    /// # Errors
    /// What is wrong with that.
    fn answered(
        &mut self,
        command: Self::Command,
        answer: &Answer,
        begun: Duration,
    ) -> Result<(), String>;

    /// A command that was not answered can take effect no more.
    fn over(&mut self, command: Self::Command);

    /// No command is under way for longer than this.
    fn bound(&self, command: &Self::Command) -> Duration;

    /// The controller was shut down, which was asked for at `begun`.
    fn shut_down(&mut self, begun: Duration);
}

/// A host.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its name in stories.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// Its NQN.
    pub nqn: String,
    /// HOSTID.
    pub id: [u8; 16],
    /// Operations before it is done.
    pub operations: u64,
    /// Commands under way at a time.
    pub depth: usize,
    /// How often in a thousand it breaks a connection, or leaves them.
    pub breaks: u64,
    /// How often in a thousand it aborts a command, or resets its controller.
    pub aborts: u64,
    /// Nothing is unanswered for longer.
    pub patience: Duration,
    /// Volumes that it sees.
    pub volumes: Vec<usize>,
    /// What everybody knows.
    pub site: Site,
}

/// A controller that its host has left.
struct Left<C> {
    cntlid: u16,
    commands: Vec<C>,
    since: Duration,
    /// It is gone by then.
    by: Option<Duration>,
    /// The host has not closed its connections.
    open: Option<Controller>,
}

/// A command under way, or a fused pair.
struct Under<C> {
    what: C,
    begun: Duration,
    qid: u16,
    tags: Vec<Tag>,
    /// How each part has completed.
    parts: Vec<Option<Completion>>,
    data: Option<Vec<u8>>,
}

/// A command of the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// Which controllers there are.
    Controllers,
    /// What a volume is.
    Namespace(usize),
    /// The identifiers of a volume.
    Descriptors(usize),
    /// Which namespaces there are.
    Namespaces,
    /// Something that only has to be answered.
    Other,
    /// A command is to be aborted.
    Abort,
    /// The controller is disabled, or enabled again.
    Configure,
    /// CSTS.
    Status,
    /// How many queues there are to be.
    Queues,
}

/// How far a reset of the controller has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    /// It is being disabled, or enabled.
    Configuring { enable: bool },
    /// CSTS.RDY is not yet what it should be.
    Waiting { enable: bool },
    /// The number of queues is asked for again.
    Queues,
}

struct Visit<'a, D: Does> {
    life: &'a Life,
    does: &'a mut D,
    controller: Controller,
    under_way: BTreeMap<u64, Under<D::Command>>,
    /// Commands of queues that have ended.
    dead: BTreeMap<u16, Vec<D::Command>>,
    questions: BTreeMap<u64, (Question, Duration)>,
    tokens: u64,
    reset: Option<(Reset, Duration)>,
    /// When the next question of a kind that is asked again and again is due.
    next: Duration,
    /// When its Connects were sent.
    dialled: BTreeMap<u16, Duration>,
    /// When it was stalled last.
    awake: Duration,
    shuts_down: Option<Duration>,
    /// It does nothing more, and closes no connection.
    leaves: bool,
    over: bool,
}

impl Life {
    /// Its life.
    pub fn run<D: Does>(self, mut does: D) {
        let mut left_to_do = self.operations;
        let mut left: Vec<Left<D::Command>> = Vec::new();
        while left_to_do > 0 && !self.site.known().over {
            thread::sleep(Duration::from_micros(100 + below(20_000)));
            let address = self.site.known().nvme_address;
            let settings = Settings::draw(&self.nqn, self.id, self.patience);
            let Some(controller) =
                address.and_then(|address| Controller::dial((address, self.address), settings))
            else {
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            self.site.tell(&self.name, &format!("connects over NVMe: {}", how(&controller)));
            let visit = Visit {
                life: &self,
                does: &mut does,
                controller,
                under_way: BTreeMap::new(),
                dead: BTreeMap::new(),
                questions: BTreeMap::new(),
                tokens: 0,
                reset: None,
                next: Duration::ZERO,
                dialled: [(0, now())].into(),
                // Before it there may have been a silence.
                awake: now(),
                shuts_down: None,
                leaves: false,
                over: false,
            };
            visit.run(&mut left_to_do, &mut left);
        }
        self.site.tell(&self.name, "is done");
        self.site.known().busy -= 1;
    }
}

/// How a host connects, in words.
fn how(controller: &Controller) -> String {
    let Settings { kato, digests, queues, entries, .. } = controller.settings();
    format!("{queues} queues of {entries}, keep alive {kato:?}, digests {digests:?}")
}

impl<D: Does> Visit<'_, D> {
    /// Its life, until its admin queue is no more.
    fn run(mut self, left_to_do: &mut u64, left: &mut Vec<Left<D::Command>>) {
        loop {
            self.receive(left_to_do, left);
            if self.over || self.leaves {
                break;
            }
            if self.controller.is_up() && self.shuts_down.is_none() {
                self.look_after(left_to_do, left);
            }
            if below(1000) < self.life.breaks {
                self.breaks();
            }
            self.controller.flush();
            if let Some(what) = self.unanswered(left) {
                self.wrong(&what);
            }
            let mut known = self.life.site.known();
            if known.over || known.wrong.is_some() {
                known.over = true;
                break;
            }
            drop(known);
            let before = now();
            self.controller.wait(Duration::from_micros(200 + below(100_000)));
            if now() - before > SILENCE {
                // It was the silent one: what waited for it has its time from now on.
                self.awake = now();
            }
            let mut news = Vec::new();
            self.controller.tick(&mut news);
            news.into_iter().for_each(|news| self.happened(news, left_to_do, left));
        }
        self.leave(left);
    }

    fn tell(&self, what: &str) {
        self.life.site.tell(&self.life.name, what);
    }

    fn wrong(&self, what: &str) {
        self.life.site.wrong(&self.life.name, what);
    }

    /// Remembers what may still take effect.
    fn leave(self, left: &mut Vec<Left<D::Command>>) {
        let under_way = self.under_way.into_values().map(|under| under.what);
        let commands: Vec<_> = self.dead.into_values().flatten().chain(under_way).collect();
        let Some(cntlid) = self.controller.cntlid() else { return };
        let kato = self.controller.settings().kato;
        let by = match (self.leaves, kato) {
            (false, _) => Some(now() + self.life.patience),
            (true, Duration::ZERO) => None,
            (true, kato) => Some(self.controller.last_sent() + kato + self.life.patience),
        };
        let open = self.leaves.then_some(self.controller);
        left.push(Left { cntlid, commands, since: now(), by, open });
        let open = |left: &Left<D::Command>| left.open.is_some();
        if left.iter().filter(|left| open(left)).count() > OPEN {
            if let Some(oldest) = left.iter_mut().find(|left| open(left)) {
                oldest.close(self.life.patience);
            }
        }
    }

    /// What has waited for an answer too long.
    fn unanswered(&self, left: &[Left<D::Command>]) -> Option<String> {
        let waited = |since: &Duration| now().saturating_sub(self.awake.max(*since));
        let late = |since: &Duration| waited(since) > self.life.patience;
        let command = self
            .under_way
            .values()
            .find(|under| waited(&under.begun) > self.does.bound(&under.what));
        if let Some(Under { what, begun, qid, .. }) = command {
            let what = self.does.words(what);
            return Some(format!("{what} of {begun:?} on queue {qid} is not answered"));
        }
        if let Some((question, since)) = self.questions.values().find(|(_, since)| late(since)) {
            return Some(format!("{question:?} of {since:?} on the admin queue is not answered"));
        }
        if let Some((reset, since)) = self.reset.filter(|(_, since)| late(since)) {
            return Some(format!("the reset of {since:?} does not get on: {reset:?}"));
        }
        if let Some(since) = self.shuts_down.filter(late) {
            return Some(format!("the shutdown of {since:?} does not come to its end"));
        }
        let up = self.controller.is_up();
        let outlives = left.iter().find(|left| up && left.by.is_some_and(|by| late(&by)))?;
        let (cntlid, since) = (outlives.cntlid, outlives.since);
        Some(format!("controller {cntlid} is still there, and was left at {since:?}"))
    }

    fn receive(&mut self, left_to_do: &mut u64, left: &mut Vec<Left<D::Command>>) {
        let mut news = Vec::new();
        self.controller.receive(&mut news);
        news.into_iter().for_each(|news| self.happened(news, left_to_do, left));
    }

    fn happened(&mut self, news: News, left_to_do: &mut u64, left: &mut Vec<Left<D::Command>>) {
        match news {
            News::Ready => {
                let cntlid = self.controller.cntlid().unwrap_or(0);
                self.tell(&format!("has controller {cntlid}"));
            }
            News::Answered(done) => self.answered(&done, left),
            News::Connected(qid) => {
                self.tell(&format!("has queue {qid}"));
                // The one before it has let go of everything.
                let dead = self.dead.remove(&qid).unwrap_or_default();
                dead.into_iter().for_each(|command| self.does.over(command));
            }
            News::Done(qid, done) => {
                if self.part_done(qid, done) {
                    *left_to_do = left_to_do.saturating_sub(1);
                }
            }
            News::QueueEnded(qid, error) => self.queue_ended(qid, &error),
            News::Notice(event) => {
                if let Some(event) = event {
                    let page = GetLog::new(event.log_page().code(), 4096);
                    self.ask(Question::Other, Admin::GetLogPage(page), 4096);
                }
            }
            News::ShutDown => {
                self.tell("has shut its controller down");
                if let Some(begun) = self.shuts_down {
                    self.does.shut_down(begun);
                }
                self.over = true;
            }
            News::Ended(error) => self.ended(error),
        }
    }

    /// An admin queue has ended.
    fn ended(&mut self, error: SessionError) {
        self.over = true;
        self.tell(&format!("its admin queue ends: {error}"));
        match error {
            SessionError::Connection(error) => self.check_end(0, &error),
            SessionError::Authentication | SessionError::Identify(_) => {
                self.wrong(&error.to_string());
            }
            SessionError::Refused(_)
            | SessionError::Fatal
            | SessionError::NotReady
            | SessionError::KeepAlive => {}
        }
    }

    fn queue_ended(&mut self, qid: u16, error: &Error) {
        self.tell(&format!("queue {qid} ends: {error}"));
        self.check_end(qid, error);
        let of_queue = |under: &Under<D::Command>| under.qid == qid;
        let tokens: Vec<u64> =
            self.under_way.iter().filter(|(_, u)| of_queue(u)).map(|(token, _)| *token).collect();
        let commands = tokens.iter().filter_map(|token| self.under_way.remove(token));
        self.dead.entry(qid).or_default().extend(commands.map(|under| under.what));
    }

    /// Sees whether a connection may end so.
    fn check_end(&self, qid: u16, error: &Error) {
        let dialled = self.dialled.get(&qid).copied().unwrap_or_default();
        let refused = match error {
            Error::Refused(Completion { status, .. }) => {
                let status = status.code();
                status == Status::CONNECT_HOST || status == Status::CONNECT_FORMAT
            }
            Error::ConnectTimeout => now() - dialled.max(self.awake) >= self.life.patience,
            _ => false,
        };
        if refused || is_fault(error) {
            self.wrong(&format!("queue {qid} ends: {error}"));
        }
    }

    /// A part of a command has completed. True if that was the last one.
    fn part_done(&mut self, qid: u16, done: Done) -> bool {
        let Some(completion) = done.completion else {
            // Its queue has ended.
            return false;
        };
        let token = done.token & !1;
        let Some(under) = self.under_way.get_mut(&token) else { return false };
        under.parts[(done.token & 1) as usize] = Some(completion);
        let short = matches!(&done.data, Data::Read(buf) if buf.len() != done.received as usize);
        if let Data::Read(buf) = done.data {
            under.data = Some(buf);
        }
        if under.parts.iter().any(Option::is_none) {
            return false;
        }
        let Some(under) = self.under_way.remove(&token) else { return false };
        if under.begun <= self.life.site.known().last_kill {
            // Its answer had come before the server was killed, and says nothing of what is there now.
            return true;
        }
        let parts: Vec<Completion> = under.parts.into_iter().flatten().collect();
        let answer = Answer { parts, data: under.data };
        self.life.site.known().operations += 1;
        let (words, begun) = (self.does.words(&under.what), under.begun);
        self.tell(&format!("{words} of {begun:?} on queue {qid} ends: {}", answer.words()));
        let right = match answer.status().is_success() && short {
            true => Err(format!("{words} was answered with too little data")),
            false => self.does.answered(under.what, &answer, begun),
        };
        if let Err(wrong) = right {
            self.wrong(&wrong);
        }
        true
    }

    /// Makes queues, sends commands, asks questions, and comes to the end.
    fn look_after(&mut self, left_to_do: &mut u64, left: &mut Vec<Left<D::Command>>) {
        if self.reset.is_some() {
            return self.go_on_with_reset();
        }
        for qid in 1..=self.controller.wanted() {
            if !self.controller.has_queue(qid) && below(2) == 0 && self.controller.make_queue(qid) {
                self.dialled.insert(qid, now());
            }
        }
        self.look_after_left(left);
        if below(1000) < self.life.aborts {
            self.disturb();
        }
        if below(30) == 0 {
            self.wonder();
        }
        let wanted = (*left_to_do as usize).min(self.life.depth);
        while self.under_way.len() < wanted && below(4) != 0 {
            if !self.send() {
                break;
            }
        }
        if *left_to_do == 0 && self.under_way.is_empty() && self.questions.is_empty() {
            self.end();
        }
    }

    /// It has done what it wanted: it shuts its controller down, or goes without that.
    fn end(&mut self) {
        if below(3) == 0 {
            self.tell("goes without a shutdown");
            self.over = true;
            return;
        }
        self.tell("shuts its controller down");
        self.shuts_down = Some(now());
        self.controller.shut_down();
    }

    fn send(&mut self) -> bool {
        let Some(order) = self.does.draw() else { return true };
        let queues = self.controller.with_room(order.parts.len());
        if queues.is_empty() {
            self.does.undone(order.what);
            return false;
        }
        let qid = queues[below(queues.len() as u64) as usize];
        self.tokens += 2;
        let (token, count) = (self.tokens, order.parts.len());
        let (words, mut tags) = (words(&order.parts), Vec::new());
        for (at, (sqe, data)) in order.parts.into_iter().enumerate() {
            tags.extend(self.controller.submit(qid, token + at as u64, sqe, data));
        }
        if tags.len() != count {
            self.wrong("a queue with room takes no command");
        }
        let what = self.does.words(&order.what);
        self.tell(&format!("{words} on queue {qid}: {what}"));
        let (what, begun, parts) = (order.what, now(), vec![None; count]);
        self.under_way.insert(token, Under { what, begun, qid, tags, parts, data: None });
        true
    }

    /// Breaks connections, or leaves them as they are.
    fn breaks(&mut self) {
        let qid = 1 + below(4) as u16;
        match below(5) {
            0 | 1 if self.controller.has_queue(qid) => {
                self.tell(&format!("breaks queue {qid}"));
                self.controller.break_queue(qid);
            }
            0 | 1 => {}
            2 => {
                self.tell("breaks its admin queue");
                self.controller.break_admin();
            }
            3 => {
                self.tell("breaks all its connections");
                self.controller.break_all();
            }
            _ => {
                self.tell("leaves its controller as it is");
                self.controller.flush();
                self.leaves = true;
            }
        }
    }

    /// Aborts a command, or resets the controller.
    fn disturb(&mut self) {
        if below(4) == 0 {
            self.tell("resets its controller");
            let disable =
                Fabrics::PropertySet { property: Property::Configuration, value: ENTRIES };
            self.set(disable, Reset::Configuring { enable: false });
            return;
        }
        let Some(under) = self.under_way.values().next() else { return };
        let tag = under.tags[below(under.tags.len() as u64) as usize];
        let (sqid, cid) = match below(8) {
            // One that is not there.
            0 => (below(6) as u16, below(1 << 16) as u16),
            _ => (under.qid, tag.cid()),
        };
        let words = self.does.words(&under.what);
        self.tell(&format!("aborts command {cid:#06x} of queue {sqid}; under way is {words}"));
        self.ask(Question::Abort, Admin::Abort { sqid, cid }, 0);
    }

    fn ask(&mut self, question: Question, admin: Admin, read: usize) {
        let nsid = match question {
            Question::Namespace(volume) | Question::Descriptors(volume) => nsid(volume),
            _ => 0,
        };
        self.tokens += 2;
        if self.controller.ask(self.tokens, admin.encode(nsid), read).is_some() {
            self.questions.insert(self.tokens, (question, now()));
        }
    }

    /// Sends a step of a reset.
    fn set(&mut self, fabrics: Fabrics, reset: Reset) {
        self.tokens += 2;
        if self.controller.ask(self.tokens, fabrics.encode(), 0).is_some() {
            let question = match fabrics {
                Fabrics::PropertyGet { .. } => Question::Status,
                _ => Question::Configure,
            };
            self.questions.insert(self.tokens, (question, now()));
            let since = self.reset.map_or(now(), |(_, since)| since);
            self.reset = Some((reset, since));
        }
    }

    fn go_on_with_reset(&mut self) {
        let asked = |question: &(Question, Duration)| question.0 == Question::Status;
        if let Some((Reset::Waiting { .. }, _)) = self.reset {
            if now() >= self.next && !self.questions.values().any(asked) {
                let (reset, _) = self.reset.unwrap_or((Reset::Queues, now()));
                self.set(Fabrics::PropertyGet { property: Property::Status }, reset);
                self.next = now() + Duration::from_millis(1 + below(20));
            }
        }
    }

    /// An answer to a step of a reset.
    fn reset_answered(&mut self, completion: Completion) {
        let Some((reset, since)) = self.reset else { return };
        if !completion.status.is_success() {
            return self.wrong(&format!("{reset:?} is answered {}", completion.status));
        }
        match reset {
            Reset::Configuring { enable } => self.reset = Some((Reset::Waiting { enable }, since)),
            Reset::Waiting { enable: false } if completion.result & 1 == 0 => {
                self.tell("has reset its controller");
                self.controller.close_queues();
                let under_way = std::mem::take(&mut self.under_way).into_values();
                let dead = std::mem::take(&mut self.dead).into_values().flatten();
                dead.chain(under_way.map(|u| u.what)).for_each(|what| self.does.over(what));
                let value = ENABLED;
                let enable = Fabrics::PropertySet { property: Property::Configuration, value };
                self.set(enable, Reset::Configuring { enable: true });
            }
            Reset::Waiting { enable: true } if completion.result & 1 != 0 => {
                self.reset = Some((Reset::Queues, since));
                let queues = u32::from(self.controller.settings().queues - 1);
                let value = [queues | queues << 16, 0];
                let fid = Feature::Queues.code();
                let set = Admin::SetFeatures { fid, save: false, value };
                self.ask(Question::Queues, set, 0);
            }
            Reset::Waiting { .. } => {}
            Reset::Queues => self.reset = None,
        }
    }

    /// A command of the admin queue has ended.
    fn answered(&mut self, done: &Done, left: &mut Vec<Left<D::Command>>) {
        let Some((question, asked)) = self.questions.remove(&done.token) else { return };
        let Some(completion) = done.completion else { return };
        if matches!(question, Question::Configure | Question::Status | Question::Queues) {
            return self.reset_answered(completion);
        }
        let good = completion.status.is_success();
        let page = match &done.data {
            Data::Read(page) if good => Some(page.as_slice()),
            _ => None,
        };
        let right = match (question, page) {
            (Question::Controllers, Some(page)) => {
                self.see_controllers(page, asked, left);
                Ok(())
            }
            (Question::Namespace(volume), Some(page)) => self.see_namespace(volume, page),
            (Question::Descriptors(volume), Some(page)) => self.see_descriptors(volume, page),
            (Question::Namespaces, Some(page)) => {
                let there: Vec<u32> = namespaces_of(page).collect();
                let sorted = there.windows(2).all(|pair| pair[0] < pair[1]);
                if sorted { Ok(()) } else { Err(format!("the namespaces are {there:?}")) }
            }
            _ => Ok(()),
        };
        if let Err(wrong) = right {
            self.wrong(&wrong);
        }
    }

    /// Which controllers there are: whoever is not among them has let go of everything.
    fn see_controllers(&mut self, page: &[u8], asked: Duration, left: &mut Vec<Left<D::Command>>) {
        let number =
            |at: usize| page.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        let there: Vec<u16> = (1..=usize::from(number(0))).map(|at| number(at * 2)).collect();
        if self.controller.cntlid().is_some_and(|own| !there.contains(&own)) {
            self.wrong(&format!("its controller is not among {there:?}"));
        }
        let (gone, rest) = std::mem::take(left)
            .into_iter()
            .partition(|left| left.since < asked && !there.contains(&left.cntlid));
        *left = rest;
        for Left { cntlid, commands, .. } in gone {
            self.tell(&format!("sees that controller {cntlid} is gone"));
            commands.into_iter().for_each(|command| self.does.over(command));
        }
    }

    fn see_namespace(&self, volume: usize, page: &[u8]) -> Result<(), String> {
        let Ok((namespace, _)) = Namespace::ref_from_prefix(page) else { return Ok(()) };
        let mut known = self.life.site.known();
        let sectors = known.models[volume].sectors();
        let (blocks, size) = (namespace.nsze.get(), namespace.block_size());
        if blocks != sectors || size != Some(SECTOR as u32) {
            return Err(format!("volume {volume} has {blocks} blocks of {size:?}"));
        }
        let was = *known.nguids.entry(volume).or_insert(namespace.nguid);
        if was != namespace.nguid {
            return Err(format!("volume {volume} was {was:x?} and is {:x?}", namespace.nguid));
        }
        Ok(())
    }

    fn see_descriptors(&self, volume: usize, page: &[u8]) -> Result<(), String> {
        let ids = Identifiers::decode(page);
        let known = self.life.site.known();
        match (known.nguids.get(&volume), ids.nguid) {
            (Some(was), Some(nguid)) if *was != nguid => {
                Err(format!("volume {volume} was {was:x?} and is {nguid:x?}"))
            }
            _ => Ok(()),
        }
    }

    /// Sees to controllers that were left: whether they are gone, and now and then closes their connections.
    fn look_after_left(&mut self, left: &mut Vec<Left<D::Command>>) {
        let last_kill = self.life.site.known().last_kill;
        // What they had not done they do no more.
        let (ended, rest) = std::mem::take(left).into_iter().partition(|it| it.since <= last_kill);
        *left = rest;
        ended.into_iter().flat_map(|left| left.commands).for_each(|it| self.does.over(it));
        if below(50) == 0 {
            let open = left.iter_mut().find(|left| left.open.is_some());
            open.into_iter().for_each(|left| left.close(self.life.patience));
        }
        let asks = |question: &(Question, Duration)| question.0 == Question::Controllers;
        if left.is_empty() || now() < self.next || self.questions.values().any(asks) {
            return;
        }
        self.next = now() + Duration::from_millis(1 + below(500));
        let identify = Identify { cns: Cns::Controllers.code(), cntid: 0, csi: 0 };
        self.ask(Question::Controllers, Admin::Identify(identify), IDENTIFY_LEN);
    }

    /// Asks something.
    fn wonder(&mut self) {
        let volume = self.life.volumes[below(self.life.volumes.len() as u64) as usize];
        let identify = |cns: Cns| Admin::Identify(Identify { cns: cns.code(), cntid: 0, csi: 0 });
        let log = |page: LogPage| Admin::GetLogPage(GetLog::new(page.code(), 512));
        let feature =
            |feature: Feature| Admin::GetFeatures { fid: feature.code(), select: 0, value: 0 };
        let (question, admin, read) = match below(12) {
            0 | 1 => (Question::Namespace(volume), identify(Cns::Namespace), IDENTIFY_LEN),
            2 | 3 => (Question::Descriptors(volume), identify(Cns::Descriptors), IDENTIFY_LEN),
            4 => (Question::Namespaces, identify(Cns::ActiveList), IDENTIFY_LEN),
            5 => (Question::Other, identify(Cns::Controller), IDENTIFY_LEN),
            6 => (Question::Other, log(LogPage::Health), 512),
            7 => (Question::Other, log(LogPage::Errors), 512),
            8 => (Question::Other, log(LogPage::Ana), 512),
            9 => (Question::Other, log(LogPage::Reservation), 512),
            10 => (Question::Other, feature(Feature::KeepAlive), 0),
            _ => (Question::Other, feature(Feature::Queues), 0),
        };
        self.ask(question, admin, read);
    }
}

impl<C> Left<C> {
    /// The host closes its connections.
    fn close(&mut self, patience: Duration) {
        self.open = None;
        let by = now() + patience;
        self.by = Some(self.by.map_or(by, |before| before.min(by)));
    }
}
