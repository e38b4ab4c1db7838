//! Failed write-backs of storage: they belong to the file or device, not to the name of the volume that it was.
//!
//! The mark of one is `NAME.write-back` in the data directory. It stays when the volume goes and its data does not, and
//! whichever volume has that storage next takes it over: only `lunet volume reopen` ends it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lunet_files as files;
use lunet_volume::{Fault, Health, MarkFile, StorageId, read_mark};

use crate::{identity, record};
use lunet_config::Volume;

/// EIO, where the operating system has no number.
const EIO: i32 = 5;

/// How the names of marks end.
const KIND: &str = "write-back";

/// So many marks of storage that no volume has are kept: the oldest go.
const MOST: usize = 64;

/// How long the data directory has to keep a mark.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The file that says that acknowledged writes of a volume may be lost.
pub fn mark(data: &Path, volume: &str) -> PathBuf {
    data.join(format!("{volume}.{KIND}"))
}

/// The same, with what the storage of the volume is known by.
pub fn mark_file(data: &Path, config: &Volume) -> MarkFile {
    let remembered = record::load(data, &config.name).ok().flatten();
    let remembered = remembered.filter(|record| record.is_of(config));
    let storage = config.path(data).and_then(|path| {
        let known_by = remembered.and_then(record::Record::known_by);
        Some(StorageId { path: std::path::absolute(path).ok()?, known_by })
    });
    MarkFile { path: mark(data, &config.name), storage }
}

/// The marks in a data directory. It is read once for all volumes that are opened together, as there may be a hundred thousand
/// files of other kinds in it; a mark that gets another name meanwhile is here by that, too.
#[derive(Debug)]
pub struct Marks<'d> {
    data: &'d Path,
    paths: Vec<PathBuf>,
}

impl<'d> Marks<'d> {
    /// Those of now.
    pub fn of(data: &'d Path) -> Self {
        Self { data, paths: marks(data).collect() }
    }
}

/// The health of storage that was just opened: failed if it failed before, whatever the volume was called then.
pub fn found(config: &Volume, marks: &mut Marks<'_>) -> Arc<Health> {
    let Marks { data, paths } = marks;
    let own = mark_file(data, config);
    if let (Ok(Some((_, Some(before)))), Some(now)) = (read_mark(&own.path), &own.storage) {
        let both = before.known_by.as_ref().zip(now.known_by.as_ref());
        if both.is_some_and(|(before, now)| before != now) {
            let name = &config.name;
            match set_aside(data, name) {
                // The storage may be that of a volume which is opened next.
                Ok(aside) => paths.extend(aside),
                Err(error) => {
                    tracing::error!(volume = %name, %error, "the mark of other storage counts for this one");
                }
            }
        }
    }
    let health = Health::found(&config.name, own.clone());
    if let (true, Some(storage)) = (health.is_sound(), &own.storage) {
        for (path, fault) in of_storage(paths, storage) {
            health.fail_since(fault);
            // Not before it is kept under the new name.
            if health.wait_for_mark(PATIENCE) && matches!(read_mark(&own.path), Ok(Some(_))) {
                clear(&path);
            }
        }
    }
    health
}

/// Storage was opened anew on purpose: other marks of it are over too.
pub fn forget(data: &Path, config: &Volume) {
    let own = mark_file(data, config);
    let Marks { paths, .. } = Marks::of(data);
    let others = own.storage.iter().flat_map(|storage| of_storage(&paths, storage));
    others.filter(|(path, _)| *path != own.path).for_each(|(path, _)| clear(&path));
}

/// The operating system's number of an error; EIO if it has none.
pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(EIO)
}

fn clear(path: &Path) {
    if let Err(error) = files::remove(path) {
        tracing::error!(
            "{}: the mark of a failed write-back cannot be removed: {error}",
            path.display()
        );
    }
}

/// Making something of a volume stable has failed that nobody has open yet.
pub fn keep(data: &Path, config: &Volume, errno: i32) {
    found(config, &mut Marks::of(data)).not_stable(errno, PATIENCE);
}

