//! What the server offers, asked by lunet's own initiators as this machine: nothing is changed at either end.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use lunet_client::{Claims, Identity, Registrant, iscsi, nvme};
use lunet_host::apply::Fault;
use lunet_iscsi::printable::printable;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::address::{Address, Transport, place};
use crate::host::Host;

/// For a connection, and for each answer.
const PATIENCE: Duration = Duration::from_secs(10);
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

/// Asks the server for what the address means, by each transport that is meant and that this machine has.
#[must_use]
pub fn look(address: &Address, host: &Host, secrets: &Secrets) -> Server {
    let mut server = Server::default();
    let asked = Asked { address, host, secrets };
    let tcp = asked.nvme_offers();
    for transport in Transport::ALL {
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
            true => asked.nvme(transport, &tcp),
            false => asked.iscsi(transport),
        };
        match found {
            Ok(offer) => server.offers.push(offer),
            Err(why) => server.refused.push((transport, why.0)),
        }
    }
    server
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
) -> Result<(Disk, Vec<String>), Fault> {
    let asked = Asked { address, host, secrets };
    asked.again(offer).map_err(|why| Fault(why.0))
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

struct Asked<'a> {
    address: &'a Address,
    host: &'a Host,
    secrets: &'a Secrets,
}

impl Asked<'_> {
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
        let mut portals: Vec<Portal> = of_it
            .flat_map(|offer| &offer.addresses)
            .filter_map(|text| Some(in_scope(portal(text)?, &self.address.host)))
            .collect();
        portals.sort_by_key(|portal| !own.contains(&(portal.address.clone(), portal.port)));
        portals.dedup();
        portals.extend(self.more(&portals, iscsi::PORT, Some(1)));
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
        offer.unusable = too_many(&mut portals);
        for portal in portals {
            let by =
                iscsi::Target { host: portal.address.clone(), port: portal.port, ..target.clone() };
            match iscsi::identify(&by, &login) {
                Ok((unit, identity)) => {
                    offer.portals.push(portal);
                    offer.disks.push(of_unit(unit, identity));
                }
                Err(error) => offer.unusable.push((portal.place(), Why::from(error).0)),
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

    /// Portals that are named besides those that are listed: one of each host.
    fn more(&self, listed: &[Portal], port: u16, tag: Option<u16>) -> Vec<Portal> {
        let first = |(host, own): &(String, Option<u16>)| {
            addresses(host, own.unwrap_or(port)).into_iter().next()
        };
        let named = self.address.more.iter().filter_map(first);
        let named = named.map(|(address, port)| Portal { address, port, tag });
        let is_new = |portal: &Portal| {
            listed.iter().all(|have| (&have.address, have.port) != (&portal.address, portal.port))
        };
        named.filter(is_new).collect()
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
        let mut portals: Vec<Portal> = listed
            .iter()
            .filter_map(|offer| Some(in_scope(portal(&offer.address)?, &self.address.host)))
            .collect();
        let own = self.own_portal(nvme::PORT);
        portals.sort_by_key(|portal| !own.contains(&(portal.address.clone(), portal.port)));
        portals.dedup();
        portals.extend(self.more(&portals, nvme::PORT, None));
        let mut found: Option<Offer> = None;
        let mut unusable = Vec::new();
        let beyond = too_many(&mut portals);
        for portal in portals {
            match self.namespace(transport, &nqn, self.nsid(), &portal) {
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
            (Some(offer), _) => Ok(Offer { unusable: [unusable, beyond].concat(), ..offer }),
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
    let kind = claims.kind.unwrap_or_default();
    let others = claims.registrants.iter().filter(|registrant| {
        registrant.who.as_deref().is_none_or(|who| !who.eq_ignore_ascii_case(own))
    });
    let said = |registrant: &Registrant| {
        let who = registrant.who.as_deref().unwrap_or("that the disk does not name");
        let key = registrant.key;
        match registrant.holds {
            true => format!("the host {who} has reserved the disk ({kind}, key {key:#x})"),
            false => format!("the host {who} is registered for reservations of it (key {key:#x})"),
        }
    };
    let all: Vec<String> = others.map(said).collect();
    if all.is_empty() && claims.kind.is_some() && claims.registrants.is_empty() {
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
        address => address.ip().to_string(),
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
        .then(|| Some(Portal { address: address.to_owned(), port: port.parse().ok()?, tag }))?
}

/// The bytes of a UUID.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use lunet_client::{Claims, Registrant};

    use super::{Disk, Portal, addresses, in_scope, of_others, portal, too_many, uuid};

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
    fn portals_that_are_too_many_are_told() {
        let portal = |port| Portal { address: "192.0.2.1".into(), port, tag: Some(1) };
        let mut portals: Vec<Portal> = (1..=10).map(portal).collect();
        let told = too_many(&mut portals);
        assert_eq!((portals.len(), told.len()), (8, 2));
        assert_eq!(told[0], ("192.0.2.1:9".to_owned(), "there are more than 8".to_owned()));
        assert_eq!((too_many(&mut portals), portals.len()), (Vec::new(), 8));
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
