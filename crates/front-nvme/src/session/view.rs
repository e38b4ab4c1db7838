//! What a queue sees of the world, and how it takes to the next one.

use std::time::Duration;

use lunet_nvme::controller::{Kind, Tag};
use lunet_nvme::feature::Event;
use lunet_nvme::status::Status;
use lunet_server::conn::{ConnId, Phase};
use lunet_volume::{Face, VolumeId};

use super::connect::seen;
use super::identify::{Way, discovery, of_group, of_path};
use super::messages::end_command;
use super::through::origin_of;
use super::{Conn, Shard, admin};
use crate::config::{Host, Tls};
use crate::connection::{Channel, Seen};
use crate::world::{Exports, World};

/// How long a host whose controller ends has to take what is left for it.
const GRACE: Duration = Duration::from_secs(3);

/// Shows a queue the next world.
pub(super) fn see<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, next: &World<Fc>) {
    let conn = &shard.conns[slot];
    let Some(queue) = conn.front.queue.as_ref().filter(|_| conn.phase == Phase::Open) else {
        return;
    };
    if queue.member.kind == Kind::Discovery {
        return see_discovery(shard, slot, next);
    }
    let home = next.portals.home(conn.portal);
    let (host, origin) = (queue.member.host.nqn.clone(), origin_of(conn));
    let secured = matches!(conn.front.tls, Channel::Tls(_));
    // What a host has to prove it has proved at the gateway that it comes through.
    let vouched = conn.front.through.is_some();
    let protected = secured || vouched || !turns_to_tls(shard, conn.portal, next);
    let keeps = next.rules.keep_sessions;
    let subsystem = queue.member.subsystem.and_then(|number| next.export(number)).filter(|it| {
        let reached = home.is_some_and(|portal| it.is_reached_through(portal));
        let same = queue.subsystem.as_ref().is_some_and(|now| now.nqn == it.nqn);
        // Who has not proved itself by the secret or the key that is asked for now has to connect anew.
        let before = queue.subsystem.as_ref().and_then(|now| now.host(&host));
        let proves = |now: &Host| now.secret.is_some() || now.tls.is_some();
        let proven =
            vouched || it.host(&host).is_none_or(|now| !proves(now) || before == Some(now));
        // One that was kept when the rules changed goes by no later change of others.
        let unchanged = queue.subsystem.as_ref().is_some_and(|now| now.has_hosts_of(it));
        let admitted = unchanged || it.admits(&host, origin) && proven;
        reached && same && (keeps || admitted && protected)
    });
    let own = of_group(&shard.front, conn);
    let Some(subsystem) = subsystem.cloned() else { return shard.drain_within(slot, GRACE) };
    let fresh = seen(next, Some(&subsystem));
    let changed = compare(shard, slot, next, &fresh);
    end_lost(shard, slot, &fresh);
    let conn = &mut shard.conns[slot];
    let Some(queue) = &mut conn.front.queue else { return };
    queue.namespaces = keep(std::mem::take(&mut queue.namespaces), fresh);
    queue.subsystem = Some(subsystem);
    let portal = conn.portal;
    let state = |volume| own.unwrap_or_else(|| of_path(next.path(volume, portal)));
    let states = queue
        .namespaces
        .iter()
        .filter_map(|seen| Some((seen.nsid, state(next.volume(seen.volume)?))));
    let states: Vec<_> = states.collect();
    if let Some(admin) = &mut conn.front.admin {
        changed.into_iter().for_each(|nsid| admin.controller.namespace_changed(nsid));
        if admin.paths != states {
            admin.paths = states;
            admin.path_changes += 1;
            admin.controller.notify(Event::Ana);
        }
        admin::after(shard, slot);
    }
}

/// True if a portal demands TLS that has not done so.
fn turns_to_tls<Fc: Face>(shard: &Shard<Fc>, portal: usize, next: &World<Fc>) -> bool {
    let demands = |world: &World<Fc>| {
        world.portals.home(portal).is_some_and(|home| world.rules.tls(home) == Tls::Required)
    };
    demands(next) && !demands(&shard.front.world)
}

