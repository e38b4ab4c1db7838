//! What becomes of iSCSI's part of the world when the layout changes: target ports, their groups, and what units tell.

use std::sync::{Arc, PoisonError};

use lunet_files::ReadError;
use lunet_scsi::Attention;
use lunet_scsi::alua::{Alua, PortGroup};

use super::{Core, Shared};
use crate::config::{Config, Layout};
use crate::engine::Engine;
use crate::ports::{self, Ports, PortsError};
use crate::reservations::with_seats;
use crate::world::{Exports, ScsiVolume, Ways, World};
use lunet_server::change::{ApplyError, Next, next_portals};
use lunet_server::front::{Front, FrontError};
use lunet_server::portals::Portals;

/// What shards share when the server starts, and the first world.
///
/// # Errors
/// Reservations or numbers of ports were kept and cannot be taken up.
pub(super) fn open(config: Config, portals: Arc<Portals>) -> Result<(Shared, World), FrontError> {
    let mut ports = Ports::new(config.port_numbers)?;
    let groups = ports::groups(&Default::default(), &portals, &config.layout.groups)?;
    ports.number(&config.layout.targets, &portals)?;
    let ways = Ways { portals, groups };
    let next = World::default().next(config.layout, ways, &ports);
    let (world, effects) = next.map_err(NotTakenUp)?;
    effects.publish();
    let sessions = (config.limits.max_sessions, config.max_discovery);
    let shared = Shared::new(config.iscsi, sessions, ports);
    shared.hear(&world);
    Ok((shared, world))
}

/// What was kept of a volume's reservations cannot be taken up.
#[derive(Debug, thiserror::Error)]
#[error("persistent reservations: {0}")]
struct NotTakenUp(ReadError);

/// The world after this one.
///
/// # Errors
/// [`ApplyError`]; nothing has changed then.
pub(super) fn next_world(
    core: &Core,
    before: &World,
    mut layout: Layout,
) -> Result<Next<Engine>, ApplyError> {
    let (portals, listeners) = match &layout.portals {
        None => (before.portals.clone(), Vec::new()),
        Some(wanted) => {
            let (portals, slots, listeners) = next_portals(&before.portals, wanted, Engine::NAMES)?;
            // The layout's targets name their portals by slots from then on.
            for target in &mut layout.targets {
                target.portals = target.portals.iter().map(|portal| slots[*portal]).collect();
            }
            (portals, listeners)
        }
    };
    let groups = ports::groups(&before.rules.groups, &portals, &layout.groups);
    let ways = Ways { groups: groups.map_err(ports_error)?, portals };
    let mut ports = core.front.ports.lock().unwrap_or_else(PoisonError::into_inner);
    ports.number(&layout.targets, &ways.portals).map_err(ports_error)?;
    let next = before.next(layout, ways, &ports);
    let (world, effects) = next.map_err(|error| ApplyError::Front(NotTakenUp(error).into()))?;
    // Of a change that does not come about nobody has commands to end.
    core.front.hear(&world);
    Ok(Next { world, effects, listeners })
}

fn ports_error(error: PortsError) -> ApplyError {
    ApplyError::Front(error.into())
}

/// Says whether these groups would do with these portals.
pub(super) fn foresee(
    before: &World,
    portals: &Portals,
    groups: &[PortGroup],
) -> Result<(), ApplyError> {
    ports::groups(&before.rules.groups, portals, groups).map(drop).map_err(ports_error)
}

/// Makes ready what counts as soon as somebody comes by a way that is new.
pub(super) fn begin_world(next: &World, before: &World) {
    for (_, volume) in next.volumes() {
        let states = &volume.face.unit.state.access;
        with_seats(volume, |_| next.rules.groups.begin(states, &before.rules.groups));
    }
}

/// Target port groups have other states from now on.
pub(super) fn world_begun(next: &World, before: &World) {
    for (_, volume) in next.volumes() {
        let states = &volume.face.unit.state.access;
        let told = with_seats(volume, |seats| {
            let told = next.rules.groups.reconfigure(states, &before.rules.groups);
            if told && volume.face.unit.alua != Alua::Off {
                seats.attend_all(Attention::AccessStateChanged);
            }
            told
        });
        if told {
            volume.reservations.paths_changed();
        }
    }
}

/// Asks the storage how much room there is.
pub(super) fn note_room(volume: &ScsiVolume) {
    // Where nobody knows, nothing is said.
    let Ok(space) = volume.backend.slow().space() else { return };
    if volume.face.unit.note_space(&space) {
        tracing::warn!(
            volume = %volume.name,
            available_mib = space.available >> 20,
            "the storage below a thin volume is filled up to its threshold"
        );
        with_seats(volume, |seats| seats.attend_all(Attention::ThresholdReached));
    }
}
