//! What of third-party copy is supported: VPD page 8Fh (SPC-5 7.7.18) and RECEIVE COPY OPERATING
//! PARAMETERS (SPC-5 6.22). What is reported here is what is enforced.

use alloc::vec;
use alloc::vec::Vec;

use super::descriptor::{BLOCK_OFFSET, BLOCK_TO_BLOCK, IDENTIFICATION};
use super::rod::{ACCESS_UPON_REFERENCE, ZERO};
use crate::opcodes;
use crate::unit::Unit;

/// MAXIMUM CSCD DESCRIPTOR COUNT.
pub const MAX_CSCDS: usize = 16;
/// MAXIMUM SEGMENT DESCRIPTOR COUNT. ESXi sends up to 16.
pub const MAX_SEGMENTS: usize = 64;
/// MAXIMUM DESCRIPTOR LIST LENGTH in bytes: all of both, the long kind of segments.
pub const MAX_DESCRIPTORS: usize = MAX_CSCDS * 32 + MAX_SEGMENTS * 32;
/// MAXIMUM SEGMENT LENGTH in bytes. As much as a segment descriptor of type 02h can ask for.
pub const MAX_SEGMENT_BYTES: u32 = 256 << 20;
/// TOTAL CONCURRENT COPIES and MAXIMUM CONCURRENT COPIES, for each initiator.
pub const MAX_COPIES: usize = 64;
/// MAXIMUM RANGE DESCRIPTORS of POPULATE TOKEN and WRITE USING TOKEN.
pub const MAX_RANGES: u16 = 64;
/// MAXIMUM TOKEN TRANSFER SIZE, in bytes: what one token stands for.
pub const MAX_TOKEN_BYTES: u64 = 256 << 20;
/// OPTIMAL TRANSFER COUNT, in bytes. Windows expects an answer within seconds: a backend that has to
/// move the data moves this much in a fraction of one.
pub const OPTIMAL_TOKEN_BYTES: u64 = 64 << 20;
/// DEFAULT INACTIVITY TIMEOUT of a token, in seconds.
pub const DEFAULT_INACTIVITY: u32 = 120;
/// MAXIMUM INACTIVITY TIMEOUT, in seconds.
pub const MAX_INACTIVITY: u32 = 600;

/// The descriptor type codes, ascending.
const DESCRIPTORS: [u8; 3] = [BLOCK_TO_BLOCK, BLOCK_OFFSET, IDENTIFICATION];
/// DATA SEGMENT GRANULARITY in bytes.
pub const GRANULARITY: u64 = 512;

