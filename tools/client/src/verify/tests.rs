use super::*;
use crate::Workload;
use crate::front::Geometry;
use crate::layout::Layout;

const KEY: u64 = 0x1234_5678_9ABC_DEF0;

/// A job with 1000 blocks of 512 bytes, a disk with faults, and writes of 8 blocks.
struct Bench {
    ledger: Ledger,
    disk: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let (blocks, block_size) = (1000, 512);
        let geometry = Geometry { blocks, block_size, max_transfer: None, read_only: false };
        let workload = Workload { verify: Some(Default::default()), ..Workload::new(4096) };
        let parts = Layout::new(&workload, &geometry).expect("a layout").jobs.remove(0);
        Self { ledger: Ledger::new(parts, KEY, 512, 8), disk: vec![0; 1000 * 512] }
    }

    fn range(lba: u64, blocks: u64) -> std::ops::Range<usize> {
        lba as usize * 512..(lba + blocks) as usize * 512
    }

    /// Writes, and has it acknowledged; the disk does with it what `how` does.
    fn write(&mut self, lba: u64, blocks: u32, how: impl Fn(&mut [u8], &[u8])) -> u32 {
        let generation = self.ledger.next_generation().expect("there are many");
        let mut bytes = vec![0; blocks as usize * 512];
        self.ledger.fill(&mut bytes, lba, generation);
        how(&mut self.disk[Self::range(lba, blocks.into())], &bytes);
        self.ledger.written(lba, blocks, Some(generation));
        generation
    }

    fn good(&mut self, lba: u64, blocks: u32) -> u32 {
        self.write(lba, blocks, <[u8]>::copy_from_slice)
    }

    /// Reads, and looks again at what is wrong; what is found.
    fn read(&mut self, lba: u64, blocks: u32) -> Vec<Finding> {
        let first = self.disk[Self::range(lba, blocks.into())].to_vec();
        self.answer(lba, blocks, &first)
    }

    /// A read was answered with these bytes.
    fn answer(&mut self, lba: u64, blocks: u32, bytes: &[u8]) -> Vec<Finding> {
        if self.ledger.is_right(lba, bytes) {
            return Vec::new();
        }
        let first = self.ledger.look(lba, bytes);
        let extent = self.ledger.extent(lba, blocks);
        let again = &self.disk[Self::range(extent.start, extent.end - extent.start)];
        let second = self.ledger.look(extent.start, again);
        self.ledger.judge(&first, Some(&second), Duration::ZERO);
        std::mem::take(&mut self.ledger.outcome.findings)
    }
}

fn names(findings: &[Finding]) -> Vec<(&'static str, u64, u64)> {
    findings.iter().map(|f| (f.fault.name(), f.lba, f.blocks)).collect()
}

#[test]
fn a_good_disk_has_no_faults() {
    let mut bench = Bench::new();
    assert_eq!(bench.read(0, 1000), [], "nothing is known yet");
    assert_eq!(bench.ledger.outcome.checked, 0);
    bench.good(0, 64);
    bench.good(16, 8);
    assert_eq!(bench.read(0, 80), []);
    assert_eq!(bench.ledger.outcome.checked, 64);
}

#[test]
fn a_lost_write_is_told_once() {
    let mut bench = Bench::new();
    bench.good(0, 24);
    let lost = bench.write(8, 16, |_, _| {});
    let findings = bench.read(0, 16);
    // All of the write is looked at, though only its first half was read.
    assert_eq!(names(&findings), [("LOST", 8, 16)]);
    assert_eq!((findings[0].expected, findings[0].found), (lost, Found::Generation(1)));
    assert_eq!(bench.read(0, 24), [], "it is said once");
    bench.write(100 * 8, 8, |_, _| {});
    let text = bench.read(800, 8)[0].to_string();
    assert_eq!(text, "LOST LBA 800 to 807 (8 blocks): write 3 should be there; found zeroes");
}

