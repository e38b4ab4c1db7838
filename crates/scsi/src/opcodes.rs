//! The table of commands: dispatch, and what REPORT SUPPORTED OPERATION CODES says of each
//! (SPC-5 6.34). A new command is one line here and one handler.

use bitflags::bitflags;

use crate::alua::Alua;
use crate::cdb::Cdb;
use crate::copy::command as copy;
use crate::execute::{Cx, Outcome};
use crate::reserve::Guard;
use crate::sense::{Code, Sense};
use crate::unit::Unit;
use crate::{
    alua, diagnostic, inquiry, lba_status, log, lun, mode, mode_select, power, reserve, rw,
    sanitize, supported, thin,
};

bitflags! {
    /// What must hold before a command is decoded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Needs: u16 {
        /// Works whatever unit attention pends.
        const NOTHING = 1;
        /// The unit is not stopped, and has its medium.
        const READY = 1 << 1;
        /// The unit takes writes.
        const WRITABLE = 1 << 2;
        /// The command exists only where space can be given back.
        const THIN = 1 << 3;
        /// The unit has its medium, stopped or not.
        const MEDIUM = 1 << 4;
        /// Accesses the medium, which ends a power condition of less power.
        const ACTIVE = 1 << 5;
        /// The command exists only where the medium can be ejected.
        const REMOVABLE = 1 << 6;
        /// It ends the failure mode of SANITIZE, and what FORMAT UNIT has left unfinished.
        const SANITIZE = 1 << 7;
        /// It ends what FORMAT UNIT has left unfinished.
        const FORMAT = 1 << 8;
        /// The command exists only where there is asymmetric access.
        const GROUPS = 1 << 14;
        /// The command exists only where initiators may change access states.
        const EXPLICIT = 1 << 15;
        /// Any of these is of no use without the storage below the unit.
        const STORAGE = Self::READY.bits() | Self::WRITABLE.bits() | Self::MEDIUM.bits()
            | Self::ACTIVE.bits();
    }
}

