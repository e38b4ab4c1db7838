//! What is served over NVMe: `[[subsystem]]`, and targets whose `protocols` have `"nvme"`.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use lunet_front_nvme::Tls;
use lunet_nvme::auth::{Purpose, Secret, SecretError};
use lunet_nvme::name::{DISCOVERY_NQN, NqnError, check_any_nqn, check_nqn};
use toml::Spanned;
use toml::de::DeValue;
use zeroize::Zeroizing;

use super::mistake::{Mistake, Mistakes};
use super::reach;
use super::reader::{At, Convert, Section, boolean, choice, string};
use super::schema;
use super::sections::{Listening, parse_address, path, top_array};
use super::targets::{Named, entries, find_volume, named_portals};
use super::volumes::Found;
use super::{Portal, Reach, Target};
use crate::secrets::guard_memory;

/// The TCP port of NVMe over TCP (IANA).
pub const NVME_PORT: u16 = 4420;

/// The TCP port of discovery (IANA): portals with it lead to no subsystem that does not name them.
pub const DISCOVERY_PORT: u16 = 8009;

/// The largest namespace identifier.
const MAX_NSID: u32 = lunet_front_nvme::MAX_NAMESPACES;

/// Discovery controllers that hosts may be referred to.
const MAX_REFERRALS: usize = 64;

/// Hosts that a list may name.
const MAX_HOSTS: usize = 1024;

/// What is served over NVMe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nvme {
    /// `[[portal]]` with the transport `"nvme-tcp"` or `"nvme-rdma"`.
    pub portals: Vec<Portal>,
    /// Those of targets, and then `[[subsystem]]`.
    pub subsystems: Vec<Subsystem>,
    /// Discovery controllers elsewhere that hosts are told of.
    pub referrals: Vec<SocketAddr>,
    /// Discovery is announced by mDNS.
    pub announce: bool,
}

/// An NVM subsystem.
#[derive(Clone, Debug, PartialEq)]
pub struct Subsystem {
    /// Its NQN.
    pub nqn: String,
    /// The iSCSI name of the target that it is, if it is one.
    pub target: Option<String>,
    /// Namespace identifiers and the indices of their volumes in [`Config::volumes`](super::Config::volumes), by number.
    pub namespaces: Vec<(u32, usize)>,
    /// Who may connect.
    pub hosts: Hosts,
    /// Indices of its portals in [`Nvme::portals`]; empty: all.
    pub portals: Vec<usize>,
}

/// Who may connect to a subsystem.
#[derive(Clone, Debug, PartialEq)]
pub enum Hosts {
    /// Nobody is named: hosts on this machine.
    ThisMachine,
    /// Nobody is named, and `open` says that everybody may.
    Everybody,
    /// These hosts.
    Named(Vec<Host>),
}

impl Hosts {
    /// Those that are named.
    pub fn named(&self) -> &[Host] {
        match self {
            Self::Named(hosts) => hosts,
            Self::ThisMachine | Self::Everybody => &[],
        }
    }

    /// The host with this NQN, if it is named.
    pub fn find(&self, nqn: &str) -> Option<&Host> {
        self.named().iter().find(|host| host.nqn == nqn)
    }

    /// True if the same hosts may connect, by the same proofs. Where the file says so does not matter.
    pub fn are(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(these), Self::Named(those)) => {
                these.len() == those.len() && these.iter().zip(those).all(|(a, b)| a.is(b))
            }
            _ => self == other,
        }
    }
}

/// A host that may connect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Its NQN.
    pub nqn: String,
    /// What it proves by who it is (DH-HMAC-CHAP); `None`: its name is enough.
    pub secret: Option<HostSecret>,
    /// What controllers prove to it who they are by.
    pub controller_secret: Option<HostSecret>,
    /// Its key of TLS.
    pub tls_key: Option<HostSecret>,
    /// It connects by TLS, and not otherwise: with its key, or else with one that its authentication makes.
    pub tls_required: bool,
}

impl Host {
    /// True if it has to come by TLS with a key that its authentication makes (secure channel concatenation).
    pub fn has_to_concatenate(&self) -> bool {
        self.tls_required && self.tls_key.is_none()
    }

