//! Cipher suites, and the hashes of their key schedules.

use crate::schedule::Secret;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384};
use zeroize::Zeroizing;

/// The hash of a cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
}

impl Hash {
    /// Bytes of a hash.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// The one cipher suite here with this hash.
    #[must_use]
    pub const fn suite(self) -> Suite {
        match self {
            Self::Sha256 => Suite::Aes128GcmSha256,
            Self::Sha384 => Suite::Aes256GcmSha384,
        }
    }

    /// The hash of `bytes`.
    pub(crate) fn digest(self, bytes: &[u8]) -> Secret {
        Zeroizing::new(match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
        })
    }

    /// HMAC of the parts, one behind the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Secret {
        fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Secret {
            // HMAC takes keys of any length.
            let Ok(mut mac) = <M as KeyInit>::new_from_slice(key) else {
                return Secret::default();
            };
            for part in parts {
                mac.update(part);
            }
            Zeroizing::new(mac.finalize().into_bytes().to_vec())
        }
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts),
        }
    }
}

/// A cipher suite (RFC 8446 appendix B.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256.
    Aes128GcmSha256 = 0x1301,
    /// TLS_AES_256_GCM_SHA384.
    Aes256GcmSha384 = 0x1302,
}

impl Suite {
    /// Its number.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The suite with this number.
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0x1301 => Some(Self::Aes128GcmSha256),
            0x1302 => Some(Self::Aes256GcmSha384),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128GcmSha256 => "TLS_AES_128_GCM_SHA256",
            Self::Aes256GcmSha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    /// Its hash.
    #[must_use]
    pub const fn hash(self) -> Hash {
        match self {
            Self::Aes128GcmSha256 => Hash::Sha256,
            Self::Aes256GcmSha384 => Hash::Sha384,
        }
    }

    /// Bytes of a key.
    #[must_use]
    pub const fn key_size(self) -> usize {
        match self {
            Self::Aes128GcmSha256 => 16,
            Self::Aes256GcmSha384 => 32,
        }
    }
}
