//! Protected records (RFC 8446 section 5). After the handshake the kernel makes and opens them; where it does not, as in
//! tests, these do.

use alloc::vec::Vec;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::error::Error;
use crate::suite::Suite;
use crate::traffic::TrafficKey;

/// Bytes of a record's header.
pub const HEADER: usize = 5;
/// Most bytes in a record, before it is protected.
pub const PLAIN: usize = 1 << 14;
/// Most bytes in a protected record, behind its header.
pub const PROTECTED: usize = PLAIN + 256;
/// Bytes of the tag that shows changes.
const TAG: usize = 16;

/// change_cipher_spec, which means nothing.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
/// An alert.
pub const ALERT: u8 = 21;
/// Handshake messages.
pub const HANDSHAKE: u8 = 22;
/// Application data, and every protected record from outside.
pub const DATA: u8 = 23;

/// The header of a record of this type, with so many bytes behind it.
pub(crate) const fn header(kind: u8, len: usize) -> [u8; HEADER] {
    debug_assert!(len <= PROTECTED);
    let [high, low] = (len as u16).to_be_bytes();
    [kind, 3, 3, high, low]
}

/// Appends a record that is not protected. Handshake messages that are written here fit into one.
pub(crate) fn plain(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    debug_assert!(content.len() <= PLAIN);
    out.extend_from_slice(&header(kind, content.len()));
    out.extend_from_slice(content);
}

/// A traffic key ready for use.
///
/// ring does not zeroize the expanded key on drop. A handshake expands its own keys, which protect EncryptedExtensions and
/// Finished but no secret, and an application key only for the alert that ends it. The kernel expands the keys of the data.
struct Keyed {
    /// `None` if the key does not have the length of its suite.
    cipher: Option<LessSafeKey>,
    key: TrafficKey,
}

impl Keyed {
    fn new(key: TrafficKey) -> Self {
        let algorithm = match key.suite {
            Suite::Aes128GcmSha256 => &AES_128_GCM,
            Suite::Aes256GcmSha384 => &AES_256_GCM,
        };
        let cipher = UnboundKey::new(algorithm, &key.key).map(LessSafeKey::new);
        Self { cipher: cipher.ok(), key }
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = *self.key.iv;
        let number = self.key.sequence.to_be_bytes();
        nonce[4..].iter_mut().zip(number).for_each(|(byte, number)| *byte ^= number);
        self.key.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn protect(&mut self, header: &[u8], content: &mut Vec<u8>) -> Result<(), Error> {
        let nonce = self.nonce();
        let cipher = self.cipher.as_ref().ok_or(Error::BadRecord)?;
        let sealed = cipher.seal_in_place_append_tag(nonce, Aad::from(header), content);
        sealed.map_err(|_| Error::BadRecord)
    }

    fn open(&mut self, header: &[u8], content: &mut Vec<u8>) -> Result<(), Error> {
        let nonce = self.nonce();
        let cipher = self.cipher.as_ref().ok_or(Error::BadRecord)?;
        let opened = cipher.open_in_place(nonce, Aad::from(header), content);
        let len = opened.map_err(|_| Error::BadRecord)?.len();
        content.truncate(len);
        Ok(())
    }
}

/// Makes protected records.
pub struct Sealer(Keyed);

impl Sealer {
    /// With this key, from its next record on.
    #[must_use]
    pub fn new(key: TrafficKey) -> Self {
        Self(Keyed::new(key))
    }

    /// Appends `content` in as many records as it needs; of no content, in one.
    pub fn seal(&mut self, kind: u8, content: &[u8], out: &mut Vec<u8>) {
        let mut rest = content;
        loop {
            let (part, behind) = rest.split_at(rest.len().min(PLAIN));
            let mut body = Vec::with_capacity(part.len() + 1 + TAG);
            body.extend_from_slice(part);
            body.push(kind);
            let header = header(DATA, body.len() + TAG);
            let done = self.0.protect(&header, &mut body);
            debug_assert!(done.is_ok(), "records of this length can be protected");
            out.extend_from_slice(&header);
            out.extend_from_slice(&body);
            rest = behind;
            if rest.is_empty() {
                return;
            }
        }
    }
}

/// Opens protected records.
pub struct Opener(Keyed);

impl Opener {
    /// With this key, from its next record on.
    #[must_use]
    pub fn new(key: TrafficKey) -> Self {
        Self(Keyed::new(key))
    }

