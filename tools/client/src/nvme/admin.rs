//! An admin queue that waits for each answer: bringing a controller up, questions to it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use lunet_nvme::command::{Admin as Question, GetLog, Identify, Sqe};
use lunet_nvme::digest::Crc32c;
use lunet_nvme::fabrics::ANY_CONTROLLER;
use lunet_nvme::host::{Command, ControllerInfo, Data, Session, SessionCx, SessionEvent};
use lunet_nvme::identify::{Cns, IDENTIFY_LEN};
use lunet_nvme::log::LogPage;
use lunet_nvme::transmit::Payload;

use super::error::Parties;
use super::login::Wanted;
use super::wire::{Came, Deadline, Plain, Wire, Woken};
use super::{Error, Failure, Login, Target};
use crate::rdma::Message;

/// Entries of the admin queue.
const ENTRIES: u16 = 32;

/// The most that is read of a log page at once, in bytes, if MDTS allows it.
const LOG_PIECE: u64 = 1 << 20;

/// Time for a controller to shut down; then it is left as it is.
const SHUT_DOWN: Duration = Duration::from_secs(2);

/// Data to send, of which an admin queue has none here: messages of the authentication are the
/// protocol's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoData(Infallible);

impl Payload for NoData {
    fn crc32c(&self, _: Range<usize>, _: &mut Crc32c) {
        match self.0 {}
    }
}

impl AsRef<[u8]> for NoData {
    fn as_ref(&self) -> &[u8] {
        match self.0 {}
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it failed, if it did.
    pub failure: Option<Failure>,
    /// What was read.
    pub data: Vec<u8>,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// From the command to its completion.
    pub took: Duration,
}

impl Answer {
    /// What was read, or how it failed.
    ///
    /// # Errors
    /// It failed.
    pub fn good(self) -> Result<Vec<u8>, Failure> {
        self.failure.map_or(Ok(self.data), Err)
    }
}

/// A controller that is enabled.
pub struct Admin {
    wire: Wire,
    session: Session<NoData>,
    info: Box<ControllerInfo>,
    nqn: String,
    host: String,
}

impl Admin {
    /// Connects to the subsystem of this name, and enables a controller for so many I/O queues.
    ///
    /// # Errors
    /// There is no such subsystem, or it does not want this host.
    pub fn open(target: &Target, login: &Login, nqn: &str, queues: u16) -> Result<Self, Error> {
        let wanted = Wanted { qid: 0, cntlid: ANY_CONTROLLER, entries: ENTRIES, capsule_data: 0 };
        let parties = Parties { host: &login.host_nqn, subsystem: nqn, greeted: false };
        let options = login.options(target, nqn, wanted);
        let mut wire = Wire::connect(None, target, &parties, &options, Instant::now())?;
        let mut out = Plain::default();
        let mut session = match wire.own(&mut out) {
            Some(own) => Session::over_rdma(options, queues, own),
            None => Session::new(options, queues),
        };
        if let Some(initiator) = login.initiator(target, nqn)? {
            session.authenticate(initiator);
        }
        session.start(wire.now(), &mut out);
        loop {
            let deadline = wire.deadline();
            let events = exchange(&mut wire, &mut session, &mut out, deadline)?;
            for event in events {
                match event {
                    SessionEvent::Ready(info) => {
                        let (nqn, host) = (nqn.to_owned(), login.host_nqn.clone());
                        return Ok(Self { wire, session, info, nqn, host });
                    }
                    SessionEvent::Failed(error) => {
                        // Why it is given up; whether that arrives does not matter.
                        let _ = wire.send(&mut out);
                        let greeted = target.rdma || session.was_initialized();
                        let parties = Parties { greeted, ..parties };
                        return Err(parties.session(error));
                    }
                    _ => {}
                }
            }
        }
    }

    /// What the controller says of itself.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// MAXH2CDATA: most data of a PDU that the controller takes, in bytes.
    #[must_use]
    pub fn max_h2c_data(&self) -> u32 {
        self.session.max_h2c_data()
    }

    /// Sends a Keep Alive, which the controller itself answers; how long that took.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn ping(&mut self) -> Result<Duration, Error> {
        Ok(self.ask(Question::KeepAlive.encode(0), 0)?.took)
    }

    /// True over RDMA.
    #[must_use]
    pub const fn is_rdma(&self) -> bool {
        self.wire.is_rdma()
    }

