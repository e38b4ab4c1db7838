//! What a verdict wants to know besides: would it be faster without digests, or with more sessions?

use lunet_bench::model::Workload;
use lunet_bench::runner::Generator;
use lunet_bench::verdict::Extras;

use super::ceilings;
use super::served::Served;

/// So few operations in flight gain by depth: how many sessions carry them says nothing.
const FEW: u64 = 8;
/// A single run may be lucky: the lesser of so many counts.
const RUNS: usize = 2;

/// How many sessions to try instead of these.
fn more(jobs: u32) -> u32 {
    (jobs * 2).max(4)
}

/// Runs for the extras of one target with one workload.
///
/// # Errors
/// A sentence: a run failed, or was stopped.
pub fn extras(
    served: &mut Served<'_>,
    workload: &Workload,
    progress: &mut dyn FnMut(f64, f64),
) -> Result<Extras, String> {
    let mut told = Extras::default();
    let same =
        Workload { seconds: ceilings::seconds(workload), ramp_seconds: 0.0, ..workload.clone() };
    if served.has_data_digest() {
        let mut without = served.without_digest();
        told.without_digest_mib_per_s = Some(least(&mut without, &same, progress)?);
    }
    if workload.outstanding() >= FEW {
        let jobs = more(workload.jobs);
        told.more_sessions = Some((jobs, least(served, &over(jobs, &same), progress)?));
    }
    Ok(told)
}

/// The same work over so many sessions: in the same part of the volume, and with as many operations in flight. With more of
/// them it would be faster for another reason.
fn over(jobs: u32, workload: &Workload) -> Workload {
    let each = |size: u64| size * u64::from(workload.jobs) / u64::from(jobs);
    let depth = (workload.depth * workload.jobs).div_ceil(jobs);
    Workload { jobs, depth, size_bytes: workload.size_bytes.map(each), ..workload.clone() }
}

fn least(
    served: &mut Served<'_>,
    workload: &Workload,
    progress: &mut dyn FnMut(f64, f64),
) -> Result<f64, String> {
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let run = served.run(workload, progress).map_err(|error| error.to_string())?;
        least = least.min(run.mib_per_s());
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use lunet_bench::profiles::Profile;

    use super::*;

    #[test]
    fn more_sessions_have_no_more_on_their_way() {
        for profile in Profile::all() {
            for load in profile.workloads.iter().filter(|load| load.outstanding() >= FEW) {
                let many = over(more(load.jobs), load);
                assert!(many.jobs > load.jobs, "{}", load.name);
                assert_eq!(many.outstanding(), load.outstanding(), "{}", load.name);
                let size =
                    |load: &Workload| load.size_bytes.map(|size| size * u64::from(load.jobs));
                assert_eq!(size(&many), size(load), "{}", load.name);
            }
        }
    }
}
