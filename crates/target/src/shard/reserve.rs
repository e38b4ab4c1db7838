//! Aborts that PREEMPT AND ABORT asks for, on every shard.

use lunet_iscsi::target::Tag;

use super::Shard;
use crate::mail::{AbortOrder, Owed};

impl Shard {
    /// Forgets the commands of preempted nexuses at one volume (SPC-5 5.14.11.5), and says so.
    pub(super) fn abort_preempted(
        &mut self,
        volume: usize,
        order: &AbortOrder,
        asking: usize,
        ticket: u64,
    ) {
        let slots: Vec<u32> = self.conns.iter().map(|(slot, _)| slot as u32).collect();
        for slot in slots {
            let Some(session) = &self.conns[slot as usize].session else { continue };
            if order.contains(&session.id) {
                self.abort_at(slot, volume);
            }
        }
        self.core.mailboxes()[asking].deliver(Owed::Settled { ticket, done: true });
    }

    /// Forgets every command of a connection at one volume, but for those that have taken effect
    /// and only wait for their answer: the one that asks is among them.
    fn abort_at(&mut self, slot: u32, volume: usize) {
        let conn = &self.conns[slot as usize];
        let Some(session) = &conn.session else { return };
        let luns = session.luns.iter().filter(|seen| seen.volume == volume).map(|seen| seen.lun);
        let luns: Vec<u16> = luns.collect();
        let tasks = conn.tasks.iter().flatten().filter(|task| !self.engine.is_settling(**task));
        let tags: Vec<Tag> = tasks
            .flat_map(|task| luns.iter().filter_map(|lun| self.engine.tag_at(*task, *lun)))
            .collect();
        for tag in tags {
            self.abort(slot, tag);
        }
        for lun in luns {
            self.engine.abandon_background(slot, Some(lun));
        }
    }
}