    /// True if it is the same host, which proves itself by the same secrets.
    pub fn is(&self, other: &Self) -> bool {
        let proofs = |host: &Self| {
            [&host.secret, &host.controller_secret, &host.tls_key]
                .map(|proof| proof.as_ref().map(|secret| (secret.purpose, secret.text.clone())))
        };
        self.nqn == other.nqn
            && self.tls_required == other.tls_required
            && proofs(self) == proofs(other)
    }
}

/// A secret of DH-HMAC-CHAP or a key of TLS, and where it is.
#[derive(Clone, PartialEq)]
pub struct HostSecret {
    /// What it is for.
    pub purpose: Purpose,
    /// Where it is.
    pub place: SecretPlace,
    /// The text of it, `DHHC-1:...` or `NVMeTLSkey-1:...`; empty until it was read from where it is.
    pub text: Zeroizing<String>,
    /// Line in the configuration file, from 1.
    pub line: usize,
    /// The key that says so, with the tables around it.
    pub key: String,
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretPlace {
    /// In the configuration itself.
    Here,
    /// In a file; a relative path starts at the configuration.
    File(PathBuf),
    /// In a variable of the environment.
    Environment(String),
}

impl fmt::Debug for HostSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSecret").field("place", &self.place).finish_non_exhaustive()
    }
}

impl HostSecret {
    /// The secret.
    ///
    /// # Errors
    /// The text is none.
    pub fn secret(&self) -> Result<Secret, SecretError> {
        Secret::parse(self.purpose, &self.text)
    }

    /// Says what is wrong with the text.
    ///
    /// # Errors
    /// It is none, or one for something else.
    pub fn check(&self) -> Result<(), String> {
        let Err(error) = self.secret() else { return Ok(()) };
        Err(match (self.purpose, self.text.split(':').next()) {
            (Purpose::DhChap, Some("NVMeTLSkey-1")) => {
                "is a key of TLS, which has its place in tls-key-file, tls-key-env or tls-key".to_owned()
            }
            (Purpose::Tls, Some("DHHC-1")) => {
                "is a secret of DH-HMAC-CHAP, which has its place in secret-file, secret-env or secret".to_owned()
            }
            _ => error.to_string(),
        })
    }

    /// A mistake of this secret.
    pub fn mistake(&self, text: impl Into<String>) -> Mistake {
        Mistake { line: self.line, key: self.key.clone(), text: text.into() }
    }
}

impl Nvme {
    /// Has subsystems that name nobody serve everybody.
    pub fn open(&mut self) {
        for subsystem in &mut self.subsystems {
            if subsystem.hosts == Hosts::ThisMachine {
                subsystem.hosts = Hosts::Everybody;
            }
        }
    }

    /// True if somebody is to connect by TLS.
    pub fn needs_tls(&self) -> bool {
        let required = self.portals.iter().any(|portal| portal.tls == Tls::Required);
        let mut hosts = self.subsystems.iter().flat_map(|subsystem| subsystem.hosts.named());
        required
            || hosts.any(Host::has_to_concatenate)
            || self.secrets().any(|secret| secret.purpose == Purpose::Tls)
    }

    /// Every secret of a host, or for one.
    pub fn secrets(&self) -> impl Iterator<Item = &HostSecret> {
        let hosts = self.subsystems.iter().flat_map(|subsystem| subsystem.hosts.named());
        hosts
            .flat_map(|host| host.secret.iter().chain(&host.controller_secret).chain(&host.tls_key))
    }

    /// The same, to change them.
    pub fn secrets_mut(&mut self) -> impl Iterator<Item = &mut HostSecret> {
        let hosts = self.subsystems.iter_mut().flat_map(|subsystem| match &mut subsystem.hosts {
            Hosts::Named(hosts) => hosts.as_mut_slice(),
            Hosts::ThisMachine | Hosts::Everybody => &mut [],
        });
        hosts.flat_map(|host| {
            host.secret.iter_mut().chain(&mut host.controller_secret).chain(&mut host.tls_key)
        })
    }

