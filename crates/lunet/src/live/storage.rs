//! What is asked of storage while it is served.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Result, anyhow};
use lunet_backends::Volume;
use rustix::fs::ioctl_ficlone;
use rustix::io::Errno;

use super::served::Open;
use crate::config::{self, Backend};
use crate::{files, serve};

/// A volume with more room, on the same storage; without a size, that which the storage has by now.
pub fn grow(open: &Open, data: &Path, size: Option<u64>) -> Result<Volume> {
    let config = size.map_or_else(|| open.config.clone(), |size| with_size(&open.config, size));
    lunet_backends::grow(&open.volume, &serve::spec(&config, data))
        .map_err(|error| anyhow!("volume {}: {error}", config.name))
}

/// The same volume with another size in bytes.
pub fn with_size(config: &config::Volume, bytes: u64) -> config::Volume {
    let mut config = config.clone();
    match &mut config.backend {
        Backend::File { size, .. } => *size = Some(bytes),
        Backend::Memory { size } | Backend::Null { size } => *size = bytes,
        Backend::Block { .. } => {}
    }
    config
}

/// A file that shares all blocks with another one until either is written to. On stable storage when
/// this returns.
pub fn share(from: &Path, to: &Path) -> Result<()> {
    let copied = || -> io::Result<()> {
        let source = File::open(from)?;
        let copy = File::options().write(true).create_new(true).mode(0o600).open(to)?;
        ioctl_ficlone(&copy, &source)?;
        copy.sync_all()?;
        files::sync_parent(to)
    };
    copied().map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::XDEV) => anyhow!(
            "the file system of {} cannot share blocks between files: snapshots and clones need XFS \
             or btrfs",
            from.display()
        ),
        _ => anyhow!("cannot copy {} to {}: {error}", from.display(), to.display()),
    })
}
