//! Both ends of a path: a machine that serves storage and one that uses it, looked at together.
//!
//! A pure function of the facts of both, and of what was measured between them. The checks of `checks/peer.toml` speak of
//! `target` and `initiator` and of what belongs together on both: interfaces in one network, sessions, connections.

mod joined;
mod path;
mod ssh;

use serde::Serialize;

pub use path::{Ping, Pinging, Probed, by_udp, paths, probe};
pub use ssh::{Captured, SshError, ssh};

use super::check::Checks;
use super::report::Report;
use super::run;
use crate::expr::{Scope, Shape, Value};
use crate::facts::{Facts, System, Target};

/// Two machines and what was measured between them.
#[derive(Clone, Debug, Default)]
pub struct Pair {
    /// Serves storage.
    pub target: Facts,
    /// Uses it.
    pub initiator: Facts,
    /// How far the target's clock is ahead of the initiator's, in seconds; `None`: it could not be compared.
    pub clock_gap_seconds: Option<i64>,
    /// Packets of full size that were tried between them.
    pub probed: Vec<Probed>,
}

/// Which of two machines uses the other's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The first one serves, the other one uses.
    Target,
    /// The first one uses, the other one serves.
    Initiator,
}

/// What the first machine is to the other one: by sessions and paths between them, else by who serves anything. `None`:
/// neither serves storage.
pub fn role(near: &Facts, far: &Facts) -> Option<Role> {
    if joined::uses(near, far) {
        return Some(Role::Initiator);
    }
    if joined::uses(far, near) {
        return Some(Role::Target);
    }
    match (near.targets.is_empty(), far.targets.is_empty()) {
        (_, false) => Some(Role::Initiator),
        (false, true) => Some(Role::Target),
        (true, true) => None,
    }
}

/// Looks at what only both ends show.
pub fn examine_pair(pair: &Pair, checks: &Checks) -> Report {
    let mut scope = Scope::new(&Facts::default());
    put(&mut scope, "target", &pair.target);
    put(&mut scope, "initiator", &pair.initiator);
    put(&mut scope, "links", &joined::links(pair));
    put(&mut scope, "networks", &joined::networks(pair));
    put(&mut scope, "sessions", &joined::sessions(pair));
    put(&mut scope, "paths", &joined::paths(pair));
    put(&mut scope, "services", &joined::services(pair));
    put(&mut scope, "portals", &joined::portals(pair));
    put(&mut scope, "connections", &joined::connections(pair));
    put(&mut scope, "addresses", &joined::addresses(pair));
    put(&mut scope, "cards", &joined::cards(pair));
    put(&mut scope, "probed", &pair.probed);
    put(&mut scope, "clock_gap_seconds", &pair.clock_gap_seconds);
    let name = |facts: &Facts| facts.platform.name.clone().unwrap_or_else(|| "unknown".to_owned());
    let machines = format!("target: {}; initiator: {}", name(&pair.target), name(&pair.initiator));
    let mut report = Report::of(machines, checks);
    // What is compared is told of Linux only.
    let seen = |facts: &Facts| {
        facts.system() == System::Linux
            && (facts.platform.kernel.is_some() || !facts.nics.is_empty())
    };
    report.could_look = seen(&pair.target) && seen(&pair.initiator);
    run(checks, System::Linux, &scope, &mut report);
    report
}

/// What only a login could show, a sentence for each target that wants a secret or a key, with the command that tries it.
/// Nobody logs in while two machines are compared: secrets are in no capture.
pub fn not_tried(pair: &Pair) -> Vec<String> {
    let links = joined::links(pair);
    let near = links.iter().find_map(|link| Some(link.ends()?.0));
    let address = |target: &Target| {
        let own = target.portals.iter().map(|portal| portal.address.as_str());
        let mut named = own.filter(|own| !["", "*", "0.0.0.0", "::"].contains(own));
        let told = named.next().or(near).unwrap_or("HOST");
        if told.contains(':') { format!("[{told}]") } else { told.to_owned() }
    };
    let paths = pair.initiator.initiators.nvme_hosts.iter();
    let by_tls: Vec<&str> = paths
        .filter(|host| host.paths.iter().any(|path| path.tls == Some(true)))
        .map(|host| host.nqn.as_str())
        .collect();
    let told = |target: &Target| {
        let (name, address) = (&target.name, address(target));
        let sentence = |what: &str, command: String| {
            format!(
                "Not tried: to log in to {name}, which wants {what}. This compares settings only, and whether a secret is the right one \
                 is in none: `lunet doctor {command}` at the initiator tries it."
            )
        };
        let iscsi = || format!("iscsi://USER@{address}/{name} --secret-file FILE");
        match target.auth.as_deref() {
            Some("chap") => Some(sentence("CHAP", iscsi())),
            Some("mutual-chap") => Some(sentence("CHAP both ways", iscsi())),
            Some("dhchap") => Some(sentence(
                "DH-HMAC-CHAP or TLS",
                format!("nvme-tcp://{address}/{name} --secret-file FILE` or `--tls-key-file FILE"),
            )),
            _ if by_tls.contains(&name.as_str()) => {
                Some(sentence("TLS", format!("nvme-tcp://{address}/{name} --tls-key-file FILE")))
            }
            _ => None,
        }
    };
    pair.target.targets.iter().filter_map(told).collect()
}

fn put(scope: &mut Scope<'_>, name: &str, value: &impl Serialize) {
    // What is not there is null; facts can always be written.
    scope.set(name, cel::to_value(value).unwrap_or(Value::Null));
}

/// The names that checks of two machines may use.
pub(super) fn names() -> Shape {
    let mut names = Shape::facts()
        .with("target", Shape::of::<Facts>())
        .with("initiator", Shape::of::<Facts>())
        .with("clock_gap_seconds", Shape::Plain);
    for (name, shape) in joined::shapes() {
        names = names.with(name, Shape::list(shape));
    }
    names.with("probed", Shape::list(Shape::of::<Probed>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{NvmeHost, NvmePath, Portal};

    #[test]
    fn what_only_a_login_shows_is_named_with_the_command_for_it() {
        let target = |name: &str, address: &str, auth: &str| Target {
            name: name.to_owned(),
            portals: vec![Portal { address: address.to_owned(), ..Portal::default() }],
            auth: Some(auth.to_owned()),
            ..Target::default()
        };
        let mut pair = Pair::default();
        pair.target.targets = vec![
            target("iqn.2026-11.x:open", "10.0.0.1", "none"),
            target("iqn.2026-11.x:chap", "10.0.0.1", "chap"),
            target("nqn.2026-11.x:proof", "2001:db8::1", "dhchap"),
            target("nqn.2026-11.x:tls", "0.0.0.0", "none"),
        ];
        let path = NvmePath { tls: Some(true), ..NvmePath::default() };
        let nqn = "nqn.2026-11.x:tls".to_owned();
        pair.initiator.initiators.nvme_hosts =
            vec![NvmeHost { nqn, paths: vec![path], ..NvmeHost::default() }];
        let told = not_tried(&pair);
        for (sentence, says) in told.iter().zip([
            "`lunet doctor iscsi://USER@10.0.0.1/iqn.2026-11.x:chap --secret-file FILE`",
            "nvme-tcp://[2001:db8::1]/nqn.2026-11.x:proof --secret-file FILE` or `--tls-key-file FILE`",
            "nvme-tcp://HOST/nqn.2026-11.x:tls --tls-key-file FILE`",
        ]) {
            assert!(sentence.contains(says), "{sentence}");
        }
        assert_eq!(told.len(), 3, "{told:?}");
    }
}
