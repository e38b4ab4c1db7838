//! What a server is made of: portals, subsystems and limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_nvme::auth::Secret;
pub use lunet_nvme::auth::chap::Concatenation;
use lunet_nvme::fabrics::Transport;
use lunet_ring::DriverChoice;
use lunet_server::hosting::{Limits, Portal};
use lunet_volume::{Face, Volume, VolumeId};

/// A host that may connect.
#[derive(Clone)]
pub struct Host {
    /// Its NQN.
    pub nqn: String,
    /// The secret by which it has to prove itself (DH-HMAC-CHAP); `None`: its name is enough.
    pub secret: Option<Secret>,
    /// The secret by which controllers prove themselves to it, if it asks for that.
    pub controller_secret: Option<Secret>,
    /// Its key of TLS.
    pub tls: Option<TlsKey>,
    /// Whether it comes by TLS with a key that its authentication makes (secure channel concatenation). Has no meaning
    /// without a secret, and at a portal where TLS is off.
    pub concatenation: Concatenation,
}

/// A host's key of TLS.
#[derive(Clone)]
pub struct TlsKey {
    /// The configured secret, from which its pre-shared keys are derived.
    pub secret: Secret,
    /// It connects by TLS, and not otherwise.
    pub required: bool,
}

/// What a portal has of TLS. Which key a host has is said by subsystems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// None.
    Off,
    /// Whoever has a key may come by TLS.
    #[default]
    Allowed,
    /// Nobody connects without.
    Required,
}

impl PartialEq for Host {
    fn eq(&self, other: &Self) -> bool {
        let text = |secret: &Option<Secret>| secret.as_ref().map(Secret::to_text);
        let key =
            |tls: &Option<TlsKey>| tls.as_ref().map(|key| (key.secret.to_text(), key.required));
        self.nqn == other.nqn
            && text(&self.secret) == text(&other.secret)
            && text(&self.controller_secret) == text(&other.controller_secret)
            && key(&self.tls) == key(&other.tls)
            && self.concatenation == other.concatenation
    }
}

/// Who may connect to a subsystem, and sees it in the discovery log.
#[derive(Clone, Default, PartialEq)]
pub enum Hosts {
    /// Hosts on this machine, whatever their names are: nobody was named.
    #[default]
    Local,
    /// Every host.
    Any,
    /// These hosts.
    Listed(Vec<Host>),
}

/// A subsystem: a name, and the volumes behind it.
#[derive(Clone, Default)]
pub struct SubsystemEntry {
    /// Its NQN.
    pub nqn: String,
    /// Serial number, which no other subsystem has: at most 20 ASCII characters, without ':'.
    pub serial: String,
    /// Model number: at most 40 ASCII characters, without ':'.
    pub model: String,
    /// Namespace identifiers, from 1 to [`MAX_NAMESPACES`], each once, with the slots of their volumes.
    pub namespaces: Vec<(u32, VolumeId)>,
    /// Who may connect.
    pub hosts: Hosts,
    /// Indexes into [`Layout::portals`], or into [`Config::portals`] where that has none; empty means all. Every portal
    /// answers discovery, be it that no subsystem names it.
    pub portals: Vec<usize>,
}

/// The largest namespace identifier.
pub const MAX_NAMESPACES: u32 = 1024;

/// What is served: the part that can change while the server runs.
pub struct Layout<Fc: Face> {
    /// Where to listen from then on; `None`: as before. A portal with the address (as configured) and tag of one that is
    /// there is that one. At the start [`Config::portals`] counts.
    pub portals: Option<Vec<Portal>>,
    /// The volumes, each in the slot that it has wherever else it is served.
    pub volumes: Vec<(VolumeId, Arc<Volume<Fc>>)>,
    /// The subsystems that show them, each name once.
    pub subsystems: Vec<SubsystemEntry>,
    /// What portals have of TLS, by their indexes as in [`SubsystemEntry::portals`]; those without are
    /// [`Tls::Allowed`].
    pub tls: Vec<(usize, Tls)>,
    /// For tags of portals, the numbers by which [`Face::access`] knows their groups. Portals with other tags are
    /// optimized.
    pub groups: Vec<(u16, usize)>,
    /// Discovery controllers elsewhere that hosts are referred to.
    pub referrals: Vec<SocketAddr>,
    /// Controllers of hosts that could not connect now stay all the same.
    pub keep_sessions: bool,
}

