//! One shard's channel to a volume, and the health of the storage behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lunet_block::{Channel, Completion, IoDone, Op, Request, Submit};
use lunet_ring::{Payload, Ring};

use crate::count::Busy;
use crate::health::Health;
use crate::open::VolumeId;

/// A channel to a volume. Each request and each answer passes the health of the storage.
pub(crate) struct ChannelHandle {
    channel: Box<dyn Channel<Payload, Ring>>,
    health: Arc<Health>,
    /// The slot of its volume.
    pub volume: VolumeId,
    /// Requests that the channel had no room for.
    pub waiting: VecDeque<Request<Payload>>,
    /// Requests that the channel has queued.
    pub queued: usize,
    /// When it answered last, or got the first of those.
    pub since: Duration,
    /// Another channel has taken its place: it ends with its last request.
    pub leaving: bool,
    /// How long it had requests.
    busy: Busy,
}

impl ChannelHandle {
    /// A channel that has just been opened to the volume in this slot.
    pub fn new(
        channel: Box<dyn Channel<Payload, Ring>>,
        health: Arc<Health>,
        volume: VolumeId,
        now: Duration,
    ) -> Self {
        let waiting = VecDeque::new();
        Self {
            channel,
            health,
            volume,
            waiting,
            queued: 0,
            since: now,
            leaving: false,
            busy: Busy::default(),
        }
    }

    /// The channel has queued a request.
    #[inline]
    pub fn begin(&mut self, now: Duration) {
        if self.queued == 0 {
            self.since = now;
            self.busy.begin(now);
        }
        self.queued += 1;
    }

    /// A request that was queued has been answered.
    #[inline]
    pub fn end(&mut self, now: Duration) {
        self.queued -= 1;
        self.since = now;
        if self.queued == 0 {
            self.busy.end(now);
        }
    }

    /// How long it had requests so far.
    pub fn busy(&self, now: Duration) -> Duration {
        self.busy.time(self.queued > 0, now)
    }

    /// As [`Channel::submit`].
    pub fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        if let Some(error) = self.health.refuses(request.op) {
            return Submit::Done(request.complete(Err(error)));
        }
        let mut submitted = self.channel.submit(request, ring);
        if let Submit::Done(done) = &mut submitted {
            self.judge(done);
        }
        submitted
    }

    /// As [`Channel::advance`].
    pub fn advance(
        &mut self,
        done: IoDone<Payload>,
        ring: &mut Ring,
    ) -> Option<Completion<Payload>> {
        let mut done = self.channel.advance(done, ring);
        if let Some(done) = &mut done {
            self.judge(done);
        }
        done
    }

    /// As [`Channel::more`].
    pub fn more(&mut self, ring: &mut Ring) -> Option<Completion<Payload>> {
        let mut done = self.channel.more(ring);
        if let Some(done) = &mut done {
            self.judge(done);
        }
        done
    }

    /// As [`Channel::cancel`].
    pub fn cancel(&mut self, tag: u64, ring: &mut Ring) {
        self.channel.cancel(tag, ring);
    }

    /// As [`Channel::lent`].
    pub fn lent(&self) -> usize {
        self.channel.lent()
    }

    /// As [`Channel::lends`].
    pub fn lends(&self, answer: &Payload) -> bool {
        self.channel.lends(answer)
    }

    /// As [`Channel::limited`].
    pub fn limited(&self, tag: u64) -> Duration {
        self.channel.limited(tag)
    }

    /// As [`Channel::close`].
    pub fn close(self, ring: &mut Ring) {
        self.channel.close(ring);
    }

    /// True if it leaves, and has nothing more to do.
    pub fn is_over(&self) -> bool {
        self.leaving && self.queued == 0 && self.waiting.is_empty()
    }

    /// Only what makes data stable has anything to be judged; in place, as completions are large.
    #[inline]
    fn judge(&self, done: &mut Completion<Payload>) {
        if matches!(done.op, Op::Flush | Op::Write { fua: true }) {
            done.result = self.health.judge(done.op, done.result);
        }
    }
}
