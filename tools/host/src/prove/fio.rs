//! Loads of fio, as `lunet bench` runs it. They go through the page cache where the workload does: what is tuned is the way
//! there as well.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use lunet_bench::fio::{FioError, Location, fill, measure, version};

use super::{Bench, ProveError};
use crate::rules::Profile;

/// The file that is made in a folder, and taken away at the end.
const FILE: &str = "lunet-prove.tmp";

/// A load on a file or device.
#[derive(Debug)]
pub struct Fio<'a> {
    args: Vec<String>,
    seconds: f64,
    stop: &'a AtomicBool,
    /// Takes the file away, if one was made.
    _location: Location,
}

impl<'a> Fio<'a> {
    /// A load of this kind. What is there is only read; a file of `size` bytes to be read and
    /// written is made in a folder. A run takes `seconds`.
    ///
    /// # Errors
    /// There is no such path, or no fio.
    pub fn new(
        profile: Profile,
        path: &Path,
        size: u64,
        seconds: u32,
        stop: &'a AtomicBool,
    ) -> Result<Self, ProveError> {
        let wrong = |what: String| ProveError::Bench(what);
        let kind = fs::metadata(path)
            .map_err(|error| wrong(format!("{}: {error}", path.display())))?
            .file_type();
        version()?;
        let file = if kind.is_dir() { path.join(FILE) } else { path.to_owned() };
        if kind.is_dir() && file.exists() {
            return Err(wrong(format!("{} already exists: remove it", file.display())));
        }
        let location = Location::new(&file)?;
        if location.made() {
            fill(&location, size, stop)?;
        }
        let args = args(profile, &location, size, seconds);
        Ok(Self { args, seconds: seconds.into(), stop, _location: location })
    }

    /// What it does, in words.
    pub fn words(profile: Profile, only_reads: bool) -> &'static str {
        match (profile, only_reads) {
            (Profile::Throughput, _) => "sequential buffered reads of 128 KiB",
            (Profile::Latency, true) => "random direct reads of 4 KiB, one at a time",
            (Profile::Latency, false) => "random writes of 4 KiB, each stable before the next",
            (Profile::Mixed, true) => "random direct reads of 16 KiB, 16 at a time",
            (Profile::Mixed, false) => "random direct I/O of 16 KiB, 7 of 10 reads, 16 at a time",
        }
    }
}

impl Bench for Fio<'_> {
    fn run(&mut self) -> Result<f64, ProveError> {
        let run = measure(&self.args, self.seconds, self.stop)?;
        Ok(run.mib_per_s() * f64::from(1 << 20))
    }
}

impl From<FioError> for ProveError {
    fn from(error: FioError) -> Self {
        match error {
            FioError::Stopped => Self::Stopped,
            error => Self::Bench(error.to_string()),
        }
    }
}

fn args(profile: Profile, location: &Location, size: u64, seconds: u32) -> Vec<String> {
    let only_reads = !location.made();
    let load: &[&str] = match (profile, only_reads) {
        (Profile::Throughput, _) => {
            &["--rw=read", "--bs=128k", "--ioengine=psync", "--invalidate=1"]
        }
        (Profile::Latency, true) => &["--rw=randread", "--bs=4k", "--ioengine=psync", "--direct=1"],
        (Profile::Latency, false) => {
            &["--rw=randwrite", "--bs=4k", "--ioengine=psync", "--fdatasync=1"]
        }
        (Profile::Mixed, true) => {
            &["--rw=randread", "--bs=16k", "--ioengine=libaio", "--iodepth=16", "--direct=1"]
        }
        (Profile::Mixed, false) => &[
            "--rw=randrw",
            "--rwmixread=70",
            "--bs=16k",
            "--ioengine=libaio",
            "--iodepth=16",
            "--direct=1",
        ],
    };
    let mut args =
        vec!["--name=prove".to_owned(), location.argument(), format!("--runtime={seconds}")];
    // What was read once is in the page cache: sequential reads end where the file does.
    if profile != Profile::Throughput {
        args.push("--time_based".to_owned());
    }
    args.extend(load.iter().map(|&arg| arg.to_owned()));
    match only_reads {
        true => args.push("--readonly".to_owned()),
        false => args.push(format!("--size={size}")),
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a disk: in memory there is no direct I/O on older kernels.
    fn scratch() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("prove").tempdir_in("/var/tmp").expect("a directory")
    }

    #[test]
    fn loads_run_in_a_folder_and_leave_nothing() {
        let (folder, stop) = (scratch(), AtomicBool::new(false));
        for profile in [Profile::Throughput, Profile::Latency, Profile::Mixed] {
            let mut fio =
                Fio::new(profile, folder.path(), 4 << 20, 1, &stop).expect("there is room");
            assert!(fio.run().expect("it runs") > 0.0);
            let told = Fio::new(profile, folder.path(), 4 << 20, 1, &stop).map(drop);
            assert!(matches!(told, Err(ProveError::Bench(why)) if why.contains("already exists")));
            drop(fio);
            assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
        }
    }

    #[test]
    fn what_is_there_is_only_read_and_a_stopped_run_says_so() {
        let (folder, stop) = (scratch(), AtomicBool::new(false));
        let path = folder.path().join("a: file");
        fs::write(&path, vec![0x5a; 1 << 20]).expect("there is room");
        for profile in [Profile::Latency, Profile::Mixed] {
            let mut fio = Fio::new(profile, &path, 4 << 20, 1, &stop).expect("it is there");
            assert!(fio.run().expect("it runs") > 0.0);
        }
        assert!(fs::read(&path).expect("it is there").iter().all(|byte| *byte == 0x5a));
        let mut fio = Fio::new(Profile::Mixed, &path, 4 << 20, 60, &stop).expect("it is there");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(fio.run(), Err(ProveError::Stopped)));
        drop(fio);
        assert!(path.exists());
    }
}
