//! `[volumes.NAME]`

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use lunet_ring::Passthrough;
use lunet_scsi::{Designator, Threshold};

use super::layers::layers;
use super::limits::{rates, share};
use super::mistake::Mistakes;
use super::reader::{At, Convert, Section, boolean, choice, integer, label, size, string};
use super::schema;
use super::sections::path;
use super::{Backend, Cache, Provisioning, Volume};
use crate::names;
use lunet_backends::rbd::ImageName;

/// The largest volume: what a file offset can express, in bytes.
pub(super) const MAX_SIZE: u64 = 1 << 62;

const CACHES: &[(&str, Cache)] = &[("buffered", Cache::Buffered), ("direct", Cache::Direct)];

const PASSTHROUGHS: &[(&str, Option<Passthrough>)] = &[
    ("never", None),
    ("interrupt", Some(Passthrough::Interrupt)),
    ("polled", Some(Passthrough::Polled)),
];

const WRITE_CACHES: &[(&str, bool)] = &[("on", true), ("off", false)];

const PROVISIONINGS: &[(&str, Provisioning)] =
    &[("thin", Provisioning::Thin), ("full", Provisioning::Full)];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    File,
    Block,
    Rbd,
    Memory,
    Null,
}

const KINDS: &[(&str, Kind)] = &[
    ("file", Kind::File),
    ("block", Kind::Block),
    ("rbd", Kind::Rbd),
    ("memory", Kind::Memory),
    ("null", Kind::Null),
];

/// Keys that only some backends have.
const ONLY: &[(&str, &[Kind])] = &[
    ("path", &[Kind::File, Kind::Block]),
    ("size", &[Kind::File, Kind::Memory, Kind::Null]),
    ("cache", &[Kind::File]),
    ("passthrough", &[Kind::Block]),
    ("write-cache", &[Kind::File, Kind::Block]),
    ("provisioning", &[Kind::File]),
    ("threshold", &[Kind::File]),
    ("image", &[Kind::Rbd]),
    ("ceph-conf", &[Kind::Rbd]),
    ("ceph-user", &[Kind::Rbd]),
    ("ceph-keyring", &[Kind::Rbd]),
];

/// A volume of the file; `value` is None if something is wrong with it (noted).
pub(super) struct Found {
    pub(super) name: String,
    /// Where its path stands, or the table if it has none.
    pub(super) offset: usize,
    pub(super) value: Option<Volume>,
}

pub(super) fn volumes(top: &Section<'_>, mistakes: &mut Mistakes) -> Vec<Found> {
    let Some(value) = top.raw("volumes") else { return Vec::new() };
    let Some(tables) = value.get_ref().as_table() else {
        let text = format!("must be written as {}, once for each", schema::VOLUME.heading);
        mistakes.add(value.span().start, "volumes", text);
        return Vec::new();
    };
    let mut out = Vec::new();
    for (name, value) in tables {
        let key = format!("volumes.{}", name.get_ref());
        if let Err(text) = names::check_volume_name(name.get_ref()) {
            mistakes.add(name.span().start, key.clone(), text);
        }
        let table = Section::open(value, key, &schema::VOLUME, mistakes);
        let offset = table.as_ref().and_then(|table| table.raw("path")).unwrap_or(value);
        let name = name.get_ref().to_string();
        let value = table.and_then(|table| volume(&name, &table, &out, mistakes));
        out.push(Found { name, offset: offset.span().start, value });
    }
    out
}

