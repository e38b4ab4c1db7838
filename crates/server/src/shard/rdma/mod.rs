//! Connections over RDMA on a shard: its devices, and what it watches.

mod arrive;
mod work;

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};

use lunet_ring::{PollSource, Ring, Token, WatchId};
use lunet_verbs::{Device, DeviceEvent, Error, EventChannel};

use super::{RDMA, Shard};
use crate::conn::{Conn, ConnId, Wire};
use crate::front::Front;
use crate::mail::Owed;
use crate::rdma::{Change, Done, Fabric, Fault, Listening, Opened, Plug, Port, Receives};

/// What a watched descriptor is, in the low half of its token: the events of this shard's connections.
const EVENTS: u64 = 0;
/// Connect requests.
const REQUESTS: u64 = 1;
/// From here on: completions of a port.
const PORTS: u64 = 16;
/// From here on: what happens to a device.
const DEVICES: u64 = 1 << 16;

/// A device in use.
struct Place {
    plug: Plug,
    completions: WatchId,
    /// Its descriptor has become readable, and is not watched.
    told: bool,
    /// Of a real one, what is known of it.
    opened: Option<Opened>,
    /// What happens to it, on the shard that hands connections out.
    events: Option<WatchId>,
}

impl Place {
    fn is_of(&self, device: &Device) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.device.is(device))
    }
}

/// RDMA, as one shard has it.
pub struct Rdma {
    channel: Option<(EventChannel, WatchId)>,
    /// On the shard that hands connections out; more than one once a device has come later.
    listening: Vec<(Listening, WatchId)>,
    /// The devices in use. One that is lost leaves its place to another.
    ports: Vec<Option<Place>>,
    /// Ends of work that were found, and are to be told.
    done: Vec<Done>,
    /// Ports that were found to have failed, and why.
    ill: Vec<(usize, Error)>,
    /// Counts the batches of ends.
    turn: u64,
    /// Connections that wait for the end of something that was sent, or for data.
    waiting: usize,
    /// Operations of the shard wait for memory, which the end of something may free.
    starved: bool,
    /// Connections whose queue has refused work in this turn.
    failed: Vec<ConnId>,
}

fn watch(ring: &mut Ring, fd: BorrowedFd<'_>, what: u64) -> Result<WatchId, Error> {
    let watched = fd.try_clone_to_owned().and_then(|fd| ring.watch(fd, Token(RDMA | what)));
    watched.map_err(|source| Error::System { what: "watching an RDMA descriptor", source })
}

/// RDMA without a device.
impl Default for Rdma {
    fn default() -> Self {
        Self {
            channel: None,
            listening: Vec::new(),
            ports: Vec::new(),
            done: Vec::with_capacity(1024),
            ill: Vec::new(),
            turn: 0,
            waiting: 0,
            starved: false,
            failed: Vec::new(),
        }
    }
}

impl Rdma {
    /// Takes a device into use.
    pub fn add(
        &mut self,
        ring: &mut Ring,
        mut plug: Plug,
        opened: Option<Opened>,
    ) -> Result<(), Error> {
        let free = self.ports.iter().position(Option::is_none);
        let index = free.unwrap_or(self.ports.len());
        plug.port.arm(false, false)?;
        let completions = watch(ring, plug.port.as_fd(), PORTS + index as u64)?;
        let place = Place { plug, completions, told: false, opened, events: None };
        match free {
            Some(index) => self.ports[index] = Some(place),
            None => self.ports.push(Some(place)),
        }
        Ok(())
    }

    /// Whether operations of the shard wait for memory.
    pub(super) fn expect_memory(&mut self, starved: bool) {
        self.starved = starved;
    }

    fn plug(&mut self, index: usize) -> Option<&mut Plug> {
        self.place(index).map(|place| &mut place.plug)
    }

    fn place(&mut self, index: usize) -> Option<&mut Place> {
        self.ports.get_mut(index)?.as_mut()
    }

    /// The first place of which this is true.
    fn find(&self, is: impl Fn(&Place) -> bool) -> Option<usize> {
        self.ports.iter().position(|place| place.as_ref().is_some_and(&is))
    }
}

impl PollSource for Rdma {
    fn poll(&mut self) -> bool {
        for (index, port) in self.ports.iter_mut().enumerate() {
            let Some(place) = port else { continue };
            if let Err(error) = place.plug.port.poll(&mut self.done) {
                self.ill.push((index, error));
            }
        }
        !self.done.is_empty() || !self.ill.is_empty()
    }

