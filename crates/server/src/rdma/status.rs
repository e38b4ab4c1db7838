//! Whether each portal is served over RDMA, and why a session uses TCP: for reports and the log.

use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use lunet_os::sync::{Mutex, MutexGuard};
use lunet_verbs::{Error, PortFacts, port_of};

use super::invalidate::{Invalidation, SendWithInvalidate};
use crate::front::Names;
use crate::hosting::{Portal, Transports};
use crate::portals::Portals;

/// Why a portal is not served over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its `transport` setting excludes RDMA.
    SwitchedOff,
    /// No RDMA device carries its address.
    NoDevice,
    /// The device has the address only as a RoCE v1 GID.
    NoRoceV2,
    /// The port of the device has no link.
    LinkDown,
    /// The libraries of rdma-core are missing or too old.
    NoLibrary,
    /// rdma-core has no driver for the device.
    NoProvider,
    /// The kernel's connection manager (rdma_ucm) does not answer.
    NoConnectionManager,
    /// The limit of locked memory is too low.
    LockedMemory,
    /// The device has failed or was removed.
    DeviceGone,
    /// The portal was added while the server ran: devices are looked for at the next start.
    NextStart,
    /// The portal was removed.
    Removed,
    /// Another reason.
    Other,
}

impl From<&Error> for Reason {
    fn from(error: &Error) -> Self {
        match error {
            Error::NoDevice { .. } => Self::NoDevice,
            Error::NoRoceV2 { .. } => Self::NoRoceV2,
            Error::LinkDown { .. } => Self::LinkDown,
            Error::Missing(_) => Self::NoLibrary,
            Error::NoProvider { .. } => Self::NoProvider,
            Error::NoConnectionManager { .. } => Self::NoConnectionManager,
            Error::LockedMemory { .. } | Error::NoMemory { .. } => Self::LockedMemory,
            Error::Gone { .. } => Self::DeviceGone,
            _ => Self::Other,
        }
    }
}

/// Whether one portal is served over RDMA: the devices, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Served(Vec<String>),
    Not(Reason, String),
}

/// A portal, as `lunet stats` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalStatus {
    /// The address and port where it listens.
    pub address: String,
    /// By what its protocol groups portals.
    pub tag: u16,
    /// True if it is served over TCP.
    pub tcp: bool,
    /// True if it is served over RDMA.
    pub rdma: bool,
    /// True if the configuration asks for RDMA.
    pub rdma_wanted: bool,
    /// The RDMA devices that serve it; empty without RDMA.
    pub devices: Vec<String>,
    /// Those of them that can send with Invalidate and are used without it, because they fail.
    pub without_invalidate: Vec<String>,
    /// Why it is not served over RDMA; `None` if it is.
    pub reason: Option<Reason>,
    /// The reason as a sentence; `None` on a loopback address, where RDMA is not to be expected.
    pub why: Option<String>,
}

/// Why a session uses TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverTcp {
    /// The RDMA device that carries the server's address.
    pub rdma_device: Option<String>,
    /// True if the server would have accepted the session over RDMA. Whether the client could have used it is not
    /// known.
    pub rdma_offered: bool,
    /// Why the session uses TCP, as a sentence; `None` on a loopback address, where RDMA is not to be expected.
    pub why: Option<String>,
}

/// Whether the portals are served over RDMA, in the order of their indices. Logins and reports read it; the start of
/// the server, and devices that are added or lost, write it.
pub struct Status {
    names: Names,
    portals: Mutex<Vec<State>>,
    losses: AtomicU32,
    changes: AtomicU32,
    /// Which devices are used without Send with Invalidate.
    pub(crate) invalidation: Invalidation,
}

impl Status {
    /// The state before devices were looked for.
    pub(crate) fn new(portals: &[Portal], names: Names) -> Self {
        let starting = |portal| first(portal, Reason::Other, "the server is starting");
        let portals = Mutex::new(portals.iter().map(starting).collect());
        Self {
            names,
            portals,
            losses: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            invalidation: Invalidation::new(SendWithInvalidate::Auto),
        }
    }

    /// The same, with this setting.
    pub(crate) fn with_invalidation(self, policy: SendWithInvalidate) -> Self {
        Self { invalidation: Invalidation::new(policy), ..self }
    }

    /// True if connections that begin now on a device that can send with Invalidate may use that.
    pub fn may_invalidate(&self, device: &str) -> bool {
        self.invalidation.allows(device)
    }

