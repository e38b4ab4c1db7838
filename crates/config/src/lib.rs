//! `lunet.toml`: what it says, and what is wrong with it. Pure: text in, settings or mistakes out.

pub mod access;
mod control;
pub mod edit;
mod group;
mod layers;
pub mod limits;
pub mod migrate;
mod mistake;
pub mod names;
mod nvme;
pub mod place;
mod reach;
mod reader;
mod sandbox;
pub mod schema;
pub mod secrets;
mod sections;
mod shared;
mod summary;
mod targets;
pub mod units;
mod volumes;

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lunet_backends::layers::Layer;
use lunet_backends::rbd::ImageName;
use lunet_front_nvme::Tls;
use lunet_scsi::alua::{AccessState, Alua};
use lunet_scsi::{Designator, Threshold};
use lunet_server::{SendWithInvalidate, Transports};
use lunet_volume::Rates;
use toml::Spanned;
use toml::de::DeTable;

pub use access::Access;
pub use control::{
    CONTROL_PORT, Control, ControlAt, DEFAULT_CONTROL, SocketGroup, parse_control_option,
};
pub use group::{Group, Pending, image_of};
pub use mistake::Mistake;
pub use nvme::{Host, HostSecret, Hosts, NVME_PORT, Nvme, SecretPlace, Subsystem};
pub use reach::is_for_discovery;
pub use sandbox::Sandbox;
pub use sections::{AddressError, parse_nvme_portal, parse_portal, state_word};
pub use shared::{Shared, placed};
pub use summary::summary;

use limits::{ClientLimit, Share};
use mistake::Mistakes;
use reader::Section;

/// Where lunet keeps its data if nobody says otherwise.
pub const DEFAULT_DATA: &str = "./lunet-data";

/// The TCP port of iSCSI (IANA).
pub const DEFAULT_PORT: u16 = 3260;

/// The portal that is opened if nobody says otherwise: this machine only, since anyone who can
/// reach a portal can read and write its volumes.
pub const DEFAULT_PORTAL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT);

/// The portal for NVMe that is opened besides, if something is to be served over NVMe.
pub const DEFAULT_NVME_PORTAL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), NVME_PORT);

/// The largest configuration that is read, in bytes.
pub const MAX_BYTES: u64 = 1 << 20;

/// All that `lunet serve` does is said here.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[iscsi]`
    pub iscsi: Iscsi,
    /// `[[portal]]` for iSCSI; empty if the file has none.
    pub portals: Vec<Portal>,
    /// `[volumes.NAME]`, in the order of their names.
    pub volumes: Vec<Volume>,
    /// `[[target]]`
    pub targets: Vec<Target>,
    /// `[discovery]`
    pub discovery: Access,
    /// `[group.NAME]`, in the order of their names.
    pub groups: Vec<Group>,
    /// Those of which it is not known yet what they share.
    pub pending: Vec<Pending>,
    /// What is served over NVMe, of `[[portal]]`, `[[target]]` and `[[subsystem]]`.
    pub nvme: Nvme,
    /// `[[limit]]`, in their order.
    pub limits: Vec<ClientLimit>,
    /// `[control]`
    pub control: Control,
    /// `[sandbox]`
    pub sandbox: Sandbox,
    /// What is no mistake, but should be known: keys without effect.
    pub notes: Vec<Mistake>,
}

/// `[server]`: the process itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Directory of file volumes, the machine's identity and the control socket.
    pub data: Option<PathBuf>,
    /// The control socket; `lunet.sock` in the data directory if left out.
    pub control_socket: Option<PathBuf>,
    /// Number of shards (event loops, one thread each); by links and cores if left out.
    pub shards: Option<usize>,
    /// Processors of which each shard has one, in turn; wherever the system has them if left out.
    pub processors: Option<lunet_os::cpus::Cpus>,
    /// What the event loop is built on.
    pub driver: Driver,
    /// How long a shard looks for work before it sleeps; zero: not at all.
    pub busy_poll: lunet_ring::BusyPoll,
    /// Whether messages over RDMA take back the keys of their receivers.
    pub send_with_invalidate: SendWithInvalidate,
    /// Whether large messages over TCP are sent without a copy, where the kernel reports that it does so.
    pub zero_copy_send: bool,
    /// Memory for data buffers, in bytes per shard.
    pub buffer_memory: u64,
    /// The most sessions at one time.
    pub max_sessions: usize,
    /// The time that a connection has to log in.
    pub login_timeout: Duration,
    /// The time that running commands and clients get when the server stops.
    pub shutdown_grace: Duration,
    /// Who changes the access states of target port groups.
    pub alua: Alua,
    /// What is logged to standard error.
    pub log_level: LogLevel,
}

