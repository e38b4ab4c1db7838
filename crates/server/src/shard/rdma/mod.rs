//! RDMA connections on a shard: its devices, and the descriptors that it watches.

mod accept;
mod completions;

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};

use lunet_ring::{PollSource, Ring, Token, WatchId};
use lunet_verbs::{Device, DeviceEvent, Error, EventChannel};

use super::{RDMA, Shard};
use crate::conn::{Conn, ConnId, Wire};
use crate::front::Front;
use crate::mail::Owed;
use crate::rdma::{
    Adapter, Change, Completion, DeviceInfo, DeviceSet, Fault, Listeners, ReceivePool, Receives,
};

/// What a watched descriptor reports, in the low half of its token: events of this shard's connections.
const EVENTS: u64 = 0;
/// Connect requests.
const REQUESTS: u64 = 1;
/// From here on: completions of a device, by its index.
const COMPLETIONS: u64 = 16;
/// From here on: asynchronous events of a device, by its index.
const DEVICE_EVENTS: u64 = 1 << 16;

/// A device in use, with the descriptors that are watched for it.
struct ActiveDevice {
    pool: ReceivePool,
    completions: WatchId,
    /// Its completion descriptor has become readable, and is not watched until the next sleep.
    notified: bool,
    /// `None` for a device in memory.
    info: Option<DeviceInfo>,
    /// Its asynchronous events, watched by the shard that accepts connections.
    events: Option<WatchId>,
}

impl ActiveDevice {
    /// Its name; empty for a device in memory.
    fn name(&self) -> &str {
        self.info.as_ref().map_or("", |info| info.device.name())
    }

    fn is_of(&self, device: &Device) -> bool {
        self.info.as_ref().is_some_and(|info| info.device.is(device))
    }
}

/// A shard's part of RDMA.
pub struct Rdma {
    channel: Option<(EventChannel, WatchId)>,
    /// On the shard that accepts connections; more than one once a device was added later.
    listeners: Vec<(Listeners, WatchId)>,
    /// The devices in use, by index. The index of a lost device is used again.
    devices: Vec<Option<ActiveDevice>>,
    /// Completions that were polled and are not handled yet.
    completions: Vec<Completion>,
    /// Devices whose polling has failed, and why.
    failed_devices: Vec<(usize, Error)>,
    /// Counts the batches of completions.
    batch: u64,
    /// Connections that wait for the completion of a send, or for data.
    waiting: usize,
    /// Operations of the shard wait for memory, which a send completion may free.
    starved: bool,
    /// Connections whose send queue has refused work in this loop iteration.
    failed_conns: Vec<ConnId>,
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
            listeners: Vec::new(),
            devices: Vec::new(),
            completions: Vec::with_capacity(1024),
            failed_devices: Vec::new(),
            batch: 0,
            waiting: 0,
            starved: false,
            failed_conns: Vec::new(),
        }
    }
}

impl Rdma {
    /// Takes a device into use.
    pub fn add(
        &mut self,
        ring: &mut Ring,
        mut pool: ReceivePool,
        info: Option<DeviceInfo>,
    ) -> Result<(), Error> {
        let free = self.devices.iter().position(Option::is_none);
        let index = free.unwrap_or(self.devices.len());
        pool.adapter.arm(false, false)?;
        let completions = watch(ring, pool.adapter.as_fd(), COMPLETIONS + index as u64)?;
        let device = ActiveDevice { pool, completions, notified: false, info, events: None };
        match free {
            Some(index) => self.devices[index] = Some(device),
            None => self.devices.push(Some(device)),
        }
        Ok(())
    }

    /// Says whether operations of the shard wait for memory: send completions then wake it.
    pub(super) fn expect_memory(&mut self, starved: bool) {
        self.starved = starved;
    }

    fn pool(&mut self, index: usize) -> Option<&mut ReceivePool> {
        self.device(index).map(|device| &mut device.pool)
    }

    fn device(&mut self, index: usize) -> Option<&mut ActiveDevice> {
        self.devices.get_mut(index)?.as_mut()
    }

    /// The first device of which this is true.
    fn find(&self, is: impl Fn(&ActiveDevice) -> bool) -> Option<usize> {
        self.devices.iter().position(|device| device.as_ref().is_some_and(&is))
    }
}

impl PollSource for Rdma {
    fn poll(&mut self) -> bool {
        for (index, device) in self.devices.iter_mut().enumerate() {
            let Some(device) = device else { continue };
            if let Err(error) = device.pool.adapter.poll(&mut self.completions) {
                self.failed_devices.push((index, error));
            }
        }
        !self.completions.is_empty() || !self.failed_devices.is_empty()
    }

