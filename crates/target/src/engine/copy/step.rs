//! Who takes part in a copy, and whether this initiator may have it done.

use std::sync::Arc;

use lunet_block::ByteRange;
use lunet_scsi::copy::{Side, UnitName};
use lunet_scsi::reserve::Access;
use lunet_scsi::status::{self, RESERVATION_CONFLICT as CONFLICT};
use lunet_scsi::{Code, Sense};
use lunet_volume::{OperationId, VolumeId};

use super::job::{Copy, Moving, Parts};
use crate::conn::Conn;
use crate::engine::Engine;
use crate::engine::task::fail;

/// The parties and ranges of a step.
type Found = ((Option<VolumeId>, VolumeId), (ByteRange, ByteRange));

impl Engine {
    /// Begins the next segment or piece, or fails.
    pub(super) fn next_step(&mut self, conn: &mut Conn, index: OperationId) {
        let task = &mut self.exec.operations[index];
        let volume = task.requests.volume;
        let Some(copy) = &mut task.command.copy else { return };
        copy.next += 1;
        let (slot, op, segments) = (copy.slot, copy.op, copy.segments());
        self.copies.of(slot).advance(op, segments, 0, 0);
        match self.find_step(conn, index, volume) {
            Ok(None) => {}
            Ok(Some((parties, ranges))) => self.begin_step(conn, index, parties, ranges),
            Err(sense) => fail(&mut self.exec.operations[index], sense),
        }
    }

    fn find_step(
        &self,
        conn: &Conn,
        index: OperationId,
        volume: VolumeId,
    ) -> Result<Option<Found>, Sense> {
        let Some(copy) = &self.exec.operations[index].command.copy else { return Ok(None) };
        let number = copy.next - 1;
        match &copy.parts {
            Parts::Segments(extended) => {
                let step = extended.step(number, |name| {
                    let slot = self.locate(conn, volume, name)?;
                    Some((slot.slot(), &self.exec.storage.volumes[slot].core.face.unit))
                })?;
                let parties =
                    |source, destination| (Some(VolumeId::new(source)), VolumeId::new(destination));
                let found =
                    step.map(|step| (parties(step.source, step.destination), (step.from, step.to)));
                Ok(found)
            }
            Parts::Pieces(source, pieces) => {
                let piece = pieces[number];
                Ok(Some(((*source, volume), (piece.from, piece.to))))
            }
        }
    }

    /// The slot of the volume that a designator names, or of the one that has the command: only if this
    /// initiator sees it.
    fn locate(&self, conn: &Conn, here: VolumeId, name: Option<&UnitName>) -> Option<VolumeId> {
        let Some(name) = name else { return Some(here) };
        let session = conn.session.as_ref()?;
        let named =
            |slot: &VolumeId| name.names(&self.exec.storage.volumes[*slot].core.face.unit.identity);
        let own = session.luns.iter().map(|lun| lun.volume).find(named);
        let others = || {
            let served = self.world.volumes().map(|(slot, _)| slot);
            served.filter(named).find(|slot| self.may_reach(conn, *slot))
        };
        own.or_else(others)
    }

    /// True if this initiator sees a volume, in this session or through another target.
    pub(super) fn may_reach(&self, conn: &Conn, slot: VolumeId) -> bool {
        let Some(session) = &conn.session else { return false };
        let who = (conn.portal, session.nexus.initiator.as_str(), conn.origin());
        session.luns.iter().any(|lun| lun.volume == slot)
            || (session.target.is_some() && self.world.shows(slot, session.proof.as_ref(), who))
    }

    /// What reservations let this initiator do.
    pub(super) fn access_to(&self, conn: &mut Conn, slot: VolumeId) -> Access {
        let Some(session) = &mut conn.session else { return Access::NONE };
        let reservations = &self.exec.storage.volumes[slot].core.face.reservations;
        match session.luns.iter_mut().find(|lun| lun.volume == slot) {
            Some(lun) => {
                reservations.refresh(lun.seat, &mut lun.nexus);
                lun.nexus.access()
            }
            // Through another target it is another nexus, and one without registration at that.
            None => reservations.with(|state| state.access(&session.id)),
        }
    }

