//! Opens volumes, and tells what becomes of those that cannot be opened.
//!
//! A volume whose storage is missing, smaller or another's is not served: its LUNs keep their places and
//! are not ready. What is served is what was there before, or what somebody has asked for.

use std::path::Path;

use lunet_api::FaultState;
use lunet_backends::{OpenError, Storage, VolumeSpec};

use crate::live::Open;
use crate::{failures, record, sandbox, serve, users};
use lunet_config::{self as config, Backend, Volume};

/// What to do about storage that lunet has not made or served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Take what is there; make nothing.
    Take,
    /// Make the file of a volume that was never made.
    Make,
    /// Take what is there, although something else is remembered.
    Adopt,
    /// Make the file although one was made before.
    Remake,
}

/// The next step for an image of Ceph.
const THEN_APPLY: &str = ", and then run `lunet config apply`";

/// Why a volume is not served, in one sentence with the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("volume {volume}: {text}")]
pub struct Failure {
    volume: String,
    text: String,
    /// Of what kind.
    pub kind: Kind,
    /// The volume was served before.
    pub known: bool,
    /// Its cluster has not answered: it is asked again later.
    pub silent: bool,
    /// The image that it is to be is not there.
    no_image: bool,
}

/// What is wrong with the storage of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file or device that it had is not there.
    Missing,
    /// It has become smaller.
    CutShort,
    /// It is another one.
    Another,
    /// Its file was never made.
    NotMade,
    /// There is too little memory for it now.
    Memory,
    /// Anything else.
    Other,
}

impl Kind {
    /// The state in a word, for programs.
    pub const fn state(self) -> FaultState {
        match self {
            Self::Missing => FaultState::StorageMissing,
            Self::CutShort => FaultState::StorageCutShort,
            Self::Another => FaultState::StorageReplaced,
            Self::NotMade => FaultState::NotMade,
            Self::Memory => FaultState::NoMemory,
            Self::Other => FaultState::CannotBeOpened,
        }
    }
}

/// The user that this server runs as.
fn me() -> String {
    let user = rustix::process::geteuid().as_raw();
    users::name(user).unwrap_or_else(|| user.to_string())
}

/// The command that makes a folder for this server.
fn given(folder: &Path) -> String {
    format!("`install -d -o {} -m 750 {}`", me(), folder.display())
}

/// What gives this server access to a file.
fn access(path: &Path) -> String {
    let user = me();
    let homes = ["/home", "/root"];
    if let Some(home) = homes.into_iter().find(|home| path.starts_with(home)) {
        return format!(
            "lunet runs as user {user}, and as the machine's service it reaches nothing below {home}: take another \
             place, such as /srv/lunet"
        );
    }
    match path.parent().filter(|folder| folder.exists() && !path.exists()) {
        // It is to be made in a folder of somebody else's, such as /srv: below it there has to be one.
        Some(folder) => format!(
            "lunet runs as user {user}, which needs a folder of its own for it: {}",
            given(&folder.join("lunet"))
        ),
        None => {
            format!("lunet runs as user {user}, which needs access to it and to the folders above")
        }
    }
}

impl Failure {
    fn new(config: &Volume, known: bool, error: &OpenError) -> Self {
        let kind = match error {
            OpenError::NotMade { .. } => Kind::NotMade,
            OpenError::Gone { .. } => Kind::Missing,
            OpenError::MissingDevice { .. } if known => Kind::Missing,
            OpenError::CutShort { .. } => Kind::CutShort,
            OpenError::Another { .. } => Kind::Another,
            // The others are served without it, also if it is new: its cluster may be there later.
            OpenError::Image { .. } => Kind::Missing,
            OpenError::MoreThanMemory { .. } => Kind::Memory,
            // Whoever may resize an image of a cluster ends no server by it.
            _ if matches!(config.backend, Backend::Rbd { .. }) => Kind::Missing,
            _ => Kind::Other,
        };
        let text = match error {
            OpenError::Permission { path } if sandbox::keeps_from(path) => format!(
                "{}: the sandbox does not reach it: add its directory to `paths` of [sandbox] and restart lunet",
                path.display()
            ),
            OpenError::Permission { path } => {
                format!("{}: permission denied: {}", path.display(), access(path))
            }
            OpenError::NoDirectory { directory, .. } if !rustix::process::geteuid().is_root() => {
                format!("{error}: {}", given(directory))
            }
            error => error.to_string(),
        };
        let (silent, no_image) = (error.is_silence(), error.is_no_image());
        Self { silent, no_image, ..Self::of(config, known, kind, text) }
    }

