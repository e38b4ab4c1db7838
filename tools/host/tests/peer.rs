//! The doctor on a target and an initiator together: what only both show is found and named; where both fit nothing is.
//!
//! Captured machines that belong together are the pairs (`World`); `peer/pairs.toml` plants a fault into each.
//! `LUNET_BLESS=1` writes the table in docs/doctor.md anew.

#[expect(dead_code, reason = "its list is of other tests")]
mod captured;
mod fixes;
mod halves;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::sync::LazyLock;

use lunet_host::doctor::peer::{Pair, Probed, Role, examine_pair, paths, probe, role};
use lunet_host::doctor::{Checks, Report, State};
use lunet_host::facts::{Facts, facts};
use lunet_host::source::Tree;
use serde::Deserialize;

use self::captured::{here, hold, tree};
use self::halves::in_halves;

/// A session over iSER, for the initiator of the world `roce`.
const ISER: &str = "\
/etc/iscsi/initiatorname.iscsi: InitiatorName=iqn.1998-01.com.vmware:esx1:12345:64
/sys/class/iscsi_session/session1 -> ../../devices/platform/host9/session1/iscsi_session/session1
/sys/class/iscsi_session/session1/targetname: iqn.2005-10.org.freenas.ctl:esxi
/sys/class/iscsi_session/session1/state: LOGGED_IN
/sys/class/iscsi_session/session1/recovery_tmo: 120
/sys/class/iscsi_session/session1/username: esx
/sys/class/iscsi_connection/connection1:0/persistent_address: 10.100.0.20
/sys/class/iscsi_connection/connection1:0/persistent_port: 3260
/sys/class/iscsi_connection/connection1:0/recv_tmo: 5
/sys/class/iscsi_connection/connection1:0/ping_tmo: 5
/sys/class/iscsi_host/host9/ipaddress: 10.100.0.31
/sys/class/scsi_host/host9/proc_name: iscsi_iser
";

/// Which two machines.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum World {
    /// TrueNAS and a Proxmox node that has two sessions over TCP with it.
    #[default]
    Tcp,
    /// TrueNAS, and a machine with the same card that has a session over iSER.
    Roce,
    /// TrueNAS with nvmet, and a machine with the same card.
    Nvme,
}

/// A fault that both ends show.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Planted {
    name: String,
    #[serde(default)]
    world: World,
    /// The check that finds it, and what it says.
    finds: String,
    says: String,
    /// What follows from it and is found as well.
    #[serde(default)]
    also: Vec<String>,
    /// Trees that are laid over the machines, and texts in them that become others: without the fault...
    #[serde(default)]
    base_target: String,
    #[serde(default)]
    base_initiator: String,
    #[serde(default)]
    base_replace: Vec<(String, String, String)>,
    /// ... and with it.
    #[serde(default)]
    target: String,
    #[serde(default)]
    initiator: String,
    #[serde(default)]
    replace: Vec<(String, String, String)>,
    /// How far the target's clock is ahead.
    clock: Option<i64>,
    /// Whether packets of full size arrive.
    whole: Option<bool>,
}

#[derive(Deserialize)]
struct All {
    pair: Vec<Planted>,
}

fn planted() -> Vec<Planted> {
    let text = fs::read_to_string(here("tests/peer/pairs.toml")).unwrap();
    let read: All = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    read.pair
}

/// The trees of target and initiator.
fn world(world: World) -> (Tree, Tree) {
    let other = |name: &str, from: &str, to: &str| {
        Tree::parse(&tree(name).to_text().replace(from, to)).unwrap()
    };
    match world {
        World::Tcp => (tree("truenas-24.10"), tree("proxmox")),
        World::Roce => {
            let mut initiator = other("truenas-23.10", "10.100.0.20", "10.100.0.31");
            replace(&mut initiator, "192.168.1.20", "192.168.1.31").unwrap();
            initiator.overlay(ISER).unwrap();
            (tree("truenas-23.10"), initiator)
        }
        World::Nvme => {
            let mut initiator = other("truenas-25.10", "10.50.0.10", "10.50.0.41");
            replace(&mut initiator, "192.168.1.22", "192.168.1.41").unwrap();
            (tree("truenas-25.10"), initiator)
        }
    }
}

fn replace(tree: &mut Tree, from: &str, to: &str) -> Result<(), String> {
    let text = tree.to_text();
    if !text.contains(from) {
        return Err(format!("there is no {from:?}"));
    }
    *tree = Tree::parse(&text.replace(from, to)).unwrap();
    Ok(())
}

