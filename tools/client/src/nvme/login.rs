//! Who connects, and how.

use std::time::Duration;

use lunet_nvme::auth::Hash;
use lunet_nvme::auth::chap::{Credentials, Initiator, Names};
use lunet_nvme::auth::dh::Group;
use lunet_nvme::fabrics::Connect;
use lunet_nvme::host::Options;

use super::{Error, Target};
use crate::random::unpredictable;

/// HOSTNQN, if nothing else is said.
pub const HOST_NQN: &str = "nqn.2026-11.local.lunet:host";

/// Hashes to offer, the best first.
const HASHES: [Hash; 3] = [Hash::Sha512, Hash::Sha384, Hash::Sha256];

/// Groups to offer: larger ones take longer, and prove nothing more.
const GROUPS: [Group; 6] = [
    Group::Ffdhe2048,
    Group::Ffdhe3072,
    Group::Ffdhe4096,
    Group::Ffdhe6144,
    Group::Ffdhe8192,
    Group::Null,
];

/// Who connects, besides what is in the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// HOSTNQN.
    pub host_nqn: String,
    /// HOSTID: another one for each process, so that two that run at once are two hosts.
    pub host_id: [u8; 16],
    /// Time for a connection, and for the answer to a command of the preparation.
    pub patience: Duration,
    /// KATO: the controller ends if it hears nothing for so long.
    pub keep_alive: Duration,
}

impl Default for Login {
    fn default() -> Self {
        let mut host_id = [0; 16];
        unpredictable(&mut host_id);
        // A UUID of version 4 (RFC 9562 section 5.4).
        host_id[6] = host_id[6] & 0x0F | 0x40;
        host_id[8] = host_id[8] & 0x3F | 0x80;
        Self {
            host_nqn: HOST_NQN.into(),
            host_id,
            patience: Duration::from_secs(15),
            keep_alive: Duration::from_secs(15),
        }
    }
}

/// A queue to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// The controller.
    pub cntlid: u16,
    /// Entries, from 2 on.
    pub entries: u16,
    /// Data that a capsule takes, in bytes.
    pub capsule_data: u32,
}

impl Login {
    /// The options of a queue of the subsystem.
    pub(super) fn options(&self, target: &Target, nqn: &str, wanted: Wanted) -> Options {
        Options {
            connect: Connect {
                qid: wanted.qid,
                sqsize: wanted.entries.max(2) - 1,
                no_sq_flow: false,
                kato: if wanted.qid == 0 { self.keep_alive } else { Duration::ZERO },
                host_id: self.host_id,
                cntlid: wanted.cntlid,
                subnqn: nqn.into(),
                hostnqn: self.host_nqn.clone(),
                through: None,
            },
            alignment: 0,
            header_digest: target.header_digest,
            data_digest: target.data_digest,
            max_r2t: 1,
            capsule_data: wanted.capsule_data,
            connect_timeout: self.patience,
        }
    }

    /// By what the host proves itself; `None` without a secret.
    ///
    /// # Errors
    /// The controller has to prove itself, and the host has no secret of its own.
    pub(super) fn initiator(&self, target: &Target, nqn: &str) -> Result<Option<Initiator>, Error> {
        let Some(host) = &target.secret else {
            return if target.controller_secret.is_some() { Err(Error::Proof) } else { Ok(None) };
        };
        let credentials = Credentials {
            names: Names { host: self.host_nqn.clone(), subsystem: nqn.into() },
            host: host.clone(),
            controller: target.controller_secret.clone(),
            hashes: HASHES.to_vec(),
            groups: GROUPS.to_vec(),
            concatenation: false,
        };
        let mut numbers = [0; 6];
        unpredictable(&mut numbers);
        let [a, b, c, d, e, f] = numbers;
        let sequence = u32::from_ne_bytes([a, b, c, d]);
        let transaction = u16::from_ne_bytes([e, f]);
        let mut random = |bytes: &mut [u8]| {
            unpredictable(bytes);
            true
        };
        Ok(Initiator::new(credentials, transaction, sequence, &mut random))
    }
}