    /// The subsystem with this name.
    pub fn find(&self, nqn: &str) -> Option<&Subsystem> {
        self.subsystems.iter().find(|subsystem| subsystem.nqn == nqn)
    }

    /// That of a target, if it is served over NVMe.
    pub fn of_target(&self, name: &str) -> Option<&Subsystem> {
        self.subsystems.iter().find(|subsystem| subsystem.target.as_deref() == Some(name))
    }
}

/// What a target says of NVMe.
#[derive(Default)]
pub(super) struct OverNvme {
    pub(super) served: bool,
    nqn: Option<String>,
    hosts: Vec<Host>,
    portals: Named,
    offset: usize,
    path: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Iscsi,
    Nvme,
}

/// `protocols`, `nqn` and `hosts` of a target.
pub(super) fn of_target(table: &Section<'_>, named: &Named, mistakes: &mut Mistakes) -> OverNvme {
    let protocols = table.get("protocols", &protocols, mistakes);
    let nqn = table.get("nqn", &nqn, mistakes);
    let hosts = hosts(table, mistakes);
    let served = protocols.is_some_and(|found| found.value.contains(&Protocol::Nvme));
    for key in ["nqn", "hosts"] {
        if let (false, Some(value)) = (served, table.raw(key)) {
            let text = "is for NVMe, which is not among the `protocols` of this target";
            mistakes.add(value.span().start, table.key(key), text);
        }
    }
    let (offset, path, portals) = (table.offset, table.path.clone(), named.clone());
    OverNvme { served, nqn: nqn.map(|nqn| nqn.value), hosts, portals, offset, path }
}

fn protocols(value: &DeValue<'_>) -> Result<Vec<Protocol>, String> {
    const WORDS: &[(&str, Protocol)] = &[("iscsi", Protocol::Iscsi), ("nvme", Protocol::Nvme)];
    let items = value.as_array().ok_or("must be an array, as in [\"iscsi\", \"nvme\"]")?;
    let all = items.iter().map(|item| choice(item.get_ref(), WORDS));
    let all: Vec<Protocol> = all.collect::<Result<_, _>>()?;
    if all.contains(&Protocol::Iscsi) {
        return Ok(all);
    }
    Err("must have \"iscsi\" in it: what is for NVMe alone is a [[subsystem]]".to_owned())
}

/// The NQN of a subsystem of this server. One without a name behind its domain is noted only: names of
/// targets, from which it may come, need none.
fn nqn(value: &DeValue<'_>) -> Result<String, String> {
    let nqn = string(value)?;
    match check_nqn(&nqn) {
        Ok(()) | Err(NqnError::Name) if nqn.contains('*') => {
            Err(format!("\"{nqn}\": a subsystem has one name, without *"))
        }
        Ok(()) | Err(NqnError::Name) if nqn == DISCOVERY_NQN => {
            Err("is the name of every discovery subsystem".to_owned())
        }
        Ok(()) | Err(NqnError::Name) => Ok(nqn),
        Err(error) => Err(format!("\"{nqn}\": {error}")),
    }
}

/// The NQN of a host, which may be any that a host can send.
fn host_nqn(value: &DeValue<'_>) -> Result<String, String> {
    let nqn = string(value)?;
    check_any_nqn(&nqn).map_err(|error| format!("\"{nqn}\": {error}"))?;
    if nqn.contains('*') {
        return Err(format!("\"{nqn}\": NQNs are compared as they are: name each host"));
    }
    if nqn == DISCOVERY_NQN {
        return Err("is the name of every discovery subsystem, and of no host".to_owned());
    }
    if ["iqn.", "eui.", "naa."].iter().any(|kind| nqn.starts_with(kind)) {
        return Err(format!(
            "\"{nqn}\" is the name of an iSCSI initiator, which has its place in `initiators` of a target: hosts have \
             NQNs (`cat /etc/nvme/hostnqn` shows a Linux host's)"
        ));
    }
    Ok(nqn)
}

/// Notes a name that is not of the specification's form. Some hosts have such names all the same.
fn note_odd(nqn: &str, offset: usize, key: &str, mistakes: &mut Mistakes) {
    if let Err(error) = check_nqn(nqn) {
        mistakes.note(
            offset,
            key,
            format!("\"{nqn}\": {error}: see whether it is written as meant"),
        );
    }
}

