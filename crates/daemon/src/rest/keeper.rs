//! The server's end: starts the process of the interface, answers it, and starts another one when it has ended.
//!
//! Nothing here ends or holds up the server: a process that cannot be started, hangs or talks nonsense costs the interface,
//! and a bounded time at the server's end.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lunet_control::AuditEntry;

use super::link::{self, Ask, Down, Reply, Setup, Up};
use super::{answers, told};
use crate::helper::{self, Rest};
use crate::log;
use crate::running::Asked;

/// How long the start of the server waits for the first process to serve.
const GREETING: Duration = Duration::from_secs(30);

/// How long the end waits for the process to write down what it was told, and to say good-bye.
const FAREWELL: Duration = Duration::from_secs(4);

/// How long a process that says nothing more has to end; and again, after it was killed.
const REAPED: Duration = Duration::from_secs(1);

/// How long one that has ended is away, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// One that has served so long had no trouble at its start.
const SETTLED: Duration = Duration::from_secs(60);

/// Entries of the audit log that may wait until a process has written them.
const WAITING: usize = 4096;

/// Questions that are answered at one time, or whose answers wait to be sent: more than the process asks.
const QUESTIONS: usize = 64;

/// Kinds of lists that wait to be told of.
const CHANGES: usize = 64;

/// The process of a running server's interface. It ends when this is dropped.
pub struct Interface {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the interface what happens in the server, as long as there is one. Whom the interface asks has it: it keeps nothing
/// alive, or the server's volumes would never be closed.
#[derive(Clone)]
pub struct Teller(Weak<Shared>);

struct Shared {
    service: Asked,
    setup: Setup,
    urls: Vec<String>,
    /// What the user is told besides, once it serves.
    more: Vec<String>,
    state: Mutex<State>,
    /// There is something to send, or this is the end, of a process or of all.
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// Answers to the process of now, and lists that have changed.
    queue: VecDeque<Down>,
    /// Of these, lists.
    changes: usize,
    /// Entries of the audit log that no process has said to have written.
    entries: VecDeque<AuditEntry>,
    /// The number of the first of them.
    first: u64,
    /// So many of them were sent to the process of now.
    sent: usize,
    /// Questions that are being answered, or whose answer is in the queue.
    questions: usize,
    /// The way to the process that runs, if one does.
    stream: Option<Arc<UnixStream>>,
    stop: bool,
}

impl State {
    /// What is to be sent next.
    fn next(&mut self) -> Option<Down> {
        if let Some(message) = self.queue.pop_front() {
            self.changes -= usize::from(matches!(message, Down::Changed(_)));
            return Some(message);
        }
        let entry = self.entries.get(self.sent)?.clone();
        self.sent += 1;
        Some(Down::Entry(self.first + self.sent as u64 - 1, entry))
    }

    /// Entries up to this number are on stable storage.
    fn written(&mut self, last: u64) {
        while self.first <= last && self.sent > 0 {
            self.entries.pop_front();
            (self.first, self.sent) = (self.first + 1, self.sent - 1);
        }
    }

    /// A process is gone: the next one is sent what was not written, and knows nothing of what this one has asked.
    fn settle(&mut self) {
        self.stream = None;
        self.sent = 0;
        let replies = |message: &Down| matches!(message, Down::Reply(..));
        self.questions -= self.queue.iter().filter(|message| replies(message)).count();
        self.changes = 0;
        self.queue.clear();
    }

