//! What every backend must do, as tests: to be run by the crate that has the backend, over its
//! event loop. A check panics with what was wrong.
//!
//! ```text
//! conformance::run(&mut my_driver, Contents::Kept);
//! ```

mod model;
mod runner;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::{ByteRange, Caps, Channel, Error, IoDone, Op, Support};
use runner::Runner;

/// One open channel and the event loop below it.
pub trait Driver {
    /// The event loop's buffer.
    type Buf;
    /// The event loop.
    type Queue;

    /// The volume's.
    fn caps(&self) -> Caps;
    /// The channel, and the event loop to give to it.
    fn channel(&mut self) -> (&mut dyn Channel<Self::Buf, Self::Queue>, &mut Self::Queue);
    /// A buffer with a copy of these bytes.
    fn buf(&mut self, data: &[u8]) -> Self::Buf;
    /// A copy of the first `len` bytes of a buffer.
    fn bytes(&self, buf: &Self::Buf, len: usize) -> Vec<u8>;
    /// Waits until at least one operation of the channel has ended, and appends all that have.
    /// Panics if none ends within reasonable time.
    fn wait(&mut self, ended: &mut Vec<IoDone<Self::Buf>>);
}

/// What becomes of written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// It is read again.
    Kept,
    /// The volume always reads as zeroes.
    Forgotten,
}

/// Checks a volume of at least 8 MiB, whose contents are lost. A read-only volume is only read.
pub fn run<D: Driver>(driver: &mut D, contents: Contents) {
    let caps = driver.caps();
    assert!(caps.bytes() >= SPAN, "the volume is too small to be checked");
    sensible(&caps);
    if caps.read_only {
        changes_nothing(driver);
        return;
    }
    let keeps = contents == Contents::Kept;
    reads_what_was_written(driver, keeps);
    zeroes_a_range_and_nothing_else(driver, keeps);
    unmaps_nothing_else(driver, keeps);
    takes_empty_ranges(driver, keeps);
    flushes(driver);
    takes_more_than_it_can_run(driver, keeps);
    answers_what_is_cancelled(driver, keeps);
    if keeps {
        for seed in 1..=2 {
            model::behaves_like_memory(driver, seed);
        }
    }
}

/// The part of the volume that is written, in bytes.
const SPAN: u64 = 8 << 20;

/// Bytes that depend on their place and on `salt`, and are never zero.
fn pattern(salt: u64, len: u64) -> Vec<u8> {
    let byte = |i: u64| ((i.wrapping_mul(31) ^ (i >> 9) ^ salt.wrapping_mul(97)) % 255) as u8 + 1;
    (0..len).map(byte).collect()
}

fn sensible(caps: &Caps) {
    assert!(caps.block_size == 512 || caps.block_size == 4096, "{caps:?}");
    assert!(caps.physical_block_size >= caps.block_size, "{caps:?}");
    assert!((caps.physical_block_size / caps.block_size).is_power_of_two(), "{caps:?}");
    assert!(caps.alignment >= 1 && caps.block_size % caps.alignment == 0, "{caps:?}");
    let usable = caps.unmap == Support::None || caps.unmap_granularity > 0;
    assert!(usable, "unmap without a granularity: {caps:?}");
}

/// A read-only volume refuses what would change it, hands the data back, and can be read.
fn changes_nothing<D: Driver>(driver: &mut D) {
    let block = u64::from(driver.caps().block_size);
    let mut runner = Runner::new(driver);
    let range = ByteRange::new(block, block);
    let before = runner.read(range);
    let data = pattern(1, block);
    for fua in [false, true] {
        let refused = runner.run(Op::Write { fua }, range, Some(&data));
        assert_eq!(refused, Err(Error::ReadOnly), "write");
    }
    for op in zeroing(true) {
        assert_eq!(runner.run(op, range, None), Err(Error::ReadOnly), "{op:?}");
    }
    assert_eq!(runner.run(Op::Flush, ByteRange::new(0, 0), None), Ok(()), "flush");
    assert_eq!(runner.read(range), before, "a read-only volume has changed");
}

/// The operations that make a range read as zeroes.
fn zeroing(unmap: bool) -> impl Iterator<Item = Op> {
    let unmap = unmap.then_some(Op::Unmap);
    let write = [false, true].map(|may_unmap| Op::WriteZeroes { may_unmap });
    unmap.into_iter().chain(write)
}

fn unmap_zeroes(caps: &Caps) -> bool {
    caps.unmap == Support::Native && caps.unmap_zeroes
}

