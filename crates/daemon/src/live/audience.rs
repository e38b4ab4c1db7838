//! Who may log in to a target, in words, and what a change of its rules means for those who may now.
//!
//! Entries of a list work together: an initiator must have one of the names, if there are names, and come
//! from one of the networks, if there are networks. So an entry that is to let one more in may shut others
//! out, and one that goes may let others in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lunet_front_iscsi::Initiators;
use lunet_server::Network;

use lunet_config::access::initiators_of;
use lunet_config::{Config, Reach, Target};

/// How many entries of a list a sentence names.
const NAMED: usize = 12;

/// Who may log in to a target: `iqn.a, coming from 192.0.2.0/24, with CHAP as esx1`.
pub fn audience(target: &Target) -> String {
    let rules = &target.access;
    let users: Vec<String> = rules
        .users
        .iter()
        .map(|user| match user.initiators.is_everybody() {
            true => user.login.name.clone(),
            false => format!("{} (for {} alone)", user.login.name, listed(&user.initiators)),
        })
        .collect();
    let proof = match users.is_empty() {
        true => "without CHAP".to_owned(),
        false => format!("with CHAP as {}", some(&users, " or ")),
    };
    format!("{}, {proof}", reached(target))
}

/// The same without what they have to prove.
pub fn reached(target: &Target) -> String {
    let rules = &target.access;
    match target.reach() {
        Reach::ThisMachine => "this machine alone".to_owned(),
        Reach::Named if rules.users.is_empty() && rules.initiators.is_everybody() => {
            "the initiators that its LUNs name".to_owned()
        }
        Reach::Named | Reach::Everybody => listed(&rules.initiators),
    }
}

fn listed(initiators: &Initiators) -> String {
    let networks: Vec<String> = initiators.networks().iter().map(ToString::to_string).collect();
    let (names, networks) = (some(initiators.names(), ", "), some(&networks, ", "));
    match (names.is_empty(), networks.is_empty()) {
        // `everybody` or `nobody`.
        (true, true) => initiators.to_string(),
        (false, true) => names,
        (true, false) => format!("all from {networks}"),
        (false, false) => format!("{names}, coming from {networks}"),
    }
}

fn some(all: &[String], between: &str) -> String {
    let shown = all.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(between);
    match all.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Who could not log in any more, although somebody was to be let in; nothing if nobody loses by it. A
/// target for this machine alone is opened by it: of that there is a note.
pub fn losers(was: &Target, is: &Target) -> Option<&'static str> {
    let (old, new) = (&was.access.initiators, &is.access.initiators);
    if was.reach() == Reach::ThisMachine || old.is_nobody() {
        return None;
    }
    let any = |names: &[String]| {
        names.is_empty() || names.iter().any(|name| name.bytes().all(|byte| byte == b'*'))
    };
    if any(old.names()) && !any(new.names()) {
        return Some("all other names, from wherever they come");
    }
    if old.networks().is_empty() && !new.networks().is_empty() {
        return Some("all other addresses, whatever their names");
    }
    (was.access.users.is_empty() && !is.access.users.is_empty())
        .then_some("whoever logs in without CHAP")
}

/// Who could log in that could not before, although somebody was to be shut out: with the last name of a
/// list with networks goes the demand for a name, and the other way round.
pub fn gainers(was: &Initiators, is: &Initiators) -> Option<&'static str> {
    if !was.names().is_empty() && is.names().is_empty() && !is.networks().is_empty() {
        return Some("every name from these addresses");
    }
    (!was.networks().is_empty() && is.networks().is_empty() && !is.names().is_empty())
        .then_some("these names from every address")
}

/// Why nobody at all could log in to a target, as far as the rules alone say so.
pub fn deserted(target: &Target, config: &Config) -> Option<String> {
    let rules = &target.access;
    let networks = rules.initiators.networks();
    if rules.initiators.is_nobody() {
        return Some("its list of initiators is empty".to_owned());
    }
    let portals: Vec<IpAddr> = config
        .portals
        .iter()
        .enumerate()
        .filter(|(index, _)| target.portals.is_empty() || target.portals.contains(index))
        .map(|(_, portal)| portal.address.ip())
        .collect();
    let leads = |network: &Network| portals.iter().any(|portal| leads_to(*portal, network));
    if !networks.is_empty() && !networks.iter().any(leads) {
        let why = match portals.iter().all(IpAddr::is_loopback) {
            true => "are reached from this machine alone (127.0.0.1 or ::1)",
            false => "have no address of that kind",
        };
        return Some(format!("its portals {why}"));
    }
    let usable = |user: &lunet_config::access::User| {
        !user.initiators.is_nobody() && !apart(&user.initiators, &rules.initiators)
    };
    (!rules.users.is_empty() && !rules.users.iter().any(usable))
        .then(|| "its users are for other initiators than its list".to_owned())
}

