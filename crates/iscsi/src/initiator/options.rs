//! What an initiator offers, and what comes out of it.

use super::Chap;
use crate::Through;
use crate::keys::{MAX_LENGTH, MIN_LENGTH};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// MaxRecvDataSegmentLength of either side until it declares another (RFC 7143 section 13.12).
pub(super) const DEFAULT_DATA_SEGMENT: u32 = 8192;

/// Which digests to offer, in order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestOffer {
    /// No digest.
    #[default]
    None,
    /// CRC32C or the login fails.
    Crc32c,
    /// CRC32C if the target has it.
    PreferCrc32c,
    /// CRC32C only if the target insists.
    PreferNone,
}

impl DigestOffer {
    /// The value of the key.
    #[must_use]
    pub const fn value(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Crc32c => "CRC32C",
            Self::PreferCrc32c => "CRC32C,None",
            Self::PreferNone => "None,CRC32C",
        }
    }

    /// True when this answer is one of the offered values.
    pub(super) fn allows(self, crc32c: bool) -> bool {
        match self {
            Self::None => !crc32c,
            Self::Crc32c => crc32c,
            Self::PreferCrc32c | Self::PreferNone => true,
        }
    }
}

/// How much of the unsolicited data that the negotiation allows is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsolicited {
    /// All of it: what is best for latency.
    #[default]
    Full,
    /// Only what fits into the command itself.
    ImmediateOnly,
    /// Only Data-Out PDUs, nothing in the command.
    SeparateOnly,
    /// None: every byte waits for an R2T.
    Nothing,
}

/// What is offered over RDMA. Digests are not: the fabric has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaOffer {
    /// TargetRecvDataSegmentLength to offer, in bytes.
    pub target_recv_data_segment_length: u32,
    /// MaxOutstandingUnexpectedPDUs: receives that are posted besides one for each request; 0, or
    /// 2 and more.
    pub max_unexpected: u32,
}

impl Default for RdmaOffer {
    fn default() -> Self {
        Self { target_recv_data_segment_length: DEFAULT_DATA_SEGMENT, max_unexpected: 8 }
    }
}

/// Settings of an initiator's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias, if any.
    pub initiator_alias: Option<String>,
    /// TargetName; `None` makes a discovery session.
    pub target_name: Option<String>,
    /// Initiator part of the session identifier.
    pub isid: [u8; 6],
    /// TSIH of the login: 0 for a new session.
    pub tsih: u16,
    /// Connection identifier.
    pub cid: u16,
    /// Begin with operational negotiation instead of offering an authentication
    /// method first.
    pub skip_security: bool,
    /// How this side authenticates itself; `None`: not at all.
    pub chap: Option<Chap>,
    /// Header digest to offer.
    pub header_digest: DigestOffer,
    /// Data digest to offer.
    pub data_digest: DigestOffer,
    /// Longest data segment that this side takes, in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength to offer, in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength to offer, in bytes.
    pub first_burst_length: u32,
    /// MaxOutstandingR2T to offer.
    pub max_outstanding_r2t: u16,
    /// ImmediateData to offer.
    pub immediate_data: bool,
    /// InitialR2T to offer.
    pub initial_r2t: bool,
    /// DefaultTime2Wait to offer, in seconds.
    pub time2wait: u16,
    /// DefaultTime2Retain to offer, in seconds.
    pub time2retain: u16,
    /// A gateway logs in on behalf of this initiator.
    pub through: Option<Through>,
    /// Further pairs to send with the operational keys, for probing a target.
    pub extra_keys: Vec<(String, String)>,
    /// How much of the allowed unsolicited data to send.
    pub unsolicited: Unsolicited,
    /// The connection is RDMA; `None`: a stream.
    pub rdma: Option<RdmaOffer>,
    /// CmdSN of the first command.
    pub first_cmd_sn: u32,
    /// Most requests that may be unanswered at a time.
    pub max_tasks: u16,
    /// Time for the login, and for the logout.
    pub login_timeout: Duration,
    /// Silence after which a ping is sent; `None`: never.
    pub ping_interval: Option<Duration>,
    /// Time for the answer to a ping.
    pub ping_timeout: Duration,
}

