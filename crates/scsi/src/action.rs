//! What a command asks for.

use alloc::vec::Vec;

use lunet_block::BlockRange;

use crate::alua;
use crate::copy;
use crate::reserve::Request;
use crate::sanitize::Sanitize;
use crate::sense::{Code, Sense};
use crate::state::Modes;

/// Status codes (SAM-5 5.3).
pub mod status {
    /// The command succeeded.
    pub const GOOD: u8 = 0x00;
    /// The command failed, or has something to say: sense data goes with it.
    pub const CHECK_CONDITION: u8 = 0x02;
    /// PRE-FETCH: all blocks fit into the cache.
    pub const CONDITION_MET: u8 = 0x04;
    /// The logical unit cannot take the command now.
    pub const BUSY: u8 = 0x08;
    /// A reservation of another initiator is in the way.
    pub const RESERVATION_CONFLICT: u8 = 0x18;
    /// No room for another command.
    pub const TASK_SET_FULL: u8 = 0x28;
    /// The command was aborted by another initiator.
    pub const TASK_ABORTED: u8 = 0x40;
}

/// A command as the transport delivers it.
#[derive(Clone, Copy, Debug)]
pub struct CommandIn<'a> {
    /// The command descriptor block; iSCSI always hands over 16 bytes or more.
    pub cdb: &'a [u8],
    /// Bytes of Data-In that the initiator has room for.
    pub expects_read: u32,
    /// Bytes of Data-Out that the initiator has to send.
    pub expects_write: u32,
}

/// The answer of [`execute`](crate::execute).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What to do.
    pub action: Action,
    /// How many bytes the command block asks to move, whatever the initiator expects: the
    /// difference to what it expects is the residual count (RFC 7143 11.4.5).
    pub transfer: Transfer,
}

/// Bytes to move in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// To the initiator.
    pub data_in: u64,
    /// From the initiator.
    pub data_out: u64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// One of [`status`].
    pub status: u8,
    /// Data-In, already cut to the allocation length.
    pub data: Vec<u8>,
    /// With CHECK CONDITION.
    pub sense: Option<Sense>,
}

impl Reply {
    /// GOOD without data.
    pub const GOOD: Self = Self { status: status::GOOD, data: Vec::new(), sense: None };

    /// GOOD with Data-In.
    pub const fn data(data: Vec<u8>) -> Self {
        Self { status: status::GOOD, data, sense: None }
    }

    /// RESERVATION CONFLICT.
    pub const CONFLICT: Self =
        Self { status: status::RESERVATION_CONFLICT, data: Vec::new(), sense: None };

    /// CHECK CONDITION.
    pub const fn check(sense: Sense) -> Self {
        Self { status: status::CHECK_CONDITION, data: Vec::new(), sense: Some(sense) }
    }
}

/// How data is checked against the medium (BYTCHK, SBC-4 5.32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The blocks must be readable; no data is compared.
    Medium,
    /// The blocks must equal the Data-Out, byte for byte.
    Compare,
    /// Each block must equal the one block of Data-Out.
    CompareOneBlock,
}

/// What WRITE SAME writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSameSource {
    /// The one block that comes as Data-Out.
    DataOut,
    /// Zeroes, and no Data-Out (NDOB).
    Zeroes,
}

/// What becomes of a unit by START STOP UNIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerChange {
    /// The active power condition, started.
    Active,
    /// The idle_a power condition: the next access to the medium ends it.
    Idle,
    /// The standby_z power condition: the next access to the medium ends it.
    Standby,
    /// Not ready until it is started.
    Stopped,
    /// Without medium. Refused while any nexus
    /// [prevents](crate::reserve::Seats::removal_prevented) that.
    Eject,
    /// With its medium again, started; prevented by nobody (SPC-5 6.16: what is prevented is the
    /// removal). If there was none, all other nexuses are told NOT READY TO READY CHANGE.
    Load,
}

/// What START STOP UNIT asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Power {
    /// What to do, with [`UnitState::change_power`](crate::UnitState::change_power).
    pub change: PowerChange,
    /// Flush first.
    pub flush: bool,
    /// Answer before it is done.
    pub immediate: bool,
}

/// A command that reads and writes its range with no other command in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// COMPARE AND WRITE: the first half of the Data-Out is compared with the range; if it is equal,
    /// the second half is written, else MISCOMPARE names the first byte that differs.
    CompareAndWrite,
    /// ORWRITE: the range becomes the bitwise OR of itself and the Data-Out.
    OrWrite,
}

/// Parameter lists that come as Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// UNMAP (SBC-4 5.30).
    Unmap,
    /// MODE SELECT (6) (SPC-5 6.11).
    ModeSelect6,
    /// MODE SELECT (10) (SPC-5 6.12).
    ModeSelect10,
    /// SET TARGET PORT GROUPS (SPC-5 6.45).
    SetTargetPortGroups,
    /// PERSISTENT RESERVE OUT (SPC-5 6.15).
    PersistentReserveOut {
        /// SERVICE ACTION.
        action: u8,
        /// SCOPE and TYPE, 0 where the service action has no use for them.
        scope_and_kind: u8,
    },
    /// SANITIZE with the OVERWRITE service action (SBC-4 5.24.2.2).
    Overwrite {
        /// Answer before it is done.
        immediate: bool,
        /// If it fails, EXIT FAILURE MODE is not enough.
        restricted: bool,
    },
    /// FORMAT UNIT (SBC-4 5.4): its header.
    FormatUnit {
        /// LONGLIST: the header has eight bytes.
        long: bool,
    },
    /// EXTENDED COPY (SPC-5 6.4, 6.5).
    ExtendedCopy {
        /// The list identifier has four bytes.
        long: bool,
    },
    /// POPULATE TOKEN (SBC-4 5.11).
    PopulateToken {
        /// LIST IDENTIFIER.
        list: u32,
    },
    /// WRITE USING TOKEN (SBC-4 5.52).
    WriteUsingToken {
        /// LIST IDENTIFIER.
        list: u32,
    },
}

