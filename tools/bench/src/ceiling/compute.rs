//! Memory and processor.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use crate::model::{Ceiling, CeilingKind, Unit};

/// More than any cache of a core holds.
const BLOCK: usize = 32 << 20;
/// More threads than this do not move more on any machine.
const MOST_THREADS: usize = 32;
/// A large PDU's data: what digests are computed over.
const PDU: usize = 64 << 10;

fn ceiling(kind: CeilingKind, name: &str, bytes_per_second: f64, how: String) -> Ceiling {
    Ceiling {
        kind,
        name: name.to_owned(),
        value: bytes_per_second / f64::from(1 << 20),
        unit: Unit::MibPerS,
        how,
        target: None,
        workload: None,
        outstanding: None,
        latency_us: None,
        generator_busy: None,
    }
}

/// Bytes that all processors together copied for each second, and how many threads did so.
pub fn copies(time: Duration) -> (f64, usize) {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let rate = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| copy(time))).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).sum()
    });
    (rate, threads)
}

/// How much memory all processors copy together. A copy reads and writes each byte.
pub fn memory(time: Duration) -> Ceiling {
    let (rate, threads) = copies(time);
    let how = format!(
        "{threads} threads copied blocks of 32 MiB for {} ms: each byte is read and written once",
        time.as_millis()
    );
    ceiling(CeilingKind::Memory, "memory", rate, how)
}

fn copy(time: Duration) -> f64 {
    let from = vec![1u8; BLOCK];
    let mut to = vec![0u8; BLOCK];
    // The kernel gives the pages at the first touch.
    to.copy_from_slice(&from);
    let (began, mut copied) = (Instant::now(), 0);
    while began.elapsed() < time {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        copied += BLOCK;
    }
    copied as f64 / began.elapsed().as_secs_f64()
}

/// How much one processor checks with CRC32C, by the same code that data digests use.
pub fn crc32c(time: Duration) -> Ceiling {
    let data = vec![0x5au8; PDU];
    let (began, mut checked) = (Instant::now(), 0);
    while began.elapsed() < time {
        black_box(lunet_iscsi::digest::crc32c(black_box(&data)));
        checked += PDU;
    }
    let rate = checked as f64 / began.elapsed().as_secs_f64();
    let how =
        format!("one thread computed CRC32C over blocks of 64 KiB for {} ms", time.as_millis());
    ceiling(CeilingKind::Cpu, "CRC32C on one processor", rate, how)
}
