//! PERSISTENT RESERVE IN and OUT of a failover group's initiators: its owner answers them, through the group's thread. And what
//! the owner keeps in the group's record, of MODE SELECT and SANITIZE.

use std::sync::Arc;

use lunet_gateway::Record;
use lunet_scsi::reserve::{FAMILY, Request};
use lunet_scsi::{Code, Modes, ParameterKind, Reply, Sanitation, Sense, Unit, status};
use lunet_volume::{Kind, OperationId, VolumeId};

use super::gate::Held;
use super::task::{Job, Owner};
use super::{Engine, respond};
use crate::connection::{Conn, Conns};
use crate::group::{
    Body, GroupRequest, Keep, Kept, RelayNews, Relays, Said, TakesRequests, naa_of, report,
};
use lunet_server::conn::{ConnId, Phase};

/// State of [`Job::Forwarded`].
pub struct Forwarded {
    /// What it is answered by.
    ticket: u64,
    what: What,
}

enum What {
    Change,
    Report(Request),
    /// Mode parameters are in force when it is answered. `cached`: they had a write cache before.
    Modes {
        cached: bool,
    },
}

impl Engine {
    /// Who takes requests on reservations that a connection brings.
    fn takes_requests(&self, conn: &Conn) -> Option<TakesRequests> {
        let gated = conn.front.session.as_ref()?.gated.as_ref()?;
        self.groups.get(gated.group)?.takes.clone()
    }

    /// Where commands of a connection are passed on to, and where their answers come.
    pub(super) fn relays_of(&self, conn: &Conn) -> Option<(Arc<Relays>, RelayNews)> {
        let gated = conn.front.session.as_ref()?.gated.as_ref()?;
        let group = self.groups.get(gated.group)?;
        Some((group.relays.clone()?, group.news.clone()))
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
        command.job = Job::Forwarded(Forwarded { ticket, what: What::Report(request.clone()) });
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
                let forwarded = Forwarded { ticket, what: What::Change };
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
        let Some(id) = self.exec.operations.find(|task| waits(&task.command.job)) else {
            self.mark_kept(conns, ticket, &said);
            return None;
        };
        let Owner { slot, tag } = self.exec.operations[id].command.owner?;
        let conn = conns.get_mut(slot)?;
        let (code, sense) = match said {
            Said::Nothing => return Some(slot),
            Said::Status(status::GOOD, _) if self.is_modes(id) => {
                self.modes_kept(conn, id);
                return None;
            }
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

    /// Mode parameters of a group's volume have come: they are kept in the record, and take effect with that. False if it is
    /// none.
    pub(super) fn hand_over_modes(&mut self, conn: &Conn, id: OperationId, modes: Modes) -> bool {
        let Some(takes) = self.takes_requests(conn) else { return false };
        let Some(session) = &conn.front.session else { return false };
        let nexus = session.id.registrant().name_in(FAMILY).unwrap_or_default().to_vec();
        let slot = self.exec.operations[id].requests.volume;
        let unit = &self.exec.storage.volumes[slot].core.face.unit;
        let cached = unit.state.modes().write_cache;
        let keep = Keep { naa: naa_of(unit), what: Kept::Modes(modes, nexus) };
        let ticket = self.core.next_serial();
        let forwarded = Forwarded { ticket, what: What::Modes { cached } };
        self.exec.operations[id].command.job = Job::Forwarded(forwarded);
        takes(GroupRequest::Reserve(ticket, keep.encode()));
        true
    }

    fn is_modes(&self, id: OperationId) -> bool {
        let job = &self.exec.operations[id].command.job;
        matches!(job, Job::Forwarded(Forwarded { what: What::Modes { .. }, .. }))
    }

    /// They have taken effect.
    fn modes_kept(&mut self, conn: &mut Conn, id: OperationId) {
        let job = std::mem::replace(&mut self.exec.operations[id].command.job, Job::Storage);
        let cached =
            matches!(job, Job::Forwarded(Forwarded { what: What::Modes { cached: true }, .. }));
        self.flush_behind_modes(id, cached);
        self.pump(conn, id);
    }

    /// Has the mark of SANITIZE or FORMAT UNIT kept in the record of the volume's group. False if it is in none.
    pub(super) fn hand_over_mark(
        &self,
        (slot, unit): (VolumeId, &Unit),
        stands: Sanitation,
        ticket: u64,
    ) -> bool {
        let group = self.groups.of_volume(&self.world, slot).and_then(|id| self.groups.get(id));
        let Some(takes) = group.and_then(|group| group.takes.as_ref()) else { return false };
        let keep = Keep { naa: naa_of(unit), what: Kept::Sanitation(stands) };
        takes(GroupRequest::Reserve(ticket, keep.encode()));
        true
    }

    /// The group's thread has answered, and no command waits for that: it was aborted, is one of another shard, or a mark is
    /// kept, or is to be tried again.
    fn mark_kept(&mut self, conns: &mut Conns, ticket: u64, said: &Said) {
        let marks = |job: &Job| matches!(job, Job::Sanitize(job) if job.ticket == Some(ticket));
        let Some(id) = self.exec.operations.find(|task| marks(&task.command.job)) else {
            return self.reset_kept(ticket, said);
        };
        match said {
            Said::Status(status::GOOD, _) => self.marked(conns, id, true),
            Said::Status(..) => self.mark_later(id),
            // This gateway is about to give the operation up.
            Said::Record(_) | Said::Nothing => {}
        }
    }

    /// A reset has made the mode parameters of a volume the default ones: so they are in the record of its group. Nobody waits
    /// for that.
    pub fn modes_were_reset(&mut self, slot: VolumeId) {
        let Some(id) = self.groups.of_volume(&self.world, slot) else { return };
        let Some(group) = self.groups.get(id).filter(|group| group.gate.is_open()) else { return };
        let Some(takes) = group.takes.clone() else { return };
        let unit = &self.exec.storage.volumes[slot].core.face.unit;
        let keep = Keep { naa: naa_of(unit), what: Kept::Modes(unit.state.modes(), Vec::new()) };
        let ticket = self.core.next_serial();
        self.resets.retain(|(_, volume)| *volume != slot);
        self.resets.push((ticket, slot));
        takes(GroupRequest::Reserve(ticket, keep.encode()));
    }

    /// The group's thread has answered one of those. While another change is under way it is asked again, as long as this
    /// gateway owns the group.
    fn reset_kept(&mut self, ticket: u64, said: &Said) {
        let Some(at) = self.resets.iter().position(|(waits, _)| *waits == ticket) else { return };
        let (_, volume) = self.resets.swap_remove(at);
        if matches!(said, Said::Status(code, _) if *code != status::GOOD) {
            self.modes_were_reset(volume);
        }
    }

    /// What a report that waits says by the group's record.
    fn report_by(&self, conn: &Conn, id: OperationId, record: &Record) -> Option<Reply> {
        let task = &self.exec.operations[id];
        let Job::Forwarded(Forwarded { what: What::Report(request), .. }) = &task.command.job
        else {
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
