//! The server's end: starts the process of the interface, answers it, and starts another one when it has ended.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use lunet_control::AuditEntry;

use super::link::{self, Ask, Down, Setup, Up};
use super::{answers, told};
use crate::log;
use crate::running::Asked;

/// The command that the process is started with: this program, even if another one has taken its place since.
const PROGRAM: &str = "/proc/self/exe";

/// The hidden command of the process.
pub const COMMAND: &str = "serve-rest";

/// How long the end waits for the process to write down what it was told, and to say good-bye.
const FAREWELL: Duration = Duration::from_secs(4);

/// How long a process that says nothing more has to end.
const REAPED: Duration = Duration::from_secs(1);

/// How long one that has ended is away, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// One that has served so long had no trouble at its start.
const SETTLED: Duration = Duration::from_secs(60);

/// Entries of the audit log that may wait, while there is no process or it hangs.
const WAITING: usize = 4096;

/// Questions that are answered at one time: more than the process asks.
const QUESTIONS: usize = 64;

/// The process of a running server's interface. It ends when this is dropped.
pub struct Interface {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the interface what happens in the server.
#[derive(Clone)]
pub struct Teller(Arc<Shared>);

struct Shared {
    service: Asked,
    setup: Setup,
    sockets: Vec<OwnedFd>,
    urls: Vec<String>,
    state: Mutex<State>,
    /// There is something to send, a question has been answered, or this is the end.
    moved: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Down>,
    /// Entries of the audit log in the queue.
    entries: usize,
    /// Questions that are being answered.
    questions: usize,
    /// The way to the process that runs, if one does.
    stream: Option<Arc<UnixStream>>,
    stop: bool,
}

/// What the user is told of the start of the first process.
type First = SyncSender<Result<Option<String>, String>>;

impl Interface {
    /// Starts the process, and waits until it serves. The result has the code of the first start, while there is no
    /// account.
    ///
    /// # Errors
    /// It cannot serve.
    pub fn start(
        service: Asked,
        setup: Setup,
        sockets: Vec<OwnedFd>,
        urls: Vec<String>,
    ) -> Result<(Self, Option<String>)> {
        let (state, moved) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { service, setup, sockets, urls, state, moved });
        let (first, started) = sync_channel(1);
        let here = Arc::clone(&shared);
        // It lives as long as the process: the kernel ends that with the thread that has started it.
        let thread = lunet_os::thread::spawn("rest", move || here.keep(first))
            .context("cannot start the thread of the REST interface")?;
        let interface = Self { shared, thread: Some(thread) };
        let code = started.recv().context("the thread of the REST interface has ended")?;
        Ok((interface, code.map_err(|why| anyhow!("the REST interface: {why}"))?))
    }

