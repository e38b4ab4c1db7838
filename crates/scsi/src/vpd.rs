//! Vital product data pages (SPC-5 7.7, SBC-4 6.6).

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use crate::copy;
use crate::inquiry::{DISK, NO_UNIT};
use crate::thin;
use crate::unit::{Identity, Target, Unit, hash};

/// The pages of a logical unit, ascending.
const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8F, 0xB0, 0xB1, 0xB2];

/// PROTOCOL IDENTIFIER: iSCSI.
const ISCSI: u8 = 0x5;

/// A page, or `None` if there is no such page. A LUN without logical unit has page 00h only.
pub(crate) fn page(code: u8, unit: Option<&Unit>, target: &Target) -> Option<Vec<u8>> {
    let body = match (code, unit) {
        (0x00, None) => vec![0x00],
        (0x00, Some(_)) => PAGES.to_vec(),
        (_, None) => return None,
        (0x80, Some(unit)) => serial(&unit.identity).as_bytes().to_vec(),
        (0x83, Some(unit)) => identification(&unit.identity, target),
        (0x86, Some(unit)) => extended(unit),
        (0x8F, Some(unit)) => copy::limits::page(unit),
        (0xB0, Some(unit)) => block_limits(unit),
        (0xB1, Some(unit)) => characteristics(unit),
        (0xB2, Some(unit)) => thin::vpd(unit),
        _ => return None,
    };
    let mut data = Vec::with_capacity(4 + body.len());
    data.push(if unit.is_some() { DISK } else { NO_UNIT });
    data.push(code);
    data.extend_from_slice(&(body.len() as u16).to_be_bytes());
    data.extend_from_slice(&body);
    Some(data)
}

/// The serial number as it is reported: cut to its longest, at a character.
fn serial(identity: &Identity) -> &str {
    let mut end = identity.serial.len().min(Identity::MAX_SERIAL);
    while !identity.serial.is_char_boundary(end) {
        end -= 1;
    }
    &identity.serial[..end]
}

/// CODE SET of a designator.
#[derive(Clone, Copy)]
enum CodeSet {
    Binary = 1,
    Ascii = 2,
    Utf8 = 3,
}

/// ASSOCIATION of a designator.
#[derive(Clone, Copy)]
enum Association {
    Unit = 0,
    Port = 1,
    Target = 2,
}

/// Device Identification (page 83h, SPC-5 7.7.6).
fn identification(identity: &Identity, target: &Target) -> Vec<u8> {
    let mut data = Vec::new();
    let mut add = |set: CodeSet, association: Association, kind: u8, designator: &[u8]| {
        // PIV and PROTOCOL IDENTIFIER are for ports and targets only.
        let (protocol, piv) = match association {
            Association::Unit => (0, 0),
            Association::Port | Association::Target => (ISCSI << 4, 0x80),
        };
        let len = designator.len().min(0xFC);
        data.extend_from_slice(&[
            protocol | set as u8,
            piv | (association as u8) << 4 | kind,
            0,
            len as u8,
        ]);
        data.extend_from_slice(&designator[..len]);
    };
    add(CodeSet::Binary, Association::Unit, 0x3, &identity.naa);
    add(CodeSet::Ascii, Association::Unit, 0x1, &t10(identity));
    if let Some(eui) = &identity.eui {
        add(CodeSet::Binary, Association::Unit, 0x2, eui);
    }
    let [high, low] = target.relative_port.to_be_bytes();
    add(CodeSet::Binary, Association::Port, 0x4, &[0, 0, high, low]);
    let [high, low] = target.portal_group_tag.to_be_bytes();
    add(CodeSet::Binary, Association::Port, 0x5, &[0, 0, high, low]);
    let port = format!("{},t,0x{:04x}", target.name, target.portal_group_tag);
    add(CodeSet::Utf8, Association::Port, 0x8, &name_string(&port));
    add(CodeSet::Utf8, Association::Target, 0x8, &name_string(&target.name));
    data
}