fn reads_what_was_written<D: Driver>(driver: &mut D, keeps: bool) {
    let caps = driver.caps();
    let (block, end) = (u64::from(caps.block_size), caps.bytes());
    let mut runner = Runner::new(driver);
    let mut ranges = vec![ByteRange::new(0, block), ByteRange::new(end - block, block)];
    for len in [block, 8 * block, 64 << 10, 256 << 10, 1 << 20] {
        ranges.push(ByteRange::new(3 * block, len));
        ranges.push(ByteRange::new(end - len - block, len));
    }
    for (salt, range) in (0..).zip(ranges) {
        let fua = salt % 2 == 1;
        let data = pattern(salt, range.len);
        let wrote = runner.run(Op::Write { fua }, range, Some(&data));
        assert_eq!(wrote, Ok(()), "write of {range:?}, fua {fua}");
        let expected = if keeps { data } else { vec![0; data.len()] };
        assert!(runner.read(range) == expected, "{range:?} differs from what was written");
        if caps.mapped_reads {
            let tag = runner.start(Op::ReadMapped, range, None);
            let done = runner.answer(tag);
            assert_eq!(done.result, Ok(()), "read by reference of {range:?}");
            assert!(runner.bytes(done) == expected, "{range:?} by reference differs");
        }
    }
}

fn zeroes_a_range_and_nothing_else<D: Driver>(driver: &mut D, keeps: bool) {
    let caps = driver.caps();
    let block = u64::from(caps.block_size);
    let granule = u64::from(caps.unmap_granularity).next_multiple_of(block).min(128 << 10);
    let mut runner = Runner::new(driver);
    // Starts and lengths on the granularity, one block beside it, and within one granule.
    let parts = [
        (granule, granule),
        (granule, 3 * granule),
        (granule + block, granule),
        (granule - block, 2 * granule + 2 * block),
        (2 * granule - block, 2 * block),
        (0, 5 * granule),
        (5 * block, 1 << 20),
    ];
    for op in zeroing(unmap_zeroes(&caps)) {
        for (offset, len) in parts {
            let whole = ByteRange::new(0, (offset + len + granule + block).min(1 << 20));
            let len = len.min(whole.len - offset);
            let mut data = pattern(offset, whole.len);
            let wrote = runner.run(Op::Write { fua: false }, whole, Some(&data));
            assert_eq!(wrote, Ok(()), "write of {whole:?}");
            let range = ByteRange::new(offset, len);
            assert_eq!(runner.run(op, range, None), Ok(()), "{op:?} of {range:?}");
            data[offset as usize..(offset + len) as usize].fill(0);
            if !keeps {
                data.fill(0);
            }
            assert!(runner.read(whole) == data, "{op:?} of {range:?} left wrong data");
        }
        let range = ByteRange::new(block, SPAN - block);
        assert_eq!(runner.run(op, range, None), Ok(()), "{op:?} of {range:?}");
        for offset in [block, SPAN / 2, SPAN - block] {
            let read = runner.read(ByteRange::new(offset, block));
            assert!(read.iter().all(|b| *b == 0), "{op:?} of {range:?} left data at {offset}");
        }
    }
}

/// Whatever an unmapped range reads as: its neighbours stay, and it can be written again.
fn unmaps_nothing_else<D: Driver>(driver: &mut D, keeps: bool) {
    let caps = driver.caps();
    if caps.unmap != Support::Native || !keeps {
        return;
    }
    let block = u64::from(caps.block_size);
    let whole = ByteRange::new(0, 1 << 20);
    let mut runner = Runner::new(driver);
    for range in [ByteRange::new(block, block), ByteRange::new(64 << 10, (512 << 10) + block)] {
        let data = pattern(7, whole.len);
        assert_eq!(runner.run(Op::Write { fua: false }, whole, Some(&data)), Ok(()));
        assert_eq!(runner.run(Op::Unmap, range, None), Ok(()), "unmap of {range:?}");
        let read = runner.read(whole);
        let (from, to) = (range.offset as usize, range.end() as usize);
        assert!(read[..from] == data[..from], "unmap of {range:?} hit what is in front of it");
        assert!(read[to..] == data[to..], "unmap of {range:?} hit what is behind it");
        let again = pattern(8, range.len);
        assert_eq!(runner.run(Op::Write { fua: false }, range, Some(&again)), Ok(()));
        assert!(runner.read(range) == again, "a write after unmap of {range:?} differs");
    }
}

/// An empty range, even at the very end, is done at once and changes nothing.
fn takes_empty_ranges<D: Driver>(driver: &mut D, keeps: bool) {
    let caps = driver.caps();
    let block = u64::from(caps.block_size);
    let mut runner = Runner::new(driver);
    let last = ByteRange::new(caps.bytes() - block, block);
    let data = pattern(5, block);
    assert_eq!(runner.run(Op::Write { fua: false }, last, Some(&data)), Ok(()));
    for offset in [last.offset, last.end()] {
        let empty = ByteRange::new(offset, 0);
        for op in zeroing(caps.unmap == Support::Native) {
            assert_eq!(runner.run(op, empty, None), Ok(()), "{op:?} of nothing");
        }
        for fua in [false, true] {
            let wrote = runner.run(Op::Write { fua }, empty, Some(&data));
            assert_eq!(wrote, Ok(()), "write of nothing");
        }
        assert_eq!(runner.run(Op::Read, empty, Some(&data)), Ok(()), "read of nothing");
    }
    let expected = if keeps { data } else { vec![0; block as usize] };
    assert!(runner.read(last) == expected, "an empty range had an effect");
}

