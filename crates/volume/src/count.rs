//! What one shard counts of a volume.

use hdrhistogram::Histogram;

/// Kinds of operation that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data comes from the volume.
    Read,
    /// Data goes to the volume.
    Write,
    /// What was written is made stable.
    Flush,
    /// Space is given back.
    Unmap,
    /// All else: the volume's data is not touched.
    Other,
}

const KINDS: usize = 5;

/// One shard's count of one volume.
#[derive(Clone)]
pub struct VolumeCount {
    ops: [u64; KINDS],
    bytes: [u64; KINDS],
    errors: u64,
    copied: u64,
    latency: [Histogram<u64>; 2],
    /// Commands at work; known in a report only.
    in_flight: usize,
}

impl Default for VolumeCount {
    fn default() -> Self {
        // 1 us to a minute with two digits: about 20 KiB each.
        let histogram = || Histogram::new_with_bounds(1, 60_000_000, 2).expect("bounds are valid");
        let latency = [histogram(), histogram()];
        Self { ops: [0; KINDS], bytes: [0; KINDS], errors: 0, copied: 0, latency, in_flight: 0 }
    }
}

impl VolumeCount {
    /// Counts a finished command: bytes moved, and the time from its arrival to its answer.
    pub fn record(&mut self, kind: Kind, bytes: u64, micros: u64, failed: bool) {
        self.ops[kind as usize] += 1;
        self.bytes[kind as usize] += bytes;
        self.errors += u64::from(failed);
        if let Kind::Read | Kind::Write = kind {
            self.latency[kind as usize].saturating_record(micros.max(1));
        }
    }

    /// Counts bytes that were copied here from a volume of this server, or zeroed by a token.
    pub(crate) fn copied(&mut self, bytes: u64) {
        self.copied += bytes;
    }

    /// For a report: the same, with the commands at work.
    pub fn with(&self, in_flight: usize) -> Self {
        Self { in_flight, ..self.clone() }
    }

    /// Adds another shard's count.
    pub fn add(&mut self, other: &Self) {
        for kind in 0..KINDS {
            self.ops[kind] += other.ops[kind];
            self.bytes[kind] += other.bytes[kind];
        }
        self.errors += other.errors;
        self.copied += other.copied;
        self.in_flight += other.in_flight;
        for (sum, part) in self.latency.iter_mut().zip(&other.latency) {
            // Same bounds on both sides: adding cannot fail.
            let _ = sum.add(part);
        }
    }

    /// Commands of a kind that have ended.
    pub fn ops(&self, kind: Kind) -> u64 {
        self.ops[kind as usize]
    }

    /// Bytes that they have moved.
    pub fn bytes(&self, kind: Kind) -> u64 {
        self.bytes[kind as usize]
    }

    /// Commands that have failed.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Bytes that were [copied](Self::copied).
    pub fn copied_bytes(&self) -> u64 {
        self.copied
    }

    /// Commands at work; 0 but in a report.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How long reads or writes have taken, in microseconds. It is not known of other kinds: to ask for those is a
    /// mistake.
    pub fn latency(&self, kind: Kind) -> &Histogram<u64> {
        &self.latency[kind as usize]
    }
}
