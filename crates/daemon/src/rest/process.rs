//! The process of the REST interface: what runs in it, and how it asks the server.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use lunet_api::{Answer, Code, Done, Error, Preview, Request};
use lunet_control::{
    Bound, Control, Limits, Listeners, Notifier, Options, Principal, RefusedLogin, Role, Service,
    notifier,
};
use rustix::net::accept;
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use zeroize::Zeroizing;

use super::link::{self, Ask, Down, Reply, Setup, Up};
use crate::signals::Signals;
use crate::{helper, sandbox, serve, users};
use lunet_config::place::{JOB_VARIABLE, PROGRESS_VARIABLE, SERVER_VARIABLE, VARIABLE};
use lunet_config::secrets;

/// Memory that the process may have for its data, in bytes: what goes wrong here takes nothing from volumes, and the
/// process is started again. Some ten times what it needs with all of its places taken.
const MEMORY: u64 = 1 << 30;

/// Connections that are ended at each socket where the interface does not start: as many as wait there by default.
const HANG_UPS: usize = 4096;

/// Serves the interface of the server at the other end of standard input, until that is gone.
///
/// # Errors
/// There is no such server, or the operating system refuses something.
pub fn run() -> Result<()> {
    // It hears passwords, tokens and secrets.
    secrets::guard_memory();
    sandbox::close_interface().context("cannot give up privileges")?;
    let stream = server().context("this command is for `lunet serve`, which starts it")?;
    let sockets = link::receive_sockets(&stream).context("no sockets came")?;
    let Down::Setup(setup) = link::receive(&stream)? else { bail!("no setup came") };
    serve::start_log(setup.log_level)?;
    end_with_panics();
    // Whoever ends the server ends this process, too; signals are for the server.
    let _signals = Signals::catch().context("cannot catch signals")?;
    let link = Arc::new(Link::new(stream.try_clone()?));
    let (notifier, notices) = notifier();
    let waits: Vec<OwnedFd> = sockets.iter().filter_map(|one| one.try_clone().ok()).collect();
    let started = bound(&setup, sockets).and_then(|bound| {
        let service = Arc::new(Remote(Arc::clone(&link)));
        Control::start(bound, options(*setup, &link), service, (notifier.clone(), notices))
            .map_err(Into::into)
    });
    let control = match started {
        Ok(control) => control,
        Err(error) => {
            let said = link::send(&stream, &Up::Failed(format!("{error:#}")));
            hang_up(&waits);
            return Ok(said?);
        }
    };
    drop(waits);
    link.say(&Up::Started(control.code()));
    link.listen(&stream, &notifier);
    drop(control);
    Ok(())
}

/// Ends the connections that wait to be accepted: nobody serves them, and the next process comes in a while.
fn hang_up(sockets: &[OwnedFd]) {
    for socket in sockets {
        if rustix::io::ioctl_fionbio(socket, true).is_ok() {
            // No more than can wait.
            for _ in 0..HANG_UPS {
                if accept(socket).is_err() {
                    break;
                }
            }
        }
    }
}

/// Whatever thread panics, the process ends, as that of the release build does: half an interface would answer 503 for
/// ever, and a new one is started in its place.
fn end_with_panics() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        told(info);
        std::process::abort();
    }));
}

/// The other end of standard input.
fn server() -> io::Result<UnixStream> {
    let stream = helper::stdin()?;
    // Where memory is short, this goes before the server does. Without /proc it goes as others do.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let limit = getrlimit(Resource::Data);
    setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), ..limit })?;
    // One that hangs is not left behind either.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(stream)
}

fn bound(setup: &Setup, sockets: Vec<OwnedFd>) -> Result<Bound> {
    let certificate = setup.certificate.as_ref();
    let certificate = certificate.map(|(one, key)| (one.to_path(), key.to_path()));
    let listeners = Listeners { addresses: setup.addresses.clone(), certificate };
    let mut all = sockets.into_iter();
    let sockets = all.by_ref().take(setup.addresses.len()).map(Into::into).collect();
    let mut bound = Bound::over(sockets, &listeners, &setup.names, &setup.directory.to_path())?;
    for (socket, role) in all.zip(&setup.roles) {
        bound = bound.and_local(socket.into(), *role)?;
    }
    Ok(bound)
}

