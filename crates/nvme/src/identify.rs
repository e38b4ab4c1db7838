//! Data structures of the Identify command (NVMe base specification, section 5.17; NVM command set
//! specification, section 4.1.5).
//!
//! Each is a structure of exactly 4096 bytes, all zero when new. Fields that nothing here sets or
//! reads are reserved ones, so that what they are stays in one place: the tests have the offsets.

use crate::code::{codes, wire};
use crate::name::NQN_FIELD;
use crate::pdu::{U16, U32, U64};
use alloc::vec::Vec;
use zerocopy::IntoBytes;

/// Length of every data structure of Identify, in bytes.
pub const IDENTIFY_LEN: usize = 4096;

/// Most namespaces in a list of Identify.
pub const LIST_MAX: usize = 1024;

codes! {
    /// CNS: which data structure is wanted.
    Cns: u8 {
        /// The namespace, for the NVM command set.
        Namespace = 0x00,
        /// The controller.
        Controller = 0x01,
        /// Active namespaces above NSID.
        ActiveList = 0x02,
        /// The identifiers of a namespace.
        Descriptors = 0x03,
        /// The namespace, for the command set of CSI.
        CommandSetNamespace = 0x05,
        /// The controller, for the command set of CSI.
        CommandSetController = 0x06,
        /// Active namespaces above NSID with the command set of CSI.
        CommandSetActiveList = 0x07,
        /// The namespace, for any command set.
        IndependentNamespace = 0x08,
        /// Allocated namespaces above NSID.
        AllocatedList = 0x10,
        /// An allocated namespace.
        AllocatedNamespace = 0x11,
        /// Controllers, from CNTID on, that the namespace is attached to.
        NamespaceControllers = 0x12,
        /// Controllers of the subsystem, from CNTID on.
        Controllers = 0x13,
        /// Combinations of command sets.
        CommandSets = 0x1c,
    }
}

/// CMIC: the subsystem has more than one port.
pub const CMIC_PORTS: u8 = 1 << 0;
/// CMIC: the subsystem has more than one controller.
pub const CMIC_CONTROLLERS: u8 = 1 << 1;
/// CMIC: the subsystem supports asymmetric namespace access.
pub const CMIC_ANA: u8 = 1 << 3;
/// CTRATT: host identifiers of 128 bits; mandatory over fabrics.
pub const CTRATT_HOST_ID_128: u32 = 1 << 0;
/// CTRATT: traffic based keep alive.
pub const CTRATT_TBKAS: u32 = 1 << 6;
/// CNTRLTYPE: a controller with I/O queues.
pub const TYPE_IO: u8 = 1;
/// CNTRLTYPE: a discovery controller.
pub const TYPE_DISCOVERY: u8 = 2;
/// ONCS: Compare.
pub const ONCS_COMPARE: u16 = 1 << 0;
/// ONCS: Dataset Management.
pub const ONCS_DSM: u16 = 1 << 2;
/// ONCS: Write Zeroes.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// ONCS: reservations.
pub const ONCS_RESERVATIONS: u16 = 1 << 5;
/// ONCS: Verify.
pub const ONCS_VERIFY: u16 = 1 << 7;
/// ONCS: Copy.
pub const ONCS_COPY: u16 = 1 << 8;
/// FUSES: Compare and Write.
pub const FUSES_COMPARE_WRITE: u16 = 1 << 0;
/// VWC: there is a volatile write cache.
pub const VWC_PRESENT: u8 = 1 << 0;
/// VWC: Flush for all namespaces is supported.
pub const VWC_FLUSH_ALL: u8 = 3 << 1;
/// SGLS: SGLs are supported, of any alignment.
pub const SGLS_SUPPORTED: u32 = 1 << 0;
/// SGLS: keyed data block descriptors are supported.
pub const SGLS_KEYED: u32 = 1 << 2;
/// SGLS: the address of a data block in the capsule is an offset.
pub const SGLS_OFFSET: u32 = 1 << 20;
/// NMIC: more than one controller may have the namespace.
pub const NMIC_SHARED: u8 = 1 << 0;
/// NSFEAT: thin provisioning.
pub const NSFEAT_THIN: u8 = 1 << 0;
/// NSFEAT: NAWUN, NAWUPF and NACWU are valid.
pub const NSFEAT_ATOMICS: u8 = 1 << 1;
/// NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
pub const NSFEAT_PREFERRED: u8 = 1 << 4;
/// DLFEAT: deallocated blocks read as zeroes.
pub const DLFEAT_ZEROES: u8 = 1;
/// DLFEAT: Write Zeroes has Deallocate.
pub const DLFEAT_DEAC: u8 = 1 << 3;
/// RESCAP: all six types, and reservations may persist through power loss. IEKEY is that of
/// revision 1.3 and later.
pub const RESCAP_ALL: u8 = 0xff;
/// NSATTR: the namespace is write protected.
pub const NSATTR_WRITE_PROTECTED: u8 = 1 << 0;
/// NSTAT: the namespace is ready.
pub const NSTAT_READY: u8 = 1 << 0;

