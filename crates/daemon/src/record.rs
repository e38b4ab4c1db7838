//! What the data directory remembers of a volume: that it was made, and what its storage was like.
//!
//! Without that, a file that is missing would look like one that is still to be made, and initiators would
//! find zeroes under a name that they trust. The record lies beside the reservations and is replaced
//! as a whole; its size is never more than what the storage has had.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lunet_backends::mark::MarkError;
use lunet_backends::{Known, mark};
use lunet_block::Size;
use lunet_files as files;
use serde::{Deserialize, Serialize};

use crate::trouble::At;
use crate::{failures, identity, serve};
use lunet_config::{Backend, Volume};

/// The version of the file's form.
const VERSION: u32 = 1;

/// The longest record in bytes.
const MOST: u64 = 64 << 10;

/// The record of a volume in a file or on a block device. The others keep nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// The file or device, absolute.
    pub path: PathBuf,
    /// In bytes.
    pub size: u64,
    /// By what the storage is known.
    #[serde(flatten)]
    pub storage: Storage,
}

/// By what the storage is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "backend", rename_all = "kebab-case")]
pub enum Storage {
    /// A file.
    File {
        /// The mark in the file or beside it; `None` for one that lunet may not write.
        mark: Option<String>,
        /// The id of its file system (`f_fsid` of statvfs(3)). It may change with a reboot, so it is for people.
        file_system: Option<u64>,
    },
    /// A block device.
    Block {
        /// What it calls itself, if it does.
        device: Option<String>,
    },
    /// An image of Ceph.
    Rbd {
        /// The id that its pool gave it.
        image: String,
        /// Whom the image's lock named as its owner: the process of this server that had it open last.
        owner: Option<String>,
    },
}

/// Where the record of a volume is.
pub fn path(data: &Path, volume: &str) -> PathBuf {
    data.join(format!("{volume}.record"))
}

/// The record of a volume; `None` if it was never made.
///
/// # Errors
/// It cannot be read, or is none that this lunet has written.
pub fn load(data: &Path, volume: &str) -> Result<Option<Record>> {
    let path = path(data, volume);
    let Some(text) = files::read(&path, MOST)? else {
        return Ok(None);
    };
    let name = path.display();
    let step =
        format!("take what is in the volume's place with `lunet volume adopt {volume} --yes`");
    let record: Record = serde_json::from_slice(&text).with_context(|| {
        format!("{name}: this is no record that lunet has written: restore it, or {step}")
    })?;
    if record.version != VERSION {
        bail!(
            "{name}: it is of version {}, not {VERSION}: start the lunet that wrote it, or {step}",
            record.version
        );
    }
    Ok(Some(record))
}

/// Remembers the storage of an open volume as it is now. `before` is what was remembered. `unstable` is told if its
/// file cannot be flushed, with the error number: the kernel tells that once.
///
/// # Errors
/// The record or the mark cannot be written.
pub fn keep(
    data: &Path,
    config: &Volume,
    volume: &lunet_backends::Volume,
    before: Option<&Record>,
    unstable: impl FnOnce(i32),
) -> Result<()> {
    if let Some((image, owner)) = lunet_backends::rbd::identity(volume) {
        let path = PathBuf::from(serve::spec(config, data).storage.to_string());
        let (size, storage) = (volume.caps().bytes(), Storage::Rbd { image, owner });
        return write(data, config, Record { version: VERSION, path, size, storage }, before);
    }
    let Some(place) = config.path(data) else { return Ok(()) };
    let storage = match config.backend {
        Backend::File { .. } => Storage::File {
            mark: marked(config, volume, &place, unstable)?,
            file_system: file_system(&place),
        },
        _ => Storage::Block { device: lunet_backends::device_identity(volume) },
    };
    let absolute = std::path::absolute(&place).context("cannot tell where files are")?;
    let size = volume.caps().bytes();
    write(data, config, Record { version: VERSION, path: absolute, size, storage }, before)
}

/// Writes a record, unless it is as it was.
fn write(data: &Path, config: &Volume, now: Record, before: Option<&Record>) -> Result<()> {
    if before == Some(&now) {
        return Ok(());
    }
    let path = path(data, &config.name);
    let text = serde_json::to_vec_pretty(&now)?;
    files::replace(&path, &text).at("write", &path)
}

/// The mark of an open file. One that it has already is kept: whoever has set it goes on knowing the file.
fn marked(
    config: &Volume,
    volume: &lunet_backends::Volume,
    place: &Path,
    unstable: impl FnOnce(i32),
) -> Result<Option<String>> {
    let failed = || format!("cannot mark {} as the file of the volume", place.display());
    if let Some(mark) = mark::of(volume, place).with_context(failed)? {
        return Ok(Some(mark));
    }
    if config.read_only {
        return Ok(None);
    }
    let mark = identity::uuid().with_context(failed)?;
    match mark::set(volume, place, &mark) {
        Ok(()) => Ok(Some(mark)),
        // The kernel has told it this time only.
        Err(MarkError::NotStable(error)) => {
            unstable(failures::errno(&error));
            Ok(Some(mark))
        }
        // Its size is better than nothing, and it could be served before there were marks.
        Err(error @ MarkError::NotSet(_)) => {
            tracing::warn!(volume = %config.name, %error, "{}", failed());
            Ok(None)
        }
    }
}

