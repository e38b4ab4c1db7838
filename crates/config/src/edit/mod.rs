//! Changes the text of a configuration, and leaves all that is not concerned as it was written:
//! comments, order, spaces.
//!
//! People write the same thing in many ways. The usual ones are edited as a person would; what
//! comes out is for the caller to [`check`](super::check), as is anything that a person writes.

mod access;
mod comments;
mod luns;
mod portals;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};
use zeroize::Zeroizing;

/// Keys that a clone does not inherit: they are the source's own. Its space is never reserved: it
/// shares what it holds.
const OWN: &[&str] =
    &["backend", "path", "image", "size", "provisioning", "serial", "naa", "eui", "read-only"];

/// What stands in the place of a secret. It is too short to be one.
const HIDDEN: &str = "not shown";

/// The keys of secrets.
const SECRETS: [&str; 3] = ["secret", "controller-secret", "tls-key"];

/// True for the key of a secret.
fn is_secret(key: &str) -> bool {
    SECRETS.contains(&key)
}

/// True for the key of a secret, or of a file, a folder or a variable of the environment that a configuration names.
fn is_place(key: &str) -> bool {
    let others = ["path", "paths", "data", "control-socket", "tls-certificate"];
    is_secret(key) || others.contains(&key) || key.ends_with("-file") || key.ends_with("-env")
}

/// Why a text could not be edited. Each is one plain sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' messages say what they mean")]
pub enum EditError {
    #[error("the configuration cannot be read as TOML")]
    NotToml,
    #[error("the configuration has no {0}")]
    Missing(String),
    #[error("the configuration writes {0} in a way that lunet cannot edit: change it by hand")]
    Form(&'static str),
}

/// A configuration under change.
#[derive(Clone, Debug)]
pub struct Editor {
    document: DocumentMut,
    /// The text began with an empty line.
    gap: bool,
    /// All of its lines end in CR LF.
    crlf: bool,
}

impl Editor {
    /// Takes a text apart.
    ///
    /// # Errors
    /// The text is no TOML.
    pub fn new(text: &str) -> Result<Self, EditError> {
        let document = text.parse().map_err(|_| EditError::NotToml)?;
        let breaks = text.matches('\n').count();
        let crlf = breaks > 0 && text.matches("\r\n").count() == breaks;
        Ok(Self { document, gap: text.starts_with(['\n', '\r']), crlf })
    }

    /// The text with all changes. There may be secrets in it.
    pub fn text(&self) -> String {
        let text = Zeroizing::new(self.document.to_string());
        // What stood before a table that is gone may have been all that came first.
        let text = if self.gap { text.as_str() } else { text.trim_start_matches(['\n', '\r']) };
        let text = text.replace("\r\n", "\n");
        if self.crlf { Zeroizing::new(text).replace('\n', "\r\n") } else { text }
    }

    /// Takes the secrets out, for a text that is to be shown.
    pub fn hide_secrets(&mut self) {
        let mut hide = |_: &str, value: &mut Value| cover(value, HIDDEN);
        each(self.document.as_table_mut(), "", is_secret, &mut hide);
    }

    /// Puts the secrets of another text in the places where [`hide_secrets`](Self::hide_secrets) has taken them out.
    pub fn restore_secrets(&mut self, from: &mut Self) {
        let mut known: Vec<(String, Zeroizing<String>)> = Vec::new();
        each(from.document.as_table_mut(), "", is_secret, &mut |trail, value| {
            let text = value.as_str().unwrap_or_default();
            known.push((trail.to_owned(), Zeroizing::new(text.to_owned())));
        });
        each(self.document.as_table_mut(), "", is_secret, &mut |trail, value| {
            let secret = known.iter().find(|(other, _)| other == trail);
            if let (Some(HIDDEN), Some((_, secret))) = (value.as_str(), secret) {
                cover(value, secret);
            }
        });
    }

    /// The first key that names a secret, a file or a variable which none of the `known` texts names in the same place.
    /// Secrets have to be hidden, as [`hide_secrets`](Self::hide_secrets) does.
    pub fn new_place(&mut self, known: &mut [Self]) -> Option<String> {
        let said = |value: &Value| value.clone().decorated("", "").to_string();
        let mut all: Vec<(String, Option<String>)> = Vec::new();
        for text in known {
            each(text.document.as_table_mut(), "", is_place, &mut |trail, value| {
                let key = trail.rsplit('/').next().unwrap_or_default();
                all.push((trail.to_owned(), (!is_secret(key)).then(|| said(value))));
            });
        }
        let mut found = None;
        each(self.document.as_table_mut(), "", is_place, &mut |trail, value| {
            let key = trail.rsplit('/').next().unwrap_or_default();
            let same = |(other, there): &(String, Option<String>)| {
                other == trail
                    && there.as_ref().map_or_else(
                        || value.as_str() == Some(HIDDEN),
                        |there| *there == said(value),
                    )
            };
            if !all.iter().any(same) {
                found.get_or_insert_with(|| key.to_owned());
            }
        });
        found
    }

