//! Cards and wires: PCIe, Ethernet and what runs on them; and a single session.

use super::Layer;
use crate::expr::rate;
use crate::facts::{Facts, Nic, Pcie, Rdma, rdma_used, storage_nics};

/// Data of a PCIe packet, if nobody knows: what servers are set to.
const USUAL_PAYLOAD: i64 = 256;
/// Header, sequence number, framing and checksum of a PCIe packet: 5 to 7 words of 4 bytes (Intel
/// AN 708); with addresses of 64 bits 6 from generation 3 on, 7 before.
const PACKET_OVERHEAD: f64 = 24.0;
/// A card asks for what it sends: a request of 24 bytes for each 512 bytes.
const READ_REQUEST: f64 = 24.0 / 512.0;
/// What acknowledgements and flow control leave of a link: they take 8 to 10 %.
const LINK_LAYER: f64 = 0.9;
/// Preamble, header, checksum and gap of an Ethernet frame.
const ETHERNET: f64 = 38.0;
/// IP and TCP with timestamps.
const IP_TCP: f64 = 52.0;
/// IP, UDP, the transport header and checksum of RoCE v2.
const ROCE: f64 = 20.0 + 8.0 + 12.0 + 4.0;
/// A target's time for a request of 128 KiB under load, in seconds.
const SERVICE: f64 = 1e-3;
/// A request of the recipe's measurement.
const REQUEST: f64 = 131_072.0;

/// What a PCIe link carries of data in one direction while the other one is as busy.
pub(super) struct Payload {
    pub rate: f64,
    pub steps: String,
}

pub(super) fn pcie_payload(pcie: &Pcie) -> Option<Payload> {
    let raw = pcie.bytes_per_second? as f64;
    let payload = pcie.max_payload_bytes.unwrap_or(USUAL_PAYLOAD) as f64;
    let share = payload / (payload + PACKET_OVERHEAD + payload * READ_REQUEST);
    let rate_ = raw * LINK_LAYER * share;
    let lanes = match (pcie.generation, pcie.width) {
        (Some(generation), Some(width)) => format!("PCIe {generation}.0 x{width}"),
        _ => "PCIe".to_owned(),
    };
    let steps = format!(
        "{lanes} carries {} after line coding; 10 % are acknowledgements and flow control; \
         packets of {payload} bytes have {PACKET_OVERHEAD} bytes of header, and each 512 bytes that \
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

/// The slots of the cards. Ports of one card share its slot.
pub(super) fn cards(facts: &Facts) -> Vec<Layer> {
    let mut slots: Vec<(&str, Layer)> = Vec::new();
    for nic in busy(facts) {
        let Some(pcie) = &nic.pcie else { continue };
        let slot = pcie.address.split('.').next().unwrap_or(&pcie.address);
        if slots.iter().any(|(known, _)| *known == slot) {
            continue;
        }
        let mut layer = Layer::new(format!("PCIe of {}", nic.name));
        match pcie_payload(pcie) {
            Some(payload) => {
                layer.step(payload.steps);
                if pcie.max_payload_bytes.is_none() {
                    layer.step(format!(
                        "Packets of {USUAL_PAYLOAD} bytes are assumed: only root sees it."
                    ));
                }
                layer.each_way(payload.rate);
            }
            None => layer.missing = Some(format!("the PCIe link of {}", nic.name)),
        }
        slots.push((slot, layer));
    }
    slots.into_iter().map(|(_, layer)| layer).collect()
}

/// The wires, all of them together.
pub(super) fn wires(facts: &Facts) -> Vec<Layer> {
    let mut layer = Layer::new("network");
    let mut sum = 0.0;
    for nic in busy(facts) {
        let Some(speed) = nic.speed_mbit else { continue };
        let wire = speed as f64 * 125_000.0;
        let (share, how) = overhead(facts, nic);
        sum += wire * share;
        layer.step(format!(
            "{}: {} Gbit/s = {}; {how}: {:.1} % are data: {}.",
            nic.name,
            speed as f64 / 1000.0,
            rate(wire),
            share * 100.0,
            bits(wire * share)
        ));
    }
    match sum > 0.0 {
        true => layer.each_way(sum),
        false => layer.missing = Some("an interface with a link and its speed".to_owned()),
    }
    vec![layer]
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

/// What one session moves: as many requests as it may have waiting, each for its time.
pub(super) fn one_session(facts: &Facts) -> Layer {
    let mut layer = Layer::new("one session");
    layer.one_session = true;
    let depths = facts.targets.iter().flat_map(|target| {
        target.sessions.iter().map(|session| session.queue_depth).chain([target.queue_depth])
    });
    let own = facts.initiators.open_iscsi.iter().flat_map(|open| &open.sessions);
    let own = own.flat_map(|session| session.disks.iter().map(|disk| disk.queue_depth));
    match depths.chain(own).flatten().min() {
        Some(depth) => {
            let moved = depth as f64 * REQUEST / SERVICE;
            layer.step(format!(
                "{depth} commands at once, each of 128 KiB and 1 ms (what drives and target take \
                 under such a load; measure it): {depth} x 128 KiB / 1 ms = {}. More commands or \
                 more sessions give more.",
                rate(moved)
            ));
            layer.each_way(moved);
        }
        None => layer.missing = Some("the queue depth of a target or session".to_owned()),
    }
    layer
}
