//! What a setting is now.

use crate::rules::Setting;
use crate::source::{Command, Source};

/// What a setting is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Now {
    /// This.
    Value(String),
    /// Nobody has set it: an argument that the command line does not have.
    Unset,
    /// This machine has no such setting, or it cannot be read.
    Absent,
}

/// Where the CPUs are.
pub(crate) const CPUS: &str = "/sys/devices/system/cpu";

/// Reads what a setting is.
pub fn now(source: &dyn Source, setting: &Setting) -> Now {
    let file = |path: &str| source.read(path).map_or(Now::Absent, |text| Now::Value(plain(&text)));
    match setting {
        Setting::Sysctl { name } => file(&sysctl_path(name)),
        Setting::Module { module, name } => file(&module_path(module, name)),
        Setting::Sysfs { path } => file(path),
        Setting::Cpus { file } => every_cpu(source, file),
        Setting::Cmdline { name } => match source.read("/proc/cmdline") {
            Some(line) => argument(&line, name).map_or(Now::Unset, Now::Value),
            None => Now::Absent,
        },
        Setting::Ring { nic, ring } => source
            .output("ethtool", &["-g", nic])
            .and_then(|text| ring_size(&text, ring))
            .map_or(Now::Absent, Now::Value),
        Setting::Zfs { dataset, property } => zfs_property(source, dataset, property)
            .map_or(Now::Absent, |(value, _)| Now::Value(value)),
        Setting::Conf { file, key, section } => match source.read(file) {
            Some(text) => conf_value(&text, section.as_deref(), key).map_or(Now::Unset, Now::Value),
            None => Now::Absent,
        },
        // The facts have it.
        Setting::FreeBsd { .. } => Now::Absent,
    }
}

/// The file of a kernel setting.
pub(crate) fn sysctl_path(name: &str) -> String {
    format!("/proc/sys/{}", name.replace('.', "/"))
}

/// The file of a module's parameter.
pub(crate) fn module_path(module: &str, name: &str) -> String {
    format!("/sys/module/{module}/parameters/{name}")
}

/// The files of an attribute that every CPU has.
pub(crate) fn cpu_paths(source: &dyn Source, file: &str) -> Vec<String> {
    let number = |name: &String| name.strip_prefix("cpu")?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = source.names(CPUS).iter().filter_map(number).collect();
    numbers.sort_unstable();
    let paths = numbers.into_iter().map(|number| format!("{CPUS}/cpu{number}/{file}"));
    paths.filter(|path| source.read(path).is_some()).collect()
}

fn every_cpu(source: &dyn Source, file: &str) -> Now {
    let mut values: Vec<String> =
        cpu_paths(source, file).iter().filter_map(|path| source.read(path)).collect();
    values.iter_mut().for_each(|value| *value = plain(value));
    values.dedup();
    match values.len() {
        0 => Now::Absent,
        1 => Now::Value(values.swap_remove(0)),
        _ => Now::Value("mixed".to_owned()),
    }
}

/// What a file of the kernel's says: of several words with one in brackets, that one. SCST marks
/// what somebody has set with a line `[key]` of its own.
pub(crate) fn plain(text: &str) -> String {
    if let Some(value) = text.trim_end().strip_suffix("\n[key]") {
        return plain(value);
    }
    if let Some((_, rest)) = text.split_once('[') {
        if let Some((word, _)) = rest.split_once(']') {
            return word.to_owned();
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether two values are the same to the kernel.
pub fn same(one: &str, other: &str) -> bool {
    let word = |text: &str| match text.trim() {
        "Y" | "y" => "1".to_owned(),
        "N" | "n" => "0".to_owned(),
        text => plain(text),
    };
    word(one) == word(other)
}

/// The value of an argument of the kernel's command line; the last one counts. Dashes and
/// underscores are the same in its name.
pub(crate) fn argument(line: &str, name: &str) -> Option<String> {
    let wanted = name.replace('-', "_");
    let value = |word: &str| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        (name.replace('-', "_") == wanted).then(|| value.to_owned())
    };
    line.split_whitespace().filter_map(value).next_back()
}

/// The part of `ethtool -g` below `Current hardware settings`.
fn ring_size(text: &str, ring: &str) -> Option<String> {
    let (_, current) = text.split_once("Current hardware settings")?;
    let line = current.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case(ring).then(|| value.trim().to_owned())
    })?;
    line.parse::<u64>().ok().map(|_| line)
}

/// The value of a property, and where it comes from: `local`, `default`, `inherited from tank`.
pub(crate) fn zfs_property(
    source: &dyn Source,
    dataset: &str,
    property: &str,
) -> Option<(String, String)> {
    let args = ["get", "-Hp", "-o", "value,source", property, dataset];
    let output = source.run(&Command::new("zfs", &args)).filter(|output| output.code == 0)?;
    let (value, from) = output.stdout.trim().split_once('\t')?;
    (value != "-").then(|| (value.to_owned(), from.to_owned()))
}

/// The value of the last line `key = value` that is no comment, in that section if the file has sections.
pub(crate) fn conf_value(text: &str, section: Option<&str>, key: &str) -> Option<String> {
    let mut inside = section.is_none();
    let value = |line: &str| {
        if section.is_some() && line.starts_with('[') {
            inside = section_of(line) == section;
        }
        let (name, value) = line.split_once('=')?;
        (inside && name.trim() == key).then(|| value.trim().to_owned())
    };
    text.lines().filter_map(value).last()
}

/// The section that a line begins: `[nfsd]`.
pub(crate) fn section_of(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.split(']').next().map(str::trim)
}
