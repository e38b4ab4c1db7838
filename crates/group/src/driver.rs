//! The thread of a group.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use lunet_gateway::{
    Action, Condition, Contents, Epoch, Failure, Gateway, GatewayId, Input, Job, Lost, NotifyId,
    OpId, Order, Outcome, Record, Reply, Request, Result, Volume,
};
use lunet_rbd::{ImageName, Place, Watched};

use crate::serving::{Drained, Serving, Storage};
use crate::session::{Present, Session, Sizes};
use crate::shared::{self, Heard, Shared, Shares};
use crate::store::{Error, Said};

/// Threads that ask the cluster for one client, at the most: where an image's storage hangs, they do not end.
const MOST_ASKING: usize = 64;

/// How long locks that are given back with a client are waited for.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);
/// Answers to notifies that wait for the cluster at the most. Others are not sent: who has asked hears nothing.
const ANSWERS: usize = 64;
/// How often the configuration of the group is looked at, if nobody tells of another one.
const LOOK: Duration = Duration::from_secs(5);
/// EAGAIN: there is no thread.
const NO_THREAD: Failure = Failure::Other(11);
/// EIO: there is no client, and why was told.
const NO_CLIENT: Failure = Failure::Other(5);

type Judge = dyn Fn(&Record) -> std::result::Result<(), Said> + Send + Sync;

/// Says whether the configuration of a server agrees with a group's record, and why not.
#[derive(Clone)]
pub struct Agrees(Arc<Judge>);

impl Agrees {
    /// By this function.
    pub fn new(
        agrees: impl Fn(&Record) -> std::result::Result<(), Said> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(agrees))
    }

    pub(crate) fn ask(&self, record: &Record) -> std::result::Result<(), Said> {
        (self.0)(record)
    }
}

impl fmt::Debug for Agrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agrees").finish_non_exhaustive()
    }
}

/// What a gateway is, and what it knows of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it is.
    pub condition: Condition,
    /// The epoch of the record, as it is known here; 0 if it is not.
    pub epoch: Epoch,
    /// Who owns the group.
    pub owner: Option<GatewayId>,
    /// Whom a planned move gives it to.
    pub heir: Option<GatewayId>,
}

impl Status {
    fn of(gateway: &Gateway) -> Self {
        // What a gateway that has lost its record knows of it is true of nothing.
        let is_orphaned = gateway.condition() == Condition::Orphaned;
        let record = gateway.record().filter(|_| !is_orphaned);
        Self {
            condition: gateway.condition(),
            epoch: record.map_or(Epoch(0), |record| record.epoch),
            owner: record.and_then(|record| record.owner.as_ref()).map(|owner| owner.gateway),
            heir: record.and_then(|record| record.heir),
        }
    }
}

/// A gateway of a group.
#[derive(Clone)]
pub struct Config {
    /// The group: pool and namespace of its record, and its id in the place of an image's name; and as whom the cluster is
    /// used.
    pub group: Place,
    /// Which gateway of it this is.
    pub gateway: lunet_gateway::Config,
    /// Asked for each new client: one whose record it does not agree with is given up, and the group is not owned.
    pub agrees: Agrees,
    /// Who serves by the configuration that the cluster has of the group; `None` if it has none.
    pub shared: Option<Arc<dyn Shares>>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("group", &self.group).finish_non_exhaustive()
    }
}

/// What other gateways say to another configuration, and how long was waited for those that have not answered, if there are some.
pub type Told = std::result::Result<(Vec<Heard>, Option<Duration>), Error>;

/// What the thread of a group waits for.
#[derive(Debug)]
pub(crate) enum Event {
    /// A client was made, or not.
    Made(OpId, Box<std::result::Result<Session, Error>>),
    /// What a client's watch tells.
    Watched(OpId, Watched),
    /// What a client's watch of the configuration tells.
    OfConfig(OpId, Watched),
    /// The configuration is to be replaced.
    Write(Shared, Sender<std::result::Result<(), Error>>),
    /// Other gateways are to be told that it was.
    Tell(Sender<Told>),
    /// Gateways are to say that they are there.
    Roll(Sender<std::result::Result<Vec<Present>, Error>>),
    /// Images have other sizes, as they were looked at behind so many rollbacks.
    Sizes(OpId, u64, Sizes),
    /// It is to be looked whether they have.
    LookAtSizes,
    /// Images are being rolled back, or not any more.
    Rolling(bool),
    /// An administrator wants a job done.
    Job(Vec<u8>, Duration, Sender<Outcome>),
    /// The configuration was looked at.
    Seen,
    /// The volumes that the group is to have.
    Volumes(Vec<Volume>),
    /// It cannot have them.
    NotHad(Error),
    /// The revision that the cluster has is to be looked at.
    Revision(Sender<std::result::Result<u64, Error>>),
    /// Whether the group can have other images is to be looked at.
    Look(Vec<String>, Sender<std::result::Result<(), Error>>),
    /// For the state machine.
    Input(Input),
    /// It is over.
    End,
}

