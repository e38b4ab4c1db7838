//! What a logical unit says about itself.

use std::time::Duration;

use lunet_client::iscsi::cdb::{self, Cdb};
use lunet_client::iscsi::{Answer, Error, Failure, Link};
use serde::{Deserialize, Serialize};

/// No disk has larger blocks; a target that says so is not given that much memory.
const LARGEST_BLOCK: i64 = 64 << 10;
/// The sense key of a command that the unit does not know (SPC-5 4.4.8).
const ILLEGAL_REQUEST: u8 = 5;

/// The peripheral device type of what is no unit (SPC-5 table 148).
const NO_DEVICE: i64 = 0x1f;

/// What a logical unit says about itself. Sizes are in bytes, 0 or `null` = it does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LunProbe {
    /// Logical unit number.
    pub lun: u16,
    /// Peripheral device type: 0 = disk.
    pub device_type: Option<i64>,
    /// Maker.
    pub vendor: String,
    /// Model.
    pub product: String,
    /// Version.
    pub revision: String,
    /// Size.
    pub size_bytes: Option<i64>,
    /// Logical block.
    pub block_bytes: Option<i64>,
    /// Physical block.
    pub physical_block_bytes: Option<i64>,
    /// Whether blocks can be given back (LBPME).
    pub thin: Option<bool>,
    /// Vital product data that it has.
    pub pages: Vec<i64>,
    /// Largest transfer of a command.
    pub max_transfer_bytes: Option<i64>,
    /// Best transfer of a command.
    pub optimal_transfer_bytes: Option<i64>,
    /// Most that one UNMAP gives back.
    pub max_unmap_bytes: Option<i64>,
    /// Unit in which it gives back.
    pub unmap_granularity_bytes: Option<i64>,
    /// Whether it has UNMAP, by page B2h.
    pub unmap: Option<bool>,
    /// `full`, `resource`, `thin`, by page B2h.
    pub provisioning: Option<String>,
    /// Rotations a minute; 1 = flash.
    pub rotation_rate: Option<i64>,
    /// Whether it has a volatile write cache that is on.
    pub write_cache: Option<bool>,
    /// Whether it takes a flush.
    pub flush: Option<bool>,
    /// Whether it may only be read.
    pub read_only: Option<bool>,
    /// What it answers to TEST UNIT READY or a flush, if that is not good. Of a flush that it does not know, `flush` says so.
    pub not_ready: Option<String>,
}

/// Sends a command that reads at most `length` bytes. It may fail, but it must have an answer.
pub(super) fn send(link: &mut Link, lun: u16, cdb: &Cdb, length: usize) -> Result<Answer, Error> {
    let answer = link.ask(lun, cdb, length)?;
    match answer.failure {
        Some(failure @ (Failure::Rejected(_) | Failure::Aborted | Failure::Lost)) => {
            Err(Error::Command { what: "a command", failure })
        }
        _ => Ok(answer),
    }
}

/// What a command reads, if it ends well.
fn read_in(link: &mut Link, lun: u16, cdb: &Cdb, length: usize) -> Result<Option<Vec<u8>>, Error> {
    Ok(send(link, lun, cdb, length)?.good().ok())
}

/// The LUNs of the target; of one that does not say, the first.
pub(super) fn luns(link: &mut Link) -> Result<Vec<u16>, Error> {
    match link.luns(super::MOST_LUNS) {
        Err(Error::Command { .. }) => Ok(vec![0]),
        told => told,
    }
}

