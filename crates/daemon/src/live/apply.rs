//! The configuration file was changed by hand: what it says now is served from now on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use lunet_api::{Code, Difference, Done, Preview};
use toml::{Table, Value};
use zeroize::Zeroizing;

use super::differences::differences;
use super::effects::{Consent, Weighed};
use super::journal::Entry;
use super::served::Open;
use super::sessions::concerning;
use super::snapshots::HOLD;
use super::volumes::traces;
use super::{Manager, Served, done, portals, storage};
use crate::opening::{self, Failure, How, Kind, Unserved};
use crate::plan::{self, Plan};
use crate::trouble::refuse;
use crate::{exposure, failures, record, serve};
use lunet_config::units;
use lunet_config::{self as config, Backend, Config, Volume};
use lunet_files::{self as files, Found};

/// How consent is given to what hurts sessions.
const FORCE: &str = "run `lunet config apply --force`";

/// Keys of a volume that are looked at one by one.
const KNOWN: &[&str] = &[
    "backend",
    "path",
    "size",
    "block-size",
    "threshold",
    "write-cache",
    "iops",
    "bandwidth",
    "burst",
    "weight",
    "latency-target",
];

/// What becomes of a volume that is in the old and the new configuration.
pub(super) enum Fate {
    /// It is as it was, or changes without its storage.
    Stays,
    /// It gets this size, in bytes.
    Grows(u64),
}

/// The next configuration, looked at and found possible.
struct Wanted {
    next: Plan,
    fates: Vec<(Volume, Option<Fate>)>,
    entries: Vec<Entry>,
    differences: Vec<Difference>,
    notes: Vec<String>,
}

impl Manager {
    pub(super) fn apply(&self, now: &Served, consent: Consent) -> Result<Done> {
        let file = self.file.display();
        let Some(wanted) = self.wanted(now)? else {
            let notes = unsound(now);
            return Ok(Done { notes, ..done(format!("{file} is already in effect")) });
        };
        let Wanted { next, fates, entries, differences, mut notes } = wanted;
        let next = self.weigh(now, next, consent, FORCE)?;
        let Weighed { plan: next, sessions, keep_sessions } = next;
        self.noted(now, entries, || {
            let (mut open, mut unserved) = (BTreeMap::new(), BTreeMap::new());
            for (volume, fate) in fates {
                let name = volume.name.clone();
                match self.carry_out(now, volume.clone(), fate, &next) {
                    Ok(opened) => drop(open.insert(name, opened)),
                    Err(error) => {
                        let one = still_unserved(now, &volume, &next, error)?;
                        drop(unserved.insert(name, one));
                    }
                }
            }
            let next = Served { unserved, ..now.with(next, open) };
            self.adopt(next.keeping(keep_sessions), None)
        })?;
        self.settle_caches(now);
        let next = self.now();
        notes.extend(next.unserved.values().map(|one| format!("not served: {}", one.failure)));
        notes.extend(unsound(&next));
        let back = now.unserved.keys().filter(|name| next.open.contains_key(*name));
        let back = back.map(|name| format!("volume {name} is served"));
        let news = differences.iter().map(ToString::to_string).chain(back);
        let words: Vec<String> = [format!("{file} is in force")].into_iter().chain(news).collect();
        Ok(concerning(Done { notes, ..done(words.join("; ")) }, sessions))
    }

    /// What [`apply`](Self::apply) would do.
    ///
    /// # Errors
    /// The file is wrong, or says what cannot change.
    pub(super) fn preview_apply(&self, force: bool, keep_sessions: bool) -> Result<Preview> {
        let now = self.now();
        let wanted = self.wanted(&now)?;
        self.preview_wanted(&now, Consent { force, keep_sessions }, wanted)
    }

    /// What a configuration with this text would do.
    ///
    /// # Errors
    /// The text is wrong, or says what cannot change.
    pub(super) fn preview_text(&self, now: &Served, text: Zeroizing<String>) -> Result<Preview> {
        let wanted = self.wanted_by(now, text)?;
        self.preview_wanted(now, Consent::default(), wanted)
    }

    fn preview_wanted(
        &self,
        now: &Served,
        consent: Consent,
        wanted: Option<Wanted>,
    ) -> Result<Preview> {
        let file = self.file.display().to_string();
        let Some(wanted) = wanted else {
            return Ok(Preview { file, notes: unsound(now), ..Preview::default() });
        };
        let Wanted { next, fates, differences, mut notes, .. } = wanted;
        notes.extend(unsound(now));
        notes.extend(fates.iter().filter_map(|(volume, _)| {
            Some(tried_again(volume, now.unserved.get(&volume.name)?, &next))
        }));
        let (sessions, refused) = self.foretell(now, &next, consent, FORCE)?;
        let portals = || self.foresee_portals(&next).err().map(|error| format!("{error:#}"));
        let refused = refused.map(|refused| refused.to_string()).or_else(portals);
        Ok(Preview { file, changes: differences, notes, sessions, refused })
    }

