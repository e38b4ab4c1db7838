//! What a connection counts.

/// Declares the counters, and what is done with all of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// Counts since the connection began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Counters {
            /// Adds the counts of another connection.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// Each counter with its name, in a fixed order.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($field), self.$field);)*
            }
        }
    };
}

counters! {
    /// PDUs received.
    pdus_in,
    /// PDUs sent.
    pdus_out,
    /// SCSI commands received.
    commands,
    /// Bytes of Data-In sent.
    bytes_in,
    /// Bytes of write data received, immediate and Data-Out.
    bytes_out,
    /// R2Ts sent.
    r2ts,
    /// Task management functions received.
    task_management,
    /// NOP-Outs received.
    pings_in,
    /// NOP-Ins sent to ask whether the initiator is there.
    pings_out,
    /// Header digests that were wrong.
    header_digest_errors,
    /// Data digests that were wrong.
    data_digest_errors,
    /// PDUs whose layout is impossible.
    format_errors,
    /// PDUs that break the protocol: wrong sequence numbers, offsets, lengths, tags or flags.
    protocol_errors,
    /// Commands ignored because their CmdSN was outside the window.
    outside_window,
    /// Commands that had to wait for one with a lower CmdSN.
    held,
    /// Bytes of write data swallowed because their task was gone or failed.
    swallowed_bytes,
    /// Commands answered TASK SET FULL because no buffer was free.
    task_set_full,
    /// Commands failed because of their data transfer.
    transfer_errors,
    /// RDMA Writes: data of reads.
    rdma_writes,
    /// RDMA Reads: data of writes.
    rdma_reads,
    /// Rejects sent: data digest error.
    reject_data_digest,
    /// Rejects sent: SNACK.
    reject_snack,
    /// Rejects sent: protocol error.
    reject_protocol_error,
    /// Rejects sent: command not supported.
    reject_not_supported,
    /// Rejects sent: too many immediate commands.
    reject_immediate,
    /// Rejects sent: task in progress.
    reject_task_in_progress,
    /// Rejects sent: invalid PDU field.
    reject_invalid_field,
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn counters_add_up_by_name() {
        let one = Counters { pdus_in: 1, reject_snack: 2, ..Counters::default() };
        let mut sum = Counters { pdus_in: 3, reject_immediate: 1, ..Counters::default() };
        sum.add(&one);
        let mut list = Vec::new();
        sum.each(|name, count| list.push((name, count)));
        list.retain(|(_, count)| *count > 0);
        assert_eq!(list, [("pdus_in", 4), ("reject_snack", 2), ("reject_immediate", 1)]);
        assert_eq!(sum.rejects(), 3);
    }
}
