//! From what both ends have to steps: a pure function.

use lunet_os::systemd::escape;
use serde::Serialize;

use crate::address::{Address, AddressError, Transport, check_name, is_of_iscsi, is_plain, place};
use crate::disk::{self, Known, wwid_of};
use crate::host::{Host, SessionFact};
use crate::journal::{Attachment, Journals, State};
use crate::profile::{Choice, Profile};
use crate::server::{Disk, Offer, Portal, Server};
use crate::step::{self, Chap, NvmePath, Path, Setting, Step};
use crate::system::Call;

/// A file system that may be made on an empty disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// As mount(8) and mkfs(8) have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }
}

/// What is wanted besides the address.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What the disk is for.
    pub profile: Profile,
    /// Where its file system shall be mounted: an absolute path.
    pub mount: Option<String>,
    /// What is made on the disk if it is empty.
    pub mkfs: Option<FileSystem>,
    /// One path, although there are several.
    pub one_path: bool,
    /// There is a secret of DH-HMAC-CHAP.
    pub nvme_secret: bool,
    /// There is a key of TLS.
    pub tls: bool,
}

/// What will be done.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// By what the disk will be known here.
    pub name: String,
    /// The address that was given.
    pub url: String,
    /// The way that is taken.
    pub offer: Offer,
    /// Ways that are not taken, and why.
    pub not_taken: Vec<(Transport, String)>,
    /// The name by which the server has to know this machine.
    pub known_as: Option<String>,
    /// What it is for.
    pub profile: Profile,
    /// Settings and their reasons.
    pub choices: Vec<Choice>,
    /// Where it is mounted.
    pub mount: Option<String>,
    /// What is made on an empty disk.
    pub mkfs: Option<FileSystem>,
    /// Whether dm-multipath makes one disk of the paths.
    pub map: bool,
    /// Steps up to the disk.
    pub steps: Vec<Step>,
    /// What people should know.
    pub notes: Vec<String>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no way.
    #[error("{}", no_way(.0))]
    NoWay(Vec<(Transport, String)>),
    /// Different disks by different ways.
    #[error("the address names neither target nor subsystem, and the server has {}: name one of them", .0.join(" and "))]
    Several(Vec<String>),
    /// It is attached.
    #[error(
        "{url} is attached already, as {name}: `lunet attach --status` shows it, `lunet detach {name}` takes it back"
    )]
    Attached {
        /// The address.
        url: String,
        /// By what it is known.
        name: String,
    },
    /// Another disk of the same session has other settings.
    #[error(
        "{name} shares the sessions with this disk, and the settings of a session are those of all its disks: {what}; attach it \
         with the options of {name} (--profile {}), or detach {name} first", .profile.name()
    )]
    Shared {
        /// What is attached.
        name: String,
        /// Its profile.
        profile: Profile,
        /// What differs.
        what: String,
    },
    /// It is not known to be one disk.
    #[error("{0}")]
    Disk(String),
    /// Other hosts have reserved it.
    #[error(
        "no file system is made on a disk that other hosts lay claim to: {}; have them let go of it, or ask without --mkfs", .0.join("; ")
    )]
    Reserved(Vec<String>),
    /// Somebody else has a session.
    #[error(
        "this machine has a session with {target} at {place} already, which `lunet attach` did not make: `{end}` ends it"
    )]
    Foreign {
        /// Target or subsystem.
        target: String,
        /// Its portal.
        place: String,
        /// The command that ends it.
        end: String,
    },
    /// It is here already, by another way, or a disk that passes for it.
    #[error("{0}")]
    Present(Stranger),
    /// A package is missing.
    #[error("{0}")]
    Missing(String),
    /// There is no name for this machine.
    #[error("this machine has no {what}: {make}")]
    Nameless {
        /// `initiator name`, `host NQN`.
        what: &'static str,
        /// The command that makes one.
        make: String,
    },
    /// An option does not go with the rest.
    #[error("{0}")]
    Option(String),
}

