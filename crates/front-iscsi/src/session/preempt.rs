//! Aborts that PREEMPT AND ABORT asks for, on every shard.

use lunet_iscsi::target::Tag;
use lunet_scsi::Lun;
use lunet_volume::{OperationId, VolumeId};

use super::Shard;
use super::management::{Ending, end_command};
use crate::message::Preempted;
use lunet_server::conn::ConnId;

/// Ends the commands of preempted nexuses at one volume (SPC-5 5.14.11.5). They are those
/// that have arrived by now; of the nexus that asks, if it preempts itself, those that it sent before.
pub(super) fn abort_preempted(shard: &mut Shard, preempted: &Preempted) {
    let Preempted { volume, order, spared, .. } = preempted;
    let slots: Vec<ConnId> = shard.conns.iter().map(|(slot, _)| slot).collect();
    let mut slots = slots.into_iter();
    while let Some(slot) = shard.conns.next_of(&mut slots) {
        let conn = &shard.conns[slot];
        let Some(session) = &conn.front.session else { continue };
        if order.contains(session.id.registrant()) {
            // What a standby has of it, or a network, is ended too.
            session.gated.iter().for_each(|gated| gated.on_way.way.renew());
            let own = spared.filter(|asking| conn.serial == asking.connection);
            let own = own.map(|asking| asking.command);
            end_at(shard, slot, *volume, own);
        }
    }
}

/// Ends the commands of a connection at one volume, but for those that have taken effect and only wait
/// for their answer. If the connection has asked for it itself by the command `own`, only older ones,
/// and without an answer.
fn end_at(shard: &mut Shard, slot: ConnId, volume: VolumeId, own: Option<Tag>) {
    let conn = &shard.conns[slot];
    let Some(session) = &conn.front.session else { return };
    let luns = session.luns.iter().filter(|seen| seen.volume == volume).map(|seen| seen.lun);
    let luns: Vec<u16> = luns.collect();
    if luns.is_empty() {
        return;
    }
    let tells = shard.front.exec.storage.volumes[volume].core.face.unit.state.tells_aborts();
    let stays =
        |tag: &Tag| conn.front.task(*tag).is_some_and(|task| shard.front.has_taken_effect(task));
    let (tags, ending): (Vec<Tag>, Ending) = match own {
        Some(command) => {
            let at = |lun: u64| Lun::decode(lun.to_be_bytes()).is_some_and(|l| luns.contains(&l.0));
            let older = conn.front.proto.older_than(command, at).into_iter();
            (older.filter(|tag| !stays(tag)).collect(), Ending::Silent)
        }
        None => {
            let tasks = conn.front.tasks.iter().flatten();
            let at =
                |task: &OperationId| luns.iter().find_map(|lun| shard.front.tag_at(*task, *lun));
            (tasks.filter_map(at).filter(|tag| !stays(tag)).collect(), Ending::by_another(tells))
        }
    };
    for tag in tags {
        end_command(shard, slot, tag, ending);
    }
    shard.touch(slot);
    for lun in luns {
        shard.front.abandon_background(slot, Some(lun));
    }
}
