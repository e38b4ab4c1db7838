//! What each layer can carry, measured on the spot: memory, processor, network, drives, and the protocol without storage.

use std::net::SocketAddr;
use std::time::Duration;

use lunet_bench::ceiling::{self, net};
use lunet_bench::fio::Fio;
use lunet_bench::model::{Ceiling, CeilingKind, Run, Unit, Workload};
use lunet_bench::runner::Generator;

use super::served::Served;

/// Threads copy memory for so long.
const COPY: Duration = Duration::from_millis(250);
/// One thread computes digests for so long.
const DIGEST: Duration = Duration::from_millis(100);
/// Each direction of the network; half a second of round trips comes to it.
const NET: Duration = Duration::from_millis(700);
const NET_STREAMS: u32 = 4;
/// So many operations in flight show what a layer can do at once.
const DEEP: u32 = 128;
/// Runs for a ceiling take no longer, in seconds.
const LONGEST: f64 = 5.0;

/// How long a run for a ceiling takes, in seconds: shorter than a measurement, which has rounds.
pub fn seconds(workload: &Workload) -> f64 {
    (workload.seconds * 0.6).clamp(0.2, LONGEST)
}

/// Memory and processor.
pub fn compute() -> Vec<Ceiling> {
    vec![ceiling::memory(COPY), ceiling::crc32c(DIGEST)]
}

/// The way to `lunet bench net serve` there, or over loopback.
///
/// # Errors
/// A sentence: nobody answers there.
pub fn network(there: Option<SocketAddr>) -> Result<Ceiling, String> {
    let plan = net::Plan { streams: NET_STREAMS, time: NET };
    let measured = match there {
        Some(address) => net::measure(address, plan),
        None => net::loopback(plan),
    };
    measured.map(|measured| measured.ceiling()).map_err(|error| error.to_string())
}

/// The storage behind a path, by fio, for each of the targets that stand on it.
///
/// # Errors
/// fio does not run, or was stopped.
pub fn drive(
    fio: &Fio<'_>,
    name: &str,
    workload: &Workload,
    targets: &[String],
    progress: &mut dyn FnMut(f64, f64),
) -> Result<Vec<Ceiling>, String> {
    let one = ceiling::drive(fio, name, workload, seconds(workload), progress)
        .map_err(|error| error.to_string())?;
    let of = |target: &String| Ceiling { target: Some(target.clone()), ..one.clone() };
    Ok(targets.iter().map(of).collect())
}

/// The protocol: the same workload on a volume that stores nothing, as it is and with many operations in flight, whichever
/// is more.
///
/// # Errors
/// A sentence: the run failed, or was stopped.
pub fn protocol(
    null: &mut Served<'_>,
    workload: &Workload,
    progress: &mut dyn FnMut(f64, f64),
) -> Result<Ceiling, String> {
    let jobs = workload.jobs.max(1);
    let with = |depth: u32| Workload {
        depth,
        seconds: seconds(workload),
        ramp_seconds: 0.0,
        rate_mib_per_s: None,
        ..workload.clone()
    };
    let (same, deep) = (with(workload.depth), with(workload.depth.max(DEEP.div_ceil(jobs))));
    let mut rate = |load: &Workload| -> Result<(u64, f64, Option<f64>), String> {
        let run: Run = null.run(load, progress).map_err(|error| error.to_string())?;
        Ok((load.outstanding(), run.iops(), run.generator_busy()))
    };
    let rates = [rate(&same)?, rate(&deep)?];
    let best = usize::from(rates[1].1 >= rates[0].1);
    let (outstanding, value, generator_busy) = rates[best];
    let how = format!(
        "lunet bench, {} on {} for {:.1} s: {:.0} IOPS with {} in flight, {:.0} with {}",
        workload.name,
        null.address(),
        same.seconds,
        rates[0].1,
        rates[0].0,
        rates[1].1,
        rates[1].0
    );
    Ok(Ceiling {
        kind: CeilingKind::Protocol,
        name: "protocol, without storage".to_owned(),
        value,
        unit: Unit::Iops,
        how,
        target: None,
        workload: Some(workload.name.clone()),
        outstanding: Some(outstanding),
        latency_us: None,
        generator_busy,
    })
}

/// The same ceilings measured once more: of each the better one stays. What else the machine did can only have made a ceiling
/// lower than it is.
pub fn better(ceilings: &mut [Ceiling], again: &[Ceiling]) {
    for one in ceilings {
        let same = |other: &&Ceiling| {
            (other.kind, &other.name, &other.target) == (one.kind, &one.name, &one.target)
        };
        let Some(other) = again.iter().find(same) else { continue };
        let latency = [one.latency_us, other.latency_us].into_iter().flatten();
        let latency = latency.min_by(f64::total_cmp);
        if other.value > one.value {
            (one.value, one.how) = (other.value, other.how.clone());
        }
        one.latency_us = latency;
        one.how += "; the better of two, before and after the rounds";
    }
}

/// A ceiling of one target alone.
pub fn of(ceiling: &Ceiling, target: &str) -> Ceiling {
    Ceiling { target: Some(target.to_owned()), ..ceiling.clone() }
}

#[cfg(test)]
mod tests {
    use lunet_bench::profiles::Profile;

    use super::*;

    #[test]
    fn ceilings_of_quick_leave_it_a_minute() {
        let quick = Profile::named("quick").expect("it is there");
        let spent: f64 = quick.workloads.iter().map(|load| 3.0 * seconds(load)).sum();
        assert!(spent < 5.0, "{spent}");
        let recipe = Profile::named("recipe").expect("it is there");
        assert!(seconds(&recipe.workloads[0]) <= LONGEST);
    }

    #[test]
    fn the_better_of_two_measurements_stays() {
        let mut first = compute();
        let one = |value, us| Ceiling { value, latency_us: Some(us), ..of(&first[0], "a") };
        let (slow, fast) = (one(100.0, 20.0), one(200.0, 30.0));
        let mut kept = [slow.clone()];
        better(&mut kept, std::slice::from_ref(&fast));
        assert_eq!((kept[0].value, kept[0].latency_us), (200.0, Some(20.0)));
        assert!(kept[0].how.ends_with("before and after the rounds"));
        let mut kept = [fast];
        better(&mut kept, std::slice::from_ref(&slow));
        assert_eq!((kept[0].value, kept[0].latency_us), (200.0, Some(20.0)));
        // Of another target, and of another layer.
        better(&mut first, std::slice::from_ref(&slow));
        assert!(first.iter().all(|one| one.target.is_none() && !one.how.contains("better")));
    }

    #[test]
    fn memory_processor_and_loopback_say_how_they_were_got() {
        let mut all = compute();
        all.push(network(None).expect("this machine has a loopback"));
        for one in &all {
            assert!(one.value > 0.0 && one.how.contains("for "), "{one:?}");
        }
        let kinds: Vec<CeilingKind> = all.iter().map(|one| one.kind).collect();
        assert_eq!(kinds, [CeilingKind::Memory, CeilingKind::Cpu, CeilingKind::Network]);
    }
}
