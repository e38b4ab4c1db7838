//! Log pages (NVMe base specification, section 5.16).

use crate::code::{codes, wire};
use crate::identify::LIST_MAX;
use crate::name::NQN_FIELD;
use crate::pdu::{U16, U32, U64};
use alloc::vec::Vec;
use zerocopy::{FromBytes, IntoBytes};

codes! {
    /// LID: the log pages.
    LogPage: u8 {
        /// Supported log pages.
        Supported = 0x00,
        /// Error information.
        Errors = 0x01,
        /// SMART and health.
        Health = 0x02,
        /// Firmware slots.
        Firmware = 0x03,
        /// Changed attached namespaces.
        ChangedNamespaces = 0x04,
        /// Commands supported and effects.
        Effects = 0x05,
        /// Asymmetric namespace access.
        Ana = 0x0c,
        /// Features supported and effects.
        FeatureEffects = 0x12,
        /// Discovery.
        Discovery = 0x70,
        /// Reservation notifications.
        Reservation = 0x80,
    }
}

/// Specific field of the ANA log: groups only, without their namespaces (RGO).
pub const ANA_GROUPS_ONLY: u8 = 1;

/// The part of a page that a Get Log Page asks for: bytes behind its end are zero. `None` if the
/// offset is beyond the page.
#[must_use]
pub fn part_of(page: &[u8], offset: u64, len: usize) -> Option<Vec<u8>> {
    let offset = usize::try_from(offset).ok().filter(|offset| *offset <= page.len())?;
    let mut part = page[offset..page.len().min(offset.saturating_add(len))].to_vec();
    part.resize(len, 0);
    Some(part)
}

/// The page of supported log pages: LSUPP of each.
#[must_use]
pub fn supported(pages: &[LogPage]) -> Vec<u8> {
    let mut list = [U32::new(0); 256];
    for page in pages {
        list[usize::from(page.code())] = U32::new(1);
    }
    list.as_bytes().to_vec()
}

/// The page of supported features and their effects: FSUPP of each, and that of Set Features for
/// the controller (CSP 3).
#[must_use]
pub fn feature_effects(features: &[u8]) -> Vec<u8> {
    let mut list = [U32::new(0); 256];
    for feature in features {
        list[usize::from(*feature)] = U32::new(1 | 1 << 22);
    }
    list.as_bytes().to_vec()
}

/// CSUPP: the command is supported.
const SUPPORTED: u32 = 1;
/// LBCC: the command may change the content of logical blocks.
const CHANGES_BLOCKS: u32 = 1 << 1;

/// The page of supported commands and their effects. `writes`: the I/O commands that change
/// blocks, all of them in `io` as well.
#[must_use]
pub fn command_effects(admin: &[u8], io: &[u8], writes: &[u8]) -> Vec<u8> {
    let mut list = [U32::new(0); 1024];
    for opcode in admin {
        list[usize::from(*opcode)] = U32::new(SUPPORTED);
    }
    for opcode in io {
        let effect = if writes.contains(opcode) { CHANGES_BLOCKS } else { 0 };
        list[256 + usize::from(*opcode)] = U32::new(SUPPORTED | effect);
    }
    list.as_bytes().to_vec()
}

wire! {
    /// An entry of the error log. An entry whose count is 0 is none.
    ErrorEntry {
        /// Error count: a number of its own for each error.
        count: U64,
        /// Submission queue of the command.
        sqid: U16,
        /// Identifier of the command.
        cid: U16,
        /// Its status, in bits 15:1.
        status: U16,
        /// Byte (7:0) and bit (10:8) of the command that is wrong; 0xffff: not of one.
        location: U16,
        /// The first block that was affected.
        lba: U64,
        /// Namespace.
        nsid: U32,
        /// Vendor specific information.
        vendor: u8,
        /// TRTYPE.
        trtype: u8,
        /// Reserved.
        reserved30: [u8; 2],
        /// Command specific information.
        command: U64,
        /// What the transport makes of it.
        transport: U16,
        /// Reserved.
        reserved42: [u8; 22],
    }
}

