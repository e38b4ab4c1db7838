//! Who may log in to a target: initiators and users come and go.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lunet_api::{Code, Done, NewSecret, NewUser, SessionChange, SessionFate};
use lunet_files as files;
use lunet_front_iscsi::Objection;
use lunet_iscsi::chap::Algorithms;
use lunet_os::fs;
use toml_edit::{Array, Value};
use zeroize::Zeroizing;

use super::audience::{audience, deserted, gainers, losers, reached, still_listed};
use super::effects::{Consent, Weighed};
use super::sessions::concerning;
use super::{Manager, Served, done};
use crate::exposure;
use crate::trouble::{At, refuse};
use lunet_config::access::{Login, Source, check_secret, initiators_of};
use lunet_config::edit::{EditError, Editor};
use lunet_config::secrets;
use lunet_config::{Hosts, Reach, Target};

/// The directory of secrets that were given to a command, in the data directory.
const SECRETS: &str = "secrets";

impl Manager {
    /// Lets initiators in to a target.
    pub(super) fn allow(
        &self,
        now: &Served,
        target: &str,
        entries: &[String],
        consent: Consent,
    ) -> Result<Done> {
        let found = now.target(target)?;
        let before = &found.access.initiators;
        let known = |text: &&String| initiators_of(text).is_some_and(|one| before.lists(&one));
        let mut fresh: Vec<String> = entries.iter().filter(|text| !known(text)).cloned().collect();
        fresh.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
        if fresh.is_empty() {
            return Ok(done(format!("target {target} is for {} already", audience(found))));
        }
        self.granted(now, consent, target, |editor| editor.allow(target, &fresh))
    }

    /// Lets everybody in to a target that names nobody.
    pub(super) fn open_target(&self, now: &Served, target: &str) -> Result<Done> {
        let found = now.target(target)?;
        match found.reach() {
            Reach::Named => {
                return refuse(
                    Code::Unsupported,
                    format!(
                        "target {target} is for {}: only one that names nobody can be opened",
                        audience(found)
                    ),
                    "take `initiators` and users out of the configuration first, with `lunet config apply`",
                );
            }
            // With --open, the configuration says nothing of it yet.
            Reach::Everybody if !self.options.open => {
                return Ok(done(format!("target {target} is open to everybody already")));
            }
            Reach::Everybody | Reach::ThisMachine => {}
        }
        let next = self.edited_at(now, target, Consent::default(), |editor| editor.open(target))?;
        let warnings = exposure::news(&now.plan.config, &next.plan.config);
        let mut done = self.rules_changed(now, next, target)?;
        done.notes.extend(warnings);
        Ok(done)
    }

    /// Lets initiators in no more.
    pub(super) fn deny(
        &self,
        now: &Served,
        target: &str,
        entries: &[String],
        consent: Consent,
    ) -> Result<Done> {
        let found = now.target(target)?;
        let before = &found.access.initiators;
        if before.is_everybody() {
            return refuse(
                Code::Unsupported,
                format!("target {target} is for {}", reached(found)),
                format!(
                    "name who may log in with `lunet target allow {target} INITIATOR`, and no others may"
                ),
            );
        }
        for text in entries {
            if !initiators_of(text).is_some_and(|one| before.lists(&one)) {
                return refuse(
                    Code::NotFound,
                    format!(
                        "\"{text}\" is not in the list of target {target}, which is for {}",
                        reached(found)
                    ),
                    "`lunet target list` shows the entries",
                );
            }
        }
        let meant = Consent { force: true, ..consent };
        let next = self.edited_at(now, target, meant, |editor| {
            entries.iter().try_for_each(|entry| editor.deny(target, entry))
        })?;
        let then = next.target(target)?;
        if let (Some(who), false) = (gainers(before, &then.access.initiators), consent.force) {
            return refuse(
                Code::ChangesAccess,
                format!(
                    "target {target} would be for {}, which lets in {who}: names and addresses of a list work together",
                    audience(then)
                ),
                "take the others out of it as well, or use --force",
            );
        }
        let still = still_listed(entries, &then.access.initiators);
        let mut done = self.rules_changed(now, next, target)?;
        if !still.is_empty() {
            done.notes.push(format!("still in its list: {}", still.join(", ")));
        }
        Ok(done)
    }

