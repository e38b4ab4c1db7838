//! Pools: what their drives move, by the layout of the vdevs.

use super::assumed::{Assumed, Assumption, Level};
use super::{Kind, Layer, View, drive_speed, network};
use crate::expr::rate;
use crate::facts::{Drive, Facts, Pool, Vdev, drives_of};

/// A request of the recipe's measurement, in bytes: a record at random.
const RECORD: f64 = 131_072.0;

/// What one drive moves, in bytes per second, and why.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub read: f64,
    pub write: f64,
    /// The same of records at random, which its operations per second may bind.
    pub random_read: f64,
    /// See `random_read`.
    pub random_write: f64,
    pub why: String,
}

/// What somebody measured of a model of drives.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    /// The model that they are of.
    pub model: String,
    /// Bytes per second.
    pub read: f64,
    /// Bytes per second, for long.
    pub write: f64,
    /// Reads and writes per second, if they are known.
    pub iops: Option<(f64, f64)>,
}

/// The pools that a target serves from; all of them, if that is not known of any.
pub(super) fn served(facts: &Facts) -> Vec<&Pool> {
    let pools: Vec<&Pool> = facts.zfs.iter().flat_map(|zfs| &zfs.pools).collect();
    let luns = || facts.targets.iter().flat_map(|target| &target.luns);
    let serves = |pool: &&&Pool| {
        let inside = |zvol: &str| zvol.split('/').next() == Some(&pool.name);
        luns().any(|lun| lun.zvol.as_deref().is_some_and(inside))
    };
    let served: Vec<&Pool> = pools.iter().filter(serves).copied().collect();
    if served.is_empty() { pools } else { served }
}

/// One layer for each pool that counts.
pub(super) fn pools(view: &View<'_>) -> Vec<Layer> {
    served(view.facts).into_iter().map(|pool| one(view, pool)).collect()
}

fn one(view: &View<'_>, pool: &Pool) -> Layer {
    let mut layer = Layer::new(Kind::Drives, format!("drives of {}", pool.name));
    let (mut read, mut write, mut both) = (0.0, 0.0, 0.0);
    let data: Vec<&Vdev> = pool.vdevs.iter().filter(|vdev| vdev.role == "data").collect();
    let mut told: Vec<(Vec<&str>, String)> = Vec::new();
    for vdev in data {
        let drives = drives_of(view.facts, vdev);
        let slowest = slowest(view, &drives).filter(|_| drives.len() == vdev.disks.len());
        let Some((slowest, name)) = slowest else {
            layer.missing = Some(format!("the drives of {} and their links", vdev.name));
            return layer;
        };
        let shape = shape(vdev, view.assumed);
        let (reads, writes) = (slowest.read * shape.reads, slowest.write * shape.writes);
        let random = shape.random(&slowest, view.assumed.level(Assumption::Raidz));
        (read, write, both) = (read + reads, write + writes, both + random);
        let how = sentence(&shape, &slowest, name, random);
        match told.last_mut().filter(|(_, same)| *same == how) {
            Some((names, _)) => names.push(&vdev.name),
            None => told.push((vec![&vdev.name], how)),
        }
    }
    for (names, how) in told {
        layer.step(match names[..] {
            [first, .., last] => format!("{first} to {last}, each: {how}"),
            _ => format!("{}: {how}", names.concat()),
        });
    }
    if read == 0.0 {
        layer.missing = Some("data vdevs".to_owned());
        return layer;
    }
    (layer.read, layer.write, layer.both) = (Some(read), Some(write), Some(both));
    layer.step(format!(
        "All vdevs together: reads {}, writes {}, random records half and half {} each way.",
        rate(read),
        rate(write),
        rate(both)
    ));
    layer
}

/// How a vdev's figures come about.
fn sentence(shape: &Shape, slowest: &Member, name: &str, random: f64) -> String {
    let (reads, writes) = (slowest.read * shape.reads, slowest.write * shape.writes);
    format!(
        "{}; the slowest is {name}: {}. In long runs it reads {} x {} = {} and writes {} x {} = {}. \
         {}: {} each way.",
        shape.text,
        slowest.why,
        shape.reads,
        rate(slowest.read),
        rate(reads),
        shape.writes,
        rate(slowest.write),
        rate(writes),
        shape.why,
        rate(random),
    )
}

