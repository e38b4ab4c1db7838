//! A LUN, or anything else that can be read in blocks.

use std::io;

use super::signature::{HEAD, TAIL, signature};
use super::{Destroy, Refusal};

/// Reads blocks.
pub trait Blocks {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills the buffer from this byte on. Both are whole multiples of 4096, but for the end of a size that is none.
    ///
    /// # Errors
    /// The blocks cannot be read.
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Blocks that are looked at between beginning and end: data that a file system has spread is found by a few.
const SAMPLES: u64 = 64;
const BLOCK: usize = 4096;

/// What was found in something.
pub(super) fn content(blocks: &mut dyn Blocks) -> io::Result<Option<String>> {
    let size = blocks.size();
    let part = |most: usize| usize::try_from(size.min(most as u64)).unwrap_or(most);
    // A ZFS label at the end lies on a multiple of its own size, whatever the size of the device.
    let end = size - size % (256 << 10);
    // 1 MiB and a block more: VMFS keeps its number there.
    let mut head = vec![0; part((1 << 20) + BLOCK).max(part(HEAD))];
    blocks.read(0, &mut head)?;
    let begin = end.saturating_sub(TAIL as u64);
    let mut tail = vec![0; usize::try_from(size - begin).unwrap_or(TAIL)];
    blocks.read(begin, &mut tail)?;
    let known = signature(&head, &tail);
    if let Some(known) = known {
        return Ok(Some(known.to_owned()));
    }
    let data = |at: u64| Ok(Some(format!("data (at {} KiB)", at >> 10)));
    let not_zero = |bytes: &[u8]| bytes.iter().position(|byte| *byte != 0);
    if let Some(at) = not_zero(&head) {
        return data(at as u64);
    }
    if let Some(at) = not_zero(&tail) {
        return data(begin + at as u64);
    }
    let mut block = vec![0; BLOCK];
    for sample in 1..SAMPLES {
        let at = size / SAMPLES * sample / BLOCK as u64 * BLOCK as u64;
        if at + BLOCK as u64 > size {
            break;
        }
        blocks.read(at, &mut block)?;
        if not_zero(&block).is_some() {
            return data(at);
        }
    }
    Ok(None)
}

/// Whether a LUN may be written to: it is empty as far as a look at both ends and 63 blocks between them tells, or it was
/// named. `name` is the URL as the caller gave it.
///
/// # Errors
/// See [`Refusal`].
pub fn lun(name: &str, blocks: &mut dyn Blocks, destroy: &Destroy) -> Result<(), Refusal> {
    if destroy.names(name) {
        return Ok(());
    }
    let place = crate::model::without_secret(name);
    match content(blocks) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(Refusal::Data { place, what }),
        Err(error) => Err(Refusal::Io { place, error }),
    }
}
