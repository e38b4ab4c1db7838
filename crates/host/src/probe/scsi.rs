//! What a logical unit says about itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::{Answer, Client, ClientError};

/// CHECK CONDITION.
const CHECK: u8 = 2;
/// UNIT ATTENTION: something has changed since the last command; the command is to be sent again.
const ATTENTION: u8 = 6;
/// So many conditions may wait for a new initiator.
const MOST_ATTENTIONS: usize = 16;

/// No disk has larger blocks; a target that says so is not given that much memory.
const LARGEST_BLOCK: i64 = 64 << 10;

/// What a logical unit says about itself. Sizes are in bytes, 0 or `null` = it does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LunProbe {
    /// Its number.
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
    /// What it answers to TEST UNIT READY, if that is not good.
    pub not_ready: Option<String>,
}

/// Sends a command until it is not answered with a unit attention.
pub(super) fn send(
    client: &mut Client,
    lun: u16,
    cdb: &[u8],
    length: usize,
) -> Result<Answer, ClientError> {
    let mut answer = client.command(lun, cdb, length)?;
    for _ in 0..MOST_ATTENTIONS {
        if sense(&answer).is_none_or(|(key, ..)| key != ATTENTION) {
            break;
        }
        answer = client.command(lun, cdb, length)?;
    }
    Ok(answer)
}

/// Sense key and additional sense code, of either format.
pub(super) fn sense(answer: &Answer) -> Option<(u8, u8, u8)> {
    let sense = &answer.completion.sense;
    if answer.completion.status != CHECK {
        return None;
    }
    match sense.first()? & 0x7f {
        0x70 | 0x71 => Some((sense.get(2)? & 0xf, *sense.get(12)?, *sense.get(13)?)),
        _ => Some((sense.get(1)? & 0xf, *sense.get(2)?, *sense.get(3)?)),
    }
}

/// The data of a command that ended well.
fn good(answer: Answer) -> Option<Vec<u8>> {
    answer.completion.is_good().then_some(answer.data)
}

/// The LUNs of the target, at most `most`.
pub(super) fn luns(client: &mut Client, most: usize) -> Result<Vec<u16>, ClientError> {
    let length = 8 + 8 * most;
    let mut cdb = [0; 12];
    cdb[0] = 0xa0;
    cdb[6..10].copy_from_slice(&(length as u32).to_be_bytes());
    let Some(data) = good(send(client, 0, &cdb, length)?) else { return Ok(vec![0]) };
    let entries = data.get(8..).unwrap_or_default().chunks_exact(8);
    // Peripheral (0) and flat (1) addressing.
    let number = |entry: &[u8]| match entry[0] >> 6 {
        0 => Some(u16::from(entry[1])),
        1 => Some(u16::from_be_bytes([entry[0] & 0x3f, entry[1]])),
        _ => None,
    };
    Ok(entries.filter_map(number).collect())
}

/// Asks a logical unit for everything.
pub(super) fn look(client: &mut Client, lun: u16) -> Result<LunProbe, ClientError> {
    let mut probe = LunProbe { lun, ..LunProbe::default() };
    if let Some(data) = good(send(client, lun, &[0x12, 0, 0, 0, 96, 0], 96)?) {
        let text = |range: std::ops::Range<usize>| {
            super::harmless(&String::from_utf8_lossy(data.get(range).unwrap_or_default()))
        };
        probe.device_type = data.first().map(|byte| i64::from(byte & 0x1f));
        (probe.vendor, probe.product, probe.revision) = (text(8..16), text(16..32), text(32..36));
    }
    if probe.device_type != Some(0) {
        return Ok(probe);
    }
    let ready = send(client, lun, &[0; 6], 0)?;
    if let Some((key, code, qualifier)) = sense(&ready) {
        let sense = format!("sense {key:x}h/{code:02x}h/{qualifier:02x}h");
        probe.not_ready = Some(sense);
    }
    capacity(client, &mut probe)?;
    pages(client, &mut probe)?;
    caching(client, &mut probe)?;
    Ok(probe)
}