    fn before_sleep(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool {
        if self.poll() {
            return true;
        }
        let ends = self.waiting > 0 || self.starved;
        for (index, port) in self.ports.iter_mut().enumerate() {
            let Some(place) = port else { continue };
            let told = std::mem::take(&mut place.told);
            if let Err(error) = place.plug.port.arm(told, ends) {
                self.ill.push((index, error));
            }
            if told {
                watch(place.completions);
            }
        }
        self.poll()
    }
}

impl<F: Front> Shard<F> {
    /// Opens RDMA devices for this shard, beside those that it has. What fails leaves none of them open.
    ///
    /// # Errors
    /// One of them cannot be used, and why.
    pub fn open_rdma(&mut self, fabric: &Fabric) -> Result<(), Error> {
        let ring = &mut self.front.exec.storage.ring;
        let mut rdma = self.rdma.take().unwrap_or_else(|| Box::new(Rdma::default()));
        let opened =
            Self::open_devices(&mut rdma, ring, F::receives(&self.core), fabric, self.number);
        self.rdma = Some(rdma);
        if opened.is_err() {
            self.close_devices(&fabric.devices);
        }
        opened
    }

    fn open_devices(
        rdma: &mut Rdma,
        ring: &mut Ring,
        receives: Receives,
        fabric: &Fabric,
        number: usize,
    ) -> Result<(), Error> {
        if rdma.channel.is_none() {
            let channel = fabric.channel()?;
            let events = watch(ring, channel.as_fd(), EVENTS)?;
            rdma.channel = Some((channel, events));
        }
        let all = rdma.ports.iter().flatten().count() + fabric.devices.len();
        let shared = receives.shared(ring.arena(), all);
        for device in &fabric.devices {
            let port = Port::open(device, ring.arena(), shared, number)?;
            rdma.add(ring, Plug::new(port, receives), Some(fabric.opened(device)))?;
        }
        Ok(())
    }

    /// What becomes of the server's devices while it runs.
    pub(in crate::shard) fn change_rdma(&mut self, change: Change) {
        match change {
            Change::Open(fabric, reply) => {
                let opened = match self.stopping {
                    None => self.open_rdma(&fabric),
                    Some(_) => Err(Error::Ended),
                };
                // Who asked may have stopped waiting.
                let _ = reply.try_send(opened);
            }
            Change::Listen(fabric) => {
                match fabric.listen(&self.core.first_portals, &self.core.rdma) {
                    Ok(Some(listening)) if self.stopping.is_none() => self.listen_rdma(listening),
                    Ok(_) => {}
                    Err(failure) => tracing::warn!("{}: {failure}", F::WORDS.rdma),
                }
            }
            Change::Close(fabric) => self.close_devices(&fabric.devices),
            Change::Lost(device) => {
                let index = self.rdma.as_ref().and_then(|r| r.find(|place| place.is_of(&device)));
                index.into_iter().for_each(|index| self.lose_device(index, &"it goes away"));
            }
        }
    }

    /// Lets go of devices that another shard cannot use.
    fn close_devices(&mut self, devices: &[Device]) {
        for device in devices {
            let index = self.rdma.as_ref().and_then(|rdma| rdma.find(|place| place.is_of(device)));
            index.into_iter().for_each(|index| drop(self.end_port(index)));
        }
        self.close_if_unused();
    }

    /// Ends all RDMA once no device is in use.
    fn close_if_unused(&mut self) {
        if self.rdma.as_ref().is_some_and(|rdma| rdma.ports.iter().all(Option::is_none)) {
            self.close_rdma();
        }
    }

    /// Lets go of the RDMA devices: another shard cannot use them, or they are gone.
    pub fn close_rdma(&mut self) {
        for index in 0..self.rdma.as_ref().map_or(0, |rdma| rdma.ports.len()) {
            self.end_port(index);
        }
        let Some(rdma) = self.rdma.take() else { return };
        let channel = rdma.channel.iter().map(|(_, id)| *id);
        for id in channel.chain(rdma.listening.iter().map(|(_, id)| *id)) {
            self.front.exec.storage.ring.unwatch(id);
        }
    }

