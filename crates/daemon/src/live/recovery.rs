//! Recovery of volumes whose storage is missing or not recognised, as an administrator decides.

use anyhow::Result;
use lunet_api::{Code, Done};
use lunet_files as files;
use lunet_volume::Cause;

use super::served::Open;
use super::{Manager, Served, done, snapshots, storage};
use crate::failures;
use crate::opening::{self, How, Kind};
use crate::trouble::{At, refuse};
use lunet_config::units;
use lunet_config::{Backend, Volume};

/// A volume that is not served, or whose storage is gone.
struct Unserved<'a> {
    /// With the size that it had, if the configuration says none.
    config: Volume,
    /// It is still open, although its storage is gone.
    open: Option<&'a Open>,
    /// What is wrong.
    kind: Kind,
}

impl Manager {
    /// Makes the file of a volume anew, empty, after it was lost.
    pub(super) fn recreate_volume(&self, now: &Served, name: &str) -> Result<Done> {
        let unserved = unserved(now, name)?;
        let (Backend::File { .. }, Some(path)) =
            (&unserved.config.backend, unserved.config.path(&now.plan.data))
        else {
            return refuse(
                Code::Unsupported,
                format!("volume {name} is not in a file: lunet makes no other storage"),
                format!(
                    "bring its device back, or take another with `lunet volume adopt {name} --yes`"
                ),
            );
        };
        if path.metadata().is_ok_and(|found| found.len() > 0) {
            return refuse(
                Code::Exists,
                format!("{} exists", path.display()),
                format!(
                    "take it as it is with `lunet volume adopt {name} --yes`, or move it away first"
                ),
            );
        }
        if unserved.config.size().is_none() {
            return refuse(
                Code::Invalid,
                format!("volume {name} has no size"),
                "say in the configuration how large its file should be",
            );
        }
        self.open_anew(now, &unserved, How::Remake)?;
        let size = units::exact_size(self.now().volume(name)?.volume.caps().bytes());
        let mut done = done(format!("volume {name} is served again, empty, with {size}"));
        done.notes
            .push("initiators find zeroes where their data was: have them look anew".to_owned());
        Ok(done)
    }

    /// Takes what is in the place of a volume's storage as the volume.
    pub(super) fn adopt_volume(&self, now: &Served, name: &str) -> Result<Done> {
        let unserved = unserved(now, name)?;
        if matches!(unserved.kind, Kind::Missing | Kind::NotMade) {
            return refuse(
                Code::NotServed,
                format!("there is nothing to adopt, as volume {name} has no storage"),
                format!(
                    "bring its file or device back, or make an empty file with `lunet volume recreate {name} --yes`"
                ),
            );
        }
        self.open_anew(now, &unserved, How::Adopt)?;
        let open = &self.now().open[name];
        let size = units::exact_size(open.volume.caps().bytes());
        let path = open.config.path(&now.plan.data).unwrap_or_default();
        Ok(done(format!("volume {name} is served again, with {size} in {}", path.display())))
    }

    fn open_anew(&self, now: &Served, unserved: &Unserved<'_>, how: How) -> Result<()> {
        let (config, data) = (&unserved.config, &now.plan.data);
        let volume = match unserved.open {
            Some(old) => opening::open_in_place_of(&old.volume, config, data, how)?,
            None => opening::open(config, data, how)?,
        };
        let mut all = now.open.clone();
        all.insert(config.name.clone(), Open::anew(config.clone(), volume, data));
        self.adopt(now.with(now.plan.clone(), all), None)?;
        // What the storage of before has lost is over, and so is what this one has.
        failures::forget(data, config);
        match unserved.open {
            Some(old) => snapshots::forget(old),
            None => {
                let mark = failures::mark(data, &config.name);
                files::remove(&mark).at("remove", &mark)?;
            }
        }
        Ok(())
    }
}

/// The volume with this name, if something is wrong with its storage.
fn unserved<'a>(now: &'a Served, name: &str) -> Result<Unserved<'a>> {
    if let Some(unserved) = now.unserved.get(name) {
        // The embedded default says how large a first file should be, not this one.
        let configured = unserved.config.size().filter(|_| now.plan.text.is_some());
        let config = match (configured, unserved.size) {
            (None, Some(size)) => storage::with_size(&unserved.config, size),
            _ => unserved.config.clone(),
        };
        return Ok(Unserved { config, open: None, kind: unserved.failure.kind });
    }
    let open = now.volume(name)?;
    let faults = open.health.faults();
    let kind = faults.iter().find_map(|fault| match fault.cause {
        Cause::Missing => Some(Kind::Missing),
        Cause::Replaced | Cause::TakenOver { .. } => Some(Kind::Another),
        Cause::CutShort { .. } => Some(Kind::CutShort),
        Cause::NotServed | Cause::WriteBack { .. } | Cause::RolledBackInPart => None,
    });
    let Some(kind) = kind else {
        return refuse(
            Code::Unsupported,
            format!(
                "volume {name} is served, and its storage is where it was: nothing needs to be done"
            ),
            "",
        );
    };
    let config = storage::with_size(&open.config, open.volume.caps().bytes());
    Ok(Unserved { config, open: Some(open), kind })
}
