//! RDMA devices of a simulated world, in place of the two libraries and of what is behind them.
//!
//! The functions of the libraries ([`calls`], [`cm`]) work on a [`Fabric`], of which a world has one. What is posted is
//! carried out after a random time, in order ([`pair`]); at the other end is a host ([`host`]). The device reads memory when
//! it carries work out, and looks when the work has ended whether somebody has changed it meanwhile.

mod calls;
mod cm;
mod device;
mod host;
mod pair;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunet_os::simulated::{self, Process};
use lunet_ring::simulated::Signal;

use crate::Library;
use crate::ffi::{IbvCq, IbvWc};
use device::{Context, Device};
use host::End;
use pair::{Pair, Receive};

pub use device::Traits;
pub use host::{Link, Message, Phase};

/// RDMA of a world: its devices, and what they have under way.
#[derive(Default)]
pub struct Fabric(Mutex<State>);

/// Memory of the server that a device may reach.
struct Registration {
    start: u64,
    len: u64,
    writable: bool,
}

/// A completion queue.
struct CompletionQueue {
    raw: usize,
    channel: u64,
    context: u64,
    depth: usize,
    /// Completions, and how many places of the send queue each frees.
    done: VecDeque<(IbvWc, usize)>,
    armed: bool,
    unacknowledged: u32,
}

/// A completion channel: the queues that it gives notice of, as pointers.
struct NoticeChannel {
    notices: VecDeque<usize>,
    signal: Signal,
}

/// A shared receive queue.
struct SharedQueue {
    waiting: VecDeque<Receive>,
    /// Taken by queue pairs that ended in the middle of a message.
    lost: Vec<Receive>,
    depth: usize,
}

/// An event channel of the connection manager.
struct EventQueue {
    events: VecDeque<cm::Event>,
    signal: Signal,
}

#[derive(Default)]
struct State {
    folder: Option<PathBuf>,
    last: u64,
    devices: Vec<Device>,
    /// What the server has made and not ended: by whom, and what it is.
    objects: BTreeMap<u64, (Process, &'static str)>,
    contexts: BTreeMap<u64, Context>,
    registrations: BTreeMap<u32, Registration>,
    channels: BTreeMap<u64, NoticeChannel>,
    queues: BTreeMap<u64, CompletionQueue>,
    shared: BTreeMap<u64, SharedQueue>,
    pairs: BTreeMap<u64, Pair>,
    event_queues: BTreeMap<u64, EventQueue>,
    ids: BTreeMap<u64, cm::Id>,
    ends: BTreeMap<u64, End>,
    wrong: Option<String>,
}

/// How long something takes: mostly the time of a fabric, now and then far longer.
fn latency() -> Duration {
    let micros = match simulated::below(300) {
        0 => 1_000 + simulated::below(20_000),
        _ => 1 + simulated::below(60),
    };
    Duration::from_micros(micros)
}

/// Looks at the world's fabric, or changes it.
fn with<T>(look: impl FnOnce(&mut State) -> T) -> T {
    look(&mut simulated::part::<Fabric>().lock())
}

/// Has something happen to the fabric after some time.
fn later(delay: Duration, happens: impl FnOnce(&mut State) + Send + 'static) {
    simulated::at(delay, move || with(happens));
}

/// The world's devices in place of the system's libraries; `None` outside of a world.
pub(crate) fn library() -> Option<Arc<Library>> {
    simulated::is_here().then(|| Library::fake(calls::verbs(), cm::calls()))
}

/// The folder of a world's devices; `None` outside of a world.
pub(crate) fn sysfs() -> Option<PathBuf> {
    let nowhere = || PathBuf::from("/nonexistent/infiniband");
    simulated::is_here().then(|| with(|s| s.sysfs()).unwrap_or_else(nowhere))
}

impl State {
    /// A number that nothing else has.
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of a new object of the server.
    fn object(&mut self, what: &'static str) -> u64 {
        let number = self.number();
        self.objects.insert(number, (simulated::process(), what));
        number
    }

