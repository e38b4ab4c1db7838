//! The changed machine.

use thiserror::Error;

use super::grammar::{Change, Group, Lanes, Layout, Measure, Model, Paths, Transport, VdevKind};
use super::network::busy;
use crate::ceilings::Measured;
use crate::ceilings::drives::{Figures, member, served};
use crate::expr::rate;
use crate::facts::{
    Dimm, Drive, Facts, Nic, Pcie, Pool, Portal, Rdma, Target, Vdev, VdevDisk, Zfs, drives_of,
    lanes_bytes_per_second, rdma_used,
};

/// The model of a drive whose figures were given.
const GIVEN: &str = "the given drive";
/// The drive that stands for all of a changed pool.
const STANDS: &str = "what-if";
/// The bond that joins links.
const BOND: &str = "what-if-bond";
/// MTU of links where no link is there to take it from.
const JUMBO: i64 = 9000;

/// Why changes make no machine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Conflict {
    /// Two changes of one thing.
    #[error(
        "{change}: {name}= is said twice, and all changes are of one machine; run the command once for each"
    )]
    Twice {
        /// The second one.
        change: String,
        /// Its name.
        name: String,
    },
    /// A pool of another machine.
    #[error("there is no pool {name} here; there are: {there}")]
    NoSuchPool {
        /// Its name.
        name: String,
        /// The pools that there are.
        there: String,
    },
    /// Nobody says which pool.
    #[error("there are several pools ({there}): name one of them, as in pool=NAME:4xmirror(2)")]
    SeveralPools {
        /// The pools that there are.
        there: String,
    },
    /// Layout and number of drives contradict each other.
    #[error("pool={layout} has {has} drives, and drives={drives} says otherwise")]
    OtherCount {
        /// The layout.
        layout: String,
        /// Its drives.
        has: u64,
        /// What else is said.
        drives: u64,
    },
    /// Drives are changed of a pool that is not there.
    #[error("there is no pool here: say its layout, as in pool=4xmirror(2)")]
    NoPool,
    /// Drives are changed of a pool whose vdevs cannot be seen.
    #[error("the layout of {pool} is not known: say pool=")]
    UnknownLayout {
        /// The pool.
        pool: String,
    },
    /// Other drives for vdevs that are not alike.
    #[error("the vdevs of {pool} differ, so drives={drives} does not say which: say pool=")]
    VdevsDiffer {
        /// The pool.
        pool: String,
        /// How many drives it was to have.
        drives: u64,
    },
    /// Drives that fill no vdev.
    #[error(
        "drives={drives} is no multiple of {width}, the drives of a vdev of {pool}: {fewer} or {more} would be, or \
         say pool="
    )]
    NoMultiple {
        /// How many drives it was to have.
        drives: u64,
        /// Drives of a vdev.
        width: u64,
        /// The pool.
        pool: String,
        /// The next smaller number that fits.
        fewer: u64,
        /// The next larger one.
        more: u64,
    },
    /// A pool of drives that nobody knows.
    #[error(
        "no drive here can be in a pool, or its speed is not known: say which, as in drive=PM9A3 or drive=6800M/4G"
    )]
    NoDrive,
    /// Links are changed that are not there.
    #[error("no link of this machine carries storage: say which, as in nic=2x25g")]
    NoLink,
    /// More cards than ports.
    #[error("cards={cards}: there are {ports} ports only; say nic= too")]
    TooManyCards {
        /// The cards.
        cards: u64,
        /// The ports.
        ports: u64,
    },
}

/// The machine as it would be.
#[derive(Clone, Debug)]
pub(super) struct Changed {
    pub facts: Facts,
    /// Of the drives, if they were given.
    pub figures: Option<Figures>,
    /// Whether what was measured of memory holds for it.
    pub measured: bool,
    /// What was taken for granted, a sentence each.
    pub notes: Vec<String>,
}

/// All changes, each at most once.
#[derive(Clone, Debug, Default)]
struct Wanted {
    pool: Option<Layout>,
    drives: Option<u64>,
    drive: Option<Model>,
    drive_pcie: Option<Lanes>,
    nic: Option<(u64, u64)>,
    cards: Option<u64>,
    pcie: Option<Lanes>,
    paths: Option<Paths>,
    mtu: Option<u64>,
    transport: Option<Transport>,
    depth: Option<u64>,
    cpu: Option<(u64, Option<u64>)>,
    memory: Option<(u64, u64)>,
}

