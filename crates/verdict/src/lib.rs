//! What binds a running server now: a pure function of two looks at its statistics.
//!
//! Each volume is judged by where its time went: the part in which nothing was at work is the initiator's, and the rest is
//! divided as the operations that were timed have waited. The largest part binds. Only a shard without idle time comes
//! before that, because whatever waits for it seems to wait for something else. docs/design/attribution.md says why.
#![forbid(unsafe_code)]

mod observed;
mod words;

use std::time::Duration;

use lunet_api::rates::Sample;
use lunet_api::{Binding, BoundBy, Stage, StageShare, Stats, Verdict, VolumeBinding};

use self::observed::{ITERATIONS, Observed, ShardUse};

/// A shard that is used, or waits for a processor, for more of the time cannot take more: what is left are its wake-ups.
const BUSY_SHARD: f64 = 0.9;

/// Buffer memory is short if more of it is in use. Otherwise an operation that waits for it waits for what others of its
/// own connection hold, and those wait for something else.
const SHORT_MEMORY: f64 = 0.75;

/// Judges a server by what it has done between two samples, as [`verdict`] does.
pub fn between(before: &Sample, after: &Sample) -> Option<Verdict> {
    let elapsed = after.at.saturating_duration_since(before.at);
    verdict(&before.stats, &after.stats, elapsed)
}

/// Judges a server by what it has done between two answers to `stats`, which were asked for with this time between them.
/// `None` if it was started anew in between, or no time has passed.
pub fn verdict(before: &Stats, after: &Stats, elapsed: Duration) -> Option<Verdict> {
    if elapsed.is_zero() || !after.goes_on_from(before) {
        return None;
    }
    let shards = ShardUse::all(before, after, elapsed);
    let mut all = Observed::default();
    // Operations of volumes that a shard binds.
    let mut on_busy_shards = 0;
    let volumes = after.volumes.iter().map(|now| {
        let then = before.volumes.iter().find(|then| then.name == now.name);
        let of = Observed::between(then, now, &shards, elapsed);
        let bound = bound_by(&of);
        on_busy_shards += if bound == BoundBy::ShardCpu { of.operations } else { 0 };
        all.add(&of);
        VolumeBinding { name: now.name.clone(), binding: binding(&of, bound) }
    });
    let volumes: Vec<VolumeBinding> = volumes.collect();
    let bound = match all.operations > 0 && on_busy_shards * 2 >= all.operations {
        true => BoundBy::ShardCpu,
        false => by_time(&all),
    };
    Some(Verdict { server: binding(&all, bound), volumes })
}

fn binding(of: &Observed, bound: BoundBy) -> Binding {
    let mut stages: Vec<StageShare> = Stage::KNOWN
        .iter()
        .map(|stage| StageShare { stage: stage.clone(), share: of.share(stage) })
        .filter(|one| one.share > 0.0)
        .collect();
    stages.sort_by(|a, b| b.share.total_cmp(&a.share));
    Binding {
        sentence: words::sentence(of, &bound),
        evidence: words::evidence(of),
        bound_by: bound,
        stages,
        sampled: of.timed,
    }
}

fn bound_by(of: &Observed) -> BoundBy {
    let busy = of.shard.is_some_and(|shard| {
        let iteration = shard.iteration_ns;
        shard.occupied() >= BUSY_SHARD && of.storage_ns() < ITERATIONS * iteration
    });
    if busy && of.operations > 0 { BoundBy::ShardCpu } else { by_time(of) }
}

/// What the most of the time went to.
fn by_time(of: &Observed) -> BoundBy {
    if !of.tells {
        return BoundBy::default();
    }
    if of.is_idle() {
        return BoundBy::Idle;
    }
    let share = |stages: &[Stage]| stages.iter().map(|stage| of.share(stage)).sum::<f64>();
    let short = of.buffers >= SHORT_MEMORY;
    let parts = [
        (share(&[Stage::Initiator]), BoundBy::Initiator),
        (share(&[Stage::NetworkIn, Stage::Data]), BoundBy::NetworkIn),
        (share(&[Stage::NetworkOut]), BoundBy::NetworkOut),
        (if short { share(&[Stage::BufferMemory]) } else { 0.0 }, BoundBy::BufferMemory),
        (share(&[Stage::Queue, Stage::Limit]), BoundBy::Queue),
        (share(&[Stage::Storage]), BoundBy::Storage),
    ];
    let most = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    most.map_or(BoundBy::Idle, |(_, bound)| bound)
}

#[cfg(test)]
mod tests;