fn hosts(table: &Section<'_>, mistakes: &mut Mistakes) -> Vec<Host> {
    let mut out: Vec<Host> = Vec::new();
    let Some(value) = table.raw("hosts") else { return out };
    let key = table.key("hosts");
    let items = value.get_ref().as_array();
    let Some(items) = items.filter(|items| (1..=MAX_HOSTS).contains(&items.len())) else {
        let text = format!(
            "must be an array of 1 to {MAX_HOSTS} NQNs of hosts (`cat /etc/nvme/hostnqn` shows a Linux host's); leave it \
             out to name none"
        );
        mistakes.add(value.span().start, key, text);
        return out;
    };
    for item in items {
        let Some(host) = host(item, &key, mistakes) else { continue };
        if out.iter().any(|other| other.nqn == host.nqn) {
            mistakes.add(item.span().start, key.clone(), format!("names {} twice", host.nqn));
        }
        out.push(host);
    }
    out
}

/// `tls` of a host: whether it has to use its key.
const TLS: &[(&str, bool)] = &[("required", true), ("allowed", false)];

/// A host: its NQN, or a table with its NQN and secrets.
fn host(item: &Spanned<DeValue<'_>>, key: &str, mistakes: &mut Mistakes) -> Option<Host> {
    if item.get_ref().as_table().is_none() {
        let offset = item.span().start;
        let nqn = host_nqn(item.get_ref()).map_err(|text| mistakes.add(offset, key, text)).ok()?;
        note_odd(&nqn, offset, key, mistakes);
        return Some(Host { nqn, ..Host::default() });
    }
    let table = Section::open(item, key.to_owned(), &schema::HOST, mistakes)?;
    let nqn = table.get("nqn", &host_nqn, mistakes);
    table.missing("nqn", mistakes);
    if let Some(At { offset, value }) = &nqn {
        note_odd(value, *offset, &table.key("nqn"), mistakes);
    }
    let own = (Purpose::DhChap, ["secret-file", "secret-env", "secret"]);
    let secret = secret(&table, own, mistakes);
    let controllers = ["controller-secret-file", "controller-secret-env", "controller-secret"];
    let controller_secret = self::secret(&table, (Purpose::DhChap, controllers), mistakes);
    let keys = (Purpose::Tls, ["tls-key-file", "tls-key-env", "tls-key"]);
    let tls_key = self::secret(&table, keys, mistakes);
    let mut tls_required = tls_key.is_some();
    table.set("tls", &mut tls_required, &|v| choice(v, TLS), mistakes);
    if let (None, None, Some(value)) = (&tls_key, &secret, table.raw("tls")) {
        let text = "has no meaning without a key of TLS or a secret: give the host a tls-key-file or a secret-file";
        mistakes.add(value.span().start, table.key("tls"), text);
    }
    if let (None, Some(other)) = (&secret, &controller_secret) {
        let text = "has no meaning without a secret of the host: a controller proves itself only to those who prove themselves";
        mistakes.extend(vec![other.mistake(text)]);
    }
    Some(Host { nqn: nqn?.value, secret, controller_secret, tls_key, tls_required })
}

/// A secret by one of these keys: for a file, a variable, and the secret itself.
fn secret(
    table: &Section<'_>,
    (purpose, [file, variable, here]): (Purpose, [&str; 3]),
    mistakes: &mut Mistakes,
) -> Option<HostSecret> {
    let keys = [file, variable, here];
    let said: Vec<_> =
        keys.iter().filter_map(|key| Some((*key, table.raw(key)?.span().start))).collect();
    let (key, offset) = *said.first()?;
    if said.len() > 1 {
        let text = format!("must have one of {file}, {variable} and {here}");
        mistakes.add(offset, table.path.clone(), text);
        return None;
    }
    let mut text = Zeroizing::new(String::new());
    let place = if key == file {
        table.get(key, &|value| path(value).map(SecretPlace::File), mistakes)?.value
    } else if key == variable {
        let named = |value: &DeValue<'_>| super::access::variable_name(value);
        SecretPlace::Environment(table.get(key, &named, mistakes)?.value)
    } else {
        guard_memory();
        *text = table.get(key, &string, mistakes)?.value;
        SecretPlace::Here
    };
    let (line, key) = (mistakes.line(offset), table.key(key));
    let secret = HostSecret { purpose, place, text, line, key };
    if let (SecretPlace::Here, Err(error)) = (&secret.place, secret.check()) {
        mistakes.extend(vec![secret.mistake(error)]);
    }
    Some(secret)
}