/// What the event loop is built on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// io_uring where the kernel allows it, else epoll.
    Auto,
    /// io_uring or no start.
    IoUring,
    /// epoll and disk threads.
    Epoll,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum LogLevel {
    /// Failures of the server.
    Error,
    /// What an administrator should look at.
    Warn,
    /// Logins, logouts, start and stop.
    Info,
    /// Protocol decisions, for finding faults.
    Debug,
    /// Everything.
    Trace,
}

/// `[iscsi]`: what we offer in login negotiation (RFC 7143 13), and the pings.
#[derive(Clone, Debug, PartialEq)]
pub struct Iscsi {
    /// MaxRecvDataSegmentLength, in bytes.
    pub max_recv_data_segment_length: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst_length: u32,
    /// MaxBurstLength, in bytes.
    pub max_burst_length: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// InitialR2T: no data before it is asked for.
    pub initial_r2t: bool,
    /// ImmediateData: data may travel with its command.
    pub immediate_data: bool,
    /// HeaderDigest.
    pub header_digest: Digest,
    /// DataDigest.
    pub data_digest: Digest,
    /// Commands that a session may have outstanding.
    pub queue_depth: u32,
    /// Silence after which the initiator is pinged; zero: never.
    pub ping_interval: Duration,
    /// Time for the answer to a ping.
    pub ping_timeout: Duration,
    /// How long data may make no progress in either direction; zero: for ever.
    pub data_timeout: Duration,
}

/// How digests are negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// As the initiator likes it.
    Allow,
    /// CRC32C, or the login is refused.
    Require,
    /// Never.
    Forbid,
}

/// `[[portal]]`: an address that is listened on.
#[derive(Clone, Debug, PartialEq)]
pub struct Portal {
    /// Where it listens.
    pub address: SocketAddr,
    /// Portal group tag (RFC 7143), which is also the target port group of its LUNs.
    pub tag: u16,
    /// The access state of its target port group; the same for all portals with the tag.
    pub group_state: AccessState,
    /// Initiators should prefer that group; the same for all portals with the tag.
    pub preferred: bool,
    /// Over what it is reached.
    pub transports: Transports,
    /// What it has of TLS, if it is for NVMe.
    pub tls: Tls,
}

/// `[volumes.NAME]`: a place for blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// 1 to 64 characters, unique among the volumes.
    pub name: String,
    /// Where its blocks are kept.
    pub backend: Backend,
    /// Logical block size in bytes, 512 or 4096; the backend's own if left out.
    pub block_size: Option<u32>,
    /// Physical block size in bytes; the backend's own if left out.
    pub physical_block_size: Option<u32>,
    /// Writes are refused.
    pub read_only: bool,
    /// Initiators may eject the medium and load it again.
    pub removable: bool,
    /// Writes may be answered before they are stable, where the storage has a volatile cache.
    pub write_cache: bool,
    /// When initiators are told that the storage below fills up.
    pub threshold: Option<Threshold>,
    /// How much may be done with it in a time.
    pub rates: Rates,
    /// What it has of its storage beside others.
    pub share: Share,
    /// T10 vendor identification.
    pub vendor: Option<String>,
    /// Product identification.
    pub product: Option<String>,
    /// Unit serial number.
    pub serial: Option<String>,
    /// NAA designator.
    pub naa: Option<Designator>,
    /// EUI-64 based designator.
    pub eui: Option<Designator>,
    /// What makes the volume fail, slow or hang; for tests.
    pub layers: Vec<Layer>,
    /// The failover group that opens it.
    pub group: Option<String>,
}