/// Of a unit that is none: whether the target has it at all.
///
/// # Errors
/// It has others.
pub(super) fn check(link: &mut Link, lun: &LunProbe) -> Result<(), Error> {
    if !matches!(lun.device_type, None | Some(NO_DEVICE)) {
        return Ok(());
    }
    match link.luns(super::MOST_LUNS) {
        Ok(luns) if !luns.contains(&lun.lun) => Err(Error::NoLun(lun.lun, luns)),
        // One that does not say which it has may have it.
        Ok(_) | Err(Error::Command { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks a logical unit for everything.
pub(super) fn look(link: &mut Link, lun: u16) -> Result<LunProbe, Error> {
    let mut probe = LunProbe { lun, ..LunProbe::default() };
    if let Some(data) = read_in(link, lun, &cdb::inquiry(None, 96), 96)? {
        let text = |range: std::ops::Range<usize>| {
            super::harmless(&String::from_utf8_lossy(data.get(range).unwrap_or_default()))
        };
        probe.device_type = data.first().map(|byte| i64::from(byte & 0x1f));
        (probe.vendor, probe.product, probe.revision) = (text(8..16), text(16..32), text(32..36));
    }
    if probe.device_type != Some(0) {
        return Ok(probe);
    }
    let ready = send(link, lun, &cdb::ready(), 0)?;
    if let Some(Failure::Sense { key, asc, ascq }) = ready.failure {
        probe.not_ready = Some(format!("sense {key:x}h/{asc:02x}h/{ascq:02x}h"));
    }
    capacity(link, &mut probe)?;
    pages(link, &mut probe)?;
    caching(link, &mut probe)?;
    Ok(probe)
}

/// READ CAPACITY(16).
fn capacity(link: &mut Link, probe: &mut LunProbe) -> Result<(), Error> {
    let asked = read_in(link, probe.lun, &cdb::capacity_16(32), 32)?;
    let Some(data) = asked else { return Ok(()) };
    let (Some(last), Some(block)) = (number(&data, 0, 8), number(&data, 8, 4)) else {
        return Ok(());
    };
    probe.block_bytes = Some(block);
    probe.size_bytes = last.checked_add(1).and_then(|blocks| blocks.checked_mul(block));
    probe.physical_block_bytes = data.get(13).map(|byte| block << (byte & 0xf));
    probe.thin = data.get(14).map(|byte| byte & 0x80 != 0);
    Ok(())
}

/// The pages 00h, B0h, B1h and B2h.
fn pages(link: &mut Link, probe: &mut LunProbe) -> Result<(), Error> {
    let list = link.page(probe.lun, 0)?;
    probe.pages = list.iter().skip(4).map(|&page| i64::from(page)).collect();
    let block = probe.block_bytes.unwrap_or(512);
    // All ones: without a limit.
    let blocks = |data: &[u8], at: usize| {
        number(data, at, 4)
            .filter(|&count| count != 0xffff_ffff)
            .map(|count| count.saturating_mul(block))
    };
    if let Some(data) = supported(link, probe, 0xb0)? {
        probe.max_transfer_bytes = blocks(&data, 8);
        probe.optimal_transfer_bytes = blocks(&data, 12);
        probe.max_unmap_bytes = blocks(&data, 20);
        probe.unmap_granularity_bytes = blocks(&data, 28);
    }
    if let Some(data) = supported(link, probe, 0xb1)? {
        probe.rotation_rate = number(&data, 4, 2);
    }
    if let Some(data) = supported(link, probe, 0xb2)? {
        probe.unmap = data.get(5).map(|byte| byte & 0x80 != 0);
        probe.provisioning = data.get(6).map(|byte| {
            let kind = match byte & 7 {
                1 => "resource",
                2 => "thin",
                _ => "full",
            };
            kind.to_owned()
        });
    }
    Ok(())
}

/// A page of vital product data, if the unit lists it.
fn supported(link: &mut Link, probe: &LunProbe, code: u8) -> Result<Option<Vec<u8>>, Error> {
    match probe.pages.contains(&i64::from(code)) {
        true => link.page(probe.lun, code).map(Some),
        false => Ok(None),
    }
}

/// The caching mode page, and whether a flush is taken.
fn caching(link: &mut Link, probe: &mut LunProbe) -> Result<(), Error> {
    if let Some(data) = read_in(link, probe.lun, &cdb::mode_sense(0x08, 192), 192)? {
        probe.read_only = data.get(2).map(|byte| byte & 0x80 != 0);
        let start = 4 + usize::from(data.get(3).copied().unwrap_or(0));
        if data.get(start).is_some_and(|byte| byte & 0x3f == 0x08) {
            probe.write_cache = data.get(start + 2).map(|byte| byte & 4 != 0);
        }
    }
    if probe.not_ready.is_none() {
        // One block: enough to see whether the command is known. A reservation of another host, or storage that fails, does
        // not say that.
        match send(link, probe.lun, &cdb::flush(0, 1), 0)?.failure {
            None => probe.flush = Some(true),
            Some(Failure::Sense { key: ILLEGAL_REQUEST, .. }) => probe.flush = Some(false),
            Some(failure) => probe.not_ready = Some(failure.to_string()),
        }
    }
    Ok(())
}

/// Reads 4 KiB at a block; how long it took, if it was read.
pub(super) fn read(link: &mut Link, probe: &LunProbe, at: u64) -> Result<Option<Duration>, Error> {
    let block = probe.block_bytes.unwrap_or(512).max(1);
    if block > LARGEST_BLOCK {
        return Ok(None);
    }
    let count = (4096 / block).max(1);
    let cdb = cdb::read(at, count as u32);
    let answer = send(link, probe.lun, &cdb, (count * block) as usize)?;
    Ok(answer.failure.is_none().then_some(answer.took))
}

/// A number of `width` bytes at `at`, big-endian.
fn number(data: &[u8], at: usize, width: usize) -> Option<i64> {
    i64::try_from(lunet_client::iscsi::number(data, at, width)?).ok()
}