/// A disk of this machine that goes by the name of the one that is to be attached, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this machine has a disk of the same name already: /dev/{disk}{by} is {name}. Both would be taken for one, and what is written to one \
     could go to the other: take /dev/{disk} away first, or give one of them a name of its own"
)]
pub struct Stranger {
    /// `sdb`, `dm-2`.
    disk: String,
    /// By what it comes.
    by: String,
    /// Its name.
    name: String,
}

impl From<&Known> for Stranger {
    fn from(disk: &Known) -> Self {
        let by = match (&disk.unit, &disk.paths) {
            (Some((way, unit)), _) => format!(" (unit {unit} of {way})"),
            (None, Some(paths)) if paths.is_empty() => {
                " (a map of dm-multipath without a path)".to_owned()
            }
            (None, Some(paths)) => format!(" (a map of dm-multipath of {})", paths.join(", ")),
            (None, None) => String::new(),
        };
        Self { disk: disk.name.clone(), by, name: disk.names.join(" ") }
    }
}

fn no_way(refused: &[(Transport, String)]) -> String {
    match refused {
        [(transport, why)] => format!("not attached over {transport}: {why}"),
        refused => {
            let lines: Vec<String> =
                refused.iter().map(|(transport, why)| format!("  {transport}: {why}")).collect();
            format!("there is no way to attach this:\n{}", lines.join("\n"))
        }
    }
}

/// Makes a plan.
///
/// # Errors
/// See [`Refusal`]: nothing has to be undone.
pub fn plan(
    address: &Address,
    host: &Host,
    server: &Server,
    options: &Options,
    journals: &Journals,
) -> Result<Plan, Refusal> {
    let there = &journals.all;
    let mut offers = server.offers.clone();
    offers.sort_by_key(|offer| offer.transport);
    // The server may have named it, and a refusal may show it.
    for offer in &offers {
        check_name(&offer.name).map_err(|error| Refusal::Option(error.to_string()))?;
    }
    one_disk(address, &offers)?;
    let Some(offer) = offers.first().cloned() else {
        return Err(Refusal::NoWay(server.refused.clone()));
    };
    check(options, &offer)?;
    if offer.transport.is_nvme() == is_of_iscsi(&offer.name) {
        return Err(Refusal::Option(format!("{} is no name for {}", offer.name, offer.transport)));
    }
    if let Some(have) = there.iter().find(|have| is_same(have, &offer)) {
        return Err(Refusal::Attached { url: address.to_string(), name: have.name.clone() });
    }
    let mut not_taken = server.refused.clone();
    for worse in offers.iter().skip(1) {
        not_taken.push((
            worse.transport,
            format!("{} is better, and both ends have it", offer.transport),
        ));
    }
    not_taken.sort_by_key(|(transport, _)| *transport);
    let known_as = if offer.transport.is_nvme() { &host.host_nqn } else { &host.initiator_name };
    let mut plan = Plan {
        name: free_name(&offer, journals),
        url: address.to_string(),
        not_taken,
        known_as: known_as.clone(),
        profile: options.profile,
        choices: Vec::new(),
        mount: options.mount.clone(),
        mkfs: options.mkfs,
        map: false,
        steps: Vec::new(),
        notes: notes(&offer),
        offer,
    };
    if options.one_path {
        plan.one_path();
    }
    proven(&plan.offer, options)?;
    foreign(&plan.offer, host, there)?;
    alone(&plan.offer, host, there)?;
    match plan.offer.transport.is_nvme() {
        true => of_nvme(&mut plan, host, options)?,
        false => of_iscsi(&mut plan, address, host)?,
    }
    agrees(&plan, there)?;
    Ok(plan)
}

/// All disks of a session have its settings: a second one cannot have others.
fn agrees(plan: &Plan, there: &[Attachment]) -> Result<(), Refusal> {
    for have in there {
        let differs = have
            .steps
            .iter()
            .find_map(|step| plan.steps.iter().find_map(|own| conflict(step, own)));
        if let Some(what) = differs {
            return Err(Refusal::Shared { name: have.name.clone(), profile: have.profile, what });
        }
    }
    Ok(())
}

