//! Who logs in, and with which offers.

use std::time::Duration;

use lunet_iscsi::chap::Algorithms;
use lunet_iscsi::initiator::{Chap, Mutual, Options, RdmaOffer, Unsolicited};

use super::Target;
use crate::random::unpredictable;

/// InitiatorName, if nothing else is said.
pub const INITIATOR_NAME: &str = "iqn.2026-11.local.lunet:initiator";

/// Over RDMA, the longest data segment that this side takes, in bytes: data does not come in them.
const RECEIVED: u32 = 8192;

/// Bytes of a CHAP challenge.
const CHALLENGE: usize = 32;

/// What sessions are opened with, besides what is in the target's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// InitiatorName.
    pub initiator_name: String,
    /// Longest data segment that this side takes, in bytes.
    pub max_recv_data_segment_length: u32,
    /// InitialR2T to offer: with `true`, every byte of a write waits for an R2T.
    pub initial_r2t: bool,
    /// ImmediateData to offer: data within the command.
    pub immediate_data: bool,
    /// Time for a connection, for a login, and for the answer to a command of the preparation.
    pub patience: Duration,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            initiator_name: INITIATOR_NAME.into(),
            max_recv_data_segment_length: 256 << 10,
            initial_r2t: false,
            immediate_data: true,
            patience: Duration::from_secs(15),
        }
    }
}

impl Login {
    /// The options of a session with the target of this name, or of a discovery session.
    pub(super) fn options(&self, target: &Target, name: Option<&str>, max_tasks: u16) -> Options {
        let mut options = Options::new(&self.initiator_name, name);
        options.isid = isid();
        options.header_digest = target.header_digest;
        options.data_digest = target.data_digest;
        options.max_recv_data_segment_length = self.max_recv_data_segment_length;
        options.initial_r2t = self.initial_r2t;
        options.immediate_data = self.immediate_data;
        options.login_timeout = self.patience;
        // Silence is judged by the age of commands.
        options.ping_interval = None;
        options.max_tasks = max_tasks;
        if target.rdma {
            // What does not fit into the command is fetched from memory: that takes fewer messages than
            // data that is sent of its own accord.
            (options.rdma, options.unsolicited) =
                (Some(RdmaOffer::default()), Unsolicited::ImmediateOnly);
            options.max_recv_data_segment_length = RECEIVED;
        }
        // Without its secret a name is of no use: the target says whether it wants one.
        let account = target.account.as_ref().filter(|account| !account.secret.is_empty());
        options.chap = account.map(|account| Chap {
            account: account.clone(),
            algorithms: Algorithms::ALL,
            mutual: target.mutual.as_ref().map(|account| {
                let mut challenge = vec![0; CHALLENGE];
                unpredictable(&mut challenge);
                Mutual { account: account.clone(), id: challenge[0], challenge }
            }),
        });
        options
    }
}

/// An identifier that no other session of this name has: a target ends an old session that has the
/// same (RFC 7143 section 6.3.5).
fn isid() -> [u8; 6] {
    let mut bytes = [0; 6];
    unpredictable(&mut bytes);
    // The 'random' format of RFC 7143 section 11.12.5.
    bytes[0] = 0x80;
    bytes
}
