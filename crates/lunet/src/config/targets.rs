//! `[[target]]`

use std::collections::HashMap;
use std::net::SocketAddr;

use toml::Spanned;
use toml::de::DeValue;

use super::access::{self, Access};
use super::mistake::Mistakes;
use super::reader::{At, Convert, Section, boolean, label, string};
use super::schema::{self, nearest};
use super::sections::{parse_portal, top_array};
use super::volumes::Found;
use super::{Portal, Target};
use crate::names;

/// The largest LUN that fits the flat addressing of SAM-5 4.7.
const MAX_LUN: u16 = 16_383;

/// The longest alias (RFC 7143 13.7 leaves it to the value's own limit of 255 bytes).
const MAX_ALIAS: usize = 255;

pub(super) fn targets(
    top: &Section<'_>,
    portals: &[At<Portal>],
    volumes: &[Found],
    mistakes: &mut Mistakes,
) -> Vec<Target> {
    let mut out = Vec::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    let tables = top_array(top, "target", &schema::TARGET, mistakes);
    if top.raw("target").is_none() {
        mistakes.add(0, "target", "is missing: at least one [[target]] must be there to be served");
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
        let portals = target_portals(&table, portals, mistakes);
        let mut access = access::access(&table, mistakes);
        table.set("open", &mut access.open, &boolean, mistakes);
        let luns = luns(&table, volumes, &mut access, mistakes);
        let mut allow_reset = false;
        table.set("allow-reset", &mut allow_reset, &boolean, mistakes);
        if let Some(name) = name {
            out.push(Target { name: name.value, alias, portals, luns, access, allow_reset });
        }
    }
    out
}

fn target_portals(
    table: &Section<'_>,
    portals: &[At<Portal>],
    mistakes: &mut Mistakes,
) -> Vec<usize> {
    let mut out = Vec::new();
    let Some(value) = table.raw("portals") else { return out };
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
        let index =
            string(item.get_ref()).and_then(|text| Ok(parse_portal(&text)?)).and_then(|address| {
                let found = portals.iter().position(|portal| portal.value.address == address);
                found.ok_or_else(|| no_portal(address))
            });
        match index {
            Ok(index) if out.contains(&index) => {
                mistakes.add(item.span().start, key.clone(), "names the same portal twice");
            }
            Ok(index) => out.push(index),
            Err(text) => mistakes.add(item.span().start, key.clone(), text),
        }
    }
    out
}

fn no_portal(address: SocketAddr) -> String {
    format!("no [[portal]] has the address \"{address}\"")
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
    for (number, offset, volume) in lun_entries(&path, value, mistakes) {
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

/// The entries of `luns`, a table of numbers or an array: number, its place, the volume's name.
fn lun_entries<'a>(
    path: &str,
    value: &'a Spanned<DeValue<'a>>,
    mistakes: &mut Mistakes,
) -> Vec<(String, usize, &'a Spanned<DeValue<'a>>)> {
    match value.get_ref() {
        DeValue::Table(table) => {
            let entry = |(name, volume): (&'a Spanned<_>, _)| -> (String, usize, _) {
                (AsRef::<str>::as_ref(name.get_ref()).to_owned(), name.span().start, volume)
            };
            table.iter().map(entry).collect()
        }
        DeValue::Array(items) => {
            let entry =
                |(i, item): (usize, &'a Spanned<_>)| (i.to_string(), item.span().start, item);
            items.iter().enumerate().map(entry).collect()
        }
        _ => {
            let text = "must be a table, as in { 0 = \"vm1\" }, or an array of volumes";
            mistakes.add(value.span().start, path, text);
            Vec::new()
        }
    }
}

fn lun_number(text: &str) -> Result<u16, ()> {
    // Only one way to write each number: then no two keys of a table can mean the same LUN.
    let canonical = text == "0" || (!text.starts_with('0') && !text.starts_with('+'));
    match text.parse() {
        Ok(lun) if canonical && lun <= MAX_LUN => Ok(lun),
        _ => Err(()),
    }
}

fn find_volume(value: &DeValue<'_>, volumes: &[Found]) -> Result<usize, String> {
    let name = string(value)?;
    volumes.iter().position(|volume| volume.name == name).ok_or_else(|| {
        match nearest(&name, volumes.iter().map(|volume| volume.name.as_str())) {
            Some(near) => format!("there is no volume \"{name}\"; did you mean \"{near}\"?"),
            None => format!("there is no volume \"{name}\""),
        }
    })
}