fn volume(
    name: &str,
    table: &Section<'_>,
    others: &[Found],
    mistakes: &mut Mistakes,
) -> Option<Volume> {
    let kind = table.get("backend", &|v| choice(v, KINDS), mistakes);
    table.missing("backend", mistakes);
    let power: Convert<'_, Option<u32>> = &|v| {
        integer(v, 512..=65_536)
            .ok()
            .filter(|n| n.is_power_of_two())
            .map(|n| Some(n as u32))
            .ok_or_else(|| "must be a power of two from 512 to 65536 (bytes)".to_owned())
    };
    let block: Convert<'_, Option<u32>> = &|v| match integer(v, 512..=4096) {
        Ok(n @ (512 | 4096)) => Ok(Some(n as u32)),
        _ => Err("must be 512 or 4096 (bytes)".to_owned()),
    };
    let (mut block_size, mut physical_block_size) = (None, None);
    table.set("block-size", &mut block_size, block, mistakes);
    table.set("physical-block-size", &mut physical_block_size, power, mistakes);
    if block_size.zip(physical_block_size).is_some_and(|(logical, physical)| physical < logical) {
        let offset = table.raw("physical-block-size").map_or(table.offset, |v| v.span().start);
        let key = table.key("physical-block-size");
        mistakes.add(offset, key, "must not be smaller than block-size");
    }
    let mut read_only = false;
    table.set("read-only", &mut read_only, &boolean, mistakes);
    let mut removable = false;
    table.set("removable", &mut removable, &boolean, mistakes);
    let mut write_cache = true;
    table.set("write-cache", &mut write_cache, &|v| choice(v, WRITE_CACHES), mistakes);
    let text = |key, most, mistakes: &mut Mistakes| {
        table.get(key, &|v| label(v, most), mistakes).map(|found: At<String>| found.value)
    };
    let vendor = text("vendor", 8, mistakes);
    let product = text("product", 16, mistakes);
    let serial = text("serial", 32, mistakes);
    let naa = designator(table, others, "naa", |volume| volume.naa, mistakes);
    let eui = designator(table, others, "eui", |volume| volume.eui, mistakes);
    let backend = backend(table, kind?.value, block_size, mistakes)?;
    if !read_only {
        one_writer(table, others, &backend, mistakes);
    }
    let threshold = threshold(table, &backend, mistakes);
    Some(Volume {
        name: name.to_owned(),
        backend,
        block_size,
        physical_block_size,
        read_only,
        removable,
        write_cache,
        threshold,
        rates: rates(table, mistakes),
        share: share(table, mistakes),
        vendor,
        product,
        serial,
        naa,
        eui,
        layers: layers(table, mistakes),
        group: None,
    })
}

/// `threshold`. The storage below a volume that has all its space already has nothing more to give to it.
fn threshold(table: &Section<'_>, backend: &Backend, mistakes: &mut Mistakes) -> Option<Threshold> {
    let read: Convert<'_, Threshold> = &|value| {
        let text = string(value)?;
        let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
        percent.and_then(Threshold::new).ok_or_else(|| "must be \"1%\" to \"99%\"".to_owned())
    };
    let found = table.get("threshold", read, mistakes)?;
    if matches!(backend, Backend::File { provisioning: Provisioning::Full, .. }) {
        let text = "has no meaning for a volume with provisioning = \"full\"";
        mistakes.add(found.offset, table.key("threshold"), text);
    }
    Some(found.value)
}

/// `naa` or `eui`. Two volumes with the same are one to every initiator, and their data gets mixed up.
fn designator(
    table: &Section<'_>,
    others: &[Found],
    key: &str,
    of: fn(&Volume) -> Option<Designator>,
    mistakes: &mut Mistakes,
) -> Option<Designator> {
    let read: Convert<'_, Designator> = &|value| {
        let text = string(value)?.to_ascii_lowercase();
        let digits = text.strip_prefix(key).and_then(|rest| rest.strip_prefix('.'));
        let digits = digits.or_else(|| text.strip_prefix("0x")).unwrap_or(&text);
        let bytes = hex(digits).unwrap_or_default();
        let (found, forms) = match key {
            "naa" => (
                Designator::naa(&bytes),
                "16 hexadecimal digits, the first 2, 3 or 5, or 32, the first 6",
            ),
            _ => (Designator::eui(&bytes), "16, 24 or 32 hexadecimal digits, not all zero"),
        };
        found.ok_or_else(|| format!("must be {forms}"))
    };
    let found = table.get(key, read, mistakes)?;
    let same = |other: &&Found| other.value.as_ref().and_then(of) == Some(found.value);
    if let Some(other) = others.iter().find(same) {
        let text = format!("is that of volume \"{}\" already", other.name);
        mistakes.add(found.offset, table.key(key), text);
    }
    Some(found.value)
}

