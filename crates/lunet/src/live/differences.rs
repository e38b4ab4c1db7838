//! What is different in the next configuration, as far as it takes effect at once.

use crate::config::{self, Access, Config, Target, Volume};
use crate::control::Difference;
use crate::plan::Plan;

use super::Served;
use super::apply::Fate;
use crate::units;

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
    out
}

fn difference(what: &str, name: &str, change: impl Into<String>) -> Difference {
    Difference { what: what.to_owned(), name: name.to_owned(), change: change.into() }
}

/// The portals that come and go.
fn portals((old, new): (&Config, &Config), out: &mut Vec<Difference>) {
    let has = |config: &Config, one: &config::Portal| {
        config.portals.iter().any(|other| other.address == one.address)
    };
    for (of, other, change) in [(old, new, "is gone"), (new, old, "is new")] {
        let lone = of.portals.iter().filter(|portal| !has(other, portal));
        out.extend(lone.map(|portal| difference("portal", &portal.address.to_string(), change)));
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
    let name = &is.name;
    if was.alias != is.alias {
        out.push(difference("target", name, "has another alias"));
    }
    if was.portals != is.portals {
        out.push(difference("target", name, "has other portals"));
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
    access("target", name, (&was.access, &is.access), out);
}

/// Rules that are others.
fn access(what: &str, name: &str, (was, is): (&Access, &Access), out: &mut Vec<Difference>) {
    let of = |user: &str| match name {
        "" => format!("{user} of {what}"),
        name => format!("{user} of {name}"),
    };
    if was.initiators != is.initiators {
        out.push(difference(what, name, "is for other initiators"));
    }
    if was.luns != is.luns {
        out.push(difference(what, name, "shows its LUNs to other initiators"));
    }
    if was.algorithms != is.algorithms {
        out.push(difference(what, name, "accepts other CHAP algorithms"));
    }
    for user in &was.users {
        if !is.users.iter().any(|other| other.login.name == user.login.name) {
            out.push(difference("user", &of(&user.login.name), "is gone"));
        }
    }
    for user in &is.users {
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
