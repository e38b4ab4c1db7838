//! The seam between volumes and the event loop.

use alloc::boxed::Box;
use core::time::Duration;

use crate::{Caps, Completion, NothingSlow, Request, Slow};

/// Names an operation that a channel has queued on the event loop. The channel chooses `slot`,
/// below 2^31, because the top bit belongs to channels that wrap another one. `channel` is the
/// number that the shard gave it when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoToken {
    /// The channel that queued the operation.
    pub channel: u16,
    /// The channel's own number for it.
    pub slot: u32,
}

/// The end of an operation that a channel had queued on the event loop.
#[derive(Debug)]
pub struct IoDone<B> {
    /// The channel's own number for it.
    pub slot: u32,
    /// The buffer that went with it.
    pub buf: Option<B>,
    /// Bytes moved, or the operating system's error number.
    pub result: Result<usize, i32>,
}

/// What became of a submitted request.
#[derive(Debug)]
pub enum Submit<B> {
    /// The answer comes later, from [`Channel::advance`].
    Queued,
    /// Answered on the spot.
    Done(Completion<B>),
    /// The channel is full: submit the request again after its next completion.
    Busy(Request<B>),
}

/// An open volume. Shared by all shards; each opens a [`Channel`] of its own. `B` is the event
/// loop's buffer, `Q` the event loop's queue.
pub trait Backend<B, Q>: Send + Sync {
    /// What the volume is and can do.
    fn caps(&self) -> &Caps;

    /// Opens what the next `channels` calls of [`open_channel`](Self::open_channel) need, so that they do not
    /// block. May block itself: it is for threads that are no event loop. What is not used is let go of with
    /// the volume.
    ///
    /// # Errors
    /// The operating system's error number.
    fn ready_channels(&self, channels: usize) -> Result<(), i32> {
        let _ = channels;
        Ok(())
    }

    /// A way to the volume for one shard. `number` goes into every [`IoToken`] of the channel.
    ///
    /// # Errors
    /// The operating system's error number, if the event loop cannot take the volume's file.
    fn open_channel(&self, number: u16, io: &mut Q) -> Result<Box<dyn Channel<B, Q>>, i32>;

    /// The operations that block, for helper threads.
    fn slow(&self) -> &dyn Slow {
        &NothingSlow
    }
}

/// One shard's way to a volume. Never blocks, never shared between threads.
pub trait Channel<B, Q> {
    /// Starts a request. The caller has checked it against [`Caps`]: range, alignment, and that
    /// the operation is not `Support::None`.
    fn submit(&mut self, request: Request<B>, io: &mut Q) -> Submit<B>;

    /// Takes the end of an operation that this channel had queued. Returns the answer if the
    /// request is finished; `None` if a further step was queued (a short read, the flush of FUA).
    fn advance(&mut self, done: IoDone<B>, io: &mut Q) -> Option<Completion<B>>;

    /// A further answer that came with the end of the operation that [`advance`](Self::advance) took last, or `None` if there
    /// is none left. To be called until then, where one wake-up tells of many answers.
    fn more(&mut self, io: &mut Q) -> Option<Completion<B>> {
        let _ = io;
        None
    }

    /// Asks that the request with this tag be given up if it has not started. It is answered in
    /// any case, with `Error::Cancelled` if it took no effect.
    fn cancel(&mut self, tag: u64, io: &mut Q);

    /// Answers by reference ([`Op::ReadMapped`](crate::Op::ReadMapped)) of this channel that somebody still
    /// has: what is written meanwhile may show in them.
    fn lent(&self) -> usize {
        0
    }

    /// True if this is such an answer.
    fn lends(&self, _answer: &B) -> bool {
        false
    }

    /// How long the request with this tag, if it was the last that was submitted, waits for its turn at a limit that
    /// somebody has set. The rest of its time is the storage's.
    fn limited(&self, _tag: u64) -> Duration {
        Duration::ZERO
    }

    /// Ends the channel and gives back what it has on the event loop. To be called when all its
    /// requests have been answered; only then may its number be given to another. A channel that
    /// is dropped instead keeps its place on the event loop as long as that lives.
    fn close(self: Box<Self>, io: &mut Q);
}