/// Where the blocks of a volume are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Backend {
    /// A file.
    File {
        /// Relative to the data directory; `NAME.img` if left out.
        path: Option<PathBuf>,
        /// In bytes. If left out the file must exist, and its size is taken.
        size: Option<u64>,
        /// How the operating system's cache is used.
        cache: Cache,
        /// When space is taken.
        provisioning: Provisioning,
    },
    /// A block device, past the operating system's cache (O_DIRECT).
    Block {
        /// The device node, such as /dev/zvol/tank/vm.
        path: PathBuf,
        /// Reads and writes go to the drive as NVMe commands, past the block layer.
        passthrough: Option<lunet_ring::Passthrough>,
    },
    /// An image of Ceph.
    Rbd {
        /// Its name.
        image: ImageName,
        /// The configuration of Ceph; /etc/ceph/ceph.conf if left out.
        conf: Option<PathBuf>,
        /// The user of the cluster, without `client.`; admin if left out.
        user: Option<String>,
        /// The file with the user's key, which is a secret; by the configuration of Ceph if left out.
        keyring: Option<PathBuf>,
    },
    /// Memory; gone when the server stops.
    Memory {
        /// In bytes.
        size: u64,
    },
    /// Reads zeroes, forgets writes: for measuring.
    Null {
        /// In bytes.
        size: u64,
    },
}

/// How the operating system's page cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Through it.
    Buffered,
    /// Around it (O_DIRECT).
    Direct,
}

/// When a file takes its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioning {
    /// When it is written.
    Thin,
    /// At once.
    Full,
}

/// `[[target]]`: an iSCSI target.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Indices of its portals in [`Config::portals`]; empty: all.
    pub portals: Vec<usize>,
    /// LUN numbers and the indices of their volumes in [`Config::volumes`], by number.
    pub luns: Vec<(u16, usize)>,
    /// Who may see and reach it.
    pub access: Access,
    /// Its initiators may reset it as a whole (TARGET WARM RESET, TARGET COLD RESET).
    pub allow_reset: bool,
}

/// Who may reach a target at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Initiators, users, or initiators of each LUN are named: they and nobody else.
    Named,
    /// Nobody is named, and `open` says that everybody may.
    Everybody,
    /// Nobody is named: who connects from this machine.
    ThisMachine,
}

impl Target {
    /// Who may reach it.
    pub fn reach(&self) -> Reach {
        let rules = &self.access;
        let masked = |(lun, _): &(u16, usize)| rules.luns.iter().any(|(other, _)| other == lun);
        let all_masked = !self.luns.is_empty() && self.luns.iter().all(masked);
        if !rules.users.is_empty() || !rules.initiators.is_everybody() || all_masked {
            Reach::Named
        } else if rules.open {
            Reach::Everybody
        } else {
            Reach::ThisMachine
        }
    }
}

impl Volume {
    /// The file or device behind the volume, for a data directory `data`.
    pub fn path(&self, data: &Path) -> Option<PathBuf> {
        match &self.backend {
            Backend::File { path: Some(path), .. } => Some(data.join(path)),
            Backend::File { path: None, .. } => Some(data.join(format!("{}.img", self.name))),
            Backend::Block { path, .. } => Some(path.clone()),
            Backend::Rbd { .. } | Backend::Memory { .. } | Backend::Null { .. } => None,
        }
    }

    /// The size that the configuration gives, in bytes.
    pub fn size(&self) -> Option<u64> {
        match self.backend {
            Backend::File { size, .. } => size,
            Backend::Block { .. } | Backend::Rbd { .. } => None,
            Backend::Memory { size } | Backend::Null { size } => Some(size),
        }
    }
}

/// `; did you mean "..."?` if one of the names looks much like `name`; else nothing.
pub fn did_you_mean<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    match schema::nearest(name, names) {
        Some(near) => format!("; did you mean \"{near}\"?"),
        None => String::new(),
    }
}