wire! {
    /// SMART and health. What is not known is 0, which it means there.
    Health {
        /// Critical warnings: bit 0 spare, 1 temperature, 2 reliability, 3 read only, 4 cache.
        critical: u8,
        /// Composite temperature in kelvins.
        temperature: U16,
        /// Available spare in percent.
        spare: u8,
        /// Its threshold.
        spare_threshold: u8,
        /// Percentage used.
        used: u8,
        /// Critical warnings of endurance groups.
        endurance: u8,
        /// Reserved.
        reserved7: [u8; 25],
        /// Thousands of units of 512 bytes that hosts read, rounded up; 128 bits.
        units_read: [U64; 2],
        /// The same, written.
        units_written: [U64; 2],
        /// Read commands.
        reads: [U64; 2],
        /// Write commands.
        writes: [U64; 2],
        /// Minutes that the controller was busy.
        busy: [U64; 2],
        /// Power cycles.
        power_cycles: [U64; 2],
        /// Power on hours.
        hours: [U64; 2],
        /// Unsafe shutdowns.
        unsafe_shutdowns: [U64; 2],
        /// Media and data integrity errors.
        media_errors: [U64; 2],
        /// Entries of the error log over the life of the controller.
        error_entries: [U64; 2],
        /// Minutes above the warning and above the critical temperature.
        temperature_minutes: [U32; 2],
        /// Temperature sensors in kelvins.
        sensors: [U16; 8],
        /// Fields of thermal management, and reserved ones.
        reserved216: [u8; 296],
    }
}

wire! {
    /// Firmware slots.
    Firmware {
        /// AFI: the active slot in bits 2:0.
        afi: u8,
        /// Reserved.
        reserved1: [u8; 7],
        /// FRS1 to FRS7: revisions, ASCII.
        revisions: [[u8; 8]; 7],
        /// Reserved.
        reserved64: [u8; 448],
    }
}

/// The page of changed namespaces. More than fit are told as 'all may have changed'.
#[must_use]
pub fn changed_namespaces(nsids: &[u32]) -> Vec<u8> {
    let mut list = [U32::new(0); LIST_MAX];
    if nsids.len() > LIST_MAX {
        list[0] = U32::MAX_VALUE;
    } else {
        for (place, nsid) in list.iter_mut().zip(nsids) {
            *place = U32::new(*nsid);
        }
    }
    list.as_bytes().to_vec()
}

codes! {
    /// States of asymmetric namespace access.
    AnaState: u8 {
        /// Optimized.
        Optimized = 0x01,
        /// Non-optimized.
        NonOptimized = 0x02,
        /// Inaccessible.
        Inaccessible = 0x03,
        /// Persistent loss.
        PersistentLoss = 0x04,
        /// Change.
        Change = 0x0f,
    }
}

/// A group of namespaces, as the ANA log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANAGRPID, at least 1.
    pub id: u32,
    /// Change count.
    pub changes: u64,
    /// State.
    pub state: AnaState,
    /// Its namespaces, ascending.
    pub nsids: Vec<u32>,
}

wire! {
    /// The header of the ANA log.
    AnaHeader {
        /// Change count of the page.
        changes: U64,
        /// Number of groups.
        groups: U16,
        /// Reserved.
        reserved: [u8; 6],
    }
}

wire! {
    /// A group of the ANA log, behind which its namespaces are.
    AnaEntry {
        /// ANAGRPID.
        id: U32,
        /// Number of namespaces.
        count: U32,
        /// Change count.
        changes: U64,
        /// State in bits 3:0.
        state: u8,
        /// Reserved.
        reserved: [u8; 15],
    }
}

/// The ANA log. Groups and namespaces must ascend, or a Linux host misses some. `groups_only`:
/// without the namespaces ([`ANA_GROUPS_ONLY`]).
#[must_use]
pub fn ana(changes: u64, groups: &[AnaGroup], groups_only: bool) -> Vec<u8> {
    debug_assert!(groups.windows(2).all(|pair| pair[0].id < pair[1].id), "groups must ascend");
    let count = u16::try_from(groups.len()).unwrap_or(u16::MAX);
    let header =
        AnaHeader { changes: U64::new(changes), groups: U16::new(count), ..AnaHeader::default() };
    let mut page = header.as_bytes().to_vec();
    for group in &groups[..usize::from(count)] {
        let nsids: &[u32] = if groups_only { &[] } else { &group.nsids };
        let entry = AnaEntry {
            id: U32::new(group.id),
            count: U32::new(nsids.len() as u32),
            changes: U64::new(group.changes),
            state: group.state.code(),
            ..AnaEntry::default()
        };
        page.extend_from_slice(entry.as_bytes());
        for nsid in nsids {
            page.extend_from_slice(&nsid.to_le_bytes());
        }
    }
    page
}

