//! What a server keeps in small files, by the server's own code, and what of it may be found after a crash.
//!
//! A value that was said to be stored is found, or one that was tried after it; nothing else. What cannot be read is an
//! error, and never taken for absent.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use lunet_files::{self as files, ReadError};
use lunet_os::{simulated, thread};
use lunet_reservations::{Event, Refusal, Register, Registrant, Registration, Reservations};
use lunet_volume::reserve::{Request, Shared, Store, StoredRegistration};
use lunet_volume::{Health, Volume};
use serde::{Deserialize, Serialize};

use crate::site::Site;

/// How long a mark has at most to become stable.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whose reservations they are.
const OWNER: &str = "shelf";

/// What may be found in a file.
#[derive(Debug)]
struct May<T> {
    /// What was stored last.
    stored: T,
    /// What was tried since. It may be there or not.
    tried: Vec<T>,
}

impl<T: Clone + PartialEq + Debug> May<T> {
    const fn new(stored: T) -> Self {
        Self { stored, tried: Vec::new() }
    }

    fn begin(&mut self, value: &T) {
        self.tried.push(value.clone());
    }

    /// It was said to be stored: nothing of before comes back.
    fn done(&mut self, value: T) {
        *self = Self::new(value);
    }

    fn may_be(&self, found: &T) -> bool {
        self.stored == *found || self.tried.contains(found)
    }

