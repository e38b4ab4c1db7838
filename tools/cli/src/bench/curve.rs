//! How throughput and costs change with the number of shards: `lunet bench scale`.
//!
//! A server of its own for each number of shards, a volume in memory, the same load by as many sessions each time: what differs is
//! the number of shards. Everything is on one machine and over loopback.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use lunet_api::Stats;
use lunet_client::iscsi::{Initiator, Target};
use lunet_client::{Outcome, Plan, Workload};
use lunet_os::cpus::{self, Cpus};
use lunet_os::program;
use rustix::process::{Pid, Signal, kill_process};

use super::Refused;
use lunet_cli::control::Client;

const TARGET: &str = "iqn.2026-11.local.lunet:bench-scale";

/// What the volume holds, all of which is written before it is read.
const VOLUME: u64 = 256 << 20;
const BLOCK: u32 = 4096;

/// Sessions for each shard at the largest number of them. All numbers get as many: a shard's part of the work changes, and
/// not the work.
const SESSIONS: usize = 4;

/// How long a server may take to begin.
const READY: Duration = Duration::from_secs(60);

/// How long it may take to end.
const END: Duration = Duration::from_secs(30);

/// A number of shards in words.
pub fn shards_in_words(shards: usize) -> String {
    format!("{shards} shard{}", if shards == 1 { "" } else { "s" })
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of shards, in this order.
    pub shards: Vec<usize>,
    /// How long each is measured.
    pub runtime: Duration,
    /// Reads of each session at a time.
    pub depth: u32,
}

/// Up to half of the processors, in powers of two: the other half is the load generator's. Where that is less than eight, up to
/// eight, for the sake of what is counted.
pub fn usual(processors: usize) -> Vec<usize> {
    let most = (processors / 2).max(8);
    let mut all: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n <= most).collect();
    if all.last() != Some(&most) {
        all.push(most);
    }
    all
}

/// What was found with one number of shards.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    shards: usize,
    seconds: f64,
    reads: u64,
    /// CPU time of the server's shards.
    cpu_us: f64,
    /// Calls that wait for events.
    waits: u64,
    /// Messages between shards and other threads.
    messages: u64,
    /// The shard with the fewest reads, of the mean: 1 is an even share.
    least: f64,
    misses: Option<u64>,
}

/// The curve.
#[derive(Debug)]
pub struct Report {
    options: Options,
    processors: usize,
    sessions: usize,
    points: Vec<Point>,
    /// Why cache misses were not counted.
    no_misses: Option<String>,
}

/// Measures all of them.
///
/// # Errors
/// A server does not start, or the load cannot be made.
pub fn run(
    options: Options,
    stop: &AtomicBool,
    told: &mut dyn FnMut(usize, usize),
) -> Result<Report, Refused> {
    let allowed = Cpus::allowed().map_err(|error| Refused(format!("processors: {error}")))?;
    let processors: Vec<usize> = allowed.numbers().to_vec();
    let most = options.shards.iter().max().copied().unwrap_or(1);
    let sessions = most * SESSIONS;
    let mut report = Report {
        processors: processors.len(),
        sessions,
        points: Vec::new(),
        no_misses: None,
        options,
    };
    for (at, shards) in report.options.shards.clone().into_iter().enumerate() {
        told(at, report.options.shards.len());
        let (own, load) = split(&processors, shards);
        let server = Server::start(shards, own)
            .map_err(|error| Refused(format!("{}: {error}", shards_in_words(shards))))?;
        let (point, no_misses) = report.point(&server, load, stop)?;
        report.points.push(point);
        report.no_misses = no_misses;
        drop(server);
    }
    Ok(report)
}

/// The processors of the server and those of the load generator, if there are enough for both.
fn split(processors: &[usize], shards: usize) -> (&[usize], &[usize]) {
    match processors.split_at_checked(shards) {
        Some((own, rest)) if rest.len() >= shards => (own, rest),
        _ => (&[], &[]),
    }
}

