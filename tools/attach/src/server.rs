//! What the server offers, asked by lunet's own initiators as this machine: nothing is changed at either end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use lunet_client::{Claims, Identity, Registrant, iscsi, nvme};
use lunet_host::apply::Fault;
use lunet_iscsi::printable::printable;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::address::{Address, Transport, place};
use crate::host::Host;

/// For a connection, and for each answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// For all answers together, however many there are: a server can take its time for each of them.
const WHOLE: Duration = Duration::from_secs(60);
/// After so long it is told what is waited for.
const SILENCE: Duration = Duration::from_secs(3);
/// So many portals are tried, and used.
const MOST_PORTALS: usize = 8;

/// A portal of a target or subsystem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Portal {
    /// Its address, without brackets.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Its portal group; NVMe has none.
    pub tag: Option<u16>,
}

impl Portal {
    /// Address and port.
    #[must_use]
    pub fn place(&self) -> String {
        place(&self.address, self.port)
    }
}

/// A disk as the server describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// T10 vendor, or nothing.
    pub vendor: String,
    /// Product, or model.
    pub product: String,
    /// Capacity.
    pub bytes: u64,
    /// Logical block in bytes.
    pub block_bytes: u32,
    /// It takes no writes.
    pub read_only: bool,
    /// By what it is known in the whole world, as Linux writes it: `naa.6...`, `eui.00...`, `uuid.1234...`.
    pub names: Vec<String>,
}

impl Disk {
    /// Whether two paths lead to one disk, by what each says of itself.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let blocks = |disk: &Self| (disk.bytes, disk.block_bytes);
        blocks(self) == blocks(other) && self.names.iter().any(|name| other.names.contains(name))
    }
}

impl Disk {
    /// Whether nothing that they say of themselves tells two disks apart: those without a name are told apart by their sizes alone.
    #[must_use]
    pub fn may_be(&self, other: &Self) -> bool {
        let is_nameless = self.names.is_empty() && other.names.is_empty();
        let blocks = |disk: &Self| (disk.bytes, disk.block_bytes);
        self.is(other) || is_nameless && blocks(self) == blocks(other)
    }

    /// Its names and sizes, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        let names = match self.names.is_empty() {
            true => "a disk without a name".to_owned(),
            false => self.names.join(" "),
        };
        format!("{names}, {} bytes in blocks of {}", self.bytes, self.block_bytes)
    }
}

/// A disk, and the ways to it by one transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// The transport.
    pub transport: Transport,
    /// Name of the target, or NQN.
    pub name: String,
    /// LUN or namespace.
    pub unit: u32,
    /// What it is.
    pub disk: Disk,
    /// Portals that let this machine in.
    pub portals: Vec<Portal>,
    /// What each of these portals has there: they should lead to one disk.
    pub disks: Vec<Disk>,
    /// Which other hosts have reserved the disk, in words.
    pub claims: Vec<String>,
    /// Portals that are listed and cannot be used, and why.
    pub unusable: Vec<(String, String)>,
}

/// What a server offers: for each transport the disk, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Server {
    /// What there is.
    pub offers: Vec<Offer>,
    /// What there is not, in words.
    pub refused: Vec<(Transport, String)>,
}

/// Secrets, which are in no journal, on no command line and in no output.
#[derive(Clone, Default)]
pub struct Secrets {
    /// CHAP, of the user.
    pub chap: Option<Zeroizing<String>>,
    /// CHAP, of the target.
    pub target: Option<Zeroizing<String>>,
    /// DH-HMAC-CHAP, of the host.
    pub host: Option<Zeroizing<String>>,
    /// DH-HMAC-CHAP, of the controller.
    pub controller: Option<Zeroizing<String>>,
    /// TLS, in the PSK interchange format.
    pub tls: Option<Zeroizing<String>>,
}

/// Asks the server for what the address means, by each transport that is meant and that this machine has: iSCSI and NVMe at a time,
/// and for a minute at most. `tell` hears what is waited for if that takes a while.
#[must_use]
pub fn look(
    address: &Address,
    host: &Host,
    secrets: &Secrets,
    tell: &mut dyn FnMut(&str),
) -> Server {
    let asked = Asked { address: address.clone(), host: host.clone(), secrets: secrets.clone() };
    let asked = Arc::new(asked);
    let families = [true, false].map(|of_nvme| {
        let asked = Arc::clone(&asked);
        (of_nvme, Answer::of(move || asked.family(of_nvme)))
    });
    let since = Instant::now();
    let mut server = Server::default();
    for (of_nvme, answer) in families {
        let what = if of_nvme { "NVMe" } else { "iSCSI" };
        match answer.within(since, WHOLE, &asked.server(what), tell) {
            Ok(part) => {
                server.offers.extend(part.offers);
                server.refused.extend(part.refused);
            }
            Err(why) => {
                let of_it = |transport: &Transport| {
                    transport.is_nvme() == of_nvme
                        && address.transport.is_none_or(|wanted| wanted == *transport)
                };
                let all = Transport::ALL.into_iter().filter(of_it);
                server.refused.extend(all.map(|transport| (transport, why.0.clone())));
            }
        }
    }
    server
}