    fn found(&mut self, found: &T, power_lost: bool) -> Result<()> {
        if !self.may_be(found) {
            return Err(anyhow!("{found:?} is found, and not {self:?}"));
        }
        if power_lost {
            self.done(found.clone());
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Known {
    /// The power was lost, and this was not looked at since.
    power_lost: bool,
    numbers: [May<Option<u64>>; 2],
    failed: May<bool>,
    keys: May<Vec<u64>>,
    last: u64,
}

/// Small files of the server.
#[derive(Clone, Debug)]
pub struct Records {
    folder: PathBuf,
    site: Site,
    known: Arc<Mutex<Known>>,
}

impl Records {
    /// Nothing is kept yet. It will be in a directory of its own below that of the server.
    ///
    /// # Errors
    /// The system's.
    pub fn new(folder: &Path, site: &Site) -> Result<Self> {
        let folder = folder.join("records");
        std::fs::create_dir(&folder)?;
        let known = Known {
            power_lost: false,
            numbers: [May::new(None), May::new(None)],
            failed: May::new(false),
            keys: May::new(Vec::new()),
            last: 0,
        };
        Ok(Self { folder, site: site.clone(), known: Arc::new(Mutex::new(known)) })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was not stable is lost now, if it is lost.
    pub fn power_lost(&self) {
        self.known().power_lost = true;
    }

    /// Takes up what was kept, and begins to keep more, until the process ends.
    ///
    /// # Errors
    /// Something cannot be read. What is wrong is told to the site.
    pub fn begin(&self) -> Result<()> {
        let mut shelf = Shelf {
            numbers: [self.number(0)?, self.number(1)?],
            health: Health::found(OWNER, self.folder.join("shelf.failed")),
            volume: self.volume()?,
            records: self.clone(),
        };
        if let Err(wrong) = shelf.check() {
            self.site.wrong("records", &format!("{wrong:#}"));
        }
        thread::spawn("records", move || {
            while !shelf.records.site.known().over {
                thread::sleep(Duration::from_millis(simulated::below(300)));
                shelf.change();
            }
        })?;
        Ok(())
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("number-{number}"))
    }

    fn number(&self, number: usize) -> Result<Option<u64>> {
        let path = self.path(number);
        let Some(bytes) = files::read(&path, 100)? else { return Ok(None) };
        match String::from_utf8_lossy(&bytes).parse() {
            Ok(number) => Ok(Some(number)),
            Err(error) => {
                self.site.wrong("records", &format!("{}: {bytes:?}: {error}", path.display()));
                Err(anyhow!("it is no number"))
            }
        }
    }

    /// A volume without blocks that can be reserved.
    fn volume(&self) -> Result<Volume<()>> {
        let store = Store::new::<Kept>(self.folder.join("shelf.reservations"), OWNER.into());
        let state = match Store::reservations(Some(&store)) {
            Err(error @ (ReadError::Damaged { .. } | ReadError::Version { .. })) => {
                self.site.wrong("records", &error.to_string());
                return Err(error.into());
            }
            other => other?,
        };
        let backend = lunet_backends::absent(4096, 512, false);
        let mut volume = Volume::new(OWNER.into(), (backend, Health::new(OWNER)), None, ());
        volume.reservations = Arc::new(Shared::new(state, Vec::new()));
        volume.store = Some(store);
        Ok(volume)
    }
}

/// What a process has of it.
struct Shelf {
    numbers: [Option<u64>; 2],
    health: Arc<Health>,
    volume: Volume<()>,
    records: Records,
}

impl Shelf {
    fn keys(&self) -> Vec<u64> {
        self.volume.reservations.look(|state| state.registrations().iter().map(|r| r.key).collect())
    }

    /// Compares what was taken up with what may be.
    fn check(&self) -> Result<()> {
        let keys = self.keys();
        let mut known = self.records.known();
        let power_lost = std::mem::take(&mut known.power_lost);
        for (may, found) in known.numbers.iter_mut().zip(&self.numbers) {
            may.found(found, power_lost)?;
        }
        known.keys.found(&keys, power_lost)?;
        let failed = !self.health.is_sound();
        match failed && !known.failed.may_be(&true) {
            // A mark that could not be read counts as one.
            true if simulated::part::<simulated::FileSystem>().failed() > 0 => {}
            _ => known.failed.found(&failed, power_lost)?,
        }
        Ok(())
    }

    fn change(&mut self) {
        let tell = |what: &str| self.records.site.tell("records", what);
        match simulated::below(4) {
            0 | 1 => self.change_number(simulated::below(2) as usize),
            2 => {
                let key = self.next();
                let mut keys = self.keys();
                match keys.first_mut() {
                    Some(first) => *first = key,
                    None => keys.push(key),
                }
                self.records.known().keys.begin(&keys);
                let done = self.volume.reserve_and_keep(&Join(key)).is_ok();
                tell(&format!("registers {key}: {done}"));
                if done {
                    self.records.known().keys.done(keys);
                }
            }
            _ if self.health.is_sound() => {
                self.records.known().failed.begin(&true);
                self.health.not_stable(5, PATIENCE);
                let kept = self.health.wait_for_mark(PATIENCE);
                tell(&format!("its storage has failed: {kept}"));
                if kept {
                    self.records.known().failed.done(true);
                }
            }
            _ => {
                self.records.known().failed.begin(&false);
                let old = self.health.clone();
                self.health = Health::kept(OWNER, self.records.folder.join("shelf.failed"));
                let forgotten = old.forget();
                tell(&format!("its storage is repaired: {forgotten:?}"));
                if forgotten.is_ok() {
                    self.records.known().failed.done(false);
                }
            }
        }
    }

    fn next(&self) -> u64 {
        let mut known = self.records.known();
        known.last += 1;
        known.last
    }

    fn change_number(&mut self, which: usize) {
        let path = self.records.path(which);
        let value = (simulated::below(3) != 0).then(|| self.next());
        self.records.known().numbers[which].begin(&value);
        let done = match value {
            Some(value) => files::replace(&path, value.to_string().as_bytes()).is_ok(),
            None => files::remove(&path).is_ok(),
        };
        self.records.site.tell("records", &format!("number {which} is {value:?}: {done}"));
        if done {
            self.records.known().numbers[which].done(value);
        }
    }
}

/// A registrant in the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    key: u64,
}

fn registrant() -> Registrant {
    Registrant::new("records", b"1")
}

impl StoredRegistration for Kept {
    fn of(registration: &Registration) -> Option<Self> {
        Some(Self { key: registration.key })
    }

    fn registration(self) -> Registration {
        Registration { registrant: registrant(), key: self.key }
    }
}

/// Registers a key, to be kept through power loss.
struct Join(u64);

impl Request for Join {
    type Refusal = Refusal;

    fn carry_out(&self, state: &mut Reservations) -> Result<Vec<Event>, Refusal> {
        let asked = Register { existing: None, new_key: self.0, also: &[], keep: Some(true) };
        state.register(&registrant(), asked)
    }

    fn stands(&self) -> bool {
        true
    }
}
