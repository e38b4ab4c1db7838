//! What the gateways of a failover group share, in the cluster: changed from here, or taken over from another gateway.
//!
//! A change from here counts when the cluster has it, which is the fifth step of [a change](super) then. One from elsewhere
//! counts already. Each is done while no other change is, and each is counted, so that what was read before the latest is known
//! to be old.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow};
use lunet_api::{Code, Done, GroupConfig, SessionChange, SessionFate};
use lunet_group::MAX_TEXT;
use zeroize::Zeroizing;

use super::effects::{Consent, Weighed, named, notes};
use super::sessions::concerning;
use super::{Manager, Served, counted, done, groups};
use crate::copies;
use crate::plan::{self, Plan, Wrong};
use crate::serve;
use crate::trouble::refuse;
use lunet_config::edit::{EditError, Editor};
use lunet_config::{Shared, image_of};

/// The clusters of the groups.
pub trait Clusters: Send + Sync {
    /// Sees whether a group can have these images, by their names in records.
    ///
    /// # Errors
    /// One is not there, or somebody uses it, or that is not known.
    fn look_at(&self, group: &str, images: Vec<String>) -> Result<()>;

    /// The revision of what a group shares that its cluster has now.
    ///
    /// # Errors
    /// It cannot be known from here.
    fn revision(&self, group: &str) -> Result<u64>;

    /// Writes what a group shares, in the place of the revision before.
    ///
    /// # Errors
    /// There is another revision, or it is not known whether it was written.
    fn write(&self, shared: &Shared) -> Result<()>;

    /// Has the owner of a group do something with one of its images, and waits for so long: its answer.
    ///
    /// # Errors
    /// Nothing was done, and nothing will be; or, with [`Code::NotAnswered`], that is not known.
    fn job(&self, group: &str, body: Vec<u8>, limit: Duration) -> Result<Vec<u8>>;

    /// Has the other gateways take it over, and waits for some seconds: what they say.
    fn tell(&self, shared: &Shared) -> Everywhere;
}

/// What gateways say to another configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Everywhere {
    /// A sentence each.
    pub said: Vec<String>,
    /// Each that there is serves by it.
    pub all: bool,
}

/// What a plan would change of what groups share: one at a time.
pub(super) fn changed<'p>(now: &Served, next: &'p Plan) -> Option<&'p Shared> {
    next.shared.iter().find(|one| !now.plan.shared.contains(one))
}

/// A revision changes what cannot change while lunet runs: the next start begins with it.
#[derive(Debug, thiserror::Error)]
#[error(
    "revision {0} changes what cannot change while lunet runs: restart this gateway to serve by it ({1})"
)]
struct AfterRestart(u64, String);

impl Manager {
    /// Says where the clusters of groups are reached, once.
    pub fn use_clusters(&self, clusters: Box<dyn Clusters>) {
        self.clusters.get_or_init(|| clusters);
    }

    /// Counts the changes of what groups share.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Sees whether what is known here is what the cluster has. Of a revision that is not in force any more, nobody can say what
    /// there is to change.
    pub(super) fn is_latest(&self, shared: &Shared) -> Result<()> {
        let Shared { group, revision, .. } = shared;
        let clusters = self.clusters.get().ok_or_else(|| anyhow!("no group runs yet"))?;
        let there = clusters.revision(group)?;
        if there == *revision {
            return Ok(());
        }
        refuse(
            Code::ChangedByHand,
            format!(
                "the configuration of group {group} was changed meanwhile: the cluster has revision {there}, and this gateway serves \
                 by {revision}"
            ),
            "try again in some seconds; `lunet group list` says if this gateway cannot take it over",
        )
    }

    /// The plan after an edit of the rules of a target, weighed: in the file, or in what its group shares.
    pub(super) fn edited_at(
        &self,
        now: &Served,
        target: &str,
        consent: Consent,
        edit: impl FnOnce(&mut Editor) -> Result<(), EditError>,
    ) -> Result<Weighed> {
        let shared = now.plan.shared_with(target);
        if let Some(shared) = shared.filter(|_| consent.keep_sessions) {
            return refuse(
                Code::Unsupported,
                format!(
                    "target {target} is that of group {}, whose other gateways keep no sessions",
                    shared.group
                ),
                "leave --keep-sessions out",
            );
        }
        self.edited_in(now, shared, consent, edit)
    }

