//! `[[target]]`

use std::collections::HashMap;
use std::net::SocketAddr;

use toml::Spanned;
use toml::de::DeValue;

use super::access::{self, Access};
use super::group;
use super::mistake::Mistakes;
use super::nvme::{self, Subsystem};
use super::reach;
use super::reader::{At, Convert, Section, boolean, label, string};
use super::schema::{self, nearest};
use super::sections::{Listening, parse_address, top_array};
use super::volumes::Found;
use super::{DEFAULT_PORT, Portal, Target};
use crate::names;

/// The largest LUN that fits the flat addressing of SAM-5 4.7.
const MAX_LUN: u16 = 16_383;

/// The longest alias (RFC 7143 13.7 leaves it to the value's own limit of 255 bytes).
const MAX_ALIAS: usize = 255;

pub(super) fn targets(
    top: &Section<'_>,
    portals: &Listening,
    volumes: &[Found],
    mistakes: &mut Mistakes,
) -> (Vec<Target>, Vec<At<Subsystem>>) {
    let (mut out, mut subsystems) = (Vec::new(), Vec::new());
    let mut seen: HashMap<String, usize> = HashMap::new();
    let tables = top_array(top, "target", &schema::TARGET, mistakes);
    let known = ["target", "subsystem"].iter().any(|key| top.raw(key).is_some());
    if !known && !group::some_are_shared(top) {
        let text =
            "is missing: at least one [[target]] or [[subsystem]] must be there to be served";
        mistakes.add(0, "target", text);
    }
    for table in tables {
        let name: Convert<'_, String> = &|v| {
            let name = string(v)?;
            names::check_iscsi_name(&name).map(|()| name)
        };
        let name = table.get("name", name, mistakes);
        table.missing("name", mistakes);
        if let Some(name) = &name {
            // eui. and naa. names may be written in either case and mean the same.
            match seen.get(&name.value.to_ascii_lowercase()) {
                Some(line) => {
                    let text = format!("is the name of the target of line {line} already");
                    mistakes.add(name.offset, table.key("name"), text);
                }
                None => {
                    let line = mistakes.line(name.offset);
                    seen.insert(name.value.to_ascii_lowercase(), line);
                }
            }
        }
        let alias = table.get("alias", &|v| label(v, MAX_ALIAS), mistakes).map(|a| a.value);
        let named = named_portals(&table, portals, mistakes);
        reach::target(&table, &named, portals, mistakes);
        let over_nvme = nvme::of_target(&table, &named, mistakes);
        if !over_nvme.served {
            reach::without_effect(&table, &named, portals, mistakes);
        }
        let portals = named.iscsi;
        let mut access = access::access(&table, mistakes);
        table.set("open", &mut access.open, &boolean, mistakes);
        let luns = luns(&table, volumes, &mut access, mistakes);
        let mut allow_reset = false;
        table.set("allow-reset", &mut allow_reset, &boolean, mistakes);
        if let Some(name) = name {
            let name = name.value;
            let target = Target { name, alias, portals, luns, access, allow_reset };
            subsystems.extend(nvme::as_subsystem(&target, over_nvme, mistakes));
            out.push(target);
        }
    }
    (out, subsystems)
}

/// The portals that a table names, by the protocol that they are for.
#[derive(Clone, Default)]
pub(super) struct Named {
    /// Some are named.
    pub(super) some: bool,
    /// Indices of portals for iSCSI.
    pub(super) iscsi: Vec<usize>,
    /// Indices of portals for NVMe.
    pub(super) nvme: Vec<usize>,
}

/// The key `portals` of a table.
pub(super) fn named_portals(
    table: &Section<'_>,
    portals: &Listening,
    mistakes: &mut Mistakes,
) -> Named {
    let mut out = Named::default();
    let Some(value) = table.raw("portals") else { return out };
    out.some = true;
    let key = table.key("portals");
    let Some(items) = value.get_ref().as_array() else {
        mistakes.add(value.span().start, key, "must be an array of addresses of [[portal]] tables");
        return out;
    };
    if items.is_empty() {
        let text = "must not be empty; leave it out for all portals";
        mistakes.add(value.span().start, key.clone(), text);
    }
    for item in items {
        let found = string(item.get_ref()).and_then(|text| find_portal(&text, portals));
        let twice = match &found {
            Ok((index, true)) if !out.nvme.contains(index) => {
                out.nvme.push(*index);
                continue;
            }
            Ok((index, false)) if !out.iscsi.contains(index) => {
                out.iscsi.push(*index);
                continue;
            }
            Ok(_) => "names the same portal twice",
            Err(text) => text,
        };
        mistakes.add(item.span().start, key.clone(), twice);
    }
    out
}

