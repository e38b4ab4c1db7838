//! Watches while something is measured.

use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Root;
use super::machine::{Counters, Cpu, counters};
use super::process::{self, Stat, Thread};
use crate::model::{Process, Role, Sensor, System, Throttle};

/// How often threads are looked at: what a thread did after the last look is not in its share.
const LOOK: Duration = Duration::from_millis(250);
/// Bystanders that used less of a processor are not worth a line.
const LEAST: f64 = 0.01;
/// And more lines than this are not read.
const MOST_OTHERS: usize = 8;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// The processes that take part.
    pub processes: Vec<Process>,
    /// What else ran.
    pub others: Vec<Process>,
    /// Load of the whole machine.
    pub system: System,
}

/// Watches from its start to [`Watch::finish`].
#[derive(Debug)]
pub struct Watch {
    root: Root,
    concerned: Vec<(i32, Role)>,
    began: Instant,
    before: Counters,
    all: HashMap<i32, Stat>,
    quotas: Vec<Option<(u64, u64)>>,
    stop: Sender<()>,
    looks: JoinHandle<Vec<Seen>>,
}

/// What the looks at one process tree have seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    threads: HashMap<(i32, i32), Life>,
    /// Every process of the tree, with its number.
    members: Vec<i32>,
}

/// A thread, from the first to the last look at it.
#[derive(Clone, Copy, Debug)]
struct Life {
    first: (Instant, Thread),
    last: (Instant, Thread),
}

impl Watch {
    /// Begins. These processes take part, with all their descendants.
    pub fn start(root: &Root, concerned: &[(i32, Role)]) -> Self {
        let (stop, stopped) = mpsc::channel();
        let mut seen = vec![Seen::default(); concerned.len()];
        let pids: Vec<i32> = concerned.iter().map(|(pid, _)| *pid).collect();
        look(root, &pids, &mut seen);
        let all = process::all(root);
        let quotas = pids.iter().map(|pid| process::quota(root, *pid)).collect();
        let (before, began) = (counters(root), Instant::now());
        let own = root.clone();
        let looks = thread::spawn(move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                look(&own, &pids, &mut seen);
            }
            look(&own, &pids, &mut seen);
            seen
        });
        let (root, concerned) = (root.clone(), concerned.to_vec());
        Self { root, concerned, began, before, all, quotas, stop, looks }
    }

    /// Ends, and says what was seen. A process that has ended counts if it was not waited for yet.
    pub fn finish(self) -> Usage {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-3);
        let after = counters(&self.root);
        let all = process::all(&self.root);
        // The thread is there, or has panicked and says so by itself.
        let _ = self.stop.send(());
        let seen = self.looks.join().unwrap_or_default();
        let spent = Spent { before: &self.all, after: &all };
        let mut processes = Vec::new();
        for (((pid, role), seen), quota) in self.concerned.iter().zip(&seen).zip(&self.quotas) {
            let Some(mut process) = spent.tree(*pid, *role, seen) else { continue };
            process.quota_throttled = quota.zip(process::quota(&self.root, *pid)).map(throttled);
            processes.push(process);
        }
        let own: Vec<i32> = seen.iter().flat_map(|seen| seen.members.iter().copied()).collect();
        let others = spent.others(&own, seconds);
        let system = System { watched_s: seconds, ..system(&self.before, &after) };
        Usage { processes, others, system }
    }
}

/// The part of the periods in which the quota was used up.
fn throttled(((periods, times), (more, again)): ((u64, u64), (u64, u64))) -> f64 {
    let periods = more.saturating_sub(periods).max(1);
    again.saturating_sub(times) as f64 / periods as f64
}

fn look(root: &Root, pids: &[i32], seen: &mut [Seen]) {
    for (pid, seen) in pids.iter().zip(seen) {
        for member in process::tree(root, *pid) {
            if !seen.members.contains(&member) {
                seen.members.push(member);
            }
            let now = Instant::now();
            for (number, thread) in process::threads(root, member) {
                let life = seen.threads.entry((member, number));
                let life = life.or_insert(Life { first: (now, thread), last: (now, thread) });
                life.last = (now, thread);
            }
        }
    }
}

/// Ticks that were spent between two moments.
struct Spent<'a> {
    before: &'a HashMap<i32, Stat>,
    after: &'a HashMap<i32, Stat>,
}

/// The part of a thread's life in which it was ready and got no processor.
fn waited(life: &Life) -> Option<f64> {
    let watched = (life.last.0 - life.first.0).as_secs_f64();
    let ns = life.last.1.waited?.saturating_sub(life.first.1.waited?);
    (watched >= LOOK.as_secs_f64()).then(|| ns as f64 / 1e9 / watched)
}

