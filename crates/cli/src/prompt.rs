//! Secrets from the terminal.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};
use lunet_api::SecretText;
use lunet_config::access::MAX_SECRET;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// Room for every secret, in bytes: what grows out of its place leaves a copy behind.
const ROOM: usize = 2 * MAX_SECRET;

/// Asks twice for the secret of a user, and shows nothing of it. What is no terminal is read to
/// its end: one line.
pub fn secret(user: &str) -> Result<SecretText> {
    if !io::stdin().is_terminal() {
        let most = MAX_SECRET as u64 + 3;
        let mut text = Zeroizing::new(String::with_capacity(ROOM));
        io::stdin()
            .lock()
            .take(most)
            .read_to_string(&mut text)
            .context("cannot read the secret")?;
        let line = text.strip_suffix('\n').unwrap_or(text.as_str());
        let line = line.strip_suffix('\r').unwrap_or(line);
        return Ok(SecretText::new(Zeroizing::new(line.to_owned())));
    }
    let first = hidden(&format!("Secret of {user}: "))?;
    if first != hidden("The same again: ")? {
        bail!("the two were not the same: nothing has changed");
    }
    Ok(SecretText::new(first))
}

/// Asks for a secret that exists, and shows nothing of it.
pub fn known_secret(user: &str) -> Result<Zeroizing<String>> {
    if !io::stdin().is_terminal() {
        bail!("nobody can be asked for the secret of {user} here: give it by --secret-file FILE");
    }
    hidden(&format!("Secret of {user}: "))
}

/// The terminal shows nothing, and passes on every key, as long as this lives.
struct Hidden {
    before: Termios,
}

impl Hidden {
    fn new() -> Result<Self> {
        let before = tcgetattr(io::stdin()).and_then(|before| {
            let mut hidden = before.clone();
            hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
            tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
            Ok(before)
        });
        Ok(Self { before: before.context("cannot keep the terminal from showing the secret")? })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
        let _ = writeln!(io::stderr());
    }
}

fn hidden(prompt: &str) -> Result<Zeroizing<String>> {
    let _ = write!(io::stderr(), "{prompt}").and_then(|()| io::stderr().flush());
    let _hidden = Hidden::new()?;
    let mut typed = Typed::default();
    let mut byte = Zeroizing::new([0]);
    while !typed.ended {
        io::stdin().read_exact(&mut byte[..]).context("cannot read the secret")?;
        typed.take(byte[0])?;
    }
    let text = std::str::from_utf8(&typed.line).context("the secret is not UTF-8 text")?;
    let mut secret = Zeroizing::new(String::with_capacity(ROOM));
    secret.push_str(text);
    Ok(secret)
}

/// A line as it is typed, with the keys of the terminal's own line editing (termios(3)).
struct Typed {
    line: Zeroizing<Vec<u8>>,
    ended: bool,
    escape: Escape,
}

/// Where a key that sends several bytes is, such as an arrow: none of them belongs to the line.
#[derive(PartialEq)]
enum Escape {
    Outside,
    Begun,
    Within,
}

impl Default for Typed {
    fn default() -> Self {
        let line = Zeroizing::new(Vec::with_capacity(ROOM));
        Self { line, ended: false, escape: Escape::Outside }
    }
}

impl Typed {
    fn take(&mut self, byte: u8) -> Result<()> {
        const CTRL_C: u8 = 3;
        const CTRL_D: u8 = 4;
        const CTRL_U: u8 = 21;
        const ESCAPE: u8 = 27;
        const DELETE: u8 = 127;
        match (&self.escape, byte) {
            (Escape::Begun, b'[' | b'O') => self.escape = Escape::Within,
            (Escape::Within, 0..0x40 | 0x7f..) => {}
            (Escape::Begun | Escape::Within, _) => self.escape = Escape::Outside,
            (Escape::Outside, ESCAPE) => self.escape = Escape::Begun,
            (Escape::Outside, b'\r' | b'\n') => self.ended = true,
            (Escape::Outside, CTRL_C | CTRL_D) => {
                bail!("no secret was given: nothing has changed")
            }
            (Escape::Outside, CTRL_U) => self.line.clear(),
            // A character, which may be several bytes of UTF-8.
            (Escape::Outside, DELETE | 8) => {
                while self.line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            (Escape::Outside, 0..32) => {}
            (Escape::Outside, byte) if self.line.len() <= MAX_SECRET => self.line.push(byte),
            (Escape::Outside, _) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(keys: &[u8]) -> Result<Vec<u8>> {
        let mut typed = Typed::default();
        keys.iter().try_for_each(|key| typed.take(*key))?;
        assert!(typed.ended);
        Ok(typed.line.to_vec())
    }

    #[test]
    fn a_line_is_edited_as_a_terminal_does() {
        assert_eq!(line(b"wrong\x15ab\x7fc\r").unwrap(), b"ac");
        assert_eq!(line("x\u{e9}\x7f\x08y\n".as_bytes()).unwrap(), b"y");
        assert_eq!(line(b"\x1b[Aa\x1bOBb\x1b[3~c\td\n").unwrap(), b"abcd");
        assert!(line(b"abc\x03\n").is_err() && line(b"\x04\n").is_err());
        let long = [b'a'; 3 * MAX_SECRET];
        assert_eq!(line(&[&long[..], b"\n"].concat()).unwrap().len(), MAX_SECRET + 1);
    }
}