    /// The same of a volume that was to be created just now: it is in no configuration that could be applied.
    #[must_use]
    pub fn of_new_volume(self) -> Self {
        let Some(what) = self.text.strip_suffix(THEN_APPLY) else { return self };
        let made = match self.no_image {
            true => ", or give a size (`--size`), with which lunet makes it,",
            false => ",",
        };
        Self { text: format!("{what}{made} and then create the volume again"), ..self }
    }

    /// The volume is its failover group's to open.
    pub fn waits(config: &Volume, group: &str) -> Self {
        let text = format!("group {group} has not opened it: `lunet group list` says more");
        let (volume, kind, silent) = (config.name.clone(), Kind::Missing, false);
        Self { volume, text, kind, known: true, silent, no_image: false }
    }

    fn of(config: &Volume, known: bool, kind: Kind, what: String) -> Self {
        let (volume, text) = (config.name.clone(), what);
        Self { volume, text, kind, known, silent: false, no_image: false }.with_next_step(config)
    }

    fn with_next_step(self, config: &Volume) -> Self {
        let name = &self.volume;
        let makes = matches!(config.backend, Backend::File { size: Some(_), .. });
        let step = match self.kind {
            Kind::Missing if makes => format!(
                ": bring it back and run `lunet config apply`, or make an empty one with `lunet volume \
                 recreate {name} --yes`"
            ),
            // What to do with an image of Ceph, its own sentence has.
            Kind::Missing if matches!(config.backend, Backend::Rbd { .. }) => THEN_APPLY.to_owned(),
            Kind::Missing => ": bring it back and run `lunet config apply`".to_owned(),
            Kind::CutShort | Kind::Another => format!(
                ": bring the right one back and run `lunet config apply`, or take this one as it is with \
                 `lunet volume adopt {name} --yes`"
            ),
            Kind::NotMade => {
                ": run `lunet config apply`, or start with `lunet serve --create`".to_owned()
            }
            Kind::Memory | Kind::Other => String::new(),
        };
        Self { text: format!("{}{step}", self.text), ..self }
    }

    /// True if it is a mistake in what was configured just now, by which the start ends; otherwise the
    /// others are served.
    pub fn ends_start(&self) -> bool {
        !self.known && self.kind == Kind::Other
    }

    /// True if there was no such volume before.
    pub fn is_of_new(&self) -> bool {
        !self.known
    }

    /// What is wrong, and the next step, without the volume's name.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A volume of the configuration that is not served.
#[derive(Clone, Debug)]
pub struct Unserved {
    /// As it is configured.
    pub config: Volume,
    /// Why.
    pub failure: Failure,
    /// Its size in bytes, as it is remembered or configured.
    pub size: Option<u64>,
    /// When it was found out, in seconds since 1970.
    pub since: u64,
}

impl Unserved {
    /// A volume that could not be opened.
    pub fn new(config: &Volume, data: &Path, failure: Failure) -> Self {
        let remembered = record::load(data, &config.name).ok().flatten();
        let size = remembered.map(|record| record.size).or_else(|| config.size());
        let since = lunet_os::time::unix().as_secs();
        Self { config: config.clone(), failure, size, since }
    }

    /// A volume that its failover group has not opened. `size` is what it had before, in bytes.
    pub fn waiting(config: &Volume, group: &str, size: Option<u64>) -> Self {
        let since = lunet_os::time::unix().as_secs();
        let failure = Failure::waits(config, group);
        Self { config: config.clone(), failure, size, since }
    }

