//! What a server does for a group.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use lunet_gateway::{
    Access, Action, Answer, Attention, Epoch, Gate, GatewayId, Input, Job, Notice, OpId, Order,
    Port, Portals, Record, Refusal, Registered, Reply, Request,
};
use lunet_rbd::Image;

use crate::driver::{Event, Status};
use crate::{Error, Said};

/// The group's images, as one RADOS client has them open.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The client: failures of I/O are reported with it, by [`Handle::io_failed`](crate::Handle::io_failed).
    pub client: OpId,
    /// The record, as it was when the client was made: which volumes the images are, and how they are called.
    pub record: Record,
    /// One for each volume of the record, in its order. Nothing can be written before the gate opens.
    pub images: Vec<Arc<Image>>,
}

/// Tells that no command is under way.
#[derive(Debug)]
pub struct Drained {
    pub(crate) op: OpId,
    pub(crate) sender: Sender<Event>,
}

impl Drained {
    /// None is, and none begins before the gate changes. May be called on any thread; without it the move is given up after
    /// a second.
    pub fn done(self) {
        // Without a receiver the group has ended.
        drop(self.sender.send(Event::Input(Input::Done(self.op, Ok(Reply::Done)))));
    }
}

/// The server's side of a group. All calls come from the group's thread, one after the other, and each has to be done when it
/// returns, on all shards: the next one relies on it. While one lasts the gateway answers no pings, so it must not wait for
/// storage.
pub trait Serving: Send {
    /// The images are these from now on; `None`: every handle is to be let go of, wherever it is. Commands that have requests
    /// at the former images under way are never answered: [`stop_answering`](Self::stop_answering) came before, or the gate was
    /// never open.
    ///
    /// # Errors
    /// The server cannot serve these images, in one sentence: the client is given up, and the group is not owned with it.
    fn storage(&mut self, storage: Option<Storage>) -> Result<(), Said>;

    /// The gate is this from now on: [`Gate::admits`] is asked before the first request of a command to storage. When it opens,
    /// each connection of the group is pinged with [`Gate::ping`].
    fn gate(&mut self, gate: Gate);

    /// The gate is closed, and nothing that is under way is answered any more, whatever becomes of it.
    fn stop_answering(&mut self, gate: Gate);

    /// Each connection of the group is aborted, with its unread bytes, and without a status.
    fn abort_connections(&mut self);

    /// Reservations, mode pages, marks and unit attentions of the record are taken up. The gate opens next.
    fn load(&mut self, record: &Record);

    /// The mode pages of the record are reported, by a gateway that does not own the group.
    fn modes(&mut self, record: &Record);

    /// A unit attention for each nexus.
    fn attention(&mut self, attention: Attention);

    /// A unit attention for nexuses here that have lost their registration with a volume.
    fn preempted(&mut self, lost: &[([u8; 16], Registered)]);

    /// The owner of this epoch is another gateway, or nobody. Commands that the gate lets
    /// [through](lunet_gateway::Admission::Forward) go to that portal from here on; what was passed on in an earlier epoch and
    /// was not answered is not answered any more.
    fn reach(&mut self, epoch: Epoch, owner: Portals);

    /// Target ports of all gateways and access states of their groups, as they are reported from now on.
    fn access(&mut self, epoch: Epoch, ports: &[Port], access: &Access);

    /// The gate is blocked. When no command is under way any more, flushes and copies included, `drained` is told; this call
    /// does not wait for that. A gate that changes before ends it.
    fn drain(&mut self, drained: Drained);

    /// PERSISTENT RESERVE OUT, on a copy of the reservations. Commands that they decide about wait until [`apply`](Self::apply)
    /// or [`abandon`](Self::abandon). The result goes to [`Handle::executed`](crate::Handle::executed), now or later.
    fn execute(&mut self, request: Request, body: Vec<u8>);

    /// The copy takes effect. When commands that it aborts have ended, [`Handle::applied`](crate::Handle::applied) is told.
    fn apply(&mut self, request: Request);

    /// The copy is thrown away.
    fn abandon(&mut self, request: Request);

    /// The answer to a request on reservations that came by [`Handle::reserve`](crate::Handle::reserve) or
    /// [`Handle::report`](crate::Handle::report) with that number.
    fn answer(&mut self, id: u64, answer: Answer);

    /// Work on a volume that an administrator wants, here or at another gateway. It is done on another thread, and
    /// [`Handle::job_done`](crate::Handle::job_done) is told of its end in any case: the group is not given away before. It may be
    /// taken meanwhile.
    fn job(&mut self, job: Job, body: Vec<u8>);

    /// An order is not carried out: for the log, and for whoever gave it.
    fn refuse(&mut self, order: Order, refusal: Refusal);

    /// Something that an administrator has to know: for the log.
    fn notice(&mut self, notice: &Notice);

    /// What hindered takeovers, as it was [told](Self::notice), is over.
    fn settled(&mut self) {}

    /// The other gateways that have answered this one, which owns the group: asked for every few seconds.
    fn present(&mut self, standbys: &[GatewayId]) {
        let _ = standbys;
    }

    /// The group has no connection to the cluster, and why; it is tried again each second, and told again when the reason is
    /// another one. `None`: it has one.
    fn trouble(&mut self, trouble: Option<&Error>);

    /// The configuration that the gateways share was looked at, and is served, as far as is known.
    fn seen(&mut self) {}

    /// An image has become smaller than its volume is, in bytes: what it had behind that is lost.
    fn cut_short(&mut self, image: &str, bytes: u64) {
        let _ = (image, bytes);
    }

    /// The group cannot have the volumes that it [is to have](crate::Handle::have), and why.
    fn not_had(&mut self, why: &Error) {
        let _ = why;
    }

    /// What the gateway is, and what it knows of its group, has changed.
    fn status(&mut self, status: &Status) {
        let _ = status;
    }

    /// An action is about to be carried out: for logs and tests. It may be any of them.
    fn about(&mut self, action: &Action) {
        let _ = action;
    }
}
