//! The file of a volume's reservations: written anew and renamed.

use std::io;
use std::path::{Path, PathBuf};

use lunet_reservations::{Kind, Registration, Reservations, Saved};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Serialize};

use lunet_files::{self as files, ReadError};

/// A larger file is none of ours: it has room for every registration that there may be.
const MAX_FILE: u64 = 1 << 20;

const VERSION: u32 = 1;

/// The numbers of the kinds in the file; 0 without reservation.
const NUMBERS: [(u8, Kind); 6] = [
    (1, Kind::WriteExclusive),
    (3, Kind::ExclusiveAccess),
    (5, Kind::WriteExclusiveRegistrantsOnly),
    (6, Kind::ExclusiveAccessRegistrantsOnly),
    (7, Kind::WriteExclusiveAllRegistrants),
    (8, Kind::ExclusiveAccessAllRegistrants),
];

/// A registration as it is in the file. One type has room for the registrants of every protocol that serves the volume.
pub trait StoredRegistration: Serialize + DeserializeOwned {
    /// What to write; `None` if there is no room for such a registrant.
    fn of(registration: &Registration) -> Option<Self>;

    /// What was written.
    fn registration(self) -> Registration;
}

/// Where the state of a volume is kept through power loss.
#[derive(Clone, Debug)]
pub struct Store {
    /// The file of its reservations. What else is kept of it lies beside that, in files with other extensions.
    pub path: PathBuf,
    /// Whose state it is: another volume by the same name does not inherit.
    pub owner: String,
    save: fn(&Store, Option<&Saved>) -> io::Result<()>,
    load: fn(&Store) -> Result<Option<Saved>, ReadError>,
}

/// The file of one volume.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept<R> {
    version: u32,
    /// The owner.
    unit: String,
    kind: u8,
    holder: Option<usize>,
    registrations: Vec<R>,
}

impl Store {
    /// The store of a volume whose registrants have room in an `R`.
    pub fn new<R: StoredRegistration>(path: PathBuf, owner: String) -> Self {
        Self { path, owner, save: save::<R>, load: load::<R> }
    }

    /// Makes this state stable, or, if there is none, that there is none.
    ///
    /// # Errors
    /// The operating system's; what was kept before is kept then.
    pub fn save(&self, saved: Option<&Saved>) -> io::Result<()> {
        (self.save)(self, saved)
    }

    /// What was kept, and nothing if that belongs to another owner. Without a store nothing can be kept.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged. Without it nobody knows who may write.
    pub fn reservations(store: Option<&Self>) -> Result<Reservations, ReadError> {
        let mut state = Reservations::new(store.is_some());
        let Some(store) = store else { return Ok(state) };
        if let Some(saved) = (store.load)(store)? {
            state.restore(saved).map_err(|error| damaged(&store.path, error))?;
        }
        Ok(state)
    }
}

fn damaged(path: &Path, error: impl ToString) -> ReadError {
    let error = serde_json::Error::custom(error.to_string());
    ReadError::Damaged { path: path.to_owned(), error }
}

fn save<R: StoredRegistration>(store: &Store, saved: Option<&Saved>) -> io::Result<()> {
    let Some(saved) = saved else { return Ok(files::remove(&store.path).map(drop)?) };
    let registrations: Option<Vec<R>> = saved.registrations.iter().map(R::of).collect();
    let no_room = || io::Error::other("the file has no room for one of the registrants");
    let number = |kind| NUMBERS.iter().find(|(_, it)| *it == kind).map_or(0, |(number, _)| *number);
    let kept = Kept {
        version: VERSION,
        unit: store.owner.clone(),
        kind: saved.kind.map_or(0, number),
        holder: saved.holder,
        registrations: registrations.ok_or_else(no_room)?,
    };
    Ok(files::replace(&store.path, &serde_json::to_vec_pretty(&kept)?)?)
}

fn load<R: StoredRegistration>(store: &Store) -> Result<Option<Saved>, ReadError> {
    let path = &store.path;
    let Some(text) = files::read(path, MAX_FILE)? else { return Ok(None) };
    let kept: Kept<R> = serde_json::from_slice(&text)
        .map_err(|error| ReadError::Damaged { path: path.clone(), error })?;
    if kept.version != VERSION {
        let (path, found) = (path.clone(), kept.version);
        return Err(ReadError::Version { path, found, known: VERSION });
    }
    if kept.unit != store.owner {
        tracing::warn!(file = %path.display(), "reservations of another volume are not taken up");
        return Ok(None);
    }
    let known = |number: u8| NUMBERS.iter().find(|(it, _)| *it == number).map(|(_, kind)| *kind);
    let kind = match kept.kind {
        0 => None,
        number => Some(known(number).ok_or_else(|| damaged(path, "kind"))?),
    };
    let registrations = kept.registrations.into_iter().map(R::registration).collect();
    Ok(Some(Saved { registrations, kind, holder: kept.holder }))
}
