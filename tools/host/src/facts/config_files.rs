//! What configuration files say that speak of the same settings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Value;
use crate::source::Source;

/// What configuration files say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigFiles {
    /// sysctl.conf and sysctl.d, in the order in which they are read.
    pub sysctl: Vec<SysctlLine>,
    /// `options` lines of modprobe.d.
    pub modprobe: Vec<ModprobeOption>,
    /// udev rules below /etc that set an attribute of a block device, NIC or NVMe drive.
    pub udev: Vec<UdevRule>,
}

/// A setting in a sysctl file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SysctlLine {
    /// Path of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: i64,
    /// Name, with dots: `net.core.rmem_max`.
    pub name: String,
    /// What it is to be.
    pub value: Option<Value>,
}

/// An option of a module in a modprobe file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModprobeOption {
    /// Path of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: i64,
    /// Name of the kernel module.
    pub module: String,
    /// Name of the module's parameter.
    pub name: String,
    /// What it is to be.
    pub value: Option<Value>,
}

/// A udev rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UdevRule {
    /// Path of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: i64,
    /// The rule as it is written.
    pub text: String,
}

/// Where settings are, weakest first: a file of the same name further down hides the one above.
const SYSCTL: &[&str] =
    &["/usr/lib/sysctl.d", "/usr/local/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d"];
const MODPROBE: &[&str] = &["/lib/modprobe.d", "/run/modprobe.d", "/etc/modprobe.d"];
const UDEV: &[&str] = &["/etc/udev/rules.d"];
/// What a rule has in it that sets an attribute of a device.
const ATTRIBUTES: &[&str] = &["ATTR{", "ethtool", "/sys/block", "/sys/class/net", "nvme"];

/// Reads the files.
pub(super) fn read(source: &dyn Source) -> ConfigFiles {
    let mut all = ConfigFiles::default();
    let mut files = files(source, SYSCTL, ".conf");
    files.push("/etc/sysctl.conf".to_owned());
    for file in files {
        let text = source.read(&file).unwrap_or_default();
        all.sysctl.extend(lines(&text).filter_map(|(line, text)| sysctl(&file, line, text)));
    }
    for file in self::files(source, MODPROBE, ".conf") {
        let text = source.read(&file).unwrap_or_default();
        all.modprobe.extend(lines(&text).flat_map(|(line, text)| modprobe(&file, line, text)));
    }
    for file in self::files(source, UDEV, ".rules") {
        let text = source.read(&file).unwrap_or_default();
        let rules = lines(&text).filter(|(_, rule)| ATTRIBUTES.iter().any(|a| rule.contains(a)));
        all.udev.extend(rules.map(|(line, text)| UdevRule {
            file: file.clone(),
            line,
            text: text.to_owned(),
        }));
    }
    all
}

/// The files that count, in the order of their names.
fn files(source: &dyn Source, directories: &[&str], ending: &str) -> Vec<String> {
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    for directory in directories {
        for name in source.names(directory).into_iter().filter(|name| name.ends_with(ending)) {
            let path = format!("{directory}/{name}");
            // 99-sysctl.conf is often a link to the file that is read anyway.
            if source.link(&path).is_some_and(|target| target.ends_with("/sysctl.conf")) {
                continue;
            }
            by_name.insert(name, path);
        }
    }
    by_name.into_values().collect()
}

/// The lines that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (i64, &str)> {
    (1..)
        .zip(text.lines())
        .map(|(number, line)| (number, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with(['#', ';']))
}

/// `net.core.rmem_max = 16777216`; a dash in front means that it may fail. With slashes between
/// the parts of a name, dots in it are dots.
fn sysctl(file: &str, line: i64, text: &str) -> Option<SysctlLine> {
    let (name, value) = text.split_once('=')?;
    let name = name.trim().trim_start_matches('-').trim_start();
    let name = match (name.find('/'), name.find('.')) {
        (Some(slash), Some(dot)) if slash < dot => name.replace('/', "."),
        (Some(_), None) => name.replace('/', "."),
        _ => name.to_owned(),
    };
    Some(SysctlLine { file: file.to_owned(), line, name, value: Some(Value::parse(value)) })
}

/// `options zfs zfs_arc_max=8589934592 zfs_arc_min=1`
fn modprobe(file: &str, line: i64, text: &str) -> Vec<ModprobeOption> {
    let mut words = text.split_whitespace();
    if words.next() != Some("options") {
        return Vec::new();
    }
    let module = words.next().unwrap_or_default().replace('-', "_");
    words
        .map(|word| {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(Value::parse(value.trim_matches('"')))),
                None => (word, None),
            };
            ModprobeOption {
                file: file.to_owned(),
                line,
                module: module.clone(),
                name: name.to_owned(),
                value,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    #[test]
    fn reads_what_files_say_with_their_lines() {
        let tree = Tree::parse(
            "/usr/lib/sysctl.d/50-a.conf: net.ipv4.tcp_sack = 1
/etc/sysctl.d/50-a.conf:
| # tuned for speed
|
| net.ipv4.tcp_sack=0
| -net/ipv4/tcp_rmem = 4096 87380 16777216
/etc/sysctl.conf: net.ipv4.tcp_mem=10000000 10000000 10000000
/etc/modprobe.d/zfs.conf: options zfs zfs_arc_max=8589934592 zvol_use_blk_mq=1
/etc/udev/rules.d/60-nvme.rules:
| # none
| ACTION==\"add|change\", KERNEL==\"nvme*n1\", ATTR{queue/scheduler}=\"mq-deadline\"
",
        )
        .unwrap();
        let found = read(&tree);
        let seen: Vec<_> =
            found.sysctl.iter().map(|s| (s.file.as_str(), s.line, s.name.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("/etc/sysctl.d/50-a.conf", 3, "net.ipv4.tcp_sack"),
                ("/etc/sysctl.d/50-a.conf", 4, "net.ipv4.tcp_rmem"),
                ("/etc/sysctl.conf", 1, "net.ipv4.tcp_mem"),
            ]
        );
        assert_eq!(found.sysctl[1].value, Some(Value::List(vec![4096, 87380, 16_777_216])));
        assert_eq!(found.modprobe.len(), 2);
        assert_eq!(found.modprobe[1].name, "zvol_use_blk_mq");
        assert_eq!(found.udev[0].line, 2);
    }
}
