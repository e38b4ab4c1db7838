//! Keeps a controller alive while its I/O queues are under load: a thread that has the admin queue.

use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunet_nvme::host::ControllerInfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::wire::Plain;
use super::{Admin, Error};

/// It sleeps no longer than this.
const LONGEST: Duration = Duration::from_secs(60);

/// A controller whose admin queue has a thread of its own. When this is dropped, the controller is
/// shut down.
pub(super) struct Keeper {
    info: ControllerInfo,
    /// Closed to have the thread end.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(admin: Admin) -> Result<Self, Error> {
        let info = admin.info().clone();
        let (wake, woken) = UnixStream::pair()?;
        let work = move || tend(admin, &woken);
        let thread = thread::Builder::new().name("lunet-keep".to_owned()).spawn(work)?;
        Ok(Self { info, wake: Some(wake), thread: Some(thread) })
    }

    /// What the controller says of itself.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// Answers for the host until it is woken, or the controller is over: then its I/O queues end, too,
/// which is noticed there.
fn tend(mut admin: Admin, woken: &UnixStream) {
    let mut out = Plain::default();
    loop {
        let Ok(true) = admin.handle_timeout(&mut out) else { return };
        let idle = admin.idle_for().unwrap_or(LONGEST).min(LONGEST);
        let idle =
            Timespec { tv_sec: idle.as_secs() as i64, tv_nsec: i64::from(idle.subsec_nanos()) };
        let stream = PollFd::new(admin.stream(), PollFlags::IN);
        let mut both = [PollFd::new(woken, PollFlags::IN), stream];
        let polled = poll(&mut both, Some(&idle));
        let [end, ready] = both.map(|fd| !fd.revents().is_empty());
        match polled {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
            Ok(_) if end => return admin.close(),
            Ok(_) if ready => {
                let Ok(true) = admin.tend(&mut out) else { return };
            }
            Ok(_) => {}
        }
    }
}