/// True if somebody from this network can connect to this address.
fn leads_to(portal: IpAddr, network: &Network) -> bool {
    let loopback = [Network::new(Ipv4Addr::LOCALHOST.into(), 8)]
        .into_iter()
        .flatten()
        .chain([Network::host(Ipv6Addr::LOCALHOST.into())]);
    match portal.to_canonical() {
        portal if portal.is_loopback() => {
            loopback.filter(|net| net.is_ipv4() == portal.is_ipv4()).any(|net| net.meets(network))
        }
        // It may take both kinds.
        IpAddr::V6(any) if any.is_unspecified() => true,
        portal => portal.is_ipv4() == network.is_ipv4(),
    }
}

/// True if no initiator can be in both sets. Two patterns are taken for such that have something in common.
fn apart(one: &Initiators, other: &Initiators) -> bool {
    let exact = |name: &str| !name.contains('*');
    // The name alone is looked at, at an address that may be any.
    let names = |set: &Initiators| {
        let mut out = Initiators::default();
        set.names().iter().for_each(|name| out.add_name(name));
        out
    };
    let fits = |a: &str, b: &str| {
        let within = |name: &str, pattern: &str| {
            let pattern = initiators_of(pattern).map(|set| names(&set)).unwrap_or_default();
            pattern.have(name, Ipv4Addr::LOCALHOST.into())
        };
        match (exact(a), exact(b)) {
            (true, _) => within(a, b),
            (false, true) => within(b, a),
            (false, false) => true,
        }
    };
    let (mine, theirs) = (one.names(), other.names());
    let no_name = !mine.is_empty()
        && !theirs.is_empty()
        && !mine.iter().any(|a| theirs.iter().any(|b| fits(a, b)));
    let (here, there) = (one.networks(), other.networks());
    let no_network = !here.is_empty()
        && !there.is_empty()
        && !here.iter().any(|a| there.iter().any(|b| a.meets(b)));
    no_name || no_network
}

