//! What NVMe says to itself on other shards. Each message is there once for each queue, command or change that waits for
//! it.

use std::sync::Arc;

use lunet_nvme::auth::chap::Computed;
use lunet_nvme::controller::Tag;
use lunet_nvme::log::ReservationNotice;
use lunet_nvme::status::Status;
use lunet_reservations::Registrant;
use lunet_server::places::ConnRef;
use lunet_tls::exchange::Exchanged;
use lunet_volume::Face;
use lunet_volume::VolumeId;
use lunet_volume::reserve::{Done, Unchanged};

use crate::group::{GroupMessage, News};
use crate::session::Mailbox;

/// A message to the front of a shard.
pub enum Message {
    /// The controller of this queue has ended, or is being reset.
    EndQueue {
        /// The queue's connection.
        connection: u64,
        /// The admin queue was aborted, and so is this one: its shard may hear of that sooner than of the order that it was
        /// aborted by.
        aborted: bool,
    },
    /// The controller of this admin queue may have lost its last I/O queue.
    QueuesGone {
        /// The admin queue's connection.
        connection: u64,
    },
    /// A Connect that had to wait can be tried again.
    Retry {
        /// Its connection.
        connection: u64,
    },
    /// Abort a command of a queue.
    Abort {
        /// The queue's connection.
        connection: u64,
        /// The command's identifier.
        cid: u16,
        /// Who asks: the admin queue, and its command.
        asks: (ConnRef, Tag),
    },
    /// What became of that.
    Aborted {
        /// The admin queue's connection.
        connection: u64,
        /// The Abort command.
        tag: Tag,
        /// The command was aborted.
        done: bool,
    },
    /// A queue has found that paths to volumes have changed: hosts are told by the admin queue.
    Paths {
        /// The admin queue's connection.
        connection: u64,
    },
    /// The paths to a volume have changed: all hosts that it concerns are told.
    PathsChanged,
    /// An exchange of Diffie-Hellman is computed.
    Computed {
        /// The connection that authenticates.
        connection: u64,
        /// The command that waits for it.
        tag: Tag,
        /// What came of it.
        computed: Computed,
    },
    /// An exchange of Diffie-Hellman of a handshake of TLS is computed.
    Exchanged {
        /// The connection that waits for it.
        connection: u64,
        /// What came of it.
        exchanged: Exchanged,
    },
    /// A host has lost a registration or a reservation.
    Lost {
        /// The connection of the admin queue of one of its controllers.
        connection: u64,
        /// The volume.
        volume: VolumeId,
        /// What it has lost.
        notice: ReservationNotice,
    },
    /// Commands of hosts that were preempted are to be aborted.
    Preempted(Preempted),
    /// A part of what a command waits for is done.
    Part {
        /// What the command is known by.
        ticket: u64,
    },
    /// A change of reservations was carried out by the thread that keeps them, or was not.
    Kept {
        /// What the command is known by.
        ticket: u64,
        /// Parts that it waits for now, or why nothing has changed.
        result: Result<usize, Unchanged<Status>>,
    },
    /// An order of a failover group's thread.
    Group(GroupMessage),
    /// News of what this shard passes on.
    Relay(News),
}

/// Commands that are to be aborted before the command that asks for it is answered.
pub struct Preempted {
    /// The volume.
    pub volume: VolumeId,
    /// Whose commands.
    pub hosts: Arc<[Registrant]>,
    /// The command that asks, which is spared, if it is one of this protocol: its connection and its name.
    pub spared: Option<(u64, Tag)>,
    /// Tells who waits, when the last shard has dropped it: one that has ended has no commands any more.
    pub receipt: Done,
}

/// Tells a shard that a part is done, when it is dropped.
pub struct Receipt<Fc: Face> {
    /// The shard that waits.
    pub to: Mailbox<Fc>,
    /// What the command is known by.
    pub ticket: u64,
}

impl<Fc: Face> Drop for Receipt<Fc> {
    fn drop(&mut self) {
        self.to.tell(Message::Part { ticket: self.ticket });
    }
}
