//! What only NVMe drives say.

use serde_json::Value as Json;

use super::{Drive, LbaFormat, PowerState};
use crate::source::Source;

const KELVIN: i64 = 273;

/// Fills in what the controller says; returns its PCI address.
pub(super) fn read(source: &dyn Source, link: &str, drive: &mut Drive) -> Option<String> {
    let controller = controller(source, link)?;
    let sys = format!("/sys/class/nvme/{controller}");
    let text = |file: &str| source.text(&format!("{sys}/{file}"));
    drive.model = text("model").or(drive.model.take());
    drive.firmware = text("firmware_rev").or(drive.firmware.take());
    drive.transport = text("transport").or_else(|| Some("pcie".to_owned()));
    drive.runtime_pm = text("device/power/control").or(drive.runtime_pm.take());
    if drive.transport.as_deref() != Some("pcie") {
        return None;
    }
    drive.ps_max_latency_us = source
        .int(&format!("{sys}/power/pm_qos_latency_tolerance_us"))
        .or_else(|| source.int("/sys/module/nvme_core/parameters/default_ps_max_latency_us"));
    identify(source, &controller, drive);
    text("address").or_else(|| source.link_name(&format!("{sys}/device")))
}

/// The controller that a namespace belongs to. With native multipath the namespace is below its
/// subsystem, and the subsystem knows its controllers.
fn controller(source: &dyn Source, link: &str) -> Option<String> {
    let is = |name: &str, start: &str| {
        name.strip_prefix(start)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    if let Some(name) = link.split('/').find(|part| is(part, "nvme")) {
        return Some(name.to_owned());
    }
    let subsystem = link.split('/').find(|part| is(part, "nvme-subsys"))?;
    let inside = source.names(&format!("/sys/class/nvme-subsystem/{subsystem}"));
    inside.into_iter().find(|name| is(name, "nvme"))
}

/// What only root may ask.
fn identify(source: &dyn Source, controller: &str, drive: &mut Drive) {
    let ask = |verb: &str, device: &str| -> Option<Json> {
        let text = source.output("nvme", &[verb, "-o", "json", &format!("/dev/{device}")])?;
        serde_json::from_str(&text).ok()
    };
    let name = drive.name.clone();
    if let Some(namespace) = ask("id-ns", &name) {
        drive.lba_formats = formats(&namespace);
        let fitting = |format: &LbaFormat| format.data_bytes == 4096 && format.metadata_bytes == 0;
        drive.lba_4k_available =
            (!drive.lba_formats.is_empty()).then(|| drive.lba_formats.iter().any(fitting));
    }
    if let Some(told) = ask("id-ctrl", controller) {
        drive.power_states = power_states(&told);
        drive.temperature_warning_celsius =
            told["wctemp"].as_i64().filter(|&kelvin| kelvin > 0).map(|kelvin| kelvin - KELVIN);
        drive.temperature_critical_celsius =
            told["cctemp"].as_i64().filter(|&kelvin| kelvin > 0).map(|kelvin| kelvin - KELVIN);
        drive.apst_enabled = sleeps(&told, drive);
    }
    if let Some(told) = ask("smart-log", controller) {
        // Counters of 128 bits come as a text from some versions of nvme-cli.
        let number = |name: &str| {
            told[name].as_i64().or_else(|| told[name].as_str().and_then(|text| text.parse().ok()))
        };
        drive.temperature_celsius = number("temperature").map(|kelvin| kelvin - KELVIN);
        drive.warning_temperature_minutes = number("warning_temp_time");
        // Newer versions of nvme-cli take the bits apart.
        drive.critical_warning =
            number("critical_warning").or_else(|| told["critical_warning"]["value"].as_i64());
        drive.percentage_used = number("percent_used").or_else(|| number("percentage_used"));
        drive.available_spare_percent = number("avail_spare");
        drive.media_errors = number("media_errors");
        let all = told.as_object().into_iter().flatten();
        drive.nvme_log = all
            .filter(|(name, _)| !name.starts_with("temperature") && *name != "critical_warning")
            .filter_map(|(name, _)| Some((name.clone(), number(name)?)))
            .collect();
    }
}

/// `flbas` has the number of the format in use in bits 0 to 3, and 5 to 6 above them.
fn formats(namespace: &Json) -> Vec<LbaFormat> {
    let flbas = namespace["flbas"].as_i64();
    let in_use = flbas.map(|flbas| flbas & 0xf | flbas >> 1 & 0x30);
    let known = namespace["nlbaf"].as_i64().map_or(i64::MAX, |last| last);
    namespace["lbafs"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(0..=known)
        .filter_map(|(format, index)| {
            let shift = format["ds"].as_i64().filter(|shift| (9..32).contains(shift))?;
            Some(LbaFormat {
                index,
                data_bytes: 1 << shift,
                metadata_bytes: format["ms"].as_i64()?,
                relative_performance: format["rp"].as_i64(),
                in_use: in_use == Some(index),
            })
        })
        .collect()
}

/// Power in units of 10 or 0.1 mW, whichever the state says.
fn power_states(controller: &Json) -> Vec<PowerState> {
    let states = controller["psds"].as_array().into_iter().flatten().zip(0..);
    states
        .map(|(state, index)| {
            let fine = state["max_power_scale"].as_i64().or(state["mxps"].as_i64()) == Some(1);
            let power = state["max_power"].as_i64();
            let asleep = ["non-operational_state", "nops"];
            PowerState {
                index,
                max_power_mw: power.map(|power| if fine { power / 10 } else { power * 10 }),
                operational: !asleep.iter().any(|name| state[*name].as_i64() == Some(1)),
                entry_latency_us: state["entry_lat"].as_i64(),
                exit_latency_us: state["exit_lat"].as_i64(),
            }
        })
        .collect()
}

/// The kernel lets a drive sleep in states that it enters and leaves within the allowed time.
fn sleeps(controller: &Json, drive: &Drive) -> Option<bool> {
    let able = controller["apsta"].as_i64()? & 1 == 1;
    let allowed = drive.ps_max_latency_us?;
    let fits = |state: &PowerState| {
        let latency = state.entry_latency_us.zip(state.exit_latency_us).map(|(a, b)| a + b);
        !state.operational && latency.is_some_and(|latency| latency <= allowed)
    };
    Some(able && allowed > 0 && drive.power_states.iter().any(fits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    const SN850X: &str = r#"
/sys/class/nvme/nvme0/model: WD_BLACK SN850X 4000GB                
/sys/class/nvme/nvme0/firmware_rev: 624361WD
/sys/class/nvme/nvme0/transport: pcie
/sys/class/nvme/nvme0/address: 0000:01:00.0
/sys/class/nvme/nvme0/power/pm_qos_latency_tolerance_us: 100000
$ nvme id-ns -o json /dev/nvme0n1
| {"nsze":7814037168,"nlbaf":1,"flbas":0,"lbafs":[{"ms":0,"ds":9,"rp":2},{"ms":0,"ds":12,"rp":1}]}
$ nvme id-ctrl -o json /dev/nvme0
| {"apsta":1,"wctemp":363,"psds":[
| {"max_power":900,"max_power_scale":0,"non-operational_state":0,"entry_lat":0,"exit_lat":0},
| {"max_power":50,"max_power_scale":1,"non-operational_state":1,"entry_lat":3900,"exit_lat":45700}]}
$ nvme smart-log -o json /dev/nvme0
| {"critical_warning":0,"temperature":318,"avail_spare":100,"percent_used":2,"media_errors":0,
| "warning_temp_time":3}
"#;

    #[test]
    fn reads_a_drive_in_the_smaller_format() {
        let tree = Tree::parse(SN850X).unwrap();
        let mut drive = Drive { name: "nvme0n1".to_owned(), ..Drive::default() };
        let link = "../devices/pci0000:00/0000:00:01.1/0000:01:00.0/nvme/nvme0/nvme0n1";
        assert_eq!(read(&tree, link, &mut drive).as_deref(), Some("0000:01:00.0"));
        assert_eq!(drive.model.as_deref(), Some("WD_BLACK SN850X 4000GB"));
        assert_eq!(drive.lba_formats.len(), 2);
        assert!(drive.lba_formats[0].in_use && !drive.lba_formats[1].in_use);
        assert_eq!(drive.lba_formats[1].data_bytes, 4096);
        assert_eq!(drive.lba_4k_available, Some(true));
        assert_eq!(drive.power_states[0].max_power_mw, Some(9000));
        assert_eq!(drive.power_states[1].max_power_mw, Some(5));
        assert_eq!(drive.apst_enabled, Some(true));
        assert_eq!(drive.temperature_celsius, Some(45));
        assert_eq!(drive.temperature_warning_celsius, Some(90));
        assert_eq!(drive.warning_temperature_minutes, Some(3));
    }

    #[test]
    fn a_drive_that_may_not_wait_does_not_sleep() {
        let awake = SN850X.replace("tolerance_us: 100000", "tolerance_us: 0");
        let tree = Tree::parse(&awake).unwrap();
        let mut drive = Drive { name: "nvme0n1".to_owned(), ..Drive::default() };
        read(&tree, "../devices/x/nvme/nvme0/nvme0n1", &mut drive);
        assert_eq!(drive.apst_enabled, Some(false));
    }

    #[test]
    fn finds_the_controller_below_a_subsystem() {
        let tree = Tree::parse("/sys/class/nvme-subsystem/nvme-subsys3/: model nvme4 nvme4c4n1\n")
            .unwrap();
        let link = "../devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n1";
        assert_eq!(controller(&tree, link).as_deref(), Some("nvme4"));
    }
}
