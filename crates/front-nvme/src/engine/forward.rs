//! Reservation commands of a failover group's hosts: its owner answers them, through the group's thread.

use lunet_nvme::controller::Command;
use lunet_nvme::status::Status;
use lunet_ring::Buf;
use lunet_server::conn::ConnId;
use lunet_volume::{Face, Kind, OperationId};

use super::Engine;
use super::task::{Job, Owner, fail};
use crate::connection::{Conn, Conns, complete, find, has_room_for_page, send_page};
use crate::group::{Body, GroupRequest, Said, TakesRequests, report};
use crate::reservations::Change;

/// State of [`Job::Forwarded`].
pub struct Forwarded {
    /// What it is answered by.
    ticket: u64,
    /// How long the report is that is asked for; `None`: it is a change.
    report: Option<u32>,
}

impl Forwarded {
    /// True if the owner may have executed it.
    pub const fn is_change(&self) -> bool {
        self.report.is_none()
    }
}

impl<Fc: Face> Engine<Fc> {
    /// Who takes reservation commands that a connection brings.
    pub(super) fn takes_requests(&self, conn: &Conn) -> Option<TakesRequests> {
        self.groups.get(conn.front.gated.as_ref()?.group)?.takes.clone()
    }

    /// Hands a report over, of so many bytes, which makes sense.
    pub(super) fn hand_over_report(
        &mut self,
        conn: &mut Conn,
        (slot, len): (ConnId, u32),
        command: &Command<Buf>,
        takes: &TakesRequests,
    ) {
        let nsid = command.sqe.nsid.get();
        let seen = conn.front.queue.as_mut().and_then(|queue| find(&mut queue.namespaces, nsid));
        let Some(volume) = seen.map(|seen| seen.volume) else { return };
        let id = self.exec.begin_command(volume, Kind::Other, command.arrived);
        let ticket = self.core.next_serial();
        let task = &mut self.exec.operations[id].command;
        (task.nsid, task.owner) = (nsid, Some(Owner { slot, tag: command.tag, second: None }));
        task.job = Job::Forwarded(Forwarded { ticket, report: Some(len) });
        conn.front.set_task(command.tag, Some(id));
        takes(GroupRequest::Report(ticket));
    }

    /// Hands a change over, whose keys have come. False if it is none of a group.
    pub(super) fn hand_over_change(
        &mut self,
        conn: &Conn,
        id: OperationId,
        change: &Change,
    ) -> bool {
        let Some(takes) = self.takes_requests(conn) else { return false };
        let slot = self.exec.operations[id].requests.volume;
        let volume = self.exec.storage.volumes[slot].core.face.designator();
        let change = change.clone();
        let body = volume.and_then(|volume| Body { volume, change }.encode());
        match body {
            Some(body) => {
                let ticket = self.core.next_serial();
                let forwarded = Forwarded { ticket, report: None };
                self.exec.operations[id].command.job = Job::Forwarded(forwarded);
                takes(GroupRequest::Reserve(ticket, body));
            }
            None => fail(&mut self.exec.operations[id], Status::INTERNAL.no_retry()),
        }
        true
    }

    /// The group's thread has answered. Returns the connection that is to be aborted, if nothing can be said.
    pub fn group_answers(&mut self, conns: &mut Conns, ticket: u64, said: Said) -> Option<ConnId> {
        let waits = |job: &Job| matches!(job, Job::Forwarded(it) if it.ticket == ticket);
        // It is a command of another shard, or was aborted meanwhile.
        let id = self.exec.operations.find(|task| waits(&task.command.job))?;
        let Owner { slot, tag, .. } = self.exec.operations[id].command.owner?;
        let conn = conns.get_mut(slot)?;
        let answer = match said {
            Said::Nothing => return Some(slot),
            Said::Status(status) => Err(status),
            Said::Record(record) => {
                let group = conn.front.gated.as_ref().and_then(|it| self.groups.get(it.group));
                let task = &self.exec.operations[id];
                let core = &self.exec.storage.volumes[task.requests.volume].core;
                let name = core.face.designator();
                let found = group.zip(name);
                let page = found.and_then(|(it, name)| report(&record, name, it.members.families));
                let len = match &task.command.job {
                    Job::Forwarded(Forwarded { report: Some(len), .. }) => *len as usize,
                    _ => 0,
                };
                page.map(|page| (page.encode(), len)).ok_or(Status::ANA_TRANSITION)
            }
        };
        self.exec.remove(id);
        conn.front.set_task(tag, None);
        self.touched.push(slot);
        match answer {
            Err(status) => complete(conn, tag, status),
            Ok((_, len)) if !has_room_for_page(conn, len) => {
                complete(conn, tag, super::task::BUSY);
            }
            Ok((mut page, len)) => {
                page.resize(len, 0);
                send_page(conn, tag, page);
            }
        }
        None
    }
}
