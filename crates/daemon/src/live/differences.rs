//! What is different in the next configuration, as far as it takes effect at once.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use lunet_api::Difference;

use crate::plan::Plan;
use lunet_config::{self as config, Access, Config, Hosts, Reach, Subsystem, Target, Volume};

use super::Served;
use super::apply::Fate;
use super::limits;
use lunet_config::units;

/// Everything that becomes different, in the order of the file's tables.
pub(super) fn differences(
    now: &Served,
    next: &Plan,
    fates: &[(Volume, Option<Fate>)],
) -> Vec<Difference> {
    let mut out = Vec::new();
    portals((&now.plan.config, &next.config), &mut out);
    out.extend(regrouped(&now.plan, next));
    volumes(now, fates, &mut out);
    let (old, new) = (&now.plan.config, &next.config);
    for target in &old.targets {
        if !new.targets.iter().any(|other| other.name == target.name) {
            out.push(difference("target", &target.name, "is gone"));
        }
    }
    for target in &new.targets {
        match old.targets.iter().find(|other| other.name == target.name) {
            Some(was) => of_target((was, old), (target, new), &mut out),
            None => out.push(difference("target", &target.name, "is new")),
        }
    }
    access("discovery", "", (&old.discovery, &new.discovery), &mut out);
    subsystems((old, new), &mut out);
    if old.limits != new.limits {
        out.push(difference("limits", "", "of initiators and sessions are others"));
    }
    out
}

fn difference(what: &str, name: &str, change: impl Into<String>) -> Difference {
    Difference { what: what.to_owned(), name: name.to_owned(), change: change.into() }
}

/// The portals that come and go.
fn portals((old, new): (&Config, &Config), out: &mut Vec<Difference>) {
    let all = |config: &Config| -> Vec<config::Portal> {
        config.portals.iter().chain(&config.nvme.portals).cloned().collect()
    };
    let (old, new) = (all(old), all(new));
    for (of, others, change) in [(&old, &new, "is gone"), (&new, &old, "is new")] {
        let has = |one: &config::Portal| others.iter().any(|other| other.address == one.address);
        let lone = of.iter().filter(|portal| !has(portal));
        out.extend(lone.map(|portal| difference("portal", &portal.address.to_string(), change)));
    }
}

/// What is served over NVMe, by the names of subsystems.
fn subsystems((old, new): (&Config, &Config), out: &mut Vec<Difference>) {
    if old.nvme.announce != new.nvme.announce {
        let text = if new.nvme.announce {
            "discovery is announced by mDNS"
        } else {
            "discovery is not announced by mDNS any more"
        };
        out.push(difference("nvme", "announce", text));
    }
    if old.nvme.referrals != new.nvme.referrals {
        out.push(difference("nvme", "referrals", "name other discovery controllers"));
    }
    for was in &old.nvme.subsystems {
        if new.nvme.find(&was.nqn).is_none() {
            out.push(difference("subsystem", &was.nqn, "is gone"));
        }
    }
    for is in &new.nvme.subsystems {
        let Some(was) = old.nvme.find(&is.nqn) else {
            out.push(difference("subsystem", &is.nqn, "is new"));
            continue;
        };
        let volume = |config: &Config, subsystem: &Subsystem, nsid: u32| {
            let (_, at) = subsystem.namespaces.iter().find(|(number, _)| *number == nsid)?;
            Some(config.volumes[*at].name.clone())
        };
        let both = was.namespaces.iter().chain(&is.namespaces).map(|(nsid, _)| *nsid);
        for nsid in both.collect::<BTreeSet<u32>>() {
            let change = match (volume(old, was, nsid), volume(new, is, nsid)) {
                (before, Some(now)) if before.as_ref() != Some(&now) => {
                    format!("has volume {now} as namespace {nsid}")
                }
                (Some(_), None) => format!("has no namespace {nsid} any more"),
                _ => continue,
            };
            out.push(difference("subsystem", &is.nqn, change));
        }
        let portals = |config: &Config, subsystem: &Subsystem| -> Vec<SocketAddr> {
            subsystem.portals.iter().map(|at| config.nvme.portals[*at].address).collect()
        };
        if portals(old, was) != portals(new, is) {
            out.push(difference("subsystem", &is.nqn, "has other portals"));
        }
        if !was.hosts.are(&is.hosts) {
            let change = match &is.hosts {
                Hosts::ThisMachine => "is for hosts on this machine alone",
                Hosts::Everybody => "is open to every host",
                Hosts::Named(_) => "is for other hosts",
            };
            out.push(difference("subsystem", &is.nqn, change));
        }
    }
}