/// The bytes of hexadecimal digits.
fn hex(digits: &str) -> Option<Vec<u8>> {
    let nibbles: Option<Vec<u8>> =
        digits.chars().map(|digit| digit.to_digit(16).map(|n| n as u8)).collect();
    let nibbles = nibbles.filter(|nibbles| nibbles.len() % 2 == 0)?;
    Some(nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn backend(
    table: &Section<'_>,
    kind: Kind,
    block_size: Option<u32>,
    mistakes: &mut Mistakes,
) -> Option<Backend> {
    for (name, _) in ONLY.iter().filter(|(_, kinds)| !kinds.contains(&kind)) {
        if let Some(value) = table.raw(name) {
            let text = format!("has no meaning for a volume with backend = \"{}\"", word(kind));
            mistakes.add(value.span().start, table.key(name), text);
        }
    }
    let bytes = table.get("size", &|v| size(v, 512..=MAX_SIZE), mistakes);
    let unit = u64::from(block_size.unwrap_or(512));
    if let Some(bytes) = bytes.as_ref().filter(|bytes| bytes.value % unit != 0) {
        let text = format!("must be a multiple of the block size, {unit} bytes");
        mistakes.add(bytes.offset, table.key("size"), text);
    }
    let bytes = bytes.map(|bytes| bytes.value);
    let place = table.get("path", &path, mistakes).map(|found| found.value);
    let mut cache = Cache::Buffered;
    table.set("cache", &mut cache, &|v| choice(v, CACHES), mistakes);
    let mut passthrough = None;
    table.set("passthrough", &mut passthrough, &|v| choice(v, PASSTHROUGHS), mistakes);
    let mut provisioning = Provisioning::Thin;
    table.set("provisioning", &mut provisioning, &|v| choice(v, PROVISIONINGS), mistakes);
    match kind {
        Kind::File => Some(Backend::File { path: place, size: bytes, cache, provisioning }),
        Kind::Block => {
            table.missing("path", mistakes);
            Some(Backend::Block { path: place?, passthrough })
        }
        Kind::Rbd => {
            table.missing("image", mistakes);
            image(table, mistakes)
        }
        Kind::Memory | Kind::Null => {
            table.missing("size", mistakes);
            let size = bytes?;
            Some(if kind == Kind::Null { Backend::Null { size } } else { Backend::Memory { size } })
        }
    }
}

/// One volume writes to an image of Ceph: the second one would find it locked by the first.
fn one_writer(table: &Section<'_>, others: &[Found], backend: &Backend, mistakes: &mut Mistakes) {
    let same = |other: &&Found| {
        let theirs = other.value.as_ref().filter(|volume| !volume.read_only);
        match (theirs.map(|volume| &volume.backend), backend) {
            (
                Some(Backend::Rbd { image: first, conf: at, .. }),
                Backend::Rbd { image, conf, .. },
            ) => (first, at) == (image, conf),
            _ => false,
        }
    };
    if let Some(other) = others.iter().find(same) {
        let text = format!(
            "is that of volume \"{}\" already: show that one by as many LUNs as you like, or make this one read-only",
            other.name
        );
        let offset = table.raw("image").map_or(table.offset, |value| value.span().start);
        mistakes.add(offset, table.key("image"), text);
    }
}

/// `image`, and how its cluster is reached.
fn image(table: &Section<'_>, mistakes: &mut Mistakes) -> Option<Backend> {
    let name: Convert<'_, ImageName> =
        &|value| ImageName::parse(&string(value)?).map_err(|refusal| refusal.to_string());
    let (conf, user, keyring) = cluster(table, mistakes);
    let image = table.get("image", name, mistakes)?.value;
    Some(Backend::Rbd { image, conf, user, keyring })
}

/// `ceph-conf`, `ceph-user` and `ceph-keyring`.
pub(super) fn cluster(
    table: &Section<'_>,
    mistakes: &mut Mistakes,
) -> (Option<PathBuf>, Option<String>, Option<PathBuf>) {
    let user: Convert<'_, String> = &|value| {
        let text = string(value)?;
        let known = |c: char| c.is_ascii_graphic() && c != '/';
        match text.strip_prefix("client.") {
            Some(rest) => Err(format!("is written without \"client.\": \"{rest}\"")),
            None if text.is_empty() || !text.chars().all(known) => {
                Err("must be the name of a user of Ceph".to_owned())
            }
            None => Ok(text),
        }
    };
    let absolute: Convert<'_, PathBuf> = &|value| {
        path(value).and_then(|path| match path.is_absolute() {
            true => Ok(path),
            false => Err("must be an absolute path".to_owned()),
        })
    };
    let file =
        |key, mistakes: &mut Mistakes| table.get(key, absolute, mistakes).map(|found| found.value);
    let (conf, keyring) = (file("ceph-conf", mistakes), file("ceph-keyring", mistakes));
    let user = table.get("ceph-user", user, mistakes).map(|found| found.value);
    (conf, user, keyring)
}

fn word(kind: Kind) -> &'static str {
    KINDS.iter().find(|(_, k)| *k == kind).map_or("", |(word, _)| word)
}

/// Notes each volume whose file another volume has already: each would undo the other's writes.
pub(super) fn check_files(volumes: &[Found], mistakes: &mut Mistakes) {
    let mut order: Vec<&Found> = volumes.iter().collect();
    order.sort_by_key(|volume| volume.offset);
    let mut taken: HashMap<PathBuf, &str> = HashMap::new();
    for found in order {
        // The data directory is the same for all, so any name for it will do here.
        let Some(path) = found.value.as_ref().and_then(|v| v.path(Path::new("data"))) else {
            continue;
        };
        if let Some(other) = taken.get(&plain(&path)) {
            let text = format!("is the file of volume \"{other}\" already");
            mistakes.add(found.offset, format!("volumes.{}.path", found.name), text);
        } else {
            taken.insert(plain(&path), &found.name);
        }
    }
}

/// The path without `.`, doubled slashes and `NAME/..`. Links are seen only when the files are
/// opened, where a lock on the file finds them.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}
