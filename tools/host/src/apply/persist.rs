//! How a setting persists across reboots, in the platform's own way.

use super::edit::{self, Edit, HEAD, Key, Wish};
use super::machine::{Fault, Machine};
use super::step::{self, Step};
use super::truenas;
use crate::plan::section_of;
use crate::rules::Setting;

/// After `99-sysctl.conf`, which is /etc/sysctl.conf: the last file that sets a name counts.
const SYSCTL: &str = "/etc/sysctl.d/zz-lunet-tune.conf";
const MODPROBE: &str = "/etc/modprobe.d/lunet-tune.conf";
const UDEV: &str = "/etc/udev/rules.d/90-lunet-tune.rules";
/// What belongs to the machine is set before its network is used.
const UNIT: Unit = Unit {
    name: "lunet-tune.service",
    order: "After=network-pre.target\nBefore=network-online.target",
};
/// What belongs to targets is there when their services have read their own configuration.
const TARGETS: Unit = Unit {
    name: "lunet-tune-targets.service",
    order: "After=target.service rtslib-fb-targetctl.service scst.service nvmet.service",
};
const GRUB: &str = "/etc/default/grub.d/lunet-tune.cfg";
const PROXMOX: &str = "/etc/kernel/cmdline";

/// A unit of systemd that sets values at each start.
struct Unit {
    name: &'static str,
    /// When, among the other units.
    order: &'static str,
}

/// How settings are kept, and what has to be told about it.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What is done.
    pub steps: Vec<Step>,
    /// Programs that take over the files, after they were written and after they were taken back.
    pub refresh: Vec<Vec<String>>,
    /// What people must know or do.
    pub notes: Vec<String>,
}

/// Settings with the values that they are to keep.
pub(super) type Wanted<'a> = [(&'a Setting, &'a str)];

/// Works out how the settings are kept on this machine.
pub(super) fn keep(machine: &dyn Machine, truenas: bool, all: &Wanted<'_>) -> Result<Kept, Fault> {
    let mut kept = Kept::default();
    match truenas {
        true => on_truenas(machine, all, &mut kept)?,
        false => in_files(machine, all, &mut kept)?,
    }
    Ok(kept)
}

fn in_files(machine: &dyn Machine, all: &Wanted<'_>, kept: &mut Kept) -> Result<(), Fault> {
    let mut sysctl = Vec::new();
    let mut modprobe = Vec::new();
    let mut udev = Vec::new();
    let mut unit = Vec::new();
    let mut targets = Vec::new();
    let mut boot = Vec::new();
    for (setting, value) in all {
        match setting {
            Setting::Sysctl { name } => {
                sysctl.push((format!("{name} = "), format!("{name} = {value}")));
            }
            Setting::Module { module, name } => {
                let start = format!("options {module} {name}=");
                modprobe.push((start.clone(), format!("{start}{value}")));
                let note = in_ramdisk(machine, module);
                if !kept.notes.contains(&note) {
                    kept.notes.push(note);
                }
            }
            Setting::Sysfs { path } => match udev_rule(path, value) {
                Some(rule) => udev.push(rule),
                None => targets.push((at_start_key(setting), at_start(setting, value))),
            },
            Setting::Cpus { .. } | Setting::Ring { .. } => {
                unit.push((at_start_key(setting), at_start(setting, value)));
            }
            Setting::Cmdline { name } => boot.push((name.clone(), (*value).to_owned())),
            // They are kept by themselves, or never set.
            Setting::Zfs { .. } | Setting::Conf { .. } | Setting::FreeBsd { .. } => {}
        }
    }
    file(machine, kept, SYSCTL, &sysctl, &[])?;
    file(machine, kept, MODPROBE, &modprobe, &[])?;
    file(machine, kept, UDEV, &udev, &["udevadm", "control", "--reload"])?;
    at_each_start(machine, kept, &UNIT, &unit)?;
    at_each_start(machine, kept, &TARGETS, &targets)?;
    if !boot.is_empty() {
        command_line(machine, &boot, kept)?;
    }
    Ok(())
}

