//! What a process has used, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use lunet_e2e::process::children as children_of;

/// Linux shows process times in units of 1/100 s, whatever the kernel's own tick is.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of all threads of a process, ended ones too, user and system.
pub fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_cpu(&stat).with_context(|| format!("/proc/{pid}/stat: {stat}"))
}

/// CPU time of the threads that a process has now, to the nanosecond: what the scheduler says of each.
pub fn cpu_of_threads(pid: u32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended meanwhile.
        let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let ran = text.split_whitespace().next().and_then(|word| word.parse().ok());
        sum += Duration::from_nanos(ran.with_context(|| format!("schedstat: {text}"))?);
    }
    Ok(sum)
}

/// The same with the processes that it has started and that still run.
pub fn cpu_of_all(pid: u32) -> Result<Duration> {
    let mut sum = cpu(pid)?;
    for child in children_of(pid)? {
        sum += cpu(child)?;
    }
    Ok(sum)
}

/// CPU time of all children of this process that have ended, user and system.
pub fn children() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    parse_times(&stat, 13).with_context(|| format!("/proc/self/stat: {stat}"))
}

fn parse_cpu(stat: &str) -> Option<Duration> {
    parse_times(stat, 11)
}

/// Two times that stand behind each other, so many fields behind the name: utime and stime are fields 14 and 15, cutime
/// and cstime 16 and 17.
fn parse_times(stat: &str, skip: usize) -> Option<Duration> {
    // The second field is the name in parentheses, and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(skip);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * (user + system))
}

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident.
    pub rss: u64,
    /// Resident, shared pages divided by their users.
    pub pss: u64,
}

/// The memory that a process has now.
pub fn memory(pid: u32) -> Result<Memory> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("no {name} in /proc/{pid}/smaps_rollup"))
    };
    Ok(Memory { rss: field("Rss:")?, pss: field("Pss:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_and_parentheses_do_not_confuse() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 250 30 40 20 0";
        assert_eq!(parse_cpu(stat), Some(Duration::from_secs(4)));
        assert_eq!(parse_times(stat, 13), Some(Duration::from_millis(700)));
    }
}
