//! A plan as a shell script that people can read before they run it.

use std::fmt::Write;

use super::machine::{Fault, Kept, Machine};
use super::persist::{self, Wanted};
use super::step::Step;
use crate::plan::{Item, Plan, module_path, sysctl_path};
use crate::rules::Setting;

/// A word that the shell takes as it is.
pub(super) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The script. It undoes nothing: `lunet tune apply` does.
///
/// # Errors
/// It cannot be worked out how settings are kept.
pub fn script(
    machine: &dyn Machine,
    plan: &Plan,
    persist: bool,
    truenas: bool,
) -> Result<String, Fault> {
    let mut out = String::from(
        "#!/bin/sh\n# Written by `lunet tune script`: read it before you run it, as root.\n\
         # Unlike `lunet tune apply` it keeps no journal and undoes nothing.\nset -eu\n",
    );
    let mut wanted: Vec<(&Setting, &str)> = Vec::new();
    for item in plan.changes() {
        let (Some(setting), Some(value)) = (&item.setting, item.wanted.as_deref()) else {
            continue;
        };
        one(&mut out, item, setting, value);
        wanted.push((setting, value));
    }
    if persist {
        kept(&mut out, machine, truenas, &wanted)?;
    }
    Ok(out)
}

/// What is set at once.
fn one(out: &mut String, item: &Item, setting: &Setting, value: &str) {
    let _ = writeln!(out, "\n# {}: {}", item.rule, item.title);
    for line in [&item.reason, &item.risk] {
        let _ = writeln!(out, "# {}", line.replace('\n', " "));
    }
    let _ = writeln!(out, "# It was: {}", item.now.as_deref().unwrap_or("not set"));
    let word = quote(value);
    let _ = match setting {
        Setting::Sysctl { name } => writeln!(out, "echo {word} > {}", sysctl_path(name)),
        Setting::Module { module, name } => {
            writeln!(out, "echo {word} > {}", module_path(module, name))
        }
        Setting::Sysfs { path } => writeln!(out, "echo {word} > {}", quote(path)),
        Setting::Cpus { file } => writeln!(
            out,
            "for f in /sys/devices/system/cpu/cpu[0-9]*/{file}; do echo {word} > \"$f\"; done"
        ),
        Setting::Ring { nic, ring } => writeln!(out, "ethtool -G {nic} {ring} {word}"),
        Setting::Zfs { dataset, property } => {
            writeln!(out, "zfs set {property}={word} {}", quote(dataset))
        }
        Setting::Conf { file, key, section: Some(section) } => writeln!(
            out,
            "grep -q '^\\[{section}\\]' {file} || echo '[{section}]' >> {file}\n\
             sed -i -e '/^\\[{section}\\]/,/^\\[/{{/^ *{key} *=/d}}' -e {} {file}",
            quote(&format!("/^\\[{section}\\]/a {key} = {value}"))
        ),
        Setting::Conf { file, key, section: None } => writeln!(
            out,
            "sed -i '/^ *{key} *=/d' {file}\necho {} >> {file}",
            quote(&format!("{key} = {value}"))
        ),
        Setting::Cmdline { name } => {
            writeln!(out, "# {name}={value} belongs on the kernel's command line: see --persist")
        }
        Setting::FreeBsd { .. } => writeln!(out, "# {}", setting.freebsd_line(value)),
    };
}

/// What keeps it.
fn kept(
    out: &mut String,
    machine: &dyn Machine,
    truenas: bool,
    wanted: &Wanted<'_>,
) -> Result<(), Fault> {
    let kept = persist::keep(machine, truenas, wanted)?;
    let _ = writeln!(out, "\n# Persists across reboots");
    for step in &kept.steps {
        match step {
            Step::File { path, after, .. } => {
                let content = String::from_utf8_lossy(&Kept::from(after).bytes).into_owned();
                let directory = path.rsplit_once('/').map_or("/", |(directory, _)| directory);
                let _ = writeln!(out, "mkdir -p {directory}");
                let _ = write!(out, "cat > {path} <<'LUNET'\n{content}LUNET\n");
            }
            Step::Unit { unit, .. } => {
                let _ = writeln!(out, "systemctl daemon-reload\nsystemctl enable {unit}");
            }
            Step::TrueNas(kept) => {
                kept.commands().iter().for_each(|line| {
                    let _ = writeln!(out, "{line}");
                });
            }
            Step::Value { .. } | Step::Ring { .. } | Step::Zfs { .. } => {}
        }
    }
    for command in &kept.refresh {
        let _ = writeln!(out, "{}", command.join(" "));
    }
    for note in &kept.notes {
        let _ = writeln!(out, "# {note}");
    }
    Ok(())
}