/// What two steps about the same thing would set to different values.
fn conflict(have: &Step, own: &Step) -> Option<String> {
    let differs = |name: &str, have: Option<&str>, own: Option<&str>| {
        let word = |value: Option<&str>| value.unwrap_or("not set").to_owned();
        (have != own).then(|| format!("{name} is {}, and would be {}", word(have), word(own)))
    };
    match (have, own) {
        (
            Step::Record { path, settings, chap, .. },
            Step::Record { path: same, settings: wanted, chap: user, .. },
        ) if path == same => {
            let value = |of: &'_ [Setting], name: &str| {
                of.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone())
            };
            let names = settings.iter().chain(wanted).map(|(name, _)| name);
            let mut all = names.filter_map(|name| {
                differs(name, value(settings, name).as_deref(), value(wanted, name).as_deref())
            });
            // Who is not named stays as the record has it.
            let of = |chap: &Option<Chap>| {
                let chap = chap.clone();
                chap.map_or((None, None), |chap| (Some(chap.user), chap.target_user))
            };
            let (have, own) = (of(chap), of(user));
            let named = |name, have: Option<String>, own: Option<String>| {
                differs(name, have.as_deref(), Some(&own?))
            };
            all.next()
                .or_else(|| named("the CHAP user", have.0, own.0))
                .or_else(|| named("the CHAP user of the target", have.1, own.1))
        }
        (
            Step::Controller { path, options, .. },
            Step::Controller { path: same, options: wanted, .. },
        ) if path == same => {
            let (have, own) = (options.join(" "), wanted.join(" "));
            differs("`nvme connect`", Some(&have), Some(&own))
        }
        (Step::Policy { nqn, policy }, Step::Policy { nqn: same, policy: wanted })
            if nqn == same =>
        {
            differs("iopolicy", Some(policy), Some(wanted))
        }
        _ => None,
    }
}

impl Plan {
    fn one_path(&mut self) {
        self.offer.portals.truncate(1);
        self.offer.disks.truncate(1);
    }
}

/// Several paths are taken for one disk, and a disk is written to, only if it is known which it is.
fn proven(offer: &Offer, options: &Options) -> Result<(), Refusal> {
    let refused = |why: String| Err(Refusal::Disk(why));
    let what = if offer.transport.is_nvme() {
        "neither NGUID, EUI64 nor UUID"
    } else {
        "neither NAA nor EUI-64 in VPD page 83h"
    };
    let places: Vec<String> = offer.portals.iter().map(Portal::place).collect();
    let disks = || places.iter().zip(&offer.disks);
    let several = places.len() > 1;
    if let Some((place, _)) = disks().find(|(_, disk)| disk.names.is_empty()) {
        if several {
            return refused(format!(
                "nobody can tell whether {} lead to one disk, because that at {place} has no name of its own ({what}): take one path \
                 by --one-path",
                places.join(" and ")
            ));
        }
        if options.mount.is_some() {
            return refused(format!(
                "the disk at {place} has no name of its own ({what}), by which it would be known again: attach it without --mount"
            ));
        }
    }
    let Some((first, disk)) = disks().next() else { return Ok(()) };
    if let Some((place, other)) = disks().skip(1).find(|(_, other)| !disk.is(other)) {
        return refused(format!(
            "{} leads to two disks, and as one they would be destroyed: at {first} it is {}, at {place} {}; correct the server, \
             or take one path by --one-path",
            offer.name,
            disk.shown(),
            other.shown()
        ));
    }
    // The portal that was asked need not be among those that it lists.
    if let Some((place, other)) = disks().find(|(_, other)| !offer.disk.may_be(other)) {
        return refused(format!(
            "the portal that was asked has another disk than the portal that it lists: {}, and {} at {place}; correct the server, or              put the portal into the address that is meant",
            offer.disk.shown(),
            other.shown()
        ));
    }
    match options.mkfs {
        Some(_) if !offer.claims.is_empty() => Err(Refusal::Reserved(offer.claims.clone())),
        _ => Ok(()),
    }
}

