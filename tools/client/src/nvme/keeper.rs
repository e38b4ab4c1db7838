//! Keeps a controller alive while its I/O queues are under load: a thread that has the admin queue.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunet_nvme::host::ControllerInfo;

use super::wire::{Plain, Woken};
use super::{Admin, Error, Login, Target};

/// Queues that a controller is asked for; if jobs need more than it gives, there is another one.
const QUEUES: u16 = 64;

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
    /// Opens a controller, and asks it something first. What a thread has of an RDMA device stays with the
    /// thread, so it is opened where it is kept.
    pub fn open<T: Send + 'static>(
        target: &Target,
        login: &Login,
        nqn: &str,
        ask: impl FnOnce(&mut Admin) -> Result<T, Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let (wake, woken) = UnixStream::pair()?;
        let (answer, answered) = channel();
        let (target, login, nqn) = (target.clone(), login.clone(), nqn.to_owned());
        let work = move || {
            let opened = Admin::open(&target, &login, &nqn, QUEUES).and_then(|mut admin| {
                let asked = ask(&mut admin)?;
                Ok((admin, asked))
            });
            match opened {
                Ok((admin, asked)) => {
                    // Nobody waits any more only if the run was given up.
                    let _ = answer.send(Ok((admin.info().clone(), asked)));
                    tend(admin, &woken);
                }
                Err(error) => {
                    let _ = answer.send(Err(error));
                }
            }
        };
        let thread = thread::Builder::new().name("lunet-keep".to_owned()).spawn(work)?;
        let (info, asked) =
            answered.recv().map_err(|_| std::io::Error::other("its thread has ended"))??;
        Ok((Self { info, wake: Some(wake), thread: Some(thread) }, asked))
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
        match admin.wait(woken.as_fd(), idle) {
            Err(_) => return,
            Ok(Woken::Other) => return admin.close(),
            Ok(Woken::Ready) => {
                let Ok(true) = admin.tend(&mut out) else { return };
            }
            Ok(Woken::Time) => {}
        }
    }
}
