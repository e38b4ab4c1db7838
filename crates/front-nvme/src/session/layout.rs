//! What becomes of NVMe's part of the world when the layout changes.

use std::sync::{Arc, PoisonError};

use lunet_server::change::{ApplyError, Next, next_portals};
use lunet_server::front::{Front, FrontError};
use lunet_server::portals::Portals;
use lunet_volume::Face;

use super::Shared;
use crate::config::{Config, Layout};
use crate::engine::Engine;
use crate::world::{Exports, World, check, check_options};

/// What shards share when the server starts, and the first world.
///
/// # Errors
/// The layout cannot be served.
pub(super) fn open<Fc: Face>(
    config: Config<Fc>,
    portals: Arc<Portals>,
) -> Result<(Shared, World<Fc>), FrontError> {
    check_options(&config.options)?;
    check(&config.layout)?;
    let world = World::default().next(config.layout, portals);
    let shared = Shared::new(config.options, config.limits.max_sessions);
    hear(&shared, &world);
    Ok((shared, world))
}

/// Hears of losses at volumes that are new.
pub(super) fn hear<Fc: Face>(shared: &Shared, world: &World<Fc>) {
    let volumes = world.volumes().map(|(slot, volume)| (slot, &volume.reservations));
    shared.hearing.lock().unwrap_or_else(PoisonError::into_inner).hear(volumes);
}

/// The world after this one.
///
/// # Errors
/// [`ApplyError`]; nothing has changed then.
pub(super) fn next_world<Fc: Face>(
    before: &World<Fc>,
    mut layout: Layout<Fc>,
) -> Result<Next<Engine<Fc>>, ApplyError> {
    check(&layout).map_err(|error| ApplyError::Front(error.into()))?;
    let (portals, listeners) = match &layout.portals {
        None => (before.portals.clone(), Vec::new()),
        Some(wanted) => {
            let names = <Engine<Fc> as Front>::NAMES;
            let (portals, slots, listeners) = next_portals(&before.portals, wanted, names)?;
            // The layout's subsystems name their portals by slots from then on.
            for subsystem in &mut layout.subsystems {
                subsystem.portals = subsystem.portals.iter().map(|portal| slots[*portal]).collect();
            }
            layout.tls.iter_mut().for_each(|(portal, _)| *portal = slots[*portal]);
            (portals, listeners)
        }
    };
    Ok(Next { world: before.next(layout, portals), effects: (), listeners })
}
