//! Why a volume could not be opened, each in one plain sentence that says what to do.

use std::io;
use std::path::{Path, PathBuf};

use lunet_block::Size;
use rustix::io::Errno;

/// Why [`open`](crate::open) failed. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they and their fields mean")]
pub enum OpenError {
    #[error("{volume}: the block size must be 512 or 4096 bytes, not {block_size}")]
    BlockSize { volume: String, block_size: u32 },
    #[error(
        "{volume}: the physical block size {physical} must be {block_size} times a power of two, \
         at most 65536 bytes"
    )]
    PhysicalBlockSize { volume: String, physical: u32, block_size: u32 },
    #[error(
        "{volume}: its size of {} is not a multiple of the block size {block_size}: \
         choose another size or block size",
        Size(*.size)
    )]
    NotMultiple { volume: String, size: u64, block_size: u32 },
    #[error("{volume}: it has no blocks: give it a size of at least one block")]
    Empty { volume: String },
    #[error("{path}: no such file: create it, or configure a size and let lunet create it")]
    Missing { path: PathBuf },
    #[error("{path}: no such file, and it was not asked to make one")]
    NotMade { path: PathBuf },
    #[error(
        "{path}: the volume's file is not there: it was removed or renamed, or its file system is \
         not mounted"
    )]
    Gone { path: PathBuf },
    #[error(
        "{path}: the volume's file holds {}, and it held {} before",
        Size(*.size),
        Size(*.known)
    )]
    CutShort { path: PathBuf, size: u64, known: u64 },
    #[error("{path}: this is not the volume's file: it does not carry the volume's mark")]
    Another { path: PathBuf },
    #[error("{path}: no such device: check the path and that the device is attached")]
    MissingDevice { path: PathBuf },
    #[error("{path}: the directory {directory} does not exist: create it first")]
    NoDirectory { path: PathBuf, directory: PathBuf },
    #[error(
        "{path}: the file holds {}, but {} are configured: correct the size, or resize the file \
         yourself",
        Size(*.size),
        Size(*.configured)
    )]
    SizeMismatch { path: PathBuf, size: u64, configured: u64 },
    #[error(
        "{volume}: it has {} and cannot shrink to {}: what lies behind would be lost; make a new \
         volume of that size and copy what you need",
        Size(*.size),
        Size(*.wanted)
    )]
    Shrink { volume: String, size: u64, wanted: u64 },
    #[error(
        "{volume}: it cannot change while it is served: stop lunet, correct the configuration, and \
         start it again"
    )]
    Fixed { volume: String },
    #[error("{path}: it is not what the volume was opened on any more: open the volume again")]
    Replaced { path: PathBuf },
    #[error("{path}: the file system cannot hold a file of {}: choose a smaller size", Size(*.size))]
    TooLarge { path: PathBuf, size: u64 },
    #[error(
        "{path}: too little space for {}, only {} are free: make room, choose a smaller size, or \
         use thin provisioning",
        Size(*.size),
        Size(*.available)
    )]
    NoSpace { path: PathBuf, size: u64, available: u64 },
    #[error("{path}: no space left on the file system: make room first")]
    FileSystemFull { path: PathBuf },
    #[error("{path}: the file system cannot reserve space: use thin provisioning")]
    NoReserve { path: PathBuf },
    #[error("{path}: the volume is already open in another lunet: stop that one first")]
    Locked { path: PathBuf },
    #[error(
        "{path}: the device is in use (mounted, part of another volume, or open in another \
         lunet, perhaps one that was killed and has commands at the drive): release it first"
    )]
    InUse { path: PathBuf },
    #[error("{path}: it is {kind}, not a regular file: {advice}")]
    NotAFile { path: PathBuf, kind: &'static str, advice: &'static str },
    #[error("{path}: it is {kind}, not a block device: {advice}")]
    NotABlockDevice { path: PathBuf, kind: &'static str, advice: &'static str },
    #[error("{path}: the file system has no direct access (O_DIRECT): use buffered access")]
    NoDirectAccess { path: PathBuf },
    #[error(
        "{path}: direct access needs larger blocks than {block_size} bytes here: use a block size \
         of 4096, or buffered access"
    )]
    DirectAlignment { path: PathBuf, block_size: u32 },
    #[error(
        "{path}: the device has blocks of {device} bytes and cannot be served with blocks of \
         {block_size}: configure a block size that is a multiple of {device}"
    )]
    DeviceBlockSize { path: PathBuf, device: u32, block_size: u32 },
    #[error("{path}: permission denied: give the user that runs lunet access to it")]
    Permission { path: PathBuf },
    #[error("{path}: the storage is read-only: make it writable, or the volume read-only")]
    ReadOnlyStorage { path: PathBuf },
    #[error(
        "memory volume: {} are more than the {} that are available here: choose a smaller size, or \
         make memory free",
        Size(*.size),
        Size(*.available)
    )]
    MoreThanMemory { size: u64, available: u64 },
    #[error("memory volume: no room for {} ({error}): choose a smaller size", Size(*.size))]
    Memory { size: u64, error: io::Error },
    #[error(
        "{path}: the file cannot be flushed ({error}): what was written to it may be lost, see to the storage \
         (`dmesg`, free space)"
    )]
    NotStable { path: PathBuf, error: io::Error },
    #[error("{name}: {error}")]
    Image { name: lunet_rbd::ImageName, error: Box<lunet_rbd::Error> },
    #[error("{path}: cannot {action}: {error}")]
    Io { path: PathBuf, action: &'static str, error: io::Error },
}

impl OpenError {
    /// True if it is an image of a cluster that has not answered: it may be there a moment later.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Image { error, .. } if error.is_silence())
    }

    /// True if this server was shut out of the cluster before it heard whether a change of an image has come about.
    pub fn is_unsure(&self) -> bool {
        matches!(self, Self::Image { error, .. } if matches!(**error, lunet_rbd::Error::Unsure { .. }))
    }

    /// True if there is no such image in its cluster.
    pub fn is_no_image(&self) -> bool {
        matches!(self, Self::Image { error, .. } if matches!(**error, lunet_rbd::Error::NoImage { .. }))
    }

    /// The error for a failed system call on `path`; `action` completes "cannot ...".
    pub(crate) fn from_io(path: &Path, action: &'static str, error: io::Error) -> Self {
        let path = path.to_path_buf();
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM) => Self::Permission { path },
            Some(Errno::ROFS) => Self::ReadOnlyStorage { path },
            Some(Errno::NOSPC | Errno::DQUOT) => Self::FileSystemFull { path },
            _ => Self::Io { path, action, error },
        }
    }
}
