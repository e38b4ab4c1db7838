//! Who the volumes of this machine are.
//!
//! Initiators tell volumes apart by NAA name and serial number, over restarts and over paths. Both
//! come from the volume's name and from a UUID that is made once and kept in the data directory:
//! the same volume stays the same, and two machines never have the same. The same file says which
//! form the names have, so that a data directory keeps those that it has given out.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, bail};
use lunet_files as files;
use lunet_os::fs::read_text;
use lunet_scsi::Identity;

use crate::trouble::At;
use lunet_config::Volume;

/// The file in the data directory.
pub const FILE: &str = "identity";

/// The longest file in bytes.
const MOST: u64 = 4096;

/// The second line of the file: names of the second form, a long NAA designator alone. Without it,
/// they have the first form.
const LONG: &str = "names 2";

/// Where the names of volumes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    uuid: String,
    /// Whether NAA designators are the long ones.
    long: bool,
}

/// The identity of this data directory; made if there is none.
///
/// # Errors
/// The file cannot be read or made, or holds something else.
pub fn machine(data: &Path) -> Result<Machine> {
    if let Some(found) = find(data)? {
        return Ok(found);
    }
    let path = data.join(FILE);
    let text =
        make(&path).and_then(|()| read_text(&path, MOST)).at("keep the identity in", &path)?;
    of_text(&path, &text)
}

/// The identity of this data directory, if there is one.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn find(data: &Path) -> Result<Option<Machine>> {
    let path = data.join(FILE);
    match read_text(&path, MOST) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        read => Ok(Some(of_text(&path, &read.at("keep the identity in", &path)?)?)),
    }
}

impl Machine {
    /// One that is kept nowhere: whoever is called by it has to remember that.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub fn unkept() -> io::Result<Self> {
        Ok(Self { uuid: uuid()?, long: true })
    }

    /// The UUID that was made once.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }
}

/// The identity in the text of a file.
fn of_text(path: &Path, text: &str) -> Result<Machine> {
    if let Some(mode) = open_to_others(path) {
        let path = path.display();
        tracing::warn!("{path}: its mode {mode:04o} lets other users at it: `chmod 600 {path}`");
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let uuid = lines.next().unwrap_or_default();
    let names = lines.next();
    if !is_uuid(uuid) || names.is_some_and(|names| names != LONG) || lines.next().is_some() {
        bail!(
            "{}: this is not an identity that lunet has written: restore it from a backup, or \
             remove it, and initiators will see other volumes, but for those of failover groups",
            path.display()
        );
    }
    Ok(Machine { uuid: uuid.to_owned(), long: names.is_some() })
}

/// The mode of a file that others than its owner may use.
fn open_to_others(path: &Path) -> Option<u32> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Writes a new UUID. The file is its owner's alone: the names of all volumes follow from it.
fn make(path: &Path) -> io::Result<()> {
    Ok(files::replace(path, format!("{}\n{LONG}\n", uuid()?).as_bytes())?)
}

/// A random UUID (RFC 9562, version 4).
///
/// # Errors
/// The operating system's.
pub(crate) fn uuid() -> io::Result<String> {
    let mut bytes = [0; 16];
    lunet_os::random::fill(&mut bytes)?;
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    Ok(written(bits.to_be_bytes()))
}

/// A UUID as it is written (RFC 9562 4).
pub(crate) fn written(uuid: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(uuid));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Whether a text is a UUID (RFC 9562 4).
pub(crate) fn is_uuid(text: &str) -> bool {
    let hyphens = [8, 13, 18, 23];
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match hyphens.contains(&i) {
            true => b == b'-',
            false => b.is_ascii_hexdigit(),
        })
}

/// The names of a volume's logical unit.
pub fn of_volume(machine: &Machine, volume: &Volume) -> Identity {
    let seed = format!("{}/{}", machine.uuid, volume.name);
    let mut identity = match machine.long {
        true => Identity::from_seed(&seed),
        false => Identity::locally(&seed),
    };
    if let Some(vendor) = &volume.vendor {
        identity.vendor = padded(vendor);
    }
    if let Some(product) = &volume.product {
        identity.product = padded(product);
    }
    if let Some(serial) = &volume.serial {
        identity.serial = serial.clone();
    }
    identity.naa = volume.naa.unwrap_or(identity.naa);
    identity.eui = volume.eui.or(identity.eui);
    identity
}

