//! What was made and what runs here, and goes at the end: known to the whole program, for an end in a hurry.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// fio may be at work in a directory that is being removed; it is tried so often.
const ATTEMPTS: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

static THERE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Processes of fio that nobody has told to end, and nobody has waited for.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// fio was started.
pub(super) fn runs(pid: u32) {
    if let Ok(mut running) = RUNNING.lock() {
        running.push(pid);
    }
}

/// It has ended or was told to; from now on the number may become somebody else's.
pub(super) fn ended(pid: u32) {
    if let Ok(mut running) = RUNNING.lock() {
        running.retain(|own| *own != pid);
    }
}

/// Something was made.
pub(super) fn note(path: &Path) {
    if let Ok(mut there) = THERE.lock() {
        there.push(path.to_owned());
    }
}

/// Removes it. Nobody can be told if that fails: what is left has a name that says whose it is.
pub(super) fn remove(path: &Path) {
    let _ = gone(path);
    if let Ok(mut there) = THERE.lock() {
        there.retain(|own| own != path);
    }
}

fn gone(path: &Path) -> bool {
    let removed = match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    };
    removed.is_ok() || fs::symlink_metadata(path).is_err()
}

/// Ends what fio still runs, and removes all files and directories that benchmarks in this program have made: for a program
/// that is told to end at once. Takes half a second at most for each that resists.
pub fn abandon() {
    // Held to the end: nobody may wait for a process whose number is used here.
    let running = RUNNING.lock();
    for pid in running.iter().flat_map(|all| all.iter()) {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
            // fio ends its jobs at SIGTERM; killed, it would leave them.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let there = THERE.lock().map(|mut there| std::mem::take(&mut *there)).unwrap_or_default();
    for path in there {
        for _ in 0..ATTEMPTS {
            if gone(&path) {
                break;
            }
            thread::sleep(PAUSE);
        }
    }
}
