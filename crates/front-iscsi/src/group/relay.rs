//! What a standby passes on to the owner, and what the owner asks of those who do.
//!
//! A connection of a host at a standby has a session with the owner, a *relay*, as long as there is I/O. The owner has it as a
//! session of the host through the standby's port. A thread of the process carries relays ([`TakesRelayed`]): a shard may
//! not connect.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use hmac::{Hmac, KeyInit, Mac};
use lunet_gateway::{GatewayId, Turn, Way};
use lunet_iscsi::Through;
use lunet_iscsi::chap::{Account, Algorithm, Algorithms, Secret};
use lunet_iscsi::pdu::{TaskAttribute, TmfFunction};
use lunet_iscsi::target::Credentials;
use lunet_os::sync::Mutex;
use sha2::Sha256;

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
    let account = |name: String, label: &str| {
        let secret = match Hmac::<Sha256>::new_from_slice(secret) {
            Ok(mut mac) => {
                [label, " ", &claim].iter().for_each(|part| mac.update(part.as_bytes()));
                mac.finalize().into_bytes().to_vec()
            }
            // HMAC takes keys of any length.
            Err(_) => Vec::new(),
        };
        Account { name, secret: Secret::new(secret) }
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

/// What shards want of the thread that carries relays. What one shard wants is done in its order.
pub enum RelayRequest {
    /// A relay is to be opened; what becomes of it goes there.
    Open(u64, RelayFor, RelayNews),
    /// A command goes by that relay; its answer, if that is not there any more, goes there.
    Command(u64, Relayed, RelayNews),
    /// A task management function goes by that relay, for the LUN or for the command with that ticket.
    Manage {
        /// The relay.
        relay: u64,
        /// The function.
        function: TmfFunction,
        /// The logical unit number.
        lun: u64,
        /// The command of ABORT TASK.
        ticket: Option<u64>,
        /// Dropped when the owner has done it. If it cannot be done, the relay ends before.
        done: Box<dyn Send>,
    },
    /// A relay ends: nobody waits for anything of it.
    Close(u64),
}

/// Takes what shards want. It must not block.
pub type TakesRelayed = Arc<dyn Fn(RelayRequest) + Send + Sync>;

/// The way back to the shard of a relay.
pub type RelayNews = Arc<dyn Fn(News) + Send + Sync>;

/// What has become of a relay, or of a command that went by it.
#[derive(Debug)]
pub enum News {
    /// It is open: what its initiator sends from now on may go by it.
    Opened(u64),
    /// A command is answered.
    Answered(u64, Answered),
    /// Nothing is to go by it any more; what has, is answered yet.
    Stale(u64),
    /// It has ended, or could not be opened. Nobody knows what became of commands without an answer.
    Ended(u64),
}

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

/// What is under way, of a session or of a group.
#[derive(Debug, Default)]
pub struct Load {
    commands: AtomicUsize,
    bytes: AtomicUsize,
}

/// Limits of a [`Load`]: commands and bytes.
pub type Limits = (usize, usize);

/// Limits of one session.
pub const OF_SESSION: Limits = (128, 64 << 20);
/// Limits of all sessions of a group.
const OF_GROUP: Limits = (4096, 512 << 20);

impl Load {
    fn add(&self, bytes: usize, (commands, most): Limits) -> bool {
        let count = self.commands.fetch_add(1, Ordering::Relaxed);
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = count < commands && total + bytes <= most;
        if !fits {
            self.take(bytes);
        }
        fits
    }

    fn take(&self, bytes: usize) {
        self.commands.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A command's part of what is under way.
#[derive(Debug)]
pub struct Charge {
    loads: [Arc<Load>; 2],
    bytes: usize,
}

/// Who has too much under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The session.
    Session,
    /// The group.
    Group,
}

impl Charge {
    /// One command with so much data, of a session and its group.
    ///
    /// # Errors
    /// One of them has too much under way.
    pub fn new(session: &Arc<Load>, group: &Arc<Load>, bytes: usize) -> Result<Self, Full> {
        if !session.add(bytes, OF_SESSION) {
            return Err(Full::Session);
        }
        if !group.add(bytes, OF_GROUP) {
            session.take(bytes);
            return Err(Full::Group);
        }
        Ok(Self { loads: [session.clone(), group.clone()], bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.loads.iter().for_each(|load| load.take(self.bytes));
    }
}

/// What the shards of a group share about relays.
pub struct Relays {
    /// The secret of the group's record.
    pub secret: [u8; 32],
    /// Where they go.
    pub takes: TakesRelayed,
    /// The owner was not reached for a while.
    pub down: Arc<AtomicBool>,
    /// What is under way.
    pub load: Arc<Load>,
}

/// By which gateway each host of a group comes.
#[derive(Default)]
pub struct Ways(Mutex<HashMap<String, Weak<Way>>>);

impl Ways {
    /// What any host has sent before is not executed any more, but for what was let in already.
    pub fn renew(&self) {
        let ways = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ways.values().filter_map(Weak::upgrade).for_each(|way| way.renew());
    }

    /// That of an initiator.
    pub fn of(&self, initiator: &str) -> Arc<Way> {
        let mut ways = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ways.retain(|_, way| way.strong_count() > 0);
        let known = ways.entry(initiator.to_ascii_lowercase()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let way = Arc::default();
            *known = Arc::downgrade(&way);
            way
        })
    }
}

/// A change that goes by its host's way, until the storage has nothing of it any more.
pub struct Going {
    way: Arc<Way>,
    turn: Turn,
}

impl Going {
    /// One that was [let through](lunet_gateway::Passage::Go).
    pub fn new(way: Arc<Way>, turn: Turn) -> Self {
        Self { way, turn }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.way.ended(self.turn);
    }
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
    fn what_is_under_way_is_bounded_and_given_back() {
        let (session, group) = (Arc::default(), Arc::default());
        let all: Vec<_> = (0..OF_SESSION.0).map(|_| Charge::new(&session, &group, 1)).collect();
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(Charge::new(&session, &group, 1).err(), Some(Full::Session));
        drop(all);
        let half = OF_SESSION.1 / 2 + 1;
        let one = Charge::new(&session, &group, half).expect("there is room");
        assert_eq!(Charge::new(&session, &group, half).err(), Some(Full::Session));
        drop(one);
        assert!(Charge::new(&session, &group, half).is_ok());
        let many: Vec<_> = (0..OF_GROUP.1 / OF_SESSION.1)
            .map(|_| Charge::new(&Arc::default(), &group, OF_SESSION.1))
            .collect();
        assert!(many.iter().all(Result::is_ok));
        assert_eq!(Charge::new(&Arc::default(), &group, 1).err(), Some(Full::Group));
    }

    #[test]
    fn a_host_has_one_way_for_as_long_as_somebody_knows_it() {
        let ways = Ways::default();
        let (one, same) = (ways.of("iqn.x:a"), ways.of("IQN.x:A"));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &ways.of("iqn.x:b")));
        let known = ways.0.lock().expect("nobody has failed").len();
        assert_eq!(known, 2);
        drop((one, same));
        ways.of("iqn.x:c");
        assert_eq!(ways.0.lock().expect("nobody has failed").len(), 1, "others are forgotten");
    }

    #[test]
    fn proofs_are_of_one_secret_one_claim_and_one_side() {
        let through = Through { gateway: 2, epoch: 7, host: [192, 0, 2, 7].into() };
        let (gateway, owner) = accounts(&[1; 32], &through, ("iqn.x:a", [1; 6]), "iqn.x:t");
        assert_eq!(gateway.secret.len(), 32);
        let (other, _) = accounts(&[2; 32], &through, ("iqn.x:a", [1; 6]), "iqn.x:t");
        let (elsewhere, _) = accounts(&[1; 32], &through, ("iqn.x:b", [1; 6]), "iqn.x:t");
        for secret in [&owner.secret, &other.secret, &elsewhere.secret] {
            assert_ne!(*secret, gateway.secret);
        }
    }
}
