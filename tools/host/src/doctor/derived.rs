//! What several layers say together: the variables that checks have beside the facts.
//!
//! | variable | one entry for each | fields |
//! |---|---|---|
//! | `vdevs` | vdev of a pool | `pool`, `vdev`, `drives` (those of the vdev that are known, each with its `ceiling`) |
//! | `volumes` | zvol | `pool`, `zvol`, `raidz` (`null` unless all its data vdevs are RAID-Z) |
//! | `portals` | portal of a target | `target`, `portal`, `nic`, `rdma`, `listening` |
//! | `luns` | LUN of a target | `target`, `lun`, `zvol`, `pool` |
//! | `target_sessions` | session of a target | `target`, `session`, `rdma`, `why_tcp` |
//! | `lunet_portals` | portal of a running lunet | `lunet`, `portal`, `name`, `rdma`, `carried`, `loopback`, `over`, `served`, `wanted` |
//! | `nvme_paths` | path of an NVMe subsystem that is used over a network | `host`, `path`, `nic`, `rdma` (towards the portal's address, if it is in a network of this machine) |
//! | `cephs` | the Ceph cluster, if this machine has a configuration of one | as `ceph` |
//! | `nfs_servers` | the kernel's NFS server, if something is exported or it runs | as `nfs` |
//! | `nfs_mounts` | NFS mount | `mount`, `transport` (`tcp`, `rdma`...), `wants_rdma` (whether /etc/fstab says so), `nic`, `rdma` (towards the server's address, if it is in a network of this machine) |
//! | `disks` | disk of an iSCSI session | `session`, `disk`, `drive` |
//! | `storage_nics` | NIC with hardware and a cable that storage goes over | as `nics` |
//! | `storage_rdma` | RDMA port of such a NIC | `rdma`, `nic` |
//! | `data_drives` | local drive that holds data which is kept or served: in a pool that is none to start from (not as its cache), behind a LUN, or as a whole below an md array or a volume group | as `drives` |
//!
//! `storage_wire_bytes_per_second` is what all `storage_nics` together can receive, the ports of one card no more than its
//! PCIe link carries. `rdma_used` is whether a portal, session or path uses RDMA.

mod iser;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::expr::{Scope, Shape, Value};
use crate::facts::{
    Ceph, Drive, Facts, IscsiDisk, IscsiSession, Lun, Lunet, LunetPortal, Mount, Nfs, Nic,
    NvmeHost, NvmePath, Pool, Portal, Rdma, Target, TargetSession, Vdev, Zvol, drives_of,
    rdma_used, storage_nics,
};

#[derive(Serialize)]
struct VdevOf<'a> {
    pool: &'a Pool,
    vdev: &'a Vdev,
    drives: Vec<DriveOf<'a>>,
}

#[derive(Serialize)]
struct DriveOf<'a> {
    #[serde(flatten)]
    drive: &'a Drive,
    /// What it reads at most, in bytes per second.
    ceiling: Option<i64>,
}

#[derive(Serialize)]
struct VolumeOf<'a> {
    pool: Option<&'a Pool>,
    zvol: &'a Zvol,
    raidz: Option<RaidzSpace>,
}

/// What a block of a volume takes up on RAID-Z.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct RaidzSpace {
    vdev: String,
    disks: i64,
    parity: i64,
    /// Sectors for a block: data, parity and padding.
    sectors: i64,
    /// Sectors of data in it.
    data_sectors: i64,
    /// Space for a byte of data, in percent: 133 with three data drives and one of parity.
    space_percent: i64,
    /// The same for a very large block.
    ideal_percent: i64,
}

#[derive(Serialize)]
struct PortalOf<'a> {
    target: &'a Target,
    portal: &'a Portal,
    nic: Option<&'a Nic>,
    rdma: Option<&'a Rdma>,
    listening: Option<bool>,
}

#[derive(Serialize)]
struct LunOf<'a> {
    target: &'a Target,
    lun: &'a Lun,
    zvol: Option<&'a Zvol>,
    pool: Option<&'a Pool>,
}

#[derive(Serialize)]
struct SessionOf<'a> {
    target: &'a Target,
    session: &'a TargetSession,
    rdma: Option<&'a Rdma>,
    why_tcp: &'static str,
}

#[derive(Serialize)]
struct DiskOf<'a> {
    session: &'a IscsiSession,
    disk: &'a IscsiDisk,
    drive: Option<&'a Drive>,
}