/// The answer to RECEIVE COPY OPERATING PARAMETERS.
pub(crate) fn operating_parameters() -> Vec<u8> {
    let mut data = vec![0; 44];
    data[3] = (44 - 4 + DESCRIPTORS.len()) as u8;
    data[4] = 0x01; // SNLID
    data[8..10].copy_from_slice(&(MAX_CSCDS as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(MAX_DESCRIPTORS as u32).to_be_bytes());
    data[16..20].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    data[34..36].copy_from_slice(&(MAX_COPIES as u16).to_be_bytes());
    data[36] = MAX_COPIES as u8;
    data[37] = GRANULARITY.ilog2() as u8;
    data[43] = DESCRIPTORS.len() as u8;
    data.extend_from_slice(&DESCRIPTORS);
    data
}

/// The third-party copy descriptors of VPD page 8Fh.
pub(crate) fn page(unit: &Unit) -> Vec<u8> {
    let mut page = Vec::new();
    add(&mut page, 0x0000, &token_limits(unit));
    add(&mut page, 0x0001, &supported_commands(unit));
    add(&mut page, 0x0004, &parameter_data());
    add(&mut page, 0x0008, &counted(1, &DESCRIPTORS));
    // Supported CSCD descriptor identifiers: the logical unit itself.
    add(&mut page, 0x000C, &counted(2, &[0xFF, 0xFF]));
    add(&mut page, 0x0106, &token_features());
    add(&mut page, 0x0108, &rod_types());
    add(&mut page, 0x8001, &general());
    page
}

/// Adds a descriptor, filled up to a multiple of 4.
fn add(page: &mut Vec<u8>, kind: u16, body: &[u8]) {
    let len = body.len().next_multiple_of(4);
    page.extend_from_slice(&kind.to_be_bytes());
    page.extend_from_slice(&(len as u16).to_be_bytes());
    page.extend_from_slice(body);
    page.resize(page.len() + len - body.len(), 0);
}

/// A list behind its length, which has one or two bytes.
fn counted(width: usize, list: &[u8]) -> Vec<u8> {
    let mut body = (list.len() as u16).to_be_bytes()[2 - width..].to_vec();
    body.extend_from_slice(list);
    body
}

/// Block Device ROD Token Limits (SBC-4 6.6.6.3): what Windows looks at.
fn token_limits(unit: &Unit) -> Vec<u8> {
    let block = u64::from(unit.caps.block_size);
    let mut body = vec![0; 32];
    body[6..8].copy_from_slice(&MAX_RANGES.to_be_bytes());
    body[8..12].copy_from_slice(&MAX_INACTIVITY.to_be_bytes());
    body[12..16].copy_from_slice(&DEFAULT_INACTIVITY.to_be_bytes());
    body[16..24].copy_from_slice(&(MAX_TOKEN_BYTES / block).to_be_bytes());
    body[24..32].copy_from_slice(&(OPTIMAL_TOKEN_BYTES / block).to_be_bytes());
    body
}

/// Supported Commands: each operation code with its service actions.
fn supported_commands(unit: &Unit) -> Vec<u8> {
    let mut list = Vec::new();
    for code in [0x83, 0x84] {
        let actions = opcodes::with_code(code, Some(unit)).filter_map(|o| o.service_action);
        let actions: Vec<u8> = actions.map(|action| action as u8).collect();
        list.push(code);
        list.push(actions.len() as u8);
        list.extend_from_slice(&actions);
    }
    counted(1, &list)
}

/// Parameter Data: the limits of EXTENDED COPY.
fn parameter_data() -> Vec<u8> {
    let mut body = vec![0; 28];
    body[4..6].copy_from_slice(&(MAX_CSCDS as u16).to_be_bytes());
    body[6..8].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    body[8..12].copy_from_slice(&(MAX_DESCRIPTORS as u32).to_be_bytes());
    body
}

/// ROD Token Features, with the features of block devices.
fn token_features() -> Vec<u8> {
    let mut body = vec![0; 44 + 48];
    // REMOTE TOKENS 0: a token is good for copy managers of this server only. Lifetimes in seconds.
    body[12..16].copy_from_slice(&1u32.to_be_bytes());
    body[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    body[20..24].copy_from_slice(&MAX_INACTIVITY.to_be_bytes());
    body[42..44].copy_from_slice(&48u16.to_be_bytes());
    let block = &mut body[44..];
    block[2..4].copy_from_slice(&44u16.to_be_bytes());
    block[8..16].copy_from_slice(&MAX_TOKEN_BYTES.to_be_bytes());
    block[16..24].copy_from_slice(&OPTIMAL_TOKEN_BYTES.to_be_bytes());
    block[24..32].copy_from_slice(&MAX_TOKEN_BYTES.to_be_bytes());
    block[32..40].copy_from_slice(&OPTIMAL_TOKEN_BYTES.to_be_bytes());
    body
}

/// Supported ROD types: not for EXTENDED COPY (ECPY_INT), for tokens that come in and go out.
fn rod_types() -> Vec<u8> {
    const OUT: u8 = 0x01;
    const IN: u8 = 0x02;
    let mut body = vec![0; 4 + 2 * 64];
    body[2..4].copy_from_slice(&128u16.to_be_bytes());
    for (at, kind, flags) in [(4, ACCESS_UPON_REFERENCE, IN | OUT), (68, ZERO, IN)] {
        body[at..at + 4].copy_from_slice(&kind.to_be_bytes());
        body[at + 4] = flags;
    }
    body
}

/// General Copy Operations.
fn general() -> Vec<u8> {
    let mut body = vec![0; 32];
    body[0..4].copy_from_slice(&(MAX_COPIES as u32).to_be_bytes());
    body[4..8].copy_from_slice(&(MAX_COPIES as u32).to_be_bytes());
    body[8..12].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    body[12] = GRANULARITY.ilog2() as u8;
    body
}
