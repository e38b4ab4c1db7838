//! A host's connection over RDMA: its queue pair, and the memory that it opens to the target.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{
    Command, Cx, Data, Finished, Options, Outcome, RdmaOffer, SubmitError, Tag,
};
use lunet_iscsi::iser::{ConnectData, Remote};
use lunet_os::simulated;
use lunet_verbs::simulated::{Fabric, Link, Phase};

use crate::rdma::Rdma;
use crate::site::now;
use crate::wire::{HostEvent, Initiator, Outgoing};

/// No connect request is unanswered for longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The connection.
pub struct Iser {
    link: Link,
    /// The keys of commands that are not answered.
    open: BTreeMap<u64, u32>,
    /// Receives that are not posted again.
    owed: usize,
    /// In a thousand commands: its key is wrong.
    bogus: u64,
}

impl Iser {
    /// Connects: `None` if nobody listens, or the target refuses.
    pub fn connect(
        (to, from): (SocketAddr, SocketAddr),
        rdma: &Rdma,
        options: &mut Options,
    ) -> Option<Self> {
        let offer = Options { rdma: Some(RdmaOffer::default()), ..options.clone() };
        let receives = match rdma.few_receives {
            true => 2 + simulated::below(16) as usize,
            false => offer.receives(),
        };
        let data = ConnectData { zero_based: false, invalidate: simulated::below(3) != 0 };
        let receives = (receives, offer.receive_len());
        // The target is open to its own machine alone.
        let from = SocketAddr::from(([127, 0, 0, 1], from.port()));
        let addresses = (to, from);
        let link = simulated::part::<Fabric>().connect(addresses, &data.to_bytes(), receives)?;
        let begun = now();
        while link.phase() == Phase::Connecting && now() < begun + PATIENCE {
            link.wait(PATIENCE);
        }
        if link.phase() != Phase::Established {
            return None;
        }
        options.rdma = offer.rdma;
        Some(Self { link, open: BTreeMap::new(), owed: 0, bogus: rdma.bogus })
    }

    /// Passes what has arrived to the initiator. True if the connection has ended.
    pub fn receive(
        &mut self,
        initiator: &mut Initiator,
        out: &mut Outgoing,
        events: &mut Vec<HostEvent>,
    ) -> bool {
        while let Some(message) = self.link.receive() {
            let mut cx = Cx { now: now(), tx: &mut *out, events: &mut *events };
            initiator.rx_send(&message.bytes, message.invalidated, &mut cx);
            self.owed += 1;
        }
        let over = self.link.phase() == Phase::Over;
        if over {
            initiator.transport_closed(events);
        }
        over
    }

    /// Sends a command, and opens the memory of its data.
    ///
    /// # Errors
    /// The initiator's: it cannot be sent now.
    pub fn submit(
        &mut self,
        initiator: &mut Initiator,
        command: Command<'_, Vec<u8>, Arc<[u8]>>,
        out: &mut Outgoing,
    ) -> Result<Tag, SubmitError> {
        let token = command.token;
        let opened = match &command.data {
            Data::Read(buf) => Some((buf.clone(), true)),
            Data::Write(data) => Some((data.to_vec(), false)),
            Data::None | Data::Discard(_) => None,
        };
        let memory = opened.map(|(bytes, writable)| {
            if simulated::below(1000) < self.bogus {
                return self.link.bogus();
            }
            let opened = self.link.open(bytes, writable);
            self.open.insert(token, opened.key);
            opened
        });
        let remote = memory.map(|memory| Remote { stag: memory.key, offset: memory.address });
        let submitted = initiator.submit_rdma(command, remote, out);
        if submitted.is_err() {
            if let Some(key) = self.open.remove(&token) {
                self.link.shut(key);
            }
        }
        submitted.map_err(|refused| refused.error)
    }

    /// A command has ended: takes its memory back.
    pub fn finished(&mut self, finished: &mut Finished<Vec<u8>, Arc<[u8]>>) {
        let Some(key) = self.open.remove(&finished.token) else { return };
        let bytes = self.link.shut(key);
        if let (Outcome::Completed(_), Data::Read(buf)) = (&finished.outcome, &mut finished.data) {
            *buf = bytes;
        }
    }

    /// Sends what there is, and posts receives again, now or later.
    pub fn flush(&mut self, out: &mut Outgoing) {
        if simulated::below(8) != 0 {
            self.link.post(std::mem::take(&mut self.owed));
        }
        out.sends.drain(..).for_each(|send| self.link.send(send));
    }

    /// Waits until something has changed, or the time is over.
    pub fn wait(&self, limit: Duration) {
        self.link.wait(limit);
    }

    /// Breaks the connection, with or without a word.
    pub fn reset(&self) {
        self.link.reset(simulated::below(2) == 0);
    }
}