    /// Reads the file and finds out what is to be done. `None`: it is in force already.
    fn wanted(&self, now: &Served) -> Result<Option<Wanted>> {
        let file = self.file.display();
        if now.plan.text.is_none() && matches!(files::look(&self.file), Found::Absent) {
            return refuse(
                Code::NotFound,
                format!(
                    "there is no configuration file {file}, so lunet serves its embedded default"
                ),
                "write one (`lunet config show` prints what is served), or change it by commands",
            );
        }
        self.wanted_by(now, plan::read_own(&self.file)?)
    }

    /// The same of a text.
    fn wanted_by(&self, now: &Served, text: Zeroizing<String>) -> Result<Option<Wanted>> {
        let file = self.file.display();
        let next = plan::of_text(&self.options, &self.file, text, now.plan.shared.clone())?;
        // The same text may lead to other secrets.
        let rules = |plan: &Plan| {
            let Config { targets, discovery, nvme, .. } = &plan.config;
            (targets.clone(), discovery.clone(), nvme.clone())
        };
        // Storage may have come back that was missing.
        let same = now.plan.text == next.text && rules(&now.plan) == rules(&next);
        if same && now.unserved.is_empty() {
            return Ok(None);
        }
        super::groups::check(now, &next)?;
        check_fixed(&now.plan, &next, self.nvme.handle().is_some())?;
        serve::check_tls(&next.config)?;
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
        let mut notes = after_a_restart(&now.plan, &next, &self.plan_text(now));
        notes.extend(next.config.notes.iter().map(|note| format!("{file}:{note}")));
        notes.extend(exposure::news(&now.plan.config, &next.config));
        let differences = differences(now, &next, &fates);
        Ok(Some(Wanted { next, fates, entries, differences, notes }))
    }

    fn carry_out(
        &self,
        now: &Served,
        config: Volume,
        fate: Option<Fate>,
        next: &Plan,
    ) -> Result<Open> {
        let (threshold, write_cache) = (config.threshold, config.write_cache);
        let mut open = match (fate, now.open.get(&config.name)) {
            (Some(Fate::Stays), Some(open)) => open.clone(),
            (Some(Fate::Grows(size)), Some(open)) => {
                let volume = storage::grow(open, &next.data, Some(size))?;
                open.with(storage::with_size(&open.config, size), volume)
            }
            _ => {
                let volume = opening::open(&config, &next.data, How::Make)?;
                Open::new(config, volume, &mut failures::Marks::of(&next.data))
            }
        };
        open.config.threshold = threshold;
        open.config.write_cache = write_cache;
        Ok(open)
    }

    /// Where the write cache has just been switched off, what was written before is made stable: nobody will
    /// flush it.
    fn settle_caches(&self, before: &Served) {
        for (name, open) in &self.now().open {
            let cached = before.open.get(name).is_some_and(|open| open.config.write_cache);
            if !cached || open.config.write_cache {
                continue;
            }
            // Nothing that began with the cache on is at the storage any more.
            let held = self.handle.hold(name, HOLD);
            let synced = open.volume.slow().sync();
            if let Err(error) = synced {
                open.not_stable(error.errno());
            }
            if held.is_err() || synced.is_err() {
                self.remark(format!(
                    "what was written to volume {name} before its write cache was switched off is not stable yet: \
                     `lunet volume list` says whether its storage has failed"
                ));
            }
        }
    }

    /// The text in force as a table.
    fn plan_text(&self, now: &Served) -> Table {
        Self::text(now).parse().unwrap_or_default()
    }
}

/// The volumes that are served although something is wrong with their storage, which no configuration fixes: a
/// file that was replaced, removed or cut short, a write-back that has failed. A sentence each.
fn unsound(now: &Served) -> Vec<String> {
    let wrong = |open: &Open| {
        let name = &open.config.name;
        if let Some(fault) = open.health.faults().first() {
            return Some(format!(
                "volume {name}: {}; `lunet volume list` says what to do",
                fault.cause
            ));
        }
        // What the monitor has not seen yet.
        let path = open.config.path(&now.plan.data)?;
        let error = storage::check_whole(open, &path).err()?;
        Some(format!("volume {name}: {error}; `lunet volume list` says more in a few seconds"))
    };
    now.open.values().filter_map(wrong).collect()
}