/// How many times one drive a vdev reads and writes.
struct Shape {
    reads: f64,
    writes: f64,
    /// Of RAID-Z: groups of drives of which each holds a whole record, and a record's data drives.
    groups: Option<(f64, f64)>,
    text: String,
    /// What random records do to it.
    why: &'static str,
}

/// What random records do to RAID-Z.
const ON_ALL: &str =
    "A random record lies on all its data drives, so it answers as many as one drive does";
/// What they do to dRAID.
const ON_A_GROUP: &str = "A random record lies on one group of drives, and each group answers as many as one \
                          drive does";

impl Shape {
    /// What it moves each way when as much is read as written, record by record at random.
    fn random(&self, slowest: &Member, raidz: Level) -> f64 {
        let (read, write) = (slowest.random_read, slowest.random_write);
        // A drive that reads does not write: each byte read and each byte written take their time.
        let shared =
            |reads: f64, writes: f64| 1.0 / (1.0 / (read * reads) + 1.0 / (write * writes));
        let Some((groups, data)) = self.groups else { return shared(self.reads, self.writes) };
        let as_one_drive = read.min(write);
        let all = (data * shared(1.0, 1.0)).max(as_one_drive);
        groups * raidz.of(shared(1.0, 1.0), as_one_drive, all)
    }
}

fn shape(vdev: &Vdev, assumed: Assumed) -> Shape {
    let layout = assumed.level(Assumption::Raidz);
    let disks = vdev.disks.len() as f64;
    let parity = vdev.parity as f64;
    // Parity rotates, so reads come from all drives; writes also write the parity.
    let raidz = |reads: f64, data: f64, groups: f64, text: String| Shape {
        reads: layout.of(data * groups, reads, reads),
        writes: data * groups,
        groups: Some((groups, data)),
        text,
        why: if groups > 1.0 { ON_A_GROUP } else { ON_ALL },
    };
    let shared = |reads: f64, text: String| Shape {
        reads,
        writes: 1.0,
        groups: None,
        text,
        why: "Random records, half read and half written, share the drives' time",
    };
    match (vdev.kind.as_str(), draid(&vdev.name)) {
        (kind, Some((data, spares))) if kind.starts_with("draid") => {
            let groups = ((disks - spares) / (data + parity)).max(1.0);
            let text = format!(
                "{kind} of {disks} drives, {spares} of them spare space, records over {data} and parity"
            );
            raidz(disks - spares, data, groups, text)
        }
        (kind, _) if kind.starts_with("raidz") || kind.starts_with("draid") => {
            let data = disks - parity;
            raidz(disks, data, 1.0, format!("{kind} of {disks} drives, {data} of them for data"))
        }
        ("mirror", _) => {
            let reads = disks * assumed.level(Assumption::Mirrors).of(0.75, 1.0, 1.0);
            shared(reads, format!("mirror of {disks} drives"))
        }
        _ => shared(1.0, "one drive".to_owned()),
    }
}

/// Data drives of a record and spare drives, as a dRAID's name has them: `draid2:8d:24c:2s-0`.
pub(super) fn draid(name: &str) -> Option<(f64, f64)> {
    let word = name.rsplit_once('-').map_or(name, |(word, _)| word);
    let number =
        |unit: char| word.split(':').find_map(|part| part.strip_suffix(unit)?.parse().ok());
    Some((number('d')?, number('s')?))
}

/// The slowest drive and its name.
fn slowest<'a>(view: &View<'_>, drives: &[&'a Drive]) -> Option<(Member, &'a str)> {
    let member = |drive: &Drive| assumed_member(drive, view.figures, view.assumed);
    // All of a vdev are often one model in equal slots, and a what-if has one drive for all.
    let mut known: Vec<(Member, &str)> = Vec::new();
    let mut before: Option<&Drive> = None;
    for drive in drives {
        if before.is_some_and(|before| std::ptr::eq(before, *drive)) {
            continue;
        }
        known.push((member(drive)?, drive.name.as_str()));
        before = Some(drive);
    }
    let time = |member: &Member| 1.0 / member.read + 1.0 / member.write;
    known.into_iter().max_by(|(a, _), (b, _)| time(a).total_cmp(&time(b)))
}

