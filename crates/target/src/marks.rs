//! The mark that a volume is being sanitized: a file beside that of its reservations. It is there from before the
//! first block is touched until every block is done, so a server that finds it knows that the operation was
//! cut off.

use std::io;
use std::path::{Path, PathBuf};

use lunet_scsi::Designator;
use serde::{Deserialize, Serialize};

use crate::files;

/// A larger file is none of ours.
const MAX_FILE: u64 = 4096;

const VERSION: u32 = 1;

/// The mark of one volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    version: u32,
    /// The designator: another volume by the same name does not inherit.
    unit: String,
    /// Only another sanitize operation makes the volume usable again.
    restricted: bool,
}

/// Where the mark of a volume is, given where its reservations are kept.
fn beside(kept: &Path) -> PathBuf {
    kept.with_extension("sanitize")
}

/// Makes the mark stable, or, with `None`, its absence.
///
/// # Errors
/// The operating system's.
pub fn set(kept: &Path, unit: &Designator, restricted: Option<bool>) -> io::Result<()> {
    let path = beside(kept);
    let Some(restricted) = restricted else { return files::remove(&path).map(drop) };
    let mark = Mark { version: VERSION, unit: unit.to_string(), restricted };
    Ok(files::replace(&path, &serde_json::to_vec_pretty(&mark)?)?)
}

/// What the mark of a volume says: true if only another operation helps. `None` without a mark.
///
/// # Errors
/// A plain sentence: the file cannot be read, or is damaged. Without it nobody knows what the volume holds.
pub fn get(kept: &Path, unit: &Designator) -> Result<Option<bool>, String> {
    let path = beside(kept);
    let name = path.display();
    let Some(text) = files::read(&path, MAX_FILE)? else { return Ok(None) };
    let mark: Mark =
        serde_json::from_slice(&text).map_err(|error| format!("{name} is damaged: {error}"))?;
    if mark.version != VERSION {
        return Err(format!("{name} is of version {}, not {VERSION}", mark.version));
    }
    if mark.unit != unit.to_string() {
        tracing::warn!(file = %name, "the mark is that of another volume");
        return Ok(None);
    }
    Ok(Some(mark.restricted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const UNIT: &Designator = &Designator::eight([0x30, 1, 2, 3, 4, 5, 6, 7]);
    const OTHER: &Designator = &Designator::eight([0x30, 1, 2, 3, 4, 5, 6, 8]);

    #[test]
    fn a_mark_stands_until_it_is_taken_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = dir.path().join("disk.one.reservations");
        assert_eq!(get(&kept, UNIT), Ok(None));
        set(&kept, UNIT, None).expect("nothing to take away");
        for restricted in [true, false] {
            set(&kept, UNIT, Some(restricted)).expect("it is made");
            assert_eq!(get(&kept, UNIT), Ok(Some(restricted)));
            assert_eq!(get(&kept, OTHER), Ok(None));
        }
        assert_eq!(get(&dir.path().join("disk.two.reservations"), UNIT), Ok(None));
        set(&kept, UNIT, None).expect("it is taken away");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_damaged_mark_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = dir.path().join("v.reservations");
        set(&kept, UNIT, Some(true)).expect("it is made");
        let text = fs::read_to_string(beside(&kept)).expect("text");
        for (from, to) in [("\"version\": 1", "\"version\": 2"), ("true", "1"), ("}", "")] {
            assert!(text.contains(from), "{text}");
            fs::write(beside(&kept), text.replacen(from, to, 1)).expect("written");
            let error = get(&kept, UNIT).expect_err(from);
            assert!(error.contains("v.sanitize"), "{error}");
        }
        fs::write(beside(&kept), vec![b' '; 5000]).expect("written");
        assert!(get(&kept, UNIT).is_err());
    }
}
