//! What of a server belongs to a group: its target, and the subsystem that this is over NVMe. Each order goes to both.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError};

use anyhow::{Context, Result};
use lunet_front_iscsi::{FAMILIES, Keep, LogicalUnit};
use lunet_front_nvme::{Members, busy_answer};
use lunet_gateway::{Access, Answer, Attention, Gate, GatewayId, Port, Record, Registered};
use lunet_group::Handle;
use lunet_os::sync::Mutex;
use lunet_relay::{Execution, GroupRequest};
use lunet_server::part::Part;

use super::relay;
use crate::second;

/// Gives an order to all shards, and waits until each has done its part. A shard that ends has none left.
fn wait(order: impl FnOnce(Box<dyn FnOnce() + Send + Sync>)) {
    let (sender, done) = sync_channel::<()>(1);
    order(Box::new(move || {
        // Somebody waits.
        let _ = sender.send(());
    }));
    // Without a sender the order was given up.
    let _ = done.recv();
}

/// Who executes the change of reservations that is under way.
#[derive(Clone, Copy)]
enum Changing {
    Iscsi([u8; 16]),
    Nvme([u8; 16]),
}

/// The threads that pass a group's commands on.
pub(super) struct Relays {
    pub(super) iscsi: relay::Handle<relay::Initiator>,
    /// Where there is a subsystem.
    pub(super) nvme: Option<relay::Handle<relay::Host>>,
}

/// A group's shards.
pub(super) struct Fronts {
    iscsi: lunet_front_iscsi::GroupHandle,
    nvme: Option<lunet_front_nvme::GroupHandle<LogicalUnit>>,
    changing: Option<Changing>,
}

impl Fronts {
    /// A target, and the subsystem that it is over NVMe, are a group with this gate from now on.
    ///
    /// # Errors
    /// They cannot be one.
    pub(super) fn begin(
        (iscsi, target): (&lunet_front_iscsi::Handle, &str),
        nvme: Option<(&second::Handle, &str)>,
        gateway: GatewayId,
        gate: Gate,
    ) -> Result<Self> {
        let mut begun = None;
        wait(|done| {
            begun = Some(lunet_front_iscsi::GroupHandle::begin(iscsi, &[target], gate, done));
        });
        let iscsi = begun.context("the group was not begun")??;
        let nvme = nvme.map(|(handle, nqn)| -> Result<_> {
            let subsystems = vec![nqn.to_owned()];
            let members = Members { subsystems, gateway, families: &FAMILIES };
            let mut begun = None;
            wait(|done| {
                begun = Some(lunet_front_nvme::GroupHandle::begin(handle, members, gate, done));
            });
            Ok(begun.context("the group was not begun")??)
        });
        Ok(Self { iscsi, nvme: nvme.transpose()?, changing: None })
    }

    /// Requests on reservations go to the group's thread from now on. Those of NVMe have odd numbers there, as both count
    /// from one.
    pub(super) fn take_requests(&self, thread: &Handle) {
        let takes = |protocol: u64| {
            let thread = thread.clone();
            move |request| match request {
                GroupRequest::Reserve(id, body) => thread.reserve(id << 1 | protocol, body),
                GroupRequest::Report(id) => thread.report(id << 1 | protocol),
            }
        };
        wait(|done| self.iscsi.take_requests(takes(0), done));
        if let Some(nvme) = &self.nvme {
            wait(|done| nvme.take_requests(takes(1), done));
        }
    }

    /// Commands are passed on that way from now on.
    pub(super) fn relay(&self, relays: &Relays, secret: [u8; 32]) {
        wait(|done| self.iscsi.relay(relays.iscsi.relays(secret), done));
        for (nvme, relays) in self.nvme.iter().zip(&relays.nvme) {
            wait(|done| nvme.relay(relays.relays(secret), done));
        }
    }

    pub(super) fn set_gate(&self, gate: Gate) {
        wait(|done| self.iscsi.set_gate(gate.of_iscsi(), done));
        let gate = gate.of_nvme();
        self.nvme.iter().for_each(|nvme| wait(|done| nvme.set_gate(gate, done)));
    }

    pub(super) fn stop_answering(&self, gate: Gate) {
        wait(|done| {
            let part = Part::new(done);
            let (one, other) = (part.clone(), part);
            self.iscsi.stop_answering(gate, move || drop(one));
            self.nvme.iter().for_each(|nvme| {
                let other = other.clone();
                nvme.stop_answering(gate, move || drop(other));
            });
        });
    }

    pub(super) fn abort_connections(&self) {
        wait(|done| self.iscsi.abort_connections(done));
        self.nvme.iter().for_each(|nvme| wait(|done| nvme.abort_connections(done)));
    }

