//! `lunet top`: the terminal around the [`Screen`].

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::screen::Screen;
use lunet_cli::control::Client;
use lunet_cli::watch;

/// Shows what the server behind `client` does, until somebody has seen enough. A server that goes away is waited for.
///
/// # Errors
/// Standard output is no terminal, there is no server to begin with, or the terminal fails.
pub fn top(client: &Client, interval: Duration) -> Result<()> {
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        bail!("`lunet top` needs a terminal: use `lunet stats --follow`, which prints lines");
    }
    let mut screen = Screen::default();
    screen.take(watch::look(client)?);
    let mut terminal = ratatui::try_init().context("the terminal cannot be set up")?;
    let result = show(&mut terminal, &mut screen, client, interval);
    ratatui::restore();
    result
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    client: &Client,
    interval: Duration,
) -> Result<()> {
    // The first figures come soon: of a short interval, but not of a long wait.
    let mut next = Instant::now() + interval.min(Duration::from_millis(500));
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            if !handle(screen, &event::read()?) {
                return Ok(());
            }
            continue;
        }
        match watch::look(client) {
            Ok(sample) => screen.take(sample),
            Err(why) => screen.fail(&lunet_config::units::plain(&why.to_string()), Instant::now()),
        }
        next = Instant::now() + interval;
    }
}

/// What a key does; false ends it.
fn handle(screen: &mut Screen, event: &Event) -> bool {
    let Event::Key(key) = event else { return true };
    if key.kind != KeyEventKind::Press {
        return true;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if control => return false,
        KeyCode::Up | KeyCode::Char('k') => screen.scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => screen.scroll(1),
        KeyCode::PageUp => screen.scroll(-10),
        KeyCode::PageDown => screen.scroll(10),
        _ => {}
    }
    true
}
