//! `key=value` data of login and text PDUs (RFC 7143 sections 6.1 and 6.2).

use crate::pdu::CONTINUE;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use thiserror::Error;

/// Most bytes of key data that one negotiation may send before its answer.
pub const MAX_TEXT: usize = 64 * 1024;
/// Longest key name in bytes.
pub const MAX_KEY: usize = 63;
/// Longest value in bytes: room for the lists and binary values that RFC 7143 defines.
pub const MAX_VALUE: usize = 8192;

/// The value 'Reject'.
pub const REJECT: &str = "Reject";
/// The value 'Irrelevant'.
pub const IRRELEVANT: &str = "Irrelevant";
/// The value 'NotUnderstood'.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";

/// What is wrong with key data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TextError {
    /// A piece has no equals sign.
    #[error("a piece of text has no '='")]
    NoEquals,
    /// The key name is empty, too long, or has bytes that a key may not have.
    #[error("a key name is empty, longer than 63 bytes or has forbidden characters")]
    Key,
    /// The value is too long.
    #[error("a value is longer than {MAX_VALUE} bytes")]
    ValueTooLong,
    /// The value is not UTF-8.
    #[error("a value is not UTF-8")]
    NotUtf8,
    /// The last pair does not end with a zero byte.
    #[error("the text does not end with a zero byte")]
    Unterminated,
    /// A key that lists things came twice in one request.
    #[error("a key was sent twice")]
    Twice,
    /// More than [`MAX_TEXT`] bytes were sent in one go.
    #[error("a negotiation sent more than {MAX_TEXT} bytes of text")]
    TooLong,
}

/// One `key=value` pair.
pub type Pair<'a> = (&'a str, &'a str);

/// The pairs of complete key data. Stops after the first error. Surplus zero bytes are skipped.
pub fn pairs(text: &[u8]) -> Pairs<'_> {
    Pairs { rest: text }
}

/// Iterator of [`pairs`].
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Result<Pair<'a>, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|byte| *byte != 0)?;
        let text = &self.rest[start..];
        let Some(end) = text.iter().position(|byte| *byte == 0) else {
            self.rest = &[];
            return Some(Err(TextError::Unterminated));
        };
        self.rest = &text[end..];
        let pair = split(&text[..end]);
        if pair.is_err() {
            self.rest = &[];
        }
        Some(pair)
    }
}

/// Takes one piece of text apart at its first equals sign.
fn split(piece: &[u8]) -> Result<Pair<'_>, TextError> {
    let equals = piece.iter().position(|byte| *byte == b'=').ok_or(TextError::NoEquals)?;
    let (key, value) = (&piece[..equals], &piece[equals + 1..]);
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+@_".contains(byte);
    if key.is_empty() || key.len() > MAX_KEY || !key.iter().all(allowed) {
        return Err(TextError::Key);
    }
    if value.len() > MAX_VALUE {
        return Err(TextError::ValueTooLong);
    }
    let key = core::str::from_utf8(key).map_err(|_| TextError::Key)?;
    Ok((key, core::str::from_utf8(value).map_err(|_| TextError::NotUtf8)?))
}

/// Collects key data that comes in several PDUs, up to [`MAX_TEXT`] bytes.
#[derive(Debug, Default)]
pub struct Collector {
    bytes: Vec<u8>,
}

impl Collector {
    /// An empty collector.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the data segment of a PDU with these `flags`. Gives the whole text when the Continue
    /// bit is clear; the collector is empty again then, and after an error.
    pub fn push(&mut self, data: &[u8], flags: u8) -> Result<Option<Vec<u8>>, TextError> {
        if self.bytes.len() + data.len() > MAX_TEXT {
            self.bytes = Vec::new();
            return Err(TextError::TooLong);
        }
        self.bytes.extend_from_slice(data);
        if flags & CONTINUE != 0 {
            return Ok(None);
        }
        Ok(Some(core::mem::take(&mut self.bytes)))
    }

    /// True when no part of an unfinished text is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets what was collected.
    pub fn clear(&mut self) {
        self.bytes = Vec::new();
    }
}

/// Builds key data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    text: String,
}

impl Writer {
    /// No pairs yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `key=value`.
    pub fn pair(&mut self, key: &str, value: impl fmt::Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{key}={value}\0");
    }

    /// True when there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The key data as it goes into a data segment; cut it anywhere for PDUs with the Continue bit.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// The text as `key=value` pairs, each with a NUL byte behind it (RFC 7143 section 6.1).
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
        pairs(text).collect()
    }

    #[test]
    fn pairs_are_split_at_the_first_equals_sign() {
        assert_eq!(
            all(b"A=1\0TargetName=iqn.x:a=b\0Empty=\0"),
            Ok(alloc::vec![("A", "1"), ("TargetName", "iqn.x:a=b"), ("Empty", "")])
        );
        assert_eq!(all(b"\0\0A=1\0\0"), Ok(alloc::vec![("A", "1")]));
        assert_eq!(all(b""), Ok(Vec::new()));
    }

    #[test]
    fn mistakes_are_told_apart() {
        assert_eq!(all(b"A=1"), Err(TextError::Unterminated));
        assert_eq!(all(b"A\0"), Err(TextError::NoEquals));
        assert_eq!(all(b"=1\0"), Err(TextError::Key));
        assert_eq!(all(b"A B=1\0"), Err(TextError::Key));
        assert_eq!(all(b"A=\xff\0"), Err(TextError::NotUtf8));
        let mut long = Writer::new();
        long.pair(&"k".repeat(MAX_KEY + 1), 1);
        assert_eq!(all(long.as_bytes()), Err(TextError::Key));
        let mut long = Writer::new();
        long.pair("k", "v".repeat(MAX_VALUE + 1));
        assert_eq!(all(long.as_bytes()), Err(TextError::ValueTooLong));
    }

    #[test]
    fn the_iterator_ends_after_an_error() {
        let mut pairs = pairs(b"bad\0A=1\0");
        assert_eq!(pairs.next(), Some(Err(TextError::NoEquals)));
        assert_eq!(pairs.next(), None);
    }

    #[test]
    fn a_pair_may_be_cut_anywhere_by_the_continue_bit() {
        let mut collector = Collector::new();
        assert_eq!(collector.push(b"Ke", CONTINUE), Ok(None));
        assert_eq!(collector.push(b"y=va", CONTINUE), Ok(None));
        assert!(!collector.is_empty());
        assert_eq!(collector.push(b"lue\0", 0), Ok(Some(b"Key=value\0".to_vec())));
        assert!(collector.is_empty());
    }

    #[test]
    fn collected_text_is_bounded() {
        let mut collector = Collector::new();
        for _ in 0..MAX_TEXT / 8192 {
            assert_eq!(collector.push(&[b'x'; 8192], CONTINUE), Ok(None));
        }
        assert_eq!(collector.push(b"x", CONTINUE), Err(TextError::TooLong));
        assert!(collector.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_give_pairs_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            for (key, value) in pairs(&bytes).flatten() {
                prop_assert!(!key.is_empty() && key.len() <= MAX_KEY && value.len() <= MAX_VALUE);
            }
        }

        #[test]
        fn written_pairs_are_read_back(list in proptest::collection::vec(("[A-Za-z][A-Za-z0-9.@_+-]{0,62}", "[ -~]{0,255}"), 0..20)) {
            let mut writer = Writer::new();
            for (key, value) in &list {
                writer.pair(key, value);
            }
            let expected: Vec<Pair<'_>> = list.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            prop_assert_eq!(all(writer.as_bytes()), Ok(expected));
        }
    }
}
