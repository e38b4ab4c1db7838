//! What all shards share: set up at start and not changed afterwards, apart from the registry,
//! the fences and a few counters that only logins touch.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use lunet_backends::Volume;
use lunet_iscsi::target::Options;
use lunet_scsi::Unit;
use lunet_scsi::reserve::{Reservations, TargetPort};

use crate::config::{Config, Limits, Portal, TargetEntry, VolumeEntry};
use crate::fence::Fence;
use crate::keeper::{self, Order};
use crate::mail::Mailbox;
use crate::registry::Registry;
use crate::reservations::Shared;

/// A volume with its logical unit.
pub struct CoreVolume {
    /// Its name.
    pub name: String,
    /// The open volume.
    pub volume: Volume,
    /// The logical unit that shows it.
    pub unit: Unit,
    /// Abandoned writes.
    pub fence: Fence,
    /// Who may use it.
    pub reservations: Shared,
    /// The file that keeps them through power loss.
    pub kept: Option<PathBuf>,
}

/// A target.
pub struct CoreTarget {
    /// The iSCSI name.
    pub name: String,
    /// The alias.
    pub alias: Option<String>,
    /// Its LUNs, ascending.
    luns: Vec<u16>,
    /// The volume behind each of the LUNs.
    pub volumes: Vec<usize>,
    /// How it looks through each of the portals, in their order.
    pub scsi: Vec<lunet_scsi::Target>,
    /// Whether it is reached through each of the portals.
    pub portals: Vec<bool>,
}

impl CoreTarget {
    /// Where a LUN stands in the list.
    pub fn position(&self, lun: u16) -> Option<usize> {
        self.luns.binary_search(&lun).ok()
    }
}

/// The server, as its shards see it.
pub struct Core {
    /// When it started: the zero of every time in the server.
    pub started: Instant,
    /// Where it listens, with the real port numbers.
    pub portals: Vec<Portal>,
    /// What it serves.
    pub volumes: Vec<CoreVolume>,
    /// Under which names.
    pub targets: Vec<CoreTarget>,
    /// What connections offer.
    pub options: Options,
    /// Bounds.
    pub limits: Limits,
    /// Who is logged in.
    pub registry: Registry,
    /// Connections that have not finished their login.
    pub logins: AtomicUsize,
    /// Connections of each shard.
    pub loads: Vec<AtomicUsize>,
    /// How long commands of busy clients may gather; zero: never.
    pub coalesce: Duration,
    mailboxes: OnceLock<Vec<Mailbox>>,
    keeper: OnceLock<SyncSender<Order>>,
    serial: AtomicU64,
}

impl Core {
    /// The shared part of a server with this many shards.
    ///
    /// # Errors
    /// A plain sentence, if the reservations of a volume were kept and cannot be taken up.
    pub fn new(config: Config, portals: Vec<Portal>, shards: usize) -> Result<Self, String> {
        let volumes = config.volumes.into_iter().enumerate().map(|(number, entry)| {
            let ports = ports_of(number, &config.targets, &portals);
            Ok(CoreVolume {
                reservations: Shared::new(reservations(ports, &entry)?),
                kept: entry.reservations,
                name: entry.name,
                volume: entry.volume,
                unit: entry.unit,
                fence: Fence::default(),
            })
        });
        let volumes = volumes.collect::<Result<Vec<_>, String>>()?;
        let targets = config.targets.into_iter().map(|mut entry| {
            entry.luns.sort_unstable();
            let luns: Vec<u16> = entry.luns.iter().map(|(lun, _)| *lun).collect();
            CoreTarget {
                volumes: entry.luns.iter().map(|(_, volume)| *volume).collect(),
                scsi: portals
                    .iter()
                    .map(|portal| scsi_target(&entry.name, portal, &luns))
                    .collect(),
                portals: (0..portals.len())
                    .map(|n| entry.portals.is_empty() || entry.portals.contains(&n))
                    .collect(),
                luns,
                name: entry.name,
                alias: entry.alias,
            }
        });
        Ok(Self {
            started: Instant::now(),
            volumes,
            targets: targets.collect(),
            portals,
            options: config.iscsi,
            registry: Registry::new(config.limits.max_sessions),
            limits: config.limits,
            logins: AtomicUsize::new(0),
            loads: (0..shards).map(|_| AtomicUsize::new(0)).collect(),
            coalesce: config.coalesce,
            mailboxes: OnceLock::new(),
            keeper: OnceLock::new(),
            serial: AtomicU64::new(1),
        })
    }

    /// Makes the shards' mailboxes known, once all of them stand.
    pub fn set_mailboxes(&self, mailboxes: Vec<Mailbox>) {
        let fresh = self.mailboxes.set(mailboxes).is_ok();
        debug_assert!(fresh, "mailboxes are set once");
    }

    /// The shards' mailboxes; none before the server has started.
    pub fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().map_or(&[], Vec::as_slice)
    }

    /// Makes the way to the keeper known, once it stands.
    pub fn set_keeper(&self, orders: SyncSender<Order>) {
        let fresh = self.keeper.set(orders).is_ok();
        debug_assert!(fresh, "there is one keeper");
    }

    /// Tells the keeper. False if it has too much to do.
    pub fn order(&self, order: Order) -> bool {
        self.keeper.get().is_some_and(|orders| orders.try_send(order).is_ok())
    }

    /// A number that no connection or command had before.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// The shard with the fewest connections; counts one more for it.
    pub fn least_loaded(&self) -> usize {
        let loads = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).enumerate();
        let shard = loads.min_by_key(|(_, load)| *load).map_or(0, |(shard, _)| shard);
        self.loads[shard].fetch_add(1, Ordering::Relaxed);
        shard
    }
}

/// The reservations of a volume, as they were kept.
fn reservations(ports: Vec<TargetPort>, entry: &VolumeEntry) -> Result<Reservations, String> {
    let mut state = Reservations::new(ports, entry.reservations.is_some());
    let Some(path) = &entry.reservations else { return Ok(state) };
    if let Some(saved) = keeper::load(path, &entry.unit.identity.naa)? {
        let damaged = |error| format!("{} is damaged: {error}", path.display());
        state.restore(saved).map_err(damaged)?;
    }
    Ok(state)
}

/// The target ports that lead to a volume.
fn ports_of(volume: usize, targets: &[TargetEntry], portals: &[Portal]) -> Vec<TargetPort> {
    let mut ports = Vec::new();
    for target in targets.iter().filter(|t| t.luns.iter().any(|(_, v)| *v == volume)) {
        for (number, portal) in portals.iter().enumerate() {
            let reached = target.portals.is_empty() || target.portals.contains(&number);
            let port = TargetPort { target: target.name.as_str().into(), relative: portal.tag };
            if reached && !ports.contains(&port) {
                ports.push(port);
            }
        }
    }
    ports
}

/// An iSCSI target port is the target in one portal group, so the group's tag is its number.
fn scsi_target(name: &str, portal: &Portal, luns: &[u16]) -> lunet_scsi::Target {
    lunet_scsi::Target {
        name: name.to_owned(),
        portal_group_tag: portal.tag,
        relative_port: portal.tag,
        port_group: portal.tag,
        luns: luns.to_vec(),
    }
}
