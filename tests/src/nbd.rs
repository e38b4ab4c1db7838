//! Drives with a volatile cache, served by NBD: what was not flushed when the power went may be lost.
//!
//! An emulated drive over a file keeps everything when its machine is killed, because the page cache of this machine lives on.
//! A real drive does not. This one holds each write back until a flush; and when its client goes without a farewell, which is what
//! a killed machine looks like from outside, the dice say of each block of the cache whether it has reached the medium.
//!
//! QEMU's NVMe controller drops the FUA bit of a write (its nvme_do_write does not look at it), which over such a drive is a lost
//! journal. So these are for virtio, which has no FUA: the guest's kernel sends a flush instead.
//!
//! Only what QEMU needs is here: the fixed newstyle handshake with GO, READ, WRITE, FLUSH, TRIM and WRITE ZEROES, one request after
//! another (the NBD protocol's doc/proto.md).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};

use lunet_block::Random;

/// What the drive writes whole, whatever happens.
pub const PAGE: usize = 4096;

/// The longest transfer: QEMU keeps to 32 MiB.
const LONGEST: u32 = 32 << 20;

/// A medium and the cache before it.
pub struct Drive {
    medium: File,
    size: u64,
    cache: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Drive {
    /// A drive over a file, of a whole number of [`PAGE`]s.
    pub fn new(medium: File) -> Result<Drive> {
        let size = medium.metadata()?.len();
        ensure!(size > 0 && size % PAGE as u64 == 0, "a drive of {size} bytes");
        Ok(Drive { medium, size, cache: BTreeMap::new() })
    }

    fn page(&self, number: u64) -> Result<Box<[u8; PAGE]>> {
        if let Some(page) = self.cache.get(&number) {
            return Ok(page.clone());
        }
        let mut page = Box::new([0; PAGE]);
        self.medium.read_exact_at(&mut page[..], number * PAGE as u64)?;
        Ok(page)
    }

    /// The pages of a range: number, where in the page it begins, and where in the range.
    fn pages(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let (number, within) =
                ((at + done as u64) / PAGE as u64, ((at + done as u64) % PAGE as u64) as usize);
            let here = done..len.min(done + PAGE - within);
            done = here.end;
            (!here.is_empty()).then_some((number, within, here))
        })
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        for (number, within, here) in Drive::pages(at, into.len()) {
            let page = self.page(number)?;
            let len = here.len();
            into[here].copy_from_slice(&page[within..within + len]);
        }
        Ok(())
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<()> {
        for (number, within, here) in Drive::pages(at, data.len()) {
            let mut page = self.page(number)?;
            page[within..within + here.len()].copy_from_slice(&data[here]);
            self.cache.insert(number, page);
        }
        Ok(())
    }

    /// Everything that was written reaches the medium.
    pub fn flush(&mut self) -> Result<()> {
        for (number, page) in std::mem::take(&mut self.cache) {
            self.medium.write_all_at(&page[..], number * PAGE as u64)?;
        }
        Ok(())
    }

    /// The power is cut. Returns how many pages of the cache were kept, and how many lost.
    pub fn cut(&mut self, random: &mut Random) -> Result<(u64, u64)> {
        // Of a hundred pages so many have reached the medium: none of them in one cut out of four.
        let kept_of_hundred = [0, 20, 50, 90][random.below(4) as usize];
        let (mut kept, mut lost) = (0, 0);
        for (number, page) in std::mem::take(&mut self.cache) {
            if random.below(100) < kept_of_hundred {
                self.medium.write_all_at(&page[..], number * PAGE as u64)?;
                kept += 1;
            } else {
                lost += 1;
            }
        }
        Ok((kept, lost))
    }
}

/// How a client left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// In good order.
    Farewell,
    /// The connection is gone.
    Gone,
}

/// Serves a drive to one client until that leaves.
pub fn serve(drive: &mut Drive, stream: &mut (impl Read + Write)) -> Result<Left> {
    match greet(drive, stream).and_then(|()| requests(drive, stream)) {
        Err(error) if is_gone(&error) => Ok(Left::Gone),
        other => other.map(|()| Left::Farewell),
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(UnexpectedEof | ConnectionReset | BrokenPipe))
}

