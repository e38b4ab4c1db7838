//! The configuration file was changed by hand: what it says now is served from now on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use toml::{Table, Value};

use super::journal::Entry;
use super::served::Open;
use super::{Manager, Served, done, storage};
use crate::config::{self, Backend, Volume};
use crate::control::Done;
use crate::plan::{self, Plan};
use crate::{serve, units};
use lunet_target::files::{self, Found};

/// Keys of a volume that are looked at one by one.
const KNOWN: &[&str] = &["backend", "path", "size", "block-size", "threshold"];

/// What becomes of a volume that is in the old and the new configuration.
enum Fate {
    Stays,
    Grows(u64),
}

impl Manager {
    pub(super) fn apply(&self, now: &Served) -> Result<Done> {
        let file = self.file.display();
        if now.plan.text.is_none() && matches!(files::look(&self.file), Found::Absent) {
            bail!("there is no configuration file {file}: lunet serves its embedded default");
        }
        let text = plan::read_text(&self.file)?;
        let next = plan::of_text(&self.options, &self.file, text)?;
        // The same text may lead to other secrets.
        let rules = |plan: &Plan| (plan.config.targets.clone(), plan.config.discovery.clone());
        if now.plan.text == next.text && rules(&now.plan) == rules(&next) {
            return Ok(done(format!("{file} is in force already")));
        }
        check_fixed(&now.plan, &next)?;
        let old = self.plan_text(now);
        let mut done = done(String::new());
        let mut entries = Vec::new();
        let mut fates = Vec::new();
        for volume in &next.config.volumes {
            let fate = match now.open.get(&volume.name) {
                Some(open) => Some(fate(open, volume, &next)?),
                None => None,
            };
            entries.extend(note(now, volume, &fate, &next)?);
            fates.push((volume.clone(), fate));
        }
        done.notes = after_a_restart(&now.plan, &next, &old);
        done.notes.extend(next.config.notes.iter().map(|note| format!("{file}:{note}")));
        let mut news = regrouped(&now.plan, &next);
        self.noted(now, entries, || {
            let mut open = BTreeMap::new();
            for (volume, fate) in fates {
                let name = volume.name.clone();
                let opened = self.carry_out(now, volume, fate, &next, &mut news)?;
                open.insert(name, opened);
            }
            for (name, gone) in now.open.iter().filter(|(name, _)| !open.contains_key(*name)) {
                let place = gone.config.path(&now.plan.data);
                news.push(match place {
                    Some(path) => {
                        format!("volume {name} is gone, its data is still in {}", path.display())
                    }
                    None => format!("volume {name} is gone"),
                });
            }
            self.adopt(now.with(next, open), None)
        })?;
        news.insert(0, format!("{file} is in force"));
        done.done = news.join("; ");
        Ok(done)
    }

    fn carry_out(
        &self,
        now: &Served,
        config: Volume,
        fate: Option<Fate>,
        next: &Plan,
        news: &mut Vec<String>,
    ) -> Result<Open> {
        let (name, threshold) = (config.name.clone(), config.threshold);
        let mut open = match (fate, now.open.get(&name)) {
            (Some(Fate::Stays), Some(open)) => open.clone(),
            (Some(Fate::Grows(size)), Some(open)) => {
                news.push(format!("volume {name} has {} now", units::size(size)));
                let volume = storage::grow(open, &next.data, Some(size))?;
                open.with(storage::with_size(&open.config, size), volume)
            }
            _ => {
                news.push(format!("volume {name} is new"));
                let volume = serve::open(&config, &next.data)?;
                Open::new(config, volume)
            }
        };
        open.config.threshold = threshold;
        Ok(open)
    }

    /// The text in force as a table.
    fn plan_text(&self, now: &Served) -> Table {
        Self::text(now).parse().unwrap_or_default()
    }
}

/// What the journal is to know about a volume of the new configuration.
///
/// # Errors
/// It cannot be told what is there.
fn note(now: &Served, volume: &Volume, fate: &Option<Fate>, next: &Plan) -> Result<Option<Entry>> {
    let path = match (&volume.backend, volume.path(&next.data)) {
        (Backend::File { .. }, Some(path)) => path,
        _ => return Ok(None),
    };
    Ok(match (fate, now.open.get(&volume.name)) {
        (None, _) if storage::is_absent(&path)? => Some(Entry::Made { path, file: None }),
        (Some(Fate::Grows(to)), Some(open)) => storage::grown(open, path, *to)?,
        _ => None,
    })
}

