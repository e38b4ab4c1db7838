//! Connections over RDMA on a shard: its devices, and what it watches.

mod arrive;
#[cfg(test)]
mod tests;
mod work;

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lunet_iscsi::target::RdmaFault;
use lunet_ring::{Beside, Ring, Token, WatchId};
use lunet_verbs::{DeviceEvent, Error, EventChannel};

use super::{RDMA, Shard};
use crate::conn::{Conn, Wire};
use crate::mail::Mail;
use crate::rdma::{self, Change, Done, Fabric, Listening, Plug, Port};

/// What a watched descriptor is, in the low half of its token: the events of this shard's connections.
const EVENTS: u64 = 0;
/// Connect requests.
const REQUESTS: u64 = 1;
/// From here on: completions of a port.
const PORTS: u64 = 16;
/// From here on: what happens to a device.
const DEVICES: u64 = 1 << 16;

/// RDMA, as one shard has it.
pub struct Rdma {
    fabric: Option<Arc<Fabric>>,
    channel: Option<(EventChannel, WatchId)>,
    /// On the shard that hands connections out.
    listening: Option<(Listening, WatchId)>,
    /// The devices in the fabric's order; `None` once a device has failed.
    ports: Vec<Option<(Plug, WatchId)>>,
    /// Those whose descriptor has become readable, and is not watched.
    told: Vec<bool>,
    /// What watches the devices, on the same shard.
    devices: Vec<Option<WatchId>>,
    /// Ends of work that were found, and are to be told.
    done: Vec<Done>,
    /// Ports that were found to have failed, and why.
    ill: Vec<(usize, Error)>,
    /// Counts the batches of ends.
    turn: u64,
    /// Connections that wait for the end of something that was sent, or for data.
    waiting: usize,
    /// Tasks of the shard wait for memory, which the end of something may free.
    starved: bool,
    /// Connections whose queue has refused work in this turn.
    failed: Vec<u32>,
}

fn watch(ring: &mut Ring, fd: BorrowedFd<'_>, what: u64) -> Result<WatchId, Error> {
    let watched = fd.try_clone_to_owned().and_then(|fd| ring.watch(fd, Token(RDMA | what)));
    watched.map_err(|source| Error::System { what: "watching an RDMA descriptor", source })
}

impl Rdma {
    /// Opens ports for a shard.
    pub(super) fn new(ring: &mut Ring, ports: Vec<Plug>) -> Result<Self, Error> {
        let mut watched = Vec::new();
        for (index, mut plug) in ports.into_iter().enumerate() {
            plug.port.arm(false, false)?;
            let id = watch(ring, plug.port.as_fd(), PORTS + index as u64)?;
            watched.push(Some((plug, id)));
        }
        Ok(Self {
            fabric: None,
            channel: None,
            listening: None,
            told: vec![false; watched.len()],
            ports: watched,
            devices: Vec::new(),
            done: Vec::with_capacity(1024),
            ill: Vec::new(),
            turn: 0,
            waiting: 0,
            starved: false,
            failed: Vec::new(),
        })
    }

    /// Whether tasks of the shard wait for memory.
    pub(super) fn expect_memory(&mut self, starved: bool) {
        self.starved = starved;
    }

    fn plug(&mut self, index: usize) -> Option<&mut Plug> {
        self.ports.get_mut(index)?.as_mut().map(|(plug, _)| plug)
    }
}

impl Beside for Rdma {
    fn look(&mut self) -> bool {
        for (index, port) in self.ports.iter_mut().enumerate() {
            let Some((plug, _)) = port else { continue };
            if let Err(error) = plug.port.poll(&mut self.done) {
                self.ill.push((index, error));
            }
        }
        !self.done.is_empty() || !self.ill.is_empty()
    }