/// READ CAPACITY(16).
fn capacity(client: &mut Client, probe: &mut LunProbe) -> Result<(), ClientError> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    let Some(data) = good(send(client, probe.lun, &cdb, 32)?) else { return Ok(()) };
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
fn pages(client: &mut Client, probe: &mut LunProbe) -> Result<(), ClientError> {
    let list = page(client, probe.lun, 0)?.unwrap_or_default();
    probe.pages = list.iter().skip(4).map(|&page| i64::from(page)).collect();
    let block = probe.block_bytes.unwrap_or(512);
    // All ones: without a limit.
    let blocks = |data: &[u8], at: usize| {
        number(data, at, 4)
            .filter(|&count| count != 0xffff_ffff)
            .map(|count| count.saturating_mul(block))
    };
    if let Some(data) = supported(client, probe, 0xb0)? {
        probe.max_transfer_bytes = blocks(&data, 8);
        probe.optimal_transfer_bytes = blocks(&data, 12);
        probe.max_unmap_bytes = blocks(&data, 20);
        probe.unmap_granularity_bytes = blocks(&data, 28);
    }
    if let Some(data) = supported(client, probe, 0xb1)? {
        probe.rotation_rate = number(&data, 4, 2);
    }
    if let Some(data) = supported(client, probe, 0xb2)? {
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

fn supported(
    client: &mut Client,
    probe: &LunProbe,
    code: u8,
) -> Result<Option<Vec<u8>>, ClientError> {
    match probe.pages.contains(&i64::from(code)) {
        true => page(client, probe.lun, code),
        false => Ok(None),
    }
}

/// A page of vital product data, if it is the one.
fn page(client: &mut Client, lun: u16, code: u8) -> Result<Option<Vec<u8>>, ClientError> {
    let answer = send(client, lun, &[0x12, 1, code, 0, 252, 0], 252)?;
    Ok(good(answer).filter(|data| data.get(1) == Some(&code)))
}

/// The caching mode page, and whether a flush is taken.
fn caching(client: &mut Client, probe: &mut LunProbe) -> Result<(), ClientError> {
    if let Some(data) = good(send(client, probe.lun, &[0x1a, 0x08, 0x08, 0, 192, 0], 192)?) {
        probe.read_only = data.get(2).map(|byte| byte & 0x80 != 0);
        let start = 4 + usize::from(data.get(3).copied().unwrap_or(0));
        if data.get(start).is_some_and(|byte| byte & 0x3f == 0x08) {
            probe.write_cache = data.get(start + 2).map(|byte| byte & 4 != 0);
        }
    }
    if probe.not_ready.is_none() {
        // One block: enough to see whether the command is known.
        let flush = send(client, probe.lun, &[0x35, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0)?;
        probe.flush = Some(flush.completion.is_good());
    }
    Ok(())
}

/// Reads 4 KiB at a block; how long it took, if it was read.
pub(super) fn read(
    client: &mut Client,
    probe: &LunProbe,
    at: u64,
) -> Result<Option<Duration>, ClientError> {
    let block = probe.block_bytes.unwrap_or(512).max(1);
    if block > LARGEST_BLOCK {
        return Ok(None);
    }
    let count = (4096 / block).max(1);
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    cdb[2..10].copy_from_slice(&at.to_be_bytes());
    cdb[10..14].copy_from_slice(&(count as u32).to_be_bytes());
    let answer = client.command(probe.lun, &cdb, (count * block) as usize)?;
    Ok(answer.completion.is_good().then_some(answer.took))
}

/// A number of `width` bytes at `at`, big-endian.
fn number(data: &[u8], at: usize, width: usize) -> Option<i64> {
    let bytes = data.get(at..at + width)?;
    let value = bytes.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    i64::try_from(value).ok()
}
