//! md arrays, by /proc/mdstat and their directories in sysfs (Documentation/admin-guide/md.rst).

use serde::{Deserialize, Serialize};

use crate::facts::parse::sorted;
use crate::source::Source;

/// An md array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Array {
    /// `md0`.
    pub name: String,
    /// `raid1`, `raid5`, `raid10`...
    pub level: Option<String>,
    /// Whether it was started.
    pub active: Option<bool>,
    /// Whether nothing can be written to it.
    pub read_only: Option<bool>,
    /// `clean`, `active`, `inactive`, `readonly`, `broken`...
    pub state: Option<String>,
    /// Members that it should have.
    pub raid_disks: Option<i64>,
    /// Members that are missing.
    pub degraded: Option<i64>,
    /// Its members.
    pub members: Vec<ArrayMember>,
    /// `idle`, `resync`, `recover`, `check`, `repair`, `reshape`, `frozen`.
    pub sync_action: Option<String>,
    /// How far that is, in percent.
    pub sync_percent: Option<i64>,
    /// How long that will take, in minutes.
    pub sync_minutes_left: Option<i64>,
    /// How fast that is, in KiB/s.
    pub sync_kib_per_second: Option<i64>,
    /// Whether it waits: `DELAYED` for another array, `PENDING` for the first write.
    pub sync_waits: Option<String>,
    /// The most that it may use, in KiB/s.
    pub sync_max_kib: Option<i64>,
    /// Sectors that differed in the last check.
    pub mismatches: Option<i64>,
    /// Piece of data on one member, in bytes.
    pub chunk_bytes: Option<i64>,
    /// Whether it remembers which parts were being written.
    pub bitmap: Option<bool>,
    /// `resync`, `ppl`, `bitmap`, `journal`: what closes the write hole.
    pub consistency: Option<String>,
    /// Threads beside the array's own that work on stripes; 0 = none.
    pub group_threads: Option<i64>,
    /// Stripes in memory.
    pub stripe_cache: Option<i64>,
    /// Those in use.
    pub stripe_cache_active: Option<i64>,
    /// Size in bytes.
    pub size_bytes: Option<i64>,
    /// Read-ahead in KiB.
    pub read_ahead_kib: Option<i64>,
}

/// A member of an array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArrayMember {
    /// `sda3`.
    pub device: String,
    /// `in_sync`, `faulty`, `spare`, `write_mostly`, `blocked`...
    pub state: Option<String>,
    /// Its place; `null` = none.
    pub slot: Option<i64>,
    /// Read errors that were put right.
    pub errors: Option<i64>,
    /// Whether blocks of it are known to be bad.
    pub bad_blocks: Option<bool>,
}

/// Reads all arrays.
pub(super) fn read(source: &dyn Source) -> Vec<Array> {
    let stat = source.read("/proc/mdstat").unwrap_or_default();
    let mut names: Vec<String> = source.names("/sys/block");
    names.retain(|name| {
        name.strip_prefix("md")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '_'))
    });
    let told = stat.lines().filter(|line| !line.starts_with(' ') && line.starts_with("md"));
    names.extend(told.filter_map(|line| Some(line.split_once(" :")?.0.trim().to_owned())));
    names.sort();
    names.dedup();
    sorted(names).iter().map(|name| array(source, name, &stat)).collect()
}

fn array(source: &dyn Source, name: &str, stat: &str) -> Array {
    let at = format!("/sys/block/{name}/md");
    let text = |file: &str| source.text(&format!("{at}/{file}"));
    let int = |file: &str| source.int(&format!("{at}/{file}"));
    let state = text("array_state");
    let mut array = Array {
        name: name.to_owned(),
        level: text("level"),
        active: state.as_deref().map(|state| !matches!(state, "inactive" | "clear")),
        read_only: state.as_deref().map(|state| state == "readonly"),
        state,
        raid_disks: int("raid_disks"),
        degraded: int("degraded"),
        members: members(source, &at),
        sync_action: text("sync_action"),
        sync_kib_per_second: int("sync_speed"),
        sync_max_kib: text("sync_speed_max").and_then(|text| text.split(' ').next()?.parse().ok()),
        mismatches: int("mismatch_cnt"),
        chunk_bytes: int("chunk_size"),
        bitmap: text("bitmap/location").map(|place| place != "none"),
        consistency: text("consistency_policy"),
        group_threads: int("group_thread_cnt"),
        stripe_cache: int("stripe_cache_size"),
        stripe_cache_active: int("stripe_cache_active"),
        size_bytes: source.int(&format!("/sys/block/{name}/size")).map(|sectors| sectors * 512),
        read_ahead_kib: source.int(&format!("/sys/block/{name}/queue/read_ahead_kb")),
        ..Array::default()
    };
    if let Some(lines) = about(stat, name) {
        of_mdstat(lines, &mut array);
    }
    array
}