/// Puts commands into a unit; each has a part by which it is known again.
fn at_each_start(
    machine: &dyn Machine,
    kept: &mut Kept,
    unit: &Unit,
    commands: &[(String, String)],
) -> Result<(), Fault> {
    if commands.is_empty() {
        return Ok(());
    }
    let path = step::unit_path(unit.name);
    kept.steps.push(Step::edit(machine, &path, |text| unit_text(unit, text, commands))?);
    kept.steps.push(Step::unit(machine, unit.name));
    let reload = vec!["systemctl".to_owned(), "daemon-reload".to_owned()];
    if !kept.refresh.contains(&reload) {
        kept.refresh.push(reload);
    }
    Ok(())
}

/// Puts lines into a file of ours. A line that starts the same way is replaced.
fn file(
    machine: &dyn Machine,
    kept: &mut Kept,
    path: &str,
    lines: &[(String, String)],
    refresh: &[&str],
) -> Result<(), Fault> {
    if lines.is_empty() {
        return Ok(());
    }
    kept.steps.push(Step::edit(machine, path, |text| set_lines(text, lines))?);
    if !refresh.is_empty() {
        kept.refresh.push(refresh.iter().map(|&word| word.to_owned()).collect());
    }
    Ok(())
}

fn set_lines(text: &str, lines: &[(String, String)]) -> (String, Vec<Edit>) {
    let head = format!("{HEAD}\n");
    let text = if text.is_empty() { &head } else { text };
    let wish = |(start, line): &(String, String)| (Key::Start(start.clone()), line.clone());
    edit::set(text, lines.iter().map(wish).collect())
}

/// What has to be done where a module's options are read from the initial RAM disk.
pub(super) fn in_ramdisk(machine: &dyn Machine, module: &str) -> String {
    let there = |directory: &str| machine.source().list(directory).is_some();
    let rebuild = match () {
        // On Proxmox its hooks copy the result to where the boot loader looks.
        () if there("/etc/initramfs-tools") => "run `update-initramfs -u -k all`",
        () if there("/etc/dracut.conf.d") => "run `dracut --regenerate-all --force`",
        () => "rebuild it",
    };
    format!(
        "If module {module} is loaded from the initial RAM disk, {rebuild} so that the next start \
         follows {MODPROBE}."
    )
}

/// A udev rule for an attribute of a block device: how it starts, and the whole of it.
fn udev_rule(path: &str, value: &str) -> Option<(String, String)> {
    let (device, attribute) = path.strip_prefix("/sys/block/")?.split_once('/')?;
    let start = format!(
        "ACTION==\"add|change\", SUBSYSTEM==\"block\", KERNEL==\"{device}\", ATTR{{{attribute}}}="
    );
    let rule = format!("{start}\"{value}\"");
    Some((start, rule))
}

/// The shell command that sets it at each start.
fn at_start(setting: &Setting, value: &str) -> String {
    let value = super::script::quote(value);
    match setting {
        Setting::Cpus { file } => format!(
            "for f in /sys/devices/system/cpu/cpu[0-9]*/{file}; do echo {value} > \"$f\"; done"
        ),
        Setting::Ring { nic, ring } => format!("ethtool -G {nic} {ring} {value}"),
        Setting::Module { module, name } => {
            format!("echo {value} > /sys/module/{module}/parameters/{name}")
        }
        Setting::Sysctl { name } => format!("sysctl -q -w {name}={value}"),
        Setting::Sysfs { path } => format!("echo {value} > {}", super::script::quote(path)),
        Setting::Cmdline { .. }
        | Setting::Zfs { .. }
        | Setting::Conf { .. }
        | Setting::FreeBsd { .. } => String::new(),
    }
}

/// By what a command at start is known again, so that a later value takes its place.
fn at_start_key(setting: &Setting) -> String {
    match setting {
        Setting::Cpus { file } => format!("/{file}; do"),
        Setting::Ring { nic, ring } => format!("ethtool -G {nic} {ring} "),
        other => other.to_string(),
    }
}

/// The unit with these commands in it; whatever else is in it stays.
fn unit_text(unit: &Unit, before: &str, commands: &[(String, String)]) -> (String, Vec<Edit>) {
    let skeleton = format!(
        "{HEAD}\n[Unit]\nDescription=Settings of lunet tune\n{}\n\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\n\n\
         [Install]\nWantedBy=multi-user.target\n",
        unit.order
    );
    let wish = |(key, command): &(String, String)| -> Wish {
        // systemd takes % and $ for its own.
        let command = command.replace('\\', "\\\\").replace('"', "\\\"");
        let command = command.replace('%', "%%").replace('$', "$$");
        (Key::Command(key.clone()), format!("ExecStart=-/bin/sh -c \"{command}\""))
    };
    let text = if before.is_empty() { &skeleton } else { before };
    edit::set(text, commands.iter().map(wish).collect())
}

