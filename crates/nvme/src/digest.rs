//! CRC32C header and data digests (NVMe/TCP section 3.3.1.1).

/// Length of a digest on the wire, in bytes.
pub const DIGEST_LEN: usize = 4;

/// A running CRC32C (Castagnoli), fed in as many pieces as the data comes in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// The digest of what was added, in wire order: a bit-reflected CRC is sent little-endian.
    #[must_use]
    pub fn finish(&self) -> [u8; DIGEST_LEN] {
        self.0.to_le_bytes()
    }
}

/// The digest of one piece of data, in wire order.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    crc32c::crc32c(bytes).to_le_bytes()
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
