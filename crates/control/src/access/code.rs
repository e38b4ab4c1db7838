//! The code that the first account is made with.

use std::io;

use super::same;

/// Letters and digits that are not taken for one another.
const ALPHABET: &[u8; 31] = b"ABCDEFGHJKMNPQRSTUVWXYZ23456789";

/// How often one may be wrong before there is another code.
const TRIES: u32 = 5;

/// A code that `lunet serve` prints, and whoever reads that knows.
pub(super) struct OneTime {
    text: String,
    wrong: u32,
}

impl OneTime {
    /// # Errors
    /// There are no random numbers.
    pub(super) fn new() -> io::Result<Self> {
        let mut text = String::with_capacity(9);
        while text.len() < 9 {
            let mut byte = [0];
            lunet_os::random::fill(&mut byte)?;
            // Of 256 values, 248 are as likely as the others.
            if usize::from(byte[0]) < ALPHABET.len() * 8 {
                text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
                if text.len() == 4 {
                    text.push('-');
                }
            }
        }
        Ok(Self { text, wrong: 0 })
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

    /// Somebody was wrong. True if that was once too often.
    pub(super) fn tried(&mut self) -> bool {
        self.wrong += 1;
        self.wrong >= TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_with_and_without_its_hyphen_and_ends_after_five_tries() {
        let mut code = OneTime::new().unwrap();
        let text = code.text().to_owned();
        assert_eq!((text.len(), text.as_bytes()[4]), (9, b'-'));
        assert!(code.is(&text) && code.is(&text.to_lowercase().replace('-', " ")));
        assert!(!code.is("") && !code.is(&text[..8]));
        assert_ne!(OneTime::new().unwrap().text(), text);
        let tries: Vec<bool> = (0..5).map(|_| code.tried()).collect();
        assert_eq!(tries, [false, false, false, false, true]);
    }
}
