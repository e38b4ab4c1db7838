//! Announces discovery of NVMe over TCP by mDNS (NVMe TP 8009, `_nvme-disc._tcp`), through the D-Bus interface of Avahi.
//!
//! A thread of its own speaks with Avahi: whatever that does, no client notices. Avahi forgets what a program has announced when
//! its connection ends, so nothing is left behind.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lunet_nvme::name::DISCOVERY_NQN;
use zbus::blocking::connection::Builder;
use zbus::blocking::{Connection, Proxy};
use zbus::zvariant::OwnedObjectPath;

use lunet_config::Config;

/// Type of the service.
const SERVICE: &str = "_nvme-disc._tcp";
/// Avahi on the system's bus.
const AVAHI: &str = "org.freedesktop.Avahi";
/// How often it is looked whether Avahi still announces.
const PERIOD: Duration = Duration::from_secs(2);
/// An answer of Avahi is waited for so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// The end of the thread is waited for so long.
const END: Duration = Duration::from_secs(1);
/// All interfaces, and all protocols (`AVAHI_IF_UNSPEC`, `AVAHI_PROTO_UNSPEC`).
const ANY: i32 = -1;
/// The machine's name has the address already (`AVAHI_PUBLISH_NO_REVERSE`).
const NO_REVERSE: u32 = 16;
/// States of an entry group: a name is another machine's, and failed.
const COLLISION: i32 = 3;
const FAILURE: i32 = 4;
/// The longest label of DNS.
const LABEL: usize = 63;
/// The routing table of IPv4.
const ROUTES: &str = "/proc/net/route";
/// The addresses of IPv6.
const IPV6: &str = "/proc/net/if_inet6";

enum Message {
    /// Announce these from now on.
    Portals(Vec<SocketAddr>),
    End,
}

/// Announces until it is dropped. Its thread begins when there is something to be announced.
#[derive(Default)]
pub struct Announcer(Arc<Mutex<Option<Announcing>>>);

/// The thread.
struct Announcing {
    messages: Sender<Message>,
    ended: Receiver<()>,
}

impl Announcing {
    /// Announces nothing yet.
    ///
    /// # Errors
    /// The system has no thread to give.
    fn start() -> io::Result<Self> {
        let (messages, received) = channel();
        let (end, ended) = channel();
        let run = move || {
            run(&received);
            let _ = end.send(());
        };
        drop(thread::Builder::new().name("announce".to_owned()).spawn(run)?);
        Ok(Self { messages, ended })
    }
}

impl Announcer {
    /// What tells it of the configuration that is in force.
    pub fn teller(&self) -> impl Fn(&Config) + Send + Sync + 'static + use<> {
        let announcing = self.0.clone();
        move |config| {
            let portals = announced(config);
            let mut announcing = announcing.lock().unwrap_or_else(PoisonError::into_inner);
            if announcing.is_none() && !portals.is_empty() {
                match Announcing::start() {
                    Ok(new) => *announcing = Some(new),
                    Err(error) => tracing::warn!(
                        "cannot announce discovery, there is no thread for it: {error}"
                    ),
                }
            }
            if let Some(announcing) = &*announcing {
                let _ = announcing.messages.send(Message::Portals(portals));
            }
        }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let announcing = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Announcing { messages, ended }) = announcing {
            let _ = messages.send(Message::End);
            // One that waits for Avahi ends with the process.
            let _ = ended.recv_timeout(END);
        }
    }
}

/// The portals that are announced: none that other machines cannot reach, and none whose port is not known.
fn announced(config: &Config) -> Vec<SocketAddr> {
    if !config.nvme.announce {
        return Vec::new();
    }
    let portals = config.nvme.portals.iter().map(|portal| portal.address);
    portals.filter(|address| !address.ip().is_loopback() && address.port() != 0).collect()
}