#[derive(Serialize)]
struct NvmePathOf<'a> {
    host: &'a NvmeHost,
    path: &'a NvmePath,
    nic: Option<&'a Nic>,
    rdma: Option<&'a Rdma>,
}

#[derive(Serialize)]
struct NfsMountOf<'a> {
    mount: &'a Mount,
    transport: Option<&'a str>,
    wants_rdma: bool,
    nic: Option<&'a Nic>,
    rdma: Option<&'a Rdma>,
}

#[derive(Serialize)]
struct RdmaOf<'a> {
    rdma: &'a Rdma,
    nic: Option<&'a Nic>,
}

/// Sets the variables.
pub(super) fn set(scope: &mut Scope<'_>, facts: &Facts) {
    put(scope, "vdevs", &vdevs(facts));
    put(scope, "volumes", &volumes(facts));
    put(scope, "portals", &portals(facts));
    put(scope, "luns", &luns(facts));
    put(scope, "target_sessions", &target_sessions(facts));
    put(scope, "lunet_portals", &iser::lunet_portals(facts));
    put(scope, "disks", &disks(facts));
    put(scope, "nvme_paths", &nvme_paths(facts));
    put(scope, "cephs", &facts.ceph.iter().collect::<Vec<_>>());
    put(scope, "nfs_servers", &facts.nfs.iter().collect::<Vec<_>>());
    put(scope, "nfs_mounts", &nfs_mounts(facts));
    let nics = storage_nics(facts);
    let ports: Vec<RdmaOf<'_>> = facts
        .rdma
        .iter()
        .map(|rdma| RdmaOf { rdma, nic: nic_of(facts, rdma) })
        .filter(|port| port.nic.is_none_or(|nic| nics.iter().any(|n| n.name == nic.name)))
        .collect();
    put(scope, "storage_rdma", &ports);
    put(scope, "storage_nics", &nics);
    put(scope, "rdma_used", &rdma_used(facts));
    put(scope, "storage_wire_bytes_per_second", &wire_bytes_per_second(&nics));
    put(scope, "data_drives", &data_drives(facts));
}

/// The names of the variables, beside those that are there.
pub(super) fn names(names: Shape) -> Shape {
    let fields = |list: Vec<(&str, Shape)>| {
        let fields = list.into_iter().map(|(name, shape)| (name.to_owned(), shape));
        Shape::list(Shape::fields(fields))
    };
    let list = Shape::list;
    let plain = || Shape::Plain;
    let drive = Shape::of::<Drive>().with("ceiling", plain());
    let raidz =
        ["vdev", "disks", "parity", "sectors", "data_sectors", "space_percent", "ideal_percent"];
    let raidz = raidz.into_iter().map(|name| (name.to_owned(), plain()));
    let vdev =
        vec![("pool", Shape::of::<Pool>()), ("vdev", Shape::of::<Vdev>()), ("drives", list(drive))];
    let volume = vec![
        ("pool", Shape::of::<Pool>()),
        ("zvol", Shape::of::<Zvol>()),
        ("raidz", Shape::fields(raidz)),
    ];
    let portal = vec![
        ("target", Shape::of::<Target>()),
        ("portal", Shape::of::<Portal>()),
        ("nic", Shape::of::<Nic>()),
        ("rdma", Shape::of::<Rdma>()),
        ("listening", plain()),
    ];
    let lun = vec![
        ("target", Shape::of::<Target>()),
        ("lun", Shape::of::<Lun>()),
        ("zvol", Shape::of::<Zvol>()),
        ("pool", Shape::of::<Pool>()),
    ];
    let session = vec![
        ("target", Shape::of::<Target>()),
        ("session", Shape::of::<TargetSession>()),
        ("rdma", Shape::of::<Rdma>()),
        ("why_tcp", plain()),
    ];
    let disk = vec![
        ("session", Shape::of::<IscsiSession>()),
        ("disk", Shape::of::<IscsiDisk>()),
        ("drive", Shape::of::<Drive>()),
    ];
    let path = vec![
        ("host", Shape::of::<NvmeHost>()),
        ("path", Shape::of::<NvmePath>()),
        ("nic", Shape::of::<Nic>()),
        ("rdma", Shape::of::<Rdma>()),
    ];
    let rdma = vec![("rdma", Shape::of::<Rdma>()), ("nic", Shape::of::<Nic>())];
    let own = [
        ("lunet", Shape::of::<Lunet>()),
        ("portal", Shape::of::<LunetPortal>()),
        ("rdma", Shape::of::<Rdma>()),
    ];
    let own = own.into_iter().chain(iser::PLAIN.map(|name| (name, plain()))).collect();
    of_nfs(names)
        .with("vdevs", fields(vdev))
        .with("volumes", fields(volume))
        .with("portals", fields(portal))
        .with("luns", fields(lun))
        .with("target_sessions", fields(session))
        .with("lunet_portals", fields(own))
        .with("disks", fields(disk))
        .with("nvme_paths", fields(path))
        .with("storage_rdma", fields(rdma))
        .with("storage_nics", list(Shape::of::<Nic>()))
        .with("rdma_used", plain())
        .with("storage_wire_bytes_per_second", plain())
        .with("data_drives", list(Shape::of::<Drive>()))
}

