//! Secrets from the terminal.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};
use lunet::config::access::MAX_SECRET;
use lunet::control::SecretText;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode};

/// Asks twice for the secret of a user, and shows nothing of it. What is no terminal is read to
/// its end: one line.
pub fn secret(user: &str) -> Result<SecretText> {
    if !io::stdin().is_terminal() {
        let mut text = String::new();
        let most = MAX_SECRET as u64 + 3;
        io::stdin()
            .lock()
            .take(most)
            .read_to_string(&mut text)
            .context("cannot read the secret")?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        return Ok(SecretText::new(line.strip_suffix('\r').unwrap_or(line).to_owned()));
    }
    let first = hidden(&format!("Secret of {user}: "))?;
    if first != hidden("The same again: ")? {
        bail!("the two were not the same: nothing has changed");
    }
    Ok(SecretText::new(first))
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

fn hidden(prompt: &str) -> Result<String> {
    let _ = write!(io::stderr(), "{prompt}").and_then(|()| io::stderr().flush());
    let _hidden = Hidden::new()?;
    let mut text = String::new();
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
