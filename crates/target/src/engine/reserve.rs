//! Commands on what all nexuses of a volume share: its reservations, its target port groups and its mode
//! parameters.

use lunet_iscsi::target::Tag;
use lunet_scsi::alua;
use lunet_scsi::reserve::{Outcome, Request};
use lunet_scsi::{Attention, Code, Key, Modes, Reply, Sense, Transfer, status};
use lunet_volume::{Kind, OperationId, Plain, VolumeId, Work};

use super::Engine;
use super::start::send_reply;
use super::task::{Job, Settle, fail};
use crate::conn::{Conn, Conns};
use crate::keeper::{Carried, Command, Order};
use crate::mail::{Asking, Preempted};
use crate::marks;

impl Engine {
    /// A command that came without a parameter list: it is answered at once.
    pub(super) fn reservation(
        &mut self,
        conn: &mut Conn,
        (tag, lun, volume): (Tag, u16, VolumeId),
        request: &Request,
    ) {
        let Some(seat) = conn.seat(lun) else { return };
        let shared = &self.exec.storage.volumes[volume].core.face.reservations;
        let Outcome { reply, .. } = shared.with(|state| state.execute(seat, request));
        self.exec.storage.volumes[volume].count.record(Kind::Other, 0, 0, reply.sense.is_some());
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        let format = self.exec.storage.volumes[volume].core.face.unit.sense_format();
        send_reply(conn, tag, reply, transfer, format);
    }

    /// The parameter list of PERSISTENT RESERVE OUT has come.
    pub(super) fn reservation_collected(
        &mut self,
        conn: &Conn,
        index: OperationId,
        request: &Request,
    ) {
        let task = &self.exec.operations[index];
        let (Some(seat), Some(session)) = (conn.seat(task.command.lun), &conn.session) else {
            return;
        };
        let Some(owner) = task.command.owner else { return };
        let volume = task.requests.volume;
        let entry = self.exec.storage.volumes[volume].core.clone();
        let ticket = self.core.next_serial();
        let (shard, connection) = (self.number, conn.serial);
        let asking = Asking { shard, ticket, connection, command: owner.tag };
        let command = Command {
            volume: entry.clone(),
            slot: volume,
            nexus: session.id.clone(),
            seat,
            request: request.clone(),
            asking,
        };
        // What is to be kept takes effect when it is stable, not before.
        let now = entry.face.reservations.with(|state| {
            let keeps = entry.face.kept.is_some() && (state.activated() || request.persists());
            if keeps { Err(command) } else { Ok(state.execute(seat, request)) }
        });
        match now {
            Err(command) => {
                if self.core.order(Order::Keep(Box::new(command))) {
                    let task = &mut self.exec.operations[index];
                    task.command.job = Job::Settle(Settle { ticket, left: 1 });
                } else {
                    self.refuse(index, status::BUSY);
                }
            }
            Ok(Outcome { reply, aborts }) if reply.status == status::GOOD => {
                let left = if request.aborts() { self.core.mailboxes().len() } else { 0 };
                self.exec.operations[index].command.job = Job::Settle(Settle { ticket, left });
                if request.aborts() {
                    Preempted::tell(self.core.mailboxes(), volume, &aborts.into(), asking);
                }
            }
            Ok(Outcome { reply, .. }) => self.end_with(index, reply),
        }
    }

    /// Ends a command as the device server has answered it.
    fn end_with(&mut self, index: OperationId, reply: Reply) {
        match reply {
            Reply { sense: Some(sense), .. } => self.end(index, Some(sense)),
            Reply { status, .. } => self.refuse(index, status),
        }
    }

    /// The keeper is done with a command.
    pub fn reservation_kept(&mut self, conns: &mut Conns, ticket: u64, result: Carried) {
        let waits = |job: &Job| matches!(job, Job::Settle(settle) if settle.ticket == ticket);
        // The command may have been aborted meanwhile.
        let Some((index, task)) =
            self.exec.operations.iter_mut().find(|(_, task)| waits(&task.command.job))
        else {
            return;
        };
        match result {
            Carried::Done { aborting } => {
                task.command.job = Job::Settle(Settle { ticket, left: aborting })
            }
            Carried::Refused(reply) => self.end_with(index, reply),
            Carried::Busy => self.refuse(index, status::BUSY),
            Carried::Failed => {
                let failure = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
                self.end(index, Some(failure));
            }
        }
        if let Some(conn) = self.conn_of(conns, index) {
            self.pump(conn, index);
        }
        self.settle(conns);
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
        index: OperationId,
        request: &alua::Request,
    ) {
        let task = &self.exec.operations[index];
        let reply = self.on_port_groups(conn, task.command.lun, task.requests.volume, request);
        self.end(index, reply.and_then(|reply| reply.sense));
    }

