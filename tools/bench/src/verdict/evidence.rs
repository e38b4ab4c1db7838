//! What the rules look at.

use crate::model::{Ceiling, CeilingKind, Process, Results, Role, Run, Target, Workload};
use crate::stats::median;

/// What all processes of a role used, the middle of the rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuUse {
    /// Processors that were busy for it: 1.5 = one and a half.
    pub processors: f64,
    /// The busiest thread's share of one processor, 0 to 1.
    pub busiest_thread: f64,
    /// The part of the periods in which a quota was used up.
    pub quota_throttled: f64,
    /// The part of the time in which a thread was ready and got no processor, where the kernel counts it.
    pub waited: Option<f64>,
}

/// What was found out besides the runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extras {
    /// The same workload without digests, in MiB/s.
    pub without_digest_mib_per_s: Option<f64>,
    /// The same workload with so many sessions, in MiB/s all together.
    pub more_sessions: Option<(u32, f64)>,
}

/// One target with one workload.
#[derive(Clone, Debug)]
pub struct Evidence<'a> {
    /// The target's name.
    pub target: &'a str,
    /// What was run.
    pub workload: &'a Workload,
    /// What was read, in MiB/s.
    pub read_mib_per_s: f64,
    /// What was written, in MiB/s.
    pub write_mib_per_s: f64,
    /// Operations per second.
    pub iops: f64,
    /// The mean latency in microseconds, where the tool looked at the clock.
    pub latency_us: Option<f64>,
    /// What an operation takes inside the server, in microseconds, where the server tells: that is its storage, as long as
    /// no processor binds.
    pub server_latency_us: Option<f64>,
    /// The load generator, if it was seen.
    pub client: Option<CpuUse>,
    /// The server, if it was seen.
    pub server: Option<CpuUse>,
    /// Busy and stolen processor time of the whole machine, 0 to 1.
    pub machine_busy: Option<f64>,
    /// Processors of the machine.
    pub cpus: u32,
    /// Processors that bystanders used, and the busiest one's name.
    pub others: (f64, Option<String>),
    /// What slowed itself down, and how often.
    pub throttled: Option<(String, u64)>,
    /// Whether a data digest was in use.
    pub data_digest: bool,
    /// The ceilings that concern it.
    pub ceilings: Vec<&'a Ceiling>,
    /// What was found out besides.
    pub extras: Extras,
}

impl<'a> Evidence<'a> {
    /// From the runs of all rounds; `None` if there was none.
    pub fn of(
        results: &'a Results,
        target: &'a Target,
        workload: &'a Workload,
        extras: Extras,
    ) -> Option<Self> {
        let runs = results.runs_of(&target.name, &workload.name);
        let middle = |of: &dyn Fn(&Run) -> Option<f64>| {
            median(&runs.iter().filter_map(|run| of(run)).collect::<Vec<_>>())
        };
        let systems = || runs.iter().filter_map(|run| run.system.as_ref());
        let throttled = systems().flat_map(|system| &system.throttled).max_by_key(|one| one.times);
        let concerns = |ceiling: &&Ceiling| {
            // They were measured over TCP, whose data is copied between sockets and programs.
            let of_tcp = matches!(ceiling.kind, CeilingKind::Network | CeilingKind::Memory);
            ceiling.concerns(&target.name, &workload.name) && !(of_tcp && target.kind.is_rdma())
        };
        Some(Self {
            target: &target.name,
            workload,
            read_mib_per_s: middle(&|run| {
                Some(run.read.as_ref().map_or(0.0, |flow| flow.mib_per_s))
            })?,
            write_mib_per_s: middle(&|run| {
                Some(run.write.as_ref().map_or(0.0, |flow| flow.mib_per_s))
            })?,
            iops: middle(&|run| Some(run.iops()))?,
            latency_us: middle(&|run| run.latency().map(|latency| latency.mean_us)),
            server_latency_us: middle(&|run| run.server_latency_us),
            client: cpu_use(&runs, Role::Client),
            server: cpu_use(&runs, Role::Server),
            machine_busy: middle(&|run| run.system.as_ref().map(|all| all.busy + all.stolen)),
            cpus: systems().map(|system| system.cpus).max().unwrap_or(0),
            others: others(&runs),
            throttled: throttled.map(|one| (one.name.clone(), one.times)),
            data_digest: target.data_digest,
            ceilings: results.ceilings.iter().filter(concerns).collect(),
            extras,
        })
    }

    /// Both directions together, in MiB/s.
    pub fn mib_per_s(&self) -> f64 {
        self.read_mib_per_s + self.write_mib_per_s
    }

    /// How long an operation takes, in microseconds: as measured, or by Little's law.
    pub fn cycle_us(&self) -> f64 {
        let little = self.workload.outstanding() as f64 / self.iops.max(1e-9) * 1e6;
        self.latency_us.unwrap_or(little)
    }

    /// The part of its depth that the client really has in flight, 0 to 1: `None` if nobody looked at the clock.
    pub fn occupancy(&self) -> Option<f64> {
        let on_the_way = self.iops * self.latency_us? / 1e6;
        Some(on_the_way / self.workload.outstanding().max(1) as f64)
    }
}

fn cpu_use(runs: &[&Run], role: Role) -> Option<CpuUse> {
    let per_run = |of: &dyn Fn(&[&Process], f64) -> f64| {
        let figure = |run: &&Run| {
            let own: Vec<&Process> =
                run.processes.iter().filter(|process| process.role == role).collect();
            (!own.is_empty()).then(|| of(&own, run.watched_s()))
        };
        median(&runs.iter().filter_map(figure).collect::<Vec<_>>())
    };
    let own = |run: &&Run| {
        let own = run.processes.iter().filter(|process| process.role == role);
        own.filter_map(|process| process.waited).max_by(f64::total_cmp)
    };
    let waited = median(&runs.iter().filter_map(own).collect::<Vec<_>>());
    let most = |own: &[&Process], of: fn(&Process) -> f64| {
        own.iter().map(|process| of(process)).fold(0.0, f64::max)
    };
    Some(CpuUse {
        waited,
        processors: per_run(&|own, seconds| {
            own.iter().map(|process| process.user_s + process.system_s).sum::<f64>() / seconds
        })?,
        busiest_thread: per_run(&|own, _| most(own, |process| process.busiest_thread))?,
        quota_throttled: per_run(&|own, _| {
            most(own, |process| process.quota_throttled.unwrap_or(0.0))
        })?,
    })
}

fn others(runs: &[&Run]) -> (f64, Option<String>) {
    let time = |process: &Process| process.user_s + process.system_s;
    let each = runs.iter().map(|run| run.others.iter().map(time).sum::<f64>() / run.watched_s());
    let used = median(&each.collect::<Vec<_>>()).unwrap_or(0.0);
    let all = runs.iter().flat_map(|run| &run.others);
    let busiest = all.max_by(|a, b| time(a).total_cmp(&time(b)));
    (used, busiest.map(|process| process.name.clone()))
}