/// The longest ANA log in bytes with so many groups and namespaces: hosts make room for it, and some ask for all of it in
/// pieces, also where the log of now has ended.
#[must_use]
pub const fn ana_longest(groups: u32, namespaces: u32) -> usize {
    let (groups, namespaces) = (groups as usize, namespaces as usize);
    let entries = groups.saturating_mul(size_of::<AnaEntry>());
    size_of::<AnaHeader>().saturating_add(entries).saturating_add(namespaces.saturating_mul(4))
}

/// The change count and the groups of an ANA log; `None` if it is cut off, or a state is unknown.
#[must_use]
pub fn ana_groups(page: &[u8]) -> Option<(u64, Vec<AnaGroup>)> {
    let (header, mut rest) = AnaHeader::ref_from_prefix(page).ok()?;
    let mut groups = Vec::new();
    for _ in 0..header.groups.get() {
        let (entry, behind) = AnaEntry::ref_from_prefix(rest).ok()?;
        let len = usize::try_from(entry.count.get()).ok()?.checked_mul(4)?;
        let (nsids, behind) = behind.split_at_checked(len)?;
        let nsids = <[U32]>::ref_from_bytes(nsids).ok()?;
        groups.push(AnaGroup {
            id: entry.id.get(),
            changes: entry.changes.get(),
            state: AnaState::from_code(entry.state & 0x0f)?,
            nsids: nsids.iter().map(|nsid| nsid.get()).collect(),
        });
        rest = behind;
    }
    Some((header.changes.get(), groups))
}

/// TRTYPE: RDMA.
pub const TRTYPE_RDMA: u8 = 1;
/// TRTYPE: TCP.
pub const TRTYPE_TCP: u8 = 3;
/// ADRFAM: IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// ADRFAM: IPv6.
pub const ADRFAM_IPV6: u8 = 2;
/// TREQ: a secure channel is required.
pub const TREQ_SECURE: u8 = 1;
/// TREQ: a secure channel is not required.
pub const TREQ_NOT_SECURE: u8 = 2;
/// TREQ: flow control of submission queues can be disabled.
pub const TREQ_NO_SQ_FLOW: u8 = 1 << 2;
/// EFLAGS: the addresses of the entry's port give the same log (DUPRETINFO).
pub const EFLAGS_DUPLICATE: u16 = 1 << 0;
/// EFLAGS: the discovery controller supports persistent connections (EPCSD).
pub const EFLAGS_PERSISTENT: u16 = 1 << 1;
/// TSAS of RDMA: a reliable connected queue pair, any provider, by the connection manager of RDMA over IP.
pub const TSAS_RDMA: [u8; 3] = [1, 1, 1];
/// TSAS of TCP: no security.
pub const SECTYPE_NONE: u8 = 0;
/// TSAS of TCP: TLS 1.3.
pub const SECTYPE_TLS13: u8 = 2;

codes! {
    /// SUBTYPE: what an entry of the discovery log leads to.
    SubsystemType: u8 {
        /// Another discovery subsystem.
        Referral = 1,
        /// An NVM subsystem.
        Nvm = 2,
        /// The discovery subsystem that the log is of.
        CurrentDiscovery = 3,
    }
}

/// Length of the header and of an entry of the discovery log, in bytes.
pub const DISCOVERY_ENTRY: usize = 1024;

wire! {
    /// The header of the discovery log.
    DiscoveryHeader {
        /// GENCTR: changes with the content, and not between.
        generation: U64,
        /// NUMREC: entries.
        count: U64,
        /// RECFMT: 0.
        format: U16,
        /// Reserved.
        reserved18: [u8; 1006],
    }
}

