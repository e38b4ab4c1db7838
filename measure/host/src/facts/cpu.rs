//! Processors.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::parse::{colon_lines, cpu_list};
use crate::source::Source;

/// Processors, and how they save power.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Model, as the processor names itself.
    pub model: Option<String>,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// Processor packages.
    pub sockets: Option<i64>,
    /// Cores in all packages.
    pub cores: Option<i64>,
    /// Hardware threads that are in use: what Linux calls CPUs.
    pub threads: Option<i64>,
    /// Highest frequency that it may reach, in MHz.
    pub max_mhz: Option<i64>,
    /// Highest frequency that a CPU has right now, in MHz: all that a virtual machine tells.
    pub now_mhz: Option<i64>,
    /// What drives its frequency: `intel_pstate`, `amd-pstate-epp`, `acpi-cpufreq`.
    pub frequency_driver: Option<String>,
    /// The governor, if all CPUs have the same one; `mixed` otherwise.
    pub governor: Option<String>,
    /// The governors that can be chosen.
    pub governors: Vec<String>,
    /// Energy performance preference of CPU 0: `performance`, `balance_performance`, `power`.
    pub energy_preference: Option<String>,
    /// What drives its idle states: `intel_idle`, `acpi_idle`; `none` without any.
    pub idle_driver: Option<String>,
    /// Idle states of CPU 0.
    pub cstates: Vec<CState>,
    /// The longest wake-up of an idle state that is not switched off, in microseconds.
    pub deepest_cstate_latency_us: Option<i64>,
    /// Whether its instructions include AVX2 and AVX-512: checksums and RAID-Z run faster.
    pub avx2: Option<bool>,
    /// See `avx2`.
    pub avx512: Option<bool>,
    /// AES instructions.
    pub aes: Option<bool>,
}

/// A state in which an idle CPU waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CState {
    /// `POLL`, `C1`, `C6`.
    pub name: String,
    /// How long it takes to wake up, in microseconds.
    pub latency_us: Option<i64>,
    /// Whether it was switched off.
    pub disabled: Option<bool>,
}

const SYS: &str = "/sys/devices/system/cpu";

/// Reads about the processors.
pub(super) fn read(source: &dyn Source) -> Cpu {
    let mut cpu = Cpu {
        idle_driver: source.text(&format!("{SYS}/cpuidle/current_driver")),
        cstates: cstates(source),
        ..Cpu::default()
    };
    counts(source, &mut cpu);
    frequency(source, &mut cpu);
    cpu.deepest_cstate_latency_us = cpu
        .cstates
        .iter()
        .filter(|state| state.disabled != Some(true))
        .filter_map(|state| state.latency_us)
        .max();
    cpu
}

/// From /proc/cpuinfo: x86 names everything, other architectures less.
fn counts(source: &dyn Source, cpu: &mut Cpu) {
    let Some(cpuinfo) = source.read("/proc/cpuinfo") else { return };
    let mut threads = 0;
    let mut packages = BTreeSet::new();
    let mut cores = BTreeSet::new();
    let mut package = "";
    for (key, value) in colon_lines(&cpuinfo) {
        match key {
            "processor" => threads += 1,
            "model name" if cpu.model.is_none() => cpu.model = Some(value.to_owned()),
            "vendor_id" if cpu.vendor.is_none() => cpu.vendor = Some(value.to_owned()),
            "physical id" => {
                package = value;
                packages.insert(value);
            }
            "core id" => {
                cores.insert((package, value));
            }
            "cpu MHz" => cpu.now_mhz = cpu.now_mhz.max(whole(value)),
            "flags" if cpu.aes.is_none() => {
                let has = |flag: &str| Some(value.split_whitespace().any(|have| have == flag));
                cpu.aes = has("aes");
                cpu.avx2 = has("avx2");
                cpu.avx512 = has("avx512f");
            }
            _ => {}
        }
    }
    let online = source.text(&format!("{SYS}/online")).and_then(|text| cpu_list(&text));
    let count = |count: usize| i64::try_from(count).ok().filter(|&count| count > 0);
    cpu.threads = online.and_then(|cpus| count(cpus.len())).or(count(threads));
    cpu.sockets = count(packages.len());
    cpu.cores = count(cores.len());
}

/// `2194.842`, without what is behind the point.
fn whole(number: &str) -> Option<i64> {
    number.split('.').next()?.parse().ok()
}

fn frequency(source: &dyn Source, cpu: &mut Cpu) {
    let first = format!("{SYS}/cpu0/cpufreq");
    let khz = source.int(&format!("{first}/cpuinfo_max_freq"));
    cpu.max_mhz = khz.map(|khz| khz / 1000);
    cpu.frequency_driver = source.text(&format!("{first}/scaling_driver"));
    cpu.energy_preference = source.text(&format!("{first}/energy_performance_preference"));
    let governors = source.text(&format!("{first}/scaling_available_governors"));
    cpu.governors = governors.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let online = source.text(&format!("{SYS}/online")).and_then(|text| cpu_list(&text));
    let chosen: BTreeSet<String> = online
        .unwrap_or_default()
        .iter()
        .filter_map(|id| source.text(&format!("{SYS}/cpu{id}/cpufreq/scaling_governor")))
        .collect();
    cpu.governor = match chosen.len() {
        0 => None,
        1 => chosen.into_iter().next(),
        _ => Some("mixed".to_owned()),
    };
}

fn cstates(source: &dyn Source) -> Vec<CState> {
    let directory = format!("{SYS}/cpu0/cpuidle");
    let read = |state: String| {
        let state = format!("{directory}/{state}");
        Some(CState {
            name: source.text(&format!("{state}/name"))?,
            latency_us: source.int(&format!("{state}/latency")),
            disabled: source.flag(&format!("{state}/disable")),
        })
    };
    super::parse::sorted(source.names(&directory)).into_iter().filter_map(read).collect()
}
