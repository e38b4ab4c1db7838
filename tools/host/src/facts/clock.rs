//! The kernel's clock, and who keeps it right.

use serde::{Deserialize, Serialize};

use super::parse::colon_lines;
use crate::source::{Command, Source};

/// Time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clock {
    /// What the kernel reads the time from: `tsc`, `hpet`, `acpi_pm`, `kvm-clock`, `arch_sys_counter`.
    pub source: Option<String>,
    /// What it could read it from.
    pub available: Vec<String>,
    /// Whether a program keeps the time: chrony, ntpd, systemd-timesyncd, ptp4l...
    pub service: Option<bool>,
    /// Whether the kernel counts the clock as right.
    pub synchronised: Option<bool>,
    /// How far it is from the servers' time, in milliseconds.
    pub offset_ms: Option<i64>,
    /// Distance to a reference clock; 0 = none, 16 = not synchronised.
    pub stratum: Option<i64>,
    /// Servers that are asked, and those that answered of late (chrony).
    pub servers: Option<i64>,
    /// See `servers`.
    pub servers_reached: Option<i64>,
}

/// Reads about the clock.
pub(super) fn read(source: &dyn Source) -> Clock {
    let at = "/sys/devices/system/clocksource/clocksource0";
    let available = source.text(&format!("{at}/available_clocksource")).unwrap_or_default();
    let mut clock = Clock {
        source: source.text(&format!("{at}/current_clocksource")),
        available: available.split_whitespace().map(str::to_owned).collect(),
        ..Clock::default()
    };
    if let Some(text) = source.output("timedatectl", &["show"]) {
        let value = |key: &str| super::parse::shell_value(&text, key);
        clock.synchronised = value("NTPSynchronized").map(|value| value == "yes");
        clock.service = value("NTP").map(|value| value == "yes");
    }
    services(source, &mut clock);
    if let Some(text) = source.output("chronyc", &["tracking"]) {
        tracking(&text, &mut clock);
        let sources = source.output("chronyc", &["-n", "sources"]).unwrap_or_default();
        let rows = sources
            .lines()
            .filter(|line| line.starts_with(['^', '=', '#']) && !line.starts_with("=="));
        let reach: Vec<bool> = rows
            .map(|row| row.split_whitespace().nth(4).is_some_and(|reach| reach != "0"))
            .collect();
        clock.servers = i64::try_from(reach.len()).ok().filter(|&count| count > 0);
        clock.servers_reached = i64::try_from(reach.iter().filter(|&&ok| ok).count()).ok();
    }
    clock
}

/// Without timedatectl's word, those of the usual programs.
fn services(source: &dyn Source, clock: &mut Clock) {
    if clock.service == Some(true) {
        return;
    }
    let units = [
        "chrony.service",
        "chronyd.service",
        "ntpsec.service",
        "ntp.service",
        "ntpd.service",
        "systemd-timesyncd.service",
        "ptp4l.service",
    ];
    let mut known = false;
    for unit in units {
        let Some(output) = source.run(&Command::new("systemctl", &["is-active", unit])) else {
            continue;
        };
        known = true;
        if output.stdout.trim() == "active" {
            clock.service = Some(true);
            return;
        }
    }
    if known {
        clock.service = Some(false);
    }
}

/// `System time     : 47.312344551 seconds slow of NTP time`
fn tracking(text: &str, clock: &mut Clock) {
    for (key, value) in colon_lines(text) {
        match key {
            "Stratum" => clock.stratum = value.parse().ok(),
            "Leap status" => clock.synchronised = Some(value != "Not synchronised"),
            "System time" => {
                let seconds = value.split(' ').next().and_then(|n| n.parse::<f64>().ok());
                // A clock that is wrong by 292 million years would be cut off.
                clock.offset_ms = seconds.map(|seconds| (seconds * 1000.0).round() as i64);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_chrony() {
        let tree = Tree::parse(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource: hpet
/sys/devices/system/clocksource/clocksource0/available_clocksource: hpet acpi_pm
$ systemctl is-active chrony.service
| active
$ chronyc tracking
| Stratum         : 0
| System time     : 47.312344551 seconds slow of NTP time
| Leap status     : Not synchronised
$ chronyc -n sources
| MS Name/IP address         Stratum Poll Reach LastRx Last sample
| ===============================================================================
| ^? 192.168.1.1                   0  10     0     -     +0ns[   +0ns] +/-    0ns
",
        )
        .unwrap();
        let clock = read(&tree);
        assert_eq!((clock.source.as_deref(), clock.available.len()), (Some("hpet"), 2));
        assert_eq!((clock.offset_ms, clock.synchronised), (Some(47_312), Some(false)));
        assert_eq!(
            (clock.servers, clock.servers_reached, clock.service),
            (Some(1), Some(0), Some(true))
        );
    }
}
