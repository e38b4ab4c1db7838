//! Changes of the images of failover groups. The owner of a group makes them, as it has their locks; the gateway that was asked
//! passes them on to it, and tells what became of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow};
use lunet_api::{Change, Code, Done};
use lunet_backends::rbd;
use lunet_gateway::MAX_BODY;
use lunet_volume::Cause;
use serde::{Deserialize, Serialize};

use super::snapshots::{self, HOLD};
use super::{Manager, Served, done};
use crate::trouble::{self, refuse};
use lunet_config::units;
use lunet_config::{self as config, image_of};

/// How long the owner has for a change that is no copy of data.
const SOON: Duration = Duration::from_secs(30);
/// And for a rollback, in which the cluster copies: less than a client of this server waits.
const LATE: Duration = Duration::from_secs(3300);
/// How long this gateway waits until it serves another size, which takes a pause as for a planned move, and some seconds more
/// where a gateway has just died.
const FOLLOWS: Duration = Duration::from_secs(15);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);
/// The longest error that an owner tells, in characters.
const MOST: usize = 800;

/// A change of an image, as gateways tell each other of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    /// The gateway that was asked.
    by: u16,
    /// The image, as records have it: gateways may call its volume by different names.
    image: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum What {
    Snapshot {
        name: String,
    },
    DeleteSnapshot {
        name: String,
    },
    Rollback {
        name: String,
        /// Although sessions use the volume.
        force: bool,
    },
    Resize {
        /// `None`: the owner looks at the size that it has.
        bytes: Option<u64>,
    },
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    /// The owner.
    gateway: u16,
    /// The size of the image, in bytes.
    bytes: u64,
    /// What the user should know besides.
    notes: Vec<String>,
    /// Why it was not done.
    error: Option<lunet_api::Error>,
}

/// How far a rollback has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It begins: whoever owns the group next does not serve the volume, unless it has ended.
    Begun,
    /// It has ended.
    Done,
    /// It has failed: the content is anything between both.
    Failed,
}

/// What of the owner of a group its changes need.
pub trait Owner {
    /// It looks at the sizes of its images, and has the group follow.
    fn look_at_sizes(&self);

    /// A rollback of that image is under way, or is over.
    fn rolls(&self, image: &str, rolls: bool);

    /// The record of the group says this of the image when it returns.
    ///
    /// # Errors
    /// It says something else: the gateway owns the group no more, or the volume is sanitized.
    fn mark(&self, image: &str, mark: Mark) -> Result<()>;
}

/// A rollback of an image is under way until this is dropped.
struct Rolls<'o> {
    owner: &'o dyn Owner,
    image: &'o str,
}

impl<'o> Rolls<'o> {
    fn new(owner: &'o dyn Owner, image: &'o str) -> Self {
        owner.rolls(image, true);
        Self { owner, image }
    }
}

impl Drop for Rolls<'_> {
    fn drop(&mut self) {
        self.owner.rolls(self.image, false);
    }
}

/// The volume that a change is about, and what its owner is to do, if that is the owner's.
fn job_of(change: &Change) -> Option<(&str, What)> {
    Some(match change {
        Change::CreateSnapshot { volume, snapshot } => {
            (volume, What::Snapshot { name: snapshot.clone() })
        }
        Change::DeleteSnapshot { volume, snapshot } => {
            (volume, What::DeleteSnapshot { name: snapshot.clone() })
        }
        Change::Rollback { volume, snapshot, force } => {
            (volume, What::Rollback { name: snapshot.clone(), force: *force })
        }
        Change::ResizeVolume { name, size } => (name, What::Resize { bytes: *size }),
        _ => return None,
    })
}

impl What {
    const fn limit(&self) -> Duration {
        match self {
            Self::Rollback { .. } => LATE,
            _ => SOON,
        }
    }

    /// What was done.
    fn told(&self, volume: &str, answer: &Answer) -> String {
        match self {
            Self::Snapshot { name } => {
                format!("{volume}@{name} keeps what volume {volume} holds now")
            }
            Self::DeleteSnapshot { name } => format!("the snapshot {volume}@{name} is gone"),
            Self::Rollback { name, .. } => {
                format!("volume {volume} holds what {volume}@{name} holds")
            }
            Self::Resize { .. } => {
                format!("volume {volume} has {}", units::exact_size(answer.bytes))
            }
        }
    }
}

impl Manager {
    /// Carries out a change of an image of a failover group, by its owner; `None` if it is no such change.
    pub(super) fn by_owner(&self, now: &Served, change: &Change) -> Option<Result<Done>> {
        let (name, what) = job_of(change)?;
        let volume = now.plan.config.volumes.iter().find(|volume| volume.name == name)?;
        let group = volume.group.as_ref()?;
        let group = now.plan.config.groups.iter().find(|one| one.name == *group)?;
        Some(self.ask_owner(now, group, volume, what))
    }