wire! {
    /// Identify Controller, CNS 1.
    Controller {
        /// VID.
        vid: U16,
        /// SSVID.
        ssvid: U16,
        /// SN: serial number, ASCII, padded with spaces.
        sn: [u8; 20],
        /// MN: model number.
        mn: [u8; 40],
        /// FR: firmware revision.
        fr: [u8; 8],
        /// RAB.
        rab: u8,
        /// IEEE: OUI, little-endian.
        ieee: [u8; 3],
        /// CMIC.
        cmic: u8,
        /// MDTS: most data of a command, 2^n pages of CAP.MPSMIN; 0: no limit.
        mdts: u8,
        /// CNTLID.
        cntlid: U16,
        /// VER.
        ver: U32,
        /// RTD3R and RTD3E.
        rtd3: [U32; 2],
        /// OAES: optional events.
        oaes: U32,
        /// CTRATT.
        ctratt: U32,
        /// Reserved.
        reserved100: [u8; 11],
        /// CNTRLTYPE.
        cntrltype: u8,
        /// FGUID.
        fguid: [u8; 16],
        /// CRDT1 to CRDT3: delays of retries, in 100 ms.
        crdt: [U16; 3],
        /// Reserved.
        reserved134: [u8; 122],
        /// OACS: optional admin commands.
        oacs: U16,
        /// ACL: Abort commands at once, 0's based.
        acl: u8,
        /// AERL: Asynchronous Event Requests at once, 0's based.
        aerl: u8,
        /// FRMW.
        frmw: u8,
        /// LPA: log page attributes.
        lpa: u8,
        /// ELPE: entries of the error log, 0's based.
        elpe: u8,
        /// NPSS: power states, 0's based.
        npss: u8,
        /// Reserved, or for vendors.
        reserved264: [u8; 2],
        /// WCTEMP and CCTEMP, in kelvins.
        temperatures: [U16; 2],
        /// Fields that do not matter over fabrics.
        reserved270: [u8; 50],
        /// KAS: granularity of the keep alive timer, in 100 ms; 0: no keep alive.
        kas: U16,
        /// Fields that do not matter over fabrics.
        reserved322: [u8; 20],
        /// ANATT: most seconds that a transition takes.
        anatt: u8,
        /// ANACAP: states that are reported.
        anacap: u8,
        /// ANAGRPMAX: the largest group identifier.
        anagrpmax: U32,
        /// NANAGRPID: number of groups.
        nanagrpid: U32,
        /// Reserved.
        reserved352: [u8; 160],
        /// SQES: size of submission queue entries, 2^n, required in bits 3:0 and most in 7:4.
        sqes: u8,
        /// CQES: the same of completion queue entries.
        cqes: u8,
        /// MAXCMD: commands at once on a queue that the controller recommends.
        maxcmd: U16,
        /// NN: the largest NSID.
        nn: U32,
        /// ONCS: optional I/O commands.
        oncs: U16,
        /// FUSES: fused operations.
        fuses: U16,
        /// FNA.
        fna: u8,
        /// VWC: volatile write cache.
        vwc: u8,
        /// AWUN: atomic write unit in normal operation, logical blocks, 0's based.
        awun: U16,
        /// AWUPF: atomic write unit on power fail, 0's based.
        awupf: U16,
        /// ICSVSCC.
        icsvscc: u8,
        /// NWPC: namespace write protection.
        nwpc: u8,
        /// ACWU: atomic compare and write unit, 0's based.
        acwu: U16,
        /// OCFS: formats of Copy.
        ocfs: U16,
        /// SGLS.
        sgls: U32,
        /// MNAN: most namespaces; never 0 with asymmetric namespace access.
        mnan: U32,
        /// Reserved.
        reserved544: [u8; 224],
        /// SUBNQN, ends with a NUL.
        subnqn: [u8; NQN_FIELD],
        /// Reserved.
        reserved1024: [u8; 768],
        /// IOCCSZ: most bytes of a command capsule on an I/O queue, in units of 16.
        ioccsz: U32,
        /// IORCSZ: the same of a response capsule.
        iorcsz: U32,
        /// ICDOFF: where data begins in a capsule, in units of 16 behind the entry.
        icdoff: U16,
        /// FCATT.
        fcatt: u8,
        /// MSDBD: most SGL data block descriptors of a command.
        msdbd: u8,
        /// OFCS: optional Fabrics commands.
        ofcs: U16,
        /// DCTYPE: type of a discovery controller.
        dctype: u8,
        /// Reserved.
        reserved1807: [u8; 241],
        /// PSD0 to PSD31: power states.
        psd: [[u8; 32]; 32],
        /// For vendors.
        vendor: [u8; 1024],
    }
}