/// The machine with all changes.
///
/// # Errors
/// Changes contradict each other, or the machine lacks what they start from.
pub(super) fn changed(
    facts: &Facts,
    measured: Option<&Measured>,
    changes: &[Change],
) -> Result<Changed, Conflict> {
    let wanted = Wanted::of(changes)?;
    let mut changed =
        Changed { facts: facts.clone(), figures: None, measured: true, notes: Vec::new() };
    pool(&mut changed, &wanted)?;
    // What packets carry depends on it.
    if let Some(transport) = wanted.transport {
        set_transport(&mut changed, transport);
    }
    links(&mut changed, &wanted)?;
    rest(&mut changed, &wanted, measured);
    Ok(changed)
}

impl Wanted {
    fn of(changes: &[Change]) -> Result<Self, Conflict> {
        let mut wanted = Self::default();
        for change in changes {
            let twice = match change.clone() {
                Change::Pool(layout) => wanted.pool.replace(layout).is_some(),
                Change::Drives(count) => wanted.drives.replace(count).is_some(),
                Change::Drive(model) => wanted.drive.replace(model).is_some(),
                Change::DrivePcie(lanes) => wanted.drive_pcie.replace(lanes).is_some(),
                Change::Nic(count, mbit) => wanted.nic.replace((count, mbit)).is_some(),
                Change::Cards(count) => wanted.cards.replace(count).is_some(),
                Change::Pcie(lanes) => wanted.pcie.replace(lanes).is_some(),
                Change::Paths(paths) => wanted.paths.replace(paths).is_some(),
                Change::Mtu(bytes) => wanted.mtu.replace(bytes).is_some(),
                Change::Transport(transport) => wanted.transport.replace(transport).is_some(),
                Change::Depth(commands) => wanted.depth.replace(commands).is_some(),
                Change::Cpu(cores, mhz) => wanted.cpu.replace((cores, mhz)).is_some(),
                Change::Memory(modules, rate) => wanted.memory.replace((modules, rate)).is_some(),
            };
            if twice {
                return Err(Conflict::Twice { change: change.to_string(), name: change.name() });
            }
        }
        Ok(wanted)
    }

    fn touches_drives(&self) -> bool {
        self.pool.is_some()
            || self.drives.is_some()
            || self.drive.is_some()
            || self.drive_pcie.is_some()
    }

    fn touches_links(&self) -> bool {
        self.nic.is_some()
            || self.cards.is_some()
            || self.pcie.is_some()
            || self.paths.is_some()
            || self.mtu.is_some()
    }
}

/// The data vdevs of a pool, and the drives in them.
fn pool(changed: &mut Changed, wanted: &Wanted) -> Result<(), Conflict> {
    if !wanted.touches_drives() {
        return Ok(());
    }
    let pool = chosen(&changed.facts, wanted)?;
    let groups = layout(pool.as_ref(), wanted)?;
    let drive = drive(changed, pool.as_ref(), wanted)?;
    let needed: u64 = groups.iter().map(|group| group.count * group.width).sum();
    let there: usize = pool.iter().flat_map(data).map(|vdev| vdev.disks.len()).sum();
    let name = pool.as_ref().map_or_else(|| "pool".to_owned(), |pool| pool.name.clone());
    changed.notes.push(match (pool.is_some(), needed.cmp(&(there as u64))) {
        (false, _) => {
            format!("There is no pool here: {name} is made of {needed} x {}.", drive.name)
        }
        (true, std::cmp::Ordering::Greater) => {
            format!("{name} has {needed} drives instead of {there}, all of them {}.", drive.name)
        }
        (true, _) => {
            format!("{name} has {needed} of its {there} drives, all of them {}.", drive.name)
        }
    });
    let usable: u64 = groups.iter().map(Group::data_drives).sum();
    changed.notes.push(match usable_of(pool.as_ref()) {
        Some(before) => format!(
            "Space, before padding and metadata: that of {before} drives now, of {usable} changed."
        ),
        None => format!("Space, before padding and metadata: that of {usable} drives."),
    });
    let vdevs = vdevs(&groups, &drive.name);
    changed.facts.drives.push(drive);
    let zfs = changed.facts.zfs.get_or_insert_with(Zfs::default);
    match zfs.pools.iter_mut().find(|pool| pool.name == name) {
        Some(pool) => {
            pool.vdevs.retain(|vdev| vdev.role != "data");
            pool.vdevs.extend(vdevs);
        }
        None => zfs.pools.push(Pool { name, vdevs, ..Pool::default() }),
    }
    Ok(())
}