    fn is_of(&self, stream: &Arc<UnixStream>) -> bool {
        self.stream.as_ref().is_some_and(|now| Arc::ptr_eq(now, stream))
    }
}

/// What the user is told of the start of the first process.
type First = SyncSender<Result<Option<String>, String>>;

impl Interface {
    /// Starts the process, and waits until it serves, within a limit. The result has what the user is told: the code of
    /// the first start, while there is no account; or why it does not serve yet, which is tried again.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        service: Asked,
        setup: Setup,
        sockets: Vec<OwnedFd>,
        (urls, more): (Vec<String>, Vec<String>),
    ) -> Result<(Self, Result<Option<String>, String>)> {
        let (state, moved) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { service, setup, urls, more, state, moved });
        let (first, started) = sync_channel(1);
        let here = Arc::clone(&shared);
        // The sockets are its own: nobody connects any more when it has ended.
        let thread = lunet_os::thread::spawn("rest", move || here.keep(&sockets, first))
            .context("cannot start the thread of the REST interface")?;
        let interface = Self { shared, thread: Some(thread) };
        let told = started.recv_timeout(GREETING).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err("its process does not answer yet".to_owned()),
            RecvTimeoutError::Disconnected => Err("its thread has ended".to_owned()),
        });
        Ok((interface, told))
    }

    /// Somebody who tells it what happens.
    pub fn teller(&self) -> Teller {
        Teller(Arc::downgrade(&self.shared))
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.moved.notify_all();
        // What waits for it is for the audit log.
        let is_there = |state: &mut State| state.stream.is_some();
        let waited = self.shared.moved.wait_timeout_while(self.shared.state(), FAREWELL, is_there);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &state.stream {
            tracing::warn!("the process of the REST interface does not end: it is killed");
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        let Some(thread) = self.thread.take() else { return };
        // Longer than a process is waited for.
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < 3 * REAPED {
            thread::sleep(Duration::from_millis(5));
        }
        self.shared.state().entries.drain(..).for_each(|entry| lost(&entry));
    }
}

/// Says what the audit log does not have.
fn lost(entry: &AuditEntry) {
    let AuditEntry { who, what, outcome, .. } = entry;
    tracing::warn!("this is not in the audit log of the REST interface: {who}: {what}: {outcome}");
}

