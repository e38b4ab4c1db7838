//! `[group.NAME]`: a failover group, which this lunet is a gateway of.

use std::net::SocketAddr;
use std::path::PathBuf;

use lunet_backends::rbd::{ImageName, Place};
use lunet_front_nvme::Tls;
use lunet_gateway::MAX_VOLUMES;
use lunet_scsi::alua::{AccessState, Alua};

use super::mistake::Mistakes;
use super::reach::leading;
use super::reader::{At, Section, boolean, integer, string};
use super::schema;
use super::sections::Listening;
use super::shared::{self, Shared};
use super::volumes::{Found, cluster};
use super::{Backend, Portal, Server, Subsystem, Target, Volume};
use crate::names;

/// `[group.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name here.
    pub name: String,
    /// Where its record is: pool, namespace, and its name there in the place of an image's.
    pub record: ImageName,
    /// Which of its gateways this is; also the tag of the portals that lead to its target.
    pub gateway: u16,
    /// Its place among the gateways: who has the lowest takes over first.
    pub rank: u32,
    /// Where other gateways pass commands on to it; `None`: nowhere.
    pub reach: Option<SocketAddr>,
    /// The same for NVMe.
    pub reach_nvme: Option<SocketAddr>,
    /// The index of its target in [`Config::targets`](super::Config::targets).
    pub target: usize,
    /// Its volumes and its target are in the cluster.
    pub shared: bool,
    /// The configuration of Ceph; /etc/ceph/ceph.conf if left out.
    pub conf: Option<PathBuf>,
    /// The user of the cluster, without `client.`; admin if left out.
    pub user: Option<String>,
    /// The file with the user's key, which is a secret; by the configuration of Ceph if left out.
    pub keyring: Option<PathBuf>,
}

impl super::Config {
    /// True for a subsystem that several gateways serve: that of a group's target.
    pub fn is_shared(&self, subsystem: &Subsystem) -> bool {
        let mut targets = self.groups.iter().map(|group| &self.targets[group.target].name);
        subsystem.target.as_ref().is_some_and(|target| targets.any(|name| name == target))
    }
}

impl Group {
    /// How its record is reached.
    pub fn place(&self) -> Place {
        let Self { record, conf, user, keyring, .. } = self;
        Place::configured(record.clone(), conf.as_deref(), user.as_deref(), keyring.as_deref())
    }
}

/// A group of which it is not known yet what its gateways share.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    /// Its name here.
    pub name: String,
    /// Where its record is.
    pub record: ImageName,
    /// Which of its gateways this is.
    pub gateway: u16,
    /// As of a [`Group`].
    pub conf: Option<PathBuf>,
    /// As of a [`Group`].
    pub user: Option<String>,
    /// As of a [`Group`].
    pub keyring: Option<PathBuf>,
}

impl Pending {
    /// How its record is reached.
    pub fn place(&self) -> Place {
        let Self { record, conf, user, keyring, .. } = self;
        Place::configured(record.clone(), conf.as_deref(), user.as_deref(), keyring.as_deref())
    }
}

/// True if the target of a group is in the cluster.
pub(super) fn some_are_shared(top: &Section<'_>) -> bool {
    let groups = top.raw("group").and_then(|groups| groups.get_ref().as_table());
    groups.is_some_and(|all| all.values().any(|group| shared::says_shared(group.get_ref())))
}

/// What else is configured, as a group has to fit it.
pub(super) struct Around<'a> {
    pub(super) server: &'a Server,
    pub(super) portals: &'a Listening,
    pub(super) targets: &'a [Target],
    pub(super) subsystems: &'a [Subsystem],
    /// What is known of what groups share.
    pub(super) shared: &'a [Shared],
}

