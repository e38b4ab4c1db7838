//! The host's end over RDMA: capsules are Sends, and data moves by RDMA Reads and Writes of the
//! controller, within memory that the caller has registered.
//!
//! The host asks for no key to be taken back: its memory stays registered for as long as the
//! connection, so a command costs no work besides its Send. The price is that a controller may write
//! to it when it should not; for a program that only measures and verifies that changes nothing
//! (docs/bench.md, 'Over RDMA').

use super::{Command, Connection, Cx, Data, Error, Options, Phase, SubmitError, Tag, Task};
use crate::command::{Cqe, Sgl, Sqe};
use crate::pdu::U16;
use crate::rdma::Remote;
use crate::transmit::{Payload, Transmit};
use zerocopy::{FromBytes, IntoBytes};

/// Length of the memory for the data of a connection's own commands, in bytes: that of the Connect,
/// messages of the authentication, Identify.
pub const OWN_LEN: u32 = 4096;

/// Most data of one keyed descriptor, whose length has 24 bits.
const MOST: u32 = 0x00ff_ffff;

/// Writes a command capsule without data.
pub(super) fn put_capsule<T: Transmit>(sqe: &Sqe, tx: &mut T) {
    tx.bytes(sqe.as_bytes());
    tx.end_send(None);
}

impl<R: AsMut<[u8]>, W: Payload + Clone> Connection<R, W> {
    /// A connection over RDMA that has sent nothing yet. `own` is memory of [`OWN_LEN`] bytes that the
    /// controller may read and write: that of [`Transmit::keep`]. Of `options`, those about digests,
    /// alignment and R2Ts mean nothing. The host has to keep a receive of a completion's length posted
    /// for each entry of the queue, from before the connection is made.
    #[must_use]
    pub fn over_rdma(options: Options, own: Remote) -> Self {
        Self { own: Some(own), ..Self::new(options) }
    }

    /// True over RDMA.
    #[must_use]
    pub const fn is_rdma(&self) -> bool {
        self.own.is_some()
    }

    /// True if a write of so many bytes goes in its capsule, and needs no memory of its own.
    #[must_use]
    pub fn fits_capsule(&self, len: u32) -> bool {
        // Controllers post receives without room for data on admin queues, whatever IOCCSZ says.
        self.options.connect.qid > 0 && len <= self.options.capsule_data
    }

    /// A Send has come, which took back the key `invalidated`, if any. Its buffer can be posted again
    /// after the call.
    pub fn rx_send<T: Transmit<Payload = W>>(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
        cx: &mut Cx<'_, R, T>,
    ) {
        if self.phase == Phase::Over {
            return;
        }
        let result = match (invalidated, Cqe::read_from_bytes(message)) {
            (Some(key), _) => Err(Error::Invalidated(key)),
            (None, Ok(cqe)) => self.answered(cqe, cx),
            (None, Err(_)) => Err(Error::Message(message.len())),
        };
        if let Err(error) = result {
            self.fail(error, cx);
        }
    }

    /// Where the data of a command is.
    pub(super) fn place(
        &self,
        data: &Data<R, W>,
        len: u32,
        memory: Option<Remote>,
    ) -> Result<Sgl, SubmitError> {
        match (data, memory) {
            (Data::None, _) => Ok(Sgl::keyed(Remote::default(), 0, false)),
            (Data::Write(..), _) if self.fits_capsule(len) => Ok(Sgl::in_capsule(len)),
            (_, Some(memory)) if len <= MOST => Ok(Sgl::keyed(memory, len, false)),
            _ => Err(SubmitError::NotRegistered),
        }
    }

    /// Sends a command as a capsule.
    pub(super) fn send_capsule<T: Transmit<Payload = W>>(
        &mut self,
        command: Command<R, W>,
        len: u32,
        sgl: Sgl,
        tx: &mut T,
    ) -> Tag {
        let Command { token, mut sqe, data } = command;
        let inline = match &data {
            Data::Write(payload, len) if self.fits_capsule(*len) => Some(payload.clone()),
            _ => None,
        };
        let reads = matches!(data, Data::Read(_) | Data::Discard(_));
        let tag = self.insert(Task { tag: Tag(0), token, data, len, reads, moved: 0 });
        (sqe.sgl, sqe.cid) = (sgl, U16::new(tag.0));
        tx.bytes(sqe.as_bytes());
        if let Some(payload) = inline {
            tx.payload(payload, 0..len as usize);
        }
        tx.end_send(None);
        tag
    }
}
