//! `lunet volume list` and `lunet volume snapshots`

use lunet_api::{Erasure, ErasureState, Fault, FaultState, Snapshot, Volume, WriteCache};

use super::layout::{Columns, harmless};
use lunet_config::units;

/// What SANITIZE or FORMAT UNIT keeps a volume from, and what to do.
fn erasure(out: &mut String, name: &str, erasure: &Erasure) {
    let name = harmless(name);
    let command = match erasure.state {
        ErasureState::Formatting | ErasureState::FormatUnfinished => "FORMAT UNIT",
        _ => "SANITIZE",
    };
    if let Some(progress) = erasure.progress {
        let percent = (progress * 100.0) as u32;
        let line = format!(
            "  {name}: {command} is under way, {percent} % done: until then nothing is read or written\n"
        );
        return out.push_str(&line);
    }
    let tools = match command {
        "SANITIZE" => "`sg_sanitize`",
        _ => "`sg_format --format` or `sg_sanitize`",
    };
    out.push_str(&format!(
        "  {name}: {command} was cut off or has failed: nothing is read or written\n    fix: repeat it from an initiator \
         ({tools})\n"
    ));
}

/// Two lines for each fault of a volume: what is wrong, and what to do.
pub(super) fn faults(out: &mut String, name: &str, faults: &[Fault]) {
    for fault in faults {
        let (name, text) = (harmless(name), harmless(&fault.text));
        out.push_str(&format!("  {name}: since {} (UTC): {text}\n", units::date(fault.since)));
        if fault.state == FaultState::WriteBackFailed {
            out.push_str(&format!(
                "    fix: see to the storage (`dmesg`, free space), then `lunet volume reopen {name}`, then check \
                 the file systems on it\n"
            ));
        }
        // The text of a volume that is not served says it itself.
        if fault.state.is_lost() && !text.starts_with("not served") {
            // An image of a cluster is no file that could be put back.
            let of = if fault.state == FaultState::StorageCutShort {
                out.push_str(&format!(
                    "    fix of an image of Ceph: `lunet volume resize {name} SIZE`, with the size that it had: what lay behind its \
                     end is zeroes then\n"
                ));
                " of a file"
            } else {
                ""
            };
            out.push_str(&format!(
                "    fix{of}: put its own file back and restart lunet; or `lunet volume recreate {name} --yes` (empty) or `lunet \
                 volume adopt {name} --yes` (what is there now)\n"
            ));
        }
    }
}

const HEADS: [&str; 8] =
    ["volume", "backend", "size", "used", "write cache", "snapshots", "sessions", "LUNs"];

/// The columns but the first and the LUNs, the most important one first.
const ORDER: [usize; 6] = [2, 3, 6, 1, 4, 5];

/// A line for each volume. Where that is wider than `width` characters the LUNs stand below their volume, and
/// columns that have no place then are left out, and named.
pub fn volumes(volumes: &[Volume], width: Option<usize>) -> String {
    if volumes.is_empty() {
        return "no volumes\n".to_owned();
    }
    let mut columns = Columns::default();
    columns.row(HEADS);
    volumes.iter().for_each(|volume| columns.row(row(volume)));
    let width = width.unwrap_or(usize::MAX);
    let all: Vec<usize> = (0..HEADS.len()).collect();
    let mut out = String::new();
    let whole = columns.lines(&all);
    if whole.iter().all(|line| line.chars().count() <= width) {
        whole.iter().for_each(|line| out.push_str(&format!("{line}\n")));
    } else {
        let kept = columns.fitting(&ORDER, width);
        let lines = columns.lines(&kept);
        let below = [None].into_iter().chain(volumes.iter().map(Some));
        for (line, volume) in lines.iter().zip(below) {
            out.push_str(&format!("{line}\n"));
            for lun in volume.into_iter().flat_map(|volume| &volume.luns) {
                out.push_str(&format!("    LUN {} of {}\n", lun.lun, harmless(&lun.target)));
            }
        }
        let left: Vec<&str> =
            ORDER.iter().filter(|column| !kept.contains(column)).map(|c| HEADS[*c]).collect();
        if !left.is_empty() {
            out.push_str(&format!("  no room for: {} (--json has all)\n", left.join(", ")));
        }
    }
    for volume in volumes {
        faults(&mut out, &volume.name, volume.faults.as_deref().unwrap_or_default());
        if let Some(stands) = &volume.erasure {
            erasure(&mut out, &volume.name, stands);
        }
    }
    out
}

