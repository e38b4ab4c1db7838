//! The connection.

use super::{Counters, Cx, LoginRefusal, Options, Response, RxTarget, Site, Tag, Transmit, Wanted};
use crate::negotiation::Negotiated;
use crate::pdu::TmfResponse;
use core::marker::PhantomData;
use core::ops::Range;
use core::time::Duration;

/// One iSCSI connection, seen from the target.
pub struct Connection<B> {
    negotiated: Negotiated,
    counters: Counters,
    marker: PhantomData<B>,
}

#[expect(unused_variables, reason = "first the signatures")]
impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A connection on which nothing was received yet.
    #[must_use]
    pub fn new(options: Options, now: Duration) -> Self {
        unimplemented!()
    }

    /// The place of the next bytes of the stream, when they are write data: the caller receives
    /// into it and gives it back with `rx_payload`. None: all bytes go to `rx_bytes`.
    pub fn take_rx_target(&mut self) -> Option<RxTarget<B>> {
        unimplemented!()
    }

    /// Gives a target back, with its first `n` bytes filled (0 is fine).
    pub fn rx_payload<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        target: RxTarget<B>,
        n: usize,
        cx: &mut Cx<'_, S, T>,
    ) {
        unimplemented!()
    }

    /// The next bytes of the stream; all of them are consumed.
    pub fn rx_bytes<S: Site<Buf = B>, T: Transmit>(&mut self, bytes: &[u8], cx: &mut Cx<'_, S, T>) {
        unimplemented!()
    }

    /// Answers `Event::LoginFinished`: the full feature phase begins.
    pub fn admit<T: Transmit>(&mut self, tsih: u16, tx: &mut T) {
        unimplemented!()
    }

    /// Answers `Event::LoginFinished`: no. The caller flushes and closes.
    pub fn refuse<T: Transmit>(&mut self, refusal: impl Into<LoginRefusal>, tx: &mut T) {
        unimplemented!()
    }

    /// Asks the initiator for `len` bytes of write data from `offset` of the command's transfer, to
    /// be put at the start of `buf`, which has at least `len` bytes. Completes as `Event::Data`.
    pub fn solicit<T: Transmit>(&mut self, tag: Tag, offset: u32, len: u32, buf: B, tx: &mut T) {
        unimplemented!()
    }

    /// Sends the next part of the command's data: `range` of `payload`. What goes beyond the
    /// expected length is cut off. `last`: this is the end, with status GOOD.
    pub fn send_data<T: Transmit>(
        &mut self,
        tag: Tag,
        payload: T::Payload,
        range: Range<usize>,
        last: Option<Wanted>,
        tx: &mut T,
    ) {
        unimplemented!()
    }

    /// Ends a command with a SCSI Response.
    pub fn respond<T: Transmit>(&mut self, tag: Tag, response: Response<'_>, tx: &mut T) {
        unimplemented!()
    }

    /// Forgets a task: nothing is sent for it any more, its late data is swallowed.
    pub fn abort(&mut self, tag: Tag) {
        unimplemented!()
    }

    /// Answers a task management function.
    pub fn respond_tmf<T: Transmit>(&mut self, tag: Tag, response: TmfResponse, tx: &mut T) {
        unimplemented!()
    }

    /// Asks the initiator to log out within this time (whole seconds, at most 65535), counted
    /// from `now`; the connection closes when it does not.
    pub fn request_logout<T: Transmit>(&mut self, now: Duration, within: Duration, tx: &mut T) {
        unimplemented!()
    }

    /// When `handle_timeout` is to be called, on the clock of [`Cx::now`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        unimplemented!()
    }

    /// Does what is due.
    pub fn handle_timeout<S: Site<Buf = B>, T: Transmit>(&mut self, cx: &mut Cx<'_, S, T>) {
        unimplemented!()
    }

    /// What was agreed on.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tasks that are not answered yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        unimplemented!()
    }

    /// True in the full feature phase.
    #[must_use]
    pub fn is_full_feature(&self) -> bool {
        unimplemented!()
    }

    /// True when the connection is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        unimplemented!()
    }
}
