//! Configured secrets in the text form of the specification: `DHHC-1:hh:...:` for DH-HMAC-CHAP and
//! `NVMeTLSkey-1:hh:...:` for TLS. The last part is Base64 of the secret and its CRC-32.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base64ct::{Base64, Encoding};
use core::fmt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes of the CRC-32.
const CRC_LEN: usize = 4;
/// What is behind the NQN when a secret of DH-HMAC-CHAP is transformed.
const TRANSFORM: &[u8] = b"NVMe-over-Fabrics";

/// A hash function by its number in both text forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512, for DH-HMAC-CHAP only.
    Sha512 = 3,
}

impl Hash {
    /// The function with this number.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            3 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Length of a hash in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The hash of `bytes`.
    #[must_use]
    pub fn digest(self, bytes: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        })
    }

    /// HMAC of the parts, one behind the other.
    #[must_use]
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
        fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
            // HMAC takes keys of any length.
            let Ok(mut mac) = <M as KeyInit>::new_from_slice(key) else {
                return Zeroizing::new(Vec::new());
            };
            for part in parts {
                mac.update(part);
            }
            Zeroizing::new(mac.finalize().into_bytes().to_vec())
        }
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

/// What a secret is for: each purpose has its own text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// DH-HMAC-CHAP.
    DhChap,
    /// TLS.
    Tls,
}

impl Purpose {
    const fn prefix(self) -> &'static str {
        match self {
            Self::DhChap => "DHHC-1",
            Self::Tls => "NVMeTLSkey-1",
        }
    }
}

/// What is wrong with the text of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    /// Not the form of a secret for this purpose.
    #[error("the secret does not have the form PREFIX:hh:base64: of its purpose")]
    Form,
    /// A hash that does not exist, or not for this purpose.
    #[error("the secret names a hash that does not exist")]
    Hash,
    /// Not Base64.
    #[error("the secret is not Base64")]
    Base64,
    /// Not 32, 48 or 64 bytes, or not as many as its hash has.
    #[error("the secret has the wrong length")]
    Length,
    /// The CRC-32 is wrong: the secret is mistyped.
    #[error("the checksum of the secret is wrong: it is mistyped or cut off")]
    Checksum,
}

/// A configured secret.
#[derive(Clone)]
pub struct Secret {
    purpose: Purpose,
    hash: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Secret {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?}, {:?})", self.purpose, self.hash)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.purpose == other.purpose
            && self.hash == other.hash
            && bool::from(self.key.ct_eq(&other.key))
    }
}

impl Eq for Secret {}

fn checksum(key: &[u8]) -> [u8; CRC_LEN] {
    crc32fast::hash(key).to_le_bytes()
}

impl Secret {
    /// A secret of 32, 48 or 64 bytes. `hash`: what it is transformed with before it is used.
    ///
    /// # Errors
    /// [`SecretError::Hash`], [`SecretError::Length`].
    pub fn new(purpose: Purpose, hash: Option<Hash>, key: &[u8]) -> Result<Self, SecretError> {
        if purpose == Purpose::Tls && hash == Some(Hash::Sha512) {
            return Err(SecretError::Hash);
        }
        let fits = match (purpose, hash) {
            (Purpose::Tls, None) => [32, 48].contains(&key.len()),
            (Purpose::Tls, Some(hash)) => key.len() == hash.size(),
            (Purpose::DhChap, _) => [32, 48, 64].contains(&key.len()),
        };
        if !fits {
            return Err(SecretError::Length);
        }
        Ok(Self { purpose, hash, key: Zeroizing::new(key.to_vec()) })
    }

    /// The secret of a text.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(purpose: Purpose, text: &str) -> Result<Self, SecretError> {
        let rest = text.trim().strip_prefix(purpose.prefix());
        let rest = rest.and_then(|rest| rest.strip_prefix(':')).ok_or(SecretError::Form)?;
        let (code, rest) = rest.split_once(':').ok_or(SecretError::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(SecretError::Form)?;
        let hash = match code {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let bytes = Base64::decode_vec(encoded).map_err(|_| SecretError::Base64)?;
        let bytes = Zeroizing::new(bytes);
        let at = bytes.len().checked_sub(CRC_LEN).ok_or(SecretError::Length)?;
        let (key, crc) = bytes.split_at(at);
        if checksum(key) != crc {
            return Err(SecretError::Checksum);
        }
        Self::new(purpose, hash, key)
    }

    /// The text of the secret.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.key.to_vec());
        bytes.extend_from_slice(&checksum(&self.key));
        let encoded = Zeroizing::new(Base64::encode_string(&bytes));
        let hash = self.hash.map_or(0, Hash::code);
        Zeroizing::new(format!("{}:{hash:02}:{}:", self.purpose.prefix(), *encoded))
    }

