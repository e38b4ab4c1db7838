//! What each target port says of its access state (ALUA, SPC-5 5.17; ANA, NVMe base 8.1.1).

use alloc::vec::Vec;

use crate::{GatewayId, Record};

/// The access state of a target port group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessState {
    /// Its gateway owns the group: active/optimized; ANA optimized.
    Optimized,
    /// Another does, and executes what comes here: active/non-optimized; ANA non-optimized.
    NonOptimized,
    /// Another does, and cannot be reached by gateways: standby; ANA inaccessible.
    Standby,
    /// The group is on its way there: transitioning; ANA change.
    Transitioning,
}

/// The access states of all target port groups (for ANA see [`Gate`](crate::Gate)): of the record alone, so those who know the
/// same epoch say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access(pub Vec<(u16, AccessState)>);

impl Access {
    /// As the record has it, each group once, in the order of their numbers.
    pub fn of(record: &Record) -> Self {
        let reached = record.owner.as_ref().is_some_and(|owner| owner.portals.iscsi.is_some());
        let state = |gateway: GatewayId| {
            let owns = record.owner.as_ref().is_some_and(|owner| owner.gateway == gateway);
            match (owns, record.heir == Some(gateway)) {
                (true, _) => AccessState::Optimized,
                (false, true) => AccessState::Transitioning,
                (false, false) if reached => AccessState::NonOptimized,
                (false, false) => AccessState::Standby,
            }
        };
        let mut all: Vec<_> =
            record.ports.iter().map(|port| (port.group, state(port.gateway))).collect();
        all.sort_by_key(|(group, _)| *group);
        all.dedup_by_key(|(group, _)| *group);
        Self(all)
    }
}
