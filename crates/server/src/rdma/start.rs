//! Which RDMA devices carry the portals' addresses, and the listeners on them.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use lunet_verbs::{CmId, Device, Error, EventChannel, Gid, GidKind, Library, PortFacts, Sysfs};

use super::Status;
use crate::hosting::{Portal, Transports};

/// Connect requests that may wait at a portal.
const BACKLOG: u16 = 128;

/// Why a portal that is for RDMA alone cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {name} at {address}: {why}")]
pub struct StartFailure {
    /// The protocol over RDMA.
    pub(crate) name: &'static str,
    /// The portal's address.
    pub(crate) address: SocketAddr,
    /// The reason, as a sentence.
    pub(crate) why: String,
}

/// Devices that carry portals' addresses and are to be opened, and the library that opens them.
pub struct DeviceSet {
    library: Arc<Library>,
    /// The devices, not in use yet.
    pub(crate) devices: Vec<Device>,
    ports: Vec<PortFacts>,
    bindings: Vec<Binding>,
}

/// A device in use, and the facts of its ports when it was opened.
pub struct DeviceInfo {
    /// The device.
    pub(crate) device: Device,
    ports: Vec<PortFacts>,
}

/// A portal on a device: the GID is that of the portal's address.
struct Binding {
    portal: usize,
    device: String,
    gid: Gid,
}

/// RDMA listeners, for the shard that accepts connections.
pub struct Listeners {
    /// Reports connect requests; the token is the index of the portal.
    pub(crate) channel: EventChannel,
    /// The listeners with their portals. Dropping one closes it.
    ids: Vec<(u64, CmId)>,
}

impl Listeners {
    /// True without a listener.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Closes the listeners of other portals: the removal of their device waits for that.
    pub(crate) fn retain(&mut self, served: impl Fn(usize) -> bool) {
        self.ids.retain(|(portal, _)| served(*portal as usize));
    }
}

/// Finds the devices that the portals need in addition to those that serve them. `None` if there are none; then
/// the log says why portals are not served over RDMA.
///
/// # Errors
/// A portal is for RDMA alone and cannot be served.
pub fn prepare(
    portals: &[Portal],
    status: &Status,
) -> Result<Option<Arc<DeviceSet>>, StartFailure> {
    let wants =
        |(index, portal): &(usize, &Portal)| portal.transports.rdma() && !status.is_removed(*index);
    let wanted = || portals.iter().enumerate().filter(wants);
    if wanted().next().is_none() {
        return Ok(None);
    }
    // sysfs comes first: without a device, rdma-core need not be installed.
    let sysfs = Sysfs::default();
    let ports = sysfs.ports();
    let mut bindings = Vec::new();
    for (index, portal) in wanted() {
        let served = status.devices(index);
        match find(portal, index, &ports, &sysfs) {
            Ok(found) => bindings.extend(found.into_iter().filter(|p| !served.contains(&p.device))),
            Err(_) if !served.is_empty() => {}
            Err(error) => report_not_served([(index, portal)], &error, status)?,
        }
    }
    if bindings.is_empty() {
        return Ok(None);
    }
    let (library, mut devices) = match open() {
        Ok(opened) => opened,
        Err(error) => {
            let carried = |index: usize| bindings.iter().any(|binding| binding.portal == index);
            // The kernel lists a lost device until the last program has closed it: that was logged before.
            let known = |index: usize| status.is_served(index) || status.is_gone(index);
            let carried = wanted().filter(|(index, _)| carried(*index) && !known(*index));
            report_not_served(carried, &error, status)?;
            return Ok(None);
        }
    };
    drop_without_driver(&mut bindings, &devices, portals, status)?;
    devices.retain(|device| bindings.iter().any(|binding| binding.device == device.name()));
    for device in devices.iter().filter(|device| device.limits().invalidates) {
        let driver = sysfs.driver(device.name()).unwrap_or_default();
        if let Some(news) = status.invalidation.opened(device.name(), &driver) {
            tracing::info!("{}: {news}", status.names().rdma);
        }
    }
    let device_set = DeviceSet { library, devices, ports, bindings };
    Ok((!device_set.bindings.is_empty()).then(|| Arc::new(device_set)))
}

