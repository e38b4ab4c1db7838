//! Commands on what all nexuses of a volume share: its reservations, its target port groups and its mode
//! parameters.

use lunet_iscsi::target::Tag;
use lunet_scsi::alua;
use lunet_scsi::reserve::{Outcome, Request, Seats};
use lunet_scsi::{Attention, Code, Key, Modes, Reply, Sense, Transfer, status};
use lunet_volume::reserve::Unchanged;
use lunet_volume::{Kind, OperationId, Plain, VolumeId, Work};

use super::Engine;
use super::start::send_reply;
use super::task::{Awaited, Job, Owner, fail};
use crate::connection::{Conn, Conns};
use crate::keeper::{self, Carried, Command};
use crate::marks;
use crate::message::{Asking, Preempted, parts_of_abort};
use crate::reservations::with_seats;

impl Engine {
    /// A command that came without a parameter list: it is answered at once.
    pub(super) fn reservation(
        &mut self,
        conn: &mut Conn,
        (owner, lun, volume): (Owner, u16, VolumeId),
        request: &Request,
    ) {
        if self.hand_over_report(conn, (owner, lun, volume), request) {
            return;
        }
        let Some(seat) = conn.front.seat(lun) else { return };
        let core = &self.exec.storage.volumes[volume].core;
        let asks = |seats: &mut Seats| Some((seats.nexus(seat)?.clone(), seats.ports().to_vec()));
        let Some((nexus, ports)) = with_seats(core, asks) else { return };
        let (reply, _) = core.reservations.change(|state| {
            let Outcome { reply, events } = request.execute(state, &nexus, &ports);
            (reply, events)
        });
        self.exec.storage.volumes[volume].count.record(Kind::Other, 0, 0, reply.sense.is_some());
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        let format = self.exec.storage.volumes[volume].core.face.unit.sense_format();
        send_reply(conn, owner.tag, reply, transfer, format);
    }

    /// The parameter list of PERSISTENT RESERVE OUT has come.
    pub(super) fn reservation_collected(
        &mut self,
        conn: &Conn,
        id: OperationId,
        request: &Request,
    ) {
        let task = &self.exec.operations[id];
        let (Some(seat), Some(session)) = (conn.front.seat(task.command.lun), &conn.front.session)
        else {
            return;
        };
        let Some(owner) = task.command.owner else { return };
        let volume = task.requests.volume;
        let entry = self.exec.storage.volumes[volume].core.clone();
        let ticket = self.core.next_serial();
        let (shard, connection) = (self.number, conn.serial);
        let asking = Asking { shard, ticket, connection, command: owner.tag };
        let nexus = session.id.clone();
        let ports = with_seats(&entry, |seats| seats.ports().to_vec());
        // What is to be kept takes effect when it is stable, not before; and nothing comes in between.
        let (now, events) = entry.reservations.change(|state| {
            let reservations = &entry.reservations;
            let waits = state.activated() || request.persists() || reservations.is_keeping();
            if entry.store.is_some() && waits {
                return (Err(reservations.order()), Vec::new());
            }
            let Outcome { reply, events } = request.execute(state, &nexus, &ports);
            (Ok(reply), events)
        });
        match now {
            Err((order, wanted)) => {
                let (volume, slot, request) = (entry, volume, request.clone());
                let command = Command { volume, slot, nexus, seat, ports, request, asking, order };
                if keeper::keep(&self.core, command) {
                    let awaited = Awaited { ticket, left: 1, order: Some(wanted) };
                    self.exec.operations[id].command.job = Job::Await(awaited);
                } else {
                    self.refuse(id, status::BUSY);
                }
            }
            Ok(reply) if reply.status == status::GOOD => {
                let parts = parts_of_abort(self.core.mailboxes());
                let left = if request.aborts() { parts } else { 0 };
                let awaited = Awaited { ticket, left, order: None };
                self.exec.operations[id].command.job = Job::Await(awaited);
                if request.aborts() {
                    let order = keeper::aborts(&events);
                    let mailboxes = self.core.mailboxes();
                    Preempted::tell(mailboxes, volume, &order, asking);
                    Preempted::tell_others(&entry.reservations, mailboxes, &order, asking);
                }
            }
            Ok(reply) => self.end_with(id, reply),
        }
    }