/// A group that runs. It ends when this is dropped.
#[derive(Debug)]
pub struct Group {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Tells a group what happens in the server, and what an administrator wants. Nothing of it waits; a group that has ended
/// hears nothing.
#[derive(Clone, Debug)]
pub struct Handle(Sender<Event>);

impl Handle {
    fn tell(&self, input: Input) {
        // Without a receiver the group has ended.
        drop(self.0.send(Event::Input(input)));
    }

    /// An administrator wants something.
    pub fn order(&self, order: Order) {
        self.tell(Input::Order(order));
    }

    /// I/O of that client failed, with an error number of Linux. EROFS and ESHUTDOWN say that the group has another owner;
    /// after others a write may take effect later, and its range stays fenced.
    pub fn io_failed(&self, client: OpId, errno: i32) {
        self.tell(Input::IoFailed(client, Failure::from_errno(errno)));
    }

    /// PERSISTENT RESERVE OUT of an initiator here, under a number of the caller's.
    pub fn reserve(&self, id: u64, body: Vec<u8>) {
        self.tell(Input::Reserve(id, body));
    }

    /// PERSISTENT RESERVE IN of an initiator here, under a number of the caller's.
    pub fn report(&self, id: u64) {
        self.tell(Input::Report(id));
    }

    /// A request was executed on a copy: what the record is to contain, and the answer.
    pub fn executed(&self, request: Request, contents: Contents, answer: Vec<u8>) {
        self.tell(Input::Executed(request, Box::new(contents), answer));
    }

    /// A copy has taken effect.
    pub fn applied(&self, request: Request) {
        self.tell(Input::Applied(request));
    }
}

impl Handle {
    /// Replaces the configuration of the group that has the revision before this one's. The result comes when the cluster has
    /// answered; none comes if the group ends before.
    pub fn write_shared(&self, shared: Shared) -> Receiver<std::result::Result<(), Error>> {
        let (sender, done) = channel();
        // Without a receiver the group has ended.
        drop(self.0.send(Event::Write(shared, sender)));
        done
    }

    /// Has the owner of the group do a job, this gateway or another one, and waits for so long: what became of it. Nothing comes
    /// if the group ends before.
    pub fn job(&self, body: Vec<u8>, limit: Duration) -> Receiver<Outcome> {
        let (sender, outcome) = channel();
        drop(self.0.send(Event::Job(body, limit, sender)));
        outcome
    }

    /// A [job](Serving::job) has ended, with this answer.
    pub fn job_done(&self, job: Job, answer: Vec<u8>) {
        self.tell(Input::JobDone(job, answer));
    }

    /// An owner looks now whether its images have become larger: their volumes become so, too.
    pub fn look_at_sizes(&self) {
        drop(self.0.send(Event::LookAtSizes));
    }

    /// Images of the group are being rolled back, or none is any more: until then their sizes are looked at no more, as they
    /// change to and fro.
    pub fn images_roll(&self, roll: bool) {
        drop(self.0.send(Event::Rolling(roll)));
    }

    /// The group is to have these volumes: those of the record that are not among them leave it, and of those that stay it keeps
    /// what it knows. Counts if this gateway owns the group, and if nobody else uses the images that are new.
    pub fn have(&self, volumes: Vec<Volume>) {
        drop(self.0.send(Event::Volumes(volumes)));
    }

    /// Sees whether the group can have these images, by their names. The result comes when the cluster has answered; none comes
    /// if the group ends before.
    pub fn look_at(&self, images: Vec<String>) -> Receiver<std::result::Result<(), Error>> {
        let (sender, done) = channel();
        drop(self.0.send(Event::Look(images, sender)));
        done
    }