/// Without a name, all ways have to lead to one disk.
fn one_disk(address: &Address, offers: &[Offer]) -> Result<(), Refusal> {
    let key = |offer: &Offer| offer.name.replacen("nqn.", "iqn.", 1);
    let differs = offers
        .windows(2)
        .any(|two| key(&two[0]) != key(&two[1]) || two[0].disk.bytes != two[1].disk.bytes);
    if address.transport.is_some() || !differs {
        return Ok(());
    }
    let mut names: Vec<String> = offers.iter().map(|offer| offer.name.clone()).collect();
    names.dedup();
    Err(Refusal::Several(names))
}

/// The most bytes of a disk: offsets of Linux (loff_t) have 63 bits.
const LARGEST: u64 = i64::MAX as u64;

fn check(options: &Options, offer: &Offer) -> Result<(), Refusal> {
    let wrong = |why: String| Err(Refusal::Option(why));
    if options.mkfs.is_some() && options.mount.is_none() {
        return wrong("--mkfs goes with --mount DIR, where the file system shall be".to_owned());
    }
    if options.mkfs.is_some() && offer.disk.read_only {
        return wrong("the disk takes no writes: no file system can be made on it".to_owned());
    }
    let Disk { bytes, .. } = offer.disk;
    if bytes > LARGEST {
        return Err(Refusal::Disk(format!(
            "the disk has {bytes} bytes by its own word, and Linux addresses {LARGEST}: correct the server"
        )));
    }
    match &options.mount {
        Some(directory) if !directory.starts_with('/') || directory == "/" => {
            wrong(format!("{directory} is no directory to mount at: give its absolute path"))
        }
        Some(directory) if directory.contains(['\n', '"']) => {
            wrong(format!("{directory} cannot stand in /etc/fstab"))
        }
        _ => Ok(()),
    }
}

/// Whether an attachment is of the same disk. One that was interrupted is taken back first.
fn is_same(have: &Attachment, offer: &Offer) -> bool {
    let same = have.transport.is_nvme() == offer.transport.is_nvme()
        && have.target == offer.name
        && have.unit == offer.unit;
    same && have.state == State::Attached
}

/// What the disk is known by: the end of the target's name, and its unit.
fn free_name(offer: &Offer, journals: &Journals) -> String {
    let end = offer.name.rsplit(':').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let end: String = end.chars().map(plain).take(40).collect();
    let end = end.trim_matches('-');
    let base = format!("{}-{}", if end.is_empty() { "disk" } else { end }, offer.unit);
    let damaged = journals.damaged.iter().map(|have| &have.name);
    let taken: Vec<&String> = journals.all.iter().map(|have| &have.name).chain(damaged).collect();
    let is_free = |name: &String| !taken.contains(&name);
    let others = (2u32..).map(|number| format!("{base}-{number}"));
    std::iter::once(base.clone()).chain(others).find(is_free).unwrap_or(base)
}

fn notes(offer: &Offer) -> Vec<String> {
    let mut notes: Vec<String> = offer
        .unusable
        .iter()
        .map(|(place, why)| format!("the portal {place} is not used: {why}"))
        .collect();
    if offer.disk.read_only {
        notes.push("the disk takes no writes".to_owned());
    }
    if offer.disk.names.is_empty() {
        notes.push("the disk has no name of its own, by which it would be known again".to_owned());
    }
    notes.extend(offer.claims.iter().map(|claim| {
        format!(
            "{claim}: see that no two hosts write to it, unless their file system is made for that"
        )
    }));
    notes
}