/// The serial number of an NVM subsystem: 16 hexadecimal digits.
pub fn of_subsystem(machine: &Machine, nqn: &str) -> String {
    Identity::from_seed(&format!("{}/{nqn}", machine.uuid)).serial
}

/// The same of a failover group's subsystem, which all gateways call alike.
pub fn of_shared_subsystem(nqn: &str) -> String {
    Identity::from_seed(&format!("group/{nqn}")).serial
}

/// The text in a field of fixed length, with spaces behind it.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    for (place, byte) in out.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;
    use tempfile::TempDir;

    fn volume(name: &str, more: &str) -> Volume {
        let text = format!(
            "[[target]]\nname = 'iqn.2026-11.l:x'\n[volumes.{name}]\nbackend = 'null'\nsize = 512\n{more}"
        );
        check(&text).unwrap().volumes.remove(0)
    }

    #[test]
    fn an_identity_is_made_once() {
        let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let first = machine(one.path()).unwrap();
        assert_eq!(machine(one.path()).unwrap(), first);
        assert_ne!(machine(two.path()).unwrap(), first);
        assert!(first.long);
        let uuid = first.uuid.as_bytes();
        assert_eq!(uuid[14], b'4', "{first:?}");
        assert!(b"89ab".contains(&uuid[19]), "{first:?}");
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 1, "nothing else is left behind");
        let file = one.path().join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open_to_others(&file), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open_to_others(&file), Some(0o644));
    }

    #[test]
    fn a_damaged_identity_is_not_replaced() {
        let dir = TempDir::new().unwrap();
        let uuid = "3f1c2f5e-0000-4000-8000-000000000000";
        for text in [
            "",
            "hello",
            "0123456789012345678901234567890123456",
            &format!("{uuid}\nnames 3\n"),
            &format!("{uuid}\n{LONG}\nmore\n"),
        ] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert!(machine(dir.path()).unwrap_err().to_string().contains("not an identity"));
            assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text);
        }
    }

    #[test]
    fn a_data_directory_keeps_the_names_that_it_has_given_out() {
        let dir = TempDir::new().unwrap();
        let names = || {
            let identity = of_volume(&machine(dir.path()).unwrap(), &volume("a", ""));
            (identity.naa.to_string(), identity.eui.map(|eui| eui.to_string()), identity.serial)
        };
        let uuid = "3f1c2f5e-0000-4000-8000-000000000000\n";
        fs::write(dir.path().join(FILE), uuid).unwrap();
        let (naa, eui, serial) = names();
        assert!(naa.starts_with('3') && naa.len() == 16 && eui.is_some(), "{naa}, {eui:?}");
        // Somebody wants the new ones.
        fs::write(dir.path().join(FILE), format!("{uuid}{LONG}\n")).unwrap();
        let (naa, eui, same) = names();
        assert!(naa.starts_with('6') && naa.len() == 32 && eui.is_none(), "{naa}, {eui:?}");
        assert_eq!(serial, same);
    }

    #[test]
    fn volumes_differ_by_name_and_machine_and_stay_the_same() {
        let [a, b] = ["a", "b"].map(|name| volume(name, ""));
        for long in [false, true] {
            let [m, n] = ["m", "n"].map(|uuid| Machine { uuid: uuid.to_owned(), long });
            assert_eq!(of_volume(&m, &a), of_volume(&m, &a));
            assert_ne!(of_volume(&m, &a).naa, of_volume(&m, &b).naa);
            assert_ne!(of_volume(&m, &a).naa, of_volume(&n, &a).naa);
            assert_ne!(of_volume(&m, &a).serial, of_volume(&n, &a).serial);
        }
    }

    #[test]
    fn the_configuration_can_set_the_words() {
        let m = Machine { uuid: "m".to_owned(), long: true };
        let own = volume("a", "vendor = 'ACME'\nproduct = 'Disk 1'\nserial = '42'\n");
        let identity = of_volume(&m, &own);
        assert_eq!(&identity.vendor, b"ACME    ");
        assert_eq!(&identity.product, b"Disk 1          ");
        assert_eq!(identity.serial, "42");
        assert_eq!(identity.naa, of_volume(&m, &volume("a", "")).naa);
        let own =
            volume("a", "naa = 'naa.6001405ABCDEF0123456789abcdef012'\neui = '0x0123456789abcdef'");
        let identity = of_volume(&m, &own);
        assert_eq!(identity.naa.to_string(), "6001405abcdef0123456789abcdef012");
        assert_eq!(identity.eui.unwrap().to_string(), "0123456789abcdef");
    }
}
