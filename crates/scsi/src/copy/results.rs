//! What became of the copy operations of one initiator (SPC-5 5.18.4), and the parameter data of
//! RECEIVE COPY STATUS, RECEIVE COPY FAILURE DETAILS and RECEIVE ROD TOKEN INFORMATION.
//!
//! The table is bounded: so many operations at work, so many whose outcome is kept, each for a while.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::limits::MAX_COPIES;
use super::rod::RodToken;
use super::{About, Query, action};
use crate::action::{Reply, status};
use crate::sense::{Code, Sense, SenseFormat};

/// How long an outcome is kept if nobody asks for it.
const KEPT_FOR: Duration = Duration::from_secs(120);
/// How many outcomes are kept.
const MAX_KEPT: usize = 64;
/// ESTIMATED STATUS UPDATE DELAY while an operation is at work, in milliseconds.
const ASK_AGAIN: u32 = 50;
/// ESTIMATED STATUS UPDATE DELAY of an operation that has ended.
const ENDED: u32 = 0xFFFF_FFFE;
/// TRANSFER COUNT UNITS: blocks of the copy destination.
const BLOCKS: u8 = 0xF1;

/// Where a copy operation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Names the logical unit whose copy manager it is; chosen by the caller.
    pub unit: u64,
    /// The list identifier; `None` if nobody will ask.
    pub list: Option<u32>,
    /// The service action that started it, see [`action`].
    pub action: u8,
    /// Its command is answered already.
    pub background: bool,
    /// The unit's logical block size in bytes.
    pub block_size: u32,
}

/// How a copy operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is done.
    Done,
    /// A token stands for less than was asked for.
    Partial,
    /// It failed.
    Failed(Sense),
    /// It was ended by COPY OPERATION ABORT, or together with its command.
    Aborted,
}

/// Why a copy operation cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its list identifier is in use.
    InUse(Sense),
    /// There are too many at work.
    Full,
}

/// One operation.
#[derive(Debug)]
struct Entry {
    id: u64,
    origin: Origin,
    /// With the time of the end.
    ended: Option<(Outcome, Duration)>,
    segments: u16,
    bytes: u64,
    /// Reads and writes that succeeded, or what stands for them.
    commands: u16,
    token: Option<Box<RodToken>>,
    /// RECEIVE COPY STATUS(LID1) has told of the end.
    told: bool,
}

/// The copy operations of one initiator port through one target port (an I_T nexus).
#[derive(Debug, Default)]
pub struct Operations {
    entries: Vec<Entry>,
    next: u64,
}

