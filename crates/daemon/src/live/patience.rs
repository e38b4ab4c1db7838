//! Looks at files, of which the file system of one may hang: what is asked of the others goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lunet_os::sync::{Mutex, mpsc};

/// What the file system of one file may take at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// So many threads may hang. When there are more nobody looks any more.
const MOST: usize = 32;

/// Threads that hang, and are not waited for.
static HUNG: AtomicUsize = AtomicUsize::new(0);

/// A look that may take long.
pub(super) type Look<T> = Box<dyn FnOnce() -> T + Send>;

/// What the threads share that look, one at a time unless one hangs.
struct Work<T> {
    looks: Mutex<VecDeque<(usize, Look<T>)>>,
    /// The thread whose turn it is.
    turn: AtomicUsize,
}

impl<T> Work<T> {
    fn next(&self, own: usize) -> Option<(usize, Look<T>)> {
        if self.turn.load(Ordering::Acquire) != own {
            return None;
        }
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What each of these has found; `None` for what takes too long, which nobody waits for any more.
pub(super) fn patiently<T: Send + 'static>(looks: Vec<Look<T>>) -> Vec<Option<T>> {
    within(PATIENCE, looks)
}

fn within<T: Send + 'static>(patience: Duration, looks: Vec<Look<T>>) -> Vec<Option<T>> {
    let mut found: Vec<Option<T>> = looks.iter().map(|_| None).collect();
    let looks = Mutex::new(looks.into_iter().enumerate().collect());
    let work = Arc::new(Work { looks, turn: AtomicUsize::new(0) });
    let (told, answers) = mpsc::channel();
    // Each thread but the last has hung.
    for own in 0.. {
        if HUNG.load(Ordering::Acquire) >= MOST || !begin(own, &work, &told) {
            return found;
        }
        loop {
            match answers.recv_timeout(patience) {
                Ok(Some((at, it))) => found[at] = Some(it),
                // All have had their turn.
                Ok(None) => return found,
                Err(_) => break,
            }
        }
        HUNG.fetch_add(1, Ordering::AcqRel);
        work.turn.store(own + 1, Ordering::Release);
    }
    found
}

/// Starts a thread that looks until nothing is left, or until it is no longer its turn.
fn begin<T: Send + 'static>(
    own: usize,
    work: &Arc<Work<T>>,
    told: &mpsc::Sender<Option<(usize, T)>>,
) -> bool {
    let (work, told) = (Arc::clone(work), told.clone());
    let look = move || {
        while let Some((at, look)) = work.next(own) {
            let it = look();
            // What comes too late nobody waits for, or is told all the same.
            let _ = told.send(Some((at, it)));
        }
        match work.turn.load(Ordering::Acquire) == own {
            true => drop(told.send(None)),
            false => drop(HUNG.fetch_sub(1, Ordering::AcqRel)),
        }
    };
    lunet_os::thread::spawn("looks", look).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_holds_up_no_other_look() {
        let (end, held) = std::sync::mpsc::channel::<()>();
        let hangs: Look<u8> = Box::new(move || held.recv().map_or(1, |()| 9));
        let looks: Vec<Look<u8>> = vec![Box::new(|| 0), hangs, Box::new(|| 2)];
        let found = within(Duration::from_secs(1), looks);
        assert_eq!(found, [Some(0), None, Some(2)]);
        drop(end);
        while HUNG.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(patiently(vec![Box::new(|| 7_u8) as Look<u8>]), [Some(7)]);
    }
}