    fn rest(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool {
        if self.look() {
            return true;
        }
        let ends = self.waiting > 0 || self.starved;
        for (index, port) in self.ports.iter_mut().enumerate() {
            let Some((plug, id)) = port else { continue };
            let told = std::mem::take(&mut self.told[index]);
            if let Err(error) = plug.port.arm(told, ends) {
                self.ill.push((index, error));
            }
            if told {
                watch(*id);
            }
        }
        self.look()
    }
}

impl Shard {
    /// Opens the server's RDMA devices for this shard.
    ///
    /// # Errors
    /// One of them cannot be used, and why.
    pub fn open_rdma(&mut self, fabric: Arc<Fabric>) -> Result<(), Error> {
        let ring = &mut self.engine.ring;
        let receives = rdma::receives(&self.core.options);
        let shared = receives.shared(ring.arena(), fabric.devices.len());
        let open = |device| {
            let port = Port::open(device, ring.arena(), shared, self.number)?;
            Ok(Plug::new(port, receives))
        };
        let ports: Vec<Plug> = fabric.devices.iter().map(open).collect::<Result<_, Error>>()?;
        let channel = fabric.channel()?;
        let events = watch(ring, channel.as_fd(), EVENTS)?;
        let rdma = Rdma::new(ring, ports)?;
        let (fabric, channel) = (Some(fabric), Some((channel, events)));
        self.rdma = Some(Box::new(Rdma { fabric, channel, ..rdma }));
        Ok(())
    }

    /// What becomes of the server's devices while it runs.
    pub(in crate::shard) fn change_rdma(&mut self, change: Change) {
        match change {
            Change::Open(fabric, reply) => {
                self.close_rdma();
                let opened = match self.stopping {
                    None => self.open_rdma(fabric),
                    Some(_) => Err(Error::Ended),
                };
                // Who asked may have stopped waiting.
                let _ = reply.try_send(opened);
            }
            Change::Listen(fabric) => match fabric.listen(&self.core.portals, &self.core.iser) {
                Ok(Some(listening)) if self.stopping.is_none() => self.listen_rdma(listening),
                Ok(_) => {}
                Err(failure) => tracing::warn!("iSER: {failure}"),
            },
            Change::Close => self.close_rdma(),
            Change::Lost(device) => {
                let devices = self.rdma.iter().filter_map(|rdma| rdma.fabric.as_ref());
                let lost = devices.flat_map(|f| &f.devices).position(|own| own.is(&device));
                lost.into_iter().for_each(|index| self.lose_device(index, &"it goes away"));
            }
        }
    }

    /// Lets go of the RDMA devices: another shard cannot use them, or they are gone.
    pub fn close_rdma(&mut self) {
        for index in 0..self.rdma.as_ref().map_or(0, |rdma| rdma.ports.len()) {
            self.end_port(index);
        }
        let Some(rdma) = self.rdma.take() else { return };
        let channel = rdma.channel.iter().map(|(_, id)| *id);
        let listening = rdma.listening.iter().map(|(_, id)| *id);
        for id in channel.chain(listening).chain(rdma.devices.iter().flatten().copied()) {
            self.engine.ring.unwatch(id);
        }
    }

    /// Begins to hand connections out.
    pub fn listen_rdma(&mut self, listening: Listening) {
        let Some(rdma) = &mut self.rdma else { return };
        let ring = &mut self.engine.ring;
        match watch(ring, listening.channel.as_fd(), REQUESTS) {
            Ok(id) => rdma.listening = Some((listening, id)),
            Err(error) => return tracing::error!("iSER: not served: {error}"),
        }
        let devices = rdma.fabric.iter().flat_map(|fabric| &fabric.devices).enumerate();
        // Without it a device's end is told by its connections alone.
        rdma.devices = devices
            .map(|(index, device)| watch(ring, device.as_fd(), DEVICES + index as u64).ok())
            .collect();
    }

    /// Takes no more connections.
    pub(super) fn stop_rdma(&mut self) {
        if let Some((_, id)) = self.rdma.as_mut().and_then(|rdma| rdma.listening.take()) {
            self.engine.ring.unwatch(id);
        }
    }

    /// A watched descriptor is readable.
    pub(super) fn rdma_readable(&mut self, what: u64) {
        match what {
            EVENTS => self.rdma_events(),
            REQUESTS => self.rdma_requests(),
            device if device >= DEVICES => self.device_events((device - DEVICES) as usize),
            port => self.port_readable((port - PORTS) as usize),
        }
    }