fn options(setup: Setup, link: &Arc<Link>) -> Options {
    let link = Arc::clone(link);
    Options {
        directory: setup.directory.to_path(),
        names: setup.names,
        program: setup.program.map(|program| program.to_path()),
        // The commands of jobs ask this server, whatever the environment says.
        environment: vec![
            (OsString::from(VARIABLE), setup.data.to_path().into()),
            (OsString::from(SERVER_VARIABLE), OsString::new()),
            (OsString::from(PROGRESS_VARIABLE), OsString::from("lines")),
            (OsString::from(JOB_VARIABLE), std::process::id().to_string().into()),
        ],
        limits: Limits::default(),
        user: Box::new(users::name),
        written: Box::new(move |last| link.say(&Up::Written(last))),
    }
}

/// The way to the server, and the questions that wait for its answer.
struct Link {
    stream: Mutex<UnixStream>,
    waiting: Mutex<HashMap<u64, SyncSender<Reply>>>,
    next: AtomicU64,
}

impl Link {
    fn new(stream: UnixStream) -> Self {
        Self { stream: Mutex::new(stream), waiting: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Says something. If nobody hears it, this process is about to end.
    fn say(&self, message: &Up) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = link::send(&stream, message) {
            tracing::debug!("the server does not hear: {error}");
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, SyncSender<Reply>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and waits for the answer; `None` if the server is gone.
    fn ask(&self, ask: Ask) -> Option<Reply> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = sync_channel(1);
        self.waiting().insert(number, sender);
        self.say(&Up::Ask(number, Box::new(ask)));
        receiver.recv().ok()
    }

    /// Passes on what the server says, until it is gone.
    fn listen(&self, stream: &UnixStream, notifier: &Notifier) {
        while let Ok(message) = link::receive(stream) {
            match message {
                Down::Reply(number, reply) => {
                    if let Some(asker) = self.waiting().remove(&number) {
                        let _ = asker.send(*reply);
                    }
                }
                Down::Changed(lists) => lists.into_iter().for_each(|list| notifier.differs(list)),
                Down::Entry(number, entry) => notifier.record_numbered(number, entry),
                Down::Setup(_) => {}
            }
        }
        // Nobody answers any more.
        self.waiting().clear();
    }
}

/// The server, as this process knows it.
struct Remote(Arc<Link>);

fn gone() -> Error {
    Error::new(Code::NotAnswered, "the server does not answer now")
}

impl Service for Remote {
    fn answer(&self, who: &Principal, request: Request) -> Result<Answer, Error> {
        let (who, address) = (who.told(), who.address());
        match self.0.ask(Ask::Answer { who, address, request: Box::new(request) }) {
            Some(Reply::Answer(answer)) => answer.map(|told| told.0),
            _ => Err(gone()),
        }
    }

    fn check(&self, who: &Principal, text: &str) -> Result<Preview, Error> {
        let administrator = who.role.may(Role::Administrator);
        match self.0.ask(Ask::Check { text: text.to_owned(), administrator }) {
            Some(Reply::Check(preview)) => preview,
            _ => Err(gone()),
        }
    }

    fn write(&self, who: &Principal, text: Zeroizing<String>) -> Result<Done, Error> {
        match self.0.ask(Ask::Write { who: who.told(), text: text.as_str().into() }) {
            Some(Reply::Write(done)) => done,
            _ => Err(gone()),
        }
    }

    fn ready(&self) -> Vec<String> {
        match self.0.ask(Ask::Ready) {
            Some(Reply::Ready(why)) => why,
            _ => vec![gone().message],
        }
    }

    fn refused(&self) -> Vec<RefusedLogin> {
        match self.0.ask(Ask::Refused) {
            Some(Reply::Refused(logins)) => logins,
            _ => Vec::new(),
        }
    }
}