    pub(super) fn access(&self, ports: &[Port], access: &Access) {
        wait(|done| self.iscsi.access(ports, access, done));
        self.nvme.iter().for_each(|nvme| wait(|done| nvme.access(ports, access, done)));
    }

    /// Nexuses are told. Hosts of NVMe hear of other states by their ANA log, and of the rest nothing.
    pub(super) fn attention(&self, attention: Attention) {
        self.iscsi.attention(attention);
    }

    /// Nexuses are told that they have lost their registration. Hosts of NVMe hear of that at the owner alone.
    pub(super) fn preempted(&self, lost: &[([u8; 16], Registered)]) {
        self.iscsi.preempted(lost);
    }

    /// What the record says of reservations is the volumes', whichever protocol asks.
    ///
    /// # Errors
    /// The record contradicts itself.
    pub(super) fn load(&self, record: &Record) -> Result<(), lunet_front_iscsi::GroupError> {
        self.iscsi.load(record)
    }

    /// Nexuses are told which mode pages the record has.
    pub(super) fn modes(&self, record: &Record) {
        self.iscsi.modes(record);
    }

    /// A rollback of a volume has ended, or it has failed, and SCSI initiators are told so. Those of NVMe are told by its storage.
    pub(super) fn rolled_back(&self, naa: [u8; 16], whole: bool) {
        self.iscsi.rolled_back(naa, whole);
    }

    /// Something that a command of iSCSI waited for is in the record.
    pub(super) fn kept(&self, keep: &Keep) {
        self.iscsi.kept(keep);
    }

    pub(super) fn drain(&self, done: impl FnOnce() + Send + Sync + 'static) {
        match self.nvme.clone() {
            Some(nvme) => self.iscsi.drain(move || nvme.drain(done)),
            None => self.iscsi.drain(done),
        }
    }

    /// Executes a request on a copy. When `done` is called, shards of both protocols hold commands back that it decides about.
    pub(super) fn execute(
        &mut self,
        body: &[u8],
        done: impl FnOnce(Execution) + Send + Sync + 'static,
    ) {
        let of_nvme = lunet_front_nvme::volume_of(body);
        let Some(nvme) = &self.nvme else {
            return match of_nvme {
                Some(_) => done(Execution { reserved: None, answer: busy_answer() }),
                None => self.iscsi.execute(body, done),
            };
        };
        let executed: Arc<Mutex<Option<Execution>>> = Arc::default();
        let result = executed.clone();
        let part = Part::new(move || {
            let executed = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Without one, its shards have ended.
            if let Some(executed) = executed {
                done(executed);
            }
        });
        let held = part.clone();
        let keep = move |done: Execution| {
            *executed.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            drop(part);
        };
        if let Some(naa) = of_nvme {
            self.changing = Some(Changing::Nvme(naa));
            self.iscsi.hold(naa, move || drop(held));
            return nvme.execute(body, keep);
        }
        if let Some(naa) = lunet_front_iscsi::volume_of(body) {
            self.changing = Some(Changing::Iscsi(naa));
            nvme.hold(naa, move || drop(held));
        }
        self.iscsi.execute(body, keep);
    }

    /// What was executed takes effect.
    pub(super) fn apply(&mut self, done: impl FnOnce() + Send + Sync + 'static) {
        match (self.changing.take(), self.nvme.clone()) {
            (Some(Changing::Nvme(naa)), Some(nvme)) => {
                let iscsi = self.iscsi.clone();
                nvme.apply(move || iscsi.let_go(naa, done));
            }
            (Some(Changing::Iscsi(naa)), Some(nvme)) => {
                self.iscsi.apply(move || nvme.let_go(naa, done));
            }
            _ => self.iscsi.apply(done),
        }
    }

    /// It is given up.
    pub(super) fn abandon(&mut self) {
        match (self.changing.take(), &self.nvme) {
            (Some(Changing::Nvme(naa)), Some(nvme)) => {
                nvme.abandon(|| {});
                self.iscsi.let_go(naa, || {});
            }
            (Some(Changing::Iscsi(naa)), Some(nvme)) => {
                self.iscsi.abandon(|| {});
                nvme.let_go(naa, || {});
            }
            _ => self.iscsi.abandon(|| {}),
        }
    }

    /// Answers a request by its number.
    pub(super) fn answer(&self, id: u64, answer: Answer) {
        match &self.nvme {
            Some(nvme) if id & 1 == 1 => nvme.answer(id >> 1, answer),
            _ => self.iscsi.answer(id >> 1, answer),
        }
    }
}