    fn ask_owner(
        &self,
        now: &Served,
        group: &config::Group,
        volume: &config::Volume,
        what: What,
    ) -> Result<Done> {
        let name = &volume.name;
        if self.closed.load(Ordering::Acquire) {
            return refuse(Code::Stopping, "lunet is stopping", "ask again when it has started");
        }
        if let What::Rollback { force, .. } = &what {
            // The owner sees its own sessions alone.
            self.refuse_used(now, name, "roll it back", *force)?;
        }
        let clusters = self.clusters.get().ok_or_else(|| anyhow!("no group runs yet"))?;
        let image = image_of(volume).map(rbd::ImageName::plain).unwrap_or_default();
        let job = Job { by: group.gateway, image, what };
        let bytes = serde_json::to_vec(&job)?;
        if bytes.len() > MAX_BODY {
            return refuse(Code::Invalid, "the name is too long", "");
        }
        let answer = clusters.job(&group.name, bytes, job.what.limit())?;
        let answer: Answer = serde_json::from_slice(&answer)
            .map_err(|error| anyhow!("the owner's answer makes no sense: {error}"))?;
        if let Some(error) = answer.error {
            let at = format!("gateway {}, which owns group {}: ", answer.gateway, group.name);
            let at = if answer.gateway == group.gateway { "" } else { &at };
            return Err(
                lunet_api::Error { message: format!("{at}{}", error.message), ..error }.into()
            );
        }
        let mut done = done(job.what.told(name, &answer));
        done.notes.extend(answer.notes.iter().cloned());
        if matches!(job.what, What::Resize { .. }) && !self.follows(name, answer.bytes) {
            done.notes.push(
                "the image has that size; gateways show it when the group has followed, which takes a pause as for a planned \
                 move: `lunet volume list`"
                    .to_owned(),
            );
        }
        Ok(done)
    }

    /// Waits until this gateway serves that size, for a while.
    fn follows(&self, volume: &str, bytes: u64) -> bool {
        let until = lunet_os::time::now() + FOLLOWS;
        let has = || self.now().open.get(volume).map(|open| open.volume.caps().bytes());
        while has() != Some(bytes) {
            if lunet_os::time::now() >= until {
                return false;
            }
            lunet_os::thread::sleep(LOOK);
        }
        true
    }

    /// Does what an administrator wants of a group that this gateway owns, whichever gateway he has asked. The answer, for that
    /// one.
    pub fn do_job(&self, group: &str, gateway: u16, body: &[u8], owner: &dyn Owner) -> Vec<u8> {
        let done = self.did(group, body, owner).unwrap_or_else(|error| {
            let mut error = trouble::coded(&error);
            error.message = error.message.chars().take(MOST).collect();
            error.fix = error.fix.chars().take(MOST).collect();
            Answer { error: Some(error), ..Answer::default() }
        });
        let answer = Answer { gateway, ..done };
        let bytes = serde_json::to_vec(&answer).unwrap_or_default();
        match bytes.len() {
            0..=MAX_BODY => bytes,
            _ => {
                let error =
                    lunet_api::Error::new(Code::Failed, "it has failed: see the owner's log");
                let answer = Answer { gateway, error: Some(error), ..Answer::default() };
                serde_json::to_vec(&answer).unwrap_or_default()
            }
        }
    }

    /// The answer of an owner that has no thread for a job.
    pub fn no_job(gateway: u16) -> Vec<u8> {
        let error = lunet_api::Error::new(Code::Failed, "the operating system grants no thread");
        let answer = Answer { gateway, error: Some(error), ..Answer::default() };
        serde_json::to_vec(&answer).unwrap_or_default()
    }

    fn did(&self, group: &str, body: &[u8], owner: &dyn Owner) -> Result<Answer> {
        let Ok(Job { by, image, what }) = serde_json::from_slice(body) else {
            return refuse(Code::OtherVersion, "what it is asked for is of another lunet", "");
        };
        let now = self.now();
        let own = |volume: &&config::Volume| {
            volume.group.as_deref() == Some(group)
                && image_of(volume).is_some_and(|name| name.plain() == image)
        };
        let Some(volume) = now.plan.config.volumes.iter().find(own) else {
            let text = format!("the group has no volume with the image {image}");
            return refuse(Code::NotFound, text, "");
        };
        let name = volume.name.clone();
        tracing::info!(group, volume = %name, "order by gateway {by}: {what:?}");
        let mut answer = Answer::default();
        match what {
            What::Snapshot { name: snapshot } => {
                answer.notes = self.beside(&Change::CreateSnapshot { volume: name, snapshot })?;
            }
            What::DeleteSnapshot { name: snapshot } => {
                answer.notes = self.beside(&Change::DeleteSnapshot { volume: name, snapshot })?;
            }
            What::Rollback { name: snapshot, force } => {
                self.roll_group_back((&name, &image), &snapshot, force, owner)?;
            }
            What::Resize { bytes } => answer.bytes = self.resize_image(&name, bytes, owner)?,
        }
        Ok(answer)
    }

    /// Changes snapshots as those of any image: the notes about it.
    fn beside(&self, change: &Change) -> Result<Vec<String>> {
        let apart = self.begin_apart(change, false)?;
        apart.map_or_else(|| Ok(Vec::new()), |apart| Ok(apart.carry_out()?.notes))
    }

