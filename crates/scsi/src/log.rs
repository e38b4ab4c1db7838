//! LOG SENSE and LOG SELECT (SPC-5 6.8, 6.7). There are only pages of which all is known to be true; no
//! parameter accumulates, so none can be reset.

use alloc::vec;
use alloc::vec::Vec;

use crate::action::{Reply, Task};
use crate::execute::{Cx, Outcome};
use crate::sense::Sense;
use crate::thin;
use crate::unit::Unit;

/// Supported Log Pages; with subpage code FFh, Supported Log Pages and Subpages.
const SUPPORTED: u8 = 0x00;
const SUBPAGES: u8 = 0xFF;
const PROVISIONING: u8 = 0x0C;
const EXCEPTIONS: u8 = 0x2F;

/// FORMAT AND LINKING 11b: a list in binary.
const BINARY_LIST: u8 = 0x03;

/// LOG SENSE. Parameters that are lists have no threshold or default values, so PC says nothing.
pub(crate) fn sense(unit: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let cdb = cx.cdb;
    // SP: nothing can be saved.
    cdb.must_be_zero(1, 0x01)?;
    let (code, subpage, pointer) = (cdb.byte(2) & 0x3F, cdb.byte(3), cdb.be16(5));
    let pages = pages(unit);
    let body = match (code, subpage) {
        (SUPPORTED, 0) => pages.to_vec(),
        (SUPPORTED, SUBPAGES) => {
            let all = pages.iter().flat_map(|page| match *page {
                SUPPORTED => vec![SUPPORTED, 0, SUPPORTED, SUBPAGES],
                page => vec![page, 0],
            });
            all.collect()
        }
        (code, _) if !pages.contains(&code) => return Err(Sense::invalid_cdb(2, 5)),
        (_, 1..) => return Err(Sense::invalid_cdb(3, 7)),
        (PROVISIONING, _) => from(pointer, &provisioning(unit))?,
        (_, _) => from(pointer, &[exceptions()])?,
    };
    let format = if subpage == 0 { 0 } else { 0x40 };
    let mut data = vec![format | code, subpage, 0, 0];
    data[2..4].copy_from_slice(&(body.len() as u16).to_be_bytes());
    data.extend_from_slice(&body);
    Ok(cx.data_in(data, u32::from(cdb.be16(7))))
}

/// LOG SELECT without a parameter list: PCR resets what has accumulated, and nothing does.
pub(crate) fn select(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    cx.cdb.must_be_zero(1, 0x01)?;
    if cx.cdb.be16(7) != 0 {
        return Err(Sense::invalid_cdb(7, 7));
    }
    Ok(Task::reply(Reply::GOOD))
}

/// The pages that the unit has, ascending.
fn pages(unit: &Unit) -> &'static [u8] {
    if unit.is_thin() { &[SUPPORTED, PROVISIONING, EXCEPTIONS] } else { &[SUPPORTED, EXCEPTIONS] }
}

/// A parameter: its code, and what follows the parameter header.
type Parameter = (u16, Vec<u8>);

/// The parameters from a code on (PARAMETER POINTER).
fn from(pointer: u16, parameters: &[Parameter]) -> Result<Vec<u8>, Sense> {
    if pointer > parameters.last().map_or(0, |(code, _)| *code) {
        return Err(Sense::invalid_cdb(5, 7));
    }
    let mut data = Vec::new();
    for (code, value) in parameters.iter().filter(|(code, _)| *code >= pointer) {
        data.extend_from_slice(&code.to_be_bytes());
        data.extend_from_slice(&[BINARY_LIST, value.len() as u8]);
        data.extend_from_slice(value);
    }
    Ok(data)
}

/// Logical Block Provisioning (SBC-4 6.4.4): how much space there is and is taken, in threshold sets.
fn provisioning(unit: &Unit) -> Vec<Parameter> {
    let resource = |(code, count, scope): (u16, u32, u8)| {
        let mut value = count.to_be_bytes().to_vec();
        value.extend_from_slice(&[scope, 0, 0, 0]);
        (code, value)
    };
    thin::resources(unit).into_iter().map(resource).collect()
}

/// Informational Exceptions (SPC-5 7.3.8): there is none, and no temperature is known, nor one that
/// would be too high.
fn exceptions() -> Parameter {
    (0x0000, vec![0, 0, 0xFF, 0xFF])
}