impl Operations {
    /// Starts an operation, and gives its number. What is known of an older one with the same list
    /// identifier is dropped.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn begin(&mut self, origin: Origin, now: Duration) -> Result<u64, Refused> {
        self.expire(now);
        if let Some(at) = origin.list.and_then(|list| self.position(origin.unit, list)) {
            let other = &self.entries[at];
            if other.ended.is_none() {
                let extended = [action::EXTENDED_COPY_LID1, action::EXTENDED_COPY_LID4];
                let both = [origin.action, other.origin.action];
                // SPC-5 6.4.3.2: the same number in both formats of EXTENDED COPY.
                let mixed = both[0] != both[1] && both.iter().all(|one| extended.contains(one));
                let sense = if mixed {
                    Sense::illegal(Code::INVALID_FIELD_IN_PARAMETER_LIST)
                } else {
                    Sense::illegal(Code::OPERATION_IN_PROGRESS)
                };
                return Err(Refused::InUse(sense));
            }
            self.entries.remove(at);
        }
        if self.at_work() >= MAX_COPIES {
            return Err(Refused::Full);
        }
        if self.entries.len() - self.at_work() >= MAX_KEPT {
            self.drop_oldest();
        }
        self.next += 1;
        self.entries.push(Entry {
            id: self.next,
            origin,
            ended: None,
            segments: 0,
            bytes: 0,
            commands: 0,
            token: None,
            told: false,
        });
        Ok(self.next)
    }

    /// An operation has come so far: it works at the segment with this number, counted from 1, and has
    /// written so many more bytes with so many commands.
    pub fn advance(&mut self, id: u64, segments: u16, bytes: u64, commands: u16) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.segments = segments;
            entry.bytes += bytes;
            entry.commands = entry.commands.wrapping_add(commands);
        }
    }

    /// POPULATE TOKEN has made this token.
    pub fn made(&mut self, id: u64, token: RodToken) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.token = Some(Box::new(token));
        }
    }

    /// An operation has ended.
    pub fn end(&mut self, id: u64, outcome: Outcome, now: Duration) {
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return };
        if self.entries[at].origin.list.is_none() {
            self.entries.remove(at);
            return;
        }
        self.entries[at].ended = Some((outcome, now));
    }

    /// An operation never was: it did not get past its first checks.
    pub fn forget(&mut self, id: u64) {
        self.entries.retain(|entry| entry.id != id);
    }

    /// COPY OPERATION ABORT: the number of the operation that must be ended, if it is still at work.
    ///
    /// # Errors
    /// INVALID FIELD IN CDB: nothing is known of it.
    pub fn abort(&self, unit: u64, list: u32) -> Result<Option<u64>, Sense> {
        let at = self.position(unit, list).ok_or(Sense::invalid_cdb(2, 7))?;
        let entry = &self.entries[at];
        Ok(entry.ended.is_none().then_some(entry.id))
    }

    /// LOGICAL UNIT RESET: outcomes are forgotten (SPC-5 6.24). What is at work the caller ends.
    pub fn reset(&mut self, unit: u64) {
        self.entries.retain(|entry| entry.origin.unit != unit || entry.ended.is_none());
    }

    /// Answers a query (SPC-5 6.23 to 6.26).
    pub fn query(&mut self, unit: u64, query: Query, format: SenseFormat, now: Duration) -> Reply {
        self.expire(now);
        let known = self.position(unit, query.list);
        let Some(at) = known.filter(|at| self.entries[*at].answers(query.about)) else {
            return Reply::check(Sense::invalid_cdb(2, 7));
        };
        let entry = &mut self.entries[at];
        let mut data = match query.about {
            About::Status1 => entry.status_lid1(),
            About::Failure1 => entry.failure_lid1(format),
            About::Status4 => entry.status_lid4(format),
            About::Token => entry.token_information(format),
        };
        let all = query.allocation == 0 || query.allocation as usize >= data.len();
        let over = entry.ended.is_some()
            && match query.about {
                About::Status1 => {
                    entry.told = true;
                    !matches!(entry.ended, Some((Outcome::Failed(_), _)))
                }
                About::Failure1 => all,
                About::Token => all && entry.token.is_some(),
                About::Status4 => false,
            };
        if over {
            self.entries.remove(at);
        }
        data.truncate(query.allocation as usize);
        Reply::data(data)
    }

    /// True if nothing is at work.
    pub fn idle(&self) -> bool {
        self.at_work() == 0
    }

    fn at_work(&self) -> usize {
        self.entries.iter().filter(|entry| entry.ended.is_none()).count()
    }

    fn position(&self, unit: u64, list: u32) -> Option<usize> {
        let named = |entry: &Entry| entry.origin.unit == unit && entry.origin.list == Some(list);
        self.entries.iter().position(named)
    }

    /// Forgets what nobody has asked for.
    fn expire(&mut self, now: Duration) {
        let fresh = |at: Duration| now < at.saturating_add(KEPT_FOR);
        self.entries.retain(|entry| entry.ended.is_none_or(|(_, at)| fresh(at)));
    }

    fn drop_oldest(&mut self) {
        let ended = self.entries.iter().enumerate().filter_map(|(i, e)| Some((e.ended?.1, i)));
        if let Some((_, oldest)) = ended.min() {
            self.entries.remove(oldest);
        }
    }
}

