//! What the machine is, as far as a reader of figures must know.

use super::Root;
use crate::model::{Fact, Section};

/// Processor, memory, system. What cannot be read is left out.
pub fn facts(root: &Root) -> Vec<Section> {
    let section = |title: &str, facts: Vec<Option<(&str, String)>>| {
        let fact = |(key, value): (&str, String)| Fact { key: key.to_owned(), value };
        let facts: Vec<Fact> = facts.into_iter().flatten().map(fact).collect();
        Section { title: title.to_owned(), facts }
    };
    let sections = vec![
        section("processor", processor(root)),
        section("memory", vec![memory(root)]),
        section("system", system(root)),
        section("network", network(root)),
        section("drives", drives(root)),
    ];
    sections.into_iter().filter(|section| !section.facts.is_empty()).collect()
}

/// The value of a line `key: value` or `key=value`.
fn field(text: &str, key: &str) -> Option<String> {
    let fits = |line: &str| {
        let (name, value) = line.split_once([':', '='])?;
        (name.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
    };
    text.lines().find_map(fits).filter(|value| !value.is_empty())
}

fn processor(root: &Root) -> Vec<Option<(&'static str, String)>> {
    let info = root.text("proc/cpuinfo").unwrap_or_default();
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    let governor = root.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let hypervisor =
        info.lines().any(|line| line.starts_with("flags") && line.contains(" hypervisor"));
    vec![
        field(&info, "model name").map(|name| ("model", name)),
        (count > 0).then(|| ("processors (threads)", count.to_string())),
        governor.ok().map(|text| ("frequency governor", text.trim().to_owned())),
        hypervisor.then(|| ("machine", "virtual: other guests share it".to_owned())),
    ]
}

fn memory(root: &Root) -> Option<(&'static str, String)> {
    let total = field(&root.text("proc/meminfo").ok()?, "MemTotal")?;
    let kib: f64 = total.split_whitespace().next()?.parse().ok()?;
    Some(("size", format!("{:.1} GiB", kib / f64::from(1 << 20))))
}

fn system(root: &Root) -> Vec<Option<(&'static str, String)>> {
    let release = root.text("etc/os-release").unwrap_or_default();
    let load = root.text("proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().map(str::to_owned);
    vec![
        field(&release, "PRETTY_NAME").map(|name| ("distribution", name)),
        root.text("proc/sys/kernel/osrelease").ok().map(|text| ("kernel", text.trim().to_owned())),
        load.map(|load| ("runnable tasks in the minute before", load)),
    ]
}

/// Cards with a carrier and a device behind them.
fn network(root: &Root) -> Vec<Option<(&'static str, String)>> {
    let mut cards = Vec::new();
    for name in root.names("sys/class/net") {
        let folder = format!("sys/class/net/{name}");
        let real = !root.names(format!("{folder}/device")).is_empty();
        if !real || root.number(format!("{folder}/carrier")) != Some(1) {
            continue;
        }
        let mtu = root.number(format!("{folder}/mtu")).map(|mtu| format!("MTU {mtu} bytes"));
        let speed = root.number(format!("{folder}/speed")).filter(|speed| *speed < 1 << 24);
        let speed = speed.map(|speed| format!("{} Gbit/s", speed as f64 / 1e3));
        let parts: Vec<String> = [Some(name), speed, mtu].into_iter().flatten().collect();
        cards.push(Some(("card", parts.join(", "))));
    }
    cards
}

fn drives(root: &Root) -> Vec<Option<(&'static str, String)>> {
    let mut drives = Vec::new();
    for name in root.names("sys/block") {
        let folder = format!("sys/block/{name}");
        let Some(sectors) = root.number(format!("{folder}/size")).filter(|sectors| *sectors > 0)
        else {
            continue;
        };
        if root.names(format!("{folder}/device")).is_empty() {
            continue;
        }
        let size = format!("{:.0} GiB", sectors as f64 / f64::from(1 << 21));
        let model = root.text(format!("{folder}/device/model")).ok();
        let model = model.map(|text| text.trim().to_owned());
        let scheduler = root.text(format!("{folder}/queue/scheduler")).ok().and_then(|text| {
            let (_, rest) = text.split_once('[')?;
            Some(format!("scheduler {}", rest.split_once(']')?.0))
        });
        let parts: Vec<String> =
            [Some(name), model, Some(size), scheduler].into_iter().flatten().collect();
        drives.push(Some(("drive", parts.join(", "))));
    }
    drives
}