    /// Adds the volume `name` with these keys, behind the other volumes.
    ///
    /// # Errors
    /// `volumes` is no table.
    pub fn add_volume(&mut self, name: &str, keys: &[(&str, Value)]) -> Result<(), EditError> {
        let form = EditError::Form("volumes");
        let mut above = Table::new();
        above.set_implicit(true);
        let volumes = self.document.entry("volumes").or_insert(Item::Table(above));
        let fill = |table: &mut dyn TableLike| {
            for (key, value) in keys {
                table.insert(key, Item::Value(value.clone()));
            }
        };
        match volumes {
            Item::Table(volumes) => {
                let mut table = Table::new();
                fill(&mut table);
                volumes.insert(name, Item::Table(table));
            }
            Item::Value(Value::InlineTable(volumes)) => {
                let mut table = InlineTable::new();
                fill(&mut table);
                volumes.insert(name, Value::InlineTable(table));
            }
            _ => return Err(form),
        }
        Ok(())
    }

    /// The keys of a volume that a clone of it inherits.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn inherited(&self, name: &str) -> Result<Vec<(String, Value)>, EditError> {
        let table = self.document.get("volumes").and_then(|volumes| volumes.get(name));
        let table = table.and_then(Item::as_table_like).ok_or_else(|| no_volume(name))?;
        let keys = table.iter().filter(|(key, _)| !OWN.contains(key));
        let plain = |(key, item): (&str, &Item)| {
            let mut value = item.as_value()?.clone();
            value.decor_mut().clear();
            Some((key.to_owned(), value))
        };
        Ok(keys.filter_map(plain).collect())
    }