/// The name is to be that of another volume: the mark of its storage goes on under a name that no volume has, which is returned.
///
/// # Errors
/// The operating system's.
pub fn set_aside(data: &Path, volume: &str) -> io::Result<Option<PathBuf>> {
    let path = mark(data, volume);
    match read_mark(&path) {
        // Of one without storage, or that nobody can read, nothing is known but the name.
        Ok(None | Some((_, None))) | Err(_) => return Ok(files::remove(&path).map(|_| None)?),
        Ok(Some(_)) => {}
    }
    let aside: Vec<PathBuf> = marks(data).filter(|path| is_aside(path)).collect();
    let made = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    if aside.len() >= MOST {
        aside.iter().min_by_key(|path| made(path)).map_or(Ok(true), |path| files::remove(path))?;
    }
    // No volume has a name with this character.
    let place = data.join(format!("@{}.{KIND}", identity::uuid()?));
    lunet_os::fs::rename(&path, &place)?;
    files::sync_parent(&path)?;
    Ok(Some(place))
}

fn is_aside(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with('@'))
}

/// All marks in the data directory.
fn marks(data: &Path) -> impl Iterator<Item = PathBuf> {
    let all = fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(|path| path.extension() == Some(OsStr::new(KIND)))
}

/// The marks that are about this storage, with what failed.
fn of_storage(marks: &[PathBuf], storage: &StorageId) -> Vec<(PathBuf, Fault)> {
    let fits = |path: &PathBuf| match read_mark(path) {
        Ok(Some((fault, Some(other)))) if other.is(storage) => Some((path.clone(), fault)),
        _ => None,
    };
    marks.iter().filter_map(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;
    use tempfile::TempDir;

    fn config(name: &str, file: &str) -> Volume {
        let text = format!(
            "[[target]]\nname = 'iqn.2026-11.l:x'\n[volumes.{name}]\nbackend = 'file'\npath = '{file}'\n"
        );
        check(&text).unwrap().volumes.remove(0)
    }

    fn found_now(data: &Path, config: &Volume) -> Arc<Health> {
        found(config, &mut Marks::of(data))
    }

    /// The volume had this file, and that has a mark of its own.
    fn remember(data: &Path, volume: &str, file: &str) {
        let path = std::path::absolute(data.join(file)).unwrap();
        let record = serde_json::json!({
            "version": 1, "path": path, "size": 0, "backend": "file", "mark": file, "file_system": null,
        });
        fs::write(record::path(data, volume), record.to_string()).unwrap();
    }

    #[test]
    fn a_failure_goes_with_storage_that_has_another_name_since_the_marks_were_read() {
        let dir = TempDir::new().unwrap();
        let data = dir.path();
        remember(data, "a", "one.img");
        keep(data, &config("a", "one.img"), 5);
        remember(data, "a", "two.img");
        remember(data, "b", "one.img");
        // The file of one is that of the other now, and both are opened by one look at the directory.
        let mut marks = Marks::of(data);
        let a = found(&config("a", "two.img"), &mut marks);
        let b = found(&config("b", "one.img"), &mut marks);
        assert!(a.is_sound());
        assert!(!b.is_sound(), "acknowledged writes may be lost");
    }

    #[test]
    fn a_failure_goes_with_the_storage_until_it_is_reopened() {
        let dir = TempDir::new().unwrap();
        let data = dir.path();
        keep(data, &config("a", "one.img"), 5);
        let since = found_now(data, &config("a", "one.img")).write_back().unwrap().since;
        // The name becomes that of another volume, and the file one of another name.
        set_aside(data, "a").unwrap();
        assert!(found_now(data, &config("a", "two.img")).is_sound());
        let again = found_now(data, &config("b", "one.img"));
        assert_eq!(again.write_back().map(|fault| fault.since), Some(since));
        assert_eq!(marks(data).collect::<Vec<_>>(), [mark(data, "b")], "it has moved");
        again.forget().unwrap();
        assert!(found_now(data, &config("c", "one.img")).is_sound());
        assert_eq!(marks(data).count(), 0);
    }

    #[test]
    fn what_was_set_aside_is_bounded_and_forgotten_on_purpose() {
        let dir = TempDir::new().unwrap();
        let data = dir.path();
        for n in 0..MOST + 3 {
            keep(data, &config("a", &format!("{n}.img")), 5);
            set_aside(data, "a").unwrap();
        }
        assert_eq!(marks(data).count(), MOST);
        let last = config("b", &format!("{}.img", MOST + 2));
        forget(data, &last);
        assert_eq!((marks(data).count(), found_now(data, &last).is_sound()), (MOST - 1, true));
        set_aside(data, "nobody").unwrap();
    }
}