    /// Ends a command as the device server has answered it.
    fn end_with(&mut self, id: OperationId, reply: Reply) {
        match reply {
            Reply { sense: Some(sense), .. } => self.end(id, Some(sense)),
            Reply { status, .. } => self.refuse(id, status),
        }
    }

    /// The keeper is done with a command.
    pub fn reservation_kept(&mut self, conns: &mut Conns, ticket: u64, result: Carried) {
        let waits = |job: &Job| matches!(job, Job::Await(awaited) if awaited.ticket == ticket);
        // The command may have been aborted meanwhile.
        let Some((id, task)) =
            self.exec.operations.iter_mut().find(|(_, task)| waits(&task.command.job))
        else {
            return;
        };
        match result {
            Carried::Done { aborting } => {
                task.command.job = Job::Await(Awaited { ticket, left: aborting, order: None })
            }
            Carried::Not(Unchanged::Refused(reply)) => self.end_with(id, reply),
            Carried::Not(Unchanged::Busy) => self.refuse(id, status::BUSY),
            Carried::Not(Unchanged::Failed) => {
                let failure = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
                self.end(id, Some(failure));
            }
        }
        if let Some(conn) = self.conn_of(conns, id) {
            self.pump(conn, id);
        }
        self.take_answers(conns);
    }

    /// REPORT TARGET PORT GROUPS.
    pub(super) fn port_groups(
        &mut self,
        conn: &mut Conn,
        (tag, lun, volume): (Tag, u16, VolumeId),
        request: &alua::Request,
    ) {
        let Some(reply) = self.on_port_groups(conn, lun, volume, request) else { return };
        self.exec.storage.volumes[volume].count.record(Kind::Other, 0, 0, reply.sense.is_some());
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        let format = self.exec.storage.volumes[volume].core.face.unit.sense_format();
        send_reply(conn, tag, reply, transfer, format);
    }

    /// The parameter list of SET TARGET PORT GROUPS has come.
    pub(super) fn port_groups_collected(
        &mut self,
        conn: &Conn,
        id: OperationId,
        request: &alua::Request,
    ) {
        let task = &self.exec.operations[id];
        let reply = self.on_port_groups(conn, task.command.lun, task.requests.volume, request);
        self.end(id, reply.and_then(|reply| reply.sense));
    }

    /// Carries a request on target port groups out; whoever did not ask is told what it changed. The lock on
    /// the seats sees to it that there is one at a time.
    fn on_port_groups(
        &self,
        conn: &Conn,
        lun: u16,
        volume: VolumeId,
        request: &alua::Request,
    ) -> Option<Reply> {
        let session = conn.front.session.as_ref()?;
        let gated = session.gated.as_ref();
        if let Some(group) = gated.and_then(|gated| self.groups.get(gated.group)) {
            return Some(match request {
                alua::Request::Report { extended, allocation } => {
                    Reply::data(group.ports.report.report(*extended, *allocation))
                }
                alua::Request::Set(_) => Reply::check(Sense::illegal(Code::INVALID_OPCODE)),
            });
        }
        let (groups, seat) = (&session.scsi.groups, conn.front.seat(lun)?);
        let core = &self.exec.storage.volumes[volume].core;
        let done = with_seats(core, |seats| {
            let done = groups.execute(&core.face.unit.state.access, seats.ports(), request);
            if done.changed {
                seats.attend_others(seat, Attention::AccessStateChanged);
            }
            done
        });
        if done.changed {
            core.reservations.paths_changed();
        }
        Some(done.reply)
    }