/// How a command is carried out.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// By a logical unit.
    Unit(fn(&Unit, &mut Cx<'_>) -> Outcome),
    /// Also for a LUN that names no logical unit.
    Any(fn(&mut Cx<'_>) -> Outcome),
}

/// One command.
pub(crate) struct Opcode {
    /// OPERATION CODE.
    pub code: u8,
    /// SERVICE ACTION, where the operation code has them.
    pub service_action: Option<u16>,
    /// CDB USAGE DATA, as long as the command block: the operation code, then a one for every bit
    /// that is looked at.
    pub usage: &'static [u8],
    pub needs: Needs,
    /// What a reservation of another nexus does to it.
    pub guard: Guard,
    pub handler: Handler,
    /// RECOMMENDED COMMAND TIMEOUT in seconds.
    pub timeout: u32,
}

impl Opcode {
    /// The length of the command block in bytes.
    pub const fn len(&self) -> usize {
        self.usage.len()
    }

    /// True if the unit has the command.
    pub fn available(&self, unit: Option<&Unit>) -> bool {
        let with =
            |need, has: fn(&Unit) -> bool| !self.needs.contains(need) || unit.is_some_and(has);
        with(Needs::THIN, Unit::is_thin)
            && with(Needs::REMOVABLE, |unit| unit.removable)
            && with(Needs::GROUPS, |unit| unit.alua != Alua::Off)
            && with(Needs::EXPLICIT, |unit| unit.alua == Alua::Explicit)
    }
}

/// What must hold, and what reservations do.
type Rule = (Needs, Guard);

const fn op(usage: &'static [u8], rule: Rule, timeout: u32, handler: Handler) -> Opcode {
    let (needs, guard) = rule;
    Opcode { code: usage[0], service_action: None, usage, needs, guard, handler, timeout }
}

/// Service actions stand in byte 1.
const fn sa(usage: &'static [u8], sa: u16, rule: Rule, timeout: u32, handler: Handler) -> Opcode {
    Opcode { service_action: Some(sa), ..op(usage, rule, timeout, handler) }
}

/// Answered whatever pends and whoever holds the unit.
const ALWAYS: Rule = (Needs::NOTHING, Guard::Free);
/// Reservations do not concern it, or it is about them.
const FREE: Rule = (Needs::empty(), Guard::Free);
/// TEST UNIT READY.
const STATE: Rule = (Needs::READY, Guard::Status);
/// Tells about the medium, whatever is reserved.
const MEDIUM: Rule = (Needs::MEDIUM, Guard::Free);
/// Reports parameters that go with the medium.
const REPORT: Rule = (Needs::empty(), Guard::Read);
/// Changes such parameters.
const SELECT: Rule = (Needs::empty(), Guard::Write);
const POWER: Rule = (Needs::empty(), Guard::Power);
const PREVENT: Rule = (Needs::REMOVABLE, Guard::Prevent);
const READ: Rule = (Needs::READY.union(Needs::ACTIVE), Guard::Read);
/// Has an effect on the medium's cache that only writers may have.
const SYNC: Rule = (Needs::READY.union(Needs::ACTIVE), Guard::Write);
const WRITE: Rule = (SYNC.0.union(Needs::WRITABLE), Guard::Write);
const GROUPS: Rule = (Needs::GROUPS, Guard::Free);
const SET_GROUPS: Rule = (Needs::EXPLICIT, Guard::Write);
const THIN: Rule = (WRITE.0.union(Needs::THIN), Guard::Write);
const SANITIZE: Rule = (WRITE.0.union(Needs::SANITIZE), Guard::Write);
const FORMAT: Rule = (WRITE.0.union(Needs::FORMAT), Guard::Write);
const ERASE: Rule = (SANITIZE.0.union(Needs::THIN), Guard::Write);

/// Seconds: commands answered from memory, transfers, and those that work through large ranges.
const QUICK: u32 = 10;
const MOVE: u32 = 30;
const LONG: u32 = 120;
/// Work on a whole volume.
const HOURS: u32 = 86_400;

/// All commands, by operation code, then service action.
#[rustfmt::skip]
pub(crate) static TABLE: &[Opcode] = &[
    op(&[0x00, 0, 0, 0, 0, 0x04], STATE, QUICK, Handler::Unit(diagnostic::test_unit_ready)),
    op(&[0x03, 0x01, 0, 0, 0xFF, 0x04], ALWAYS, QUICK, Handler::Any(diagnostic::request_sense)),
    op(&[0x04, 0xF0, 0, 0, 0x03, 0x04], FORMAT, HOURS, Handler::Unit(sanitize::format_unit)),
    op(&[0x08, 0x1F, 0xFF, 0xFF, 0xFF, 0x04], READ, MOVE, Handler::Unit(rw::read6)),
    op(&[0x0A, 0x1F, 0xFF, 0xFF, 0xFF, 0x04], WRITE, MOVE, Handler::Unit(rw::write6)),
    op(&[0x12, 0x03, 0xFF, 0xFF, 0xFF, 0x04], ALWAYS, QUICK, Handler::Any(inquiry::inquiry)),
    op(&[0x15, 0x13, 0, 0, 0xFF, 0x04], SELECT, QUICK, Handler::Unit(mode_select::select6)),
    op(&[0x16, 0x11, 0, 0, 0, 0x04], FREE, QUICK, Handler::Unit(reserve::reserve)),
    op(&[0x17, 0x11, 0, 0, 0, 0x04], FREE, QUICK, Handler::Unit(reserve::release)),
    op(&[0x1A, 0x08, 0xFF, 0xFF, 0xFF, 0x04], REPORT, QUICK, Handler::Unit(mode::sense6)),
    op(&[0x1B, 0x01, 0, 0x0F, 0xF7, 0x04], POWER, LONG, Handler::Unit(power::start_stop)),
    op(&[0x1C, 0x01, 0xFF, 0xFF, 0xFF, 0x04], FREE, QUICK, Handler::Unit(diagnostic::receive)),
    op(&[0x1D, 0xE4, 0, 0xFF, 0xFF, 0x04], SYNC, QUICK, Handler::Unit(diagnostic::send)),
    op(&[0x1E, 0, 0, 0, 0x03, 0x04], PREVENT, QUICK, Handler::Unit(power::prevent_allow)),
    op(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0x04], MEDIUM, QUICK, Handler::Unit(inquiry::read_capacity10)),
    op(&[0x28, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], READ, MOVE, Handler::Unit(rw::read10)),
    op(&[0x2A, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], WRITE, MOVE, Handler::Unit(rw::write10)),
    op(&[0x2E, 0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], WRITE, MOVE, Handler::Unit(rw::write_verify10)),
    op(&[0x2F, 0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], READ, LONG, Handler::Unit(rw::verify10)),
    op(&[0x34, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], READ, MOVE, Handler::Unit(rw::prefetch10)),
    op(&[0x35, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], SYNC, LONG, Handler::Unit(rw::sync10)),
    op(&[0x37, 0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], READ, QUICK, Handler::Unit(diagnostic::defects10)),
    op(&[0x41, 0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0x04], WRITE, LONG, Handler::Unit(rw::write_same10)),
    op(&[0x42, 0x01, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], THIN, LONG, Handler::Unit(thin::unmap)),
    sa(&[0x48, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x01, SANITIZE, HOURS, Handler::Unit(sanitize::overwrite)),
    sa(&[0x48, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x02, ERASE, HOURS, Handler::Unit(sanitize::block_erase)),
    sa(&[0x48, 0x5F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x1F, SANITIZE, QUICK, Handler::Unit(sanitize::exit_failure_mode)),
    op(&[0x4C, 0x01, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], SELECT, QUICK, Handler::Unit(log::select)),
    op(&[0x4D, 0x01, 0x3F, 0xFF, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], FREE, QUICK, Handler::Unit(log::sense)),
    op(&[0x55, 0x13, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], SELECT, QUICK, Handler::Unit(mode_select::select10)),
    op(&[0x56, 0x13, 0, 0, 0, 0, 0, 0, 0, 0x04], FREE, QUICK, Handler::Unit(reserve::reserve)),
    op(&[0x57, 0x13, 0, 0, 0, 0, 0, 0, 0, 0x04], FREE, QUICK, Handler::Unit(reserve::release)),
    op(&[0x5A, 0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0x04], REPORT, QUICK, Handler::Unit(mode::sense10)),
    sa(&[0x5E, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], 0x00, FREE, QUICK, Handler::Unit(reserve::persistent_in)),
    sa(&[0x5E, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], 0x01, FREE, QUICK, Handler::Unit(reserve::persistent_in)),
    sa(&[0x5E, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], 0x02, FREE, QUICK, Handler::Unit(reserve::persistent_in)),
    sa(&[0x5E, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0x04], 0x03, FREE, QUICK, Handler::Unit(reserve::persistent_in)),
    sa(&[0x5F, 0x1F, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x00, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x01, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x02, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x03, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x04, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x05, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x06, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x5F, 0x1F, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x07, FREE, QUICK, Handler::Unit(reserve::persistent_out)),
    sa(&[0x83, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x00, SYNC, LONG, Handler::Unit(copy::extended_lid1)),
    sa(&[0x83, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x01, SYNC, LONG, Handler::Unit(copy::extended_lid4)),
    sa(&[0x83, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x10, READ, LONG, Handler::Unit(copy::populate)),
    sa(&[0x83, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x11, WRITE, LONG, Handler::Unit(copy::write_using)),
    sa(&[0x83, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x04], 0x1C, FREE, QUICK, Handler::Unit(copy::abort)),
    sa(&[0x84, 0x1F, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x00, FREE, QUICK, Handler::Unit(copy::status_lid1)),
    sa(&[0x84, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x03, FREE, QUICK, Handler::Unit(copy::operating_parameters)),
    sa(&[0x84, 0x1F, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x04, FREE, QUICK, Handler::Unit(copy::failure_lid1)),
    sa(&[0x84, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x05, FREE, QUICK, Handler::Unit(copy::status_lid4)),
    sa(&[0x84, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x07, FREE, QUICK, Handler::Unit(copy::token_information)),
    op(&[0x88, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], READ, MOVE, Handler::Unit(rw::read16)),
    op(&[0x89, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0, 0x04], WRITE, MOVE, Handler::Unit(rw::compare_and_write)),
    op(&[0x8A, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], WRITE, MOVE, Handler::Unit(rw::write16)),
    op(&[0x8B, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], WRITE, MOVE, Handler::Unit(rw::orwrite16)),
    op(&[0x8E, 0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], WRITE, MOVE, Handler::Unit(rw::write_verify16)),
    op(&[0x8F, 0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], READ, LONG, Handler::Unit(rw::verify16)),
    op(&[0x90, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], READ, MOVE, Handler::Unit(rw::prefetch16)),
    op(&[0x91, 0x02, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], SYNC, LONG, Handler::Unit(rw::sync16)),
    op(&[0x93, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], WRITE, LONG, Handler::Unit(rw::write_same16)),
    sa(&[0x9E, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x10, MEDIUM, QUICK, Handler::Unit(inquiry::read_capacity16)),
    sa(&[0x9E, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x04], 0x12, READ, MOVE, Handler::Unit(lba_status::get)),
    op(&[0xA0, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], ALWAYS, QUICK, Handler::Any(lun::report_luns)),
    sa(&[0xA3, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x0A, GROUPS, QUICK, Handler::Unit(alua::report)),
    sa(&[0xA3, 0x1F, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x0C, REPORT, QUICK, Handler::Unit(supported::operation_codes)),
    sa(&[0xA3, 0x1F, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x0D, REPORT, QUICK, Handler::Unit(supported::task_management)),
    sa(&[0xA4, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], 0x0A, SET_GROUPS, QUICK, Handler::Unit(alua::set)),
    op(&[0xA8, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], READ, MOVE, Handler::Unit(rw::read12)),
    op(&[0xAA, 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], WRITE, MOVE, Handler::Unit(rw::write12)),
    op(&[0xAE, 0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], WRITE, MOVE, Handler::Unit(rw::write_verify12)),
    op(&[0xAF, 0xF6, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], READ, LONG, Handler::Unit(rw::verify12)),
    op(&[0xB7, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0x04], READ, QUICK, Handler::Unit(diagnostic::defects12)),
];

/// The place of each operation code's first entry in [`TABLE`], or `NOWHERE`.
static FIRST: [u8; 256] = first();
const NOWHERE: u8 = 0xFF;

const fn first() -> [u8; 256] {
    let mut map = [NOWHERE; 256];
    let mut i = TABLE.len();
    while i > 0 {
        i -= 1;
        map[TABLE[i].code as usize] = i as u8;
    }
    map
}

/// All entries with this operation code that the unit has.
pub(crate) fn with_code(code: u8, unit: Option<&Unit>) -> impl Iterator<Item = &'static Opcode> {
    let first = usize::from(FIRST[usize::from(code)]);
    let rest = TABLE.get(first..).unwrap_or_default();
    rest.iter().take_while(move |o| o.code == code).filter(move |o| o.available(unit))
}

/// Finds the entry of a command.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB for an unknown service action.
pub(crate) fn find(cdb: &Cdb, unit: Option<&Unit>) -> Result<&'static Opcode, Sense> {
    let mut candidates = with_code(cdb.opcode(), unit);
    let Some(first) = candidates.next() else {
        return Err(Sense::illegal(Code::INVALID_OPCODE));
    };
    let Some(sa) = first.service_action else { return Ok(first) };
    if sa == cdb.service_action() {
        return Ok(first);
    }
    candidates
        .find(|o| o.service_action == Some(cdb.service_action()))
        .ok_or(Sense::invalid_cdb(1, 4))
}
