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
use crate::facts::{Facts, System};

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
        names = names.with(name, Shape::List(Box::new(shape)));
    }
    names.with("probed", Shape::List(Box::new(Shape::of::<Probed>())))
}
