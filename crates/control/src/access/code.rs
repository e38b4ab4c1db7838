//! The code that the first account is made with.

use std::io;

use super::same;

/// Letters and digits that are not taken for one another.
const ALPHABET: &[u8; 31] = b"ABCDEFGHJKMNPQRSTUVWXYZ23456789";

/// Letters and digits of a code, of 4.95 bits each: nobody finds one of 2^59 by trying, so one that was tried is as good
/// as before, and strangers can take it from nobody.
const LENGTH: usize = 12;

/// Letters and digits between two hyphens.
const GROUP: usize = 4;

/// A code that `lunet serve` prints, and whoever reads that knows.
pub(super) struct OneTime {
    text: String,
}

impl OneTime {
    /// # Errors
    /// There are no random numbers.
    pub(super) fn new() -> io::Result<Self> {
        let mut text = String::new();
        let mut count = 0;
        while count < LENGTH {
            let mut byte = [0];
            lunet_os::random::fill(&mut byte)?;
            // Of 256 values, 248 are as likely as the others.
            if usize::from(byte[0]) < ALPHABET.len() * 8 {
                if count > 0 && count % GROUP == 0 {
                    text.push('-');
                }
                text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
                count += 1;
            }
        }
        Ok(Self { text })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// True if this is the code, however it is written.
    pub(super) fn is(&self, text: &str) -> bool {
        let plain = |text: &str| -> String {
            let kept = text.chars().filter(char::is_ascii_alphanumeric);
            kept.map(|c| c.to_ascii_uppercase()).collect()
        };
        same(&plain(text), &plain(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_with_and_without_its_hyphens() {
        let code = OneTime::new().unwrap();
        let text = code.text().to_owned();
        let bytes = text.as_bytes();
        assert_eq!((text.len(), bytes[4], bytes[9]), (14, b'-', b'-'));
        assert!(code.is(&text) && code.is(&text.to_lowercase().replace('-', " ")));
        assert!(!code.is("") && !code.is(&text[..13]) && !code.is(&text[..9]));
        assert_ne!(OneTime::new().unwrap().text(), text);
    }
}
