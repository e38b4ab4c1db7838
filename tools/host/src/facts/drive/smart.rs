//! What SATA and SAS drives say of themselves, by smartctl: its JSON, or its text where it is older than 7.0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::source::{Command, Source};

/// What a drive says of its own health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Smart {
    /// Whether the drive believes that it is well.
    pub passed: Option<bool>,
    /// Hours that it was powered.
    pub hours: Option<i64>,
    /// Temperature in degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// Temperature that it is not to reach.
    pub temperature_limit_celsius: Option<i64>,
    /// Counters, by one name for all makers: `reallocated_sectors`, `pending_sectors`, `uncorrectable_sectors`,
    /// `reported_uncorrectable`, `crc_errors`, `command_timeouts`, `spin_retries`, `end_to_end_errors`,
    /// `reallocation_events`, `load_cycles`, `power_losses`, `helium_level` (what is left, in percent), `life_left_percent`, `grown_defects`,
    /// `uncorrected_reads`, `uncorrected_writes`, `non_medium_errors`, `logged_errors`.
    pub counters: BTreeMap<String, i64>,
    /// Attributes that are below their threshold now.
    pub failing: Vec<String>,
    /// What the last self-test of it ended with, unless that went well.
    pub self_test_failed: Option<String>,
    /// Speed of the link now, in Mbit/s.
    pub link_mbit: Option<i64>,
    /// Speed that the drive could have.
    pub link_max_mbit: Option<i64>,
    /// `host-managed`, `host-aware`, `drive-managed`: shingled tracks, as far as it says so.
    pub zoned: Option<String>,
    /// Whether it ends long error recovery early (SCT ERC, TLER), so that RAID can help: its time in 0.1 s, 0 = no.
    pub error_recovery_ds: Option<i64>,
}

/// Numbers of attributes that all makers use for the same thing.
const ATTRIBUTES: &[(i64, &str)] = &[
    (5, "reallocated_sectors"),
    (10, "spin_retries"),
    (184, "end_to_end_errors"),
    (187, "reported_uncorrectable"),
    (188, "command_timeouts"),
    (192, "power_losses"),
    (193, "load_cycles"),
    (196, "reallocation_events"),
    (197, "pending_sectors"),
    (198, "uncorrectable_sectors"),
    (199, "crc_errors"),
];
/// Attributes whose normalized value is what is left of the flash's life, in percent.
const LIFE: &[&str] = &[
    "Media_Wearout_Indicator",
    "Percent_Lifetime_Remain",
    "Remaining_Lifetime_Perc",
    "SSD_Life_Left",
    "Wear_Leveling_Count",
];

/// Asks for what a drive says. Nothing, without smartctl or the right to ask.
pub(in crate::facts) fn read(source: &dyn Source, name: &str) -> Option<Smart> {
    let device = format!("/dev/{name}");
    let run = |args: &[&str]| {
        let output = source.run(&Command::new("smartctl", args))?;
        // Bits 0 and 1: it could not be asked. The others say how the drive is.
        (output.code & 3 == 0 && !output.stdout.trim().is_empty()).then_some(output.stdout)
    };
    let json = run(&["-a", "-j", &device]).and_then(|text| serde_json::from_str(&text).ok());
    json.map(|told: Json| of_json(&told))
        .or_else(|| run(&["-a", &device]).map(|text| of_text(&text)))
}

/// A counter of 16 bits in the lowest place of what some makers put three into.
fn counter(id: i64, raw: i64) -> i64 {
    if id == 188 { raw & 0xffff } else { raw & 0xffff_ffff }
}

