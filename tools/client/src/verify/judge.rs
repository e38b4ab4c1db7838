//! Names what is wrong, from two looks at it.

use std::ops::Range;
use std::time::Duration;

use super::{Fault, Finding, Found, Ledger};
use crate::pattern::{Difference, Stamp, compare};

/// One look at one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// As it should be.
    Right,
    /// Nothing is known that it could contradict.
    Unknown,
    /// Not as it should be.
    Wrong(Found),
}

/// A look at a run of blocks.
#[derive(Debug)]
pub(crate) struct Look {
    pub lba: u64,
    pub sights: Vec<Sight>,
}

impl Look {
    fn at(&self, lba: u64) -> Option<Sight> {
        let index = lba.checked_sub(self.lba)?;
        self.sights.get(usize::try_from(index).ok()?).copied()
    }

    fn range(&self) -> Range<u64> {
        self.lba..self.lba + self.sights.len() as u64
    }
}

impl Ledger {
    /// Looks closely at what a read returned. For what is wrong already: it takes its time.
    pub fn look(&self, lba: u64, bytes: &[u8]) -> Look {
        let blocks = bytes.chunks_exact(self.block_size as usize).zip(lba..);
        Look { lba, sights: blocks.map(|(block, lba)| self.sight(lba, block)).collect() }
    }

    fn sight(&self, lba: u64, block: &[u8]) -> Sight {
        let expected = self.expected(lba);
        let stamp = Stamp::read(block).filter(|stamp| stamp.key == self.key);
        match (stamp, expected) {
            (Some(stamp), _) if stamp.lba != lba => {
                Sight::Wrong(Found::OtherBlock { lba: stamp.lba, generation: stamp.generation })
            }
            (_, 0) => Sight::Unknown,
            (Some(stamp), _) if stamp.generation == expected => Sight::Right,
            (Some(stamp), _) => Sight::Wrong(Found::Generation(stamp.generation)),
            (None, _) if block.iter().all(|&byte| byte == 0) => Sight::Wrong(Found::Zeroes),
            (None, _) => self.damaged(lba, block, expected),
        }
    }

    fn damaged(&self, lba: u64, block: &[u8], expected: u32) -> Sight {
        Sight::Wrong(match compare(block, self.stamp(lba, expected)) {
            Difference::Bits { count, first } => Found::Bits { count, first_byte: first },
            Difference::Half { right } => Found::Part(right),
            Difference::All | Difference::None => Found::Foreign,
        })
    }

    /// Reports what two looks have shown. The second one was taken before anything else happened
    /// there; `None` if it failed.
    pub fn judge(&mut self, first: &Look, second: Option<&Look>, at: Duration) {
        let second = second.unwrap_or(first);
        let range = first.range();
        let all = range.start.min(second.lba)..range.end.max(second.range().end);
        let mut run: Option<Finding> = None;
        for lba in all {
            let next = self.verdict(lba, first, second, at);
            run = match (run, next) {
                (Some(mut run), Some(next)) if alike(&run, &next) => {
                    run.blocks += 1;
                    Some(run)
                }
                (run, next) => {
                    if let Some(run) = run {
                        self.outcome.report(run);
                    }
                    next
                }
            };
        }
        if let Some(run) = run {
            self.outcome.report(run);
        }
        self.forget(second);
    }

    fn verdict(&self, lba: u64, first: &Look, second: &Look, at: Duration) -> Option<Finding> {
        let (before, now) = (first.at(lba), second.at(lba).or(first.at(lba))?);
        let expected = self.expected(lba);
        let (found, lasting) = match (before, now) {
            (_, Sight::Wrong(found)) => (found, true),
            (Some(Sight::Wrong(found)), Sight::Right) => (found, false),
            // Another read that was under way has told of it, or of a write that failed, in between.
            _ => return None,
        };
        let fault = match found {
            Found::OtherBlock { .. } => Fault::Misplaced,
            Found::Bits { .. } => Fault::Flipped,
            Found::Part(_) => Fault::Torn,
            Found::Generation(_) | Found::Zeroes | Found::Foreign if !lasting => Fault::Stale,
            Found::Generation(_) | Found::Zeroes | Found::Foreign => {
                let of_the_same_write = |lba: u64| self.expected(lba) == expected;
                let there = |lba: u64| second.at(lba) == Some(Sight::Right);
                match second.range().any(|lba| of_the_same_write(lba) && there(lba)) {
                    true => Fault::Torn,
                    false => Fault::Lost,
                }
            }
        };
        Some(Finding { fault, lba, blocks: 1, expected, found, lasting, at })
    }

    /// What is wrong on the medium is said once.
    fn forget(&mut self, look: &Look) {
        for lba in look.range() {
            if let Some(Sight::Wrong(_)) = look.at(lba) {
                let index = self.parts.index(lba).unwrap_or(0) / u64::from(self.unit);
                self.generations[index as usize] = 0;
            }
        }
    }
}

/// True if the second is the continuation of the first.
fn alike(run: &Finding, next: &Finding) -> bool {
    let found = match (run.found, next.found) {
        (
            Found::OtherBlock { lba: a, generation: x },
            Found::OtherBlock { lba: b, generation: y },
        ) => a + run.blocks == b && x == y,
        (Found::Bits { .. } | Found::Part(_), _) => false,
        (a, b) => a == b,
    };
    let same = |f: &Finding| (f.fault, f.expected, f.lasting);
    found && same(run) == same(next) && run.lba + run.blocks == next.lba
}