/// Drops bindings to devices that the kernel has but rdma-core has no driver for.
///
/// # Errors
/// As [`report_not_served`].
fn drop_without_driver(
    bindings: &mut Vec<Binding>,
    devices: &[Device],
    portals: &[Portal],
    status: &Status,
) -> Result<(), StartFailure> {
    let has_driver =
        |binding: &Binding| devices.iter().any(|device| device.name() == binding.device);
    let (kept, lost): (Vec<Binding>, Vec<Binding>) = bindings.drain(..).partition(has_driver);
    *bindings = kept;
    for Binding { portal, device, .. } in lost {
        let known = status.is_served(portal) || status.is_gone(portal);
        if !known && !bindings.iter().any(|binding| binding.portal == portal) {
            report_not_served([(portal, &portals[portal])], &Error::NoProvider { device }, status)?;
        }
    }
    Ok(())
}

/// Makes the library close devices that were removed: it does so whenever it is asked for its devices. It does not
/// close a machine's only device, for which the removal of a soft RoCE device waits.
pub(crate) fn release_lost_devices() {
    drop(open());
}

fn open() -> Result<(Arc<Library>, Vec<Device>), Error> {
    let library = Library::open()?;
    let devices = library.devices()?;
    Ok((library, devices))
}

/// Reports that portals are not served over RDMA: an error if a portal is for RDMA alone, a warning in the log if
/// RDMA was configured, else an informational line.
///
/// # Errors
/// For the first portal that is for RDMA alone.
fn report_not_served<'a>(
    portals: impl IntoIterator<Item = (usize, &'a Portal)>,
    error: &Error,
    status: &Status,
) -> Result<(), StartFailure> {
    for (index, Portal { address, transports, .. }) in portals {
        let news = status.not_served(index, error);
        let name = status.names().rdma;
        match transports {
            Transports::Rdma => {
                return Err(StartFailure { name, address: *address, why: error.to_string() });
            }
            // The same as at the last attempt.
            _ if !news => {}
            Transports::Both => tracing::warn!("{name}: not served at {address}: {error}"),
            // No device carries a loopback address, so nothing is missing.
            _ if address.ip().is_loopback() => {
                tracing::debug!("{name}: not served at {address}: {error}");
            }
            _ => tracing::info!("{name}: not served at {address}: {error}"),
        }
    }
    Ok(())
}

/// The devices that carry a portal's address, or any if it is all addresses of the machine.
fn find(
    portal: &Portal,
    index: usize,
    ports: &[PortFacts],
    sysfs: &Sysfs,
) -> Result<Vec<Binding>, Error> {
    let address = portal.address.ip();
    if !address.is_unspecified() {
        let (port, gid) = sysfs.port_of(address)?;
        return Ok(vec![Binding { portal: index, device: port.device, gid }]);
    }
    let bindings = ports.iter().filter(|port| port.is_active()).filter_map(|port| {
        let usable = |gid: &&Gid| gid.kind == GidKind::RoceV2 || port.link_layer != "Ethernet";
        // A GID of an IPv4 address is reported rather than a link-local one.
        let named = |gid: &&Gid| usable(gid) && gid.address().is_ipv4();
        let gid = port.gids.iter().find(named).or_else(|| port.gids.iter().find(usable))?;
        Some(Binding { portal: index, device: port.device.clone(), gid: gid.clone() })
    });
    let bindings: Vec<Binding> = bindings.collect();
    if bindings.is_empty() { Err(Error::NoDevice { address }) } else { Ok(bindings) }
}

/// A GID in the notation of an IPv6 address.
fn gid_text(gid: &Gid) -> String {
    Ipv6Addr::from(gid.bytes).to_string()
}

impl DeviceSet {
    /// Reports that these devices cannot be used.
    ///
    /// # Errors
    /// A portal is for RDMA alone.
    pub(crate) fn give_up(
        &self,
        portals: &[Portal],
        error: &Error,
        status: &Status,
    ) -> Result<(), StartFailure> {
        let served = |index: &usize| self.bindings.iter().any(|binding| binding.portal == *index);
        let portals = portals.iter().enumerate().filter(|(index, _)| served(index));
        report_not_served(portals, error, status)
    }

