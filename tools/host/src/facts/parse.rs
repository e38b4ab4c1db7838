//! Small things that are read the same way everywhere.

use std::net::IpAddr;
use std::str::FromStr;

/// A version as one number: 2.2.3 is 2002003, kernel 5.15.131 is 5015131, TrueNAS 23.10.2 is
/// 23010002. What follows the third number does not count.
pub fn version_num(version: &str) -> Option<i64> {
    let start = version.find(|c: char| c.is_ascii_digit())?;
    let mut parts = version[start..].split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        (part[..end].parse::<i64>().ok(), end == part.len())
    });
    let mut number = 0;
    let mut ended = false;
    for place in 0..3 {
        let (part, whole) = if ended { (None, true) } else { parts.next().unwrap_or_default() };
        if place == 0 {
            part?;
        }
        ended = ended || !whole;
        number = number * 1000 + part.unwrap_or(0).min(999);
    }
    Some(number)
}

/// `Key: value` lines, in the order in which they come. Keys and values are trimmed.
pub(super) fn colon_lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        Some((key.trim(), value.trim()))
    })
}

/// `KEY=value` lines of a shell's kind; quotes around the value fall away.
pub(super) fn shell_value(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches(['"', '\'']).to_owned())
    })
}

/// How many CPUs a list such as `0-3,8,10-11` names, and which.
pub(super) fn cpu_list(text: &str) -> Option<Vec<i64>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<i64>().ok()?, last.parse::<i64>().ok()?);
        if last - first > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The name with the number in it counted as a number: `eth2` before `eth10`.
pub(super) fn natural(name: &str) -> Vec<(String, i64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(text);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        parts.push((word.to_owned(), tail[..digits].parse().unwrap_or(-1)));
        rest = &tail[digits..];
    }
    parts
}

/// The names in the order in which people count.
pub(super) fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_by_cached_key(|name| natural(name));
    names
}

/// The number that a text begins with: `100 Mb/s`.
pub fn leading<T: FromStr>(text: &str) -> Option<T> {
    text.split_whitespace().next()?.parse().ok()
}

/// An address, in brackets or not.
pub fn ip(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.trim_matches(['[', ']']).parse().ok()?;
    Some(address.to_canonical())
}

/// Whether the address is in the network; not if one of them is none.
pub fn in_network(address: &str, network: &str) -> bool {
    let (base, length) = network.split_once('/').unwrap_or((network, "128"));
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let address = address.split_once('/').map_or(address, |(address, _)| address);
    match (ip(address), ip(base), length.parse::<u32>()) {
        (Some(address), Some(base), Ok(length)) if address.is_ipv4() == base.is_ipv4() => {
            let ((address, most), (base, _)) = (bits(address), bits(base));
            let length = length.min(most);
            length == 0 || (address ^ base) >> (128 - length) == 0
        }
        _ => false,
    }
}
