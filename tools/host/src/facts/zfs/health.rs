//! When pools were last checked, how they stand, and what OpenZFS has counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Dataset, Pool, Zvol};
use crate::source::Source;

/// The last or the running scrub or resilver of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scan {
    /// `scrub`, `resilver`, `none`: never.
    pub kind: String,
    /// `running`, `paused`, `done`, `canceled`.
    pub state: Option<String>,
    /// How far a running one is, in percent.
    pub percent: Option<i64>,
    /// How long it still takes, in minutes, as the pool says.
    pub minutes_left: Option<i64>,
    /// How long ago the last one ended or the running one began, in days.
    pub age_days: Option<i64>,
    /// Errors that it could not repair.
    pub errors: Option<i64>,
    /// Whether it had to repair something.
    pub repaired: Option<bool>,
}

/// Properties of pools that checks speak of.
const POOL: &[&str] = &[
    "autoexpand",
    "autoreplace",
    "failmode",
    "readonly",
    "checkpoint",
    "multihost",
    "freeing",
    "leaked",
    "expandsize",
    "cachefile",
    "compatibility",
    "feature@async_destroy",
    "feature@device_removal",
    "feature@large_dnode",
    "feature@log_spacemap",
    "feature@spacemap_histogram",
    "feature@spacemap_v2",
    "feature@device_rebuild",
];
/// Properties of volumes and file systems that checks speak of.
const DATASET: &[&str] = &[
    "available",
    "copies",
    "keystatus",
    "quota",
    "readonly",
    "redundant_metadata",
    "refquota",
    "reservation",
    "special_small_blocks",
    "usedbysnapshots",
    "dnodesize",
];

/// Fills in the properties of the pools.
pub(super) fn pools(source: &dyn Source, pools: &mut [Pool]) {
    let told = source.output("zpool", &["get", "-Hp", "-o", "name,property,value", "all"]);
    for row in told.unwrap_or_default().lines() {
        let columns: Vec<&str> = row.split('\t').collect();
        let [name, property, value, ..] = columns[..] else { continue };
        let pool = pools.iter_mut().find(|pool| pool.name == name);
        if let (Some(pool), true) = (pool, POOL.contains(&property)) {
            pool.properties.insert(property.to_owned(), value.to_owned());
        }
    }
    checkpoints(source, pools);
    slow(source, pools);
    let now = source.now();
    for pool in pools {
        if let Some(ended) = pool.scan_text.as_deref().and_then(date) {
            pool.scan.age_days = now.map(|now| (now - ended) / 86_400).filter(|&days| days >= 0);
        }
    }
}

/// What `zpool status` says of checkpoints: `created Mon Mar  3 09:12:44 2025, consumes 4.71T`. The property has only its size,
/// and older releases leave that out.
fn checkpoints(source: &dyn Source, pools: &mut [Pool]) {
    let status = source.output("zpool", &["status", "-PLp"]).unwrap_or_default();
    for text in status.split("  pool: ").skip(1) {
        let name = text.lines().next().unwrap_or_default().trim();
        let told = text.lines().find_map(|line| line.trim().strip_prefix("checkpoint: "));
        let pool = pools.iter_mut().find(|pool| pool.name == name);
        if let (Some(pool), Some(told)) = (pool, told) {
            pool.properties.insert("checkpoint".to_owned(), told.to_owned());
        }
    }
}

