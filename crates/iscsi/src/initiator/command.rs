//! Sending SCSI commands.

use super::task::{CommandTask, Task};
use super::tx::{Body, Burst};
use super::{Command, Connection, Data, Refused, SubmitError, Tag, Transmit, Unsolicited};
use crate::iser::{Header, Remote};
use crate::pdu::{
    FINAL, IMMEDIATE, Opcode, READ, RESERVED_TAG, ScsiCommand, U24, WRITE, Wire, write_extended_cdb,
};
use alloc::vec::Vec;

/// How the data of a write starts out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Opening {
    /// Bytes in the command itself.
    immediate: usize,
    /// Where the unsolicited Data-Out ends; equals `immediate` when there is none.
    unsolicited: usize,
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Connection<R, W> {
    /// Sends a command. It ends with one [`Event::Finished`](super::Event::Finished).
    pub fn submit<T: Transmit<W>>(
        &mut self,
        command: Command<'_, R, W>,
        tx: &mut T,
    ) -> Result<Tag, Refused<R, W>> {
        self.submit_rdma(command, None, tx)
    }

    /// Sends a command whose data is in `memory`, which the RDMA device lets the target reach from
    /// its first byte to its last: read it, for a write, or write it. A command that moves nothing
    /// but what it carries itself needs none. The memory may be used again when the command ended;
    /// a Send that took its steering tag back has said so.
    pub fn submit_rdma<T: Transmit<W>>(
        &mut self,
        mut command: Command<'_, R, W>,
        memory: Option<Remote>,
        tx: &mut T,
    ) -> Result<Tag, Refused<R, W>> {
        let checked = self.check(&mut command).and_then(|(expected, ahs)| {
            let (opening, opened) = self.open(&command, expected, memory)?;
            Ok((expected, ahs, opening, opened))
        });
        match checked {
            Ok((expected, ahs, opening, opened)) => {
                Ok(self.send_command(command, (expected, opening, opened), &ahs, tx))
            }
            Err(error) => Err(Refused { error, data: command.data }),
        }
    }

    /// The Expected Data Transfer Length and the additional header segments, if the command can be
    /// sent now.
    fn check(&self, command: &mut Command<'_, R, W>) -> Result<(u32, Vec<u8>), SubmitError> {
        self.check_ready()?;
        if self.options.target_name.is_none() {
            return Err(SubmitError::DiscoverySession);
        }
        if !command.immediate && self.sequence.window() == 0 {
            return Err(SubmitError::WindowClosed);
        }
        let mut ahs = Vec::new();
        let fits = match command.cdb.get(16..) {
            Some(rest) if !rest.is_empty() => write_extended_cdb(&mut ahs, rest),
            _ => !command.cdb.is_empty(),
        };
        let expected = match &mut command.data {
            Data::None => 0,
            Data::Read(buf) => buf.as_mut().len(),
            Data::Discard(len) => *len as usize,
            Data::Write(data) => data.as_ref().len(),
        };
        match u32::try_from(expected) {
            Ok(expected) if fits => Ok((expected, ahs)),
            _ => Err(SubmitError::TooLong),
        }
    }

    fn send_command<T: Transmit<W>>(
        &mut self,
        command: Command<'_, R, W>,
        (expected, opening, opened): (u32, Opening, Header),
        ahs: &[u8],
        tx: &mut T,
    ) -> Tag {
        let current = self.sequence.cmd_sn();
        let cmd_sn = match command.immediate {
            true => current,
            false => self.sequence.take_cmd_sn().unwrap_or(current),
        };
        let mut pdu = command_pdu(&command, expected, opening);
        pdu.ahs_words = (ahs.len() / 4) as u8;
        pdu.cmd_sn = cmd_sn.into();
        pdu.exp_stat_sn = self.sequence.exp_stat_sn().into();
        let task = CommandTask {
            token: command.token,
            lun: command.lun,
            cmd_sn,
            immediate: command.immediate,
            reads: matches!(command.data, Data::Read(_) | Data::Discard(_)),
            expected,
            data: command.data,
            moved: opening.unsolicited as u32,
            sequence: 0,
            next_sn: 0,
            stag: opened.read.or(opened.write).map(|memory| memory.stag),
            unexpected: self.unannounced(command.immediate, opening),
        };
        let tag = self.tasks.insert(Task::Command(task));
        pdu.itt = tag.itt();
        self.transmit_command(tag, &pdu, ahs, (opening, opened), tx);
        tag
    }

    fn transmit_command<T: Transmit<W>>(
        &self,
        tag: Tag,
        pdu: &ScsiCommand,
        ahs: &[u8],
        (opening, opened): (Opening, Header),
        tx: &mut T,
    ) {
        let Some(Task::Command(CommandTask { data: Data::Write(data), lun, .. })) =
            self.tasks.get(tag)
        else {
            self.framing.opening(opened, pdu.as_bhs(), ahs, Body::Bytes(&[]), tx);
            return;
        };
        let body = Body::Slice(data, 0..opening.immediate);
        self.framing.opening(opened, pdu.as_bhs(), ahs, body, tx);
        let burst = Burst {
            lun: *lun,
            itt: tag.number(),
            ttt: RESERVED_TAG,
            exp_stat_sn: self.sequence.exp_stat_sn(),
            segment: self.target_segment(),
        };
        burst.send(self.framing, data, opening.immediate..opening.unsolicited, tx);
    }

    /// What a command carries itself, and what it opens to the target.
    fn open(
        &self,
        command: &Command<'_, R, W>,
        expected: u32,
        memory: Option<Remote>,
    ) -> Result<(Opening, Header), SubmitError> {
        let mut opening = match &command.data {
            Data::Write(_) => self.opening(expected as usize),
            Data::None | Data::Read(_) | Data::Discard(_) => Opening::default(),
        };
        let mut opened = Header::default();
        if !self.framing.rdma {
            return Ok((opening, opened));
        }
        let immediate = u32::from(command.immediate);
        let data_out = self.unannounced(command.immediate, opening) - immediate;
        // A part of the credits is not for data: an abort must get through.
        let reserve = self.negotiated.target_max_unexpected / 4;
        if data_out > 0 && self.check_credit(immediate + data_out + reserve).is_err() {
            // Without Data-Out of its own accord; the target fetches the rest.
            opening.unsolicited = opening.immediate;
        }
        self.check_credit(self.unannounced(command.immediate, opening))?;
        let carried = opening.unsolicited as u32;
        if expected > carried {
            // The memory of a write begins where the target has to fetch from.
            let memory = memory.ok_or(SubmitError::NotRegistered)?.at(carried);
            match command.data {
                Data::Write(_) => opened.write = Some(memory),
                Data::None | Data::Read(_) | Data::Discard(_) => opened.read = Some(memory),
            }
        }
        Ok((opening, opened))
    }

    /// Unannounced PDUs that a command consists of; they count over RDMA.
    fn unannounced(&self, immediate: bool, opening: Opening) -> u32 {
        if !self.framing.rdma {
            return 0;
        }
        let data_out = opening.unsolicited - opening.immediate;
        u32::from(immediate) + data_out.div_ceil(self.target_segment()) as u32
    }

    /// How much of a write goes without an R2T (RFC 7143 sections 13.10, 13.11 and 13.14).
    fn opening(&self, len: usize) -> Opening {
        let (separate, immediate) = match self.options.unsolicited {
            Unsolicited::Full => (true, true),
            Unsolicited::ImmediateOnly => (false, true),
            Unsolicited::SeparateOnly => (true, false),
            Unsolicited::Nothing => (false, false),
        };
        let first_burst = len.min(self.negotiated.first_burst_length as usize);
        let immediate = match immediate && self.negotiated.immediate_data {
            true => first_burst.min(self.target_segment()),
            false => 0,
        };
        let unsolicited = match separate && !self.negotiated.initial_r2t {
            true => first_burst,
            false => immediate,
        };
        Opening { immediate, unsolicited }
    }

    /// Longest data segment that the target takes, in bytes.
    pub(super) fn target_segment(&self) -> usize {
        self.negotiated.target_max_recv_data_segment_length as usize
    }
}

/// The header of a command, without its numbers.
fn command_pdu<R, W>(command: &Command<'_, R, W>, expected: u32, opening: Opening) -> ScsiCommand {
    let direction = match command.data {
        Data::None => 0,
        Data::Read(_) | Data::Discard(_) => READ,
        Data::Write(_) => WRITE,
    };
    let complete = if opening.unsolicited == opening.immediate { FINAL } else { 0 };
    let mut cdb = [0; 16];
    let head = command.cdb.len().min(16);
    cdb[..head].copy_from_slice(&command.cdb[..head]);
    ScsiCommand {
        opcode: Opcode::ScsiCommand.code() | if command.immediate { IMMEDIATE } else { 0 },
        flags: complete | direction | command.attribute.code(),
        data_len: U24::new(opening.immediate as u32),
        lun: command.lun.into(),
        expected_len: expected.into(),
        cdb,
        ..Default::default()
    }
}
