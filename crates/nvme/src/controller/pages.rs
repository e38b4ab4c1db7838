//! What the host reads: data structures of Identify, and log pages.

use super::setup::Kind;
use super::state::Controller;
use crate::command::{ALL_NAMESPACES, GetLog, Identify};
use crate::feature::{Event, Feature};
use crate::identify::{
    Cns, IDENTIFY_LEN, Identifiers, IndependentNamespace, Namespace, NvmController, ascii,
    controller_list, namespace_list,
};
use crate::log::{
    self, ANA_GROUPS_ONLY, AnaGroup, DiscoveryEntry, Firmware, Health, LogPage, ReservationLog,
};
use crate::status::Status;
use alloc::vec;
use alloc::vec::Vec;
use zerocopy::IntoBytes;

/// Most bytes of a log page that are read by one command if MDTS sets no limit.
const READ_MAX: u64 = 1 << 20;

/// Admin commands that are supported.
const ADMIN: [u8; 7] = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18];
/// I/O commands that are supported.
const IO: [u8; 12] = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19];
/// Those that change blocks.
const WRITES: [u8; 4] = [0x01, 0x08, 0x09, 0x19];

/// Log pages of I/O controllers.
const IO_PAGES: [LogPage; 9] = [
    LogPage::Supported,
    LogPage::Errors,
    LogPage::Health,
    LogPage::Firmware,
    LogPage::ChangedNamespaces,
    LogPage::Effects,
    LogPage::Ana,
    LogPage::FeatureEffects,
    LogPage::Reservation,
];
/// Log pages of discovery controllers.
const DISCOVERY_PAGES: [LogPage; 2] = [LogPage::Supported, LogPage::Discovery];

/// Features of I/O controllers.
pub(super) const FEATURES: [Feature; 11] = [
    Feature::Arbitration,
    Feature::Power,
    Feature::Temperature,
    Feature::ErrorRecovery,
    Feature::WriteCache,
    Feature::Queues,
    Feature::WriteAtomicity,
    Feature::Events,
    Feature::KeepAlive,
    Feature::HostBehavior,
    Feature::HostId,
];
/// Features of namespaces.
pub(super) const NAMESPACE_FEATURES: [Feature; 2] =
    [Feature::ReservationMask, Feature::ReservationPersistence];

/// What the layer above knows, as the controller's host may see it.
pub trait Source {
    /// The active namespace with the lowest NSID above this one.
    fn next_namespace(&self, above: u32) -> Option<u32>;

    /// An active namespace; `None` if there is no such one.
    fn namespace(&self, nsid: u32) -> Option<(Namespace, Identifiers)>;

    /// The controllers of the subsystem, ascending.
    fn controllers(&self) -> Vec<u16>;

    /// Change count and groups of asymmetric namespace access, ascending.
    fn groups(&self) -> (u64, Vec<AnaGroup>);

    /// Generation and entries of the discovery log.
    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>);

    /// SMART and health: true values, or zeroes.
    fn health(&self) -> Health;

    /// The oldest reservation notification, which is removed; an empty one if there is none.
    fn take_reservation_notice(&mut self) -> ReservationLog;
}

/// The active namespaces above one.
fn namespaces(source: &impl Source, above: u32) -> impl Iterator<Item = u32> {
    core::iter::successors(source.next_namespace(above), |nsid| source.next_namespace(*nsid))
}

