//! Opens a volume in a regular file.

use std::fs::{File, FileType, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use lunet_files::parent;
use lunet_os::fs;
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use crate::disk::{self, Abilities, Disk, Handle, reopen};
use crate::geometry::Geometry;
use crate::lock::{self, Lock, SidecarLock};
use crate::{Access, FileSpec, Known, OpenError, Provisioning, Volume, VolumeSpec, mark, sidecar};

/// The unit of the page cache, and of nearly all file systems.
const PAGE: u32 = 4096;

/// Who may do what with a new file: its owner, and nobody else.
const MODE: u32 = 0o600;

pub(crate) fn open(
    spec: &VolumeSpec,
    file: &FileSpec,
    place: Option<Arc<Lock>>,
) -> Result<Volume, OpenError> {
    let path = file.path.as_path();
    if let (Some(size), true) = (file.size, file.create) {
        // Before anything is made on disk.
        Geometry::new(spec, &path.display().to_string(), size, 512, PAGE)?;
    }
    let mut opened = open_or_create(spec, file, place)?;
    opened.notes.extend(open_to_others(path, &opened.file));
    let made = settle(spec, file, &opened.file);
    if made.is_err() && opened.created {
        // It was made a moment ago and holds nothing. If this fails too, an empty file stays,
        // which the next attempt takes as missing.
        drop(fs::remove(&sidecar::path(path)));
        drop(fs::remove(path));
    }
    made?;
    let disk = disk(spec, file, Arc::new(opened.file))?;
    Ok(Arc::new(disk.placed(opened.place, opened.notes)))
}

/// As [`crate::foresee`].
pub(crate) fn foresee(spec: &VolumeSpec, file: &FileSpec) -> Result<(), OpenError> {
    let path = file.path.as_path();
    let check = |size| Geometry::new(spec, &path.display().to_string(), size, 512, PAGE).map(drop);
    file.size.map_or(Ok(()), check)?;
    match path.metadata() {
        Ok(found) => {
            check_kind(path, found.file_type())?;
            match file.size {
                // A smaller one is one whose creation was interrupted, or grows.
                Some(configured) if found.len() > configured => {
                    let (path, size) = (path.to_path_buf(), found.len());
                    Err(OpenError::SizeMismatch { path, size, configured })
                }
                Some(_) => Ok(()),
                None => check(found.len()),
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && !parent(path).is_dir() => {
            Err(no_directory(path))
        }
        Err(e)
            if e.kind() == io::ErrorKind::NotFound && (spec.read_only || file.size.is_none()) =>
        {
            Err(OpenError::Missing { path: path.to_path_buf() })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(OpenError::from_io(path, "look at the file", e)),
    }
}

/// A file that is open and locked.
struct Opened {
    file: File,
    /// It was made just now.
    created: bool,
    place: Option<Arc<Lock>>,
    notes: Vec<String>,
}

/// Says who else may read or write a volume's file.
fn open_to_others(path: &Path, file: &File) -> Option<String> {
    let mode = file.metadata().ok()?.mode() & 0o777;
    (mode & 0o077 != 0).then(|| {
        let path = path.display();
        format!(
            "{path}: its mode {mode:04o} lets other users at the volume's data: `chmod 600 {path}`"
        )
    })
}

/// Gives a file that is open and locked the size of the specification.
pub(crate) fn grow(spec: &VolumeSpec, file: &FileSpec, old: &Disk) -> Result<Volume, OpenError> {
    let (path, handle) = (file.path.as_path(), old.opened());
    let fail = |action, e: io::Error| OpenError::from_io(path, action, e);
    let open = handle.metadata().map_err(|e| fail("look at the file", e))?;
    let named = path.metadata().map_err(|e| fail("look at the file", e))?;
    check_kind(path, named.file_type())?;
    if (open.dev(), open.ino()) != (named.dev(), named.ino()) {
        return Err(OpenError::Replaced { path: path.to_path_buf() });
    }
    // What was cut off would come back as zeroes.
    let served = lunet_block::Backend::caps(old).bytes();
    if open.len() < served {
        let (path, size) = (path.to_path_buf(), open.len());
        return Err(OpenError::CutShort { path, size, known: served });
    }
    let volume_name = || path.display().to_string();
    if let Some(wanted) = file.size {
        Geometry::new(spec, &volume_name(), wanted, 512, PAGE)?;
        let size = open.len();
        if wanted < size {
            return Err(OpenError::Shrink { volume: volume_name(), size, wanted });
        }
    }
    settle(spec, &FileSpec { grow: true, ..file.clone() }, handle)?;
    let grown = disk(spec, file, Arc::clone(handle))?;
    Ok(Arc::new(grown.placed(old.place().cloned(), old.notes().to_vec())))
}

/// Opens the file, or makes an empty one. Checks that it is the one that is known.
fn open_or_create(
    spec: &VolumeSpec,
    file: &FileSpec,
    place: Option<Arc<Lock>>,
) -> Result<Opened, OpenError> {
    let path = file.path.as_path();
    let absent = || match file.known {
        Some(_) => Err(OpenError::Gone { path: path.to_path_buf() }),
        None => create(spec, file, place.clone()),
    };
    // Opening a pipe or a tape has effects, so look first.
    match path.metadata() {
        Ok(found) => check_kind(path, found.file_type())?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return absent(),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory && file.known.is_some() => {
            return absent();
        }
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            return Err(no_directory(path));
        }
        Err(e) => return Err(OpenError::from_io(path, "look at the file", e)),
    }
    let opened = OpenOptions::new().read(true).write(!spec.read_only).open(path);
    let opened = opened.map_err(|e| OpenError::from_io(path, "open the file", e))?;
    let found = opened.metadata().map_err(|e| OpenError::from_io(path, "look at the file", e))?;
    check_kind(path, found.file_type())?;
    if let Some(known) = &file.known {
        recognise(path, &opened, found.len(), known)?;
    } else if found.len() == 0 && file.size.is_some() && !file.create && !spec.read_only {
        // An empty file is one whose creation was interrupted.
        return Err(OpenError::NotMade { path: path.to_path_buf() });
    }
    locked(spec, path, opened, place, false)
}

/// Refuses a file that is not the one that is known, or that has lost a part.
fn recognise(path: &Path, file: &File, size: u64, known: &Known) -> Result<(), OpenError> {
    let mark = match &known.mark {
        Some(_) => mark::read(file, path)
            .map_err(|e| OpenError::from_io(path, "read the volume's mark", e))?,
        None => None,
    };
    if mark != known.mark {
        return Err(OpenError::Another { path: path.to_path_buf() });
    }
    if size < known.size {
        return Err(OpenError::CutShort { path: path.to_path_buf(), size, known: known.size });
    }
    Ok(())
}

fn create(
    spec: &VolumeSpec,
    file: &FileSpec,
    place: Option<Arc<Lock>>,
) -> Result<Opened, OpenError> {
    let path = file.path.as_path();
    if !parent(path).is_dir() {
        return Err(no_directory(path));
    }
    if spec.read_only || file.size.is_none() {
        return Err(OpenError::Missing { path: path.to_path_buf() });
    }
    if !file.create {
        return Err(OpenError::NotMade { path: path.to_path_buf() });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(MODE);
    let made = fs::open(path, &options).map_err(|e| match e.kind() {
        // Another lunet was faster.
        io::ErrorKind::AlreadyExists => OpenError::Locked { path: path.to_path_buf() },
        _ => OpenError::from_io(path, "create the file", e),
    })?;
    // A umask may have taken the owner's bits too.
    made.set_permissions(Permissions::from_mode(MODE))
        .map_err(|e| OpenError::from_io(path, "set the mode of the file", e))?;
    locked(spec, path, made, place, true).inspect_err(|_| drop(fs::remove(path)))
}

/// Locks a file and its place, unless somebody gives the place.
fn locked(
    spec: &VolumeSpec,
    path: &Path,
    file: File,
    place: Option<Arc<Lock>>,
    created: bool,
) -> Result<Opened, OpenError> {
    let (place, how) = if place.is_some() {
        (place, SidecarLock::Replaced)
    } else {
        let taken = lock::take(path, spec.read_only)?.map(Arc::new);
        let how = if taken.is_some() { SidecarLock::This } else { SidecarLock::Nobody };
        (taken, how)
    };
    let note = lock::take_own(path, &file, spec.read_only, how)?;
    Ok(Opened { file, created, place, notes: note.into_iter().collect() })
}

fn no_directory(path: &Path) -> OpenError {
    OpenError::NoDirectory { path: path.to_path_buf(), directory: parent(path).to_path_buf() }
}

fn check_kind(path: &Path, kind: FileType) -> Result<(), OpenError> {
    if kind.is_file() {
        return Ok(());
    }
    let advice =
        if kind.is_block_device() { "configure a block volume" } else { "name another path" };
    Err(OpenError::NotAFile { path: path.to_path_buf(), kind: describe(kind), advice })
}

pub(crate) fn describe(kind: FileType) -> &'static str {
    match kind {
        k if k.is_file() => "a regular file",
        k if k.is_dir() => "a directory",
        k if k.is_block_device() => "a block device",
        k if k.is_char_device() => "a character device",
        k if k.is_fifo() => "a named pipe",
        _ => "something else",
    }
}

/// Gives the file its size and its space, or checks those that it has.
fn settle(spec: &VolumeSpec, file: &FileSpec, handle: &File) -> Result<(), OpenError> {
    let path = file.path.as_path();
    let fail = |action, e: io::Error| OpenError::from_io(path, action, e);
    let found = handle.metadata().map_err(|e| fail("look at the file", e))?;
    let full = file.provisioning == Provisioning::Full && !spec.read_only;
    match file.size {
        // An empty file is one whose creation was interrupted, or growing.
        Some(size) if found.len() < size && (file.create || file.grow) && !spec.read_only => {
            lengthen(path, handle, found.len(), size, full)?;
            if found.len() > 0 && !file.create {
                return Ok(());
            }
            name_is_stable(path)
        }
        Some(configured) if configured != found.len() => {
            Err(OpenError::SizeMismatch { path: path.to_path_buf(), size: found.len(), configured })
        }
        _ => {
            if full && found.len() > 0 {
                reserve(path, handle, found.len())?;
            }
            if !file.create || spec.read_only {
                return Ok(());
            }
            // Whoever has made it may have been killed before either was stable, or have been told that it could not be:
            // a second call succeeds then, and makes nothing stable that was given up. A length can be set again.
            if let Some(size) = file.size.filter(|_| has_no_data(handle)) {
                // No less, or space that is reserved would be free for others meanwhile.
                for len in [size.saturating_sub(1), size] {
                    fs::set_len(handle, len).map_err(|e| fail("set the size of the file", e))?;
                }
            }
            fs::sync(handle).map_err(|error| not_stable(path, error))?;
            name_is_stable(path)
        }
    }
}

/// True if a file is known to have no data: nothing but zeroes would be read from it.
fn has_no_data(file: &File) -> bool {
    rustix::fs::seek(file, SeekFrom::Data(0)) == Err(Errno::NXIO)
}

fn name_is_stable(path: &Path) -> Result<(), OpenError> {
    lunet_files::sync_parent(path)
        .map_err(|e| OpenError::from_io(path, "store the new file's name", e))
}

fn not_stable(path: &Path, error: io::Error) -> OpenError {
    OpenError::NotStable { path: path.to_path_buf(), error }
}

/// Makes a file larger. It has the old size or the new one afterwards, whatever happens.
fn lengthen(path: &Path, file: &File, old: u64, new: u64, full: bool) -> Result<(), OpenError> {
    if full {
        reserve(path, file, new).inspect_err(|_| {
            // Gives back what was reserved behind the end. Failing that, it stays for the next try.
            drop(fs::set_len(file, old));
        })?;
    }
    fs::set_len(file, new).map_err(|e| too_large(path, new, e))?;
    fs::sync(file).map_err(|error| not_stable(path, error))
}

fn too_large(path: &Path, size: u64, e: io::Error) -> OpenError {
    // EINVAL: not even an offset of this size exists.
    match Errno::from_io_error(&e) {
        Some(Errno::FBIG | Errno::INVAL) | None => {
            OpenError::TooLarge { path: path.to_path_buf(), size }
        }
        _ => OpenError::from_io(path, "set the size of the file", e),
    }
}

/// Reserves the space of the whole file. The size stays as it is, so that an interruption leaves
/// an empty file and not a half one.
fn reserve(path: &Path, file: &File, size: u64) -> Result<(), OpenError> {
    let fail = |action, e: io::Error| OpenError::from_io(path, action, e);
    let found = file.metadata().map_err(|e| fail("look at the file", e))?;
    let system = rustix::fs::fstatvfs(file).map_err(|e| fail("ask for free space", e.into()))?;
    let available = system.f_bavail.saturating_mul(system.f_frsize);
    // Do not fill the file system to the brim only to find out that it is too small.
    let missing = size.saturating_sub(found.blocks().saturating_mul(512));
    let no_space = || OpenError::NoSpace { path: path.to_path_buf(), size, available };
    if missing > available {
        return Err(no_space());
    }
    loop {
        match fs::reserve(file, size) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_space()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                return Err(OpenError::NoReserve { path: path.to_path_buf() });
            }
            Err(e @ (Errno::FBIG | Errno::INVAL)) => return Err(too_large(path, size, e.into())),
            Err(e) => return Err(fail("reserve space", e.into())),
        }
    }
}

fn disk(spec: &VolumeSpec, file: &FileSpec, handle: Arc<File>) -> Result<Disk, OpenError> {
    let path = file.path.as_path();
    let found = handle.metadata().map_err(|e| OpenError::from_io(path, "look at the file", e))?;
    let size = found.len();
    let geometry = Geometry::new(spec, &path.display().to_string(), size, 512, PAGE)?;
    let direct = file.access == Access::Direct;
    let channel =
        reopen(&handle, spec.read_only, direct).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::INVAL) if direct => OpenError::NoDirectAccess { path: path.to_path_buf() },
            _ => OpenError::from_io(path, "open the file once more", e),
        })?;
    if direct {
        check_alignment(path, &channel, &geometry)?;
    }
    let writable = !spec.read_only;
    let able = Abilities {
        size,
        read_only: spec.read_only,
        write_cache: writable,
        punch_hole: writable
            && file.provisioning == Provisioning::Thin
            && probe(&handle, size, FallocateFlags::PUNCH_HOLE),
        zero_range: writable && probe_zero_range(&handle, size),
        discard: None,
    };
    let granularity = u32::try_from(found.blksize()).unwrap_or(PAGE).max(geometry.block_size);
    let alignment = if direct { geometry.block_size } else { 1 };
    let handle = Handle::Reopened { file: handle, direct };
    let unmap = able.punch_hole.then_some(granularity);
    let known = disk::Known { alignment, unmap };
    Ok(Disk::new(&geometry, able, known, handle))
}