/// Says whether there is such a server: what this machine lacks matters to nobody whose address is none.
///
/// # Errors
/// Its name has no address, or nobody says so in time.
pub fn find(address: &Address, tell: &mut dyn FnMut(&str)) -> Result<(), Fault> {
    let host = address.host.clone();
    let answer = Answer::of(move || (host.as_str(), 0).to_socket_addrs().map(drop));
    let name = printable(&address.host);
    let found = answer.within(Instant::now(), WHOLE, &format!("the name service for {name}"), tell);
    match found.map_err(|why| Fault(why.0))? {
        Ok(()) => Ok(()),
        Err(error) => Err(Fault(format!(
            "no server is known by the name {name} ({error}): an address is iscsi://HOST[:PORT][/TARGET[/LUN]], iser://..., \
             nvme-tcp://HOST[:PORT][/NQN[/NSID]], nvme-rdma://..., or HOST[:PORT][/NAME[/UNIT]]"
        ))),
    }
}

/// What somebody else finds out meanwhile. If it takes too long, nobody waits for it any more.
struct Answer<T>(Receiver<T>);

impl<T: Send + 'static> Answer<T> {
    fn of(find: impl FnOnce() -> T + Send + 'static) -> Self {
        let (send, receive) = channel();
        // Who no longer waits wants no answer.
        thread::spawn(move || drop(send.send(find())));
        Self(receive)
    }

    /// Waits until `whole` after `since`, and tells `what` is waited for after a while.
    fn within(
        &self,
        since: Instant,
        whole: Duration,
        what: &str,
        tell: &mut dyn FnMut(&str),
    ) -> Result<T, Why> {
        let until = |limit: Duration| limit.saturating_sub(since.elapsed());
        if let Ok(found) = self.0.recv_timeout(until(SILENCE.min(whole))) {
            return Ok(found);
        }
        let limit = whole.as_secs();
        tell(&format!("waiting for the answers of {what}, for {limit} s at most"));
        self.0.recv_timeout(until(whole)).map_err(|_| {
            Why(format!("{what} did not give all its answers within {limit} s: look into its log"))
        })
    }
}

impl Asked {
    /// The host that is asked, for people.
    fn server(&self, what: &str) -> String {
        format!("{} over {what}", printable(&self.address.host))
    }

    /// What there is by the transports of NVMe, or by those of iSCSI.
    fn family(&self, of_nvme: bool) -> Server {
        let Self { address, host, secrets } = self;
        let mut server = Server::default();
        let tcp = if of_nvme { self.nvme_offers() } else { None };
        for transport in Transport::ALL.into_iter().filter(|it| it.is_nvme() == of_nvme) {
            if address.transport.is_some_and(|wanted| wanted != transport) {
                continue;
            }
            let lacks = host.lacks(transport).or_else(|| {
                let tls = secrets.tls.as_ref()?;
                host.lacks_tls(transport).or_else(|| tls_key(tls).err().map(|why| why.0))
            });
            if let Some(lacks) = lacks {
                server.refused.push((transport, lacks));
                continue;
            }
            let found = match transport.is_nvme() {
                true => self.nvme(transport, &tcp),
                false => self.iscsi(transport),
            };
            match found {
                Ok(offer) => server.offers.push(offer),
                Err(why) => server.refused.push((transport, why.0)),
            }
        }
        server
    }
}

/// Asks for an offered disk once more, at the first of its portals: what it is, and which other hosts have reserved it by now.
///
/// # Errors
/// It does not answer, or does not let this machine in any more.
pub fn again(
    address: &Address,
    host: &Host,
    secrets: &Secrets,
    offer: &Offer,
    tell: &mut dyn FnMut(&str),
) -> Result<(Disk, Vec<String>), Fault> {
    let asked = Asked { address: address.clone(), host: host.clone(), secrets: secrets.clone() };
    let (what, offer) = (asked.server(&offer.transport.to_string()), offer.clone());
    let answer = Answer::of(move || asked.again(&offer));
    let found = answer.within(Instant::now(), WHOLE, &what, tell);
    found.and_then(|found| found).map_err(|why| Fault(why.0))
}

/// Why there is no offer, in words.
#[derive(Clone)]
struct Why(String);

impl<E: std::error::Error> From<E> for Why {
    fn from(error: E) -> Self {
        Self(printable(&error.to_string()).to_string())
    }
}

