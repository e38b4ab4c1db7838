//! RDMA when the server starts: which devices carry its portals, and the listeners there.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use lunet_verbs::{CmId, Device, Error, EventChannel, Gid, GidKind, Library, PortFacts, Sysfs};

use super::Status;
use crate::hosting::{Portal, Transports};

/// How many connect requests of a portal may wait.
const BACKLOG: u16 = 128;

/// Why a portal that must be reached over RDMA is not.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {name} at {address}: {why}")]
pub struct StartFailure {
    /// The protocol over RDMA.
    pub name: &'static str,
    /// The portal's address.
    pub address: SocketAddr,
    /// A sentence.
    pub why: String,
}

/// The library, and the devices that carry portals.
pub struct Fabric {
    library: Arc<Library>,
    /// Devices that carry a portal, and are not in use yet.
    pub devices: Vec<Device>,
    ports: Vec<PortFacts>,
    places: Vec<Place>,
}

/// What remains to be known of a device that is in use.
pub struct Opened {
    /// The device.
    pub device: Device,
    ports: Vec<PortFacts>,
}

/// Where RDMA is served.
struct Place {
    portal: usize,
    device: String,
    gid: Gid,
}

/// Listeners, for the shard that hands connections out.
pub struct Listening {
    /// Reports connect requests, with the index of the portal as their token.
    pub channel: EventChannel,
    /// The listeners, with their portals: they listen as long as they are there.
    ids: Vec<(u64, CmId)>,
}

impl Listening {
    /// True without a listener.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Ends the listeners of other portals: their device goes away, and waits for that.
    pub fn retain(&mut self, served: impl Fn(usize) -> bool) {
        self.ids.retain(|(portal, _)| served(*portal as usize));
    }
}

/// Looks for what the portals need beside what serves them already. `None` if there is nothing; then why they
/// are not served over RDMA is in the log.
///
/// # Errors
/// A portal must be reached over RDMA and nothing else, and cannot.
pub fn prepare(portals: &[Portal], status: &Status) -> Result<Option<Arc<Fabric>>, StartFailure> {
    let wants =
        |(index, portal): &(usize, &Portal)| portal.transports.rdma() && !status.is_removed(*index);
    let wanted = || portals.iter().enumerate().filter(wants);
    if wanted().next().is_none() {
        return Ok(None);
    }
    // What the kernel says comes first: without a device nothing needs to be installed.
    let sysfs = Sysfs::default();
    let ports = sysfs.ports();
    let mut places = Vec::new();
    for (index, portal) in wanted() {
        let served = status.devices(index);
        match find(portal, index, &ports, &sysfs) {
            Ok(found) => places.extend(found.into_iter().filter(|p| !served.contains(&p.device))),
            Err(_) if !served.is_empty() => {}
            Err(error) => complain([(index, portal)], &error, status)?,
        }
    }
    if places.is_empty() {
        return Ok(None);
    }
    let (library, mut devices) = match open() {
        Ok(opened) => opened,
        Err(error) => {
            let carried = |index: usize| places.iter().any(|place| place.portal == index);
            // The kernel names a device until the last program has let go of it.
            let told = |index: usize| status.is_served(index) || status.is_gone(index);
            let carried = wanted().filter(|(index, _)| carried(*index) && !told(*index));
            complain(carried, &error, status)?;
            return Ok(None);
        }
    };
    drop_undriven(&mut places, &devices, portals, status)?;
    devices.retain(|device| places.iter().any(|place| place.device == device.name()));
    let fabric = Fabric { library, devices, ports, places };
    Ok((!fabric.places.is_empty()).then(|| Arc::new(fabric)))
}

/// Leaves places out whose device the kernel has, but the library cannot drive.
///
/// # Errors
/// As [`complain`].
fn drop_undriven(
    places: &mut Vec<Place>,
    devices: &[Device],
    portals: &[Portal],
    status: &Status,
) -> Result<(), StartFailure> {
    let driven = |place: &Place| devices.iter().any(|device| device.name() == place.device);
    let (kept, lost): (Vec<Place>, Vec<Place>) = places.drain(..).partition(driven);
    *places = kept;
    for Place { portal, device, .. } in lost {
        let told = status.is_served(portal) || status.is_gone(portal);
        if !told && !places.iter().any(|place| place.portal == portal) {
            complain([(portal, &portals[portal])], &Error::NoProvider { device }, status)?;
        }
    }
    Ok(())
}

/// Has the library let go of devices that are gone: it looks at what there is whenever it is asked for
/// devices. Of a machine's only device it does not let go, which soft RoCE waits for.
pub fn let_go() {
    drop(open());
}

fn open() -> Result<(Arc<Library>, Vec<Device>), Error> {
    let library = Library::open()?;
    let devices = library.devices()?;
    Ok((library, devices))
}