wire! {
    /// A format of logical blocks.
    LbaFormat {
        /// MS: bytes of metadata.
        ms: U16,
        /// LBADS: bytes of data, 2^n.
        lbads: u8,
        /// RP: relative performance.
        rp: u8,
    }
}

wire! {
    /// Identify Namespace for the NVM command set, CNS 0. All blocks of sizes are 0's based but
    /// those of NSZE, NCAP and NUSE.
    Namespace {
        /// NSZE: size in logical blocks.
        nsze: U64,
        /// NCAP: blocks that may be allocated.
        ncap: U64,
        /// NUSE: blocks that are allocated.
        nuse: U64,
        /// NSFEAT.
        nsfeat: u8,
        /// NLBAF: formats, 0's based.
        nlbaf: u8,
        /// FLBAS: the format in use.
        flbas: u8,
        /// MC, DPC and DPS: metadata and protection.
        protection: [u8; 3],
        /// NMIC.
        nmic: u8,
        /// RESCAP: reservations.
        rescap: u8,
        /// FPI.
        fpi: u8,
        /// DLFEAT: deallocation.
        dlfeat: u8,
        /// NAWUN: atomic write unit in normal operation.
        nawun: U16,
        /// NAWUPF: atomic write unit on power fail.
        nawupf: U16,
        /// NACWU: atomic compare and write unit.
        nacwu: U16,
        /// NABSN: atomic boundary in normal operation.
        nabsn: U16,
        /// NABO: offset of the first boundary; a Linux host takes 0 only.
        nabo: U16,
        /// NABSPF: atomic boundary on power fail.
        nabspf: U16,
        /// NOIOB: optimal I/O boundary.
        noiob: U16,
        /// NVMCAP: bytes of storage, 128 bits.
        nvmcap: [u8; 16],
        /// NPWG: preferred write granularity.
        npwg: U16,
        /// NPWA: preferred write alignment.
        npwa: U16,
        /// NPDG: preferred deallocate granularity.
        npdg: U16,
        /// NPDA: preferred deallocate alignment.
        npda: U16,
        /// NOWS: optimal write size.
        nows: U16,
        /// MSSRL: most blocks of a source range of Copy, not 0's based.
        mssrl: U16,
        /// MCL: most blocks of a Copy, not 0's based.
        mcl: U32,
        /// MSRC: source ranges of a Copy.
        msrc: u8,
        /// Reserved.
        reserved81: [u8; 11],
        /// ANAGRPID: its group.
        anagrpid: U32,
        /// Reserved.
        reserved96: [u8; 3],
        /// NSATTR.
        nsattr: u8,
        /// NVMSETID.
        nvmsetid: U16,
        /// ENDGID.
        endgid: U16,
        /// NGUID, big-endian; 0 if there is none.
        nguid: [u8; 16],
        /// EUI64, big-endian; 0 if there is none.
        eui64: [u8; 8],
        /// LBAF0 to LBAF63.
        lbaf: [LbaFormat; 64],
        /// For vendors.
        vendor: [u8; 3712],
    }
}

