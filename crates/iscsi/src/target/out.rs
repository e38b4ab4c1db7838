//! Writing PDUs.

use super::Transmit;
use super::connection::Connection;
use crate::digest::{Crc32c, crc32c};
use crate::iser::Header;
use crate::pdu::{self, BHS_LEN, Bhs, RejectReason, U24, U32, Wire};

/// Which digests are in use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digests {
    pub(super) header: bool,
    pub(super) data: bool,
}

/// The sequence numbers that every PDU of the target carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) stat_sn: U32,
    pub(super) exp_cmd_sn: U32,
    pub(super) max_cmd_sn: U32,
}

/// Writes a header and its digest.
pub(super) fn put_header<T: Transmit>(digests: Digests, bhs: &Bhs, tx: &mut T) {
    tx.bytes(bhs);
    if digests.header {
        tx.bytes(&crc32c(bhs));
    }
}

/// Writes a whole PDU with a small data segment.
fn put<T: Transmit>(digests: Digests, bhs: &Bhs, parts: [&[u8]; 2], tx: &mut T) {
    put_header(digests, bhs, tx);
    let len = parts[0].len() + parts[1].len();
    if len == 0 {
        return;
    }
    for part in parts {
        tx.bytes(part);
    }
    tx.bytes(&[0; 3][..pdu::padding(len)]);
    if digests.data {
        let mut crc = Crc32c::new();
        for part in parts {
            crc.update(part);
        }
        crc.pad(len);
        tx.bytes(&crc.finish());
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// The numbers of the next PDU; `status`: it takes a StatSN.
    pub(super) fn numbers(&mut self, status: bool) -> Numbers {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(u32::from(status));
        Numbers {
            stat_sn: U32::new(stat_sn),
            exp_cmd_sn: U32::new(self.window.expected()),
            max_cmd_sn: U32::new(self.window.max(self.tasks.in_window())),
        }
    }

    /// Sends a PDU.
    pub(super) fn send<P: Wire, T: Transmit>(&mut self, pdu: &P, data: &[u8], tx: &mut T) {
        self.send_parts(pdu, [data, &[]], tx);
    }

    /// Sends a PDU whose data segment is in two parts.
    pub(super) fn send_parts<P: Wire, T: Transmit>(
        &mut self,
        pdu: &P,
        parts: [&[u8]; 2],
        tx: &mut T,
    ) {
        self.send_back(pdu, parts, None, tx);
    }

    /// Sends a PDU that, over RDMA, takes back the steering tag `stag` of the initiator.
    pub(super) fn send_back<P: Wire, T: Transmit>(
        &mut self,
        pdu: &P,
        parts: [&[u8]; 2],
        stag: Option<u32>,
        tx: &mut T,
    ) {
        self.counters.pdus_out += 1;
        if self.mover.is_none() {
            return put(self.digests, pdu.as_bhs(), parts, tx);
        }
        tx.bytes(&Header::default().to_bytes());
        tx.bytes(pdu.as_bhs());
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            tx.bytes(part);
        }
        tx.end_send(stag);
    }

    /// Rejects a PDU.
    pub(super) fn reject<T: Transmit>(&mut self, reason: RejectReason, bhs: &Bhs, tx: &mut T) {
        let counter = match reason {
            RejectReason::DataDigestError => &mut self.counters.reject_data_digest,
            RejectReason::SnackReject => &mut self.counters.reject_snack,
            RejectReason::CommandNotSupported => &mut self.counters.reject_not_supported,
            RejectReason::ImmediateCommandReject => &mut self.counters.reject_immediate,
            RejectReason::TaskInProgress => &mut self.counters.reject_task_in_progress,
            RejectReason::InvalidPduField => &mut self.counters.reject_invalid_field,
            _ => &mut self.counters.reject_protocol_error,
        };
        *counter += 1;
        let n = self.numbers(true);
        let reject = pdu::Reject {
            flags: pdu::FINAL,
            reason: reason.code(),
            data_len: U24::new(BHS_LEN as u32),
            itt: U32::new(pdu::RESERVED_TAG),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            ..Default::default()
        };
        self.send(&reject, bhs, tx);
    }
}