/// Reads all groups, and marks their volumes.
pub(super) fn groups(
    top: &Section<'_>,
    around: &Around<'_>,
    volumes: &mut [Found],
    mistakes: &mut Mistakes,
) -> (Vec<Group>, Vec<Pending>) {
    let (mut out, mut pending): (Vec<Group>, Vec<Pending>) = (Vec::new(), Vec::new());
    let Some(value) = top.raw("group") else { return (out, pending) };
    let Some(tables) = value.get_ref().as_table() else {
        let text = format!("must be written as {}, once for each", schema::GROUP.heading);
        mistakes.add(value.span().start, "group", text);
        return (out, pending);
    };
    for (name, value) in tables {
        let key = format!("group.{}", name.get_ref());
        if let Err(text) = names::check_volume_name(name.get_ref()) {
            mistakes.add(name.span().start, key.clone(), text);
        }
        let Some(table) = Section::open(value, key, &schema::GROUP, mistakes) else { continue };
        let seat = seat(name.get_ref(), &table, mistakes);
        let is_shared = is_shared(&table, mistakes);
        let Some(seat) = seat else {
            // All mistakes are told at once.
            if !is_shared {
                target(&table, around, mistakes);
            }
            continue;
        };
        check_file(&table, seat.pending.gateway, is_shared, around, mistakes);
        let known = || around.shared.iter().any(|one| one.group == seat.pending.name);
        let records = out.iter().map(|group| (&group.name, &group.record));
        let mut records = records.chain(pending.iter().map(|group| (&group.name, &group.record)));
        if let Some((other, _)) = records.find(|(_, record)| **record == seat.pending.record) {
            let text = format!("has the record or the target of group \"{other}\" already");
            mistakes.add(table.offset, table.path.clone(), text);
        }
        if is_shared && !known() {
            pending.push(seat.pending);
            continue;
        }
        let found = match is_shared {
            true => shared_target(&seat.pending.name, around),
            false => target(&table, around, mistakes),
        };
        let Some(target) = found else { continue };
        let group = seat.of_target(target, is_shared, around);
        if let Some(other) = out.iter().find(|other| other.target == group.target) {
            let text = format!("has the record or the target of group \"{}\" already", other.name);
            mistakes.add(table.offset, table.path.clone(), text);
        }
        fits(&table, &group, around, volumes, mistakes);
        let target = &around.targets[group.target];
        for (_, at) in &target.luns {
            volumes[*at].value.iter_mut().for_each(|it| it.group = Some(group.name.clone()));
        }
        if group.shared {
            all_are_luns(&group, around, volumes, mistakes);
        }
        out.push(group);
    }
    (out, pending)
}

impl Seat {
    /// The group, whose target is known.
    fn of_target(self, target: usize, shared: bool, around: &Around<'_>) -> Group {
        let Self { pending, rank, reach: (reach, reach_nvme) } = self;
        let Pending { name, record, gateway, conf, user, keyring } = pending;
        let of = &around.targets[target];
        let reach = reach.unwrap_or_else(|| first_portal(of, around));
        let reach_nvme = reach_nvme.unwrap_or_else(|| first_nvme_portal(of, around));
        Group {
            name,
            record,
            gateway,
            rank,
            reach,
            reach_nvme,
            target,
            shared,
            conf,
            user,
            keyring,
        }
    }
}

/// The key `shared`, by which the target is not named.
fn is_shared(table: &Section<'_>, mistakes: &mut Mistakes) -> bool {
    let mut shared = false;
    table.set("shared", &mut shared, &boolean, mistakes);
    match (shared, table.raw("targets")) {
        (true, Some(targets)) => {
            let text = "is in the cluster with `shared`: leave it out";
            mistakes.add(targets.span().start, table.key("targets"), text);
        }
        (false, None) => table.missing("targets", mistakes),
        _ => {}
    }
    shared
}

/// The index of the target that a group shares. What is wrong with it was noted.
fn shared_target(group: &str, around: &Around<'_>) -> Option<usize> {
    let text = &around.shared.iter().find(|one| one.group == group)?.text;
    let root = toml::de::DeTable::parse(text).ok()?;
    let [target] = root.get_ref().get("target")?.get_ref().as_array()?.as_ref() else {
        return None;
    };
    let name = target.get_ref().as_table()?.get("name")?.get_ref().as_str()?;
    around.targets.iter().position(|target| target.name == name)
}