    /// The protocol's words for the log.
    pub(crate) fn names(&self) -> Names {
        self.names
    }

    /// Follows a change of the portals: new ones are served by TCP alone until the next start.
    pub(crate) fn update_portals(&self, portals: &Portals) {
        let mut states = self.lock();
        for (slot, portal) in portals.slots().enumerate() {
            if slot == states.len() {
                let why = format!(
                    "the portal came while lunet ran; the next start of lunet looks for {} there",
                    self.names.rdma
                );
                states.push(first(portal, Reason::NextStart, &why));
            }
            if portals.get(slot).is_none() {
                states[slot] = State::Not(Reason::Removed, "the portal was removed".to_owned());
            }
        }
    }

    /// True if the portal was removed. Its index is not used again.
    pub(crate) fn is_removed(&self, portal: usize) -> bool {
        matches!(self.lock().get(portal), Some(State::Not(Reason::Removed, _)))
    }

    /// Records that a portal is served on these devices.
    pub(crate) fn served(&self, portal: usize, devices: Vec<String>) {
        self.set(portal, State::Served(devices));
    }

    /// Records why a portal is not served. False if that was known.
    pub(crate) fn not_served(&self, portal: usize, error: &Error) -> bool {
        self.set(portal, State::Not(error.into(), error.to_string()))
    }

