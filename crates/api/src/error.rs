//! Why there is no answer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// What kind of error it is, in a word that stays the same from version to version.
    pub enum Code {
        /// The request is invalid: not JSON, too long, or a field is missing or has the wrong type.
        BadRequest = "bad-request",
        /// Client and server have incompatible versions; the message says which is older.
        OtherVersion = "other-version",
        /// Too many clients are connected.
        TooManyClients = "too-many-clients",
        /// Another change is in progress.
        ChangeUnderWay = "change-under-way",
        /// The server is stopping.
        Stopping = "stopping",
        /// The configuration file was edited and has not been applied yet.
        ChangedByHand = "changed-by-hand",
        /// What the request names does not exist.
        NotFound = "not-found",
        /// What the request would create exists already, or something else has its place.
        Exists = "exists",
        /// Sessions use what would be removed. `force` overrides this.
        InUse = "in-use",
        /// Initiators that the change does not name would lose or gain access, or nobody would have access. `force` overrides this.
        ChangesAccess = "changes-access",
        /// The last one of its kind cannot be removed.
        LastOne = "last-one",
        /// A value is not allowed, or the resulting configuration would be invalid.
        Invalid = "invalid",
        /// It is not supported for this kind of volume, target or portal.
        Unsupported = "unsupported",
        /// It can only change at a restart.
        NeedsRestart = "needs-restart",
        /// The volume is not served, or its storage is missing.
        NotServed = "not-served",
        /// The write-back of the volume has failed, and the volume has not been reopened yet.
        WriteBackFailed = "write-back-failed",
        /// An event loop of the server did not respond in time.
        NotAnswered = "not-answered",
        /// Any other error: the operating system refused something, or lunet has a defect.
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

/// The message with the fix, as one sentence.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.fix.is_empty() { Ok(()) } else { write!(f, ": {}", self.fix) }
    }
}

impl std::error::Error for Error {}
