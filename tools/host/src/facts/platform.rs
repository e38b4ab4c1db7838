//! What kind of machine with what system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::parse::{shell_value, version_num};
use super::truenas::{self, TrueNas};
use crate::source::Source;

/// What kind of machine with what system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// `truenas`, `proxmox`, or the distribution's ID: `debian`, `ubuntu`, `rocky`, `xcp-ng`...
    pub kind: Option<String>,
    /// The system's name in full: `Debian GNU/Linux 12 (bookworm)`, `TrueNAS SCALE 23.10.2`.
    pub name: Option<String>,
    /// Its release: `12`, `23.10.2`.
    pub version: Option<String>,
    /// The release as one number: 23.10.2 is 23010002.
    pub version_num: Option<i64>,
    /// Only on TrueNAS.
    pub truenas: Option<TrueNas>,
    /// The kernel's release: `6.1.55-production+truenas`.
    pub kernel: Option<String>,
    /// The kernel's version as one number: 6.1.55 is 6001055.
    pub kernel_num: Option<i64>,
    /// `x86_64`, `aarch64`.
    pub arch: Option<String>,
    /// The kernel's command line as it is.
    pub cmdline_text: Option<String>,
    /// Whether this is a virtual machine.
    pub virtual_machine: Option<bool>,
    /// Which kind: `kvm`, `vmware`, `microsoft`, `xen`, `qemu`; `null` on bare metal.
    pub hypervisor: Option<String>,
    /// Whether this runs in a container, which sees the host's kernel and may change little of it.
    pub container: Option<bool>,
    /// Maker of the machine.
    pub vendor: Option<String>,
    /// Product name of the system.
    pub model: Option<String>,
    /// Maker and model of the board.
    pub board: Option<String>,
    /// Version of its firmware.
    pub bios: Option<String>,
    /// Whether systemd runs it.
    pub systemd: Option<bool>,
    /// Seconds since it was started.
    pub uptime_seconds: Option<i64>,
    /// Whether the facts were read with root's rights; without, some of them are missing.
    pub root: Option<bool>,
}

/// Reads what kind of machine this is.
pub(super) fn read(source: &dyn Source) -> Platform {
    let mut platform = Platform {
        kernel: source.text("/proc/sys/kernel/osrelease"),
        arch: source.text("/proc/sys/kernel/arch").or_else(|| uname(source)),
        cmdline_text: source.text("/proc/cmdline"),
        vendor: source.text("/sys/class/dmi/id/sys_vendor"),
        model: source.text("/sys/class/dmi/id/product_name"),
        bios: source.text("/sys/class/dmi/id/bios_version"),
        systemd: source.list("/run").map(|_| source.list("/run/systemd/system").is_some()),
        ..Platform::default()
    };
    platform.kernel_num = platform.kernel.as_deref().and_then(version_num);
    platform.uptime_seconds =
        source.text("/proc/uptime").and_then(|text| text.split('.').next()?.parse().ok());
    let board = ["board_vendor", "board_name"];
    let board: Vec<String> =
        board.iter().filter_map(|file| source.text(&format!("/sys/class/dmi/id/{file}"))).collect();
    platform.board = (!board.is_empty()).then(|| board.join(" "));
    platform.root = user(source).map(|user| user == 0);
    system(source, &mut platform);
    virtualization(source, &mut platform);
    platform
}

/// The kernel's command line by name.
pub(super) fn cmdline(source: &dyn Source) -> BTreeMap<String, String> {
    let text = source.text("/proc/cmdline").unwrap_or_default();
    text.split_whitespace()
        .map(|word| match word.split_once('=') {
            Some((name, value)) => (name.replace('-', "_"), value.to_owned()),
            None => (word.replace('-', "_"), String::new()),
        })
        .collect()
}

fn uname(source: &dyn Source) -> Option<String> {
    source.output("uname", &["-m"]).map(|text| text.trim().to_owned())
}

/// The effective user of whoever reads.
fn user(source: &dyn Source) -> Option<i64> {
    let status = source.text("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Which system, from its own files.
fn system(source: &dyn Source, platform: &mut Platform) {
    let release = source.read("/etc/os-release").unwrap_or_default();
    platform.kind = shell_value(&release, "ID");
    platform.name = shell_value(&release, "PRETTY_NAME");
    platform.version = shell_value(&release, "VERSION_ID");
    if let Some(truenas) = truenas::read(source) {
        platform.kind = Some("truenas".to_owned());
        platform.version.clone_from(&truenas.version);
        platform.name = Some(format!("TrueNAS SCALE {}", truenas.version.as_deref().unwrap_or("")));
        platform.truenas = Some(truenas);
    } else if let Some(version) = source.output("pveversion", &[]) {
        // pve-manager/8.2.4/faa83925c9641325 (running kernel: 6.8.8-2-pve)
        platform.kind = Some("proxmox".to_owned());
        platform.version = version.split('/').nth(1).map(str::to_owned);
        platform.name = Some(format!("Proxmox VE {}", platform.version.as_deref().unwrap_or("")));
    }
    platform.version_num = platform.version.as_deref().and_then(version_num);
}

/// What systemd finds out; else what the processor and the firmware say.
fn virtualization(source: &dyn Source, platform: &mut Platform) {
    let ask = |kind: &str| {
        let command = crate::source::Command::new("systemd-detect-virt", &[kind]);
        // It exits with 1 for `none`.
        source.run(&command).map(|output| output.stdout.trim().to_owned())
    };
    let machine = ask("--vm").filter(|answer| !answer.is_empty());
    if let Some(kind) = machine {
        platform.virtual_machine = Some(kind != "none");
        platform.hypervisor = (kind != "none").then_some(kind);
    } else if let Some(cpuinfo) = source.read("/proc/cpuinfo") {
        let flag = cpuinfo
            .lines()
            .find(|line| line.starts_with("flags"))
            .map(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
        platform.virtual_machine = flag;
        if flag == Some(true) {
            let vendor = platform.vendor.as_deref().unwrap_or_default();
            let kinds = [
                ("QEMU", "qemu"),
                ("VMware", "vmware"),
                ("Microsoft", "microsoft"),
                ("Xen", "xen"),
                ("innotek", "oracle"),
            ];
            let kind = kinds.iter().find(|(start, _)| vendor.starts_with(start));
            platform.hypervisor = kind.map(|(_, kind)| (*kind).to_owned());
        }
    }
    platform.container =
        ask("--container").filter(|answer| !answer.is_empty()).map(|answer| answer != "none");
}
