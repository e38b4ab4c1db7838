//! What shards say to each other, and the server to them. Control only: nothing of a read or a
//! write ever comes this way.
//!
//! There are two kinds of messages. A request ([`Mailbox::send`]) may find the mailbox full, and its sender
//! does something else then. What somebody waits for ([`Mailbox::deliver`]) always finds room, so that nobody
//! waits for ever. It is no less bounded for that: there is one at the most for each request that was delivered,
//! each command, login or lost device that waits, each connection that has lost its place, one to stop, and as many
//! clears as shards may have under way (`shard::management`), and these are bounded.
//!
//! Whoever waits for a part that each shard has to do ([`Part`], [`Receipt`]) hears of it when the part is dropped,
//! wherever that is: a shard that has ended has nothing left to do.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunet_iscsi::target::Tag;
use lunet_ring::Waker;
use lunet_scsi::reserve::NexusId;
use lunet_volume::{Drain, VolumeId};

use crate::change::Proposal;
use crate::entry::Entry;
use crate::keeper::Carried;
use crate::rdma::{Change, Request};
use crate::registry::Place;
use crate::stats::{SessionInfo, ShardStats};

/// How many messages may wait for a shard before it takes no more requests.
pub const MAILBOX: usize = 4096;

/// A message to a shard.
pub enum Mail {
    /// A new connection is yours.
    Connection {
        /// What it is counted for.
        entry: Entry,
        /// Its socket.
        socket: OwnedFd,
        /// The initiator's address.
        peer: SocketAddr,
        /// Index of the portal that it came in by.
        portal: usize,
    },
    /// A connection over RDMA is yours, if it can be had.
    RdmaRequest(Box<Request>),
    /// The server's RDMA devices change.
    Rdma(Change),
    /// End this connection: its nexus logged in anew. Answer with `Ended` to `reply`.
    End {
        /// The connection to end.
        connection: u64,
        /// Who waits for it.
        reply: Place,
    },
    /// Hold requests back that reach into a range, and say when none of this shard's is at the storage any more.
    Drain(Drain),
    /// Somebody on this shard who stood in a line has come to its head.
    Turn,
    /// What is served is to change. What becomes of it is written in the proposal.
    World(Arc<Proposal>),
    /// What somebody waits for.
    Owed(Owed),
    /// Ask the sessions with these handles to log out, and end them if they do not.
    EndSessions(Arc<[u16]>),
    /// Report the shard's sessions.
    Sessions(SyncSender<Vec<SessionInfo>>),
    /// Report the shard's statistics.
    Stats(SyncSender<ShardStats>),
}

/// What a command, a connection or a driver waits for: the answer to a request, or something that has to be
/// done before there is one. And what nobody may do without, because it is said once: to stop, and that a
/// connection has lost its place.
pub enum Owed {
    /// Stop: ask sessions to log out, end what is left after the grace time, flush, return.
    Stop {
        /// How long sessions have for it.
        grace: Duration,
    },
    /// This connection has lost its place to another one: it ends, unless it has logged in at a target.
    Evict {
        /// The connection.
        connection: u64,
    },
    /// Abort the commands on volumes that sessions of this shard have sent by now.
    Clear(Clear),
    /// The connection that stood in the way of this one has ended.
    Ended {
        /// The connection that waited.
        waiter: u64,
    },
    /// The last shard has done what a `Clear` of this one asked for.
    Cleared,
    /// Abort the commands of these nexuses on a volume.
    Abort(Preempted),
    /// Something that a command waited for is done.
    Settled {
        /// The command's ticket.
        ticket: u64,
        /// False if it could not be done.
        done: bool,
    },
    /// The keeper is done with a command on reservations.
    Kept {
        /// The command's ticket.
        ticket: u64,
        /// What came of it.
        result: Carried,
    },
    /// Work that a command waited for has been done by another thread.
    Returned {
        /// The work's ticket.
        ticket: u64,
    },
    /// An RDMA device is to be let go of; its driver waits for every shard.
    Rdma(Change),
}