/// Sessions that are not ours are left alone, and nothing is added to them.
fn foreign(offer: &Offer, host: &Host, there: &[Attachment]) -> Result<(), Refusal> {
    let ours = || there.iter().flat_map(|have| &have.steps);
    let refused = |place: String, end: String| {
        Err(Refusal::Foreign { target: offer.name.clone(), place, end })
    };
    if offer.transport.is_nvme() {
        for controller in host.controllers.iter().filter(|have| have.nqn == offer.name) {
            let one = std::slice::from_ref(controller);
            let is_it = |step: &Step| matches!(step, Step::Controller { path, .. } if path.controller(one).is_some());
            if !ours().any(is_it) {
                let end = format!("nvme disconnect -d {}", controller.id);
                return refused(place(&controller.address, controller.port), end);
            }
        }
        return Ok(());
    }
    for session in host.sessions.iter().filter(|have| have.target == offer.name) {
        let one = std::slice::from_ref(session);
        let is_it =
            |step: &Step| matches!(step, Step::Session { path } if path.session(one).is_some());
        if !ours().any(is_it) {
            let SessionFact { target, address, port, tag, iface, .. } = session;
            let place = place(address, *port);
            let group = tag.map_or_else(String::new, |tag| format!(",{tag}"));
            let end = format!("iscsiadm -m node -T {target} -p {place}{group} -I {iface} --logout");
            return refused(place, end);
        }
    }
    Ok(())
}

/// No other disk of this machine may pass for the one that is attached.
fn alone(offer: &Offer, host: &Host, there: &[Attachment]) -> Result<(), Refusal> {
    let steps = there.iter().flat_map(|have| &have.steps);
    let ways = step::ways(steps, &offer.name, &host.sessions, &host.controllers);
    match disk::stranger(&host.disks, &offer.disk.names, &ways, offer.unit) {
        Some(disk) => Err(Refusal::Present(disk.into())),
        None => Ok(()),
    }
}

fn of_iscsi(plan: &mut Plan, address: &Address, host: &Host) -> Result<(), Refusal> {
    if host.hidden_name {
        let why =
            "the initiator's name is for root to read: the server was asked under lunet's own";
        plan.notes.push(why.to_owned());
    } else if host.initiator_name.is_none() {
        return Err(Refusal::Nameless {
            what: "initiator name",
            make: "`echo InitiatorName=$(iscsi-iname) > /etc/iscsi/initiatorname.iscsi` makes one, as root"
                .to_owned(),
        });
    }
    let several = plan.offer.portals.len() > 1;
    plan.map = several;
    let iface = if plan.offer.transport.is_rdma() { "iser" } else { "default" };
    let is_named = plan.offer.disk.names.iter().any(|name| wwid_of(name).is_some());
    if several && !is_named {
        return Err(Refusal::Disk(format!(
            "dm-multipath cannot make one disk of its paths, because it has neither an NAA nor an EUI-64 name in VPD page 83h, but {}: \
             take one path by --one-path",
            plan.offer.disk.names.join(" ")
        )));
    }
    plan.choices = plan.profile.of_session(several);
    plan.steps.push(Step::Module { name: crate::host::module(plan.offer.transport).to_owned() });
    if several {
        with_multipath(plan, host)?;
    }
    let disks = disks_of_udev(plan);
    read_ahead(plan, &disks);
    if host.systemd {
        plan.steps.push(unit(host.boot_unit(), false));
    } else {
        plan.notes.push(format!(
            "systemd does not run here: `iscsiadm -m node --loginall=automatic` logs in when the machine starts, as {} does",
            host.boot_unit()
        ));
    }
    let settings = settings(plan, address);
    let chap =
        address.user.clone().map(|user| Chap { user, target_user: address.target_user.clone() });
    let path = |portal: &Portal| Path {
        target: plan.offer.name.clone(),
        address: portal.address.clone(),
        port: portal.port,
        tag: portal.tag.unwrap_or(1),
        iface: iface.to_owned(),
    };
    let paths: Vec<Path> = plan.offer.portals.iter().map(path).collect();
    for (number, path) in paths.into_iter().enumerate() {
        let record = Step::Record {
            path: path.clone(),
            settings: settings.clone(),
            chap: chap.clone(),
            before: None,
            made: Vec::new(),
        };
        plan.steps.extend([record, Step::Session { path: path.clone() }]);
        if host.systemd {
            // open-iscsi tries once when the machine starts, and a server may start later.
            let own = logging_in(&path);
            at_boot(plan, host, number + 1, &format!(" iscsid.service {}", host.boot_unit()), &own);
        }
    }
    Ok(())
}