    /// The parameter list of MODE SELECT has come. That the write cache is off, or on again, is kept first, takes effect
    /// then, and is answered last; if it cannot be kept, nothing has changed. Until it takes effect others write with
    /// the cache; the flush that follows covers that.
    pub(super) fn set_modes(&mut self, conn: &Conn, id: OperationId, modes: Modes) {
        if self.hand_over_modes(conn, id, modes) {
            return;
        }
        let task = &mut self.local.exec.operations[id];
        let core = self.local.exec.storage.volumes[task.requests.volume].core.clone();
        let before = core.face.unit.state.modes();
        let Some(store) = core.store.clone().filter(|_| before.write_cache != modes.write_cache)
        else {
            core.face.unit.state.set_modes(modes);
            return self.modes_set(conn, id, (before, modes));
        };
        // One at a time for each volume, so that what is kept is what is in force.
        let work = move || {
            let kept = marks::keep_write_cache(&store, modes.write_cache);
            match &kept {
                Ok(()) => drop(core.face.unit.state.set_modes(modes)),
                Err(error) => {
                    tracing::error!(volume = %core.name, %error, "mode parameters cannot be kept");
                }
            }
            kept.is_ok()
        };
        let sent = self.send_away(id, work, move |engine, conn, id, kept| {
            if kept {
                return engine.modes_set(conn, id, (before, modes));
            }
            let sense = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
            engine.end(id, Some(sense));
        });
        if !sent {
            self.refuse(id, status::BUSY);
        }
    }

    /// The mode parameters are set; whoever did not ask for it is told if they are others now.
    fn modes_set(&mut self, conn: &Conn, id: OperationId, (before, modes): (Modes, Modes)) {
        let task = &mut self.local.exec.operations[id];
        let core = &self.local.exec.storage.volumes[task.requests.volume].core;
        if before != modes {
            if let Some(seat) = conn.front.seat(task.command.lun) {
                with_seats(core, |seats| {
                    seats.attend_others(seat, Attention::ModeParametersChanged);
                });
            }
        }
        self.flush_behind_modes(id, before.write_cache);
    }

    /// If the write cache was on and is off now, nobody flushes any more what was written before.
    pub(super) fn flush_behind_modes(&mut self, id: OperationId, cached: bool) {
        let volume = self.exec.operations[id].requests.volume;
        let flushes = cached && self.exec.storage.volumes[volume].core.face.unit.write_through();
        self.set_work(id, if flushes { Work::Plain(Plain::flush()) } else { Work::None });
    }

    /// Ends a command with a status that has no sense data.
    pub(super) fn refuse(&mut self, id: OperationId, status: u8) {
        let task = &mut self.exec.operations[id];
        task.command.refused = Some(status);
        task.fail();
        self.set_work(id, Work::None);
    }

    /// Something that a command waited for is done, or has failed.
    pub fn ticket_done(&mut self, conns: &mut Conns, ticket: u64, done: bool) {
        let marks = |job: &Job| matches!(job, Job::Sanitize(job) if job.ticket == Some(ticket));
        if let Some(id) = self.exec.operations.find(|task| marks(&task.command.job)) {
            self.marked(conns, id, done);
            return self.take_answers(conns);
        }
        let failure = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
        self.part_finished(conns, ticket, (!done).then_some(failure));
    }

    /// One of the things that a command waited for is done, or has failed for this reason.
    pub(super) fn part_finished(&mut self, conns: &mut Conns, ticket: u64, failure: Option<Sense>) {
        let waits = |job: &Job| matches!(job, Job::Await(awaited) if awaited.ticket == ticket);
        // The command may have been aborted meanwhile.
        let Some((id, task)) =
            self.exec.operations.iter_mut().find(|(_, task)| waits(&task.command.job))
        else {
            return;
        };
        if let Job::Await(awaited) = &mut task.command.job {
            awaited.left -= 1;
        }
        if let Some(sense) = failure {
            fail(task, sense);
        }
        if let Some(conn) = self.conn_of(conns, id) {
            self.pump(conn, id);
        }
    }

    /// True if the command has taken effect already and only waits for its answer.
    pub fn has_taken_effect(&self, id: OperationId) -> bool {
        let took = |job: &Job| match job {
            Job::Await(awaited) => awaited.order.is_none(),
            // It may have.
            Job::Forwarded(_) => true,
            _ => false,
        };
        self.exec.operations.get(id).is_some_and(|task| took(&task.command.job))
    }
}