fn of_json(told: &Json) -> Smart {
    let mut smart = Smart {
        passed: told["smart_status"]["passed"].as_bool(),
        hours: told["power_on_time"]["hours"].as_i64(),
        temperature_celsius: told["temperature"]["current"].as_i64(),
        temperature_limit_celsius: told["temperature"]["drive_trip"]
            .as_i64()
            .or_else(|| told["temperature"]["op_limit_max"].as_i64()),
        link_mbit: speed(&told["interface_speed"]["current"]),
        link_max_mbit: speed(&told["interface_speed"]["max"]),
        zoned: told["zoned_device"]["name"]
            .as_str()
            .or_else(|| told["zoned"]["capabilities"].as_str())
            .map(|text| text.to_lowercase().replace(' ', "-")),
        error_recovery_ds: told["ata_sct_erc"]["read"]["deciseconds"].as_i64(),
        ..Smart::default()
    };
    for row in told["ata_smart_attributes"]["table"].as_array().into_iter().flatten() {
        let (Some(id), Some(raw)) = (row["id"].as_i64(), row["raw"]["value"].as_i64()) else {
            continue;
        };
        let name = row["name"].as_str().unwrap_or_default();
        let value = row["value"].as_i64();
        attribute(&mut smart, id, name, value, raw);
        if row["when_failed"].as_str() == Some("now") {
            smart.failing.push(name.to_owned());
        }
    }
    let others = [
        ("grown_defects", &told["scsi_grown_defect_list"]),
        ("uncorrected_reads", &told["scsi_error_counter_log"]["read"]["total_uncorrected_errors"]),
        (
            "uncorrected_writes",
            &told["scsi_error_counter_log"]["write"]["total_uncorrected_errors"],
        ),
        ("non_medium_errors", &told["scsi_non_medium_error_count"]),
        ("logged_errors", &told["ata_smart_error_log"]["summary"]["count"]),
    ];
    for (name, value) in others {
        if let Some(value) = value.as_i64() {
            smart.counters.insert(name.to_owned(), value);
        }
    }
    if let Some(used) = told["scsi_percentage_used_endurance_indicator"].as_i64() {
        smart.counters.insert("life_left_percent".to_owned(), 100 - used);
    }
    let last = &told["ata_smart_self_test_log"]["standard"]["table"][0]["status"];
    let last = if last.is_null() { &told["scsi_self_test_0"]["result"] } else { last };
    if last["passed"].as_bool() == Some(false)
        || last["value"].as_i64().is_some_and(|v| (3..8).contains(&v))
    {
        smart.self_test_failed = Some(last["string"].as_str().unwrap_or("failed").to_owned());
    }
    smart
}

/// `6.0 Gb/s` in Mbit/s.
fn speed(link: &Json) -> Option<i64> {
    let gbit: f64 = link["string"].as_str()?.split(' ').next()?.parse().ok()?;
    // At most 22.5: no digit is lost.
    Some((gbit * 1000.0).round() as i64)
}

fn attribute(smart: &mut Smart, id: i64, name: &str, value: Option<i64>, raw: i64) {
    if let Some((_, counter_name)) = ATTRIBUTES.iter().find(|(known, _)| *known == id) {
        smart.counters.insert((*counter_name).to_owned(), counter(id, raw));
    }
    if let Some(value) = value.filter(|_| LIFE.iter().any(|life| name.starts_with(life))) {
        smart.counters.insert("life_left_percent".to_owned(), value);
    }
    if let Some(value) = value.filter(|_| name.starts_with("Helium")) {
        smart.counters.insert("helium_level".to_owned(), value);
    }
    match id {
        9 => smart.hours = smart.hours.or(Some(raw & 0xff_ffff)),
        190 | 194 => smart.temperature_celsius = smart.temperature_celsius.or(Some(raw & 0xff)),
        _ => {}
    }
}

fn of_text(text: &str) -> Smart {
    let mut smart = Smart::default();
    for line in text.lines() {
        row(&mut smart, line);
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        let number = || value.trim_end_matches([' ', 'C', '%']).parse::<i64>().ok();
        let mut count = |name: &str, value: Option<i64>| {
            if let Some(value) = value {
                smart.counters.insert(name.to_owned(), value);
            }
        };
        match key {
            "SMART overall-health self-assessment test result" => {
                smart.passed = Some(value == "PASSED")
            }
            "SMART Health Status" => smart.passed = Some(value.starts_with("OK")),
            "Current Drive Temperature" => smart.temperature_celsius = number(),
            "Drive Trip Temperature" => smart.temperature_limit_celsius = number(),
            "Elements in grown defect list" => count("grown_defects", number()),
            "Non-medium error count" => count("non_medium_errors", number()),
            "ATA Error Count" => {
                count("logged_errors", value.split(' ').next().and_then(|n| n.parse().ok()))
            }
            "Percentage used endurance indicator" => {
                count("life_left_percent", number().map(|used| 100 - used))
            }
            "read" | "write" => {
                let last = value.split_whitespace().last().and_then(|n| n.parse().ok());
                count(if key == "read" { "uncorrected_reads" } else { "uncorrected_writes" }, last);
            }
            "SATA Version is" => link_of_text(&mut smart, value),
            _ if key.starts_with("Accumulated power on time") => {
                // hours:minutes 32410:12
                let hours =
                    value.rsplit(' ').next().and_then(|t| t.split(':').next()?.parse().ok());
                smart.hours = hours;
            }
            _ => {}
        }
    }
    smart
}

