//! Sense data (SPC-5 4.4): why a command did not end with GOOD.

use core::fmt;
use core::ops::Deref;

use lunet_block::{Error, Op};

/// Sense keys (SPC-5 4.4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Key {
    /// Nothing to report.
    NoSense = 0x0,
    /// The logical unit cannot be accessed now.
    NotReady = 0x2,
    /// The medium failed.
    MediumError = 0x3,
    /// The device server failed.
    HardwareError = 0x4,
    /// The command or its parameters are wrong.
    IllegalRequest = 0x5,
    /// Something changed that the initiator must know of.
    UnitAttention = 0x6,
    /// The blocks are protected from the access.
    DataProtect = 0x7,
    /// A copy between devices failed.
    CopyAborted = 0xA,
    /// The device server gave the command up.
    AbortedCommand = 0xB,
    /// Data did not compare equal.
    Miscompare = 0xE,
}

/// An additional sense code and its qualifier (SPC-5 annex F).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    /// ADDITIONAL SENSE CODE.
    pub asc: u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub ascq: u8,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $asc:literal, $ascq:literal, $text:literal;)*) => {
        impl Code {
            $($(#[$doc])* #[doc = $text] pub const $name: Self = Self { asc: $asc, ascq: $ascq };)*

            /// The code's name in SPC-5, or an empty string for a code that lunet does not use.
            pub const fn name(self) -> &'static str {
                match (self.asc, self.ascq) {
                    $(($asc, $ascq) => $text,)*
                    _ => "",
                }
            }
        }
    };
}