    fn before_sleep(&mut self, watch: &mut dyn FnMut(WatchId)) -> bool {
        if self.poll() {
            return true;
        }
        // Whoever else is to run on this processor may be about to send. On an idle one this costs less than to request
        // notifications, to sleep and to be woken.
        lunet_os::thread::yield_now();
        if self.poll() {
            return true;
        }
        let sends = self.waiting > 0 || self.starved;
        for (index, device) in self.devices.iter_mut().enumerate() {
            let Some(device) = device else { continue };
            let notified = std::mem::take(&mut device.notified);
            if let Err(error) = device.pool.adapter.arm(notified, sends) {
                self.failed_devices.push((index, error));
            }
            if notified {
                watch(device.completions);
            }
        }
        self.poll()
    }
}

impl<F: Front> Shard<F> {
    /// Opens RDMA devices for this shard, in addition to those that it has: all of them or none.
    ///
    /// # Errors
    /// Why one of them cannot be used.
    pub(crate) fn open_rdma(&mut self, device_set: &DeviceSet) -> Result<(), Error> {
        let ring = &mut self.front.exec.storage.ring;
        let mut rdma = self.rdma.take().unwrap_or_else(|| Box::new(Rdma::default()));
        let opened =
            Self::open_devices(&mut rdma, ring, F::receives(&self.core), device_set, self.number);
        self.rdma = Some(rdma);
        if opened.is_err() {
            self.close_devices(&device_set.devices);
        }
        opened
    }

    fn open_devices(
        rdma: &mut Rdma,
        ring: &mut Ring,
        receives: Receives,
        device_set: &DeviceSet,
        number: usize,
    ) -> Result<(), Error> {
        if rdma.channel.is_none() {
            let channel = device_set.channel()?;
            let events = watch(ring, channel.as_fd(), EVENTS)?;
            rdma.channel = Some((channel, events));
        }
        let all = rdma.devices.iter().flatten().count() + device_set.devices.len();
        let shared = receives.shared(ring.arena(), all);
        for device in &device_set.devices {
            let adapter = Adapter::open(device, ring.arena(), shared, number)?;
            rdma.add(ring, ReceivePool::new(adapter, receives), Some(device_set.info(device)))?;
        }
        Ok(())
    }

    /// Adds or removes devices while the server runs.
    pub(in crate::shard) fn change_rdma(&mut self, change: Change) {
        lunet_os::met(&change);
        match change {
            Change::Open(device_set, reply) => {
                let opened = match self.stopping {
                    None => self.open_rdma(&device_set),
                    Some(_) => Err(Error::Ended),
                };
                // The caller may have stopped waiting.
                let _ = reply.try_send(opened);
            }
            Change::Listen(device_set) => {
                match device_set.listen(&self.core.first_portals, &self.core.rdma) {
                    Ok(Some(listeners)) if self.stopping.is_none() => self.listen_rdma(listeners),
                    Ok(_) => {}
                    Err(failure) => tracing::warn!("{}: {failure}", F::NAMES.rdma),
                }
            }
            Change::Close(device_set) => self.close_devices(&device_set.devices),
            Change::Lost(device) => {
                let index = self.rdma.as_ref().and_then(|r| r.find(|active| active.is_of(&device)));
                index.into_iter().for_each(|index| self.lose_device(index, &"it goes away"));
            }
        }
    }

    /// Closes devices that another shard could not open.
    fn close_devices(&mut self, devices: &[Device]) {
        for device in devices {
            let index =
                self.rdma.as_ref().and_then(|rdma| rdma.find(|active| active.is_of(device)));
            index.into_iter().for_each(|index| drop(self.remove_device(index)));
        }
        self.close_if_unused();
    }

    /// Closes RDMA on this shard once no device is in use.
    fn close_if_unused(&mut self) {
        if self.rdma.as_ref().is_some_and(|rdma| rdma.devices.iter().all(Option::is_none)) {
            self.close_rdma();
        }
    }

    /// Closes all RDMA devices of this shard.
    pub fn close_rdma(&mut self) {
        for index in 0..self.rdma.as_ref().map_or(0, |rdma| rdma.devices.len()) {
            self.remove_device(index);
        }
        let Some(rdma) = self.rdma.take() else { return };
        let channel = rdma.channel.iter().map(|(_, id)| *id);
        for id in channel.chain(rdma.listeners.iter().map(|(_, id)| *id)) {
            self.front.exec.storage.ring.unwatch(id);
        }
    }

    /// Accepts connections from these listeners too, and watches the devices' events.
    pub(crate) fn listen_rdma(&mut self, listeners: Listeners) {
        let Some(rdma) = &mut self.rdma else { return };
        let ring = &mut self.front.exec.storage.ring;
        // Without one, the new devices carry portals that have listeners already.
        if !listeners.is_empty() {
            match watch(ring, listeners.channel.as_fd(), REQUESTS) {
                Ok(id) => rdma.listeners.push((listeners, id)),
                Err(error) => return tracing::error!("{}: not served: {error}", F::NAMES.rdma),
            }
        }
        for (index, device) in rdma.devices.iter_mut().enumerate() {
            let Some(device) = device.as_mut().filter(|device| device.events.is_none()) else {
                continue;
            };
            // Without it only the connections report that the device is lost.
            device.events = device.info.as_ref().and_then(|info| {
                watch(ring, info.device.as_fd(), DEVICE_EVENTS + index as u64).ok()
            });
        }
    }