/// Refuses volumes that a group shares and does not show.
fn all_are_luns(group: &Group, around: &Around<'_>, volumes: &[Found], mistakes: &mut Mistakes) {
    let Some(one) = around.shared.iter().find(|one| one.group == group.name) else { return };
    let Ok(root) = toml::de::DeTable::parse(&one.text) else { return };
    let named = root.get_ref().get("volumes").and_then(|all| all.get_ref().as_table());
    let target = &around.targets[group.target];
    for name in named.into_iter().flat_map(|all| all.keys()) {
        let Some(at) = volumes.iter().position(|it| it.name == name.get_ref().as_ref()) else {
            continue;
        };
        if !target.luns.iter().any(|(_, index)| *index == at) {
            let text = "is no LUN of the group's target, and a group shares nothing else";
            mistakes.add(volumes[at].offset, format!("volumes.{}", volumes[at].name), text);
        }
    }
}

/// Which gateway of which group this is.
struct Seat {
    pending: Pending,
    rank: u32,
    /// Where other gateways pass commands on to, if the file says so, over iSCSI and NVMe.
    reach: (Option<Option<SocketAddr>>, Option<Option<SocketAddr>>),
}

fn seat(name: &str, table: &Section<'_>, mistakes: &mut Mistakes) -> Option<Seat> {
    ["record", "gateway"].iter().for_each(|key| table.missing(key, mistakes));
    let record = table.get(
        "record",
        &|value| ImageName::parse(&string(value)?).map_err(|refusal| refusal.to_string()),
        mistakes,
    );
    let gateway = table.get("gateway", &|v| integer(v, 1..=65_535), mistakes);
    let rank = table.get("rank", &|v| integer(v, 0..=65_535), mistakes);
    let (conf, user, keyring) = cluster(table, mistakes);
    let gateway = gateway?.value as u16;
    let rank = rank.map_or(u32::from(gateway) - 1, |rank| rank.value as u32);
    let reach = [("reach", "192.0.2.11:3260"), ("reach-nvme", "192.0.2.11:4420")];
    let reach = reach.map(|(key, such)| {
        let given = table.get(key, &|value| reach_of(&string(value)?, such), mistakes);
        given.map(|given| given.value)
    });
    let record = record?;
    if record.value.image().ends_with(".config") {
        let text = "must not end in \".config\": so does the object with the configuration of another group";
        mistakes.add(record.offset, table.key("record"), text);
    }
    let (name, record) = (name.to_owned(), record.value);
    let pending = Pending { name, record, gateway, conf, user, keyring };
    Some(Seat { pending, rank, reach: reach.into() })
}

/// Where other gateways pass commands on to.
fn reach_of(text: &str, such: &str) -> Result<Option<SocketAddr>, String> {
    if text == "none" {
        return Ok(None);
    }
    let address = text.parse().ok().filter(is_reached);
    let wanted = || {
        format!(
            "must be an address and a port that other gateways reach, such as \"{such}\", or \"none\""
        )
    };
    address.map(Some).ok_or_else(wanted)
}

/// True for what somebody else can connect to, and what a record has.
fn is_reached(address: &SocketAddr) -> bool {
    let scoped = matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0 || v6.flowinfo() != 0);
    !scoped && !address.ip().is_unspecified() && address.port() != 0
}

/// The first portal of a target that others reach.
fn first_portal(target: &Target, around: &Around<'_>) -> Option<SocketAddr> {
    let all = around.portals.iscsi.iter().enumerate();
    let leads = |at: usize| target.portals.is_empty() || target.portals.contains(&at);
    let leading = all.filter(|(at, _)| leads(*at)).map(|(_, portal)| &portal.value);
    let mut streams = leading.filter(|portal| portal.transports.tcp());
    streams.next().map(|portal| portal.address).filter(is_reached)
}

/// The first portal of the subsystem that a target is over NVMe which others reach, without TLS.
fn first_nvme_portal(target: &Target, around: &Around<'_>) -> Option<SocketAddr> {
    let mut subsystems = around.subsystems.iter();
    let one = subsystems.find(|one| one.target.as_ref() == Some(&target.name))?;
    let plain = |portal: &&Portal| portal.transports.tcp() && portal.tls != Tls::Required;
    let mut all = leading(one, around.portals).filter(plain);
    all.next().map(|portal| portal.address).filter(is_reached)
}