/// The id of the file system that a file is on, or that it would be on.
fn file_system(place: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(place).or_else(|_| rustix::fs::statvfs(files::parent(place)));
    found.ok().map(|found| found.f_fsid)
}

impl Record {
    /// True if it is about storage of this kind. A volume that was moved to another kind is a new one.
    pub fn is_of(&self, config: &Volume) -> bool {
        match config.backend {
            Backend::File { .. } => matches!(self.storage, Storage::File { .. }),
            Backend::Block { .. } => matches!(self.storage, Storage::Block { .. }),
            Backend::Rbd { .. } => matches!(self.storage, Storage::Rbd { .. }),
            Backend::Memory { .. } | Backend::Null { .. } => false,
        }
    }

    /// What the storage is known by wherever it is.
    pub fn known_by(self) -> Option<String> {
        match self.storage {
            Storage::File { mark: known, .. } | Storage::Block { device: known } => known,
            Storage::Rbd { image, .. } => Some(image),
        }
    }

    /// By what the file is known.
    pub fn known(&self) -> Known {
        let mark = match &self.storage {
            Storage::File { mark, .. } => mark.clone(),
            Storage::Block { .. } | Storage::Rbd { .. } => None,
        };
        Known { size: self.size, mark }
    }

    /// True if another file system is where that of the file was.
    pub fn is_elsewhere(&self) -> bool {
        let Storage::File { file_system: Some(before), .. } = self.storage else { return false };
        file_system(&self.path).is_some_and(|now| now != before)
    }

    /// The owner of the image's lock that this server's last process was.
    pub fn owner(&self) -> Option<String> {
        match &self.storage {
            Storage::Rbd { owner, .. } => owner.clone(),
            Storage::File { .. } | Storage::Block { .. } => None,
        }
    }

    /// Compares an open image with the one that it was.
    fn differs_from_image(&self, before: &str, volume: &lunet_backends::Volume) -> Option<String> {
        let (now, _) = lunet_backends::rbd::identity(volume)?;
        let size = volume.caps().bytes();
        if now != before {
            return Some(format!(
                "the image has the id {now}, and had {before}: it is another one"
            ));
        }
        let fits = size >= self.size;
        (!fits).then(|| format!("the image has {}, and had {}", Size(size), Size(self.size)))
    }

    /// Compares an open device with the one that it was. Gives back what is different, as the end of a sentence.
    pub fn differs(&self, volume: &lunet_backends::Volume) -> Option<String> {
        if let Storage::Rbd { image: before, .. } = &self.storage {
            return self.differs_from_image(before, volume);
        }
        let Storage::Block { device: before } = &self.storage else { return None };
        let (now, size) = (lunet_backends::device_identity(volume), volume.caps().bytes());
        let known = match (before, &now) {
            (Some(before), Some(now)) if before != now => {
                return Some(format!("the device calls itself \"{now}\", and was \"{before}\""));
            }
            (before, now) => before.is_some() && now.is_some(),
        };
        // ZFS names its volumes itself, so the path is right.
        let known = known || self.path.starts_with("/dev/zvol");
        let fits = if known { size >= self.size } else { size == self.size };
        (!fits).then(|| format!("the device has {}, and had {}", Size(size), Size(self.size)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use tempfile::TempDir;

    fn record(storage: Storage) -> Record {
        Record { version: VERSION, path: "/dev/x".into(), size: 4096, storage }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let data = TempDir::new().unwrap();
        assert_eq!(load(data.path(), "a").unwrap(), None);
        for storage in [
            Storage::File { mark: Some("m".into()), file_system: Some(7) },
            Storage::File { mark: None, file_system: None },
            Storage::Block { device: Some("naa.5".into()) },
        ] {
            let record = record(storage);
            fs::write(path(data.path(), "a"), serde_json::to_vec(&record).unwrap()).unwrap();
            assert_eq!(load(data.path(), "a").unwrap(), Some(record));
        }
        for (text, words) in [
            ("", "no record that lunet has written"),
            ("{}", "no record"),
            (
                "{\"version\":2,\"path\":\"/x\",\"size\":1,\"backend\":\"block\",\"device\":null}",
                "of version 2",
            ),
        ] {
            fs::write(path(data.path(), "a"), text).unwrap();
            let error = load(data.path(), "a").unwrap_err().to_string();
            assert!(error.contains("a.record") && error.contains(words), "{error}");
        }
    }

    /// Nothing tells these devices from others but their size.
    #[test]
    fn a_device_that_says_nothing_of_itself_keeps_its_size() {
        let open = |size| lunet_backends::absent(size, 512, false);
        let device = record(Storage::Block { device: None });
        assert_eq!(device.differs(&open(4096)), None);
        for size in [2048, 8192] {
            assert!(device.differs(&open(size)).is_some_and(|text| text.contains("had 4 KiB")));
        }
        let zvol = Record { path: "/dev/zvol/tank/a".into(), ..device };
        assert_eq!((zvol.differs(&open(4096)), zvol.differs(&open(8192))), (None, None));
        assert!(zvol.differs(&open(2048)).is_some());
    }
}