impl Controller {
    /// The data structure of an Identify.
    pub(super) fn identify_page(
        &self,
        identify: &Identify,
        nsid: u32,
        source: &impl Source,
    ) -> Result<Vec<u8>, Status> {
        let invalid = Status::INVALID_FIELD.no_retry();
        let cns = Cns::from_code(identify.cns).ok_or(invalid)?;
        if cns == Cns::Controller {
            return Ok(self.setup.identify().as_bytes().to_vec());
        }
        let of_command_set = matches!(
            cns,
            Cns::CommandSetNamespace | Cns::CommandSetController | Cns::CommandSetActiveList
        );
        if self.setup.kind == Kind::Discovery || (of_command_set && identify.csi != 0) {
            return Err(invalid);
        }
        match cns {
            Cns::Namespace | Cns::AllocatedNamespace => {
                self.namespace_page(nsid, source, |namespace| namespace.as_bytes().to_vec())
            }
            Cns::IndependentNamespace => self.namespace_page(nsid, source, |namespace| {
                IndependentNamespace::from(namespace).as_bytes().to_vec()
            }),
            // No protection information, and nothing else to say.
            Cns::CommandSetNamespace => {
                self.namespace_page(nsid, source, |_| vec![0; IDENTIFY_LEN])
            }
            Cns::Descriptors => {
                let (_, ids) =
                    source.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.no_retry())?;
                Ok(ids.encode())
            }
            Cns::ActiveList | Cns::CommandSetActiveList | Cns::AllocatedList => {
                if nsid >= ALL_NAMESPACES - 1 {
                    return Err(Status::INVALID_NAMESPACE.no_retry());
                }
                Ok(namespace_list(namespaces(source, nsid)))
            }
            Cns::NamespaceControllers | Cns::Controllers => {
                if cns == Cns::NamespaceControllers {
                    source.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.no_retry())?;
                }
                let ids = source.controllers();
                Ok(controller_list(ids.into_iter().filter(|id| *id >= identify.cntid)))
            }
            Cns::CommandSetController => Ok(NvmController::default().as_bytes().to_vec()),
            Cns::CommandSets => {
                // The one combination: the NVM command set alone.
                let mut page = vec![0; IDENTIFY_LEN];
                page[0] = 1;
                Ok(page)
            }
            Cns::Controller => Err(invalid),
        }
    }

    /// A data structure of a namespace: zeroes for one that is not active.
    fn namespace_page(
        &self,
        nsid: u32,
        source: &impl Source,
        page: impl Fn(&Namespace) -> Vec<u8>,
    ) -> Result<Vec<u8>, Status> {
        if !(1..=self.setup.subsystem.max_namespaces).contains(&nsid) {
            return Err(Status::INVALID_NAMESPACE.no_retry());
        }
        Ok(match source.namespace(nsid) {
            Some((namespace, _)) => page(&namespace),
            None => vec![0; IDENTIFY_LEN],
        })
    }

    /// A part of a log page.
    pub(super) fn log_page(
        &mut self,
        log: &GetLog,
        room: usize,
        nsid: u32,
        source: &mut impl Source,
    ) -> Result<Vec<u8>, Status> {
        let pages: &[LogPage] = match self.setup.kind {
            Kind::Io => &IO_PAGES,
            Kind::Discovery => &DISCOVERY_PAGES,
        };
        let page = LogPage::from_code(log.lid).filter(|page| pages.contains(page));
        let page = page.ok_or(Status::INVALID_LOG.no_retry())?;
        let limit = match self.setup.subsystem.mdts {
            0 => READ_MAX,
            mdts => READ_MAX.min(4096 << mdts.min(20)),
        };
        if log.len > limit {
            return Err(Status::INVALID_FIELD.no_retry());
        }
        // It is below the limit.
        let len = log.len as usize;
        if len > room {
            return Err(Status::DATA_LENGTH.no_retry());
        }
        let all = [0, ALL_NAMESPACES].contains(&nsid);
        if page == LogPage::Health && !all {
            return Err(Status::INVALID_FIELD.no_retry());
        }
        let bytes = self.whole_page(page, pages, log, source);
        let part = log::part_of(&bytes, log.offset, len);
        let part = part.ok_or(Status::INVALID_FIELD.no_retry())?;
        if !log.retain {
            self.read_about(page);
        }
        Ok(part)
    }

    fn whole_page(
        &self,
        page: LogPage,
        pages: &[LogPage],
        log: &GetLog,
        source: &mut impl Source,
    ) -> Vec<u8> {
        match page {
            LogPage::Supported => log::supported(pages),
            LogPage::Errors => {
                let mut entries: Vec<_> = self.errors.iter().copied().collect();
                entries.resize(super::setup::ERRORS, log::ErrorEntry::default());
                entries.as_bytes().to_vec()
            }
            LogPage::Health => source.health().as_bytes().to_vec(),
            LogPage::Firmware => {
                let mut firmware = Firmware { afi: 1, ..Firmware::default() };
                firmware.revisions[0] = ascii(&self.setup.subsystem.firmware);
                firmware.as_bytes().to_vec()
            }
            LogPage::ChangedNamespaces => {
                let nsids: Vec<u32> = self.changed.iter().copied().collect();
                log::changed_namespaces(&nsids)
            }
            LogPage::Effects => log::command_effects(&ADMIN, &IO, &WRITES),
            LogPage::Ana => {
                let (changes, groups) = source.groups();
                let mut page = log::ana(changes, &groups, log.specific & ANA_GROUPS_ONLY != 0);
                let of = &self.setup.subsystem;
                let longest = log::ana_longest(of.groups, of.max_namespaces);
                page.resize(page.len().max(longest), 0);
                page
            }
            LogPage::FeatureEffects => {
                let features = FEATURES.iter().chain(&NAMESPACE_FEATURES);
                let features: Vec<u8> = features.map(|feature| feature.code()).collect();
                log::feature_effects(&features)
            }
            LogPage::Discovery => {
                let (generation, entries) = source.discovery();
                log::discovery(generation, &entries)
            }
            LogPage::Reservation => source.take_reservation_notice().as_bytes().to_vec(),
        }
    }

    /// The host has read a page: its event may come again.
    fn read_about(&mut self, page: LogPage) {
        if page == LogPage::ChangedNamespaces {
            self.changed.clear();
        }
        if let Some(event) = Event::ALL.into_iter().find(|event| event.log_page() == page) {
            self.events.read(event);
        }
    }
}