/// The names of what is known of NFS and Ceph.
fn of_nfs(names: Shape) -> Shape {
    let mount = [
        ("mount", Shape::of::<Mount>()),
        ("transport", Shape::Plain),
        ("wants_rdma", Shape::Plain),
        ("nic", Shape::of::<Nic>()),
        ("rdma", Shape::of::<Rdma>()),
    ];
    let mount = mount.into_iter().map(|(name, shape)| (name.to_owned(), shape));
    names
        .with("cephs", Shape::list(Shape::of::<Ceph>()))
        .with("nfs_servers", Shape::list(Shape::of::<Nfs>()))
        .with("nfs_mounts", Shape::list(Shape::fields(mount)))
}

fn put(scope: &mut Scope<'_>, name: &str, value: &impl Serialize) {
    // What is not there is null; facts can always be written.
    scope.set(name, cel::to_value(value).unwrap_or(Value::Null));
}

/// What the interfaces can receive together; the ports of one card share its link to the processor.
pub(super) fn wire_bytes_per_second(nics: &[&Nic]) -> i64 {
    // By the card: 0000:3b:00, without the number of the port.
    let mut cards: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for nic in nics.iter().filter(|nic| nic.carrier == Some(true)) {
        let wire = nic.speed_mbit.unwrap_or(0) * 125_000;
        let link = nic.pcie.as_ref().and_then(|pcie| {
            let card = pcie.address.split('.').next()?;
            // About an eighth of what a link moves is no data.
            Some((card, pcie.bytes_per_second? / 8 * 7))
        });
        let (card, most) = link.unwrap_or((&nic.name, i64::MAX));
        cards.entry(card).or_insert((0, most)).0 += wire;
    }
    cards.into_values().map(|(wire, most)| wire.min(most)).sum()
}

/// Pools that systems start from.
const BOOT_POOLS: [&str; 3] = ["boot-pool", "freenas-boot", "bpool"];

pub(super) fn data_drives(facts: &Facts) -> Vec<&Drive> {
    let pools = facts.zfs.iter().flat_map(|zfs| &zfs.pools);
    let pools = pools.filter(|pool| !BOOT_POOLS.contains(&pool.name.as_str()));
    let vdevs = pools.flat_map(|pool| &pool.vdevs).filter(|vdev| vdev.role != "cache");
    let members: Vec<&str> =
        vdevs.flat_map(|vdev| &vdev.disks).filter_map(|disk| disk.drive.as_deref()).collect();
    let luns = facts.targets.iter().flat_map(|target| &target.luns);
    let devices: Vec<&str> =
        luns.filter_map(|lun| lun.path.as_deref()?.strip_prefix("/dev/")).collect();
    let served = |name: &str| devices.contains(&name);
    let holds = |drive: &&Drive| {
        members.contains(&drive.name.as_str())
            || served(&drive.name)
            || drive.partitions.iter().chain(&drive.holders).any(|name| served(name))
            || drive.partitions.is_empty() && !drive.holders.is_empty()
    };
    facts.drives.iter().filter(|drive| !drive.remote).filter(holds).collect()
}

fn vdevs(facts: &Facts) -> Vec<VdevOf<'_>> {
    let pools = facts.zfs.iter().flat_map(|zfs| &zfs.pools);
    let all = pools.flat_map(|pool| pool.vdevs.iter().map(move |vdev| (pool, vdev)));
    let one = |drive| DriveOf { drive, ceiling: crate::ceilings::reads_at_most(drive) };
    all.map(|(pool, vdev)| VdevOf {
        pool,
        vdev,
        drives: drives_of(facts, vdev).into_iter().map(one).collect(),
    })
    .collect()
}

