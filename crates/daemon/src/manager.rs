//! What the service manager is told of the server: that it serves, reloads, stops, and that its shards go on
//! (sd_notify(3)).

use std::env;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunet_api::Stats;
use rustix::time::{ClockId, clock_gettime};

use crate::running::Asked;
use crate::talk;

/// How often the status line is renewed where no watchdog waits for the server.
const STATUS: Duration = Duration::from_secs(10);

/// How long a service manager may take no message.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager, if there is one that wants to know.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    socket: Option<Arc<UnixDatagram>>,
    /// The time after which the service manager ends a server that is silent.
    watchdog: Option<Duration>,
}

impl Manager {
    /// The one that the environment names.
    pub fn from_environment() -> Self {
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|time| is_ours && *time > 0);
        let place = env::var_os("NOTIFY_SOCKET");
        let connected = place.and_then(|place| connect(place.as_bytes()).ok());
        Self { socket: connected.map(Arc::new), watchdog: watchdog.map(Duration::from_micros) }
    }

    /// Tells it. A service manager that takes no message is no reason not to serve.
    fn tell(&self, state: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(state.as_bytes());
        }
    }

    /// True if there is one.
    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Has it keep a socket by this name while this service is started anew (`FDSTORE`). One that keeps none closes it.
    pub fn keep(&self, name: &str, socket: BorrowedFd<'_>) {
        let Some(manager) = &self.socket else { return };
        let text = format!("FDSTORE=1\nFDNAME={name}");
        if talk::send_with(manager, text.as_bytes(), &[socket]).is_err() {
            tracing::warn!(
                "the service manager does not keep {name}: clients are refused during a restart"
            );
        }
    }

    /// Has it close the socket that it keeps by this name.
    pub fn keep_no_more(&self, name: &str) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    /// Everything is open, and all portals are listened on.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The configuration is being read again; [`ready`](Self::ready) says that this has ended.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The server ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing what runs");
    }

    /// From now on tells, in a thread of its own, that the shards go on, until the result is dropped.
    ///
    /// # Errors
    /// The operating system grants no thread.
    pub fn watch(&self, asked: Asked) -> io::Result<Watch> {
        if self.socket.is_none() {
            return Ok(Watch(None));
        }
        let manager = self.clone();
        let (end, ended) = mpsc::channel::<()>();
        // Twice in the time, so that one late answer ends nothing.
        let interval = self.watchdog.map_or(STATUS, |time| time / 3);
        let watch = move || {
            loop {
                manager.tell(&state(&asked.stats(), manager.watchdog));
                match ended.recv_timeout(interval) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch)?;
        Ok(Watch(Some((end, thread))))
    }
}

/// Somebody who tells that the shards go on.
#[derive(Debug)]
pub struct Watch(Option<(Sender<()>, JoinHandle<()>)>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

/// What is told of these statistics. A shard that does not answer is stuck, and so is everybody who is connected to it:
/// the watchdog hears nothing then.
fn state(stats: &Stats, watchdog: Option<Duration>) -> String {
    let answered = stats.loads.len() as u64;
    if answered < stats.shards {
        let stuck = stats.shards - answered;
        tracing::warn!("{stuck} of {} shards do not answer", stats.shards);
        return format!("STATUS={stuck} of {} shards do not answer", stats.shards);
    }
    let failed = stats.volumes.iter().filter(|volume| !volume.faults.is_empty()).count();
    let failed =
        if failed == 0 { String::new() } else { format!(", {failed} of them with a fault") };
    let alive = if watchdog.is_some() { "WATCHDOG=1\n" } else { "" };
    let count = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    format!(
        "{alive}STATUS=serving {}{failed}, {}",
        count(stats.volumes.len(), "volume"),
        count(stats.sessions as usize, "session"),
    )
}

/// A socket by its path, or in the abstract name space where `@` stands first.
fn connect(place: &[u8]) -> io::Result<UnixDatagram> {
    let address = match place {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use lunet_api::{ShardLoad, VolumeStats};

    use super::*;

    fn stats(shards: u64, answered: usize) -> Stats {
        Stats {
            shards,
            sessions: 1,
            loads: vec![ShardLoad::default(); answered],
            volumes: vec![VolumeStats::default(); 2],
            ..Stats::default()
        }
    }

    #[test]
    fn the_watchdog_hears_nothing_while_a_shard_is_stuck() {
        let time = Some(Duration::from_secs(30));
        let fine = "WATCHDOG=1\nSTATUS=serving 2 volumes, 1 session";
        assert_eq!(state(&stats(2, 2), time), fine);
        assert_eq!(state(&stats(2, 2), None), fine["WATCHDOG=1\n".len()..]);
        assert_eq!(state(&stats(2, 1), time), "STATUS=1 of 2 shards do not answer");
    }

    #[test]
    fn a_socket_has_a_path_or_an_abstract_name() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("notify");
        let name = format!("lunet-test-{}", std::process::id());
        let listening = [
            UnixDatagram::bind(&path).unwrap(),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
        ];
        let places = [path.to_str().unwrap().to_owned(), format!("@{name}")];
        for (socket, place) in listening.iter().zip(places) {
            let socket_of = connect(place.as_bytes()).map(Arc::new).ok();
            Manager { socket: socket_of, watchdog: None }.ready();
            let mut told = [0; 16];
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let length = socket.recv(&mut told).unwrap();
            assert_eq!(&told[..length], b"READY=1", "{place}");
        }
    }
}
