//! What a session sees of the world, and how it takes to the next one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_scsi::{Attention, Code, Sense};
use lunet_volume::VolumeId;

use super::admission::origin_of;
use super::management::{Ending, end_unit};
use super::{Conn, Pdus, Session, SessionLun, Shard};
use crate::entrance::{Fate, Visitor};
use crate::world::{CoreTarget, Exports, ScsiVolume, World};
use lunet_server::conn::{ConnId, Phase};
use lunet_server::network::Origin;

/// How long a session that has lost its target or its portal has to log out, and to take what is left for it.
const GRACE: Duration = Duration::from_secs(3);

/// The end of commands whose logical unit is not there any more.
const GONE: Ending = Ending::Sense(Sense::illegal(Code::LUN_NOT_SUPPORTED));

/// Shows a session the next world.
pub(super) fn see(shard: &mut Shard, slot: ConnId, next: &World) {
    let conn = &shard.conns[slot];
    let Some(session) = &conn.front.session else { return };
    let origin = origin_of(conn, session.through.as_ref());
    let (peer, portal) = (origin.address, conn.portal);
    if conn.phase != Phase::Open {
        return leave_gone(shard, slot, next);
    }
    let Some(number) = session.nexus.target else {
        if !finder_stays(shard, session, (portal, origin), next) {
            shard.drain_within(slot, GRACE);
        }
        return;
    };
    // One that was asked to log out does not get its LUNs back.
    let Some(now) = &session.target else { return };
    let stays =
        |target: &&Arc<CoreTarget>| stays(shard, session, (portal, origin), [now, target], next);
    let target = next.export(number).filter(stays).cloned();
    let Some(target) = target else { return dismiss(shard, slot) };
    let (gone, came) = compare_view(shard, slot, next, &target, peer);
    for lun in &gone {
        end_unit(shard, slot, *lun, GONE);
        shard.front.reset_copies(slot, *lun);
    }
    let Some(session) = shard.conns[slot].front.session.as_mut() else { return };
    let mut kept = Vec::with_capacity(session.luns.len());
    for lun in std::mem::take(&mut session.luns) {
        if gone.contains(&lun.lun) {
            lun.place.leave();
        } else {
            kept.push(lun);
        }
    }
    for lun in &mut kept {
        let before = &shard.front.exec.storage.volumes[lun.volume].core;
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
    let mut seen = seen_by(session, &target, portal);
    if session.gated.is_some() {
        shard.front.groups.show(&mut seen);
    }
    if seen.several_ports != session.scsi.several_ports {
        for lun in &mut kept {
            lun.nexus.establish(Attention::InquiryChanged);
        }
    }
    kept.extend(came.into_iter().filter_map(|(lun, volume)| {
        Some(SessionLun::join(lun, (volume, next.volume(volume)?), &session.id, false))
    }));
    kept.sort_unstable_by_key(|lun| lun.lun);
    session.scsi = lunet_scsi::Target { luns: kept.iter().map(|lun| lun.lun).collect(), ..seen };
    session.target = Some(target);
    session.luns = kept;
}

/// How a target looks to a session: through the port that it is one of.
fn seen_by(session: &Session, target: &CoreTarget, portal: usize) -> lunet_scsi::Target {
    let mut seen = target.seen(portal, Vec::new());
    if session.through.is_some() {
        seen.portal_group_tag = session.nexus.portal_group;
    }
    seen
}

/// A session that is about to end, and has no commands, leaves what is not served any more.
fn leave_gone(shard: &mut Shard, slot: ConnId, next: &World) {
    let Some(session) = &mut shard.conns[slot].front.session else { return };
    let stays = |lun: &SessionLun| next.volume(lun.volume).is_some_and(|at| lun.place.is_at(at));
    let (kept, gone) = std::mem::take(&mut session.luns).into_iter().partition(stays);
    session.luns = kept;
    let gone: Vec<SessionLun> = gone;
    session.scsi.luns.retain(|lun| gone.iter().all(|gone| gone.lun != *lun));
    gone.into_iter().for_each(|lun| lun.place.leave());
}

/// True if a discovery session may go on.
fn finder_stays(
    shard: &Shard,
    session: &Session,
    (portal, origin): (usize, Origin),
    next: &World,
) -> bool {
    let [now, then] = [&*shard.front.world, next].map(|world| world.way_of(None, portal));
    goes_on(now.fate(&then, visitor(session, origin), next.rules.keep_sessions))
}

/// True if a session that came in by a portal goes on when its target becomes another one.
fn stays(
    shard: &Shard,
    session: &Session,
    (portal, origin): (usize, Origin),
    [now, then]: [&CoreTarget; 2],
    next: &World,
) -> bool {
    let now = shard.front.world.way_of(Some(now), portal);
    let then = next.way_of(Some(then), portal);
    goes_on(now.fate(&then, visitor(session, origin), next.rules.keep_sessions))
}

/// Ends the sessions with these handles, as if their targets had been removed.
pub(super) fn end_sessions(shard: &mut Shard, handles: &[u16]) {
    let named = |(slot, conn): (ConnId, &Conn)| {
        let session = conn.front.session.as_ref().filter(|_| conn.phase == Phase::Open)?;
        handles.contains(&session.tsih).then_some((slot, session.nexus.target))
    };
    let named: Vec<_> = shard.conns.iter().filter_map(named).collect();
    for (slot, target) in named {
        match target {
            Some(_) => dismiss(shard, slot),
            None => shard.drain_within(slot, GRACE),
        }
        shard.touch(slot);
    }
    shard.front.take_answers(&mut shard.conns);
}

/// The LUNs that a session loses and gets. Another volume under the same number is a loss and a gain.
fn compare_view(
    shard: &Shard,
    slot: ConnId,
    next: &World,
    target: &CoreTarget,
    peer: IpAddr,
) -> (Vec<u16>, Vec<(u16, VolumeId)>) {
    let Some(session) = &shard.conns[slot].front.session else { return Default::default() };
    let view = target.view(&session.nexus.initiator, peer);
    let had = |lun: u16, volume: VolumeId| {
        session.luns.iter().any(|seen| (seen.lun, seen.volume) == (lun, volume))
    };
    let has = |seen: &&SessionLun| {
        let volume = next.volume(seen.volume);
        view.contains(&(seen.lun, seen.volume)) && volume.is_some_and(|at| seen.place.is_at(at))
    };
    let gone = session.luns.iter().filter(|seen| !has(seen)).map(|seen| seen.lun).collect();
    let came = view.iter().filter(|(lun, volume)| !had(*lun, *volume)).copied().collect();
    (gone, came)
}

/// A session whose target was removed, or is not for it any more: its commands end, and it is asked to log out.
fn dismiss(shard: &mut Shard, slot: ConnId) {
    let conn = &mut shard.conns[slot];
    let Some(session) = &mut conn.front.session else { return };
    session.target = None;
    session.scsi.luns.clear();
    let leave = |lun: SessionLun| {
        lun.place.leave();
        lun.lun
    };
    let luns: Vec<u16> = std::mem::take(&mut session.luns).into_iter().map(leave).collect();
    conn.front.proto.request_logout(shard.front.exec.storage.now, GRACE, &mut Pdus(&mut conn.out));
    shard.front.end_copies(slot);
    for lun in luns {
        end_unit(shard, slot, lun, GONE);
    }
}

fn visitor(session: &Session, origin: Origin) -> Visitor<'_> {
    let vouched = session.through.is_some();
    let (initiator, proof) = (&*session.nexus.initiator, session.proof.as_ref());
    Visitor { initiator, origin, proof, vouched }
}

fn goes_on(fate: Fate) -> bool {
    match fate {
        Fate::Stays | Fate::Kept(_) => true,
        Fate::Ends(_) => false,
    }
}
