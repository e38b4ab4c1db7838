//! What expressions can use beside CEL's own functions.
//!
//! | function | gives |
//! |---|---|
//! | `known(x)` | whether x is not null |
//! | `or(x, y)` | x, or y if x is null |
//! | `get(map, name)` | the value of that name, or null |
//! | `iec(bytes)` | `512 GiB` |
//! | `rate(bytes_per_second)` | `15.8 GB/s` |
//! | `gbit(mbit_per_second)` | `100 Gbit/s` |
//! | `percent(a, b)` | a in percent of b, rounded |
//! | `total(map, list)` | the sum of what the map has of these names; 0 if it has none of them |
//! | `often(count, seconds)` | `2.5 per second`, `3 per minute`, `1 per hour` |
//! | `sum(list)`, `least(list)`, `most(list)` | of numbers; null if there are none or one is null |
//! | `unique(list)`, `sort(list)` | without repetition; in order |
//! | `join(list, text)` | one text |
//! | `change(map, text, list)` | the `NAME=VALUE` of the list that the map has otherwise or not at all, after the text: a list of one step, or an empty one |
//! | `raise(map, text, list)` | the same of those for which the map has a lower number; of several numbers the last one counts |
//! | `flatten(list)` | of lists, one list |
//! | `round(x)`, `ceil_div(a, b)`, `pow2(n)` | whole numbers |
//! | `in_network(address, "10.0.0.1/24")` | whether the address is in that network |
//! | `is_public(address)` | whether it can be reached from the Internet |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use cel::objects::Key;
use cel::{Context, ExecutionError, Value};

use super::template::{fraction, show};
use crate::facts::{in_network, ip};

/// What a function says that was given `null`.
pub(super) const UNKNOWN: &str = "null is not known";

type Answer = Result<Value, ExecutionError>;

/// Adds all functions.
pub(super) fn add(context: &mut Context<'_>) {
    context.add_function("known", |value: Value| !matches!(value, Value::Null));
    context.add_function("or", or);
    context.add_function("get", get);
    context.add_function("total", total);
    context.add_function("often", often);
    context.add_function("iec", |bytes: Value| text("iec", bytes, iec));
    context.add_function("rate", |bytes: Value| text("rate", bytes, rate));
    context.add_function("gbit", |mbit: Value| text("gbit", mbit, gbit));
    context.add_function("percent", percent);
    context.add_function("sum", |list: Value| numbers("sum", list, |a, b| a + b));
    context.add_function("least", |list: Value| numbers("least", list, f64::min));
    context.add_function("most", |list: Value| numbers("most", list, f64::max));
    context.add_function("unique", |list: Value| unique(&list));
    context.add_function("sort", |list: Value| sort(&list));
    context.add_function("join", join);
    context.add_function("change", |map: Value, text: Arc<String>, list: Value| {
        step("change", &map, &text, &list, |now, wanted| words(now).as_deref() == Some(wanted))
    });
    context.add_function("raise", |map: Value, text: Arc<String>, list: Value| {
        let last = |text: &str| text.split([' ', ',']).next_back()?.parse::<i64>().ok();
        step("raise", &map, &text, &list, |now, wanted| {
            let now = words(now).and_then(|now| last(&now));
            now.is_some_and(|now| last(wanted).is_some_and(|wanted| now >= wanted))
        })
    });
    context.add_function("flatten", |list: Value| flatten(&list));
    context.add_function("round", |value: Value| {
        Ok::<_, ExecutionError>(Value::Int(number("round", &value)?.round() as i64))
    });
    context.add_function("ceil_div", |a: i64, b: i64| match b {
        1.. => Ok(Value::Int(a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0))),
        _ => Err(wrong("ceil_div", "by zero or less")),
    });
    context.add_function("pow2", |n: i64| match n {
        0..=62 => Ok(Value::Int(1 << n)),
        _ => Err(wrong("pow2", "only of 0 to 62")),
    });
    context.add_function("in_network", in_network_value);
    context.add_function("is_public", |address: Value| match address {
        Value::Null => Err(wrong("is_public", UNKNOWN)),
        Value::String(text) => Ok(Value::Bool(ip(&text).is_some_and(is_public))),
        _ => Err(wrong("is_public", "wants an address")),
    });
}

fn wrong(function: &str, message: &str) -> ExecutionError {
    ExecutionError::function_error(function, message)
}

fn or(value: Value, other: Value) -> Answer {
    Ok(match value {
        Value::Null => other,
        value => value,
    })
}

fn get(map: Value, name: Value) -> Answer {
    match (map, name) {
        (Value::Map(map), Value::String(name)) => {
            Ok(map.get(&Key::String(name)).cloned().unwrap_or(Value::Null))
        }
        (Value::Null, _) => Ok(Value::Null),
        _ => Err(wrong("get", "wants a map and a name")),
    }
}

fn total(map: Value, names: Value) -> Answer {
    let names = items("total", &names)?;
    let Value::Map(map) = map else { return Err(wrong("total", UNKNOWN)) };
    let mut sum: i64 = 0;
    for name in names.iter() {
        let Value::String(name) = name else { return Err(wrong("total", "wants names")) };
        match map.get(&Key::String(name.clone())) {
            Some(Value::Int(number)) => sum = sum.saturating_add(*number),
            None | Some(Value::Null) => {}
            Some(_) => return Err(wrong("total", "wants whole numbers")),
        }
    }
    Ok(Value::Int(sum))
}