/// The discovery log, if NVMe is meant.
type NvmeOffers = Option<Result<Vec<nvme::Offer>, Why>>;

struct Asked {
    address: Address,
    host: Host,
    secrets: Secrets,
}

impl Asked {
    fn iscsi_target(&self, transport: Transport) -> Result<iscsi::Target, Why> {
        let host = place(&self.address.host, self.address.port.unwrap_or(iscsi::PORT));
        let mut target = iscsi::Target::parse(&format!("{}://{host}", transport.scheme()))?;
        target.name.clone_from(&self.address.name);
        target.lun = self.address.unit.map(u16::try_from).transpose()?;
        let account = |name: &Option<String>, secret: &Option<Zeroizing<String>>| {
            let name = name.clone()?;
            let secret =
                secret.as_ref().map(|secret| secret.as_bytes().to_vec()).unwrap_or_default();
            Some(iscsi::Account { name, secret: iscsi::Secret::new(secret) })
        };
        target.account = account(&self.address.user, &self.secrets.chap);
        target.mutual = account(&self.address.target_user, &self.secrets.target);
        Ok(target)
    }

    fn iscsi_login(&self) -> iscsi::Login {
        let mut login = iscsi::Login { patience: PATIENCE, ..iscsi::Login::default() };
        if let Some(name) = &self.host.initiator_name {
            login.initiator_name.clone_from(name);
        }
        login
    }

    fn again(&self, offer: &Offer) -> Result<(Disk, Vec<String>), Why> {
        let portal = offer.portals.first().ok_or_else(|| Why("there is no portal".to_owned()))?;
        if offer.transport.is_nvme() {
            let (namespace, identity) =
                self.namespace(offer.transport, &offer.name, Some(offer.unit), portal)?;
            let claims = of_others(&identity.claims, &self.own_id());
            return Ok((of_namespace(&namespace, identity), claims));
        }
        let login = self.iscsi_login();
        let target = iscsi::Target {
            host: portal.address.clone(),
            port: portal.port,
            name: Some(offer.name.clone()),
            lun: Some(u16::try_from(offer.unit)?),
            ..self.iscsi_target(offer.transport)?
        };
        let (unit, identity) = iscsi::identify(&target, &login)?;
        let claims = of_others(&identity.claims, &login.initiator_name);
        Ok((of_unit(unit, identity), claims))
    }

    fn iscsi(&self, transport: Transport) -> Result<Offer, Why> {
        let name = self.address.name.as_deref().unwrap_or_default();
        if name.starts_with("nqn.") {
            return Err(Why("the address names an NVMe subsystem".to_owned()));
        }
        let login = self.iscsi_login();
        let mut target = self.iscsi_target(transport)?;
        // The targets that a portal lists are those of this initiator; a list that is refused lists none.
        let listed = iscsi::discover(&iscsi::Target { name: None, ..target.clone() }, &login);
        let (unit, identity) =
            iscsi::identify(&target, &login).map_err(|error| not_let_in(error, &login))?;
        target.name = Some(unit.target.clone());
        target.lun = Some(unit.lun);
        let own = self.own_portal(iscsi::PORT);
        let listed = listed.unwrap_or_default();
        let of_it = listed.iter().filter(|offer| offer.name == unit.target);
        let texts = of_it.flat_map(|offer| &offer.addresses).map(String::as_str);
        let (portals, passed_over) = self.portals(texts, &own, iscsi::PORT, Some(1));
        let mut offer = Offer {
            transport,
            name: unit.target.clone(),
            unit: unit.lun.into(),
            claims: of_others(&identity.claims, &login.initiator_name),
            disk: of_unit(unit, identity),
            portals: Vec::new(),
            disks: Vec::new(),
            unusable: Vec::new(),
        };
        offer.unusable = passed_over;
        let found = each(&portals, |portal| {
            let by =
                iscsi::Target { host: portal.address.clone(), port: portal.port, ..target.clone() };
            let (unit, identity) = iscsi::identify(&by, &login)?;
            Ok(of_unit(unit, identity))
        });
        for (portal, disk) in portals.into_iter().zip(found) {
            match disk {
                Ok(disk) => {
                    offer.portals.push(portal);
                    offer.disks.push(disk);
                }
                Err(why) => offer.unusable.push((portal.place(), why.0)),
            }
        }
        if offer.portals.is_empty() {
            // Behind a translation of addresses, what is listed leads nowhere.
            let (address, port) =
                own.into_iter().next().ok_or_else(|| Why("the host is not known".to_owned()))?;
            offer.portals.push(Portal { address, port, tag: Some(1) });
            offer.disks.push(offer.disk.clone());
        }
        Ok(offer)
    }