    fn begin_step(
        &mut self,
        conn: &mut Conn,
        index: OperationId,
        parties: (Option<VolumeId>, VolumeId),
        ranges: (ByteRange, ByteRange),
    ) {
        let moving = Moving::new(parties, ranges, self.world.clone());
        if let Err((side, code)) = self.admits(conn, &moving) {
            let task = &mut self.exec.operations[index];
            let Some(copy) = &task.command.copy else { return };
            // Nothing has happened yet: the initiator tries again.
            if code == status::BUSY && copy.next == 1 && task.command.owner.is_some() {
                task.command.refused = Some(code);
                task.fail();
                return;
            }
            let sense = copy.failure(side, code, None);
            return fail(task, sense);
        }
        for slot in [moving.source, moving.destination] {
            self.exec.enter_volume(slot);
        }
        let task = &mut self.exec.operations[index];
        task.requests.writes = Some(ranges.1);
        task.requests.writes_on = parties.1;
        if let Some(copy) = &mut task.command.copy {
            copy.moving = Some(moving);
        }
    }

    /// Reservations, and writes that were abandoned.
    fn admits(&self, conn: &mut Conn, moving: &Moving) -> Result<(), (Side, u8)> {
        if !self.access_to(conn, moving.source).read {
            return Err((Side::Source, CONFLICT));
        }
        if self.exec.storage.volumes[moving.source].core.fence.blocks(moving.from) {
            return Err((Side::Source, status::BUSY));
        }
        if !self.access_to(conn, moving.destination).write {
            return Err((Side::Destination, CONFLICT));
        }
        if self.exec.storage.volumes[moving.destination].core.fence.blocks(moving.to) {
            return Err((Side::Destination, status::BUSY));
        }
        Ok(())
    }

    /// Looks again before the next part of a step: reservations may have come, volumes may have gone.
    pub(super) fn still_allowed(
        &mut self,
        conn: &mut Conn,
        index: OperationId,
    ) -> Result<(), Sense> {
        let Some(copy) = &self.exec.operations[index].command.copy else { return Ok(()) };
        let Some(moving) = &copy.moving else { return Ok(()) };
        let changed = !Arc::ptr_eq(&moving.world, &self.world);
        let parties = [(moving.source, Side::Source), (moving.destination, Side::Destination)];
        for (slot, side) in parties {
            if changed && (self.world.volume(slot).is_none() || !self.may_reach(conn, slot)) {
                return Err(copy.gone(side));
            }
            if let Err(sense) = side.served_by(&self.exec.storage.volumes[slot].core.face.unit) {
                return Err(copy.failure(side, status::CHECK_CONDITION, Some(sense)));
            }
            let access = self.access_to(conn, slot);
            if !(if side == Side::Source { access.read } else { access.write }) {
                return Err(copy.failure(side, CONFLICT, None));
            }
        }
        if changed {
            let world = self.world.clone();
            if let Some(moving) = self.moving(index) {
                moving.world = world;
            }
        }
        Ok(())
    }

    /// A segment or piece is done.
    pub(super) fn end_step(&mut self, index: OperationId) {
        let task = &mut self.exec.operations[index];
        task.requests.writes = None;
        let Some(copy) = &mut task.command.copy else { return };
        let held = copy.held();
        copy.moving = None;
        for slot in held {
            self.exec.leave_volume(slot);
        }
    }
}

impl Copy {
    /// A party is not there any more.
    fn gone(&self, side: Side) -> Sense {
        let sense = Sense::illegal(Code::LUN_NOT_SUPPORTED);
        self.failure(side, status::CHECK_CONDITION, Some(sense))
    }
}
