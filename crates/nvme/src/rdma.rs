//! NVMe over RDMA: what both ends say of themselves when a connection is made (NVMe RDMA transport
//! specification, section 3.2), and the memory that hosts open to controllers.
//!
//! Each queue is a queue pair. A command capsule is a Send: the submission queue entry, and perhaps
//! data behind it. A response capsule is a Send with the completion queue entry. Data of other
//! commands is in memory that the host has opened with a key: the controller writes that of a read
//! with RDMA Writes before it completes the command, and reads that of a write with RDMA Reads. There
//! are no R2Ts, and digests are the fabric's.

use crate::code::{codes, wire};
use crate::pdu::U16;
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

/// Length of the private data of a connect request and of its acceptance, in bytes.
pub const CONNECT_DATA_LEN: usize = 32;

/// Memory that a host has opened to the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Address of its first byte.
    pub address: u64,
    /// The key (R_Key).
    pub key: u32,
}

impl Remote {
    /// The memory from `bytes` further on, which is still within it.
    #[must_use]
    pub const fn at(self, bytes: u32) -> Self {
        Self { address: self.address.wrapping_add(bytes as u64), key: self.key }
    }
}

wire! {
    /// Private data of a connect request.
    Request {
        /// RECFMT: format, 0.
        recfmt: U16,
        /// QID: the queue.
        qid: U16,
        /// HRQSIZE: receives that the host posts.
        hrqsize: U16,
        /// HSQSIZE: entries of the submission queue, 0's based.
        hsqsize: U16,
        /// CNTLID: the controller, for I/O queues; older hosts leave it 0.
        cntlid: U16,
        /// Reserved.
        reserved: [u8; 22],
    }
}

wire! {
    /// Private data of an acceptance.
    Accept {
        /// RECFMT: format, 0.
        recfmt: U16,
        /// CRQSIZE: receives that the controller posts.
        crqsize: U16,
        /// Reserved.
        reserved: [u8; 28],
    }
}

wire! {
    /// Private data of a rejection.
    Reject {
        /// RECFMT: format, 0.
        recfmt: U16,
        /// STS: why, see [`Rejection`].
        status: U16,
    }
}

codes! {
    /// Why a controller rejects a connection.
    Rejection: u16 {
        /// The private data is too short.
        Length = 1,
        /// The format of the private data is not supported.
        Format = 2,
        /// The queue identifier is beyond those that controllers have.
        Queue = 3,
        /// The submission queue is empty, or larger than controllers allow.
        SubmissionQueueSize = 4,
        /// The host posts fewer receives than it may have commands.
        ReceiveQueueSize = 5,
        /// There are no resources.
        Resources = 6,
        /// The host serves no RDMA Reads.
        InboundReads = 7,
        /// The host asks for RDMA Reads that the controller does not serve.
        OutboundReads = 8,
        /// The controller does not exist.
        Controller = 9,
    }
}

impl Rejection {
    /// The private data to reject with.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 4] {
        let reject = Reject { status: U16::new(self.code()), ..Reject::default() };
        let mut bytes = [0; 4];
        bytes.copy_from_slice(reject.as_bytes());
        bytes
    }

    /// What private data of a rejection says; `None` if it is not one of NVMe.
    #[must_use]
    pub fn parse(private: &[u8]) -> Option<Self> {
        let (reject, _) = Reject::read_from_prefix(private).ok()?;
        (reject.recfmt.get() == 0).then(|| Self::from_code(reject.status.get())).flatten()
    }
}

/// A connect request that is not valid: what it is rejected with, and what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{why}")]
pub struct Rejected {
    /// What the host is told.
    pub rejection: Rejection,
    /// The same in words.
    pub why: &'static str,
}

/// What a host says of a queue when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Receives that the host posts (HRQSIZE).
    pub receives: u16,
    /// Entries of the submission queue, 0's based (HSQSIZE).
    pub sqsize: u16,
    /// The controller of an I/O queue; 0 if the host does not say.
    pub cntlid: u16,
}

