//! What is attached, and whether it is as it was set.

use lunet_host::source::Source;
use serde::Serialize;

use crate::address::{Transport, place};
use crate::disk;
use crate::host;
use crate::journal::{Attachment, State};
use crate::server::Secrets;
use crate::step::{self, Context, Step};
use crate::system::System;

/// A path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathState {
    /// Address and port of the portal.
    pub portal: String,
    /// `session3`, `nvme2`; nothing if there is none.
    pub id: Option<String>,
    /// The kernel's word, or `gone`.
    pub state: String,
    /// It carries I/O.
    pub works: bool,
}

/// An attachment as it is.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// By what it is known.
    pub name: String,
    /// The address that was given.
    pub url: String,
    /// The transport.
    pub transport: Transport,
    /// What it is for.
    pub profile: crate::profile::Profile,
    /// An attach or detach was interrupted.
    pub interrupted: bool,
    /// Its paths.
    pub paths: Vec<PathState>,
    /// Its file, if the disk is there.
    pub device: Option<String>,
    /// A name that stays the same.
    pub disk: Option<String>,
    /// Its size in bytes.
    pub bytes: Option<u64>,
    /// Where it is to be mounted.
    pub mount: Option<String>,
    /// Whether it is mounted.
    pub mounted: bool,
    /// What is not as it was set.
    pub differs: Vec<String>,
}

impl Status {
    /// Whether all of it is as it was set, and all paths work.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        !self.interrupted && self.differs.is_empty() && self.paths.iter().all(|path| path.works)
    }
}

/// Looks at an attachment. Nothing is changed.
#[must_use]
pub fn status(system: &dyn System, attachment: &Attachment) -> Status {
    let source = system.machine().source();
    let secrets = Secrets::default();
    let cx =
        Context { system, secrets: &secrets, others: &[], own: &attachment.steps, force: false };
    let found = device_of(source, attachment);
    let sectors = found.as_ref().and_then(|name| source.int(&format!("/sys/block/{name}/size")));
    let mount = attachment.mount.clone();
    let mut differs: Vec<String> =
        attachment.steps.iter().filter_map(|step| step.differs(&cx)).collect();
    match (&found, &attachment.disk) {
        (None, _) => differs.push("the disk is not there".to_owned()),
        (Some(name), Some(was)) => {
            let other = disk::lasting_name(source, name).filter(|now| now != was);
            differs.extend(other.map(|now| format!("the disk is {now}, and {was} was attached")));
        }
        _ => {}
    }
    Status {
        name: attachment.name.clone(),
        url: attachment.url.clone(),
        transport: attachment.transport,
        profile: attachment.profile,
        interrupted: attachment.state != State::Attached,
        paths: paths(source, attachment),
        device: found.as_ref().map(|name| disk::device(source, name)),
        disk: found.as_ref().and_then(|name| disk::lasting_name(source, name)),
        bytes: sectors.and_then(|count| u64::try_from(count).ok()).map(|count| count * 512),
        mounted: mount.as_ref().is_some_and(|at| disk::mounted_at(source, at).is_some()),
        mount,
        differs,
    }
}

/// The paths of an attachment.
#[must_use]
pub fn paths(source: &dyn Source, attachment: &Attachment) -> Vec<PathState> {
    let (sessions, controllers) = (host::sessions(source), host::controllers(source));
    let of = |step: &Step| match step {
        Step::Session { path } => {
            let id = path.session(&sessions);
            let state = sessions.iter().find(|session| Some(&session.id) == id.as_ref());
            let state = state.map_or("gone", |session| session.state.as_str());
            Some(path_state(path.place(), id, state, "LOGGED_IN"))
        }
        Step::Controller { path, .. } => {
            let id = path.controller(&controllers);
            let state = controllers.iter().find(|have| Some(&have.id) == id.as_ref());
            let state = state.map_or("gone", |controller| controller.state.as_str());
            Some(path_state(place(&path.address, path.port), id, state, "live"))
        }
        _ => None,
    };
    attachment.steps.iter().filter_map(of).collect()
}

/// The disk of an attachment, if it is there: `sda`, `dm-2`, `nvme1n1`.
#[must_use]
pub fn device_of(source: &dyn Source, attachment: &Attachment) -> Option<String> {
    let (sessions, controllers) = (host::sessions(source), host::controllers(source));
    let of = |step: &Step| match step {
        Step::Session { path } => {
            let disk = disk::of_session(source, &path.session(&sessions)?, attachment.unit)?;
            Some(disk::maps_over(source, &disk).into_iter().next().unwrap_or(disk))
        }
        Step::Controller { path, .. } => {
            path.controller(&controllers)?;
            disk::of_namespace(source, &path.nqn, attachment.unit)
        }
        _ => None,
    };
    attachment.steps.iter().find_map(of)
}

/// The disks of an attachment: one of each path, and what dm-multipath has made of them, also when their paths are gone.
#[must_use]
pub fn disks_of(source: &dyn Source, attachment: &Attachment) -> Vec<String> {
    let (sessions, controllers) = (host::sessions(source), host::controllers(source));
    let ways = || step::ways(&attachment.steps, &attachment.target, &sessions, &controllers);
    let of = |step: &Step| match step {
        Step::Session { path } => {
            disk::of_session(source, &path.session(&sessions)?, attachment.unit)
        }
        Step::Controller { path, .. } => {
            path.controller(&controllers)?;
            disk::of_namespace(source, &path.nqn, attachment.unit)
        }
        Step::Map { wwid, .. } => {
            let map = disk::map_of(source, wwid)?;
            disk::foreign_path(source, &map, &ways()).is_none().then_some(map)
        }
        _ => None,
    };
    attachment.steps.iter().filter_map(of).collect()
}

fn path_state(portal: String, id: Option<String>, state: &str, good: &str) -> PathState {
    PathState { portal, id, state: state.to_owned(), works: state == good }
}
