//! What shards say to each other, and the server to them. Control only: nothing of a read or a
//! write ever comes this way.
//!
//! There are two kinds of messages. A request ([`Mailbox::send`]) may find the mailbox full, and its sender
//! does something else then. What somebody waits for ([`Mailbox::deliver`]) always finds room, so that nobody
//! waits for ever. It is no less bounded for that: there is one at the most for each request that was delivered,
//! each command, login or lost device that waits, each connection that has lost its place, one to stop, and as many
//! messages of a protocol ([`Front::Message`]) as that has under way, and these are bounded.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use lunet_os::sync::mpsc::SyncSender;
use lunet_os::sync::{Mutex, MutexGuard};
use lunet_ring::Waker;
use lunet_volume::{Drain, Ticket};

use crate::change::Proposal;
use crate::front::Front;
use crate::places::{ConnRef, Entry};
use crate::rdma::{Change, Request};
use crate::stats::ShardStats;

/// How many messages may wait for a shard before it takes no more requests.
pub const MAILBOX: usize = 4096;

/// A message to a shard.
pub enum Mail<F: Front> {
    /// A new connection is yours.
    Connection {
        /// What it is counted for.
        entry: Entry<F>,
        /// The accepted socket.
        socket: OwnedFd,
        /// The client's address.
        peer: SocketAddr,
        /// Index of the portal that it came in by.
        portal: usize,
    },
    /// A connection over RDMA is yours, if it can be had.
    RdmaRequest(Box<Request<F>>),
    /// The server's RDMA devices change.
    Rdma(Change),
    /// End this connection: its client has logged in anew. Answer with `Ended` to `reply`.
    End {
        /// Serial number of the connection to end.
        connection: u64,
        /// Who waits for it.
        reply: ConnRef,
    },
    /// Hold requests back that reach into a range, and say when none of this shard's is at the storage any more.
    Drain(Drain),
    /// Somebody on this shard who stood in a line has come to its head.
    Turn,
    /// What is served is to change. What becomes of it is written in the proposal.
    World(Arc<Proposal<F>>),
    /// What somebody waits for.
    Owed(Owed<F::Message>),
    /// Ask the sessions with these handles to log out, and end them if they do not.
    EndSessions(Arc<[u16]>),
    /// Report the shard's sessions.
    Sessions(SyncSender<Vec<F::Session>>),
    /// Report the shard's statistics.
    Stats(SyncSender<ShardStats<F::Counts>>),
}

/// What a command, a connection or a driver waits for: the answer to a request, or something that has to be
/// done before there is one. And what nobody may do without, because it is said once: to stop, and that a
/// connection has lost its place.
pub enum Owed<M> {
    /// Stop: ask sessions to log out, end what is left after the grace time, flush, return.
    Stop {
        /// How long sessions have for it.
        grace: Duration,
    },
    /// This connection has lost its place to another one: it ends, unless it [serves](crate::front::FrontConn::serves).
    Evict {
        /// Serial number of the connection.
        connection: u64,
    },
    /// The connection that stood in the way of this one has ended.
    Ended {
        /// The connection that waited.
        waiter: u64,
    },
    /// What a protocol says to itself on another shard.
    Front(M),
    /// Work that a command waited for has been done by another thread.
    Returned {
        /// The work's ticket.
        ticket: Ticket,
    },
    /// An RDMA device is to be let go of; its driver waits for every shard.
    Rdma(Change),
}

/// Why a request did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// The mailbox is full; try again.
    Full,
    /// The shard has ended.
    Gone,
}

struct Queue<F: Front> {
    messages: VecDeque<Mail<F>>,
    /// Nobody reads them any more.
    gone: bool,
    /// Since when the shard has been woken and has not looked.
    unanswered: Option<Instant>,
}

impl<F: Front> Queue<F> {
    fn push(&mut self, mail: Mail<F>) {
        self.messages.push_back(mail);
        self.ask();
    }

    fn ask(&mut self) {
        self.unanswered.get_or_insert_with(lunet_os::time::now);
    }
}

fn open<F: Front>(queue: &Mutex<Queue<F>>) -> MutexGuard<'_, Queue<F>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The way to one shard. Cheap to clone.
pub struct Mailbox<F: Front> {
    queue: Arc<Mutex<Queue<F>>>,
    waker: Waker,
}

impl<F: Front> Clone for Mailbox<F> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), waker: self.waker.clone() }
    }
}

impl<F: Front> Mailbox<F> {
    /// A mailbox whose messages wake the event loop behind `waker`.
    pub fn new(waker: Waker) -> (Self, Inbox<F>) {
        let queue = Queue { messages: VecDeque::new(), gone: false, unanswered: None };
        let queue = Arc::new(Mutex::new(queue));
        (Self { queue: queue.clone(), waker }, Inbox(queue))
    }

    /// Delivers a request.
    ///
    /// # Errors
    /// The mailbox is full or its shard is gone.
    pub fn send(&self, mail: Mail<F>) -> Result<(), Undelivered> {
        let mut queue = open(&self.queue);
        if queue.gone {
            return Err(Undelivered::Gone);
        }
        if queue.messages.len() >= MAILBOX || lunet_os::misfortune() {
            return Err(Undelivered::Full);
        }
        queue.push(mail);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Delivers what somebody waits for, however full the mailbox is. A shard that is gone has nobody who waits.
    pub fn deliver(&self, owed: Owed<F::Message>) {
        let mut queue = open(&self.queue);
        let gone = queue.gone;
        if gone {
            // What it drops may tell others.
            drop(queue);
            drop(owed);
        } else {
            queue.push(Mail::Owed(owed));
            drop(queue);
            self.wake();
        }
    }

    /// Delivers what a protocol says to itself on the shard.
    pub fn tell(&self, message: F::Message) {
        self.deliver(Owed::Front(message));
    }

    /// Has the shard look, so that it shows in [`silence`](Self::silence) if it does not.
    pub(crate) fn ask(&self) {
        open(&self.queue).ask();
        self.wake();
    }

    /// For how long the shard has been woken and has not looked; zero for one that has, or that has ended.
    pub(crate) fn silence(&self) -> Duration {
        let queue = open(&self.queue);
        let since = queue.unanswered.filter(|_| !queue.gone);
        since.map_or(Duration::ZERO, |since| lunet_os::time::now().saturating_duration_since(since))
    }

    /// Takes the new connections back that wait for the shard: one that does not answer takes none in.
    pub(crate) fn take_connections(&self) -> VecDeque<Mail<F>> {
        let mut queue = open(&self.queue);
        let all = std::mem::take(&mut queue.messages);
        let (taken, left): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|mail| matches!(mail, Mail::Connection { .. }));
        queue.messages = left;
        taken
    }

    /// Has the shard begin another loop iteration.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }
}

/// The reading end of a mailbox.
pub struct Inbox<F: Front>(Arc<Mutex<Queue<F>>>);

impl<F: Front> Inbox<F> {
    /// Takes the oldest message.
    pub fn next(&self) -> Option<Mail<F>> {
        let mut queue = open(&self.0);
        queue.unanswered = None;
        queue.messages.pop_front()
    }
}

impl<F: Front> Drop for Inbox<F> {
    fn drop(&mut self) {
        let mut queue = open(&self.0);
        queue.gone = true;
        let messages = std::mem::take(&mut queue.messages);
        // What is in them may have more to do than this lock should wait for.
        drop(queue);
        drop(messages);
    }
}
