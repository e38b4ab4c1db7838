//! From a command block to a task: the checks that all commands share, in SAM-5's order.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::action::{Action, CommandIn, ParameterKind, Parameters, Reply, Task, Transfer};
use crate::cdb::Cdb;
use crate::copy::{self, extended, rod};
use crate::nexus::Nexus;
use crate::opcodes::{self, Handler, Needs, Opcode};
use crate::reserve::Guard;
use crate::sense::{Code, Key, Sense};
use crate::unit::{MAX_PARAMETER_LIST, Target, Unit};

/// What a command sees while it is decoded.
pub(crate) struct Cx<'a> {
    pub target: &'a Target,
    pub unit: Option<&'a Unit>,
    pub nexus: Option<&'a mut Nexus>,
    pub command: &'a CommandIn<'a>,
    pub cdb: Cdb,
}

impl Cx<'_> {
    /// GOOD with Data-In, cut to the allocation length.
    pub fn data_in(&self, mut data: Vec<u8>, allocation: u32) -> Task {
        data.truncate(allocation as usize);
        Task::reply(Reply::data(data))
    }

    /// Fetches a parameter list of `len` bytes. Fewer than `least`, more than lunet fetches, or more than the
    /// initiator means to send is PARAMETER LIST LENGTH ERROR.
    pub fn parameter_list(&self, kind: ParameterKind, len: u32, least: u32) -> Task {
        let fits = (least..=MAX_PARAMETER_LIST).contains(&len) && self.command.expects_write >= len;
        let action = if fits {
            Action::Parameters(Parameters { kind, len })
        } else {
            Action::Complete(Reply::check(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR)))
        };
        Task { action, transfer: Transfer { data_in: 0, data_out: u64::from(len) } }
    }

    /// The same for a list that may be left out: a length of 0 moves nothing, which is no error.
    pub fn optional_list(&self, kind: ParameterKind, len: u32, least: u32) -> Task {
        match len {
            0 => Task::reply(Reply::GOOD),
            _ => self.parameter_list(kind, len, least),
        }
    }
}

/// What becomes of a command: a task, or CHECK CONDITION.
pub(crate) type Outcome = Result<Task, Sense>;

/// Decodes and checks a command. `unit` is `None` if the LUN names no logical unit, `nexus` is the
/// state of this initiator at this unit. Reads and writes allocate nothing.
pub fn execute(
    target: &Target,
    unit: Option<&Unit>,
    nexus: Option<&mut Nexus>,
    command: &CommandIn<'_>,
) -> Task {
    let mut cx = Cx { target, unit, nexus, command, cdb: Cdb::new(command.cdb) };
    run(&mut cx).unwrap_or_else(Task::check)
}

fn run(cx: &mut Cx<'_>) -> Outcome {
    let opcode = opcodes::find(&cx.cdb, cx.unit);
    // The order of SAM-5 5.3.3: a reset that was not reported yet, a reservation in the way, any
    // other unit attention.
    if opcode.is_ok_and(|opcode| conflicts(cx, opcode)) {
        return Ok(Task::reply(Reply::CONFLICT));
    }
    // A unit attention comes before everything but the three commands that must always work
    // (SAM-5 5.14.4).
    let exempt = matches!(opcode, Ok(o) if o.needs.contains(Needs::NOTHING));
    if !exempt {
        if let Some(nexus) = cx.nexus.as_deref_mut().filter(|n| n.attention_pending()) {
            if let Some(sense) = nexus.take_sense() {
                return Err(sense);
            }
        }
    }
    let unit = match (opcode, cx.unit) {
        (Ok(Opcode { handler: Handler::Any(handler), .. }), _) => {
            check_control(cx, opcode?)?;
            return handler(cx);
        }
        (_, None) => return Err(Sense::illegal(Code::LUN_NOT_SUPPORTED)),
        (_, Some(unit)) => unit,
    };
    let opcode = opcode?;
    check_control(cx, opcode)?;
    let access = unit.state.access.get(cx.target.group);
    if let Some(sense) = access.sense().filter(|_| !access.allows(&cx.cdb)) {
        return Err(sense);
    }
    unit.serve(opcode.needs)?;
    if opcode.needs.contains(Needs::WRITABLE) && unit.read_only() {
        return Err(Sense::new(Key::DataProtect, Code::WRITE_PROTECTED));
    }
    match opcode.handler {
        Handler::Unit(handler) => handler(unit, cx),
        Handler::Any(handler) => handler(cx),
    }
}

/// True if a reservation of another nexus is in the way.
fn conflicts(cx: &Cx<'_>, opcode: &Opcode) -> bool {
    let Some(nexus) = cx.nexus.as_deref() else { return false };
    let guard = match opcode.guard {
        // START = 1 and POWER CONDITION = 0 (SBC-4 table 15).
        Guard::Power if cx.cdb.byte(4) & 0xF1 == 0x01 => Guard::Status,
        Guard::Prevent if !cx.cdb.flag(4, 0x03) => Guard::Free,
        guard => guard,
    };
    !guard.admits(nexus.access()) && !nexus.reset_pending()
}

/// The command block must be whole, and NACA zero: lunet has no ACA (NORMACA is 0, SAM-5 5.2).
fn check_control(cx: &Cx<'_>, opcode: &Opcode) -> Result<(), Sense> {
    let len = opcode.len();
    if cx.command.cdb.len() < len {
        return Err(Sense::invalid_cdb(cx.command.cdb.len() as u16, 7));
    }
    cx.cdb.must_be_zero(len - 1, 0x04)
}

/// Decodes the parameter list that [`Action::Parameters`] asked for. `data` holds what the
/// initiator sent of it, perhaps less than was asked for.
pub fn parameters(unit: &Unit, parameters: Parameters, data: &[u8]) -> Action {
    let asked = parameters.len as usize;
    if data.len() < asked {
        return Action::Complete(Reply::check(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR)));
    }
    let result = match parameters.kind {
        ParameterKind::Unmap => crate::thin::parse_unmap(unit, &data[..asked]),
        ParameterKind::ModeSelect6 => crate::mode_select::parse(unit, false, &data[..asked]),
        ParameterKind::ModeSelect10 => crate::mode_select::parse(unit, true, &data[..asked]),
        ParameterKind::SetTargetPortGroups => crate::alua::parse(&data[..asked]),
        ParameterKind::PersistentReserveOut { action, scope_and_kind } => {
            crate::reserve::parse(action, scope_and_kind, &data[..asked])
        }
        ParameterKind::Overwrite { immediate, restricted } => {
            crate::sanitize::parse(unit, (immediate, restricted), &data[..asked])
        }
        ParameterKind::FormatUnit { long } => crate::sanitize::parse_format(long, &data[..asked]),
        ParameterKind::ExtendedCopy { long } => extended::parse(long, &data[..asked])
            .map(|copy| Action::Copy(copy::Request::Extended(Box::new(copy)))),
        ParameterKind::PopulateToken { list } => rod::populate(unit, list, &data[..asked])
            .map(|populate| Action::Copy(copy::Request::Populate(populate))),
        ParameterKind::WriteUsingToken { list } => rod::write_using(unit, list, &data[..asked])
            .map(|write| Action::Copy(copy::Request::WriteUsing(Box::new(write)))),
    };
    result.unwrap_or_else(|sense| Action::Complete(Reply::check(sense)))
}