/// The subsystem that a target is, if it is one.
pub(super) fn as_subsystem(
    target: &Target,
    over: OverNvme,
    mistakes: &mut Mistakes,
) -> Option<At<Subsystem>> {
    if !over.served {
        return None;
    }
    let key = format!("{}.nqn", over.path);
    let nqn = over.nqn.or_else(|| {
        let nqn = format!("nqn.{}", target.name.strip_prefix("iqn.")?);
        matches!(check_nqn(&nqn), Ok(()) | Err(NqnError::Name)).then_some(nqn)
    });
    let Some(nqn) = nqn else {
        let text = "is missing: a name that is no iqn. gives none for NVMe";
        mistakes.add(over.offset, key, text);
        return None;
    };
    if over.portals.some && over.portals.nvme.is_empty() {
        let text = "names no portal with the transport \"nvme-tcp\" or \"nvme-rdma\", of which NVMe needs one";
        mistakes.add(over.offset, format!("{}.portals", over.path), text);
    }
    let rules = &target.access;
    let shown = |(lun, _): &&(u16, usize)| !rules.luns.iter().any(|(masked, _)| masked == lun);
    // A LUN that is not for everybody is for initiators that are named: none of them is a host.
    let namespaces = target.luns.iter().filter(shown);
    let hosts = match (over.hosts.is_empty(), target.reach()) {
        (true, Reach::ThisMachine) => Hosts::ThisMachine,
        (true, Reach::Everybody) => Hosts::Everybody,
        _ => Hosts::Named(over.hosts),
    };
    let namespaces = namespaces.map(|(lun, at)| (u32::from(*lun) + 1, *at)).collect();
    let target = Some(target.name.clone());
    let value = Subsystem { nqn, target, namespaces, hosts, portals: over.portals.nvme };
    note_odd(&value.nqn, over.offset, &key, mistakes);
    check_numbers(&value, (over.offset, &over.path), mistakes);
    Some(At { offset: over.offset, value })
}

fn check_numbers(subsystem: &Subsystem, (offset, path): (usize, &str), mistakes: &mut Mistakes) {
    if let Some((nsid, _)) = subsystem.namespaces.iter().find(|(nsid, _)| *nsid > MAX_NSID) {
        let text =
            format!("LUN {} would be namespace {nsid}; the largest one is {MAX_NSID}", nsid - 1);
        mistakes.add(offset, format!("{path}.luns"), text);
    }
}

/// `[nvme]`: the discovery controllers elsewhere, and whether those here are announced.
pub(super) fn general(top: &Section<'_>, mistakes: &mut Mistakes) -> (Vec<SocketAddr>, bool) {
    let Some(value) = top.raw("nvme") else { return (Vec::new(), false) };
    let table = Section::open(value, "nvme".to_owned(), &schema::NVME, mistakes);
    let Some(table) = table else { return (Vec::new(), false) };
    let mut announce = false;
    table.set("announce", &mut announce, &boolean, mistakes);
    (referrals(&table, mistakes), announce)
}

fn referrals(table: &Section<'_>, mistakes: &mut Mistakes) -> Vec<SocketAddr> {
    let Some(value) = table.raw("referrals") else { return Vec::new() };
    let key = table.key("referrals");
    let Some(items) = value.get_ref().as_array() else {
        let text = "must be an array of addresses of discovery controllers";
        mistakes.add(value.span().start, key, text);
        return Vec::new();
    };
    let mut out = Vec::new();
    for item in items {
        match referral(item.get_ref(), &out) {
            Ok(address) => out.push(address),
            Err(text) => mistakes.add(item.span().start, key.clone(), text),
        }
    }
    out
}