    /// The subsystem's NQN.
    #[must_use]
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The address that answered.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.wire.address()
    }

    /// True if the controller is on this machine, by the addresses of both ends.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn is_local(&self) -> Result<bool, Error> {
        self.wire.is_local()
    }

    /// Answers are waited for no longer than until then.
    pub fn end_by(&mut self, end: Instant) {
        self.wire.end = Some(end);
    }

    /// An I/O queue of the controller, with no more entries than it takes.
    pub(super) fn wanted(&self, qid: u16, entries: u16) -> Result<Wanted, Error> {
        wanted(&self.info, qid, entries)
    }

    /// Sends a command that reads `len` bytes.
    ///
    /// # Errors
    /// The connection has ended; a status is an [`Answer`].
    pub fn ask(&mut self, sqe: Sqe, len: usize) -> Result<Answer, Error> {
        let mut out = Plain::default();
        let data = if len > 0 { Data::Read(vec![0; len]) } else { Data::None };
        let sent = Instant::now();
        let command = Command { token: 0, sqe, data };
        let memory = self.wire.room(len)?;
        let tag = self.session.submit_rdma(command, memory, self.wire.now(), &mut out);
        let tag = tag.map_err(|refused| refused.error)?;
        let deadline = self.wire.deadline();
        loop {
            for event in exchange(&mut self.wire, &mut self.session, &mut out, deadline)? {
                match event {
                    SessionEvent::Finished(finished) if finished.tag == tag => {
                        let failure = Failure::of(finished.completion);
                        let result = finished.completion.map_or(0, |done| done.result);
                        let data = match finished.data {
                            Data::Read(mut bytes) if failure.is_none() => {
                                self.wire.answer(&mut bytes);
                                bytes
                            }
                            _ => Vec::new(),
                        };
                        return Ok(Answer { failure, data, result, took: sent.elapsed() });
                    }
                    SessionEvent::Failed(error) => {
                        let (host, subsystem) = (&*self.host, &*self.nqn);
                        return Err(Parties { host, subsystem, greeted: true }.session(error));
                    }
                    _ => {}
                }
            }
        }
    }

    /// A data structure of Identify.
    ///
    /// # Errors
    /// The connection has ended; a status is a [`Failure`].
    pub fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Result<Vec<u8>, Failure>, Error> {
        let identify = Identify { cns: cns.code(), cntid: 0, csi: 0 };
        let sqe = Question::Identify(identify).encode(nsid);
        self.ask(sqe, IDENTIFY_LEN).map(Answer::good)
    }

    /// The first `len` bytes of a log page, rounded up to whole dwords.
    ///
    /// # Errors
    /// The connection has ended; a status is a [`Failure`].
    pub fn log(&mut self, page: LogPage, len: u64) -> Result<Result<Vec<u8>, Failure>, Error> {
        let mut all = Vec::new();
        let len = len.next_multiple_of(4);
        // In one piece where that is allowed: what lies behind the end of a page cannot be asked for.
        let most = self.info.max_data().map_or(LOG_PIECE, |most| most.min(LOG_PIECE));
        while (all.len() as u64) < len {
            let (lid, offset) = (page.code(), all.len() as u64);
            let piece = (len - offset).min(most);
            let log = GetLog { lid, specific: 0, retain: true, len: piece, offset, csi: 0 };
            match self.ask(Question::GetLogPage(log).encode(0), piece as usize)?.good() {
                Ok(bytes) => all.extend_from_slice(&bytes),
                Err(failure) => return Ok(Err(failure)),
            }
        }
        Ok(Ok(all))
    }

    /// Sends what is to be sent, and handles what comes before `wake`. False when the controller is
    /// over.
    pub(super) fn tend(&mut self, out: &mut Plain<NoData>) -> Result<bool, Error> {
        let deadline = self.wire.deadline();
        let over = |event: &SessionEvent<NoData>| {
            matches!(event, SessionEvent::Failed(_) | SessionEvent::ShutDown)
        };
        let events = exchange(&mut self.wire, &mut self.session, out, deadline)?;
        Ok(!events.iter().any(over))
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, out: &mut Plain<NoData>) -> Result<bool, Error> {
        let (now, mut events) = (self.wire.now(), Vec::new());
        self.session.handle_timeout(&mut SessionCx { now, tx: out, events: &mut events });
        self.wire.send(out)?;
        Ok(!self.session.is_over())
    }

    /// How long nothing is due.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        self.session.poll_timeout().map(|at| at.saturating_sub(self.wire.now()))
    }

    /// Waits for something to come, for so long, or for `other` to be readable.
    pub(super) fn wait(&mut self, other: BorrowedFd<'_>, time: Duration) -> Result<Woken, Error> {
        self.wire.wait(other, time)
    }

    /// Shuts the controller down. Whether it answers does not matter any more.
    pub fn close(mut self) {
        let mut out = Plain::default();
        let (now, mut events) = (self.wire.now(), Vec::new());
        self.session.shut_down(&mut SessionCx { now, tx: &mut out, events: &mut events });
        self.end_by(Instant::now() + SHUT_DOWN);
        while let Ok(true) = self.tend(&mut out) {}
    }
}

/// An I/O queue of a controller, with no more entries than it takes.
pub(super) fn wanted(info: &ControllerInfo, qid: u16, entries: u16) -> Result<Wanted, Error> {
    if info.queues == 0 {
        return Err(Error::NoQueues);
    }
    // CAP.MQES, 0's based.
    let most = (info.capabilities as u16).saturating_add(1);
    let (cntlid, capsule_data) = (info.cntlid, info.capsule_data());
    Ok(Wanted { qid, cntlid, entries: entries.min(most).max(2), capsule_data })
}

/// Sends what is to be sent, waits for something to come or to be due, and computes what is to be
/// computed.
fn exchange(
    wire: &mut Wire,
    session: &mut Session<NoData>,
    out: &mut Plain<NoData>,
    deadline: Deadline,
) -> Result<Vec<SessionEvent<NoData>>, Error> {
    wire.send(out)?;
    let mut events = Vec::new();
    let wake = session.poll_timeout();
    match wire.receive(deadline, wake)? {
        Some((now, Came::End)) => {
            session.transport_closed(&mut SessionCx { now, tx: out, events: &mut events });
        }
        Some((now, Came::Bytes(bytes))) => {
            session.rx_bytes(bytes, &mut SessionCx { now, tx: out, events: &mut events });
        }
        Some((now, Came::Message(Message { buf, len, invalidated }))) => {
            let mut cx = SessionCx { now, tx: out, events: &mut events };
            session.rx_send(&buf[..len], invalidated, &mut cx);
            wire.repost(buf);
        }
        None => {
            let now = wire.now();
            session.handle_timeout(&mut SessionCx { now, tx: out, events: &mut events });
        }
    }
    if let Some(job) = session.take_job() {
        let computed = job.compute();
        let now = wire.now();
        session.computed(computed, &mut SessionCx { now, tx: out, events: &mut events });
    }
    Ok(events)
}