    /// Adds a user of a target, or gives one another secret.
    pub(super) fn add_user(
        &self,
        now: &Served,
        target: &str,
        new: &NewUser,
        consent: Consent,
    ) -> Result<Done> {
        let rules = &now.target(target)?.access;
        let old = rules.users.iter().find(|user| user.login.name == new.name);
        let name = &new.name;
        match old {
            Some(_) if !new.replace => {
                return refuse(
                    Code::Exists,
                    format!("target {target} has a user \"{name}\" already"),
                    "give it another secret with --replace",
                );
            }
            None if new.replace => {
                return refuse(
                    Code::NotFound,
                    format!("target {target} has no user \"{name}\""),
                    "leave --replace out to add it",
                );
            }
            Some(_) if !new.initiators.is_empty() => {
                return refuse(
                    Code::Invalid,
                    "--replace changes the secret alone",
                    "leave --initiator out",
                );
            }
            _ => {}
        }
        let (secret, kept) = self.place_of_secret(now, target, new)?;
        let list: Array = new.initiators.iter().map(String::as_str).collect();
        let mut keys = vec![("name", Value::from(name.as_str())), secret.clone()];
        keys.extend((!list.is_empty()).then(|| ("initiators", list.into())));
        let edit = |editor: &mut Editor| match old {
            Some(_) => editor.set_secret(target, name, secret),
            None => editor.add_user(target, &keys),
        };
        let done = match old {
            // Who has proved to know the old secret is shut out, as is meant.
            Some(_) => {
                let consent = Consent { force: true, ..consent };
                self.edited_at(now, target, consent, edit)
                    .and_then(|next| self.rules_changed(now, next, target))
            }
            None => self.granted(now, consent, target, edit),
        };
        match &done {
            Ok(_) => old.iter().for_each(|user| forget(now, &user.login)),
            Err(_) => kept.iter().for_each(Kept::forget),
        }
        done
    }

    /// Removes a user of a target.
    pub(super) fn remove_user(
        &self,
        now: &Served,
        target: &str,
        name: &str,
        consent: Consent,
    ) -> Result<Done> {
        let found = now.target(target)?;
        let rules = &found.access;
        let Some(user) = rules.users.iter().find(|user| user.login.name == name) else {
            return refuse(
                Code::NotFound,
                format!("target {target} has no user \"{name}\""),
                "`lunet target user list` shows them",
            );
        };
        if rules.users.len() == 1 && !consent.force {
            let mut without = found.clone();
            without.access.users.clear();
            return refuse(
                Code::ChangesAccess,
                format!(
                    "\"{name}\" is the only user of target {target}: without it nobody is asked for CHAP, and the target is for {}",
                    reached(&without)
                ),
                "add another user first, or use --force",
            );
        }
        if rules.users.len() == 1 && (rules.mutual.is_some() || rules.algorithms != Algorithms::ALL)
        {
            return refuse(
                Code::LastOne,
                format!(
                    "\"{name}\" is the only user of target {target}, whose `mutual` and `chap-algorithms` mean nothing without one"
                ),
                "take them out of the configuration first",
            );
        }
        let consent = Consent { force: true, ..consent };
        let next =
            self.edited_at(now, target, consent, |editor| editor.remove_user(target, name))?;
        let done = self.rules_changed(now, next, target)?;
        forget(now, &user.login);
        Ok(done)
    }

