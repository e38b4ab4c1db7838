//! Cards and wires: PCIe, Ethernet and what runs on them; and a single session.

use super::assumed::{Assumption, Level};
use super::{Kind, Layer, View};
use crate::expr::rate;
use crate::facts::{Facts, Nic, Pcie, Rdma, rdma_used, storage_nics};

/// Data of a PCIe packet, if nobody knows: what servers are set to.
const USUAL_PAYLOAD: f64 = 256.0;
/// A card asks for what it sends: a request of 24 bytes for each 512 bytes.
const READ_REQUEST: f64 = 24.0 / 512.0;
/// Preamble, header, checksum and gap of an Ethernet frame.
const ETHERNET: f64 = 38.0;
/// IP and TCP with timestamps.
const IP_TCP: f64 = 52.0;
/// IP, UDP, the transport header and checksum of RoCE v2.
const ROCE: f64 = 20.0 + 8.0 + 12.0 + 4.0;
/// A request of the recipe's measurement.
const REQUEST: f64 = 131_072.0;

/// What a PCIe link carries of data in one direction while the other one is as busy.
pub(super) struct Payload {
    pub rate: f64,
    pub steps: String,
}

pub(super) fn pcie_payload(pcie: &Pcie, level: Level) -> Option<Payload> {
    let raw = pcie.bytes_per_second? as f64;
    let unseen = level.of(128.0, USUAL_PAYLOAD, 512.0);
    let payload = pcie.max_payload_bytes.map_or(unseen, |bytes| bytes as f64);
    // Header, sequence number, framing and checksum of a packet: 5 to 7 words of 4 bytes (Intel AN 708); with
    // addresses of 64 bits 6 from generation 3 on, 7 before.
    let header = level.of(28.0, 24.0, 20.0);
    let share = payload / (payload + header + payload * READ_REQUEST);
    // Acknowledgements and flow control take 8 to 10 %.
    let rate_ = raw * level.of(0.9, 0.9, 0.92) * share;
    let lanes = match (pcie.generation, pcie.width) {
        (Some(generation), Some(width)) => format!("PCIe {generation}.0 x{width}"),
        _ => "PCIe".to_owned(),
    };
    let steps = format!(
        "{lanes} carries {} after line coding; 10 % are acknowledgements and flow control; \
         packets of {payload} bytes have {header} bytes of header, and each 512 bytes that \
         the card fetches cost a request of 24: {:.1} % of the rest are data: {}.",
        rate(raw),
        share * 100.0,
        bits(rate_),
    );
    Some(Payload { rate: rate_, steps })
}

/// Bytes per second, in bits as well.
fn bits(rate_: f64) -> String {
    format!("{} = {:.1} Gbit/s", rate(rate_), rate_ * 8.0 / 1e9)
}

pub(super) fn busy(facts: &Facts) -> impl Iterator<Item = &Nic> {
    storage_nics(facts).into_iter().filter(|nic| nic.carrier == Some(true))
}

/// A card and its ports that carry storage.
struct Card<'a> {
    slot: &'a str,
    ports: Vec<&'a Nic>,
}