/// Whether single blocks can be read and written directly: a file system on a drive with
/// 4096-byte blocks refuses smaller ones, or goes through the page cache after all.
fn check_alignment(path: &Path, file: &File, geometry: &Geometry) -> Result<(), OpenError> {
    let fits = match direct_alignment(file) {
        Some(0) => return Err(OpenError::NoDirectAccess { path: path.to_path_buf() }),
        Some(alignment) => geometry.block_size % alignment == 0,
        None => can_read_a_block(file, geometry)
            .map_err(|e| OpenError::from_io(path, "read the file directly", e))?,
    };
    if fits {
        return Ok(());
    }
    let block_size = geometry.block_size;
    Err(OpenError::DirectAlignment { path: path.to_path_buf(), block_size })
}

/// What the kernel says about direct access to this file, in bytes, 0 if there is none; `None` if
/// it does not say (before Linux 6.1, and on some file systems).
fn direct_alignment(file: &File) -> Option<u32> {
    // STATX_DIOALIGN, statx(2).
    let wanted = StatxFlags::from_bits_retain(0x2000);
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    (found.stx_mask & wanted.bits() != 0).then_some(found.stx_dio_offset_align)
}

/// Tries it. A hole in the file can be read in any case, so this finds out less.
fn can_read_a_block(file: &File, geometry: &Geometry) -> io::Result<bool> {
    let block = geometry.block_size as usize;
    let mut memory = vec![0u8; block + PAGE as usize];
    let start = memory.as_ptr().align_offset(PAGE as usize);
    // The second block, if there is one: offset 0 is always aligned.
    let offset = if geometry.blocks > 1 { block as u64 } else { 0 };
    match file.read_at(&mut memory[start..start + block], offset) {
        Ok(_) => Ok(true),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether the file system knows an operation, tried behind the end of the file, where it changes
/// nothing that can be read.
fn probe(file: &File, size: u64, operation: FallocateFlags) -> bool {
    let flags = operation | FallocateFlags::KEEP_SIZE;
    let answer = rustix::fs::fallocate(file, flags, size, u64::from(PAGE));
    !matches!(answer, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}

fn probe_zero_range(file: &File, size: u64) -> bool {
    let known = probe(file, size, FallocateFlags::ZERO_RANGE);
    if known {
        // The probe has reserved a page behind the end; this lets it go. Failing that, the page
        // stays reserved, which harms nobody.
        drop(fs::set_len(file, size));
    }
    known
}
