//! The admin queue: bringing a controller up, keeping it alive, listening to it.

use super::{Command, Connection, Cx, Data, Error, Event, Finished, Options, Refused, Tag};
use crate::auth::chap::{Computed, Initiator, Job};
use crate::command::{Admin, Completion, Identify, Sqe};
use crate::fabrics::{Authentication, Connected, Fabrics, Property};
use crate::feature::{self, Feature, Queues};
use crate::identify::{self, Cns, IDENTIFY_LEN, TYPE_DISCOVERY};
use crate::rdma::Remote;
use crate::status::Status;
use crate::transmit::{Payload, RxTarget, Transmit};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use thiserror::Error as ThisError;
use zerocopy::FromBytes;

/// CC: entries of 64 and 16 bytes, enabled; with all command sets that the controller has, or the
/// NVM command set alone.
const CC_ENABLE: u64 = 0x0046_0001;
/// CC: all supported command sets.
const CC_ALL_SETS: u64 = 6 << 4;
/// CC: normal shutdown.
const CC_SHUTDOWN: u64 = 1 << 14;
/// CAP: there is Identify for I/O command sets.
const CAP_ALL_SETS: u64 = 1 << 43;
/// How often CSTS is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How long CSTS may take, at least.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a call may write to and report to.
#[derive(Debug)]
pub struct SessionCx<'a, T: Transmit> {
    /// The time, on any clock that never goes back.
    pub now: Duration,
    /// Takes the bytes to send.
    pub tx: &'a mut T,
    /// Takes what happened.
    pub events: &'a mut Vec<SessionEvent<T::Payload>>,
}

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// CNTLID, for the Connects of the I/O queues.
    pub cntlid: u16,
    /// CAP.
    pub capabilities: u64,
    /// VS.
    pub version: u32,
    /// Identify Controller.
    pub identify: identify::Controller,
    /// I/O queues that can be made; 0 at a discovery controller.
    pub queues: u16,
}

impl ControllerInfo {
    /// Data of a capsule that I/O queues take, in bytes: what IOCCSZ says without the entry.
    #[must_use]
    pub fn capsule_data(&self) -> u32 {
        self.identify.ioccsz.get().saturating_mul(16).saturating_sub(64)
    }

    /// Most data of a command, in bytes; `None`: no limit.
    #[must_use]
    pub fn max_data(&self) -> Option<u64> {
        let unit = 12 + (self.capabilities >> 48 & 0xf);
        let shift = unit + u64::from(self.identify.mdts);
        (self.identify.mdts != 0 && shift < 64).then(|| 1 << shift)
    }
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent<W> {
    /// The controller is enabled: commands may be sent, and I/O queues made.
    Ready(Box<ControllerInfo>),
    /// An asynchronous event: which, if it is one of those that are known, and the result. It
    /// comes again when its log page was read.
    Notice(Option<feature::Event>, u32),
    /// A command of the caller ended.
    Finished(Finished<Vec<u8>, W>),
    /// The controller was shut down.
    ShutDown,
    /// The session failed and is over: flush what is to be sent, then close.
    Failed(SessionError),
}

/// Why a session failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum SessionError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] Error),
    /// The host has to authenticate, and has nothing to do that with.
    #[error("the controller wants the host to authenticate")]
    Authentication,
    /// A command of the bring-up failed.
    #[error("the controller answers '{0}' while it is set up")]
    Refused(Status),
    /// The controller reports a fatal status.
    #[error("the controller reports a fatal status")]
    Fatal,
    /// The controller does not become ready, or does not shut down.
    #[error("the controller does not become ready within its own time limit")]
    NotReady,
    /// The controller says of itself what it may not.
    #[error("Identify Controller has a value at byte {0} that it may not have")]
    Identify(u32),
    /// The controller does not answer a Keep Alive.
    #[error("the controller does not answer")]
    KeepAlive,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Capabilities,
    Enable,
    /// Until then CSTS has to be ready.
    WaitReady(Duration),
    Version,
    Identify,
    Queues,
    Events,
    Up,
    ShutDown,
    /// Until then CSTS has to say so.
    WaitShutDown(Duration),
    Over,
}

