//! Temperatures, fans, power limits, power supplies, and errors of memory that the hardware counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse::sorted;
use super::pcie::is_address;
use crate::source::Source;

/// What the hardware measures of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sensors {
    /// Temperatures that have a limit.
    pub temperatures: Vec<Temperature>,
    /// Fans.
    pub fans: Vec<Fan>,
    /// Power limits of processor packages (powercap).
    pub power_limits: Vec<PowerLimit>,
    /// Memory modules with corrected or uncorrected errors (EDAC).
    pub edac: Vec<Edac>,
    /// Times that a processor was slowed down because it was too hot, of the processor with most.
    pub core_throttles: Option<i64>,
    /// The same of a whole package.
    pub package_throttles: Option<i64>,
    /// Lines of the baseboard's list of power supplies.
    pub power_supplies: Vec<String>,
    /// The last lines of the baseboard's log.
    pub event_log: Vec<String>,
}

/// A temperature.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Temperature {
    /// What measures it: `mlx5`, `coretemp`, `drivetemp`.
    pub chip: String,
    /// PCI address, network interface or drive that it belongs to, as far as that is told.
    pub device: Option<String>,
    /// `asic`, `Core 0`.
    pub label: Option<String>,
    /// Now, in degrees Celsius.
    pub celsius: i64,
    /// Where it must not get to.
    pub critical_celsius: Option<i64>,
}

/// A fan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fan {
    /// What measures it.
    pub chip: String,
    /// Its name.
    pub label: String,
    /// Turns per minute.
    pub rpm: Option<i64>,
    /// Whether the chip says that it is too slow.
    pub alarm: Option<bool>,
}

/// A power limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerLimit {
    /// `package-0`.
    pub name: String,
    /// `long_term`, `short_term`.
    pub constraint: String,
    /// The limit in watts.
    pub watts: i64,
    /// What the package was made for.
    pub watts_max: Option<i64>,
}

/// A memory module or controller, and its errors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Edac {
    /// `P1-DIMMD1`, or `mc0`.
    pub name: String,
    /// Errors that were put right.
    pub corrected: i64,
    /// Errors that were not.
    pub uncorrected: i64,
}

const HWMON: &str = "/sys/class/hwmon";