/// The same; where nothing is near, the command that lists what there is.
pub fn near_or_list<'a>(name: &str, names: impl Iterator<Item = &'a str>, list: &str) -> String {
    let near = did_you_mean(name, names);
    if near.is_empty() { format!(": `{list}` shows what there is") } else { near }
}

/// What the parser says to a key that is there twice.
const TWICE: &str = "duplicate key";

/// Reads a configuration.
///
/// # Errors
/// Every mistake that was found, in the order of lines, at most a hundred.
pub fn check(text: &str) -> Result<Config, Vec<Mistake>> {
    check_with(text, &[])
}

/// Reads the text of a file. `None` if it cannot be read as TOML.
fn parse<'t>(text: &'t str, mistakes: &mut Mistakes) -> Option<Spanned<DeTable<'t>>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut last = 0;
    let mut broken = false;
    for error in &errors {
        let span = error.span().unwrap_or_default();
        let twice = error.message() == TWICE;
        broken |= !twice;
        // One slip makes the parser stumble several times over the same line.
        let line = mistakes.line(span.start);
        if line != last {
            let message = error.message().trim_end_matches(", expected nothing");
            let key = text.get(span.clone()).filter(|_| twice);
            let key = key.map_or_else(String::new, |key| format!(": {key} is already defined"));
            mistakes.add(span.start, "", format!("{message}{key}"));
        }
        last = line;
    }
    // What the parser makes of broken text would only lead to mistakes that are none. Of a key that
    // is there twice it takes the first, and the rest of the text is as it was meant.
    (!broken).then_some(root)
}

/// Reads a configuration, with what failover groups of it share, which is read as if it stood behind it.
///
/// # Errors
/// As for [`check`]; [`placed`] says where the mistakes are.
pub fn check_with(text: &str, shared: &[Shared]) -> Result<Config, Vec<Mistake>> {
    let whole = shared::Whole::new(text, shared);
    let mut mistakes = Mistakes::new(&whole.text);
    let Some(root) = whole.parse(text, &mut mistakes) else { return Err(mistakes.into_sorted()) };
    // A later version may have keys that would all be mistakes.
    if let Some(later) = sections::later_version(&root) {
        mistakes.add(later.offset, "version", later.value);
        return Err(mistakes.into_sorted());
    }
    let top = Section::new(&root, 0, String::new(), &schema::ROOT, &mut mistakes);
    sections::version(&top, &mut mistakes);
    let server = sections::server(&top, &mut mistakes);
    let iscsi = sections::iscsi(&top, &mut mistakes);
    let portals = sections::portals(&top, &mut mistakes);
    let mut volumes = volumes::volumes(&top, &mut mistakes);
    volumes::check_files(&volumes, &mut mistakes);
    let (targets, subsystems) = targets::targets(&top, &portals, &volumes, &mut mistakes);
    let subsystems = nvme::subsystems(&top, &portals, &volumes, subsystems, &mut mistakes);
    let around = group::Around {
        server: &server,
        portals: &portals,
        targets: &targets,
        subsystems: &subsystems,
        shared,
    };
    let (groups, pending) = group::groups(&top, &around, &mut volumes, &mut mistakes);
    let (referrals, announce) = nvme::general(&top, &mut mistakes);
    let limits = limits::limits(&top, &mut mistakes);
    let control = control::control(&top, &mut mistakes);
    let sandbox = sandbox::sandbox(&top, &mut mistakes);
    let discovery = access::discovery(&top, &mut mistakes);
    mistakes.extend(access::same_secrets(&targets, &discovery));
    if !mistakes.none() {
        return Err(mistakes.into_sorted());
    }
    Ok(Config {
        server,
        iscsi,
        portals: portals.iscsi.into_iter().map(|portal| portal.value).collect(),
        nvme: Nvme {
            portals: portals.nvme.into_iter().map(|portal| portal.value).collect(),
            subsystems,
            referrals,
            announce,
        },
        volumes: volumes.into_iter().filter_map(|volume| volume.value).collect(),
        targets,
        discovery,
        groups,
        pending,
        limits,
        control,
        sandbox,
        notes: mistakes.take_notes(),
    })
}
