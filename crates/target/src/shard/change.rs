//! The world changes: sessions see the LUNs of the next one, and are told so.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_scsi::{Attention, Code, Sense};
use lunet_volume::VolumeId;

use super::Shard;
use super::management::Ending;
use crate::access::Origin;
use crate::change::{Proposal, Verdict};
use crate::conn::{Conn, ConnId, Phase, Session, SessionLun};
use crate::entrance::{Fate, Visitor};
use crate::world::{CoreTarget, ScsiVolume, World};

/// How long a session that has lost its target or its portal has to log out, and to take what is left for it.
const GRACE: Duration = Duration::from_secs(3);

/// The end of commands whose logical unit is not there any more.
const GONE: Ending = Ending::Sense(Sense::illegal(Code::LUN_NOT_SUPPORTED));

impl Shard {
    /// Gets ready for a change.
    pub(super) fn propose(&mut self, proposal: Arc<Proposal>) {
        // There is one change at a time, so the last one has been decided.
        self.decide();
        if proposal.verdict().is_none() {
            proposal.answer_prepared(self.engine.prepare(&proposal.world));
            self.proposal = Some(proposal);
        }
    }

    /// Does what was decided about a change. Looked at in each turn before anything else, so that a shard
    /// that has stalled does nothing more by a world that is over.
    pub(super) fn decide(&mut self) {
        let Some(verdict) = self.proposal.as_ref().and_then(|proposal| proposal.verdict()) else {
            return;
        };
        let Some(proposal) = self.proposal.take() else { return };
        match verdict {
            Verdict::Adopt => {
                self.adopt_world(proposal.world.clone());
                for (portal, listener) in proposal.take_listeners_for(self.number) {
                    self.listen(portal, listener);
                }
                proposal.answer_adopted();
            }
            Verdict::Cancel => self.engine.exec.cancel_prepared(),
        }
    }