    /// The revision of the group's configuration that the cluster has now; 0 if it has none. Comes when the cluster has answered;
    /// nothing comes if the group ends before.
    pub fn revision(&self) -> Receiver<std::result::Result<u64, Error>> {
        let (sender, done) = channel();
        drop(self.0.send(Event::Revision(sender)));
        done
    }

    /// Has all gateways of the group look at its configuration, and waits for them for some seconds: what they say. One that has
    /// not answered the questions before is not waited for as long. Nothing comes if the group ends before.
    pub fn tell_of_shared(&self) -> Receiver<Told> {
        let (sender, told) = channel();
        drop(self.0.send(Event::Tell(sender)));
        told
    }

    /// Asks which gateways of the group are there, and waits for them for some seconds. Nothing comes if the group ends before.
    pub fn roll(&self) -> Receiver<std::result::Result<Vec<Present>, Error>> {
        let (sender, told) = channel();
        drop(self.0.send(Event::Roll(sender)));
        told
    }
}

/// What is to be started by [`begin`]'s thread.
type Start = Box<dyn FnOnce() + Send>;

static STARTER: OnceLock<Mutex<Sender<Start>>> = OnceLock::new();

/// Starts the thread by which all groups of the process are started from now on: they have the limits that the calling
/// thread has now.
///
/// # Errors
/// There is no thread.
pub fn begin() -> io::Result<()> {
    if STARTER.get().is_some() {
        return Ok(());
    }
    let (jobs, work) = channel::<Start>();
    let serve = move || work.iter().for_each(|job| job());
    Builder::new().name("lunet-groups".into()).spawn(serve)?;
    // Two that begin at once have two threads, of which one ends.
    let _ = STARTER.set(Mutex::new(jobs));
    Ok(())
}

/// Starts a thread by the one of [`begin`], if there is one: it has the limits of that, and may connect to a cluster.
///
/// # Errors
/// There is no thread.
pub fn spawn(
    name: &'static str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let start = move || Builder::new().name(name.into()).spawn(work);
    let Some(jobs) = STARTER.get() else { return start() };
    let (sender, started) = channel();
    let job: Start = Box::new(move || drop(sender.send(start())));
    drop(jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job));
    started.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?
}

impl Group {
    /// Starts the thread of a group. `serving` is called on it, first of all.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start<S: Serving + 'static>(
        config: Config,
        serving: impl FnOnce(Handle) -> S + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, events) = channel();
        let handle = Handle(sender);
        let given = handle.clone();
        let thread = spawn("lunet-group", move || {
            let sender = given.0.clone();
            Driver::new(config, events, sender, Box::new(serving(given))).run();
        })?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// What it is told by.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Group {
    /// The gate closes, connections are aborted, locks are given back within a second or not at all. An owner that is to go
    /// without a pause for its initiators is [moved](Order::MoveTo) before.
    fn drop(&mut self) {
        drop(self.handle.0.send(Event::End));
        if let Some(thread) = self.thread.take() {
            // It has failed if it cannot be joined, and there is nothing to be done about that here.
            drop(thread.join());
        }
    }
}

/// A client that is there.
struct Ready {
    session: Arc<Session>,
    /// To the thread that answers notifies: librados may hold it up while there is too much I/O under way.
    answers: SyncSender<(u64, Vec<u8>)>,
}

impl Ready {
    fn new(session: Session) -> Self {
        let session = Arc::new(session);
        let (answers, waiting) = sync_channel::<(u64, Vec<u8>)>(ANSWERS);
        let answering = Arc::clone(&session);
        let thread = Builder::new().name("lunet-group-ack".into()).spawn(move || {
            waiting.iter().for_each(|(notify, answer)| answering.acknowledge(notify, &answer));
        });
        // Without a thread nothing is answered, which is what a gateway that is not there does.
        drop(thread);
        Self { session, answers }
    }
}

struct Driver {
    config: Config,
    gateway: Gateway,
    begun: Instant,
    events: Receiver<Event>,
    sender: Sender<Event>,
    serving: Box<dyn Serving>,
    ready: Option<Ready>,
    /// The client that is being made.
    making: Option<OpId>,
    /// Why there is no client, as it was told last.
    trouble: Option<String>,
    /// As it was told last.
    status: Option<Status>,
    /// When the configuration was looked at last.
    looked: Instant,
    /// Who waits for jobs, by their numbers.
    jobs: BTreeMap<u64, Sender<Outcome>>,
    numbers: u64,
    /// Images are being rolled back.
    rolls: bool,
    /// How often that has begun.
    rolled: u64,
}

