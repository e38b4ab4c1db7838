//! Pools: what their drives move, by the layout of the vdevs.

use super::{Layer, drive_speed, network};
use crate::expr::rate;
use crate::facts::{Drive, Facts, Pool, Vdev, drives_of};

/// What one drive moves, in bytes per second, and why.
pub(super) struct Member {
    pub read: f64,
    pub write: f64,
    pub why: String,
}

/// One layer for each pool that a target serves from; for each pool, if that is not known of any.
pub(super) fn pools(facts: &Facts) -> Vec<Layer> {
    let pools: Vec<&Pool> = facts.zfs.iter().flat_map(|zfs| &zfs.pools).collect();
    let luns = || facts.targets.iter().flat_map(|target| &target.luns);
    let serves = |pool: &&&Pool| {
        let inside = |zvol: &str| zvol.split('/').next() == Some(&pool.name);
        luns().any(|lun| lun.zvol.as_deref().is_some_and(inside))
    };
    let served: Vec<&Pool> = pools.iter().filter(serves).copied().collect();
    let pools = if served.is_empty() { pools } else { served };
    pools.into_iter().map(|pool| one(facts, pool)).collect()
}

fn one(facts: &Facts, pool: &Pool) -> Layer {
    let mut layer = Layer::new(format!("drives of {}", pool.name));
    let (mut read, mut write, mut both) = (0.0, 0.0, 0.0);
    for vdev in pool.vdevs.iter().filter(|vdev| vdev.role == "data") {
        let drives = drives_of(facts, vdev);
        let slowest = slowest(&drives).filter(|_| drives.len() == vdev.disks.len());
        let Some((slowest, name)) = slowest else {
            layer.missing = Some(format!("the drives of {} and their links", vdev.name));
            return layer;
        };
        let shape = shape(vdev);
        let (reads, writes) = (slowest.read * shape.reads, slowest.write * shape.writes);
        let random = shape.random(&slowest);
        (read, write, both) = (read + reads, write + writes, both + random);
        layer.step(format!(
            "{}: {}; the slowest is {name}: {}. In long runs it reads {} x {} = {} and writes {} x {} \
             = {}. {}: {} each way.",
            vdev.name,
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
        ));
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

/// How many times one drive a vdev reads and writes.
struct Shape {
    reads: f64,
    writes: f64,
    raidz: bool,
    text: String,
    /// What random records do to it.
    why: &'static str,
}

impl Shape {
    /// What it moves each way when as much is read as written, record by record at random.
    fn random(&self, slowest: &Member) -> f64 {
        if self.raidz {
            return slowest.read.min(slowest.write);
        }
        // A drive that reads does not write: each byte read and each byte written take their time.
        1.0 / (1.0 / (slowest.read * self.reads) + 1.0 / (slowest.write * self.writes))
    }
}

fn shape(vdev: &Vdev) -> Shape {
    let disks = vdev.disks.len() as f64;
    let data = disks - vdev.parity as f64;
    let share = "Random records, half read and half written, share the drives' time";
    let raidz = vdev.kind.starts_with("raidz") || vdev.kind.starts_with("draid");
    // Parity rotates, so reads come from all drives; writes also write the parity.
    let (reads, writes, text) = match vdev.kind.as_str() {
        kind if raidz => {
            (disks, data, format!("{kind} of {disks} drives, {data} of them for data"))
        }
        "mirror" => (disks, 1.0, format!("mirror of {disks} drives")),
        _ => (1.0, 1.0, "one drive".to_owned()),
    };
    let why = match raidz {
        true => {
            "A random record lies on all its data drives, so it answers as many as one drive does"
        }
        false => share,
    };
    Shape { reads, writes, raidz, text, why }
}

/// The slowest drive and its name.
fn slowest<'a>(drives: &[&'a Drive]) -> Option<(Member, &'a str)> {
    let known: Option<Vec<(Member, &str)>> =
        drives.iter().map(|drive| Some((member(drive)?, drive.name.as_str()))).collect();
    let time = |member: &Member| 1.0 / member.read + 1.0 / member.write;
    known?
        .into_iter()
        .max_by(|(a, _), (b, _)| time(a).partial_cmp(&time(b)).unwrap_or(std::cmp::Ordering::Equal))
}

/// What a drive moves: its model's speed, or its link's, whichever is less.
pub(super) fn member(drive: &Drive) -> Option<Member> {
    let link = drive.pcie.as_ref().and_then(network::pcie_payload);
    let model = drive.model.as_deref().unwrap_or("a drive of unknown model");
    match (drive_speed(drive), link) {
        (Some(speed), link) => {
            let (read, write) = (speed.read * 1e6, speed.lasting.unwrap_or(speed.write) * 1e6);
            let mut why = format!("{model} reads {}, writes {}", rate(read), rate(write));
            if speed.lasting.is_some() {
                why += " for long";
            }
            why += &format!(" ({})", speed.source);
            let carried = link.as_ref().map_or(f64::INFINITY, |link| link.rate);
            if carried < read {
                why += &format!(", and its link carries {}", rate(carried));
            }
            Some(Member { read: read.min(carried), write: write.min(carried), why })
        }
        (None, Some(link)) => {
            let why = format!("{model}: its link carries {}", rate(link.rate));
            Some(Member { read: link.rate, write: link.rate, why })
        }
        (None, None) => by_kind(drive, model),
    }
}

/// What every drive of a kind moves at most.
fn by_kind(drive: &Drive, model: &str) -> Option<Member> {
    let (rate_, what) = match (drive.rotational, drive.transport.as_deref()) {
        // What turns below a virtual machine's drive nobody knows, whatever it says.
        (_, Some("virtio")) => return None,
        (Some(true), _) => (200e6, "a drive that turns moves about 200 MB/s"),
        (_, Some("sata")) => (550e6, "SATA carries 600 MB/s less frames"),
        (_, Some("sas")) => (1100e6, "SAS of 12 Gbit/s carries 1.2 GB/s less frames"),
        _ => return None,
    };
    Some(Member { read: rate_, write: rate_, why: format!("{model}: {what}") })
}

/// What a drive reads at most, in bytes per second: checks name the slowest by it.
pub(crate) fn reads_at_most(drive: &Drive) -> Option<i64> {
    member(drive).map(|member| member.read as i64)
}
