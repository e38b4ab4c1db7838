//! What iSCSI on one shard says to itself on another one. Whatever it is, somebody waits for it.
//!
//! Whoever waits for a part that each shard has to do ([`Part`], [`Receipt`]) hears of it when the part is dropped,
//! wherever that is: a shard that has ended has nothing left to do. Commands are bounded, and so are the clears that
//! a shard may have under way (`session::management`): so are the messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lunet_iscsi::target::Tag;
use lunet_reservations::Registrant;
use lunet_volume::VolumeId;
use lunet_volume::reserve::{Done, Shared};

use crate::group::{GroupMessage, News};
use crate::keeper::Carried;
use crate::session::Mailbox;

/// A message.
pub enum Message {
    /// Abort the commands on volumes that sessions of this shard have sent by now.
    Clear(Clear),
    /// The last shard has done what a `Clear` of this one asked for.
    Cleared,
    /// Abort the commands of these registrants on a volume.
    Abort(Preempted),
    /// Something that a command waited for is done.
    Finished {
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
    /// An order of a failover group's thread.
    Group(GroupMessage),
    /// What has become of something that was passed on to the owner of a group.
    Relay(News),
}

/// Whose commands are to be aborted.
pub type AbortOrder = Arc<[Registrant]>;

/// An order to abort, see [`Message::Abort`].
pub struct Preempted {
    /// Index of the volume.
    pub volume: VolumeId,
    /// Whose commands.
    pub order: AbortOrder,
    /// The command that asks, if it is one of iSCSI: it is spared.
    pub spared: Option<Asking>,
    /// Dropped when it is done.
    pub receipt: Done,
}

impl Preempted {
    /// Tells every shard to abort the commands of these registrants on a volume.
    pub fn tell(mailboxes: &[Mailbox], volume: VolumeId, order: &AbortOrder, asking: Asking) {
        for mailbox in mailboxes {
            let receipt = Receipt { to: mailboxes[asking.shard].clone(), ticket: asking.ticket };
            let (order, receipt) = (order.clone(), Arc::new(receipt));
            mailbox.tell(Message::Abort(Self { volume, order, spared: Some(asking), receipt }));
        }
    }

    /// Tells the other protocols to abort the commands of these registrants.
    pub fn tell_others(
        reservations: &Shared,
        mailboxes: &[Mailbox],
        order: &AbortOrder,
        asking: Asking,
    ) {
        let receipt = Receipt { to: mailboxes[asking.shard].clone(), ticket: asking.ticket };
        let others = order.iter().filter(|whose| !is_initiator(whose)).cloned().collect();
        reservations.abort(&others, Arc::new(receipt));
    }
}

/// True for a registrant of SCSI.
pub fn is_initiator(whose: &Registrant) -> bool {
    whose.host_id().is_none()
}

/// Parts that a command waits for that preempts and aborts: one of each shard, and one of all other protocols.
pub fn parts_of_abort(mailboxes: &[Mailbox]) -> usize {
    mailboxes.len() + 1
}

/// What a shard has to do for a command, which is told by [`Message::Finished`] when this is dropped.
pub struct Receipt {
    to: Mailbox,
    ticket: u64,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.to.tell(Message::Finished { ticket: self.ticket, done: true });
    }
}

/// A command that waits for the other shards.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// Number of the shard that it is on.
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

/// A shard's part of a [`Clear`]. With the last one that is dropped the shard that asked gets [`Message::Cleared`].
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
            self.to.tell(Message::Cleared);
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

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_ring::{Config, Ring};
    use lunet_server::mail::{MAILBOX, Mail, Owed, Undelivered};

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
            other.tell(Message::Clear(clear));
            let asking = Asking { shard: 0, ticket: 7, connection: 1, command: Tag::from_bits(0) };
            let mailboxes = [asks.clone(), other.clone()];
            Preempted::tell(&mailboxes, VolumeId::new(0), &[].into(), asking);
        };
        let said = || {
            let all = std::iter::from_fn(|| answers.next());
            all.fold((0, 0), |(cleared, finished), mail| match mail {
                Mail::Owed(Owed::Front(Message::Cleared)) => (cleared + 1, finished),
                Mail::Owed(Owed::Front(Message::Finished { ticket: 7, done: true })) => {
                    (cleared, finished + 1)
                }
                _ => (cleared, finished),
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

    #[test]
    fn what_somebody_waits_for_finds_room_in_a_full_mailbox() {
        let config = Config { arena_bytes: 4 << 20, ..Config::default() };
        let ring = Ring::new(&config).expect("an event loop");
        let (mailbox, messages) = Mailbox::new(ring.waker());
        let sent = std::iter::from_fn(|| mailbox.send(Mail::Turn).ok()).count();
        assert_eq!(sent, MAILBOX);
        for waiter in 0..100 {
            mailbox.deliver(Owed::Ended { waiter });
            assert_eq!(mailbox.send(Mail::Turn).err(), Some(Undelivered::Full));
        }
        let mut owed = 0;
        while let Some(mail) = messages.next() {
            if let Mail::Owed(Owed::Ended { waiter }) = mail {
                assert_eq!(waiter, owed, "in their order");
                owed += 1;
            }
        }
        assert_eq!(owed, 100);
        drop(messages);
        mailbox.deliver(Owed::Ended { waiter: 1 });
        assert_eq!(mailbox.send(Mail::Turn).err(), Some(Undelivered::Gone));
    }
}
