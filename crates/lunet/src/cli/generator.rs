//! `lunet systemd-generator`: what systemd has to know of the configuration before it starts the service
//! (systemd.generator(7)).
//!
//! A drop-in of `lunet.service` orders it behind the mounts and devices of its volumes, and lets it write to them. It
//! *wants* them and does not require them: a volume whose storage is missing is not served, and the others are. That lunet
//! does not make a volume anew on the empty folder below a mount that is missing, its records see to.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use lunet::config::{self, Backend, Config};
use lunet::control::Layout;

/// The drop-in, in the folder that systemd names.
const DROP_IN: &str = "lunet.service.d/50-configuration.conf";

#[derive(Args)]
pub struct Generator {
    /// Directory for units that stand behind those of the administrator; systemd gives two more
    #[arg(num_args = 1..=3, required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Configuration of the service
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(options: &Generator) -> Result<ExitCode> {
    let layout = Layout::of_service(|_| None);
    let file = options.config.as_ref().unwrap_or(&layout.config);
    let Ok(text) = fs::read_to_string(file) else {
        // Without a configuration there is no service.
        return Ok(ExitCode::SUCCESS);
    };
    let Ok(config) = config::check(&text) else {
        bail!("{} has mistakes: `lunet config check` lists them", file.display());
    };
    let path = options.directories[0].join(DROP_IN);
    let folder = path.parent().unwrap_or(&path);
    let written =
        fs::create_dir_all(folder).and_then(|()| fs::write(&path, drop_in(&config, &layout.data)));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The drop-in for a configuration. `data` is the data directory unless the configuration names another one.
fn drop_in(config: &Config, data: &Path) -> String {
    let named = config.server.data.as_deref();
    let data = named.unwrap_or(data);
    let (mut units, mut writable, mut devices) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    if named.is_some() {
        units.extend(mounts(&data.join("lunet.lock")));
        writable.insert(data);
    }
    let paths: Vec<_> =
        config.volumes.iter().filter_map(|one| Some((one, one.path(data)?))).collect();
    for (volume, path) in &paths {
        // systemd wants whole paths, and what it would read otherwise than it is written is nothing to guess at.
        if word(path).is_none() {
            continue;
        }
        if let Backend::Block { .. } = volume.backend {
            units.insert(format!("{}.device", escape(path)));
            devices.insert(path.as_path());
        } else {
            units.extend(mounts(path));
            writable.extend(path.parent().filter(|folder| !folder.starts_with(data)));
        }
    }
    let mut out =
        "# Made from the configuration of lunet by lunet-generator: changes are lost.\n".to_owned();
    if !units.is_empty() {
        let units = units.into_iter().collect::<Vec<_>>().join(" ");
        let _ = write!(out, "[Unit]\nWants={units}\nAfter={units}\n");
    }
    out.push_str("[Service]\n");
    for folder in writable.into_iter().filter_map(word) {
        let _ = writeln!(out, "ReadWritePaths=\"-{folder}\"");
    }
    for device in devices.into_iter().filter_map(word) {
        let _ = writeln!(out, "DeviceAllow=\"{device}\" rw");
    }
    out
}

/// A path as it stands between quotation marks in a unit, if it can.
fn word(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let plain = |c: char| !c.is_control() && !matches!(c, '"' | '\\' | '\'');
    (path.is_absolute() && text.chars().all(plain)).then(|| text.replace('%', "%%"))
}

/// The units of the mount points on the way to a path. Those that there are not, systemd ignores.
fn mounts(path: &Path) -> impl Iterator<Item = String> {
    let folders = path.ancestors().skip(1).filter(|folder| *folder != Path::new("/"));
    folders.map(|folder| format!("{}.mount", escape(folder)))
}

/// A path in the name of a unit (systemd.unit(5)).
fn escape(path: &Path) -> String {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.as_encoded_bytes()),
        _ => None,
    });
    let mut out = String::new();
    for part in parts {
        if !out.is_empty() {
            out.push('-');
        }
        for byte in part {
            match byte {
                b'.' if out.is_empty() => out.push_str("\\x2e"),
                b'.' | b':' | b'_' => out.push(char::from(*byte)),
                byte if byte.is_ascii_alphanumeric() => out.push(char::from(*byte)),
                byte => drop(write!(out, "\\x{byte:02x}")),
            }
        }
    }
    if out.is_empty() { "-".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(volumes: &str) -> String {
        let target = "[[target]]\nname = 'iqn.2026-11.l:x'\n";
        drop_in(&config::check(&format!("{volumes}{target}")).expect("right"), Path::new("/d"))
    }

    #[test]
    fn names_of_units_are_escaped_as_systemd_does() {
        // What `systemd-escape --path` prints.
        for (path, name) in [
            ("/dev/zvol/tank/vm-1", "dev-zvol-tank-vm\\x2d1"),
            ("/srv/a b/./c_d.e:f/", "srv-a\\x20b-c_d.e:f"),
            ("/.hidden", "\\x2ehidden"),
            ("/srv/ä", "srv-\\xc3\\xa4"),
            ("/", "-"),
        ] {
            assert_eq!(escape(Path::new(path)), name, "{path}");
        }
    }

    #[test]
    fn the_service_may_use_what_the_configuration_names() {
        let text = made(
            "[volumes.a]\nbackend = 'file'\nsize = '1MiB'\n\
             [volumes.b]\nbackend = 'file'\npath = '/tank/vm s/b%.img'\n\
             [volumes.c]\nbackend = 'block'\npath = '/dev/zvol/tank/c'\n\
             [volumes.d]\nbackend = 'memory'\nsize = '1MiB'\n",
        );
        let units = "d.mount dev-zvol-tank-c.device tank-vm\\x20s.mount tank.mount";
        let wanted = format!(
            "[Unit]\nWants={units}\nAfter={units}\n[Service]\nReadWritePaths=\"-/tank/vm s\"\n\
             DeviceAllow=\"/dev/zvol/tank/c\" rw\n"
        );
        assert_eq!(text.split_once('\n').expect("a comment").1, wanted);
    }

    #[test]
    fn another_data_directory_may_be_written() {
        let text = made("[server]\ndata = '/tank/l'\n");
        assert!(
            text.contains("Wants=tank-l.mount tank.mount\n") && text.contains("\"-/tank/l\""),
            "{text}"
        );
    }

    #[test]
    fn no_path_becomes_a_line_of_its_own() {
        let text = made(
            "[volumes.a]\nbackend = 'block'\npath = \"/dev/x\\nExecStart=/bin/sh\"\n\
             [volumes.b]\nbackend = 'block'\npath = '/dev/\"y'\n\
             [volumes.c]\nbackend = 'block'\npath = 'relative'\n",
        );
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), ["[Service]"]);
    }
}