fn volumes(facts: &Facts) -> Vec<VolumeOf<'_>> {
    let Some(zfs) = &facts.zfs else { return Vec::new() };
    let one = |zvol: &'_ Zvol| {
        let pool = zfs.pools.iter().find(|pool| pool.name == zvol.pool);
        pool.and_then(|pool| worst(pool, zvol.volblocksize_bytes?))
    };
    zfs.zvols
        .iter()
        .map(|zvol| VolumeOf {
            pool: zfs.pools.iter().find(|pool| pool.name == zvol.pool),
            zvol,
            raidz: one(zvol),
        })
        .collect()
}

/// The RAID-Z vdev of the pool on which such a block takes up most.
fn worst(pool: &Pool, block: i64) -> Option<RaidzSpace> {
    let data = pool.vdevs.iter().filter(|vdev| vdev.role == "data");
    let spaces: Option<Vec<RaidzSpace>> = data.map(|vdev| raidz(vdev, block)).collect();
    spaces?.into_iter().max_by_key(|space| space.space_percent)
}

/// Each row of data sectors has its parity, and the whole is rounded up to a multiple of one more
/// than the parity (vdev_raidz_asize in OpenZFS).
pub(super) fn raidz(vdev: &Vdev, block: i64) -> Option<RaidzSpace> {
    let disks = i64::try_from(vdev.disks.len()).ok()?;
    let (parity, ashift) = (vdev.parity, vdev.ashift?);
    let across = disks - parity;
    if !vdev.kind.starts_with("raidz") || across < 1 || !(9..=16).contains(&ashift) || block < 512 {
        return None;
    }
    let up = |number: i64, step: i64| (number + step - 1) / step;
    let data_sectors = up(block, 1 << ashift);
    let with_parity = data_sectors + parity * up(data_sectors, across);
    let sectors = up(with_parity, parity + 1) * (parity + 1);
    Some(RaidzSpace {
        vdev: vdev.name.clone(),
        disks,
        parity,
        sectors,
        data_sectors,
        space_percent: sectors * 100 / data_sectors,
        ideal_percent: disks * 100 / across,
    })
}

fn portals(facts: &Facts) -> Vec<PortalOf<'_>> {
    let all = facts.targets.iter().flat_map(|t| t.portals.iter().map(move |p| (t, p)));
    all.map(|(target, portal)| {
        let nic = nic_with(facts, &portal.address);
        let listens = |listener: &crate::facts::Listener| {
            let any = ["0.0.0.0", "::", "*"];
            Some(listener.port) == portal.port
                && (any.contains(&listener.address.as_str())
                    || listener.address == portal.address
                    || any.contains(&portal.address.as_str()))
        };
        // Without any listener in sight, nothing was seen.
        let listening = (!facts.listeners.is_empty()).then(|| facts.listeners.iter().any(listens));
        PortalOf { target, portal, nic, rdma: nic.and_then(|nic| rdma_of(facts, nic)), listening }
    })
    .collect()
}

fn luns(facts: &Facts) -> Vec<LunOf<'_>> {
    let all = facts.targets.iter().flat_map(|t| t.luns.iter().map(move |l| (t, l)));
    let zfs = facts.zfs.as_ref();
    all.map(|(target, lun)| {
        let zvol = zfs.and_then(|zfs| {
            let name = lun.zvol.as_deref()?;
            zfs.zvols.iter().find(|zvol| zvol.name == name)
        });
        let pool = zvol.and_then(|zvol| zfs?.pools.iter().find(|pool| pool.name == zvol.pool));
        LunOf { target, lun, zvol, pool }
    })
    .collect()
}

fn target_sessions(facts: &Facts) -> Vec<SessionOf<'_>> {
    let all = facts.targets.iter().flat_map(|t| t.sessions.iter().map(move |s| (t, s)));
    all.map(|(target, session)| {
        // Where the session comes in: a NIC in whose network the initiator is.
        let near = session.address.as_deref().and_then(|from| nic_towards(facts, from));
        let by_portal = || target.portals.iter().find_map(|p| nic_with(facts, &p.address));
        let rdma = near.or_else(by_portal).and_then(|nic| rdma_of(facts, nic));
        SessionOf { target, session, rdma, why_tcp: why_tcp(facts, target, session) }
    })
    .collect()
}

