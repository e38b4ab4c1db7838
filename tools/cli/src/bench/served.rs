//! A LUN or a namespace, by the own initiator or host.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use lunet_bench::fio::shell;
use lunet_bench::model::{self, Pattern, Role, Run, Sync, Workload};
use lunet_bench::runner::Generator;
use lunet_bench::system::{Root, Usage, Watch};
use lunet_client::{BlockSize, Order, Outcome, Rate, Stage};
use lunet_os::cpus::Cpus;

use super::control::Control;
use super::convert;
use super::remote::{Logins, Remote, Unit};

/// How often it is told how far a run is.
const LOOK: Duration = Duration::from_millis(100);
/// What files and LUNs are filled with at once.
const FILL_BLOCK: u64 = 1 << 20;
const FILL_DEPTH: u32 = 8;

type Failed = Box<dyn Error + Send + std::marker::Sync>;

/// Stopped by the user.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

/// The own initiator on a LUN, or the own host on a namespace, with the name that its target has in the results.
#[derive(Clone, Debug)]
pub struct Served<'a> {
    /// Name of the target in the results.
    pub name: String,
    target: Remote,
    unit: Unit,
    /// How it logs in.
    pub login: Logins,
    /// The processors that its threads may use.
    pub cpus: Option<Cpus>,
    /// Servers on this machine.
    pub servers: Vec<i32>,
    /// Where its server tells of it.
    pub control: Option<Control>,
    /// Options of the command line with which the same workloads come about.
    pub options: Vec<String>,
    /// Whether it may be written to: then what is read was written before.
    pub fill: bool,
    filled: u64,
    /// The next run's choices: no two runs make the same ones.
    seed: u64,
    stop: &'a AtomicBool,
}

impl<'a> Served<'a> {
    /// Of a unit that was looked at already.
    pub fn new(name: impl Into<String>, target: Remote, unit: Unit, stop: &'a AtomicBool) -> Self {
        // What an address leaves out was found out: no run has to ask again.
        let target = target.complete(&unit);
        let (name, login) = (name.into(), Logins::default());
        let (servers, control, options, cpus) = (Vec::new(), None, Vec::new(), None);
        let (fill, filled, seed) = (false, 0, 1);
        Self {
            name,
            target,
            unit,
            login,
            cpus,
            servers,
            control,
            options,
            fill,
            filled,
            seed,
            stop,
        }
    }

    /// What the volume said of itself.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Where it is, with target name and LUN, or NQN and NSID.
    pub fn address(&self) -> &Remote {
        &self.target
    }

    /// What limits of its server leave of each workload.
    pub fn limits(&self, workloads: &[Workload]) -> Vec<model::Ceiling> {
        let control = self.control.iter();
        control.flat_map(|control| control.ceilings(&self.name, workloads)).collect()
    }

    /// The same without a data digest.
    pub fn without_digest(&self) -> Self {
        let target = self.target.clone().without_digest();
        Self { target, ..self.clone() }
    }

    /// Bytes of the unit that a workload works on, from its beginning; whole blocks.
    pub fn span(&self, workload: &Workload) -> u64 {
        let all = self.unit.bytes;
        let asked = workload.size_bytes.map_or(all, |size| size * u64::from(workload.jobs));
        all.min(asked) / workload.block_bytes * workload.block_bytes
    }