    /// Listens on the portals of these devices, and logs that. `None` if there is no event channel.
    ///
    /// # Errors
    /// A portal is for RDMA alone, and cannot be listened on.
    pub(crate) fn listen(
        &self,
        portals: &[Portal],
        status: &Status,
    ) -> Result<Option<Listeners>, StartFailure> {
        let channel = match EventChannel::new(&self.library) {
            Ok(channel) => channel,
            Err(error) => {
                self.give_up(portals, &error, status)?;
                return Ok(None);
            }
        };
        let mut ids = Vec::new();
        for (index, portal) in portals.iter().enumerate() {
            let mut bindings =
                self.bindings.iter().filter(|binding| binding.portal == index).peekable();
            // It may have been removed in the meantime.
            if bindings.peek().is_none() || status.is_removed(index) {
                continue;
            }
            // A listener on all addresses also covers devices that are added later.
            let mut on = status.devices(index);
            if on.is_empty() {
                match CmId::listen(&channel, portal.address, BACKLOG, index as u64) {
                    Ok(id) => ids.push((index as u64, id)),
                    Err(error) => {
                        report_not_served([(index, portal)], &error, status)?;
                        continue;
                    }
                }
            }
            on.extend(bindings.clone().map(|binding| binding.device.clone()));
            status.served(index, on);
            for Binding { device, gid, .. } in bindings {
                let (address, gid) = (portal.address, gid_text(gid));
                let name = status.names().rdma;
                tracing::info!("{name}: listening on {address} (device {device}, GID {gid})");
            }
        }
        Ok(Some(Listeners { channel, ids }))
    }

    /// An event channel for the connections of one shard.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(crate) fn channel(&self) -> Result<EventChannel, Error> {
        EventChannel::new(&self.library)
    }

    /// A device with the facts of its ports.
    pub(crate) fn info(&self, device: &Device) -> DeviceInfo {
        let own = |port: &&PortFacts| port.device == device.name();
        let ports = self.ports.iter().filter(own).cloned().collect();
        DeviceInfo { device: device.clone(), ports }
    }
}

impl DeviceInfo {
    /// The GID at an index of a port's GID table, as text.
    pub(crate) fn gid(&self, port: u8, index: u8) -> String {
        let device = self.device.name();
        let of = |ports: &[PortFacts]| {
            let port = ports.iter().find(|facts| (&*facts.device, facts.port) == (device, port))?;
            port.gids.iter().find(|gid| gid.index == u16::from(index)).map(gid_text)
        };
        // Addresses may have been added since.
        of(&self.ports).or_else(|| of(&Sysfs::default().ports())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::fake::{NAMES, port_facts as port};
    use super::*;
    use crate::portals::Portals;

    fn portal(address: &str, transports: Transports) -> Portal {
        Portal { address: address.parse().expect("an address"), tag: 1, transports }
    }

    #[test]
    fn all_addresses_are_served_on_every_device_with_a_link_and_roce_v2() {
        let (v1, v2) = (GidKind::InfiniBandOrRoceV1, GidKind::RoceV2);
        let both = [("fe80::1", v2), ("::ffff:192.0.2.1", v1), ("::ffff:192.0.2.1", v2)];
        let ports = [
            port("a", "ACTIVE", &both),
            port("b", "DOWN", &both),
            port("c", "ACTIVE", &[("::ffff:192.0.2.2", v1)]),
            port("d", "ACTIVE", &[("fe80::2", v2)]),
        ];
        let nowhere = Sysfs::at("/nonexistent".as_ref());
        let any = portal("0.0.0.0:3260", Transports::Any);
        let found = find(&any, 4, &ports, &nowhere).expect("two devices");
        let found: Vec<_> = found
            .iter()
            .map(|binding| (binding.portal, &*binding.device, gid_text(&binding.gid)))
            .collect();
        let first = (4, "a", "::ffff:192.0.2.1".to_owned());
        assert_eq!(found, [first, (4, "d", "fe80::2".to_owned())]);
        assert!(matches!(find(&any, 4, &ports[1..3], &nowhere), Err(Error::NoDevice { .. })));
        let one = portal("192.0.2.1:3260", Transports::Any);
        assert!(matches!(find(&one, 0, &ports, &nowhere), Err(Error::NoDevice { .. })));
    }

    #[test]
    fn only_a_portal_without_tcp_keeps_the_server_from_starting() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let error = Error::NoDevice { address };
        let [any, tcp, rdma, both] =
            [Transports::Any, Transports::Tcp, Transports::Rdma, Transports::Both]
                .map(|transports| portal("192.0.2.1:3260", transports));
        let status = Status::new(&[any.clone(), both.clone()], NAMES);
        assert!(report_not_served([(0, &any), (1, &both)], &error, &status).is_ok());
        let live = [any.clone(), both].map(|portal| (portal.clone(), portal.address));
        let report = status.report(&Portals::new(live));
        assert!(report.iter().all(|portal| portal.why == Some(error.to_string())), "{report:?}");
        let failure = report_not_served([(0, &any), (1, &rdma)], &error, &status)
            .expect_err("nothing is left of it");
        let text = failure.to_string();
        assert!(text.starts_with("cannot serve R at 192.0.2.1:3260: no RDMA device"), "{text}");
        assert!(prepare(&[tcp], &status).expect("it is not asked for").is_none());
    }
}