fn members(source: &dyn Source, at: &str) -> Vec<ArrayMember> {
    let names = source.names(at);
    let members = names.iter().filter_map(|name| name.strip_prefix("dev-"));
    let read = |device: &str| {
        let text = |file: &str| source.text(&format!("{at}/dev-{device}/{file}"));
        ArrayMember {
            device: device.to_owned(),
            state: text("state"),
            slot: text("slot").and_then(|slot| slot.parse().ok()),
            errors: text("errors").and_then(|count| count.parse().ok()),
            bad_blocks: source
                .read(&format!("{at}/dev-{device}/bad_blocks"))
                .map(|list| !list.trim().is_empty()),
        }
    };
    sorted(members.map(str::to_owned).collect()).iter().map(|name| read(name)).collect()
}

/// The lines of one array, without its name.
fn about<'a>(stat: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = stat.split_once(&format!("{name} : "))?;
    let end = rest.find("\n\n").or_else(|| rest.find("\nunused")).unwrap_or(rest.len());
    rest.get(..end)
}

/// `active raid10 nvme3n1[3](F) nvme2n1[2]`, and below `... [4/3] [UUU_]`, `check = 40.4% (...) finish=22.1min speed=9K/sec`.
fn of_mdstat(lines: &str, array: &mut Array) {
    let first = lines.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    array.active = Some(words.first() == Some(&"active"));
    array.read_only =
        array.read_only.or(Some(false)).map(|only| only || first.contains("(read-only)"));
    if array.level.is_none() {
        let level = words.iter().find(|word| word.starts_with("raid") || **word == "linear");
        array.level = level.map(|level| (*level).to_owned());
    }
    for word in words.iter().filter(|word| word.contains('[')) {
        let device = word.split('[').next().unwrap_or_default();
        let state = if word.ends_with("(F)") {
            Some("faulty")
        } else if word.ends_with("(S)") {
            Some("spare")
        } else {
            None
        };
        match array.members.iter_mut().find(|member| member.device == device) {
            Some(member) => member.state = member.state.take().or(state.map(str::to_owned)),
            None => array.members.push(ArrayMember {
                device: device.to_owned(),
                state: Some(state.unwrap_or("in_sync").to_owned()),
                ..ArrayMember::default()
            }),
        }
    }
    let counts = lines.split(['[', ']']).find_map(|part| {
        let (all, have) = part.split_once('/')?;
        Some((all.parse::<i64>().ok()?, have.parse::<i64>().ok()?))
    });
    if let Some((all, have)) = counts {
        array.raid_disks = array.raid_disks.or(Some(all));
        array.degraded = array.degraded.or(Some(all - have));
    }
    array.bitmap = array.bitmap.or(Some(lines.contains("bitmap:")));
    sync_of_mdstat(lines, array);
}

fn sync_of_mdstat(lines: &str, array: &mut Array) {
    for line in lines.lines().skip(1) {
        let action =
            ["resync", "recovery", "check", "repair", "reshape"].into_iter().find(|action| {
                line.contains(&format!("{action} =")) || line.contains(&format!("{action}="))
            });
        let Some(action) = action else { continue };
        let kernel = if action == "recovery" { "recover" } else { action };
        array.sync_action = array.sync_action.take().or(Some(kernel.to_owned()));
        let waits = ["DELAYED", "PENDING"].into_iter().find(|word| line.contains(word));
        array.sync_waits = waits.map(str::to_owned);
        let whole = |text: &str| text.trim().split('.').next().and_then(|n| n.parse::<i64>().ok());
        array.sync_percent = line.split_once(action).and_then(|(_, rest)| {
            let number = rest.trim_start_matches([' ', '=']).split('%').next()?;
            whole(number).filter(|_| rest.contains('%'))
        });
        array.sync_minutes_left =
            line.split_once("finish=").and_then(|(_, rest)| whole(rest.split("min").next()?));
        array.sync_kib_per_second = array.sync_kib_per_second.or_else(|| {
            line.split_once("speed=").and_then(|(_, rest)| whole(rest.split('K').next()?))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_an_array_that_lost_a_member_and_rebuilds() {
        let tree = Tree::parse(
            "/proc/mdstat:
| Personalities : [raid10]
| md0 : active raid10 sdd[4] sdc[2](F) sdb[1] sda[0]
|       6251233968 blocks super 1.2 512K chunks 2 near-copies [4/3] [UU_U]
|       [==>..................]  recovery = 12.6% (394031744/3125616984) finish=231.4min speed=196712K/sec
|       bitmap: 3/47 pages [12KB], 65536KB chunk
|
| md1 : inactive sde1[1](S)
|       104792064 blocks super 1.2
|
| unused devices: <none>
",
        )
        .unwrap();
        let arrays = read(&tree);
        assert_eq!(arrays.len(), 2);
        let array = &arrays[0];
        assert_eq!((array.level.as_deref(), array.active), (Some("raid10"), Some(true)));
        assert_eq!(
            (array.raid_disks, array.degraded, array.bitmap),
            (Some(4), Some(1), Some(true))
        );
        assert_eq!((array.sync_action.as_deref(), array.sync_percent), (Some("recover"), Some(12)));
        assert_eq!(
            (array.sync_minutes_left, array.sync_kib_per_second),
            (Some(231), Some(196_712))
        );
        let states: Vec<_> = array.members.iter().map(|m| m.state.as_deref().unwrap()).collect();
        assert_eq!(states, ["in_sync", "faulty", "in_sync", "in_sync"]);
        assert_eq!((arrays[1].active, arrays[1].degraded), (Some(false), None));
    }
}
