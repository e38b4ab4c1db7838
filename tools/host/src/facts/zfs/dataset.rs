//! Volumes and file systems, as zfs shows them.

use std::collections::BTreeMap;

use super::{Dataset, Zvol};
use crate::facts::memory::chosen;
use crate::source::Source;

const VOLUME: &[&str] = &[
    "name",
    "volsize",
    "volblocksize",
    "used",
    "refreservation",
    "sync",
    "volmode",
    "compression",
    "compressratio",
    "checksum",
    "dedup",
    "primarycache",
    "secondarycache",
    "logbias",
    "encryption",
];
const FILESYSTEM: &[&str] = &[
    "name",
    "used",
    "recordsize",
    "sync",
    "compression",
    "atime",
    "xattr",
    "primarycache",
    "logbias",
    "dedup",
];
/// More than these say no more.
const MOST_FILESYSTEMS: usize = 200;

/// A row of `zfs list`, by the names of its columns.
struct Row<'a>(BTreeMap<&'a str, &'a str>);

impl Row<'_> {
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|text| **text != "-").map(|text| (*text).to_owned())
    }

    fn int(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.parse().ok()
    }

    fn name(&self) -> String {
        self.text("name").unwrap_or_default()
    }

    fn pool(&self) -> String {
        self.name().split('/').next().unwrap_or_default().to_owned()
    }
}

fn rows<'a>(text: &'a str, columns: &'a [&'a str]) -> impl Iterator<Item = Row<'a>> {
    text.lines().map(|line| Row(columns.iter().copied().zip(line.split('\t')).collect()))
}

/// Reads all volumes.
pub(super) fn volumes(source: &dyn Source) -> Vec<Zvol> {
    let list = ["list", "-Hp", "-t", "volume", "-o", &VOLUME.join(",")];
    let list = source.output("zfs", &list).unwrap_or_default();
    if list.is_empty() {
        return Vec::new();
    }
    let threading = newer(source, "volthreading");
    let prefetch = newer(source, "prefetch");
    let direct = newer(source, "direct");
    rows(&list, VOLUME)
        .map(|row| {
            let name = row.name();
            let mut zvol = volume(&row);
            zvol.volthreading = threading.get(&name).map(|value| value == "on");
            zvol.prefetch = prefetch.get(&name).cloned();
            zvol.direct = direct.get(&name).cloned();
            block_device(source, &mut zvol);
            zvol
        })
        .collect()
}

fn volume(row: &Row<'_>) -> Zvol {
    let ratio = row.text("compressratio");
    let ratio = ratio.and_then(|ratio| ratio.trim_end_matches('x').parse::<f64>().ok());
    Zvol {
        name: row.name(),
        pool: row.pool(),
        volsize_bytes: row.int("volsize"),
        volblocksize_bytes: row.int("volblocksize"),
        used_bytes: row.int("used"),
        refreservation_bytes: match row.text("refreservation").as_deref() {
            Some("none") => Some(0),
            _ => row.int("refreservation"),
        },
        sync: row.text("sync"),
        volmode: row.text("volmode"),
        compression: row.text("compression"),
        // A ratio is small: no digit is lost.
        compress_ratio_percent: ratio.map(|ratio| (ratio * 100.0).round() as i64),
        checksum: row.text("checksum"),
        dedup: row.text("dedup"),
        primarycache: row.text("primarycache"),
        secondarycache: row.text("secondarycache"),
        logbias: row.text("logbias"),
        encryption: row.text("encryption"),
        ..Zvol::default()
    }
}

/// A property that not every release has: asked for by itself, because zfs refuses the whole list
/// for one that it does not know.
fn newer(source: &dyn Source, property: &str) -> BTreeMap<String, String> {
    let args = ["get", "-Hp", "-t", "volume", "-o", "name,value", property];
    let text = source.output("zfs", &args).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(|(_, value)| *value != "-")
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn block_device(source: &dyn Source, zvol: &mut Zvol) {
    zvol.device = source.link_name(&format!("/dev/zvol/{}", zvol.name));
    let Some(device) = &zvol.device else { return };
    let queue = format!("/sys/block/{device}/queue");
    zvol.read_ahead_kib = source.int(&format!("{queue}/read_ahead_kb"));
    let scheduler = source.text(&format!("{queue}/scheduler"));
    zvol.scheduler = scheduler.map(|text| chosen(&text).unwrap_or(text));
}

/// Reads the file systems.
pub(super) fn filesystems(source: &dyn Source) -> Vec<Dataset> {
    let list = ["list", "-Hp", "-t", "filesystem", "-o", &FILESYSTEM.join(",")];
    let list = source.output("zfs", &list).unwrap_or_default();
    rows(&list, FILESYSTEM)
        .take(MOST_FILESYSTEMS)
        .map(|row| Dataset {
            name: row.name(),
            pool: row.pool(),
            recordsize_bytes: row.int("recordsize"),
            sync: row.text("sync"),
            compression: row.text("compression"),
            atime: row.text("atime").map(|atime| atime == "on"),
            xattr: row.text("xattr"),
            primarycache: row.text("primarycache"),
            logbias: row.text("logbias"),
            dedup: row.text("dedup"),
            used_bytes: row.int("used"),
            ..Dataset::default()
        })
        .collect()
}