    /// What stands in its place.
    pub fn stand_in(&self) -> lunet_backends::Volume {
        let block = self.config.block_size.unwrap_or(512);
        lunet_backends::absent(self.size.unwrap_or(0), block, self.config.read_only)
    }
}

/// Opens a volume, and remembers what its storage is like.
///
/// # Errors
/// Why it cannot be served. Nothing was made then, and what is there was left alone.
pub fn open(config: &Volume, data: &Path, how: How) -> Result<lunet_backends::Volume, Failure> {
    open_with(config, data, how, lunet_backends::open)
}

/// Opens a volume anew in the place of one that is served: it takes the lock over.
///
/// # Errors
/// As [`open`].
pub fn open_in_place_of(
    old: &lunet_backends::Volume,
    config: &Volume,
    data: &Path,
    how: How,
) -> Result<lunet_backends::Volume, Failure> {
    open_with(config, data, how, |spec| lunet_backends::open_in_place_of(old, spec))
}

fn open_with(
    config: &Volume,
    data: &Path,
    how: How,
    storage: impl FnOnce(&VolumeSpec) -> Result<lunet_backends::Volume, OpenError>,
) -> Result<lunet_backends::Volume, Failure> {
    if let Some(group) = &config.group {
        return Err(Failure::waits(config, group));
    }
    let other =
        |known, error: anyhow::Error| Failure::of(config, known, Kind::Other, format!("{error:#}"));
    let before = match how {
        How::Adopt | How::Remake => None,
        How::Take | How::Make => {
            record::load(data, &config.name).map_err(|error| other(true, error))?
        }
    };
    let before = before.filter(|record| record.is_of(config));
    let known = before.is_some();
    let mut spec = serve::spec(config, data);
    if let Storage::File(file) = &mut spec.storage {
        let makes = how == How::Remake || how == How::Make && !known;
        file.create = makes && file.size.is_some();
        file.grow = file.size.is_some();
        file.known = before.as_ref().map(record::Record::known);
    }
    if let Storage::Rbd(place) = &mut spec.storage {
        place.before = before.as_ref().and_then(record::Record::owner);
    }
    let volume = storage(&spec).map_err(|error| {
        if let OpenError::NotStable { error, .. } = &error {
            // The kernel has told it this time only: who opens it next has to know.
            failures::keep(data, config, failures::errno(error));
        }
        let failure = Failure::new(config, known, &error);
        match &before {
            Some(record) if failure.kind == Kind::Missing && record.is_elsewhere() => {
                let text = format!(
                    "another file system than before is mounted where {} should be; {}",
                    record.path.display(),
                    failure.text
                );
                Failure { text, ..failure }
            }
            _ => failure,
        }
    })?;
    if let Some(text) = before.as_ref().and_then(|record| record.differs(&volume)) {
        let path = config.path(data).unwrap_or_default();
        let text = match config::image_of(config) {
            Some(image) => format!("{image}: {text}"),
            None => format!("{}: {text}", path.display()),
        };
        return Err(Failure::of(config, known, Kind::Another, text));
    }
    for note in lunet_backends::notes(&volume) {
        tracing::warn!(volume = %config.name, "{note}");
    }
    let unstable = |errno| failures::keep(data, config, errno);
    match record::keep(data, config, &volume, before.as_ref(), unstable) {
        Ok(()) => {}
        // What was there before can be served as it was.
        Err(error) if known || how == How::Take => {
            tracing::warn!(volume = %config.name, "{error:#}");
        }
        Err(error) => return Err(other(known, error)),
    }
    Ok(volume)
}

/// Remembers that volumes have changed: after the server has taken them over.
pub fn remember<'a>(data: &Path, volumes: impl Iterator<Item = &'a Open>) {
    // What an image of a failover group is like, its record says.
    for open in volumes.filter(|open| open.config.group.is_none()) {
        let name = &open.config.name;
        let kept = record::load(data, name).and_then(|before| {
            let unstable = |errno| open.not_stable(errno);
            record::keep(data, &open.config, &open.volume, before.as_ref(), unstable)
        });
        if let Err(error) = kept {
            tracing::warn!(volume = %name, "{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_was_to_be_created_is_no_matter_of_a_configuration_to_apply() {
        let failed = |no_image| Failure {
            volume: "a".into(),
            text: format!("rbd://rbd/a: why{THEN_APPLY}"),
            kind: Kind::Missing,
            known: false,
            silent: false,
            no_image,
        };
        let told = failed(true).of_new_volume();
        let wanted = "rbd://rbd/a: why, or give a size (`--size`), with which lunet makes it, and then create the volume again";
        assert_eq!(told.text(), wanted);
        let told = failed(false).of_new_volume();
        assert_eq!(told.text(), "rbd://rbd/a: why, and then create the volume again");
        let other = Failure { text: "why".into(), ..failed(false) };
        assert_eq!(other.of_new_volume().text(), "why");
    }
}