/// How rules of udev know the disk, and what dm-multipath makes of it.
fn disks_of_udev(plan: &Plan) -> Vec<String> {
    let Offer { name, unit, disk, .. } = &plan.offer;
    let mut disks = vec![format!("KERNEL==\"sd*\", ENV{{ID_PATH}}==\"*-iscsi-{name}-lun-{unit}\"")];
    if plan.map {
        // A map has a read-ahead of its own, and file systems see no other.
        let wwids = disk.names.iter().filter_map(|name| wwid_of(name));
        let maps: Vec<String> = wwids.map(|wwid| format!("mpath-{wwid}")).collect();
        disks.push(format!("KERNEL==\"dm-*\", ENV{{DM_UUID}}==\"{}\"", maps.join("|")));
    }
    disks
}

/// What is set in a record.
fn settings(plan: &Plan, address: &Address) -> Vec<Setting> {
    let of_record = plan.choices.iter().filter(|choice| choice.name.starts_with("node."));
    let mut settings: Vec<Setting> =
        of_record.map(|choice| (choice.name.clone(), choice.value.clone())).collect();
    settings.push(("node.startup".to_owned(), "automatic".to_owned()));
    for (asked, name) in
        [(address.header_digest, "HeaderDigest"), (address.data_digest, "DataDigest")]
    {
        if asked {
            settings.push((format!("node.conn[0].iscsi.{name}"), "CRC32C".to_owned()));
        }
    }
    settings
}

/// The part of a unit that logs in, unless there is a session.
fn logging_in(path: &Path) -> String {
    let log_in = path.login();
    format!(
        "ExecStart=/usr/sbin/{} {}\n# There is a session already: {SESSION_EXISTS}. There is no record any more: {NO_RECORD}.\n\
         SuccessExitStatus={SESSION_EXISTS}\nRestartPreventExitStatus={NO_RECORD}\n",
        log_in.program,
        words_of_unit(&log_in)
    )
}

/// Exit codes of iscsiadm (its manual page).
const SESSION_EXISTS: u8 = 15;
const NO_RECORD: u8 = 21;

/// Arguments as a unit of systemd has them.
fn words_of_unit(call: &Call) -> String {
    let words: Vec<String> = call.args.iter().map(|arg| arg.replace('%', "%%")).collect();
    words.join(" ")
}

fn unit(unit: &str, now: bool) -> Step {
    Step::Unit { unit: unit.to_owned(), now, enabled: false, active: false, users: Vec::new() }
}

fn with_multipath(plan: &mut Plan, host: &Host) -> Result<(), Refusal> {
    if !host.has_program("multipath") {
        let package = host.multipath();
        return Err(Refusal::Missing(format!(
            "the target has {} portals, and without dm-multipath each would be a disk of its own: {}, or take one portal by --one-path",
            plan.offer.portals.len(),
            host.install(package)
        )));
    }
    if !host.multipathd && !host.systemd {
        return Err(Refusal::Missing(
            "multipathd does not run: start it, or take one portal by --one-path".to_owned(),
        ));
    }
    // Others than lunet's are in multipath's own table.
    if plan.offer.disk.vendor == "LUNET" {
        let path = format!("/etc/multipath/conf.d/lunet-attach-{}.conf", plan.name);
        let reload =
            if host.multipathd { vec![Call::new("multipathd reconfigure")] } else { Vec::new() };
        plan.steps.push(Step::file(&path, multipath_text(&plan.name), reload));
    }
    if host.systemd {
        plan.steps.push(unit("multipathd.service", true));
    }
    Ok(())
}

/// The first line of the files that are lunet's alone.
fn head(name: &str) -> String {
    format!("# Written by `lunet attach`; `lunet detach {name}` takes it away.\n")
}

/// The settings of docs/multipath.md.
fn multipath_text(name: &str) -> String {
    head(name)
        + r#"devices {
    device {
        vendor               "LUNET"
        product              "VIRTUAL DISK"
        path_grouping_policy "group_by_prio"
        prio                 "alua"
        hardware_handler     "1 alua"
        path_selector        "service-time 0"
        path_checker         "tur"
        failback             "immediate"
        no_path_retry        18
    }
}
"#
}

