//! Ordinary files in the journal, and how they are brought back.

use serde::{Deserialize, Serialize};

use super::edit::{self, Edit};
use super::machine::{Fault, Kept, Machine};

/// A file as it is kept in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Its bytes, each as the character of that number: texts can be read.
    text: String,
    mode: u32,
}

impl From<&Kept> for Content {
    fn from(kept: &Kept) -> Self {
        Self { text: kept.bytes.iter().map(|&byte| char::from(byte)).collect(), mode: kept.mode }
    }
}

impl From<&Content> for Kept {
    fn from(content: &Content) -> Self {
        // Characters beyond a byte are in no journal that we have written.
        let byte = |letter| u8::try_from(u32::from(letter)).unwrap_or(b'?');
        Self { bytes: content.text.chars().map(byte).collect(), mode: content.mode }
    }
}

/// Where a file is.
pub(super) fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(directory, _)| directory)
}

/// The text of a file.
pub(super) fn text_of(kept: &Kept, path: &str) -> Result<String, Fault> {
    let text = String::from_utf8(kept.bytes.clone());
    text.map_err(|_| Fault(format!("{path} is no UTF-8 text, so it is not edited")))
}

/// Brings an ordinary file back: whole, if it is as it was written, and otherwise by taking out
/// what is ours. Tells what stays.
pub(super) fn back(
    machine: &dyn Machine,
    path: &str,
    before: Option<&Content>,
    after: &Content,
    edits: &[Edit],
) -> Result<Vec<String>, Fault> {
    let (before, after) = (before.map(Kept::from), Kept::from(after));
    let Some(have) = machine.get(path)? else {
        let gone = before.map(|_| format!("{path} was removed since, and is not put back"));
        return Ok(gone.into_iter().collect());
    };
    if before.as_ref().is_some_and(|before| before.bytes == have.bytes) {
        return Ok(Vec::new());
    }
    let (rest, mut told) = edit::unset(&text_of(&have, path)?, edits);
    let (alone, _) = edit::unset(&text_of(&after, path)?, edits);
    if have.bytes == after.bytes || (before.is_none() && rest.trim() == alone.trim()) {
        // Permissions that somebody has changed since are theirs.
        let mode = |kept| Kept { mode: have.mode, ..kept };
        let changed = have.mode != after.mode;
        let before = if changed { before.map(mode) } else { before };
        machine.put(path, before.as_ref())?;
        return Ok(told);
    }
    let rest = if before.is_none() { edit::headless(&rest) } else { rest };
    if rest.as_bytes() != have.bytes {
        machine.put(path, Some(&Kept { bytes: rest.into_bytes(), mode: have.mode }))?;
        told.push("it was edited since: only what lunet wrote was taken out".to_owned());
    }
    Ok(told.into_iter().map(|what| format!("{path}: {what}")).collect())
}

/// What there would be of a file without what is ours, if it can be read.
pub(super) fn without(machine: &dyn Machine, path: &str, edits: &[Edit]) -> Option<String> {
    let have = machine.get(path).ok()??;
    Some(edit::unset(&text_of(&have, path).ok()?, edits).0)
}
