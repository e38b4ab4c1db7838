//! Each target on the inputs that are kept, on the seeds, and on thousands of changed ones. Nothing guides it to new branches, as
//! `make fuzz` is guided; for that it needs no build of its own.
//!
//! An input that makes a target panic is stored in `fuzz/artifacts/TARGET/`. `LUNET_FUZZ_SEED` repeats a run.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use lunet_fuzz::targets::ALL;

/// The longest input, in bytes.
const LONGEST: usize = 16_384;

/// Bytes that mean something more often than others.
const SPECIAL: &[u8] = &[0, 1, 0x7f, 0x80, 0xff, b'=', b',', b'"', b'\n', b' ', b'0', b'9'];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A range within so many bytes, mostly a short one.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        let most = if self.below(4) == 0 { len } else { 8 };
        start..len.min(start + 1 + self.below(most))
    }
}

fn change(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match (random.below(7), input.get_mut(at)) {
            (0, Some(byte)) => *byte ^= 1 << random.below(8),
            (1, Some(byte)) => *byte = SPECIAL[random.below(SPECIAL.len())],
            (2, Some(byte)) => *byte = random.next() as u8,
            (3, _) => drop(input.drain(random.range(input.len()))),
            (4, _) => {
                let piece = input[random.range(input.len())].to_vec();
                input.splice(at..at, piece);
            }
            (5, _) => {
                let other = &others[random.below(others.len())];
                let piece = other[random.range(other.len())].iter().copied();
                let place = random.range(input.len());
                input.splice(place, piece);
            }
            _ => input.insert(at, random.next() as u8),
        }
    }
    input.truncate(LONGEST);
}

fn folder(path: &Path, inputs: &mut Vec<Vec<u8>>) {
    let Ok(files) = fs::read_dir(path) else { return };
    // In an order that a seed can repeat.
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    inputs.extend(files.iter().map(|file| fs::read(file).expect("an input")));
}

/// Seeds, and what long runs have kept.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut inputs = Vec::new();
    folder(&here.join("seeds").join(target), &mut inputs);
    assert!(!inputs.is_empty(), "{target} has no seeds");
    let kept = here.join("kept").join(format!("{target}.tar.gz"));
    if kept.exists() {
        let unpacked = tempfile::tempdir().expect("a folder");
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&kept).arg("-C").arg(unpacked.path());
        assert!(tar.status().expect("tar runs").success(), "{} is no archive", kept.display());
        folder(unpacked.path(), &mut inputs);
    }
    inputs
}

/// Runs one input, and stores it if the target panics.
fn run(target: &str, run: fn(&[u8]), input: &[u8], seed: u64) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(input))) else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target);
    let file = folder.join(format!("{:016x}", RandomState::new().hash_one(input)));
    fs::create_dir_all(&folder).expect("a folder for the input");
    fs::write(&file, input).expect("the input is stored");
    eprintln!("{target} panicked with LUNET_FUZZ_SEED={seed}; its input is in {}", file.display());
    resume_unwind(panic);
}

fn brief(name: &str, changed: usize) {
    let (_, target) = ALL.iter().find(|(target, _)| *target == name).expect("a target");
    let seed = match std::env::var("LUNET_FUZZ_SEED") {
        Ok(seed) => seed.parse().expect("LUNET_FUZZ_SEED is a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    let (inputs, mut random) = (inputs(name), Random(seed));
    for input in &inputs {
        run(name, *target, input, seed);
    }
    for _ in 0..changed {
        let mut input = inputs[random.below(inputs.len())].clone();
        change(&mut input, &inputs, &mut random);
        run(name, *target, &input, seed);
    }
}

macro_rules! targets {
    ($($name:ident: $changed:expr;)*) => {
        $(#[test]
        fn $name() {
            brief(stringify!($name), $changed);
        })*

        #[test]
        fn every_target_is_run() {
            let run = [$(stringify!($name)),*];
            assert_eq!(ALL.map(|(name, _)| name), run);
        }
    };
}

// How many changed inputs: a few seconds of each at the most. The capacity model takes a hundred times longer than a parser.
targets! {
    cdb: 5000;
    config: 5000;
    group: 5000;
    initiator_stream: 5000;
    iser: 5000;
    nvme_auth: 5000;
    nvme_controller: 5000;
    nvme_host: 5000;
    nvme_pdu: 5000;
    nvme_rdma: 5000;
    pdu: 5000;
    target_stream: 5000;
    text: 5000;
    tls: 5000;
    what_if: 200;
}
