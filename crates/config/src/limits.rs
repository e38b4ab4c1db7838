//! `iops`, `bandwidth` and `burst` of volumes, and `[[limit]]`: how much may be done in a time.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::time::Duration;

use lunet_volume::{ClientRates, Rates};
use toml::de::DeValue;

use super::mistake::Mistakes;
use super::reader::{Convert, Section, choice, integer, size, string, whole};
use super::schema;
use crate::units::{self, Grain};

/// Operations each second that a limit can be set to.
pub const IOPS: RangeInclusive<u64> = 1..=10_000_000;

/// Bytes each second.
pub const BANDWIDTH: RangeInclusive<u64> = 64 << 10..=1 << 40;

/// What may be saved up.
pub const BURST: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(300);

/// Names in a list, and tables, at the most.
const MOST: usize = 256;

/// What a limit of clients is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Each {
    /// Each initiator, with all its sessions.
    Initiator,
    /// Each session.
    Session,
}

const EACH: &[(&str, Each)] = &[("initiator", Each::Initiator), ("session", Each::Session)];

/// `[[limit]]`: what initiators may do in a time.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientLimit {
    /// What has it.
    pub each: Each,
    /// Patterns of names in lower case; all initiators if there are none.
    pub initiators: Vec<String>,
    /// The limit.
    pub rates: Rates,
}

impl ClientLimit {
    fn is_of(&self, name: &str) -> bool {
        let fits = |pattern: &String| lunet_front_iscsi::matches(pattern, name);
        self.initiators.is_empty() || self.initiators.iter().any(fits)
    }
}

/// What an initiator of this name, in lower case, is limited to: for it and for its sessions the first table counts that
/// fits.
pub fn rates_of(limits: &[ClientLimit], name: &str) -> ClientRates {
    let first = |each| limits.iter().find(|limit| limit.each == each && limit.is_of(name));
    let rates = |each| first(each).map_or_else(Rates::default, |limit| limit.rates);
    ClientRates { host: rates(Each::Initiator), session: rates(Each::Session) }
}

/// Reads all `[[limit]]`.
pub(super) fn limits(top: &Section<'_>, mistakes: &mut Mistakes) -> Vec<ClientLimit> {
    let Some(value) = top.raw("limit") else { return Vec::new() };
    let tables = value.get_ref().as_array().filter(|tables| tables.len() <= MOST);
    let Some(tables) = tables else {
        let text = format!("must be written as [[limit]], once for each, {MOST} times at most");
        mistakes.add(value.span().start, "limit", text);
        return Vec::new();
    };
    let mut out = Vec::new();
    for (n, value) in tables.iter().enumerate() {
        let Some(table) = Section::open(value, format!("limit[{n}]"), &schema::LIMIT, mistakes)
        else {
            continue;
        };
        let each = table.get("each", &|v| choice(v, EACH), mistakes);
        table.missing("each", mistakes);
        let initiators = table.get("initiators", &names, mistakes);
        let rates = rates(&table, mistakes);
        if ["iops", "bandwidth"].iter().all(|key| table.raw(key).is_none()) {
            mistakes.add(table.offset, table.path.clone(), "must have iops or bandwidth");
        }
        let initiators = initiators.map(|found| found.value).unwrap_or_default();
        out.extend(each.map(|each| ClientLimit { each: each.value, initiators, rates }));
    }
    out
}

/// Names of initiators and of NVMe hosts, possibly with asterisks.
fn names(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let wrong =
        || format!("must be an array of 1 to {MOST} names; leave it out for all initiators");
    let items = value.as_array().filter(|items| (1..=MOST).contains(&items.len()));
    let name = |text: String| {
        let plain = |c: char| c.is_alphanumeric() || "-.:_*".contains(c);
        match (1..=223).contains(&text.len()) && text.chars().all(plain) {
            true => Ok(text.to_lowercase()),
            false => Err(format!(
                "\"{text}\" is no name of an initiator or an NVMe host: write it as in \"iqn.1993-08.org.debian:01:host1\" or \"nqn.2014-08.*\""
            )),
        }
    };
    items.ok_or_else(wrong)?.iter().map(|item| string(item.get_ref()).and_then(name)).collect()
}

/// Weights.
pub const WEIGHT: RangeInclusive<u64> = 1..=1000;

/// Latency targets.
pub const TARGET: RangeInclusive<Duration> = Duration::from_micros(100)..=Duration::from_secs(10);

/// What a volume has of its storage, beside others on the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// How much, compared with them; as by default if left out.
    pub weight: Option<NonZeroU32>,
    /// Others give way if its requests take longer.
    pub target: Option<Duration>,
}

impl Share {
    /// True if it says anything.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }
}

/// `weight` and `latency-target`.
pub(super) fn share(table: &Section<'_>, mistakes: &mut Mistakes) -> Share {
    let mut share = Share::default();
    let weight: Convert<'_, Option<NonZeroU32>> =
        &|v| Ok(NonZeroU32::new(integer(v, WEIGHT)? as u32));
    let target: Convert<'_, Option<Duration>> =
        &|v| Ok(Some(whole(v, TARGET, Grain::Microsecond)?));
    table.set("weight", &mut share.weight, weight, mistakes);
    table.set("latency-target", &mut share.target, target, mistakes);
    share
}