impl Driver {
    fn new(
        config: Config,
        events: Receiver<Event>,
        sender: Sender<Event>,
        serving: Box<dyn Serving>,
    ) -> Self {
        Self {
            gateway: Gateway::new(config.gateway, Duration::ZERO),
            config,
            begun: Instant::now(),
            events,
            sender,
            serving,
            ready: None,
            making: None,
            trouble: None,
            status: None,
            looked: Instant::now(),
            jobs: BTreeMap::new(),
            numbers: 0,
            rolls: false,
            rolled: 0,
        }
    }

    fn run(mut self) {
        loop {
            while let Some(action) = self.gateway.action() {
                self.serving.about(&action);
                self.perform(action);
            }
            let status = Some(Status::of(&self.gateway));
            if self.status != status {
                status.iter().for_each(|status| self.serving.status(status));
                self.status = status;
                if let Some(ready) = &self.ready {
                    self.see_sizes(Arc::clone(&ready.session), true);
                }
            }
            let due = self.gateway.timeout().map(|due| due.saturating_sub(self.begun.elapsed()));
            let event = match due.into_iter().chain(self.look()).min() {
                Some(wait) => self.events.recv_timeout(wait),
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let input = match event {
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return self.end(),
                Err(RecvTimeoutError::Timeout) => Some(Input::Tick),
                Ok(Event::Input(input)) => Some(input),
                Ok(Event::Watched(op, watched)) => self.watched(op, watched),
                Ok(Event::OfConfig(op, watched)) => self.of_config(op, watched),
                Ok(Event::Write(shared, done)) => self.write_config(shared, done),
                Ok(Event::Tell(told)) => self.tell_of_config(told),
                Ok(Event::Roll(told)) => {
                    self.beside(told, Session::roll);
                    None
                }
                Ok(Event::Made(op, made)) => self.made(op, *made),
                Ok(Event::Sizes(op, rolled, sizes)) => self.have_sizes((op, rolled), &sizes),
                Ok(Event::LookAtSizes) => self.look_at_sizes(),
                Ok(Event::Rolling(rolls)) => {
                    self.rolled += u64::from(rolls);
                    self.rolls = rolls;
                    self.look_at_sizes()
                }
                Ok(Event::Job(body, limit, outcome)) => Some(self.ordered(body, limit, outcome)),
                Ok(Event::Seen) => {
                    self.serving.seen();
                    None
                }
                Ok(Event::Volumes(volumes)) => self.have(volumes),
                Ok(Event::NotHad(error)) => {
                    self.serving.not_had(&error);
                    None
                }
                Ok(Event::Revision(done)) => {
                    let name = self.config.group.name.clone();
                    self.beside(done, move |session| {
                        let shared = shared::load(&shared::open(session.client(), &name)?, &name)?;
                        Ok(shared.map_or(0, |shared| shared.revision))
                    });
                    None
                }
                Ok(Event::Look(images, done)) => {
                    self.beside(done, move |session| session.may_have(&images).map(drop));
                    None
                }
            };
            if let Some(input) = input {
                self.gateway.handle(self.begun.elapsed(), input);
            }
        }
    }

    /// Nothing is served any more. The record still names this client, if it is the owner: whoever comes next fences it.
    fn end(mut self) {
        self.serving.stop_answering(self.gateway.gate());
        self.serving.abort_connections();
        self.drop_client(true);
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::NewClient(op) => self.make_client(op),
            Action::DropClient { release } => self.drop_client(release),
            Action::ReadRecord(op) => self.ask(op, Session::read),
            Action::Look(op) => self.ask(op, Session::look),
            Action::Blocklist(op, address, limit) => {
                self.ask(op, move |session| session.blocklist(&address, limit));
            }
            Action::WaitForMap(op) => self.ask(op, Session::wait_for_map),
            Action::BreakLock(op, client) => {
                self.ask(op, move |session| session.each(|image| image.break_lock(&client.address)))
            }
            Action::Acquire(op) => self.ask(op, |session| session.each(lunet_rbd::Image::acquire)),
            Action::Refresh(op) => {
                let name = self.config.group.name.clone();
                self.ask(op, move |session| session.refresh(&name));
            }
            Action::Flush(op) => self.ask(op, |session| session.each(lunet_rbd::Image::flush)),
            Action::Release(op) => self.ask(op, |session| session.each(lunet_rbd::Image::release)),
            Action::Swap { op, expect, record } => {
                self.ask(op, move |session| session.swap(expect, &record));
            }
            Action::Notify(op, bytes, limit) => {
                self.ask(op, move |session| session.notify(&bytes, limit));
            }
            Action::Acknowledge(NotifyId(id), bytes) => {
                if let Some(ready) = &self.ready {
                    drop(ready.answers.try_send((id, bytes)));
                }
            }
            other => self.serve(other),
        }
    }