/// The slots of the cards. Ports of one card share its slot; several cards carry together.
pub(super) fn cards(view: &View<'_>) -> Option<Layer> {
    let mut cards: Vec<Card<'_>> = Vec::new();
    for nic in busy(view.facts) {
        let Some(pcie) = &nic.pcie else { continue };
        let slot = pcie.address.split('.').next().unwrap_or(&pcie.address);
        match cards.iter_mut().find(|card| card.slot == slot) {
            Some(card) => card.ports.push(nic),
            None => cards.push(Card { slot, ports: vec![nic] }),
        }
    }
    let names: Vec<&str> = cards.iter().map(|card| card.ports[0].name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let mut layer = Layer::new(Kind::Pcie, format!("PCIe of {}", names.join(" and ")));
    let (mut slots, mut usable) = (0.0, 0.0);
    let (mut narrow, mut wide) = (false, false);
    for card in &cards {
        let nic = card.ports[0];
        let pcie = nic.pcie.as_ref();
        let payload =
            pcie.and_then(|pcie| pcie_payload(pcie, view.assumed.level(Assumption::Pcie)));
        let Some(payload) = payload else {
            layer.missing = Some(format!("the PCIe link of {}", nic.name));
            return Some(layer);
        };
        let name = if cards.len() > 1 { format!("{}: ", nic.name) } else { String::new() };
        layer.step(name + &payload.steps);
        if pcie.is_some_and(|pcie| pcie.max_payload_bytes.is_none()) {
            layer.step(format!("Packets of {USUAL_PAYLOAD} bytes are assumed: only root sees it."));
        }
        let wires: f64 = card.ports.iter().filter_map(|nic| wire(view, nic)).map(|w| w.data).sum();
        slots += payload.rate;
        usable += if wires > 0.0 { wires.min(payload.rate) } else { payload.rate };
        narrow |= payload.rate < wires;
        wide |= payload.rate >= wires;
    }
    // Where one card's slot binds and another one's ports, neither all slots nor all ports are the measure.
    let together = if narrow && wide { usable } else { slots };
    if cards.len() > 1 {
        layer.step(format!("All {} cards together: {}.", cards.len(), bits(together)));
    }
    layer.each_way(together);
    Some(layer)
}

/// What a link carries.
struct Wire<'a> {
    /// The interface that joins it with others, and how.
    bond: Option<(&'a str, &'a str)>,
    /// Data, in bytes per second.
    data: f64,
    how: String,
}

fn wire<'a>(view: &View<'a>, nic: &'a Nic) -> Option<Wire<'a>> {
    let speed = nic.speed_mbit? as f64;
    let whole = speed * 125_000.0;
    let (share, how) = overhead(view.facts, nic);
    let data = whole * share * view.assumed.level(Assumption::Wire).of(0.98, 1.0, 1.0);
    let how = format!(
        "{}: {} Gbit/s = {}; {how}: {:.1} % are data: {}",
        nic.name,
        speed / 1000.0,
        rate(whole),
        share * 100.0,
        bits(data)
    );
    let master = nic.master.as_ref().and_then(|name| named(view.facts, name));
    let bond = master.and_then(|master| Some((master.name.as_str(), master.bond_mode.as_deref()?)));
    Some(Wire { bond, data, how })
}

fn named<'a>(facts: &'a Facts, name: &str) -> Option<&'a Nic> {
    facts.nics.iter().find(|nic| nic.name == name)
}

/// Links that are one to those above: a bond's, or a single one.
struct Path<'a> {
    links: Vec<Wire<'a>>,
}

impl Path<'_> {
    fn waits(&self) -> bool {
        self.links[0].bond.is_some_and(|(_, mode)| mode == "active-backup")
    }

    /// The fastest link: what one connection gets.
    fn one_link(&self) -> f64 {
        self.links.iter().map(|link| link.data).fold(0.0, f64::max)
    }

    /// What all connections get.
    fn all(&self, level: Level) -> f64 {
        if self.waits() {
            return self.one_link();
        }
        let sum = self.links.iter().map(|link| link.data).sum();
        level.of(self.one_link(), sum, sum)
    }
}

fn paths<'a>(view: &View<'a>) -> Vec<Path<'a>> {
    let mut paths: Vec<Path<'_>> = Vec::new();
    for link in busy(view.facts).filter_map(|nic| wire(view, nic)) {
        let same = |path: &&mut Path<'_>| link.bond.is_some() && path.links[0].bond == link.bond;
        match paths.iter_mut().find(same) {
            Some(path) => path.links.push(link),
            None => paths.push(Path { links: vec![link] }),
        }
    }
    paths
}

/// The wires, all of them together.
pub(super) fn wires(view: &View<'_>) -> Layer {
    let mut layer = Layer::new(Kind::Network, "network");
    let level = view.assumed.level(Assumption::Paths);
    let paths = paths(view);
    let mut sum = 0.0;
    for path in &paths {
        sum += path.all(level);
        for link in &path.links {
            layer.step(format!("{}.", link.how));
        }
        if let (Some((bond, _)), true, [_, _, ..]) =
            (path.links[0].bond, path.waits(), &path.links[..])
        {
            layer.step(format!("{bond} (active-backup) uses one of its links, the others wait."));
        }
    }
    if paths.len() > 1 {
        sum *= level.of(0.9, 1.0, 1.0);
    }
    match sum > 0.0 {
        true => layer.each_way(sum),
        false => layer.missing = Some("an interface with a link and its speed".to_owned()),
    }
    layer
}

