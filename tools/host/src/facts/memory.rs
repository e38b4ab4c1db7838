//! Memory.

use serde::{Deserialize, Serialize};

use super::parse::{colon_lines, leading, version_num};
use crate::source::Source;

/// Memory: how much, how fast, how used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// What Linux can use, in bytes.
    pub total_bytes: Option<i64>,
    /// Bytes of a page: 4096, and on ARM and POWER also 16384 or 65536.
    pub page_bytes: Option<i64>,
    /// What programs could still get, in bytes; a ZFS cache counts as used.
    pub available_bytes: Option<i64>,
    /// Swap space in bytes; 0 = none.
    pub swap_total_bytes: Option<i64>,
    /// Swap space in use, in bytes.
    pub swap_used_bytes: Option<i64>,
    /// Memory set aside as huge pages, in bytes.
    pub hugepages_bytes: Option<i64>,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub transparent_hugepages: Option<String>,
    /// When the kernel puts memory together for them: `always`, `defer`, `defer+madvise`, `madvise`, `never`.
    pub transparent_hugepage_defrag: Option<String>,
    /// Memory modules, if the firmware's tables can be read.
    pub dimms: Vec<Dimm>,
    /// Places for modules, with and without one.
    pub dimm_slots: Option<i64>,
    /// Places without a module.
    pub dimm_slots_empty: Option<i64>,
    /// What all modules together move at most, in bytes per second: one channel of 8 bytes for
    /// each module, so it is too high where two modules share a channel.
    pub bandwidth_max_bytes_per_second: Option<i64>,
    /// Whether it corrects errors.
    pub ecc: Option<bool>,
}

/// A memory module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dimm {
    /// Where it is: `DIMMA1`, `P0_Node0_Channel0_Dimm0`.
    pub locator: Option<String>,
    /// Capacity in bytes.
    pub size_bytes: Option<i64>,
    /// `DDR4`, `DDR5`.
    pub kind: Option<String>,
    /// Its speed as configured, in MT/s.
    pub speed_mts: Option<i64>,
    /// The speed that it could have, in MT/s.
    pub speed_max_mts: Option<i64>,
}

/// Reads about the memory.
pub(super) fn read(source: &dyn Source) -> Memory {
    let meminfo = source.read("/proc/meminfo").unwrap_or_default();
    let kib = |wanted: &str| -> Option<i64> {
        let (_, value) = colon_lines(&meminfo).find(|(key, _)| *key == wanted)?;
        leading(value)
    };
    let bytes = |wanted: &str| kib(wanted).map(|kib| kib * 1024);
    let swap_total_bytes = bytes("SwapTotal");
    let mut memory = Memory {
        total_bytes: bytes("MemTotal"),
        page_bytes: page_bytes(source),
        available_bytes: bytes("MemAvailable"),
        swap_total_bytes,
        swap_used_bytes: swap_total_bytes.zip(bytes("SwapFree")).map(|(all, free)| all - free),
        hugepages_bytes: bytes("Hugetlb"),
        transparent_hugepages: source
            .text("/sys/kernel/mm/transparent_hugepage/enabled")
            .and_then(|text| chosen(&text)),
        transparent_hugepage_defrag: source
            .text("/sys/kernel/mm/transparent_hugepage/defrag")
            .and_then(|text| chosen(&text)),
        ..Memory::default()
    };
    if let Some(tables) = source.output("dmidecode", &["-t", "memory"]) {
        modules(&tables, &mut memory);
    }
    memory
}