impl Options {
    /// Generous settings for a session with `target_name`, or for discovery.
    #[must_use]
    pub fn new(initiator_name: &str, target_name: Option<&str>) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            initiator_alias: None,
            target_name: target_name.map(Into::into),
            // The 'random' format of RFC 7143 section 11.12.5; the caller sets the rest.
            isid: [0x80, 0, 0, 0, 0, 0],
            tsih: 0,
            cid: 0,
            skip_security: false,
            chap: None,
            header_digest: DigestOffer::None,
            data_digest: DigestOffer::None,
            max_recv_data_segment_length: 256 << 10,
            max_burst_length: MAX_LENGTH,
            first_burst_length: 256 << 10,
            max_outstanding_r2t: 16,
            immediate_data: true,
            initial_r2t: false,
            time2wait: 2,
            time2retain: 0,
            through: None,
            extra_keys: Vec::new(),
            unsolicited: Unsolicited::Full,
            rdma: None,
            first_cmd_sn: 1,
            max_tasks: 4096,
            login_timeout: Duration::from_secs(15),
            ping_interval: Some(Duration::from_secs(10)),
            ping_timeout: Duration::from_secs(10),
        }
    }

    /// True in a normal session over RDMA, whose keys are those of RFC 7145.
    pub(super) fn rdma_session(&self) -> Option<RdmaOffer> {
        self.rdma.filter(|_| self.target_name.is_some())
    }

    /// How long each receive buffer must be over RDMA, in bytes.
    #[must_use]
    pub fn receive_len(&self) -> usize {
        crate::iser::receive_len(self.data_segment().max(DEFAULT_DATA_SEGMENT) as usize)
    }

    /// How many receives to keep posted over RDMA: one for each request, and some for what the
    /// target sends on its own account.
    #[must_use]
    pub fn receives(&self) -> usize {
        let unexpected = self.rdma.map_or(0, |offer| offer.max_unexpected.max(2));
        // The keep-alive and the logout always fit into the table.
        usize::from(self.max_tasks) + 2 + unexpected as usize
    }

    /// The longest data segment to declare, within the range of the key.
    pub(super) fn data_segment(&self) -> u32 {
        self.max_recv_data_segment_length.clamp(MIN_LENGTH, MAX_LENGTH)
    }
}

/// What holds on a connection in its full feature phase. Lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Longest data segment that this side takes.
    pub max_recv_data_segment_length: u32,
    /// Longest data segment that the target takes.
    pub target_max_recv_data_segment_length: u32,
    /// MaxBurstLength.
    pub max_burst_length: u32,
    /// FirstBurstLength, not above MaxBurstLength.
    pub first_burst_length: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// ImmediateData.
    pub immediate_data: bool,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// DefaultTime2Wait in seconds.
    pub time2wait: u16,
    /// DefaultTime2Retain in seconds.
    pub time2retain: u16,
    /// RDMAExtensions. The lengths of data segments are those of the Sends then.
    pub rdma: bool,
    /// MaxOutstandingUnexpectedPDUs of the target; 0: any number.
    pub target_max_unexpected: u32,
}

impl Negotiated {
    /// What holds when the target answers no key: the offer combined with the default value.
    pub(super) fn fallback(options: &Options) -> Self {
        let max_burst_length = options.max_burst_length.clamp(MIN_LENGTH, 256 << 10);
        Self {
            header_digest: false,
            data_digest: false,
            max_recv_data_segment_length: match options.rdma {
                Some(_) => options.data_segment().min(DEFAULT_DATA_SEGMENT),
                None => options.data_segment(),
            },
            target_max_recv_data_segment_length: DEFAULT_DATA_SEGMENT,
            max_burst_length,
            first_burst_length: options.first_burst_length.clamp(MIN_LENGTH, 64 << 10),
            max_outstanding_r2t: 1,
            immediate_data: options.immediate_data,
            initial_r2t: true,
            time2wait: options.time2wait.max(2),
            time2retain: options.time2retain.min(20),
            rdma: false,
            target_max_unexpected: 0,
        }
    }
}