#[test]
fn a_lost_write_that_two_reads_find_at_once_is_told_once() {
    let mut bench = Bench::new();
    bench.good(0, 8);
    bench.write(0, 8, |_, _| {});
    let bytes = bench.disk[..4096].to_vec();
    let look = |bench: &Bench| bench.ledger.look(0, &bytes);
    let (one, other) = (look(&bench), look(&bench));
    for (first, told) in [(one, 8), (other, 8)] {
        let second = look(&bench);
        bench.ledger.judge(&first, Some(&second), Duration::ZERO);
        assert_eq!(bench.ledger.outcome.faults, [told, 0, 0, 0, 0]);
    }
}

#[test]
fn a_torn_write_is_told_from_a_lost_one() {
    let mut bench = Bench::new();
    bench.good(0, 64);
    bench.write(0, 32, |disk, data| disk[..10 * 512].copy_from_slice(&data[..10 * 512]));
    // Only what is missing is read; the second look shows the rest.
    assert_eq!(names(&bench.read(16, 8)), [("TORN", 10, 22)]);
    bench.write(40, 8, |disk, data| disk[..2000].copy_from_slice(&data[..2000]));
    let findings = bench.read(40, 8);
    assert_eq!(names(&findings), [("TORN", 43, 1), ("TORN", 44, 4)]);
    assert_eq!(findings[0].found, Found::Part(2000 - 3 * 512));
}

#[test]
fn a_stale_answer_is_told_from_a_lost_write() {
    let mut bench = Bench::new();
    bench.good(0, 8);
    let before = bench.disk[..4096].to_vec();
    bench.good(0, 8);
    let findings = bench.answer(0, 8, &before);
    assert_eq!(names(&findings), [("STALE", 0, 8)]);
    assert!(!findings[0].lasting && findings[0].to_string().contains("second read was right"));
    assert_eq!(names(&bench.answer(0, 8, &before)), [("STALE", 0, 8)], "each time");
}

#[test]
fn a_misplaced_write_is_found_at_both_ends() {
    let mut bench = Bench::new();
    bench.good(0, 16);
    let write = bench.write(0, 8, |_, _| {});
    let mut data = vec![0; 4096];
    bench.ledger.fill(&mut data, 0, write);
    bench.disk[Bench::range(504, 8)].copy_from_slice(&data);
    assert_eq!(names(&bench.read(0, 8)), [("LOST", 0, 8)]);
    let findings = bench.read(496, 24);
    assert_eq!(names(&findings), [("MISPLACED", 504, 8)], "though nothing was written there");
    assert_eq!(findings[0].found, Found::OtherBlock { lba: 0, generation: write });
}

#[test]
fn a_flipped_bit_is_found_where_it_is() {
    let mut bench = Bench::new();
    bench.good(0, 8);
    bench.disk[3 * 512 + 77] ^= 4;
    let findings = bench.read(0, 8);
    assert_eq!(names(&findings), [("FLIPPED", 3, 1)]);
    assert_eq!(findings[0].found, Found::Bits { count: 1, first_byte: 77 });
    // In the stamp itself.
    bench.good(8, 8);
    bench.disk[8 * 512 + 9] ^= 1;
    assert_eq!(names(&bench.read(8, 8)), [("FLIPPED", 8, 1)]);
}

#[test]
fn what_a_failed_write_covers_is_not_judged() {
    let mut bench = Bench::new();
    bench.good(0, 16);
    bench.ledger.written(0, 8, None);
    bench.disk[..4096].fill(9);
    assert_eq!(bench.read(0, 16), []);
    bench.good(0, 8);
    bench.disk[..4096].fill(9);
    assert_eq!(names(&bench.read(0, 16)), [("LOST", 0, 8)]);
}

#[test]
fn reading_back_covers_what_is_known_and_nothing_else() {
    let mut bench = Bench::new();
    bench.good(0, 40);
    bench.good(80, 8);
    bench.good(992, 8);
    let mut checks = Vec::new();
    while let Some(check) = bench.ledger.next_check(24) {
        checks.push(check);
    }
    assert_eq!(checks, [(0, 24), (24, 16), (80, 8), (992, 8)]);
    assert!((bench.ledger.checked_part() - 1.0).abs() < 1e-9);
}
