//! Targets and subsystems that can be reached over a network, and say nothing of who may use them.

use std::net::SocketAddr;

use lunet_server::interfaces;

use lunet_config::{Config, Hosts, Portal, Reach, Subsystem, Target, is_for_discovery};

/// The addresses in use, in the order of the configuration: for iSCSI, and for NVMe.
pub type Addresses<'a> = (&'a [SocketAddr], &'a [SocketAddr]);

/// A sentence for each target and subsystem that other machines can reach, or could, and that names nobody who may use it.
pub fn warnings(config: &Config, (portals, nvme): Addresses<'_>) -> Vec<String> {
    let targets = config.targets.iter().filter_map(|target| warning(target, portals));
    let subsystems = config.nvme.subsystems.iter();
    targets.chain(subsystems.filter_map(|subsystem| warning_of(subsystem, nvme))).collect()
}

/// The same for those whose reach is not what it was, and for all if there is a new portal that other machines
/// may reach.
pub fn news(old: &Config, new: &Config) -> Vec<String> {
    let addresses = |portals: &[Portal]| -> Vec<SocketAddr> {
        portals.iter().map(|portal| portal.address).collect()
    };
    let portals = addresses(&new.portals);
    let before = |target: &Target| old.targets.iter().find(|other| other.name == target.name);
    let is_fresh = |old: &[SocketAddr], new: &[SocketAddr]| {
        new.iter().any(|one| !one.ip().is_loopback() && !old.contains(one))
    };
    let fresh = is_fresh(&addresses(&old.portals), &portals);
    let changed =
        |target: &&Target| fresh || before(target).map(Target::reach) != Some(target.reach());
    let targets = new.targets.iter().filter(changed);
    let targets = targets.filter_map(|target| warning(target, &portals));
    let nvme = addresses(&new.nvme.portals);
    let fresh = is_fresh(&addresses(&old.nvme.portals), &nvme);
    let changed = |subsystem: &&Subsystem| {
        fresh || old.nvme.find(&subsystem.nqn).is_none_or(|was| !was.hosts.are(&subsystem.hosts))
    };
    let subsystems = new.nvme.subsystems.iter().filter(changed);
    targets.chain(subsystems.filter_map(|subsystem| warning_of(subsystem, &nvme))).collect()
}

/// The same for what is served over NVMe.
fn warning_of(subsystem: &Subsystem, portals: &[SocketAddr]) -> Option<String> {
    let leads = |(index, address): &(usize, &SocketAddr)| match subsystem.portals.is_empty() {
        true => !is_for_discovery(**address),
        false => subsystem.portals.contains(index),
    };
    let portals = portals.iter().enumerate().filter(leads).map(|(_, address)| *address);
    let addresses = others_reach(portals)?;
    let nqn = &subsystem.nqn;
    match subsystem.hosts {
        Hosts::Named(_) => None,
        Hosts::Everybody => Some(format!(
            "subsystem {nqn} is open: whoever can reach {addresses} can read and write its volumes; `hosts` restricts it"
        )),
        Hosts::ThisMachine => Some(format!(
            "subsystem {nqn} is closed to other machines, which can reach {addresses}: nothing says who may use it; let \
             hosts in with `hosts`, or everybody with `open = true` or --open"
        )),
    }
}

/// Those of some addresses that other machines can reach, or could, as a list; none if there are none.
fn others_reach(portals: impl Iterator<Item = SocketAddr>) -> Option<String> {
    let reached = portals.filter(|address| !address.ip().is_loopback());
    let addresses: Vec<String> = reached.flat_map(reachable).map(|one| one.to_string()).collect();
    (!addresses.is_empty()).then(|| addresses.join(", "))
}

