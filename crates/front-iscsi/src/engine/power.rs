//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL.

use lunet_iscsi::target::Tag;
use lunet_scsi::{Attention, Code, PowerChange, Sense, Transfer, status};
use lunet_volume::{Kind, OperationId, VolumeId};

use super::task::fail;
use super::{Engine, respond};
use crate::connection::Conn;
use crate::reservations::with_seats;

impl Engine {
    /// True if a nexus prevents this change: the medium leaves the unit. That it comes back is nobody's loss.
    pub(super) fn holds_medium(&self, volume: VolumeId, change: PowerChange) -> bool {
        change == PowerChange::Eject
            && with_seats(&self.exec.storage.volumes[volume].core, |seats| {
                seats.removal_prevented()
            })
    }

    /// Carries START STOP UNIT out: once the flush is done, or before it if that was answered already.
    pub(super) fn change_power(&mut self, id: OperationId) {
        let task = &mut self.local.exec.operations[id];
        let Some(power) = task.command.power.take().filter(|_| !task.requests.is_failed()) else {
            return;
        };
        let (change, seat) = *power;
        let core = &self.local.exec.storage.volumes[task.requests.volume].core;
        if !matches!(change, PowerChange::Eject | PowerChange::Load) {
            core.face.unit.state.change_power(change);
            return;
        }
        // Under the lock, so that no PREVENT is answered meanwhile.
        with_seats(core, |seats| {
            if change == PowerChange::Eject && seats.removal_prevented() {
                fail(task, Sense::illegal(Code::MEDIUM_REMOVAL_PREVENTED));
            } else if core.face.unit.state.change_power(change) {
                // Whoever loaded it knows.
                match seat {
                    Some(seat) => seats.attend_others(seat, Attention::MediumChanged),
                    None => seats.attend_all(Attention::MediumChanged),
                }
            }
        });
    }

    /// A nexus prevents or allows the removal of the medium.
    pub(super) fn prevent_removal(
        &mut self,
        conn: &mut Conn,
        (tag, lun, volume): (Tag, u16, VolumeId),
        prevent: bool,
    ) {
        let Some(seat) = conn.front.seat(lun) else { return };
        let volume = &mut self.exec.storage.volumes[volume];
        with_seats(&volume.core, |seats| seats.prevent_removal(seat, prevent));
        volume.count.record(Kind::Other, 0, 0, false);
        respond(conn, tag, status::GOOD, &[], Transfer::default());
    }
}
