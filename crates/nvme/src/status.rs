//! Status of a completed command (NVMe base specification, section 3.3.3.2.1).

use core::fmt;

/// Bits of the status code and its type.
const CODE: u16 = 0x07ff;
/// Where Command Retry Delay is.
const CRD_SHIFT: u16 = 11;
/// Do Not Retry.
const DNR: u16 = 0x4000;

/// The status of a command: the Status field of a completion queue entry without the phase tag.
/// Bits 7:0 are the status code, 10:8 its type, 12:11 Command Retry Delay, 13 More, 14 Do Not Retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:expr, $text:expr;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }

        /// The name of a status code, if it is a known one.
        const fn name(code: u16) -> Option<&'static str> {
            match code {
                $($value => Some($text),)*
                _ => None,
            }
        }
    };
}

statuses! {
    /// The command completed without error.
    SUCCESS = 0x000, "successful completion";
    /// The opcode is not supported.
    INVALID_OPCODE = 0x001, "invalid command opcode";
    /// A field of the command is not valid.
    INVALID_FIELD = 0x002, "invalid field in command";
    /// The command identifier is in use.
    ID_CONFLICT = 0x003, "command ID conflict";
    /// Data could not be transferred.
    DATA_TRANSFER = 0x004, "data transfer error";
    /// An error within the controller.
    INTERNAL = 0x006, "internal error";
    /// An Abort command ended it.
    ABORTED = 0x007, "command abort requested";
    /// Its queue was deleted.
    QUEUE_DELETED = 0x008, "command aborted due to SQ deletion";
    /// The other command of the fused pair failed.
    FAILED_FUSED = 0x009, "command aborted due to failed fused command";
    /// The other command of the fused pair is not there.
    MISSING_FUSED = 0x00a, "command aborted due to missing fused command";
    /// The namespace does not exist, or not for this controller.
    INVALID_NAMESPACE = 0x00b, "invalid namespace or format";
    /// The command is not allowed at this time.
    SEQUENCE = 0x00c, "command sequence error";
    /// The length of the data is not what the command needs.
    DATA_LENGTH = 0x00f, "data SGL length invalid";
    /// The data descriptor is of a type that is not supported.
    SGL_TYPE = 0x011, "SGL descriptor type invalid";
    /// The data is beyond the capsule.
    SGL_OFFSET = 0x016, "SGL offset invalid";
    /// The host identifier has another format than that of the other controllers.
    HOST_ID_FORMAT = 0x018, "host identifier inconsistent format";
    /// The keep alive timer has expired.
    KEEP_ALIVE_EXPIRED = 0x019, "keep alive timer expired";
    /// The keep alive timeout is not supported.
    KEEP_ALIVE_INVALID = 0x01a, "keep alive timeout invalid";
    /// A preempt and abort of a reservation ended it.
    PREEMPTED = 0x01b, "command aborted due to preempt and abort";
    /// A sanitize operation is under way.
    SANITIZING = 0x01d, "sanitize in progress";
    /// The namespace is write protected.
    WRITE_PROTECTED = 0x020, "namespace is write protected";
    /// The command was not executed for lack of resources, and may be retried.
    INTERRUPTED = 0x021, "command interrupted";
    /// Data was damaged on its way; the command may be retried.
    TRANSPORT = 0x022, "transient transport error";
    /// A block beyond the end of the namespace.
    LBA_RANGE = 0x080, "LBA out of range";
    /// The storage behind the namespace is full.
    CAPACITY = 0x081, "capacity exceeded";
    /// The namespace is not ready.
    NOT_READY = 0x082, "namespace not ready";
    /// A reservation keeps the host from it.
    RESERVATION_CONFLICT = 0x083, "reservation conflict";
    /// The queue identifier is not valid.
    INVALID_QUEUE = 0x101, "invalid queue identifier";
    /// The queue size is not valid.
    INVALID_QUEUE_SIZE = 0x102, "invalid queue size";
    /// Too many Abort commands.
    ABORT_LIMIT = 0x103, "abort command limit exceeded";
    /// Too many Asynchronous Event Requests.
    EVENT_LIMIT = 0x105, "asynchronous event request limit exceeded";
    /// The log page is not supported.
    INVALID_LOG = 0x109, "invalid log page";
    /// The feature cannot be saved.
    NOT_SAVEABLE = 0x10d, "feature identifier not saveable";
    /// The feature cannot be changed.
    NOT_CHANGEABLE = 0x10e, "feature not changeable";
    /// The feature is not one of a namespace.
    NOT_OF_NAMESPACE = 0x10f, "feature not namespace specific";
    /// Connect: the format of the record is not supported.
    CONNECT_FORMAT = 0x180, "connect incompatible format";
    /// Connect: the controller is busy.
    CONNECT_BUSY = 0x181, "connect controller busy";
    /// Connect: a parameter is not valid; the result says which.
    CONNECT_PARAMETER = 0x182, "connect invalid parameters";
    /// Connect: the discovery has to start over.
    CONNECT_RESTART = 0x183, "connect restart discovery";
    /// Connect: the host may not connect here.
    CONNECT_HOST = 0x184, "connect invalid host";
    /// The discovery has to start over.
    DISCOVERY_RESTART = 0x190, "discovery restart";
    /// The host has to authenticate first.
    AUTHENTICATION_REQUIRED = 0x191, "authentication required";
    /// Storage did not take the data.
    WRITE_FAULT = 0x280, "write fault";
    /// Storage did not give the data.
    READ_ERROR = 0x281, "unrecovered read error";
    /// Compare: the data differs.
    COMPARE_FAILURE = 0x285, "compare failure";
    /// The path failed within the controller.
    PATH_INTERNAL = 0x300, "internal path error";
    /// ANA: the namespace is lost on this path for good.
    ANA_LOST = 0x301, "asymmetric access persistent loss";
    /// ANA: the namespace is inaccessible on this path.
    ANA_INACCESSIBLE = 0x302, "asymmetric access inaccessible";
    /// ANA: the state of the path is changing.
    ANA_TRANSITION = 0x303, "asymmetric access transition";
    /// Host: the command was aborted by the host's driver.
    HOST_ABORTED = 0x371, "command aborted by host";
}

