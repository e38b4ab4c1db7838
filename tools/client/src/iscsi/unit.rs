//! What a logical unit says about itself, and what a portal offers.

use lunet_iscsi::initiator::DiscoveredTarget;
use lunet_iscsi::printable::is_printable;

use super::ask::{address, number};
use super::link::Link;
use super::sense::Failure;
use super::{Error, Login, Target, cdb};

/// No disk has larger blocks.
const LARGEST_BLOCK: u32 = 64 << 10;

/// More LUNs than a target can have.
const MOST_LUNS: u32 = 16384;

/// A logical unit: what it is, and its limits. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalUnit {
    /// The target that it belongs to.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// PRODUCT REVISION LEVEL.
    pub revision: String,
    /// Logical blocks.
    pub blocks: u64,
    /// Logical block size.
    pub block_size: u32,
    /// Physical block size.
    pub physical_block_size: u32,
    /// MAXIMUM TRANSFER LENGTH of page B0h; `None`: without a limit, or not said.
    pub max_transfer: Option<u64>,
    /// OPTIMAL TRANSFER LENGTH of page B0h; `None`: not said.
    pub optimal_transfer: Option<u64>,
    /// It takes no writes.
    pub read_only: bool,
    /// It has a volatile write cache that is on (WCE); `None`: not said.
    pub write_cache: Option<bool>,
    /// How many commands the target lets a session have under way, at the time of the login.
    pub window: u32,
}

impl LogicalUnit {
    /// Capacity in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_size as u64
    }
}

/// Asks a portal for its targets (SendTargets).
///
/// # Errors
/// There is no portal, or it does not want this initiator.
pub fn discover(target: &Target, login: &Login) -> Result<Vec<DiscoveredTarget>, Error> {
    let mut link = Link::log_into(target, login, None)?;
    let targets = link.targets()?;
    link.close();
    Ok(targets)
}

/// Asks a target for its logical units (REPORT LUNS).
///
/// # Errors
/// There is no such target, or it does not want this initiator.
pub fn luns(target: &Target, login: &Login) -> Result<Vec<u16>, Error> {
    let name = name(target, login)?;
    let mut link = Link::log_into(target, login, Some(&name))?;
    let luns = link.luns(MOST_LUNS)?;
    link.close();
    Ok(luns)
}

/// Asks a logical unit for what it is. Where the address names no target or no LUN, the only one
/// there is is taken.
///
/// # Errors
/// It cannot be reached, or is no disk, or there are several to choose from.
pub fn inspect(target: &Target, login: &Login) -> Result<LogicalUnit, Error> {
    let (link, unit) = reach(target, login)?;
    link.close();
    Ok(unit)
}

/// The logical unit, and the session by which it was asked.
pub(super) fn reach(target: &Target, login: &Login) -> Result<(Link, LogicalUnit), Error> {
    let name = name(target, login)?;
    let mut link = Link::log_into(target, login, Some(&name))?;
    let lun = match target.lun {
        Some(lun) => lun,
        None => match link.luns(MOST_LUNS)?[..] {
            [lun] => lun,
            ref luns => return Err(Error::ManyLuns(luns.to_vec())),
        },
    };
    match look(&mut link, name, lun) {
        Err(Error::NoDisk(lun)) => match link.luns(MOST_LUNS) {
            Ok(luns) if !luns.contains(&lun) => Err(Error::NoLun(lun, luns)),
            _ => Err(Error::NoDisk(lun)),
        },
        looked => Ok((link, looked?)),
    }
}

fn name(target: &Target, login: &Login) -> Result<String, Error> {
    if let Some(name) = &target.name {
        return Ok(name.clone());
    }
    let mut offers = discover(target, login)?;
    match offers.len() {
        1 => Ok(offers.remove(0).name),
        _ => Err(Error::ManyTargets(offers.into_iter().map(|offer| offer.name).collect())),
    }
}

fn look(link: &mut Link, target: String, lun: u16) -> Result<LogicalUnit, Error> {
    let window = link.window();
    let inquiry = link.read(lun, &cdb::inquiry(None, 96), 96)?;
    let inquiry = inquiry.map_err(|failure| Error::Command { what: "INQUIRY", failure })?;
    // Qualifier 0 and type 0: a disk that is connected.
    if inquiry.first() != Some(&0) {
        return Err(Error::NoDisk(lun));
    }
    if let Some(failure) = link.wait_ready(address(lun))? {
        return Err(Error::Command { what: "TEST UNIT READY", failure });
    }
    let text = |range: std::ops::Range<usize>| {
        let text = String::from_utf8_lossy(inquiry.get(range).unwrap_or_default());
        text.chars().filter(|c| is_printable(*c)).collect::<String>().trim().to_owned()
    };
    let (blocks, block_size, physical_block_size) = capacity(link, lun)?;
    let limit = |blocks: u64| Some(blocks * u64::from(block_size)).filter(|&bytes| bytes > 0);
    let limits = link.page(lun, 0xB0)?;
    let limits = |offset| number(&limits, offset, 4).and_then(limit);
    let (max_transfer, optimal_transfer) = (limits(8), limits(12));
    let caching = link.read(lun, &cdb::mode_sense(0x08, 192), 192)?.unwrap_or_default();
    let body = 4 + usize::from(caching.get(3).copied().unwrap_or(0));
    let is_caching = caching.get(body).is_some_and(|code| code & 0x3F == 0x08);
    Ok(LogicalUnit {
        target,
        lun,
        vendor: text(8..16),
        product: text(16..32),
        revision: text(32..36),
        blocks,
        block_size,
        physical_block_size,
        max_transfer,
        optimal_transfer,
        read_only: caching.get(2).is_some_and(|byte| byte & 0x80 != 0),
        write_cache: caching.get(body + 2).map(|byte| byte & 4 != 0).filter(|_| is_caching),
        window,
    })
}

/// Blocks, logical and physical block size: READ CAPACITY(16), or (10) where that is not known.
fn capacity(link: &mut Link, lun: u16) -> Result<(u64, u32, u32), Error> {
    let (last, size, exponent) = match link.read(lun, &cdb::capacity_16(32), 32)? {
        Ok(data) => {
            let exponent = data.get(13).map_or(0, |byte| byte & 0xF);
            (number(&data, 0, 8), number(&data, 8, 4), exponent)
        }
        Err(Failure::Sense { key: 5, .. }) => {
            let data = link.read(lun, &cdb::capacity_10(), 8)?;
            let failed = |failure| Error::Command { what: "READ CAPACITY", failure };
            let data = data.map_err(failed)?;
            (number(&data, 0, 4), number(&data, 4, 4), 0)
        }
        Err(failure) => return Err(Error::Command { what: "READ CAPACITY", failure }),
    };
    let wrong = Error::Answer("READ CAPACITY");
    let size = size.and_then(|size| u32::try_from(size).ok());
    let size = size.filter(|size| size.is_power_of_two() && (512..=LARGEST_BLOCK).contains(size));
    let (Some(last), Some(size)) = (last, size) else { return Err(wrong) };
    let blocks = last.checked_add(1).filter(|n| n.checked_mul(size.into()).is_some());
    Ok((blocks.ok_or(wrong)?, size, size << exponent))
}
