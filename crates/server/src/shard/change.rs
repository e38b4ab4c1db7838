//! The world changes: shards work by the next one, and connections are shown it.

use std::sync::Arc;

use super::Shard;
use crate::change::{Proposal, Verdict};
use crate::conn::ConnId;
use crate::front::Front;
use crate::served::World;

impl<F: Front> Shard<F> {
    /// Gets ready for a change.
    pub(super) fn propose(&mut self, proposal: Arc<Proposal<F>>) {
        // There is one change at a time, so the last one has been decided.
        self.decide();
        if proposal.verdict().is_none() {
            proposal.answer_prepared(self.front.prepare(&proposal.world));
            self.proposal = Some(proposal);
        }
    }

    /// Does what was decided about a change. Looked at in each loop iteration before anything else, so that a shard
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
            Verdict::Cancel => self.front.exec.cancel_prepared(),
        }
    }

    fn adopt_world(&mut self, next: Arc<World<F>>) {
        let slots: Vec<ConnId> = self.conns.iter().map(|(slot, _)| slot).collect();
        let mut slots = slots.into_iter();
        while let Some(slot) = self.conns.next_of(&mut slots) {
            F::see(self, slot, &next);
            self.touch(slot);
        }
        let removed: Vec<usize> = self.removed_portals(&next).collect();
        self.front.adopt(next);
        for portal in removed {
            self.end_listener(portal);
        }
        self.end_listeners();
        self.front.take_answers(&mut self.conns);
    }

    /// The slots of portals that the next world does not have any more.
    fn removed_portals<'w>(&'w self, next: &'w World<F>) -> impl Iterator<Item = usize> + 'w {
        let there = self.front.world.portals.iter().map(|(slot, _)| slot);
        there.filter(|slot| next.portals.get(*slot).is_none())
    }
}
