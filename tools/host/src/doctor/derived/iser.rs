//! Portals of lunet, and the RDMA port that could carry each.

use serde::Serialize;

use super::{nic_with, rdma_of};
use crate::facts::{Facts, Lunet, LunetPortal, Rdma};

#[derive(Serialize)]
pub(super) struct LunetPortalOf<'a> {
    lunet: &'a Lunet,
    portal: &'a LunetPortal,
    /// `10.0.0.1:3260`
    name: String,
    /// The RDMA port of the address; with all addresses of the machine, the best one.
    rdma: Option<&'a Rdma>,
    /// Whether RDMA could be served there by what is seen now: a link, and a GID for the address.
    carried: bool,
    loopback: bool,
    /// What RDMA would carry there: `iSER` or `NVMe over RDMA`.
    over: &'static str,
    /// Whether it does.
    served: Option<bool>,
    /// Whether the configuration names it, so that it is missed.
    wanted: Option<bool>,
}

/// The fields of [`LunetPortalOf`] that are no facts.
pub(super) const PLAIN: [&str; 6] = ["name", "carried", "loopback", "over", "served", "wanted"];

pub(super) fn lunet_portals(facts: &Facts) -> Vec<LunetPortalOf<'_>> {
    let all = facts.lunets.iter().flat_map(|lunet| lunet.portals.iter().map(move |p| (lunet, p)));
    all.map(|(lunet, portal)| {
        let ip = portal.address.parse::<std::net::IpAddr>();
        let carrier = facts.rdma.iter().find(|rdma| carries(rdma, &portal.address));
        let (over, served, wanted) = match portal.is_nvme() {
            true => ("NVMe over RDMA", portal.nvme_rdma, portal.nvme_rdma_wanted),
            false => ("iSER", portal.iser, portal.iser_wanted),
        };
        let near = || nic_with(facts, &portal.address).and_then(|nic| rdma_of(facts, nic));
        LunetPortalOf {
            lunet,
            portal,
            name: name(portal),
            rdma: carrier.or_else(near),
            carried: carrier.is_some(),
            loopback: ip.is_ok_and(|ip| ip.is_loopback()),
            over,
            served,
            wanted,
        }
    })
    .collect()
}

/// Whether the port has a link, and a GID for the address that connections can be made to.
fn carries(rdma: &Rdma, address: &str) -> bool {
    let any = ["0.0.0.0", "::", "*"].contains(&address);
    let ethernet = rdma.link_layer.as_deref() == Some("Ethernet");
    let usable = |kind: Option<&str>| !ethernet || kind == Some("RoCE v2");
    rdma.state.as_deref() == Some("ACTIVE")
        && rdma.gids.iter().any(|gid| {
            usable(gid.kind.as_deref()) && (any || gid.address.as_deref() == Some(address))
        })
}

fn name(portal: &LunetPortal) -> String {
    let port = portal.port.unwrap_or(if portal.is_nvme() { 4420 } else { 3260 });
    match portal.address.contains(':') {
        true => format!("[{}]:{port}", portal.address),
        false => format!("{}:{port}", portal.address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Gid;

    fn rdma(layer: &str, state: &str, kind: &str) -> Rdma {
        let gid = Gid {
            address: Some("10.0.0.1".to_owned()),
            kind: Some(kind.to_owned()),
            ..Gid::default()
        };
        Rdma {
            link_layer: Some(layer.to_owned()),
            state: Some(state.to_owned()),
            gids: vec![gid],
            ..Rdma::default()
        }
    }

    #[test]
    fn a_port_carries_an_address_that_it_has_a_gid_for() {
        let good = rdma("Ethernet", "ACTIVE", "RoCE v2");
        assert!(carries(&good, "10.0.0.1") && carries(&good, "0.0.0.0"));
        assert!(!carries(&good, "10.0.0.2"));
        assert!(!carries(&rdma("Ethernet", "DOWN", "RoCE v2"), "10.0.0.1"));
        assert!(!carries(&rdma("Ethernet", "ACTIVE", "IB/RoCE v1"), "10.0.0.1"));
        assert!(carries(&rdma("InfiniBand", "ACTIVE", "IB/RoCE v1"), "10.0.0.1"));
    }

    #[test]
    fn a_portal_that_only_an_unready_port_has_is_not_carried() {
        let portal =
            |address: &str| LunetPortal { address: address.to_owned(), ..Default::default() };
        let portals = vec![portal("10.0.0.1"), portal("fd00::1"), portal("127.0.0.1")];
        let mut facts = Facts::default();
        facts.lunets.push(Lunet { portals, ..Lunet::default() });
        facts.rdma.push(rdma("Ethernet", "DOWN", "RoCE v2"));
        let of = |facts: &Facts| {
            let all = lunet_portals(facts);
            all.iter().map(|p| (p.name.clone(), p.carried, p.loopback)).collect::<Vec<_>>()
        };
        let names = ["10.0.0.1:3260", "[fd00::1]:3260", "127.0.0.1:3260"].map(str::to_owned);
        let [a, b, c] = names;
        let none = [(a, false, false), (b, false, false), (c, false, true)];
        assert_eq!(of(&facts), none);
        facts.rdma[0].state = Some("ACTIVE".to_owned());
        assert_eq!(of(&facts).iter().filter(|(_, carried, _)| *carried).count(), 1);
    }
}