    /// The plan after an edit of the file, or of what a group shares, weighed.
    pub(super) fn edited_in(
        &self,
        now: &Served,
        shared: Option<&Shared>,
        consent: Consent,
        edit: impl FnOnce(&mut Editor) -> Result<(), EditError>,
    ) -> Result<Weighed> {
        let Some(shared) = shared else { return self.edited(now, consent, edit) };
        let mut editor = Editor::new(&shared.text)?;
        edit(&mut editor)?;
        let (group, revision) = (shared.group.clone(), shared.revision + 1);
        let next = Shared { group, revision, text: Zeroizing::new(editor.text()) };
        fits(&next.text)?;
        let plan = self.plan_of(Self::text(now), now.plan.sharing(next))?;
        groups::check(now, &plan)?;
        self.weigh(now, plan, consent, "do it all the same with --force")
    }

    /// The moment that counts, for a change of what a group shares: writes it into the cluster, and lets the server take over.
    ///
    /// # Errors
    /// The server is not ready for it, or the cluster has not taken it: nothing has changed here then.
    pub(super) fn commit_shared(&self, next: Served, shared: &Shared) -> Result<()> {
        let clusters = self.clusters.get().ok_or_else(|| anyhow!("no group runs yet"))?;
        let next = next.for_groups();
        clusters.look_at(&shared.group, new_images(&self.now().plan, &next.plan, &shared.group))?;
        let prepared = self.prepare(&next)?;
        clusters.write(shared)?;
        self.conclude(prepared, next, None);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.keep_copy(shared);
        let told = clusters.tell(shared);
        self.incomplete.store(!told.all, Ordering::Release);
        self.remarks().extend(told.said);
        Ok(())
    }

    /// Keeps what a group shares for a start without its cluster.
    fn keep_copy(&self, shared: &Shared) {
        let group = &shared.group;
        if let Err(error) = copies::keep(&self.now().plan.data, shared) {
            self.remark(format!(
                "group {group}: a start without the cluster would begin with an earlier configuration, as this one cannot be kept: {error:#}"
            ));
        }
    }

    /// What a group shares, without its secrets.
    ///
    /// # Errors
    /// There is no such group, it shares nothing, or that is not known here yet.
    pub fn group_config(&self, group: &str) -> Result<GroupConfig> {
        let now = self.now();
        let shared = shared_of(&now, group)?;
        let mut editor = Editor::new(&shared.text)?;
        editor.hide_secrets();
        let text = copies::there(shared).head() + &editor.text();
        Ok(GroupConfig { revision: shared.revision, text })
    }

    /// Replaces what a group shares. A text that begins with the line of a revision, or is given with one, is refused if that is
    /// not the one in force. Secrets that were hidden are those in force.
    ///
    /// # Errors
    /// The text is wrong, or says what cannot change; or as [`commit_shared`](Self::commit_shared).
    pub fn set_group_config(
        &self,
        group: &str,
        (given, wanted): (&str, Option<u64>),
        force: bool,
    ) -> Result<Done> {
        let _one = self.begin(format!("a change of the configuration of group {group}"))?;
        let now = self.now();
        let current = shared_of(&now, group)?;
        self.is_latest(current)?;
        self.forget_remarks();
        let (text, of_text, before) = match lunet_group::split(given) {
            Err(why) => {
                return refuse(Code::Invalid, format!("the text cannot be used: {why}"), "");
            }
            Ok(Some((revision, text))) => (text, Some(revision), 1),
            Ok(None) => (given, None, 0),
        };
        [of_text, wanted].into_iter().flatten().try_for_each(|made_of| is_of(made_of, current))?;
        let text = revealed(text, &current.text);
        if *text == *current.text {
            let told = format!(
                "group {group} has this configuration already, as revision {}",
                current.revision
            );
            return Ok(done(told));
        }
        fits(&text)?;
        let revision = current.revision + 1;
        let next = Shared { group: group.to_owned(), revision, text };
        let plan =
            plan::of_text(&self.options, &self.file, Self::text(&now), now.plan.sharing(next));
        let plan = plan.map_err(|error| told_by_lines(error, group, before))?;
        groups::check(&now, &plan).map_err(not_stored)?;
        let consent = Consent { force, ..Consent::default() };
        let next = self.weigh(&now, plan, consent, "use --force")?;
        let sessions = next.sessions.clone();
        if !force {
            none_is_hurt(&sessions)?;
        }
        self.commit(&now, next, now.open.clone())?;
        let told = format!("revision {revision} of the configuration of group {group} is in force");
        let mut done = concerning(done(told), sessions);
        done.notes.extend(std::mem::take(&mut *self.remarks()));
        done.incomplete = self.incomplete.load(Ordering::Acquire);
        Ok(done)
    }

