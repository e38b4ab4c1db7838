//! What is wrong with a configuration, and where.

use std::fmt;

/// The most mistakes that are told at once.
const MOST: usize = 100;

/// One mistake in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line it is on, from 1.
    pub line: usize,
    /// The key with the tables around it, as in `volumes.fast.block-size`; empty if the text
    /// cannot be read as TOML at that place.
    pub key: String,
    /// What is wrong, in one sentence without a full stop.
    pub text: String,
}

/// `12: volumes.fast.block-size: must be 512 or 4096`
impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

/// Gathers mistakes and knows the lines of the text.
#[derive(Debug)]
pub(crate) struct Mistakes {
    line_starts: Vec<usize>,
    found: Vec<Mistake>,
    /// What is no mistake but should be known.
    notes: Vec<Mistake>,
}

impl Mistakes {
    pub(crate) fn new(text: &str) -> Self {
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        let line_starts = std::iter::once(0).chain(starts).collect();
        Self { line_starts, found: Vec::new(), notes: Vec::new() }
    }

    /// The line, from 1, of the byte at `offset`.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// Notes a mistake at the byte `offset`.
    pub(crate) fn add(&mut self, offset: usize, key: impl Into<String>, text: impl Into<String>) {
        if self.found.len() < MOST {
            let line = self.line(offset);
            self.found.push(Mistake { line, key: key.into(), text: text.into() });
        }
    }

    /// Remembers what is no mistake, at the byte `offset`, but should be known.
    pub(crate) fn note(&mut self, offset: usize, key: impl Into<String>, text: impl Into<String>) {
        if self.notes.len() < MOST {
            let line = self.line(offset);
            self.notes.push(Mistake { line, key: key.into(), text: text.into() });
        }
    }

    /// The same, of what knows its line.
    pub(crate) fn note_of(&mut self, note: Mistake) {
        if self.notes.len() < MOST {
            self.notes.push(note);
        }
    }

    /// All notes, in the order of their lines.
    pub(crate) fn take_notes(&mut self) -> Vec<Mistake> {
        self.notes.sort_by_key(|note| note.line);
        std::mem::take(&mut self.notes)
    }

    /// Takes mistakes that know their lines.
    pub(crate) fn extend(&mut self, mistakes: Vec<Mistake>) {
        let room = MOST - self.found.len();
        self.found.extend(mistakes.into_iter().take(room));
    }

    pub(crate) fn none(&self) -> bool {
        self.found.is_empty()
    }

    /// All mistakes, in the order of their lines.
    pub(crate) fn into_sorted(mut self) -> Vec<Mistake> {
        self.found.sort_by_key(|mistake| mistake.line);
        self.found
    }
}