/// The host's end of an admin queue.
#[derive(Debug)]
pub struct Session<W> {
    connection: Connection<Vec<u8>, W>,
    inner: Vec<Event<Vec<u8>, W>>,
    step: Step,
    info: Box<ControllerInfo>,
    queues: u16,
    kato: Duration,
    /// The command of the step.
    own: Option<Tag>,
    /// Over RDMA: where its data goes.
    own_memory: Option<Remote>,
    /// When CSTS is looked at again.
    poll_at: Option<Duration>,
    /// The Keep Alive that is not answered, and since when.
    asked: Option<(Tag, Duration)>,
    /// When something was last sent.
    sent: Duration,
    /// The Asynchronous Event Request.
    listens: Option<Tag>,
    /// The controller takes no such request.
    silent: bool,
}

impl<W: Payload + Clone> Session<W> {
    /// A session that has sent nothing yet. `options` are those of an admin queue; so many I/O
    /// `queues` are asked for.
    #[must_use]
    pub fn new(options: Options, queues: u16) -> Self {
        Self::with(Connection::new(options.clone()), &options, queues)
    }

    /// A session over RDMA that has sent nothing yet, see [`Connection::over_rdma`].
    #[must_use]
    pub fn over_rdma(options: Options, queues: u16, own: Remote) -> Self {
        let mut session = Self::with(Connection::over_rdma(options.clone(), own), &options, queues);
        session.own_memory = Some(own);
        session
    }

    fn with(connection: Connection<Vec<u8>, W>, options: &Options, queues: u16) -> Self {
        let kato = options.connect.kato;
        let info = ControllerInfo {
            cntlid: 0,
            capabilities: 0,
            version: 0,
            identify: identify::Controller::default(),
            queues: 0,
        };
        Self {
            connection,
            own_memory: None,
            inner: Vec::new(),
            step: Step::Capabilities,
            info: Box::new(info),
            queues: queues.max(1),
            kato,
            own: None,
            poll_at: None,
            asked: None,
            sent: Duration::ZERO,
            listens: None,
            silent: false,
        }
    }

    /// Has the host prove itself, see [`Connection::authenticate`].
    pub fn authenticate(&mut self, initiator: Initiator) {
        self.connection.authenticate(initiator);
    }

    /// What is to be computed, see [`Connection::take_job`].
    pub fn take_job(&mut self) -> Option<Job> {
        self.connection.take_job()
    }

    /// What came of the [`Job`].
    pub fn computed<T: Transmit<Payload = W>>(
        &mut self,
        computed: Computed,
        cx: &mut SessionCx<'_, T>,
    ) {
        let mut inner = Cx { now: cx.now, tx: &mut *cx.tx, events: &mut self.inner };
        self.connection.computed(computed, &mut inner);
        self.work(cx);
    }

    /// Sends the ICReq. Call it once, when the transport is connected.
    pub fn start<T: Transmit<Payload = W>>(&mut self, now: Duration, tx: &mut T) {
        self.sent = now;
        self.connection.start(now, tx);
    }