impl<Fc: Face> Default for Layout<Fc> {
    /// Nothing, by the portals that there are.
    fn default() -> Self {
        Self {
            portals: None,
            volumes: Vec::new(),
            subsystems: Vec::new(),
            tls: Vec::new(),
            groups: Vec::new(),
            referrals: Vec::new(),
            keep_sessions: false,
        }
    }
}

/// Data of a command capsule over RDMA at most, in bytes: each receive that is posted has room for it.
pub const RDMA_CAPSULE_DATA: u32 = 4096;

/// Data of a command capsule over TCP in bytes, where memory is short.
pub const CAPSULE_DATA: u32 = 16 << 10;

/// What is offered to hosts, and what is expected of them.
#[derive(Clone, Debug)]
pub struct Options {
    /// I/O queues of a controller at most, up to 1024.
    pub queues: u16,
    /// Entries of a queue at most, from 2 to 4096.
    pub queue_entries: u16,
    /// Data of a command capsule on I/O queues at most, in bytes: a power of two, from [`CAPSULE_DATA`] to 128 KiB.
    /// What a controller offers is less if memory is [short](Self::capsule_data).
    pub capsule_data: u32,
    /// MDTS: most data of a command, 2^n units of 4 KiB, from 4 to 10.
    pub mdts: u8,
    /// How long a host has to connect.
    pub connect_timeout: Duration,
    /// How long data that was asked for, or that waits to be taken, may make no progress; zero: for ever.
    pub data_timeout: Duration,
    /// I/O controllers, on the whole server. Queues, with admin queues, are counted by [`Limits::max_sessions`].
    pub max_controllers: usize,
    /// Discovery controllers, on the whole server. With one more, the oldest of the address with the most of them ends.
    pub max_discovery: usize,
}

impl Options {
    /// Data of a command capsule on the I/O queues of a new controller, in bytes: a 512th of a shard's buffers, of which
    /// so many are `plenty`, or `None`; and no more than half of what a queue will have set aside for itself, its `reserve`,
    /// so that a capsule gets on whatever others hold. What does not fit takes an R2T, which is a round trip more; but it is
    /// asked for when there is memory for it, while a host sends as many capsules as its queues have entries.
    pub fn capsule_data(&self, transport: Transport, plenty: Option<usize>, reserve: usize) -> u32 {
        let most = (self.capsule_data as usize).min(reserve / 2);
        let part = (plenty.unwrap_or(0) / 512).min(most) as u32;
        match transport {
            Transport::Tcp => part.checked_ilog2().map_or(0, |n| 1 << n).max(CAPSULE_DATA),
            Transport::Rdma => RDMA_CAPSULE_DATA,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queues: 128,
            queue_entries: 128,
            capsule_data: 128 << 10,
            mdts: 8,
            connect_timeout: Duration::from_secs(10),
            data_timeout: Duration::from_secs(30),
            max_controllers: 1024,
            max_discovery: 64,
        }
    }
}

/// Everything that a [`Server`](crate::Server) is started with.
pub struct Config<Fc: Face> {
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// What to serve, and under which names.
    pub layout: Layout<Fc>,
    /// What is offered to hosts.
    pub options: Options,
    /// Bounds. A session is a queue of an I/O controller.
    pub limits: Limits,
    /// How many shards; `None` is one for each processor that the process may run on.
    pub shards: Option<usize>,
    /// The event loop's driver.
    pub driver: DriverChoice,
    /// When a shard looks for new work before it sleeps.
    pub busy_poll: lunet_ring::BusyPoll,
}