/// Refuses what a running server cannot change.
fn check_fixed(old: &Plan, new: &Plan) -> Result<()> {
    let places = |plan: &Plan| {
        plan.config.portals.iter().map(|p| (p.address, p.tag, p.transports)).collect::<Vec<_>>()
    };
    if places(old) != places(new) {
        bail!("[[portal]]: portals change at a restart only: restart lunet, or take that back");
    }
    for (key, same) in
        [("server.data", old.data == new.data), ("server.control-socket", old.socket == new.socket)]
    {
        if !same {
            bail!("{key}: cannot change while lunet runs: restart it, or take that back");
        }
    }
    Ok(())
}

/// Says which portal groups have another state or preference.
fn regrouped(old: &Plan, new: &Plan) -> Vec<String> {
    let mut news = Vec::new();
    for (was, is) in old.config.portals.iter().zip(&new.config.portals) {
        if was != is {
            let preferred = if is.preferred { ", preferred" } else { "" };
            let state = config::state_word(is.group_state);
            news.push(format!("portal group {} is {state}{preferred} now", is.tag));
        }
    }
    news.dedup();
    news
}

/// What becomes of an open volume that is now configured as `new`.
fn fate(open: &Open, new: &Volume, next: &Plan) -> Result<Fate> {
    let name = &new.name;
    let fixed = |key: &str| {
        format!(
            "volumes.{name}.{key}: cannot change while the volume is served: delete the volume and \
             create it anew, restart lunet, or take that back"
        )
    };
    let (old, caps) = (&open.config, open.volume.caps());
    if std::mem::discriminant(&old.backend) != std::mem::discriminant(&new.backend) {
        bail!(fixed("backend"));
    }
    if old.path(&next.data) != new.path(&next.data) {
        bail!(fixed("path"));
    }
    if old.block_size != new.block_size && new.block_size != Some(caps.block_size) {
        bail!(fixed("block-size"));
    }
    match (&new.backend, new.size()) {
        (_, None) => Ok(Fate::Stays),
        (_, Some(size)) if size == caps.bytes() => Ok(Fate::Stays),
        (Backend::File { .. }, Some(size)) if size > caps.bytes() && !new.read_only => {
            Ok(Fate::Grows(size))
        }
        (Backend::File { .. }, Some(_)) => bail!(
            "volumes.{name}.size: the volume has {}, and volumes do not shrink: take that back",
            units::size(caps.bytes())
        ),
        _ => bail!(fixed("size")),
    }
}

/// What has changed and is only looked at when lunet starts.
fn after_a_restart(old: &Plan, new: &Plan, was: &Table) -> Vec<String> {
    let is: Table = new.text.as_deref().unwrap_or_default().parse().unwrap_or_default();
    let mut keys = Vec::new();
    if old.config.server != new.config.server {
        changed("server", was.get("server"), is.get("server"), &[], &mut keys);
    }
    if old.config.iscsi != new.config.iscsi {
        changed("iscsi", was.get("iscsi"), is.get("iscsi"), &[], &mut keys);
    }
    for volume in &new.config.volumes {
        let name = &volume.name;
        if old.config.volumes.iter().any(|other| other.name == *name && other != volume) {
            let of = |table: &'_ Table| table.get("volumes").and_then(|v| v.get(name)).cloned();
            let path = format!("volumes.{name}");
            changed(&path, of(was).as_ref(), of(&is).as_ref(), KNOWN, &mut keys);
        }
    }
    keys.into_iter().map(|key| format!("{key} takes effect after a restart")).collect()
}

/// Adds the keys of a table that are not what they were, but for those in `known`.
fn changed(
    path: &str,
    was: Option<&Value>,
    is: Option<&Value>,
    known: &[&str],
    out: &mut Vec<String>,
) {
    let tables = [was, is].map(|value| value.and_then(Value::as_table));
    let names: BTreeSet<&String> = tables.iter().flatten().flat_map(|table| table.keys()).collect();
    for name in names {
        let [was, is] = tables.map(|table| table.and_then(|table| table.get(name)));
        let retired = config::schema::retired(&format!("[{path}]"), name).is_some();
        if was != is && !retired && !known.contains(&name.as_str()) {
            out.push(format!("{path}.{name}"));
        }
    }
}
