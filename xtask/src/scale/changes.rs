//! One change after the other while reads run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use lunet_e2e::server::Server;
use lunet_e2e::wire::Session;

use super::figures::{Bound, Figures};
use super::{LONGEST_READ, SLACK, config, load, storm};

/// Sessions that read meanwhile: several for each target.
const READERS: usize = 64;

/// Where the volume is mapped that comes and goes: as a namespace as well, whose numbers end at 1024.
const LUN: &str = "1000";

/// Makes the changes, by the commands that an administrator uses, and looks how long reads wait.
pub fn run(
    server: &Server,
    sessions: &mut [Session],
    count: usize,
    figures: &mut Figures,
) -> Result<()> {
    let (readers, idle) = sessions.split_at_mut(READERS);
    let done = AtomicBool::new(false);
    let (times, reads) = thread::scope(|scope| {
        let reading = scope.spawn(|| read(readers, &done));
        let pinging = scope.spawn(|| storm::keep(&mut [idle], &done));
        let changed = change(server, count);
        done.store(true, Ordering::Relaxed);
        let reads = reading.join().map_err(|_| anyhow!("a reader panicked"))?;
        pinging.join().map_err(|_| anyhow!("a pinger panicked"))??;
        Ok::<_, anyhow::Error>((changed?, reads?))
    })?;
    let mut millis: Vec<f64> = times.iter().map(|took| took.as_secs_f64() * 1e3).collect();
    millis.sort_by(f64::total_cmp);
    let at = |part: f64| millis[((millis.len() - 1) as f64 * part) as usize];
    let how = format!(
        "{count} changes by the command line, one after another, among all volumes and beside all sessions: create, limit, map, unmap, delete; none failed; 99 % took less than {:.0} ms, the longest {:.0} ms",
        at(0.99),
        at(1.0)
    );
    figures.add("live change, median", at(0.5), "ms", &how, Bound::None);
    let how = format!(
        "of {} reads of 4 KiB on {READERS} sessions meanwhile, mean {:.0} us",
        reads.count,
        reads.sum.as_secs_f64() * 1e6 / reads.count.max(1) as f64
    );
    figures.add(
        "longest read beside changes",
        reads.longest.as_secs_f64(),
        "s",
        &how,
        Bound::AtMost(LONGEST_READ * SLACK),
    );
    Ok(())
}

fn change(server: &Server, count: usize) -> Result<Vec<Duration>> {
    let target = config::target(1);
    let steps: [&[&str]; 5] = [
        &["volume", "create", "comes", "--size", "16MiB"],
        &["volume", "limit", "comes", "--iops", "5000"],
        &["target", "map", &target, LUN, "comes"],
        &["target", "unmap", &target, LUN, "--force"],
        &["volume", "delete", "comes", "--yes"],
    ];
    let mut times = Vec::with_capacity(count);
    for (number, step) in (0..count).zip(steps.iter().cycle()) {
        let begun = Instant::now();
        server.tell(step).with_context(|| format!("change {number}"))?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

#[derive(Default)]
struct Reads {
    count: u64,
    sum: Duration,
    longest: Duration,
}

fn read(sessions: &mut [Session], done: &AtomicBool) -> Result<Reads> {
    let mut reads = Reads::default();
    while !done.load(Ordering::Relaxed) {
        for session in &mut *sessions {
            let took = load::read(session, reads.count)?;
            reads.count += 1;
            reads.sum += took;
            reads.longest = reads.longest.max(took);
        }
        // Reads that wait for nothing would take the processors from what is measured.
        thread::sleep(Duration::from_millis(5));
    }
    Ok(reads)
}