    fn load(&mut self, workload: &Workload) -> lunet_client::Workload {
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds);
        let rate = workload
            .rate_mib_per_s
            .map(|rate| Rate { operations: None, bytes: Some((rate * f64::from(1 << 20)) as u64) });
        let load = lunet_client::Workload {
            blocks: vec![BlockSize {
                bytes: u32::try_from(workload.block_bytes).unwrap_or(u32::MAX),
                weight: 1,
            }],
            reads_percent: workload.read_percent,
            order: match workload.pattern {
                Pattern::Random => Order::Random,
                Pattern::Sequential => Order::Sequential,
            },
            depth: workload.depth,
            jobs: workload.jobs,
            runtime: Some(seconds(workload.seconds)),
            ramp: seconds(workload.ramp_seconds),
            rate,
            fua: workload.sync == Sync::EachWrite,
            seed: self.seed,
            ..lunet_client::Workload::new(4096)
        };
        self.seed += 1;
        load.within(0..self.span(workload))
    }

    /// Runs a load on another thread, so that somebody can be told how far it is.
    fn go(
        &self,
        load: lunet_client::Workload,
        mut watch: Option<Watch>,
        concerned: &[(i32, Role)],
        told: &mut dyn FnMut(f64, f64),
    ) -> Result<(Outcome, Option<Usage>), Failed> {
        let ramp = load.ramp;
        let all = load.runtime.map_or(0.0, |time| (ramp + time).as_secs_f64());
        let began = Instant::now();
        let (outcome, watch) = thread::scope(|scope| {
            let (done, wait) = channel::<()>();
            let work = scope.spawn(move || {
                // Dropped at the end, whatever that is.
                let _done = done;
                // The initiator's threads are children of this one, and inherit it.
                let bound = self.cpus.as_ref().map_or(Ok(()), Cpus::bind);
                let mut on = |progress: &lunet_client::Progress| {
                    let over = progress.stage != Stage::Ramp || progress.elapsed >= ramp;
                    if over && watch.is_none() && !concerned.is_empty() {
                        watch = Some(Watch::start(&Root::default(), concerned));
                    }
                };
                let outcome = bound
                    .map_err(|error| Failed::from(format!("processors of --cpus: {error}")))
                    .and_then(|()| Ok(self.target.load(&self.login, load, self.stop, &mut on)?));
                (outcome, watch)
            });
            while wait.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let passed = began.elapsed().as_secs_f64();
                told(if all > 0.0 { passed.min(all) } else { passed }, all);
            }
            work.join().map_err(|_| "the load generator has failed: please report it".to_owned())
        })?;
        let usage = watch.map(Watch::finish);
        let outcome = outcome?;
        if outcome.interrupted || self.stop.load(Ordering::Relaxed) {
            return Err(Stopped.into());
        }
        let failures = outcome.failures();
        match failures.is_empty() {
            true => Ok((outcome, usage)),
            false => Err(failures.join("; ").into()),
        }
    }

    /// Whether the sessions have a data digest. Where the target may choose, [`Served::fix_digests`] has asked.
    pub fn has_data_digest(&self) -> bool {
        self.target.has_data_digest()
    }

    /// See [`Remote::fix_digests`].
    ///
    /// # Errors
    /// There is no session with these digests.
    pub fn fix_digests(&mut self) -> Result<(), lunet_client::Error> {
        self.target.fix_digests(&self.login)
    }
}

impl Generator for Served<'_> {
    fn target(&self) -> model::Target {
        model::Target {
            name: self.name.clone(),
            kind: self.target.kind(),
            location: self.target.shown(),
            tool: "lunet".to_owned(),
            data_digest: self.has_data_digest(),
        }
    }

    fn command(&self, workload: &Workload) -> model::Command {
        let head = ["lunet", "bench"].map(str::to_owned);
        let tail = ["--only".to_owned(), workload.name.clone(), self.target.shown()];
        let words = head.into_iter().chain(self.options.iter().cloned()).chain(tail);
        model::Command { what: format!("{} on {}", workload.name, self.name), line: shell(words) }
    }

    fn prepare(
        &mut self,
        workload: &Workload,
        progress: &mut dyn FnMut(f64, f64),
    ) -> Result<(), Failed> {
        let span = self.span(workload);
        if !self.fill || span <= self.filled {
            return Ok(());
        }
        let most = self.unit.max_transfer.unwrap_or(FILL_BLOCK).min(FILL_BLOCK);
        let size = u64::from(self.unit.block_size);
        let block = (most / size * size).max(size).min(span);
        // Whole blocks of this size, a little more than what is read where there is room for it.
        let end = span.next_multiple_of(block);
        let end = if end <= self.unit.bytes { end } else { span / block * block };
        let load = lunet_client::Workload {
            reads_percent: 0,
            order: Order::Sequential,
            depth: FILL_DEPTH,
            runtime: None,
            size: Some(end),
            ..lunet_client::Workload::new(u32::try_from(block)?)
        };
        self.go(load.within(0..end), None, &[], progress)?;
        self.filled = span;
        Ok(())
    }

    fn run(
        &mut self,
        workload: &Workload,
        progress: &mut dyn FnMut(f64, f64),
    ) -> Result<Run, Failed> {
        let load = self.load(workload);
        let own = i32::try_from(std::process::id())?;
        let servers = self.servers.iter().map(|pid| (*pid, Role::Server));
        let concerned: Vec<(i32, Role)> =
            std::iter::once((own, Role::Client)).chain(servers).collect();
        let now = load.ramp.is_zero();
        let watch = now.then(|| Watch::start(&Root::default(), &concerned));
        let counts = || self.control.as_ref().and_then(Control::counts);
        let before = counts();
        let (outcome, usage) = self.go(load, watch, &concerned, progress)?;
        let server_latency_us =
            counts().zip(before).and_then(|(after, before)| after.mean_us_since(&before));
        Ok(Run { server_latency_us, ..convert::run(workload, &outcome, usage, own) })
    }
}