/// The column SLOW of `zpool status -s`: the drives are in the same order as without it.
fn slow(source: &dyn Source, pools: &mut [Pool]) {
    let status = source.output("zpool", &["status", "-s"]).unwrap_or_default();
    for text in status.split("  pool: ").skip(1) {
        let name = text.lines().next().unwrap_or_default().trim();
        let Some(pool) = pools.iter_mut().find(|pool| pool.name == name) else { continue };
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with('\t'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let column = rows.iter().find(|row| row.first() == Some(&"NAME"));
        let Some(column) = column.and_then(|row| row.iter().position(|word| *word == "SLOW"))
        else {
            continue;
        };
        let counts: Vec<i64> = rows
            .iter()
            .filter(|row| row.first() != Some(&"NAME"))
            .filter_map(|row| row.get(column)?.parse().ok())
            .collect();
        let mut disks: Vec<_> = pool.vdevs.iter_mut().flat_map(|vdev| &mut vdev.disks).collect();
        if counts.len() == disks.len() {
            for (disk, count) in disks.iter_mut().zip(counts) {
                disk.slow = Some(count);
            }
        }
    }
}

/// Fills in the properties of volumes and file systems.
pub(super) fn datasets(source: &dyn Source, zvols: &mut [Zvol], datasets: &mut [Dataset]) {
    let names = DATASET.join(",");
    let get = ["get", "-Hp", "-t", "filesystem,volume", "-o", "name,property,value", &names];
    let told = source.output("zfs", &get).unwrap_or_default();
    for row in told.lines() {
        let columns: Vec<&str> = row.split('\t').collect();
        let [name, property, value, ..] = columns[..] else { continue };
        if matches!(value, "-" | "none") {
            continue;
        }
        let map = match zvols.iter_mut().find(|zvol| zvol.name == name) {
            Some(zvol) => &mut zvol.properties,
            None => match datasets.iter_mut().find(|dataset| dataset.name == name) {
                Some(dataset) => &mut dataset.properties,
                None => continue,
            },
        };
        map.insert(property.to_owned(), crate::facts::Value::parse(value));
    }
}

/// What `scan:` says: `scrub repaired 0B in 00:14:45 with 0 errors on Sun Nov 15 00:14:50 2026`, or
/// `resilver in progress since Thu Nov 20 10:00:00 2025` and lines below it.
pub(super) fn scan(text: Option<&str>) -> Scan {
    let Some(text) = text else { return Scan { kind: "none".to_owned(), ..Scan::default() } };
    let kind = match text.split_whitespace().next() {
        Some("scrub") => "scrub",
        Some("resilver" | "resilvered") => "resilver",
        _ => "none",
    };
    let state = if text.contains("in progress") {
        Some("running")
    } else if text.contains("paused") {
        Some("paused")
    } else if text.contains("canceled") {
        Some("canceled")
    } else if kind == "none" {
        None
    } else {
        Some("done")
    };
    let before = |word: &str| -> Option<&str> { text.split_once(word)?.0.rsplit(' ').next() };
    let whole = |text: &str| text.split('.').next().and_then(|n| n.parse::<i64>().ok());
    Scan {
        kind: kind.to_owned(),
        state: state.map(str::to_owned),
        percent: before("% done").and_then(whole),
        minutes_left: before(" to go").and_then(|_| minutes(text)),
        age_days: None,
        errors: before(" errors").and_then(|count| count.parse().ok()),
        repaired: text
            .split_once("repaired ")
            .or_else(|| text.split_once("resilvered "))
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .filter(|_| kind == "scrub")
            .map(|amount| !matches!(amount, "0B" | "0")),
    }
}

/// `8.32% done, 02:11:10 to go`, `1 days 02:11:10 to go`
fn minutes(text: &str) -> Option<i64> {
    let (before, _) = text.split_once(" to go")?;
    let mut words = before.rsplit([' ', '\n']);
    let mut clock = words.next()?.split(':');
    let (hours, minutes): (i64, i64) = (clock.next()?.parse().ok()?, clock.next()?.parse().ok()?);
    let days: i64 = match words.next() {
        Some("days") => words.next()?.parse().ok()?,
        _ => 0,
    };
    Some((days * 24 + hours) * 60 + minutes)
}

/// `Sun Nov 15 00:14:50 2026`, at the end of the first line, in seconds since 1970 (without the time zone: a day
/// more or less is no matter).
fn date(text: &str) -> Option<i64> {
    let words: Vec<&str> = text.lines().next()?.split_whitespace().collect();
    let [.., month, day, time, year] = words[..] else { return None };
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = i64::try_from(MONTHS.iter().position(|name| *name == month)?).ok()?;
    let (year, day): (i64, i64) = (year.parse().ok()?, day.parse().ok()?);
    let hours: i64 = time.split(':').next()?.parse().ok()?;
    // Days since 1970 by the usual sum, with years that begin in March.
    let (y, m) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    (1970..2200).contains(&year).then_some(days * 86_400 + hours * 3600)
}

/// A kstat of `name type data` lines, with two lines of heading.
pub(super) fn kstat(source: &dyn Source, name: &str) -> BTreeMap<String, i64> {
    let text = source.read(&format!("/proc/spl/kstat/zfs/{name}")).unwrap_or_default();
    text.lines()
        .skip(2)
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.nth(1)?.parse().ok()?))
        })
        .collect()
}

/// How many events there are of each class that speaks of trouble: `checksum`, `io`, `delay`, `deadman`, `probe_failure`...
pub(super) fn events(source: &dyn Source) -> BTreeMap<String, i64> {
    let text = source.output("zpool", &["events", "-H"]).unwrap_or_default();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let class =
            line.split_whitespace().last().and_then(|word| word.strip_prefix("ereport.fs.zfs."));
        if let Some(class) = class {
            *all.entry(class.to_owned()).or_insert(0) += 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_scanned() {
        let done = "scrub repaired 0B in 00:14:45 with 0 errors on Sun Nov 15 00:14:50 2026";
        assert_eq!(date(done), Some(1_794_700_800));
        let scan1 = scan(Some(done));
        assert_eq!(
            (scan1.kind.as_str(), scan1.state.as_deref(), scan1.errors),
            ("scrub", Some("done"), Some(0))
        );
        assert_eq!(scan1.repaired, Some(false));
        let running = "resilver in progress since Thu Nov 20 10:00:00 2025\n\t4T scanned\n\t9G resilvered, 8.32% done, 1 days 02:11:10 to go";
        let scan2 = scan(Some(running));
        assert_eq!((scan2.percent, scan2.minutes_left), (Some(8), Some(26 * 60 + 11)));
        assert_eq!(scan2.state.as_deref(), Some("running"));
        assert_eq!(scan(None).kind, "none");
    }
}