    /// Removes the volume `name`, and the comment that stands right above it. LUNs that refer to
    /// it stay.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn remove_volume(&mut self, name: &str) -> Result<(), EditError> {
        let volumes = self.document.get_mut("volumes").and_then(Item::as_table_like_mut);
        let gone = volumes.and_then(|volumes| volumes.remove(name));
        if let Item::Table(table) = gone.ok_or_else(|| no_volume(name))? {
            comments::keep_above(&mut self.document, &table);
        }
        Ok(())
    }

    /// Gives the volume `name` a size, in bytes.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn set_size(&mut self, name: &str, bytes: u64) -> Result<(), EditError> {
        self.set_key(name, "size", Some(size(bytes)))
    }

    /// Gives a key of the volume `name` a value, or takes it away.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn set_key(
        &mut self,
        name: &str,
        key: &str,
        value: Option<Value>,
    ) -> Result<(), EditError> {
        let volumes = self.document.get_mut("volumes").and_then(Item::as_table_like_mut);
        let volume = volumes.and_then(|volumes| volumes.get_mut(name));
        let volume = volume.and_then(Item::as_table_like_mut).ok_or_else(|| no_volume(name))?;
        let Some(mut fresh) = value else {
            volume.remove(key);
            return Ok(());
        };
        if let Some(Item::Value(old)) = volume.get_mut(key) {
            // The spaces and the comment around it.
            *fresh.decor_mut() = old.decor().clone();
            *old = fresh;
        } else {
            volume.insert(key, Item::Value(fresh));
        }
        Ok(())
    }

    /// Adds a target without LUNs, behind the others.
    ///
    /// # Errors
    /// `target` is no array.
    pub fn add_target(
        &mut self,
        name: &str,
        alias: Option<&str>,
        nvme: bool,
    ) -> Result<(), EditError> {
        let targets = ArrayOfTables::new();
        let targets = self.document.entry("target").or_insert(Item::ArrayOfTables(targets));
        let keys = [("name", Some(name)), ("alias", alias)];
        let keys = keys.into_iter().filter_map(|(key, text)| Some((key, Value::from(text?))));
        let both = || ("protocols", Value::Array(Array::from_iter(["iscsi", "nvme"])));
        let keys = keys.chain(nvme.then(both));
        match targets {
            Item::ArrayOfTables(targets) => {
                let mut table = Table::new();
                for (key, value) in keys {
                    table.insert(key, Item::Value(value));
                }
                targets.push(table);
            }
            Item::Value(Value::Array(targets)) => targets.push(keys.collect::<InlineTable>()),
            _ => return Err(EditError::Form("target")),
        }
        Ok(())
    }

    /// Removes a target, and the comment that stands right above it.
    ///
    /// # Errors
    /// There is no such target.
    pub fn remove_target(&mut self, name: &str) -> Result<(), EditError> {
        match self.document.get_mut("target") {
            Some(Item::ArrayOfTables(targets)) => {
                let at = targets.iter().position(|table| is_named(table, name));
                let table = targets.remove(at.ok_or_else(|| no_target(name))?);
                comments::keep_above(&mut self.document, &table);
            }
            Some(Item::Value(Value::Array(targets))) => {
                let named =
                    |value: &Value| value.as_inline_table().is_some_and(|t| is_named(t, name));
                let at = targets.iter().position(named);
                remove_entry(targets, at.ok_or_else(|| no_target(name))?);
            }
            _ => return Err(no_target(name)),
        }
        Ok(())
    }

    /// Adds a portal with these keys, behind the others.
    ///
    /// # Errors
    /// The portals are written in no way that is known.
    pub fn add_portal(&mut self, keys: &[(&str, Value)]) -> Result<(), EditError> {
        portals::add(&mut self.document, keys)
    }

    /// Removes the portal with this address, and the comment that stands right above it.
    ///
    /// # Errors
    /// There is no such portal.
    pub fn remove_portal(&mut self, address: SocketAddr) -> Result<(), EditError> {
        portals::remove(&mut self.document, address)
    }

    /// Makes the volume `volume` the LUN `lun` of a target that has no such LUN.
    ///
    /// # Errors
    /// There is no such target, or its LUNs are written in no way that is known.
    pub fn add_lun(&mut self, target: &str, lun: u16, volume: &str) -> Result<(), EditError> {
        luns::add(self.target(target)?, lun, volume)
    }

    /// Removes a LUN of a target.
    ///
    /// # Errors
    /// There is no such target or LUN.
    pub fn remove_lun(&mut self, target: &str, lun: u16) -> Result<(), EditError> {
        let table = self.target(target)?;
        let missing = || EditError::Missing(format!("LUN {lun} of target {target}"));
        luns::remove(table, lun)?.then_some(()).ok_or_else(missing)
    }

    /// Lets initiators in to a target: adds entries to its list.
    ///
    /// # Errors
    /// There is no such target, or its list is none.
    pub fn allow(&mut self, target: &str, entries: &[String]) -> Result<(), EditError> {
        let table = self.target(target)?;
        access::close(table);
        access::allow(table, access::INITIATORS, entries)
    }

    /// Lets NVMe hosts in to a target: adds them to its list.
    ///
    /// # Errors
    /// There is no such target, or its list is none.
    pub fn allow_hosts(&mut self, target: &str, nqns: &[String]) -> Result<(), EditError> {
        access::allow(self.target(target)?, access::HOSTS, nqns)
    }

    /// Removes an NVMe host from a target's list, with its secrets.
    ///
    /// # Errors
    /// There is no such target or host.
    pub fn deny_host(&mut self, target: &str, nqn: &str) -> Result<(), EditError> {
        let missing = || EditError::Missing(format!("host \"{nqn}\" at target {target}"));
        access::deny(self.target(target)?, access::HOSTS, access::is_host(nqn))?
            .then_some(())
            .ok_or_else(missing)
    }

    /// Opens a target to everybody.
    ///
    /// # Errors
    /// There is no such target.
    pub fn open(&mut self, target: &str) -> Result<(), EditError> {
        access::open(self.target(target)?);
        Ok(())
    }

    /// Removes an entry of a target's list of initiators. The list stays, if need be empty.
    ///
    /// # Errors
    /// There is no such target or entry.
    pub fn deny(&mut self, target: &str, entry: &str) -> Result<(), EditError> {
        let missing = || EditError::Missing(format!("entry \"{entry}\" at target {target}"));
        access::deny(self.target(target)?, access::INITIATORS, access::is_initiator(entry))?
            .then_some(())
            .ok_or_else(missing)
    }

    /// Adds a user of a target, with these keys.
    ///
    /// # Errors
    /// There is no such target, or its users are written in no way that is known.
    pub fn add_user(&mut self, target: &str, keys: &[(&str, Value)]) -> Result<(), EditError> {
        let table = self.target(target)?;
        access::close(table);
        access::add_user(table, keys)
    }

    /// Gives a user of a target another secret: `key` says where it is, in place of what did so.
    ///
    /// # Errors
    /// There is no such target or user.
    pub fn set_secret(
        &mut self,
        target: &str,
        user: &str,
        key: (&str, Value),
    ) -> Result<(), EditError> {
        let missing = || no_user(user, target);
        access::set_secret(self.target(target)?, user, key)?.then_some(()).ok_or_else(missing)
    }

    /// Removes a user of a target, and the comment that stands right above it.
    ///
    /// # Errors
    /// There is no such target or user.
    pub fn remove_user(&mut self, target: &str, user: &str) -> Result<(), EditError> {
        let gone = access::remove_user(self.target(target)?, user)?;
        if let Some(table) = gone.ok_or_else(|| no_user(user, target))? {
            comments::keep_above(&mut self.document, &table);
        }
        Ok(())
    }

    fn target(&mut self, name: &str) -> Result<&mut dyn TableLike, EditError> {
        let found: Option<&mut dyn TableLike> = match self.document.get_mut("target") {
            Some(Item::ArrayOfTables(targets)) => targets
                .iter_mut()
                .find(|table| is_named(*table, name))
                .map(|table| table as &mut dyn TableLike),
            Some(Item::Value(Value::Array(targets))) => targets
                .iter_mut()
                .filter_map(Value::as_inline_table_mut)
                .find(|table| is_named(*table, name))
                .map(|table| table as &mut dyn TableLike),
            _ => None,
        };
        found.ok_or_else(|| no_target(name))
    }
}