fn ticks_to_s(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

impl Spent<'_> {
    /// A process and its descendants, those that have ended among them.
    fn tree(&self, pid: i32, role: Role, seen: &Seen) -> Option<Process> {
        let sum = |all: &HashMap<i32, Stat>| {
            let members = seen.members.iter().filter_map(|pid| all.get(pid));
            members.fold((0, 0), |(user, system), stat| {
                (user + stat.user + stat.children.0, system + stat.system + stat.children.1)
            })
        };
        let name = &self.after.get(&pid).or_else(|| self.before.get(&pid))?.name;
        let ((user, system), (user_after, system_after)) = (sum(self.before), sum(self.after));
        let lives = || seen.threads.values();
        let share = |life: &Life| {
            let watched = (life.last.0 - life.first.0).as_secs_f64();
            let ticks = life.last.1.ticks.saturating_sub(life.first.1.ticks);
            if watched < LOOK.as_secs_f64() { 0.0 } else { ticks_to_s(ticks) / watched }
        };
        let switches = |of: fn(&Thread) -> u64| {
            lives().map(|life| of(&life.last.1).saturating_sub(of(&life.first.1))).sum()
        };
        Some(Process {
            name: name.clone(),
            pid,
            role,
            user_s: ticks_to_s(user_after.saturating_sub(user)),
            system_s: ticks_to_s(system_after.saturating_sub(system)),
            busiest_thread: lives().map(share).fold(0.0, f64::max),
            waited: lives().filter_map(waited).max_by(f64::total_cmp),
            voluntary_switches: switches(|thread| thread.voluntary),
            involuntary_switches: switches(|thread| thread.involuntary),
            quota_throttled: None,
        })
    }

    /// What else ran, busiest first: without this program, which only waits.
    fn others(&self, own: &[i32], seconds: f64) -> Vec<Process> {
        let mut others = Vec::new();
        for (pid, stat) in self.after {
            if own.contains(pid) || i64::from(*pid) == i64::from(std::process::id()) {
                continue;
            }
            let known = self.before.get(pid).filter(|before| before.began == stat.began);
            // Without children that have ended: they may have worked before the watch began.
            let (user, system) = known.map_or((0, 0), |before| (before.user, before.system));
            let user_s = ticks_to_s(stat.user.saturating_sub(user));
            let system_s = ticks_to_s(stat.system.saturating_sub(system));
            if user_s + system_s >= LEAST * seconds {
                let (name, role) = (stat.name.clone(), Role::Bystander);
                others.push(Process {
                    name,
                    pid: *pid,
                    role,
                    user_s,
                    system_s,
                    busiest_thread: 0.0,
                    waited: None,
                    voluntary_switches: 0,
                    involuntary_switches: 0,
                    quota_throttled: None,
                });
            }
        }
        let time = |process: &Process| process.user_s + process.system_s;
        others.sort_by(|a, b| time(b).total_cmp(&time(a)));
        others.truncate(MOST_OTHERS);
        others
    }
}

fn system(before: &Counters, after: &Counters) -> System {
    let part = |of: fn(&Cpu) -> u64, before: &Cpu, after: &Cpu| {
        let all = after.all.saturating_sub(before.all).max(1);
        of(after).saturating_sub(of(before)) as f64 / all as f64
    };
    let busy = |cpu: &Cpu| cpu.busy;
    let each = before.each.iter().zip(&after.each);
    let was = |name: &str| before.temperatures.iter().find(|(sensor, _)| sensor == name);
    let celsius = |thousandths: i64| thousandths as f64 / 1000.0;
    let sensors = after.temperatures.iter().filter_map(|(name, now)| {
        let (_, first) = was(name)?;
        Some(Sensor { name: name.clone(), before_c: celsius(*first), after_c: celsius(*now) })
    });
    let counts = before.throttles.iter().zip(&after.throttles);
    let rose = counts.filter(|(before, after)| before.0 == after.0 && after.1 > before.1);
    let mut unreadable = Vec::new();
    if after.temperatures.is_empty() {
        unreadable.push("temperatures".to_owned());
    }
    if after.throttles.is_empty() {
        unreadable.push("throttling".to_owned());
    }
    System {
        watched_s: 0.0,
        cpus: u32::try_from(after.each.len()).unwrap_or(u32::MAX),
        busy: part(busy, &before.together, &after.together),
        busiest_cpu: each.map(|(before, after)| part(busy, before, after)).fold(0.0, f64::max),
        stolen: part(|cpu| cpu.stolen, &before.together, &after.together),
        context_switches: after.switches.saturating_sub(before.switches),
        sensors: sensors.collect(),
        throttled: rose
            .map(|(before, after)| Throttle { name: after.0.clone(), times: after.1 - before.1 })
            .collect(),
        unreadable,
    }
}
