//! What binds a running server now: a pure function of two looks at its statistics.
//!
//! Each volume is judged by where its time went: the part in which nothing was at work is the initiator's, and the rest is
//! divided as the operations that were timed have waited. The largest part binds. Only a shard without idle time comes
//! before that, because whatever waits for it seems to wait for something else; and a link that is full, because what the
//! kernel still holds for it has left the server. docs/design/attribution.md says why.
#![forbid(unsafe_code)]

mod observed;
mod parts;
mod words;

use std::time::Duration;

use lunet_api::rates::Sample;
use lunet_api::{
    AtLimit, Binding, BoundBy, LimitKind, SilentShard, Stage, StageShare, Stats, Verdict,
    VolumeBinding,
};

use self::observed::{ITERATIONS, Observed, ShardUse};
use self::parts::{PartUse, Way};

/// A shard that is used, or waits for a processor, for more of the time cannot take more: what is left are its wake-ups.
const BUSY_SHARD: f64 = 0.9;

/// Buffer memory is short if more of it is in use. Otherwise an operation that waits for it waits for what others of its
/// own connection hold, and those wait for something else.
const SHORT_MEMORY: f64 = 0.75;

/// Memory that commands are refused for is short if more of it is in use: the rest is kept for what each connection is
/// promised. Where it is less, it is the storage of one volume that holds what it may have.
const REFUSING_MEMORY: f64 = 2.0 / 3.0;

/// A link is full for the sake of a volume, or of all, if they have at least this part of what it carries.
const OWN_TRAFFIC: f64 = 0.1;

/// With fewer operations at work on average, storage has room for more at a time.
const SHALLOW: f64 = 1.5;

/// Storage that takes longer than this for an operation, in microseconds, is in trouble, whatever is asked of it.
const TROUBLE_US: f64 = 50_000.0;

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
    let parts = PartUse::all(before, after, elapsed);
    let mut all = Observed::default();
    // Operations of volumes that a shard binds.
    let mut on_busy_shards = 0;
    let volumes = after.volumes.iter().map(|now| {
        let then = before.volumes.iter().find(|then| then.name == now.name);
        let of = Observed::between(then, now, &shards, elapsed);
        let bound = bound_by(&of);
        on_busy_shards += if bound == BoundBy::ShardCpu { of.operations } else { 0 };
        all.add(&of);
        let way = Way { all: &parts, volume: Some(&now.name) };
        VolumeBinding { name: now.name.clone(), binding: binding(&of, bound, way) }
    });
    let volumes: Vec<VolumeBinding> = volumes.collect();
    all.refused = after.protocol.task_set_full.saturating_sub(before.protocol.task_set_full);
    all.buffers = shards.iter().map(|shard| shard.buffers).fold(all.buffers, f64::max);
    let bound = if all.operations > 0 && on_busy_shards * 2 >= all.operations {
        BoundBy::ShardCpu
    } else if all.refused > all.operations && all.buffers >= REFUSING_MEMORY {
        // A command that is refused for want of memory is none that waits.
        BoundBy::BufferMemory
    } else {
        by_time(&all)
    };
    let way = Way { all: &parts, volume: None };
    let mut server = binding(&all, bound, way);
    if let Some(missing) = SilentShard::sentence(&after.silent_shards) {
        // Before anything else: what is judged may be the smaller part.
        server.sentence = format!("Incomplete: {missing}. {}", server.sentence);
    }
    Some(Verdict { server, volumes, silent_shards: after.silent_shards.clone() })
}

fn binding(of: &Observed, bound: BoundBy, way: Way<'_>) -> Binding {
    let mut stages: Vec<StageShare> = Stage::KNOWN
        .iter()
        .map(|stage| StageShare { stage: stage.clone(), share: of.share(stage) })
        .filter(|one| one.share > 0.0)
        .collect();
    stages.sort_by(|a, b| b.share.total_cmp(&a.share));
    let (bound, at_limit) = limited(of, bound, way);
    let mut evidence = words::evidence(of);
    if !of.is_idle() {
        evidence.extend(way.evidence());
    }
    Binding {
        sentence: words::sentence(of, &bound, at_limit.as_ref()) + words::failing(of),
        at_limit,
        evidence,
        bound_by: bound,
        stages,
        sampled: of.timed,
    }
}

/// What binds when the machine's parts are looked at, and which resource is at its limit.
fn limited(of: &Observed, bound: BoundBy, way: Way<'_>) -> (BoundBy, Option<AtLimit>) {
    let named = |kind, name: String, used| Some(AtLimit { kind, name, used });
    let limit = match &bound {
        BoundBy::Initiator | BoundBy::NetworkIn | BoundBy::NetworkOut => {
            // The kernel takes what its socket buffers hold, and the link is behind them.
            if let Some(link) = way.full_link().filter(|link| of.has_share(link, OWN_TRAFFIC)) {
                let bound = if link.sends() { BoundBy::NetworkOut } else { BoundBy::NetworkIn };
                return (bound, Some(link.at_limit()));
            }
            let asks_little = bound == BoundBy::Initiator;
            if asks_little { named(LimitKind::QueueDepth, String::new(), None) } else { None }
        }
        BoundBy::ShardCpu => of.shard.and_then(|shard| {
            named(LimitKind::ShardCpu, format!("shard {}", shard.shard), Some(shard.occupied()))
        }),
        BoundBy::BufferMemory => named(LimitKind::BufferMemory, String::new(), Some(of.buffers)),
        BoundBy::Queue if of.is_held_back() => {
            named(LimitKind::Rate, of.whose_limit().unwrap_or_default().to_owned(), None)
        }
        BoundBy::Storage => way.full_drive().or_else(|| {
            let is_well = of.mean_us().is_some_and(|us| us < TROUBLE_US) && of.errors == 0;
            let waits = is_well && of.depth() < SHALLOW;
            if waits { named(LimitKind::QueueDepth, String::new(), None) } else { None }
        }),
        _ => None,
    };
    (bound, limit)
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
