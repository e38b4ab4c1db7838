//! Pools: what their drives move, by the layout of the vdevs.

use super::{Layer, drive_speed, network};
use crate::doctor::members;
use crate::expr::rate;
use crate::facts::{Drive, Facts, Pool, Vdev};

/// What one drive moves, in bytes per second, and why.
struct Member {
    read: f64,
    write: f64,
    why: String,
}

/// One layer for each pool.
pub(super) fn pools(facts: &Facts) -> Vec<Layer> {
    let pools = facts.zfs.iter().flat_map(|zfs| &zfs.pools);
    pools.map(|pool| one(facts, pool)).collect()
}

fn one(facts: &Facts, pool: &Pool) -> Layer {
    let mut layer = Layer::new(format!("drives of {}", pool.name));
    let (mut read, mut write, mut busy) = (0.0, 0.0, 0.0);
    for vdev in pool.vdevs.iter().filter(|vdev| vdev.role == "data") {
        let drives = members(facts, vdev);
        let slowest = slowest(&drives).filter(|_| drives.len() == vdev.disks.len());
        let Some((slowest, name)) = slowest else {
            layer.missing = Some(format!("the drives of {} and their links", vdev.name));
            return layer;
        };
        let shape = shape(vdev);
        let (reads, writes) = (slowest.read * shape.reads, slowest.write * shape.writes);
        read += reads;
        write += writes;
        // A drive that reads cannot write: each byte read and each byte written take their time.
        busy += 1.0 / (1.0 / reads + 1.0 / writes);
        layer.step(format!(
            "{}: {}; the slowest is {name}: {}. Reads {} x {} = {}, writes {} x {} = {}.",
            vdev.name,
            shape.text,
            slowest.why,
            shape.reads,
            rate(slowest.read),
            rate(reads),
            shape.writes,
            rate(slowest.write),
            rate(writes),
        ));
    }
    if read == 0.0 {
        layer.missing = Some("data vdevs".to_owned());
        return layer;
    }
    (layer.read, layer.write, layer.both) = (Some(read), Some(write), Some(busy));
    layer.step(format!(
        "Together they read {} or write {}; half and half, each byte read and each byte written \
         takes its time of a drive: {} each way.",
        rate(read),
        rate(write),
        rate(busy)
    ));
    layer
}

/// How many times one drive a vdev reads and writes.
struct Shape {
    reads: f64,
    writes: f64,
    text: String,
}

fn shape(vdev: &Vdev) -> Shape {
    let disks = vdev.disks.len() as f64;
    let data = disks - vdev.parity as f64;
    match vdev.kind.as_str() {
        // Parity rotates, so reads come from all drives; writes also write the parity.
        kind if kind.starts_with("raidz") || kind.starts_with("draid") => {
            let text = format!("{kind} of {disks} drives, {data} of them for data");
            Shape { reads: disks, writes: data, text }
        }
        "mirror" => Shape { reads: disks, writes: 1.0, text: format!("mirror of {disks} drives") },
        _ => Shape { reads: 1.0, writes: 1.0, text: "one drive".to_owned() },
    }
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
fn member(drive: &Drive) -> Option<Member> {
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
