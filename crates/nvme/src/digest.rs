//! CRC32C header and data digests (NVMe/TCP section 3.3.1.1).

use crc_fast::{CrcAlgorithm, Digest};

/// Length of a digest on the wire, in bytes.
pub const DIGEST_LEN: usize = 4;

/// A running CRC32C (Castagnoli), fed in as many pieces as the data comes in.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of what was added, in wire order.
    #[must_use]
    pub fn finish(&self) -> [u8; DIGEST_LEN] {
        to_wire(self.0.finalize())
    }
}

/// The digest of one piece of data, in wire order.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    to_wire(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The 32 low bits of `crc`, little-endian.
fn to_wire(crc: u64) -> [u8; DIGEST_LEN] {
    let [a, b, c, d, ..] = crc.to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_rfc_3720_appendix_b_4() {
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn pieces_equal_the_whole() {
        let mut crc = Crc32c::default();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.finish(), crc32c(b"123456789"));
        assert_eq!(crc.finish(), 0xe306_9283_u32.to_le_bytes());
    }
}
