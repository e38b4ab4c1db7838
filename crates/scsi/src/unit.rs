//! What is known of a logical unit and of the target that it is seen through.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use lunet_block::{Caps, Space, Support};

use crate::alua::{Alua, PortGroups};
use crate::designator::Designator;
use crate::opcodes::Needs;
use crate::sense::{Code, Key, Sense, SenseFormat};
use crate::state::UnitState;

/// What a command that needs the storage gets while that is not there.
const ABSENT: Sense = Sense::new(Key::NotReady, Code::MANUAL_INTERVENTION_REQUIRED);

/// The longest parameter list that is fetched, in bytes.
pub const MAX_PARAMETER_LIST: u32 = 0xFFFF;

/// The names of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 VENDOR IDENTIFICATION, padded with spaces.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION, padded with spaces.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL, padded with spaces.
    pub revision: [u8; 4],
    /// Unit serial number, printable ASCII, at most [`Identity::MAX_SERIAL`] bytes are reported.
    pub serial: String,
    /// NAA designator; made by lunet, of 16 bytes (first digit 6, SPC-5 7.7.6.6.5), see
    /// [`Identity::from_seed`].
    pub naa: Designator,
    /// EUI-64 based designator, if there is one.
    pub eui: Option<Designator>,
}

/// What stands in place of a company identifier: lunet has none of its own. Its U/L bit is set and it
/// lies in the quadrant that IEEE 802c leaves to administrators, so it is no maker's.
const LOCAL_COMPANY: u128 = 0x02_4C4E;

impl Identity {
    /// How much of the serial number is reported, in bytes.
    pub const MAX_SERIAL: usize = 64;

    /// The identity of a volume from something that no other volume anywhere has, such as a UUID
    /// made once and stored with the volume. The same seed always gives the same identity.
    ///
    /// The NAA designator is of the form that every initiator prefers to all other designators: Linux
    /// takes an EUI-64 or a T10 designator rather than a locally assigned NAA one.
    pub fn from_seed(seed: &str) -> Self {
        let long = 0x6 << 124 | LOCAL_COMPANY << 100 | own_hundred_bits(seed);
        Self { naa: Designator::sixteen(long.to_be_bytes()), eui: None, ..Self::locally(seed) }
    }

    /// The identity that lunet gave out before it made long NAA designators: a locally assigned NAA
    /// designator (first digit 3, SPC-5 7.7.6.6.4) and a locally administered EUI-64.
    pub fn locally(seed: &str) -> Self {
        use core::fmt::Write as _;
        let hash = hash(seed.as_bytes());
        let mut serial = String::with_capacity(16);
        // Writing to a String does not fail.
        let _ = write!(serial, "{hash:016x}");
        let naa = (0x3 << 60) | (hash & 0x0FFF_FFFF_FFFF_FFFF);
        Self {
            vendor: *b"LUNET   ",
            product: *b"VIRTUAL DISK    ",
            revision: *b"0001",
            serial,
            naa: Designator::eight(naa.to_be_bytes()),
            eui: Some(Designator::eight(local_eui(seed))),
        }
    }
}

/// What a long NAA designator has behind the company: the vendor specific identifier and its
/// extension, from two hashes that have nothing in common.
fn own_hundred_bits(seed: &str) -> u128 {
    let half = |name: &str| {
        let mut seed = String::from(seed);
        seed.push_str(name);
        u128::from(hash(seed.as_bytes()))
    };
    (half("/naa") & 0xF_FFFF_FFFF) << 64 | half("/naa-extension")
}

/// An EUI-64 whose first byte says: locally administered (U/L), and no group (I/G).
fn local_eui(seed: &str) -> [u8; 8] {
    let mut seed = String::from(seed);
    // So that it has nothing in common with the NAA designator.
    seed.push_str("/eui");
    let mut eui = hash(seed.as_bytes()).to_be_bytes();
    eui[0] = (eui[0] & 0xFC) | 0x02;
    eui
}

