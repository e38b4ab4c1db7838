//! A copy, step by step: who takes part in a segment or piece, and whether this initiator may have it done.

use std::sync::Arc;

use lunet_block::ByteRange;
use lunet_reservations::Access;
use lunet_scsi::copy::{Side, UnitName};
use lunet_scsi::status::{self, RESERVATION_CONFLICT as CONFLICT};
use lunet_scsi::{Code, Sense};
use lunet_volume::{OperationId, Parties, Progress, VolumeId};

use super::job::{Copy, Parts};
use crate::connection::Conn;
use crate::engine::Engine;
use crate::engine::task::{Job, Task, fail};
use crate::reservations;
use crate::world::Exports;

/// The parties and ranges of a step.
type Found = ((Option<VolumeId>, VolumeId), (ByteRange, ByteRange));

impl Engine {
    /// Lets a copy get on.
    pub(in crate::engine) fn pump_copy(&mut self, conn: &mut Conn, id: OperationId) -> Progress {
        loop {
            if self.exec.asks_more(id) {
                if let Err(sense) = self.still_allowed(conn, id) {
                    fail(&mut self.exec.operations[id], sense);
                }
            }
            let progress = self.exec.pump_alone(id, Some(conn.budget()));
            let task = &self.exec.operations[id];
            let Some(copy) = copy_of(task) else { return progress };
            let over = task.requests.is_failed() || copy.next == copy.count();
            if progress != Progress::Finished || over {
                return progress;
            }
            self.next_step(conn, id);
        }
    }

    /// So many more bytes of a copy count as written.
    pub(in crate::engine) fn copied(&mut self, id: OperationId, bytes: u64) {
        if let Some(copy) = copy_of(&self.local.exec.operations[id]) {
            self.copies.of(copy.slot).advance(copy.op, copy.segments(), bytes, 1);
        }
    }

    /// Begins the next segment or piece, or fails.
    fn next_step(&mut self, conn: &mut Conn, id: OperationId) {
        let task = &mut self.exec.operations[id];
        let volume = task.requests.volume;
        let Job::Copy(copy) = &mut task.command.job else { return };
        copy.next += 1;
        let (slot, op, segments) = (copy.slot, copy.op, copy.segments());
        self.copies.of(slot).advance(op, segments, 0, 0);
        match self.find_step(conn, id, volume) {
            Ok(None) => {}
            Ok(Some((parties, ranges))) => self.begin_step(conn, id, parties, ranges),
            Err(sense) => fail(&mut self.exec.operations[id], sense),
        }
    }

    fn find_step(
        &self,
        conn: &Conn,
        id: OperationId,
        volume: VolumeId,
    ) -> Result<Option<Found>, Sense> {
        let Some(copy) = copy_of(&self.exec.operations[id]) else { return Ok(None) };
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
        let session = conn.front.session.as_ref()?;
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
        let Some(session) = &conn.front.session else { return false };
        // No copy reaches into a failover group, or out of it: its gate would not know of it.
        let group = session.gated.as_ref().map(|gated| gated.group);
        if !self.groups.is_empty() && self.groups.of_volume(&self.world, slot) != group {
            return false;
        }
        let who = (conn.portal, session.nexus.initiator.as_str(), conn.origin());
        session.luns.iter().any(|lun| lun.volume == slot)
            || (session.target.is_some() && self.world.shows(slot, session.proof.as_ref(), who))
    }

    /// What reservations let this initiator do.
    pub(super) fn access_to(&self, conn: &mut Conn, slot: VolumeId) -> Access {
        let Some(session) = &mut conn.front.session else { return Access::NONE };
        let core = &self.exec.storage.volumes[slot].core;
        match session.luns.iter_mut().find(|lun| lun.volume == slot) {
            Some(lun) => {
                reservations::refresh(core, lun.place.seat, &mut lun.nexus);
                lun.nexus.access()
            }
            // Through another target it is another nexus, and one without registration at that.
            None => core.reservations.look(|state| state.access(session.id.registrant())),
        }
    }

    fn begin_step(
        &mut self,
        conn: &mut Conn,
        id: OperationId,
        (source, destination): (Option<VolumeId>, VolumeId),
        ranges: (ByteRange, ByteRange),
    ) {
        let parties = Parties { source: source.unwrap_or(destination), destination };
        let admitted = self.admits(conn, parties, ranges);
        let task = &mut self.local.exec.operations[id];
        let Job::Copy(copy) = &mut task.command.job else { return };
        if let Err((side, code)) = admitted {
            // Nothing has happened yet: the initiator tries again.
            if code == status::BUSY && copy.next == 1 && task.command.owner.is_some() {
                task.command.refused = Some(code);
                task.fail();
                return;
            }
            let sense = copy.failure(side, code, None);
            return fail(task, sense);
        }
        copy.world = self.local.world.clone();
        self.exec.copy(id, (source, destination), ranges);
    }

    /// Reservations, and writes that were abandoned.
    fn admits(
        &self,
        conn: &mut Conn,
        Parties { source, destination }: Parties,
        (from, to): (ByteRange, ByteRange),
    ) -> Result<(), (Side, u8)> {
        if !self.access_to(conn, source).read {
            return Err((Side::Source, CONFLICT));
        }
        if self.exec.storage.volumes[source].core.fence.blocks(from) {
            return Err((Side::Source, status::BUSY));
        }
        if !self.access_to(conn, destination).write {
            return Err((Side::Destination, CONFLICT));
        }
        if self.exec.storage.volumes[destination].core.fence.blocks(to) {
            return Err((Side::Destination, status::BUSY));
        }
        Ok(())
    }

    /// Looks again before the next part of a step: reservations may have come, volumes may have gone.
    fn still_allowed(&mut self, conn: &mut Conn, id: OperationId) -> Result<(), Sense> {
        let task = &self.exec.operations[id];
        let (Some(copy), Some(parties)) = (copy_of(task), task.requests.parties()) else {
            return Ok(());
        };
        let changed = !Arc::ptr_eq(&copy.world, &self.world);
        let parties = [(parties.source, Side::Source), (parties.destination, Side::Destination)];
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
        if let (true, Job::Copy(copy)) = (changed, &mut self.local.exec.operations[id].command.job)
        {
            copy.world = self.local.world.clone();
        }
        Ok(())
    }
}

/// What there is to copy, if a task is a copy.
pub(super) fn copy_of(task: &Task) -> Option<&Copy> {
    match &task.command.job {
        Job::Copy(copy) => Some(copy),
        _ => None,
    }
}

impl Copy {
    /// A party is not there any more.
    fn gone(&self, side: Side) -> Sense {
        let sense = Sense::illegal(Code::LUN_NOT_SUPPORTED);
        self.failure(side, status::CHECK_CONDITION, Some(sense))
    }
}