/// The share of the wire that is data, and what the rest is.
fn overhead(facts: &Facts, nic: &Nic) -> (f64, String) {
    if let Some(mtu) = rdma_in_use(facts, nic).and_then(|rdma| rdma.mtu) {
        let mtu = mtu as f64;
        let share = mtu / (mtu + ROCE + ETHERNET);
        return (
            share,
            format!(
                "packets of {mtu} bytes have {ROCE} bytes of RoCE and IP headers and {ETHERNET} of Ethernet"
            ),
        );
    }
    let mtu = nic.mtu.unwrap_or(1500) as f64;
    // A PDU of 256 KiB has a header of 48 bytes.
    let pdu = 262_144.0 / (262_144.0 + 48.0);
    let share = (mtu - IP_TCP) / (mtu + ETHERNET) * pdu;
    (
        share,
        format!(
            "packets of {mtu} bytes have {IP_TCP} bytes of IP and TCP headers and {ETHERNET} of Ethernet, and iSCSI 48 in 256 KiB"
        ),
    )
}

/// The RDMA port of the interface, if RDMA is used at all.
fn rdma_in_use<'a>(facts: &'a Facts, nic: &Nic) -> Option<&'a Rdma> {
    let port = facts.rdma.iter().find(|port| port.netdev.as_deref() == Some(&nic.name));
    port.filter(|port| port.soft != Some(true) && rdma_used(facts))
}

/// The queue depth of one session: the least that is known.
fn depth(facts: &Facts) -> Option<f64> {
    let depths = facts.targets.iter().flat_map(|target| {
        target.sessions.iter().map(|session| session.queue_depth).chain([target.queue_depth])
    });
    let own = facts.initiators.open_iscsi.iter().flat_map(|open| &open.sessions);
    let own = own.flat_map(|session| session.disks.iter().map(|disk| disk.queue_depth));
    depths.chain(own).flatten().min().map(|depth| depth as f64)
}

/// What the requests move that a session may have waiting, each for its time.
fn waiting(view: &View<'_>, depth: f64) -> f64 {
    // A target's time for a request of 128 KiB under load, in seconds.
    let service = view.assumed.level(Assumption::Session).of(4e-3, 1e-3, 0.25e-3);
    depth * REQUEST / service
}

/// What one session moves: as many requests as it may have waiting, each for its time, over one link.
pub(super) fn one_session(view: &View<'_>) -> Layer {
    let mut layer = Layer::new(Kind::Session, "one session");
    let Some(depth) = depth(view.facts) else {
        layer.missing = Some("the queue depth of a target or session".to_owned());
        return layer;
    };
    let mut moved = waiting(view, depth);
    layer.step(format!(
        "{depth} commands at once, each of 128 KiB and 1 ms (what drives and target take under such \
         a load; measure it): {depth} x 128 KiB / 1 ms = {}. More commands or more sessions give \
         more.",
        rate(moved)
    ));
    let paths = paths(view);
    let link = paths.iter().map(Path::one_link).fold(0.0, f64::max);
    if link > 0.0 && link < moved {
        layer.step(format!("Its connection goes over one link: {}.", rate(link)));
        moved = link;
    }
    layer.each_way(moved);
    layer
}

/// What one host moves that has a session on each path, where there are several links.
pub(super) fn one_host(view: &View<'_>) -> Option<Layer> {
    let paths = paths(view);
    let links: usize = paths.iter().map(|path| path.links.len()).sum();
    let depth = depth(view.facts)?;
    if links < 2 {
        return None;
    }
    let mut layer = Layer::new(Kind::Host, "one host");
    let waiting = waiting(view, depth);
    let mut moved: f64 = paths.iter().map(|path| path.one_link().min(waiting)).sum();
    if paths.len() > 1 {
        moved *= view.assumed.level(Assumption::Paths).of(0.9, 1.0, 1.0);
    }
    layer.step(match paths.len() {
        1 => format!(
            "{links} links are joined to one (bond): a connection goes over one of them, and one \
             session moves {}. A host with several sessions may use the others, as the hash decides.",
            rate(moved)
        ),
        count => format!(
            "{count} paths with a session each, which multipath uses in turn: {} together.",
            rate(moved)
        ),
    });
    layer.each_way(moved);
    Some(layer)
}
