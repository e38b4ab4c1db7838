//! Reservation commands: on the state of the volume that all protocols share.

use std::sync::Arc;

use lunet_nvme::controller::{Command, Tag};
use lunet_nvme::status::Status;
use lunet_reservations::{Event, MAX_OF_NAME, MAX_REGISTRATIONS, Registrant, Reservations};
use lunet_ring::Buf;
use lunet_server::conn::ConnId;
use lunet_server::core::Core;
use lunet_server::rationed::Topic;
use lunet_volume::reserve::{Done, Order, Request, Unchanged};
use lunet_volume::{Face, OperationId, Volume, VolumeId};
use zerocopy::FromBytes;

use super::Engine;
use super::task::{Awaited, BUSY, Job, fail};
use crate::connection::{Conn, Conns, find, has_room_for_page, send_page};
use crate::message::{Message, Preempted, Receipt};
use crate::reservations::{Change, NO_ROOM, Wish, report, told};

/// A change that is to be kept through power loss.
struct Kept<Fc> {
    volume: Arc<Volume<Fc>>,
    slot: VolumeId,
    change: Change,
    order: Order,
    /// The command that waits: its shard, its ticket, its connection and name.
    asking: Asking,
}

/// A command that waits for what other threads do.
#[derive(Clone, Copy)]
struct Asking {
    shard: usize,
    ticket: u64,
    spared: (u64, Tag),
}

impl<Fc> Request for Kept<Fc> {
    type Refusal = Status;

    fn carry_out(&self, state: &mut Reservations) -> Result<Vec<Event>, Status> {
        self.change.make(state).map_err(told)
    }

    fn stands(&self) -> bool {
        self.order.is_wanted()
    }
}

/// Has a change carried out, then its shard told so. False if too much is to be done already.
fn keep<Fc: Face>(core: &Arc<Core<Engine<Fc>>>, kept: Kept<Fc>) -> bool {
    let own = core.clone();
    core.front.order(Box::new(move || {
        let done = kept.volume.reserve_and_keep(&kept);
        let Asking { shard, ticket, .. } = kept.asking;
        let aborts = done.is_ok() && kept.change.aborts();
        let result = match &done {
            Ok(_) => Ok(usize::from(aborts)),
            Err(unchanged) => Err(*unchanged),
        };
        // First, so that the command knows for how many it waits before the first of them tells.
        own.mailboxes()[shard].tell(Message::Kept { ticket, result });
        if let (true, Ok(events)) = (aborts, done) {
            tell_preempted(&own, (kept.slot, &*kept.volume), &events, kept.asking);
        }
    }))
}

/// Has every shard end the commands of hosts that were preempted, and other protocols those of their clients.
fn tell_preempted<Fc: Face>(
    core: &Core<Engine<Fc>>,
    (slot, volume): (VolumeId, &Volume<Fc>),
    events: &[Event],
    asking: Asking,
) {
    let (hosts, others): (Vec<_>, Vec<_>) =
        Event::aborted(events).cloned().partition(|whose| whose.host_id().is_some());
    let hosts: Arc<[Registrant]> = hosts.into();
    let to = core.mailboxes()[asking.shard].clone();
    let done: Done = Arc::new(Receipt { to, ticket: asking.ticket });
    for mailbox in core.mailboxes() {
        let (hosts, spared, receipt) = (hosts.clone(), Some(asking.spared), done.clone());
        mailbox.tell(Message::Preempted(Preempted { volume: slot, hosts, spared, receipt }));
    }
    volume.reservations.abort(&others.into(), done);
}

impl<Fc: Face> Engine<Fc> {
    /// The keys of a reservation command are here.
    pub(super) fn reserve_collected(
        &mut self,
        conn: &Conn,
        id: OperationId,
        wish: Wish,
        data: &[u8],
    ) {
        let key = |at: usize| {
            let bytes =
                data.get(8 * at..8 * at + 8).and_then(|part| u64::read_from_bytes(part).ok());
            u64::from_le(bytes.unwrap_or(0))
        };
        let (Some(queue), Some(owner)) =
            (conn.front.queue.as_ref(), self.exec.operations[id].command.owner)
        else {
            return;
        };
        // Two hosts may have this one: it stands for nobody (NVMe base specification, Host Identifier feature).
        if queue.member.host.id == [0; 16] {
            return fail(&mut self.exec.operations[id], Status::HOST_ID_FORMAT.no_retry());
        }
        let who = queue.member.registrant.clone();
        let change = Change { who, wish, keys: (key(0), key(1)) };
        if self.hand_over_change(conn, id, &change) {
            return;
        }
        let slot = self.exec.operations[id].requests.volume;
        let volume = self.exec.storage.volumes[slot].core.clone();
        let ticket = self.core.next_serial();
        let asking = Asking { shard: self.number, ticket, spared: (conn.serial, owner.tag) };
        // What is to be kept takes effect when it is stable, not before; and nothing comes in between.
        let (now, events) = volume.reservations.change(|state| {
            let reservations = &volume.reservations;
            let waits = state.activated() || change.persists() || reservations.is_keeping();
            if volume.store.is_some() && waits {
                return (Err(reservations.order()), Vec::new());
            }
            match change.make(state) {
                Ok(events) => (Ok(Ok(())), events),
                Err(refusal) => (Ok(Err(told(refusal))), Vec::new()),
            }
        });
        match now {
            Err((order, wanted)) => {
                let kept = Kept { volume, slot, change, order, asking };
                if keep(&self.core.clone(), kept) {
                    let awaited = Awaited { ticket, left: 1, order: Some(wanted) };
                    self.exec.operations[id].command.job = Job::Await(awaited);
                } else {
                    fail(&mut self.exec.operations[id], BUSY);
                }
            }
            Ok(Err(status)) => {
                self.tell_of_refusal(id, status);
                fail(&mut self.exec.operations[id], status);
            }
            Ok(Ok(())) if change.aborts() => {
                let awaited = Awaited { ticket, left: 1, order: None };
                self.exec.operations[id].command.job = Job::Await(awaited);
                tell_preempted(&self.core, (slot, &*volume), &events, asking);
            }
            Ok(Ok(())) => {}
        }
    }

