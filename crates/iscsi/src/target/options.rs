//! What the target offers and how long it waits.

use core::time::Duration;

/// Most immediate commands and task management functions of a connection that may run at once;
/// more are answered with a Reject.
pub const MAX_IMMEDIATE: u32 = 32;

/// Whether a digest is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// As the initiator prefers.
    #[default]
    Allow,
    /// A login without the digest is refused.
    Require,
    /// The digest is never agreed to.
    Forbid,
}

/// The target's side of the negotiation, its limits and its patience.
#[derive(Clone, Debug)]
pub struct Options {
    /// Longest data segment that this target takes, in bytes; 512 to 2^24 - 1.
    pub max_recv_data_segment_length: u32,
    /// Longest data sequence, in bytes; 512 to 2^24 - 1.
    pub max_burst_length: u32,
    /// Most unsolicited data of a command, in bytes; 512 to 2^24 - 1.
    pub first_burst_length: u32,
    /// R2Ts of one command that may be outstanding; 1 to 65535.
    pub max_outstanding_r2t: u16,
    /// Whether commands may carry data.
    pub immediate_data: bool,
    /// Whether unsolicited data behind the command must wait for an R2T.
    pub initial_r2t: bool,
    /// CRC32C over headers.
    pub header_digest: DigestPolicy,
    /// CRC32C over data.
    pub data_digest: DigestPolicy,
    /// Commands that the initiator may have outstanding; 1 to 65535.
    pub queue_depth: u32,
    /// DefaultTime2Wait in seconds: how long an initiator should wait before it comes back.
    pub time2wait: u16,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// Silence after which the target asks whether the initiator is there; zero: never.
    pub ping_interval: Duration,
    /// Silence after that question until the connection is given up.
    pub ping_timeout: Duration,
    /// How long data that was asked for or announced may make no progress until the connection is given up;
    /// zero: for ever.
    pub data_timeout: Duration,
}

impl Options {
    /// The depth of the command window.
    pub(super) fn window(&self) -> u32 {
        self.queue_depth.clamp(1, 65_535)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_recv_data_segment_length: 256 * 1024,
            max_burst_length: 16 * 1024 * 1024 - 1024,
            first_burst_length: 256 * 1024,
            max_outstanding_r2t: 8,
            immediate_data: true,
            initial_r2t: false,
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            queue_depth: 128,
            time2wait: 2,
            login_timeout: Duration::from_secs(15),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(30),
            data_timeout: Duration::from_secs(30),
        }
    }
}