impl Status {
    /// The status with these bits; the phase tag is not among them.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// All bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The status that tells the host not to retry the command. It ends a Linux host's attempts
    /// to connect, too, so it is not for what may pass.
    #[must_use]
    pub const fn no_retry(self) -> Self {
        Self(self.0 | DNR)
    }

    /// The status with Command Retry Delay: retry after the time of CRDT1, CRDT2 or CRDT3.
    #[must_use]
    pub const fn retry_after(self, crd: u8) -> Self {
        Self(self.0 | (crd as u16 & 3) << CRD_SHIFT)
    }

    /// Status code and type alone, to compare with.
    #[must_use]
    pub const fn code(self) -> Self {
        Self(self.0 & CODE)
    }

    /// True if the host is told not to retry.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self.0 & DNR != 0
    }

    /// True if the command completed without error.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE == 0
    }

    /// True if another path may do better.
    #[must_use]
    pub const fn is_of_path(self) -> bool {
        self.0 & 0x0700 == 0x0300
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match name(self.code().0) {
            Some(name) => write!(f, "{name} ({:#06x})", self.0),
            None => write!(f, "status {:#06x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn bits_are_those_that_linux_prints() {
        assert_eq!(Status::CONNECT_HOST.no_retry().bits(), 0x4184);
        assert_eq!(Status::RESERVATION_CONFLICT.no_retry().bits(), 0x4083);
        assert_eq!(Status::INTERRUPTED.retry_after(1).bits(), 0x0821);
        assert_eq!(Status::INTERRUPTED.retry_after(3).code(), Status::INTERRUPTED);
        assert!(Status::ANA_TRANSITION.is_of_path() && !Status::COMPARE_FAILURE.is_of_path());
        assert!(Status::SUCCESS.no_retry().is_success());
        assert_eq!(format!("{}", Status::LBA_RANGE.no_retry()), "LBA out of range (0x4080)");
        assert_eq!(format!("{}", Status::from_bits(0xffff)), "status 0x7fff");
    }
}