fn data(pool: &Pool) -> impl Iterator<Item = &Vdev> {
    pool.vdevs.iter().filter(|vdev| vdev.role == "data")
}

/// The pool that is meant.
fn chosen(facts: &Facts, wanted: &Wanted) -> Result<Option<Pool>, Conflict> {
    let all = || facts.zfs.iter().flat_map(|zfs| &zfs.pools);
    let names = || all().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = wanted.pool.as_ref().and_then(|layout| layout.name.as_ref()) {
        let found = all().find(|pool| pool.name == *name).cloned();
        return match found.is_some() || all().next().is_none() {
            true => Ok(found.or_else(|| Some(Pool { name: name.clone(), ..Pool::default() }))),
            false => Err(Conflict::NoSuchPool { name: name.clone(), there: names() }),
        };
    }
    match served(facts)[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err(Conflict::SeveralPools { there: names() }),
    }
}

/// The vdevs that are wanted, or those that are there with another number of drives.
fn layout(pool: Option<&Pool>, wanted: &Wanted) -> Result<Vec<Group>, Conflict> {
    if let Some(layout) = &wanted.pool {
        let has: u64 = layout.groups.iter().map(|group| group.count * group.width).sum();
        return match wanted.drives.filter(|&drives| drives != has) {
            Some(drives) => Err(Conflict::OtherCount { layout: layout.to_string(), has, drives }),
            None => Ok(layout.groups.clone()),
        };
    }
    let Some(pool) = pool else {
        return Err(Conflict::NoPool);
    };
    let present: Option<Vec<Group>> = data(pool).map(Group::of).collect();
    let present = present.filter(|groups| !groups.is_empty());
    let Some(present) = present else {
        return Err(Conflict::UnknownLayout { pool: pool.name.clone() });
    };
    let Some(drives) = wanted.drives else { return Ok(present) };
    let one = present[0];
    if present.iter().any(|group| *group != one) {
        return Err(Conflict::VdevsDiffer { pool: pool.name.clone(), drives });
    }
    if drives % one.width != 0 {
        let fewer = drives / one.width * one.width;
        return Err(Conflict::NoMultiple {
            drives,
            width: one.width,
            pool: pool.name.clone(),
            fewer: fewer.max(one.width),
            more: fewer + one.width,
        });
    }
    Ok(vec![Group { count: drives / one.width, ..one }])
}

impl Group {
    /// The vdev that is there.
    fn of(vdev: &Vdev) -> Option<Self> {
        let width = vdev.disks.len() as u64;
        let parity = u64::try_from(vdev.parity).ok()?;
        let kind = match vdev.kind.as_str() {
            "mirror" => VdevKind::Mirror,
            "disk" => VdevKind::Stripe,
            kind if kind.starts_with("raidz") => VdevKind::Raidz(parity),
            _ => {
                let (data, spares) = crate::ceilings::drives::draid(&vdev.name)?;
                VdevKind::Draid(parity, data as u64, spares as u64)
            }
        };
        Some(Self { count: 1, kind, width })
    }

    /// How many drives' worth of data its vdevs hold.
    fn data_drives(&self) -> u64 {
        let one = match self.kind {
            VdevKind::Stripe | VdevKind::Mirror => 1,
            VdevKind::Raidz(parity) => self.width - parity,
            VdevKind::Draid(parity, data, spares) => (self.width - spares) * data / (data + parity),
        };
        self.count * one
    }
}

fn usable_of(pool: Option<&Pool>) -> Option<u64> {
    let groups: Option<Vec<Group>> = data(pool?).map(Group::of).collect();
    let usable = groups?.iter().map(Group::data_drives).sum();
    (usable > 0).then_some(usable)
}