    /// A line in the log, if a registration was refused because there are too many.
    fn tell_of_refusal(&self, id: OperationId, status: Status) {
        if status.code() != NO_ROOM {
            return;
        }
        let ration = self.core.rations.grants(Topic::Refused, self.exec.storage.now);
        let Some(unlogged) = ration else { return };
        let volume = &self.exec.storage.volumes[self.exec.operations[id].requests.volume].core.name;
        tracing::warn!(
            %volume, unlogged,
            "a registration was refused: the volume has {MAX_REGISTRATIONS}, or its host has registered {MAX_OF_NAME} \
             host identifiers; to remove those of hosts that are gone, have a registrant clear or preempt them"
        );
    }

    /// The keeper is done with a change.
    pub fn reservation_kept(
        &mut self,
        conns: &mut Conns,
        ticket: u64,
        result: Result<usize, Unchanged<Status>>,
    ) {
        // The command may have been aborted meanwhile.
        let Some(id) = self.waits_for(ticket) else { return };
        let task = &mut self.exec.operations[id];
        let left = *result.as_ref().unwrap_or(&0);
        task.command.job = Job::Await(Awaited { ticket, left, order: None });
        match result {
            Ok(_) => {}
            Err(Unchanged::Refused(status)) => {
                fail(task, status);
                self.tell_of_refusal(id, status);
            }
            Err(Unchanged::Busy) => fail(task, BUSY),
            Err(Unchanged::Failed) => fail(task, Status::INTERNAL),
        }
        self.go_on(conns, id);
    }

    /// One of the things that a command waited for is done.
    pub fn part_done(&mut self, conns: &mut Conns, ticket: u64) {
        let Some(id) = self.waits_for(ticket) else { return };
        if let Job::Await(awaited) = &mut self.exec.operations[id].command.job {
            awaited.left = awaited.left.saturating_sub(1);
        }
        self.go_on(conns, id);
    }

    fn waits_for(&self, ticket: u64) -> Option<OperationId> {
        let waits = |job: &Job| matches!(job, Job::Await(awaited) if awaited.ticket == ticket);
        self.exec.operations.find(|task| waits(&task.command.job))
    }

    fn go_on(&mut self, conns: &mut Conns, id: OperationId) {
        if let Some(conn) = self.conn_of(conns, id) {
            self.pump(conn, id);
        }
        self.take_answers(conns);
    }

    /// Reservation Report.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn report_reservations(
        &mut self,
        (conn, slot): (&mut Conn, ConnId),
        command: &Command<Buf>,
        (len, extended): (u32, bool),
    ) -> Result<(), Status> {
        let nsid = command.sqe.nsid.get();
        let queue = conn.front.queue.as_mut().ok_or(Status::SEQUENCE.no_retry())?;
        let seen = find(&mut queue.namespaces, nsid);
        let seen = seen.ok_or(Status::INVALID_NAMESPACE.no_retry())?;
        // Hosts have identifiers of 128 bits, which the other form has no room for.
        if !extended {
            return Err(Status::HOST_ID_FORMAT.no_retry());
        }
        let most = 4096 << self.core.front.options.mdts;
        if u64::from(len) > most || len > command.expects_read {
            return Err(Status::DATA_LENGTH.no_retry());
        }
        let volume = seen.volume;
        if let Some(takes) = self.takes_requests(conn) {
            self.hand_over_report(conn, (slot, len), command, &takes);
            return Ok(());
        }
        let open = &mut self.exec.storage.volumes[volume];
        open.count.record(lunet_volume::Kind::Other, 0, 0, false);
        let mut page = open.core.reservations.look(report).encode();
        if !has_room_for_page(conn, len as usize) {
            return Err(BUSY);
        }
        page.resize(len as usize, 0);
        send_page(conn, command.tag, page);
        Ok(())
    }
}
