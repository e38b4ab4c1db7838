//! Text that somebody else chose, for the eyes of people: names, aliases and values from the network.
//!
//! Such text may steer a terminal (control characters), turn the order of what stands beside it
//! (bidirectional formatting), or hold what nobody sees (zero-width characters, fillers, tags), so that
//! two names look the same. [`printable`] shows `?` for each of these; everything that prints text of a
//! stranger goes through it.

use alloc::string::String;
use core::fmt::{self, Write as _};

/// What stands for a character that is not shown.
const HIDDEN: char = '?';

/// Marks that one letter may carry. More of them would be drawn over the lines above and below.
const MARKS: usize = 2;

/// `text` without characters that steer, turn or hide. `{}` shows it plainly, `{:?}` in quotation marks
/// with those inside it escaped, so that it cannot be taken for more than one value.
#[must_use]
pub fn printable(text: &str) -> Printable<'_> {
    Printable(text)
}

/// See [`printable`].
#[derive(Clone, Copy)]
pub struct Printable<'a>(&'a str);

impl Printable<'_> {
    fn write(self, out: &mut fmt::Formatter<'_>, quoted: bool) -> fmt::Result {
        let mut marks = MARKS;
        for c in self.0.chars() {
            let mark = is_mark(c);
            marks = if mark { marks + 1 } else { 0 };
            if quoted && matches!(c, '"' | '\\') {
                out.write_char('\\')?;
            }
            out.write_char(if is_printable(c) && marks <= MARKS { c } else { HIDDEN })?;
        }
        Ok(())
    }
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(out, false)
    }
}

impl fmt::Debug for Printable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_char('"')?;
        self.write(out, true)?;
        out.write_char('"')
    }
}

/// The same for several lines: each is shown as [`printable`] shows it, and they stay lines.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        // Writing to a String cannot fail.
        let _ = write!(out, "{}", printable(line));
    }
    out
}

/// JSON text with the characters that [`printable`] hides as escapes (RFC 8259 section 7): what it says stays the same.
#[must_use]
pub fn printable_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_printable(c) || c == '\n' {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// True for a character that is drawn where it stands, and seen: no control character, no format
/// character (bidirectional ones are among them), no space but the usual one, nothing that Unicode has
/// not assigned or leaves to private use, and nothing that is drawn as nothing.
#[must_use]
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Letters, marks and symbols by their category that Unicode wants ignored, or that are blank.
    let blank = matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}'
        | '\u{e0000}'..='\u{e0fff}');
    !blank && !is_escaped(c, "x")
}

/// True for a mark that is drawn over the character before it.
fn is_mark(c: char) -> bool {
    // The first character of a text is escaped if it is a mark, a later one is not.
    !c.is_ascii() && is_escaped(c, "") && !is_escaped(c, "x")
}

/// True if the core library, whose table of printable characters this is, escapes `c` behind `before`
/// (at most one byte).
fn is_escaped(c: char, before: &str) -> bool {
    let mut bytes = [b'x'; 5];
    let end = before.len() + c.encode_utf8(&mut bytes[before.len()..]).len();
    let text = core::str::from_utf8(&bytes[..end]).unwrap_or_default();
    text.escape_debug().nth(before.len()) != Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn text_that_steers_turns_or_hides_is_not_shown() {
        for (text, shown) in [
            ("iqn.2026-11.local.lunet:demo", "iqn.2026-11.local.lunet:demo"),
            ("Büro, 日本語, ελ", "Büro, 日本語, ελ"),
            ("an e\u{301}, a \u{301}\u{301}\u{301}\u{301}", "an e\u{301}, a \u{301}\u{301}??"),
            ("\u{301}x", "?x"),
            ("\u{1b}[2J\r\n\t\u{7f}\u{9b}m", "?[2J?????m"),
            ("a\u{202e}b\u{2066}c\u{200f}d\u{61c}", "a?b?c?d?"),
            ("a\u{200b}b\u{200d}c\u{feff}d\u{ad}e\u{2060}", "a?b?c?d?e?"),
            ("a\u{a0}b\u{3000}c\u{2028}d\u{2003}", "a?b?c?d?"),
            ("\u{3164}\u{ffa0}\u{115f}\u{2800}\u{34f}\u{fe0f}", "??????"),
            ("\u{e0061}\u{e0100}\u{e000}\u{10ffff}\u{378}", "?????"),
        ] {
            assert_eq!(printable(text).to_string(), shown, "{text:?}");
        }
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(printable_lines("a\u{1b}[2J\n\n\u{202e}b\rc\n"), "a?[2J\n\n?b?c\n");
        assert_eq!(printable_lines(""), "");
    }

    #[test]
    fn quoted_text_is_one_value() {
        let text = "x\" target=\"y\\\u{202e}";
        assert_eq!(format!("{:?}", printable(text)), "\"x\\\" target=\\\"y\\\\?\"");
    }

    #[test]
    fn json_says_the_same_with_escapes() {
        assert_eq!(
            printable_json("{\n  \"a\": \"é\u{202e}\u{7f}\u{e0061}\"\n}"),
            "{\n  \"a\": \"é\\u202e\\u007f\\udb40\\udc61\"\n}"
        );
    }

    proptest! {
        #[test]
        fn what_is_shown_is_printable_and_as_long(text in any::<String>()) {
            let shown = printable(&text).to_string();
            prop_assert!(shown.chars().all(is_printable));
            prop_assert_eq!(shown.chars().count(), text.chars().count());
            prop_assert_eq!(printable(&shown).to_string(), shown);
        }
    }
}
