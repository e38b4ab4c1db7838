//! ZFS, targets and initiators.

use super::{Page, bytes, counted, on};
use crate::facts::{Initiators, Pool, Portal, Target, Value, Zfs};

pub(super) fn zfs(page: &mut Page, zfs: Option<&Zfs>) {
    let Some(zfs) = zfs else { return };
    page.heading("ZFS");
    page.entry([
        Some(match &zfs.version {
            Some(version) => format!("OpenZFS {version}"),
            None => "OpenZFS is installed, its module is not loaded".to_owned(),
        }),
        zfs.arc.as_ref().and_then(|arc| {
            Some(format!("cache {} of at most {}", bytes(arc.size_bytes?), bytes(arc.max_bytes?)))
        }),
        zfs.arc
            .as_ref()
            .and_then(|arc| arc.hit_percent)
            .map(|percent| format!("answers {percent} % of reads")),
    ]);
    for pool in &zfs.pools {
        self::pool(page, pool);
    }
    for zvol in &zfs.zvols {
        page.entry([
            Some(format!("volume {}", zvol.name)),
            zvol.device.clone(),
            zvol.volsize_bytes.map(bytes),
            zvol.volblocksize_bytes.map(|size| format!("blocks of {}", bytes(size))),
            zvol.sync.as_ref().map(|sync| format!("sync {sync}")),
            zvol.compression.as_ref().map(|kind| format!("compression {kind}")),
            zvol.primarycache.as_ref().map(|kind| format!("cache {kind}")),
            zvol.volthreading.map(|flag| format!("volthreading {}", on(flag))),
        ]);
    }
}

fn pool(page: &mut Page, pool: &Pool) {
    page.entry([
        Some(format!("pool {}", pool.name)),
        pool.health.clone(),
        pool.size_bytes.map(bytes),
        pool.capacity_percent.map(|percent| format!("{percent} % full")),
        pool.fragmentation_percent.map(|percent| format!("{percent} % fragmented")),
        pool.ashift.map(|ashift| format!("ashift {ashift}")),
        pool.autotrim.map(|flag| format!("autotrim {}", on(flag))),
    ]);
    for vdev in &pool.vdevs {
        let disks = vdev.disks.iter().map(|disk| disk.drive.clone().unwrap_or(disk.name.clone()));
        page.more([
            Some(format!("{} {}", vdev.role, vdev.name)),
            vdev.state.clone(),
            Some(disks.collect::<Vec<_>>().join(" ")),
        ]);
    }
}

pub(super) fn targets(page: &mut Page, targets: &[Target]) {
    if targets.is_empty() {
        return;
    }
    page.heading("Targets");
    for target in targets {
        page.entry([
            Some(target.name.clone()),
            Some(match &target.version {
                Some(version) => format!("{} {version}", target.kind),
                None => target.kind.clone(),
            }),
            target.enabled.filter(|enabled| !enabled).map(|_| "switched off".to_owned()),
            target.queue_depth.map(|depth| format!("queue depth {depth}")),
            target.auth.as_ref().map(|auth| format!("authentication {auth}")),
            target.demo_mode.map(|open| open_to(target, open).to_owned()),
        ]);
        let portals: Vec<String> = target.portals.iter().map(portal).collect();
        page.more([(!portals.is_empty()).then(|| format!("at {}", portals.join(" and ")))]);
        for lun in &target.luns {
            page.more([
                Some(format!("LUN {}", lun.lun)),
                lun.path.clone().or(lun.device.clone()),
                lun.backing.clone(),
                lun.size_bytes.map(bytes),
                lun.block_bytes.map(|size| format!("blocks of {size} B")),
                lun.threads.map(|threads| counted(threads, "thread")),
                lun.write_cache.map(|cache| format!("write cache {}", on(cache))),
            ]);
        }
        for session in &target.sessions {
            page.more([
                Some(format!("session of {}", session.initiator)),
                session.address.as_ref().map(|address| format!("from {address}")),
                session.transport.as_ref().map(|transport| format!("over {transport}")),
            ]);
        }
    }
}

fn portal(portal: &Portal) -> String {
    let port = portal.port.map(|port| format!(":{port}")).unwrap_or_default();
    let address = match portal.address.contains(':') {
        true => format!("[{}]", portal.address),
        false => portal.address.clone(),
    };
    let transport = portal.transport.as_ref().map(|kind| format!(" ({kind})")).unwrap_or_default();
    let public = if portal.public == Some(true) { " in the Internet" } else { "" };
    format!("{address}{port}{transport}{public}")
}

pub(super) fn initiators(page: &mut Page, initiators: &Initiators) {
    let iscsi = initiators.open_iscsi.as_ref();
    if iscsi.is_none() && initiators.nvme_hosts.is_empty() {
        return;
    }
    page.heading("Initiators");
    if let Some(iscsi) = iscsi {
        page.entry([
            Some(match &iscsi.version {
                Some(version) => format!("open-iscsi {version}"),
                None => "open-iscsi".to_owned(),
            }),
            iscsi.initiator_name.clone(),
        ]);
        for session in &iscsi.sessions {
            let disks: Vec<&str> = session.disks.iter().map(|disk| disk.name.as_str()).collect();
            let depth = session.disks.iter().filter_map(|disk| disk.queue_depth).min();
            page.more([
                Some(format!("session {} to {}", session.sid, session.target)),
                session.address.as_ref().map(|address| format!("at {address}")),
                session.transport.as_ref().map(|transport| format!("over {transport}")),
                session.state.clone(),
                Some(disks.join(" ")),
                depth.map(|depth| format!("queue depth {depth}")),
                session.cmds_max.map(|most| format!("{most} commands at once")),
            ]);
        }
    }
    for host in &initiators.nvme_hosts {
        page.entry([
            Some(host.nqn.clone()),
            host.io_policy.clone(),
            Some(host.namespaces.join(" ")),
        ]);
        for path in &host.paths {
            page.more([
                Some(path.name.clone()),
                path.transport.clone(),
                path.address.clone(),
                path.state.clone(),
                path.queue_size.map(|size| format!("queues of {size}")),
            ]);
        }
    }
    for map in &initiators.multipath.maps {
        page.entry([
            map.name.as_ref().map(|name| format!("multipath {name}")),
            Some(map.device.clone()),
            Some(map.paths.join(" ")),
            map.path_selector.clone(),
        ]);
    }
}

/// For whom a target is.
fn open_to(target: &Target, open: bool) -> &'static str {
    match (open, target.params.get("for")) {
        (true, _) => "open to every initiator",
        (false, Some(Value::Text(word))) if word == "this-machine" => "for this machine alone",
        (false, _) => "open to those on its list",
    }
}