codes! {
    NO_ADDITIONAL_SENSE = 0x00, 0x00, "NO ADDITIONAL SENSE INFORMATION";
    OPERATION_IN_PROGRESS = 0x00, 0x16, "OPERATION IN PROGRESS";
    INITIALIZING_COMMAND_REQUIRED = 0x04, 0x02,
        "LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED";
    MANUAL_INTERVENTION_REQUIRED = 0x04, 0x03,
        "LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED";
    FORMAT_IN_PROGRESS = 0x04, 0x04, "LOGICAL UNIT NOT READY, FORMAT IN PROGRESS";
    PORT_IN_STANDBY = 0x04, 0x0B,
        "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE";
    PORT_UNAVAILABLE = 0x04, 0x0C,
        "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE";
    SANITIZE_IN_PROGRESS = 0x04, 0x1B, "LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS";
    UNREACHABLE_COPY_TARGET = 0x08, 0x04, "UNREACHABLE COPY TARGET";
    WRITE_ERROR = 0x0C, 0x00, "WRITE ERROR";
    THIRD_PARTY_DEVICE_FAILURE = 0x0D, 0x01, "THIRD PARTY DEVICE FAILURE";
    COPY_TARGET_NOT_REACHABLE = 0x0D, 0x02, "COPY TARGET DEVICE NOT REACHABLE";
    INCORRECT_COPY_TARGET_TYPE = 0x0D, 0x03, "INCORRECT COPY TARGET DEVICE TYPE";
    INVALID_FIELD_IN_INFORMATION_UNIT = 0x0E, 0x03, "INVALID FIELD IN COMMAND INFORMATION UNIT";
    UNRECOVERED_READ_ERROR = 0x11, 0x00, "UNRECOVERED READ ERROR";
    PARAMETER_LIST_LENGTH_ERROR = 0x1A, 0x00, "PARAMETER LIST LENGTH ERROR";
    MISCOMPARE = 0x1D, 0x00, "MISCOMPARE DURING VERIFY OPERATION";
    INVALID_OPCODE = 0x20, 0x00, "INVALID COMMAND OPERATION CODE";
    LBA_OUT_OF_RANGE = 0x21, 0x00, "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    INVALID_TOKEN_OPERATION = 0x23, 0x00, "INVALID TOKEN OPERATION, CAUSE NOT REPORTABLE";
    UNSUPPORTED_TOKEN_TYPE = 0x23, 0x01, "INVALID TOKEN OPERATION, UNSUPPORTED TOKEN TYPE";
    TOKEN_UNKNOWN = 0x23, 0x04, "INVALID TOKEN OPERATION, TOKEN UNKNOWN";
    TOKEN_REVOKED = 0x23, 0x06, "INVALID TOKEN OPERATION, TOKEN REVOKED";
    TOKEN_EXPIRED = 0x23, 0x07, "INVALID TOKEN OPERATION, TOKEN EXPIRED";
    INVALID_TOKEN_LENGTH = 0x23, 0x0A, "INVALID TOKEN OPERATION, INVALID TOKEN LENGTH";
    INVALID_FIELD_IN_CDB = 0x24, 0x00, "INVALID FIELD IN CDB";
    LUN_NOT_SUPPORTED = 0x25, 0x00, "LOGICAL UNIT NOT SUPPORTED";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x26, 0x00, "INVALID FIELD IN PARAMETER LIST";
    INVALID_RELEASE = 0x26, 0x04, "INVALID RELEASE OF PERSISTENT RESERVATION";
    TOO_MANY_TARGET_DESCRIPTORS = 0x26, 0x06, "TOO MANY TARGET DESCRIPTORS";
    UNSUPPORTED_TARGET_DESCRIPTOR = 0x26, 0x07, "UNSUPPORTED TARGET DESCRIPTOR TYPE CODE";
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x26, 0x08, "TOO MANY SEGMENT DESCRIPTORS";
    UNSUPPORTED_SEGMENT_DESCRIPTOR = 0x26, 0x09, "UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE";
    UNEXPECTED_INEXACT_SEGMENT = 0x26, 0x0A, "UNEXPECTED INEXACT SEGMENT";
    INLINE_DATA_LENGTH_EXCEEDED = 0x26, 0x0B, "INLINE DATA LENGTH EXCEEDED";
    COPY_SEGMENT_GRANULARITY = 0x26, 0x0D, "COPY SEGMENT GRANULARITY VIOLATION";
    WRITE_PROTECTED = 0x27, 0x00, "WRITE PROTECTED";
    SPACE_ALLOCATION_FAILED = 0x27, 0x07, "SPACE ALLOCATION FAILED WRITE PROTECT";
    NOT_READY_TO_READY_CHANGE = 0x28, 0x00,
        "NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED";
    POWER_ON = 0x29, 0x00, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED";
    BUS_DEVICE_RESET = 0x29, 0x03, "BUS DEVICE RESET FUNCTION OCCURRED";
    NEXUS_LOSS = 0x29, 0x07, "I_T NEXUS LOSS OCCURRED";
    MODE_PARAMETERS_CHANGED = 0x2A, 0x01, "MODE PARAMETERS CHANGED";
    RESERVATIONS_PREEMPTED = 0x2A, 0x03, "RESERVATIONS PREEMPTED";
    RESERVATIONS_RELEASED = 0x2A, 0x04, "RESERVATIONS RELEASED";
    REGISTRATIONS_PREEMPTED = 0x2A, 0x05, "REGISTRATIONS PREEMPTED";
    ACCESS_STATE_CHANGED = 0x2A, 0x06, "ASYMMETRIC ACCESS STATE CHANGED";
    CAPACITY_CHANGED = 0x2A, 0x09, "CAPACITY DATA HAS CHANGED";
    COMMANDS_CLEARED = 0x2F, 0x00, "COMMANDS CLEARED BY ANOTHER INITIATOR";
    MEDIUM_FORMAT_CORRUPTED = 0x31, 0x00, "MEDIUM FORMAT CORRUPTED";
    FORMAT_COMMAND_FAILED = 0x31, 0x01, "FORMAT COMMAND FAILED";
    SANITIZE_COMMAND_FAILED = 0x31, 0x03, "SANITIZE COMMAND FAILED";
    SOFT_THRESHOLD_REACHED = 0x38, 0x07, "THIN PROVISIONING SOFT THRESHOLD REACHED";
    SAVING_NOT_SUPPORTED = 0x39, 0x00, "SAVING PARAMETERS NOT SUPPORTED";
    MEDIUM_NOT_PRESENT = 0x3A, 0x00, "MEDIUM NOT PRESENT";
    INQUIRY_CHANGED = 0x3F, 0x03, "INQUIRY DATA HAS CHANGED";
    REPORTED_LUNS_CHANGED = 0x3F, 0x0E, "REPORTED LUNS DATA HAS CHANGED";
    INTERNAL_TARGET_FAILURE = 0x44, 0x00, "INTERNAL TARGET FAILURE";
    MEDIUM_REMOVAL_PREVENTED = 0x53, 0x02, "MEDIUM REMOVAL PREVENTED";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x55, 0x04, "INSUFFICIENT REGISTRATION RESOURCES";
    IDLE_BY_COMMAND = 0x5E, 0x03, "IDLE CONDITION ACTIVATED BY COMMAND";
    STANDBY_BY_COMMAND = 0x5E, 0x04, "STANDBY CONDITION ACTIVATED BY COMMAND";
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02X}h/{:02X}h {}", self.asc, self.ascq, self.name())
    }
}