    /// Carries out what is to let somebody in. That it shuts others out may be a surprise: it is said, and
    /// asked for, before it happens.
    fn granted(
        &self,
        now: &Served,
        consent: Consent,
        target: &str,
        edit: impl FnOnce(&mut Editor) -> Result<(), EditError>,
    ) -> Result<Done> {
        let next = self.edited_at(now, target, consent, edit)?;
        let (was, is) = (now.target(target)?, next.target(target)?);
        let mut ends = next.sessions.iter().filter(|one| one.fate == SessionFate::Ends);
        let would = format!("target {target} would be for {}", audience(is));
        let told = consent.force || consent.keep_sessions;
        if let (Some(one), false) = (ends.next(), consent.force) {
            let more = match ends.count() {
                0 => String::new(),
                n => format!(" (and {n} more like it)"),
            };
            return refuse(
                Code::ChangesAccess,
                format!("{would}, and {one}{more}"),
                format!(
                    "{}end it with --force, or leave it with --keep-sessions",
                    if could_be_let_in(one) { "let it in as well, " } else { "" }
                ),
            );
        }
        if let (Some(who), false) = (losers(was, is), told) {
            let both =
                if is_mixed(is) { "names and addresses of a list work together; " } else { "" };
            let step = match was.access.users.len() == is.access.users.len() {
                true => "name all who are to log in",
                false => "give them this name and secret",
            };
            return refuse(
                Code::ChangesAccess,
                format!("{would}, which shuts out {who}"),
                format!("{both}{step}, or use --force"),
            );
        }
        let alone =
            deserted(is, &next.plan.config).filter(|_| deserted(was, &now.plan.config).is_none());
        if let (Some(why), false) = (alone, consent.force) {
            return refuse(
                Code::ChangesAccess,
                format!("{would}, and nobody could log in: {why}"),
                "let in somebody who can come, serve another address with `lunet portal add`, or use --force",
            );
        }
        let local = was.reach() == Reach::ThisMachine && !is.access.initiators.is_everybody();
        let entry = own_entry(is);
        let shut = was.access.open && !is.access.open;
        let mut done = self.rules_changed(now, next, target)?;
        if shut {
            done.notes.push(format!(
                "it is not open to everybody any more: `open` is false in {}",
                self.place_of_rules(target)
            ));
        }
        if local {
            done.notes.push(format!(
                "until now it was for this machine alone: who logs in from here must be in the list, too: {}",
                entry
            ));
        }
        Ok(done)
    }

    /// Where the rules of a target are written.
    fn place_of_rules(&self, target: &str) -> String {
        match self.now().plan.shared_with(target) {
            Some(shared) => format!("the configuration of group {}", shared.group),
            None => self.file.display().to_string(),
        }
    }

    fn rules_changed(&self, now: &Served, next: Weighed, target: &str) -> Result<Done> {
        let sessions = next.sessions.clone();
        self.commit(now, next, now.open.clone())?;
        let now = self.now();
        let found = now.target(target)?;
        let mut done = done(format!("target {target} is for {}", audience(found)));
        if is_mixed(found) {
            done.notes.push(
                "names and addresses of a list work together: an initiator must have one of the names \
                 and come from one of the addresses"
                    .to_owned(),
            );
        }
        if let Some(why) = deserted(found, &now.plan.config) {
            let back = match (found.access.initiators.is_nobody(), now.plan.shared_with(target)) {
                (true, None) => format!(
                    ", or take `initiators` out of {} and run `lunet config apply`: then it is for this \
                     machine alone, or as its users and `open` say",
                    self.file.display()
                ),
                (true, Some(shared)) => format!(
                    ", or take `initiators` out of what its gateways share with `lunet group config {} --edit`: then it is as \
                     its users and `open` say",
                    shared.group
                ),
                (false, _) => String::new(),
            };
            done.notes.push(format!(
                "nobody can log in to it, as {why}: let somebody in with `lunet target allow {target} \
                 INITIATOR`{back}"
            ));
        }
        let over_nvme = now.plan.config.nvme.of_target(target);
        if over_nvme.is_some_and(|found| found.hosts == Hosts::Named(Vec::new())) {
            done.notes.push(format!(
                "over NVMe nobody may connect to it, as it names no hosts: `lunet target allow {target} HOSTNQN` lets one in"
            ));
        }
        Ok(concerning(done, sessions))
    }

