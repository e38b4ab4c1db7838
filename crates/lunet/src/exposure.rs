//! Targets that can be reached over a network, and say nothing of who may use them.

use std::net::SocketAddr;

use lunet_server::interfaces;

use crate::config::{Config, Reach, Target};

/// A sentence for each target that other machines can reach, or could, and that names nobody who may use it.
/// `portals` are the addresses in use, in the order of the configuration.
pub fn warnings(config: &Config, portals: &[SocketAddr]) -> Vec<String> {
    config.targets.iter().filter_map(|target| warning(target, portals)).collect()
}

/// The same for targets whose reach is not what it was, and for all if there is a new portal that other machines
/// may reach.
pub fn news(old: &Config, new: &Config) -> Vec<String> {
    let portals: Vec<SocketAddr> = new.portals.iter().map(|portal| portal.address).collect();
    let before = |target: &Target| old.targets.iter().find(|other| other.name == target.name);
    let known = |one: &SocketAddr| old.portals.iter().any(|was| was.address == *one);
    let fresh = portals.iter().any(|one| !one.ip().is_loopback() && !known(one));
    let changed =
        |target: &&Target| fresh || before(target).map(Target::reach) != Some(target.reach());
    new.targets.iter().filter(changed).filter_map(|target| warning(target, &portals)).collect()
}

fn warning(target: &Target, portals: &[SocketAddr]) -> Option<String> {
    let reached = portals.iter().enumerate().filter(|(index, address)| {
        let served = target.portals.is_empty() || target.portals.contains(index);
        served && !address.ip().is_loopback()
    });
    let addresses: Vec<String> =
        reached.flat_map(|(_, address)| reachable(*address)).map(|one| one.to_string()).collect();
    if addresses.is_empty() {
        return None;
    }
    let (name, addresses) = (&target.name, addresses.join(", "));
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
    use crate::config::check;

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
            let said = warnings(&text(keys), &portals);
            assert_eq!(said.len(), usize::from(words.is_some()), "{keys}: {said:?}");
            assert!(words.is_none_or(|words| said[0].contains(words)), "{keys}: {said:?}");
        }
        // It is told again only if it changes.
        let (closed, open) = (text(""), text("open = true"));
        assert_eq!((news(&closed, &closed).len(), news(&closed, &open).len()), (0, 1));
    }
}