    /// What is remarked from now on is of another change.
    pub(super) fn forget_remarks(&self) {
        self.incomplete.store(false, Ordering::Release);
        self.remarks().clear();
    }

    /// Serves by what another gateway has written, if it is not in force already. `since`: the
    /// [`generation`](Self::generation) before it was read; false if there was a change since. Waits for a change that is
    /// under way.
    ///
    /// # Errors
    /// It cannot be served without a restart, or not at all.
    pub fn take_shared(&self, since: u64, shared: Shared) -> Result<bool> {
        if self.now().plan.shared.contains(&shared) {
            return Ok(true);
        }
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.generation() != since {
            return Ok(false);
        }
        match self.adopt_shared(&shared, Change::OfRules) {
            Ok(()) => Ok(true),
            Err(error) => {
                if error.is::<AfterRestart>() {
                    // The next start begins with it.
                    self.keep_copy(&shared);
                }
                Err(error)
            }
        }
    }

    /// Serves a group of which nothing was known until now: its target is there from now on, without LUNs, and belongs to
    /// nobody until its group begins.
    ///
    /// # Errors
    /// It cannot be served beside what this gateway serves.
    pub fn begin_sharing(&self, shared: &Shared) -> Result<()> {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.adopt_shared(shared, Change::FirstOne)
    }

    fn adopt_shared(&self, shared: &Shared, change: Change) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return refuse(Code::Stopping, "lunet is stopping", "");
        }
        let now = self.now();
        let all = now.plan.sharing(shared.clone());
        let plan = plan::of_text(&self.options, &self.file, Self::text(&now), all)?;
        if change == Change::OfRules {
            groups::check(&now, &plan)
                .map_err(|error| AfterRestart(shared.revision, format!("{error:#}")))?;
        }
        serve::check_tls(&plan.config)?;
        // Whoever has changed it has weighed it.
        let consent = Consent { force: true, keep_sessions: false };
        let Weighed { plan, sessions, .. } = self.weigh(&now, plan, consent, "")?;
        self.adopt(now.with(plan, now.open.clone()).for_groups(), None)?;
        self.generation.fetch_add(1, Ordering::AcqRel);
        let (group, revision) = (&shared.group, shared.revision);
        tracing::info!(group, "revision {revision} of the group's configuration is in force");
        notes(&sessions).iter().for_each(|told| tracing::warn!(group, "by this revision, {told}"));
        self.keep_copy(shared);
        self.forget_remarks();
        Ok(())
    }
}

/// Refuses a text that was made of another revision than that in force.
fn is_of(made_of: u64, current: &Shared) -> Result<()> {
    let Shared { group, revision, .. } = current;
    if made_of == *revision {
        return Ok(());
    }
    refuse(
        Code::ChangedByHand,
        format!(
            "the configuration of group {group} was changed meanwhile: it has revision {revision}, and this text was made of \
             revision {made_of}"
        ),
        format!("make your changes in what `lunet group config {group}` shows now"),
    )
}

