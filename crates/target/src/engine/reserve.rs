//! Commands on what all nexuses of a volume share: its reservations, its target port groups and its mode
//! parameters.

use std::sync::{Arc, Mutex, PoisonError};

use lunet_iscsi::target::Tag;
use lunet_scsi::alua;
use lunet_scsi::reserve::{Out, Outcome, Request};
use lunet_scsi::{Attention, Code, Key, Modes, Reply, Sense, Transfer, status};
use slab::Slab;

use super::Engine;
use super::start::send_reply;
use super::task::{Bare, Job, Settle};
use crate::conn::Conn;
use crate::keeper::Order;
use crate::mail::{AbortOrder, Mail};
use crate::stats::Kind;

impl Engine {
    /// A command that came without a parameter list: it is answered at once.
    pub(super) fn reservation(
        &mut self,
        conn: &mut Conn,
        (tag, lun, volume): (Tag, u16, usize),
        request: &Request,
    ) {
        let Some(seat) = conn.seat(lun) else { return };
        let shared = &self.volumes[volume].core.reservations;
        let Outcome { reply, .. } = shared.with(|state| state.execute(seat, request));
        self.volumes[volume].count.record(Kind::Other, 0, 0, reply.sense.is_some());
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        let format = self.volumes[volume].core.unit.sense_format();
        send_reply(conn, tag, reply, transfer, format);
    }

    /// The parameter list of PERSISTENT RESERVE OUT has come.
    pub(super) fn reservation_collected(&mut self, conn: &Conn, index: u32, request: &Request) {
        let task = &self.tasks[index as usize];
        let Some(seat) = conn.seat(task.lun) else { return };
        let volume = task.volume;
        let entry = self.volumes[volume].core.clone();
        let aborts = matches!(request, Request::Out(Out::Preempt { abort: true, .. }));
        let ticket = self.core.next_serial();
        let order = Arc::new(Mutex::new(Vec::new()));
        // The shards that have the letter wait here until the order is written.
        let mut names = order.lock().unwrap_or_else(PoisonError::into_inner);
        if aborts && !self.announce(volume, &order, ticket) {
            return self.refuse(index, status::BUSY);
        }
        let keep = Order::Keep { volume: entry.clone(), shard: self.number, ticket };
        let done = entry.reservations.with(|state| {
            let keeps = entry.kept.is_some() && (state.activated() || request.persists());
            // The keeper looks at the state no sooner than this lock is open.
            let room = !keeps || self.core.order(keep);
            room.then(|| (state.execute(seat, request), usize::from(keeps)))
        });
        let Some((outcome, kept)) = done else { return self.refuse(index, status::BUSY) };
        let left = kept + if aborts { self.core.mailboxes().len() } else { 0 };
        *names = outcome.aborts;
        let task = &mut self.tasks[index as usize];
        match outcome.reply {
            Reply { status: status::GOOD, .. } => task.job = Job::Settle(Settle { ticket, left }),
            Reply { sense: Some(sense), .. } => {
                task.fail(sense);
                task.job = Job::Bare(Bare::nothing());
            }
            Reply { status, .. } => self.refuse(index, status),
        }
    }

    /// REPORT TARGET PORT GROUPS.
    pub(super) fn port_groups(
        &mut self,
        conn: &mut Conn,
        (tag, lun, volume): (Tag, u16, usize),
        request: &alua::Request,
    ) {
        let Some(reply) = self.on_port_groups(conn, lun, volume, request) else { return };
        self.volumes[volume].count.record(Kind::Other, 0, 0, reply.sense.is_some());
        let transfer = Transfer { data_in: reply.data.len() as u64, data_out: 0 };
        let format = self.volumes[volume].core.unit.sense_format();
        send_reply(conn, tag, reply, transfer, format);
    }

    /// The parameter list of SET TARGET PORT GROUPS has come.
    pub(super) fn port_groups_collected(
        &mut self,
        conn: &Conn,
        index: u32,
        request: &alua::Request,
    ) {
        let task = &self.tasks[index as usize];
        let reply = self.on_port_groups(conn, task.lun, task.volume, request);
        self.end(index, reply.and_then(|reply| reply.sense));
    }

