//! Whether a change lets everybody in to a target, whatever words it has for that.
//!
//! The clients of a target are named by patterns of names and by networks. One network of no bits is everybody, and so
//! are two halves, or a thousand parts with a hole that nobody misses. So what counts is how many addresses the networks
//! have in all: half of those that there are is everybody. Entries are read as the server reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lunet_api::{Change, Target};

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Network {
    /// Of the address.
    width: u8,
    /// The first address.
    first: u128,
    bits: u8,
}

impl Network {
    fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let (width, address) = match address {
            IpAddr::V4(address) => (32, u128::from(address.to_bits())),
            IpAddr::V6(address) => (128, address.to_bits()),
        };
        let rest = u32::from(width).checked_sub(u32::from(bits))?;
        // A shift by the whole width would be none.
        let first = address.checked_shr(rest).map_or(0, |kept| kept << rest);
        Some(Self { width, first, bits })
    }

    /// What an entry stands for, if it is an address or a network.
    fn parse(entry: &str) -> Option<Self> {
        let (address, bits) = match entry.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (entry, None),
        };
        let address: IpAddr = address.parse().ok()?;
        match bits {
            // `00` is a number, too.
            Some(bits) => Self::new(address, bits.parse().ok()?),
            None => Self::new(address, if address.is_ipv4() { 32 } else { 128 }),
        }
    }

    fn contains(&self, other: &Self) -> bool {
        let rest = u32::from(self.width.saturating_sub(self.bits));
        let differs = (self.first ^ other.first).checked_shr(rest).unwrap_or(0) != 0;
        self.width == other.width && self.bits <= other.bits && !differs
    }

    fn size(&self) -> u128 {
        1u128.checked_shl(u32::from(self.width - self.bits)).unwrap_or(u128::MAX)
    }
}

/// True if these networks have half of all addresses of IPv4, or half of those of IPv6 that are global (2000::/3).
fn cover(networks: &[Network]) -> bool {
    let global = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);
    let all = [Network::new(Ipv4Addr::UNSPECIFIED.into(), 0), Network::new(global.into(), 3)];
    all.into_iter().flatten().any(|all| {
        let part = |one: &Network| match one.contains(&all) {
            true => Some(all),
            false => all.contains(one).then_some(*one),
        };
        let mut parts: Vec<Network> = networks.iter().filter_map(part).collect();
        // Two networks have nothing in common, or one is in the other, which comes before it then.
        parts.sort_unstable();
        let (mut last, mut covered): (Option<Network>, u128) = (None, 0);
        for one in parts {
            if !last.is_some_and(|last| last.contains(&one)) {
                covered += one.size();
                last = Some(one);
            }
        }
        covered >= all.size() / 2
    })
}

/// True if these entries of a list of initiators let everybody in by themselves: patterns that fit names that nobody has
/// seen, or networks.
pub(crate) fn are(entries: &[String]) -> bool {
    let networks: Vec<Network> = entries.iter().filter_map(|entry| Network::parse(entry)).collect();
    entries.iter().any(|entry| entry.contains('*')) || cover(&networks)
}

/// The target that a change may open to everybody, with what it has already.
pub(crate) fn concerned(change: &Change) -> Option<&str> {
    match change {
        Change::AllowInitiators { target, .. }
        | Change::DenyInitiators { target, .. }
        | Change::RemoveUser { target, .. } => Some(target),
        _ => None,
    }
}

