//! Which blocks the jobs work on, and in what order.

use std::ops::Range;

use lunet_block::{Random, mix};

use crate::front::{Error, Geometry};
use crate::workload::{Order, Workload};

/// The parts of the volume that one job works in, in logical blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    ranges: Vec<Range<u64>>,
    total: u64,
}

impl Parts {
    fn new(ranges: Vec<Range<u64>>) -> Self {
        let total = ranges.iter().map(|range| range.end - range.start).sum();
        Self { ranges, total }
    }

    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Logical blocks in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The range that holds a block.
    pub fn around(&self, lba: u64) -> Option<&Range<u64>> {
        self.ranges.iter().find(|range| range.contains(&lba))
    }

    /// How many blocks of the parts lie in front of this one.
    pub fn index(&self, lba: u64) -> Option<u64> {
        let mut before = 0;
        for range in &self.ranges {
            if range.contains(&lba) {
                return Some(before + lba - range.start);
            }
            before += range.end - range.start;
        }
        None
    }
}

/// The division of the volume.
pub(crate) struct Layout {
    /// For each job.
    pub jobs: Vec<Parts>,
}

impl Layout {
    pub fn new(workload: &Workload, geometry: &Geometry) -> Result<Self, Error> {
        let size = u64::from(geometry.block_size);
        let largest = u64::from(workload.largest()) / size;
        let jobs = u64::from(workload.jobs);
        let ranges = regions(workload, geometry)?;
        let verify = workload.verify.is_some();
        // A part that is checked has one writer.
        let slices = if verify { jobs } else { 1 };
        let mut parts = Vec::new();
        for job in 0..jobs {
            let slice = |range: &Range<u64>| {
                let each = (range.end - range.start) / slices / largest * largest;
                match verify {
                    true => range.start + job * each..range.start + (job + 1) * each,
                    false => range.clone(),
                }
            };
            let own: Vec<Range<u64>> =
                ranges.iter().map(slice).filter(|r| r.end - r.start >= largest).collect();
            if own.is_empty() {
                return Err(Error::Plan(format!(
                    "there is no room for a block of {} bytes in what each of {jobs} jobs may \
                     use: choose larger regions, smaller blocks or fewer jobs",
                    workload.largest()
                )));
            }
            parts.push(Parts::new(own));
        }
        Ok(Self { jobs: parts })
    }
}

/// The regions in logical blocks.
fn regions(workload: &Workload, geometry: &Geometry) -> Result<Vec<Range<u64>>, Error> {
    let size = u64::from(geometry.block_size);
    if workload.regions.is_empty() {
        let whole = 0..geometry.blocks;
        return Ok(Vec::from([whole]));
    }
    let mut ranges = Vec::new();
    for region in &workload.regions {
        if region.end > geometry.bytes() || region.start >= region.end {
            return Err(Error::Plan(format!(
                "the region {} to {} is empty or not on the volume, which has {} bytes",
                region.start,
                region.end,
                geometry.bytes()
            )));
        }
        ranges.push(region.start.div_ceil(size)..region.end / size);
    }
    let mut sorted: Vec<_> = ranges.clone();
    sorted.sort_by_key(|range| range.start);
    if sorted.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(Error::Plan("regions overlap: make them apart".into()));
    }
    Ok(ranges)
}

/// What kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The next operation, in logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub direction: Direction,
    pub lba: u64,
    pub blocks: u32,
}

/// Chooses the operations of one job.
#[derive(Clone, Debug)]
pub(crate) struct Picker {
    random: Random,
    parts: Parts,
    /// Logical blocks, with the sum of the weights up to here.
    blocks: Vec<(u32, u64)>,
    reads_percent: u64,
    order: Order,
    /// Sequential: the part and the next block.
    part: usize,
    next: u64,
}

impl Picker {
    pub fn new(workload: &Workload, block_size: u32, parts: Parts, job: u32) -> Self {
        let mut sum = 0;
        let blocks = workload.blocks.iter().filter(|block| block.weight > 0).map(|block| {
            sum += u64::from(block.weight);
            (block.bytes / block_size, sum)
        });
        let blocks: Vec<_> = blocks.collect();
        let shared = workload.verify.is_none();
        // Sequential jobs that share their parts begin apart.
        let largest = u64::from(workload.largest() / block_size);
        let first = parts.ranges[0].clone();
        let step = (first.end - first.start) / u64::from(workload.jobs) / largest * largest;
        let next = first.start + if shared { step * u64::from(job) } else { 0 };
        Self {
            random: Random::new(mix(workload.seed ^ u64::from(job) << 40)),
            parts,
            blocks,
            reads_percent: workload.reads_percent.into(),
            order: workload.order,
            part: 0,
            next,
        }
    }

    pub fn pick(&mut self) -> Pick {
        let blocks = match self.blocks[..] {
            [(blocks, _)] => blocks,
            ref many => {
                let sum = many.last().map_or(1, |&(_, sum)| sum);
                let at = self.random.below(sum);
                many.iter().find(|&&(_, up_to)| at < up_to).map_or(1, |&(blocks, _)| blocks)
            }
        };
        let direction = match self.reads_percent {
            100 => Direction::Read,
            0 => Direction::Write,
            share if self.random.below(100) < share => Direction::Read,
            _ => Direction::Write,
        };
        let lba = match self.order {
            Order::Random => self.anywhere(blocks.into()),
            Order::Sequential => self.behind(blocks.into()),
        };
        Pick { direction, lba, blocks }
    }