/// Reads all of them.
pub(super) fn read(source: &dyn Source) -> Sensors {
    let mut sensors =
        Sensors { power_limits: power_limits(source), edac: edac(source), ..Sensors::default() };
    for name in sorted(source.names(HWMON)) {
        chip(source, &format!("{HWMON}/{name}"), &mut sensors);
    }
    let cpus = sorted(source.names("/sys/devices/system/cpu"));
    let most = |kind: &str| {
        let file = |cpu: &String| {
            source.int(&format!(
                "/sys/devices/system/cpu/{cpu}/thermal_throttle/{kind}_throttle_count"
            ))
        };
        cpus.iter().filter(|name| name.starts_with("cpu")).filter_map(file).max()
    };
    (sensors.core_throttles, sensors.package_throttles) = (most("core"), most("package"));
    let lines = |text: Option<String>| -> Vec<String> {
        let text = text.unwrap_or_default();
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    // A machine without a baseboard controller has no such device, and ipmitool would wait for one.
    if source.list("/sys/class/ipmi").is_some_and(|all| !all.is_empty())
        || source.names(HWMON).iter().any(|name| {
            source.text(&format!("{HWMON}/{name}/name")).as_deref() == Some("acpi_power_meter")
        })
    {
        sensors.power_supplies = lines(source.output("ipmitool", &["sdr", "type", "Power Supply"]));
        let mut log = lines(source.output("ipmitool", &["sel", "elist"]));
        sensors.event_log = log.split_off(log.len().saturating_sub(50));
    }
    sensors
}

fn chip(source: &dyn Source, at: &str, sensors: &mut Sensors) {
    let Some(chip) = source.text(&format!("{at}/name")) else { return };
    let device = source.link(&format!("{at}/device")).and_then(|place| {
        let last = place.rsplit('/').next()?.to_owned();
        Some(place.split('/').rev().find(|part| is_address(part)).map_or(last, str::to_owned))
    });
    let degrees = |file: String| source.int(&format!("{at}/{file}")).map(|milli| milli / 1000);
    for file in sorted(source.names(at)) {
        if let Some(number) = file.strip_suffix("_input").and_then(|f| f.strip_prefix("temp")) {
            let Some(celsius) = degrees(file.clone()) else { continue };
            // 0 and more than 200 degrees are limits that nobody has set.
            let limit = degrees(format!("temp{number}_crit"))
                .or_else(|| degrees(format!("temp{number}_max")))
                .filter(|limit| (30..200).contains(limit));
            sensors.temperatures.push(Temperature {
                chip: chip.clone(),
                device: device.clone(),
                label: source.text(&format!("{at}/temp{number}_label")),
                celsius,
                critical_celsius: limit,
            });
        } else if let Some(number) = file.strip_suffix("_input").and_then(|f| f.strip_prefix("fan"))
        {
            let label = source.text(&format!("{at}/fan{number}_label"));
            sensors.fans.push(Fan {
                chip: chip.clone(),
                label: label.unwrap_or_else(|| format!("fan{number}")),
                rpm: source.int(&format!("{at}/{file}")),
                alarm: source.flag(&format!("{at}/fan{number}_alarm")),
            });
        }
    }
    sensors.temperatures.retain(|temperature| temperature.critical_celsius.is_some());
}

fn power_limits(source: &dyn Source) -> Vec<PowerLimit> {
    let mut all = Vec::new();
    for name in sorted(source.names("/sys/class/powercap")) {
        let at = format!("/sys/class/powercap/{name}");
        let Some(package) = source.text(&format!("{at}/name")).filter(|n| n.starts_with("package"))
        else {
            continue;
        };
        if source.flag(&format!("{at}/enabled")) == Some(false) {
            continue;
        }
        for index in 0..2 {
            let watts = |file: &str| {
                source
                    .int(&format!("{at}/constraint_{index}_{file}"))
                    .map(|micro| micro / 1_000_000)
            };
            let constraint = source.text(&format!("{at}/constraint_{index}_name"));
            if let (Some(constraint), Some(limit)) = (constraint, watts("power_limit_uw")) {
                all.push(PowerLimit {
                    name: package.clone(),
                    constraint,
                    watts: limit,
                    watts_max: watts("max_power_uw").filter(|&watts| watts > 0),
                });
            }
        }
    }
    all
}

fn edac(source: &dyn Source) -> Vec<Edac> {
    let root = "/sys/devices/system/edac/mc";
    let mut all = Vec::new();
    for controller in sorted(source.names(root)).iter().filter(|name| name.starts_with("mc")) {
        let at = format!("{root}/{controller}");
        let int = |file: &str| source.int(&format!("{at}/{file}"));
        let mut of: BTreeMap<String, (i64, i64)> = BTreeMap::new();
        for dimm in sorted(source.names(&at)) {
            if !dimm.starts_with("dimm") && !dimm.starts_with("rank") {
                continue;
            }
            let label = source.text(&format!("{at}/{dimm}/dimm_label"));
            let name = label.unwrap_or_else(|| format!("{controller} {dimm}"));
            let corrected = int(&format!("{dimm}/dimm_ce_count")).unwrap_or(0);
            let uncorrected = int(&format!("{dimm}/dimm_ue_count")).unwrap_or(0);
            let sums = of.entry(name).or_default();
            *sums = (sums.0 + corrected, sums.1 + uncorrected);
        }
        if of.values().all(|&counts| counts == (0, 0)) {
            let counts = (int("ce_count").unwrap_or(0), int("ue_count").unwrap_or(0));
            of = BTreeMap::from([(controller.clone(), counts)]);
        }
        all.extend(of.into_iter().map(|(name, (corrected, uncorrected))| Edac {
            name,
            corrected,
            uncorrected,
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_what_the_hardware_measures() {
        let tree = Tree::parse(
            "/sys/class/hwmon/hwmon3/name: mlx5
/sys/class/hwmon/hwmon3/device -> ../../../0000:81:00.0
/sys/class/hwmon/hwmon3/temp1_input: 108000
/sys/class/hwmon/hwmon3/temp1_crit: 105000
/sys/class/hwmon/hwmon3/fan1_input: 0
/sys/class/powercap/intel-rapl:0/name: package-0
/sys/class/powercap/intel-rapl:0/constraint_0_name: long_term
/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw: 60000000
/sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw: 125000000
/sys/devices/system/edac/mc/mc0/ce_count: 4123
/sys/devices/system/edac/mc/mc0/dimm3/dimm_label: P1-DIMMD1
/sys/devices/system/edac/mc/mc0/dimm3/dimm_ce_count: 4123
/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count: 12
",
        )
        .unwrap();
        let sensors = read(&tree);
        let temperature = &sensors.temperatures[0];
        assert_eq!((temperature.celsius, temperature.critical_celsius), (108, Some(105)));
        assert_eq!(temperature.device.as_deref(), Some("0000:81:00.0"));
        assert_eq!(
            (sensors.power_limits[0].watts, sensors.power_limits[0].watts_max),
            (60, Some(125))
        );
        assert_eq!((sensors.edac[0].name.as_str(), sensors.edac[0].corrected), ("P1-DIMMD1", 4123));
        assert_eq!((sensors.package_throttles, sensors.core_throttles), (Some(12), None));
        assert_eq!(sensors.fans[0].rpm, Some(0));
    }
}
