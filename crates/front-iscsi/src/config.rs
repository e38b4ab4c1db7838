//! What a server is made of: portals, volumes, targets and limits.

use std::path::PathBuf;
use std::sync::Arc;

use lunet_backends::Volume;
use lunet_iscsi::target::Options;
use lunet_ring::DriverChoice;
use lunet_scsi::Unit;
use lunet_scsi::alua::PortGroup;
use lunet_volume::Health;

use crate::access::Access;
use lunet_server::hosting::{Limits, Portal};

/// Discovery sessions that a server has at a time, if nobody says otherwise.
pub const MAX_DISCOVERY: usize = 32;

/// A volume and the logical unit that shows it.
pub struct VolumeEntry {
    /// The volume's name in configuration and statistics.
    pub name: String,
    /// The open volume.
    pub volume: Volume,
    /// The logical unit: identity and limits.
    pub unit: Unit,
    /// Whether the storage below has failed: one for as long as that is open, whatever becomes of the volume's size.
    pub health: Arc<Health>,
    /// Where the storage should be found, for a volume in a file or on a device.
    pub path: Option<PathBuf>,
    /// The file that keeps its persistent reservations through power loss (APTPL); without one,
    /// initiators cannot ask for that.
    pub reservations: Option<PathBuf>,
}

/// A target: a name, and the volumes behind it.
#[derive(Clone, Debug, Default)]
pub struct TargetEntry {
    /// The iSCSI name.
    pub name: String,
    /// The alias that initiators show to people.
    pub alias: Option<String>,
    /// Logical unit numbers, each with an index into [`Layout::volumes`].
    pub luns: Vec<(u16, usize)>,
    /// Indexes into [`Layout::portals`], or into [`Config::portals`] where that has none; empty means all.
    pub portals: Vec<usize>,
    /// Who may see and reach it.
    pub access: Access,
    /// TARGET WARM RESET and TARGET COLD RESET are carried out. They reach the LUNs of this target
    /// that the initiator sees, whoever uses them.
    pub allow_reset: bool,
}

impl TargetEntry {
    /// Whether initiators reach it through this portal.
    pub fn reached_through(&self, portal: usize) -> bool {
        self.portals.is_empty() || self.portals.contains(&portal)
    }
}

/// What is served: the part that can change while the server runs.
#[derive(Default)]
pub struct Layout {
    /// Where to listen from then on; `None`: as before. A portal with the address (as configured), tag and
    /// transports of one that is there is that one. One that is new is served over TCP until the server is
    /// started anew: over iSER from then on. At the start [`Config::portals`] counts.
    pub portals: Option<Vec<Portal>>,
    /// The volumes, each name once.
    pub volumes: Vec<VolumeEntry>,
    /// The targets that show them, each name once.
    pub targets: Vec<TargetEntry>,
    /// Access states of portal groups; those that are not here are active/optimized.
    pub groups: Vec<PortGroup>,
    /// Who may ask for the list of targets. The rules of each target say what of it they get.
    pub discovery: Access,
    /// Sessions that could not log in by these rules stay all the same, until rules that concern
    /// them change again.
    pub keep_sessions: bool,
}

/// Everything that a [`Server`](crate::Server) is started with.
pub struct Config {
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// What to serve, and under which names.
    pub layout: Layout,
    /// The file that keeps the numbers of target ports (RELATIVE TARGET PORT IDENTIFIER); without one they
    /// are new with every start.
    pub port_numbers: Option<PathBuf>,
    /// What is offered in iSCSI negotiation, and its time limits.
    pub iscsi: Options,
    /// Bounds.
    pub limits: Limits,
    /// Discovery sessions, on the whole server. With one more, the oldest of the address with the most of them ends.
    /// They take no places of other sessions.
    pub max_discovery: usize,
    /// How many shards; `None` is one for each processor that the process may run on.
    pub shards: Option<usize>,
    /// The event loop's driver.
    pub driver: DriverChoice,
    /// When a shard looks for new work before it sleeps.
    pub busy_poll: lunet_ring::BusyPoll,
}