/// True for the address of a portal for NVMe that is served over RDMA and not over TCP.
fn is_for_rdma_alone(address: SocketAddr, around: &Around<'_>) -> bool {
    let mut same =
        around.portals.nvme.iter().filter(|portal| portal.value.address == address).peekable();
    same.peek().is_some() && !same.any(|portal| portal.value.transports.tcp())
}

/// The index of its one target.
fn target(table: &Section<'_>, around: &Around<'_>, mistakes: &mut Mistakes) -> Option<usize> {
    let value = table.raw("targets")?;
    let named = value.get_ref().as_array().filter(|items| items.len() == 1);
    let named = named.map(|items| string(items[0].get_ref()));
    let found = match named {
        None => Err("must be an array of one target: a group has one".to_owned()),
        Some(name) => name.and_then(|name| {
            let found = around.targets.iter().position(|target| target.name == name);
            found.ok_or_else(|| format!("there is no [[target]] {name}"))
        }),
    };
    found.map_err(|text| mistakes.add(value.span().start, table.key("targets"), text)).ok()
}

/// Refuses whatever gateways of a group could differ in, or initiators could reach past it.
fn fits(
    table: &Section<'_>,
    group: &Group,
    around: &Around<'_>,
    volumes: &[Found],
    mistakes: &mut Mistakes,
) {
    let target = &around.targets[group.target];
    let at = table.raw("targets").map_or(table.offset, |value| value.span().start);
    for text in wrong_with(group, target, around) {
        mistakes.add(at, table.key("targets"), text);
    }
    if let (Some(value), true) =
        (table.raw("reach-nvme"), group.reach_nvme.is_some_and(|to| is_for_rdma_alone(to, around)))
    {
        let text = "is a portal for RDMA alone, and gateways reach each other over TCP: name one with the transport \"nvme-tcp\"";
        mistakes.add(value.span().start, table.key("reach-nvme"), text);
    }
    let mut images: Vec<&ImageName> = Vec::new();
    for (_, index) in &target.luns {
        let found = &volumes[*index];
        let Some(volume) = &found.value else { continue };
        let key = format!("volumes.{}", found.name);
        if let Err(text) = fits_volume(group, volume, &images) {
            mistakes.add(found.offset, key.clone(), text);
        }
        images.extend(image_of(volume));
        if let Some(other) = shown_by(*index, group, around) {
            let name = &group.name;
            let text = format!("is shown by {other} as well, which is not in group \"{name}\"");
            mistakes.add(found.offset, key, text);
        }
    }
}

/// Refuses what is wrong with the rest of the file, whatever the group's target is. All portals lead to one that is shared.
fn check_file(
    table: &Section<'_>,
    gateway: u16,
    shared: bool,
    around: &Around<'_>,
    mistakes: &mut Mistakes,
) {
    if around.server.alua != Alua::Implicit {
        let text =
            "needs `alua = \"implicit\"` in [server]: access states are the group's to change";
        mistakes.add(table.offset, table.path.clone(), text);
    }
    if shared {
        let all: Vec<_> = around.portals.iscsi.iter().collect();
        for text in wrong_with_portals(gateway, &all) {
            mistakes.add(table.offset, table.path.clone(), text);
        }
    }
}

/// What is wrong with the portals that lead to the target of a group.
fn wrong_with_portals(gateway: u16, leading: &[&At<Portal>]) -> Vec<String> {
    let mut wrong = Vec::new();
    let right = |tag: u16| tag == gateway;
    // Without any, there is the one that is opened by default.
    if leading.is_empty() && !right(1) || !leading.iter().all(|portal| right(portal.value.tag)) {
        wrong.push(format!(
            "has a target whose portals have other tags than {gateway}: each [[portal]] that leads to it needs \
             `tag = {gateway}`, the number of this gateway"
        ));
    }
    if !leading.iter().all(|portal| is_plain(&portal.value)) {
        let text = "has a target with a portal that has `group-state` or `preferred`: access states are the group's";
        wrong.push(text.to_owned());
    }
    wrong
}

