//! PDUs that the initiator sends.

use super::{U16, U24, U32, U64, wire};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Declares one PDU: the fields of its basic header segment in wire order.
macro_rules! pdu {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
            Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            /// Immediate bit and opcode.
            pub opcode: u8,
            /// Flags: bit 7 is Final (Transit in login PDUs), the others belong to the opcode.
            pub flags: u8,
            $($(#[$fdoc])* pub $field: $type,)*
        }

        impl Default for $name {
            /// The right opcode, all else zero.
            fn default() -> Self {
                Self { opcode: <Self as crate::pdu::Wire>::OPCODE as u8, flags: 0, $($field: Default::default(),)* }
            }
        }
    };
}
pub(super) use pdu;

pdu! {
    /// NOP-Out (RFC 7143 section 11.18).
    NopOut {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: ping data.
        data_len: U24,
        /// Logical unit number; copied from the NOP-In that is answered.
        lun: U64,
        /// Initiator Task Tag, or the reserved tag when no answer is wanted.
        itt: U32,
        /// Target Transfer Tag of the NOP-In that is answered, or the reserved tag.
        ttt: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved2: [u8; 16],
    }
}

pdu! {
    /// SCSI Command (RFC 7143 section 11.3).
    ScsiCommand {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: immediate data.
        data_len: U24,
        /// Logical unit number, the 8 bytes of SAM-5.
        lun: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// Expected Data Transfer Length in bytes (of the write part of a bidirectional command).
        expected_len: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// The first 16 bytes of the command descriptor block.
        cdb: [u8; 16],
    }
}

pdu! {
    /// Task Management Function Request (RFC 7143 section 11.5).
    TmfRequest {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: always 0.
        data_len: U24,
        /// Logical unit number, where the function has one.
        lun: U64,
        /// Initiator Task Tag of the function itself.
        itt: U32,
        /// Referenced Task Tag: the task to abort or reassign.
        referenced_itt: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// RefCmdSN: CmdSN of the task to abort.
        ref_cmd_sn: U32,
        /// ExpDataSN, for TASK REASSIGN.
        exp_data_sn: U32,
        /// Reserved.
        reserved2: [u8; 8],
    }
}

pdu! {
    /// Login Request (RFC 7143 section 11.12).
    LoginRequest {
        /// Version-max.
        version_max: u8,
        /// Version-min.
        version_min: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: key data.
        data_len: U24,
        /// Initiator part of the session identifier.
        isid: [u8; 6],
        /// Target Session Identifying Handle; 0 asks for a new session.
        tsih: U16,
        /// Initiator Task Tag.
        itt: U32,
        /// Connection ID.
        cid: U16,
        /// Reserved.
        reserved1: [u8; 2],
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved2: [u8; 16],
    }
}

pdu! {
    /// Text Request (RFC 7143 section 11.10).
    TextRequest {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: key data.
        data_len: U24,
        /// Logical unit number, copied with the Target Transfer Tag.
        lun: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// Target Transfer Tag of the answer that is continued, or the reserved tag.
        ttt: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved2: [u8; 16],
    }
}

pdu! {
    /// SCSI Data-Out (RFC 7143 section 11.7).
    DataOut {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: the data.
        data_len: U24,
        /// Logical unit number, when the Target Transfer Tag is given.
        lun: U64,
        /// Initiator Task Tag of the command.
        itt: U32,
        /// Target Transfer Tag of the R2T, or the reserved tag for unsolicited data.
        ttt: U32,
        /// Reserved.
        reserved2: [u8; 4],
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved3: [u8; 4],
        /// DataSN: number of the PDU within its sequence.
        data_sn: U32,
        /// Buffer Offset: where the data belongs in the command's transfer, in bytes.
        offset: U32,
        /// Reserved.
        reserved4: [u8; 4],
    }
}

pdu! {
    /// Logout Request (RFC 7143 section 11.14). The reason is in `flags`.
    LogoutRequest {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: always 0.
        data_len: U24,
        /// Reserved.
        reserved2: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// Connection ID of the connection to close.
        cid: U16,
        /// Reserved.
        reserved3: [u8; 2],
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved4: [u8; 16],
    }
}

pdu! {
    /// SNACK Request (RFC 7143 section 11.16). The type is in `flags`.
    SnackRequest {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: always 0.
        data_len: U24,
        /// Logical unit number.
        lun: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// Target Transfer Tag or SNACK Tag.
        ttt: U32,
        /// Reserved.
        reserved2: [u8; 4],
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Reserved.
        reserved3: [u8; 8],
        /// BegRun: first number asked for.
        begin: U32,
        /// RunLength: how many.
        run: U32,
    }
}

wire! {
    NopOut => NopOut,
    ScsiCommand => ScsiCommand,
    TmfRequest => TmfRequest,
    LoginRequest => LoginRequest,
    TextRequest => TextRequest,
    DataOut => DataOut,
    LogoutRequest => LogoutRequest,
    SnackRequest => SnackRequest,
}