    /// True while commands of the caller are taken.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.step == Step::Up && self.connection.is_ready()
    }

    /// True if the controller has answered the ICReq, see [`Connection::was_initialized`].
    #[must_use]
    pub fn was_initialized(&self) -> bool {
        self.connection.was_initialized()
    }

    /// MAXH2CDATA, see [`Connection::max_h2c_data`].
    #[must_use]
    pub fn max_h2c_data(&self) -> u32 {
        self.connection.max_h2c_data()
    }

    /// True when the session is over: close the transport.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    /// Sends a command; it ends with one [`SessionEvent::Finished`]. The controller has to be
    /// [up](Self::is_up).
    ///
    /// # Errors
    /// It was not sent; its data is given back.
    pub fn submit<T: Transmit<Payload = W>>(
        &mut self,
        command: Command<Vec<u8>, W>,
        now: Duration,
        tx: &mut T,
    ) -> Result<Tag, Refused<Vec<u8>, W>> {
        self.submit_rdma(command, None, now, tx)
    }

    /// Sends a command whose data is in `memory`, see [`Connection::submit_rdma`].
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_rdma<T: Transmit<Payload = W>>(
        &mut self,
        command: Command<Vec<u8>, W>,
        memory: Option<Remote>,
        now: Duration,
        tx: &mut T,
    ) -> Result<Tag, Refused<Vec<u8>, W>> {
        if !self.is_up() {
            return Err(Refused { error: super::SubmitError::NotReady, data: command.data });
        }
        self.sent = now;
        self.connection.submit_rdma(command, memory, tx)
    }

    /// Shuts the controller down.
    pub fn shut_down<T: Transmit<Payload = W>>(&mut self, cx: &mut SessionCx<'_, T>) {
        if self.is_up() {
            self.go(Step::ShutDown, cx);
        }
    }

    /// The buffer that the next bytes of the stream belong into, see
    /// [`Connection::take_rx_target`].
    pub fn take_rx_target(&mut self) -> Option<RxTarget<Vec<u8>>> {
        self.connection.take_rx_target()
    }

    /// Gives a buffer back: `n` bytes of its range were filled.
    pub fn rx_payload<T: Transmit<Payload = W>>(
        &mut self,
        target: RxTarget<Vec<u8>>,
        n: usize,
        cx: &mut SessionCx<'_, T>,
    ) {
        let mut inner = Cx { now: cx.now, tx: &mut *cx.tx, events: &mut self.inner };
        self.connection.rx_payload(target, n, &mut inner);
        self.work(cx);
    }

    /// Takes received bytes, all of them.
    pub fn rx_bytes<T: Transmit<Payload = W>>(&mut self, bytes: &[u8], cx: &mut SessionCx<'_, T>) {
        let mut inner = Cx { now: cx.now, tx: &mut *cx.tx, events: &mut self.inner };
        self.connection.rx_bytes(bytes, &mut inner);
        self.work(cx);
    }

    /// A Send has come, see [`Connection::rx_send`].
    pub fn rx_send<T: Transmit<Payload = W>>(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
        cx: &mut SessionCx<'_, T>,
    ) {
        let mut inner = Cx { now: cx.now, tx: &mut *cx.tx, events: &mut self.inner };
        self.connection.rx_send(message, invalidated, &mut inner);
        self.work(cx);
    }

    /// The transport was closed or failed.
    pub fn transport_closed<T: Transmit<Payload = W>>(&mut self, cx: &mut SessionCx<'_, T>) {
        self.connection.transport_closed(&mut self.inner);
        self.work(cx);
    }

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let keep_alive = match (self.asked, self.step) {
            (Some((_, since)), _) => Some(since.saturating_add(self.kato)),
            (None, Step::Up) if !self.kato.is_zero() => {
                // Half of it is what Linux takes; what is on its way has the other half.
                Some(self.sent.saturating_add(self.kato / 2))
            }
            _ => None,
        };
        [self.connection.poll_timeout(), self.poll_at, keep_alive].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout<T: Transmit<Payload = W>>(&mut self, cx: &mut SessionCx<'_, T>) {
        if self.poll_timeout().is_none_or(|at| cx.now < at) {
            return;
        }
        self.connection.handle_timeout(cx.now, &mut self.inner);
        if self.poll_at.is_some_and(|at| cx.now >= at) {
            self.poll_at = None;
            self.go(self.step, cx);
        }
        match self.asked {
            Some((_, since)) if cx.now >= since.saturating_add(self.kato) => {
                return self.fail(SessionError::KeepAlive, cx);
            }
            None if self.step == Step::Up && cx.now >= self.sent.saturating_add(self.kato / 2) => {
                self.keep_alive(cx);
            }
            _ => {}
        }
        self.work(cx);
    }

    fn keep_alive<T: Transmit<Payload = W>>(&mut self, cx: &mut SessionCx<'_, T>) {
        let command = Command { token: 0, sqe: Admin::KeepAlive.encode(0), data: Data::None };
        if self.kato.is_zero() {
            return;
        }
        // A full queue is a sign of life by itself.
        self.sent = cx.now;
        if let Ok(tag) = self.connection.submit(command, cx.tx) {
            self.asked = Some((tag, cx.now));
        }
    }

    /// Sends the command of a step.
    fn send<T: Transmit<Payload = W>>(&mut self, sqe: Sqe, read: usize, cx: &mut SessionCx<'_, T>) {
        let data = if read > 0 { Data::Read(vec![0; read]) } else { Data::None };
        self.sent = cx.now;
        let command = Command { token: 0, sqe, data };
        self.own = self.connection.submit_rdma(command, self.own_memory, cx.tx).ok();
        if self.own.is_none() {
            // The queue is full of the caller's commands.
            self.poll_at = Some(cx.now.saturating_add(POLL));
        }
    }

    /// Begins a step.
    fn go<T: Transmit<Payload = W>>(&mut self, step: Step, cx: &mut SessionCx<'_, T>) {
        self.step = step;
        let get = |property| Fabrics::PropertyGet { property }.encode();
        let set =
            |value| Fabrics::PropertySet { property: Property::Configuration, value }.encode();
        let sets = if self.info.capabilities & CAP_ALL_SETS != 0 { CC_ALL_SETS } else { 0 };
        let feature = |feature: Feature, value: u32| {
            Admin::SetFeatures { fid: feature.code(), save: false, value: [value, 0] }.encode(0)
        };
        let (sqe, read) = match step {
            Step::Capabilities => (get(Property::Capabilities), 0),
            Step::Enable => (set(CC_ENABLE | sets), 0),
            Step::WaitReady(_) | Step::WaitShutDown(_) => (get(Property::Status), 0),
            Step::Version => (get(Property::Version), 0),
            Step::Identify => {
                let identify = Identify { cns: Cns::Controller.code(), cntid: 0, csi: 0 };
                (Admin::Identify(identify).encode(0), IDENTIFY_LEN)
            }
            Step::Queues => {
                let queues = Queues { submission: self.queues, completion: self.queues };
                (feature(Feature::Queues, queues.encode()), 0)
            }
            Step::Events => {
                let events =
                    feature::EVENT_NAMESPACES | feature::EVENT_ANA | feature::EVENT_DISCOVERY;
                (feature(Feature::Events, events & self.info.identify.oaes.get()), 0)
            }
            Step::ShutDown => (set(CC_ENABLE | sets | CC_SHUTDOWN), 0),
            Step::Up => {
                cx.events.push(SessionEvent::Ready(self.info.clone()));
                return;
            }
            Step::Over => return,
        };
        self.send(sqe, read, cx);
    }

    /// Asks for the next event.
    fn listen<T: Transmit<Payload = W>>(&mut self, cx: &mut SessionCx<'_, T>) {
        let sqe = Admin::AsyncEventRequest.encode(0);
        self.listens =
            self.connection.submit(Command { token: 0, sqe, data: Data::None }, cx.tx).ok();
    }

    /// Handles what the connection reported.
    fn work<T: Transmit<Payload = W>>(&mut self, cx: &mut SessionCx<'_, T>) {
        while !self.inner.is_empty() {
            for event in core::mem::take(&mut self.inner) {
                match event {
                    Event::Connected(connected) => self.connected(connected, cx),
                    Event::Finished(finished) => self.finished(finished, cx),
                    Event::Failed(error) => self.fail(error.into(), cx),
                }
            }
        }
        if self.is_up() && self.listens.is_none() && !self.silent {
            self.listen(cx);
        }
    }

    fn connected<T: Transmit<Payload = W>>(
        &mut self,
        connected: Connected,
        cx: &mut SessionCx<'_, T>,
    ) {
        if connected.authentication != Authentication::None {
            return self.fail(SessionError::Authentication, cx);
        }
        self.info.cntlid = connected.cntlid;
        self.go(Step::Capabilities, cx);
    }

    fn finished<T: Transmit<Payload = W>>(
        &mut self,
        mut finished: Finished<Vec<u8>, W>,
        cx: &mut SessionCx<'_, T>,
    ) {
        let tag = Some(finished.tag);
        if self.asked.is_some_and(|(asked, _)| Some(asked) == tag) {
            self.asked = None;
        } else if self.listens == tag {
            self.listens = None;
            self.heard(finished.completion, cx);
        } else if self.own == tag {
            self.own = None;
            if let Some(completion) = finished.completion {
                if let (Some(_), Data::Read(buf)) = (self.own_memory, &mut finished.data) {
                    cx.tx.kept(buf);
                }
                if let Err(error) = self.step_done(completion, &finished.data, cx) {
                    self.fail(error, cx);
                }
            }
        } else {
            cx.events.push(SessionEvent::Finished(finished));
        }
    }

    /// An Asynchronous Event Request was answered.
    fn heard<T: Transmit<Payload = W>>(
        &mut self,
        completion: Option<Completion>,
        cx: &mut SessionCx<'_, T>,
    ) {
        let Some(completion) = completion else { return };
        self.silent = !completion.status.is_success();
        if !self.silent {
            let result = completion.result as u32;
            cx.events.push(SessionEvent::Notice(feature::Event::decode(result), result));
        }
    }

    /// The command of the step has completed.
    fn step_done<T: Transmit<Payload = W>>(
        &mut self,
        Completion { result, status }: Completion,
        data: &Data<Vec<u8>, W>,
        cx: &mut SessionCx<'_, T>,
    ) -> Result<(), SessionError> {
        // A discovery controller may have no events.
        if !status.is_success() && self.step != Step::Events {
            return Err(SessionError::Refused(status));
        }
        // CAP.TO is in units of 500 ms.
        let limit = Duration::from_millis((self.info.capabilities >> 24 & 0xff) * 500);
        let patience = limit.max(PATIENCE);
        let next = match self.step {
            Step::Capabilities => {
                self.info.capabilities = result;
                Step::Enable
            }
            Step::Enable => Step::WaitReady(cx.now.saturating_add(patience)),
            Step::WaitReady(_) if result & 2 != 0 => return Err(SessionError::Fatal),
            Step::WaitReady(_) if result & 1 != 0 => Step::Version,
            Step::WaitShutDown(_) if result >> 2 & 3 == 2 => {
                self.step = Step::Over;
                cx.events.push(SessionEvent::ShutDown);
                return Ok(());
            }
            Step::WaitReady(by) | Step::WaitShutDown(by) => {
                self.poll_at = Some(cx.now.saturating_add(POLL));
                return if cx.now < by { Ok(()) } else { Err(SessionError::NotReady) };
            }
            Step::Version => {
                self.info.version = result as u32;
                Step::Identify
            }
            Step::Identify => {
                self.check_identify(data)?;
                match self.info.identify.cntrltype {
                    TYPE_DISCOVERY => Step::Events,
                    _ => Step::Queues,
                }
            }
            Step::Queues => {
                let granted = Queues::decode(result as u32).ok_or(SessionError::Fatal)?;
                let granted = granted.submission.min(granted.completion);
                self.info.queues = granted.min(self.queues);
                Step::Events
            }
            Step::Events => Step::Up,
            Step::ShutDown => Step::WaitShutDown(cx.now.saturating_add(patience)),
            Step::Up | Step::Over => return Ok(()),
        };
        self.go(next, cx);
        Ok(())
    }

    /// Takes Identify Controller, and insists on what Linux insists on.
    fn check_identify(&mut self, data: &Data<Vec<u8>, W>) -> Result<(), SessionError> {
        let page = match data {
            Data::Read(bytes) => identify::Controller::read_from_prefix(bytes).ok(),
            _ => None,
        };
        let (page, _) = page.ok_or(SessionError::Identify(0))?;
        let discovery = page.cntrltype == TYPE_DISCOVERY;
        let wrong = [
            (78, page.cntlid.get() != self.info.cntlid),
            (320, page.kas.get() == 0 && !self.kato.is_zero() && !discovery),
            (1792, page.ioccsz.get() < 4 && !discovery),
            (1796, page.iorcsz.get() < 1 && !discovery),
            (1800, page.icdoff.get() != 0),
        ];
        if let Some((offset, _)) = wrong.into_iter().find(|(_, wrong)| *wrong) {
            return Err(SessionError::Identify(offset));
        }
        self.info.identify = page;
        Ok(())
    }

    fn fail<T: Transmit<Payload = W>>(&mut self, error: SessionError, cx: &mut SessionCx<'_, T>) {
        if self.step == Step::Over {
            return;
        }
        self.step = Step::Over;
        // The caller's commands come back before.
        self.connection.transport_closed(&mut self.inner);
        for event in core::mem::take(&mut self.inner) {
            if let Event::Finished(finished) = event {
                self.finished(finished, cx);
            }
        }
        cx.events.push(SessionEvent::Failed(error));
    }
}