/// The portal groups with another state or preference.
fn regrouped(old: &Plan, new: &Plan) -> Vec<Difference> {
    let mut out = Vec::new();
    for is in &new.config.portals {
        let was = old.config.portals.iter().find(|was| was.tag == is.tag);
        let state = |portal: &config::Portal| (portal.group_state, portal.preferred);
        if was.is_some_and(|was| state(was) != state(is)) {
            let preferred = if is.preferred { ", preferred" } else { "" };
            let state = config::state_word(is.group_state);
            let change = format!("is {state}{preferred} now");
            out.push(difference("portal group", &is.tag.to_string(), change));
        }
    }
    out.dedup();
    out
}

fn volumes(now: &Served, fates: &[(Volume, Option<Fate>)], out: &mut Vec<Difference>) {
    for (volume, fate) in fates {
        let change = match (fate, now.open.get(&volume.name)) {
            // What becomes of it shows when it is opened.
            (None, _) if now.unserved.contains_key(&volume.name) => continue,
            (None, _) => "is new".to_owned(),
            (Some(Fate::Grows(size)), _) => format!("has {} now", units::exact_size(*size)),
            (Some(Fate::Stays), Some(open)) if open.config.threshold != volume.threshold => {
                "has another threshold".to_owned()
            }
            (Some(Fate::Stays), Some(open)) if open.config.write_cache != volume.write_cache => {
                let word = if volume.write_cache { "on" } else { "off" };
                format!("has its write cache {word} now")
            }
            (Some(Fate::Stays), Some(open))
                if (open.config.rates, open.config.share) != (volume.rates, volume.share) =>
            {
                limits::told(volume.rates, volume.share)
            }
            (Some(Fate::Stays), _) => continue,
        };
        out.push(difference("volume", &volume.name, change));
    }
    for (name, gone) in &now.open {
        if fates.iter().any(|(volume, _)| volume.name == *name) {
            continue;
        }
        let change = match gone.config.path(&now.plan.data) {
            Some(path) => format!("is gone, its data is still in {}", path.display()),
            None => "is gone".to_owned(),
        };
        out.push(difference("volume", name, change));
    }
}

fn of_target(
    (was, old): (&Target, &Config),
    (is, new): (&Target, &Config),
    out: &mut Vec<Difference>,
) {
    // Named one by one, so that nothing that a target has is forgotten here.
    let Target { name, alias, portals, luns: _, access: rules, allow_reset } = is;
    if was.alias != *alias {
        out.push(difference("target", name, "has another alias"));
    }
    if was.portals != *portals {
        out.push(difference("target", name, "has other portals"));
    }
    if was.allow_reset != *allow_reset {
        let change =
            if *allow_reset { "may be reset by its initiators" } else { "is not to be reset" };
        out.push(difference("target", name, change));
    }
    if was.reach() != is.reach() {
        // What is named instead is told where it is named.
        let change = match is.reach() {
            Reach::Everybody => Some("is open to everybody"),
            Reach::ThisMachine => Some("is for this machine alone"),
            Reach::Named => None,
        };
        out.extend(change.map(|change| difference("target", name, change)));
    }
    let volume = |config: &Config, target: &Target, lun: u16| {
        let (_, at) = target.luns.iter().find(|(number, _)| *number == lun)?;
        Some(config.volumes[*at].name.clone())
    };
    let mut luns: Vec<u16> = was.luns.iter().chain(&is.luns).map(|(lun, _)| *lun).collect();
    luns.sort_unstable();
    luns.dedup();
    for lun in luns {
        let (before, after) = (volume(old, was, lun), volume(new, is, lun));
        let change = match (&before, &after) {
            (_, Some(after)) if before.as_ref() != Some(after) => format!("is volume {after}"),
            (Some(_), None) => "is gone".to_owned(),
            _ => continue,
        };
        out.push(difference("LUN", &format!("{lun} of {name}"), change));
    }
    access("target", name, (&was.access, rules), out);
}

