//! What a portal offers, and what a namespace says about itself.

use lunet_iscsi::printable::printable;
use lunet_nvme::identify::{
    self, Cns, Identifiers, NSATTR_WRITE_PROTECTED, VWC_PRESENT, namespaces_of, text_of,
};
use lunet_nvme::log::{
    AnaGroup, DISCOVERY_ENTRY, LogPage, SECTYPE_NONE, SubsystemType, TREQ_SECURE, TRTYPE_RDMA,
    TRTYPE_TCP, ana_groups, discovery_entries,
};
use lunet_nvme::name::{DISCOVERY_NQN, nqn_of_field};
use zerocopy::FromBytes;

use super::{Admin, Error, Failure, Login, Target};

/// So many entries of a discovery log are read.
const MOST_OFFERS: u64 = 1024;

/// More of an ANA log is not read, in bytes.
const MOST_LOG: u64 = 1 << 20;

/// A log that changes while it is read is read so often.
const TRIES: usize = 4;

/// Most blocks of one command: NLB has 16 bits.
const MOST_BLOCKS: u64 = 1 << 16;

/// An entry of a discovery log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// SUBNQN.
    pub nqn: String,
    /// TRADDR and TRSVCID.
    pub address: String,
    /// It leads to an NVM subsystem over the transport that was asked by, and not to discovery.
    pub usable: bool,
    /// It leads to an NVM subsystem over RDMA.
    pub over_rdma: bool,
    /// Only with TLS.
    pub tls: bool,
}

/// A namespace: what it is, and its limits. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The NQN of its subsystem.
    pub subsystem: String,
    /// Namespace identifier.
    pub nsid: u32,
    /// MN: model number.
    pub model: String,
    /// FR: firmware revision.
    pub firmware: String,
    /// Logical blocks.
    pub blocks: u64,
    /// Logical block size.
    pub block_size: u32,
    /// Most data of a command (MDTS, and what NLB can say).
    pub max_transfer: u64,
    /// It takes no writes.
    pub read_only: bool,
    /// It has a volatile write cache.
    pub write_cache: bool,
}

impl Namespace {
    /// Capacity in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_size as u64
    }
}

/// Asks a portal for its subsystems.
///
/// # Errors
/// There is no portal, or it does not want this host.
pub fn discover(target: &Target, login: &Login) -> Result<Vec<Offer>, Error> {
    // Discovery asks for no secret where a host has none for it.
    let target = Target { secret: None, controller_secret: None, ..target.clone() };
    let mut admin = match Admin::open(&target, login, DISCOVERY_NQN, 1) {
        // Targets may have the host's key for its subsystem alone, and discovery without TLS.
        Err(Error::Tls { .. }) => {
            Admin::open(&Target { tls_key: None, ..target }, login, DISCOVERY_NQN, 1)?
        }
        admin => admin?,
    };
    let offers = offers_of(&mut admin)?;
    admin.close();
    Ok(offers)
}

/// The entries of a discovery controller's log.
///
/// # Errors
/// The connection broke, or the log makes no sense.
pub fn offers_of(admin: &mut Admin) -> Result<Vec<Offer>, Error> {
    let failed = |failure| Error::Command { what: "the discovery log", failure };
    for _ in 0..TRIES {
        let wrong = || Error::Answer("a read of the discovery log");
        let number =
            |page: &[u8], at: usize| page.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let header = admin.log(LogPage::Discovery, 16)?.map_err(failed)?;
        let (generation, count) = (number(&header, 0), number(&header, 8));
        let count = count.ok_or_else(wrong)?.min(MOST_OFFERS);
        let page = admin.log(LogPage::Discovery, (count + 1) * DISCOVERY_ENTRY as u64)?;
        let page = page.map_err(failed)?;
        let (read, entries) = discovery_entries(&page).ok_or_else(wrong)?;
        if generation == Some(read) {
            let kind = if admin.is_rdma() { TRTYPE_RDMA } else { TRTYPE_TCP };
            return Ok(entries.iter().map(|entry| offer(entry, kind)).collect());
        }
    }
    Err(Error::Answer("a read of the discovery log, which changes all the time"))
}

fn offer(entry: &lunet_nvme::log::DiscoveryEntry, kind: u8) -> Offer {
    let text = |field: &[u8]| printable(text_of(field).unwrap_or_default().trim()).to_string();
    let (host, port) = (text(&entry.traddr), text(&entry.trsvcid));
    let is_nvm = SubsystemType::from_code(entry.subtype) == Some(SubsystemType::Nvm);
    Offer {
        nqn: printable(nqn_of_field(&entry.subnqn).unwrap_or_default()).to_string(),
        address: if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        },
        usable: is_nvm && entry.trtype == kind,
        over_rdma: is_nvm && entry.trtype == TRTYPE_RDMA,
        tls: entry.tsas[0] != SECTYPE_NONE && entry.treq & 3 == TREQ_SECURE,
    }
}