/// A rule of udev for the disk, if its read-ahead is not the kernel's own.
fn read_ahead(plan: &mut Plan, disks: &[String]) {
    let Some(choice) = plan.profile.read_ahead() else { return };
    let rule = |disk: &String| {
        format!(
            "ACTION==\"add|change\", SUBSYSTEM==\"block\", {disk}, ATTR{{queue/read_ahead_kb}}=\"{}\"\n",
            choice.value
        )
    };
    let rules: String = disks.iter().map(rule).collect();
    plan.choices.push(choice);
    udev(plan, "disk", &rules);
}

fn udev(plan: &mut Plan, what: &str, rule: &str) {
    let path = format!("/etc/udev/rules.d/90-lunet-attach-{}-{what}.rules", plan.name);
    let reload = vec![Call::new("udevadm control --reload")];
    plan.steps.push(Step::file(&path, head(&plan.name) + rule, reload));
}

fn of_nvme(plan: &mut Plan, host: &Host, options: &Options) -> Result<(), Refusal> {
    let (Some(host_nqn), Some(host_id)) = (&host.host_nqn, &host.host_id) else {
        return Err(Refusal::Nameless {
            what: "host NQN and host identifier",
            make: "`nvme gen-hostnqn > /etc/nvme/hostnqn` and `uuidgen > /etc/nvme/hostid` make them, as root".to_owned(),
        });
    };
    if plan.offer.portals.len() > 1 && !host.native_multipath {
        let why = "the kernel makes no one disk of several paths here (nvme_core.multipath=N): one path is used";
        plan.notes.push(why.to_owned());
        plan.one_path();
    }
    let transport = plan.offer.transport;
    plan.choices = plan.profile.of_controller(transport);
    let mut options_of: Vec<String> =
        plan.choices.iter().map(|choice| format!("--{}={}", choice.name, choice.value)).collect();
    // The files of these may be changed one day, and then it would be another host that the server does not know.
    options_of.extend([format!("--hostnqn={host_nqn}"), format!("--hostid={host_id}")]);
    options_of.sort();
    for name in [host_nqn, host_id] {
        if !is_plain(name) {
            return Err(Refusal::Option(AddressError::Name(name.clone()).to_string()));
        }
    }
    plan.steps.push(Step::Module { name: crate::host::module(transport).to_owned() });
    let nqn = plan.offer.name.clone();
    let disk = format!(
        "KERNEL==\"nvme*n*\", ATTRS{{subsysnqn}}==\"{nqn}\", ATTR{{nsid}}==\"{}\"",
        plan.offer.unit
    );
    read_ahead(plan, &[disk]);
    let policy = policy(plan, host);
    let paths: Vec<NvmePath> = plan
        .offer
        .portals
        .iter()
        .map(|portal| {
            let (nqn, address, port) = (nqn.clone(), portal.address.clone(), portal.port);
            NvmePath { transport, nqn, address, port }
        })
        .collect();
    if options.tls {
        options_of.push("--tls".to_owned());
        if host.systemd {
            plan.steps.push(unit("tlshd.service", true));
        } else {
            plan.notes.push("tlshd has to run, now and when the machine starts".to_owned());
        }
    }
    let after = if options.tls { " tlshd.service" } else { "" };
    let config = (options.nvme_secret || options.tls)
        .then(|| format!("/etc/nvme/lunet-attach-{}.json", plan.name));
    if let Some(path) = config.clone() {
        let (host_nqn, host_id) = (host_nqn.clone(), host_id.clone());
        plan.steps.push(Step::Secret { path, host_nqn, host_id, paths: paths.clone() });
    }
    for (number, path) in paths.iter().enumerate() {
        let options = options_of.clone();
        plan.steps.push(Step::Controller { path: path.clone(), options, config: config.clone() });
        let own = connecting(path, &options_of, config.as_deref());
        at_boot(plan, host, number + 1, after, &own);
    }
    plan.steps.extend(policy);
    if !host.systemd {
        let why =
            "systemd does not run here: what starts the machine has to run ExecStart of the units";
        plan.notes.push(why.to_owned());
    }
    Ok(())
}