/// One more discovery controller, after these.
fn referral(value: &DeValue<'_>, before: &[SocketAddr]) -> Result<SocketAddr, String> {
    let address = parse_address(&string(value)?, DISCOVERY_PORT)?;
    let why = match address {
        _ if address.ip().is_unspecified() || address.port() == 0 => {
            "is no address that a host could connect to"
        }
        _ if before.contains(&address) => "is there twice",
        _ if before.len() == MAX_REFERRALS => "is one more than the 64 that there may be",
        _ => return Ok(address),
    };
    Err(format!("{address} {why}"))
}

/// `[[subsystem]]`
pub(super) fn subsystems(
    top: &Section<'_>,
    portals: &Listening,
    volumes: &[Found],
    mut all: Vec<At<Subsystem>>,
    mistakes: &mut Mistakes,
) -> Vec<Subsystem> {
    for table in top_array(top, "subsystem", &schema::SUBSYSTEM, mistakes) {
        let nqn: Convert<'_, String> = &nqn;
        let found = table.get("nqn", nqn, mistakes);
        table.missing("nqn", mistakes);
        let hosts = hosts(&table, mistakes);
        let mut open = false;
        table.set("open", &mut open, &boolean, mistakes);
        let named = named_portals(&table, portals, mistakes);
        if let Some(index) = named.iscsi.first() {
            let address = portals.iscsi[*index].value.address;
            let text = format!(
                "{address} is not a portal with the transport \"nvme-tcp\" or \"nvme-rdma\""
            );
            mistakes.add(table.offset, table.key("portals"), text);
        }
        let namespaces = namespaces(&table, volumes, mistakes);
        let hosts = match (hosts.is_empty(), open) {
            (false, _) => Hosts::Named(hosts),
            (true, true) => Hosts::Everybody,
            (true, false) => Hosts::ThisMachine,
        };
        if let Some(At { offset, value: nqn }) = found {
            note_odd(&nqn, offset, &table.key("nqn"), mistakes);
            let value = Subsystem { nqn, target: None, namespaces, hosts, portals: named.nvme };
            all.push(At { offset, value });
        }
    }
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for subsystem in &all {
        let line = mistakes.line(subsystem.offset);
        if let Some(other) = seen.insert(&subsystem.value.nqn, line) {
            let nqn = &subsystem.value.nqn;
            let text = format!("{nqn} is the name of the subsystem of line {other} already");
            mistakes.add(subsystem.offset, "subsystem.nqn", text);
        }
    }
    reach::subsystems(&all, portals, mistakes);
    all.into_iter().map(|subsystem| subsystem.value).collect()
}

fn namespaces(
    table: &Section<'_>,
    volumes: &[Found],
    mistakes: &mut Mistakes,
) -> Vec<(u32, usize)> {
    let mut out: Vec<(u32, usize)> = Vec::new();
    let Some(value) = table.raw("namespaces") else { return out };
    let path = table.key("namespaces");
    let mut one = |(number, offset, volume): (String, usize, &Spanned<DeValue<'_>>)| {
        let key = format!("{path}.{number}");
        let canonical = !number.starts_with('0') && !number.starts_with('+');
        let nsid = number.parse().ok().filter(|nsid| canonical && (1..=MAX_NSID).contains(nsid));
        let Some(nsid) = nsid else {
            let text = format!("the number of a namespace is 1 to {MAX_NSID}");
            return mistakes.add(offset, key, text);
        };
        match find_volume(volume.get_ref(), volumes) {
            Err(text) => mistakes.add(volume.span().start, key, text),
            Ok(index) => match out.iter().find(|(_, other)| *other == index) {
                Some((other, _)) => {
                    let text =
                        format!("this volume is namespace {other} of this subsystem already");
                    mistakes.add(volume.span().start, key, text);
                }
                None => out.push((nsid, index)),
            },
        }
    };
    let entries = entries(value, 1);
    let wrong = entries.is_none();
    entries.into_iter().flatten().for_each(&mut one);
    if wrong {
        let text = "must be a table, as in { 1 = \"vm1\" }, or an array of volumes";
        mistakes.add(value.span().start, path, text);
    }
    out.sort_unstable();
    out
}