    /// What the server does.
    fn serve(&mut self, action: Action) {
        let serving = &mut self.serving;
        match action {
            Action::Gate(gate) => serving.gate(gate),
            Action::StopAnswering(gate) => serving.stop_answering(gate),
            Action::AbortConnections => serving.abort_connections(),
            Action::Load(record) => serving.load(&record),
            Action::Modes(record) => serving.modes(&record),
            Action::Attention(attention) => serving.attention(attention),
            Action::Preempted(lost) => serving.preempted(&lost),
            Action::Reach(epoch, owner) => serving.reach(epoch, owner),
            Action::Access(epoch, ports, access) => serving.access(epoch, &ports, &access),
            Action::Drain(op) => serving.drain(Drained { op, sender: self.sender.clone() }),
            Action::Execute(request, body) => serving.execute(request, body),
            Action::Apply(request) => serving.apply(request),
            Action::Abandon(request) => serving.abandon(request),
            Action::Answer(id, answer) => serving.answer(id, answer),
            Action::Job(job, body) => serving.job(job, body),
            Action::JobTold(id, outcome) => {
                // Whoever waited may have gone.
                if let Some(waits) = self.jobs.remove(&id) {
                    drop(waits.send(outcome));
                }
            }
            Action::Refuse(order, refusal) => serving.refuse(order, refusal),
            Action::Notice(notice) => serving.notice(&notice),
            Action::Settled => serving.settled(),
            Action::Present(standbys) => serving.present(&standbys),
            Action::NewClient(_)
            | Action::DropClient { .. }
            | Action::ReadRecord(_)
            | Action::Look(_)
            | Action::Blocklist(..)
            | Action::WaitForMap(_)
            | Action::BreakLock(..)
            | Action::Acquire(_)
            | Action::Refresh(_)
            | Action::Flush(_)
            | Action::Release(_)
            | Action::Swap { .. }
            | Action::Notify(..)
            | Action::Acknowledge(..) => unreachable!("the cluster's: `perform` has done it"),
        }
    }

    /// Asks the cluster something, on a thread of its own.
    fn ask(&self, op: OpId, what: impl FnOnce(&Session) -> Result + Send + 'static) {
        // Without a client the operation never ends, and the machine has given it up.
        let Some(ready) = &self.ready else { return };
        let session = Arc::clone(&ready.session);
        let sender = self.sender.clone();
        let asked = (Arc::strong_count(&session) <= MOST_ASKING).then(|| {
            Builder::new().name("lunet-group-ask".into()).spawn(move || {
                let result = what(&session);
                drop(session);
                drop(sender.send(Event::Input(Input::Done(op, result))));
            })
        });
        if !matches!(asked, Some(Ok(_))) {
            drop(self.sender.send(Event::Input(Input::Done(op, Err(NO_THREAD)))));
        }
    }

    fn make_client(&mut self, op: OpId) {
        self.making = Some(op);
        let (config, sender) = (self.config.clone(), self.sender.clone());
        let known = self.gateway.tag();
        let made = Builder::new().name("lunet-group-open".into()).spawn(move || {
            let made = Session::open(&config, op, sender.clone(), known);
            // A client that nobody waits for is closed here, on this thread.
            drop(sender.send(Event::Made(op, Box::new(made))));
        });
        if made.is_err() {
            drop(self.sender.send(Event::Input(Input::Done(op, Err(NO_THREAD)))));
        }
    }