wire! {
    /// An entry of the discovery log.
    DiscoveryEntry {
        /// TRTYPE.
        trtype: u8,
        /// ADRFAM.
        adrfam: u8,
        /// SUBTYPE, see [`SubsystemType`].
        subtype: u8,
        /// TREQ.
        treq: u8,
        /// PORTID.
        portid: U16,
        /// CNTLID: 0xffff in the dynamic controller model.
        cntlid: U16,
        /// ASQSZ: most entries of the admin queue.
        asqsz: U16,
        /// EFLAGS.
        eflags: U16,
        /// Reserved.
        reserved12: [u8; 20],
        /// TRSVCID: the TCP port, ASCII, padded with spaces.
        trsvcid: [u8; 32],
        /// Reserved.
        reserved64: [u8; 192],
        /// SUBNQN.
        subnqn: [u8; NQN_FIELD],
        /// TRADDR: the address, ASCII, padded with spaces.
        traddr: [u8; 256],
        /// TSAS: of TCP, SECTYPE is the first byte; of RDMA, see [`TSAS_RDMA`].
        tsas: [u8; 256],
    }
}

/// The discovery log.
#[must_use]
pub fn discovery(generation: u64, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let header = DiscoveryHeader {
        generation: U64::new(generation),
        count: U64::new(entries.len() as u64),
        ..DiscoveryHeader::default()
    };
    let mut page = header.as_bytes().to_vec();
    page.extend_from_slice(entries.as_bytes());
    page
}

/// The generation and the entries of a discovery log; `None` if it is cut off or of another format.
#[must_use]
pub fn discovery_entries(page: &[u8]) -> Option<(u64, &[DiscoveryEntry])> {
    let (header, rest) = DiscoveryHeader::ref_from_prefix(page).ok()?;
    let count = usize::try_from(header.count.get()).ok().filter(|_| header.format.get() == 0)?;
    let entries = rest.get(..count.checked_mul(DISCOVERY_ENTRY)?)?;
    Some((header.generation.get(), <[DiscoveryEntry]>::ref_from_bytes(entries).ok()?))
}

codes! {
    /// What a reservation notification is about.
    ReservationNotice: u8 {
        /// There is none.
        Empty = 0,
        /// The host's registration was preempted.
        RegistrationPreempted = 1,
        /// The reservation was released.
        ReservationReleased = 2,
        /// The reservation was preempted.
        ReservationPreempted = 3,
    }
}

