//! Why there is no answer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What kind of error it is, in a word that stays the same from version to version.
    pub enum Code {
        /// It is no request: no JSON, too long, a field is missing or has the wrong type.
        BadRequest = "bad-request",
        /// One side does not know what the other one says: the message tells which is older.
        OtherVersion = "other-version",
        /// Too many clients ask at once.
        TooManyClients = "too-many-clients",
        /// Another change is under way.
        ChangeUnderWay = "change-under-way",
        /// The server stops.
        Stopping = "stopping",
        /// The configuration file was changed by hand, and is not read yet.
        ChangedByHand = "changed-by-hand",
        /// What the request names is not there.
        NotFound = "not-found",
        /// What the request would make is there already, or something is in its way.
        Exists = "exists",
        /// Sessions use what would be gone. `force` does it all the same.
        InUse = "in-use",
        /// Others than those who are named lose or get access by it, or nobody has any. `force` does it all the same.
        ChangesAccess = "changes-access",
        /// The last one of its kind stays.
        LastOne = "last-one",
        /// A value is not allowed, or the configuration would be wrong with it.
        Invalid = "invalid",
        /// It cannot be done with this kind of volume, target or portal.
        Unsupported = "unsupported",
        /// It can change at a restart only.
        NeedsRestart = "needs-restart",
        /// The volume is not served, or its storage is not where it was.
        NotServed = "not-served",
        /// The write-back of the volume has failed, and is not seen to yet.
        WriteBackFailed = "write-back-failed",
        /// An event loop of the server does not answer in time.
        NotAnswered = "not-answered",
        /// Anything else: the operating system has refused something, or lunet has a fault.
        Failed = "failed",
    }
}

/// Why there is no answer. Nothing has changed then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Error {
    /// What kind of error it is, for programs.
    pub code: Code,
    /// What is wrong, in a sentence without its full stop.
    pub message: String,
    /// What to do next; empty if the message says it.
    pub fix: String,
}

impl Error {
    /// What is wrong.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), fix: String::new() }
    }

    /// The same with what to do next.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }
}

/// The whole sentence.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.fix.is_empty() { Ok(()) } else { write!(f, ": {}", self.fix) }
    }
}

impl std::error::Error for Error {}
