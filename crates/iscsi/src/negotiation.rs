//! Negotiation of operational parameters (RFC 7143 sections 6.2 and 13).

use crate::keys::yes_no;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// What both ends agreed on; begins with the defaults of RFC 7143.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// Whether unsolicited Data-Out must wait for an R2T.
    pub initial_r2t: bool,
    /// Whether commands may carry data.
    pub immediate_data: bool,
    /// Longest data segment that the initiator takes, in bytes.
    pub initiator_max_recv: u32,
    /// Longest data segment that the target takes, in bytes.
    pub target_max_recv: u32,
    /// Longest data sequence, in bytes.
    pub max_burst_length: u32,
    /// Most unsolicited data of a command, in bytes.
    pub first_burst_length: u32,
    /// R2Ts of a command that may be outstanding.
    pub max_outstanding_r2t: u16,
    /// Seconds before a reconnect.
    pub time2wait: u16,
    /// Seconds that tasks are kept after a lost connection.
    pub time2retain: u16,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
}

impl Default for Negotiated {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            initiator_max_recv: 8192,
            target_max_recv: 8192,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            max_outstanding_r2t: 1,
            time2wait: 2,
            time2retain: 20,
            protocol_level: 1,
        }
    }
}

impl Negotiated {
    /// Keys and values for people, in a fixed order.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let digest = |on: bool| if on { "CRC32C" } else { "None" }.to_string();
        alloc::vec![
            ("HeaderDigest", digest(self.header_digest)),
            ("DataDigest", digest(self.data_digest)),
            ("InitialR2T", yes_no(self.initial_r2t).to_string()),
            ("ImmediateData", yes_no(self.immediate_data).to_string()),
            ("MaxRecvDataSegmentLength (initiator)", self.initiator_max_recv.to_string()),
            ("MaxRecvDataSegmentLength (target)", self.target_max_recv.to_string()),
            ("MaxBurstLength", self.max_burst_length.to_string()),
            ("FirstBurstLength", self.first_burst_length.to_string()),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
            ("MaxConnections", 1.to_string()),
            ("ErrorRecoveryLevel", 0.to_string()),
            ("DefaultTime2Wait", self.time2wait.to_string()),
            ("DefaultTime2Retain", self.time2retain.to_string()),
            ("iSCSIProtocolLevel", self.protocol_level.to_string()),
        ]
    }
}