/// `SATA 3.2, 6.0 Gb/s (current: 1.5 Gb/s)`
fn link_of_text(smart: &mut Smart, value: &str) {
    let gbit = |text: &str| -> Option<i64> {
        let (before, _) = text.split_once(" Gb/s")?;
        let number: f64 = before.rsplit([' ', '(']).next()?.parse().ok()?;
        Some((number * 1000.0).round() as i64)
    };
    smart.link_max_mbit = gbit(value);
    smart.link_mbit = value.split_once("current:").and_then(|(_, now)| gbit(now));
}

/// `  5 Reallocated_Sector_Ct   0x0033   062   062   010    Pre-fail  Always   -   1892`, and the newest self-test:
/// `# 1  Extended offline    Completed: read failure       90%     32410         458639564`.
fn row(smart: &mut Smart, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.first() == Some(&"#") && words.get(1) == Some(&"1") {
        let bad = [
            "read failure",
            "electrical failure",
            "servo/seek failure",
            "unknown failure",
            "handling damage",
        ];
        smart.self_test_failed =
            bad.iter().find(|bad| line.contains(**bad)).map(|bad| (*bad).to_owned());
        return;
    }
    let [id, name, flag, value, ..] = words[..] else { return };
    let (Ok(id), true, Some(raw)) = (id.parse::<i64>(), flag.starts_with("0x"), words.get(9))
    else {
        return;
    };
    let Some(raw) = raw.split(['h', '/']).next().and_then(|raw| raw.parse::<i64>().ok()) else {
        return;
    };
    attribute(smart, id, name, value.parse().ok(), raw);
    if words.get(8).is_some_and(|when| when.contains("NOW")) {
        smart.failing.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_json_and_what_the_exit_code_says() {
        let tree = Tree::parse(
            r#"$ smartctl -a -j /dev/sda
exit 88
| {"smart_status": {"passed": false}, "power_on_time": {"hours": 41000}, "temperature": {"current": 41},
|  "interface_speed": {"max": {"string": "6.0 Gb/s"}, "current": {"string": "1.5 Gb/s"}},
|  "ata_smart_self_test_log": {"standard": {"table": [{"status": {"string": "Completed: read failure", "passed": false}}]}},
|  "ata_smart_attributes": {"table": [
|   {"id": 5, "name": "Reallocated_Sector_Ct", "value": 8, "when_failed": "now", "raw": {"value": 1892}},
|   {"id": 188, "name": "Command_Timeout", "value": 99, "when_failed": "", "raw": {"value": 4295032833}},
|   {"id": 177, "name": "Wear_Leveling_Count", "value": 12, "when_failed": "", "raw": {"value": 2900}}]}}
"#,
        )
        .unwrap();
        let smart = read(&tree, "sda").unwrap();
        assert_eq!((smart.passed, smart.hours), (Some(false), Some(41_000)));
        assert_eq!((smart.link_mbit, smart.link_max_mbit), (Some(1500), Some(6000)));
        assert_eq!(smart.failing, ["Reallocated_Sector_Ct"]);
        assert_eq!(
            (smart.counters["command_timeouts"], smart.counters["life_left_percent"]),
            (1, 12)
        );
        assert_eq!(smart.self_test_failed.as_deref(), Some("Completed: read failure"));
    }

    #[test]
    fn reads_the_text_of_a_sas_and_of_a_sata_drive() {
        let tree = Tree::parse(
            "$ smartctl -a /dev/sdb
| SMART Health Status: OK
| Percentage used endurance indicator: 4%
| Current Drive Temperature:     31 C
| Drive Trip Temperature:        70 C
| Accumulated power on time, hours:minutes 32410:12
| Elements in grown defect list: 7
| read:   3 0 0 3 3 1.5 2
$ smartctl -a /dev/sdc
| SMART overall-health self-assessment test result: PASSED
| SATA Version is:  SATA 3.2, 6.0 Gb/s (current: 3.0 Gb/s)
|   9 Power_On_Hours          0x0032   091   091   000    Old_age   Always       -       41218
| 197 Current_Pending_Sector  0x0012   100   100   000    Old_age   Always       -       24
",
        )
        .unwrap();
        let sas = read(&tree, "sdb").unwrap();
        assert_eq!(
            (sas.passed, sas.hours, sas.temperature_celsius),
            (Some(true), Some(32_410), Some(31))
        );
        assert_eq!((sas.counters["grown_defects"], sas.counters["uncorrected_reads"]), (7, 2));
        assert_eq!(sas.counters["life_left_percent"], 96);
        let sata = read(&tree, "sdc").unwrap();
        assert_eq!((sata.counters["pending_sectors"], sata.hours), (24, Some(41_218)));
        assert_eq!((sata.link_mbit, sata.link_max_mbit), (Some(3000), Some(6000)));
        assert_eq!(read(&tree, "sdd"), None);
    }
}
