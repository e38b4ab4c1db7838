//! Asymmetric logical unit access (SPC-5 5.17): target port groups, their states, REPORT TARGET PORT
//! GROUPS and SET TARGET PORT GROUPS.
//!
//! The groups are those of the whole server ([`PortGroups`]); each unit has a state for each of them
//! ([`AccessStates`]). All states fit into one number, so that a command needs one load to know its own.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::action::{Action, ParameterKind, Reply, Task};
use crate::cdb::Cdb;
use crate::execute::{Cx, Outcome};
use crate::reserve::Port;
use crate::sense::{Code, Key, Sense};
use crate::unit::Unit;

/// What a unit lets a target port group do. TRANSITIONING and OFFLINE are not used: a change is one step,
/// and a portal that is gone does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AccessState {
    /// Active/optimized: everything works.
    #[default]
    Optimized = 0,
    /// Active/non-optimized: everything works, and initiators prefer other paths.
    NonOptimized = 1,
    /// Standby: only commands about the unit, not on its blocks.
    Standby = 2,
    /// Unavailable: only what is needed to find that out and to change it.
    Unavailable = 3,
}

impl AccessState {
    /// ASYMMETRIC ACCESS STATE.
    const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Optimized),
            1 => Some(Self::NonOptimized),
            2 => Some(Self::Standby),
            3 => Some(Self::Unavailable),
            _ => None,
        }
    }

    /// The sense data that refuses a command, or tells REQUEST SENSE of the state.
    pub(crate) const fn sense(self) -> Option<Sense> {
        match self {
            Self::Optimized | Self::NonOptimized => None,
            Self::Standby => Some(Sense::new(Key::NotReady, Code::PORT_IN_STANDBY)),
            Self::Unavailable => Some(Sense::new(Key::NotReady, Code::PORT_UNAVAILABLE)),
        }
    }

    /// True if a command works in this state (SPC-5 5.17.2.4). READ CAPACITY works in standby, although it is
    /// not in that list: without it hosts take the unit for one of no size when they find the path.
    pub(crate) fn allows(self, cdb: &Cdb) -> bool {
        match (cdb.opcode(), cdb.service_action()) {
            _ if self.sense().is_none() => true,
            // REQUEST SENSE, INQUIRY, REPORT LUNS, REPORT and SET TARGET PORT GROUPS.
            (0x03 | 0x12 | 0xA0, _) | (0xA3 | 0xA4, GROUPS) => true,
            // MODE SELECT and SENSE, LOG SELECT and SENSE, RECEIVE and SEND DIAGNOSTIC, PERSISTENT RESERVE
            // IN and OUT, READ CAPACITY.
            (0x15 | 0x1A | 0x1C | 0x1D | 0x25 | 0x4C | 0x4D | 0x55 | 0x5A | 0x5E | 0x5F, _)
            | (0x9E, 0x10) => self == Self::Standby,
            _ => false,
        }
    }
}

/// SERVICE ACTION of REPORT and SET TARGET PORT GROUPS.
const GROUPS: u16 = 0x0A;

/// Who changes the states of a unit: the TPGS field of standard INQUIRY data (SPC-5 6.7.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alua {
    /// There is no asymmetric access.
    Off,
    /// The target alone.
    Implicit,
    /// The target, and initiators with SET TARGET PORT GROUPS.
    #[default]
    Explicit,
}

impl Alua {
    /// TPGS, in its place in byte 5 of the standard INQUIRY data.
    pub(crate) const fn tpgs(self) -> u8 {
        match self {
            Self::Off => 0x00,
            Self::Implicit => 0x10,
            Self::Explicit => 0x30,
        }
    }
}

/// A target port group: all target ports in the portal groups with one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// TARGET PORT GROUP, which is the target portal group tag.
    pub tag: u16,
    /// The state that the configuration gives.
    pub state: AccessState,
    /// PREF: initiators should prefer it.
    pub preferred: bool,
}