    /// The addresses of the host that is named.
    fn own_portal(&self, port: u16) -> Vec<(String, u16)> {
        addresses(&self.address.host, self.address.port.unwrap_or(port))
    }

    /// The portals that are asked, each once, those of the host that is named first: what the server lists and what is named besides.
    /// And those that are passed over, with the reason.
    fn portals<'a>(
        &self,
        listed: impl Iterator<Item = &'a str>,
        own: &[(String, u16)],
        port: u16,
        tag: Option<u16>,
    ) -> (Vec<Portal>, Vec<(String, String)>) {
        let typed =
            self.address.more.iter().map(|(host, own)| addresses(host, own.unwrap_or(port)));
        let typed: Vec<_> = typed.collect();
        let is_here = |(text, _): &(String, u16)| ip(text).is_some_and(|ip| ip.is_loopback());
        let loopback = own.iter().chain(typed.iter().flatten()).any(is_here);
        let mut portals = Vec::new();
        let mut passed_over = Vec::new();
        for text in listed {
            match portal(text).map(|portal| in_scope(portal, &self.address.host)) {
                Some(portal) => match no_address(&portal.address, loopback) {
                    None => portals.push(portal),
                    Some(why) => passed_over.push((portal.place(), why.to_owned())),
                },
                None => passed_over
                    .push((printable(text).to_string(), "it is no IP address and port".to_owned())),
            }
        }
        portals.sort_by_key(|portal| !own.contains(&(portal.address.clone(), portal.port)));
        let named = typed.into_iter().filter_map(|all| all.into_iter().next());
        portals.extend(named.map(|(address, port)| Portal { address, port, tag }));
        once(&mut portals);
        passed_over.truncate(MOST_PORTALS);
        passed_over.extend(too_many(&mut portals));
        (portals, passed_over)
    }

    /// The discovery log, over TCP, if NVMe is meant at all.
    fn nvme_offers(&self) -> NvmeOffers {
        let by = match self.address.transport {
            Some(transport) if !transport.is_nvme() => return None,
            Some(Transport::NvmeRdma) => "nvme-rdma",
            _ => "nvme-tcp",
        };
        let host = place(&self.address.host, self.address.port.unwrap_or(nvme::PORT));
        let target = match nvme::Target::parse(&format!("{by}://{host}")) {
            Ok(target) => target,
            Err(error) => return Some(Err(error.into())),
        };
        let tls_key = match self.secrets.tls.as_deref().map(|text| tls_key(text)).transpose() {
            Ok(key) => key,
            Err(why) => return Some(Err(why)),
        };
        let found = nvme::discover(&nvme::Target { tls_key, ..target }, &self.nvme_login());
        Some(found.map_err(Why::from))
    }

    fn nvme_login(&self) -> nvme::Login {
        let mut login = nvme::Login { patience: PATIENCE, ..nvme::Login::default() };
        if let Some(nqn) = &self.host.host_nqn {
            login.host_nqn.clone_from(nqn);
        }
        if let Some(id) = self.host.host_id.as_deref().and_then(uuid) {
            login.host_id = id;
        }
        login
    }

    /// The name by which reservations know this machine over NVMe.
    fn own_id(&self) -> String {
        self.host.host_id.as_deref().unwrap_or_default().trim().to_owned()
    }

    fn nvme(&self, transport: Transport, offers: &NvmeOffers) -> Result<Offer, Why> {
        let offers = match offers {
            None => return Err(Why("the address is iSCSI's".to_owned())),
            Some(Err(why)) => return Err(why.clone()),
            Some(Ok(offers)) => offers,
        };
        let rdma = transport.is_rdma();
        let usable = |offer: &&nvme::Offer| match rdma {
            true => offer.over_rdma,
            false => offer.usable && !offer.over_rdma,
        };
        let there: Vec<&nvme::Offer> = offers.iter().filter(usable).collect();
        let nqn = self.subsystem(&there, transport)?;
        let listed: Vec<&nvme::Offer> =
            there.into_iter().filter(|offer| offer.nqn == nqn).collect();
        if let Some(offer) = listed.iter().find(|offer| offer.tls && self.secrets.tls.is_none()) {
            return Err(Why(format!(
                "{} is for TLS at {}: give the host's key for it by --tls-key-file FILE",
                offer.nqn, offer.address
            )));
        }
        let own = self.own_portal(nvme::PORT);
        let texts = listed.iter().map(|offer| offer.address.as_str());
        let (portals, passed_over) = self.portals(texts, &own, nvme::PORT, None);
        let mut found: Option<Offer> = None;
        let mut unusable = Vec::new();
        let nsid = self.nsid();
        let answers = each(&portals, |portal| self.namespace(transport, &nqn, nsid, portal));
        for (portal, answer) in portals.into_iter().zip(answers) {
            match answer {
                Ok((namespace, identity)) => {
                    let claims = of_others(&identity.claims, &self.own_id());
                    let disk = of_namespace(&namespace, identity);
                    let offer = found.get_or_insert_with(|| Offer {
                        transport,
                        name: namespace.subsystem,
                        unit: namespace.nsid,
                        disk: disk.clone(),
                        portals: Vec::new(),
                        disks: Vec::new(),
                        claims,
                        unusable: Vec::new(),
                    });
                    offer.portals.push(portal);
                    offer.disks.push(disk);
                }
                Err(why) => unusable.push((portal.place(), why.0)),
            }
        }
        match (found, unusable.first()) {
            (Some(offer), _) => Ok(Offer { unusable: [unusable, passed_over].concat(), ..offer }),
            (None, Some((_, why))) => Err(Why(why.clone())),
            (None, None) => Err(Why(format!("the subsystem {nqn} has no portal for it"))),
        }
    }

    fn subsystem(&self, there: &[&nvme::Offer], transport: Transport) -> Result<String, Why> {
        let mut names: Vec<&str> = there.iter().map(|offer| offer.nqn.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        // lunet's own name of a target that is served both ways.
        let wanted = self.address.name.as_ref().map(|name| match name.strip_prefix("iqn.") {
            Some(rest) => format!("nqn.{rest}"),
            None => name.clone(),
        });
        match (wanted, names.as_slice()) {
            (Some(nqn), names) if names.contains(&nqn.as_str()) => Ok(nqn),
            (Some(nqn), _) => Err(Why(format!(
                "the server lists no subsystem {nqn} for this host over {transport}"
            ))),
            (None, [only]) => Ok((*only).to_owned()),
            (None, []) => {
                Err(Why(format!("the server lists no subsystem for this host over {transport}")))
            }
            (None, names) => Err(Why(format!(
                "the address names no subsystem, and there are several: {}",
                names.join(", ")
            ))),
        }
    }

    /// The namespace that is named, if one is.
    fn nsid(&self) -> Option<u32> {
        let is_lun = self.address.name.as_ref().is_some_and(|name| !name.starts_with("nqn."));
        // lunet numbers namespaces from 1 on, in the order of the LUNs.
        self.address.unit.map(|unit| if is_lun { unit + 1 } else { unit })
    }

    fn namespace(
        &self,
        transport: Transport,
        nqn: &str,
        nsid: Option<u32>,
        portal: &Portal,
    ) -> Result<(nvme::Namespace, Identity), Why> {
        let url = format!("{}://{}/{nqn}", transport.scheme(), portal.place());
        let mut target = nvme::Target::parse(&url)?;
        target.nsid = nsid;
        let secret = |text: &Option<Zeroizing<String>>| {
            text.as_ref().map(|text| nvme::Secret::parse(nvme::Purpose::DhChap, text)).transpose()
        };
        target.secret = secret(&self.secrets.host)?;
        target.controller_secret = secret(&self.secrets.controller)?;
        target.tls_key = self.secrets.tls.as_deref().map(|text| tls_key(text)).transpose()?;
        nvme::identify(&target, &self.nvme_login()).map_err(|error| match error {
            nvme::Error::Authentication(host) => Why(format!(
                "{nqn} wants the host {host} to authenticate: give its secret of DH-HMAC-CHAP (DHHC-1:...) by --secret-file FILE"
            )),
            nvme::Error::HostRefused(host) => Why(format!(
                "{nqn} does not let the host {host} in: allow it there, at lunet by `lunet target allow TARGET {host}`"
            )),
            error => error.into(),
        })
    }
}

