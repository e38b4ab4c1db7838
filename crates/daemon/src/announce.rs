//! Announces discovery of NVMe over TCP by mDNS (NVMe TP 8009, `_nvme-disc._tcp`).
//!
//! The [helper](crate::helper) runs `avahi-publish` for it. A thread of its own asks the helper: clients do not wait for Avahi.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::helper::Announced;
use lunet_config::Config;

/// The interval of the checks whether the portals are still announced, and the first pause after a failure.
const PERIOD: Duration = Duration::from_secs(2);
/// The longest pause after a failure. Pauses double up to it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The end of the thread is waited for so long.
const END: Duration = Duration::from_secs(1);

enum Message {
    /// Announce these from now on.
    Portals(Vec<SocketAddr>),
    End,
}

/// Announces until it is dropped. Its thread begins when there is something to be announced.
#[derive(Default)]
pub struct Announcer(Arc<Mutex<Option<Announcing>>>);

/// The thread.
struct Announcing {
    messages: Sender<Message>,
    ended: Receiver<()>,
}

impl Announcing {
    /// Announces nothing yet.
    ///
    /// # Errors
    /// The system has no thread to give.
    fn start() -> io::Result<Self> {
        let (messages, received) = channel();
        let (end, ended) = channel();
        let run = move || {
            run(&received);
            let _ = end.send(());
        };
        drop(thread::Builder::new().name("announce".to_owned()).spawn(run)?);
        Ok(Self { messages, ended })
    }
}

impl Announcer {
    /// What tells it of the configuration that is in force.
    pub fn teller(&self) -> impl Fn(&Config) + Send + Sync + 'static + use<> {
        let announcing = self.0.clone();
        move |config| {
            let portals = announced(config);
            let mut announcing = announcing.lock().unwrap_or_else(PoisonError::into_inner);
            if announcing.is_none() && !portals.is_empty() {
                match Announcing::start() {
                    Ok(new) => *announcing = Some(new),
                    Err(error) => tracing::warn!(
                        "cannot announce discovery, there is no thread for it: {error}"
                    ),
                }
            }
            if let Some(announcing) = &*announcing {
                let _ = announcing.messages.send(Message::Portals(portals));
            }
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let announcing = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Announcing { messages, ended }) = announcing {
            let _ = messages.send(Message::End);
            // One that waits for Avahi ends with the process.
            let _ = ended.recv_timeout(END);
        }
    }
}

/// The portals that are announced: none that other machines cannot reach, and none whose port is not known.
fn announced(config: &Config) -> Vec<SocketAddr> {
    if !config.nvme.announce {
        return Vec::new();
    }
    let portals = config.nvme.portals.iter().map(|portal| portal.address);
    portals.filter(|address| !address.ip().is_loopback() && address.port() != 0).collect()
}

fn run(messages: &Receiver<Message>) {
    let mut state = State::default();
    loop {
        let message = match state.wanted.is_empty() {
            true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => messages.recv_timeout(PERIOD),
        };
        match message {
            Ok(Message::Portals(portals)) if portals != state.wanted => {
                // Dropped first: Avahi refuses a name that it still has.
                drop(std::mem::take(&mut state));
                state.wanted = portals;
            }
            Ok(Message::Portals(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        state.step();
    }
}

/// What is to be announced, and what is.
#[derive(Default)]
struct State {
    wanted: Vec<SocketAddr>,
    announced: Option<Announced>,
    /// A failure was logged, and nothing is announced since.
    logged: bool,
    /// The next attempt, and the pause after it.
    next: Option<(Instant, Duration)>,
}

impl State {
    /// Announces what is wanted, unless it is announced or has failed a moment ago.
    fn step(&mut self) {
        if let Some(reason) = self.announced.as_ref().and_then(Announced::ended) {
            self.announced = None;
            self.fail(&reason);
            return;
        }
        let is_due = self.next.is_none_or(|(at, _)| at <= Instant::now());
        if self.wanted.is_empty() || self.announced.is_some() || !is_due {
            return;
        }
        match Announced::start(&self.wanted) {
            Ok(new) => {
                let all: Vec<String> = self.wanted.iter().map(SocketAddr::to_string).collect();
                tracing::info!("NVMe discovery is announced by mDNS: {}", all.join(", "));
                (self.announced, self.logged, self.next) = (Some(new), false, None);
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    /// Logs the first failure and sets the next attempt.
    fn fail(&mut self, reason: &str) {
        let pause = self.next.map_or(PERIOD, |(_, pause)| pause);
        self.next = Some((Instant::now() + pause, (pause * 2).min(LONGEST_PAUSE)));
        if !std::mem::replace(&mut self.logged, true) {
            tracing::warn!(
                "NVMe discovery is not announced by mDNS ({reason}): check that avahi-daemon runs and avahi-utils is installed, or \
                 remove `announce` from [nvme]; lunet retries"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    #[test]
    fn portals_that_others_can_reach_are_announced_if_asked_for() {
        let text = |more: &str| {
            let portal = |address: &str| {
                format!("[[portal]]\naddress = '{address}'\ntransport = 'nvme-tcp'\n")
            };
            let portals = ["127.0.0.1", "[::1]:8009", "192.0.2.7:8009", "[::]", "192.0.2.7:0"];
            let portals: String = portals.into_iter().map(portal).collect();
            check(&format!("{portals}[[subsystem]]\nnqn = 'nqn.2026-11.l:x'\n{more}")).unwrap()
        };
        assert_eq!(announced(&text("")), []);
        let all = announced(&text("[nvme]\nannounce = true\n"));
        let all: Vec<String> = all.iter().map(SocketAddr::to_string).collect();
        assert_eq!(all, ["192.0.2.7:8009", "[::]:4420"]);
    }
}