/// Where the field is that a command was refused for (SPC-5 4.4.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// In the command block; else in the parameter list.
    pub in_cdb: bool,
    /// The byte, counted from 0.
    pub byte: u16,
    /// The most significant bit of the field (0 to 7), if it is smaller than a byte.
    pub bit: Option<u8>,
}

/// Sense data before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The kind of trouble.
    pub key: Key,
    /// The trouble itself.
    pub code: Code,
    /// INFORMATION: the LBA (out of range, medium error) or the offset (miscompare).
    pub information: Option<u64>,
    /// The field at fault, with ILLEGAL REQUEST.
    pub field: Option<FieldPointer>,
    /// PROGRESS INDICATION in 65,536ths, with NOT READY (SPC-5 4.4.2.4.4). Never with `field`: both are
    /// the sense key specific data.
    pub progress: Option<u16>,
    /// Where a copy stopped, with COPY ABORTED.
    pub copy: Option<CopyFault>,
    /// It is about a command that was answered before (SPC-5 4.4.7), and the one that it goes with was not begun.
    pub deferred: bool,
}

/// Where a copy between devices stopped (SPC-5 5.18.7.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyFault {
    /// The segment's number, counted from 0.
    pub segment: u16,
    /// What one of the devices has said.
    pub forwarded: Option<Forwarded>,
}

/// The status and sense data of a copy source or copy destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The copy source's; else the copy destination's.
    pub source: bool,
    /// The status.
    pub status: u8,
    /// Its sense key.
    pub key: Key,
    /// Its additional sense code.
    pub code: Code,
}

/// The two encodings of sense data. The Control mode page's D_SENSE bit chooses between them for
/// sense data that goes with CHECK CONDITION, the DESC bit of REQUEST SENSE for its own answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SenseFormat {
    /// 18 bytes (SPC-5 4.4.3).
    #[default]
    Fixed,
    /// A header and descriptors (SPC-5 4.4.2).
    Descriptor,
}

impl Sense {
    /// Sense data with no further information.
    pub const fn new(key: Key, code: Code) -> Self {
        let (information, field, progress, copy) = (None, None, None, None);
        Self { key, code, information, field, progress, copy, deferred: false }
    }

    /// A deferred error.
    pub const fn deferred(key: Key, code: Code) -> Self {
        Self { deferred: true, ..Self::new(key, code) }
    }