/// What would become of a volume that is not served, as far as it can be told beforehand.
fn tried_again(volume: &Volume, unserved: &Unserved, next: &Plan) -> String {
    let name = &volume.name;
    match (unserved.failure.kind, volume.path(&next.data), volume.size()) {
        (Kind::NotMade, Some(path), Some(size)) => format!(
            "volume {name} is not served: its file {} would be made, with {}",
            path.display(),
            units::exact_size(size)
        ),
        _ => format!("volume {name} is not served: it would be opened again"),
    }
}

/// A volume that could not be opened, which is no reason against the change if it was not served before either, or
/// if it is its storage that has failed.
fn still_unserved(
    now: &Served,
    volume: &Volume,
    next: &Plan,
    error: anyhow::Error,
) -> Result<Unserved> {
    let failure = error.downcast::<Failure>()?;
    if let (Some(_), Some(unserved)) = (&volume.group, now.unserved.get(&volume.name)) {
        // It is known how its group calls it.
        return Ok(unserved.clone());
    }
    if !failure.known && !now.unserved.contains_key(&volume.name) {
        return Err(failure.into());
    }
    Ok(Unserved::new(volume, &next.data, failure))
}

/// What the journal is to know about a volume of the new configuration.
///
/// # Errors
/// It cannot be told what is there.
fn note(now: &Served, volume: &Volume, fate: &Option<Fate>, next: &Plan) -> Result<Vec<Entry>> {
    let path = match (&volume.backend, volume.path(&next.data)) {
        (Backend::File { .. }, Some(path)) => path,
        _ => return Ok(Vec::new()),
    };
    Ok(match (fate, now.open.get(&volume.name)) {
        // A volume that was made before is not made again.
        (None, _) if record::path(&next.data, &volume.name).exists() => Vec::new(),
        (None, _) if storage::is_absent(&path)? => {
            vec![traces(volume, &next.data), Entry::Made { path, file: None }]
        }
        (None, _) => vec![traces(volume, &next.data)],
        (Some(Fate::Grows(to)), Some(open)) => {
            storage::grown(open, path, *to)?.into_iter().collect()
        }
        _ => Vec::new(),
    })
}

/// Refuses what a running server cannot change.
fn check_fixed(old: &Plan, new: &Plan, over_nvme: bool) -> Result<()> {
    portals::check(&old.config, &new.config)?;
    portals::check_nvme(&old.config, &new.config, over_nvme)?;
    for (key, same) in
        [("server.data", old.data == new.data), ("server.control-socket", old.socket == new.socket)]
    {
        if !same {
            return refuse(
                Code::NeedsRestart,
                format!("{key}: cannot change while lunet runs"),
                "restart it, or take that back",
            );
        }
    }
    Ok(())
}

/// What becomes of an open volume that is now configured as `new`.
pub(super) fn fate(open: &Open, new: &Volume, next: &Plan) -> Result<Fate> {
    let name = &new.name;
    let fixed = |key: &str| {
        refuse(
            Code::NeedsRestart,
            format!("volumes.{name}.{key}: cannot change while the volume is served"),
            "delete the volume and create it anew, restart lunet, or take that back",
        )
    };
    let (old, caps) = (&open.config, open.volume.caps());
    if std::mem::discriminant(&old.backend) != std::mem::discriminant(&new.backend) {
        return fixed("backend");
    }
    if old.path(&next.data) != new.path(&next.data) {
        return fixed("path");
    }
    if old.block_size != new.block_size && new.block_size != Some(caps.block_size) {
        return fixed("block-size");
    }
    match (&new.backend, new.size()) {
        (_, None) => Ok(Fate::Stays),
        (_, Some(size)) if size == caps.bytes() => Ok(Fate::Stays),
        (Backend::File { .. }, Some(size)) if size > caps.bytes() && !new.read_only => {
            Ok(Fate::Grows(size))
        }
        (Backend::File { .. }, Some(_)) => refuse(
            Code::Unsupported,
            format!(
                "volumes.{name}.size: the volume has {}, and volumes do not shrink",
                units::exact_size(caps.bytes())
            ),
            "take that back",
        ),
        _ => fixed("size"),
    }
}

/// What has changed and is only looked at when lunet starts.
fn after_a_restart(old: &Plan, new: &Plan, was: &Table) -> Vec<String> {
    let is: Table = new.text.as_ref().map_or("", |text| text.as_str()).parse().unwrap_or_default();
    let mut keys = Vec::new();
    if old.config.server != new.config.server {
        changed("server", was.get("server"), is.get("server"), &[], &mut keys);
    }
    if old.config.iscsi != new.config.iscsi {
        changed("iscsi", was.get("iscsi"), is.get("iscsi"), &[], &mut keys);
    }
    if old.config.control != new.config.control {
        changed("control", was.get("control"), is.get("control"), &[], &mut keys);
    }
    if old.config.sandbox != new.config.sandbox {
        changed("sandbox", was.get("sandbox"), is.get("sandbox"), &[], &mut keys);
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
