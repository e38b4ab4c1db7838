//! Threads for work that may block: what a file system answers when it likes, copies inside the storage.
//!
//! A shard never blocks, so it hands such work over and is told by mail when it is done. One volume has one
//! thread at a time, so that a volume whose storage hangs stops nobody else's work.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, PoisonError};

use lunet_os::sync::{Condvar, Mutex};

use crate::open::VolumeId;

/// How much work may wait.
const WAITING: usize = 1024;

/// How many volumes may be worked for at the same time.
const THREADS: usize = 4;

/// A piece of work. It tells whoever waits for it by itself.
pub type SlowWork = Box<dyn FnOnce() + Send>;

/// Names work that another thread does, on the shard that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Ticket {
    /// The work with this number.
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The way to the threads. They start with the first work and end with the server.
#[derive(Default)]
pub struct Offload {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// Work with the slot of the volume that it is for.
    waiting: VecDeque<(Option<VolumeId>, SlowWork)>,
    /// Volumes that a thread works for.
    busy: HashSet<Option<VolumeId>>,
    threads: usize,
    idle: usize,
    ended: bool,
}

impl Offload {
    /// Hands work for a volume over, or for none. False if too much waits already, or no thread can be had.
    pub fn give(&self, volume: Option<VolumeId>, work: SlowWork) -> bool {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.waiting.len() >= WAITING {
            return false;
        }
        if state.idle == 0 && state.threads < THREADS {
            if let Err(error) = self.start(state.threads) {
                tracing::warn!(%error, "no thread for slow work");
                if state.threads == 0 {
                    return false;
                }
            } else {
                state.threads += 1;
            }
        }
        state.waiting.push_back((volume, work));
        self.shared.news.notify_one();
        true
    }

    fn start(&self, number: usize) -> io::Result<()> {
        let shared = self.shared.clone();
        let name = format!("lunet-slow-{number}");
        // Never joined: it may hang in the storage below, and holds nothing that must be stable.
        lunet_os::thread::spawn(&name, move || shared.work()).map(drop)
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = true;
        state.waiting.clear();
        self.shared.news.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.ended {
            let free = state.waiting.iter().position(|(volume, _)| !state.busy.contains(volume));
            let Some((volume, work)) = free.and_then(|at| state.waiting.remove(at)) else {
                state.idle += 1;
                state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            state.busy.insert(volume);
            drop(state);
            work();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.busy.remove(&volume);
            // Work for this volume that others had to pass over.
            self.news.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_os::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::time::Duration;

    fn says(number: usize, to: &SyncSender<usize>) -> SlowWork {
        let to = to.clone();
        Box::new(move || to.send(number).expect("somebody listens"))
    }

    fn volume(slot: usize) -> Option<VolumeId> {
        Some(VolumeId::new(slot))
    }

    fn blocked() -> (SlowWork, SyncSender<()>) {
        let (release, wait): (_, Receiver<()>) = sync_channel(1);
        (Box::new(move || wait.recv().unwrap_or_default()), release)
    }

    #[test]
    fn a_volume_that_hangs_delays_its_own_work_only() {
        let offload = Offload::default();
        let (say, hear) = sync_channel(16);
        let (hangs, release) = blocked();
        assert!(offload.give(volume(0), hangs));
        assert!(offload.give(volume(0), says(0, &say)));
        for number in 1..8 {
            assert!(offload.give(volume(number % 3 + 1), says(number, &say)));
        }
        let mut heard: Vec<usize> =
            (1..8).map(|_| hear.recv_timeout(Duration::from_secs(20)).expect("done")).collect();
        heard.sort_unstable();
        assert_eq!(heard, (1..8).collect::<Vec<_>>());
        assert!(hear.try_recv().is_err(), "work of one volume is done in order");
        release.send(()).expect("it waits");
        assert_eq!(hear.recv_timeout(Duration::from_secs(20)), Ok(0));
    }

    #[test]
    fn what_waits_is_bounded() {
        let offload = Offload::default();
        let (hangs, release) = blocked();
        assert!(offload.give(volume(0), hangs));
        let taken = (0..2 * WAITING).filter(|_| offload.give(volume(0), Box::new(|| ()))).count();
        // The thread may have taken the first piece before these, among them, or not yet.
        assert!((WAITING - 1..=WAITING).contains(&taken), "{taken}");
        drop(release);
    }
}
