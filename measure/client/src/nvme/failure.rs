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
        f.write_str(match status.code() {
            Status::RESERVATION_CONFLICT => ": another host has reserved the namespace",
            Status::INVALID_NAMESPACE => ": the namespace is not there any more",
            Status::ANA_INACCESSIBLE | Status::ANA_LOST => {
                ": this path does not lead to the namespace now; use another portal"
            }
            _ => "",
        })
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
        assert!(failed(Status::INTERRUPTED.retry_after(1)).is_busy());
        assert!(failed(Status::TRANSPORT).is_transient() && !Failure::Lost.is_busy());
        assert_eq!(Failure::of(Some(Completion::SUCCESS)), None);
        assert_eq!(Failure::of(None), Some(Failure::Lost));
    }
}