/// The target port groups of a server, by their tags. A group's place in the list is its number in
/// [`AccessStates`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortGroups(Arc<[PortGroup]>);

impl PortGroups {
    /// How many there may be.
    pub const MAX: usize = 16;

    /// The groups, each tag once. `None` if they are too many.
    pub fn new(mut groups: Vec<PortGroup>) -> Option<Self> {
        groups.sort_unstable_by_key(|group| group.tag);
        groups.dedup_by_key(|group| group.tag);
        (groups.len() <= Self::MAX).then(|| Self(groups.into()))
    }

    /// The groups after these, each tag once. What was there keeps its number, which the states of units go
    /// by, even if it is not among them any more. `None` if they are too many.
    pub fn next(&self, groups: Vec<PortGroup>) -> Option<Self> {
        let fresh = Self::new(groups)?;
        let mut next = self.0.to_vec();
        for group in &*fresh.0 {
            match next.iter_mut().find(|old| old.tag == group.tag) {
                Some(old) => *old = *group,
                None => next.push(*group),
            }
        }
        (next.len() <= Self::MAX).then(|| Self(next.into()))
    }

    /// The number of the group with this tag.
    pub fn number(&self, tag: u16) -> Option<usize> {
        self.0.iter().position(|group| group.tag == tag)
    }

    /// Gives a unit the configured states of groups that were not there `before`, which nobody uses yet.
    pub fn begin(&self, states: &AccessStates, before: &Self) {
        let mut next = states.load();
        for (number, group) in self.0.iter().enumerate().skip(before.0.len()) {
            next = next.with(number, group.state, CAUSE_NONE);
        }
        states.store(next);
    }

    /// Takes over what these groups, configured anew, say of a unit: an implicit transition. A state that is
    /// configured as it was `before` stays as initiators have set it. True if they are to be told.
    pub fn reconfigure(&self, states: &AccessStates, before: &Self) -> bool {
        let (was, mut next) = (states.load(), states.load());
        let mut told = false;
        for (number, (group, before)) in self.0.iter().zip(before.0.iter()).enumerate() {
            told |= group.preferred != before.preferred;
            if group.state != before.state && group.state != next.state(number) {
                next = next.with(number, group.state, CAUSE_IMPLICIT);
            }
        }
        states.store(next);
        told || next != was
    }

    /// Carries a request out on a unit, to which these ports lead. The caller sees to it that there is one at
    /// a time for each unit.
    pub fn execute(&self, states: &AccessStates, ports: &[Port], request: &Request) -> Done {
        match request {
            Request::Report { extended, allocation } => {
                let data = finish(self.report(states, ports, *extended), *allocation);
                Done { reply: Reply::data(data), changed: false }
            }
            Request::Set(changes) => match self.set(states, ports, changes) {
                Ok(changed) => Done { reply: Reply::GOOD, changed },
                Err(sense) => Done { reply: Reply::check(sense), changed: false },
            },
        }
    }

    /// The parameter data of REPORT TARGET PORT GROUPS (SPC-5 6.37), without its length.
    fn report(&self, states: &AccessStates, ports: &[Port], extended: bool) -> Vec<u8> {
        let mut data = Vec::from(header(extended));
        for (number, group) in self.0.iter().enumerate() {
            // The count of ports has one byte.
            let of_group = ports.iter().filter(|port| port.name.tag == group.tag).take(255);
            let start = data.len();
            let state = states.get(number) as u8 | u8::from(group.preferred) << 7;
            data.extend_from_slice(&[state, SUPPORTED]);
            data.extend_from_slice(&group.tag.to_be_bytes());
            data.extend_from_slice(&[0, states.cause(number), 0, 0]);
            for port in of_group {
                data[start + 7] += 1;
                data.extend_from_slice(&[0, 0]);
                data.extend_from_slice(&port.relative.to_be_bytes());
            }
            if data[start + 7] == 0 {
                // None of its ports leads here.
                data.truncate(start);
            }
        }
        data
    }