impl Namespace {
    /// The format in use.
    #[must_use]
    pub const fn format(&self) -> LbaFormat {
        // Formats 16 and above have bits 6:5 as well.
        self.lbaf[(self.flbas & 0x0f | (self.flbas & 0x60) >> 1) as usize]
    }

    /// Bytes of a logical block, if they are those of a format with 512 bytes to 32 KiB.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        let shift = self.format().lbads;
        (9..=15).contains(&shift).then(|| 1 << shift)
    }
}

wire! {
    /// Identify Namespace for any command set, CNS 8.
    IndependentNamespace {
        /// NSFEAT.
        nsfeat: u8,
        /// NMIC.
        nmic: u8,
        /// RESCAP: reservations.
        rescap: u8,
        /// FPI.
        fpi: u8,
        /// ANAGRPID: its group.
        anagrpid: U32,
        /// NSATTR.
        nsattr: u8,
        /// Reserved.
        reserved9: u8,
        /// NVMSETID.
        nvmsetid: U16,
        /// ENDGID.
        endgid: U16,
        /// NSTAT: status.
        nstat: u8,
        /// Reserved.
        reserved15: [u8; 4081],
    }
}

impl From<&Namespace> for IndependentNamespace {
    /// What the other structure says of a namespace that is ready.
    fn from(namespace: &Namespace) -> Self {
        Self {
            nmic: namespace.nmic,
            rescap: namespace.rescap,
            fpi: namespace.fpi,
            anagrpid: namespace.anagrpid,
            nsattr: namespace.nsattr,
            nstat: NSTAT_READY,
            ..Self::default()
        }
    }
}

wire! {
    /// Identify Controller for the NVM command set, CNS 6 with CSI 0.
    NvmController {
        /// VSL: most data of a Verify, 2^n pages; 0: no limit.
        vsl: u8,
        /// WZSL: most data of a Write Zeroes, 2^n pages; 0: no limit.
        wzsl: u8,
        /// WUSL.
        wusl: u8,
        /// DMRL: ranges of a Dataset Management; 0: no limit.
        dmrl: u8,
        /// DMRSL: blocks of a range; 0: no limit.
        dmrsl: U32,
        /// DMSL: blocks of a Dataset Management; 0: no limit.
        dmsl: U64,
        /// Reserved.
        reserved16: [u8; 4080],
    }
}

/// Text of a field: ASCII, padded with spaces, cut off where the field ends.
#[must_use]
pub fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c as u8 } else { b'?' };
    for (to, from) in field.iter_mut().zip(text.chars()) {
        *to = printable(from);
    }
    field
}

/// The text of a field, without the spaces or NULs behind it; `None` if it is not ASCII.
#[must_use]
pub fn text_of(field: &[u8]) -> Option<&str> {
    let text = core::str::from_utf8(field).ok().filter(|text| text.is_ascii())?;
    Some(text.trim_end_matches(['\0', ' ']))
}

/// What a namespace is known by. Each is the namespace's for ever, and no other has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    /// EUI-64, big-endian.
    pub eui64: Option<[u8; 8]>,
    /// NGUID, big-endian.
    pub nguid: Option<[u8; 16]>,
    /// UUID, big-endian.
    pub uuid: Option<[u8; 16]>,
}

/// Type and length of a descriptor.
const EUI64: (u8, u8) = (1, 8);
const NGUID: (u8, u8) = (2, 16);
const UUID: (u8, u8) = (3, 16);
/// The descriptor of the command set.
const CSI: (u8, u8) = (4, 1);

