//! The whole machine: /proc/stat, sensors, throttling.

use super::Root;

/// Processor time in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cpu {
    pub busy: u64,
    pub stolen: u64,
    pub all: u64,
}

/// Counters at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub together: Cpu,
    pub each: Vec<Cpu>,
    pub switches: u64,
    /// Sensors in thousandths of a degree Celsius.
    pub temperatures: Vec<(String, i64)>,
    pub throttles: Vec<(String, u64)>,
}

/// Reads all counters. What is not there has none.
pub(super) fn counters(root: &Root) -> Counters {
    let mut counters = Counters::default();
    for line in root.text("proc/stat").unwrap_or_default().lines() {
        let Some((name, rest)) = line.split_once(' ') else { continue };
        match name {
            "cpu" => counters.together = cpu(rest),
            "ctxt" => counters.switches = rest.trim().parse().unwrap_or(0),
            name if name.starts_with("cpu") => counters.each.push(cpu(rest)),
            _ => {}
        }
    }
    counters.temperatures = temperatures(root);
    counters.throttles = throttles(root);
    counters
}

/// user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)). Guests' time is part of user's.
fn cpu(text: &str) -> Cpu {
    let ticks: Vec<u64> = text.split_whitespace().map_while(|part| part.parse().ok()).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    let idle = at(3) + at(4);
    let all = (0..8).map(at).sum::<u64>();
    Cpu { busy: all - idle - at(7), stolen: at(7), all }
}

/// hwmon knows processors, drives and cards; where it knows none, thermal zones.
fn temperatures(root: &Root) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    for chip in root.names("sys/class/hwmon") {
        let folder = format!("sys/class/hwmon/{chip}");
        let chip = root.text(format!("{folder}/name")).unwrap_or_default().trim().to_owned();
        for file in root.names(&folder) {
            let Some(sensor) = file.strip_suffix("_input").filter(|name| name.starts_with("temp"))
            else {
                continue;
            };
            let label = root.text(format!("{folder}/{sensor}_label"));
            let label = label.map_or_else(|_| sensor.to_owned(), |text| text.trim().to_owned());
            found.extend(degrees(root, &format!("{folder}/{file}"), format!("{chip} {label}")));
        }
    }
    if found.is_empty() {
        let zones = root.names("sys/class/thermal").into_iter();
        for zone in zones.filter(|name| name.starts_with("thermal_zone")) {
            let folder = format!("sys/class/thermal/{zone}");
            let kind = root.text(format!("{folder}/type")).unwrap_or(zone);
            found.extend(degrees(root, &format!("{folder}/temp"), kind.trim().to_owned()));
        }
    }
    found
}

fn degrees(root: &Root, path: &str, name: String) -> Option<(String, i64)> {
    Some((name, root.text(path).ok()?.trim().parse().ok()?))
}

/// How often processors slowed themselves down because of heat.
fn throttles(root: &Root) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let cpus = root.names("sys/devices/system/cpu").into_iter().filter(|name| {
        name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok())
    });
    for cpu in cpus {
        for what in ["core", "package"] {
            let file =
                format!("sys/devices/system/cpu/{cpu}/thermal_throttle/{what}_throttle_count");
            found.extend(root.number(file).map(|times| (format!("{cpu} {what}"), times)));
        }
    }
    found
}