/// What is wrong with the target of a group, and with the portals that lead to it.
fn wrong_with(group: &Group, target: &Target, around: &Around<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut subsystems = around.subsystems.iter();
    if let Some(one) = subsystems.find(|one| one.target.as_ref() == Some(&target.name)) {
        wrong.extend(wrong_with_subsystem(one, target, around));
    }
    let all = around.portals.iscsi.iter().enumerate();
    let leads = |at: &usize| target.portals.is_empty() || target.portals.contains(at);
    let leading: Vec<_> = all.filter(|(at, _)| leads(at)).map(|(_, portal)| portal).collect();
    if !group.shared {
        wrong.extend(wrong_with_portals(group.gateway, &leading));
    }
    let in_order = target.luns.iter().enumerate().all(|(n, (lun, _))| usize::from(*lun) == n);
    if target.luns.is_empty() || target.luns.len() > MAX_VOLUMES {
        wrong.push(format!("has a target with no LUN, or with more than {MAX_VOLUMES}"));
    } else if !in_order && !group.shared {
        let text = "has a target whose LUNs are not 0, 1, 2 and so on without a gap: all gateways number them alike";
        wrong.push(text.to_owned());
    }
    wrong
}

/// True for a portal whose access state nobody has configured.
fn is_plain(portal: &Portal) -> bool {
    portal.group_state == AccessState::Optimized && !portal.preferred
}

/// What is wrong with the subsystem that the target of a group is over NVMe.
fn wrong_with_subsystem(one: &Subsystem, target: &Target, around: &Around<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    if target.name.strip_prefix("iqn.").map(|rest| format!("nqn.{rest}")).as_ref() != Some(&one.nqn)
    {
        let text = "has a target with an `nqn` of its own: all gateways call the subsystem as the target, with \"nqn.\" in the \
                    place of \"iqn.\"";
        wrong.push(text.to_owned());
    }
    if !leading(one, around.portals).all(is_plain) {
        let text = "has a target with an NVMe portal that has `group-state` or `preferred`: access states are the group's";
        wrong.push(text.to_owned());
    }
    wrong
}

/// What else shows a volume of a group.
fn shown_by(index: usize, group: &Group, around: &Around<'_>) -> Option<String> {
    let shown = |(_, other): &(u16, usize)| *other == index;
    let mut others = around.targets.iter().enumerate();
    let other = others.find(|(at, other)| *at != group.target && other.luns.iter().any(shown));
    let over_nvme = |one: &&Subsystem| {
        one.target.is_none() && one.namespaces.iter().any(|(_, other)| *other == index)
    };
    let subsystem = || around.subsystems.iter().find(over_nvme).map(|one| one.nqn.clone());
    other.map(|(_, target)| target.name.clone()).or_else(subsystem)
}

/// The image of a volume, if it is one.
pub fn image_of(volume: &Volume) -> Option<&ImageName> {
    match &volume.backend {
        Backend::Rbd { image, .. } => Some(image),
        _ => None,
    }
}

/// Says why a volume cannot be one of a group's.
fn fits_volume(group: &Group, volume: &Volume, images: &[&ImageName]) -> Result<(), String> {
    let name = &group.name;
    let Backend::Rbd { image, conf, user, keyring } = &volume.backend else {
        return Err(format!("belongs to group \"{name}\", which needs backend = \"rbd\""));
    };
    if images.contains(&image) {
        return Err(format!("has an image that another volume of group \"{name}\" has already"));
    }
    let differs = conf.is_some() && *conf != group.conf
        || user.is_some() && *user != group.user
        || keyring.is_some() && *keyring != group.keyring;
    if differs {
        return Err(format!(
            "belongs to group \"{name}\", and its `ceph-` keys are that group's: leave them out"
        ));
    }
    // What the record does not have, all gateways must have by default.
    let given = [
        ("block-size", volume.block_size.is_some()),
        ("physical-block-size", volume.physical_block_size.is_some()),
        ("read-only", volume.read_only),
        ("removable", volume.removable),
        ("vendor", volume.vendor.is_some()),
        ("product", volume.product.is_some()),
        ("eui", volume.eui.is_some()),
        ("layers", !volume.layers.is_empty()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((key, _)) => {
            Err(format!("belongs to group \"{name}\", whose volumes cannot have `{key}`"))
        }
        None => Ok(()),
    }
}