/// Says that portals are not served over RDMA: an error where they have nothing else, a warning where it was
/// asked for, and a note where nothing was.
///
/// # Errors
/// For the first that has nothing else.
fn complain<'a>(
    portals: impl IntoIterator<Item = (usize, &'a Portal)>,
    error: &Error,
    status: &Status,
) -> Result<(), StartFailure> {
    for (index, Portal { address, transports, .. }) in portals {
        let news = status.not_served(index, error);
        let name = status.words().rdma;
        match transports {
            Transports::Rdma => {
                return Err(StartFailure { name, address: *address, why: error.to_string() });
            }
            // It was tried again, and is as it was.
            _ if !news => {}
            Transports::Both => tracing::warn!("{name}: not served at {address}: {error}"),
            // No device carries such an address, and nobody expects it.
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
) -> Result<Vec<Place>, Error> {
    let address = portal.address.ip();
    if !address.is_unspecified() {
        let (port, gid) = sysfs.port_of(address)?;
        return Ok(vec![Place { portal: index, device: port.device, gid }]);
    }
    let places = ports.iter().filter(|port| port.is_active()).filter_map(|port| {
        let usable = |gid: &&Gid| gid.kind == GidKind::RoceV2 || port.link_layer != "Ethernet";
        // One that stands for an address is told rather than one of the link.
        let named = |gid: &&Gid| usable(gid) && gid.address().is_ipv4();
        let gid = port.gids.iter().find(named).or_else(|| port.gids.iter().find(usable))?;
        Some(Place { portal: index, device: port.device.clone(), gid: gid.clone() })
    });
    let places: Vec<Place> = places.collect();
    if places.is_empty() { Err(Error::NoDevice { address }) } else { Ok(places) }
}

/// A GID in words.
fn words(gid: &Gid) -> String {
    Ipv6Addr::from(gid.bytes).to_string()
}

impl Fabric {
    /// Says that the devices cannot be used.
    ///
    /// # Errors
    /// A portal has nothing else.
    pub fn give_up(
        &self,
        portals: &[Portal],
        error: &Error,
        status: &Status,
    ) -> Result<(), StartFailure> {
        let served = |index: &usize| self.places.iter().any(|place| place.portal == *index);
        let portals = portals.iter().enumerate().filter(|(index, _)| served(index));
        complain(portals, error, status)
    }

    /// Listens, and says so.
    ///
    /// # Errors
    /// A portal has nothing else, and cannot be listened on.
    pub fn listen(
        &self,
        portals: &[Portal],
        status: &Status,
    ) -> Result<Option<Listening>, StartFailure> {
        let channel = match EventChannel::new(&self.library) {
            Ok(channel) => channel,
            Err(error) => {
                self.give_up(portals, &error, status)?;
                return Ok(None);
            }
        };
        let mut ids = Vec::new();
        for (index, portal) in portals.iter().enumerate() {
            let mut places = self.places.iter().filter(|place| place.portal == index).peekable();
            // It may have been removed since somebody has looked.
            if places.peek().is_none() || status.is_removed(index) {
                continue;
            }
            // A listener on all addresses knows of devices that come later.
            let mut on = status.devices(index);
            if on.is_empty() {
                match CmId::listen(&channel, portal.address, BACKLOG, index as u64) {
                    Ok(id) => ids.push((index as u64, id)),
                    Err(error) => {
                        complain([(index, portal)], &error, status)?;
                        continue;
                    }
                }
            }
            on.extend(places.clone().map(|place| place.device.clone()));
            status.served(index, on);
            for Place { device, gid, .. } in places {
                let (address, gid) = (portal.address, words(gid));
                let name = status.words().rdma;
                tracing::info!("{name}: listening on {address} (device {device}, GID {gid})");
            }
        }
        Ok(Some(Listening { channel, ids }))
    }

    /// A channel for the events of one shard's connections.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn channel(&self) -> Result<EventChannel, Error> {
        EventChannel::new(&self.library)
    }

    /// A device as it is kept.
    pub fn opened(&self, device: &Device) -> Opened {
        let own = |port: &&PortFacts| port.device == device.name();
        let ports = self.ports.iter().filter(own).cloned().collect();
        Opened { device: device.clone(), ports }
    }
}

impl Opened {
    /// The GID at a place of a port's table, in words.
    pub fn gid(&self, port: u8, index: u8) -> String {
        let device = self.device.name();
        let of = |ports: &[PortFacts]| {
            let port = ports.iter().find(|facts| (&*facts.device, facts.port) == (device, port))?;
            port.gids.iter().find(|gid| gid.index == u16::from(index)).map(words)
        };
        // Addresses may have come since the start.
        of(&self.ports).or_else(|| of(&Sysfs::default().ports())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::fake::{WORDS, port_facts as port};
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
        let found: Vec<_> =
            found.iter().map(|place| (place.portal, &*place.device, words(&place.gid))).collect();
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
        let status = Status::new(&[any.clone(), both.clone()], WORDS);
        assert!(complain([(0, &any), (1, &both)], &error, &status).is_ok());
        let live = [any.clone(), both].map(|portal| (portal.clone(), portal.address));
        let report = status.report(&Portals::new(live));
        assert!(report.iter().all(|portal| portal.why == Some(error.to_string())), "{report:?}");
        let failure =
            complain([(0, &any), (1, &rdma)], &error, &status).expect_err("nothing is left of it");
        let text = failure.to_string();
        assert!(text.starts_with("cannot serve R at 192.0.2.1:3260: no RDMA device"), "{text}");
        assert!(prepare(&[tcp], &status).expect("it is not asked for").is_none());
    }
}