    /// Makes an image larger, or looks how large it is: its size in bytes. The group follows.
    fn resize_image(&self, name: &str, bytes: Option<u64>, owner: &dyn Owner) -> Result<u64> {
        let _apart = self.begin_beside(name, format!("resize-volume {name}"))?;
        let now = self.now();
        let open = now.volume(name)?;
        // What is served may be older than the image: somebody may have grown it, and the group follows a moment later.
        let before = open.volume.caps().bytes().max(rbd::size(&open.volume)?);
        let bytes = match bytes {
            Some(bytes) if bytes < before => {
                return refuse(
                    Code::Unsupported,
                    format!(
                        "volume {name} has {}, and volumes do not shrink: what lies behind the new end would be lost",
                        units::exact_size(before)
                    ),
                    "make a smaller volume and copy what it needs",
                );
            }
            Some(bytes) if bytes % u64::from(open.volume.caps().block_size) != 0 => {
                let text = format!("{} is no whole number of blocks", units::exact_size(bytes));
                return refuse(Code::Invalid, text, "");
            }
            Some(bytes) if bytes == before => bytes,
            Some(bytes) => {
                rbd::resize(&open.volume, bytes)?;
                bytes
            }
            None => before,
        };
        owner.look_at_sizes();
        Ok(bytes)
    }

    /// Gives an image the content of a snapshot. What hosts ask for waits meanwhile. From the first block to the last one the
    /// record says so: whoever owns the group in between does not serve what is neither of both.
    fn roll_group_back(
        &self,
        (name, image): (&str, &str),
        snapshot: &str,
        force: bool,
        owner: &dyn Owner,
    ) -> Result<()> {
        let _apart = self.begin_beside(name, format!("rollback {name}@{snapshot}"))?;
        let now = self.now();
        snapshots::find(&now, name, snapshot)?;
        self.refuse_used(&now, name, "roll it back", force)?;
        let open = now.volume(name)?;
        let _rolls = Rolls::new(owner, image);
        let held = self.handle.hold(name, HOLD)?;
        owner.mark(image, Mark::Begun)?;
        let size = open.volume.caps().bytes();
        let rolled = rbd::roll_back_to(&open.volume, snapshot, size);
        let mark = if rolled.is_ok() { Mark::Done } else { Mark::Failed };
        let marked = owner.mark(image, mark);
        drop(held);
        match (rolled, marked) {
            (Ok(()), Ok(())) => Ok(()),
            (Ok(()), Err(error)) => refuse(
                Code::Failed,
                format!(
                    "volume {name} was rolled back, but the record of the group does not say so ({error:#}): its next owner \
                     does not serve the volume"
                ),
                "repeat the rollback there",
            ),
            (Err(error), _) => refuse(
                Code::Failed,
                format!(
                    "{error}: what volume {name} holds is neither what it held nor what {name}@{snapshot} holds, so it is not \
                     served"
                ),
                format!("repeat it: `lunet volume rollback {name}@{snapshot}`"),
            ),
        }
    }

    /// The content of a volume is what a rollback has left in the middle: nothing of it is served.
    pub fn rolled_back_in_part(&self, volume: &str) {
        if let Some(open) = self.now().open.get(volume) {
            let _ = open.health.fail(Cause::RolledBackInPart);
        }
    }

    /// It is not, or not any more. `sized`: its image has its size again, too.
    pub fn rolled_back(&self, volume: &str, sized: bool) {
        if let Some(open) = self.now().open.get(volume) {
            open.health.end(|cause| {
                matches!(cause, Cause::RolledBackInPart)
                    || sized && matches!(cause, Cause::CutShort { .. })
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_it_was_written_and_another_one_is_refused() {
        for what in [
            What::Snapshot { name: "a".into() },
            What::DeleteSnapshot { name: "a".into() },
            What::Rollback { name: "a".into(), force: true },
            What::Resize { bytes: None },
            What::Resize { bytes: Some(u64::MAX) },
        ] {
            let job = Job { by: 7, image: "rbd/ns/a".into(), what };
            let bytes = serde_json::to_vec(&job).unwrap();
            assert_eq!(serde_json::from_slice::<Job>(&bytes).unwrap(), job);
            let later = String::from_utf8(bytes).unwrap().replacen('{', r#"{"hence":1,"#, 1);
            assert!(serde_json::from_str::<Job>(&later).is_err(), "{later}");
        }
    }

    #[test]
    fn only_changes_of_images_are_the_owners() {
        let named = |name: &str| name.to_owned();
        let snapshot = Change::CreateSnapshot { volume: named("v"), snapshot: named("s") };
        assert_eq!(job_of(&snapshot), Some(("v", What::Snapshot { name: named("s") })));
        let resize = Change::ResizeVolume { name: named("v"), size: Some(512) };
        assert_eq!(job_of(&resize), Some(("v", What::Resize { bytes: Some(512) })));
        assert_eq!(job_of(&Change::ReopenVolume { name: named("v") }), None);
    }
}