    /// What the secret is for.
    #[must_use]
    pub const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// What the secret is transformed with.
    #[must_use]
    pub const fn hash(&self) -> Option<Hash> {
        self.hash
    }

    /// The secret itself.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The key of DH-HMAC-CHAP that a host, or a subsystem, with this name has (NVMe base
    /// specification, section 8.13.5.7).
    #[must_use]
    pub fn transformed(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), TRANSFORM]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As nvme-cli 2.13 made them.
    const CHAP: &str = "DHHC-1:01:lf3XTpLrEkUvOBmq32MHz+UqbFgRAwl93B6qqCR6T/NCP27i:";
    const TLS: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn secrets_of_nvme_cli_are_understood() {
        let secret = Secret::parse(Purpose::DhChap, CHAP).expect("a secret");
        assert_eq!((secret.hash(), secret.key().len()), (Some(Hash::Sha256), 32));
        assert_eq!(*secret.to_text(), CHAP);
        assert_eq!(secret.transformed("nqn.a").len(), 32);
        let secret = Secret::parse(Purpose::Tls, TLS).expect("a secret");
        assert_eq!(secret.key()[..4], [0x55, 0x12, 0xdb, 0xb6]);
        assert_eq!(*secret.to_text(), TLS);
    }

    #[test]
    fn bad_secrets_are_told_why() {
        for (text, why) in [
            ("", SecretError::Form),
            (TLS, SecretError::Form),
            ("DHHC-1:01:lf3XTpLrEkUvOBmq32MHz+UqbFgRAwl93B6qqCR6T/NCP27i", SecretError::Form),
            ("DHHC-1:04:lf3XTpLrEkUvOBmq32MHz+UqbFgRAwl93B6qqCR6T/NCP27i:", SecretError::Hash),
            ("DHHC-1:01:lf3XTpLr!kUvOBmq32MHz+UqbFgRAwl93B6qqCR6T/NCP27i:", SecretError::Base64),
            ("DHHC-1:01:lf3XTpLrEkUvOBmq32MHz+UqbFgRAwl93B6qqCR6T/NCP28i:", SecretError::Checksum),
            ("DHHC-1:01:AAA=:", SecretError::Length),
        ] {
            assert_eq!(Secret::parse(Purpose::DhChap, text), Err(why), "{text}");
        }
        let long = Secret::new(Purpose::Tls, Some(Hash::Sha384), &[1; 32]);
        assert_eq!(long, Err(SecretError::Length));
        let none = Secret::new(Purpose::Tls, Some(Hash::Sha512), &[1; 64]);
        assert_eq!(none, Err(SecretError::Hash));
    }

    #[test]
    fn secrets_are_not_printed() {
        let secret = Secret::parse(Purpose::Tls, TLS).expect("a secret");
        assert_eq!(format!("{secret:?}"), "Secret(Tls, Some(Sha256))");
    }

    /// RFC 4231, test case 2.
    #[test]
    fn hmac_is_that_of_rfc_4231() {
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        let mac = Hash::Sha256.hmac(b"Jefe", &parts);
        assert_eq!(mac[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        let mac = Hash::Sha384.hmac(b"Jefe", &parts);
        assert_eq!(mac[..4], [0xaf, 0x45, 0xd2, 0xe3]);
        let mac = Hash::Sha512.hmac(b"Jefe", &parts);
        assert_eq!(mac[..4], [0x16, 0x4b, 0x7a, 0x7b]);
    }

    proptest! {
        #[test]
        fn secrets_survive_their_text(key: [u8; 32], code in 0u8..4, long: bool) {
            let key = if long { [key, key].concat() } else { key.to_vec() };
            let secret = Secret::new(Purpose::DhChap, Hash::from_code(code), &key).expect("a secret");
            prop_assert_eq!(Secret::parse(Purpose::DhChap, &secret.to_text()), Ok(secret));
        }

        #[test]
        fn any_text_is_judged(text in ".{0,80}", tail in "[A-Za-z0-9+/=:]{0,80}") {
            let _ = Secret::parse(Purpose::Tls, &text);
            let _ = Secret::parse(Purpose::DhChap, &format!("DHHC-1:00:{tail}:"));
        }
    }
}
