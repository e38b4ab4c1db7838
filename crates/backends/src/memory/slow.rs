//! What takes its time on a volume in memory.

use std::any::Any;
use std::sync::Arc;

use lunet_block::{ByteRange, Error, Extent, Slow, Space};

use super::{Memory, PAGE, check, read};

/// Copied at a time between two volumes, over the stack: as long as what is given back when it
/// holds nothing but zeroes.
const COPY_CHUNK: usize = 64 << 10;

/// The most that one call copies.
const COPY_STEP: u64 = 64 << 20;

impl Slow for Memory {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        check(&self.caps, range)?;
        let (mut list, mut at) = (Vec::new(), range.offset);
        while at < range.end() && list.len() < most {
            let (mapped, end) = self.pages.run(at, range.end());
            list.push(Extent { range: ByteRange::new(at, end - at), mapped });
            at = end;
        }
        Ok(list)
    }

    fn copy_from(&self, at: u64, source: &dyn Slow, from: ByteRange) -> Result<u64, Error> {
        let Some(source) = source.as_any().and_then(|any| any.downcast_ref::<Self>()) else {
            return Err(Error::Unsupported);
        };
        if self.caps.read_only {
            return Err(Error::ReadOnly);
        }
        let to = ByteRange::new(at, from.len);
        check(&source.caps, from)?;
        check(&self.caps, to)?;
        if Arc::ptr_eq(&self.region, &source.region) && to.overlaps(from) {
            return Err(Error::Unsupported);
        }
        let mut buf = [0; COPY_CHUNK];
        let mut done = 0;
        let len = from.len.min(COPY_STEP);
        while done < len {
            let chunk = &mut buf[..(len - done).min(COPY_CHUNK as u64) as usize];
            read(&source.region, &source.pages, from.offset + done, chunk);
            let len = chunk.len() as u64;
            if chunk.iter().any(|byte| *byte != 0) {
                self.region.write(at + done, chunk);
                self.pages.set(at + done, len);
            } else {
                // Takes no memory.
                self.pages.clear(at + done, len);
                self.region.zero(at + done, len);
            }
            done += len;
        }
        Ok(done)
    }

    fn space(&self) -> Result<Space, Error> {
        let used = self.pages.count() * u64::from(PAGE);
        let memory = |field| memory(field).ok_or(Error::Unsupported);
        Ok(Space { used, available: memory("MemAvailable:")?, total: memory("MemTotal:")? })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// What the machine has of memory, in bytes: a field of `proc_meminfo(5)`.
fn memory(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