fn take<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The fixed newstyle handshake, as far as GO.
fn greet(drive: &Drive, stream: &mut (impl Read + Write)) -> Result<()> {
    const REPLY: u64 = 0x0003_e889_0455_65a9;
    const GO: u32 = 7;
    const ACK: u32 = 1;
    const INFO: u32 = 3;
    const UNSUPPORTED: u32 = 0x8000_0001;
    // FIXED_NEWSTYLE and NO_ZEROES.
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    take::<4>(stream)?;
    loop {
        ensure!(take(stream)? == *b"IHAVEOPT", "not an option");
        let option = u32::from_be_bytes(take(stream)?);
        let length = u32::from_be_bytes(take(stream)?);
        ensure!(length <= 4096, "an option of {length} bytes");
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut reply = |kind: u32, data: &[u8]| -> Result<()> {
            let mut bytes = REPLY.to_be_bytes().to_vec();
            for word in [option, kind, u32::try_from(data.len())?] {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
            bytes.extend_from_slice(data);
            Ok(stream.write_all(&bytes)?)
        };
        if option != GO {
            reply(UNSUPPORTED, &[])?;
            continue;
        }
        // NBD_INFO_EXPORT: size, and HAS_FLAGS, SEND_FLUSH, SEND_TRIM, SEND_WRITE_ZEROES.
        let mut export = vec![0, 0];
        export.extend_from_slice(&drive.size.to_be_bytes());
        export.extend_from_slice(&0b110_0101_u16.to_be_bytes());
        reply(INFO, &export)?;
        return reply(ACK, &[]);
    }
}

// Commands.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

/// The transmission phase.
fn requests(drive: &mut Drive, stream: &mut (impl Read + Write)) -> Result<()> {
    loop {
        let magic = u32::from_be_bytes(take(stream)?);
        ensure!(magic == 0x2560_9513, "not a request: {magic:08x}");
        let _flags: [u8; 2] = take(stream)?;
        let command = u16::from_be_bytes(take(stream)?);
        let cookie: [u8; 8] = take(stream)?;
        let at = u64::from_be_bytes(take(stream)?);
        let length = u32::from_be_bytes(take(stream)?);
        let fits = at.checked_add(length.into()).is_some_and(|end| end <= drive.size);
        ensure!(fits, "command {command} beyond the end");
        let mut data = Vec::new();
        match command {
            READ | WRITE => {
                ensure!(length <= LONGEST, "a transfer of {length} bytes");
                data.resize(length as usize, 0);
                if command == READ {
                    drive.read(at, &mut data)?;
                } else {
                    stream.read_exact(&mut data)?;
                    drive.write(at, &data)?;
                    data.clear();
                }
            }
            // A freed page may read as anything: as it was is one possibility.
            TRIM => {}
            WRITE_ZEROES => drive.write(at, &vec![0; length as usize])?,
            FLUSH => drive.flush().context("flush")?,
            DISCONNECT => return Ok(()),
            other => bail!("command {other}"),
        }
        let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
        reply.extend_from_slice(&[0; 4]);
        reply.extend_from_slice(&cookie);
        reply.extend_from_slice(&data);
        stream.write_all(&reply)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive() -> Result<Drive> {
        let file = tempfile::tempfile()?;
        file.set_len(64 * PAGE as u64)?;
        Drive::new(file)
    }

    #[test]
    fn a_cut_loses_what_was_not_flushed_and_nothing_else() -> Result<()> {
        let mut drive = drive()?;
        let mut random = Random::new(1);
        let (mut kept, mut lost) = (0, 0);
        for round in 0..40 {
            let (old, new) = (round * 2 + 1, round * 2 + 2);
            // From the middle of a page to the middle of another.
            let mut found = vec![0; 20 * PAGE];
            drive.write(700, &vec![old; 20 * PAGE])?;
            drive.flush()?;
            drive.write(700, &vec![new; 20 * PAGE])?;
            drive.read(700, &mut found)?;
            assert_eq!(found, vec![new; 20 * PAGE]);
            let (k, l) = drive.cut(&mut random)?;
            (kept, lost) = (kept + k, lost + l);
            assert_eq!(k + l, 21);
            drive.read(700, &mut found)?;
            assert!(found.iter().all(|&byte| byte == old || byte == new));
            for (_, _, here) in Drive::pages(700, found.len()) {
                assert!(found[here.clone()].iter().all(|&byte| byte == found[here.start]));
            }
        }
        assert!(kept > 100 && lost > 100, "{kept} kept, {lost} lost");
        Ok(())
    }
}