/// The subsystem that is meant: that of the address, or the only one that the portal offers.
///
/// # Errors
/// The portal offers none or several.
pub(super) fn subsystem(target: &Target, login: &Login) -> Result<String, Error> {
    if let Some(nqn) = &target.nqn {
        return match nqn == DISCOVERY_NQN {
            true => Err(Error::Discovery(nqn.clone())),
            false => Ok(nqn.clone()),
        };
    }
    let mut offers: Vec<String> = discover(target, login)?
        .into_iter()
        .filter(|offer| offer.usable)
        .map(|offer| offer.nqn)
        .collect();
    offers.sort();
    offers.dedup();
    match offers.len() {
        1 => Ok(offers.remove(0)),
        _ => Err(Error::ManySubsystems(offers)),
    }
}

/// Asks a namespace for what it is. Where the address names no subsystem, the only one there is is
/// taken; where it names no namespace, namespace 1.
///
/// # Errors
/// It cannot be reached, or is no namespace that can be read.
pub fn inspect(target: &Target, login: &Login) -> Result<Namespace, Error> {
    let nqn = subsystem(target, login)?;
    let mut admin = Admin::open(target, login, &nqn, 1)?;
    let namespace = look(&mut admin, target.namespace());
    admin.close();
    namespace
}

impl Admin {
    /// The first 1024 namespaces that the host has here.
    ///
    /// # Errors
    /// The connection broke, or the controller does not say.
    pub fn namespaces(&mut self) -> Result<Vec<u32>, Error> {
        let there = self.identify(Cns::ActiveList, 0)?.map_err(asked)?;
        Ok(namespaces_of(&there).collect())
    }

    /// Identify Namespace.
    ///
    /// # Errors
    /// The connection broke, or the controller does not say.
    pub fn namespace(&mut self, nsid: u32) -> Result<Box<identify::Namespace>, Error> {
        let page = self.identify(Cns::Namespace, nsid)?.map_err(asked)?;
        let page = identify::Namespace::read_from_bytes(&page);
        page.map(Box::new).map_err(|_| Error::Answer("Identify Namespace"))
    }

    /// What a namespace is known by: its list of descriptors, and what Identify Namespace has.
    ///
    /// # Errors
    /// The connection broke.
    pub fn names(&mut self, nsid: u32) -> Result<Identifiers, Error> {
        let list = self.identify(Cns::Descriptors, nsid)?;
        let mut names =
            list.map_or_else(|_| Identifiers::default(), |list| Identifiers::decode(&list));
        let page = self.namespace(nsid)?;
        let some = |id: &[u8]| id.iter().any(|byte| *byte != 0);
        names.nguid = names.nguid.or(Some(page.nguid)).filter(|id| some(id));
        names.eui64 = names.eui64.or(Some(page.eui64)).filter(|id| some(id));
        names.uuid = names.uuid.filter(|id| some(id));
        Ok(names)
    }

    /// The state of each group of namespaces on this path; `None` if the controller does not say.
    ///
    /// # Errors
    /// The connection broke.
    pub fn paths(&mut self) -> Result<Option<Vec<AnaGroup>>, Error> {
        let len = self.ana_log_len().min(MOST_LOG);
        let page = self.log(LogPage::Ana, len)?;
        Ok(page.ok().and_then(|page| ana_groups(&page)).map(|(_, groups)| groups))
    }

    /// Length of the ANA log that a Linux host asks for in one command, in bytes.
    #[must_use]
    pub fn ana_log_len(&self) -> u64 {
        let identify = &self.info().identify;
        16 + u64::from(identify.nanagrpid.get()) * 32 + u64::from(identify.mnan.get()) * 4
    }
}

/// What a namespace of the controller says about itself.
pub(super) fn look(admin: &mut Admin, nsid: u32) -> Result<Namespace, Error> {
    let controller = admin.info().identify;
    if controller.cntrltype == identify::TYPE_DISCOVERY {
        return Err(Error::Discovery(admin.nqn().to_owned()));
    }
    let there = admin.namespaces()?;
    // The list has the first 1024.
    if !there.contains(&nsid) && there.len() < identify::LIST_MAX {
        return Err(Error::NoNamespace { nsid, there });
    }
    let page = admin.namespace(nsid)?;
    if page.nsze.get() == 0 {
        return Err(Error::NoNamespace { nsid, there });
    }
    let format = |what: String| Error::Format { nsid, what };
    let metadata = page.format().ms.get();
    if metadata != 0 {
        return Err(format(format!("{metadata} bytes of metadata for each block")));
    }
    let block_size = page.block_size().ok_or_else(|| format("blocks of an odd size".into()))?;
    let blocks = page.nsze.get();
    if blocks.checked_mul(block_size.into()).is_none() {
        return Err(Error::Answer("Identify Namespace"));
    }
    let most = MOST_BLOCKS * u64::from(block_size);
    let text = |field: &[u8]| printable(text_of(field).unwrap_or_default().trim()).to_string();
    Ok(Namespace {
        subsystem: admin.nqn().to_owned(),
        nsid,
        model: text(&controller.mn),
        firmware: text(&controller.fr),
        blocks,
        block_size,
        max_transfer: admin.info().max_data().map_or(most, |bytes| bytes.min(most)),
        read_only: page.nsattr & NSATTR_WRITE_PROTECTED != 0,
        write_cache: controller.vwc & VWC_PRESENT != 0,
    })
}

fn asked(failure: Failure) -> Error {
    Error::Command { what: "Identify", failure }
}
