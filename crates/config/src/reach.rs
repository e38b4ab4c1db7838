//! What a configuration says and nobody can reach. That is no mistake, because a portal may be added by command, but it
//! should be known.

use std::net::SocketAddr;

use lunet_front_nvme::Tls;

use super::mistake::Mistakes;
use super::nvme::{DISCOVERY_PORT, Subsystem};
use super::reader::{At, Section};
use super::sections::Listening;
use super::targets::Named;
use super::{Host, Hosts, Portal};

/// Hosts that a note names; the others are counted.
const NAMED: usize = 3;

impl Portal {
    /// True if it leads only to subsystems that name it: its port is that of discovery.
    pub fn is_for_discovery(&self) -> bool {
        is_for_discovery(self.address)
    }
}

/// True for the address of a portal that leads only to subsystems that name it.
pub fn is_for_discovery(address: SocketAddr) -> bool {
    address.port() == DISCOVERY_PORT
}

/// The portals of a target, which needs one for iSCSI.
pub(super) fn target(
    table: &Section<'_>,
    named: &Named,
    portals: &Listening,
    mistakes: &mut Mistakes,
) {
    let key = table.key("portals");
    let at = table.raw("portals").map_or(table.offset, |value| value.span().start);
    if named.iscsi.is_empty() && !named.nvme.is_empty() {
        let text = "names no portal for iSCSI, which a target needs: what is for NVMe alone is a [[subsystem]]";
        mistakes.add(at, key, text);
    } else if portals.are_for_nvme_alone() {
        let text = "is served over no portal for iSCSI: all are for NVMe; add a [[portal]] without it, or \
                    make it a [[subsystem]]";
        mistakes.note(table.offset, table.path.clone(), text);
    }
}

/// Notes a portal for NVMe that a target names, which is served over iSCSI alone.
pub(super) fn without_effect(
    table: &Section<'_>,
    named: &Named,
    portals: &Listening,
    mistakes: &mut Mistakes,
) {
    let (Some(value), Some(at), false) =
        (table.raw("portals"), named.nvme.first(), named.iscsi.is_empty())
    else {
        return;
    };
    let address = portals.nvme[*at].value.address;
    let text = format!(
        "has {address}, which is for NVMe, and has no effect: \"nvme\" is not among the `protocols` of this target"
    );
    mistakes.note(value.span().start, table.key("portals"), text);
}

/// Notes subsystems, and hosts of them, that no portal leads to, or that none lets in.
pub(super) fn subsystems(all: &[At<Subsystem>], portals: &Listening, mistakes: &mut Mistakes) {
    // Without any, there is the one that is opened by default.
    if portals.iscsi.is_empty() && portals.nvme.is_empty() {
        return;
    }
    for At { offset, value } in all {
        let leading: Vec<&Portal> = leading(value, portals).collect();
        let nqn = value.nqn.clone();
        if portals.nvme.is_empty() {
            let text =
                "is served over no portal: none has the transport \"nvme-tcp\" or \"nvme-rdma\"";
            mistakes.note(*offset, nqn, text);
        } else if leading.is_empty() {
            let text = format!(
                "no host can connect: every portal for NVMe has port {DISCOVERY_PORT}, the port of discovery, which leads to \
                 no subsystem that does not name it; add a [[portal]] with another port, such as 4420, or name one in `portals`"
            );
            mistakes.note(*offset, nqn, text);
        } else if leading.iter().all(|portal| portal.tls == Tls::Off) {
            keys_without_use(value, mistakes);
        } else if leading.iter().all(|portal| portal.tls == Tls::Required) {
            let text = without_keys(&value.hosts);
            text.into_iter().for_each(|text| mistakes.note(*offset, nqn.clone(), text));
        }
    }
}

/// The portals by which hosts reach a subsystem.
pub(super) fn leading<'p>(
    subsystem: &'p Subsystem,
    portals: &'p Listening,
) -> impl Iterator<Item = &'p Portal> {
    let all = portals.nvme.iter().map(|portal| &portal.value).enumerate();
    let leads = |(at, portal): &(usize, &Portal)| match subsystem.portals.is_empty() {
        true => !portal.is_for_discovery(),
        false => subsystem.portals.contains(at),
    };
    all.filter(leads).map(|(_, portal)| portal)
}

/// Every portal has TLS off.
fn keys_without_use(subsystem: &Subsystem, mistakes: &mut Mistakes) {
    let nqn = &subsystem.nqn;
    for host in subsystem.hosts.named() {
        let Some(key) = &host.tls_key else { continue };
        let text = match host.tls_required {
            true => format!(
                "{} cannot connect: it has to use TLS, and every portal that leads to {nqn} has tls = \"off\"",
                host.nqn
            ),
            false => {
                format!("has no effect: every portal that leads to {nqn} has tls = \"off\"")
            }
        };
        mistakes.note_of(key.mistake(text));
    }
}

/// Who cannot connect where every portal requires TLS.
fn without_keys(hosts: &Hosts) -> Option<String> {
    let why = "every portal that leads to it has tls = \"required\"";
    let Hosts::Named(hosts) = hosts else {
        return Some(format!(
            "no host can connect: {why}, and only hosts with a tls-key-file have TLS; name them in `hosts`"
        ));
    };
    let without = |host: &&Host| host.tls_key.is_none();
    let names: Vec<&str> = hosts.iter().filter(without).map(|host| host.nqn.as_str()).collect();
    let more = match names.len() {
        0 => return None,
        n if n > NAMED => format!(" and {} more", n - NAMED),
        _ => String::new(),
    };
    let names = names[..names.len().min(NAMED)].join(", ");
    Some(format!("{names}{more} cannot connect: {why}; give the host a tls-key-file"))
}
