//! An owner that does not reach the cluster: nothing tells it that it is deposed, and initiators that still reach it would wait
//! for it as long as that lasts. So it reads the record now and then.

use core::time::Duration;

use crate::machine::{Gateway, Purpose, Role};
use crate::{Action, Epoch, Result};

/// Between two reads of the record.
const EVERY: Duration = Duration::from_secs(5);
/// So often a read is waited for, [`EVERY`] each time. Thirty seconds, as long as Ceph keeps a watch: an owner that was away for
/// longer hears of nothing any more. It is longer than Ceph takes by default to do without an OSD that has died. Waits are
/// counted, and not time: a gateway that stood still has waited once.
const WAITS: u32 = 6;

/// What is known of the way to the cluster, by an owner in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    epoch: Option<Epoch>,
    /// When to look next.
    next: Duration,
    /// How often the read under way was waited for.
    waits: Option<u32>,
}

impl Gateway {
    /// When [`Self::owner_tick`] has something to do.
    pub(crate) fn next_contact(&self) -> Duration {
        if self.contact.epoch == Some(self.gate.epoch()) { self.contact.next } else { self.now }
    }

    /// Time has passed for an owner.
    pub(crate) fn owner_tick(&mut self) {
        if !matches!(self.role, Role::Owner(_)) || self.now < self.next_contact() {
            return;
        }
        let (epoch, next) = (Some(self.gate.epoch()), self.now + EVERY);
        if self.contact.epoch != epoch {
            self.contact = Contact { epoch, next, waits: None };
            return self.forget(|purpose| matches!(purpose, Purpose::Contact));
        }
        self.contact.next = next;
        match &mut self.contact.waits {
            Some(waits) => {
                *waits += 1;
                if *waits >= WAITS {
                    self.contact = Contact::default();
                    self.fence();
                }
            }
            None => {
                self.contact.waits = Some(0);
                let op = self.operation(Purpose::Contact);
                self.act(Action::ReadRecord(op));
                self.ask_for_standbys();
            }
        }
    }

    /// The cluster has answered, whatever that was.
    pub(crate) fn in_contact(&mut self, result: Result) {
        self.contact.waits = None;
        if self.role.owns() {
            self.read(result);
        }
    }
}