/// The drive that stands for all of the pool: as the slowest that is there, with what is wanted of it.
fn drive(changed: &mut Changed, pool: Option<&Pool>, wanted: &Wanted) -> Result<Drive, Conflict> {
    let facts = &changed.facts;
    let like = slowest(facts, pool);
    let mut drive = match (&like, &wanted.drive) {
        (Some(like), _) => Drive { name: format!("like {}", like.name), ..like.clone() },
        (None, Some(_)) => Drive { rotational: Some(false), ..Drive::default() },
        (None, None) => {
            return Err(Conflict::NoDrive);
        }
    };
    match &wanted.drive {
        Some(Model::Known(model)) => {
            (drive.name, drive.model) = ("the new drive".to_owned(), Some(model.clone()));
        }
        Some(Model::Measured(figures)) => {
            changed.figures = Some(Measure::figures(*figures, GIVEN.to_owned()));
            (drive.name, drive.model) = (GIVEN.to_owned(), Some(GIVEN.to_owned()));
        }
        None => {}
    }
    if let Some(lanes) = wanted.drive_pcie {
        drive.pcie = Some(linked(drive.pcie.as_ref(), lanes, STANDS));
    } else if let (Some(link), Some(_)) = (&drive.pcie, &wanted.drive) {
        let (generation, width) = (link.generation.unwrap_or(0), link.width.unwrap_or(0));
        changed.notes.push(format!(
            "The new drives have the links of those that are there (PCIe {generation}.0 x{width}); drive-pcie= says another."
        ));
    }
    (drive.zfs_pool, drive.remote) = (None, false);
    Ok(drive)
}

/// The slowest drive of the pool; without a pool, of the local drives of the model that is there most.
fn slowest(facts: &Facts, pool: Option<&Pool>) -> Option<Drive> {
    let time = |drive: &Drive| member(drive).map(|member| 1.0 / member.read + 1.0 / member.write);
    let mut among: Vec<&Drive> =
        pool.iter().flat_map(|pool| data(pool)).flat_map(|vdev| drives_of(facts, vdev)).collect();
    if among.is_empty() {
        let local = |drive: &&Drive| !drive.remote && drive.zfs_pool.is_none();
        let free: Vec<&Drive> = facts.drives.iter().filter(local).collect();
        let count = |model: &Option<String>| free.iter().filter(|d| d.model == *model).count();
        let most = free.iter().filter(|drive| time(drive).is_some());
        let model = most.max_by_key(|drive| count(&drive.model)).map(|drive| drive.model.clone());
        among = free.iter().filter(|drive| Some(&drive.model) == model.as_ref()).copied().collect();
    }
    let known = among.into_iter().filter_map(|drive| Some((drive, time(drive)?)));
    known.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(drive, _)| drive.clone())
}

fn vdevs(groups: &[Group], drive: &str) -> Vec<Vdev> {
    let disk = || VdevDisk { drive: Some(drive.to_owned()), ..VdevDisk::default() };
    let all = groups.iter().flat_map(|group| (0..group.count).map(move |_| group));
    all.enumerate()
        .map(|(number, group)| {
            let (kind, parity, name) = match group.kind {
                VdevKind::Stripe => ("disk".to_owned(), 0, "drive".to_owned()),
                VdevKind::Mirror => ("mirror".to_owned(), group.width - 1, "mirror".to_owned()),
                VdevKind::Raidz(parity) => {
                    (format!("raidz{parity}"), parity, format!("raidz{parity}"))
                }
                VdevKind::Draid(parity, data, spares) => {
                    let name = format!("draid{parity}:{data}d:{}c:{spares}s", group.width);
                    (format!("draid{parity}"), parity, name)
                }
            };
            Vdev {
                name: format!("{name}-{number}"),
                kind,
                role: "data".to_owned(),
                parity: i64::try_from(parity).unwrap_or(i64::MAX),
                disks: (0..group.width).map(|_| disk()).collect(),
                ..Vdev::default()
            }
        })
        .collect()
}

/// A link of these lanes, otherwise like that one.
fn linked(like: Option<&Pcie>, lanes: Lanes, address: &str) -> Pcie {
    let (generation, width) = (lanes.generation as i64, lanes.width as i64);
    Pcie {
        address: address.to_owned(),
        generation: Some(generation),
        width: Some(width),
        bytes_per_second: lanes_bytes_per_second(Some(generation), Some(width)),
        max_payload_bytes: like.and_then(|like| like.max_payload_bytes),
        ..Pcie::default()
    }
}

