//! Sends from the target, and what bounds the Sends to it (RFC 7145 sections 7 and 8).

use super::task::Task;
use super::{Connection, Cx, Error, SubmitError, Transmit};
use crate::iser::{Header, Kind, SMALL_SEGMENT};
use crate::pdu::{BHS_LEN, BasicHeader, Bhs, Opcode, padding};

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// A Send has come, which took back the steering tag `invalidated`, if any. Its buffer can be
    /// posted again after the call.
    pub fn rx_send<T: Transmit<W>>(
        &mut self,
        message: &[u8],
        invalidated: Option<u32>,
        cx: &mut Cx<'_, R, W, T>,
    ) {
        if self.is_over() {
            return;
        }
        self.heard = cx.now;
        match self.take_apart(message, invalidated) {
            Ok(pdu) => {
                // A Send is a whole PDU, so the receiver stands at a header again behind it.
                self.rx_bytes(pdu, cx);
                self.rx_bytes(&[0; 3][..padding(pdu.len())], cx);
            }
            Err(error) => self.fail(error, cx.events),
        }
    }

    /// The PDU of a Send, without what may follow it.
    fn take_apart<'a>(
        &self,
        message: &'a [u8],
        invalidated: Option<u32>,
    ) -> Result<&'a [u8], Error> {
        let Ok((Kind::Control(_), pdu)) = Header::split(message) else { return Err(Error::Send) };
        let bhs: &Bhs = pdu.first_chunk::<BHS_LEN>().ok_or(Error::Send)?;
        let header = BasicHeader::from_bhs(bhs);
        if header.ahs_words != 0 {
            return Err(Error::AdditionalHeader);
        }
        if header.opcode() == Some(Opcode::DataIn) {
            return Err(Error::Unexpected(header.opcode));
        }
        if let Some(stag) = invalidated {
            self.check_invalidated(header, stag)?;
        }
        pdu.get(..BHS_LEN + header.data_len()).ok_or(Error::Send)
    }

    /// Only the answer to a command may take a steering tag back, and only the command's own.
    fn check_invalidated(&self, header: &BasicHeader, stag: u32) -> Result<(), Error> {
        let own = match self.tasks.find(header.itt.get()).ok().and_then(|tag| self.tasks.get(tag)) {
            Some(Task::Command(task)) if header.opcode() == Some(Opcode::ScsiResponse) => task.stag,
            _ => None,
        };
        if own == Some(stag) { Ok(()) } else { Err(Error::Invalidated(stag)) }
    }

    /// An error if the target may have no receive buffer for `more` unannounced PDUs.
    pub(super) fn check_credit(&self, more: u32) -> Result<(), SubmitError> {
        let limit = self.negotiated.target_max_unexpected;
        if !self.framing.rdma || limit == 0 || more == 0 {
            return Ok(());
        }
        // Three stay free where there are so many: for the logout and the keep-alive, which are
        // never refused, and for the answer to a ping, which no answer retires.
        let usable = limit.saturating_sub(3).max(1);
        let free = usable.saturating_sub(self.tasks.unexpected());
        if more > free { Err(SubmitError::NoCredit) } else { Ok(()) }
    }

    /// Most bytes that a ping may carry. Over RDMA targets answer with short Sends.
    pub(super) fn ping_limit(&self) -> usize {
        match self.framing.rdma {
            true => self.target_segment().min(SMALL_SEGMENT),
            false => self.target_segment(),
        }
    }
}
