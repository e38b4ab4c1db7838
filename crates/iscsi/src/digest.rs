//! CRC32C header and data digests (RFC 7143 sections 11.2.3 and 11.2.4).

/// Length of a digest on the wire, in bytes.
pub const DIGEST_LEN: usize = 4;

/// A running CRC32C (Castagnoli), fed in as many pieces as the data comes in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// A CRC over nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Adds the zero bytes that pad `len` bytes of data to a multiple of four: the digest of a data
    /// segment covers its padding.
    pub fn pad(&mut self, len: usize) {
        self.update(&[0; 3][..crate::pdu::padding(len)]);
    }

    /// The digest of what was added, in wire order: a bit-reflected CRC is sent little-endian.
    #[must_use]
    pub fn finish(&self) -> [u8; DIGEST_LEN] {
        self.0.to_le_bytes()
    }
}

/// The digest of one piece of data, in wire order. Padding is not added.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    crc32c::crc32c(bytes).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples_of_rfc_7143_appendix_a_4() {
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let up: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(crc32c(&up), [0x4e, 0x79, 0xdd, 0x46]);
        let down: [u8; 32] = core::array::from_fn(|i| 31 - i as u8);
        assert_eq!(crc32c(&down), [0x5c, 0xdb, 0x3f, 0x11]);
    }

    #[test]
    fn padding_is_zero_bytes() {
        let mut padded = Crc32c::new();
        padded.update(b"abcde");
        padded.pad(5);
        assert_eq!(padded.finish(), crc32c(b"abcde\0\0\0"));
        let mut whole = Crc32c::new();
        whole.update(b"abcd");
        whole.pad(4);
        assert_eq!(whole.finish(), crc32c(b"abcd"));
    }

    proptest! {
        #[test]
        fn pieces_equal_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut in 0usize..600) {
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            let mut crc = Crc32c::new();
            crc.update(a);
            crc.update(b);
            prop_assert_eq!(crc.finish(), crc32c(&bytes));
        }
    }
}