/// The index of a portal, and whether it is for NVMe. Without a port, the text means either.
fn find_portal(text: &str, portals: &Listening) -> Result<(usize, bool), String> {
    let at = |list: &[At<Portal>], address: SocketAddr| {
        list.iter().position(|portal| portal.value.address == address)
    };
    let iscsi = parse_address(text, DEFAULT_PORT)?;
    if let Some(index) = at(&portals.iscsi, iscsi) {
        return Ok((index, false));
    }
    let found = at(&portals.nvme, parse_address(text, nvme::NVME_PORT)?);
    let found = found.map(|index| (index, true));
    found.ok_or_else(|| format!("no [[portal]] has the address \"{iscsi}\""))
}

fn luns(
    table: &Section<'_>,
    volumes: &[Found],
    access: &mut Access,
    mistakes: &mut Mistakes,
) -> Vec<(u16, usize)> {
    let mut out: Vec<(u16, usize)> = Vec::new();
    let Some(value) = table.raw("luns") else { return out };
    let path = table.key("luns");
    let Some(entries) = entries(value, 0) else {
        let text = "must be a table, as in { 0 = \"vm1\" }, or an array of volumes";
        mistakes.add(value.span().start, path, text);
        return out;
    };
    for (number, offset, volume) in entries {
        let key = format!("{path}.{number}");
        let Ok(lun) = lun_number(&number) else {
            let text = format!("the number of a LUN is 0 to {MAX_LUN}, without leading zeroes");
            mistakes.add(offset, key, text);
            continue;
        };
        let Some((volume, only)) = access::lun(&key, volume, mistakes) else { continue };
        access.luns.extend(only.map(|initiators| (lun, initiators)));
        let offset = volume.span().start;
        match find_volume(volume.get_ref(), volumes) {
            Err(text) => mistakes.add(offset, key, text),
            Ok(index) => match out.iter().find(|(_, other)| *other == index) {
                Some((other, _)) => {
                    let name = &volumes[index].name;
                    let text = format!("volume \"{name}\" is LUN {other} of this target already");
                    mistakes.add(offset, key, text);
                }
                None => out.push((lun, index)),
            },
        }
    }
    out.sort_unstable();
    out
}

/// The entries of a table of numbers or an array, which counts from `first`: number, its place, the volume's name.
pub(super) fn entries<'a>(value: &'a Spanned<DeValue<'a>>, first: usize) -> Option<Vec<Entry<'a>>> {
    match value.get_ref() {
        DeValue::Table(table) => {
            let entry = |(name, volume): (&'a Spanned<_>, _)| -> (String, usize, _) {
                (AsRef::<str>::as_ref(name.get_ref()).to_owned(), name.span().start, volume)
            };
            Some(table.iter().map(entry).collect())
        }
        DeValue::Array(items) => {
            let entry = |(i, item): (usize, &'a Spanned<_>)| {
                ((i + first).to_string(), item.span().start, item)
            };
            Some(items.iter().enumerate().map(entry).collect())
        }
        _ => None,
    }
}

/// A number as it is written, where it stands, and what it is for.
pub(super) type Entry<'a> = (String, usize, &'a Spanned<DeValue<'a>>);

fn lun_number(text: &str) -> Result<u16, ()> {
    // Only one way to write each number: then no two keys of a table can mean the same LUN.
    let canonical = text == "0" || (!text.starts_with('0') && !text.starts_with('+'));
    match text.parse() {
        Ok(lun) if canonical && lun <= MAX_LUN => Ok(lun),
        _ => Err(()),
    }
}

/// The index of a volume by its name.
pub(super) fn find_volume(value: &DeValue<'_>, volumes: &[Found]) -> Result<usize, String> {
    let name = string(value)?;
    volumes.iter().position(|volume| volume.name == name).ok_or_else(|| {
        match nearest(&name, volumes.iter().map(|volume| volume.name.as_str())) {
            Some(near) => format!("there is no volume \"{name}\"; did you mean \"{near}\"?"),
            None => format!("there is no volume \"{name}\""),
        }
    })
}