/// Asks all portals at a time; the answers in their order.
fn each<T: Send>(
    portals: &[Portal],
    ask: impl Fn(&Portal) -> Result<T, Why> + Sync,
) -> Vec<Result<T, Why>> {
    let ask = &ask;
    thread::scope(|scope| {
        let asked: Vec<_> = portals.iter().map(|portal| scope.spawn(move || ask(portal))).collect();
        let failed = |_| Err(Why("the look at it failed".to_owned()));
        asked.into_iter().map(|answer| answer.join().unwrap_or_else(failed)).collect()
    })
}

/// Leaves each portal once: one that is listed in two portal groups, or under two names, is one way to the disk.
fn once(portals: &mut Vec<Portal>) {
    let mut seen = Vec::new();
    portals.retain(|portal| {
        let place = (portal.address.clone(), portal.port);
        let is_new = !seen.contains(&place);
        seen.push(place);
        is_new
    });
}

/// Why an address that a server lists is not one of its own for this machine. Loopback is, if that is what was asked for.
fn no_address(address: &str, loopback: bool) -> Option<&'static str> {
    match ip(address) {
        None => Some("it is no IP address"),
        Some(ip) if ip.is_unspecified() => Some("it is the unspecified address"),
        Some(ip) if ip.is_multicast() || ip == Ipv4Addr::BROADCAST => {
            Some("it is the address of many machines")
        }
        Some(ip) if ip.is_loopback() && !loopback => {
            Some("it is this machine's own, and another one was named")
        }
        Some(_) => None,
    }
}