/// The limit that a table has.
pub(super) fn rates(table: &Section<'_>, mistakes: &mut Mistakes) -> Rates {
    let mut rates = Rates::default();
    let iops: Convert<'_, Option<NonZeroU64>> = &|v| Ok(NonZeroU64::new(integer(v, IOPS)?));
    let bytes: Convert<'_, Option<NonZeroU64>> = &|v| Ok(NonZeroU64::new(bandwidth(v)?));
    table.set("iops", &mut rates.iops, iops, mistakes);
    table.set("bandwidth", &mut rates.bandwidth, bytes, mistakes);
    let burst = table.get("burst", &|v| whole(v, BURST, Grain::Millisecond), mistakes);
    if let Some(burst) = burst {
        if ["iops", "bandwidth"].iter().all(|key| table.raw(key).is_none()) {
            let text = "has no meaning without iops or bandwidth";
            mistakes.add(burst.offset, table.key("burst"), text);
        }
        rates.burst = burst.value;
    }
    rates
}

/// A size, with or without "/s" behind it.
fn bandwidth(value: &DeValue<'_>) -> Result<u64, String> {
    match value.as_str() {
        Some(text) => within(parse_bandwidth(text)?),
        None => size(value, BANDWIDTH),
    }
}

/// Bytes each second, such as `200MiB` or `200 MiB/s`.
///
/// # Errors
/// It is none.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    units::parse_size(text.strip_suffix("/s").unwrap_or(text)).map_err(|error| error.to_string())
}

fn within(bytes: u64) -> Result<u64, String> {
    let (least, most) = (BANDWIDTH.start(), BANDWIDTH.end());
    let text =
        || format!("must be from {} to {}", units::exact_size(*least), units::exact_size(*most));
    if BANDWIDTH.contains(&bytes) { Ok(bytes) } else { Err(text()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn volume(keys: &str) -> String {
        format!(
            "[volumes.a]\nbackend = 'null'\nsize = '1MiB'\n{keys}\n[[target]]\nname = 'iqn.2026-11.l:x'\n"
        )
    }

    #[test]
    fn limits_and_shares_of_a_volume_are_read() {
        let keys = "iops = 5000\nbandwidth = '200 MiB/s'\nburst = '2s'\nweight = 300\n\
                    latency-target = '2ms'";
        let config = check(&volume(keys)).expect("it is right");
        let expected = Rates {
            iops: NonZeroU64::new(5000),
            bandwidth: NonZeroU64::new(200 << 20),
            burst: Duration::from_secs(2),
        };
        let found = &config.volumes[0];
        assert_eq!(found.rates, expected);
        let target = Some(Duration::from_millis(2));
        assert_eq!(found.share, Share { weight: NonZeroU32::new(300), target });
        let config = check(&volume("")).expect("it is right");
        assert!(!config.volumes[0].rates.is_limit() && !config.volumes[0].share.is_some());
    }

    #[test]
    fn what_is_no_limit_is_told() {
        for (keys, key, text) in [
            ("iops = 0", "volumes.a.iops", "from 1 to 10000000"),
            ("bandwidth = '1KiB'", "volumes.a.bandwidth", "from 64 KiB"),
            ("bandwidth = 'fast'", "volumes.a.bandwidth", ""),
            ("iops = 1\nburst = '1ms'", "volumes.a.burst", "from 10 ms"),
            ("iops = 1\nburst = '12345us'", "volumes.a.burst", "finer than a millisecond"),
            ("burst = '1s'", "volumes.a.burst", "has no meaning without"),
            ("weight = 1001", "volumes.a.weight", "from 1 to 1000"),
            ("latency-target = '1us'", "volumes.a.latency-target", "from 100 us"),
            ("latency-target = '123456ns'", "volumes.a.latency-target", "finer than a microsecond"),
            (
                "[[limit]]\neach = 'session'\niops = 1\nburst = '1s1'",
                "limit[0].burst",
                "is not a duration",
            ),
            (
                "[[limit]]\neach = 'session'\niops = 1\nburst = '10.5ms'",
                "limit[0].burst",
                "finer than a millisecond",
            ),
            ("[[limit]]\niops = 1", "limit[0].each", "is missing"),
            ("[[limit]]\neach = 'session'", "limit[0]", "iops or bandwidth"),
            ("[[limit]]\neach = 'all'\niops = 1", "limit[0].each", "must be one of"),
            (
                "[[limit]]\neach = 'session'\niops = 1\ninitiators = ['a b']",
                "limit[0].initiators",
                "is no name",
            ),
        ] {
            let mistakes = check(&volume(keys)).expect_err(keys);
            assert_eq!(mistakes[0].key, key, "{keys}");
            assert!(mistakes[0].text.contains(text), "{keys}: {}", mistakes[0].text);
        }
    }

    #[test]
    fn the_first_table_that_fits_counts() {
        let keys = "[[limit]]\neach = 'initiator'\ninitiators = ['iqn.*:A', 'nqn.b']\niops = 1\n\
                    [[limit]]\neach = 'initiator'\niops = 2\n\
                    [[limit]]\neach = 'session'\niops = 3";
        let limits = check(&volume(keys)).expect("it is right").limits;
        let iops = |name| {
            let rates = rates_of(&limits, name);
            [rates.host, rates.session].map(|rates| rates.iops.map_or(0, NonZeroU64::get))
        };
        assert_eq!(iops("iqn.2026-11.l:a"), [1, 3]);
        assert_eq!(iops("nqn.b"), [1, 3]);
        assert_eq!(iops("iqn.2026-11.l:b"), [2, 3]);
        assert_eq!(rates_of(&[], "x"), ClientRates::default());
    }
}