/// Entries that were taken out of a list and are in it all the same, by another one: `iqn.a (by iqn.*)`.
pub fn still_listed(entries: &[String], now: &Initiators) -> Vec<String> {
    let by = |entry: &String| {
        let gone = initiators_of(entry)?;
        let other: String = match (gone.names(), gone.networks()) {
            ([name], []) => {
                let fits = |pattern: &&String| {
                    let mut set = Initiators::default();
                    set.add_name(pattern);
                    // A pattern as a name: what fits it fits the other pattern, too.
                    set.have(name, Ipv4Addr::LOCALHOST.into())
                };
                now.names().iter().find(fits)?.clone()
            }
            ([], [network]) => {
                let around = |net: &&Network| net.contains(network);
                now.networks().iter().find(around)?.to_string()
            }
            _ => return None,
        };
        Some(format!("{entry} (by {other})"))
    };
    entries.iter().filter_map(by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    /// A configuration with one target, and portals at these addresses.
    fn config(portals: &[&str], keys: &str) -> Config {
        let portals: String =
            portals.iter().map(|ip| format!("[[portal]]\naddress = '{ip}:3260'\n")).collect();
        let text = format!(
            "{portals}[volumes.a]\nbackend = 'null'\nsize = 512\n\
             [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n{keys}\n"
        );
        check(&text).unwrap()
    }

    fn of(keys: &str) -> Config {
        config(&["192.0.2.7"], keys)
    }

    const ALICE: &str = "[[target.user]]\nname = 'alice'\nsecret = 'a secret of 16 b'\n";

    #[test]
    fn who_may_log_in_is_told_exactly() {
        let bob = ALICE.replace("alice", "bob") + "initiators = ['iqn.x:b']\n";
        for (keys, words) in [
            (String::new(), "this machine alone, without CHAP"),
            ("open = true".into(), "everybody, without CHAP"),
            ("initiators = []".into(), "nobody, without CHAP"),
            (ALICE.into(), "everybody, with CHAP as alice"),
            (format!("{ALICE}{bob}"), "everybody, with CHAP as alice or bob (for iqn.x:b alone)"),
            (
                "initiators = ['192.0.2.0/24', 'iqn.x:a']".into(),
                "iqn.x:a, coming from 192.0.2.0/24, without CHAP",
            ),
        ] {
            assert_eq!(audience(&of(&keys).targets[0]), words, "{keys}");
        }
        let many: Vec<String> = (0..50).map(|n| format!("'iqn.x:{n}'")).collect();
        let many = audience(&of(&format!("initiators = [{}]", many.join(", "))).targets[0]);
        assert!(many.ends_with("iqn.x:11 and 38 more, without CHAP"), "{many}");
    }

    #[test]
    fn an_entry_that_shuts_others_out_is_noticed() {
        let list = |entries: &str| format!("initiators = [{entries}]");
        let names = Some("all other names, from wherever they come");
        let addresses = Some("all other addresses, whatever their names");
        for (was, is, who) in [
            (String::new(), list("'iqn.x:a'"), None),
            (list(""), list("'iqn.x:a'"), None),
            ("open = true".into(), list("'iqn.x:a'"), names),
            ("open = true".into(), list("'*'"), None),
            ("open = true".into(), list("'192.0.2.1'"), addresses),
            (list("'iqn.x:a'"), list("'iqn.x:a', 'iqn.x:b'"), None),
            (list("'iqn.x:a'"), list("'iqn.x:a', '192.0.2.1'"), addresses),
            (list("'192.0.2.0/24'"), list("'192.0.2.0/24', 'iqn.x:a'"), names),
            (
                list("'iqn.x:a'"),
                list("'iqn.x:a'") + "\n" + ALICE,
                Some("whoever logs in without CHAP"),
            ),
            (ALICE.into(), list("'iqn.x:a'") + "\n" + ALICE, names),
        ] {
            assert_eq!(losers(&of(&was).targets[0], &of(&is).targets[0]), who, "{was} {is}");
        }
    }

    #[test]
    fn an_entry_that_goes_and_lets_others_in_is_noticed() {
        let rules = |entries: &[&str]| {
            let entries: Vec<String> = entries.iter().map(|entry| format!("'{entry}'")).collect();
            of(&format!("initiators = [{}]", entries.join(", "))).targets[0]
                .access
                .initiators
                .clone()
        };
        let both = rules(&["iqn.x:a", "192.0.2.1"]);
        assert_eq!(gainers(&both, &rules(&["192.0.2.1"])), Some("every name from these addresses"));
        assert_eq!(gainers(&both, &rules(&["iqn.x:a"])), Some("these names from every address"));
        assert_eq!(gainers(&both, &rules(&[])), None);
        assert_eq!(gainers(&rules(&["iqn.x:a", "iqn.x:b"]), &rules(&["iqn.x:a"])), None);
        let left = rules(&["iqn.x:*", "192.0.2.0/24"]);
        let gone = ["iqn.x:a", "iqn.y:a", "192.0.2.0/25", "192.0.0.0/16"].map(str::to_owned);
        assert_eq!(
            still_listed(&gone, &left),
            ["iqn.x:a (by iqn.x:*)", "192.0.2.0/25 (by 192.0.2.0/24)"]
        );
    }

    #[test]
    fn rules_that_let_nobody_in_are_noticed() {
        let bob =
            "[[target.user]]\nname = 'bob'\nsecret = 'a secret of 16 b'\ninitiators = ['iqn.x:b']";
        let list = |entries: &str| format!("initiators = [{entries}]\n");
        for (portals, keys, alone) in [
            (&["127.0.0.1"][..], list("'192.0.2.0/24'"), true),
            (&["127.0.0.1"], list("'192.0.2.0/24', '127.0.0.0/24'"), false),
            (&["127.0.0.1"], list("'0.0.0.0/0'"), false),
            (&["127.0.0.1"], list("'iqn.x:a'"), false),
            (&["127.0.0.1", "192.0.2.7"], list("'192.0.2.0/24'"), false),
            (&["192.0.2.7"], list("'fd00::/8'"), true),
            (&["[::]"], list("'192.0.2.1'"), false),
            (&["[::1]"], list("'192.0.2.1', '127.0.0.1'"), true),
            (&["192.0.2.7"], list(""), true),
            (&["192.0.2.7"], list("'iqn.x:a'") + bob, true),
            (&["192.0.2.7"], list("'iqn.x:*'") + bob, false),
            (&["192.0.2.7"], list("'192.0.2.1'") + bob, false),
            (&["192.0.2.7"], list("'iqn.x:a'") + bob + "\n" + ALICE, false),
        ] {
            let config = config(portals, &keys);
            let why = deserted(&config.targets[0], &config);
            assert_eq!(why.is_some(), alone, "{portals:?} {keys}: {why:?}");
        }
    }
}
