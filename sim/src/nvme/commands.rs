//! Commands of NVMe hosts on blocks, and what their answers mean to the model.

use lunet_nvme::command::{Completion, CopyRange, DsmRange, Io, Range, Sqe};
use lunet_nvme::host::Data;
use lunet_nvme::pdu::{U16, U32, U64};
use lunet_nvme::status::Status;
use lunet_os::simulated::below;
use zerocopy::IntoBytes;

use super::controller::{Bytes, Transfer};
use super::nsid;
use crate::commands::{Ended, Sent, bytes_of};
use crate::copies::{DESTINATIONS, Extent};
use crate::model::{Content, SECTOR, fill};
use crate::site::{Known, now};

/// FUSE: the first command of a pair, and the second.
const FUSED: [u8; 2] = [1, 2];

/// A command to send, or two that are fused.
pub struct Order<C> {
    /// What its sender remembers of it.
    pub what: C,
    /// What is sent.
    pub parts: Vec<(Sqe, Transfer)>,
}

/// How a command, or a fused pair, was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How each part has completed.
    pub parts: Vec<Completion>,
    /// What was read, in full.
    pub data: Option<Vec<u8>>,
}

impl Answer {
    /// What it means to the model.
    pub fn ended(&self) -> Ended<'_> {
        let code = |at: usize| self.parts.get(at).map(|part| part.status.code());
        let good = self.parts.iter().all(|part| part.status.is_success());
        // The second of a pair was not carried out.
        let miscompare = code(0) == Some(Status::COMPARE_FAILURE)
            && code(1).is_none_or(|code| code == Status::FAILED_FUSED);
        Ended { good, miscompare, data: self.data.as_deref() }
    }

    /// The status that says most: that of the first part that has failed.
    pub fn status(&self) -> Status {
        let failed = self.parts.iter().find(|part| !part.status.is_success());
        failed.map_or(Status::SUCCESS, |part| part.status)
    }

    /// As words.
    pub fn words(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(|part| part.status.to_string()).collect();
        parts.join(", then ")
    }

    /// Sees whether the status is one that a command may have that was right.
    ///
    /// # Errors
    /// It is none that tells of something which a host cannot help.
    pub fn fault(&self) -> Result<(), String> {
        let faults = [
            Status::INVALID_OPCODE,
            Status::INVALID_FIELD,
            Status::ID_CONFLICT,
            Status::DATA_TRANSFER,
            Status::INTERNAL,
            Status::MISSING_FUSED,
            Status::SEQUENCE,
            Status::DATA_LENGTH,
            Status::SGL_TYPE,
            Status::SGL_OFFSET,
            Status::TRANSPORT,
            Status::LBA_RANGE,
        ];
        let code = |part: &Completion| part.status.code();
        let codes: Vec<Status> = self.parts.iter().map(code).collect();
        if codes == [Status::ABORTED, Status::MISSING_FUSED] {
            // The first of a pair was aborted before the second came.
            return Ok(());
        }
        let fault = codes.into_iter().find(|code| faults.contains(code));
        let torn = self.parts.len() == 2
            && self.parts[1].status.is_success()
            && !self.parts[0].status.is_success();
        match (fault, torn) {
            (Some(code), _) => Err(format!("a command that was right is answered '{code}'")),
            (None, true) => Err("a write is carried out whose comparison has failed".to_owned()),
            (None, false) => Ok(()),
        }
    }
}