/// The links that carry storage, and their cards.
fn links(changed: &mut Changed, wanted: &Wanted) -> Result<(), Conflict> {
    if !wanted.touches_links() {
        return Ok(());
    }
    let rdma = rdma_used(&changed.facts);
    let present: Vec<Nic> = busy(&changed.facts).cloned().collect();
    let first = present.first().cloned();
    let ports: Vec<Nic> = match wanted.nic {
        Some((count, mbit)) => {
            (0..count).map(|number| port(number, mbit, first.as_ref())).collect()
        }
        None if present.is_empty() => {
            return Err(Conflict::NoLink);
        }
        None => present,
    };
    let masters = joined(changed, &ports, wanted);
    let slots = slots(changed, &ports, wanted, first.as_ref())?;
    let like = changed.facts.rdma.iter().find(|port| port.soft != Some(true)).cloned();
    let again = |name: &str| ports.iter().any(|port| port.name == name);
    changed.facts.nics.retain(|nic| !again(&nic.name));
    changed.facts.rdma.retain(|port| !port.netdev.as_deref().is_some_and(again));
    for nic in &mut changed.facts.nics {
        (nic.storage, nic.carrier) = (Some(false), Some(false));
    }
    for ((mut nic, master), slot) in ports.into_iter().zip(masters).zip(slots) {
        (nic.storage, nic.carrier) = (Some(true), Some(true));
        if let Some(mtu) = wanted.mtu {
            nic.mtu = i64::try_from(mtu).ok();
        }
        (nic.master, nic.pcie) = (master, slot);
        if rdma {
            let mtu = rdma_mtu(nic.mtu, wanted.mtu, like.as_ref());
            changed.facts.rdma.push(Rdma {
                mtu,
                netdev: Some(nic.name.clone()),
                ..Rdma::default()
            });
        }
        changed.facts.nics.push(nic);
    }
    Ok(())
}

/// A new port, with the MTU of those that are there.
fn port(number: u64, mbit: u64, like: Option<&Nic>) -> Nic {
    Nic {
        name: format!("port{number}"),
        speed_mbit: i64::try_from(mbit).ok(),
        mtu: like.map_or(Some(JUMBO), |nic| nic.mtu),
        ..Nic::default()
    }
}

/// Largest payload over RDMA: as it is, if the MTU stays; else the largest power of two that fits.
fn rdma_mtu(mtu: Option<i64>, wanted: Option<u64>, like: Option<&Rdma>) -> Option<i64> {
    let as_it_is = like.and_then(|port| port.mtu).filter(|_| wanted.is_none());
    as_it_is.or_else(|| {
        let room = mtu.unwrap_or(1500) - 100;
        [4096, 2048, 1024, 512, 256].into_iter().find(|size| *size <= room)
    })
}

/// The bond of each port.
fn joined(changed: &mut Changed, ports: &[Nic], wanted: &Wanted) -> Vec<Option<String>> {
    let facts = &changed.facts;
    let mode = |nic: &Nic| {
        let master = facts.nics.iter().find(|other| Some(&other.name) == nic.master.as_ref())?;
        master.bond_mode.clone()
    };
    let present = busy(facts).next().and_then(mode);
    let mode = match (wanted.paths, &wanted.nic) {
        (Some(Paths::Mpio), _) => None,
        (Some(Paths::Lag), _) => Some("802.3ad".to_owned()),
        (None, Some(_)) => present,
        (None, None) => return ports.iter().map(|nic| nic.master.clone()).collect(),
    };
    let Some(mode) = mode else { return vec![None; ports.len()] };
    if wanted.paths.is_none() {
        changed
            .notes
            .push(format!("The ports are joined as they are now ({mode}); paths= says otherwise."));
    }
    changed.facts.nics.push(Nic {
        name: BOND.to_owned(),
        is_virtual: true,
        bond_mode: Some(mode),
        ..Nic::default()
    });
    vec![Some(BOND.to_owned()); ports.len()]
}