/// A discovery controller tells its host if the log is another one.
fn see_discovery<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, next: &World<Fc>) {
    let conn = &shard.conns[slot];
    if next.portals.home(conn.portal).is_none() {
        return shard.drain_within(slot, GRACE);
    }
    let Some(queue) = &conn.front.queue else { return };
    let (host, way) = (&queue.member.host.nqn, Way::of(conn));
    let served = |slot: usize| shard.core.rdma.is_served(slot);
    let way = (way, &served as &dyn Fn(usize) -> bool);
    let [before, after] = [&*shard.front.world, next].map(|world| discovery(world, host, way, 0));
    if before != after {
        if let Some(admin) = &mut shard.conns[slot].front.admin {
            admin.controller.notify(Event::Discovery);
        }
        admin::after(shard, slot);
    }
}

/// The namespaces that have come or gone, or are others.
fn compare<Fc: Face>(
    shard: &Shard<Fc>,
    slot: ConnId,
    next: &World<Fc>,
    fresh: &[Seen],
) -> Vec<u32> {
    let Some(queue) = &shard.conns[slot].front.queue else { return Vec::new() };
    let at = |list: &[Seen], nsid: u32| {
        list.iter().find(|seen| seen.nsid == nsid).map(|seen| seen.volume)
    };
    let looks = |world: &World<Fc>, volume: VolumeId| {
        let volume = world.volume(volume)?;
        Some((volume.caps.clone(), volume.face.is_absent(), volume.face.is_read_only()))
    };
    let mut nsids: Vec<u32> = queue.namespaces.iter().chain(fresh).map(|seen| seen.nsid).collect();
    nsids.sort_unstable();
    nsids.dedup();
    nsids.retain(|nsid| {
        let (before, after) = (at(&queue.namespaces, *nsid), at(fresh, *nsid));
        let same = |volume| looks(&shard.front.world, volume) == looks(next, volume);
        before != after || before.is_some_and(|volume| !same(volume))
    });
    nsids
}

/// Ends the commands on namespaces that are not there any more.
fn end_lost<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, fresh: &[Seen]) {
    let Conn { front, .. } = &shard.conns[slot];
    let there = |volume: VolumeId, nsid: u32| {
        fresh.iter().any(|seen| seen.volume == volume && (nsid == 0 || seen.nsid == nsid))
    };
    let operations = &shard.front.exec.operations;
    let tasks = front.tasks.iter().flatten().filter_map(|id| operations.get(*id));
    let lost = tasks.filter(|task| !there(task.requests.volume, task.command.nsid));
    let lost: Vec<Tag> = lost.filter_map(|task| task.command.owner.map(|it| it.tag)).collect();
    for tag in lost {
        end_command(shard, slot, tag, Status::INVALID_NAMESPACE.no_retry());
    }
}

/// The namespaces of a queue from now on: what is known of those that stay is kept.
fn keep(before: Vec<Seen>, mut fresh: Vec<Seen>) -> Vec<Seen> {
    for seen in before {
        let same = |it: &&mut Seen| (it.nsid, it.volume) == (seen.nsid, seen.volume);
        if let Some(place) = fresh.iter_mut().find(same) {
            *place = seen;
        }
    }
    fresh
}

/// Ends the controllers with these identifiers.
pub(super) fn end_sessions<Fc: Face>(shard: &mut Shard<Fc>, handles: &[u16]) {
    let named = shard.conns.iter().filter(|(_, conn)| {
        let queue = conn.front.queue.as_ref().filter(|_| conn.phase == Phase::Open);
        queue.is_some_and(|queue| queue.qid == 0 && handles.contains(&queue.member.cntlid))
    });
    let named: Vec<ConnId> = named.map(|(slot, _)| slot).collect();
    for slot in named {
        shard.drain_within(slot, GRACE);
        shard.touch(slot);
    }
    shard.front.take_answers(&mut shard.conns);
}
