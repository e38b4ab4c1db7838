//! What the verdict says.

use lunet_api::{AtLimit, BoundBy, LimitKind, Stage};

use super::observed::Observed;

pub(crate) fn percent(share: f64) -> String {
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

/// Bytes in so many seconds, as a rate.
fn rate(bytes: u64, seconds: f64) -> String {
    bytes_per_second(bytes as f64 / seconds.max(1e-9))
}

/// Bytes per second.
pub(crate) fn bytes_per_second(rate: f64) -> String {
    match rate {
        many if many >= 1e6 => format!("{:.1} MiB/s", many / f64::from(1 << 20)),
        few => format!("{:.1} KiB/s", few / 1024.0),
    }
}

/// The verdict in a sentence.
pub(crate) fn sentence(of: &Observed, bound: &BoundBy, at_limit: Option<&AtLimit>) -> String {
    let Some(AtLimit { kind, name, used }) = at_limit else { return by_stage(of, bound) };
    let used = used.map_or_else(String::new, percent);
    let way = if *bound == BoundBy::NetworkOut { "sends" } else { "receives" };
    let more = match kind {
        LimitKind::Link => {
            return format!("Bound by the link {name}: it {way} {used} of what it can.");
        }
        LimitKind::Slot => {
            return format!(
                "Bound by the network card's slot {name}: the card {way} {used} of what it can."
            );
        }
        LimitKind::Drive => format!(", and {name} is at its limit, {used}"),
        LimitKind::Pool => format!(", and a drive of {name} is at its limit, {used}"),
        LimitKind::QueueDepth if *bound == BoundBy::Storage => format!(
            ", and initiators had {:.1} at work on average: with more at a time it would do more",
            of.depth()
        ),
        _ => return by_stage(of, bound),
    };
    by_stage(of, bound).trim_end_matches('.').to_owned() + &more + "."
}

/// What is to be said besides where operations fail: to be fast is worth nothing then.
pub(crate) fn failing(of: &Observed) -> &'static str {
    match of.errors {
        0 => "",
        many if many * 2 >= of.operations => " Most operations end with an error.",
        _ => " Some operations end with an error.",
    }
}

/// The same without what is at its limit.
fn by_stage(of: &Observed, bound: &BoundBy) -> String {
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
        BoundBy::BufferMemory if of.refused > of.operations => format!(
            "Bound by buffer memory: {} of it are in use, and {} commands were refused for want of it (TASK SET FULL).",
            percent(of.buffers),
            of.refused
        ),
        BoundBy::BufferMemory => format!(
            "Bound by buffer memory: operations waited for it for {} of the time.",
            part(&[Stage::BufferMemory])
        ),
        BoundBy::Storage => format!(
            "Bound by the storage: operations waited for it for {} of the time.",
            part(&[Stage::Storage])
        ),
        BoundBy::Queue if of.is_held_back() => {
            let what = match of.whose_limit() {
                Some("volume") => "the volume's limit that was set",
                Some("initiator") => "a limit that was set for an initiator",
                Some("session") => "a limit that was set for sessions",
                Some(_) => "the volume's share of its storage",
                None => "a limit that was set",
            };
            format!(
                "Bound by {what}: operations waited for their turn for {} of the time.",
                part(&[Stage::Limit])
            )
        }
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
    if of.errors > 0 {
        told.push(format!(
            "{} operations ended with an error: `lunet volume list` and the log say what is wrong with storage.",
            of.errors
        ));
    }
    if of.refused > 0 {
        told.push(format!(
            "{} commands were refused for want of buffer memory (TASK SET FULL).",
            of.refused
        ));
    }
    if of.storage_full > 0 {
        told.push(format!(
            "{} waits because the storage had as much to do as it may have.",
            of.storage_full
        ));
    }
    told
}