    /// Carries a request on target port groups out; whoever did not ask is told what it changed. The lock on
    /// the reservations sees to it that there is one at a time.
    fn on_port_groups(
        &self,
        conn: &Conn,
        lun: u16,
        volume: VolumeId,
        request: &alua::Request,
    ) -> Option<Reply> {
        let (groups, seat) = (&conn.session.as_ref()?.scsi.groups, conn.seat(lun)?);
        let core = &self.exec.storage.volumes[volume].core;
        Some(core.face.reservations.with(|state| {
            let done = groups.execute(&core.face.unit.state.access, state.ports(), request);
            if done.changed {
                state.attend_others(seat, Attention::AccessStateChanged);
            }
            done.reply
        }))
    }

    /// The parameter list of MODE SELECT has come. That the write cache is off, or on again, is kept first, takes effect
    /// then, and is answered last; if it cannot be kept, nothing has changed. Until it takes effect others write with
    /// the cache; the flush that follows covers that.
    pub(super) fn set_modes(&mut self, conn: &Conn, index: OperationId, modes: Modes) {
        let task = &mut self.exec.operations[index];
        let core = self.exec.storage.volumes[task.requests.volume].core.clone();
        let before = core.face.unit.state.modes();
        let Some(kept) = core.face.kept.clone().filter(|_| before.write_cache != modes.write_cache)
        else {
            core.face.unit.state.set_modes(modes);
            return self.modes_set(conn, index, (before, modes));
        };
        // One at a time for each volume, so that what is kept is what is in force.
        let work = move || {
            let kept =
                marks::keep_write_cache(&kept, &core.face.unit.identity.naa, modes.write_cache);
            match &kept {
                Ok(()) => drop(core.face.unit.state.set_modes(modes)),
                Err(error) => {
                    tracing::error!(volume = %core.name, %error, "mode parameters cannot be kept");
                }
            }
            kept.is_ok()
        };
        let sent = self.send_away(index, work, move |engine, conn, index, kept| {
            if kept {
                return engine.modes_set(conn, index, (before, modes));
            }
            let sense = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
            engine.end(index, Some(sense));
        });
        if !sent {
            self.refuse(index, status::BUSY);
        }
    }

    /// The mode parameters are set; whoever did not ask for it is told if they are others now.
    fn modes_set(&mut self, conn: &Conn, index: OperationId, (before, modes): (Modes, Modes)) {
        let task = &mut self.exec.operations[index];
        let core = &self.exec.storage.volumes[task.requests.volume].core;
        if before != modes {
            if let Some(seat) = conn.seat(task.command.lun) {
                core.face
                    .reservations
                    .with(|state| state.attend_others(seat, Attention::ModeParametersChanged));
            }
        }
        // Nobody flushes any more what was written before.
        let flushes = before.write_cache && core.face.unit.write_through();
        self.set_work(index, if flushes { Work::Plain(Plain::flush()) } else { Work::None });
    }

    /// Ends a command with a status that has no sense data.
    pub(super) fn refuse(&mut self, index: OperationId, status: u8) {
        let task = &mut self.exec.operations[index];
        task.command.refused = Some(status);
        task.fail();
        self.set_work(index, Work::None);
    }

    /// Something that a command waited for is done, or has failed.
    pub fn settled(&mut self, conns: &mut Conns, ticket: u64, done: bool) {
        let marks = |job: &Job| matches!(job, Job::Sanitize(job) if job.ticket == Some(ticket));
        if let Some(index) = self.exec.operations.find(|task| marks(&task.command.job)) {
            self.marked(conns, index, done);
            return self.settle(conns);
        }
        let failure = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
        self.answer_settled(conns, ticket, (!done).then_some(failure));
    }

    /// One of the things that a command waited for is done, or has failed for this reason.
    pub(super) fn answer_settled(
        &mut self,
        conns: &mut Conns,
        ticket: u64,
        failure: Option<Sense>,
    ) {
        let waits = |job: &Job| matches!(job, Job::Settle(settle) if settle.ticket == ticket);
        // The command may have been aborted meanwhile.
        let Some((index, task)) =
            self.exec.operations.iter_mut().find(|(_, task)| waits(&task.command.job))
        else {
            return;
        };
        if let Job::Settle(settle) = &mut task.command.job {
            settle.left -= 1;
        }
        if let Some(sense) = failure {
            fail(task, sense);
        }
        if let Some(conn) = self.conn_of(conns, index) {
            self.pump(conn, index);
        }
    }

    /// True if the command has taken effect already and only waits for its answer.
    pub fn is_settling(&self, index: OperationId) -> bool {
        self.exec
            .operations
            .get(index)
            .is_some_and(|task| matches!(task.command.job, Job::Settle(_)))
    }
}
