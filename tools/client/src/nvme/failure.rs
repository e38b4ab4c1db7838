//! How a command failed.

use std::fmt;

use lunet_nvme::command::Completion;
use lunet_nvme::status::Status;

/// How a command ended that did not end well. Two that failed alike are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The controller's status (NVMe base specification, section 4.2.3).
    Status(Status),
    /// It succeeded, and less data came than was asked for.
    Short,
    /// The connection ended before the answer.
    Lost,
}

impl Failure {
    /// How the command failed, if it did.
    pub(super) fn of(completion: Option<Completion>) -> Option<Self> {
        match completion {
            None => Some(Self::Lost),
            Some(Completion { status, .. }) if status.is_success() => None,
            Some(Completion { status, .. }) => Some(Self::Status(status)),
        }
    }

    fn has(self, wanted: &[Status]) -> bool {
        matches!(self, Self::Status(status) if wanted.contains(&status.code()))
    }

    /// What it tells of the namespace.
    #[must_use]
    pub fn state(self) -> State {
        let Self::Status(status) = self else { return State::Other };
        match status.code() {
            Status::NOT_READY => State::NotReady,
            Status::WRITE_FAULT | Status::READ_ERROR | Status::INTERNAL => State::Failed,
            Status::CAPACITY => State::Full,
            Status::RESERVATION_CONFLICT | Status::PREEMPTED => State::Reserved,
            Status::SANITIZING => State::Sanitizing,
            Status::WRITE_PROTECTED => State::Protected,
            Status::INTERRUPTED => State::Busy,
            Status::TRANSPORT => State::Damaged,
            Status::INVALID_NAMESPACE => State::Gone,
            code if code.is_of_path() => State::Path,
            _ => State::Other,
        }
    }

    /// True if the same command may succeed at once: it was damaged on its way.
    #[must_use]
    pub fn is_transient(self) -> bool {
        self.has(&[Status::TRANSPORT])
    }

    /// True if the controller has no time or room for the command now.
    #[must_use]
    pub fn is_busy(self) -> bool {
        self.has(&[Status::INTERRUPTED, Status::ANA_TRANSITION])
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Status(status) = *self else {
            return f.write_str(match self {
                Self::Short => "it succeeded, and less data came than was asked for",
                _ => "the connection ended before the answer",
            });
        };
        write!(f, "{status}")?;
        match self.state() {
            State::Other => Ok(()),
            state => write!(f, ": {}", state.advice()),
        }
    }
}

/// What a status tells of a namespace, and of the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its storage is not there.
    NotReady,
    /// Its storage failed.
    Failed,
    /// Its storage is full.
    Full,
    /// Another host has reserved it.
    Reserved,
    /// It is being erased.
    Sanitizing,
    /// It takes no writes.
    Protected,
    /// The controller has no room for the command now.
    Busy,
    /// The path does not lead to it.
    Path,
    /// Data is damaged on its way.
    Damaged,
    /// It is not there, or not any more.
    Gone,
    /// The status says nothing of it.
    Other,
}

impl State {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotReady => "not ready",
            Self::Failed => "failed",
            Self::Full => "full",
            Self::Reserved => "reserved",
            Self::Sanitizing => "sanitizing",
            Self::Protected => "write-protected",
            Self::Busy => "busy",
            Self::Path => "path",
            Self::Damaged => "damaged",
            Self::Gone => "gone",
            Self::Other => "other",
        }
    }

    /// What it means, and the next step.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::NotReady => {
                "the storage of the namespace is not there; look at the target which one it is (lunet: `lunet volume list`)"
            }
            Self::Failed => {
                "the storage of the namespace failed; look into the target's log (lunet: `lunet volume list`)"
            }
            Self::Full => "the storage of the namespace is full; make room at the target",
            Self::Reserved => {
                "another host has reserved the namespace; `nvme resv-report` on a host shows which one"
            }
            Self::Sanitizing => {
                "the namespace is being erased; wait for the end of that (lunet: `lunet volume list`)"
            }
            Self::Protected => {
                "the namespace takes no writes; `lunet bench --read-only` only reads"
            }
            Self::Busy => {
                "the target has no room for the command now; try again, or with less load"
            }
            Self::Path => "this path does not lead to the namespace now; use another portal",
            Self::Damaged => "data is damaged on its way; look at cables and network adapters",
            Self::Gone => {
                "there is no such namespace, or not any more; `lunet doctor nvme-tcp://HOST:PORT/NQN` shows those that there are"
            }
            Self::Other => "look into the target's log",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(status: Status) -> Failure {
        Failure::of(Some(status.into())).expect("a failure")
    }

    #[test]
    fn statuses_are_named() {
        let text = "LBA out of range (0x4080)";
        assert_eq!(failed(Status::LBA_RANGE.no_retry()).to_string(), text);
        assert!(failed(Status::RESERVATION_CONFLICT).to_string().contains("another host"));
        let lost = failed(Status::NOT_READY).to_string();
        assert!(lost.starts_with("namespace not ready (0x0082): the storage"), "{lost}");
        assert_eq!(failed(Status::ANA_LOST.no_retry()).state(), State::Path);
        assert!(failed(Status::INTERRUPTED.retry_after(1)).is_busy());
        assert!(failed(Status::TRANSPORT).is_transient() && !Failure::Lost.is_busy());
        assert_eq!(Failure::of(Some(Completion::SUCCESS)), None);
        assert_eq!(Failure::of(None), Some(Failure::Lost));
    }
}