/// True if page 83h names a unit of this identity by a designator of this type.
pub(crate) fn designates(identity: &Identity, kind: u8, designator: &[u8]) -> bool {
    match kind {
        0x3 => *identity.naa == *designator,
        0x2 => identity.eui.as_deref() == Some(designator),
        0x1 => t10(identity) == designator,
        _ => false,
    }
}

/// The designation descriptor of the target device, as page 83h has it.
pub(crate) fn target_device(target: &Target) -> Vec<u8> {
    let name = name_string(&target.name);
    let mut data = vec![ISCSI << 4 | CodeSet::Utf8 as u8, 0xA8, 0, name.len().min(0xFC) as u8];
    data.extend_from_slice(&name[..name.len().min(0xFC)]);
    data
}

/// T10 vendor ID based designator: 8 hexadecimal digits that are the volume's own come first, for
/// the initiators that look no further.
fn t10(identity: &Identity) -> Vec<u8> {
    let own = match *identity.naa {
        [_, _, _, _, a, b, c, d] => u32::from_be_bytes([a, b, c, d]),
        // Makers number their long ones from either end.
        ref long => hash(long) as u32,
    };
    let mut data = identity.vendor.to_vec();
    data.extend_from_slice(format!("{own:08x}-{}", serial(identity)).as_bytes());
    data
}

/// SCSI name string: ends with a zero, padded to a multiple of 4 (SPC-5 7.7.6.11).
fn name_string(name: &str) -> Vec<u8> {
    let mut data = name.as_bytes().to_vec();
    data.resize((data.len() + 4) & !3, 0);
    data
}

/// Extended INQUIRY Data (page 86h, SPC-5 7.7.7).
fn extended(unit: &Unit) -> Vec<u8> {
    let mut data = vec![0; 60];
    data[1] = 0x04 | 0x01; // HEADSUP, SIMPSUP
    data[2] = u8::from(unit.caps.write_cache); // V_SUP
    data
}

/// Block Limits (page B0h, SBC-4 6.6.4).
fn block_limits(unit: &Unit) -> Vec<u8> {
    let limits = &unit.limits;
    let mut data = vec![0; 60];
    // WSNZ where WRITE SAME may unmap: a length that got lost would discard up to the end of the volume.
    data[0] = u8::from(unit.is_thin());
    let longest = limits.max_compare_and_write_blocks.min(limits.max_transfer_blocks);
    data[1] = u8::try_from(longest).unwrap_or(u8::MAX);
    data[2..4].copy_from_slice(&limits.optimal_granularity_blocks.to_be_bytes());
    data[4..8].copy_from_slice(&limits.max_transfer_blocks.to_be_bytes());
    data[8..12].copy_from_slice(&limits.optimal_transfer_blocks.to_be_bytes());
    data[16..20].copy_from_slice(&limits.max_unmap_blocks.to_be_bytes());
    data[20..24].copy_from_slice(&limits.max_unmap_descriptors.to_be_bytes());
    data[24..28].copy_from_slice(&limits.unmap_granularity_blocks.to_be_bytes());
    // UNMAP GRANULARITY ALIGNMENT is 0, and UGAVALID says so, where there is a granularity.
    data[28] = u8::from(limits.unmap_granularity_blocks > 0) << 7;
    data[32..40].copy_from_slice(&limits.max_write_same_blocks.to_be_bytes());
    // What follows is about WRITE ATOMIC, which lunet does not have: 0.
    data
}

/// Block Device Characteristics (page B1h, SBC-4 6.6.2): a non-rotating medium.
fn characteristics(unit: &Unit) -> Vec<u8> {
    let mut data = vec![0; 60];
    data[1] = 0x01;
    // WABEREQ 01b: after BLOCK ERASE, blocks can be read without being written first.
    data[3] = u8::from(unit.is_thin()) << 6;
    // VBULS: blocks that are not mapped can be verified.
    data[4] = 0x01;
    data
}
