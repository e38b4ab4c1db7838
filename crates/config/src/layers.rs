//! `[[volumes.NAME.layers]]`: what makes a volume fail, slow or hang, for tests.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use lunet_backends::layers::{ALWAYS, Effect, Layer, Ops, Rate, Which};
use toml::de::DeValue;

use super::mistake::Mistakes;
use super::reader::{Convert, Section, choice, duration, integer, share, size};
use super::schema;
use super::volumes::MAX_SIZE;

const KINDS: &[(&str, Ops)] = &[
    ("read", Ops::READ),
    ("write", Ops::WRITE),
    ("flush", Ops::FLUSH),
    ("unmap", Ops::UNMAP),
    ("all", Ops::ALL),
];

/// Linux error numbers that storage answers with.
const ERRORS: &[(&str, i32)] = &[
    ("EIO", 5),
    ("EBUSY", 16),
    ("ENODEV", 19),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("EOPNOTSUPP", 95),
    ("ETIMEDOUT", 110),
];

/// Longer than any initiator waits.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// More than any storage does in a second.
const MOST_IOPS: u64 = 1_000_000_000;

/// The layers of a volume, in order.
pub(super) fn layers(volume: &Section<'_>, mistakes: &mut Mistakes) -> Vec<Layer> {
    let Some(value) = volume.raw("layers") else { return Vec::new() };
    let Some(array) = value.get_ref().as_array() else {
        let text = "must be an array of tables, as in [{ delay = \"5ms\" }]";
        mistakes.add(value.span().start, volume.key("layers"), text);
        return Vec::new();
    };
    let path = volume.key("layers");
    let table = |value, mistakes: &mut _| {
        let table = Section::open(value, path.clone(), &schema::LAYER, mistakes)?;
        layer(&table, mistakes)
    };
    array.iter().filter_map(|value| table(value, mistakes)).collect()
}

fn layer(table: &Section<'_>, mistakes: &mut Mistakes) -> Option<Layer> {
    let ops: Convert<'_, Ops> = &|v| choice(v, KINDS);
    let time: Convert<'_, Duration> = &|v| duration(v, Duration::ZERO..=LONGEST);
    let mut errno = ERRORS[0].1;
    table.set("errno", &mut errno, &|v: &DeValue<'_>| choice(v, ERRORS), mistakes);
    let (mut spread, mut on) = (Duration::ZERO, Ops::ALL);
    table.set("spread", &mut spread, time, mistakes);
    table.set("on", &mut on, ops, mistakes);
    let fault = table.get("fault", ops, mistakes);
    let hang = table.get("hang", ops, mistakes);
    let delay = table.get("delay", time, mistakes);
    let limit = table.get("limit", &|v| at_least_one(size(v, 1..=MAX_SIZE)?), mistakes);
    let iops = table.get("iops", &|v| at_least_one(integer(v, 1..=MOST_IOPS)?), mistakes);
    let effects = ["fault", "hang", "delay", "limit", "iops"];
    let given: Vec<&str> = effects.into_iter().filter(|key| table.raw(key).is_some()).collect();
    let [one] = given[..] else {
        let text = "must have one of fault, delay, hang, limit and iops";
        mistakes.add(table.offset, table.path.clone(), text);
        return None;
    };
    let slower: &[&str] = &["delay", "limit", "iops"];
    for (key, of) in [("errno", &["fault"][..]), ("spread", &["delay"]), ("on", slower)] {
        if let Some(value) = table.raw(key).filter(|_| !of.contains(&one)) {
            let text = format!("has no meaning beside {one}: it belongs to {}", of.join(", "));
            mistakes.add(value.span().start, table.key(key), text);
        }
    }
    let rate = limit.map(|rate| Rate::Bytes(rate.value));
    let rate = rate.or(iops.map(|rate| Rate::Operations(rate.value)));
    let (effect, ops) = match (fault, delay, hang, rate) {
        (Some(ops), ..) => (Effect::Fault(errno), ops.value),
        (_, Some(time), ..) => (Effect::Delay { time: time.value, spread }, on),
        (_, _, Some(ops), _) => (Effect::Hang, ops.value),
        (.., Some(rate)) => (Effect::Limit(rate), on),
        (None, None, None, None) => return None,
    };
    let (range, which) = (range(table, mistakes), which(table, mistakes));
    Some(Layer { effect, ops, range, which })
}

fn at_least_one(rate: u64) -> Result<NonZeroU64, String> {
    NonZeroU64::new(rate).ok_or_else(|| "must be at least 1".to_owned())
}

fn range(table: &Section<'_>, mistakes: &mut Mistakes) -> Option<Range<u64>> {
    let place: Convert<'_, u64> = &|v| size(v, 0..=MAX_SIZE);
    let from = table.get("from", place, mistakes).map(|found| found.value);
    let to = table.get("to", place, mistakes);
    if from.is_none() && to.is_none() {
        return None;
    }
    let from = from.unwrap_or(0);
    if let Some(to) = to.as_ref().filter(|to| to.value <= from) {
        mistakes.add(to.offset, table.key("to"), "must be larger than from");
        return None;
    }
    Some(from..to.map_or(u64::MAX, |to| to.value))
}

fn which(table: &Section<'_>, mistakes: &mut Mistakes) -> Which {
    let part = table.get("share", &millionths, mistakes);
    let nth = table.get("nth", &|v| integer(v, 1..=i64::MAX as u64), mistakes);
    match (part, nth) {
        (Some(_), Some(nth)) => {
            mistakes.add(nth.offset, table.key("nth"), "contradicts share");
            Which::Nth(nth.value)
        }
        (None, Some(nth)) => Which::Nth(nth.value),
        (part, None) => Which::Share(part.map_or(ALWAYS, |part| part.value)),
    }
}

/// A share of requests, which is kept in millionths.
fn millionths(value: &DeValue<'_>) -> Result<u32, String> {
    let wanted = share(value)? * 1e6;
    // Decimals are not exact in binary.
    match (wanted - wanted.round()).abs() < 1e-6 {
        true => Ok(wanted.round() as u32),
        false => Err("must be a whole number of millionths, as in 0.000001".to_owned()),
    }
}
