//! Finds RDMA devices that appear or return while the server runs.
//!
//! A thread of its own, because the kernel may take its time to answer and no shard may wait for that. It reads
//! only sysfs until that changes or a device is lost.
//!
//! The kernel lists a removed device until the last program has closed it, and with some drivers (soft RoCE)
//! the removal waits for that. The library closes removed devices when it is asked for its devices, and does
//! not list them any more.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lunet_os::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use lunet_os::thread::JoinHandle;
use lunet_verbs::{Error, PortFacts, Sysfs};

use super::start::release_lost_devices;
use super::{Change, prepare};
use crate::core::Core;
use crate::front::Front;
use crate::hosting::{Portal, Transports};
use crate::mail::{Mail, Owed};

/// How often it reads sysfs.
const INTERVAL: Duration = Duration::from_secs(5);

/// A failed attempt is repeated after one interval, two, four, and so on, up to this many.
const LONGEST: u32 = 64;

/// Time limit for all shards together to open devices.
const OPENING: Duration = Duration::from_secs(30);

/// The thread.
pub struct DeviceMonitor {
    /// Dropping it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// When to try to open devices again.
struct Backoff {
    /// The devices at the last attempt.
    seen: Option<Vec<PortFacts>>,
    /// Intervals until the next attempt with the same devices, and between the last two.
    left: u32,
    pause: u32,
}

impl Backoff {
    /// Try at the next interval.
    const RESET: Self = Self { seen: None, left: 1, pause: 1 };

    /// True if an attempt is due now, with these devices.
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

impl DeviceMonitor {
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
            let mut backoff = Backoff { seen: Some(sysfs.ports()), ..Backoff::RESET };
            let mut opened = (core.rdma.losses(), sysfs.usable());
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = (core.rdma.losses(), sysfs.usable());
                if has_lost(&opened, &now) {
                    // If nothing was ever served, the library has not opened anything.
                    if now.0 > 0 || (0..core.first_portals.len()).any(|n| core.rdma.is_served(n)) {
                        release_lost_devices();
                    }
                    backoff = Backoff::RESET;
                }
                opened = now;
                if backoff.is_due(sysfs.ports()) {
                    open(&core);
                }
            }
        };
        let thread = lunet_os::thread::spawn("lunet-rdma", work)?;
        Ok(Some(Self { stop, thread }))
    }

    /// Ends the thread.
    pub fn stop(self) {
        drop(self.stop);
        let _ = self.thread.join();
    }
}

/// True if a device was lost between two intervals: one that serves a portal, or one that the library has opened
/// with the others. Each argument is the losses so far and the devices that can be opened.
fn has_lost(before: &(u32, Vec<String>), now: &(u32, Vec<String>)) -> bool {
    before.0 != now.0 || before.1.iter().any(|device| !now.1.contains(device))
}

/// Opens the devices that the portals need on all shards, and has the first shard listen. If it cannot, the reason
/// is logged once.
fn open<F: Front>(core: &Core<F>) {
    let optional = |portal: &Portal| match portal.transports {
        // It was served when the server started: a failure now must not end the server.
        Transports::Rdma => Portal { transports: Transports::Both, ..portal.clone() },
        _ => portal.clone(),
    };
    let portals: Vec<Portal> = core.first_portals.iter().map(optional).collect();
    let Ok(Some(device_set)) = prepare(&portals, &core.rdma) else { return };
    let mailboxes = core.mailboxes();
    let (reply, answers) = sync_channel(mailboxes.len());
    let tell = |shard: usize, change| mailboxes[shard].send(Mail::Rdma(change)).is_ok();
    let deadline = lunet_os::time::now() + OPENING;
    let sent =
        (0..mailboxes.len()).all(|n| tell(n, Change::Open(device_set.clone(), reply.clone())));
    drop(reply);
    let left = || deadline.saturating_duration_since(lunet_os::time::now());
    let silent = |_| Err(Error::Ended);
    let mut opened = mailboxes.iter().map(|_| answers.recv_timeout(left()).unwrap_or_else(silent));
    match opened.find_map(Result::err) {
        None if sent && tell(0, Change::Listen(device_set.clone())) => {}
        error => {
            for mailbox in mailboxes {
                mailbox.deliver(Owed::Rdma(Change::Close(device_set.clone())));
            }
            let error = error.unwrap_or(Error::Ended);
            // No portal is for RDMA alone here.
            let _ = device_set.give_up(&portals, &error, &core.rdma);
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
        let mut backoff = Backoff { seen: Some(Vec::new()), left: 1, pause: 1 };
        assert!((0..100).all(|_| !backoff.is_due(Vec::new())), "there is nothing to try");
        assert!(backoff.is_due(ports("DOWN")));
        let tries: Vec<usize> = (1..40).filter(|_| backoff.is_due(ports("DOWN"))).collect();
        assert_eq!(tries, [1, 3, 7, 15, 31]);
        let most = (0..1000).filter(|_| backoff.is_due(ports("DOWN"))).count();
        assert!(most <= 1000 / LONGEST as usize + 1, "{most}");
        assert!(backoff.is_due(ports("ACTIVE")));
    }
}