/// A flush is answered with nothing to do, behind writes, and among writes in flight.
fn flushes<D: Driver>(driver: &mut D) {
    let block = u64::from(driver.caps().block_size);
    let mut runner = Runner::new(driver);
    let nowhere = ByteRange::new(0, 0);
    assert_eq!(runner.run(Op::Flush, nowhere, None), Ok(()), "flush of nothing");
    let data = pattern(3, block);
    for i in 0..64 {
        let range = ByteRange::new(i * block, block);
        runner.start(Op::Write { fua: i % 7 == 0 }, range, Some(&data));
        if i % 8 == 0 {
            runner.start(Op::Flush, nowhere, None);
        }
    }
    for done in runner.finish() {
        assert_eq!(done.result, Ok(()), "{:?} of {:?}", done.op, done.range);
    }
    assert_eq!(runner.run(Op::Flush, nowhere, None), Ok(()), "flush behind writes");
}

/// Far more requests than a channel has room for: all are answered, none is mixed up.
fn takes_more_than_it_can_run<D: Driver>(driver: &mut D, keeps: bool) {
    const COUNT: u64 = 1500;
    let block = u64::from(driver.caps().block_size);
    let place = |i: u64| ByteRange::new(i * block, block);
    let mut runner = Runner::new(driver);
    for i in 0..COUNT {
        runner.start(Op::Write { fua: false }, place(i), Some(&pattern(i, block)));
    }
    for done in runner.finish() {
        assert_eq!(done.result, Ok(()), "write of {:?}", done.range);
    }
    for i in 0..COUNT {
        runner.start(Op::Read, place(i), None);
    }
    for (i, done) in (0..).zip(runner.finish()) {
        assert_eq!(done.result, Ok(()), "read of {:?}", done.range);
        let expected = if keeps { pattern(i, block) } else { vec![0; block as usize] };
        assert!(runner.bytes(done) == expected, "read {i} of many differs");
    }
}

/// A cancelled request is answered, and `Cancelled` means that nothing happened.
fn answers_what_is_cancelled<D: Driver>(driver: &mut D, keeps: bool) {
    const COUNT: u64 = 128;
    let block = u64::from(driver.caps().block_size);
    let place = |i: u64| ByteRange::new(i * block, block);
    let mut runner = Runner::new(driver);
    for i in 0..COUNT {
        let wrote = runner.run(Op::Write { fua: false }, place(i), Some(&pattern(i, block)));
        assert_eq!(wrote, Ok(()));
    }
    let new = |i| pattern(i + COUNT, block);
    let tags: Vec<u64> = (0..COUNT)
        .map(|i| runner.start(Op::Write { fua: i % 4 == 0 }, place(i), Some(&new(i))))
        .collect();
    let zeroes = ByteRange::new(COUNT * block, SPAN - COUNT * block);
    let wide = runner.start(Op::WriteZeroes { may_unmap: false }, zeroes, None);
    let read = runner.start(Op::Read, ByteRange::new(SPAN - block, block), None);
    let flush = runner.start(Op::Flush, ByteRange::new(0, 0), None);
    for tag in tags.iter().rev().chain([&wide, &read, &flush]) {
        runner.cancel(*tag);
    }
    // Not a request: must do no harm.
    runner.cancel(u64::MAX);
    let answers: Box<[_]> = (0..COUNT).map(|i| runner.answer(tags[i as usize]).result).collect();
    for tag in [wide, read, flush] {
        let done = runner.answer(tag);
        let halfway = tag == wide && matches!(done.result, Err(Error::Io(_)));
        let expected = matches!(done.result, Ok(()) | Err(Error::Cancelled)) || halfway;
        assert!(expected, "{:?} was answered with {:?}", done.op, done.result);
    }
    assert_eq!(runner.in_flight(), 0);
    for (i, answer) in (0..).zip(answers) {
        let (old, new) = if keeps {
            (pattern(i, block), new(i))
        } else {
            (vec![0; block as usize], vec![0; block as usize])
        };
        let found = runner.read(place(i));
        match answer {
            Ok(()) => assert!(found == new, "write {i} was acknowledged and is not there"),
            Err(Error::Cancelled) => assert!(found == old, "write {i} had an effect"),
            // The data is written, its flush was given up.
            Err(Error::Io(_)) => assert!(i % 4 == 0 && found == new, "write {i}: {answer:?}"),
            Err(_) => panic!("cancelled write {i} was answered with {answer:?}"),
        }
    }
}
