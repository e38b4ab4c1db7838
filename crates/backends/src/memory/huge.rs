//! Huge pages for what has been written in full.
//!
//! Volumes start with small pages, because to make a huge one takes longer than a client should wait for its
//! write. Reads and writes of a full volume are a little faster with huge ones. So a thread looks for extents that are
//! full, once nothing new has been written for a second, and makes each a huge page.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use lunet_ring::Region;

use super::Pages;

/// How often is looked, and for how long nothing new must have been written.
const LOOK: Duration = Duration::from_secs(1);

/// Between two extents: who works on the volume meanwhile is held up for less than the time of making one.
const PAUSE: Duration = Duration::from_millis(1);

/// A volume. The thread keeps none alive.
struct Watched {
    region: Weak<Region>,
    pages: Weak<Pages>,
    /// Extents that were made huge, or could not be.
    done: Vec<u64>,
    /// There may be more.
    open: bool,
}

/// The volumes. There is a thread as long as there are any.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// Takes a volume in.
pub(super) fn watch(region: &Arc<Region>, pages: &Arc<Pages>) {
    let (region, pages) = (Arc::downgrade(region), Arc::downgrade(pages));
    let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Watched { region, pages, done: Vec::new(), open: false });
    if all.len() == 1 {
        // Without it pages stay small, which is all that happens.
        let started = thread::Builder::new().name("huge pages".into()).spawn(work);
        if started.is_err() {
            all.clear();
        }
    }
}

fn work() {
    loop {
        thread::sleep(LOOK);
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|volume| volume.region.strong_count() > 0);
        if all.is_empty() {
            return;
        }
        // Not under the lock: somebody may want to open a volume.
        let mut mine = std::mem::take(&mut *all);
        // What keeps others from starting a second thread.
        all.push(Watched {
            region: Weak::new(),
            pages: Weak::new(),
            done: Vec::new(),
            open: false,
        });
        drop(all);
        mine.iter_mut().for_each(Watched::look);
        let mut all = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        all.append(&mut mine);
    }
}

/// False if the administrator wants no huge pages on this machine.
fn wanted() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|setting| !setting.contains("[never]"))
}

impl Watched {
    /// Makes full extents huge, until something new is written.
    fn look(&mut self) {
        let (Some(region), Some(pages)) = (self.region.upgrade(), self.pages.upgrade()) else {
            return;
        };
        if pages.has_grown() {
            self.open = true;
            return;
        }
        if !std::mem::take(&mut self.open) || !wanted() {
            return;
        }
        let full: Vec<u64> = pages.full_extents().collect();
        // Those that are not full any more have small pages again.
        self.done.retain(|extent| full.binary_search(extent).is_ok());
        for extent in full {
            let Err(at) = self.done.binary_search(&extent) else { continue };
            if pages.is_growing() {
                self.open = true;
                return;
            }
            region.collapse(extent);
            self.done.insert(at, extent);
            thread::sleep(PAUSE);
        }
    }
}
