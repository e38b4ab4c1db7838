//! What a thread costs.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time and context switches of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user and kernel mode (the thread's own clock). What the network does in the
    /// thread's system calls is in it, other interrupts are not.
    pub cpu: Duration,
    /// Times that it slept or waited.
    pub voluntary: u64,
    /// Times that another thread took its processor.
    pub involuntary: u64,
}

impl Usage {
    /// What the calling thread has used so far.
    pub(crate) fn of_this_thread() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            cpu,
            voluntary: field("voluntary_ctxt_switches:"),
            involuntary: field("nonvoluntary_ctxt_switches:"),
        }
    }

    /// What was used since an earlier look.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// Adds up.
impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_sleep_show() {
        let before = Usage::of_this_thread();
        let mut x = 1u64;
        while Usage::of_this_thread().since(before).cpu < Duration::from_millis(1) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        std::thread::sleep(Duration::from_millis(2));
        let used = Usage::of_this_thread().since(before);
        assert!(used.voluntary >= 1, "{used:?}");
    }
}
