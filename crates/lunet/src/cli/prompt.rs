//! Secrets from the terminal.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};
use lunet::config::access::MAX_SECRET;
use lunet_api::SecretText;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};
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

/// The terminal shows nothing as long as this lives, even if we fail.
struct Hidden;

impl Hidden {
    fn new() -> Result<Self> {
        enable_raw_mode().context("cannot keep the terminal from showing the secret")?;
        Ok(Self)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
        let _ = writeln!(io::stderr());
    }
}

fn hidden(prompt: &str) -> Result<Zeroizing<String>> {
    let _ = write!(io::stderr(), "{prompt}").and_then(|()| io::stderr().flush());
    let _hidden = Hidden::new()?;
    let mut text = Zeroizing::new(String::with_capacity(ROOM));
    loop {
        let Event::Key(key) = event::read().context("cannot read the secret")? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Ok(text),
            KeyCode::Char('c' | 'd') if control => {
                bail!("no secret was given: nothing has changed")
            }
            KeyCode::Char('u') if control => text.clear(),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Char(c) if !control && text.len() <= MAX_SECRET => text.push(c),
            _ => {}
        }
    }
}