/// FNV-1a with a final mix, so that seeds that differ in one digit share no prefix: ESXi and
/// Hyper-V tell volumes apart by the first 8 characters of the T10 designator.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325_u64;
    for &b in bytes {
        h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    h = (h ^ (h >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    h = (h ^ (h >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    h ^ (h >> 33)
}

/// The largest commands that a unit takes; reported in VPD page B0h. Counts are logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// MAXIMUM TRANSFER LENGTH.
    pub max_transfer_blocks: u32,
    /// MAXIMUM COMPARE AND WRITE LENGTH.
    pub max_compare_and_write_blocks: u32,
    /// The longest ORWRITE: 1 MiB.
    pub max_exclusive_blocks: u32,
    /// OPTIMAL TRANSFER LENGTH.
    pub optimal_transfer_blocks: u32,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub optimal_granularity_blocks: u16,
    /// MAXIMUM UNMAP LBA COUNT, over all descriptors of a command; 0 without UNMAP.
    pub max_unmap_blocks: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; 0 without UNMAP.
    pub max_unmap_descriptors: u32,
    /// OPTIMAL UNMAP GRANULARITY; 0 without UNMAP.
    pub unmap_granularity_blocks: u32,
    /// MAXIMUM WRITE SAME LENGTH.
    pub max_write_same_blocks: u64,
}

impl Limits {
    /// 16 MiB a transfer, 512 MiB an UNMAP: each ends within seconds on any storage, far from the 30
    /// seconds after which initiators abort. A WRITE SAME reaches no further than a transfer:
    /// initiators take its limit for one that reads and writes may reach as well, and libiscsi's
    /// tests do.
    pub fn new(caps: &Caps) -> Self {
        let bs = caps.block_size;
        let unmap = caps.unmap != Support::None;
        Self {
            max_transfer_blocks: (16 << 20) / bs,
            max_compare_and_write_blocks: 255,
            max_exclusive_blocks: (1 << 20) / bs,
            optimal_transfer_blocks: (1 << 20) / bs,
            optimal_granularity_blocks: (caps.physical_block_size.max(4096) / bs) as u16,
            max_unmap_blocks: if unmap { (512 << 20) / bs } else { 0 },
            max_unmap_descriptors: if unmap { 256 } else { 0 },
            unmap_granularity_blocks: unmap_granularity(caps),
            max_write_same_blocks: u64::from((16 << 20) / bs),
        }
    }
}

/// OPTIMAL UNMAP GRANULARITY. One block is no news, and QEMU 7.2 aborts on a read of 64 KiB from a
/// unit with 4096-byte blocks that says so (it then tracks allocation, and asserts on 512 bytes).
fn unmap_granularity(caps: &Caps) -> u32 {
    match caps.unmap_granularity / caps.block_size {
        _ if caps.unmap == Support::None => 0,
        0 | 1 => 0,
        blocks => blocks,
    }
}

/// A part of the storage below, in percent, 1 to 99: when so much of it is in use, initiators are told
/// (THIN PROVISIONING SOFT THRESHOLD REACHED, SBC-4 4.7.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold(u8);

impl Threshold {
    /// A threshold at this many percent, if that is one.
    pub fn new(percent: u8) -> Option<Self> {
        (1..=99).contains(&percent).then_some(Self(percent))
    }

    /// How many bytes are available at least while it is not reached.
    pub(crate) fn least_available(self, space: &Space) -> u64 {
        let free = u128::from(100 - self.0);
        // A part of a u64.
        (u128::from(space.total) * free / 100) as u64
    }
}

/// One logical unit: shared by all shards. What commands change of it is in its [`UnitState`].
#[derive(Debug)]
pub struct Unit {
    /// Vendor, product, serial number and NAA name.
    pub identity: Identity,
    /// What its volume is and can do.
    pub caps: Caps,
    /// The largest commands that it takes.
    pub limits: Limits,
    /// When initiators are told that room is getting short; for thin volumes.
    pub threshold: Option<Threshold>,
    /// Its medium can be ejected and loaded (RMB).
    pub removable: bool,
    /// The volatile cache of its volume may be used. If not, WCE is 0, and no initiator can switch it on.
    pub write_cache: bool,
    /// What MODE SELECT saves is kept by the server (PS of the Caching mode page).
    pub saves: bool,
    /// Its storage is not there: it has its place and its names, and is not ready until an administrator
    /// has done something about it.
    pub absent: bool,
    /// Who changes the access states of its target port groups.
    pub alua: Alua,
    /// What commands change of it.
    pub state: Arc<UnitState>,
}

impl Unit {
    /// A unit that is ready and not removable, with the limits that fit its volume.
    pub fn new(identity: Identity, caps: Caps) -> Self {
        Self::with_state(identity, caps, Arc::default())
    }

    /// A unit that takes the place of another: `state` is that one's.
    pub fn with_state(identity: Identity, caps: Caps, state: Arc<UnitState>) -> Self {
        let limits = Limits::new(&caps);
        Self {
            identity,
            caps,
            limits,
            threshold: None,
            removable: false,
            write_cache: true,
            saves: false,
            absent: false,
            alua: Alua::default(),
            state,
        }
    }

    /// Sees whether the unit can serve a command that needs this.
    pub(crate) fn serve(&self, needs: Needs) -> Result<(), Sense> {
        if self.absent && needs.intersects(Needs::STORAGE) {
            return Err(ABSENT);
        }
        self.state.serve(needs)
    }

    /// What REQUEST SENSE says of the unit.
    pub(crate) fn condition(&self) -> Sense {
        if self.absent { ABSENT } else { self.state.condition() }
    }

    /// True if writes are refused: the volume takes none, or an initiator has switched the software
    /// write protection on.
    pub fn read_only(&self) -> bool {
        self.caps.read_only || self.state.write_protected()
    }

    /// True if what a write has put into a volatile cache must be stable before the answer: the configuration or the
    /// initiators have switched the write cache off that the volume has.
    pub fn write_through(&self) -> bool {
        self.caps.write_cache && (!self.write_cache || self.state.write_through())
    }

    /// True if initiators may switch the write cache off and on: there is one that may be used.
    pub fn may_cache(&self) -> bool {
        self.caps.write_cache && self.write_cache
    }

    /// Remembers how much room the volume has. True if the threshold has just been reached, of which
    /// all initiators are to be told ([`Attention::ThresholdReached`](crate::Attention)).
    pub fn note_space(&self, space: &Space) -> bool {
        self.state.set_space(space);
        let Some(threshold) = self.threshold else { return false };
        let least = threshold.least_available(space);
        if space.available < least {
            return self.state.set_reached(true);
        }
        // A hundredth more, so that what comes and goes at the threshold is told once.
        if space.available >= least.saturating_add(space.total / 100) {
            self.state.set_reached(false);
        }
        false
    }

    /// The format of sense data that goes with CHECK CONDITION (D_SENSE of the Control mode page).
    pub fn sense_format(&self) -> SenseFormat {
        if self.state.descriptor_sense() { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    /// True if space can be given back: UNMAP, and the UNMAP bit of WRITE SAME.
    pub fn is_thin(&self) -> bool {
        self.caps.unmap != Support::None
    }
}

/// The target (port) that commands come through, and the LUNs seen there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The SCSI target device's name: the iSCSI name.
    pub name: String,
    /// The target portal group tag: part of the target port's name (RFC 7143 4.4.1), and TARGET PORT
    /// GROUP.
    pub portal_group_tag: u16,
    /// RELATIVE TARGET PORT IDENTIFIER, 1 or more.
    pub relative_port: u16,
    /// Whether the target has more target ports than this one.
    pub several_ports: bool,
    /// The target port groups of the server.
    pub groups: PortGroups,
    /// The number of this port's group among them.
    pub group: usize,
    /// The LUNs, ascending.
    pub luns: Vec<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use std::collections::HashSet;
    use std::format;

    #[test]
    fn an_identity_is_stable_and_its_own() {
        let a = Identity::from_seed("3f1c2f5e-demo");
        assert_eq!(a, Identity::from_seed("3f1c2f5e-demo"));
        // Initiators know a volume by these digits: they never change.
        assert_eq!(a.naa.to_string(), "6024c4ec436e8db1c224009818410edd");
        assert_eq!(a.eui, None);
        let mut seen = HashSet::new();
        for i in 0..10_000 {
            let identity = Identity::from_seed(&format!("volume-{i}"));
            assert!(identity.naa.to_string().starts_with("6024c4e"), "{}", identity.naa);
            // udev shows the first half as ID_WWN.
            assert!(seen.insert(identity.naa[..8].to_vec()), "volume-{i}");
            assert!(seen.insert(identity.naa[8..].to_vec()), "volume-{i}");
        }
    }

    #[test]
    fn names_that_were_given_out_before_stay() {
        let a = Identity::locally("3f1c2f5e-demo");
        assert_eq!(*a.naa, [52, 52, 248, 228, 36, 65, 57, 238]);
        assert_eq!(a.eui.as_deref(), Some(&[238, 114, 14, 62, 196, 69, 101, 141][..]));
        assert_eq!(a.serial, Identity::from_seed("3f1c2f5e-demo").serial);
        let mut seen = HashSet::new();
        for i in 0..10_000 {
            let identity = Identity::locally(&format!("volume-{i}"));
            assert_eq!(identity.naa[0] >> 4, 3);
            // What ESXi and Hyper-V look at: 4 bytes as 8 digits.
            assert!(seen.insert(identity.naa[4..].to_vec()), "volume-{i}");
            let eui = identity.eui.unwrap();
            assert_eq!(eui[0] & 0x03, 0x02);
            assert!(seen.insert(eui.to_vec()), "volume-{i}");
        }
    }
}
