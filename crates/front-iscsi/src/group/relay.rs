//! What a standby passes on to the owner, and what the owner asks of those who do: what iSCSI adds to [`lunet_relay`].
//!
//! The owner has a relay as a session of the host through the standby's port.

use std::net::IpAddr;
use std::sync::Arc;

use lunet_gateway::{GatewayId, Turn, Way};
use lunet_iscsi::Through;
use lunet_iscsi::chap::{Account, Algorithm, Algorithms, Secret};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use lunet_iscsi::target::Credentials;
pub use lunet_relay::{Charge, Full, Going, Load, Ways};
use lunet_relay::{Passed, secret_for};

/// Data of one command that is passed on, at the most: MAXIMUM TRANSFER LENGTH of lunet's units, for COMPARE AND WRITE twice.
pub const MAX_DATA: u32 = 16 << 20;

/// The algorithm of proofs between gateways.
const ALGORITHM: Algorithm = Algorithm::Sha256;

/// The accounts by which a gateway that logs in for an initiator and the owner prove to each other that they know the
/// group's secret: the gateway's and the owner's. They are good for what is claimed alone.
pub fn accounts(
    secret: &[u8; 32],
    through: &Through,
    nexus: (&str, [u8; 6]),
    target: &str,
) -> (Account, Account) {
    let claim = through.claim(nexus, target);
    let account = |name: String, label: &str| Account {
        name,
        secret: Secret::new(secret_for(secret, label, &claim)),
    };
    let gateway = account(format!("through gateway {}", through.gateway), "gateway");
    (gateway, account("owner".into(), "owner"))
}

/// The algorithms of these proofs.
pub fn algorithms() -> Algorithms {
    [ALGORITHM].into_iter().collect()
}

/// What the owner asks of a gateway that logs in for an initiator.
pub fn credentials(
    secret: &[u8; 32],
    through: &Through,
    nexus: (&str, [u8; 6]),
    target: &str,
) -> Arc<Credentials> {
    let (gateway, owner) = accounts(secret, through, nexus, target);
    let (algorithms, accounts, mutual) = (algorithms(), vec![gateway], Some(owner));
    Arc::new(Credentials { algorithms, accounts, mutual })
}

/// Who a relay is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayFor {
    /// The initiator's name.
    pub initiator: String,
    /// Its session identifier.
    pub isid: [u8; 6],
    /// Its address.
    pub host: IpAddr,
}

/// A command that is passed on.
#[derive(Debug)]
pub struct Relayed {
    /// What it is answered by.
    pub ticket: u64,
    /// Its logical unit number, as iSCSI has it.
    pub lun: u64,
    /// Its command block.
    pub cdb: Vec<u8>,
    /// Its task attribute.
    pub attribute: TaskAttribute,
    /// Bytes that its initiator expects to read.
    pub expects_read: u32,
    /// All of its Data-Out.
    pub data: Vec<u8>,
    /// It counts for its session and for its group until this is dropped.
    pub charge: Charge,
}

/// A task management function that is passed on.
#[derive(Debug)]
pub struct Function {
    /// The function.
    pub function: TmfFunction,
    /// The logical unit number.
    pub lun: u64,
    /// The command of ABORT TASK.
    pub ticket: Option<u64>,
}

/// iSCSI.
#[derive(Debug)]
pub enum Iscsi {}

impl Passed for Iscsi {
    type Whose = RelayFor;
    type Command = Relayed;
    type Function = Function;
    type Answer = Answered;
}

/// What shards want of the thread that carries relays.
pub type RelayRequest = lunet_relay::Request<Iscsi>;
/// The way back to the shard of a relay.
pub type RelayNews = lunet_relay::News<Iscsi>;
/// What has become of a relay, or of a command that went by it.
pub type News = lunet_relay::Became<Answered>;
/// What the shards of a group share about relays.
pub type Relays = lunet_relay::Relays<Iscsi>;

/// The owner's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// SCSI status.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// How much more than its initiator expects the command moves, in bytes; negative: less.
    pub residual: i64,
    /// Data-In.
    pub data: Vec<u8>,
}

/// How a host's connection reaches the owner, at a standby.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Not at all.
    #[default]
    None,
    /// By this relay, which is being opened.
    Opening(u64),
    /// By this one, which is open, when the host has answered a question.
    Asked(u64),
    /// By this one, for what has come behind so many answers.
    Open(u64, u32),
}

impl Relay {
    /// Its number.
    pub const fn number(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Opening(number) | Self::Asked(number) | Self::Open(number, _) => Some(number),
        }
    }
}

/// The host's way at the gateway, and what its connection is fresh for.
pub struct OnWay {
    /// By which gateway the host's changes come.
    pub way: Arc<Way>,
    /// By which gateway this connection comes.
    pub through: GatewayId,
    /// For what it is fresh, behind so many answers, and what it was before.
    pub fresh: (Turn, u32, Turn),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_of_one_secret_one_claim_and_one_side() {
        let host = [192, 0, 2, 7].into();
        let through = Through { gateway: 2, epoch: 7, host, renews: false };
        let (gateway, owner) = accounts(&[1; 32], &through, ("iqn.x:a", [1; 6]), "iqn.x:t");
        assert_eq!(gateway.secret.len(), 32);
        let (other, _) = accounts(&[2; 32], &through, ("iqn.x:a", [1; 6]), "iqn.x:t");
        let (elsewhere, _) = accounts(&[1; 32], &through, ("iqn.x:b", [1; 6]), "iqn.x:t");
        for secret in [&owner.secret, &other.secret, &elsewhere.secret] {
            assert_ne!(*secret, gateway.secret);
        }
    }
}