/// Rules that are others.
fn access(what: &str, name: &str, (was, is): (&Access, &Access), out: &mut Vec<Difference>) {
    let of = |user: &str| match name {
        "" => format!("{user} of {what}"),
        name => format!("{user} of {name}"),
    };
    // `open` matters where nobody is named, and is told with the target's reach.
    let Access { initiators, algorithms, users, mutual: _, luns, open: _ } = is;
    if was.initiators != *initiators {
        out.push(difference(what, name, "is for other initiators"));
    }
    if was.luns != *luns {
        out.push(difference(what, name, "shows its LUNs to other initiators"));
    }
    if was.algorithms != *algorithms {
        out.push(difference(what, name, "accepts other CHAP algorithms"));
    }
    for user in &was.users {
        if !users.iter().any(|other| other.login.name == user.login.name) {
            out.push(difference("user", &of(&user.login.name), "is gone"));
        }
    }
    for user in users {
        let old = was.users.iter().find(|other| other.login.name == user.login.name);
        let change = match old {
            None => "is new",
            Some(old) if old.login.secret.known() != user.login.secret.known() => {
                "has another secret"
            }
            Some(old) if old.initiators != user.initiators => "is for other initiators",
            Some(_) => continue,
        };
        out.push(difference("user", &of(&user.login.name), change));
    }
    let known = |access: &Access| {
        access.mutual.as_ref().map(|own| (own.name.clone(), own.secret.known().cloned()))
    };
    if known(was) != known(is) {
        out.push(difference(what, name, "proves itself with another account"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    #[test]
    fn everything_that_a_target_says_is_told_when_it_changes() {
        let file = |keys: &str| {
            let text = format!(
                "[volumes.a]\nbackend = 'null'\nsize = 512\n[volumes.b]\nbackend = 'null'\nsize = 512\n\
                 [[portal]]\naddress = '127.0.0.1:1'\n[[portal]]\naddress = '127.0.0.1:2'\n\
                 [[target]]\nname = 'iqn.2026-11.l:x'\n{keys}\n"
            );
            check(&text).unwrap()
        };
        let told = |was: &str, is: &str| {
            let ((old, new), mut out) = ((file(was), file(is)), Vec::new());
            of_target((&old.targets[0], &old), (&new.targets[0], &new), &mut out);
            out.iter().map(|one| one.change.clone()).collect::<Vec<_>>()
        };
        let user = "[[target.user]]\nname = 'u'\nsecret = 'a secret of 16 b'";
        for (was, is, change) in [
            ("", "alias = 'y'", "has another alias"),
            ("", "portals = ['127.0.0.1:2']", "has other portals"),
            ("", "luns = ['a']", "is volume a"),
            ("", "allow-reset = true", "may be reset by its initiators"),
            ("allow-reset = true", "", "is not to be reset"),
            ("", "open = true", "is open to everybody"),
            ("open = true", "", "is for this machine alone"),
            ("", "initiators = ['iqn.a:1']", "is for other initiators"),
            ("", user, "is new"),
        ] {
            assert_eq!(told(was, is), [change], "{was} {is}");
        }
        // One that named somebody, and a LUN that is for all where others were for some.
        let (closed, open) = ("is for this machine alone", "is open to everybody");
        assert_eq!(told("initiators = ['iqn.a:1']", ""), [closed, "is for other initiators"]);
        assert_eq!(told(user, ""), [closed, "is gone"]);
        let masked = |more: &str| {
            format!(
                "luns = {{ 0 = {{ volume = 'a', initiators = ['iqn.a:1'] }}{more} }}\nopen = true"
            )
        };
        assert_eq!(told(&masked(""), &masked(", 1 = 'b'")), [open, "is volume b"]);
        // It matters to nobody, and changes nothing.
        let listed = "initiators = ['iqn.a:1']";
        assert_eq!(told(listed, &format!("{listed}\nopen = true")), [""; 0]);
    }
}