    /// A place in whole blocks of this size, counted from the start of a part.
    fn anywhere(&mut self, blocks: u64) -> u64 {
        let range = match &self.parts.ranges[..] {
            [range] => range,
            many => {
                let mut at = self.random.below(self.parts.total);
                let holds = |range: &&Range<u64>| {
                    let len = range.end - range.start;
                    let found = at < len;
                    at = at.saturating_sub(len);
                    found
                };
                many.iter().find(holds).unwrap_or(&many[0])
            }
        };
        range.start + self.random.below((range.end - range.start) / blocks) * blocks
    }

    fn behind(&mut self, blocks: u64) -> u64 {
        if self.next + blocks > self.parts.ranges[self.part].end {
            self.part = (self.part + 1) % self.parts.ranges.len();
            self.next = self.parts.ranges[self.part].start;
        }
        let lba = self.next;
        self.next += blocks;
        lba
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{BlockSize, Verify};
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        Geometry { blocks: 8000, block_size: 512, max_transfer: Some(1 << 20), read_only: false }
    }

    fn picks(workload: &Workload, job: u32, count: usize) -> Vec<Pick> {
        let layout = Layout::new(workload, &geometry()).expect("a layout");
        let mut picker = Picker::new(workload, 512, layout.jobs[job as usize].clone(), job);
        (0..count).map(|_| picker.pick()).collect()
    }

    #[test]
    fn sequential_goes_round_and_jobs_begin_apart() {
        let workload = Workload { order: Order::Sequential, jobs: 2, ..Workload::new(512 * 1000) };
        let lbas = |job| picks(&workload, job, 10).iter().map(|p| p.lba).collect::<Vec<_>>();
        assert_eq!(lbas(0)[..9], [0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 0]);
        assert_eq!(lbas(1)[..5], [4000, 5000, 6000, 7000, 0]);
    }

    #[test]
    fn the_mix_is_what_was_asked_for() {
        let mut workload = Workload { reads_percent: 70, ..Workload::new(4096) };
        workload.blocks =
            vec![BlockSize { bytes: 4096, weight: 3 }, BlockSize { bytes: 8192, weight: 1 }];
        let picks = picks(&workload, 0, 10_000);
        let reads = picks.iter().filter(|p| p.direction == Direction::Read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
        let small = picks.iter().filter(|p| p.blocks == 8).count();
        assert!((7300..7700).contains(&small), "{small}");
        assert!(picks.iter().all(|p| p.lba % u64::from(p.blocks) == 0));
    }

    #[test]
    fn what_cannot_be_run_is_said() {
        let says =
            |workload: &Workload| workload.check(&geometry()).expect_err("wrong").to_string();
        assert!(says(&Workload::new(1000)).contains("whole logical blocks"));
        assert!(says(&Workload::new(2 << 20)).contains("in one command"));
        assert!(says(&Workload { reads_percent: 101, ..Workload::new(512) }).contains("101 %"));
        assert!(says(&Workload { depth: 0, ..Workload::new(512) }).contains("depth 0"));
        assert!(says(&Workload { runtime: None, ..Workload::new(512) }).contains("no end"));
        let far = Workload::new(512).within(0..8000 * 512 + 1);
        assert!(says(&far).contains("not on the volume"));
        let twice = Workload { regions: vec![0..4096, 512..8192], ..Workload::new(512) };
        assert!(says(&twice).contains("overlap"));
        let verify = Some(Verify::default());
        let many = Workload { jobs: 100, verify, ..Workload::new(100 * 512) };
        assert!(says(&many).contains("no room"));
        let sealed = Geometry { read_only: true, ..geometry() };
        let error = Workload { reads_percent: 0, ..Workload::new(512) }.check(&sealed);
        assert!(error.expect_err("read-only").to_string().contains("takes no writes"));
        assert!(Workload::new(4096).check(&geometry()).is_ok());
    }

    proptest! {
        #[test]
        fn picks_stay_in_the_job_s_parts(
            seed: u64, jobs in 1u32..5, job in 0u32..5, sequential: bool, verify: bool,
            cut in 100u64..3000,
        ) {
            let job = job % jobs;
            let workload = Workload {
                order: if sequential { Order::Sequential } else { Order::Random },
                regions: vec![512 * 10..512 * (10 + cut), 512 * 4000..512 * 8000],
                blocks: vec![
                    BlockSize { bytes: 512, weight: 1 }, BlockSize { bytes: 512 * 9, weight: 1 },
                ],
                verify: verify.then(Verify::default),
                seed, jobs, ..Workload::new(512)
            };
            let layout = Layout::new(&workload, &geometry()).expect("a layout");
            let own = layout.jobs[job as usize].clone();
            for pick in picks(&workload, job, 500) {
                let range = own.around(pick.lba).expect("in the parts");
                prop_assert!(pick.lba + u64::from(pick.blocks) <= range.end);
                prop_assert!(own.index(pick.lba).expect("in the parts") < own.total());
                let others = layout.jobs.iter().enumerate().filter(|(n, _)| *n != job as usize);
                for (_, other) in others.filter(|_| verify) {
                    prop_assert!(other.around(pick.lba).is_none(), "another job's");
                }
            }
        }
    }
}