    /// A device has failed or goes away: its connections end, those on TCP and on other devices go on. All
    /// shards let go of it, for which some drivers wait.
    pub(super) fn lose_device(&mut self, index: usize, why: &dyn Display) {
        if !self.end_port(index) {
            return;
        }
        let core = self.core.clone();
        let device = self.rdma.as_ref().and_then(|rdma| rdma.fabric.as_ref()?.devices.get(index));
        if let Some(device) = device.cloned() {
            if core.iser.lost(device.name()) {
                let name = device.name();
                tracing::error!(
                    "iSER: the RDMA device {name} is lost ({why}): restart lunet when it is back"
                );
            }
            let others = core.mailboxes().iter().enumerate().filter(|(n, _)| *n != self.number);
            for (_, mailbox) in others {
                // A shard that is not told finds out by its connections, or by the next device.
                let _ = mailbox.send(Mail::Rdma(Change::Lost(device.clone())));
            }
        }
        self.end_listeners();
        let Some(rdma) = &mut self.rdma else { return };
        if let Some(id) = rdma.devices.get_mut(index).and_then(Option::take) {
            self.engine.ring.unwatch(id);
        }
        if rdma.ports.iter().all(Option::is_none) {
            self.close_rdma();
        }
    }

    /// Ends the listeners of portals that are not served any more: their device waits for that.
    pub(super) fn end_listeners(&mut self) {
        let listening = self.rdma.as_mut().and_then(|rdma| rdma.listening.as_mut());
        if let Some((listening, _)) = listening {
            listening.retain(|portal| self.core.iser.is_served(portal));
        }
    }

    /// A device of this name goes away.
    pub(super) fn lose_named(&mut self, name: &str) {
        let fabric = self.rdma.as_ref().and_then(|rdma| rdma.fabric.as_ref());
        let devices = fabric.map(|fabric| &fabric.devices);
        let index = devices.and_then(|all| all.iter().position(|device| device.name() == name));
        if let Some(index) = index {
            self.lose_device(index, &"it goes away");
        }
    }

    /// Ends the connections of a port, and the port. False if there is none.
    fn end_port(&mut self, index: usize) -> bool {
        if self.rdma.as_mut().and_then(|rdma| rdma.plug(index)).is_none() {
            return false;
        }
        let on = |conn: &Conn| matches!(&conn.wire, Wire::Rdma(link) if link.port == index);
        let lost: Vec<u32> =
            self.conns.iter().filter(|(_, conn)| on(conn)).map(|(slot, _)| slot as u32).collect();
        for slot in lost {
            self.rdma_ended(slot, RdmaFault::Device, "the RDMA device goes away");
        }
        let port = self.rdma.as_mut().and_then(|rdma| rdma.ports[index].take());
        if let Some((_, id)) = &port {
            self.engine.ring.unwatch(*id);
        }
        port.is_some()
    }

    /// What has happened to a device.
    fn device_events(&mut self, index: usize) {
        let fabric = self.rdma.as_ref().and_then(|rdma| rdma.fabric.as_ref());
        let device = fabric.and_then(|fabric| fabric.devices.get(index)).cloned();
        let Some(device) = device else { return };
        while let Ok(Some(event)) = device.next_event() {
            let name = device.name();
            match event {
                DeviceEvent::Fatal => return self.lose_device(index, &"it has failed"),
                DeviceEvent::PortUp(port) => {
                    tracing::info!("iSER: port {port} of {name} has a link again");
                }
                DeviceEvent::PortDown(port) => {
                    tracing::warn!("iSER: port {port} of {name} has lost its link: see its cable");
                }
                DeviceEvent::AddressesChanged(port) => {
                    tracing::info!("iSER: the addresses of port {port} of {name} have changed");
                }
                // The connection itself tells more.
                DeviceEvent::ConnectionFailed | DeviceEvent::Other(_) => {}
            }
        }
        let watch = self.rdma.as_ref().and_then(|rdma| rdma.devices.get(index).copied().flatten());
        if let Some(id) = watch {
            self.engine.ring.watch_again(id);
        }
    }
}