    /// ILLEGAL REQUEST.
    pub const fn illegal(code: Code) -> Self {
        Self::new(Key::IllegalRequest, code)
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN CDB, for a field that starts at `byte` and whose most
    /// significant bit there is `bit` (7 for whole bytes).
    pub const fn invalid_cdb(byte: u16, bit: u8) -> Self {
        let bit = if bit < 7 { Some(bit) } else { None };
        Self {
            field: Some(FieldPointer { in_cdb: true, byte, bit }),
            ..Self::illegal(Code::INVALID_FIELD_IN_CDB)
        }
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN PARAMETER LIST, for a field that starts at `byte`.
    pub const fn invalid_parameter(byte: u16) -> Self {
        Self::parameter(Code::INVALID_FIELD_IN_PARAMETER_LIST, byte)
    }

    /// The same for a field smaller than a byte, whose most significant bit is `bit`.
    pub const fn invalid_parameter_bit(byte: u16, bit: u8) -> Self {
        let field = Some(FieldPointer { in_cdb: false, byte, bit: Some(bit) });
        Self { field, ..Self::illegal(Code::INVALID_FIELD_IN_PARAMETER_LIST) }
    }

    /// ILLEGAL REQUEST for a field of the parameter list that starts at `byte`.
    pub const fn parameter(code: Code, byte: u16) -> Self {
        let field = Some(FieldPointer { in_cdb: false, byte, bit: None });
        Self { field, ..Self::illegal(code) }
    }

    /// ILLEGAL REQUEST, LOGICAL BLOCK ADDRESS OUT OF RANGE, with the first address at fault.
    pub const fn lba_out_of_range(lba: u64) -> Self {
        Self::illegal(Code::LBA_OUT_OF_RANGE).with_information(lba)
    }

    /// COPY ABORTED, THIRD PARTY DEVICE FAILURE: what a copy source or copy destination has said.
    pub const fn third_party(fault: CopyFault) -> Self {
        Self { copy: Some(fault), ..Self::new(Key::CopyAborted, Code::THIRD_PARTY_DEVICE_FAILURE) }
    }

    /// MISCOMPARE: `offset` is that of the first byte that differs, from the start of the data
    /// (SBC-4 5.32).
    pub const fn miscompare(offset: u64) -> Self {
        Self::new(Key::Miscompare, Code::MISCOMPARE).with_information(offset)
    }

    /// The same with INFORMATION.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// The same with PROGRESS INDICATION.
    #[must_use]
    pub const fn with_progress(mut self, progress: u16) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The sense key specific data, if there is any.
    fn specific(&self) -> Option<[u8; 3]> {
        let progress = |progress: u16| {
            let [high, low] = progress.to_be_bytes();
            [0x80, high, low]
        };
        self.field.map(FieldPointer::encode).or(self.progress.map(progress))
    }

    /// What a failed block operation is to a SCSI initiator. The caller adds the LBA with
    /// [`with_information`](Self::with_information) where it knows it.
    pub const fn from_block(error: Error, op: Op) -> Self {
        let (key, code) = match error {
            Error::OutOfSpace => (Key::DataProtect, Code::SPACE_ALLOCATION_FAILED),
            Error::ReadOnly => (Key::DataProtect, Code::WRITE_PROTECTED),
            Error::OutOfRange => (Key::IllegalRequest, Code::LBA_OUT_OF_RANGE),
            Error::Io(_) => match op {
                Op::Read | Op::ReadMapped => (Key::MediumError, Code::UNRECOVERED_READ_ERROR),
                Op::Write { .. } | Op::Flush | Op::Unmap | Op::WriteZeroes { .. } => {
                    (Key::MediumError, Code::WRITE_ERROR)
                }
            },
            // Nothing that the initiator or another path could try again helps. Linux takes this for a failure of
            // the target: it gives the error to the file system at once, and dm-multipath keeps its paths.
            Error::NotStable(_) | Error::Gone => {
                (Key::HardwareError, Code::INTERNAL_TARGET_FAILURE)
            }
            // An operation that the backend does not have is never offered, so this is a fault.
            Error::Unsupported => (Key::HardwareError, Code::INTERNAL_TARGET_FAILURE),
            Error::Cancelled => (Key::AbortedCommand, Code::NO_ADDITIONAL_SENSE),
        };
        Self::new(key, code)
    }

    /// The bytes of the sense data.
    pub fn encode(&self, format: SenseFormat) -> SenseData {
        match format {
            SenseFormat::Fixed => self.encode_fixed(),
            SenseFormat::Descriptor => self.encode_descriptor(),
        }
    }

    fn encode_fixed(&self) -> SenseData {
        let mut b = [0; SenseData::MAX];
        b[0] = if self.deferred { 0x71 } else { 0x70 };
        b[2] = self.key as u8;
        // INFORMATION has 4 bytes here: a larger value is left out, not cut (VALID = 0).
        if let Some(Ok(information)) = self.information.map(u32::try_from) {
            b[0] |= 0x80;
            b[3..7].copy_from_slice(&information.to_be_bytes());
        }
        b[7] = 18 - 8;
        b[12] = self.code.asc;
        b[13] = self.code.ascq;
        if let Some(specific) = self.specific() {
            b[15..18].copy_from_slice(&specific);
        }
        let Some(copy) = self.copy else { return SenseData { bytes: b, len: 18 } };
        b[10..12].copy_from_slice(&copy.segment.to_be_bytes());
        let Some(forwarded) = copy.forwarded else { return SenseData { bytes: b, len: 18 } };
        // The first byte of COMMAND-SPECIFIC INFORMATION says where the source's status and sense
        // data stand, the second where the destination's.
        b[if forwarded.source { 8 } else { 9 }] = 18;
        b[18] = forwarded.status;
        let sense = Self::new(forwarded.key, forwarded.code).encode_fixed();
        b[19..37].copy_from_slice(&sense);
        b[7] = 37 - 8;
        SenseData { bytes: b, len: 37 }
    }

    fn encode_descriptor(&self) -> SenseData {
        let mut b = [0; SenseData::MAX];
        b[0] = if self.deferred { 0x73 } else { 0x72 };
        b[1] = self.key as u8;
        b[2] = self.code.asc;
        b[3] = self.code.ascq;
        let mut at = 8;
        if let Some(information) = self.information {
            b[at..at + 4].copy_from_slice(&[0x00, 0x0A, 0x80, 0]);
            b[at + 4..at + 12].copy_from_slice(&information.to_be_bytes());
            at += 12;
        }
        if let Some(specific) = self.specific() {
            b[at..at + 4].copy_from_slice(&[0x02, 0x06, 0, 0]);
            b[at + 4..at + 7].copy_from_slice(&specific);
            at += 8;
        }
        if let Some(copy) = self.copy {
            // Command-specific information, then forwarded sense data.
            b[at..at + 2].copy_from_slice(&[0x01, 0x0A]);
            b[at + 6..at + 8].copy_from_slice(&copy.segment.to_be_bytes());
            at += 12;
            if let Some(forwarded) = copy.forwarded {
                let from = if forwarded.source { 1 } else { 2 };
                b[at..at + 4].copy_from_slice(&[0x0C, 2 + 8, from, forwarded.status]);
                let sense = Self::new(forwarded.key, forwarded.code).encode_descriptor();
                b[at + 4..at + 12].copy_from_slice(&sense);
                at += 12;
            }
        }
        b[7] = at as u8 - 8;
        SenseData { bytes: b, len: at as u8 }
    }
}

impl FieldPointer {
    /// The sense key specific data (SPC-5 table 50): SKSV, C/D, BPV, bit pointer, field pointer.
    fn encode(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let bit = self.bit.map_or(0, |bit| 0x08 | (bit & 7));
        [0x80 | (u8::from(self.in_cdb) << 6) | bit, high, low]
    }
}

/// Encoded sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseData {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl SenseData {
    /// The longest that lunet sends, in bytes.
    pub const MAX: usize = 52;
}

impl Deref for SenseData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// What the sense data of an answer tells, in either format: numbers, as another device server may have others than lunet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseCodes {
    /// SENSE KEY.
    pub key: u8,
    /// ADDITIONAL SENSE CODE.
    pub asc: u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub ascq: u8,
}