/// A command of an I/O queue, or a fused pair, in words.
pub fn words(parts: &[(Sqe, Transfer)]) -> String {
    let range = |range: Range| format!("{} blocks from LBA {}", range.blocks, range.lba);
    let word = |(sqe, _): &(Sqe, Transfer)| match Io::decode(sqe) {
        Ok(Io::Read { range: at, .. }) => format!("Read of {}", range(at)),
        Ok(Io::Write { range: at, .. }) => format!("Write of {}", range(at)),
        Ok(Io::Compare { range: at }) => format!("Compare of {}", range(at)),
        Ok(Io::Verify { range: at, .. }) => format!("Verify of {}", range(at)),
        Ok(Io::WriteZeroes { range: at, deallocate, .. }) => {
            let deallocates = if deallocate { ", deallocated" } else { "" };
            format!("Write Zeroes of {}{deallocates}", range(at))
        }
        Ok(Io::DatasetManagement { ranges, .. }) => {
            format!("Dataset Management of {ranges} ranges")
        }
        Ok(Io::Copy { lba, ranges, .. }) => format!("Copy of {ranges} ranges to LBA {lba}"),
        Ok(Io::Flush) => "Flush".to_owned(),
        Ok(Io::ReservationRegister { .. }) => "Reservation Register".to_owned(),
        Ok(Io::ReservationAcquire { .. }) => "Reservation Acquire".to_owned(),
        Ok(Io::ReservationRelease { .. }) => "Reservation Release".to_owned(),
        Ok(Io::ReservationReport { .. }) => "Reservation Report".to_owned(),
        Err(_) => format!("command {:#04x}", sqe.opcode),
    };
    let parts: Vec<String> = parts.iter().map(word).collect();
    parts.join(", fused with ")
}

/// Data for the controller.
pub fn write_of(bytes: Vec<u8>) -> Transfer {
    let len = bytes.len() as u32;
    Data::Write(Bytes(bytes.into()), len)
}

fn one(what: Sent, io: Io, data: Transfer) -> Option<Order<Sent>> {
    let sqe = io.encode(nsid(what.volume()));
    Some(Order { what, parts: vec![(sqe, data)] })
}

/// Draws the next command for one of these volumes, `all` if there may be one for all of them. `None`: nothing this time.
pub fn draw(known: &mut Known, volumes: &[usize], all: bool) -> Option<Order<Sent>> {
    let volume = volumes[below(volumes.len() as u64) as usize];
    let sectors = known.models[volume].sectors();
    // Half of all go to a few blocks, so that hosts meet.
    let lba = below(if below(2) == 0 { 16 } else { sectors });
    let most = (sectors - lba).min(if below(8) == 0 { 64 } else { 8 });
    let range = Range { lba, blocks: 1 + below(most) as u32 };
    match below(40) {
        0..=11 => read(volume, range),
        12..=22 => write(known, volume, range),
        23 | 24 => zeroes(known, volume, range),
        25 => deallocate(known, volume, range),
        26..=28 => fused(known, volume, lba % 4),
        29 | 30 => compare(known, volume, lba),
        31 => {
            let sent = Sent::Nothing { volume, code: 0x0c };
            one(sent, Io::Verify { range, fua: false }, Data::None)
        }
        32..=34 => copy(known, volume),
        35 if all => {
            let sqe = Io::Flush.encode(lunet_nvme::command::ALL_NAMESPACES);
            Some(Order { what: Sent::FlushAll, parts: vec![(sqe, Data::None)] })
        }
        _ => one(Sent::Flush { volume }, Io::Flush, Data::None),
    }
}

fn bytes(blocks: u32) -> usize {
    blocks as usize * SECTOR
}

fn read(volume: usize, range: Range) -> Option<Order<Sent>> {
    let data = Data::Read(vec![0xbb; bytes(range.blocks)]);
    one(Sent::Read { volume, lba: range.lba }, Io::Read { range, fua: false }, data)
}

fn write(known: &mut Known, volume: usize, range: Range) -> Option<Order<Sent>> {
    let value = known.models[volume].begin(range.lba, u64::from(range.blocks), now());
    let mut data = vec![0; bytes(range.blocks)];
    fill(&mut data, range.lba, value);
    let stable = below(5) == 0;
    let sent = Sent::Write { volume, value, stable };
    one(sent, Io::Write { range, fua: stable }, write_of(data))
}

/// Write Zeroes, deallocating or not.
fn zeroes(known: &mut Known, volume: usize, range: Range) -> Option<Order<Sent>> {
    let value = known.models[volume].begin_zeroes(&[(range.lba, u64::from(range.blocks))], now());
    let (stable, deallocate) = (below(4) == 0, below(2) == 0);
    let sent = Sent::Write { volume, value, stable };
    one(sent, Io::WriteZeroes { range, fua: stable, deallocate }, Data::None)
}

