//! Processors.

use std::collections::{BTreeMap, BTreeSet};

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
    /// The lowest frequency that a CPU is limited to (scaling_max_freq), in MHz.
    pub limit_mhz: Option<i64>,
    /// Whether it may go beyond its nominal frequency.
    pub boost: Option<bool>,
    /// The share of its frequency that intel_pstate allows, in percent.
    pub max_perf_percent: Option<i64>,
    /// How many CPUs have each governor.
    pub governor_counts: BTreeMap<String, i64>,
    /// How many CPUs have each energy performance preference.
    pub preference_counts: BTreeMap<String, i64>,
    /// The worst energy bias of a CPU: 0 = performance, 6 = normal, 15 = power.
    pub energy_bias: Option<i64>,
    /// CPUs that are there and switched off.
    pub offline: Option<i64>,
    /// CPUs that the scheduler leaves alone (isolcpus), and those without a tick (nohz_full).
    pub isolated: Option<i64>,
    /// See `isolated`.
    pub tickless: Option<i64>,
    /// Whether two threads share a core: `on`, `off`, `forceoff`, `notsupported`.
    pub smt: Option<String>,
    /// Version of its microcode.
    pub microcode: Option<String>,
    /// `menu`, `teo`, `haltpoll`, `ladder`.
    pub idle_governor: Option<String>,
    /// Weaknesses for which the kernel knows no way out: `Vulnerable...`.
    pub vulnerable: Vec<String>,
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
    limits(source, &mut cpu);
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
            "microcode" if cpu.microcode.is_none() => cpu.microcode = Some(value.to_owned()),
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

/// What holds the processors back.
fn limits(source: &dyn Source, cpu: &mut Cpu) {
    let list = |file: &str| {
        let cpus = cpu_list(&source.text(&format!("{SYS}/{file}"))?)?;
        i64::try_from(cpus.len()).ok()
    };
    cpu.offline = list("offline");
    cpu.isolated = list("isolated");
    cpu.tickless = list("nohz_full");
    cpu.smt = source.text(&format!("{SYS}/smt/control"));
    cpu.idle_governor = source.text(&format!("{SYS}/cpuidle/current_governor"));
    cpu.boost = source
        .flag(&format!("{SYS}/cpufreq/boost"))
        .or_else(|| source.flag(&format!("{SYS}/intel_pstate/no_turbo")).map(|off| !off));
    cpu.max_perf_percent = source.int(&format!("{SYS}/intel_pstate/max_perf_pct"));
    let online = source.text(&format!("{SYS}/online")).and_then(|text| cpu_list(&text));
    for id in online.unwrap_or_default() {
        let at = format!("{SYS}/cpu{id}");
        if let Some(khz) = source.int(&format!("{at}/cpufreq/scaling_max_freq")) {
            let mhz = khz / 1000;
            cpu.limit_mhz = Some(cpu.limit_mhz.map_or(mhz, |least| least.min(mhz)));
        }
        let bias = source.int(&format!("{at}/power/energy_perf_bias"));
        cpu.energy_bias = cpu.energy_bias.max(bias);
        if let Some(governor) = source.text(&format!("{at}/cpufreq/scaling_governor")) {
            *cpu.governor_counts.entry(governor).or_insert(0) += 1;
        }
        if let Some(preference) =
            source.text(&format!("{at}/cpufreq/energy_performance_preference"))
        {
            *cpu.preference_counts.entry(preference).or_insert(0) += 1;
        }
    }
    for name in source.names(&format!("{SYS}/vulnerabilities")) {
        let state = source.text(&format!("{SYS}/vulnerabilities/{name}")).unwrap_or_default();
        if state.starts_with("Vulnerable") {
            cpu.vulnerable.push(name);
        }
    }
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