impl SenseCodes {
    /// Reads sense data; `None` for none, or for what is too short.
    pub fn decode(sense: &[u8]) -> Option<Self> {
        let (key, at) = match sense.first()? & 0x7F {
            0x70 | 0x71 => (2, 12),
            0x72 | 0x73 => (1, 2),
            _ => return None,
        };
        let byte = |at: usize| sense.get(at).copied();
        Some(Self { key: byte(key)? & 0x0F, asc: byte(at)?, ascq: byte(at + 1)? })
    }

    /// The sense key is NOT READY.
    pub const fn is_not_ready(self) -> bool {
        self.key == Key::NotReady as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_of_either_format_is_read() {
        let sense = Sense::new(Key::NotReady, Code::NEXUS_LOSS);
        for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
            let data = sense.encode(format);
            let told = SenseCodes::decode(&data).unwrap();
            assert_eq!(told, SenseCodes { key: 2, asc: 0x29, ascq: 7 });
            assert!(told.is_not_ready());
            // Of a command before.
            let told = SenseCodes::decode(
                &Sense::deferred(Key::MediumError, Code::NEXUS_LOSS).encode(format),
            );
            assert_eq!(told.map(|told| (told.key, told.is_not_ready())), Some((3, false)));
            assert_eq!(SenseCodes::decode(&data[..3]), None);
        }
        assert_eq!(SenseCodes::decode(&[]), None);
        assert_eq!(SenseCodes::decode(&[0x12; 18]), None);
    }