/// A parameter list to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// What it is for.
    pub kind: ParameterKind,
    /// How many bytes to fetch, never 0; at most [`MAX_PARAMETER_LIST`](crate::unit::MAX_PARAMETER_LIST).
    pub len: u32,
}

/// What a command asks for. Ranges are never empty and lie on the volume. Where the initiator
/// expects to move less than the command block says, they are already cut to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing is left to do but to answer.
    Complete(Reply),
    /// Read and send. If the initiator expects fewer bytes than the range holds (only when that is
    /// not a multiple of the block size), send as many as it expects.
    Read {
        /// Where.
        range: BlockRange,
        /// What was written there is on stable storage first.
        fua: bool,
    },
    /// Fetch Data-Out (`range` in bytes) and write it.
    Write {
        /// Where.
        range: BlockRange,
        /// The data is on stable storage before the answer.
        fua: bool,
        /// WRITE AND VERIFY: then check the blocks. Never `CompareOneBlock`.
        then_verify: Option<Check>,
    },
    /// Read and check. Data-Out is `range` in bytes, one block, or none, as `check` says.
    Verify {
        /// Where.
        range: BlockRange,
        /// How.
        check: Check,
    },
    /// Read ahead. GOOD is the right answer where there is no cache to fill.
    Prefetch {
        /// Where.
        range: BlockRange,
    },
    /// Make all acknowledged writes to the range stable; a backend flushes the whole volume.
    Flush {
        /// Where.
        range: BlockRange,
        /// Answer before it is done.
        immediate: bool,
    },
    /// Write one block over and over.
    WriteSame {
        /// Where.
        range: BlockRange,
        /// What.
        source: WriteSameSource,
        /// Give the space back if the block is all zeroes; else write it (SBC-4 5.50, LBPRZ = 1).
        unmap: bool,
    },
    /// Fetch Data-Out in full (`range` in bytes, twice that for COMPARE AND WRITE), then do this while no
    /// other command touches the range.
    Exclusive {
        /// What.
        what: Exclusive,
        /// Where.
        range: BlockRange,
        /// What is written is on stable storage before the answer.
        fua: bool,
    },
    /// Make all data unreadable; see [`UnitState`](crate::UnitState) for what others see of it.
    Sanitize(Sanitize),
    /// Fetch a parameter list, then call [`parameters`](crate::parameters).
    Parameters(Parameters),
    /// Give the space of these ranges back; they read as zeroes afterwards. Not empty.
    Unmap(Vec<BlockRange>),
    /// Look which of these blocks are mapped, and answer with
    /// [`lba_status::answer`](crate::lba_status::answer), cut to the allocation length.
    LbaStatus {
        /// Where: up to the end of the volume.
        range: BlockRange,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// [Carry this out](Request::execute) on the volume's reservations.
    Reservation(Request),
    /// Carry this out on the target port groups that the unit has in
    /// [`Target::groups`](crate::Target::groups), with
    /// [`PortGroups::execute`](crate::alua::PortGroups::execute).
    PortGroups(alua::Request),
    /// Set the mode parameters, with [`UnitState::set_modes`](crate::UnitState::set_modes). If that
    /// changes anything, all other nexuses are told MODE PARAMETERS CHANGED. If it switches the write
    /// cache off, a flush must follow.
    Modes(Modes),
    /// Copy between logical units, or tell of it.
    Copy(copy::Request),
    /// Change the unit's power condition, or take its medium out or in.
    Power(Power),
    /// The medium of the unit may (false) or may not (true) be ejected, says this nexus; tell
    /// [`Seats::prevent_removal`](crate::reserve::Seats::prevent_removal).
    PreventRemoval(bool),
}

impl Task {
    /// An answer without Data-In or Data-Out beyond the reply's own.
    pub fn reply(reply: Reply) -> Self {
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        Self { action: Action::Complete(reply), transfer }
    }

    /// CHECK CONDITION.
    pub fn check(sense: Sense) -> Self {
        Self::reply(Reply::check(sense))
    }

    /// The initiator sends another amount of data than the command needs, which is `data_out` bytes:
    /// none of it is used (FCP-4 9.4.2: INVALID FIELD IN COMMAND INFORMATION UNIT).
    pub fn wrong_length(data_out: u64) -> Self {
        let sense = Sense::illegal(Code::INVALID_FIELD_IN_INFORMATION_UNIT);
        let action = Action::Complete(Reply::check(sense));
        Self { action, transfer: Transfer { data_in: 0, data_out } }
    }

    /// An action that moves nothing.
    pub fn still(action: Action) -> Self {
        Self { action, transfer: Transfer::default() }
    }
}