impl Report {
    fn point(
        &self,
        server: &Server,
        processors: &[usize],
        stop: &AtomicBool,
    ) -> Result<(Point, Option<String>), Refused> {
        let refused =
            |error: String| Refused(format!("{}: {error}", shards_in_words(server.shards)));
        let fill = Workload {
            reads_percent: 0,
            order: lunet_client::Order::Sequential,
            runtime: None,
            size: Some(VOLUME),
            ..Workload::new(256 << 10)
        };
        self.load(server, fill, processors, stop).map_err(refused)?;
        let runtime = self.options.runtime;
        let reads = |time| Workload {
            depth: self.options.depth,
            jobs: u32::try_from(self.sessions).unwrap_or(u32::MAX),
            runtime: Some(time),
            ..Workload::new(BLOCK)
        };
        // So that nothing is done for the first time.
        self.load(server, reads(runtime / 4), processors, stop).map_err(refused)?;
        let counting = Misses::start(server.pid(), runtime);
        let before = server.stats().map_err(refused)?;
        let outcome = self.load(server, reads(runtime), processors, stop).map_err(refused)?;
        let after = server.stats().map_err(refused)?;
        let misses = counting.and_then(Misses::count);
        let point =
            Point::of(server.shards, &outcome, (&before, &after), misses.as_ref().ok().copied());
        Ok((point, misses.err()))
    }

    fn load(
        &self,
        server: &Server,
        workload: Workload,
        processors: &[usize],
        stop: &AtomicBool,
    ) -> Result<Outcome, String> {
        let target = Target::parse(&server.url).map_err(|error| error.to_string())?;
        let plan = Plan {
            processors: processors.to_vec(),
            threads: NonZeroUsize::new(processors.len()).map(NonZeroUsize::get),
            ..Plan::new(Initiator::from(target), workload)
        };
        let outcome = lunet_client::run(&plan, stop, |_| {}).map_err(|error| error.to_string())?;
        match outcome.failures()[..] {
            _ if outcome.interrupted => Err("it was interrupted".to_owned()),
            [] => Ok(outcome),
            ref all => Err(all.join("; ")),
        }
    }

    /// As Markdown.
    pub fn page(&self) -> String {
        let Self { options, processors, sessions, points, no_misses } = self;
        let mut page = format!(
            "# Throughput by the number of shards\n\n\
             lunet {} over loopback, on {processors} processors, load generator and server on the same machine: no network card takes part. \
             Random reads of 4 KiB of a volume in memory ({} MiB), {sessions} sessions with {} reads each at a time whatever the number of \
             shards, {} s each.\n\n\
             | shards | reads/s | reads/s per core of CPU time | CPU per read | messages per 1,000 reads | waits per 1,000 reads | cache misses per read | least busy shard |\n\
             |---|---|---|---|---|---|---|---|\n",
            env!("CARGO_PKG_VERSION"),
            VOLUME >> 20,
            options.depth,
            options.runtime.as_secs_f64(),
        );
        for point in points {
            let misses = point.misses.map(|misses| misses as f64 / point.reads.max(1) as f64);
            let _ = writeln!(
                page,
                "| {} | {:.0} | {:.0} | {:.2} us | {:.3} | {:.1} | {} | {:.2} of the mean |",
                point.shards,
                point.reads as f64 / point.seconds,
                point.per_core(),
                point.cpu(),
                point.per_thousand(point.messages),
                point.per_thousand(point.waits),
                misses.map_or_else(|| "-".to_owned(), |misses| format!("{misses:.1}")),
                point.least,
            );
        }
        page.push_str(&self.readings());
        if let Some(why) = no_misses {
            let _ = writeln!(page, "- Cache misses are not available here: {why}.");
        }
        page
    }

    /// What the table says, and what it does not.
    fn readings(&self) -> String {
        let mut text = String::from("\n");
        if let (Some(first), Some(last)) = (self.points.first(), self.points.last()) {
            let _ = writeln!(
                text,
                "- CPU time of a read with {} shards, by that with {}: {:.2}. Messages between shards: {:.3} per 1,000 reads with {}, {:.3} with {}.",
                last.shards,
                first.shards,
                last.cpu() / first.cpu(),
                last.per_thousand(last.messages),
                last.shards,
                first.per_thousand(first.messages),
                first.shards,
            );
        }
        let crowded: Vec<String> = self
            .points
            .iter()
            .filter(|point| point.shards * 2 > self.processors)
            .map(|point| point.shards.to_string())
            .collect();
        if !crowded.is_empty() {
            let _ = writeln!(
                text,
                "- With {} shards there is no processor for each of them beside the load generator: their reads/s say nothing, what is counted per read does.",
                crowded.join(", ")
            );
        }
        text
    }
}

