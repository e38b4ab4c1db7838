//! Random requests, many at a time, against a model: a plain array of bytes.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::runner::Runner;
use super::{Driver, SPAN, pattern, unmap_zeroes};
use crate::{ByteRange, Op, Random};

const STEPS: u64 = 400;
const IN_FLIGHT: usize = 24;
const MAX_BLOCKS: u64 = 160;

/// Requests whose ranges overlap have no order among each other unless one was answered before
/// the other was submitted, so the ranges in flight are kept apart.
pub(super) fn behaves_like_memory<D: Driver>(driver: &mut D, seed: u64) {
    let caps = driver.caps();
    let mut random = Random::new(seed);
    let mut model = vec![0; SPAN as usize];
    let mut runner = Runner::new(driver);
    let whole = ByteRange::new(0, SPAN);
    let zeroed = runner.run(Op::WriteZeroes { may_unmap: seed % 2 == 0 }, whole, None);
    assert_eq!(zeroed, Ok(()), "seed {seed}: zeroing everything");
    let mut running: BTreeMap<u64, (ByteRange, Option<Vec<u8>>)> = BTreeMap::new();
    for step in 0..STEPS {
        if runner.in_flight() >= IN_FLIGHT {
            settle(&mut runner, &mut running, seed);
        }
        let range = place(&mut random, u64::from(caps.block_size));
        if running.values().any(|(other, _)| other.overlaps(range)) {
            settle(&mut runner, &mut running, seed);
        }
        let here = range.offset as usize..range.end() as usize;
        let op = choose(&mut random, unmap_zeroes(&caps));
        let (data, expected) = match op {
            Op::Write { .. } => {
                let data = pattern(seed ^ step, range.len);
                model[here].copy_from_slice(&data);
                (Some(data), None)
            }
            Op::Unmap | Op::WriteZeroes { .. } => {
                model[here].fill(0);
                (None, None)
            }
            Op::Read | Op::ReadMapped | Op::Flush => (None, Some(model[here].to_vec())),
        };
        let tag = runner.start(op, range, data.as_deref());
        running.insert(tag, (range, expected.filter(|_| op == Op::Read)));
    }
    settle(&mut runner, &mut running, seed);
    for (i, chunk) in model.chunks(1 << 20).enumerate() {
        let range = ByteRange::new((i as u64) << 20, chunk.len() as u64);
        assert!(runner.read(range) == chunk, "seed {seed}: {range:?} differs at the end");
    }
}

/// Waits for everything in flight, and compares what was read.
fn settle<D: Driver>(
    runner: &mut Runner<'_, D>,
    running: &mut BTreeMap<u64, (ByteRange, Option<Vec<u8>>)>,
    seed: u64,
) {
    for (tag, (range, expected)) in core::mem::take(running) {
        let done = runner.answer(tag);
        assert_eq!(done.result, Ok(()), "seed {seed}: {:?} of {range:?}", done.op);
        if let Some(expected) = expected {
            assert!(runner.bytes(done) == expected, "seed {seed}: read of {range:?} differs");
        }
    }
}

/// Mostly short ranges, crowded at the front so that they meet often.
fn place(random: &mut Random, block: u64) -> ByteRange {
    let blocks = SPAN / block;
    let limit = if random.below(4) == 0 { MAX_BLOCKS } else { 8 };
    let len = 1 + random.below(limit);
    let room = if random.below(2) == 0 { blocks } else { blocks / 8 };
    let start = random.below(room - len + 1);
    ByteRange::new(start * block, len * block)
}

fn choose(random: &mut Random, unmap: bool) -> Op {
    match random.below(16) {
        0..=5 => Op::Read,
        6..=11 => Op::Write { fua: random.below(8) == 0 },
        12 | 13 if unmap => Op::Unmap,
        12 => Op::WriteZeroes { may_unmap: true },
        13 | 14 => Op::WriteZeroes { may_unmap: random.below(2) == 0 },
        _ => Op::Flush,
    }
}