impl Entry {
    /// True if there is an answer to this question.
    fn answers(&self, about: About) -> bool {
        match about {
            About::Status1 => !self.told,
            About::Failure1 => {
                self.ended.is_some() && self.origin.action == action::EXTENDED_COPY_LID1
            }
            About::Status4 | About::Token => true,
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        self.ended.map(|(outcome, _)| outcome)
    }

    fn sense(&self) -> Option<&Sense> {
        match &self.ended {
            Some((Outcome::Failed(sense), _)) => Some(sense),
            _ => None,
        }
    }

    fn status_lid1(&self) -> Vec<u8> {
        let status = match self.outcome() {
            None => 0x00,
            Some(Outcome::Done | Outcome::Partial) => 0x01,
            Some(Outcome::Failed(_) | Outcome::Aborted) => 0x02,
        };
        // The unit is the smallest in which the count fits: bytes, KiB, MiB and so on.
        let (mut unit, mut count) = (0, self.bytes);
        while count > u64::from(u32::MAX) {
            count >>= 10;
            unit += 1;
        }
        let mut data = vec![0, 0, 0, 8, status];
        data.extend_from_slice(&self.segments.to_be_bytes());
        data.push(unit);
        data.extend_from_slice(&(count as u32).to_be_bytes());
        data
    }

    fn failure_lid1(&self, format: SenseFormat) -> Vec<u8> {
        let Some(sense) = self.sense() else { return vec![0; 4] };
        let sense = sense.encode(format);
        let mut data = vec![0; 60];
        data[56] = status::CHECK_CONDITION;
        data[58..60].copy_from_slice(&(sense.len() as u16).to_be_bytes());
        data.extend_from_slice(&sense);
        with_length(data)
    }

    fn status_lid4(&self, format: SenseFormat) -> Vec<u8> {
        with_length(self.status(format))
    }

    fn token_information(&self, format: SenseFormat) -> Vec<u8> {
        let mut data = self.status(format);
        match &self.token {
            Some(token) => {
                // Two reserved bytes precede the token.
                data.extend_from_slice(&(2 + RodToken::LEN as u32).to_be_bytes());
                data.extend_from_slice(&[0; 2]);
                data.extend_from_slice(&token.0);
            }
            None => data.extend_from_slice(&[0; 4]),
        }
        with_length(data)
    }

    /// What RECEIVE COPY STATUS(LID4) and RECEIVE ROD TOKEN INFORMATION have in common.
    fn status(&self, format: SenseFormat) -> Vec<u8> {
        let state = match self.outcome() {
            None if self.origin.background => 0x12,
            None => 0x11,
            Some(Outcome::Done) => 0x01,
            Some(Outcome::Failed(_)) => 0x02,
            Some(Outcome::Partial) => 0x03,
            Some(Outcome::Aborted) => 0x60,
        };
        let completion = match self.outcome() {
            Some(Outcome::Failed(_)) => status::CHECK_CONDITION,
            Some(Outcome::Aborted) => status::TASK_ABORTED,
            _ => status::GOOD,
        };
        let sense = self.sense().map(|sense| sense.encode(format));
        let sense = sense.as_deref().unwrap_or_default();
        let room = sense.len().next_multiple_of(4);
        let delay = if self.ended.is_some() { ENDED } else { ASK_AGAIN };
        let tokens = self.origin.action > action::EXTENDED_COPY_LID4;
        let (units, count) = match tokens {
            true => (BLOCKS, self.bytes / u64::from(self.origin.block_size)),
            false => (0, self.bytes),
        };
        let mut data = vec![0; 32 + room];
        data[4] = self.origin.action;
        data[5] = state;
        data[6..8].copy_from_slice(&self.commands.to_be_bytes());
        data[8..12].copy_from_slice(&delay.to_be_bytes());
        data[12] = completion;
        data[13] = room as u8;
        data[14] = sense.len() as u8;
        data[15] = units;
        data[16..24].copy_from_slice(&count.to_be_bytes());
        data[24..26].copy_from_slice(&self.segments.to_be_bytes());
        data[32..32 + sense.len()].copy_from_slice(sense);
        data
    }
}

/// Fills in AVAILABLE DATA, which stands in the first four bytes.
fn with_length(mut data: Vec<u8>) -> Vec<u8> {
    let len = data.len() as u32 - 4;
    data[..4].copy_from_slice(&len.to_be_bytes());
    data
}