/// Whose commands are to be aborted.
pub type AbortOrder = Arc<[Arc<NexusId>]>;

/// An order to abort, see [`Owed::Abort`].
pub struct Preempted {
    /// Index of the volume.
    pub volume: VolumeId,
    /// Whose commands.
    pub order: AbortOrder,
    /// Who asks.
    pub asking: Asking,
    /// Dropped when it is done.
    pub receipt: Receipt,
}

impl Preempted {
    /// Tells every shard to abort the commands of these nexuses on a volume.
    pub fn tell(mailboxes: &[Mailbox], volume: VolumeId, order: &AbortOrder, asking: Asking) {
        for mailbox in mailboxes {
            let receipt = Receipt { to: mailboxes[asking.shard].clone(), ticket: asking.ticket };
            let order = order.clone();
            mailbox.deliver(Owed::Abort(Self { volume, order, asking, receipt }));
        }
    }
}

/// What a shard has to do for a command, which is told by [`Owed::Settled`] when this is dropped.
pub struct Receipt {
    to: Mailbox,
    ticket: u64,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.to.deliver(Owed::Settled { ticket: self.ticket, done: true });
    }
}

/// A command that waits for the other shards.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// The shard that it is on.
    pub shard: usize,
    /// What it is answered by.
    pub ticket: u64,
    /// The connection that it came by.
    pub connection: u64,
    /// Its name there: what this connection has sent after it is not ended by it.
    pub command: Tag,
}

/// A task management function that reaches beyond its own session, as the other shards are told.
///
/// It ends the commands that a shard has received when it reads the message. That can be none of the
/// session that asked, which lives on the shard that sends it and is dealt with there, by CmdSN: so
/// nothing that was sent after the function is ended by it.
pub struct Clear {
    /// The volumes concerned.
    pub volumes: Arc<[Cleared]>,
    /// What the other sessions are told.
    pub cause: Cause,
    /// The slot of the target that was reset: a cold reset ends its sessions that see one of the volumes,
    /// and no other target's.
    pub target: Option<usize>,
    /// Dropped when it is done; `None` on the shard that asks.
    pub part: Option<Part>,
}

impl Clear {
    /// What another shard is told.
    pub fn for_another(&self, part: Part) -> Self {
        let Self { ref volumes, cause, target, .. } = *self;
        Self { volumes: volumes.clone(), cause, target, part: Some(part) }
    }
}

/// A shard's part of a [`Clear`]. With the last one that is dropped the shard that asked gets [`Owed::Cleared`].
pub struct Part {
    left: Arc<AtomicUsize>,
    to: Mailbox,
}

impl Part {
    /// One of the parts that `left` counts. `to` leads to the shard that asks.
    pub fn new(left: &Arc<AtomicUsize>, to: &Mailbox) -> Self {
        Self { left: left.clone(), to: to.clone() }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.to.deliver(Owed::Cleared);
        }
    }
}

/// A volume whose commands are ended.
#[derive(Clone, Copy, Debug)]
pub struct Cleared {
    /// Its slot.
    pub volume: VolumeId,
    /// TAS: commands of other sessions end in TASK ABORTED.
    pub tells: bool,
}

/// Why commands of another initiator were aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET, TARGET WARM RESET.
    Reset,
    /// TARGET COLD RESET: the target's sessions end as well.
    ColdReset,
}

/// Why a request did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// The mailbox is full; try again.
    Full,
    /// The shard has ended.
    Gone,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Mail>,
    /// Nobody reads them any more.
    gone: bool,
}