fn row(volume: &Volume) -> [String; 8] {
    let backend = harmless(&volume.backend.to_string());
    let backend = match volume.read_only {
        true => format!("{backend} (read-only)"),
        false => backend,
    };
    let luns: Vec<String> =
        volume.luns.iter().map(|l| format!("{}/{}", harmless(&l.target), l.lun)).collect();
    let write_cache = match volume.write_cache {
        WriteCache::On => "on",
        WriteCache::Off => "off",
        WriteCache::OffByInitiator => "off (initiator)",
        WriteCache::None | WriteCache::Other(_) => "-",
    };
    [
        harmless(&volume.name),
        backend,
        units::size(volume.size_bytes),
        volume.used_bytes.map_or_else(|| "-".to_owned(), units::size),
        write_cache.to_owned(),
        volume.snapshots.to_string(),
        volume.sessions.to_string(),
        if luns.is_empty() { "-".to_owned() } else { luns.join(" ") },
    ]
}

/// A line for each snapshot.
pub fn snapshots(snapshots: &[Snapshot]) -> String {
    if snapshots.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let mut columns = Columns::default();
    columns.row(["snapshot", "size", "made (UTC)"]);
    for one in snapshots {
        columns.row([
            harmless(&format!("{}@{}", one.volume, one.snapshot)),
            one.size_bytes.map_or_else(|| "-".to_owned(), units::size),
            units::date(one.created),
        ]);
    }
    let mut out = String::new();
    columns.write(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn told(answer: &Value, width: Option<usize>) -> String {
        volumes(&Vec::deserialize(answer).expect("an answer"), width)
    }

    #[test]
    fn a_volume_is_a_line() {
        let answer = json!([
            {"name": "vm1", "backend": "file", "size_bytes": 8u64 << 30, "used_bytes": 4096,
             "block_size": 512, "read_only": true, "write_cache": "none", "path": "/d/vm1.img", "sessions": 2,
             "snapshots": 1, "luns": [{"target": "iqn.x:a", "lun": 0}, {"target": "iqn.x:b", "lun": 7}]},
            {"name": "ram", "backend": "memory", "size_bytes": 512, "used_bytes": null,
             "block_size": 512, "read_only": false, "write_cache": "off-by-initiator", "path": null, "sessions": 0, "snapshots": 0,
             "luns": []},
        ]);
        assert_eq!(
            told(&answer, None),
            "  volume           backend   size   used      write cache  snapshots  sessions                 LUNs\n  \
               vm1     file (read-only)  8 GiB  4 KiB                -          1         2  iqn.x:a/0 iqn.x:b/7\n  \
               ram               memory  512 B      -  off (initiator)          0         0                    -\n"
        );
        assert_eq!(told(&json!([]), None), "no volumes\n");
    }

    #[test]
    fn no_figure_and_no_name_is_cut_at_any_width() {
        let volume = |name: &str, luns: usize| {
            let lun = |n: usize| json!({"target": format!("iqn.2026-11.com.example.storage:vms{n}"), "lun": n});
            json!({"name": name, "backend": "file", "size_bytes": 3u64 << 39, "used_bytes": 1234567890u64,
                   "read_only": true, "write_cache": "off-by-initiator", "sessions": 12, "snapshots": 345,
                   "luns": (0..luns).map(lun).collect::<Vec<_>>()})
        };
        let answer = json!([volume("production-database-1", 2), volume("vm", 0)]);
        let cells = |width| -> (String, Vec<usize>) {
            let text = told(&answer, width);
            let lines = text.lines().map(|line| line.chars().count()).collect();
            (text, lines)
        };
        for width in (40..200).chain([80, 100, 130]) {
            let (text, lines) = cells(Some(width));
            let most = |line: &&str| if line.contains("no room") { 90 } else { width.max(52) };
            let all_fit = text.lines().all(|line| line.chars().count() <= most(&line));
            assert!(
                all_fit && (width < 80 || lines.iter().all(|n| *n <= width)),
                "{width}:\n{text}"
            );
            for word in ["production-database-1", "iqn.2026-11.com.example.storage:vms1"] {
                assert!(text.contains(word), "{width}:\n{text}");
            }
            // What is not there is named.
            for (head, figure) in [
                ("size", "1.5 TiB"),
                ("used", "1.1 GiB"),
                ("sessions", "  12"),
                ("write cache", "off (initiator)"),
                ("snapshots", "  345"),
                ("backend", "file (read-only)"),
            ] {
                let absent = text.lines().last().unwrap().contains(head);
                assert!(text.contains(figure) != absent, "{width}, {head}:\n{text}");
            }
        }
        let missing = |width| cells(Some(width)).0.lines().last().unwrap().to_owned();
        assert_eq!(missing(80), "  no room for: write cache, snapshots (--json has all)");
        assert!(missing(90).contains("no room for: snapshots"), "{}", missing(90));
        assert!(!missing(100).contains("no room") && !missing(130).contains("no room"));
        assert_eq!(cells(None).1.len(), 3, "not for a terminal: a line for each");
    }

    #[test]
    fn what_is_wrong_with_a_volume_stands_below_with_what_to_do() {
        let fault = json!({"state": "write-back-failed", "since": 1795165200, "text": "it failed"});
        let answer = json!([
            {"name": "vm1", "backend": "file", "size_bytes": 512, "read_only": false, "sessions": 0,
             "snapshots": 0, "luns": [], "faults": [fault]},
        ]);
        let text = told(&answer, None);
        let lost = json!({"state": "storage-missing", "since": 0, "text": "it is gone"});
        let lost = told(
            &json!([{
                "name": "vm1", "backend": "file", "size_bytes": 512, "read_only": false, "sessions": 0,
                "snapshots": 0, "luns": [], "faults": [lost],
            }]),
            None,
        );
        assert!(lost.contains("`lunet volume recreate vm1 --yes`"));
        let below: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(below[0], "  vm1: since 2026-11-20 09:00:00 (UTC): it failed");
        assert!(below[1].contains("`lunet volume reopen vm1`"), "{text}");
    }

    #[test]
    fn what_sanitize_and_format_unit_do_stands_below() {
        let below = |erasure: Value| {
            let answer = json!([{
                "name": "vm1", "backend": "file", "size_bytes": 512, "read_only": false, "sessions": 0,
                "snapshots": 0, "luns": [], "erasure": erasure,
            }]);
            told(&answer, None).lines().skip(2).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(below(Value::Null), "");
        assert_eq!(
            below(json!({"state": "formatting", "progress": 0.259})),
            "  vm1: FORMAT UNIT is under way, 25 % done: until then nothing is read or written"
        );
        assert_eq!(
            below(json!({"state": "format-unfinished", "progress": null})),
            "  vm1: FORMAT UNIT was cut off or has failed: nothing is read or written\n    fix: repeat it from an initiator \
             (`sg_format --format` or `sg_sanitize`)"
        );
        assert!(
            below(json!({"state": "sanitizing", "progress": 0.0}))
                .contains("SANITIZE is under way, 0 %")
        );
        assert!(below(json!({"state": "sanitize-failed"})).ends_with("(`sg_sanitize`)"));
    }

    #[test]
    fn a_snapshot_is_a_line() {
        let answer =
            json!([{"volume": "vm1", "snapshot": "a", "size_bytes": 4096, "created": 1795165200}]);
        assert_eq!(
            snapshots(&Vec::deserialize(&answer).unwrap()),
            "  snapshot   size           made (UTC)\n  vm1@a     4 KiB  2026-11-20 09:00:00\n"
        );
        assert_eq!(snapshots(&[]), "no snapshots\n");
    }
}