impl Point {
    fn of(
        shards: usize,
        outcome: &Outcome,
        (before, after): (&Stats, &Stats),
        misses: Option<u64>,
    ) -> Self {
        let grown = |of: fn(&lunet_api::ShardLoad) -> u64| {
            let sum = |stats: &Stats| stats.loads.iter().map(of).sum::<u64>();
            sum(after).saturating_sub(sum(before))
        };
        let of_shard = |stats: &Stats, shard: u64| {
            let all = stats.volumes.iter().flat_map(|volume| &volume.time.shards);
            all.filter(|one| one.shard == shard).map(|one| one.operations).sum::<u64>()
        };
        let each: Vec<u64> = (0..shards as u64)
            .map(|shard| of_shard(after, shard).saturating_sub(of_shard(before, shard)))
            .collect();
        let mean = each.iter().sum::<u64>() as f64 / shards as f64;
        Self {
            shards,
            seconds: outcome.elapsed.as_secs_f64(),
            reads: outcome.work.operations(),
            cpu_us: grown(|load| load.cpu_us) as f64,
            waits: grown(|load| load.waits),
            messages: grown(|load| load.messages),
            least: each.iter().min().copied().unwrap_or(0) as f64 / mean.max(1.0),
            misses,
        }
    }

    /// CPU time of a read, in us.
    fn cpu(&self) -> f64 {
        self.cpu_us / self.reads.max(1) as f64
    }

    /// Reads per second of CPU time.
    fn per_core(&self) -> f64 {
        1e6 / self.cpu().max(1e-9)
    }

    fn per_thousand(&self, count: u64) -> f64 {
        count as f64 * 1e3 / self.reads.max(1) as f64
    }
}

/// A server that was started for one number of shards. Ended when dropped.
struct Server {
    child: Child,
    folder: PathBuf,
    url: String,
    shards: usize,
}

impl Server {
    fn start(shards: usize, processors: &[usize]) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("lunet-bench-scale-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&folder).map_err(|error| {
            let text =
                format!("cannot make {}: {error} (TMPDIR names its place)", folder.display());
            io::Error::new(error.kind(), text)
        })?;
        let mut server = match Self::spawn(&folder, shards, processors) {
            Ok(child) => Self { child, folder, url: String::new(), shards },
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                return Err(error);
            }
        };
        server.url = server.ready()?;
        Ok(server)
    }

    fn spawn(folder: &Path, shards: usize, processors: &[usize]) -> io::Result<Child> {
        let config = folder.join("lunet.toml");
        fs::write(
            &config,
            format!(
                "[server]\nlog-level = \"warn\"\nshards = {shards}\nmax-sessions = 65535\n\
                 [[portal]]\naddress = \"127.0.0.1:0\"\ntransport = [\"tcp\"]\n\
                 [volumes.memory]\nbackend = \"memory\"\nsize = {VOLUME}\n\
                 [[target]]\nname = \"{TARGET}\"\nluns = [\"memory\"]\n"
            ),
        )?;
        let mut command = Command::new(server_program()?);
        command.arg("serve").arg("--data").arg(folder).arg("--config").arg(&config);
        command.args(["--listen-control", "none"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        cpus::on(processors, || command.spawn())
    }

    /// Waits until it serves; the volume's address.
    fn ready(&mut self) -> io::Result<String> {
        let out = self.child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        let (says, heard) = channel();
        // Reads to the end: a server whose output nobody takes would wait one day.
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let url = line.split_whitespace().find(|word| word.starts_with("iscsi://"));
                let _ = url.map(|url| says.send(url.to_owned()));
            }
        });
        heard.recv_timeout(READY).map_err(|error| {
            io::Error::other(match error {
                RecvTimeoutError::Timeout => "the server does not get ready",
                RecvTimeoutError::Disconnected => "the server does not start: see `lunet serve`",
            })
        })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn stats(&self) -> Result<Stats, String> {
        Client::new(self.folder.join("lunet.sock")).stats().map_err(|error| error.to_string())
    }
}