    /// The key and value that say what the secret of a user is, and the file that has it. What gateways share has the secret
    /// itself, as it has no files.
    fn place_of_secret(
        &self,
        now: &Served,
        target: &str,
        new: &NewUser,
    ) -> Result<((&'static str, Value), Option<Kept>)> {
        if now.plan.shared_with(target).is_some() {
            let text = match &new.secret {
                NewSecret::File(path) => secrets::text_of_file(path)?,
                NewSecret::Text(text) => Zeroizing::new(text.text().to_owned()),
            };
            is_secret(&text)?;
            return Ok((("secret", Value::from(text.as_str())), None));
        }
        let kept = self.keep_secret(now, &new.name, &new.secret)?;
        // Relative paths start at the configuration: a directory that has both may move.
        let beside = std::path::absolute(files::parent(&self.file)).unwrap_or_default();
        let path = kept.path.strip_prefix(&beside).unwrap_or(&kept.path);
        let path = path.to_str().context("the path is not UTF-8 text")?;
        Ok((("secret-file", Value::from(path)), Some(kept)))
    }

    /// Keeps a secret that was given to a command in a file of its own. The configuration says which.
    fn keep_secret(&self, now: &Served, user: &str, secret: &NewSecret) -> Result<Kept> {
        let text = match secret {
            NewSecret::File(path) => {
                return Ok(Kept { path: path.clone(), ours: false });
            }
            NewSecret::Text(text) => text,
        };
        is_secret(text.text())?;
        let directory = std::path::absolute(now.plan.data.join(SECRETS));
        let directory = directory.context("cannot tell where files are")?;
        files::make_directory(&directory, 0o700).at("make", &directory)?;
        let path = directory.join(file_name(user)?);
        let write = || -> std::io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let file = fs::open(&path, &options)?;
            fs::write(&file, text.text().as_bytes())?;
            fs::write(&file, b"\n")?;
            fs::sync(&file)?;
            files::sync_parent(&path)
        };
        let kept = Kept { path: path.clone(), ours: true };
        match write() {
            Ok(()) => Ok(kept),
            Err(error) => {
                kept.forget();
                Err(error).at("write", &path)
            }
        }
    }
}

/// Refuses what was given as a secret and is none.
fn is_secret(text: &str) -> Result<()> {
    if let Err(why) = check_secret(text.len()) {
        return refuse(Code::Invalid, format!("what was given {why}"), "give another one");
    }
    if text.contains(['\n', '\r']) {
        let text = "what was given has more than one line: a secret is one";
        return refuse(Code::Invalid, text, "");
    }
    Ok(())
}

/// True if a longer list helps a session that ends. It helps none whose portal is gone, or who has proved too little.
fn could_be_let_in(session: &SessionChange) -> bool {
    [Objection::Initiator, Objection::Closed].iter().any(|why| session.why == why.to_string())
}

/// True if the list has both names and addresses.
fn is_mixed(target: &Target) -> bool {
    let list = &target.access.initiators;
    !list.names().is_empty() && !list.networks().is_empty()
}

/// How this machine comes into the list of a target. Names and addresses work together: where there is one kind alone,
/// an entry of the other one would shut out those who are there.
fn own_entry(target: &Target) -> String {
    let name = "its initiator's name (`/etc/iscsi/initiatorname.iscsi`)";
    let allow = format!("`lunet target allow {}", target.name);
    let list = &target.access.initiators;
    match (list.names().is_empty(), list.networks().is_empty()) {
        (false, true) => format!("{allow} NAME` with {name}"),
        (true, _) => format!("{allow} 127.0.0.1`"),
        (false, false) => format!("{allow} 127.0.0.1 NAME` with {name}"),
    }
}

/// Where a secret is.
struct Kept {
    path: PathBuf,
    /// The file was made for this change.
    ours: bool,
}

impl Kept {
    /// The change does not come.
    fn forget(&self) {
        if self.ours {
            remove(&self.path);
        }
    }
}

/// A name that no other secret has: one change of a user's secret has another file than the next, so
/// that the configuration alone says which counts.
fn file_name(user: &str) -> Result<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let user: String = user.chars().map(plain).take(64).collect();
    let mut random = [0; 8];
    lunet_os::random::fill(&mut random).context("cannot get random numbers")?;
    Ok(format!("{user}-{:016x}.secret", u64::from_ne_bytes(random)))
}

/// Removes a secret that no user has any more, if a command has made its file.
fn forget(now: &Served, login: &Login) {
    let Source::Read { file: Some(path), .. } = &login.secret else { return };
    let ours = std::path::absolute(now.plan.data.join(SECRETS));
    let Ok(path) = std::path::absolute(path) else { return };
    if ours.is_ok_and(|ours| files::parent(&path) == ours) {
        remove(&path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = files::remove(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}