    /// Somebody who tells it what happens.
    pub fn teller(&self) -> Teller {
        Teller(Arc::clone(&self.shared))
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
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Teller {
    /// A change was asked for, and done if there are lists that it has changed. Nobody is waited for.
    pub fn changed(&self, lists: &[&str], entry: AuditEntry) {
        let mut state = self.0.state();
        if state.entries == WAITING {
            drop(state);
            tracing::warn!(
                "the REST interface does not get on: its audit log lacks: {} by {}",
                entry.what,
                entry.who
            );
            return;
        }
        state.entries += 1;
        if !lists.is_empty() {
            state.queue.push_back(Down::Changed(lists.iter().map(ToString::to_string).collect()));
        }
        state.queue.push_back(Down::Entry(entry));
        drop(state);
        self.0.moved.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.moved.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a process serve until the end.
    fn keep(self: &Arc<Self>, first: First) {
        let (mut first, mut pause) = (Some(first), PAUSE.0);
        loop {
            let begun = Instant::now();
            let ended = match self.serve(&mut first) {
                Ok(status) => status.to_string(),
                Err(error) => format!("{error:#}"),
            };
            if let Some(first) = first.take() {
                let _ = first.send(Err(ended));
                return;
            }
            if begun.elapsed() > SETTLED {
                pause = PAUSE.0;
            }
            let state = self.state();
            if state.stop {
                return;
            }
            tracing::warn!(
                "the process of the REST interface has ended ({ended}), volumes are served as before: it is started \
                 again in {} s",
                pause.as_secs_f32()
            );
            let waited = self.moved.wait_timeout_while(state, pause, |state| !state.stop);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Starts a process and answers it until it ends.
    fn serve(self: &Arc<Self>, first: &mut Option<First>) -> Result<ExitStatus> {
        let (here, there) = UnixStream::pair()?;
        let mut child = Command::new(PROGRAM)
            .arg0("lunet")
            .arg(COMMAND)
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null())
            // Ctrl-C in a terminal is for the server.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start its process, {PROGRAM}"))?;
        let talked = self.talk(here, first);
        self.settle();
        let status = Self::reap(&mut child)?;
        talked.map(|()| status)
    }

    fn talk(self: &Arc<Self>, stream: UnixStream, first: &mut Option<First>) -> Result<()> {
        link::send_sockets(&stream, &self.sockets)?;
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
        self.state().stream = None;
        self.moved.notify_all();
        let _ = writer.join();
        heard
    }

    /// Does what the process says, until it is gone.
    fn hear(self: &Arc<Self>, stream: &Arc<UnixStream>, first: &mut Option<First>) -> Result<()> {
        loop {
            match link::receive(stream) {
                Ok(Up::Started(code)) => match first.take() {
                    Some(first) => drop(first.send(Ok(code))),
                    None => {
                        told(&self.urls, code.as_deref()).iter().for_each(|line| log::tell(line))
                    }
                },
                Ok(Up::Failed(why)) => return Err(anyhow!(why)),
                Ok(Up::Tell(line)) => log::tell(&line),
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
        while state.questions == QUESTIONS && !state.stop {
            state = self.wait(state);
        }
        state.questions += 1;
        drop(state);
        let (shared, way) = (Arc::clone(self), Arc::clone(stream));
        let answer = move || {
            let reply = answers(&shared.service, ask);
            let mut state = shared.state();
            state.questions -= 1;
            // Another process has not asked this.
            if state.stream.as_ref().is_some_and(|now| Arc::ptr_eq(now, &way)) {
                state.queue.push_back(Down::Reply(number, Box::new(reply)));
            }
            drop(state);
            shared.moved.notify_all();
        };
        if let Err(error) = lunet_os::thread::spawn("rest-ask", answer) {
            // It stays without an answer, which the interface says after its time limit.
            self.state().questions -= 1;
            tracing::warn!("cannot start a thread to answer the REST interface: {error}");
        }
    }

    /// Sends what is to be said to the process, until it is gone.
    fn write(&self, stream: &Arc<UnixStream>) {
        let mut state = self.state();
        loop {
            if !state.stream.as_ref().is_some_and(|now| Arc::ptr_eq(now, stream)) {
                return;
            }
            let Some(message) = state.queue.pop_front() else {
                if state.stop && state.questions == 0 {
                    // The process ends when it has read all.
                    let _ = stream.shutdown(Shutdown::Write);
                    return;
                }
                state = self.wait(state);
                continue;
            };
            state.entries -= usize::from(matches!(message, Down::Entry(_)));
            drop(state);
            let sent = link::send(stream, &message);
            state = self.state();
            if sent.is_err() {
                // The next process gets it.
                if let Down::Entry(_) = message {
                    state.entries += 1;
                    state.queue.push_front(message);
                }
                return;
            }
        }
    }

    /// A process is gone: what only that one wanted to hear is dropped.
    fn settle(&self) {
        let mut state = self.state();
        state.queue.retain(|message| matches!(message, Down::Entry(_)));
    }

    /// Waits for the end of a process, and ends it if that takes too long.
    fn reap(child: &mut Child) -> io::Result<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < REAPED {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        child.kill()?;
        child.wait()
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}
