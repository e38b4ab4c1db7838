//! What comes in during a handshake: records, and the messages in them. Never more is taken than the record that is
//! being read, because what follows the last one is the kernel's.

use alloc::vec::Vec;
use core::mem;

use crate::error::{Alert, Error};
use crate::record::{self, HEADER, Opener};

/// Longest handshake message, in bytes. With a key share of 1.2 KiB, as post-quantum groups have, and
/// four of the longest identities, a ClientHello has half of that.
pub(crate) const MESSAGE: usize = 8192;
/// Bytes of a message's header.
const MESSAGE_HEADER: usize = 4;
/// change_cipher_spec is sent once by each end, and once more by some after a HelloRetryRequest.
const CHANGES: u8 = 2;

/// The receiving half of an end.
#[derive(Default)]
pub(crate) struct Receiver {
    /// The record that is coming in.
    record: Vec<u8>,
    /// Messages out of records, or the beginning of one.
    messages: Vec<u8>,
    /// Opens protected records, from the time on from which records are protected.
    opener: Option<Opener>,
    /// A protected record has come.
    opened: bool,
    /// A handshake message has come: change_cipher_spec may.
    begun: bool,
    changes: u8,
}

impl Receiver {
    /// How many bytes are left of what is being read.
    pub(crate) fn wants(&self) -> usize {
        match self.record.get(3..HEADER) {
            Some(len) => {
                let len = usize::from(u16::from_be_bytes([len[0], len[1]]));
                HEADER + len - self.record.len()
            }
            None => HEADER - self.record.len(),
        }
    }

    /// Takes bytes, up to the end of a header or of a record. Returns how many.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let taken = bytes.len().min(self.wants());
        let header_before = self.record.len() >= HEADER;
        self.record.extend_from_slice(&bytes[..taken]);
        if let (false, Some(header)) = (header_before, self.record.first_chunk()) {
            self.check(*header)?;
        }
        if self.record.len() >= HEADER && self.wants() == 0 {
            let record = mem::take(&mut self.record);
            self.take_record(record)?;
        }
        Ok(taken)
    }

    /// Judges a header, before anything behind it is kept.
    fn check(&self, [kind, major, _, high, low]: [u8; HEADER]) -> Result<(), Error> {
        let len = usize::from(u16::from_be_bytes([high, low]));
        if major != 3 {
            return Err(Error::Malformed("record"));
        }
        match kind {
            record::HANDSHAKE if self.opener.is_some() || len == 0 => Err(Error::Unexpected),
            record::HANDSHAKE if len > record::PLAIN => Err(Error::TooLong),
            record::CHANGE_CIPHER_SPEC if !self.begun || len != 1 => Err(Error::Unexpected),
            // One that is not protected comes from an end that could not go as far as the keys.
            record::ALERT if self.opened || len != 2 => Err(Error::Unexpected),
            record::DATA if self.opener.is_none() || len == 0 => Err(Error::Unexpected),
            record::DATA if len > record::PROTECTED => Err(Error::TooLong),
            record::HANDSHAKE | record::CHANGE_CIPHER_SPEC | record::ALERT | record::DATA => Ok(()),
            _ => Err(Error::Unexpected),
        }
    }

    fn take_record(&mut self, mut record: Vec<u8>) -> Result<(), Error> {
        let mut body = record.split_off(HEADER);
        let Some(header) = record.first_chunk::<HEADER>() else { return Err(Error::Unexpected) };
        let mut kind = header[0];
        if let (record::DATA, Some(opener)) = (kind, &mut self.opener) {
            kind = opener.open(header, &mut body)?;
            self.opened = true;
        } else if kind == record::CHANGE_CIPHER_SPEC {
            self.changes += 1;
            let right = body == [1] && self.changes <= CHANGES && self.messages.is_empty();
            return if right { Ok(()) } else { Err(Error::Unexpected) };
        }
        match (kind, &body[..]) {
            (record::ALERT, [_, description]) => Err(Error::Refused(Alert(*description))),
            (record::HANDSHAKE, [_, ..]) => {
                self.begun = true;
                self.messages.extend_from_slice(&body);
                self.message_len().map(drop)
            }
            _ => Err(Error::Unexpected),
        }
    }

    /// The length of the first message with its header, if that is here.
    fn message_len(&self) -> Result<Option<usize>, Error> {
        let Some([_, len @ ..]) = self.messages.first_chunk::<MESSAGE_HEADER>() else {
            return Ok(None);
        };
        let len = MESSAGE_HEADER + u32::from_be_bytes([0, len[0], len[1], len[2]]) as usize;
        if len > MESSAGE { Err(Error::TooLong) } else { Ok(Some(len)) }
    }

    /// The next message, with its header, if all of it is here.
    pub(crate) fn message(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.message_len()? {
            Some(len) if len <= self.messages.len() => {
                let rest = self.messages.split_off(len);
                Ok(Some(mem::replace(&mut self.messages, rest)))
            }
            _ => Ok(None),
        }
    }

    /// Records are protected by this key from now on. A message must not begin before that and end after it (RFC 8446
    /// section 5.1).
    pub(crate) fn protect(&mut self, opener: Opener) -> Result<(), Error> {
        self.opener = Some(opener);
        self.ended()
    }

    /// The message that was taken last was the last one with these keys.
    pub(crate) fn ended(&self) -> Result<(), Error> {
        if self.messages.is_empty() { Ok(()) } else { Err(Error::Unexpected) }
    }
}