/// Refuses a text by which sessions end or lose a LUN. A command that narrows one rule says whom it is to shut out; a whole text
/// does not.
fn none_is_hurt(sessions: &[SessionChange]) -> Result<()> {
    let hurt = sessions.iter().filter(|change| change.fate != SessionFate::Stays);
    let mut who: Vec<_> =
        hurt.map(|change| (change.session, &*change.initiator, &*change.peer)).collect();
    who.dedup_by_key(|(session, ..)| *session);
    if who.is_empty() {
        return Ok(());
    }
    let count = counted(who.len(), "session");
    let named = named(who.into_iter().map(|(_, initiator, peer)| (initiator, peer)));
    refuse(
        Code::InUse,
        format!("{count} here would end or lose a LUN ({named})"),
        "log out there first, or use --force",
    )
}

/// What another configuration is to this server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The group runs: what it is stays.
    OfRules,
    /// The group comes.
    FirstOne,
}

/// The images that a plan gives to a group, and the one before does not.
fn new_images(now: &Plan, next: &Plan, group: &str) -> Vec<String> {
    let images = |plan: &Plan| -> Vec<String> {
        let own = |volume: &&lunet_config::Volume| volume.group.as_deref() == Some(group);
        let volumes = plan.config.volumes.iter().filter(own);
        volumes.filter_map(|volume| Some(image_of(volume)?.plain())).collect()
    };
    let before = images(now);
    images(next).into_iter().filter(|image| !before.contains(image)).collect()
}

/// What a group shares.
fn shared_of<'s>(now: &'s Served, group: &str) -> Result<&'s Shared> {
    if let Some(found) = now.plan.shared.iter().find(|one| one.group == group) {
        return Ok(found);
    }
    let config = &now.plan.config;
    if config.pending.iter().any(|pending| pending.name == group) {
        return refuse(
            Code::NotServed,
            format!("the configuration of group {group} is not known here yet"),
            "`lunet group list` says why",
        );
    }
    match config.groups.iter().any(|other| other.name == group) {
        true => refuse(
            Code::Unsupported,
            format!("group {group} is configured in the file of each gateway"),
            "`lunet config show` shows this one's",
        ),
        false => refuse(
            Code::NotFound,
            format!("there is no group \"{group}\""),
            "`lunet group list` shows what there is",
        ),
    }
}

/// What cannot change while gateways run is not kept for later either: they would serve nothing until they are all restarted.
fn not_stored(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<lunet_api::Error>() {
        Ok(refused) => lunet_api::Error::new(refused.code, refused.message)
            .fix(
                "nothing was stored; to make such a change, stop all gateways of the group, remove the object of its configuration \
                 (docs/ceph.md), and write it anew with `lunet group create --shared`",
            )
            .into(),
        Err(error) => error,
    }
}

fn fits(text: &str) -> Result<()> {
    match text.len() > MAX_TEXT {
        true => refuse(
            Code::Invalid,
            format!(
                "the configuration of a group has at most {MAX_TEXT} bytes, and this has {}",
                text.len()
            ),
            "",
        ),
        false => Ok(()),
    }
}

/// A text with the secrets that were hidden when it was shown.
fn revealed(text: &str, known: &str) -> Zeroizing<String> {
    match (Editor::new(text), Editor::new(known)) {
        (Ok(mut editor), Ok(mut known)) => {
            editor.restore_secrets(&mut known);
            Zeroizing::new(editor.text())
        }
        // What is no TOML is told with its lines by whoever reads it next.
        _ => Zeroizing::new(text.to_owned()),
    }
}

/// Mistakes with their lines in the text of a group, which has so many lines before it.
fn told_by_lines(error: anyhow::Error, group: &str, before: usize) -> anyhow::Error {
    let wrong = match error.downcast::<Wrong>() {
        Ok(wrong) => wrong,
        Err(error) => return error,
    };
    let line = |(of, mistake): (&Option<String>, &lunet_config::Mistake)| match of {
        Some(other) if other == group => {
            let line = mistake.line + before;
            format!("line {}", lunet_config::Mistake { line, ..mistake.clone() })
        }
        _ => format!("beside the file of this gateway, line {mistake}"),
    };
    let lines: Vec<String> = wrong.groups.iter().zip(&wrong.mistakes).map(line).collect();
    lunet_api::Error::new(Code::Invalid, lines.join("; ")).into()
}
