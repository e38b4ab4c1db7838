//! Names of units.

use std::fmt::Write;
use std::path::{Component, Path};

/// A path in the name of a unit (systemd.unit(5)), without what kind of a unit it is: what `systemd-escape --path` prints.
#[must_use]
pub fn escape(path: &Path) -> String {
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
}
