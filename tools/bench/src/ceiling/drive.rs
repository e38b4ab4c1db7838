//! Drives, by fio.

use crate::fio::{Fio, FioError};
use crate::model::{Ceiling, CeilingKind, Run, Unit, Workload};

/// So many operations in flight show what a drive can do at once.
const DEEP: u64 = 128;

/// What the storage behind a target does with the same workload: as it is, and with at least 128 operations in flight,
/// whichever is more; and what one operation alone takes. Each of the three runs takes `seconds`.
///
/// # Errors
/// fio does not run.
pub fn drive(
    fio: &Fio<'_>,
    name: &str,
    workload: &Workload,
    seconds: f64,
    progress: &mut dyn FnMut(f64, f64),
) -> Result<Ceiling, FioError> {
    let with = |jobs: u32, depth: u32| Workload {
        jobs,
        depth,
        seconds,
        ramp_seconds: 0.0,
        rate_mib_per_s: None,
        ..workload.clone()
    };
    let jobs = workload.jobs.max(1);
    let deep = DEEP.div_ceil(u64::from(jobs)).max(u64::from(workload.depth));
    let deep = with(jobs, u32::try_from(deep).unwrap_or(u32::MAX));
    let same = with(jobs, workload.depth);
    let runs = [fio.run(&same, progress)?, fio.run(&deep, progress)?];
    let alone = fio.run(&with(1, 1), progress)?;
    let rates = [(same.outstanding(), runs[0].iops()), (deep.outstanding(), runs[1].iops())];
    let best = usize::from(rates[1].1 >= rates[0].1);
    let (outstanding, value) = rates[best];
    let how = format!(
        "fio, {} on {name} for {seconds:.2} s: {:.0} IOPS with {} in flight, {:.0} with {}",
        workload.name, rates[0].1, rates[0].0, rates[1].1, rates[1].0
    );
    Ok(Ceiling {
        kind: CeilingKind::Drive,
        name: format!("drive {name}"),
        value,
        unit: Unit::Iops,
        how,
        target: None,
        workload: Some(workload.name.clone()),
        outstanding: Some(outstanding),
        latency_us: mean_us(&alone),
        generator_busy: runs[best].generator_busy(),
    })
}

/// By the clock, or by how many were done one after the other.
fn mean_us(run: &Run) -> Option<f64> {
    let counted = (run.iops() > 0.0).then(|| 1e6 / run.iops());
    run.latency().map(|latency| latency.mean_us).or(counted)
}