/// Adds to the kernel's command line by what starts this machine.
fn command_line(
    machine: &dyn Machine,
    add: &[(String, String)],
    kept: &mut Kept,
) -> Result<(), Fault> {
    let source = machine.source();
    let words: Vec<String> = add.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let words = words.join(" ");
    // Others that read this file take it over by other programs.
    let tool = source.names("/usr/sbin").iter().any(|name| name == "proxmox-boot-tool");
    if tool && source.read(PROXMOX).is_some() {
        kept.steps.push(Step::edit(machine, PROXMOX, |text| arguments(text, add))?);
        kept.refresh.push(vec!["proxmox-boot-tool".to_owned(), "refresh".to_owned()]);
    } else if source.read("/etc/default/grub").is_some() && source.list("/boot/grub").is_some() {
        let start = "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX ";
        let lines: Vec<(String, String)> = add
            .iter()
            .map(|(name, value)| (format!("{start}{name}="), format!("{start}{name}={value}\"")))
            .collect();
        file(machine, kept, GRUB, &lines, &["update-grub"])?;
    } else {
        return Err(Fault(format!(
            "it is not known how the kernel's command line is kept here: add `{words}` to your boot \
             loader's configuration"
        )));
    }
    kept.notes.push(format!("{words} works after a reboot."));
    Ok(())
}

/// The command line with these arguments, each once.
pub(super) fn arguments(line: &str, add: &[(String, String)]) -> (String, Vec<Edit>) {
    let wish =
        |(name, value): &(String, String)| (Key::Word(name.clone()), format!("{name}={value}"));
    edit::set(line, add.iter().map(wish).collect())
}

/// The text of a configuration file in which the key has this value: in the place of the last line
/// that sets it, or at the end; in a section, or behind its head, which is added if it is missing.
pub(super) fn conf_line(
    text: &str,
    section: Option<&str>,
    key: &str,
    value: &str,
) -> (String, Vec<Edit>) {
    let line = format!("{key} = {value}");
    let Some(section) = section else {
        return edit::set(text, vec![(Key::Name(key.to_owned()), line)]);
    };
    let mut wishes = vec![(Key::Section(section.to_owned(), key.to_owned()), line)];
    if !text.lines().any(|line| section_of(line) == Some(section)) {
        let head = format!("[{section}]");
        wishes.insert(0, (Key::Start(head.clone()), head));
    }
    edit::set(text, wishes)
}

fn on_truenas(machine: &dyn Machine, all: &Wanted<'_>, kept: &mut Kept) -> Result<(), Fault> {
    let mut boot = Vec::new();
    for (setting, value) in all {
        let step = match setting {
            Setting::Sysctl { name } => truenas::Kept::tunable(machine, "SYSCTL", name, value)?,
            Setting::Module { module, name } if module == "zfs" => {
                truenas::Kept::tunable(machine, "ZFS", name, value)?
            }
            Setting::Cmdline { name } => {
                boot.push((name.clone(), (*value).to_owned()));
                continue;
            }
            Setting::Zfs { .. } | Setting::FreeBsd { .. } => continue,
            Setting::Conf { file, .. } => {
                kept.notes.push(format!("An update of TrueNAS may write {file} again."));
                continue;
            }
            Setting::Sysfs { path } if !path.starts_with("/sys/block/") => {
                kept.notes.push(format!(
                    "{path} belongs to a service, which TrueNAS sets up again at each start: it is \
                     not kept."
                ));
                continue;
            }
            _ => truenas::Kept::script(machine, at_start(setting, value))?,
        };
        kept.steps.push(Step::TrueNas(step));
    }
    if !boot.is_empty() {
        kept.steps.push(Step::TrueNas(truenas::Kept::options(machine, &boot)?));
        kept.notes.push("The kernel's command line changes with a reboot.".to_owned());
    }
    Ok(())
}
