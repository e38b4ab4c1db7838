//! What shards say to each other, and the server to them. Control only: nothing of a read or a
//! write ever comes this way. Every queue is bounded, and every sender has an answer for 'full'.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lunet_block::ByteRange;
use lunet_ring::Waker;
use lunet_scsi::reserve::NexusId;

use crate::entry::Entry;
use crate::locks::Locks;
use crate::rdma::{Change, Request};
use crate::registry::Place;
use crate::stats::{SessionInfo, ShardStats};
use crate::world::World;

/// How many letters may wait for a shard.
const MAILBOX: usize = 4096;

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
    /// The connection that stood in the way of this one has ended.
    Ended {
        /// The connection that waited.
        waiter: u64,
    },
    /// Abort every command on a volume, whoever sent it; answer with `Cleared` to `reply`.
    Clear(Clear),
    /// A shard has done what `Clear` asked for.
    Cleared {
        /// The connection that waits.
        waiter: u64,
        /// The task management function's ticket.
        ticket: u32,
    },
    /// Abort the commands of these nexuses on a volume; answer with `Settled`.
    Abort {
        /// Index of the volume.
        volume: usize,
        /// Whose commands.
        order: AbortOrder,
        /// The shard that asks.
        shard: usize,
        /// The ticket of the command that asks.
        ticket: u64,
    },
    /// Something that a command waited for is done.
    Settled {
        /// The command's ticket.
        ticket: u64,
        /// False if it could not be done.
        done: bool,
    },
    /// Hold requests back that reach into a range, and say when none of this shard's is at the storage any more.
    Drain {
        /// The slot of the volume.
        volume: usize,
        /// Its locks.
        locks: Arc<Locks>,
        /// The lock's place in the line.
        id: u64,
        /// The range.
        range: ByteRange,
    },
    /// Somebody on this shard who stood in a line has come to its head.
    Turn,
    /// Work that a command waited for has been done by another thread.
    Returned {
        /// The work's ticket.
        ticket: u64,
    },
    /// What is served changes.
    World {
        /// What comes.
        world: Arc<World>,
        /// What to do about it.
        step: Step,
        /// Who waits for the shard to have done it.
        reply: SyncSender<Result<(), String>>,
    },
    /// Report the shard's sessions.
    Sessions(SyncSender<Vec<SessionInfo>>),
    /// Report the shard's statistics.
    Stats(SyncSender<ShardStats>),
    /// Stop: ask sessions to log out, end what is left after the grace time, flush, return.
    Stop {
        /// How long sessions have for it.
        grace: Duration,
    },
}

/// The steps of a change of the world, see [`crate::change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Open what is new.
    Prepare,
    /// Close it again: the change does not come.
    Cancel,
    /// Work by the new world.
    Adopt,
}

/// Whose commands are to be aborted. Locked until it is known, and empty if nothing came of it.
pub type AbortOrder = Arc<Mutex<Vec<Arc<NexusId>>>>;

/// A task management function that reaches beyond its own session.
#[derive(Clone, Debug)]
pub struct Clear {
    /// Indexes of the volumes concerned.
    pub volumes: std::sync::Arc<[usize]>,
    /// What the other sessions are told.
    pub cause: Cause,
    /// Who asked; that connection's own commands are aborted too.
    pub reply: Place,
    /// Names the function at its connection.
    pub ticket: u32,
}

/// Why commands of another initiator were aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET, TARGET WARM RESET.
    Reset,
    /// TARGET COLD RESET: the sessions end as well.
    ColdReset,
}

/// Why a letter did not arrive.
pub enum Undelivered {
    /// The mailbox is full; try again.
    Full,
    /// The shard has ended.
    Gone,
}

/// The way to one shard. Cheap to clone.
#[derive(Clone)]
pub struct Mailbox {
    letters: SyncSender<Mail>,
    waker: Waker,
}

impl Mailbox {
    /// A mailbox whose letters wake the event loop behind `waker`.
    pub fn new(waker: Waker) -> (Self, Receiver<Mail>) {
        let (letters, receiver) = sync_channel(MAILBOX);
        (Self { letters, waker }, receiver)
    }

    /// Delivers a letter.
    ///
    /// # Errors
    /// The mailbox is full or its shard is gone.
    pub fn send(&self, mail: Mail) -> Result<(), Undelivered> {
        match self.letters.try_send(mail) {
            Ok(()) => {
                self.waker.wake();
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(Undelivered::Full),
            Err(TrySendError::Disconnected(_)) => Err(Undelivered::Gone),
        }
    }
}