/// The program of the server, of this installation.
fn server_program() -> io::Result<PathBuf> {
    program::find("lunet").ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "the program lunet is missing: install the package lunet again",
        )
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + END;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// perf(1), which counts the cache misses of the server.
struct Misses(Child);

impl Misses {
    fn start(pid: u32, time: Duration) -> Result<Self, String> {
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", "cache-misses", "-p", &pid.to_string()]);
        command.args(["--", "sleep", &time.as_secs_f64().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map(Self).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "perf is not installed".to_owned(),
            _ => format!("perf does not start: {error}"),
        })
    }

    fn count(self) -> Result<u64, String> {
        let told = self.0.wait_with_output().map_err(|error| error.to_string())?;
        counted(&String::from_utf8_lossy(&told.stderr))
    }
}

/// What `perf stat -x ,` says: `VALUE,UNIT,EVENT,...`, or a word in place of the value.
fn counted(text: &str) -> Result<u64, String> {
    let line = text.lines().find(|line| line.contains("cache-misses"));
    let value = line.and_then(|line| line.split(',').next()).unwrap_or_default();
    value.trim().parse().map_err(|_| match value.trim() {
        "<not supported>" => {
            "this processor, or the virtual machine, has no counter for them".to_owned()
        }
        "<not counted>" => "the counter was not running".to_owned(),
        _ => format!("perf says \"{}\"", text.lines().next().unwrap_or_default().trim()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(shards: usize, reads: u64, cpu_us: f64, messages: u64) -> Point {
        Point { shards, seconds: 2.0, reads, cpu_us, waits: 10, messages, least: 0.9, misses: None }
    }

    fn report(processors: usize, no_misses: Option<&str>) -> Report {
        Report {
            options: Options { shards: vec![1, 2], runtime: Duration::from_secs(2), depth: 8 },
            processors,
            sessions: 8,
            points: vec![point(1, 1_000_000, 1_000_000.0, 0), point(2, 1_500_000, 1_650_000.0, 3)],
            no_misses: no_misses.map(str::to_owned),
        }
    }

    #[test]
    fn numbers_of_shards_double_up_to_half_of_the_processors() {
        assert_eq!(usual(2), [1, 2, 4, 8]);
        assert_eq!(usual(24), [1, 2, 4, 8, 12]);
        assert_eq!(usual(128), [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn server_and_load_share_no_processor_where_there_are_enough() {
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(split(&all, 2), (&all[..2], &all[2..]));
        assert_eq!(split(&all, 4), (&all[..4], &all[4..]));
        let nobody: (&[usize], &[usize]) = (&[], &[]);
        assert_eq!((split(&all, 5), split(&all, 9)), (nobody, nobody));
    }

    #[test]
    fn the_page_says_what_was_counted_and_what_says_nothing() {
        let page = report(8, None).page();
        assert!(
            page.contains(
                "| 1 | 500000 | 1000000 | 1.00 us | 0.000 | 0.0 | - | 0.90 of the mean |"
            ),
            "{page}"
        );
        assert!(page.contains("by that with 1: 1.10") && page.contains("loopback"), "{page}");
        assert!(!page.contains("say nothing") && !page.contains("not available"), "{page}");
        let page = report(2, Some("perf is not installed")).page();
        assert!(page.contains("With 2 shards there is no processor"), "{page}");
        assert!(page.contains("not available here: perf is not installed."), "{page}");
    }

    #[test]
    fn what_perf_says_is_read() {
        assert_eq!(counted("123456,,cache-misses:u,1000,100.00,,\n"), Ok(123_456));
        let why = |text: &str| counted(text).expect_err("no number");
        assert!(why("<not supported>,,cache-misses,0,100.00,,\n").contains("virtual machine"));
        assert!(why("Error:\nAccess to performance monitoring is limited\n").contains("Error:"));
    }
}
