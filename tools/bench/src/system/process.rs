//! Processes: /proc/PID.

use std::collections::HashMap;

use super::Root;

/// What a process has used since it began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stat {
    pub name: String,
    pub parent: i32,
    /// Clock ticks in user space.
    pub user: u64,
    /// Clock ticks in the kernel.
    pub system: u64,
    /// The same of children that have ended and were waited for: of their whole lives.
    pub children: (u64, u64),
    /// When it began, in clock ticks since the boot: tells it from another one with the same number.
    pub began: u64,
}

/// Reads `/proc/PID/stat` (proc_pid_stat(5)). The name may hold spaces and brackets.
pub(super) fn stat(text: &str) -> Option<Stat> {
    let (head, rest) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Field 3 of the manual page, the state, is the first one here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        name: name.to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        user: field(14)?,
        system: field(15)?,
        children: (field(16)?, field(17)?),
        began: field(22)?,
    })
}

/// Context switches of a thread: voluntary and not.
pub(super) fn switches(status: &str) -> (u64, u64) {
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
    };
    (of("voluntary_ctxt_switches:"), of("nonvoluntary_ctxt_switches:"))
}

/// All processes there are.
pub(super) fn all(root: &Root) -> HashMap<i32, Stat> {
    let pids = root.names("proc").into_iter().filter_map(|name| name.parse::<i32>().ok());
    let read = |pid| Some((pid, stat(&root.text(format!("proc/{pid}/stat")).ok()?)?));
    pids.filter_map(read).collect()
}

/// A process and its descendants.
pub(super) fn tree(root: &Root, pid: i32) -> Vec<i32> {
    let mut tree = vec![pid];
    let mut at = 0;
    while let Some(parent) = tree.get(at).copied() {
        at += 1;
        for thread in root.names(format!("proc/{parent}/task")) {
            let children = root.text(format!("proc/{parent}/task/{thread}/children"));
            let children = children.unwrap_or_default();
            let pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            tree.extend(pids.filter(|pid| !tree.contains(pid)).collect::<Vec<_>>());
        }
    }
    tree
}

/// A thread's processor time in ticks, and its context switches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Thread {
    pub ticks: u64,
    /// Nanoseconds in which it was ready and had no processor, where the kernel counts them.
    pub waited: Option<u64>,
    pub voluntary: u64,
    pub involuntary: u64,
}

/// The threads of a process by their numbers.
pub(super) fn threads(root: &Root, pid: i32) -> Vec<(i32, Thread)> {
    let thread = |name: String| {
        let folder = format!("proc/{pid}/task/{name}");
        let stat = stat(&root.text(format!("{folder}/stat")).ok()?)?;
        let (voluntary, involuntary) =
            switches(&root.text(format!("{folder}/status")).unwrap_or_default());
        let ticks = stat.user + stat.system;
        // The time on a processor, the time waiting for one, and the number of slices (sched-stats.rst).
        let schedule = root.text(format!("{folder}/schedstat")).unwrap_or_default();
        let waited = schedule.split_whitespace().nth(1).and_then(|text| text.parse().ok());
        Some((name.parse().ok()?, Thread { ticks, waited, voluntary, involuntary }))
    };
    root.names(format!("proc/{pid}/task")).into_iter().filter_map(thread).collect()
}

/// Periods of the quota of a process's control group, and those in which it was used up: of the group above it that was
/// throttled most often.
pub(super) fn quota(root: &Root, pid: i32) -> Option<(u64, u64)> {
    let groups = root.text(format!("proc/{pid}/cgroup")).ok()?;
    let mut most = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let mount = match controllers {
            "" => "sys/fs/cgroup",
            list if list.split(',').any(|one| one == "cpu") => "sys/fs/cgroup/cpu",
            _ => continue,
        };
        for part in std::path::Path::new(path).ancestors() {
            let part = part.to_str()?.trim_start_matches('/');
            let Ok(text) = root.text(format!("{mount}/{part}/cpu.stat")) else { continue };
            let of = |name: &str| {
                text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
            };
            let (Some(periods), Some(throttled)) = (of("nr_periods "), of("nr_throttled ")) else {
                continue;
            };
            if periods > 0 && most.is_none_or(|(_, so_far)| throttled > so_far) {
                most = Some((periods, throttled));
            }
        }
    }
    most
}