/// An IP address without its interface.
fn ip(text: &str) -> Option<IpAddr> {
    let (address, _) = text.split_once('%').unwrap_or((text, ""));
    Some(address.parse::<IpAddr>().ok()?.to_canonical())
}

/// An IP address as this program writes it: IPv6 has several texts for one, and for those of IPv4.
fn usual(text: &str) -> String {
    match (ip(text), text.split_once('%')) {
        (Some(ip), Some((_, scope))) => format!("{ip}%{scope}"),
        (Some(ip), None) => ip.to_string(),
        (None, _) => text.to_owned(),
    }
}

/// Takes away the portals that are more than are used, and says so.
fn too_many(portals: &mut Vec<Portal>) -> Vec<(String, String)> {
    let more = portals.split_off(portals.len().min(MOST_PORTALS));
    let why = format!("there are more than {MOST_PORTALS}");
    more.iter().map(|portal| (portal.place(), why.clone())).collect()
}

fn tls_key(text: &str) -> Result<nvme::Secret, Why> {
    Ok(nvme::Secret::parse(nvme::Purpose::Tls, text)?)
}

/// What to do about a refusal.
fn not_let_in(error: iscsi::Error, login: &iscsi::Login) -> Why {
    let name = &login.initiator_name;
    let is_refusal = matches!(error, iscsi::Error::Refused(_));
    let Why(mut text) = error.into();
    if is_refusal {
        text += &format!(
            "; this machine is {name}, which the target has to let in (at lunet: `lunet target allow TARGET {name}`), and with CHAP \
             the user is in the address (USER@HOST) and its secret in --secret-file FILE"
        );
    }
    Why(text)
}

fn of_unit(unit: iscsi::LogicalUnit, identity: Identity) -> Disk {
    Disk {
        bytes: unit.bytes(),
        vendor: unit.vendor,
        product: unit.product,
        block_bytes: unit.block_size,
        read_only: unit.read_only,
        names: identity.names,
    }
}

fn of_namespace(namespace: &nvme::Namespace, identity: Identity) -> Disk {
    Disk {
        vendor: String::new(),
        product: namespace.model.clone(),
        bytes: namespace.bytes(),
        block_bytes: namespace.block_size,
        read_only: namespace.read_only,
        names: identity.names,
    }
}

/// What others than this machine have reserved.
fn of_others(claims: &Claims, own: &str) -> Vec<String> {
    if let Some(why) = &claims.unknown {
        return vec![format!("whether other hosts have reserved the disk cannot be seen: {why}")];
    }
    let others = claims.registrants.iter().filter(|registrant| {
        registrant.who.as_deref().is_none_or(|who| !who.eq_ignore_ascii_case(own))
    });
    let said = |registrant: &Registrant| {
        let who = registrant.who.as_deref().unwrap_or("that the disk does not name");
        let key = registrant.key;
        match claims.kind.filter(|_| registrant.holds) {
            Some(kind) => format!("the host {who} has reserved the disk ({kind}, key {key:#x})"),
            None => format!("the host {who} is registered for reservations of it (key {key:#x})"),
        }
    };
    let all: Vec<String> = others.map(said).collect();
    if let Some(kind) = claims.kind.filter(|_| all.is_empty() && claims.registrants.is_empty()) {
        return vec![format!("a host that the disk does not name has reserved it ({kind})")];
    }
    all
}

/// The addresses of a host; those that are valid on one interface only with that (RFC 4007 section 11).
fn addresses(host: &str, port: u16) -> Vec<(String, u16)> {
    let named = host.split_once('%').map(|(_, scope)| scope);
    let text = |address: SocketAddr| match address {
        SocketAddr::V6(address) if address.scope_id() != 0 => {
            let number = address.scope_id().to_string();
            format!("{}%{}", address.ip(), named.unwrap_or(&number))
        }
        address => address.ip().to_canonical().to_string(),
    };
    let found = (host, port).to_socket_addrs().into_iter().flatten();
    found.map(|address| (text(address), port)).filter(|(text, _)| is_word(text)).collect()
}

/// A portal as it is reached from here: a server lists its link-local addresses without the interface of this machine.
fn in_scope(portal: Portal, host: &str) -> Portal {
    let is_local =
        |text: &str| text.parse().is_ok_and(|address: Ipv6Addr| address.is_unicast_link_local());
    match host.split_once('%') {
        Some((_, scope)) if is_local(&portal.address) => {
            Portal { address: format!("{}%{scope}", portal.address), ..portal }
        }
        _ => portal,
    }
}

