//! Keys of one direction.

use alloc::vec::Vec;
use zeroize::Zeroizing;

use crate::schedule::{Secret, expand};
use crate::suite::Suite;

/// Bytes of a nonce.
pub const IV: usize = 12;

/// The key of one direction of a connection, and the number of its next record.
#[derive(Clone)]
pub struct TrafficKey {
    /// The cipher suite.
    pub suite: Suite,
    /// The key, as long as the suite says.
    pub key: Zeroizing<Vec<u8>>,
    /// What the number of a record is combined with to its nonce.
    pub iv: Zeroizing<[u8; IV]>,
    /// The number of the next record.
    pub sequence: u64,
}

impl TrafficKey {
    /// The key of a traffic secret (RFC 8446 section 7.3).
    pub(crate) fn new(suite: Suite, secret: &[u8]) -> Self {
        let hash = suite.hash();
        let key = expand(hash, secret, "key", &[], suite.key_size());
        let bytes: Secret = expand(hash, secret, "iv", &[], IV);
        let mut iv = Zeroizing::new([0; IV]);
        iv.copy_from_slice(&bytes);
        Self { suite, key, iv, sequence: 0 }
    }

    /// What Linux takes as `TLS_TX` or `TLS_RX`: `struct tls12_crypto_info_aes_gcm_128`, or `_256`, of linux/tls.h.
    #[must_use]
    pub fn for_linux(&self) -> Zeroizing<Vec<u8>> {
        const TLS_1_3: u16 = 0x0304;
        let cipher: u16 = match self.suite {
            Suite::Aes128GcmSha256 => 51,
            Suite::Aes256GcmSha384 => 52,
        };
        // The kernel calls the first four bytes of the nonce the salt.
        let (salt, iv) = self.iv.split_at(4);
        let mut bytes = Zeroizing::new(Vec::with_capacity(4 + 8 + 32 + 4 + 8));
        bytes.extend_from_slice(&TLS_1_3.to_ne_bytes());
        bytes.extend_from_slice(&cipher.to_ne_bytes());
        bytes.extend_from_slice(iv);
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(salt);
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_form_of_linux() {
        for (suite, cipher, len) in
            [(Suite::Aes128GcmSha256, 51, 40), (Suite::Aes256GcmSha384, 52, 56)]
        {
            let mut key = TrafficKey::new(suite, &[7; 48][..suite.hash().size()]);
            key.sequence = 0x0102;
            let bytes = key.for_linux();
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes[..2], 0x0304_u16.to_ne_bytes());
            assert_eq!(bytes[2..4], u16::to_ne_bytes(cipher));
            assert_eq!((&bytes[4..12], &bytes[len - 12..len - 8]), (&key.iv[4..], &key.iv[..4]));
            assert_eq!(bytes[12..len - 12], key.key[..]);
            assert_eq!(bytes[len - 8..], [0, 0, 0, 0, 0, 0, 1, 2]);
        }
    }
}
