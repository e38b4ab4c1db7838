//! CHAP (RFC 7143 section 12.1.3, RFC 1994), what both ends have in common: algorithms, secrets, the
//! response to a challenge, binary values.

use crate::keys::parse_number;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Fewest bytes of a secret: 96 bits (RFC 7143 section 9.2.1).
pub const MIN_SECRET: usize = 12;
/// Most bytes of a binary value (RFC 7143 section 12.1.3).
pub const MAX_BINARY: usize = 1024;
/// Bytes of the longest response.
const MAX_DIGEST: usize = 32;

/// A hash algorithm by the number that IANA gave it. A later one is a stronger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// MD5, which every initiator has.
    Md5 = 5,
    /// SHA-1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3 = 8,
}

impl Algorithm {
    /// All algorithms, the strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// Its number in CHAP_A.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Length of a response, and of the challenges that this crate makes, in bytes.
    #[must_use]
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3 => MAX_DIGEST,
        }
    }
}

/// A set of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithms(u16);

impl Algorithms {
    /// All of them.
    pub const ALL: Self = Self(0b1111 << 5);

    /// True if the algorithm is one of them.
    #[must_use]
    pub const fn has(self, algorithm: Algorithm) -> bool {
        self.0 >> algorithm.code() & 1 != 0
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The first algorithm of an offered list that is in this set too: the list is in the offering
    /// side's order of preference, and the answer is the first value that will do (RFC 7143 sections
    /// 6.2.1 and 12.1.3). What must not be used does not belong into the set.
    #[must_use]
    pub fn first_of(self, list: &str) -> Option<Algorithm> {
        list.split(',').filter_map(one).find(|algorithm| self.has(*algorithm))
    }

    /// The value of CHAP_A that offers these, the strongest first.
    #[must_use]
    pub fn offer(self) -> String {
        let mut list = String::new();
        for algorithm in Algorithm::ALL.into_iter().filter(|&a| self.has(a)) {
            let comma = if list.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(list, "{comma}{}", algorithm.code());
        }
        list
    }
}

impl Default for Algorithms {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<Algorithm> for Algorithms {
    fn from_iter<I: IntoIterator<Item = Algorithm>>(all: I) -> Self {
        Self(all.into_iter().fold(0, |set, algorithm| set | 1 << algorithm.code()))
    }
}

/// A single algorithm's number; a list is none.
pub(crate) fn one(value: &str) -> Option<Algorithm> {
    let code = parse_number(value)?;
    Algorithm::ALL.into_iter().find(|algorithm| u32::from(algorithm.code()) == code)
}

/// A secret. It is never printed, compared in constant time, and erased from memory at its end.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the bytes of a secret.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Its length in bytes; [`MIN_SECRET`] at least, if it is to be one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if it is more than one line: most likely not what was meant.
    #[must_use]
    pub fn has_line_break(&self) -> bool {
        self.0.iter().any(|byte| matches!(byte, b'\n' | b'\r'))
    }

    /// The response to a challenge: the hash of identifier, secret and challenge (RFC 1994
    /// section 4.1).
    #[must_use]
    pub fn respond(&self, algorithm: Algorithm, id: u8, challenge: &[u8]) -> Response {
        fn hash<D: md5::Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Response {
            let digest = D::new().chain_update([id]).chain_update(secret).chain_update(challenge);
            let digest = digest.finalize();
            let mut bytes = [0; MAX_DIGEST];
            bytes[..digest.len()].copy_from_slice(&digest);
            Response { bytes, len: digest.len() }
        }
        match algorithm {
            Algorithm::Md5 => hash::<md5::Md5>(id, &self.0, challenge),
            Algorithm::Sha1 => hash::<sha1::Sha1>(id, &self.0, challenge),
            Algorithm::Sha256 => hash::<sha2::Sha256>(id, &self.0, challenge),
            Algorithm::Sha3 => hash::<sha3::Sha3_256>(id, &self.0, challenge),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

/// A name with its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The value of CHAP_N.
    pub name: String,
    /// The secret.
    pub secret: Secret,
}

/// How somebody has proved an account to be its own. Enough to tell whether another secret would
/// have done as well; the secret itself is not kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Proof {
    /// The value of CHAP_N.
    pub user: String,
    /// The algorithm that was agreed on.
    pub algorithm: Algorithm,
    /// The identifier of the challenge.
    pub id: u8,
    /// The challenge.
    pub challenge: Vec<u8>,
    /// The response that was right.
    pub response: Vec<u8>,
}

impl Proof {
    /// True if this account's name and secret would have led to the same response.
    #[must_use]
    pub fn is_of(&self, account: &Account) -> bool {
        let expected = || account.secret.respond(self.algorithm, self.id, &self.challenge);
        account.name == self.user && expected().is(&self.response)
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proof({:?})", self.user)
    }
}

/// The response to a challenge.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    bytes: [u8; MAX_DIGEST],
    len: usize,
}

impl Response {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Compares in constant time.
    #[must_use]
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.bytes().ct_eq(bytes).into()
    }
}

/// Reads an identifier: a number of one byte.
#[must_use]
pub fn parse_id(value: &str) -> Option<u8> {
    parse_number(value).and_then(|number| u8::try_from(number).ok())
}

/// Reads a binary value of 1 to [`MAX_BINARY`] bytes: hexadecimal behind `0x`, two digits for each
/// byte, or base64 behind `0b` with its padding (RFC 7143 section 6.1).
#[must_use]
pub fn parse_binary(value: &str) -> Option<Vec<u8>> {
    let (prefix, digits) = value.as_bytes().split_at_checked(2)?;
    // No form needs more than two digits for a byte.
    if digits.is_empty() || digits.len() > 2 * MAX_BINARY {
        return None;
    }
    let bytes = match prefix {
        b"0x" | b"0X" => hexadecimal(digits),
        b"0b" | b"0B" => base64(digits),
        _ => None,
    };
    bytes.filter(|bytes| bytes.len() <= MAX_BINARY)
}

fn hexadecimal(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

fn base64(digits: &[u8]) -> Option<Vec<u8>> {
    let padding = digits.iter().rev().take_while(|byte| **byte == b'=').count();
    if digits.len() % 4 != 0 || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for byte in &digits[..digits.len() - padding] {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

/// Writes a binary value, in hexadecimal: that is what every implementation reads.
#[must_use]
pub fn binary(bytes: &[u8]) -> String {
    let mut value = String::with_capacity(2 + 2 * bytes.len());
    value.push_str("0x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(value, "{byte:02x}");
    }
    value
}

#[cfg(test)]
mod tests;