/// Dataset Management of one or two ranges; without Deallocate it changes nothing.
fn deallocate(known: &mut Known, volume: usize, first: Range) -> Option<Order<Sent>> {
    let model = &mut known.models[volume];
    let mut ranges = vec![(first.lba, u64::from(first.blocks))];
    let lba = first.lba + u64::from(first.blocks) + below(8);
    if below(2) == 0 && lba < model.sectors() {
        ranges.push((lba, 1 + below((model.sectors() - lba).min(16))));
    }
    let deallocate = below(4) != 0;
    let sent = match deallocate {
        true => Sent::Hint { volume, value: model.begin_zeroes(&ranges, now()) },
        false => Sent::Nothing { volume, code: 0x09 },
    };
    let list: Vec<DsmRange> = ranges
        .iter()
        .map(|(lba, blocks)| DsmRange {
            lba: U64::new(*lba),
            blocks: U32::new(*blocks as u32),
            ..DsmRange::default()
        })
        .collect();
    let mut list = list.as_bytes().to_vec();
    if below(4) == 0 {
        // Linux sends room for all that there can be.
        list.resize(4096, 0xff);
    }
    let io = Io::DatasetManagement { ranges: ranges.len() as u16, deallocate };
    one(sent, io, write_of(list))
}

/// Compare and Write of one block, in place of what is there as far as is known.
fn fused(known: &mut Known, volume: usize, lba: u64) -> Option<Order<Sent>> {
    let model = &mut known.models[volume];
    let old = model.present(lba)?;
    let value = model.begin(lba, 1, now());
    let range = Range { lba, blocks: 1 };
    let mut compare = Io::Compare { range }.encode(nsid(volume));
    let mut write = Io::Write { range, fua: below(4) == 0 }.encode(nsid(volume));
    compare.flags |= FUSED[0];
    write.flags |= FUSED[1];
    let data = |content| write_of(bytes_of(&[content]));
    let parts = vec![(compare, data(old)), (write, data(Content::new(lba, value)))];
    Some(Order { what: Sent::Replace { volume, lba, old, value }, parts })
}

/// Compare with blocks that should be there, or with one of zeroes.
fn compare(known: &Known, volume: usize, lba: u64) -> Option<Order<Sent>> {
    let model = &known.models[volume];
    let blocks = 1 + below((model.sectors() - lba).min(4));
    let contents: Vec<Content> = match below(4) {
        0 => vec![Content::ZEROES; blocks as usize],
        _ => (lba..lba + blocks).map(|lba| model.present(lba)).collect::<Option<_>>()?,
    };
    let range = Range { lba, blocks: blocks as u32 };
    let data = write_of(bytes_of(&contents));
    one(Sent::Verify { volume, lba, contents }, Io::Compare { range }, data)
}

/// Copy of one to three ranges.
fn copy(known: &mut Known, volume: usize) -> Option<Order<Sent>> {
    let sources: Vec<(Extent, u64)> = (0..1 + below(3))
        .map(|_| {
            let sectors = 1 + below(16);
            (Extent { volume, lba: below(DESTINATIONS - sectors) }, sectors)
        })
        .collect();
    let all: u64 = sources.iter().map(|(_, sectors)| sectors).sum();
    let to = Extent { volume, lba: DESTINATIONS + below(128 - all) };
    let value = known.begin_copies(&sources, to);
    let list: Vec<CopyRange> = sources
        .iter()
        .map(|(from, sectors)| CopyRange {
            lba: U64::new(from.lba),
            blocks: U16::new(*sectors as u16 - 1),
            ..CopyRange::default()
        })
        .collect();
    let stable = below(4) == 0;
    let io = Io::Copy { lba: to.lba, ranges: sources.len() as u16, fua: stable };
    let sent = Sent::Write { volume, value, stable };
    one(sent, io, write_of(list.as_bytes().to_vec()))
}
