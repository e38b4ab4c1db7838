//! Looks after the event loops: whether they answer, and what becomes of new connections meanwhile.
//!
//! A shard that the kernel holds up in a request to storage can do nothing, and the connections that live on it wait.
//! New ones must not: they go to other shards, those that wait for it already are taken back, and where it is the shard
//! that accepts, this thread accepts in its place.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::change::ACCEPTS;
use crate::core::Core;
use crate::front::Front;
use crate::mail::Mail;

/// How often shards are asked.
pub(crate) const PULSE: Duration = Duration::from_secs(1);

/// How often it looks for new connections in the place of the shard that accepts.
const ACCEPT_PULSE: Duration = Duration::from_millis(50);

/// How long an accept may wait that finds the connection gone: the shard goes on and has taken it itself.
const RACE: Duration = Duration::from_millis(10);

/// Connections that it accepts in one look.
const BATCH: usize = 64;

/// What the log has been told.
#[derive(Default)]
pub(crate) struct Watch {
    /// The shards that have been reported, with for how long they have not answered.
    told: Vec<(usize, Duration)>,
}

impl Watch {
    /// Looks at all shards. The answer is when to look again.
    pub(crate) fn look<F: Front>(&mut self, core: &Arc<Core<F>>) -> Duration {
        if !core.is_serving() {
            return PULSE;
        }
        let shards = core.mailboxes().len();
        let (late, sound): (Vec<usize>, Vec<usize>) =
            (0..shards).partition(|shard| core.is_late(*shard));
        self.tell(core);
        for mailbox in core.mailboxes() {
            mailbox.ask();
        }
        if sound.is_empty() || late.is_empty() {
            return PULSE;
        }
        for shard in &late {
            for mail in core.mailboxes()[*shard].take_connections() {
                // Its entry gives the place on the late shard back.
                let Mail::Connection { socket, peer, portal, .. } = mail else { continue };
                core.place(portal, socket, peer);
            }
        }
        if late.contains(&ACCEPTS) {
            accept(core);
            return ACCEPT_PULSE;
        }
        PULSE
    }

    /// One line for a shard that does not answer, and one when it does again.
    fn tell<F: Front>(&mut self, core: &Core<F>) {
        let silent = core.silent();
        let first = core.member.first_shard();
        self.told.retain(|(shard, was)| {
            let still = silent.iter().any(|(other, _)| other == shard);
            if !still {
                let seconds = was.as_secs();
                tracing::warn!(shard = first + shard, seconds, "an event loop answers again");
            }
            still
        });
        for (shard, silence) in silent {
            match self.told.iter_mut().find(|(other, _)| *other == shard) {
                Some((_, was)) => *was = silence,
                None => {
                    let seconds = silence.as_secs();
                    tracing::warn!(
                        shard = first + shard,
                        seconds,
                        "an event loop does not answer: the storage of a volume may hang; its connections wait, new ones \
                         go to other event loops"
                    );
                    self.told.push((shard, silence));
                }
            }
        }
    }
}

/// Accepts what waits at the portals.
fn accept<F: Front>(core: &Arc<Core<F>>) {
    let world = core.world();
    let waiting = core.copies_of_listeners();
    for (portal, listener) in waiting {
        if world.portals.get(portal).is_none() {
            continue;
        }
        // The option of the socket, which the shard has as well: io_uring and epoll do not wait in an accept.
        let _ = socket2::SockRef::from(&listener).set_read_timeout(Some(RACE));
        for _ in 0..BATCH {
            if !is_ready(&listener) {
                break;
            }
            let Ok((stream, peer)) = listener.accept() else { break };
            core.place(portal, stream.into(), peer);
        }
    }
}

fn is_ready(listener: &TcpListener) -> bool {
    let mut one = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut one, Some(&now)).is_ok_and(|ready| ready == 1)
}
