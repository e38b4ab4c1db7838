//! Aborts that PREEMPT AND ABORT asks for, on every shard.

use lunet_iscsi::target::Tag;
use lunet_scsi::Lun;
use lunet_volume::{OperationId, VolumeId};

use super::Shard;
use super::management::Ending;
use crate::conn::ConnId;
use crate::mail::Preempted;

impl Shard {
    /// Ends the commands of preempted nexuses at one volume (SPC-5 5.14.11.5). They are those
    /// that have arrived by now; of the nexus that asks, if it preempts itself, those that it sent before.
    pub(super) fn abort_preempted(&mut self, preempted: &Preempted) {
        let Preempted { volume, order, asking, .. } = preempted;
        let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let conn = &self.conns[slot];
            let Some(session) = &conn.session else { continue };
            if order.contains(&session.id) {
                let own = (conn.serial == asking.connection).then_some(asking.command);
                self.end_at(slot, *volume, own);
            }
        }
    }

    /// Ends the commands of a connection at one volume, but for those that have taken effect and only wait
    /// for their answer. If the connection has asked for it itself by the command `own`, only older ones,
    /// and without an answer.
    fn end_at(&mut self, slot: ConnId, volume: VolumeId, own: Option<Tag>) {
        let conn = &self.conns[slot];
        let Some(session) = &conn.session else { return };
        let luns = session.luns.iter().filter(|seen| seen.volume == volume).map(|seen| seen.lun);
        let luns: Vec<u16> = luns.collect();
        if luns.is_empty() {
            return;
        }
        let tells = self.engine.exec.storage.volumes[volume].core.face.unit.state.tells_aborts();
        let settles = |tag: &Tag| conn.task(*tag).is_some_and(|task| self.engine.is_settling(task));
        let (tags, ending): (Vec<Tag>, Ending) = match own {
            Some(command) => {
                let at =
                    |lun: u64| Lun::decode(lun.to_be_bytes()).is_some_and(|l| luns.contains(&l.0));
                let older = conn.proto.older_than(command, at).into_iter();
                (older.filter(|tag| !settles(tag)).collect(), Ending::Silent)
            }
            None => {
                let tasks = conn.tasks.iter().flatten();
                let at = |task: &OperationId| {
                    luns.iter().find_map(|lun| self.engine.tag_at(*task, *lun))
                };
                (
                    tasks.filter_map(at).filter(|tag| !settles(tag)).collect(),
                    Ending::by_another(tells),
                )
            }
        };
        for tag in tags {
            self.end_command(slot, tag, ending);
        }
        self.touch(slot);
        for lun in luns {
            self.engine.abandon_background(slot, Some(lun));
        }
    }
}
