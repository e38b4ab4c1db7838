//! Changes of a text, one line or word at a time, that can be taken out again although the rest of
//! the text has been edited since.

use serde::{Deserialize, Serialize};

use crate::plan::section_of;

/// The first line of the files that are ours alone.
pub(super) const HEAD: &str =
    "# Written by `lunet tune apply --persist`; `lunet tune rollback` takes it away.";

/// Which parts of a text set the same thing as one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", content = "of", rename_all = "lowercase")]
pub enum Key {
    /// Lines that start like this.
    Start(String),
    /// Lines `NAME = value`.
    Name(String),
    /// Lines `NAME = value` below the head `[SECTION]`: first the section, then the name.
    Section(String, String),
    /// Words `NAME=value` of a command line of the kernel's.
    Word(String),
    /// Commands of a unit of systemd that hold this.
    Command(String),
}

/// How a unit of systemd names a command.
const COMMAND: &str = "ExecStart=";

impl Key {
    fn matches(&self, part: &str) -> bool {
        match self {
            Self::Start(start) => part.starts_with(start.as_str()),
            Self::Name(name) | Self::Section(_, name) => {
                part.split_once('=').is_some_and(|(have, _)| have.trim() == name.as_str())
            }
            Self::Word(name) => {
                let have = part.split_once('=').map_or(part, |(have, _)| have);
                // The kernel takes both for the same.
                have.replace('-', "_") == name.replace('-', "_")
            }
            Self::Command(key) => part.starts_with(COMMAND) && part.contains(key.as_str()),
        }
    }

    /// Whether the part is where the key is about.
    fn holds(&self, parts: &[String], at: usize) -> bool {
        let Self::Section(section, _) = self else { return true };
        parts[..at].iter().rev().find_map(|part| section_of(part)) == Some(section)
    }

    /// The last part that is head of the key's section.
    fn head(&self, parts: &[String]) -> Option<usize> {
        let Self::Section(section, _) = self else { return None };
        parts.iter().rposition(|part| section_of(part) == Some(section))
    }

    /// What of the text is replaced by ours: everything that sets the same, except in a file of
    /// somebody else's, where only the last line counts.
    fn replaces(&self, parts: &[String]) -> Vec<usize> {
        let mut all =
            (0..parts.len()).filter(|&at| self.matches(&parts[at]) && self.holds(parts, at));
        match self {
            Self::Name(_) | Self::Section(..) => all.next_back().into_iter().collect(),
            _ => all.collect(),
        }
    }
}

/// One of our parts of a text, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    key: Key,
    /// What we have put there.
    ours: String,
    /// What was there instead.
    replaced: Vec<String>,
}

/// What is wanted in a text: by what it is known, and the line or word.
pub type Wish = (Key, String);

/// The words of a command line. A quoted value may have spaces.
fn words(text: &str) -> Vec<String> {
    let mut quoted = false;
    let split = text.split(|letter: char| {
        quoted ^= letter == '"';
        letter.is_whitespace() && !quoted
    });
    split.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A text in its parts: lines, or the words of one line.
struct Parts {
    parts: Vec<String>,
    words: bool,
    /// Whether the last line ends.
    newline: bool,
}

impl Parts {
    fn new(text: &str, by_words: bool) -> Self {
        let parts = match by_words {
            true => words(text),
            false => text.lines().map(str::to_owned).collect(),
        };
        let newline = text.ends_with('\n') || (text.is_empty() && !by_words);
        Self { parts, words: by_words, newline }
    }

    fn of(text: &str, edits: &[Edit]) -> Self {
        Self::new(text, edits.iter().any(|edit| matches!(edit.key, Key::Word(_))))
    }

    fn text(self) -> String {
        let end = if self.newline && !self.parts.is_empty() { "\n" } else { "" };
        self.parts.join(if self.words { " " } else { "\n" }) + end
    }
}

/// The text with these parts in it, and what that has changed.
pub fn set(text: &str, wishes: Vec<Wish>) -> (String, Vec<Edit>) {
    let by_words = wishes.iter().any(|(key, _)| matches!(key, Key::Word(_)));
    let mut whole = Parts::new(text, by_words);
    let mut edits = Vec::new();
    for (key, ours) in wishes {
        let parts = &mut whole.parts;
        let found = key.replaces(parts);
        let mut replaced = Vec::new();
        for &at in found.iter().rev() {
            replaced.insert(0, parts.remove(at));
        }
        let command = parts.iter().rposition(|part| part.starts_with(COMMAND));
        let heads = ["RemainAfterExit=yes", "[Service]"];
        let service = || parts.iter().rposition(|part| heads.contains(&part.as_str()));
        let place = match (&key, found.first()) {
            (Key::Name(_) | Key::Section(..), Some(&at)) => at,
            (Key::Section(..), None) => key.head(parts).map_or(parts.len(), |at| at + 1),
            (Key::Command(_), _) => command.or_else(service).map_or(parts.len(), |at| at + 1),
            _ => parts.len(),
        };
        parts.insert(place, ours.clone());
        edits.push(Edit { key, ours, replaced });
    }
    whole.newline |= !by_words;
    (whole.text(), edits)
}

/// Whether all of our parts are in the text.
pub(super) fn holds(text: &str, edits: &[Edit]) -> bool {
    let whole = Parts::of(text, edits);
    // What a later edit of ours has replaced need not be there.
    let last = |at: usize| edits[at + 1..].iter().all(|later| later.key != edits[at].key);
    let there = |edit: &Edit| whole.parts.contains(&edit.ours);
    edits.iter().enumerate().all(|(at, edit)| !last(at) || there(edit))
}

/// Takes our parts out of a text that may have been edited since; what they stood for is put in
/// their places. What somebody has made of one of them stays as it is, and is told.
pub(super) fn unset(text: &str, edits: &[Edit]) -> (String, Vec<String>) {
    let mut whole = Parts::of(text, edits);
    let mut told = Vec::new();
    for edit in edits.iter().rev() {
        let parts = &mut whole.parts;
        let ours = |&at: &usize| parts[at] == edit.ours && edit.key.holds(parts, at);
        if let Some(at) = (0..parts.len()).rev().find(ours) {
            // Below a head of ours somebody has put lines of theirs since: they need it.
            let below =
                parts.get(at + 1).filter(|next| !next.is_empty() && section_of(next).is_none());
            if section_of(&edit.ours).is_some() && below.is_some() {
                continue;
            }
            parts.splice(at..=at, edit.replaced.iter().cloned());
            continue;
        }
        let have: Vec<&String> = parts.iter().filter(|part| edit.key.matches(part)).collect();
        if edit.replaced.iter().all(|part| have.contains(&part))
            && have.len() == edit.replaced.len()
        {
            continue;
        }
        let before = match edit.replaced.as_slice() {
            [] => "it was not set before".to_owned(),
            replaced => format!("before it was `{}`", replaced.join("`, `")),
        };
        told.push(match have.as_slice() {
            [] => format!("`{}` was taken out since, and stays out; {before}", edit.ours),
            [.., last] => {
                format!("`{}` was changed to `{last}` since, and stays; {before}", edit.ours)
            }
        });
    }
    (whole.text(), told)
}

/// The text without the line that says whose it is.
pub(super) fn headless(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| line.trim_end() != HEAD).collect()
}

/// Whether a unit of systemd has a command.
pub(super) fn has_commands(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(COMMAND))
}