    /// Begins to hand connections out.
    pub fn listen_rdma(&mut self, listening: Listening) {
        let Some(rdma) = &mut self.rdma else { return };
        let ring = &mut self.front.exec.storage.ring;
        // Without one, what came serves portals that are listened on already.
        if !listening.is_empty() {
            match watch(ring, listening.channel.as_fd(), REQUESTS) {
                Ok(id) => rdma.listening.push((listening, id)),
                Err(error) => return tracing::error!("{}: not served: {error}", F::WORDS.rdma),
            }
        }
        for (index, place) in rdma.ports.iter_mut().enumerate() {
            let Some(place) = place.as_mut().filter(|place| place.events.is_none()) else {
                continue;
            };
            // Without it a device's end is told by its connections alone.
            place.events = place
                .opened
                .as_ref()
                .and_then(|opened| watch(ring, opened.device.as_fd(), DEVICES + index as u64).ok());
        }
    }

    /// Takes no more connections.
    pub(super) fn stop_rdma(&mut self) {
        for (_, id) in self.rdma.iter_mut().flat_map(|rdma| rdma.listening.drain(..)) {
            self.front.exec.storage.ring.unwatch(id);
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
        let Some(Place { opened, .. }) = self.end_port(index) else { return };
        if let Some(Opened { device, .. }) = opened {
            let (core, name) = (self.core.clone(), device.name());
            if core.rdma.lost(name) {
                tracing::error!(
                    "{}: the RDMA device {name} is lost ({why}): it is served again when it is back",
                    F::WORDS.rdma
                );
            }
            let others = core.mailboxes().iter().enumerate().filter(|(n, _)| *n != self.number);
            for (_, mailbox) in others {
                mailbox.deliver(Owed::Rdma(Change::Lost(device.clone())));
            }
        }
        self.end_listeners();
        self.close_if_unused();
    }

    /// Ends the listeners of portals that are not served any more: their device waits for that.
    pub(super) fn end_listeners(&mut self) {
        let Some(rdma) = &mut self.rdma else { return };
        let (core, ring) = (&self.core, &mut self.front.exec.storage.ring);
        rdma.listening.retain_mut(|(listening, id)| {
            listening.retain(|portal| core.rdma.is_served(portal));
            if listening.is_empty() {
                ring.unwatch(*id);
            }
            !listening.is_empty()
        });
    }

    /// A device of this name goes away.
    pub(super) fn lose_named(&mut self, name: &str) {
        let named = |place: &Place| {
            place.opened.as_ref().is_some_and(|opened| opened.device.name() == name)
        };
        if let Some(index) = self.rdma.as_ref().and_then(|rdma| rdma.find(named)) {
            self.lose_device(index, &"it goes away");
        }
    }

    /// Ends the connections of a port, and takes it out. `None` if there is none.
    fn end_port(&mut self, index: usize) -> Option<Place> {
        self.rdma.as_mut()?.place(index)?;
        let on =
            |conn: &Conn<F::Conn>| matches!(&conn.wire, Wire::Rdma(link) if link.port == index);
        let lost: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| on(conn)).map(|(slot, _)| slot).collect();
        for slot in lost {
            self.rdma_ended(slot, Fault::Device, "the RDMA device goes away");
        }
        let place = self.rdma.as_mut()?.ports[index].take()?;
        for id in place.events.into_iter().chain([place.completions]) {
            self.front.exec.storage.ring.unwatch(id);
        }
        Some(place)
    }

    /// What has happened to a device.
    fn device_events(&mut self, index: usize) {
        let Some(place) = self.rdma.as_mut().and_then(|rdma| rdma.place(index)) else { return };
        let Some(device) = place.opened.as_ref().map(|opened| opened.device.clone()) else {
            return;
        };
        while let Ok(Some(event)) = device.next_event() {
            let name = device.name();
            match event {
                DeviceEvent::Fatal => return self.lose_device(index, &"it has failed"),
                DeviceEvent::PortUp(port) => {
                    tracing::info!("{}: port {port} of {name} has a link again", F::WORDS.rdma);
                }
                DeviceEvent::PortDown(port) => {
                    tracing::warn!(
                        "{}: port {port} of {name} has lost its link: see its cable",
                        F::WORDS.rdma
                    );
                }
                DeviceEvent::AddressesChanged(port) => {
                    tracing::info!(
                        "{}: the addresses of port {port} of {name} have changed",
                        F::WORDS.rdma
                    );
                }
                // The connection itself tells more.
                DeviceEvent::ConnectionFailed | DeviceEvent::Other(_) => {}
            }
        }
        let place = self.rdma.as_mut().and_then(|rdma| rdma.place(index));
        if let Some(id) = place.and_then(|place| place.events) {
            self.front.exec.storage.ring.watch_again(id);
        }
    }
}