    /// Carries a request on target port groups out; whoever did not ask is told what it changed. The lock on
    /// the reservations sees to it that there is one at a time.
    fn on_port_groups(
        &self,
        conn: &Conn,
        lun: u16,
        volume: usize,
        request: &alua::Request,
    ) -> Option<Reply> {
        let (groups, seat) = (&conn.session.as_ref()?.scsi.groups, conn.seat(lun)?);
        let core = &self.volumes[volume].core;
        Some(core.reservations.with(|state| {
            let done = groups.execute(&core.unit.state.access, state.ports(), request);
            if done.changed {
                state.attend_others(seat, Attention::AccessStateChanged);
            }
            done.reply
        }))
    }

    /// The mode parameters are set; whoever did not ask for it is told if they are others now.
    pub(super) fn set_modes(&mut self, conn: &Conn, index: u32, modes: Modes) {
        let task = &mut self.tasks[index as usize];
        let core = &self.volumes[task.volume].core;
        let through = core.unit.write_through();
        if core.unit.state.set_modes(modes) {
            if let Some(seat) = conn.seat(task.lun) {
                core.reservations
                    .with(|state| state.attend_others(seat, Attention::ModeParametersChanged));
            }
        }
        // Nobody flushes any more what was written before.
        let flushes = core.unit.write_through() && !through;
        task.job = Job::Bare(if flushes { Bare::flush() } else { Bare::nothing() });
    }

    /// Sends word of an order to abort to every shard. False if one cannot take it: nothing comes of
    /// those that were sent, because nothing will stand in the order.
    fn announce(&self, volume: usize, order: &AbortOrder, ticket: u64) -> bool {
        self.core.mailboxes().iter().all(|mailbox| {
            let order = order.clone();
            mailbox.send(Mail::Abort { volume, order, shard: self.number, ticket }).is_ok()
        })
    }

    /// Ends a command with a status that has no sense data.
    pub(super) fn refuse(&mut self, index: u32, status: u8) {
        let task = &mut self.tasks[index as usize];
        task.refused = Some(status);
        task.job = Job::Bare(Bare::nothing());
    }

    /// Something that a command waited for is done, or has failed.
    pub fn settled(&mut self, conns: &mut Slab<Conn>, ticket: u64, done: bool) {
        let marks = |job: &Job| matches!(job, Job::Sanitize(job) if job.ticket == Some(ticket));
        if let Some((index, _)) = self.tasks.iter().find(|(_, task)| marks(&task.job)) {
            self.marked(conns, index as u32, done);
            return self.settle(conns);
        }
        let failure = Sense::new(Key::HardwareError, Code::INTERNAL_TARGET_FAILURE);
        self.answer_settled(conns, ticket, (!done).then_some(failure));
    }

    /// One of the things that a command waited for is done, or has failed for this reason.
    pub(super) fn answer_settled(
        &mut self,
        conns: &mut Slab<Conn>,
        ticket: u64,
        failure: Option<Sense>,
    ) {
        let waits = |job: &Job| matches!(job, Job::Settle(settle) if settle.ticket == ticket);
        // The command may have been aborted meanwhile.
        let Some((index, task)) = self.tasks.iter_mut().find(|(_, task)| waits(&task.job)) else {
            return;
        };
        if let Job::Settle(settle) = &mut task.job {
            settle.left -= 1;
        }
        if let Some(sense) = failure {
            task.fail(sense);
        }
        let index = index as u32;
        if let Some(conn) = self.conn_of(conns, index) {
            self.pump(conn, index);
        }
    }

    /// True if the command has taken effect already and only waits for its answer.
    pub fn is_settling(&self, index: u32) -> bool {
        self.tasks.get(index as usize).is_some_and(|task| matches!(task.job, Job::Settle(_)))
    }

    /// True if the command can be answered.
    pub(super) fn pump_settle(&self, index: u32) -> bool {
        matches!(&self.tasks[index as usize].job, Job::Settle(settle) if settle.left == 0)
    }
}
