//! The file of a volume's reservations: written anew and renamed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunet_os::time::{SinceBoot, since_boot};
use lunet_reservations::{Kind, Registration, Reservations, Saved};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Serialize};

use lunet_files::{self as files, ReadError};

/// What the name of the file ends in that is passed on to the next start.
pub const PASSING_FILE: &str = "restart";

/// A larger file is none of ours: it has room for every registration that there may be.
const MAX_FILE: u64 = 1 << 20;

const VERSION: u32 = 1;

/// What a server passes on to the next one is taken up within this time: a restart takes less, and later somebody else may
/// have served the storage meanwhile.
const PASSING: Duration = Duration::from_secs(600);

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
    pass: fn(&Store, Passing<&Saved>) -> io::Result<()>,
    passed: fn(&Store) -> Result<Option<Passing<Saved>>, ReadError>,
}

/// What is passed on to the next start on this machine, which has to come soon.
struct Passing<S> {
    /// When it was.
    at: SinceBoot,
    generation: u32,
    saved: S,
}

/// The file of that.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Passed<R> {
    boot: String,
    up_ms: u64,
    generation: u32,
    kept: Kept<R>,
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
        let (save, load) = (save::<R>, load::<R>);
        Self { path, owner, save, load, pass: pass::<R>, passed: passed::<R> }
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
        match (store.load)(store)? {
            Some(saved) => state.restore(saved).map_err(|error| damaged(&store.path, error))?,
            None => store.take_up(&mut state),
        }
        Ok(state)
    }

    /// Passes what does not survive a power loss on to the next start: a server that ends in good order is none.
    ///
    /// # Errors
    /// The operating system's: it is lost then, as by a power loss.
    pub fn pass_on(&self, state: &Reservations) -> io::Result<()> {
        let Some((saved, at)) = state.passing().zip(since_boot()) else { return Ok(()) };
        (self.pass)(self, Passing { at, generation: state.generation(), saved: &saved })
    }

    /// Forgets what was passed on: whoever comes after this start gets what this start leaves.
    pub fn forget_passed(&self) {
        let path = self.passing();
        if let Err(error) = files::remove(&path) {
            tracing::warn!(
                "{error}: reservations of before may come back with a start within ten minutes"
            );
        }
    }

    /// The file of what is passed on.
    fn passing(&self) -> PathBuf {
        self.path.with_extension(PASSING_FILE)
    }

    /// Takes up what was passed on, if it is of this boot and not old. What cannot be read is lost, as by a power loss.
    fn take_up(&self, state: &mut Reservations) {
        let passed = (self.passed)(self).unwrap_or_else(|error| {
            tracing::warn!("{error}: reservations that were not to survive a power loss are lost");
            None
        });
        let Some((passed, now)) = passed.zip(since_boot()) else { return };
        let is_new = passed.at.boot == now.boot && now.up.saturating_sub(passed.at.up) <= PASSING;
        if is_new && state.take_up(passed.saved, passed.generation).is_err() {
            tracing::warn!(
                "{}: reservations that contradict themselves are lost",
                self.path.display()
            );
        }
    }
}

fn damaged(path: &Path, error: impl ToString) -> ReadError {
    let error = serde_json::Error::custom(error.to_string());
    ReadError::Damaged { path: path.to_owned(), error }
}

fn save<R: StoredRegistration>(store: &Store, saved: Option<&Saved>) -> io::Result<()> {
    let Some(saved) = saved else { return Ok(files::remove(&store.path).map(drop)?) };
    Ok(files::replace(&store.path, &serde_json::to_vec_pretty(&kept::<R>(store, saved)?)?)?)
}

fn pass<R: StoredRegistration>(store: &Store, passing: Passing<&Saved>) -> io::Result<()> {
    let SinceBoot { boot, up } = passing.at;
    let (up_ms, generation) = (up.as_millis() as u64, passing.generation);
    let passed = Passed { boot, up_ms, generation, kept: kept::<R>(store, passing.saved)? };
    Ok(files::replace(&store.passing(), &serde_json::to_vec_pretty(&passed)?)?)
}

fn passed<R: StoredRegistration>(store: &Store) -> Result<Option<Passing<Saved>>, ReadError> {
    let path = store.passing();
    let Some(text) = files::read(&path, MAX_FILE)? else { return Ok(None) };
    let Passed { boot, up_ms, generation, kept } = serde_json::from_slice::<Passed<R>>(&text)
        .map_err(|error| ReadError::Damaged { path: path.clone(), error })?;
    let at = SinceBoot { boot, up: Duration::from_millis(up_ms) };
    let saved = of_kept(store, &path, kept)?;
    Ok(saved.map(|saved| Passing { at, generation, saved }))
}

fn kept<R: StoredRegistration>(store: &Store, saved: &Saved) -> io::Result<Kept<R>> {
    let registrations: Option<Vec<R>> = saved.registrations.iter().map(R::of).collect();
    let no_room = || io::Error::other("the file has no room for one of the registrants");
    let number = |kind| NUMBERS.iter().find(|(_, it)| *it == kind).map_or(0, |(number, _)| *number);
    Ok(Kept {
        version: VERSION,
        unit: store.owner.clone(),
        kind: saved.kind.map_or(0, number),
        holder: saved.holder,
        registrations: registrations.ok_or_else(no_room)?,
    })
}

fn load<R: StoredRegistration>(store: &Store) -> Result<Option<Saved>, ReadError> {
    let path = &store.path;
    let Some(text) = files::read(path, MAX_FILE)? else { return Ok(None) };
    let kept: Kept<R> = serde_json::from_slice(&text)
        .map_err(|error| ReadError::Damaged { path: path.clone(), error })?;
    of_kept(store, path, kept)
}

fn of_kept<R: StoredRegistration>(
    store: &Store,
    path: &Path,
    kept: Kept<R>,
) -> Result<Option<Saved>, ReadError> {
    if kept.version != VERSION {
        let (path, found) = (path.to_owned(), kept.version);
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
