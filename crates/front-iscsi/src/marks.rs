//! What is kept of a volume beside its reservations, a small file for each.
//!
//! The mark that it is being sanitized or formatted is there from before the first block is touched until every block
//! is done, so a server that finds it knows that the operation was cut off. Its mode parameters are there while an initiator
//! has switched the write cache off.

use std::io;
use std::path::PathBuf;

use lunet_files::{self as files, ReadError};
use lunet_scsi::Sanitation;
use lunet_volume::reserve::Store;
use serde::{Deserialize, Serialize};

/// A larger file is none of ours.
const MAX_FILE: u64 = 4096;

const VERSION: u32 = 1;

/// The mark of one volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    version: u32,
    /// The owner.
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
    /// The owner.
    unit: String,
    /// WCE of the Caching mode page.
    write_cache: bool,
}

/// Where the mark of a volume is.
fn beside(store: &Store) -> PathBuf {
    store.path.with_extension("sanitize")
}

/// Where its mode parameters are.
fn modes(store: &Store) -> PathBuf {
    store.path.with_extension("modes")
}

/// Makes it stable that initiators have switched the write cache of a volume off, or that they have not.
///
/// # Errors
/// The operating system's; what was kept before is kept then.
pub fn keep_write_cache(store: &Store, write_cache: bool) -> io::Result<()> {
    let path = modes(store);
    let saved = Saved { version: VERSION, unit: store.owner.clone(), write_cache: false };
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
pub fn write_cache(store: &Store) -> bool {
    let path = modes(store);
    let read = files::read(&path, MAX_FILE).and_then(|text| {
        let Some(text) = text else { return Ok(true) };
        let saved: Saved = serde_json::from_slice(&text)
            .map_err(|error| ReadError::Damaged { path: path.clone(), error })?;
        if saved.version != VERSION {
            let (path, found, known) = (path.clone(), saved.version, VERSION);
            return Err(ReadError::Version { path, found, known });
        }
        if saved.unit != store.owner {
            tracing::warn!(file = %path.display(), "the mode parameters are those of another volume");
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
pub fn set(store: &Store, stands: Sanitation) -> io::Result<()> {
    let path = beside(store);
    let (restricted, format) = match stands {
        Sanitation::None => return Ok(files::remove(&path).map(drop)?),
        Sanitation::Failed { restricted } => (restricted, false),
        Sanitation::Running => (true, false),
        Sanitation::Formatting | Sanitation::Unformatted => (true, true),
    };
    let mark = Mark { version: VERSION, unit: store.owner.clone(), restricted, format };
    Ok(files::replace(&path, &serde_json::to_vec_pretty(&mark)?)?)
}

/// What the mark of a volume says of an operation that was cut off. [`Sanitation::None`] without a mark.
///
/// # Errors
/// The file cannot be read, or is damaged. Without it nobody knows what the volume holds.
pub fn get(store: &Store) -> Result<Sanitation, ReadError> {
    let path = beside(store);
    let Some(text) = files::read(&path, MAX_FILE)? else { return Ok(Sanitation::None) };
    let mark: Mark = match serde_json::from_slice(&text) {
        Ok(mark) => mark,
        Err(error) => return Err(ReadError::Damaged { path, error }),
    };
    if mark.version != VERSION {
        return Err(ReadError::Version { path, found: mark.version, known: VERSION });
    }
    if mark.unit != store.owner {
        tracing::warn!(file = %path.display(), "the mark is that of another volume");
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
    use std::path::Path;

    use crate::keeper::KeptRegistration;

    fn store(dir: &Path, name: &str, owner: &str) -> Store {
        let path = dir.join(format!("{name}.reservations"));
        Store::new::<KeptRegistration>(path, owner.into())
    }

    #[test]
    fn a_mark_stands_until_it_is_taken_away() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = store(dir.path(), "disk.one", "naa.3");
        let other = store(dir.path(), "disk.one", "naa.4");
        assert_eq!(get(&kept).expect("no mark"), Sanitation::None);
        set(&kept, Sanitation::None).expect("nothing to take away");
        let failed = |restricted| Sanitation::Failed { restricted };
        for stands in [failed(true), failed(false), Sanitation::Unformatted] {
            set(&kept, stands).expect("it is made");
            assert_eq!(get(&kept).expect("a mark"), stands);
            assert_eq!(get(&other).expect("none of its own"), Sanitation::None);
        }
        let two = store(dir.path(), "disk.two", "naa.3");
        assert_eq!(get(&two).expect("no mark"), Sanitation::None);
        set(&kept, Sanitation::None).expect("it is taken away");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_write_cache_that_was_switched_off_is_found_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = store(dir.path(), "disk.one", "naa.3");
        let other = store(dir.path(), "disk.one", "naa.4");
        assert!(write_cache(&kept));
        keep_write_cache(&kept, true).expect("nothing to take away");
        keep_write_cache(&kept, false).expect("it is kept");
        assert!(!write_cache(&kept) && write_cache(&other));
        let text = fs::read_to_string(modes(&kept)).expect("text");
        for nonsense in ["", &text.replace("1,", "2,"), &text.replace("false", "0")] {
            assert_ne!(nonsense, text);
            fs::write(modes(&kept), nonsense).expect("written");
            assert!(!write_cache(&kept), "off harms nobody: {nonsense}");
        }
        keep_write_cache(&kept, true).expect("it goes");
        assert!(write_cache(&kept));
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_damaged_mark_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = store(dir.path(), "v", "naa.3");
        set(&kept, Sanitation::Failed { restricted: true }).expect("it is made");
        let text = fs::read_to_string(beside(&kept)).expect("text");
        for (from, to) in [("\"version\": 1", "\"version\": 2"), ("true", "1"), ("}", "")] {
            assert!(text.contains(from), "{text}");
            fs::write(beside(&kept), text.replacen(from, to, 1)).expect("written");
            let error = get(&kept).expect_err(from);
            assert!(error.to_string().contains("v.sanitize"), "{error}");
        }
        fs::write(beside(&kept), vec![b' '; 5000]).expect("written");
        assert!(get(&kept).is_err());
    }
}