/// Why a session may be on TCP although the NIC could do RDMA.
fn why_tcp(facts: &Facts, target: &Target, session: &TargetSession) -> &'static str {
    let loaded = |name: &str| facts.modules.iter().any(|module| module == name);
    let (module, missing) = match target.kind.as_str() {
        "scst" => ("isert_scst", "the module isert_scst is not loaded"),
        "lio" => ("ib_isert", "the module ib_isert is not loaded"),
        "nvmet" => ("nvmet_rdma", "the module nvmet-rdma is not loaded"),
        "lunet" if session.iser_offered == Some(true) => return "the initiator chose TCP",
        "lunet" => return "lunet does not serve RDMA there",
        _ => return "this target does not speak RDMA",
    };
    let rdma = |transport: Option<&str>| matches!(transport, Some("iser" | "rdma"));
    if !loaded(module) {
        return missing;
    }
    match target.portals.iter().any(|portal| rdma(portal.transport.as_deref())) {
        true => "the initiator chose TCP",
        false => "no portal of the target is set to RDMA",
    }
}

fn disks(facts: &Facts) -> Vec<DiskOf<'_>> {
    let sessions = facts.initiators.open_iscsi.iter().flat_map(|open| &open.sessions);
    let all = sessions.flat_map(|session| session.disks.iter().map(move |disk| (session, disk)));
    all.map(|(session, disk)| DiskOf {
        session,
        disk,
        drive: facts.drives.iter().find(|drive| drive.name == disk.name),
    })
    .collect()
}

fn nvme_paths(facts: &Facts) -> Vec<NvmePathOf<'_>> {
    let hosts = &facts.initiators.nvme_hosts;
    let all = hosts.iter().flat_map(|host| host.paths.iter().map(move |path| (host, path)));
    all.map(|(host, path)| {
        let nic = path.address.as_deref().and_then(|address| nic_towards(facts, address));
        NvmePathOf { host, path, nic, rdma: nic.and_then(|nic| rdma_of(facts, nic)) }
    })
    .collect()
}

fn nfs_mounts(facts: &Facts) -> Vec<NfsMountOf<'_>> {
    let rdma = |option: &String| ["rdma", "proto=rdma"].contains(&option.as_str());
    let of = |mount| {
        let Mount { path, options, .. }: &Mount = mount;
        let option = |name: &str| options.iter().find_map(|option| option.strip_prefix(name));
        let nic = option("addr=").and_then(|address| nic_towards(facts, address));
        let wanted = facts.block.fstab.iter().find(|entry| entry.path == *path);
        NfsMountOf {
            mount,
            transport: option("proto="),
            wants_rdma: wanted.is_some_and(|entry| entry.options.iter().any(rdma)),
            nic,
            rdma: nic.and_then(|nic| rdma_of(facts, nic)),
        }
    };
    let nfs = |mount: &&Mount| ["nfs", "nfs4"].contains(&mount.kind.as_str());
    facts.block.mounts.iter().filter(nfs).map(of).collect()
}

/// The interface that has this address.
fn nic_with<'a>(facts: &'a Facts, address: &str) -> Option<&'a Nic> {
    let has = |nic: &&Nic| {
        nic.addresses
            .iter()
            .any(|own| own.split('/').next() == Some(address.trim_matches(['[', ']'])))
    };
    facts.nics.iter().find(has)
}

/// The interface in whose network this address is.
fn nic_towards<'a>(facts: &'a Facts, address: &str) -> Option<&'a Nic> {
    let near =
        |nic: &&Nic| nic.addresses.iter().any(|network| crate::facts::in_network(address, network));
    facts.nics.iter().find(near)
}

fn rdma_of<'a>(facts: &'a Facts, nic: &Nic) -> Option<&'a Rdma> {
    let own = |rdma: &&Rdma| rdma.netdev.as_deref() == Some(&nic.name);
    let below = |rdma: &&Rdma| rdma.netdev.is_some() && rdma.netdev == nic.parent;
    facts.rdma.iter().find(own).or_else(|| facts.rdma.iter().find(below))
}

fn nic_of<'a>(facts: &'a Facts, rdma: &Rdma) -> Option<&'a Nic> {
    facts.nics.iter().find(|nic| rdma.netdev.as_deref() == Some(&nic.name))
}