    fn made(&mut self, op: OpId, made: std::result::Result<Session, Error>) -> Option<Input> {
        if self.making != Some(op) {
            made.into_iter().for_each(|session| close(Arc::new(session), false));
            return None;
        }
        self.making = None;
        let taken = made.and_then(|session| {
            let (name, images) = (session.name.clone(), session.images.clone());
            let record = session.record.clone();
            let named = record.contents.volumes.iter();
            let named = named.map(|volume| (volume.image.clone(), volume.bytes)).collect();
            self.ready = Some(Ready::new(session));
            let storage = Storage { client: op, record, images };
            self.serving.storage(Some(storage)).map_err(Error::Refused)?;
            Ok(Reply::Client { name, images: named })
        });
        match taken {
            Ok(reply) => {
                if self.trouble.take().is_some() {
                    self.serving.trouble(None);
                }
                Some(Input::Done(op, Ok(reply)))
            }
            // The machine has more to say about it.
            Err(Error::None(_)) if self.gateway.tag().is_some() => Some(lost(op, Lost::Gone)),
            Err(Error::Anew(_)) => Some(lost(op, Lost::Anew)),
            Err(error) => {
                self.drop_client(false);
                let text = error.to_string();
                if self.trouble.as_ref() != Some(&text) {
                    self.serving.trouble(Some(&error));
                    self.trouble = Some(text);
                }
                Some(Input::Done(op, Err(NO_CLIENT)))
            }
        }
    }

    fn drop_client(&mut self, release: bool) {
        self.making = None;
        let Some(ready) = self.ready.take() else { return };
        // What the server holds on to all the same is given up with the client.
        let _ = self.serving.storage(None);
        close(ready.session, release);
    }

    /// Looks at the configuration of the group and at the sizes of its images, if it is time to. How long until the next time.
    fn look(&mut self) -> Option<Duration> {
        let session = Arc::clone(&self.ready.as_ref()?.session);
        let since = self.looked.elapsed();
        if since < LOOK {
            return Some(LOOK.saturating_sub(since));
        }
        self.looked = Instant::now();
        if self.config.shared.is_some() {
            self.see_config(Arc::clone(&session), |session, group| session.look_at_config(group));
        }
        self.see_sizes(session, false);
        Some(LOOK)
    }

    /// An owner looks at the sizes of its images, if somebody has changed them or `anyway`, on a thread of its own.
    fn see_sizes(&self, session: Arc<Session>, anyway: bool) {
        if self.gateway.condition() != Condition::Owner || self.rolls {
            return;
        }
        let (sender, rolled) = (self.sender.clone(), self.rolled);
        let seen = Builder::new().name("lunet-group-sizes".into()).spawn(move || {
            // What cannot be seen now is looked at the next time.
            let sizes = session.sizes(anyway).unwrap_or_default();
            let op = session.op;
            drop(session);
            if !sizes.larger.is_empty() || !sizes.smaller.is_empty() {
                drop(sender.send(Event::Sizes(op, rolled, sizes)));
            }
        });
        drop(seen);
    }

    fn look_at_sizes(&self) -> Option<Input> {
        if let Some(ready) = &self.ready {
            self.see_sizes(Arc::clone(&ready.session), true);
        }
        None
    }

    /// Images have other sizes than the record says.
    fn have_sizes(&mut self, (op, rolled): (OpId, u64), sizes: &Sizes) -> Option<Input> {
        let ready = self.ready.as_ref().filter(|ready| ready.session.op == op)?;
        if self.rolls || rolled != self.rolled {
            return None;
        }
        let mut volumes = ready.session.record.contents.volumes.clone();
        for (image, size) in &sizes.smaller {
            self.serving.cut_short(image, *size);
        }
        for (image, size) in &sizes.larger {
            let volume = volumes.iter_mut().find(|volume| volume.image == *image)?;
            volume.bytes = *size;
        }
        (!sizes.larger.is_empty()).then_some(Input::Volumes(volumes))
    }

    /// Looks at the configuration on a thread of its own. A gateway that cannot serve by it serves nothing of the group.
    fn see_config(
        &self,
        session: Arc<Session>,
        look: impl FnOnce(&Session, &ImageName) -> std::result::Result<(), Error> + Send + 'static,
    ) {
        let (name, sender) = (self.config.group.name.clone(), self.sender.clone());
        let seen = Builder::new().name("lunet-group-config".into()).spawn(move || {
            let done = look(&session, &name);
            let op = session.op;
            drop(session);
            drop(sender.send(match done {
                Err(Error::NotTaken(_) | Error::Unreadable { .. } | Error::NoShared(_)) => {
                    Event::Input(Input::WatchFailed(op))
                }
                _ => Event::Seen,
            }));
        });
        // Without a thread it is looked at the next time.
        drop(seen);
    }

