//! What the verdict says.

use lunet_api::{BoundBy, Stage};

use super::observed::Observed;

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A time in microseconds.
fn time(us: f64) -> String {
    match us {
        long if long >= 1e6 => format!("{:.1} s", long / 1e6),
        long if long >= 1e3 => format!("{:.1} ms", long / 1e3),
        short => format!("{short:.0} us"),
    }
}

/// Bytes per second.
fn rate(bytes: u64, seconds: f64) -> String {
    let rate = bytes as f64 / seconds.max(1e-9);
    match rate {
        many if many >= 1e6 => format!("{:.1} MiB/s", many / f64::from(1 << 20)),
        few => format!("{:.1} KiB/s", few / 1024.0),
    }
}

/// The verdict in a sentence.
pub(crate) fn sentence(of: &Observed, bound: &BoundBy) -> String {
    let part = |stages: &[Stage]| percent(stages.iter().map(|stage| of.share(stage)).sum());
    match bound {
        BoundBy::Idle => "Idle: there was no operation.".to_owned(),
        BoundBy::Initiator => format!(
            "Not bound by this server: nothing was at work for {} of the time, so the initiator or the network to it sets the pace.",
            part(&[Stage::Initiator])
        ),
        BoundBy::NetworkIn => format!(
            "Bound by the way in: for {} of the time operations waited for the rest of their command or for data from the initiator.",
            part(&[Stage::NetworkIn, Stage::Data])
        ),
        BoundBy::NetworkOut => format!(
            "Bound by the way out: for {} of the time data and answers waited for the network or the initiator to take them.",
            part(&[Stage::NetworkOut])
        ),
        BoundBy::ShardCpu => match of.shard {
            Some(shard) => format!(
                "Bound by the processor of shard {}: it had {} of the time left.",
                shard.shard,
                percent(1.0 - shard.occupied())
            ),
            None => "Bound by the processors of the shards.".to_owned(),
        },
        BoundBy::BufferMemory => format!(
            "Bound by buffer memory: operations waited for it for {} of the time.",
            part(&[Stage::BufferMemory])
        ),
        BoundBy::Storage => format!(
            "Bound by the storage: operations waited for it for {} of the time.",
            part(&[Stage::Storage])
        ),
        BoundBy::Queue if of.share(&Stage::Limit) >= of.share(&Stage::Queue) => format!(
            "Bound by a limit that was set: operations waited for their turn for {} of the time.",
            part(&[Stage::Limit])
        ),
        BoundBy::Queue => format!(
            "Bound by other commands: operations waited for ranges that others had for {} of the time.",
            part(&[Stage::Queue])
        ),
        BoundBy::Other(_) => {
            "This server does not tell where time goes: it is of an older version.".to_owned()
        }
    }
}

/// What was measured.
pub(crate) fn evidence(of: &Observed) -> Vec<String> {
    let mut told = Vec::new();
    if of.is_idle() {
        return told;
    }
    let per_second = of.operations as f64 / of.seconds.max(1e-9);
    let mut line = format!("{per_second:.0} operations/s");
    if let Some(mean) = of.mean_us() {
        line +=
            &format!(", {} each in the server, {:.1} at work on average", time(mean), of.depth());
    }
    told.push(line + &format!(", {} at the end.", of.in_flight));
    let (read, written) = of.bytes;
    told.push(format!("{} read, {} written.", rate(read, of.seconds), rate(written, of.seconds)));
    let at_storage = of.storage_busy();
    if at_storage > 0.0 {
        told.push(format!(
            "Requests were at the storage, or held back by a limit, for {} of the time.",
            percent(at_storage)
        ));
    }
    if let Some(shard) = of.shard {
        told.push(format!(
            "Shard {} used {} of a processor, and was ready without one for {}; {} of its buffers are in use.",
            shard.shard,
            percent(shard.used),
            percent(shard.ready),
            percent(shard.buffers)
        ));
    }
    if of.memory_waits > 0 {
        told.push(format!("{} operations waited for buffer memory.", of.memory_waits));
    }
    if of.storage_full > 0 {
        told.push(format!(
            "{} waits because the storage had as much to do as it may have.",
            of.storage_full
        ));
    }
    told
}
