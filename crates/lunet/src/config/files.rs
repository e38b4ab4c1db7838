//! Two volumes must not have the same file: each would undo the other's writes.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::mistake::Mistakes;
use super::volumes::Found;

/// Notes each volume whose file another volume has already.
pub(super) fn check(volumes: &[Found], mistakes: &mut Mistakes) {
    let mut order: Vec<&Found> = volumes.iter().collect();
    order.sort_by_key(|volume| volume.offset);
    let mut taken: HashMap<PathBuf, &str> = HashMap::new();
    for found in order {
        // The data directory is the same for all, so any name for it will do here.
        let Some(path) = found.value.as_ref().and_then(|v| v.path(Path::new("data"))) else {
            continue;
        };
        if let Some(other) = taken.get(&plain(&path)) {
            let text = format!("is the file of volume \"{other}\" already");
            mistakes.add(found.offset, format!("volumes.{}.path", found.name), text);
        } else {
            taken.insert(plain(&path), &found.name);
        }
    }
}

/// The path without `.`, doubled slashes and `NAME/..`. Links are seen only when the files are
/// opened, where a lock on the file finds them.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}
