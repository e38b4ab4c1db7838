//! PDUs that the target sends.

use super::initiator::pdu;
use super::{U16, U24, U32, U64, wire};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pdu! {
    /// NOP-In (RFC 7143 section 11.19).
    NopIn {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: the ping data returned.
        data_len: U24,
        /// Logical unit number, to be copied into the answering NOP-Out.
        lun: U64,
        /// Initiator Task Tag of the NOP-Out that is answered, or the reserved tag.
        itt: U32,
        /// Target Transfer Tag when an answer is wanted, or the reserved tag.
        ttt: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved2: [u8; 12],
    }
}

pdu! {
    /// SCSI Response (RFC 7143 section 11.4).
    ScsiResponse {
        /// Response: 0 command completed at target, 1 target failure.
        response: u8,
        /// SCSI status (SAM-5).
        status: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: sense data with its 2-byte length.
        data_len: U24,
        /// Reserved.
        reserved1: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// SNACK Tag: 0 at error recovery level 0.
        snack_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// ExpDataSN: number of Data-In and R2T PDUs that the command had.
        exp_data_sn: U32,
        /// Residual count of the read part of a bidirectional command, in bytes.
        bidi_residual: U32,
        /// Residual count in bytes.
        residual: U32,
    }
}

pdu! {
    /// Task Management Function Response (RFC 7143 section 11.6).
    TmfResponsePdu {
        /// Response, see [`TmfResponse`](super::TmfResponse).
        response: u8,
        /// Reserved.
        reserved1: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: always 0.
        data_len: U24,
        /// Reserved.
        reserved2: U64,
        /// Initiator Task Tag of the function.
        itt: U32,
        /// Reserved.
        reserved3: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved4: [u8; 12],
    }
}

pdu! {
    /// Login Response (RFC 7143 section 11.13).
    LoginResponse {
        /// Version-max.
        version_max: u8,
        /// Version-active.
        version_active: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: key data.
        data_len: U24,
        /// Initiator part of the session identifier.
        isid: [u8; 6],
        /// Target Session Identifying Handle, given with the last response.
        tsih: U16,
        /// Initiator Task Tag.
        itt: U32,
        /// Reserved.
        reserved1: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Status-Class and Status-Detail, see [`LoginStatus`](super::LoginStatus).
        status: U16,
        /// Reserved.
        reserved2: [u8; 10],
    }
}

pdu! {
    /// Text Response (RFC 7143 section 11.11).
    TextResponse {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: key data.
        data_len: U24,
        /// Logical unit number, to be copied with the Target Transfer Tag.
        lun: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// Target Transfer Tag when the exchange goes on, or the reserved tag.
        ttt: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved2: [u8; 12],
    }
}

pdu! {
    /// SCSI Data-In (RFC 7143 section 11.7).
    DataIn {
        /// Reserved.
        reserved1: u8,
        /// SCSI status, when the Status bit is set.
        status: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: the data.
        data_len: U24,
        /// Logical unit number, when the Acknowledge bit is set.
        lun: U64,
        /// Initiator Task Tag of the command.
        itt: U32,
        /// Target Transfer Tag, when the Acknowledge bit is set; else the reserved tag.
        ttt: U32,
        /// StatSN, when the Status bit is set.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// DataSN: number of the PDU within the command.
        data_sn: U32,
        /// Buffer Offset: where the data belongs in the command's transfer, in bytes.
        offset: U32,
        /// Residual count in bytes, when the Status bit is set.
        residual: U32,
    }
}

pdu! {
    /// Ready To Transfer (RFC 7143 section 11.8).
    R2t {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: always 0.
        data_len: U24,
        /// Logical unit number, to be copied into the Data-Out.
        lun: U64,
        /// Initiator Task Tag of the command.
        itt: U32,
        /// Target Transfer Tag, to be copied into the Data-Out.
        ttt: U32,
        /// StatSN: the next one; it is not advanced.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// R2TSN: number of the R2T within the command.
        r2t_sn: U32,
        /// Buffer Offset of the first byte wanted.
        offset: U32,
        /// Desired Data Transfer Length in bytes.
        desired_len: U32,
    }
}

pdu! {
    /// Asynchronous Message (RFC 7143 section 11.9).
    AsyncMessage {
        /// Reserved.
        reserved1: [u8; 2],
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: sense data of a SCSI event.
        data_len: U24,
        /// Logical unit number of a SCSI event.
        lun: U64,
        /// The reserved tag.
        itt: U32,
        /// Reserved.
        reserved2: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// AsyncEvent, see [`AsyncEvent`](super::AsyncEvent).
        event: u8,
        /// AsyncVCode.
        vendor_code: u8,
        /// Parameter1.
        parameter1: U16,
        /// Parameter2.
        parameter2: U16,
        /// Parameter3.
        parameter3: U16,
        /// Reserved.
        reserved3: [u8; 4],
    }
}

pdu! {
    /// Logout Response (RFC 7143 section 11.15).
    LogoutResponsePdu {
        /// Response, see [`LogoutResponse`](super::LogoutResponse).
        response: u8,
        /// Reserved.
        reserved1: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength: always 0.
        data_len: U24,
        /// Reserved.
        reserved2: U64,
        /// Initiator Task Tag.
        itt: U32,
        /// Reserved.
        reserved3: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Reserved.
        reserved4: U32,
        /// Time2Wait in seconds.
        time2wait: U16,
        /// Time2Retain in seconds.
        time2retain: U16,
        /// Reserved.
        reserved5: [u8; 4],
    }
}

pdu! {
    /// Reject (RFC 7143 section 11.17). The data segment is the header of the PDU in question.
    Reject {
        /// Reason, see [`RejectReason`](super::RejectReason).
        reason: u8,
        /// Reserved.
        reserved1: u8,
        /// TotalAHSLength, in 4-byte words.
        ahs_words: u8,
        /// DataSegmentLength.
        data_len: U24,
        /// Reserved.
        reserved2: U64,
        /// The reserved tag.
        itt: U32,
        /// Reserved.
        reserved3: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// DataSN or R2TSN, for a rejected SNACK.
        data_sn: U32,
        /// Reserved.
        reserved4: [u8; 8],
    }
}

wire! {
    NopIn => NopIn,
    ScsiResponse => ScsiResponse,
    TmfResponsePdu => TmfResponse,
    LoginResponse => LoginResponse,
    TextResponse => TextResponse,
    DataIn => DataIn,
    R2t => R2t,
    AsyncMessage => AsyncMessage,
    LogoutResponsePdu => LogoutResponse,
    Reject => Reject,
}
