//! The SCSI device server for direct access block devices (SPC-5, SBC-4, SAM-5), without I/O.
//!
//! A command block goes into [`execute`], a [`Task`] comes out: an answer at once, an operation on
//! blocks for the caller to carry out, or a parameter list to fetch first. The crate has no clock,
//! does no I/O, and allocates nothing for reads and writes.
//!
//! | module | what |
//! |---|---|
//! | `cdb` | reading command descriptor blocks |
//! | `opcodes` | the table of commands: dispatch, and what REPORT SUPPORTED OPERATION CODES says |
//! | [`sense`] | sense data |
//! | [`copy`] | third-party copy |
//! | [`lba_status`] | GET LBA STATUS |
//! | [`lun`] | logical unit numbers, REPORT LUNS |
//! | [`mod@unit`] | what is known of one logical unit |
//! | [`state`] | what commands change of it |
//! | [`nexus`] | what is known of one initiator at one logical unit |
//! | [`alua`] | target port groups and their access states |
//! | [`reserve`] | how SCSI reserves a volume, and who is logged in at a unit |
//! | [`sanitize`] | SANITIZE, FORMAT UNIT |
//! | [`action`] | what a command asks for |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod action;
pub mod alua;
mod cdb;
pub mod copy;
mod designator;
mod diagnostic;
mod execute;
mod inquiry;
pub mod lba_status;
mod log;
pub mod lun;
mod mode;
mod mode_pages;
mod mode_select;
pub mod nexus;
mod opcodes;
mod power;
pub mod reserve;
mod rw;
pub mod sanitize;
pub mod sense;
pub mod state;
mod supported;
mod thin;
pub mod unit;
mod vpd;

pub use action::{
    Action, Check, CommandIn, Exclusive, ParameterKind, Parameters, Power, PowerChange, Reply,
    Task, Transfer, WriteSameSource, status,
};
pub use designator::Designator;
pub use execute::{execute, parameters};
pub use lun::Lun;
pub use nexus::{Attention, Nexus};
pub use sanitize::Sanitize;
pub use sense::{
    Code, CopyFault, FieldPointer, Forwarded, Key, Sense, SenseCodes, SenseData, SenseFormat,
};
pub use state::{Modes, Sanitation, UnitState};
pub use unit::{Identity, Limits, Target, Threshold, Unit};
