//! What the initiator has seen, in the terms of the results.

use std::time::Duration;

use lunet_bench::model::{Flow, Latency, Moment, Process, Run, Workload};
use lunet_bench::system::Usage;
use lunet_client::{Outcome, Second, Tally, ThreadOutcome, Work};

const MIB: f64 = (1 << 20) as f64;
/// A rate over less time says nothing: the last answers come at once.
const SHORTEST: Duration = Duration::from_millis(100);

/// A run; round, order and names are the caller's. `client` is the process in which the initiator ran.
pub fn run(workload: &Workload, outcome: &Outcome, usage: Option<Usage>, client: i32) -> Run {
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let flow = |tally: &Tally| Flow {
        bytes: tally.bytes,
        operations: tally.operations,
        mib_per_s: tally.bytes as f64 / MIB / seconds,
        iops: tally.operations as f64 / seconds,
        latency: latency(tally),
    };
    let (reads, writes) = (workload.read_percent > 0, workload.writes());
    let mut run = Run {
        seconds,
        read: reads.then(|| flow(&outcome.work.read)),
        write: writes.then(|| flow(&outcome.work.write)),
        errors: outcome.work.errors,
        timeline: timeline(&outcome.timeline),
        ..Run::default()
    };
    if let Some(usage) = usage {
        run.processes = usage.processes;
        for process in run.processes.iter_mut().filter(|process| process.pid == client) {
            own_time(process, outcome);
        }
        run.others = usage.others;
        run.system = Some(usage.system);
    }
    run
}

/// Latencies come in classes, named by their upper end; mean and bounds are exact.
fn latency(tally: &Tally) -> Option<Latency> {
    let own = &tally.latency;
    let classes = own.classes().map(|(time, count)| (time.as_nanos() as u64, count));
    let mut latency = Latency::of(classes)?;
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    (latency.mean_us, latency.min_us, latency.max_us) =
        (us(own.mean()), us(own.min()), us(own.max()));
    Some(latency)
}

fn timeline(seconds: &[Second]) -> Vec<Moment> {
    let counted = || seconds.iter().filter(|second| !second.ramp && second.length >= SHORTEST);
    let Some(start) = counted().next().map(|second| second.at) else { return Vec::new() };
    let moment = |second: &Second| {
        let length = second.length.as_secs_f64();
        let Work { read, write, .. } = &second.work;
        let count = read.latency.count() + write.latency.count();
        let sum = |tally: &Tally| {
            tally.latency.mean().as_nanos() as f64 / 1e3 * tally.latency.count() as f64
        };
        Moment {
            at_s: (second.at + second.length - start).as_secs_f64(),
            read_mib_per_s: read.bytes as f64 / MIB / length,
            write_mib_per_s: write.bytes as f64 / MIB / length,
            read_iops: read.operations as f64 / length,
            write_iops: write.operations as f64 / length,
            latency_us: (count > 0).then(|| (sum(read) + sum(write)) / count as f64),
        }
    };
    counted().map(moment).collect()
}

/// The clocks of the load's own threads are exact for the time that was measured; the kernel's ticks of the whole process
/// say how it divides.
fn own_time(process: &mut Process, outcome: &Outcome) {
    let cpu = outcome.usage.cpu.as_secs_f64();
    let ticks = process.user_s + process.system_s;
    let user = if ticks > 0.0 { process.user_s / ticks } else { 0.5 };
    (process.user_s, process.system_s) = (cpu * user, cpu * (1.0 - user));
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let share = |thread: &ThreadOutcome| thread.usage.cpu.as_secs_f64() / seconds;
    process.busiest_thread = outcome.threads.iter().map(share).fold(0.0, f64::max);
    process.voluntary_switches = outcome.usage.voluntary;
    process.involuntary_switches = outcome.usage.involuntary;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(operations: u64) -> Tally {
        let mut tally = Tally::default();
        for at in 0..operations {
            tally.operations += 1;
            tally.bytes += 4096;
            tally.latency.record(Duration::from_micros(100 + at));
        }
        tally
    }

    #[test]
    fn latencies_keep_their_counts_and_means() {
        let told = latency(&tally(1000)).expect("there are some");
        assert_eq!(told.count, 1000);
        assert_eq!(told.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1000);
        assert!((told.mean_us - 599.5).abs() < 0.001, "{}", told.mean_us);
        let half = told.percentile_us(50.0).expect("it can be told");
        assert!((half - 599.0).abs() < 8.0, "{half}");
        assert!(latency(&Tally::default()).is_none());
    }

    #[test]
    fn the_ramp_is_not_in_the_timeline() {
        let second = |at: u64, ramp| Second {
            at: Duration::from_secs(at),
            length: Duration::from_secs(1),
            ramp,
            work: Work { read: tally(256), write: tally(512), ..Work::default() },
        };
        let rest = Second { length: Duration::from_millis(3), ..second(3, false) };
        let told = timeline(&[second(0, true), second(1, false), second(2, false), rest]);
        let ends: Vec<f64> = told.iter().map(|moment| moment.at_s).collect();
        assert_eq!(ends, [1.0, 2.0]);
        assert_eq!((told[0].read_mib_per_s, told[0].write_mib_per_s), (1.0, 2.0));
        // 256 of 227.5 us and 512 of 355.5 us.
        let mean = told[0].latency_us.expect("it was looked at");
        assert!((mean - 312.83).abs() < 0.01, "{mean}");
        assert!(timeline(&[second(0, true)]).is_empty());
    }
}
