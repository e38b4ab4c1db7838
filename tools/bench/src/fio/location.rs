//! The file, directory or block device that fio works on.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{FioError, made};
use crate::model::TargetKind;

/// A file, a directory or a block device. What was made here is removed at the end.
#[derive(Debug)]
pub struct Location {
    /// What the caller named.
    named: PathBuf,
    /// The file, the device, or the directory that holds the files.
    path: PathBuf,
    kind: TargetKind,
    made: bool,
    direct: bool,
}

impl Location {
    /// For a path that `safety` has allowed: in a directory, a new directory is made; a file that is not there is made;
    /// what is there is used as it is.
    ///
    /// # Errors
    /// It cannot be made or opened.
    pub fn new(path: &Path) -> Result<Self, FioError> {
        let wrong = |error: io::Error| FioError::Location(format!("{}: {error}", path.display()));
        let named = path.to_owned();
        let location = match fs::metadata(path) {
            Ok(about) if about.is_dir() => {
                let made = fresh(path, "lunet-bench").map_err(wrong)?;
                Self { named, path: made, kind: TargetKind::Directory, made: true, direct: true }
            }
            Ok(about) => {
                let block = about.file_type().is_block_device();
                let kind = if block { TargetKind::BlockDevice } else { TargetKind::File };
                Self { named, path: path.to_owned(), kind, made: false, direct: true }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                OpenOptions::new().write(true).create_new(true).open(path).map_err(wrong)?;
                let path = path.to_owned();
                Self { named, path, kind: TargetKind::File, made: true, direct: true }
            }
            Err(error) => return Err(wrong(error)),
        };
        let mut location = location;
        if location.made {
            made::note(&location.path);
        }
        location.direct = location.takes_direct().map_err(wrong)?;
        Ok(location)
    }

    /// Whether the page cache can be left out (O_DIRECT): some file systems refuse it.
    fn takes_direct(&self) -> io::Result<bool> {
        let probe = match self.kind {
            TargetKind::Directory => self.path.join("probe"),
            _ => self.path.clone(),
        };
        let folder = self.kind == TargetKind::Directory;
        if folder {
            fs::File::create_new(&probe)?;
        }
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&probe);
        if folder {
            fs::remove_file(&probe)?;
        }
        match opened {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What fio works on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is for fio.
    pub fn argument(&self) -> String {
        let path = self.path.display();
        match self.kind {
            TargetKind::Directory => format!("--directory={path}"),
            // fio takes a colon for a separator of several files.
            _ => format!("--filename={}", path.to_string().replace(':', "\\:")),
        }
    }

    /// What the caller named.
    pub fn named(&self) -> &Path {
        &self.named
    }

    /// What it is.
    pub fn kind(&self) -> TargetKind {
        self.kind
    }

    /// Whether it was made for this, and goes at the end.
    pub fn made(&self) -> bool {
        self.made
    }

    /// Whether the page cache is left out. If not, the memory is measured and not the drive.
    pub fn direct(&self) -> bool {
        self.direct
    }
}

impl Drop for Location {
    fn drop(&mut self) {
        if self.made {
            made::remove(&self.path);
        }
    }
}

/// A new directory with a name of its own.
pub(super) fn fresh(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for attempt in 0..100 {
        let unique =
            (now.subsec_nanos() ^ std::process::id().rotate_left(16)).wrapping_add(attempt);
        let path = folder.join(format!("{name}.{unique:08x}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            told => return told.map(|()| path),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}