impl Identifiers {
    /// The list of descriptors, CNS 3, of a namespace with the NVM command set. Identifiers that
    /// are zero are no identifiers, and are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut list = Vec::with_capacity(IDENTIFY_LEN);
        let mut put = |(kind, len): (u8, u8), id: &[u8]| {
            list.extend_from_slice(&[kind, len, 0, 0]);
            list.extend_from_slice(id);
        };
        for (form, id) in [
            (EUI64, self.eui64.as_ref().map(|id| &id[..])),
            (NGUID, self.nguid.as_ref().map(|id| &id[..])),
            (UUID, self.uuid.as_ref().map(|id| &id[..])),
        ] {
            if let Some(id) = id.filter(|id| id.iter().any(|byte| *byte != 0)) {
                put(form, id);
            }
        }
        put(CSI, &[0]);
        list.resize(IDENTIFY_LEN, 0);
        list
    }

    /// The identifiers in a list of descriptors. Unknown ones, and those of a wrong length, are
    /// skipped.
    #[must_use]
    pub fn decode(mut list: &[u8]) -> Self {
        let mut found = Self::default();
        while let [kind, len, _, _, rest @ ..] = list {
            // A length of 0 ends the list.
            let Some((id, behind)) = rest.split_at_checked(usize::from(*len)) else { break };
            if id.is_empty() {
                break;
            }
            match (*kind, *len) {
                EUI64 => found.eui64 = id.try_into().ok(),
                NGUID => found.nguid = id.try_into().ok(),
                UUID => found.uuid = id.try_into().ok(),
                _ => {}
            }
            list = behind;
        }
        found
    }
}

/// A list of namespaces: the first [`LIST_MAX`] of `nsids`, which ascend.
#[must_use]
pub fn namespace_list(nsids: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut list: Vec<u8> = Vec::with_capacity(IDENTIFY_LEN);
    for nsid in nsids.take(LIST_MAX) {
        list.extend_from_slice(&nsid.to_le_bytes());
    }
    list.resize(IDENTIFY_LEN, 0);
    list
}

/// The namespaces in a list.
pub fn namespaces_of(list: &[u8]) -> impl Iterator<Item = u32> {
    let nsids = list.chunks_exact(4).map(|word| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(word);
        u32::from_le_bytes(bytes)
    });
    nsids.take_while(|nsid| *nsid != 0)
}