/// What a drive moves: its model's speed, or its link's, whichever is less.
pub(super) fn member(drive: &Drive) -> Option<Member> {
    assumed_member(drive, None, Assumed::default())
}

fn assumed_member(drive: &Drive, figures: Option<&Figures>, assumed: Assumed) -> Option<Member> {
    let reads = assumed.level(Assumption::DriveReads);
    let writes = assumed.level(Assumption::DriveWrites);
    let payload = |pcie| network::pcie_payload(pcie, assumed.level(Assumption::Pcie));
    let link = drive.pcie.as_ref().and_then(payload).map(|payload| payload.rate);
    let model = drive.model.as_deref().unwrap_or("a drive of unknown model");
    let given = figures.filter(|figures| figures.model == model);
    let (read, write, mut why) = if let Some(given) = given {
        let near = |level: Level| level.of(0.95, 1.0, 1.05);
        let why = format!("{model} reads {}, writes {}", rate(given.read), rate(given.write));
        (given.read * near(reads), given.write * near(writes), why)
    } else if let Some(speed) = drive_speed(drive) {
        let stated = speed.write;
        let usual = speed.lasting.unwrap_or(stated);
        let least = speed.lasting.map_or(0.6 * stated, |lasting| 0.85 * lasting);
        let write = writes.of(least, usual, stated.max(usual)) * 1e6;
        let read = reads.of(0.85, 1.0, 1.0) * speed.read * 1e6;
        let lasts = if speed.lasting.is_some() { " for long" } else { "" };
        let (reads, writes) = (rate(read), rate(write));
        let why = format!("{model} reads {reads}, writes {writes}{lasts} ({})", speed.source);
        (read, write, why)
    } else if let Some(link) = link {
        let why = format!("{model}: its link carries {}", rate(link));
        return Some(plain(link * reads.of(0.5, 1.0, 1.0), link * writes.of(0.25, 1.0, 1.0), why));
    } else {
        return by_kind(drive, model, reads, writes);
    };
    let carried = link.unwrap_or(f64::INFINITY);
    if carried < read {
        why += &format!(", and its link carries {}", rate(carried));
    }
    let (read, write) = (read.min(carried), write.min(carried));
    let mut member = plain(read, write, why);
    if let Some((reads, writes)) = given.and_then(|given| given.iops) {
        member.random_read = read.min(reads * RECORD);
        member.random_write = write.min(writes * RECORD);
        member.why += &format!(", {reads} reads and {writes} writes per second at random");
    }
    Some(member)
}

/// One whose records at random are as fast as any.
fn plain(read: f64, write: f64, why: String) -> Member {
    Member { read, write, random_read: read, random_write: write, why }
}

/// What every drive of a kind moves at most.
fn by_kind(drive: &Drive, model: &str, reads: Level, writes: Level) -> Option<Member> {
    let (rate_, range, what) = match (drive.rotational, drive.transport.as_deref()) {
        // What turns below a virtual machine's drive nobody knows, whatever it says.
        (_, Some("virtio")) => return None,
        (Some(true), _) => (200e6, [0.5, 1.35], "a drive that turns moves about 200 MB/s"),
        (_, Some("sata")) => (550e6, [0.85, 1.0], "SATA carries 600 MB/s less frames"),
        (_, Some("sas")) => (1100e6, [0.85, 1.0], "SAS of 12 Gbit/s carries 1.2 GB/s less frames"),
        _ => return None,
    };
    let of = |level: Level| rate_ * level.of(range[0], 1.0, range[1]);
    Some(plain(of(reads), of(writes), format!("{model}: {what}")))
}

/// What a drive reads at most, in bytes per second: checks name the slowest by it.
pub(crate) fn reads_at_most(drive: &Drive) -> Option<i64> {
    member(drive).map(|member| member.read as i64)
}