/// The slot of each port's card.
fn slots(
    changed: &mut Changed,
    ports: &[Nic],
    wanted: &Wanted,
    first: Option<&Nic>,
) -> Result<Vec<Option<Pcie>>, Conflict> {
    let count = ports.len() as u64;
    if let Some(cards) = wanted.cards.filter(|&cards| cards > count) {
        return Err(Conflict::TooManyCards { cards, ports: count });
    }
    if wanted.nic.is_none() && wanted.cards.is_none() {
        let slot = |nic: &Nic| match (wanted.pcie, &nic.pcie) {
            (Some(lanes), like) => {
                let address = like.as_ref().map_or("what-if", |pcie| pcie.address.as_str());
                Some(linked(like.as_ref(), lanes, address))
            }
            (None, like) => like.clone(),
        };
        return Ok(ports.iter().map(slot).collect());
    }
    // Cards with two ports are what is bought most.
    let cards = wanted.cards.unwrap_or(count.div_ceil(2));
    let like = first.and_then(|nic| nic.pcie.as_ref());
    let link = match (wanted.pcie, like) {
        (Some(lanes), like) => Some(linked(like, lanes, "")),
        (None, like) => like.cloned(),
    };
    let lanes = link.as_ref().and_then(|link| Some((link.generation?, link.width?)));
    let lanes = lanes.map_or_else(
        || "a slot that is not known (pcie= says which)".to_owned(),
        |(generation, width)| format!("a slot of PCIe {generation}.0 x{width}"),
    );
    changed.notes.push(match cards {
        1 => format!("Ports: {count}, on one card in {lanes}."),
        _ => format!("Ports: {count}, on {cards} cards, each in {lanes}."),
    });
    let of = |number: u64| {
        let card = number * cards / count;
        let address = format!("card{card}.{number}");
        Some(match &link {
            Some(link) => Pcie { address, ..link.clone() },
            None => Pcie { address, ..Pcie::default() },
        })
    };
    Ok((0..count).map(of).collect())
}

/// What sessions go over.
fn set_transport(changed: &mut Changed, transport: Transport) {
    let facts = &mut changed.facts;
    let rdma = transport == Transport::Rdma;
    let word = Some(if rdma { "rdma" } else { "tcp" }.to_owned());
    if rdma && facts.targets.is_empty() {
        facts.targets.push(Target::default());
    }
    for target in &mut facts.targets {
        target.sessions.iter_mut().for_each(|session| session.transport.clone_from(&word));
        target.portals.iter_mut().for_each(|portal| portal.transport.clone_from(&word));
    }
    if let Some(open) = &mut facts.initiators.open_iscsi {
        open.sessions.iter_mut().for_each(|session| session.transport.clone_from(&word));
    }
    for host in &mut facts.initiators.nvme_hosts {
        host.paths.iter_mut().for_each(|path| path.transport.clone_from(&word));
    }
    if rdma && !rdma_used(facts) {
        facts.targets[0].portals.push(Portal { transport: word, ..Portal::default() });
    }
    // A card that has not done RDMA so far has no packets yet.
    let names: Vec<(String, Option<i64>)> =
        busy(facts).map(|nic| (nic.name.clone(), rdma_mtu(nic.mtu, None, None))).collect();
    for (name, mtu) in names.into_iter().filter(|_| rdma) {
        if !facts.rdma.iter().any(|port| port.netdev.as_ref() == Some(&name)) {
            facts.rdma.push(Rdma { mtu, netdev: Some(name), ..Rdma::default() });
        }
    }
}

/// Sessions, processors and memory.
fn rest(changed: &mut Changed, wanted: &Wanted, measured: Option<&Measured>) {
    let facts = &mut changed.facts;
    if let Some(depth) = wanted.depth {
        let depth = i64::try_from(depth).ok();
        if facts.targets.is_empty() {
            facts.targets.push(Target::default());
        }
        for target in &mut facts.targets {
            target.queue_depth = depth;
            target.sessions.iter_mut().for_each(|session| session.queue_depth = depth);
        }
        let own = facts.initiators.open_iscsi.iter_mut().flat_map(|open| &mut open.sessions);
        own.flat_map(|session| &mut session.disks).for_each(|disk| disk.queue_depth = depth);
    }
    if let Some((cores, mhz)) = wanted.cpu {
        facts.cpu.cores = i64::try_from(cores).ok();
        facts.cpu.max_mhz =
            mhz.and_then(|mhz| i64::try_from(mhz).ok()).or(facts.cpu.max_mhz).or(facts.cpu.now_mhz);
    }
    if let Some((modules, transfers)) = wanted.memory {
        let moved = modules * transfers * 8_000_000;
        facts.memory.dimms = (0..modules).map(|_| Dimm::default()).collect();
        facts.memory.bandwidth_max_bytes_per_second = i64::try_from(moved).ok();
        changed.measured = false;
        if let Some(measured) = measured {
            changed.notes.push(format!(
                "What memory moves was measured now ({} copied), and is computed for the changed machine: compare with care.",
                rate(measured.copy_bytes_per_second)
            ));
        }
    }
}
