//! Commands of admin queues, and what a controller asks its shard for.

use lunet_nvme::command::{Completion, FABRICS};
use lunet_nvme::controller::{Answer, Command, Kind, Request, Tag};
use lunet_nvme::feature::Event;
use lunet_nvme::log::{AnaState, ReservationLog};
use lunet_nvme::pdu::{U32, U64};
use lunet_nvme::status::Status;
use lunet_ring::Buf;
use lunet_server::conn::ConnId;
use lunet_server::places::ConnRef;
use lunet_volume::Face;

use super::identify::{View, Way, paths};
use super::{Core, Shard};
use crate::connection::{Admin, Conn, complete, has_room_for_page, send_page};
use crate::message::Message;
use crate::registry::LOSSES;

impl Admin {
    /// Of a controller that its host has just connected to.
    pub fn new(
        controller: lunet_nvme::controller::Controller,
        paths: Vec<(u32, AnaState)>,
    ) -> Self {
        let (notices, notice_count) = (Default::default(), 0);
        let (flushing, ends_queues) = (0, false);
        Self { controller, paths, path_changes: 1, notices, notice_count, flushing, ends_queues }
    }

    /// A flush that a shutdown waits for is done.
    pub fn flushed(&mut self) {
        self.flushing = self.flushing.saturating_sub(1);
        if self.flushing == 0 {
            self.controller.shutdown_done();
        }
    }

    /// The host has lost something: `mask` is the bit by which it may not want to know.
    pub fn lost(&mut self, nsid: u32, notice: lunet_nvme::log::ReservationNotice) {
        if self.controller.reservation_notice(nsid, 1 << notice.code()) {
            if self.notices.len() == LOSSES {
                self.notices.pop_front();
            }
            self.notices.push_back((nsid, notice));
        }
    }

    /// The oldest notice, as its log page.
    fn oldest(&self) -> ReservationLog {
        let Some((nsid, kind)) = self.notices.front() else { return ReservationLog::default() };
        ReservationLog {
            count: U64::new(self.notice_count + 1),
            kind: kind.code(),
            available: (self.notices.len() - 1).min(255) as u8,
            nsid: U32::new(*nsid),
            ..ReservationLog::default()
        }
    }
}

/// A command has come on an admin queue.
pub(super) fn command<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, command: Command<Buf>) {
    let now = shard.front.exec.storage.now;
    let conn = &mut shard.conns[slot];
    // What reads nothing has no page. Above all an event request: a host whose request fails makes no other.
    let len = command.expects_read as usize;
    if len > 0 && !has_room_for_page(conn, len) {
        return complete(conn, command.tag, Status::INTERRUPTED.retry_after(1));
    }
    let Some(mut admin) = conn.front.admin.take() else { return };
    let Command { tag, sqe, expects_read, data, .. } = command;
    let data = data.as_ref().map_or(&[][..], |(buf, range)| &buf[range.clone()]);
    let answer = if sqe.opcode == FABRICS {
        admin.controller.heard(now);
        admin.controller.fabrics(0, &sqe)
    } else if let Some(queue) = &conn.front.queue {
        let mut view = View {
            engine: &shard.front,
            queue,
            way: Way::of(conn),
            paths: (&admin.paths, admin.path_changes),
            notice: admin.oldest(),
            taken: false,
        };
        let request = Request { tag, sqe: &sqe, expects_read, data };
        let answer = admin.controller.admin(request, &mut view, now);
        if view.taken && matches!(answer, Answer::Data(_)) && admin.notices.pop_front().is_some() {
            admin.notice_count += 1;
            if !admin.notices.is_empty() {
                // There is more to read.
                admin.controller.notify(Event::Reservation);
            }
        }
        answer
    } else {
        Status::SEQUENCE.into()
    };
    shard.conns[slot].front.admin = Some(admin);
    carry_out(shard, slot, tag, answer);
    // A path that a host does not use is not looked at by commands: but it is kept alive.
    look_at_paths(shard, slot);
}

/// Does what the controller answers.
fn carry_out<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, tag: Tag, answer: Answer) {
    let conn = &mut shard.conns[slot];
    match answer {
        Answer::Complete(completion) => complete(conn, tag, completion),
        Answer::Data(data) if data.is_empty() => complete(conn, tag, Status::SUCCESS),
        Answer::Data(data) => send_page(conn, tag, data),
        Answer::Kept => {}
        Answer::Abort { sqid, cid } => abort(shard, slot, tag, (sqid, cid)),
        Answer::Reset => {
            complete(conn, tag, Status::SUCCESS);
            end_queues(shard, slot);
        }
        Answer::ShutDown => {
            complete(conn, tag, Status::SUCCESS);
            shut_down(shard, slot);
        }
        Answer::Persistence { nsid, set } => {
            let answer = persistence(shard, slot, nsid, set);
            complete(&mut shard.conns[slot], tag, answer);
        }
        // It does not come here.
        Answer::Authenticate(_) => complete(conn, tag, Status::SEQUENCE.no_retry()),
    }
}

/// Tells other queues of the state of the controller, and the host of events.
pub(super) fn after<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let Some(conn) = shard.conns.get_mut(slot) else { return };
    if let (Some(queue), Some(admin)) = (&conn.front.queue, &conn.front.admin) {
        queue.member.publish(&admin.controller);
    }
    while let Some((tag, completion)) = next_event(conn) {
        complete(conn, tag, completion);
    }
    shard.touch(slot);
}

