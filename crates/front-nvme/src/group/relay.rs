//! What a standby passes on to the owner, and what the owner asks of those who do: what NVMe adds to [`lunet_relay`].
//!
//! A queue of a host at a standby has a queue at the owner, a *relay*, as long as there is I/O. It is a controller of its own
//! there, without an admin queue.

use std::net::IpAddr;
use std::time::Duration;

use lunet_nvme::Through;
use lunet_nvme::auth::chap::Names;
use lunet_nvme::auth::dh::Group as Exchange;
use lunet_nvme::auth::{Hash, Purpose, Secret};
use lunet_nvme::command::{Completion, Sqe};
use lunet_nvme::fabrics::{ANY_CONTROLLER, Connect};
use lunet_relay::{Charge, Passed, secret_for};

/// Entries of a relay's queue: a host may have as many commands under way.
pub const ENTRIES: u16 = 128;

/// The hash of proofs between gateways.
pub const HASH: Hash = Hash::Sha256;
/// No exchange of Diffie-Hellman: the secret is one that nobody guesses.
pub const EXCHANGE: Exchange = Exchange::Null;

/// Who a relay is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayFor {
    /// The host's NQN.
    pub nqn: String,
    /// HOSTID.
    pub id: [u8; 16],
    /// Its address.
    pub host: IpAddr,
}

impl RelayFor {
    /// The Connect of a gateway for this host.
    pub fn connect(&self, through: Through, subsystem: &str) -> Connect {
        Connect {
            qid: 1,
            sqsize: ENTRIES - 1,
            no_sq_flow: true,
            kato: Duration::ZERO,
            host_id: self.id,
            cntlid: ANY_CONTROLLER,
            subnqn: subsystem.to_owned(),
            hostnqn: self.nqn.clone(),
            through: Some(through),
        }
    }
}

/// The secrets by which a gateway that connects for a host and the owner prove to each other that they know the group's: the
/// gateway's and the owner's. They are good for what is claimed alone.
pub fn secrets(secret: &[u8; 32], through: &Through, connect: &Connect) -> Option<[Secret; 2]> {
    let claim = through.claim(connect);
    let of = |label| Secret::new(Purpose::DhChap, None, &secret_for(secret, label, &claim)).ok();
    Some([of("nvme gateway")?, of("nvme owner")?])
}

/// Who proves something to whom.
pub fn names(connect: &Connect) -> Names {
    Names { host: connect.hostnqn.clone(), subsystem: connect.subnqn.clone() }
}

/// A command that is passed on, or a fused pair.
#[derive(Debug)]
pub struct Relayed {
    /// What it is answered by.
    pub ticket: u64,
    /// The command, or both of them in their order.
    pub parts: Vec<RelayedPart>,
    /// It counts for its queue and for its group until this is dropped.
    pub charge: Charge,
}

/// One command.
#[derive(Debug)]
pub struct RelayedPart {
    /// Its entry. Its identifier and where its data is mean nothing.
    pub sqe: Sqe,
    /// Bytes that its host takes.
    pub reads: u32,
    /// All of its data for the controller.
    pub data: Vec<u8>,
}

/// The owner's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// How each command has ended.
    pub completions: Vec<Completion>,
    /// Data for the host.
    pub data: Vec<u8>,
}

/// NVMe.
#[derive(Debug)]
pub enum Nvme {}

impl Passed for Nvme {
    type Whose = RelayFor;
    type Command = Relayed;
    type Function = core::convert::Infallible;
    type Answer = Answered;
}

/// What shards want of the thread that carries relays.
pub type RelayRequest = lunet_relay::Request<Nvme>;
/// The way back to the shard of a relay.
pub type RelayNews = lunet_relay::News<Nvme>;
/// What has become of a relay, or of a command that went by it.
pub type News = lunet_relay::Became<Answered>;
/// What the shards of a group share about relays.
pub type Relays = lunet_relay::Relays<Nvme>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_of_one_secret_one_claim_and_one_side() {
        let whose = RelayFor { nqn: "nqn.x:h".into(), id: [1; 16], host: [192, 0, 2, 7].into() };
        let through = Through { gateway: 2, epoch: 7, host: whose.host, renews: false };
        let connect = whose.connect(through, "nqn.x:s");
        let [gateway, owner] = secrets(&[1; 32], &through, &connect).expect("32 bytes");
        let [other, _] = secrets(&[2; 32], &through, &connect).expect("32 bytes");
        let later = Through { epoch: 8, ..through };
        let [elsewhere, _] = secrets(&[1; 32], &later, &connect).expect("32 bytes");
        for secret in [&owner, &other, &elsewhere] {
            assert_ne!(*secret, gateway);
        }
    }
}