fn open(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to one shard. Cheap to clone.
#[derive(Clone)]
pub struct Mailbox {
    queue: Arc<Mutex<Queue>>,
    waker: Waker,
}

impl Mailbox {
    /// A mailbox whose messages wake the event loop behind `waker`.
    pub fn new(waker: Waker) -> (Self, Inbox) {
        let queue = Arc::<Mutex<Queue>>::default();
        (Self { queue: queue.clone(), waker }, Inbox(queue))
    }

    /// Delivers a request.
    ///
    /// # Errors
    /// The mailbox is full or its shard is gone.
    pub fn send(&self, mail: Mail) -> Result<(), Undelivered> {
        let mut queue = open(&self.queue);
        if queue.gone {
            return Err(Undelivered::Gone);
        }
        if queue.messages.len() >= MAILBOX {
            return Err(Undelivered::Full);
        }
        queue.messages.push_back(mail);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Delivers what somebody waits for, however full the mailbox is. A shard that is gone has nobody who waits.
    pub fn deliver(&self, owed: Owed) {
        let mut queue = open(&self.queue);
        let gone = queue.gone;
        if gone {
            // What it drops may tell others.
            drop(queue);
            drop(owed);
        } else {
            queue.messages.push_back(Mail::Owed(owed));
            drop(queue);
            self.wake();
        }
    }

    /// Has the shard begin another turn.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

/// The reading end of a mailbox.
pub struct Inbox(Arc<Mutex<Queue>>);

impl Inbox {
    /// The oldest message.
    pub fn next(&self) -> Option<Mail> {
        open(&self.0).messages.pop_front()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut queue = open(&self.0);
        queue.gone = true;
        let messages = std::mem::take(&mut queue.messages);
        // What is in them may have more to do than this lock should wait for.
        drop(queue);
        drop(messages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_ring::{Config, Ring};

    #[test]
    fn what_somebody_waits_for_finds_room_in_a_full_mailbox() {
        let config = Config { arena_bytes: 4 << 20, ..Config::default() };
        let ring = Ring::new(&config).expect("an event loop");
        let (mailbox, messages) = Mailbox::new(ring.waker());
        let sent = std::iter::from_fn(|| mailbox.send(Mail::Turn).ok()).count();
        assert_eq!(sent, MAILBOX);
        for ticket in 0..100 {
            mailbox.deliver(Owed::Settled { ticket, done: true });
            assert_eq!(mailbox.send(Mail::Turn).err(), Some(Undelivered::Full));
        }
        let mut owed = 0;
        while let Some(mail) = messages.next() {
            if let Mail::Owed(Owed::Settled { ticket, done: true }) = mail {
                assert_eq!(ticket, owed, "in their order");
                owed += 1;
            }
        }
        assert_eq!(owed, 100);
        drop(messages);
        mailbox.deliver(Owed::Returned { ticket: 1 });
        assert_eq!(mailbox.send(Mail::Turn).err(), Some(Undelivered::Gone));
    }

    /// A shard that ends, or has ended, does its part by that: it has no commands any more.
    #[test]
    fn a_part_of_a_shard_that_has_ended_is_done() {
        let config = Config { arena_bytes: 4 << 20, ..Config::default() };
        let ring = Ring::new(&config).expect("an event loop");
        let ((asks, answers), (other, unread)) =
            (Mailbox::new(ring.waker()), Mailbox::new(ring.waker()));
        let left = Arc::new(AtomicUsize::new(2));
        let tell = || {
            let part = Some(Part::new(&left, &asks));
            let clear = Clear { volumes: [].into(), cause: Cause::Reset, target: None, part };
            other.deliver(Owed::Clear(clear));
            let asking = Asking { shard: 0, ticket: 7, connection: 1, command: Tag::from_bits(0) };
            let mailboxes = [asks.clone(), other.clone()];
            Preempted::tell(&mailboxes, VolumeId::new(0), &[].into(), asking);
        };
        let said = || {
            let all = std::iter::from_fn(|| answers.next());
            all.fold((0, 0), |(cleared, settled), mail| match mail {
                Mail::Owed(Owed::Cleared) => (cleared + 1, settled),
                Mail::Owed(Owed::Settled { ticket: 7, done: true }) => (cleared, settled + 1),
                _ => (cleared, settled),
            })
        };
        tell();
        // The order to itself is among them, and is done when it is read.
        assert_eq!((said(), said()), ((0, 1), (0, 0)));
        drop(unread);
        assert_eq!(said(), (0, 1), "one of two has cleared");
        tell();
        assert_eq!((said().0, left.load(Ordering::Acquire)), (1, 0));
    }
}
