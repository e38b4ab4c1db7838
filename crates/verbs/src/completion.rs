//! What became of a piece of work.

use std::fmt;

use lunet_ring::Buf;

use crate::EndpointId;

/// What kind of work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message to the peer.
    Send,
    /// A message to the peer that takes a key of it back.
    SendInvalidate,
    /// Memory written at the peer.
    Write,
    /// Memory read from the peer.
    Read,
    /// A message from the peer.
    Receive,
}

/// How it ended (InfiniBand Architecture Specification, volume 1, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done. For a send or a write: the peer's device has it.
    Success,
    /// A message was longer than the buffer that received it.
    LocalLength,
    /// The work or the queue is inconsistent.
    LocalOperation,
    /// This end's memory is not registered for what was to be done with it.
    LocalProtection,
    /// Given up, because the connection has ended.
    Flushed,
    /// The peer's answer made no sense.
    BadResponse,
    /// The peer's message hit memory that it may not write.
    LocalAccess,
    /// A request that the receiving device took for invalid: its buffer is too short, or the key cannot be
    /// invalidated. Both ends may see this.
    RemoteInvalidRequest,
    /// The peer's key or address is wrong, or does not allow this.
    RemoteAccess,
    /// The peer's device failed.
    RemoteOperation,
    /// The peer's device does not answer.
    RetryExceeded,
    /// The peer has no receive posted.
    ReceiverNotReady,
    /// The device has reported a fatal error.
    Fatal,
    /// The device refused to take the work, with this error number.
    NotPosted(i32),
    /// Something else, by the number that `ibv_wc_status` has for it.
    Other(u32),
}

impl Status {
    pub(crate) const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 | 3 => Self::LocalOperation,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 | 20 => Self::RetryExceeded,
            13 => Self::ReceiverNotReady,
            19 => Self::Fatal,
            other => Self::Other(other),
        }
    }

    /// True if this end's device has refused the work, or failed with it, whatever the peer has done.
    pub const fn is_of_this_end(self) -> bool {
        // IBV_WC_MW_BIND_ERR and IBV_WC_GENERAL_ERR.
        matches!(self, Self::LocalOperation | Self::NotPosted(_) | Self::Other(6 | 21))
    }

    /// True if it was done.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "done",
            Self::LocalLength => "a message was longer than its buffer",
            Self::LocalOperation => "the device took the work for invalid",
            Self::LocalProtection => "this end's memory is not registered for it",
            Self::Flushed => "given up, because the connection has ended",
            Self::BadResponse => "the peer's device answered nonsense",
            Self::LocalAccess => "the peer wrote where it may not",
            Self::RemoteInvalidRequest => {
                "the receiving device took the request for invalid: its buffer is too short, or the key \
                 cannot be invalidated"
            }
            Self::RemoteAccess => "the peer's key or address is wrong, or does not allow this",
            Self::RemoteOperation => "the peer's device failed",
            Self::RetryExceeded => "the peer's device does not answer",
            Self::ReceiverNotReady => "the peer has no receive posted",
            Self::Fatal => "the device failed",
            Self::NotPosted(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                return write!(f, "the device refused the work: {error}");
            }
            Self::Other(number) => return write!(f, "work completion status {number}"),
        })
    }
}

/// The end of a piece of work.
#[derive(Debug)]
pub struct Completion {
    /// The endpoint whose work has completed.
    pub endpoint: EndpointId,
    /// The number that the work was queued with.
    pub token: u64,
    /// What kind of work it was.
    pub operation: Operation,
    /// How it ended.
    pub status: Status,
    /// The length of what was received or read, in bytes; 0 for others, and after an error.
    pub bytes: u32,
    /// The key that the peer's message has invalidated: its memory can no more be reached by it.
    pub invalidated: Option<u32>,
    /// The buffer of a read, or of a receive its [head](crate::Scatter::head). What was sent or written is dropped.
    pub buf: Option<Buf>,
    /// The [body](crate::Scatter::body) of a receive that has one.
    pub body: Option<Buf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_words() {
        let words: Vec<String> = (0..30).map(|n| Status::from_number(n).to_string()).collect();
        assert_eq!((words[0].as_str(), words[5].contains("given up")), ("done", true));
        assert_eq!(Status::from_number(10), Status::RemoteAccess);
        assert_eq!(Status::from_number(12), Status::RetryExceeded);
        assert_eq!(words[29], "work completion status 29");
        assert!(Status::from_number(0).is_success());
        assert_eq!((1..30).filter(|n| Status::from_number(*n).is_success()).count(), 0);
    }

    #[test]
    fn failures_of_this_end_are_told_from_those_of_the_peer() {
        let own: Vec<u32> = (0..30).filter(|n| Status::from_number(*n).is_of_this_end()).collect();
        assert_eq!(own, [2, 3, 6, 21]);
        assert!(Status::NotPosted(libc::EINVAL).is_of_this_end());
    }

    #[test]
    fn work_that_was_refused_says_why() {
        let text = Status::NotPosted(libc::ENOMEM).to_string();
        assert!(text.contains("refused the work: Cannot allocate memory"), "{text}");
    }
}
