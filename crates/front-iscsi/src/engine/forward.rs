//! PERSISTENT RESERVE IN and OUT of a failover group's initiators: its owner answers them, through the group's thread.

use lunet_gateway::Record;
use lunet_scsi::reserve::{FAMILY, Request};
use lunet_scsi::{Code, ParameterKind, Reply, Sense, status};
use lunet_volume::{Kind, OperationId, VolumeId};

use super::gate::Held;
use super::task::{Job, Owner};
use super::{Engine, respond};
use crate::connection::{Conn, Conns};
use crate::group::{Body, GroupRequest, Said, TakesRequests, naa_of, report};
use lunet_server::conn::{ConnId, Phase};

/// State of [`Job::Forwarded`].
pub struct Forwarded {
    /// What it is answered by.
    ticket: u64,
    /// What a report is about.
    report: Option<Request>,
}

impl Engine {
    /// Who takes requests on reservations that a connection brings.
    fn takes_requests(&self, conn: &Conn) -> Option<TakesRequests> {
        let gated = conn.front.session.as_ref()?.gated.as_ref()?;
        self.groups.get(gated.group)?.takes.clone()
    }

    /// Hands a report over. False if it is none of a group.
    pub(super) fn hand_over_report(
        &mut self,
        conn: &mut Conn,
        (owner, lun, volume): (Owner, u16, VolumeId),
        request: &Request,
    ) -> bool {
        let Some(takes) = self.takes_requests(conn) else { return false };
        if !matches!(request, Request::In { .. }) {
            return false;
        }
        let id = self.exec.begin(volume, Kind::Other);
        let ticket = self.core.next_serial();
        let command = &mut self.exec.operations[id].command;
        (command.owner, command.lun) = (Some(owner), lun);
        command.job = Job::Forwarded(Forwarded { ticket, report: Some(request.clone()) });
        conn.front.set_task(owner.tag, Some(id));
        takes(GroupRequest::Report(ticket));
        true
    }

    /// Hands a change over, whose parameter list has come and makes sense. False if it is none of a group.
    pub(super) fn hand_over_change(
        &mut self,
        conn: &Conn,
        id: OperationId,
        (kind, list): (ParameterKind, &[u8]),
    ) -> bool {
        let Some(takes) = self.takes_requests(conn) else { return false };
        let ParameterKind::PersistentReserveOut { action, scope_and_kind } = kind else {
            return false;
        };
        let Some(session) = &conn.front.session else { return false };
        let registrant = session.id.registrant();
        let nexus = registrant.name_in(FAMILY).unwrap_or_default().to_vec();
        let slot = self.exec.operations[id].requests.volume;
        let naa = naa_of(&self.exec.storage.volumes[slot].core.face.unit);
        let body = Body { naa, nexus, action, scope_and_kind, list: list.to_vec() };
        match body.encode() {
            Some(body) => {
                let ticket = self.core.next_serial();
                let forwarded = Forwarded { ticket, report: None };
                self.exec.operations[id].command.job = Job::Forwarded(forwarded);
                takes(GroupRequest::Reserve(ticket, body));
            }
            // More initiators than a message between gateways has room for.
            None => self.end(id, Some(Sense::illegal(Code::PARAMETER_LIST_LENGTH_ERROR))),
        }
        true
    }

    /// The group's thread has answered. Returns the connection that is to be aborted, if nothing can be said.
    pub fn group_answers(&mut self, conns: &mut Conns, ticket: u64, said: Said) -> Option<ConnId> {
        let waits = |job: &Job| matches!(job, Job::Forwarded(it) if it.ticket == ticket);
        // It is a command of another shard, or was aborted meanwhile.
        let id = self.exec.operations.find(|task| waits(&task.command.job))?;
        let Owner { slot, tag } = self.exec.operations[id].command.owner?;
        let conn = conns.get_mut(slot)?;
        let (code, sense) = match said {
            Said::Nothing => return Some(slot),
            Said::Status(code, sense) => (code, sense),
            Said::Record(record) => match self.report_by(conn, id, &record) {
                Some(reply) if reply.status == status::GOOD => {
                    let command = &mut self.exec.operations[id].command;
                    command.transfer.data_in = reply.data.len() as u64;
                    command.data = reply.data;
                    self.end(id, None);
                    self.pump(conn, id);
                    return None;
                }
                Some(reply) => (reply.status, Vec::new()),
                None => (status::BUSY, Vec::new()),
            },
        };
        let transfer = self.exec.operations[id].command.transfer;
        self.exec.remove(id);
        conn.front.set_task(tag, None);
        self.touched.push(slot);
        respond(conn, tag, code, &sense, transfer);
        None
    }

    /// What a report that waits says by the group's record.
    fn report_by(&self, conn: &Conn, id: OperationId, record: &Record) -> Option<Reply> {
        let task = &self.exec.operations[id];
        let Job::Forwarded(Forwarded { report: Some(request), .. }) = &task.command.job else {
            return None;
        };
        let session = conn.front.session.as_ref()?;
        let group = self.groups.get(session.gated.as_ref()?.group)?;
        let ports = group.ports.of_target(&session.id.port.target);
        let unit = &self.exec.storage.volumes[task.requests.volume].core.face.unit;
        report(record, naa_of(unit), request, (&session.id, &ports))
    }

    /// Commands that were held back for a change of reservations go on: they are looked at as if they came now.
    pub fn let_go_held(&mut self, conns: &mut Conns, volume: VolumeId) {
        let all = std::mem::take(&mut self.held).into_iter();
        let (go_on, held): (Vec<Held>, Vec<Held>) = all.partition(|held| held.volume == volume);
        self.held = held;
        for held in go_on {
            let Some(conn) = conns.get_mut(held.slot) else { continue };
            let there = conn.serial == held.connection && conn.phase == Phase::Open;
            if there && conn.front.proto.is_pending(held.command.tag) {
                self.touched.push(held.slot);
                self.command(conn, held.slot, held.command);
            }
        }
    }
}