fn next_event(conn: &mut Conn) -> Option<(Tag, Completion)> {
    conn.front.admin.as_mut()?.controller.take_event()
}

/// Aborts a command: on its own queue, wherever that is.
fn abort<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId, tag: Tag, (sqid, cid): (u16, u16)) {
    let conn = &mut shard.conns[slot];
    let Some(queue) = &conn.front.queue else { return };
    let (cntlid, serial) = (queue.member.cntlid, conn.serial);
    if sqid == 0 {
        let found = conn.front.proto.find(cid).filter(|found| *found != tag);
        let controller = conn.front.admin.as_mut().map(|admin| &mut admin.controller);
        let aborted = found
            .zip(controller)
            .and_then(|(found, controller)| controller.abort_event_request(found).then_some(found));
        aborted.into_iter().for_each(|found| complete(conn, found, Status::ABORTED));
        return complete(conn, tag, Completion::with(u64::from(aborted.is_none())));
    }
    let queues = shard.core.front.registry.queues(cntlid);
    let Some((_, queue)) = queues.into_iter().find(|(qid, _)| *qid == sqid) else {
        // Nothing of it is there to be aborted.
        return complete(conn, tag, Completion::with(1));
    };
    let asks = (ConnRef { shard: shard.number, connection: serial }, tag);
    let message = Message::Abort { connection: queue.connection, cid, asks };
    shard.core.mailboxes()[queue.shard].tell(message);
}

/// A reset: the I/O queues of the controller end.
fn end_queues<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let conn = &mut shard.conns[slot];
    let (Some(queue), Some(admin)) = (&conn.front.queue, &mut conn.front.admin) else { return };
    // From here on none can be made.
    queue.member.publish(&admin.controller);
    if !queues_end(&shard.core, queue.member.cntlid, false) {
        admin.controller.reset_done();
    }
}

/// Has the I/O queues of a controller end, on whatever shards they are; `aborted`: their connections are reset. False if there are
/// none.
fn queues_end<Fc: Face>(core: &Core<Fc>, cntlid: u16, aborted: bool) -> bool {
    let queues = core.front.registry.queues(cntlid);
    for (_, queue) in &queues {
        let message = Message::EndQueue { connection: queue.connection, aborted };
        core.mailboxes()[queue.shard].tell(message);
    }
    !queues.is_empty()
}

/// The controller shuts down: all that was written is made stable.
fn shut_down<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let conn = &shard.conns[slot];
    let (Some(queue), Some(admin)) = (&conn.front.queue, &conn.front.admin) else { return };
    // From here on its queues take no commands: what they answered would not be flushed.
    queue.member.publish(&admin.controller);
    let gated = conn.front.gated.as_ref();
    let group = gated.and_then(|gated| shard.front.groups.get(gated.group));
    // What another gateway serves is that one's to flush; and whoever gives a group away flushes it.
    let volumes = match group.is_none_or(|group| group.gate.is_open()) {
        true => queue.namespaces.iter().map(|seen| seen.volume).collect(),
        false => Vec::new(),
    };
    // What was passed on may come to the owner yet: the relays of its queues end, so that nothing newer goes before that is known.
    let passed_on = group.is_some_and(|group| group.gate.is_through());
    let ends_queues = passed_on && queues_end(&shard.core, queue.member.cntlid, true);
    let flushing = shard.front.flush_for_shutdown(shard.conns[slot].serial, volumes);
    if let Some(admin) = &mut shard.conns[slot].front.admin {
        admin.ends_queues = ends_queues;
        admin.flushing += flushing + usize::from(ends_queues);
        if admin.flushing == 0 {
            admin.controller.shutdown_done();
        }
    }
}

/// Reservation Persistence of a namespace. It is set by whoever registers.
fn persistence<Fc: Face>(
    shard: &Shard<Fc>,
    slot: ConnId,
    nsid: u32,
    set: Option<bool>,
) -> Completion {
    let queue = shard.conns[slot].front.queue.as_ref();
    let seen = queue.and_then(|queue| queue.namespaces.iter().find(|seen| seen.nsid == nsid));
    let Some(seen) = seen else { return Status::INVALID_NAMESPACE.no_retry().into() };
    let core = &shard.front.exec.storage.volumes[seen.volume].core;
    let kept = core.reservations.look(|state| state.activated());
    match set {
        None => Completion::with(u64::from(kept)),
        Some(set) if set == kept => Completion::SUCCESS,
        Some(_) => Status::NOT_CHANGEABLE.no_retry().into(),
    }
}

/// Looks whether paths have changed, and tells the host if they have.
pub(super) fn look_at_paths<Fc: Face>(shard: &mut Shard<Fc>, slot: ConnId) {
    let now = paths(&shard.front, &shard.conns[slot]);
    let conn = &mut shard.conns[slot];
    let serves = conn.front.kind() == Some(Kind::Io);
    let Some(admin) = &mut conn.front.admin else { return };
    if serves && admin.paths != now {
        admin.paths = now;
        admin.path_changes += 1;
        admin.controller.notify(Event::Ana);
    }
    after(shard, slot);
}