    /// Records that a device is lost: portals that only it served are not served any more. False if that was known.
    pub(crate) fn lost(&self, device: &str) -> bool {
        let mut news = false;
        for state in self.lock().iter_mut() {
            let State::Served(devices) = state else { continue };
            let before = devices.len();
            devices.retain(|name| name != device);
            news |= devices.len() < before;
            if devices.is_empty() {
                self.changes.fetch_add(1, Ordering::Relaxed);
                let error = Error::Gone { device: device.to_owned() };
                *state = State::Not(Reason::DeviceGone, error.to_string());
            }
        }
        if news {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        news
    }

    /// The devices that serve a portal.
    pub(crate) fn devices(&self, portal: usize) -> Vec<String> {
        match self.lock().get(portal) {
            Some(State::Served(devices)) => devices.clone(),
            _ => Vec::new(),
        }
    }

    /// How often a device was lost.
    pub(crate) fn losses(&self) -> u32 {
        self.losses.load(Ordering::Relaxed)
    }

    /// How often it has changed whether a portal is served.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// True if a portal's only device is lost.
    pub(crate) fn is_gone(&self, portal: usize) -> bool {
        matches!(self.lock().get(portal), Some(State::Not(Reason::DeviceGone, _)))
    }

    /// True if the portal is served over RDMA.
    pub fn is_served(&self, portal: usize) -> bool {
        matches!(self.lock().get(portal), Some(State::Served(_)))
    }

    /// The state of each portal, for a report.
    pub(crate) fn report(&self, portals: &Portals) -> Vec<PortalStatus> {
        let states = self.lock();
        let all = portals.iter().filter_map(|(slot, portal)| Some((portal, states.get(slot)?)));
        all.map(|(portal, state)| {
            let (devices, reason, why) = match state {
                State::Served(devices) => (devices.clone(), None, None),
                State::Not(reason, why) => (Vec::new(), Some(*reason), Some(why.clone())),
            };
            let wanted = matches!(portal.transports, Transports::Both | Transports::Rdma);
            let expected = wanted || !portal.address.ip().is_loopback();
            PortalStatus {
                address: portal.address.to_string(),
                tag: portal.tag,
                tcp: portal.transports.tcp(),
                rdma: reason.is_none(),
                rdma_wanted: wanted,
                without_invalidate: self.invalidation.without(&devices),
                devices,
                reason,
                why: why.filter(|_| expected),
            }
        })
        .collect()
    }

    /// Why a session at this address of a portal uses TCP. `ports`: the RDMA ports that exist now.
    pub fn over_tcp(&self, portal: usize, local: IpAddr, ports: &[PortFacts]) -> OverTcp {
        let local = local.to_canonical();
        let now = port_of(ports, local);
        let device = now.as_ref().ok().map(|(port, _)| port.device.clone());
        let (offered, why) = match (self.lock().get(portal), &now) {
            (Some(State::Served(devices)), Ok((port, _))) if devices.contains(&port.device) => {
                let Names { rdma, client, .. } = self.names;
                let why = format!(
                    "this address is served over {rdma} too (device {}), and the {client} chose TCP: give \
                     it an {rdma} interface or adapter",
                    port.device
                );
                (true, why)
            }
            (Some(State::Served(_)), Ok((port, _))) => (
                false,
                format!(
                    "the device {} has come: lunet looks for it every few seconds",
                    port.device
                ),
            ),
            _ if ports.is_empty() => (false, "this machine has no RDMA device".to_owned()),
            (Some(State::Served(_)), Err(error)) => (false, error.to_string()),
            (Some(State::Not(Reason::SwitchedOff, why)), Ok((port, _))) => {
                let could = format!("its address is on the RDMA device {}", port.device);
                let word = self.names.transport;
                (false, format!("{why}, although {could}: add \"{word}\" to its transport"))
            }
            (Some(State::Not(_, why)), _) => (false, why.clone()),
            (None, _) => (false, String::new()),
        };
        let told = offered || !local.is_loopback();
        let why = Some(why).filter(|why| told && !why.is_empty());
        OverTcp { rdma_device: device, rdma_offered: offered, why }
    }

    /// Logs a login by TCP that could have used RDMA. `ration`: how many such lines were left out, or `None` if this one
    /// has to be.
    pub fn log_over_tcp(
        &self,
        (peer, local): (SocketAddr, SocketAddr),
        over_tcp: &OverTcp,
        ration: impl FnOnce() -> Option<u64>,
    ) {
        let Some(why) = over_tcp.why.as_ref().filter(|_| over_tcp.rdma_offered) else { return };
        let Some(unlogged) = ration() else { return };
        tracing::info!(unlogged, "{}: not used by {peer} at {local}: {why}", self.names.rdma);
    }

    /// False if nothing changes.
    fn set(&self, portal: usize, state: State) -> bool {
        let mut portals = self.lock();
        let Some(current) = portals.get_mut(portal).filter(|current| **current != state) else {
            return false;
        };
        if matches!(current, State::Not(Reason::Removed, _)) {
            return false;
        }
        let serves = |state: &State| matches!(state, State::Served(_));
        if serves(current) != serves(&state) {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        *current = state;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Vec<State>> {
        self.portals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of a portal before devices were looked for.
fn first(portal: &Portal, reason: Reason, why: &str) -> State {
    match portal.transports {
        Transports::Tcp => {
            State::Not(Reason::SwitchedOff, "the portal is for TCP alone".to_owned())
        }
        _ => State::Not(reason, why.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use lunet_verbs::GidKind;

    use super::super::fake::{NAMES, port_facts};
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn port(device: &str, state: &str, address: &str) -> PortFacts {
        port_facts(device, state, &[(&format!("::ffff:{address}"), GidKind::RoceV2)])
    }

    fn portals(all: &[(&str, Transports)]) -> Vec<Portal> {
        let one = |(n, (address, transports)): (usize, &(&str, Transports))| Portal {
            address: address.parse().expect("an address"),
            tag: n as u16 + 1,
            transports: *transports,
        };
        all.iter().enumerate().map(one).collect()
    }

    #[test]
    fn a_session_on_tcp_says_why() {
        let ports = [port("a", "ACTIVE", "192.0.2.1"), port("b", "DOWN", "192.0.2.2")];
        let any = Transports::Any;
        let portals = portals(&[
            ("0.0.0.0:3260", any),
            ("192.0.2.1:1", Transports::Tcp),
            ("192.0.2.9:2", any),
        ]);
        let status = Status::new(&portals, NAMES);
        status.served(0, vec!["a".into()]);
        let gone = Error::NoDevice { address: ip("192.0.2.9") };
        status.not_served(2, &gone);
        let why = |portal, local| status.over_tcp(portal, ip(local), &ports);

        let offered = why(0, "192.0.2.1");
        assert!(offered.rdma_offered && offered.rdma_device.as_deref() == Some("a"), "{offered:?}");
        assert!(offered.why.expect("a sentence").contains("(device a), and the C chose TCP"));
        assert!(why(0, "::ffff:192.0.2.1").rdma_offered, "an IPv4 address in the form of IPv6");
        let down = why(0, "192.0.2.2");
        assert!(!down.rdma_offered && down.why.expect("a sentence").contains("is DOWN"));
        let elsewhere = why(0, "192.0.2.3");
        assert!(elsewhere.why.expect("a sentence").contains("no RDMA device carries"));
        assert_eq!(why(0, "127.0.0.1").why, None, "nobody expects RDMA there");
        let off = why(1, "192.0.2.1").why.expect("a sentence");
        assert!(off.contains("TCP alone, although") && off.contains("device a"), "{off}");
        assert_eq!(why(2, "192.0.2.9").why, Some(gone.to_string()));
        let bare = status.over_tcp(2, ip("192.0.2.9"), &[]).why;
        assert_eq!(bare.as_deref(), Some("this machine has no RDMA device"));

        status.served(2, vec!["c".into(), "a".into()]);
        assert!(status.lost("a") && !status.lost("a"), "it is news once");
        assert!(!status.is_served(0));
        let lost = why(0, "192.0.2.1");
        assert!(status.devices(2) == ["c"] && status.is_served(2));
        status.lost("c");
        assert!(status.devices(2).is_empty() && !status.is_served(2));
        assert!(!lost.rdma_offered && lost.why.expect("a sentence").contains("device a is gone"));
    }

    #[test]
    fn a_device_that_came_later_is_not_offered() {
        let portals = portals(&[("0.0.0.0:3260", Transports::Any)]);
        let status = Status::new(&portals, NAMES);
        status.served(0, vec!["a".into()]);
        let over_tcp = status.over_tcp(0, ip("192.0.2.5"), &[port("c", "ACTIVE", "192.0.2.5")]);
        assert!(
            !over_tcp.rdma_offered
                && over_tcp.why.expect("a sentence").contains("device c has come")
        );
    }

    /// Whoever is slow to hear of it, the device monitor or the loss of a device, does not bring a removed portal back.
    #[test]
    fn portals_come_without_rdma_and_go_for_good() {
        let all = portals(&[
            ("192.0.2.1:3260", Transports::Any),
            ("192.0.2.2:3260", Transports::Both),
            ("192.0.2.3:3260", Transports::Tcp),
        ]);
        let status = Status::new(&all[..1], NAMES);
        status.served(0, vec!["a".into()]);
        let start = Portals::new([(all[0].clone(), all[0].address)]);
        let more = start.next(&all).expect("there is room").portals;
        status.update_portals(&more);
        let reasons = |portals: &Portals| -> Vec<Option<Reason>> {
            status.report(portals).iter().map(|portal| portal.reason).collect()
        };
        assert_eq!(reasons(&more), [None, Some(Reason::NextStart), Some(Reason::SwitchedOff)]);
        let fewer = more.next(&all[1..]).expect("there is room").portals;
        status.update_portals(&fewer);
        assert!(status.is_removed(0) && !status.is_served(0) && !status.is_removed(1));
        status.served(0, vec!["b".into()]);
        status.lost("b");
        assert!(status.is_removed(0) && !status.is_served(0));
        assert_eq!(reasons(&fewer), [Some(Reason::NextStart), Some(Reason::SwitchedOff)]);
        // At the same address again, it is another one.
        let back = fewer.next(&all).expect("there is room").portals;
        status.update_portals(&back);
        assert!(status.is_removed(0) && back.get(3).is_some());
        assert_eq!(reasons(&back)[2], Some(Reason::NextStart));
    }

    #[test]
    fn the_report_says_how_each_portal_stands() {
        let portals = portals(&[
            ("192.0.2.1:3260", Transports::Both),
            ("192.0.2.2:3260", Transports::Tcp),
            ("192.0.2.3:3260", Transports::Any),
            ("127.0.0.1:3260", Transports::Any),
            ("127.0.0.1:3261", Transports::Both),
        ]);
        let status = Status::new(&portals, NAMES);
        status.served(0, vec!["a".into(), "b".into()]);
        for loopback in [3, 4] {
            status.not_served(loopback, &Error::NoDevice { address: ip("127.0.0.1") });
        }
        status.not_served(2, &Error::NoMemory { what: "a queue" });
        status.lost("b");
        let live = Portals::new(portals.iter().map(|portal| (portal.clone(), portal.address)));
        let report = status.report(&live);
        assert_eq!((report[0].rdma, &report[0].devices[..]), (true, &["a".to_owned()][..]));
        assert_eq!((report[1].reason, report[1].rdma_wanted), (Some(Reason::SwitchedOff), false));
        assert_eq!(report[2].reason, Some(Reason::LockedMemory));
        assert_eq!((report[3].reason, &report[3].why), (Some(Reason::NoDevice), &None));
        assert!(report[4].why.is_some(), "it was asked for: {:?}", report[4]);
    }
}
