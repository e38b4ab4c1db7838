//! How a host reaches its target.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lunet_iscsi::initiator::{
    Command, Connection, Cx, Event, Finished, Options, SubmitError, Tag, Transmit,
};
use lunet_iscsi::pdu::{LogoutReason, TmfFunction};
use lunet_os::{simulated, thread};
use lunet_ring::simulated::{Net, Peer, Received};

use crate::iser::Iser;
use crate::rdma::Rdma;
use crate::site::{Site, TARGET, now};

/// The initiator of a host.
pub type Initiator = Connection<Vec<u8>, Arc<[u8]>>;

/// What happens to it.
pub type HostEvent = Event<Vec<u8>, Arc<[u8]>>;

/// What was not sent yet: the bytes of a stream, or Sends.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Bytes of a stream, or of a Send that is not whole.
    pub bytes: Vec<u8>,
    /// Sends.
    pub sends: Vec<Vec<u8>>,
}

impl Transmit<Arc<[u8]>> for Outgoing {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &Arc<[u8]>, range: std::ops::Range<usize>) {
        self.bytes.extend_from_slice(&data[range]);
    }

    fn end_send(&mut self) {
        self.sends.push(std::mem::take(&mut self.bytes));
    }
}

enum Way {
    Stream(Peer),
    Iser(Iser),
}

/// A connection of a host.
pub struct Wire {
    way: Way,
    out: Outgoing,
}

/// What an initiator asks for that moves so little at a time that bursts come in several pieces.
pub fn options(name: &str, isid: [u8; 6]) -> Options {
    let mut options = Options::new(name, Some(TARGET));
    options.isid = isid;
    options.max_burst_length = 8192;
    options.first_burst_length = 4096;
    options.initial_r2t = simulated::below(2) == 0;
    options
}

impl Wire {
    /// Connects somebody to where the server serves, and tells of it. `None` after a moment if nobody listens.
    pub fn dial(
        site: &Site,
        (name, from): (&str, SocketAddr),
        rdma: Option<&Rdma>,
        options: &mut Options,
    ) -> Option<Self> {
        let address = site.known().address;
        let wire = address.and_then(|address| Self::connect((address, from), rdma, options));
        match &wire {
            Some(wire) => site.tell(name, &format!("connects over {}", wire.name())),
            None => thread::sleep(Duration::from_millis(20)),
        }
        wire
    }

    /// Connects, over TCP or if there is RDMA over iSER, which the options say then: `None` if nobody listens.
    pub fn connect(
        (to, from): (SocketAddr, SocketAddr),
        rdma: Option<&Rdma>,
        options: &mut Options,
    ) -> Option<Self> {
        let iser = rdma.filter(|rdma| simulated::below(100) < rdma.preferred);
        let way = match iser.and_then(|rdma| Iser::connect((to, from), rdma, options)) {
            Some(iser) => Way::Iser(iser),
            None => Way::Stream(simulated::part::<Net>().connect(to, from)?),
        };
        Some(Self { way, out: Outgoing::default() })
    }

    /// How it is called in a story.
    pub fn name(&self) -> &'static str {
        match self.way {
            Way::Stream(_) => "TCP",
            Way::Iser(_) => "iSER",
        }
    }

    /// The login begins.
    pub fn start(&mut self, initiator: &mut Initiator) {
        initiator.start(now(), &mut self.out);
    }

    /// Passes what has arrived to the initiator. True if the connection has ended.
    pub fn receive(&mut self, initiator: &mut Initiator, events: &mut Vec<HostEvent>) -> bool {
        let peer = match &mut self.way {
            Way::Stream(peer) => peer,
            Way::Iser(iser) => return iser.receive(initiator, &mut self.out, events),
        };
        loop {
            match peer.receive(64 << 10) {
                Received::Nothing => return false,
                Received::Bytes(bytes) => {
                    let mut cx = Cx { now: now(), tx: &mut self.out, events };
                    initiator.rx_bytes(&bytes, &mut cx);
                }
                Received::Ended | Received::Reset => {
                    initiator.transport_closed(events);
                    return true;
                }
            }
        }
    }

    /// Lets the time of the initiator pass.
    pub fn tick(&mut self, initiator: &mut Initiator, events: &mut Vec<HostEvent>) {
        let mut cx = Cx { now: now(), tx: &mut self.out, events };
        initiator.handle_timeout(&mut cx);
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The initiator's: it cannot be sent now.
    pub fn submit(
        &mut self,
        initiator: &mut Initiator,
        command: Command<'_, Vec<u8>, Arc<[u8]>>,
    ) -> Result<Tag, SubmitError> {
        match &mut self.way {
            Way::Stream(_) => {
                initiator.submit(command, &mut self.out).map_err(|refused| refused.error)
            }
            Way::Iser(iser) => iser.submit(initiator, command, &mut self.out),
        }
    }

    /// A command has ended: the data of a read is in its buffer from now on, and the target may reach nothing of it.
    pub fn finished(&mut self, finished: &mut Finished<Vec<u8>, Arc<[u8]>>) {
        if let Way::Iser(iser) = &mut self.way {
            iser.finished(finished);
        }
    }

    /// Sends a task management function.
    ///
    /// # Errors
    /// The initiator's: it cannot be sent now.
    pub fn manage(
        &mut self,
        initiator: &mut Initiator,
        (function, lun, of): (TmfFunction, u64, Option<Tag>),
    ) -> Result<Tag, SubmitError> {
        initiator.manage(function, lun, of, &mut self.out)
    }

    /// Asks for the end of the session.
    ///
    /// # Errors
    /// The initiator's: it cannot be sent now.
    pub fn logout(&mut self, initiator: &mut Initiator) -> Result<Tag, SubmitError> {
        initiator.logout(LogoutReason::CloseSession, now(), &mut self.out)
    }

    /// Sends what there is room for.
    pub fn flush(&mut self) {
        match &mut self.way {
            Way::Stream(peer) => {
                let n = peer.send(&self.out.bytes).unwrap_or(self.out.bytes.len());
                self.out.bytes.drain(..n);
            }
            Way::Iser(iser) => iser.flush(&mut self.out),
        }
    }

    /// Waits until something has changed, or the time is over.
    pub fn wait(&self, limit: Duration) {
        match &self.way {
            Way::Stream(peer) => peer.wait(limit),
            Way::Iser(iser) => iser.wait(limit),
        }
    }

    /// Breaks the connection.
    pub fn reset(&self) {
        match &self.way {
            Way::Stream(peer) => peer.reset(),
            Way::Iser(iser) => iser.reset(),
        }
    }
}
