//! Hosts are told what they lose of reservations, and which paths are others now, whoever has done it and over which
//! protocol.

use std::sync::Arc;

use lunet_nvme::log::ReservationNotice;
use lunet_reservations::{Event, Loss, Registrant};
use lunet_volume::reserve::{Done, Listener};
use lunet_volume::{Face, VolumeId};

use crate::message::{Message, Preempted};
use crate::session::WeakCore;

/// What makes the listeners of volumes.
pub fn ears<Fc: Face>(core: WeakCore<Fc>) -> impl Fn(VolumeId) -> Arc<dyn Listener> {
    move |volume| Arc::new(Ear { core: core.clone(), volume })
}

/// What listens to the reservations of one volume.
struct Ear<Fc: Face> {
    core: WeakCore<Fc>,
    volume: VolumeId,
}

impl<Fc: Face> Listener for Ear<Fc> {
    fn tell(&self, events: &[Event]) {
        let Some(core) = self.core.upgrade() else { return };
        for event in events {
            let notice = match event.loses {
                Loss::Reservation => ReservationNotice::ReservationReleased,
                Loss::Registration => ReservationNotice::RegistrationPreempted,
                Loss::Everything => ReservationNotice::ReservationPreempted,
                Loss::Commands => continue,
            };
            let members = core.front.registry.of_host(&event.registrant);
            for member in members.into_iter().filter(|member| member.may_tell_loss()) {
                let (admin, volume) = (member.admin, self.volume);
                let connection = admin.connection;
                let message = Message::Lost { connection, volume, notice };
                core.mailboxes()[admin.shard].tell(message);
            }
        }
    }

    fn abort(&self, whose: &Arc<[Registrant]>, done: &Done) {
        let Some(core) = self.core.upgrade() else { return };
        if whose.iter().all(|registrant| registrant.host_id().is_none()) {
            return;
        }
        for mailbox in core.mailboxes() {
            let (hosts, receipt) = (whose.clone(), done.clone());
            let preempted = Preempted { volume: self.volume, hosts, spared: None, receipt };
            mailbox.tell(Message::Preempted(preempted));
        }
    }

    fn paths_changed(&self) {
        let Some(core) = self.core.upgrade() else { return };
        if !core.front.paths_changed() {
            return;
        }
        core.mailboxes().iter().for_each(|mailbox| mailbox.tell(Message::PathsChanged));
    }

    fn has_ended(&self) -> bool {
        self.core.strong_count() == 0
    }
}