fn warning(target: &Target, portals: &[SocketAddr]) -> Option<String> {
    let leads = |(index, _): &(usize, &SocketAddr)| {
        target.portals.is_empty() || target.portals.contains(index)
    };
    let portals = portals.iter().enumerate().filter(leads).map(|(_, address)| *address);
    let (name, addresses) = (&target.name, others_reach(portals)?);
    match target.reach() {
        Reach::Named => None,
        Reach::Everybody => Some(format!(
            "target {name} is open: whoever can reach {addresses} can read and write its volumes; \
             `lunet target allow`, `initiators` or users restrict it"
        )),
        Reach::ThisMachine => Some(format!(
            "target {name} is closed to other machines, which can reach {addresses}: nothing says who \
             may use it; let initiators in with `lunet target allow`, `initiators` or users, or everybody \
             with `lunet target open` or --open"
        )),
    }
}

/// The addresses behind one, which may stand for all of the machine's.
fn reachable(address: SocketAddr) -> Vec<SocketAddr> {
    if !address.ip().is_unspecified() {
        return vec![address];
    }
    let same = |ip: &std::net::IpAddr| ip.is_ipv4() == address.is_ipv4();
    let mut all: Vec<SocketAddr> = interfaces::addresses()
        .into_iter()
        .filter(same)
        .map(|ip| SocketAddr::new(ip, address.port()))
        .collect();
    if all.is_empty() {
        all.push(address);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    #[test]
    fn targets_that_name_nobody_are_told_with_their_addresses() {
        let text = |keys: &str| {
            let text = format!(
                "[[portal]]\naddress = '127.0.0.1:3260'\n[[portal]]\naddress = '192.0.2.7:3260'\n\
                 [volumes.a]\nbackend = 'null'\nsize = 512\n\
                 [[target]]\nname = 'iqn.2026-11.l:x'\n{keys}\n"
            );
            check(&text).unwrap()
        };
        let portals = ["127.0.0.1:3260", "192.0.2.7:3260"].map(|text| text.parse().unwrap());
        for (keys, words) in [
            ("luns = ['a']", Some("is closed to other machines, which can reach 192.0.2.7:3260:")),
            ("open = true", Some("is open: whoever can reach 192.0.2.7:3260 can read and write")),
            ("portals = ['127.0.0.1:3260']", None),
            ("initiators = ['iqn.x:*']", None),
            ("luns = { 0 = { volume = 'a', initiators = ['iqn.x:*'] } }", None),
        ] {
            let said = warnings(&text(keys), (&portals, &[]));
            assert_eq!(said.len(), usize::from(words.is_some()), "{keys}: {said:?}");
            assert!(words.is_none_or(|words| said[0].contains(words)), "{keys}: {said:?}");
        }
        // It is told again only if it changes.
        let (closed, open) = (text(""), text("open = true"));
        assert_eq!((news(&closed, &closed).len(), news(&closed, &open).len()), (0, 1));
    }

    #[test]
    fn subsystems_that_name_nobody_are_told_with_their_addresses() {
        let config = |keys: &str| {
            let portal = "[[portal]]\ntransport = 'nvme-tcp'\naddress = '192.0.2.7";
            let subsystem = "[[subsystem]]\nnqn = 'nqn.2026-11.l:x'";
            check(&format!("{portal}:4420'\n{portal}:8009'\n{subsystem}\n{keys}\n")).unwrap()
        };
        let portals = ["192.0.2.7:4420", "192.0.2.7:8009"].map(|text| text.parse().unwrap());
        for (keys, words) in [
            ("", Some("is closed to other machines, which can reach 192.0.2.7:4420:")),
            ("open = true", Some("is open: whoever can reach 192.0.2.7:4420 can read and write")),
            ("hosts = ['nqn.2026-11.l:h']", None),
        ] {
            let said = warnings(&config(keys), (&[], &portals));
            assert_eq!(said.len(), usize::from(words.is_some()), "{keys}: {said:?}");
            assert!(words.is_none_or(|words| said[0].contains(words)), "{keys}: {said:?}");
        }
        let (closed, open) = (config(""), config("open = true"));
        assert_eq!((news(&closed, &closed).len(), news(&closed, &open).len()), (0, 1));
    }
}
