//! What was attached, written down before it is done.

use std::fmt;

use lunet_host::apply::{Fault, Kept, Machine};
use serde::{Deserialize, Serialize};

use crate::address::Transport;
use crate::profile::Profile;
use crate::step::Step;
use crate::system::System;

/// Where the journals are.
pub const STATE: &str = "/var/lib/lunet-attach";

/// The form that this program writes.
const VERSION: u32 = 1;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Steps are being done, or were when the program ended.
    Attaching,
    /// All steps are done.
    Attached,
    /// Steps are being taken back, or were when the program ended.
    Detaching,
}

/// A disk that was attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Version of the form.
    pub version: u32,
    /// By what it is known here.
    pub name: String,
    /// The address that was given.
    pub url: String,
    /// The transport.
    pub transport: Transport,
    /// Name of the target, or NQN.
    pub target: String,
    /// LUN or namespace.
    pub unit: u32,
    /// What it is for.
    pub profile: Profile,
    /// How far it has come.
    pub state: State,
    /// Where it is mounted.
    pub mount: Option<String>,
    /// A name of the disk that stays the same.
    pub disk: Option<String>,
    /// The steps, in the order in which they are done.
    pub steps: Vec<Step>,
}

impl Attachment {
    /// One of which nothing is done.
    #[must_use]
    pub fn new(
        name: &str,
        url: &str,
        transport: Transport,
        target: &str,
        unit: u32,
        profile: Profile,
    ) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            url: url.to_owned(),
            transport,
            target: target.to_owned(),
            unit,
            profile,
            state: State::Attaching,
            mount: None,
            disk: None,
            steps: Vec::new(),
        }
    }

    /// Writes it down, safe from a crash.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, machine: &dyn Machine, state: &str) -> Result<(), Fault> {
        let path = path(state, &self.name);
        let wrong = |what: String| Fault(format!("the journal {path} cannot be written: {what}"));
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| wrong(error.to_string()))?;
        machine.put(&path, Some(&Kept { bytes, mode: 0o600 })).map_err(|fault| wrong(fault.0))
    }

    /// Takes it away: nothing is left to be taken back.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, machine: &dyn Machine, state: &str) -> Result<(), Fault> {
        let path = path(state, &self.name);
        machine.tidy(&path).and_then(|()| machine.put(&path, None))?;
        machine.prune(state);
        Ok(())
    }

    /// Whether this is what somebody means by a name, an address or a directory.
    #[must_use]
    pub fn is_meant(&self, word: &str) -> bool {
        let directory = word.trim_end_matches('/');
        self.name == word || self.url == word || self.mount.as_deref() == Some(directory)
    }
}

fn path(state: &str, name: &str) -> String {
    format!("{state}/{name}.json")
}

/// What the journals say.
#[derive(Clone, Debug, Default)]
pub struct Journals {
    /// What is attached, by its name.
    pub all: Vec<Attachment>,
    /// Journals that cannot be read.
    pub damaged: Vec<Damaged>,
}

/// A journal that cannot be read: nobody knows what to take back, and all else goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damaged {
    /// By what it was known.
    pub name: String,
    /// Its file.
    pub journal: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, journal, why } = self;
        write!(
            f,
            "{name} cannot be told or taken back, because its journal {journal} is damaged or not to be believed ({why}): restore the file; or take back by \
             hand what names {name} below /etc (fstab, systemd, udev, multipath, nvme) and its sessions (`iscsiadm -m session`, `nvme \
             list-subsys`), and remove it"
        )
    }
}

/// Fails if journals of another user could be in a directory: root would take back what they say.
///
/// # Errors
/// The directory is not root's or this user's own, or others can write to it.
pub fn check(system: &dyn System, state: &str) -> Result<(), Fault> {
    match system.is_own(state) {
        true => Ok(()),
        false => Err(Fault(format!(
            "{state} is another user's, or others can write to it, and what is in it is not believed: see who made it, and remove it"
        ))),
    }
}

/// All of them, by their names.
#[must_use]
pub fn all(system: &dyn System, state: &str) -> Journals {
    let mut found = Journals::default();
    for file in system.machine().source().names(state) {
        let Some(name) = file.strip_suffix(".json") else { continue };
        match read(system, state, &path(state, name)) {
            Ok(Some(attachment)) if attachment.name == name => found.all.push(attachment),
            Ok(None) => {}
            wrong => found.damaged.push(Damaged {
                name: name.to_owned(),
                journal: path(state, name),
                why: wrong.err().map_or_else(|| "it is another one's".to_owned(), |fault| fault.0),
            }),
        }
    }
    found
}

fn read(system: &dyn System, state: &str, path: &str) -> Result<Option<Attachment>, Fault> {
    let wrong = |error: serde_json::Error| Fault(error.to_string());
    check(system, state)?;
    if !system.is_own(path) {
        return Err(Fault("it is another user's, or others can write to it".to_owned()));
    }
    let Some(kept) = system.machine().get(path)? else { return Ok(None) };
    let json: serde_json::Value = serde_json::from_slice(&kept.bytes).map_err(wrong)?;
    let is = &json["version"];
    if is != VERSION {
        return Err(Fault(format!(
            "it has the form {is}, and this lunet knows {VERSION}: the lunet that wrote it can detach it"
        )));
    }
    serde_json::from_value(json).map(Some).map_err(wrong)
}