    fn of_config(&self, op: OpId, watched: Watched) -> Option<Input> {
        let ready = self.ready.as_ref().filter(|ready| ready.session.op == op)?;
        match watched {
            Watched::Failed(_) => return Some(Input::WatchFailed(op)),
            Watched::Notified(notify, _) => {
                self.see_config(Arc::clone(&ready.session), move |session, group| {
                    let done = session.catch_up(group);
                    session.acknowledge_config(notify, &done);
                    done
                });
            }
        }
        None
    }

    fn write_config(
        &self,
        next: Shared,
        done: Sender<std::result::Result<(), Error>>,
    ) -> Option<Input> {
        let name = self.config.group.name.clone();
        self.beside(done, move |session| session.write_config(&name, &next));
        None
    }

    /// An owner is to have these volumes, if nobody uses those that are new.
    fn have(&self, mut volumes: Vec<Volume>) -> Option<Input> {
        let ready = self.ready.as_ref()?;
        let (session, sender) = (Arc::clone(&ready.session), self.sender.clone());
        let looks = Builder::new().name("lunet-group-ask".into()).spawn(move || {
            let known = &session.record.contents.volumes;
            let is_new = |it: &Volume| known.iter().all(|known| known.image != it.image);
            let mut new: Vec<_> = volumes.iter_mut().filter(|it| is_new(it)).collect();
            let images: Vec<_> = new.iter().map(|volume| volume.image.clone()).collect();
            let found = session.may_have(&images);
            if let Ok(found) = &found {
                for (volume, found) in new.iter_mut().zip(found) {
                    (volume.id, volume.bytes) = found.clone();
                }
            }
            drop(session);
            drop(sender.send(match found {
                Ok(_) => Event::Input(Input::Volumes(volumes)),
                Err(error) => Event::NotHad(error),
            }));
        });
        // Without a thread: whoever wants them says so again.
        drop(looks);
        None
    }

    fn ordered(&mut self, body: Vec<u8>, limit: Duration, outcome: Sender<Outcome>) -> Input {
        self.numbers += 1;
        self.jobs.insert(self.numbers, outcome);
        Input::Job(self.numbers, body, limit)
    }

    fn tell_of_config(&self, told: Sender<Told>) -> Option<Input> {
        self.beside(told, Session::tell_of_config);
        None
    }

    /// Does something that the state machine has no part in, on a thread of its own. Whoever waits for it may have gone.
    fn beside<T: Send + 'static>(
        &self,
        sender: Sender<std::result::Result<T, Error>>,
        what: impl FnOnce(&Session) -> std::result::Result<T, Error> + Send + 'static,
    ) {
        let Some(ready) = &self.ready else { return drop(sender.send(Err(Error::NoClient))) };
        let session = Arc::clone(&ready.session);
        // Without a thread the sender goes, and whoever waits is told that nothing comes.
        let thread = Builder::new().name("lunet-group-ask".into()).spawn(move || {
            let result = what(&session);
            drop(session);
            drop(sender.send(result));
        });
        drop(thread);
    }

    fn watched(&self, op: OpId, watched: Watched) -> Option<Input> {
        if self.ready.as_ref().is_none_or(|ready| ready.session.op != op) {
            return None;
        }
        Some(match watched {
            Watched::Notified(id, bytes) => Input::Notified(NotifyId(id), bytes),
            Watched::Failed(_) => Input::WatchFailed(op),
        })
    }
}

/// There is no client, as the record is not there any more.
const fn lost(op: OpId, lost: Lost) -> Input {
    Input::Done(op, Err(Failure::NoRecord(lost)))
}

/// Closes a client on a thread that may wait for the cluster, and waits for its locks at most.
fn close(session: Arc<Session>, release: bool) {
    let (done, released) = channel::<()>();
    let closing = Builder::new().name("lunet-group-close".into()).spawn(move || {
        if release {
            session.release();
        }
        session.give_up();
        drop(done);
        drop(session);
    });
    if closing.is_ok() && release {
        // It ends by the sender's end, or by the time.
        let _ = released.recv_timeout(RELEASE_LIMIT);
    }
}