    fn adopt_world(&mut self, next: Arc<World>) {
        let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.see(slot, &next);
            self.touch(slot);
        }
        let removed: Vec<usize> = self.removed_portals(&next).collect();
        self.engine.adopt(next);
        for portal in removed {
            self.end_listener(portal);
        }
        self.end_listeners();
        self.engine.settle(&mut self.conns);
    }

    /// The slots of portals that the next world does not have any more.
    fn removed_portals<'w>(&'w self, next: &'w World) -> impl Iterator<Item = usize> + 'w {
        let there = self.engine.world.ways.portals.iter().map(|(slot, _)| slot);
        there.filter(|slot| next.ways.portals.get(*slot).is_none())
    }

    /// Shows a session the next world.
    fn see(&mut self, slot: ConnId, next: &World) {
        let conn = &self.conns[slot];
        let (peer, origin, portal) = (conn.peer.ip(), conn.origin(), conn.portal);
        let Some(session) = conn.session.as_ref().filter(|_| conn.phase == Phase::Open) else {
            return;
        };
        let Some(number) = session.nexus.target else {
            if !self.finder_stays(session, (portal, origin), next) {
                self.drain_within(slot, GRACE);
            }
            return;
        };
        // One that was asked to log out does not get its LUNs back.
        let Some(now) = &session.target else { return };
        let stays =
            |target: &&Arc<CoreTarget>| self.stays(session, (portal, origin), [now, target], next);
        let target = next.target(number).filter(stays).cloned();
        let Some(target) = target else { return self.dismiss(slot) };
        let (gone, came) = self.compare_view(slot, next, &target, peer);
        for lun in &gone {
            self.end_unit(slot, *lun, GONE);
            self.engine.reset_copies(slot, *lun);
        }
        let Some(session) = self.conns[slot].session.as_mut() else { return };
        let mut kept = Vec::with_capacity(session.luns.len());
        for lun in std::mem::take(&mut session.luns) {
            if gone.contains(&lun.lun) {
                let core = &self.engine.exec.storage.volumes[lun.volume].core;
                core.face.reservations.with(|state| state.detach(lun.seat));
            } else {
                kept.push(lun);
            }
        }
        for lun in &mut kept {
            let before = &self.engine.exec.storage.volumes[lun.volume].core;
            let after = next.volume(lun.volume);
            if after.is_some_and(|after| after.caps.blocks != before.caps.blocks) {
                lun.nexus.establish(Attention::CapacityChanged);
            }
            if before.face.unit.absent && after.is_some_and(|after| !after.face.unit.absent) {
                lun.nexus.establish(Attention::MediumChanged);
            }
            // They are in mode pages.
            let modes =
                |volume: &ScsiVolume| (volume.face.unit.threshold, volume.face.unit.write_cache);
            if after.is_some_and(|after| modes(after) != modes(before)) {
                lun.nexus.establish(Attention::ModeParametersChanged);
            }
        }
        if !gone.is_empty() || !came.is_empty() {
            for lun in &mut kept {
                lun.nexus.establish(Attention::ReportedLunsChanged);
            }
        }
        let seen = target.seen(portal, Vec::new());
        if seen.several_ports != session.scsi.several_ports {
            for lun in &mut kept {
                lun.nexus.establish(Attention::InquiryChanged);
            }
        }
        kept.extend(came.into_iter().filter_map(|(lun, volume)| {
            Some(SessionLun::join(lun, volume, next.volume(volume)?, &session.id))
        }));
        kept.sort_unstable_by_key(|lun| lun.lun);
        session.scsi =
            lunet_scsi::Target { luns: kept.iter().map(|lun| lun.lun).collect(), ..seen };
        session.target = Some(target);
        session.luns = kept;
    }

    /// True if a discovery session may go on.
    fn finder_stays(
        &self,
        session: &Session,
        (portal, origin): (usize, Origin),
        next: &World,
    ) -> bool {
        let [now, then] = [&*self.engine.world, next].map(|world| world.way_of(None, portal));
        goes_on(now.fate(&then, visitor(session, origin), next.keep_sessions))
    }

    /// True if a session that came in by a portal goes on when its target becomes another one.
    fn stays(
        &self,
        session: &Session,
        (portal, origin): (usize, Origin),
        [now, then]: [&CoreTarget; 2],
        next: &World,
    ) -> bool {
        let now = self.engine.world.way_of(Some(now), portal);
        let then = next.way_of(Some(then), portal);
        goes_on(now.fate(&then, visitor(session, origin), next.keep_sessions))
    }

    /// Ends the sessions with these handles, as if their targets had been removed.
    pub(super) fn end_sessions(&mut self, handles: &[u16]) {
        let named = |(slot, conn): (ConnId, &Conn)| {
            let session = conn.session.as_ref().filter(|_| conn.phase == Phase::Open)?;
            handles.contains(&session.tsih).then_some((slot, session.nexus.target))
        };
        let named: Vec<_> = self.conns.iter().filter_map(named).collect();
        for (slot, target) in named {
            match target {
                Some(_) => self.dismiss(slot),
                None => self.drain_within(slot, GRACE),
            }
            self.touch(slot);
        }
        self.engine.settle(&mut self.conns);
    }

    /// The LUNs that a session loses and gets. Another volume under the same number is a loss and a gain.
    fn compare_view(
        &self,
        slot: ConnId,
        next: &World,
        target: &CoreTarget,
        peer: IpAddr,
    ) -> (Vec<u16>, Vec<(u16, VolumeId)>) {
        let Some(session) = &self.conns[slot].session else { return Default::default() };
        let view = target.view(&session.nexus.initiator, peer);
        let had = |lun: u16, volume: VolumeId| {
            session.luns.iter().any(|seen| (seen.lun, seen.volume) == (lun, volume))
        };
        let has = |seen: &&SessionLun| {
            view.contains(&(seen.lun, seen.volume)) && next.volume(seen.volume).is_some()
        };
        let gone = session.luns.iter().filter(|seen| !has(seen)).map(|seen| seen.lun).collect();
        let came = view.iter().filter(|(lun, volume)| !had(*lun, *volume)).copied().collect();
        (gone, came)
    }

    /// A session whose target was removed, or is not for it any more: its commands end, and it is asked to log out.
    fn dismiss(&mut self, slot: ConnId) {
        let conn = &mut self.conns[slot];
        let Some(session) = &mut conn.session else { return };
        session.target = None;
        session.scsi.luns.clear();
        let luns = std::mem::take(&mut session.luns);
        for lun in &luns {
            let core = &self.engine.exec.storage.volumes[lun.volume].core;
            core.face.reservations.with(|state| state.detach(lun.seat));
        }
        conn.proto.request_logout(self.engine.exec.storage.now, GRACE, &mut conn.out);
        self.engine.end_copies(slot);
        for lun in luns {
            self.end_unit(slot, lun.lun, GONE);
        }
    }
}

fn visitor(session: &Session, origin: Origin) -> Visitor<'_> {
    Visitor { initiator: &session.nexus.initiator, origin, proof: session.proof.as_ref() }
}

fn goes_on(fate: Fate) -> bool {
    match fate {
        Fate::Stays | Fate::Kept(_) => true,
        Fate::Ends(_) => false,
    }
}
