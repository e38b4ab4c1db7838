//! What is kept of a volume beside its reservations, a small file for each.
//!
//! The mark that it is being sanitized or formatted is there from before the first block is touched until every block
//! is done, so a server that finds it knows that the operation was cut off. Its mode parameters are there while an initiator
//! has switched the write cache off.

use std::io;
use std::path::{Path, PathBuf};

use lunet_scsi::{Designator, Sanitation};
use lunet_volume::files;
use serde::{Deserialize, Serialize};

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
    /// It was FORMAT UNIT.
    #[serde(default, skip_serializing_if = "is_false")]
    format: bool,
}

/// The saved mode parameters of one volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    /// The designator: another volume by the same name does not inherit.
    unit: String,
    /// WCE of the Caching mode page.
    write_cache: bool,
}

/// Where the mark of a volume is, given where its reservations are kept.
fn beside(kept: &Path) -> PathBuf {
    kept.with_extension("sanitize")
}

/// Where its mode parameters are.
fn modes(kept: &Path) -> PathBuf {
    kept.with_extension("modes")
}

/// Makes it stable that initiators have switched the write cache of a volume off, or that they have not.
///
/// # Errors
/// The operating system's; what was kept before is kept then.
pub fn keep_write_cache(kept: &Path, unit: &Designator, write_cache: bool) -> io::Result<()> {
    let path = modes(kept);
    let saved = Saved { version: VERSION, unit: unit.to_string(), write_cache: false };
    let text = serde_json::to_vec_pretty(&saved)?;
    if write_cache {
        // If it is gone, but that is not stable, it comes back: for the initiator the cache is still off.
        let restore = |_: &files::Unremoved| drop(files::replace(&path, &text));
        return Ok(files::remove(&path).map(drop).inspect_err(restore)?);
    }
    Ok(files::replace(&path, &text)?)
}

/// False if initiators have switched the write cache of a volume off. If the file cannot be read nobody knows, and off
/// is what harms nobody.
pub fn write_cache(kept: &Path, unit: &Designator) -> bool {
    let path = modes(kept);
    let name = path.display();
    let read = files::read(&path, MAX_FILE).map_err(String::from).and_then(|text| {
        let Some(text) = text else { return Ok(true) };
        let saved: Saved =
            serde_json::from_slice(&text).map_err(|error| format!("{name} is damaged: {error}"))?;
        if saved.version != VERSION {
            return Err(format!("{name} is of version {}, not {VERSION}", saved.version));
        }
        if saved.unit != unit.to_string() {
            tracing::warn!(file = %name, "the mode parameters are those of another volume");
            return Ok(true);
        }
        Ok(saved.write_cache)
    });
    read.unwrap_or_else(|error| {
        tracing::error!("{error}: the write cache of the volume is off");
        false
    })
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Makes a mark stable that says where the volume stands if the operation is cut off, or, with
/// [`Sanitation::None`], its absence.
///
/// # Errors
/// The operating system's.
pub fn set(kept: &Path, unit: &Designator, stands: Sanitation) -> io::Result<()> {
    let path = beside(kept);
    let (restricted, format) = match stands {
        Sanitation::None => return Ok(files::remove(&path).map(drop)?),
        Sanitation::Failed { restricted } => (restricted, false),
        Sanitation::Running => (true, false),
        Sanitation::Formatting | Sanitation::Unformatted => (true, true),
    };
    let mark = Mark { version: VERSION, unit: unit.to_string(), restricted, format };
    Ok(files::replace(&path, &serde_json::to_vec_pretty(&mark)?)?)
}

/// What the mark of a volume says of an operation that was cut off. [`Sanitation::None`] without a mark.
///
/// # Errors
/// A plain sentence: the file cannot be read, or is damaged. Without it nobody knows what the volume holds.
pub fn get(kept: &Path, unit: &Designator) -> Result<Sanitation, String> {
    let path = beside(kept);
    let name = path.display();
    let Some(text) = files::read(&path, MAX_FILE)? else { return Ok(Sanitation::None) };
    let mark: Mark =
        serde_json::from_slice(&text).map_err(|error| format!("{name} is damaged: {error}"))?;
    if mark.version != VERSION {
        return Err(format!("{name} is of version {}, not {VERSION}", mark.version));
    }
    if mark.unit != unit.to_string() {
        tracing::warn!(file = %name, "the mark is that of another volume");
        return Ok(Sanitation::None);
    }
    Ok(match mark.format {
        true => Sanitation::Unformatted,
        false => Sanitation::Failed { restricted: mark.restricted },
    })
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
        assert_eq!(get(&kept, UNIT), Ok(Sanitation::None));
        set(&kept, UNIT, Sanitation::None).expect("nothing to take away");
        let failed = |restricted| Sanitation::Failed { restricted };
        for stands in [failed(true), failed(false), Sanitation::Unformatted] {
            set(&kept, UNIT, stands).expect("it is made");
            assert_eq!(get(&kept, UNIT), Ok(stands));
            assert_eq!(get(&kept, OTHER), Ok(Sanitation::None));
        }
        assert_eq!(get(&dir.path().join("disk.two.reservations"), UNIT), Ok(Sanitation::None));
        set(&kept, UNIT, Sanitation::None).expect("it is taken away");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_write_cache_that_was_switched_off_is_found_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = dir.path().join("disk.one.reservations");
        assert!(write_cache(&kept, UNIT));
        keep_write_cache(&kept, UNIT, true).expect("nothing to take away");
        keep_write_cache(&kept, UNIT, false).expect("it is kept");
        assert!(!write_cache(&kept, UNIT) && write_cache(&kept, OTHER));
        let text = fs::read_to_string(modes(&kept)).expect("text");
        for nonsense in ["", &text.replace("1,", "2,"), &text.replace("false", "0")] {
            assert_ne!(nonsense, text);
            fs::write(modes(&kept), nonsense).expect("written");
            assert!(!write_cache(&kept, UNIT), "off harms nobody: {nonsense}");
        }
        keep_write_cache(&kept, UNIT, true).expect("it goes");
        assert!(write_cache(&kept, UNIT));
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_damaged_mark_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = dir.path().join("v.reservations");
        set(&kept, UNIT, Sanitation::Failed { restricted: true }).expect("it is made");
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
