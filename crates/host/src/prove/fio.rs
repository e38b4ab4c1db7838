//! Runs fio.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use std::{fs, io::Read};

use super::{Bench, ProveError};
use crate::rules::Profile;

/// The file that is made in a folder, and taken away at the end.
const FILE: &str = "lunet-prove.tmp";

/// A load on a file or device.
#[derive(Debug)]
pub struct Fio<'a> {
    file: PathBuf,
    args: Vec<String>,
    made: bool,
    stop: &'a AtomicBool,
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
        let made = kind.is_dir();
        let file = if made { path.join(FILE) } else { path.to_owned() };
        let version = Command::new("fio").arg("--version").stdin(Stdio::null()).output();
        version.map_err(|_| wrong("there is no fio here: install it first".to_owned()))?;
        if made && file.exists() {
            return Err(wrong(format!("{} is there already: remove it", file.display())));
        }
        let fio = Self { args: args(profile, &file, size, seconds, !made), file, made, stop };
        if made {
            fio.lay_out(size)?;
        }
        Ok(fio)
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

    /// Fills the file, so that reads find something.
    fn lay_out(&self, size: u64) -> Result<(), ProveError> {
        let args = [
            "--name=fill".to_owned(),
            format!("--filename={}", self.file.display()),
            format!("--size={size}"),
            "--rw=write".to_owned(),
            "--bs=1M".to_owned(),
            "--end_fsync=1".to_owned(),
            "--refill_buffers".to_owned(),
        ];
        self.fio(&args).map(drop)
    }

    /// Runs it to its end, or until it is to stop.
    fn fio(&self, args: &[String]) -> Result<String, ProveError> {
        let wrong = |what: String| ProveError::Bench(format!("fio: {what}"));
        let mut child = Command::new("fio")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| wrong(error.to_string()))?;
        let out = reader(child.stdout.take());
        let err = reader(child.stderr.take());
        let code = self.wait(&mut child)?;
        let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        match code {
            true => Ok(out),
            false => {
                let line = err.lines().chain(out.lines()).find(|line| !line.trim().is_empty());
                Err(wrong(line.unwrap_or("it failed").trim().to_owned()))
            }
        }
    }

    fn wait(&self, child: &mut Child) -> Result<bool, ProveError> {
        loop {
            match child.try_wait() {
                Ok(Some(status)) if !self.stop.load(Ordering::Relaxed) => {
                    return Ok(status.success());
                }
                Ok(None) if !self.stop.load(Ordering::Relaxed) => {
                    thread::sleep(Duration::from_millis(20));
                }
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(ProveError::Stopped);
                }
            }
        }
    }
}

impl Bench for Fio<'_> {
    fn run(&mut self) -> Result<f64, ProveError> {
        let told = self.fio(&self.args)?;
        rate(&told).ok_or_else(|| ProveError::Bench("fio says no bandwidth".to_owned()))
    }
}

impl Drop for Fio<'_> {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(&self.file);
        }
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_string(&mut text);
        }
        text
    })
}

fn args(profile: Profile, file: &Path, size: u64, seconds: u32, only_reads: bool) -> Vec<String> {
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
    let mut args = vec![
        "--name=prove".to_owned(),
        format!("--filename={}", file.display()),
        format!("--runtime={seconds}"),
        "--output-format=json".to_owned(),
    ];
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

/// Bytes per second, read and written. fio may say something before its JSON.
fn rate(told: &str) -> Option<f64> {
    let json = &told[told.find('{')?..];
    let told: serde_json::Value = serde_json::from_str(json).ok()?;
    let jobs = told["jobs"].as_array()?;
    let of = |job: &serde_json::Value, way: &str| job[way]["bw_bytes"].as_f64();
    let rates = jobs.iter().map(|job| Some(of(job, "read")? + of(job, "write")?));
    rates.sum::<Option<f64>>().filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn rates_are_read_and_write_together() {
        let json =
            "note: x\n{\"jobs\": [{\"read\": {\"bw_bytes\": 70}, \"write\": {\"bw_bytes\": 30}}]}";
        assert_eq!(rate(json), Some(100.0));
        assert_eq!(rate("{\"jobs\": []}"), None);
        assert_eq!(rate("fio: no such file"), None);
    }
}
