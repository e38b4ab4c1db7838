//! What takes its time on a file: its holes, copies inside the kernel, its space.

use std::any::Any;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use lunet_block::{ByteRange, Error, Extent, Slow, Space, Support};
use lunet_os::fs;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Disk, Handle};

/// The most that one call of `copy_file_range` gets to do, so that a helper thread hears of a
/// cancellation in time where the kernel has to copy byte by byte.
const COPY_STEP: u64 = 64 << 20;

impl Disk {
    /// The open file; a device has none.
    fn file(&self) -> Result<&File, Error> {
        match &*self.handle {
            Handle::Reopened { file, .. } => Ok(file),
            Handle::Shared(_) => Err(Error::Unsupported),
        }
    }

    fn check(&self, range: ByteRange) -> Result<(), Error> {
        let end = range.offset.checked_add(range.len);
        if end.is_some_and(|end| end <= self.able.size) { Ok(()) } else { Err(Error::OutOfRange) }
    }
}

impl Slow for Disk {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        let file = self.file()?;
        self.check(range)?;
        if self.caps.unmap == Support::None {
            // Reserved space belongs to the blocks, whether there is data in it or not.
            return Ok(Extent::all_mapped(range).into_iter().take(most).collect());
        }
        extents(file, range, u64::from(self.caps.block_size), most)
    }

    fn copy_from(&self, at: u64, source: &dyn Slow, from: ByteRange) -> Result<u64, Error> {
        let Some(source) = source.as_any().and_then(|any| any.downcast_ref::<Self>()) else {
            return Err(Error::Unsupported);
        };
        let (input, output) = (source.file()?, self.file()?);
        if self.able.read_only {
            return Err(Error::ReadOnly);
        }
        source.check(from)?;
        self.check(ByteRange::new(at, from.len))?;
        copy(input, from, output, at)
    }

    fn space(&self) -> Result<Space, Error> {
        let file = self.file()?;
        let found =
            file.metadata().map_err(|e| Error::from_errno(e.raw_os_error().unwrap_or(5)))?;
        let system = rustix::fs::fstatvfs(file).map_err(error)?;
        // What only root may use is neither given nor to be given.
        let given = system.f_blocks.saturating_sub(system.f_bfree);
        let total = given.saturating_add(system.f_bavail);
        Ok(Space {
            used: found.blocks().saturating_mul(512),
            available: system.f_bavail.saturating_mul(system.f_frsize),
            total: total.saturating_mul(system.f_frsize),
        })
    }

    fn sync(&self) -> Result<(), Error> {
        if self.able.read_only {
            return Ok(());
        }
        fs::sync_data(self.opened()).map_err(|e| Error::NotStable(e.raw_os_error().unwrap_or(5)))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

fn error(errno: Errno) -> Error {
    Error::from_errno(errno.raw_os_error())
}

/// The files are the ones without O_DIRECT: the kernel keeps the page cache and direct access
/// to the same file in step.
fn copy(input: &File, from: ByteRange, output: &File, at: u64) -> Result<u64, Error> {
    let (mut read, mut write) = (from.offset, at);
    let step = usize::try_from(from.len.min(COPY_STEP)).unwrap_or(usize::MAX);
    loop {
        match rustix::fs::copy_file_range(input, Some(&mut read), output, Some(&mut write), step) {
            // Not even the first byte: the source was cut off.
            Ok(0) if step > 0 => return Err(Error::Io(Errno::IO.raw_os_error())),
            Ok(n) => return Ok(n as u64),
            Err(Errno::INTR) => {}
            // Another file system; one without this call; ranges that overlap.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                return Err(Error::Unsupported);
            }
            Err(e) => return Err(error(e)),
        }
    }
}

/// As [`Slow::extents`], for blocks of `block` bytes. Others may write meanwhile: each part is
/// then as it was at some moment of the call.
fn extents(file: &File, range: ByteRange, block: u64, most: usize) -> Result<Vec<Extent>, Error> {
    let mut list = Vec::new();
    let mut at = range.offset;
    // One more than asked for: what follows the last part may belong to it.
    while at < range.end() && list.len() <= most {
        let data = next(file, SeekFrom::Data(at))?.unwrap_or(range.end());
        let start = (data / block * block).clamp(at, range.end());
        append(&mut list, at, start, false);
        at = start;
        if at < range.end() {
            let hole = next(file, SeekFrom::Hole(data))?.unwrap_or(range.end());
            // At least a block: the data may have gone since.
            let end = hole.next_multiple_of(block).max(at + block).min(range.end());
            append(&mut list, at, end, true);
            at = end;
        }
    }
    list.truncate(most);
    Ok(list)
}

/// The next data or hole; `None` behind the last.
fn next(file: &File, from: SeekFrom) -> Result<Option<u64>, Error> {
    match rustix::fs::seek(file, from) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(error(e)),
    }
}

fn append(list: &mut Vec<Extent>, from: u64, to: u64, mapped: bool) {
    match list.last_mut() {
        _ if from == to => {}
        Some(last) if last.mapped == mapped => last.range.len += to - from,
        _ => list.push(Extent { range: ByteRange::new(from, to - from), mapped }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn listed(file: &File, range: ByteRange, block: u64, most: usize) -> Vec<(u64, u64, bool)> {
        let list = extents(file, range, block, most).expect("a list");
        list.iter().map(|e| (e.range.offset, e.range.len, e.mapped)).collect()
    }

    #[test]
    fn data_and_holes_are_rounded_to_blocks() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 4096], 64 << 10).unwrap();
        file.write_all_at(&[1; 4096], 128 << 10).unwrap();
        let all = ByteRange::new(0, 1 << 20);
        let (k, mib) = (1 << 10, 1 << 20);
        let fine = [
            (0, 64 * k, false),
            (64 * k, 4 * k, true),
            (68 * k, 60 * k, false),
            (128 * k, 4 * k, true),
            (132 * k, mib - 132 * k, false),
        ];
        assert_eq!(listed(&file, all, 512, 100), fine);
        for most in 0..6 {
            assert_eq!(listed(&file, all, 512, most), fine[..most.min(5)]);
        }
        // Blocks that are larger than the holes between data leave no hole.
        let coarse = [(0, 256 * k, true), (256 * k, 768 * k, false)];
        assert_eq!(listed(&file, all, 128 * k, 100), coarse);
        let inside = ByteRange::new(65 * k, 2 * k);
        assert_eq!(listed(&file, inside, 512, 9), [(65 * k, 2 * k, true)]);
        let hole = ByteRange::new(200 * k, 4 * k);
        assert_eq!(listed(&file, hole, 512, 9), [(200 * k, 4 * k, false)]);
        assert_eq!(listed(&file, ByteRange::new(64 * k, 0), 512, 9), []);
    }

    #[test]
    fn a_file_of_nothing_but_data_is_one_part() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 65536], 0).unwrap();
        assert_eq!(listed(&file, ByteRange::new(4096, 8192), 4096, 9), [(4096, 8192, true)]);
        assert_eq!(listed(&file, ByteRange::new(0, 65536), 4096, 9), [(0, 65536, true)]);
    }
}