    /// Opens the record of this header, and leaves its content in `body`. Returns what it is.
    ///
    /// # Errors
    /// It was changed, or is empty or too long.
    pub fn open(&mut self, header: &[u8; HEADER], body: &mut Vec<u8>) -> Result<u8, Error> {
        if body.len() > PROTECTED {
            return Err(Error::TooLong);
        }
        self.0.open(header, body)?;
        // Behind the content is its type, and behind that are zeroes as padding.
        let padding = body.iter().rev().take_while(|byte| **byte == 0).count();
        body.truncate(body.len() - padding);
        let kind = body.pop().ok_or(Error::Unexpected)?;
        if body.len() > PLAIN { Err(Error::TooLong) } else { Ok(kind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(suite: Suite) -> TrafficKey {
        TrafficKey::new(suite, &[3; 48][..suite.hash().size()])
    }

    fn open(opener: &mut Opener, bytes: &mut Vec<u8>) -> Result<(u8, Vec<u8>), Error> {
        let header: [u8; HEADER] = bytes[..HEADER].try_into().expect("a header");
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let rest = bytes.split_off(HEADER + len);
        let mut body = bytes.split_off(HEADER);
        *bytes = rest;
        opener.open(&header, &mut body).map(|kind| (kind, body))
    }

    #[test]
    fn records_are_opened_in_order() {
        for suite in [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384] {
            let (mut sealer, mut opener) = (Sealer::new(key(suite)), Opener::new(key(suite)));
            let mut bytes = Vec::new();
            sealer.seal(ALERT, &[1, 0], &mut bytes);
            sealer.seal(DATA, &[], &mut bytes);
            sealer.seal(DATA, &[5; PLAIN + 1], &mut bytes);
            assert_eq!(open(&mut opener, &mut bytes), Ok((ALERT, [1, 0].to_vec())));
            assert_eq!(open(&mut opener, &mut bytes), Ok((DATA, Vec::new())));
            assert_eq!(open(&mut opener, &mut bytes), Ok((DATA, [5; PLAIN].to_vec())));
            assert_eq!(open(&mut opener, &mut bytes), Ok((DATA, [5].to_vec())));
            assert!(bytes.is_empty());
        }
    }

    #[test]
    fn changed_records_are_not_opened() {
        let suite = Suite::Aes128GcmSha256;
        let mut sealed = Vec::new();
        Sealer::new(key(suite)).seal(DATA, b"data", &mut sealed);
        for at in 0..sealed.len() {
            if at == 3 || at == 4 {
                continue; // the length: another record then
            }
            let mut bytes = sealed.clone();
            bytes[at] ^= 1;
            assert_eq!(open(&mut Opener::new(key(suite)), &mut bytes), Err(Error::BadRecord));
        }
        let mut twice = [&sealed[..], &sealed].concat();
        let mut opener = Opener::new(key(suite));
        assert!(open(&mut opener, &mut twice).is_ok());
        assert_eq!(open(&mut opener, &mut twice), Err(Error::BadRecord));
    }

    #[test]
    fn padding_is_removed_and_nothing_but_padding_is_refused() {
        let suite = Suite::Aes128GcmSha256;
        let sealed = |content: &[u8]| {
            let (mut keyed, mut body) = (Keyed::new(key(suite)), content.to_vec());
            let header = header(DATA, body.len() + TAG);
            keyed.protect(&header, &mut body).expect("it is protected");
            (header, body)
        };
        let (header, mut body) = sealed(&[1, 2, DATA, 0, 0, 0]);
        assert_eq!(Opener::new(key(suite)).open(&header, &mut body), Ok(DATA));
        assert_eq!(body, [1, 2]);
        let (header, mut body) = sealed(&[0; 40]);
        assert_eq!(Opener::new(key(suite)).open(&header, &mut body), Err(Error::Unexpected));
        assert_eq!(Opener::new(key(suite)).open(&header, &mut Vec::new()), Err(Error::BadRecord));
    }
}