    /// SET TARGET PORT GROUPS: all of it or nothing. True if that changes a state.
    fn set(
        &self,
        states: &AccessStates,
        ports: &[Port],
        changes: &[Change],
    ) -> Result<bool, Sense> {
        let mut changed = false;
        let mut next = states.load();
        for (at, Change { tag, state }) in changes.iter().enumerate() {
            let number = self.number(*tag).filter(|_| ports.iter().any(|p| p.name.tag == *tag));
            let number = number.ok_or(Sense::invalid_parameter(4 + 4 * at as u16 + 2))?;
            if next.state(number) != *state {
                next = next.with(number, *state, CAUSE_COMMAND);
                changed = true;
            }
        }
        states.store(next);
        Ok(changed)
    }
}

/// U_SUP, S_SUP, AN_SUP, AO_SUP.
const SUPPORTED: u8 = 0x08 | 0x04 | 0x02 | 0x01;

/// STATUS CODE: no change yet; by SET TARGET PORT GROUPS; by the target itself.
const CAUSE_NONE: u8 = 0;
const CAUSE_COMMAND: u8 = 1;
const CAUSE_IMPLICIT: u8 = 2;

/// All states of a unit. Four bits for each group: two of the state, two of what changed it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Packed(u64);

impl Packed {
    const fn state(self, group: usize) -> AccessState {
        match AccessState::from_number((self.0 >> (4 * group)) as u8 & 3) {
            Some(state) => state,
            None => AccessState::Optimized,
        }
    }

    const fn cause(self, group: usize) -> u8 {
        (self.0 >> (4 * group + 2)) as u8 & 3
    }

    const fn with(self, group: usize, state: AccessState, cause: u8) -> Self {
        let nibble = state as u64 | (cause as u64) << 2;
        Self(self.0 & !(0xF << (4 * group)) | nibble << (4 * group))
    }
}

/// What a unit lets each target port group do. It outlives the unit when that is replaced, and not the
/// server: after a start, the states are those of the configuration.
#[derive(Debug, Default)]
pub struct AccessStates(AtomicU64);

impl AccessStates {
    /// The state of a group. `group` is its number, below [`PortGroups::MAX`].
    pub fn get(&self, group: usize) -> AccessState {
        self.load().state(group)
    }

    fn cause(&self, group: usize) -> u8 {
        self.load().cause(group)
    }

    /// Takes the states that the configuration gives: the server starts.
    pub fn configure(&self, groups: &PortGroups) {
        let groups = groups.0.iter().enumerate();
        let packed = groups.fold(Packed(0), |packed, (number, group)| {
            packed.with(number, group.state, CAUSE_NONE)
        });
        self.store(packed);
    }

    fn load(&self) -> Packed {
        Packed(self.0.load(Ordering::Relaxed))
    }

    fn store(&self, next: Packed) {
        self.0.store(next.0, Ordering::Relaxed);
    }
}

/// Target port groups that several servers share, of which one serves the unit at a time. All of them report the same of
/// all groups. States change by the servers' decision alone: the unit has [`Alua::Implicit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedGroups(pub Vec<SharedGroup>);

/// One of [`SharedGroups`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGroup {
    /// TARGET PORT GROUP.
    pub tag: u16,
    /// Its state.
    pub state: SharedState,
    /// RELATIVE TARGET PORT IDENTIFIERs of its ports.
    pub ports: Vec<u16>,
}

/// ASYMMETRIC ACCESS STATE of a target port group that several servers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SharedState {
    /// Active/optimized.
    Optimized = 0x0,
    /// Active/non-optimized.
    NonOptimized = 0x1,
    /// Standby.
    Standby = 0x2,
    /// Transitioning: it becomes active/optimized.
    Transitioning = 0xF,
}

impl SharedGroups {
    /// T_SUP, S_SUP, AN_SUP, AO_SUP.
    const SUPPORTED: u8 = 0x80 | 0x04 | 0x02 | 0x01;