fn run(messages: &Receiver<Message>) {
    let (mut wanted, mut published, mut told) = (Vec::new(), None, None);
    loop {
        let message = match wanted.is_empty() {
            true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => messages.recv_timeout(PERIOD),
        };
        match message {
            Ok(Message::Portals(portals)) if portals != wanted => {
                (wanted, published, told) = (portals, None, None);
            }
            Ok(Message::Portals(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        if wanted.is_empty() || published.as_ref().is_some_and(Published::stands) {
            continue;
        }
        // What is left of it ends here, before the same is announced again.
        drop(published.take());
        match Published::new(&wanted) {
            Ok(new) => {
                let all: Vec<String> = wanted.iter().map(SocketAddr::to_string).collect();
                tracing::info!("NVMe discovery is announced by mDNS: {}", all.join(", "));
                (published, told) = (Some(new), None);
            }
            Err(error) => {
                let text = error.to_string();
                // Once, however often it is tried.
                if told.as_ref() != Some(&text) {
                    tracing::warn!(
                        "NVMe discovery is not announced by mDNS ({text}): see whether avahi-daemon runs, or take `announce` out \
                         of [nvme]; it is tried again"
                    );
                }
                told = Some(text);
            }
        }
    }
}

/// What Avahi announces for this program, until it is dropped.
struct Published {
    connection: Connection,
    /// Who Avahi was then: another one after a restart.
    owner: String,
    group: OwnedObjectPath,
}

impl Published {
    fn new(portals: &[SocketAddr]) -> zbus::Result<Self> {
        let connection = Builder::system()?.method_timeout(PATIENCE).build()?;
        let server = Proxy::new(&connection, AVAHI, "/", "org.freedesktop.Avahi.Server")?;
        let host: String = server.call("GetHostName", &())?;
        let group: OwnedObjectPath = server.call("EntryGroupNew", &())?;
        let owner = owner(&connection)?;
        let published = Self { connection: connection.clone(), owner, group };
        let entries = published.group()?;
        for portal in portals {
            add(&server, &entries, &host, *portal)?;
        }
        entries.call::<_, _, ()>("Commit", &())?;
        drop(entries);
        Ok(published)
    }

    fn group(&self) -> zbus::Result<Proxy<'_>> {
        Proxy::new(&self.connection, AVAHI, &self.group, "org.freedesktop.Avahi.EntryGroup")
    }

    /// True as long as the same Avahi announces it.
    fn stands(&self) -> bool {
        let state = || -> zbus::Result<i32> {
            if owner(&self.connection)? != self.owner {
                return Ok(FAILURE);
            }
            self.group()?.call("GetState", &())
        };
        state().is_ok_and(|state| state != COLLISION && state != FAILURE)
    }
}

/// Who has Avahi's name on the bus.
fn owner(connection: &Connection) -> zbus::Result<String> {
    let bus = "org.freedesktop.DBus";
    Proxy::new(connection, bus, "/org/freedesktop/DBus", bus)?.call("GetNameOwner", &(AVAHI,))
}

/// Announces one portal: a wildcard by the name of this machine, an address by a name of its own, which has no other address.
fn add(server: &Proxy<'_>, group: &Proxy<'_>, host: &str, portal: SocketAddr) -> zbus::Result<()> {
    let (ip, port) = (portal.ip(), portal.port());
    let protocol = i32::from(ip.is_ipv6());
    let txt: Vec<&[u8]> = vec![b"p=tcp"];
    let nqn = format!("NQN={DISCOVERY_NQN}");
    let txt = [txt, vec![nqn.as_bytes()]].concat();
    if ip.is_unspecified() {
        let name = label(&format!("lunet {host}"), port);
        return group.call("AddService", &(ANY, protocol, 0u32, name, SERVICE, "", "", port, txt));
    }
    let interface: i32 = match interface_of(ip) {
        Some(name) => server.call("GetNetworkInterfaceIndexByName", &(name,))?,
        None => ANY,
    };
    let domain: String = server.call("GetDomainName", &())?;
    let own = format!("lunet-{}.{domain}", ip.to_string().replace(['.', ':'], "-"));
    // Two portals may have one address: that it is there already is no failure then.
    let address = (interface, protocol, NO_REVERSE, &own, ip.to_string());
    match group.call::<_, _, ()>("AddAddress", &address) {
        Err(zbus::Error::MethodError(name, ..)) if name.ends_with("CollisionError") => {}
        other => other?,
    }
    let name = label(&format!("lunet {ip}"), port);
    group.call("AddService", &(interface, protocol, 0u32, name, SERVICE, "", own, port, txt))
}

/// A name for a service, which is a label of DNS.
fn label(name: &str, port: u16) -> String {
    let end = format!(" {port}");
    let mut name = name.to_owned();
    while name.len() > LABEL - end.len() {
        name.pop();
    }
    name + &end
}

/// The interface with an address, as far as /proc says.
fn interface_of(ip: IpAddr) -> Option<String> {
    match ip {
        IpAddr::V4(ip) => route_to(ip, &fs::read_to_string(ROUTES).ok()?),
        IpAddr::V6(ip) => {
            let text = fs::read_to_string(IPV6).ok()?;
            let digits = format!("{:032x}", ip.to_bits());
            let line = text.lines().find(|line| line.starts_with(&digits))?;
            Some(line.split_whitespace().last()?.to_owned())
        }
    }
}

/// The interface of the network that an address is in: a line has interface, destination, gateway, flags, three counters and the mask.
fn route_to(ip: Ipv4Addr, table: &str) -> Option<String> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, to, gateway, _, _, _, _, mask, ..] = words[..] else { return None };
        let (to, gateway, mask) = (number(to)?, number(gateway)?, number(mask)?);
        (gateway == 0 && mask != 0 && ip.to_bits() & mask == to).then(|| (mask, name.to_owned()))
    };
    table.lines().skip(1).filter_map(line).max_by_key(|(mask, _)| *mask).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    #[test]
    fn portals_that_others_can_reach_are_announced_if_asked_for() {
        let text = |more: &str| {
            let portal = |address: &str| {
                format!("[[portal]]\naddress = '{address}'\ntransport = 'nvme-tcp'\n")
            };
            let portals = ["127.0.0.1", "[::1]:8009", "192.0.2.7:8009", "[::]", "192.0.2.7:0"];
            let portals: String = portals.into_iter().map(portal).collect();
            check(&format!("{portals}[[subsystem]]\nnqn = 'nqn.2026-11.l:x'\n{more}")).unwrap()
        };
        assert_eq!(announced(&text("")), []);
        let all = announced(&text("[nvme]\nannounce = true\n"));
        let all: Vec<String> = all.iter().map(SocketAddr::to_string).collect();
        assert_eq!(all, ["192.0.2.7:8009", "[::]:4420"]);
    }

    #[test]
    fn names_are_labels() {
        assert_eq!(label("lunet nas", 8009), "lunet nas 8009");
        assert_eq!(label(&"\u{fc}".repeat(60), 65_535).len(), 62);
    }

    #[test]
    fn the_interface_of_an_address_is_that_of_its_network() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n\
                     eth1 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
                     eth2 800200C0 00000000 0001 0 0 0 80FFFFFF 0 0 0\n";
        let of = |ip: &str| route_to(ip.parse().unwrap(), table);
        assert_eq!(of("192.0.2.7").as_deref(), Some("eth1"));
        assert_eq!(of("192.0.2.200").as_deref(), Some("eth2"));
        assert_eq!(of("198.51.100.1"), None);
    }
}