/// Whether an address is a word of files and commands.
fn is_word(address: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".:-_%".contains(c);
    !address.is_empty() && address.chars().all(plain)
}

/// `192.0.2.10:3260,1`, `[2001:db8::1]:4420`
fn portal(text: &str) -> Option<Portal> {
    let (place, tag) = match text.rsplit_once(',') {
        Some((place, tag)) => (place, Some(tag.parse().ok()?)),
        None => (text, None),
    };
    let (address, port) = place.rsplit_once(':')?;
    let address = address.trim_start_matches('[').trim_end_matches(']');
    is_word(address)
        .then(|| Some(Portal { address: usual(address), port: port.parse().ok()?, tag }))?
}

/// The bytes of a UUID.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_read_as_targets_write_them() {
        let made = |address: &str, port, tag| Some(Portal { address: address.into(), port, tag });
        assert_eq!(portal("192.0.2.10:3260,1"), made("192.0.2.10", 3260, Some(1)));
        assert_eq!(portal("[2001:db8::1]:4420"), made("2001:db8::1", 4420, None));
        assert_eq!(portal("a b:3260,1"), None);
        assert_eq!(portal("host;rm:3260,1"), None);
        assert_eq!(portal("192.0.2.10"), None);
    }

    #[test]
    fn a_server_whose_name_is_none_is_told_before_what_this_machine_lacks() {
        let find = |url: &str| find(&Address::parse(url).expect("an address"), &mut |_| ());
        assert_eq!(find("127.0.0.1"), Ok(()));
        // Longer than a label of a name may be: nobody is asked for it.
        let none = "x".repeat(64);
        let Fault(told) = find(&none).expect_err("no name");
        let (start, how) =
            (format!("no server is known by the name {none} ("), "iscsi://HOST[:PORT]");
        assert!(told.starts_with(&start) && told.contains(how), "{told}");
    }

    #[test]
    fn portals_that_are_too_many_are_told() {
        let portal = |port| Portal { address: "192.0.2.1".into(), port, tag: Some(1) };
        let mut portals: Vec<Portal> = (1..=10).map(portal).collect();
        let told = too_many(&mut portals);
        assert_eq!((portals.len(), told.len()), (8, 2));
        assert_eq!(told[0], ("192.0.2.1:9".to_owned(), "there are more than 8".to_owned()));
        assert_eq!((too_many(&mut portals), portals.len()), (Vec::new(), 8));
    }

    /// Portals that are asked of an address, and those that are passed over.
    fn asked(url: &str, more: &[&str], listed: &[&str]) -> (Vec<String>, Vec<String>) {
        let address = Address::parse(url).expect("an address");
        let add = |address: Address, text: &&str| address.with_portal(text).expect("a portal");
        let address = more.iter().fold(address, add);
        let asked = Asked { address, host: Host::default(), secrets: Secrets::default() };
        let own = asked.own_portal(3260);
        let (portals, passed) = asked.portals(listed.iter().copied(), &own, 3260, Some(1));
        let places = portals.iter().map(Portal::place).collect();
        (places, passed.into_iter().map(|(place, _)| place).collect())
    }

    #[test]
    fn a_portal_is_one_path_however_often_it_is_named() {
        let listed = ["192.0.2.2:3260,1", "192.0.2.1:3260,1", "192.0.2.1:3260,2"];
        let own_first = ["192.0.2.1:3260".to_owned(), "192.0.2.2:3260".to_owned()];
        assert_eq!(asked("iscsi://192.0.2.1", &[], &listed).0, own_first);
        assert_eq!(asked("iscsi://192.0.2.1", &["192.0.2.2"], &listed).0, own_first);
        let mapped = ["192.0.2.1:3260,1", "[::ffff:192.0.2.1]:3260,2"];
        assert_eq!(asked("iscsi://192.0.2.1", &[], &mapped).0, ["192.0.2.1:3260"]);
        let six = ["[fd00::1]:3260,1", "[fd00:0:0:0::1]:3260,2"];
        assert_eq!(asked("iscsi://[fd00::0:1]", &["[fd00::1]"], &six).0, ["[fd00::1]:3260"]);
        let ports = ["192.0.2.1:3260,1", "192.0.2.1:3261,1"];
        assert_eq!(asked("iscsi://192.0.2.1", &[], &ports).0.len(), 2);
    }

    #[test]
    fn addresses_that_are_no_servers_are_passed_over() {
        let odd = [
            "0.0.0.0:3260,1",
            "[::]:3260,1",
            "224.0.0.1:3260,1",
            "[ff02::1]:3260,1",
            "255.255.255.255:3260,1",
            "[::ffff:0.0.0.0]:3260,1",
            "localhost:3260,1",
        ];
        let (portals, passed) = asked("iscsi://192.0.2.1", &[], &odd);
        assert_eq!((portals.len(), passed.len()), (0, odd.len()));
        let own = ["127.0.0.1:3260,1", "[::1]:3260,1", "192.0.2.1:3260,1"];
        assert_eq!(asked("iscsi://192.0.2.1", &[], &own).0, ["192.0.2.1:3260"]);
        assert_eq!(asked("iscsi://127.0.0.1", &[], &own).0.len(), 3);
        let (_, shown) = asked("iscsi://192.0.2.1", &[], &["a\u{1b}[2Jb:3260,1"]);
        assert_eq!(shown, ["a?[2Jb:3260,1"]);
    }

    #[test]
    fn answers_that_take_long_are_told_and_then_given_up() {
        let soon = Duration::from_millis(20);
        let mut told = Vec::new();
        let mut tell = |text: &str| told.push(text.to_owned());
        let slow = Answer::of(|| thread::park_timeout(Duration::from_secs(3600)));
        let given_up = slow.within(Instant::now(), soon, "192.0.2.1 over iSCSI", &mut tell);
        let Err(Why(why)) = given_up else { panic!("it answered") };
        assert!(why.contains("192.0.2.1 over iSCSI did not give all its answers"), "{why}");
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("waiting for the answers of 192.0.2.1"), "{told:?}");
        let quick = Answer::of(|| 7).within(Instant::now(), WHOLE, "it", &mut |_| ());
        assert!(matches!(quick, Ok(7)));
    }

    #[test]
    fn advice_about_access_follows_a_refusal_of_access_alone() {
        let login = iscsi::Login::default();
        let advised = |error| not_let_in(error, &login).0.contains("has to let in");
        assert!(advised(iscsi::Error::Refused("no".to_owned())));
        assert!(!advised(iscsi::Error::Busy("try again later".to_owned())));
    }

    #[test]
    fn link_local_addresses_keep_their_interface() {
        let on = |host: &str| addresses(host, 1).into_iter().map(|(text, _)| text).collect();
        let found: Vec<String> = on("fe80::1%lo");
        assert_eq!(found, ["fe80::1%lo"]);
        let found: Vec<String> = on("fe80::1%l'o");
        assert_eq!(found, [""; 0]);
        let listed = |text: &str| in_scope(portal(text).expect("a portal"), "fe80::1%lo").address;
        assert_eq!(listed("[fe80::2]:3260,1"), "fe80::2%lo");
        assert_eq!(listed("[2001:db8::1]:3260,1"), "2001:db8::1");
        assert_eq!(listed("192.0.2.1:3260,1"), "192.0.2.1");
    }

    #[test]
    fn a_host_identifier_has_the_order_of_its_digits() {
        let id = uuid("0f01fb42-9f7f-4856-b0b3-51e60b8de349\n").expect("it is one");
        assert_eq!((id[0], id[15]), (0x0f, 0x49));
        assert_eq!(uuid("0f01"), None);
    }

    #[test]
    fn reservations_of_this_machine_are_no_news() {
        let registrant = |who: &str, holds| Registrant {
            who: (!who.is_empty()).then(|| who.to_owned()),
            key: 0x1a,
            holds,
        };
        let of = |kind, registrants| of_others(&Claims { kind, registrants, unknown: None }, "me");
        assert_eq!(of(None, vec![]), [""; 0]);
        assert_eq!(of(Some("write exclusive"), vec![registrant("ME", true)]), [""; 0]);
        let others = vec![registrant("me", false), registrant("it", true), registrant("", false)];
        let wanted = [
            "the host it has reserved the disk (exclusive access, key 0x1a)",
            "the host that the disk does not name is registered for reservations of it (key 0x1a)",
        ];
        assert_eq!(of(Some("exclusive access"), others), wanted);
        let held = "the host it is registered for reservations of it (key 0x1a)";
        assert_eq!(of(None, vec![registrant("it", true)]), [held]);
        assert_eq!(of(Some("write exclusive"), vec![]).len(), 1);
        assert!(of_others(&Claims::unknown("BUSY"), "me")[0].ends_with("cannot be seen: BUSY"));
    }

    #[test]
    fn a_disk_is_known_by_a_name_that_both_have() {
        let disk = |bytes, names: &[&str]| Disk {
            bytes,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Disk::default()
        };
        let one = disk(1, &["naa.1", "eui.1"]);
        assert!(one.is(&disk(1, &["eui.1"])));
        for other in [disk(1, &["naa.2"]), disk(2, &["naa.1"]), disk(1, &[])] {
            assert!(!one.is(&other), "{other:?}");
        }
        assert!(!disk(1, &[]).is(&disk(1, &[])));
    }
}