/// A list of controllers: how many, then the first 2047 of `ids`, which ascend.
#[must_use]
pub fn controller_list(ids: impl Iterator<Item = u16>) -> Vec<u8> {
    let mut list = [U16::new(0); IDENTIFY_LEN / 2];
    let mut count = 0;
    for (place, id) in list[1..].iter_mut().zip(ids) {
        *place = U16::new(id);
        count += 1;
    }
    list[0] = U16::new(count);
    list.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use proptest::prelude::*;
    use zerocopy::{FromBytes, FromZeros};

    macro_rules! offsets {
        ($type:ident: $($field:ident $offset:expr,)*) => {
            assert_eq!(size_of::<$type>(), IDENTIFY_LEN, stringify!($type));
            $(assert_eq!(offset_of!($type, $field), $offset, stringify!($field));)*
        };
    }

    #[test]
    fn controller_is_as_the_specification_has_it() {
        offsets! {
            Controller:
            sn 4, mn 24, fr 64, rab 72, ieee 73, cmic 76, mdts 77, cntlid 78, ver 80, oaes 92,
            ctratt 96, cntrltype 111, crdt 128, oacs 256, acl 258, aerl 259, frmw 260, lpa 261,
            elpe 262, npss 263, temperatures 266, kas 320, anatt 342, anacap 343, anagrpmax 344,
            nanagrpid 348, sqes 512, cqes 513, maxcmd 514, nn 516, oncs 520, fuses 522, fna 524,
            vwc 525, awun 526, awupf 528, nwpc 531, acwu 532, ocfs 534, sgls 536, mnan 540,
            subnqn 768, ioccsz 1792, iorcsz 1796, icdoff 1800, fcatt 1802, msdbd 1803, ofcs 1804,
            dctype 1806, psd 2048, vendor 3072,
        }
    }

    #[test]
    fn namespaces_are_as_the_specification_has_them() {
        offsets! {
            Namespace:
            ncap 8, nuse 16, nsfeat 24, nlbaf 25, flbas 26, nmic 30, rescap 31, fpi 32, dlfeat 33,
            nawun 34, nawupf 36, nacwu 38, nabsn 40, nabo 42, nabspf 44, noiob 46, nvmcap 48,
            npwg 64, npwa 66, npdg 68, npda 70, nows 72, mssrl 74, mcl 76, msrc 80, anagrpid 92,
            nsattr 99, nvmsetid 100, endgid 102, nguid 104, eui64 120, lbaf 128, vendor 384,
        }
        assert_eq!(offset_of!(LbaFormat, lbads), 2);
        offsets! {
            IndependentNamespace:
            nmic 1, rescap 2, fpi 3, anagrpid 4, nsattr 8, nvmsetid 10, endgid 12, nstat 14,
        }
        offsets! { NvmController: wzsl 1, dmrl 3, dmrsl 4, dmsl 8, }
    }

    #[test]
    fn block_size_is_that_of_the_format_in_use() {
        let mut namespace = Namespace { flbas: 1, ..Namespace::new_zeroed() };
        namespace.lbaf[0].lbads = 9;
        namespace.lbaf[1].lbads = 12;
        assert_eq!(namespace.block_size(), Some(4096));
        namespace.flbas = 0;
        assert_eq!(namespace.block_size(), Some(512));
        // Format 17: bit 0, and bit 0 of the upper ones.
        namespace.flbas = 0x21;
        assert_eq!(namespace.block_size(), None);
        namespace.lbaf[17].lbads = 12;
        assert_eq!(namespace.block_size(), Some(4096));
        namespace.lbaf[17].lbads = 200;
        assert_eq!(namespace.block_size(), None);
    }

    #[test]
    fn text_is_padded_with_spaces() {
        assert_eq!(&ascii::<8>("0.1"), b"0.1     ");
        assert_eq!(&ascii::<4>("lunet"), b"lune");
        assert_eq!(&ascii::<4>("ä\n"), b"??  ");
        assert_eq!(text_of(b"0.1  \0\0"), Some("0.1"));
        assert_eq!(text_of(b"\xff"), None);
    }

    #[test]
    fn identifiers_that_are_zero_are_left_out() {
        let ids = Identifiers { eui64: Some([0; 8]), nguid: Some([1; 16]), uuid: None };
        let list = ids.encode();
        assert_eq!(list.len(), IDENTIFY_LEN);
        assert_eq!(list[..4], [2, 16, 0, 0]);
        assert_eq!(list[20..26], [4, 1, 0, 0, 0, 0]);
        assert_eq!(Identifiers::decode(&list), Identifiers { eui64: None, ..ids });
    }

    #[test]
    fn lists_end_with_a_zero_or_their_space() {
        let list = namespace_list([1, 2, 0xffff_fffe].into_iter());
        assert_eq!(namespaces_of(&list).collect::<Vec<_>>(), [1, 2, 0xffff_fffe]);
        let list = namespace_list(1..=2000);
        assert_eq!(list.len(), IDENTIFY_LEN);
        assert_eq!(namespaces_of(&list).count(), LIST_MAX);
        let list = controller_list([3, 9].into_iter());
        assert_eq!((list.len(), &list[..6]), (IDENTIFY_LEN, &[2, 0, 3, 0, 9, 0][..]));
        assert_eq!(controller_list(0..5000)[..2], 2047u16.to_le_bytes());
    }

    proptest! {
        #[test]
        fn identifiers_survive_the_wire(eui64 in prop::option::of(1u64..), nguid in prop::option::of(1u128..), uuid in prop::option::of(1u128..)) {
            let ids = Identifiers {
                eui64: eui64.map(u64::to_be_bytes),
                nguid: nguid.map(u128::to_be_bytes),
                uuid: uuid.map(u128::to_be_bytes),
            };
            prop_assert_eq!(Identifiers::decode(&ids.encode()), ids);
        }

        #[test]
        fn any_list_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Identifiers::decode(&bytes);
            let _ = namespaces_of(&bytes).count();
        }

        #[test]
        fn any_namespace_has_a_block_size_or_none(flbas: u8, lbads: u8) {
            let mut namespace = Namespace::read_from_bytes(&[lbads; IDENTIFY_LEN]).expect("4096 bytes");
            namespace.flbas = flbas;
            let _ = namespace.block_size();
        }
    }
}
