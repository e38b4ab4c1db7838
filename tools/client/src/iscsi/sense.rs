//! How a command failed.

use std::fmt;

use lunet_iscsi::initiator::{Completion, Outcome};
use lunet_scsi::Code;
use lunet_scsi::status::{BUSY, CHECK_CONDITION, GOOD, RESERVATION_CONFLICT, TASK_SET_FULL};

/// Sense key UNIT ATTENTION.
const UNIT_ATTENTION: u8 = 0x6;

/// How a command ended that did not end well. Two that failed alike are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// CHECK CONDITION: sense key, additional sense code and its qualifier (SPC-5 4.4).
    Sense {
        /// Sense key.
        key: u8,
        /// ADDITIONAL SENSE CODE.
        asc: u8,
        /// ADDITIONAL SENSE CODE QUALIFIER.
        ascq: u8,
    },
    /// Another SCSI status.
    Status(u8),
    /// The target failed in a way of iSCSI's own (RFC 7143 section 11.4.3).
    Response(u8),
    /// The target rejected the PDU for this reason (RFC 7143 section 11.17.1).
    Rejected(u8),
    /// It was aborted.
    Aborted,
    /// The connection ended before the answer.
    Lost,
}

impl Failure {
    /// How the command failed, if it did.
    pub(super) fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Completed(done) => Self::completed(done),
            Outcome::Aborted => Some(Self::Aborted),
            Outcome::Rejected(reason) => Some(Self::Rejected(*reason)),
            Outcome::Lost => Some(Self::Lost),
        }
    }

    fn completed(done: &Completion) -> Option<Self> {
        if done.response != 0 {
            return Some(Self::Response(done.response));
        }
        match done.status {
            GOOD => None,
            CHECK_CONDITION => {
                let (key, asc, ascq) = parse(&done.sense);
                Some(Self::Sense { key, asc, ascq })
            }
            status => Some(Self::Status(status)),
        }
    }

    /// True if the same command may succeed at once: something was to be told first.
    #[must_use]
    pub const fn is_attention(self) -> bool {
        matches!(self, Self::Sense { key: UNIT_ATTENTION, .. })
    }

    /// True if the target has no time or room for the command now.
    #[must_use]
    pub const fn is_busy(self) -> bool {
        matches!(self, Self::Status(BUSY | TASK_SET_FULL))
    }
}

/// Sense key, code and qualifier of either format; zeroes where there is none.
fn parse(sense: &[u8]) -> (u8, u8, u8) {
    let at = |index: usize| sense.get(index).copied().unwrap_or(0);
    match at(0) & 0x7F {
        0x70 | 0x71 => (at(2) & 0xF, at(12), at(13)),
        _ => (at(1) & 0xF, at(2), at(3)),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Sense { key, asc, ascq } => {
                let name = Code { asc, ascq }.name();
                let gap = if name.is_empty() { "" } else { " " };
                write!(f, "{}: {name}{gap}({asc:02X}h/{ascq:02X}h)", key_name(key))
            }
            Self::Status(BUSY) => f.write_str("BUSY"),
            Self::Status(RESERVATION_CONFLICT) => {
                f.write_str("RESERVATION CONFLICT: another initiator has reserved the unit")
            }
            Self::Status(TASK_SET_FULL) => f.write_str("TASK SET FULL: use a smaller depth"),
            Self::Status(status) => write!(f, "SCSI status {status:02X}h"),
            Self::Response(code) => write!(f, "iSCSI response {code:02X}h (target failure)"),
            Self::Rejected(reason) => {
                write!(f, "the target rejected the PDU, reason {reason:02X}h")
            }
            Self::Aborted => f.write_str("aborted"),
            Self::Lost => f.write_str("the connection ended before the answer"),
        }
    }
}

fn key_name(key: u8) -> &'static str {
    match key {
        0x0 => "NO SENSE",
        0x1 => "RECOVERED ERROR",
        0x2 => "NOT READY",
        0x3 => "MEDIUM ERROR",
        0x4 => "HARDWARE ERROR",
        0x5 => "ILLEGAL REQUEST",
        0x6 => "UNIT ATTENTION",
        0x7 => "DATA PROTECT",
        0xB => "ABORTED COMMAND",
        0xE => "MISCOMPARE",
        _ => "other sense key",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sense: &[u8]) -> Failure {
        let done = Completion { status: 2, sense: sense.into(), ..Completion::default() };
        Failure::of(&Outcome::Completed(done)).expect("a failure")
    }

    #[test]
    fn sense_of_both_formats_is_named() {
        let fixed = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];
        let text = "ILLEGAL REQUEST: LOGICAL BLOCK ADDRESS OUT OF RANGE (21h/00h)";
        assert_eq!(check(&fixed).to_string(), text);
        assert_eq!(check(&[0x72, 5, 0x21, 0]), check(&fixed));
        assert!(check(&[0x72, 6, 0x29, 0]).is_attention());
        assert_eq!(check(&[]).to_string(), "NO SENSE: NO ADDITIONAL SENSE INFORMATION (00h/00h)");
    }
}