fn often(count: Value, seconds: Value) -> Answer {
    let (count, seconds) = (number("often", &count)?, number("often", &seconds)?);
    if seconds < 1.0 {
        return Err(wrong("often", UNKNOWN));
    }
    let units = [("second", 1.0), ("minute", 60.0), ("hour", 3600.0)];
    let fits = |unit: &&(&str, f64)| count * unit.1 / seconds >= 1.0;
    let (name, length) = units.iter().find(fits).unwrap_or(&("day", 86_400.0));
    Ok(format!("{} per {name}", fraction(count * length / seconds)).into())
}

/// A number of either kind.
fn number(function: &str, value: &Value) -> Result<f64, ExecutionError> {
    match value {
        Value::Int(number) => Ok(*number as f64),
        Value::UInt(number) => Ok(*number as f64),
        Value::Float(number) => Ok(*number),
        Value::Null => Err(wrong(function, UNKNOWN)),
        _ => Err(wrong(function, "wants a number")),
    }
}

fn text(function: &str, value: Value, write: fn(f64) -> String) -> Answer {
    Ok(write(number(function, &value)?).into())
}

/// Bytes of memory or storage.
pub(crate) fn iec(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Bytes per second.
pub(crate) fn rate(bytes: f64) -> String {
    scaled(bytes, 1000.0, &["B/s", "KB/s", "MB/s", "GB/s", "TB/s"])
}

fn gbit(mbit: f64) -> String {
    match mbit {
        less if less < 1000.0 => format!("{} Mbit/s", fraction(less)),
        _ => format!("{} Gbit/s", fraction(mbit / 1000.0)),
    }
}

fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number.abs() >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    format!("{} {}", fraction(number), units[unit])
}

fn percent(part: Value, whole: Value) -> Answer {
    let (part, whole) = (number("percent", &part)?, number("percent", &whole)?);
    match whole {
        0.0 => Err(wrong("percent", UNKNOWN)),
        whole => Ok(Value::Int((part * 100.0 / whole).round() as i64)),
    }
}

fn items(function: &str, list: &Value) -> Result<Arc<Vec<Value>>, ExecutionError> {
    match list {
        Value::List(list) => Ok(list.clone()),
        Value::Null => Err(wrong(function, UNKNOWN)),
        _ => Err(wrong(function, "wants a list")),
    }
}

/// Whole numbers stay whole.
fn numbers(function: &str, list: Value, join: fn(f64, f64) -> f64) -> Answer {
    let list = items(function, &list)?;
    if list.iter().any(|value| matches!(value, Value::Null)) {
        return Ok(Value::Null);
    }
    let whole = list.iter().all(|value| matches!(value, Value::Int(_)));
    let numbers: Result<Vec<f64>, _> = list.iter().map(|value| number(function, value)).collect();
    Ok(match numbers?.into_iter().reduce(join) {
        Some(number) if whole => Value::Int(number as i64),
        Some(number) => Value::Float(number),
        None => Value::Null,
    })
}

fn unique(list: &Value) -> Answer {
    let mut found: Vec<Value> = Vec::new();
    for value in items("unique", list)?.iter() {
        if !found.contains(value) {
            found.push(value.clone());
        }
    }
    Ok(Value::List(found.into()))
}

fn sort(list: &Value) -> Answer {
    let mut list = items("sort", list)?.to_vec();
    list.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    Ok(Value::List(list.into()))
}

fn flatten(list: &Value) -> Answer {
    let mut all = Vec::new();
    for list in items("flatten", list)?.iter() {
        all.extend(items("flatten", list)?.iter().cloned());
    }
    Ok(Value::List(all.into()))
}

fn join(list: Value, between: Arc<String>) -> Answer {
    let words: Option<Vec<String>> = items("join", &list)?.iter().map(show).collect();
    match words {
        Some(words) => Ok(words.join(&between).into()),
        None => Err(wrong("join", UNKNOWN)),
    }
}

/// A setting as the kernel shows it: its words with single spaces between them.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::List(list) => {
            let words: Option<Vec<String>> = list.iter().map(show).collect();
            Some(words?.join(" "))
        }
        value => show(value),
    }
}

/// The settings of the list (`NAME=VALUE`) that are not as they should be, after a text: a list of one step, or an empty
/// one. So no fix tells anybody to set what is set.
fn step(
    function: &str,
    map: &Value,
    text: &str,
    list: &Value,
    done: impl Fn(&Value, &str) -> bool,
) -> Answer {
    let mut left = Vec::new();
    for setting in items(function, list)?.iter() {
        let Value::String(setting) = setting else { return Err(wrong(function, "wants texts")) };
        let Some((name, value)) = setting.split_once('=') else {
            return Err(wrong(function, "wants NAME=VALUE"));
        };
        let now = match map {
            Value::Map(map) => map.get(&Key::String(Arc::new(name.to_owned()))),
            _ => None,
        };
        if now.is_some_and(|now| done(now, value)) {
            continue;
        }
        left.push(match value.contains(' ') {
            true => format!("{name}='{value}'"),
            false => format!("{name}={value}"),
        });
    }
    let steps = match left.is_empty() {
        true => Vec::new(),
        false => vec![Value::from(format!("{text}{}", left.join(" ")))],
    };
    Ok(Value::List(steps.into()))
}

fn in_network_value(address: Value, network: Value) -> Answer {
    match (address, network) {
        (Value::String(address), Value::String(network)) => {
            Ok(Value::Bool(in_network(&address, &network)))
        }
        (Value::Null, _) | (_, Value::Null) => Err(wrong("in_network", UNKNOWN)),
        _ => Err(wrong("in_network", "wants an address and a network")),
    }
}

/// Whether an address can be reached from the Internet.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || v4.is_multicast()
                || v4 == Ipv4Addr::UNSPECIFIED
                || shared)
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            let local = first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80;
            !(local || v6.is_loopback() || v6.is_multicast() || v6 == Ipv6Addr::UNSPECIFIED)
        }
    }
}