    /// The parameter data of REPORT TARGET PORT GROUPS (SPC-5 6.37), cut to the allocation length.
    pub fn report(&self, extended: bool, allocation: u32) -> Vec<u8> {
        let mut data = Vec::from(header(extended));
        for group in &self.0 {
            // The count of ports has one byte.
            let ports = &group.ports[..group.ports.len().min(255)];
            let [high, low] = group.tag.to_be_bytes();
            // What changed it is the same whoever is asked: the target.
            let cause = CAUSE_IMPLICIT;
            let state = group.state as u8;
            let count = ports.len() as u8;
            data.extend_from_slice(&[state, Self::SUPPORTED, high, low, 0, cause, 0, count]);
            for port in ports {
                let [high, low] = port.to_be_bytes();
                data.extend_from_slice(&[0, 0, high, low]);
            }
        }
        finish(data, allocation)
    }
}

/// The header of REPORT TARGET PORT GROUPS, without its length.
const fn header(extended: bool) -> &'static [u8] {
    // FORMAT TYPE 001b, and no time that an implicit transition would take.
    if extended { &[0, 0, 0, 0, 0x10, 0, 0, 0] } else { &[0; 4] }
}

/// Puts RETURN DATA LENGTH in, and cuts to the allocation length.
fn finish(mut data: Vec<u8>, allocation: u32) -> Vec<u8> {
    let len = data.len() as u32 - 4;
    data[0..4].copy_from_slice(&len.to_be_bytes());
    data.truncate(allocation as usize);
    data
}

/// A command on the target port groups of a unit, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// REPORT TARGET PORT GROUPS.
    Report {
        /// With the extended header.
        extended: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// SET TARGET PORT GROUPS.
    Set(Vec<Change>),
}

/// A descriptor of SET TARGET PORT GROUPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// TARGET PORT GROUP.
    pub tag: u16,
    /// ASYMMETRIC ACCESS STATE.
    pub state: AccessState,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The answer.
    pub reply: Reply,
    /// A state has changed: all other nexuses are told ASYMMETRIC ACCESS STATE CHANGED.
    pub changed: bool,
}

/// REPORT TARGET PORT GROUPS (SPC-5 6.37).
pub(crate) fn report(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    let extended = match cx.cdb.byte(1) >> 5 {
        0 => false,
        1 => true,
        _ => return Err(Sense::invalid_cdb(1, 7)),
    };
    let request = Request::Report { extended, allocation: cx.cdb.be32(6) };
    Ok(Task::still(Action::PortGroups(request)))
}

/// SET TARGET PORT GROUPS (SPC-5 6.45): fetches the parameter list.
pub(crate) fn set(_: &Unit, cx: &mut Cx<'_>) -> Outcome {
    Ok(cx.optional_list(ParameterKind::SetTargetPortGroups, cx.cdb.be32(6), 0))
}

/// Decodes the parameter list of SET TARGET PORT GROUPS.
pub(crate) fn parse(list: &[u8]) -> Result<Action, Sense> {
    let wrong_length = Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR);
    let (_, list) = list.split_first_chunk::<4>().ok_or(wrong_length)?;
    if list.len() % 4 != 0 {
        return Err(wrong_length);
    }
    let mut changes = Vec::new();
    for (at, descriptor) in list.chunks_exact(4).enumerate() {
        let at = 4 + 4 * at as u16;
        let state = AccessState::from_number(descriptor[0] & 0x0F);
        let state = state.ok_or(Sense::invalid_parameter(at))?;
        let tag = u16::from_be_bytes([descriptor[2], descriptor[3]]);
        // More than this are not all different.
        if changes.len() < PortGroups::MAX {
            changes.push(Change { tag, state });
        } else {
            return Err(Sense::invalid_parameter(at));
        }
    }
    Ok(Action::PortGroups(Request::Set(changes)))
}
