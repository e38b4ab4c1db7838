//! Looks for RDMA devices that come later than the server, or come back.
//!
//! A thread that sleeps, because the kernel may take its time to answer, and no shard may wait for that. It
//! looks at nothing but what the kernel says of its devices, until that changes or one is lost.
//!
//! A device that goes away is still named by the kernel until the last program has let go of it, and with some
//! drivers (soft RoCE) the kernel waits for that. The library knows better: asked for its devices, it lets go
//! of those that are gone, and does not offer them any more.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunet_verbs::{Error, PortFacts, Sysfs};

use super::start::let_go;
use super::{Change, prepare};
use crate::core::Core;
use crate::front::Front;
use crate::hosting::{Portal, Transports};
use crate::mail::{Mail, Owed};

/// How often it looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// What failed is tried again after one interval, two, four, and so on, and at last after so many.
const LONGEST: u32 = 64;

/// How long all shards together may take to open devices.
const OPENING: Duration = Duration::from_secs(30);

/// The thread.
pub struct Scout {
    /// Dropped, it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// When to try.
struct Patience {
    /// The devices at the last try.
    seen: Option<Vec<PortFacts>>,
    /// Intervals until the next try with the same devices, and between the last two.
    left: u32,
    pause: u32,
}

impl Patience {
    /// The next look is worth a try.
    const EAGER: Self = Self { seen: None, left: 1, pause: 1 };

    /// True if it is worth a try now, with these devices.
    fn is_due(&mut self, ports: Vec<PortFacts>) -> bool {
        if self.seen.as_ref() != Some(&ports) {
            *self = Self { seen: Some(ports), left: 1, pause: 1 };
            return true;
        }
        if ports.is_empty() {
            return false;
        }
        self.left -= 1;
        let due = self.left == 0;
        if due {
            self.pause = (self.pause * 2).min(LONGEST);
            self.left = self.pause;
        }
        due
    }
}

impl Scout {
    /// Starts the thread, if portals may be served over RDMA.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start<F: Front>(core: Arc<Core<F>>) -> io::Result<Option<Self>> {
        let wanted = core.first_portals.iter().any(|portal| portal.transports.rdma());
        if !wanted {
            return Ok(None);
        }
        let (stop, stopped) = channel();
        let work = move || {
            let sysfs = Sysfs::default();
            let mut patience = Patience { seen: Some(sysfs.ports()), ..Patience::EAGER };
            let mut opened = (core.rdma.losses(), sysfs.usable());
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = (core.rdma.losses(), sysfs.usable());
                if has_lost(&opened, &now) {
                    // If nothing was ever served, the library has not opened anything.
                    if now.0 > 0 || (0..core.first_portals.len()).any(|n| core.rdma.is_served(n)) {
                        let_go();
                    }
                    patience = Patience::EAGER;
                }
                opened = now;
                if patience.is_due(sysfs.ports()) {
                    open(&core);
                }
            }
        };
        let thread = std::thread::Builder::new().name("lunet-rdma".into()).spawn(work)?;
        Ok(Some(Self { stop, thread }))
    }

    /// Ends the thread.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// True if a device was lost between two looks: one that serves a portal, or one that the library has opened
/// with the others. Each is losses so far, and devices that can be opened.
fn has_lost(before: &(u32, Vec<String>), now: &(u32, Vec<String>)) -> bool {
    before.0 != now.0 || before.1.iter().any(|device| !now.1.contains(device))
}

/// Opens what the portals need on all shards, and has the first one listen. Why it cannot is in the log, once.
fn open<F: Front>(core: &Core<F>) {
    let softened = |portal: &Portal| match portal.transports {
        // The server would not have started without it.
        Transports::Rdma => Portal { transports: Transports::Both, ..portal.clone() },
        _ => portal.clone(),
    };
    let portals: Vec<Portal> = core.first_portals.iter().map(softened).collect();
    let Ok(Some(fabric)) = prepare(&portals, &core.rdma) else { return };
    let mailboxes = core.mailboxes();
    let (reply, answers) = sync_channel(mailboxes.len());
    let tell = |shard: usize, change| mailboxes[shard].send(Mail::Rdma(change)).is_ok();
    let deadline = Instant::now() + OPENING;
    let told = (0..mailboxes.len()).all(|n| tell(n, Change::Open(fabric.clone(), reply.clone())));
    drop(reply);
    let left = || deadline.saturating_duration_since(Instant::now());
    let silent = |_| Err(Error::Ended);
    let mut opened = mailboxes.iter().map(|_| answers.recv_timeout(left()).unwrap_or_else(silent));
    match opened.find_map(Result::err) {
        None if told && tell(0, Change::Listen(fabric.clone())) => {}
        error => {
            for mailbox in mailboxes {
                mailbox.deliver(Owed::Rdma(Change::Close(fabric.clone())));
            }
            let error = error.unwrap_or(Error::Ended);
            // No portal is for RDMA alone here.
            let _ = fabric.give_up(&portals, &error, &core.rdma);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::port_facts;
    use super::*;

    fn ports(state: &str) -> Vec<PortFacts> {
        vec![port_facts("a", state, &[])]
    }

    #[test]
    fn a_device_is_lost_by_whoever_sees_it_first() {
        let look = |losses, devices: &[&str]| {
            (losses, devices.iter().map(|d| (*d).to_owned()).collect::<Vec<_>>())
        };
        let both = look(1, &["a", "b"]);
        assert!(!has_lost(&both, &both) && !has_lost(&look(1, &["a"]), &both));
        assert!(has_lost(&both, &look(1, &["b"])), "one that serves nobody");
        assert!(has_lost(&both, &look(2, &["a", "b"])), "it has come back since");
    }

    #[test]
    fn what_has_changed_is_tried_at_once_and_what_failed_ever_less_often() {
        let mut patience = Patience { seen: Some(Vec::new()), left: 1, pause: 1 };
        assert!((0..100).all(|_| !patience.is_due(Vec::new())), "there is nothing to try");
        assert!(patience.is_due(ports("DOWN")));
        let tries: Vec<usize> = (1..40).filter(|_| patience.is_due(ports("DOWN"))).collect();
        assert_eq!(tries, [1, 3, 7, 15, 31]);
        let most = (0..1000).filter(|_| patience.is_due(ports("DOWN"))).count();
        assert!(most <= 1000 / LONGEST as usize + 1, "{most}");
        assert!(patience.is_due(ports("ACTIVE")));
    }
}