/// True if a change opens this target to everybody, which it is not yet.
pub(crate) fn let_in(change: &Change, target: &Target) -> bool {
    // `iqn.a, iqn.b, coming from 192.0.2.0/24`: of the words only networks can be read as such.
    let words = target.initiators.as_deref().unwrap_or_default();
    let words = words.split([',', ' ']).filter(|word| !word.is_empty());
    let is_word = |word: &&str| ["all", "from", "coming", "everybody", "nobody"].contains(word);
    let (mut networks, mut names) = (Vec::new(), Vec::new());
    for word in words.filter(|word| !is_word(word)) {
        match Network::parse(word) {
            Some(network) => networks.push(network),
            None => names.push(word),
        }
    }
    let bound = cover(&networks);
    match change {
        Change::AllowInitiators { initiators, .. } => {
            networks.extend(initiators.iter().filter_map(|entry| Network::parse(entry)));
            !bound && cover(&networks)
        }
        // What is left lets everybody in if it was names that did not.
        Change::DenyInitiators { initiators, .. } => {
            let goes = |name: &&str| initiators.iter().any(|gone| gone.eq_ignore_ascii_case(name));
            bound && !names.is_empty() && names.iter().all(goes)
        }
        // The same with the last secret that has to be known.
        Change::RemoveUser { name, .. } => {
            bound && names.is_empty() && target.users.iter().all(|user| user.name == *name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use lunet_api::User;

    use super::*;

    fn all(entries: &[&str]) -> Vec<String> {
        entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn everybody_has_many_names() {
        for entries in [
            &["*"][..],
            &["iqn.b:y", "iqn.*"],
            &["0.0.0.0/0"],
            &["0.0.0.0/00"],
            &["0.0.0.0/+0"],
            &["192.0.2.7/0"],
            &["::/0"],
            &["::/00"],
            &["fd00::1/0"],
            &["2000::/3"],
            &["::/1"],
            &["0.0.0.0/1", "128.0.0.0/1"],
            &["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3"],
            &["1.2.3.4/2", "64.0.0.0/2", "10.0.0.0/8"],
            &["2000::/5", "2800::/5", "3000::/5"],
        ] {
            assert!(are(&all(entries)), "{entries:?}");
        }
        for entries in [
            &["iqn.b:y"][..],
            &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"],
            &["0.0.0.0/2", "10.0.0.0/8", "0.0.0.0/2", "1.2.3.4/32", "63.0.0.0/9"],
            &["fd00::/8", "fe80::/10"],
            &["2001:db8::/32", "8000::/1"],
            // As the server: no network, so no way in.
            &["0.0.0.0/33", "::/129", "0.0.0.0/ 0", "0/0", "00.0.0.0/0", "0.0.0.0/-0"],
            &["::ffff:0.0.0.0/96"],
        ] {
            assert!(!are(&all(entries)), "{entries:?}");
        }
        let parts: Vec<String> = (0..=255).map(|n| format!("{n}.0.0.0/8")).collect();
        assert!(!are(&parts[..127]) && are(&parts[..128]));
    }

    #[test]
    fn what_a_target_has_already_counts() {
        let (target, force, keep_sessions) = ("t".to_owned(), false, false);
        let of = |words: &str, users: &[&str]| Target {
            initiators: Some(words.to_owned()),
            users: users
                .iter()
                .map(|name| User { name: (*name).into(), ..User::default() })
                .collect(),
            ..Target::default()
        };
        let allow = |entries: &[&str]| Change::AllowInitiators {
            target: target.clone(),
            initiators: all(entries),
            force,
            keep_sessions,
        };
        let deny = |entries: &[&str]| Change::DenyInitiators {
            target: target.clone(),
            initiators: all(entries),
            force,
            keep_sessions,
        };
        let bob =
            Change::RemoveUser { target: target.clone(), name: "bob".into(), force, keep_sessions };
        let quarter = "all from 0.0.0.0/2, 192.0.2.1";
        assert!(let_in(&allow(&["64.0.0.0/2"]), &of(quarter, &[])));
        assert!(!let_in(&allow(&["10.0.0.0/8"]), &of(quarter, &[])));
        assert!(!let_in(&allow(&["10.0.0.0/8"]), &of("all from ::/0", &[])), "it is open");
        assert!(let_in(&deny(&["iqn.A"]), &of("iqn.a, coming from 0.0.0.0/0", &[])));
        assert!(!let_in(&deny(&["iqn.a"]), &of("iqn.a, iqn.b, coming from 0.0.0.0/0", &[])));
        assert!(!let_in(&deny(&["iqn.a"]), &of("iqn.a, coming from 10.0.0.0/8", &[])));
        assert!(let_in(&bob, &of("all from 0.0.0.0/0", &["bob"])));
        assert!(!let_in(&bob, &of("all from 0.0.0.0/0", &["bob", "eve"])));
        assert!(!let_in(&bob, &of("everybody", &["bob"])), "it is for this machine then");
        assert_eq!((concerned(&bob), concerned(&allow(&[]))), (Some("t"), Some("t")));
    }
}
