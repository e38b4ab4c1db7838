//! What a volume should be: plain data, filled in by the program's configuration.

use std::fmt;
use std::path::PathBuf;

use lunet_ring::Passthrough;

use crate::layers::Layer;
use crate::rbd::Place;

/// A volume to open with [`open`](crate::open).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Where the blocks are kept.
    pub storage: Storage,
    /// Logical block size in bytes, 512 or 4096. `None`: 512, or that of the block device.
    pub block_size: Option<u32>,
    /// Physical block size in bytes, a power-of-two multiple of the logical one of at most
    /// 64 KiB. `None`: 4096, or that of the block device.
    pub physical_block_size: Option<u32>,
    /// Refuse all that changes the volume, and open its storage for reading only.
    pub read_only: bool,
    /// On a block device that is an NVMe namespace: reads and writes go to it as NVMe commands, past the block layer. Where
    /// that cannot be, they go through the block layer, and a [note](crate::notes) says why.
    pub passthrough: Option<Passthrough>,
    /// What makes the volume fail, slow or hang; nothing, normally.
    pub layers: Vec<Layer>,
}

impl VolumeSpec {
    /// A writable volume with the default block sizes.
    pub const fn new(storage: Storage) -> Self {
        Self {
            storage,
            block_size: None,
            physical_block_size: None,
            read_only: false,
            passthrough: None,
            layers: Vec::new(),
        }
    }
}

/// Where the blocks of a volume are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In a regular file.
    File(FileSpec),
    /// On a block device: a drive, a partition, a logical volume, a ZFS zvol. Opened with
    /// O_DIRECT and for lunet alone (O_EXCL).
    Block {
        /// The device's path.
        path: PathBuf,
    },
    /// In an image of Ceph, for this server alone by the image's exclusive lock.
    Rbd(Place),
    /// In memory. Nothing survives a restart.
    Memory {
        /// Capacity in bytes.
        size: u64,
    },
    /// Nowhere: reads as zeroes, forgets what is written. To measure all that is not storage.
    Null {
        /// Capacity in bytes.
        size: u64,
    },
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(FileSpec { path, .. }) | Self::Block { path } => path.display().fmt(f),
            Self::Rbd(place) => place.name.fmt(f),
            Self::Memory { .. } => f.write_str("memory volume"),
            Self::Null { .. } => f.write_str("null volume"),
        }
    }
}

/// A volume in a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec {
    /// The file's path.
    pub path: PathBuf,
    /// Capacity in bytes. `None`: that of the existing file.
    pub size: Option<u64>,
    /// Make the file if it is missing or empty. Implies `grow`.
    pub create: bool,
    /// Make a file larger that is smaller than `size`. Without it, the sizes must agree; a file that
    /// is larger is never cut.
    pub grow: bool,
    /// What the file was like when the volume was served before. A file that is missing, smaller or
    /// another one is refused then, and left alone.
    pub known: Option<Known>,
    /// Whether the file's space is reserved.
    pub provisioning: Provisioning,
    /// How the file is read and written.
    pub access: Access,
}

impl FileSpec {
    /// An existing thin file, read and written through the page cache.
    pub const fn new(path: PathBuf) -> Self {
        Self {
            path,
            size: None,
            create: false,
            grow: false,
            known: None,
            provisioning: Provisioning::Thin,
            access: Access::Buffered,
        }
    }
}

/// What storage is known by, so that it is told from other storage in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its size in bytes. It may have grown since.
    pub size: u64,
    /// The mark in the file or beside it. Without one, any file that is large enough is taken.
    pub mark: Option<String>,
}

/// Whether the space of a file is reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provisioning {
    /// The file is sparse: it takes space as it is written, and unmap gives it back.
    #[default]
    Thin,
    /// All space is reserved when the volume is opened, and kept: unmap is not offered.
    Full,
}

/// How a file is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache, which is a volatile write cache until a flush.
    #[default]
    Buffered,
    /// Past the page cache (O_DIRECT).
    Direct,
}
