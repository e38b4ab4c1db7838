//! What a connection counts.

/// Counts since the connection began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// PDUs received.
    pub pdus_in: u64,
    /// PDUs sent.
    pub pdus_out: u64,
    /// SCSI commands received.
    pub commands: u64,
    /// Bytes of Data-In sent.
    pub bytes_in: u64,
    /// Bytes of write data received, immediate and Data-Out.
    pub bytes_out: u64,
    /// R2Ts sent.
    pub r2ts: u64,
    /// Task management functions received.
    pub task_management: u64,
    /// NOP-Outs received.
    pub pings_in: u64,
    /// NOP-Ins sent to ask whether the initiator is there.
    pub pings_out: u64,
    /// Header digests that were wrong.
    pub header_digest_errors: u64,
    /// Data digests that were wrong.
    pub data_digest_errors: u64,
    /// PDUs whose layout is impossible.
    pub format_errors: u64,
    /// PDUs that break the protocol: wrong sequence numbers, offsets, lengths, tags or flags.
    pub protocol_errors: u64,
    /// Commands ignored because their CmdSN was outside the window.
    pub outside_window: u64,
    /// Commands that had to wait for one with a lower CmdSN.
    pub held: u64,
    /// Bytes of write data swallowed because their task was gone or failed.
    pub swallowed_bytes: u64,
    /// Commands answered TASK SET FULL because no buffer was free.
    pub task_set_full: u64,
    /// Commands failed because of their data transfer.
    pub transfer_errors: u64,
    /// Rejects sent: data digest error.
    pub reject_data_digest: u64,
    /// Rejects sent: SNACK.
    pub reject_snack: u64,
    /// Rejects sent: protocol error.
    pub reject_protocol_error: u64,
    /// Rejects sent: command not supported.
    pub reject_not_supported: u64,
    /// Rejects sent: too many immediate commands.
    pub reject_immediate: u64,
    /// Rejects sent: task in progress.
    pub reject_task_in_progress: u64,
    /// Rejects sent: invalid PDU field.
    pub reject_invalid_field: u64,
}

impl Counters {
    /// All rejects sent.
    #[must_use]
    pub const fn rejects(&self) -> u64 {
        self.reject_data_digest
            + self.reject_snack
            + self.reject_protocol_error
            + self.reject_not_supported
            + self.reject_immediate
            + self.reject_task_in_progress
            + self.reject_invalid_field
    }
}