    /// Takes no more connections.
    pub(super) fn stop_rdma(&mut self) {
        for (_, id) in self.rdma.iter_mut().flat_map(|rdma| rdma.listeners.drain(..)) {
            self.front.exec.storage.ring.unwatch(id);
        }
    }

    /// A watched descriptor is readable.
    pub(super) fn rdma_readable(&mut self, what: u64) {
        match what {
            EVENTS => self.rdma_events(),
            REQUESTS => self.rdma_requests(),
            device if device >= DEVICE_EVENTS => {
                self.device_events((device - DEVICE_EVENTS) as usize)
            }
            device => self.completions_readable((device - COMPLETIONS) as usize),
        }
    }

    /// A device has failed or is being removed: its connections end, those on TCP and on other devices go on.
    /// All shards release it, for which some drivers wait.
    pub(super) fn lose_device(&mut self, index: usize, why: &dyn Display) {
        let Some(ActiveDevice { info, .. }) = self.remove_device(index) else { return };
        if let Some(DeviceInfo { device, .. }) = info {
            let (core, name) = (self.core.clone(), device.name());
            if core.rdma.lost(name) {
                tracing::error!(
                    "{}: the RDMA device {name} is lost ({why}): it is served again when it is back",
                    F::NAMES.rdma
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

    /// Closes the listeners of portals that are no longer served: the removal of their device waits for that.
    pub(super) fn end_listeners(&mut self) {
        let Some(rdma) = &mut self.rdma else { return };
        let (core, ring) = (&self.core, &mut self.front.exec.storage.ring);
        rdma.listeners.retain_mut(|(listeners, id)| {
            listeners.retain(|portal| core.rdma.is_served(portal));
            if listeners.is_empty() {
                ring.unwatch(*id);
            }
            !listeners.is_empty()
        });
    }

    /// The device of this name is being removed.
    pub(super) fn lose_named(&mut self, name: &str) {
        let named = |device: &ActiveDevice| {
            device.info.as_ref().is_some_and(|info| info.device.name() == name)
        };
        if let Some(index) = self.rdma.as_ref().and_then(|rdma| rdma.find(named)) {
            self.lose_device(index, &"it goes away");
        }
    }

    /// Ends the connections of a device and takes it out of use. `None` if there is none at this index.
    fn remove_device(&mut self, index: usize) -> Option<ActiveDevice> {
        self.rdma.as_mut()?.device(index)?;
        let on = |conn: &Conn<F::Conn>| matches!(&conn.wire, Wire::Rdma(qp) if qp.device == index);
        let lost: Vec<ConnId> =
            self.conns.iter().filter(|(_, conn)| on(conn)).map(|(slot, _)| slot).collect();
        for slot in lost {
            self.rdma_ended(slot, Fault::Device, "the RDMA device goes away");
        }
        let device = self.rdma.as_mut()?.devices[index].take()?;
        for id in device.events.into_iter().chain([device.completions]) {
            self.front.exec.storage.ring.unwatch(id);
        }
        Some(device)
    }

    /// Handles the asynchronous events of a device.
    fn device_events(&mut self, index: usize) {
        let Some(device) = self.rdma.as_mut().and_then(|rdma| rdma.device(index)) else { return };
        let Some(device) = device.info.as_ref().map(|info| info.device.clone()) else {
            return;
        };
        while let Ok(Some(event)) = device.next_event() {
            let name = device.name();
            match event {
                DeviceEvent::Fatal => return self.lose_device(index, &"it has failed"),
                DeviceEvent::PortUp(port) => {
                    tracing::info!("{}: port {port} of {name} has a link again", F::NAMES.rdma);
                }
                DeviceEvent::PortDown(port) => {
                    tracing::warn!(
                        "{}: port {port} of {name} has lost its link: see its cable",
                        F::NAMES.rdma
                    );
                }
                DeviceEvent::AddressesChanged(port) => {
                    tracing::info!(
                        "{}: the addresses of port {port} of {name} have changed",
                        F::NAMES.rdma
                    );
                }
                // The connection's own event says more.
                DeviceEvent::ConnectionFailed | DeviceEvent::Other(_) => {}
            }
        }
        let device = self.rdma.as_mut().and_then(|rdma| rdma.device(index));
        if let Some(id) = device.and_then(|device| device.events) {
            self.front.exec.storage.ring.watch_again(id);
        }
    }
}