fn policy(plan: &mut Plan, host: &Host) -> Option<Step> {
    if plan.offer.portals.len() < 2 {
        return None;
    }
    let choice = plan.profile.io_policy(host.kernel);
    let (nqn, policy) = (plan.offer.name.clone(), choice.value.clone());
    let rule = format!(
        "ACTION==\"add|change\", SUBSYSTEM==\"nvme-subsystem\", ATTR{{subsysnqn}}==\"{nqn}\", ATTR{{iopolicy}}=\"{policy}\"\n"
    );
    plan.choices.push(choice);
    udev(plan, "paths", &rule);
    Some(Step::Policy { nqn, policy })
}

/// The part of a unit that connects a path, unless somebody has done so already, as for another namespace of the subsystem.
fn connecting(path: &NvmePath, options: &[String], config: Option<&str>) -> String {
    let NvmePath { nqn, address, port, .. } = path;
    let address = address.replace('%', "%%");
    let call = path.connect(options, config);
    format!(
        "ExecStartPre=-/sbin/modprobe {}\nExecStart=/bin/sh -c 'for c in /sys/class/nvme/nvme*; do if grep -qsxFe {nqn} $$c/subsysnqn && \
         grep -qsxe {} $$c/transport && cut -d, -f1,2 $$c/address | grep -qxFe traddr={address},trsvcid={port}; then exit 0; fi; done; \
         exec nvme {}'\n",
        path.module(),
        path.kind(),
        words_of_unit(&call)
    )
}

/// A unit for each path, so that each tries again by itself, however long its server takes. `simple`, because what is `oneshot`
/// holds up the start of the machine for as long, and is not started again before systemd 244.
fn at_boot(plan: &mut Plan, host: &Host, number: usize, after: &str, service: &str) {
    let name = format!("lunet-attach-{}-{number}.service", plan.name);
    let text = format!(
        "{}[Unit]\nDescription=Path {number} of {}, attached by lunet\nWants=network-online.target\n\
         After=network-online.target{after}\nStartLimitIntervalSec=0\n\n[Service]\nType=simple\nRemainAfterExit=yes\n{service}\
         Restart=on-failure\nRestartSec=10\n\n[Install]\nWantedBy=multi-user.target\n",
        head(&plan.name),
        plan.name,
    );
    let reload = if host.systemd { vec![Call::new("systemctl daemon-reload")] } else { Vec::new() };
    plan.steps.push(Step::file(&format!("/etc/systemd/system/{name}"), text, reload));
    if host.systemd {
        plan.steps.push(unit(&name, false));
    }
}

/// A rule of udev that has systemd mount a file system when its disk comes, which is known by a match of udev's. systemd itself
/// waits for the disk of a line of fstab with `nofail` for a minute and a half after the start, and mounts it no more if it comes later.
#[must_use]
pub fn mount_rule(name: &str, disk: &str, uuid: &str, directory: &str) -> (String, String) {
    // Backslashes are read by systemd once more.
    let mount = mount_unit(directory).replace('\\', r"\\");
    let rule = format!(
        "{}ACTION==\"add|change\", SUBSYSTEM==\"block\", {disk}, ENV{{ID_FS_UUID}}==\"{uuid}\", TAG+=\"systemd\", \
         ENV{{SYSTEMD_WANTS}}+=\"{mount}\"\n",
        head(name)
    );
    (format!("/etc/udev/rules.d/90-lunet-attach-{name}-mount.rules"), rule)
}

/// The unit of a mount.
fn mount_unit(directory: &str) -> String {
    escape(std::path::Path::new(directory)) + ".mount"
}

#[cfg(test)]
mod tests {
    use super::mount_unit;

    /// By systemd-escape(1).
    #[test]
    fn mounts_have_the_names_that_systemd_gives_them() {
        for (directory, unit) in [
            ("/srv/vms", "srv-vms.mount"),
            ("/srv/a b/", r"srv-a\x20b.mount"),
            ("/.x-y/\u{e9}", r"\x2ex\x2dy-\xc3\xa9.mount"),
        ] {
            assert_eq!(mount_unit(directory), unit);
        }
    }
}