/// A size as people write it: in the largest unit that says it exactly.
pub fn size(bytes: u64) -> Value {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let exact = |n: &usize| bytes > 0 && bytes % (1 << (10 * (n + 1))) == 0;
    match (0..UNITS.len()).rev().find(exact) {
        Some(n) => format!("{}{}", bytes >> (10 * (n + 1)), UNITS[n]).into(),
        None => i64::try_from(bytes).unwrap_or(i64::MAX).into(),
    }
}

fn is_named(table: &dyn TableLike, name: &str) -> bool {
    table.get("name").and_then(Item::as_str) == Some(name)
}

/// Removes one entry of an array, with the comment lines right above it and the comment behind it.
fn remove_entry(array: &mut Array, at: usize) {
    let above = comments::prefix(array.remove(at).decor());
    let next = match array.get(at) {
        Some(next) => comments::prefix(next.decor()),
        None => array.trailing().as_str().unwrap_or_default().to_owned(),
    };
    let Some(text) = comments::between(&above, &next) else { return };
    match array.get_mut(at) {
        Some(next) => next.decor_mut().set_prefix(text),
        None => array.set_trailing(text),
    }
}

/// Removes one value of an array. Comments before it go to its successor.
fn remove_from(array: &mut Array, at: usize) {
    let gone = array.remove(at);
    let before = comments::prefix(gone.decor());
    if !before.contains('#') {
        return;
    }
    if let Some(next) = array.get_mut(at) {
        let joined = comments::joined(&before, &comments::prefix(next.decor()));
        next.decor_mut().set_prefix(joined);
    } else {
        let joined = comments::joined(&before, array.trailing().as_str().unwrap_or_default());
        array.set_trailing(joined);
    }
}

fn no_volume(name: &str) -> EditError {
    EditError::Missing(format!("volume \"{name}\""))
}

fn no_user(user: &str, target: &str) -> EditError {
    EditError::Missing(format!("user \"{user}\" of target {target}"))
}

fn no_target(name: &str) -> EditError {
    EditError::Missing(format!("target {name}"))
}

/// Visits the values below a table whose keys are some of these, each with the trail of keys and names that leads to it.
fn each(
    table: &mut dyn TableLike,
    trail: &str,
    is: fn(&str) -> bool,
    visit: &mut dyn FnMut(&str, &mut Value),
) {
    let own = table.get("name").or(table.get("nqn")).and_then(Item::as_str);
    let trail = format!("{trail}/{}", own.unwrap_or_default());
    for (key, item) in table.iter_mut() {
        let trail = format!("{trail}/{}", key.get());
        match item {
            Item::Value(value) if is(key.get()) => visit(&trail, value),
            Item::Value(value) => within(value, &trail, is, visit),
            Item::Table(table) => each(table, &trail, is, visit),
            Item::ArrayOfTables(tables) => {
                tables.iter_mut().for_each(|table| each(table, &trail, is, visit));
            }
            Item::None => {}
        }
    }
}

fn within(
    value: &mut Value,
    trail: &str,
    is: fn(&str) -> bool,
    visit: &mut dyn FnMut(&str, &mut Value),
) {
    match value {
        Value::InlineTable(table) => each(table, trail, is, visit),
        Value::Array(array) => array.iter_mut().for_each(|value| within(value, trail, is, visit)),
        _ => {}
    }
}

/// Puts something else there; what stands around it stays.
fn cover(value: &mut Value, text: &str) {
    let decor = value.decor().clone();
    *value = text.into();
    *value.decor_mut() = decor;
}
