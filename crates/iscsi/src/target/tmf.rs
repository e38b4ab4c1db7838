//! Task management (RFC 7143 sections 11.5 and 11.6).

use super::connection::{Connection, Phase};
use super::event::Event;
use super::held::Waiting;
use super::options::MAX_IMMEDIATE;
use super::task::{Kind, Task};
use super::window::{Position, before};
use super::{Cx, Site, Tag, Transmit};
use crate::pdu::{
    self, BasicHeader, Bhs, RejectReason, TmfFunction, TmfRequest, TmfResponse, U32, Wire,
};
use alloc::vec::Vec;

/// What becomes of an ABORT TASK.
enum Abort {
    /// The layer above has the task.
    Running(Tag),
    /// The answer is known.
    Known(TmfResponse),
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Connection<B> {
    /// A task management function request.
    pub(super) fn task_management<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        bhs: &Bhs,
        cx: &mut Cx<'_, S, T>,
    ) {
        self.counters.task_management += 1;
        let pdu = TmfRequest::from_bhs(bhs);
        let immediate = BasicHeader::from_bhs(bhs).immediate();
        let itt = pdu.itt.get();
        let reason = if self.discovery {
            Some(RejectReason::ProtocolError)
        } else if itt == pdu::RESERVED_TAG {
            Some(RejectReason::InvalidPduField)
        } else if self.tasks.find(itt).is_some() {
            Some(RejectReason::TaskInProgress)
        } else if immediate && self.tasks.immediate() >= MAX_IMMEDIATE {
            Some(RejectReason::ImmediateCommandReject)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.counters.protocol_errors += 1;
            return self.reject(reason, bhs, cx.tx);
        }
        let mut referenced = None;
        let function = match TmfFunction::from_code(pdu.flags & 0x7f) {
            None => return self.answer_tmf(itt, TmfResponse::NotSupported, cx.tx),
            Some(TmfFunction::TaskReassign) => {
                return self.answer_tmf(itt, TmfResponse::ReassignNotSupported, cx.tx);
            }
            Some(TmfFunction::AbortTask) => match self.abort_task(pdu, cx) {
                Abort::Known(response) => return self.answer_tmf(itt, response, cx.tx),
                Abort::Running(tag) => {
                    referenced = Some(tag);
                    TmfFunction::AbortTask
                }
            },
            Some(function) => function,
        };
        let (cmd_sn, lun) = (pdu.cmd_sn.get(), pdu.lun.get());
        let tag = self.tasks.insert(Task::new(Kind::Management, itt, cmd_sn, lun, immediate));
        self.tasks.set_ordered(tag);
        cx.events.push(Event::TaskManagement { tag, function, lun, referenced });
    }

    /// Finds the task that is to be aborted (RFC 7143 section 11.6.1).
    fn abort_task<S: Site<Buf = B>, T: Transmit>(
        &mut self,
        pdu: &TmfRequest,
        cx: &mut Cx<'_, S, T>,
    ) -> Abort {
        let itt = pdu.referenced_itt.get();
        if let Some(tag) = self.tasks.find(itt) {
            return match self.tasks.get(tag) {
                Some(task) if task.lun != pdu.lun.get() || task.kind == Kind::Management => {
                    Abort::Known(TmfResponse::TaskDoesNotExist)
                }
                Some(task) if task.kind == Kind::Running => Abort::Running(tag),
                _ => {
                    self.forget(tag);
                    Abort::Known(TmfResponse::Complete)
                }
            };
        }
        // The command was answered already, or was not received. If its number is still to come, it
        // counts as received.
        let cmd_sn = pdu.ref_cmd_sn.get();
        match self.position(cmd_sn, false) {
            position @ (Position::Next | Position::Ahead) if before(cmd_sn, pdu.cmd_sn.get()) => {
                self.take_number(position, cmd_sn, Waiting::Void, cx);
                Abort::Known(TmfResponse::Complete)
            }
            _ => Abort::Known(TmfResponse::TaskDoesNotExist),
        }
    }

    /// The commands of this session that a function of it reaches, of the logical units for which
    /// `hits` holds: those with a CmdSN before its own, and immediate ones that came before it (RFC
    /// 7143 section 4.2.3.2). Commands that were sent after the function are never among them,
    /// whenever it is carried out. A task that is answered already, or waits for RDMA Reads with
    /// its answer, is not either. Empty if the function has been answered.
    pub fn older_than(&self, function: Tag, hits: impl Fn(u64) -> bool) -> Vec<Tag> {
        let Some(by) = self.tasks.get(function) else { return Vec::new() };
        let older = |tag: Tag, task: &Task<B>| {
            let sent_before = if task.immediate {
                before(tag.generation(), function.generation())
            } else {
                before(task.cmd_sn, by.cmd_sn)
            };
            sent_before && matches!(task.kind, Kind::Collecting | Kind::Running) && hits(task.lun)
        };
        self.tasks.iter().filter(|(tag, task)| older(*tag, task)).map(|(tag, _)| tag).collect()
    }

    /// True while a command or function has not been answered or aborted.
    #[must_use]
    pub fn is_pending(&self, tag: Tag) -> bool {
        self.tasks.get(tag).is_some()
    }

    /// True while the layer above has a task, or RDMA keeps an answer back.
    pub(super) fn is_busy(&self) -> bool {
        self.manages() || self.tasks.iter().any(|(_, task)| task.kind != Kind::Collecting)
    }

    /// True while a task management function waits for its answer.
    pub(super) fn manages(&self) -> bool {
        let held = self.mover.as_ref().is_some_and(|mover| !mover.held.is_empty());
        held || self.tasks.iter().any(|(_, task)| task.kind == Kind::Management)
    }

    /// Answers a task management function.
    pub fn respond_tmf<T: Transmit>(&mut self, tag: Tag, response: TmfResponse, tx: &mut T) {
        if self.tasks.get(tag).is_none_or(|task| task.kind != Kind::Management) {
            return;
        }
        if let Some(task) = self.forget(tag).filter(|_| self.phase != Phase::Closed) {
            self.answer_tmf(task.itt, response, tx);
        }
    }

    /// Sends the answer to a task management function. Over RDMA not before the last RDMA Read of
    /// commands that are over has come back: the initiator takes its memory back with the answer.
    pub(super) fn answer_tmf<T: Transmit>(&mut self, itt: u32, response: TmfResponse, tx: &mut T) {
        let now = match &mut self.mover {
            Some(mover) => mover.hold(itt, response),
            None => Some(response),
        };
        let Some(response) = now else { return };
        let n = self.numbers(true);
        let pdu = pdu::TmfResponsePdu {
            flags: pdu::FINAL,
            response: response.code(),
            itt: U32::new(itt),
            stat_sn: n.stat_sn,
            exp_cmd_sn: n.exp_cmd_sn,
            max_cmd_sn: n.max_cmd_sn,
            ..Default::default()
        };
        self.send(&pdu, &[], tx);
    }
}
