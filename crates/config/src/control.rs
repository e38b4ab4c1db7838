//! `[control]`: the REST interface and the page.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use toml::de::DeValue;

use super::mistake::{Mistake, Mistakes};
use super::reader::{Section, string};
use super::schema;
use super::sections::{AddressError, parse_address, path};

/// The TCP port of the REST interface and the page.
pub const CONTROL_PORT: u16 = 3261;

/// Where the REST interface listens if nobody says otherwise: for this machine alone.
pub const DEFAULT_CONTROL: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), CONTROL_PORT);

/// The most addresses, and the most names.
const MOST: usize = 16;

/// `[control]`: the REST interface and the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Where it listens; `None`: nothing is said of it.
    pub listen: Option<Vec<SocketAddr>>,
    /// Files of the certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Names of this server besides its addresses.
    pub names: Vec<String>,
    /// Whoever is of this group reads over a Unix socket.
    pub read_group: Option<SocketGroup>,
    /// Whoever is of this one does everything.
    pub admin_group: Option<SocketGroup>,
}

/// A group of users of this machine, who may use a Unix socket of the interface.
#[derive(Clone, Debug)]
pub struct SocketGroup {
    /// Its name, or its number.
    pub name: String,
    line: usize,
    key: String,
}

/// Where it stands does not matter.
impl PartialEq for SocketGroup {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for SocketGroup {}

impl SocketGroup {
    /// A mistake of this group.
    pub fn mistake(&self, text: impl Into<String>) -> Mistake {
        Mistake { line: self.line, key: self.key.clone(), text: text.into() }
    }
}

/// Where an option says that the REST interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlAt {
    /// Nowhere: there is none.
    Nowhere,
    /// At this address alone.
    Address(SocketAddr),
}

/// Reads such an option: an address, or `none`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_control_option(text: &str) -> Result<ControlAt, AddressError> {
    match text {
        "none" => Ok(ControlAt::Nowhere),
        text => parse_control(text).map(ControlAt::Address),
    }
}

/// An address for the REST interface, as people write it: the port may be left out.
///
/// # Errors
/// What is wrong with it.
fn parse_control(text: &str) -> Result<SocketAddr, AddressError> {
    parse_address(text, CONTROL_PORT)
}

fn list<T>(
    value: &DeValue<'_>,
    what: &str,
    one: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let items = value.as_array().ok_or_else(|| format!("must be an array of {what}"))?;
    if items.len() > MOST {
        return Err(format!("has at most {MOST} {what}"));
    }
    items.iter().map(|item| one(&string(item.get_ref())?)).collect()
}

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match !text.is_empty() && text.len() <= 253 && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("\"{text}\" is no name of a machine")),
    }
}

/// A name as `groupadd` takes it, or a number.
fn group(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match !text.is_empty() && text.len() <= 32 && text.chars().all(plain) {
        true => Ok(text),
        false => Err(format!("\"{text}\" is no name of a group")),
    }
}

fn socket_group(
    table: &Section<'_>,
    name: &'static str,
    mistakes: &mut Mistakes,
) -> Option<SocketGroup> {
    let at = table.get(name, &group, mistakes)?;
    Some(SocketGroup { name: at.value, line: mistakes.line(at.offset), key: table.key(name) })
}

pub(super) fn control(top: &Section<'_>, mistakes: &mut Mistakes) -> Control {
    let mut out = Control::default();
    let Some(value) = top.raw("control") else { return out };
    let table = Section::open(value, "control".to_owned(), &schema::CONTROL, mistakes);
    let Some(table) = table else { return out };
    let listen =
        |value: &DeValue<'_>| list(value, "addresses", |text| Ok(parse_control(text)?)).map(Some);
    table.set("listen", &mut out.listen, &listen, mistakes);
    table.set("names", &mut out.names, &|value| list(value, "names", name), mistakes);
    out.read_group = socket_group(&table, "read-group", mistakes);
    out.admin_group = socket_group(&table, "admin-group", mistakes);
    let certificate = table.get("tls-certificate", &path, mistakes);
    let key = table.get("tls-key", &path, mistakes);
    match (certificate, key) {
        (Some(certificate), Some(key)) => out.certificate = Some((certificate.value, key.value)),
        (Some(at), None) if table.raw("tls-key").is_none() => {
            mistakes.add(at.offset, table.key("tls-certificate"), "needs tls-key as well");
        }
        (None, Some(at)) if table.raw("tls-certificate").is_none() => {
            mistakes.add(at.offset, table.key("tls-key"), "needs tls-certificate as well");
        }
        _ => {}
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    const TARGET: &str = "[[target]]\nname = 'iqn.2026-11.l:x'\n";

    fn read(text: &str) -> Result<Control, String> {
        let mistakes = |all: Vec<super::super::Mistake>| all[0].to_string();
        check(&format!("{TARGET}[control]\n{text}")).map(|config| config.control).map_err(mistakes)
    }

    #[test]
    fn what_is_left_out_is_left_to_the_defaults() {
        assert_eq!(read("").unwrap(), Control::default());
        assert_eq!(read("listen = []").unwrap().listen, Some(Vec::new()), "it is off");
        let listen = read("listen = ['192.0.2.1', '[::1]:7', '::1']").unwrap().listen.unwrap();
        let words: Vec<String> = listen.iter().map(ToString::to_string).collect();
        assert_eq!(words, ["192.0.2.1:3261", "[::1]:7", "[::1]:3261"]);
        let both =
            read("tls-certificate = 'a'\ntls-key = 'b'\nnames = ['store.example.org']").unwrap();
        assert_eq!(both.certificate, Some(("a".into(), "b".into())));
        assert_eq!(both.names, ["store.example.org"]);
        let groups = read("read-group = 'lunet-read'\nadmin-group = '7'").unwrap();
        let names = [groups.read_group, groups.admin_group].map(|group| group.unwrap().name);
        assert_eq!(names, ["lunet-read", "7"]);
    }

    #[test]
    fn an_option_has_an_address_or_none() {
        assert_eq!(parse_control_option("none").unwrap(), ControlAt::Nowhere);
        let address = ControlAt::Address("192.0.2.1:3261".parse().unwrap());
        assert_eq!(parse_control_option("192.0.2.1").unwrap(), address);
        assert!(parse_control_option("nowhere").is_err());
    }

    #[test]
    fn mistakes_are_told() {
        for (text, words) in [
            ("listen = 'x'", "control.listen: must be an array of addresses"),
            ("listen = ['x']", "\"x\" is not an address"),
            ("listen = ['224.0.0.1:1']", "multicast"),
            ("names = ['a b']", "\"a b\" is no name of a machine"),
            ("tls-key = 'x'", "control.tls-key: needs tls-certificate as well"),
            ("tls-certificate = 'x'", "control.tls-certificate: needs tls-key as well"),
            ("read-group = 'a b'", "control.read-group: \"a b\" is no name of a group"),
            ("admin-group = 7", "control.admin-group: must be a string"),
            ("port = 1", "control.port: is not a key"),
        ] {
            let mistake = read(text).unwrap_err();
            assert!(mistake.contains(words), "{text}: {mistake}");
        }
    }
}
