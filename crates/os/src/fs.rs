//! Files that the server makes, replaces and removes: its records and marks, and the files of volumes.
//!
//! Each function is the system's call. In a simulated world it takes time, may fail, and what was not synced may be gone
//! after a power loss: contents as well as names. What nobody relies on after a restart need not come this way, nor what
//! a ring does to the blocks of a volume.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

#[cfg(feature = "simulated")]
use crate::simulated_fs as world;

/// Opens a file, or makes it. The options must not truncate: see [`create`].
///
/// # Errors
/// The operating system's.
#[inline]
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.open(path, options);
    }
    options.open(path)
}

/// A directory that is held open: what is made, renamed and removed in it stays in it, whoever renames meanwhile what
/// leads there.
#[derive(Debug)]
pub struct Directory {
    file: File,
    /// Without links.
    path: PathBuf,
}

impl Directory {
    /// Opens a directory. Links that lead to it are followed once, now.
    ///
    /// # Errors
    /// The operating system's; ELOOP if somebody has put a link there meanwhile.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = rustix::fs::open("/", way, Mode::empty())?;
        for part in path.components() {
            if let Component::Normal(name) = part {
                at = rustix::fs::openat(&at, name, way, Mode::empty())?;
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&at, ".", flags, Mode::empty())?.into();
        Ok(Self { file, path })
    }

    /// Makes an empty file to be written, with this mode. What has that name is removed first, and never written to: no
    /// link is followed, and no pipe is waited for.
    ///
    /// # Errors
    /// The operating system's; EEXIST if somebody makes one at the same time again and again.
    pub fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        /// Whoever is that quick does it on purpose.
        const TRIES: usize = 8;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            #[cfg(feature = "simulated")]
            if let Some(files) = world::of(&self.path.join(name)) {
                let path = self.path.join(name);
                if path.symlink_metadata().is_ok() {
                    files.remove(&path)?;
                }
                let mut options = OpenOptions::new();
                return files.open(&path, options.write(true).create_new(true).mode(mode));
            }
            match rustix::fs::openat(&self.file, name, flags, Mode::from_raw_mode(mode)) {
                Err(Errno::EXIST) => match self.remove(name) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                },
                opened => return Ok(opened?.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Gives a file another name: in place of what has that name, or as the flags say.
    ///
    /// # Errors
    /// The operating system's.
    pub fn rename(&self, from: &OsStr, to: &OsStr, flags: RenameFlags) -> io::Result<()> {
        #[cfg(feature = "simulated")]
        if let Some(files) = world::of(&self.path.join(from)) {
            return files.rename(&self.path.join(from), &self.path.join(to), flags);
        }
        Ok(rustix::fs::renameat_with(&self.file, from, &self.file, to, flags)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        #[cfg(feature = "simulated")]
        if let Some(files) = world::of(&self.path.join(name)) {
            return files.remove(&self.path.join(name));
        }
        Ok(rustix::fs::unlinkat(&self.file, name, AtFlags::empty())?)
    }

    /// Makes the names in it stable.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(feature = "simulated")]
        if let Some(files) = world::here() {
            return files.sync_directory(&self.path);
        }
        self.file.sync_all()
    }

    /// Without links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes an empty file to be written, with this mode; what has that name is removed first ([`Directory::create`]).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    Directory::open(parent.unwrap_or(Path::new(".")))?.create(name, mode)
}

/// Writes bytes where the file's cursor is.
///
/// # Errors
/// The operating system's; a part of them may be there.
#[inline]
pub fn write(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_write(file, bytes.len())?;
    }
    file.write_all(bytes)
}

/// Writes bytes at an offset.
///
/// # Errors
/// The operating system's; a part of them may be there.
#[inline]
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_write(file, bytes.len())?;
    }
    file.write_all_at(bytes, offset)
}

/// Gives a file this length in bytes.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_set_len(file, len)?;
    }
    file.set_len(len)
}

/// Reserves space behind what a file has, without changing its length (fallocate(2), `FALLOC_FL_KEEP_SIZE`).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn reserve(file: &File, len: u64) -> rustix::io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_reserve()?;
    }
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len)
}

/// Sets an extended attribute of a file (fsetxattr(2)).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn set_attribute(file: &File, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        files.before_attribute(file, name)?;
    }
    rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
}

/// Makes what a file contains stable, and its attributes. Not its name: see [`sync_directory`].
///
/// # Errors
/// The operating system's, which tells of a failed write once.
#[inline]
pub fn sync(file: &File) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        return files.sync(file, true);
    }
    file.sync_all()
}

/// Makes what a file contains stable, and its length, but not its attributes (fdatasync(2)).
///
/// # Errors
/// As [`sync`].
#[inline]
pub fn sync_data(file: &File) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        return files.sync(file, false);
    }
    file.sync_data()
}

/// Makes the names in a directory stable.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = File::open(path)?;
    #[cfg(feature = "simulated")]
    if let Some(files) = world::here() {
        return files.sync_directory(path);
    }
    directory.sync_all()
}

