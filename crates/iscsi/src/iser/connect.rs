//! What both ends say of themselves when an RDMA connection is made: the private data of the
//! connection manager's request and reply (InfiniBand Annex A12; RFC 7145 appendix C.4 leaves it to
//! InfiniBand).

/// Length of the private data in bytes.
pub const CONNECT_DATA_LEN: usize = 4;

/// Byte 0: zero-based virtual addresses are not supported, or not used.
const NO_ZERO_BASED: u8 = 0x80;
/// Byte 0: Send with Invalidate is not supported, or not used.
const NO_INVALIDATE: u8 = 0x40;

/// What an end can do, in a request, or will do, in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectData {
    /// Addresses count from the beginning of a memory region.
    pub zero_based: bool,
    /// A SCSI Response may take back the steering tag of its command.
    pub invalidate: bool,
}

impl ConnectData {
    /// Reads private data, of which there may be more: managers pad it. An end that says nothing
    /// is taken for one that can do nothing.
    #[must_use]
    pub fn parse(private: &[u8]) -> Self {
        let Some(flags) = private.first().filter(|_| private.len() >= CONNECT_DATA_LEN) else {
            return Self::default();
        };
        Self { zero_based: flags & NO_ZERO_BASED == 0, invalidate: flags & NO_INVALIDATE == 0 }
    }

    /// The private data to send.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; CONNECT_DATA_LEN] {
        let zero_based = if self.zero_based { 0 } else { NO_ZERO_BASED };
        let invalidate = if self.invalidate { 0 } else { NO_INVALIDATE };
        [zero_based | invalidate, 0, 0, 0]
    }

    /// The target's reply to this request. A target needs no zero-based addresses: it uses what
    /// the iSER header says. `invalidate`: this target's device can send with Invalidate.
    #[must_use]
    pub const fn reply(self, invalidate: bool) -> Self {
        Self { zero_based: false, invalidate: self.invalidate && invalidate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_linux_and_of_libiscsi() {
        // Linux on a device with remote invalidation, padded by the manager; then libiscsi.
        let linux = ConnectData::parse(&[0x80, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(linux, ConnectData { zero_based: false, invalidate: true });
        assert_eq!(ConnectData::parse(&[0xc0, 0, 0, 0]), ConnectData::default());
        assert_eq!(linux.reply(true).to_bytes(), [0x80, 0, 0, 0]);
        assert_eq!(linux.reply(false).to_bytes(), [0xc0, 0, 0, 0]);
        assert_eq!(ConnectData::default().reply(true).to_bytes(), [0xc0, 0, 0, 0]);
    }

    #[test]
    fn silence_promises_nothing() {
        assert_eq!(ConnectData::parse(&[]), ConnectData::default());
        assert_eq!(ConnectData::parse(&[0, 0, 0]), ConnectData::default());
    }

    #[test]
    fn what_is_written_is_read_back() {
        for (zero_based, invalidate) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let data = ConnectData { zero_based, invalidate };
            assert_eq!(ConnectData::parse(&data.to_bytes()), data);
        }
    }
}
