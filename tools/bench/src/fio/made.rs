//! What was made and what runs here, and goes at the end: known to the whole program, for an end in a hurry.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

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

/// Ends a process and those that it has started. fio ends its jobs at SIGTERM; killed, it would leave them. But a signal that
/// comes as it begins may find it with a lock that its handler waits for, and then it never ends.
fn end(pid: Pid) {
    let ended = || {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(pid), look), Ok(None))
    };
    let _ = kill_process(pid, Signal::TERM);
    for _ in 0..ATTEMPTS {
        if ended() {
            return;
        }
        thread::sleep(PAUSE);
    }
    for child in children(pid).into_iter().chain([pid]) {
        let _ = kill_process(child, Signal::KILL);
    }
}

/// The processes that one has started, as far as the kernel tells.
fn children(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let lists = tasks.into_iter().flatten().flatten();
    let lists = lists.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
    });
    numbers.filter_map(Pid::from_raw).collect()
}

/// Ends what fio still runs, and removes all files and directories that benchmarks in this program have made: for a program
/// that is told to end at once. Takes half a second at most for each that resists.
pub fn abandon() {
    // Held to the end: nobody may wait for a process whose number is used here.
    let running = RUNNING.lock();
    for pid in running.iter().flat_map(|all| all.iter()) {
        i32::try_from(*pid).ok().and_then(Pid::from_raw).into_iter().for_each(end);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn what_does_not_end_when_it_is_told_to_is_killed_with_what_it_has_started() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; sleep 600 & wait"]).stdout(Stdio::null());
        let mut shell = shell.spawn().expect("a shell");
        let pid = Pid::from_child(&shell);
        let mut sleeps = Vec::new();
        while sleeps.is_empty() {
            sleeps = children(pid);
            thread::sleep(PAUSE);
        }
        end(pid);
        shell.wait().expect("it has ended");
        // Its child is nobody's that waits for it here: init does.
        let runs = |pid: &Pid| {
            let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            state.is_ok_and(|state| !state.contains(") Z ") && state.contains("(sleep)"))
        };
        for _ in 0..500 {
            if !sleeps.iter().any(runs) {
                return;
            }
            thread::sleep(PAUSE);
        }
        panic!("{sleeps:?} go on");
    }
}