impl Planted {
    fn trees(&self, with: bool) -> Result<(Tree, Tree), String> {
        let (mut target, mut initiator) = world(self.world);
        let mut change = |overlays: [&str; 2], texts: &[(String, String, String)]| {
            for (side, from, to) in texts {
                let tree = if side == "target" { &mut target } else { &mut initiator };
                replace(tree, from, to)?;
            }
            for (tree, overlay) in [&mut target, &mut initiator].into_iter().zip(overlays) {
                tree.overlay(overlay).map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        };
        change([&self.base_target, &self.base_initiator], &self.base_replace)?;
        if with {
            change([&self.target, &self.initiator], &self.replace)?;
        }
        Ok((target, initiator))
    }

    /// What is seen of two machines.
    fn seen(&self, (target, initiator): (&Tree, &Tree), with: bool) -> Pair {
        let mut pair = Pair {
            target: facts(target),
            initiator: facts(initiator),
            clock_gap_seconds: Some(self.clock.filter(|_| with).unwrap_or(1)),
            probed: Vec::new(),
        };
        let whole = self.whole.filter(|_| with).unwrap_or(true);
        pair.probed = probe(&paths(&pair, false), &|_, bytes| whole || bytes < 100);
        pair
    }

    fn pair(&self, with: bool) -> Result<Pair, String> {
        let (target, initiator) = self.trees(with)?;
        Ok(self.seen((&target, &initiator), with))
    }
}

static CHECKS: LazyLock<Checks> = LazyLock::new(|| Checks::of_pairs().unwrap());
static PLANTED: LazyLock<Vec<Planted>> = LazyLock::new(planted);

/// With each fault, and without it: worked out once for all tests, by two threads.
static REPORTS: LazyLock<Vec<Result<(Report, Report), String>>> = LazyLock::new(|| {
    in_halves(&PLANTED, |planted| {
        let report = |with| planted.pair(with).map(|pair| examine_pair(&pair, &CHECKS));
        Ok((report(true)?, report(false)?))
    })
});

fn found(report: &Report) -> BTreeSet<&str> {
    report.findings.iter().map(|finding| finding.check.as_str()).collect()
}

#[test]
fn each_planted_fault_is_found_and_its_absence_is_seen() {
    let mut wrong = String::new();
    for (planted, reports) in PLANTED.iter().zip(REPORTS.iter()) {
        let (report, base) = match reports {
            Ok(reports) => reports,
            Err(error) => {
                let _ = writeln!(wrong, "{}: {error}", planted.name);
                continue;
            }
        };
        let mine = report.findings.iter().find(|finding| finding.check == planted.finds);
        let says = mine.is_some_and(|f| format!("{} {}", f.found, f.why).contains(&planted.says));
        let wanted = planted.also.iter().chain([&planted.finds]).map(String::as_str).collect();
        if found(report) != wanted || !says {
            let looked = report.looked.iter().find(|looked| looked.check == planted.finds);
            let _ = writeln!(wrong, "{}: {} {:?}", planted.name, planted.finds, planted.says);
            for finding in &report.findings {
                let _ = writeln!(wrong, "    {}: {}", finding.check, finding.found);
            }
            let _ = writeln!(wrong, "    {looked:?}");
        }
        let looked = base.looked.iter().find(|looked| looked.check == planted.finds);
        let seen = looked.is_some_and(|looked| matches!(looked.state, State::Healthy));
        if !base.findings.is_empty() || !seen {
            let _ = writeln!(wrong, "{}, without: {:#?} {looked:?}", planted.name, base.findings);
        }
        if report.count(State::Broken) + base.count(State::Broken) > 0 {
            let broken = report.looked.iter().find(|looked| looked.state == State::Broken);
            let _ = writeln!(wrong, "{}: a check is broken: {broken:?}", planted.name);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Follows what a fix sets on the ends that it names. `false` if it sets nothing that a machine of these has.
fn follow(fix: &str, target: &mut Tree, initiator: &mut Tree) -> bool {
    let named = |end: &str| fix.contains("on both") || fix.contains(&format!("on the {end}"));
    let unnamed = !named("target") && !named("initiator");
    let mut followed = false;
    for (tree, end) in [(target, "target"), (initiator, "initiator")] {
        if !named(end) && !unnamed {
            continue;
        }
        for given in fixes::given(fix, tree) {
            followed |= given.follow(tree);
        }
        let mtu = fix.split_once("ip link set dev ").and_then(|(_, rest)| {
            let mut words = rest.split_whitespace();
            Some((words.next()?, words.nth(1)?))
        });
        if let Some((name, mtu)) = mtu.filter(|(_, mtu)| mtu.parse::<u32>().is_ok()) {
            followed |= fixes::set_mtu(tree, name, mtu);
        }
    }
    followed
}

/// Who has done what a fix says, on the end that it names, is not told of the same fault again.
#[test]
fn a_fault_is_over_when_its_fix_was_followed() {
    let (mut wrong, mut followed) = (String::new(), Vec::new());
    for (planted, reports) in PLANTED.iter().zip(REPORTS.iter()) {
        let (report, _) = reports.as_ref().unwrap();
        let finding = report.findings.iter().find(|finding| finding.check == planted.finds);
        let fix = &finding.unwrap().fix;
        let (mut target, mut initiator) = planted.trees(true).unwrap();
        if !follow(fix, &mut target, &mut initiator) {
            continue;
        }
        followed.push(planted.finds.as_str());
        let then = examine_pair(&planted.seen((&target, &initiator), true), &CHECKS);
        if found(&then).contains(planted.finds.as_str()) {
            let _ = writeln!(wrong, "{}: {}: {fix}", planted.name, planted.finds);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    let all = ["peer-congestion", "peer-dctcp", "peer-ecn", "peer-mtu", "peer-timestamps"];
    assert!(all.iter().all(|check| followed.contains(check)), "{followed:?}");
}

#[test]
fn every_check_of_two_machines_has_its_pair() {
    let found: BTreeSet<&str> = PLANTED.iter().map(|planted| planted.finds.as_str()).collect();
    let without: Vec<&str> =
        CHECKS.iter().map(|check| check.id.as_str()).filter(|id| !found.contains(id)).collect();
    assert!(without.is_empty(), "{without:?}");
    assert!(CHECKS.len() >= 20, "{}", CHECKS.len());
    assert!(CHECKS.iter().all(|check| check.source.is_some()));
}

#[test]
fn who_uses_whom_is_seen() {
    let (target, initiator) = world(World::Tcp);
    let (target, initiator) = (facts(&target), facts(&initiator));
    assert_eq!(role(&initiator, &target), Some(Role::Initiator));
    assert_eq!(role(&target, &initiator), Some(Role::Target));
    // Nobody is connected: who serves is the target.
    let mut idle = initiator.clone();
    idle.initiators.open_iscsi = None;
    assert_eq!(role(&idle, &target), Some(Role::Initiator));
    assert_eq!(role(&target, &idle), Some(Role::Target));
    assert_eq!(role(&idle, &idle), None);
}

/// Each address of the other end is tried once, with the smaller MTU; without an answer nothing is said.
#[test]
fn packets_are_tried_in_the_networks_of_both() {
    let (target, initiator) = world(World::Tcp);
    let mut pair = Pair { target: facts(&target), initiator: facts(&initiator), ..Pair::default() };
    let tried = |pings: &[lunet_host::doctor::peer::Ping]| -> Vec<(String, i64)> {
        pings.iter().map(|ping| (ping.address.clone(), ping.mtu)).collect()
    };
    let (one, other) = (("10.25.0.20".to_owned(), 9000), ("10.25.1.20".to_owned(), 9000));
    assert_eq!(tried(&paths(&pair, false)), [one, other]);
    assert_eq!(paths(&pair, true)[0].address, "10.25.0.31");
    let sizes = std::sync::Mutex::new(Vec::new());
    pair.probed = probe(&paths(&pair, false)[..1], &|_, bytes| {
        sizes.lock().unwrap().push(bytes);
        true
    });
    assert_eq!(*sizes.lock().unwrap(), [56, 8972]);
    let silent = probe(&paths(&pair, false)[..1], &|_, _| false);
    assert_eq!(silent, [Probed { answers: false, whole: false, ..pair.probed[0].clone() }]);
    pair.probed = silent;
    assert!(examine_pair(&pair, &CHECKS).findings.is_empty());
}

/// Facts of machines that have nothing in common say nothing, and nothing breaks.
#[test]
fn strangers_have_nothing_in_common() {
    for (target, initiator) in [("vm-virtio", "debian-lio"), ("debian-lio", "vm-virtio")] {
        let (target, initiator): (Facts, Facts) = (facts(&tree(target)), facts(&tree(initiator)));
        let report = examine_pair(&Pair { target, initiator, ..Pair::default() }, &CHECKS);
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert_eq!(report.count(State::Broken), 0, "{:#?}", report.looked);
    }
}

/// The table in docs/doctor.md says what these tests have found.
#[test]
fn the_page_has_every_pair() {
    let mut table =
        String::from("| check | severity | fault | what the doctor says |\n|---|---|---|---|\n");
    for check in CHECKS.iter() {
        let all = PLANTED.iter().zip(REPORTS.iter());
        for (planted, reports) in all.filter(|(planted, _)| planted.finds == check.id) {
            let (report, _) = reports.as_ref().unwrap();
            let finding = report.findings.iter().find(|f| f.check == planted.finds).unwrap();
            let severity = format!("{}", check.severity).to_lowercase();
            let found = finding.found.replace('|', "\\|");
            let _ = writeln!(table, "| `{}` | {severity} | {} | {found} |", check.id, planted.name);
        }
    }
    let count = format!("{} checks of two machines, {} pairs.\n", CHECKS.len(), PLANTED.len());
    let marks = ("<!-- written by tools/host/tests/peer.rs -->\n", "<!-- end of peer -->\n");
    hold("../../docs/doctor.md", Some(marks), &format!("{count}\n{table}"));
}