/// Gives a file another name, in place of what has that name.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    rename_with(from, to, RenameFlags::empty())
}

/// The same, but lets two files change their names (`RENAME_EXCHANGE`), or replaces nothing (`RENAME_NOREPLACE`).
///
/// # Errors
/// The operating system's.
#[inline]
pub fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(from) {
        return files.rename(from, to, flags);
    }
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

/// Removes a file.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn remove(path: &Path) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.remove(path);
    }
    std::fs::remove_file(path)
}

/// Makes a directory with this mode.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.create_directory(path, mode);
    }
    DirBuilder::new().mode(mode).create(path)
}

/// Removes an empty directory.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn remove_directory(path: &Path) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        return files.remove_directory(path);
    }
    std::fs::remove_dir(path)
}

/// Opens a regular file to be read. A pipe is not waited for, and no device is opened.
///
/// # Errors
/// The operating system's; it is no regular file, in words.
pub fn open_regular(path: &Path) -> io::Result<File> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        files.before_read()?;
    }
    // Opening may do something to a device, so look first; and again at what was opened.
    regular(std::fs::metadata(path)?.file_type())?;
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

fn regular(kind: FileType) -> io::Result<()> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => return Err(Errno::ISDIR.into()),
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_block_device() || kind.is_char_device() => "a device",
        _ => "something else",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what} and not a regular file")))
}

/// What a regular file of at most `most` bytes contains.
///
/// # Errors
/// As [`open_regular`]; it is larger, [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large(most));
    }
    let mut bytes = Vec::with_capacity(length as usize + 1);
    // Files of /proc have no length, and others may grow.
    match file.take(most.saturating_add(1)).read_to_end(&mut bytes)? as u64 > most {
        true => Err(too_large(most)),
        false => Ok(bytes),
    }
}

fn too_large(most: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {most} bytes"))
}

/// The same of a text.
///
/// # Errors
/// As [`read`]; it is not UTF-8, [`ErrorKind::InvalidData`].
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// What the file system says of a path; of a link, of what it leads to.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        files.before_read()?;
    }
    std::fs::metadata(path)
}

/// The same; of a link, of the link itself.
///
/// # Errors
/// The operating system's.
#[inline]
pub fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    #[cfg(feature = "simulated")]
    if let Some(files) = world::of(path) {
        files.before_read()?;
    }
    std::fs::symlink_metadata(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder of its own, which goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lunet-os-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn pipe(path: &Path) {
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    #[test]
    fn a_new_file_is_never_what_somebody_has_put_there() {
        let folder = Folder::new("create");
        let [new, other] = ["new", "other"].map(|name| folder.0.join(name));
        fs::write(&other, "other").unwrap();
        symlink(&other, &new).unwrap();
        write(&create(&new, 0o600).unwrap(), b"1").unwrap();
        fs::remove_file(&new).unwrap();
        fs::hard_link(&other, &new).unwrap();
        write(&create(&new, 0o600).unwrap(), b"2").unwrap();
        fs::remove_file(&new).unwrap();
        pipe(&new);
        write(&create(&new, 0o600).unwrap(), b"3").unwrap();
        assert_eq!(
            (fs::read(&new).unwrap(), fs::read(&other).unwrap()),
            (b"3".into(), b"other".into())
        );
        fs::remove_file(&new).unwrap();
        fs::create_dir(&new).unwrap();
        assert!(create(&new, 0o600).is_err() && new.is_dir());
    }

    #[test]
    fn a_directory_stays_the_one_that_was_opened() {
        let folder = Folder::new("directory");
        let [there, moved, trap] = ["there", "moved", "trap"].map(|name| folder.0.join(name));
        fs::create_dir(&there).unwrap();
        fs::create_dir(&trap).unwrap();
        let directory = Directory::open(&there).unwrap();
        fs::rename(&there, &moved).unwrap();
        symlink(&trap, &there).unwrap();
        let [one, two] = ["one", "two"].map(OsStr::new);
        drop(directory.create(one, 0o600).unwrap());
        directory.rename(one, two, RenameFlags::empty()).unwrap();
        directory.sync().unwrap();
        assert!(moved.join("two").is_file());
        directory.remove(two).unwrap();
        for path in [&moved, &trap] {
            assert_eq!(fs::read_dir(path).unwrap().count(), 0, "{}", path.display());
        }
    }

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let folder = Folder::new("read");
        let path = folder.0.join("it");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert_eq!(read(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        // As long as a disk, and no block of it there.
        File::create(&path).unwrap().set_len(10 << 30).unwrap();
        assert_eq!(read(&path, 1 << 20).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(read(Path::new("/proc/self/status"), 1 << 16).unwrap().starts_with(b"Name:"));
        fs::remove_file(&path).unwrap();
        pipe(&path);
        let words = [
            (path.as_path(), "named pipe"),
            (Path::new("/dev/zero"), "device"),
            (&folder.0, "directory"),
        ];
        for (path, word) in words {
            let error = read(path, 5).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&path, 5).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
