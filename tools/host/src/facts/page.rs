//! Facts as a page for people.

mod freebsd;
mod hardware;
mod storage;

use std::fmt::Write;

use super::Facts;

/// The facts as a page for people: what is unknown is left out.
pub fn page(facts: &Facts) -> String {
    let mut page = Page::default();
    system(&mut page, facts);
    if let Some(bsd) = &facts.freebsd {
        freebsd::all(&mut page, facts, bsd);
        return page.text;
    }
    hardware::processors(&mut page, facts);
    hardware::memory(&mut page, facts);
    hardware::interfaces(&mut page, &facts.nics);
    hardware::rdma(&mut page, &facts.rdma);
    hardware::drives(&mut page, &facts.drives);
    storage::zfs(&mut page, facts.zfs.as_ref());
    storage::targets(&mut page, &facts.targets);
    storage::initiators(&mut page, &facts.initiators);
    rest(&mut page, facts);
    page.text
}

/// Headings, and entries of one or more lines below them.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn heading(&mut self, title: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.text, "{gap}{title}");
    }

    /// The first line of an entry.
    fn entry(&mut self, parts: impl IntoIterator<Item = Option<String>>) {
        self.line("  ", parts);
    }

    /// Another line of it.
    fn more(&mut self, parts: impl IntoIterator<Item = Option<String>>) {
        self.line("      ", parts);
    }

    /// The parts that are known, with commas between them; no line if there are none.
    fn line(&mut self, indent: &str, parts: impl IntoIterator<Item = Option<String>>) {
        let parts: Vec<String> =
            parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        if !parts.is_empty() {
            let _ = writeln!(self.text, "{indent}{}", parts.join(", "));
        }
    }
}

fn system(page: &mut Page, facts: &Facts) {
    let platform = &facts.platform;
    page.heading("System");
    page.entry([
        platform.name.clone(),
        platform.kernel.as_ref().map(|kernel| format!("kernel {kernel}")),
        platform.arch.clone(),
    ]);
    let machine = [&platform.vendor, &platform.model].into_iter().flatten().cloned();
    page.entry([
        Some(machine.collect::<Vec<_>>().join(" ")),
        platform.board.as_ref().map(|board| format!("board {board}")),
        platform.bios.as_ref().map(|bios| format!("firmware {bios}")),
    ]);
    page.entry([
        match (&platform.hypervisor, platform.virtual_machine) {
            (Some(kind), _) => Some(format!("a virtual machine of {kind}")),
            (None, Some(true)) => Some("a virtual machine".to_owned()),
            _ => None,
        },
        (platform.container == Some(true)).then(|| "in a container".to_owned()),
    ]);
    page.entry([platform.cmdline_text.as_ref().map(|text| format!("kernel command line: {text}"))]);
    if platform.root == Some(false) {
        page.entry([Some("read without root's rights: some facts are missing".to_owned())]);
    }
    let Some(truenas) = &platform.truenas else { return };
    for tunable in &truenas.tunables {
        let name = tunable.name.as_deref().unwrap_or_default();
        let value = tunable.value.as_ref().map(ToString::to_string).unwrap_or_default();
        page.entry([Some(format!("tunable {name} = {value}"))]);
    }
    for script in &truenas.init_scripts {
        page.entry([script.command.as_ref().map(|command| format!("at start: {command}"))]);
    }
}

fn rest(page: &mut Page, facts: &Facts) {
    if !facts.tuners.is_empty() {
        page.heading("Other programs that tune this machine");
        for tuner in &facts.tuners {
            page.entry([
                Some(tuner.name.clone()),
                tuner.active.map(|active| if active { "active" } else { "not active" }.to_owned()),
                tuner.profile.as_ref().map(|profile| format!("profile {profile}")),
            ]);
        }
    }
    page.heading("The kernel's log");
    if !facts.dmesg.readable {
        page.entry([Some("cannot be read".to_owned())]);
    } else if facts.dmesg.hits.is_empty() {
        page.entry([Some("nothing that matters here".to_owned())]);
    }
    for hit in &facts.dmesg.hits {
        let times = if hit.count == 1 { String::new() } else { format!("{} x ", hit.count) };
        page.entry([Some(format!("{times}{}", hit.text))]);
    }
    page.heading("Settings");
    let parameters = facts.zfs.as_ref().map_or(0, |zfs| zfs.params.len());
    page.entry([
        Some(format!("{} kernel settings", facts.sysctls.len())),
        Some(format!("{} module parameters", facts.module_params.len() + parameters)),
        Some(format!(
            "{} lines in sysctl files: --json has them all",
            facts.config_files.sysctl.len()
        )),
    ]);
}

/// `3.6 TiB`
fn bytes(bytes: i64) -> String {
    scaled(bytes, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// `15.8 GB/s`
fn rate(bytes_per_second: i64) -> String {
    scaled(bytes_per_second, 1000, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// `100 Gbit/s`
fn bits(mbit: i64) -> String {
    scaled(mbit, 1000, &["Mbit/s", "Gbit/s", "Tbit/s"])
}

/// The number in the largest unit that leaves at least 1, with one digit unless it is 0.
fn scaled(number: i64, step: i64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut size = 1;
    while unit + 1 < units.len() && number / size >= step {
        size *= step;
        unit += 1;
    }
    let tenths = (i128::from(number) * 10 + i128::from(size) / 2) / i128::from(size);
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, units[unit]),
        digit => format!("{}.{digit} {}", tenths / 10, units[unit]),
    }
}

/// `now of at most`, or only one of them.
fn of(now: Option<i64>, most: Option<i64>) -> Option<String> {
    match (now, most) {
        (Some(now), Some(most)) => Some(format!("{now} of {most}")),
        (Some(now), None) => Some(now.to_string()),
        _ => None,
    }
}

/// `1 queue`, `2 queues`
fn counted(number: i64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn on(flag: bool) -> &'static str {
    if flag { "on" } else { "off" }
}

fn numbers(list: &[i64]) -> String {
    list.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(4_000_787_030_016), "3.6 TiB");
        assert_eq!(bytes(64 << 30), "64 GiB");
        assert_eq!(rate(15_753_846_144), "15.8 GB/s");
        assert_eq!(bits(100_000), "100 Gbit/s");
        assert_eq!(bits(2_500), "2.5 Gbit/s");
        assert_eq!(bytes(i64::MAX), "8192 PiB");
    }

    #[test]
    fn what_is_unknown_leaves_no_trace() {
        let text = page(&Facts::default());
        assert_eq!(
            text,
            "System\n\nProcessors and memory\n\nThe kernel's log\n  cannot be read\n\nSettings\n  0 kernel settings, 0 module parameters, 0 lines in sysctl files: --json has them all\n"
        );
    }
}