/// As the C library says it. A capture of an older lunet has not asked: there the processor, the kernel's name or the least of
/// `tcp_wmem` says it, which is a page from Linux 6.0 on (net/ipv4/tcp_ipv4.c), and 4096 before in kernels with larger pages.
fn page_bytes(source: &dyn Source) -> Option<i64> {
    if let Some(told) = source.output("getconf", &["PAGESIZE"]) {
        return told.trim().parse().ok();
    }
    let kernel = source.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let least = source.text("/proc/sys/net/ipv4/tcp_wmem").and_then(|text| leading(&text));
    let arch = source
        .text("/proc/sys/kernel/arch")
        .or_else(|| Some(source.output("uname", &["-m"])?.trim().to_owned()));
    match (arch.as_deref(), least) {
        (Some("x86_64" | "i686" | "s390x" | "riscv64"), _) => Some(4096),
        _ if kernel.contains("64k") => Some(65_536),
        (_, Some(least @ (16_384 | 65_536))) => Some(least),
        (_, Some(4096)) if version_num(&kernel) >= Some(6_000_000) => Some(4096),
        _ => None,
    }
}

/// The word in brackets: `always [madvise] never`.
pub(super) fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

/// What the firmware says about each module.
fn modules(tables: &str, memory: &mut Memory) {
    let mut slots = 0;
    for table in tables.split("\n\n") {
        let value = |wanted: &str| {
            let (_, value) = colon_lines(table).find(|(key, _)| *key == wanted)?;
            (!matches!(value, "" | "Unknown" | "None")).then_some(value)
        };
        if table.contains("Physical Memory Array") {
            let kind = colon_lines(table).find(|(key, _)| *key == "Error Correction Type");
            memory.ecc = kind.map(|(_, kind)| kind.contains("ECC")).or(memory.ecc);
        }
        if !table.lines().any(|line| line.trim() == "Memory Device") {
            continue;
        }
        slots += 1;
        let Some(size_bytes) = value("Size").and_then(size) else { continue };
        let speed = |name: &str| value(name).and_then(leading::<i64>);
        memory.dimms.push(Dimm {
            locator: value("Locator").map(str::to_owned),
            size_bytes: Some(size_bytes),
            kind: value("Type").map(str::to_owned),
            // Called a clock speed before dmidecode 3.2.
            speed_mts: speed("Configured Memory Speed").or(speed("Configured Clock Speed")),
            speed_max_mts: speed("Speed"),
        });
    }
    if slots == 0 {
        return;
    }
    let used = i64::try_from(memory.dimms.len()).unwrap_or(slots);
    memory.dimm_slots = Some(slots);
    memory.dimm_slots_empty = Some(slots - used);
    let speeds: Option<Vec<i64>> = memory.dimms.iter().map(|dimm| dimm.speed_mts).collect();
    memory.bandwidth_max_bytes_per_second = speeds
        .filter(|speeds| !speeds.is_empty())
        .map(|speeds| speeds.iter().sum::<i64>() * 8_000_000);
}

/// `32 GB`, `16384 MB`; `No Module Installed` is none.
fn size(text: &str) -> Option<i64> {
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    match words.next()? {
        "kB" => Some(number << 10),
        "MB" => Some(number << 20),
        "GB" => Some(number << 30),
        "TB" => Some(number << 40),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    fn page(tree: &str) -> Option<i64> {
        page_bytes(&Tree::parse(tree).expect("a tree"))
    }

    #[test]
    fn a_page_is_what_the_machine_says_or_shows() {
        let old = "/proc/sys/kernel/osrelease: 5.14.0-70.el9.aarch64";
        let wmem = "/proc/sys/net/ipv4/tcp_wmem: 4096 16384 4194304";
        assert_eq!(page("$ getconf PAGESIZE\n| 16384\n"), Some(16_384));
        assert_eq!(page("/proc/sys/kernel/arch: x86_64\n"), Some(4096));
        // Linux 4.10 to 5.19 has 4096 there whatever a page is.
        assert_eq!(page(&format!("{old}\n{wmem}\n")), None);
        assert_eq!(page(&format!("{old}+64k\n{wmem}\n")), Some(65_536));
        let new = "/proc/sys/kernel/arch: aarch64\n/proc/sys/kernel/osrelease: 6.12.0";
        assert_eq!(page(&format!("{new}\n{wmem}\n")), Some(4096));
        assert_eq!(page(&format!("{new}\n{}\n", wmem.replacen("4096", "65536", 1))), Some(65_536));
    }
}