wire! {
    /// A reservation notification. Reading one removes it.
    ReservationLog {
        /// Log page count: the number of the notice; 0 if there is none.
        count: U64,
        /// Type, see [`ReservationNotice`].
        kind: u8,
        /// Number of further notices, 255 for more.
        available: u8,
        /// Reserved.
        reserved10: [u8; 2],
        /// Namespace.
        nsid: U32,
        /// Reserved.
        reserved16: [u8; 48],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::ascii;
    use crate::name::{DISCOVERY_NQN, field_of_nqn};
    use alloc::vec;
    use core::mem::{offset_of, size_of};
    use proptest::prelude::*;

    #[test]
    fn pages_are_as_the_specification_has_them() {
        assert_eq!(size_of::<ErrorEntry>(), 64);
        assert_eq!((offset_of!(ErrorEntry, status), offset_of!(ErrorEntry, lba)), (12, 16));
        assert_eq!((offset_of!(ErrorEntry, nsid), offset_of!(ErrorEntry, trtype)), (24, 29));
        assert_eq!((offset_of!(ErrorEntry, command), offset_of!(ErrorEntry, transport)), (32, 40));
        assert_eq!(size_of::<Health>(), 512);
        assert_eq!((offset_of!(Health, temperature), offset_of!(Health, used)), (1, 5));
        assert_eq!((offset_of!(Health, units_read), offset_of!(Health, units_written)), (32, 48));
        assert_eq!((offset_of!(Health, reads), offset_of!(Health, power_cycles)), (64, 112));
        assert_eq!(offset_of!(Health, unsafe_shutdowns), 144);
        assert_eq!((offset_of!(Health, error_entries), offset_of!(Health, sensors)), (176, 200));
        assert_eq!((size_of::<Firmware>(), offset_of!(Firmware, revisions)), (512, 8));
        assert_eq!((size_of::<AnaHeader>(), size_of::<AnaEntry>()), (16, 32));
        assert_eq!((offset_of!(AnaEntry, changes), offset_of!(AnaEntry, state)), (8, 16));
        assert_eq!(size_of::<DiscoveryHeader>(), DISCOVERY_ENTRY);
        assert_eq!(offset_of!(DiscoveryHeader, format), 16);
        assert_eq!(size_of::<DiscoveryEntry>(), DISCOVERY_ENTRY);
        assert_eq!(
            (offset_of!(DiscoveryEntry, asqsz), offset_of!(DiscoveryEntry, eflags)),
            (8, 10)
        );
        assert_eq!(offset_of!(DiscoveryEntry, trsvcid), 32);
        assert_eq!(offset_of!(DiscoveryEntry, subnqn), 256);
        assert_eq!(
            (offset_of!(DiscoveryEntry, traddr), offset_of!(DiscoveryEntry, tsas)),
            (512, 768)
        );
        assert_eq!((size_of::<ReservationLog>(), offset_of!(ReservationLog, nsid)), (64, 12));
    }

    #[test]
    fn parts_of_a_page_are_filled_up() {
        assert_eq!(part_of(&[1, 2, 3, 4], 2, 4), Some(vec![3, 4, 0, 0]));
        assert_eq!(part_of(&[1, 2, 3, 4], 4, 2), Some(vec![0, 0]));
        assert_eq!(part_of(&[1, 2, 3, 4], 5, 1), None);
        assert_eq!(part_of(&[1, 2, 3, 4], u64::MAX, 1), None);
    }

    #[test]
    fn tables_are_by_code() {
        let page = supported(&[LogPage::Errors, LogPage::Discovery]);
        assert_eq!((page.len(), page[4], page[0x70 * 4], page[0]), (1024, 1, 1, 0));
        let page = command_effects(&[0x06], &[0x01, 0x02], &[0x01]);
        assert_eq!((page.len(), page[0x06 * 4]), (4096, 1));
        assert_eq!((page[1024 + 4], page[1024 + 8], page[1024]), (3, 1, 0));
        assert_eq!(feature_effects(&[7])[28..32], [1, 0, 0x40, 0]);
    }

    #[test]
    fn too_many_changed_namespaces_are_told_as_all() {
        assert_eq!(changed_namespaces(&[5])[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
        let page = changed_namespaces(&[1; LIST_MAX + 1]);
        assert_eq!((page.len(), &page[..8]), (4096, &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0][..]));
    }

    #[test]
    fn discovery_log_survives_the_wire() {
        let entry = DiscoveryEntry {
            trtype: TRTYPE_TCP,
            adrfam: ADRFAM_IPV4,
            subtype: SubsystemType::CurrentDiscovery.code(),
            treq: TREQ_NOT_SECURE | TREQ_NO_SQ_FLOW,
            cntlid: U16::MAX_VALUE,
            asqsz: U16::new(32),
            eflags: U16::new(EFLAGS_DUPLICATE | EFLAGS_PERSISTENT),
            trsvcid: ascii("8009"),
            subnqn: field_of_nqn(DISCOVERY_NQN),
            traddr: ascii("192.0.2.1"),
            ..DiscoveryEntry::default()
        };
        let page = discovery(7, &[entry, entry]);
        assert_eq!(discovery_entries(&page), Some((7, &[entry, entry][..])));
        assert_eq!(discovery_entries(&page[..3000]), None);
        let mut other = page;
        other[8..16].fill(0xff);
        assert_eq!(discovery_entries(&other), None);
    }

    proptest! {
        #[test]
        fn ana_log_survives_the_wire(changes: u64, groups in prop::collection::btree_map(1u32.., (any::<u64>(), 0usize..5, prop::collection::btree_set(1u32.., 0..8)), 0..6)) {
            let states = [1, 2, 3, 4, 0xf].map(|code| AnaState::from_code(code).expect("a state"));
            let groups: Vec<AnaGroup> = groups
                .into_iter()
                .map(|(id, (changes, state, nsids))| AnaGroup {
                    id,
                    changes,
                    state: states[state],
                    nsids: nsids.into_iter().collect(),
                })
                .collect();
            let page = ana(changes, &groups, false);
            let brief = ana(changes, &groups, true);
            prop_assert_eq!(brief.len(), 16 + groups.len() * 32);
            prop_assert_eq!(ana_groups(&page), Some((changes, groups)));
        }

        #[test]
        fn any_page_is_read(bytes in prop::collection::vec(any::<u8>(), 0..2200)) {
            let _ = (ana_groups(&bytes), discovery_entries(&bytes).is_some());
        }
    }
}