impl ConnectRequest {
    /// Reads private data, of which there may be more: connection managers pad it. `entries`: the
    /// largest queue that controllers allow; `queues`: the highest identifier of a queue.
    ///
    /// # Errors
    /// What to reject the request with.
    pub fn parse(private: &[u8], entries: u16, queues: u16) -> Result<Self, Rejected> {
        let rejected = |rejection, why| Err(Rejected { rejection, why });
        let Ok((request, _)) = Request::read_from_prefix(private) else {
            return rejected(Rejection::Length, "its private data is too short for NVMe over RDMA");
        };
        if request.recfmt.get() != 0 {
            return rejected(Rejection::Format, "its private data has an unknown format");
        }
        let (qid, sqsize) = (request.qid.get(), request.hsqsize.get());
        if qid > queues {
            return rejected(Rejection::Queue, "its queue identifier is too high");
        }
        // A queue has at least two entries.
        if sqsize == 0 || sqsize >= entries {
            let why = "its submission queue is empty, or larger than CAP.MQES allows";
            return rejected(Rejection::SubmissionQueueSize, why);
        }
        let receives = request.hrqsize.get();
        // Some count receives from 0 as entries are counted.
        if receives < sqsize {
            let why = "it posts fewer receives than its submission queue has entries";
            return rejected(Rejection::ReceiveQueueSize, why);
        }
        Ok(Self { qid, receives, sqsize, cntlid: request.cntlid.get() })
    }

    /// The private data of the request.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONNECT_DATA_LEN] {
        let request = Request {
            qid: U16::new(self.qid),
            hrqsize: U16::new(self.receives),
            hsqsize: U16::new(self.sqsize),
            cntlid: U16::new(self.cntlid),
            ..Request::default()
        };
        let mut bytes = [0; CONNECT_DATA_LEN];
        bytes.copy_from_slice(request.as_bytes());
        bytes
    }

    /// The private data of the acceptance.
    #[must_use]
    pub fn accept(&self) -> [u8; CONNECT_DATA_LEN] {
        // One that is not refused has at least two entries, and never all that 16 bits count.
        let accept =
            Accept { crqsize: U16::new(self.sqsize.saturating_add(1)), ..Accept::default() };
        let mut bytes = [0; CONNECT_DATA_LEN];
        bytes.copy_from_slice(accept.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A request as Linux 6.12 sends it for I/O queue 1, padded by the manager.
    fn linux() -> [u8; 56] {
        let mut bytes = [0; 56];
        bytes[2] = 1;
        bytes[4] = 128;
        bytes[6] = 127;
        bytes
    }

    fn rejection(bytes: &[u8]) -> Option<Rejection> {
        ConnectRequest::parse(bytes, 128, 128).err().map(|rejected| rejected.rejection)
    }

    #[test]
    fn a_request_of_linux() {
        let request = ConnectRequest::parse(&linux(), 128, 128).expect("it is valid");
        assert_eq!(request, ConnectRequest { qid: 1, receives: 128, sqsize: 127, cntlid: 0 });
        let accept = request.accept();
        assert_eq!((&accept[..4], &accept[4..]), (&[0, 0, 128, 0][..], &[0; 28][..]));
    }

    #[test]
    fn each_field_has_its_rejection() {
        let with = |at: usize, value: u8| {
            let mut bytes = linux();
            bytes[at] = value;
            rejection(&bytes)
        };
        assert_eq!(rejection(&linux()[..31]), Some(Rejection::Length));
        assert_eq!(rejection(&[]), Some(Rejection::Length));
        assert_eq!(with(0, 1), Some(Rejection::Format));
        assert_eq!(with(2, 129), Some(Rejection::Queue));
        assert_eq!(with(6, 0), Some(Rejection::SubmissionQueueSize));
        assert_eq!(with(6, 128), Some(Rejection::SubmissionQueueSize));
        assert_eq!(with(4, 126), Some(Rejection::ReceiveQueueSize));
        assert_eq!(with(4, 127), None);
    }

    #[test]
    fn rejections_as_linux_reads_them() {
        assert_eq!(Rejection::Resources.to_bytes(), [0, 0, 6, 0]);
        assert_eq!(Rejection::parse(&[0, 0, 9, 0, 0, 0]), Some(Rejection::Controller));
        assert_eq!(Rejection::parse(&[1, 0, 9, 0]), None);
        assert_eq!(Rejection::parse(&[0, 0, 10, 0]), None);
        assert_eq!(Rejection::parse(&[0, 0, 9]), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(qid in 0..=128u16, sqsize in 1..128u16, more: u16, cntlid: u16) {
            let receives = sqsize.saturating_add(more);
            let request = ConnectRequest { qid, receives, sqsize, cntlid };
            prop_assert_eq!(ConnectRequest::parse(&request.to_bytes(), 128, 128), Ok(request));
        }

        #[test]
        fn any_bytes_are_a_request_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(request) = ConnectRequest::parse(&bytes, 128, 64) {
                prop_assert!(request.qid <= 64 && (1..128).contains(&request.sqsize));
                prop_assert!(request.receives >= request.sqsize);
            }
        }
    }
}