impl Teller {
    /// Lists are different, though nobody has asked for it. Nobody is waited for.
    pub fn differs(&self, lists: &[&str]) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut state = shared.state();
        if state.changes >= CHANGES || state.stop || state.stream.is_none() {
            return;
        }
        state.changes += 1;
        state.queue.push_back(Down::Changed(lists.iter().map(ToString::to_string).collect()));
        drop(state);
        shared.moved.notify_all();
    }

    /// A change was asked for, and done if there are lists that it has changed. Nobody is waited for.
    pub fn changed(&self, lists: &[&str], entry: AuditEntry) {
        let Some(shared) = self.0.upgrade() else { return lost(&entry) };
        let mut state = shared.state();
        if state.entries.len() >= WAITING || state.stop {
            drop(state);
            return lost(&entry);
        }
        state.entries.push_back(entry);
        if !lists.is_empty() && state.changes < CHANGES {
            state.changes += 1;
            state.queue.push_back(Down::Changed(lists.iter().map(ToString::to_string).collect()));
        }
        drop(state);
        shared.moved.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a process serve until the end.
    fn keep(self: &Arc<Self>, sockets: &[OwnedFd], first: First) {
        let (mut first, mut pause) = (Some(first), PAUSE.0);
        loop {
            let begun = Instant::now();
            let ended = match self.serve(sockets, &mut first) {
                Ok(ended) => ended,
                Err(error) => format!("{error:#}"),
            };
            if begun.elapsed() > SETTLED {
                pause = PAUSE.0;
            }
            let state = self.state();
            if state.stop {
                return;
            }
            if helper::has_ended() {
                return self.give_up(state, first.take(), ended);
            }
            match first.take() {
                Some(first) => drop(first.send(Err(ended))),
                None => tracing::warn!(
                    "the process of the REST interface has ended ({ended}), volumes are served as before: it is \
                     started again in {} s",
                    pause.as_secs_f32()
                ),
            }
            let waited = self.moved.wait_timeout_while(state, pause, |state| !state.stop);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Nobody can start a process any more. With the end of this thread the sockets are closed, so that clients are refused
    /// and do not wait.
    fn give_up(&self, mut state: MutexGuard<'_, State>, first: Option<First>, ended: String) {
        // What would be written to the audit log is told in the log.
        state.stop = true;
        state.entries.drain(..).for_each(|entry| lost(&entry));
        drop(state);
        tracing::error!(
            "the helper process has ended: there is no REST interface and no page until lunet is restarted, and new devices \
             and volumes of ZFS are not opened. Volumes are served as before, and commands work on the control socket. \
             `systemctl restart lunet`: sessions come back at once"
        );
        let _ = first.map(|first| first.send(Err(ended)));
    }

    /// Starts a process and answers it until it ends. Says how it has ended.
    fn serve(self: &Arc<Self>, sockets: &[OwnedFd], first: &mut Option<First>) -> Result<String> {
        let (here, there) = UnixStream::pair()?;
        let process = Rest::start(there.into())?;
        let talked = self.talk(here, sockets, first);
        self.state().settle();
        self.moved.notify_all();
        let status = process.reap()?;
        talked.map(|()| status)
    }

    fn talk(
        self: &Arc<Self>,
        stream: UnixStream,
        sockets: &[OwnedFd],
        first: &mut Option<First>,
    ) -> Result<()> {
        link::send_sockets(&stream, sockets)?;
        link::send(&stream, &Down::Setup(Box::new(self.setup.clone())))?;
        let stream = Arc::new(stream);
        let mut state = self.state();
        if state.stop {
            return Ok(());
        }
        state.stream = Some(Arc::clone(&stream));
        drop(state);
        let (shared, way) = (Arc::clone(self), Arc::clone(&stream));
        let writer = lunet_os::thread::spawn("rest-out", move || shared.write(&way))?;
        let heard = self.hear(&stream, first);
        let _ = stream.shutdown(Shutdown::Both);
        self.state().settle();
        self.moved.notify_all();
        let _ = writer.join();
        heard
    }

    /// Does what the process says, until it is gone.
    fn hear(self: &Arc<Self>, stream: &Arc<UnixStream>, first: &mut Option<First>) -> Result<()> {
        loop {
            match link::receive(stream) {
                Ok(Up::Started(code)) => {
                    let late =
                        first.take().is_none_or(|first| first.send(Ok(code.clone())).is_err());
                    if late {
                        let lines = told(&self.urls, code.as_deref());
                        lines.iter().chain(&self.more).for_each(|line| log::tell(line));
                    }
                }
                Ok(Up::Failed(why)) => bail!(why),
                Ok(Up::Written(last)) => self.state().written(last),
                Ok(Up::Ask(number, ask)) => self.ask(stream, number, *ask),
                // It has ended.
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a question in a thread of its own: it may take long, and others have theirs.
    fn ask(self: &Arc<Self>, stream: &Arc<UnixStream>, number: u64, ask: Ask) {
        let mut state = self.state();
        let is_full = state.questions >= QUESTIONS;
        state.questions += 1;
        drop(state);
        if is_full {
            return self.reply(stream, number, Reply::None);
        }
        let (shared, way) = (Arc::clone(self), Arc::clone(stream));
        let answer = move || shared.reply(&way, number, answers(&shared.service, ask));
        if let Err(error) = lunet_os::thread::spawn("rest-ask", answer) {
            tracing::warn!("cannot start a thread to answer the REST interface: {error}");
            self.reply(stream, number, Reply::None);
        }
    }

    /// Has an answer sent, if the process that has asked is still there.
    fn reply(&self, stream: &Arc<UnixStream>, number: u64, reply: Reply) {
        let mut state = self.state();
        // One that asks without an end and reads nothing is of no use.
        let is_flooded = state.queue.len() >= 4 * QUESTIONS;
        if state.is_of(stream) && !is_flooded {
            state.queue.push_back(Down::Reply(number, Box::new(reply)));
        } else {
            state.questions -= 1;
        }
        drop(state);
        self.moved.notify_all();
        if is_flooded {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Sends what is to be said to the process, until it is gone.
    fn write(&self, stream: &Arc<UnixStream>) {
        let mut state = self.state();
        while state.is_of(stream) {
            let Some(message) = state.next() else {
                if state.stop && state.questions == 0 {
                    // The process ends when it has read all.
                    let _ = stream.shutdown(Shutdown::Write);
                    return;
                }
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let sent = send(stream, &message);
            state = self.state();
            state.questions -= usize::from(matches!(message, Down::Reply(..)));
            if sent.is_err() {
                // Whoever hears it ends the process.
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}

/// Sends a message; in the place of an answer that is too long, that there is none.
fn send(stream: &UnixStream, message: &Down) -> io::Result<()> {
    match (link::send(stream, message), message) {
        (Err(error), Down::Reply(number, _)) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!("an answer to the REST interface is too long");
            link::send(stream, &Down::Reply(*number, Box::new(Reply::None)))
        }
        (sent, _) => sent,
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}