    fn signal(&self) -> std::io::Result<Signal> {
        Signal::new(self.folder.as_deref().unwrap_or(Path::new("/tmp")))
    }

    /// Something is wrong with the server.
    fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// A completion, which frees places of a send queue.
    fn complete(&mut self, queue: u64, wc: IbvWc, places: usize) {
        let Some(cq) = self.queues.get_mut(&queue) else { return };
        if cq.done.len() >= cq.depth {
            return self.wrong("a completion queue has overflowed".into());
        }
        cq.done.push_back((wc, places));
        if std::mem::take(&mut cq.armed) {
            if let Some(channel) = self.channels.get_mut(&cq.channel) {
                channel.notices.push_back(cq.raw);
                channel.signal.set(true);
            }
        }
    }

    /// The key of memory that is registered for this.
    fn is_registered(&self, key: u32, start: u64, len: u64, writes: bool) -> bool {
        self.registrations.get(&key).is_some_and(|memory| {
            let offset = start.checked_sub(memory.start);
            let fits = |offset| offset <= memory.len && len <= memory.len - offset;
            offset.is_some_and(fits) && (memory.writable || !writes)
        })
    }
}

impl Fabric {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device appears that carries the address 127.0.0.1. What belongs to it is in this folder.
    ///
    /// # Errors
    /// The system's: files cannot be made.
    pub fn plug(&self, folder: &Path, name: &str, traits: Traits) -> std::io::Result<()> {
        self.lock().plug(folder, name, traits)
    }

    /// A device goes.
    pub fn unplug(&self, name: &str) {
        self.lock().unplug(name);
    }

    /// A queue pair fails, whichever it is.
    pub fn fail_one(&self) {
        let mut state = self.lock();
        let connected = |(_, pair): &(&u64, &Pair)| pair.life == pair::Life::Connected;
        let all: Vec<u64> = state.pairs.iter().filter(connected).map(|(n, _)| *n).collect();
        if !all.is_empty() {
            state.pair_fails(all[simulated::below(all.len() as u64) as usize]);
        }
    }

    /// Connects to a listener, with this private data: `None` if there is none. `receives`: how many messages the host can
    /// take, and how long each may be.
    pub fn connect(
        &self,
        (to, from): (SocketAddr, SocketAddr),
        private: &[u8],
        receives: (usize, usize),
    ) -> Option<Link> {
        self.lock().connect((to, from), private, receives)
    }

    /// What was found wrong first.
    pub fn wrong(&self) -> Option<String> {
        self.lock().wrong.clone()
    }

    /// A process was killed: its objects go with it, and its connections break.
    pub fn process_killed(&self, process: Process) {
        self.lock().process_killed(process);
    }

    /// A process has ended by itself: says what it has not let go of.
    pub fn left_behind(&self, process: Process) -> Vec<&'static str> {
        let state = self.lock();
        let own = state.objects.values().filter(|(of, _)| *of == process);
        own.map(|(_, what)| *what).collect()
    }
}

impl State {
    fn process_killed(&mut self, process: Process) {
        let own = |(_, (of, _)): &(&u64, &(Process, &str))| *of == process;
        let gone: Vec<u64> = self.objects.iter().filter(own).map(|(number, _)| *number).collect();
        for number in gone {
            self.objects.remove(&number);
            self.channels.remove(&number);
            self.queues.remove(&number);
            self.shared.remove(&number);
            self.event_queues.remove(&number);
            self.registrations.remove(&(number as u32));
            if let Some(end) = self.pairs.remove(&number).and_then(|pair| pair.end) {
                self.end_breaks(end, Duration::from_micros(simulated::below(2_000_000)));
            }
            if let Some(end) = self.ids.remove(&number).and_then(|id| id.end) {
                self.end_breaks(end, Duration::from_micros(simulated::below(2_000_000)));
            }
        }
        self.contexts.retain(|_, context| context.process != process);
    }
}

/// The queue as a pointer.
fn queue_of(raw: usize) -> *mut IbvCq {
    raw as *mut IbvCq
}