    #[test]
    fn fixed_format() {
        let sense = Sense::lba_out_of_range(0x0102_0304);
        let expected = [0xF0, 0, 5, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];
        assert_eq!(*sense.encode(SenseFormat::Fixed), expected);
        // INFORMATION that does not fit is left out.
        let sense = Sense::lba_out_of_range(1 << 32);
        let expected = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0];
        assert_eq!(*sense.encode(SenseFormat::Fixed), expected);
        let sense = Sense::invalid_cdb(0x0102, 4);
        assert_eq!(sense.encode(SenseFormat::Fixed)[12..], [0x24, 0, 0, 0xCC, 1, 2]);
        let sense = Sense::new(Key::NotReady, Code::SANITIZE_IN_PROGRESS).with_progress(0x1234);
        let expected = [0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 0x1B, 0, 0x80, 0x12, 0x34];
        assert_eq!(*sense.encode(SenseFormat::Fixed), expected);
        let sense = Sense::invalid_parameter(8);
        assert_eq!(sense.encode(SenseFormat::Fixed)[12..], [0x26, 0, 0, 0x80, 0, 8]);
    }

    #[test]
    fn descriptor_format() {
        let mut sense = Sense::invalid_cdb(2, 7);
        let field = [0x02, 0x06, 0, 0, 0xC0, 0, 2, 0];
        let expected = [&[0x72, 5, 0x24, 0, 0, 0, 0, 8][..], &field].concat();
        assert_eq!(*sense.encode(SenseFormat::Descriptor), expected);
        sense.information = Some(0x0102_0304_0506_0708);
        let information = [0x00, 0x0A, 0x80, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = [&[0x72, 5, 0x24, 0, 0, 0, 0, 20][..], &information, &field].concat();
        assert_eq!(*sense.encode(SenseFormat::Descriptor), expected);
    }

    #[test]
    fn block_errors_have_their_sense() {
        let sense = |error, op| {
            let sense = Sense::from_block(error, op);
            (sense.key, sense.code)
        };
        let write = Op::Write { fua: false };
        assert_eq!(
            sense(Error::OutOfSpace, write),
            (Key::DataProtect, Code { asc: 0x27, ascq: 0x07 })
        );
        assert_eq!(sense(Error::ReadOnly, write), (Key::DataProtect, Code { asc: 0x27, ascq: 0 }));
        let io = Error::Io(5);
        assert_eq!(sense(io, Op::Read), (Key::MediumError, Code { asc: 0x11, ascq: 0 }));
        assert_eq!(sense(io, Op::ReadMapped), (Key::MediumError, Code { asc: 0x11, ascq: 0 }));
        for op in [write, Op::Flush, Op::Unmap] {
            assert_eq!(sense(io, op), (Key::MediumError, Code { asc: 0x0C, ascq: 0 }));
        }
        let range = Error::OutOfRange;
        assert_eq!(sense(range, Op::Read), (Key::IllegalRequest, Code { asc: 0x21, ascq: 0 }));
    }

    #[test]
    fn codes_print_their_numbers_and_names() {
        let text = std::format!("{:?}", Code::NEXUS_LOSS);
        assert_eq!(text, "29h/07h I_T NEXUS LOSS OCCURRED");
        assert_eq!(Code { asc: 0xFF, ascq: 0xFF }.name(), "");
    }
}
